"""Queries in DuckDB over rows from the server.

A query is bound to its tables' columns before any row is read, so that a wrong name is found at once, and the error
suggests similar names. A table that is read once is streamed, and so is the answer: neither must fit into memory,
except for what DuckDB must hold. Rows of the lake go through a temporary table. DuckDB spills to a temporary folder,
which it makes on demand. It removes files when their query ends, and the folder when the process ends.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any
from uuid import uuid4
from weakref import WeakSet

import pyarrow as pa

from headrace.tablelayer.client import stopping
from headrace.tablelayer.model.ddl import Select
from headrace.tablelayer.model.types.quoting import quoted
from headrace.tablelayer.sql.errors import SqlError, near
from headrace.tablelayer.sql.sources import Source

_BATCH_ROWS = 20_000
_UNKNOWN_COLUMN = (
    re.compile(r'Referenced column "(?P<column>.+?)" not found'),
    re.compile(
        r'(?:Table|Values list) "(?P<table>.+?)" does not have a column named "(?P<column>.+?)"(?=\n|$)'
    ),
    re.compile(r'Referenced table "(?P<table>.+?)" not found'),
)


def connect(*, files: bool = True, planning: bool = False) -> Any:
    """Open a connection to this process's DuckDB database, in UTC. A `Stop` interrupts its queries.

    `files` says whether its statements may use files of this machine and connect to other machines. Connections see
    neither each other's tables nor this process's variables. `planning` says that its tables are empty and only plans
    are wanted, which would otherwise leave out empty tables.
    """
    with _OPENING:
        connection = _database(files, planning).cursor()
    stop = stopping.current()
    if stop is not None:
        stop.interrupts(connection)
    return connection


_DATABASES: dict[tuple[int, bool, bool], Any] = {}
"""Databases by process, `files` and `planning`. Making one takes 40 ms, a connection 0.02 ms. A fork does not have
its threads.
"""
_OPENING = Lock()
_SPILLED: list[str] = []
"""Folders that queries of this process spill to. DuckDB makes one when it spills, and removes it when it ends."""


def remove_spilled() -> None:
    """Remove the files to which queries have spilled. For a process that ends without DuckDB's own end."""
    for folder in _SPILLED:
        shutil.rmtree(folder, ignore_errors=True)


def _database(files: bool, planning: bool) -> Any:
    """Return the database of this process; make it at its first use."""
    import duckdb

    key = os.getpid(), files, planning
    if key not in _DATABASES:
        database = duckdb.connect()
        database.execute("SET GLOBAL TimeZone = 'UTC'; SET GLOBAL python_enable_replacements = false")
        folder = os.path.join(tempfile.gettempdir(), f"headrace-sql-{uuid4().hex}")
        database.execute("SET GLOBAL temp_directory = $folder", {"folder": folder})
        _SPILLED.append(folder)
        # This optimizer makes an ANTI JOIN of a LEFT JOIN with `WHERE right.key IS NULL`. If the right side is
        # Arrow's, it then loses a second IS NULL on that side (DuckDB 2.0).
        unused = ",statistics_propagation,compressed_materialization,empty_result_pullup" if planning else ""
        database.execute(f"SET GLOBAL disabled_optimizers = 'outer_join_simplification{unused}'")
        if not files:
            database.execute(
                "SET GLOBAL enable_external_access = false; SET GLOBAL lock_configuration = true"
            )
        _DATABASES[key] = database
    return _DATABASES[key]


_SUMMARIZED = {
    "TIMESTAMPTZ_NS": "{0} AT TIME ZONE 'UTC'",
    "TIME_NS": "CAST(MAKE_TIMESTAMP(EPOCH_NS({0}) // 1000) AS TIME)",
}
"""Conversions of types that SUMMARIZE refuses, because they have no avg()."""
_WITHOUT_ARROW = ("BIT", "TIME WITH TIME ZONE", "VARIANT", "BIGNUM")
"""DuckDB's types without an equivalent in Arrow, which would get their inner bytes, or a time without its zone."""


def in_arrow(relation: Any) -> Any:
    """Cast columns of types that Arrow does not have to texts. Raises SqlError for such types in nested values."""
    if not any(map(_lacks_arrow, relation.types)):
        return relation
    chosen = []
    for place, (name, kind) in enumerate(zip(relation.columns, relation.types, strict=True), 1):
        if str(kind) not in _WITHOUT_ARROW and _lacks_arrow(kind):
            raise SqlError(
                f"column '{name}' of the query is {kind}, which Arrow does not have: cast it to another type"
            )
        value = f"CAST(#{place} AS VARCHAR)" if _lacks_arrow(kind) else f"#{place}"
        chosen.append(f"{value} AS {quoted(name)}")
    return relation.project(", ".join(chosen))


