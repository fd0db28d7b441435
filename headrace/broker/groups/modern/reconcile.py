"""Bringing one member from what it has to what it is to have, never giving a partition to two.

    STABLE -> UNREVOKED_PARTITIONS -> UNRELEASED_PARTITIONS -> STABLE

A member first gives up what is not its own any more: it stays in its epoch until it reports that it has let
go. Then it moves to the target epoch and takes what is free. What others still hold comes later, when they
have let go (UNRELEASED_PARTITIONS). A partition is free when it is in nobody's `assigned` or `revoking`.

Pure; source: KIP-848 ("Reconciliation of the assignments"), Kafka's CurrentAssignmentBuilder.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

from headrace.broker.groups.modern.model import NOTHING, Assignment, Current, MemberState, PartitionEpochs


def still_owns(owned: Assignment | None, partitions: PartitionEpochs) -> bool:
    """Whether the member has not let go of all of `partitions`. `owned` None: it did not say."""
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
    """The member's next step, or `current` itself if it has to stay where it is.

    `owned` is what the member reports to hold, None if it did not; `owner` tells who has a partition now.
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
            # What this member itself is letting go of has been let go of here: it may have it back.
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
