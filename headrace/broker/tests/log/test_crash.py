"""A crash at every disk operation of a workload, in five ways, and a check of what the next process finds."""

import logging
import os
import random
from dataclasses import dataclass, field

import pytest

from headrace.broker.log.errors import CorruptLogError
from headrace.broker.log.partition_log import PartitionLog
from headrace.protocol.records.header import read_header
from simulator.disk import SimulatedCrash, SimulatedDisk, Tear
from simulator.log import LogWorld, batches_of

DIRECTORY_OPERATIONS = LogWorld().disk.operations
"""Operations that prepare a disk before the log does anything."""

CONFIG = {"segment_bytes": 1500, "index_interval_bytes": 200}
FIRST_SEED = int(os.environ.get("HEADRACE_CRASH_SEED", "0"))
SEEDS = int(os.environ.get("HEADRACE_CRASH_SEEDS", "50000"))


@dataclass
class History:
    """The answers to the workload. `sent` are all batches in order; those before `acked` were acknowledged."""

    sent: list[tuple[int, bytes]] = field(default_factory=list)
    acked: int = 0
    durable_end: int = 0
    log_start: int = 0
    log_start_asked: int = 0


def at_once(call):
    call()


def kept(path, delay_ms):
    """Deleted files stay as long as the test runs, which must do no harm."""


def workload(world: LogWorld, disk: SimulatedDisk, history: History, config: dict, seed: int = 7) -> None:
    """Appends of three producers and of none, epochs, rolls, flushes, deletions, a clean stop and a new start."""
    rng = random.Random(seed)
    sequences = {-1: -1, 1: 0, 2: 0, 3: 0}
    log = world.open(disk, background=at_once, discard=kept, **config)
    end = 0
    for i in range(46):
        if i in (12, 30):
            log.flush()
            history.durable_end = log.log_end_offset
        if i in (20, 37):
            history.log_start_asked = log.log_end_offset - 6
            log.delete_records(history.log_start_asked)
            history.log_start = log.log_start_offset
        if i == 25:
            log.close()
            history.durable_end = log.log_end_offset
            log = world.open(disk, background=at_once, discard=kept, **config)
            assert log.recovered.was_clean
        producer = rng.choice(list(sequences))
        count = rng.randint(1, 4)
        options = {}
        if producer > 0:
            options = {"producer_id": producer, "producer_epoch": 0, "base_sequence": sequences[producer]}
            sequences[producer] += count
        batch = world.batch(count, value=rng.randbytes(rng.choice([0, 10, 400])), **options)
        history.sent.append((end, batch))
        info = log.append(batch, leader_epoch=i // 15)
        if log.must_commit:
            log.commit()
        assert info.base_offset == end
        end = info.last_offset + 1
        history.acked += 1
        if config.get("durability") == "power":
            history.durable_end = end
    log.close()
    history.durable_end = end


def check(world: LogWorld, disk: SimulatedDisk, history: History, tear: Tear, config: dict) -> str:
    """Open the log after the crash and compare it with the acknowledged batches."""
    try:
        log = world.open(disk, **config)
    except CorruptLogError:
        assert tear is Tear.HOLES, "only sectors that arrived out of order look like damage in the middle"
        return "offline"
    found = batches_of(log)
    start, end = log.log_start_offset, log.log_end_offset
    expected = [
        (base, batch[16:]) for base, batch in history.sent if base + read_header(batch).record_count > start
    ]
    assert found == expected[: len(found)], "the log is a prefix of what was sent"
    must_survive = history.durable_end
    if tear is Tear.KEPT and history.acked:
        base, batch = history.sent[history.acked - 1]
        must_survive = base + read_header(batch).record_count
    assert end >= must_survive, "acknowledged records are there"
    assert history.log_start <= start <= max(history.log_start_asked, history.log_start)
    keeps_window = tear is Tear.KEPT or config.get("durability") == "power"
    check_producers(world, log, history, 0 if keeps_window else start)
    return "open"


def check_producers(world: LogWorld, log: PartitionLog, history: History, known_from: int) -> None:
    """Let every producer retry its last five batches and go on: batches that are known to be there are duplicates."""
    end = log.log_end_offset
    by_producer: dict[int, list[tuple[int, bytes]]] = {}
    for base, batch in history.sent:
        producer = read_header(batch).producer_id
        if producer > 0:
            by_producer.setdefault(producer, []).append((base, batch))
    for sent in by_producer.values():
        there = [(base, batch) for base, batch in sent if base < end]
        for base, batch in there[-5:]:
            if base >= known_from:
                info = log.append(batch, leader_epoch=9)
                assert (info.duplicate, info.base_offset) == (True, base)
        if there and there[-1][0] < known_from:
            continue  # the log has forgotten this one
        for _, batch in sent[len(there) :]:
            info = log.append(batch, leader_epoch=9)
            assert not info.duplicate
    grown = batches_of(log)
    log.close()
    again = world.open(log.disk, **CONFIG)
    assert again.recovered.was_clean or again.log_end_offset == 0
    assert batches_of(again) == grown


@pytest.mark.parametrize("config", [CONFIG, {**CONFIG, "durability": "power"}], ids=["process", "power"])
def test_every_crash_leaves_a_prefix_with_everything_that_was_promised(config, monkeypatch):
    monkeypatch.setattr(
        logging.getLogger("headrace.log"), "disabled", True
    )  # it would log thousands of warnings
    world, history = LogWorld(), History()
    workload(world, world.disk, history, config)
    assert history.acked == 46
    first, total = DIRECTORY_OPERATIONS + 1, world.disk.operations
    outcomes = {"open": 0, "offline": 0}
    step = 4 if config is CONFIG else 6
    for crash_at in range(first, total + 1, step):
        world, history = LogWorld(), History()
        world.disk.crash_at = crash_at
        with pytest.raises(SimulatedCrash):
            workload(world, world.disk, history, config)
        for tear in Tear:
            outcomes[check(world, world.disk.restart(tear), history, tear, config)] += 1
    assert outcomes["open"] > 20 * outcomes["offline"]


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_d1_d2_d3_random_crashes_soak(monkeypatch):
    """Each seed has another workload, another segment size, one crash, and one way to tear."""
    monkeypatch.setattr(logging.getLogger("headrace.log"), "disabled", True)
    outcomes = {"open": 0, "offline": 0}
    operations = {}
    for seed in range(FIRST_SEED, FIRST_SEED + SEEDS):
        rng = random.Random(seed)
        config = {"segment_bytes": rng.choice([2000, 3000, 6000]), "index_interval_bytes": 200}
        config["durability"] = rng.choice(["process", "power"])
        key = (config["segment_bytes"], config["durability"], seed % 50)
        if key not in operations:
            world = LogWorld()
            workload(world, world.disk, History(), config, seed % 50)
            operations[key] = world.disk.operations
        world, history, tear = LogWorld(), History(), rng.choice(list(Tear))
        world.disk.crash_at = rng.randint(DIRECTORY_OPERATIONS + 1, operations[key])
        with pytest.raises(SimulatedCrash):
            workload(world, world.disk, history, config, seed % 50)
        try:
            outcomes[check(world, world.disk.restart(tear), history, tear, config)] += 1
        except BaseException:
            print(f"HEADRACE_CRASH_SEED={seed} HEADRACE_CRASH_SEEDS=1, {tear}, {config}")
            raise
    print(f"seeds {FIRST_SEED} to {FIRST_SEED + SEEDS - 1}: {outcomes}")
