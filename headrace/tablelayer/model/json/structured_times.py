"""Dates and times as objects of their parts, which Debezium's connectors write with `time.precision.mode=structured`.

`{"year": 2024, "month": 2, "day": 29}`, with `hour`, `minute`, `second` and `nanos` for a time of day,
`offsetSeconds` for a zone, or `{"specialValue": "POSITIVE_INFINITY"}` alone. `precision` and `zoneId` add nothing and
are ignored. The rules are those for texts: an instant needs an offset, a timestamp without zone allows only a zero
offset, a date has no time of day, and nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json import scan as json_scan
from headrace.tablelayer.model.json import values as json_values
from headrace.tablelayer.model.json.rows import Field
from headrace.tablelayer.model.json.texts import FoundFields, find_fields
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.column_types import INT, STRING, TypeKind

Mask = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
Inside = Callable[[Numbers, FoundFields, int], Field]
"""A function that returns a field, by its number, of the objects in some rows of a column."""

_DATE, _TIME = ("year", "month", "day"), ("hour", "minute", "second")
_NAMES = (*_DATE, *_TIME, "nanos", "offsetSeconds")
_SPECIAL = len(_NAMES)
_COLUMNS = (
    *(Column(index, name, INT) for index, name in enumerate(_NAMES)),
    Column(_SPECIAL, "specialValue", STRING),
)
_INFINITIES = {b"POSITIVE_INFINITY": 1, b"NEGATIVE_INFINITY": -1}
_MONTHS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])
_OFFSET_MAX = 18 * 3600  # java.time.ZoneOffset
_SECONDS = 86_400


class Moments(msgspec.Struct, frozen=True):
    """Parts of n values, zero where there is no value.

    days: int64[n] since 1970-01-01; seconds: int64[n] of the day in UTC, which may be negative or beyond the day;
    nanos: int64[n]; signs: int8[n], 1 and -1 for the infinities.
    """

    days: Numbers
    seconds: Numbers
    nanos: Numbers
    signs: npt.NDArray[np.int8]


def read(field: Field, inside: Inside) -> Moments:
    """Return the parts of a column's objects. Raises RowError for the first that does not fit the column's kind."""
    rows, texts = field.containers()
    found = find_fields(texts, _COLUMNS)
    at = rows[: found.kinds.shape[1]]
    objects = _Objects(field, at, [inside(at, found, index) for index in range(len(_COLUMNS))])
    if found.error is not None:
        objects.fail_from(int(rows[found.kinds.shape[1]]))
    moments = objects.moments()
    if objects.failures:
        raise min(objects.failures, key=lambda error: error.index)
    return moments


class _Objects:
    """The fields of the objects in some rows of a column."""

    def __init__(self, field: Field, rows: Numbers, fields: Sequence[Field]) -> None:
        self.field, self.special = field, fields[_SPECIAL]
        self.failures: list[RowError] = []
        self.here = np.zeros(len(field.kinds), np.bool_)
        self.here[rows] = True
        self.values: dict[str, Numbers] = {}
        self.given: dict[str, Mask] = {}
        for name, inside in zip(_NAMES, fields, strict=False):
            numbers = np.zeros(len(self.here), np.int64)
            arguments = (inside.data, inside.starts, inside.lengths, inside.kinds)
            try:
                inside.check(json_values.integers(*arguments, 32, numbers, inside.failure))
            except RowError as error:
                self.failures.append(error)
            self.values[name], self.given[name] = numbers, inside.kinds > json_scan.NULL

    def fail_from(self, row: int) -> None:
        self._fail_at(row, json_values.WRONG_KIND)

    def _fail_at(self, row: int, code: int) -> None:
        try:
            self.field.fail_at(row, code)
        except RowError as error:
            self.failures.append(error)

    def _fail(self, bad: Mask, code: int) -> None:
        if bad.any():
            self._fail_at(int(np.argmax(bad)), code)

    def moments(self) -> Moments:
        kind, values = self.field.column.type.kind, self.values
        signs = self._signs(kind)
        finite = self.here & (signs == 0)
        code = {TypeKind.DATE: json_values.NOT_A_DATE, TypeKind.TIME: json_values.NOT_A_TIME}.get(
            kind, json_values.NOT_A_TIMESTAMP
        )
        dated, timed = self._all_of(_DATE), self._all_of(_TIME)
        wanted = {TypeKind.DATE: dated, TypeKind.TIME: timed}.get(kind, dated & timed)
        self._fail(finite & ~wanted, json_values.WRONG_KIND)
        if kind is TypeKind.TIME:
            self._fail(finite & (self.given["year"] | self.given["month"] | self.given["day"]), code)
        days, dates_sound = _days(*(values[name] for name in _DATE))
        hour, minute, second = (values[name] for name in _TIME)
        nanos, offset = values["nanos"], values["offsetSeconds"]
        sound = (hour >= 0) & (hour < 24) & (minute >= 0) & (minute < 60) & (second >= 0) & (second < 60)
        sound &= (nanos >= 0) & (nanos < 1_000_000_000) & (np.abs(offset) <= _OFFSET_MAX)
        if kind is not TypeKind.TIME:
            sound &= dates_sound
        self._fail(finite & wanted & ~sound, code)
        seconds = hour * 3600 + minute * 60 + second
        if kind is TypeKind.DATE:
            self._fail(finite & ((seconds != 0) | (nanos != 0)), json_values.NOT_A_DATE)
        if kind is TypeKind.TIMESTAMP_LTZ:
            self._fail(finite & ~self.given["offsetSeconds"], json_values.ZONE_MISSING)
            seconds = seconds - offset
        else:
            self._fail(finite & (offset != 0), json_values.ZONE_NOT_ALLOWED)
        if kind is not TypeKind.DATE:
            step = 10 ** (9 - self.field.column.type.precision)
            self._fail(finite & (nanos % step != 0), json_values.TOO_PRECISE)
        if kind is TypeKind.TIME:
            days = np.zeros(len(days), np.int64)
        days, seconds, nanos = (np.where(finite, each, 0) for each in (days, seconds, nanos))
        return Moments(days, seconds, nanos, signs)

    def _all_of(self, names: tuple[str, str, str]) -> Mask:
        first, second, third = names
        return self.given[first] & self.given[second] & self.given[third]

    def _signs(self, kind: TypeKind) -> npt.NDArray[np.int8]:
        """Return the signs of infinities. Other special values, and infinities of a time of day, are refused."""
        signs = np.zeros(len(self.here), np.int8)
        special = self.special
        for row in np.flatnonzero(special.kinds > json_scan.NULL).tolist():
            start, length = int(special.starts[row]), int(special.lengths[row])
            text = special.data[start : start + length].tobytes()
            sign = _INFINITIES.get(text, 0) if special.kinds[row] == json_scan.STRING else 0
            if sign == 0 or kind is TypeKind.TIME:
                self._fail_at(row, json_values.WRONG_KIND)
                break
            signs[row] = sign
        return signs


def _days(year: Numbers, month: Numbers, day: Numbers) -> tuple[Numbers, Mask]:
    """Return days since 1970-01-01 in the proleptic Gregorian calendar, of any year in 32 bits, and which are dates."""
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    sound = (month >= 1) & (month <= 12)
    lengths = _MONTHS[np.where(sound, month, 1) - 1] + (leap & (month == 2))
    sound &= (day >= 1) & (day <= lengths)
    shifted = year - (month <= 2)  # in years that begin in March the leap day is the last day
    era = shifted // 400
    of_era = shifted - era * 400
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + day_of_year - 719_468
    return days, sound
