"""Committed offsets of a group: who may commit, what is refused, when they expire.

An offset changes in memory only after the journal has it (`Appended`), so what OffsetFetch shows survives a
crash. What is deleted is deleted from open transactions too: a tombstone follows whatever they have written,
and their markers bring nothing back. Two commits of one partition take effect in the order in which they were appended.

Sources: KIP-211 (retention counts from when the group became empty), KIP-496 (OffsetDelete).
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.groups.events import (
    Append,
    Commit,
    DeleteGroup,
    DeleteGroupResult,
    DeleteOffsets,
    ExpireOffsets,
    ForgetTopic,
    OffsetsResult,
    PendingCommit,
    PendingGroupDeletion,
    PendingOffsetDeletion,
    PendingTransactionalCommit,
    Reply,
    TransactionalCommit,
    TransactionCommitted,
)
from headrace.broker.groups.group import Group
from headrace.broker.groups.model import (
    CommittedOffset,
    DropGroup,
    DropOffset,
    JournalRecord,
    Limits,
    Now,
    Phase,
    PutOffset,
)
from headrace.broker.groups.modern.model import tombstones_of
from headrace.broker.groups.modern.positions import commit_error as modern_commit_error
from headrace.broker.groups.rebalance import Rebalance
from headrace.protocol.errors import ErrorCode

_LIVE = (Phase.STABLE, Phase.PREPARING_REBALANCE, Phase.COMPLETING_REBALANCE)


def _commit_error(step: Rebalance, event: Commit) -> ErrorCode:
    group = step.group
    if group.phase is Phase.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.consumer is not None:
        return modern_commit_error(step, event)
    if event.generation < 0 and group.phase is Phase.EMPTY:
        return ErrorCode.NONE
    if event.generation < 0 and event.member_id == "" and event.instance_id is None:
        # Somebody outside of the group would overwrite what its members commit.
        return ErrorCode.UNKNOWN_MEMBER_ID
    error = step.member_error(event.member_id, event.instance_id)
    if error is not ErrorCode.NONE:
        return error
    if event.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.phase is Phase.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _transactional_commit_error(step: Rebalance, event: Commit) -> ErrorCode:
    """As `_commit_error`, but clients before TxnOffsetCommit v3 say nothing of a member, and a rebalance does
    not stop a transaction that began before it.
    """
    group = step.group
    if group.phase is Phase.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    if group.consumer is not None:
        if event.generation < 0 and _names_nobody(event):
            return ErrorCode.NONE
        error = modern_commit_error(step, event)
        return ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.STALE_MEMBER_EPOCH else error
    if event.generation < 0 and (group.phase is Phase.EMPTY or _names_nobody(event)):
        return ErrorCode.NONE
    error = step.member_error(event.member_id, event.instance_id)
    if error is not ErrorCode.NONE:
        return error
    return ErrorCode.NONE if event.generation == group.generation else ErrorCode.ILLEGAL_GENERATION


def _names_nobody(event: Commit) -> bool:
    return event.member_id == "" and event.instance_id is None


def commit(step: Rebalance, event: Commit) -> None:
    error = _commit_error(step, event)
    if error is not ErrorCode.NONE:
        step.effects.append(Reply(event.token, OffsetsResult(error, {})))
        return
    step.extend_session(event.member_id)
    accepted, errors = _check_metadata(step, event)
    if not accepted:
        step.effects.append(Reply(event.token, OffsetsResult(ErrorCode.NONE, errors)))
        return
    records = _put(step, accepted) if event.batch is None else ()
    step.effects.append(Append(records, PendingCommit(event.token, accepted, errors), event.batch))


def _check_metadata(
    step: Rebalance, event: Commit
) -> tuple[Mapping[tuple[str, int], CommittedOffset], dict[tuple[str, int], ErrorCode]]:
    """What can be stored, and why the rest cannot."""
    errors: dict[tuple[str, int], ErrorCode] = {}
    if event.batch is not None:
        return event.offsets, errors
    accepted: dict[tuple[str, int], CommittedOffset] = {}
    for key, committed in event.offsets.items():
        if is_too_long(committed.metadata, step.limits):
            errors[key] = ErrorCode.OFFSET_METADATA_TOO_LARGE
        else:
            accepted[key] = committed
    return accepted, errors


def is_too_long(metadata: str, limits: Limits) -> bool:
    return len(metadata.encode("utf-8", "surrogatepass")) > limits.offset_metadata_size_max


def _put(step: Rebalance, accepted: Mapping[tuple[str, int], CommittedOffset]) -> tuple[JournalRecord, ...]:
    return tuple(
        PutOffset(step.group.group_id, topic, partition, committed)
        for (topic, partition), committed in accepted.items()
    )


def commit_in_transaction(step: Rebalance, event: TransactionalCommit) -> None:
    """The offsets go to the journal as part of the transaction, and to the group when that commits."""
    inner = event.commit
    error = _transactional_commit_error(step, inner)
    accepted, errors = _check_metadata(step, inner) if error is ErrorCode.NONE else ({}, {})
    if not accepted:
        step.effects.append(Reply(inner.token, OffsetsResult(error, errors)))
        return
    if inner.member_id:
        step.extend_session(inner.member_id)
    pending = PendingCommit(inner.token, accepted, errors)
    records = _put(step, accepted) if inner.batch is None else ()
    transactional = PendingTransactionalCommit(pending, event.producer_id, event.producer_epoch)
    step.effects.append(Append(records, transactional, inner.batch))


def transactional_commit_stored(
    step: Rebalance, pending: PendingTransactionalCommit, error: ErrorCode
) -> None:
    """Nothing of the group changes before the marker."""
    step.effects.append(Reply(pending.commit.token, OffsetsResult(error, pending.commit.errors)))


def transaction_committed(step: Rebalance, event: TransactionCommitted) -> None:
    for (topic, partition), committed in event.offsets.items():
        step.group.put_offset(topic, partition, committed)


def commit_stored(step: Rebalance, pending: PendingCommit, error: ErrorCode) -> None:
    if error is ErrorCode.NONE:
        for (topic, partition), committed in pending.offsets.items():
            step.group.put_offset(topic, partition, committed)
    step.effects.append(Reply(pending.token, OffsetsResult(error, pending.errors)))


def delete_offsets(step: Rebalance, event: DeleteOffsets) -> None:
    group = step.group
    if group.phase is Phase.DEAD:
        step.effects.append(Reply(event.token, OffsetsResult(ErrorCode.GROUP_ID_NOT_FOUND, {})))
        return
    if group.phase in _LIVE and not group.is_consumer_protocol:
        step.effects.append(Reply(event.token, OffsetsResult(ErrorCode.NON_EMPTY_GROUP, {})))
        return
    in_use = {topic for topic, _ in event.partitions if not group.is_empty and group.is_subscribed_to(topic)}
    errors = {key: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC for key in event.partitions if key[0] in in_use}
    doomed = tuple(
        (topic, partition)
        for topic, partition in event.partitions
        if topic not in in_use
        and (partition in group.offsets.get(topic, {}) or (topic, partition) in event.in_transactions)
    )
    if not doomed:
        step.effects.append(Reply(event.token, OffsetsResult(ErrorCode.NONE, errors)))
        return
    records = tuple(DropOffset(group.group_id, topic, partition) for topic, partition in doomed)
    step.effects.append(Append(records, PendingOffsetDeletion(event.token, doomed, errors)))


def offsets_deleted(step: Rebalance, pending: PendingOffsetDeletion, error: ErrorCode) -> None:
    if error is ErrorCode.NONE:
        for topic, partition in pending.partitions:
            step.group.drop_offset(topic, partition)
    if pending.token is not None:
        step.effects.append(Reply(pending.token, OffsetsResult(error, pending.errors)))


def delete_group(step: Rebalance, event: DeleteGroup) -> None:
    group = step.group
    if not group.is_empty:
        error = ErrorCode.GROUP_ID_NOT_FOUND if group.phase is Phase.DEAD else ErrorCode.NON_EMPTY_GROUP
        step.effects.append(Reply(event.token, DeleteGroupResult(error)))
        return
    _delete(step, event.token, event.in_transactions)


def _delete(
    step: Rebalance, token: int | None, in_transactions: frozenset[tuple[str, int]] = frozenset()
) -> None:
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
        step.effects.append(Append(tuple(records), pending))
    else:
        group_deleted(step, pending, ErrorCode.NONE)


def group_deleted(step: Rebalance, pending: PendingGroupDeletion, error: ErrorCode) -> None:
    group = step.group
    if group.consumer is not None:
        group.appending = False
    if error is ErrorCode.NONE:
        group.offsets.clear()
        group.journalled = group.consumer = None
        # Somebody may have joined while the tombstone was on its way; the group then goes on, without its
        # past.
        if group.is_empty and not group.appending:
            group.transition_to(Phase.DEAD, step.now)
    if pending.token is not None:
        step.effects.append(Reply(pending.token, DeleteGroupResult(error)))


def _is_expired(group: Group, committed: CommittedOffset, now: Now, retention_ms: int) -> bool:
    if committed.expire_timestamp_ms >= 0:
        return now.time_ms >= committed.expire_timestamp_ms
    base_ms = committed.commit_timestamp_ms
    if group.phase is Phase.EMPTY and group.protocol_type is not None and group.state_timestamp_ms >= 0:
        base_ms = max(base_ms, group.state_timestamp_ms)
    return now.time_ms - base_ms >= retention_ms


def expire_offsets(step: Rebalance, event: ExpireOffsets) -> None:
    """Drop what is beyond its retention. A live group keeps everything it subscribes to, and what an open
    transaction is about to replace is left alone.
    """
    group = step.group
    if group.phase in _LIVE and not (
        group.phase is Phase.STABLE and group.is_consumer_protocol and group.subscribed_topics is not None
    ):
        return
    doomed = tuple(
        (topic, partition)
        for topic, partitions in group.offsets.items()
        if group.is_empty or not group.is_subscribed_to(topic)
        for partition, committed in partitions.items()
        if _is_expired(group, committed, step.now, step.limits.offsets_retention_ms)
        and (topic, partition) not in event.in_transactions
    )
    remaining = sum(len(partitions) for partitions in group.offsets.values()) - len(doomed)
    if group.is_empty and remaining == 0 and not event.in_transactions:
        _delete(step, None)
    elif doomed:
        _forget(step, doomed)


def forget_topic(step: Rebalance, event: ForgetTopic) -> None:
    committed = {(event.topic, partition) for partition in step.group.offsets.get(event.topic, {})}
    pending = {key for key in event.in_transactions if key[0] == event.topic}
    if doomed := tuple(sorted(committed | pending)):
        _forget(step, doomed)


def _forget(step: Rebalance, doomed: tuple[tuple[str, int], ...]) -> None:
    records = tuple(DropOffset(step.group.group_id, topic, partition) for topic, partition in doomed)
    step.effects.append(Append(records, PendingOffsetDeletion(None, doomed, {})))
