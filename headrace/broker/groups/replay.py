"""From journal records to groups and back: the last record of a key wins, a tombstone removes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.broker.groups.group import Group
from headrace.broker.groups.model import (
    CommittedOffset,
    DropGroup,
    DropOffset,
    JournalRecord,
    Limits,
    Now,
    PutGroup,
    PutOffset,
    StoredGroup,
)
from headrace.broker.groups.modern.model import ConsumerGroup, DropEpoch, records_of
from headrace.broker.groups.state import restore, restore_consumer_group
from headrace.broker.groups.transactional import InTransaction, TransactionalOffsets, TransactionEnd


class Replay:
    """Collects records of one journal partition in order; `groups` then builds what they add up to.

    `transactional` is what open transactions have committed.
    """

    def __init__(self, index: int = 0) -> None:
        self.transactional = TransactionalOffsets()
        self._index = index
        self._stored: dict[str, StoredGroup] = {}
        self._offsets: dict[str, dict[tuple[str, int], CommittedOffset]] = {}
        self._consumers: dict[str, ConsumerGroup] = {}

    def apply(self, records: Iterable[JournalRecord | InTransaction | TransactionEnd]) -> None:
        for record in records:
            match record:
                case PutGroup(stored):
                    self._stored[stored.group_id] = stored
                case DropGroup(group_id):
                    self._stored.pop(group_id, None)
                case PutOffset(group_id, topic, partition, committed):
                    self._offsets.setdefault(group_id, {})[topic, partition] = committed
                case DropOffset(group_id, topic, partition):
                    self._offsets.get(group_id, {}).pop((topic, partition), None)
                    self.transactional.drop(group_id, [(topic, partition)])
                case InTransaction(producer_id, put):
                    key = (put.topic, put.partition)
                    self.transactional.add(self._index, producer_id, put.group_id, {key: put.committed})
                case TransactionEnd(producer_id, commit):
                    for group_id, offsets in self.transactional.end(self._index, producer_id).items():
                        if commit:
                            self._offsets.setdefault(group_id, {}).update(offsets)
                case DropEpoch(group_id):
                    self._consumers.pop(group_id, None)
                case _:
                    self._consumers.setdefault(record.group_id, ConsumerGroup()).apply(record)

    def groups(self, now: Now, limits: Limits) -> dict[str, Group]:
        groups = {
            group_id: restore(group_id, stored, now, limits) for group_id, stored in self._stored.items()
        }
        for group_id, offsets in self._offsets.items():
            if not offsets:
                continue
            group = groups.get(group_id)
            if group is None:
                group = groups[group_id] = restore(group_id, None, now, limits)
            for (topic, partition), committed in offsets.items():
                group.put_offset(topic, partition, committed)
        for group_id, consumer in self._consumers.items():
            if consumer.stored:
                group = groups.get(group_id)
                if group is None:
                    group = groups[group_id] = restore(group_id, None, now, limits)
                restore_consumer_group(group, consumer, now, limits)
        return groups


def live_records(group: Group) -> Iterator[JournalRecord]:
    """The records from which `Replay` builds the durable part of this group again."""
    if group.journalled is not None:
        yield PutGroup(group.journalled)
    if group.consumer is not None:
        yield from records_of(group.group_id, group.consumer)
    for topic, partitions in group.offsets.items():
        for partition, committed in partitions.items():
            yield PutOffset(group.group_id, topic, partition, committed)
