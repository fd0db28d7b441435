"""Clients of servers with remote storage, and the command that restores a new machine from a bucket."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from faulty_s3 import BUCKET

from headrace.broker.groups.model.records import PutOffset
from headrace.broker.objects.files import open_files
from headrace.broker.remote import group_positions
from headrace.broker.remote.cluster_copy import clusters

LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -4, -5
TOPIC = {
    "remote.storage.enable": "true",
    "segment.bytes": "60000",
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "0",
}
SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.directory": f"s3://{BUCKET}/remote",
    "remote.log.manager.task.interval.ms": "100",
    "remote.log.group.positions.interval.ms": "100",
    "log.retention.check.interval.ms": "100",
    "log.initial.task.delay.ms": "0",
}
PATIENCE_SECONDS = 90


def produce(address: str, topic: str, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "batch.num.messages": 20})
    for number in range(first, first + count):
        producer.produce(topic, b"%06d" % number + b"x" * 500)
        if number % 20 == 19:
            producer.flush()
    assert producer.flush(60) == 0


def consume(address: str, topic: str, group: str, count: int) -> list[int]:
    """Return the numbers of `count` records from the beginning."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    found: list[int] = []
    try:
        consumer.subscribe([topic])
        while len(found) < count:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None, f"{len(found)} of {count} records came"
            assert message.error() is None, message.error()
            found.append(int(message.value()[:6]))
    finally:
        consumer.close()
    return found


def read_some(address: str, topic: str, group: str, count: int, protocol: str) -> set[tuple[int, int]]:
    """Read and commit `count` records after the group's committed offsets, or all; return their (partition, offset)."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    found: set[tuple[int, int]] = set()
    try:
        consumer.subscribe([topic])
        while len(found) < count:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None, f"{len(found)} of {count} records came"
            assert message.error() is None, message.error()
            found.add((message.partition(), message.offset()))
        ends = {
            partition: max(offset for each, offset in found if each == partition) + 1
            for partition, _ in found
        }
        consumer.commit(offsets=[TopicPartition(topic, *each) for each in ends.items()], asynchronous=False)
    finally:
        consumer.close()
    return found


def positions(address: str, group: str) -> dict[tuple[str, int], int]:
    """Return the committed offsets by Kafka's admin client."""
    admin = AdminClient({"bootstrap.servers": address})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(PATIENCE_SECONDS).topic_partitions
    return {(each.topic, each.partition): each.offset for each in found}


def copied_positions(url: str, groups: Collection[str]) -> dict[str, dict[tuple[str, int], int]]:
    """Return the committed offsets of groups in remote storage."""
    files = open_files(url)
    found: dict[str, dict[tuple[str, int], int]] = {group: {} for group in groups}
    for cluster_id in clusters(files):
        for name, data in group_positions.read_newest(files, cluster_id).items():
            for record in group_positions.decode(name, data)[1]:
                if isinstance(record, PutOffset) and record.group_id in found:
                    found[record.group_id][record.topic, record.partition] = record.committed.offset
    return found


def is_local_gone(connection, topic: str, share: float = 0.5) -> bool:
    local = connection.kafka.offsets(topic, EARLIEST_LOCAL)
    ends = connection.kafka.offsets(topic)
    return all(local[each] >= ends[each] * share for each in ends)


def headrace(*arguments: object) -> str:
    command = [sys.executable, "-m", "headrace.tablelayer.cli.main", *map(str, arguments)]
    root = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
