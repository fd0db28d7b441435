"""What a group has committed, without its members: what is worth something elsewhere, as journal records. Pure.

Members are not part of it: whoever was one finds that nobody knows it, and joins again. What tells one generation from
another is, so that they go on rising. Times are left out: positions that are committed again say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from headrace.broker.groups.group import Group
from headrace.broker.groups.model import CommittedOffset, JournalRecord, PutGroup, PutOffset, StoredGroup
from headrace.broker.groups.modern.model import PutEpoch, PutTargetEpoch


class GroupPositions(msgspec.Struct, frozen=True):
    """`stored`: of a group of the classic protocol; `epoch`: of one of the consumer protocol. One that has only
    offsets has neither. `offsets`: by topic and partition; nobody changes them.
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
    """Of its positions in these topics, in an order that is theirs alone; nothing if it has none there."""
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
    """One of these records as it is stored at a time: what is kept for some time is kept from then on."""
    match record:
        case PutGroup(stored):
            return PutGroup(replace(stored, state_timestamp_ms=time_ms))
        case PutOffset(group_id, topic, index, committed):
            return PutOffset(group_id, topic, index, replace(committed, commit_timestamp_ms=time_ms))
        case _:
            return record


def group_of(record: JournalRecord) -> str:
    return record.stored.group_id if isinstance(record, PutGroup) else record.group_id
