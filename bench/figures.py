"""The figures of the comparison with Kafka: one function for each kind, run against one server at a time.

A function takes the peer and the size of the run, and yields (figure, value, goal). `GROUPS` names them in their order:
cold ones first, since Kafka is two to a hundred times slower before its compiler has seen the code, and then a warm-up
that is not counted.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from bench import neighbours, raw, tls, workloads
from bench.peers import Peer
from bench.processes import Server
from bench.report import Goal

KB = 1_000
LARGE_BATCH = 930  # records of 1 KB: the largest batch that the default max.message.bytes lets through
SMALL_BATCH = 15
PARTITIONS = 1_000
IDLE_CONNECTIONS = 2_000


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a run. With `scale` 1 it has 400,000 records of 1 KB."""

    scale: float
    quick: bool
    round: int

    @property
    def seconds(self) -> float:
        return 2.0 if self.quick else 5.0

    def records(self, size: int) -> int:
        """Records of `size` bytes for one run, in whole lots of the load."""
        count = 400_000 if size >= KB else 1_500_000
        return max(20_000, int(count * self.scale)) // workloads.BATCH * workloads.BATCH


Figures = Iterator[tuple[str, float, Goal | None]]
Group = Callable[[Peer, Size], Figures]


def percentile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


def _many(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"


# -- cold ----------------------------------------------------------------------------------------------------


def start(peer: Peer, size: Size) -> Figures:
    """Start on an empty folder, and measure the idle memory and the first latencies."""
    server = peer.start_fresh()
    yield "start to first answer, s", server.ready_s, Goal(ratio_max=0.4)
    time.sleep(2)
    yield "idle memory, MB", server.resident_mb(), Goal(ratio_max=0.4)
    workloads.create_topic(server, "cold", 1)
    values = workloads.latency(server, "cold", seconds=4 if size.quick else 12, rate=1_000, size=KB)
    yield (
        "latency at 1,000 msg/s after the start, p95, ms",
        percentile(values, 0.95),
        Goal(ratio_max=0.1),
    )


def warm_up(peer: Peer, size: Size) -> Figures:
    """Warm up; not counted."""
    if size.round == 0:
        server = peer.server
        workloads.create_topic(server, "warm-up", 8)
        workloads.produce(server, "warm-up", 8, size.records(KB), KB, "all")
        workloads.consume(server, "warm-up", 8, size.records(KB), KB)
        for under_way in (1, 5):
            raw.produce(server, "warm-up", 8, 20, under_way, 2 * size.seconds, records=1, size=100)
    yield from ()


# -- throughput by confluent-kafka ---------------------------------------------------------------------------


def throughput(peer: Peer, size: Size) -> Figures:
    """Produce and consume records of 1 KB and 100 B, one and eight partitions, plain and lz4, acks 1 and all."""
    for value_bytes, label in ((KB, "1 KB"), (100, "100 B")):
        for partitions in (1, 8):
            for codec in ("none", "lz4"):
                if size.quick and codec == "lz4" and partitions == 8:
                    continue
                for acks in ("all",) if size.quick else ("1", "all"):
                    topic = f"t-{value_bytes}-{partitions}-{codec}-{acks}-{size.round}"
                    workloads.create_topic(peer.server, topic, partitions)
                    records = size.records(value_bytes)
                    what = f"{label}, {codec}, {_many(partitions)}"
                    done = workloads.produce(
                        peer.server, topic, partitions, records, value_bytes, acks, codec
                    )
                    yield f"produce {what}, acks={acks}, records/s", done.records_per_s, Goal(ratio_min=1.0)
                    yield (
                        f"produce {what}, acks={acks}, server CPU s/GB",
                        done.cpu_s_per_gb,
                        Goal(ratio_max=0.8),
                    )
                done = workloads.consume(peer.server, topic, partitions, records, value_bytes)
                yield f"consume {what}, records/s", done.records_per_s, Goal(ratio_min=1.0)
                yield f"consume {what}, server CPU s/GB", done.cpu_s_per_gb, Goal(ratio_max=1.3)


# -- the server's own limit, by prepared requests ------------------------------------------------------------


def raw_bytes(peer: Peer, size: Size) -> Figures:
    """Write prepared batches, and read the same."""
    server = peer.server
    for records, connections, under_way in ((LARGE_BATCH, 1, 4), (SMALL_BATCH, 4, 5)):
        topic = f"raw-{records}-{size.round}"
        workloads.create_topic(server, topic, 1)
        where = f"{records} KB batches, {connections} x {under_way} under way"
        load = raw.produce(server, topic, 1, connections, under_way, size.seconds, records=records, size=KB)
        gigabytes = load.requests * records * KB / 1e9
        yield f"raw produce, {where}, MB/s", gigabytes * 1e3 / load.seconds, Goal(ratio_min=1.0)
        yield f"raw produce, {where}, server CPU s/GB", load.server_cpu_s / gigabytes, Goal(ratio_max=0.8)
        got = raw.fetch(server, topic, records, load.requests, batches=max(1, LARGE_BATCH // records))
        gigabytes = got.received_bytes / 1e9
        yield f"raw fetch, {records} KB batches, MB/s", gigabytes * 1e3 / got.seconds, Goal(ratio_min=1.0)
        yield (
            f"raw fetch, {records} KB batches, server CPU s/GB",
            got.server_cpu_s / gigabytes,
            Goal(ratio_max=1.3),
        )


def over_tls(peer: Peer, size: Size) -> Figures:
    """Send the large batches over TLS, after as many that are not counted."""
    if not peer.server.tls_port:
        peer.start_fresh(with_tls=True)
    server = peer.server
    topic = f"tls-{size.round}"
    workloads.create_topic(server, topic, 1)
    if not size.round:
        tls.produce(server, topic, 2 * size.seconds, LARGE_BATCH)
    load = tls.produce(server, topic, size.seconds, LARGE_BATCH)
    gigabytes = load.requests * LARGE_BATCH * KB / 1e9
    yield f"TLS produce, {LARGE_BATCH} KB batches, MB/s", gigabytes * 1e3 / load.seconds, Goal(ratio_min=1.0)
    yield (
        f"TLS produce, {LARGE_BATCH} KB batches, server CPU s/GB",
        load.server_cpu_s / gigabytes,
        Goal(ratio_max=1.0),
    )
    if not size.round:
        tls.fetch(server, topic, LARGE_BATCH, load.requests)
    got = tls.fetch(server, topic, LARGE_BATCH, load.requests)
    gigabytes = got.received_bytes / 1e9
    yield f"TLS fetch, {LARGE_BATCH} KB batches, MB/s", gigabytes * 1e3 / got.seconds, Goal(ratio_min=1.0)
    yield (
        f"TLS fetch, {LARGE_BATCH} KB batches, server CPU s/GB",
        got.server_cpu_s / gigabytes,
        Goal(ratio_max=1.0),
    )


def small_requests(peer: Peer, size: Size) -> Figures:
    """Send requests of one record of 100 bytes from 20 connections."""
    topic = f"small-{size.round}"
    workloads.create_topic(peer.server, topic, 1)
    for under_way in (1, 5):
        load = raw.produce(peer.server, topic, 1, 20, under_way, size.seconds, records=1, size=100)
        what = f"1-record requests, 20 connections x {under_way} under way"
        yield f"{what}, requests/s", load.per_second, Goal(ratio_min=0.6)
        yield f"{what}, server CPU us", load.cpu_us, None


def latency(peer: Peer, size: Size) -> Figures:
    """Measure a 1 KB record each millisecond, from produce() to the consumer."""
    topic = f"latency-{size.round}"
    workloads.create_topic(peer.server, topic, 1)
    values = workloads.latency(peer.server, topic, seconds=size.seconds, rate=1_000, size=KB)
    yield "latency at 1,000 msg/s of 1 KB, p50, ms", percentile(values, 0.50), Goal(ratio_max=1.5)
    yield "latency at 1,000 msg/s of 1 KB, p95, ms", percentile(values, 0.95), None
    yield "latency at 1,000 msg/s of 1 KB, p99, ms", percentile(values, 0.99), Goal(ratio_max=1.0)


# -- many partitions -----------------------------------------------------------------------------------------


def _cost(server: Server, request: bytes, seconds: float) -> float:
    """Return the server CPU microseconds of one request that four connections repeat."""
    return raw.drive(server, [raw.again(request)] * 4, 5, seconds).cpu_us


def _costs(server: Server, topic: str, seconds: float) -> dict[str, float]:
    """Measure the three most frequent requests of clients, for one partition of a topic."""
    end = raw.end_offsets(server, topic, [0])
    return {
        "ListOffsets": _cost(server, raw.list_offsets_frame(topic, [0]), seconds),
        "Metadata": _cost(server, raw.metadata_frame([topic]), seconds),
        "Fetch at the tail": _cost(server, raw.fetch_frame(topic, [0], end, KB * KB), seconds),
    }


def many_partitions(peer: Peer, size: Size) -> Figures:
    """Measure the cost of 1,000 partitions and of a long log: creation, requests, memory, restart.

    The log has 1 GB, with a scale above 1 that many. It has a broker of its own, because the first half needs a nearly
    empty one.
    """
    server = peer.start_fresh()
    gigabytes = max(1, int(size.scale))
    workloads.create_topic(server, "one", 1)
    raw.fill(server, "one", 10_000_000)
    seconds = size.seconds / 2
    _costs(server, "one", seconds)  # not counted: the first requests of a kind are slow on both
    small = _costs(server, "one", seconds)
    yield "ListOffsets of one partition, server CPU us", small["ListOffsets"], Goal(value_max=60)
    before = server.resident_mb()

    started = time.perf_counter()
    workloads.create_topic(server, "many", PARTITIONS)
    yield f"create {PARTITIONS} partitions: answer, s", time.perf_counter() - started, None
    raw.write_to_all(server, "many", PARTITIONS)
    yield (
        f"create {PARTITIONS} partitions: all have accepted a record, s",
        time.perf_counter() - started,
        Goal(value_max=2.0),
    )
    with raw.connect(server) as sock:
        request, times = raw.metadata_frame(["many"]), []
        for _ in range(100 if size.quick else 500):
            asked = time.perf_counter()
            raw.ask(sock, request)
            times.append((time.perf_counter() - asked) * 1e3)
    yield f"Metadata of {PARTITIONS} partitions, p50, ms", percentile(sorted(times), 0.5), Goal(value_max=0.5)
    yield f"memory of {PARTITIONS} partitions, MB", server.resident_mb() - before, Goal(value_max=100)

    raw.fill(server, "one", gigabytes * 10**9)
    large = _costs(server, "one", seconds)
    for what, cost in large.items():
        yield (
            f"{what}, {PARTITIONS} partitions and {gigabytes} GB / 1 partition and 10 MB, CPU",
            cost / small[what],
            Goal(value_max=1.5),
        )
    for signal, kill in (("SIGTERM", False), ("kill -9", True)):
        _, server = peer.restart(kill=kill)
        what = f"restart with {PARTITIONS} partitions and {gigabytes} GB after {signal}"
        yield f"{what}: first answer, s", server.ready_s, Goal(ratio_max=0.4)
        asked = time.perf_counter()
        if raw.end_offsets(server, "many", range(PARTITIONS), wait_s=60) < PARTITIONS:
            raise RuntimeError(f"{peer.name} lost records at a restart")
        ready = server.ready_s + time.perf_counter() - asked
        yield f"{what}: all partitions answer, s", ready, Goal(ratio_max=0.4)


def idle_connections(peer: Peer, size: Size) -> Figures:
    """Measure the memory of connections that have sent a request and are idle now."""
    server = peer.server
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * IDLE_CONNECTIONS:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * IDLE_CONNECTIONS), hard))
    request = raw.metadata_frame([])
    with raw.connect(server) as sock:
        raw.ask(sock, request)
    before = server.resident_mb()
    open_ = []
    try:
        for _ in range(IDLE_CONNECTIONS):
            sock = raw.connect(server)
            open_.append(sock)
            raw.ask(sock, request)
        grown = (server.resident_mb() - before) * 1e6 / IDLE_CONNECTIONS / 1e3
    finally:
        for sock in open_:
            sock.close()
    yield "memory of an idle connection, KB", grown, Goal(value_max=20)


def large_requests(peer: Peer, size: Size) -> Figures:
    """Measure the latency of other requests beside very large ones."""
    for figure, value in neighbours.measure(peer.server, quick=size.quick):
        yield figure, value, None


GROUPS: dict[str, Group] = {
    "start": start,
    "warm-up": warm_up,
    "latency": latency,
    "requests": small_requests,
    "raw": raw_bytes,
    "throughput": throughput,
    "partitions": many_partitions,
    "connections": idle_connections,
    "neighbours": large_requests,
    "tls": over_tls,
}


def chosen(names: list[str]) -> dict[str, Group]:
    """Return those groups and their requirements: the start, and the warm-up for all that is measured warm."""
    wanted = set(names) or set(GROUPS)
    if wanted & {"latency", "requests", "raw", "throughput"}:
        wanted.add("warm-up")
    return {name: group for name, group in GROUPS.items() if name in wanted}
