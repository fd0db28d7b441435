"""`headrace serve --processes 2` with real processes: kills of one and of the supervisor, and a clean stop."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.tablelayer.client import ClientConfig, ClientError, Connection, connect
from headrace.tablelayer.tests.cli.conftest import Served
from simulator.ports import free_ports

pytestmark = pytest.mark.slow

ROWS = 200
SOON_SECONDS = 30.0
"""Time in which a killed process serves again; it takes two seconds on an idle machine."""


def pids(connection: Connection) -> dict[int, int]:
    return {each.broker_id: each.process_id for each in connection.admin.servers()}


def transact(address: str, values: list[str], *, of: str) -> None:
    """Produce to both partitions of `t`, and commit a position of the group `g`, in one transaction."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": of})
    producer.init_transactions(60)
    producer.begin_transaction()
    for number, value in enumerate(values):
        producer.produce("t", value.encode(), partition=number % 2)
    group = Consumer({"bootstrap.servers": address, "group.id": "g"})
    positions = [TopicPartition("t", 0, len(values) // 2)]
    producer.send_offsets_to_transaction(positions, group.consumer_group_metadata(), 60)
    producer.commit_transaction(60)
    group.close()


def consumed(address: str, count: int) -> list[str]:
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "reader", "isolation.level": "read_committed"}
    )
    try:
        consumer.assign([TopicPartition("t", partition, 0) for partition in (0, 1)])
        found: list[str] = []
        until = time.monotonic() + 60
        while len(found) < count:
            assert time.monotonic() < until, found
            found += [each.value().decode() for each in consumer.consume(100, 0.2) if each.error() is None]
        return sorted(found)
    finally:
        consumer.close()


def position(address: str) -> int:
    group = Consumer({"bootstrap.servers": address, "group.id": "g"})
    try:
        (found,) = group.committed([TopicPartition("t", 0)], 60)
        return int(found.offset)
    finally:
        group.close()


def looked_up(address: str) -> dict[int, int]:
    with connect(address) as connection:
        _, rows = connection.table("db.pk").lookup([{"k": key} for key in range(ROWS)])
        return dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))


