"""Definitions of tables that have the columns of given rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headrace.tablelayer.client.errors import DataError
from headrace.tablelayer.client.write.conform import Data, as_rows
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.column_types import from_arrow


def typed_rows(data: Data) -> pa.Table:
    """Return rows of any accepted kind as an Arrow table, whose types are the data's own.

    The types of dicts are those of their values. Raises DataError for values without a common type.
    """
    try:
        rows = as_rows(data)
        if isinstance(rows, pa.Table):
            return rows
        names = dict.fromkeys(name for row in rows for name in row)
        return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise DataError(f"the rows have no types that a table can have: {error}") from None


def definition_of(
    path: TablePath,
    schema: pa.Schema,
    source: str,
    *,
    key: Sequence[str] = (),
    columns: Sequence[Column] = (),
    partition_keys: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    comment: str | None = None,
) -> TableDefinition:
    """Return the definition of a table with the columns of `schema`, which are those of `source`: "the query".

    `columns` has columns whose types are given; the types of all others are those of the schema. Raises TableError.
    """
    given = {column.name: column for column in columns}
    for kind, names in (
        ("a definition", given),
        ("the primary key", key),
        ("PARTITIONED BY", partition_keys),
    ):
        unknown = next((name for name in names if name not in schema.names), None)
        if unknown is not None:
            raise TableError(
                TableErrorCode.INVALID_TABLE,
                f"{source} has no column '{unknown}' for {kind}; it has {', '.join(schema.names)}",
            )
    found = []
    for index, field in enumerate(schema):
        if pa.types.is_null(field.type) and field.name not in given:
            raise TableError(
                TableErrorCode.INVALID_TABLE,
                f"column '{field.name}' of {source} has only nulls, which have no type: cast it, or leave it out",
            )
        try:
            found.append(given.get(field.name) or Column(index, field.name, from_arrow(field.type)))
        except TableError as error:
            raise TableError(error.code, f"column '{field.name}' of {source}: {error.message}") from None
    return TableDefinition(
        path,
        Schema.of(found, list(key)),
        options=options or {},
        comment=comment,
        partition_keys=tuple(partition_keys),
    )
