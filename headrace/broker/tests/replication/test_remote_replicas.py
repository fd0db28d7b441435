"""Partitions with a remote log and several replicas: the leader copies, the next one finds the copies, followers go
on.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from headrace.broker.cluster.replica_changes import Reassignment
from headrace.broker.objects.files import LocalFiles
from headrace.broker.tests.replication.test_replication import TOPIC, create, led, log_of, produce, until
from headrace.protocol.errors import ErrorCode
from headrace.protocol.records.encode import Record, build_batch
from simulator.cluster import DEADLINE_SECONDS, DirectCluster, direct_cluster
from simulator.direct import DirectBroker, values_of

CONFIG = {
    "remote_storage_enable": "true",
    "segment_bytes": "400",
    "local_retention_bytes": "500",
    "file_delete_delay_ms": "0",
}


@asynccontextmanager
async def tiered(tmp_path: Path) -> AsyncIterator[tuple[DirectCluster, dict[str, str]]]:
    settings = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.directory": str(tmp_path / "remote"),
        "remote.log.manager.task.interval.ms": "3600000",
        "log.initial.task.delay.ms": "3600000",
        "log.retention.check.interval.ms": "3600000",
        "auto.leader.rebalance.enable": "false",
    }
    async with direct_cluster(tmp_path / "brokers", 3, config=settings) as cluster:
        yield cluster, settings


async def write(cluster: DirectCluster, first: int, count: int) -> None:
    for number in range(first, first + count):
        leader = await led(cluster)
        assert (await produce(leader, [b"%03d" % number + b"x" * 100])).error_code == 0


def manager(broker: DirectBroker) -> Any:
    return broker.broker._cluster.remote


async def tend(cluster: DirectCluster, *, followers: bool = True) -> None:
    """Run the leader's turn and its retention, then that of its followers."""
    leader = await led(cluster)
    partition = leader.context.replicas.partition(TOPIC, 0)
    await partition.flush(leader.context.executor)
    await manager(leader).turn()
    partition.apply_retention(leader.context.clock.time_ms())
    for broker in cluster.brokers.values():
        if followers and broker is not leader:
            follower = broker.context.replicas.follower(TOPIC, 0)
            assert follower is not None
            await until(lambda follower=follower: follower.high_watermark >= partition.high_watermark)
            await manager(broker).turn()


async def numbers(broker: DirectBroker, count: int) -> list[int]:
    """Read from a leader until there are that many records: a new one publishes what its followers report."""
    found: list[int] = []
    async with asyncio.timeout(DEADLINE_SECONDS):
        while len(found) < count:
            answer = await broker.fetch(TOPIC, len(found), max_wait_ms=1_000)
            if answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                await asyncio.sleep(0.01)  # it is to lead, and waits for its lease
                continue
            assert answer.error_code == 0
            found += [
                int(value[:3])
                for offset, value in values_of(answer.records)
                if value and offset >= len(found)
            ]
    return found


def is_following(broker: DirectBroker) -> bool:
    follower = broker.context.replicas.follower(TOPIC, 0)
    return follower is not None and follower.is_open


def objects(tmp_path: Path) -> list[str]:
    return [name for name in LocalFiles(tmp_path / "remote").names("") if name.endswith(".segment")]


async def test_only_the_leader_copies_and_the_next_one_finds_it(tmp_path: Path) -> None:
    async with tiered(tmp_path) as (cluster, _):
        assert (await create(cluster.brokers[1], **CONFIG)).error_code == 0
        first = await led(cluster, {1, 2, 3})
        await write(cluster, 0, 30)
        await tend(cluster)
        copied = set(objects(tmp_path))
        assert len(copied) > 5
        for broker in cluster.brokers.values():
            assert 20 < log_of(broker).local_start_offset < 30, "a replica keeps locally what has been copied"
            assert log_of(broker).log_start_offset == 0
        assert await numbers(first, 30) == list(range(30))
        await cluster.stop(next(number for number, each in cluster.brokers.items() if each is first))
        second = await led(cluster)
        assert second is not first
        assert await numbers(second, 30) == list(range(30))
        await write(cluster, 30, 30)
        await tend(cluster)
        assert copied < set(objects(tmp_path)), (
            "what the leader before had copied was copied again, or is gone"
        )
        assert await numbers(second, 60) == list(range(60))
        remote = second.context.replicas.partition(TOPIC, 0).remote
        assert remote is not None
        assert len(remote.manifest.segments) == len(objects(tmp_path))
        assert log_of(second).local_start_offset > 50


