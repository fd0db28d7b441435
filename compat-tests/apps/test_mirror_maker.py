"""Apache Kafka's MirrorMaker 2 between Apache Kafka and Headrace, in both directions: records, configurations, offsets.

Headrace is killed meanwhile. A table is mirrored too, without its Headrace options, as the guide describes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from apps.connect_worker import run_java, stop
from apps.loads import Attempt, consumed, produce, until

from bench.kafka_peer import KAFKA_VERSION, start_kafka
from bench.maven import fetch
from headrace import connect
from simulator.three_brokers import MIN_IN_SYNC, REPLICAS

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1200)]

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
# The guide's line: MirrorMaker's default, and the options of tables, which Kafka does not know.
EXCLUDED = (
    "follower\\\\.replication\\\\.throttled\\\\.replicas,leader\\\\.replication\\\\.throttled\\\\.replicas,"
    "message\\\\.timestamp\\\\.difference\\\\.max\\\\.ms,message\\\\.timestamp\\\\.type,"
    "unclean\\\\.leader\\\\.election\\\\.enable,min\\\\.insync\\\\.replicas,"
    "table\\\\..*"
)
MIRROR = """clusters=kafka,headrace
kafka.bootstrap.servers={kafka}
headrace.bootstrap.servers={headrace}
kafka->headrace.enabled=true
headrace->kafka.enabled=true
topics=from.*,shop.items
groups=.*
replication.factor=-1
checkpoints.topic.replication.factor=-1
heartbeats.topic.replication.factor=-1
offset-syncs.topic.replication.factor=-1
config.storage.replication.factor=-1
offset.storage.replication.factor=-1
status.storage.replication.factor=-1
refresh.topics.interval.seconds=5
refresh.groups.interval.seconds=5
sync.topic.configs.interval.seconds=5
emit.checkpoints.interval.seconds=5
sync.group.offsets.enabled=true
sync.group.offsets.interval.seconds=5
sync.topic.acls.enabled=true
config.properties.exclude={excluded}
dedicated.mode.enable.internal.rest=true
listeners=http://127.0.0.1:0
kafka.exactly.once.source.support=enabled
headrace.exactly.once.source.support=enabled
kafka.consumer.isolation.level=read_committed
headrace.consumer.isolation.level=read_committed
kafka.offset.flush.interval.ms=2000
headrace.offset.flush.interval.ms=2000
"""


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[str]:
    server = start_kafka(tmp_path / "kafka")
    yield server.address
    server.stop()


def make_topic(address: str, name: str, partitions: int, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic(name, partitions, replicas, config=CONFIGS)]).values():
        made.result(60)


def fill(address: str, topic: str, numbers: range) -> None:
    produce(address, topic, ((f"k{number}", number) for number in numbers))


def numbers_of(address: str, topic: str) -> list[int]:
    """Return the records of a mirrored topic, in order; none while the topic does not exist."""
    described = AdminClient({"bootstrap.servers": address}).list_topics(topic, timeout=30).topics[topic]
    return [] if described.error is not None else sorted(map(int, consumed(address, topic)))


def committed(address: str, topic: str, partitions: int) -> int:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "readers"})
    try:
        asked = [TopicPartition(topic, index) for index in range(partitions)]
        return sum(max(0, each.offset) for each in consumer.committed(asked, timeout=30))
    finally:
        consumer.close()


def read_all(address: str, topic: str, count: int) -> None:
    """Read as the group whose offsets are mirrored."""
    settings = {"bootstrap.servers": address, "group.id": "readers"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([topic])
    seen: list[object] = []

    def more() -> bool:
        seen.extend(consumer.consume(200, 1))
        return len(seen) >= count

    until(more, f"{count} records")
    consumer.commit(asynchronous=False)
    consumer.close()


def test_topics_and_a_table_are_mirrored_both_ways(
    own_server, kafka: str, tmp_path: Path, attempt: Attempt
) -> None:
    with attempt(
        "MirrorMaker 2", KAFKA_VERSION, "exactly once, both ways with Apache Kafka, the server killed twice"
    ):
        headrace = own_server.address
        make_topic(kafka, "from.kafka", 3, 1)
        make_topic(headrace, "from.headrace", 4, REPLICAS)
        with connect(headrace) as connection:
            connection.execute("CREATE DATABASE shop")
            connection.execute(
                "CREATE TABLE shop.items (id BIGINT, name STRING, PRIMARY KEY (id) NOT ENFORCED)"
                " WITH ('table.merge-engine' = 'first_row')"
            )
            connection.table("shop.items").upsert([{"id": n, "name": f"item {n}"} for n in range(100)])
        fill(kafka, "from.kafka", range(1000))
        fill(headrace, "from.headrace", range(1000))
        read_all(kafka, "from.kafka", 1000)

        jars = fetch(
            f"mirror-{KAFKA_VERSION}-log4j",
            [
                ("org.apache.kafka", "connect-mirror", KAFKA_VERSION),
                ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.1"),
                ("org.apache.logging.log4j", "log4j-core", "2.25.1"),
            ],
            f"connect-mirror-{KAFKA_VERSION}.jar",
        )
        folder = tmp_path / "mirror"
        folder.mkdir()
        properties = folder / "mirror.properties"
        properties.write_text(MIRROR.format(kafka=kafka, headrace=headrace, excluded=EXCLUDED))
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        mirror = run_java(folder, jars, main, [str(properties)], "768M")

        def said() -> str:
            return (folder / "log").read_text(errors="replace")

        def wait_for(count: int) -> None:
            def there() -> bool:
                assert mirror.poll() is None, said()[-3000:]
                mirrored = (
                    numbers_of(headrace, "kafka.from.kafka"),
                    numbers_of(kafka, "headrace.from.headrace"),
                )
                return all(len(each) >= count for each in mirrored)

            until(there, f"{count} records each way", said)

        try:
            wait_for(1000)
            for part in (1, 2):
                own_server.kill()
                fill(kafka, "from.kafka", range(part * 1000, part * 1000 + 500))
                own_server.start()
                fill(kafka, "from.kafka", range(part * 1000 + 500, part * 1000 + 1000))
                fill(headrace, "from.headrace", range(part * 1000, part * 1000 + 1000))
                wait_for((part + 1) * 1000)
            assert numbers_of(headrace, "kafka.from.kafka") == list(range(3000))
            assert numbers_of(kafka, "headrace.from.headrace") == list(range(3000))
            until(lambda: committed(headrace, "kafka.from.kafka", 3) > 0, "positions of the group", said)
            rows = until(lambda: consumed(kafka, "headrace.shop.items"), "the table", said)
            assert sorted(json.loads(row)["id"] for row in rows) == list(range(100))
        finally:
            stop(mirror)
        assert not re.findall(r"WARN.*table\..*", said())

        admin = AdminClient({"bootstrap.servers": headrace})
        resource = ConfigResource(ConfigResource.Type.TOPIC, "kafka.from.kafka")
        found = admin.describe_configs([resource])[resource].result(30)
        partitions = admin.list_topics("kafka.from.kafka", timeout=60).topics["kafka.from.kafka"].partitions
        assert [len(each.replicas) for each in partitions.values()] == 3 * [REPLICAS]
        ours = {"min.insync.replicas": str(MIN_IN_SYNC)}  # MirrorMaker leaves it out
        assert {name: found[name].value for name in CONFIGS} == {**CONFIGS, **ours}
