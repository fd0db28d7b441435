"""The client for programs without an event loop: the same calls, each of which waits.

A `Connection` owns one background thread with one event loop, in which the asynchronous client does
everything. It may be used from any number of threads. It belongs to the process that made it: after a fork
(Spark's Python workers, multiprocessing) the child makes its own; using the parent's raises RuntimeError
instead of hanging.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import pyarrow as pa

from protocol.schema import ApiMessage
from tablelayer.client.admin import AsyncAdmin, DatabaseDescription
from tablelayer.client.config import ClientConfig
from tablelayer.client.conform import Data
from tablelayer.client.connection import connect_async
from tablelayer.client.kafka_admin import (
    AsyncKafkaAdmin,
    GroupDescription,
    GroupListing,
    KafkaRecord,
    LogSizes,
    TopicDescription,
)
from tablelayer.client.metrics import ClientMetrics
from tablelayer.client.reader import LATEST, AnyMoment, Extremes, LookupResult, Moment
from tablelayer.client.scan import AsyncScan, PartitionPositions, ScanBatch, Start, Until
from tablelayer.client.staging import AsyncStagedWriter, Receipt
from tablelayer.client.table import AsyncTable
from tablelayer.client.writer import WriteResult
from tablelayer.model.evolution import Change
from tablelayer.model.filters import FilterLike
from tablelayer.model.partitions import Partition
from tablelayer.model.table import TableDefinition, TablePath
from tablelayer.model.values import Value

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

T = TypeVar("T")
ResponseT = TypeVar("ResponseT", bound=ApiMessage)


class _LoopThread:
    """An event loop in a daemon thread of this process."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="headrace-client", daemon=True)
        self._thread.start()
        self._stopped = False

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


class Connection:
    """A client of one cluster. Make one with `connect`; close it, or use it in `with`."""

    def __init__(self, bootstrap: str, config: ClientConfig | None = None) -> None:
        self.bootstrap = bootstrap
        self.config = config or ClientConfig()
        self._loop = _LoopThread()
        try:
            self._connection = self._loop.run(connect_async(bootstrap, self.config))
        except BaseException:
            self._loop.stop()
            raise
        self.admin = Admin(self._connection.admin, self._loop)
        self.kafka = KafkaAdmin(self._connection.kafka, self._loop)

    def table(self, path: TablePath | str) -> Table:
        """Open a table. TableError TABLE_NOT_FOUND if there is none of that name."""
        return Table(self._loop.run(self._connection.table(path)), self._loop)

    def open_table(self, definition: TableDefinition) -> Table:
        """Open a table whose definition, id included, is known already: no question to the server."""
        return Table(self._connection.open_table(definition), self._loop)

    def execute(self, statement: str) -> None:
        """Run DDL: CREATE, ALTER or DROP, DATABASE or TABLE; several statements are separated by semicolons.

        Raises DdlError (a TableError) that points at the word it does not understand.
        """
        from tablelayer.client.ddl import execute  # sqlglot takes half a second to import

        execute(self.admin, statement)

    def call(
        self,
        request: ApiMessage,
        response: type[ResponseT],
        *,
        doing: str,
        repeatable: bool = True,
        changes: bool = False,
    ) -> ResponseT:
        """Send one request of the table extension to any server, with retries; its error code is raised.

        `doing` says what is attempted, for the error's text; `repeatable` whether doing it twice is harmless; `changes`
        whether it has an effect, so that an attempt without an answer leaves the outcome unknown.
        """
        return self._loop.run(
            self._connection.cluster.call(
                request, response, doing=doing, repeatable=repeatable, changes=changes
            )
        )

    def metrics(self) -> ClientMetrics:
        """What this connection has done so far: requests, retries, rows; see `ClientMetrics`."""
        return self._connection.metrics()

    def close(self) -> None:
        """Close everything. Idempotent; in a forked child it leaves the parent's connection alone."""
        try:
            self._loop.run(self._connection.close())
        except RuntimeError:
            return  # closed already, or made before a fork
        self._loop.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def connect(bootstrap: str = "127.0.0.1:9092", config: ClientConfig | None = None) -> Connection:
    """Connect to a cluster: `with connect("127.0.0.1:9092") as connection: ...`.

    `bootstrap` names some of its servers, "host:port,host:port". Raises ConnectionFailed at once if none of
    them answers.
    """
    return Connection(bootstrap, config)


