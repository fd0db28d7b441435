"""Compaction: C1 and C2 one by one, then random programs against a dictionary, then a crash at every disk operation."""

import contextlib
import logging
import random
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.broker.log.compaction_plan import Step, cleanable, groups
from headrace.broker.log.compaction_run import Cleaning
from headrace.broker.log.errors import CleaningAbandoned, CleaningError, CorruptLogError
from headrace.broker.log.partition_log import AppendOrigin
from headrace.protocol.records.control import build_end_marker
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import TRANSACTIONAL_BIT, BatchHeader, iter_headers, verify_crc
from simulator.disk import Fault, SimulatedCrash, SimulatedDisk, Tear
from simulator.log import LogWorld, clean_log, records_of

CONFIG = {"cleanup_policy": ("compact",), "segment_bytes": 400, "index_interval_bytes": 100}
DAY_MS = 86_400_000


def put(world, log, *pairs, **options):
    """Append one batch of (key, value) pairs of strings; a value None is a tombstone."""
    records = [
        Record(key.encode(), None if value is None else value.encode(), (), world.clock.now_ms)
        for key, value in pairs
    ]
    origin = options.pop("origin", AppendOrigin.CLIENT)
    return log.append(build_batch(records, **options), leader_epoch=0, origin=origin)


def roll(world, log):
    """Let a new segment begin with the next batch, which is long and has a key of its own."""
    return put(world, log, ("filler", "f" * 310))


def headers_of(log) -> list[BatchHeader]:
    result, offset = [], log.log_start_offset
    while data := log.read(offset, 1 << 20, up_to=log.log_end_offset).read():
        for position, header in iter_headers(data):
            assert verify_crc(data, position)
            result.append(header)
            offset = header.next_offset
    return result


def pairs_of(log) -> list[tuple[int, str, str | None]]:
    return [
        (offset, key.decode(), None if value is None else value.decode())
        for offset, _, key, value in records_of(log)
        if key != b"filler"
    ]


def test_c1_the_last_value_of_a_key_stays_where_it_was(world):
    log = world.open(**CONFIG)
    put(world, log, ("a", "1"), ("b", "1"), ("a", "2"))
    put(world, log, ("c", "1"), ("b", "2"))
    put(world, log, ("d", "1"))
    roll(world, log)
    end_offset = log.log_end_offset
    assert clean_log(log, world.clock) == 6
    assert pairs_of(log) == [(2, "a", "2"), (3, "c", "1"), (4, "b", "2"), (5, "d", "1")]
    assert log.log_end_offset == end_offset
    first = headers_of(log)[0]
    assert (first.base_offset, first.last_offset, first.record_count) == (0, 2, 1)
    for offset in range(end_offset):  # also at offsets whose records are gone
        assert log.read(offset, 1 << 20, up_to=end_offset).size


def test_c1_the_active_segment_and_records_above_the_bound_stay(world):
    log = world.open(**CONFIG)
    put(world, log, ("a", "1"), ("a", "2"))
    roll(world, log)
    put(world, log, ("a", "3"), ("a", "4"))
    roll(world, log)
    put(world, log, ("a", "5"), ("a", "6"))
    before = pairs_of(log)
    assert clean_log(log, world.clock, bound=1) == 0
    assert pairs_of(log) == before
    assert clean_log(log, world.clock, bound=3) == 3
    assert [pair[2] for pair in pairs_of(log)] == ["2", "3", "4", "5", "6"]
    clean_log(log, world.clock)
    assert [pair[2] for pair in pairs_of(log)] == ["4", "5", "6"]


def test_c1_unsynced_segments_are_not_cleaned(world):
    log = world.open(**CONFIG)
    put(world, log, ("a", "1"), ("b", "1"))
    roll(world, log)
    log.flush()
    put(world, log, ("a", "2"))
    roll(world, log)
    now_ms = world.clock.now_ms
    assert log.recovery_point == 3
    part = cleanable(log, 0, log.log_end_offset, now_ms)
    assert part.end_offset == 3, "the segment that supersedes it could be lost with the power"
    assert clean_log(log, world.clock, flush=False) == 3
    log.flush()
    assert cleanable(log, 3, log.log_end_offset, now_ms).end_offset == 4


