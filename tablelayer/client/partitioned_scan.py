"""Scanning a partitioned table as a whole: one scan per partition, their batches as they come.

Each batch says which partition it is of. While a scan without an end goes on, new partitions are looked for
(`ClientConfig.partition_discovery_ms`) and read from their beginning, so that no row is missed; a partition that was
dropped ends, whatever of it had been read. A name that is dropped and added again is a new partition. Positions move
only when a batch is handed out: what was read ahead is read again by whoever goes on from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from tablelayer.client.cluster import Cluster
from tablelayer.client.reader import AnyMoment, Moment, Reader
from tablelayer.client.scan import AsyncScan, PartitionPositions, ScanBatch, Start, Until, check_as_of
from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.partitions import Partition
from tablelayer.model.table import TableDefinition

_READ_AT_ONCE = 8
"""Partitions of a scan with an end that are read at the same time; one without an end waits for all of them."""


@dataclass(eq=False, slots=True)
class _Child:
    """The scan of one partition. `ahead`: batches that were read and not handed out yet."""

    name: str
    table_id: UUID
    scan: AsyncScan
    positions: dict[int, int]
    task: asyncio.Task[None] | None = None
    ahead: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A batch of a partition and its positions behind it; without a batch the partition's end."""

    child: _Child
    batch: ScanBatch | None = None
    positions: dict[int, int] = field(default_factory=dict)
    failure: Exception | None = None