def _lacks_arrow(kind: Any) -> bool:
    if str(kind) in _WITHOUT_ARROW:
        return True
    if kind.id not in ("list", "struct", "map", "array", "union"):
        return False
    return any(_lacks_arrow(part) for _, part in kind.children if not isinstance(part, int))


class _Running:
    """A query whose rows are being read. The exit of the process closes it, because the native part of DuckDB prints a
    line for each of its objects that is still there.
    """

    def __init__(self, database: Any, reader: Any) -> None:
        self._database = database
        self._reader = reader
        _RUNNING.add(self)

    def rows(self) -> Iterator[pa.RecordBatch]:
        while (reader := self._reader) is not None:
            try:
                batch = reader.read_next_batch()
            except StopIteration:
                return
            del reader  # while the rows are used, only `close` decides
            yield batch

    def close(self) -> None:
        database, self._database = self._database, None
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()  # before its sources are closed
            database.close()


_RUNNING: WeakSet[_Running] = WeakSet()


@atexit.register
def _close_running() -> None:
    for each in list(_RUNNING):
        each.close()
    for (process, *_), database in _DATABASES.items():
        if process == os.getpid():
            database.close()


def check_names(table: str, names: Iterable[str], read: Collection[str] | None) -> None:
    """Raise SqlError for columns that a query may read (`read`: names in lower case, None: all of them) if DuckDB takes
    their names for the same one.
    """
    seen: dict[bytes, str] = {}
    for name in names:
        folded = name.encode().lower()  # DuckDB folds ASCII only
        if folded in seen and (read is None or name.lower() in read):
            raise SqlError(
                f"{table} has the columns '{seen[folded]}' and '{name}', which DuckDB does not tell apart: rename"
                " one of them, or read the table by the client"
            )
        seen[folded] = name


