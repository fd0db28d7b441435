"""A partitioned table for Kafka clients: written as one topic, read by a pattern, through a kill -9."""

import json
import time

import pytest
from confluent_kafka import Consumer, Producer

from headrace.tablelayer.client import connect

ROWS = 600


@pytest.mark.slow
def test_produced_to_the_whole_read_by_pattern_through_a_kill(own_server):
    """Acknowledged rows are in their partition, once; a consumer of the pattern sees new partitions, and all rows."""
    name = "visits"
    server = own_server
    with connect(server.address) as connection:
        connection.execute(
            f"CREATE TABLE {name} (day STRING, id INT, PRIMARY KEY (day, id) NOT ENFORCED) PARTITIONED BY (day) "
            "WITH ('bucket.num' = '2')"
        )
    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": "readers",
            "auto.offset.reset": "earliest",
            "topic.metadata.refresh.interval.ms": 300,
        }
    )
    consumer.subscribe([f"^default\\.{name}\\..*"])
    producer = Producer(
        {
            "bootstrap.servers": server.address,
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.num.messages": 40,
        }
    )
    acknowledged = []

    def delivered(error, message):
        if error is None:
            acknowledged.append(json.loads(message.value()))

    seen = []

    def poll(seconds):
        message = consumer.poll(seconds)
        if message is not None and message.error() is None:
            seen.append((message.topic(), json.loads(message.value())))

    for index in range(ROWS):
        row = {"day": f"d{index // 150}", "id": index}
        producer.produce(f"default.{name}", json.dumps(row), on_delivery=delivered)
        if index % 20 == 0:
            producer.poll(0)
            poll(0.01)
        if index == ROWS // 2:
            server.kill()
            server.start()
    assert producer.flush(60) == 0
    assert len(acknowledged) == ROWS
    deadline = time.monotonic() + 60
    while len(seen) < ROWS and time.monotonic() < deadline:
        poll(0.2)
    consumer.close()
    assert sorted(row["id"] for _, row in seen) == list(range(ROWS))
    assert all(topic == f"default.{name}.{row['day']}" for topic, row in seen)
    with connect(server.address) as connection:
        table = connection.table(name)
        assert table.count() == ROWS
        assert sorted(table.to_arrow().column("id").to_pylist()) == list(range(ROWS))
        assert [each.name for each in table.partitions()] == ["d0", "d1", "d2", "d3"]
        connection.execute(f"ALTER TABLE {name} DROP PARTITION (day = 'd1')")
        server.kill()
        server.start()
        assert table.count() == ROWS - 150
