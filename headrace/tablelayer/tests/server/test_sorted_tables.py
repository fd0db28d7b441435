"""Scans from RocksDB's table files (`store/sorted_tables.py`), against a dict and against RocksDB's iterator."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from rocksdict import DBCompressionType

from headrace.broker.runtime.ports import Disk
from headrace.tablelayer.model.filters.filters import Filter, encode_filter
from headrace.tablelayer.model.rows.stored import decode_rows, encode_rows
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.types.column_types import BIGINT, STRING
from headrace.tablelayer.model.types.sizes import RowCost
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.read.stored_groups import FilteredGroups
from headrace.tablelayer.server.store import (
    pruning,
    sorted_tables,
    store_snapshot,
    table_index,
    table_kernels,
)
from headrace.tablelayer.server.store.file_cache import FileCache
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.server.store.layout import KeyRange
from headrace.tablelayer.server.store.shared_memory import SharedMemory
from headrace.tablelayer.server.store.store_snapshot import StoreSnapshot
from headrace.tablelayer.server.store.xxh3 import SHORTEST, xxh3

COST = RowCost(8, 1)
State = dict[bytes, bytes]
PARTS = (b"", b"\x00", b"a", b"a\x00b", b"same-beginning-", b"\xff\xff", b"12345678", b"123456789")


class SmallMemory(SharedMemory):
    """Options that make many small files: files of 64 KiB, compressed as a test wants it."""

    compression: Any = None
    compacts = True

    def options(self, stores: int = 1) -> Any:
        options = super().options(stores)
        options.set_target_file_size_base(64 << 10)
        options.set_max_bytes_for_level_base(128 << 10)
        options.set_disable_auto_compactions(not self.compacts)
        if self.compression is not None:
            options.set_compression_per_level([])
            options.set_compression_type(self.compression)
        return options


@pytest.fixture(autouse=True)
def from_the_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_snapshot, "_ITERATED_ROWS", 0)


def some_key(rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        return b"\x01" + (rng.randrange(3000) + (1 << 63)).to_bytes(8, "big")
    return b"\x01" + b"".join(rng.choice(PARTS) for _ in range(rng.randrange(4)))


def rows_of(snapshot: StoreSnapshot, keys: KeyRange, rng: random.Random) -> list[bytes]:
    snapshot.seek(keys)
    found: list[bytes] = []
    has_more = True
    while has_more:
        size, count = rng.choice(
            [(1 << 20, sys.maxsize), (3000, sys.maxsize), (1 << 20, rng.randrange(1, 9))]
        )
        rows, last, has_more = snapshot.next_rows(size, count, COST)
        values = rows.array().to_pylist()
        assert len(values) <= count
        assert sum(map(len, values[:-1])) < size
        assert values or not has_more
        if values and rng.random() < 0.1:  # a reader that lost its scan goes on behind the last key
            assert last is not None
            snapshot.seek(keys.after(last))
        found += values
    return found


def between(state: State, keys: KeyRange) -> list[bytes]:
    return [
        state[key] for key in sorted(state) if keys.lower <= key and (keys.upper is None or key < keys.upper)
    ]


@pytest.mark.parametrize("compression", ["lz4", None])
@pytest.mark.parametrize("seed", range(4))
def test_a_scan_shows_its_snapshot_while_files_change(
    tmp_path: Path, seed: int, compression: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(sorted_tables, "_TOGETHER_BYTES", 1 << rng.randrange(10, 21))
    monkeypatch.setattr(sorted_tables, "_TOGETHER_BYTES_MIN", 1 << 10)
    memory = SmallMemory(Limits())
    memory.compression = None if compression is None else getattr(DBCompressionType, compression)()
    store = KeyValueStore.open(tmp_path / "kv", memory)
    state: State = {}
    held: list[tuple[StoreSnapshot, State, int]] = []
    offset = 0
    for step in range(60):
        keys = sorted({some_key(rng) for _ in range(rng.choice((1, 20, 400)))})
        values = [None if rng.random() < 0.3 else rng.randbytes(8) * rng.choice((0, 1, 4, 40)) for _ in keys]
        if rng.random() < 0.05:
            values[0] = rng.randbytes(50_000)
        offset += len(keys)
        store.write([(keys, values)], offset, len(state))
        for key, value in zip(keys, values, strict=True):
            if value is None:
                state.pop(key, None)
            else:
                state[key] = value
        event = rng.random()
        if event < 0.25:
            store.flush()
        elif event < 0.3:
            store._files._database.compact_range(None, None)
        elif event < 0.35:
            for snapshot, _, _ in held:
                snapshot.end()
            held.clear()
            store.close()
            store = KeyValueStore.open(tmp_path / "kv", memory)
        if rng.random() < 0.3:
            held.append((store.snapshot(), dict(state), offset))
        if rng.random() < 0.3 and held:
            snapshot, then, at = rng.choice(held)
            bounds = sorted((some_key(rng), some_key(rng)))
            keys_wanted = rng.choice(
                [KeyRange(), KeyRange(bounds[0]), KeyRange(*bounds), KeyRange(upper=bounds[1])]
            )
            assert rows_of(snapshot, keys_wanted, rng) == between(then, keys_wanted), (step, keys_wanted)
            assert snapshot.applied_offset == at
            assert snapshot._tables is not None, "RocksDB's iterator has read"
    for snapshot, then, _ in held:
        assert rows_of(snapshot, KeyRange(), rng) == between(then, KeyRange())
        snapshot.end()
    store.close()


def test_versions_of_a_key_that_fill_several_blocks_are_one_row(tmp_path: Path) -> None:
    memory = SmallMemory(Limits())
    store = KeyValueStore.open(tmp_path / "kv", memory)
    keys = [b"\x01" + bytes([n]) for n in range(50)]
    held = []
    for version in range(40):
        store.write([(keys, [bytes([version]) * 4_000 for _ in keys])], version + 1, 50)
        held.append(store.snapshot())
    store.flush()
    for version, snapshot in enumerate(held):
        assert rows_of(snapshot, KeyRange(), random.Random(version)) == [bytes([version]) * 4_000] * 50
        assert snapshot._tables is not None
        snapshot.end()
    store.close()


class Racing:
    """A database into which rows are written while a snapshot is taken, the first few times."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.writes = 3

    def __getattr__(self, name: str) -> Any:
        if name in ("snapshot", "iter") and self.writes:
            self.writes -= 1
            self._database[b"\x01row-%d" % self.writes] = b"new"
        return getattr(self._database, name)


