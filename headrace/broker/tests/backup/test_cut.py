"""The cut of a broker: later appends, openings and deletions are not in it, and its files stay until it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from headrace.broker.backup.cut import CUT_NAME, STORE_NAME, Backups, Cut
from headrace.broker.stores.embedded import EmbeddedStore
from headrace.protocol.errors import ErrorCode, KafkaError
from simulator.direct import DirectBroker, direct_broker


async def _nothing(_: Path) -> None:
    """Do nothing: there are no extensions."""


def _sizes(cut: Cut) -> dict[str, int]:
    return {
        each.folder: sum(size for name, size in each.files if name.endswith(".log"))
        for each in cut.partitions
    }


def _read(folder: Path) -> Cut:
    return msgspec.json.decode((folder / CUT_NAME).read_bytes(), type=Cut)


async def test_changes_after_the_cut_are_not_in_the_backup(tmp_path: Path) -> None:
    async with direct_broker(tmp_path) as made:
        for name in ("open", "opened"):
            await made.create_topic(name, segment_bytes="600")
            await made.produce(name, [b"x" * 100])
        before = made.context.replicas.partition("open", 0).log.size_bytes
        context, attempts = made.context, 0

        async def copy_store(target: Path) -> None:
            nonlocal attempts
            attempts += 1
            store = context.store
            assert isinstance(store, EmbeddedStore)
            await store.copy(target)
            await made.create_topic(f"late{attempts}")
            for _ in range(5):  # the segment grows and is sealed meanwhile, and others follow
                await made.produce("open", [b"y" * 200])

        backups = _backups(made, copy_store)
        backup = await backups.begin()
        cut = _read(backup.folder)
        assert attempts == 1
        assert _sizes(cut)["open-0"] == before
        assert "late1-0" not in _sizes(cut)
        store = EmbeddedStore(backup.folder / STORE_NAME)
        await store.open()
        topics = await store.children("/topics")
        await store.close()
        assert "open" in topics
        assert "late1" not in topics
        await backups.end(backup.id)


async def test_while_a_backup_is_under_way_no_other_begins_and_no_file_goes(tmp_path: Path) -> None:
    settings = {"log.retention.check.interval.ms": "10", "log.initial.task.delay.ms": "0"}
    async with direct_broker(tmp_path, settings) as made:
        await made.create_topic("t", segment_bytes="300", retention_ms="1")
        backups = made.context.backups
        assert backups is not None
        backup = await backups.begin()
        for _ in range(4):
            await made.produce("t", [b"x" * 200])
        count = made.context.replicas.partition("t", 0).log.segment_count
        with pytest.raises(KafkaError, match="is in progress"):
            await backups.begin()
        with pytest.raises(KafkaError, match="has ended") as told:
            await backups.end("0" * 32)
        assert told.value.code is ErrorCode.INVALID_REQUEST
        backups.renew(backup.id)
        log = made.context.replicas.partition("t", 0).log
        await asyncio.sleep(0.2)
        assert log.segment_count == count == 4
        assert log.log_start_offset == 0
        await backups.end(backup.id)
        moved = asyncio.Event()
        partition = made.context.replicas.partition("t", 0)
        partition.add_waiter(moved.set)
        async with asyncio.timeout(60):
            while log.log_start_offset == 0:
                moved.clear()
                await moved.wait()
        assert not backup.folder.exists()
        with pytest.raises(KafkaError, match="has ended"):
            backups.renew(backup.id)
        again = await backups.begin()
        await backups.end(again.id)


def _backups(made: DirectBroker, copy_store: Callable[[Path], Awaitable[None]]) -> Backups:
    context = made.context
    return Backups(
        context.replicas,
        copy_store,
        _nothing,
        asyncio.Lock(),
        data_dir=context.data_dir,
        disk=context.disk,
        executor=context.executor,
        clock=context.clock,
        entropy=context.entropy,
    )
