"""Column types in DuckDB's words, and rows of DuckDB's in the types of columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tablelayer.model.schema.schema import Column
from tablelayer.model.types.column_types import DataType, TypeKind

_PLAIN = {
    TypeKind.CHAR: "VARCHAR",
    TypeKind.STRING: "VARCHAR",
    TypeKind.BINARY: "BLOB",
    TypeKind.BYTES: "BLOB",
    TypeKind.INT: "INTEGER",
    TypeKind.TIME: "TIME",
    TypeKind.TIMESTAMP_LTZ: "TIMESTAMPTZ",
}
_MOMENTS = {"s": "TIMESTAMP_S", "ms": "TIMESTAMP_MS", "us": "TIMESTAMP", "ns": "TIMESTAMP_NS"}


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def duckdb_type(data_type: DataType) -> str:
    """The type of DuckDB's that holds the values of a column."""
    kind = data_type.kind
    if kind is TypeKind.DECIMAL:
        return f"DECIMAL({data_type.precision}, {data_type.scale})"
    if kind is TypeKind.TIMESTAMP:
        return _MOMENTS[data_type.unit]
    if kind is TypeKind.ARRAY:
        return f"{duckdb_type(data_type.fields[0].type)}[]"
    if kind is TypeKind.MAP:
        key, value = (duckdb_type(field.type) for field in data_type.fields)
        return f"MAP({key}, {value})"
    if kind is TypeKind.ROW:
        fields = ", ".join(f"{quoted(field.name)} {duckdb_type(field.type)}" for field in data_type.fields)
        return f"STRUCT({fields})"
    return _PLAIN.get(kind, kind.value)


def cast_sql(expression: str, column: Column) -> str:
    """An expression as a value of a column: rounded and cut as SQL assigns."""
    text = f"CAST(({expression}\n) AS {duckdb_type(column.type)})"
    if column.type.kind is TypeKind.TIMESTAMP_LTZ and column.type.unit in ("s", "ms"):
        return f"date_trunc('{'second' if column.type.unit == 's' else 'millisecond'}', {text})"
    return text


def cut_moments(rows: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """Rows of a query, in whose moments what is finer than their columns is left out, and those without a time zone are
    UTC's."""
    arrays = list(rows.columns)
    for index, (field, column) in enumerate(zip(rows.schema, columns, strict=True)):
        target = column.type.arrow()
        if pa.types.is_timestamp(field.type) and pa.types.is_timestamp(target) and field.type != target:
            arrays[index] = arrays[index].cast(target, safe=False)
    return pa.table(arrays, names=[column.name for column in columns])
