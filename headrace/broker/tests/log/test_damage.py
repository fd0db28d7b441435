"""Faults of the disk while it is used, and damage found when a log is opened."""

import errno

import pytest

from headrace.broker.log.errors import CorruptLogError
from headrace.broker.log.scan import find_batch
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.header import HEADER_SIZE, iter_headers
from simulator.disk import Fault, Tear
from simulator.log import batches_of

SEGMENTS = {"segment_bytes": 1000, "index_interval_bytes": 150}


def storage_error(call, *arguments, **options) -> str:
    with pytest.raises(KafkaError) as error:
        call(*arguments, **options)
    assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    return error.value.message


def filled(world, count=30, **config):
    log = world.open(**{**SEGMENTS, **config})
    for i in range(count):
        world.append(log, 2, value=b"%d" % i * 20, epoch=i // 10)
    return log


def log_path(log, index):
    return log.segments[index].path


# -- while running -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_d5_a_failed_write_leaves_the_log_as_it_was_and_the_next_may_succeed(world, error, partial):
    log = filled(world, 5)
    before, size = batches_of(log), log.size_bytes
    for _ in range(20):
        world.disk.fail(Fault("write", error, suffix=".log", partial=partial))
        message = storage_error(world.append, log, value=b"x" * 100)
        assert ("the disk is full" in message) == (error != errno.EIO)
        assert (log.log_end_offset, log.size_bytes) == (10, size)
        assert len(world.disk.contents(log_path(log, 0))) == size
        assert batches_of(log) == before
    info = world.append(log)
    assert info.base_offset == 10
    assert batches_of(world.open(world.disk.restart(Tear.KEPT), **SEGMENTS)) == batches_of(log)


def test_d5_a_failed_write_that_cannot_be_taken_back_stops_the_partition(world):
    log = filled(world, 5)
    world.disk.fail(Fault("write", errno.EIO, suffix=".log", partial=True))
    world.disk.fail(Fault("truncate", errno.EIO, suffix=".log"))
    storage_error(world.append, log, value=b"x" * 100)
    assert "could not be undone" in storage_error(world.append, log)
    assert log.log_end_offset == 10


def test_d5_a_disk_that_fills_up_serves_reads_and_recovers_when_space_returns(world):
    log = filled(world, 8)
    world.disk.capacity = sum(
        len(world.disk.contents(world.directory / name)) for name in world.disk.names(world.directory)
    )
    world.disk.capacity += 250
    acked = 8
    with pytest.raises(KafkaError, match="the disk is full"):
        while True:
            world.append(log, 2, value=b"y" * 30)
            acked += 1
    assert acked > 8
    before = batches_of(log)
    assert len(before) == acked
    storage_error(world.append, log, 2, value=b"y" * 30)
    world.disk.heal()
    assert world.append(log, 2).base_offset == 2 * acked
    log.close()
    again = world.open(**SEGMENTS)
    assert batches_of(again)[:acked] == before


def test_a_full_disk_at_the_first_write_of_a_segment(world):
    log = filled(world, 30)
    segments = log.segment_count
    world.disk.fail(Fault("create", errno.ENOSPC, suffix=".log"))
    with pytest.raises(KafkaError, match="the disk is full"):
        for _ in range(20):
            world.append(log, 2, epoch=9)
    assert log.segment_count == segments + 1
    end = log.log_end_offset
    assert world.append(log, 2, epoch=9).base_offset == end
    assert batches_of(world.open(world.disk.restart(Tear.KEPT), **SEGMENTS)) == batches_of(log)


@pytest.mark.parametrize("what", [".log", "orders-0"])
def test_d4_a_failed_fsync_stops_the_partition_and_is_never_retried_into_an_acknowledgement(world, what):
    log = world.open(durability="power")
    world.append(log)
    operation = "sync" if what == ".log" else "sync_directory"
    if operation == "sync_directory":
        log = filled(world.__class__(), 0)
        log.reconfigure(log.config.__class__(durability="power"))
        world.disk = log.disk
        world.disk.make_directory(world.directory)
    world.disk.fail(Fault(operation, errno.EIO, suffix=what))
    assert "fsync" in storage_error(world.append, log)
    for _ in range(3):
        assert "offline" in storage_error(world.append, log)
        storage_error(log.flush)
        storage_error(log.read, 0, 100, up_to=1)
    assert log.failure is not None
    log.close()
    survived = batches_of(world.open(world.disk.restart(Tear.LOST)))
    assert len(survived) <= 1


def test_d4_a_log_whose_fsync_failed_is_not_marked_clean(world):
    log = filled(world, 5)
    world.disk.fail(Fault("sync", errno.EIO, suffix=".log"))
    storage_error(log.flush)
    log.close()
    assert not world.open(**SEGMENTS).recovered.was_clean


def test_a_background_flush_that_fails_stops_the_partition_too(world):
    log = world.open(background=lambda call: call(), **SEGMENTS)
    world.disk.fail(Fault("sync", errno.EIO, suffix=".log"))
    with pytest.raises(KafkaError, match="offline"):
        for _ in range(40):
            world.append(log, 2)
    assert "offline" in storage_error(world.append, log)


def test_flush_messages_sets_the_number_of_messages_between_flushes(world):
    log = world.open(flush_messages=10)
    for _ in range(4):
        world.append(log, 3)
        assert log.recovery_point in (0, 12)
    assert log.recovery_point == 12
    assert len(batches_of(world.open(world.disk.restart(Tear.LOST)))) == 4


def test_an_unwritable_snapshot_or_index_costs_only_time(world):
    for suffix in (".snapshot.tmp", ".index.tmp", ".timeindex.tmp"):
        world.disk.fail(Fault("write", errno.ENOSPC, suffix=suffix, times=1000))
    log = filled(world, 30)
    expected = batches_of(log)
    assert log.segment_count > 3
    disk = world.disk.restart(Tear.KEPT)
    again = world.open(disk, **SEGMENTS)
    assert batches_of(again) == expected
    for offset in range(60):
        assert again.read(offset, 1, up_to=60).start_offset == offset // 2 * 2


def test_files_that_a_crash_left_half_written_are_removed_at_open(world):
    log = world.open()
    world.append(log)
    log.flush()
    name = f"{0:020d}.index.17.tmp"
    world.disk.open(world.directory / name, create=True).write([b"half"], 0)
    world.disk.sync_directory(world.directory)
    disk = world.disk.restart(Tear.KEPT)
    assert name in disk.names(world.directory)
    world.open(disk)
    assert name not in disk.names(world.directory)


# -- at opening ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["missing", "empty", "garbage", "shifted", "cut"])
@pytest.mark.parametrize(
    "suffix", [".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint", "recovery-checkpoint"]
)
def test_d2_everything_but_the_log_itself_can_be_lost(world, suffix, damage, clean):
    log = filled(world)
    expected = batches_of(log)
    epochs = [log.epoch_end_offset(epoch) for epoch in range(5)]
    log.close() if clean else log.flush()
    disk = world.disk.restart(Tear.KEPT)
    for name in disk.names(world.directory):
        if name.endswith(suffix):
            path = world.directory / name
            data = disk.contents(path)
            disk.remove(path)
            if damage == "shifted":  # plausible numbers that are all wrong
                data = bytes(byte + 1 if i % 4 == 3 and byte < 255 else byte for i, byte in enumerate(data))
            changed = {"empty": b"", "garbage": b"\xff\x13" * 30, "cut": data[:-3], "shifted": data}
            if damage != "missing":
                disk.replace(path, changed[damage], sync=True)
    again = world.open(disk, **SEGMENTS)
    assert batches_of(again) == expected
    assert [again.epoch_end_offset(epoch) for epoch in range(5)] == epochs or damage == "shifted"
    for offset in range(60):
        found = again.read(offset, 1, up_to=60)
        assert found.start_offset == offset // 2 * 2
    if damage != "shifted" or suffix != ".timeindex":
        assert again.max_timestamp() == (0, world.clock.now_ms, 0)
        assert again.offset_for_timestamp(world.clock.now_ms + 1) is None
    assert world.append(again, epoch=9).base_offset == 60


def test_e1_the_epoch_of_a_torn_tail_is_forgotten_with_it(world):
    log = world.open()
    world.append(log, epoch=1)
    world.append(log, epoch=3)
    log.close()
    world.disk.remove(world.directory / "clean-shutdown")
    path = log_path(log, 0)
    world.disk.replace(path, world.disk.contents(path)[:-1], sync=False)
    again = world.open()
    assert again.epoch_end_offset(1) == (1, 1)
    assert again.epoch_end_offset(3) == (-1, -1)
    world.append(again, epoch=2)
    assert again.epoch_end_offset(1) == (1, 1)


def test_d2_a_torn_tail_is_cut_at_every_length(world):
    log = filled(world, 6)
    path = log_path(log, 0)
    data = world.disk.contents(path)
    ends = [position + header.size for position, header in iter_headers(data)]
    for size in range(ends[-2], len(data)):
        for tail in (b"", b"\x00" * 700, b"\x07" * 64):
            disk = world.disk.restart(Tear.KEPT)
            disk.replace(path, data[:size] + tail, sync=True)
            again = world.open(disk, **SEGMENTS)
            whole = len(ends) if (data[:size] + tail).startswith(data) else len(ends) - 1
            assert again.log_end_offset == 2 * whole
            assert again.recovered.cut_bytes == size + len(tail) - ends[whole - 1]
            assert len(disk.contents(path)) == ends[whole - 1]


@pytest.mark.parametrize("flushed", [False, True])
def test_d6_damage_in_the_middle_is_reported_and_nothing_is_cut(world, flushed):
    log = filled(world, 30, segment_bytes=100_000)
    path = log_path(log, 0)
    data = world.disk.contents(path)
    positions = [position for position, _ in iter_headers(data)]
    if flushed:
        log.flush()
    start = positions[10]
    in_place = set(range(12, 16))  # the leader epoch, which no checksum covers
    for byte in range(HEADER_SIZE + 20):
        disk = world.disk.restart(Tear.KEPT)
        disk.corrupt(path, start + byte, 0x04)
        if byte in in_place:
            continue
        with pytest.raises(CorruptLogError) as error:
            world.open(disk, **SEGMENTS)
        assert path.name in str(error.value)
        assert f"byte {start}, offset 20" in str(error.value)
        assert f"truncate -s {start}" in str(error.value)
        assert len(disk.contents(path)) == len(data)


@pytest.mark.parametrize("damaged", [1, 2])
def test_d6_the_last_record_that_was_synced_is_never_cut(world, damaged):
    """No readable batch follows it, so it looks like a torn tail; only the recovery point shows that it was synced."""
    log = world.open()
    for i in range(3):
        world.append(log, value=b"%d" % i * 20)
    path = log_path(log, 0)
    positions = [position for position, _ in iter_headers(world.disk.contents(path))]
    log.flush()
    disk = world.disk.restart(Tear.LOST)
    data = disk.contents(path)
    disk.replace(path, data[: positions[damaged]] + bytes(len(data) - positions[damaged]), sync=True)
    with pytest.raises(CorruptLogError, match="everything below offset 3 had been written and synced"):
        world.open(disk)
    assert len(disk.contents(path)) == len(data)
    world.append(log)
    disk = world.disk.restart(Tear.KEPT)
    data = disk.contents(path)
    disk.replace(path, data[:-3], sync=True)
    assert world.open(disk).log_end_offset == 3, "unsynced records are a torn tail"


@pytest.mark.parametrize("rest", [b"", b"\x00" * 700, b"\x07" * 64])
def test_d2_segments_after_a_torn_one_that_hold_nothing_readable_go(world, rest):
    log = filled(world, 30)
    torn = log_path(log, -1)
    disk = world.disk.restart(Tear.KEPT)
    end = log.segments[-1].base_offset
    disk.replace(torn, b"\x01" * 40, sync=True)
    later = [world.directory / f"{end + more:020d}.log" for more in (7, 9)]
    for path in later:
        disk.replace(path, rest, sync=True)
    again = world.open(disk, **SEGMENTS)
    expected = batches_of(log)[: end // 2]
    assert batches_of(again) == expected
    assert not [path for path in later if disk.size(path) is not None]
    info = world.append(again, 2, epoch=9)
    assert info.base_offset == end
    for _ in range(20):
        world.append(again, 2, epoch=9)
    grown = batches_of(again)
    assert len(grown) == len(expected) + 21
    for survivor in (disk.restart(Tear.KEPT), disk):
        if survivor is disk:
            again.close()
        assert batches_of(world.open(survivor, **SEGMENTS)) == grown


def test_d6_a_segment_that_lost_its_end_is_reported(world):
    log = filled(world, 30)
    disk = world.disk.restart(Tear.KEPT)
    path = log_path(log, 1)
    data = disk.contents(path)
    *_, last = (position for position, _ in iter_headers(data))
    for size in (last, last + 5):
        disk.replace(path, data[:size], sync=True)
        with pytest.raises(CorruptLogError, match="Restore the file"):
            world.open(disk, **SEGMENTS)
    disk.remove(path)
    with pytest.raises(CorruptLogError, match="missing"):
        world.open(disk, **SEGMENTS)


def test_d6_the_remedy_that_the_message_names_works(world):
    log = filled(world, 30)
    disk = world.disk.restart(Tear.KEPT)
    path, position = log_path(log, 1), log.segments[1].size // 2
    disk.corrupt(path, position, 0xFF)
    with pytest.raises(CorruptLogError, match="truncate -s") as error:
        world.open(disk, **SEGMENTS)
    size = int(str(error.value).split("truncate -s ")[1].split(")")[0])
    disk.replace(path, disk.contents(path)[:size], sync=True)
    for segment in log.segments[2:]:
        disk.remove(segment.path)
    again = world.open(disk, **SEGMENTS)
    assert batches_of(again) == batches_of(log)[: again.log_end_offset // 2]
    assert again.log_end_offset > log.segments[1].base_offset


def test_d6_records_appended_after_lost_synced_records_are_synced_again(world):
    """Otherwise it would be acknowledged without an fsync until the log has its former length."""
    log = filled(world, 30)
    log.flush()
    end_offset = log.segments[1].end_offset
    for segment in log.segments[2:]:
        world.disk.remove(segment.path)
    world.disk.remove(world.directory / "leader-epoch-checkpoint")
    again = world.open(**SEGMENTS, durability="power")
    assert again.log_end_offset == again.recovery_point == end_offset
    again.append(world.batch(), leader_epoch=9)
    assert again.must_commit


def test_damage_found_by_a_read_stops_the_partition_loudly(world):
    log = filled(world, 30)
    log.close()
    path = log_path(log, 0)
    for position, _ in iter_headers(world.disk.contents(path)):
        world.disk.corrupt(path, position + 8, 0x80)  # every length in the first segment
    log = world.open(**SEGMENTS)
    assert log.read(30, 1 << 20, up_to=60).size
    assert "damaged" in storage_error(log.read, 4, 1 << 20, up_to=60)
    assert "offline" in storage_error(world.append, log)


def test_searching_for_a_batch_does_not_take_record_bytes_for_one(world):
    batch = world.batch(1)
    inside = world.batch(1, value=batch * 3)  # Kafka batches as values: offsets 0, far below
    torn = memoryview(b"\x00" * 10 + inside[:-1])
    assert find_batch(torn, 0, offset_min=1) is None
    assert find_batch(memoryview(b"xyz" + batch), 0, offset_min=0) == 3
