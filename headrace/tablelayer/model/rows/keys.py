"""Keys as bytes that sort like the columns they come from.

`encode(a) < encode(b)` holds exactly when `a` is less than `b`, compared column by column. The encoding of the first
columns is a prefix of the encoding of all columns, so a prefix lookup is a range of bytes. Per column:

    BOOLEAN                 one byte, 0 or 1
    integers, date, times   big endian, sign bit flipped
    FLOAT, DOUBLE           IEEE 754 big endian, sign bit flipped, or all bits if negative;
                            -0.0 is 0.0, NaN is last
    DECIMAL                 16 bytes, big endian, sign bit flipped
    CHAR, STRING, BYTES     the bytes with 00 written as 00 FF, then 00 00
    BINARY(n)               its n bytes

Key columns are never null. All functions work on whole batches, with values of any size up to 2 GiB per batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.protocol.errors import DecodeError
from headrace.protocol.loading.jit import njit
from headrace.tablelayer.model.arrays.arrays import (
    Bytes,
    Offsets,
    binary_array,
    ends_to_offsets,
    fixed_array,
    fixed_values,
    sealed,
    slot_dtype,
    variable_values,
)
from headrace.tablelayer.model.arrays.widths import width_of
from headrace.tablelayer.model.errors import TableError, TableErrorCode

Cursor = npt.NDArray[np.int64]


def encode_keys(columns: Sequence[pa.Array]) -> pa.BinaryArray:
    """Return the keys of n rows, given one array per key column. Raises TableError(INVALID_KEY) for a null."""
    for position, column in enumerate(columns):
        if column.null_count:
            raise TableError(
                TableErrorCode.INVALID_KEY,
                f"row {column.is_null().index(True).as_py()}: key column {position + 1} is null; "
                "key columns must have a value",
            )
    count = len(columns[0])
    width = sum(width_of(column.type) for column in columns)
    if all(width_of(column.type) for column in columns):
        return _encode_fixed(columns, count, width)
    lengths = np.full(count, width, np.int64)
    variable = {
        position: variable_values(column)
        for position, column in enumerate(columns)
        if not width_of(column.type)
    }
    for offsets, data in variable.values():
        _add_escaped_lengths(offsets, data, lengths)
    key_offsets = ends_to_offsets(lengths)
    out = np.empty(key_offsets[-1], np.uint8)
    cursor = key_offsets[:-1].astype(np.int64)
    for position, column in enumerate(columns):
        if position in variable:
            offsets, data = variable[position]
            _write_escaped(offsets, data, out, cursor)
        else:
            ordered = _to_ordered(fixed_values(column), column.type)
            _write_fixed(sealed(ordered.view(np.uint8).reshape(count, ordered.dtype.itemsize)), out, cursor)
    return binary_array(key_offsets, out)


def encode_few_keys(columns: Sequence[pa.Array]) -> list[bytes]:
    """Do the same as `encode_keys` for a few rows, in a fraction of its time."""
    if any(column.null_count or not _is_plain(column.type) for column in columns):
        return list(encode_keys(columns).to_pylist())
    keys = [b""] * len(columns[0])
    for column in columns if keys else ():
        width = width_of(column.type)
        if width:
            body, sign = memoryview(column.buffers()[1]), 1 << (8 * width - 1)
            starts = range(column.offset * width, (column.offset + len(column)) * width, width)
            numbers = [int.from_bytes(body[start : start + width], "little") for start in starts]
            parts = [(number ^ sign).to_bytes(width, "big") for number in numbers]
        else:
            texts = column.cast(pa.binary()).to_pylist()
            parts = [text.replace(b"\x00", b"\x00\xff") + b"\x00\x00" for text in texts]
        keys = list(map(bytes.__add__, keys, parts))
    return keys


def _is_plain(arrow_type: pa.DataType) -> bool:
    """Whether values are integers, dates, times, decimals or texts, which `encode_few_keys` can encode."""
    return not (
        pa.types.is_floating(arrow_type)
        or pa.types.is_boolean(arrow_type)
        or pa.types.is_fixed_size_binary(arrow_type)
    )


def decode_keys(keys: pa.BinaryArray, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Return the columns of encoded keys, given their Arrow types in order. Raises DecodeError for other bytes.

    Keys may have more bytes behind these columns.
    """
    offsets, data = variable_values(keys)
    cursor = offsets[:-1].astype(np.int64)
    ends = sealed(offsets[1:].astype(np.int64))
    columns = []
    for arrow_type in types:
        width = width_of(arrow_type)
        if width:
            values = np.empty((len(keys), width), np.uint8)
            well_formed = _read_fixed(data, ends, cursor, values)
            raw = values.reshape(-1).view(slot_dtype(width))
            column = fixed_array(_from_ordered(raw, arrow_type), None, arrow_type)
        else:
            lengths, starts = np.zeros(len(keys), np.int64), cursor.copy()
            well_formed = _measure_escaped(data, ends, cursor, lengths)
            value_offsets = ends_to_offsets(lengths)
            value_data = np.empty(value_offsets[-1], np.uint8)
            if well_formed:
                _read_escaped(data, starts, value_offsets, value_data)
            column = binary_array(value_offsets, value_data, None, arrow_type)
        if not well_formed:
            raise DecodeError(f"an encoded key is cut short or malformed at a column of type {arrow_type}")
        columns.append(column)
    return columns


