"""Start, stop, crash: the data that the broker finds again, and its handling of leftovers."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
import uuid
from collections.abc import Callable

import pytest

from headrace.broker.configs.config_key import ConfigError
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from simulator.direct import direct_broker, values_of


def crash(data) -> None:
    """Leave a data directory as a kill does: without the marker of a clean stop."""
    (data / ".kafka_cleanshutdown").unlink()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


def folders(data) -> list[str]:
    return sorted(entry.name for entry in data.iterdir() if entry.is_dir() and entry.name != "extensions")


@pytest.mark.parametrize("clean", [True, False])
async def test_topics_records_and_configurations_are_found_again(tmp_path, clean) -> None:
    async with direct_broker(tmp_path) as broker:
        image = await broker.create_topic("t", 3, retention_ms="-1")
        await broker.produce("t", [b"a", b"b"], partition=1)
        cluster_id = broker.broker.cluster_id
    if not clean:
        crash(tmp_path)
    async with direct_broker(tmp_path) as broker:
        assert broker.context.metadata.topics() == [image]
        assert broker.broker.cluster_id == cluster_id
        assert values_of((await broker.fetch("t", partition=1)).records) == [(0, b"a"), (1, b"b")]
        assert (await broker.produce("t", [b"c"], partition=1)).base_offset == 2
        assert (await broker.produce("t", [b"d"], partition=2)).base_offset == 0
        assert broker.context.replicas.partition("t", 1).leader_epoch == (0 if clean else 1)


async def test_partitions_have_no_files_until_they_are_used(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 500)
        assert folders(tmp_path) == []
        await broker.produce("t", [b"x"], partition=7)
        assert folders(tmp_path) == ["t-7"]
    async with direct_broker(tmp_path) as broker:
        assert not any(partition.is_open for partition in broker.context.replicas.partitions("t"))


async def test_a_start_after_a_crash_opens_only_logs_that_were_not_closed(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 4)
        for partition in (1, 2):
            await broker.produce("t", [b"x"], partition=partition)
    crash(tmp_path)
    (tmp_path / "t-2" / "clean-shutdown").unlink()
    async with direct_broker(tmp_path) as broker:
        partitions = broker.context.replicas.partitions("t")
        assert [each.index for each in partitions if each.is_open] == [2]
        assert values_of((await broker.fetch("t", partition=1)).records) == [(0, b"x")]


async def test_retention_opens_only_closed_logs_with_something_old(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("kept", 3)
        await broker.create_topic("old", 2, retention_ms="1")
        for topic in ("kept", "old"):
            await broker.produce(topic, [b"x"], partition=1)
    at_once = {"log.initial.task.delay.ms": "1", "log.retention.check.interval.ms": "1"}
    async with direct_broker(tmp_path, config=at_once) as broker:
        old = broker.context.replicas.partitions("old")
        await until(lambda: old[1].is_open and old[1].log.log_start_offset == 1)
        every = broker.context.replicas.all_partitions()
        assert [each.place for each in every if each.is_open] == [("old", 1)]
        assert folders(tmp_path) == ["kept-1", "old-1"]
        changes = [AlterableConfig(name="retention.ms", value="1")]
        topic = AlterConfigsResource(resource_type=2, resource_name="kept", configs=changes)
        await broker.send(IncrementalAlterConfigsRequest(resources=[topic]), 1)
        kept = broker.context.replicas.partitions("kept")
        await until(lambda: kept[1].is_open and kept[1].log.log_start_offset == 1)


async def test_folders_without_a_topic_are_set_aside_and_topics_without_folders_are_empty(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 2)
        await broker.produce("t", [b"gone"], partition=0)
        await broker.produce("t", [b"kept"], partition=1)
    shutil.copytree(tmp_path / "t-1", tmp_path / "unknown-0")
    shutil.rmtree(tmp_path / "t-0")
    async with direct_broker(tmp_path) as broker:
        assert values_of((await broker.fetch("t", partition=1)).records) == [(0, b"kept")]
        assert (await broker.fetch("t", partition=0)).high_watermark == 0
        assert any(name.startswith("unknown-0.") and name.endswith("-stray") for name in folders(tmp_path))
        assert [topic.name for topic in broker.context.metadata.topics()] == ["t"]


async def test_a_deletion_that_was_cut_short_is_finished_at_the_next_start(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        image = await broker.create_topic("t", 2)
        await broker.produce("t", [b"x"], partition=1)
    crash(tmp_path)
    with sqlite3.connect(tmp_path / "meta.db") as database:  # as after the transaction, before the files
        (data,) = database.execute("SELECT data FROM nodes WHERE path = '/topics/t'").fetchone()
        assert json.loads(data)["id"] == str(image.topic_id)
        database.execute("DELETE FROM nodes WHERE path = '/topics/t'")
        database.execute("INSERT INTO nodes VALUES ('/deleted', '', x'', 0)")
        database.execute(
            "INSERT INTO nodes VALUES (?, '/deleted', ?, 0)", (f"/deleted/{image.topic_id}", data)
        )
    database.close()
    async with direct_broker(tmp_path) as broker:
        assert broker.context.metadata.topics() == []
        assert folders(tmp_path) == []
        assert await broker.context.store.children("/deleted") == []


def test_an_unreadable_log_fails_its_partition_and_nothing_else(tmp_path, caplog) -> None:
    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            await broker.create_topic("t", 2)
            for _ in range(3):
                await broker.produce("t", [b"x" * 100], partition=0)
                await broker.produce("t", [b"y"], partition=1)
        crash(tmp_path)
        segment = tmp_path / "t-0" / f"{0:020d}.log"
        content = bytearray(segment.read_bytes())
        content[70] ^= 0xFF  # in the first batch, with whole ones behind it
        segment.write_bytes(content)
        for name in ("clean-shutdown", "recovery-checkpoint"):
            (tmp_path / "t-0" / name).unlink(missing_ok=True)
        async with direct_broker(tmp_path) as broker:
            failed = await broker.produce("t", [b"x"], partition=0)
            assert failed.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "t-0 is offline" in failed.error_message
            assert (await broker.fetch("t", partition=0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert (await broker.produce("t", [b"x"], partition=1)).base_offset == 3
        assert segment.read_bytes() == bytes(content)  # nothing was cut
        assert not (tmp_path / ".kafka_cleanshutdown").exists()

    asyncio.run(test())
    assert "t-0" in caplog.text


async def test_a_cancelled_topic_creation_is_completed(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        creation = asyncio.ensure_future(broker.create_topic("t"))
        await asyncio.sleep(0.001)
        creation.cancel()
        await asyncio.gather(creation, return_exceptions=True)
        with pytest.raises(KafkaError, match="TOPIC_ALREADY_EXISTS"):
            await broker.create_topic("t")
        assert broker.context.metadata.topic("t") is not None
        assert (await broker.produce("t", [b"x"])).error_code == 0


async def test_a_broker_that_cannot_start_leaves_the_directory_as_it_was(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", [b"x"])
        port = broker.broker.port
        from headrace.broker.configs.broker_config import BrokerConfig
        from headrace.broker.server import Broker

        second = Broker(BrokerConfig(), data_dir=tmp_path, port=0)
        with pytest.raises(ConfigError, match="in use by another broker"):
            await second.start()
        third = Broker(BrokerConfig(), data_dir=tmp_path / "other", port=port)
        with pytest.raises(ConfigError, match="cannot listen"):
            await third.start()
    assert (tmp_path / ".kafka_cleanshutdown").exists()


async def test_a_topics_id_is_its_own_for_ever(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        first = await broker.create_topic("t")
        await broker.context.topics.delete_topic("t")
        second = await broker.create_topic("t")
        assert first.topic_id != second.topic_id
        assert uuid.UUID(int=0) not in (first.topic_id, second.topic_id)
        assert broker.context.metadata.topic_by_id(first.topic_id) is None
        assert broker.context.metadata.topic_by_id(second.topic_id) == second


def test_a_topic_deleted_during_retention_is_not_an_error(tmp_path, caplog) -> None:
    config = {"log.initial.task.delay.ms": "0", "log.retention.check.interval.ms": "1"}

    async def test() -> None:
        async with direct_broker(tmp_path, config) as broker:
            for number in range(20):
                await broker.create_topic(f"t{number}", 3)
                await broker.produce(f"t{number}", [b"x"])
            partitions = [*broker.context.replicas.all_partitions()]
            broker.context.replicas.all_partitions = lambda: (
                partitions
            )  # what retention took before the deletion
            for number in range(20):
                await broker.context.topics.delete_topic(f"t{number}")
            await asyncio.sleep(0.05)
            del broker.context.replicas.all_partitions

    asyncio.run(test())
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
