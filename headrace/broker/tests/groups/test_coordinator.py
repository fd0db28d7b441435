"""The coordinator behind its APIs: every version on the wire, the journal, timers, start and stop."""

import asyncio
import logging
import uuid
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from headrace.broker.cluster.journal_topic import partition_of
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.groups.group_configs import GroupConfigs
from headrace.broker.groups.handlers.apis import group_apis
from headrace.broker.groups.handlers.patterns import PatternResolver
from headrace.broker.groups.journal.records import TOPIC
from headrace.broker.groups.model.limits import Limits
from headrace.broker.metadata.identity import BrokerIdentity
from headrace.broker.metadata.image import BrokerImage
from headrace.broker.requests.declaration import RequestContext
from headrace.broker.runtime.ports import AgeClock
from headrace.broker.runtime.slices import Slices, finish
from headrace.broker.security.principal import ANONYMOUS, Session
from headrace.broker.security.rights import OPEN
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.protocol.messages.list_groups import ListGroupsRequest
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
from headrace.protocol.records.header import read_header, write_base_offset_and_epoch

PARTITIONS = 4
QUICK = Limits(initial_rebalance_delay_ms=0, session_timeout_ms_min=1)


BROKER = BrokerImage(7, 1, "here")


class JournalPartition:
    """A partition's log in memory, with the batches as they would be on disk."""

    closed = False
    is_end_known = True

    def __init__(self, index=0):
        self.index = index
        self.batches = []
        self.high_watermark = 0
        self.error = None
        self._start = 0

    @property
    def log(self):
        if self.error is not None:
            raise self.error
        return SimpleNamespace(log_start_offset=self._start, log_end_offset=self.high_watermark)

    def append(self, batch, origin):
        if self.error is not None:
            raise self.error
        stamped = bytearray(batch)
        write_base_offset_and_epoch(stamped, 0, self.high_watermark, 0)
        self.batches.append(bytes(stamped))
        self.high_watermark += read_header(stamped).record_count
        return SimpleNamespace(last_offset=self.high_watermark - 1)

    def is_published(self, offset):
        return offset <= self.high_watermark

    async def wait_for_high_watermark(self, offset, timeout_ms):
        return offset <= self.high_watermark

    def read(self, offset, max_bytes):
        data = b"".join(batch for batch in self.batches if read_header(batch).last_offset >= offset)
        return SimpleNamespace(read=lambda: data)

    @property
    def last_stable_offset(self):
        return self.high_watermark

    async def flush(self, executor):
        pass

    def delete_records(self, before_offset):
        self._start = before_offset
        self.batches = [batch for batch in self.batches if read_header(batch).base_offset >= before_offset]


class Metadata:
    def __init__(self):
        self.images = {"topic": SimpleNamespace(name="topic", topic_id=uuid.uuid4(), partition_count=3)}
        self.journal = []
        self.created = set()
        self.topic_listeners = []
        self.image = SimpleNamespace(brokers={BROKER.broker_id: BROKER})

    def topic(self, name):
        return self.images.get(name)

    def topic_by_id(self, topic_id):
        found = [image for image in self.images.values() if image.topic_id == topic_id]
        return found[0] if found else None

    def partitions(self, name):
        assert name == TOPIC
        return self.journal

    async def create_journal(self, name, partitions, config):
        assert name not in self.created, "created twice"
        self.created.add(name)
        await asyncio.sleep(0.01)
        self.images[name] = SimpleNamespace(name=name, topic_id=uuid.uuid4(), partition_count=partitions)
        self.journal = [JournalPartition(index) for index in range(partitions)]

    def leader(self, name, index):
        return BROKER


class Store:
    async def children(self, path):
        return []

    async def get_many(self, paths):
        return []


class Clock:
    ahead = 0.0

    def time_ms(self):
        return 1_700_000_000_000

    def monotonic(self):
        return asyncio.get_running_loop().time() + self.ahead


