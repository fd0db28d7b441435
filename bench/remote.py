"""A scan from the beginning: of what is local, and of what is in remote storage only, a directory on the same disk.

So what is measured is what the remote log costs by itself: ranged reads in threads, chunks, and bytes that pass through
the process instead of `sendfile`. A network comes on top of that. The server is started again before each scan.
"""

from __future__ import annotations

import shutil
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench.processes import Server, free_port, start

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


def start_tiered(folder: Path, metrics: int) -> Server:
    """`metrics`: the port where it says what it has counted."""
    port = free_port()
    command = [sys.executable, "-m", "tablelayer.cli.main", "serve", "--data", str(folder / "data")]
    settings = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.directory": str(folder / "remote"),
        "remote.log.manager.task.interval.ms": "200",
        "log.retention.check.interval.ms": "200",
        "log.initial.task.delay.ms": "0",
        "group.initial.rebalance.delay.ms": "0",
    }
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    command += ["--metrics", f"127.0.0.1:{metrics}"]
    return start("Headrace", [*command, "--listen", f"127.0.0.1:{port}"], port, folder / "headrace.out")


def counted(metrics: int, name: str) -> float:
    """A counter of the server's without labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics", timeout=PATIENCE_SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


def fill(address: str, scale: float) -> int:
    """How many records each topic has."""
    from confluent_kafka import Producer

    from tablelayer.client import connect

    count = max(2_000, int(BYTES * scale) // len(VALUE))
    with connect(address) as connection:
        for topic, config in (("local", LOCAL), ("tiered", TIERED)):
            connection.kafka.create_topic(topic, partitions=1, configs=config)
            producer = Producer({"bootstrap.servers": address, "queue.buffering.max.messages": count + 1})
            for _ in range(count):
                producer.produce(topic, VALUE)
            if producer.flush(PATIENCE_SECONDS):
                raise RuntimeError("not everything was written")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while connection.kafka.offsets("tiered", -4)[0] < count // 2:
            if time.monotonic() > deadline:
                raise RuntimeError("nothing was copied to remote storage")
            time.sleep(0.2)
    return count


def scan(address: str, topic: str, count: int) -> float:
    """Seconds for all records."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "scan", "fetch.max.bytes": 50 << 20, "check.crcs": False}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        began, seen = time.perf_counter(), 0
        while seen < count:
            seen += len(consumer.consume(min(10_000, count - seen), PATIENCE_SECONDS))
        return time.perf_counter() - began
    finally:
        consumer.close()


def measure(work: Path, rounds: int, scale: float) -> dict[str, list[float]]:
    """MB a second, the server's CPU seconds a GB and its requests to the store a GB, by figure, one sample a round."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    figures: dict[str, list[float]] = {}
    server = start_tiered(work, free_port())
    try:
        count = fill(server.address, scale)
    finally:
        server.stop()
    for _ in range(rounds):
        for figure, value in _round(work, count):
            figures.setdefault(figure, []).append(value)
    return figures


def _round(work: Path, count: int) -> Iterator[tuple[str, float]]:
    size = count * len(VALUE)
    for topic in ("local", "tiered"):
        metrics = free_port()
        server = start_tiered(work, metrics)
        try:
            before = server.cpu_seconds()
            seconds = scan(server.address, topic, count)
            yield f"scan of a {topic} topic, MB/s", size / seconds / 1e6
            yield f"scan of a {topic} topic, server CPU s/GB", (server.cpu_seconds() - before) / size * 1e9
            if topic == "tiered":
                read = counted(metrics, "headrace_remote_store_read_bytes_total")
                requests = counted(metrics, "headrace_remote_store_reads_total")
                yield "requests for ranges of objects, per GB", requests / read * 1e9
        finally:
            server.stop()
