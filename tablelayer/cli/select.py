"""The cheapest way to answer a SELECT.

Of a simple query over one table (see `tablelayer.model.ddl.select`): equality on the whole primary key is a
lookup, on the bucket key a prefix lookup, COUNT(*) (with a WHERE that the server understands) a count, LIMIT alone
a limit scan; MIN, MAX and COUNT of columns are asked of the server, which has statistics or reads these columns only.
Everything else reads the columns that it names, of the rows that can matter, into Arrow and is DuckDB's: the server
applies what it can of WHERE, of a keyed table it reads only between the bounds of the first key column, and with FOR
SYSTEM_TIME (or VERSION) AS OF as it was. `db.t$changelog` is the table's log with `_change_type`, `_bucket`,
`_log_offset` and `_commit_timestamp` in front.

`db.t$lake` is what is in the lake, `db.t$lake$snapshots` its snapshots. A log table whose log does not reach back to
its beginning any more, and that is tiered, is read from the lake and the log together; a keyed table is whole on the
server always. What comes from the lake goes through a temporary table of DuckDB's, batch by batch, which may be larger
than memory.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pyarrow as pa

from tablelayer.cli.changes import as_changes
from tablelayer.cli.errors import CommandError
from tablelayer.client import Connection, DataError, Table
from tablelayer.lake.names import CHANGELOG_SUFFIX, LAKE_SUFFIX, SNAPSHOTS_SUFFIX
from tablelayer.model.ddl import Select
from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.filters.conditions import DUCKDB, arrow_expression, push_down
from tablelayer.model.types.column_types import TypeKind

_SUFFIX = "$"
"""What a table's name cannot have in it, and the names of its other views have."""
_INEXACT = (TypeKind.FLOAT, TypeKind.DOUBLE)
"""A decimal literal is rounded to them in more than one way."""


def run_select(connection: Connection, select: Select) -> pa.Table | pa.RecordBatchReader:
    """The rows of a query. Raises TableError for a table that is not there, CommandError for what DuckDB refuses.

    Rows that come from the server as they are, are given as they come.
    """
    if select.table is not None and _SUFFIX not in select.table:
        answer = _without_scan(connection.table(select.table), select)
        if answer is not None:
            return answer
    if select.counts is not None and _SUFFIX not in select.counts:
        table = connection.table(select.counts)
        if _begins_in_lake(table):
            return _in_duckdb(connection, select)
        pushed = push_down(select.conditions.get(select.counts, ()), table.definition.schema, DUCKDB)
        if pushed.predicate is not None and pushed.complete:
            return _counted(table.count(arrow_expression(pushed.predicate, table.arrow_schema)))
    if select.reads is not None and _SUFFIX not in select.reads:
        arriving = _arriving(connection.table(select.reads), select)
        if arriving is not None:
            return arriving
    if select.aggregates and _SUFFIX not in select.tables[0]:
        table = connection.table(select.tables[0])
        answer = None if _begins_in_lake(table) else _of_extremes(table, select)
        if answer is not None:
            return answer
    return _in_duckdb(connection, select)


def _arriving(table: Table, select: Select) -> pa.RecordBatchReader | None:
    """The rows as the server sends them, if it can apply all of the WHERE; None if DuckDB has to see them."""
    schema: Any = table.definition.schema
    names = schema.names if select.columns_given is None else list(select.columns_given)
    if not set(names) <= set(schema.names) or _begins_in_lake(table):
        return None  # DuckDB knows what to say, and takes names in any case
    conditions = select.conditions.get(select.tables[0], ())
    wanted = None
    if conditions:
        first = schema.primary_key[0].lower() if schema.primary_key else None
        pushed = push_down(conditions, schema, DUCKDB)
        if pushed.predicate is None or not pushed.complete or first in select.bounds:
            return None  # between bounds of the key there is less to read
        wanted = arrow_expression(pushed.predicate, table.arrow_schema)
    if table.definition.is_partitioned and select.is_simple:
        table = _pruned(table, select) or table
    arrow = table.arrow_schema
    answer = pa.schema([pa.field(name, arrow.field(name).type) for name in names])
    pieces = table.batches(None if select.columns_given is None else names, wanted)
    return pa.RecordBatchReader.from_batches(
        answer, (pa.RecordBatch.from_arrays(piece.columns, schema=answer) for piece in pieces)
    )


