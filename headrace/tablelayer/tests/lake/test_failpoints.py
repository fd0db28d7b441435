"""Twelve places where a tierer may be killed, fail, or lose an answer; afterwards the lake equals the log all the same.

`kill`: the tierer is gone at once, without a clean-up. `error`: the step fails and was not done. `unknown`: the step
was done, but its answer is lost. A new tierer then goes on. At every moment the lake must equal the log up to the
offsets inside its snapshot, as Spark reads it and as another reader does: pyiceberg here.

All cells run with `-m soak`; HEADRACE_SOAK_ROWS and HEADRACE_SOAK_SEED change length and keys.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from headrace.tablelayer.lake import iceberg
from headrace.tablelayer.lake.coordinator import TieringRound
from headrace.tablelayer.lake.tiering_round import Outcome, tier_round
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.tests.lake.test_tiering import AFTER, DELETE, INSERT, World, definition, row

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

POINTS = (
    "plan", "read", "write file", "close", "stage", "before CAS",
    "after CAS", "cache offsets", "release", "expire", "cleanup", "retention",
)  # fmt: skip
KINDS = ("kill", "error", "unknown")
ROWS = int(os.environ.get("HEADRACE_SOAK_ROWS", "2000"))
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "20240919"))


class Killed(BaseException):
    """The tierer's process is gone."""


class Fault:
    """One fault at one point. Every step of the tierer goes through `at`."""

    def __init__(self, point: str, kind: str) -> None:
        self.point = point
        self.kind = kind
        self.fired = False
        self.dead = False

    def at(self, point: str, step: Callable[[], Any]) -> Any:
        if self.dead:
            raise Killed
        if point != self.point or self.fired:
            return step()
        self.fired = True
        if self.kind == "unknown" or point == "after CAS":
            step()
        if self.kind == "kill":
            self.dead = True
            raise Killed
        raise TimeoutError("no answer") if self.kind == "unknown" else OSError("injected")


