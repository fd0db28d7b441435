"""The journal's records: Kafka's format in both directions, and their replay."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.cluster.journal_topic import partition_of
from headrace.broker.groups.journal.records import decode_record, encode_record
from headrace.broker.groups.journal.replay import Replay, live_records
from headrace.broker.groups.model.limits import Limits, Now
from headrace.broker.groups.model.records import (
    CommittedOffset,
    DropGroup,
    DropOffset,
    PutGroup,
    PutOffset,
    StoredGroup,
    StoredMember,
)
from headrace.protocol.errors import DecodeError

names = st.text(min_size=1, max_size=20)
int32s = st.integers(0, 2**31 - 1)
int64s = st.integers(0, 2**63 - 1)
offsets = st.builds(
    CommittedOffset,
    offset=int64s,
    leader_epoch=st.just(-1),
    metadata=st.text(max_size=30),
    commit_timestamp_ms=int64s,
    expire_timestamp_ms=st.one_of(st.just(-1), int64s),
)
members = st.builds(
    StoredMember,
    member_id=names,
    instance_id=st.one_of(st.none(), names),
    client_id=names,
    client_host=names,
    rebalance_timeout_ms=int32s,
    session_timeout_ms=int32s,
    subscription=st.binary(max_size=50),
    assignment=st.binary(max_size=50),
)
groups = st.builds(
    StoredGroup,
    group_id=names,
    protocol_type=st.text(max_size=10),
    generation=int32s,
    protocol=st.one_of(st.none(), names),
    leader=st.one_of(st.none(), names),
    state_timestamp_ms=int64s,
    members=st.lists(members, max_size=4).map(tuple),
)
records = st.one_of(
    st.builds(PutGroup, groups),
    st.builds(DropGroup, names),
    st.builds(PutOffset, names, names, int32s, offsets),
    st.builds(DropOffset, names, names, int32s),
)


@given(records)
def test_round_trip(record):
    assert decode_record(*encode_record(record)) == record


def test_leader_epoch_is_kept_in_version_3():
    record = PutOffset("g", "t", 0, CommittedOffset(1, leader_epoch=7))
    assert decode_record(*encode_record(record)) == record


def test_offset_commit_bytes_are_kafkas():
    key, value = encode_record(PutOffset("g", "topic", 3, CommittedOffset(42, 5, "m", 1_000)))
    assert key == struct.pack(">hh1sh5si", 1, 1, b"g", 5, b"topic", 3)
    assert value == struct.pack(">hqih1sq", 3, 42, 5, 1, b"m", 1_000)


def test_explicit_expiry_is_written_in_version_1():
    _, value = encode_record(PutOffset("g", "t", 0, CommittedOffset(42, -1, "", 1_000, 2_000)))
    assert value == struct.pack(">hqhqq", 1, 42, 0, 1_000, 2_000)


def test_group_bytes_are_kafkas():
    stored = StoredGroup("g", "consumer", 7, "range", "m", 99, ())
    key, value = encode_record(PutGroup(stored))
    assert key == struct.pack(">hh1s", 2, 1, b"g")
    assert value == struct.pack(">hh8sih5sh1sqi", 3, 8, b"consumer", 7, 5, b"range", 1, b"m", 99, 0)


def test_tombstones_have_no_value():
    assert encode_record(DropGroup("g"))[1] is None
    assert encode_record(DropOffset("g", "t", 0))[1] is None


@pytest.mark.parametrize("version", [4, 15, 30_000])
def test_records_of_other_kinds_are_skipped(version):
    assert decode_record(struct.pack(">h", version) + b"whatever", b"") is None


@pytest.mark.parametrize("key", [None, b"", b"\x00", struct.pack(">h", 1), struct.pack(">hh", 2, 9)])
def test_malformed_records_are_decode_errors(key):
    with pytest.raises(DecodeError):
        decode_record(key, b"\x00\x03")


# Java's results of Math.abs(group.hashCode()) % 50.
@pytest.mark.parametrize(
    ("group_id", "partition"),
    [("", 0), ("a", 47), ("my-group", 12), ("console-consumer-12345", 6), ("größe", 7)],
)
def test_partition_of_a_group_is_javas(group_id, partition):
    assert partition_of(group_id, 50) == partition


def test_partition_of_the_smallest_hash_is_zero():
    # The hashCode of this string is Integer.MIN_VALUE, whose abs is negative in Java.
    assert partition_of("polygenelubricants", 50) == 0


def test_hash_counts_utf16_units():
    assert partition_of("\U0001f600", 1 << 30) == (0xD83D * 31 + 0xDE00) % (1 << 30)


@given(st.lists(records, max_size=30), st.booleans())
def test_live_records_say_the_same_as_the_whole_journal(history, twice):
    """Rewriting loses nothing; a crash in the middle, which leaves records twice, changes nothing."""
    now = Now(0.0, 0)
    replay = Replay()
    replay.apply(history)
    groups = replay.groups(now, Limits())
    rewritten = Replay()
    if twice:
        rewritten.apply(history)
    for group in groups.values():
        rewritten.apply(live_records(group))
    assert rewritten.groups(now, Limits()) == groups
