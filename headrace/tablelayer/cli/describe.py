"""A table's definition on the screen."""

from __future__ import annotations

from typing import Any

import typer

from headrace.tablelayer.cli.options import Format
from headrace.tablelayer.cli.output import json_row, write_rows
from headrace.tablelayer.cli.words import counted
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.types.values import literal_sql

_COLUMNS = ("column", "type", "nullable", "default", "key", "comment")


def _rows(definition: StoredTable) -> list[tuple[str | bool | None, ...]]:
    return [
        (
            column.name,
            str(column.type),
            column.nullable,
            None if column.default is None else literal_sql(column.default, column.type),
            _key(definition, column.name),
            column.comment,
        )
        for column in definition.schema.columns
    ]


def definition_object(definition: StoredTable) -> dict[str, Any]:
    """Return everything that `describe_definition` shows, for programs."""
    return {
        "table": str(definition.path),
        "comment": definition.comment,
        "columns": [json_row(_COLUMNS, row) for row in _rows(definition)],
        "primary_key": definition.schema.primary_key,
        "buckets": definition.bucket_count,
        "bucket_key": definition.bucket_key,
        "partitioned_by": definition.partition_keys,
        "options": dict(definition.options),
        "id": str(definition.table_id),
        "schema": definition.schema.schema_id,
        "altered": len(definition.history),
    }


def describe_definition(definition: StoredTable, output: Format) -> None:
    """Show columns as rows; in table format also the properties of the whole table below."""
    rows = _rows(definition)
    if output is Format.TABLE:
        rows = [tuple("" if value is None else value for value in row) for row in rows]
    write_rows(_COLUMNS, rows, output)
    if output is not Format.TABLE:
        return
    if definition.comment:
        typer.echo(f"comment: {definition.comment}")
    by = f" by {', '.join(definition.bucket_key)}" if definition.bucket_key else ""
    typer.echo(f"{counted(definition.bucket_count, 'bucket')}{by}")
    if definition.partition_keys:
        typer.echo(f"partitioned by {', '.join(definition.partition_keys)}")
    for name, value in definition.options.items():
        typer.echo(f"  '{name}' = '{value}'")
    altered = f", altered {counted(len(definition.history), 'time')}" if definition.history else ""
    typer.echo(f"id {definition.table_id}, schema {definition.schema.schema_id}{altered}")


def _key(definition: StoredTable, name: str) -> str:
    words = []
    if name in definition.schema.primary_key:
        words.append("primary")
    if name in definition.partition_keys:
        words.append("partition")
    if name in definition.bucket_key and definition.bucket_key != definition.default_bucket_key:
        words.append("bucket")
    return ", ".join(words)