def failing(changes: Any) -> Any:
    """The same rows, but the task fails half-way: Spark has begun files by then."""

    def fail(batches: Any) -> Any:
        for number, batch in enumerate(batches):
            yield batch.slice(0, batch.num_rows // 2)
            raise OSError(f"injected after batch {number}")

    return changes.mapInArrow(fail, changes.schema)


class Tierer:
    """A tierer's process with a fault in it: its lake, its log, its coordinator."""

    adapter: ModuleType = iceberg

    def __init__(self, world: World, fault: Fault) -> None:
        self.world = world
        self.fault = fault
        self.lake = world.tierer()
        self.break_in()

    def break_in(self) -> None:
        """Make every step of the lake go through `fault.at`."""
        self._sql = self.lake.spark.sql
        self.lake.spark.sql = self.sql
        self._write = {"_append": self.lake._append, "_merge": self.lake._merge}
        for name in self._write:
            setattr(self.lake, name, self._writing(name))
        self._load = self.lake._load
        self.lake._load = self.load  # type: ignore[method-assign]
        self._branch_snapshot = self.lake._branch_snapshot
        self.lake._branch_snapshot = self.branch_snapshot  # type: ignore[method-assign]
        self._looks = 0

    def run(self, monkeypatch: pytest.MonkeyPatch) -> Outcome | None:
        """One round with all that belongs to it; None if it failed."""
        done = self.adapter.expire
        monkeypatch.setattr(
            self.adapter, "expire", lambda *given: self.fault.at("expire", lambda: done(*given))
        )
        world = self.world
        try:
            result = tier_round(world.round_of(), self, self.lake, self, self.lake.spark)  # type: ignore[arg-type]
            self.fault.at("release", lambda: None)
            self.fault.at("retention", self.retain)
            return result.outcome
        except (Killed, Exception) as error:
            if not self.fault.fired:
                raise
            print(f"{self.fault.point} {self.fault.kind}: {str(error)[:100]}")
            return None
        finally:
            monkeypatch.undo()

    def retain(self) -> None:
        """Remove records as the server does: up to the reported offsets."""
        if self.world.coordinator.told:
            self.world.log.cut = dict(self.world.coordinator.told[-1][1])

    # ---- the lake's steps

    def sql(self, text: str) -> Any:
        if "CREATE OR REPLACE BRANCH" in text:
            return self.fault.at("stage", lambda: self._sql(text))
        if "fast_forward" in text:
            return self.fault.at("before CAS", lambda: self.fault.at("after CAS", lambda: self._sql(text)))
        if "DROP BRANCH" in text:
            return self.fault.at("cleanup", lambda: self._sql(text))
        return self.fault.at("", lambda: self._sql(text))

    def load(self) -> Any:
        return self.fault.at("", self._load)

    def branch_snapshot(self, branch: str) -> Any:
        self._looks += 1
        return self.fault.at("close" if self._looks % 3 == 2 else "", lambda: self._branch_snapshot(branch))

    def _writing(self, name: str) -> Callable[..., None]:
        def write(changes: Any, *more: Any) -> None:
            fault = self.fault
            if fault.point == "write file" and fault.kind == "error" and not fault.fired:
                fault.fired = True
                changes = failing(changes)
            fault.at("write file", lambda: self._write[name](changes, *more))

        return write

    # ---- the log's and the coordinator's

    def earliest(self) -> dict[int, int]:
        return self.world.log.earliest()

    def latest(self) -> dict[int, int]:
        return dict(self.fault.at("plan", self.world.log.latest))

    def state(self, spark: Any, end: Mapping[int, int]) -> Any:
        return self.world.log.state(spark, end)

    def changes(self, spark: Any, start: Mapping[int, int], end: Mapping[int, int]) -> Any:
        return self.fault.at("read", lambda: self.world.log.changes(spark, start, end))

    def heartbeat(self, granted: TieringRound, changes: int = 0, doing: str = "") -> bool:
        return False

    def commit(self, granted: TieringRound, snapshot_id: int, offsets: Mapping[int, int]) -> None:
        told = self.world.coordinator
        self.fault.at("cache offsets", lambda: told.commit(granted, snapshot_id, offsets))

    def describe(self, table_id: Any) -> Any:
        return self.world.coordinator.describe(table_id)


def write_changes(world: World, rows: int, rng: random.Random) -> None:
    if not world.table.is_primary_key_table:
        for _ in range(rows):
            world.log.add(0, row(rng.randrange(1000), f"n{rng.random()}"))
        return
    living = {values[0] for values in world.log.rows()}
    for _ in range(rows):
        key = rng.randrange(rows)
        if key in living and rng.random() < 0.3:
            world.log.add(DELETE, row(key, "gone"))
            living.discard(key)
        else:
            world.log.add(AFTER if key in living else INSERT, row(key, f"n{rng.random()}"))
            living.add(key)


def lake_is_a_prefix_of_the_log(world: World) -> None:
    state = world.tierer().find_committed()
    expected = world.log.rows(state.offsets)
    assert world.lake_rows() == expected
    assert world.read_by_another() == expected
    for bucket, cut in world.log.cut.items():
        assert cut <= state.offsets[bucket]


def run_cell(
    world: World, tierer: type[Tierer], monkeypatch: pytest.MonkeyPatch, cell: tuple[str, str], rows: int
) -> None:
    rng = random.Random(SEED)
    write_changes(world, rows, rng)
    assert world.tier().outcome is Outcome.COMMITTED
    world.expire_at_once()
    write_changes(world, rows // 4, rng)
    fault = Fault(*cell)
    tierer(world, fault).run(monkeypatch)
    assert fault.fired, "the failpoint was not reached"
    lake_is_a_prefix_of_the_log(world)
    write_changes(world, rows // 4, rng)
    healthy = Fault("none", "")
    for _ in range(3):
        outcome = tierer(world, healthy).run(monkeypatch)
    assert outcome is Outcome.NOTHING_NEW
    state = world.tierer().find_committed()
    assert dict(state.offsets) == world.log.latest() == world.coordinator.told[-1][1]
    lake_is_a_prefix_of_the_log(world)
    assert not any(each.startswith("hr_") for each in world.branches())


def maintained(kind: str, **more: Any) -> TableDefinition:
    """A table whose rounds compact and expire too."""
    table = definition(primary_key=("id",) if kind == "pk" else (), **more)
    options = {"table.datalake.auto-compaction": "true", "table.datalake.auto-expire-snapshot": "true"}
    return replace(table, options={**table.options, **options})


@pytest.mark.soak
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["log", "pk"])
@pytest.mark.parametrize("fault", KINDS)
@pytest.mark.parametrize("point", POINTS)
def test_every_failpoint(
    spark: Any, warehouse: Path, monkeypatch: pytest.MonkeyPatch, point: str, fault: str, kind: str
) -> None:
    print(f"seed {SEED}, {ROWS} rows")
    run_cell(World(spark, warehouse, maintained(kind)), Tierer, monkeypatch, (point, fault), ROWS)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "point", "fault"), [("pk", "write file", "error")])
def test_some_failpoints(
    spark: Any, warehouse: Path, monkeypatch: pytest.MonkeyPatch, kind: str, point: str, fault: str
) -> None:
    run_cell(World(spark, warehouse, maintained(kind)), Tierer, monkeypatch, (point, fault), 100)
