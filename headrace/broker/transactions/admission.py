"""Check that a write may be part of a transaction (rule T2, KIP-890).

The coordinator of the transaction decides it: this broker or another one. Another broker is asked for the first write
of a transaction to a partition; from then on the transaction is open in the partition's log.

With version 1 of transactions a producer announces partitions (AddPartitionsToTxn, AddOffsetsToTxn), and a write to
another partition is refused: it would belong to a transaction that is never ended. With version 2 (Produce 12,
TxnOffsetCommit 5) the write itself announces its partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Final

from headrace.broker.partitions.partition import Partition
from headrace.broker.transactions.coordinator import TransactionCoordinator
from headrace.broker.transactions.events import AddPartitions
from headrace.broker.transactions.model import TopicPartition
from headrace.broker.transactions.verification import Guard, is_in_transaction
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.header import PRODUCER, PRODUCER_ID_POSITION

FIRST_PRODUCE_OF_VERSION_2: Final = 12
FIRST_OFFSET_COMMIT_OF_VERSION_2: Final = 5
_FIRST_PRODUCE_WITH_ABORTABLE: Final = 11

_RETRIED_AS_NOT_ENOUGH_REPLICAS = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def part_of_transaction(
    coordinator: TransactionCoordinator,
    transactional_id: str,
    producer: tuple[int, int],
    partition: TopicPartition,
    *,
    announces: bool,
) -> ErrorCode | Awaitable[ErrorCode]:
    """Return NONE if the write may go on. With `announces`, add its partition to the transaction if it was not added
    before.

    Return an awaitable if the journal takes its time. The write may go on in the same step of the event loop only. This
    broker coordinates the transaction.
    """
    if announces and coordinator.storing(transactional_id) is not None:
        return _once_stored(coordinator, transactional_id, producer, partition)
    error = coordinator.partition_error(transactional_id, *producer, partition)
    if error is not ErrorCode.TRANSACTION_ABORTABLE or not announces:
        return error
    return coordinator.submit(
        transactional_id,
        lambda token: AddPartitions(token, *producer, frozenset({partition})),
        lambda result: result.error,
    )


async def _once_stored(
    coordinator: TransactionCoordinator,
    transactional_id: str,
    producer: tuple[int, int],
    partition: TopicPartition,
) -> ErrorCode:
    """Announce a partition when earlier announcements of the producer are stored: one after the other."""
    while (storing := coordinator.storing(transactional_id)) is not None:
        await asyncio.wait([storing])
    outcome = part_of_transaction(coordinator, transactional_id, producer, partition, announces=True)
    return outcome if isinstance(outcome, ErrorCode) else await outcome


async def by_other_coordinator(
    coordinator: TransactionCoordinator,
    transactional_id: str,
    producer: tuple[int, int],
    partition: Partition,
    *,
    announces: bool,
) -> tuple[ErrorCode, Guard | None]:
    """Do as `part_of_transaction` if another broker coordinates the transaction. The write may go on while the returned
    guard holds; the caller must release it. Raises KafkaError.
    """
    if is_in_transaction(partition, *producer):
        return ErrorCode.NONE, None
    guard = coordinator.guards.take(partition, producer[0])
    try:
        error = await coordinator.ask_coordinator(
            transactional_id, producer, (partition.topic.name, partition.index), announces=announces
        )
    except BaseException:
        coordinator.guards.release(guard)
        raise
    if error is not ErrorCode.NONE:
        coordinator.guards.release(guard)
        return error, None
    return error, guard


def admit_batch(
    coordinator: TransactionCoordinator,
    transactional_id: str | None,
    partition: Partition,
    records: memoryview,
    version: int,
) -> Awaitable[Guard | None] | None:
    """Check a transactional batch of Produce `version`. Raises KafkaError with a code that clients of this version can
    handle.

    If the journal takes its time, or another broker has to be asked, return an awaitable. It raises the same errors,
    and returns the guard that must hold when the batch is appended (`check_guard`), and that the caller must release.
    """
    topic, index = partition.topic.name, partition.index
    if partition.hooks is not None:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{topic} is a table, and tables take no part in transactions; produce without transactional.id",
        )
    if not transactional_id:
        raise KafkaError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "the batch belongs to a transaction, but the request names no transactional id",
        )
    producer_id, epoch, sequence = PRODUCER.unpack_from(records, PRODUCER_ID_POSITION)
    announces = version >= FIRST_PRODUCE_OF_VERSION_2
    if announces and sequence != 0 and producer_id not in partition.log.producers():
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {producer_id} sent sequence {sequence}, but its earlier batches are not known: the "
            "sequence must begin with 0",
        )
    producer = producer_id, epoch
    if coordinator.unavailable(transactional_id) is ErrorCode.NOT_COORDINATOR:
        if is_in_transaction(partition, *producer):
            return None
        return _admit_by_other(coordinator, transactional_id, producer, partition, version)
    admission = part_of_transaction(
        coordinator, transactional_id, producer, (topic, index), announces=announces
    )
    if not isinstance(admission, ErrorCode):
        return _admit_later(admission, transactional_id, topic, index, version)
    _check_admission(admission, transactional_id, topic, index, version)
    return None


async def _admit_later(
    admission: Awaitable[ErrorCode], transactional_id: str, topic: str, index: int, version: int
) -> None:
    _check_admission(await admission, transactional_id, topic, index, version)


async def _admit_by_other(
    coordinator: TransactionCoordinator,
    transactional_id: str,
    producer: tuple[int, int],
    partition: Partition,
    version: int,
) -> Guard | None:
    announces = version >= FIRST_PRODUCE_OF_VERSION_2
    error, guard = await by_other_coordinator(
        coordinator, transactional_id, producer, partition, announces=announces
    )
    _check_admission(error, transactional_id, partition.topic.name, partition.index, version)
    return guard


def check_guard(coordinator: TransactionCoordinator, guard: Guard | None) -> None:
    """Check that the coordinator's answer still holds, right before the write in the same step of the event loop.
    Raises KafkaError(NOT_ENOUGH_REPLICAS), which clients repeat, if it may not hold any more.
    """
    if guard is not None and not coordinator.guards.holds(guard):
        partition = guard.partition
        raise KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"a transaction of producer {guard.producer_id} has ended in {partition.topic.name}-{partition.index}"
            " while its coordinator was asked whether the batch is part of it",
        )


def _check_admission(error: ErrorCode, transactional_id: str, topic: str, index: int, version: int) -> None:
    if error is ErrorCode.NONE:
        return
    announces = version >= FIRST_PRODUCE_OF_VERSION_2
    text = f"the partition cannot be written to as part of a transaction of {transactional_id!r}"
    if error is ErrorCode.TRANSACTION_ABORTABLE:
        text = f"{topic}-{index} was not added to the transaction of {transactional_id!r}"
        if version < _FIRST_PRODUCE_WITH_ABORTABLE:
            error = ErrorCode.INVALID_TXN_STATE
    elif error in _RETRIED_AS_NOT_ENOUGH_REPLICAS and not (
        announces and error is ErrorCode.CONCURRENT_TRANSACTIONS
    ):
        # Older clients retry this one, without looking for another leader first (KIP-890).
        text += f" now ({error.name})"
        error = ErrorCode.NOT_ENOUGH_REPLICAS
    elif error is ErrorCode.PRODUCER_FENCED:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    raise KafkaError(error, text)
