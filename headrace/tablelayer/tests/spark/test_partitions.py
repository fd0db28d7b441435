"""Partitioned tables in Spark: batches read only the partitions that a condition leaves, lookups find theirs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.spark import table as spark_table
from headrace.tablelayer.client import Connection
from headrace.tablelayer.model.ddl import CreateTable, parse
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.table.partitions import Partition
from headrace.tablelayer.spark.batch import HeadraceReader
from headrace.tablelayer.spark.lookups import lookup_join
from headrace.tablelayer.spark.options import ReadOptions
from headrace.tablelayer.spark.planning import partitions_needed
from headrace.tablelayer.tests.spark.spark_tables import load

SQL = "CREATE TABLE {} (d DATE, r STRING, id INT, v INT, PRIMARY KEY (d, r, id) NOT ENFORCED) PARTITIONED BY (d, r)"


@pytest.mark.parametrize(
    ("predicate", "kept"),
    [
        (None, [0, 1, 2]),
        (["=", "d", "2024-01-01"], [0, 1]),
        (["and", [">=", "d", "2024-01-01"], ["=", "r", "eu"], ["=", "v", 3]], [0, 2]),
        (["or", ["=", "r", "us"], ["=", "v", 3]], [0, 1, 2]),
        (["not", ["in", "r", ["eu"]]], [1]),
    ],
)
def test_the_parts_of_a_condition_about_partition_columns_decide(predicate: Any, kept: list[int]) -> None:
    (statement,) = parse(SQL.format("t"))
    assert isinstance(statement, CreateTable)
    names = ["2024-01-01.eu", "2024-01-01.us", "2024-01-02.eu"]
    partitions = [Partition(name, None, 1) for name in names]  # type: ignore[arg-type]
    found = partitions_needed(statement.definition, partitions, predicate)
    assert [each.name for each in found] == [names[index] for index in kept]


def test_tasks_read_the_partitions_that_the_driver_planned(address: str, client: Connection) -> None:
    """The source's two sides without Spark between them."""
    client.execute(SQL.format("planned_parts"))
    table = client.table("planned_parts")
    table.upsert([{"d": f"2024-01-0{n % 3 + 1}", "r": "eu", "id": n, "v": n} for n in range(12)])

    def read(**more: str) -> tuple[int, list[int]]:
        options = ReadOptions.parse({"bootstrap.servers": address, "table": str(table.path), **more})
        reader = HeadraceReader(options, ["id", "v"])
        splits = reader.partitions()
        rows = [row["id"] for split in splits for batch in reader.read(split) for row in batch.to_pylist()]
        return len(splits), sorted(rows)

    assert read() == (3, list(range(12)))
    assert read(mode="changelog") == (3, list(range(12)))
    where = json.dumps(["and", ["=", "d", "2024-01-02"], [">", "v", 4]])
    assert read(where=where) == (1, [7, 10])
    assert read(where=json.dumps(["=", "r", "us"])) == (1, [])
    with pytest.raises(ValueError, match="offsets are by partition and bucket"):
        read(endingOffsets='{"0": 1}')
    with pytest.raises(TableError, match=r"partition 2030 of .* does not exist"):
        read(endingOffsets='{"2030": {"0": 1}}')
    with pytest.raises(ValueError, match=r"ends at offset 99, but bucket 0 of .*, .* ends at [0-9]"):
        read(endingOffsets='{"2024-01-02.eu": {"0": 99}}')
    first = json.dumps({"2024-01-02.eu": {"0": 2}})
    assert read(endingOffsets=first) == (1, [1, 4])
    assert read(mode="upsert", startingOffsets=first) == (3, sorted({*range(12)} - {1, 4}))
    client.admin.drop_table(table.path)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_partitioned_table_read_looked_up_and_written(spark: Any, address: str, client: Connection) -> None:
    client.execute(SQL.format("spark_parts"))
    table = client.table("spark_parts")
    table.upsert([{"d": f"2024-01-0{n % 3 + 1}", "r": "eu", "id": n, "v": n} for n in range(12)])
    path = str(table.path)
    assert {row.id for row in load(spark, address, path).collect()} == set(range(12))
    changes = load(spark, address, path, mode="changelog").collect()
    assert sorted(row.id for row in changes) == list(range(12))
    some = spark_table(spark, path, address).where("d = DATE '2024-01-02' AND v > 4").to_df()
    assert {row.id for row in some.collect()} == {7, 10}
    assert some.rdd.getNumPartitions() == 1, "the other partitions are not read"
    one = load(spark, address, f"{path}.2024-01-02.eu")
    assert {row.id for row in one.collect()} == {1, 4, 7, 10}
    keys = spark.createDataFrame(
        [("2024-01-01", "eu", 3), ("2024-01-09", "eu", 3)], "day string, r string, id int"
    )
    keys = keys.selectExpr("to_date(day) AS day", "r AS region", "id AS number")
    joined = lookup_join(keys, address, path, on={"day": "d", "region": "r", "number": "id"}, select=["v"])
    assert sorted(joined.collect(), key=lambda row: str(row.day))[0].v == 3
    assert sorted(joined.collect(), key=lambda row: str(row.day))[1].v is None
    rows = spark.createDataFrame([("2024-02-01", "us", 99, 1)], "d string, r string, id int, v int")
    rows = rows.selectExpr("to_date(d) AS d", "r", "id", "v")
    writer = rows.write.format("headrace").option("bootstrap.servers", address).option("table", path)
    writer.mode("append").save()
    assert table.count() == 13
    pinned = table.partition_offsets("latest")
    frame = spark_table(spark, path, address).to_df()
    table.upsert(
        [{"d": "2024-01-01", "r": "eu", "id": 0, "v": 1000}, {"d": "2025-01-01", "r": "eu", "id": 5, "v": 5}]
    )
    assert frame.count() == 13, "pinned when the frame was made, partitions too"
    then = spark_table(spark, path, address).as_of(pinned).to_df()
    assert {row.v for row in then.where("id = 0").collect()} == {0}
    assert table.count(as_of=pinned) == 13
    assert table.count() == 14
    client.admin.drop_table(path)
