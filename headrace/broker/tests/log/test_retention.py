"""Retention: what is deleted and when (R1), the cost of opening and idling, and data that a running read keeps."""

import errno
import itertools
import os
import threading
from pathlib import Path

import pytest

from headrace.broker.log.config import LogConfig
from headrace.broker.log.epochs import LeaderEpochs
from headrace.broker.log.partition_log import AppendOrigin, PartitionLog
from headrace.broker.runtime.ports import SystemClock
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import read_header
from simulator.disk import Fault, SimulatedCrash, Tear
from simulator.log import batches_of

HOUR_MS = 3_600_000


def three_segments(world, **config):
    """Segments of two batches, one hour apart."""
    log = world.open(segment_bytes=2 * len(world.batch()) + 10, **config)
    for _ in range(3):
        for _ in range(2):
            world.append(log)
        world.clock.now_ms += HOUR_MS
    assert log.segment_count == 3
    return log


def test_r1_retention_by_age_deletes_whole_segments_oldest_first(world):
    log = three_segments(world, retention_ms=2 * HOUR_MS)
    now = world.clock.now_ms
    assert log.delete_old_segments(now, 6) == 1
    assert (log.log_start_offset, log.segment_count) == (2, 2)
    assert log.delete_old_segments(now, 6) == 0  # the next one is at the age limit, not above it
    assert log.log_start_offset == 2
    assert log.delete_old_segments(now + 1, 6) == 1
    assert log.log_start_offset == 4
    with pytest.raises(KafkaError) as error:
        log.read(1, 100, up_to=6)
    assert error.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_r1_one_late_record_keeps_its_segment_and_all_after_it(world):
    log = world.open(segment_bytes=2 * len(world.batch()) + 10, retention_ms=HOUR_MS)
    start = world.clock.now_ms
    for at in (start + HOUR_MS // 2, start, start, start, start):
        world.append(log, at=at)
    assert log.delete_old_segments(start + HOUR_MS + 1, 5) == 0
    assert log.delete_old_segments(start + 2 * HOUR_MS, 5) == 3


def test_r1_never_past_the_high_watermark_or_the_floor(world):
    log = three_segments(world, retention_ms=0)
    later = world.clock.now_ms + HOUR_MS
    assert log.delete_old_segments(later, 1) == 0
    assert log.delete_old_segments(later, 6, floor=3) == 1
    assert log.log_start_offset == 2
    assert log.delete_old_segments(later, 5, floor=6) == 1
    assert log.log_start_offset == 4


def test_r1_when_everything_is_old_the_log_is_empty_and_its_offsets_go_on(world):
    log = three_segments(world, retention_ms=0)
    assert log.delete_old_segments(world.clock.now_ms + 1, 6) == 3
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (6, 6, 0)
    assert not [name for name in world.disk.names(world.directory) if name.endswith(".log")]
    for disk in (world.disk.restart(Tear.LOST), world.disk.restart(Tear.KEPT)):
        again = world.open(disk)
        assert (again.log_start_offset, again.log_end_offset) == (6, 6)
    log.close()
    assert world.append(world.open()).base_offset == 6


def test_r1_retention_by_size_keeps_at_least_the_configured_size(world):
    log = three_segments(world, retention_ms=-1, retention_bytes=2 * len(world.batch()))
    assert log.delete_old_segments(world.clock.now_ms, 6) == 2
    assert log.log_start_offset == 4


def test_r1_retention_by_size_keeps_a_segment_that_is_partly_needed(world):
    log = three_segments(world, retention_ms=-1, retention_bytes=4 * len(world.batch()) + 1)
    assert log.delete_old_segments(world.clock.now_ms, 6) == 0
    log.reconfigure(LogConfig(retention_ms=-1, retention_bytes=4 * len(world.batch())))
    assert log.delete_old_segments(world.clock.now_ms, 6) == 1


def test_records_without_a_timestamp_age_from_their_arrival(world):
    log = world.open(retention_ms=HOUR_MS)
    world.append(log, at=-1)
    assert log.delete_old_segments(world.clock.now_ms + HOUR_MS, 1) == 0
    assert log.delete_old_segments(world.clock.now_ms + HOUR_MS + 1, 1) == 1


def test_no_limits_keep_everything(world):
    log = three_segments(world, retention_ms=-1)
    assert log.delete_old_segments(world.clock.now_ms + 10**12, 6) == 0


def test_segments_roll_by_record_time(world):
    log = world.open(segment_ms=HOUR_MS)
    start = world.clock.now_ms
    for at in (start, start + HOUR_MS, start + HOUR_MS + 1):
        world.clock.now_ms = at
        world.append(log)
    assert log.segment_count == 2


def test_jitter_closes_segments_earlier_and_never_later(world):
    log = world.open(segment_ms=HOUR_MS, segment_jitter_ms=HOUR_MS // 2)
    start, spans = world.clock.now_ms, []
    for minute in range(12 * 60):
        world.clock.now_ms = start + minute * 60_000
        world.append(log)
        if log.segment_count > len(spans) + 1:
            spans.append(log.segments[-1].first_timestamp - log.segments[-2].first_timestamp)
    assert len(set(spans)) > 3
    assert HOUR_MS // 2 <= min(spans) < max(spans) <= HOUR_MS + 60_000


def test_segments_roll_when_the_index_is_full(world):
    log = world.open(index_interval_bytes=0, segment_index_bytes=80)
    for _ in range(40):
        world.append(log)
    assert 4 <= log.segment_count <= 8


def test_delete_records_survives_and_never_goes_back(world):
    log = three_segments(world)
    log.delete_records(3)
    assert (log.log_start_offset, log.segment_count) == (3, 2)
    log.delete_records(1)
    assert log.log_start_offset == 3
    with pytest.raises(KafkaError) as error:
        log.delete_records(7)
    assert error.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    for tear in (Tear.LOST, Tear.KEPT):
        assert world.open(world.disk.restart(tear)).log_start_offset == 3


def test_deleted_files_wait_elsewhere_for_their_delay_and_are_nothing_to_the_log(world):
    later = []
    log = three_segments(
        world, discard=lambda *file: later.append(file), retention_ms=0, file_delete_delay_ms=5
    )
    log.delete_old_segments(world.clock.now_ms, 2)
    log.reconfigure(LogConfig(retention_ms=0, file_delete_delay_ms=7))
    log.delete_old_segments(world.clock.now_ms, 4)
    stem = f"{world.directory}/{0:020d}"
    assert later == [(Path(f"{stem}.log.deleted"), 5), (Path(f"{stem[:-1]}2.log.deleted"), 7)]
    assert waiting(world.disk, world.directory) == [path.name for path, _ in later]
    assert [name for name in world.disk.names(world.directory) if name.startswith(later[0][0].name[:20])] == [
        later[0][0].name
    ], "of the indexes nothing stays"
    log.flush()
    for tear in (Tear.LOST, Tear.KEPT):
        disk = world.disk.restart(tear)
        again = world.open(disk)
        assert again.log_start_offset == 4
        assert set(waiting(disk, world.directory)) <= {path.name for path, _ in later}
        again.close()
        assert world.open(disk).recovered.was_clean, "waiting files are no longer part of the log"
    log.delete()
    assert not world.disk.names(world.directory)


def waiting(disk, directory):
    return sorted(name for name in disk.names(directory) if name.endswith(".deleted"))


def test_deleting_the_log_leaves_only_what_is_not_its_own(world):
    log = three_segments(world)
    log.close()
    world.disk.replace(world.directory / "partition.metadata", b"someone else's", sync=True)
    world.open().delete()
    assert world.disk.names(world.directory) == ["partition.metadata"]


# -- costs ---------------------------------------------------------------------------------------------------


def test_opening_a_cleanly_closed_log_reads_two_small_files_and_nothing_of_the_log(world):
    log = three_segments(world)
    log.close()
    for _ in range(2):
        world.disk.calls.clear()
        log = world.open()
        assert log.recovered.was_clean
        assert log.log_end_offset == 6
        assert world.disk.calls.get("view", 0) == 0
        assert world.disk.calls["read"] <= 2
        assert world.disk.calls["names"] == 1
        log.close()
        assert sum(world.disk.calls.get(kind, 0) for kind in ("write", "sync", "rename", "create")) == 0


def written_back(world):
    """A disk on which all writes have arrived in time, as a system does by itself after a while."""
    for name in world.disk.names(world.directory):
        world.disk.open_read_only(world.directory / name).sync()
    world.disk.sync_directory(world.directory)


@pytest.mark.parametrize("change", ["another file", "a longer file", "a missing file"])
def test_a_clean_close_marker_counts_only_with_its_listed_files_and_sizes(world, change):
    log = three_segments(world)
    last = log.segments[-1].path
    log.close()
    assert world.open().recovered.was_clean
    if change == "another file":
        world.disk.replace(last.with_name(f"{6:020d}.log"), batch_at(world, 6), sync=True)
    elif change == "a longer file":
        world.disk.replace(last, world.disk.contents(last) + batch_at(world, 6), sync=True)
    else:
        world.disk.remove(last)
    again = world.open()
    assert not again.recovered.was_clean
    assert again.log_end_offset == (4 if change == "a missing file" else 7)


def batch_at(world, offset):
    return offset.to_bytes(8, "big") + world.batch()[8:]


def test_a_clean_close_marker_restored_by_a_power_cut_hides_no_records(world):
    log = three_segments(world)
    log.close()
    written_back(world)
    log = world.open()
    world.append(log)
    log.commit()
    disk = world.disk.restart(Tear.LOST)
    assert "clean-shutdown" in disk.names(world.directory)
    assert world.open(disk).log_end_offset == 7


def test_a_clean_close_marker_restored_by_a_power_cut_restores_no_records(world):
    log = three_segments(world)
    log.close()
    written_back(world)
    log = world.open()
    log.delete_records(1)
    disk = world.disk.restart(Tear.LOST)
    assert "clean-shutdown" in disk.names(world.directory)
    assert world.open(disk).log_start_offset == 1


def test_an_empty_log_costs_no_file(world):
    before = world.disk.operations
    for _ in range(3):
        log = world.open()
        log.assign_epoch(4)
        log.flush()
        log.close()
    assert world.disk.operations == before


def test_reads_at_the_tail_and_in_sequence_do_not_search(world):
    log = world.open(index_interval_bytes=200)
    for _ in range(100):
        world.append(log)
    world.disk.calls.clear()
    for offset in range(90, 100):
        assert log.read(offset, 1 << 20, up_to=100).size
    assert "read" not in world.disk.calls
    offset = 0
    sizes = []
    while offset < 60:
        world.disk.calls.clear()
        found = log.read(offset, 300, up_to=100)
        sizes.append(world.disk.calls.get("read", 0))
        offset += found.size // len(world.batch())
    assert max(sizes[1:]) <= 6, "a few reads to find the end, none to find the beginning"


def test_read_positions_are_forgotten_at_a_truncation(world):
    log = world.open()
    for _ in range(6):
        offset = world.append(log, value=b"x" * 50).base_offset
        log.read(offset, 1, up_to=offset + 1)
    log.truncate_to(2)
    for i in range(70):  # more than the number of recent appends that are kept
        world.append(log, value=b"y" * (i + 100))
    for offset in (6, 5, 4, 3, 2):  # in ascending order each read would repair the next one's lookup
        data = log.read(offset, 1, up_to=72).read()
        assert read_header(data).base_offset == offset


def test_a_region_outlives_its_segment_and_its_log(tmp_path):
    clock = SystemClock()
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(segment_bytes=200), clock=clock)
    batch = build_batch([Record(None, b"x" * 100, (), clock.time_ms())])
    for _ in range(4):
        log.append(batch, leader_epoch=0)
    found = log.read(0, 1 << 20, up_to=4)
    reader, writer = os.pipe()
    try:
        log.delete()
        assert list(tmp_path.iterdir()) == []
        sent = os.sendfile(writer, found.region.fileno(), found.region.position, found.region.size)
        assert os.read(reader, sent) == found.read()
        assert found.read()[16:] == batch[16:]
    finally:
        os.close(reader)
        os.close(writer)


def test_files_are_closed_with_the_log(tmp_path):
    def open_files() -> int:
        return sum(1 for name in Path("/proc/self/fd").iterdir() if str(tmp_path) in os.path.realpath(name))

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    clock = SystemClock()
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(segment_bytes=200), clock=clock)
    batch = build_batch([Record(None, b"x" * 100, (), clock.time_ms())])
    for _ in range(40):
        log.append(batch, leader_epoch=0)
    for offset in range(40):
        log.read(offset, 1, up_to=40).read()
    assert 1 <= open_files() <= 6
    log.close()
    assert open_files() == 0


