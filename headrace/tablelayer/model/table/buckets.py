"""The bucket of each row of a batch: the hash of its bucket key.

- Tables for Iceberg (`table.datalake.format` = iceberg): Iceberg's own `bucket(n, column)`, so that a log
  bucket is a lake bucket: murmur3_32, seed 0, of the column's canonical bytes, `& 0x7fffffff`, modulo n
  (Iceberg spec, appendix B). Integers and dates are hashed as 8-byte little-endian longs, timestamps and
  times as microseconds, decimals as the shortest big-endian two's complement of the unscaled value, texts as
  UTF-8, binary as it is.
- Tables for Paimon: Paimon's own hash of the whole bucket key, for the same reason (`paimon_buckets.py`).
- All others: murmur3_32, seed 0, of the encoded bucket key (`rows/keys.py`), `& 0x7fffffff`, modulo n.

The functions are part of the stored format: they place rows permanently, and must never change. A row with a null in
the bucket key of a log table goes to bucket 0. (Iceberg's transform gives null there; Paimon hashes nulls like
values; key columns of primary-key tables are never null.) Without a bucket key the writers choose the buckets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.protocol.loading.jit import njit
from headrace.tablelayer.model.arrays.arrays import Bytes, Offsets, variable_values
from headrace.tablelayer.model.arrays.murmur import finish, mix
from headrace.tablelayer.model.options.table_options import DatalakeFormat
from headrace.tablelayer.model.rows.keys import encode_keys
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.paimon_buckets import paimon_buckets

Buckets = npt.NDArray[np.int32]


def bucket_of(definition: TableDefinition, batch: pa.RecordBatch) -> Buckets:
    """Return int32[n]: the bucket of each row of a batch that has at least the bucket-key columns, by name.

    Raises ValueError if the table has no bucket key, KeyError if a column of it is not in the batch.
    """
    if not definition.bucket_key:
        raise ValueError(f"table {definition.path} has no bucket key: its writers choose buckets freely")
    columns = [batch.column(name) for name in definition.bucket_key]
    if definition.bucket_count == 1 or batch.num_rows == 0:
        return np.zeros(batch.num_rows, dtype=np.int32)
    if definition.bucket_format is DatalakeFormat.ICEBERG:
        return iceberg_buckets(columns[0], definition.bucket_count)
    if definition.bucket_format is DatalakeFormat.PAIMON:
        return paimon_buckets(columns, definition.bucket_count)
    if not any(column.null_count for column in columns):
        return key_buckets(encode_keys(columns), definition.bucket_count)
    valid = np.ones(batch.num_rows, dtype=np.bool_)
    for column in columns:
        valid &= np.asarray(column.is_valid())
    buckets = np.zeros(batch.num_rows, dtype=np.int32)
    keys = encode_keys([column.filter(pa.array(valid)) for column in columns])
    buckets[valid] = key_buckets(keys, definition.bucket_count)
    return buckets


def key_buckets(keys: pa.BinaryArray, bucket_count: int) -> Buckets:
    """Return int32[n]: the buckets of n encoded bucket keys (no nulls)."""
    offsets, data = variable_values(keys)
    return _bytes_buckets(offsets, data, bucket_count)  # type: ignore[no-any-return]


def iceberg_buckets(column: pa.Array, bucket_count: int) -> Buckets:
    """Return int32[n]: Iceberg's `bucket(bucket_count, column)`; 0 for nulls.

    Raises ValueError for types without buckets in Iceberg (BOOLEAN, FLOAT, DOUBLE).
    """
    kind = column.type
    buckets: Buckets
    if pa.types.is_integer(kind):
        buckets = _long_buckets(_longs(column), bucket_count)
    elif pa.types.is_date32(kind):
        buckets = _long_buckets(_longs(column.cast(pa.int32())), bucket_count)
    elif pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        buckets = _long_buckets(_micros(column), bucket_count)
    elif pa.types.is_decimal128(kind):
        buffer = column.buffers()[1]
        words = np.frombuffer(buffer, np.int64, 2 * len(column), column.offset * 16)
        buckets = _decimal_buckets(words, bucket_count)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        offsets, data = variable_values(column.cast(pa.binary()))
        buckets = _bytes_buckets(offsets, data, bucket_count)
    else:
        raise ValueError(f"Iceberg has no buckets for the Arrow type {kind}")
    if column.null_count:
        buckets[np.asarray(column.is_null())] = 0
    return buckets


def warm() -> None:
    """Compile (or load from the cache) all kernels of this module."""
    iceberg_buckets(pa.array([1]), 2)
    iceberg_buckets(pa.array(["a"]), 2)
    iceberg_buckets(pa.array([None], pa.decimal128(5, 2)), 2)
    paimon_buckets([pa.array(["a"])], 2)


def _longs(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the values of an integer column; 0 for nulls."""
    return np.asarray(column.fill_null(0)).astype(np.int64)  # a copy: kernels see one kind of array


