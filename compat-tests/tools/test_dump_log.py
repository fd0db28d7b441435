"""The files of a plain topic are in Kafka's format: Kafka's own dump tool reads them without complaint.

Kafka's published jars are fetched on the first run (`python -m bench.kafka_peer`); Java is needed.
"""

from __future__ import annotations

import json
import re
import time

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from foreign_clients import DEADLINE_SECONDS
from java_tools import NEEDED, JavaTools

RECORDS = 3_000

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), NEEDED]


@pytest.fixture(scope="session")
def dump_tool():
    """Run Kafka's DumpLogSegments on files; return its output."""
    java = JavaTools()
    return lambda *arguments: java.run("DumpLogSegments", *arguments)


def produce(address: str, topic: str, compression: str) -> None:
    producer = Producer(
        {
            "bootstrap.servers": address,
            "compression.type": compression,
            "enable.idempotence": True,
            "batch.size": 4_000,
            "linger.ms": 20,
        }
    )
    for number in range(RECORDS):
        value = json.dumps({"number": number, "padding": "x" * (number % 50)})
        producer.produce(topic, value, key=str(number), timestamp=1_700_000_000_000 + number, partition=0)
    assert producer.flush(DEADLINE_SECONDS) == 0


@pytest.mark.one_process("the files in its data directory")
def test_kafka_reads_segments_indexes_and_producer_snapshots(own_server, dump_tool) -> None:
    admin = AdminClient({"bootstrap.servers": own_server.address})
    config = {"segment.bytes": "65536", "index.interval.bytes": "1024", "retention.ms": "-1"}
    admin.create_topics([NewTopic("plain", 1, 1, config=config)])["plain"].result(DEADLINE_SECONDS)
    for compression in ("none", "gzip", "snappy", "lz4", "zstd"):
        produce(own_server.address, "plain", compression)
    own_server.restart()
    produce(own_server.address, "plain", "none")
    assert own_server.stop() == 0

    folder = own_server.directory / "data" / "plain-0"
    segments = sorted(map(str, folder.glob("*.log")))
    assert len(segments) > 3

    snapshots = sorted(map(str, folder.glob("*.snapshot")))
    assert snapshots
    printed = dump_tool("--files", ",".join(segments + snapshots), "--print-data-log", "--deep-iteration")
    assert "producerId: " in printed[printed.index(f"Dumping {snapshots[0]}") :]
    offsets = [int(text) for text in re.findall(r"^\| offset: (\d+) ", printed, re.MULTILINE)]
    assert offsets == list(range(6 * RECORDS))
    assert "isvalid: false" not in printed
    assert printed.count("isvalid: true") == printed.count("baseOffset:")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        assert f"compresscodec: {codec}" in printed
    numbers = [int(text) for text in re.findall(r'"number": (\d+)', printed)]
    assert numbers == 6 * list(range(RECORDS))

    indexes = sorted(map(str, [*folder.glob("*.index"), *folder.glob("*.timeindex")]))
    assert indexes
    checked = dump_tool("--files", ",".join(indexes), "--index-sanity-check")
    assert checked.count("passed sanity check.") == len(indexes), checked
    walked = dump_tool("--files", ",".join(indexes), "--verify-index-only")
    for complaint in ("mismatch", "Found timestamp", "out of order", "should be in"):
        assert complaint not in walked.lower(), walked


@pytest.mark.one_process("the files in its data directory")
def test_kafka_reads_control_batches_aborted_transactions_and_both_journals(own_server, dump_tool) -> None:
    admin = AdminClient({"bootstrap.servers": own_server.address})
    admin.create_topics([NewTopic("plain", 1, 1)])["plain"].result(DEADLINE_SECONDS)
    producer = Producer({"bootstrap.servers": own_server.address, "transactional.id": "dumped"})
    producer.init_transactions(DEADLINE_SECONDS)
    consumer = Consumer({"bootstrap.servers": own_server.address, "group.id": "g"})
    for number in range(4):
        producer.begin_transaction()
        producer.produce("plain", f"{number}", partition=0)
        positions = [TopicPartition("plain", 0, number)]
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), DEADLINE_SECONDS)
        assert producer.flush(DEADLINE_SECONDS) == 0  # an abort drops unsent records
        end = producer.abort_transaction if number % 2 else producer.commit_transaction
        end(DEADLINE_SECONDS)
    consumer.close()
    assert own_server.stop() == 0
    data = own_server.directory / "data"

    files = [str(data / "plain-0" / f"{0:020d}.{kind}") for kind in ("log", "txnindex")]
    printed, _, index = dump_tool("--files", ",".join(files), "--print-data-log").partition(
        f"Dumping {files[1]}"
    )
    assert printed.count("endTxnMarker: COMMIT") == printed.count("endTxnMarker: ABORT") == 2
    assert "isvalid: false" not in printed
    found = re.findall(r"firstOffset\D+(\d+)\D+lastOffset\D+(\d+)\D+lastStableOffset\D+(\d+)", index)
    assert found == [("2", "3", "4"), ("6", "7", "8")], index

    def journal(topic: str, decoder: str) -> str:
        files = [str(path) for path in data.glob(f"{topic}-*/*.log") if path.stat().st_size]
        return dump_tool("--files", ",".join(files), decoder)

    states = journal("__transaction_state", "--transaction-log-decoder")
    assert states.count('"transactionalId":"dumped"') >= 12
    for status in (0, 1, 2, 3, 4, 5):
        assert f'"transactionStatus":{status}' in states, states
    offsets = journal("__consumer_offsets", "--offsets-decoder")
    assert offsets.count("isTransactional: true isControl: false") == 4
    assert offsets.count("endTxnMarker: ABORT") == 2


@pytest.mark.one_process("the files in its data directory")
@pytest.mark.soak
def test_kafka_reads_compacted_segments(server_process_class, dump_tool, tmp_path) -> None:
    server = server_process_class(
        tmp_path, **{"log.initial.task.delay.ms": "0", "log.cleaner.backoff.ms": "100"}
    ).start()
    admin = AdminClient({"bootstrap.servers": server.address})
    config = {
        "cleanup.policy": "compact",
        "segment.bytes": "65536",
        "index.interval.bytes": "1024",
        "min.cleanable.dirty.ratio": "0.01",
    }
    admin.create_topics([NewTopic("compacted", 1, 1, config=config)])["compacted"].result(DEADLINE_SECONDS)
    for compression in ("none", "gzip", "snappy", "lz4", "zstd"):
        produce(server.address, "compacted", compression)
    checkpoint = tmp_path / "data" / "cleaner-offset-checkpoint"
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not checkpoint.exists() or int(checkpoint.read_text().split()[-1]) < 3 * RECORDS:
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.1)
    assert server.stop() == 0

    folder = tmp_path / "data" / "compacted-0"
    segments = sorted(map(str, folder.glob("*.log")))
    printed = dump_tool("--files", ",".join(segments), "--print-data-log", "--deep-iteration")
    offsets = [int(text) for text in re.findall(r"^\| offset: (\d+) ", printed, re.MULTILINE)]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == 5 * RECORDS - 1
    assert len(offsets) < 4 * RECORDS
    assert "isvalid: false" not in printed
    keys = re.findall(r" key: (\d+) ", printed)
    assert set(keys) == {str(number) for number in range(RECORDS)}
    indexes = sorted(map(str, [*folder.glob("*.index"), *folder.glob("*.timeindex")]))
    walked = dump_tool("--files", ",".join(indexes), "--verify-index-only")
    for complaint in ("mismatch", "Found timestamp", "out of order", "should be in"):
        assert complaint not in walked.lower(), walked
