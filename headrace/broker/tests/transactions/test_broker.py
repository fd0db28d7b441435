"""Transactions through the APIs of a whole broker: the rules as a client sees them, restarts included."""

import asyncio
import random

import pytest

from headrace.broker.cluster.journal_topic import JournalTopic
from headrace.broker.groups.coordinator import GroupCoordinator
from headrace.broker.log.partition_log import AppendOrigin
from headrace.broker.transactions.coordinator import MARKERS_PER_TURN
from headrace.broker.transactions.markers import write_marker
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest
from headrace.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from headrace.protocol.messages.describe_transactions import DescribeTransactionsRequest
from headrace.protocol.messages.end_txn import EndTxnRequest
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.protocol.messages.list_transactions import ListTransactionsRequest
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
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.protocol.records.encode import Record, build_batch
from simulator.direct import direct_broker
from simulator.log import StillClock
from simulator.transactional_client import (
    PRODUCE,
    TV1,
    TV2,
    Client,
    committed_values,
    loaded,
    position,
    until,
)


async def latest(broker, isolation_level, topic="a", timestamp=-1):
    """Return the offset of ListOffsets for a timestamp, by default the end."""
    partitions = [ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
    wanted = ListOffsetsTopic(name=topic, partitions=partitions)
    request = ListOffsetsRequest(isolation_level=isolation_level, topics=[wanted])
    return (await broker.send(request, 9)).topics[0].partitions[0].offset


def scenario(function, *, versions=(TV1, TV2)):
    @pytest.mark.parametrize("version", versions)
    def test(tmp_path, version):
        async def main():
            async with direct_broker(tmp_path) as broker:
                await broker.create_topic("a", 2)
                await broker.create_topic("b", 1)
                client = Client(broker, version=version)
                assert await client.init() is ErrorCode.NONE
                await function(broker, client)

        asyncio.run(main())

    return test


async def begin(client, *partitions):
    if client.version == TV1:
        assert set(await client.add(*partitions)) <= {ErrorCode.NONE}


async def _t5(broker, client):
    await broker.produce("a", [b"plain"])
    await begin(client, ("a", 0))
    assert (await client.send([b"x", b"y"])).error_code == 0
    await broker.produce("a", [b"behind"])
    part = await broker.fetch("a", 0, isolation_level=1)
    assert (part.high_watermark, part.last_stable_offset) == (4, 1)
    assert await latest(broker, 0) == 4
    assert await latest(broker, 1) == 1
    assert await committed_values(broker) == [b"plain"]
    uncommitted = await broker.fetch("a", 0)
    assert uncommitted.aborted_transactions is None
    assert uncommitted.last_stable_offset == 1
    assert await client.end(False) is ErrorCode.NONE
    part = await broker.fetch("a", 0, isolation_level=1)
    assert [(e.producer_id, e.first_offset) for e in part.aborted_transactions] == [(0, 1)]
    assert part.last_stable_offset == 5
    assert await committed_values(broker) == [b"plain", b"behind"]
    await begin(client, ("a", 0))
    await client.send([b"kept"])
    assert await client.end(True) is ErrorCode.NONE
    assert await committed_values(broker) == [b"plain", b"behind", b"kept"]


test_t5_read_committed_sees_whole_transactions_only = scenario(_t5)


async def _t5_list_offsets(broker, client):
    stamps = [1_000, 2_000, 3_000]
    for number, stamp in enumerate(stamps):
        if number == 1:
            await begin(client, ("a", 0))
            assert (await client.send([b"open"], timestamp=stamp)).error_code == 0
        else:
            assert (await broker.produce("a", build_batch([Record(None, b"v", (), stamp)]))).error_code == 0
    for level, wanted in [(0, [0, 1, 2, -1]), (1, [0, -1, -1, -1])]:
        found = [await latest(broker, level, timestamp=stamp) for stamp in (*stamps, 3_001)]
        assert found == wanted, "unstable records are not found"
    assert await latest(broker, 1, timestamp=-3) == -1
    assert await client.end(True) is ErrorCode.NONE
    assert [await latest(broker, 1, timestamp=stamp) for stamp in stamps] == [0, 1, 2]
    assert await latest(broker, 1) == 4


test_t5_list_offsets_of_read_committed_ends_where_it_is_stable = scenario(_t5_list_offsets)


async def _t5_wakes(broker, client):
    await begin(client, ("a", 0))
    await client.send([b"x"])
    waiting = asyncio.ensure_future(broker.fetch("a", 0, isolation_level=1, max_wait_ms=600_000))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await client.end(True)
    part = await asyncio.wait_for(waiting, 60)
    assert part.last_stable_offset == 2


test_t5_a_waiting_read_committed_fetch_is_woken_by_the_marker = scenario(_t5_wakes)


async def _t2(broker, client):
    await begin(client, ("a", 0))
    assert (await client.send([b"x"])).error_code == 0
    refused = await client.send([b"x"], partition=1, version=PRODUCE[TV1])
    assert refused.error_code == ErrorCode.TRANSACTION_ABORTABLE
    assert "was not added" in refused.error_message
    refused = await client.send([b"x"], partition=1, version=9)
    assert refused.error_code == ErrorCode.INVALID_TXN_STATE
    assert (await client.send([b"x"], partition=1, version=PRODUCE[TV2])).error_code == 0
    stranger = Client(broker, "other")
    await stranger.init()
    assert (await stranger.send([b"x"])).error_code == ErrorCode.TRANSACTION_ABORTABLE


test_t2_a_partition_outside_of_the_transaction_is_not_written_to = scenario(_t2)


async def _p3_tv2(broker, client):
    gap = await client.send([b"x"], sequence=4)
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await client.send([b"x"])).error_code == 0


