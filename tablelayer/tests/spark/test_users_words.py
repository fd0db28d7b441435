"""What users of Spark write, in a session: its own words and those of its Kafka source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from tablelayer.client import Connection
from tablelayer.model.types.column_types import BIGINT, STRING
from tablelayer.spark.source import register
from tablelayer.tests.spark.spark_tables import create, finish, read_available, sink, stream

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


def test_what_a_stream_cannot_read_says_so(
    spark: Any, address: str, client: Connection, tmp_path: Path
) -> None:
    keyed = create(client, COLUMNS, ("k",))
    with pytest.raises(StreamingQueryException, match="needs mode 'upsert'"):
        read_available(stream(spark, address, keyed), tmp_path / "checkpoint")


def test_available_now_reaches_what_is_there_after_a_run_that_broke_off(
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
