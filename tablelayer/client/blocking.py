"""The client for programs without an event loop: the same calls, each of which waits.

A `Connection` owns one background thread with one event loop, in which the asynchronous client does everything. It
may be used from any number of threads. It belongs to the process that made it: after a fork (Spark's Python workers,
multiprocessing) the child makes its own; using the parent's raises RuntimeError instead of hanging.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from html import escape
from importlib import import_module
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import pyarrow as pa

from protocol.schema import ApiMessage
from tablelayer.client.admin.databases import AsyncAdmin
from tablelayer.client.admin.kafka import (
    AsyncKafkaAdmin,
)
from tablelayer.client.admin.security import AsyncSecurityAdmin
from tablelayer.client.config import ClientConfig
from tablelayer.client.connection import connect_async
from tablelayer.client.errors import ClientError
from tablelayer.client.metrics import ClientMetrics
from tablelayer.client.read.part_scan import ScanBatch
from tablelayer.client.read.reader import AnyMoment, nullable_schema
from tablelayer.client.result import SqlResult
from tablelayer.client.security.settings import Bootstrap, ConnectionSettings
from tablelayer.client.shown import definition_html, definition_text
from tablelayer.client.table.scan import AsyncScan, PartitionOffsets, Start, Until
from tablelayer.client.table.staging import AsyncStagedWriter
from tablelayer.client.table.table import FEW_KEYS, AsyncTable
from tablelayer.client.wire.cluster import NotAtOnce
from tablelayer.client.wire.direct import DirectCluster, at_once
from tablelayer.model.filters.filters import FilterLike
from tablelayer.model.table.definition import TableDefinition, TablePath

T = TypeVar("T")
P = ParamSpec("P")
ResponseT = TypeVar("ResponseT", bound=ApiMessage)


class _LoopThread:
    """An event loop in a daemon thread of this process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-client", daemon=True)
        self._thread.start()
        self._stopped = False

    @property
    def is_ours(self) -> bool:
        """Whether this thread may wait for it."""
        return (
            not self._stopped and self._pid == os.getpid() and threading.current_thread() is not self._thread
        )

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run to the end in the loop and wait; an interrupt (Ctrl-C) of the caller cancels it."""
        if self._stopped or self._pid != os.getpid():
            coroutine.close()
            if self._stopped:
                raise RuntimeError("the connection is closed")
            raise RuntimeError("this connection was made before a fork: make a new one in each process")
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError("the blocking client cannot be used inside its own event loop")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run without waiting; not at all if the loop has stopped or belongs to another process."""
        if self._stopped or self._pid != os.getpid():
            coroutine.close()
        else:
            asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        if self._stopped or self._pid != os.getpid():
            return
        self._stopped = True
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        if not self._thread.is_alive():
            self._loop.close()

    async def _cancel_all(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()


class _Waiting:
    """What a loop thread does for others: `inner` is the asynchronous object."""

    def __init__(self, inner: Any, loop: _LoopThread) -> None:
        self._inner = inner
        self._loop = loop


def _waits(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """An asynchronous method as one that waits: the same arguments, answer and errors."""
    name = method.__name__

    @wraps(method)
    def wait(self: Any, /, *args: P.args, **named: P.kwargs) -> T:
        coroutine: Coroutine[Any, Any, T] = getattr(self._inner, name)(*args, **named)
        loop: _LoopThread = self._loop
        return loop.run(coroutine)

    return wait


def _asks(
    method: Callable[Concatenate[AsyncTable, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Table, P], T]:
    """A read as one that waits; a small one in this thread (`tablelayer.client.wire.direct`), if that is possible."""
    name, wait = method.__name__, _waits(method)

    @wraps(method)
    def ask(self: Table, /, *args: P.args, **named: P.kwargs) -> T:
        near = self._near(args[0]) if args and not named.get("insert_if_absent") else None
        if near is not None:
            coroutine: Coroutine[Any, Any, T] = getattr(near, name)(*args, **named)
            try:
                return at_once(coroutine)
            except NotAtOnce:
                pass
        return wait(self, *args, **named)

    return ask


def _session(connection: Connection) -> Any:
    """SQL stands on the client, and is found when it is asked for. Raises ClientError where it is not installed."""
    try:
        return import_module("tablelayer.sql.session").Session(connection)
    except ModuleNotFoundError as error:
        raise ClientError(
            f"SQL needs {error.name}, which is not installed: pip install headrace instead of headrace-client"
        ) from error


class Connection:
    """A client of one cluster. Make one with `connect`; close it, or use it in `with`."""

    def __init__(
        self,
        bootstrap: Bootstrap,
        config: ClientConfig | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> None:
        self.settings = ConnectionSettings.make(bootstrap, properties)
        self.config = config or ClientConfig()
        self._loop = _LoopThread()
        try:
            self._connection = self._loop.run(connect_async(self.settings, self.config))
        except BaseException:
            self._loop.stop()
            raise
        direct = DirectCluster(self.settings, self.config, self._connection.cluster)
        self._direct = direct if direct.is_possible else None
        self.admin = Admin(self._connection.admin, self._loop)
        self.kafka = KafkaAdmin(self._connection.kafka, self._loop)
        self.security = SecurityAdmin(self._connection.security, self._loop)
        self._session: Any = None
        self._session_made = threading.Lock()

    @property
    def bootstrap(self) -> str:
        """The addresses it was given."""
        return self.settings.bootstrap

    def table(self, path: TablePath | str) -> Table:
        """Open a table. TableError TABLE_NOT_FOUND if there is none of that name."""
        return Table(self._loop.run(self._connection.table(path)), self._loop, self._direct)

    def open_table(self, definition: TableDefinition) -> Table:
        """Open a table whose definition, id included, is known already: no question to the server."""
        return Table(self._connection.open_table(definition), self._loop, self._direct)

    def execute(self, statement: str) -> None:
        """Run DDL: CREATE, ALTER or DROP, DATABASE or TABLE; several statements are separated by semicolons.

        Raises DdlError (a TableError) that points at the word it does not understand.
        """
        from tablelayer.client.admin.ddl import execute  # sqlglot takes half a second to import

        execute(self.admin, statement)

    def sql(self, query: str, params: Sequence[Any] | Mapping[str, Any] | None = None) -> SqlResult:
        """Carry out SQL: `connection.sql("SELECT name FROM fruit WHERE id = ?", [1]).to_pandas()`.

        Everything that `headrace sql` takes, by the same engine. `params` stand for `?` in order, or by name for
        `:name` and `$name`; they are values, never parts of the statement. Of several statements the answer is the last
        one's. Tables without a database are in the one that a `USE` before named, at first `default`; views last as
        long as the connection.

        Raises DdlError (a TableError) that points at a word, TableError, DataError, and SqlError (a ClientError) for
        what DuckDB refuses; ClientError where SQL is not installed (`headrace-client` alone).
        """
        answer: SqlResult = self._sql_session().query(query, params)
        return answer

    def sql_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        """Carry out a statement for each of many rows of values for its `?`; how many rows were written. An INSERT of
        one row writes them all at once. Errors as `sql`.
        """
        return int(self._sql_session().query_many(statement, rows))

    def _sql_session(self) -> Any:
        with self._session_made:
            if self._session is None:
                self._session = _session(self)
            return self._session

    def __repr__(self) -> str:
        return f"<Connection to {self.bootstrap}{', closed' if self._loop.is_stopped else ''}>"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self)[1:-1])}</p>"

    def call(
        self,
        request: ApiMessage,
        response: type[ResponseT],
        *,
        doing: str,
        repeatable: bool = True,
        changes: bool = False,
        to_controller: bool = False,
    ) -> ResponseT:
        """Send one request of the table extension to any server, or to the controller, with retries; its error code is
        raised.

        `doing` says what is attempted, for the error's text; `repeatable` whether doing it twice is harmless; `changes`
        whether it has an effect, so that an attempt without an answer leaves the outcome unknown.
        """
        return self._loop.run(
            self._connection.cluster.call(
                request,
                response,
                doing=doing,
                repeatable=repeatable,
                changes=changes,
                to_controller=to_controller,
            )
        )

    def metrics(self) -> ClientMetrics:
        """What this connection has done so far: requests, retries, rows; see `ClientMetrics`."""
        found = self._connection.metrics()
        if self._direct is None:
            return found
        return replace(found, connections=found.connections + self._direct.connection_count)

    def close(self) -> None:
        """Close everything. Idempotent; in a forked child it leaves the parent's connection alone."""
        try:
            self._loop.run(self._connection.close())
        except RuntimeError:
            return  # closed already, or made before a fork
        self._loop.stop()
        if self._direct is not None:
            self._direct.close()  # who waits there turns to the loop, and is told

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def connect(
    bootstrap: Bootstrap = "127.0.0.1:9092",
    config: ClientConfig | None = None,
    properties: Mapping[str, object] | None = None,
) -> Connection:
    """Connect to a cluster: `with connect("127.0.0.1:9092") as connection: ...`.

    `bootstrap` names some of its servers, "host:port,host:port". `properties` are Kafka's of security, as Java and
    librdkafka call them, for example {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-256", ...}; None:
    those of the environment. Raises ConnectionFailed at once if none of the servers answers, AuthenticationFailed if
    one does not accept us or is not the one we trust.
    """
    return Connection(bootstrap, config, properties)


@dataclass(frozen=True, slots=True)
class TableRef:
    """Where a table is: small, picklable, safe to send to other processes, which connect by themselves.

    `with ref.connect() as connection: connection.table(ref.path)`.
    """

    bootstrap: Bootstrap
    path: str
    config: ClientConfig = field(default_factory=ClientConfig)

    def connect(self) -> Connection:
        """A new connection of this process to the table's cluster."""
        return Connection(self.bootstrap, self.config)


class Table(_Waiting):
    """A table. See `AsyncTable`, whose methods these are, for what each takes, returns and raises."""

    _inner: AsyncTable

    def __init__(self, table: AsyncTable, loop: _LoopThread, direct: DirectCluster | None = None) -> None:
        super().__init__(table, loop)
        self._direct = direct
        self._nearby: AsyncTable | None = None

    def _near(self, asked: Any) -> AsyncTable | None:
        """The same table to be read in this thread, for a key, a number of rows or a few keys; None if that is not
        possible."""
        is_small = not hasattr(asked, "__len__") or isinstance(asked, (Mapping, str, bytes))
        if not (is_small or (isinstance(asked, (list, tuple)) and len(asked) <= FEW_KEYS)):
            return None
        definition = self._inner.definition
        if self._direct is None or definition.is_partitioned or not self._loop.is_ours:
            return None
        near = self._nearby
        if near is None or near.definition is not definition:
            near = self._nearby = AsyncTable(self._direct, definition)
        return near

    @property
    def definition(self) -> TableDefinition:
        """Columns, keys and options, as this handle knows them."""
        return self._inner.definition

    @property
    def path(self) -> TablePath:
        """Its database and name."""
        return self._inner.path

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of the table's rows."""
        return self._inner.arrow_schema

    def __repr__(self) -> str:
        return definition_text(self.definition)

    def _repr_html_(self) -> str:
        return definition_html(self.definition)

    def __len__(self) -> int:
        """How many rows there are now: `count()`."""
        return self.count()

    def __bool__(self) -> bool:
        return True

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """The rows as they come (Arrow's PyCapsule interface): `polars.DataFrame(table)`, `pyarrow.table(table)`."""
        schema = nullable_schema(self.definition.schema.columns)
        pieces = (pa.RecordBatch.from_arrays(piece.columns, schema=schema) for piece in self.batches())
        return pa.RecordBatchReader.from_batches(schema, pieces).__arrow_c_stream__(requested_schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    close = _waits(AsyncTable.close)
    refresh = _waits(AsyncTable.refresh)
    append = _waits(AsyncTable.append)
    upsert = _waits(AsyncTable.upsert)
    delete = _waits(AsyncTable.delete)
    partial = _waits(AsyncTable.partial)
    write_rows = _waits(AsyncTable.write_rows)
    commit_staged = _waits(AsyncTable.commit_staged)
    abort_staged = _waits(AsyncTable.abort_staged)
    lookup = _asks(AsyncTable.lookup)
    lookup_one = _asks(AsyncTable.lookup_one)
    prefix_lookup = _asks(AsyncTable.prefix_lookup)
    prefix_lookup_grouped = _asks(AsyncTable.prefix_lookup_grouped)
    partitions = _waits(AsyncTable.partitions)
    limit = _asks(AsyncTable.limit)
    count = _waits(AsyncTable.count)
    extremes = _waits(AsyncTable.extremes)
    offsets = _waits(AsyncTable.offsets)
    offsets_as_of = _waits(AsyncTable.offsets_as_of)
    partition_offsets = _waits(AsyncTable.partition_offsets)
    partition_offsets_as_of = _waits(AsyncTable.partition_offsets_as_of)
    to_arrow = _waits(AsyncTable.to_arrow)
    to_pandas = _waits(AsyncTable.to_pandas)
    to_polars = _waits(AsyncTable.to_polars)
    range_scan = _waits(AsyncTable.range_scan)
    commit = _waits(AsyncTable.commit)
    committed = _waits(AsyncTable.committed)
    partition_committed = _waits(AsyncTable.partition_committed)

    def staged_writer(
        self,
        writer: str,
        batch_id: int,
        attempt: str,
        target_columns: tuple[int, ...] | None = None,
        *,
        definition: TableDefinition | None = None,
    ) -> StagedWriter:
        """A writer of rows that become part of the table with `commit_staged` (`tablelayer.client.table.staging`)."""

        async def make() -> AsyncStagedWriter:
            return self._inner.staged_writer(writer, batch_id, attempt, target_columns, definition=definition)

        return StagedWriter(self._loop.run(make()), self._loop)

    def partition(self, name: str) -> Table:
        """One partition as a table: its name is the values of the partition columns, joined by dots."""
        return Table(self._loop.run(self._inner.partition(name)), self._loop, self._direct)

    def only(self, spec: Mapping[str, Any]) -> Table:
        """The same table, whose reads see only the partitions with these values of partition columns."""
        return Table(self._inner.only(spec), self._loop)

    def scan(
        self,
        columns: Sequence[str] | None = None,
        start: Start = "full",
        until: Until = None,
        buckets: Sequence[int] | None = None,
        poll_timeout: float | None = None,
        as_of: AnyMoment | None = None,
        filter: FilterLike = None,
        row_filter: bool = True,
    ) -> Scan:
        """Read rows and changes as a stream of `ScanBatch`; see `AsyncTable.scan` for the choices.

        `for batch in table.scan(until="latest"): ...` reads the state and stops; `until=None` follows the
        changes for ever.
        """
        scan = self._inner.scan(columns, start, until, buckets, poll_timeout, as_of, filter, row_filter)
        return Scan(scan, self._loop)

    def batches(
        self, columns: Sequence[str] | None = None, filter: FilterLike = None
    ) -> Generator[pa.RecordBatch, None, None]:
        """The rows that `to_arrow` gives, a few MiB at a time."""
        pieces = self._inner.batches(columns, filter)
        try:
            while (piece := self._loop.run(_next_piece(pieces))) is not None:
                yield piece
        finally:
            self._loop.start(pieces.aclose())

    def snapshot(
        self,
        bucket: int,
        columns: Sequence[str] | None = None,
        filter: FilterLike = None,
        *,
        as_of: int | None = None,
        partition: str | None = None,
    ) -> Generator[tuple[pa.RecordBatch, int], None, None]:
        """One bucket of a PK table as it is now, or at an offset, piece by piece, each with the log offset of that
        moment."""
        pieces = self._inner.snapshot(bucket, columns, filter, as_of=as_of, partition=partition)
        try:
            while (piece := self._loop.run(_next_piece(pieces))) is not None:
                yield piece
        finally:
            self._loop.start(pieces.aclose())


class StagedWriter(_Waiting):
    """`AsyncStagedWriter`, each call of which waits."""

    _inner: AsyncStagedWriter

    @property
    def decided(self) -> bool:
        """The batch is committed already: what is written is counted and dropped."""
        return self._inner.decided

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    write = _waits(AsyncStagedWriter.write)
    finish = _waits(AsyncStagedWriter.finish)
    close = _waits(AsyncStagedWriter.close)


async def _next_piece(pieces: AsyncGenerator[T, None]) -> T | None:
    return await anext(pieces, None)


class Scan:
    """An iterator of `ScanBatch`, for one thread; closes itself at its end, or by `close`, or at the end of `with`."""

    def __init__(self, scan: AsyncScan, loop: _LoopThread) -> None:
        self._scan = scan
        self._loop = loop
        self._ended = False

    def __iter__(self) -> Iterator[ScanBatch]:
        return self

    def __next__(self) -> ScanBatch:
        if self._ended:
            raise StopIteration
        # What has arrived is decoded in this thread, while the loop's waits for the next answer.
        batch = self._scan.take_arrived()
        if batch is None:
            batch = self._loop.run(self._next())
        if batch is None:
            self.close()
            raise StopIteration
        return batch

    async def _next(self) -> ScanBatch | None:
        try:
            return await anext(self._scan)
        except StopAsyncIteration:
            return None

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each bucket, after the batches handed out so far."""
        return self._scan.positions

    @property
    def partition_positions(self) -> dict[str, dict[int, int]]:
        """The next offset of each bucket of each partition of a partitioned table."""
        return self._scan.partition_positions

    def seek(self, positions: Mapping[int, int] | PartitionOffsets) -> None:
        """Go on from these offsets instead."""

        async def seek() -> None:
            self._scan.seek(positions)

        self._loop.run(seek())

    def close(self) -> None:
        """Stop reading ahead. Idempotent."""
        if not self._ended:
            self._ended = True
            self._loop.run(self._scan.close())

    def __del__(self) -> None:
        # `for batch in table.scan(): ... break` leaves a scan behind that nobody can close.
        if not self._ended:
            self._loop.start(self._scan.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Admin(_Waiting):
    """Databases and tables. See `AsyncAdmin` for what each method takes, returns and raises."""

    create_database = _waits(AsyncAdmin.create_database)
    alter_database = _waits(AsyncAdmin.alter_database)
    describe_database = _waits(AsyncAdmin.describe_database)
    drop_database = _waits(AsyncAdmin.drop_database)
    list_databases = _waits(AsyncAdmin.list_databases)
    create_table = _waits(AsyncAdmin.create_table)
    alter_table = _waits(AsyncAdmin.alter_table)
    drop_table = _waits(AsyncAdmin.drop_table)
    list_tables = _waits(AsyncAdmin.list_tables)
    describe_table = _waits(AsyncAdmin.describe_table)
    refused = _waits(AsyncAdmin.refused)
    snapshots = _waits(AsyncAdmin.snapshots)
    list_partitions = _waits(AsyncAdmin.list_partitions)
    add_partition = _waits(AsyncAdmin.add_partition)
    drop_partition = _waits(AsyncAdmin.drop_partition)
    table_exists = _waits(AsyncAdmin.table_exists)
    servers = _waits(AsyncAdmin.servers)


class SecurityAdmin(_Waiting):
    """Users and rights. See `AsyncSecurityAdmin` for what each method takes, returns and raises."""

    grant = _waits(AsyncSecurityAdmin.grant)
    revoke = _waits(AsyncSecurityAdmin.revoke)
    grants = _waits(AsyncSecurityAdmin.grants)
    create_user = _waits(AsyncSecurityAdmin.create_user)
    alter_user = _waits(AsyncSecurityAdmin.alter_user)
    drop_user = _waits(AsyncSecurityAdmin.drop_user)
    list_users = _waits(AsyncSecurityAdmin.list_users)


class KafkaAdmin(_Waiting):
    """Topics and groups. See `AsyncKafkaAdmin` for what each method takes, returns and raises."""

    describe_cluster = _waits(AsyncKafkaAdmin.describe_cluster)
    placements = _waits(AsyncKafkaAdmin.placements)
    move_partitions = _waits(AsyncKafkaAdmin.move_partitions)
    moving_partitions = _waits(AsyncKafkaAdmin.moving_partitions)
    elect_preferred_leaders = _waits(AsyncKafkaAdmin.elect_preferred_leaders)
    list_topics = _waits(AsyncKafkaAdmin.list_topics)
    create_topic = _waits(AsyncKafkaAdmin.create_topic)
    delete_topic = _waits(AsyncKafkaAdmin.delete_topic)
    describe_topic = _waits(AsyncKafkaAdmin.describe_topic)
    offsets = _waits(AsyncKafkaAdmin.offsets)
    delete_records = _waits(AsyncKafkaAdmin.delete_records)
    log_sizes = _waits(AsyncKafkaAdmin.log_sizes)
    brokers = _waits(AsyncKafkaAdmin.brokers)
    read = _waits(AsyncKafkaAdmin.read)
    read_batches = _waits(AsyncKafkaAdmin.read_batches)
    add_partitions = _waits(AsyncKafkaAdmin.add_partitions)
    configs = _waits(AsyncKafkaAdmin.configs)
    configured = _waits(AsyncKafkaAdmin.configured)
    alter_configs = _waits(AsyncKafkaAdmin.alter_configs)
    produce = _waits(AsyncKafkaAdmin.produce)
    list_groups = _waits(AsyncKafkaAdmin.list_groups)
    describe_group = _waits(AsyncKafkaAdmin.describe_group)
    delete_group = _waits(AsyncKafkaAdmin.delete_group)
    delete_offsets = _waits(AsyncKafkaAdmin.delete_offsets)
    commit_offsets = _waits(AsyncKafkaAdmin.commit_offsets)
