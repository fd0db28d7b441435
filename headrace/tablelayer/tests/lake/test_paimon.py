"""Tiering into Paimon: rounds, schemas, types and upkeep, against the replayed log; read by us and by Paimon itself."""

from __future__ import annotations

import datetime
import decimal
import math
import time as clock
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.tablelayer.lake import paimon_maintenance
from headrace.tablelayer.lake.adapter import LakeError, LakeState, RoundLostError
from headrace.tablelayer.lake.paimon_read import data_files
from headrace.tablelayer.lake.tiering_round import Outcome
from headrace.tablelayer.lake.union_read import merge_tail
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.buckets import bucket_of
from headrace.tablelayer.model.types.column_types import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    SMALLINT,
    STRING,
    TINYINT,
    array_of,
    binary,
    char,
    map_of,
    row_of,
    time,
    timestamp,
    timestamp_ltz,
)
from headrace.tablelayer.model.types.column_types import decimal as decimal_type
from headrace.tablelayer.spark.types import spark_type
from headrace.tablelayer.tests.lake.paimon_world import PaimonWorld
from headrace.tablelayer.tests.lake.test_columns import alter, rows
from headrace.tablelayer.tests.lake.test_tiering import AFTER, BUCKETS, DELETE, INSERT, definition, fill, row

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def world_of(spark: Any, warehouse: Path, **more: Any) -> PaimonWorld:
    options = more.pop("options", {})
    table = definition(lake="paimon", **more)
    return PaimonWorld(spark, warehouse, replace(table, options={**table.options, **options}))


def test_the_lake_follows_and_a_lake_bucket_is_a_table_bucket(spark: Any, warehouse: Path) -> None:
    world = world_of(spark, warehouse)
    fill(world.log)
    first = world.tier()
    assert first.outcome is Outcome.COMMITTED
    assert world.lake_rows() == world.read_by_another() == world.log.rows()
    world.log.add(AFTER, row(5, "second 5", "5.55"))
    world.log.add(DELETE, row(6, "first 6"))
    world.log.add(INSERT, row(4, "again 4"))
    state = world.lake.find_committed()
    end = world.log.latest()
    union = merge_tail(
        world.lake.read(state.head), world.log.changes(world.lake.spark, state.offsets, end), world.table, 3
    )
    assert sorted(map(tuple, union.collect())) == world.log.rows()
    assert world.tier().outcome is Outcome.COMMITTED
    assert world.lake_rows() == world.read_by_another() == world.log.rows()
    assert world.lake_rows(first.snapshot) == world.log.rows(first.offsets)
    assert world.tier().outcome is Outcome.NOTHING_NEW
    found = [tuple(each) for each in world.lake.snapshots().collect()]
    assert [(each[0], each[1], *each[3:6]) for each in found] == [
        (1, None, "append", 1, first.offsets),
        (2, 1, "append", 2, end),
    ]
    # Spark reads what lies in each bucket's folder: our own function says the same.
    folder = Path(world.lake._load().location().toString().removeprefix("file:"))
    for bucket in range(BUCKETS):
        keys = spark.read.parquet(f"{folder}/bucket-{bucket}").select("id").toArrow().to_batches()
        assert keys
        for batch in keys:
            assert set(bucket_of(world.table, batch).tolist()) == {bucket}


def test_float_keys_are_those_of_the_table_and_a_nan_fails_the_round(spark: Any, warehouse: Path) -> None:
    schema = Schema.of([("id", DOUBLE), ("v", INT)], ("id",))
    world = world_of(spark, warehouse)
    world = PaimonWorld(spark, warehouse, replace(world.table, schema=schema, bucket_count=8))
    for key in (-0.0, 1.0, 2.0):
        world.log.add(INSERT, {"id": key, "v": 1})
    world.tier()
    world.log.add(AFTER, {"id": 0.0, "v": 2})
    assert world.tier().outcome is Outcome.COMMITTED
    assert world.lake_rows() == world.read_by_another() == world.log.rows()
    world.log.entries[0].append((INSERT, {"id": math.nan, "v": 3}))
    with pytest.raises(Exception, match="key column 'id' has a NaN, which Paimon cannot tell"):
        world.tier()
    world.log.entries[0].append((DELETE, {"id": math.nan, "v": 3}))
    world.log.add(AFTER, {"id": 2.0, "v": 4})
    assert world.tier().outcome is Outcome.COMMITTED
    assert world.lake_rows() == world.read_by_another() == [(0.0, 2), (1.0, 1), (2.0, 4)]


