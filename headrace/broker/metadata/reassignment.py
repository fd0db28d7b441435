"""The states of a partition during a move to other brokers (KIP-455). Pure.

A partition that is being moved has its old replicas and its target replicas, the latter first and in their order. Those
that are `adding` copy the log; when all of them are in sync, those that are `removing` go, at once. Until then the move
can be cancelled: then the `adding` ones go. In both cases no replica goes that is in sync, or eligible to lead, as long
as fewer such replicas would be left than `min.insync.replicas` (`min_isr`; at most the number of target replicas). So
acknowledged records stay on that many replicas, and losing one replica loses none.

A target replica that is neither in sync nor alive delays the end. Another target or cancelling helps, if enough
replicas are in sync.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from headrace.broker.metadata.image import PartitionState
from headrace.protocol.errors import ErrorCode, KafkaError

LED_ANEW = 2
"""Rise of the leader epoch where the leader stops and begins again: there is no leader in between."""


def is_moving(state: PartitionState) -> bool:
    return bool(state.adding or state.removing)


def begun(state: PartitionState, target: Sequence[int], min_isr: int = 1) -> PartitionState:
    """Return the state of a move to these replicas; an earlier move changes its direction from its present state.
    `completed` ends the move.
    """
    before = [broker for broker in state.replicas if broker not in state.adding]
    # Replicas that were only just being added go at once, unless too few others are in sync.
    dropped = {broker for broker in state.adding if broker not in target and broker != state.leader}
    if _are_too_few(state, dropped, min(min_isr, len(target))):
        dropped -= _have_all(state)
    removing = tuple(each for each in state.replicas if each not in target and each not in dropped)
    adding = tuple(broker for broker in target if broker not in before)
    replicas = (*target, *removing)
    if (replicas, adding, removing) == (state.replicas, state.adding, state.removing):
        return state
    is_first_copy = len(state.replicas) == 1 < len(replicas)
    return replace(
        _without(state, dropped),
        replicas=replicas,
        adding=adding,
        removing=removing,
        leader_epoch=state.leader_epoch + (LED_ANEW if is_first_copy else 0),
        partition_epoch=state.partition_epoch + 1,
    )


def completed(state: PartitionState, min_isr: int = 1) -> PartitionState | None:
    """Return the state without the replicas that are to go; None while a replica to be added, or too many of those that
    stay, are not in sync. Its leader may not be among its replicas any more.
    """
    if not is_moving(state):
        return None
    isr = [broker for broker in state.isr if broker not in state.removing]
    if not isr or not set(state.adding) <= set(isr):
        return None
    if _are_too_few(state, set(state.removing), min(min_isr, len(state.replicas) - len(state.removing))):
        return None
    left = _without(state, set(state.removing))
    return replace(left, adding=(), removing=(), partition_epoch=state.partition_epoch + 1)


def cancelled(state: PartitionState, where: str, *, unclean: bool, min_isr: int = 1) -> PartitionState:
    """Return the state with the replicas before the move, or on the way back to them if too few of those are in sync.
    Its leader may not be among them. Raises KafkaError: NO_REASSIGNMENT_IN_PROGRESS, and INVALID_REPLICA_ASSIGNMENT if
    none of those is in sync, unless an election may be `unclean`.
    """
    if not is_moving(state):
        raise KafkaError(
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{where} is not being moved; there is nothing to cancel"
        )
    left = _without(state, set(state.adding))
    if _may_lead(state) and not _may_lead(state) & set(left.replicas):
        if not unclean or not left.replicas:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"the move of {where} cannot be cancelled: none of its earlier replicas "
                f"{list(left.replicas)} is in sync, and records that only the new ones have would be lost",
            )
        left = replace(left, isr=left.replicas[:1], elr=())
    elif _are_too_few(state, set(state.adding), min(min_isr, len(left.replicas))):
        return begun(state, left.replicas, min_isr)
    return replace(left, adding=(), removing=(), partition_epoch=state.partition_epoch + 1)


def not_registered(broker_id: int, registered: Iterable[int]) -> str:
    """Return the fault of an assignment that names an unregistered broker."""
    known = ", ".join(map(str, sorted(registered)))
    return f"includes broker {broker_id}, but no such broker is registered. Those that are: {known}."


def check_target(
    registered: Collection[int],
    state: PartitionState,
    target: Sequence[int],
    where: str,
    *,
    factor_may_change: bool,
) -> None:
    """Check a target. `registered` are the brokers that may be chosen, alive or absent. Raises KafkaError:
    INVALID_REPLICA_ASSIGNMENT, INVALID_REPLICATION_FACTOR.
    """
    missing = [broker for broker in target if broker not in state.replicas and broker not in registered]
    problem = None
    if not target:
        problem = "includes an empty replica list."
    elif len(set(target)) != len(target):
        twice = next(broker for broker in target if list(target).count(broker) > 1)
        problem = f"includes the broker {twice} more than once."
    elif missing:
        problem = not_registered(missing[0], registered)
    if problem is not None:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment of {where} {problem}"
        )
    factor = len(state.replicas) - len(state.removing)
    if not factor_may_change and len(target) != factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor of {where} is changed from {factor} to {len(target)}",
        )


def _may_lead(state: PartitionState) -> set[int]:
    """Return the replicas that may be elected: those in sync before those that are eligible."""
    return set(state.isr or state.elr)


def _have_all(state: PartitionState) -> set[int]:
    """Return the replicas that have everything that is committed: those in sync, and those that are only eligible to
    lead (KIP-966).
    """
    return {*state.isr, *state.elr}


def _are_too_few(state: PartitionState, going: set[int], needed: int) -> bool:
    """Return whether fewer than `needed` replicas with all committed records are left, and fewer than now."""
    have_all = _have_all(state)
    return bool(have_all & going) and len(have_all - going) < needed


def _without(state: PartitionState, brokers: set[int]) -> PartitionState:
    def left(listed: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(broker for broker in listed if broker not in brokers)

    return replace(
        state,
        replicas=left(state.replicas),
        isr=left(state.isr),
        elr=left(state.elr),
        adding=left(state.adding),
        removing=left(state.removing),
    )