class Site:
    """The durable state of a broker: its metadata and journal. `broker` starts one on them."""

    def __init__(self):
        self.metadata = Metadata()
        self.clock = Clock()
        self.tasks = []
        self.executor = ThreadPoolExecutor(1)

    async def broker(self, limits=QUICK, load=True):
        config = {
            "offsets.topic.num.partitions": PARTITIONS,
            "offsets.retention.check.interval.ms": 600_000,
        }
        clock, metadata, executor = self.clock, self.metadata, self.executor
        entropy = SimpleNamespace(uuid=uuid.uuid4)
        background = SimpleNamespace(start=self.start_task)
        identity = BrokerIdentity(7, "cluster", None, lambda listener: ("127.0.0.1", 9092))
        self.coordinator = GroupCoordinator(
            config,
            GroupConfigs(Store(), config),
            metadata,
            metadata,
            metadata,
            executor,
            AgeClock(clock),
            clock,
            background,
            limits,
        )
        transactions = SimpleNamespace(journal=self.coordinator.journal, check_offered=lambda: None)
        patterns = PatternResolver(self.coordinator, metadata, executor, clock, background)
        apis = group_apis(
            self.coordinator, transactions, patterns, metadata, identity, clock, entropy, Slices()
        )
        self.apis = {each.key: each for each in apis}
        await self.coordinator.start()
        if load:
            await self.settle()
        return self

    def start_task(self, work, name):
        self.tasks.append(asyncio.get_running_loop().create_task(work, name=name))
        return self.tasks[-1]

    async def settle(self):
        while self.tasks:
            await self.tasks.pop()

    def send(self, request, version):
        """Return the handler's result, a response or an awaitable, encoded and decoded in both directions."""
        declaration = self.apis[type(request).API_KEY]
        assert declaration.min_version <= version <= declaration.max_version
        decoded = declaration.request.decode(request.encode(version), version)
        context = RequestContext(
            declaration.key,
            version,
            1,
            "client",
            "127.0.0.1",
            1,
            "PLAINTEXT",
            Session(ANONYMOUS, "PLAINTEXT"),
            OPEN,
        )
        answer = declaration.handler(context, decoded)
        return finish(answer) if isinstance(answer, Generator) else answer

    async def call(self, request, version):
        answer = self.send(request, version)
        if not hasattr(answer, "encode"):
            answer = await asyncio.wait_for(answer, 60)
        if isinstance(answer, Generator):
            answer = finish(answer)
        return type(answer).decode(answer.encode(version), version)


def run(scenario, **options):
    """Run `scenario(site)` against a fresh broker."""

    async def main():
        site = Site()
        await site.broker(**options)
        try:
            await scenario(site)
        finally:
            await site.coordinator.stop()
            for task in site.tasks:
                task.cancel()
            await asyncio.gather(*site.tasks, return_exceptions=True)
            site.executor.shutdown()

    asyncio.run(main())


def join_request(group="g", member_id="", instance_id=None, metadata=b"meta", session_ms=30_000):
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=30_000,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )


def sync_request(member_id, generation, assignments, group="g"):
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            SyncGroupRequestAssignment(member_id=name, assignment=data) for name, data in assignments.items()
        ],
    )


def commit_request(offsets, member_id="", generation=-1, group="g", metadata="m"):
    topics = {}
    for (topic, partition), offset in offsets.items():
        topics.setdefault(topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=metadata
            )
        )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(name=name, partitions=found) for name, found in topics.items()],
    )


def commit_errors(response):
    return {
        (topic.name, partition.partition_index): ErrorCode(partition.error_code)
        for topic in response.topics
        for partition in topic.partitions
    }


async def positions(site, group="g"):
    """Return all committed offsets of a group, or the error."""
    response = await site.call(
        OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)]), 8
    )
    (fetched,) = response.groups
    if fetched.error_code:
        return ErrorCode(fetched.error_code)
    return {
        (topic.name, partition.partition_index): partition.committed_offset
        for topic in fetched.topics
        for partition in topic.partitions
    }


async def until_nobody_is_left(site):
    """Let a session time out."""
    site.clock.ahead += 31
    site.coordinator._deadlines._fire()
    async with asyncio.timeout(60):
        while site.coordinator.groups["g"].members:  # noqa: ASYNC110 - after a grace that nobody tells of
            await asyncio.sleep(0.01)