def test_c1_min_compaction_lag_keeps_young_records_and_max_makes_old_ones_due(world):
    log = world.open(**CONFIG, min_compaction_lag_ms=1000)
    put(world, log, ("a", "1"), ("a", "2"))
    roll(world, log)
    log.flush()
    assert cleanable(log, 0, 99, world.clock.now_ms).dirty_bytes == 0
    world.clock.now_ms += 1001
    part = cleanable(log, 0, 99, world.clock.now_ms)
    assert (part.end_offset, part.dirty_ratio, part.is_due) == (2, 1.0, False)
    log.reconfigure(log.config.__class__(**CONFIG, max_compaction_lag_ms=1000))
    assert cleanable(log, 0, 99, world.clock.now_ms).is_due
    assert not cleanable(log, 2, 99, world.clock.now_ms).is_due


def test_c1_segments_are_closed_no_later_than_max_compaction_lag(world):
    log = world.open(cleanup_policy=("compact",), max_compaction_lag_ms=500)
    put(world, log, ("a", "1"))
    world.clock.now_ms += 501
    put(world, log, ("a", "2"))
    assert log.segment_count == 2


def test_c1_the_last_batch_of_an_idempotent_producer_is_kept_empty(world):
    log = world.open(**CONFIG)
    mine = {"producer_id": 7, "producer_epoch": 0}
    put(world, log, ("a", "1"), **mine, base_sequence=0)
    put(world, log, ("a", "2"), ("b", "2"), **mine, base_sequence=1)
    put(world, log, ("a", "3"), ("b", "3"))
    roll(world, log)
    clean_log(log, world.clock)
    kept = [header for header in headers_of(log) if header.producer_id == 7]
    assert [(h.base_offset, h.last_offset, h.record_count, h.base_sequence) for h in kept] == [(1, 2, 0, 1)]
    log.close(clean=False)
    world.disk.remove(world.directory / "00000000000000000005.snapshot")
    log = world.open(**CONFIG)
    retry = put(world, log, ("a", "2"), ("b", "2"), **mine, base_sequence=1)
    assert (retry.duplicate, retry.base_offset) == (True, 1)
    put(world, log, ("a", "4"), **mine, base_sequence=3)


def test_c1_the_log_ends_where_it_ended_even_if_its_last_records_went(world):
    log = world.open(**CONFIG, delete_retention_ms=0)
    put(world, log, ("a", "1"))
    put(world, log, ("a", None))
    roll(world, log)
    clean_log(log, world.clock)
    world.clock.now_ms += 1
    clean_log(log, world.clock)
    assert pairs_of(log) == []
    log.flush()
    disk = world.disk.restart(Tear.LOST)
    disk.remove(
        world.directory / "00000000000000000002.log"
    )  # the written segment, in a state that a power cut may leave
    again = world.open(disk, **CONFIG)
    assert again.log_end_offset == 2


def test_c1_records_without_a_key_of_a_topic_that_was_not_compacted_go(world):
    log = world.open(segment_bytes=400)
    log.append(build_batch([Record(None, b"old"), Record(b"k", b"v")]), leader_epoch=0)
    log.reconfigure(log.config.__class__(**CONFIG))
    roll(world, log)
    clean_log(log, world.clock)
    assert pairs_of(log) == [(1, "k", "v")]


def test_c2_a_tombstone_stays_for_delete_retention_after_it_was_first_cleaned(world):
    log = world.open(**CONFIG, delete_retention_ms=1000)
    put(world, log, ("a", "1"), ("b", "1"), ("a", None))
    roll(world, log)
    world.clock.now_ms += 5 * DAY_MS  # its age before it was cleaned does not count
    stamps = [row[1] for row in records_of(log)]
    clean_log(log, world.clock)
    first = headers_of(log)[0]
    assert first.attributes & 0x40
    assert first.base_timestamp == world.clock.now_ms + 1000
    assert pairs_of(log) == [(1, "b", "1"), (2, "a", None)]
    assert [row[1] for row in records_of(log)] == [stamps[1], stamps[2], stamps[3]], (
        "times are the records' own"
    )
    assert log.offset_for_timestamp(stamps[0])[:2] == (1, stamps[1])
    world.clock.now_ms += 999
    clean_log(log, world.clock)
    assert pairs_of(log) == [(1, "b", "1"), (2, "a", None)]
    assert headers_of(log)[0].base_timestamp == first.base_timestamp
    world.clock.now_ms += 1
    clean_log(log, world.clock)
    assert pairs_of(log) == [(1, "b", "1")]