@pytest.mark.parametrize("iterated", [0, 1, 4096])
def test_every_piece_of_a_scan_shows_one_state(
    tmp_path: Path, iterated: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_snapshot, "_ITERATED_ROWS", iterated)
    store = KeyValueStore.open(tmp_path / "kv", SmallMemory(Limits()))
    keys = [b"\x01" + n.to_bytes(4, "big") for n in range(100)]
    store.write([(keys, [b"old"] * 100)], 100, 100)
    store._files._database = Racing(store._files._database)
    snapshot = store.snapshot()
    assert rows_of(snapshot, KeyRange(), random.Random(1)) == [b"old"] * 100 + [b"new"] * 3
    store.write([(keys, [b"new"] * 100)], 200, 100)
    # A client may ask again for a piece whose answer was lost.
    assert rows_of(snapshot, KeyRange(), random.Random(2)) == [b"old"] * 100 + [b"new"] * 3
    assert snapshot.applied_offset == 100
    snapshot.end()
    store.close()


def test_a_file_of_an_unknown_form_is_left_to_rocksdb(tmp_path: Path) -> None:
    memory = SmallMemory(Limits())
    memory.compression = DBCompressionType.zstd()
    store = KeyValueStore.open(tmp_path / "kv", memory)
    keys = [b"\x01" + n.to_bytes(4, "big") for n in range(3_000)]
    store.write([(keys, [b"value " * 9 + key for key in keys])], 1, len(keys))
    snapshot = store.snapshot()
    assert rows_of(snapshot, KeyRange(), random.Random(1)) == [b"value " * 9 + key for key in keys]
    assert snapshot._tables is None
    snapshot.end()
    store.close()


@pytest.mark.parametrize("compression", ["lz4", "none"])
def test_a_damaged_file_never_gives_other_rows(tmp_path: Path, compression: str) -> None:
    memory = SmallMemory(Limits(), block_cache_bytes=0)
    memory.compression = getattr(DBCompressionType, compression)()
    store = KeyValueStore.open(tmp_path / "kv", memory)
    keys = [b"\x01" + n.to_bytes(4, "big") for n in range(2_000)]
    values = [b"value " * 9 + key for key in keys]
    store.write([(keys, values)], 1, len(keys))
    store.flush()
    (path,) = (tmp_path / "kv").glob("*.sst")
    whole = path.read_bytes()
    rng = random.Random(5)
    outcomes = set()
    for _ in range(60):
        data = bytearray(whole)
        at = rng.choice([rng.randrange(len(data)), len(data) - 1 - rng.randrange(2_500)])
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        memory.indexes = store._tables._indexes = FileCache(table_index.INDEXES_BYTES_MAX)
        snapshot = store.snapshot()
        try:
            assert rows_of(snapshot, KeyRange(), rng) == values
            outcomes.add("read")
        except Exception as error:  # RocksDB's own errors have no type
            if "Corruption" not in str(error):
                raise
            outcomes.add("refused")
        snapshot.end()
    assert outcomes == {
        "refused",
        "read",
    }  # RocksDB has read the index and the filter before they were damaged
    store.abandon()


