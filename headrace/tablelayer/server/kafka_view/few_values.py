"""Values of a few Kafka records in JSON, with Debezium's conventions: readers of one column's values each.

A reader raises `NeedsArrays` for a value that it does not know for sure.
"""

from __future__ import annotations

import binascii
import re
import struct
from collections.abc import Callable, Sequence
from datetime import date, datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from headrace.tablelayer.model.json.connect_schema import DECIMAL, TIME_UNITS, VARIABLE_DECIMAL, ConnectSchema
from headrace.tablelayer.model.json.debezium_values import NEAR_EPOCH_SECONDS, NO_NUMBERS, PLAUSIBLE_DAYS
from headrace.tablelayer.model.options.kafka_formats import DebeziumTime
from headrace.tablelayer.model.options.table_options import TableOptions
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.column_types import (
    INTEGER_BITS,
    TEXT_KINDS,
    TIMESTAMP_KINDS,
    DataType,
    TypeKind,
)
from headrace.tablelayer.server.merge.few_rows import NeedsArrays

_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.(\d{1,6}))?(Z)?", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_NUMBER: Final = re.compile(rb"(-?(?:0|[1-9]\d*))(?:\.(\d+))?")
_NEGATIVE_ZERO: Final = re.compile(rb"-0(?![0-9.eE])")
_EPOCH: Final = datetime(1970, 1, 1)
_EPOCH_DAY: Final = date(1970, 1, 1).toordinal()
_FIRST_DAY, _LAST_DAY = 1 - _EPOCH_DAY, date.max.toordinal() - _EPOCH_DAY
_DAY_SECONDS: Final = 86_400
_TICKS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_UNIT_OF: Final = {
    DebeziumTime.CONNECT: "ms",
    DebeziumTime.MICROSECONDS: "us",
    DebeziumTime.NANOSECONDS: "ns",
}
_FLOAT_LEAST: Final = 2.0**-126
_DOUBLE: Final = struct.Struct("<d")
_HALF_A_FLOAT, _BELOW_A_FLOAT = 1 << 28, (1 << 29) - 1


class Reader(msgspec.Struct, frozen=True):
    """The way to read a column's values.

    accepted: the Python types that the value has in JSON. read: its value in the row's slot; None: as it is.
    """

    accepted: Any
    read: Callable[[Any], Any] | None = None


_RAW: Final = object()
"""The accepted type of a value that is read from its text."""


def _later(value: Any) -> Any:
    raise NeedsArrays


def _unknown(value: Raw) -> Any:
    """Read a value whose form is not known here, which may be null."""
    if bytes(value) != b"null":
        raise NeedsArrays
    return None


def _float(value: float) -> float:
    """Return a number as FLOAT, if rounding it twice is the same as rounding its text once."""
    bits = int.from_bytes(_DOUBLE.pack(value), "little")
    if bits & _BELOW_A_FLOAT == _HALF_A_FLOAT or (value and abs(value) < _FLOAT_LEAST):
        raise NeedsArrays
    return value


def _text(length_max: int | None, forms: Sequence[bytes]) -> Callable[[str], bytes]:
    def read(value: str) -> bytes:
        data = value.encode()
        if (length_max is not None and len(value) > length_max) or data in forms:
            raise NeedsArrays
        return data

    return read


def _moment(data_type: DataType) -> Callable[[str], int]:
    per_second, precision = _TICKS[data_type.unit], data_type.precision
    zoned = data_type.kind is TypeKind.TIMESTAMP_LTZ

    def read(value: str) -> int:
        found = _MOMENT.fullmatch(value)
        if found is None or (found[2] is None) is zoned or len(found[1] or "") > precision:
            raise NeedsArrays
        since = datetime.fromisoformat(value[:19]) - _EPOCH
        fraction = int((found[1] or "0").ljust(9, "0")[:9]) * per_second // _TICKS["ns"]
        return (since.days * _DAY_SECONDS + since.seconds) * per_second + fraction

    return read


