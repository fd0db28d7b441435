"""Tiering rounds without Spark: a lake, a log and a coordinator in memory, compared with the log at the lake's offsets.

`test_tiering.py` and `test_paimon.py` have real lakes.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from headrace.tablelayer.lake import tiering_round
from headrace.tablelayer.lake.adapter import LakeError, LakeState, RoundLostError
from headrace.tablelayer.lake.coordinator import Heartbeats, LakeStatus, TieringRound
from headrace.tablelayer.lake.tiering_round import Outcome, RoundResult, tier_round
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.lake.offsets import Offsets, PartitionBucket
from headrace.tablelayer.model.table.path import TablePath

PATH = TablePath("shop", "orders")
TABLE_ID = UUID(int=1)
Change = tuple[int, int | None]
"""A key and its new value; None deletes it."""


@dataclass
class Frame:
    """Stands for a DataFrame: last changes by place and key."""

    rows: dict[tuple[Any, int], int | None]

    def unionByName(self, other: Frame) -> Frame:  # Spark's name
        assert not self.rows.keys() & other.rows.keys(), "a row is there twice"
        return Frame({**self.rows, **other.rows})


@dataclass
class Log:
    """A PK table's changes by place. `store`: the state can be asked for, as that of a table with old images."""

    entries: dict[Any, list[Change]] = field(default_factory=lambda: {0: [], 1: []})
    cut: dict[Any, int] = field(default_factory=dict)
    store: bool = False
    read: list[tuple[Any, int, int]] = field(default_factory=list)

    def at(self, place: Any, end: int) -> dict[tuple[Any, int], int]:
        rows = {(place, key): value for key, value in self.entries[place][:end]}
        return {at: value for at, value in rows.items() if value is not None}

    def rows(self, end: Offsets) -> dict[tuple[Any, int], int]:
        return {at: value for place, stop in end.items() for at, value in self.at(place, stop).items()}

    def earliest(self) -> dict[Any, int]:
        return {place: self.cut.get(place, 0) for place in self.entries}

    def latest(self) -> dict[Any, int]:
        return {place: len(entries) for place, entries in self.entries.items()}

    def state(self, spark: Any, end: Offsets) -> Frame | None:
        return Frame(dict(self.rows(end))) if self.store else None

    def changes(self, spark: Any, start: Offsets, end: Offsets) -> Frame:
        found: dict[tuple[Any, int], int | None] = {}
        for place, stop in end.items():
            assert self.cut.get(place, 0) <= start[place] <= stop <= len(self.entries[place])
            self.read.append((place, start[place], stop))
            found |= {(place, key): value for key, value in self.entries[place][start[place] : stop]}
        return Frame(found)


@dataclass
class Lake:
    """A lake with snapshots in memory; uncommitted ones are not visible."""

    head: LakeState = field(default_factory=LakeState)
    rows: dict[tuple[Any, int], int] = field(default_factory=dict)
    written: dict[int, tuple[LakeState, dict[tuple[Any, int], int], Offsets, int]] = field(
        default_factory=dict
    )
    discarded: list[int] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    on_commit: Callable[[], None] = lambda: None
    ids: Any = field(default_factory=lambda: itertools.count(100))

    def find_committed(self, known_snapshot: int | None = None) -> LakeState:
        return self.head

    def write(self, base: LakeState, changes: Frame, offsets: Offsets, epoch: int) -> int:
        rows = {**self.rows, **changes.rows}
        snapshot = int(next(self.ids))
        living = {at: value for at, value in rows.items() if value is not None}
        self.written[snapshot] = (base, living, dict(offsets), epoch)
        self.events.append("write")
        return snapshot

    def commit(self, base: LakeState, snapshot: int, epoch: int) -> None:
        self.on_commit()
        of, rows, offsets, written = self.written[snapshot]
        assert (of, written) == (base, epoch)
        if self.head != base:
            raise RoundLostError("somebody else committed first")
        self.head, self.rows = LakeState(snapshot, snapshot, offsets, epoch), rows
        self.events.append("commit")

    def discard(self, epoch: int) -> None:
        self.discarded.append(epoch)

    def maintain(self) -> str:
        self.events.append("maintain")
        return ""


@dataclass
class Coordinator:
    told: list[tuple[int, Offsets]] = field(default_factory=list)
    error: Exception | None = None
    fenced: bool = False
    finish: bool = False
    beats: int = 0

    def heartbeat(self, granted: TieringRound, changes: int = 0, doing: str = "") -> bool:
        self.beats += 1
        if self.fenced:
            raise TableError(TableErrorCode.FENCED_TIERING_EPOCH, "fenced")
        return self.finish

    def commit(self, granted: TieringRound, snapshot_id: int, offsets: Offsets) -> None:
        if self.error is not None:
            raise self.error
        self.told.append((snapshot_id, dict(offsets)))

    def describe(self, table_id: UUID) -> LakeStatus:
        return LakeStatus(True, "iceberg", self.told[-1][0] if self.told else None)


