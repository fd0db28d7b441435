"""Table shapes for which every tiering round would fail, so that their log would never be deleted.

They are refused when a table is created and when a change would lead to one, but not when a definition is read, so
that a table of an earlier release can still be read and altered.
"""

from __future__ import annotations

import re

from headrace.tablelayer.model.options.lake_options import AVRO, ORC, PAIMON_FILE_FORMAT
from headrace.tablelayer.model.options.table_options import DatalakeFormat, TableOptions
from headrace.tablelayer.model.schema.schema import MAX_COLUMNS, SYSTEM_COLUMNS
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.partition_expiry import expiry_complaint
from headrace.tablelayer.model.types.column_types import TIMESTAMP_KINDS, DataType, TypeKind

_ICEBERG_NAMES = frozenset(
    {"_deleted", "_file", "_last_updated_sequence_number", "_partition", "_pos", "_row_id", "_spec_id"}
)
_PAIMON_NAMES = frozenset({"_level", "_row_id", "_sequence_number", "_value_kind", "rowkind"})
_PAIMON_PREFIX = "_key_"
_ROUND_NAMES = frozenset({"_deleted", "_headrace_rank"})
"""Columns that a round over a primary-key table adds to its rows."""
_SYSTEM_NAMES = frozenset(column.name for column in SYSTEM_COLUMNS)
_FRACTION_DIGITS_MAX = 6
"""Digits of a fraction of a second in Spark, Iceberg, and the Parquet files that Spark writes."""
_AVRO_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_LAKE_NAMES = {DatalakeFormat.ICEBERG: "Iceberg", DatalakeFormat.PAIMON: "Paimon"}


def lake_complaint(definition: TableDefinition) -> str | None:
    """Return why a table with the lake enabled cannot be tiered; None if it can be, or if the lake is not enabled."""
    lake = definition.settings.datalake_format
    if not definition.settings.datalake_enabled or lake is None:
        return None
    wrong = expiry_complaint(definition)
    if wrong is not None:
        return f"table {definition.path}: {wrong}"
    option = f"'{TableOptions.datalake_enabled.name}' = 'true'"
    for column in definition.schema.columns:
        front = f"table {definition.path} has {option}, but column '{column.name}'"
        if column.type.contains(frozenset({TypeKind.TIME})):
            return (
                f"{front} is {column.type}: Spark, which writes the lake, has no TIME in {_LAKE_NAMES[lake]} tables."
                " Keep the time as STRING or INT, or leave the option out"
            )
        if _has_nanoseconds(column.type):
            return (
                f"{front} is {column.type}: Spark, which writes the lake, has microseconds. Choose a precision of"
                f" {_FRACTION_DIGITS_MAX} or less, keep the time as BIGINT, or leave the option out"
            )
        if _has_orc_files(definition) and column.type.contains(TIMESTAMP_KINDS):
            return (
                f"{front} is {column.type}, and '{PAIMON_FILE_FORMAT}' = '{ORC}': ORC's times cannot be read exactly"
                " without Spark. Choose 'parquet' or 'avro'"
            )
        if definition.options.get(PAIMON_FILE_FORMAT) == AVRO and not _names_fit_avro(
            column.name, column.type
        ):
            return (
                f"{front} has a name that Avro does not have, and '{PAIMON_FILE_FORMAT}' = '{AVRO}'. Choose names of"
                " letters from A to Z, digits and _, or the format 'parquet'"
            )
        alike = _fields_alike(column.type)
        if alike is not None:
            return (
                f"{front} has the fields '{alike[0]}' and '{alike[1]}', which differ only by case: a lake table cannot"
                " tell them apart. Choose other names, or leave the option out"
            )
        if _is_reserved(definition, lake, column.name.lower()):
            return (
                f"{front} has a name that is reserved in lake tables of {_LAKE_NAMES[lake]}. Choose another, or leave"
                " the option out"
            )
    return None


def _is_reserved(definition: TableDefinition, lake: DatalakeFormat, name: str) -> bool:
    if name in _SYSTEM_NAMES or (definition.is_primary_key_table and name in _ROUND_NAMES):
        return True
    if lake is DatalakeFormat.ICEBERG:
        return name in _ICEBERG_NAMES
    return name in _PAIMON_NAMES or name.startswith(_PAIMON_PREFIX)


def has_system_columns(definition: TableDefinition) -> bool:
    """Return whether a new lake table of this table gets `SYSTEM_COLUMNS`.

    A table of an earlier release may have a column whose name differs only by case, or have no room for them. ORC's
    times cannot be read exactly.
    """
    if _has_orc_files(definition):
        return False
    names = {name.lower() for name in definition.schema.names}
    fits = len(definition.schema.columns) + len(SYSTEM_COLUMNS) <= MAX_COLUMNS
    return definition.settings.datalake_system_columns and fits and not names & _SYSTEM_NAMES


def _has_orc_files(definition: TableDefinition) -> bool:
    return definition.options.get(PAIMON_FILE_FORMAT) == ORC


def _names_fit_avro(name: str, data_type: DataType) -> bool:
    fit = data_type.kind is not TypeKind.ROW or all(
        _AVRO_NAME.fullmatch(each.name) for each in data_type.fields
    )
    inside = all(_names_fit_avro("inside", each.type) for each in data_type.fields)
    return _AVRO_NAME.fullmatch(name) is not None and fit and inside


def _has_nanoseconds(data_type: DataType) -> bool:
    own = data_type.kind in TIMESTAMP_KINDS and data_type.precision > _FRACTION_DIGITS_MAX
    return own or any(_has_nanoseconds(field.type) for field in data_type.fields)


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