def warm() -> None:
    """Compile the kernels (or load them from the cache)."""
    columns = [pa.array(["a"]), pa.array([1], pa.int64())]
    decode_keys(encode_keys(columns), [column.type for column in columns])


def _encode_fixed(columns: Sequence[pa.Array], count: int, width: int) -> pa.BinaryArray:
    out = np.empty((count, width), np.uint8)
    start = 0
    for column in columns:
        ordered = _to_ordered(fixed_values(column), column.type)
        target: npt.NDArray[Any] = np.ndarray(
            (count,), ordered.dtype, buffer=out.data if count else None, offset=start if count else 0,
            strides=(width,),
        )  # fmt: skip
        target[:] = ordered
        start += ordered.dtype.itemsize
    return binary_array(ends_to_offsets(np.full(count, width, np.int64)), out.reshape(-1))


def _to_ordered(values: npt.NDArray[Any], arrow_type: pa.DataType) -> npt.NDArray[Any]:
    """Return values as contiguous memory whose bytes sort like the values."""
    if pa.types.is_boolean(arrow_type) or pa.types.is_fixed_size_binary(arrow_type):
        return np.ascontiguousarray(values)
    if pa.types.is_decimal(arrow_type):
        reversed_bytes = values.view(np.uint8).reshape(-1, 16)[:, ::-1].copy()
        reversed_bytes[:, 0] ^= 0x80
        return reversed_bytes.reshape(-1).view("V16")
    sign = np.array(1, values.dtype) << np.array(values.dtype.itemsize * 8 - 1, values.dtype)
    if pa.types.is_floating(arrow_type):
        numbers = values.view(f"<f{values.dtype.itemsize}") + 0.0  # -0.0 + 0.0 is 0.0
        numbers[np.isnan(numbers)] = np.nan
        values = numbers.view(values.dtype)
        negative = (values & sign) != 0
        ordered: npt.NDArray[Any] = np.where(negative, ~values, values | sign).astype(values.dtype)
        return ordered.byteswap()
    flipped: npt.NDArray[Any] = values ^ sign
    return flipped.byteswap()


def _from_ordered(raw: npt.NDArray[Any], arrow_type: pa.DataType) -> npt.NDArray[Any]:
    if pa.types.is_boolean(arrow_type) or pa.types.is_fixed_size_binary(arrow_type):
        return raw
    if pa.types.is_decimal(arrow_type):
        restored = raw.view(np.uint8).reshape(-1, 16)[:, ::-1].copy()
        restored[:, 15] ^= 0x80
        return restored.reshape(-1).view("V16")
    values = raw.byteswap()
    sign = np.array(1, values.dtype) << np.array(values.dtype.itemsize * 8 - 1, values.dtype)
    if pa.types.is_floating(arrow_type):
        positive = (values & sign) != 0
        numbers: npt.NDArray[Any] = np.where(positive, values ^ sign, ~values).astype(values.dtype)
        return numbers
    restored_signs: npt.NDArray[Any] = values ^ sign
    return restored_signs


@njit(cache=True, nogil=True)
def _add_escaped_lengths(offsets: Offsets, data: Bytes, lengths: Cursor) -> None:
    for row in range(len(lengths)):
        zeros = 0
        for position in range(offsets[row], offsets[row + 1]):
            if data[position] == 0:
                zeros += 1
        lengths[row] += offsets[row + 1] - offsets[row] + zeros + 2


@njit(cache=True, nogil=True)
def _write_escaped(offsets: Offsets, data: Bytes, out: Bytes, cursor: Cursor) -> None:
    for row in range(len(cursor)):
        at = cursor[row]
        for position in range(offsets[row], offsets[row + 1]):
            byte = data[position]
            out[at] = byte
            at += 1
            if byte == 0:
                out[at] = 0xFF
                at += 1
        out[at] = 0
        out[at + 1] = 0
        cursor[row] = at + 2


@njit(cache=True, nogil=True)
def _write_fixed(values: Bytes, out: Bytes, cursor: Cursor) -> None:
    rows, width = values.shape
    for row in range(rows):
        at = cursor[row]
        for position in range(width):
            out[at + position] = values[row, position]
        cursor[row] = at + width


@njit(cache=True, nogil=True)
def _read_fixed(data: Bytes, ends: Cursor, cursor: Cursor, values: Bytes) -> bool:
    rows, width = values.shape
    for row in range(rows):
        at = cursor[row]
        if at + width > ends[row]:
            return False
        for position in range(width):
            values[row, position] = data[at + position]
        cursor[row] = at + width
    return True


@njit(cache=True, nogil=True)
def _measure_escaped(data: Bytes, ends: Cursor, cursor: Cursor, lengths: Cursor) -> bool:
    """Set the plain length of each text and move the cursor behind it."""
    for row in range(len(cursor)):
        at, length = cursor[row], 0
        while True:
            if at >= ends[row]:
                return False
            if data[at] != 0:
                at += 1
                length += 1
                continue
            if at + 1 >= ends[row]:
                return False
            if data[at + 1] == 0:
                break
            if data[at + 1] != 0xFF:
                return False
            at += 2
            length += 1
        lengths[row] = length
        cursor[row] = at + 2
    return True


@njit(cache=True, nogil=True)
def _read_escaped(data: Bytes, starts: Cursor, offsets: Offsets, out: Bytes) -> None:
    for row in range(len(starts)):
        at = starts[row]
        for position in range(offsets[row], offsets[row + 1]):
            out[position] = data[at]
            at += 2 if data[at] == 0 else 1
