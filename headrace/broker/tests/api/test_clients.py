"""Real clients against a real process: negotiation, sockets and all layers together."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Process:
    """`python -m headrace.broker` on a free port."""

    def __init__(self, data: Path, *arguments: str, listen: str = "127.0.0.1:0") -> None:
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - a pipe would fill and stop the broker
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "headrace.broker", "--listen", listen, "--data", str(data)),
                *("--set", "group.initial.rebalance.delay.ms=0", *arguments),
            ],
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.address = line.rpartition(" ")[2].strip() if line.startswith("ready on ") else ""

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Stop it; return the exit code and stderr."""
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        self.process.communicate(timeout=60)
        self._stderr.seek(0)
        with self._stderr as file:
            return self.process.returncode, file.read()


@contextmanager
def running(data: Path, *arguments: str) -> Iterator[str]:
    process = Process(data, *arguments)
    try:
        assert process.address, process.stop()
        yield process.address
    finally:
        code, stderr = process.stop()
    assert (code, stderr) == (0, "")


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    with running(tmp_path_factory.mktemp("broker")) as address:
        yield address


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka_produces_and_consumes(address, codec) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    topic = f"librdkafka-{codec}"
    producer = confluent.Producer(
        {"bootstrap.servers": address, "compression.type": codec, "enable.idempotence": True}
    )
    delivered = []
    for number in range(500):
        producer.produce(
            topic,
            key=b"k%d" % (number % 7),
            value=b"value %d " % number * 5,
            headers=[("h", b"1"), ("n", None)],
            on_delivery=lambda error, message: delivered.append((error, message.offset())),
        )
    assert producer.flush(60) == 0
    assert {error for error, _ in delivered} == {None}
    assert sorted(offset for _, offset in delivered) == list(range(500))
    consumer = confluent.Consumer(
        {"bootstrap.servers": address, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    values = []
    while len(values) < 500:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        assert message.headers() == [("h", b"1"), ("n", None)]
        values.append(message.value())
    assert values == [b"value %d " % number * 5 for number in range(500)]
    consumer.commit(asynchronous=False)
    assert consumer.committed([confluent.TopicPartition(topic, 0)])[0].offset == 500
    consumer.close()


def test_librdkafka_administers(address) -> None:
    pytest.importorskip("confluent_kafka")
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        NewTopic,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics([NewTopic("admin-c", 2, 1, config={"retention.ms": "12345"})]).values():
        future.result(60)
    for future in admin.create_partitions([NewPartitions("admin-c", 5)]).values():
        future.result(60)
    resource = ConfigResource(
        ResourceType.TOPIC,
        "admin-c",
        incremental_configs=[
            ConfigEntry("segment.bytes", "100000", incremental_operation=AlterConfigOpType.SET)
        ],
    )
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(60)
    (future,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "admin-c")]).values()
    configs = future.result(60)
    assert (configs["retention.ms"].value, configs["segment.bytes"].value) == ("12345", "100000")
    assert len(admin.list_topics(timeout=60).topics["admin-c"].partitions) == 5
    assert [node.id for node in admin.describe_cluster().result(60).nodes] == [0]
    for future in admin.delete_topics(["admin-c"]).values():
        future.result(60)
    assert "admin-c" not in admin.list_topics(timeout=60).topics


def test_kafka_python_produces_and_consumes(address) -> None:
    kafka = pytest.importorskip("kafka")
    producer = kafka.KafkaProducer(bootstrap_servers=address, acks="all", linger_ms=5)
    futures = [producer.send("kafka-python", b"%d" % number, key=b"k") for number in range(300)]
    offsets = [future.get(timeout=60).offset for future in futures]
    assert offsets == list(range(300))
    producer.close()
    consumer = kafka.KafkaConsumer(
        "kafka-python",
        bootstrap_servers=address,
        group_id="kafka-python",
        auto_offset_reset="earliest",
        consumer_timeout_ms=60_000,
    )
    values = []
    for message in consumer:
        values.append(message.value)
        if len(values) == 300:
            break
    assert values == [b"%d" % number for number in range(300)]
    partition = kafka.TopicPartition("kafka-python", 0)
    assert consumer.end_offsets([partition]) == {partition: 300}
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    consumer.close()


def test_kafka_python_administers(address) -> None:
    pytest.importorskip("kafka")
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([NewTopic("admin-k", 3, 1)])
    assert "admin-k" in admin.list_topics()
    (described,) = admin.describe_topics(["admin-k"])
    assert len(described["partitions"]) == 3
    admin.delete_topics(["admin-k"])
    assert "admin-k" not in admin.list_topics()
    admin.close()


