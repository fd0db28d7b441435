"""Mapping between columns and fields of a lake table: the part that all lake formats share.

A lake table identifies its fields by its own numbers. The mapping is stored in its properties (Iceberg) or options
(Paimon), in the same commit as every change of its schema:

    headrace.columns      {"0": 1, ...}   column id -> field id in the lake, also of the system columns
    headrace.schema-id    id of the table schema that the fields were made from
    headrace.definition   whole definition; for plain topics this is the only copy (`model/lake/topics.py`)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from headrace.tablelayer.lake.adapter import TABLE_ID_PROPERTY, LakeError, RoundLostError
from headrace.tablelayer.model.lake.topics import from_stored, stored_text
from headrace.tablelayer.model.schema.schema import SYSTEM_COLUMNS, Column
from headrace.tablelayer.model.table.definition import StoredTable, TableDefinition
from headrace.tablelayer.model.table.lake_shape import has_system_columns
from headrace.tablelayer.model.types.column_types import TypeKind
from headrace.tablelayer.model.types.values import literal_sql
from headrace.tablelayer.spark.types import spark_type

COLUMNS_PROPERTY = "headrace.columns"
SCHEMA_ID_PROPERTY = "headrace.schema-id"
DEFINITION_PROPERTY = "headrace.definition"


def in_lake(definition: StoredTable, properties: Any | None) -> StoredTable:
    """Return the table as its lake table has it: with system columns, if they are recorded in its properties.

    `properties` are a Python or Java mapping; None: there is no lake table yet.
    """
    if properties is None:
        return definition.with_system_columns() if has_system_columns(definition) else definition
    recorded = json.loads(properties.get(COLUMNS_PROPERTY) or "{}")
    return definition.with_system_columns() if str(SYSTEM_COLUMNS[0].id) in recorded else definition


def column_properties(definition: StoredTable, fields: Mapping[int, int]) -> dict[str, str]:
    """Return the properties that store the mapping; `fields` is the lake's field id of each column id."""
    listed = {str(column): field for column, field in sorted(fields.items())}
    return {
        COLUMNS_PROPERTY: json.dumps(listed, separators=(",", ":")),
        SCHEMA_ID_PROPERTY: str(definition.schema.schema_id),
        DEFINITION_PROPERTY: stored_text(definition.without_system_columns()),
    }


def fields_by_column(text: str | None, definition: TableDefinition, first_field: int) -> dict[int, int]:
    """Return the lake's field id of each column id from the property; without it fields are numbered in order."""
    if text is None:
        first = definition.versions.schemas[0]
        return {column.id: index + first_field for index, column in enumerate(first.columns)}
    return {int(column): int(field) for column, field in json.loads(text).items()}


def stored_definition(definition: TableDefinition, properties: Any) -> StoredTable | None:
    """Return the definition in a lake table's properties (a Python or Java mapping); None if there is none."""
    text = properties.get(DEFINITION_PROPERTY)
    if text is None:
        return None
    return from_stored(text, definition.path, UUID(str(properties.get(TABLE_ID_PROPERTY))))


def is_of_another_schema(definition: TableDefinition, known: int) -> bool:
    """Return whether the lake table's fields, made from schema `known`, have to change.

    Raises RoundLostError if `known` is a newer schema.
    """
    if known > definition.schema.schema_id:
        raise RoundLostError(
            f"the lake table of {definition.path} already has the columns of schema {known}, but this round began with"
            f" schema {definition.schema.schema_id}: another tiering job committed first"
        )
    return known != definition.schema.schema_id


def check_nothing_is_lost(
    definition: TableDefinition, fields: Mapping[int, int], present: Iterable[int]
) -> None:
    """Check that the fields of all columns are among those `present`. Raises LakeError."""
    columns, there = {column.id: column for column in definition.schema.columns}, set(present)
    for column_id, field_id in fields.items():
        if column_id in columns and field_id not in there:
            raise LakeError(
                f"the lake table of {definition.path} has lost column '{columns[column_id].name}': another writer"
                " dropped it. Drop or rename the lake table to have it rebuilt"
            )


def columns_over(
    definition: TableDefinition,
    columns: Iterable[Column],
    fields: Mapping[int, int],
    names: Mapping[int, str],
) -> list[Any]:
    """Return Spark expressions for columns in the table's own types, over rows with these field `names` by id.

    Columns that the rows do not have yet get their default.
    """
    from pyspark.sql import functions

    chosen = []
    for column in columns:
        wanted = spark_type(column.type, column.name)
        source = names.get(fields.get(column.id, -1))
        if source is not None and _was_shorter(definition, column):
            found = functions.expr(f"rpad(`{source}`, {column.type.length}, X'00')")
        elif source is not None:
            found = functions.col(f"`{source}`")
        elif column.initial is None:
            found = functions.lit(None)
        else:
            found = functions.expr(literal_sql(column.initial, column.type))
        chosen.append(found.cast(wanted).alias(column.name))
    return chosen


def _was_shorter(definition: TableDefinition, column: Column) -> bool:
    """Return whether a BINARY(n) column was lengthened: old values in the lake keep their old length."""
    return column.type.kind is TypeKind.BINARY and any(
        other.id == column.id and other.type != column.type
        for schema in definition.history
        for other in schema.columns
    )
