"""Caches of batches that consumers read in Kafka's form, and the limits of their memory."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from headrace.tablelayer.server.limits import Limits

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.tablelayer.model.batches.batch import ArrowBatch

Value = TypeVar("Value")


class SizedCache(Generic[Value]):
    """A least-recently-used cache with a maximum size in bytes. Thread-safe."""

    def __init__(self, max_bytes: int, share: int = 4) -> None:
        """Create a cache of `max_bytes`; a value larger than `max_bytes` / `share` is not kept."""
        self._max_bytes = max_bytes
        self._share = share
        self._bytes = 0
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Value | None:
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: Value, size: int) -> None:
        if size > self._max_bytes // self._share:
            return
        dropped = []  # freed outside of the lock: a finalizer may take it
        with self._lock:
            old = self._values.pop(key, None)
            if old is not None:
                dropped.append(old)
            self._bytes += size - (0 if old is None else old[1])
            self._values[key] = value, size
            while self._bytes > self._max_bytes:
                _, last = self._values.popitem(last=False)
                self._bytes -= last[1]
                dropped.append(last)


class ConsumedBytes:
    """The number of bytes of batches in Kafka's form that responses to consumers or the cache hold. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.used = 0
        self._lock = threading.RLock()  # re-entrant: memory can be freed at any point

    @property
    def left(self) -> int:
        return max(0, self._max_bytes - self.used)

    def add(self, batch: memoryview) -> None:
        weakref.finalize(batch.obj, self._freed, len(batch)).atexit = False
        with self._lock:
            self.used += len(batch)

    def _freed(self, size: int) -> None:
        with self._lock:
            self.used -= size


class Opened(msgspec.Struct, frozen=True):
    """A stored batch and its rows, in the schema with which they were written."""

    batch: ArrowBatch
    rows: pa.RecordBatch

    @property
    def size(self) -> int:
        return int(self.rows.nbytes) + len(self.batch.message)


class PieceCaches:
    """The caches that all buckets share."""

    def __init__(self, limits: Limits) -> None:
        self.transcoded = SizedCache[tuple[int, int, memoryview]](limits.transcoded_cache_bytes)
        """First row, end row and bytes of pieces of batches."""
        self.opened: SizedCache[Opened] = SizedCache(limits.opened_cache_bytes, 1)
        """Batches larger than a piece, with their rows."""
        self.consumed = ConsumedBytes(limits.consumed_bytes_max)
