"""Convert Python values to an array of a column's type: exactly, and each value independently of the others.

`pa.array` infers one type for a whole list, so that the result for a value depends on its neighbours. With a type it
truncates values that do not fit. Here values are grouped by their sort, each group becomes an array of its own Arrow
type, and that is converted as Arrow data is (`casts`).

Nulls are None, pandas' NaT and NA, and numpy's NaT. Numpy's numbers count as Python's, pandas' Timestamp keeps all its
nanoseconds, and a `pa.Scalar` counts as its value. A datetime with a zone is an instant; one without a zone is UTC in a
column of instants. A datetime is a date only at midnight (of its own zone). A time of day has no zone.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Hashable, Sequence
from decimal import Decimal
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.tablelayer.client.write.casts import ACCEPTED, ARROW_ERRORS, convert, family

_INTEGER_DIGITS_MAX = 76
"""Maximum number of digits of a whole number in a Decimal."""
_NULL = "null"
_Sort = Hashable
"""The sort of a value: one of the words of `_MAKERS`, or ("datetime64", unit), or ("arrow", type)."""


class MisfitError(ValueError):
    """The value at `row` does not fit."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


def array_of(values: Sequence[Any], target: pa.DataType) -> pa.Array:
    """Convert values to the Arrow type of a column that is not nested. MisfitError names the first misfit."""
    sorts = {kind: _sort_of_kind(kind) for kind in set(map(type, values))}
    distinct = set(sorts.values())
    if None not in distinct and len(distinct - {_NULL}) <= 1:
        only = next(iter(distinct - {_NULL}), _NULL)
        if any(sort == _NULL and kind is not type(None) for kind, sort in sorts.items()):
            values = [None if sorts[type(value)] == _NULL else value for value in values]
        return _of_sort(only, values, target)
    rows_of: dict[_Sort, list[int]] = {}
    for row, value in enumerate(values):
        rows_of.setdefault(sorts[type(value)] or _sort_of(value), []).append(row)
    arrays, misfits = [], list[MisfitError]()
    for sort, rows in rows_of.items():
        try:
            arrays.append(_of_sort(sort, [values[row] for row in rows], target))
        except MisfitError as error:
            misfits.append(MisfitError(rows[error.row], error.reason))
    if misfits:
        raise min(misfits, key=lambda error: error.row)
    order = np.concatenate([np.array(rows, np.int64) for rows in rows_of.values()])
    back: npt.NDArray[np.int64] = np.empty(len(values), np.int64)
    back[order] = np.arange(len(values))
    return pa.concat_arrays(arrays).take(pa.array(back))


@cache
def _sort_of_kind(kind: type) -> _Sort | None:
    """Return the sort of all values of a class; None if it depends on the value."""
    if kind is type(None) or (
        kind.__module__.startswith("pandas.") and kind.__name__ in ("NaTType", "NAType")
    ):
        return _NULL
    if issubclass(kind, (np.datetime64, pa.Scalar)) or hasattr(kind, "nanosecond"):
        return None
    for sort, kinds in _KINDS:
        if issubclass(kind, kinds):
            return sort
    return "other"


def _sort_of(value: Any) -> _Sort:
    if isinstance(value, np.datetime64):
        unit = np.datetime_data(value.dtype)[0]
        return _NULL if unit == "generic" else ("datetime64", unit)
    if isinstance(value, pa.Scalar):
        return ("arrow", value.type)
    return "nanoseconds" if value.nanosecond else "datetime"


_KINDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("boolean", (bool, np.bool_)),
    ("integer", (int, np.integer)),
    ("float", (float, np.floating)),
    ("decimal", (Decimal,)),
    ("text", (str,)),
    ("bytes", (bytes, bytearray, memoryview)),
    ("datetime", (datetime.datetime,)),
    ("date", (datetime.date,)),
    ("time", (datetime.time,)),
)


def _of_sort(sort: _Sort, values: Sequence[Any], target: pa.DataType) -> pa.Array:
    if sort == _NULL:
        return pa.nulls(len(values), target)
    make = _MAKERS.get(sort) or (
        _datetime64 if isinstance(sort, tuple) and sort[0] == "datetime64" else _arrow
    )
    try:
        return _made(make, values, target)
    except ARROW_ERRORS as error:
        if len(values) == 1:
            raise MisfitError(0, str(error)) from None
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _made(make, values[low:middle], target)
        except ARROW_ERRORS:
            high = middle
        else:
            low = middle
    try:
        _made(make, values[low:high], target)
    except ARROW_ERRORS as error:
        raise MisfitError(low, str(error)) from None
    raise AssertionError(f"values of the sort {sort} fit one by one, but not together")


_Maker = Callable[[Sequence[Any], pa.DataType], pa.Array]


