"""DuckDB's types for column types."""

from __future__ import annotations

from headrace.tablelayer.model.types.column_types import DataType, TypeKind
from headrace.tablelayer.model.types.quoting import quoted

_PLAIN = {
    TypeKind.CHAR: "VARCHAR",
    TypeKind.STRING: "VARCHAR",
    TypeKind.BINARY: "BLOB",
    TypeKind.BYTES: "BLOB",
    TypeKind.INT: "INTEGER",
}
_MOMENTS = {"s": "TIMESTAMP_S", "ms": "TIMESTAMP_MS", "us": "TIMESTAMP", "ns": "TIMESTAMP_NS"}


def duckdb_type(data_type: DataType) -> str:
    """Return DuckDB's type for a column type."""
    kind = data_type.kind
    if kind is TypeKind.DECIMAL:
        return f"DECIMAL({data_type.precision}, {data_type.scale})"
    if kind is TypeKind.TIMESTAMP:
        return _MOMENTS[data_type.unit]
    if kind is TypeKind.TIMESTAMP_LTZ:
        return "TIMESTAMPTZ_NS" if data_type.unit == "ns" else "TIMESTAMPTZ"
    if kind is TypeKind.TIME:
        return "TIME_NS" if data_type.unit == "ns" else "TIME"
    if kind is TypeKind.ARRAY:
        return f"{duckdb_type(data_type.fields[0].type)}[]"
    if kind is TypeKind.MAP:
        key, value = (duckdb_type(field.type) for field in data_type.fields)
        return f"MAP({key}, {value})"
    if kind is TypeKind.ROW:
        fields = ", ".join(f"{quoted(field.name)} {duckdb_type(field.type)}" for field in data_type.fields)
        return f"STRUCT({fields})"
    return _PLAIN.get(kind, kind.value)
