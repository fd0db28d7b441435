"""A table for the records of a topic, or missing columns of a table for them.

The columns come from the schema that Kafka Connect puts around a record, or else from the values of records; the
primary key comes from the records' keys. A type without an exact counterpart becomes the text that the connector
writes for it (enums, intervals, geometries).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import msgspec

from headrace.tablelayer.model.errors import TableError, invalid_table
from headrace.tablelayer.model.json import connect_schema
from headrace.tablelayer.model.json.connect_schema import DECIMAL, MONGO_ID, VARIABLE_DECIMAL, ConnectSchema
from headrace.tablelayer.model.options.kafka_formats import DELETED_FIELD, KafkaValueFormat
from headrace.tablelayer.model.options.table_options import TableOptions
from headrace.tablelayer.model.schema.schema import Column, Schema, check_column_name
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.evolution import AddColumn
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types import column_types as types
from headrace.tablelayer.model.types.column_types import TIMESTAMP_KINDS, DataType, TypeKind

_CONNECT = "org.apache.kafka.connect.data."
_TIME = "io.debezium.time."
_NAMED = {
    f"{_TIME}Date": types.DATE,
    f"{_TIME}IsoDate": types.DATE,
    f"{_CONNECT}Date": types.DATE,
    f"{_TIME}Time": types.time(3),
    f"{_CONNECT}Time": types.time(3),
    f"{_TIME}MicroTime": types.time(6),
    f"{_TIME}IsoTime": types.time(6),
    f"{_TIME}NanoTime": types.time(9),
    f"{_TIME}Timestamp": types.timestamp(3),
    f"{_CONNECT}Timestamp": types.timestamp(3),
    f"{_TIME}MicroTimestamp": types.timestamp(6),
    f"{_TIME}IsoTimestamp": types.timestamp(6),
    f"{_TIME}NanoTimestamp": types.timestamp(9),
    f"{_TIME}ZonedTimestamp": types.timestamp_ltz(6),
    f"{_TIME}StructuredDate": types.DATE,
    f"{_TIME}StructuredTime": types.time(6),
    f"{_TIME}StructuredTimestamp": types.timestamp(6),
    f"{_TIME}StructuredZonedTimestamp": types.timestamp_ltz(6),
    VARIABLE_DECIMAL: types.decimal(38, 18),
}
_PLAIN = {
    "int8": types.TINYINT,
    "int16": types.SMALLINT,
    "int32": types.INT,
    "int64": types.BIGINT,
    "float": types.FLOAT,
    "float32": types.FLOAT,
    "double": types.DOUBLE,
    "float64": types.DOUBLE,
    "boolean": types.BOOLEAN,
    "string": types.STRING,
    "bytes": types.BYTES,
}
_ENVELOPE = frozenset({"schema", "payload"})
_OP_FIELD = "__op"
_MARKS = frozenset({DELETED_FIELD, _OP_FIELD})


class Sample(msgspec.Struct, frozen=True):
    """One record with parsed JSON; None for a missing key or value, or one that is not JSON."""

    key: Any
    value: Any

    @classmethod
    def of(cls, key: bytes | None, value: bytes | None) -> Sample:
        return cls(_json(key), _json(value))


def derive(path: TablePath, samples: Sequence[Sample], primary_key: Sequence[str] = ()) -> TableDefinition:
    """Return the table for a topic's records, of which the newest is last.

    primary_key: used instead of the fields of the records' keys. Raises TableError(INVALID_TABLE) if the records do
    not tell the columns.
    """
    rows = [each for each in map(_row, samples) if each is not None]
    if not rows:
        raise invalid_table(
            "none of its records has a row in JSON: an object, or an envelope of Debezium's or Connect's"
        )
    newest, found = rows[-1], _fields(rows, _guessed_type)
    keys = tuple(primary_key) or ((MONGO_ID,) if newest.extended else _key_names(samples))
    if keys and not newest.is_change:  # as columns they would not mark deletions any more
        found = [each for each in found if each[0] not in _MARKS or each[0] in keys]
    known = [name for name, _, _ in found]
    missing = [name for name in keys if name not in known]
    if missing:
        raise invalid_table(
            f"its rows have no field '{missing[0]}' for the primary key; their fields are {', '.join(known)}"
        )
    columns = [
        Column(index, name, kind, nullable=name not in keys and optional)
        for index, (name, kind, optional) in enumerate(found)
    ]
    options: dict[str, str] = {}
    if newest.is_change:
        options[TableOptions.kafka_value_format.name] = KafkaValueFormat.DEBEZIUM_JSON
    elif newest.wrapped:
        options[TableOptions.kafka_value_path.name] = "payload"
    return TableDefinition(path, Schema.of(columns, keys), options=options)


def missing_columns(definition: TableDefinition, samples: Iterable[Sample]) -> list[AddColumn]:
    """Return the columns that a table lacks for these records.

    They are fields with a value or a schema whose names are valid for columns, except the fields with which a
    connector marks deletions.
    """
    settings = definition.settings
    marks = {settings.kafka_deleted_field, _OP_FIELD} if settings.kafka_deleted_field else set()
    path = settings.kafka_value_path or ()
    rows = [_row(each) for each in samples]
    if path and tuple(path) != ("payload",):
        rows = [None if row is None else _inside(row, path) for row in rows]
    there = [row for row in rows if row is not None]
    found = []
    for name, kind, _ in _fields(there) if there else ():
        if name in definition.schema or name in marks:
            continue
        try:
            check_column_name(name)
        except TableError:
            continue
        found.append(AddColumn(name, kind, if_not_exists=True))
    return found


def _inside(row: _Row, path: Sequence[str]) -> _Row | None:
    value: Any = row.values
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return _Row(value, None, row.wrapped, row.is_change) if isinstance(value, dict) else None


def _fields(
    rows: Sequence[_Row], type_of: Callable[[Any], DataType] | None = None
) -> list[tuple[str, DataType, bool]]:
    """Return name, type and nullability of each field, from the newest schema, or else from the values.

    `type_of` returns the type of one value; by default no text and no array has a type of its own.
    """
    schema = next(
        (row.schema for row in reversed(rows) if row.schema is not None and row.schema.fields), None
    )
    if schema is not None:
        return [(str(field.field), _type_of(field), field.optional) for field in schema.fields]
    values = (row.values for row in rows)
    return [(name, kind, True) for name, kind in _inferred(values, type_of or _inferred_type).items()]


class _Row(msgspec.Struct, frozen=True):
    """The row of a record: its values, and its schema, if any.

    wrapped: Connect's envelope is around it; is_change: Debezium's is; extended: it is a text of MongoDB's extended
    JSON.
    """

    values: dict[str, Any]
    schema: ConnectSchema | None
    wrapped: bool
    is_change: bool
    extended: bool = False


def _row(sample: Sample) -> _Row | None:
    value, schema, wrapped = sample.value, None, False
    if isinstance(value, dict) and value.keys() >= _ENVELOPE:
        wrapped = True
        schema = connect_schema.parse(json.dumps(value["schema"]).encode())
        value = value["payload"]
    if not isinstance(value, dict):
        return None
    if "op" in value and ("before" in value or "after" in value):
        side = "after" if value.get("after") is not None else "before"
        image = value.get(side)
        if isinstance(image, str):
            row = _json(image.encode())
            plain = {name: _plain_value(each) for name, each in row.items()} if isinstance(row, dict) else {}
            return _Row(plain, None, wrapped, is_change=True, extended=True) if plain else None
        return (
            _Row(image, None if schema is None else schema.child(side), wrapped, True)
            if isinstance(image, dict)
            else None
        )
    return _Row(value, schema, wrapped, False)


_EXTENDED: dict[str, Any] = {
    "$numberInt": 0, "$numberLong": 0, "$numberDouble": 0.0, "$numberDecimal": types.decimal(38, 18),
    "$date": types.timestamp_ltz(3), "$binary": types.BYTES,
}  # fmt: skip
"""An example value, or the type, for each of MongoDB's types."""


