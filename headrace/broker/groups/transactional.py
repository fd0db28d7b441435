"""Offsets that were committed in transactions which have not ended: on the journal, not yet in any group.

They lie there as Kafka writes them: transactional batches of the producer, and then the control batch of its
transaction, which says whether they count. In memory they wait here, one store for all groups.

Invariants
- What is here is what the journal has of open transactions: a restart gives the same.
- Offsets of one transaction reach their groups together, when its marker is appended, in the order of markers.
- What is deleted of a group is deleted here: a tombstone counts for all that precedes it.
- A position is unstable while any transaction has one for the same partition of the same group (KIP-447).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from headrace.broker.groups.model import CommittedOffset, PutOffset

Offsets = dict[tuple[str, int], CommittedOffset]


class InTransaction(msgspec.Struct, frozen=True):
    """A journal record that counts if the producer's transaction commits."""

    producer_id: int
    record: PutOffset


class TransactionEnd(msgspec.Struct, frozen=True):
    """The marker of a producer's transaction."""

    producer_id: int
    commit: bool


class TransactionalOffsets:
    """By journal partition, producer and group: a producer's transaction has a marker in each partition."""

    def __init__(self) -> None:
        self._open: dict[tuple[int, int], dict[str, Offsets]] = {}
        self._unstable: dict[str, dict[tuple[str, int], int]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def add(
        self, index: int, producer_id: int, group_id: str, offsets: Mapping[tuple[str, int], CommittedOffset]
    ) -> None:
        """Positions that were appended to journal partition `index`; later ones of a producer win."""
        kept = self._open.setdefault((index, producer_id), {}).setdefault(group_id, {})
        unstable = self._unstable.setdefault(group_id, {})
        for key, committed in offsets.items():
            if key not in kept:
                unstable[key] = unstable.get(key, 0) + 1
            kept[key] = committed

    def end(self, index: int, producer_id: int) -> dict[str, Offsets]:
        """The transaction has ended in a journal partition: what it had committed there, by group."""
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
        """These positions of the group were deleted: no transaction that is open now brings them back."""
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
        """Forget what journal partition `index` has."""
        for place in [place for place in self._open if place[0] == index]:
            self.end(*place)

    def is_unstable(self, group_id: str, topic: str, partition: int) -> bool:
        return (topic, partition) in self._unstable.get(group_id, ())

    def unstable_partitions(self, group_id: str) -> frozenset[tuple[str, int]]:
        return frozenset(self._unstable.get(group_id, ()))

    def groups_with(self, topic: str) -> set[str]:
        """Groups that have positions in a topic here."""
        return {
            group_id
            for group_id, unstable in self._unstable.items()
            if any(key[0] == topic for key in unstable)
        }

    def take_over(self, other: TransactionalOffsets) -> None:
        """Add what was read of other journal partitions."""
        for (index, producer_id), groups in other._open.items():
            for group_id, offsets in groups.items():
                self.add(index, producer_id, group_id, offsets)
