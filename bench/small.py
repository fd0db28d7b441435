"""Small writes: requests of one to three records, as change data capture, devices and applications send them.

One connection sends a prepared request (acks=all) when the one before is answered. Every answer is decoded afterwards,
so that an error cannot pass for work. The plain topic is the control: its records are not read by the broker. Tables
have five columns and one bucket. With another tree, its server and this one's take turns figure by figure; clusters of
three brokers run one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from bench import raw
from bench.against import OTHER, rest
from bench.cluster_peers import NODES, HeadraceCluster
from bench.peers import HEADRACE, Peer, start_headrace
from bench.processes import Server
from bench.report import Goal, Samples
from headrace.protocol.errors import ErrorCode
from headrace.protocol.headers import decode_response_header
from headrace.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from headrace.protocol.messages.produce import ProduceResponse
from headrace.protocol.records.encode import Record, build_batch
from headrace.tablelayer.client import connect

REQUESTS: Final = 1500
WARM_UP: Final = 200
STATEMENTS: Final = 300
EXISTING_KEYS: Final = 100
SIZED_ROWS: Final = 2000
BATCHES: Final = (1, 10, 100)
STATEMENT_MS_MAX: Final = 1.5
DATABASE: Final = "small"
COLUMNS: Final = "id BIGINT NOT NULL, name STRING, price DOUBLE, quantity INT, changed TIMESTAMP(3)"
KEY: Final = ", PRIMARY KEY (id) NOT ENFORCED"
Figures = Iterator[tuple[str, float, Goal | None]]
_LOG_DIRS_VERSION: Final = 1
_DEADLINE_SECONDS: Final = 600.0
_numbers = count(1)


class Kind(NamedTuple):
    """A kind of requests: the definition of its table without the end (None: a plain topic), its records, and the
    maximum of the brokers' CPU ms for a request, of one broker and of three.
    """

    table: str | None
    records: Callable[[int], list[Record]]
    cpu_ms_max: float | None = None
    cluster_cpu_ms_max: float | None = None
    batches: Sequence[int] = (1,)


def _row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "name": f"customer-{number % 997:06d}",
        "price": number / 8,
        "quantity": number % 100,
        "changed": "2024-09-19T12:00:00.000",
    }


def _values(number: int) -> dict[str, Any]:
    return {**_row(number), "changed": datetime(2024, 9, 19, 12)}


def _record(key: Any, value: Any) -> Record:
    texts = [msgspec.json.encode(each) for each in (key, value)]
    return Record(texts[0], texts[1], (), int(time.time() * 1000))


def _fresh(number: int) -> Record:
    return _record({"id": number}, _row(number))


def _existing(number: int) -> Record:
    return _record({"id": number % EXISTING_KEYS}, {**_row(number), "id": number % EXISTING_KEYS})


def _fields(*, optional: bool) -> list[dict[str, Any]]:
    types = {"id": "int64", "name": "string", "price": "double", "quantity": "int32"}
    fields: list[dict[str, Any]] = [
        {"type": kind, "optional": name != "id", "field": name} for name, kind in types.items()
    ]
    time_type = "io.debezium.time.Timestamp"
    return [
        *fields,
        {"type": "int64", "optional": optional, "name": time_type, "version": 1, "field": "changed"},
    ]


_SOURCE: Final = {
    "version": "2.7.0.Final", "connector": "postgresql", "name": "shop", "ts_ms": 1726747200000, "snapshot": "false",
    "db": "shop", "sequence": '["24023119","24023128"]', "schema": "public", "table": "orders", "txId": 771,
    "lsn": 24023128, "xmin": None,
}  # fmt: skip


def _debezium(number: int) -> Record:
    """Return a change as Debezium's PostgreSQL connector writes it with Connect's JSON converter and its schemas."""
    image = {
        "type": "struct",
        "fields": _fields(optional=True),
        "optional": True,
        "name": "shop.public.orders.Value",
    }
    source = [
        {"type": "int64" if isinstance(value, int) else "string", "optional": True, "field": name}
        for name, value in _SOURCE.items()
    ]
    envelope = [
        {**image, "field": "before"},
        {**image, "field": "after"},
        {"type": "struct", "fields": source, "optional": False, "field": "source",
         "name": "io.debezium.connector.postgresql.Source"},
        {"type": "string", "optional": False, "field": "op"},
        {"type": "int64", "optional": True, "field": "ts_ms"},
    ]  # fmt: skip
    name = "shop.public.orders.Envelope"
    schema = {"type": "struct", "fields": envelope, "optional": False, "name": name, "version": 1}
    payload = {
        "before": None,
        "after": {**_row(number), "changed": 1726747200000},
        "source": _SOURCE,
        "op": "c",
        "ts_ms": 1726747200123,
    }
    key_field = {"type": "int64", "optional": False, "field": "id"}
    key_schema = {
        "type": "struct",
        "fields": [key_field],
        "optional": False,
        "name": "shop.public.orders.Key",
    }
    key = {"schema": key_schema, "payload": {"id": number}}
    return _record(key, {"schema": schema, "payload": payload})


def _each(make: Callable[[int], Record]) -> Callable[[int], list[Record]]:
    return lambda records: [make(next(_numbers)) for _ in range(records)]


_DEBEZIUM: Final = f"({COLUMNS}{KEY}) WITH ('bucket.num'='1', 'table.kafka.value-format'='debezium-json'"
KINDS: Final[dict[str, Kind]] = {
    "plain topic": Kind(None, _each(_fresh)),
    "log table, JSON": Kind(f"({COLUMNS}) WITH ('bucket.num'='1'", _each(_fresh), 0.25),
    "PK table, JSON, new keys": Kind(f"({COLUMNS}{KEY}) WITH ('bucket.num'='1'", _each(_fresh), 0.5, 1.2),
    "PK table, JSON, existing keys": Kind(
        f"({COLUMNS}{KEY}) WITH ('bucket.num'='1'", _each(_existing), 0.5, 1.2
    ),
    "PK table, Debezium with schemas, 1 to 3 records": Kind(_DEBEZIUM, _each(_debezium), batches=(1, 2, 3)),
}
IN_CLUSTER: Final = (
    "plain topic",
    "PK table, JSON, new keys",
    "PK table, Debezium with schemas, 1 to 3 records",
)


def _errors(answers: Sequence[bytes]) -> set[str]:
    version = ProduceResponse.header_version(raw.PRODUCE_VERSION)
    found = set()
    for answer in answers:
        _, position = decode_response_header(answer, version)
        response = ProduceResponse.decode(answer, raw.PRODUCE_VERSION, None, position)
        for topic in response.responses:
            for told in topic.partition_responses:
                if told.error_code:
                    found.add(f"{ErrorCode(told.error_code).name}: {told.error_message}")
    return found


class Run(NamedTuple):
    records: int
    latencies: list[float]
    """Sorted, in ms."""
    cpu_seconds: float


def _send(server: Server, topic: str, kind: Kind, requests: int, spent: Callable[[], float]) -> Run:
    """Send requests one after the other. Raise RuntimeError if one of them was refused."""
    sizes = [kind.batches[number % len(kind.batches)] for number in range(requests)]
    frames = [raw.produce_frame(topic, [0], build_batch(kind.records(size)), acks=-1) for size in sizes]
    answers, latencies = [], []
    with raw.connect(server) as sock:
        sock.settimeout(_DEADLINE_SECONDS)  # the first use of a tree compiles its kernels
        before = spent()
        for frame in frames:
            began = time.perf_counter()
            answers.append(raw.ask(sock, frame))
            latencies.append((time.perf_counter() - began) * 1000)
        after = spent()
    refused = _errors(answers)
    if refused:
        raise RuntimeError(f"{server.name}: writes to {topic} were refused: {refused}")
    return Run(sum(sizes), sorted(latencies), after - before)


def _create(address: str, table: str, kind: Kind, replicas: int) -> None:
    with connect(address) as connection:
        connection.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        connection.execute(f"CREATE TABLE {table} {kind.table}, 'table.replication.factor'='{replicas}')")


def _figures(name: str, run: Run, cpu_ms_max: float | None) -> Figures:
    requests, latencies = len(run.latencies), run.latencies
    goal = None if cpu_ms_max is None else Goal(value_max=cpu_ms_max)
    yield f"{name}: brokers' CPU ms a request", run.cpu_seconds * 1000 / requests, goal
    yield f"{name}: p50, ms", latencies[requests // 2], None
    yield f"{name}: p99, ms", latencies[int(requests * 0.99)], None
    yield f"{name}: records/s", run.records * 1000 / sum(latencies), None


def of_one_broker(peer: Peer, round_: int) -> Figures:
    """Yield the figures of each kind of request, and of statements of one row."""
    server = peer.server
    topics = {}
    for number, (name, kind) in enumerate(KINDS.items()):
        topic = topics[name] = f"{DATABASE}.kind{number}_{round_}"
        if kind.table is None:
            topic = topics[name] = f"plain{round_}"
            with raw.connect(server) as sock:
                raw.ask(sock, raw.metadata_frame([topic]))  # creates it
            raw.write_to_all(server, topic, 1)
        else:
            _create(server.address, topic, kind, 1)
        _send(server, topic, kind, WARM_UP, server.cpu_seconds)
    rest(server.cpu_seconds)  # the first table begins to compile kernels, or to load them
    for name, kind in KINDS.items():
        run = _send(server, topics[name], kind, REQUESTS, server.cpu_seconds)
        yield from _figures(name, run, kind.cpu_ms_max)
    yield from _statements(server, round_)
    yield from _sizes(server, round_)


def _statements(server: Server, round_: int) -> Figures:
    """Yield the p50 of writes of one row by the table client and by SQL."""
    table = f"{DATABASE}.statements{round_}"
    _create(server.address, table, KINDS["PK table, JSON, new keys"], 1)
    with connect(server.address) as connection:
        handle = connection.table(table)
        works: dict[str, Callable[[int], object]] = {
            "upsert of one row by the table client": lambda n: handle.upsert([_values(n)]),
            "delete of one row by the table client": lambda n: handle.delete([{"id": n}]),
            "INSERT of one row": lambda n: connection.sql(
                f"INSERT INTO {table} (id, price) VALUES ({n}, 1.5)"
            ),
            "UPDATE of one row by key": lambda n: connection.sql(
                f"UPDATE {table} SET price = 2.5 WHERE id = {n}"
            ),
            "DELETE of one row by key": lambda n: connection.sql(f"DELETE FROM {table} WHERE id = {n}"),
        }
        for name, work in works.items():
            taken = []
            before = server.cpu_seconds()
            for number in range(STATEMENTS):
                began = time.perf_counter()
                work(number)
                taken.append((time.perf_counter() - began) * 1000)
            yield f"{name}: p50, ms", sorted(taken)[STATEMENTS // 2], Goal(value_max=STATEMENT_MS_MAX)
            yield f"{name}: broker's CPU ms", (server.cpu_seconds() - before) * 1000 / STATEMENTS, None


def _sizes(server: Server, round_: int) -> Figures:
    """Yield the bytes of the log for a row, by the number of rows in a batch."""
    for rows in BATCHES:
        for name in ("log table, JSON", "PK table, JSON, new keys"):
            kind = KINDS[name]._replace(batches=(rows,))
            topic = f"{DATABASE}.size{rows}_{round_}_{name[:2].lower()}"
            _create(server.address, topic, kind, 1)
            run = _send(server, topic, kind, max(1, SIZED_ROWS // rows), server.cpu_seconds)
            yield (
                f"{name}: {rows} rows a batch, bytes of the log for a row",
                _log_size(server, topic) / run.records,
                None,
            )


def _log_size(server: Server, topic: str) -> int:
    wanted = [DescribableLogDirTopic(topic=topic, partitions=[0])]
    with raw.connect(server) as sock:
        answer = raw.ask(sock, raw.frame(DescribeLogDirsRequest(topics=wanted), _LOG_DIRS_VERSION))
    _, position = decode_response_header(answer, DescribeLogDirsResponse.header_version(_LOG_DIRS_VERSION))
    response = DescribeLogDirsResponse.decode(answer, _LOG_DIRS_VERSION, None, position)
    return sum(
        partition.partition_size
        for result in response.results
        for told in result.topics
        for partition in told.partitions
    )


def of_three_brokers(cluster: HeadraceCluster) -> Figures:
    """Yield the figures of topics and tables of three replicas."""
    cluster.start_fresh()
    topics = {}
    for number, name in enumerate(IN_CLUSTER):
        kind = KINDS[name]
        topic = topics[name] = "plain" if kind.table is None else f"{DATABASE}.kind{number}"
        if kind.table is None:
            cluster.create(topic, 1)
        else:
            _create(cluster.address, topic, kind, NODES)
            cluster.wait_in_sync({topic: 1})
        _send(cluster.nodes[cluster.leader(topic)], topic, kind, WARM_UP, cluster.cpu_seconds)
    rest(*(server.cpu_seconds for server in cluster.servers))
    for name, topic in topics.items():
        kind, leader = KINDS[name], cluster.nodes[cluster.leader(topic)]
        run = _send(leader, topic, kind, REQUESTS, cluster.cpu_seconds)
        yield from _figures(f"three brokers, {name}", run, kind.cluster_cpu_ms_max)


def measure(work: Path, tree: Path | None, samples: Samples, rounds: int) -> None:
    """Measure this tree, and another one if there is one."""
    trees = {HEADRACE: None} if tree is None else {OTHER: tree.absolute(), HEADRACE: None}
    for round_ in range(rounds):
        turn = list(trees.items())[:: 1 if round_ % 2 == 0 else -1]
        peers = [Peer(name, partial(start_headrace, name=name, tree=of), work) for name, of in turn]
        try:
            for peer in peers:
                peer.start_fresh()
            for figures in zip(*(of_one_broker(peer, round_) for peer in peers), strict=True):
                for peer, (figure, value, goal) in zip(peers, figures, strict=True):
                    samples.add(figure, peer.name, value, goal)
        finally:
            for peer in peers:
                peer.stop()
        for name, of in turn:
            cluster = HeadraceCluster(work, name, of)
            try:
                for figure, value, goal in of_three_brokers(cluster):
                    samples.add(figure, name, value, goal)
            finally:
                cluster.stop()
