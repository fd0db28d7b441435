"""What is remembered of batches that consumers read in Kafka's form, and how much memory that may take."""

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
    """Values of so many bytes together, least recently used first out. May be used from any thread."""

    def __init__(self, max_bytes: int, share: int = 4) -> None:
        """A value that takes more than one `share`-th of it is not kept."""
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
        dropped = []  # freed without the lock: what is told of that may ask for it
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
    """Bytes of batches in Kafka's form, for as long as somebody holds them: consumers that they are sent to, the cache.
    May be used from any thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.used = 0
        self._lock = threading.RLock()  # memory is freed at any place

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
    """A stored batch and its rows, of the schema that they were written under."""

    batch: ArrowBatch
    rows: pa.RecordBatch

    @property
    def size(self) -> int:
        return int(self.rows.nbytes) + len(self.batch.message)


class PieceCaches:
    """Of all buckets together."""

    def __init__(self, limits: Limits) -> None:
        self.transcoded = SizedCache[tuple[int, int, memoryview]](limits.transcoded_cache_bytes)
        """First row, last row and bytes of pieces of batches."""
        self.opened: SizedCache[Opened] = SizedCache(limits.opened_cache_bytes, 1)
        """Batches that are more than a piece, with their rows."""
        self.consumed = ConsumedBytes(limits.consumed_bytes_max)
