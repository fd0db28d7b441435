"""Arrow values as Python has them, exactly.

As Arrow's own `as_py` and `to_pylist`, but for what Python's date and time cannot say: years outside 1 to 9999, and
nanoseconds of a TIME(9), or of a TIMESTAMP(9) where pandas is not installed. Such a value is the text that JSON has for
it ("+10000-01-01", "12:00:00.000000001"), which writers take back.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa

from headrace.tablelayer.model.rows.nested import entries, is_nested, row_fields
from headrace.tablelayer.model.types.far_years import date_text, time_text, timestamp_text

_PLAIN = {
    kind.id
    for kind in (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary()
    )
}  # fmt: skip
"""Types that have no times in them, to be looked up without hashing the type, which takes longer than the value."""


def python_value(value: pa.Scalar) -> Any:
    """One value; None for null."""
    if value.type.id in _PLAIN or not _has_times(value.type):
        return value.as_py()
    (found,) = _values(pa.array([value], value.type))
    return found


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column."""
    if not _has_times(column.type):
        values: list[Any] = column.to_pylist()
        return values
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [value for chunk in chunks for value in _values(chunk)]


def python_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as dicts by the names of the columns."""
    names, columns = rows.schema.names, [python_values(column) for column in rows.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


@cache
def _has_times(kind: pa.DataType) -> bool:
    """Whether a type has dates or times in it."""
    if pa.types.is_struct(kind):
        return any(_has_times(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _has_times(kind.key_type) or _has_times(kind.item_type)
    return _has_times(kind.value_type) if is_nested(kind) else bool(pa.types.is_temporal(kind))


def _values(array: pa.Array) -> list[Any]:
    kind = array.type
    loses_silently = pa.types.is_time64(kind) and kind.unit == "ns"
    if not loses_silently and not is_nested(kind):
        try:
            values: list[Any] = array.to_pylist()
        except (OverflowError, ValueError):
            return [_one(array[row : row + 1]) for row in range(len(array))]
        return values
    if not is_nested(kind):
        return [_one(array[row : row + 1]) for row in range(len(array))]
    present = array.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        parts = zip(*map(python_values, row_fields(array)), strict=True)
        made: list[Any] = [dict(zip(names, each, strict=True)) for each in parts]
    else:
        counts, inner = entries(array)
        flat = python_values(inner[0])
        if pa.types.is_map(kind):
            flat = list(zip(flat, python_values(inner[1]), strict=True))
        ends = counts.cumsum().tolist()
        made = [flat[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]
    return [value if is_there else None for value, is_there in zip(made, present, strict=True)]


def _one(single: pa.Array) -> Any:
    """The value of an array of one date or time."""
    (value,) = single
    kind = single.type
    if not value.is_valid:
        return None
    if not (pa.types.is_time64(kind) and kind.unit == "ns" and value.value % 1000):
        try:
            return value.as_py()
        except (OverflowError, ValueError):
            pass
    ticks = single.view(pa.int32() if kind.bit_width == 32 else pa.int64())[0].as_py()
    if pa.types.is_date32(kind):
        return date_text(ticks)
    if pa.types.is_time(kind):
        return time_text(ticks, 9)
    return timestamp_text(ticks * _NANOS[kind.unit], zoned=kind.tz is not None)


_NANOS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