def transaction(world, log, producer_id, *pairs, commit: bool):
    """Append one transaction with its marker; return the marker's offset."""
    mine = {"producer_id": producer_id, "producer_epoch": 0}
    put(world, log, *pairs, attributes=TRANSACTIONAL_BIT, base_sequence=0, **mine)
    end = build_end_marker(
        producer_id=producer_id,
        producer_epoch=0,
        commit=commit,
        coordinator_epoch=3,
        timestamp_ms=world.clock.now_ms,
    )
    return log.append(end, leader_epoch=0, origin=AppendOrigin.COORDINATOR).base_offset


@pytest.mark.parametrize("known", [False, True], ids=["forgotten producers", "known producers"])
def test_c2_aborted_data_goes_and_markers_follow_their_data(world, known, monkeypatch):
    log = world.open(**CONFIG, delete_retention_ms=1000)
    put(world, log, ("a", "1"))
    aborted = transaction(world, log, 5, ("a", "2"), ("z", "2"), commit=False)
    committed = transaction(world, log, 6, ("b", "3"), commit=True)
    put(world, log, ("b", "4"))
    roll(world, log)
    if not known:
        monkeypatch.setattr(type(log), "last_of_producers", lambda self: {})

    def markers() -> list[int]:
        return [header.base_offset for header in headers_of(log) if header.is_control]

    end = clean_log(log, world.clock)
    assert [pair for pair in pairs_of(log) if len(pair[1]) == 1] == [(0, "a", "1"), (6, "b", "4")]
    assert markers() == [aborted, committed], "the data was still there when the markers were passed"
    assert [h.base_timestamp for h in headers_of(log) if h.attributes & 0x40] == []
    clean_log(log, world.clock)
    assert markers() == [aborted, committed]
    horizons = [h.base_timestamp for h in headers_of(log) if h.attributes & 0x40]
    # An empty batch with a producer's last sequence number keeps its transaction open without the marker.
    assert horizons == ([] if known else [world.clock.now_ms + 1000] * 2)
    world.clock.now_ms += 1000
    assert clean_log(log, world.clock) == end
    assert markers() == ([aborted, committed] if known else [])
    log.close(clean=False)
    for name in world.disk.names(world.directory):
        if name.endswith(".snapshot"):
            world.disk.remove(world.directory / name)
    log = world.open(**CONFIG)
    assert log.first_unstable_offset is None


def test_c2_a_transaction_that_is_open_is_not_touched(world):
    log = world.open(**CONFIG)
    put(world, log, ("a", "1"), ("a", "2"))
    mine = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0}
    put(world, log, ("a", "3"), attributes=TRANSACTIONAL_BIT, **mine)
    put(world, log, ("a", "4"))
    roll(world, log)
    assert clean_log(log, world.clock, bound=log.first_unstable_offset) == 0


def test_c2_compact_and_delete_does_both(world):
    log = world.open(**{**CONFIG, "cleanup_policy": ("compact", "delete")}, retention_ms=DAY_MS)
    put(world, log, ("a", "1"), ("a", "2"))
    roll(world, log)
    clean_log(log, world.clock)
    assert pairs_of(log) == [(1, "a", "2")]
    world.clock.now_ms += DAY_MS + 1
    put(world, log, ("b", "1"))
    assert log.delete_old_segments(world.clock.now_ms, log.log_end_offset) > 0
    assert pairs_of(log) == [(3, "b", "1")]
    log.reconfigure(log.config.__class__(**CONFIG, retention_ms=1, retention_bytes=1))
    roll(world, log)
    assert log.delete_old_segments(world.clock.now_ms + 99, log.log_end_offset) == 0


