"""The sources of a query for DuckDB: rows of tables, changelogs, lakes and plain topics, and names.

A table gives the columns that the query needs and the rows that can matter. The server applies what it can of WHERE. It
reads a primary-key table only between the bounds of the first key column, and as it was with FOR SYSTEM_TIME (or
VERSION) AS OF. `db.t$changelog` is the table's log behind `_change_type`, `_bucket`, `_log_offset` and
`_commit_timestamp`, `db.t$lake` its rows in the lake, `db.t$lake$snapshots` the lake's snapshots. A table's plain name
is lake and log together where the log lacks rows: the client reads so (`tablelayer.client.table.united`). A name that
is not a table may be a topic (`tablelayer.sql.topics`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from headrace.tablelayer.client import Connection, DataError, KafkaError, Table
from headrace.tablelayer.client.read.offsets import Moment, time_ms
from headrace.tablelayer.client.write.definitions import typed_rows
from headrace.tablelayer.lake.names import CHANGELOG_SUFFIX, LAKE_SUFFIX, METADATA_PREFIX
from headrace.tablelayer.model.ddl import Select
from headrace.tablelayer.model.ddl.query import Bounds, ReadOptions
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.filters.conditions import DUCKDB, Predicate, arrow_expression, push_down
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.partitions import spec_texts
from headrace.tablelayer.model.types.column_types import TypeKind
from headrace.tablelayer.sql.catalog import INFORMATION_SCHEMA, information
from headrace.tablelayer.sql.changes import CHANGES_ADDED, as_changes, changes_schema, start_of
from headrace.tablelayer.sql.errors import SqlError
from headrace.tablelayer.sql.topics import Topic, find_topic

__all__ = ["INFORMATION_SCHEMA", "Known", "Source", "Step", "source_of"]

_SUFFIX = "$"
_INEXACT = (TypeKind.FLOAT, TypeKind.DOUBLE)
"""Types for which a decimal literal can be rounded in more than one way."""


@dataclass(frozen=True, slots=True)
class Known:
    """Names that only the session knows: `views` has queries by `database.name`; `variable` returns a variable of the
    program that asks.
    """

    views: Mapping[str, str] = field(default_factory=dict)
    variable: Callable[[str], Any] | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One table's part in a plan: how it is read, which columns, and by which filter on the server.

    `halves` pins a read of lake and log and describes its two halves.
    """

    reads: str
    way: str
    columns: str = ""
    filter: str = ""
    halves: Callable[[], Sequence[Step]] | None = field(default=None, compare=False)

    def shown(self) -> Sequence[Step]:
        """Return the steps that EXPLAIN shows."""
        return (self,) if self.halves is None else self.halves()


@dataclass(frozen=True, slots=True)
class Source:
    """One source of a query.

    `schema` has all available columns, None if it is only known after reading. `read` gives the rows, `batches` streams
    them (None: they cannot be streamed). `expected` has the columns that a lake's rows have if `schema` is None.
    """

    step: Step
    schema: pa.Schema | None
    read: Callable[[], pa.Table | pa.RecordBatchReader]
    batches: Callable[[], tuple[pa.Schema, Iterator[pa.RecordBatch]]] | None = None
    expected: pa.Schema | None = None

    @property
    def types(self) -> pa.Schema | None:
        """The columns as far as they are known before reading."""
        return self.expected if self.schema is None else self.schema


