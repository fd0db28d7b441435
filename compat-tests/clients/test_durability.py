"""kill -9 of the server in the middle of producing: acknowledged records are there once, in order."""

import asyncio
import itertools
import threading
import time

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaProducer

from simulator.three_brokers import REPLICAS

PART = 500
KILLS = 2


def paced(stop):
    """Yield 0, 1, 2, ... at about 2,000 a second, until `stop` is set."""
    for index in itertools.count():
        if stop.is_set():
            return
        yield index
        if index % 20 == 0:
            time.sleep(0.01)


def produce_confluent(address, topic, acknowledged, stop):
    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.num.messages": 50,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 50,
        }
    )

    def delivered(error, message):
        assert error is None, error
        acknowledged.append((message.offset(), message.value()))

    for index in paced(stop):
        producer.produce(topic, b"%d" % index, partition=0, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(60) == 0


def produce_kafka_python(address, topic, acknowledged, stop):
    producer = KafkaProducer(
        bootstrap_servers=address,
        enable_idempotence=True,
        linger_ms=5,
        batch_size=1_000,
        retry_backoff_ms=50,
        reconnect_backoff_max_ms=200,
    )
    futures = []
    for index in paced(stop):
        futures.append(producer.send(topic, b"%d" % index, partition=0))
        futures[-1].add_callback(lambda sent, value=b"%d" % index: acknowledged.append((sent.offset, value)))
    for future in futures:
        future.get(60)
    producer.close()


def produce_aiokafka(address, topic, acknowledged, stop):
    async def main():
        producer = AIOKafkaProducer(
            bootstrap_servers=address,
            enable_idempotence=True,
            linger_ms=5,
            max_batch_size=1_000,
            retry_backoff_ms=50,
        )
        await producer.start()
        futures = []
        for index in itertools.count():
            if stop.is_set():
                break
            futures.append(await producer.send(topic, b"%d" % index, partition=0))
            value = b"%d" % index
            futures[-1].add_done_callback(
                lambda done, value=value: acknowledged.append((done.result().offset, value))
            )
            if index % 20 == 0:
                await asyncio.sleep(0.01)
        await asyncio.gather(*futures)
        await producer.stop()

    asyncio.run(main())


def read_all(address, topic):
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused"})
    part = TopicPartition(topic, 0, 0)
    _, end = consumer.get_watermark_offsets(part, timeout=60)
    consumer.assign([part])
    found = []
    while len(found) < end:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None, message.error()
        found.append((message.offset(), message.value()))
    consumer.close()
    return found


@pytest.mark.parametrize(
    "produce",
    [
        pytest.param(produce_confluent, id="confluent"),
        pytest.param(produce_kafka_python, id="kafka-python", marks=pytest.mark.soak),
        pytest.param(produce_aiokafka, id="aiokafka", marks=pytest.mark.soak),
    ],
)
def test_idempotent_producer_survives_kill_9(own_server, unique, wait_until, produce):
    topic = unique("topic")
    admin = AdminClient({"bootstrap.servers": own_server.address})
    admin.create_topics([NewTopic(topic, 1, REPLICAS)])[topic].result(60)
    acknowledged, failures = [], []
    stop = threading.Event()

    def run():
        try:
            produce(own_server.address, topic, acknowledged, stop)
        except BaseException as error:  # noqa: BLE001 - told in the test's own thread
            failures.append(error)

    def wait_for_more():
        enough = len(acknowledged) + PART
        wait_until(lambda: failures or len(acknowledged) > enough, "more records to be acknowledged")
        assert not failures, failures

    producer = threading.Thread(target=run)
    producer.start()
    try:
        for _ in range(KILLS):
            wait_for_more()
            own_server.kill()
            before = list(acknowledged)
            own_server.start()
            stored = dict(read_all(own_server.address, topic))
            assert all(stored.get(offset) == value for offset, value in before), "acknowledged, but gone"
        wait_for_more()
    finally:
        stop.set()
        producer.join(90)
    assert not failures, failures
    found = read_all(own_server.address, topic)
    assert found == sorted(acknowledged)
    assert [value for _, value in found] == [b"%d" % index for index in range(len(found))], (
        "each once, in order"
    )


def test_topics_and_configs_survive_a_clean_stop_and_a_kill(own_server, unique):
    topic = unique("topic")
    admin = AdminClient({"bootstrap.servers": own_server.address})
    new = NewTopic(topic, 3, REPLICAS, config={"retention.ms": "123456789"})
    admin.create_topics([new])[topic].result(60)
    producer = Producer({"bootstrap.servers": own_server.address})
    producer.produce(topic, b"kept", partition=0)
    assert producer.flush(60) == 0
    before = admin.list_topics(timeout=60).topics[topic]
    assert own_server.stop() == 0
    own_server.start()
    own_server.restart()
    after = AdminClient({"bootstrap.servers": own_server.address}).list_topics(timeout=60).topics[topic]
    assert len(after.partitions) == len(before.partitions) == 3
    assert read_all(own_server.address, topic) == [(0, b"kept")]
