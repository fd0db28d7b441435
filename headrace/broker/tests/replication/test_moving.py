"""Partitions that move between three whole brokers, by what their clients see."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from headrace.broker.replication.throttle import Throttle
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
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from simulator.cluster import DirectCluster, direct_cluster
from simulator.direct import DirectBroker, values_of

TOPICS, BROKERS = 2, 4
SLOW = "65536"
RECORD = bytes(30_000)


async def move(broker: DirectBroker, replicas: list[int] | None, index: int = 0, **options: Any) -> Any:
    wanted = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=TOPIC, partitions=[wanted])], **options
    )
    return (await broker.send(request, 1)).responses[0].partitions[0]


async def moving(broker: DirectBroker, *indexes: int) -> list[Any]:
    topics = (
        [ListPartitionReassignmentsTopics(name=TOPIC, partition_indexes=list(indexes))] if indexes else None
    )
    answer = await broker.send(ListPartitionReassignmentsRequest(topics=topics), 0)
    return [part for topic in answer.topics for part in topic.partitions]


async def moved(cluster: DirectCluster, *replicas: int) -> DirectBroker:
    async with asyncio.timeout(60):
        while True:
            leader = await led(cluster, set(replicas))
            if (await described(leader))[0].replica_nodes == list(replicas):
                return leader
            await asyncio.sleep(0.01)


async def configure(broker: DirectBroker, kind: int, name: str, **configs: str) -> None:
    changes = [AlterableConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=changes)
    answer = await broker.send(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


def folder(cluster: DirectCluster, broker: int) -> bool:
    return (cluster.brokers[broker].context.data_dir / f"{TOPIC}-0").exists()


async def test_a_partition_goes_from_one_broker_to_two_others_while_it_is_written_to(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3) as cluster:
        assert (await create(cluster.brokers[1], 1)).replication_factor == 1
        first = (await described(await led(cluster)))[0].leader_id
        others = sorted({1, 2, 3} - {first})
        written = 0
        over = asyncio.Event()

        async def write() -> None:
            nonlocal written
            while not over.is_set():
                leader = await led(cluster)
                answer = await leader.produce(TOPIC, [b"%d" % written], acks=-1)
                if answer.error_code == 0:
                    written += 1
                else:
                    assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                await asyncio.sleep(0)

        writing = asyncio.ensure_future(write())
        await until(lambda: written > 5)
        assert (await move(cluster.brokers[others[1]], others)).error_code == 0
        leader = await moved(cluster, *others)
        there = written
        await until(lambda: written > there + 5)
        over.set()
        await writing
        assert await moving(cluster.brokers[first]) == []
        await until(lambda: not folder(cluster, first))
        assert all(folder(cluster, other) for other in others)
        values = [value for _, value in values_of((await leader.fetch(TOPIC)).records)]
        assert set(values) == {b"%d" % number for number in range(written)}
        await until(lambda: len({log_of(cluster.brokers[other]).log_end_offset for other in others}) == 1)
        assert (await move(leader, [first])).error_code == 0
        back = await moved(cluster, first)
        assert (await produce(back, [b"back"])).error_code == 0
        await until(lambda: not any(folder(cluster, other) for other in others))
        assert len(values_of((await back.fetch(TOPIC)).records)) == len(values) + 1


async def test_a_replica_that_was_given_away_while_its_broker_was_down_is_set_aside(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3) as cluster:
        await create(cluster.brokers[1], 2)
        replicas = (await described(await led(cluster)))[0].replica_nodes
        (other,) = {1, 2, 3} - set(replicas)
        await produce(await led(cluster, set(replicas)), [b"1"])
        stays, goes = replicas
        await cluster.stop(goes)
        await led(cluster, {stays})
        assert (await move(cluster.brokers[other], [stays, other])).error_code == 0
        await moved(cluster, stays, other)
        await cluster.start(goes)
        assert not folder(cluster, goes)
        data = cluster.brokers[goes].context.data_dir
        assert [path.name.partition(".")[0] for path in data.glob("*-stray")] == [f"{TOPIC}-0"]


async def test_a_follower_that_becomes_the_only_replica_keeps_one_log(tmp_path: Path) -> None:
    """It becomes the leader and the only replica in one change, and follows again later: its open log is not reused."""
    async with direct_cluster(tmp_path, 3) as cluster:
        await create(cluster.brokers[1], 3)
        leader = await led(cluster, {1, 2, 3})
        first, only, other = (await described(leader))[0].replica_nodes
        assert leader is cluster.brokers[first]
        assert (await produce(leader, [b"0"])).error_code == 0
        assert (await move(leader, [only])).error_code == 0
        alone = await moved(cluster, only)
        assert alone.context.replicas.follower(TOPIC, 0) is None
        assert (await produce(alone, [b"1"])).error_code == 0
        assert (await move(alone, [other])).error_code == 0
        assert (await produce(await moved(cluster, other), [b"2"])).error_code == 0
        assert (await move(alone, [other, only])).error_code == 0
        await moved(cluster, other, only)
        await cluster.stop(only)
        await led(cluster, {other})
        await cluster.start(only)
        await led(cluster, {only, other})
        await cluster.stop(other)
        alone = await led(cluster, {only})
        assert (await produce(alone, [b"3"])).base_offset == 3
        found = await alone.fetch(TOPIC)
        assert [value for _, value in values_of(found.records)] == [b"0", b"1", b"2", b"3"]


async def test_a_throttled_move_is_listed_and_can_be_cancelled_or_continued(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3) as cluster:
        await create(cluster.brokers[1], 1)
        leader = await led(cluster)
        first = (await described(leader))[0].leader_id
        second, third = sorted({1, 2, 3} - {first})
        for _ in range(40):
            await produce(leader, [RECORD])
        for node_id in (first, second):
            role = "leader" if node_id == first else "follower"
            rate = {f"{role}_replication_throttled_rate": SLOW}
            await configure(cluster.brokers[node_id], BROKERS, str(node_id), **rate)
        await configure(leader, TOPICS, TOPIC, leader_replication_throttled_replicas=f"0:{first}")
        await configure(leader, TOPICS, TOPIC, follower_replication_throttled_replicas=f"0:{second}")
        assert (await move(leader, [first, second])).error_code == 0
        for listed in (await moving(cluster.brokers[third]), await moving(cluster.brokers[second], 0, 7)):
            (part,) = listed
            assert (part.replicas, part.adding_replicas, part.removing_replicas) == (
                [first, second],
                [second],
                [],
            )
        refused = await move(leader, [first], allow_replication_factor_change=False)
        assert refused.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        follower = cluster.brokers[second]
        await until(lambda: log_of(follower).log_end_offset > 0)
        assert log_of(follower).log_end_offset < 40, "0.07 MB/s of 1.2 MB"
        assert (await move(cluster.brokers[third], None)).error_code == 0
        await moved(cluster, first)
        await until(lambda: not folder(cluster, second))
        assert (await move(leader, None)).error_code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        assert (await move(leader, [first, second])).error_code == 0
        await configure(leader, TOPICS, TOPIC, leader_replication_throttled_replicas="")
        await configure(leader, TOPICS, TOPIC, follower_replication_throttled_replicas="")
        await moved(cluster, first, second)
        assert log_of(follower).log_end_offset == 40


def throttle(rate: str | None, replicas: str) -> tuple[Throttle, Any, list[float]]:
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.partitions.topic import TopicImage

    now = [0.0]
    config = BrokerConfig({} if rate is None else {"follower.replication.throttled.rate": rate})
    made = Throttle("follower", 2, config, lambda: now[0])
    image = TopicImage("t", None, 4, {"follower.replication.throttled.replicas": replicas})  # type: ignore[arg-type]
    return made, image, now


def test_a_throttle_limits_the_named_replicas() -> None:
    made, image, now = throttle("1000", "0:2, 1:3,3:2")
    assert [made.holds_for(image, index) for index in range(4)] == [True, False, False, True]
    assert made.wait_seconds() == 0
    made.copied(4000)
    assert made.wait_seconds() == 3.0, "a second of it may come at once"
    now[0] = 2.0
    assert made.wait_seconds() == 1.0
    now[0] = 3.0
    assert made.wait_seconds() == 0
    everything, image, _ = throttle("1", "*")
    assert everything.holds_for(image, 3)
    unlimited, image, _ = throttle(None, "*")
    assert not unlimited.holds_for(image, 0)
    unlimited.copied(1 << 40)
    assert unlimited.wait_seconds() == 0