def source_of(connection: Connection, name: str, select: Select, known: Known | None = None) -> Source:
    """Return the source for `name` among a query's tables.

    Raises TableError for an unknown name, SqlError for a source that cannot be read in this way.
    """
    past = select.moments.get(name)
    path, moment = (name, None) if past is None else (past.table, past.moment)
    if path.startswith(f"{INFORMATION_SCHEMA}."):
        equal = {
            column: bounds.lower for column, bounds in select.bounds.items() if bounds.lower == bounds.upper
        }
        rows = information(connection, path, equal, known.views if known is not None else {})
        return Source(Step(path, "names"), rows.schema, lambda: rows)
    options = None if past is None else past.options
    if options is not None and path.endswith(LAKE_SUFFIX):
        moment = _of_snapshot(options, path)
    is_changelog = path.endswith(CHANGELOG_SUFFIX)
    if is_changelog and moment is not None:
        raise SqlError(f"{path} has every change with its time: it cannot be read AS OF a moment")
    if _SUFFIX in path and moment is not None and not path.endswith(LAKE_SUFFIX):
        raise SqlError(f"{path} cannot be read AS OF a moment: name the table itself")
    if METADATA_PREFIX in path:
        return Source(
            Step(path, "lake"), None, lambda: _of_lake(lambda scans: scans.lake_metadata(connection, path))
        )
    plain = path.removesuffix(CHANGELOG_SUFFIX).removesuffix(LAKE_SUFFIX)
    if _SUFFIX in plain:
        raise SqlError(
            f"{path} is not a view of a table: the views of a table t are t{CHANGELOG_SUFFIX}, t{LAKE_SUFFIX} and"
            f" t{METADATA_PREFIX}snapshots"
        )
    try:
        table = connection.table(plain)
    except (TableError, KafkaError) as error:
        topic = None if past is not None else find_topic(connection, path, select.database, error)
        if topic is not None:
            return _of_topic(topic, path, select, name)
        rows = None if past is not None or known is None else _of_variable(path, select.database, known)
        if rows is None:
            raise
        return Source(Step(path.removeprefix(f"{select.database}."), "DataFrame"), rows.schema, lambda: rows)
    if options is not None and moment is None:
        return _of_changes(table, name, path, options, select)
    return _of_table(connection, table, name, path, moment, select)


def _of_variable(path: str, database: str, known: Known) -> pa.Table | None:
    """Return the rows of a variable whose name has no database; None if there is no variable with rows."""
    value = None if known.variable is None else known.variable(path.removeprefix(f"{database}."))
    if not hasattr(value, "__arrow_c_stream__") and not (hasattr(value, "iloc") and hasattr(value, "dtypes")):
        return None
    return typed_rows(value)


def _of_snapshot(options: ReadOptions, path: str) -> Moment:
    """Return the moment of a hint after the lake's table."""
    if options.snapshot is not None:
        return {0: options.snapshot}
    if options.snapshot_time is not None:
        return options.snapshot_time
    raise SqlError(f"{path} is the lake, which has no changes: 'scan.snapshot-id' selects a snapshot")


def _of_changes(table: Table, name: str, path: str, options: ReadOptions, select: Select) -> Source:
    """Return the rows of a log table, or of a changelog, from a start that a hint gives."""
    is_changelog = path.endswith(CHANGELOG_SUFFIX)
    start = start_of(options, "earliest", path)
    if table.definition.is_primary_key_table and not is_changelog:
        raise SqlError(
            f'{path} has a primary key, and its rows have no start: read its changes with "{path}$changelog"'
            " and the same hint, or by SELECT ... EMIT CHANGES"
        )
    columns = _columns(table.definition, select.columns_read.get(name))
    pushed = push_down(select.conditions.get(name, ()), table.definition.schema, DUCKDB).predicate
    wanted = None if pushed is None else arrow_expression(pushed, table.arrow_schema)

    def rows() -> pa.Table:
        with table.scan(columns, start=start, until="latest", filter=wanted) as scan:
            found = as_changes(list(scan), table.arrow_schema, columns)
        return found if is_changelog else found.select(range(len(CHANGES_ADDED), found.num_columns))

    step = Step(
        path,
        f"{'changelog' if is_changelog else 'log'} from {start}",
        shown_columns(columns, table.definition.schema.names),
        shown_filter(pushed),
    )
    schema = changes_schema(table.arrow_schema) if is_changelog else table.arrow_schema
    return Source(step, schema, rows)


def _of_topic(topic: Topic, path: str, select: Select, name: str) -> Source:
    columns = topic.columns(select.columns_read.get(name))
    bounds = select.bounds if len(select.tables) == 1 else {}
    shown = " AND ".join(topic.shown(bounds))

    def batches() -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        return topic.schema(columns), topic.batches(columns, bounds)

    def read() -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(*batches())

    step = Step(path, "topic", shown_columns(columns, topic.schema().names), shown)
    return Source(step, topic.schema(), read, batches)


