"""Loads for applications, and waiting until they have arrived."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

WAIT_SECONDS = 600.0
Attempt = Callable[[str, str, str], AbstractContextManager[None]]
"""(name, version, what): an application that is tried while the body runs."""


def produce(address: str, topic: str, records: Iterable[tuple[str | None, Any]]) -> None:
    """Write records, their values as JSON, and wait until all are acknowledged."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": address, "linger.ms": 20})
    for key, value in records:
        producer.produce(topic, json.dumps(value), key)
        producer.poll(0)
    assert producer.flush(120) == 0


def consumed(address: str, topic: str, **settings: str) -> list[bytes]:
    """Return the values of all present records, partition by partition."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reading",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            **settings,
        }
    )
    try:
        found: list[bytes] = []
        described = consumer.list_topics(topic, timeout=30).topics[topic]
        for partition in sorted(described.partitions):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while (message := consumer.poll(60)) is not None and message.error() is None:
                found.append(message.value())
            assert message is not None, f"{topic} {partition} has no end"
            assert message.error().name() == "_PARTITION_EOF", message.error()
        return found
    finally:
        consumer.close()


def rows_by_key(address: str, table: str, key: str) -> Mapping[Any, Mapping[str, Any]]:
    from headrace import connect

    with connect(address) as connection:
        return {row[key]: row for row in connection.table(table).to_arrow().to_pylist()}


def until(
    condition: Callable[[], Any], what: str, said: Callable[[], str] = str, seconds: float = WAIT_SECONDS
) -> Any:
    """Return the first true value of the condition. `said` returns what to show if it does not come."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s in vain for {what}\n{said()[-4000:]}"
        time.sleep(0.5)
