"""Two tierers at once behind kill -9, at random moments of their rounds, while everything is written to.

At every look the lake is the log up to the offsets inside its snapshot, and all of it in the end. Read by pyiceberg.

HEADRACE_SOAK_SECONDS (600) and HEADRACE_SOAK_SEED (1) say how long and which.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic
from pyiceberg.table import StaticTable

from tablelayer.client import connect

SECONDS = float(os.environ.get("HEADRACE_SOAK_SECONDS", "600"))
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "1"))
ROOT = Path(__file__).parents[2]
OPTIONS = (
    "'bucket.num'='2', 'bucket.key'='k', 'table.datalake.enabled'='true', 'table.datalake.freshness'='1 s'"
)
REGIONS = ("eu", "us", "asia")

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(0)]


class Tierer:
    """`headrace tier`, to be killed with its JVM."""

    def __init__(self, address: str, folder: Path, *more: str) -> None:
        self.output = folder / f"tierer-{time.monotonic_ns()}.log"
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tablelayer.cli.main", "tier", "--server", address, *more],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )

    def is_at_work(self) -> bool:
        return "into snapshot" in self.output.read_text()

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


def lake(folder: Path, name: str) -> tuple[dict, list[dict]]:
    """(offsets in the newest snapshot of main that has them, rows) of an Iceberg table."""
    metadata = folder / "warehouse" / "default" / name / "metadata"
    hint = metadata / "version-hint.text"
    if not hint.exists():
        return {}, []
    table = StaticTable.from_metadata(str(metadata / f"v{hint.read_text().strip()}.metadata.json"))
    head = table.current_snapshot()
    if head is None:
        return {}, []
    return json.loads(head.summary["headrace.offsets"]), table.scan().to_arrow().to_pylist()


def total(offsets: dict) -> int:
    return sum(total(each) if isinstance(each, dict) else each for each in offsets.values())


def check_prefixes(folder: Path) -> None:
    """Log tables and topics have one row for each offset, each once."""
    for name in ("log", "parts", "events"):
        offsets, rows = lake(folder, name)
        keys = [row["k"] for row in rows]
        assert len(keys) == len(set(keys)), f"{name}: rows twice"
        # A batch of the producer and of the client is one record an offset.
        assert len(keys) == total(offsets), f"{name}: {len(keys)} rows at {offsets}"


def test_tierers_are_killed_while_everything_is_written_to(server_process_class, tmp_path) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}, {SECONDS:.0f} s")
    server = server_process_class(tmp_path, **{"datalake.iceberg.warehouse": str(tmp_path / "warehouse")})
    server.start()
    state, number, kills, rounds, tierers = {}, 0, 0, 0, []
    try:
        with connect(server.address) as connection:
            connection.execute(
                f"CREATE TABLE log (k BIGINT, v STRING) WITH ({OPTIONS});"
                f"CREATE TABLE keyed (k BIGINT, v STRING, PRIMARY KEY (k) NOT ENFORCED) WITH ({OPTIONS});"
                f"CREATE TABLE parts (k BIGINT, region STRING) PARTITIONED BY (region) WITH ({OPTIONS})"
            )
        configs = {
            "datalake.enabled": "true",
            "datalake.freshness": "1 s",
            "datalake.value-format": "json",
            "datalake.schema": "k BIGINT, v STRING",
        }
        admin = KafkaAdminClient(bootstrap_servers=server.address)
        admin.create_topics([NewTopic("events", 2, 1, topic_configs=configs)])
        admin.close()
        producer = KafkaProducer(bootstrap_servers=server.address)
        ends = time.monotonic() + SECONDS
        with connect(server.address) as connection:
            log, keyed, parts = (connection.table(name) for name in ("log", "keyed", "parts"))
            while time.monotonic() < ends:
                tierers = tierers or [Tierer(server.address, tmp_path, "--interval", "0.2") for _ in range(2)]
                started, doomed = time.monotonic(), None
                while doomed is None or time.monotonic() < doomed:
                    rows = [{"k": number + n, "v": f"v{rng.random()}"} for n in range(rng.randint(1, 200))]
                    number += len(rows)
                    log.append(rows)
                    parts.append([{"k": row["k"], "region": rng.choice(REGIONS)} for row in rows])
                    for row in rows:
                        producer.send("events", json.dumps(row).encode())
                    producer.flush()
                    changed = [{"k": rng.randrange(2000), "v": row["v"]} for row in rows]
                    keyed.upsert(changed)
                    state |= {row["k"]: row["v"] for row in changed}
                    gone = [key for key in list(state)[:3] if rng.random() < 0.5]
                    if gone:
                        keyed.delete([{"k": key} for key in gone])
                        state = {key: value for key, value in state.items() if key not in gone}
                    time.sleep(0.05)
                    at_work = any(each.is_at_work() for each in tierers)
                    if doomed is None and (at_work or time.monotonic() > started + 120):
                        doomed = time.monotonic() + rng.uniform(0, 8)
                victims = [each for each in tierers if rng.random() < 0.7] or tierers[:1]
                for each in victims:
                    each.kill()
                    kills += 1
                rounds += sum(each.output.read_text().count("into snapshot") for each in victims)
                tierers = [each for each in tierers if each not in victims]
                tierers += [Tierer(server.address, tmp_path, "--interval", "0.2") for _ in victims]
                check_prefixes(tmp_path)
            for each in tierers:
                each.kill()
            tierers = []
            once = subprocess.run(
                [sys.executable, "-m", "tablelayer.cli.main", "tier", "--once", "--server", server.address],
                cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
                timeout=600, check=False,
            )  # fmt: skip
            while once.returncode or "another tierer has this table" in once.stdout:
                time.sleep(10)  # leases of the killed
                once = subprocess.run(
                    once.args, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
                    text=True, timeout=600, check=False,
                )  # fmt: skip
        producer.close()
        check_prefixes(tmp_path)
        for name in ("log", "parts", "events"):
            assert {row["k"] for row in lake(tmp_path, name)[1]} == set(range(number)), name
        assert {row["k"]: row["v"] for row in lake(tmp_path, "keyed")[1]} == state
        print(
            f"{kills} kills, {rounds} commits before them, {number} rows each, {len(state)} keys, 0 differences"
        )
    finally:
        for each in tierers:
            each.kill()
        server.kill()
