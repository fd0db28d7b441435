"""From journal records to groups and back. The last record of a key counts, and a tombstone removes the key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headrace.broker.groups.classic import rebalance
from headrace.broker.groups.classic.consumer_protocol import subscribed_topics
from headrace.broker.groups.model.consumer import ConsumerGroup, records_of
from headrace.broker.groups.model.group import Group
from headrace.broker.groups.model.limits import Limits, Now
from headrace.broker.groups.model.records import (
    CommittedOffset,
    DropEpoch,
    DropGroup,
    DropOffset,
    JournalRecord,
    PutGroup,
    PutOffset,
    StoredGroup,
)
from headrace.broker.groups.model.topics import NoTopics
from headrace.broker.groups.modern import sessions
from headrace.broker.groups.offsets.transactional import InTransaction, TransactionalOffsets, TransactionEnd
from headrace.broker.groups.step import Step


class Replay:
    """Collects the records of one journal partition in order; `groups` then builds the groups from them.

    `transactional` has the offsets of transactions that are still open.
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


def restore(group_id: str, stored: StoredGroup | None, now: Now, limits: Limits) -> Group:
    """Return the group as the journal has it. `stored` is None for a group that has only offsets.

    Each member begins a session. If there are more members than `group.max.size` allows now, all have to join again,
    and the last ones are refused.
    """
    group = Group(group_id)
    if stored is None:
        return group
    group.journalled = stored
    group.take_members(stored, now)
    group.subscribed_topics = subscribed_topics(group)
    if len(group.members) > limits.group_size_max:
        rebalance.begin(Step(group, now, limits, NoTopics()))
    return group


def restore_consumer_group(group: Group, consumer: ConsumerGroup, now: Now, limits: Limits) -> None:
    """Make `group` the group of the consumer protocol that the journal has. Each member begins a session."""
    group.consumer = consumer
    sessions.watch_all(Step(group, now, limits, NoTopics()))


def live_records(group: Group) -> Iterator[JournalRecord]:
    """Yield the records from which `Replay` builds the stored part of this group again."""
    if group.journalled is not None:
        yield PutGroup(group.journalled)
    if group.consumer is not None:
        yield from records_of(group.group_id, group.consumer)
    for topic, partitions in group.offsets.items():
        for partition, committed in partitions.items():
            yield PutOffset(group.group_id, topic, partition, committed)
