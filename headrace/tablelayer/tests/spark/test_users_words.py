"""Statements as users of Spark write them, in a session: Spark's own words and those of its Kafka source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from headrace.tablelayer.client import Connection
from headrace.tablelayer.lake.tiering_job import run_tiering
from headrace.tablelayer.lake.union_read import union_read
from headrace.tablelayer.lake.union_scan import union_scan
from headrace.tablelayer.model.types.column_types import BIGINT, INT, STRING
from headrace.tablelayer.spark.source import register
from headrace.tablelayer.tests.spark.spark_tables import create, finish, load, read_available, sink, stream

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

COLUMNS = [("k", BIGINT), ("v", STRING)]


def test_sparks_words_and_those_of_its_kafka_source(
    spark: Any, address: str, client: Connection, tmp_path: Path
) -> None:
    log, keyed = create(client, COLUMNS), create(client, COLUMNS, ("k",))
    client.table(log).append([{"k": n, "v": "x"} for n in range(100)])
    spark.conf.set("spark.headrace.bootstrap.servers", address)
    try:
        register(spark)
    finally:
        spark.conf.unset("spark.headrace.bootstrap.servers")
    try:
        assert spark.read.format("headrace").load(log).count() == 100
        query = sink(stream(spark, address, log), address, keyed, tmp_path / "named").queryName("named")
        finish(query.trigger(availableNow=True).start())
        assert client.table(keyed).count() == 100
    finally:
        register(spark)
    kafka = spark.read.format("headrace").option("kafka.bootstrap.servers", address)
    assert kafka.option("table", f"{keyed}$changelog").load().columns[:3] == ["k", "v", "_change_type"]
    options = f"(table '{keyed}', `bootstrap.servers` '{address}')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW users_words USING headrace OPTIONS {options}")
    assert spark.sql("SELECT count(*) AS n FROM users_words WHERE k < 10").collect()[0].n == 10


def test_a_stream_that_cannot_be_written_names_the_reason(
    spark: Any, address: str, client: Connection, tmp_path: Path
) -> None:
    keyed = create(client, COLUMNS, ("k",))
    with pytest.raises(StreamingQueryException, match="needs mode 'upsert'"):
        read_available(stream(spark, address, keyed), tmp_path / "checkpoint")


def test_available_now_continues_after_an_interrupted_run(
    spark: Any, address: str, client: Connection, tmp_path: Path
) -> None:
    path = create(client, COLUMNS, buckets=1)
    table = client.table(path)
    table.append([{"k": n, "v": "x"} for n in range(50)])

    def broken(frame: Any, number: int) -> None:
        raise RuntimeError("the driver ends here")

    writer = stream(spark, address, path).writeStream.foreachBatch(broken)
    with pytest.raises(StreamingQueryException):
        finish(writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start())
    table.append([{"k": n, "v": "x"} for n in range(50, 300)])
    assert sorted(row.k for row in read_available(stream(spark, address, path), tmp_path / "c")) == [
        *range(300)
    ]
    assert read_available(stream(spark, address, path), tmp_path / "c") == []


@pytest.mark.soak
@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
def test_columns_with_dots_and_the_lake_as_sparks_source_reads_it(
    spark: Any, address: str, client: Connection, lake: str
) -> None:
    columns = [("k.y", INT), ("x.y", STRING), ("x", STRING)]
    path = create(client, columns, ("k.y",), table_datalake_enabled="true", table_datalake_format=lake)
    table = client.table(path)
    table.upsert([{"k.y": n, "x.y": f"a{n}", "x": "x"} for n in range(10)])
    tier(address, path)
    client.execute(f"ALTER TABLE {path} ADD COLUMN `new.one` INT DEFAULT 5")
    table = client.table(path)
    table.upsert([{"k.y": 3, "x.y": "b3", "x": "x", "new.one": 6}])
    table.delete([{"k.y": 4}])
    tier(address, path)
    tiered = {n: ("b3" if n == 3 else f"a{n}", 6 if n == 3 else 5) for n in range(10) if n != 4}
    ends = sum(table.offsets("latest").values())
    table.upsert([{"k.y": 5, "x.y": "c5", "x": "x", "new.one": 7}])
    now = tiered | {5: ("c5", 7)}
    rows = union_scan(client, path, ["k.y", "x.y", "new.one"], "\"x.y\" <> 'a1'").to_arrow().to_pylist()
    found = {row["k.y"]: (row["x.y"], row["new.one"]) for row in rows}
    assert found == {key: value for key, value in now.items() if key != 1}
    assert {row[0]: (row[1], row[3]) for row in union_read(spark, address, path).collect()} == now
    of_lake = load(spark, address, f"{path}$lake", columns="k.y,new.one,x.y").collect()
    assert {row[0]: (row[2], row[1]) for row in of_lake} == tiered
    where = '["=", "x.y", "b3"]'
    (row,) = load(spark, address, f"{path}$lake", where=where).collect()
    assert (*row[:4], row["__bucket"]) == (3, "b3", "x", 6, 0)
    assert load(spark, address, f"{path}$lake", limit=2).count() == 2
    snapshots = load(spark, address, f"{path}$lake$snapshots").orderBy("committed_at").collect()
    rounds = [row for row in snapshots if row.epoch is not None]
    assert sum(rounds[-1].offsets.values()) == ends
    first = {n: f"a{n}" for n in range(10)}
    at = int(rounds[0].committed_at.timestamp() * 1000)
    for past in ({"snapshot": rounds[0].snapshot_id}, {"endingTimestamp": at}):
        old = load(spark, address, f"{path}$lake", columns="k.y,x.y", **past).collect()
        assert {row[0]: row[1] for row in old} == first
    name = path.split(".")[1]
    for when in (f"FOR VERSION AS OF {rounds[0].snapshot_id}", f"FOR SYSTEM_TIME AS OF {at}"):
        of_sql = client.sql(f'SELECT "k.y" AS k, "x.y" AS x FROM "{name}$lake" {when}').to_arrow().to_pylist()
        assert {row["k"]: row["x"] for row in of_sql} == first
    with pytest.raises(StreamingQueryException, match="reads the log of"):
        finish(stream(spark, address, f"{path}$lake").writeStream.format("noop").start())


def tier(address: str, path: str) -> None:
    said: list[str] = []
    assert run_tiering(address, tables=[path], report=said.append) == 0, said
