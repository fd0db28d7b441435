"""Four foreign clients behind two functions each: `produce(address, topic, compression, records)` and
`consume(address, topics) -> {topic: records}`, one partition per topic, from the beginning to the end.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from dataclasses import dataclass, replace

import kafka_python_codecs
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PythonPartition

DEADLINE_SECONDS = 60
kafka_python_codecs.install()


@dataclass(frozen=True)
class Record:
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None
    """None where the producing client cannot set one."""


class KafkaPython:
    """Cannot write a header without a value."""

    name = "kafka-python"

    @staticmethod
    def produce(address, topic, compression, records):
        records = [r for r in records if all(value is not None for _, value in r.headers)]
        producer = KafkaProducer(
            bootstrap_servers=address,
            compression_type=None if compression == "none" else compression,
            linger_ms=50,
        )
        futures = [
            producer.send(
                topic,
                value=r.value,
                key=r.key,
                headers=list(r.headers),
                partition=0,
                timestamp_ms=r.timestamp,
            )
            for r in records
        ]
        producer.flush(DEADLINE_SECONDS)
        assert [future.get(DEADLINE_SECONDS).offset for future in futures] == list(range(len(records)))
        producer.close()
        return records

    @staticmethod
    def consume(address, topics):
        consumer = KafkaConsumer(
            bootstrap_servers=address, auto_offset_reset="earliest", enable_auto_commit=False
        )
        parts = [PythonPartition(topic, 0) for topic in topics]
        consumer.assign(parts)
        ends = consumer.end_offsets(parts)
        found = {topic: [] for topic in topics}
        while any(consumer.position(part) < end for part, end in ends.items()):
            for part, records in consumer.poll(timeout_ms=1_000).items():
                found[part.topic].extend(
                    Record(r.key, r.value, tuple(r.headers), r.timestamp) for r in records
                )
        consumer.close()
        return found


class Confluent:
    name = "confluent-kafka"

    @staticmethod
    def produce(address, topic, compression, records):
        producer = Producer(
            {
                "bootstrap.servers": address,
                "compression.type": compression,
                "linger.ms": 50,
                "enable.idempotence": True,
            }
        )
        offsets = []

        def delivered(error, message):
            assert error is None, error
            offsets.append(message.offset())

        for r in records:
            producer.produce(
                topic,
                value=r.value,
                key=r.key,
                headers=list(r.headers),
                partition=0,
                timestamp=r.timestamp,
                on_delivery=delivered,
            )
        assert producer.flush(DEADLINE_SECONDS) == 0
        assert sorted(offsets) == list(range(len(records)))
        return records

    @staticmethod
    def consume(address, topics):
        consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "unused",
                "enable.partition.eof": False,
                "check.crcs": True,
            }
        )
        ends = {
            topic: consumer.get_watermark_offsets(ConfluentPartition(topic, 0), timeout=DEADLINE_SECONDS)[1]
            for topic in topics
        }
        consumer.assign([ConfluentPartition(topic, 0, 0) for topic in topics])
        found = {topic: [] for topic in topics}
        while any(len(found[topic]) < end for topic, end in ends.items()):
            message = consumer.poll(DEADLINE_SECONDS)
            assert message is not None
            assert message.error() is None, message.error()
            found[message.topic()].append(
                Record(message.key(), message.value(), tuple(message.headers() or ()), message.timestamp()[1])
            )
        consumer.close()
        return found


class Aiokafka:
    name = "aiokafka"

    @staticmethod
    def produce(address, topic, compression, records):
        async def main():
            producer = AIOKafkaProducer(
                bootstrap_servers=address,
                compression_type=None if compression == "none" else compression,
                linger_ms=50,
                enable_idempotence=True,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic, r.value, r.key, partition=0, timestamp_ms=r.timestamp, headers=list(r.headers)
                    )
                    for r in records
                ]
                found = [(await future).offset for future in futures]
                assert found == list(range(len(records)))
            finally:
                await producer.stop()

        asyncio.run(main())
        return records

    @staticmethod
    def consume(address, topics):
        async def main():
            consumer = AIOKafkaConsumer(
                bootstrap_servers=address, auto_offset_reset="earliest", check_crcs=True
            )
            await consumer.start()
            try:
                parts = [AioPartition(topic, 0) for topic in topics]
                consumer.assign(parts)
                ends = await consumer.end_offsets(parts)
                found = {topic: [] for topic in topics}
                while any(len(found[part.topic]) < end for part, end in ends.items()):
                    for part, records in (await consumer.getmany(timeout_ms=1_000)).items():
                        found[part.topic].extend(
                            Record(r.key, r.value, tuple(r.headers), r.timestamp) for r in records
                        )
                return found
            finally:
                await consumer.stop()

        return asyncio.run(main())


class Kcat:
    """Text only: keys and values without tabs and newlines, the same headers for all, no timestamps."""

    name = "kcat"
    binary = shutil.which("kcat") or shutil.which("kafkacat")

    @classmethod
    def produce(cls, address, topic, compression, records):
        sent = [
            replace(r, headers=(("source", b"kcat"),), timestamp=None)
            for r in records
            if r.key is not None and r.value and len(r.value) < 1_000
        ]
        lines = b"".join(r.key + b"\t" + r.value + b"\n" for r in sent)
        command = [cls.binary, "-P", "-b", address, "-t", topic, "-p", "0", "-K", "\t", "-z", compression]
        subprocess.run(
            [*command, "-H", "source=kcat", "-X", "linger.ms=50"],
            input=lines,
            check=True,
            timeout=DEADLINE_SECONDS,
        )
        return sent

    @classmethod
    def consume(cls, address, topics):
        found = {}
        for topic in topics:
            command = [
                cls.binary,
                "-C",
                "-b",
                address,
                "-t",
                topic,
                "-p",
                "0",
                "-o",
                "beginning",
                "-e",
                "-q",
                "-J",
            ]
            output = subprocess.run(command, check=True, capture_output=True, timeout=DEADLINE_SECONDS).stdout
            found[topic] = [cls._record(json.loads(line)) for line in output.splitlines()]
        return found

    @staticmethod
    def _record(line):
        def data(text):
            return None if text is None else text.encode()

        names = line.get("headers", [])
        headers = tuple((names[i], data(names[i + 1])) for i in range(0, len(names), 2))
        return Record(data(line["key"]), data(line["payload"]), headers, line["ts"])


CLIENTS = [KafkaPython, Confluent, Aiokafka, Kcat]