def _of_table(
    connection: Connection, table: Table, name: str, path: str, moment: Any, select: Select
) -> Source:
    if path.endswith(LAKE_SUFFIX):
        past = {} if moment is None else _lake_moment(path, moment)
        scan = _of_lake(lambda scans: scans.union_scan(connection, path, **past))
        return _of_view(scan, name, path, select)
    is_changelog = path.endswith(CHANGELOG_SUFFIX)
    names = table.definition.schema.names
    columns = _columns(table.definition, select.columns_read.get(name))
    shown = shown_columns(columns, names)
    if select.is_simple and table.definition.is_partitioned:
        table = pruned(table, select) or table
    pushed = push_down(select.conditions.get(name, ()), table.definition.schema, DUCKDB).predicate
    wanted = None if pushed is None else arrow_expression(pushed, table.arrow_schema)
    if is_changelog:

        def changes() -> pa.Table:
            with table.scan(columns, start="earliest", until="latest", filter=wanted) as scan:
                return as_changes(list(scan), table.arrow_schema, columns)

        step = Step(path, "changelog", shown, shown_filter(pushed))
        return Source(step, changes_schema(table.arrow_schema), changes)
    bounds = key_bounds(table, select)
    way = "lake and log" if table.reads_lake() else "scan"
    if bounds is not None and way == "scan" and name == select.tables[0]:
        first = table.definition.schema.primary_key[0]
        step = Step(path, "range scan", shown, " AND ".join(_shown_bounds(first, bounds)))

        def between() -> pa.Table:
            with contextlib.suppress(DataError):  # a literal of another type: DuckDB compares as SQL does
                return table.range_scan(
                    bounds.lower, bounds.upper, columns,
                    include_lower=bounds.include_lower, include_upper=bounds.include_upper, as_of=moment,
                    filter=wanted,
                )  # fmt: skip
            return table.to_arrow(columns, filter=wanted, as_of=moment)

        return Source(step, table.arrow_schema, lambda: _as_of(moment, between))
    step = Step(path, way, shown, shown_filter(pushed))
    if way != "scan":
        keys = table.definition.partition_keys if select.is_simple else ()
        equal = {key: select.equals[key] for key in keys if key in select.equals}
        step = replace(
            step, halves=partial(_halves, connection, step, table.definition, columns, pushed, equal)
        )

    def whole() -> pa.Table:
        return _as_of(moment, lambda: table.to_arrow(columns, filter=pushed, as_of=moment))

    def batches() -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        arrow = table.arrow_schema
        schema = arrow if columns is None else pa.schema([arrow.field(each) for each in columns])
        schema = pa.schema([pa.field(each.name, each.type) for each in schema])
        pieces = table.batches(columns, pushed)
        return schema, (pa.RecordBatch.from_arrays(piece.columns, schema=schema) for piece in pieces)

    return Source(step, table.arrow_schema, whole, batches if moment is None else None)


def _of_view(scan: Any, name: str, path: str, select: Select) -> Source:
    """Return the lake alone, which `scan` has pinned with all of its columns."""
    schema = scan.definition.schema
    columns = _columns(scan.definition, select.columns_read.get(name))
    pushed = push_down(select.conditions.get(name, ()), schema, DUCKDB).predicate
    step = Step(path, "lake", shown_columns(columns, schema.names), shown_filter(pushed))
    return Source(
        step,
        None,
        lambda: _of_lake(lambda _: scan.selecting(columns, pushed).reader()),
        expected=scan.schema,
    )


def _halves(
    connection: Connection,
    step: Step,
    definition: StoredTable,
    columns: Sequence[str] | None,
    pushed: Predicate | None,
    equal: Mapping[str, Any],
) -> tuple[Step, Step]:
    """Return the lake's and the log's half of a read. Raises SqlError."""
    with contextlib.suppress(TableError):  # a literal of another type: DuckDB compares as SQL does
        equal = spec_texts(definition, equal)
    scan = _of_lake(lambda scans: scans.union_scan(connection, step.reads, columns, pushed, only=equal))
    pieces = scan.pieces()
    size = sum(each.size_bytes for each in pieces)
    starts = scan.log_starts
    count = sum(
        end - starts[part][bucket] for part, ends in scan.log_ends.items() for bucket, end in ends.items()
    )
    lake = f"lake: snapshot {scan.snapshot}, {len(pieces)} files, {size:,} bytes"
    return replace(step, way=lake, halves=None), replace(step, way=f"log: {count:,} offsets", halves=None)


