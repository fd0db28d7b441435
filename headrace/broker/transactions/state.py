"""The state machine of a transactional id: `step(transaction, event, now, limits) -> effects`.

It changes `transaction` and returns the effects that the shell carries out. It awaits nothing, reads no clock and
writes nothing. The same events at the same times give the same effects.

Invariants
- A decision (PrepareCommit, PrepareAbort) is in the journal before its first marker is written, and is never taken
  back: after a crash the same decision is completed.
- The next transaction of an id begins only after every marker of the one before is written.
- Only the owner of the present epoch can change anything. An epoch is raised by InitProducerId, by a timeout, and with
  version 2 of transactions by every end.

Sources: KIP-98, KIP-360 (who may raise an epoch), KIP-890 (version 2), Kafka's TransactionCoordinator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from headrace.broker.transactions.events import (
    AddPartitions,
    Append,
    Appended,
    Effect,
    EndTransaction,
    Event,
    Expire,
    InitProducer,
    Marked,
    PendingCompletion,
    PendingEnd,
    PendingInit,
    PendingPartitions,
    PendingRemoval,
    Reply,
    Result,
    Tick,
    WriteMarkers,
)
from headrace.broker.transactions.model import (
    EPOCH_LAST_USABLE,
    NEVER,
    NO_EPOCH,
    NO_PRODUCER_ID,
    Limits,
    Now,
    State,
    StoredTransaction,
    TopicPartition,
    Transaction,
)
from headrace.protocol.errors import ErrorCode

RAISES_EPOCH = 2
"""The version of transactions from which on every end raises the epoch."""


def step(transaction: Transaction, event: Event, now: Now, limits: Limits) -> list[Effect]:
    """Process `event` and return the effects, which are to be carried out in order."""
    return _HANDLERS[type(event)](transaction, event, now, limits)


def restore(transactional_id: str, stored: StoredTransaction, now: Now) -> Transaction:
    """Return the state of the transactional id from the journal. An ending transaction continues at the next Tick. An
    open one has the rest of its timeout by the wall clock.
    """
    transaction = Transaction(transactional_id, stored)
    if stored.state.is_ending:
        transaction.unmarked = set(stored.partitions)
        transaction.deadline = now.monotonic
    elif stored.state is State.ONGOING:
        left_ms = min(max(stored.start_ms + stored.timeout_ms - now.time_ms, 0), stored.timeout_ms)
        transaction.deadline = now.monotonic + left_ms / 1000
    return transaction


def needs_producer_id(transaction: Transaction, event: InitProducer | EndTransaction) -> bool:
    """Return whether `event` might need a new producer id."""
    stored = transaction.stored
    if isinstance(event, InitProducer):
        return stored is None or stored.is_exhausted
    return stored is not None and stored.is_exhausted and event.client_version >= RAISES_EPOCH


def partition_error(
    transaction: Transaction | None, producer_id: int, producer_epoch: int, partition: TopicPartition
) -> ErrorCode:
    """Return whether a write to `partition` is part of the producer's open transaction (rule T2, KIP-890)."""
    error = _owner_error(transaction, producer_id, producer_epoch)
    if error is not ErrorCode.NONE or transaction is None:
        return error
    stored = transaction.known
    if stored.state.is_ending:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if stored.state is State.ONGOING and partition in stored.partitions:
        return ErrorCode.NONE
    return ErrorCode.CONCURRENT_TRANSACTIONS if transaction.appending else ErrorCode.TRANSACTION_ABORTABLE


def _owner_error(transaction: Transaction | None, producer_id: int, producer_epoch: int) -> ErrorCode:
    stored = None if transaction is None else transaction.stored
    if stored is None or stored.producer_id != producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    return ErrorCode.NONE if stored.producer_epoch == producer_epoch else ErrorCode.PRODUCER_FENCED


def _refuse(token: int, error: ErrorCode) -> list[Effect]:
    return [Reply(token, Result(error))]


def _append(transaction: Transaction, pending: Any) -> list[Effect]:
    transaction.appending = True
    return [Append(None if isinstance(pending, PendingRemoval) else pending.stored, pending)]


# -- InitProducerId ------------------------------------------------------------------------------------------