class World:
    def __init__(self, **log: Any) -> None:
        self.log, self.lake, self.coordinator = Log(**log), Lake(), Coordinator()
        self.epoch = 0
        self.put_away: list[tuple[dict[Any, int], dict[Any, int]]] = []

    def tier(self) -> RoundResult:
        self.epoch += 1
        granted = TieringRound(PATH, TABLE_ID, self.epoch, 30_000)
        coordinator: Any = self.coordinator
        lake: Any = self.lake

        def before(start: Offsets, end: Offsets) -> None:
            self.lake.events.append("put away")
            self.put_away.append((dict(start), dict(end)))

        return tier_round(granted, coordinator, lake, self.log, None, before)

    def check(self) -> None:
        assert self.lake.rows == self.log.rows(self.lake.head.offsets)


@pytest.fixture
def small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiering_round, "ROUND_ROWS_MAX", 5)


def test_a_round_copies_missing_rows_and_reports_its_commit() -> None:
    world = World()
    world.log.entries = {0: [(1, 1), (2, 2), (1, None)], 1: [(5, 5)]}
    first = world.tier()
    assert (first.outcome, first.changes, dict(first.offsets), first.more) == (
        Outcome.COMMITTED, 4, {0: 3, 1: 1}, False,
    )  # fmt: skip
    assert world.lake.events == ["write", "put away", "commit", "maintain"]
    world.log.entries[0] += [(2, None), (3, 3)]
    world.log.read.clear()
    second = world.tier()
    assert (second.changes, second.snapshot) == (2, world.lake.head.committed)
    assert world.log.read == [(0, 3, 5), (1, 1, 1)]
    assert world.put_away[-1] == ({0: 3, 1: 1}, {0: 5, 1: 1})
    assert world.lake.rows == {(0, 3): 3, (1, 5): 5}
    world.check()
    assert world.coordinator.told == [(100, {0: 3, 1: 1}), (101, {0: 5, 1: 1})]
    assert world.lake.discarded == [1, 2]
    third = world.tier()
    assert (third.outcome, third.snapshot, third.changes) == (Outcome.NOTHING_NEW, 101, 0)
    assert world.coordinator.told[2:] == [(101, {0: 5, 1: 1})], "a report that was lost is repeated"
    assert world.lake.discarded == [1, 2], "nothing was written"


def test_a_round_of_an_empty_table_does_nothing() -> None:
    world = World()
    assert world.tier().outcome is Outcome.NOTHING_NEW
    assert (world.lake.events, world.coordinator.told) == ([], [])


def test_a_backlog_goes_in_several_commits_each_exact(small_rounds: None) -> None:
    world = World()
    world.log.entries = {0: [(n % 3, n) for n in range(12)], 1: [(n, n) for n in range(7)]}

    def exact() -> None:
        world.check()
        ends = {0: 0, 1: 0}
        for place, start, stop in world.log.read:
            assert start == ends[place]
            ends[place] = stop

    world.lake.on_commit = exact
    result = world.tier()
    assert (result.outcome, result.changes, result.more) == (Outcome.COMMITTED, 19, False)
    assert [offsets for _, offsets in world.coordinator.told] == [{0: 5, 1: 5}, {0: 10, 1: 7}, {0: 12, 1: 7}]
    assert world.lake.events.count("commit") == 3
    assert world.lake.events.count("maintain") == 1
    world.check()


def test_a_round_that_is_to_finish_ends_after_the_piece_in_hand(
    small_rounds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.log.entries = {0: [(n, n) for n in range(12)]}
    made = Heartbeats.__init__

    def told_to_finish(self: Heartbeats, *arguments: Any) -> None:
        made(self, *arguments)
        self.finish.set()

    monkeypatch.setattr(Heartbeats, "__init__", told_to_finish)
    result = world.tier()
    assert (result.outcome, result.more, result.changes) == (Outcome.COMMITTED, True, 5)
    assert world.coordinator.told == [(100, {0: 5})]
    world.check()


def test_a_fenced_round_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.log.entries = {0: [(1, 1)]}
    made = Heartbeats.__init__

    def fenced(self: Heartbeats, *arguments: Any) -> None:
        made(self, *arguments)
        self.fenced.set()

    monkeypatch.setattr(Heartbeats, "__init__", fenced)
    assert world.tier().outcome is Outcome.FENCED
    assert (world.lake.events, world.put_away, world.coordinator.told) == (["write"], [], [])
    assert world.lake.discarded == [1]


def test_the_losing_one_of_two_tierers_reports_no_offsets() -> None:
    world = World()
    world.log.entries = {0: [(1, 1)]}

    def another() -> None:
        world.lake.on_commit = lambda: None
        world.log.entries[0].append((2, 2))
        assert world.tier().outcome is Outcome.COMMITTED

    world.lake.on_commit = another
    lost = world.tier()
    assert (lost.outcome, lost.detail) == (Outcome.LOST, "somebody else committed first")
    assert [offsets for _, offsets in world.coordinator.told] == [{0: 2}]
    assert sorted(world.lake.discarded) == [1, 2]
    world.check()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionError("it is away"), "the report did not reach the server; the next round repeats it: it is away"),
        (TableError(TableErrorCode.FENCED_TIERING_EPOCH, "no"), "refused the report; the next round repeats it"),
    ],
)  # fmt: skip
def test_a_report_that_fails_does_not_undo_the_commit(error: Exception, words: str) -> None:
    world = World()
    world.log.entries = {0: [(1, 1)]}
    world.coordinator.error = error
    result = world.tier()
    assert result.outcome is Outcome.COMMITTED
    assert words in result.detail
    world.check()
    world.coordinator.error = None
    assert world.tier().outcome is Outcome.NOTHING_NEW
    assert world.coordinator.told == [(100, {0: 1})]


