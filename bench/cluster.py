"""The figures of the comparison of clusters: one function for each kind, run against one cluster at a time.

Each cluster has three brokers; both run at the same time on one machine and take turns group by group. CPU time is that
of all processes of a cluster. `ALONE` are the groups that only Headrace has.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaException
from rich.console import Console

from bench import cluster_buckets, raw, workloads
from bench.cluster_peers import NODES, Cluster, HeadraceCluster, KafkaCluster, wait_until
from bench.cluster_traffic import Traffic
from bench.figures import KB, SMALL_BATCH, Size, percentile
from bench.report import Goal, Samples
from bench.rows import PK_COLUMNS, WRITE_ROWS
from bench.tables import upsert_all
from headrace.protocol.headers import decode_response_header
from headrace.protocol.messages.list_offsets import ListOffsetsResponse
from headrace.tablelayer.client import ClientConfig, connect

SESSION_SECONDS: Final = 6
TOPIC_PARTITIONS: Final = 500
"""Partitions of each topic in the group with many partitions."""
SAMPLE: Final = 1_000

Figures = Iterator[tuple[str, float, Goal | None]]
Group = Callable[[Cluster, Size], Figures]


def _topic(name: str, size: Size) -> str:
    return f"{name}-{size.round}"


# -- as a whole ----------------------------------------------------------------------------------------------


def start(cluster: Cluster, size: Size) -> Figures:
    """Start three brokers on empty folders, and measure the idle memory."""
    yield "start of three until each knows all, s", cluster.start_fresh(), Goal(ratio_max=0.4)
    time.sleep(2)
    yield "idle memory of a broker, MB", _memory(cluster), Goal(ratio_max=0.25)
    cpu, seconds = cluster.cpu_seconds(), 3.0
    time.sleep(seconds)
    yield "CPU of all when idle, cores", (cluster.cpu_seconds() - cpu) / seconds, Goal(ratio_max=1.0)


def _memory(cluster: Cluster) -> float:
    """Return the average memory of a broker; ZooKeeper's is divided among them."""
    return sum(server.resident_mb() for server in cluster.servers) / len(cluster.nodes)


def warm_up(cluster: Cluster, size: Size) -> Figures:
    """Warm up; not counted."""
    if size.round == 0:
        cluster.create("warm-up", 9)
        for partitions in (1, 9):
            workloads.produce(cluster, "warm-up", partitions, size.records(KB), KB, "all")
        workloads.consume(cluster, "warm-up", 9, 2 * size.records(KB), KB)
        workloads.acknowledgements(cluster, "warm-up", 2 * size.seconds, 1_000, KB)
    yield from ()


def throughput(cluster: Cluster, size: Size) -> Figures:
    """Produce 1 KB records with acks=all and three replicas."""
    for partitions, label in ((1, "1 partition"), (9, "9 partitions")):
        topic = _topic(f"throughput-{partitions}", size)
        cluster.create(topic, partitions)
        done = workloads.produce(cluster, topic, partitions, size.records(KB), KB, "all")
        what = f"1 KB, acks=all, 3 replicas, {label}"
        yield f"{what}, 1,000 records/s", done.records_per_s / 1e3, Goal(ratio_min=1.3)
        yield f"{what}, CPU s/GB of all", done.cpu_s_per_gb, Goal(ratio_max=0.6)
    yield "loaded memory of a broker, MB", _memory(cluster), Goal(ratio_max=0.25)


def latency(cluster: Cluster, size: Size) -> Figures:
    """Measure a 1 KB record each millisecond, idempotent, from produce() to the acknowledgement."""
    topic = _topic("latency", size)
    cluster.create(topic, 1)
    cpu, seconds = cluster.cpu_seconds(), 2 * size.seconds
    values = workloads.acknowledgements(cluster, topic, seconds, 1_000, KB)
    for share in (0.50, 0.99):
        what = f"1,000/s of 1 KB, linger 0, idempotent, 3 replicas, p{share * 100:.0f}, ms"
        yield what, percentile(values, share), Goal(ratio_max=1.0)
    yield "… CPU of all meanwhile, cores", (cluster.cpu_seconds() - cpu) / seconds, Goal(ratio_max=1.0)


# -- faults --------------------------------------------------------------------------------------------------


