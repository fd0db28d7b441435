"""Streams of tiered tables whose log has expired, while the driver is killed: each row once.

`headrace tier`, the server and the driver are processes of their own. The log is cut by retention, and a partition
expires by the deletion of its topic.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headrace.tablelayer.client import Connection, connect
from simulator.spark_standalone import Application

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = str(Path(__file__).with_name("behind_the_log.py"))
pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(0)]

TABLES = ("plain", "parted", "keyed", "parted_keyed")
ROWS = 3_000


def create(connection: Connection, lake: str) -> None:
    for table in TABLES:
        key = ", PRIMARY KEY (id, day) NOT ENFORCED" if "keyed" in table else ""
        parted = " PARTITIONED BY (day)" if "parted" in table else ""
        connection.execute(
            f"CREATE TABLE {table} (id BIGINT, v BIGINT, day STRING{key}){parted} WITH ('bucket.num' = '2',"
            f" 'bucket.key' = 'id', 'segment.ms' = '200', 'table.log.ttl' = '1 s', 'table.datalake.enabled' = 'true',"
            f" 'table.datalake.format' = '{lake}');"
            f" CREATE TABLE {table}_copy (id BIGINT, v BIGINT, day STRING) WITH ('bucket.num' = '2')"
        )


def row(number: int) -> tuple[int, int, str]:
    return number, number * 7, "abc"[number % 3]


def write(connection: Connection, tables: tuple[str, ...], ids: range) -> None:
    rows = [dict(zip(("id", "v", "day"), row(each), strict=True)) for each in ids]
    for table in tables:
        opened = connection.table(f"default.{table}")
        opened.upsert(rows) if "keyed" in table else opened.append(rows)


def tier(address: str) -> None:
    command = [sys.executable, "-m", "headrace.tablelayer.cli.main", "tier", "--once", "--server", address]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def expire(connection: Connection, tables: tuple[str, ...], day: str, wait_until: Any) -> None:
    """Wait until retention has deleted the logs, all of which is tiered; delete a partition."""
    for name in tables:
        table = connection.table(f"default.{name}")
        if "parted" in name:
            connection.kafka.delete_topic(table.path.of_partition(day).topic)

    def is_gone(name: str) -> bool:
        table = connection.table(f"default.{name}")
        ask = table.partition_offsets if "parted" in name else table.offsets
        return bool(ask("earliest") == ask("latest"))

    for name in tables:
        wait_until(lambda name=name: "keyed" in name or is_gone(name), f"the retention of {name}", 120)


def start(folder: Path, address: str, tables: tuple[str, ...]) -> Application:
    environment = {"PYTHONPATH": str(ROOT), **os.environ}
    return Application([sys.executable, PROGRAM, address, str(folder), *tables], folder, environment)


def run(folder: Path, address: str, tables: tuple[str, ...], wait_until: Any) -> None:
    """Run the streams, kill the driver in the middle of each, and run them again."""
    slow, marks = folder / "slow", [folder / f"mark.{table}" for table in tables]
    slow.touch()
    driver = start(folder, address, tables)

    def all_stand() -> bool:
        assert not driver.ended(), driver.output()[-8000:]
        return all(mark.exists() for mark in marks)

    wait_until(all_stand, f"streams of {', '.join(tables)} that stand still", 600)
    driver.kill()
    for each in (slow, *marks):
        each.unlink()
    driver = start(folder, address, tables)
    assert driver.wait() == 0, driver.output()[-8000:]


def assert_each_once(
    connection: Connection, tables: tuple[str, ...], expected: Counter[tuple[int, int, str]]
) -> None:
    for table in tables:
        rows = connection.table(f"default.{table}_copy").to_arrow().to_pylist()
        found = Counter((row["id"], row["v"], row["day"]) for row in rows)
        assert found == expected, (table, (expected - found).total(), (found - expected).total())


@pytest.mark.parametrize("lake", ["paimon", "iceberg"])
def test_a_stream_over_an_expired_log_has_each_row_once(
    tmp_path, server_process_class, wait_until, lake
) -> None:
    settings = {
        f"datalake.{lake}.warehouse": str(tmp_path / "warehouse"),
        "log.retention.check.interval.ms": "200",
    }
    server = server_process_class(tmp_path, **settings).start()
    try:
        with connect(server.address) as connection:
            create(connection, lake)
            write(connection, TABLES, range(ROWS))
            tier(server.address)
            expire(connection, TABLES, "b", wait_until)
            write(connection, TABLES, range(ROWS, ROWS + 500))
            run(tmp_path, server.address, TABLES, wait_until)
            expected = Counter(row(each) for each in range(ROWS + 500))
            assert_each_once(connection, TABLES, expected)
            # The streams stand still, and rounds and retention pass them. The lake has rows of an expired partition and
            # of its successor at the same offsets.
            logs = TABLES[:2]
            write(connection, logs, range(ROWS + 500, 2 * ROWS))
            tier(server.address)
            expire(connection, logs, "c", wait_until)
            write(connection, logs, range(2 * ROWS, 2 * ROWS + 500))
            run(tmp_path, server.address, logs, wait_until)
            expected.update(row(each) for each in range(ROWS + 500, 2 * ROWS + 500))
            assert_each_once(connection, logs, expected)
        assert "Traceback" not in server.log(), server.log()
    finally:
        server.kill()
