"""The first rows of a store, remembered from one limit scan to the next until a write touches them: RocksDB's iterators
may wait for a disk, so that the event loop may not ask them, and nobody can tell beforehand.

What is remembered is what the store holds now, whatever is written meanwhile. A reader remembers only what it read
while no write was under way, nor has begun since (`begin`, `remember`); a write forgets what lies in its reach before
it changes anything (`writing`). Of a process so many stores have one, of so many bytes each; the oldest goes first.
May be used from any thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import msgspec

FIRST_ROWS_BYTES_MAX: Final = 64 << 10
"""Of a store. What is larger is read, and made an answer of, in a thread."""
_STORES_MAX: Final = 256


class _Found(msgspec.Struct, frozen=True):
    values: list[bytes]
    last: bytes | None


class Remembered:
    """Which stores of a process have something remembered."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.of: dict[FirstRows, None] = {}


class FirstRows:
    """Of one store, in which one thread at a time writes."""

    def __init__(self, remembered: Remembered, prefix: bytes) -> None:
        """Keys of rows begin with `prefix`; others are below."""
        self._remembered = remembered
        self._prefix = prefix
        self._found: _Found | None = None
        self._writes = 0
        self._is_writing = False

    def values(self, count: int) -> list[bytes] | None:
        """The values of at most `count` rows, the first in key order; None: the store has to be asked."""
        found = self._found
        if found is None or (len(found.values) < count and found.last is not None):
            return None
        return found.values[:count]

    def begin(self) -> int | None:
        """Before the first rows are read: what `remember` needs. None: they need not be remembered."""
        with self._remembered.lock:
            return None if self._is_writing else self._writes

    def remember(self, begun: int, values: list[bytes], last: bytes | None) -> None:
        """The rows that were read since `begin`, and the key of the last; None: there are no others in the store."""
        if sum(map(len, values)) > FIRST_ROWS_BYTES_MAX:
            return
        with self._remembered.lock:
            if self._writes != begun:
                return
            self._found = _Found(values, last)
            stores = self._remembered.of
            stores.pop(self, None)
            stores[self] = None
            if len(stores) > _STORES_MAX:
                oldest = next(iter(stores))
                del stores[oldest]
                oldest._found = None

    def forget(self) -> None:
        with self._remembered.lock:
            self._remembered.of.pop(self, None)
            self._found = None

    @contextmanager
    def writing(self, groups: Sequence[tuple[Sequence[bytes], Sequence[bytes | None]]]) -> Iterator[None]:
        """While these keys are written, or deleted."""
        with self._remembered.lock:
            self._is_writing = True
            self._writes += 1
            found = self._found
        try:
            if found is not None and any(self._reaches(keys, found.last) for keys, _ in groups):
                self.forget()
            yield
        finally:
            self._is_writing = False

    def _reaches(self, keys: Sequence[bytes], last: bytes | None) -> bool:
        lowest = min(keys, default=None)
        if lowest is not None and lowest < self._prefix:
            lowest = min((key for key in keys if key >= self._prefix), default=None)
        return lowest is not None and (last is None or lowest <= last)
