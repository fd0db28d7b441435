"""Writes of `spark/cluster_kills.py` whose processes are killed: their tables, and what must be in them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from headrace.tablelayer.client import connect
from simulator.spark_standalone import Application, SparkCluster

HERE = Path(__file__).resolve().parent / "spark"
PATIENT = (
    *("--conf", "spark.python.authenticate.socketTimeout=120s"),
    *("--conf", "spark.sql.shuffle.partitions=2"),
    *("--conf", "spark.log.level=WARN"),
)
WRITES = [f"{kind}-{target}" for kind in ("batch", "insert", "stream") for target in ("log", "keyed")]
WRITES.append("overwrite-keyed")
ROWS = 8_000
OLD = range(-100, 100)
"""The keys of the table that is overwritten."""


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


def submit(
    cluster: SparkCluster, address: str, folder: Path, python: Path, writes: Sequence[str]
) -> Application:
    """Start the program with executors of this Python."""
    shutil.copy(HERE / "cluster_kills.py", folder)
    more = {"PYSPARK_PYTHON": str(python), "PYTHONPATH": ""}
    program = ["cluster_kills.py", address, str(folder), *writes]
    return cluster.submit(*PATIENT, *program, folder=folder, environment=more)


def running(driver: Application, folder: Path, write: str) -> int:
    """Return the process id of an executor that stands still in the middle of a write; 0 before."""
    assert not driver.ended(), driver.output()[-8000:]
    return int(next(filter(None, (mark.read_text() for mark in folder.glob(f"{write}.*"))), 0))
