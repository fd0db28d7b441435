"""Deletion of committed offsets and of groups.

Deleted offsets are deleted from open transactions too: the tombstone follows their records, and their markers do not
bring them back. Source: KIP-496 (OffsetDelete).
"""

from __future__ import annotations

from headrace.broker.groups.model.classic import (
    Phase,
)
from headrace.broker.groups.model.consumer import (
    tombstones_of,
)
from headrace.broker.groups.model.events import (
    DeleteGroup,
    DeleteGroupResult,
    DeleteOffsets,
    ForgetTopic,
    OffsetsResult,
    PendingGroupDeletion,
    PendingOffsetDeletion,
)
from headrace.broker.groups.model.records import (
    DropGroup,
    DropOffset,
    JournalRecord,
)
from headrace.broker.groups.step import Step
from headrace.protocol.errors import ErrorCode


def delete_offsets(step: Step, event: DeleteOffsets) -> None:
    """Delete committed offsets on request, except those of topics that members subscribe to."""
    group = step.group
    if group.phase is Phase.DEAD:
        step.reply(event.token, OffsetsResult(ErrorCode.GROUP_ID_NOT_FOUND, {}))
        return
    if group.is_live and not group.is_consumer_protocol:
        step.reply(event.token, OffsetsResult(ErrorCode.NON_EMPTY_GROUP, {}))
        return
    in_use = {topic for topic, _ in event.partitions if not group.is_empty and group.is_subscribed_to(topic)}
    errors = {key: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC for key in event.partitions if key[0] in in_use}
    deleted = tuple(
        (topic, partition)
        for topic, partition in event.partitions
        if topic not in in_use
        and (partition in group.offsets.get(topic, {}) or (topic, partition) in event.in_transactions)
    )
    if not deleted:
        step.reply(event.token, OffsetsResult(ErrorCode.NONE, errors))
        return
    records = tuple(DropOffset(group.group_id, topic, partition) for topic, partition in deleted)
    step.append(records, PendingOffsetDeletion(event.token, deleted, errors))


def offsets_deleted(step: Step, pending: PendingOffsetDeletion, error: ErrorCode) -> None:
    """Forget the offsets whose tombstones are stored, and answer."""
    if error is ErrorCode.NONE:
        for topic, partition in pending.partitions:
            step.group.drop_offset(topic, partition)
    if pending.token is not None:
        step.reply(pending.token, OffsetsResult(error, pending.errors))


def forget_topic(step: Step, event: ForgetTopic) -> None:
    """Delete the offsets of a deleted topic."""
    committed = {(event.topic, partition) for partition in step.group.offsets.get(event.topic, {})}
    pending = {key for key in event.in_transactions if key[0] == event.topic}
    if deleted := tuple(sorted(committed | pending)):
        drop_offsets(step, deleted)


def delete_group(step: Step, event: DeleteGroup) -> None:
    """Delete a group on request, if it has no members."""
    group = step.group
    if not group.is_empty:
        error = ErrorCode.GROUP_ID_NOT_FOUND if group.phase is Phase.DEAD else ErrorCode.NON_EMPTY_GROUP
        step.reply(event.token, DeleteGroupResult(error))
        return
    drop_group(step, event.token, event.in_transactions)


def group_deleted(step: Step, pending: PendingGroupDeletion, error: ErrorCode) -> None:
    """Forget a group whose tombstones are stored, and answer."""
    group = step.group
    if group.consumer is not None:
        group.appending = False
    if error is ErrorCode.NONE:
        group.offsets.clear()
        group.journalled = group.consumer = None
        # A member may have joined while the tombstones were being stored. Then the group continues with that member.
        if group.is_empty and not group.appending:
            group.transition_to(Phase.DEAD, step.now)
    if pending.token is not None:
        step.reply(pending.token, DeleteGroupResult(error))


def drop_group(
    step: Step, token: int | None, in_transactions: frozenset[tuple[str, int]] = frozenset()
) -> None:
    """Store the tombstones of a group and of its offsets; without any, the group is forgotten at once."""
    group = step.group
    committed = {(topic, index) for topic, partitions in group.offsets.items() for index in partitions}
    records: list[JournalRecord] = [
        DropOffset(group.group_id, topic, index) for topic, index in sorted(committed | in_transactions)
    ]
    if group.journalled is not None:
        records.append(DropGroup(group.group_id))
    if group.consumer is not None and group.consumer.stored:
        records.extend(tombstones_of(group.group_id, group.consumer))
        group.appending = True
    pending = PendingGroupDeletion(token)
    if records:
        step.append(tuple(records), pending)
    else:
        group_deleted(step, pending, ErrorCode.NONE)


def drop_offsets(step: Step, deleted: tuple[tuple[str, int], ...]) -> None:
    """Store tombstones of offsets; no request waits for them."""
    records = tuple(DropOffset(step.group.group_id, topic, partition) for topic, partition in deleted)
    step.append(records, PendingOffsetDeletion(None, deleted, {}))
