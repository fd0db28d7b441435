"""Ordinary Kafka clients (confluent-kafka), without knowledge of tables."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from examples.stage import StepFailedError


def produce(address: str, topic: str, values: Iterable[bytes], access: Mapping[str, str]) -> int:
    """Send values and wait until all are acknowledged. Return their number. Raises StepFailedError if one was refused.

    `access`: the properties of security, none where nothing is protected.
    """
    producer = Producer(
        {
            **access,
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.num.messages": 50_000,
            "batch.size": 900_000,
            "queue.buffering.max.messages": 400_000,
            "sticky.partitioning.linger.ms": 20,
        }
    )
    refused: list[str] = []

    def delivered(error: KafkaError | None, _: Any) -> None:
        if error is not None:
            refused.append(str(error))

    count = 0
    for value in values:
        producer.produce(topic, value=value, on_delivery=delivered)
        count += 1
        if count % 10_000 == 0:
            producer.poll(0)
    left = producer.flush(60)
    if left or refused:
        raise StepFailedError(f"{topic}: {left} messages unsent, {len(refused)} refused: {refused[:3]}")
    return count


@dataclass
class GroupReading:
    """The records that a consumer group has read."""

    messages: int = 0
    tombstones: int = 0
    of_key: list[tuple[int, int, dict[str, Any] | None]] = field(default_factory=list)
    """(partition, offset, row or None for a tombstone) of the key that was asked for."""


def read_with_group(
    address: str,
    group: str,
    topic: str,
    key: dict[str, Any],
    access: Mapping[str, str],
    *,
    until_tombstone: bool,
    timeout_s: float = 60.0,
) -> GroupReading:
    """Read a topic from its beginning as a consumer group and commit; stop at the key's tombstone, or when
    nothing comes any more.
    """
    consumer = Consumer(
        {
            **access,
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    seen = GroupReading()
    wanted = json.dumps(key, separators=(",", ":")).encode()
    deadline = time.monotonic() + timeout_s
    quiet_since = time.monotonic()
    try:
        consumer.subscribe([topic])
        while time.monotonic() < deadline:
            messages = consumer.consume(10_000, 0.3)
            for message in messages:
                if message.error() is not None:
                    raise StepFailedError(f"{topic}: {message.error()}")
                seen.messages += 1
                seen.tombstones += message.value() is None
                if message.key() is not None and message.key().replace(b" ", b"") == wanted:
                    value = message.value()
                    row = None if value is None else json.loads(value, parse_float=str)
                    seen.of_key.append((message.partition(), message.offset(), row))
            if messages:
                quiet_since = time.monotonic()
            elif seen.messages and time.monotonic() - quiet_since > 1.5:
                break
            if until_tombstone and seen.of_key and seen.of_key[-1][2] is None:
                break
        if seen.messages:
            consumer.commit(asynchronous=False)
    finally:
        consumer.close()
    return seen


def let_group(address: str, group: str, user: str, access: Mapping[str, str]) -> None:
    """Allow a user to read as a consumer group: by an ACL, as Kafka's own tools would."""
    admin = AdminClient({**access, "bootstrap.servers": address})
    acl = AclBinding(
        ResourceType.GROUP,
        group,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    for made in admin.create_acls([acl]).values():
        made.result(30)
