"""A server that may open few files serves many tables and partitions, and refuses no client for good."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.tablelayer.client import Connection, connect

pytestmark = pytest.mark.slow

FILES = 300
TABLES = 24
"""Number of tables, of two buckets each: their stores would need 336 files."""
PARTITIONS = 150


@contextmanager
def served(data: Path, log: Path, *more: str, files: int = FILES) -> Iterator[tuple[str, int]]:
    """Run a server with that many descriptors and `more` arguments. Yield its address and process id."""
    command = [sys.executable, "-m", "headrace.tablelayer.cli.main", "serve", "--listen", "127.0.0.1:0"]
    command += ["--data", str(data), "--set", "log.retention.check.interval.ms=200"]
    command += ["--set", "log.initial.task.delay.ms=0", "--set", "kv.snapshot.interval=1 s", *more]
    with log.open("a") as errors:
        process = subprocess.Popen(
            ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        try:
            assert process.stdout is not None
            ready = re.search(r"ready on (\S+:\d+)", process.stdout.readline())
            assert ready is not None, log.read_text()
            yield ready.group(1), process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def open_files(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


def check(connection: Connection, value: str, *, scan: bool = True) -> None:
    """Look rows up in every table, and scan the first one, for which the client opens another connection."""
    for number in range(TABLES):
        table = connection.table(f"few.t{number}")
        _, rows = table.lookup([{"k": key} for key in range(4)])
        assert rows["v"].to_pylist() == [value] * 4
    if scan:
        assert connection.sql("SELECT COUNT(*) AS n FROM few.t0 WHERE v IS NOT NULL").rows() == [{"n": 4}]


def produce(address: str) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 5})
    for partition in range(PARTITIONS):
        producer.produce(
            "plain",
            b"x",
            partition=partition,
            on_delivery=lambda error, _: failed.append(error) if error is not None else None,
        )
    assert producer.flush(60) == 0
    assert not failed


def consumed(address: str) -> int:
    """Return the number of records of all partitions."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition("plain", partition, 0) for partition in range(PARTITIONS)])
        count, until = 0, time.monotonic() + 60
        while count % PARTITIONS or not count:
            assert time.monotonic() < until
            count += sum(message.error() is None for message in consumer.consume(500, 0.5))
        return count
    finally:
        consumer.close()


def test_tables_and_partitions_beyond_the_files_are_served(tmp_path: Path) -> None:
    data, log = tmp_path / "data", tmp_path / "log"
    with served(data, log) as (address, process):
        with connect(address) as connection:
            connection.execute("CREATE DATABASE few")
            for number in range(TABLES):
                connection.execute(
                    f"CREATE TABLE few.t{number} (k INT NOT NULL, v STRING, PRIMARY KEY (k) NOT ENFORCED) "
                    "WITH ('bucket.num'='2')"
                )
                connection.table(f"few.t{number}").upsert([{"k": key, "v": "a"} for key in range(4)])
            admin = AdminClient({"bootstrap.servers": address})
            admin.create_topics([NewTopic("plain", PARTITIONS, 1)])["plain"].result(60)
            produce(address)
            assert consumed(address) == PARTITIONS
            check(connection, "a")
            assert open_files(process) < FILES * 0.9
            for number in range(TABLES):
                connection.table(f"few.t{number}").upsert([{"k": key, "v": "b"} for key in range(4)])
            check(connection, "b")
            host, _, port = address.rpartition(":")
            # More than it may have: those beyond are closed at once.
            crowd = [socket.create_connection((host, int(port)), 10) for _ in range(FILES)]
            check(connection, "b", scan=False)
            for each in crowd:
                each.close()
        with connect(address) as connection:
            check(connection, "b")
    with served(data, log) as (address, process):
        with connect(address) as connection:
            assert open_files(process) < FILES / 2  # nothing is opened that is not used
            check(connection, "b")
        produce(address)
        assert consumed(address) == 2 * PARTITIONS
    wrong = [line for line in log.read_text().splitlines() if re.search(r"offline|Traceback|ERROR", line)]
    assert any("cannot accept connections" in line for line in wrong)  # of the crowd
    assert not [line for line in wrong if "headrace.net" not in line]
