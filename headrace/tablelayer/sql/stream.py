"""Queries that go on: the rows of one table and then its changes, each with its kind (`op`), until they are stopped.

Each change is filtered and calculated with alone. So such a query has no aggregates, joins, windows, sorting or
subqueries: a query that needs more than one row at a time is a stream of Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from headrace.tablelayer.client import ChangeType, Connection, ScanBatch, Table
from headrace.tablelayer.lake.names import CHANGELOG_SUFFIX
from headrace.tablelayer.model.ddl import Select
from headrace.tablelayer.model.ddl.streams import OP, stream_query
from headrace.tablelayer.model.types.quoting import quoted
from headrace.tablelayer.sql.changes import as_changes, changes_schema, start_of
from headrace.tablelayer.sql.duck import check_names, connect, in_arrow
from headrace.tablelayer.sql.errors import SqlError

_SHORT = pa.array([change.short for change in ChangeType])


def stream(connection: Connection, select: Select, *, files: bool = True) -> pa.RecordBatchReader:
    """Return the rows of a query as they come. Raises SqlError for a query that cannot go on."""
    import duckdb

    try:
        name, query, limit = stream_query(select)
    except ValueError as error:
        raise SqlError(str(error)) from None
    past = select.moments.get(name)
    if past is not None and past.options is None:
        raise SqlError("a streaming query has no FOR SYSTEM_TIME AS OF: its table is read as it is now")
    path = name if past is None else past.table
    of_changes = path.endswith(CHANGELOG_SUFFIX)
    if "$" in path.removesuffix(CHANGELOG_SUFFIX):
        raise SqlError(f"{path} has no changes to wait for: name the table itself")
    table = connection.table(path.removesuffix(CHANGELOG_SUFFIX))
    if limit is not None and table.definition.is_primary_key_table and not of_changes:
        raise SqlError(
            f"{path} has a primary key: LIMIT of its changes is not a part of the table; leave it out"
        )
    start = start_of(past.options if past is not None else None, "earliest" if of_changes else "full", path)
    check_names(path, table.arrow_schema.names, None)
    source = table.arrow_schema if not of_changes else changes_schema(table.arrow_schema)
    source = pa.schema([pa.field(OP, pa.string()), *source])
    database = connect(files=files)
    try:
        database.register("changes", source.empty_table())
        schema = _without_op(database.sql(query)).to_arrow_reader(1).schema
        database.unregister("changes")
    except duckdb.Error as error:
        database.close()
        raise SqlError(str(error)) from error

    def rows() -> Iterator[pa.RecordBatch]:
        left = limit
        try:
            with table.scan(start=start, until=None) as scan:
                for batch in scan:
                    database.register("changes", _with_op(batch, table, source, of_changes=of_changes))
                    found = _without_op(database.sql(query)).to_arrow_table().cast(schema)
                    database.unregister("changes")
                    found = found if left is None else found.slice(0, left)
                    yield from found.to_batches()
                    if left is not None and (left := left - found.num_rows) <= 0:
                        return
        except duckdb.Error as error:
            raise SqlError(str(error)) from error
        finally:
            database.close()

    return pa.RecordBatchReader.from_batches(schema, rows())


def _without_op(answer: Any) -> Any:
    """Leave out the column that `*` has, too. The first column is the kind of each change."""
    if OP in answer.columns:
        kept = [(place, name) for place, name in enumerate(answer.columns, 1) if name != OP]
        answer = answer.project(", ".join(f"#{place} AS {quoted(name)}" for place, name in kept))
    return in_arrow(answer)


def _with_op(batch: ScanBatch, table: Table, source: pa.Schema, *, of_changes: bool) -> pa.Table:
    if of_changes:
        rows = as_changes([batch], table.arrow_schema).columns
        op: pa.Array = pa.array(["+I"] * batch.row_count)
    else:
        rows = batch.batch.columns
        op = _SHORT.take(pa.array(batch.change_types))
    return pa.Table.from_arrays([op, *rows], schema=source)
