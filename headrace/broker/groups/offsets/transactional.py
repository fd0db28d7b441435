"""Offsets committed in open transactions: they are on the journal, but not in their groups yet.

On the journal they are transactional batches of the producer, as in Kafka. The marker of the transaction, a control
batch, decides whether they count. `TransactionalOffsets` holds them in memory for all groups.

Invariants
- It has exactly the journal's offsets of open transactions, so a restart gives the same state.
- The offsets of a transaction reach their groups together when its marker is appended, in the order of markers.
- Offsets that are deleted from a group are deleted here too: a tombstone counts for all records before it.
- A position is unstable while an open transaction has one for the same partition of the same group (KIP-447).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from headrace.broker.groups.model.records import CommittedOffset, PutOffset

Offsets = dict[tuple[str, int], CommittedOffset]


class InTransaction(msgspec.Struct, frozen=True):
    """A journal record that takes effect if the producer's transaction commits."""

    producer_id: int
    record: PutOffset


class TransactionEnd(msgspec.Struct, frozen=True):
    """The marker of a producer's transaction."""

    producer_id: int
    commit: bool


class TransactionalOffsets:
    """Offsets by journal partition, producer and group. A transaction has one marker in each partition."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], dict[str, Offsets]] = {}
        self._unstable: dict[str, dict[tuple[str, int], int]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(
        self, index: int, producer_id: int, group_id: str, offsets: Mapping[tuple[str, int], CommittedOffset]
    ) -> None:
        """Add offsets that were appended to journal partition `index`. They replace the producer's earlier ones."""
        kept = self._open.setdefault((index, producer_id), {}).setdefault(group_id, {})
        unstable = self._unstable.setdefault(group_id, {})
        for key, committed in offsets.items():
            if key not in kept:
                unstable[key] = unstable.get(key, 0) + 1
            kept[key] = committed

    def end(self, index: int, producer_id: int) -> dict[str, Offsets]:
        """End the transaction in a journal partition, and return its offsets there by group."""
        ended = self._open.pop((index, producer_id), {})
        for group_id, offsets in ended.items():
            unstable = self._unstable.get(group_id, {})
            for key in offsets:
                unstable[key] -= 1
                if not unstable[key]:
                    del unstable[key]
            if not unstable:
                self._unstable.pop(group_id, None)
        return {group_id: offsets for group_id, offsets in ended.items() if offsets}

    def drop(self, group_id: str, partitions: Iterable[tuple[str, int]]) -> None:
        """Forget positions that were deleted: no transaction that is open now brings them back."""
        unstable = self._unstable.get(group_id)
        if unstable is None:
            return
        for key in partitions:
            if unstable.pop(key, 0):
                for groups in self._open.values():
                    groups.get(group_id, {}).pop(key, None)
        if not unstable:
            del self._unstable[group_id]

    def let_go(self, index: int) -> None:
        """Forget all offsets of journal partition `index`."""
        for key in [key for key in self._open if key[0] == index]:
            self.end(*key)

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        return (topic, partition) in self._unstable.get(group_id, ())

    def unstable_partitions(self, group_id: str) -> frozenset[tuple[str, int]]:
        return frozenset(self._unstable.get(group_id, ()))

    def groups_with(self, topic: str) -> set[str]:
        """Return the groups with positions of a topic in open transactions."""
        return {
            group_id
            for group_id, unstable in self._unstable.items()
            if any(key[0] == topic for key in unstable)
        }

    def take_over(self, other: TransactionalOffsets) -> None:
        """Add the offsets that were read from other journal partitions."""
        for (index, producer_id), groups in other._open.items():
            for group_id, offsets in groups.items():
                self.add(index, producer_id, group_id, offsets)