async def stable_member(site, group="g", session_ms=30_000):
    joined = await site.call(join_request(group, session_ms=session_ms), 3)
    synced = await site.call(
        sync_request(joined.member_id, joined.generation_id, {joined.member_id: b"all"}, group), 3
    )
    assert synced.error_code == ErrorCode.NONE
    return joined.member_id


@pytest.mark.parametrize("version", range(10))
def test_life_of_a_member_in_every_version(version):
    async def scenario(site):
        group = SimpleNamespace()
        answer = await site.call(join_request(), version)
        if version >= 4:
            assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
            answer = await site.call(join_request(member_id=answer.member_id), version)
        assert answer.error_code == ErrorCode.NONE
        assert (answer.generation_id, answer.leader) == (1, answer.member_id)
        assert [(member.member_id, member.metadata) for member in answer.members] == [
            (answer.member_id, b"meta")
        ]
        assert answer.member_id.startswith("client-")
        assert answer.protocol_name == "range"
        assert answer.protocol_type == ("consumer" if version >= 7 else None)
        group.member = answer.member_id

        synced = await site.call(sync_request(group.member, 1, {group.member: b"\x00all"}), min(version, 5))
        assert (synced.error_code, synced.assignment) == (ErrorCode.NONE, b"\x00all")

        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=group.member)
        assert (await site.call(beat, min(version, 4))).error_code == ErrorCode.NONE

        commit = commit_request({("topic", 0): 5}, group.member, 1)
        committed = await site.call(commit, max(version, 2))
        assert commit_errors(committed) == {("topic", 0): ErrorCode.NONE}

        leave = LeaveGroupRequest(
            group_id="g", member_id=group.member, members=[MemberIdentity(member_id=group.member)]
        )
        if version >= 3:
            leave.member_id = ""
        else:
            leave.members = []
        left = await site.call(leave, min(version, 5))
        assert left.error_code == ErrorCode.NONE
        assert [member.error_code for member in left.members] == ([0] if version >= 3 else [])

    run(scenario)


@pytest.mark.parametrize("version", range(1, 10))
def test_offset_fetch_in_every_version(version):
    async def scenario(site):
        await site.call(commit_request({("topic", 0): 5, ("topic", 1): 6}), 9)
        wanted = [("topic", [0, 2])]
        if version >= 8:
            request = OffsetFetchRequest(
                groups=[
                    OffsetFetchRequestGroup(
                        group_id=group,
                        topics=[OffsetFetchRequestTopics(name=t, partition_indexes=p) for t, p in wanted],
                    )
                    for group in ("g", "other")
                ]
            )
        else:
            request = OffsetFetchRequest(
                group_id="g",
                topics=[OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in wanted],
            )
        response = await site.call(request, version)
        groups = response.groups if version >= 8 else [response]
        found = [
            [(p.partition_index, p.committed_offset, p.metadata) for t in group.topics for p in t.partitions]
            for group in groups
        ]
        assert found[0] == [(0, 5, "m"), (2, -1, "")]
        assert found[1:] == ([[(0, -1, ""), (2, -1, "")]] if version >= 8 else [])

    run(scenario)


@pytest.mark.parametrize("version", range(2, 8))
def test_offset_fetch_of_all_topics(version):
    async def scenario(site):
        await site.call(commit_request({("topic", 0): 5, ("topic", 1): 6}), 2)
        response = await site.call(OffsetFetchRequest(group_id="g", topics=None), version)
        assert {p.partition_index: p.committed_offset for t in response.topics for p in t.partitions} == {
            0: 5,
            1: 6,
        }

    run(scenario)