@pytest.mark.soak
def test_one_of_two_paimon_tierers_wins_and_a_late_one_changes_nothing(spark: Any, warehouse: Path) -> None:
    world = world_of(spark, warehouse, primary_key=())
    for key in range(6):
        world.log.add(0, row(key, "a"))
    one, other = world.tierer(), world.tierer()
    end, base = world.log.latest(), LakeState()
    snapshots = [
        tierer.write(base, world.log.changes(tierer.spark, {0: 0, 1: 0}, end), end, epoch)
        for tierer, epoch in ((one, 11), (other, 12))
    ]
    assert snapshots == [1, 1]
    other.commit(base, 1, 12)
    with pytest.raises(RoundLostError, match="another tiering job committed first"):
        one.commit(base, 1, 11)
    one.discard(11)
    assert world.lake_rows() == world.read_by_another() == world.log.rows()
    # A worker stands still between its read and its commit, until its snapshot number has expired and is free again.
    late = world.tierer()
    stale = late.find_committed()
    late.write(stale, world.log.changes(late.spark, {0: 0, 1: 0}, end), end, 99)
    world.expire_at_once()
    put = late._put

    def stopped(*given: Any) -> bool:
        for name in ("b", "c"):
            world.log.add(0, row(1, name))
            assert world.tier().outcome is Outcome.COMMITTED
        table = world.lake._load()
        assert table.newExpireSnapshots().config(table.coreOptions().expireConfig()).expire() == 2
        return put(*given)

    late._put = stopped  # type: ignore[method-assign]
    with pytest.raises(RoundLostError, match="main is at snapshot 3, no longer at 1"):
        late.commit(stale, 2, 99)
    assert not world.lake._load().snapshotManager().snapshotExists(2)
    assert world.lake_rows() == world.read_by_another() == world.log.rows()


@pytest.mark.soak
def test_the_lake_follows_every_change_of_the_schema(spark: Any, warehouse: Path) -> None:
    world = world_of(spark, warehouse)
    for key in range(4):
        world.log.add(INSERT, row(key, f"first {key}"))
    first = world.tier().snapshot
    price = decimal.Decimal("1.00")
    alter(
        world,
        "ADD `rank` INT NOT NULL DEFAULT 4 FIRST, ADD note STRING DEFAULT 'it''s', RENAME name TO title, "
        "DROP day, MODIFY tiny INT, MODIFY price DECIMAL(20, 2) COMMENT 'in euro', ADD day DATE DEFAULT '2024-02-29'",
    )
    leap = datetime.date(2024, 2, 29)

    def seen(key: int, **other: Any) -> dict[str, Any]:
        plain = {"rank": 4, "id": key, "title": f"first {key}", "price": price, "tiny": 7}
        return {**plain, "note": "it's", "day": leap, **other}

    assert rows(world) == rows(world, first) == [seen(key) for key in range(4)]
    big = decimal.Decimal("123456789012345678.25")
    world.log.add(AFTER, seen(1, title="second", price=big, tiny=1 << 20, note=None, rank=5))
    world.log.add(DELETE, seen(2))
    world.log.add(INSERT, seen(9, day=None))
    assert world.tier().outcome is Outcome.COMMITTED
    expected = [
        seen(0), seen(1, title="second", price=big, tiny=1 << 20, note=None, rank=5), seen(3), seen(9, day=None),
    ]  # fmt: skip
    assert rows(world) == expected
    assert rows(world, first) == [seen(key) for key in range(4)]
    # Another engine sees the columns of now; a default that the old rows never had is NULL there.
    raw = {each[1]: each for each in world.read_by_another()}
    assert raw[1] == tuple(expected[1].values())
    assert raw[0] == (None, 0, "first 0", price, 7, None, None)
    # Two names exchanged, and one again that was dropped: no old value appears anywhere.
    alter(world, "DROP note, ADD note STRING, RENAME title TO x, RENAME note TO title, RENAME x TO note")
    world.log.add(AFTER, {**rows(world)[0], "title": "new"})
    assert world.tier().outcome is Outcome.COMMITTED
    assert [(each["title"], each["note"]) for each in rows(world)] == [
        ("new", "first 0"), (None, "second"), (None, "first 3"), (None, "first 9"),
    ]  # fmt: skip
    stale = world.table
    alter(world, "ADD z INT")
    world.log.add(AFTER, {**rows(world)[0], "z": 1})
    assert world.tier().outcome is Outcome.COMMITTED
    world.table = stale
    with pytest.raises(RoundLostError, match="another tiering job committed first"):
        world.tierer().evolve()


