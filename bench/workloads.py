"""The loads, all by confluent-kafka: produce, consume, latency. One function for each figure, for any broker."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

BATCH = 10_000


class Target(Protocol):
    """The target of a load: one server, or several that are one cluster."""

    @property
    def address(self) -> str: ...

    def cpu_seconds(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Throughput:
    records_per_s: float
    cpu_s_per_gb: float
    """Server CPU seconds for 10^9 bytes of values."""


def create_topic(server: Target, topic: str, partitions: int, replicas: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": server.address})
    admin.create_topics([NewTopic(topic, partitions, replicas)])[topic].result(30)


def produce(
    server: Target, topic: str, partitions: int, records: int, size: int, acks: str, codec: str = "none"
) -> Throughput:
    """Produce `records` values of `size` bytes, spread evenly over the partitions, until all are acknowledged.

    Each value of a lot is another one and half of it is random, so that a codec halves them.
    """
    producer = Producer(
        {
            "bootstrap.servers": server.address,
            "acks": acks,
            "linger.ms": 5,
            "compression.type": codec,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 1_000_000,
            "queue.buffering.max.kbytes": 2_000_000,
        }
    )
    constant = bytes(size - size // 2)
    messages = [{"value": os.urandom(size // 2) + constant} for _ in range(BATCH)]
    failures: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    producer.list_topics(topic, 10)
    cpu, started = server.cpu_seconds(), time.perf_counter()
    sent = 0
    while sent < records:
        queued = producer.produce_batch(topic, messages, sent // BATCH % partitions, on_delivery=delivered)
        sent += queued
        producer.poll(0)
        while len(producer) > 400_000:
            producer.poll(0.01)
    left = producer.flush(120)
    elapsed, cpu = time.perf_counter() - started, server.cpu_seconds() - cpu
    if failures or left:
        raise RuntimeError(f"{len(failures)} of {sent} records failed, {left} unanswered: {failures[:1]}")
    return Throughput(sent / elapsed, cpu / (sent * size / 1e9))


def consume(server: Target, topic: str, partitions: int, records: int, size: int) -> Throughput:
    """Read `records` records from the beginning of all partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.queue.backoff.ms": 5,
            "queued.min.messages": 1_000_000,
            "queued.max.messages.kbytes": 1_000_000,
            "fetch.message.max.bytes": 8_000_000,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    cpu, started = server.cpu_seconds(), time.perf_counter()
    got = 0
    while got < records:
        messages = consumer.consume(BATCH, 10.0)
        if not messages:
            raise RuntimeError(f"nothing for 10 s after {got} of {records} records")
        got += len(messages)
    elapsed, cpu = time.perf_counter() - started, server.cpu_seconds() - cpu
    consumer.close()
    return Throughput(got / elapsed, cpu / (got * size / 1e9))


def latency(server: Target, topic: str, seconds: float, rate: int, size: int) -> list[float]:
    """Return milliseconds from produce() to the consumer having the record, acks=all, linger 0, sorted."""
    address = server.address
    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 0})
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bench-latency",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    producer.list_topics(topic, 10)
    padding = bytes(size - 8)
    total = int(seconds * rate)
    latencies: list[float] = []
    started = time.perf_counter()
    sent = 0
    while len(latencies) < total:
        now = time.perf_counter()
        if sent < total and now >= started + sent / rate:
            producer.produce(topic, int(now * 1e9).to_bytes(8, "big") + padding, partition=0)
            sent += 1
            producer.poll(0)
        message = consumer.poll(0 if sent < total and now >= started + sent / rate else 0.0002)
        if message is not None and message.error() is None:
            arrived = int(time.perf_counter() * 1e9)
            latencies.append((arrived - int.from_bytes(message.value()[:8], "big")) / 1e6)
        elif now > started + seconds + 30:
            raise RuntimeError(f"{len(latencies)} of {total} records after {now - started:.0f} s")
    consumer.close()
    producer.flush(10)
    return sorted(latencies)


def acknowledgements(server: Target, topic: str, seconds: float, rate: int, size: int) -> list[float]:
    """Return milliseconds from produce() to the acknowledgement of an idempotent producer with linger 0, sorted."""
    producer = Producer({"bootstrap.servers": server.address, "enable.idempotence": True, "linger.ms": 0})
    producer.list_topics(topic, 10)
    value, total = bytes(size), int(seconds * rate)
    latencies: list[float] = []
    failures: list[str] = []

    def delivered(error: object, message: Message) -> None:
        if error is None:
            latencies.append(message.latency() * 1e3)
        else:
            failures.append(str(error))

    started = time.perf_counter()
    for sent in range(total):
        while (left := started + sent / rate - time.perf_counter()) > 0:
            producer.poll(min(left, 0.001))
        producer.produce(topic, value, partition=0, on_delivery=delivered)
        producer.poll(0)
    producer.flush(60)
    if failures or len(latencies) < total:
        raise RuntimeError(f"{len(failures)} of {total} records failed: {failures[:1]}")
    return sorted(latencies)
