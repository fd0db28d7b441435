"""Casts of Arrow arrays to a column's type: Arrow's safe casts, and conversions where those are too strict or too lax.

A value keeps its meaning or is refused. Its conversion does not depend on its neighbours. Raises Arrow's errors.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.types.column_types import from_arrow, more_digits
from headrace.tablelayer.model.types.far_years import nanos_of

ARROW_ERRORS = (
    pa.ArrowInvalid,
    pa.ArrowTypeError,
    pa.ArrowNotImplementedError,
    OverflowError,
    TypeError,
    ValueError,
)
"""Errors of making and casting arrays for values that do not fit."""

ACCEPTED = {
    "boolean": {"boolean"},
    "integer": {"integer", "float", "decimal"},
    "float": {"float", "integer", "decimal"},
    "decimal": {"decimal", "integer", "float", "text"},
    "text": {"text"},
    "bytes": {"bytes"},
    "date": {"date", "text", "timestamp"},
    "time": {"time", "text"},
    "timestamp": {"timestamp", "text", "date", "integer"},
}
"""The families of values that `convert` tries for each family of columns."""

_FAR_YEAR = r"^([+-][0-9]{4,9}|1677|2262)-"
"""Years that Arrow's parser does not read: signed ones, and the first and last year of nanoseconds."""
_WITH_ZONE = r"[T ][0-9:.]+ *(Z|[+-][0-9]{2}(:?[0-9]{2})?)$"


def family(arrow_type: pa.DataType) -> str:
    """Return the family of an Arrow type: a key of `ACCEPTED`, "null" or "other"."""
    types = pa.types
    tests = (
        ("null", types.is_null),
        ("boolean", types.is_boolean),
        ("integer", types.is_integer),
        ("float", types.is_floating),
        ("decimal", types.is_decimal),
        ("text", lambda t: types.is_string(t) or types.is_large_string(t) or types.is_string_view(t)),
        (
            "bytes",
            lambda t: (
                types.is_binary(t)
                or types.is_large_binary(t)
                or types.is_fixed_size_binary(t)
                or types.is_binary_view(t)
            ),
        ),
        ("date", types.is_date),
        ("time", types.is_time),
        ("timestamp", types.is_timestamp),
    )
    for name, test in tests:
        if test(arrow_type):
            return name
    return "other"


def convert(array: Any, target: pa.DataType) -> Any:
    """Convert an array (chunked or not) of an accepted family to the type `target`."""
    given, wanted = family(array.type), family(target)
    if wanted == "decimal" and given == "float":
        return _exact_decimal(array, target)
    if wanted == "float":
        return _float(array, target)
    if wanted == "decimal" and given == "integer":
        array = array.cast(pa.decimal128(20, 0))
    if wanted == "date" and given == "timestamp":
        return _date(array, target)
    if given == "text" and wanted in ("date", "timestamp"):
        return _by_mask(
            array, pc.match_substring_regex(array, pattern=_FAR_YEAR), target, _far_moments, _moments
        )
    if wanted == "timestamp" and given == "integer":
        return _of_milliseconds(array, target)
    if wanted == given == "timestamp" or wanted == given == "time":
        return _with_all_digits(array, target)
    if wanted == "time" and given == "text":
        instants = _parsed(
            pc.binary_join_element_wise("1970-01-01T", array.cast(pa.string()), ""), target.unit, None
        )
        exact = pa.time64(instants.type.unit) if instants.type.unit in ("us", "ns") else target
        return _with_all_digits(instants.cast(exact), target)
    return array.cast(target, safe=True)


def _of_milliseconds(array: Any, target: pa.DataType) -> Any:
    """Convert milliseconds since 1970, which are an instant."""
    if target.tz is None:
        raise pa.ArrowInvalid(
            "a number is an instant: give a date and time, or declare the column TIMESTAMP_LTZ"
        )
    return _with_all_digits(array.cast(pa.int64()).cast(pa.timestamp("ms", target.tz)), target)


def _with_all_digits(array: Any, target: pa.DataType) -> Any:
    try:
        return array.cast(target, safe=True)
    except pa.ArrowInvalid as error:
        if "would lose data" not in str(error):
            raise
        fraction = "." + "1" * (6 if _is_of_microseconds(array) else _DIGITS[array.type.unit])
        raise pa.ArrowInvalid(f"it has {more_digits(from_arrow(target), fraction)}") from None


def _is_of_microseconds(array: Any) -> bool:
    """Return whether nanoseconds, which pandas keeps by default, are whole microseconds."""
    if array.type.unit != "ns":
        return False
    numbers = array.cast(pa.int64())
    return bool(pc.all(pc.equal(pc.multiply(pc.divide(numbers, 1000), 1000), numbers)).as_py())


