"""Avro schemas (specification 1.12): parsed into tables for the kernels of `read.py`, and made for tables.

A schema from a client is untrusted until it is parsed: names must be defined, a type may contain itself only through
a union, an array or a map, and sizes and depths are bounded. Any violation is an `AvroSchemaError`.

| column | written as |
|---|---|
| TINYINT, SMALLINT, INT; BIGINT | int; long |
| FLOAT, DOUBLE, BOOLEAN, CHAR and STRING, BYTES | float, double, boolean, string, bytes |
| BINARY(n) | fixed |
| DECIMAL | bytes, logical type decimal |
| DATE | int, date |
| TIME up to 3, 6, 9 digits | int, time-millis; long, time-micros; long, time-nanos (not in the specification) |
| TIMESTAMP up to 3, 6, 9 digits | long, local-timestamp-millis, -micros, -nanos |
| TIMESTAMP_LTZ | long, timestamp-millis, -micros, -nanos |
| ROW; ARRAY | record; array |
| MAP with keys of CHAR or STRING; of another type | map; array of records of `key` and `value`, as in Iceberg |

A column, field, element or value that can be null is a union of null and its type; columns and fields have null as
their default. A type that needs a name is named after its position, such as who_address, with a number if the name is
taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.tablelayer.model.arrays.arrays import validity
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.rows.nested import entries, owners, row_fields
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.types.column_types import (
    TEXT_KINDS,
    TIMESTAMP_KINDS,
    DataType,
    Field,
    TypeKind,
)

SCHEMA_TEXT_MAX = 4 << 20  # a thousand columns with long comments take a tenth of it
_NODES_MAX = 20_000
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class AvroSchemaError(ValueError):
    """A schema that is wrong or not supported, with the reason."""


class AvroKind(IntEnum):
    """The kind of a schema's type. The numbers are those of the kernels."""

    NULL = 0
    BOOLEAN = 1
    INT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    BYTES = 6
    STRING = 7
    FIXED = 8
    ENUM = 9
    UNION = 10
    RECORD = 11
    ARRAY = 12
    MAP = 13


_PRIMITIVES = {kind.name.lower(): kind for kind in AvroKind if kind <= AvroKind.STRING}


class Node(msgspec.Struct, eq=False):
    """One type of a schema.

    `children`: the branches of a union, the types of a record's fields (`names`), or the items of an array or a map.
    `size`: bytes of a FIXED. `connect`: the name that Connect's converter gave the type.
    """

    index: int
    kind: AvroKind
    logical: str | None = None
    connect: str | None = None
    precision: int = 0
    scale: int = 0
    size: int = 0
    names: list[str] = msgspec.field(default_factory=list)
    children: list[Node] = msgspec.field(default_factory=list)

    def __str__(self) -> str:
        """The name of the type for people."""
        if self.kind is AvroKind.UNION:
            return "union of " + ", ".join(map(str, self.children))
        name = self.kind.name.lower()
        if self.logical == "decimal":
            return f"{name} (decimal({self.precision}, {self.scale}))"
        meaning = self.logical or self.connect
        return name if meaning is None else f"{name} ({meaning})"


class AvroSchema(msgspec.Struct, frozen=True, eq=False):
    """A parsed schema.

    table: int64[nodes, 4] of kind, size or first link, number of links (or symbols), whether its values take no
    bytes. links: int64 indices of nodes.
    """

    root: Node
    nodes: list[Node]
    table: npt.NDArray[np.int64]
    links: npt.NDArray[np.int64]

    def as_field(self, name: str) -> AvroSchema:
        """Return a record with one field of this type; its values have the same encoding."""
        node = Node(len(self.nodes), AvroKind.RECORD, names=[name], children=[self.root])
        table = np.vstack([self.table, [AvroKind.RECORD, len(self.links), 1, 0]]).astype(np.int64)
        return AvroSchema(node, [*self.nodes, node], table, np.append(self.links, self.root.index))

    @classmethod
    def parse(cls, text: str) -> AvroSchema:
        """Return the parsed schema. Raises AvroSchemaError."""
        if len(text) > SCHEMA_TEXT_MAX:
            raise AvroSchemaError(
                f"the Avro schema has {len(text)} characters; the maximum is {SCHEMA_TEXT_MAX}"
            )
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise AvroSchemaError(f"the Avro schema is not JSON: {error}") from None
        parser = _Parser()
        sizes: dict[int, bool | None] = {}
        try:
            root = parser.node(value, "")
            empty = [_is_empty(each, sizes) for each in parser.nodes]
        except RecursionError:
            raise AvroSchemaError("the Avro schema is nested too deeply") from None
        nodes = parser.nodes
        table = np.zeros((len(nodes), 4), np.int64)
        links: list[int] = []
        for each in nodes:
            first = each.size if each.kind is AvroKind.FIXED else len(links)
            count = len(each.names) if each.kind is AvroKind.ENUM else len(each.children)
            table[each.index] = each.kind, first, count, empty[each.index]
            links += [child.index for child in each.children]
        return cls(root, nodes, table, np.array(links or [0], np.int64))


