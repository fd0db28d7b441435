"""Guards: check that another broker's answer about a transaction still holds right before a write (KIP-890).

The leader of a partition asks the coordinator of the producer's transaction whether a write belongs to it. Before the
answer arrives the transaction may end and its marker may be written here. The write would then begin a transaction that
is never ended. So the leader takes a *guard* before it asks, and writes only if the guard still holds. It holds if no
marker of the producer has been written to the partition meanwhile, and this broker has been the leader all the time.
"""

from __future__ import annotations

import msgspec

from headrace.broker.partitions.partition import Partition

_Key = tuple[str, int, int]
"""Topic, partition, producer id."""


class Guard(msgspec.Struct, frozen=True, eq=False):
    partition: Partition
    leader_epoch: int
    producer_id: int

    @property
    def key(self) -> _Key:
        return self.partition.topic.name, self.partition.index, self.producer_id


class Guards:
    """The guards that are taken. On the event loop."""

    def __init__(self) -> None:
        self._taken: dict[_Key, set[Guard]] = {}

    def take(self, partition: Partition, producer_id: int) -> Guard:
        """Take a guard, which must be `released`."""
        guard = Guard(partition, partition.leader_epoch, producer_id)
        self._taken.setdefault(guard.key, set()).add(guard)
        return guard

    def ended(self, topic: str, index: int, producer_id: int) -> None:
        """Note that a marker of the producer is written."""
        if self._taken:
            self._taken.pop((topic, index, producer_id), None)

    def holds(self, guard: Guard) -> bool:
        partition = guard.partition
        return (
            guard in self._taken.get(guard.key, ())
            and not partition.closed
            and partition.leader_epoch == guard.leader_epoch
        )

    def release(self, guard: Guard | None) -> None:
        taken = None if guard is None else self._taken.get(guard.key)
        if guard is not None and taken is not None:
            taken.discard(guard)
            if not taken:
                del self._taken[guard.key]


def is_in_transaction(partition: Partition, producer_id: int, producer_epoch: int) -> bool:
    """Return whether the producer has an open transaction in the partition's log, with this epoch: then its writes
    belong to it, and the coordinator knows of the partition. Raises KafkaError.
    """
    log = partition.log
    if producer_id not in log.open_transactions():
        return False
    known = log.producers().get(producer_id)
    return known is not None and known.epoch == producer_epoch
