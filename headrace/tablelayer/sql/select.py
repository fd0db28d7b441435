"""Plan the cheapest way to answer a SELECT.

A simple query over one table (`tablelayer.model.ddl.select`) is answered without DuckDB. Equality on the whole primary
key is a lookup, on the bucket key a prefix lookup. COUNT(*) (with a WHERE that the server understands) is a count.
LIMIT alone is a limit scan. MIN, MAX and COUNT of columns are asked of the server, which has statistics or reads these
columns only. DuckDB (`tablelayer.sql.duck`) answers everything else, over the columns that the query names and the rows
that can matter (`tablelayer.sql.sources`). A `Plan` has the decision before anything is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from headrace.tablelayer.client import Connection, KafkaError, Table
from headrace.tablelayer.model.ddl import Select
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.filters.conditions import DUCKDB, PushedCondition, arrow_expression, push_down
from headrace.tablelayer.sql.duck import Engine, connect
from headrace.tablelayer.sql.errors import SqlError
from headrace.tablelayer.sql.keys import are_values
from headrace.tablelayer.sql.sources import (
    INFORMATION_SCHEMA,
    Known,
    Step,
    key_bounds,
    pruned,
    shown_columns,
    shown_filter,
    shown_value,
    source_of,
)
from headrace.tablelayer.sql.topics import NO_TABLE

_SUFFIX = "$"
"""A character that a table's name cannot have. The names of its other views have it."""


class Plan:
    """The plan of a query: `steps`, one for each table that is read, and whether DuckDB processes their rows.

    `run` reads them; rows that DuckDB does not process are streamed. `schema` returns their schema and reads little.
    `operators` returns DuckDB's names of the tables and its operators (`Engine.operators`); None without DuckDB.
    """

    __slots__ = ("in_duckdb", "operators", "run", "schema", "steps")

    def __init__(
        self,
        steps: tuple[Step, ...],
        run: Callable[[], pa.Table | pa.RecordBatchReader],
        *,
        schema: Callable[[], pa.Schema] | None = None,
        operators: Callable[[], tuple[Mapping[str, str], list[Any]]] | None = None,
    ) -> None:
        self.steps = steps
        self.run = run
        self.schema = schema or (lambda: run().schema)
        self.operators = operators
        self.in_duckdb = operators is not None


def run_select(
    connection: Connection, select: Select, known: Known | None = None, *, files: bool = True
) -> pa.Table | pa.RecordBatchReader:
    """Return the rows of a query. Raises TableError for an unknown table, SqlError for errors of DuckDB."""
    return plan(connection, select, known, files=files).run()


def plan(connection: Connection, select: Select, known: Known | None = None, *, files: bool = True) -> Plan:
    """Return the plan of a query; errors as `run_select`. `files` says whether it may read local files."""
    if len(select.tables) == 1 and _SUFFIX not in select.tables[0]:
        found = _of_one_table(connection, select)
        if found is not None:
            return found
    return of_duckdb(connection, select, known, files=files)


def check_times(connection: Connection, select: Select) -> None:
    """Check that the times of lookup joins are those of processing. Raises SqlError."""
    for name, column in select.times:
        definition = connection.table(name).definition
        if column in definition.settings.processing_times:
            continue
        what = "a stored column" if column in definition.schema else "not known as one"
        raise SqlError(
            f"FOR SYSTEM_TIME AS OF {column}: a lookup join reads the present rows, by a time of processing, and"
            f" {column} of {name} is {what}; declare `{column} AS PROCTIME()` in CREATE TABLE, or write FOR SYSTEM_TIME"
            " AS OF PROCTIME()"
        )


def of_duckdb(
    connection: Connection,
    select: Select,
    known: Known | None = None,
    *,
    files: bool = True,
    before: str = "",
) -> Plan:
    """Return a plan that uses DuckDB. `before` is a word before the query."""
    check_times(connection, select)
    sources = {name: source_of(connection, name, select, known) for name in select.tables}
    engine = Engine(select, sources, files=files, before=before)
    steps = tuple(source.step for source in sources.values())
    return Plan(steps, engine.reader, schema=engine.schema, operators=engine.operators)


def place_types(
    connection: Connection,
    select: Select,
    marks: Sequence[str],
    known: Known | None = None,
    *,
    files: bool = True,
) -> list[pa.DataType | None]:
    """Return the types of values that the query has as these texts; None if open. Errors as `run_select`."""
    sources = {name: source_of(connection, name, select, known) for name in select.tables}
    return Engine(select, sources, files=files).place_types(marks)


def _of_one_table(connection: Connection, select: Select) -> Plan | None:
    """Return a plan without DuckDB; None if there is none, or if the query does not read a table."""
    name = select.tables[0]
    if not (select.is_simple or select.counts or select.reads or select.aggregates):
        return None
    if name.startswith(f"{INFORMATION_SCHEMA}."):
        return None
    try:
        table = connection.table(name)
    except (TableError, KafkaError) as error:
        if error.code.name not in NO_TABLE:
            raise
        return None  # it may be a topic
    if table.reads_lake():
        return None  # `source_of` plans and shows the lake's part
    if select.is_simple and (answer := _without_scan(table, select)) is not None:
        return answer
    if select.counts is not None:
        pushed = _pushed(table, select)
        if pushed.predicate is not None and pushed.complete:
            wanted = arrow_expression(pushed.predicate, table.arrow_schema)
            step = Step(name, "count", "", shown_filter(pushed.predicate))
            return Plan((step,), lambda: _counted(table.count(wanted)))
    if select.reads is not None and (arriving := _arriving(table, select)) is not None:
        return arriving
    return _of_extremes(table, select) if select.aggregates else None


