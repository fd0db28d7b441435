"""Batches of a few records in plain Python, for journals, which write one or two at a time and read them at the start.

Arrays would take ten times as long, and loading kernels half a second (half a minute if they must be compiled).
`protocol.records.encode` and `decode` are for larger batches.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Final

import msgspec

from headrace.protocol.errors import DecodeError, EncodeError
from headrace.protocol.records.compression import MAX_DECOMPRESSED_BYTES, open_batch
from headrace.protocol.records.header import (
    COMPRESSION_MASK,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Buffer,
    write_crc,
)
from headrace.protocol.varint import encode_varint, encode_varlong, read_varint, read_varlong

FEW_RECORDS: Final = 16
"""Up to this number of records plain Python is faster."""
_NULL_PIECE: Final = b"\x01"


class Record(msgspec.Struct, frozen=True):
    """One record, for tests and journals. `timestamp` is ms since the epoch, -1 for none."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp: int = NO_TIMESTAMP


def build_small(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    attributes: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """Encode the records as one uncompressed record batch v2, with the same bytes as `build_batch`.

    About 10 us a record. Raise EncodeError.
    """
    building = build_in_slices(
        records,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        attributes=attributes,
        leader_epoch=leader_epoch,
    )
    try:
        while True:
            next(building)
    except StopIteration as end:
        batch: bytes = end.value
        return batch


def build_in_slices(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    attributes: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> Generator[None, None, bytes]:
    """`build_small` as a generator that yields at each record and returns the batch."""
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    max_timestamp = base_timestamp
    output = bytearray(HEADER_SIZE)
    for delta, record in enumerate(records):
        yield
        if record.timestamp > max_timestamp:
            max_timestamp = record.timestamp
        body = b"".join(
            (
                b"\0",  # attributes of a record: none are defined
                encode_varlong(record.timestamp - base_timestamp),
                encode_varint(delta),
                _encode_piece(record.key),
                _encode_piece(record.value),
                encode_varint(len(record.headers)),
                *(encode_header(name, value) for name, value in record.headers),
            )
        )
        output += encode_varint(len(body))
        output += body
    if len(output) > 0x7FFFFFFF:
        raise EncodeError(f"{len(records)} records do not fit into one batch of 2 GiB")
    HEADER.pack_into(
        output,
        0,
        base_offset,
        len(output) - LOG_OVERHEAD,
        leader_epoch,
        MAGIC_V2,
        0,
        attributes & ~COMPRESSION_MASK,
        max(len(records) - 1, 0),
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    write_crc(output)
    return bytes(output)


def read_small(
    batch: Buffer, *, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """Yield (offset, key, value) of each record of the batch (magic 2) that `batch` begins with, in order.

    About 3 us a record. It checks as much as `protocol.records.decode.decode_records`, but begins to yield before it
    has seen all records. Raise DecodeError with the number of the record, and for more than `max_bytes` decompressed
    bytes.
    """
    header, body = open_batch(batch, max_bytes=max_bytes)
    payload = bytes(body)
    position, previous_delta = 0, -1
    for index in range(header.record_count):
        try:
            length, position = read_varint(payload, position)
            if not 0 < length <= len(payload) - position:
                raise DecodeError(f"it claims {length} bytes of {len(payload) - position}")
            delta, key, value = _read_record(payload[position : position + length])
            if not previous_delta < delta <= header.last_offset_delta:
                raise DecodeError("its offset is not after the one before it and within the batch")
        except DecodeError as error:
            raise DecodeError(
                f"record {index} of the batch at offset {header.base_offset} is malformed: {error}"
            ) from None
        position += length
        previous_delta = delta
        yield header.base_offset + delta, key, value
    if position != len(payload):
        raise DecodeError(
            f"the batch at offset {header.base_offset} has {len(payload) - position} bytes "
            f"after its {header.record_count} records"
        )


def _read_record(record: bytes) -> tuple[int, bytes | None, bytes | None]:
    """Offset delta, key and value of a record's bytes behind its length. Raises DecodeError."""
    _, position = read_varlong(record, 1)  # behind the attributes: the timestamp
    delta, position = read_varint(record, position)
    key, position = _read_piece(record, position)
    value, position = _read_piece(record, position)
    headers, position = read_varint(record, position)
    if headers < 0:
        raise DecodeError("its number of headers is negative")
    for _ in range(headers):
        name, position = _read_piece(record, position)
        if name is None:
            raise DecodeError("a header has no name")
        _, position = _read_piece(record, position)
    if position != len(record):
        raise DecodeError("its length does not match its fields")
    return delta, key, value


def _read_piece(record: bytes, position: int) -> tuple[bytes | None, int]:
    """Bytes behind their length, or null, and the position after them."""
    length, position = read_varint(record, position)
    if not -1 <= length <= len(record) - position:
        raise DecodeError("it runs past its end")
    return (None, position) if length < 0 else (record[position : position + length], position + length)


def encode_header(key: str, value: bytes | None) -> bytes:
    return _encode_piece(key.encode()) + _encode_piece(value)


def _encode_piece(data: bytes | None) -> bytes:
    """Bytes behind their length; null is a length of -1."""
    return _NULL_PIECE if data is None else encode_varint(len(data)) + data
