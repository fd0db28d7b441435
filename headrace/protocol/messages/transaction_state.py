"""The records of `__transaction_state`, in Kafka's own format: the coordinator's state of a transactional id.

Key and value begin with an int16, the version of the rest (`consumer_offsets.encode_versioned`). A null value is a
tombstone: the transactional id is forgotten.
"""

from __future__ import annotations

from headrace.protocol.schema import Message, Struct, array, int8, int16, int32, int64, string


class TransactionLogKey(Message, versions="0"):
    transactional_id: str = string()


class PartitionsSchema(Struct):
    topic: str = string()
    partition_ids: list[int] = array(int32)


class TransactionLogValue(Message, versions="0-1", flexible="1+"):
    """The state of one id. `transaction_status` is the number of the state. Kafka 4 writes version 1."""

    producer_id: int = int64()
    previous_producer_id: int = int64(versions="1+", default=-1, tag=0, ignorable=True)
    next_producer_id: int = int64(versions="1+", default=-1, tag=1, ignorable=True)
    producer_epoch: int = int16()
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, nullable="0+")
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16(versions="1+", tag=2, ignorable=True)
