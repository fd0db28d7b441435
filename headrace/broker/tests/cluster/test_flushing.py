"""Logs with unflushed records are flushed when it is time, and no other log is looked at."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.broker.cluster import flushing
from headrace.broker.partitions.partition import Partition
from headrace.protocol.errors import ErrorCode, KafkaError
from simulator.direct import direct_broker
from simulator.files import copy_as_killed

SOON = 0.02


class Flushes:
    """The flushed partitions in their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.fail: Exception | None = None
        self._another = asyncio.Event()
        flush = Partition.flush

        async def flushed(partition: Partition, executor) -> None:
            error, self.fail = self.fail, None
            if error is None:
                await flush(partition, executor)
            self.names.append(f"{partition.topic.name}-{partition.index}")
            self._another.set()
            if error is not None:
                partition._unflushed()
                raise error

        monkeypatch.setattr(Partition, "flush", flushed)

    async def comes(self, name: str, times: int = 1) -> None:
        async with asyncio.timeout(60):
            while self.names.count(name) < times:
                self._another.clear()
                await self._another.wait()


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> Flushes:
    return Flushes(monkeypatch)


@asynccontextmanager
async def broker_with(folder: Path, interval_ms: int):
    config = {"log.flush.offset.checkpoint.interval.ms": str(interval_ms)}
    async with direct_broker(folder, config) as broker:
        yield broker


async def test_only_written_partitions_are_flushed_within_flush_ms(tmp_path, flushes) -> None:
    async with broker_with(tmp_path, 3_600_000) as broker:
        await broker.create_topic("quick", 50, flush_ms="20")
        await broker.create_topic("slow", 2)
        await broker.produce("slow", [b"x"])
        for index in (3, 7):
            await broker.produce("quick", [b"x"], partition=index)
        await flushes.comes("quick-7")
        assert flushes.names == ["quick-3", "quick-7"]
        assert broker.context.replicas.partition("quick", 3).log.recovery_point == 1
        assert broker.context.replicas.partition("slow", 0).log.recovery_point == 0
        await asyncio.sleep(3 * SOON)
        assert flushes.names == ["quick-3", "quick-7"], "there is nothing to flush before the next write"
        flushes.names.clear()
        await broker.produce("quick", [b"y"], partition=3)
        await flushes.comes("quick-3")
        assert broker.context.replicas.partition("quick", 3).log.recovery_point == 2


async def test_now_and_then_everything_that_was_written_is_flushed(tmp_path, flushes) -> None:
    async with broker_with(tmp_path, 30) as broker:
        await broker.create_topic("t", 3)
        await broker.produce("t", [b"x"], partition=1)
        await flushes.comes("t-1")
        await asyncio.sleep(0.1)
        assert flushes.names == ["t-1"]
        await broker.produce("t", [b"x"], partition=2)
        await flushes.comes("t-2")
        assert flushes.names == ["t-1", "t-2"]


async def test_a_shorter_flush_time_counts_for_records_that_already_wait(tmp_path, flushes) -> None:
    async with broker_with(tmp_path, 3_600_000) as broker:
        await broker.create_topic("t")
        await broker.produce("t", [b"x"])
        await asyncio.sleep(SOON)
        assert flushes.names == []
        await broker.context.topics.alter_config("t", {"flush.ms": "1"})
        await flushes.comes("t-0")


async def test_unflushed_records_of_a_crash_are_flushed_after_the_next_start(tmp_path, flushes) -> None:
    async with broker_with(tmp_path / "first", 3_600_000) as broker:
        await broker.create_topic("t", flush_ms="20")
        broker.context.replicas.changes.unflushed = lambda _: None
        await broker.produce("t", [b"x"])
        copy_as_killed(tmp_path / "first", tmp_path / "second")
    flushes.names.clear()
    async with broker_with(tmp_path / "second", 3_600_000) as broker:
        await flushes.comes("t-0")
        assert broker.context.replicas.partition("t", 0).log.recovery_point == 1


async def test_a_flush_that_failed_is_tried_again_and_keeps_no_other_from_it(
    tmp_path, flushes, monkeypatch
) -> None:
    monkeypatch.setattr(flushing, "RETRY_SECONDS", 0.01)
    async with broker_with(tmp_path, 3_600_000) as broker:
        await broker.create_topic("t", 2, flush_ms="20")
        flushes.fail = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "later")
        for index in range(2):
            await broker.produce("t", [b"x"], partition=index)
        await flushes.comes("t-1")
        await flushes.comes("t-0", 2)
        assert broker.context.replicas.partition("t", 0).log.recovery_point == 1


async def test_a_flush_without_room_is_tried_again(tmp_path, flushes, monkeypatch) -> None:
    async with broker_with(tmp_path, 3_600_000) as broker:
        await broker.create_topic("t", flush_ms="20")
        log = broker.context.replicas.partition("t", 0).log
        flush, failures = log.flush, [1, 2]

        def without_room() -> None:
            if failures:
                failures.pop()
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no room")
            flush()

        log.flush = without_room
        monkeypatch.setattr(flushing, "RETRY_SECONDS", 0.01)
        await broker.produce("t", [b"x"])
        await flushes.comes("t-0")
        assert failures == []
        assert log.recovery_point == 1
