"""Values as Debezium's connectors write them: numbers or objects for dates and times, base64 for decimals.

The unit of a number comes from the schema around the record (`connect_schema`), else from the table's
`table.kafka.debezium.time-units` for the column, else from its `time-precision-mode` if that is unambiguous.
Otherwise it is the unit that a connector uses for a column like this one (`adaptive`). Then a value is refused if it
is plausible only in another unit: a number of milliseconds read as microseconds is a day in January 1970. A text in a
DECIMAL column is the number, or base64 of its unscaled value, according to the schema or the table's
`decimal-handling-mode`. With `auto` its form decides, and a text that can be both is refused. A decimal according to
the schema is also read in columns of other types: its digits in CHAR and STRING, its value in numbers that can hold
it. A time according to the schema becomes a text of ISO 8601 in CHAR and STRING. The option
`table.kafka.debezium.out-of-range-times` decides about dates before year 1 and after 9999, and about PostgreSQL's
infinities.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from headrace.tablelayer.model.arrays import unscaled
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json import scan as json_scan
from headrace.tablelayer.model.json import structured_times
from headrace.tablelayer.model.json import values as json_values
from headrace.tablelayer.model.json.connect_schema import (
    CONNECT_TIMESTAMP,
    DECIMAL,
    TIME_UNITS,
    VARIABLE_DECIMAL,
    ConnectSchema,
    time_type,
)
from headrace.tablelayer.model.json.extended import Wrapped, find_wrapped
from headrace.tablelayer.model.json.rows import Field
from headrace.tablelayer.model.json.scan import Array, Bytes
from headrace.tablelayer.model.json.texts import FoundFields, find_fields
from headrace.tablelayer.model.json.wide_decimals import are_wide, first_too_long, with_wide_texts
from headrace.tablelayer.model.json.write import plain_texts
from headrace.tablelayer.model.options.kafka_formats import DebeziumDecimals, DebeziumTime, OutOfRange
from headrace.tablelayer.model.options.table_options import TableOptions
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.column_types import (
    FLOAT_KINDS,
    INT,
    INTEGER_KINDS,
    STRING,
    TEXT_KINDS,
    TIMESTAMP_KINDS,
    DataType,
    TypeKind,
)

Mask = npt.NDArray[np.bool_]
Part = tuple[Mask, Callable[["DebeziumField"], pa.Array]]

_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
NO_NUMBERS = (DebeziumTime.ISOSTRING, DebeziumTime.STRUCTURED, DebeziumTime.PLAIN)
_EXAMPLES = {
    TypeKind.DATE: '"2024-09-19"',
    TypeKind.TIME: '"12:00:00.000"',
    TypeKind.TIMESTAMP: '"2024-09-19T12:00:00.000", or declare the column TIMESTAMP_LTZ for milliseconds since 1970',
}
_NUMBER_KINDS = INTEGER_KINDS | FLOAT_KINDS
_TEMPORAL_KINDS = TIMESTAMP_KINDS | {TypeKind.DATE, TypeKind.TIME}
_UNIT_NAMES = {"d": "days", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}

_DAY = 86_400
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01, 9999-12-31
PLAUSIBLE_DAYS = (-354_285, 376_199)  # years 1000 to 2999
NEAR_EPOCH_SECONDS = 4_102_445
"""Distance from 1970 in seconds, 47 days, below which a number is a date until 2100 in a unit 1,000 times larger."""
_INFINITE_DAYS = {-622_191_234: 1, -2_147_472_692: 1, -625_821_272: -1, -2_147_472_691: -1}
"""The numbers that PostgreSQL's connector writes for the dates `infinity` and `-infinity`, with their signs.

