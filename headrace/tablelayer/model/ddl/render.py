"""Conversion of definitions to statements."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.tablelayer.model.options.table_options import BUCKET_COUNT, BUCKET_KEY
from headrace.tablelayer.model.schema.aggregates import options_of
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.types.quoting import quote_name, quote_text
from headrace.tablelayer.model.types.values import literal_sql


def create_table_sql(definition: TableDefinition) -> str:
    """Return the CREATE TABLE statement of a table; `parse` turns it into `definition.as_created()`."""
    lines = [_column_sql(column) for column in definition.schema.columns]
    if definition.is_primary_key_table:
        names = ", ".join(quote_name(name) for name in definition.schema.primary_key)
        lines.append(f"PRIMARY KEY ({names}) NOT ENFORCED")
    path = f"{quote_name(definition.path.database)}.{quote_name(definition.path.table)}"
    sql = f"CREATE TABLE {path} (\n  " + ",\n  ".join(lines) + "\n)"
    if definition.comment is not None:
        sql += f" COMMENT {quote_text(definition.comment)}"
    if definition.partition_keys:
        sql += f" PARTITIONED BY ({', '.join(quote_name(name) for name in definition.partition_keys)})"
    options = {BUCKET_COUNT: str(definition.bucket_count)} if definition.bucket_count else {}
    if definition.bucket_key != definition.default_bucket_key:
        options[BUCKET_KEY] = ",".join(definition.bucket_key)
    options.update(definition.options)
    for column in definition.schema.columns:
        if column.aggregate is not None:
            options.update(options_of(column.name, column.aggregate))
    if not options:
        return sql
    pairs = [f"{quote_text(name)} = {quote_text(value)}" for name, value in options.items()]
    return sql + " WITH (\n  " + ",\n  ".join(pairs) + "\n)"


def create_database_sql(name: str, comment: str | None, properties: Mapping[str, str]) -> str:
    """Return the CREATE DATABASE statement of a database."""
    sql = f"CREATE DATABASE {quote_name(name)}"
    if comment is not None:
        sql += f" COMMENT {quote_text(comment)}"
    if not properties:
        return sql
    pairs = [f"{quote_text(key)} = {quote_text(value)}" for key, value in sorted(properties.items())]
    return sql + " WITH (\n  " + ",\n  ".join(pairs) + "\n)"


def _column_sql(column: Column) -> str:
    sql = f"{quote_name(column.name)} {column.type}"
    if not column.nullable:
        sql += " NOT NULL"
    if column.default is not None:
        sql += f" DEFAULT {literal_sql(column.default, column.type)}"
    if column.comment is not None:
        sql += f" COMMENT {quote_text(column.comment)}"
    return sql
