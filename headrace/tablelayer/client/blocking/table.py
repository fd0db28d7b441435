"""The blocking table, its scans and its staged writers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import pyarrow as pa

from headrace.tablelayer.client.blocking.waiting import LoopThread, Waiting, waits
from headrace.tablelayer.client.errors import ConnectionClosed
from headrace.tablelayer.client.read.part_scan import ScanBatch
from headrace.tablelayer.client.read.reader import AnyMoment, nullable_schema
from headrace.tablelayer.client.shown import definition_html, definition_text
from headrace.tablelayer.client.table.scan import AsyncScan, PartitionOffsets, Start, Until
from headrace.tablelayer.client.table.staging import AsyncStagedWriter
from headrace.tablelayer.client.table.table import FEW_KEYS, AsyncTable
from headrace.tablelayer.client.wire.cluster import NotAtOnce
from headrace.tablelayer.client.wire.direct import DirectCluster, at_once
from headrace.tablelayer.model.filters.filters import FilterLike
from headrace.tablelayer.model.table.definition import TableDefinition, TablePath

T = TypeVar("T")
P = ParamSpec("P")


def asks(
    method: Callable[Concatenate[AsyncTable, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Table, P], T]:
    """Make a read block. A small one runs in this thread if possible (`tablelayer.client.wire.direct`)."""
    name, wait = method.__name__, waits(method)

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


class Table(Waiting):
    """A table with blocking methods. `AsyncTable` documents them."""

    _inner: AsyncTable

    def __init__(self, table: AsyncTable, loop: LoopThread, direct: DirectCluster | None = None) -> None:
        super().__init__(table, loop)
        self._direct = direct
        self._nearby: AsyncTable | None = None

    def _near(self, asked: Any) -> AsyncTable | None:
        """Return the table for reads in this thread, if a key, a number of rows or a few keys are asked for.

        None if that is not possible.
        """
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
        """The definition (columns, keys, options) that this handle knows."""
        return self._inner.definition

    @property
    def path(self) -> TablePath:
        """The table's database and name."""
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
        """Return the number of rows now: `count()`."""
        return self.count()

    def __bool__(self) -> bool:
        return True

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Stream the rows by Arrow's PyCapsule interface, for `polars.DataFrame(table)` and `pyarrow.table(table)`."""
        schema = nullable_schema(self.definition.schema.columns)
        pieces = (pa.RecordBatch.from_arrays(piece.columns, schema=schema) for piece in self.batches())
        return pa.RecordBatchReader.from_batches(schema, pieces).__arrow_c_stream__(requested_schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    close = waits(AsyncTable.close)
    refresh = waits(AsyncTable.refresh)
    append = waits(AsyncTable.append)
    upsert = waits(AsyncTable.upsert)
    delete = waits(AsyncTable.delete)
    partial = waits(AsyncTable.partial)
    write_rows = waits(AsyncTable.write_rows)
    commit_staged = waits(AsyncTable.commit_staged)
    abort_staged = waits(AsyncTable.abort_staged)
    lookup = asks(AsyncTable.lookup)
    lookup_one = asks(AsyncTable.lookup_one)
    prefix_lookup = asks(AsyncTable.prefix_lookup)
    prefix_lookup_grouped = asks(AsyncTable.prefix_lookup_grouped)
    partitions = waits(AsyncTable.partitions)
    limit = asks(AsyncTable.limit)
    count = waits(AsyncTable.count)
    extremes = waits(AsyncTable.extremes)
    offsets = waits(AsyncTable.offsets)
    offsets_as_of = waits(AsyncTable.offsets_as_of)
    partition_offsets = waits(AsyncTable.partition_offsets)
    partition_offsets_as_of = waits(AsyncTable.partition_offsets_as_of)
    to_arrow = waits(AsyncTable.to_arrow)
    to_pandas = waits(AsyncTable.to_pandas)
    to_polars = waits(AsyncTable.to_polars)
    range_scan = waits(AsyncTable.range_scan)
    commit = waits(AsyncTable.commit)
    committed = waits(AsyncTable.committed)
    partition_committed = waits(AsyncTable.partition_committed)

    def staged_writer(
        self,
        writer: str,
        batch_id: int,
        attempt: str,
        target_columns: tuple[int, ...] | None = None,
        *,
        definition: TableDefinition | None = None,
        only_existing: bool = False,
    ) -> StagedWriter:
        """Return a writer whose rows become part of the table with `commit_staged` (`tablelayer.client.table.staging`).

        With `only_existing`, keys that do not exist at the commit are not written, as with `partial`.
        """

        async def make() -> AsyncStagedWriter:
            return self._inner.staged_writer(
                writer,
                batch_id,
                attempt,
                target_columns,
                definition=definition,
                only_existing=only_existing,
            )

        return StagedWriter(self._loop.run(make()), self._loop)

    def partition(self, name: str) -> Table:
        """Return one partition as a table. Its name is the values of the partition columns, joined by dots."""
        return Table(self._loop.run(self._inner.partition(name)), self._loop, self._direct)

    def only(self, spec: Mapping[str, Any]) -> Table:
        """Return the same table limited, for reads, to the partitions with these values of partition columns."""
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
        """Read rows and changes as a stream of `ScanBatch`; `AsyncTable.scan` documents the parameters.

        `for batch in table.scan(until="latest"): ...` reads the state and stops. `until=None` follows the changes.
        """
        scan = self._inner.scan(columns, start, until, buckets, poll_timeout, as_of, filter, row_filter)
        return Scan(scan, self._loop)

    def batches(
        self, columns: Sequence[str] | None = None, filter: FilterLike = None
    ) -> Generator[pa.RecordBatch, None, None]:
        """Iterate over the rows of `to_arrow`, a few MiB at a time."""
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
        """Read one bucket of a primary-key table as it is now, or was at an offset, piece by piece.

        Each piece comes with the log offset of that moment.
        """
        pieces = self._inner.snapshot(bucket, columns, filter, as_of=as_of, partition=partition)
        try:
            while (piece := self._loop.run(_next_piece(pieces))) is not None:
                yield piece
        finally:
            self._loop.start(pieces.aclose())


class StagedWriter(Waiting):
    """A staged writer with blocking methods. `AsyncStagedWriter` documents them."""

    _inner: AsyncStagedWriter

    @property
    def decided(self) -> bool:
        """Whether the batch is committed already; rows are then counted and dropped."""
        return self._inner.decided

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    write = waits(AsyncStagedWriter.write)
    finish = waits(AsyncStagedWriter.finish)
    close = waits(AsyncStagedWriter.close)


async def _next_piece(pieces: AsyncGenerator[T, None]) -> T | None:
    return await anext(pieces, None)


class Scan:
    """An iterator of `ScanBatch`, for one thread. It is closed at its end, by `close`, or at the end of `with`."""

    def __init__(self, scan: AsyncScan, loop: LoopThread) -> None:
        self._scan = scan
        self._loop = loop
        self._ended = False

    def __iter__(self) -> Iterator[ScanBatch]:
        return self

    def __next__(self) -> ScanBatch:
        if self._ended:
            raise StopIteration
        # Arrived batches are decoded in this thread, while the loop's thread waits for the next answer.
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
        """Continue from these offsets."""

        async def seek() -> None:
            self._scan.seek(positions)

        self._loop.run(seek())

    def close(self) -> None:
        """Stop reading ahead. Idempotent. Closing the connection does it, too."""
        if not self._ended:
            self._ended = True
            with suppress(ConnectionClosed):
                self._loop.run(self._scan.close())

    def __del__(self) -> None:
        # `for batch in table.scan(): ... break` leaves a scan that is never closed.
        if not self._ended:
            self._loop.start(self._scan.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