def is_gone(process: int) -> bool:
    """Return whether the process has ended; it may not have been waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_processes_share_the_work_and_come_back_after_kills(
    serve: Callable[..., Served], eventually: Callable[..., Any], tmp_path: Path
) -> None:
    port, data = free_ports(2), tmp_path / "data"
    first, second = f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"
    words = ("--processes", "2", "--listen", first, "--data", str(data))
    served = serve(*words)
    assert re.fullmatch(
        rf"headrace is ready on {first} \(data \S+, 2 processes, broker ids 0 to 1\) in \d+\.\d s\n",
        served.ready,
    ), served.stop()

    with connect(second) as connection:
        assert set(connection.kafka.create_topic("t", partitions=2).leaders.values()) == {0, 1}
        connection.execute("CREATE DATABASE db")
        connection.execute(
            "CREATE TABLE db.pk (k INT, v BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket.num'='4')"
        )
        connection.table("db.pk").upsert([{"k": key, "v": 1} for key in range(ROWS)])
        assert connection.sql("SELECT count(*) AS n FROM db.pk").rows() == [{"n": ROWS}]
        before = pids(connection)
    assert len({*before.values(), served.process.pid}) == 3
    transact(first, [f"a{number}" for number in range(10)], of="one")

    os.kill(before[1], signal.SIGKILL)
    began = time.monotonic()
    with connect(first) as connection:
        connection.table("db.pk").upsert([{"k": key, "v": 2} for key in range(ROWS)])
        assert looked_up(second) == dict.fromkeys(range(ROWS), 2)
        assert time.monotonic() - began < SOON_SECONDS
        after = pids(connection)
    assert after[0] == before[0]
    assert after[1] != before[1]
    transact(second, [f"b{number}" for number in range(10)], of="one")
    wanted = sorted(f"{name}{number}" for name in "ab" for number in range(10))
    assert consumed(second, 20) == wanted

    served.process.kill()
    eventually(lambda: all(map(is_gone, after.values())))
    served.stop()
    served = serve(*words)
    assert looked_up(first) == dict.fromkeys(range(ROWS), 2)
    assert consumed(first, 20) == wanted
    assert position(second) == 5
    assert served.stop()[:2] == (0, "")
    for broker_id in (0, 1):
        folder = data / f"broker-{broker_id}"
        assert (folder / ".kafka_cleanshutdown").exists()
        log = (folder / "headrace.log").read_text()
        assert f"INFO broker {broker_id} headrace.server: " in log
        assert log.endswith("stopped\n")
    assert (
        "broker 1 ended: killed by SIGKILL; it is started again in 0 s" in (data / "headrace.log").read_text()
    )


def test_a_process_that_cannot_start_ends_all_with_its_sentence(
    serve: Callable[..., Served], tmp_path: Path
) -> None:
    port = free_ports(2)
    with socket.create_server(("127.0.0.1", port + 1)):
        served = serve("--processes", "2", "--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "data"))
        code, out, err = served.stop()
    assert (code, served.ready, out) == (1, "", "")
    assert f"broker 1: cannot listen on 127.0.0.1:{port + 1}" in err
    assert err.rstrip().endswith("broker 1 did not start: exit code 1")


class Load:
    """A producer of numbers to four partitions, and writes of single rows, until `stop`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stop = threading.Event()
        self.sent = [0] * 4
        self.failed: list[str] = []
        self.written: dict[int, int] = {}
        """The last value of each key that was acknowledged, or may be there."""
        self.unknown: set[int] = set()
        self._threads = [threading.Thread(target=work) for work in (self._produce, self._write)]
        for thread in self._threads:
            thread.start()

    def _produce(self) -> None:
        settings = {
            "bootstrap.servers": self._address,
            "enable.idempotence": True,
            "message.timeout.ms": 200_000,
        }
        producer = Producer(settings)
        while not self._stop.is_set():
            for partition in range(4):
                value = str(self.sent[partition]).encode()
                producer.produce("t", value, partition=partition, on_delivery=self._delivered)
                self.sent[partition] += 1
            producer.poll(0.002)
        if left := producer.flush(200):
            self.failed.append(f"{left} were not answered")

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self.failed.append(str(error))

    def _write(self) -> None:
        config = ClientConfig(delivery_timeout_ms=120_000)
        with connect(self._address, config) as connection:
            table, number = connection.table("db.pk"), 0
            while not self._stop.is_set():
                number += 1
                key = number % 50
                try:
                    table.upsert([{"k": key, "v": number}])
                    self.unknown.discard(key)
                except ClientError:
                    self.unknown.add(key)
                self.written[key] = number

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_no_acknowledged_record_is_lost_when_processes_are_killed_or_stopped(
    serve: Callable[..., Served], tmp_path: Path, seed: int
) -> None:
    chance, port = random.Random(seed), free_ports(3)
    address = ",".join(f"127.0.0.1:{port + number}" for number in range(3))
    words = ("--processes", "3", "--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "data"))
    served = serve(*words)
    with connect(address) as connection:
        connection.kafka.create_topic("t", partitions=4)
        connection.execute("CREATE DATABASE db")
        connection.execute(
            "CREATE TABLE db.pk (k INT, v BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket.num'='4')"
        )
    load = Load(address)
    for _ in range(8):
        time.sleep(chance.uniform(1, 4))
        with connect(address) as connection:
            broker = chance.choice(list(pids(connection).values()))
        fault = chance.choice(["kill", "kill", "hang", "supervisor hangs", "supervisor killed"])
        if fault == "kill":
            os.kill(broker, signal.SIGKILL)
        elif fault == "supervisor killed":
            served.stop(signal.SIGKILL)
            served = serve(*words)
        else:
            stopped = broker if fault == "hang" else served.process.pid
            os.kill(stopped, signal.SIGSTOP)
            time.sleep(chance.choice([1, 12]))
            os.kill(stopped, signal.SIGCONT)
    load.stop()
    assert not load.failed
    consumer = Consumer({"bootstrap.servers": address, "group.id": "all"})
    consumer.assign([TopicPartition("t", partition, 0) for partition in range(4)])
    found: list[list[int]] = [[] for _ in range(4)]
    until = time.monotonic() + 120
    while [len(each) for each in found] != load.sent:
        assert time.monotonic() < until, [len(each) for each in found]
        for each in consumer.consume(1000, 0.5):
            assert each.error() is None
            found[each.partition()].append(int(each.value()))
    consumer.close()
    assert found == [list(range(count)) for count in load.sent], "each record once, in order"
    with connect(address) as connection:
        rows = {row["k"]: row["v"] for row in connection.sql("SELECT k, v FROM db.pk").rows()}
    assert {key: rows[key] for key in rows if key not in load.unknown} == {
        key: value for key, value in load.written.items() if key not in load.unknown
    }
    code, _, err = served.stop()
    assert code == 0, err
    assert "Traceback" not in err, err