@dataclass(frozen=True, slots=True)
class TableRef:
    """Where a table is: small, picklable, safe to send to other processes, which connect by themselves.

    `with ref.connect() as connection: connection.table(ref.path)`.
    """

    bootstrap: str
    path: str
    config: ClientConfig = field(default_factory=ClientConfig)

    def connect(self) -> Connection:
        """A new connection of this process to the table's cluster."""
        return Connection(self.bootstrap, self.config)


class Table:
    """A table. See `AsyncTable`, whose methods these are, for what each takes, returns and raises."""

    def __init__(self, table: AsyncTable, loop: _LoopThread) -> None:
        self._table = table
        self._loop = loop

    @property
    def definition(self) -> TableDefinition:
        return self._table.definition

    @property
    def path(self) -> TablePath:
        return self._table.path

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of the table's rows."""
        return self._table.arrow_schema

    def refresh(self) -> TableDefinition:
        """Read the table's definition again, so that later calls see the columns it has now."""
        return self._loop.run(self._table.refresh())

    def append(self, data: Data) -> WriteResult:
        """Append rows to a log table; returns when all are acknowledged, each exactly once in the log."""
        return self._loop.run(self._table.append(data))

    def upsert(self, data: Data, *, overwrite: bool = False) -> WriteResult:
        """Insert whole rows, or replace those with the same primary key; the last of equal keys wins."""
        return self._loop.run(self._table.upsert(data, overwrite=overwrite))

    def delete(
        self, keys: Data, columns: Sequence[str] | None = None, *, overwrite: bool = False
    ) -> WriteResult:
        """Delete the rows with these primary keys (absent keys are no error), or only these columns of them."""
        return self._loop.run(self._table.delete(keys, columns, overwrite=overwrite))

    def partial(self, data: Data, columns: Sequence[str], *, overwrite: bool = False) -> WriteResult:
        """Write only these columns (the primary key among them); the others keep their values."""
        return self._loop.run(self._table.partial(data, columns, overwrite=overwrite))

    def write_rows(
        self,
        rows: pa.Table,
        *,
        definition: TableDefinition,
        change_type: int | None = None,
        target_columns: tuple[int, ...] | None = None,
    ) -> WriteResult:
        """Write rows that conform to `definition` already; see `tablelayer.client.writer.Writer.write`."""
        return self._loop.run(
            self._table.write_rows(
                rows, definition=definition, change_type=change_type, target_columns=target_columns
            )
        )

    def staged_writer(
        self,
        writer: str,
        batch_id: int,
        attempt: str,
        target_columns: tuple[int, ...] | None = None,
        *,
        definition: TableDefinition | None = None,
    ) -> StagedWriter:
        """A writer of rows that become part of the table with `commit_staged`; see `tablelayer.client.staging`."""

        async def make() -> AsyncStagedWriter:
            return self._table.staged_writer(writer, batch_id, attempt, target_columns, definition=definition)

        return StagedWriter(self._loop.run(make()), self._loop)

    def commit_staged(
        self, writer: str, batch_id: int, receipts: Sequence[Receipt], *, single: bool = False
    ) -> None:
        """Write what these attempts have staged, exactly once however often this is called."""
        self._loop.run(self._table.commit_staged(writer, batch_id, receipts, single=single))

    def abort_staged(self, writer: str, batch_id: int, receipts: Sequence[Receipt]) -> None:
        """Drop what these attempts have staged, unless it is committed."""
        self._loop.run(self._table.abort_staged(writer, batch_id, receipts))

    def lookup(
        self, keys: Data, columns: Sequence[str] | None = None, *, insert_if_absent: bool = False
    ) -> LookupResult:
        """Look up many primary keys at once: `found, rows = table.lookup(keys)`, in the keys' order."""
        return self._loop.run(self._table.lookup(keys, columns, insert_if_absent=insert_if_absent))

    def lookup_one(
        self, key: Any, columns: Sequence[str] | None = None, *, insert_if_absent: bool = False
    ) -> dict[str, Any] | None:
        """One row as a dict, or None: `table.lookup_one({"order_key": 7})`."""
        return self._loop.run(self._table.lookup_one(key, columns, insert_if_absent=insert_if_absent))

    def prefix_lookup(self, prefix: Data, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows whose primary key begins with these values of the bucket key, in key order."""
        return self._loop.run(self._table.prefix_lookup(prefix, columns))

    def prefix_lookup_grouped(
        self, prefixes: Data, columns: Sequence[str] | None = None
    ) -> tuple[np.ndarray, pa.Table]:
        """As `prefix_lookup`, and for each row the index of the prefix it answers."""
        return self._loop.run(self._table.prefix_lookup_grouped(prefixes, columns))

    def partitions(self) -> list[Partition]:
        """The partitions that there are now, in order of name."""
        return self._loop.run(self._table.partitions())

    def partition(self, name: str) -> Table:
        """One partition as a table: its name is the values of the partition columns, joined by dots."""
        return Table(self._loop.run(self._table.partition(name)), self._loop)

    def only(self, spec: Mapping[str, Any]) -> Table:
        """The same table, whose reads see only the partitions with these values of partition columns."""
        return Table(self._table.only(spec), self._loop)

    def partition_offsets(self, at: str | int) -> dict[str, dict[int, int]]:
        """`offsets` of every partition."""
        return self._loop.run(self._table.partition_offsets(at))

    def limit(self, count: int, columns: Sequence[str] | None = None, filter: FilterLike = None) -> pa.Table:
        """At most `count` rows, quickly: a PK table's first by key in each bucket, a log table's latest."""
        return self._loop.run(self._table.limit(count, columns, filter))

    def count(self, filter: FilterLike = None, *, as_of: AnyMoment | None = None) -> int:
        """How many rows there are now (that match), without reading them; or were, reading one column."""
        return self._loop.run(self._table.count(filter, as_of=as_of))

    def extremes(self, columns: Sequence[str], filter: FilterLike = None) -> Extremes:
        """Least and greatest values of columns, and how many rows and values there are now (that match):
        `table.extremes(["at"]).maximum("at")`.
        """
        return self._loop.run(self._table.extremes(columns, filter))

    def offsets(self, at: str | int, buckets: Sequence[int] | None = None) -> dict[int, int]:
        """Offsets by bucket: "earliest", "latest" (the end), or the first at or after a time in
        milliseconds.
        """
        return self._loop.run(self._table.offsets(at, buckets))

    def offsets_as_of(self, moment: Moment) -> dict[int, int]:
        """The offsets that the log had reached at a time, what was written then included: what `as_of` means."""
        return self._loop.run(self._table.offsets_as_of(moment))

    def partition_offsets_as_of(self, moment: Moment) -> dict[str, dict[int, int]]:
        """`offsets_as_of` of every partition."""
        return self._loop.run(self._table.partition_offsets_as_of(moment))

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
        scan = self._table.scan(columns, start, until, buckets, poll_timeout, as_of, filter, row_filter)
        return Scan(scan, self._loop)

    def snapshot(
        self,
        bucket: int,
        columns: Sequence[str] | None = None,
        filter: FilterLike = None,
        *,
        as_of: int | None = None,
    ) -> Generator[tuple[pa.RecordBatch, int], None, None]:
        """One bucket of a PK table as it is now, or at an offset, piece by piece, each with the log offset of that
        moment."""
        pieces = self._table.snapshot(bucket, columns, filter, as_of=as_of)
        try:
            while (piece := self._loop.run(_next_piece(pieces))) is not None:
                yield piece
        finally:
            self._loop.start(pieces.aclose())

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: FilterLike = None,
        *,
        as_of: AnyMoment | None = None,
    ) -> pa.Table:
        """The whole table (the rows that match) as it is now, or was at a time (milliseconds, datetime) or at offsets
        by bucket."""
        return self._loop.run(self._table.to_arrow(columns, filter, as_of=as_of))

    def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        filter: FilterLike = None,
        *,
        as_of: AnyMoment | None = None,
    ) -> pd.DataFrame:
        """`to_arrow` as a pandas DataFrame. ClientError if pandas is not installed."""
        return self._loop.run(self._table.to_pandas(columns, filter, as_of=as_of))

    def to_polars(
        self,
        columns: Sequence[str] | None = None,
        filter: FilterLike = None,
        *,
        as_of: AnyMoment | None = None,
    ) -> pl.DataFrame:
        """`to_arrow` as a polars DataFrame. ClientError if polars is not installed."""
        return self._loop.run(self._table.to_polars(columns, filter, as_of=as_of))

    def range_scan(
        self,
        lower: Any = None,
        upper: Any = None,
        columns: Sequence[str] | None = None,
        *,
        include_lower: bool = True,
        include_upper: bool = False,
        limit: int | None = None,
        as_of: AnyMoment | None = None,
        filter: FilterLike = None,
    ) -> pa.Table:
        """The rows of a PK table between two keys, in key order; see `AsyncTable.range_scan`."""
        return self._loop.run(
            self._table.range_scan(
                lower, upper, columns,
                include_lower=include_lower, include_upper=include_upper, limit=limit, as_of=as_of,
                filter=filter,
            )
        )  # fmt: skip

    def commit(self, group: str, positions: Mapping[int, int] | PartitionPositions) -> None:
        """Keep positions (`scan.positions`) on the server under a consumer group's name, as Kafka's consumers
        do.
        """
        self._loop.run(self._table.commit(group, positions))

    def partition_committed(self, group: str) -> dict[str, dict[int, int]]:
        """`committed` of every partition that there is."""
        return self._loop.run(self._table.partition_committed(group))

    def committed(self, group: str) -> dict[int, int]:
        """The positions kept under this name; buckets without one are absent."""
        return self._loop.run(self._table.committed(group))


class StagedWriter:
    """`AsyncStagedWriter`, each call of which waits."""

    def __init__(self, writer: AsyncStagedWriter, loop: _LoopThread) -> None:
        self._writer = writer
        self._loop = loop

    @property
    def decided(self) -> bool:
        """The batch is committed already: what is written is counted and dropped."""
        return self._writer.decided

    def write(self, rows: pa.Table, *, change_type: int | None = None) -> None:
        """Stage conformed rows."""
        self._loop.run(self._writer.write(rows, change_type=change_type))

    def finish(self) -> Receipt:
        """Stage what is left and wait for all of it."""
        return self._loop.run(self._writer.finish())

    def close(self) -> None:
        """Give up what is on its way."""
        self._loop.run(self._writer.close())


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

    def seek(self, positions: Mapping[int, int] | PartitionPositions) -> None:
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


class Admin:
    """Databases and tables. See `AsyncAdmin` for what each method raises."""

    def __init__(self, admin: AsyncAdmin, loop: _LoopThread) -> None:
        self._admin = admin
        self._loop = loop

    def create_database(
        self,
        name: str,
        *,
        if_not_exists: bool = False,
        comment: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create a database."""
        self._loop.run(
            self._admin.create_database(
                name, if_not_exists=if_not_exists, comment=comment, properties=properties
            )
        )

    def alter_database(
        self,
        name: str,
        *,
        set_properties: Mapping[str, str] | None = None,
        reset_properties: Sequence[str] = (),
        comment: str | None = None,
    ) -> None:
        """Change a database's properties and comment ('' takes it away)."""
        self._loop.run(
            self._admin.alter_database(
                name, set_properties=set_properties, reset_properties=reset_properties, comment=comment
            )
        )

    def describe_database(self, name: str) -> DatabaseDescription:
        """What is known of a database."""
        return self._loop.run(self._admin.describe_database(name))

    def drop_database(self, name: str, *, if_exists: bool = False, cascade: bool = False) -> None:
        """Drop a database; `cascade` drops its tables too."""
        self._loop.run(self._admin.drop_database(name, if_exists=if_exists, cascade=cascade))

    def list_databases(self) -> list[str]:
        """The names of all databases, sorted."""
        return self._loop.run(self._admin.list_databases())

    def create_table(self, definition: TableDefinition, *, if_not_exists: bool = False) -> TableDefinition:
        """Create a table and return its definition with its id."""
        return self._loop.run(self._admin.create_table(definition, if_not_exists=if_not_exists))

    def alter_table(
        self, path: TablePath | str, changes: Sequence[Change], *, expected_schema_id: int | None = None
    ) -> TableDefinition:
        """Carry out changes (`tablelayer.model.evolution`), all or none; the table as it is then."""
        return self._loop.run(self._admin.alter_table(path, changes, expected_schema_id=expected_schema_id))

    def drop_table(self, path: TablePath | str, *, if_exists: bool = False) -> None:
        """Drop a table and its data."""
        self._loop.run(self._admin.drop_table(path, if_exists=if_exists))

    def list_tables(self, database: str) -> list[str]:
        """The names of a database's tables, sorted."""
        return self._loop.run(self._admin.list_tables(database))

    def describe_table(self, path: TablePath | str) -> TableDefinition:
        """A table's definition, id included."""
        return self._loop.run(self._admin.describe_table(path))

    def list_partitions(
        self, path: TablePath | str, spec: Mapping[str, Value] | None = None
    ) -> list[Partition]:
        """A table's partitions in order of name; with `spec` those with these values."""
        return self._loop.run(self._admin.list_partitions(path, spec))

    def add_partition(
        self, path: TablePath | str, spec: Mapping[str, Value], *, if_not_exists: bool = False
    ) -> Partition:
        """Add a partition: `add_partition("db.t", {"dt": "2024-09-19"})`."""
        return self._loop.run(self._admin.add_partition(path, spec, if_not_exists=if_not_exists))

    def drop_partition(
        self, path: TablePath | str, spec: Mapping[str, Value], *, if_exists: bool = False
    ) -> None:
        """Drop a partition and its data."""
        self._loop.run(self._admin.drop_partition(path, spec, if_exists=if_exists))

    def table_exists(self, path: TablePath | str) -> bool:
        """Whether there is such a table."""
        return self._loop.run(self._admin.table_exists(path))


class KafkaAdmin:
    """Topics and groups. See `AsyncKafkaAdmin` for what each method raises."""

    def __init__(self, admin: AsyncKafkaAdmin, loop: _LoopThread) -> None:
        self._admin = admin
        self._loop = loop

    def list_topics(self) -> list[TopicDescription]:
        """All topics by name."""
        return self._loop.run(self._admin.list_topics())

    def create_topic(
        self, name: str, *, partitions: int = -1, configs: Mapping[str, str] | None = None
    ) -> TopicDescription:
        """Create a topic; -1 partitions: as many as the server gives by default."""
        return self._loop.run(self._admin.create_topic(name, partitions=partitions, configs=configs))

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its data."""
        self._loop.run(self._admin.delete_topic(name))

    def describe_topic(self, name: str) -> TopicDescription:
        """A topic with its explicit configuration."""
        return self._loop.run(self._admin.describe_topic(name))

    def offsets(self, topic: str, at: int = LATEST, *, committed: bool = False) -> dict[int, int]:
        """Offsets of all partitions: -1 the end (with `committed`: of what transactions have decided), -2 the
        beginning, or a time in milliseconds.
        """
        return self._loop.run(self._admin.offsets(topic, at, committed=committed))

    def log_sizes(self, topic: str | None = None) -> LogSizes:
        """Bytes of log files by topic (None: all) and partition, and what the servers' disks have left."""
        return self._loop.run(self._admin.log_sizes(topic))

    def brokers(self) -> dict[int, tuple[str, int]]:
        """The addresses that the servers advertise, by their ids."""
        return self._loop.run(self._admin.brokers())

    def read(
        self, topic: str, positions: Mapping[int, int], *, max_wait_ms: int = 500, max_bytes: int = 4 << 20
    ) -> tuple[list[KafkaRecord], dict[int, int]]:
        """One fetch: records from these positions on, and the positions behind them."""
        return self._loop.run(
            self._admin.read(topic, positions, max_wait_ms=max_wait_ms, max_bytes=max_bytes)
        )

    def list_groups(self) -> list[GroupListing]:
        """All consumer groups, by name."""
        return self._loop.run(self._admin.list_groups())

    def describe_group(self, group: str) -> GroupDescription:
        """A group's members and committed positions."""
        return self._loop.run(self._admin.describe_group(group))