The two differ between snapshot and stream, because 32 bits cannot hold the dates.
"""
_INFINITE_TIMES = {
    sign * number: sign
    for sign, millis in ((1, 9_223_372_036_825_200), (-1, 9_223_372_036_832_400))
    for number in (millis, millis * 1000)
}
"""The same for timestamps, in milliseconds and in microseconds."""
_INFINITE_TEXTS = (b"+292269055-12-02", b"-5877611-06-21")
"""The texts of infinities that have the opposite sign."""
_DIGITS_MAX = 38


class Conventions(msgspec.Struct, frozen=True):
    """The way in which a connector writes values.

    units: by column, the unit of its numbers. schema: the schema around the rows, if any. extended: whether the rows
    are MongoDB's extended JSON, in which `{"$oid": "..."}` is a value.
    """

    time: DebeziumTime = DebeziumTime.ADAPTIVE
    decimals: DebeziumDecimals = DebeziumDecimals.AUTO
    out_of_range: OutOfRange = OutOfRange.REFUSE
    units: Mapping[str, str] = {}
    schema: ConnectSchema | None = None
    extended: bool = False

    @classmethod
    def of(
        cls, settings: TableOptions, schema: ConnectSchema | None = None, *, extended: bool = False
    ) -> Conventions:
        """Return the conventions of a table."""
        return cls(
            settings.debezium_time,
            settings.debezium_decimals,
            settings.debezium_out_of_range,
            settings.debezium_units,
            schema,
            extended,
        )

    def field(self, *arguments: Any) -> DebeziumField:
        """Return a field that reads a column's values with these conventions; for `json_to_rows`."""
        field = DebeziumField(*arguments)
        field.conventions = self
        return field

    def schema_of(self, column: str) -> ConnectSchema | None:
        """Return the schema of a column, or of a part inside of it (`tags[]`, `who.at`)."""
        if self.schema is None:
            return None
        found = self.schema.child(column)
        if found is None and column.endswith("[]"):
            outer = self.schema_of(column[:-2])
            return None if outer is None else outer.items or outer.values
        if found is None and "." in column:
            front, name = column.rsplit(".", 1)
            outer = self.schema_of(front)
            return None if outer is None else outer.child(name)
        return found


