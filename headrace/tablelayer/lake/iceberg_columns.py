"""Columns of a table as fields of its Iceberg table: matched by id, carried over, and read back.

Both sides identify columns and fields by id; the lake table's properties store the mapping (`columns.py`). A column
that was dropped and added again is therefore a new field, and the old values are not reused. A column added with a
default for existing rows has it as Iceberg's initial default, which requires format version 3; other tables stay at
version 2. The order of columns is not carried over: new fields come last.

A snapshot is read in the schema that it was written with. A read pads, renames and casts by id, like every other reader
of the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.tablelayer.lake.adapter import LakeError
from headrace.tablelayer.lake.columns import (
    COLUMNS_PROPERTY,
    SCHEMA_ID_PROPERTY,
    check_nothing_is_lost,
    column_properties,
    columns_over,
    fields_by_column,
    is_of_another_schema,
)
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import StoredTable, TableDefinition
from headrace.tablelayer.model.types.column_types import FLOAT_KINDS, DataType, TypeKind
from headrace.tablelayer.spark.types import spark_type

_FORMAT_PROPERTY = "format-version"
_FORMAT_WITH_DEFAULTS = 3

_PRIMITIVES = {
    TypeKind.BOOLEAN: "boolean",
    TypeKind.TINYINT: "int",
    TypeKind.SMALLINT: "int",
    TypeKind.INT: "int",
    TypeKind.BIGINT: "long",
    TypeKind.FLOAT: "float",
    TypeKind.DOUBLE: "double",
    TypeKind.CHAR: "string",
    TypeKind.STRING: "string",
    TypeKind.DATE: "date",
    TypeKind.TIMESTAMP: "timestamp",
    TypeKind.TIMESTAMP_LTZ: "timestamptz",
    TypeKind.BINARY: "binary",
    TypeKind.BYTES: "binary",
}


def spark_ddl_type(column: Column) -> str:
    """Return the column's type in Spark's DDL for Iceberg.

    Raises LakeError for types that Spark's Iceberg tables do not have.
    """
    if column.type.contains(frozenset({TypeKind.TIME})):
        raise LakeError(
            f"column '{column.name}' is {column.type}: Spark's Iceberg tables have no TIME,"
            " so the table cannot be tiered"
        )
    return _ddl_type(column.type, column.name)


def _ddl_type(data_type: DataType, name: str) -> str:
    if data_type.is_nested:
        inside = [_ddl_type(field.type, name) for field in data_type.fields]
        if data_type.kind is not TypeKind.ROW:
            return f"{data_type.kind.value}<{', '.join(inside)}>"
        fields = zip(data_type.fields, inside, strict=True)
        return f"STRUCT<{', '.join(f'`{field.name}`: {part}' for field, part in fields)}>"
    if data_type.kind in (TypeKind.TINYINT, TypeKind.SMALLINT):
        return "int"
    return str(spark_type(data_type, name).simpleString())


def new_table_properties(definition: StoredTable) -> dict[str, str]:
    """Return the properties of a table created with these columns in order: Iceberg numbers them from 1."""
    fields = {column.id: index + 1 for index, column in enumerate(definition.schema.columns)}
    return column_properties(definition, fields)


def _fields_of(table: Any, definition: TableDefinition) -> dict[int, int]:
    """Return Iceberg's field id of each column id that the lake table knows."""
    return fields_by_column(table.properties().get(COLUMNS_PROPERTY), definition, 1)


def _schema_id_of(table: Any, definition: TableDefinition) -> int:
    text = table.properties().get(SCHEMA_ID_PROPERTY)
    return definition.versions.schemas[0].schema_id if text is None else int(text)


def needs_evolution(table: Any, definition: TableDefinition) -> bool:
    """Return whether the lake table was made from another schema. Raises RoundLostError if that one is newer."""
    return is_of_another_schema(definition, _schema_id_of(table, definition))


def check_fields(table: Any, definition: TableDefinition) -> None:
    """Check that every column's field has the column's name. Raises LakeError.

    A catalog may number the fields of a new table in its own way.
    """
    names = {field.fieldId(): field.name() for field in table.schema().columns()}
    fields = _fields_of(table, definition)
    for column in definition.schema.columns:
        name = names.get(fields[column.id])
        if name is None or name.lower() != column.name.lower():
            raise LakeError(
                f"field {fields[column.id]} of the lake table of {definition.path} should be column '{column.name}'"
                f" but is {name!r}: its catalog did not number the fields from 1 as Iceberg's own catalogs do, or"
                " another writer changed the lake table. Nothing was written; use another catalog, or have the lake"
                " table rebuilt"
            )


def evolve_columns(spark: Any, table: Any, definition: StoredTable) -> None:
    """Apply the table's schema to the lake table in one Iceberg commit. Raises LakeError, RoundLostError."""
    if not needs_evolution(table, definition):
        return
    java = spark._jvm
    by_id = {field.fieldId(): field for field in table.schema().columns()}
    fields = _fields_of(table, definition)
    columns = {column.id: column for column in definition.schema.columns}
    check_nothing_is_lost(definition, fields, by_id)
    new = [column for column in definition.schema.columns if column.id not in fields]
    transaction = table.newTransaction()
    _set_properties(transaction, _format_properties(table, new))
    update = transaction.updateSchema()
    for column_id, field_id in fields.items():
        if field_id not in by_id:
            continue
        name = by_id[field_id].name()
        if column_id in columns:
            _change(java, update, by_id[field_id], columns[column_id])
        else:
            update.deleteColumn(name)
    update.commit()
    if new:
        update = transaction.updateSchema()  # a separate update: a new name may have been another column's
        for column in new:
            _add(java, update, column)
        update.commit()
    after = {field.name(): field.fieldId() for field in transaction.table().schema().columns()}
    kept = {column.id: after[column.name] for column in definition.schema.columns}
    _set_properties(transaction, column_properties(definition, kept))
    transaction.commitTransaction()


