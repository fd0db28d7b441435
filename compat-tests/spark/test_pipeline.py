"""Spark streams a table into two others that are tiered into the lake, while all processes are killed at random.

There is one server, or three with ZooKeeper and three replicas of each bucket. Servers, tierer, Spark driver (with its
JVM) and single Python workers are killed with -9 and started again. At the end the input, the tables on the server and
their copies in the lake are compared, row by row.

HEADRACE_SOAK_SECONDS (7200; for the cluster 600), HEADRACE_SOAK_SEED (1) and HEADRACE_SOAK_PAUSE (10,60) set duration,
seed and pauses.
"""

from __future__ import annotations

import csv
import io
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.tablelayer.client import ClientConfig, connect

ROOT = Path(__file__).resolve().parents[2]
SECONDS = float(os.environ.get("HEADRACE_SOAK_SECONDS", "7200"))
CLUSTER_SECONDS = float(os.environ.get("HEADRACE_SOAK_SECONDS", "600"))
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "1"))
PAUSE = tuple(float(each) for each in os.environ.get("HEADRACE_SOAK_PAUSE", "10,60").split(","))
"""The minimum and maximum of seconds between two kills."""
SETTLE_SECONDS = 1800
KEYS = 500

pytestmark = [pytest.mark.soak, pytest.mark.spark, pytest.mark.timeout(0)]

LAKE = "'table.datalake.enabled'='true', 'table.datalake.format'='iceberg', 'table.datalake.freshness'='10 s'"
TABLES = f"""
CREATE TABLE src (n BIGINT, k BIGINT) WITH ('bucket.num'='3');
CREATE TABLE copy (n BIGINT, k BIGINT) WITH ('bucket.num'='2', {LAKE}, 'table.datalake.auto-compaction'='true');
CREATE TABLE sums (k BIGINT, total BIGINT, PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket.num'='2', {LAKE},
    'table.merge-engine'='aggregation', 'fields.total.agg'='sum')
"""