class AsyncPartitionedScan(AsyncScan):
    """See the module; made by `AsyncTable.scan`."""

    def __init__(
        self,
        cluster: Cluster,
        definition: TableDefinition,
        partitions: Callable[[], Awaitable[list[Partition]]],
        *,
        columns: Sequence[str] | None = None,
        start: Start = "full",
        until: Until = None,
        poll_timeout: float | None = None,
        as_of: AnyMoment | None = None,
        condition: bytes | None = None,
        row_filter: bool = True,
    ) -> None:
        """`partitions` lists those to be read."""
        check_as_of(as_of, start, definition)
        super().__init__(
            cluster,
            definition,
            columns=columns,
            start="earliest",
            poll_timeout=poll_timeout,
            condition=condition,
            row_filter=row_filter,
        )
        self._columns = columns
        self._list = partitions
        self._from = _by_partition(start)
        self._to = _by_partition(until)
        self._moment = as_of
        self._children: dict[str, _Child] = {}
        self._queue: asyncio.Queue[_Arrived] = asyncio.Queue(_READ_AT_ONCE)
        self._gate = None if until is None else asyncio.Semaphore(_READ_AT_ONCE)

    # -- for the caller
    # ---------------------------------------------------------------------------------------

    @property
    def positions(self) -> dict[int, int]:
        raise TableError(
            TableErrorCode.PARTITION_NEEDED,
            f"{self._topic} is partitioned: its positions are `partition_positions`",
        )

    @property
    def partition_positions(self) -> dict[str, dict[int, int]]:
        """The next offset of each bucket of each partition; a partition whose state is still being read is absent."""
        found = {}
        for name, child in self._children.items():
            positions = child.positions if child.ahead else child.scan.positions or child.positions
            if len(positions) == child.scan.bucket_count:
                found[name] = dict(positions)
        return found

    def seek(self, positions: Mapping[int, int] | PartitionPositions) -> None:
        """Go on from these offsets, by partition and bucket, instead; what was read ahead of them is dropped."""
        wanted: dict[str, Mapping[int, int]] = {}
        for name, offsets in positions.items():
            if not isinstance(name, str) or not isinstance(offsets, Mapping):
                raise ValueError("positions of a partitioned table are by partition and bucket")
            if name not in self._children:
                raise ValueError(f"this scan does not read partition {name}, or has not begun")
            known = self._children[name]
            wanted[name] = {**known.positions, **offsets}
            if len(wanted[name]) < known.scan.bucket_count:
                raise ValueError(
                    f"the state of partition {name} is still being read: give offsets for all of its buckets"
                )
        for name, offsets in wanted.items():
            old = self._children[name]
            if old.task is not None:
                old.task.cancel()
            count = old.scan.bucket_count
            self._begin_child(Partition(name, old.table_id, count), offsets, old.scan.until)

    async def close(self) -> None:
        tasks = [child.task for child in self._children.values() if child.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await super().close()

    # -- the stream
    # -------------------------------------------------------------------------------------------

    async def _run(self) -> AsyncGenerator[ScanBatch, None]:
        now = asyncio.get_running_loop().time
        await self._discover(first=True)
        looked_at = last_row = now()
        follows = self._to is None
        pause = self._config.partition_discovery_ms / 1000
        while follows or not all(child.ended for child in self._children.values()):
            moments = [looked_at + pause] if follows else []
            if self._poll_timeout is not None:
                moments.append(last_row + self._poll_timeout)
            try:
                async with asyncio.timeout(max(0.0, min(moments) - now()) if moments else None):
                    arrived = await self._queue.get()
            except TimeoutError:
                if self._poll_timeout is not None and now() >= last_row + self._poll_timeout:
                    return
                arrived = None
            if follows and now() - looked_at >= pause:
                await self._discover(first=False)
                looked_at = now()
            if arrived is None:
                continue
            child = arrived.child
            if self._children.get(child.name) is not child:
                continue  # dropped, or the caller has sought elsewhere
            if arrived.failure is not None:
                if not _is_gone(arrived.failure):
                    raise arrived.failure
                child.ended = True
                await self._discover(first=False)  # TABLE_NOT_FOUND if it is the table that is gone
            elif arrived.batch is None:
                child.ended = True
                child.positions = arrived.positions
            else:
                child.ahead -= 1
                child.positions = arrived.positions
                last_row = now()
                yield replace(arrived.batch, partition=child.name)

    async def _discover(self, *, first: bool) -> None:
        """Begin to read partitions that are new; forget those that are gone."""
        found = {each.name: each for each in await self._list()}
        for name, child in list(self._children.items()):
            now = found.get(name)
            if now is None or now.table_id != child.table_id:
                del self._children[name]
                if child.task is not None:
                    child.task.cancel()
        if not first and self._to is not None:
            return
        fresh = [each for name, each in found.items() if name not in self._children]
        if first and isinstance(self._to, Mapping):
            fresh = [each for each in fresh if each.name in self._to]
        gate = asyncio.Semaphore(_READ_AT_ONCE)

        async def begin(partition: Partition) -> None:
            async with gate:
                try:
                    start = await self._start_of(partition, first=first)
                    until = await self._end_of(partition)
                except TableError as error:
                    if not _is_gone(error):
                        raise
                    return
                self._begin_child(partition, start, until, self._moment_of(partition) if first else None)

        await asyncio.gather(*map(begin, fresh))

    def _definition_of(self, partition: Partition) -> TableDefinition:
        return self._definition.of_partition(partition.name, partition.table_id, partition.bucket_count)

    async def _start_of(self, partition: Partition, *, first: bool) -> Any:
        """ "full", or an offset for every bucket."""
        start = self._from
        if start == "full" and self._definition.is_primary_key_table:
            return start
        given: Mapping[int, int] = {}
        place: Any = "earliest" if start == "full" or not first else start
        if isinstance(start, Mapping):
            if partition.name not in start and self._definition.is_primary_key_table:
                return "full"
            given, place = start.get(partition.name, {}), "earliest"
        missing = [bucket for bucket in range(partition.bucket_count) if bucket not in given]
        if not missing:
            return dict(given)
        reader = Reader(self._cluster, self._definition_of(partition))
        return {**given, **await reader.offsets(place, missing)}

    def _moment_of(self, partition: Partition) -> Moment | None:
        if not isinstance(self._moment, Mapping):
            return self._moment
        given: Any = self._moment.get(partition.name, {})  # type: ignore[call-overload]
        return {bucket: given.get(bucket, 0) for bucket in range(partition.bucket_count)}

    async def _end_of(self, partition: Partition) -> Mapping[int, int] | None:
        if self._to is None or isinstance(self._to, Mapping):
            return None if self._to is None else self._to[partition.name]
        if self._to != "latest":
            raise ValueError(f"until={self._to!r}: say 'latest', offsets by partition and bucket, or None")
        reader = Reader(self._cluster, self._definition_of(partition))
        return await reader.offsets("latest", range(partition.bucket_count))

    def _begin_child(
        self, partition: Partition, start: Any, until: Mapping[int, int] | None, as_of: Moment | None = None
    ) -> None:
        scan = AsyncScan(
            self._cluster,
            self._definition_of(partition),
            columns=self._columns,
            condition=self._condition,
            row_filter=self._row_filter,
            start=start,
            until=until,
            as_of=as_of,
        )
        known = dict(start) if isinstance(start, Mapping) else {}
        child = _Child(partition.name, partition.table_id, scan, known)
        self._children[partition.name] = child
        child.task = asyncio.create_task(self._pump(child), name=f"scan of {self._topic}.{child.name}")

    async def _pump(self, child: _Child) -> None:
        try:
            async with self._gate or nullcontext(), child.scan as scan:
                async for batch in scan:
                    child.ahead += 1
                    await self._queue.put(_Arrived(child, batch, scan.positions))
                await self._queue.put(_Arrived(child, None, scan.positions))
        except Exception as error:  # noqa: BLE001 - told to the caller
            await self._queue.put(_Arrived(child, failure=error))


def _by_partition(place: Any) -> Any:
    """A start or end as it is; ValueError for offsets that are by bucket alone."""
    if isinstance(place, Mapping) and not all(isinstance(each, Mapping) for each in place.values()):
        raise ValueError("offsets of a partitioned table are by partition and bucket: {'2024': {0: 17}}")
    return place


def _is_gone(error: Exception) -> bool:
    return isinstance(error, TableError) and error.code is TableErrorCode.TABLE_NOT_FOUND