def _as_of(moment: Any, read: Callable[[], pa.Table]) -> pa.Table:
    try:
        return read()
    except ValueError as error:
        if moment is None:
            raise
        raise SqlError(f"{error}; give offsets by bucket, as FOR VERSION AS OF '0:17,1:20'") from error


def key_bounds(table: Table, select: Select) -> Bounds | None:
    """Return the bounds of the first key column for the rows that a query over one table can return."""
    schema = table.definition.schema
    first = schema.column(schema.primary_key[0]) if schema.primary_key else None
    if first is None or first.type.kind in _INEXACT:
        return None
    return select.bounds.get(first.name.lower())


def pruned(table: Table, select: Select) -> Table | None:
    """Return the table limited to the partitions that a simple query's conditions allow.

    None if a literal has another type, because DuckDB compares it as SQL does.
    """
    spec = {name: select.equals[name] for name in table.definition.partition_keys if name in select.equals}
    try:
        return table.only(spec)
    except TableError as error:
        if error.code is not TableErrorCode.INVALID_PARTITION:
            raise
        return None


def _lake_moment(path: str, moment: Moment) -> dict[str, int]:
    """Return the lake's snapshot for `union_scan` to read, as its arguments. Raises SqlError."""
    if isinstance(moment, Mapping):
        if list(moment) != [0]:
            raise SqlError(f"a version of {path} is the number of a snapshot: {path}$snapshots lists them")
        return {"snapshot": moment[0]}
    return {"time_ms": time_ms(moment)}


def _of_lake(read: Callable[[Any], Any]) -> Any:
    """Call `read` with the module that reads the lake, which is imported on first use. Raises SqlError."""
    from headrace.tablelayer.lake import union_scan
    from headrace.tablelayer.lake.adapter import LakeError

    try:
        return read(union_scan)
    except LakeError as error:
        raise SqlError(str(error)) from error


def _columns(definition: Any, wanted: Collection[str] | None) -> Sequence[str] | None:
    schema: Any = definition.schema
    if wanted is None:
        return None
    chosen = [name for name in schema.names if name.lower() in wanted]
    # COUNT(*) with a condition on nothing still needs the number of rows: the first column carries it.
    return chosen or schema.names[:1]


# Plans as text


def shown_columns(columns: Sequence[str] | None, names: Sequence[str]) -> str:
    return "*" if columns is None or len(columns) == len(names) else ", ".join(columns)


def shown_value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).upper().replace("NONE", "NULL")
    return str(value) if isinstance(value, int) else f"'{value}'"


def shown_filter(predicate: Predicate | None) -> str:
    """Return a predicate as SQL."""
    if predicate is None:
        return ""
    word, *rest = predicate
    if word in ("and", "or"):
        return f" {word.upper()} ".join(
            f"({shown_filter(part)})" if part[0] in ("and", "or") else shown_filter(part) for part in rest
        )
    if word == "not":
        return f"NOT ({shown_filter(rest[0])})"
    if word == "null":
        return f"{rest[0]} IS NULL"
    if word == "prefix":
        return f"{rest[0]} LIKE '{rest[1]}%'"
    if word == "in":
        shown = [shown_value(value) for value in rest[1][:_SHOWN_AT_MOST]]
        more = len(rest[1]) - len(shown)
        return f"{rest[0]} IN ({', '.join(shown)}{f', and {more} more' if more else ''})"
    return f"{rest[0]} {word} {shown_value(rest[1])}"


_SHOWN_AT_MOST = 5


def _shown_bounds(name: str, bounds: Bounds) -> Iterator[str]:
    if bounds.lower is not None:
        yield f"{name} {'>=' if bounds.include_lower else '>'} {shown_value(bounds.lower)}"
    if bounds.upper is not None:
        yield f"{name} {'<=' if bounds.include_upper else '<'} {shown_value(bounds.upper)}"