class Kept:
    """A process with its children, which is started again whenever it has ended."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name, self.starts, self.ended_by_itself = name, 0, 0
        self._command, self._log = command, folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def keep(self) -> None:
        if self.process is not None and self.process.poll() is None:
            return
        if self.process is not None:
            self.ended_by_itself += 1
            self.kill()  # the children that it has left
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, cwd=ROOT, env=environment, start_new_session=True
            )
        self.starts += 1

    def kill(self) -> None:
        """Kill the process and everything in its session with SIGKILL."""
        assert self.process is not None
        for pid in self._session():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait(30)
        self.process = None

    def kill_a_worker(self, rng: random.Random) -> bool:
        """Kill one Python worker of Spark with -9; return whether there was one."""
        workers = [pid for pid in self._session() if b"pyspark.daemon" in _command_of(pid)]
        if not workers:
            return False
        try:
            os.kill(rng.choice(workers), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def log(self) -> str:
        return self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""

    def _session(self) -> list[int]:
        assert self.process is not None
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
                except (OSError, IndexError, ValueError):
                    continue
                if session == self.process.pid:
                    found.append(int(entry.name))
        return found


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Input(threading.Thread):
    """Append rows until told to stop; every row is acknowledged or retried."""

    def __init__(self, address: str) -> None:
        super().__init__(name="input", daemon=True)
        self.count, self.failure, self.done = 0, None, threading.Event()
        self._address = address

    def run(self) -> None:
        config = ClientConfig(delivery_timeout_ms=600_000)
        try:
            with connect(self._address, config) as connection:
                table = connection.table("default.src")
                while not self.done.wait(0.2):
                    rows = [{"n": n, "k": n % KEYS} for n in range(self.count, self.count + 200)]
                    table.append(rows)
                    self.count += len(rows)
        except Exception as error:  # noqa: BLE001 - told to the test
            self.failure = error


def sql(address: str, text: str) -> list[list[str]]:
    """Return the answer of `headrace sql`, as strings."""
    command = [
        sys.executable,
        "-m",
        "headrace.tablelayer.cli.main",
        "sql",
        "--server",
        address,
        "-o",
        "csv",
        "-e",
        text,
    ]
    answer = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return list(csv.reader(io.StringIO(answer.stdout)))[1:]


@pytest.mark.parametrize(
    "victims", [("worker",), ("server", "tierer", "driver", "worker")], ids=["tasks", "all"]
)
def test_r3_5_c7_nothing_is_lost_or_doubled_on_the_way_into_the_lake(
    tmp_path, server_process_class, victims
) -> None:
    server = server_process_class(
        tmp_path, **{"datalake.iceberg.warehouse": str(tmp_path / "warehouse")}
    ).start()
    try:
        run(tmp_path, server.address, victims, [server], SECONDS)
    finally:
        server.kill()


def test_r3_5_c7_nothing_is_lost_or_doubled_when_brokers_with_replicas_are_killed(
    tmp_path, server_process_class, free_port
) -> None:
    """One broker at a time is killed, when all replicas are in sync."""
    with cluster(tmp_path, server_process_class, free_port()) as (address, servers):
        run(tmp_path, address, ("broker", "broker", "tierer", "driver", "worker"), servers, CLUSTER_SECONDS)


@contextmanager
def cluster(folder, server_process_class, zookeeper_port):
    """Return the address and the processes of three brokers with three replicas of everything."""
    place = f"127.0.0.1:{zookeeper_port}"
    words = ["zookeeper", "--listen", place, "--data", str(folder / "zookeeper")]
    zookeeper = Kept("zookeeper", [sys.executable, "-m", "headrace.tablelayer.cli.main", *words], folder)
    servers = []
    for number in (1, 2, 3):
        (folder / str(number)).mkdir()
        settings = {
            "node.id": str(number),
            "zookeeper.connect": f"{place}/headrace",
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            "datalake.iceberg.warehouse": str(folder / "warehouse"),
        }
        servers.append(server_process_class(folder / str(number), **settings))
    zookeeper.keep()
    try:
        for server in servers:
            server.start()
        address = ",".join(server.address for server in servers)
        wait_in_sync(address, len(servers))
        yield address, servers
    finally:
        for server in servers:
            server.kill()
        zookeeper.kill()


def wait_in_sync(address: str, count: int) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    with connect(address) as connection:
        while True:
            found = connection.kafka.describe_cluster()
            if len(found.brokers) == count and not found.offline and not found.under_replicated:
                return
            assert time.monotonic() < deadline, found
            time.sleep(0.5)


def run(folder, address, victims, servers, seconds) -> None:
    rng = random.Random(SEED)
    with connect(address) as connection:
        connection.execute(TABLES)
    module = [sys.executable, "-m", "headrace.tablelayer.cli.main"]
    tierer = Kept("tierer", [*module, "tier", "--server", address, "--interval", "2"], folder)
    script = str(Path(__file__).with_name("pipeline.py"))
    driver = Kept("driver", [sys.executable, script, address, str(folder / "checkpoints")], folder)
    source, kills = Input(address), Counter()
    started, seen = time.monotonic(), 0
    try:
        source.start()
        while time.monotonic() - started < seconds or not source.count:
            assert source.failure is None, source.failure
            for each in (tierer, driver):
                each.keep()
            time.sleep(rng.uniform(*PAUSE))
            victim = rng.choice(victims)
            if victim in ("driver", "worker"):
                copied = copied_rows(address)
                if copied == seen:  # a tierer that is always killed while it starts makes no progress
                    continue
                seen = copied
            if victim in ("server", "broker"):
                wait_in_sync(address, len(servers))
                rng.choice(servers).restart()
            elif victim == "worker":
                if driver.process is None or not driver.kill_a_worker(rng):
                    continue
            else:
                each = tierer if victim == "tierer" else driver
                if each.process is not None:
                    each.kill()
            kills[victim] += 1
        source.done.set()
        source.join(700)
        assert source.failure is None, source.failure
        settle(address, source.count, [tierer, driver])
        driver.kill()
        tierer.kill()
        tier_all(address)
        differences = compare(address, source.count)
        print(
            f"victims={'+'.join(victims)} seed={SEED}: {time.monotonic() - started:.0f} s, kills {dict(kills)}, the"
            f" driver was started {driver.starts} times ({driver.ended_by_itself} after it had ended by itself), the"
            f" tierer {tierer.starts}; {source.count:,} rows, {len(differences)} differences"
        )
        assert not differences, differences[:10]
    finally:
        source.done.set()
        for each in (tierer, driver):
            if each.process is not None:
                each.kill()


def copied_rows(address: str) -> int:
    with connect(address) as connection:
        return connection.table("default.copy").count()


def tier_all(address: str) -> None:
    """Tier everything into the lake; a killed tierer keeps its round until its lease ends."""
    command = [sys.executable, "-m", "headrace.tablelayer.cli.main", "tier", "--once", "--server", address]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        if "another tiering job" not in done.stdout:
            return
        assert time.monotonic() < deadline, done.stdout
        time.sleep(10)


def settle(address: str, count: int, kept: list[Kept]) -> None:
    """Wait until Spark has copied everything."""
    deadline = time.monotonic() + SETTLE_SECONDS
    with connect(address) as connection:
        copy, sums = connection.table("default.copy"), connection.table("default.sums")
        total = count * (count - 1) // 2
        while copy.count() < count or sum(sums.to_arrow(["total"]).column(0).to_pylist()) < total:
            assert time.monotonic() < deadline, "\n".join(f"{each.name}:\n{each.log()}" for each in kept)
            for each in kept:
                each.keep()
            time.sleep(2)


def compare(address: str, count: int) -> list[str]:
    """Return the differences between the input, the tables and the lake."""
    expected = Counter(range(count))
    sums = {key: sum(range(key, count, KEYS)) for key in range(min(KEYS, count))}
    with connect(address) as connection:
        log = Counter(connection.table("default.copy").to_arrow(["n"]).column(0).to_pylist())
        state = {row["k"]: row["total"] for row in connection.table("default.sums").to_arrow().to_pylist()}
    lake = Counter(int(n) for (n,) in sql(address, 'SELECT n FROM "copy$lake"'))
    lake_sums = [(int(k), int(total)) for k, total in sql(address, 'SELECT k, total FROM "sums$lake"')]
    found = []
    for name, rows in (("log", log), ("lake", lake)):
        missing, more = expected - rows, rows - expected
        if missing or more:
            found.append(
                f"copy in the {name}: {missing.total()} missing, {more.total()} too many, such as"
                f" {sorted(missing)[:3]}, {sorted(more)[:3]}"
            )
    for name, totals in (("state", state), ("lake", dict(lake_sums))):
        wrong = {key for key in sums.keys() | totals.keys() if sums.get(key) != totals.get(key)}
        if wrong:
            found.append(f"sums in the {name}: {len(wrong)} keys differ, such as {sorted(wrong)[:3]}")
    if len(lake_sums) != len(dict(lake_sums)):
        found.append("sums in the lake: a key is there twice")
    return found
