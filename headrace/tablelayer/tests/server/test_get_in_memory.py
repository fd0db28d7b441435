"""Reads of a store on the event loop: only those that need no disk, always right, also at the end of its rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.tablelayer.model.types.sizes import RowCost
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.room import Room
from headrace.tablelayer.server.store.errors import is_damage
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.server.store.layout import ROW_PREFIX, KeyRange
from headrace.tablelayer.server.store.shared_memory import SharedMemory

KEPT, GONE, NEVER = b"\x01kept", b"\x01gone", b"\x01never"


def test_rows_on_disk_alone_are_left_to_a_thread(tmp_path: Path) -> None:
    store = KeyValueStore.open(tmp_path / "s", SharedMemory(Limits()))
    before = [b"\x01%06d" % number for number in range(2_000)]  # opening reads the first block
    store.write([(before, [bytes(100)] * len(before)), ([KEPT, GONE], [b"one", b"two"])], 2, 2)
    assert store.get_in_memory([KEPT, NEVER, GONE]) == [b"one", None, b"two"]
    store.write([([KEPT, GONE], [b"new", None])], 4, 1)
    assert store.get_in_memory([GONE, KEPT]) == [None, b"new"]
    store.close()

    store = KeyValueStore.open(tmp_path / "s", SharedMemory(Limits()))
    try:
        assert store.get_in_memory([NEVER, KEPT]) is None
        assert store.get([KEPT]) == [b"new"]
        assert store.get_in_memory([KEPT]) == [b"new"]
    finally:
        store.close()


@pytest.mark.parametrize("way", ["prefix", "limit", "snapshot"])
def test_rows_that_cannot_be_read_are_not_taken_for_the_end_of_all(tmp_path: Path, way: str) -> None:
    keys = [b"\x01a%05d" % number for number in range(5_000)]
    store = KeyValueStore.open(tmp_path / "kv", SharedMemory(Limits()))
    store.write([(keys, [b"v" * 100] * len(keys))], 1, len(keys))
    room = Room(1 << 30, RowCost(1, 1))
    assert len(store.values_while(ROW_PREFIX, 9_000, room)) == len(keys)
    store.close()
    (path,) = (tmp_path / "kv").glob("*.sst")
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(64)
    path.write_bytes(data)
    store = KeyValueStore.open(tmp_path / "kv", SharedMemory(Limits()))
    with pytest.raises(Exception, match="Corruption") as caught:
        if way == "prefix":
            store.values_by_prefix([b"\x01a"], room)
        elif way == "limit":
            store.values_while(ROW_PREFIX, 9_000, room)
        else:
            snapshot = store.snapshot()
            snapshot.seek(KeyRange())
            has_more = True
            while has_more:
                _, _, has_more = snapshot.next_rows(10_000, 1_000, room.cost)
    assert is_damage(caught.value)
    store.abandon()