def test_flushing_from_another_thread_while_appending(tmp_path):
    clock = SystemClock()
    config = LogConfig(segment_bytes=20_000)
    stop = threading.Event()

    def flush() -> None:
        while not stop.is_set():
            log.flush()

    log = PartitionLog.open(tmp_path / "t-0", config, clock=clock)
    thread = threading.Thread(target=flush)
    thread.start()
    for i in range(600):
        log.append(build_batch([Record(None, b"%d" % i * 50, (), clock.time_ms())]), leader_epoch=i // 100)
        if i % 150 == 149:
            log.delete_records(i - 20)
    stop.set()
    thread.join()
    log.flush()
    assert log.recovery_point == 600
    expected = batches_of(log)
    log.close(clean=False)
    again = PartitionLog.open(tmp_path / "t-0", config, clock=clock)
    assert batches_of(again) == expected
    assert again.epoch_end_offset(4) == (4, 500) if again.log_start_offset < 500 else True


@pytest.mark.parametrize("text", ["0\n2\n1 5\n2 5\n", "0\n2\n2 5\n2 6\n", "0\n1\n-1 5\n", "0\n2\n1 5\n"])
def test_a_malformed_epoch_checkpoint_is_refused(text):
    with pytest.raises(ValueError):
        LeaderEpochs.decode(text.encode())


def test_epochs_answer_as_kafka_does():
    epochs = LeaderEpochs()
    assert epochs.end_offset(0, 10) == (-1, -1)
    for epoch, start in ((2, 5), (4, 9), (3, 11), (7, 12)):
        epochs.assign(epoch, start)
    assert epochs.entries == [(2, 5), (4, 9), (7, 12)]
    asked = [epochs.end_offset(epoch, 20) for epoch in (-1, 0, 2, 3, 4, 6, 7, 8)]
    assert asked == [(-1, -1), (0, 5), (2, 9), (2, 9), (4, 12), (4, 12), (7, 20), (-1, -1)]
    assert [epochs.epoch_at(offset) for offset in (4, 5, 9, 100)] == [-1, 2, 4, 7]
    assert LeaderEpochs.decode(epochs.encode()).entries == epochs.entries
    for bad in (b"", b"1\n0\n", b"0\n2\n1 1\n", b"0\n2\n2 1\n1 2\n", b"0\n1\nx y\n", b"0\n1\n1 1"):
        with pytest.raises((ValueError, IndexError)):
            LeaderEpochs.decode(bad)


def test_on_a_full_disk_old_segments_make_the_room_that_noting_it_takes(world):
    log = three_segments(world, retention_ms=2 * HOUR_MS)
    log.flush()
    world.disk.fail(Fault("write", errno.ENOSPC, suffix=".tmp", times=1))
    assert log.delete_old_segments(world.clock.now_ms + 1, 6) == 2
    assert (log.log_start_offset, log.segment_count) == (4, 1)
    again = world.open(world.disk.restart(Tear.KEPT))
    assert (again.log_start_offset, again.log_end_offset) == (4, 6)


def test_on_a_disk_that_stays_full_the_log_begins_at_its_first_segment_after_a_crash(world):
    log = three_segments(world, retention_ms=2 * HOUR_MS)
    log.flush()
    world.disk.fail(Fault("write", errno.ENOSPC, suffix=".tmp", times=1000))
    with pytest.raises(KafkaError, match="the disk is full"):
        log.delete_old_segments(world.clock.now_ms + 1, 6)
    assert (log.log_start_offset, log.segment_count) == (4, 1)
    for tear in (Tear.KEPT, Tear.LOST):
        again = world.open(world.disk.restart(tear))
        assert again.log_end_offset == 6
        assert again.log_start_offset in (0, 4)


def test_on_a_full_disk_the_last_segment_stays_until_its_end_is_noted(world):
    log = three_segments(world, retention_ms=0)
    log.flush()
    world.disk.fail(Fault("write", errno.ENOSPC, suffix=".tmp", times=1000))
    with pytest.raises(KafkaError, match="the disk is full"):
        log.delete_old_segments(world.clock.now_ms + HOUR_MS, 6)
    assert (log.log_start_offset, log.log_end_offset) == (4, 6)
    assert world.open(world.disk.restart(Tear.KEPT)).log_end_offset == 6
    world.disk.heal()
    assert log.delete_old_segments(world.clock.now_ms + HOUR_MS, 6) == 1
    assert log.log_start_offset == 6


@pytest.mark.parametrize("first_kept", [True, False])
def test_segments_below_the_log_start_that_a_power_cut_kept_do_no_harm(world, first_kept):
    """Removals reach the medium in any order: a hole there is not damage."""
    log = world.open(segment_bytes=200)
    for _ in range(8):
        world.append(log, value=b"v" * 60)
    disk = world.disk
    kept = {segment.path: disk.contents(segment.path) for segment in log.segments[:3]}
    log.delete_records(log.segments[3].base_offset)
    expected = batches_of(log)
    disk = disk.restart(Tear.KEPT)
    for path in [list(kept)[0 if first_kept else 1]]:
        disk.replace(path, kept[path], sync=True)
    again = world.open(disk, segment_bytes=200)
    assert again.log_start_offset == log.log_start_offset
    assert batches_of(again) == expected
    assert not [path for path in kept if disk.size(path) is not None]


def test_on_a_full_disk_segments_go_one_after_the_other_through_a_power_cut(world):
    log = world.open(segment_bytes=200)
    for _ in range(8):
        world.append(log, value=b"v" * 60)
    log.flush()
    expected = batches_of(log)
    disk = world.disk.restart(Tear.LOST)
    total = 0
    for crash_at in itertools.count(1):
        disk = world.disk.restart(Tear.LOST)
        log = world.open(disk, segment_bytes=200)
        disk.fail(Fault("write", errno.ENOSPC, suffix=".tmp", times=1000))
        disk.crash_at = disk.operations + crash_at
        try:
            with pytest.raises(KafkaError, match="the disk is full"):
                log.delete_records(6)
        except SimulatedCrash:
            total += 1
        else:
            break
        for _ in range(6):
            again = world.open(disk.restart(Tear.TORN), segment_bytes=200)
            found = batches_of(again)
            assert found == expected[len(expected) - len(found) :]
            assert len(found) >= 2
    assert total > 10


def test_a_power_cut_during_a_truncation_leaves_no_hole(world):
    log = world.open(segment_bytes=200)
    for _ in range(8):
        world.append(log, value=b"v" * 60)
    log.flush()
    expected = batches_of(log)
    for crash_at in itertools.count(1):
        disk = world.disk.restart(Tear.KEPT)
        log = world.open(disk, segment_bytes=200)
        disk.crash_at = disk.operations + crash_at
        try:
            log.truncate_to(2)
        except SimulatedCrash:
            for _ in range(6):
                found = batches_of(world.open(disk.restart(Tear.TORN), segment_bytes=200))
                assert found == expected[: len(found)]
        else:
            break
    assert crash_at > 10


@pytest.mark.parametrize("tear", [Tear.LOST, Tear.ZEROS])
def test_r1_a_power_cut_does_not_make_records_look_old(world, tear):
    """An index file without its contents would say that the newest record is of 1970."""
    config = {"segment_bytes": 2 * len(world.batch()) + 10, "flush_messages": 1, "retention_ms": HOUR_MS}
    log = world.open(**config)
    for _ in range(2):
        world.append(log)  # on disk, while the segment is written
    log.append(world.batch(), leader_epoch=0, origin=AppendOrigin.CLIENT)
    assert log.segment_count == 2
    log.flush()
    after = world.open(world.disk.restart(tear), **config)
    assert after.recovered.scanned_batches < 3, "the first segment is believed"
    assert after.delete_old_segments(world.clock.now_ms, 3) == 0
    assert after.log_start_offset == 0