def test_a_map_that_is_full_cleans_a_part_and_goes_on_next_time(world):
    log = world.open(**{**CONFIG, "segment_bytes": 4000})
    for i in range(300):
        put(world, log, (f"k{i % 150}", str(i)))
    put(world, log, ("filler", "f" * 3900))
    before = dict(pair[1:] for pair in pairs_of(log))
    first = clean_log(log, world.clock, memory_bytes=1)
    assert 0 < first < 150
    at = first
    while (following := clean_log(log, world.clock, at, memory_bytes=1)) > at:
        at = following
    assert dict(pair[1:] for pair in pairs_of(log)) == before
    assert len(pairs_of(log)) == len(before), "no part was left out in between"
    many = put(world, log, *[(f"n{i}", "") for i in range(90)])
    put(world, log, ("filler", "f" * 3900))
    put(world, log, ("filler", "f" * 3900))
    with pytest.raises(CleaningError, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        clean_log(log, world.clock, many.base_offset, memory_bytes=1)


def test_a_log_that_changes_during_cleaning_is_left_alone(world):
    log = world.open(**CONFIG)
    put(world, log, ("a", "1"), ("a", "2"))
    roll(world, log)
    put(world, log, ("a", "3"), ("a", "4"))
    roll(world, log)
    log.flush()
    part = cleanable(log, 0, log.log_end_offset, world.clock.now_ms)
    cleaning = Cleaning(log, part, now_ms=world.clock.now_ms, memory_bytes=1 << 16, secret=bytes(16))
    steps = cleaning.steps()
    for step in steps:
        if step is Step.OWNER:
            log.delete_records(3)
            break
    with pytest.raises(CleaningAbandoned):
        for _ in steps:
            pass
    assert [pair[2] for pair in pairs_of(log)] == ["3", "4"]
    names = world.disk.names(world.directory)
    assert not [name for name in names if name.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("when", [1, 2])
def test_a_log_that_was_closed_meanwhile_is_left_alone(world, when):
    """Another log may have been opened in its place."""
    log = world.open(**CONFIG)
    put(world, log, ("a", "1"), ("a", "2"))
    roll(world, log)
    put(world, log, ("a", "3"))
    log.flush()
    part = cleanable(log, 0, log.log_end_offset, world.clock.now_ms)
    steps = Cleaning(log, part, now_ms=world.clock.now_ms, memory_bytes=1 << 16, secret=bytes(16)).steps()
    owner_steps = (step for step in steps if step is Step.OWNER)
    for _ in range(when):
        next(owner_steps)
    log.close()
    with pytest.raises(CleaningAbandoned):
        next(owner_steps)
    again = world.open(**CONFIG)
    assert [pair[2] for pair in pairs_of(again)] == ["1", "2", "3"]
    assert not [name for name in world.disk.names(world.directory) if name.endswith((".cleaned", ".swap"))]


def test_a_log_does_not_end_before_what_was_compacted(world):
    """The rule holds whatever is left of the log: an offset is never assigned again."""
    log = world.open(**CONFIG)
    put(world, log, ("a", "1"), ("a", "2"))
    log.flush()
    log.note_compaction(7)
    for tear in (Tear.LOST, Tear.KEPT):
        again = world.open(world.disk.restart(tear), **CONFIG)
        assert again.log_end_offset == 7
        assert put(world, again, ("a", "3")).base_offset == 7
        assert [pair[0] for pair in pairs_of(again)] == [0, 1, 7]


def test_a_segment_that_did_not_reach_the_disk_as_it_was_written_replaces_nothing(world, monkeypatch):
    log = world.open(**CONFIG)
    put(world, log, ("a", "1"), ("a", "2"))
    roll(world, log)
    before, open_read_only = pairs_of(log), world.disk.open_read_only

    def open_damaged(path):
        if path.name.endswith(".log.cleaned"):
            world.disk.corrupt(path, 65, 1)
        return open_read_only(path)

    monkeypatch.setattr(world.disk, "open_read_only", open_damaged)
    with pytest.raises(CleaningError, match="differs from what was written"):
        clean_log(log, world.clock)
    assert pairs_of(log) == before


def test_a_decided_segment_that_cannot_be_read_is_reported_and_what_it_replaces_stays(world):
    log = world.open(**CONFIG)
    put(world, log, ("a", "1"), ("a", "2"))
    log.flush()
    path = log.segments[0].path
    content = bytearray(world.disk.contents(path))
    content[70] ^= 1
    world.disk.replace(path.with_name(path.name + ".swap"), bytes(content), sync=True)
    with pytest.raises(CorruptLogError, match=r"\.log\.swap is damaged"):
        world.open(**CONFIG)
    assert path.name in world.disk.names(world.directory)


def test_neighbours_are_joined_up_to_the_size_of_a_segment():
    sizes = [40, 40, 20, 90, 10, 10, 100, 1]
    segments = [
        SimpleNamespace(size=size, base_offset=at, end_offset=at + 1) for at, size in enumerate(sizes)
    ]
    assert [[segment.size for segment in group] for group in groups(segments, 100)] == [
        [40, 40, 20],
        [90, 10],
        [10],
        [100],
        [1],
    ]
    far = [
        SimpleNamespace(size=1, base_offset=at, end_offset=at + 1) for at in (0, 1 << 30, 1 << 31, 1 << 32)
    ]
    assert [len(group) for group in groups(far, 100)] == [2, 1, 1]


def test_a_full_disk_stops_the_cleaning_and_nothing_else(world):
    log = world.open(**CONFIG)
    for i in range(20):
        put(world, log, ("a", str(i)), ("b", str(i)))
    put(world, log, ("c", "1"))
    state = dict(pair[1:] for pair in pairs_of(log))
    world.disk.fail(Fault("write", 28, suffix=".cleaned", partial=True))
    with pytest.raises(OSError, match="space"):
        clean_log(log, world.clock)
    assert dict(pair[1:] for pair in pairs_of(log)) == state
    assert not [name for name in world.disk.names(world.directory) if name.endswith(".cleaned")]
    clean_log(log, world.clock)
    assert len(pairs_of(log)) < 10


# -- against an oracle -----------------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b", "c", "d", "e", "longer key " * 3])
VALUES = st.one_of(st.none(), st.text(max_size=40))
PROGRAMS = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"), st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=5), st.integers(0, 4)
        ),
        st.tuples(
            st.just("put"), st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=5), st.integers(0, 4)
        ),
        st.tuples(st.just("clean"), st.sampled_from([1, 1 << 16]), st.integers(0, 12)),
        st.tuples(st.just("wait"), st.sampled_from([1, 500, 1000, 5000])),
        st.tuples(st.just("restart"), st.booleans()),
    ),
    max_size=40,
)


