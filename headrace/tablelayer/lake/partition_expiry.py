"""Expiry of old partitions: `paimon.partition.expiration-time`, as a part of a round's maintenance.

The rule is Paimon's: a partition expires when the time in its values is older than that. It holds for the partitions of
the lake and of the server, and so for every reader of the whole table:

1. Find the expired partitions of both.
2. Drop those that the server has, as a client does. From then on no read by the plain name has their rows: the server
has recorded the drop.
3. Write a snapshot of the lake without their rows and with the offsets of the others. It becomes the current one as a
round does, if no other commit came first.
4. Report it. The server forgets the drops that it has recorded, because the lake has no such rows any more.

A tiering job that is killed in between leaves hidden rows, which the next check clears. Rows that arrive late for an
expired partition make it again, and expire with the next check. Data files go when snapshots expire.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headrace.tablelayer.lake.adapter import LakeState
from headrace.tablelayer.lake.coordinator import Coordinator, TieringRound
from headrace.tablelayer.model.lake.offsets import Offsets, PartitionBucket
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.partition_keys import values_of

_TOLD = 5
"""Number of partitions that a report names."""


class ExpiringLake(Protocol):
    """A lake table whose partitions can expire; see `LakeTable` for the other methods."""

    def partitions(self) -> list[str]: ...

    def expired_partitions(self, names: Sequence[str]) -> tuple[list[str], list[str]]: ...

    def write_without(
        self, base: LakeState, partitions: Sequence[str], offsets: Offsets, epoch: int
    ) -> int: ...

    def commit(self, base: LakeState, snapshot: int, epoch: int) -> None: ...

    def discard(self, epoch: int) -> None: ...


class PartitionExpiry:
    """Expiry of one table's partitions within a round."""

    def __init__(
        self,
        granted: TieringRound,
        coordinator: Coordinator,
        lake: ExpiringLake,
        connection: Any,
        definition: StoredTable,
    ) -> None:
        self._round, self._coordinator, self._lake = granted, coordinator, lake
        self._connection, self._definition = connection, definition

    def run(self, base: LakeState) -> tuple[LakeState, str]:
        """Expire old partitions in the lake at `base` and on the server; return the state after it, and a report.

        Raises RoundLostError, LakeError, and the errors of the client.
        """
        in_lake = set(self._lake.partitions())
        table = self._connection.table(str(self._definition.path))
        on_server = {each.name for each in table.partitions()}
        expired, unread = self._lake.expired_partitions(sorted(in_lake | on_server))
        told = (
            [f"the time of {_named(unread)} cannot be read (partition.timestamp-formatter)"] if unread else []
        )
        for name in expired:
            if name in on_server:
                spec = dict(zip(self._definition.partition_keys, values_of(name), strict=True))
                self._connection.admin.drop_partition(self._definition.path, spec, if_exists=True)
        dropped = self._coordinator.describe(self._round.table_id).dropped
        gone = in_lake.intersection(expired)
        state = self._without(base, sorted(gone)) if gone else base
        cleared = {name: each for name, each in dropped.items() if name not in in_lake - gone}
        if (gone or cleared) and state.committed is not None:
            self._coordinator.commit(self._round, state.committed, state.offsets, cleared)
        if expired:
            told.append(f"{_named(expired)} expired")
        return state, "; ".join(told)

    def _without(self, base: LakeState, partitions: Sequence[str]) -> LakeState:
        """Commit a snapshot without these partitions."""
        epoch = self._round.epoch
        offsets = {
            place: offset
            for place, offset in base.offsets.items()
            if not (isinstance(place, PartitionBucket) and place.partition in partitions)
        }
        try:
            snapshot = self._lake.write_without(base, partitions, offsets, epoch)
            self._lake.commit(base, snapshot, epoch)
        finally:
            self._lake.discard(epoch)
        return LakeState(snapshot, snapshot, offsets, epoch)


def _named(partitions: Sequence[str]) -> str:
    count = len(partitions)
    names = ", ".join(partitions[:_TOLD]) + (", ..." if count > _TOLD else "")
    return f"partition {names}" if count == 1 else f"{count} partitions ({names})"
