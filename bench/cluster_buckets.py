"""The cost of many primary-key buckets in a cluster: memory and files of a broker, and the death of one.

Each table has four buckets, three replicas and ten rows a bucket. A broker is killed, and one key of each bucket that
it led is looked up at the new leader, which has to open the store for that. At the end one broker leads all buckets,
and is killed.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from bench import raw
from bench.cluster_peers import NODES, Cluster, wait_until
from bench.report import Goal
from headrace.protocol.headers import decode_response_header
from headrace.tablelayer.client import ClientConfig, connect
from headrace.tablelayer.client.write.split import buckets_of
from headrace.tablelayer.model.batches.ipc import encode_ipc
from headrace.tablelayer.model.messages.read import LookupBucket, LookupRequest, LookupResponse
from headrace.tablelayer.model.table.definition import StoredTable

BUCKETS: Final = 1_000
_OF_TABLE: Final = 4
_ROWS: Final = 10 * _OF_TABLE
_LOOKUP_VERSION: Final = 3
_IDLE_SECONDS: Final = 200.0
"""Long enough for the servers to close what is idle."""

Place = tuple[str, int]


def many_buckets(cluster: Cluster, count: int, *, quick: bool) -> Iterator[tuple[str, float, Goal | None]]:
    """Measure `count` buckets, from their creation to the return of a broker that was killed."""
    cluster.start_fresh()
    topics = {f"many.t{number}": _OF_TABLE for number in range(count // _OF_TABLE)}
    what = f"{count:,} PK buckets of three replicas"
    rows = _rows()
    with connect(cluster.address, ClientConfig(delivery_timeout_ms=120_000)) as connection:
        connection.execute("CREATE DATABASE many")
        began = time.monotonic()
        for name in topics:
            connection.execute(
                f"CREATE TABLE {name} (id BIGINT NOT NULL, v STRING, PRIMARY KEY (id) NOT ENFORCED) "
                f"WITH ('bucket.num'='{_OF_TABLE}', 'table.replication.factor'='{NODES}')"
            )
        yield f"{what}: created, s", time.monotonic() - began, None
        began = time.monotonic()
        for name in topics:
            connection.table(name).upsert(rows)
        cluster.wait_in_sync(topics)
        yield f"{what}: all rows written, s", time.monotonic() - began, None
        tables = {name: connection.table(name).definition for name in topics}
    yield from _size(cluster, f"{what}: with rows")
    if not quick:
        time.sleep(_IDLE_SECONDS)
        yield from _size(cluster, f"{what}: idle")
    cpu, began = {node: server.cpu_seconds() for node, server in cluster.nodes.items()}, time.monotonic()
    time.sleep(10)
    spent = max(server.cpu_seconds() - cpu[node] for node, server in cluster.nodes.items())
    yield (
        f"{what}: idle CPU of the busiest broker, %",
        100 * spent / (time.monotonic() - began),
        Goal(value_max=2),
    )

    keys = _key_of_bucket(next(iter(tables.values())), rows)
    victim = cluster.other_nodes([cluster.controller()])[0]
    missing = {place for place, found in cluster.partitions(*topics).items() if found.leader_id == victim}
    killed = time.monotonic()
    cluster.stop_node(victim, kill=True)
    _wait_led(cluster, missing)
    yield (
        f"{what}: {len(missing)} led elsewhere after kill -9, s",
        time.monotonic() - killed,
        Goal(value_max=5),
    )
    longest = _look_up(cluster, missing, tables, keys)
    yield f"{what}: … and each was looked up, s", time.monotonic() - killed, None
    yield f"{what}: … longest of these lookups, s", longest, None
    yield from _size(cluster, f"{what}: after the kill")
    began = time.monotonic()
    cluster.start_node(victim)
    cluster.wait_in_sync(topics)
    yield f"{what}: restart of the broker until in sync, s", time.monotonic() - began, None
    yield from _size(cluster, f"{what}: after the restart")

    _lead_all(cluster, victim, topics)
    everywhere = set(cluster.partitions(*topics))
    killed = time.monotonic()
    cluster.stop_node(victim, kill=True)
    _wait_led(cluster, everywhere)
    yield (
        f"{what}: {len(everywhere)} led elsewhere after kill -9 of their leader and controller, s",
        time.monotonic() - killed,
        Goal(value_max=5),
    )
    yield from _size(cluster, f"{what}: after this kill")


def _lead_all(cluster: Cluster, node: int, topics: dict[str, int]) -> None:
    """Have one broker lead all buckets, as after a stop of all others; they are started again."""
    others = cluster.other_nodes([node])
    for other in others:
        cluster.stop_node(other)
    wait_until(
        lambda: all(each.leader_id == node for each in cluster.partitions(*topics).values()),
        f"broker {node} leads all buckets",
    )
    with ThreadPoolExecutor(len(others)) as threads:  # each waits until it knows all
        list(threads.map(cluster.start_node, others))
    cluster.wait_in_sync(topics)


def _rows() -> pa.Table:
    ids = np.arange(_ROWS, dtype=np.int64)
    return pa.table({"id": ids, "v": [f"value {each}" for each in ids.tolist()]})


def _size(cluster: Cluster, when: str) -> Iterator[tuple[str, float, Goal | None]]:
    yield (
        f"{when}, memory of the largest broker, MB",
        max(each.resident_mb() for each in cluster.nodes.values()),
        None,
    )
    files = [len(os.listdir(f"/proc/{each.process.pid}/fd")) for each in cluster.nodes.values()]
    yield f"{when}, open files of a broker", max(files), None


def _key_of_bucket(definition: StoredTable, rows: pa.Table) -> dict[int, bytes]:
    """Return a key of each bucket as it travels; all tables have the same."""
    keys = rows.select(["id"]).to_batches()[0]
    buckets = buckets_of(definition, keys).tolist()
    return {bucket: bytes(encode_ipc(keys.slice(buckets.index(bucket), 1))) for bucket in set(buckets)}


def _wait_led(cluster: Cluster, places: set[Place]) -> None:
    """Wait until running brokers lead these buckets. An answer about thousands takes a broker's time, too."""
    missing = set(places)

    def are_led() -> bool:
        found = cluster.partitions(*{topic for topic, _ in missing})
        missing.difference_update(place for place, each in found.items() if each.leader_id in cluster.nodes)
        return not missing

    wait_until(are_led, f"{len(places)} buckets are led elsewhere", pause_seconds=0.25)