def _is_empty(node: Node, known: dict[int, bool | None]) -> bool:
    """Whether every value takes no bytes. Raises AvroSchemaError for a record that has to contain itself."""
    if node.index in known:
        answer = known[node.index]
        if answer is None:
            raise AvroSchemaError("a record of the Avro schema contains itself without end")
        return answer
    known[node.index] = None
    if node.kind is AvroKind.RECORD:
        answers = [
            _is_empty(child, known) for child in node.children
        ]  # all children, so that endless records are found
        answer = all(answers)
    else:
        answer = node.kind is AvroKind.NULL or (node.kind is AvroKind.FIXED and node.size == 0)
    known[node.index] = answer
    return answer


class _Parser:
    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.named: dict[str, Node] = {}

    def new(self, kind: AvroKind) -> Node:
        if len(self.nodes) >= _NODES_MAX:
            raise AvroSchemaError(f"the Avro schema has more than {_NODES_MAX} types")
        node = Node(len(self.nodes), kind)
        self.nodes.append(node)
        return node

    def node(self, value: Any, namespace: str) -> Node:
        if isinstance(value, str):
            if value in _PRIMITIVES:
                return self.new(_PRIMITIVES[value])
            found = self.named.get(value if "." in value else _full(value, namespace)) or self.named.get(
                value
            )
            if found is None:
                raise AvroSchemaError(f"the Avro schema has no type '{value}'")
            return found
        if isinstance(value, list):
            node = self.new(AvroKind.UNION)
            node.children = [self.node(each, namespace) for each in value]
            if not value or any(each.kind is AvroKind.UNION for each in node.children):
                raise AvroSchemaError("a union of the Avro schema is empty or contains a union")
            return node
        if not isinstance(value, dict):
            raise AvroSchemaError(f"{json.dumps(value)[:60]} is not a type of an Avro schema")
        kind = value.get("type")
        if isinstance(kind, (dict, list)):
            return self.beside(self.node(kind, namespace), value)
        if kind in ("record", "error"):
            return self.record(value, namespace)
        if kind in ("array", "map"):
            node = self.new(AvroKind.ARRAY if kind == "array" else AvroKind.MAP)
            node.children = [self.node(_of(value, "items" if kind == "array" else "values"), namespace)]
            return node
        if kind == "enum":
            node = self.define(AvroKind.ENUM, value, namespace)
            symbols = _of(value, "symbols")
            if not isinstance(symbols, list) or not all(isinstance(each, str) for each in symbols):
                raise AvroSchemaError("the symbols of an enum in the Avro schema are not a list of names")
            node.names = symbols
        elif kind == "fixed":
            node = self.define(AvroKind.FIXED, value, namespace)
            size = _of(value, "size")
            if not isinstance(size, int) or not 0 <= size < 2**31:
                raise AvroSchemaError(f"a fixed of the Avro schema has the size {size!r}")
            node.size = size
        elif isinstance(kind, str):
            node = self.node(kind, namespace)
            if kind not in _PRIMITIVES:
                return node
        else:
            raise AvroSchemaError(
                f"{json.dumps(value)[:60]} is not a type of an Avro schema: it has no 'type'"
            )
        self.logical(node, value)
        return node

    def define(self, kind: AvroKind, value: dict[str, Any], namespace: str) -> Node:
        node = self.new(kind)
        name = _of(value, "name")
        if not isinstance(name, str):
            raise AvroSchemaError(f"{name!r} is not a name of a type in an Avro schema")
        full = name if "." in name else _full(name, str(value.get("namespace", namespace)))
        self.named[full] = node
        return node

    def record(self, value: dict[str, Any], namespace: str) -> Node:
        node = self.define(AvroKind.RECORD, value, namespace)
        node.connect = value.get("connect.name")
        name = str(value["name"])
        inner = name.rpartition(".")[0] if "." in name else str(value.get("namespace", namespace))
        fields = _of(value, "fields")
        if not isinstance(fields, list):
            raise AvroSchemaError(f"record '{name}' of the Avro schema has no list of fields")
        for each in fields:
            if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                raise AvroSchemaError(f"record '{name}' of the Avro schema has a field without a name")
            node.names.append(each["name"])
            node.children.append(self.beside(self.node(_of(each, "type"), inner), each))
        if len(set(node.names)) != len(node.names):
            raise AvroSchemaError(f"record '{name}' of the Avro schema has two fields with the same name")
        return node

    def beside(self, node: Node, value: dict[str, Any]) -> Node:
        """Return a type with the logical type of its field: `{"name": "at", "type": "long", "logicalType":
        "timestamp-millis"}`.

        In a union it holds for the branches. A type with a name has its logical type in its definition.
        """
        for each in node.children if node.kind is AvroKind.UNION else [node]:
            if each.kind <= AvroKind.STRING and each.logical is None and each.connect is None:
                self.logical(each, value)
        return node

    def logical(self, node: Node, value: dict[str, Any]) -> None:
        """Set a node's logical type. Invalid ones are ignored, as the specification demands."""
        connect = value.get("connect.name")
        if isinstance(connect, str):
            node.connect = connect
        logical = value.get("logicalType")
        if logical == "decimal":
            precision, scale = value.get("precision"), value.get("scale", 0)
            if node.kind not in (AvroKind.BYTES, AvroKind.FIXED):
                return
            if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision):
                return
            node.precision, node.scale = precision, scale
        elif not isinstance(logical, str):
            return
        node.logical = logical


