"""The cost of many tables on one server: memory, open files, creation, first reads, a restart.

Each primary-key table has two buckets and ten rows. A hundred buckets stay busy, and the others are idle. The plain
topics have a thousand partitions each, and every partition has one record.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench import raw, workloads
from bench.figures import percentile
from bench.peers import start_headrace
from bench.processes import Server
from headrace.tablelayer.client import Connection, connect

TABLES = 5_000
BUSY = 50
ROWS = 10
PLAIN_TOPICS = 20
PARTITIONS = 1_000
_LOOKUPS = 200
_BUSY_SECONDS = 200.0
"""Long enough for the server to close what is idle."""
_IDLE_SECONDS = 20.0
_REST_SECONDS = 150.0
"""Long enough to close what the load used, and to flush the logs (each minute)."""
_RESTART_SECONDS_MAX = 600.0

Figures = dict[str, list[float]]


def _table(number: int) -> str:
    return f"many.t{number}"


def _rows(number: int) -> pa.Table:
    ids = np.arange(ROWS, dtype=np.int64)
    return pa.table({"id": ids, "v": [f"value {number}-{each}" for each in ids.tolist()]})


def open_files(server: Server) -> int:
    """Return the number of files and sockets that the process has open."""
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def _look_up(connection: Connection, number: int) -> float:
    """Return the milliseconds of a lookup of one row. The handle is made before."""
    handle = connection.table(_table(number))
    began = time.perf_counter()
    found, _ = handle.lookup(pa.table({"id": np.array([3], dtype=np.int64)}))
    if not all(found):
        raise RuntimeError(f"a row of {_table(number)} that was acknowledged was not found")
    return (time.perf_counter() - began) * 1e3


def _idle_cpu(server: Server) -> float:
    """Return the share of one core that the idle server uses, in percent."""
    before, began = server.cpu_seconds(), time.perf_counter()
    time.sleep(_IDLE_SECONDS)
    return 100 * (server.cpu_seconds() - before) / (time.perf_counter() - began)


def _rest(figures: Figures, server: Server) -> None:
    """Measure the server when it has closed and flushed everything."""
    time.sleep(_REST_SECONDS)
    figures["idle CPU, %"].append(_idle_cpu(server))
    _size(figures, server, "when idle")


def _size(figures: Figures, server: Server, when: str) -> None:
    figures[f"memory {when}, MB"].append(server.resident_mb())
    figures[f"open files {when}"].append(open_files(server))


def _first_lookup(server: Server, number: int) -> float:
    """Return the seconds until a lookup of a restarted server is answered, with the seconds until it listens."""
    began = time.perf_counter()
    while True:
        try:
            with connect(server.address) as connection:
                _look_up(connection, number)
                return server.ready_s + time.perf_counter() - began
        except Exception:
            if time.perf_counter() - began > _RESTART_SECONDS_MAX:
                raise


def measure_keyed(folder: Path, tables: int, figures: Figures) -> None:
    """Measure primary-key tables."""
    server = start_headrace(folder)
    try:
        with connect(server.address) as connection:
            connection.execute("CREATE DATABASE many")
            created, written = [], []
            for number in range(tables):
                began = time.perf_counter()
                connection.execute(
                    f"CREATE TABLE {_table(number)} (id BIGINT NOT NULL, v STRING, PRIMARY KEY (id) NOT ENFORCED) "
                    "WITH ('bucket.num'='2')"
                )
                created.append((time.perf_counter() - began) * 1e3)
            figures["CREATE TABLE, p50, ms"].append(percentile(sorted(created), 0.5))
            _size(figures, server, "of empty tables")
            for number in range(tables):
                handle, rows = connection.table(_table(number)), _rows(number)
                began = time.perf_counter()
                handle.upsert(rows)
                written.append((time.perf_counter() - began) * 1e3)
            figures["first write of a table, p50, ms"].append(percentile(sorted(written), 0.5))
            _size(figures, server, "with rows")
            began = time.perf_counter()
            turns = 0
            while time.perf_counter() - began < _BUSY_SECONDS:
                connection.table(_table(turns % BUSY)).upsert(_rows(turns))
                turns += 1
            _size(figures, server, f"with {2 * BUSY} busy buckets")
            lookups = sorted(
                _look_up(connection, number) for number in range(BUSY, min(tables, BUSY + _LOOKUPS))
            )
            figures["first lookup of an idle bucket, p50, ms"].append(percentile(lookups, 0.5))
            figures["first lookup of an idle bucket, p99, ms"].append(percentile(lookups, 0.99))
        figures["idle CPU soon after the load, %"].append(_idle_cpu(server))
        _rest(figures, server)
        for kill, what in ((False, "a stop"), (True, "kill -9")):
            stopped = server.stop(kill=kill)
            if not kill:
                figures["stop, s"].append(stopped)
            server = start_headrace(folder)
            figures[f"restart to the first lookup after {what}, s"].append(_first_lookup(server, tables // 2))
            _size(figures, server, f"after {what}")
    finally:
        server.stop()


def measure_plain(folder: Path, topics: int, figures: Figures) -> None:
    """Measure plain partitions."""
    server = start_headrace(folder)
    try:
        for number in range(topics):
            workloads.create_topic(server, f"plain{number}", PARTITIONS)
            raw.write_to_all(server, f"plain{number}", PARTITIONS)
        _size(figures, server, "with one record a partition")
        _rest(figures, server)
        for kill, what in ((False, "a stop"), (True, "kill -9")):
            server.stop(kill=kill)
            server = start_headrace(folder)
            began = time.perf_counter()
            raw.end_offsets(server, "plain0", [0], wait_s=_RESTART_SECONDS_MAX)
            seconds = server.ready_s + time.perf_counter() - began
            figures[f"restart to the first answer after {what}, s"].append(seconds)
            _size(figures, server, f"after {what}")
    finally:
        server.stop()


def measure(folder: Path, scale: float) -> dict[str, Figures]:
    """Return the figures of both kinds, by kind. The folder is empty."""
    keyed: Figures = defaultdict(list)
    plain: Figures = defaultdict(list)
    tables, topics = max(2 * BUSY, int(TABLES * scale)), max(1, int(PLAIN_TOPICS * scale))
    measure_keyed(folder / "keyed", tables, keyed)
    measure_plain(folder / "plain", topics, plain)
    return {f"{tables} tables of 2 buckets": keyed, f"{topics * PARTITIONS} plain partitions": plain}
