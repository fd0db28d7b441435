"""The effect of work with tables on others: the latency of a producer of one record at a time beside each kind of work.

A primary-key table of five columns and four buckets has two million rows. Its client is a process, and so is the
producer, which writes with acks=all to a plain topic and sends the next record when the one before is acknowledged.
With another tree, its server and this one's have a round each in turns, and the other one is stopped meanwhile.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench import raw
from bench.against import OTHER, rest
from bench.peers import HEADRACE, Peer, start_headrace
from bench.processes import Server
from bench.report import Goal, Samples
from headrace.tablelayer.client import Connection as Connected
from headrace.tablelayer.client import connect

ROWS = 2_000_000
BUCKETS = 4
SECONDS = 4.0
TOPIC, TABLE = "beside", "beside.rows"
COLUMNS = "id BIGINT NOT NULL, a BIGINT, b DOUBLE, c STRING, d INT, PRIMARY KEY (id) NOT ENFORCED"
P99_MS_MAX = 8.0
_DEADLINE_SECONDS = 300.0
_WRITTEN_ROWS = 50_000
_SMALL_ROWS = 2_000


def rows_of(ids: np.ndarray, seed: int) -> pa.Table:
    """Return rows for these ids. `a` rises with the id; another seed gives other values of the others."""
    text = pa.array([f"customer-{(seed + i) % 997:06d}" for i in range(997)])
    picked = text.take(pa.array((ids * 7 + seed) % 997))
    return pa.table(
        {"id": ids, "a": ids * 3, "b": (ids + seed) / 3, "c": picked, "d": (ids % 1000).astype(np.int32)}
    )


def _idle(address: str) -> Callable[[], int]:
    def wait() -> int:
        time.sleep(0.5)
        return 0

    return wait


def _table_work(work: Callable[[Connected], int]) -> Callable[[str], Callable[[], int]]:
    def begin(address: str) -> Callable[[], int]:
        connection = connect(address)
        return lambda: work(connection)

    return begin


def _scan(columns: list[str] | None, condition: str | None = None) -> Callable[[Connected], int]:
    """Return the work of a scan; its result is the number of rows that the server looked at."""

    def work(connection: Connected) -> int:
        found = connection.table(TABLE).to_arrow(columns, condition)
        if condition is None and found.num_rows != ROWS:
            raise RuntimeError(f"the scan returned {found.num_rows} of {ROWS} rows")
        return ROWS

    return work


def _group(connection: Connected) -> int:
    connection.sql(f"SELECT d, sum(b) AS total FROM {TABLE} GROUP BY d").rows()
    return ROWS


def _update(connection: Connected) -> int:
    statement = f"UPDATE {TABLE} SET b = b + 1 WHERE d < 1"
    return int(connection.sql(statement).row_count)


def _upsert(connection: Connected) -> int:
    start = int(time.time() * 1000) % (ROWS - _WRITTEN_ROWS)
    ids = np.arange(start, start + _WRITTEN_ROWS, dtype=np.int64)
    connection.table(TABLE).upsert(rows_of(ids, start))
    return _WRITTEN_ROWS


def _lookup(connection: Connected) -> int:
    ids = np.random.default_rng().integers(0, ROWS, _SMALL_ROWS)
    connection.table(TABLE).lookup(pa.table({"id": ids}))
    return _SMALL_ROWS


KINDS: dict[str, Callable[[str], Callable[[], int]]] = {
    "nothing": _idle,
    "scan, all 5 columns": _table_work(_scan(None)),
    "scan, 2 of 5 columns": _table_work(_scan(["id", "b"])),
    "scan for 0.1 % by a text": _table_work(_scan(["id", "b"], "c = 'customer-000005'")),
    "scan for 0.1 %, ids near each other": _table_work(
        _scan(["id", "b"], f"a >= 3000000 AND a < {3000000 + 3 * _SMALL_ROWS}")
    ),
    "SQL GROUP BY": _table_work(_group),
    f"UPDATE WHERE of {_SMALL_ROWS:,} rows": _table_work(_update),
    f"upserts of {_WRITTEN_ROWS:,} existing keys": _table_work(_upsert),
    f"lookups of {_SMALL_ROWS:,} keys": _table_work(_lookup),
}


def _produce(server: Server, until: Event, answers: Connection) -> None:
    """Send the latencies in ms of single records."""
    request = raw.produce_frame(TOPIC, [0], raw.batch(1, 100), acks=-1)
    found = []
    with raw.connect(server) as sock:
        while not until.is_set():
            began = time.perf_counter()
            raw.ask(sock, request)
            found.append((time.perf_counter() - began) * 1000)
    answers.send(found)


def _work(kind: str, address: str, until: Event, answers: Connection) -> None:
    """Do the work once, tell so, then again until the event; send (rows, seconds, times)."""
    work = KINDS[kind](address)
    work()
    answers.send(None)
    rows, times, began = 0, 0, time.perf_counter()
    while not until.is_set():
        rows, times = rows + work(), times + 1
    answers.send((rows, time.perf_counter() - began, times))


def _received(pipe: Connection, name: str) -> Any:
    if not pipe.poll(_DEADLINE_SECONDS):
        raise RuntimeError(f"{name} did not answer within {_DEADLINE_SECONDS:.0f} s")
    return pipe.recv()


def fill(server: Server) -> None:
    """Create the topic and the table, and write the rows in scattered order."""
    with connect(server.address) as connection:
        connection.execute("CREATE DATABASE IF NOT EXISTS beside")
        connection.execute(f"CREATE TABLE {TABLE} ({COLUMNS}) WITH ('bucket.num'='{BUCKETS}')")
        order = np.random.default_rng(7).permutation(ROWS).astype(np.int64)
        for start in range(0, ROWS, 100_000):
            connection.table(TABLE).upsert(rows_of(order[start : start + 100_000], 1))
    with raw.connect(server) as sock:
        raw.ask(sock, raw.metadata_frame([TOPIC]))  # creates it
    raw.write_to_all(server, TOPIC, 1)


def measure(work: Path, tree: Path | None, samples: Samples, rounds: int) -> None:
    """Measure all kinds of work on this tree, and on another one if there is one."""
    peers = [Peer(HEADRACE, start_headrace, work)]
    if tree is not None:
        peers.insert(0, Peer(OTHER, partial(start_headrace, name=OTHER, tree=tree.absolute()), work))
    for round_ in range(rounds):
        for peer in peers if round_ % 2 == 0 else peers[::-1]:
            server = peer.start_fresh()
            try:
                fill(server)
                rest(server.cpu_seconds)
                _measure(server, samples, peer.name)
            finally:
                peer.stop()


def _measure(server: Server, samples: Samples, name: str) -> None:
    """Add the producer's p50 and p99 beside each kind of work, the work's rate, and the server's CPU time for a row."""
    for kind in KINDS:
        stop_work, stop_producer = multiprocessing.Event(), multiprocessing.Event()
        worked, works = multiprocessing.Pipe()
        produced, produces = multiprocessing.Pipe()
        worker = multiprocessing.Process(target=_work, args=(kind, server.address, stop_work, works))
        producer = multiprocessing.Process(target=_produce, args=(server, stop_producer, produces))
        worker.start()
        try:
            _received(worked, kind)
            producer.start()
            before = server.cpu_seconds()
            time.sleep(SECONDS)
            stop_producer.set()
            latencies = sorted(_received(produced, kind))
            stop_work.set()
            rows, seconds, _ = _received(worked, kind)
            spent = server.cpu_seconds() - before
        finally:
            for process in (worker, producer):
                if process.is_alive():
                    process.terminate()
                if process.pid is not None:
                    process.join()
        samples.add(f"{kind}: producer's p50, ms", name, latencies[len(latencies) // 2], None)
        goal = Goal(value_max=P99_MS_MAX)
        samples.add(f"{kind}: producer's p99, ms", name, latencies[int(len(latencies) * 0.99)], goal)
        if rows:
            samples.add(f"{kind}, rows/s", name, rows / seconds, None)
            samples.add(f"{kind}, server's us a row, with the producer", name, spent * 1e6 / rows, None)
