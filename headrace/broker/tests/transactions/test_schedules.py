"""Random lives of transactional ids: clients, zombies, timeouts, lost answers, failures, crashes at any append.

A read_committed consumer sees only whole transactions (checker C6), and every transaction ends. A failing seed is
printed; `HEADRACE_TXN_SEED` and `HEADRACE_TXN_SCHEDULES` replay and lengthen.
"""

import os
import random

import pytest

from headrace.broker.runtime.invariants import InvariantError
from headrace.broker.transactions import state as machine
from headrace.broker.transactions.model import EPOCH_LAST_USABLE
from headrace.protocol.errors import ErrorCode, KafkaError
from simulator.transactions import (
    CrashError,
    History,
    SimulatedProducer,
    TransactionWorld,
    check_atomicity,
)

SCHEDULES = int(os.environ.get("HEADRACE_TXN_SCHEDULES", "1000"))
FIRST_SEED = int(os.environ.get("HEADRACE_TXN_SEED", "0"))


def play(seed: int, version: int, steps: int = 60) -> tuple[TransactionWorld, History]:
    rng = random.Random(seed)
    world, history = TransactionWorld(), History()
    ids = ["one", "two"][: rng.randint(1, 2)]
    clients = [SimulatedProducer(world, history, name, version) for name in ids]
    for number in range(steps):
        what = rng.random()
        try:
            if what < 0.06:
                world.crash_in = rng.randint(1, 8)
            elif what < 0.08:
                world.restart()
            elif what < 0.12:
                world.tick(rng.choice([1.0, 30.0, 61.0]))
            elif what < 0.14:
                world.wall_offset_ms += rng.choice([-1, 1]) * 3_600_000
            elif what < 0.17:
                world.append_error = rng.choice([ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE])
            elif what < 0.20:
                world.marker_error = rng.random() < 0.5
            elif what < 0.24:
                # The client seems to be gone, and another takes over; the old one may come back.
                clients.append(SimulatedProducer(world, history, rng.choice(ids), version))
            elif what < 0.30:
                rng.choice(clients).act_late(rng)
            elif what < 0.40:
                rng.choice(clients).act(rng)
            else:
                clients[-1].act(rng)
        except CrashError:
            world.restart()
        if number % 15 == 14:
            check_atomicity(world, history, settled=False)
    try:
        world.settle()
    except CrashError:
        world.restart()
        world.settle()
    check_atomicity(world, history)
    for partition in world.partitions.values():
        assert partition.state.first_unstable_offset is None, "a transaction never ended"
    return world, history


@pytest.mark.parametrize("version", [1, 2])
def test_c6_transactions_are_atomic_under_random_schedules(version):
    outcomes = {True: 0, False: 0, None: 0}
    for seed in range(FIRST_SEED, FIRST_SEED + SCHEDULES):
        try:
            _, history = play(seed, version)
        except BaseException as error:
            error.add_note(f"HEADRACE_TXN_SEED={seed} HEADRACE_TXN_SCHEDULES=1, version {version}")
            raise
        for outcome in history.outcomes.values():
            outcomes[outcome] += 1
    if SCHEDULES >= 100:
        assert min(outcomes.values()) > SCHEDULES / 10, outcomes


def mutant_forgets_the_decision(monkeypatch):
    """A restart aborts a transaction that was about to commit."""
    original = machine.restore

    def restore(transactional_id, stored, now):
        if stored.state is machine.State.PREPARE_COMMIT:
            stored = machine.replace(stored, state=machine.State.PREPARE_ABORT)
        return original(transactional_id, stored, now)

    monkeypatch.setattr("simulator.transactions.restore", restore)


def mutant_never_fences(monkeypatch):
    """A new owner gets the old one's epoch."""
    original = machine._init_stored

    def init_stored(transaction, pending, error):
        stored = machine.replace(pending.stored, producer_epoch=0)
        return original(transaction, machine.replace(pending, stored=stored), error)

    monkeypatch.setattr(machine, "_init_stored", init_stored)


def mutant_completes_without_markers(monkeypatch):
    """One marker counts for all."""

    def marked(transaction, event, now, limits):
        transaction.unmarked.clear()
        return machine._complete(transaction, now) if transaction.stored.state.is_ending else []

    monkeypatch.setitem(machine._HANDLERS, machine.Marked, marked)


def mutant_lets_everything_in(monkeypatch):
    """No check that a write is part of the open transaction (T2)."""
    monkeypatch.setattr("simulator.transactions.partition_error", lambda *_: ErrorCode.NONE)


def mutant_takes_late_ends(monkeypatch):
    """An end of the last transaction ends this one (E4)."""
    original = machine._end_raising_epoch

    def end(transaction, event, now):
        if transaction.stored is not None:
            event = machine.replace(event, producer_epoch=transaction.stored.producer_epoch)
        return original(transaction, event, now)

    monkeypatch.setattr(machine, "_end_raising_epoch", end)


def mutant_loses_partitions_in_a_restart(monkeypatch):
    """The markers of an open transaction go to one partition only."""
    original = machine.restore

    def restore(transactional_id, stored, now):
        kept = frozenset(sorted(stored.partitions)[:1])
        return original(transactional_id, machine.replace(stored, partitions=kept), now)

    monkeypatch.setattr("simulator.transactions.restore", restore)


def mutant_acknowledges_an_end_that_is_not_stored(monkeypatch):
    original = machine._end_stored

    def end_stored(transaction, pending, error, *more):
        if error is not ErrorCode.NONE and pending.token is not None:
            stored = pending.stored
            done = machine.Result(ErrorCode.NONE, stored.producer_id, stored.producer_epoch)
            return [machine.Reply(pending.token, done)]
        return original(transaction, pending, error, *more)

    monkeypatch.setattr(machine, "_end_stored", end_stored)


@pytest.mark.parametrize(
    ("mutate", "version"),
    [
        (mutant_takes_late_ends, 2),
        (mutant_loses_partitions_in_a_restart, 1),
        (mutant_loses_partitions_in_a_restart, 2),
        (mutant_acknowledges_an_end_that_is_not_stored, 2),
        (mutant_forgets_the_decision, 1),
        (mutant_forgets_the_decision, 2),
        (mutant_never_fences, 1),
        (mutant_completes_without_markers, 1),
        (mutant_lets_everything_in, 2),
    ],
)
def test_the_schedules_find_a_broken_coordinator(mutate, version, monkeypatch):
    mutate(monkeypatch)
    with pytest.raises((InvariantError, AssertionError, KafkaError)):
        for seed in range(1000):
            play(seed, version)


def test_an_id_whose_epochs_run_out_goes_on_with_another(monkeypatch):
    """The same schedules on the edge: epochs begin close to their end."""
    original = machine._begin_id

    def begin_id(transaction, event, now, previous, last_epoch):
        effects = original(transaction, event, now, previous, last_epoch)
        (append,) = effects
        if not hasattr(append, "pending"):
            return effects
        stored = machine.replace(append.stored, producer_epoch=EPOCH_LAST_USABLE - 2 if previous < 0 else 0)
        return [
            machine.replace(append, stored=stored, pending=machine.replace(append.pending, stored=stored))
        ]

    monkeypatch.setattr(machine, "_begin_id", begin_id)
    changed = 0
    for seed in range(200):
        for version in (1, 2):
            try:
                world, _ = play(seed, version)
            except BaseException as error:
                error.add_note(f"seed {seed}, version {version}")
                raise
            changed += any(
                t.stored is not None and t.stored.producer_epoch < 100 for t in world.transactions.values()
            )
    assert changed > 20