@dataclass
class Model:
    """All records ever appended, and the time of the first cleaning of each tombstone."""

    records: list[tuple[int, int, bytes, bytes | None]] = field(default_factory=list)

    def state(self) -> dict[bytes, bytes]:
        state = {key: value for _, _, key, value in self.records}
        return {key: value for key, value in state.items() if value is not None}

    def latest(self) -> dict[bytes, int]:
        return {key: offset for offset, _, key, _ in self.records}


def check(log, model: Model, cleaned_to: int, now_ms: int, retention_ms: int) -> None:
    found = records_of(log)
    everything = {row[0]: row for row in model.records}
    assert [row[0] for row in found] == sorted({row[0] for row in found})
    assert all(everything[row[0]] == row for row in found), "a record stays what and where it was"
    state = {key: value for _, _, key, value in found}
    assert {key: value for key, value in state.items() if value is not None} == model.state()
    assert log.log_end_offset == len(model.records)
    there = {row[0] for row in found}
    latest = model.latest()
    for offset, stamp, key, value in model.records:
        if value is None and latest[key] == offset and stamp + retention_ms > now_ms:
            assert offset in there, "a tombstone that is younger than its retention is there"
    superseded = {}
    for offset, _, key, _ in model.records[:cleaned_to]:
        if key in superseded:
            assert superseded[key] not in there, "superseded records of the cleaned part are gone"
        superseded[key] = offset


