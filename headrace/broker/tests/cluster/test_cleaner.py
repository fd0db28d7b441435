"""The log cleaner of a broker: the choice of the partition, the range, and the reasons not to compact."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.broker.cluster.cleaner import CHECKPOINT_NAME, LogCleaner, decode_checkpoint, encode_checkpoint
from headrace.broker.log.validation import AppendOrigin
from headrace.broker.replication.following import Follower
from headrace.protocol.records.encode import Record, build_batch
from simulator.cluster import direct_cluster
from simulator.direct import DirectBroker, direct_broker
from simulator.log import records_of

NOW = 1_750_000_000_000
CONFIG = {"log.cleaner.enable": "false", "log.retention.check.interval.ms": "3600000"}


def cleaner_of(broker: DirectBroker) -> LogCleaner:
    parts = broker.context
    return LogCleaner(
        parts.config,
        parts.metadata,
        parts.replicas,
        parts.data_dir,
        parts.executor,
        parts.ages,
        parts.background,
        parts.disk,
        parts.entropy,
    )


@asynccontextmanager
async def cleaned_broker(path: Path) -> AsyncIterator[tuple[DirectBroker, LogCleaner]]:
    """A broker whose cleaner runs on request."""
    async with direct_broker(path, CONFIG) as broker:
        yield broker, cleaner_of(broker)


def write(broker: DirectBroker, topic: str, keys: str, **batch) -> None:
    """A record for each key; each batch is a segment."""
    partition = broker.context.replicas.partition(topic, 0)
    for at, key in enumerate(keys):
        record = Record(key.encode(), b"%d" % at, (), NOW)
        partition.append(build_batch([record], **batch), AppendOrigin.CLIENT)
    partition.log.flush()


async def compacted(broker: DirectBroker, *topics: str) -> None:
    for topic in topics:
        config = {"segment_bytes": "100", "min_cleanable_dirty_ratio": "0.01"}
        await broker.create_topic(topic, cleanup_policy="compact", **config)


def keys(broker: DirectBroker, topic: str) -> str:
    return "".join(
        key.decode() for _, _, key, _ in records_of(broker.context.replicas.partition(topic, 0).log)
    )


async def test_c1_the_dirtiest_is_compacted_first_and_what_was_done_is_kept(tmp_path) -> None:
    async with cleaned_broker(tmp_path) as (broker, cleaner):
        await compacted(broker, "a", "b")
        await broker.create_topic("plain", segment_bytes="100", retention_ms="-1")
        for topic in ("a", "b", "plain"):
            write(broker, topic, "xxxy")
        assert await cleaner.clean_one()
        assert await cleaner.clean_one()
        assert not await cleaner.clean_one(), "nothing is dirty now"
        assert [keys(broker, topic) for topic in ("a", "b", "plain")] == ["xy", "xy", "xxxy"]
        write(broker, "a", "x")
        write(broker, "b", "xxxxxx")
        assert await cleaner.clean_one()
        assert (keys(broker, "a"), len(keys(broker, "b"))) == ("xyx", 3)
    async with cleaned_broker(tmp_path) as (broker, cleaner):
        write(broker, "a", "z")
        assert await cleaner.clean_one()
        assert keys(broker, "a") == "yxz"
        assert not await cleaner.clean_one(), "records cleaned before the restart stay clean"


async def test_the_brokers_own_topics_are_left_to_their_owners(tmp_path) -> None:
    async with cleaned_broker(tmp_path) as (broker, cleaner):
        config = {"cleanup.policy": "compact", "segment.bytes": "100", "min.cleanable.dirty.ratio": "0.01"}
        await broker.context.topics.create_topic("__consumer_offsets", 1, config)
        write(broker, "__consumer_offsets", "xxxy")
        assert not await cleaner.clean_one()
        assert keys(broker, "__consumer_offsets") == "xxxy"


async def test_c2_records_of_an_open_transaction_are_not_compacted(tmp_path) -> None:
    async with cleaned_broker(tmp_path) as (broker, cleaner):
        await compacted(broker, "a")
        write(broker, "a", "xx")
        mine = {"producer_id": 7, "producer_epoch": 0, "attributes": 0x10}
        write(broker, "a", "x", **mine, base_sequence=0)
        write(broker, "a", "xy")
        assert await cleaner.clean_one()
        assert keys(broker, "a") == "xxxy", "the second, the one of the transaction, and what follows it"


async def test_a_topic_that_is_made_again_is_dirty_from_its_beginning(tmp_path) -> None:
    async with cleaned_broker(tmp_path) as (broker, cleaner):
        await compacted(broker, "a")
        write(broker, "a", "xxxy")
        assert await cleaner.clean_one()
        await broker.context.topics.delete_topic("a")
        cleaner.forget_topic("a")
        await compacted(broker, "a")
        write(broker, "a", "xxyz")
        assert await cleaner.clean_one()
        assert keys(broker, "a") == "xyz"


async def test_a_partition_that_cannot_be_compacted_is_reported_once_and_does_not_stop_others(
    tmp_path, caplog
) -> None:
    async with cleaned_broker(tmp_path) as (broker, cleaner):
        await compacted(broker, "a", "damaged")
        write(broker, "a", "xxy")
        write(broker, "damaged", "xxxxxxxy")
        segment = broker.context.replicas.partition("damaged", 0).log.segments[1].path
        content = bytearray(segment.read_bytes())
        content[16] = 9  # no such format
        segment.write_bytes(content)
        assert [await cleaner.clean_one() for _ in range(3)].count(True) == 1
        assert keys(broker, "a") == "xy"
        assert caplog.text.count("damaged-0 is not compacted until the next start") == 1
        segment.unlink()


async def test_a_full_disk_does_not_stop_the_cleaner(tmp_path, monkeypatch) -> None:
    async with cleaned_broker(tmp_path) as (broker, cleaner):
        await compacted(broker, "a")
        write(broker, "a", "xxxy")
        with monkeypatch.context() as full:
            full.setattr("os.pwritev", no_space)
            assert not await cleaner.clean_one()
        assert await cleaner.clean_one()
        assert keys(broker, "a") == "xy"


def no_space(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


async def test_a_partition_deleted_during_cleaning_is_not_an_error(tmp_path, caplog) -> None:
    async with cleaned_broker(tmp_path) as (broker, cleaner):
        await compacted(broker, "a")
        write(broker, "a", "xy" * 400)
        cleaning = asyncio.create_task(cleaner.clean_one())
        while not cleaning.done() and broker.context.metadata.topic("a") is not None:
            await asyncio.sleep(0)
            if list(tmp_path.glob("a-0/*.cleaned")):
                await broker.context.topics.delete_topic("a")
        assert not await cleaning
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("text", ["1\n0\n", "0\n2\na 0 1\n", "0\n1\na 0\n", "0\n1\na 0 x\n"])
async def test_an_unreadable_checkpoint_costs_only_time(tmp_path, text) -> None:
    with pytest.raises(ValueError):
        decode_checkpoint(text.encode())
    (tmp_path / CHECKPOINT_NAME).write_text(text)
    async with cleaned_broker(tmp_path) as (broker, cleaner):
        await compacted(broker, "a")
        write(broker, "a", "xxxy")
        assert await cleaner.clean_one()
        assert decode_checkpoint((tmp_path / CHECKPOINT_NAME).read_bytes()) == {("a", 0): 3}


def test_the_checkpoint_is_kafkas() -> None:
    offsets = {("b", 1): 7, ("a", 0): 12}
    assert encode_checkpoint(offsets) == b"0\n2\na 0 12\nb 1 7\n"
    assert decode_checkpoint(encode_checkpoint(offsets)) == offsets
    assert decode_checkpoint(b"") == {}


async def test_each_replica_compacts_its_own_log_and_goes_on_copying(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 2, config=CONFIG) as cluster:
        metadata = cluster.brokers[1].context.metadata
        compacted = {"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0.1"}
        await cluster.brokers[1].context.topics.create_topic("t", 1, compacted, replication_factor=2)
        leader = metadata.leader("t", 0)
        assert leader is not None
        leads, follows = cluster.brokers[leader.broker_id], cluster.brokers[3 - leader.broker_id]
        partition = leads.context.replicas.partition("t", 0)

        async def write(first: int) -> None:
            for number in range(first, first + 40):
                batch = build_batch([Record(b"k%d" % (number % 3), b"v" * 100, (), NOW)])
                assert (await leads.produce("t", batch)).error_code == 0

        def follower() -> Follower | None:
            found = follows.context.replicas.follower("t", 0)
            return found if found is not None and found.is_open else None

        await write(0)
        await cluster.agreed(lambda _: (f := follower()) is not None and f.high_watermark == 40)
        copy = follower()
        assert copy is not None
        assert await cleaner_of(follows).clean_one()
        assert copy.log.size_bytes < partition.log.size_bytes / 2
        assert len(records_of(partition.log)) == 40, "the leader's is as it was"
        await write(40)
        await cluster.agreed(lambda _: copy.high_watermark == 80)
        newest = {record[2]: record for record in records_of(partition.log)}
        assert {record[2]: record for record in records_of(copy.log)} == newest
        assert await cleaner_of(leads).clean_one()
        assert await cleaner_of(follows).clean_one()
        await cluster.stop(leader.broker_id)
        await cluster.agreed(lambda broker: not broker.context.replicas.partition("t", 0).closed)
        found = records_of(follows.context.replicas.partition("t", 0).log)
        assert {record[2]: record for record in found} == newest