def _full(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace else name


def _of(value: dict[str, Any], name: str) -> Any:
    if name not in value:
        raise AvroSchemaError(f"{json.dumps(value)[:60]} of the Avro schema has no '{name}'")
    return value[name]


_SECONDS_MAX = ((1 << 63) - 1) // 1000  # Avro has no unit of seconds: they become milliseconds
_PLAIN = {
    TypeKind.BOOLEAN: "boolean", TypeKind.TINYINT: "int", TypeKind.SMALLINT: "int", TypeKind.INT: "int",
    TypeKind.BIGINT: "long", TypeKind.FLOAT: "float", TypeKind.DOUBLE: "double", TypeKind.CHAR: "string",
    TypeKind.STRING: "string", TypeKind.BYTES: "bytes",
}  # fmt: skip


def is_name(text: str) -> bool:
    """Whether a field can have this name."""
    return _NAME.fullmatch(text) is not None


@lru_cache(maxsize=1024)
def schema_text(schema: Schema, database: str, table: str) -> str:
    """Return the schema of a table's rows in JSON: a record with the table's name, in the database's namespace."""
    names = {_safe(table)}
    fields = [_field(column, column.name, names) for column in schema.columns]
    value = {"type": "record", "name": _safe(table), "namespace": _safe(database), "fields": fields}
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _field(part: Column | Field, place: str, names: set[str]) -> dict[str, Any]:
    kind = _type_of(part.type, place, names)
    entry: dict[str, Any] = {"name": part.name, "type": ["null", kind] if part.nullable else kind}
    if part.nullable:
        entry["default"] = None
    if part.comment is not None:
        entry["doc"] = part.comment
    return entry


def _safe(name: str) -> str:
    text = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return text if is_name(text) else f"_{text}"


def ticks_name(data_type: DataType) -> str:
    """Return the unit in which a TIME or TIMESTAMP is written."""
    return "millis" if data_type.precision <= 3 else "micros" if data_type.precision <= 6 else "nanos"


def _free(name: str, names: set[str]) -> str:
    """Return a name for a type that no other type of the schema has, and reserve it."""
    found, number = name, 2
    while found in names:
        found, number = f"{name}_{number}", number + 1
    names.add(found)
    return found


def _type_of(data_type: DataType, place: str, names: set[str]) -> Any:
    """Return a type in JSON. place: the names on the way to the type, joined by _; names: type names that are taken."""
    plain = _PLAIN.get(data_type.kind)
    if plain is not None:
        return plain
    match data_type.kind:
        case TypeKind.ROW:
            for field in data_type.fields:
                if not is_name(field.name):
                    raise AvroSchemaError(_name_complaint("field", field.name))
            name = _free(_safe(place), names)
            fields = [_field(field, f"{place}_{field.name}", names) for field in data_type.fields]
            return {"type": "record", "name": name, "fields": fields}
        case TypeKind.ARRAY:
            return {"type": "array", "items": _item(data_type.fields[0], place, names)}
        case TypeKind.MAP:
            key, value = data_type.fields
            if key.type.kind in TEXT_KINDS:
                return {"type": "map", "values": _item(value, place, names)}
            pair = {"type": "record", "name": _free(f"{_safe(place)}_entry", names),
                    "fields": [_field(part, f"{place}_{part.name}", names) for part in (key, value)]}  # fmt: skip
            return {"type": "array", "items": pair, "logicalType": "map"}
        case TypeKind.BINARY:
            return {
                "type": "fixed",
                "name": _free(f"{_safe(place)}_bytes", names),
                "size": data_type.length,
            }
        case TypeKind.DECIMAL:
            return {
                "type": "bytes",
                "logicalType": "decimal",
                "precision": data_type.precision,
                "scale": data_type.scale,
            }
        case TypeKind.DATE:
            return {"type": "int", "logicalType": "date"}
        case TypeKind.TIME:
            number = "int" if data_type.precision <= 3 else "long"
            return {"type": number, "logicalType": f"time-{ticks_name(data_type)}"}
        case TypeKind.TIMESTAMP:
            return {"type": "long", "logicalType": f"local-timestamp-{ticks_name(data_type)}"}
        case TypeKind.TIMESTAMP_LTZ:
            return {"type": "long", "logicalType": f"timestamp-{ticks_name(data_type)}"}
    raise AvroSchemaError(f"{data_type} cannot be written in Avro")


def _item(part: Field, place: str, names: set[str]) -> Any:
    kind = _type_of(part.type, f"{place}_{part.name}", names)
    return ["null", kind] if part.nullable else kind


def _name_complaint(what: str, name: str) -> str:
    return f"{what} '{name}': a field's name in Avro has only A-Z a-z 0-9 _ and does not begin with a digit"


def complaint_about(columns: Sequence[Column]) -> str | None:
    """Return why a table cannot have Avro values; None if it can."""
    for column in columns:
        if not is_name(column.name):
            return _name_complaint("column", column.name)
        try:
            _type_of(column.type, column.name, set())
        except AvroSchemaError as error:
            return f"column '{column.name}', {error}"
    return None


def check_range(columns: Sequence[Column], rows: pa.RecordBatch) -> None:
    """Raise RowError for the first TIMESTAMP in seconds whose milliseconds do not fit into a long."""
    for column, values in zip(columns, rows.columns, strict=True):
        row = _first_beyond(column.type, values) if _has_seconds(column.type) else None
        if row is not None:
            what = "is" if not column.type.is_nested else "has a TIMESTAMP(0)"
            raise RowError(
                row,
                column.name,
                f"it {what} more than 292 million years from 1970, which does not fit into Avro's long of milliseconds",
            )


def _has_seconds(data_type: DataType) -> bool:
    if data_type.is_nested:
        return any(_has_seconds(part.type) for part in data_type.fields)
    return data_type.kind in TIMESTAMP_KINDS and data_type.unit == "s"


def _first_beyond(data_type: DataType, values: pa.Array) -> int | None:
    found = []
    if data_type.kind is TypeKind.ROW:
        for part, inside in zip(data_type.fields, row_fields(values), strict=True):
            found.append(_first_beyond(part.type, inside))
    elif data_type.is_nested:
        counts, parts = entries(values)
        for part, inside in zip(data_type.fields, parts, strict=True):
            at = _first_beyond(part.type, inside)
            found.append(None if at is None else int(owners(counts)[at]))
    elif _has_seconds(data_type) and len(values):
        numbers = np.frombuffer(values.buffers()[1], np.int64, len(values), values.offset * 8)
        bad = (numbers > _SECONDS_MAX) | (numbers < -_SECONDS_MAX)
        valid = validity(values)
        bad = bad if valid is None else bad & valid
        return int(np.argmax(bad)) if bad.any() else None
    return min((each for each in found if each is not None), default=None)
