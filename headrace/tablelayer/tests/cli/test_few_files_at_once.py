"""A server that may open few files does everything that users do, at the same time, and is killed meanwhile.

Stores and logs need several times as many files as it may have. Every worker repeats one kind of work, and checks what
it reads against the acknowledged writes. Work fails only if the server was killed while it ran.
"""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.tablelayer.client import ClientConfig, Connection, connect
from headrace.tablelayer.lake.coordinator import ServerCoordinator
from headrace.tablelayer.tests.cli.test_few_files import open_files, served
from headrace.tablelayer.tests.console.test_stopping import Console
from headrace.tablelayer.tests.lake.tier_by_pyiceberg import Tierer
from simulator.ports import free_port

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

FILES = 600
TABLES = 120
"""Number of tables, of two buckets each: their stores would need 1,680 files."""
PARTITIONS = 300
KEYS = 8
PHASES, PHASE_SECONDS = 3, 60.0
"""Each phase ends with a kill."""
DEADLINE_SECONDS = 120
CONFIG = ClientConfig(delivery_timeout_ms=1000 * DEADLINE_SECONDS)


class Load:
    """All workers, each in a thread. `failures` are the errors of work during which the server lived."""

    def __init__(self, address: str, console: Console) -> None:
        self.failures: list[str] = []
        self.done: dict[str, int] = {}
        self.tables: list[str] = []
        self._address, self._console = address, console
        self._begun: dict[tuple[str, int], int] = {}
        self._acknowledged: dict[tuple[str, int], int] = {}
        self._produced = [0] * PARTITIONS
        self._lakes: dict[str, Tierer | None] = {}
        self._lives = 0
        """Number of starts and kills: odd while the server should answer."""
        self._over = threading.Event()
        self.work: dict[str, Callable[[Connection, random.Random], None]] = {
            "create": self._create,
            "upsert even keys": partial(self._upsert, 0),
            "upsert odd keys": partial(self._upsert, 1),
            "look up": self._look_up,
            "scan": self._scan,
            "tier": self._tier,
            "ask the console": self._ask_console,
            "produce": self._produce,
            "consume": self._consume,
        }
        self._threads = [threading.Thread(target=self._run, args=(name,)) for name in self.work]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(2 * DEADLINE_SECONDS)
        assert not any(thread.is_alive() for thread in self._threads)

    def server_lives(self, lives: bool) -> None:
        """Note that the server was started, or is about to be killed."""
        self._lives += (self._lives % 2 == 1) != lives

    def _run(self, name: str) -> None:
        rng, work = random.Random(name), self.work[name]
        while not self._over.is_set():
            life = self._lives
            try:
                with connect(self._address, CONFIG) as connection:
                    while not self._over.is_set():
                        life = self._lives
                        work(connection, rng)
                        self.done[name] = self.done.get(name, 0) + 1
            except Exception as error:  # noqa: BLE001 - told in the test's own thread
                if life % 2 == 1 and life == self._lives:
                    self.failures.append(f"{name}: {type(error).__name__}: {error}")
                time.sleep(0.1)

    # -- one piece of each kind of work --------------------------------------------------------------------

    def _create(self, connection: Connection, rng: random.Random) -> None:
        if len(self.tables) == TABLES:
            time.sleep(0.5)
            return
        name = f"few.t{len(self.tables)}"
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {name} (id BIGINT, v BIGINT, PRIMARY KEY (id) NOT ENFORCED) WITH "
            "('bucket.num'='2', 'table.datalake.enabled'='true', 'table.datalake.format'='iceberg')"
        )
        self.tables.append(name)

    def _upsert(self, parity: int, connection: Connection, rng: random.Random) -> None:
        if not self.tables:
            time.sleep(0.1)
            return
        place = rng.choice(self.tables), 2 * rng.randrange(KEYS) + parity
        value = self._begun[place] = self._begun.get(place, 0) + 1
        connection.table(place[0]).upsert([{"id": place[1], "v": value}])
        self._acknowledged[place] = value

    def _written(self, rng: random.Random) -> tuple[str, int]:
        """Return a table and a key that has a row; wait for the first one."""
        while not self._acknowledged and not self._over.is_set():
            time.sleep(0.1)
        return rng.choice(list(self._acknowledged))

    def _look_up(self, connection: Connection, rng: random.Random) -> None:
        place = name, key = self._written(rng)
        least = self._acknowledged[place]
        row = connection.table(name).lookup_one({"id": key})
        assert row is not None, f"{name}: key {key} is gone"
        assert least <= row["v"] <= self._begun[place], f"{name}: key {key}"

    def _scan(self, connection: Connection, rng: random.Random) -> None:
        self.check(connection, self._written(rng)[0])

    def check(self, connection: Connection, name: str) -> None:
        """Scan a table, and compare it with the writes that were acknowledged before."""
        known = {place: least for place, least in list(self._acknowledged.items()) if place[0] == name}
        found = {row["id"]: row["v"] for row in connection.table(name).to_arrow().to_pylist()}
        for place, least in known.items():
            assert least <= found.get(place[1], 0) <= self._begun[place], f"{name}: key {place[1]}"

    def _tier(self, connection: Connection, rng: random.Random) -> None:
        """Do a round of a table. One whose round was cut short by a kill is left alone: it has a lease."""
        name = self._written(rng)[0]
        lake = self._lakes.get(name, None if name in self._lakes else Tierer(connection, name))
        self._lakes[name] = None
        if lake is not None:
            lake.client = connection
            lake.coordinator = ServerCoordinator(connection, "a test")
            lake.round()
            self._lakes[name] = lake

    def _ask_console(self, connection: Connection, rng: random.Random) -> None:
        name = self._written(rng)[0]
        for path in (
            "overview",
            "tables",
            f"tables/{name}",
            f"tables/{name}/rows",
            "topics/plain",
            "brokers",
        ):
            answer = httpx.get(f"{self._console.url}/api/{path}", timeout=DEADLINE_SECONDS)
            assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:300]}"

    def _produce(self, connection: Connection, rng: random.Random) -> None:
        """Connect again, and write a record to some partitions."""
        delivered: list[int] = []
        failed: list[Any] = []
        producer = Producer(
            {"bootstrap.servers": self._address, "acks": "all", "linger.ms": 5, "log_level": 0}
        )

        def told(error: Any, message: Any) -> None:
            if error is None:
                delivered.append(message.partition())
            else:
                failed.append(error)

        for partition in rng.sample(range(PARTITIONS), 100):
            producer.produce("plain", b"x", partition=partition, on_delivery=told)
        left = producer.flush(DEADLINE_SECONDS)
        for partition in delivered:
            self._produced[partition] += 1
        assert not failed, failed[0]
        assert not left

    def _consume(self, connection: Connection, rng: random.Random) -> None:
        """Connect again, and read some partitions from their beginning."""
        missing = {partition: self._produced[partition] for partition in rng.sample(range(PARTITIONS), 20)}
        consumer = Consumer(
            {"bootstrap.servers": self._address, "group.id": "g", "enable.auto.commit": False, "log_level": 0}
        )
        try:
            consumer.assign([TopicPartition("plain", partition, 0) for partition in missing])
            until = time.monotonic() + DEADLINE_SECONDS
            while any(count > 0 for count in missing.values()):
                assert time.monotonic() < until, f"not consumed: {missing}"
                for message in consumer.consume(500, 0.5):
                    if message.error() is None:
                        missing[message.partition()] -= 1
        finally:
            consumer.close()


