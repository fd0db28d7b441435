"""Records of the partitions of tiered tables that are gone from the server, for reads of lake and log.

The lake keeps the rows of a partition that is gone. If the calendar dropped it, or its topic was deleted, the rows
belong to the table by its plain name. If a client dropped it, they do not, and the first rows of a later partition of
the same name replace them. So the partitions that clients dropped are recorded, before they are deleted. An entry is
removed when the lake has a later partition of the name, or no rows of the name any more.

The record also counts the partitions that are gone, and those among them that no client dropped. `known` has the ids
of the partitions that exist or that a round still has. An id is counted when it leaves them: once, whatever deleted
the partition. Counts begin at the time of the last commit, so that a count that an earlier release lost does not come
again.

The record of a table is under /lake_partitions/<table id> in the coordination store. Any broker may write it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from headrace.broker.metadata.nodes import modify
from headrace.broker.runtime.ports import CoordinationStore
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.lake.offsets import PartitionBucket

_ROOT: Final = "/lake_partitions"
DROPPED_MAX: Final = 10_000
"""Maximum number of partitions of a table that clients dropped and that have no successor: half a megabyte."""


class GonePartitions(msgspec.Struct, frozen=True):
    """`dropped` has the partitions that clients dropped: the id by name. `expired`: others may be gone, too.

    `known` is None before the first count. `gone_count` and `expired_count` are without the partitions in it.
    """

    expired: bool = False
    dropped: Mapping[str, UUID] = msgspec.field(default_factory=dict)
    known: frozenset[UUID] | None = None
    gone_count: int = 0
    expired_count: int = 0

    def to_json(self) -> bytes:
        dropped = {name: str(partition_id) for name, partition_id in sorted(self.dropped.items())}
        values = {"version": 1, "expired": self.expired, "dropped": dropped}
        if self.known is not None:
            counts = {"gone": self.gone_count, "expired": self.expired_count}
            values |= {"known": sorted(each.hex for each in self.known), "counts": counts}
        return json.dumps(values).encode()

    @classmethod
    def from_json(cls, data: bytes) -> GonePartitions:
        values = json.loads(data)
        dropped = {name: UUID(text) for name, text in values["dropped"].items()}
        if "known" not in values:
            return cls(values["expired"], dropped)
        known, counts = frozenset(map(UUID, values["known"])), values["counts"]
        return cls(values["expired"], dropped, known, counts["gone"], counts["expired"])

    def with_dropped(self, name: str, partition_id: UUID) -> GonePartitions:
        """Return the record after a client's drop. Raises TableError(INVALID_PARTITION): there are too many."""
        dropped = {**self.dropped, name: partition_id}
        if len(dropped) > DROPPED_MAX:
            raise TableError(
                TableErrorCode.INVALID_PARTITION,
                f"partition {name} cannot be dropped: {DROPPED_MAX} dropped partitions of this table are still in the"
                " lake. Let old partitions expire by 'table.auto-partition.num-retention' instead",
            )
        return replace(self, dropped=dropped)

    def counted(self, present: Collection[UUID], since_ms: int) -> GonePartitions:
        """Return the record after a count of the known partitions that are not present any more."""
        if self.known is None:
            return replace(self, known=frozenset(present), gone_count=since_ms, expired_count=since_ms)
        gone, expired = self.counts(present)
        return replace(self, known=frozenset(present), gone_count=gone, expired_count=expired)

    def counts(self, present: Collection[UUID]) -> tuple[int, int]:
        """Return the numbers of partitions that are gone, and of those that no client dropped."""
        gone = (self.known or frozenset()).difference(present)
        expired = gone.difference(self.dropped.values())
        return self.gone_count + len(gone), self.expired_count + len(expired)

    def settled(
        self,
        known: Collection[Any],
        tiered: Collection[Any],
        existing: Collection[Any],
        cleared: Mapping[str, UUID] = MappingProxyType({}),
    ) -> GonePartitions:
        """Return the record after a round.

        `known` are the places that the lake had before, `tiered` those of the round, `existing` those of the server.
        `cleared` are dropped partitions that have no rows in the lake any more, ids by name.
        """
        successors = {
            place.partition
            for place in tiered
            if isinstance(place, PartitionBucket)
            and place in existing
            and self.dropped.get(place.partition, place.table_id) != place.table_id
        }
        expired = self.expired or self.has_expired({*known, *tiered}, existing)
        return replace(
            self,
            expired=expired,
            dropped={
                name: each
                for name, each in self.dropped.items()
                if name not in successors and cleared.get(name) != each
            },
        )

    def has_expired(self, known: Collection[Any], existing: Collection[Any]) -> bool:
        """Return whether one of the known places is gone without a client's drop."""
        return any(
            self.dropped.get(place.partition) != place.table_id
            for place in known
            if isinstance(place, PartitionBucket) and place not in existing
        )


def ids_of(places: Collection[Any]) -> frozenset[UUID]:
    """Return the ids of the partitions of these places."""
    return frozenset(place.table_id for place in places if isinstance(place, PartitionBucket))


class GonePartitionsStore:
    """The records of all tables."""

    def __init__(self, store: CoordinationStore) -> None:
        self._store = store

    async def read(
        self, table_id: UUID, existing: Callable[[], Collection[Any]], *, committed_at_ms: int
    ) -> GonePartitions:
        """Return a table's record, which knows the `existing` places of a table that was tiered.

        A tiered table without a record is older than the records: anything may be gone.
        """
        was_tiered = committed_at_ms >= 0
        node = await self._store.get(f"{_ROOT}/{table_id}")
        record = GonePartitions(expired=was_tiered) if node is None else GonePartitions.from_json(node.data)
        while was_tiered and (record.known is None or not ids_of(existing()) <= record.known):
            record = await self._change(
                table_id,
                lambda record: record.counted(ids_of(existing()) | (record.known or set()), committed_at_ms),
                was_tiered=was_tiered,
            )
        return record

    async def note_drop(self, table_id: UUID, name: str, partition_id: UUID, *, was_tiered: bool) -> None:
        """Record a client's drop. Call it before the partition is deleted."""
        await self._change(
            table_id, lambda record: record.with_dropped(name, partition_id), was_tiered=was_tiered
        )

    async def settle(
        self,
        table_id: UUID,
        known: Collection[Any],
        tiered: Collection[Any],
        existing: Collection[Any],
        cleared: Mapping[str, UUID],
        *,
        committed_at_ms: int,
    ) -> None:
        """Record a round, see `GonePartitions.settled`. Call it before its offsets are recorded."""
        present = ids_of(existing) | ids_of(tiered)
        await self._change(
            table_id,
            lambda record: record.counted(present, max(0, committed_at_ms)).settled(
                known, tiered, existing, cleared
            ),
            was_tiered=committed_at_ms >= 0,
        )

    async def _change(
        self, table_id: UUID, change: Callable[[GonePartitions], GonePartitions], *, was_tiered: bool
    ) -> GonePartitions:
        def changed(data: bytes | None) -> bytes:
            before = GonePartitions(expired=was_tiered) if data is None else GonePartitions.from_json(data)
            return change(before).to_json()

        data = await modify(self._store, f"{_ROOT}/{table_id}", changed)
        assert data is not None
        return GonePartitions.from_json(data)

    async def forget(self, table_id: UUID) -> None:
        """Forget a dropped table."""
        await modify(self._store, f"{_ROOT}/{table_id}", lambda _: None)
