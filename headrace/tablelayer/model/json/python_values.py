"""Arrow values as exact Python values.

They are those of Arrow's `as_py` and `to_pylist`, except where Python's date and time are too narrow: years outside 1
to 9999, and nanoseconds of a TIME(9), or of a TIMESTAMP(9) without pandas. Such a value becomes its text in JSON
("+10000-01-01", "12:00:00.000000001"), which writers accept.
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
"""Types without times, looked up by id because hashing the type takes longer than converting the value."""


def python_value(value: pa.Scalar) -> Any:
    """Return one value; None for null."""
    if value.type.id in _PLAIN or not _has_times(value.type):
        return value.as_py()
    (found,) = _values(pa.array([value], value.type))
    return found


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of a column."""
    if not _has_times(column.type):
        values: list[Any] = column.to_pylist()
        return values
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    return [value for chunk in chunks for value in _values(chunk)]


def python_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows as dicts by column name."""
    names, columns = rows.schema.names, [python_values(column) for column in rows.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


@cache
def _has_times(kind: pa.DataType) -> bool:
    """Whether a type is or contains a date or time."""
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
    """Return the value of an array of one date or time."""
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