async def test_aiokafka_speaks_old_versions(address) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=address, enable_idempotence=True, acks="all")
    await producer.start()
    sent = [await producer.send("aiokafka", b"%d" % number) for number in range(200)]
    metadata = await asyncio.gather(*sent)
    assert [m.offset for m in metadata] == list(range(200))
    await producer.stop()
    consumer = aiokafka.AIOKafkaConsumer(
        "aiokafka", bootstrap_servers=address, group_id="aiokafka", auto_offset_reset="earliest"
    )
    await consumer.start()
    async with asyncio.timeout(60):
        values = [(await consumer.getone()).value for _ in range(200)]
    assert values == [b"%d" % number for number in range(200)]
    await consumer.commit()
    await consumer.stop()


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat_produces_lists_and_consumes(address) -> None:
    def kcat(*arguments: str, text: str = "") -> str:
        return subprocess.run(
            ["kcat", "-b", address, *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout

    kcat("-P", "-t", "kcat", "-K:", text="a:1\nb:2\nc:3\n")
    assert kcat("-C", "-t", "kcat", "-e", "-o", "beginning", "-f", "%o %k %s\n") == "0 a 1\n1 b 2\n2 c 3\n"
    assert 'topic "kcat" with 1 partitions' in kcat("-L")
    assert kcat("-Q", "-t", "kcat:0:-1").strip() == "kcat [0] offset 3"


def test_a_consumer_at_the_tail_hears_of_a_record_at_once(address) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    producer = confluent.Producer({"bootstrap.servers": address, "linger.ms": 0})
    producer.produce("tail", b"first")
    assert producer.flush(60) == 0
    consumer = confluent.Consumer(
        {"bootstrap.servers": address, "group.id": "tail", "fetch.wait.max.ms": 50_000}
    )
    consumer.assign([confluent.TopicPartition("tail", 0, 0)])
    assert consumer.poll(60).value() == b"first"
    time.sleep(0.2)  # its next fetch waits at the broker now
    producer.produce("tail", b"second")
    assert producer.flush(15) == 0
    message = consumer.poll(25)
    assert message is not None, "it is told when its fetch has waited for as long as it may"
    assert message.value() == b"second"
    consumer.close()


@pytest.mark.slow
def test_acknowledged_records_survive_kills(tmp_path) -> None:
    """Kill the server while a producer writes: acknowledged records are there afterwards, once and in order."""
    confluent = pytest.importorskip("confluent_kafka")
    acknowledged: list[int] = []
    number = 0
    for _ in range(3):
        process = Process(tmp_path)
        producer = confluent.Producer({"bootstrap.servers": process.address, "acks": "all", "linger.ms": 1})
        before, began = len(acknowledged), time.monotonic()
        while time.monotonic() < began + 0.4 or len(acknowledged) < before + 20:
            assert time.monotonic() < began + 60

            def delivered(error, message, number=number):
                if error is None:
                    acknowledged.append(number)

            producer.produce("t", b"%d" % number, on_delivery=delivered)
            number += 1
            producer.poll(0.001)
        process.stop(signal.SIGKILL)
        producer.poll(0.1)
        producer.purge()
        producer.flush(1)
    with running(tmp_path) as address:
        consumer = confluent.Consumer(
            {"bootstrap.servers": address, "group.id": "g", "enable.partition.eof": True}
        )
        consumer.assign([confluent.TopicPartition("t", 0, 0)])
        found = []
        while True:
            message = consumer.poll(60)
            if message.error() is not None:
                break
            found.append(int(message.value()))
        consumer.close()
    assert len(acknowledged) > 50
    assert set(acknowledged) <= set(found)
    assert found == sorted(set(found))


@pytest.mark.slow
def test_a_clean_stop_is_quick_and_what_cannot_start_says_why(tmp_path) -> None:
    first = Process(tmp_path / "one")
    second = Process(tmp_path / "one")
    assert second.address == ""
    code, stderr = second.stop()
    assert code == 1
    assert "in use by another broker" in stderr
    assert stderr.count("\n") == 1
    third = Process(tmp_path / "two", listen=first.address)
    code, stderr = third.stop()
    assert code == 1
    assert f"cannot listen on {first.address}" in stderr
    fourth = Process(tmp_path / "two", "--set", "num.partition=3")
    code, stderr = fourth.stop()
    assert code == 1
    assert "did you mean 'num.partitions'" in stderr
    assert first.stop() == (0, "")
