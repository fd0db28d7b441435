"""Statistics of a batch: the number of nulls and the bounds of the values of each column.

A reader with a filter skips batches in which no row can match. The server computes statistics from the rows that it
stores and never takes them from a writer. A text is cut to 32 bytes (the upper bound is then rounded up); flags tell
which bounds are values of the batch. NaN does not count in the bounds of FLOAT and DOUBLE; a flag tells whether there
is any. Values are compared as Python's int, float and bytes, in one common form for all precisions of a kind. BOOLEAN
is 0 or 1, DATE is days, TIME and TIMESTAMP are nanoseconds, DECIMAL is in units of 10^-38. Texts are UTF-8, which
sorts by code points. On disk, big endian:

    uint8 version (1), uint8 zero, uint16 number of columns.
    Per column: int32 column id, int32 null count, uint8 flags, uint8 and uint8 length of the two bounds, uint8 zero.
    Then the bounds, in the same order: integers of 8 bytes (16 for DECIMAL), doubles, or bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from struct import Struct, error
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.errors import DecodeError
from headrace.tablelayer.model.arrays.arrays import fixed_values, validity
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.types.column_types import (
    BINARY_KINDS,
    FLOAT_KINDS,
    INTEGER_KINDS,
    TEXT_KINDS,
    TIMESTAMP_KINDS,
    DataType,
    TypeKind,
)

Bound = int | float | bytes

STATISTICS_FROM_ROWS: Final = 512
"""Minimum number of rows of a batch with statistics. Reading a smaller batch costs about as much as its statistics.
"""
AUTO_COLUMNS_MAX: Final = 8
"""Maximum number of columns that have statistics by default.

Each costs 1 to 3 ns per row, some hundredths of an append. Keys and times come first in most tables.
"""

_VERSION: Final = 1
_FRONT: Final = Struct(">BxH")
_COLUMN: Final = Struct(">iiBBBx")
_DOUBLE: Final = Struct(">d")
_TEXT_MAX: Final = 32
_BOUNDED, _LOWEST_EXACT, _HIGHEST_EXACT, _HAS_NAN = 1, 2, 4, 8
_VARIABLE: Final = TEXT_KINDS | BINARY_KINDS
_UNITS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


class ColumnStatistics(msgspec.Struct, frozen=True):
    """`lowest` and `highest` are None when there is no value or no bound is known (texts of 0xFF, NaN alone)."""

    row_count: int
    null_count: int
    lowest: Bound | None = None
    highest: Bound | None = None
    lowest_exact: bool = False
    highest_exact: bool = False
    has_nan: bool = False

    @property
    def value_count(self) -> int:
        return self.row_count - self.null_count


def automatic_columns(schema: Schema) -> tuple[str, ...]:
    """Return the columns that have statistics by default: the first ones of fixed width.

    Bounds of texts cost ten times as much as those of integers, and bounds of random texts exclude nothing.
    """
    fixed = [
        column.name
        for column in schema.columns
        if column.type.kind not in _VARIABLE and not column.type.is_nested
    ]
    return tuple(fixed[:AUTO_COLUMNS_MAX])


def compute(rows: pa.RecordBatch, schema: Schema, names: Collection[str]) -> bytes:
    """Return the encoded statistics of the named columns. `rows` has all of the schema's columns, and is valid.

    Nested columns have no statistics, even if they are named.
    """
    front: list[bytes] = [b""]
    bounds: list[bytes] = []
    for column, array in zip(schema.columns, rows.columns, strict=True):
        if column.name in names and not column.type.is_nested:
            flags, lowest, highest = _bounds(array, column.type)
            front.append(_COLUMN.pack(column.id, array.null_count, flags, len(lowest), len(highest)))
            bounds += (lowest, highest)
    front[0] = _FRONT.pack(_VERSION, len(front) - 1)
    return b"".join([*front, *bounds])


def of_rows(rows: pa.RecordBatch, columns: Sequence[Column]) -> dict[int, ColumnStatistics]:
    """Return the statistics of rows with these columns, by column id; nested columns have none."""
    found: dict[int, ColumnStatistics] = {}
    for column, array in zip(columns, rows.columns, strict=True):
        if not column.type.is_nested:
            flags, lowest, highest = _bounds(array, column.type)
            found[column.id] = _decoded(rows.num_rows, array.null_count, flags, lowest, highest, column.type)
    return found


def _decoded(
    row_count: int, null_count: int, flags: int, lowest: bytes, highest: bytes, data_type: DataType
) -> ColumnStatistics:
    is_bounded = bool(flags & _BOUNDED)
    return ColumnStatistics(
        row_count,
        null_count,
        _decode_bound(lowest, data_type) if is_bounded else None,
        _decode_bound(highest, data_type) if is_bounded else None,
        bool(flags & _LOWEST_EXACT),
        bool(flags & _HIGHEST_EXACT),
        bool(flags & _HAS_NAN),
    )


def _bounds(array: pa.Array, data_type: DataType) -> tuple[int, bytes, bytes]:
    """Return (flags, lowest, highest), encoded."""
    kind = data_type.kind
    nothing = 0, b"", b""
    if len(array) == array.null_count:
        return nothing
    if kind in _VARIABLE:
        return _variable_bounds(array)
    if kind is TypeKind.DECIMAL:
        found = _decimal_extremes(array, data_type)
        return _exact(*(value.to_bytes(16, "big", signed=True) for value in found))
    values = _present(array)
    if kind in FLOAT_KINDS:
        floats = values.view(np.float32 if kind is TypeKind.FLOAT else np.float64)
        low, high = float(floats.min()), float(floats.max())
        flags = 0
        if low != low:  # NaN wins over everything in numpy
            flags = _HAS_NAN
            floats = floats[~np.isnan(floats)]
            if not len(floats):
                return flags, b"", b""
            low, high = float(floats.min()), float(floats.max())
        return flags | _BOUNDED | _LOWEST_EXACT | _HIGHEST_EXACT, _DOUBLE.pack(low), _DOUBLE.pack(high)
    if kind is not TypeKind.BOOLEAN:
        values = values.view(f"<i{values.dtype.itemsize}")
    ends = int(values.min()), int(values.max())
    return _exact(*(value.to_bytes(8, "big", signed=True) for value in ends))


def _exact(lowest: bytes, highest: bytes) -> tuple[int, bytes, bytes]:
    return _BOUNDED | _LOWEST_EXACT | _HIGHEST_EXACT, lowest, highest


def _present(array: pa.Array) -> np.ndarray:
    values = fixed_values(array)
    valid = validity(array) if array.null_count else None
    return values if valid is None else values[valid]


def _decimal_extremes(array: pa.Array, data_type: DataType) -> tuple[int, int]:
    halves = _present(array).view("<i8").reshape(-1, 2)
    low, high = halves[:, 0], halves[:, 1]
    if bool((high == low >> 63).all()):
        return int(low.min()), int(low.max())
    top = high == high.min(), high == high.max()
    # The low half is unsigned; only the high half has the sign.
    ends = int(low[top[0]].view("<u8").min()), int(low[top[1]].view("<u8").max())
    return (int(high.min()) << 64) + ends[0], (int(high.max()) << 64) + ends[1]


def _variable_bounds(array: pa.Array) -> tuple[int, bytes, bytes]:
    found = pc.min_max(array.view(pa.binary()) if pa.types.is_string(array.type) else array)
    lowest, highest = found["min"].as_py(), found["max"].as_py()
    flags = _BOUNDED | _LOWEST_EXACT | _HIGHEST_EXACT
    if len(lowest) > _TEXT_MAX:
        lowest, flags = lowest[:_TEXT_MAX], flags & ~_LOWEST_EXACT
    if len(highest) > _TEXT_MAX:
        rounded = _next_prefix(highest[:_TEXT_MAX])
        if rounded is None:
            return 0, b"", b""
        highest, flags = rounded, flags & ~_HIGHEST_EXACT
    return flags, lowest, highest


def _next_prefix(prefix: bytes) -> bytes | None:
    """Return the least bytes that are greater than every text with this prefix; None if there are none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def decode(buffer: memoryview | bytes, schema: Schema, row_count: int) -> dict[int, ColumnStatistics]:
    """Return the statistics by column id of a batch of `row_count` rows written under `schema`. Raises DecodeError."""
    found: dict[int, ColumnStatistics] = {}
    if not len(buffer):
        return found
    try:
        version, count = _FRONT.unpack_from(buffer, 0)
        if version != _VERSION:
            return found  # written by a later release: nothing is known
        at = _FRONT.size + count * _COLUMN.size
        types = {column.id: column.type for column in schema.columns}
        for index in range(count):
            column_id, nulls, flags, low_size, high_size = _COLUMN.unpack_from(
                buffer, _FRONT.size + index * _COLUMN.size
            )
            middle, end = at + low_size, at + low_size + high_size
            if end > len(buffer):
                raise ValueError("a bound is cut off")
            found[column_id] = _decoded(
                row_count, nulls, flags, bytes(buffer[at:middle]), bytes(buffer[middle:end]), types[column_id]
            )
            at = end
    except (error, KeyError, ValueError) as cause:
        raise DecodeError(f"the statistics of a batch are malformed: {cause}") from cause
    return found


