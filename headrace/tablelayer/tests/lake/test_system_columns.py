"""System columns of lake tables: where in the log each row was, in both formats, with Spark and without it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.tablelayer.model.filters.conditions import DUCKDB, push_down
from headrace.tablelayer.spark.splits import Rows, last_changes, with_metadata
from headrace.tablelayer.spark.types import SYSTEM_FIELDS
from headrace.tablelayer.tests.lake.paimon_world import PaimonWorld
from headrace.tablelayer.tests.lake.test_columns import alter
from headrace.tablelayer.tests.lake.test_tiering import (
    AFTER,
    BUCKETS,
    DELETE,
    INSERT,
    FakeLog,
    World,
    definition,
    row,
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
SYSTEM = list(SYSTEM_FIELDS)
TIME_MS = 1_700_000_000_000
Place = tuple[int, int | None, datetime.datetime | None]


@dataclass
class PlacedLog(FakeLog):
    """A log whose rows have their places, as `TableChanges` gives them. Its record times are of the whole log."""

    def changes(self, spark: Any, start: Mapping[int, int], end: Mapping[int, int]) -> Any:
        schema, tables = self.table.schema.arrow(), []
        for bucket, entries in self.entries.items():
            part = entries[start[bucket] : end[bucket]]
            batch = pa.RecordBatch.from_pylist([value for _, value in part], schema=schema)
            types = np.array([change for change, _ in part], np.uint8)
            offsets = np.arange(start[bucket], end[bucket])
            placed = with_metadata(Rows(batch, types, offsets, TIME_MS), bucket, SYSTEM)
            batches = [placed]
            if self.table.is_primary_key_table:
                batches = list(last_changes([(placed, types)], self.table.schema.primary_key))
            tables += [pa.Table.from_batches([each]) for each in batches]
        return spark.createDataFrame(pa.concat_tables(tables))

    def state(self, spark: Any, end: Mapping[int, int]) -> Any | None:
        found = super().state(spark, end)
        if found is None:
            return None
        bucket = f"cast(pmod(id, {BUCKETS}) AS int) AS __bucket"
        return found.selectExpr(
            "*", bucket, "cast(NULL AS bigint) AS __offset", "cast(NULL AS timestamp) AS __timestamp"
        )

    def places(self, tiered: Mapping[int, int]) -> dict[int, Place]:
        """Return the place of each living key; before `tiered` it was in the state of the first round."""
        found: dict[int, Place] = {}
        moment = datetime.datetime.fromtimestamp(TIME_MS / 1000, datetime.UTC)
        for bucket, entries in self.entries.items():
            for offset, (change, value) in enumerate(entries):
                known = not self.table.is_primary_key_table or offset >= tiered[bucket]
                found[value["id"]] = (bucket, offset, moment) if known else (bucket, None, None)
                if change == DELETE:
                    del found[value["id"]]
        return found


def world_of(spark: Any, warehouse: Path, lake: str, **more: Any) -> World:
    table = definition(lake=lake, **more)
    return (PaimonWorld if lake == "paimon" else World)(spark, warehouse, table)


def seen(world: World) -> dict[int, Place]:
    """Return the places in the lake, which Spark and the reader without it have to agree on."""
    rows = world.lake.read(system_columns=True).toArrow().to_pylist()
    reader = world.reader()
    found = [
        each for batch in reader.read(reader.state(None).head, reader.shape.schema.columns)
        for each in batch.to_pylist()
    ]  # fmt: skip
    assert sorted(rows, key=lambda each: each["id"]) == sorted(found, key=lambda each: each["id"])
    return {each["id"]: tuple(each[name] for name in SYSTEM) for each in found}


@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
def test_a_row_of_the_lake_says_where_it_was_in_the_log(spark: Any, warehouse: Path, lake: str) -> None:
    world = world_of(spark, warehouse, lake)
    log = world.log = PlacedLog(world.table)
    for key in range(6):
        log.add(INSERT, row(key, "a"))
    world.tier()
    first = log.latest()
    assert seen(world) == log.places(first)
    alter(world, "ADD note STRING")
    log = world.log = PlacedLog(world.table, log.entries)
    log.add(AFTER, {**row(3, "b"), "note": "n"})
    log.add(DELETE, row(4, "a"))
    log.add(INSERT, {**row(9, "c"), "note": None})
    world.tier()
    assert seen(world) == log.places(first)
    assert world.lake.read().columns == world.table.schema.names
    # The definition that the lake keeps is that of the table itself.
    assert world.lake.stored_definition().schema == world.table.schema  # type: ignore[union-attr]


@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
def test_a_lake_table_from_before_goes_on_without_them(spark: Any, warehouse: Path, lake: str) -> None:
    world = world_of(spark, warehouse, lake, primary_key=())
    assert world.reader().shape.schema.names == [*world.table.schema.names, *SYSTEM]
    world.log.add(0, row(1, "a"))
    world.tier()
    log = world.log = PlacedLog(world.table, world.log.entries)
    log.add(0, row(2, "b"))
    world.tier()
    assert world.reader().shape == world.table
    assert world.lake.read(system_columns=True).columns == world.table.schema.names
    assert world.lake_rows() == log.rows()


def test_files_are_skipped_by_offsets(spark: Any, warehouse: Path) -> None:
    world = world_of(spark, warehouse, "iceberg", primary_key=())
    log = world.log = PlacedLog(world.table)
    for key in range(8):
        log.add(0, row(key, "a"))
        if key in (3, 7):
            world.tier()
    reader = world.reader()
    head = reader.state(None).head
    assert head is not None
    predicate = push_down(["__offset >= 2"], reader.shape.schema, DUCKDB).predicate
    assert predicate is not None
    assert 0 < len(reader.pieces(head, predicate)) < len(reader.pieces(head))
    assert seen(world) == log.places({})