def _made(make: _Maker, values: Sequence[Any], target: pa.DataType) -> pa.Array:
    if all(value is None for value in values):
        return pa.nulls(len(values), target)
    array = make(values, target)
    if array.type == target:
        return array
    given = family(array.type)
    if given == "null":
        return pa.nulls(len(array), target)
    if given not in ACCEPTED[family(target)]:
        raise TypeError("")
    return convert(array, target)


def _boolean(values: Sequence[Any], target: pa.DataType) -> pa.Array:
    return pa.array([None if value is None else bool(value) for value in values], pa.bool_())


def _integer(values: Sequence[Any], target: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, pa.int64())
    except OverflowError:
        if pa.types.is_decimal(target):
            return pa.array([None if value is None else Decimal(int(value)) for value in values], target)
        raise OverflowError("it has more than 64 bits") from None


def _float(values: Sequence[Any], target: pa.DataType) -> pa.Array:
    return pa.array([None if value is None else float(value) for value in values], pa.float64())


def _decimal(values: Sequence[Any], target: pa.DataType) -> pa.Array:
    wanted = family(target)
    if wanted == "float":
        given = [value is not None and value.is_finite() for value in values]
        texts = pa.array([None if value is None else str(value) for value in values], pa.string())
        found = texts.cast(target)
        for value, finite in zip(found, given, strict=True):
            if finite and value.as_py() in (float("inf"), -float("inf")):
                raise OverflowError(f"it is out of range of {target}")
        return found
    for value in values:
        if value is not None and not value.is_finite():
            raise ValueError("it is not a number")
    if wanted == "integer":
        return pa.array([None if value is None else _whole(value) for value in values], target)
    if wanted == "decimal":
        return pa.array(values, target)
    raise TypeError("")


def _whole(value: Decimal) -> int:
    if value.adjusted() > _INTEGER_DIGITS_MAX:
        raise OverflowError("it is out of range")
    if value != value.to_integral_value():
        raise ValueError("it is not a whole number")
    return int(value)


def _text(values: Sequence[Any], target: pa.DataType) -> pa.Array:
    return pa.array(values, pa.string())


def _bytes(values: Sequence[Any], target: pa.DataType) -> pa.Array:
    return pa.array([None if value is None else bytes(value) for value in values], pa.binary())


def _datetime(values: Sequence[Any], target: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(target) and target.tz is not None:
        return pa.array(values, pa.timestamp("us", "UTC"))
    if pa.types.is_date(target):
        if any(value is not None and value.time() != datetime.time() for value in values):
            raise ValueError("it has a time of day")
        return pa.array([None if value is None else value.date() for value in values], pa.date32())
    _refuse_zone(values)
    return pa.array(values, pa.timestamp("us"))


def _nanoseconds(values: Sequence[Any], target: pa.DataType) -> pa.Array:
    """Convert pandas' Timestamps. Their `value` is nanoseconds since 1970, in UTC if they have a zone."""
    zoned = pa.types.is_timestamp(target) and target.tz is not None
    if not zoned:
        _refuse_zone(values)
    numbers = pa.array([None if value is None else value.value for value in values], pa.int64())
    return numbers.cast(pa.timestamp("ns", "UTC" if zoned else None))


def _refuse_zone(values: Sequence[Any]) -> None:
    if any(value is not None and value.tzinfo is not None for value in values):
        raise ValueError("it has a time zone, but the column has none")


def _date(values: Sequence[Any], target: pa.DataType) -> pa.Array:
    return pa.array(values, pa.date32())


def _time(values: Sequence[Any], target: pa.DataType) -> pa.Array:
    _refuse_zone(values)
    return pa.array(values, pa.time64("us"))


def _datetime64(values: Sequence[Any], target: pa.DataType) -> pa.Array:
    given = np.array([np.datetime64("NaT") if value is None else value for value in values])
    unit = {"h": "s", "m": "s", "Y": "D", "M": "D", "W": "D"}.get(np.datetime_data(given.dtype)[0])
    return pa.array(given if unit is None else given.astype(f"datetime64[{unit}]"))


def _arrow(values: Sequence[Any], target: pa.DataType) -> pa.Array:
    kind = next(value.type for value in values if value is not None)
    array = pa.array(values, kind)
    if family(kind) == family(target) == "timestamp" and kind.tz is not None and target.tz is None:
        raise ValueError("it has a time zone, but the column has none")
    return array


def _other(values: Sequence[Any], target: pa.DataType) -> pa.Array:
    kind = next(type(value) for value in values if value is not None)
    raise TypeError(f"a {kind.__name__} cannot be a value of a column")


_MAKERS: dict[_Sort, _Maker] = {
    "boolean": _boolean, "integer": _integer, "float": _float, "decimal": _decimal, "text": _text, "bytes": _bytes,
    "datetime": _datetime, "nanoseconds": _nanoseconds, "date": _date, "time": _time, "other": _other,
}  # fmt: skip