def test_offsets_by_topic_id():
    """Version 10 of OffsetCommit and OffsetFetch; offsets committed by id are found by name."""

    async def scenario(site):
        known, gone = site.metadata.topic("topic").topic_id, uuid.uuid4()
        request = commit_request({("topic", 1): 6})
        by_name = request.topics[0]
        by_name.topic_id = known
        request.topics.append(OffsetCommitRequestTopic(topic_id=gone, partitions=by_name.partitions))
        committed = await site.call(request, 10)
        assert [(t.topic_id, [p.error_code for p in t.partitions]) for t in committed.topics] == [
            (known, [0]),
            (gone, [ErrorCode.UNKNOWN_TOPIC_ID]),
        ]
        wanted = [OffsetFetchRequestTopics(topic_id=each, partition_indexes=[1]) for each in (gone, known)]
        groups = [
            OffsetFetchRequestGroup(group_id="g", topics=wanted),
            OffsetFetchRequestGroup(group_id="g", topics=None),
        ]
        some, everything = (await site.call(OffsetFetchRequest(groups=groups), 10)).groups
        assert [
            (t.topic_id, p.error_code, p.committed_offset) for t in some.topics for p in t.partitions
        ] == [(gone, ErrorCode.UNKNOWN_TOPIC_ID, -1), (known, 0, 6)]
        assert [(t.topic_id, p.committed_offset) for t in everything.topics for p in t.partitions] == [
            (known, 6)
        ]

    run(scenario)


@pytest.mark.parametrize("version", range(7))
def test_find_coordinator_in_every_version(version):
    async def scenario(site):
        if version >= 4:
            request = FindCoordinatorRequest(coordinator_keys=["a", "b"])
        else:
            request = FindCoordinatorRequest(key="a")
        response = await site.call(request, version)
        found = response.coordinators if version >= 4 else [response]
        assert len(found) == (2 if version >= 4 else 1)
        for one in found:
            assert (one.error_code, one.node_id, one.host, one.port) == (0, 7, "127.0.0.1", 9092)

    run(scenario)


def test_a_transactional_id_has_a_coordinator_and_nothing_else_has():
    async def scenario(site):
        found = await site.call(FindCoordinatorRequest(key="tx", key_type=1), 3)
        assert (found.error_code, found.port > 0) == (ErrorCode.NONE, True)
        response = await site.call(FindCoordinatorRequest(key="g:topic:0", key_type=2), 3)
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert "key type 2" in response.error_message

    run(scenario)


def test_journal_topic_is_created_once_on_first_use():
    async def scenario(site):
        assert site.metadata.topic(TOPIC) is None
        requests = [FindCoordinatorRequest(key="a"), join_request(), commit_request({("topic", 0): 1})]
        answers = [site.send(request, 3) for request in requests]
        await asyncio.gather(*(asyncio.wait_for(answer, 60) for answer in answers))
        assert len(site.metadata.journal) == PARTITIONS

    run(scenario)


def test_journal_topic_is_created_though_its_first_client_hangs_up():
    async def scenario(site):
        first = asyncio.ensure_future(site.send(FindCoordinatorRequest(key="a"), 3))
        await asyncio.sleep(0)
        first.cancel()
        assert (await site.call(FindCoordinatorRequest(key="a"), 3)).error_code == ErrorCode.NONE
        assert len(site.metadata.journal) == PARTITIONS

    run(scenario)


def test_failure_to_create_the_journal_is_told():
    async def scenario(site):
        async def refuse(name, partitions, config):
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")

        site.metadata.create_journal = refuse
        for request, version in [
            (commit_request({("topic", 0): 1}), 9),
            (FindCoordinatorRequest(key="a"), 0),
        ]:
            with pytest.raises(KafkaError) as raised:
                await site.call(request, version)
            declaration = site.apis[type(request).API_KEY]
            response = finish(declaration.on_error(request, version, raised.value))
            assert ErrorCode.KAFKA_STORAGE_ERROR.value in _codes(response)
            response.encode(version)

    run(scenario)


def _codes(response):
    if hasattr(response, "coordinators"):
        return [response.error_code, *(one.error_code for one in response.coordinators)]
    return [partition.error_code for topic in response.topics for partition in topic.partitions]


