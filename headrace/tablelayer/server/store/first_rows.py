"""The first rows of a store, kept from one limit scan to the next until a write changes them.

RocksDB's iterators may wait for a disk, and this cannot be known beforehand, so the event loop must not use them. The
kept rows are always those that the store has now, and so is the last answer that was made of them. A reader keeps only
rows that it read while no write was running and none has begun since (`begin`, `remember`). A write removes kept rows
in its key range before it changes anything (`writing`). The number of stores with kept rows, and their bytes, are
limited per process; the oldest are removed first. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar, cast

import msgspec

Answer = TypeVar("Answer")

FIRST_ROWS_BYTES_MAX: Final = 64 << 10
"""Maximum size per store. More rows are read, and encoded, in a thread."""
_STORES_MAX: Final = 256


class _Found(msgspec.Struct):
    values: list[bytes]
    last: bytes | None
    answer: tuple[object, object] | None = None
    """The last answer that was made of the rows, behind what was asked for."""


class Remembered:
    """The stores of a process that have kept rows."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.of: dict[FirstRows, None] = {}


class FirstRows:
    """The kept rows of one store, in which one thread at a time writes."""

    def __init__(self, remembered: Remembered, prefix: bytes) -> None:
        """Create it. Keys of rows begin with `prefix`; other keys are lower."""
        self._remembered = remembered
        self._prefix = prefix
        self._found: _Found | None = None
        self._writes = 0
        self._is_writing = False

    def values(self, count: int) -> list[bytes] | None:
        """Return the values of at most `count` first rows in key order; None if the store must be read."""
        found = self._found
        if found is None or (len(found.values) < count and found.last is not None):
            return None
        return found.values[:count]

    def answer(
        self, count: int, form: tuple[object, ...], encode: Callable[[list[bytes]], Answer | None]
    ) -> Answer | None:
        """Return the result of `encode` for at most `count` first rows in this form; None if the store must be read.

        `encode` is not called for the same form again, unless it returned None or a write has reached the rows.
        """
        found, asked = self._found, (count, form)
        if found is not None and found.answer is not None and found.answer[0] == asked:
            return cast(Answer, found.answer[1])
        values = self.values(count)
        made = None if values is None else encode(values)
        if found is not None and found is self._found and made is not None:
            found.answer = asked, made
        return made

    def begin(self) -> int | None:
        """Return the argument for `remember`, before rows are read; None if they must not be kept."""
        with self._remembered.lock:
            return None if self._is_writing else self._writes

    def remember(self, begun: int, values: list[bytes], last: bytes | None) -> None:
        """Keep the rows that were read since `begin`. `last` is the last row's key; None: the store has no further
        rows.
        """
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
        """Context of a write or delete of these keys."""
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
