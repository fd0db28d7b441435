"""Offsets that open transactions have committed: their owners, and the time until which their outcome is unknown."""

from __future__ import annotations

from headrace.broker.groups.model.records import CommittedOffset
from headrace.broker.groups.offsets.transactional import TransactionalOffsets

A, B = ("topic", 0), ("topic", 1)


def at(offset: int) -> CommittedOffset:
    return CommittedOffset(offset, -1, "", 0)


def unstable(offsets: TransactionalOffsets, group: str = "g") -> list[int]:
    return [index for topic, index in (A, B) if offsets.is_unstable(group, topic, index)]


def test_a_position_is_unstable_until_every_transaction_that_has_it_has_ended() -> None:
    offsets = TransactionalOffsets()
    for producer_id in (1, 2):
        offsets.add(0, producer_id, "g", {A: at(producer_id)})
        offsets.add(0, producer_id, "g", {A: at(10 + producer_id)})
    assert offsets.end(0, 1) == {"g": {A: at(11)}}
    assert unstable(offsets) == [0]
    assert offsets.end(0, 2) == {"g": {A: at(12)}}
    assert unstable(offsets) == []
    assert offsets.groups_with("topic") == set()


def test_a_transaction_ends_in_each_journal_partition_by_itself() -> None:
    offsets = TransactionalOffsets()
    offsets.add(0, 1, "g", {A: at(1)})
    offsets.add(3, 1, "h", {B: at(2)})
    assert offsets.end(2, 1) == {}
    assert offsets.end(0, 1) == {"g": {A: at(1)}}
    assert unstable(offsets, "h") == [1]
    assert offsets.end(3, 1) == {"h": {B: at(2)}}


def test_deleted_offsets_do_not_return_when_the_transaction_ends() -> None:
    offsets = TransactionalOffsets()
    offsets.add(0, 1, "g", {A: at(1), B: at(2)})
    offsets.drop("g", [A])
    assert unstable(offsets) == [1]
    assert offsets.end(0, 1) == {"g": {B: at(2)}}


def test_offsets_read_from_other_journal_partitions_are_added() -> None:
    offsets, read = TransactionalOffsets(), TransactionalOffsets()
    offsets.add(0, 1, "g", {A: at(1)})
    read.add(1, 1, "h", {A: at(2), B: at(3)})
    offsets.take_over(read)
    assert unstable(offsets, "h") == [0, 1]
    assert offsets.end(1, 1) == {"h": {A: at(2), B: at(3)}}
    assert unstable(offsets) == [0]
