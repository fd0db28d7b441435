"""Rounds under random lives: workers that send heartbeats, commit, fail, fall silent, begin twice, come back too
late.
"""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.server.lake.machine import Candidate, LakeMachine, LakeState, Now, Timing

TABLES = [Candidate(UUID(int=n + 1), freshness) for n, freshness in enumerate((0, 5_000, 60_000))]
TIMING = Timing(lease=10_000, round_max=40_000, retry=1_000, retry_max=20_000)
tables = st.sampled_from(TABLES)
workers = st.sampled_from(["a", "b", "c"])


class Lives(RuleBasedStateMachine):
    """The workers. `grants` are the rounds that each worker believes it has, perhaps wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = LakeMachine(TIMING)
        self.ms = 1_000_000
        self.epochs: dict[UUID, int] = {}
        self.offsets: dict[UUID, int] = {}
        self.committed_at: dict[UUID, int] = {}
        self.put_off: dict[UUID, int] = {}
        self.heard: dict[UUID, int] = {}
        self.holder: dict[UUID, tuple[str, int]] = {}
        self.grants: list[tuple[str, UUID, int]] = []

    @property
    def now(self) -> Now:
        return Now(self.ms + 7, self.ms)

    def holds(self, worker: str, table_id: UUID, epoch: int) -> bool:
        return self.holder.get(table_id) == (worker, epoch)

    def is_silent(self, table_id: UUID) -> bool:
        return table_id in self.holder and self.ms - self.heard[table_id] >= TIMING.lease

    def failed(self, table_id: UUID, at: int) -> None:
        self.holder.pop(table_id)
        failures = self.machine.trouble(table_id).failures
        self.put_off[table_id] = at + min(TIMING.retry * 2 ** (failures - 1), TIMING.retry_max)

    @rule(ms=st.sampled_from([1, 999, 4_000, 10_000, 70_000]))
    def time_passes(self, ms: int) -> None:
        self.ms += ms

    @rule(worker=workers, force=st.booleans(), wanted=st.lists(tables, min_size=1, unique=True))
    def begin(self, worker: str, force: bool, wanted: list[Candidate]) -> None:
        silent = [table.table_id for table in wanted if self.is_silent(table.table_id)]
        granted = self.machine.begin(self.now, worker, wanted, force=force)
        for table_id in silent:  # noticed, and put off
            self.failed(table_id, self.heard[table_id] + TIMING.lease)

        def may_have(table: Candidate) -> bool:
            free = self.holder.get(table.table_id, (worker, 0))[0] == worker
            due = self.committed_at.get(table.table_id, -(10**9)) + table.freshness_ms <= self.ms + 7
            return free and (force or (due and self.put_off.get(table.table_id, 0) <= self.ms))

        allowed = [table.table_id for table in wanted if may_have(table)]
        if granted is None:
            assert not allowed
            return
        table_id, epoch = granted
        assert table_id in allowed
        assert epoch > self.epochs.get(table_id, 0)
        self.epochs[table_id] = epoch
        self.holder[table_id] = (worker, epoch)
        self.heard[table_id] = self.ms
        self.grants.append((worker, table_id, epoch))

    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        if not self.grants:
            return
        worker, table_id, epoch = data.draw(st.sampled_from(self.grants))
        if self.holds(worker, table_id, epoch):
            self.machine.heartbeat(self.now, table_id, epoch)
            self.heard[table_id] = self.ms
        else:
            with pytest.raises(TableError, match="is over"):
                self.machine.heartbeat(self.now, table_id, epoch)

    @rule(data=st.data(), grown=st.integers(-2, 5))
    def commit(self, data: st.DataObject, grown: int) -> None:
        if not self.grants:
            return
        worker, table_id, epoch = data.draw(st.sampled_from(self.grants))
        known = self.offsets.get(table_id, 0)
        if not self.holds(worker, table_id, epoch) or grown < 0:
            before = self.machine.state(table_id)
            with pytest.raises(TableError):
                self.machine.commit(self.now, table_id, epoch, 9, {0: known + grown})
            assert self.machine.state(table_id) == before
            return
        self.machine.commit(self.now, table_id, epoch, 9, {0: known + grown})
        self.offsets[table_id] = known + grown
        self.committed_at[table_id] = self.ms + 7
        self.put_off.pop(table_id, None)
        self.heard[table_id] = self.ms

    @rule(data=st.data(), failure=st.sampled_from([None, "disk full"]))
    def give_back(self, data: st.DataObject, failure: str | None) -> None:
        if not self.grants:
            return
        worker, table_id, epoch = data.draw(st.sampled_from(self.grants))
        if not self.holds(worker, table_id, epoch):
            with pytest.raises(TableError, match="is over"):
                self.machine.give_back(self.now, table_id, epoch, failure)
            return
        self.machine.give_back(self.now, table_id, epoch, failure)
        if failure is None:
            self.holder.pop(table_id)
        else:
            self.failed(table_id, self.ms)

    @rule(table=tables)
    def restart(self, table: Candidate) -> None:
        """Restart with the durable state; the next round fences the owner of the present one."""
        states = {table_id: self.machine.state(table_id) for table_id in self.machine.tables()}
        self.machine = LakeMachine(TIMING)
        for table_id, state in states.items():
            self.machine.restore(table_id, LakeState.from_json(state.to_json()))
        self.holder, self.put_off = {}, {}

    @rule(table=tables)
    def drop(self, table: Candidate) -> None:
        self.machine.forget(table.table_id)
        for known in (self.offsets, self.committed_at, self.put_off, self.epochs):
            known.pop(table.table_id, None)  # type: ignore[attr-defined]
        self.holder.pop(table.table_id, None)
        # Its epochs begin again, but a table that is created again has another id, which no worker has.
        self.grants = [grant for grant in self.grants if grant[1] != table.table_id]

    @invariant()
    def what_is_tiered_is_known(self) -> None:
        for table in TABLES:
            state = self.machine.state(table.table_id)
            assert state.offsets.get(0, 0) == self.offsets.get(table.table_id, 0)
            running = self.machine.round_of(table.table_id)
            held = self.holder.get(table.table_id)
            assert (running is None) == (held is None)
            assert running is None or (running.worker, running.epoch) == held


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def begun(machine: LakeMachine, ms: int = 0) -> tuple[UUID, int]:
    granted = machine.begin(Now(ms, ms), "a", TABLES[:1], force=True)
    assert granted is not None
    return granted


def test_waits_double_up_to_a_limit_and_a_commit_ends_them() -> None:
    machine, at, waits = LakeMachine(TIMING), 0, []
    for _ in range(8):
        table_id, epoch = begun(machine, at)
        machine.give_back(Now(at, at), table_id, epoch, "no space")
        waits.append(machine.trouble(table_id).retry_at - at)
        at += 10
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 20_000, 20_000, 20_000]
    assert machine.trouble(table_id).error == "no space"
    table_id, epoch = begun(machine, at)
    machine.commit(Now(at, at), table_id, epoch, 1, {0: 1})
    assert machine.trouble(table_id).failures == 0


def test_a_round_is_told_to_finish_when_asked_or_when_it_lasts_too_long() -> None:
    machine = LakeMachine(TIMING)
    table_id, epoch = begun(machine)
    assert machine.heartbeat(Now(0, 5_000), table_id, epoch, 12, "writing") is False
    running = machine.round_of(table_id)
    assert running is not None
    assert (running.changes, running.doing) == (12, "writing")
    assert machine.finish(table_id) is True
    assert machine.heartbeat(Now(0, 6_000), table_id, epoch) is True
    machine.give_back(Now(0, 6_000), table_id, epoch, None)
    assert machine.finish(table_id) is False
    table_id, epoch = begun(machine)
    for ms in (10_000, 19_000, 28_000, 37_000):
        assert machine.heartbeat(Now(0, ms), table_id, epoch) is False
    assert machine.heartbeat(Now(0, 40_000), table_id, epoch) is True


def test_a_worker_that_falls_silent_loses_its_round_and_every_sign_of_life_renews_the_lease() -> None:
    machine = LakeMachine(TIMING)
    table_id, epoch = begun(machine)
    machine.heartbeat(Now(0, 6_000), table_id, epoch)
    machine.commit(Now(0, 12_000), table_id, epoch, 1, {0: 1})
    assert machine.begin(Now(0, 21_999), "b", TABLES[:1], force=True) is None
    assert machine.round_of(table_id) is not None
    assert machine.begin(Now(0, 22_000), "b", TABLES[:1], force=True) == (table_id, epoch + 1)
    assert machine.trouble(table_id).error == f"worker a fell silent in round {epoch}"
    with pytest.raises(TableError, match="is over"):
        machine.heartbeat(Now(0, 22_001), table_id, epoch)


def test_the_longest_waiting_table_is_next_and_none_before_its_time() -> None:
    machine = LakeMachine(TIMING)
    other = [Candidate(UUID(int=n), 5_000) for n in (7, 8)]
    for table, at in zip(other, (3_000, 1_000), strict=True):
        machine.restore(table.table_id, LakeState(1, 1, at))
    assert machine.begin(Now(5_999, 5_999), "a", other, force=False) is None
    assert machine.begin(Now(9_000, 9_000), "a", other, force=False) == (other[1].table_id, 2)
    assert machine.begin(Now(9_000, 9_000), "b", [*other, TABLES[0]], force=False) == (TABLES[0].table_id, 1)
    assert machine.begin(Now(9_000, 9_000), "c", other, force=False) == (other[0].table_id, 2)


def test_offsets_of_buckets_that_a_commit_does_not_name_stay() -> None:
    machine = LakeMachine(TIMING)
    table_id, epoch = begun(machine)
    machine.commit(Now(0, 0), table_id, epoch, 1, {0: 1, 1: 5})
    assert machine.commit(Now(0, 0), table_id, epoch, 2, {0: 2}).offsets == {0: 2, 1: 5}
    for behind in ({1: 4}, {0: 9, 1: 4}):
        with pytest.raises(TableError, match="bucket 1 was already tiered up to offset 5; 4 is lower"):
            machine.commit(Now(0, 0), table_id, epoch, 3, behind)
    assert machine.state(table_id).offsets == {0: 2, 1: 5}
