"""Conversion of rows to Avro's binary encoding: one compiled pass that writes each row once, from the Arrow buffers.

The types are in `schema.py`. Nested columns are written level by level, the innermost first, each level in one
pass; the next pass copies their bytes. The kernel reads the columns through their addresses, as in `json_write`; the
caller keeps the arrays alive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numba import njit

from headrace.tablelayer.model.arrays.arrays import (
    Bytes,
    Offsets,
    binary_array,
    sealed,
    validity,
    variable_values,
)
from headrace.tablelayer.model.arrays.memory import Int64, bit_at, byte_at, int32_at, int64_at
from headrace.tablelayer.model.avro.schema import check_range
from headrace.tablelayer.model.rows.nested import entries, row_fields
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.types.column_types import DataType, Field, TypeKind

_BOOLEAN, _INT8, _INT16, _INT32, _INT64, _COPIED, _VARIABLE, _DECIMAL, _ENCODED = range(9)
_KIND, _NULLABLE, _OFFSET, _VALIDITY, _VALUES, _DATA, _SIZE = range(7)
"""The description of a column for the kernel. _SIZE: bytes of a copied value, or the factor of an integer."""

_MAX_LENGTH = {
    _BOOLEAN: 1,
    _INT8: 2,
    _INT16: 3,
    _INT32: 5,
    _INT64: 10,
    _VARIABLE: 5,
    _DECIMAL: 18,
    _ENCODED: 0,
}
_INTEGERS = {1: _INT8, 2: _INT16, 4: _INT32, 8: _INT64}
_SIZE_MAX = 5  # bytes of a length, a number below 2^31
_SYNC_SIZE = 16


class Frame(msgspec.Struct, frozen=True):
    """The bytes before and after each row. `sized`: the row's length precedes it, as in a container file's block."""

    front: bytes
    back: bytes = b""
    sized: bool = False

    @property
    def size(self) -> int:
        """The number of bytes before and after each row."""
        return len(self.front) + len(self.back)

    @classmethod
    def confluent(cls, schema_id: int) -> Frame:
        """Return Confluent's wire format: a zero byte, and the schema's id in four bytes, big endian."""
        return cls(b"\0" + schema_id.to_bytes(4, "big"))

    @classmethod
    def container(cls, schema: str) -> Frame:
        """Return an uncompressed object container file with one block of one row.

        The sync marker is a hash of the schema, so that the same row makes the same value.
        """
        text = schema.encode()
        sync = hashlib.md5(text, usedforsecurity=False).digest()
        parts = [b"Obj\x01", _long(2)]
        for name, value in ((b"avro.schema", text), (b"avro.codec", b"null")):
            parts += [_long(len(name)), name, _long(len(value)), value]
        return cls(b"".join(parts) + _long(0) + sync + _long(1), sync, sized=True)


_NO_FRAME = Frame(b"")


def _long(value: int) -> bytes:
    """Return a number of 0 or more in Avro's encoding."""
    rest, out = value << 1, bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def rows_to_avro(rows: pa.RecordBatch, schema: Schema, frame: Frame) -> tuple[Offsets, Bytes]:
    """Return n values as (int32[n+1] offsets, data). rows: with the schema's columns.

    Raises ValueError beyond 2 GiB, RowError as `check_range` does.
    """
    check_range(schema.columns, rows)
    return _values(schema.columns, rows.columns, rows.num_rows, frame)


def _values(
    parts: Sequence[Column | Field], arrays: Sequence[pa.Array], count: int, frame: Frame
) -> tuple[Offsets, Bytes]:
    """Return n values, each of all parts one after the other: (int32[n+1] offsets, data)."""
    table = np.zeros((len(parts), 7), np.int64)
    capacity = count * (len(frame.front) + len(frame.back) + 2 * _SIZE_MAX)
    kept = []
    for row, part, array in zip(table, parts, arrays, strict=True):
        flat = _encoded(part.type, array) if part.type.is_nested else array
        kept.append(flat)
        capacity += _describe(row, part, flat)
    _check_capacity(capacity)
    out = np.empty(capacity, np.uint8)
    offsets = np.zeros(count + 1, np.int32)
    front, back = (sealed(np.frombuffer(each + b"\0", np.uint8))[:-1] for each in (frame.front, frame.back))
    size = int(_write(table, count, front, back, frame.sized, out, offsets))
    del kept
    return offsets, out[:size] if size >= capacity * 3 // 4 else out[:size].copy()