def _counted(data_type: DataType, unit: str | None, *, is_certain: bool) -> Callable[[int], int]:
    """Return the reader of a number of `unit` since 1970; a number must be plausible unless the unit is certain."""
    near, first, last = 0, _FIRST_DAY, _LAST_DAY
    if data_type.kind is TypeKind.DATE:
        if unit != "d":
            return _later
        per_day, step, factor = 1, 1, 1
    else:
        if unit is None or unit == "d" or _TICKS[unit] > _TICKS[data_type.unit]:
            return _later
        per_day = _DAY_SECONDS * _TICKS[data_type.unit]
        step = max(1, _TICKS[unit] // 10**data_type.precision)
        factor = _TICKS[data_type.unit] // _TICKS[unit]
        if not is_certain:
            near, (first, last) = NEAR_EPOCH_SECONDS * _TICKS[unit], PLAUSIBLE_DAYS

    def read(value: int) -> int:
        ticks = value * factor
        if value % step or abs(value) < near or not first <= ticks // per_day <= last:
            raise NeedsArrays
        return ticks

    return read


def _day(value: str) -> int:
    if _DAY.fullmatch(value) is None:
        raise NeedsArrays
    return date.fromisoformat(value).toordinal() - _EPOCH_DAY


def _decimal(data_type: DataType, forms: Sequence[bytes], coded: bool) -> Callable[[Raw], bytes | None]:
    """Return the reader of exact numbers, and of base64 of unscaled values if `coded`."""
    scale, limit = data_type.scale, 10**data_type.precision

    def read(value: Raw) -> bytes | None:
        text = bytes(value)
        if text == b"null":
            return None
        if coded and text[:1] == b'"':
            inner = text[1:-1]
            if inner in forms or not inner:
                raise NeedsArrays
            unscaled = int.from_bytes(binascii.a2b_base64(inner, strict_mode=True), "big", signed=True)
        else:
            found = _NUMBER.fullmatch(text)
            if found is None:
                raise NeedsArrays
            digits = found[2] or b""
            if len(digits) > scale or len(text) > 2 * data_type.precision:
                raise NeedsArrays
            unscaled = int(found[1] + digits) * 10 ** (scale - len(digits))
        if abs(unscaled) >= limit:
            raise NeedsArrays
        return unscaled.to_bytes(16, "little", signed=True)

    return read


class Conventions(msgspec.Struct, frozen=True):
    """The rules for values that a table and the schema around a record give."""

    settings: TableOptions
    forms: tuple[bytes, ...]
    schema: ConnectSchema | None = None

    def reader(self, column: Column) -> Reader:
        """Return the reader of a column."""
        data_type = column.type
        kind = data_type.kind
        said = None if self.schema is None else self.schema.child(column.name)
        name = None if said is None else said.name
        if kind is TypeKind.DECIMAL:
            if name is None or name == DECIMAL:
                coded = said is not None and name == DECIMAL and said.scale == data_type.scale
                return Reader(_RAW, _decimal(data_type, self.forms, coded))
            return Reader(_RAW, _unknown)
        if kind is TypeKind.DATE or kind in TIMESTAMP_KINDS:
            return Reader(int | str, self._temporal(column, TIME_UNITS.get(name or "")))
        if name in (DECIMAL, VARIABLE_DECIMAL) or name in TIME_UNITS:
            return Reader(_RAW, _unknown)
        if kind in INTEGER_BITS:
            return Reader(int)
        if kind in TEXT_KINDS:
            return Reader(str, _text(data_type.length if kind is TypeKind.CHAR else None, self.forms))
        if kind is TypeKind.BOOLEAN:
            return Reader(bool)
        if kind is TypeKind.DOUBLE:
            return Reader(float)
        if kind is TypeKind.FLOAT:
            return Reader(float, _float)
        return Reader(_RAW, _unknown)

    def _temporal(self, column: Column, unit: str | None) -> Callable[[Any], int]:
        """Return the reader of a date or a timestamp: its text, or a number of the schema's `unit`."""
        data_type, time = column.type, self.settings.debezium_time
        unit = unit or self.settings.debezium_units.get(column.name)
        is_certain = True
        if unit is None and time not in NO_NUMBERS:
            unit = _UNIT_OF.get(time)
            if data_type.kind is TypeKind.DATE:
                unit = "d"
            elif unit is None:
                unit, is_certain = data_type.unit if data_type.precision else "ms", False
        number = _counted(data_type, unit, is_certain=is_certain)
        text = _day if data_type.kind is TypeKind.DATE else _moment(data_type)
        return lambda value: number(value) if type(value) is int else text(value)


def _struct_of(
    readers: Sequence[Reader], columns: Sequence[Column], extra: Sequence[str], strict: bool
) -> Any:
    """Return the decoder of an object with these columns' values, and the texts of `extra` fields behind them."""
    fields: list[Any] = []
    for index, reader in enumerate(readers):
        if reader.accepted is _RAW:
            fields.append((f"f{index}", Raw, Raw(b"")))
        else:
            fields.append((f"f{index}", reader.accepted | None | UnsetType, UNSET))
    names = {f"f{index}": column.name for index, column in enumerate(columns)}
    for index, name in enumerate(extra, len(columns)):
        fields.append((f"f{index}", Raw, Raw(b"")))
        names[f"f{index}"] = name
    made = msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=strict)
    return msgspec.json.Decoder(made)


class Values:
    """Reads the values of some columns of an object."""

    def __init__(
        self, columns: Sequence[Column], conventions: Conventions, extra: Sequence[str], strict: bool
    ) -> None:
        self._columns = columns
        self._readers = [conventions.reader(column) for column in columns]
        self._decode = _struct_of(self._readers, columns, extra, strict).decode
        self._count = len(columns)
        self._has_floats = any(reader.accepted is float for reader in self._readers)

    def read(self, text: bytes | Raw) -> tuple[list[Any], tuple[Any, ...]]:
        """Return the values for the slots, None for null, and the texts of the extra fields."""
        given = msgspec.structs.astuple(self._decode(text))
        values: list[Any] = []
        for value, reader, column in zip(given, self._readers, self._columns, strict=False):
            if reader.accepted is _RAW:
                text_of = bytes(value)
                if not text_of:
                    value = UNSET
            if value is UNSET:
                if column.default is not None:
                    raise NeedsArrays
                value = None
            elif value is not None and reader.read is not None:
                value = reader.read(value)
            if value is None and not column.nullable:
                raise NeedsArrays
            values.append(value)
        if self._has_floats and 0.0 in values and _NEGATIVE_ZERO.search(bytes(text)) is not None:
            raise NeedsArrays
        return values, given[self._count :]