def first_unfit(array: Any, target: pa.DataType) -> int | None:
    """Return the first row that cannot be converted, found by bisection."""
    if len(array) == 0:
        return None
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(array.slice(low, middle - low), target):
            low = middle
        else:
            high = middle
    return None if _fits(array.slice(low, 1), target) else low


def _fits(array: Any, target: pa.DataType) -> bool:
    try:
        convert(array, target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return False
    return True


def _float(array: Any, target: pa.DataType) -> Any:
    given = family(array.type)
    source = array
    if given == "decimal":
        source = array.cast(pa.string())  # Arrow's own cast multiplies: 0.83 becomes 0.8300000000000001
    converted = source.cast(target)
    infinite = pc.is_inf(converted)
    if given == "float":
        infinite = pc.and_kleene(infinite, pc.is_finite(array))
    if given in ("float", "decimal") and pc.any(infinite).as_py():
        raise pa.ArrowInvalid(f"it is out of range of {target}")
    return converted


def _exact_decimal(array: Any, target: pa.DataType) -> Any:
    converted = array.cast(target)
    back = converted.cast(array.type)
    same = pc.or_kleene(pc.equal(back, array), pc.is_null(array))
    if not pc.all(same).as_py():
        row = pc.index(pc.fill_null(same, False), False).as_py()
        raise pa.ArrowInvalid(f"row {row}: the float is not exactly a number with {target.scale} decimals")
    return converted


def _date(array: Any, target: pa.DataType) -> Any:
    """Convert timestamps at midnight, in their own zone, to dates."""
    local = array if array.type.tz is None else pc.local_timestamp(array)
    dates = local.cast(target)
    if not pc.all(pc.equal(dates.cast(local.type), local)).as_py() and array.null_count < len(array):
        raise pa.ArrowInvalid("it has a time of day")
    return dates


def _by_mask(array: Any, mask: Any, target: pa.DataType, of_those: Any, of_others: Any) -> Any:
    """Return `of_those(array, target)` where the mask is true, `of_others` elsewhere."""
    if not pc.any(mask).as_py():
        return of_others(array, target)
    mask = mask.fill_null(False)
    if isinstance(array, pa.ChunkedArray):
        array, mask = array.combine_chunks(), mask.combine_chunks()
    if pc.all(mask).as_py():
        return of_those(array, target)
    those, others = array.filter(mask), array.filter(pc.invert(mask))
    return pc.replace_with_mask(
        pc.replace_with_mask(pa.nulls(len(array), target), mask, of_those(those, target)),
        pc.invert(mask),
        of_others(others, target),
    )


def _moments(texts: Any, target: pa.DataType) -> Any:
    if not pa.types.is_timestamp(target):
        return texts.cast(target)
    if target.tz is None:
        return _instants(texts, target)
    zoned = pc.match_substring_regex(texts, pattern=_WITH_ZONE)
    return _by_mask(texts, zoned, target, _instants, _instants_of_utc)


def _instants(texts: Any, target: pa.DataType) -> Any:
    return _with_all_digits(_parsed(texts, target.unit, target.tz), target)


def _instants_of_utc(texts: Any, target: pa.DataType) -> Any:
    return _with_all_digits(pc.assume_timezone(_parsed(texts, target.unit, None), target.tz), target)


def _parsed(texts: Any, unit: str, zone: str | None) -> Any:
    """Return timestamps with as many digits as the texts have, and at least those of the unit."""
    try:
        return texts.cast(pa.timestamp(unit, zone))
    except pa.ArrowInvalid:
        if unit not in _FINER:
            raise
        return _parsed(texts, _FINER[unit], zone)


def _far_moments(texts: Any, target: pa.DataType) -> Any:
    """Parse signed years of up to nine digits, as the Kafka view has them (ISO 8601's expanded form)."""
    ticks: list[int | None] = []
    zoned = pa.types.is_timestamp(target) and target.tz is not None
    unit = 86_400 * 10**9 if pa.types.is_date(target) else _NANOS[target.unit]
    for text in texts.to_pylist():
        if text is None:
            ticks.append(None)
            continue
        try:
            nanos, has_zone = nanos_of(text)
        except ValueError as error:
            raise pa.ArrowInvalid(str(error)) from error
        if has_zone and not zoned:
            raise pa.ArrowInvalid("expected no zone offset")
        if nanos % unit:
            raise pa.ArrowInvalid("it has more decimal digits than the column")
        ticks.append(nanos // unit)
    try:
        return pa.array(ticks, pa.int32() if pa.types.is_date(target) else pa.int64()).cast(target)
    except OverflowError as error:
        raise pa.ArrowInvalid("it is out of range") from error


_FINER = {"s": "ms", "ms": "us", "us": "ns"}
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
_NANOS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
