"""Conversion of rows to JSON text: one compiled pass that writes each row once, from Arrow buffers to one output
buffer.

The formats are in json_rows. The kernel reads the columns through their addresses: their number and types differ
between tables, and it must not be compiled for each table. The caller keeps the arrays alive.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import carray, njit

from headrace.tablelayer.model.arrays.arrays import bitmap, validity
from headrace.tablelayer.model.arrays.memory import (
    Int64,
    bit_at,
    byte_at,
    copy_bytes,
    int32_at,
    int64_at,
    pointer,
    put_byte,
    put_pair,
    put_word,
    word_at,
)
from headrace.tablelayer.model.json.scan import Array, Bytes
from headrace.tablelayer.model.rows.nested import entries, is_nested, row_fields

# The form in which a column is written. Other types are converted to one of these first.
(
    _INT8,
    _INT16,
    _INT32,
    _INT64,
    _BOOLEAN,
    _DECIMAL,
    _DATE,
    _TIME32,
    _TIME64,
    _TIMESTAMP,
    _STRING,
    _RAW,
    _BASE64,
) = range(13)

_SIMPLE_KINDS = {
    pa.int8(): _INT8, pa.int16(): _INT16, pa.int32(): _INT32, pa.int64(): _INT64, pa.bool_(): _BOOLEAN,
    pa.date32(): _DATE, pa.string(): _STRING, pa.binary(): _BASE64,
}  # fmt: skip

# Columns of the table that describes the columns to the kernel.
_KIND, _OFFSET, _VALIDITY, _VALUES, _DATA, _SCALE, _UNITS, _ZONED, _NAME_START, _NAME_END = range(10)
_DESCRIPTION_WIDTH = 10

# The maximum length of a value's text, by kind; strings, raw text and base64 are measured.
_MAX_LENGTH = {
    _INT8: 4, _INT16: 6, _INT32: 11, _INT64: 20, _BOOLEAN: 5, _DECIMAL: 41, _DATE: 17,
    _TIME32: 20, _TIME64: 20, _TIMESTAMP: 44,
}  # fmt: skip
_UNITS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}

# Words that begin with these texts; the bytes behind them are overwritten.
_NULL, _TRUE, _FALSE = (
    np.uint64(int.from_bytes(text.ljust(8, b"\0"), "little")) for text in (b"null", b"true", b"false")
)
_SLACK = 8

_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_BASE64_LETTERS = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8
)
# The character after the backslash: 0 for characters without escape, 'u' for those without a short escape.
_ESCAPES = np.zeros(256, dtype=np.uint8)
_ESCAPES[:32] = ord("u")
for _character, _letter in {
    '"': '"',
    "\\": "\\",
    "\b": "b",
    "\f": "f",
    "\n": "n",
    "\r": "r",
    "\t": "t",
}.items():
    _ESCAPES[ord(_character)] = ord(_letter)
_DIGIT_PAIRS = np.frombuffer("".join(f"{pair:02d}" for pair in range(100)).encode(), dtype="<u2")
_POWERS = np.array([10**exponent for exponent in range(20)], dtype=np.uint64)


def rows_to_json(batch: pa.RecordBatch) -> pa.Array:
    """Return the rows as compact JSON objects, UTF-8: n binary values (large_binary from 2 GiB on).

    Equal to `json.dumps(row, separators=(",", ":"), ensure_ascii=False)` of rows with the values as in json_rows.
    Raises ValueError for an Arrow type that no table column has.
    """
    offsets, data = _write(batch.columns, _object_prefixes(tuple(batch.schema.names)), batch.num_rows, b"}")
    size = len(data)
    if size < 2**31:
        return pa.Array.from_buffers(
            pa.binary(),
            batch.num_rows,
            [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)],
            0,
        )
    return pa.Array.from_buffers(
        pa.large_binary(), batch.num_rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)], 0
    )


def plain_texts(values: pa.Array) -> pa.Array:
    """Return values as their texts in JSON, without the quotes of a date or time: n strings, null for null."""
    rows = rows_to_json(pa.RecordBatch.from_arrays([values], ["n"]))
    texts = pc.binary_slice(rows, len('{"n":'), -1).cast(pa.string())
    quoted = pc.starts_with(texts, '"')
    texts = pc.if_else(quoted, pc.utf8_slice_codeunits(texts, 1, -1), texts)
    return pc.if_else(pc.is_valid(values), texts, pa.scalar(None, pa.string()))


def _write(
    given: Sequence[pa.Array], prefixes: tuple[bytes, ...], count: int, closing: bytes
) -> tuple[Array, Bytes]:
    """Write each row: each value behind its prefix, and the closing byte, if any. Return (int64[n+1] offsets, data)."""
    columns = [_prepare(column) for column in given]
    names = np.frombuffer(b"".join(prefixes) + bytes(_SLACK), dtype=np.uint8)
    table = np.zeros((len(columns), _DESCRIPTION_WIDTH), dtype=np.int64)
    capacity = 2 * count
    name_start = 0
    for index, (prefix, (kind, array)) in enumerate(zip(prefixes, columns, strict=True)):
        _describe(table[index], kind, array)
        table[index, _NAME_START] = name_start
        name_start += len(prefix)
        table[index, _NAME_END] = name_start
        capacity += count * (len(prefix) + 4)  # 4: null, or the quotes
        if kind in _MAX_LENGTH:
            capacity += count * _MAX_LENGTH[kind]
        elif kind == _BASE64:
            capacity += _byte_length(array) // 3 * 4 + 4 * count
        else:
            capacity += _escaped_length(table[index], count)
    out = np.empty(capacity + _SLACK, dtype=np.uint8)
    offsets = np.empty(count + 1, dtype=np.int64)
    last = closing[0] if closing else 0
    size = int(_write_rows(table, names.ctypes.data, count, last, out.ctypes.data, offsets))
    if size > capacity:
        raise AssertionError(f"{size} bytes of JSON in a buffer of {capacity}")
    # The rest of the buffer was never touched, and untouched memory costs nothing.
    return offsets, out[:size]


@lru_cache(maxsize=256)
def _object_prefixes(names: tuple[str, ...]) -> tuple[bytes, ...]:
    """Return the text before each value of an object with these fields."""
    return tuple(
        ("," if index else "{").encode() + json.dumps(name, ensure_ascii=False).encode() + b":"
        for index, name in enumerate(names)
    )


def _nested_text(array: pa.Array) -> pa.Array:
    """Return rows, lists or maps as their JSON text: n texts, undefined under nulls."""
    arrow_type, count = array.type, len(array)
    if pa.types.is_struct(arrow_type):
        names = tuple(field.name for field in arrow_type)
        offsets, data = _write(row_fields(array), _object_prefixes(names), count, b"}")
    else:
        counts, parts = entries(array)
        prefixes: tuple[bytes, ...] = (b",",)
        brackets, closing = b"[]", b""
        if pa.types.is_map(arrow_type):
            is_text = pa.types.is_string(arrow_type.key_type)
            brackets, prefixes, closing = (
                (b"{}", (b",", b":"), b"") if is_text else (b"[]", (b",[", b","), b"]")
            )
        inner_offsets, inner = _write(parts, prefixes, len(parts[0]), closing)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        bounds = inner_offsets[ends]
        # Each value with entries loses its first comma and gets two brackets.
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.diff(bounds) - (counts > 0) + 2)])
        data = np.empty(int(offsets[-1]), np.uint8)
        _bracket(bounds, inner, brackets[0], brackets[1], data, offsets)
    if len(data) >= 2**31:
        raise ValueError(f"{len(data)} bytes of JSON in one nested column; a batch has at most 2 GiB")
    valid = array.buffers()[0] if array.null_count else None
    if valid is not None and array.offset:
        valid = bitmap(validity(array))
    return pa.Array.from_buffers(
        pa.string(), count, [valid, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    )


def _prepare(array: pa.Array) -> tuple[int, pa.Array]:
    """Return the form in which a column is written, and the array to write."""
    kind = array.type
    simple = _SIMPLE_KINDS.get(kind)
    if simple is not None:
        return simple, array
    if pa.types.is_decimal128(kind):
        return _DECIMAL, array
    if pa.types.is_floating(kind):
        text = pc.cast(array, pa.string())
        finite = pc.fill_null(pc.is_finite(array), True)
        if not pc.all(finite).as_py():
            words = pc.if_else(
                pc.is_nan(array), '"NaN"', pc.if_else(pc.greater(array, 0), '"Infinity"', '"-Infinity"')
            )
            text = pc.if_else(finite, text, words)
        return _RAW, text
    if pa.types.is_time32(kind):
        return _TIME32, array
    if pa.types.is_time64(kind):
        return _TIME64, array
    if pa.types.is_timestamp(kind):
        return _TIMESTAMP, array
    if pa.types.is_fixed_size_binary(kind):
        return _BASE64, array.cast(pa.binary())
    if pa.types.is_large_string(kind):
        return _STRING, array.cast(pa.string())
    if pa.types.is_large_binary(kind):
        return _BASE64, array.cast(pa.binary())
    if is_nested(kind):
        return _RAW, _nested_text(array)
    raise ValueError(f"the Arrow type {kind} is not a type of a table's column")


def _describe(row: np.ndarray, kind: int, array: pa.Array) -> None:
    buffers = array.buffers()
    row[_KIND] = kind
    row[_OFFSET] = array.offset
    row[_VALIDITY] = buffers[0].address if buffers[0] is not None and array.null_count else 0
    row[_VALUES] = buffers[1].address if buffers[1] is not None else 0
    if len(buffers) == 3:
        row[_DATA] = buffers[2].address if buffers[2] is not None else 0
    if kind == _DECIMAL:
        row[_SCALE] = array.type.scale
    elif kind in (_TIME32, _TIME64, _TIMESTAMP):
        row[_UNITS] = _UNITS_PER_SECOND[array.type.unit]
        row[_ZONED] = int(kind == _TIMESTAMP and array.type.tz is not None)


def _byte_length(array: pa.Array) -> int:
    if not len(array):
        return 0
    offsets = np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
    return int(offsets[-1]) - int(offsets[0])


@njit(cache=True, nogil=True)
def _escaped_length(row: Array, count: int) -> Int64:
    """Return the maximum number of bytes that `count` strings of a column take with their escapes."""
    if count == 0:
        return 0
    first = np.int64(int32_at(row[_VALUES], row[_OFFSET]))
    last = np.int64(int32_at(row[_VALUES], row[_OFFSET] + count))
    if last == first:
        return 0
    text = carray(pointer(row[_DATA] + first), last - first, np.uint8)
    controls = 0
    marked = 0
    for byte in text:
        controls += byte < 32
        marked += (byte == 34) | (byte == 92)
    # Without escapes: a negative scale marks a column that is copied unchanged.
    row[_SCALE] = -1 if controls + marked == 0 else 0
    return (last - first) + 5 * controls + marked


@njit(cache=True, nogil=True)
def _put_unsigned(at: Int64, value: Any, width: int) -> Int64:
    """Write `value` (uint64) with at least `width` digits to the address `at`. Return the address after it."""
    hundred = np.uint64(100)
    length = width
    while length < 20 and value >= _POWERS[length]:
        length += 1
    end = at + length
    left = end
    while left - at >= 2:
        left -= 2
        quotient = value // hundred
        put_pair(left, _DIGIT_PAIRS[value - quotient * hundred])
        value = quotient
    if left > at:
        put_byte(at, 48 + np.uint8(value % np.uint64(10)))
    return end


@njit(cache=True, nogil=True)
def _put_signed(at: Int64, value: Any) -> Int64:
    magnitude = np.uint64(value)
    if value < 0:
        put_byte(at, 45)
        at += 1
        magnitude = ~magnitude + np.uint64(1)
    return _put_unsigned(at, magnitude, 1)


@njit(cache=True, nogil=True)
def _put_two(at: Int64, value: Any) -> Int64:
    put_pair(at, _DIGIT_PAIRS[value])
    return at + 2


@njit(cache=True, nogil=True)
def _put_decimal(at: Int64, low: Any, high: Any, scale: int) -> Int64:
    """Write a 128-bit unscaled value with `scale` digits after the point."""
    low = np.uint64(low)
    if high < 0:
        put_byte(at, 45)
        at += 1
        low = ~low + np.uint64(1)
        high = ~high + (1 if low == np.uint64(0) else 0)
    upper = np.uint64(high)
    if upper == np.uint64(0) and scale < 20:
        if scale == 0:
            return _put_unsigned(at, low, 1)
        whole = low // _POWERS[scale]
        at = _put_unsigned(at, whole, 1)
        put_byte(at, 46)
        return _put_unsigned(at + 1, low - whole * _POWERS[scale], scale)
    start = at
    if upper == np.uint64(0):
        at = _put_unsigned(at, low, 1)
    else:
        # Long division of four 32-bit limbs by 10^9: three times 9 digits and the rest.
        mask = np.uint64(0xFFFFFFFF)
        shift = np.uint64(32)
        billion = np.uint64(1_000_000_000)
        limbs = (upper >> shift, upper & mask, low >> shift, low & mask)
        first, second, third, fourth = limbs
        parts = np.empty(5, dtype=np.uint64)
        for index in range(4):
            value = first
            first = value // billion
            rest = value - first * billion
            value = (rest << shift) | second
            second = value // billion
            rest = value - second * billion
            value = (rest << shift) | third
            third = value // billion
            rest = value - third * billion
            value = (rest << shift) | fourth
            fourth = value // billion
            parts[index] = value - fourth * billion
        parts[4] = fourth
        top = 4
        while top > 0 and parts[top] == np.uint64(0):
            top -= 1
        at = _put_unsigned(at, parts[top], 1)
        for index in range(top - 1, -1, -1):
            at = _put_unsigned(at, parts[index], 9)
    missing = scale + 1 - (at - start)
    if missing > 0:
        for index in range(at - 1, start - 1, -1):
            put_byte(index + missing, byte_at(index, 0))
        for index in range(start, start + missing):
            put_byte(index, 48)
        at += missing
    if scale > 0:
        for index in range(at - 1, at - scale - 1, -1):
            put_byte(index + 1, byte_at(index, 0))
        put_byte(at - scale, 46)
        at += 1
    return at


@njit(cache=True, nogil=True)
def _put_date(at: Int64, days: Any) -> Int64:
    """Write a date of the proleptic Gregorian calendar (Howard Hinnant's civil_from_days)."""
    shifted = days + 719_468
    era = shifted // 146_097
    day_of_era = shifted - era * 146_097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_index = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_index + 2) // 5 + 1
    month = month_index + 3 if month_index < 10 else month_index - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    if 0 <= year <= 9999:
        at = _put_two(at, year // 100)
        at = _put_two(at, year % 100)
    else:
        put_byte(at, 45 if year < 0 else 43)
        at = _put_unsigned(at + 1, np.uint64(abs(year)), 4)
    put_byte(at, 45)
    at = _put_two(at + 1, month)
    put_byte(at, 45)
    return _put_two(at + 1, day)


@njit(cache=True, nogil=True)
def _put_time(at: Int64, seconds: Any, part: Any, units: int) -> Int64:
    """Write HH:MM:SS and the fraction: none for whole-second units, else 3 digits, or 6 or 9 when needed."""
    at = _put_two(at, seconds // 3600)
    put_byte(at, 58)
    at = _put_two(at + 1, seconds // 60 % 60)
    put_byte(at, 58)
    at = _put_two(at + 1, seconds % 60)
    if units == 1:
        return at
    digits = 3 if units == 1_000 else 6 if units == 1_000_000 else 9
    while digits > 3 and part % 1000 == 0:
        part //= 1000
        digits -= 3
    put_byte(at, 46)
    return _put_unsigned(at + 1, np.uint64(part), digits)


@njit(cache=True, nogil=True)
def _put_escaped(at: Int64, source: Int64, length: Int64) -> Int64:
    for index in range(length):
        byte = byte_at(source, index)
        escape = _ESCAPES[byte]
        if escape == 0:
            put_byte(at, byte)
            at += 1
            continue
        put_byte(at, 92)
        put_byte(at + 1, escape)
        at += 2
        if escape == 117:
            put_byte(at, 48)
            put_byte(at + 1, 48)
            put_byte(at + 2, _HEX[byte >> 4])
            put_byte(at + 3, _HEX[byte & 15])
            at += 4
    return at


@njit(cache=True, nogil=True)
def _put_base64(at: Int64, source: Int64, length: Int64) -> Int64:
    index = np.int64(0)
    while index < length:
        bits = np.int64(byte_at(source, index)) << 16
        if index + 1 < length:
            bits |= np.int64(byte_at(source, index + 1)) << 8
        if index + 2 < length:
            bits |= np.int64(byte_at(source, index + 2))
        put_byte(at, _BASE64_LETTERS[bits >> 18])
        put_byte(at + 1, _BASE64_LETTERS[(bits >> 12) & 63])
        put_byte(at + 2, _BASE64_LETTERS[(bits >> 6) & 63] if index + 1 < length else 61)
        put_byte(at + 3, _BASE64_LETTERS[bits & 63] if index + 2 < length else 61)
        at += 4
        index += 3
    return at


@njit(cache=True, nogil=True)
def _bracket(bounds: Array, inner: Bytes, opening: int, closing: int, out: Bytes, offsets: Array) -> None:
    """Copy inner[bounds[i]:bounds[i + 1]] without its first byte, in brackets, to out[offsets[i]:]."""
    for row in range(len(offsets) - 1):
        at = offsets[row]
        out[at] = opening
        at += 1
        for index in range(bounds[row] + 1, bounds[row + 1]):
            out[at] = inner[index]
            at += 1
        out[at] = closing


@njit(cache=True, nogil=True)
def _write_rows(table: Array, names: int, count: int, closing: int, out: int, offsets: Array) -> Int64:
    """Write all rows, each followed by the byte `closing` unless it is 0; offsets: int64[n + 1].

    Returns the number of bytes written. `names` and `out` are addresses; up to `_SLACK` bytes behind the output are
    touched.
    """
    position = np.int64(out)
    width = len(table)
    offsets[0] = 0
    for row in range(count):
        if width == 0:
            put_byte(position, 123)
            position += 1
        for column in range(width):
            description = table[column]
            length = description[_NAME_END] - description[_NAME_START]
            for index in range(0, length, 8):
                put_word(position + index, word_at(names, description[_NAME_START] + index))
            position += length
            at = row + description[_OFFSET]
            if description[_VALIDITY] != 0 and bit_at(description[_VALIDITY], at) == 0:
                put_word(position, _NULL)
                position += 4
                continue
            kind = description[_KIND]
            values = description[_VALUES]
            if kind in (_STRING, _RAW, _BASE64):
                start = np.int64(int32_at(values, at))
                length = np.int64(int32_at(values, at + 1)) - start
                source = description[_DATA] + start
                if kind == _RAW:
                    position = copy_bytes(source, position, length)
                    continue
                put_byte(position, 34)
                position += 1
                if kind == _BASE64:
                    position = _put_base64(position, source, length)
                elif description[_SCALE] < 0:
                    position = copy_bytes(source, position, length)
                else:
                    position = _put_escaped(position, source, length)
                put_byte(position, 34)
                position += 1
            elif kind == _INT64:
                position = _put_signed(position, int64_at(values, at))
            elif kind == _INT32:
                position = _put_signed(position, np.int64(int32_at(values, at)))
            elif kind == _DECIMAL:
                low = int64_at(values, 2 * at)
                high = int64_at(values, 2 * at + 1)
                position = _put_decimal(position, low, high, description[_SCALE])
            elif kind == _DATE:
                put_byte(position, 34)
                position = _put_date(position + 1, np.int64(int32_at(values, at)))
                put_byte(position, 34)
                position += 1
            elif kind == _TIMESTAMP:
                units = description[_UNITS]
                ticks = int64_at(values, at)
                seconds = ticks // units
                days = seconds // 86_400
                put_byte(position, 34)
                position = _put_date(position + 1, days)
                put_byte(position, 84)
                position = _put_time(position + 1, seconds - days * 86_400, ticks - seconds * units, units)
                if description[_ZONED] != 0:
                    put_byte(position, 90)
                    position += 1
                put_byte(position, 34)
                position += 1
            elif kind in (_TIME32, _TIME64):
                units = description[_UNITS]
                ticks = np.int64(int32_at(values, at)) if kind == _TIME32 else int64_at(values, at)
                # A time of day is below 24 h; a larger one would not fit into the text.
                seconds = ticks // units % 86_400
                put_byte(position, 34)
                position = _put_time(position + 1, seconds, ticks - ticks // units * units, units)
                put_byte(position, 34)
                position += 1
            elif kind == _BOOLEAN:
                if bit_at(values, at) != 0:
                    put_word(position, _TRUE)
                    position += 4
                else:
                    put_word(position, _FALSE)
                    position += 5
            elif kind == _INT8:
                position = _put_signed(position, np.int64(np.int8(byte_at(values, at))))
            else:
                low_byte = np.int64(byte_at(values, 2 * at))
                high_byte = np.int64(np.int8(byte_at(values, 2 * at + 1)))
                position = _put_signed(position, (high_byte << 8) | low_byte)
        if closing != 0:
            put_byte(position, closing)
            position += 1
        offsets[row + 1] = position - out
    return position - out