def failover(cluster: Cluster, size: Size) -> Figures:
    """Kill a partition's leader with -9 again and again; the controller is another broker, or the same."""
    kills = 3 if size.quick else 20
    for is_controller, who in ((False, "a leader"), (True, "a leader that is the controller")):
        producer, consumer = [], []
        for number in range(kills):
            victim = cluster.controller()
            if not is_controller:
                victim = cluster.other_nodes([victim])[number % (NODES - 1)]
            topic = _topic(f"killed-{'controller' if is_controller else 'leader'}-{number}", size)
            cluster.create_led_by(topic, victim)
            with Traffic(cluster, topic) as traffic:
                killed = time.monotonic()
                cluster.stop_node(victim, kill=True)
                traffic.wait_steady(killed, f"broker {victim} is killed")
            producer.append(traffic.acknowledged.longest_gap(killed))
            consumer.append(traffic.consumed.longest_gap(killed))
            cluster.start_node(victim)
            cluster.wait_in_sync({topic: 1})
        for clients, gaps in (("producer", producer), ("consumer", consumer)):
            what = f"kill -9 of {who}, {clients}'s longest gap"
            yield f"{what}, median of {kills}, s", percentile(sorted(gaps), 0.5), None
            yield f"{what}, p95 of {kills}, s", percentile(sorted(gaps), 0.95), Goal(value_max=1.5)


def clean_stop(cluster: Cluster, size: Size) -> Figures:
    """Send SIGTERM to a leader, and to one broker after the other, each started again."""
    topic = _topic("stopped", size)
    cluster.create_led_by(topic, cluster.other_nodes([cluster.controller()])[0])
    leader = cluster.leader(topic)
    with Traffic(cluster, topic) as traffic:
        stopped = time.monotonic()
        cluster.stop_node(leader)
        traffic.wait_steady(time.monotonic(), f"broker {leader} is stopped")
    yield (
        "clean stop of a leader, producer's longest gap, s",
        traffic.acknowledged.longest_gap(stopped),
        Goal(value_max=0.3),
    )
    yield "… consumer's longest gap, s", traffic.consumed.longest_gap(stopped), Goal(value_max=0.3)
    yield "… records that failed", traffic.failed, Goal(value_max=0)
    cluster.start_node(leader)
    cluster.wait_in_sync({topic: 1})
    with Traffic(cluster, topic) as traffic:
        began = time.monotonic()
        for node in list(cluster.nodes):
            cluster.stop_node(node)
            cluster.start_node(node)
            cluster.wait_in_sync({topic: 1})
        took = time.monotonic() - began
        traffic.wait_steady(time.monotonic(), "all were restarted")
    yield "rolling restart of three, s", took, None
    yield "… producer's longest gap then, s", traffic.acknowledged.longest_gap(began), Goal(value_max=0.3)
    yield "… consumer's longest gap then, s", traffic.consumed.longest_gap(began), Goal(value_max=0.3)
    yield "… records that failed then", traffic.failed, Goal(value_max=0)


def silence(cluster: Cluster, size: Size) -> Figures:
    """Stop a leader with SIGSTOP in a cluster with sessions of 6 s; its clients wait a second for an answer."""
    milliseconds = str(SESSION_SECONDS * 1000)
    key = (
        "zookeeper.session.timeout.ms"
        if isinstance(cluster, HeadraceCluster)
        else "broker.session.timeout.ms"
    )
    cluster.start_fresh(settings={key: milliseconds})
    victim = cluster.other_nodes([cluster.controller()])[0]
    cluster.create_led_by("silent", victim)
    with Traffic(cluster, "silent", socket_timeout_ms=1_000) as traffic:
        stopped = time.monotonic()
        cluster.signal(victim, signal.SIGSTOP)
        try:
            traffic.wait_steady(stopped + SESSION_SECONDS, f"broker {victim} is silent")
        finally:
            cluster.signal(victim, signal.SIGCONT)
    for clients, arrivals in (("producer", traffic.acknowledged), ("consumer", traffic.consumed)):
        what = f"SIGSTOP of a leader, session {SESSION_SECONDS} s, {clients}'s longest gap, s"
        yield what, arrivals.longest_gap(stopped), Goal(value_max=7.5)


