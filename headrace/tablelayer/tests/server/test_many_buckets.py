"""A table of thousands of buckets costs only its rows: a store has files from its first write on."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.replication.replicas import LocalReplicas
from headrace.tablelayer.model.types.sizes import RowCost
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.paced import Paced
from headrace.tablelayer.server.room import Room
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.server.store.layout import KeyRange
from headrace.tablelayer.server.store.shared_memory import SharedMemory
from headrace.tablelayer.tests.server.tables import Table, tables, until

COLUMNS = "id INT, v STRING, PRIMARY KEY (id) NOT ENFORCED"


def stores_in(data: Path) -> list[str]:
    return sorted(path.parent.name for path in data.glob("extensions/tables/*/*/CURRENT"))


async def test_buckets_without_rows_have_no_files_and_answer_as_empty_ones(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS, buckets=300)
        assert stores_in(tmp_path) == []
        assert await table.count() == 0
        assert await table.state() == []
        assert await table.lookup({"id": 1}) == [None]
        assert stores_in(tmp_path) == []
        assert (await table.put(("+", {"id": 1, "v": "a"}))).error_code == 0
        assert stores_in(tmp_path) == ["0"]
        assert await table.count(0) == 1
    async with tables(tmp_path) as all_tables:
        table = await all_tables.open()
        assert stores_in(tmp_path) == ["0"]
        assert await table.count(0) == 1
        assert await table.count(8) == 0


READS: dict[str, Callable[[Table], Awaitable[Any]]] = {
    "lookup": lambda table: table.lookup({"id": 1}),
    "state": lambda table: table.state(),
    "count": lambda table: table.count(),
    "changelog": lambda table: table.changelog(),
}


@pytest.mark.parametrize("first", [*READS, "write"])
async def test_a_bucket_that_rests_is_started_by_its_first_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        assert (await table.put(("+", {"id": 1, "v": "a"}))).error_code == 0
        expected = {name: await read(table) for name, read in READS.items()}
    monkeypatch.setattr(LocalReplicas, "start_resting", lambda _: asyncio.Event().wait())
    async with tables(tmp_path) as all_tables:
        table = await all_tables.open()
        assert table.partition.high_watermark == 1
        assert table.partition.hooks.store is None
        if first == "write":
            answer = await table.put(("+", {"id": 2, "v": "b"}))
            assert (answer.error_code, answer.base_offset) == (0, 1)
        else:
            assert await READS[first](table) == expected[first]


async def test_a_bucket_that_rests_is_in_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with tables(tmp_path / "data") as all_tables:
        table = await all_tables.create(COLUMNS)
        assert (await table.put(("+", {"id": 1, "v": "a"}))).error_code == 0
    monkeypatch.setattr(LocalReplicas, "start_resting", lambda _: asyncio.Event().wait())
    async with tables(tmp_path / "data") as all_tables:
        table = await all_tables.open()
        await table.partition.hooks.checkpoint(tmp_path / "copy")
    assert (tmp_path / "copy" / "CURRENT").exists()


async def test_a_bucket_whose_store_is_behind_its_log_does_not_rest(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        assert (await table.put(("+", {"id": 1, "v": "a"}))).error_code == 0
    (note,) = tmp_path.glob("extensions/tables/*/0/closed.json")
    note.write_text(note.read_text().replace('"applied_offset":1', '"applied_offset":0'))
    async with tables(tmp_path) as all_tables:
        table = await all_tables.open()
        assert table.partition.hooks.store is not None
        assert await table.lookup({"id": 1}) == [{"id": 1, "v": "a"}]


async def test_an_idle_bucket_keeps_nothing_that_a_write_has_made(tmp_path: Path) -> None:
    async with tables(tmp_path) as all_tables:
        table = await all_tables.create(COLUMNS)
        partition: Any = table.partition
        for number in range(3):
            assert (await table.put(("+", {"id": number, "v": "a"}))).error_code == 0
        await until(lambda: not partition.hooks._tasks._tasks)
        assert (partition._promises, partition._ending) == ((), ())
        await partition.flush(all_tables.broker.context.executor)
        assert partition._flushing is None
        for kept in (partition._waiters, partition.hooks._tasks._tasks):
            assert sys.getsizeof(kept) == sys.getsizeof({})  # an emptied dict can keep its memory
        other = await all_tables.create(COLUMNS, name="u")
        assert other.definition.settings is table.definition.settings


async def test_a_closed_bucket_is_as_small_as_one_that_was_never_written_to(tmp_path: Path) -> None:
    """Python's allocations, 40 to 60 bytes each. Stores that stay open would have hundreds of kilobytes each."""
    async with tables(tmp_path) as all_tables:

        async def create(numbers: Iterable[int]) -> list[Table]:
            return [await all_tables.create(COLUMNS, name=f"t{number}") for number in numbers]

        async def use(some: list[Table]) -> None:
            for table in some:
                assert (await table.put(*(("+", {"id": n, "v": str(n)}) for n in range(10)))).error_code == 0
                store = table.partition.hooks.store
                store.flush()
                await until(store.close_unused)

        def allocated() -> int:
            gc.collect()
            return sys.getallocatedblocks()

        await use(await create(range(5)))
        begun = allocated()
        made = await create(range(5, 25))
        created = allocated()
        await use(made)
        closed = allocated()
        assert created - begun < 20 * 250
        assert closed - created < 20 * 60