def _format_properties(table: Any, new: list[Column]) -> dict[str, str]:
    if all(column.initial is None for column in new):
        return {}
    if int(table.operations().current().formatVersion()) >= _FORMAT_WITH_DEFAULTS:
        return {}
    return {_FORMAT_PROPERTY: str(_FORMAT_WITH_DEFAULTS)}


def _set_properties(transaction: Any, properties: Mapping[str, str]) -> None:
    if not properties:
        return
    update = transaction.updateProperties()
    for name, value in properties.items():
        update.set(name, value)
    update.commit()


def _change(java: Any, update: Any, field: Any, column: Column) -> None:
    """Add the change of one field to `update`, whose parts all use the names from before the update."""
    name = field.name()
    if not column.type.is_nested:  # the inside of a nested column never changes
        wanted = _iceberg_type(java, column)
        if not field.type().equals(wanted):
            update.updateColumn(name, wanted)
    if field.isRequired() and column.nullable:
        update.makeColumnOptional(name)
    if field.doc() != column.comment and not (field.doc() is None and column.comment is None):
        update.updateColumnDoc(name, column.comment)
    if name != column.name:
        update.renameColumn(name, column.name)


def _add(java: Any, update: Any, column: Column) -> None:
    """Add a top-level column: without the parent (None), a dot in its name would be taken as a path."""
    arguments = [_iceberg_type(java, column)]
    if column.comment is not None:  # a null would be ambiguous between overloads
        arguments.append(column.comment)
    if column.initial is not None:
        arguments.append(_literal(java, column.initial, column.type).to(arguments[0]))
    if column.nullable or column.initial is None:
        update.addColumn(None, column.name, *arguments)
    else:
        update.addRequiredColumn(None, column.name, *arguments)


def _iceberg_type(java: Any, column: Column) -> Any:
    """Return Iceberg's type of a column; Iceberg renumbers nested fields when they are added. Raises LakeError."""
    spark_ddl_type(column)
    return _type(java, column.type)


def _type(java: Any, data_type: DataType) -> Any:
    types = java.org.apache.iceberg.types.Types
    if data_type.kind is TypeKind.DECIMAL:
        return types.fromPrimitiveString(f"decimal({data_type.precision}, {data_type.scale})")
    if not data_type.is_nested:
        return types.fromPrimitiveString(_PRIMITIVES[data_type.kind])
    inside = [_type(java, field.type) for field in data_type.fields]
    if data_type.kind is TypeKind.ARRAY:
        return types.ListType.ofOptional(1, *inside)
    if data_type.kind is TypeKind.MAP:
        return types.MapType.ofOptional(1, 2, *inside)
    fields = java.java.util.ArrayList()
    for position, (field, part) in enumerate(zip(data_type.fields, inside, strict=True)):
        fields.add(types.NestedField.optional(position + 1, field.name, part))
    return types.StructType.of(fields)


def _literal(java: Any, text: str, data_type: DataType) -> Any:
    """Return a default value as Iceberg's literal."""
    literal = java.org.apache.iceberg.expressions.Literal
    kind = data_type.kind
    if kind is TypeKind.BOOLEAN:
        return literal.of(text == "true")
    if kind in (TypeKind.TINYINT, TypeKind.SMALLINT, TypeKind.INT, TypeKind.BIGINT):
        return literal.of(int(text))
    if kind in (TypeKind.FLOAT, TypeKind.DOUBLE):
        return literal.of(float(text))
    if kind in (TypeKind.BINARY, TypeKind.BYTES):
        return literal.of(java.java.nio.ByteBuffer.wrap(bytearray.fromhex(text)))
    if kind in (TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_LTZ):
        return literal.of(text.replace(" ", "T"))
    return literal.of(text)


def read_columns(spark: Any, table: Any, name: str, definition: TableDefinition, snapshot: int | None) -> Any:
    """Return the rows at a snapshot (None: now) with the table's own columns and types.

    The types are cast because Iceberg has no TINYINT and no SMALLINT. Conditions on FLOAT and DOUBLE stay in Spark:
    Iceberg's statistics tell -0.0 from 0.0 and leave out NaN, so that files with such rows would be skipped.
    """
    from pyspark.sql import functions

    reader = spark.read if snapshot is None else spark.read.option("versionAsOf", str(snapshot))
    schema = table.schema()
    if snapshot is not None:
        written_under = table.snapshot(snapshot).schemaId()
        schema = table.schemas().get(written_under) or schema
    text = spark._jvm.org.apache.iceberg.SchemaParser.toJson(
        schema
    )  # one call; each step of a loop would be another
    names = {field["id"]: field["name"] for field in json.loads(text)["fields"]}
    columns = definition.schema.columns
    chosen = columns_over(definition, columns, _fields_of(table, definition), names)
    for place, column in enumerate(columns):
        if column.type.contains(FLOAT_KINDS):  # Spark pushes no condition on a function down
            chosen[place] = functions.coalesce(chosen[place], chosen[place]).alias(column.name)
    return reader.table(name).select(*chosen)
