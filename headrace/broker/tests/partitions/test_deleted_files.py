"""Deleted segments wait on disk for their delay, across restarts, and never longer."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

import pytest

from headrace.broker.log.checkpoint import CLEAN_NAME
from headrace.broker.partitions.deleted_files import DeletedFiles
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import SystemClock
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from simulator.direct import direct_broker
from simulator.loop import InlineExecutor, SimulatedLoop

HOUR_MS = 3_600_000


def simulated(work) -> None:
    """Run `work` under virtual time."""
    loop = SimulatedLoop(1)
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


@asynccontextmanager
async def running(directory, delay_ms):
    files = DeletedFiles(
        InlineExecutor(), SystemClock(), SystemDisk(), directory, lambda topic, index: delay_ms
    )
    task = asyncio.ensure_future(files.run())
    await asyncio.sleep(0.1)
    yield files
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def made(folder, name):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(b"x")
    return path


def test_each_file_goes_when_its_own_delay_is_over(tmp_path) -> None:
    async def test() -> None:
        async with running(tmp_path, 0) as files:
            late, soon = (made(tmp_path / "t-0", name) for name in ("a.log.deleted", "b.log.deleted"))
            files.remove_later(late, 60_000)
            files.remove_later(soon, 10_000)
            await asyncio.sleep(9)
            assert soon.exists()
            await asyncio.sleep(2)
            assert (soon.exists(), late.exists()) == (False, True)
            files.remove_later(soon, 0)  # a missing file does no harm
            await asyncio.sleep(48)
            assert late.exists()
            await asyncio.sleep(2)
            assert not late.exists()

    simulated(test())


def test_a_name_that_is_used_again_waits_for_the_later_time_and_a_full_disk_for_none(tmp_path) -> None:
    async def test() -> None:
        async with running(tmp_path, 0) as files:
            path = made(tmp_path / "t-0", "a.log.deleted")
            files.remove_later(path, 10_000)
            await asyncio.sleep(5)
            files.remove_later(path, 10_000)
            await asyncio.sleep(9)
            assert path.exists()
            files.hurry()
            await asyncio.sleep(0.1)
            assert not path.exists()

    simulated(test())


@pytest.mark.parametrize("delay_ms", [0, 50_000])
def test_after_a_start_what_waits_goes_when_its_delay_is_over(tmp_path, delay_ms) -> None:
    stray = made(tmp_path / "t-0.123-stray", "a.log.deleted")
    path = made(tmp_path / "my-topic-12", "a.log.deleted")
    log = made(tmp_path / "my-topic-12", "b.log")

    async def test() -> None:
        async with running(tmp_path, delay_ms):
            assert path.exists() == (delay_ms > 0)
            await asyncio.sleep(delay_ms / 1000)
            assert not path.exists()
            assert stray.exists()
            assert log.exists()

    simulated(test())


def test_the_time_before_a_restart_counts(tmp_path) -> None:
    class LaterClock(SystemClock):
        def time_ms(self) -> int:
            return super().time_ms() + HOUR_MS

    path = made(tmp_path / "t-0", "a.log.deleted")

    async def test() -> None:
        files = DeletedFiles(
            InlineExecutor(), LaterClock(), SystemDisk(), tmp_path, lambda topic, index: HOUR_MS + 30_000
        )
        task = asyncio.ensure_future(files.run())
        await asyncio.sleep(25)
        assert path.exists()
        await asyncio.sleep(6)
        assert not path.exists()
        task.cancel()

    simulated(test())


def test_a_removal_that_fails_is_told_and_keeps_no_other_from_its_own(tmp_path, caplog) -> None:
    async def test() -> None:
        async with running(tmp_path, 0) as files:
            (tmp_path / "t-0" / "a.log.deleted").mkdir(parents=True)
            path = made(tmp_path / "t-0", "b.log.deleted")
            files.remove_later(tmp_path / "t-0" / "a.log.deleted", 0)
            files.remove_later(path, 0)
            await asyncio.sleep(1)
            assert not path.exists()

    simulated(test())
    assert "a.log.deleted cannot be removed" in caplog.text


@pytest.mark.parametrize("clean", [True, False])
async def test_a_brokers_deleted_segments_outlive_a_restart_until_their_delay_is_over(
    tmp_path, clean
) -> None:
    def waiting():
        return sorted(path.name for path in (tmp_path / "t-0").glob("*.deleted"))

    async def gone() -> None:
        for _ in range(6000):
            if not waiting():
                return
            await asyncio.sleep(0.01)
        raise AssertionError(waiting())

    config = {"log.segment.bytes": "200"}
    async with direct_broker(tmp_path, config) as broker:
        await broker.create_topic("t", file_delete_delay_ms=str(HOUR_MS))
        for _ in range(4):
            await broker.produce("t", [b"x" * 100])
        partition = DeleteRecordsPartition(partition_index=0, offset=2)
        topic = DeleteRecordsTopic(name="t", partitions=[partition])
        answer = await broker.send(DeleteRecordsRequest(topics=[topic], timeout_ms=60_000))
        assert answer.topics[0].partitions[0].low_watermark == 2
        assert len(waiting()) == 2
    if not clean:
        os.unlink(tmp_path / ".kafka_cleanshutdown")
        os.unlink(tmp_path / "t-0" / CLEAN_NAME)
    async with direct_broker(tmp_path, config) as broker:
        assert (await broker.produce("t", [b"y"])).error_code == 0
        assert len(waiting()) == 2
        await broker.context.topics.alter_config("t", {"file.delete.delay.ms": "0"})
    async with direct_broker(tmp_path, config) as broker:
        await gone()
        assert broker.context.replicas.partition("t", 0).log.log_start_offset == 2
