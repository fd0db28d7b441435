"""Meanings of a writer's types: the unit of its numbers, and the nearest column type."""

from __future__ import annotations

from enum import StrEnum

from headrace.tablelayer.model.avro.schema import AvroKind, Node
from headrace.tablelayer.model.json.connect_schema import TIME_UNITS, VARIABLE_DECIMAL, time_type
from headrace.tablelayer.model.types import column_types as types
from headrace.tablelayer.model.types.column_types import DataType

_WHOLE = (AvroKind.INT, AvroKind.LONG)
_LOGICAL_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}
_DIGITS = {"ms": 3, "us": 6, "ns": 9}
_DEPTH_MAX = 16
_PLAIN = {
    AvroKind.BOOLEAN: types.BOOLEAN, AvroKind.INT: types.BIGINT, AvroKind.LONG: types.BIGINT,
    AvroKind.FLOAT: types.FLOAT, AvroKind.DOUBLE: types.DOUBLE, AvroKind.STRING: types.STRING,
    AvroKind.BYTES: types.STRING, AvroKind.ENUM: types.STRING,
}  # fmt: skip


class Sort(StrEnum):
    """The kind of a time: a day, a time of day, or a moment in UTC, in local time, or in either."""

    DATE = "date"
    TIME = "time"
    INSTANT = "instant"
    LOCAL = "local"
    MOMENT = "moment"


def counted(node: Node) -> tuple[str, Sort] | None:
    """Return the unit ('d', 'ms', 'us' or 'ns') and the kind of a type's numbers; None if they are not times.

    The logical type decides, or else the name that Connect's converter gave.
    """
    if node.kind not in _WHOLE:
        return None
    logical = node.logical or ""
    if logical == "date":
        return "d", Sort.DATE
    front, _, unit = logical.rpartition("-")
    sort = {"time": Sort.TIME, "timestamp": Sort.INSTANT, "local-timestamp": Sort.LOCAL}.get(front)
    if sort is not None and unit in _LOGICAL_UNITS:
        return _LOGICAL_UNITS[unit], sort
    unit = TIME_UNITS.get(node.connect or "", "")
    if not unit:
        return None
    name = (node.connect or "").rpartition(".")[2]
    return unit, Sort.DATE if unit == "d" else Sort.MOMENT if name.endswith("Timestamp") else Sort.TIME


def is_variable_decimal(node: Node) -> bool:
    """Whether the type is Debezium's record of a scale and an unscaled value."""
    return (
        node.kind is AvroKind.RECORD
        and node.connect == VARIABLE_DECIMAL
        and {"scale", "value"} <= set(node.names)
    )


def nearest_type(node: Node, depth: int = 1) -> DataType | None:
    """Return the nearest column type, in which values have the same text in JSON; None if there is no such type."""
    if depth > _DEPTH_MAX:
        return None
    if node.kind is AvroKind.UNION:
        branches = [each for each in node.children if each.kind is not AvroKind.NULL]
        return nearest_type(branches[0], depth) if len(branches) == 1 else None
    meaning = counted(node)
    if meaning is not None:
        unit, sort = meaning
        if sort is Sort.DATE:
            return types.DATE
        if sort is Sort.MOMENT:
            return time_type(node.connect)
        made = {Sort.TIME: types.time, Sort.INSTANT: types.timestamp_ltz}.get(sort, types.timestamp)
        return made(_DIGITS[unit])
    if node.logical == "decimal":
        return types.decimal(types.MAX_DECIMAL_PRECISION, node.scale) if node.scale <= 38 else None
    if node.kind in _PLAIN:
        return _PLAIN[node.kind]
    inside = [nearest_type(each, depth + 1) for each in node.children]
    if None in inside or not inside:
        return None
    parts = [each for each in inside if each is not None]
    match node.kind:
        case AvroKind.ARRAY:
            return types.array_of(parts[0])
        case AvroKind.MAP:
            return types.map_of(types.STRING, parts[0])
        case AvroKind.RECORD:
            return types.row_of(*zip(node.names, parts, strict=True))
    return None