def _look_up(
    cluster: Cluster, places: set[Place], tables: dict[str, StoredTable], keys: dict[int, bytes]
) -> float:
    """Look a row up in each bucket, at all leaders at the same time. Return the seconds of the slowest lookup."""
    left: dict[int, list[Place]] = {}
    for place, found in cluster.partitions(*{topic for topic, _ in places}).items():
        if place in places:
            left.setdefault(found.leader_id, []).append(place)

    def at(leader: int) -> float:
        longest = 0.0
        with raw.connect(cluster.nodes[leader]) as sock:
            for topic, bucket in left[leader]:
                began = time.monotonic()
                is_found = partial(_is_found, sock, tables[topic], bucket, keys[bucket])
                wait_until(is_found, f"{topic} bucket {bucket} answers")
                longest = max(longest, time.monotonic() - began)
        return longest

    with ThreadPoolExecutor(len(left)) as threads:
        return max(threads.map(at, left))


def _is_found(sock: socket.socket, table: StoredTable, bucket: int, key: bytes) -> bool:
    request = LookupRequest(table_id=table.table_id, buckets=[LookupBucket(bucket=bucket, keys=key)])
    answer = raw.ask(sock, raw.frame(request, _LOOKUP_VERSION))
    _, position = decode_response_header(answer, LookupResponse.header_version(_LOOKUP_VERSION))
    told = LookupResponse.decode(answer, _LOOKUP_VERSION, None, position)
    if told.error_code or told.buckets[0].error_code:
        return False
    if told.buckets[0].found != b"\x01":
        raise RuntimeError(f"a row of {table.path} bucket {bucket} that was acknowledged is gone")
    return True
