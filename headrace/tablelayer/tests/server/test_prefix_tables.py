"""Reads by prefix from RocksDB's table files (`store/prefix_tables.py`), against a dict and RocksDB's iterator."""

from __future__ import annotations

import random
import time
from pathlib import Path

import numpy as np
import pytest

from headrace.tablelayer.model.types.sizes import RowCost
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.room import Room
from headrace.tablelayer.server.store import kv, prefix_tables
from headrace.tablelayer.server.store.file_cache import FileCache
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.tests.server.test_sorted_tables import SmallMemory

COST = RowCost(8, 2)


class MovedClock:
    """The time since the last flush that a read caused."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def key_of(prefix: int, rest: bytes) -> bytes:
    return b"\x01" + prefix.to_bytes(2, "big") + rest


def some_rest(rng: random.Random) -> bytes:
    return rng.choice([b"", b"\x00", b"a", b"same-beginning-"]) + rng.randrange(6).to_bytes(1, "big")


def wide() -> Room:
    return Room(1 << 30, COST)


def expected(state: dict[bytes, bytes], prefixes: list[bytes]) -> tuple[list[int], list[bytes]]:
    groups = [[state[key] for key in sorted(state) if key.startswith(prefix)] for prefix in prefixes]
    return list(map(len, groups)), [value for group in groups for value in group]


def found(store: KeyValueStore, prefixes: list[bytes]) -> tuple[list[int], list[bytes]]:
    for _ in range(100):  # the files may change too fast for a read
        room = wide()
        read = store.rows_by_prefix(prefixes, room)
        if read is not None:
            break
        time.sleep(0.01)
    assert read is not None
    counts, rows = read
    values = [bytes(value) for value in rows.array().to_pylist()]
    assert room.used == sum(map(COST.stored, values))
    return counts.tolist(), values


@pytest.fixture
def memory() -> SmallMemory:
    memory = SmallMemory(Limits())
    memory.clock = MovedClock()
    return memory


@pytest.mark.parametrize("seed", range(4))
def test_the_rows_are_those_of_the_state_whatever_files_they_are_in(
    tmp_path: Path, memory: SmallMemory, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_tables, "_FILES_MAX", 1000)
    # With odd seeds RocksDB compacts when it wants to, so the levels are only known with even ones.
    memory.compacts = seed % 2 == 1
    rng = random.Random(seed)
    store = KeyValueStore.open(tmp_path / "kv", memory)
    state: dict[bytes, bytes] = {}
    for step in range(30):
        changes: dict[bytes, bytes | None] = {}
        for _ in range(rng.choice([1, 50, 400])):
            key = key_of(rng.randrange(300), some_rest(rng))
            changes[key] = None if rng.random() < 0.3 else bytes([step]) * rng.choice([2, 60, 3000])
        keys = sorted(changes)
        store.write([(keys, [changes[key] for key in keys])], step + 1, 0)
        state = {key: value for key, value in {**state, **changes}.items() if value is not None}
        if rng.random() < 0.5:
            store.flush()
        if step == 13:
            store._files._database.compact_range(None, None)
        if step % 5 == 4:
            store.flush()
            prefixes = [b"\x01" + rng.randrange(310).to_bytes(2, "big") for _ in range(100)]
            prefixes += [*rng.sample(sorted(state), 20), b"\x01\x00", b"\x01\xff\xff\xff"]
            assert found(store, prefixes) == expected(state, prefixes)
            assert found(store, prefixes) == store.values_by_prefix(prefixes, wide())[:2]
    assert memory.compacts or len({file["level"] for file in store.live_files()}) > 1
    store.close()


def test_rows_in_memory_are_flushed_for_reads_at_intervals(tmp_path: Path, memory: SmallMemory) -> None:
    store = KeyValueStore.open(tmp_path / "kv", memory)
    prefixes = [b"\x01" + bytes([number]) for number in range(100)]
    store.write([([key + b"k" for key in prefixes], [b"one"] * 100)], 1, 100)
    assert found(store, prefixes) == ([1] * 100, [b"one"] * 100)
    store.write([([prefixes[7] + b"k"], [b"two"])], 2, 100)
    assert store.rows_by_prefix(prefixes, wide()) is None
    memory.clock.now += memory.limits.flush_seconds
    assert found(store, prefixes)[1][7] == b"two"
    assert store.rows_by_prefix(prefixes[: kv._PREFIXES_TOGETHER_MIN - 1], wide()) is None
    store.close()


def test_rows_that_do_not_fit_are_left_to_the_iterator(tmp_path: Path, memory: SmallMemory) -> None:
    store = KeyValueStore.open(tmp_path / "kv", memory)
    prefixes = [b"\x01" + bytes([number]) for number in range(70)]
    keys = [prefix + bytes([number]) for prefix in prefixes for number in range(40)]
    store.write([(keys, [b"value"] * len(keys))], 1, len(keys))
    whole = len(keys) * COST.stored(b"value")
    fits, narrow = Room(whole + 3, COST), Room(whole + 2, COST)
    fits.used = narrow.used = 3
    assert store.rows_by_prefix(prefixes, narrow) is None
    assert (narrow.used, narrow.is_full) == (3, False)
    read = store.rows_by_prefix(prefixes, fits)
    assert read is not None
    assert read[0].tolist() == [40] * 70
    assert fits.used == whole + 3
    store.close()


def test_damaged_and_large_files_are_left_to_the_iterator(tmp_path: Path, memory: SmallMemory) -> None:
    store = KeyValueStore.open(tmp_path / "kv", memory)
    prefixes = [b"\x01" + bytes([number]) for number in range(100)]
    store.write([([key + b"k" for key in prefixes], [bytes([n]) * 500 for n in range(100)])], 1, 100)
    store.flush()
    memory.kept.bytes_max = 1000
    assert store.rows_by_prefix(prefixes, wide()) is None
    memory.kept.bytes_max = prefix_tables.KEPT_BYTES_MAX
    path = tmp_path / "kv" / store.live_files()[0]["name"].lstrip("/")
    data = bytearray(path.read_bytes())
    data[700] ^= 1
    path.write_bytes(data)
    assert store.rows_by_prefix(prefixes, wide()) is None
    store.close()


def test_kept_files_are_limited_and_forgotten_with_their_store(tmp_path: Path, memory: SmallMemory) -> None:
    prefixes = [b"\x01" + bytes([number]) for number in range(100)]
    stores = []
    rng = np.random.default_rng(1)
    for number in range(4):
        store = KeyValueStore.open(tmp_path / str(number), memory)
        store.write([([key + b"k" for key in prefixes], [rng.bytes(1000) for _ in prefixes])], 1, 100)
        stores.append(store)
    memory.kept = kept = FileCache(300_000)
    for store in stores:
        found(store, prefixes)
        assert kept._size <= kept.bytes_max
    assert len(kept._known) == 2
    stores[3].write([([prefixes[0] + b"k"], [b"new"])], 2, 100)
    stores[3].flush()
    assert found(stores[3], prefixes)[1][0] == b"new"
    assert stores[2].close_unused()
    assert all(owner is stores[3] for owner, _ in kept._known)
    for store in stores:
        store.close()
    assert (kept._size, len(kept._known)) == (0, 0)