def _of_extremes(table: Table, select: Select) -> pa.Table | None:
    """The answer from least and greatest values, which the server finds without sending rows; None if it cannot.

    DuckDB says how the columns are called and which types they have: it is asked about the two rows of extremes. Counts
    are put in afterwards.
    """
    import duckdb

    from tablelayer.model.ddl.select import to_duckdb

    schema: Any = table.definition.schema
    by_name = {column.name.lower(): column for column in schema.columns}
    asked = [by_name.get(name.lower()) for _, name in select.aggregates if name is not None]
    if not asked or any(column is None or pa.types.is_nested(column.type.arrow()) for column in asked):
        return None  # an unknown column is DuckDB's to refuse
    conditions = select.conditions.get(select.tables[0], ())
    wanted = None
    if conditions:
        pushed = push_down(conditions, schema, DUCKDB)
        if pushed.predicate is None or not pushed.complete:
            return None
        wanted = arrow_expression(pushed.predicate, table.arrow_schema)
    found = table.extremes(list(dict.fromkeys(column.name for column in asked if column)), wanted)
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("extremes", found.rows)
        answer = database.sql(
            to_duckdb(select, {select.tables[0]: "extremes"}, every_row=True)
        ).to_arrow_table()
    for index, (function, name) in enumerate(select.aggregates):
        if function == "COUNT":
            column = None if name is None else by_name[name.lower()].name
            count = found.row_count if column is None else found.value_counts[column]
            answer = answer.set_column(
                index, answer.field(index), pa.array([count], answer.field(index).type)
            )
    return answer


def _counted(rows: int) -> pa.Table:
    return pa.table({"count_star()": pa.array([rows], pa.int64())})


def _without_scan(table: Table, select: Select) -> pa.Table | None:
    """The answer of a lookup, a count or a limit scan; None if the query needs more."""
    definition = table.definition
    schema = definition.schema
    named = {*(select.columns or ()), *select.equals}
    if not named <= set(schema.names):
        return None  # DuckDB knows what to say, and takes names in any case
    if definition.is_partitioned and select.equals and set(select.equals) <= set(definition.partition_keys):
        pruned = _pruned(table, select)
        if pruned is None:
            return None
        if select.is_count and select.limit is None:
            return _counted(pruned.count())
        if not select.is_count and select.limit is not None:
            return pruned.limit(select.limit, select.columns)
        return None
    if select.is_count:
        if select.equals or select.limit is not None or _begins_in_lake(table):
            return None
        return _counted(table.count())
    if not select.equals:
        return table.limit(select.limit, select.columns) if select.limit is not None else None
    if not definition.is_primary_key_table:
        return None
    conditions = set(select.equals)
    try:
        if conditions == set(schema.primary_key):
            found, rows = table.lookup([select.equals], select.columns)
            return _first(rows.slice(0, int(found[0])), select.limit)
        if conditions == set(definition.prefix_columns) and definition.allows_prefix_lookup:
            return _first(table.prefix_lookup([select.equals], select.columns), select.limit)
    except DataError:
        pass  # a literal of another type: DuckDB compares as SQL does
    return None


def _first(rows: pa.Table, limit: int | None) -> pa.Table:
    return rows if limit is None else rows.slice(0, limit)


def _in_duckdb(connection: Connection, select: Select) -> pa.Table:
    import duckdb

    from tablelayer.model.ddl.select import to_duckdb

    with duckdb.connect() as database, contextlib.ExitStack() as stack:
        database.execute("SET TimeZone = 'UTC'")
        names = {}
        for index, name in enumerate(select.tables):
            names[name] = f"table_{index}"
            rows = _read(connection, name, select)
            if isinstance(rows, pa.Table):
                database.register(names[name], rows)
                continue
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-sql-"))
            database.execute("SET temp_directory = $folder", {"folder": folder})
            database.register("arriving", rows)
            try:
                database.execute(f"CREATE TEMP TABLE {names[name]} AS SELECT * FROM arriving")
            except duckdb.Error as error:
                raise CommandError(f"{name} cannot be read from the lake: {error}") from error
            database.unregister("arriving")
        try:
            return database.sql(to_duckdb(select, names)).to_arrow_table()
        except duckdb.Error as error:
            text = str(error)
            for table, name in names.items():
                text = text.replace(name, table)
            raise CommandError(text) from error