def _pushed(table: Table, select: Select) -> PushedCondition:
    return push_down(select.conditions.get(select.tables[0], ()), table.definition.schema, DUCKDB)


def _arriving(table: Table, select: Select) -> Plan | None:
    """Plan to stream the server's rows, if it can apply all of the WHERE; None if DuckDB must process them."""
    schema: Any = table.definition.schema
    names = schema.names if select.columns_given is None else list(select.columns_given)
    if not set(names) <= set(schema.names):
        return None  # DuckDB has the error, and accepts names in upper or lower case
    wanted = predicate = None
    if select.conditions.get(select.tables[0]):
        pushed = _pushed(table, select)
        if pushed.predicate is None or not pushed.complete or key_bounds(table, select) is not None:
            return None  # a scan between bounds of the key reads less
        predicate = pushed.predicate
        wanted = arrow_expression(predicate, table.arrow_schema)
    if table.definition.is_partitioned and select.is_simple:
        table = pruned(table, select) or table
    arrow = table.arrow_schema
    answer = pa.schema([pa.field(name, arrow.field(name).type) for name in names])

    def run() -> pa.RecordBatchReader:
        pieces = table.batches(None if select.columns_given is None else names, wanted)
        return pa.RecordBatchReader.from_batches(
            answer, (pa.RecordBatch.from_arrays(piece.columns, schema=answer) for piece in pieces)
        )

    step = Step(select.tables[0], "scan", shown_columns(names, schema.names), shown_filter(predicate))
    return Plan((step,), run, schema=lambda: answer)


def _of_extremes(table: Table, select: Select) -> Plan | None:
    """Plan to answer from least and greatest values, which the server finds without sending rows; None if it cannot.

    DuckDB names and types the columns: the query runs on the two rows of extremes. Counts are put in afterwards.
    """
    schema: Any = table.definition.schema
    folded = [column.name.lower() for column in schema.columns]
    wished = [name.lower() for _, name in select.aggregates if name is not None]
    if not wished or any(folded.count(name) != 1 for name in wished):
        return None  # DuckDB reports an unknown column
    asked = [schema.columns[folded.index(name)] for name in wished]
    if any(pa.types.is_nested(column.type.arrow()) for column in asked):
        return None
    wanted = predicate = None
    if select.conditions.get(select.tables[0]):
        pushed = _pushed(table, select)
        if pushed.predicate is None or not pushed.complete:
            return None
        predicate = pushed.predicate
        wanted = arrow_expression(predicate, table.arrow_schema)
    names = list(dict.fromkeys(column.name for column in asked))
    step = Step(select.tables[0], "extremes", ", ".join(names), shown_filter(predicate))
    return Plan((step,), lambda: _extremes(table, select, names, wanted))


def _extremes(table: Table, select: Select, names: list[str], wanted: Any) -> pa.Table:
    from headrace.tablelayer.model.ddl.select import to_duckdb

    by_name = {column.name.lower(): column for column in table.definition.schema.columns}
    found = table.extremes(names, wanted)
    with connect(files=False) as database:
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


def _without_scan(table: Table, select: Select) -> Plan | None:
    """Plan a lookup, a count or a limit scan; None if the query needs more."""
    definition = table.definition
    schema = definition.schema
    name, limit, columns = select.tables[0], select.limit, select.columns
    if not {*(columns or ()), *select.equals} <= set(schema.names):
        return None  # DuckDB has the error, and accepts names in upper or lower case
    shown = "" if select.is_count else shown_columns(columns, schema.names)
    equal = " AND ".join(f"{column} = {shown_value(value)}" for column, value in select.equals.items())

    def step(way: str, *more: str) -> tuple[Step]:
        return (Step(name, way, shown, " AND ".join(each for each in (equal, *more) if each)),)

    if definition.is_partitioned and select.equals and set(select.equals) <= set(definition.partition_keys):
        part = pruned(table, select)
        if part is None:
            return None
        if select.is_count and limit is None:
            return Plan(step("count"), lambda: _counted(part.count()))
        if not select.is_count and limit is not None:
            return _limited(part, step(f"limit {limit}"), limit, columns)
        return None
    if select.is_count:
        if select.equals or limit is not None:
            return None
        return Plan(step("count"), lambda: _counted(table.count()))
    if not select.equals:
        return None if limit is None else _limited(table, step(f"limit {limit}"), limit, columns)
    if not definition.is_primary_key_table:
        return None
    conditions = set(select.equals)
    if not are_values(table, select.equals):
        return None
    if conditions == set(schema.primary_key):

        def look() -> pa.Table:
            found, rows = table.lookup([select.equals], columns)
            return _first(rows.slice(0, int(found[0])), limit)

        return Plan(step("lookup"), look)
    if conditions == set(definition.prefix_columns) and definition.allows_prefix_lookup:
        return Plan(
            step("prefix lookup"), lambda: _first(table.prefix_lookup([select.equals], columns), limit)
        )
    return None


def _limited(table: Table, steps: tuple[Step], limit: int, columns: Sequence[str] | None) -> Plan:
    return Plan(
        steps,
        lambda: table.limit(limit, columns),
        schema=lambda: table.limit(min(limit, 1), columns).schema,
    )


def _first(rows: pa.Table, limit: int | None) -> pa.Table:
    return rows if limit is None else rows.slice(0, limit)