test_p3_version_2_begins_with_sequence_zero = scenario(_p3_tv2, versions=[TV2])


async def _p4(broker, client):
    await begin(client, ("a", 0))
    await client.send([b"x"])
    refused = await client.send([b"y"], transactional=False)
    assert refused.error_code == ErrorCode.INVALID_TXN_STATE


test_p4_a_write_outside_of_the_open_transaction_is_refused = scenario(_p4)


async def _fencing(broker, client):
    await begin(client, ("a", 0))
    await client.send([b"zombie"])
    heir = Client(broker, version=client.version)
    assert await heir.init() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert await heir.init() is ErrorCode.NONE
    assert (await client.send([b"zombie"])).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert await client.end(True) is ErrorCode.PRODUCER_FENCED
    assert await client.end(True, version=1) is ErrorCode.INVALID_PRODUCER_EPOCH, (
        "versions that old clients know"
    )
    if client.version == TV1:
        assert await client.add(("a", 0)) == [ErrorCode.PRODUCER_FENCED]
    expected = dict(zip(("producer_id", "producer_epoch"), client.identity, strict=True))
    assert await client.init(**expected) is ErrorCode.PRODUCER_FENCED
    assert await client.init(version=3, **expected) is ErrorCode.INVALID_PRODUCER_EPOCH
    await begin(heir, ("a", 0))
    await heir.send([b"heir"])
    await heir.end(True)
    assert await committed_values(broker) == [b"heir"]


test_t1_a_new_owner_fences_the_old_one = scenario(_fencing)


