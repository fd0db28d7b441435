"""Rights in answers, and kept answers: authorized operations, kept metadata, patterns."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.tests.security.people import allow, client, creation, grant, revoke_all, secured_broker
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from headrace.protocol.messages.describe_topic_partitions import TopicRequest as PartitionsOf
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from simulator.direct import DirectBroker, direct_broker

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER


def bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


def named(*names: str, **options: bool) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], **options)


async def operations_told(broker: DirectBroker) -> tuple[int, ...]:
    topic = (await broker.send(named("t", include_topic_authorized_operations=True))).topics[0]
    whole = await broker.send(named("t", include_cluster_authorized_operations=True), 10)
    cluster = await broker.send(DescribeClusterRequest(include_cluster_authorized_operations=True))
    (partitions,) = (
        await broker.send(DescribeTopicPartitionsRequest(topics=[PartitionsOf(name="t")]))
    ).topics
    (group,) = (
        await broker.send(DescribeGroupsRequest(groups=["g"], include_authorized_operations=True), 5)
    ).groups
    (consumers,) = (
        await broker.send(ConsumerGroupDescribeRequest(group_ids=["c"], include_authorized_operations=True))
    ).groups
    assert topic.topic_authorized_operations == partitions.topic_authorized_operations
    assert whole.cluster_authorized_operations == cluster.cluster_authorized_operations
    assert group.authorized_operations == consumers.authorized_operations
    return (
        topic.topic_authorized_operations,
        cluster.cluster_authorized_operations,
        group.authorized_operations,
    )


async def prepared(broker: DirectBroker) -> None:
    await broker.create_topic("t")
    heartbeat = ConsumerGroupHeartbeatRequest(
        group_id="c",
        member_id="m",
        subscribed_topic_names=["t"],
        rebalance_timeout_ms=1000,
        topic_partitions=[],
    )
    assert (await broker.send(heartbeat)).error_code == 0


async def test_without_an_authorizer_all_operations_are_reported_as_allowed(tmp_path: Path) -> None:
    async with direct_broker(tmp_path) as broker:
        await prepared(broker)
        assert await operations_told(broker) == (
            sum(1 << bit for bit in (3, 4, 5, 6, 7, 8, 10, 11)),
            sum(1 << bit for bit in (5, 7, 8, 9, 10, 11, 12)),
            sum(1 << bit for bit in (3, 6, 8, 10, 11)),
        )


async def test_only_allowed_operations_are_reported(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as admin:
        await prepared(admin)
        await grant(
            admin,
            creation(Operation.READ, TOPIC, "t"),
            creation(Operation.ALTER_CONFIGS, TOPIC, "t"),
            creation(Operation.DELETE, GROUP, "*"),
        )
        ann = client(admin, "ann")
        topic = bits(Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
        group = bits(Operation.DELETE, Operation.DESCRIBE)
        assert await operations_told(ann) == (topic, 0, group)
        await allow(admin, Operation.ALTER, CLUSTER, CLUSTER_NAME)
        cluster = bits(Operation.ALTER, Operation.DESCRIBE)
        assert await operations_told(ann) == (topic, cluster, group)


async def test_kept_metadata_is_not_shared_between_principals(tmp_path: Path) -> None:
    """Answers about many partitions are encoded once."""
    async with secured_broker(tmp_path) as admin:
        await admin.create_topic("large", 80)
        ann, bob = client(admin, "ann"), client(admin, "bob")
        await allow(admin, Operation.READ, TOPIC, "large")
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        for _ in range(3):
            seen = [(await each.send(named("large"))).topics[0] for each in (admin, ann, bob)]
            assert [(topic.error_code, len(topic.partitions)) for topic in seen] == [
                (0, 80),
                (0, 80),
                (denied, 0),
            ]
            everything = [
                (await each.send(MetadataRequest(topics=None))).topics for each in (admin, ann, bob)
            ]
            assert [len(topics) for topics in everything] == [1, 1, 0]
        await revoke_all(admin)
        assert (await ann.send(named("large"))).topics[0].error_code == denied
        assert (await ann.send(MetadataRequest(topics=None))).topics == []


async def test_a_pattern_matches_topics_that_may_be_seen_as_of_now(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as admin:
        ids = {name: (await admin.create_topic(name)).topic_id for name in ("o.mine", "o.theirs")}
        await grant(
            admin,
            creation(Operation.READ, GROUP, "g"),
            creation(Operation.READ, TOPIC, "o.mine"),
        )
        ann = client(admin, "ann")
        joined = await ann.send(
            ConsumerGroupHeartbeatRequest(
                group_id="g", member_id="m", subscribed_topic_regex="o.*", rebalance_timeout_ms=1000,
                topic_partitions=[],
            )
        )  # fmt: skip
        assert [each.topic_id for each in joined.assignment.topic_partitions] == [ids["o.mine"]]


async def test_a_heartbeat_names_no_topic_that_may_not_be_seen(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as admin:
        await admin.create_topic("t")
        await allow(admin, Operation.READ, GROUP, "g")
        refused = []
        for name in ("t", "missing"):
            heartbeat = ConsumerGroupHeartbeatRequest(
                group_id="g", member_id="m", subscribed_topic_names=[name], rebalance_timeout_ms=1000,
                topic_partitions=[],
            )  # fmt: skip
            answer = await client(admin, "ann").send(heartbeat)
            refused.append((answer.error_code, answer.error_message))
        assert refused[0] == refused[1]
        assert refused[0][0] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (await admin.send(ListGroupsRequest())).groups == []


async def test_resources_left_out_of_a_listing_are_not_audited(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    async with secured_broker(tmp_path / "data", {"authorizer.audit.log.file": str(file)}) as admin:
        await admin.create_topic("t")
        ann = client(admin, "ann")
        await ann.send(MetadataRequest(topics=None))
        await ann.send(ListGroupsRequest())
        await ann.send(DescribeClusterRequest(include_cluster_authorized_operations=True))
        await ann.send(named("t", "u"))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["api"], line["operation"], line["resource"]) for line in lines] == [
        ("Metadata", "DESCRIBE", "t"),
        ("Metadata", "DESCRIBE", "u"),
    ]


async def test_a_waiting_join_shows_no_members_after_its_right_is_revoked(tmp_path: Path) -> None:
    async with secured_broker(tmp_path, {"group.initial.rebalance.delay.ms": "2500"}) as admin:
        await allow(admin, Operation.READ, GROUP, "g")
        ann = client(admin, "ann")
        join = JoinGroupRequest(
            group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"mine")],
        )  # fmt: skip
        join.member_id = (await ann.send(join)).member_id
        waiting = asyncio.create_task(ann.send(join))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await revoke_all(admin)
        answer = await waiting
        assert (answer.error_code, answer.members) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, [])