def test_commit_for_unknown_topics_and_partitions_is_refused():
    async def scenario(site):
        response = await site.call(commit_request({("topic", 0): 1, ("topic", 3): 1, ("nope", 0): 1}), 8)
        assert commit_errors(response) == {
            ("topic", 0): ErrorCode.NONE,
            ("topic", 3): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("nope", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert await positions(site) == {("topic", 0): 1}

    run(scenario)


@pytest.mark.parametrize(
    ("version", "error"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)]
)
def test_commit_of_a_member_of_no_group(version, error):
    async def scenario(site):
        response = await site.call(commit_request({("topic", 0): 1}, "m", 1), version)
        assert commit_errors(response) == {("topic", 0): error}
        assert not site.coordinator.groups

    run(scenario)


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (join_request(group=""), 5),
        (sync_request("m", 1, {}, group=""), 3),
        (HeartbeatRequest(group_id="", member_id="m"), 3),
        (LeaveGroupRequest(group_id="", members=[MemberIdentity(member_id="m")]), 3),
        (OffsetDeleteRequest(group_id=""), 0),
    ],
)
def test_group_without_a_name_is_refused(request_, version):
    async def scenario(site):
        assert (await site.call(request_, version)).error_code == ErrorCode.INVALID_GROUP_ID

    run(scenario)


def test_requests_of_unknown_members_leave_no_group_behind():
    async def scenario(site):
        await site.call(FindCoordinatorRequest(key="g"), 0)
        await site.call(HeartbeatRequest(group_id="g", generation_id=1, member_id="m"), 0)
        await site.call(sync_request("m", 1, {}), 0)
        await site.call(LeaveGroupRequest(group_id="g", member_id="m"), 0)
        await site.call(join_request(member_id="m"), 0)
        await positions(site)
        assert not site.coordinator.groups
        assert not site.coordinator._waiting

    run(scenario)


class TestAdministration:
    @pytest.mark.parametrize("version", range(7))
    def test_describe(self, version):
        async def scenario(site):
            member = await stable_member(site)
            response = await site.call(DescribeGroupsRequest(groups=["g", "unknown"]), version)
            group, unknown = response.groups
            assert (group.group_state, group.protocol_type, group.protocol_data) == (
                "Stable",
                "consumer",
                "range",
            )
            assert group.authorized_operations == -2147483648
            (described,) = group.members
            assert (described.member_id, described.client_id) == (member, "client")
            assert described.client_host == "/127.0.0.1"
            assert (described.member_metadata, described.member_assignment) == (b"meta", b"all")
            assert unknown.group_state == "Dead"
            assert unknown.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else ErrorCode.NONE)

        run(scenario)

    @pytest.mark.parametrize("version", range(6))
    def test_list(self, version):
        async def scenario(site):
            await stable_member(site)
            await site.call(commit_request({("topic", 0): 1}, group="simple"), 5)
            response = await site.call(ListGroupsRequest(), version)
            found = {group.group_id: (group.protocol_type, group.group_state) for group in response.groups}
            states = ("Stable", "Empty") if version >= 4 else ("", "")
            assert found == {"g": ("consumer", states[0]), "simple": ("", states[1])}

        run(scenario)

    def test_list_by_state_and_type(self):
        async def scenario(site):
            await stable_member(site)
            await site.call(commit_request({("topic", 0): 1}, group="simple"), 5)

            async def listed(**filters):
                response = await site.call(ListGroupsRequest(**filters), 5)
                return sorted(group.group_id for group in response.groups)

            assert await listed(states_filter=["stable"]) == ["g"]
            assert await listed(states_filter=["Empty", "Dead"]) == ["simple"]
            assert await listed(types_filter=["Classic"]) == ["g", "simple"]
            assert await listed(types_filter=["consumer"]) == []

        run(scenario)

    @pytest.mark.parametrize("version", range(3))
    def test_delete(self, version):
        async def scenario(site):
            await stable_member(site)
            await site.call(commit_request({("topic", 0): 1}, group="simple"), 5)
            request = DeleteGroupsRequest(groups_names=["g", "simple", "unknown"])
            response = await site.call(request, version)
            assert [(result.group_id, result.error_code) for result in response.results] == [
                ("g", ErrorCode.NON_EMPTY_GROUP),
                ("simple", ErrorCode.NONE),
                ("unknown", ErrorCode.GROUP_ID_NOT_FOUND),
            ]
            assert list(site.coordinator.groups) == ["g"]
            await site.broker()
            assert list(site.coordinator.groups) == ["g"]

        run(scenario)

    def test_delete_offsets(self):
        async def scenario(site):
            await site.call(commit_request({("topic", 0): 1, ("topic", 1): 2}), 5)
            request = OffsetDeleteRequest(
                group_id="g",
                topics=[
                    OffsetDeleteRequestTopic(
                        name="topic",
                        partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in (0, 9)],
                    )
                ],
            )
            response = await site.call(request, 0)
            assert [partition.error_code for partition in response.topics[0].partitions] == [
                ErrorCode.NONE,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ]
            assert await positions(site) == {("topic", 1): 2}
            request.group_id = "unknown"
            assert (await site.call(request, 0)).error_code == ErrorCode.GROUP_ID_NOT_FOUND

        run(scenario)


