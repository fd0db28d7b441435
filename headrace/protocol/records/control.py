"""Control batches: the markers that end a transaction in a partition.

A marker is a batch with one record, the control and transactional bits, the producer's id and epoch and no
sequence. The record's key says commit or abort, its value names the coordinator's epoch:

    key    int16 version (0), int16 type (0 abort, 1 commit)
    value  int16 version (0), int32 coordinator epoch

Pure, without numpy: a marker costs as much as a small batch. Source: KIP-98, Kafka's EndTransactionMarker.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Final

import msgspec

from headrace.protocol.errors import DecodeError
from headrace.protocol.records.header import (
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    NO_LEADER_EPOCH,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    Buffer,
    read_header,
    write_crc,
)
from headrace.protocol.varint import read_varint

ABORT: Final = 0
COMMIT: Final = 1

_RECORD: Final = Struct(">bbbbbhhbhib")
_KEY: Final = Struct(">hh")
_VALUE: Final = Struct(">hi")


class EndMarker(msgspec.Struct, frozen=True):
    """The content of a control batch. `commit` is None for an unknown type, which ends no transaction."""

    commit: bool | None
    coordinator_epoch: int


def build_end_marker(
    *, producer_id: int, producer_epoch: int, commit: bool, coordinator_epoch: int, timestamp_ms: int
) -> bytes:
    """Return the batch that commits or aborts the producer's transaction in a partition."""
    record = _RECORD.pack(
        2 * (_RECORD.size - 1),  # zigzag varint of what follows, as the lengths below
        0,
        0,
        0,
        2 * _KEY.size,
        0,
        COMMIT if commit else ABORT,
        2 * _VALUE.size,
        0,
        coordinator_epoch,
        0,
    )
    header = HEADER.pack(
        0,
        HEADER_SIZE + len(record) - LOG_OVERHEAD,
        NO_LEADER_EPOCH,
        MAGIC_V2,
        0,
        TRANSACTIONAL_BIT | CONTROL_BIT,
        0,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        NO_SEQUENCE,
        1,
    )
    batch = bytearray(header + record)
    write_crc(batch)
    return bytes(batch)


def read_end_marker(buffer: Buffer, position: int = 0) -> EndMarker:
    """The marker of the whole control batch at `position`. Raises DecodeError."""
    header = read_header(buffer, position)
    if not header.is_control or header.compression:
        raise DecodeError(f"the batch at byte {position} is not a readable control batch")
    body = memoryview(buffer)[position + HEADER_SIZE : position + header.size]
    try:
        at = read_varint(body, 0)[1] + 1  # length, attributes
        at = read_varint(body, at)[1]  # timestamp delta
        at = read_varint(body, at)[1]  # offset delta
        key_size, at = read_varint(body, at)
        key_version, kind = _KEY.unpack_from(body[at : at + max(key_size, 0)])
        value_size, at = read_varint(body, at + key_size)
        value_version, coordinator_epoch = _VALUE.unpack_from(body[at : at + max(value_size, 0)])
    except struct_error as error:
        raise DecodeError(
            f"the control record of the batch at byte {position} is malformed: {error}"
        ) from None
    if key_version < 0 or value_version < 0:
        raise DecodeError(f"the control record of the batch at byte {position} has a negative version")
    return EndMarker({ABORT: False, COMMIT: True}.get(kind), coordinator_epoch)
