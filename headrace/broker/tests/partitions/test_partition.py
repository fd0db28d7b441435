"""A partition: high watermark, waiters, flush and its races with the end."""

from __future__ import annotations

import asyncio
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.broker.log.config import LogConfig
from headrace.broker.log.partition_log import AppendOrigin, PartitionLog
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.runtime.ports import SystemClock
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.encode import Record, build_batch

BATCH = build_batch([Record(None, b"v", (), SystemClock().time_ms())])


def partition_in(path) -> Partition:
    image = TopicImage("t", uuid.uuid4(), 1)
    return Partition(image, 0, lambda _: PartitionLog.open(path / "t-0", LogConfig(), clock=SystemClock()))


def test_the_high_watermark_follows_appends_and_wakes_waiters(tmp_path) -> None:
    partition = partition_in(tmp_path)
    seen = []
    partition.add_waiter(lambda: seen.append(partition.high_watermark))
    for _ in range(3):
        partition.append(BATCH, AppendOrigin.CLIENT)
    assert seen == [1, 2, 3]
    asyncio.run(partition.close())


def test_a_log_that_cannot_be_opened_is_tried_once(tmp_path) -> None:
    tries = []

    def broken(partition: Partition) -> PartitionLog:
        tries.append(partition)
        raise OSError(5, "Input/output error")

    partition = Partition(TopicImage("t", uuid.uuid4(), 1), 0, broken)
    for _ in range(3):
        with pytest.raises(KafkaError, match="Input/output error") as caught:
            partition.append(BATCH, AppendOrigin.CLIENT)
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(tries) == 1


@pytest.mark.parametrize("end", ["close", "drop"])
async def test_the_end_waits_for_a_flush_under_way(tmp_path, end) -> None:
    partition = partition_in(tmp_path)
    partition.append(BATCH, AppendOrigin.CLIENT)
    begun, go_on = threading.Event(), threading.Event()
    real = partition.log.flush

    def slow() -> None:
        begun.set()
        go_on.wait(60)
        real()

    partition.log.flush = slow
    with ThreadPoolExecutor(1) as executor:
        flush = asyncio.ensure_future(partition.flush(executor))
        await asyncio.sleep(0)
        assert begun.wait(60)
        flush.cancel()  # as when the broker stops
        ending = asyncio.ensure_future(getattr(partition, end)())
        await asyncio.sleep(0.02)
        assert not ending.done()
        partition.log.flush = real
        go_on.set()
        await ending
    with pytest.raises(KafkaError) as caught:
        partition.append(BATCH, AppendOrigin.CLIENT)
    assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


class Gate:
    """Opens a partition's log; in another thread only when it may."""

    def __init__(self, path) -> None:
        self.path = path
        self.opened: list[PartitionLog] = []
        self.may_open = threading.Event()

    def open_log(self, _: Partition) -> PartitionLog:
        if threading.current_thread() is not threading.main_thread():
            self.may_open.wait(60)
        self.opened.append(PartitionLog.open(self.path / "t-0", LogConfig(), clock=SystemClock()))
        return self.opened[-1]


async def test_a_log_that_is_opened_in_a_thread_is_not_opened_again_by_a_request(tmp_path) -> None:
    gate = Gate(tmp_path)
    partition = Partition(TopicImage("t", uuid.uuid4(), 1), 0, gate.open_log)
    with ThreadPoolExecutor(1) as executor:
        opening = asyncio.ensure_future(partition.open(executor))
        await asyncio.sleep(0)
        with pytest.raises(KafkaError, match="t-0 is being opened; try again") as caught:
            partition.append(BATCH, AppendOrigin.CLIENT)
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        gate.may_open.set()
        await opening
        partition.append(BATCH, AppendOrigin.CLIENT)
        await partition.open(executor)
        assert gate.opened == [partition.log]
        await partition.close()


@pytest.mark.parametrize("end", ["close", "drop"])
async def test_the_end_closes_a_log_that_is_being_opened(tmp_path, end) -> None:
    gate = Gate(tmp_path)
    partition = Partition(TopicImage("t", uuid.uuid4(), 1), 0, gate.open_log)
    with ThreadPoolExecutor(1) as executor:
        opening = asyncio.ensure_future(partition.open(executor))
        await asyncio.sleep(0)
        ending = asyncio.ensure_future(getattr(partition, end)())
        await asyncio.sleep(0.02)
        assert not ending.done()
        gate.may_open.set()
        await ending
        with pytest.raises(KafkaError, match="is not led by this broker"):
            await opening
    with pytest.raises(KafkaError, match="is closed"):
        gate.opened[0].read(0, 100, up_to=1)


async def test_waiting_for_the_high_watermark(tmp_path) -> None:
    class Holding:
        def high_watermark_candidate(self, offset: int) -> None:
            pass

    partition = partition_in(tmp_path)
    partition.hooks = Holding()
    partition.append(BATCH, AppendOrigin.EXTENSION)
    assert not await partition.wait_for_high_watermark(1, 10)
    waiting = asyncio.ensure_future(partition.wait_for_high_watermark(1, 5000))
    await asyncio.sleep(0)
    partition.publish_high_watermark(1)
    assert await waiting
    assert await partition.wait_for_high_watermark(1, 0)
    waiting = asyncio.ensure_future(partition.wait_for_high_watermark(2, 5000))
    await asyncio.sleep(0)
    partition.fail("the test says so")
    with pytest.raises(KafkaError, match="the test says so"):
        await waiting
    assert not partition._waiters
