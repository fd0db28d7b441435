"""One broker process beside two of one machine (`headrace serve --processes 2`): produce, upsert and lookup.

Requests are prepared and sent to the leaders over plain sockets, so that the load takes little of the cores that it
shares with the servers. On a machine with other work, two processes get more of the cores than one by that alone. So
beside the rates there are the processor time of a record or row, and the cores that the servers had.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa

from bench import raw, workloads
from bench.against import rest
from bench.figures import Figures
from bench.peers import HEADRACE
from bench.processes import Server, answers_metadata, start
from bench.report import Goal, Samples
from headrace.tablelayer.client import connect
from headrace.tablelayer.client.write.split import buckets_of, split_by_bucket
from headrace.tablelayer.client.write.writer import encode_write
from headrace.tablelayer.model.batches.ipc import encode_ipc
from headrace.tablelayer.model.messages.read import LookupBucket, LookupRequest
from headrace.tablelayer.model.messages.write import PutRowsRequest, WriteBucket
from simulator.ports import free_ports

ONE, PROCESSES = "one process", 2
PARTITIONS = 8
ROWS = 200_000
"""Keys of the table; every upsert replaces existing rows."""
UPSERTED, LOOKED_UP = 1_000, 100
"""Rows and keys of a request."""
UPSERT = 3
BYTES_UNDER_WAY, UNDER_WAY_MAX = 1_000_000, 64
"""Requests under way of a connection, one for each partition: enough that no server waits for the load."""
RATIO_MIN = 1.7
_TABLE = "default.bench"
_COLUMNS = (
    "k BIGINT",
    *(f"c{number} {kind}" for number, kind in enumerate(["BIGINT", "DOUBLE", "STRING"] * 3)),
)


class Machine:
    """A server of one or several broker processes. `leaders` of a topic are one `Server` for each partition."""

    def __init__(self, folder: Path, processes: int) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        port = free_ports(processes)
        command = [sys.executable, "-m", "headrace.tablelayer.cli.main", "serve"]
        command += ["--data", str(folder / "data"), "--listen", f"127.0.0.1:{port}"]
        command += [] if processes == 1 else ["--processes", str(processes)]
        self._started = start("headrace", command, port, folder / "headrace.out", answers=_answers(processes))
        self.address = self._started.address
        with connect(self.address) as connection:
            found = connection.admin.servers()
        # Only the process's number is used: they are started by their supervisor.
        pids = {each.broker_id: cast(Any, SimpleNamespace(pid=each.process_id)) for each in found}
        self._brokers = {
            each.broker_id: Server("headrace", pids[each.broker_id], each.port, 0.0) for each in found
        }

    def cpu_seconds(self) -> float:
        return sum(each.cpu_seconds() for each in self._brokers.values())

    def leaders(self, topic: str) -> list[Server]:
        with connect(self.address) as connection:
            found = connection.kafka.describe_topic(topic).leaders
        return [self._brokers[found[partition]] for partition in range(PARTITIONS)]

    def stop(self) -> None:
        self._started.stop()


def _answers(brokers: int) -> Callable[[int], bool]:
    return lambda port: answers_metadata(port, brokers=brokers)


def _load(
    machine: Machine, topic: str, requests: list[Iterable[bytes]], each: int, size: int, seconds: float
) -> tuple[float, float, float]:
    """Return records or rows a second, microseconds of processor time for one, and the cores that the servers had.
    `size`: bytes of a request, `each`: records or rows in it.
    """
    under_way = min(UNDER_WAY_MAX, BYTES_UNDER_WAY // size)
    done = raw.drive(machine.leaders(topic), requests, under_way, seconds)
    count = done.requests * each
    return count / done.seconds, done.server_cpu_s / count * 1e6, done.server_cpu_s / done.seconds


def _written(machine: Machine, topic: str) -> int:
    return sum(
        raw.end_offsets(leader, topic, [partition]) for partition, leader in enumerate(machine.leaders(topic))
    )


def _figures(name: str, unit: str, load: tuple[float, float, float]) -> Figures:
    rate, cpu_us, cores = load
    yield f"{name}, {unit}/s", rate, Goal(ratio_min=RATIO_MIN)
    yield f"{name}, servers' CPU us", cpu_us, None
    yield f"{name}, cores of the servers", cores, None


def prepare(machine: Machine) -> None:
    """Create the topic and the table with its rows."""
    workloads.create_topic(machine, "plain", PARTITIONS)
    with connect(machine.address) as connection:
        connection.execute(
            f"CREATE TABLE {_TABLE} ({', '.join(_COLUMNS)}, PRIMARY KEY (k) NOT ENFORCED)"
            f" WITH ('bucket.num'='{PARTITIONS}')"
        )
        connection.table(_TABLE).upsert(_rows(np.arange(ROWS)))
    rest(machine.cpu_seconds)


def _rows(keys: np.ndarray) -> pa.Table:
    text = pa.array(np.char.add("value-", (keys % 1000).astype(str)))
    values = {"BIGINT": pa.array(keys), "DOUBLE": pa.array(keys / 7), "STRING": text}
    return pa.table({name: values[kind] for name, kind in (column.split() for column in _COLUMNS)})


def measure_one(machine: Machine, seconds: float) -> Figures:
    """Yield the figures of one server."""
    for records, what in ((1, "one record a request"), (100, "100 records a request")):
        data = raw.batch(records, 100)
        before = _written(machine, "plain")
        requests: list[Iterable[bytes]] = [
            raw.again(raw.produce_frame("plain", [number], data, acks=-1)) for number in range(PARTITIONS)
        ]
        load = _load(machine, "plain", requests, records, len(data), seconds)
        if _written(machine, "plain") == before:
            raise RuntimeError("nothing was produced")
        yield from _figures(f"produce, {what}", "records", load)
    with connect(machine.address) as connection:
        definition = connection.table(_TABLE).definition
    rows = _rows(np.arange(ROWS)).combine_chunks().to_batches()[0]
    parts = split_by_bucket(buckets_of(definition, rows), rows)
    before = _written(machine, _TABLE)
    load = _load(
        machine, _TABLE, [_upserts(definition, *part) for part in parts], UPSERTED, 100 * UPSERTED, seconds
    )
    written = _written(machine, _TABLE) - before
    if written < 1.9 * load[0] * seconds:  # two rows of the changelog for each
        raise RuntimeError(f"{written} rows of the changelog were written")
    yield from _figures("upsert of existing keys", "rows", load)
    load = _load(
        machine, _TABLE, [_lookups(definition, *part) for part in parts], LOOKED_UP, 100 * LOOKED_UP, seconds
    )
    yield from _figures(f"lookup of {LOOKED_UP} keys", "keys", load)


def _upserts(definition: Any, bucket: int, rows: pa.RecordBatch) -> Iterator[bytes]:
    frames = []
    for first in range(0, rows.num_rows - UPSERTED, UPSERTED):
        batch = bytes(encode_write(definition, rows.slice(first, UPSERTED), UPSERT))
        buckets = [WriteBucket(bucket=bucket, batch=batch)]
        frames.append(
            raw.frame(PutRowsRequest(table_id=definition.table_id, timeout_ms=30_000, buckets=buckets), 0)
        )
    return _endless(frames)


def _lookups(definition: Any, bucket: int, rows: pa.RecordBatch) -> Iterator[bytes]:
    keys = rows.select(["k"])
    frames = []
    for first in range(0, rows.num_rows - LOOKED_UP, LOOKED_UP):
        buckets = [LookupBucket(bucket=bucket, keys=encode_ipc(keys.slice(first, LOOKED_UP)))]
        request = LookupRequest(
            table_id=definition.table_id, buckets=buckets, schema_id=definition.schema.schema_id
        )
        frames.append(raw.frame(request, 3))
    return _endless(frames)


def _endless(frames: list[bytes]) -> Iterator[bytes]:
    while True:
        yield from frames


def measure(work: Path, samples: Samples, rounds: int, *, quick: bool) -> None:
    """Measure both servers by turns, each figure of one directly after the other's."""
    machines = {
        ONE: Machine((work / "one-process").absolute(), 1),
        HEADRACE: Machine((work / "several-processes").absolute(), PROCESSES),
    }
    try:
        for machine in machines.values():
            prepare(machine)
        for round_ in range(rounds):
            turn = list(machines.items())[:: 1 if round_ % 2 == 0 else -1]
            runs = [measure_one(machine, 2.0 if quick else 5.0) for _, machine in turn]
            for figures in zip(*runs, strict=True):
                for (name, _), (figure, value, goal) in zip(turn, figures, strict=True):
                    samples.add(figure, name, value, goal)
    finally:
        for machine in machines.values():
            machine.stop()