def _pruned(table: Table, select: Select) -> Table | None:
    """The table with nothing but the partitions that a simple query's conditions leave; None if a literal is of
    another type, which DuckDB compares as SQL does.
    """
    spec = {name: select.equals[name] for name in table.definition.partition_keys if name in select.equals}
    try:
        return table.only(spec)
    except TableError as error:
        if error.code is not TableErrorCode.INVALID_PARTITION:
            raise
        return None


def _begins_in_lake(table: Table) -> bool:
    """Whether rows of a log table have left the log, and are to be found in the lake."""
    definition = table.definition
    if definition.is_primary_key_table or not definition.settings.datalake_enabled:
        return False
    if definition.is_partitioned:
        return any(any(each.values()) for each in table.partition_offsets("earliest").values())
    return any(table.offsets("earliest").values())


def _read(connection: Connection, name: str, select: Select) -> pa.Table | pa.RecordBatchReader:
    """A table's rows, now or as they were, or its changelog, of the columns and partitions that the query needs. Of a
    keyed table only the rows between the bounds that the query sets to the first column of the key.
    """
    past = select.moments.get(name)
    path, moment = (name, None) if past is None else (past.table, past.moment)
    is_changelog = path.endswith(CHANGELOG_SUFFIX)
    if is_changelog and moment is not None:
        raise CommandError(f"{path} has every change with its time: it cannot be read AS OF a moment")
    if _SUFFIX in path and moment is not None:
        raise CommandError(f"{path} cannot be read AS OF a moment: name the table itself")
    if path.endswith(SNAPSHOTS_SUFFIX):
        return _of_lake(lambda scans: scans.lake_snapshots(connection, path))
    table = connection.table(path.removesuffix(CHANGELOG_SUFFIX).removesuffix(LAKE_SUFFIX))
    columns = _columns(table, select.columns_read.get(name))
    if select.is_simple and table.definition.is_partitioned:
        table = _pruned(table, select) or table
    pushed = push_down(select.conditions.get(name, ()), table.definition.schema, DUCKDB).predicate
    wanted = None if pushed is None else arrow_expression(pushed, table.arrow_schema)
    if path.endswith(LAKE_SUFFIX) or (not is_changelog and moment is None and _begins_in_lake(table)):
        # A table has the partitions that there are; what the lake keeps of others is in "t$lake".
        return _of_lake(
            lambda scans: scans.union_scan(
                connection, path, columns, wanted, predicate=pushed, dropped=False
            ).reader()
        )
    if is_changelog:
        with table.scan(columns, start="earliest", until="latest", filter=wanted) as scan:
            return as_changes(list(scan), table.arrow_schema, columns)
    try:
        schema = table.definition.schema
        first = schema.column(schema.primary_key[0]) if schema.primary_key else None
        bounds = None if first is None else select.bounds.get(first.name.lower())
        if first is not None and bounds is not None and first.type.kind not in _INEXACT:
            with contextlib.suppress(DataError):  # a literal of another type: DuckDB compares as SQL does
                return table.range_scan(
                    bounds.lower, bounds.upper, columns,
                    include_lower=bounds.include_lower, include_upper=bounds.include_upper, as_of=moment,
                    filter=wanted,
                )  # fmt: skip
        return table.to_arrow(columns, filter=wanted, as_of=moment)
    except ValueError as error:
        if moment is None:
            raise
        raise CommandError(f"{error}; write FOR VERSION AS OF '0:17,1:20', offsets by bucket") from error


def _of_lake(read: Callable[[Any], Any]) -> Any:
    """With the module that reads it, which only who asks for the lake waits for. Raises CommandError."""
    from tablelayer.lake import union_scan
    from tablelayer.lake.adapter import LakeError

    try:
        return read(union_scan)
    except LakeError as error:
        raise CommandError(str(error)) from error


def _columns(table: Table, wanted: Collection[str] | None) -> Sequence[str] | None:
    schema: Any = table.definition.schema
    if wanted is None:
        return None
    chosen = [name for name in schema.names if name.lower() in wanted]
    # COUNT(*) with a condition on nothing still needs the number of rows: the first column carries it.
    return chosen or schema.names[:1]
