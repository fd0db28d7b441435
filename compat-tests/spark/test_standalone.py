"""Spark on a cluster: a standalone master with two workers, each with an executor of 1 core and 1 GB.

The steps are the same with headrace installed on all machines, with an archive of the environment, and over Spark
Connect. The Python of the workers' own environment never has headrace.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.tablelayer.client import connect
from simulator.ports import free_port
from simulator.spark_standalone import Application, SparkCluster
from wheels import build_headrace

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(0)]

PATIENT = (
    *("--conf", "spark.python.authenticate.socketTimeout=120s"),
    *("--conf", "spark.sql.shuffle.partitions=2"),
    *("--conf", "spark.log.level=WARN"),
)
TABLES = """
CREATE TABLE {0}log (id BIGINT, name STRING, k BIGINT) WITH ('bucket.num'='2');
CREATE TABLE {0}copy (id BIGINT, name STRING, k BIGINT) WITH ('bucket.num'='2');
CREATE TABLE {0}keyed (id BIGINT, name STRING, k BIGINT, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num'='2');
CREATE TABLE {0}dim (id BIGINT, more STRING, PRIMARY KEY (id) NOT ENFORCED) WITH ('bucket.num'='2');
CREATE TABLE {0}counts (k BIGINT, n BIGINT, PRIMARY KEY (k) NOT ENFORCED)
"""
FOUND = {
    "write": "20000",
    "read": "[(20000, 199990000), (20000, 199990000)]",
    "select": "[(8572, 85704286)]",
    "insert": "[(40000, 40000)]",
    "merge": "[(20, 10)]",
    "lookup_join": "[(40000, 20010)]",
    "delta_join": "[3]",
    "stream": "[(40000, 40000, 40000)]",
}


@dataclass
class Environment:
    """A virtual environment with the wheel of headrace, and its archive."""

    python: Path
    archive: Path


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Environment:
    folder = tmp_path_factory.mktemp("environment")
    wheel = build_headrace(tmp_path_factory.mktemp("dist"))
    python = folder / "venv" / "bin" / "python"
    archive = folder / "env.tar.gz"
    uv = str(Path(sys.executable).with_name("uv"))
    packages = [
        "-c",
        str(ROOT / "requirements.lock"),
        f"headrace[spark] @ {wheel.as_uri()}",
        "pyspark[connect]==4.1.4",
    ]
    for command in (
        [uv, "-q", "venv", "--python", sys.executable, str(folder / "venv")],
        [uv, "-q", "pip", "install", "--python", str(python), *packages],
        [str(python.with_name("headrace")), "spark", "env", "--out", str(archive)],
    ):
        subprocess.run(command, check=True, env=_alone())
    return Environment(python, archive)


def _alone() -> dict[str, str]:
    """The variables of a user: without this checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def create(address: str, prefix: str) -> None:
    with connect(address) as connection:
        connection.execute(TABLES.format(prefix))
        connection.table(f"default.{prefix}dim").upsert([{"id": n, "more": str(n)} for n in (1, 2, 3)])


def found_by(driver: Application, cluster: SparkCluster) -> dict[str, str]:
    """Wait for the driver; return what each step found."""
    code = driver.wait()
    output = driver.output()
    assert code == 0, f"{output[-8000:]}\n{cluster.executor_logs()}"
    lines = (line.partition(": ") for line in output.splitlines())
    return {name: value for name, _, value in lines if name in FOUND}


def settings(environment: Environment, *words: str) -> list[str]:
    """Return what `headrace spark conf` prints for spark-submit."""
    command = [str(environment.python.with_name("headrace")), "spark", "conf", "--format", "submit", *words]
    return subprocess.run(command, check=True, env=_alone(), capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize("way", ["installed", "archive"])
def test_every_step_runs_on_executors(spark_cluster, server, tmp_path, environment, way) -> None:
    """The driver's program starts the session by `session`, which leaves the master as it is given."""
    prefix = f"{way}_"
    create(server.address, prefix)
    shutil.copy(HERE / "cluster_steps.py", tmp_path)
    archive = ["--archive", str(environment.archive)] if way == "archive" else []
    python = {} if way == "archive" else {"PYSPARK_PYTHON": str(environment.python)}
    driver = spark_cluster.submit(
        *PATIENT,
        *settings(environment, *archive),
        "cluster_steps.py",
        server.address,
        prefix,
        str(tmp_path),
        *FOUND,
        folder=tmp_path,
        environment={**python, "PYTHONPATH": ""},
    )
    assert found_by(driver, spark_cluster) == FOUND


def test_every_step_runs_over_spark_connect(spark_cluster, server, tmp_path, environment) -> None:
    """The server has the settings of `headrace spark conf`, and the client none."""
    create(server.address, "connect_")
    port = free_port()
    connect_server = spark_cluster.submit(
        *PATIENT,
        *settings(environment),
        "--class",
        "org.apache.spark.sql.connect.service.SparkConnectServer",
        "--conf",
        f"spark.connect.grpc.binding.port={port}",
        "spark-internal",
        folder=tmp_path,
        environment={"PYSPARK_PYTHON": str(environment.python), "PYTHONPATH": ""},
    )
    try:
        command = [str(environment.python), str(HERE / "cluster_steps.py"), server.address, "connect_"]
        environ = {**_alone(), "SPARK_REMOTE": f"sc://127.0.0.1:{port}"}
        client = Application([*command, str(tmp_path), *FOUND], tmp_path, {**environ, "PYTHONPATH": ""})
        assert found_by(client, spark_cluster) == FOUND
    finally:
        connect_server.kill()


WRITES = [f"{kind}-{target}" for kind in ("batch", "insert", "stream") for target in ("log", "keyed")]
WRITES.append("overwrite-keyed")
ROWS = 8_000
OLD = range(-100, 100)
"""The keys of the table that is overwritten."""


@pytest.fixture
def tables(own_server) -> str:
    """The address of a server with a table of rows, and one for each write."""
    make_tables(own_server.address)
    return own_server.address


def make_tables(address: str) -> None:
    with connect(address) as connection:
        columns = "id BIGINT, name STRING"
        connection.execute(f"CREATE TABLE rows ({columns}) WITH ('bucket.num'='2')")
        for write in WRITES:
            key = ", PRIMARY KEY (id) NOT ENFORCED" if write.endswith("keyed") else ""
            connection.execute(
                f"CREATE TABLE {write.replace('-', '_')} ({columns}{key}) WITH ('bucket.num'='2')"
            )
        connection.table("default.rows").append([{"id": n, "name": str(n)} for n in range(ROWS)])
        connection.table("default.overwrite_keyed").upsert([{"id": n, "name": "old"} for n in OLD])


def assert_each_row_once(address: str, write: str) -> None:
    """The rows are there, and their changes, which a key that was written twice would have twice."""
    with connect(address) as connection:
        table = connection.table(f"default.{write.replace('-', '_')}")
        assert sorted(table.to_arrow(["id"]).column("id").to_pylist()) == list(range(ROWS)), write
        # Each old row was an insertion, and is a deletion now or the old image of an update.
        changes = ROWS + (2 * len(OLD) if write.startswith("overwrite") else 0)
        assert sum(table.offsets("latest").values()) == changes, write


def assert_nothing_is_visible(address: str, write: str) -> None:
    """No row of a write that broke off is there, and no row that it replaces is gone."""
    with connect(address) as connection:
        rows = connection.table(f"default.{write.replace('-', '_')}").to_arrow()
        expected = sorted((n, "old") for n in OLD) if write.startswith("overwrite") else []
        assert sorted(tuple(row.values()) for row in rows.to_pylist()) == expected, write


def submit(cluster, address, folder, environment, writes) -> Application:
    shutil.copy(HERE / "cluster_kills.py", folder)
    more = {"PYSPARK_PYTHON": str(environment.python), "PYTHONPATH": ""}
    program = ["cluster_kills.py", address, str(folder), *writes]
    return cluster.submit(*PATIENT, *program, folder=folder, environment=more)


def running(driver: Application, folder: Path, write: str) -> int:
    """Return the process id of an executor that stands still in the middle of a write; 0 before."""
    assert not driver.ended(), driver.output()[-8000:]
    return int(next(filter(None, (mark.read_text() for mark in folder.glob(f"{write}.*"))), 0))


def test_executors_that_are_killed_lose_and_double_no_row(
    spark_cluster, tables, tmp_path, environment, wait_until
) -> None:
    driver = submit(spark_cluster, tables, tmp_path, environment, WRITES)
    for write in WRITES:
        executor = wait_until(lambda write=write: running(driver, tmp_path, write), write, 1800)
        os.kill(executor, signal.SIGKILL)
    assert driver.wait() == 0, driver.output()[-8000:]
    for write in WRITES:
        assert_each_row_once(tables, write)
        attempts = {mark.name.rpartition(".")[2] for mark in tmp_path.glob(f"{write}.*")}
        assert len(attempts) > 1, f"{write}: no task was repeated"


@pytest.mark.parametrize("write", WRITES)
def test_a_driver_that_is_killed_loses_and_doubles_no_row(
    spark_cluster, tables, tmp_path, environment, wait_until, write
) -> None:
    """The program is started again: a batch writes all its rows, a stream goes on from its checkpoint."""
    driver = submit(spark_cluster, tables, tmp_path, environment, [write])
    wait_until(lambda: running(driver, tmp_path, write), write, 1800)
    driver.kill()
    assert_nothing_is_visible(tables, write)
    again = submit(spark_cluster, tables, tmp_path, environment, [write])
    assert again.wait() == 0, again.output()[-8000:]
    assert_each_row_once(tables, write)
