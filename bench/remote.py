"""A scan of local records, and of records only in remote storage, a directory on the same disk.

So only the cost of the remote log itself is measured: ranged reads in threads, chunks, and bytes that pass through the
process instead of `sendfile`. A network would add to that. Kafka's remote storage is the directory of its own tests
(`LocalTieredStorage`). The server is restarted before each scan.
"""

from __future__ import annotations

import shutil
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench.kafka_peer import start_kafka, tiering_jars
from bench.maven import java
from bench.peers import HEADRACE, KAFKA
from bench.processes import Server, start
from bench.report import Goal, Samples
from simulator.ports import free_port

BYTES = 256 << 20
VALUE = b"x" * 1000
PATIENCE_SECONDS = 120
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": str(32 << 20),
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "0",
}
LOCAL = {"segment.bytes": str(32 << 20)}
SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "0",
    "group.initial.rebalance.delay.ms": "0",
}


def start_headrace(folder: Path, metrics: int) -> Server:
    """Start a server. `metrics` is the port of its metrics."""
    port = free_port()
    command = [sys.executable, "-m", "headrace.tablelayer.cli.main", "serve", "--data", str(folder / "data")]
    for name, value in {**SETTINGS, "remote.log.storage.directory": str(folder / "remote")}.items():
        command += ["--set", f"{name}={value}"]
    command += ["--metrics", f"127.0.0.1:{metrics}"]
    return start(HEADRACE, [*command, "--listen", f"127.0.0.1:{port}"], port, folder / "headrace.out")


def start_tiering_kafka(folder: Path) -> Server:
    (folder / "remote").mkdir(parents=True, exist_ok=True)
    (jar,) = tiering_jars().glob("*.jar")
    of_storage = {
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "remote.log.storage.manager.class.path": str(jar),
        "rsm.config.dir": str(folder / "remote"),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
    }
    return start_kafka(folder, settings={**SETTINGS, **of_storage})


def counted(metrics: int, name: str) -> float:
    """Return a counter of the server's without labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=PATIENCE_SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def fill(address: str, data: Path, scale: float) -> int:
    """Fill the topics and return their numbers of records. All but one segment are only in remote storage then."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    count = max(2_000, int(BYTES * scale) // len(VALUE))
    admin = AdminClient({"bootstrap.servers": address})
    topics = [NewTopic(name, 1, 1, config=config) for name, config in (("local", LOCAL), ("tiered", TIERED))]
    for created in admin.create_topics(topics).values():
        created.result(PATIENCE_SECONDS)
    for topic in ("local", "tiered"):
        producer = Producer({"bootstrap.servers": address, "queue.buffering.max.messages": count + 1})
        for _ in range(count):
            producer.produce(topic, VALUE)
        if producer.flush(PATIENCE_SECONDS):
            raise RuntimeError("not everything was written")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(list(data.rglob("tiered-0/*.log"))) != 1:
        if time.monotonic() > deadline:
            raise RuntimeError(f"not everything was moved to remote storage: see {data}")
        time.sleep(0.2)
    return count


def scan(address: str, topic: str, count: int) -> float:
    """Return the seconds for all records."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "scan", "fetch.max.bytes": 50 << 20, "check.crcs": False}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        began, seen = time.perf_counter(), 0
        while seen < count:
            got = len(consumer.consume(min(10_000, count - seen), PATIENCE_SECONDS))
            if not got:
                raise RuntimeError(f"{seen:,} of {count:,} records of {topic} came in {PATIENCE_SECONDS} s")
            seen += got
        return time.perf_counter() - began
    finally:
        consumer.close()


def measure(work: Path, rounds: int, scale: float) -> Samples:
    """Yield MB a second, the server's CPU seconds a GB and its requests to the store a GB; Kafka's if there is Java."""
    shutil.rmtree(work, ignore_errors=True)
    names = [*([KAFKA] if shutil.which(java()) else []), HEADRACE]
    folders = {name: work / name.split()[-1].lower() for name in names}
    counts = {}
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        server = _start(name, folder, free_port())
        try:
            counts[name] = fill(server.address, folder / "data", scale)
        finally:
            server.stop()
    samples = Samples()
    for _ in range(rounds):
        for topic in ("local", "tiered"):
            for name, folder in folders.items():
                for figure, value, goal in _scanned(name, folder, topic, counts[name]):
                    samples.add(figure, name, value, goal)
    return samples


def _start(name: str, folder: Path, metrics: int) -> Server:
    return start_headrace(folder, metrics) if name == HEADRACE else start_tiering_kafka(folder)


def _scanned(name: str, folder: Path, topic: str, count: int) -> Iterator[tuple[str, float, Goal | None]]:
    size, metrics = count * len(VALUE), free_port()
    server = _start(name, folder, metrics)
    try:
        scan(server.address, "local", min(count, 2_000))  # not counted: classes, the first connection
        before = server.cpu_seconds()
        seconds = scan(server.address, topic, count)
        yield f"scan of a {topic} topic, MB/s", size / seconds / 1e6, Goal(ratio_min=1.0)
        used = server.cpu_seconds() - before
        yield f"scan of a {topic} topic, server CPU s/GB", used / size * 1e9, Goal(ratio_max=1.0)
        if topic == "tiered" and name == HEADRACE:
            read = counted(metrics, "headrace_remote_store_read_bytes_total")
            requests = counted(metrics, "headrace_remote_store_reads_total")
            yield "requests for ranges of objects, per GB", requests / read * 1e9, None
    finally:
        server.stop()