def test_scans_compile_no_kernel_that_warming_up_has_not_compiled(tmp_path: Path) -> None:
    modules = (table_kernels, pruning)
    for module in modules:
        module.warm()
    kernels = [each for module in modules for each in vars(module).values() if hasattr(each, "signatures")]
    before = [len(kernel.signatures) for kernel in kernels]
    store = KeyValueStore.open(tmp_path / "kv", SmallMemory(Limits()))
    store.write([stored({each: each for each in range(3)})], 1, 3)
    snapshot = store.snapshot()
    assert len(rows_of(snapshot, KeyRange(upper=key_of(2)), random.Random(1))) == 2
    found = []
    for _ in range(2):
        snapshot.seek(KeyRange(upper=key_of(2)), FilteredGroups(filter_of(pc.field("a") > 5)))
        found.append(len(snapshot.next_rows(1 << 20, sys.maxsize, COST)[0]))
    assert found == [2, 0], "the second scan did not call the kernel that chooses blocks"
    assert [len(kernel.signatures) for kernel in kernels] == before
    snapshot.end()
    store.close()


def test_the_checksum_is_xxh3() -> None:
    known = {
        9: 16816763818684955100,
        16: 9463720498221773019,
        17: 11453570474087510824,
        100: 22042537110060316,
    }
    known |= {200: 17594024861627254531, 241: 209643423615708418, 1024: 16561859741171264165}
    known |= {1025: 16815387850662484078, 5000: 12977210354913452270}
    data = (np.arange(5000) % 251).astype(np.uint8)
    assert min(known) == SHORTEST
    assert {size: int(xxh3(data.ctypes.data, size)) for size in known} == known


SCHEMA = Schema.of([("id", BIGINT), ("a", BIGINT), ("text", STRING)])


def stored(rows: dict[int, int]) -> tuple[list[bytes], list[bytes | None]]:
    ids = sorted(rows)
    columns = {"id": ids, "a": [rows[each] for each in ids], "text": [f"{each:040}" for each in ids]}
    values = encode_rows(pa.RecordBatch.from_pydict(columns, schema=SCHEMA.arrow()), SCHEMA).to_pylist()
    return [key_of(each) for each in ids], values


def key_of(number: int) -> bytes:
    return b"\x01" + (number + (1 << 63)).to_bytes(8, "big")


def filter_of(condition: pc.Expression) -> Filter:
    return Filter.parse(encode_filter(condition, SCHEMA), SCHEMA)