def test_every_type_goes_there_and_back(spark: Any, warehouse: Path) -> None:
    day, moment = datetime.date(1969, 12, 31), datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999)
    utc = moment.replace(tzinfo=datetime.UTC)
    values: list[tuple[str, Any, Any]] = [
        ("id", BIGINT, 1 - 2**63), ("b", BOOLEAN, False), ("i1", TINYINT, -128), ("i2", SMALLINT, 32767),
        ("i4", INT, -(2**31)), ("f4", FLOAT, 0.5), ("f8", DOUBLE, -1e308), ("c", char(3), "abc"), ("s", STRING, "ä€"),
        ("r", row_of(("x", INT), ("y", array_of(STRING))), {"x": 1, "y": ["a", None]}),
        ("d9", decimal_type(9, 4), decimal.Decimal("-12345.6789")),
        ("d38", decimal_type(38, 18), decimal.Decimal("12345678901234567890.123456789012345678")),
        ("day", DATE, day), ("t3", timestamp(3), moment.replace(microsecond=999_000)), ("t6", timestamp(6), moment),
        ("z3", timestamp_ltz(3), utc.replace(microsecond=1_000)), ("z6", timestamp_ltz(6), utc),
        ("m", map_of(STRING, decimal_type(20, 1)), [("k", decimal.Decimal("1.5"))]),
        ("x", binary(3), b"\x00\xff\x01"), ("y", BYTES, b""),
    ]  # fmt: skip
    schema = Schema.of([(name, kind) for name, kind, _ in values])
    table = definition(primary_key=(), lake="paimon")
    world = PaimonWorld(spark, warehouse, replace(table, schema=schema, bucket_key=("id",)))
    full = {name: value for name, _, value in values}
    world.log.add(INSERT, full)
    world.log.add(INSERT, {**dict.fromkeys(full), "id": 0})
    assert world.tier().outcome is Outcome.COMMITTED
    assert [field.dataType for field in world.lake.read().schema.fields] == [
        spark_type(kind, name) for name, kind, _ in values
    ]
    expected = pa.Table.from_pylist([full, {**dict.fromkeys(full), "id": 0}], schema.arrow())
    found = world.lake.read().orderBy("id").toArrow().cast(schema.arrow())
    assert found.to_pylist() == expected.to_pylist()
    assert world.read_by_another()[0] == tuple(expected.to_pylist()[0].values())
    assert sorted(world.rows_without_spark(), key=lambda each: each["id"]) == expected.to_pylist()
    later = PaimonWorld(
        spark,
        warehouse,
        replace(definition(lake="paimon"), schema=Schema.of([("id", BIGINT), ("t", time(3))])),
    )
    with pytest.raises(LakeError, match=r"column 't' is TIME\(3\)"):
        later.lake.create()


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["pk", "log", "without a key"])
def test_compaction_and_expiry_keep_the_offsets(spark: Any, warehouse: Path, kind: str) -> None:
    options = {"table.datalake.auto-compaction": "true", "table.datalake.auto-expire-snapshot": "true"}
    options |= {"paimon.num-sorted-run.compaction-trigger": "3", "paimon.compaction.min.file-num": "3"}
    if kind == "pk":
        options["paimon.changelog-producer"] = "full-compaction"
    world = world_of(spark, warehouse, primary_key=("id",) if kind == "pk" else (), options=options)
    if kind == "log":
        world.table = world.log.table = replace(world.table, bucket_key=("id",))
        world.lake = world.tierer()
    said, changelogs = [], 0
    for number in range(6):
        for key in range(6):
            world.log.add(AFTER if number else INSERT, row(key, f"{number}"))
        result = world.tier()
        assert result.outcome is Outcome.COMMITTED
        said.append(result.detail)
        if number == 0:
            world.expire_at_once()
        head = world.lake._load().snapshotManager().latestSnapshot()
        changelogs += head.changelogManifestList() is not None
        assert dict(world.lake.find_committed().offsets) == world.log.latest()
    assert world.lake_rows() == world.read_by_another() == world.log.rows()
    assert any("compacted" in text for text in said), said
    assert any("expired" in text for text in said), said
    assert not any("failed" in text for text in said), said
    assert (changelogs > 0) == (kind == "pk")
    assert world.snapshots() < 6
    assert world.tier().outcome is Outcome.NOTHING_NEW
    assert not world.branches()


