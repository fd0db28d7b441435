"""The coordinator's records as Kafka writes them on `__transaction_state`.

Values are TransactionLogValue version 1. A null value is a tombstone.

The functions are pure except `read_partition`, which reads the log of one partition.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.broker.cluster.journal_topic import read_batches, read_records
from headrace.broker.transactions.model import State, StoredTransaction
from headrace.protocol.errors import DecodeError, EncodeError, ErrorCode, KafkaError
from headrace.protocol.messages.consumer_offsets import decode_versioned, encode_versioned, peek_version
from headrace.protocol.messages.transaction_state import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition

TOPIC = "__transaction_state"
_KEY_VERSION = 0
_VALUE_VERSION = 1


def encode_record(transactional_id: str, stored: StoredTransaction | None) -> tuple[bytes, bytes | None]:
    """Return key and value. Raises EncodeError for values that do not fit the format."""
    key = encode_versioned(TransactionLogKey(transactional_id=transactional_id), _KEY_VERSION)
    return key, None if stored is None else encode_versioned(_value(stored), _VALUE_VERSION)


def _value(stored: StoredTransaction) -> TransactionLogValue:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(stored.partitions):
        topics.setdefault(topic, []).append(index)
    return TransactionLogValue(
        producer_id=stored.producer_id,
        previous_producer_id=stored.previous_producer_id,
        next_producer_id=stored.next_producer_id,
        producer_epoch=stored.producer_epoch,
        transaction_timeout_ms=stored.timeout_ms,
        transaction_status=stored.state.status,
        # Kafka writes null for a transaction that has not begun.
        transaction_partitions=None
        if stored.state is State.EMPTY
        else [PartitionsSchema(topic=topic, partition_ids=indexes) for topic, indexes in topics.items()],
        transaction_last_update_timestamp_ms=stored.update_ms,
        transaction_start_timestamp_ms=stored.start_ms,
        client_transaction_version=stored.client_version,
    )


def decode_record(key: bytes | None, value: bytes | None) -> tuple[str, StoredTransaction | None] | None:
    """Return the transactional id and its stored state; None for an unknown kind of record.

    Raises DecodeError if it is malformed.
    """
    if key is None:
        raise DecodeError("a record without a key does not belong on the journal of transactions")
    if peek_version(key) > _KEY_VERSION:
        return None
    transactional_id = decode_versioned(TransactionLogKey, key)[0].transactional_id
    if value is None:
        return transactional_id, None
    decoded, _ = decode_versioned(TransactionLogValue, value)
    try:
        state = State.of_status(decoded.transaction_status)
    except ValueError as error:
        raise DecodeError(str(error)) from None
    return transactional_id, StoredTransaction(
        producer_id=decoded.producer_id,
        producer_epoch=decoded.producer_epoch,
        timeout_ms=decoded.transaction_timeout_ms,
        state=state,
        partitions=frozenset(
            (entry.topic, index)
            for entry in decoded.transaction_partitions or ()
            for index in entry.partition_ids
        ),
        start_ms=decoded.transaction_start_timestamp_ms,
        update_ms=decoded.transaction_last_update_timestamp_ms,
        previous_producer_id=decoded.previous_producer_id,
        next_producer_id=decoded.next_producer_id,
        client_version=decoded.client_transaction_version,
    )


def encode_journal_batch(transactional_id: str, stored: StoredTransaction | None, timestamp_ms: int) -> bytes:
    """Return a batch of one record. Raises KafkaError(INVALID_REQUEST) for values that do not fit the format."""
    from headrace.protocol.records.small import Record, build_small

    try:
        key, value = encode_record(transactional_id, stored)
    except EncodeError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"it cannot be stored: {error}") from error
    return build_small([Record(key, value, timestamp=timestamp_ms)])


def read_partition(partition: Partition) -> Iterator[tuple[str, StoredTransaction | None]]:
    """Yield everything that can be read on the journal partition, in order. Blocking; the partition must be open."""
    for header, batch in read_batches(partition):
        if not header.is_control:
            yield from read_records(batch, decode_record, TOPIC)
