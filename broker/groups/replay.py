"""From journal records to groups and back: the last record of a key wins, a tombstone removes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from broker.groups.model import (
    CommittedOffset,
    DropGroup,
    DropOffset,
    Group,
    JournalRecord,
    Now,
    PutGroup,
    PutOffset,
    StoredGroup,
)
from broker.groups.state import restore


class Replay:
    """Collects records in journal order; `groups` then builds what they add up to."""

    def __init__(self) -> None:
        self._stored: dict[str, StoredGroup] = {}
        self._offsets: dict[str, dict[tuple[str, int], CommittedOffset]] = {}

    def apply(self, records: Iterable[JournalRecord]) -> None:
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

    def groups(self, now: Now) -> dict[str, Group]:
        groups = {group_id: restore(group_id, stored, now) for group_id, stored in self._stored.items()}
        for group_id, offsets in self._offsets.items():
            if not offsets:
                continue
            group = groups.get(group_id)
            if group is None:
                group = groups[group_id] = restore(group_id, None, now)
            for (topic, partition), committed in offsets.items():
                group.put_offset(topic, partition, committed)
        return groups


def live_records(group: Group) -> Iterator[JournalRecord]:
    """The records from which `Replay` builds the durable part of this group again."""
    if group.journalled is not None:
        yield PutGroup(group.journalled)
    for topic, partitions in group.offsets.items():
        for partition, committed in partitions.items():
            yield PutOffset(group.group_id, topic, partition, committed)
