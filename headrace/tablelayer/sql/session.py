"""Run SQL statements over the table client.

Definitions go to the server unchanged. A SELECT is answered in the cheapest way (`tablelayer.sql.select`). Changes of
rows are in `tablelayer.sql.writes`, files in `tablelayer.sql.files`. A session has a current database, and views: names
for queries that end with the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.protocol.loading.lazy import lazy_module
from headrace.tablelayer.client import Connection
from headrace.tablelayer.client.admin.ddl import created, define, dropped
from headrace.tablelayer.client.metrics import RequestMetrics
from headrace.tablelayer.client.table_topics import tables_of_topics
from headrace.tablelayer.model.ddl import (
    AlterUser,
    CopyFrom,
    CopyTo,
    CreateCatalog,
    CreateTableAs,
    CreateTableLike,
    CreateTemporaryTable,
    CreateUser,
    CreateView,
    Delete,
    DescribeDatabase,
    DescribeQuery,
    DescribeTable,
    DropUser,
    DropView,
    Explain,
    Grant,
    Insert,
    InsertSelect,
    Names,
    Notice,
    ResetSetting,
    Revoke,
    Select,
    SetSetting,
    ShowCatalogs,
    ShowColumns,
    ShowCreateDatabase,
    ShowCreateTable,
    ShowDatabases,
    ShowGrants,
    ShowOptions,
    ShowPartitions,
    ShowTables,
    ShowTopics,
    ShowUsers,
    ShowViews,
    Statement,
    Stream,
    Summarize,
    Truncate,
    Update,
    UseCatalog,
    UseDatabase,
    create_database_sql,
    create_table_sql,
    parse_each,
)
from headrace.tablelayer.model.ddl.names import HOME
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.options.table_options import DECLARED
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.quoting import quoted
from headrace.tablelayer.sql.answer import Answer
from headrace.tablelayer.sql.errors import SqlError
from headrace.tablelayer.sql.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.tablelayer.client.result import SqlResult
    from headrace.tablelayer.sql.parameters import Parameters
    from headrace.tablelayer.sql.select import Plan
    from headrace.tablelayer.sql.sources import Known
    from headrace.tablelayer.sql.writes import Writes
else:
    pa = lazy_module("pyarrow")


_VARIABLE: ContextVar[Callable[[str], Any] | None] = ContextVar("variable", default=None)
"""Returns a variable of the program whose statement runs in this thread."""


class Session:
    """Runs statements one after the other, with a current database.

    `files` says whether they may read and write files of this machine.
    """

    def __init__(self, connection: Connection, database: str = "default", *, files: bool = True) -> None:
        self._connection = connection
        self._files = files
        self.names = Names(database)
        self.settings = Settings()
        self.temporary: dict[str, CreateTemporaryTable] = {}
        self._is_writing = False

    @property
    def database(self) -> str:
        """The current database."""
        return self.names.database

    @property
    def views(self) -> dict[str, str]:
        """Queries by the names that the session gave them."""
        return self.names.views

    def run(self, sql: str) -> Iterator[Answer]:
        """Run the statements of a text, each when its answer is requested.

        A statement that cannot be parsed raises DdlError after those before it have been run.
        """
        for statement, notices in parse_each(sql, self.names):
            answer = self._run(statement)
            answer.notices = (*notices, *answer.notices)
            yield answer

    def query(
        self,
        sql: str,
        parameters: Parameters | None = None,
        variable: Callable[[str], Any] | None = None,
    ) -> SqlResult:
        """Run the statements of a text and return the answer of the last one. Errors as `run` and `bind`.

        `variable` returns a variable of the caller, None if there is none: queries read DataFrames and Arrow tables so.
        """
        from headrace.tablelayer.client.result import SqlResult
        from headrace.tablelayer.sql.parameters import bind

        last = Answer()
        token = _VARIABLE.set(variable)
        try:
            for answer in self.run(sql if parameters is None else bind(sql, parameters)):
                last = answer
        finally:
            _VARIABLE.reset(token)
        if last.definition is not None:
            last = Answer(rows=_columns_of(last.definition))
        if last.schema is None:
            return SqlResult(None, iter(()), text=last.text, row_count=last.row_count)
        return SqlResult(last.schema, last.batches())

    def _parse(self, sql: str) -> list[Statement]:
        return [statement for statement, _ in parse_each(sql, self.names.copy())]

    def reading(self, sql: str) -> Plan:
        """Return the plan of one statement that only reads tables, topics and names. A SELECT reads no row yet.

        Raises SqlError for any other text, and the errors of its parts.
        """
        from headrace.tablelayer.sql.select import Plan

        statements = self._parse(sql)
        if len(statements) != 1 or not isinstance(statements[0], _READS):
            raise SqlError(
                "only one SELECT, EXPLAIN, SUMMARIZE, SHOW or DESCRIBE is accepted here; run statements that "
                "change something with headrace sql"
            )
        (statement,) = statements
        if isinstance(statement, Select):
            return self._plan(statement)
        if isinstance(statement, Summarize):
            return self._summary(statement)
        answer = self._run(statement)
        if answer.definition is not None:
            rows: pa.Table | None = _columns_of(answer.definition)
        else:
            rows = answer.rows if answer.text is None else _texts({"text": [answer.text]})
        assert rows is not None
        return Plan((), lambda: rows)

    def places(self, sql: str) -> pa.Schema:
        """Return the types of the values for `?` in a query, named by their numbers from 1 on; texts if a type is open.

        Raises as `reading`.
        """
        from headrace.tablelayer.sql.parameters import bind, places_count
        from headrace.tablelayer.sql.select import place_types

        marks = _marks(places_count(sql))
        statements = self._parse(bind(sql, marks))
        if len(statements) != 1 or not isinstance(statements[0], Select):
            raise SqlError("only a SELECT can have values for placeholders")
        found = place_types(self._connection, statements[0], marks, self._known(), files=self._files)
        return pa.schema([(str(place), kind or pa.string()) for place, kind in enumerate(found, 1)])

    def query_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement for each row of parameters and return the number of rows written.

        An INSERT of one row writes them all at once.
        """
        from headrace.tablelayer.sql.parameters import bind

        if not rows:
            return 0
        text = next((row for row in rows if isinstance(row, (str, bytes, bytearray))), None)
        if text is not None:
            bind(sql, text)  # raises the error
        marks = _marks(len(rows[0]))
        statements = self._parse(bind(sql, marks))
        insert = statements[0] if len(statements) == 1 else None
        if isinstance(insert, Insert) and len(insert.rows) == 1:
            values = insert.rows[0]
            places = [
                marks.index(value) if isinstance(value, str) and value in marks else None for value in values
            ]
            if sum(place is not None for place in places) == len(marks):
                uneven = next((row for row in rows if len(row) != len(marks)), None)
                if uneven is not None:
                    bind(sql, uneven)  # raises the error
                filled = tuple(
                    tuple(
                        value if place is None else _plain(row[place])
                        for value, place in zip(values, places, strict=True)
                    )
                    for row in rows
                )
                return self._writes.insert(Insert(insert.path, insert.columns, filled))
        return sum(self.query(sql, row).row_count or 0 for row in rows)

    def _run(self, statement: Statement) -> Answer:
        carry_out = _CARRIED_OUT.get(type(statement))
        if self.settings.is_streaming and isinstance(statement, (InsertSelect, CreateTableAs, CopyTo)):
            raise SqlError(
                "in streaming mode this statement would not end, and headrace sql writes the rows of one moment:"
                " SET 'execution.runtime-mode' = 'batch', or use a stream of Spark"
            )
        if isinstance(statement, (InsertSelect, CopyFrom, Truncate)):
            self._require(statement)
        if carry_out is not None:
            return carry_out(self, statement)
        done = define(self._connection.admin, statement)
        if done is not None:
            self._writes.forget()
            return Answer(text=done)
        if isinstance(statement, (Grant, Revoke, ShowGrants, CreateUser, AlterUser, DropUser, ShowUsers)):
            from headrace.tablelayer.sql.rights import run_rights

            return run_rights(self._connection.security, statement)
        raise AssertionError(f"unknown kind of statement: {statement!r}")

    def _require(self, statement: InsertSelect | CopyFrom | Update | Delete | Truncate) -> None:
        """Check the right before a statement that may turn out to write nothing, which the server would not check."""
        definition = self._connection.admin.describe_table(statement.path)  # raises if it does not exist
        if isinstance(statement, Truncate) and not definition.is_primary_key_table:
            return  # the server checks in any case, and another right
        self._connection.security.require(_PRIVILEGES[type(statement)], statement.path)

    @property
    def written_count(self) -> int:
        """The rows that the running statement has written so far, for another thread."""
        found: Writes | None = self.__dict__.get("_writes")
        return 0 if found is None or not self._is_writing else found.written_count

    # -- queries

    @cached_property
    def _writes(self) -> Writes:
        from headrace.tablelayer.sql.writes import (
            Writes,
        )  # it takes a tenth of a second, which statements about names save

        return Writes(self._connection, self._query, self._analyze, files=self._files)

    def _plan(self, select: Select) -> Plan:
        from headrace.tablelayer.sql.select import plan

        return plan(self._connection, select, self._known(), files=self._files)

    def _known(self) -> Known:
        from headrace.tablelayer.sql.sources import Known

        return Known(self.views, _VARIABLE.get())

    def _analyze(self, sql: str) -> Select:
        (select,) = self._parse(sql)
        assert isinstance(select, Select)
        return select

    def _select(self, select: Select) -> Answer:
        if self.settings.is_streaming and select.tables:
            return self._stream(Stream(select))
        return self._query(select)

    def _stream(self, statement: Stream) -> Answer:
        from headrace.tablelayer.sql.stream import stream

        rows = stream(self._connection, statement.select, files=self._files)
        return Answer(rows=rows, is_endless=True)

    def _query(self, select: Select) -> Answer:
        return Answer(rows=self._plan(select).run())

    def _explain(self, statement: Explain) -> Answer:
        found = self._plan(statement.select)
        steps = [shown for step in found.steps for shown in step.shown()]
        rows = [(step.reads, step.way, step.columns, step.filter) for step in steps]
        if found.in_duckdb:
            rows.append(("", "DuckDB", "", ""))
        if statement.runs:
            rows.append(("in all", *self._measured(found)))
        columns = list(zip(*rows, strict=True)) if rows else [()] * 4
        names = ("reads", "way", "columns", "condition")
        return Answer(rows=_texts(dict(zip(names, columns, strict=True))))

    def _measured(self, plan: Plan) -> tuple[str, str, str]:
        """Run a query to its end, and return texts about its rows, the server's and its requests."""
        before, began = self._connection.metrics(), perf_counter()
        count = sum(batch.num_rows for batch in Answer(rows=plan.run()).batches())
        seconds, after = perf_counter() - began, self._connection.metrics()
        asked = [
            (of.count - old.count, of.bytes_received - old.bytes_received)
            for name, of in after.requests.items()
            for old in [before.requests.get(name, RequestMetrics(0, 0, 0.0, 0, 0))]
        ]
        requests, received = (sum(numbers) for numbers in zip(*asked, strict=True))
        return (
            f"{seconds:.3f} s",
            f"{count:,} row{'' if count == 1 else 's'}",
            f"{after.rows_scanned - before.rows_scanned:,} rows scanned,"
            f" {requests:,} request{'' if requests == 1 else 's'} of the client's loop, {received:,} bytes",
        )

    def _describe_table(self, statement: DescribeTable) -> Answer:
        if str(statement.path) in self.views:
            return Answer(rows=self._columns_of_view(statement.path))
        return Answer(definition=self._connection.admin.describe_table(statement.path))

    def _show_columns(self, statement: ShowColumns) -> Answer:
        if str(statement.path) in self.views:
            rows = self._columns_of_view(statement.path)
        else:
            rows = _columns_of(self._connection.admin.describe_table(statement.path))
        return Answer(rows=_like(rows, "column", statement.like))

    def _columns_of_view(self, path: TablePath) -> pa.Table:
        from headrace.tablelayer.sql.catalog import columns_of_query

        select = self._analyze(f"SELECT * FROM {quoted(path.database)}.{quoted(path.table)}")
        return columns_of_query(self._plan(select).schema())

    def _describe_query(self, statement: DescribeQuery) -> Answer:
        from headrace.tablelayer.sql.catalog import columns_of_query

        return Answer(rows=columns_of_query(self._plan(statement.select).schema()))

    def _summarize(self, statement: Summarize) -> Answer:
        return Answer(rows=self._summary(statement).run())

    def _summary(self, statement: Summarize) -> Plan:
        from headrace.tablelayer.sql.select import of_duckdb

        return of_duckdb(
            self._connection, statement.select, self._known(), files=self._files, before="SUMMARIZE "
        )

    def _create_view(self, statement: CreateView) -> Answer:
        name = str(statement.path)
        if name in self.views and not statement.or_replace:
            if statement.if_not_exists:
                return Answer(text=f"view {name} exists")
            raise TableError(
                TableErrorCode.TABLE_EXISTS, f"view {name} exists already: use CREATE OR REPLACE VIEW"
            )
        if self._connection.admin.table_exists(statement.path):
            raise TableError(TableErrorCode.TABLE_EXISTS, f"{name} is a table: give the view another name")
        self.views[name] = statement.sql
        self.temporary.pop(name, None)
        return Answer(text=f"created view {name} for this session")

    def _create_temporary_table(self, statement: CreateTemporaryTable) -> Answer:
        from headrace.tablelayer.model.ddl.select import with_databases
        from headrace.tablelayer.sql.connectors import query_of

        name = str(statement.path)
        if name in self.views:
            if statement.if_not_exists:
                return Answer(text=f"temporary table {name} exists")
            raise TableError(TableErrorCode.TABLE_EXISTS, f"temporary table {name} exists already")
        if self._connection.admin.table_exists(statement.path):
            raise TableError(
                TableErrorCode.TABLE_EXISTS, f"{name} is a table: give the temporary table another name"
            )
        query, notices = query_of(statement)
        self.views[name] = with_databases(self._analyze(query))
        self.temporary[name] = statement
        answer = Answer(text=f"created temporary table {name} for this session")
        answer.notices = tuple(notices)
        return answer

    def _create_table_like(self, statement: CreateTableLike) -> Answer:
        from headrace.tablelayer.sql.like import definition_like

        source = self.temporary.get(str(statement.source))
        found = source or self._connection.admin.describe_table(statement.source)
        definition = definition_like(statement, found)
        self._connection.admin.create_table(definition, if_not_exists=statement.if_not_exists)
        return Answer(text=created(f"table {definition.path}", statement.if_not_exists))

    def _drop_view(self, statement: DropView) -> Answer:
        name = str(statement.path)
        self.temporary.pop(name, None)
        if self.views.pop(name, None) is None and not statement.if_exists:
            raise TableError(TableErrorCode.TABLE_NOT_FOUND, f"view {name} does not exist")
        return Answer(text=dropped(f"view {name}", statement.if_exists))

    # -- changes

    def _written(self, work: Callable[[], int], verb: str) -> Answer:
        from headrace.tablelayer.sql.writes import count_text

        began = perf_counter()
        with self._writing():
            rows = work()
        return Answer(text=count_text(rows, verb, perf_counter() - began), row_count=rows)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._writes.written_count = 0
        self._is_writing = True
        try:
            yield
        finally:
            self._is_writing = False

    def _create_table_as(self, statement: CreateTableAs) -> Answer:
        from headrace.tablelayer.sql.writes import count_text

        began = perf_counter()
        with self._writing():
            rows = self._writes.create(statement)
        if rows is None:
            return Answer(text=f"table {statement.path} exists")
        told = count_text(rows, "written", perf_counter() - began)
        return Answer(text=f"created table {statement.path}, {told}", row_count=rows)

    def _copy_from(self, statement: CopyFrom) -> Answer:
        from headrace.tablelayer.sql.files import copy_from

        return self._written(
            lambda: copy_from(self._connection, self._writes, statement, files=self._files), "written"
        )

    def _copy_to(self, statement: CopyTo) -> Answer:
        from headrace.tablelayer.sql.files import copy_to

        answer = self._query(statement.select)
        return self._written(
            lambda: copy_to(answer, statement, files=self._files), f"written to {statement.file}"
        )

    # -- names

    def _show_tables(self, statement: ShowTables) -> Answer:
        return _names("table", self._connection.admin.list_tables(statement.database), statement.like)

    def _show_topics(self, statement: ShowTopics) -> Answer:
        """Return the plain topics, without those of tables and internal ones."""
        topics = [each.name for each in self._connection.kafka.list_topics() if not each.is_internal]
        of_tables = tables_of_topics(self._connection, topics)
        return _names("topic", [each for each in topics if each not in of_tables], statement.like)

    def _show_create_database(self, statement: ShowCreateDatabase) -> Answer:
        known = self._connection.admin.describe_database(statement.name)
        return Answer(text=create_database_sql(known.name, known.comment, known.properties), is_code=True)

    def _partitions(self, statement: ShowPartitions) -> Answer:
        """Return a row for each partition: its values, its topic and its number of buckets."""
        admin = self._connection.admin
        definition = admin.describe_table(statement.path)
        found = admin.list_partitions(statement.path, statement.spec)
        columns: dict[str, pa.Array] = {
            key: pa.array([each.values[position] for each in found], pa.string())
            for position, key in enumerate(definition.partition_keys)
        }
        columns["topic"] = pa.array([f"{statement.path}.{each.name}" for each in found], pa.string())
        columns["buckets"] = pa.array([each.bucket_count for each in found], pa.int32())
        return Answer(rows=pa.table(list(columns.values()), names=list(columns)))

    def _options(self, statement: ShowOptions) -> Answer:
        """Return all options, with the values of a table if one is named."""
        given: Mapping[str, str] = {}
        value = "default"
        if statement.path is not None:
            given, value = self._connection.admin.describe_table(statement.path).options, "value"
        listed = [
            (each.name, given.get(each.name, each.default_text), "yes" if each.alterable else "no", each.doc)
            for each in DECLARED.values()
        ]
        others = [(name, text, "yes", "Kafka's topic configuration.") for name, text in given.items()
                  if name not in DECLARED]  # fmt: skip
        columns = list(zip(*sorted([*listed, *others]), strict=True))
        names = ("option", value, "alterable", "what it does")
        return Answer(
            rows=pa.table({n: pa.array(c, pa.string()) for n, c in zip(names, columns, strict=True)})
        )

    def _describe_database(self, statement: DescribeDatabase) -> Answer:
        known = self._connection.admin.describe_database(statement.name)
        pairs = [("name", known.name), ("tables", str(known.table_count))]
        if known.comment is not None:
            pairs.append(("comment", known.comment))
        pairs += [(f"'{key}'", value) for key, value in known.properties.items()]
        keys, values = zip(*pairs, strict=True)
        return Answer(
            rows=pa.table({"property": pa.array(keys, pa.string()), "value": pa.array(values, pa.string())})
        )

    def _use(self, statement: UseDatabase) -> Answer:
        name = statement.name
        if name not in self._connection.admin.list_databases():
            fluss = "; Fluss's first database is 'default' here" if name == "fluss" else ""
            raise TableError(TableErrorCode.DATABASE_NOT_FOUND, f"there is no database '{name}'{fluss}")
        self.names.database = name
        return Answer(text=f"using database {name}")

    # -- scripts

    def _set(self, statement: SetSetting) -> Answer:
        if statement.name is None:
            return Answer(texts=self.settings.shown())
        answer = Answer(text=f"set '{statement.name}' to '{statement.value}'")
        answer.notices = self.settings.set(statement.name, statement.value)
        return answer

    def _reset(self, statement: ResetSetting) -> Answer:
        self.settings.reset(statement.name)
        return Answer(text="reset all settings" if statement.name is None else f"reset '{statement.name}'")

    def _create_catalog(self, statement: CreateCatalog) -> Answer:
        self.names.catalogs[statement.name] = statement.database
        others = ", ".join(f"'{each}'" for each in statement.others)
        answer = Answer(text=f"catalog {statement.name} is this server")
        answer.notices = (
            *((f"'bootstrap.servers' = '{statement.server}' has no effect: the session stays at its server",)
              if statement.server is not None else ()),
            *((f"the catalog's options {others} have no effect here",) if others else ()),
        )  # fmt: skip
        return answer

    def _use_catalog(self, statement: UseCatalog) -> Answer:
        self._use(UseDatabase(statement.database))
        return Answer(
            text=f"using catalog {statement.name}, which is this server, and database {self.database}"
        )


