"""Scan all partitions of a table: one scan per partition, batches in the order of their arrival.

Each batch names its partition. A scan without an end looks for new partitions (`ClientConfig.partition_discovery_ms`)
and reads them from their beginning, so that no row is missed. A dropped partition ends, however much of it was read. A
name that is dropped and added again is a new partition. Positions move only when a batch is returned: batches that were
read ahead are read again by a scan that continues from them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from headrace.tablelayer.client.read.offsets import Moment
from headrace.tablelayer.client.read.part_scan import PartScan, ScanBatch, Selection
from headrace.tablelayer.client.read.reader import Reader
from headrace.tablelayer.client.table.parts import Parts
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.partitions import Partition

_READ_AT_ONCE = 8
"""Partitions read at the same time by a scan with an end. A scan without an end reads all of them."""


@dataclass(eq=False, slots=True)
class _Child:
    """The scan of one partition; `ahead` is the number of batches read but not yet returned."""

    name: str
    table_id: UUID
    scan: PartScan
    positions: dict[int, int]
    task: asyncio.Task[None] | None = None
    ahead: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A batch of a partition and the positions after it, or without a batch the partition's end."""

    child: _Child
    batch: ScanBatch | None = None
    positions: dict[int, int] = field(default_factory=dict)
    failure: Exception | None = None


class PartsScan:
    """The stream of all partitions, made by `tablelayer.client.table.scan` for callers."""

    def __init__(
        self,
        cluster: Cluster,
        parts: Parts,
        selection: Selection,
        *,
        start: str | int | Mapping[str, Mapping[int, int]],
        until: str | Mapping[str, Mapping[int, int]] | None,
        as_of: int | datetime | Mapping[str, Mapping[int, int]] | None,
    ) -> None:
        self._cluster = cluster
        self._config = cluster.config
        self._parts = parts
        self._selection = replace(selection, poll_timeout=None)
        self._buckets = selection.buckets
        self._poll_timeout = selection.poll_timeout
        self._from = start
        self._to = until
        self._moments = as_of
        self._children: dict[str, _Child] = {}
        self._queue: asyncio.Queue[_Arrived] = asyncio.Queue(_READ_AT_ONCE)
        self._gate = None if until is None else asyncio.Semaphore(_READ_AT_ONCE)
        Reader(cluster, parts.definition).project(selection.columns)  # raises for an unknown column at once

    has_arrived = False
    """Whether `take_arrived` may have a batch. Here only `run` gives batches."""

    def take_arrived(self) -> ScanBatch | None:
        return None

    @property
    def positions(self) -> dict[str, dict[int, int]]:
        """The next offset of each bucket by partition, without partitions whose state is still being read."""
        found = {}
        for name, child in self._children.items():
            positions = child.positions if child.ahead else child.scan.positions or child.positions
            if len(positions) == child.scan.read_count:
                found[name] = dict(positions)
        return found

    def seek(self, positions: Mapping[str, Mapping[int, int]]) -> None:
        """Continue from these offsets; batches that were read ahead are dropped. Raises ValueError."""
        wanted: dict[str, Mapping[int, int]] = {}
        for name, offsets in positions.items():
            if name not in self._children:
                raise ValueError(
                    f"cannot seek in partition {name}: this scan does not read it, or has not begun"
                )
            known = self._children[name]
            wanted[name] = {**known.positions, **offsets}
            if len(wanted[name]) < known.scan.read_count:
                raise ValueError(
                    f"the state of partition {name} is still being read: give offsets for all of its buckets"
                )
        for name, offsets in wanted.items():
            old = self._children[name]
            if old.task is not None:
                old.task.cancel()
            self._begin_child(Partition(name, old.table_id, old.scan.bucket_count), offsets, old.scan.until)

    async def close(self) -> None:
        tasks = [child.task for child in self._children.values() if child.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- the stream

    async def run(self) -> AsyncGenerator[ScanBatch, None]:
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
                continue  # dropped, or the caller has called `seek`
            if arrived.failure is not None:
                if not _is_gone(arrived.failure):
                    raise arrived.failure
                child.ended = True
                await self._discover(first=False)  # TABLE_NOT_FOUND if the table itself was dropped
            elif arrived.batch is None:
                child.ended = True
                child.positions = arrived.positions
            else:
                child.ahead -= 1
                child.positions = arrived.positions
                last_row = now()
                yield replace(arrived.batch, partition=child.name)

    async def _discover(self, *, first: bool) -> None:
        """Begin to read new partitions; stop reading dropped ones."""
        found = {each.name: each for each in await self._parts.partitions()}
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

    def _definition_of(self, partition: Partition) -> StoredTable:
        return self._parts.definition.of_partition(partition.name, partition.table_id, partition.bucket_count)

    def _buckets_of(self, partition: Partition) -> Sequence[int]:
        return range(partition.bucket_count) if self._buckets is None else self._buckets

    async def _start_of(self, partition: Partition, *, first: bool) -> Any:
        """Return "full", or an offset for every bucket."""
        start = self._from
        if start == "full" and self._parts.definition.is_primary_key_table:
            return start
        given: Mapping[int, int] = {}
        place: Any = "earliest" if start == "full" or not first else start
        if isinstance(start, Mapping):
            if partition.name not in start and self._parts.definition.is_primary_key_table:
                return "full"
            given, place = start.get(partition.name, {}), "earliest"
        missing = [bucket for bucket in self._buckets_of(partition) if bucket not in given]
        if not missing:
            return dict(given)
        reader = Reader(self._cluster, self._definition_of(partition))
        return {**given, **await reader.offsets(place, missing)}

    def _moment_of(self, partition: Partition) -> Moment | None:
        if not isinstance(self._moments, Mapping):
            return self._moments
        given = self._moments.get(partition.name, {})
        return {bucket: given.get(bucket, 0) for bucket in range(partition.bucket_count)}

    async def _end_of(self, partition: Partition) -> Mapping[int, int] | None:
        if self._to is None or isinstance(self._to, Mapping):
            return None if self._to is None else self._to[partition.name]
        if self._to != "latest":
            raise ValueError(f"until={self._to!r}: give 'latest', offsets by partition and bucket, or None")
        reader = Reader(self._cluster, self._definition_of(partition))
        return await reader.offsets("latest", self._buckets_of(partition))

    def _begin_child(
        self, partition: Partition, start: Any, until: Mapping[int, int] | None, as_of: Moment | None = None
    ) -> None:
        definition = self._definition_of(partition)
        scan = PartScan(self._cluster, definition, self._selection, start=start, until=until, as_of=as_of)
        known = dict(start) if isinstance(start, Mapping) else {}
        child = _Child(partition.name, partition.table_id, scan, known)
        self._children[partition.name] = child
        child.task = asyncio.create_task(self._pump(child), name=f"scan of {definition.path}")

    async def _pump(self, child: _Child) -> None:
        try:
            async with self._gate or nullcontext(), aclosing(child.scan.run()) as batches:
                async for batch in batches:
                    child.ahead += 1
                    await self._queue.put(_Arrived(child, batch, child.scan.positions))
                await self._queue.put(_Arrived(child, None, child.scan.positions))
        except Exception as error:  # noqa: BLE001 - raised to the caller
            await self._queue.put(_Arrived(child, failure=error))
        finally:
            await child.scan.close()


def _is_gone(error: Exception) -> bool:
    return isinstance(error, TableError) and error.code is TableErrorCode.TABLE_NOT_FOUND