@given(PROGRAMS)
@settings(max_examples=60, deadline=None)
def test_c1_random_programs_against_a_dictionary(program):
    world, model, cleaned_to = LogWorld(), Model(), 0
    config = {**CONFIG, "delete_retention_ms": 1000}
    log = world.open(**config)
    for step, *arguments in program:
        if step == "put":
            pairs, codec = arguments
            put(world, log, *pairs, compression=codec)
            for key, value in pairs:
                encoded = None if value is None else value.encode()
                model.records.append((len(model.records), world.clock.now_ms, key.encode(), encoded))
        elif step == "clean":
            memory, above = arguments
            bound = max(0, log.log_end_offset - above)
            cleaned_to = clean_log(log, world.clock, cleaned_to, memory_bytes=memory, bound=bound)
        elif step == "wait":
            world.clock.now_ms += arguments[0]
        else:
            log.close(clean=arguments[0])
            log = world.open(**config)
        check(log, model, cleaned_to, world.clock.now_ms, 1000)


@dataclass
class History:
    model: Model = field(default_factory=Model)
    acked: int = 0
    durable: int = 0


def workload(world: LogWorld, disk: SimulatedDisk, history: History, config: dict) -> None:
    log, cleaned_to = world.open(disk, background=lambda work: work(), **config), 0
    for i in range(34):
        pairs = [(f"k{(i * j) % 7}", None if (i + j) % 5 == 0 else f"value {i}.{j}") for j in range(1, 4)]
        if i % 3 == 0:
            pairs[0] = (f"only {i}", "kept")  # so that cleaned segments are small and joined later
        for key, value in pairs:
            encoded = None if value is None else value.encode()
            row = (len(history.model.records), world.clock.now_ms, key.encode(), encoded)
            history.model.records.append(row)
        put(world, log, *pairs, compression=i % 5)
        history.acked = log.log_end_offset
        world.clock.now_ms += 10
        if i in (10, 17, 24, 31):
            cleaned_to = clean_log(log, world.clock, cleaned_to, flush=i != 17)
            history.durable = log.log_end_offset if i != 17 else history.durable
        if i == 20:
            log.close()
            history.durable = history.acked
            log = world.open(disk, background=lambda work: work(), **config)
    log.close()


def recovered(world: LogWorld, disk: SimulatedDisk, was_kept: bool, rng: random.Random, config: dict):
    """Return the log after a crash, and mostly after another one in the middle of its recovery."""
    while rng.random() < 0.6:
        disk.crash_at = disk.operations + rng.randint(1, 8)
        try:
            log = world.open(disk, **config)
        except SimulatedCrash:
            tear = rng.choice([Tear.KEPT, Tear.LOST, Tear.TORN])
            disk, was_kept = disk.restart(tear), was_kept and tear is Tear.KEPT
            continue
        disk.crash_at = None
        return log, disk, was_kept
    return world.open(disk, **config), disk, was_kept


@pytest.mark.parametrize(
    "tear",
    [pytest.param(tear, marks=() if tear is Tear.TORN else pytest.mark.soak, id=tear.value) for tear in Tear],
)
def test_c1_a_crash_at_every_disk_operation(tear, monkeypatch):
    monkeypatch.setattr(logging.getLogger("headrace.log"), "disabled", True)
    config = {**CONFIG, "delete_retention_ms": 100, "segment_bytes": 500}
    world, history = LogWorld(), History()
    first = world.disk.operations + 1
    workload(world, world.disk, history, config)
    total = world.disk.operations
    swaps = 0
    for crash_at in range(first + list(Tear).index(tear) % 3, total + 1, 3):
        world, history = LogWorld(), History()
        world.disk.crash_at = crash_at
        with pytest.raises(SimulatedCrash):
            workload(world, world.disk, history, config)
        swaps += check_after_crash(world, history, config, tear, random.Random(crash_at))
    assert swaps or tear is Tear.LOST


