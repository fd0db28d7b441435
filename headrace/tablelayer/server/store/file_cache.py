"""A cache of objects read from RocksDB's table files. Files never change: one is right as long as RocksDB lists it."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Generic, Protocol, TypeVar


class HasSize(Protocol):
    @property
    def size(self) -> int:
        """Size in memory, in bytes."""


Read = TypeVar("Read", bound=HasSize)


class FileCache(Generic[Read]):
    """Objects read from files, by store and file name; at most `bytes_max`, except for a single one that is larger.

    The least recently used ones are forgotten first. Any thread may use it.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._known: OrderedDict[tuple[object, str], Read] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, owner: object, name: str, read: Callable[[], Read]) -> Read:
        """Return the content of the file `name` of a store. `owner` is an object of that store alone, opened once."""
        with self._lock:
            found = self._known.get((owner, name))
            if found is not None:
                self._known.move_to_end((owner, name))
                return found
        found = read()
        with self._lock:
            if (owner, name) not in self._known:
                self._known[owner, name] = found
                self._size += found.size
            while self._size > self.bytes_max and len(self._known) > 1:
                self._size -= self._known.popitem(last=False)[1].size
        return found

    def forget(self, owner: object, but: Collection[str] = ()) -> None:
        """Forget the files of a store, except those named in `but`."""
        with self._lock:
            for key in [key for key in self._known if key[0] is owner and key[1] not in but]:
                self._size -= self._known.pop(key).size
