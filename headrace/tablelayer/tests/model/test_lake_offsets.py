"""Tiered offsets are written and read back; partitions that are gone are forgotten."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from headrace.tablelayer.model.lake.offsets import (
    PartitionBucket,
    offsets_from_json,
    offsets_to_json,
    partitions_of,
    without_dropped,
)
from headrace.tablelayer.model.messages import LakeOffset

NAMES = st.text("abc-_0.", min_size=1, max_size=8)
PLACES = st.builds(PartitionBucket, NAMES, st.uuids(), st.integers(0, 5))
OFFSETS = st.one_of(
    st.dictionaries(st.integers(0, 9), st.integers(0, 2**62), max_size=5),
    st.dictionaries(PLACES, st.integers(0, 2**62), max_size=5),
)


@given(OFFSETS)
def test_offsets_survive_json_and_the_wire(offsets):
    assert offsets_from_json(offsets_to_json(offsets)) == offsets
    for place, offset in offsets.items():
        entry = LakeOffset.of(place, offset)
        assert (entry.place, entry.offset) == (place, offset)


def test_offsets_of_tables_without_partitions_are_written_as_ever():
    assert offsets_to_json({1: 4, 0: 3}) == '{"0": 3, "1": 4}'


@given(st.dictionaries(PLACES, st.integers(0, 9), max_size=6), st.data())
def test_partitions_that_are_gone_are_forgotten_and_buckets_never(offsets, data):
    existing = data.draw(st.sets(st.sampled_from(sorted(offsets)))) if offsets else set()
    assert set(without_dropped(offsets, existing)) == existing
    assert without_dropped({0: 1, 1: 2}, ()) == {0: 1, 1: 2}


def test_a_recreated_partition_has_its_own_offsets():
    first, second = (PartitionBucket("2024", uuid.uuid4(), 0) for _ in range(2))
    assert first != second
    assert partitions_of([first, second, 3]) == ["2024"]
