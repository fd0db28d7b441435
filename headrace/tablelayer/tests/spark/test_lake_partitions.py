"""A partitioned table is one lake table: partitions come, go, and come again under their old names."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from headrace.tablelayer.client import Connection
from headrace.tablelayer.lake.adapter import LakeError
from headrace.tablelayer.lake.catalogs import lake_catalog
from headrace.tablelayer.lake.change_source import TableChanges
from headrace.tablelayer.lake.coordinator import ServerCoordinator
from headrace.tablelayer.lake.tiering_job import run_tiering
from headrace.tablelayer.lake.union_read import lake_then_stream, union_read
from headrace.tablelayer.lake.union_scan import lake_metadata, union_scan
from headrace.tablelayer.model.lake.offsets import PartitionBucket
from headrace.tablelayer.spark.types import SYSTEM_FIELDS
from headrace.tablelayer.sql.session import Session
from headrace.tablelayer.tests.lake.paimon_world import rows_by_paimon
from headrace.tablelayer.tests.spark.spark_tables import read_available

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

COLUMNS = "d DATE, r STRING, id INT, v INT"
KEYED = {"bucket.num": "2", "bucket.key": "id"}
NESTED = {"iceberg": "", "paimon": ", n ROW<a INT, b ARRAY<STRING>>"}


def own(row: dict[str, Any]) -> tuple[Any, ...]:
    """Return a row without the columns that only the lake table has."""
    return tuple(value for name, value in row.items() if name not in SYSTEM_FIELDS)


class Lake:
    """One partitioned table, its lake, and the table's own rows."""

    def __init__(
        self,
        spark: Any,
        address: str,
        client: Connection,
        name: str,
        key: bool,
        lake: str,
        options: Mapping[str, str] = KEYED,
    ) -> None:
        primary = ", PRIMARY KEY (d, r, id) NOT ENFORCED" if key else ""
        given = {"table.datalake.enabled": "true", "table.datalake.format": lake, **options}
        with_ = ", ".join(f"'{option}' = '{value}'" for option, value in given.items())
        client.execute(
            f"CREATE TABLE {name} ({COLUMNS}{NESTED[lake]}{primary}) PARTITIONED BY (d, r) WITH ({with_})"
        )
        self.table = client.table(name)
        self.path = str(self.table.path)
        self.spark, self.address, self.client = spark, address, client
        self.kind = lake

    def write(self, region: str, rows: list[tuple[int, int]]) -> None:
        data = [
            {"d": "2024-01-01", "r": region, "id": key, "v": value}
            | ({"n": {"a": value, "b": ["x", None]}} if self.kind == "paimon" else {})
            for key, value in rows
        ]
        if self.table.definition.is_primary_key_table:
            self.table.upsert(data)
        else:
            self.table.append(data)

    def tier(self) -> list[str]:
        lines: list[str] = []
        assert run_tiering(self.address, tables=[self.path], report=lines.append) == 0, lines
        return lines

    def rows(self, suffix: str = "") -> list[tuple[Any, ...]]:
        """In Spark; and the same without it, columns and a condition of one's own included."""
        frame = union_read(self.spark, self.address, self.path + suffix)
        found = sorted((own(row) for row in frame.toArrow().to_pylist()), key=str)
        if not suffix or self.status().commits:
            alone = union_scan(self.client, self.path + suffix).to_arrow().to_pylist()
            assert sorted((own(row) for row in alone), key=str) == found
            some = union_scan(self.client, self.path + suffix, ["id"], "r = 'us' AND v > 4").to_arrow()
            assert sorted(some.column("id").to_pylist()) == sorted(
                row[2] for row in found if row[1] == "us" and row[3] > 4
            )
        return found

    def truth(self) -> list[tuple[Any, ...]]:
        return sorted((tuple(row.values()) for row in self.table.to_arrow().to_pylist()), key=str)

    def in_lake(self) -> Any:
        """The adapter, as a tierer opens it now."""
        definition = self.client.admin.describe_table(self.path)
        return lake_catalog(self.status(), None, definition.path).table(self.spark.newSession(), definition)

    def status(self) -> Any:
        return ServerCoordinator(self.client, "test").describe(self.table.definition.table_id)


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("iceberg", True),
        pytest.param("iceberg", False, marks=pytest.mark.soak),
        pytest.param("paimon", True, marks=pytest.mark.soak),
        pytest.param("paimon", False, marks=pytest.mark.soak),
    ],
)
def test_partitions_come_go_and_come_again(
    spark: Any, address: str, client: Connection, key: bool, kind: str
) -> None:
    lake = Lake(spark, address, client, f"lake_parts_{'pk' if key else 'log'}_{kind}", key, kind)
    lake.write("eu", [(n, n) for n in range(20)])
    lake.write("us", [(n, n) for n in range(5)])
    assert lake.rows() == lake.truth(), "before the first round"
    lake.tier()
    assert lake.rows("$lake") == lake.truth()
    status = lake.status()
    assert {place.partition for place in status.offsets} == {"2024-01-01.eu", "2024-01-01.us"}
    assert (status.behind, status.behind_ms, status.commits) == (0, 0, 1)

    lake.write("asia", [(1, 1)])
    lake.write("us", [(4, 44), (5, 5)])
    if key:
        lake.table.delete([{"d": "2024-01-01", "r": "eu", "id": 3}])
    assert lake.status().behind > 0
    assert lake.rows() == lake.truth(), "a new partition is in the log alone"
    lake.tier()
    assert lake.rows("$lake") == lake.truth() == lake.rows()

    kept = [row for row in lake.truth() if row[1] == "us"]
    client.admin.drop_partition(lake.path, {"d": "2024-01-01", "r": "us"})
    assert lake.rows() == lake.truth(), "the lake's last offsets are also of a partition that is gone"
    lake.write("eu", [(100, 1)])
    lake.tier()
    assert [row for row in lake.rows("$lake") if row[1] == "us"] == kept, "the lake keeps what was dropped"
    assert lake.rows() == lake.truth(), "but the table does not"
    assert not [row for row in lake.truth() if row[1] == "us"]
    assert {place.partition for place in lake.status().offsets} == {"2024-01-01.eu", "2024-01-01.asia"}

    lake.write("us", [(4, 7)])
    assert lake.rows() == lake.truth(), "a partition made again hides what the lake has of the old one"
    lake.tier()
    assert lake.rows("$lake") == lake.truth() == lake.rows()

    latest, done = TableChanges.latest, []

    def latest_after_replacing(self: TableChanges) -> dict[Any, int]:
        if not done:
            done.append(True)
            client.admin.drop_partition(lake.path, {"d": "2024-01-01", "r": "us"})
            lake.write("us", [(8, 8)])
        return latest(self)

    with patch.object(TableChanges, "latest", latest_after_replacing):
        assert lake.rows() == lake.truth(), "a partition is replaced when a union read has begun"
    assert [row[2] for row in lake.truth() if row[1] == "us"] == [8]
    lake.tier()

    table = lake.in_lake()
    if kind == "iceberg":
        fields = [field.name() for field in table._load().spec().fields()]
        assert fields == ["d", "r", "id_bucket"]
    else:
        assert list(table._load().partitionKeys()) == ["d", "r"]
    offsets = table.find_committed().offsets
    assert dict(offsets) == dict(lake.status().offsets)
    assert all(isinstance(place, PartitionBucket) for place in offsets)
    newest = union_read(spark, address, f"{lake.path}$lake$snapshots").collect()[-1]
    us = {p.bucket: o for p, o in offsets.items() if p.partition.endswith(".us")}
    assert newest.offsets["2024-01-01.us"] == us
    alone = lake_metadata(client, f"{lake.path}$lake$snapshots").to_pylist()[-1]
    assert {name: dict(ends) for name, ends in alone["offsets"]} == newest.offsets
    assert (alone["snapshot_id"], alone["epoch"]) == (newest.snapshot_id, newest.epoch)
    (answer,) = Session(client).run(
        f"SELECT count(*), sum(v) FROM \"{lake.path.split('.')[1]}$lake\" WHERE r = 'eu'"
    )
    assert answer.rows is not None
    eu = [row[3] for row in lake.truth() if row[1] == "eu"]
    assert [tuple(row.values()) for row in answer.rows.to_pylist()] == [(len(eu), sum(eu))]
    client.admin.drop_table(lake.path)


