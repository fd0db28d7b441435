"""A full disk loses nothing: a store repeats later what it could not do."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from headrace.broker.runtime.disk_errors import is_disk_full
from headrace.protocol.errors import ErrorCode
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.read.bucket_state import row_count
from headrace.tablelayer.server.store.errors import DiskFullError, StalledStoreError, is_damage
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.server.store.shared_memory import SharedMemory
from headrace.tablelayer.tests.server.tables import TIMEOUT_MS, tables

NO_SPACE = Exception("IO error: No space left on device: While appending to file: 000009.sst")


class Database:
    """A stand-in for RocksDB that fails as it does."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.closed = False
        self.during: Callable[[], None] | None = None
        """Called while a flush is under way."""

    def get(self, key: object) -> None:
        return None

    def live_files(self) -> list[object]:
        return []

    def property_int_value(self, name: str) -> int:
        return 0

    def write(self, batch: object, options: object) -> None:
        if self.error is not None:
            raise self.error

    def flush(self, wait: bool) -> None:
        if self.during is not None:
            self.during()
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def store(database: Database, tmp_path: Path) -> KeyValueStore:
    return KeyValueStore(database, tmp_path, SharedMemory(Limits()))


def test_a_flush_without_space_is_due_again(store: KeyValueStore, database: Database) -> None:
    store.write([([b"k"], [b"v"])], 5, 1)
    written = store.bytes_since_flush
    assert written > 0
    database.error = NO_SPACE
    with pytest.raises(DiskFullError, match="No space left"):
        store.flush()
    assert (store.bytes_since_flush, store.durable_offset) == (written, 0)
    database.error = None
    store.flush()
    assert (store.bytes_since_flush, store.durable_offset) == (0, 5)


def test_rows_written_during_a_flush_are_durable_after_the_next(
    store: KeyValueStore, database: Database
) -> None:
    store.write([([b"k"], [b"v"])], 5, 1)
    database.during = lambda: store.write([([b"l"], [b"w"])], 7, 2)
    store.flush()
    assert (store.applied_offset, store.durable_offset) == (7, 5)
    assert store.bytes_since_flush > 0
    database.during = None
    store.flush()
    assert (store.durable_offset, store.bytes_since_flush) == (7, 0)


def test_a_write_without_space_changes_nothing_and_can_be_repeated(
    store: KeyValueStore, database: Database
) -> None:
    database.error = NO_SPACE
    with pytest.raises(DiskFullError):
        store.write([([b"k"], [b"v"])], 5, 1)
    assert (store.applied_offset, store.visible_offset, store.row_count) == (0, 0, 0)
    database.error = None
    store.write([([b"k"], [b"v"])], 5, 1)
    assert (store.applied_offset, store.visible_offset, store.row_count) == (5, 5, 1)


def test_errors_other_than_a_full_disk_keep_their_type(store: KeyValueStore, database: Database) -> None:
    database.error = Exception("Corruption: block checksum mismatch")
    with pytest.raises(Exception, match="Corruption") as caught:
        store.write([([b"k"], [b"v"])], 5, 1)
    assert not isinstance(caught.value, DiskFullError)
    with pytest.raises(Exception, match="Corruption") as caught:
        store.flush()
    assert not isinstance(caught.value, DiskFullError)


def test_offset_and_number_of_rows_are_of_one_moment_at_every_step_of_a_write(store: KeyValueStore) -> None:
    """A count that is read meanwhile never combines one write's count with another one's offset."""
    seen = set()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is KeyValueStore._apply.__code__:
            frame.f_trace_opcodes = True
            if event == "opcode":
                seen.add(row_count(store))
        return trace

    store.write([([b"a"], [b"v"])], 5, 1)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        store.write([([b"b"], [b"v"])], 9, 2)
    finally:
        sys.settrace(before)
    assert seen == {(1, 5), (2, 9)}


@pytest.mark.parametrize("interrupted", [KeyValueStore.flush, KeyValueStore._apply])
def test_unflushed_rows_stay_due_when_a_flush_and_a_write_interleave(
    tmp_path: Path, interrupted: Callable[..., None]
) -> None:
    """The other operation runs completely between any two steps of the one."""

    def write(store: KeyValueStore) -> None:
        store.write([([b"k"], [b"v"])], store.applied_offset + 1, 1)

    flush = KeyValueStore.flush
    work, between = (flush, write) if interrupted is flush else (write, flush)
    steps = 0
    while True:
        store = KeyValueStore(Database(), tmp_path, SharedMemory(Limits()))
        write(store)
        came_between = interrupt(
            interrupted, steps, lambda store=store: between(store), lambda store=store: work(store)
        )
        assert store.bytes_since_flush or store.durable_offset == store.applied_offset, steps
        store.flush()
        assert (store.bytes_since_flush, store.durable_offset) == (0, store.applied_offset), steps
        if not came_between:
            break
        steps += 1
    assert steps > 10