def test_rows_that_are_gone_and_a_log_that_was_cut_stop_tiering() -> None:
    world = World()
    world.log.entries = {0: [(n, n) for n in range(6)]}
    world.tier()
    world.log.cut[0] = 6
    assert world.tier().outcome is Outcome.NOTHING_NEW, "nothing is missing in between"
    world.log.entries[0] += [(7, 7), (8, 8)]
    world.log.cut[0] = 7
    with pytest.raises(LakeError, match="is tiered up to offset 6, but its log begins at 7"):
        world.tier()
    world.log.cut[0], world.log.entries[0] = 0, world.log.entries[0][:5]
    with pytest.raises(LakeError, match="is tiered up to offset 6, but its log ends at 5"):
        world.tier()
    assert len(world.coordinator.told) == 2


@pytest.mark.parametrize("store", [True, False])
def test_a_first_round_begins_with_the_state_or_with_the_log(small_rounds: None, store: bool) -> None:
    """The log of a bucket with a state is not read, however much of it is gone."""
    world = World(store=store)
    old, new = (PartitionBucket(name, UUID(int=number), 0) for name, number in (("a", 5), ("b", 6)))
    world.log.entries = {old: [(n, n) for n in range(8)]}
    if store:
        world.log.cut[old] = 7
    world.tier()
    world.check()
    assert world.log.read == ([] if store else [(old, 0, 5), (old, 5, 8)])
    world.log.entries[old] += [(1, None), *((n, n) for n in range(20, 25))]
    world.log.entries[new] = [(n % 4, n) for n in range(9)]
    world.log.read.clear()
    world.tier()
    world.check()
    assert world.log.read == (
        [(old, 8, 13), (old, 13, 14), (new, 9, 9)]
        if store
        else [(old, 8, 13), (new, 0, 5), (old, 13, 14), (new, 5, 9)]
    )
    assert dict(world.lake.head.offsets) == {old: 14, new: 9}


def test_partitions_that_are_gone_are_not_carried_along() -> None:
    world = World()
    a, b, again = (
        PartitionBucket(name, UUID(int=number), 0) for name, number in (("a", 5), ("b", 6), ("a", 7))
    )
    world.log.entries = {a: [(1, 1)], b: [(1, 1)]}
    world.tier()
    del world.log.entries[a]
    world.log.entries |= {again: [(1, 1), (2, 2)]}
    world.log.read.clear()
    world.tier()
    assert dict(world.lake.head.offsets) == {again: 2, b: 1}
    assert (again, 0, 2) in world.log.read


def test_random_rounds_of_tierers_that_die_lose_and_double_nothing(small_rounds: None) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    for store in (False, True):
        world = World(store=store)
        world.lake.on_commit = world.check

        def die(world: World = world) -> None:
            if rng.random() < 0.2:
                raise KeyboardInterrupt

        for _ in range(60):
            for entries in world.log.entries.values():
                entries += [
                    (rng.randrange(6), rng.choice([None, rng.randrange(100)]))
                    for _ in range(rng.randrange(9))
                ]
            world.lake.on_commit = rng.choice([world.check, die])
            try:
                result = world.tier()
            except KeyboardInterrupt:
                pass
            else:
                assert result.outcome in (Outcome.COMMITTED, Outcome.NOTHING_NEW)
                latest = world.log.latest()  # the first round of empty logs commits nothing
                assert {place: world.lake.head.offsets.get(place, 0) for place in latest} == latest
            world.check()
            for place in world.log.entries:  # what is tiered may leave the log
                world.log.cut[place] = world.lake.head.offsets.get(place, 0)
