"""Rewrite a batch with fewer records, another codec or a delete horizon. Offsets stay.

Base offset, last offset delta, leader epoch, producer and sequence stay too, so offsets and sequence numbers continue.
Encoded records are copied; they are not made into objects.

Imports numba (through the kernels). Source: Kafka's MemoryRecords.filterTo, KIP-534 (delete horizon).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from headrace.protocol.records import kernels
from headrace.protocol.records.compression import compress
from headrace.protocol.records.decode import RecordColumns
from headrace.protocol.records.header import (
    ATTRIBUTES,
    ATTRIBUTES_POSITION,
    BASE_TIMESTAMP_POSITION,
    BOTH_TIMESTAMPS,
    COMPRESSION_MASK,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LENGTH,
    LENGTH_POSITION,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAX_TIMESTAMP_POSITION,
    NO_TIMESTAMP,
    RECORD_COUNT,
    RECORD_COUNT_POSITION,
    TIMESTAMP,
    BatchHeader,
    Buffer,
    write_crc,
)

_ROOM_PER_RECORD: Final = 14
"""The room to encode a length of at most 5 and a timestamp delta of at most 10 bytes in place of one byte each."""


def delete_horizon(header: BatchHeader) -> int | None:
    """Return the time (ms) from which tombstones or the marker may be removed; None before the first cleaning."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON_BIT else None


def recompressed(batch: Buffer, records: RecordColumns, codec: int, level: int | None = None) -> bytes:
    """The batch with the same records under another codec."""
    header = records.header
    return _assemble(
        batch,
        records.payload,
        header,
        codec,
        level,
        header.base_timestamp,
        header.max_timestamp,
        len(records),
    )


def selected(
    batch: Buffer, records: RecordColumns, keep: NDArray[np.bool_], horizon_ms: int | None = None
) -> bytes:
    """Return the batch with the records for which `keep` is true, at least one, and with the delete horizon if given.

    A horizon takes the place of the base timestamp. Timestamps of records do not change.
    """
    header = records.header
    stamps = records.timestamps[keep]
    if horizon_ms is not None:
        base = horizon_ms
    elif header.attributes & (DELETE_HORIZON_BIT | LOG_APPEND_TIME_BIT):
        base = header.base_timestamp
    else:
        base = int(stamps[0])
    output = np.empty(records.payload.size + _ROOM_PER_RECORD * len(stamps), np.uint8)
    shift = 0 if header.is_log_append_time else header.base_timestamp - base
    size = kernels.select_records(records.payload, kernels.frozen(keep, np.bool_), shift, output)
    largest = header.max_timestamp if header.is_log_append_time else int(stamps.max())
    return _assemble(
        batch,
        output[:size],
        header,
        header.compression,
        None,
        base,
        largest,
        len(stamps),
        extra_attributes=0 if horizon_ms is None else DELETE_HORIZON_BIT,
    )


def emptied(batch: Buffer, header: BatchHeader) -> bytes:
    """Return the batch without records: only its offsets and its sequence still count."""
    result = bytearray(memoryview(batch)[:HEADER_SIZE])
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_BIT)
    _finish(result, attributes, NO_TIMESTAMP, header.max_timestamp, 0)
    return bytes(result)


def with_max_timestamp(batch: Buffer, timestamp_ms: int) -> bytes:
    """The batch with another largest timestamp in its header."""
    result = bytearray(batch)
    TIMESTAMP.pack_into(result, MAX_TIMESTAMP_POSITION, timestamp_ms)
    write_crc(result)
    return bytes(result)


def _assemble(
    batch: Buffer,
    payload: NDArray[np.uint8],
    header: BatchHeader,
    codec: int,
    level: int | None,
    base_timestamp: int,
    max_timestamp: int,
    count: int,
    *,
    extra_attributes: int = 0,
) -> bytes:
    result = bytearray(memoryview(batch)[:HEADER_SIZE])
    result += compress(codec, payload.data, level)
    attributes = (header.attributes & ~COMPRESSION_MASK) | codec | extra_attributes
    _finish(result, attributes, base_timestamp, max_timestamp, count)
    return bytes(result)


def _finish(result: bytearray, attributes: int, base_timestamp: int, max_timestamp: int, count: int) -> None:
    LENGTH.pack_into(result, LENGTH_POSITION, len(result) - LOG_OVERHEAD)
    ATTRIBUTES.pack_into(result, ATTRIBUTES_POSITION, attributes)
    BOTH_TIMESTAMPS.pack_into(result, BASE_TIMESTAMP_POSITION, base_timestamp, max_timestamp)
    RECORD_COUNT.pack_into(result, RECORD_COUNT_POSITION, count)
    write_crc(result)