async def test_a_follower_goes_on_behind_what_is_in_remote_storage(tmp_path: Path) -> None:
    async with tiered(tmp_path) as (cluster, settings):
        assert (await create(cluster.brokers[1], **CONFIG)).error_code == 0
        await led(cluster, {1, 2, 3})
        await write(cluster, 0, 10)
        leader = await led(cluster)
        late, empty = (number for number, each in cluster.brokers.items() if each is not leader)
        for number in (late, empty):
            await cluster.stop(number)
        shutil.rmtree(tmp_path / "brokers" / str(empty))
        await led(cluster, {next(iter(cluster.brokers))})
        await write(cluster, 10, 30)
        await tend(cluster)
        assert log_of(leader).local_start_offset > 30
        end = log_of(leader).log_end_offset
        for number in (late, empty):
            broker = await cluster.start(number, settings)
            await until(lambda broker=broker: is_following(broker) and log_of(broker).log_end_offset == end)
            assert log_of(broker).local_start_offset > 30
            assert log_of(broker).log_start_offset == 0
            assert log_of(broker).epoch_at(0) == log_of(leader).epoch_at(0)
        await led(cluster, {1, 2, 3})
        await write(cluster, 40, 5)
        await cluster.stop(next(number for number, each in cluster.brokers.items() if each is leader))
        for gone in (late, None):
            other = await led(cluster)
            assert await numbers(other, 45) == list(range(45))
            if gone is not None and len(cluster.brokers) > 1:
                await cluster.stop(next(number for number, each in cluster.brokers.items() if each is other))


async def test_a_partition_moves_and_its_remote_part_stays_where_it_is(tmp_path: Path) -> None:
    async with tiered(tmp_path) as (cluster, _):
        assert (await create(cluster.brokers[1], 1, **CONFIG)).error_code == 0
        await write(cluster, 0, 30)
        await tend(cluster, followers=False)
        there = objects(tmp_path)
        before = await led(cluster)
        target = next(number for number, each in cluster.brokers.items() if each is not before)
        assert await before.context.replica_changes.reassign([Reassignment(TOPIC, 0, (target,))]) == [None]
        after = await led(cluster, {target})
        assert after is cluster.brokers[target]
        assert await numbers(after, 30) == list(range(30))
        assert log_of(after).local_start_offset > 20
        await write(cluster, 30, 10)
        await tend(cluster, followers=False)
        assert set(there) < set(objects(tmp_path))
        assert await numbers(after, 40) == list(range(40))


async def test_a_deleted_topic_leaves_nothing(tmp_path: Path) -> None:
    async with tiered(tmp_path) as (cluster, _):
        assert (await create(cluster.brokers[1], **CONFIG)).error_code == 0
        await led(cluster, {1, 2, 3})
        await write(cluster, 0, 20)
        await tend(cluster)
        assert objects(tmp_path)
        await cluster.brokers[1].context.topics.delete_topic(TOPIC)
        for broker in cluster.brokers.values():
            await manager(broker).turn()
        names = LocalFiles(tmp_path / "remote").names("")
        assert [name for name in names if not name.startswith("cluster/")] == []


async def test_leaders_with_other_ends_of_segments_share_one_remote_log(tmp_path: Path) -> None:
    """A model with records of equal size. Segments end somewhere else on each broker, and leaders change."""
    dice, size, kept = random.Random(1), len(build_batch([Record(None, b"000" + b"x" * 100)])), 15
    config = {**CONFIG, "segment_bytes": "100000", "retention_bytes": str(kept * size)}
    common = 0
    async with tiered(tmp_path) as (cluster, settings):
        assert (await create(cluster.brokers[1], **config)).error_code == 0
        end = 0
        for _ in range(6):
            leader = await led(cluster, {1, 2, 3})
            for _ in range(dice.randint(3, 8)):
                await write(cluster, end, 1)
                end += 1
                for broker in cluster.brokers.values():
                    await until(lambda broker=broker, end=end: log_of(broker).log_end_offset == end)
                    if dice.random() < 0.3:
                        log_of(broker).roll()
            for _ in range(2):  # retention comes before copies
                await tend(cluster, followers=False)
            remote, log = leader.context.replicas.partition(TOPIC, 0).remote, log_of(leader)
            segments = remote.manifest.segments
            ends = [each.end_offset for each in segments]
            assert all(before < after for before, after in pairwise(ends))
            assert [(each.size - each.common_size) // size for each in segments[1:]] == [
                after - before for before, after in pairwise(ends)
            ]
            common += sum(each.common_size > 0 for each in segments)
            assert log.log_end_offset - log.log_start_offset >= min(kept, end), "retention came early"
            start = log.log_start_offset
            for offset in range(start, end):
                answer = await leader.fetch(TOPIC, offset, max_wait_ms=10_000)
                found = [(at, value[:3]) for at, value in values_of(answer.records) if value and at >= offset]
                assert found[0] == (offset, b"%03d" % offset)
                assert found == [(at, b"%03d" % at) for at, _ in found]
            number = next(number for number, each in cluster.brokers.items() if each is leader)
            await cluster.stop(number)
            await led(cluster, {1, 2, 3} - {number})
            await cluster.start(number, settings)
    assert min(common, start) > 0, "no segments had common records, or none expired"