async def _refusals(broker, client):
    assert await client.init(timeout_ms=900_001) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert await Client(broker, "").init() is ErrorCode.INVALID_REQUEST
    unknown = await client.add(("a", 0), ("nowhere", 0), ("a", 9), ("__transaction_state", 0))
    assert unknown == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert await Client(broker, "never seen").end(True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert await client.end(True, version=4) is ErrorCode.INVALID_TXN_STATE


test_t1_t3_what_makes_no_sense_is_refused = scenario(_refusals)


async def add_offsets(client, group="g"):
    if client.version == TV1:
        request = AddOffsetsToTxnRequest(
            transactional_id=client.name,
            producer_id=client.identity[0],
            producer_epoch=client.identity[1],
            group_id=group,
        )
        assert (await client.broker.send(request)).error_code == 0


async def _offsets(broker, client):
    await broker.produce("a", [b"1", b"2", b"3"])
    await begin(client, ("b", 0))
    await client.send([b"out"], "b")
    if client.version == TV1:
        assert await client.commit_offsets("g", {("a", 0): 2}) == [ErrorCode.TRANSACTION_ABORTABLE]
    await add_offsets(client)
    assert await client.commit_offsets("g", {("a", 0): 2, ("a", 7): 1}) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert await position(broker) == -1
    assert await position(broker, stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    assert await position(broker, partition=1, stable=True) == -1
    assert await client.end(True) is ErrorCode.NONE
    assert await position(broker) == await position(broker, stable=True) == 2
    await begin(client, ("b", 0))
    await add_offsets(client)
    await client.commit_offsets("g", {("a", 0): 3})
    assert await client.end(False) is ErrorCode.NONE
    assert await position(broker, stable=True) == 2, "T6: an abort discards"
    assert await client.commit_offsets("g", {("a", 0): 3}, generation_id=5, member_id="x") in (
        [ErrorCode.TRANSACTION_ABORTABLE],
        [ErrorCode.UNKNOWN_MEMBER_ID],
    )


test_t6_e5_offsets_of_a_group_commit_with_the_transaction = scenario(_offsets)


@pytest.mark.parametrize(
    "late_at", ["before the first write", "between writes", "before the end", "after it"]
)
@pytest.mark.parametrize("commit", [True, False])
async def test_e4_version_2_nothing_that_arrives_late_touches_the_next_transaction(tmp_path, late_at, commit):
    """All requests of a transaction are delivered again during the next one, which has another outcome."""
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("a", 2)
        client, ghost = Client(broker, version=TV2), Client(broker, version=TV2)
        await client.init()
        ghost.identity = client.identity
        await client.send([b"first"])
        await client.commit_offsets("g", {("a", 0): 1})
        assert await client.end(not commit) is ErrorCode.NONE

        async def late(at):
            if at != late_at:
                return
            fenced = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
            ghost.sequences = {}
            # Its own batch is a repeat of an accepted one, and is not written again.
            assert (await ghost.send([b"first"])).error_code in (*fenced, ErrorCode.NONE)
            assert (await ghost.send([b"more"], sequence=1)).error_code in fenced
            assert (await ghost.send([b"else"], partition=1)).error_code in fenced
            assert await ghost.commit_offsets("g", {("a", 0): 9}) in [[code] for code in fenced]
            assert await ghost.add(("a", 1)) in [[code] for code in fenced]
            identity = ghost.identity
            ended = await ghost.end(commit)
            assert ended in (*fenced, ErrorCode.INVALID_TXN_STATE), "a late end was taken"
            await ghost.end(not commit)  # a retry of the earlier end: the same answer, or fenced
            ghost.identity = identity

        await late("before the first write")
        await client.send([b"second"])
        await late("between writes")
        await client.send([b"third"], partition=1)
        await client.commit_offsets("g", {("a", 0): 2})
        await late("before the end")
        assert await client.end(commit) is ErrorCode.NONE
        await late("after it")
        assert await committed_values(broker) == ([b"second"] if commit else [b"first"])
        assert await committed_values(broker, partition=1) == ([b"third"] if commit else [])
        assert await position(broker, stable=True) == (2 if commit else 1)


@pytest.mark.parametrize("what", ["group", "partition", "topic"])
@pytest.mark.parametrize("restarts", [False, True])
async def test_t6_an_open_transaction_does_not_restore_deleted_offsets(tmp_path, what, restarts):
    async with direct_broker(tmp_path) as broker:
        for name in ("a", "b"):
            await broker.create_topic(name, 2)
        client = Client(broker)
        await client.init()
        await begin(client, ("b", 0))
        await client.send([b"x"], "b")
        await add_offsets(client)
        await client.commit_offsets("g", {("a", 0): 7})
        await add_offsets(client, "other")
        await client.commit_offsets("other", {("b", 0): 8})
        if what == "group":
            deleted = await broker.send(DeleteGroupsRequest(groups_names=["g", "unknown"]))
            codes = [result.error_code for result in deleted.results]
            assert codes == [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
        elif what == "partition":
            partitions = [OffsetDeleteRequestPartition(partition_index=index) for index in (0, 1)]
            topics = [OffsetDeleteRequestTopic(name="a", partitions=partitions)]
            deleted = await broker.send(OffsetDeleteRequest(group_id="g", topics=topics), 0)
            assert deleted.error_code == 0
            assert [part.error_code for part in deleted.topics[0].partitions] == [0, 0]
        else:
            await broker.context.topics.delete_topic("a")
        assert await position(broker, stable=True) == -1
        if not restarts:
            assert await client.end(True) is ErrorCode.NONE
    async with direct_broker(tmp_path) as broker:
        client.broker = broker
        await until(lambda: position(broker), loaded)
        if restarts:
            assert await until(lambda: client.end(True), loaded) is ErrorCode.NONE
        assert await position(broker, stable=True) == -1
        listed = await until(lambda: broker.send(ListGroupsRequest()), lambda answer: not answer.error_code)
        assert [group.group_id for group in listed.groups] == ["other"]


@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("commit", [True, False])
async def test_e5_e7_an_open_transaction_goes_on_after_a_restart(tmp_path, version, commit):
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("a", 2)
        client = Client(broker, version=version)
        await client.init()
        plain = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
        request = OffsetCommitRequest(
            group_id="g", topics=[OffsetCommitRequestTopic(name="a", partitions=plain)]
        )
        await broker.send(request, 8)
        await begin(client, ("a", 0), ("a", 1))
        await client.send([b"x"])
        await client.send([b"y"], partition=1)
        await add_offsets(client)
        await client.commit_offsets("g", {("a", 0): 7})
    async with direct_broker(tmp_path) as broker:
        client.broker = broker
        await until(lambda: position(broker), loaded)
        assert await position(broker, stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await position(broker) == 1
        assert await committed_values(broker) == []
        assert await until(lambda: client.end(commit), loaded) is ErrorCode.NONE
    async with direct_broker(tmp_path) as broker:
        await until(lambda: position(broker), loaded)
        assert await position(broker, stable=True) == (7 if commit else 1)
        assert await committed_values(broker) == ([b"x"] if commit else [])
        assert await committed_values(broker, partition=1) == ([b"y"] if commit else [])


async def test_t4_a_transaction_that_hangs_is_aborted_by_its_timeout(tmp_path):
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("a", 1)
        client = Client(broker)
        await client.init(timeout_ms=150)
        await client.add(("a", 0))
        await client.send([b"x"])
        await until(lambda: latest(broker, 1), lambda offset: offset > 0)
        assert await committed_values(broker) == []
        assert (await client.send([b"y"])).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert await client.end(True) is ErrorCode.PRODUCER_FENCED


def coordinator_of(broker):
    return next(
        api.handler.__self__._coordinator
        for api in broker.broker.dispatcher._declarations.values()
        if api.request is EndTxnRequest
    )


async def test_t4_a_transaction_that_hung_through_a_restart_is_aborted_by_its_timeout(tmp_path):
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("a", 1)
        client = Client(broker)
        await client.init(timeout_ms=300)
        await client.add(("a", 0))
        await client.send([b"x"])
    async with direct_broker(tmp_path) as broker:
        await until(lambda: latest(broker, 1), lambda offset: offset > 0)
        assert await committed_values(broker) == []


@pytest.mark.parametrize("version", [TV1, TV2])
async def test_e7_a_partition_that_was_deleted_meanwhile_does_not_keep_a_transaction_from_its_end(
    tmp_path, version
):
    async with direct_broker(tmp_path) as broker:
        for name in ("a", "gone"):
            await broker.create_topic(name, 1)
        client = Client(broker, version=version)
        await client.init()
        await begin(client, ("a", 0), ("gone", 0))
        await client.send([b"x"])
        await client.send([b"y"], "gone")
        await broker.context.topics.delete_topic("gone")
        assert await client.end(True) is ErrorCode.NONE
        assert await committed_values(broker) == [b"x"]
        await begin(client, ("a", 0))
        assert (await client.send([b"z"])).error_code == 0
        assert await client.end(True) is ErrorCode.NONE


async def test_an_id_is_served_when_its_journal_is_read(tmp_path, monkeypatch):
    """Before that the coordinator does not know whether the id has an owner."""
    load, may_load = JournalTopic._load_all, asyncio.Event()

    async def when_allowed(journal, indexes):
        await may_load.wait()
        await load(journal, indexes)

    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("a", 1)
        client = Client(broker)
        await client.init()
        await client.add(("a", 0))
    monkeypatch.setattr(JournalTopic, "_load_all", when_allowed)
    async with direct_broker(tmp_path) as broker:
        client.broker = broker
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert await Client(broker).init() is loading
        assert await client.add(("a", 0)) == [loading]
        assert await client.end(True) is loading
        assert (await client.send([b"x"])).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        may_load.set()
        assert await until(lambda: client.end(True), loaded) is ErrorCode.NONE


async def test_e7_offsets_are_ended_when_the_groups_of_their_partition_are_loaded(tmp_path, monkeypatch):
    adopt, may_adopt = GroupCoordinator.adopt, asyncio.Event()

    has_read: list[int] = []

    async def when_allowed(groups, index, read):
        has_read.append(index)
        await may_adopt.wait()
        await adopt(groups, index, read)

    config = {"offsets.topic.num.partitions": "1"}
    async with direct_broker(tmp_path, config) as broker:
        await broker.create_topic("a", 1)
        client = Client(broker)
        await client.init()
        await add_offsets(client)
        await client.commit_offsets("g", {("a", 0): 7})
    monkeypatch.setattr(GroupCoordinator, "adopt", when_allowed)
    async with direct_broker(tmp_path, config) as broker:
        client.broker = broker
        await until(lambda: asyncio.sleep(0, has_read), bool)
        await until(lambda: client.end(True), loaded)
        may_adopt.set()
        await until(lambda: position(broker), loaded)
        transaction = coordinator_of(broker).transactions["tx"]
        transaction.deadline = 0  # it is tried again after a second
        coordinator_of(broker)._tick("tx")
        assert await position(broker, stable=True) == 7


async def test_markers_carry_the_epoch_of_the_coordinator_that_leads_now(tmp_path):
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("a", 1)
        client = Client(broker)
        await client.init()
    (tmp_path / ".kafka_cleanshutdown").unlink()  # as after a crash
    async with direct_broker(tmp_path) as broker:
        client.broker = broker
        await until(lambda: client.add(("a", 0)), lambda errors: loaded(errors[0]))
        await client.send([b"x"])
        assert await client.end(True) is ErrorCode.NONE
        wanted = DescribeProducersRequest(topics=[TopicRequest(name="a", partition_indexes=[0])])
        (producer,) = (await broker.send(wanted)).topics[0].partitions[0].active_producers
        assert producer.coordinator_epoch == broker.context.replicas.partition("a", 0).leader_epoch == 1


async def test_a_record_of_the_journal_that_cannot_be_read_takes_no_other_with_it(tmp_path, caplog):
    async with direct_broker(tmp_path, {"transaction.state.log.num.partitions": "1"}) as broker:
        first, second = Client(broker, "first"), Client(broker, "second")
        await first.init()
        batch = build_batch([Record(b"\0\0\0\xffcut short", b"nonsense", (), 0)])
        broker.context.replicas.partition("__transaction_state", 0).append(batch, AppendOrigin.COORDINATOR)
        await second.init()
    async with direct_broker(tmp_path) as broker:
        for known in (first, second):
            again = Client(broker, known.name)
            await until(again.init, loaded)
            assert again.identity == (known.identity[0], 1)
    assert "cannot be read and is skipped" in caplog.text


async def test_transactions_that_end_are_counted_once_by_how(tmp_path):
    """Repeated, refused and timed-out ends: the metric counts stored decisions."""
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("a", 1)

        async def ended():
            found = (await broker.context.metrics.gather())["headrace_transactions_ended_total"]
            return found[("commit",)], found[("abort",)]

        client = Client(broker)
        await client.init()
        assert await ended() == (0, 0)
        for commit, wanted in ((True, (1, 0)), (False, (1, 1)), (True, (2, 1))):
            await client.add(("a", 0))
            await client.send([b"x"])
            assert await until(lambda commit=commit: client.end(commit), loaded) is ErrorCode.NONE
            await until(lambda commit=commit: client.end(commit), lambda error: error is ErrorCode.NONE)
            assert await ended() == wanted
        assert await client.end(False) is ErrorCode.INVALID_TXN_STATE
        other = Client(broker, "hangs")
        await other.init(timeout_ms=100)
        await other.add(("a", 0))
        await until(ended, lambda counts: counts != (2, 1))
        assert await ended() == (2, 2)


def test_many_partitions_are_ended_in_turns(tmp_path, monkeypatch):
    turns: list[int] = []

    def write(*arguments):
        turns[-1] += 1
        return write_marker(*arguments)

    def next_turn(loop):
        turns.append(0)
        loop.call_soon(next_turn, loop)

    monkeypatch.setattr("headrace.broker.transactions.coordinator.write_marker", write)

    async def main():
        asyncio.get_running_loop().call_soon(next_turn, asyncio.get_running_loop())
        async with direct_broker(tmp_path) as broker:
            await broker.create_topic("wide", 70)
            client = Client(broker, version=TV2)
            await client.init()
            for partition in range(70):
                assert (await client.send([b"x"], "wide", partition)).error_code == 0
            assert await client.end(True) is ErrorCode.NONE
            await until(lambda: client.end(True), lambda error: error is ErrorCode.INVALID_TXN_STATE)
            for partition in range(70):
                assert await committed_values(broker, "wide", partition) == [b"x"]

    asyncio.run(main())
    assert [count for count in turns if count] == [
        MARKERS_PER_TURN,
        MARKERS_PER_TURN,
        70 - 2 * MARKERS_PER_TURN,
    ]


async def test_administrators_see_transactions_and_can_end_one_that_hangs(tmp_path):
    clock = StillClock()
    async with direct_broker(tmp_path, clock=clock) as broker:
        await broker.create_topic("a", 1)
        client, other = Client(broker), Client(broker, "other")
        await client.init()
        await other.init()
        await client.add(("a", 0))
        await client.send([b"x", b"y"])
        request = DescribeTransactionsRequest(transactional_ids=["tx", "other", "none", ""])
        states = (await broker.send(request)).transaction_states
        assert [s.error_code for s in states] == [
            0,
            0,
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
            ErrorCode.INVALID_REQUEST,
        ]
        assert (states[0].transaction_state, states[0].transaction_timeout_ms) == ("Ongoing", 60_000)
        assert [(t.topic, t.partitions) for t in states[0].topics] == [("a", [0])]
        assert states[1].transaction_state == "Empty"

        async def listed(**filters):
            answer = await broker.send(ListTransactionsRequest(**filters))
            return {s.transactional_id: s.transaction_state for s in answer.transaction_states}

        clock.now_ms += 500
        assert await listed() == {"tx": "Ongoing", "other": "Empty"}
        assert await listed(state_filters=["Ongoing"]) == {"tx": "Ongoing"}
        assert await listed(producer_id_filters=[other.identity[0]]) == {"other": "Empty"}
        assert await listed(duration_filter=499) == {"tx": "Ongoing"}
        assert await listed(duration_filter=500) == {}
        assert await listed(transactional_id_pattern="o.*") == {"other": "Empty"}
        assert await listed(transactional_id_pattern="(t+)+y") == {}
        assert await listed(transactional_id_pattern="") == {"tx": "Ongoing", "other": "Empty"}
        answer = await broker.send(ListTransactionsRequest(state_filters=["Nonsense"]))
        assert (answer.unknown_state_filters, answer.transaction_states) == (["Nonsense"], [])
        for bad in ("(", "(?=t)x"):  # the second one is Python's, but not RE2's
            answer = await broker.send(ListTransactionsRequest(transactional_id_pattern=bad))
            assert answer.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION

        wanted = DescribeProducersRequest(topics=[TopicRequest(name="a", partition_indexes=[0, 5])])
        partitions = (await broker.send(wanted)).topics[0].partitions
        assert partitions[1].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (producer,) = partitions[0].active_producers
        assert (producer.producer_id, producer.last_sequence) == (client.identity[0], 1)
        assert (producer.current_txn_start_offset, producer.coordinator_epoch) == (0, -1)

        def abort(epoch, version=0):
            topics = [WritableTxnMarkerTopic(name="a", partition_indexes=[0, 5])]
            marker = WritableTxnMarker(
                producer_id=client.identity[0],
                producer_epoch=epoch,
                coordinator_epoch=0,
                transaction_version=version,
                topics=topics,
            )
            return broker.send(WriteTxnMarkersRequest(markers=[marker]), 2)

        late = await abort(0, version=2)
        assert late.markers[0].topics[0].partitions[0].error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        codes = [p.error_code for p in (await abort(0)).markers[0].topics[0].partitions]
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert await latest(broker, 1) == 3
        assert await committed_values(broker) == []


async def test_ids_that_were_not_used_for_long_are_forgotten(tmp_path):
    clock = StillClock()
    async with direct_broker(tmp_path, clock=clock) as broker:
        client = Client(broker)
        await client.init()
        clock.now_ms += 7 * 86_400_000
        clock.seconds += 7 * 86_400
        await coordinator_of(broker).expiry.run()
        answer = await broker.send(DescribeTransactionsRequest(transactional_ids=["tx"]))
        assert answer.transaction_states[0].error_code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    async with direct_broker(tmp_path, clock=clock) as broker:
        client.broker = broker
        await until(client.init, loaded)
        assert client.identity == (1000, 0), "another id, of the next block"


@pytest.mark.parametrize("version", [TV1, TV2])
async def test_a_long_journal_is_rewritten_and_says_the_same(tmp_path, version, monkeypatch):
    monkeypatch.setattr("headrace.broker.cluster.journal_topic.REWRITE_RECORDS_MIN", 20)
    rng = random.Random(version)
    expected, offset = [], -1
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("a", 1)
        client, hanging = Client(broker, version=version), Client(broker, "hanging", version)
        await client.init()
        await hanging.init()
        for number in range(40):
            if number == 20:
                await add_offsets(hanging, "g")
                assert await hanging.commit_offsets("g", {("a", 0): 1000}) == [ErrorCode.NONE]
            await begin(client, ("a", 0))
            await client.send([b"%d" % number])
            await add_offsets(client, "g")
            await client.commit_offsets("g", {("a", 0): number})
            commit = rng.random() < 0.6
            if commit:
                expected.append(b"%d" % number)
                offset = number
            assert await client.end(commit) is ErrorCode.NONE
            await asyncio.sleep(0)
        for topic in ("__transaction_state", "__consumer_offsets"):
            partitions = broker.context.replicas.partitions(topic)

            async def was_rewritten(partitions=partitions) -> bool:
                return any(partition.log.log_start_offset for partition in partitions)

            assert await until(was_rewritten, bool)
    async with direct_broker(tmp_path) as broker:
        client.broker = hanging.broker = broker
        await until(lambda: position(broker), loaded)
        assert await position(broker) == offset
        assert await position(broker, stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert await committed_values(broker) == expected
        assert await until(lambda: hanging.end(True), loaded) is ErrorCode.NONE
        assert await position(broker, stable=True) == 1000
        assert await client.end(True, version=4 if version == TV1 else 5) in (
            ErrorCode.NONE,
            ErrorCode.INVALID_TXN_STATE,
        )