def check_after_crash(world, history, config, tear, rng) -> bool:
    """Check the log after a crash; return whether a swap was under way."""
    disk = world.disk.restart(tear)
    swap = any(name.endswith(".swap") for name in disk.names(world.directory))
    try:
        log, disk, was_kept = recovered(world, disk, tear is Tear.KEPT, rng, config)
    except CorruptLogError:
        assert tear is Tear.HOLES, "only sectors that arrived out of order look like damage in the middle"
        return swap
    end = log.log_end_offset
    assert end >= (history.acked if was_kept else history.durable)
    model = Model(history.model.records[:end])
    assert [row[0] for row in records_of(log)] == sorted({row[0] for row in records_of(log)})
    everything = {row[0]: row for row in model.records}
    assert all(everything[row[0]] == row for row in records_of(log))
    assert_apart(log)
    state = {row[2]: row[3] for row in records_of(log)}
    assert {key: value for key, value in state.items() if value is not None} == model.state()
    clean_log(log, world.clock)
    state = {row[2]: row[3] for row in records_of(log)}
    assert {key: value for key, value in state.items() if value is not None} == model.state()
    assert not [name for name in disk.names(world.directory) if name.endswith((".cleaned", ".swap"))]
    log.close()
    assert world.open(disk, **config).log_end_offset == end
    return swap


def merged_world(crash_at: int | None = None):
    """Three segments that a cleaning has made small, and then one that joins them; and the remaining records."""
    world = LogWorld()
    log = world.open(background=lambda work: work(), **CONFIG)
    for i in range(3):
        put(world, log, ("a", f"a{i}"), ("b", f"b{i}"), (f"only {i}", "kept"))
        roll(world, log)
    log.flush()
    clean_log(log, world.clock)
    put(world, log, ("a", "last"), ("b", "last"))
    roll(world, log)
    log.flush()
    before = world.disk.operations
    world.disk.crash_at = None if crash_at is None else before + crash_at
    with contextlib.suppress(SimulatedCrash):
        clean_log(log, world.clock)
    return world, world.disk.operations - before


def assert_apart(log) -> None:
    """Check that no two segments hold the same record."""
    for segment, following in pairwise(log.segments):
        if segment.size:
            *_, (_, last) = segment.headers(0)
            assert last.last_offset < following.base_offset, f"{segment} and {following}"


def test_c1_a_power_cut_while_segments_are_exchanged_leaves_the_old_ones_or_the_new_one(monkeypatch):
    monkeypatch.setattr(logging.getLogger("headrace.log"), "disabled", True)
    world, total = merged_world()
    log = world.open(world.disk.restart(Tear.KEPT), **CONFIG)
    expected = {key: value for _, _, key, value in records_of(log)}
    assert len(expected) == 6
    swaps = 0
    for crash_at in range(1, total + 1):
        world, _ = merged_world(crash_at)
        for seed in range(8):
            rng = random.Random(seed)
            disk = world.disk.restart(rng.choice([Tear.LOST, *[Tear.TORN] * 3]))
            swaps += any(name.endswith(".swap") for name in disk.names(world.directory))
            log, disk, _ = recovered(world, disk, False, rng, CONFIG)
            assert {key: value for _, _, key, value in records_of(log)} == expected
            assert_apart(log)
            log.close(clean=seed % 2 == 0)
            again = world.open(disk, **CONFIG)
            assert_apart(again)
            assert {key: value for _, _, key, value in records_of(again)} == expected
    assert swaps > total


def test_c1_a_power_cut_while_an_exchange_is_finished_at_open_does_no_harm(monkeypatch):
    monkeypatch.setattr(logging.getLogger("headrace.log"), "disabled", True)
    decided = None
    for crash_at in range(1, merged_world()[1]):
        world, _ = merged_world(crash_at)
        disk = world.disk.restart(Tear.LOST)
        if any(name.endswith(".swap") for name in disk.names(world.directory)):
            decided = disk.restart(Tear.LOST)
            break
    assert decided is not None
    whole = decided.restart(Tear.LOST)
    log = world.open(whole, **CONFIG)
    total = whole.operations
    expected = records_of(log)
    for crash_at in range(1, total + 1):
        disk = decided.restart(Tear.LOST)
        disk.crash_at = crash_at
        with pytest.raises(SimulatedCrash):
            world.open(disk, **CONFIG)
        for _ in range(40):
            log = world.open(disk.restart(Tear.TORN), **CONFIG)
            assert records_of(log) == expected
            assert_apart(log)
