"""Partitions of a Paimon table, as its manifests and its folders have them. Pure.

A manifest entry's `_PARTITION` is the number of partition columns (4 bytes, big endian) and a `BinaryRow` of their
values, whose layout `model/table/paimon_buckets.py` describes. The files are in `key=value/…/bucket-n`. There a date is
the number of days since 1970 by default (option `partition.legacy-name`), otherwise a date. Characters that are special
in a path or a URI are `%XX`, and a null or blank value is `partition.default-name`. Source: `SerializationUtils`,
`InternalRowPartitionComputer` and `PartitionPathUtils` of Paimon 1.4.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import pyarrow as pa

from headrace.tablelayer.model.filters.conditions import Predicate, arrow_expression, columns_of
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.column_types import TEXT_KINDS, TypeKind

PartitionValue = bool | int | str | None
"""Value of one partition column; a date is the number of days since 1970."""

_FORMATS = {
    TypeKind.BOOLEAN: "<?",
    TypeKind.TINYINT: "<b",
    TypeKind.SMALLINT: "<h",
    TypeKind.INT: "<i",
    TypeKind.BIGINT: "<q",
    TypeKind.DATE: "<i",
}
_INLINE = 0x80
"""Flag in a slot's last byte: the text itself is in the slot, and the other bits are its length."""
_ESCAPED = frozenset("\"#%'*/:=?\\{}[]^\x7f") | {chr(code) for code in range(32)}


def partition_values(data: bytes, columns: Sequence[Column]) -> tuple[PartitionValue, ...]:
    """Parse a manifest entry's `_PARTITION` into one value per partition column.

    Raises ValueError if the bytes are not such a row, or the row has other columns.
    """
    count = len(columns)
    header = (count + 8 + 63) // 64 * 8
    if len(data) < 4 + header + 8 * count or int.from_bytes(data[:4], "big") != count:
        raise ValueError(f"{data.hex()} is not a partition of {count} columns")
    row = data[4:]
    return tuple(_value(row, header, at, column) for at, column in enumerate(columns))


def _value(row: bytes, header: int, at: int, column: Column) -> PartitionValue:
    bit = at + 8
    if row[bit // 8] >> (bit % 8) & 1:
        return None
    slot = row[header + 8 * at :][:8]
    kind = column.type.kind
    if kind in TEXT_KINDS:
        if slot[7] & _INLINE:
            return slot[: slot[7] & ~_INLINE].decode()
        size, position = struct.unpack("<II", slot)
        if position + size > len(row):
            raise ValueError(f"column {column.name} ends after the partition {row.hex()}")
        return row[position : position + size].decode()
    if kind not in _FORMATS:
        raise ValueError(f"column {column.name} is {column.type}, which cannot be a partition column")
    number: bool | int = struct.unpack_from(_FORMATS[kind], slot)[0]
    return number


def partition_folder(
    columns: Sequence[Column], values: Sequence[PartitionValue], options: Mapping[str, str]
) -> str:
    """Return the folder of a partition's buckets below the table's data; `options` are the lake table's."""
    legacy = options.get("partition.legacy-name", "true").lower() == "true"
    default = options.get("partition.default-name", "__DEFAULT_PARTITION__")
    parts = []
    for column, value in zip(columns, values, strict=True):
        text = _text(column, value, legacy)
        parts.append(f"{_escaped(column.name)}={_escaped(text if text.strip() else default)}")
    return "/".join(parts)


def _text(column: Column, value: PartitionValue, legacy: bool) -> str:
    if value is None:
        return ""
    if column.type.kind is TypeKind.DATE and not legacy:
        return str(_arrow(column, value).cast(pa.string())[0])
    return str(value).lower() if isinstance(value, bool) else str(value)


def _arrow(column: Column, value: PartitionValue) -> pa.Array:
    """Return one value in the column's own type."""
    kind = column.type.arrow()
    return pa.array([value], pa.int32() if pa.types.is_date32(kind) else kind).cast(kind)


def _escaped(text: str) -> str:
    return "".join(f"%{ord(each):02X}" if each in _ESCAPED else each for each in text)


def partition_condition(predicate: Predicate | None, columns: Sequence[Column]) -> Predicate | None:
    """Return the part of a predicate that uses only partition columns; None if there is none."""
    if predicate is None:
        return None
    names = {column.name for column in columns}
    parts = predicate[1:] if predicate[0] == "and" else [predicate]
    found = [part for part in parts if set(columns_of(part)) <= names]
    return ["and", *found] if found else None


def can_match(
    condition: Predicate | None, columns: Sequence[Column], values: Sequence[PartitionValue]
) -> bool:
    """Return whether a partition can have rows for which `partition_condition` holds."""
    if condition is None:
        return True
    arrays = [_arrow(column, value) for column, value in zip(columns, values, strict=True)]
    partition = pa.table(arrays, names=[column.name for column in columns])
    return bool(partition.filter(arrow_expression(condition, partition.schema)).num_rows)
