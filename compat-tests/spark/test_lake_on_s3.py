"""The lake on S3, with both formats: rounds, maintenance, and reads with and without Spark, while the store has faults.

`headrace tier` runs as a process of its own, as a user starts it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_s3 import FaultyS3
from object_stores import BUCKET, STORES

from headrace.tablelayer.client import connect
from headrace.tablelayer.lake.coordinator import TOKEN_VARIABLE
from headrace.tablelayer.lake.stores import create_only
from headrace.tablelayer.lake.union_read import union_read
from headrace.tablelayer.lake.union_scan import union_scan
from headrace.tablelayer.spark.sessions import session
from headrace.tablelayer.tests.spark import jvm
from headrace.tablelayer.tests.spark.spark_tables import Server
from simulator.ports import free_port

pytestmark = [pytest.mark.soak, pytest.mark.spark]

TOKEN = "a token of twenty characters"
ROWS = 300
ROUNDS = 5
FAULTS_MIN = 20
"""Number of requests that must have failed in a run."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FaultyS3, dict[str, str]]]:
    """The server versitygw behind the proxy, and its credentials."""
    port = free_port()
    served = STORES["versitygw"](tmp_path_factory.mktemp("s3"), port)
    proxy = FaultyS3(port)
    yield proxy, served.environment
    proxy.stop()
    served.stop()


@pytest.fixture(scope="module")
def server(
    store: tuple[FaultyS3, dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server whose settings have the usual names of each lake, with the secret behind the token."""
    proxy, environment = store
    key, secret = environment["AWS_ACCESS_KEY_ID"], environment["AWS_SECRET_ACCESS_KEY"]
    settings = {
        "datalake.tiering.token": TOKEN,
        "datalake.iceberg.warehouse": f"s3a://{BUCKET}/iceberg",
        "datalake.iceberg.s3.endpoint": proxy.address,
        "datalake.iceberg.s3.access-key-id": key,
        "datalake.iceberg.s3.secret-access-key": secret,
        "datalake.paimon.warehouse": f"s3://{BUCKET}/paimon",
        "datalake.paimon.fs.s3a.endpoint": proxy.address,
        "datalake.paimon.fs.s3a.access.key": key,
        "datalake.paimon.fs.s3a.secret.key": secret,
    }
    server = Server(tmp_path_factory.mktemp("server"), settings)
    server.start()
    yield server
    server.stop()


def tier(server: Server, *words: str) -> str:
    """Run `headrace tier --once`; return its output."""
    command = [
        sys.executable,
        "-m",
        "headrace.tablelayer.cli.main",
        "tier",
        "--server",
        server.address,
        "--once",
    ]
    environment = {**os.environ, TOKEN_VARIABLE: TOKEN}
    done = subprocess.run(
        [*command, *words], env=environment, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
def test_a_lake_on_s3_with_faults_has_every_row_once(
    store: tuple[FaultyS3, dict[str, str]], server: Server, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, environment = store
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    options = (
        f"'bucket.num' = '2', 'table.datalake.enabled' = 'true', 'table.datalake.format' = '{lake}',"
        " 'table.datalake.auto-compaction' = 'true'"
    )
    expected: dict[int, str] = {}
    faults, said = proxy.faults, ""
    with connect(server.address) as connection:
        for name, key in (("pk", ", PRIMARY KEY (id) NOT ENFORCED"), ("log", "")):
            connection.execute(f"CREATE TABLE {lake}_{name} (id BIGINT, v STRING{key}) WITH ({options})")
        keyed, log = (connection.table(f"{lake}_{name}") for name in ("pk", "log"))
        for number in range(ROUNDS):
            rows = {id_: f"{number}-{id_}" for id_ in range(number * 20, ROWS, number + 1)}
            keyed.upsert([{"id": id_, "v": v} for id_, v in rows.items()])
            log.append([{"id": number, "v": str(id_)} for id_ in range(ROWS)])
            gone = [id_ for id_ in range(number, ROWS, 50) if id_ in expected | rows]
            keyed.delete([{"id": id_} for id_ in gone])
            expected = {id_: v for id_, v in (expected | rows).items() if id_ not in gone}
            proxy.mode = "weak"
            said += tier(server, "--table", f"{lake}_pk", "--table", f"{lake}_log")
            proxy.mode = "well"
        assert "compacted" in said
        assert proxy.faults - faults >= FAULTS_MIN
        assert environment["AWS_SECRET_ACCESS_KEY"] not in said
        keyed.upsert([{"id": 0, "v": "not in the lake"}])
        log.append([{"id": -1, "v": "not in the lake"}])
        proxy.mode = "weak"
        found = union_scan(connection, f"default.{lake}_pk").to_arrow().to_pydict()
        assert dict(zip(found["id"], found["v"], strict=True)) == {**expected, 0: "not in the lake"}
        assert union_scan(connection, f"default.{lake}_log").to_arrow().num_rows == ROUNDS * ROWS + 1
        spark = session("lake on s3", memory="1g", extra=jvm.settings())
        for suffix, more in (("", {0: "not in the lake"}), ("$lake", {})):
            rows_read = union_read(spark, server.address, f"default.{lake}_pk{suffix}").collect()
            assert {row.id: row.v for row in rows_read} == {**expected, **more}
        proxy.mode = "well"
    assert environment["AWS_SECRET_ACCESS_KEY"] not in (server.folder / "log").read_text()


def test_an_object_of_s3_is_created_once(store: tuple[FaultyS3, dict[str, str]], server: Server) -> None:
    """A snapshot of Paimon is committed so: of two writers, one creates it."""
    spark: Any = session("lake on s3", memory="1g", extra=jvm.settings())
    place = f"s3://{BUCKET}/paimon/once"
    assert create_only(spark, place, "first")
    assert not create_only(spark, place, "second")
    path = spark._jvm.org.apache.hadoop.fs.Path(place)
    stream = path.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration()).open(path)
    assert bytes(stream.readNBytes(100)) == b"first"
    stream.close()


@pytest.fixture(scope="module", autouse=True)
def _stop_what_is_left() -> Iterator[None]:
    yield
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    if running is not None:
        running.stop()


def test_settings_from_the_environment(
    store: tuple[FaultyS3, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the warehouse is configured: the store and its credentials are those of the environment."""
    proxy, environment = store
    for name, value in {**environment, "AWS_ENDPOINT_URL": proxy.address}.items():
        monkeypatch.setenv(name, value)
    server = Server(tmp_path, {"datalake.paimon.warehouse": f"s3a://{BUCKET}/environment"})
    server.start()
    try:
        with connect(server.address) as connection:
            connection.execute("CREATE TABLE t (id BIGINT) WITH ('table.datalake.enabled' = 'true')")
            connection.table("t").append([{"id": 1}])
            tier(server, "--database", "default")
            assert union_scan(connection, "default.t").to_arrow().num_rows == 1
    finally:
        server.stop()
