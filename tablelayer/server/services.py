"""What the buckets of a process share: the broker's context, memory, caches and the budget of writes."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.server.auto_increment import AutoIncrement
from tablelayer.server.limits import Limits

if TYPE_CHECKING:
    from broker.extension import BrokerContext
    from tablelayer.server.kv import SharedMemory

Result = TypeVar("Result")


class WriteBudget:
    """Bytes of writes that are queued or not stored yet (R1.6). Used on the event loop only."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.used = 0

    def reserve(self, size: int) -> None:
        """Raises TableError(BUFFER_EXHAUSTED), which may be retried; a single write is always admitted."""
        if self.used and self.used + size > self.max_bytes:
            raise TableError(
                TableErrorCode.BUFFER_EXHAUSTED,
                f"{self.used} bytes of writes wait to be stored; {size} more would exceed {self.max_bytes}; "
                "try again",
            )
        self.used += size

    def release(self, size: int) -> None:
        self.used -= size


class TranscodedCache:
    """Batches in Kafka's form, least recently used first out. May be used from any thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._batches: OrderedDict[Hashable, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> bytes | None:
        with self._lock:
            batch = self._batches.get(key)
            if batch is not None:
                self._batches.move_to_end(key)
            return batch

    def put(self, key: Hashable, batch: bytes) -> None:
        if len(batch) > self._max_bytes // 4:
            return
        with self._lock:
            old = self._batches.pop(key, None)
            self._bytes += len(batch) - (0 if old is None else len(old))
            self._batches[key] = batch
            while self._bytes > self._max_bytes:
                _, dropped = self._batches.popitem(last=False)
                self._bytes -= len(dropped)


class Services:
    """`tiered_offset(table id, bucket)`: how far the lake has a bucket, None if the table is not tiered."""

    def __init__(
        self,
        context: BrokerContext,
        limits: Limits,
        directory: Path,
        tiered_offset: Callable[[UUID, int], int | None],
    ) -> None:
        self.context = context
        self.limits = limits
        self.directory = directory
        self.tiered_offset = tiered_offset
        self.budget = WriteBudget(limits.buffered_bytes_max)
        self.auto_increment = AutoIncrement(context.store)
        self.transcoded = TranscodedCache(limits.transcoded_cache_bytes)
        self._memory: SharedMemory | None = None

    @property
    def memory(self) -> SharedMemory:
        """Made with the first primary-key table: RocksDB is loaded for nobody who has none."""
        if self._memory is None:
            from tablelayer.server.kv import SharedMemory

            self._memory = SharedMemory(self.limits)
        return self._memory

    async def run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        """Call blocking work in the broker's executor."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.context.executor, work, *arguments)
