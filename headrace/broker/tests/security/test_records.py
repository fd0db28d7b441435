"""Rights to write and read records, which end with their ACL: repeated requests, fetch sessions, long polls."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest.mock import patch

import pytest

from headrace.broker.net.reply import CloseConnection
from headrace.broker.security.acl.model import Permission
from headrace.broker.security.principal import Principal, Session
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.tests.security.people import allow, client, creation, grant, revoke_all, secured_broker
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.protocol.records.encode import Record, build_batch
from simulator.direct import DirectBroker, values_of

TOPIC, CLUSTER, TRANSACTION = ResourceType.TOPIC, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
BATCH = build_batch([Record(None, b"v", (), 1_750_000_000_000)])


def end_of(admin: DirectBroker, topic: str) -> int:
    return admin.context.replicas.partition(topic, 0).log.log_end_offset


# -- produce -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [3, 9, 12])
async def test_produce_without_write_is_denied_for_existing_and_missing_topics(
    tmp_path: Path, version
) -> None:
    async with secured_broker(tmp_path) as admin:
        await admin.create_topic("t")
        await allow(admin, Operation.READ, TOPIC, "t", "missing")
        ann = client(admin, "ann")
        answers = [await ann.produce(name, BATCH, version=version) for name in ("t", "missing")]
        assert [(answer.error_code, answer.error_message) for answer in answers] == [
            (DENIED, answers[0].error_message)
        ] * 2
        assert end_of(admin, "t") == 0
        await allow(admin, Operation.WRITE, TOPIC, "t", "missing")
        assert (await ann.produce("t", BATCH, version=version)).error_code == 0
        missing = await ann.produce("missing", BATCH, version=version)
        assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert end_of(admin, "t") == 1


async def test_the_id_of_a_hidden_topic_is_answered_as_unknown(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as admin:
        await admin.create_topic("t")
        ann = client(admin, "ann")
        assert (await ann.produce("t", BATCH, version=13)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        await allow(admin, Operation.DESCRIBE, TOPIC, "t")
        assert (await ann.produce("t", BATCH, version=13)).error_code == DENIED
        assert end_of(admin, "t") == 0


async def test_one_topic_is_refused_and_the_other_written(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as admin:
        await admin.create_topic("mine")
        await admin.create_topic("theirs")
        await allow(admin, Operation.WRITE, TOPIC, "mine")
        data = [
            TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=BATCH)])
            for name in ("theirs", "mine")
        ]
        response = await client(admin, "ann").send(ProduceRequest(acks=1, timeout_ms=1, topic_data=data), 9)
        assert [topic.partition_responses[0].error_code for topic in response.responses] == [DENIED, 0]
        assert (end_of(admin, "mine"), end_of(admin, "theirs")) == (1, 0)


async def test_without_acknowledgements_the_connection_is_closed(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as admin:
        await admin.create_topic("t")
        with pytest.raises(CloseConnection, match="not authorized"):
            await client(admin, "ann").produce("t", BATCH, acks=0)
        assert end_of(admin, "t") == 0


async def test_a_transactional_batch_needs_its_transactional_id(tmp_path: Path) -> None:
    """The transactional id belongs to another user, or there is none at all (CVE-2018-17196)."""
    batch = build_batch(
        [Record(None, b"v", (), 0)], attributes=0x10, producer_id=0, producer_epoch=0, base_sequence=0
    )
    async with secured_broker(tmp_path) as admin:
        await admin.create_topic("t")
        await allow(admin, Operation.WRITE, TOPIC, "t")
        data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])
        for transactional_id in (None, "theirs"):
            request = ProduceRequest(
                transactional_id=transactional_id, acks=-1, timeout_ms=1, topic_data=[data]
            )
            response = await client(admin, "ann").send(request, 12)
            (answer,) = response.responses[0].partition_responses
            assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        plain = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=BATCH)])
        request = ProduceRequest(transactional_id="theirs", acks=-1, timeout_ms=1, topic_data=[plain])
        (answer,) = (await client(admin, "ann").send(request, 12)).responses[0].partition_responses
        assert answer.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert end_of(admin, "t") == 0


async def test_a_repeated_produce_does_not_outlive_its_acl(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as admin:
        await admin.create_topic("t")
        await allow(admin, Operation.WRITE, TOPIC, "t")
        ann = client(admin, "ann")
        await ann.produce("t", BATCH)
        with patch.object(type(ann.broker.dispatcher), "_learn", side_effect=AssertionError("decoded")):
            assert (await ann.produce("t", BATCH)).error_code == 0
        await revoke_all(admin)
        for _ in range(3):
            assert (await ann.produce("t", BATCH)).error_code == DENIED
        assert end_of(admin, "t") == 2
        await allow(admin, Operation.WRITE, TOPIC, "t")
        for offset in (2, 3, 4):
            assert (await ann.produce("t", BATCH)).base_offset == offset


async def test_a_remembered_produce_does_not_serve_another_principal(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as admin:
        await admin.create_topic("t")
        await allow(admin, Operation.WRITE, TOPIC, "t")
        ann = client(admin, "ann")
        for _ in range(3):
            await ann.produce("t", BATCH)
        ann.peer.session = Session(Principal("User", "bob"), "SASL", "PLAIN")
        assert (await ann.produce("t", BATCH)).error_code == DENIED
        assert end_of(admin, "t") == 3


# -- fetch -------------------------------------------------------------------------------------------------


def wanted(admin: DirectBroker, *names: str, **options) -> FetchRequest:
    topics = []
    for name in names:
        image = admin.context.metadata.topic(name)
        topic = FetchTopic(topic=name, partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)])
        if image is not None:
            topic.topic_id = image.topic_id
        topics.append(topic)
    return FetchRequest(max_bytes=1 << 20, topics=topics, **options)


def told(response) -> list[tuple[int, int]]:
    return [
        (partition.error_code, len(values_of(partition.records or b"")))
        for topic in response.responses
        for partition in topic.partitions
    ]


async def test_fetch_without_read_is_denied_for_existing_and_missing_topics(tmp_path: Path) -> None:
    async with secured_broker(tmp_path) as admin:
        await admin.create_topic("t")
        await admin.produce("t", BATCH)
        await allow(admin, Operation.WRITE, TOPIC, "t", "missing")
        ann = client(admin, "ann")
        response = await ann.send(wanted(admin, "t", "missing"), 12)
        assert told(response) == [(DENIED, 0)] * 2
        there, missing = (topic.partitions[0] for topic in response.responses)
        assert (there.high_watermark, there.log_start_offset, there.last_stable_offset) == (
            missing.high_watermark, missing.log_start_offset, missing.last_stable_offset,
        )  # fmt: skip
        assert told(await ann.send(wanted(admin, "t"), 17)) == [(DENIED, 0)]  # it may know of it
        await revoke_all(admin)
        assert told(await ann.send(wanted(admin, "t"), 17)) == [(ErrorCode.UNKNOWN_TOPIC_ID, 0)]
        await allow(admin, Operation.READ, TOPIC, "t")
        assert told(await ann.send(wanted(admin, "t"), 17)) == [(0, 1)]


@pytest.mark.parametrize("version", [12, 17])
async def test_a_replica_fetch_needs_cluster_action(tmp_path: Path, version) -> None:
    """Its rights as a client do not count, and as a member it needs none of them (CVE-2018-1288)."""
    async with secured_broker(tmp_path) as admin:
        await admin.create_topic("t")
        await admin.produce("t", BATCH)
        await allow(admin, Operation.READ, TOPIC, "t")
        ann = client(admin, "ann")
        as_replica = {"replica_id": 0} if version < 15 else {"replica_state": ReplicaState(replica_id=0)}
        assert told(await ann.send(wanted(admin, "t", **as_replica), version)) == [(DENIED, 0)]
        await revoke_all(admin)
        await allow(admin, Operation.CLUSTER_ACTION, CLUSTER, CLUSTER_NAME)
        assert told(await ann.send(wanted(admin, "t", **as_replica), version)) == [(0, 1)]


@pytest.mark.parametrize("version", [12, 17])
async def test_a_fetch_session_does_not_outlive_its_acl(tmp_path: Path, version) -> None:
    gone = DENIED if version < 13 else ErrorCode.UNKNOWN_TOPIC_ID
    async with secured_broker(tmp_path) as admin:
        await admin.create_topic("t")
        await allow(admin, Operation.READ, TOPIC, "t")
        ann = client(admin, "ann")
        begun = await ann.send(wanted(admin, "t", session_epoch=0), version)
        assert (told(begun), begun.session_id > 0) == ([(0, 0)], True)
        epochs = iter(range(1, 10))

        async def next_fetch(of: DirectBroker = ann) -> list[tuple[int, int]]:
            request = FetchRequest(
                max_bytes=1 << 20, session_id=begun.session_id, session_epoch=next(epochs), topics=[]
            )
            return told(await of.send(request, version))

        await admin.produce("t", BATCH)
        assert await next_fetch() == [(0, 1)]
        assert await next_fetch(client(admin, "bob")) == [(gone, 0)]
        await revoke_all(admin)
        assert await next_fetch() == [(gone, 0)]
        assert await next_fetch() == [(gone, 0)]
        await allow(admin, Operation.READ, TOPIC, "t")
        assert await next_fetch() == [(0, 1)]


@pytest.mark.parametrize("in_session", [False, True])
async def test_a_fetch_that_waits_does_not_outlive_its_acl(tmp_path: Path, in_session) -> None:
    """Records that are written after the right was revoked are not returned to a fetch that began before."""
    async with secured_broker(tmp_path) as admin:
        await admin.create_topic("t")
        await admin.create_topic("u")
        await allow(admin, Operation.READ, TOPIC, "t", "u")
        ann = client(admin, "ann")
        options = {"max_wait_ms": 60_000, "min_bytes": 1}
        if in_session:
            begun = await ann.send(wanted(admin, "t", "u", session_epoch=0), 12)
            request = FetchRequest(
                max_bytes=1 << 20, session_id=begun.session_id, session_epoch=1, topics=[], **options
            )
        else:
            request = wanted(admin, "t", "u", session_epoch=-1, **options)
        waiting = asyncio.create_task(ann.send(request, 12))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await grant(admin, creation(Operation.READ, TOPIC, "t", permission=Permission.DENY))
        await admin.produce("t", BATCH)
        await admin.produce("u", BATCH)
        seen = {topic.topic: topic.partitions[0] for topic in (await waiting).responses}
        assert (seen["t"].error_code, bytes(seen["t"].records or b"")) == (DENIED, b"")
        assert "u" not in seen or seen["u"].error_code == 0
