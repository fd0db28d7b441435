"""Counts of the partitions of a tiered table that are gone: each once, over rounds, drops and other releases."""

from __future__ import annotations

import json
from uuid import UUID

from headrace.tablelayer.model.lake.offsets import PartitionBucket
from headrace.tablelayer.server.lake.dropped import GonePartitions, ids_of

A, B, C, D = (UUID(int=number) for number in (1, 2, 3, 4))


def stored(record: GonePartitions) -> GonePartitions:
    """Return the record as another controller reads it."""
    again = GonePartitions.from_json(record.to_json())
    assert again == record
    return again


def test_a_partition_counts_once_although_a_round_still_has_it() -> None:
    record = stored(GonePartitions().counted({A, B, C}, 100))
    assert record.counts({A, B, C}) == (100, 100)
    assert record.counts({A, C}) == (101, 101)
    record = stored(record.counted({A, B, C}, 900))  # a round that began before still has B
    assert record.counts({A, C}) == (101, 101)
    record = stored(record.counted({A, C}, 900))
    assert record.counts({A, C}) == (101, 101)
    assert record.counted({A, C, D}, 900).counts({A, C}) == (102, 102), "a new one"
    assert stored(record.with_dropped("a", A)).counts({C}) == (102, 101), "a client dropped A"
    record = stored(record.with_dropped("a", A).counted({C}, 900))
    assert record.counts({C}) == (102, 101)
    assert record.counts(set()) == (103, 102)
    assert stored(record.settled((), (), ())).counts({C}) == (102, 101)


def test_counts_that_an_earlier_release_lost_do_not_come_again() -> None:
    record = GonePartitions().counted({A, B}, 100).counted({A}, 100)
    values = json.loads(record.to_json())
    del values["known"], values["counts"]
    older = GonePartitions.from_json(json.dumps(values).encode())
    assert older.known is None
    assert stored(older.counted({A}, 5000)).counts({A}) == (5000, 5000) > record.counts({A})


def test_ids_of_places() -> None:
    assert ids_of([PartitionBucket("a", A, 0), PartitionBucket("a", A, 1), 7]) == {A}
