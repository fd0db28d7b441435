"""The checkers find nothing in true histories, and find every kind of error that is put into one."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from simulator.histories import (
    Log,
    LoggedBatch,
    Outcome,
    Place,
    Poll,
    Send,
    Transaction,
    check_delivery,
    check_log,
    check_offsets,
    check_position,
    check_transactions,
    read_segment,
)
from simulator.log import LogWorld

PLACES: list[Place] = [("t", 0), ("t", 1)]
SEEDS = range(20)


@dataclass
class World:
    sends: list[Send]
    polls: list[Poll]
    log: dict[Place, list[tuple[int, bytes]]]
    transactions: list[Transaction]
    rng: random.Random

    def problems(self) -> dict[str, list[str]]:
        found: Log = self.log
        return {
            "C1": check_delivery(self.sends, found),
            "C2": check_offsets(self.sends, self.polls, found),
            "C6": check_transactions(self.transactions, found),
        }

    def some(self, outcome: Outcome) -> Send:
        return self.rng.choice([send for send in self.sends if send.outcome is outcome])


def true_history(seed: int) -> World:
    """Two producers, transactions of three records, and a reader, all correct."""
    rng = random.Random(seed)
    world = World([], [], {place: [] for place in PLACES}, [], rng)
    for number in range(120):
        place, producer = rng.choice(PLACES), rng.choice("ab")
        log, value = world.log[place], b"%d" % number
        outcome = rng.choice([Outcome.OK] * 8 + [Outcome.FAILED, Outcome.UNKNOWN])
        is_there = outcome is Outcome.OK or (outcome is Outcome.UNKNOWN and rng.random() < 0.5)
        world.sends.append(Send(producer, place, value, outcome, len(log) if outcome is Outcome.OK else -1))
        if is_there:
            log.append((len(log), value))
    for number in range(12):
        records = tuple((rng.choice(PLACES), b"t%d.%d" % (number, part)) for part in range(3))
        outcome = list(Outcome)[number % 3]
        is_there = outcome is Outcome.OK or (outcome is Outcome.UNKNOWN and rng.random() < 0.5)
        world.transactions.append(Transaction(f"t{number}", records, outcome))
        for place, value in records:
            world.sends.append(Send("x", place, value, Outcome.UNKNOWN))
            if is_there:
                world.log[place].append((len(world.log[place]), value))
    world.polls = [Poll("r", place, *record) for place in PLACES for record in world.log[place]]
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_a_true_history_has_no_problems(seed) -> None:
    assert true_history(seed).problems() == {"C1": [], "C2": [], "C6": []}


def lose_an_acknowledged_record(world: World) -> None:
    send = world.some(Outcome.OK)
    log = world.log[send.place]
    log[send.offset] = (send.offset, b"something else")


def cut_the_tail(world: World) -> None:
    for log in world.log.values():
        del log[len(log) // 2 :]


def store_a_retry_twice(world: World) -> None:
    send = world.some(Outcome.OK)
    log = world.log[send.place]
    log.append((len(log), send.value))


def store_what_failed(world: World) -> None:
    send = world.some(Outcome.FAILED)
    log = world.log[send.place]
    log.append((len(log), send.value))


def invent_a_record(world: World) -> None:
    log = world.log[PLACES[0]]
    log.append((len(log), b"from nowhere"))


def give_an_offset_again(world: World) -> None:
    """The log was truncated after a read, and written again."""
    poll = world.rng.choice(world.polls)
    world.polls.append(replace(poll, reader="s", value=b"what was there before"))


def acknowledge_with_a_wrong_offset(world: World) -> None:
    index = world.sends.index(world.some(Outcome.OK))
    world.sends[index] = replace(world.sends[index], offset=world.sends[index].offset + 1)


def send_a_reader_back(world: World) -> None:
    world.polls.append(world.rng.choice(world.polls))


def swap_two_of_a_producer(world: World) -> None:
    mine = [s for s in world.sends if s.producer == "a" and s.outcome is Outcome.OK and s.place == PLACES[0]]
    first, second = mine[0], mine[-1]
    log = world.log[PLACES[0]]
    log[first.offset], log[second.offset] = (first.offset, second.value), (second.offset, first.value)
    swapped = {first: replace(first, offset=second.offset), second: replace(second, offset=first.offset)}
    world.sends = [swapped.get(send, send) for send in world.sends]
    world.polls = []


def leave_a_gap(world: World) -> None:
    for log in world.log.values():
        log[:] = [(offset + (offset > 3), value) for offset, value in log]
    world.polls = []
    world.sends = [replace(send, offset=-1) for send in world.sends]


def tear(world: World, outcome: Outcome) -> None:
    """A transaction has one record more, or less, than it should."""
    transaction = next(t for t in world.transactions if t.outcome is outcome)
    (place, value), rest = transaction.records[0], transaction.records[1:]
    if outcome is Outcome.FAILED:
        world.log[place].append((len(world.log[place]), value))
        return
    world.log = {p: [r for r in log if r[1] != value] for p, log in world.log.items()}
    for rest_place, rest_value in rest:
        if all(rest_value != r[1] for r in world.log[rest_place]):
            world.log[rest_place].append((len(world.log[rest_place]), rest_value))


LIES = {
    lose_an_acknowledged_record: "C1",
    cut_the_tail: "C1",
    store_a_retry_twice: "C1",
    store_what_failed: "C1",
    invent_a_record: "C1",
    give_an_offset_again: "C2",
    acknowledge_with_a_wrong_offset: "C2",
    send_a_reader_back: "C2",
    swap_two_of_a_producer: "C2",
    leave_a_gap: "C2",
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_lie_is_found_by_the_rule_it_breaks(seed, lie) -> None:
    world = true_history(seed)
    lie(world)
    assert world.problems()[LIES[lie]]


@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("seed", SEEDS)
def test_c6_a_torn_or_wrongly_ended_transaction_is_found(seed, outcome) -> None:
    world = true_history(seed)
    tear(world, outcome)
    assert world.problems()["C6"]


GOOD = [LoggedBatch(0, 4, 1, 0), LoggedBatch(5, 5, 1, 100), LoggedBatch(6, 9, 3, 200)]


@pytest.mark.parametrize(
    ("batches", "index", "said"),
    [
        ([GOOD[0], GOOD[2]], [], "offset 6 follows 4"),
        ([GOOD[0], replace(GOOD[1], leader_epoch=0)], [], "epoch 0 at 5 follows 1"),
        ([replace(GOOD[0], is_whole=False)], [], "the batch at 0 is damaged"),
        (GOOD, [(5, 90)], "offset 5 at byte 90, a scan finds it at 100"),
        (GOOD, [(7, 200)], "a scan finds it at None"),
    ],
)
def test_c3_a_damaged_log_is_described(batches, index, said) -> None:
    assert check_log(GOOD, [(4, 0), (9, 200)]) == []
    (problem,) = check_log(batches, index)
    assert said in problem


def test_c3_segments_on_disk_are_checked(tmp_path) -> None:
    from headrace.broker.log.config import LogConfig
    from headrace.broker.log.partition_log import PartitionLog

    world = LogWorld()
    log = PartitionLog.open(tmp_path / "t-0", LogConfig(index_interval_bytes=100), clock=world.clock)
    for epoch in range(5):
        world.append(log, 3, value=b"x" * 100, epoch=epoch)
    log.close()
    path = tmp_path / "t-0" / f"{0:020}.log"
    batches, index = read_segment(path)
    assert [(b.base_offset, b.leader_epoch) for b in batches] == [(3 * epoch, epoch) for epoch in range(5)]
    assert len(index) >= 3
    assert check_log(batches, index) == []
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert check_log(*read_segment(path)) == ["the batch at 12 is damaged"]


@pytest.mark.parametrize(
    ("kept", "is_true"), [(7, True), (8, True), (6, False), (5, True), (4, False), (0, False)]
)
def test_a_position_goes_back_to_none_that_was_answered(kept, is_true) -> None:
    assert (check_position(7, {5, 9}, kept) == []) is is_true