def test_a_store_that_is_not_made_yet_is_an_empty_one(tmp_path: Path) -> None:
    store = KeyValueStore.unmade(tmp_path / "s", SharedMemory(Limits()), 4096)
    assert store.get([b"\x01a"]) == store.get_in_memory([b"\x01a"]) == [None]
    assert store.values_from(b"\x01", 5) == store.keys_from(b"\x01", b"\x02", 5) == []
    room = Room(1 << 20, RowCost(1, 1))
    assert store.values_by_prefix([b"\x01a", b"\x01b"], room) == ([0, 0], [], None)
    assert store.values_while(b"\x01", 5, room) == []
    assert store.get_while([b"\x01a"], room) == [None]
    assert store.absent([b"\x01a"]) == [True]
    assert (store.size_bytes(), store.row_count, store.durable_offset) == (0, 0, 0)
    snapshot = store.snapshot()
    snapshot.seek(KeyRange())
    rows, last, has_more = snapshot.next_rows(1 << 20, 10, RowCost(1, 1))
    assert (len(rows), last, has_more) == (0, None, False)
    store.flush()
    assert not store.path.exists()
    store.write([([b"\x01a"], [b"one"])], 1, 1)
    assert store.get([b"\x01a"]) == [b"one"]
    rows, last, has_more = snapshot.next_rows(1 << 20, 10, RowCost(1, 1))
    assert (len(rows), last, has_more) == (0, None, False)
    store.close()
    again = KeyValueStore.open(store.path, SharedMemory(Limits()))
    assert (again.get([b"\x01a"]), again.applied_offset) == ([b"one"], 1)
    again.destroy()


def test_the_memtables_of_many_stores_stay_small(tmp_path: Path) -> None:
    """RocksDB takes the Bloom filter and the first block of a memtable at once."""
    memory = SharedMemory(Limits())
    taken = []
    for stores in (1, 4096):
        store = KeyValueStore.open(tmp_path / str(stores), memory, stores)
        store.write([([b"\x01a"], [bytes(300_000)])], 1, 1)
        store.write([([b"\x01a"], [b"one"])], 2, 1)  # its memtable becomes large, if there is room
        store.flush()
        store.write([([b"\x01a"], [b"two"])], 3, 1)
        taken.append(store._files._database.property_int_value("rocksdb.size-all-mem-tables"))
        store.destroy()
    assert taken[0] > 300_000
    assert taken[1] < 50_000


class _MallInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`; `uordblks` is the number of allocated bytes."""

    _fields_ = [
        ("before", ctypes.c_size_t * 7),
        ("uordblks", ctypes.c_size_t),
        ("after", ctypes.c_size_t * 2),
    ]


def test_an_open_store_takes_little_memory(tmp_path: Path) -> None:
    """With RocksDB's default buffers of files it takes 373 kB."""
    info = ctypes.CDLL(None).mallinfo2
    info.restype = _MallInfo

    def opened(numbers: Iterable[int]) -> list[KeyValueStore]:
        stores = [KeyValueStore.unmade(tmp_path / str(number), memory) for number in numbers]
        for store in stores:
            store.write([([b"\x01a"], [b"one"])], 1, 1)
        return stores

    memory = SharedMemory(Limits())
    stores = opened(range(2))
    before = info().uordblks
    stores += opened(range(2, 12))
    assert info().uordblks - before < 10 * 320_000
    for store in stores:
        store.destroy()


class Passing:
    """A clock and threads whose time passes by work and pauses alone."""

    def __init__(self) -> None:
        self.now = 0.0
        self.paused: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.paused.append(seconds)
        self.now += seconds

    def work(self, seconds: float) -> str:
        self.now += seconds
        return "done"


def test_opening_many_stores_leaves_half_of_the_time_and_a_few_stores_wait_for_nothing() -> None:
    time: Any = Passing()
    paced = Paced(time, time)
    assert [paced.run(time.work, 0.004) for _ in range(5)] == ["done"] * 5
    assert not time.paused
    begun = time.now
    for _ in range(100):
        paced.run(time.work, 0.004)
    assert time.now - begun == pytest.approx(2 * 100 * 0.004, abs=0.005)
    paced.run(time.work, 3.0)  # a disk that does not answer
    count = len(time.paused)
    paced.run(time.work, 0.004)
    assert time.paused[count:] == [pytest.approx(0.05)]
    time.now += 1.0
    paced.run(time.work, 0.004)
    assert len(time.paused) == count + 1
