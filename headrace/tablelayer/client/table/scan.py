"""Scan a table: its state and its changes, as a stream of Arrow batches.

A scan reads the buckets of a table, of all its partitions, from a start to an end (or without an end). "full" gives the
state first and then the changes from exactly where the state was taken (semantics R14): no gap, no overlap.

Positions are plain `{bucket: offset}` of the next row to read, for a partitioned table `{partition: {bucket: offset}}`.
Keep them anywhere, or commit them under a consumer group's name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from time import monotonic
from typing import Any, Final

import numpy as np
import pyarrow as pa

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.client.errors import ClientError
from headrace.tablelayer.client.read.offsets import AnyMoment
from headrace.tablelayer.client.read.part_scan import PartScan, ScanBatch, Selection, seen
from headrace.tablelayer.client.read.reader import Reader
from headrace.tablelayer.client.table.parts import WHOLE, Parts
from headrace.tablelayer.client.table.parts_scan import PartsScan
from headrace.tablelayer.client.table.united import MissedScan, United
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.filters.filters import FilterLike
from headrace.tablelayer.model.table.definition import StoredTable

PartitionOffsets = Mapping[str, Mapping[int, int]]
Start = str | int | Mapping[int, int] | PartitionOffsets
Until = str | Mapping[int, int] | PartitionOffsets | None
_TURN_SECONDS: Final = 0.0005
"""Time for which batches that have arrived are returned before other tasks run."""


def check_as_of(as_of: object, start: Start, definition: StoredTable) -> None:
    """Raise ValueError if a scan cannot begin at an earlier moment."""
    if as_of is not None and (start != "full" or not definition.is_primary_key_table):
        raise ValueError("as_of is for scans of primary-key tables that start with the state (start='full')")


class AsyncScan:
    """An asynchronous iterator of `ScanBatch`. Made by `AsyncTable.scan`; close it, or use it in `async with`."""

    def __init__(
        self,
        cluster: Cluster,
        parts: Parts,
        selection: Selection,
        *,
        start: Start,
        until: Until,
        as_of: AnyMoment | None = None,
        united: United | None = None,
        wanted: FilterLike = None,
        is_whole: bool = False,
    ) -> None:
        """Make a scan. `united` gives rows of the lake; `wanted` is their filter.

        They are those that left the log of a log table before the scan read them. With `is_whole` the scan also begins
        with them, if the log lacks its beginning.
        """
        definition = parts.definition
        check_as_of(as_of, start, definition)
        self._parts = parts
        places: list[Any] = [
            parts.by_part(place, what) if isinstance(place, Mapping) else place
            for place, what in (
                (start, "the start of a scan"),
                (until, "the end of a scan"),
                (as_of, "as_of"),
            )
        ]

        def source(begin: Any, until: Any = places[1]) -> PartScan | PartsScan:
            ends, definition = [begin, until, places[2]], parts.definition
            if definition.is_partitioned:
                return PartsScan(cluster, parts, selection, start=ends[0], until=ends[1], as_of=ends[2])
            own = [place.get(WHOLE, {}) if isinstance(place, Mapping) else place for place in ends]
            return PartScan(cluster, definition, selection, start=own[0], until=own[1], as_of=own[2])

        self._source = source(places[0])
        self._source_from = source
        self._united = united if united is not None and united.is_possible else None
        self._is_whole = is_whole
        self._asked = (definition, selection.columns, selection.buckets, wanted)
        self._stream: AsyncGenerator[ScanBatch, None] | None = None
        self._next: asyncio.Future[ScanBatch | None] | None = None
        self._turn_ends = 0.0

    def __aiter__(self) -> AsyncScan:
        return self

    async def __anext__(self) -> ScanBatch:
        """Return the next batch. Cancelling the wait (`asyncio.timeout`) loses nothing: the next call returns it."""
        if self._next is None and self._source.has_arrived:
            if monotonic() >= self._turn_ends:  # a turn of the loop costs more than a batch of a few rows
                await asyncio.sleep(0)  # lets other tasks run; nothing is taken yet
                self._turn_ends = monotonic() + _TURN_SECONDS
            batch = self.take_arrived()
            if batch is not None:
                return batch
        if self._stream is None:
            is_whole = self._is_whole and self._united is not None
            self._stream = self._of_both() if is_whole else self._of_log()
        if self._next is None:
            self._next = asyncio.ensure_future(anext(self._stream, None))
            self._next.add_done_callback(seen)
        waited_for = self._next
        batch = await asyncio.shield(waited_for)
        self._next = None
        if batch is None:
            raise StopAsyncIteration
        return batch

    async def _of_both(self) -> AsyncGenerator[ScanBatch, None]:
        """Yield the lake's rows, then the log from where they end; the log alone if it has its beginning."""
        definition, columns, buckets, wanted = self._asked
        united = self._united
        assert united is not None
        begin: Any = await united.starts()
        if begin is None:
            if buckets is not None:
                raise ValueError(
                    f"{definition.path}: the beginning of its log is in the lake, whose rows have no bucket:"
                    " scan all buckets, or start='earliest'"
                )
            scan = await united.open(columns, wanted)
            schema = Reader(united.cluster, definition).answer_schema(columns)
            is_state = definition.is_primary_key_table
            async with aclosing(scan.batches(schema) if is_state else scan.of_lake(schema)) as rows:
                async for batch in rows:
                    yield _from_lake(batch, ChangeType.INSERT if is_state else ChangeType.APPEND)
            begin = scan.log_ends if is_state else scan.log_starts
            if definition.path.partition is not None:
                begin = {WHOLE: begin[definition.path.partition]}
        elif definition.is_primary_key_table:
            begin = "full"
        if buckets is not None and begin != "full":
            begin = {name: {bucket: each[bucket] for bucket in buckets} for name, each in begin.items()}
        self._source = self._source_from(begin)
        async with aclosing(self._of_log()) as batches:
            async for piece in batches:
                yield piece

    async def _of_log(self) -> AsyncGenerator[ScanBatch, None]:
        """Yield the log, and from the lake the rows that left it before they were read."""
        while True:
            try:
                async with aclosing(self._source.run()) as batches:
                    async for piece in batches:
                        yield piece
                return
            except KafkaError as error:
                missed = None
                if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    missed = await self._missed(error)
                if missed is None:
                    raise
            _, columns, _, wanted = self._asked
            async with aclosing(missed.batches(columns, wanted)) as rows:
                async for bucket, batch, offsets, time_ms in rows:
                    yield _from_lake(batch, ChangeType.APPEND, bucket, offsets, time_ms)
            self._source = self._source_from({WHOLE: missed.log_starts}, {WHOLE: missed.until})

    async def _missed(self, cause: KafkaError) -> MissedScan | None:
        """Plan a read of the rows from the scan's positions on that the log lost; None if no lake may have them."""
        source, definition = self._source, self._asked[0]
        if self._united is None or definition.is_primary_key_table or isinstance(source, PartsScan):
            return None
        await source.close()
        try:
            return await self._united.missed(source.positions, source.ends)
        except ClientError as error:
            raise KafkaError(cause.code, f"{cause.message}. The lake does not help: {error}") from error

    def take_arrived(self) -> ScanBatch | None:
        """Return the next batch if it has arrived. Do not call it while another call waits for the next one."""
        return self._source.take_arrived()

    async def __aenter__(self) -> AsyncScan:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reading ahead and release the connection. Idempotent."""
        waiting, self._next = self._next, None
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        if self._stream is not None:
            await self._stream.aclose()
        await self._source.close()

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each bucket, after the batches returned so far; none for buckets still in their snapshot.

        TableError PARTITION_NEEDED if a partitioned table is scanned as a whole.
        """
        if isinstance(self._source, PartsScan):
            raise self._parts.needs_partition("positions", "use `partition_positions`")
        return self._source.positions

    @property
    def partition_positions(self) -> dict[str, dict[int, int]]:
        """The next offset of each bucket by partition, without partitions whose state is still being read.

        For a table without partitions it is `{"": positions}`.
        """
        if isinstance(self._source, PartsScan):
            return self._source.positions
        return {WHOLE: self._source.positions}

    def seek(self, positions: Mapping[int, int] | PartitionOffsets) -> None:
        """Continue from these offsets; batches that were read ahead are dropped."""
        places = self._parts.by_part(positions, "seek")
        if isinstance(self._source, PartsScan):
            self._source.seek(places)
        else:
            self._source.seek(places.get(WHOLE, {}))


def _from_lake(
    batch: pa.RecordBatch,
    change: ChangeType,
    bucket: int = -1,
    offsets: np.ndarray | None = None,
    timestamp_ms: int = -1,
) -> ScanBatch:
    """Return rows that are in the lake. Bucket, offsets and time are -1 where they are not known."""
    count = batch.num_rows
    return ScanBatch(
        bucket=bucket,
        batch=batch,
        change_types=np.full(count, change, np.uint8),
        offsets=np.full(count, -1, np.int64) if offsets is None else offsets,
        timestamp_ms=timestamp_ms,
        from_snapshot=True,
    )
