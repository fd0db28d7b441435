"""Commits of offsets, also those in transactions.

An offset changes in memory only when it is stored (`Appended`), so OffsetFetch never shows one that a crash would lose.
Two commits of one partition take effect in the order in which they were appended.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.broker.groups.classic import (
    members,
)
from headrace.broker.groups.model.events import (
    Commit,
    OffsetsResult,
    PendingCommit,
    PendingTransactionalCommit,
    TransactionalCommit,
    TransactionCommitted,
)
from headrace.broker.groups.model.limits import (
    Limits,
)
from headrace.broker.groups.model.records import (
    CommittedOffset,
    JournalRecord,
    PutOffset,
)
from headrace.broker.groups.offsets import (
    validation,
)
from headrace.broker.groups.step import Step
from headrace.protocol.errors import ErrorCode


def commit(step: Step, event: Commit) -> None:
    error = validation.commit_error(step, event)
    if error is not ErrorCode.NONE:
        step.reply(event.token, OffsetsResult(error, {}))
        return
    members.note_commit(step, event.member_id)
    accepted, errors = _check_metadata(step, event)
    if not accepted:
        step.reply(event.token, OffsetsResult(ErrorCode.NONE, errors))
        return
    records = _records(step, accepted) if event.batch is None else ()
    step.append(records, PendingCommit(event.token, accepted, errors), event.batch)


def commit_stored(step: Step, pending: PendingCommit, error: ErrorCode) -> None:
    if error is ErrorCode.NONE:
        for (topic, partition), committed in pending.offsets.items():
            step.group.put_offset(topic, partition, committed)
    step.reply(pending.token, OffsetsResult(error, pending.errors))


def commit_in_transaction(step: Step, event: TransactionalCommit) -> None:
    """Store the offsets as part of the transaction. The group gets them when the transaction commits."""
    inner = event.commit
    error = validation.transactional_commit_error(step, inner)
    accepted, errors = _check_metadata(step, inner) if error is ErrorCode.NONE else ({}, {})
    if not accepted:
        step.reply(inner.token, OffsetsResult(error, errors))
        return
    if inner.member_id:
        members.note_commit(step, inner.member_id)
    pending = PendingCommit(inner.token, accepted, errors)
    records = _records(step, accepted) if inner.batch is None else ()
    transactional = PendingTransactionalCommit(pending, event.producer_id, event.producer_epoch)
    step.append(records, transactional, inner.batch)


def transactional_commit_stored(step: Step, pending: PendingTransactionalCommit, error: ErrorCode) -> None:
    """Answer. The group does not change before the transaction's marker."""
    step.reply(pending.commit.token, OffsetsResult(error, pending.commit.errors))


def transaction_committed(step: Step, event: TransactionCommitted) -> None:
    for (topic, partition), committed in event.offsets.items():
        step.group.put_offset(topic, partition, committed)


def _check_metadata(
    step: Step, event: Commit
) -> tuple[Mapping[tuple[str, int], CommittedOffset], dict[tuple[str, int], ErrorCode]]:
    """Return the offsets that can be stored, and the errors of the others."""
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
    """Whether the metadata of an offset has more bytes than `offset.metadata.max.bytes`."""
    return len(metadata.encode("utf-8", "surrogatepass")) > limits.offset_metadata_size_max


def _records(step: Step, accepted: Mapping[tuple[str, int], CommittedOffset]) -> tuple[JournalRecord, ...]:
    return tuple(
        PutOffset(step.group.group_id, topic, partition, committed)
        for (topic, partition), committed in accepted.items()
    )
