"""Two tierers at once are killed with -9 in the middle of their rounds, while everything is written to.

A kill falls between the first file of a round (the start of its branch) and the last (the branch's end). The test
watches the lake's folder, and kills the round's tierer or both when the round has begun, when its rows are on the
branch, or when main has them already. Each snapshot of the lake equals the log up to the offsets inside it, and the
last one equals the whole log. Iceberg is read by pyiceberg, Paimon by its own library in a JVM of the test.

HEADRACE_SOAK_SECONDS (600) and HEADRACE_SOAK_SEED (1) set duration and seed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from lake_folders import BEGUN, COMMITTED, WRITTEN, IcebergFolder, LakeFolder, PaimonFolder

from headrace.tablelayer.client import connect
from headrace.tablelayer.lake.coordinator import list_lake

SECONDS = float(os.environ.get("HEADRACE_SOAK_SECONDS", "600"))
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "1"))
ROOT = Path(__file__).parents[2]
REGIONS = ("eu", "us", "asia")
APPENDED = ("log", "log2", "parts", "events")
"""Tables and a topic with one row for each number. More than two, so that some are not leased to killed tierers."""
STAGES = (BEGUN, WRITTEN, WRITTEN, COMMITTED)
FOLDERS = {"iceberg": IcebergFolder, "paimon": PaimonFolder}

pytestmark = [
    pytest.mark.soak,
    pytest.mark.spark,
    pytest.mark.timeout(0),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Tierer:
    """`headrace tier`, which is killed with its JVM."""

    def __init__(self, address: str, folder: Path) -> None:
        self.output = folder / f"tierer-{time.monotonic_ns()}.log"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                _tier(address, "--interval", "0.2"), stdout=output, stderr=subprocess.STDOUT, cwd=ROOT,
                env=_environment(), start_new_session=True,
            )  # fmt: skip

    def commits(self) -> int:
        return self.output.read_text().count("into snapshot")

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


def _tier(address: str, *more: str) -> list[str]:
    return [sys.executable, "-m", "headrace.tablelayer.cli.main", "tier", "--server", address, *more]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def create_all(address: str, lake: str) -> None:
    options = (
        "'bucket.num'='2', 'bucket.key'='k', 'table.datalake.enabled'='true', 'table.datalake.freshness'='1 s',"
        f" 'table.datalake.format'='{lake}'"
    )
    with connect(address) as connection:
        connection.execute(
            f"CREATE TABLE log (k BIGINT, v STRING) WITH ({options});"
            f"CREATE TABLE log2 (k BIGINT, v STRING) WITH ({options});"
            f"CREATE TABLE keyed (k BIGINT, v STRING, PRIMARY KEY (k) NOT ENFORCED) WITH ({options});"
            f"CREATE TABLE parts (k BIGINT, region STRING) PARTITIONED BY (region) WITH ({options})"
        )
    configs = {
        "datalake.enabled": "true",
        "datalake.format": lake,
        "datalake.freshness": "1 s",
        "datalake.value-format": "json",
        "datalake.schema": "k BIGINT, v STRING",
    }
    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([NewTopic("events", 2, 1, topic_configs=configs)])
    admin.close()


class Load(threading.Thread):
    """Write to everything until told to stop; then `rows` and `state` have the written rows."""

    def __init__(self, address: str, seed: int) -> None:
        super().__init__(name="load", daemon=True)
        self.rows = 0
        self.state: dict[int, str] = {}
        self.error: BaseException | None = None
        self._address = address
        self._rng = random.Random(seed)
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            producer = KafkaProducer(bootstrap_servers=self._address)
            with connect(self._address) as connection:
                tables = {name: connection.table(name) for name in ("log", "log2", "keyed", "parts")}
                while not self._stopped.wait(0.2):
                    self._write(tables, producer)
            producer.close()
        except BaseException as error:  # noqa: BLE001 - told to whoever stops it
            self.error = error

    def _write(self, tables: dict[str, Any], producer: KafkaProducer) -> None:
        rng = self._rng
        rows = [{"k": self.rows + n, "v": f"v{rng.random()}"} for n in range(rng.randint(1, 200))]
        self.rows += len(rows)
        tables["log"].append(rows)
        tables["log2"].append(rows)
        tables["parts"].append([{"k": row["k"], "region": rng.choice(REGIONS)} for row in rows])
        for row in rows:
            producer.send("events", json.dumps(row).encode())
        producer.flush()
        changed = [{"k": rng.randrange(2000), "v": row["v"]} for row in rows]
        tables["keyed"].upsert(changed)
        self.state |= {row["k"]: row["v"] for row in changed}
        gone = [key for key in list(self.state)[:3] if rng.random() < 0.5]
        if gone:
            tables["keyed"].delete([{"k": key} for key in gone])
            self.state = {key: value for key, value in self.state.items() if key not in gone}

    def stop(self) -> None:
        self._stopped.set()
        self.join(60)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


def total(offsets: dict) -> int:
    return sum(total(each) if isinstance(each, dict) else each for each in offsets.values())


def check_prefixes(folder: LakeFolder) -> None:
    """Check that log tables and topics have one row for each offset, once."""
    for name in APPENDED:
        offsets, rows = folder.read(name)
        keys = [row["k"] for row in rows]
        assert len(keys) == len(set(keys)), f"{name}: rows twice"
        # A batch of the producer and of the client has one record for each offset.
        assert len(keys) == total(offsets), f"{name}: {len(keys)} rows at {offsets}"


class Reaper:
    """Kill tierers inside of rounds. `inside` counts the stages of the killed rounds."""

    def __init__(self, folder: LakeFolder, connection: Any, rng: random.Random) -> None:
        self.inside: Counter[str] = Counter()
        self.kills = 0
        self._folder = folder
        self._connection = connection
        self._rng = rng

    def strike(self, tierers: list[Tierer], until: float) -> list[Tierer]:
        """Wait for one of the next few rounds, and kill its tierer, or all of them, in it; return the killed ones.

        None is killed if `until` passes first.
        """
        waiting, spared = self._folder.rounds(), self._rng.randrange(3)
        while time.monotonic() < until:
            now = self._folder.rounds()
            for found in now.keys() - waiting.keys():
                spared -= 1
                victims = self._owner(found[0], tierers) if self._rng.random() < 0.8 else tierers
                if spared < 0 and victims and self._reaches(found, self._rng.choice(STAGES), until):
                    for each in victims:
                        each.kill()
                    self.kills += len(victims)
                    how_far = self._folder.rounds().get(found)
                    if how_far is not None:
                        self.inside[how_far] += 1
                    return victims
            waiting = now
            time.sleep(0.01)
        return []

    def _owner(self, name: str, tierers: list[Tierer]) -> list[Tierer]:
        """Return the tierer of a round by the server's answer: workers have the names of their processes."""
        workers = {each.name.removeprefix("default."): each.worker for each in list_lake(self._connection)}
        return [each for each in tierers if (workers.get(name) or "").endswith(f"-{each.process.pid}")]

    def _reaches(self, found: tuple[str, int], stage: str, until: float) -> bool:
        """Return whether a round reaches a stage before it is over or `until` passes; after a short wait."""
        while (how_far := self._folder.rounds().get(found)) != stage:
            if how_far is None or time.monotonic() > until:
                return False
            time.sleep(0.005)
        time.sleep(self._rng.uniform(0, 0.2))
        return True


