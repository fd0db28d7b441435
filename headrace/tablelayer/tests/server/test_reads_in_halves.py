"""Two threads look up many keys with the same answer, the same bounds and the same errors as one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Event, get_ident

import numpy as np
import pytest

from headrace.tablelayer.model.types.sizes import RowCost
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.room import Room
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.server.store.shared_memory import SharedMemory

COUNT = 2_500
KEYS = [b"\x01%05d" % number for number in range(COUNT)]


def wide() -> Room:
    return Room(1 << 30, RowCost(3, 2))


class WatchedStore(KeyValueStore):
    """A store that records the reading threads, and fails for one key. Each thread's first read waits at `meeting`."""

    bad: bytes | None = None
    meeting: Barrier | None = None
    readers: set[int]
    read = 0

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        if self.meeting is not None and get_ident() not in self.readers:
            self.meeting.wait(60)
        self.readers.add(get_ident())
        self.read += len(keys)
        if self.bad in keys:
            raise OSError("the disk does not answer")
        return super().get(keys)


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    memory = SharedMemory(Limits())
    yield memory
    memory.helper.shutdown()


@pytest.fixture
def store(tmp_path: Path, memory: SharedMemory) -> Iterator[WatchedStore]:
    store = WatchedStore.open(tmp_path / "kv", memory)
    assert isinstance(store, WatchedStore)
    store.readers = set()
    yield store
    store.close()


@pytest.mark.parametrize("seed", range(4))
def test_many_keys_are_read_like_few(store: WatchedStore, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = [bytes(int(size)) for size in rng.choice([1, 40, 900], COUNT, p=[0.5, 0.4, 0.1])]
    store.write([(KEYS[::2], values[::2])], COUNT, COUNT // 2)
    stored = dict(zip(KEYS[::2], values[::2], strict=True))
    absent = [key for key in KEYS if key not in stored][:20]  # what comes first says nothing about the others
    asked = absent + [KEYS[place] for place in rng.permutation(COUNT)]
    expected = [stored.get(key) for key in asked]
    whole = sum(map(RowCost(3, 2).stored, expected))
    for max_bytes in (
        0,
        1_000,
        whole // 4,
        whole // 2,
        3 * whole // 4,
        whole - 1,
        whole,
        2 * whole,
        50 * whole,
    ):
        alone, room = (Room(max_bytes, RowCost(3, 2)) for _ in range(2))
        store._longest = 0  # no earlier row says that two threads might not have room
        assert store.get_while(asked, room) == alone.those_that_fit(expected)
        assert (room.used, room.is_full) == (alone.used, alone.is_full)


def test_two_threads_read_at_the_same_time_and_each_key_once(store: WatchedStore) -> None:
    store.write([(KEYS, [b"v"] * COUNT)], COUNT, COUNT)
    store.meeting = Barrier(2)
    assert store.get_while(KEYS, wide()) == [b"v"] * COUNT
    assert (len(store.readers), store.read) == (2, COUNT - 16), "the first are read one by one"


def test_a_read_does_not_wait_for_a_busy_helper_thread(store: WatchedStore, memory: SharedMemory) -> None:
    store.write([(KEYS, [b"v"] * COUNT)], COUNT, COUNT)
    done = Event()
    memory.helper.submit(done.wait)
    try:
        assert store.get_while(KEYS, wide()) == [b"v"] * COUNT
        assert store.readers == {get_ident()}
    finally:
        done.set()


@pytest.mark.parametrize("bad", [KEYS[100], KEYS[-100]])
def test_a_read_error_in_either_half_is_raised(store: WatchedStore, bad: bytes) -> None:
    store.write([(KEYS, [b"v"] * COUNT)], COUNT, COUNT)
    store.bad = bad
    with pytest.raises(OSError, match="does not answer"):
        store.get_while(KEYS, wide())
