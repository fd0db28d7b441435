"""Spark's unchanged Kafka source and sink with each of their options for the begin, the end and splits.

Part of `make compat`. Names and meanings: Spark's Structured Streaming + Kafka Integration Guide.
"""

from __future__ import annotations

import gc
import json
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

pytestmark = [
    pytest.mark.soak,
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
FIRST_TIMESTAMP = 1_700_000_000_000
PARTITIONS = 2
PER_PARTITION = 50
ALL = {(p, n) for p in range(PARTITIONS) for n in range(PER_PARTITION)}


@pytest.fixture(scope="session")
def spark():
    from headrace.tablelayer.spark.sessions import session

    return session("headrace compatibility", cores=2, memory="1g")


@pytest.fixture(autouse=True)
def _close_what_spark_left_open():
    yield
    gc.collect()


@pytest.fixture
def topic(server, unique):
    """Fifty records a partition, one per second of 2023, transactions and their markers in none of them."""
    name = unique("spark")
    admin = AdminClient({"bootstrap.servers": server.address})
    config = {"retention.ms": "-1", "message.timestamp.before.max.ms": str(2**63 - 1)}
    for future in admin.create_topics([NewTopic(name, PARTITIONS, config=config)]).values():
        future.result(10)
    fill(server.address, name, range(PER_PARTITION))
    return name


def fill(address, topic, numbers):
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True})
    for n in numbers:
        for p in range(PARTITIONS):
            producer.produce(
                topic,
                json.dumps([p, n]).encode(),
                key=f"k{n}".encode(),
                partition=p,
                timestamp=FIRST_TIMESTAMP + n * 1000,
                headers=[("n", str(n).encode()), ("none", None)],
            )
    assert producer.flush(20) == 0


def numbers(frame):
    return [tuple(json.loads(bytes(row.value))) for row in frame.collect()]


def batch(spark, server, **options):
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", server.address)
    return reader.options(**options).load()


def offsets(topic, *values):
    return json.dumps({topic: {str(p): value for p, value in enumerate(values)}})


def between(low, high):
    """Records of every partition with `low` <= n < `high`."""
    return sorted((p, n) for p in range(PARTITIONS) for n in range(low, high))


def test_a_batch_begins_and_ends_where_it_is_told(spark, server, topic):
    at = str(FIRST_TIMESTAMP + 19_500)
    until = str(FIRST_TIMESTAMP + 30_000)
    cases = [
        ({}, sorted(ALL)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, sorted(ALL)),
        (
            {"startingOffsets": offsets(topic, 10, -2), "endingOffsets": offsets(topic, 20, 5)},
            sorted([(0, n) for n in range(10, 20)] + [(1, n) for n in range(5)]),
        ),
        ({"startingOffsets": offsets(topic, 40, 45), "endingOffsets": offsets(topic, -1, -1)},
         sorted([(0, n) for n in range(40, 50)] + [(1, n) for n in range(45, 50)])),
        ({"startingTimestamp": at}, between(20, 50)),
        ({"startingTimestamp": at, "endingTimestamp": until}, between(20, 30)),
        (
            {"startingOffsetsByTimestamp": offsets(topic, int(at), int(until))},
            sorted([(0, n) for n in range(20, 50)] + [(1, n) for n in range(30, 50)]),
        ),
        (
            {"endingOffsetsByTimestamp": offsets(topic, int(at), int(until))},
            sorted([(0, n) for n in range(20)] + [(1, n) for n in range(30)]),
        ),
    ]  # fmt: skip
    for options, expected in cases:
        assert sorted(numbers(batch(spark, server, subscribe=topic, **options))) == expected, options


def test_a_time_after_the_last_record_is_an_error_or_the_end(spark, server, topic):
    late = str(FIRST_TIMESTAMP + 10**9)
    with pytest.raises(Exception, match="timestamp"):
        batch(spark, server, subscribe=topic, startingTimestamp=late).collect()
    options = {"startingTimestamp": late, "startingOffsetsByTimestampStrategy": "latest"}
    assert numbers(batch(spark, server, subscribe=topic, **options)) == []


def test_topics_by_assignment_and_by_pattern(spark, server, topic):
    assigned = batch(spark, server, assign=json.dumps({topic: [1]}))
    assert sorted(numbers(assigned)) == [(1, n) for n in range(PER_PARTITION)]
    assert sorted(numbers(batch(spark, server, subscribePattern=f"sp.rk{topic[5:]}"))) == sorted(ALL)


def test_partitions_are_split(spark, server, topic):
    found = batch(spark, server, subscribe=topic, minPartitions="8")
    assert found.rdd.getNumPartitions() == 8
    assert sorted(numbers(found)) == sorted(ALL)
    assert sorted(numbers(batch(spark, server, subscribe=topic, maxRecordsPerPartition="10"))) == sorted(ALL)


def test_columns(spark, server, topic):
    rows = (
        batch(spark, server, subscribe=topic, includeHeaders="true").where("partition = 0").orderBy("offset")
    )
    first = rows.first()
    assert (bytes(first.key), first.topic, first.offset, first.timestampType) == (b"k0", topic, 0, 0)
    assert int(first.timestamp.timestamp() * 1000) == FIRST_TIMESTAMP
    assert [(header.key, header.value and bytes(header.value)) for header in first.headers] == [
        ("n", b"0"),
        ("none", None),
    ]


def merged(batches):
    return sorted(number for found in batches for number in found)