UPKEEP = {
    "table.datalake.auto-compaction": "true",
    "table.datalake.auto-expire-snapshot": "true",
    "paimon.num-sorted-run.compaction-trigger": "3",
    "paimon.compaction.min.file-num": "3",
    "paimon.snapshot.time-retained": "1 ms",
    "paimon.snapshot.num-retained.min": "1",
}


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shape", ["pk", "log", "without a key"])
def test_upkeep_keeps_the_offsets_of_partitions_that_come_and_go(
    spark: Any, address: str, client: Connection, shape: str
) -> None:
    name = f"lake_parts_upkeep_{shape.replace(' ', '_')}"
    options = UPKEEP if shape == "without a key" else {**UPKEEP, **KEYED}
    lake = Lake(spark, address, client, name, shape == "pk", "paimon", options)
    rounds, said, gone = 9, "", list[tuple[Any, ...]]()
    for number in range(rounds):
        lake.write("eu", [(key, number) for key in range(6)])
        if number not in (4, 5):
            lake.write("us", [(key, number) for key in range(number + 1)])
        if number >= 2:
            lake.write("asia", [(key, number) for key in range(6)])
        if number == 6:
            gone = []  # the partition was made again
        said += "\n".join(lake.tier())
        table = lake.in_lake()
        ends = TableChanges(client, address, lake.table.definition).latest()
        assert dict(table.find_committed().offsets) == dict(lake.status().offsets) == ends
        expected = sorted([*lake.truth(), *gone], key=str)
        assert lake.rows("$lake") == expected
        assert lake.rows() == lake.truth()
        theirs = rows_by_paimon(table).select(lake.table.definition.schema.names).to_pylist()
        assert sorted((tuple(row.values()) for row in theirs), key=str) == expected
        if number == 3:
            gone = [row for row in lake.truth() if row[1] == "us"]
            client.admin.drop_partition(lake.path, {"d": "2024-01-01", "r": "us"})
    assert "compacted" in said
    assert "expired" in said
    assert "failed" not in said
    assert lake_metadata(client, f"{lake.path}$lake$snapshots").num_rows < rounds
    assert "nothing new" in lake.tier()[0]
    client.admin.drop_table(lake.path)


