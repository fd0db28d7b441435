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
from spark_kills import (
    PATIENT,
    WRITES,
    assert_each_row_once,
    assert_nothing_is_visible,
    make_tables,
    running,
    submit,
)

from headrace.tablelayer.client import connect
from simulator.ports import free_port
from simulator.spark_standalone import Application, SparkCluster
from wheels import build_headrace

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(0)]

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
    """Return the arguments that `headrace spark conf` prints for spark-submit."""
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


@pytest.fixture
def tables(own_server) -> str:
    """The address of a server with a table of rows, and one for each write."""
    make_tables(own_server.address)
    return own_server.address


def test_executors_that_are_killed_lose_and_double_no_row(
    spark_cluster, tables, tmp_path, environment, wait_until
) -> None:
    driver = submit(spark_cluster, tables, tmp_path, environment.python, WRITES)
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
    driver = submit(spark_cluster, tables, tmp_path, environment.python, [write])
    wait_until(lambda: running(driver, tmp_path, write), write, 1800)
    driver.kill()
    assert_nothing_is_visible(tables, write)
    again = submit(spark_cluster, tables, tmp_path, environment.python, [write])
    assert again.wait() == 0, again.output()[-8000:]
    assert_each_row_once(tables, write)