def _micros(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return values as microseconds. Nanoseconds are rounded down, as in Iceberg's hash of its own ns types."""
    ticks = _longs(column.cast(pa.int32() if pa.types.is_time32(column.type) else pa.int64()))
    unit = column.type.unit
    if unit == "ns":
        return ticks // 1000
    return ticks * {"s": 1_000_000, "ms": 1_000, "us": 1}[unit]


@njit(cache=True, nogil=True)
def _hash_bytes(data: Bytes, start: Any, end: Any) -> Any:
    """Return murmur3_32 of data[start:end], seed 0."""
    state = np.uint32(0)
    whole = start + (end - start) // 4 * 4
    for position in range(start, whole, 4):
        word = (
            np.uint32(data[position])
            | np.uint32(data[position + 1]) << np.uint32(8)
            | np.uint32(data[position + 2]) << np.uint32(16)
            | np.uint32(data[position + 3]) << np.uint32(24)
        )
        state = mix(state, np.uint32(word))
    if whole < end:
        word = np.uint32(0)
        for position in range(end - 1, whole - 1, -1):
            word = np.uint32((word << np.uint32(8)) | np.uint32(data[position]))
        word = np.uint32(word * np.uint32(0xCC9E2D51))
        word = np.uint32((word << np.uint32(15)) | (word >> np.uint32(17)))
        state = np.uint32(state ^ np.uint32(word * np.uint32(0x1B873593)))
    return finish(state, end - start)


@njit(cache=True, nogil=True)
def _bytes_buckets(offsets: Offsets, data: Bytes, bucket_count: int) -> Any:
    buckets = np.empty(len(offsets) - 1, dtype=np.int32)
    for row in range(len(buckets)):
        state = _hash_bytes(data, np.int64(offsets[row]), np.int64(offsets[row + 1]))
        buckets[row] = np.int64(state & np.uint32(0x7FFFFFFF)) % bucket_count
    return buckets


@njit(cache=True, nogil=True)
def _long_buckets(values: npt.NDArray[np.int64], bucket_count: int) -> Any:
    buckets = np.empty(len(values), dtype=np.int32)
    for row in range(len(buckets)):
        value = np.uint64(values[row])
        state = mix(np.uint32(0), np.uint32(value & np.uint64(0xFFFFFFFF)))
        state = finish(mix(state, np.uint32(value >> np.uint64(32))), 8)
        buckets[row] = np.int64(state & np.uint32(0x7FFFFFFF)) % bucket_count
    return buckets


@njit(cache=True, nogil=True)
def _decimal_buckets(words: npt.NDArray[np.int64], bucket_count: int) -> Any:
    """Return the buckets of unscaled values in 128 bits. words: int64[2n], low word first."""
    buckets = np.empty(len(words) // 2, dtype=np.int32)
    text = np.empty(16, dtype=np.uint8)
    for row in range(len(buckets)):
        for index in range(8):
            text[15 - index] = (words[2 * row] >> (8 * index)) & 255
            text[7 - index] = (words[2 * row + 1] >> (8 * index)) & 255
        # Shortest two's complement: drop leading bytes that only repeat the sign.
        start = 0
        filler = 255 if words[2 * row + 1] < 0 else 0
        while start < 15 and text[start] == filler and (text[start + 1] ^ filler) < 128:
            start += 1
        state = _hash_bytes(text, np.int64(start), np.int64(16))
        buckets[row] = np.int64(state & np.uint32(0x7FFFFFFF)) % bucket_count
    return buckets
