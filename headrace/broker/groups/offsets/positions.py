"""The committed positions of a group as journal records, for a copy in another place. Pure.

Members are left out: they will join again. Generation and epoch are kept, so that they continue to rise. Times are left
out, so that a repeated commit of the same positions gives the same records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from headrace.broker.groups.model.group import Group
from headrace.broker.groups.model.records import (
    CommittedOffset,
    JournalRecord,
    PutEpoch,
    PutGroup,
    PutOffset,
    PutTargetEpoch,
    StoredGroup,
)


class GroupPositions(msgspec.Struct, frozen=True):
    """A group's positions: `offsets` by topic and partition, which must not be changed.

    A classic group has `stored`, a group of the consumer protocol has `epoch`, a group with only offsets has neither.
    """

    group_id: str
    stored: StoredGroup | None
    epoch: int | None
    offsets: Mapping[str, Mapping[int, CommittedOffset]]


def positions_of(group: Group) -> GroupPositions:
    stored, consumer = group.journalled, group.consumer
    if stored is not None:
        stored = replace(stored, protocol=None, leader=None, state_timestamp_ms=0, members=())
    return GroupPositions(
        group.group_id,
        stored,
        consumer.epoch if consumer is not None and consumer.stored else None,
        {topic: dict(offsets) for topic, offsets in group.offsets.items()},
    )


def records_of(group: GroupPositions, topics: Mapping[str, object]) -> Iterator[JournalRecord]:
    """Yield the records of its positions in `topics`, in an order that depends only on them; none without positions."""
    committed = sorted(
        (name, offsets) for name, offsets in group.offsets.items() if name in topics and offsets
    )
    if not committed:
        return
    if group.stored is not None:
        yield PutGroup(group.stored)
    if group.epoch is not None:
        yield PutEpoch(group.group_id, group.epoch, 0)
        yield PutTargetEpoch(group.group_id, group.epoch, 0)
    for topic, offsets in committed:
        for index in sorted(offsets):
            yield PutOffset(group.group_id, topic, index, replace(offsets[index], commit_timestamp_ms=0))


def at(record: JournalRecord, time_ms: int) -> JournalRecord:
    """Return one of these records with `time_ms`, from which its retention counts."""
    match record:
        case PutGroup(stored):
            return PutGroup(replace(stored, state_timestamp_ms=time_ms))
        case PutOffset(group_id, topic, index, committed):
            return PutOffset(group_id, topic, index, replace(committed, commit_timestamp_ms=time_ms))
        case _:
            return record


def group_of(record: JournalRecord) -> str:
    return record.stored.group_id if isinstance(record, PutGroup) else record.group_id