class Engine:
    """One query over `sources`, by their names in the query. `before` is a word before the query: SUMMARIZE."""

    def __init__(
        self, select: Select, sources: Mapping[str, Source], *, files: bool = True, before: str = ""
    ) -> None:
        from headrace.tablelayer.model.ddl.select import to_duckdb

        self._select = select
        self._sources = sources
        self._names = {name: f"table_{index}" for index, name in enumerate(sources)}
        known = {name: source.types for name, source in sources.items() if source.types is not None}
        for name, schema in known.items():
            check_names(name, schema.names, select.columns_read.get(name))
        self._before = before
        self._query = to_duckdb(select, self._names, schemas=known)
        self._sql = before + self._query
        self._reads_once = select.reads_once
        self._files = files

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader of the rows as they arrive.

        Raises SqlError for errors of DuckDB. Reading raises it, too, and the errors of the sources.
        """
        import duckdb

        arriving: dict[str, Arriving] = {}
        database = connect(files=self._files)
        try:
            self._bind(database)
            for name, source in self._sources.items():
                arriving[name] = self._register(database, name, source)
            reader = in_arrow(database.sql(self._sql)).to_arrow_reader(_BATCH_ROWS)
        except duckdb.Error as error:
            database.close()
            raise self._said(error, arriving.values()) from None
        except BaseException:
            database.close()
            raise
        schema, running = reader.schema, _Running(database, reader)

        def rows() -> Iterator[pa.RecordBatch]:
            try:
                yield from running.rows()
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                raise self._said(error, arriving.values()) from None
            finally:
                running.close()

        return pa.RecordBatchReader.from_batches(schema, rows())

    def schema(self) -> pa.Schema:
        """Return the schema of the rows. Rows are read only if a source does not know its schema."""
        import duckdb

        schemas = {
            name: source.schema if source.batches is None else source.batches()[0]
            for name, source in self._sources.items()
        }
        if self._select.pivots or any(schema is None for schema in schemas.values()):
            return self.reader().schema
        with connect(files=self._files) as database:
            try:
                self._bind(database)
                for name, schema in schemas.items():
                    assert schema is not None
                    database.register(self._names[name], schema.empty_table())
                return in_arrow(database.sql(self._sql)).to_arrow_reader(1).schema
            except duckdb.Error as error:
                raise self._said(error, ()) from None

    def operators(self) -> tuple[dict[str, str], list[Any]]:
        """Return the tables by their names in DuckDB, and the trees of DuckDB's operators. No row is read."""
        import duckdb
        import msgspec

        if any(source.schema is None for source in self._sources.values()):
            raise SqlError("the plan is not known before the query is run: it reads a file or a view of one")
        with connect(files=self._files, planning=True) as database:
            try:
                for name, source in self._sources.items():
                    assert source.schema is not None
                    database.register("empty", source.schema.empty_table())
                    database.execute(f"CREATE TEMP TABLE {self._names[name]} AS FROM empty")
                    database.unregister("empty")
                ((_, text),) = database.execute(f"EXPLAIN (FORMAT JSON) {self._sql}").fetchall()
            except duckdb.Error as error:
                raise self._said(error, ()) from None
        return {own: name for name, own in self._names.items()}, msgspec.json.decode(text)

    def place_types(self, marks: Sequence[str]) -> list[pa.DataType | None]:
        """Return the types of values that the query has as these texts; None if a type is open."""
        from headrace.tablelayer.model.ddl.select import compared_with

        found: list[pa.DataType | None] = []
        with connect(files=self._files) as database:
            for role in compared_with(self._select, marks):
                if role is not None and role.startswith("::"):
                    found.append(
                        database.sql(f"SELECT NULL{role} AS x").to_arrow_reader(1).schema.field(0).type
                    )
                    continue
                kinds = {
                    source.schema.field(index).type
                    for source in self._sources.values()
                    if source.schema is not None and role is not None
                    for index, name in enumerate(source.schema.names)
                    if name.lower() == role.lower()
                }
                found.append(kinds.pop() if len(kinds) == 1 else None)
        return found

    def _bind(self, database: Any) -> None:
        """Check the query against the columns. Raises DuckDB's errors."""
        schemas = {name: source.schema for name, source in self._sources.items()}
        if not schemas or self._select.pivots or any(schema is None for schema in schemas.values()):
            return
        for name, schema in schemas.items():
            assert schema is not None
            database.register(self._names[name], schema.empty_table())
        relation = database.sql(self._query)
        if self._before and any(str(kind) in _SUMMARIZED for kind in relation.types):
            columns = zip(relation.columns, relation.types, strict=True)
            listed = [
                f"{_SUMMARIZED.get(str(kind), '{0}').format(f'#{place}')} AS {quoted(name)}"
                for place, (name, kind) in enumerate(columns, 1)
            ]
            self._sql = f"{self._before}SELECT {', '.join(listed)} FROM ({self._query})"
        for name in schemas:
            database.unregister(self._names[name])

    def _register(self, database: Any, name: str, source: Source) -> Arriving:
        if self._reads_once and source.batches is not None:
            arriving = Arriving(*source.batches())
            database.register(self._names[name], arriving.reader)
            return arriving
        rows = source.read()
        if isinstance(rows, pa.Table):
            database.register(self._names[name], rows)
            return Arriving(rows.schema, ())
        arriving = Arriving(rows.schema, rows)
        database.register("arriving", arriving.reader)
        database.execute(f"CREATE TEMP TABLE {self._names[name]} AS SELECT * FROM arriving")
        database.unregister("arriving")
        return arriving

    def _said(self, error: Exception, arriving: Iterable[Arriving]) -> Exception:
        for each in arriving:
            if each.error is not None:
                return each.error
        text = str(error)
        unknown = self._unknown(text)
        if unknown is not None:
            return SqlError(unknown)
        for table, name in self._names.items():
            text = text.replace(name, table)
        return SqlError(text)

    def _unknown(self, text: str) -> str | None:
        """Return the message about an unknown name; None if the error is another one."""
        for pattern in _UNKNOWN_COLUMN:
            found = pattern.search(text)
            if found is None:
                continue
            if "column" not in pattern.groupindex:
                return f"there is no table '{found['table']}' in this query"
            name = found["column"].replace('""', '"')
            schemas = {
                table: source.schema.names
                for table, source in self._sources.items()
                if source.schema is not None
            }
            if not schemas:
                return None
            every = [column for columns in schemas.values() for column in columns]
            where = " and ".join(schemas)
            listed = "\n".join(f"{table} has {', '.join(columns)}" for table, columns in schemas.items())
            return f"there is no column '{name}' in {where}{near(name, every)}\n{listed}"
        return None


class Arriving:
    """A reader of batches for DuckDB. `error` is the source's own error, which DuckDB reports in its own words."""

    def __init__(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        self.error: Exception | None = None
        self._stop = stopping.current()
        self.reader = pa.RecordBatchReader.from_batches(schema, self._keeping(batches))

    def _keeping(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = iter(batches)
        try:
            while True:
                with stopping.running(self._stop):  # DuckDB reads in threads of its own
                    batch = next(rows, None)
                if batch is None:
                    return
                yield batch
        except Exception as error:
            self.error = error
            raise
