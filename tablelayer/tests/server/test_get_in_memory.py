"""What the event loop may ask of a store: only what needs no disk, and that is always right."""

from __future__ import annotations

from pathlib import Path

from tablelayer.server.limits import Limits
from tablelayer.server.store.kv import KeyValueStore, SharedMemory

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
