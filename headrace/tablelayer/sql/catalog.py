"""`information_schema`: databases, tables and columns as rows, as in the SQL standard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from headrace.tablelayer.client import Connection, TableError, TableErrorCode
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.types.column_types import from_arrow
from headrace.tablelayer.sql.errors import SqlError, near

INFORMATION_SCHEMA = "information_schema"
_CATALOG = "headrace"
_INT = ("ordinal_position", "character_maximum_length", "numeric_precision", "numeric_scale")
_TABLES = {
    "schemata": ("catalog_name", "schema_name", "comment"),
    "tables": ("table_catalog", "table_schema", "table_name", "table_type", "comment"),
    "columns": (
        "table_catalog",
        "table_schema",
        "table_name",
        "column_name",
        "ordinal_position",
        "column_default",
        "is_nullable",
        "data_type",
        "comment",
    ),
    "key_column_usage": (
        "constraint_schema",
        "constraint_name",
        "table_schema",
        "table_name",
        "column_name",
        "ordinal_position",
    ),
    "views": ("table_catalog", "table_schema", "table_name", "view_definition"),
}


def information(
    connection: Connection, path: str, equal: Mapping[str, Any], views: Mapping[str, str]
) -> pa.Table:
    """Return one of the tables, with the rows that have the values `equal`. Raises SqlError for another name."""
    name = path.removeprefix(f"{INFORMATION_SCHEMA}.").lower()
    names = _TABLES.get(name)
    if names is None:
        raise SqlError(f"there is no {path}{near(name, _TABLES)}\nuse one of {', '.join(_TABLES)}")
    rows = list(_rows(connection, name, equal, views))
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    return pa.table(
        {
            each: pa.array(values, pa.int32() if each in _INT else pa.string())
            for each, values in zip(names, columns, strict=True)
        }
    )


def _rows(
    connection: Connection, name: str, equal: Mapping[str, Any], views: Mapping[str, str]
) -> Iterator[tuple[Any, ...]]:
    admin = connection.admin
    wanted = equal.get("schema_name" if name == "schemata" else "table_schema")
    databases = [each for each in admin.list_databases() if wanted is None or each == wanted]
    if name == "schemata":
        for database in databases:
            with _unless_dropped():
                yield _CATALOG, database, admin.describe_database(database).comment
        return
    if name in ("views", "tables"):
        for path, sql in views.items():
            database, _, view = path.partition(".")
            if database in databases:
                kind = ("VIEW", None) if name == "tables" else (sql,)
                yield _CATALOG, database, view, *kind
        if name == "views":
            return
    of_table = equal.get("table_name")
    for database in databases:
        tables = list[str]()
        with _unless_dropped():
            tables = admin.list_tables(database)
        for table in tables:
            if of_table is not None and table != of_table:
                continue
            with _unless_dropped():
                try:
                    definition = admin.describe_table(f"{database}.{table}")
                except TableError as error:
                    if error.code != TableErrorCode.INVALID_TABLE:
                        raise
                    if name == "tables":  # its definition cannot be read, which must not hide other tables
                        yield _CATALOG, database, table, "BASE TABLE", error.message
                    continue
                if name == "tables":
                    yield _CATALOG, database, table, "BASE TABLE", definition.comment
                elif name == "columns":
                    yield from _columns(database, table, definition)
                else:
                    for place, column in enumerate(definition.schema.primary_key, 1):
                        yield database, f"{table}_pkey", database, table, column, place


@contextmanager
def _unless_dropped() -> Iterator[None]:
    """Context that leaves out a database or table that was listed and has been dropped meanwhile."""
    try:
        yield
    except TableError as error:
        if error.code not in (TableErrorCode.TABLE_NOT_FOUND, TableErrorCode.DATABASE_NOT_FOUND):
            raise


def _columns(database: str, table: str, definition: TableDefinition) -> Iterator[tuple[Any, ...]]:
    for place, column in enumerate(definition.schema.columns, 1):
        nullable = column.nullable and column.name not in definition.schema.primary_key
        yield (
            _CATALOG, database, table, column.name, place, column.default, "YES" if nullable else "NO",
            str(column.type), column.comment,
        )  # fmt: skip


_COLUMNS = ("column", "type", "null", "key", "default", "comment")


def columns_of(definition: TableDefinition) -> pa.Table:
    """Return the answer to SHOW COLUMNS: a row for each column."""
    schema = definition.schema
    return _texts(
        (
            column.name,
            str(column.type),
            "YES" if column.nullable and column.name not in schema.primary_key else "NO",
            "PRI" if column.name in schema.primary_key else "",
            column.default,
            column.comment,
        )
        for column in schema.columns
    )


def columns_of_query(schema: pa.Schema) -> pa.Table:
    """Return the answer to DESCRIBE of a query: a row for each of its columns.

    The type is the one that CREATE TABLE AS gives it, or Arrow's name if a table cannot have it.
    """
    return _texts((field.name, _type_text(field.type), "YES", "", None, None) for field in schema)


def _type_text(arrow_type: pa.DataType) -> str:
    try:
        return str(from_arrow(arrow_type))
    except TableError:
        return str(arrow_type)


def _texts(rows: Iterable[tuple[str | None, ...]]) -> pa.Table:
    columns = zip(*rows, strict=True)
    return pa.table(
        {each: pa.array(values, pa.string()) for each, values in zip(_COLUMNS, columns, strict=True)}
    )
