"""Consumers that read from the replica on their rack (KIP-392)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.configs.replication import RACK_AWARE
from headrace.broker.log.config import LogConfig
from headrace.broker.log.partition_log import AppendOrigin, PartitionLog
from headrace.broker.metadata.image import BrokerImage, PartitionState
from headrace.broker.replication.following import Follower
from headrace.broker.replication.nearest import NOBODY, nearest_replica
from headrace.broker.replication.progress import Replica
from headrace.broker.runtime.slices import Slices
from headrace.broker.tests.replication.test_logs_part import at_once
from headrace.broker.tests.replication.test_replication import (
    TOPIC,
    create,
    described,
    led,
    log_of,
    produce,
    until,
)
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.fetch import PartitionData
from headrace.protocol.records.control import build_end_marker
from headrace.protocol.records.header import TRANSACTIONAL_BIT
from simulator.cluster import DirectCluster
from simulator.direct import values_of
from simulator.log import LogWorld

SELECTOR = {"replica.selector.class": RACK_AWARE}


@asynccontextmanager
async def cluster_on_racks(folder: Path, **configs: str) -> AsyncIterator[DirectCluster]:
    cluster = DirectCluster(folder)
    named = {name.replace("_", "."): value for name, value in configs.items()}
    try:
        for node_id in (1, 2, 3):
            await cluster.start(node_id, {**SELECTOR, **named, "broker.rack": f"r{node_id}"})
        yield cluster
    finally:
        for node_id in list(cluster.brokers):
            await cluster.stop(node_id)


async def test_a_consumer_is_sent_to_the_replica_on_its_rack_and_reads_there_what_is_published(
    tmp_path: Path,
) -> None:
    async with cluster_on_racks(tmp_path, replica_fetch_wait_max_ms="20000") as cluster:
        await create(cluster.brokers[1])
        leader = await led(cluster, {1, 2, 3})
        own = (await described(leader))[0].leader_id
        near = min({1, 2, 3} - {own})
        follower, rack = cluster.brokers[near], f"r{near}"
        await produce(leader, [b"1", b"2"])
        there = log_of(follower)
        await until(lambda: there.log_end_offset == 2)
        sent = await leader.fetch(TOPIC, rack_id=rack, max_wait_ms=20_000)
        assert (sent.preferred_read_replica, sent.records, sent.error_code) == (near, b"", 0)
        for others in (f"r{own}", "elsewhere", ""):
            answer = await leader.fetch(TOPIC, rack_id=others)
            assert (answer.preferred_read_replica, len(values_of(answer.records))) == (-1, 2)
        read = await follower.fetch(TOPIC, rack_id=rack, max_wait_ms=20_000)
        assert [value for _, value in values_of(read.records)] == [b"1", b"2"]
        assert read.high_watermark == 2
        waiting = asyncio.ensure_future(follower.fetch(TOPIC, 2, rack_id=rack, max_wait_ms=20_000))
        await asyncio.sleep(0.05)
        await produce(leader, [b"3"])
        assert [value for _, value in values_of((await waiting).records)] == [b"3"], (
            "not at the end of a wait"
        )
        beyond = await follower.fetch(TOPIC, 4, rack_id=rack, last_fetched_epoch=0)
        assert (beyond.error_code, beyond.diverging_epoch) == (ErrorCode.OFFSET_OUT_OF_RANGE, None)
        assert (await follower.fetch(TOPIC)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        compared = await follower.fetch(TOPIC, replica_id=-2, version=12)
        assert [value for _, value in values_of(compared.records)] == [b"1", b"2", b"3"]
        stale = await follower.fetch(TOPIC, rack_id=rack, current_leader_epoch=9)
        assert stale.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        waiting = asyncio.ensure_future(follower.fetch(TOPIC, 3, rack_id=rack, max_wait_ms=20_000))
        await asyncio.sleep(0.05)
        await leader.context.replica_changes.reassign([_away(near, own)])
        assert (await waiting).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "it holds nothing any more"


def _away(near: int, own: int) -> Any:
    from headrace.broker.cluster.replica_changes import Reassignment

    return Reassignment(TOPIC, 0, [own, *({1, 2, 3} - {near, own})])


async def test_without_the_rack_selector_no_preferred_replica_is_named(tmp_path: Path) -> None:
    leaders = "org.apache.kafka.common.replica.LeaderSelector"
    async with cluster_on_racks(tmp_path, replica_selector_class=leaders) as cluster:
        await create(cluster.brokers[1])
        leader = await led(cluster, {1, 2, 3})
        await produce(leader, [b"1"])
        answers = [await leader.fetch(TOPIC, rack_id=f"r{number}") for number in (1, 2, 3)]
        assert [answer.preferred_read_replica for answer in answers] == [-1, -1, -1]


@pytest.mark.parametrize(
    ("rack", "isr", "ends", "offset", "chosen"),
    [
        ("a", (1, 2, 3), (5, 5), 5, NOBODY),  # the leader is there
        ("b", (1, 2, 3), (5, 6), 5, 3),
        ("b", (1, 2, 3), (6, 6), 5, 2),
        ("b", (1, 2), (5, 9), 5, 2),  # 3 is not in sync
        ("b", (1, 2, 3), (4, 4), 5, NOBODY),  # not there yet
        ("b", (1, 2, 3), (4, 5), 5, 3),
        ("c", (1, 2, 3), (9, 9), 5, NOBODY),
    ],
)
def test_the_nearest_in_sync_replica_is_chosen(
    rack: str, isr: tuple[int, ...], ends: tuple[int, int], offset: int, chosen: int
) -> None:
    state = PartitionState((1, 2, 3), 1, 0, isr)
    replicas = {broker: Replica(end_offset=end) for broker, end in zip((2, 3), ends, strict=True)}
    partition: Any = SimpleNamespace(state=state, progress=SimpleNamespace(replicas=replicas))
    brokers = {
        number: BrokerImage(number, number, "x", rack="a" if number == 1 else "b") for number in (1, 2, 3)
    }
    assert nearest_replica(partition, rack, offset, brokers) == chosen
    if chosen == 2:
        del brokers[2]
        assert nearest_replica(partition, rack, offset, brokers) in (3, NOBODY), (
            "an absent broker is not chosen"
        )


def test_a_transaction_whose_end_is_not_published_is_open_to_readers_of_a_replica() -> None:
    world = LogWorld()
    leader = world.open()
    transaction: Any = {"producer_id": 7, "producer_epoch": 0, "attributes": TRANSACTIONAL_BIT}
    world.append(leader)  # 0
    world.append(leader, **transaction, base_sequence=0)  # 1
    world.append(leader)  # 2
    leader.append(
        build_end_marker(producer_id=7, producer_epoch=0, commit=False, coordinator_epoch=0, timestamp_ms=0),
        leader_epoch=0,
        origin=AppendOrigin.COORDINATOR,
    )  # 3
    world.append(leader)  # 4
    world.append(leader, **{**transaction, "producer_id": 8}, base_sequence=0)  # 5
    for first_read in (0, 3):
        log = PartitionLog.open(
            Path(f"/data/c{first_read}-0"), LogConfig(), clock=world.clock, disk=world.disk
        )
        at: Any = SimpleNamespace(
            topic=SimpleNamespace(name="t", topic_id=None, config={}), index=0, name="t-0"
        )
        at.changes, at.traffic = SimpleNamespace(count=0, watchers={}), None
        follower = Follower(at, PartitionState((1, 2), 1, 0, (1, 2)), lambda _, log=log: log)
        follower._take(log)
        stable = []
        for offset, high_watermark in ((0, 0), (1, 1), (2, 3), (3, 3), (4, 4), (5, 5), (6, 6)):
            records = leader.read(offset, 1, up_to=6).read() if offset < 6 else b""
            if offset == first_read:
                assert follower.readable.last_stable_offset <= 1
            answer = PartitionData(high_watermark=high_watermark, log_start_offset=0, records=records)
            at_once(follower.answered(answer, Slices(lambda: 0.0)))
            stable.append(follower.readable.last_stable_offset if offset >= first_read else None)
        expected = [0, 1, 1, 1, 4, 5, 5]
        assert stable == [None] * first_read + expected[first_read:]
