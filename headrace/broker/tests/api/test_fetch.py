"""Fetch: sizes (KIP-74), waiting, ids, epochs, sessions."""

from __future__ import annotations

import asyncio
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.records.header import iter_headers
from simulator.direct import DirectBroker, direct_broker, values_of

SOON = 60.0  # seconds in which something that should happen at once has happened, on a busy machine
LONG_MS = 600_000


def request(topic: str, partitions: list[tuple[int, int, int]], **options) -> FetchRequest:
    """`partitions`: (index, offset, max bytes)."""
    return FetchRequest(
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=limit)
                    for index, offset, limit in partitions
                ],
            )
        ],
        **{"max_wait_ms": 0, "min_bytes": 1, **options},
    )


async def started(work) -> asyncio.Task:
    """Return a task that has run as far as it can."""
    task = asyncio.ensure_future(work)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    return task


@pytest.mark.parametrize("version", range(4, 19))
async def test_records_come_back_in_every_version(tmp_path, version) -> None:
    async with direct_broker(tmp_path) as broker:
        image = await broker.create_topic("t", 2)
        await broker.produce("t", [b"a", b"b"], partition=1)
        fetch = request("t", [(0, 0, 1000), (1, 0, 1000)])
        fetch.topics[0].topic_id = image.topic_id
        response = await broker.send(fetch, version)
        empty, full = response.responses[0].partitions
        assert (empty.error_code, empty.high_watermark, bytes(empty.records)) == (0, 0, b"")
        assert (full.error_code, full.high_watermark, full.last_stable_offset) == (0, 2, 2)
        assert full.log_start_offset == (0 if version >= 5 else -1)
        assert full.preferred_read_replica == -1
        assert full.aborted_transactions is None
        assert values_of(full.records) == [(0, b"a"), (1, b"b")]
        assert response.session_id == 0


async def filled(broker: DirectBroker, sizes: list[list[int]]) -> None:
    await broker.create_topic("t", len(sizes))
    for partition, batches in enumerate(sizes):
        for size in batches:
            await broker.produce("t", [b"x" * size], partition=partition)


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(1, 2000), max_size=5), min_size=1, max_size=4),
    max_bytes=st.integers(0, 6000),
    partition_max_bytes=st.integers(0, 4000),
    data=st.data(),
)
def test_kip74_sizes(sizes, max_bytes, partition_max_bytes, data, tmp_path_factory) -> None:
    """The sizes are compared with the rule itself, written over lists of batch sizes."""

    async def test() -> None:
        async with direct_broker(tmp_path_factory.mktemp("d")) as broker:
            await filled(broker, sizes)
            stored = []
            for partition in range(len(sizes)):
                log = broker.context.replicas.partition("t", partition).log
                raw = log.read(0, 1 << 30, up_to=log.log_end_offset).read()
                stored.append([header.size for _, header in iter_headers(raw)])
            offsets = [data.draw(st.integers(0, len(batches))) for batches in sizes]
            wanted = [(index, offset, partition_max_bytes) for index, offset in enumerate(offsets)]
            response = await broker.send(request("t", wanted, max_bytes=max_bytes), 12)
            expected = []
            total = 0
            for batches, offset in zip(stored, offsets, strict=True):
                limit = min(partition_max_bytes, max_bytes - total)
                taken = 0
                for number, size in enumerate(batches[offset:]):
                    if taken + size > limit and not (number == 0 and total == 0):
                        break
                    taken += size
                    if taken > limit:
                        break
                total += taken
                expected.append(taken)
            got = [len(partition.records) for partition in response.responses[0].partitions]
            assert got == expected

    asyncio.run(test())


