"""Rule I1: sparse indexes while a segment is written, and after a crash."""

import errno
import struct
from itertools import pairwise

import pytest

from simulator.disk import Fault, Tear
from simulator.log import batches_of

INTERVAL = 4096
BATCHES = 120


def files(world, disk, suffix):
    names = [name for name in disk.names(world.directory) if name.endswith(suffix)]
    return {int(name.removesuffix(suffix)): disk.contents(world.directory / name) for name in names}


def filled(world):
    """Batches of 700 bytes whose timestamps go up and down."""
    log = world.open(index_interval_bytes=INTERVAL, segment_bytes=40_000)
    for number in range(BATCHES):
        world.append(log, 2, value=b"v" * 300, at=world.clock.now_ms + (number % 7) * 1000 + number)
    return log


def check(world, disk):
    logs, offsets, times = (files(world, disk, suffix) for suffix in (".log", ".index", ".timeindex"))
    assert len(logs) > 1
    assert set(logs) == set(offsets) == set(times)
    for base, data in logs.items():
        entries = list(struct.iter_unpack(">ii", offsets[base]))
        assert len(entries) >= len(data) // (INTERVAL + 1400) - 1
        positions = [position for _, position in entries]
        assert all(after - before > INTERVAL for before, after in pairwise(positions))
        for relative, position in entries:
            start, last_delta = (
                *struct.unpack_from(">q", data, position),
                *struct.unpack_from(">i", data, position + 23),
            )
            assert start + last_delta == base + relative
        stamps = list(struct.iter_unpack(">qi", times[base]))
        assert stamps == sorted(set(stamps))
        assert [relative for _, relative in stamps] == sorted({relative for _, relative in stamps})
    return offsets, times


def test_i1_an_index_entry_every_interval_and_a_monotone_time_index(world):
    log = filled(world)
    log.close()
    check(world, world.disk)


def test_i1_a_truncation_cuts_the_indexes_too(world):
    log = filled(world)
    offset = log.segments[1].base_offset + 60
    log.truncate_to(offset)
    segment = log.segments[-1]
    assert len(segment.index)
    assert max(last_offset for last_offset, _ in segment.index) < offset
    assert max(last_offset for _, last_offset in segment.time_index) < offset


def test_i1_indexes_of_a_sealed_segment_are_as_durable_as_it_is(world):
    """Half a time index would look whole, and hide the largest timestamp from retention."""
    log = filled(world)
    log.flush()
    after = world.disk.restart(Tear.LOST)
    sealed = [segment.base_offset for segment in log.segments[:-1]]
    for suffix in (".index", ".timeindex"):
        kept = files(world, after, suffix)
        assert {base: kept.get(base) for base in sealed} == {
            base: files(world, world.disk, suffix)[base] for base in sealed
        }


def test_i1_indexes_that_could_not_be_written_are_not_those_of_before(world):
    log = world.open(index_interval_bytes=INTERVAL, segment_bytes=40_000)
    for number in range(20):
        world.append(log, 2, value=b"v" * 300, at=number)
    log.close()
    log = world.open(index_interval_bytes=INTERVAL, segment_bytes=40_000)
    world.append(log, 2, value=b"v" * 300, at=1000)
    world.disk.fail(Fault("write", errno.ENOSPC, suffix=".timeindex.tmp"))
    world.append(log, value=b"v" * 39_000, at=5)
    assert log.segment_count == 2
    log.flush()
    again = world.open(world.disk.restart(Tear.KEPT), index_interval_bytes=INTERVAL)
    assert again.max_timestamp()[:2] == (40, 1000)


def test_the_largest_timestamp_is_that_of_the_first_record_that_has_it(world):
    log = world.open(index_interval_bytes=INTERVAL, segment_bytes=40_000)
    now_ms = world.clock.now_ms
    for number in range(BATCHES):
        world.append(log, 2, value=b"v" * 300, at=now_ms + (5 if number in (7, 8, 80) else 0))
    assert log.segment_count > 2
    assert log.max_timestamp() == (14, now_ms + 5, 0)
    log.delete_records(16)
    assert log.max_timestamp() == (16, now_ms + 5, 0)
    log.delete_records(18)
    assert log.max_timestamp() == (160, now_ms + 5, 0)


@pytest.mark.parametrize("tear", list(Tear))
def test_i1_indexes_after_a_crash_are_as_after_a_clean_stop(world, tear):
    log = filled(world)
    log.flush()
    expected = batches_of(log)
    disk = world.disk.restart(tear)
    again = world.open(disk, index_interval_bytes=INTERVAL, segment_bytes=40_000)
    assert batches_of(again) == expected
    again.close()
    rebuilt = check(world, disk)
    log.close()
    assert rebuilt[0] == check(world, world.disk)[0]


def test_a_small_log_is_left_without_indexes_and_goes_on_with_right_ones(world, caplog) -> None:
    log = world.open(index_interval_bytes=500)
    for hour in range(2):
        world.append(log, value=bytes(50), at=world.clock.now_ms + hour)
    log.close()
    assert not {".index", ".timeindex", ".snapshot"} & {
        "." + name.rpartition(".")[2] for name in world.disk.names(world.directory)
    }
    for time in (0, 1, 5):
        log = world.open(index_interval_bytes=500)
        assert log.recovered.was_clean
        found = log.offset_for_timestamp(world.clock.now_ms + time)
        assert (None if found is None else found[0]) == (time if time < 2 else None)
        log.close()
    log = world.open(index_interval_bytes=500)
    for hour in range(2, 40):
        world.append(log, value=bytes(50), at=world.clock.now_ms + hour)
    log.close()
    names = world.disk.names(world.directory)
    assert {"00000000000000000000.index", "00000000000000000000.timeindex"} <= set(names)
    log = world.open(index_interval_bytes=500)
    assert [log.offset_for_timestamp(world.clock.now_ms + hour)[0] for hour in range(40)] == list(range(40))
    assert [offset for offset, _ in batches_of(log)] == list(range(40))
    assert "rebuilt" not in caplog.text
    log.close()


def test_a_small_log_that_has_had_indexes_writes_them_again(world) -> None:
    """Indexes of a longer log that was truncated must not stay."""
    log = world.open(index_interval_bytes=500)
    for hour in range(40):
        world.append(log, value=bytes(50), at=world.clock.now_ms + 1_000 + hour)
    log.close()
    log = world.open(index_interval_bytes=500)
    log.truncate_to(1)
    world.append(log, value=bytes(50), at=world.clock.now_ms)
    log.close()
    log = world.open(index_interval_bytes=500)
    assert log.offset_for_timestamp(world.clock.now_ms)[0] == 0
    assert log.max_timestamp()[:2] == (0, world.clock.now_ms + 1_000)
    log.close()
