"""Apache Kafka's MirrorMaker 2 between Apache Kafka and us, both ways: records, configurations, positions of groups."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from bench.kafka_peer import KAFKA_VERSION, start_kafka
from bench.maven import fetch, java

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

SECONDS_MAX = 240
CONFIGS = {
    "file.delete.delay.ms": "30000",
    "preallocate": "false",
    "unclean.leader.election.enable": "false",
    "min.insync.replicas": "1",
    "retention.ms": "86400000",
    "cleanup.policy": "compact,delete",
    "segment.bytes": "16777216",
    "max.message.bytes": "900000",
    "compression.type": "lz4",
}
MIRROR = """clusters=kafka,headrace
kafka.bootstrap.servers={kafka}
headrace.bootstrap.servers={headrace}
kafka->headrace.enabled=true
headrace->kafka.enabled=true
topics=from.*
groups=.*
replication.factor=1
checkpoints.topic.replication.factor=1
heartbeats.topic.replication.factor=1
offset-syncs.topic.replication.factor=1
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
refresh.topics.interval.seconds=5
refresh.groups.interval.seconds=5
sync.topic.configs.interval.seconds=5
emit.checkpoints.interval.seconds=5
sync.group.offsets.enabled=true
sync.group.offsets.interval.seconds=5
sync.topic.acls.enabled=true
offset.flush.interval.ms=2000
"""


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[str]:
    server = start_kafka(tmp_path / "kafka")
    yield server.address
    server.stop()


def make_topic(address: str, name: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic(name, partitions, 1, config=CONFIGS)]).values():
        made.result(60)


def fill(address: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": address})
    for number in range(count):
        producer.produce(topic, key=f"k{number}", value=f"v{number}")
        producer.poll(0)
    assert producer.flush(60) == 0


def records(address: str, topic: str) -> int:
    """-1 while there is no such topic."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "counting"})
    try:
        described = consumer.list_topics(topic, timeout=30).topics[topic]
        if described.error is not None:
            return -1
        ends = [
            consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=30) for p in described.partitions
        ]
        return sum(high for _, high in ends)
    finally:
        consumer.close()


def wait_until(what: str, is_so) -> None:
    until = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < until, what
        time.sleep(2)


def committed(address: str, topic: str, partitions: int) -> int:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "readers"})
    try:
        asked = [TopicPartition(topic, index) for index in range(partitions)]
        return sum(max(0, each.offset) for each in consumer.committed(asked, timeout=30))
    finally:
        consumer.close()


def test_topics_are_mirrored_both_ways(own_server, kafka: str, tmp_path: Path) -> None:
    headrace = own_server.address
    make_topic(kafka, "from.kafka", 3)
    make_topic(headrace, "from.headrace", 4)
    fill(kafka, "from.kafka", 1000)
    fill(headrace, "from.headrace", 1000)
    consumer = Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe(["from.kafka"])
    seen = 0
    until = time.monotonic() + 60
    while seen < 1000 and time.monotonic() < until:
        seen += len(consumer.consume(200, 1))
    consumer.commit(asynchronous=False)
    consumer.close()
    assert seen == 1000

    jars = fetch(
        f"mirror-{KAFKA_VERSION}",
        [("org.apache.kafka", "connect-mirror", KAFKA_VERSION)],
        f"connect-mirror-{KAFKA_VERSION}.jar",
    )
    properties = tmp_path / "mirror.properties"
    properties.write_text(MIRROR.format(kafka=kafka, headrace=headrace))
    command = [
        java(),
        "-Xmx512M",
        "-cp",
        f"{jars}/*",
        "org.apache.kafka.connect.mirror.MirrorMaker",
        str(properties),
    ]
    with (tmp_path / "mirror.out").open("w") as said:
        mirror = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
        try:

            def are(count: int) -> bool:
                return (
                    records(headrace, "kafka.from.kafka") == records(kafka, "headrace.from.headrace") == count
                )

            wait_until("1,000 records each way", lambda: are(1000))
            fill(kafka, "from.kafka", 500)
            fill(headrace, "from.headrace", 500)
            wait_until("500 more while it runs", lambda: are(1500))
            wait_until("positions of groups follow", lambda: committed(headrace, "kafka.from.kafka", 3) > 0)
            assert mirror.poll() is None
        finally:
            mirror.terminate()
            mirror.wait(60)

    admin = AdminClient({"bootstrap.servers": headrace})
    resource = ConfigResource(ConfigResource.Type.TOPIC, "kafka.from.kafka")
    found = admin.describe_configs([resource])[resource].result(30)
    assert {name: found[name].value for name in CONFIGS} == CONFIGS