class TestRestart:
    def test_offsets_and_members_come_back(self):
        async def scenario(site):
            member = await stable_member(site)
            await site.call(commit_request({("topic", 1): 9}, member, 1), 5)
            await site.coordinator.stop()
            await site.broker()
            assert await positions(site) == {("topic", 1): 9}
            beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member)
            assert (await site.call(beat, 3)).error_code == ErrorCode.NONE
            again = await site.call(sync_request(member, 1, {}), 3)
            assert again.assignment == b"all"

        run(scenario)

    def test_member_that_does_not_come_back_loses_its_session(self):
        async def scenario(site):
            await stable_member(site)
            await site.coordinator.stop()
            await site.broker()
            assert site.coordinator.groups["g"].members
            await until_nobody_is_left(site)

        run(scenario)

    def test_nothing_is_served_before_it_is_loaded(self):
        async def scenario(site):
            await site.call(commit_request({("topic", 0): 1}), 5)
            await site.coordinator.stop()
            await site.broker(load=False)
            loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            assert await positions(site) is loading
            assert set(commit_errors(await site.call(commit_request({("topic", 0): 2}), 5)).values()) == {
                loading
            }
            assert (await site.call(join_request(), 3)).error_code == loading
            assert (await site.call(ListGroupsRequest(), 3)).error_code == loading
            assert (await site.call(DescribeGroupsRequest(groups=["g"]), 3)).groups[0].error_code == loading
            # A member is not told of a rebalance, and one that waits for an assignment must join again.
            beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
            assert (await site.call(beat, 3)).error_code == ErrorCode.NONE
            synced = await site.call(sync_request("m", 1, {}), 3)
            assert synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS
            await site.settle()
            assert await positions(site) == {("topic", 0): 1}

        run(scenario)

    def test_unreadable_partition_does_not_pretend_to_be_empty(self, caplog):
        async def scenario(site):
            names = ["g", "h", "i", "j", "k"]
            for name in names:
                await site.call(commit_request({("topic", 0): 1}, group=name), 5)
            broken = partition_of("g", PARTITIONS)
            site.metadata.journal[broken].error = KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, "input/output error"
            )
            await site.coordinator.stop()
            await site.broker()
            for name in names:
                expected = (
                    ErrorCode.COORDINATOR_NOT_AVAILABLE
                    if partition_of(name, PARTITIONS) == broken
                    else {("topic", 0): 1}
                )
                assert await positions(site, name) == expected
            assert "input/output error" in caplog.text

        with caplog.at_level(logging.ERROR, "headrace.groups"):
            run(scenario)

    def test_long_journal_is_rewritten_to_its_live_content(self, monkeypatch):
        monkeypatch.setattr("headrace.broker.cluster.journal_topic.REWRITE_RECORDS_MIN", 50)

        async def scenario(site):
            await stable_member(site, group="g")
            for offset in range(45):
                await site.call(commit_request({("topic", 0): offset}, group="simple"), 5)
            await site.settle()
            for offset in range(500):
                await site.call(commit_request({("topic", 0): offset}, group="simple"), 5)
                if offset % 10 == 0:
                    await site.settle()
            kept = [
                partition.high_watermark - partition.log.log_start_offset
                for partition in site.metadata.journal
            ]
            assert max(kept) <= 60
            await site.coordinator.stop()
            await site.broker()
            assert await positions(site, "simple") == {("topic", 0): 499}
            assert len(site.coordinator.groups["g"].members) == 1

        run(scenario)

    def test_journal_that_has_grown_is_rewritten_after_loading(self, monkeypatch):
        async def scenario(site):
            for offset in range(300):
                await site.call(commit_request({("topic", 0): offset}), 5)
            await site.coordinator.stop()
            monkeypatch.setattr("headrace.broker.cluster.journal_topic.REWRITE_RECORDS_MIN", 50)
            await site.broker()
            partition = site.metadata.journal[partition_of("g", PARTITIONS)]
            assert partition.high_watermark - partition.log.log_start_offset == 1
            assert await positions(site) == {("topic", 0): 299}

        run(scenario)


