"""Files of segments are closed when they are too many or idle; a lack of descriptors ends one operation."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from headrace.broker.log import segment as segments
from headrace.broker.runtime.open_files import OpenFiles
from headrace.protocol.errors import KafkaError
from simulator.disk import Fault, Tear
from simulator.log import batches_of

SEGMENTS = {"segment_bytes": 1000, "index_interval_bytes": 150}
NO_FILES = "too many files are open"


@pytest.fixture
def files(monkeypatch) -> OpenFiles:
    found = OpenFiles()
    monkeypatch.setattr(segments, "SEGMENT_FILES", found)
    return found


def filled(world, count=20, **config):
    log = world.open(**{**SEGMENTS, **config})
    for index in range(count):
        world.append(log, 2, value=b"%d" % index * 20)
    return log


def is_open(segment) -> bool:
    return segment._file is not None


def test_files_beyond_the_budget_are_closed_and_opened_again(world, files) -> None:
    files.max = 2
    log = filled(world, 40)
    assert log.segment_count > 4
    expected = batches_of(log)
    assert sum(map(is_open, log.segments)) <= 2
    assert files.count <= 2
    assert batches_of(log) == expected
    assert world.append(log).base_offset == 80
    assert sum(map(is_open, log.segments)) <= 2
    log.flush()
    log.close()
    assert files.count == 0


def test_a_file_that_is_used_stays_open_and_an_idle_one_is_closed(world, files) -> None:
    log = filled(world, 3)
    active = log.segments[-1]
    files.close_idle()
    assert is_open(active)  # it was used since the last look
    world.append(log)
    files.close_idle()
    assert is_open(active)
    assert files.close_idle() == 1
    assert not is_open(active)
    assert world.append(log).base_offset == 7
    assert len(batches_of(log)) == 5


def test_an_answer_in_flight_keeps_its_file(world, files) -> None:
    log = filled(world, 3)
    region = log.read(0, 1 << 20, up_to=log.log_end_offset).region
    expected = region.read()
    files.close_idle()
    files.close_idle()
    assert not is_open(log.segments[-1])
    assert region.read() == expected


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("work", ["append", "read", "commit", "flush", "roll", "retention", "close"])
def test_a_lack_of_descriptors_ends_one_operation(world, files, error, work) -> None:
    log = filled(world, 5)
    before = batches_of(log)
    for segment in log.segments:
        segment.close_file()
    world.disk.fail(Fault("open", error, times=100))

    def do() -> object:
        if work == "append":
            return world.append(log)
        if work == "read":
            return batches_of(log)
        if work == "retention":
            return log.delete_old_segments(1 << 60, log.log_end_offset)
        if work == "close":
            return log.close()
        return getattr(log, work)()

    if work not in ("roll", "retention"):  # which need no file that is closed
        with pytest.raises(KafkaError, match=NO_FILES):
            do()
        assert log.failure is None
    world.disk.heal()
    if work == "close":
        log = world.open(**SEGMENTS)
        assert batches_of(log) == before
        return
    do()
    assert log.failure is None
    if work == "commit":
        assert log.recovery_point == log.log_end_offset
    world.append(log)
    assert log.failure is None


WORK = {
    "append": lambda world, log: world.append(log),
    "many": lambda world, log: [world.append(log) for _ in range(9)],
    "roll": lambda world, log: log.roll(),
    "producers": lambda world, log: log.producers(),
    "transactions": lambda world, log: log.open_transactions(),
    "marker": lambda world, log: log.check_end_marker(1, 0, is_next_epoch=False),
    "cleaning": lambda world, log: log.last_of_producers(),
    "unstable": lambda world, log: log.first_unstable_offset,
}


@pytest.mark.parametrize("skip", range(4))
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("count", [2, 5, 20])
def test_a_lack_of_descriptors_ends_the_first_operation_of_a_log_that_was_opened_again(
    world, files, count, work, skip
) -> None:
    """The state of its producers and its indexes are read when they are needed."""
    before = batches_of(log := filled(world, count))
    log.close()
    log = world.open(**SEGMENTS)
    world.disk.fail(Fault("open", errno.EMFILE, times=100, skip=skip))
    with suppress(KafkaError):
        WORK[work](world, log)
    world.disk.heal()
    assert log.failure is None
    assert batches_of(log)[: len(before)] == before
    end_offset = log.log_end_offset
    assert world.append(log).base_offset == end_offset
    found = batches_of(log)
    log.close()
    assert batches_of(world.open(**SEGMENTS)) == found


@pytest.mark.parametrize("suffix", ["", ".log"])
@pytest.mark.parametrize("skip", range(6))
def test_a_commit_without_descriptors_for_folders_and_names_is_done_later(world, files, suffix, skip) -> None:
    log = filled(world, 15)
    world.disk.fail(Fault("open" if suffix else "sync_directory", errno.EMFILE, skip=skip, suffix=suffix))
    for segment in log.segments:
        segment.close_file()
    for _ in range(2):
        with suppress(KafkaError):
            log.commit()
    log.commit()
    assert log.failure is None
    assert log.recovery_point == log.log_end_offset
    survived = world.open(world.disk.restart(Tear.LOST), **SEGMENTS)
    assert batches_of(survived) == batches_of(log)


@pytest.mark.parametrize("operation", ["open", "sync_directory"])
def test_a_lack_of_memory_to_open_a_file_ends_one_commit(world, files, operation) -> None:
    log = filled(world, 5)
    for segment in log.segments:
        segment.close_file()
    world.disk.fail(Fault(operation, errno.ENOMEM))
    with pytest.raises(KafkaError, match="no memory left"):
        log.commit()
    log.commit()
    assert log.recovery_point == log.log_end_offset


def test_a_lack_of_memory_in_an_fsync_stops_the_log(world, files) -> None:
    """The pages may count as clean, and be lost."""
    log = filled(world, 5)
    world.disk.fail(Fault("sync", errno.ENOMEM))
    with pytest.raises(KafkaError, match="offline"):
        log.commit()
    with pytest.raises(KafkaError, match="offline"):
        log.commit()


CHANGES = {
    "truncation": lambda log: log.truncate_to(17),
    "restart": lambda log: log.restart_at(60),
    "continuation": lambda log: log.begin_after(50, 3, [(0, 3)], b""),
}
KEPT = {"truncation": (0, 8, 16), "restart": (60, 0, 60), "continuation": (3, 0, 50)}
"""The start of the log, the number of its batches, its end."""


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("operation", "error"),
    [
        ("open", errno.EMFILE),
        ("create", errno.ENFILE),
        ("sync_directory", errno.ENOMEM),
        ("write", errno.ENOSPC),
        ("rename", errno.ENOSPC),
        ("remove", errno.ENOMEM),
        ("truncate", errno.ENOMEM),
    ],
)
def test_a_truncation_without_room_is_done_when_the_log_is_opened_again(
    world, files, change, operation, error
) -> None:
    interrupted = 0
    for skip in range(40):
        world = type(world)()
        log = filled(world)
        log.flush()
        before = batches_of(log)
        for segment in log.segments:
            segment.close_file()
        world.disk.fail(Fault(operation, error, skip=skip))
        try:
            CHANGES[change](log)
        except KafkaError:
            interrupted += 1
            assert log.is_interrupted
            with pytest.raises(KafkaError, match="offline"):
                log.read(0, 100, up_to=100)
            log.close(clean=False)
            log = world.open(**SEGMENTS)
            if log.local_start_offset == log.log_start_offset == 0:
                found = batches_of(log)
                assert found == before[: len(found)]
            CHANGES[change](log)
        world.disk.heal()
        world.append(log, epoch=5)
        log.flush()
        for each in (log, world.open(world.disk.restart(Tear.LOST), **SEGMENTS)):
            start, kept, end = KEPT[change]
            assert (each.log_start_offset, each.log_end_offset) == (start, end + 1)
            assert each.epoch_at(end) == 5
            if kept:
                assert batches_of(each)[:-1] == before[:kept]
        if skip >= interrupted:
            break
    assert bool(interrupted) != ((operation, change) == ("open", "continuation"))  # which opens no file
