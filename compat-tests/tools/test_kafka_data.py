"""Data directories both ways: Apache Kafka's partitions read here, ours read by Apache Kafka.

The real broker in its published jars (`bench/kafka_peer`); Java is needed. Records of every codec, keys and headers, a
compacted topic with holes, a committed and an aborted transaction.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from foreign_clients import DEADLINE_SECONDS

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
QUIET = {"log_level": 0}  # the test stops servers
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

Row = tuple[int, bytes | None, bytes | None, int, list[tuple[str, bytes]] | None]


def fill(address: str, compacted: dict[str, str]) -> None:
    """Topics `plain` and `compacted` with the same records on any broker."""
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    topics = [
        NewTopic("plain", 2, 1, config=KEPT),
        NewTopic("compacted", 1, 1, config=compacted),
    ]
    for future in admin.create_topics(topics).values():
        future.result(DEADLINE_SECONDS)
    for codec in CODECS:
        producer = Producer(
            {
                "bootstrap.servers": address,
                "compression.type": codec,
                "linger.ms": 5,
                "batch.size": 3000,
                **QUIET,
            }
        )
        for number in range(600):
            stamp = 1_700_000_000_000 + number
            producer.produce(
                "plain",
                f"{codec} {number}",
                key=str(number),
                timestamp=stamp,
                partition=number % 2,
                headers=[("codec", codec.encode())],
            )
            value = None if number % 50 == 7 else f"{codec} {number} " + "x" * 40
            producer.produce("compacted", value, key=str(number % 100), timestamp=stamp, partition=0)
        assert producer.flush(DEADLINE_SECONDS) == 0
    for number, commit in enumerate((True, False)):
        producer = Producer({"bootstrap.servers": address, "transactional.id": f"tx-{number}", **QUIET})
        producer.init_transactions(DEADLINE_SECONDS)
        producer.begin_transaction()
        for index in range(10):
            producer.produce("plain", f"transaction {number} {index}", partition=0)
        producer.flush(DEADLINE_SECONDS)
        (producer.commit_transaction if commit else producer.abort_transaction)(DEADLINE_SECONDS)


def read(address: str, topic: str, partition: int) -> list[Row]:
    """Return the records that a read_committed consumer sees."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    rows: list[Row] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            if message.error().code() == -191:  # _PARTITION_EOF
                break
            continue
        rows.append(
            (message.offset(), message.key(), message.value(), message.timestamp()[1], message.headers())
        )
    consumer.close()
    return rows


def everything(address: str) -> dict[tuple[str, int], list[Row]]:
    return {name: read(address, *name) for name in (("plain", 0), ("plain", 1), ("compacted", 0))}


def wait_until_compacted(folder: Path, address: str) -> None:
    """Wait until some offsets are gone."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if len(read(address, "compacted", 0)) < 1500:
            return
        time.sleep(1)
    pytest.fail(f"nothing was compacted in {folder}: {sorted(p.name for p in folder.iterdir())}")


@pytest.fixture
def kafka(tmp_path):
    from bench import kafka_peer

    class Kafka:
        data = tmp_path / "kafka" / "data"

        def start(self):
            folder = tmp_path / "kafka"
            self.server = kafka_peer.start_kafka(folder)
            return self.server.address

        def stop(self):
            self.server.stop()

    peer = Kafka()
    yield peer
    peer.stop()


KEPT = {"retention.ms": "-1"}  # the records' timestamps are old
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "300",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "300",
}


@pytest.mark.one_process("its data directory is filled while it is stopped")
def test_data_written_by_kafka_is_imported(kafka, own_server) -> None:
    own_server.stop()
    address = kafka.start()
    fill(address, COMPACTED)
    time.sleep(1)
    producer = Producer({"bootstrap.servers": address, **QUIET})
    producer.produce("compacted", "last", key="last", partition=0)
    producer.flush(DEADLINE_SECONDS)
    wait_until_compacted(kafka.data / "compacted-0", address)
    expected = everything(address)
    kafka.stop()

    command = [sys.executable, "-m", "headrace.tablelayer.cli.main", "topics", "import"]
    command += ["--kafka-data", str(kafka.data), "--data", str(own_server.directory / "data")]
    result = subprocess.run(
        [*command, "--set", "retention.ms=-1"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0].startswith("compacted: 1 partitions")
    own_server.start()
    found = everything(own_server.address)
    assert {name: len(rows) for name, rows in found.items()} == {
        name: len(rows) for name, rows in expected.items()
    }
    assert found == expected
    # The log goes on from there, and survives a kill.
    end = expected["plain", 1][-1][0]
    producer = Producer({"bootstrap.servers": own_server.address, **QUIET})
    producer.produce("plain", "more", partition=1)
    assert producer.flush(DEADLINE_SECONDS) == 0
    own_server.restart()
    rows = read(own_server.address, "plain", 1)
    assert rows[:-1] == expected["plain", 1]
    assert (rows[-1][0], rows[-1][2]) == (end + 1, b"more")
    own_server.stop()
    again = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert again.returncode != 0
    assert "already exists" in again.stderr


@pytest.mark.one_process("its data directory is given to Kafka")
def test_data_written_by_headrace_is_read_by_kafka(kafka, server_process_class, tmp_path) -> None:
    folder = tmp_path / "ours"
    folder.mkdir()
    ours = server_process_class(
        folder, **{"log.initial.task.delay.ms": "0", "log.cleaner.backoff.ms": "200"}
    ).start()
    fill(ours.address, COMPACTED)
    time.sleep(1)
    producer = Producer({"bootstrap.servers": ours.address, **QUIET})
    producer.produce("compacted", "last", key="last", partition=0)
    producer.flush(DEADLINE_SECONDS)
    wait_until_compacted(folder / "data" / "compacted-0", ours.address)
    assert ours.stop() == 0
    ours.start()  # the cleaner must not run between this reading and Kafka's
    expected = everything(ours.address)
    assert ours.stop() == 0

    address = kafka.start()
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    topics = [
        NewTopic("plain", 2, 1, config=KEPT),
        NewTopic("compacted", 1, 1, config={"cleanup.policy": "compact"}),
    ]
    for future in admin.create_topics(topics).values():
        future.result(DEADLINE_SECONDS)
    kafka.stop()
    for name in ("plain-0", "plain-1", "compacted-0"):
        target = kafka.data / name
        for path in target.iterdir():
            if path.name != "partition.metadata":  # the topic's id in Kafka's own metadata
                path.unlink()
        for path in (folder / "data" / name).iterdir():
            if path.suffix in (".log", ".index", ".timeindex", ".txnindex", ".snapshot"):
                shutil.copyfile(path, target / path.name)
    (kafka.data / ".kafka_cleanshutdown").unlink(missing_ok=True)  # so that Kafka checks the files
    address = kafka.start()
    found = everything(address)
    assert {name: len(rows) for name, rows in found.items()} == {
        name: len(rows) for name, rows in expected.items()
    }
    assert found == expected
    producer = Producer({"bootstrap.servers": address, **QUIET})
    producer.produce("plain", "more", partition=1)
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert read(address, "plain", 1)[-1][2] == b"more"