class Slowly:
    """A Paimon table or its writer that finishes a compaction before it begins another one."""

    def __init__(self, real: Any) -> None:
        self.real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def newWrite(self, user: str) -> Any:
        return Slowly(self.real.newWrite(user))

    def compact(self, *given: Any) -> None:
        self.real.compact(*given)
        clock.sleep(2)


@pytest.mark.soak
def test_a_backlog_of_files_is_compacted_at_once(
    spark: Any, warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compact = paimon_maintenance._compact_buckets
    monkeypatch.setattr(
        paimon_maintenance, "_compact_buckets", lambda jvm, table, *rest: compact(jvm, Slowly(table), *rest)
    )
    world = world_of(spark, warehouse, primary_key=(), options={"paimon.compaction.min.file-num": "3"})
    world.table = world.log.table = replace(world.table, bucket_key=("id",))
    for number in range(8):
        if number == 7:
            options = {**world.table.options, "table.datalake.auto-compaction": "true"}
            world.table = world.log.table = replace(world.table, options=options)
        world.lake = world.tierer()
        for key in range(4):
            world.log.add(INSERT, row(key, f"{number}"))
        result = world.tier()
    assert "compacted" in result.detail
    assert "failed" not in result.detail
    assert world.lake_rows() == world.read_by_another() == world.log.rows()
    assert dict(world.lake.find_committed().offsets) == world.log.latest()
    snapshots = world.lake._load().snapshotManager()
    known = {
        Path(file.path).name
        for number in range(1, int(snapshots.latestSnapshotId()) + 1)
        for file in data_files(world.lake._load(), number)
    }
    folder = Path(world.lake._load().location().toString().removeprefix("file:"))
    assert {file.name for file in folder.glob("bucket-*/*.parquet")} == known, "no file is left behind"


@pytest.mark.soak
def test_a_history_that_forgot_the_offsets_stops_tiering(spark: Any, warehouse: Path) -> None:
    world = world_of(spark, warehouse)
    fill(world.log)
    world.tier()
    table = world.lake._load()
    writing = table.copy(world.lake.jvm.map_of({"write-only": "false"}))
    writer, commit = writing.newWrite("somebody"), writing.newCommit("somebody")
    writer.withIOManager(world.lake.jvm.paimon.disk.IOManager.create("/tmp"))
    for bucket in range(BUCKETS):
        writer.compact(world.lake.jvm.paimon.data.BinaryRow.EMPTY_ROW, bucket, True)
    commit.commit(1, writer.prepareCommit(True, 1))
    commit.close()
    writer.close()
    # Another engine's compaction has no offsets, but the snapshot that has them cannot expire.
    world.expire_at_once()
    table = world.lake._load()
    assert table.newExpireSnapshots().config(table.coreOptions().expireConfig()).expire() == 0
    assert world.tier().outcome is Outcome.NOTHING_NEW
    table.consumerManager().deleteConsumer("headrace_tiered")
    assert table.newExpireSnapshots().config(table.coreOptions().expireConfig()).expire() == 1
    with pytest.raises(LakeError, match="would duplicate"):
        world.tier()


def test_a_table_created_again_is_not_mixed_with_the_old_one(spark: Any, warehouse: Path) -> None:
    old = world_of(spark, warehouse)
    fill(old.log)
    old.tier()
    new = world_of(spark, warehouse, path=old.table.path)
    new.log.add(INSERT, row(1, "new"))
    with pytest.raises(LakeError, match="dropped and created again"):
        new.tier()
    assert old.lake_rows() == old.log.rows()
