"""Metadata, DescribeCluster and DescribeTopicPartitions: rules N9, N11, N12, N13."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from simulator.direct import direct_broker

NO_OPERATIONS = -2147483648


def named(*names: str, create: bool = True, **options) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=name) for name in names]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=create, **options)


async def test_n9_null_means_all_topics_and_empty_means_none_except_in_version_0(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("b", 3)
        await broker.create_topic("a")
        for version in range(14):
            everything = await broker.send(MetadataRequest(topics=None if version else []), version)
            assert [topic.name for topic in everything.topics] == ["a", "b"]
            assert [p.partition_index for p in everything.topics[1].partitions] == [0, 1, 2]
            if version:
                assert (await broker.send(MetadataRequest(topics=[]), version)).topics == []


async def test_cached_answers_follow_changes(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:

        async def seen(version: int) -> dict[str, int]:
            response = await broker.send(MetadataRequest(topics=None), version)
            return {topic.name: len(topic.partitions) for topic in response.topics}

        await broker.create_topic("a")
        assert await seen(12) == await seen(12) == {"a": 1}
        await broker.context.topics.create_partitions("a", 4)
        assert await seen(12) == await seen(1) == {"a": 4}
        one = await broker.send(named("a"), 12)
        assert len(one.topics[0].partitions) == 4
        await broker.context.topics.delete_topic("a")
        assert await seen(12) == {}
        again = await broker.create_topic("a", 2)
        assert (await broker.send(named("a"), 12)).topics[0].topic_id == again.topic_id


async def test_large_answers_for_named_topics_are_cached_and_follow_changes(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("wide", 60)
        for _ in range(2):
            (topic,) = (await broker.send(named("wide"), 12)).topics
            assert len(topic.partitions) == 60
        with_operations = named("wide")
        with_operations.include_topic_authorized_operations = True
        (topic,) = (await broker.send(with_operations, 12)).topics
        assert topic.topic_authorized_operations > 0
        (topic,) = (await broker.send(named("wide"), 12)).topics
        assert topic.topic_authorized_operations < 0
        await broker.context.topics.create_partitions("wide", 61)
        assert len((await broker.send(named("wide"), 12)).topics[0].partitions) == 61
        await broker.context.topics.delete_topic("wide")
        request = named("wide")
        request.allow_auto_topic_creation = False
        assert (await broker.send(request, 12)).topics[0].error_code


async def test_n11_n13_broker_ids_epochs_and_operations(tmp_path) -> None:
    async with direct_broker(tmp_path, {"node.id": "7"}) as broker:
        await broker.create_topic("t")
        response = await broker.send(named("t"), 12)
        assert [(b.node_id, b.host, b.port) for b in response.brokers] == [
            (7, "127.0.0.1", broker.broker.port)
        ]
        assert response.controller_id == 7
        assert response.cluster_id == broker.broker.cluster_id
        topic = response.topics[0]
        partition = topic.partitions[0]
        assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (7, [7], [7])
        assert partition.leader_epoch >= 0
        assert partition.offline_replicas == []
        assert topic.topic_authorized_operations == NO_OPERATIONS
        asked = await broker.send(named("t", include_topic_authorized_operations=True), 12)
        assert asked.topics[0].topic_authorized_operations == 0b110111111000
        coordinator = await broker.send(FindCoordinatorRequest(key="g", coordinator_keys=[]), 3)
        assert (coordinator.node_id, coordinator.host, coordinator.port) == (
            7,
            "127.0.0.1",
            broker.broker.port,
        )


async def test_n13_the_advertised_address_wins(tmp_path) -> None:
    async with direct_broker(tmp_path, {"advertised.listeners": "PLAINTEXT://kafka.example:1234"}) as broker:
        response = await broker.send(MetadataRequest(topics=[]), 12)
        assert (response.brokers[0].host, response.brokers[0].port) == ("kafka.example", 1234)
        cluster = await broker.send(DescribeClusterRequest(), 0)
        assert (cluster.brokers[0].host, cluster.brokers[0].port) == ("kafka.example", 1234)
        assert cluster.cluster_id == broker.broker.cluster_id


async def test_n12_asking_for_a_topic_creates_it(tmp_path) -> None:
    async with direct_broker(tmp_path, {"num.partitions": "2"}) as broker:
        response = await broker.send(named("new", "bad name", "__consumer_offsets"), 12)
        codes = {topic.name: topic.error_code for topic in response.topics}
        assert codes == {
            "new": 0,
            "bad name": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "__consumer_offsets": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert len(response.topics[0].partitions) == 2
        assert response.topics[0].topic_id.int
        for refused in (named("other", create=False),):
            code = (await broker.send(refused, 12)).topics[0].error_code
            assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # versions below 4 have no field for it: they create
        assert (await broker.send(named("old"), 1)).topics[0].error_code == 0
        both = await asyncio.gather(*(broker.send(named("raced"), 12) for _ in range(5)))
        assert len({response.topics[0].topic_id for response in both}) == 1
        assert {topic.name for topic in broker.context.metadata.topics()} == {"new", "old", "raced"}


async def test_n12_no_creation_when_it_is_switched_off(tmp_path) -> None:
    async with direct_broker(tmp_path, {"auto.create.topics.enable": "false"}) as broker:
        code = (await broker.send(named("new"), 12)).topics[0].error_code
        assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert broker.context.metadata.topics() == []


async def test_an_id_decides_whatever_name_comes_with_it(tmp_path) -> None:
    """Java's `describeTopics` by id sends the id with an empty name."""
    async with direct_broker(tmp_path) as broker:
        image = await broker.create_topic("t")
        wanted = [
            MetadataRequestTopic(topic_id=image.topic_id, name=""),
            MetadataRequestTopic(topic_id=image.topic_id, name="other"),
            MetadataRequestTopic(topic_id=uuid.uuid4(), name="t"),
        ]
        response = await broker.send(MetadataRequest(topics=wanted), 12)
        assert [(topic.error_code, topic.name) for topic in response.topics] == [
            (0, "t"),
            (0, "t"),
            (ErrorCode.UNKNOWN_TOPIC_ID, None),
        ]
        assert broker.context.metadata.topic("other") is None


