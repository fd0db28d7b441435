"""A full disk: told once a minute, survived without a restart, and never taken for a clean stop."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sqlite3

import pytest

from headrace.broker.log.checkpoint import CLEAN_NAME
from headrace.broker.metadata.topic_names import FILES_KEPT_FREE, FILES_PER_PARTITION
from headrace.broker.partitions.partition import Partition
from headrace.broker.runtime import disk_errors
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.disk_errors import RateLimitedLog, is_disk_full
from headrace.broker.runtime.ports import DiskUsage
from headrace.protocol.errors import ErrorCode, KafkaError
from simulator.direct import direct_broker


def no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_cause_is_told_once_a_minute_with_the_number_of_those_left_out(caplog) -> None:
    now = [100.0]
    log = RateLimitedLog(lambda: now[0])
    logger = logging.getLogger("headrace.test")
    for seconds in (0, 1, 59, 60, 61):
        now[0] = 100.0 + seconds
        log.tell(logger, logging.ERROR, "full", "no room for %s", seconds)
    log.tell(logger, logging.ERROR, "broken", "another cause")
    assert [record.getMessage() for record in caplog.records] == [
        "no room for 0",
        "no room for 60 (and 2 times more since the last line)",
        "another cause",
    ]


def test_a_full_disk_is_recognised_as_the_cause_of_another_error() -> None:
    def fail() -> None:
        try:
            no_space()
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "x") from error

    with pytest.raises(KafkaError) as caught:
        fail()
    assert is_disk_full(caught.value)
    assert not is_disk_full(OSError(errno.EIO, "x"))
    assert not is_disk_full(None)


async def test_a_partition_that_cannot_be_opened_for_want_of_room_is_opened_later(
    tmp_path, monkeypatch
) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        directory = broker.broker._storage.directory
        with monkeypatch.context() as full:
            full.setattr(directory, "make_partition_dir", no_space)
            refused = await broker.produce("t", [b"x"])
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "the disk is full" in refused.error_message
        assert (await broker.produce("t", [b"x"])).error_code == 0


async def test_changes_of_the_metadata_go_on_after_a_commit_without_room(tmp_path, monkeypatch) -> None:
    async with direct_broker(tmp_path) as broker:
        store = broker.context.store
        connection = store._connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count={pages}")
        with pytest.raises(KafkaError, match="the disk is full") as caught:
            for number in range(200):
                await broker.create_topic("x" * 200 + str(number))
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert broker.context.metadata.topic("later") is None
        connection.execute("PRAGMA max_page_count=1000000")
        await broker.create_topic("later")
    async with direct_broker(tmp_path) as broker:
        assert broker.context.metadata.topic("later") is not None


def test_a_failed_commit_leaves_no_transaction_open() -> None:
    from headrace.broker.runtime.ports import CreateNode
    from headrace.broker.stores.embedded import _transact

    class Connection:
        in_transaction = True

        def __init__(self) -> None:
            self.statements: list[str] = []

        def execute(self, statement: str, *_: object) -> Connection:
            self.statements.append(statement.split()[0])
            if statement == "COMMIT":
                raise sqlite3.OperationalError("database or disk is full")
            return self

        def fetchone(self) -> None:
            return None

    connection = Connection()
    with pytest.raises(sqlite3.OperationalError):
        _transact(connection, [CreateNode("/a", b"")])
    assert connection.statements[-2:] == ["COMMIT", "ROLLBACK"]


class Hooks:
    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.closed = False

    def high_watermark_candidate(self, offset: int) -> None: ...

    async def close(self) -> None:
        self.closed = True
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), RuntimeError("a defect")])
def test_a_failed_close_does_not_affect_other_partitions(tmp_path, error, caplog) -> None:
    logs: list[str] = []

    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            for name in ("a", "b", "c"):
                await broker.create_topic(name)
                await broker.produce(name, [b"x"])
            hooks = [Hooks(error), Hooks(None)]
            broker.context.replicas.partition("a", 0).hooks = hooks[0]
            broker.context.replicas.partition("b", 0).hooks = hooks[1]
            await broker.broker.stop()
            assert all(each.closed for each in hooks)
            logs.extend(
                record.getMessage()
                for record in caplog.records
                if "not closed cleanly" in record.getMessage()
            )

    asyncio.run(test())
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert any("1 of 3 partitions were not closed cleanly, first a-0" in line for line in logs)
    assert [(tmp_path / f"{name}-0" / CLEAN_NAME).exists() for name in "abc"] == [False, True, True]


def test_without_room_for_the_marker_there_is_none(tmp_path, monkeypatch) -> None:
    async def test() -> None:
        async with direct_broker(tmp_path) as broker:
            await broker.create_topic("t")
            monkeypatch.setattr(SystemDisk, "replace", no_space)

    asyncio.run(test())
    assert not (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_file_that_could_not_be_replaced_leaves_nothing_behind(tmp_path, monkeypatch) -> None:
    path = tmp_path / "file"
    disk = SystemDisk()
    disk.replace(path, b"old", sync=False)
    with monkeypatch.context() as full:
        full.setattr("os.write", no_space)
        with pytest.raises(OSError, match="No space"):
            disk.replace(path, b"new", sync=False)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


async def test_a_partition_says_why_it_did_not_close(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        partition: Partition = broker.context.replicas.partition("t", 0)
        partition.hooks = Hooks(OSError(errno.ENOSPC, "full"))
        await partition.close()
        assert partition.failure == f"it did not close cleanly: {disk_errors.DISK_FULL}"


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
async def test_a_partition_that_cannot_be_opened_for_want_of_descriptors_is_opened_later(
    tmp_path, monkeypatch, code
) -> None:
    def none_left(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        directory = broker.broker._storage.directory
        with monkeypatch.context() as out:
            out.setattr(directory, "make_partition_dir", none_left)
            refused = await broker.produce("t", [b"x"])
            assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert "too many files are open" in refused.error_message
        assert (await broker.produce("t", [b"x"])).error_code == 0


async def test_partitions_for_which_the_file_system_has_no_files_are_refused(tmp_path, monkeypatch) -> None:
    async with direct_broker(tmp_path) as broker:
        topics, left = broker.context.topics, FILES_KEPT_FREE + 10 * FILES_PER_PARTITION
        monkeypatch.setattr(SystemDisk, "usage", lambda *_: DiskUsage(1 << 40, 1 << 40, left))
        await broker.create_topic("small", 4)
        for create in (
            lambda: broker.create_topic("large", 11),
            lambda: topics.create_partitions("small", 15),
        ):
            with pytest.raises(KafkaError, match="use a file system with more inodes") as refused:
                await create()
            assert refused.value.code == ErrorCode.POLICY_VIOLATION
        assert (await topics.create_partitions("small", 14)).partition_count == 14
        monkeypatch.setattr(SystemDisk, "usage", lambda *_: DiskUsage(1 << 40, 1 << 40))
        await broker.create_topic("large", 11)
