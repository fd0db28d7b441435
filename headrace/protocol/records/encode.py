"""Columns to a record batch: sizes first, then one pass that writes, then compression and the CRC.

The result is what a Kafka producer would send: base offset 0 and no leader epoch unless given. Imports numba
(through the kernels).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headrace.protocol.errors import EncodeError
from headrace.protocol.records import kernels
from headrace.protocol.records.compression import codec_of, compress
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
    write_crc,
)
from headrace.protocol.records.small import FEW_RECORDS, Record, build_small, encode_header

_NO_BYTES: Final = kernels.frozen(np.empty(0, np.uint8), np.uint8)

__all__ = ["EncodedHeaders", "Record", "build_batch", "encode_batch", "warm"]
_SIMPLE_OPTIONS: Final = frozenset(
    ("base_offset", "producer_id", "producer_epoch", "base_sequence", "attributes", "leader_epoch")
)

EncodedHeaders: TypeAlias = "tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int32]]"
"""Record headers already encoded: offsets int32[n+1] into data uint8[], and the number of headers per record."""


def encode_batch(
    *,
    timestamps: NDArray[np.int64],
    value_offsets: NDArray[np.int32] | None,
    value_data: NDArray[np.uint8] | None = None,
    value_valid: NDArray[np.bool_] | None = None,
    key_offsets: NDArray[np.int32] | None = None,
    key_data: NDArray[np.uint8] | None = None,
    key_valid: NDArray[np.bool_] | None = None,
    headers: EncodedHeaders | None = None,
    offset_deltas: NDArray[np.int32] | None = None,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    compression: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    attributes: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> memoryview:
    """One record batch v2 of n records (n may be 0: a batch that only covers offsets).

    Keys and values come as Arrow binary buffers: offsets int32[n+1], data uint8[], validity bool[n] or None
    when nothing is null; offsets None means all null. `offset_deltas` (ascending) default to 0..n-1 and
    `last_offset_delta` to the last of them. Raises EncodeError when the arrays do not fit together.
    """
    stamps = kernels.frozen(timestamps, np.int64)
    count = stamps.size
    if offset_deltas is None:
        deltas = kernels.frozen(np.arange(count, dtype=np.int64), np.int64)
    else:
        deltas = kernels.frozen(offset_deltas, np.int64)
        if deltas.size != count or (count and (deltas[0] < 0 or bool(np.any(np.diff(deltas) <= 0)))):
            raise EncodeError(f"offset deltas must be {count} ascending numbers from 0")
    highest = int(deltas[-1]) if count else 0
    if last_offset_delta is None:
        last_offset_delta = highest
    elif last_offset_delta < highest:
        raise EncodeError(
            f"the last offset delta {last_offset_delta} is below that of the last record, {highest}"
        )
    key_start, key_length, keys = _pieces("key", count, key_offsets, key_data, key_valid)
    value_start, value_length, values = _pieces("value", count, value_offsets, value_data, value_valid)
    header_offsets, header_data, header_count = _header_blocks(count, headers)

    base_timestamp = int(stamps[0]) if count else NO_TIMESTAMP
    max_timestamp = int(stamps.max()) if count else NO_TIMESTAMP
    stamp_deltas = kernels.frozen(stamps - base_timestamp, np.int64)
    sizes = np.empty(count, np.int64)
    total = kernels.record_sizes(
        stamp_deltas, deltas, key_length, value_length, header_offsets, header_count, sizes
    )
    if total > 0x7FFFFFFF - HEADER_SIZE:
        raise EncodeError(f"{count} records of together {total} bytes do not fit into one batch of 2 GiB")
    output = np.empty(HEADER_SIZE + total, np.uint8)
    kernels.write_records(
        output,
        HEADER_SIZE,
        sizes,
        stamp_deltas,
        deltas,
        key_start,
        key_length,
        keys,
        value_start,
        value_length,
        values,
        header_offsets,
        header_count,
        header_data,
    )
    batch = memoryview(output.data)
    if codec_of(compression) and total:
        batch = memoryview(bytearray().join((bytes(HEADER_SIZE), compress(compression, batch[HEADER_SIZE:]))))
    else:
        compression = 0
    HEADER.pack_into(
        batch,
        0,
        base_offset,
        len(batch) - LOG_OVERHEAD,
        leader_epoch,
        MAGIC_V2,
        0,
        (attributes & ~COMPRESSION_MASK) | compression,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    write_crc(batch)
    return batch.toreadonly()


def build_batch(records: Sequence[Record], **options: Any) -> bytes:
    """`encode_batch` of Record objects; the options are its keyword arguments from `offset_deltas` on."""
    if len(records) <= FEW_RECORDS and _SIMPLE_OPTIONS.issuperset(options):
        return build_small(records, **options)
    key_offsets, key_data, key_valid = _column([record.key for record in records])
    value_offsets, value_data, value_valid = _column([record.value for record in records])
    blocks = [b"".join(encode_header(key, value) for key, value in record.headers) for record in records]
    header_offsets, header_data, _ = _column(list(blocks))
    header_count = np.array([len(record.headers) for record in records], np.int32)
    batch = encode_batch(
        timestamps=np.array([record.timestamp for record in records], np.int64),
        key_offsets=key_offsets,
        key_data=key_data,
        key_valid=key_valid,
        value_offsets=value_offsets,
        value_data=value_data,
        value_valid=value_valid,
        headers=(header_offsets, header_data, header_count),
        **options,
    )
    return bytes(batch)


def _column(
    values: Sequence[bytes | None],
) -> tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.bool_]]:
    data = np.frombuffer(b"".join(value or b"" for value in values), np.uint8)
    if data.size > 0x7FFFFFFF:
        raise EncodeError(f"a column of {data.size} bytes does not fit into one batch")
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value or b"") for value in values], out=offsets[1:])
    return offsets, data, np.array([value is not None for value in values], np.bool_)


def _pieces(
    what: str,
    count: int,
    offsets: NDArray[np.int32] | None,
    data: NDArray[np.uint8] | None,
    valid: NDArray[np.bool_] | None,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """(start, length or -1, data) of a column, checked."""
    if offsets is None:
        return (
            kernels.frozen(np.zeros(count), np.int64),
            kernels.frozen(np.full(count, -1), np.int64),
            _NO_BYTES,
        )
    bounds = kernels.frozen(offsets, np.int64)
    pieces = _NO_BYTES if data is None else kernels.frozen(data, np.uint8)
    if bounds.size != count + 1:
        raise EncodeError(
            f"{what} offsets must have {count + 1} elements for {count} records, not {bounds.size}"
        )
    length = np.diff(bounds)
    if bounds[0] < 0 or bounds[-1] > pieces.size or bool(np.any(length < 0)):
        raise EncodeError(f"{what} offsets must ascend within the {pieces.size} bytes of data")
    if valid is not None:
        if len(valid) != count:
            raise EncodeError(f"{what} validity must have {count} elements, not {len(valid)}")
        length[~np.asarray(valid, np.bool_)] = -1
    return kernels.frozen(bounds[:-1], np.int64), kernels.frozen(length, np.int64), pieces


def _header_blocks(
    count: int, headers: EncodedHeaders | None
) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.int64]]:
    if headers is None:
        return (
            kernels.frozen(np.zeros(count + 1), np.int64),
            _NO_BYTES,
            kernels.frozen(np.zeros(count), np.int64),
        )
    offsets, data, counts = headers
    if len(counts) != count:
        raise EncodeError(f"header counts must have {count} elements, not {len(counts)}")
    _pieces("header", count, offsets, data, None)
    return kernels.frozen(offsets, np.int64), kernels.frozen(data, np.uint8), kernels.frozen(counts, np.int64)


def warm() -> None:
    """Compile the kernels (or load them from the cache)."""
    build_batch([Record(b"k", b"v", (("h", b"x"),), 0)] * (FEW_RECORDS + 1))