_CARRIED_OUT: dict[type, Callable[[Session, Any], Answer]] = {
    UseDatabase: Session._use,
    ShowDatabases: lambda self, it: _names("database", self._connection.admin.list_databases(), it.like),
    ShowTables: Session._show_tables,
    ShowTopics: Session._show_topics,
    ShowViews: lambda self, it: _names("view", sorted(self.views), it.like),
    ShowPartitions: Session._partitions,
    ShowOptions: Session._options,
    ShowColumns: Session._show_columns,
    DescribeDatabase: Session._describe_database,
    ShowCreateDatabase: Session._show_create_database,
    DescribeTable: Session._describe_table,
    DescribeQuery: Session._describe_query,
    ShowCreateTable: lambda self, it: Answer(
        text=create_table_sql(self._connection.admin.describe_table(it.path)), is_code=True
    ),
    Select: Session._select,
    Stream: Session._stream,
    SetSetting: Session._set,
    ResetSetting: Session._reset,
    CreateCatalog: Session._create_catalog,
    UseCatalog: Session._use_catalog,
    ShowCatalogs: lambda self, it: Answer(texts={"catalog": sorted({HOME[0], *self.names.catalogs})}),
    Notice: lambda self, it: Answer(text=it.text),
    CreateTemporaryTable: Session._create_temporary_table,
    CreateTableLike: Session._create_table_like,
    Explain: Session._explain,
    Summarize: Session._summarize,
    CreateView: Session._create_view,
    DropView: Session._drop_view,
    CreateTableAs: Session._create_table_as,
    Insert: lambda self, it: self._written(lambda: self._writes.insert(it), "written"),
    InsertSelect: lambda self, it: self._written(lambda: self._writes.insert_select(it), "written"),
    CopyFrom: Session._copy_from,
    CopyTo: Session._copy_to,
    Update: lambda self, it: self._written(
        lambda: self._writes.update(it, lambda: self._require(it)), "updated"
    ),
    Delete: lambda self, it: self._written(
        lambda: self._writes.delete(it, lambda: self._require(it)), "deleted"
    ),
    Truncate: lambda self, it: self._written(lambda: self._writes.truncate(it), "deleted"),
}

