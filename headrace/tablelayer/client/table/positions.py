"""Offsets of the log of a table, and the positions that consumer groups have committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from headrace.tablelayer.client.read.group_offsets import commit_offsets, fetch_offsets
from headrace.tablelayer.client.read.offsets import Moment
from headrace.tablelayer.client.table.open_table import OpenTable
from headrace.tablelayer.client.table.scan import PartitionOffsets

T = TypeVar("T")


class Positions:
    """The offsets of a table and the positions of its consumer groups."""

    def __init__(self, table: OpenTable) -> None:
        self._table = table

    async def offsets(
        self, at: str | int, buckets: Sequence[int] | None = None, *, partition: str | None = None
    ) -> dict[int, int]:
        """Return offsets by bucket: "earliest", "latest" (the end), or the first at or after a time in milliseconds.

        A partitioned table needs the `partition` (else TableError PARTITION_NEEDED).
        """
        part = await self._table.parts.one(partition, "offsets")
        return await part.reader.offsets(at, part.buckets if buckets is None else buckets)

    async def offsets_as_of(self, moment: Moment, *, partition: str | None = None) -> dict[int, int]:
        """Return the log's end offsets at a time (milliseconds or datetime), including writes at that time.

        They are what `as_of` reads. TableError OUTSIDE_RETENTION for a time before the log's beginning.
        """
        part = await self._table.parts.one(partition, "offsets_as_of")
        return await part.reader.offsets_as_of(moment, part.buckets)

    async def partition_offsets(self, at: str | int) -> dict[str, dict[int, int]]:
        """Return `offsets` of every partition, or `{"": offsets}` for a table without partitions."""
        return await self._table.parts.ask_all(lambda part: part.reader.offsets(at, part.buckets))

    async def partition_offsets_as_of(self, moment: Moment) -> dict[str, dict[int, int]]:
        """Return `offsets_as_of` of every partition, or `{"": offsets}` for a table without partitions."""
        return await self._table.parts.ask_all(lambda part: part.reader.offsets_as_of(moment, part.buckets))

    async def commit(self, group: str, positions: Mapping[int, int] | PartitionOffsets) -> None:
        """Commit positions (`scan.positions`, `scan.partition_positions`) for a consumer group, as in Kafka."""
        for name, offsets in self._table.parts.by_part(positions, "commit").items():
            await commit_offsets(self._table.cluster, group, self._topic_of(name), offsets)

    async def partition_committed(self, group: str) -> dict[str, dict[int, int]]:
        """Return `committed` of every partition, or `{"": positions}` for a table without partitions."""
        topics = {part.topic: part.name for part in await self._table.parts.all()}
        found: dict[str, dict[int, int]] = {}
        for (topic, bucket), offset in sorted((await fetch_offsets(self._table.cluster, group)).items()):
            if topic in topics:
                found.setdefault(topics[topic], {})[bucket] = offset
        return found

    async def committed(self, group: str, *, partition: str | None = None) -> dict[int, int]:
        """Return the positions committed by this group (of one partition), without buckets that have none."""
        part = await self._table.parts.one(partition, "committed positions")
        return (await self.partition_committed(group)).get(part.name, {})

    def _topic_of(self, partition: str) -> str:
        return (self._table.path.of_partition(partition) if partition else self._table.path).topic
