"""Three whole brokers with a replica each, as their clients see them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.tests.api.test_broker_configs import change
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from headrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from headrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from simulator.cluster import DEADLINE_SECONDS, DirectCluster, direct_cluster
from simulator.direct import DirectBroker, values_of

TOPIC = "orders"


async def create(broker: DirectBroker, replicas: int = 3, partitions: int = 1, **configs: str) -> Any:
    topic = CreatableTopic(
        name=TOPIC,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
        ],
    )
    return (await broker.send(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 7)).topics[0]


async def described(broker: DirectBroker) -> list[Any]:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)])
    found: list[Any] = (await broker.send(request, 12)).topics[0].partitions
    return found


async def led(cluster: DirectCluster, isr: set[int] | None = None, index: int = 0) -> DirectBroker:
    """Return the leader that all running brokers name, when it has this ISR."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            said = [(await described(broker))[index] for broker in cluster.brokers.values()]
            names = {each.leader_id for each in said}
            agreed = isr is None or all(set(each.isr_nodes) == isr for each in said)
            if agreed and len(names) == 1 and names <= set(cluster.brokers):
                return cluster.brokers[names.pop()]
            await asyncio.sleep(0.01)


async def produce(broker: DirectBroker, values: list[bytes], **options: Any) -> Any:
    """Produce and return the leader's answer. A new leader may have to wait for its lease, or for the news."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            answer = await broker.produce(TOPIC, values, **options)
            if answer.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                return answer
            await asyncio.sleep(0.01)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not holds():  # noqa: ASYNC110 - what is waited for is another's
            await asyncio.sleep(0.005)


def log_of(broker: DirectBroker, index: int = 0) -> Any:
    follower = broker.context.replicas.follower(TOPIC, index)
    return broker.context.replicas.partition(TOPIC, index).log if follower is None else follower.log


async def test_records_with_acks_all_are_on_all_replicas_and_survive_the_leader(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3) as cluster:
        answer = await create(cluster.brokers[1], partitions=2, min_insync_replicas="2")
        assert (answer.error_code, answer.replication_factor, answer.num_partitions) == (0, 3, 2)
        leader = await led(cluster, {1, 2, 3})
        (first, _) = await described(leader)
        assert (set(first.replica_nodes), first.offline_replicas) == ({1, 2, 3}, [])
        for broker in cluster.brokers.values():
            (here,) = (await broker.send(DescribeLogDirsRequest(topics=None), 4)).results
            assert [len(topic.partitions) for topic in here.topics if topic.name == TOPIC] == [2]
        known = {"producer_id": 7, "producer_epoch": 0}
        sent = [await produce(leader, [b"%d" % n], **known, base_sequence=n) for n in range(3)]
        assert [(each.error_code, each.base_offset) for each in sent] == [(0, 0), (0, 1), (0, 2)]
        bodies = {log_of(broker).read(0, 1 << 20, up_to=3).read() for broker in cluster.brokers.values()}
        assert len(bodies) == 1
        stopped = first.leader_id
        await cluster.stop(stopped)
        follower = await led(cluster, {1, 2, 3} - {stopped})
        again = await produce(follower, [b"2"], **known, base_sequence=2)
        assert (again.error_code, again.base_offset) == (0, 2), (
            "the retry of what the leader before had taken"
        )
        assert (await produce(follower, [b"3"], **known, base_sequence=3)).base_offset == 3
        assert [value for _, value in values_of((await follower.fetch(TOPIC)).records)] == [
            b"0",
            b"1",
            b"2",
            b"3",
        ]
        await cluster.start(stopped)
        await led(cluster, {1, 2, 3})
        back = cluster.brokers[stopped]
        await until(lambda: log_of(back).log_end_offset == 4)
        assert (
            log_of(back).read(0, 1 << 20, up_to=4).read() == log_of(follower).read(0, 1 << 20, up_to=4).read()
        )


async def test_without_enough_replicas_nothing_is_acknowledged_to_all_nor_shown(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3) as cluster:
        await create(cluster.brokers[1], min_insync_replicas="2")
        leader = await led(cluster, {1, 2, 3})
        own = (await described(leader))[0].leader_id
        assert (await produce(leader, [b"shown"])).error_code == 0
        for node_id in {1, 2, 3} - {own}:
            await cluster.stop(node_id)
        assert await led(cluster, {own}) is leader
        refused = await produce(leader, [b"all"])
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert "min.insync.replicas=2; 1 in sync" in refused.error_message
        assert (await produce(leader, [b"one"], acks=1)).base_offset == 1
        answer = await leader.fetch(TOPIC)
        assert (answer.high_watermark, [v for _, v in values_of(answer.records)]) == (1, [b"shown"])
        other = ({1, 2, 3} - {own}).pop()
        await cluster.start(other)
        await led(cluster, {own, other})
        assert (await produce(leader, [b"all"])).base_offset == 2
        assert (await leader.fetch(TOPIC)).high_watermark == 3


@pytest.mark.parametrize(
    ("replicas", "words"), [(4, "only 3 broker"), (0, "larger than 0"), (-2, "larger than 0")]
)
async def test_replicas_that_cannot_be_are_refused(replicas: int, words: str, tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3) as cluster:
        answer = await create(cluster.brokers[2], replicas)
        assert answer.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert words in answer.error_message


async def test_topics_get_the_default_factor_and_added_partitions_keep_it(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, config={"default.replication.factor": "2"}) as cluster:
        assert (await create(cluster.brokers[1], -1)).replication_factor == 2
        wanted = CreatePartitionsTopic(name=TOPIC, count=3, assignments=None)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=60_000)
        assert (await cluster.brokers[2].send(request, 3)).results[0].error_code == 0
        parts = await described(cluster.brokers[3])
        assert [len(set(part.replica_nodes)) for part in parts] == [2, 2, 2]
        assert len({part.leader_id for part in parts}) == 3


async def test_a_follower_counts_only_with_the_present_epoch_and_incarnation(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3) as cluster:
        await create(cluster.brokers[1])
        leader = await led(cluster, {1, 2, 3})
        image, partition = leader.context.metadata.image, leader.context.replicas.partition(TOPIC, 0)
        other = next(iter(partition.progress.replicas))
        epoch = image.brokers[other].epoch

        async def fetched(leader_epoch: int, broker: int, broker_epoch: int, offset: int) -> int:
            asked = FetchPartition(
                partition=0, current_leader_epoch=leader_epoch, fetch_offset=offset, partition_max_bytes=1
            )
            request = FetchRequest(
                replica_state=ReplicaState(replica_id=broker, replica_epoch=broker_epoch),
                topics=[FetchTopic(topic_id=partition.topic.topic_id, partitions=[asked])],
            )
            responses = (await leader.send(request, 18)).responses
            code: int = responses[0].partitions[0].error_code if responses else 0
            return code

        await produce(leader, [b"1"])
        await until(lambda: partition.progress.replicas[other].end_offset == 1)
        assert await fetched(partition.leader_epoch + 1, other, epoch, 1) == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert await fetched(partition.leader_epoch - 1, other, epoch, 1) == ErrorCode.FENCED_LEADER_EPOCH
        assert await fetched(partition.leader_epoch, other, epoch - 1, 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await fetched(partition.leader_epoch, 9, 99, 1) == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert await fetched(partition.leader_epoch, other, epoch, 2) == ErrorCode.OFFSET_OUT_OF_RANGE
        follower = cluster.brokers[other]
        asked = await follower.fetch(TOPIC)
        assert asked.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_new_leader_says_where_it_ends_when_its_epoch_is_replicated(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3) as cluster:
        await create(cluster.brokers[1])
        leader = await led(cluster, {1, 2, 3})
        await produce(leader, [b"1", b"2"])
        partition = leader.context.replicas.partition(TOPIC, 0)

        async def latest(version: int) -> Any:
            wanted = ListOffsetsPartition(partition_index=0, timestamp=-1)
            request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[wanted])])
            return (await leader.send(request, version)).topics[0].partitions[0]

        assert (await latest(7)).offset == 2
        partition.progress.start_offset = 3  # as if the leader before had published more
        assert (await latest(7)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert (await latest(4)).error_code == ErrorCode.LEADER_NOT_AVAILABLE
        await produce(leader, [b"3"])
        assert (await latest(7)).offset == 3


async def test_a_former_leader_answers_nothing_from_its_log(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, session_ms=4000) as cluster:
        await create(cluster.brokers[1])
        leader = await led(cluster, {1, 2, 3})
        own = (await described(leader))[0].leader_id
        await produce(leader, [b"1"])
        cluster.ensemble.cut(cluster.stores[own])
        others = {1, 2, 3} - {own}
        await cluster.agreed(lambda broker: broker.context.metadata.state(TOPIC, 0).leader in others, *others)
        wanted = ListOffsetsPartition(partition_index=0, timestamp=-1)
        latest = ListOffsetsRequest(topics=[ListOffsetsTopic(name=TOPIC, partitions=[wanted])])
        answers = [
            (await leader.fetch(TOPIC)).error_code,
            (await leader.produce(TOPIC, [b"2"], acks=1)).error_code,
            (await leader.send(latest, 7)).topics[0].partitions[0].error_code,
        ]
        assert answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
        cluster.ensemble.heal(cluster.stores[own])
        await led(cluster, {1, 2, 3})


async def test_leaders_are_elected_by_whichever_broker_is_asked(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3) as cluster:
        await create(cluster.brokers[1])
        preferred = (await described(await led(cluster, {1, 2, 3})))[0].leader_id
        await cluster.stop(preferred)
        (one, other) = {1, 2, 3} - {preferred}
        await led(cluster, {one, other})
        named = [TopicPartitions(topic=TOPIC, partitions=[0])]

        async def elected(broker: int, election_type: int) -> int:
            request = ElectLeadersRequest(election_type=election_type, topic_partitions=named)
            answer = await cluster.brokers[broker].send(request, 2)
            code: int = answer.replica_election_results[0].partition_result[0].error_code
            return code

        assert await elected(one, 0) == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
        assert await elected(one, 1) == ErrorCode.ELECTION_NOT_NEEDED
        await cluster.start(preferred)
        await led(cluster, {1, 2, 3})
        assert await elected(other, 0) == ErrorCode.NONE
        assert await led(cluster) is cluster.brokers[preferred]
        assert await elected(one, 0) == ErrorCode.ELECTION_NOT_NEEDED
        for broker in (preferred, one):
            await cluster.stop(broker)
        left = cluster.brokers[other]
        assert (await produce(left, [b"only here"])).error_code == 0
        await cluster.stop(other)
        again = await cluster.start(one)
        assert (await described(again))[0].leader_id == -1, "it has less than the one that led last"
        assert await elected(one, 1) == ErrorCode.NONE
        assert await led(cluster, {one}) is again
        assert (await produce(again, [b"without it"])).base_offset == 0
        await cluster.start(other)
        await led(cluster, {one, other})
        follower = cluster.brokers[other]
        await until(lambda: log_of(follower).last_epoch == log_of(again).last_epoch)
        assert (
            log_of(follower).read(0, 1 << 20, up_to=1).read()
            == log_of(again).read(0, 1 << 20, up_to=1).read()
        )


@pytest.mark.parametrize("given", ["at the start", "while they run"])
async def test_the_brokers_min_insync_replicas_counts_for_topics_without_one(
    given: str, tmp_path: Path
) -> None:
    name = "min.insync.replicas"
    config = {name: "2"} if given == "at the start" else {}
    async with direct_cluster(tmp_path, 2, config=config) as cluster:
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        assert (await create(cluster.brokers[1], 2)).error_code == 0
        if given == "while they run":
            await change(cluster.brokers[1], "", min_insync_replicas="2")
            await cluster.agreed(
                lambda broker: broker.context.metadata.topic_configs.broker_defaults.get(name) == "2"
            )
        state = cluster.brokers[1].context.metadata.state(TOPIC, 0)
        assert state is not None
        leader, other = state.replicas
        broker = cluster.brokers[leader]
        assert (await broker.produce(TOPIC, [b"a"])).error_code == 0
        await cluster.stop(other)
        await cluster.agreed(lambda broker: broker.context.metadata.state(TOPIC, 0).isr == (leader,))
        state = broker.context.metadata.state(TOPIC, 0)
        assert state is not None
        assert state.elr == (other,), "it has all that was acknowledged"
        assert (await broker.produce(TOPIC, [b"b"])).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await broker.produce(TOPIC, [b"c"], acks=1)).error_code == 0
        assert (await broker.fetch(TOPIC, 0)).high_watermark == 1
        await change(broker, "", min_insync_replicas="1")
        answer = await broker.produce(TOPIC, [b"d"])
        assert answer.error_code == 0, answer.error_message
        state = broker.context.metadata.state(TOPIC, 0)
        assert state is not None
        assert state.elr == (), "it would lead without what is acknowledged now"
        assert (await broker.fetch(TOPIC, 0)).high_watermark == 3