def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each read of blocks adds its size."""
    read: list[int] = []
    read_bytes = table_index.read_bytes

    def counted(disk: Disk, path: Path, position: int, size: int) -> bytes:
        read.append(size)
        return read_bytes(disk, path, position, size)

    monkeypatch.setattr(sorted_tables, "read_bytes", counted)
    return read


@pytest.mark.parametrize("seed", range(4))
def test_statistics_skip_blocks_and_change_no_answer(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(sorted_tables, "_TOGETHER_BYTES", 1 << rng.randrange(13, 21))
    monkeypatch.setattr(pruning, "_ZONE_BLOCKS", rng.choice([1, 2, 3]))
    monkeypatch.setattr(pruning, "_ZONES_OF_FILE", rng.choice([2, 64]))
    read = bytes_read(monkeypatch)
    memory = SmallMemory(Limits())
    memory.compacts = bool(seed % 2)
    store = KeyValueStore.open(tmp_path / "kv", memory)
    model = {each: each for each in range(6_000)}
    held: list[tuple[StoreSnapshot, dict[int, int]]] = []
    nears: list[int] = []

    def check(snapshot: StoreSnapshot, then: dict[int, int]) -> int:
        """Compare a filtered scan with the model; return the number of bytes that it has read."""
        low = rng.choice([*nears[-4:], rng.randrange(6_000)])
        condition = (pc.field("a") >= low) & (pc.field("a") < low + 60)
        read.clear()
        snapshot.seek(KeyRange(), FilteredGroups(filter_of(condition)))
        found: list[dict[str, Any]] = []
        has_more = True
        while has_more:
            rows, _, has_more = snapshot.next_rows(1 << 16, sys.maxsize, COST)
            found += decode_rows(rows.array(), SCHEMA).to_pylist()
        assert snapshot._tables is not None
        got = {row["id"]: row["a"] for row in found if low <= row["a"] < low + 60}
        assert got == {key: a for key, a in then.items() if low <= a < low + 60}
        return sum(read)

    for step in range(20):
        if step:
            # The new values are near each other: older versions match where no row of the newest file does.
            for _ in range(2):
                near = rng.randrange(6_000)
                nears.append(near)
                count = rng.choice((1, 50, 300))
                changed = {rng.randrange(6_000): near + rng.randrange(60) for _ in range(count)}
                store.write([stored(changed)], step, 0)
                model |= changed
                if rng.random() < 0.5:
                    store.flush()
            gone = rng.sample(sorted(model), 50)
            keys, _ = stored(dict.fromkeys(gone, 0))
            store.write([(keys, [None] * len(keys))], step, 0)
            for each in gone:
                del model[each]
        else:
            store.write([stored(model)], step, 0)
        if rng.random() < 0.3:
            store._files._database.compact_range(None, None)
        if rng.random() < 0.5:
            held.append((store.snapshot(), dict(model)))
        for snapshot, then in rng.sample(held, min(2, len(held))):
            check(snapshot, then)
    for snapshot, _ in held:
        snapshot.end()
    model = {each: each for each in range(6_000)}
    store.write([stored(model)], 21, 6_000)
    with store._files as database:
        database.set_options({"disable_auto_compactions": "true"})
        database.compact_range(None, None)
    snapshot = store.snapshot()
    everything = check(snapshot, model)
    check(snapshot, model)
    assert check(snapshot, model) < everything / 4
    snapshot.end()
    store.close()


def test_statistics_skip_blocks_while_files_wait_for_a_merge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = bytes_read(monkeypatch)
    memory = SmallMemory(Limits())
    memory.compacts = False
    store = KeyValueStore.open(tmp_path / "kv", memory)
    store.write([stored({each: each for each in range(12_000)})], 1, 12_000)
    store._files._database.compact_range(None, None)
    for step in range(5):
        changed = {each: each for each in range(step, 12_000, 6)}
        store.write([stored(changed)], 2 + step, 12_000)
        store.flush()
    files = store.live_files()
    assert sorted({file["level"] for file in files}) == [0, 6]
    snapshot = store.snapshot()
    for _ in range(2):
        read.clear()
        snapshot.seek(
            KeyRange(), FilteredGroups(filter_of((pc.field("a") > 5_000) & (pc.field("a") < 5_060)))
        )
        rows, _, has_more = snapshot.next_rows(1 << 22, sys.maxsize, COST)
        assert not has_more
        found = {row["a"] for row in decode_rows(rows.array(), SCHEMA).to_pylist()}
        assert found >= set(range(5_001, 5_060))
    assert sum(read) < sum(file["size"] for file in files) / 4
    snapshot.end()
    store.close()


def test_a_scan_forgets_its_verdicts_with_the_index_of_the_file(tmp_path: Path) -> None:
    memory = SmallMemory(Limits())
    memory.compacts = False
    store = KeyValueStore.open(tmp_path / "kv", memory)
    store.write([stored({each: each for each in range(3_000)})], 1, 3_000)
    snapshot, other = store.snapshot(), store.snapshot()
    groups = FilteredGroups(filter_of((pc.field("a") < 10) | (pc.field("a") >= 2_990)))

    def matching(keys: KeyRange, rows_max: int, scan: StoreSnapshot = other) -> list[int]:
        scan.seek(keys, groups if scan is snapshot else FilteredGroups(filter_of(pc.field("a") >= 0)))
        rows, _, _ = scan.next_rows(1 << 22, rows_max, COST)
        found = [row["a"] for row in decode_rows(rows.array(), SCHEMA).to_pylist()]
        return [each for each in found if each < 10 or each >= 2_990]

    matching(KeyRange(), sys.maxsize)
    assert matching(KeyRange(), 10, snapshot) == list(range(10))
    store._tables.forget()
    # The statistics are made in another order now.
    matching(KeyRange(lower=key_of(1_500)), sys.maxsize)
    matching(KeyRange(), sys.maxsize)
    assert matching(KeyRange(lower=key_of(10)), sys.maxsize, snapshot) == list(range(2_990, 3_000))
    snapshot.end()
    other.end()
    store.close()
