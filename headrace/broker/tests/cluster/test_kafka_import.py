"""`topics import` of folders as Kafka leaves them, written here with our own log, which has Kafka's layout."""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from headrace.broker.cluster.kafka_import import import_topics
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.log.config import LogConfig
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.metadata.topic_config import TopicConfigs
from headrace.broker.runtime.ports import SystemClock, SystemEntropy
from headrace.broker.stores.embedded import EmbeddedStore
from headrace.protocol.errors import KafkaError
from headrace.protocol.records.encode import Record, build_batch
from headrace.protocol.records.header import iter_headers
from simulator.direct import direct_broker, values_of
from simulator.fsyncs import recorded_fsyncs
from simulator.log import LogWorld, clean_log

TOPIC_ID = uuid.UUID(int=77)
OURS = {"recovery-checkpoint", "clean-shutdown"}


class Kafka:
    """The data directory of a stopped Kafka."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()
        (path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
        (path / ".lock").write_bytes(b"")

    def partition(self, name: str, count: int = 30, *, epoch: int = 3, **config) -> Path:
        """`count` batches of one record "<name> <n>" each, keys 0 to 4, in several segments."""
        folder = self.path / name
        folder.mkdir()
        log = PartitionLog.open(
            folder, LogConfig(segment_bytes=600, index_interval_bytes=100, **config), clock=SystemClock()
        )
        for number in range(count):
            record = Record(b"%d" % (number % 5), f"{name} {number}".encode(), (), SystemClock().time_ms())
            log.append(build_batch([record]), leader_epoch=epoch)
        if config:
            clean_log(log, LogWorld().clock)
        log.close()
        for ours in OURS:
            (folder / ours).unlink(missing_ok=True)
        text = base64.urlsafe_b64encode(TOPIC_ID.bytes).rstrip(b"=").decode()
        (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {text}\n")
        return folder


@pytest.fixture
def kafka(tmp_path) -> Kafka:
    return Kafka(tmp_path / "kafka")


def brought_in(kafka: Kafka, data: Path, *names: str, **config: str):
    return asyncio.run(
        import_topics(kafka.path, data, names, config, configs=TopicConfigs({}), entropy=SystemEntropy())
    )


def segments(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.log")}


def read_by(data: Path, name: str, partition: int = 0) -> list[tuple[int, bytes | None]]:
    async def read() -> list[tuple[int, bytes | None]]:
        async with direct_broker(data) as broker:
            found, offset = [], broker.context.replicas.partition(name, partition).log.log_start_offset
            while records := (await broker.fetch(name, offset, partition=partition)).records:
                found += values_of(records)
                offset = [header.next_offset for _, header in iter_headers(records)][-1]
            return found

    return asyncio.run(read())


def topics_in(data: Path) -> list[str]:
    async def names() -> list[str]:
        store = EmbeddedStore(data / "meta.db")
        found = await store.children("/topics")
        await store.close()
        return found

    return asyncio.run(names())


def test_records_offsets_epochs_and_the_id_come_along_byte_for_byte(kafka, tmp_path) -> None:
    for index in range(2):
        kafka.partition(f"clicks-{index}")
    kafka.partition("__consumer_offsets-0")
    before = [segments(kafka.path / f"clicks-{index}") for index in range(2)]
    assert len(before[0]) > 2
    data = tmp_path / "data"
    (topic,) = brought_in(kafka, data, **{"retention.ms": "-1"}).items()
    assert (topic[0], [each.end_offset for each in topic[1]]) == ("clicks", [30, 30])
    assert [segments(data / f"clicks-{index}") for index in range(2)] == before

    async def test() -> None:
        async with direct_broker(data) as broker:
            image = broker.context.metadata.topic("clicks")
            assert (image.topic_id, dict(image.config)) == (TOPIC_ID, {"retention.ms": "-1"})
            partition = broker.context.replicas.partition("clicks", 1)
            assert partition.leader_epoch >= 3
            assert partition.log.epoch_end_offset(3) == (3, 30)
            assert (await broker.produce("clicks", [b"more"], partition=1)).base_offset == 30

    asyncio.run(test())
    assert read_by(data, "clicks", 1) == [
        *((n, f"clicks-1 {n}".encode()) for n in range(30)),
        (30, b"more"),
    ]
    assert "clicks-0" in {path.name for path in kafka.path.iterdir()}, "Kafka's own files stay"


@pytest.mark.parametrize("segment", [0, 1])
def test_a_batch_whose_crc_is_wrong_is_not_imported(kafka, tmp_path, segment) -> None:
    folder = kafka.partition("clicks-0")
    path = sorted(folder.glob("*.log"))[segment]
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1  # in the last record's value: only the CRC shows it
    path.write_bytes(damaged)
    with pytest.raises(ConfigError, match=rf"{path.name} cannot be imported: .* CRC"):
        brought_in(kafka, tmp_path / "data")
    assert topics_in(tmp_path / "data") == []
    assert not (tmp_path / "data" / "clicks-0").exists()


def test_a_torn_tail_is_left_for_the_first_open_to_cut(kafka, tmp_path) -> None:
    folder = kafka.partition("clicks-0")
    last = max(folder.glob("*.log"))
    last.write_bytes(last.read_bytes()[:-5])
    brought_in(kafka, tmp_path / "data")
    assert [offset for offset, _ in read_by(tmp_path / "data", "clicks")] == list(range(29))


def test_a_running_kafka_is_left_alone(kafka, tmp_path) -> None:
    kafka.partition("clicks-0")
    program = (
        "import fcntl, sys\nfile = open(sys.argv[1], 'r+b')\nfcntl.lockf(file, fcntl.LOCK_EX)\n"
        "print('locked', flush=True)\nsys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(kafka.path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout.readline() == b"locked\n"
        with pytest.raises(ConfigError, match="in use by a running Kafka"):
            brought_in(kafka, tmp_path / "data")
        assert not (tmp_path / "data").exists()
        running.stdin.close()
        running.wait(10)
    brought_in(kafka, tmp_path / "data")


def test_kafka_cannot_start_while_its_files_are_read(kafka, tmp_path, monkeypatch) -> None:
    kafka.partition("clicks-0")
    program = "import fcntl, sys\nfcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    tried = []

    def try_to_start(*_) -> None:
        command = [sys.executable, "-c", program, str(kafka.path / ".lock")]
        tried.append(subprocess.run(command, capture_output=True, check=False).returncode)

    monkeypatch.setattr("headrace.broker.cluster.kafka_import._copy", try_to_start)
    brought_in(kafka, tmp_path / "data")
    assert tried == [1]


def test_holes_that_compaction_left_and_the_log_start_come_along(kafka, tmp_path) -> None:
    folder = kafka.partition("state-0", 60, cleanup_policy=("compact",))
    found = brought_in(kafka, tmp_path / "data", **{"cleanup.policy": "compact"})["state"][0]
    assert 0 < found.compacted_to < found.end_offset == 60
    rows = read_by(tmp_path / "data", "state")
    assert 5 <= len(rows) < 30
    assert [offset for offset, _ in rows][-5:] == [55, 56, 57, 58, 59]
    assert segments(folder) == segments(tmp_path / "data" / "state-0")
    (kafka.path / "log-start-offset-checkpoint").write_text("0\n1\nstate 0 57\n")
    brought_in(kafka, tmp_path / "other", **{"cleanup.policy": "compact"})
    assert [offset for offset, _ in read_by(tmp_path / "other", "state")] == [57, 58, 59]


def test_a_topic_appears_when_all_its_files_are_durable(kafka, tmp_path, monkeypatch) -> None:
    for index in range(2):
        kafka.partition(f"clicks-{index}")
    data = tmp_path / "data"
    transact = EmbeddedStore.transact
    with recorded_fsyncs(tmp_path) as synced:

        async def at_that_moment(store, operations):
            if any("clicks" in operation.path for operation in operations):
                for index in range(2):
                    folder = data / f"clicks-{index}"
                    for path in folder.iterdir():  # one that was renamed was synced under its first name
                        assert any(each.name.startswith(path.name) for each in synced), path
                    last_file = max(at for at, path in enumerate(synced) if path.parent == folder)
                    assert folder in synced[last_file:]
                    assert data in synced[last_file:]
                checked.append(True)
            return await transact(store, operations)

        checked: list[bool] = []
        monkeypatch.setattr(EmbeddedStore, "transact", at_that_moment)
        brought_in(kafka, data)
    assert checked == [True]


def test_an_import_that_died_half_way_is_not_seen_and_can_be_made_again(kafka, tmp_path, monkeypatch) -> None:
    kafka.partition("clicks-0")
    data = tmp_path / "data"
    with monkeypatch.context() as patched:
        patched.setattr("headrace.broker.cluster.kafka_import.chunks_of", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            brought_in(kafka, data)
    assert topics_in(data) == []
    (data / "clicks-0" / "00000000000000000999.log").write_bytes(b"of the one that died")
    brought_in(kafka, data)
    assert not (data / "clicks-0" / "00000000000000000999.log").exists()
    assert len(read_by(data, "clicks")) == 30


@pytest.mark.parametrize(
    ("names", "config", "message"),
    [
        (("nosuch",), {}, r"has no topic 'nosuch'; it has clicks"),
        ((), {"cleanup.policy": "maybe"}, r"cleanup\.policy"),
    ],
)
def test_an_impossible_import_is_refused_and_writes_nothing(kafka, tmp_path, names, config, message) -> None:
    kafka.partition("clicks-0")
    with pytest.raises((ConfigError, KafkaError), match=message):
        brought_in(kafka, tmp_path / "data", *names, **config)
    assert not (tmp_path / "data").exists()


def test_a_topic_that_is_there_or_not_whole_is_refused(kafka, tmp_path) -> None:
    kafka.partition("clicks-1")
    with pytest.raises(ConfigError, match=r"has only the partitions 1 of topic"):
        brought_in(kafka, tmp_path / "data")
    kafka.partition("clicks-0")
    brought_in(kafka, tmp_path / "data")
    before = read_by(tmp_path / "data", "clicks")
    with pytest.raises(ConfigError, match="already exists"):
        brought_in(kafka, tmp_path / "data")
    assert read_by(tmp_path / "data", "clicks") == before
    (kafka.path / "meta.properties").unlink()
    with pytest.raises(ConfigError, match=r"not a data directory of Apache Kafka"):
        brought_in(kafka, tmp_path / "other")
