"""Tiering rounds against a real Iceberg table, with small fakes of the log and the coordinator.

The fake log keeps every change, so the oracle is plain Python: replay the log up to an offset.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.tablelayer.lake.adapter import LakeError, LakeState, RoundLostError
from headrace.tablelayer.lake.coordinator import LakeStatus, TieringRound
from headrace.tablelayer.lake.iceberg import IcebergTable
from headrace.tablelayer.lake.iceberg_reader import IcebergReader
from headrace.tablelayer.lake.reader import LakeReader
from headrace.tablelayer.lake.tiering_round import Outcome, RoundResult, tier_round
from headrace.tablelayer.lake.union_read import merge_tail
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import StoredTable, TableDefinition
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.column_types import BIGINT, DATE, STRING, TINYINT, decimal
from headrace.tablelayer.spark.sessions import iceberg_catalog_properties
from headrace.tablelayer.spark.splits import last_changes

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

INSERT, BEFORE, AFTER, DELETE = 1, 2, 3, 4
BUCKETS = 2
_names = itertools.count()


def definition(
    primary_key: tuple[str, ...] = ("id",), table_id: uuid.UUID | None = None, **more: Any
) -> StoredTable:
    columns = [("id", BIGINT), ("name", STRING), ("price", decimal(15, 2)), ("day", DATE), ("tiny", TINYINT)]
    return StoredTable(
        more.pop("path", TablePath("shop", f"orders_{next(_names)}")),
        Schema.of(columns, primary_key),
        bucket_count=BUCKETS,
        options={"table.datalake.enabled": "true", "table.datalake.format": more.pop("lake", "iceberg")},
        table_id=table_id or uuid.uuid4(),
    )


def row(key: int, name: str | None, price: str = "1.00") -> dict[str, Any]:
    import datetime
    import decimal as numbers

    return {
        "id": key,
        "name": name,
        "price": numbers.Decimal(price),
        "day": datetime.date(2024, 9, 19),
        "tiny": 7,
    }


@dataclass
class FakeLog:
    """A table's log in memory; bucket = key modulo BUCKETS. Also the oracle."""

    table: TableDefinition
    entries: dict[int, list[tuple[int, dict[str, Any]]]] = field(
        default_factory=lambda: {b: [] for b in range(BUCKETS)}
    )
    cut: dict[int, int] = field(default_factory=dict)
    has_store: bool = True

    def add(self, change_type: int, value: dict[str, Any]) -> None:
        self.entries[value["id"] % BUCKETS].append((change_type, value))

    def earliest(self) -> dict[int, int]:
        return {bucket: self.cut.get(bucket, 0) for bucket in self.entries}

    def latest(self) -> dict[int, int]:
        return {bucket: len(entries) for bucket, entries in self.entries.items()}

    def state(self, spark: Any, end: Mapping[int, int]) -> Any | None:
        if not self.table.is_primary_key_table or not self.has_store:
            return None
        names = self.table.schema.names
        rows = [dict(zip(names, values, strict=True)) for values in self.rows(end)]
        schema = self.table.schema.arrow().append(pa.field("_deleted", pa.bool_(), nullable=False))
        return spark.createDataFrame(
            pa.Table.from_pylist([{**row, "_deleted": False} for row in rows], schema=schema)
        )

    def changes(self, spark: Any, start: Mapping[int, int], end: Mapping[int, int]) -> Any:
        schema = self.table.schema.arrow()
        tables = []
        for bucket, entries in self.entries.items():
            part = entries[start[bucket] : end[bucket]]
            batch = pa.RecordBatch.from_pylist([value for _, value in part], schema=schema)
            types = np.array([change_type for change_type, _ in part], np.uint8)
            if not self.table.is_primary_key_table:
                tables.append(pa.Table.from_batches([batch]))
            elif part:
                tables.append(
                    pa.Table.from_batches(last_changes([(batch, types)], self.table.schema.primary_key))
                )
        if not self.table.is_primary_key_table:
            return spark.createDataFrame(pa.concat_tables(tables))
        empty = schema.append(pa.field("_deleted", pa.bool_(), nullable=False)).empty_table()
        return spark.createDataFrame(pa.concat_tables([empty, *tables]))

    def rows(self, end: Mapping[int, int] | None = None) -> list[tuple[Any, ...]]:
        """The table's rows at these offsets, as sorted tuples."""
        ends = self.latest() if end is None else end
        if not self.table.is_primary_key_table:
            return sorted(
                tuple(v.values()) for b, entries in self.entries.items() for _, v in entries[: ends.get(b, 0)]
            )
        rows: dict[int, dict[str, Any]] = {}
        for bucket, entries in self.entries.items():
            for change_type, value in entries[: ends.get(bucket, 0)]:
                if change_type == DELETE:
                    rows.pop(value["id"], None)
                elif change_type != BEFORE:
                    rows[value["id"]] = value
        return sorted(tuple(value.values()) for value in rows.values())


