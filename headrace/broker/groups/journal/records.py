"""The bytes of the coordinator's records on `__consumer_offsets`, as Kafka writes them.

Values are GroupMetadataValue version 3 and OffsetCommitValue version 3, or version 1 for an offset with its own expiry.
A null value is a tombstone. `consumer_records` has the records of the consumer protocol. Kinds that are unknown here
(share and streams groups) are skipped when reading.

The functions are pure, except `read_partition`, which reads the log of one partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from headrace.broker.cluster.journal_topic import read_batches, read_records
from headrace.broker.groups.journal.consumer_records import decode_modern, encode_modern
from headrace.broker.groups.model.records import (
    CommittedOffset,
    DropGroup,
    DropOffset,
    JournalRecord,
    PutGroup,
    PutOffset,
    StoredGroup,
    StoredMember,
)
from headrace.broker.groups.offsets.transactional import InTransaction, TransactionEnd
from headrace.broker.runtime.slices import Work, finish
from headrace.protocol.errors import DecodeError, EncodeError, ErrorCode, KafkaError
from headrace.protocol.messages.consumer_offsets import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_versioned,
    encode_versioned,
    peek_version,
)
from headrace.protocol.records.header import TRANSACTIONAL_BIT

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition

TOPIC = "__consumer_offsets"
_OFFSET_KEY_VERSION = 1
_GROUP_KEY_VERSION = 2
_VALUE_VERSION = 3
_EXPIRING_VALUE_VERSION = 1


def encode_record(record: JournalRecord) -> tuple[bytes, bytes | None]:
    """Return key and value of a journal record. Raises EncodeError if it does not fit the format."""
    match record:
        case PutGroup(stored):
            return _group_key(stored.group_id), _group_value(stored)
        case DropGroup(group_id):
            return _group_key(group_id), None
        case PutOffset(group_id, topic, partition, committed):
            return _offset_key(group_id, topic, partition), _offset_value(committed)
        case DropOffset(group_id, topic, partition):
            return _offset_key(group_id, topic, partition), None
        case _:
            return encode_modern(record)


def _group_key(group_id: str) -> bytes:
    return encode_versioned(GroupMetadataKey(group=group_id), _GROUP_KEY_VERSION)


def _offset_key(group_id: str, topic: str, partition: int) -> bytes:
    """Return an OffsetCommitKey, version 1. A commit can have thousands, so none is made as an object."""
    return _offset_key_start(group_id, topic) + partition.to_bytes(4, "big", signed=True)


@lru_cache(256)
def _offset_key_start(group_id: str, topic: str) -> bytes:
    return encode_versioned(OffsetCommitKey(group=group_id, topic=topic, partition=0), _OFFSET_KEY_VERSION)[
        :-4
    ]


def _offset_value(committed: CommittedOffset) -> bytes:
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        expire_timestamp=committed.expire_timestamp_ms,
    )
    version = _VALUE_VERSION if committed.expire_timestamp_ms < 0 else _EXPIRING_VALUE_VERSION
    return encode_versioned(value, version)


def _group_value(stored: StoredGroup) -> bytes:
    value = GroupMetadataValue(
        protocol_type=stored.protocol_type,
        generation=stored.generation,
        protocol=stored.protocol,
        leader=stored.leader,
        current_state_timestamp=stored.state_timestamp_ms,
        members=[
            MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in stored.members
        ],
    )
    return encode_versioned(value, _VALUE_VERSION)


def decode_record(key: bytes | None, value: bytes | None) -> JournalRecord | None:
    """Return the journal record, or None for an unknown kind. Raises DecodeError if it is malformed."""
    if key is None:
        raise DecodeError("a record without a key does not belong on the journal of consumer groups")
    if peek_version(key) > _GROUP_KEY_VERSION:
        return decode_modern(key, value)
    decoded = decode_key(key)
    if isinstance(decoded, OffsetCommitKey):
        if value is None:
            return DropOffset(decoded.group, decoded.topic, decoded.partition)
        offset, _ = decode_versioned(OffsetCommitValue, value)
        committed = CommittedOffset(
            offset=offset.offset,
            leader_epoch=offset.leader_epoch,
            metadata=offset.metadata,
            commit_timestamp_ms=offset.commit_timestamp,
            expire_timestamp_ms=offset.expire_timestamp,
        )
        return PutOffset(decoded.group, decoded.topic, decoded.partition, committed)
    if value is None:
        return DropGroup(decoded.group)
    group, _ = decode_versioned(GroupMetadataValue, value)
    return PutGroup(_stored_group(decoded.group, group))


def _stored_group(group_id: str, value: GroupMetadataValue) -> StoredGroup:
    return StoredGroup(
        group_id=group_id,
        protocol_type=value.protocol_type,
        generation=value.generation,
        protocol=value.protocol,
        leader=value.leader,
        state_timestamp_ms=value.current_state_timestamp,
        members=tuple(
            StoredMember(
                member_id=member.member_id,
                instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                # Version 0 has no rebalance timeout: the session timeout was used for both.
                rebalance_timeout_ms=member.rebalance_timeout
                if member.rebalance_timeout >= 0
                else member.session_timeout,
                session_timeout_ms=member.session_timeout,
                subscription=member.subscription,
                assignment=member.assignment,
            )
            for member in value.members
        ),
    )


def encode_journal_batch(
    records: Sequence[JournalRecord], timestamp_ms: int, producer: tuple[int, int] | None = None
) -> bytes:
    """Return one record batch with all `records`, so that all of them are stored or none.

    With a `producer` (id and epoch) they are part of its transaction. As in Kafka, they have no sequence. Raises
    KafkaError(INVALID_REQUEST) if a record does not fit the format.
    """
    return finish(encode_batch_in_slices(records, timestamp_ms, producer))


def encode_batch_in_slices(
    records: Sequence[JournalRecord], timestamp_ms: int, producer: tuple[int, int] | None = None
) -> Work[bytes]:
    """Return the batch of `encode_journal_batch` as work that rests between records."""
    from headrace.protocol.records.small import Record, build_in_slices

    encoded = []
    try:
        for record in records:
            yield
            key, value = encode_record(record)
            encoded.append(Record(key, value, timestamp=timestamp_ms))
    except EncodeError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"it cannot be stored: {error}") from error
    if producer is None:
        return (yield from build_in_slices(encoded))
    producer_id, epoch = producer
    return (
        yield from build_in_slices(
            encoded, producer_id=producer_id, producer_epoch=epoch, attributes=TRANSACTIONAL_BIT
        )
    )


def decode_journal_batch(batch: memoryview | bytes) -> Iterator[JournalRecord]:
    """Yield the journal records of one batch. Records that cannot be read are skipped (`read_records`)."""
    return read_records(batch, decode_record, TOPIC)


def read_partition(partition: Partition) -> Iterator[JournalRecord | InTransaction | TransactionEnd]:
    """Yield all records of the journal partition, in order. Blocking; the partition must be open."""
    from headrace.protocol.records.control import read_end_marker

    for header, batch in read_batches(partition):
        if header.is_control:
            commit = read_end_marker(batch).commit
            if commit is not None:
                yield TransactionEnd(header.producer_id, commit)
        elif header.is_transactional:
            for record in decode_journal_batch(batch):
                if isinstance(record, PutOffset):
                    yield InTransaction(header.producer_id, record)
        else:
            yield from decode_journal_batch(batch)