def _plain_value(value: Any) -> Any:
    wrapper = next(iter(value), None) if isinstance(value, dict) else None
    return _EXTENDED.get(str(wrapper), value)


def _key_names(samples: Sequence[Sample]) -> tuple[str, ...]:
    for sample in reversed(samples):
        key = sample.key
        if isinstance(key, dict) and key.keys() >= _ENVELOPE:
            key = key["payload"]
        if isinstance(key, dict) and key:
            return tuple(key)
    return ()


def _type_of(field: ConnectSchema) -> DataType:
    if field.name == DECIMAL:
        scale = field.scale or 0
        precision = str(
            (field.parameters or {}).get("connect.decimal.precision", types.MAX_DECIMAL_PRECISION)
        )
        digits = int(precision) if precision.isdigit() else types.MAX_DECIMAL_PRECISION
        fits = 0 <= scale <= types.MAX_DECIMAL_PRECISION
        return (
            types.decimal(min(max(digits, scale, 1), types.MAX_DECIMAL_PRECISION), scale)
            if fits
            else types.STRING
        )
    named = None if field.name is None else _NAMED.get(field.name)
    if named is not None:
        return named
    match field.type:
        case "array" if field.items is not None:
            return types.array_of(_type_of(field.items), nullable=field.items.optional)
        case "map" if field.values is not None:
            key = types.STRING if field.keys is None else _type_of(field.keys)
            return types.map_of(key, _type_of(field.values), nullable=field.values.optional)
    return _PLAIN.get(field.type, types.STRING)