_PRIVILEGES: dict[type, str] = {
    InsertSelect: "INSERT",
    CopyFrom: "INSERT",
    Update: "UPDATE",
    Delete: "DELETE",
    Truncate: "DELETE",
}

_READS = (
    Select, Explain, Summarize, DescribeDatabase, DescribeQuery, DescribeTable, ShowColumns, ShowCreateDatabase,
    ShowCreateTable, ShowDatabases, ShowOptions, ShowPartitions, ShowTables, ShowTopics,
)  # fmt: skip
"""Statements that read tables, topics and names, but neither users nor rights."""


def _plain(value: Any) -> Any:
    """Return the value that its literal has in a statement: a UUID is a text."""
    return str(value) if isinstance(value, UUID) else value


def _marks(count: int) -> list[str]:
    """Return texts that stand for the values of placeholders while a statement is analysed."""
    return [f"\ue000{index}\ue000" for index in range(count)]


def _texts(columns: Mapping[str, Any]) -> pa.Table:
    return pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})


def _names(heading: str, names: list[str], like: str | None) -> Answer:
    """Return names as rows."""
    if like is None:
        return Answer(texts={heading: names})
    return Answer(rows=_like(_texts({heading: names}), heading, like))


def _columns_of(definition: TableDefinition) -> pa.Table:
    from headrace.tablelayer.sql.catalog import columns_of

    return columns_of(definition)


def _like(rows: pa.Table, column: str, like: str | None) -> pa.Table:
    """Return the rows whose name matches SQL's pattern: % for any characters, _ for one."""
    if like is None:
        return rows
    import pyarrow.compute as pc

    return rows.filter(pc.match_like(rows.column(column), like))
