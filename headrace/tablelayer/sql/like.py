"""CREATE TABLE ... LIKE: a new table with the columns, keys, partitions and options of another one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from headrace.tablelayer.model.ddl import CreateTableLike, CreateTemporaryTable
from headrace.tablelayer.model.errors import invalid_table
from headrace.tablelayer.model.options.table_options import BUCKET_COUNT, BUCKET_KEY, TableOptions
from headrace.tablelayer.model.schema.aggregates import options_of
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import TableDefinition

_TIMES = TableOptions.processing_times.name


def definition_like(
    statement: CreateTableLike, source: TableDefinition | CreateTemporaryTable
) -> TableDefinition:
    """Return the definition of the new table. Raises TableError."""
    taken = statement.included
    options: dict[str, str] = {}
    comment, partition_keys = None, tuple[str, ...]()
    if isinstance(source, CreateTemporaryTable):
        columns = [
            each.column for each in source.columns if each.column is not None and each.metadata is None
        ]
        key = source.primary_key
        if "OPTIONS" in taken:
            raise invalid_table(
                f"the options of {source.path} are those of its connector: write LIKE {source.path.table} (EXCLUDING"
                " OPTIONS)"
            )
        times = _times(source, taken)
    else:
        columns = [replace(column, aggregate=None) for column in source.schema.columns]
        key = tuple(source.schema.primary_key)
        comment, partition_keys = source.comment, source.partition_keys
        options = {BUCKET_COUNT: str(source.bucket_count), **source.options}
        if source.bucket_key != source.default_bucket_key:
            options[BUCKET_KEY] = ",".join(source.bucket_key)
        for column in source.schema.columns:
            if column.aggregate is not None:
                options.update(options_of(column.name, column.aggregate))
        times = options.pop(_TIMES, "")
    if "OPTIONS" not in taken:
        options = {}
    if not statement.overwriting and (twice := sorted(options.keys() & statement.options)):
        raise invalid_table(f"option '{twice[0]}' is given twice: LIKE ... (OVERWRITING OPTIONS) replaces it")
    if "CONSTRAINTS" not in taken:
        key = ()
    elif key and statement.primary_key:
        raise invalid_table(
            f"{statement.source} has a primary key already: write LIKE ... (EXCLUDING CONSTRAINTS)"
        )
    if "PARTITIONS" not in taken:
        partition_keys = ()
    elif partition_keys and statement.partition_keys:
        raise invalid_table(
            f"{statement.source} has partitions already: write LIKE ... (EXCLUDING PARTITIONS)"
        )
    return TableDefinition(
        statement.path,
        Schema.of([*columns, *statement.columns], list(statement.primary_key or key)),
        options={
            **options,
            **({_TIMES: times} if times and "GENERATED" in taken else {}),
            **statement.options,
        },
        comment=statement.comment if statement.comment is not None else comment,
        partition_keys=statement.partition_keys or partition_keys,
    )


def _times(source: CreateTemporaryTable, taken: Sequence[str]) -> str:
    """Return the names of columns AS PROCTIME(). Raises TableError for columns that a table cannot have."""
    names = []
    for each in source.columns:
        if each.expression is not None and re.fullmatch(r"(?i)proctime\s*\(\s*\)", each.expression):
            names.append(each.name)
            continue
        part = (
            "GENERATED" if each.expression is not None else "METADATA" if each.metadata is not None else None
        )
        if part in taken:
            raise invalid_table(
                f"column '{each.name}' of {source.path} is not stored, and a table stores all columns: add EXCLUDING"
                f" {part} to LIKE"
            )
    return ",".join(names)