def _init_producer(transaction: Transaction, event: InitProducer, now: Now, limits: Limits) -> list[Effect]:
    stored, expected = transaction.stored, event.expected
    if not 0 < event.timeout_ms <= limits.timeout_ms_max:
        return _refuse(event.token, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    if transaction.appending:
        return _refuse(event.token, ErrorCode.CONCURRENT_TRANSACTIONS)
    if stored is None:
        return _begin_id(transaction, event, now, NO_PRODUCER_ID, NO_EPOCH)
    if expected is not None and not _may_be_owner(stored, expected):
        return _refuse(event.token, ErrorCode.PRODUCER_FENCED)
    if stored.state.is_ending:
        return _refuse(event.token, ErrorCode.CONCURRENT_TRANSACTIONS)
    if stored.state is State.ONGOING:
        if expected is not None and expected[1] != stored.producer_epoch:
            return _refuse(event.token, ErrorCode.PRODUCER_FENCED)
        # The client comes again, and finds the transaction aborted.
        last_epoch = NO_EPOCH if expected is None else stored.producer_epoch
        return _fence(
            transaction,
            now,
            token=event.token,
            last_epoch=last_epoch,
            answer=ErrorCode.CONCURRENT_TRANSACTIONS,
        )
    if stored.is_exhausted and (expected is None or expected[1] == stored.producer_epoch):
        last_epoch = NO_EPOCH if expected is None else stored.producer_epoch
        return _begin_id(transaction, event, now, stored.producer_id, last_epoch)
    if expected is None:
        epoch, last_epoch = stored.producer_epoch + 1, NO_EPOCH
    elif expected == (stored.producer_id, stored.producer_epoch):
        epoch, last_epoch = stored.producer_epoch + 1, stored.producer_epoch
    elif expected[1] == transaction.last_epoch:  # a retry, because the answer was lost
        epoch, last_epoch = stored.producer_epoch, transaction.last_epoch
    else:
        return _refuse(event.token, ErrorCode.PRODUCER_FENCED)
    renewed = _empty(stored, event.timeout_ms, now)
    return _append(transaction, PendingInit(event.token, replace(renewed, producer_epoch=epoch), last_epoch))


def _may_be_owner(stored: StoredTransaction, expected: tuple[int, int]) -> bool:
    """Return whether the client may own the present id, or the one before if its epoch ran out: then this is a retry of
    the change.
    """
    producer_id, epoch = expected
    return producer_id == stored.producer_id or (
        producer_id == stored.previous_producer_id and epoch >= EPOCH_LAST_USABLE
    )


def _empty(stored: StoredTransaction, timeout_ms: int, now: Now) -> StoredTransaction:
    return replace(
        stored,
        state=State.EMPTY,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=-1,
        update_ms=now.time_ms,
        next_producer_id=NO_PRODUCER_ID,
    )


def _begin_id(
    transaction: Transaction, event: InitProducer, now: Now, previous_producer_id: int, last_epoch: int
) -> list[Effect]:
    if event.new_producer_id is None:
        return _refuse(event.token, ErrorCode.CONCURRENT_TRANSACTIONS)
    stored = StoredTransaction(
        producer_id=event.new_producer_id,
        producer_epoch=0,
        timeout_ms=event.timeout_ms,
        state=State.EMPTY,
        update_ms=now.time_ms,
        previous_producer_id=previous_producer_id,
    )
    return _append(transaction, PendingInit(event.token, stored, last_epoch))


def _init_stored(transaction: Transaction, pending: PendingInit, error: ErrorCode) -> list[Effect]:
    if error is not ErrorCode.NONE:
        return _refuse(pending.token, error)
    stored = pending.stored
    transaction.adopt(stored)
    transaction.last_epoch = pending.last_epoch
    transaction.deadline = NEVER
    return [Reply(pending.token, Result(ErrorCode.NONE, stored.producer_id, stored.producer_epoch))]


# -- partitions ----------------------------------------------------------------------------------------------


def _add_partitions(transaction: Transaction, event: AddPartitions, now: Now, limits: Limits) -> list[Effect]:
    error = _owner_error(transaction, event.producer_id, event.producer_epoch)
    if error is not ErrorCode.NONE:
        return _refuse(event.token, error)
    stored = transaction.known
    if transaction.appending or stored.state.is_ending:
        return _refuse(event.token, ErrorCode.CONCURRENT_TRANSACTIONS)
    is_open = stored.state is State.ONGOING
    if is_open and event.partitions <= stored.partitions:
        return [Reply(event.token, Result(ErrorCode.NONE))]
    grown = replace(
        stored,
        state=State.ONGOING,
        partitions=(stored.partitions if is_open else frozenset()) | event.partitions,
        start_ms=stored.start_ms if is_open else now.time_ms,
        update_ms=now.time_ms,
    )
    return _append(transaction, PendingPartitions(event.token, grown))


def _partitions_stored(
    transaction: Transaction, pending: PendingPartitions, error: ErrorCode, now: Now
) -> list[Effect]:
    if error is ErrorCode.NONE:
        begins = transaction.stored is None or transaction.stored.state is not State.ONGOING
        transaction.adopt(pending.stored)
        transaction.last_epoch = NO_EPOCH
        if begins:
            transaction.deadline = now.monotonic + pending.stored.timeout_ms / 1000
    return [Reply(pending.token, Result(error))]


# -- the end -------------------------------------------------------------------------------------------------


def _end_transaction(
    transaction: Transaction, event: EndTransaction, now: Now, limits: Limits
) -> list[Effect]:
    if event.client_version >= RAISES_EPOCH:
        return _end_raising_epoch(transaction, event, now)
    error = _owner_error(transaction, event.producer_id, event.producer_epoch)
    if error is not ErrorCode.NONE:
        return _refuse(event.token, error)
    stored = transaction.known
    if transaction.appending:
        return _refuse(event.token, ErrorCode.CONCURRENT_TRANSACTIONS)
    if stored.state is State.ONGOING:
        return _decide(transaction, event, now, stored.producer_epoch, NO_PRODUCER_ID)
    return _refuse(event.token, _repeated_end(stored.state, event.commit))


def _repeated_end(state: State, commit: bool) -> ErrorCode:
    """Return the answer for an end of a transaction that has ended, or is about to."""
    same = (
        (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
        if commit
        else (State.PREPARE_ABORT, State.COMPLETE_ABORT)
    )
    if state not in same:
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.CONCURRENT_TRANSACTIONS if state.is_ending else ErrorCode.NONE


def _end_raising_epoch(transaction: Transaction, event: EndTransaction, now: Now) -> list[Effect]:
    """Version 2: an end is a retry if the epoch that it raised is the present one."""
    stored, epoch = transaction.stored, event.producer_epoch
    if stored is None:
        return _refuse(event.token, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    has_raised = stored.client_version >= RAISES_EPOCH and stored.state is not State.ONGOING
    is_new_id = (
        has_raised
        and stored.previous_producer_id == event.producer_id
        and epoch == EPOCH_LAST_USABLE
        and stored.producer_epoch == 0
        and stored.state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
    )
    if stored.producer_id != event.producer_id and not is_new_id:
        return _refuse(event.token, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    is_retry = is_new_id or (
        has_raised and stored.state is not State.EMPTY and stored.producer_epoch == epoch + 1
    )
    if not is_retry and stored.producer_epoch != epoch:
        return _refuse(event.token, ErrorCode.PRODUCER_FENCED)
    if transaction.appending:
        return _refuse(event.token, ErrorCode.CONCURRENT_TRANSACTIONS)
    if is_retry:
        error = _repeated_end(stored.state, event.commit)
        if error is ErrorCode.NONE:
            return [Reply(event.token, Result(error, stored.producer_id, stored.producer_epoch))]
        return _refuse(event.token, error)
    if stored.state.is_ending:  # the owner of the raised epoch did not wait for the end
        return _refuse(event.token, ErrorCode.CONCURRENT_TRANSACTIONS)
    if stored.state is not State.ONGOING and event.commit:
        return _refuse(event.token, ErrorCode.INVALID_TXN_STATE)
    next_producer_id = NO_PRODUCER_ID
    if stored.is_exhausted:
        if event.new_producer_id is None:
            return _refuse(event.token, ErrorCode.CONCURRENT_TRANSACTIONS)
        next_producer_id = event.new_producer_id
    return _decide(transaction, event, now, epoch + 1, next_producer_id)


def _decide(
    transaction: Transaction, event: EndTransaction, now: Now, epoch: int, next_producer_id: int
) -> list[Effect]:
    stored = transaction.known
    is_open = stored.state is State.ONGOING
    decided = replace(
        stored,
        state=State.PREPARE_COMMIT if event.commit else State.PREPARE_ABORT,
        producer_epoch=epoch,
        partitions=stored.partitions if is_open else frozenset(),
        start_ms=stored.start_ms if is_open else now.time_ms,
        update_ms=now.time_ms,
        next_producer_id=next_producer_id,
        client_version=event.client_version,
    )
    last_epoch = stored.producer_epoch if epoch != stored.producer_epoch else NO_EPOCH
    return _append(transaction, PendingEnd(event.token, decided, last_epoch, ErrorCode.NONE))


def _fence(
    transaction: Transaction, now: Now, *, token: int | None, last_epoch: int, answer: ErrorCode
) -> list[Effect]:
    """Abort the open transaction with a raised epoch: its owner can write nothing more (Kafka's PrepareEpochFence,
    which is never stored).
    """
    stored = transaction.known
    fenced = replace(
        stored,
        state=State.PREPARE_ABORT,
        producer_epoch=stored.producer_epoch + 1,
        update_ms=now.time_ms,
        client_version=0,  # so that an end of the old epoch is fenced instead of taken for a retry
    )
    return _append(transaction, PendingEnd(token, fenced, last_epoch, answer))


def _end_stored(
    transaction: Transaction, pending: PendingEnd, error: ErrorCode, now: Now, limits: Limits
) -> list[Effect]:
    if error is not ErrorCode.NONE:
        if pending.token is None:
            transaction.deadline = now.monotonic + limits.retry_seconds
            return []
        return _refuse(pending.token, error)
    stored = pending.stored
    transaction.adopt(stored)
    transaction.last_epoch = pending.last_epoch
    transaction.unmarked = set(stored.partitions)
    effects = _go_on_ending(transaction, now, limits)
    if pending.token is not None:
        result = Result(pending.answer)
        if pending.answer is ErrorCode.NONE and stored.next_producer_id != NO_PRODUCER_ID:
            result = Result(ErrorCode.NONE, stored.next_producer_id, 0)
        elif pending.answer is ErrorCode.NONE:
            result = Result(ErrorCode.NONE, stored.producer_id, stored.producer_epoch)
        effects.append(Reply(pending.token, result))
    return effects


def _go_on_ending(transaction: Transaction, now: Now, limits: Limits) -> list[Effect]:
    """Ask for the missing markers, or for the record that all are written."""
    stored = transaction.known
    transaction.deadline = now.monotonic + limits.retry_seconds
    if not transaction.unmarked:
        return _complete(transaction, now)
    return [
        WriteMarkers(
            stored.producer_id,
            stored.producer_epoch,
            stored.state is State.PREPARE_COMMIT,
            stored.client_version,
            frozenset(transaction.unmarked),
        )
    ]


def _complete(transaction: Transaction, now: Now) -> list[Effect]:
    stored = transaction.known
    complete = State.COMPLETE_COMMIT if stored.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT
    completed = replace(stored, state=complete, partitions=frozenset(), update_ms=now.time_ms)
    if stored.next_producer_id != NO_PRODUCER_ID:
        completed = replace(
            completed,
            producer_id=stored.next_producer_id,
            producer_epoch=0,
            previous_producer_id=stored.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )
    return _append(transaction, PendingCompletion(completed))


def _marked(transaction: Transaction, event: Marked, now: Now, limits: Limits) -> list[Effect]:
    stored = transaction.stored
    if stored is None or not stored.state.is_ending:
        return []
    transaction.unmarked -= event.partitions
    if transaction.unmarked or transaction.appending:
        return []
    return _complete(transaction, now)


def _completion_stored(
    transaction: Transaction, pending: PendingCompletion, error: ErrorCode, now: Now, limits: Limits
) -> list[Effect]:
    if error is ErrorCode.NONE:
        transaction.adopt(pending.stored)
        transaction.deadline = NEVER
    else:
        transaction.deadline = now.monotonic + limits.retry_seconds
    return []


# -- time ----------------------------------------------------------------------------------------------------


def _tick(transaction: Transaction, event: Tick, now: Now, limits: Limits) -> list[Effect]:
    stored = transaction.stored
    if stored is None or transaction.appending or transaction.deadline > now.monotonic:
        return []
    if stored.state is State.ONGOING:
        return _fence(transaction, now, token=None, last_epoch=NO_EPOCH, answer=ErrorCode.NONE)
    return _go_on_ending(transaction, now, limits) if stored.state.is_ending else []


def _expire(transaction: Transaction, event: Expire, now: Now, limits: Limits) -> list[Effect]:
    stored = transaction.stored
    if stored is None or transaction.appending or not stored.state.is_at_rest:
        return []
    if now.time_ms - stored.update_ms < limits.expiration_ms:
        return []
    return _append(transaction, PendingRemoval())


def _appended(transaction: Transaction, event: Appended, now: Now, limits: Limits) -> list[Effect]:
    transaction.appending = False
    pending, error = event.pending, event.error
    match pending:
        case PendingInit():
            return _init_stored(transaction, pending, error)
        case PendingPartitions():
            return _partitions_stored(transaction, pending, error, now)
        case PendingEnd():
            return _end_stored(transaction, pending, error, now, limits)
        case PendingCompletion():
            return _completion_stored(transaction, pending, error, now, limits)
        case PendingRemoval():
            if error is ErrorCode.NONE:
                transaction.stored = None
            return []


_HANDLERS: dict[type, Callable[[Transaction, Any, Now, Limits], list[Effect]]] = {
    InitProducer: _init_producer,
    AddPartitions: _add_partitions,
    EndTransaction: _end_transaction,
    Marked: _marked,
    Tick: _tick,
    Expire: _expire,
    Appended: _appended,
}