@pytest.mark.parametrize("lake", ["iceberg", "paimon"])
def test_tierers_are_killed_in_the_middle_of_rounds_while_everything_is_written_to(
    server_process_class, tmp_path, lake: str
) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}, {SECONDS:.0f} s, {lake}")
    warehouse = tmp_path / "warehouse"
    server = server_process_class(tmp_path, **{f"datalake.{lake}.warehouse": str(warehouse)})
    server.start()
    folder = FOLDERS[lake](warehouse)
    tierers: list[Tierer] = []
    commits = 0
    try:
        create_all(server.address, lake)
        load = Load(server.address, SEED)
        load.start()
        with connect(server.address) as connection:
            reaper = Reaper(folder, connection, rng)
            ends = time.monotonic() + SECONDS
            while time.monotonic() < ends and load.error is None:
                tierers += [Tierer(server.address, tmp_path) for _ in range(2 - len(tierers))]
                dead = reaper.strike(tierers, min(ends, time.monotonic() + 300))
                commits += sum(each.commits() for each in dead)
                tierers = [each for each in tierers if each not in dead]
                check_prefixes(folder)
        load.stop()
        commits += sum(each.commits() for each in tierers)
        for each in tierers:
            each.kill()
        tierers = []
        while True:
            once = subprocess.run(
                _tier(server.address, "--once"), cwd=ROOT, env=_environment(), capture_output=True, text=True,
                timeout=600, check=False,
            )  # fmt: skip
            if not once.returncode and "another tiering job has this table" not in once.stdout:
                break
            time.sleep(10)  # leases of the killed tierers
        check_prefixes(folder)
        for name in APPENDED:
            assert {row["k"] for row in folder.read(name)[1]} == set(range(load.rows)), name
        assert {row["k"]: row["v"] for row in folder.read("keyed")[1]} == load.state
        cut = ", ".join(f"{count} {how_far}" for how_far, count in sorted(reaper.inside.items()))
        print(
            f"{lake}: {reaper.kills} kills, {reaper.inside.total()} rounds cut off ({cut}), {commits} commits"
            f" meanwhile, {load.rows} rows each, {len(load.state)} keys, 0 differences"
        )
        assert reaper.inside.total(), "no kill fell into a round"
    finally:
        for each in tierers:
            each.kill()
        server.kill()
