"""The blocking table, its scans and its staged writers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from inspect import signature
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import pyarrow as pa

from headrace.tablelayer.client import stopping
from headrace.tablelayer.client.blocking.waiting import LoopThread, Waiting, waits
from headrace.tablelayer.client.errors import ConnectionClosed
from headrace.tablelayer.client.read.answers import nullable_schema
from headrace.tablelayer.client.read.part_scan import ScanBatch
from headrace.tablelayer.client.shown import definition_html, definition_text
from headrace.tablelayer.client.table.open_table import FEW_KEYS
from headrace.tablelayer.client.table.scan import AsyncScan, PartitionOffsets
from headrace.tablelayer.client.table.staging import AsyncStagedWriter
from headrace.tablelayer.client.table.table import AsyncTable
from headrace.tablelayer.client.wire.cluster import NotAtOnce
from headrace.tablelayer.client.wire.direct import DirectCluster, at_once
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.path import TablePath

T = TypeVar("T")
B = TypeVar("B")
F = TypeVar("F", bound=Callable[..., object])
P = ParamSpec("P")


def asks(
    method: Callable[Concatenate[AsyncTable, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Table, P], T]:
    """Make a read block. A small one runs in this thread if possible (`tablelayer.client.wire.direct`)."""
    name, wait = method.__name__, waits(method)

    @wraps(method)
    def ask(self: Table, /, *args: P.args, **named: P.kwargs) -> T:
        near = self._near(args[0]) if args and not named.get("insert_if_absent") else None
        if name == "limit" and self._inner.definition.settings.datalake_enabled:
            near = None  # its rows may be in the lake, which is read in threads of the loop
        if near is not None:
            coroutine: Coroutine[Any, Any, T] = getattr(near, name)(*args, **named)
            try:
                return at_once(coroutine)
            except NotAtOnce:
                pass
        return wait(self, *args, **named)

    return ask


def makes(
    method: Callable[Concatenate[AsyncTable, P], T], blocking: Callable[[T, Table], B], answer: str
) -> Callable[Concatenate[Table, P], B]:
    """Make a method return a blocking object, of the type named `answer`, around the asynchronous one."""

    @wraps(method)
    def make(self: Table, /, *args: P.args, **named: P.kwargs) -> B:
        return blocking(method(self._inner, *args, **named), self)

    return _answers(make, answer)


def iterates(
    method: Callable[Concatenate[AsyncTable, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Table, P], Generator[T, None, None]]:
    """Make an asynchronous iteration block. Its end closes the asynchronous one."""

    @wraps(method)
    def iterate(self: Table, /, *args: P.args, **named: P.kwargs) -> Generator[T, None, None]:
        pieces = method(self._inner, *args, **named)
        try:
            while (piece := self._loop.run(_next_piece(pieces))) is not None:
                yield piece
        finally:
            self._loop.start(pieces.aclose())

    returned = signature(method).return_annotation
    return _answers(iterate, str(returned).removeprefix("Async").removesuffix("]") + ", None]")


def _answers(method: F, answer: str) -> F:
    """Let `help` and the reference show the blocking answer of a wrapped method."""
    method.__signature__ = signature(method).replace(return_annotation=answer)  # type: ignore[attr-defined]
    return method


async def _next_piece(pieces: AsyncGenerator[T, None]) -> T | None:
    return await anext(pieces, None)


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
    def definition(self) -> StoredTable:
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
    reads_lake = waits(AsyncTable.reads_lake)
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

    staged_writer = makes(
        AsyncTable.staged_writer, lambda writer, table: StagedWriter(writer, table._loop), "StagedWriter"
    )
    scan = makes(AsyncTable.scan, lambda scan, table: Scan(scan, table._loop), "Scan")
    only = makes(AsyncTable.only, lambda part, table: Table(part, table._loop), "Table")
    batches = iterates(AsyncTable.batches)
    snapshot = iterates(AsyncTable.snapshot)

    def partition(self, name: str) -> Table:
        """Return one partition as a table. Its name is the values of the partition columns, joined by dots."""
        return Table(self._loop.run(self._inner.partition(name)), self._loop, self._direct)


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
            with suppress(ConnectionClosed), stopping.running(None):
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