async def test_topics_by_id_from_version_12_on(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        image = await broker.create_topic("t")
        wanted = [
            MetadataRequestTopic(topic_id=image.topic_id, name=None),
            MetadataRequestTopic(topic_id=uuid.uuid4(), name=None),
        ]
        response = await broker.send(MetadataRequest(topics=wanted), 12)
        assert response.topics[0].name == "t"
        assert response.topics[1].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        response = await broker.send(MetadataRequest(topics=wanted), 11)
        assert {topic.error_code for topic in response.topics} == {ErrorCode.INVALID_REQUEST}


@settings(max_examples=15, deadline=None)
@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    limit=st.integers(1, 7),
    named_only=st.booleans(),
)
def test_describe_topic_partitions_pages_show_everything_once(
    counts, limit, named_only, tmp_path_factory
) -> None:
    async def test() -> None:
        async with direct_broker(tmp_path_factory.mktemp("d")) as broker:
            for index, count in enumerate(counts):
                await broker.create_topic(f"t{index}", count)
            wanted = [f"t{index}" for index in range(len(counts))] if named_only else []
            seen = []
            cursor: Cursor | None = None
            while True:
                response = await broker.send(
                    DescribeTopicPartitionsRequest(
                        topics=[TopicRequest(name=name) for name in wanted],
                        response_partition_limit=limit,
                        cursor=cursor,
                    )
                )
                page = [
                    (topic.name, p.partition_index) for topic in response.topics for p in topic.partitions
                ]
                assert len(page) <= limit
                seen += page
                cursor = response.next_cursor
                if cursor is None:
                    break
                assert page
            assert seen == [(f"t{index}", p) for index, count in enumerate(counts) for p in range(count)]

    asyncio.run(test())


async def test_describe_topic_partitions_names_what_is_missing(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        image = await broker.create_topic("here")
        response = await broker.send(
            DescribeTopicPartitionsRequest(topics=[TopicRequest(name=name) for name in ("no", "here", "a b")])
        )
        codes = {topic.name: topic.error_code for topic in response.topics}
        assert codes == {
            "no": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "here": 0,
            "a b": ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        assert image.topic_id in {topic.topic_id for topic in response.topics}
        assert broker.context.metadata.topic("no") is None


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (9, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
async def test_describe_cluster_is_about_brokers(tmp_path, endpoint_type, code) -> None:
    async with direct_broker(tmp_path) as broker:
        response = await broker.send(DescribeClusterRequest(endpoint_type=endpoint_type), 1)
        assert response.error_code == code
        assert response.error_message