def _decode_bound(data: bytes, data_type: DataType) -> Bound:
    if data_type.kind in _VARIABLE:
        return data
    if data_type.kind in FLOAT_KINDS:
        value: float = _DOUBLE.unpack(data)[0]
        return value
    return int.from_bytes(data, "big", signed=True) * factor_of(data_type)


@cache
def factor_of(data_type: DataType) -> int:
    """Return the factor from a type's stored integer to the common form."""
    kind = data_type.kind
    if kind is TypeKind.DECIMAL:
        return int(10 ** (38 - data_type.scale))
    if kind is TypeKind.TIME or kind in TIMESTAMP_KINDS:
        return _UNITS[data_type.unit]
    return 1


def scalar_of(bound: Bound, data_type: DataType) -> pa.Scalar:
    """Return an exact bound as a value of the column's Arrow type."""
    arrow = data_type.arrow()
    if isinstance(bound, bytes):
        array = pa.array([bound], pa.binary())
        return (array.view(arrow) if data_type.kind in TEXT_KINDS else array.cast(arrow))[0]
    if isinstance(bound, float):
        return pa.scalar(bound, arrow)
    stored = bound // factor_of(data_type)
    if data_type.kind is TypeKind.BOOLEAN:
        return pa.scalar(bool(stored))
    if data_type.kind is TypeKind.DECIMAL:
        raw = pa.py_buffer(stored.to_bytes(16, "little", signed=True))
        return pa.Array.from_buffers(arrow, 1, [None, raw])[0]
    return pa.array([stored], f"int{arrow.bit_width}").view(arrow)[0]


def comparable(source: Column, target: Column) -> bool:
    """Whether a column's bounds under an old schema also hold under another.

    Texts and numbers that became wider keep their order; padding BINARY(n) changes its values.
    """
    old, new = source.type, target.type
    if old == new or (old.kind is new.kind and old.kind is not TypeKind.BINARY):
        return True
    return any(old.kind in kinds and new.kind in kinds for kinds in (INTEGER_KINDS, FLOAT_KINDS, TEXT_KINDS))
