"""Consumer groups as their clients see them, version by version, through a whole broker."""

import asyncio
import logging
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.broker.cluster.journal_topic import JournalTopic
from headrace.broker.configs.broker_config import BrokerConfig
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from simulator.direct import direct_broker


def subscription(*topics):
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def scenario(test, **config):
    """A test of one broker with a topic "t" of two partitions."""

    def run(tmp_path):
        async def main():
            async with direct_broker(
                tmp_path, {name.replace("_", "."): v for name, v in config.items()}
            ) as broker:
                await broker.create_topic("t", 2)
                await test(broker)

        asyncio.run(main())

    return run


async def join(broker, member_id="", instance_id=None, *, version=9, protocols=("range",), session_ms=30_000):
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name=name, metadata=subscription("t")) for name in protocols],
    )
    return await broker.send(request, version)


async def sync(broker, member_id, generation, assignments=None, instance_id=None, *, version=5, **more):
    named = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
    request = SyncGroupRequest(
        group_id="g",
        generation_id=generation,
        member_id=member_id,
        group_instance_id=instance_id,
        assignments=[
            SyncGroupRequestAssignment(member_id=name, assignment=data)
            for name, data in (assignments or {}).items()
        ],
        **{**named, **more},
    )
    return await broker.send(request, version)


async def heartbeat(broker, member_id, generation, instance_id=None, version=4):
    request = HeartbeatRequest(
        group_id="g", generation_id=generation, member_id=member_id, group_instance_id=instance_id
    )
    return (await broker.send(request, version)).error_code


async def commit(broker, offset, metadata="", member_id="", generation=-1, *, version=9, partition=0):
    image = broker.context.metadata.topic("t")
    topic = OffsetCommitRequestTopic(
        name="t",
        topic_id=image.topic_id,
        partitions=[
            OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=metadata
            )
        ],
    )
    request = OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=generation, member_id=member_id, topics=[topic]
    )
    return (await broker.send(request, version)).topics[0].partitions[0].error_code


async def committed(broker, version=9):
    """Return offset and metadata of partition 0 of "t"."""
    if version >= 8:
        image = broker.context.metadata.topic("t")
        topics = [OffsetFetchRequestTopics(name="t", topic_id=image.topic_id, partition_indexes=[0])]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
        answer = (await broker.send(request, version)).groups[0]
    else:
        topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        answer = await broker.send(OffsetFetchRequest(group_id="g", topics=topics), version)
    found = answer.topics[0].partitions[0]
    return found.committed_offset, found.metadata


async def new_member(broker, instance_id=None, version=9):
    """Return a member in its first JoinGroup that may wait; from version 4 on it is given its id before."""
    first = await join(broker, "", instance_id, version=version)
    if version < 4 or instance_id is not None:
        return first
    assert first.error_code == ErrorCode.MEMBER_ID_REQUIRED
    return await join(broker, first.member_id, version=version)


async def stable(broker, instance_id=None, version=9):
    """Return the member id of the only member of generation 1."""
    joined = await new_member(broker, instance_id, version)
    assert (joined.error_code, joined.generation_id) == (0, 1)
    synced = await sync(broker, joined.member_id, 1, {joined.member_id: b"all"}, instance_id)
    assert (synced.error_code, synced.assignment) == (0, b"all")
    return joined.member_id


# -- offsets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["", "here", "é" * 2048, "x" * 4096], ids=["empty", "short", "wide", "longest"]
)
async def test_metadata_strings_round_trip_in_every_version_and_over_a_restart(tmp_path, text):
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 2)
        for version in range(2, 11):
            assert await commit(broker, version, text, version=version) == 0
            for reader in range(1, 11):
                assert await committed(broker, reader) == (version, text)
        assert await commit(broker, 99, None) == 0, "no string is an empty one"
        assert await committed(broker) == (99, "")
        assert await commit(broker, 7, text) == 0
        assert await commit(broker, 8, text + "x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    async with direct_broker(tmp_path) as broker:
        for _ in range(6000):
            if await heartbeat(broker, "x", 0) != 0:
                break
            await asyncio.sleep(0.01)
        assert await committed(broker) == (7, text)


async def _many_groups(broker):
    assert await commit(broker, 5, "m") == 0
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0, 1])]
    groups = [
        OffsetFetchRequestGroup(group_id="g", topics=topics),
        OffsetFetchRequestGroup(group_id="nobody's", topics=topics),
        OffsetFetchRequestGroup(group_id="g", topics=None),
        OffsetFetchRequestGroup(group_id="g", topics=[]),
    ]
    for version in (8, 9):
        answer = await broker.send(OffsetFetchRequest(groups=groups), version)
        assert [group.group_id for group in answer.groups] == ["g", "nobody's", "g", "g"]
        offsets = [
            [p.committed_offset for t in group.topics for p in t.partitions] for group in answer.groups
        ]
        assert offsets == [[5, -1], [-1, -1], [5], []], "null asks for everything, an empty list for nothing"


