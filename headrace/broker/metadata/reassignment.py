"""Moving a partition to other brokers (KIP-455), as its states go. Pure.

A partition that is being moved has the replicas it had and those it is to have, the latter first and in their order.
Those that are `adding` copy; when all of them are in sync, those that are `removing` go, at once. Until then it can be
cancelled: what was being added goes. Either way nobody goes who is in sync, or eligible to lead, as long as fewer of
them would be left than `min.insync.replicas` says (`min_isr`; no more than there are to be): what was acknowledged is
on as many, and one that is lost is no loss.

Whoever is to hold it and is neither in sync nor alive holds up the end; another target, or cancelling, ends that, or
does where enough are in sync.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec.structs import replace

from headrace.broker.metadata.image import PartitionState
from headrace.protocol.errors import ErrorCode, KafkaError

LED_ANEW = 2
"""By how much the leader epoch rises where the leader stops and begins again: nobody leads in between."""


def is_moving(state: PartitionState) -> bool:
    return bool(state.adding or state.removing)


def begun(state: PartitionState, target: Sequence[int], min_isr: int = 1) -> PartitionState:
    """On its way to these replicas; what was on another way turns from where it is. The end is `completed`'s."""
    before = [broker for broker in state.replicas if broker not in state.adding]
    # Who was only just being added goes without further ado, unless too few others are in sync.
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
    """Without those that are to go; None while somebody who is to come, or too many of those that stay, are not in
    sync. Its leader may not be among its replicas any more.
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
    """With the replicas that it had before, or on its way back to them where too few of those are in sync. Its leader
    may not be among them. Raises KafkaError: NO_REASSIGNMENT_IN_PROGRESS, INVALID_REPLICA_ASSIGNMENT if none of those
    is in sync, unless an election may be `unclean`.
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
                f"the move of {where} cannot be cancelled: of the replicas it had, {list(left.replicas)}, none is"
                " in sync, and what only the others have would be lost",
            )
        left = replace(left, isr=left.replicas[:1], elr=())
    elif _are_too_few(state, set(state.adding), min(min_isr, len(left.replicas))):
        return begun(state, left.replicas, min_isr)
    return replace(left, adding=(), removing=(), partition_epoch=state.partition_epoch + 1)


def not_registered(broker_id: int, registered: Iterable[int]) -> str:
    """What is wrong with an assignment that names it."""
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
    """`registered`: who may be chosen, alive or absent. Raises KafkaError: INVALID_REPLICA_ASSIGNMENT,
    INVALID_REPLICATION_FACTOR.
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
    """Who is elected: those in sync before those who are eligible."""
    return set(state.isr or state.elr)


def _have_all(state: PartitionState) -> set[int]:
    """Who has everything that is committed: those in sync, and those eligible to lead without being so (KIP-966)."""
    return {*state.isr, *state.elr}


def _are_too_few(state: PartitionState, going: set[int], needed: int) -> bool:
    """Whether fewer than `needed` are left who have all that is committed, and fewer than there are now."""
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
