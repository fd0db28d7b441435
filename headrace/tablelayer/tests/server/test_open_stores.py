"""Stores are closed when they are too many or idle, and opened again by their next use."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.tablelayer.model.types.sizes import RowCost
from headrace.tablelayer.server.bucket.tasks import Kind
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.store import kv, open_stores
from headrace.tablelayer.server.store.errors import DamagedStoreError
from headrace.tablelayer.server.store.kv import NOTE, KeyValueStore
from headrace.tablelayer.server.store.layout import KeyRange
from headrace.tablelayer.server.store.shared_memory import SharedMemory
from headrace.tablelayer.tests.server.tables import tables, until

COLUMNS = "k INT, v STRING, PRIMARY KEY (k)"
KEYS = [b"\x01a", b"\x01b"]


def written(path: Path, memory: SharedMemory, value: bytes = b"v") -> KeyValueStore:
    store = KeyValueStore.open(path, memory)
    store.write([(KEYS, [value, value])], 7, 2)
    return store


def limited(stores: int) -> SharedMemory:
    return SharedMemory(msgspec.structs.replace(Limits(), stores_open_max=stores))


def test_a_closed_store_tells_its_numbers_and_is_opened_by_the_next_use(tmp_path: Path) -> None:
    memory = SharedMemory(Limits())
    store = written(tmp_path / "s", memory)
    assert store.close_unused()
    assert not store.is_open
    assert (store.applied, store.durable_offset, store.bytes_since_flush) == ((7, 2), 7, 0)
    assert store.size_bytes() > 0
    assert store.get_in_memory(KEYS) is None  # it may not wait
    assert (memory.stores.count, memory.stores.files, memory.stores.reopened) == (0, 0, 0)
    assert store.get(KEYS) == [b"v", b"v"]
    assert (memory.stores.count, memory.stores.reopened) == (1, 1)
    assert store.close_unused()
    store.write([(KEYS[:1], [None])], 8, 1)
    assert store.close_unused()
    assert (store.applied, store.durable_offset) == ((8, 1), 8)
    assert store.get(KEYS) == [None, b"v"]
    store.close()


def test_no_more_stores_than_allowed_are_open_and_the_least_recently_used_one_is_closed(
    tmp_path: Path,
) -> None:
    memory = limited(3)
    stores = [written(tmp_path / str(number), memory, b"%d" % number) for number in range(3)]
    stores[0].get(KEYS)
    stores.append(KeyValueStore.unmade(tmp_path / "3", memory))
    stores[3].write([(KEYS, [b"3", b"3"])], 7, 2)
    assert [each.is_open for each in stores] == [True, False, True, True]

    def read(store: KeyValueStore, value: bytes) -> None:
        for _ in range(5):
            store.write([(KEYS, [value, value])], store.applied_offset + 1, 2)
            if store.get(KEYS) != [value, value]:
                wrong.append(value)

    wrong: list[bytes] = []
    readers = [threading.Thread(target=read, args=(store, b"%d" % n)) for n, store in enumerate(stores)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert not wrong
    assert [store.applied for store in stores] == [(12, 2)] * 4
    memory.stores.make_room()
    assert memory.stores.count == sum(store.is_open for store in stores) < 3


def test_files_are_counted_with_the_sorted_tables(tmp_path: Path) -> None:
    memory = SharedMemory(msgspec.structs.replace(Limits(), store_files_max=19))
    first, second, third = (written(tmp_path / name, memory) for name in "abc")
    assert memory.stores.files == 18
    first.flush()
    assert memory.stores.files == 19
    assert memory.stores.make_room()
    # The flush used the first one last.
    assert [store.is_open for store in (first, second, third)] == [True, False, False]


def test_room_is_made_before_a_store_of_a_start_or_a_copy_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, really_open, open_before = limited(2), kv._open, list[int]()
    full = OSError(errno.EMFILE, "Too many open files")

    def opened(path: Path, *rest: Any, **options: Any) -> Any:
        open_before.append(memory.stores.count)
        if len(open_before) == 3:
            raise full
        return really_open(path, *rest, **options)

    monkeypatch.setattr(kv, "_open", opened)
    stores = [written(tmp_path / name, memory) for name in "abc"]
    # The third opening finds room for one more, meets the limit of files, and is repeated after another closing.
    assert open_before == [0, 1, 1, 0]
    assert [store.is_open for store in stores] == [False, False, True]


def test_a_store_in_use_is_not_closed(tmp_path: Path) -> None:
    store = written(tmp_path / "s", SharedMemory(Limits()))
    snapshot = store.snapshot()
    assert not store.close_unused()
    snapshot.seek(KeyRange())
    assert len(snapshot.next_rows(1 << 20, 10, RowCost(0, 1))[0].lengths) == 2
    snapshot.end()
    assert store.close_unused()
    dropped = store.snapshot()
    del dropped
    assert store.close_unused()


def test_only_stores_that_are_used_again_let_more_than_a_few_be_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_stores, "STORES_AT_FIRST", 3)
    memory = limited(6)
    stores = [written(tmp_path / str(number), memory) for number in range(12)]
    for store in stores:
        store.close_unused()
    for store in stores:  # once each, however many
        assert store.get(KEYS) == [b"v", b"v"]
    assert memory.stores.count == 3
    for _ in range(4):
        for store in stores[:5]:
            store.get(KEYS)
    assert memory.stores.count == 5
    reopened = memory.stores.reopened
    for store in stores[:5]:
        store.get(KEYS)
    assert memory.stores.reopened == reopened
    for _ in range(4):
        for store in stores[:8]:
            store.get(KEYS)
    assert memory.stores.count == 6  # not more than allowed
    assert memory.stores.close_idle(-1.0) == 6
    for store in stores:
        store.get(KEYS)
    assert memory.stores.count == 3
    for store in stores:
        store.close()
    assert not memory.stores._missed


def test_only_stores_that_were_not_used_for_a_time_are_idle(tmp_path: Path) -> None:
    memory = SharedMemory(Limits())
    old, new = written(tmp_path / "a", memory), written(tmp_path / "b", memory)
    assert memory.stores.close_idle(3600) == 0
    memory.stores._used_at[old._files] -= 7200
    assert memory.stores.close_idle(3600) == 1
    assert (old.is_open, new.is_open) == (False, True)


def test_a_memtable_becomes_large_with_what_is_written_between_two_flushes(tmp_path: Path) -> None:
    store = written(tmp_path / "s", SharedMemory(Limits()))

    def size_with_a_row() -> int:
        store.flush()
        store.write([([b"\x01r"], [b"v"])], store.applied_offset + 1, 3)
        with store._files as database:
            return int(database.property_int_value("rocksdb.size-all-mem-tables"))

    def write(number: int) -> None:
        store.write([([b"\x01%d" % number], [bytes(10_000)])], store.applied_offset + 1, 3)

    small = size_with_a_row()
    assert small < 100_000  # the large Bloom filter alone takes 320 KiB
    for number in range(40):
        write(number)
        store.flush()
    assert size_with_a_row() == small
    for number in range(40):
        write(number)
    assert size_with_a_row() > 300_000
    assert store.close_unused()
    assert store.get(KEYS) == [b"v", b"v"]
    assert size_with_a_row() == small
    store.close()


def test_files_are_merged_when_there_are_as_many_as_was_said(tmp_path: Path) -> None:
    store = written(tmp_path / "s", SharedMemory(Limits()))
    store.merge_from(12)
    for number in range(40):
        store.write([([b"\x01%d" % number], [bytes(10_000)])], store.applied_offset + 1, 3)
    for _ in range(8):
        store.write([([b"\x01r"], [b"v"])], store.applied_offset + 1, 3)
        store.flush()
    assert {file["level"] for file in store.live_files()} == {0}
    store.merge_from(4)
    deadline = time.monotonic() + 60
    while len(store.live_files()) > 4:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    store.close()


async def test_a_start_opens_no_store_that_is_not_used(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(*[("+", {"k": number, "v": "a"}) for number in range(50)])
    async with tables(tmp_path) as all_tables:
        table = await all_tables.open()
        store = table.partition.hooks.store
        assert not store.is_open
        assert table.partition.hooks not in table.partition.hooks.services.restless
        assert (await table.count(), table.partition.high_watermark) == (50, 50)
        assert table.partition.hooks.retention_floor() == 0  # the snapshots are not known yet
        assert not store.is_open
        assert await table.lookup({"k": 7}) == [{"k": 7, "v": "a"}]
        assert store.is_open
        await table.put(("+", {"k": 7, "v": "b"}))
        assert store.close_unused()
        assert await table.lookup({"k": 7}) == [{"k": 7, "v": "b"}]
        assert await table.count() == 50


def test_a_note_that_is_older_than_the_files_is_found_out_by_the_first_use(tmp_path: Path) -> None:
    memory = SharedMemory(Limits())
    store = written(tmp_path / "s", memory)
    store.close()
    note = (tmp_path / "s" / NOTE).read_bytes()
    store = KeyValueStore.open(tmp_path / "s", memory)
    store.write([(KEYS[:1], [None])], 9, 1)
    store.close()
    assert KeyValueStore.noted(tmp_path / "s", memory, 1, 7) is None
    (tmp_path / "s" / NOTE).write_bytes(note)
    assert KeyValueStore.noted(tmp_path / "s", memory, 1, 9) is None
    stale = KeyValueStore.noted(tmp_path / "s", memory, 1, 7)
    assert stale is not None
    with pytest.raises(
        DamagedStoreError, match="closed at offset 7 with 2 rows, and has offset 9 with 1 rows"
    ):
        stale.get(KEYS)
    (tmp_path / "s" / NOTE).write_bytes(b"{}")
    assert KeyValueStore.noted(tmp_path / "s", memory, 1, 9) is None


async def test_a_closed_store_that_was_lost_is_built_again(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(*[("+", {"k": number, "v": "a"}) for number in range(50)])
        bucket = table.partition.hooks
        assert bucket.store.close_unused()
        for file in bucket.directory.glob("*.sst"):
            file.unlink()
        with contextlib.suppress(Exception):  # the first use finds the damage, and its client tries again
            await table.lookup({"k": 7})
        await bucket._tasks.wait(Kind.REBUILD)
        assert await table.lookup({"k": 7}) == [{"k": 7, "v": "a"}]


async def test_rows_in_memory_are_replayed_when_rocksdb_has_stopped_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RocksDB refuses all writes after an error of its own files, until it is opened again."""
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        await table.put(("+", {"k": 1, "v": "a"}))
        bucket = table.partition.hooks
        halted = bucket.store
        text = "IO error: While open a file for appending: 000009.sst: Too many open files"
        with monkeypatch.context() as few:

            def fail(*_: object) -> None:
                raise OSError(24, text)

            few.setattr(KeyValueStore, "flush", fail)
            bucket._start_flush()
            await until(lambda: bucket.store is not None and bucket.store is not halted)
        assert table.partition.failure is None
        assert await table.lookup({"k": 1}) == [{"k": 1, "v": "a"}]
        await table.put(("+", {"k": 1, "v": "b"}))
        assert await table.lookup({"k": 1}) == [{"k": 1, "v": "b"}]