async def test_kip74_one_batch_may_be_larger_than_what_was_asked_for_and_it_is_the_first(tmp_path) -> None:
    async with direct_broker(tmp_path, {"fetch.max.bytes": "1500"}) as broker:
        await filled(broker, [[], [1000], [1000], [10]])

        async def sizes(max_bytes: int, partition_max_bytes: int) -> list[int]:
            asked = [(index, 0, partition_max_bytes) for index in range(4)]
            response = await broker.send(request("t", asked, max_bytes=max_bytes), 12)
            return [len(part.records) // 1000 for part in response.responses[0].partitions]

        assert await sizes(1, 1 << 20) == [0, 1, 0, 0]
        assert await sizes(1 << 20, 1) == [0, 1, 0, 0]
        assert await sizes(1 << 20, 1 << 20) == [0, 1, 0, 0], "the broker's own bound"


async def test_a_fetch_inside_a_batch_gives_the_whole_batch(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", [b"0", b"1", b"2"])
        await broker.produce("t", [b"3", b"4", b"5"])
        found = values_of((await broker.fetch("t", 4)).records)
        assert [offset for offset, _ in found] == [3, 4, 5]


@pytest.mark.parametrize("offset", [-1, 4, 1 << 40])
async def test_offsets_outside_the_log_are_an_error(tmp_path, offset) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", [b"0", b"1", b"2"])
        async with asyncio.timeout(SOON):  # and it is told at once
            answer = await broker.fetch("t", offset, max_wait_ms=LONG_MS)
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await broker.fetch("t", 3)).error_code == 0


async def test_before_the_log_start_is_an_error(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", [b"0", b"1", b"2"])
        broker.context.replicas.partition("t", 0).delete_records(2)
        assert (await broker.fetch("t", 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        answer = await broker.fetch("t", 2)
        assert (answer.error_code, answer.log_start_offset) == (0, 2)


# -- waiting ---------------------------------------------------------------------------------------------


async def test_a_waiting_fetch_is_woken_by_an_append(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        task = await started(broker.fetch("t", max_wait_ms=LONG_MS))
        await broker.produce("t", [b"now"])
        async with asyncio.timeout(SOON):
            assert values_of((await task).records) == [(0, b"now")]


async def test_an_append_between_reading_and_waiting_is_not_missed(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        # The fetch reads nothing, and its task does not watch yet when the append happens.
        task = asyncio.ensure_future(broker.fetch("t", max_wait_ms=LONG_MS))
        append = asyncio.ensure_future(broker.produce("t", [b"now"]))
        async with asyncio.timeout(SOON):
            assert values_of((await task).records) == [(0, b"now")]
        await append


async def test_a_waiting_fetch_is_answered_when_its_time_is_up(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        loop = asyncio.get_running_loop()
        before = loop.time()
        answer = await broker.fetch("t", max_wait_ms=120)
        assert 0.11 <= loop.time() - before < 0.12 + SOON
        assert (answer.error_code, bytes(answer.records)) == (0, b"")
        assert not broker.context.replicas.partition("t", 0)._waiters


async def test_min_bytes_are_waited_for(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 2)
        task = asyncio.ensure_future(
            broker.send(request("t", [(0, 0, 10**6), (1, 0, 10**6)], max_wait_ms=LONG_MS, min_bytes=1000), 12)
        )
        for partition in (0, 1, 0, 1):
            await broker.produce("t", [b"x" * 200], partition=partition)
            await asyncio.sleep(0.01)
            if partition == 0:
                assert not task.done()
        async with asyncio.timeout(SOON):
            response = await task
        assert sum(len(partition.records) for partition in response.responses[0].partitions) >= 1000
        assert len(values_of(response.responses[0].partitions[0].records)) == 2


async def test_a_waiting_fetch_is_woken_by_the_deletion_of_the_topic(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        task = await started(broker.fetch("t", max_wait_ms=LONG_MS))
        await broker.context.topics.delete_topic("t")
        async with asyncio.timeout(SOON):
            assert (await task).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await broker.fetch("t")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_waiting_fetch_is_woken_by_a_failure(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        task = await started(broker.fetch("t", max_wait_ms=LONG_MS))
        broker.context.replicas.partition("t", 0).fail("the test says so")
        async with asyncio.timeout(SOON):
            assert (await task).error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_waiting_fetches_are_answered_when_the_broker_stops(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        task = await started(broker.fetch("t", max_wait_ms=LONG_MS))
    async with asyncio.timeout(SOON):
        assert (await task).error_code == 0


async def test_an_abandoned_fetch_leaves_no_waiter(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 3)
        task = await started(broker.send(request("t", [(0, 0, 1), (1, 0, 1)], max_wait_ms=LONG_MS), 12))
        assert broker.context.replicas.partition("t", 0)._waiters
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0)
        assert not broker.context.replicas.partition("t", 0)._waiters


# -- ids, epochs, sessions, isolation ------------------------------------------------------------------


async def test_an_unknown_topic_id_is_told_per_partition(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        fetch = request("t", [(0, 0, 1000)], max_wait_ms=LONG_MS)
        fetch.topics[0].topic_id = uuid.uuid4()
        async with asyncio.timeout(SOON):
            response = await broker.send(fetch, 13)
        assert response.responses[0].topic_id == fetch.topics[0].topic_id
        assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        by_name = await broker.send(request("missing", [(0, 0, 1000)]), 12)
        assert by_name.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_the_id_of_a_deleted_topic_does_not_show_the_one_made_after_it(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        old = await broker.create_topic("t")
        await broker.produce("t", [b"old"])
        await broker.context.topics.delete_topic("t")
        await broker.create_topic("t")
        fetch = request("t", [(0, 0, 1000)])
        fetch.topics[0].topic_id = old.topic_id
        response = await broker.send(fetch, 17)
        assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        assert (await broker.fetch("t")).high_watermark == 0


async def test_leader_epochs_fence_and_show_what_diverged(tmp_path) -> None:
    for _ in range(2):  # a stop that was not clean makes the second run epoch 1
        async with direct_broker(tmp_path) as broker:
            if broker.context.metadata.topic("t") is None:
                await broker.create_topic("t")
            await broker.produce("t", [b"a", b"b"])
        (tmp_path / ".kafka_cleanshutdown").unlink()
    async with direct_broker(tmp_path) as broker:
        assert broker.context.replicas.partition("t", 0).leader_epoch == 2
        assert (await broker.fetch("t", current_leader_epoch=1)).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert (await broker.fetch("t", current_leader_epoch=3)).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert (await broker.fetch("t", current_leader_epoch=2)).error_code == 0
        # A consumer that claims to have read up to 4 in epoch 0, which ended at 2, must go back.
        answer = await broker.fetch("t", 4, last_fetched_epoch=0, max_wait_ms=LONG_MS)
        assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (0, 2)
        assert bytes(answer.records) == b""
        answer = await broker.fetch("t", 2, last_fetched_epoch=0)
        assert answer.diverging_epoch is None
        assert len(values_of(answer.records)) == 2


@pytest.mark.parametrize("version", [12, 15, 16, 17, 18])
async def test_a_fenced_consumer_is_told_the_leader(tmp_path, version) -> None:
    """KIP-951, from version 16 on."""
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
    (tmp_path / ".kafka_cleanshutdown").unlink()
    async with direct_broker(tmp_path, {"broker.rack": "r1"}) as broker:
        wanted = request("t", [(0, 0, 1000)])
        wanted.topics[0].topic_id = broker.context.metadata.topic("t").topic_id
        wanted.topics[0].partitions[0].current_leader_epoch = 0
        response = await broker.send(wanted, version)
        (answer,) = response.responses[0].partitions
        assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH
        if version < 16:
            assert (answer.current_leader, response.node_endpoints) == (None, [])
            return
        assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (0, 1)
        assert [(node.node_id, node.rack) for node in response.node_endpoints] == [(0, "r1")]


async def test_read_committed_sees_the_same_and_an_empty_list_of_aborted(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", [b"a"])
        answer = await broker.fetch("t", isolation_level=1)
        assert answer.aborted_transactions == []
        assert answer.last_stable_offset == answer.high_watermark == 1
        assert values_of(answer.records) == [(0, b"a")]


async def test_segments_do_not_show(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", segment_bytes="300")
        for number in range(20):
            await broker.produce("t", [b"%d" % number])
        assert broker.context.replicas.partition("t", 0).log.segment_count > 3
        found, offset = [], 0
        while offset < 20:
            batch = values_of((await broker.fetch("t", offset)).records)
            found += batch
            offset = batch[-1][0] + 1
        assert found == [(number, b"%d" % number) for number in range(20)]


@pytest.mark.parametrize("partitions", [2, 16, 17, 40])
async def test_a_fetch_of_few_or_many_partitions_is_woken_by_each_of_them(tmp_path, partitions) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", partitions)
        await broker.create_topic("other")
        watchers = broker.context.replicas.changes.watchers

        async def waiting() -> asyncio.Task:
            wanted = [
                FetchPartition(
                    partition=index,
                    fetch_offset=broker.context.replicas.partition("t", index).log.log_end_offset,
                    partition_max_bytes=1 << 20,
                )
                for index in range(partitions)
            ]
            topics = [FetchTopic(topic="t", partitions=wanted)]
            request = FetchRequest(
                max_wait_ms=LONG_MS, min_bytes=1, max_bytes=1 << 20, session_epoch=-1, topics=topics
            )
            return await started(broker.send(request, 12))

        for index in (0, partitions - 1):
            task = await waiting()
            assert len(watchers) == (partitions > 16)
            await broker.produce("other", [b"nobody waits for it"])
            await asyncio.sleep(0.02)
            assert not task.done()
            await broker.produce("t", [b"v"], partition=index)
            async with asyncio.timeout(SOON):
                response = await task
            found = [part for part in response.responses[0].partitions if len(part.records)]
            assert [part.partition_index for part in found] == [index]
            assert not watchers
        task = await waiting()
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0.01)
        assert not watchers