def interrupt(
    where: Callable[..., None], step: int, between: Callable[[], None], work: Callable[[], None]
) -> bool:
    """Run `work`, and call `between` once, that many steps into the function `where`. Return whether it was called."""
    steps, came = 0, False

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps, came
        if frame.f_code is where.__code__:
            frame.f_trace_opcodes = True
            if event == "opcode" and not came:
                steps += 1
                if steps > step:
                    came = True
                    sys.settrace(None)
                    between()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return came


def test_a_store_that_cannot_be_flushed_is_closed_all_the_same(
    store: KeyValueStore, database: Database
) -> None:
    database.error = NO_SPACE
    with pytest.raises(DiskFullError) as caught:
        store.close()
    assert database.closed
    assert is_disk_full(caught.value)


def test_a_store_that_finds_no_room_at_its_start_is_not_taken_for_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: object) -> None:
        raise NO_SPACE

    monkeypatch.setattr("headrace.tablelayer.server.store.kv.Rdict", no_room)
    memory = SharedMemory(Limits())
    with pytest.raises(DiskFullError) as caught:
        KeyValueStore.open(tmp_path / "store", memory)
    assert not is_damage(caught.value)


async def test_a_full_disk_is_told_at_once_and_rows_go_on_when_it_has_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records in the log are not stored yet; later ones are refused without an effect."""
    monkeypatch.setattr("headrace.tablelayer.server.bucket.key_bucket._DISK_FULL_RETRY_SECONDS", 0.05)

    def full(*_: object) -> None:
        raise DiskFullError("No space left on device")

    async with tables(tmp_path) as all_tables:
        table = await all_tables.create("k INT, v INT, PRIMARY KEY (k) NOT ENFORCED")
        partition = table.partition
        first = table.batch([{"k": 1, "v": 1}], [ChangeType.UPDATE_AFTER], producer_id=5, base_sequence=0,
                            producer_epoch=0)  # fmt: skip
        second = table.batch([{"k": 1, "v": 2}], [ChangeType.UPDATE_AFTER])
        with monkeypatch.context() as patched:
            patched.setattr(KeyValueStore, "write", full)
            async with asyncio.timeout(
                TIMEOUT_MS / 2000
            ):  # the requests themselves would wait for twice as long
                for _ in range(2):
                    answer = await table.put_batch(first)
                    assert answer.error_code == ErrorCode.REQUEST_TIMED_OUT
                    assert "not stored yet: the disk is full" in str(answer.error_message)
                    assert partition.log.log_end_offset == 1
                answer = await table.put_batch(second)
                assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                assert "the disk is full; free some of its space" in str(answer.error_message)
                assert partition.log.log_end_offset == 1
                assert await table.lookup({"k": 1}) == [None]
        assert await partition.wait_for_high_watermark(1, 30_000)
        assert await table.lookup({"k": 1}) == [{"k": 1, "v": 1}]
        assert (await table.put_batch(first)).error_code == 0
        assert (await table.put_batch(second)).error_code == 0
        assert await table.lookup({"k": 1}) == [{"k": 1, "v": 2}]


def test_a_store_that_is_held_back_waits_where_others_can_work(tmp_path: Path) -> None:
    """RocksDB would wait for its files inside of a call during which no other thread runs."""
    store = KeyValueStore.open(tmp_path / "store", SharedMemory(Limits()))
    database = store._files._database
    database.set_options({"level0_file_num_compaction_trigger": "9", "level0_stop_writes_trigger": "1"})
    store.write([([b"a"], [b"v"])], 5, 1)
    store.flush()
    with pytest.raises(StalledStoreError):
        store.write([([b"b"], [b"v"])], 6, 2, 0.05)
    assert (store.applied_offset, store.visible_offset, store.row_count) == (5, 5, 1)
    writing = threading.Thread(target=store.write, args=([([b"b"], [b"v"]), ([b"a"], [None])], 7, 1))
    writing.start()
    began = time.monotonic()
    while time.monotonic() < began + 0.1:
        time.sleep(0.001)
        assert writing.is_alive()
    database.set_options({"level0_stop_writes_trigger": "36"})
    writing.join(30)
    assert store.get([b"a", b"b"]) == [None, b"v"]
    assert store.applied == (7, 1)
    store.close()