def test_journal_that_refuses_a_commit_is_told_as_retriable():
    async def scenario(site):
        await site.call(commit_request({("topic", 0): 1}), 5)
        partition = site.metadata.journal[partition_of("g", PARTITIONS)]
        partition.error = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")
        response = await site.call(commit_request({("topic", 0): 2}), 5)
        assert commit_errors(response) == {("topic", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert await positions(site) == {("topic", 0): 1}
        partition.error = None
        await site.call(commit_request({("topic", 0): 3}), 5)
        assert await positions(site) == {("topic", 0): 3}

    run(scenario)


def test_client_that_hangs_up_leaves_no_waiter():
    async def scenario(site):
        leader = await stable_member(site)
        waiting = site.send(join_request(), 3)
        assert isinstance(waiting, asyncio.Future)
        assert len(site.coordinator.groups["g"].members) == 2
        waiting.cancel()
        await asyncio.sleep(0)
        assert not site.coordinator._waiting
        assert list(site.coordinator.groups["g"].members) == [leader]

    run(scenario)


def test_stopping_answers_waiting_requests():
    async def scenario(site):
        await stable_member(site)
        waiting = site.send(join_request(), 3)
        await site.coordinator.stop()
        with pytest.raises(KafkaError) as raised:
            await waiting
        assert raised.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (await site.call(join_request(), 3)).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE

    run(scenario)


def test_session_ends_without_any_request():
    async def scenario(site):
        await stable_member(site)
        await until_nobody_is_left(site)

    run(scenario)


def test_slow_append_does_not_cost_the_session():
    async def scenario(site):
        joined = await site.call(join_request(), 3)
        partition = site.metadata.journal[partition_of("g", PARTITIONS)]
        append = partition.append

        def slow(batch, origin):
            site.clock.ahead += 300
            return append(batch, origin)

        partition.append = slow
        await site.call(sync_request(joined.member_id, 1, {joined.member_id: b"all"}), 3)
        await asyncio.sleep(0.3)
        assert site.coordinator.groups["g"].members

    run(scenario)


def test_two_members_share_a_generation_and_get_their_own_part():
    async def scenario(site):
        first, second = await asyncio.gather(site.call(join_request(), 3), site.call(join_request(), 3))
        leader, follower = (first, second) if first.members else (second, first)
        assert leader.generation_id == follower.generation_id == 1
        assignments = {leader.member_id: b"L", follower.member_id: b"F"}
        led, followed = await asyncio.gather(
            site.call(sync_request(leader.member_id, 1, assignments), 3),
            site.call(sync_request(follower.member_id, 1, {}), 3),
        )
        assert (led.assignment, followed.assignment) == (b"L", b"F")

    run(scenario)


def test_deleted_topic_is_forgotten_by_every_group():
    async def scenario(site):
        site.metadata.images["other"] = SimpleNamespace(partition_count=1)
        for group in ("g", "h"):
            await site.call(commit_request({("topic", 0): 1, ("other", 0): 2}, group=group), 5)
        site.coordinator.forget_topic("topic")
        assert await positions(site, "g") == await positions(site, "h") == {("other", 0): 2}

    run(scenario)


def test_expiry_runs_over_all_groups():
    async def scenario(site):
        for index in range(250):
            await site.call(commit_request({("topic", 0): 1}, group=f"g{index}"), 5)
        await site.coordinator.expiry.run()
        assert not site.coordinator.groups
        await site.broker()
        assert not site.coordinator.groups

    run(scenario, limits=Limits(offsets_retention_ms=0))