def test_all_that_users_do_at_once_with_few_files_and_kills(tmp_path: Path) -> None:
    data, log, lake = tmp_path / "data", tmp_path / "log", tmp_path / "lake"
    lake.mkdir()
    address = f"127.0.0.1:{free_port()}"
    more = ["--set", f"datalake.iceberg.warehouse={lake}", "--listen", address]
    with ExitStack() as stack:
        with served(data, log, *more, files=FILES), connect(address) as connection:
            connection.execute("CREATE DATABASE few")
            admin = AdminClient({"bootstrap.servers": address})
            admin.create_topics([NewTopic("plain", PARTITIONS, 1)])["plain"].result(60)
            console = Console(address)
            stack.callback(console.process.communicate)
            stack.callback(console.process.kill)
        load: Load | None = None
        for phase in range(PHASES):
            with served(data, log, *more, files=FILES) as (_, process):
                load = load or stack.enter_context(Load(address, console))
                load.server_lives(True)
                most, until = 0, time.monotonic() + PHASE_SECONDS
                while time.monotonic() < until:
                    most = max(most, open_files(process))
                    time.sleep(0.2)
                print(f"phase {phase}: at most {most} files, {len(load.tables)} tables, {load.done}")
                assert most < FILES
                load.server_lives(False)
                os.kill(process, signal.SIGKILL)
        assert load is not None
        with served(data, log, *more, files=FILES), connect(address, CONFIG) as connection:
            load.server_lives(True)
            load.__exit__()
            for name in load.tables:
                load.check(connection, name)
    assert not load.failures
    assert set(load.done) == set(load.work)
    wrong = [line for line in log.read_text().splitlines() if re.search(r"offline|Traceback|ERROR", line)]
    assert not wrong
