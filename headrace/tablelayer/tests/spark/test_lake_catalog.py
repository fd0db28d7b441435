"""The lake's tables found over Iceberg's REST: Spark and pyiceberg as callers of `headrace catalog`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from pyiceberg.catalog import load_catalog

from headrace.tablelayer.client import Connection
from headrace.tablelayer.lake.tiering_job import run_tiering
from headrace.tablelayer.model.types.column_types import BIGINT, STRING
from headrace.tablelayer.spark.sessions import activate
from headrace.tablelayer.tests.spark.spark_tables import ROOT, create

pytestmark = [
    pytest.mark.spark,
    pytest.mark.soak,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture
def catalog(address: str) -> Iterator[str]:
    command = [
        sys.executable,
        "-m",
        "headrace.tablelayer.cli.main",
        "catalog",
        "--listen",
        "127.0.0.1:0",
        "--server",
        address,
    ]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as process:
        assert process.stdout is not None
        try:
            ready = re.search(r"http://\S+", process.stdout.readline())
            assert ready is not None
            yield ready.group()
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == "ended by a signal\n"
    assert process.returncode == 0


def test_tiered_tables_are_found_and_read(spark: Any, address: str, client: Connection, catalog: str) -> None:
    path = create(client, [("id", BIGINT), ("v", STRING)], ("id",), table_datalake_enabled="true")
    unseen = create(client, [("id", BIGINT)], table_datalake_enabled="true")
    table = client.table(path)
    table.upsert([{"id": n, "v": "a"} for n in range(10)])
    client.kafka.create_topic(
        "found.clicks", configs={"datalake.enabled": "true", "datalake.value-format": "json"}
    )
    producer = Producer({"bootstrap.servers": address})
    for value in ('{"n": 1}', "bad"):
        producer.produce("found.clicks", value)
    assert producer.flush(60) == 0
    assert run_tiering(address, tables=[path], topics=["found.clicks"]) == 0
    table.delete([{"id": 3}])
    table.upsert([{"id": 4, "v": "b"}])
    assert run_tiering(address, tables=[path]) == 0
    expected = {n: "b" if n == 4 else "a" for n in range(10) if n != 3}

    lake = load_catalog("lake", type="rest", uri=catalog)
    found = {name for _, name in lake.list_tables("default")}
    assert path.removeprefix("default.") in found
    assert unseen.removeprefix("default.") not in found
    assert sorted(lake.list_tables("found")) == [("found", "clicks"), ("found", "clicks_dead_letters")]
    rows = lake.load_table(path).scan().to_arrow()
    assert dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)) == expected
    lake.close()

    session = spark.newSession()
    prefix = "spark.sql.catalog.found"
    for name, value in {"type": "rest", "uri": catalog}.items():
        session.conf.set(f"{prefix}.{name}", value)
    session.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
    try:
        assert ("found",) in [tuple(row) for row in session.sql("SHOW NAMESPACES IN found").collect()]
        assert {row.id: row.v for row in session.table(f"found.{path}").collect()} == expected
        assert [row.n for row in session.table("found.found.clicks").collect()] == [1]
        with pytest.raises(Exception, match=r"read-only|does not support endpoint|not supported"):
            session.sql(f"DELETE FROM found.{path} WHERE id = 1")
    finally:
        activate(spark)
    client.kafka.delete_topic("found.clicks")
