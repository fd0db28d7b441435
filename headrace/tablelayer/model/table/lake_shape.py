"""Table shapes for which every tiering round would fail, so that their log would never be deleted.

They are refused when a table is created and when a change would lead to one, but not when a definition is read, so
that a table of an earlier release can still be read and altered.
"""

from __future__ import annotations

from headrace.tablelayer.model.options.table_options import DatalakeFormat, TableOptions
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.types.column_types import DataType, TypeKind

_ICEBERG_NAMES = frozenset(
    {"_deleted", "_file", "_last_updated_sequence_number", "_partition", "_pos", "_row_id", "_spec_id"}
)
_PAIMON_NAMES = frozenset({"_level", "_row_id", "_sequence_number", "_value_kind", "rowkind"})
_PAIMON_PREFIX = "_key_"
_ROUND_NAMES = frozenset({"_deleted", "_headrace_rank"})
"""Columns that a round over a primary-key table adds to its rows."""
_LAKE_NAMES = {DatalakeFormat.ICEBERG: "Iceberg", DatalakeFormat.PAIMON: "Paimon"}


def lake_complaint(definition: TableDefinition) -> str | None:
    """Return why a table with the lake enabled cannot be tiered; None if it can be, or if the lake is not enabled."""
    lake = definition.settings.datalake_format
    if not definition.settings.datalake_enabled or lake is None:
        return None
    option = f"'{TableOptions.datalake_enabled.name}' = 'true'"
    for column in definition.schema.columns:
        front = f"table {definition.path} has {option}, but column '{column.name}'"
        if column.type.contains(frozenset({TypeKind.TIME})):
            return (
                f"{front} is {column.type}: Spark, which writes the lake, has no TIME in {_LAKE_NAMES[lake]} tables."
                " Keep the time as STRING or INT, or leave the option out"
            )
        alike = _fields_alike(column.type)
        if alike is not None:
            return (
                f"{front} has the fields '{alike[0]}' and '{alike[1]}', which differ only by case: a lake table cannot"
                " tell them apart. Choose other names, or leave the option out"
            )
        if _is_reserved(definition, lake, column.name.lower()):
            return (
                f"{front} has a name that is reserved in {_LAKE_NAMES[lake]}. Choose another, or leave the option"
                " out"
            )
    return None


def _is_reserved(definition: TableDefinition, lake: DatalakeFormat, name: str) -> bool:
    if definition.is_primary_key_table and name in _ROUND_NAMES:
        return True
    if lake is DatalakeFormat.ICEBERG:
        return name in _ICEBERG_NAMES
    return name in _PAIMON_NAMES or name.startswith(_PAIMON_PREFIX)


def _fields_alike(data_type: DataType) -> tuple[str, str] | None:
    """Return two fields of one ROW, here or inside, whose names differ only by case."""
    seen: dict[str, str] = {}
    for field in data_type.fields:
        other = seen.setdefault(field.name.lower(), field.name)
        if other != field.name:
            return other, field.name
        found = _fields_alike(field.type)
        if found is not None:
            return found
    return None