class DebeziumField(Field):
    """A `json_rows.Field` that also reads the other forms in which connectors write values."""

    conventions = Conventions()

    def convert(self) -> pa.Array:
        if self.conventions.extended and not self.column.type.is_nested:
            is_time = self.column.type.kind in _TEMPORAL_KINDS
            wrapped = find_wrapped(self.data, self.starts, self.lengths, self.kinds, timestamps=is_time)
            self._check_undefined(wrapped)
            if wrapped:
                parts = [(each.at, partial(_unwrapped, wrapped=each)) for each in wrapped]
                return self._merged(parts, DebeziumField._plain)
        return self._plain()

    def _check_undefined(self, wrapped: Sequence[Wrapped]) -> None:
        """Raise RowError for `{"$undefined": true}` in a column that is NOT NULL."""
        null = np.zeros(len(self.kinds), np.bool_)
        for each in wrapped:
            null |= each.at & (each.kinds <= json_scan.NULL)
        if null.any() and not self.column.nullable:
            row = int(np.argmax(null))
            raise RowError(
                row, self.column.name, f"{self.excerpt(row)} would be null, but the column is NOT NULL"
            )

    def _plain(self) -> pa.Array:
        kind = self.column.type.kind
        if kind is TypeKind.DECIMAL:
            return self._decimal()
        if kind in _TEMPORAL_KINDS:
            return self._temporal()
        if kind in _NUMBER_KINDS or kind in TEXT_KINDS:
            return self._number()
        return super().convert()

    def _merged(
        self, parts: Sequence[Part], others: Callable[[DebeziumField], pa.Array] = Field.convert
    ) -> pa.Array:
        """Return the values of all forms and of the other rows; the forms are disjoint.

        Raises RowError for the first value that does not fit.
        """
        wanted = [(mask, how) for mask, how in parts if mask.any()]
        rest = np.ones(len(self.kinds), np.bool_)
        for mask, _ in wanted:
            rest &= ~mask
        result: pa.Array | None = None
        failures: list[RowError] = []
        for mask, how in ((rest, others), *wanted):
            try:
                values = how(self._masked(mask) if wanted else self)
            except RowError as error:
                failures.append(error)
            else:
                result = values if result is None else pc.if_else(pa.array(mask), values, result)
        if failures:
            raise min(failures, key=lambda error: error.index)
        return result

    def _masked(self, mask: Mask) -> DebeziumField:
        """Return a field with the rows of a mask only; the others are missing."""
        kinds = np.where(mask, self.kinds, json_scan.MISSING).astype(np.uint8)
        field = self.conventions.field(self.column, self.data, self.starts.copy(), self.lengths.copy(), kinds)
        field.reading = self.reading
        return field

    def fail_first(self, bad: Mask, code: int) -> None:
        """Raise RowError for the first of these rows."""
        self.fail_at(int(np.argmax(bad)) if bad.any() else -1, code)

    def _decimal(self) -> pa.Array:
        text, container = self.kinds == json_scan.STRING, self.kinds == json_scan.CONTAINER
        schema = self.conventions.schema_of(self.column.name)
        mode, scale = self.conventions.decimals, self.column.type.scale
        coded = np.zeros(len(text), np.bool_)
        either = coded
        if schema is not None:
            if schema.name == DECIMAL:
                coded = text
                scale = scale if schema.scale is None else schema.scale
        elif mode is DebeziumDecimals.PRECISE:
            coded = text
        elif mode is DebeziumDecimals.AUTO and text.any():
            looks = np.zeros(len(text), np.uint8)
            _looks(self.data, self.starts, self.lengths, text, looks)
            coded, either = looks == _CODED, looks == _EITHER
        try:
            return self._merged(
                (
                    (coded, partial(DebeziumField._unscaled, scale=scale)),
                    (either, DebeziumField._ambiguous),
                    (container, DebeziumField._with_own_scale),
                )
            )
        except RowError as error:
            is_hint = mode is DebeziumDecimals.STRING and self.conventions.time is not DebeziumTime.PLAIN
            if not is_hint or schema is not None or not text[error.index]:
                raise
            option = TableOptions.debezium_decimals.name
            hint = f"; '{option}' = 'precise' reads what a connector writes by default"
            raise RowError(error.index, error.column, error.reason + hint) from None

    def _number(self) -> pa.Array:
        """Return numbers or texts, some of which may be decimals or times according to the schema."""
        schema = self.conventions.schema_of(self.column.name)
        name = None if schema is None else schema.name
        moment = time_type(name) if self.column.type.kind in TEXT_KINDS else None
        if moment is not None:
            return self._merged(
                ((self.kinds == json_scan.NUMBER, partial(DebeziumField._time_texts, kind=moment)),)
            )
        coded = own_scale = np.zeros(len(self.kinds), np.bool_)
        if name == DECIMAL:
            coded = self.kinds == json_scan.STRING
        if name == VARIABLE_DECIMAL or self.column.type.kind in _NUMBER_KINDS:
            own_scale = self.kinds == json_scan.CONTAINER
        scale = 0 if schema is None or schema.scale is None else schema.scale
        return self._merged(
            (
                (coded, partial(DebeziumField._unscaled, scale=scale)),
                (own_scale, DebeziumField._with_own_scale),
            )
        )

    def _time_texts(self, kind: DataType) -> pa.Array:
        """Return the ISO 8601 texts of dates and times from numbers, as for Avro. An infinity is a text, too."""
        column = dataclasses.replace(self.column, type=kind)
        conventions = msgspec.structs.replace(self.conventions, out_of_range=OutOfRange.KEEP)
        field = conventions.field(column, self.data, self.starts, self.lengths, self.kinds)
        signs = np.zeros(len(self.kinds), np.int8)
        texts = plain_texts(field._counted(signs))
        for sign, text in ((1, "infinity"), (-1, "-infinity")):
            texts = pc.if_else(pa.array(signs == sign), text, texts)
        row = first_too_long(texts, self.column.type)
        if row >= 0:
            raise RowError(row, self.column.name, f"{texts[row].as_py()} is longer than {self.column.type}")
        return texts

    def _ambiguous(self) -> pa.Array:
        row = int(np.argmax(self.kinds != json_scan.MISSING))
        raise RowError(
            row,
            self.column.name,
            f"{self.excerpt(row)} may be the number, or base64 of an unscaled value: choose one with "
            f"'{TableOptions.debezium_decimals.name}' = 'string' or 'precise', as in its decimal.handling.mode",
        )

    def _unscaled(self, scale: int) -> pa.Array:
        """Return values from base64 of unscaled values that have this scale."""
        own = self.column.type
        if own.kind is TypeKind.DECIMAL and scale == own.scale:
            given = self.kinds != json_scan.MISSING
            return self.array(self._words(*self._decoded(), given, own.precision))
        return self._of_scales(np.full(len(self.kinds), scale, np.int64))

    def _decoded(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes of base64 texts: (uint8, the offsets of n values in them)."""
        given = self.kinds != json_scan.MISSING
        offsets = np.zeros(len(self.starts) + 1, np.int64)
        out = np.zeros(int(self.lengths[given].sum(dtype=np.int64)) // 4 * 3, np.uint8)
        arguments = (self.data, self.starts, self.lengths, self.kinds)
        self.check(json_values.decode_base64(*arguments, -1, offsets, out, self.failure))
        return out, offsets

    def _words(self, data: np.ndarray, offsets: np.ndarray, given: Mask, digits_max: int) -> np.ndarray:
        """Return the numbers of unscaled values, int64[n, 2]."""
        words = np.zeros((len(given), 2), np.int64)
        row = int(unscaled.from_bytes(data, offsets[:-1], np.diff(offsets), given, digits_max, words))
        self.fail_at(row, json_values.OUT_OF_RANGE)
        return words

    def _with_own_scale(self) -> pa.Array:
        """Return values from objects of a scale and an unscaled value.

        This is Debezium's `VariableScaleDecimal`, used for PostgreSQL's NUMERIC without a precision.
        """
        rows, texts = self.containers()
        columns = (Column(0, "scale", INT), Column(1, "value", STRING))
        found = find_fields(texts, columns)
        wrong = (found.kinds != np.array([[json_scan.NUMBER], [json_scan.STRING]])).any(axis=0)
        sound = found.kinds.shape[1]
        if found.error is not None or wrong.any():
            first = int(np.argmax(wrong)) if wrong.any() else sound
            self.fail_at(int(rows[first]), json_values.WRONG_KIND)
        scale, value = self._inside(rows, found, 0), self._inside(rows, found, 1)
        scales = np.zeros(len(self.kinds), np.int64)
        arguments = (scale.data, scale.starts, scale.lengths, scale.kinds)
        self.check(json_values.integers(*arguments, 16, scales, self.failure))
        return value._of_scales(scales)

    def _inside(self, rows: np.ndarray, found: FoundFields, field: int) -> DebeziumField:
        """Return one field of the objects in these rows."""
        starts, lengths = np.zeros((2, len(self.kinds)), np.int32)
        kinds = np.zeros(len(self.kinds), np.uint8)
        starts[rows], lengths[rows] = found.starts[field], found.lengths[field]
        kinds[rows] = found.kinds[field]
        return self.conventions.field(self.column, self.data, starts, lengths, kinds)

    def _of_scales(self, scales: np.ndarray) -> pa.Array:
        """Return values from base64 of unscaled values with these scales.

        Raises RowError for a value that the column cannot hold exactly.
        """
        data, offsets = self._decoded()
        own, given = self.column.type, self.kinds != json_scan.MISSING
        wide = are_wide(np.diff(offsets), scales, given, own)
        given &= ~wide
        words = self._words(data, offsets, given, _DIGITS_MAX)
        result = pa.nulls(len(words), own.arrow())
        failures: list[int] = []
        for scale in np.unique(scales[given]).tolist():
            chosen = given & (scales == scale)
            at = np.flatnonzero(chosen)
            if abs(scale) > _DIGITS_MAX:
                failures.append(int(at[0]))
                continue
            buffers = [None, pa.py_buffer(words[at])]
            values = pa.Array.from_buffers(pa.decimal128(_DIGITS_MAX, scale), len(at), buffers, 0)
            try:
                result = pc.replace_with_mask(result, pa.array(chosen), of_decimals(values, own))
            except pa.ArrowInvalid:
                failures.append(int(at[first_that_does_not_fit(values, own)]))
        try:
            result = with_wide_texts(result, wide, data, offsets[:-1], np.diff(offsets), scales)
            failures += [row for row in [first_too_long(result, own)] if row >= 0]
        except RowError as error:
            failures.append(error.index)
        if failures:
            row = min(failures)
            raise RowError(
                row,
                self.column.name,
                f"{self.excerpt(row)}, of scale {int(scales[row])}, does not fit into {own}",
            )
        return result

    def _temporal(self) -> pa.Array:
        """Return dates and times from numbers, objects of parts, texts, and the two infinities.

        Texts may have a zone where the column has none.
        """
        signs = np.zeros(len(self.kinds), np.int8)
        texts = self.kinds == json_scan.STRING
        if texts.any():
            cut = self.column.type.kind in (TypeKind.DATE, TypeKind.TIME)
            lengths = self.lengths.copy()
            far = self.conventions.out_of_range is not OutOfRange.KEEP
            _read_texts(self.data, self.starts, lengths, texts, cut, far, signs)
            self.lengths = lengths
            if self.column.type.kind is TypeKind.TIME:
                signs[:] = 0
            else:
                self._turn_infinities(signs)
        counted = self.kinds == json_scan.NUMBER
        structured = self.kinds == json_scan.CONTAINER
        if not self._takes_numbers():
            counted = np.zeros(len(self.kinds), np.bool_)
        failures: list[RowError] = []
        values: pa.Array | None = None
        kinds, self.kinds = self.kinds, np.where(signs != 0, json_scan.MISSING, self.kinds).astype(np.uint8)
        try:
            values = self._merged(
                (
                    (counted, partial(DebeziumField._counted, signs=signs)),
                    (structured, partial(DebeziumField._structured, signs=signs)),
                )
            )
            self._look_at_years(values, signs)
        except RowError as error:
            failures.append(self._with_hint(error))
        self.kinds = kinds
        if self.conventions.out_of_range in (OutOfRange.REFUSE, OutOfRange.KEEP) and signs.any():
            failures.append(self._beyond(int(np.argmax(signs != 0))))
        if failures:
            raise min(failures, key=lambda error: error.index)
        return self._placed(values, signs)

    def _turn_infinities(self, signs: np.ndarray) -> None:
        for row in np.flatnonzero(signs).tolist():
            start, length = int(self.starts[row]), int(self.lengths[row])
            if self.data[start : start + length].tobytes() in _INFINITE_TEXTS:
                signs[row] = -signs[row]

    def _takes_numbers(self) -> bool:
        is_instant = self.column.type.kind is TypeKind.TIMESTAMP_LTZ
        mode = self.conventions.time
        return (
            mode not in NO_NUMBERS or self._said() is not None or (mode is DebeziumTime.PLAIN and is_instant)
        )

    def _with_hint(self, error: RowError) -> RowError:
        if self.kinds[error.index] != json_scan.NUMBER or self._takes_numbers():
            return error
        if self.conventions.time is DebeziumTime.PLAIN:
            hint = f"; write it as a text, as in {_EXAMPLES[self.column.type.kind]}"
            return RowError(error.index, error.column, error.reason + hint)
        hint = f" ('{TableOptions.debezium_time.name}' is '{self.conventions.time}')"
        return RowError(error.index, error.column, error.reason + hint)

    def _beyond(self, row: int) -> RowError:
        option = TableOptions.debezium_out_of_range.name
        what = "is not a date of the years 1 to 9999"
        ways = "'null', 'clamp'"
        if self.conventions.out_of_range is OutOfRange.REFUSE:
            ways += " or 'keep'"
        else:
            what = f"is out of the range of {self.column.type}"
        is_plain = self.conventions.time is DebeziumTime.PLAIN
        remedy = "" if is_plain else f"; '{option}' = {ways} accepts such values"
        return RowError(row, self.column.name, f"{self.excerpt(row)} {what}{remedy}")

    def _look_at_years(self, values: pa.Array, signs: np.ndarray) -> None:
        """Mark values before year 1 or after 9999 in `signs`, unless such values are kept."""
        data_type = self.column.type
        if self.conventions.out_of_range is OutOfRange.KEEP or data_type.kind is TypeKind.TIME:
            return
        wide = pa.int32() if data_type.kind is TypeKind.DATE else pa.int64()
        ticks = np.asarray(pc.fill_null(values.view(wide), 0)).astype(np.int64)
        per_day = 1 if data_type.kind is TypeKind.DATE else _DAY * _TICKS[data_type.unit]
        days = ticks // per_day
        signs[days > _LAST_DAY] = 1
        signs[days < _FIRST_DAY] = -1

    def _placed(self, values: pa.Array, signs: np.ndarray) -> pa.Array:
        """Return the values with those out of range replaced as the option says."""
        beyond = signs != 0
        if not beyond.any():
            return values
        if self.conventions.out_of_range is OutOfRange.NULL:
            if not self.column.nullable:
                row = int(np.argmax(beyond))
                raise RowError(
                    row, self.column.name, f"{self.excerpt(row)} would be null, but the column is NOT NULL"
                )
            return pc.if_else(pa.array(beyond), pa.scalar(None, values.type), values)
        low, high = self._bounds()
        bounds = np.where(signs > 0, high, low)
        if self.column.type.kind is TypeKind.DATE:
            clamped = pa.array(bounds.astype(np.int32)).view(values.type)
        else:
            clamped = pa.array(bounds).view(values.type)
        return pc.if_else(pa.array(beyond), clamped, values)

    def _bounds(self) -> tuple[int, int]:
        """Return the first and the last value of the years 1 to 9999 that the column can hold."""
        data_type = self.column.type
        if data_type.kind is TypeKind.DATE:
            return _FIRST_DAY, _LAST_DAY
        ticks = _TICKS[data_type.unit]
        step = ticks // 10 ** min(data_type.precision, len(str(ticks)) - 1)
        low = max(_FIRST_DAY * _DAY * ticks, -(1 << 63))
        high = min((_LAST_DAY + 1) * _DAY * ticks - 1, (1 << 63) - 1)
        return -(-low // step) * step, high // step * step

    def _said(self) -> str | None:
        """Return the unit that the schema or the table gives for this column."""
        schema = self.conventions.schema_of(self.column.name)
        unit = None if schema is None or schema.name is None else TIME_UNITS.get(schema.name)
        return unit or self.conventions.units.get(self.column.name.split("[")[0])

    def _unit(self) -> tuple[str, bool]:
        """Return the unit of the numbers, and whether it is certain."""
        mode, data_type = self.conventions.time, self.column.type
        said = self._said()
        if said is not None:
            return said, True
        if data_type.kind is TypeKind.DATE:
            return "d", True
        match mode:
            case DebeziumTime.CONNECT | DebeziumTime.PLAIN:
                return "ms", True
            case DebeziumTime.MICROSECONDS:
                return "us", True
            case DebeziumTime.NANOSECONDS:
                return "ns", True
        if mode is DebeziumTime.ADAPTIVE_TIME_MICROSECONDS and data_type.kind is TypeKind.TIME:
            return "us", True
        return ("ms" if data_type.precision <= 3 else "us" if data_type.precision <= 6 else "ns"), False

    def _counted(self, signs: np.ndarray) -> pa.Array:
        """Return values from numbers of days, or of parts of a second since 1970 or midnight.

        Values that are too early or too late for the column are marked in `signs`.
        """
        data_type = self.column.type
        numbers = np.zeros(len(self.starts), np.int64)
        arguments = (self.data, self.starts, self.lengths, self.kinds)
        self.check(json_values.integers(*arguments, 64, numbers, self.failure))
        given = self.kinds != json_scan.MISSING
        unit, said = self._unit()
        if data_type.kind is TypeKind.DATE:
            return self._counted_days(numbers, unit, given, signs)
        if not said:
            self._check_plausible(numbers, unit, given)
        if data_type.kind is TypeKind.TIME:
            bound = _DAY * _TICKS.get(unit, 0)
            self.fail_first(given & ((numbers < 0) | (numbers >= bound)), json_values.OUT_OF_RANGE)
        target = _TICKS[data_type.unit]
        factor = _DAY * target if unit == "d" else target // _TICKS[unit]
        if unit != "d" and _TICKS[unit] > 10**data_type.precision:
            step = _TICKS[unit] // 10**data_type.precision
            self.fail_first(given & (numbers % step != 0), json_values.TOO_PRECISE)
        if factor:
            too_high = given & (numbers > ((1 << 63) - 1) // factor)
            too_low = given & (numbers < -((1 << 63) // factor))
            signs[too_high], signs[too_low] = 1, -1
            ticks = np.where(too_high | too_low, 0, numbers) * factor
        else:
            ticks = numbers // (_TICKS[unit] // target)
        if data_type.kind is TypeKind.TIME and data_type.precision <= 3:
            ticks = ticks.astype(np.int32)
        return self.array(ticks)

    def _structured(self, signs: np.ndarray) -> pa.Array:
        """Return values from objects of the parts of a date or time.

        Values that are too early or too late for the column are marked in `signs`.
        """
        data_type, moments = self.column.type, structured_times.read(self, self._inside)
        signs[moments.signs != 0] = moments.signs[moments.signs != 0]
        days, seconds = moments.days, moments.seconds
        if data_type.kind is TypeKind.DATE:
            signs[days > (1 << 31) - 1], signs[days < -(1 << 31)] = 1, -1
            return self.array(np.where(signs != 0, 0, days).astype(np.int32))
        target = _TICKS[data_type.unit]
        seconds, part = days * _DAY + seconds, moments.nanos // (_TICKS["ns"] // target)
        (last, last_part), (first, first_part) = divmod((1 << 63) - 1, target), divmod(-(1 << 63), target)
        signs[(seconds > last) | ((seconds == last) & (part > last_part))] = 1
        signs[(seconds < first) | ((seconds == first) & (part < first_part))] = -1
        finite = signs == 0
        # Near the least second the product may leave 64 bits; adding the part brings it back into them.
        ticks = np.where(finite, seconds, 0) * target + np.where(finite, part, 0)
        if data_type.kind is TypeKind.TIME and data_type.precision <= 3:
            ticks = ticks.astype(np.int32)
        return self.array(ticks)

    def _counted_days(self, numbers: np.ndarray, unit: str, given: Mask, signs: np.ndarray) -> pa.Array:
        if unit != "d":
            per_day = _DAY * _TICKS[unit]
            self.fail_first(given & (numbers % per_day != 0), json_values.NOT_A_DATE)
            numbers = numbers // per_day
        for infinite, sign in _INFINITE_DAYS.items():
            signs[given & (numbers == infinite)] = sign
        signs[given & (signs == 0) & (numbers > (1 << 31) - 1)] = 1
        signs[given & (signs == 0) & (numbers < -(1 << 31))] = -1
        return self.array(np.where(signs != 0, 0, numbers).astype(np.int32))

    def _check_plausible(self, numbers: np.ndarray, unit: str, given: Mask) -> None:
        """Raise RowError for the first number that is plausible only in another unit."""
        per_second = _TICKS[unit]
        if self.column.type.kind is TypeKind.TIME:
            odd = (unit != "ms") & (numbers != 0) & (np.abs(numbers) < _DAY * per_second // 1000)
        else:
            days = numbers // (_DAY * per_second)
            far = (days < PLAUSIBLE_DAYS[0]) | (days > PLAUSIBLE_DAYS[1])
            far &= (days != _FIRST_DAY) & (days != _LAST_DAY) & ~_is_infinite(numbers)
            odd = far | ((numbers != 0) & (np.abs(numbers) < NEAR_EPOCH_SECONDS * per_second))
        odd &= given
        if not odd.any():
            return
        row, name = int(np.argmax(odd)), self.column.name.split("[")[0]
        other = "ms" if unit != "ms" else "us"
        raise RowError(
            row,
            self.column.name,
            f"{self.excerpt(row)} as {_UNIT_NAMES[unit]}, which a connector writes for {self.column.type}, is not "
            f"plausible; set the unit of the numbers, as in '{TableOptions.debezium_units.name}' = '{name}={other}', "
            "or have the converter write schemas (schemas.enable=true)",
        )


def _unwrapped(field: DebeziumField, wrapped: Wrapped) -> pa.Array:
    """Return values from objects of MongoDB's extended JSON. A number in `$date` is in milliseconds, in UTC."""
    conventions = field.conventions
    if wrapped.unit is not None:
        name = field.column.name
        schema = None
        if field.column.type.kind in TEXT_KINDS:
            schema = ConnectSchema("struct", fields=(ConnectSchema("int64", name, CONNECT_TIMESTAMP),))
        units = {**conventions.units, name.split("[")[0]: wrapped.unit}
        conventions = msgspec.structs.replace(conventions, units=units, schema=schema)
    inner = conventions.field(field.column, wrapped.data, wrapped.starts, wrapped.lengths, wrapped.kinds)
    inner.reading = field.reading
    return inner._plain()


def of_decimals(values: pa.Array, data_type: DataType) -> pa.Array:
    """Return decimals as values of a column type. Raises pa.ArrowInvalid if one does not fit exactly."""
    if data_type.kind not in TEXT_KINDS | FLOAT_KINDS:
        return values.cast(data_type.arrow())
    if values.type.scale < 0:
        values = values.cast(pa.decimal128(_DIGITS_MAX, 0))
    # Arrow's own texts of decimals have exponents, and the DOUBLEs that it makes are not always the nearest.
    texts = plain_texts(values)
    if (
        data_type.kind is TypeKind.CHAR
        and pc.any(pc.greater(pc.utf8_length(texts), data_type.length)).as_py()
    ):
        raise pa.ArrowInvalid("a text is too long")
    return texts.cast(data_type.arrow())


def first_that_does_not_fit(values: pa.Array, data_type: DataType) -> int:
    """Return the first value that `of_decimals` refuses; one of them must be refused."""
    begin, end = 0, len(values)
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            of_decimals(values.slice(begin, middle - begin), data_type)
        except pa.ArrowInvalid:
            end = middle
        else:
            begin = middle
    return begin


def _is_infinite(numbers: np.ndarray) -> Mask:
    return np.isin(numbers, list(_INFINITE_TIMES))


_NUMBER, _CODED, _EITHER = 1, 2, 3


@njit(cache=True, nogil=True)
def _looks(data: Bytes, starts: Array, lengths: Array, texts: Any, looks: Bytes) -> None:
    """Set looks: the form of a decimal's text, which is a number, base64, or either."""
    for row in range(len(starts)):
        if not texts[row]:
            continue
        start, length = np.int64(starts[row]), np.int64(lengths[row])
        begin, end = json_values.trim(data, start, length)
        number = json_values.exact(data, begin, end, _DIGITS_MAX, 0)[0] != json_values.NOT_A_NUMBER
        coded = length > 0 and length % 4 == 0
        for index in range(start, start + length):
            byte = data[index]
            letter = 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122
            padding = byte == 61 and index >= start + length - 2
            if not (letter or byte == 43 or byte == 47 or padding):
                coded = False
        looks[row] = (_EITHER if number else _CODED) if coded else (_NUMBER if number else _CODED)


_INFINITY = np.frombuffer(b"infinity", np.uint8)


@njit(cache=True, nogil=True)
def _read_texts(
    data: Bytes, starts: Array, lengths: Array, texts: Any, cut: bool, far: bool, signs: Array
) -> None:
    """Cut the Z at the end of texts if `cut`, and set signs: 1 for infinity, -1 for -infinity.

    With `far` also years of more than four digits get a sign.
    """
    for row in range(len(starts)):
        if not texts[row]:
            continue
        start, length = np.int64(starts[row]), np.int64(lengths[row])
        if cut and length > 1 and data[start + length - 1] == 90:
            lengths[row] = length - 1
        signed = length > 0 and (data[start] == 43 or data[start] == 45)
        if far and signed:
            digits = 0
            while digits + 1 < length and 48 <= data[start + 1 + digits] <= 57:
                digits += 1
            if digits > 4 and digits + 1 < length and data[start + 1 + digits] == 45:
                signs[row] = 1 if data[start] == 43 else -1
                continue
        negative = length > 0 and data[start] == 45
        begin = start + 1 if negative else start
        if start + length - begin != len(_INFINITY):
            continue
        same = True
        for index in range(len(_INFINITY)):
            if data[begin + index] | 32 != _INFINITY[index]:
                same = False
                break
        if same:
            signs[row] = -1 if negative else 1


def warm() -> None:
    """Compile (or load from the cache) all kernels of this module."""
    from headrace.tablelayer.model.json.rows import json_to_rows
    from headrace.tablelayer.model.types.column_types import DATE, decimal

    columns = [Column(0, "a", decimal(3, 1)), Column(1, "b", DATE)]
    texts = pa.array([b'{"a":"AQ==","b":"2024-02-29Z"}'], pa.binary())
    json_to_rows(texts, columns, make_field=Conventions().field)