@dataclass
class FakeCoordinator:
    """Give out a round to every worker that asks (there is no lease: the lake must fence), and record the reports."""

    epoch: int = 0
    told: list[tuple[int, dict[int, int]]] = field(default_factory=list)
    fenced: bool = False
    deaf: bool = False
    finish: bool = False

    def begin(self, path: TablePath | None, *, force: bool) -> TieringRound | None:
        raise AssertionError("rounds are made by `round_of`")

    def heartbeat(self, granted: TieringRound, changes: int = 0, doing: str = "") -> bool:
        if self.fenced:
            raise TableError(TableErrorCode.FENCED_TIERING_EPOCH, "fenced")
        return self.finish

    def commit(self, granted: TieringRound, snapshot_id: int, offsets: Mapping[int, int]) -> None:
        if self.deaf:
            raise ConnectionError("the server is away")
        self.told.append((snapshot_id, dict(offsets)))

    def release(self, granted: TieringRound, failure: str | None = None) -> None:
        raise AssertionError("the job releases rounds, not a round itself")

    def describe(self, table_id: uuid.UUID) -> LakeStatus:
        return LakeStatus(True, "iceberg", self.told[-1][0] if self.told else None)


class World:
    """A table, its log, its lake and a coordinator."""

    def __init__(self, spark: Any, warehouse: Path, table: TableDefinition) -> None:
        self.table = table
        self.log = FakeLog(table)
        self.coordinator = FakeCoordinator()
        self.properties = iceberg_catalog_properties(warehouse)
        self.root = spark
        self.lake = self.tierer()

    def tierer(self) -> IcebergTable:
        """Another process's view of the same lake table."""
        return IcebergTable(self.root.newSession(), self.table, self.properties)

    def round_of(self, lease_ms: int = 30_000) -> TieringRound:
        self.coordinator.epoch += 1
        assert self.table.table_id is not None
        return TieringRound(self.table.path, self.table.table_id, self.coordinator.epoch, lease_ms)

    def tier(self) -> RoundResult:
        return tier_round(self.round_of(), self.coordinator, self.lake, self.log, self.lake.spark)

    def lake_rows(self, snapshot: int | None = None) -> list[tuple[Any, ...]]:
        found = sorted(tuple(found) for found in self.lake.read(snapshot).collect())
        assert sorted(tuple(each.values()) for each in self.rows_without_spark(snapshot)) == found
        return found

    def reader(self) -> LakeReader:
        """The present lake, for a reader without Spark."""
        return IcebergReader(self.table, self.properties)

    def rows_without_spark(self, snapshot: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of a snapshot (None: now), after a check that both APIs find the same state."""
        reader = self.reader()
        state = reader.state(None)
        assert state == self.lake.find_committed()
        at = state.head if snapshot is None else snapshot
        batches = [] if at is None else reader.read(at, self.table.schema.columns)
        return [row for batch in batches for row in batch.to_pylist()]

    def read_by_another(self) -> list[tuple[Any, ...]]:
        """The lake's current rows as pyiceberg sees them, from the table's metadata file alone."""
        from pyiceberg.table import StaticTable

        metadata = self.lake._load().operations().current().metadataFileLocation()
        found = StaticTable.from_metadata(metadata).scan().to_arrow().select(self.table.schema.names)
        return sorted(tuple(each.values()) for each in found.to_pylist())

    def expire_at_once(self) -> None:
        """From now on every snapshot is old enough to expire."""
        self.lake.spark.sql(
            f"ALTER TABLE {self.lake.name} SET TBLPROPERTIES ('history.expire.max-snapshot-age-ms'='1')"
        )

    def branches(self) -> set[str]:
        return set(self.lake._load().refs().keySet())

    def snapshots(self) -> int:
        return int(self.lake.spark.sql(f"SELECT count(*) FROM {self.lake.name}.snapshots").first()[0])


@pytest.fixture
def world(spark: Any, warehouse: Path) -> World:
    return World(spark, warehouse, definition())


def fill(log: FakeLog) -> None:
    for key in range(10):
        log.add(INSERT, row(key, f"first {key}"))
    log.add(BEFORE, row(3, "first 3"))
    log.add(AFTER, row(3, None, "3.33"))
    log.add(DELETE, row(4, "first 4"))


def test_the_lake_follows_inserts_updates_and_deletes(world: World) -> None:
    fill(world.log)
    first = world.tier()
    assert first.outcome is Outcome.COMMITTED
    assert world.lake_rows() == world.log.rows()
    assert dict(world.lake.find_committed().offsets) == world.log.latest()

    world.log.add(AFTER, row(5, "second 5", "5.55"))
    world.log.add(DELETE, row(6, "first 6"))
    world.log.add(INSERT, row(4, "again 4"))
    world.log.add(INSERT, row(100, "new"))
    second = world.tier()
    assert second.outcome is Outcome.COMMITTED
    assert world.lake_rows() == world.log.rows()
    # The snapshot of the first round still is what it was.
    assert first.snapshot is not None
    assert world.lake_rows(first.snapshot) == world.log.rows(first.offsets)


def test_an_empty_round_changes_nothing(world: World) -> None:
    fill(world.log)
    world.tier()
    before = world.snapshots()
    result = world.tier()
    assert result.outcome is Outcome.NOTHING_NEW
    assert world.snapshots() == before


@pytest.mark.soak
def test_maintenance_that_fails_is_reported_in_the_words_of_the_jvm(world: World) -> None:
    fill(world.log)
    world.lake.maintain = lambda: world.root._jvm.java.util.Optional.empty().get()  # type: ignore[method-assign]
    result = world.tier()
    assert result.outcome is Outcome.COMMITTED
    assert result.detail == "maintenance failed: java.util.NoSuchElementException: No value present"
    assert world.lake_rows() == world.log.rows()


def test_a_round_that_cancels_out_still_moves_the_offsets(world: World) -> None:
    fill(world.log)
    world.tier()
    rows = world.lake_rows()
    world.log.add(INSERT, row(50, "comes"))
    world.log.add(DELETE, row(50, "comes"))
    assert world.tier().outcome is Outcome.COMMITTED
    assert world.lake_rows() == rows
    assert dict(world.lake.find_committed().offsets) == world.log.latest()
    assert world.tier().outcome is Outcome.NOTHING_NEW


def test_one_of_two_iceberg_tierers_wins_without_duplicates(spark: Any, warehouse: Path) -> None:
    world = World(
        spark, warehouse, definition(primary_key=())
    )  # appends: where a second commit would duplicate
    for key in range(6):
        world.log.add(0, row(key, "a"))
    world.tier()
    for key in range(6):
        world.log.add(0, row(key, "b"))
    one, other = world.tierer(), world.tierer()
    end = world.log.latest()
    base, same_base = one.find_committed(), other.find_committed()
    assert base == same_base
    snapshots = [
        tierer.write(base, world.log.changes(tierer.spark, base.offsets, end), end, epoch)
        for tierer, epoch in ((one, 11), (other, 12))
    ]
    other.commit(base, snapshots[1], 12)
    with pytest.raises(RoundLostError, match="another tiering job committed first"):
        one.commit(base, snapshots[0], 11)
    one.discard(11)
    assert world.lake_rows() == world.log.rows()
    assert world.lake.find_committed().epoch == 12


@pytest.mark.soak
def test_two_tierers_at_the_very_first_round(spark: Any, warehouse: Path) -> None:
    world = World(spark, warehouse, definition(primary_key=()))
    world.log.add(0, row(1, "a"))
    one, other = world.tierer(), world.tierer()
    end = world.log.latest()
    base = LakeState()
    snapshots = [
        tierer.write(base, world.log.changes(tierer.spark, {0: 0, 1: 0}, end), end, epoch)
        for tierer, epoch in ((one, 1), (other, 2))
    ]
    one.commit(base, snapshots[0], 1)
    with pytest.raises(RoundLostError):
        other.commit(base, snapshots[1], 2)
    assert world.lake_rows() == world.log.rows()


def test_a_tierer_that_died_after_its_commit_is_adopted(world: World) -> None:
    fill(world.log)
    world.coordinator.deaf = True
    result = world.tier()
    assert result.outcome is Outcome.COMMITTED
    assert "next round repeats it" in result.detail
    world.coordinator.deaf = False
    assert world.tier().outcome is Outcome.NOTHING_NEW
    assert world.coordinator.told == [(result.snapshot, world.log.latest())]


def test_a_tierer_that_died_before_its_commit_leaves_nothing_visible(world: World) -> None:
    fill(world.log)
    world.tier()
    visible = world.lake_rows()
    world.log.add(INSERT, row(77, "half done"))
    base = world.lake.find_committed()
    changes = world.log.changes(world.lake.spark, base.offsets, world.log.latest())
    world.lake.write(base, changes, world.log.latest(), world.round_of().epoch)
    assert world.lake_rows() == visible
    assert world.tier().outcome is Outcome.COMMITTED
    assert world.lake_rows() == world.log.rows()
    assert set(world.lake._load().refs().keySet()) == {"main", "headrace_tiered"}


def test_a_database_may_have_the_name_of_a_catalog(spark: Any, warehouse: Path) -> None:
    world = World(spark, warehouse, definition(path=TablePath("spark_catalog", f"orders_{next(_names)}")))
    fill(world.log)
    assert world.tier().outcome is Outcome.COMMITTED
    assert world.lake_rows() == world.log.rows()


def test_an_error_that_hides_a_commit_is_looked_into(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(world.log)
    sql = world.lake.spark.sql

    def lose_the_answer(text: str) -> Any:
        answer = sql(text)
        if "fast_forward" in text:
            raise TimeoutError("no answer")
        return answer

    monkeypatch.setattr(world.lake.spark, "sql", lose_the_answer)
    assert world.tier().outcome is Outcome.COMMITTED
    assert world.lake_rows() == world.log.rows()


def test_an_error_that_prevents_a_commit_is_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(world.log)
    sql = world.lake.spark.sql

    def refuse(text: str) -> Any:
        if "fast_forward" in text:
            raise TimeoutError("no answer")
        return sql(text)

    monkeypatch.setattr(world.lake.spark, "sql", refuse)
    with pytest.raises(LakeError, match="changed nothing"):
        world.tier()
    monkeypatch.undo()
    assert world.tier().outcome is Outcome.COMMITTED
    assert world.lake_rows() == world.log.rows()


def test_a_fenced_round_commits_nothing(world: World) -> None:
    fill(world.log)
    world.coordinator.fenced = True
    result = tier_round(
        world.round_of(lease_ms=30), world.coordinator, world.lake, world.log, world.lake.spark
    )
    assert result.outcome is Outcome.FENCED
    assert world.lake_rows() == []
    assert world.coordinator.told == []


def test_a_table_created_again_is_not_mixed_with_the_old_one(spark: Any, warehouse: Path) -> None:
    old = World(spark, warehouse, definition())
    fill(old.log)
    old.tier()
    new = World(spark, warehouse, definition(path=old.table.path))
    new.log.add(INSERT, row(1, "new"))
    with pytest.raises(LakeError, match="dropped and created again"):
        new.tier()
    assert old.lake_rows() == old.log.rows()


@pytest.mark.soak
def test_a_backlog_takes_several_commits_and_finish_ends_it_after_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.log.has_store = False
    monkeypatch.setattr("headrace.tablelayer.lake.tiering_round.ROUND_ROWS_MAX", 3)
    fill(world.log)
    world.coordinator.finish = True
    first = tier_round(world.round_of(30), world.coordinator, world.lake, world.log, world.lake.spark)
    assert first.more
    assert first.changes == 6
    assert world.lake_rows() == world.log.rows(first.offsets)
    world.coordinator.finish = False
    second = world.tier()
    assert not second.more
    assert dict(second.offsets) == world.log.latest()
    assert len(world.coordinator.told) == 3
    assert world.lake_rows() == world.log.rows()


@pytest.mark.soak
def test_compaction_and_expiry_as_options_keep_the_offsets(spark: Any, warehouse: Path) -> None:
    table = definition()
    options = {"table.datalake.auto-compaction": "true", "table.datalake.auto-expire-snapshot": "true"}
    world = World(spark, warehouse, replace(table, options={**table.options, **options}))
    fill(world.log)
    said = [world.tier().detail]
    world.lake.spark.sql(
        f"ALTER TABLE {world.lake.name} SET TBLPROPERTIES ('history.expire.max-snapshot-age-ms'='1')"
    )
    for number in range(3):
        world.log.add(AFTER, row(number % 3, f"again {number}"))
        world.log.add(AFTER, row(5, f"again {number}"))
        result = world.tier()
        assert result.outcome is Outcome.COMMITTED
        said.append(result.detail)
        assert world.lake_rows() == world.log.rows()
        assert dict(world.lake.find_committed().offsets) == world.log.latest()
    assert any("compacted" in text for text in said), said
    assert any("expired" in text for text in said), said
    assert world.snapshots() < 4
    state = world.lake.find_committed()
    files = world.lake.spark.sql(
        f"SELECT content, count(*) FROM {world.lake.name}.files GROUP BY 1"
    ).collect()
    assert dict(map(tuple, files))[0] <= 2 * BUCKETS * 4
    # Compaction's snapshots contain the tiered offsets, so that expiry of all others loses nothing.
    assert state.epoch == world.coordinator.epoch
    assert world.tier().outcome is Outcome.NOTHING_NEW


def compact_and_expire(world: World) -> None:
    path = world.table.path
    for call in (
        f"rewrite_data_files(table => '{path}', options => map('rewrite-all', 'true'))",
        f"rewrite_position_delete_files(table => '{path}', options => map('rewrite-all', 'true'))",
        f"expire_snapshots(table => '{path}', retain_last => 1, older_than => timestamp '2100-01-01')",
    ):
        world.lake.spark.sql(f"CALL lake.system.{call}").collect()


@pytest.mark.soak
def test_offsets_survive_compaction_and_expiry(world: World) -> None:
    fill(world.log)
    world.tier()
    world.log.add(AFTER, row(1, "second 1"))
    world.tier()
    compact_and_expire(world)
    assert world.tier().outcome is Outcome.NOTHING_NEW
    world.log.add(INSERT, row(60, "after"))
    assert world.tier().outcome is Outcome.COMMITTED
    assert world.lake_rows() == world.log.rows()


@pytest.mark.soak
def test_a_history_that_forgot_the_offsets_stops_tiering(world: World) -> None:
    fill(world.log)
    world.tier()
    world.log.add(AFTER, row(1, "second 1"))
    world.tier()
    world.lake.spark.sql(f"ALTER TABLE {world.lake.name} DROP TAG headrace_tiered")
    compact_and_expire(world)
    with pytest.raises(LakeError, match="would duplicate"):
        world.tier()


def test_rows_gone_from_the_log_before_they_were_tiered_are_an_error(world: World) -> None:
    fill(world.log)
    world.tier()
    world.log.add(INSERT, row(30, "x"))
    world.log.cut = {0: len(world.log.entries[0])}
    with pytest.raises(LakeError, match="deleted from the log"):
        world.tier()


@pytest.mark.parametrize("changes", [3, 10_000_000])
def test_the_tail_wins_over_the_lake(world: World, changes: int) -> None:
    fill(world.log)
    world.tier()
    state = world.lake.find_committed()
    world.log.add(AFTER, row(1, "tail"))
    world.log.add(DELETE, row(2, "first 2"))
    world.log.add(INSERT, row(70, "tail only"))
    end = world.log.latest()
    tail = world.log.changes(world.lake.spark, state.offsets, end)
    union = merge_tail(world.lake.read(state.head), tail, world.table, changes)
    expected = world.log.rows()
    assert sorted(map(tuple, union.collect())) == expected
    # A predicate on another column must not bring the lake's old version of a row back.
    assert union.where("name = 'first 1'").count() == 0
    # A pinned read does not show rows that are tiered or written later.
    world.log.add(INSERT, row(71, "later"))
    world.tier()
    assert sorted(map(tuple, union.collect())) == expected


def test_a_lake_bucket_is_a_table_bucket(world: World) -> None:
    fill(world.log)
    world.tier()
    spec = world.lake.spark.sql(f"SHOW CREATE TABLE {world.lake.name}").first()[0]
    assert f"bucket({BUCKETS}, id)" in spec


def test_a_lake_table_that_is_made_while_it_is_looked_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.errors import AnalysisException

    answers: list[Any] = [AnalysisException("TABLE_OR_VIEW_NOT_FOUND"), "the table"]

    def load(*_: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    util = SimpleNamespace(loadIcebergTable=load)
    jvm = SimpleNamespace(
        org=SimpleNamespace(
            apache=SimpleNamespace(iceberg=SimpleNamespace(spark=SimpleNamespace(Spark3Util=util)))
        )
    )
    lake = IcebergTable.__new__(IcebergTable)
    lake.spark, lake.name = SimpleNamespace(_jvm=jvm, _jsparkSession=None), "lake.shop.t"
    monkeypatch.setattr("headrace.tablelayer.lake.iceberg.activate", lambda _: None)
    monkeypatch.setattr(IcebergTable, "exists", lambda _: not isinstance(answers[0], Exception))
    assert lake._load() == "the table"
    answers[:] = [AnalysisException("TABLE_OR_VIEW_NOT_FOUND")] * 2
    assert lake._load() is None