def test_partitions_expire_in_paimon_and_on_the_server(spark: Any, address: str, client: Connection) -> None:
    options = {"paimon.partition.expiration-time": "30 d", "paimon.deletion-vectors.enabled": "true", **KEYED}
    lake = Lake(spark, address, client, "lake_parts_expiry", True, "paimon", options)
    today = str(datetime.datetime.now(datetime.UTC).date())
    client.table(lake.path).upsert(
        [{"d": today, "r": "eu", "id": key, "v": key, "n": None} for key in range(9)]
    )
    new = lake.truth()
    for key, region in ((1, "eu"), (2, "us")):
        lake.write(region, [(key, key)])
    (said,) = lake.tier()
    assert "2 partitions (2024-01-01.eu, 2024-01-01.us) expired" in said
    table = lake.in_lake()
    assert dict(table._load().options())["partition.expiration-time"] == "30 d"
    for late in (False, True):
        if late:  # it makes the partition again, until the next check
            lake.write("eu", [(3, 3)])
            assert len(lake.rows()) == len(new) + 1
            assert "partition 2024-01-01.eu expired" in lake.tier()[0]
        assert lake.rows() == lake.rows("$lake") == lake.truth() == new
        theirs = rows_by_paimon(table).select(lake.table.definition.schema.names).to_pylist()
        assert sorted((tuple(row.values()) for row in theirs), key=str) == new
        assert [each.name for each in lake.table.partitions()] == [f"{today}.eu"]
        assert {place.partition for place in table.find_committed().offsets} == {f"{today}.eu"}
        assert not lake.status().dropped
    assert lake.tier()[0].endswith(f"nothing new, the lake is at snapshot {table.find_committed().head}")
    client.admin.drop_table(lake.path)


def test_a_partition_alone_is_not_tiered(address: str, client: Connection, spark: Any) -> None:
    lake = Lake(spark, address, client, "lake_parts_one", True, "iceberg")
    lake.write("eu", [(1, 1)])
    lines: list[str] = []
    assert run_tiering(address, tables=[f"{lake.path}.2024-01-01.eu"], report=lines.append) == 1
    assert "tiered together with its table" in lines[0]
    with pytest.raises(LakeError, match="tiered together"):
        union_read(spark, address, f"{lake.path}.2024-01-01.eu$lake")
    client.admin.drop_table(lake.path)


@pytest.mark.soak
def test_a_stream_goes_on_where_the_lake_ends(
    spark: Any, address: str, client: Connection, tmp_path: Path
) -> None:
    lake = Lake(spark, address, client, "lake_parts_stream", False, "iceberg")
    lake.write("eu", [(n, n) for n in range(10)])
    lake.tier()
    lake.write("eu", [(10, 10)])
    lake.write("us", [(11, 11)])
    rows, stream = lake_then_stream(spark, address, lake.path)
    after = read_available(stream, tmp_path / "checkpoint")
    assert sorted(row.id for row in rows.collect()) == list(range(10))
    assert sorted(row.id for row in after) == [10, 11]
    client.admin.drop_table(lake.path)
