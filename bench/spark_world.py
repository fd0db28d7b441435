"""Common parts of the sections `spark` and `lake`: a server, a Spark session of two cores, tables, sizes, memory, CPU.

Rows have the five columns for which Spark's own limits are known: bigint (the key of a PK table), int, double, string,
timestamp; about 45 bytes in Arrow. Everything runs on this machine, so figures hold for client, server and Spark
together on its cores. CPU seconds are user and system time of this process and all its descendants: the server, Spark's
JVM and its Python workers.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from bench.cpu_times import CpuTimes, below, processes
from bench.peers import HEADRACE, start_headrace
from bench.processes import Server
from bench.report import Goal, Samples
from headrace.tablelayer.client import Connection, connect
from headrace.tablelayer.client.admin.kafka import ConfigKind

CORES = 2
HEAP = "2g"
BUCKETS = 4
WRITE_ROWS = 50_000
COLUMNS = ("id", "kind", "price", "text", "at")
LOG_COLUMNS = "id BIGINT, kind INT, price DOUBLE, text STRING, at TIMESTAMP(6)"
PK_COLUMNS = (
    "id BIGINT NOT NULL, kind INT, price DOUBLE, text STRING, at TIMESTAMP(6), PRIMARY KEY (id) NOT ENFORCED"
)
_TEXTS = pa.array([f"string-{number:09d}" for number in range(97)])


class Figure(NamedTuple):
    """One sample of one peer."""

    name: str
    value: float
    goal: Goal | None = None
    server: str = HEADRACE


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a run: `rows` takes the number of the long form and that of the quick one."""

    scale: float
    quick: bool
    round: int

    def rows(self, long: int, quick: int) -> int:
        return max(1_000, int((quick if self.quick else long) * self.scale))


def rows_of(ids: np.ndarray, seed: int = 0) -> pa.RecordBatch:
    """Return rows for these ids (int64); another seed gives other values."""
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ids),
            pa.array(((ids + seed) % 1_000).astype(np.int32)),
            pa.array((ids + seed) / 7),
            _TEXTS.take(pa.array((ids + seed) % len(_TEXTS))),
            pa.array(ids * 1_000 + seed).cast(pa.timestamp("us")),
        ],
        names=list(COLUMNS),
    )


