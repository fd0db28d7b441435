"""One step of one member towards its target assignment. A partition never has two owners.

    STABLE -> UNREVOKED_PARTITIONS -> UNRELEASED_PARTITIONS -> STABLE

A member first gives up partitions that its target does not have. It stays in its epoch until it reports that it has
given them up. Then it moves to the target epoch and gets the free partitions of its target. It gets the others when
their owners have given them up (UNRELEASED_PARTITIONS). A partition is free when it is in no member's `assigned` or
`revoking`.

Pure; source: KIP-848 ("Reconciliation of the assignments"), Kafka's CurrentAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from headrace.broker.groups.model.assignment import NOTHING, Assignment, Current, MemberState, PartitionEpochs


def still_owns(owned: Assignment | None, partitions: PartitionEpochs) -> bool:
    """Whether the member still has any of `partitions`. `owned` is None if its request does not say."""
    if owned is None:
        return True
    return any(
        index in partitions.get(topic_id, {}) for topic_id, indexes in owned.items() for index in indexes
    )


def reconcile(
    current: Current,
    target_epoch: int,
    target: Assignment,
    owned: Assignment | None,
    owner: Callable[[UUID, int], str | None],
) -> Current:
    """Return the member's next assignment, or `current` itself if it has to wait.

    `owned` are the partitions that the member reports, None if it reports none. `owner` gives the owner of a partition.
    """
    match current.state:
        case MemberState.STABLE:
            if current.epoch == target_epoch:
                return current
        case MemberState.UNREVOKED_PARTITIONS:
            if still_owns(owned, current.revoking):
                return current
        case MemberState.UNKNOWN:
            return _next(current, target_epoch, target_epoch, target, owned, owner)
        case MemberState.UNRELEASED_PARTITIONS:
            pass
    return _next(current, current.epoch, target_epoch, target, owned, owner)


def _next(
    current: Current,
    epoch: int,
    target_epoch: int,
    target: Assignment,
    owned: Assignment | None,
    owner: Callable[[UUID, int], str | None],
) -> Current:
    kept: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    for topic_id, partitions in current.assigned.items():
        wanted = target.get(topic_id, frozenset())
        for index, since in partitions.items():
            (kept if index in wanted else revoking).setdefault(topic_id, {})[index] = since
    if revoking and still_owns(owned, revoking):
        moved = Current(
            epoch,
            current.previous_epoch if epoch == current.epoch else current.epoch,
            MemberState.UNREVOKED_PARTITIONS,
            kept,
            revoking,
        )
        return current if moved == current else moved

    waits = False
    for topic_id, wanted in target.items():
        mine = current.assigned.get(topic_id, {})
        for index in sorted(wanted):
            if index in mine:
                continue
            # This member has given up its revoked partitions, so it may get them back.
            if owner(topic_id, index) is None or index in current.revoking.get(topic_id, {}):
                kept.setdefault(topic_id, {})[index] = target_epoch
            else:
                waits = True
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    moved = Current(
        target_epoch,
        current.previous_epoch if target_epoch == current.epoch else current.epoch,
        state,
        kept,
        {},
    )
    return current if moved == current else moved


def without_epochs(partitions: PartitionEpochs) -> Assignment:
    if not partitions:
        return NOTHING
    return {topic_id: frozenset(indexes) for topic_id, indexes in partitions.items()}