test_offset_fetch_v8_answers_several_groups_in_one_call = scenario(_many_groups)


async def _subscribed(broker):
    await broker.create_topic("other")
    member = await stable(broker)
    assert await commit(broker, 3, "", member, 1) == 0
    partitions = [OffsetDeleteRequestPartition(partition_index=0)]
    topics = [OffsetDeleteRequestTopic(name=name, partitions=partitions) for name in ("t", "other")]
    answer = await broker.send(OffsetDeleteRequest(group_id="g", topics=topics), 0)
    codes = {topic.name: topic.partitions[0].error_code for topic in answer.topics}
    assert codes == {"t": ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, "other": 0}
    assert await committed(broker) == (3, "")
    (result,) = (await broker.send(DeleteGroupsRequest(groups_names=["g"]))).results
    assert result.error_code == ErrorCode.NON_EMPTY_GROUP


test_what_live_members_read_is_not_deleted = scenario(_subscribed)


# -- finding the coordinator ---------------------------------------------------------------------------------


async def _coordinator(broker):
    metadata = await broker.send(MetadataRequest(topics=[]))
    brokers = {(one.node_id, one.host, one.port) for one in metadata.brokers}
    for version in range(7):
        for key_type in (0, 1) if version else (0,):
            keys = {"coordinator_keys": ["a", "b", "a"]} if version >= 4 else {"key": "a"}
            answer = await broker.send(FindCoordinatorRequest(key_type=key_type, **keys), version)
            found = answer.coordinators if version >= 4 else [answer]
            assert len(found) == (3 if version >= 4 else 1)
            for one in found:
                assert one.error_code == 0
                assert (one.node_id, one.host, one.port) in brokers
    keys = ["g:AAAAAAAAAAAAAAAAAAAAAA:0", "x"]
    answer = await broker.send(FindCoordinatorRequest(key_type=2, coordinator_keys=keys), 6)
    assert [one.error_code for one in answer.coordinators] == [ErrorCode.INVALID_REQUEST] * 2
    assert [one.key for one in answer.coordinators] == keys


test_find_coordinator_names_a_broker_of_metadata_for_each_key = scenario(_coordinator)


# -- classic members -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(10))
def test_join_v4_asks_to_come_back_with_the_id_it_gives(tmp_path, version):
    async def test(broker):
        answer = await join(broker, version=version)
        assert answer.member_id.startswith("test-")
        if version < 4:
            assert (answer.error_code, answer.generation_id) == (0, 1)
            return
        assert (answer.error_code, answer.generation_id) == (ErrorCode.MEMBER_ID_REQUIRED, -1)
        again = await join(broker, answer.member_id, version=version)
        assert (again.error_code, again.member_id, again.leader) == (0, answer.member_id, answer.member_id)

    scenario(test)(tmp_path)


@pytest.mark.parametrize("version", range(5, 10))
def test_join_v5_a_replacement_fences_the_previous_static_member(tmp_path, version):
    async def test(broker):
        old = await stable(broker, "one", version)
        taken = await join(broker, "", "one", version=version)
        assert taken.error_code == 0, "a static member is asked for no id"
        assert taken.member_id != old
        assert taken.generation_id == 1, "the other members are not disturbed"
        fenced = ErrorCode.FENCED_INSTANCE_ID
        assert (await join(broker, old, "one", version=version)).error_code == fenced
        assert await heartbeat(broker, old, 1, "one") == fenced
        assert (await sync(broker, old, 1, instance_id="one")).error_code == fenced
        synced = await sync(broker, taken.member_id, 1, instance_id="one")
        assert (synced.error_code, synced.assignment) == (0, b"all")

    scenario(test)(tmp_path)


@pytest.mark.parametrize("version", range(5, 10))
def test_join_v9_tells_a_leader_that_came_back_to_skip_the_assignment(tmp_path, version):
    async def test(broker):
        await stable(broker, "one", version)
        again = await join(broker, "", "one", version=version)
        if version >= 9:
            assert again.skip_assignment
            assert again.leader == again.member_id
            assert [member.group_instance_id for member in again.members] == ["one"]
        else:
            assert again.leader != again.member_id, "it would assign partitions for which no member waits"
            assert again.members == []

    scenario(test)(tmp_path)