def _inferred(rows: Iterable[dict[str, Any]], type_of: Callable[[Any], DataType]) -> dict[str, DataType]:
    """Return the type of each field from all of its values, without fields that are always null."""
    found: dict[str, DataType | None] = {}
    for row in rows:
        for name, value in row.items():
            known = found.setdefault(name, None)
            if value is None:
                continue
            kind = type_of(value)
            found[name] = kind if known is None else _common(known, kind)
    return {
        name: types.STRING if kind == _EMPTY else kind for name, kind in found.items() if kind is not None
    }


_EMPTY = types.array_of(types.BOOLEAN, nullable=False)
"""Stands for the type of an array without elements."""
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?")
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


def _common(one: DataType, other: DataType) -> DataType:
    """Return the type for values of two types: STRING if there is no other."""
    if one == other:
        return one
    if {one, other} == {types.BIGINT, types.DOUBLE}:
        return types.DOUBLE
    if one.kind is other.kind and one.kind in TIMESTAMP_KINDS:
        return max(one, other, key=lambda kind: kind.precision)
    if one.kind is other.kind is TypeKind.ARRAY:
        if _EMPTY in (one, other):
            return other if one == _EMPTY else one
        return types.array_of(_common(one.fields[0].type, other.fields[0].type))
    return types.STRING


def _guessed_type(value: Any) -> DataType:
    """Return the type of a value; ISO 8601's texts are dates and times, and arrays have elements of one type."""
    if isinstance(value, list):
        kinds = [_guessed_type(each) for each in value if each is not None]
        if any(kind.is_nested or isinstance(each, dict) for kind, each in zip(kinds, value, strict=False)):
            return types.STRING
        return types.array_of(reduce(_common, kinds)) if kinds else _EMPTY
    if isinstance(value, str):
        if _DAY.fullmatch(value):
            return types.DATE
        if (found := _MOMENT.fullmatch(value)) is not None:
            digits = 9 if len(found[1] or "") > 6 else 6
            return types.timestamp(digits) if found[2] is None else types.timestamp_ltz(digits)
    return _inferred_type(value)


def _inferred_type(value: Any) -> DataType:
    match value:
        case DataType():
            return value
        case bool():
            return types.BOOLEAN
        case int() if -(1 << 63) <= value < 1 << 63:
            return types.BIGINT
        case int() | float():
            return types.DOUBLE
    return types.STRING


def _json(data: bytes | None) -> Any:
    try:
        return None if data is None else msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
