"""Partition columns, the names of partitions, and the checks of both in a definition.

A partition's name is the values of the partition columns as text, joined by dots; its topic is `database.table.name`.
So values consist of A-Z a-z 0-9 _ - without a dot, which Kafka allows in a topic's name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from headrace.tablelayer.model.errors import invalid_table
from headrace.tablelayer.model.options.table_options import TableOptions, TimeUnit
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.types.column_types import TypeKind

PARTITION_KINDS = frozenset(
    {
        TypeKind.STRING,
        TypeKind.CHAR,
        TypeKind.BOOLEAN,
        TypeKind.TINYINT,
        TypeKind.SMALLINT,
        TypeKind.INT,
        TypeKind.BIGINT,
        TypeKind.DATE,
    }
)
"""Types whose values, except for texts, are always valid in the name of a topic."""
MAX_VALUE_LENGTH = 200  # Fluss's
_VALUE = re.compile(r"[A-Za-z0-9_-]+")
_AUTO_KINDS = frozenset({TypeKind.STRING, TypeKind.INT, TypeKind.BIGINT, TypeKind.DATE})


def values_of(name: str) -> tuple[str, ...]:
    """Return the values in a partition's name."""
    return tuple(name.split("."))


def value_problem(value: str) -> str | None:
    """Return why a text cannot be a partition's value; None if it can."""
    if not _VALUE.fullmatch(value) or len(value) > MAX_VALUE_LENGTH:
        return f"'{value}' cannot name a partition: use 1 to {MAX_VALUE_LENGTH} of the characters A-Z a-z 0-9 _ -"
    if value.startswith("__"):
        return f"'{value}' cannot name a partition: names that begin with '__' are reserved"
    return None


def check_partition_name(name: str) -> None:
    """Raise TableError(INVALID_TABLE) for an invalid partition name."""
    for value in values_of(name):
        problem = value_problem(value)
        if problem is not None:
            raise invalid_table(problem)


def check_partition_keys(
    table: str, schema: Schema, partition_keys: Sequence[str], bucket_key: Sequence[str]
) -> None:
    """Raise TableError(INVALID_TABLE) for invalid partition columns."""
    for position, name in enumerate(partition_keys):
        if name not in schema:
            raise invalid_table(
                f"partition column '{name}' is not a column of table {table}; columns: {', '.join(schema.names)}"
            )
        if name in partition_keys[:position]:
            raise invalid_table(f"partition column '{name}' of table {table} is given twice")
        if schema.primary_key and name not in schema.primary_key:
            raise invalid_table(
                f"partition column '{name}' is not in the primary key ({', '.join(schema.primary_key)}): "
                "only then does a key tell its partition"
            )
        if name in bucket_key:
            raise invalid_table(
                f"partition column '{name}' is in the bucket key: a partition has a single value of it"
            )
        column = schema.column(name)
        if column.type.kind not in PARTITION_KINDS:
            allowed = ", ".join(sorted(kind.name for kind in PARTITION_KINDS))
            raise invalid_table(f"partition column '{name}' is {column.type}; it can be {allowed}")
        if column.aggregate is not None:
            raise invalid_table(f"partition column '{name}' cannot have a function")
    if partition_keys and schema.primary_key and set(partition_keys) == set(schema.primary_key):
        raise invalid_table(f"table {table}: the primary key needs a column that is not a partition column")


def check_auto_partition(
    table: str, schema: Schema, partition_keys: Sequence[str], settings: TableOptions
) -> None:
    """Raise TableError(INVALID_TABLE) unless the options of automatic partitions fit the table."""
    if not settings.auto_partition:
        return
    if not partition_keys:
        raise invalid_table(f"table {table}: '{TableOptions.auto_partition.name}' needs PARTITIONED BY")
    key = settings.auto_partition_key
    if key is None:
        if len(partition_keys) > 1:
            raise invalid_table(
                f"table {table} has several partition columns: set '{TableOptions.auto_partition_key.name}' to the one "
                "that holds the time"
            )
        key = partition_keys[0]
    if key not in partition_keys:
        raise invalid_table(
            f"option '{TableOptions.auto_partition_key.name}' = '{key}' is not a partition column"
        )
    if len(partition_keys) > 1 and settings.auto_partition_precreate:
        raise invalid_table(
            f"table {table} has several partition columns: '{TableOptions.auto_partition_precreate.name}' must be '0', "
            "since the other columns' values are not known ahead"
        )
    column = schema.column(key)
    if column.type.kind not in _AUTO_KINDS:
        raise invalid_table(
            f"automatic partitions need a column of STRING, INT, BIGINT or DATE; '{key}' is {column.type}"
        )
    if column.type.kind is TypeKind.DATE and settings.auto_partition_unit is not TimeUnit.DAY:
        raise invalid_table(
            f"partition column '{key}' is a DATE: '{TableOptions.auto_partition_unit.name}' must be 'DAY', not "
            f"'{settings.auto_partition_unit}'"
        )