@dataclass(slots=True)
class World:
    """A server and a Spark session, created by `world()`. `log_table` and `pk_table` create tables once; they stay."""

    server: Server
    connection: Connection
    spark: Any
    folder: Path
    tables: dict[str, int] = field(default_factory=dict)
    """Rows written so far, by table."""
    _times: CpuTimes = field(default_factory=lambda: CpuTimes(os.getpid()))

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def warehouse(self) -> str:
        return str(self.folder / "warehouse")

    def log_table(self, name: str, rows: int, options: str = "") -> str:
        """Return the table `bench.<name>`, filled up to that many rows."""
        table = self._created(name, LOG_COLUMNS, options)
        handle, at = self.connection.table(table), self.tables[table]
        for start in range(at, rows, 20 * WRITE_ROWS):
            ends = range(start, min(rows, start + 20 * WRITE_ROWS), WRITE_ROWS)
            handle.append(
                pa.Table.from_batches(
                    [rows_of(np.arange(low, min(rows, low + WRITE_ROWS), dtype=np.int64)) for low in ends]
                )
            )
        self.tables[table] = max(at, rows)
        return table

    def pk_table(self, name: str, rows: int, options: str = "") -> str:
        """Return the table `bench.<name>` with the keys 0 to `rows`."""
        table = self._created(name, PK_COLUMNS, options)
        self.upsert(table, np.arange(self.tables[table], rows, dtype=np.int64), 0)
        self.tables[table] = max(self.tables[table], rows)
        return table

    def upsert(self, table: str, keys: np.ndarray, seed: int) -> None:
        handle = self.connection.table(table)
        for start in range(0, len(keys), WRITE_ROWS):
            handle.upsert(pa.Table.from_batches([rows_of(keys[start : start + WRITE_ROWS], seed)]))

    def _created(self, name: str, columns: str, options: str) -> str:
        table = f"bench.{name}"
        if table not in self.tables:
            # The warehouse is the tierer's: the server is told the lake's format while a tiered table is made.
            lake = next((each for each in ("paimon", "iceberg") if each in options), "iceberg")
            offered = {"datalake.format": lake} if "datalake" in options else {}
            self.connection.kafka.alter_configs(
                ConfigKind.BROKER, "", offered, () if offered else ["datalake.format"]
            )
            self.connection.execute(
                f"CREATE TABLE {table} ({columns}) WITH ('bucket.num'='{BUCKETS}'{options})"
            )
            self.tables[table] = 0
        return table

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of server, driver, JVM and workers so far, including ended ones."""
        return self._times.seconds(processes())

    def timed(self, work: Callable[[], object]) -> tuple[float, float]:
        """Return (seconds, CPU seconds) of a call."""
        before, started = self.cpu_seconds(), time.perf_counter()
        work()
        return time.perf_counter() - started, self.cpu_seconds() - before


Group = Callable[[World, Size], Iterator[Figure]]


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """Run a fresh server and a Spark session; the server ends with it, the session with the process."""
    from headrace.tablelayer.spark.sessions import session

    with suppress(FileNotFoundError):
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    server = start_headrace(folder)
    try:
        spark = session("headrace bench", cores=CORES, memory=HEAP, log_file=folder / "spark.out")
        with connect(server.address) as connection:
            connection.execute("CREATE DATABASE bench")
            yield World(server, connection, spark, folder)
    finally:
        server.stop()


def measure(
    place: World,
    groups: dict[str, Group],
    samples: Samples,
    rounds: int,
    scale: float,
    *,
    quick: bool,
    report: Callable[[str], None],
) -> None:
    """Run all rounds of a group before the next one, into `samples`."""
    for name, group in groups.items():
        for round_ in range(rounds):
            for figure in group(place, Size(scale, quick, round_)):
                samples.add(figure.name, figure.server, figure.value, figure.goal)
        report(f"{name}: done")


def consume(frame: Any) -> None:
    """Let Spark compute every row, and drop it."""
    frame.write.format("noop").mode("overwrite").save()


# -- processes -----------------------------------------------------------------------------------------------


def descendants() -> list[int]:
    """Return this process and all below it."""
    return below([os.getpid()], processes())


def _private_mb(pid: int) -> float:
    """Return memory that is the process's own: workers share the pages of their parent."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0


class MemoryPeaks:
    """The peak memory (10^6 bytes) of each kind of process while the `with` block runs, sampled every 50 ms.

    The kinds are "server", "driver" (this process), "JVM" and "workers" (all of Spark's Python processes together).
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.peaks: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            now = {"server": _private_mb(self._server.process.pid), "driver": _private_mb(os.getpid())}
            others = [pid for pid in descendants()[1:] if pid != self._server.process.pid]
            jvm = [pid for pid in others if _is_java(pid)]
            now["JVM"] = sum(map(_private_mb, jvm))
            now["workers"] = sum(_private_mb(pid) for pid in others if pid not in jvm)
            for kind, value in now.items():
                self.peaks[kind] = max(self.peaks.get(kind, 0.0), value)


def _is_java(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == "java"
    return False


def memory_growth(
    place: World,
    what: str,
    small: Callable[[], object],
    large: Callable[[], object],
    times: int = 2,
) -> Iterator[Figure]:
    """Return peaks while `small` runs and while `large` runs, which has ten times as much data."""
    peaks = []
    for work in (small, large):
        with MemoryPeaks(place.server) as memory:
            for _ in range(times):
                work()
        peaks.append(memory.peaks)
    for kind in peaks[0]:
        before, after = peaks[0][kind], peaks[1][kind]
        yield Figure(f"{what}: {kind}, peak with 1 x, MB", before)
        yield Figure(f"{what}: {kind}, peak with 10 x, MB", after)
        goal = Goal(value_max=1.5) if kind in ("server", "driver") else None
        yield Figure(f"{what}: {kind}, 10 x / 1 x", after / max(1.0, before), goal)