def many_partitions(cluster: Cluster, size: Size) -> Figures:
    """Measure from `kill -9` of a broker until others answer for all partitions that it led."""
    count = 1_000 if size.quick else 10_000
    cluster.start_fresh()
    topics = {f"many-{number}": TOPIC_PARTITIONS for number in range(count // TOPIC_PARTITIONS)}
    started = time.monotonic()
    for topic, partitions in topics.items():
        cluster.create(topic, partitions)
    what = f"{count:,} partitions of three replicas"
    yield f"{what}: created and in sync, s", time.monotonic() - started, None
    yield f"{what}: memory of a broker, MB", _memory(cluster), Goal(ratio_max=0.25)
    cpu, seconds = cluster.cpu_seconds(), 3.0
    time.sleep(seconds)
    yield f"{what}: CPU of all when idle, cores", (cluster.cpu_seconds() - cpu) / seconds, Goal(ratio_max=1.0)
    victim = cluster.other_nodes([cluster.controller()])[0]
    missing = {key for key, found in cluster.partitions(*topics).items() if found.leader_id == victim}
    killed = time.monotonic()
    cluster.stop_node(victim, kill=True)
    wait_until(
        lambda: _is_led(cluster, missing), f"{cluster.name}: {len(missing)} partitions are led elsewhere"
    )
    yield f"{what}: all led elsewhere after a kill, s", time.monotonic() - killed, Goal(value_max=3.0)


def many_buckets(cluster: Cluster, size: Size) -> Figures:
    """Measure many small primary-key buckets (see `cluster_buckets`)."""
    count = 300 if size.quick else int(cluster_buckets.BUCKETS * size.scale)
    return cluster_buckets.many_buckets(cluster, count, quick=size.quick)


def _is_led(cluster: Cluster, missing: set[tuple[str, int]]) -> bool:
    """Remove those from `missing` whose leader answers ListOffsets; return whether none is left."""
    by_leader: dict[int, dict[str, list[int]]] = {}
    for (topic, index), found in cluster.partitions(*{topic for topic, _ in missing}).items():
        if (topic, index) in missing and found.leader_id in cluster.nodes:
            by_leader.setdefault(found.leader_id, {}).setdefault(topic, []).append(index)
    version = ListOffsetsResponse.header_version(raw.LIST_OFFSETS_VERSION)
    for leader, topics in by_leader.items():
        with raw.connect(cluster.nodes[leader]) as sock:
            for topic, indexes in topics.items():
                answer = raw.ask(sock, raw.list_offsets_frame(topic, indexes))
                _, position = decode_response_header(answer, version)
                told = ListOffsetsResponse.decode(answer, raw.LIST_OFFSETS_VERSION, None, position)
                missing -= {
                    (topic, partition.partition_index)
                    for each in told.topics
                    for partition in each.partitions
                    if not partition.error_code
                }
    return not missing


# -- Headrace alone ------------------------------------------------------------------------------------------


def tables(cluster: Cluster, size: Size) -> Figures:
    """Measure a PK table of one bucket and three replicas: the cost of standbys, and a lookup when the leader is
    killed.
    """
    rows = 200_000 if size.quick else 2_000_000
    name = f"bench.pk{size.round}"
    order = np.random.default_rng(7 + size.round).permutation(rows).astype(np.int64)
    with connect(cluster.address, ClientConfig(delivery_timeout_ms=120_000)) as connection:
        connection.execute("CREATE DATABASE IF NOT EXISTS bench")
        with_replicas = f"WITH ('bucket.num'='1', 'table.replication.factor'='{NODES}')"
        for table in (name, f"{name}_first"):
            connection.execute(f"CREATE TABLE {table} ({PK_COLUMNS}) {with_replicas}")
        upsert_all(connection, f"{name}_first", order[:WRITE_ROWS], 1)
        leader = cluster.leader(name)
        for what, keys in (("fresh", order), ("existing", order[::-1].copy())):
            before = {node: server.cpu_seconds() for node, server in cluster.nodes.items()}
            rate = upsert_all(connection, name, keys, 1 + (what == "existing"))
            time.sleep(2)  # standbys apply the rest
            spent = {node: server.cpu_seconds() - before[node] for node, server in cluster.nodes.items()}
            standby = sum(cpu for node, cpu in spent.items() if node != leader) / (NODES - 1)
            yield f"upsert of {what} keys, PK table of three replicas, 1,000 rows/s", rate / 1e3, None
            yield f"… {what} keys, leader's CPU s per million rows", spent[leader] * 1e6 / rows, None
            yield (
                f"… {what} keys, a standby's CPU / its leader's",
                standby / spent[leader],
                Goal(value_max=0.3),
            )
        cluster.wait_in_sync({name: 1})
        handle = connection.table(name)
        handle.lookup_one({"id": 0})
        killed = time.monotonic()
        cluster.stop_node(leader, kill=True)
        if handle.lookup_one({"id": 1}) is None:
            raise RuntimeError("a row that was acknowledged is gone")
        yield (
            f"PK table of {rows:,} rows, kill -9 of its leader to the first lookup, s",
            time.monotonic() - killed,
            Goal(value_max=1.5),
        )
        gone = 0
        for start_ in range(0, rows, rows // SAMPLE):
            found, _ = handle.lookup(pa.table({"id": order[start_ : start_ + rows // SAMPLE // 10]}))
            gone += len(found) - int(np.count_nonzero(found))
        yield "… rows that are gone, of a tenth", gone, Goal(value_max=0)
    cluster.start_node(leader)


def scaling(cluster: Cluster, size: Size) -> Figures:
    """Write to eight partitions on one broker and on two, with prepared requests; the load uses a part of the two
    cores too.
    """
    rates, costs = [], []
    for brokers in (1, 2):
        cluster.start_fresh(brokers)
        cluster.create("spread", 8, replicas=1)
        leaders = {index: found.leader_id for (_, index), found in cluster.partitions("spread").items()}
        data = raw.batch(SMALL_BATCH, KB)
        targets = [cluster.nodes[leader] for leader in leaders.values()]
        requests = [raw.again(raw.produce_frame("spread", [index], data)) for index in leaders]
        for _ in range(2):  # not counted: the first loads the kernels, in a thread that may still work
            raw.drive(targets, list(requests), 5, size.seconds)
        load = raw.drive(targets, list(requests), 5, 2 * size.seconds)
        rates.append(load.per_second)
        costs.append(load.cpu_us)
    yield "8 partitions, 15 KB batches, one broker, requests/s", rates[0], None
    yield "8 partitions, 15 KB batches, two brokers, requests/s", rates[1], None
    yield "… two brokers / one, rate", rates[1] / rates[0], Goal(value_min=1.6)
    yield "… one broker, CPU us of a request", costs[0], None
    yield "… two brokers / one, CPU of a request", costs[1] / costs[0], Goal(value_max=1.1)


GROUPS: Final[dict[str, Group]] = {
    "cluster-start": start,
    "cluster-warm-up": warm_up,
    "cluster-throughput": throughput,
    "cluster-latency": latency,
    "failover": failover,
    "clean-stop": clean_stop,
    "silence": silence,
    "cluster-partitions": many_partitions,
    "cluster-tables": tables,
    "cluster-buckets": many_buckets,
    "scaling": scaling,
}
ALONE: Final = {"cluster-tables", "cluster-buckets", "scaling"}
WARM: Final = {"cluster-throughput", "cluster-latency", "failover", "clean-stop"}
FRESH: Final = {"cluster-start", "silence", "cluster-partitions", "cluster-buckets", "scaling"}
"""Groups that start clusters of their own."""
ONCE: Final = {"failover"}
"""Groups of the first round alone: they have rounds of their own."""


def measure(work: Path, samples: Samples, only: list[str], rounds: int, scale: float, *, quick: bool) -> None:
    """Run all rounds of a group before the next group. A failure ends only that group of that cluster.

    Raise RuntimeError at the end with all failures.
    """
    wanted = set(only) & set(GROUPS) or (set() if only else set(GROUPS))
    if wanted & WARM:
        wanted.add("cluster-warm-up")
    clusters: list[Cluster] = [KafkaCluster(work), HeadraceCluster(work)]
    console, failed = Console(stderr=True), []
    try:
        for name, group in GROUPS.items():
            if name not in wanted:
                continue
            for round_ in range(1 if name in ONCE else rounds):
                for cluster in clusters:
                    if name in ALONE and not isinstance(cluster, HeadraceCluster):
                        cluster.stop()
                        continue
                    began = time.monotonic()
                    try:
                        if name not in FRESH and len(cluster.nodes) < NODES:
                            cluster.start_fresh()
                        for figure, value, goal in group(cluster, Size(scale, quick, round_)):
                            samples.add(figure, cluster.name, value, goal)
                    except (RuntimeError, OSError, KafkaException) as error:
                        failed.append(f"{name}, {cluster.name}: {error}")
                        cluster.stop()
                    console.print(f"{name}, {cluster.name}: {time.monotonic() - began:.0f} s")
    finally:
        for cluster in clusters:
            cluster.stop()
    if failed:
        raise RuntimeError("\n".join(failed))
