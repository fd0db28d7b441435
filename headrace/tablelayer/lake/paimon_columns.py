"""Columns of a table as fields of its Paimon table: matched by id, carried over, and read back.

| table | Paimon |
|---|---|
| CHAR(n), STRING | STRING |
| BINARY(n), BYTES | BYTES |
| TIMESTAMP(p), TIMESTAMP_LTZ(p) | TIMESTAMP(6), TIMESTAMP(6) WITH LOCAL TIME ZONE: Spark's own |
| TIME(p) | none: Spark does not read Paimon's |

The other types have the same name on both sides; the element types of ARRAY, MAP and ROW follow the same rules. The
lake table's options map fields to columns (`columns.py`).

A column that was dropped and added again is therefore a new field, and the old values are not reused. New fields come
last. Paimon has no defaults for rows that are older than a column. Our reads fill them in for files that were written
with an older schema; other engines see NULL there. Compaction would store the NULLs, so a table with such files is not
compacted (`filled_on_read`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
from headrace.tablelayer.lake.paimon_jvm import Jvm
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import StoredTable, TableDefinition
from headrace.tablelayer.model.types.column_types import DataType, TypeKind

_SIMPLE = {
    TypeKind.BOOLEAN: "BOOLEAN",
    TypeKind.TINYINT: "TINYINT",
    TypeKind.SMALLINT: "SMALLINT",
    TypeKind.INT: "INT",
    TypeKind.BIGINT: "BIGINT",
    TypeKind.FLOAT: "FLOAT",
    TypeKind.DOUBLE: "DOUBLE",
    TypeKind.CHAR: "STRING",
    TypeKind.STRING: "STRING",
    TypeKind.DATE: "DATE",
    TypeKind.BINARY: "BYTES",
    TypeKind.BYTES: "BYTES",
}


def paimon_type(jvm: Jvm, column: Column) -> Any:
    """Return the column's type as Paimon's `DataType`. Raises LakeError for TIME."""
    if column.type.contains(frozenset({TypeKind.TIME})):
        raise LakeError(
            f"column '{column.name}' is {column.type}: Spark does not read Paimon's TIME,"
            " so the table cannot be tiered"
        )
    return _type_of(jvm, column.type).copy(column.nullable)


def _type_of(jvm: Jvm, data_type: DataType) -> Any:
    types = jvm.paimon.types.DataTypes
    kind = data_type.kind
    if data_type.is_nested:
        inside = [_type_of(jvm, field.type).copy(field.nullable) for field in data_type.fields]
        if kind is TypeKind.ARRAY:
            return types.ARRAY(inside[0])
        if kind is TypeKind.MAP:
            return types.MAP(*inside)
        named = zip(data_type.fields, inside, strict=True)
        # Paimon renumbers the fields when the column is created.
        made = [jvm.paimon.types.DataField(n, field.name, part) for n, (field, part) in enumerate(named)]
        return jvm.paimon.types.RowType(jvm.list_of(made))
    if kind is TypeKind.DECIMAL:
        return types.DECIMAL(data_type.precision, data_type.scale)
    if kind is TypeKind.TIMESTAMP:
        return types.TIMESTAMP(6)
    if kind is TypeKind.TIMESTAMP_LTZ:
        return types.TIMESTAMP_WITH_LOCAL_TIME_ZONE(6)
    return getattr(types, _SIMPLE[kind])()


def _fields_inside(data_type: DataType) -> int:
    """Return the number of ROW fields in a type: Paimon numbers them like columns, after their column."""
    own = len(data_type.fields) if data_type.kind is TypeKind.ROW else 0
    return own + sum(_fields_inside(field.type) for field in data_type.fields)


def spark_ddl_of(kind: Any) -> str:
    """Return a Paimon `DataType` as it is in Paimon's Parquet files, in Spark's DDL."""
    root = str(kind.getTypeRoot().name())
    if root == "ARRAY":
        return f"array<{spark_ddl_of(kind.getElementType())}>"
    if root == "MAP":
        return f"map<{spark_ddl_of(kind.getKeyType())},{spark_ddl_of(kind.getValueType())}>"
    if root == "ROW":
        fields = ",".join(f"`{field.name()}`:{spark_ddl_of(field.type())}" for field in kind.getFields())
        return f"struct<{fields}>"
    plain = str(kind.asSQLString()).removesuffix(" NOT NULL")
    if plain.startswith("TIMESTAMP("):
        return "timestamp" if plain.endswith("WITH LOCAL TIME ZONE") else "timestamp_ntz"
    return {"BYTES": "binary"}.get(plain, plain.lower())


def new_table_options(definition: StoredTable) -> dict[str, str]:
    """Return the options of a table created with these columns in order: Paimon numbers them from 0."""
    fields, following = {}, 0
    for column in definition.schema.columns:
        fields[column.id] = following
        following += 1 + _fields_inside(column.type)
    return column_properties(definition, fields)


def _fields_of(table: Any, definition: TableDefinition) -> dict[int, int]:
    """Return Paimon's field id of each column id that the lake table knows."""
    return fields_by_column(table.options().get(COLUMNS_PROPERTY), definition, 0)


