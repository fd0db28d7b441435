"""A follower's log: equal to its leader's, byte by byte, after any interruption."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headrace.broker.log.config import LogConfig
from headrace.broker.log.epochs import LeaderEpochs
from headrace.broker.log.partition_log import AppendOrigin, PartitionLog
from headrace.broker.runtime.slices import finish
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.control import build_end_marker
from headrace.protocol.records.header import TRANSACTIONAL_BIT
from simulator.disk import SimulatedDisk, Tear
from simulator.log import LogWorld, clean_log, records_of

FOLLOWER = Path("/data/copy-0")


def follower(world: LogWorld, disk: SimulatedDisk | None = None, **config: object) -> PartitionLog:
    return PartitionLog.open(FOLLOWER, LogConfig(**config), clock=world.clock, disk=disk or world.disk)  # type: ignore[arg-type]


def content(log: PartitionLog, up_to: int | None = None) -> bytes:
    end = log.log_end_offset if up_to is None else up_to
    parts, offset = [], log.log_start_offset
    while offset < end and (found := log.read(offset, 1 << 20, up_to=end)).size:
        parts.append(found.read())
        offset = found.end_offset
    return b"".join(parts)


def copy(leader: PartitionLog, log: PartitionLog, max_bytes: int = 1 << 20) -> None:
    while log.log_end_offset < leader.log_end_offset:
        found = leader.read(log.log_end_offset, max_bytes, up_to=leader.log_end_offset)
        if not found.size:
            return
        finish(log.append_copies(found.read(), gaps_to=leader.log_end_offset))


def producers(log: PartitionLog) -> dict[int, object]:
    return {
        producer_id: (known.epoch, [(b.first_sequence, b.base_offset, b.last_offset) for b in known.batches])
        for producer_id, known in log.producers().items()
    }


@pytest.mark.parametrize("seed", range(12))
def test_a_copy_is_the_log_and_knows_producers_epochs_and_transactions(seed: int) -> None:
    rng, world = random.Random(seed), LogWorld()
    leader = world.open(segment_bytes=rng.choice((400, 5_000, 1 << 20)))
    log = follower(world, segment_bytes=rng.choice((300, 5_000, 1 << 20)))
    log.follow()
    sequences: dict[int, int] = {}
    epoch = 0
    for _ in range(rng.randrange(20, 60)):
        epoch += rng.random() < 0.1
        kind, count = rng.random(), rng.randrange(1, 4)
        producer = rng.randrange(3)
        if kind < 0.6:
            world.append(
                leader,
                count,
                epoch=epoch,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequences.get(producer, 0),
                attributes=TRANSACTIONAL_BIT if producer == 2 else 0,
            )
            sequences[producer] = sequences.get(producer, 0) + count
        elif kind < 0.7 and 2 in leader.open_transactions():
            commit = rng.random() < 0.5
            marker = build_end_marker(
                producer_id=2, producer_epoch=0, commit=commit, coordinator_epoch=0, timestamp_ms=1
            )
            leader.append(marker, leader_epoch=epoch, origin=AppendOrigin.COORDINATOR)
        else:
            world.append(leader, count, epoch=epoch)
        if rng.random() < 0.4:
            copy(leader, log, rng.choice((1, 300, 1 << 20)))
        if rng.random() < 0.1:
            log.close(clean=rng.random() < 0.5)
            log = follower(world)
            log.follow()
    copy(leader, log)
    for _ in range(2):
        assert content(log) == content(leader)
        assert producers(log) == producers(leader)
        assert log.open_transactions() == leader.open_transactions()
        assert log.aborted_transactions(0, 1 << 30) == leader.aborted_transactions(0, 1 << 30)
        assert log.last_epoch == leader.last_epoch
        assert [log.epoch_end_offset(each) for each in range(epoch + 1)] == [
            leader.epoch_end_offset(each) for each in range(epoch + 1)
        ]
        log.close(clean=False)
        log = follower(world)


def test_damaged_or_discontinuous_copies_are_refused() -> None:
    world = LogWorld()
    leader, log = world.open(), follower(world)
    for _ in range(3):
        world.append(leader, 2, epoch=4)
    data = bytearray(leader.read(0, 1 << 20, up_to=6).read())
    flipped = bytearray(data)
    flipped[-1] ^= 1
    with pytest.raises(KafkaError) as refused:
        finish(log.append_copies(flipped, gaps_to=6))
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert log.log_end_offset == 0
    assert finish(log.append_copies(data, gaps_to=6)) == 3
    assert finish(log.append_copies(data, gaps_to=6)) == 0, "it is here already"
    older = PartitionLog.open(Path("/data/older-0"), LogConfig(), clock=world.clock, disk=world.disk)
    for _ in range(4):
        world.append(older, 2, epoch=3)
    with pytest.raises(KafkaError, match="cannot follow"):
        finish(log.append_copies(older.read(6, 1 << 20, up_to=8).read(), gaps_to=8))
    assert content(log) == content(leader)


def test_an_epoch_that_wrote_nothing_does_not_keep_a_follower_from_the_one_before() -> None:
    world = LogWorld()
    leader, log = world.open(), follower(world)
    world.append(leader, 2, epoch=1)
    copy(leader, log)
    log.assign_epoch(5)  # it led, and no record was written
    log.follow()
    assert log.last_epoch == 1
    world.append(leader, 1, epoch=3)
    copy(leader, log)
    assert content(log) == content(leader)


@pytest.mark.parametrize("offset", [100, 6, 3])
def test_a_log_goes_on_elsewhere_and_nothing_of_before_is_left(offset: int) -> None:
    world = LogWorld()
    log = follower(world, segment_bytes=300)
    for sequence in range(0, 6, 2):
        world.append(log, 2, producer_id=1, producer_epoch=0, base_sequence=sequence)
    log.delete_records(4)
    log.restart_at(offset)
    for _ in range(2):
        assert (log.log_start_offset, log.log_end_offset) == (offset, offset)
        assert (log.last_epoch, log.producers()) == (-1, {})
        log.close(clean=False)
        log = follower(world)
    leader = PartitionLog.open(Path("/data/leader-0"), LogConfig(), clock=world.clock, disk=world.disk)
    for _ in range(55):
        world.append(leader, 2, epoch=7)
    log.follow()
    leader.delete_records(offset - offset % 2)
    log.restart_at(leader.log_start_offset)
    copy(leader, log)
    assert content(log) == content(leader)


@pytest.mark.parametrize("tear", [Tear.KEPT, Tear.LOST, Tear.TORN, Tear.ZEROS])
def test_a_copy_of_a_compacted_log_ends_where_its_batches_do_whatever_a_crash_leaves(tear: Tear) -> None:
    """A gap is not taken for records that existed."""
    world = LogWorld()
    leader = world.open(segment_bytes=400, cleanup_policy=["compact"])
    for number in range(30):
        world.append(leader, 1, value=b"%d" % number)
    clean_log(leader, world.clock)
    log = follower(world)
    taken = leader.read(0, 1 << 20, up_to=leader.log_end_offset).read()
    finish(log.append_copies(taken, gaps_to=leader.log_end_offset))
    after = world.disk.restart(tear)
    again = follower(world, after)
    again.follow()
    there = records_of(again)
    assert there == records_of(leader)[: len(there)]
    assert not there or again.log_end_offset == there[-1][0] + 1
    copy(leader, again)
    assert records_of(again) == records_of(leader)


@pytest.mark.parametrize("since", [0, 1])
@pytest.mark.parametrize("tear", [Tear.KEPT, Tear.LOST])
def test_an_epoch_that_was_noted_and_wrote_nothing_is_not_that_of_what_was_copied_since(
    tear: Tear, since: int
) -> None:
    world = LogWorld()
    leader = world.open()
    world.append(leader, 2, epoch=0)
    log = follower(world)
    copy(leader, log)
    log.assign_epoch(2)
    log.flush()  # it led, and no record was written
    log.follow()
    world.append(leader, 3, epoch=since)
    copy(leader, log)
    if tear is Tear.LOST:
        log.commit()
    log = follower(world, world.disk.restart(tear))
    assert (log.log_end_offset, log.epochs) == (5, [(0, 0), (1, 2)] if since else [(0, 0)])
    assert log.epoch_end_offset(since) == (since, 5), "the follower is not told to cut off common records"


@pytest.mark.parametrize(
    ("noted", "found", "entries"),
    [
        ([(0, 0), (2, 11)], (1, 11), [(0, 0), (1, 11)]),
        ([(0, 0), (2, 9)], (1, 11), [(0, 0), (1, 11)]),
        ([(0, 0), (1, 11)], (2, 11), [(0, 0), (2, 11)]),
        ([(0, 0), (3, 100)], (3, 105), [(0, 0), (3, 100)]),
        ([(0, 0), (3, 100)], (3, 90), [(0, 0), (3, 90)]),
        ([(0, 0), (3, 100)], (2, 90), [(0, 0), (2, 90), (3, 100)]),
        ([(0, 0), (1, 50), (3, 100)], (2, 100), [(0, 0), (1, 50), (2, 100)]),
        ([(4, 0)], (4, 0), [(4, 0)]),
        ([], (4, 7), [(4, 7)]),
        ([(4, 0)], (-1, 3), [(4, 0)]),
    ],
)
def test_leader_epochs_of_the_log_replace_the_checkpoint(
    noted: list[tuple[int, int]], found: tuple[int, int], entries: list[tuple[int, int]]
) -> None:
    epochs = LeaderEpochs(noted)
    epochs.found(*found)
    assert epochs.entries == entries