def _encoded(data_type: DataType, array: pa.Array) -> pa.Array:
    """Return nested values as n binary values, each without the union's branch for "not null"."""
    parts = data_type.fields
    if data_type.kind is TypeKind.ROW:
        offsets, data = _values(parts, row_fields(array), len(array), _NO_FRAME)
    else:
        counts, arrays = entries(array)
        item_offsets, items = _values(parts, arrays, len(arrays[0]), _NO_FRAME)
        capacity = len(items) + len(counts) * (_SIZE_MAX + 1)
        _check_capacity(capacity)
        data, offsets = np.empty(capacity, np.uint8), np.zeros(len(counts) + 1, np.int32)
        data = data[: int(_write_blocks(sealed(counts), sealed(item_offsets), sealed(items), data, offsets))]
    return binary_array(offsets, data, validity(array))


def _check_capacity(capacity: int) -> None:
    if capacity > np.iinfo(np.int32).max:
        raise ValueError(f"up to {capacity} bytes of Avro do not fit into one batch; the limit is 2 GiB")


def _describe(row: np.ndarray, column: Column | Field, array: pa.Array) -> int:
    """Describe a column to the kernel. Return the maximum number of bytes that it takes."""
    count, buffers, data_type = len(array), array.buffers(), column.type
    row[_NULLABLE] = column.nullable
    row[_OFFSET] = array.offset
    row[_VALIDITY] = buffers[0].address if buffers[0] is not None and array.null_count else 0
    row[_VALUES] = buffers[1].address if buffers[1] is not None else 0
    row[_SIZE] = 1
    extra = 0
    match data_type.kind:
        case TypeKind.BOOLEAN:
            row[_KIND] = _BOOLEAN
        case TypeKind.FLOAT | TypeKind.DOUBLE | TypeKind.BINARY:
            row[_KIND] = _COPIED
            row[_SIZE] = {TypeKind.FLOAT: 4, TypeKind.DOUBLE: 8}.get(data_type.kind, data_type.length)
        case TypeKind.CHAR | TypeKind.STRING | TypeKind.BYTES | TypeKind.ARRAY | TypeKind.MAP | TypeKind.ROW:
            row[_KIND] = _ENCODED if data_type.is_nested else _VARIABLE
            if count:
                offsets, data = variable_values(array)
                row[_DATA] = data.ctypes.data
                extra = int(offsets[-1]) - int(offsets[0])
        case TypeKind.DECIMAL:
            row[_KIND] = _DECIMAL
        case _:
            row[_KIND] = _INTEGERS[array.type.bit_width // 8]
            if data_type.kind in (TypeKind.TIME, TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_LTZ):
                row[_SIZE] = 1000 if data_type.unit == "s" else 1  # Avro has no unit of seconds
    each = int(row[_SIZE]) if row[_KIND] == _COPIED else _MAX_LENGTH[int(row[_KIND])]
    return count * (each + 1) + extra


@njit(cache=True, nogil=True)
def _put_long(out: Bytes, position: int, value: Any) -> Int64:
    rest = np.uint64((value << 1) ^ (value >> 63))
    while rest > np.uint64(127):
        out[position] = np.uint8(rest & np.uint64(127)) | np.uint8(128)
        position += 1
        rest >>= np.uint64(7)
    out[position] = np.uint8(rest)
    return position + 1


@njit(cache=True, nogil=True)
def _put_decimal(out: Bytes, position: int, low: Any, high: Any) -> Int64:
    """Write the length and the shortest two's complement bytes that hold the value."""
    sign = np.int64(-1) if high < 0 else np.int64(0)
    size = 16
    while size > 1:
        # Leave out the highest byte if it only repeats the sign of the byte below it.
        at = size - 1
        word = high if at >= 8 else low
        top = (word >> np.int64(8 * (at & 7))) & 255
        below_word = high if at - 1 >= 8 else low
        below = (below_word >> np.int64(8 * ((at - 1) & 7))) & 255
        if top != (sign & 255) or (below >> 7) != (sign & 1):
            break
        size -= 1
    position = _put_long(out, position, np.int64(size))
    for at in range(size - 1, -1, -1):
        word = high if at >= 8 else low
        out[position] = np.uint8((word >> np.int64(8 * (at & 7))) & 255)
        position += 1
    return position


@njit(cache=True, nogil=True)
def _write(table: Any, count: int, front: Bytes, back: Bytes, sized: bool, out: Bytes, offsets: Any) -> Int64:
    """Write all rows; offsets: int32[n + 1]. Return the number of bytes written."""
    position = np.int64(0)
    for row in range(count):
        for index in range(len(front)):
            out[position] = front[index]
            position += 1
        begin = position
        if sized:
            position += _SIZE_MAX
        for column in range(len(table)):
            description = table[column]
            kind = description[_KIND]
            at = row + description[_OFFSET]
            values = description[_VALUES]
            if description[_NULLABLE] != 0:
                if description[_VALIDITY] != 0 and bit_at(description[_VALIDITY], at) == 0:
                    out[position] = 0
                    position += 1
                    continue
                out[position] = 2
                position += 1
            if kind in (_VARIABLE, _ENCODED):
                start = np.int64(int32_at(values, at))
                length = np.int64(int32_at(values, at + 1)) - start
                if kind == _VARIABLE:
                    position = _put_long(out, position, length)
                source = description[_DATA] + start
                for index in range(length):
                    out[position + index] = byte_at(source, index)
                position += length
            elif kind == _INT64:
                position = _put_long(out, position, int64_at(values, at) * description[_SIZE])
            elif kind == _INT32:
                position = _put_long(out, position, np.int64(int32_at(values, at)) * description[_SIZE])
            elif kind == _COPIED:
                size = description[_SIZE]
                source = values + at * size
                for index in range(size):
                    out[position + index] = byte_at(source, index)
                position += size
            elif kind == _DECIMAL:
                low, high = int64_at(values, 2 * at), int64_at(values, 2 * at + 1)
                position = _put_decimal(out, position, low, high)
            elif kind == _BOOLEAN:
                out[position] = bit_at(values, at)
                position += 1
            elif kind == _INT8:
                position = _put_long(out, position, np.int64(np.int8(byte_at(values, at))))
            else:
                low_byte = np.int64(byte_at(values, 2 * at))
                high_byte = np.int64(np.int8(byte_at(values, 2 * at + 1)))
                position = _put_long(out, position, (high_byte << 8) | low_byte)
        if sized:
            length = position - begin - _SIZE_MAX
            source_start = begin + _SIZE_MAX
            position = _put_long(out, begin, length)
            for index in range(length):  # move it left: the gap was for the longest length
                out[position + index] = out[source_start + index]
            position += length
        for index in range(len(back)):
            out[position] = back[index]
            position += 1
        offsets[row + 1] = position
    return position


@njit(cache=True, nogil=True)
def _write_blocks(counts: Any, item_offsets: Any, items: Bytes, out: Bytes, offsets: Any) -> Int64:
    """Write the items of each value as one block and its end.

    counts: int64[n]; item_offsets: int32[items + 1] into `items`; offsets: int32[n + 1], filled. Returns the number
    of bytes written.
    """
    position = np.int64(0)
    item = np.int64(0)
    for row in range(len(counts)):
        count = counts[row]
        if count > 0:
            position = _put_long(out, position, count)
            for index in range(np.int64(item_offsets[item]), np.int64(item_offsets[item + count])):
                out[position] = items[index]
                position += 1
            item += count
        out[position] = 0
        position += 1
        offsets[row + 1] = position
    return position


def warm() -> None:
    """Compile (or load from the cache) all kernels of this module."""
    from headrace.tablelayer.model.types.column_types import BIGINT, array_of

    schema = Schema.of([("a", BIGINT), ("b", array_of(BIGINT))])
    rows_to_avro(
        pa.RecordBatch.from_pydict({"a": [1], "b": [[1]]}, schema.arrow()), schema, Frame.confluent(1)
    )
