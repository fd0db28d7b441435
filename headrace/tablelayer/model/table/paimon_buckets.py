"""Paimon's bucket of a row: the hash of its bucket key as Paimon's `BinaryRow`, bit for bit.

A `BinaryRow` of c fields is little endian. It begins with `8 + c` bits of header and nulls, rounded up to 8 bytes.
Then it has a slot of 8 bytes per field, and then the parts that do not fit into slots, each a multiple of 8 bytes
long. A slot holds

- a number, its unscaled value (decimals of up to 18 digits), days, milliseconds of the day;
- texts and bytes of at most 7 bytes themselves, with `0x80 | length` as the last byte of the slot; longer ones are
  behind the slots, and the slot is `position << 32 | length`;
- for longer decimals also `position << 32 | length`, with 16 bytes that begin with the shortest big-endian two's
  complement; for a null these bytes exist too, empty;
- for timestamps `position << 32 | nanoseconds of the millisecond`, with the milliseconds behind; also for nulls.

The hash is murmur3_32 by words of 4 bytes, seed 42, and the bucket `abs(hash % n)` with Java's `%`. Source:
`MurmurHashUtils`, `BinaryRowWriter` and `DefaultBucketFunction` of Paimon 1.4. All timestamps count as TIMESTAMP(6)
and nanoseconds are cut off, because they are so in the lake (`lake/paimon_columns.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.protocol.loading.jit import njit
from headrace.tablelayer.model.arrays.arrays import Bytes, variable_values
from headrace.tablelayer.model.arrays.murmur import finish, mix

_INLINE, _TEXT, _DECIMAL, _TIMESTAMP = 0, 1, 2, 3
_PER_SECOND = {"s": 1_000_000, "ms": 1_000, "us": 1}


def paimon_buckets(columns: Sequence[pa.Array], bucket_count: int) -> npt.NDArray[np.int32]:
    """Return int32[n]: Paimon's bucket of each row of a bucket key, given column by column; n >= 0, nulls allowed.

    Raises ValueError for Arrow types that no table has.
    """
    count, width = len(columns[0]), len(columns)
    kinds = np.zeros(width, np.int64)
    slots = np.zeros(
        (count, width), np.int64
    )  # the slot, the text's start, a decimal's low half, milliseconds
    rests = np.zeros((count, width), np.int64)  # -, the text's length, a decimal's high half, nanoseconds
    nulls = np.zeros((count, width), np.bool_)
    texts: list[Bytes] = []
    length = 0
    for index, column in enumerate(columns):
        nulls[:, index] = np.asarray(column.is_null())
        kind = column.type
        if pa.types.is_timestamp(kind):
            kinds[index] = _TIMESTAMP
            ticks = np.asarray(column.cast(pa.int64()).fill_null(0))
            micros = ticks // 1000 if kind.unit == "ns" else ticks * _PER_SECOND[kind.unit]
            slots[:, index], rests[:, index] = micros // 1000, micros % 1000 * 1000
        elif pa.types.is_decimal128(kind):
            halves = np.frombuffer(column.buffers()[1], np.int64, 2 * count, column.offset * 16)
            kinds[index] = _INLINE if kind.precision <= 18 else _DECIMAL
            slots[:, index], rests[:, index] = halves[0::2], halves[1::2]
        elif pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
            kinds[index] = _TEXT
            offsets, data = variable_values(column.cast(pa.binary()))
            slots[:, index], rests[:, index] = offsets[:-1].astype(np.int64) + length, np.diff(offsets)
            texts.append(data)
            length += len(data)
        else:
            slots[:, index] = _slots(column)
    text = np.concatenate(texts) if texts else np.zeros(0, np.uint8)
    return _buckets(kinds, slots, rests, nulls, text, bucket_count)  # type: ignore[no-any-return]


def _slots(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the 8 bytes of each value of a type that fits; shorter values are filled with zeros."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return np.asarray(column.cast(pa.uint8()).fill_null(0)).astype(np.int64)
    if pa.types.is_time(kind):
        ticks = np.asarray(
            column.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64()).fill_null(0)
        ).astype(np.int64)
        per_milli = {"s": (1, 1000), "ms": (1, 1), "us": (1000, 1), "ns": (1_000_000, 1)}[kind.unit]
        return ticks // per_milli[0] * per_milli[1]
    if pa.types.is_date32(kind):
        column, kind = column.cast(pa.int32()), pa.int32()
    if not (pa.types.is_signed_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)):
        raise ValueError(f"Paimon has no buckets for the Arrow type {kind}")
    values = np.ascontiguousarray(column.fill_null(0))
    if pa.types.is_floating(kind):
        # One key (R2.4) is in one bucket: 0.0, and Java's NaN. Paimon has different buckets for both zeros.
        values = values + values.dtype.type(0)
        values[np.isnan(values)] = np.nan
    return values.view(f"<u{values.itemsize}").astype(np.uint64).view(np.int64)


@njit(cache=True, nogil=True)
def _put(row: Bytes, position: int, value: Any) -> None:
    for index in range(8):
        row[position + index] = np.uint8((value >> (8 * index)) & 255)


@njit(cache=True, nogil=True)
def _buckets(
    kinds: npt.NDArray[np.int64],
    slots: npt.NDArray[np.int64],
    rests: npt.NDArray[np.int64],
    nulls: npt.NDArray[np.bool_],
    text: Bytes,
    bucket_count: int,
) -> Any:
    count, width = slots.shape
    header = (width + 63 + 8) // 64 * 8
    longest = header + 24 * width
    for index in range(width):
        if kinds[index] == _TEXT:
            longest += rests[:, index].max() if count else 0
    row = np.zeros(longest, np.uint8)
    buckets = np.empty(count, np.int32)
    for number in range(count):
        row[:] = 0
        end = header + 8 * width
        for index in range(width):
            slot = header + 8 * index
            kind, value, rest, null = (
                kinds[index],
                slots[number, index],
                rests[number, index],
                nulls[number, index],
            )
            if null:
                row[(index + 8) // 8] |= np.uint8(1 << ((index + 8) % 8))
            if kind == _INLINE:
                if not null:
                    _put(row, slot, value)
            elif kind == _TEXT:
                if null:
                    continue
                if rest <= 7:
                    row[slot : slot + rest] = text[value : value + rest]
                    row[slot + 7] = np.uint8(128 | rest)
                else:
                    row[end : end + rest] = text[value : value + rest]
                    _put(row, slot, (np.int64(end) << 32) | rest)
                    end += (rest + 7) // 8 * 8
            elif kind == _DECIMAL:
                length = 0
                if not null:
                    # Shortest two's complement: leading bytes that only repeat the sign are left out.
                    length = 16
                    filler = 255 if rest < 0 else 0
                    while length > 1:
                        top = _byte(value, rest, length - 1)
                        if top != filler or ((_byte(value, rest, length - 2) ^ filler) & 128):
                            break
                        length -= 1
                    for index_of in range(length):
                        row[end + index_of] = np.uint8(_byte(value, rest, length - 1 - index_of))
                _put(row, slot, (np.int64(end) << 32) | length)
                end += 16
            else:
                if null:
                    _put(row, slot, np.int64(end) << 32)
                else:
                    _put(row, slot, (np.int64(end) << 32) | rest)
                    _put(row, end, value)
                end += 8
        state = np.uint32(42)
        for position in range(0, end, 4):
            word = (
                np.uint32(row[position])
                | np.uint32(row[position + 1]) << np.uint32(8)
                | np.uint32(row[position + 2]) << np.uint32(16)
                | np.uint32(row[position + 3]) << np.uint32(24)
            )
            state = mix(state, np.uint32(word))
        state = finish(state, end)
        signed = np.int64(state) if state < np.uint32(0x80000000) else np.int64(state) - (np.int64(1) << 32)
        buckets[number] = abs(signed) % bucket_count
    return buckets


@njit(cache=True, nogil=True, inline="always")
def _byte(low: Any, high: Any, index: Any) -> Any:
    """Return byte `index` of a 128-bit number, the lowest first."""
    return (low >> (8 * index)) & 255 if index < 8 else (high >> (8 * (index - 8))) & 255