def stream(spark, server, tmp_path, checkpoint="checkpoint", trigger=None, **options):
    """Run a stream to its end; return the numbers of each micro-batch."""
    batches = []
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", server.address)
    query = (
        reader.options(**options)
        .load()
        .writeStream.foreachBatch(lambda frame, _: batches.append(sorted(numbers(frame))))
        .option("checkpointLocation", str(tmp_path / checkpoint))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    return batches


def test_a_stream_takes_bounded_steps_and_resumes(spark, server, topic, tmp_path):
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
    steps = stream(spark, server, tmp_path, **options)
    assert merged(steps) == sorted(ALL)
    assert max(map(len, steps)) <= 30
    fill(server.address, topic, range(PER_PARTITION, PER_PARTITION + 5))
    assert merged(stream(spark, server, tmp_path, **options)) == between(50, 55)


def test_a_stream_begins_where_it_is_told(spark, server, topic, tmp_path):
    cases = [
        ({"startingOffsets": offsets(topic, 45, 48)}, [(0, n) for n in range(45, 50)] + [(1, 48), (1, 49)]),
        ({"startingTimestamp": str(FIRST_TIMESTAMP + 47_500)}, between(48, 50)),
        ({"startingOffsetsByTimestamp": offsets(topic, FIRST_TIMESTAMP + 49_000, FIRST_TIMESTAMP)},
         [(0, 49)] + [(1, n) for n in range(50)]),
        ({"startingOffsets": "latest"}, []),
    ]  # fmt: skip
    for number, (options, expected) in enumerate(cases):
        found = stream(spark, server, tmp_path, f"checkpoint-{number}", subscribe=topic, **options)
        assert merged(found) == sorted(expected), options


def test_a_stream_waits_for_enough(spark, server, topic, tmp_path):
    """The option minOffsetsPerTrigger holds a batch back until maxTriggerDelay."""
    seen = []
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", server.address)
    query = (
        reader.options(
            subscribe=topic, startingOffsets="latest", minOffsetsPerTrigger="20", maxTriggerDelay="6s"
        )
        .load()
        .writeStream.foreachBatch(lambda frame, _: seen.append((time.monotonic(), sorted(numbers(frame)))))
        .option("checkpointLocation", str(tmp_path / "waits"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    try:
        deadline = time.monotonic() + 60
        while not query.lastProgress:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        fill(server.address, topic, range(60, 62))
        fill(server.address, topic, range(62, 75))
        while sum(len(found) for _, found in seen) < 30:
            assert query.exception() is None
            assert time.monotonic() < deadline, seen
            time.sleep(0.1)
    finally:
        query.stop()
    assert merged(found for _, found in seen) == between(60, 75)


def test_lost_offsets_are_an_error_unless_told_otherwise(spark, server, topic, tmp_path):
    admin = AdminClient({"bootstrap.servers": server.address})
    options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "30"}
    assert merged(stream(spark, server, tmp_path, **options)) == sorted(ALL)
    fill(server.address, topic, range(50, 60))
    for future in admin.delete_records([TopicPartition(topic, p, 55) for p in range(PARTITIONS)]).values():
        future.result(10)
    with pytest.raises(Exception, match=r"(?i)data.*loss|lost|out of range"):
        stream(spark, server, tmp_path, **options)
    found = stream(spark, server, tmp_path, "second", failOnDataLoss="false", **options)
    assert merged(found) == between(55, 60)


def test_only_what_is_committed(spark, server, unique, tmp_path):
    name = unique("spark-transactions")
    producer = Producer({"bootstrap.servers": server.address, "transactional.id": unique("id")})
    producer.init_transactions(20)
    for number in range(6):
        producer.begin_transaction()
        for p in range(PARTITIONS):
            producer.produce(name, json.dumps([p, number]).encode(), partition=0)
        producer.flush(20)
        producer.commit_transaction(20) if number % 2 == 0 else producer.abort_transaction(20)
    committed = {"kafka.isolation.level": "read_committed"}
    expected = sorted((p, n) for p in range(PARTITIONS) for n in (0, 2, 4))
    assert sorted(numbers(batch(spark, server, subscribe=name, **committed))) == expected
    assert len(numbers(batch(spark, server, subscribe=name))) == 12
    found = stream(spark, server, tmp_path, subscribe=name, startingOffsets="earliest", **committed)
    assert merged(found) == expected


def test_the_sink_writes_every_column(spark, server, unique):
    name = unique("spark-sink")
    admin = AdminClient({"bootstrap.servers": server.address})
    for future in admin.create_topics([NewTopic(name, 3)]).values():
        future.result(10)
    frame = spark.range(30).selectExpr(
        f"'{name}' AS topic",
        "CAST(concat('k', id) AS BINARY) AS key",
        "CAST(concat('v', id) AS BINARY) AS value",
        "CAST(id % 3 AS INT) AS partition",
        "array(named_struct('key', 'h', 'value', CAST(id AS STRING)), named_struct('key', 'none', 'value', NULL))"
        " AS headers",
    )
    frame = frame.selectExpr(
        "topic", "key", "value", "partition",
        "transform(headers, h -> named_struct('key', h.key, 'value', CAST(h.value AS BINARY))) AS headers",
    )  # fmt: skip
    frame.write.format("kafka").option("kafka.bootstrap.servers", server.address).option(
        "includeHeaders", "true"
    ).save()
    consumer = Consumer(
        {"bootstrap.servers": server.address, "group.id": unique("check"), "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([name])
    found = set()
    deadline = time.monotonic() + 30
    while len(found) < 30 and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.add((message.partition(), message.key(), message.value(), tuple(message.headers())))
    consumer.close()
    assert found == {
        (n % 3, f"k{n}".encode(), f"v{n}".encode(), (("h", str(n).encode()), ("none", None)))
        for n in range(30)
    }