@pytest.mark.parametrize("version", range(10))
def test_join_v7_says_type_and_name_of_the_protocol(tmp_path, version):
    async def test(broker):
        answer = await new_member(broker, version=version)
        assert answer.protocol_name == "range"
        assert answer.protocol_type == ("consumer" if version >= 7 else None)
        for sync_version in range(6):
            synced = await sync(broker, answer.member_id, 1, {answer.member_id: b"x"}, version=sync_version)
            said = (synced.protocol_type, synced.protocol_name)
            assert said == (("consumer", "range") if sync_version >= 5 else (None, None))

    scenario(test)(tmp_path)


async def _errors(broker):
    member = await stable(broker)
    # 23: nothing in common with the others, or another protocol type
    assert (await join(broker, protocols=("sticky",))).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    for wrong in ({"protocol_name": "sticky"}, {"protocol_type": "connect"}, {"protocol_name": None}):
        assert (await sync(broker, member, 1, **wrong)).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    # 22, 25: another generation, an unknown member
    for generation in (0, 2):
        assert await heartbeat(broker, member, generation) == ErrorCode.ILLEGAL_GENERATION
        assert (await sync(broker, member, generation)).error_code == ErrorCode.ILLEGAL_GENERATION
        assert await commit(broker, 1, "", member, generation) == ErrorCode.ILLEGAL_GENERATION
    assert await heartbeat(broker, "nobody", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await sync(broker, "nobody", 1)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert (await join(broker, "nobody")).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert await commit(broker, 1, "", "nobody", 1) == ErrorCode.UNKNOWN_MEMBER_ID
    left = await broker.send(LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id="nobody")]))
    assert left.members[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    # 26: 6 s to 30 min
    for session_ms, code in [(5_999, 26), (6_000, 79), (1_800_000, 79), (1_800_001, 26)]:
        assert (await join(broker, session_ms=session_ms)).error_code == code


test_classic_errors_have_kafkas_codes = scenario(_errors)


async def _rebalance(broker):
    member = await stable(broker)
    second = asyncio.ensure_future(join(broker, version=3))
    for _ in range(6000):
        if await heartbeat(broker, member, 1) != 0:
            break
        await asyncio.sleep(0.01)
    assert await heartbeat(broker, member, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert (await sync(broker, member, 1)).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert await commit(broker, 1, "", member, 1) == 0, "it may still commit records that it has read"
    first = await join(broker, member)
    assert first.generation_id == (await second).generation_id == 2
    assert (await join(broker)).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert (await join(broker, version=0)).member_id == ""


test_classic_errors_of_a_rebalance_and_of_a_full_group = scenario(_rebalance, group_max_size="2")


def test_the_first_rebalance_waits_three_seconds_by_default():
    assert BrokerConfig()["group.initial.rebalance.delay.ms"] == 3_000


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), version=st.integers(0, 5))
def test_assignments_are_the_leaders_bytes_and_empty_for_forgotten_members(tmp_path_factory, data, version):
    async def test(broker):
        joins = [asyncio.ensure_future(join(broker, version=3)) for _ in range(2)]
        answers = await asyncio.gather(*joins)
        lead = next(answer for answer in answers if answer.leader == answer.member_id)
        follower = next(answer for answer in answers if answer is not lead)
        waits = asyncio.ensure_future(sync(broker, follower.member_id, 1, version=version))
        mine = await sync(
            broker, lead.member_id, 1, {lead.member_id: data, "stranger": b"!"}, version=version
        )
        assert mine.assignment == data
        assert (await waits).assignment == b"", "not a struct that is cut off"

    scenario(test, group_initial_rebalance_delay_ms="20")(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR])
async def test_a_moving_journal_is_not_logged_as_an_error(tmp_path, monkeypatch, caplog, code) -> None:
    """A clean move of a leader is not an error; a disk that fails is one."""

    def refuse(*_: object) -> bool:
        raise KafkaError(code)

    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        assert (await commit(broker, 1)) == ErrorCode.NONE
        monkeypatch.setattr(JournalTopic, "append", refuse)
        caplog.set_level(logging.INFO, "headrace.groups")
        moved = code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await commit(broker, 2)) == (
            ErrorCode.NOT_COORDINATOR if moved else ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        (told,) = [each for each in caplog.records if each.getMessage().startswith("group g: ")]
        assert told.levelno == (logging.INFO if moved else logging.ERROR)