def needs_evolution(table: Any, definition: TableDefinition) -> bool:
    """Return whether the lake table was made from another schema. Raises RoundLostError if that one is newer."""
    return is_of_another_schema(definition, int(table.options()[SCHEMA_ID_PROPERTY]))


def schema_changes(jvm: Jvm, table: Any, definition: StoredTable) -> Any:
    """Return a Java list of `SchemaChange`s, to apply in order, that give the lake table its present columns.

    Raises LakeError when another writer dropped a column.
    """
    change = jvm.paimon.schema.SchemaChange
    by_id = {field.id(): field for field in table.schema().fields()}
    fields = _fields_of(table, definition)
    columns = {column.id: column for column in definition.schema.columns}
    check_nothing_is_lost(definition, fields, by_id)
    changes = [
        change.dropColumn(by_id[field_id].name())
        for column_id, field_id in fields.items()
        if column_id not in columns and field_id in by_id
    ]
    kept = {column_id: by_id[field_id] for column_id, field_id in fields.items() if column_id in columns}
    renamed = {each: field.name() for each, field in kept.items() if field.name() != columns[each].name}
    for column_id, name in renamed.items():  # through an unused name: columns may have exchanged their names
        changes.append(change.renameColumn(name, f"headrace_{column_id}_{name}"))
    for column_id, name in renamed.items():
        changes.append(change.renameColumn(f"headrace_{column_id}_{name}", columns[column_id].name))
    for column_id, field in kept.items():
        changes += _changes_of(jvm, change, field, columns[column_id])
    following = int(table.schema().highestFieldId()) + 1
    after = {column_id: field_id for column_id, field_id in fields.items() if column_id in columns}
    for column in definition.schema.columns:
        if column.id in fields:
            continue
        # Existing rows have no value, so the field is nullable even if the column is not.
        changes.append(change.addColumn(column.name, paimon_type(jvm, column).copy(True), column.comment))
        after[column.id] = following
        following += 1 + _fields_inside(column.type)
    changes += [change.setOption(name, value) for name, value in column_properties(definition, after).items()]
    return jvm.list_of(changes)


def _changes_of(jvm: Jvm, change: Any, field: Any, column: Column) -> list[Any]:
    changes = []
    wanted = paimon_type(jvm, column)
    if field.type().copy(True).asSQLString() != wanted.copy(True).asSQLString():
        changes.append(change.updateColumnType(column.name, wanted.copy(field.type().isNullable())))
    if column.nullable and not field.type().isNullable():
        changes.append(change.updateColumnNullability(column.name, True))
    if field.description() != column.comment:
        changes.append(change.updateColumnComment(column.name, column.comment))
    return changes


def filled_on_read(table: Any, definition: TableDefinition, schema_ids: Iterable[int]) -> bool:
    """Return whether files of these schemas lack a column with a default, which only our reads fill in."""
    fields = _fields_of(table, definition)
    defaulted = [fields[c.id] for c in definition.schema.columns if c.initial is not None and c.id in fields]
    return any(
        field_id not in file_fields(table, schema_id)
        for schema_id in set(schema_ids)
        for field_id in defaulted
    )


def file_fields(table: Any, schema_id: int) -> dict[int, tuple[str, str]]:
    """Return the fields of the schema of a file: (name, Spark's DDL type) by field id."""
    fields = table.schemaManager().schema(schema_id).fields()
    return {field.id(): (field.name(), spark_ddl_of(field.type())) for field in fields}


def columns_of_files(
    table: Any, definition: TableDefinition, columns: Sequence[Column], known: Mapping[int, tuple[str, str]]
) -> list[Any]:
    """Return Spark expressions for the table's present columns over files with the fields `known`."""
    names = {field_id: name for field_id, (name, _) in known.items()}
    return columns_over(definition, columns, _fields_of(table, definition), names)
