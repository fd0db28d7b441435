"""Flush logs in the background: after `flush.ms`, and from time to time all of them, which limits the scan after a
crash.

A partition reports that it has something to flush (`PartitionChanges.unflushed`), so idle partitions cost nothing. A
log that cannot be flushed takes only its partition offline (`Partition.flush`); if the disk is full, the flush is tried
again.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from itertools import count
from typing import TYPE_CHECKING

from headrace.broker.runtime.disk_errors import is_passing
from headrace.protocol.errors import KafkaError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.partitions.partition import Partition, PartitionChanges
    from headrace.broker.runtime.background import BackgroundTasks

logger = logging.getLogger("headrace.server")

RETRY_SECONDS = 1.0
"""Pause after a flush that failed and may succeed later."""


class LogFlushing:
    """One object per broker, on the event loop; fsyncs run in the executor, one after the other."""

    def __init__(
        self, config: BrokerConfig, changes: PartitionChanges, executor: Executor, background: BackgroundTasks
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._interval_s = config["log.flush.offset.checkpoint.interval.ms"] / 1000
        self._executor = executor
        self._background = background
        self._since: dict[Partition, float] = {}
        self._failed: set[Partition] = set()
        self._due: list[tuple[float, int, Partition]] = []
        self._numbers = count()  # order of entries that are due at the same time
        self._earlier = asyncio.Event()
        changes.unflushed = self._unflushed

    def _unflushed(self, partition: Partition) -> None:
        """Note a partition that has something to flush. From any thread: some logs are opened in one."""
        self._loop.call_soon_threadsafe(self._note, partition)

    def _note(self, partition: Partition) -> None:
        if not partition.is_open:
            return
        since = self._since.setdefault(partition, self._loop.time())
        wait_s = partition.log.config.flush_ms / 1000
        if partition in self._failed:
            self._failed.discard(partition)
            wait_s = max(wait_s, RETRY_SECONDS)
        if wait_s < self._interval_s:
            due = since + wait_s
            if not self._due or due < self._due[0][0]:
                self._earlier.set()
            heapq.heappush(self._due, (due, next(self._numbers), partition))

    async def run(self) -> None:
        """Flush the logs that are due, until cancelled."""
        loop = self._loop
        all_due = loop.time() + self._interval_s
        while True:
            self._earlier.clear()
            next_due = min(all_due, self._due[0][0]) if self._due else all_due
            try:
                async with asyncio.timeout_at(next_due):
                    await self._earlier.wait()
            except TimeoutError:
                pass
            now = loop.time()
            due = self._take_due(now)
            if now >= all_due:
                all_due = now + self._interval_s
                due = list(self._since)
            for partition in due:
                if self._since.pop(partition, None) is not None:
                    await self._flush(partition)

    def _take_due(self, now: float) -> list[Partition]:
        due = []
        while self._due and self._due[0][0] <= now:
            when, _, partition = heapq.heappop(self._due)
            since = self._since.get(partition)
            # A partition that was flushed meanwhile and written to again has another entry.
            if (
                since is not None
                and partition.is_open
                and since + partition.log.config.flush_ms / 1000 <= when
            ):
                due.append(partition)
        return due

    async def _flush(self, partition: Partition) -> None:
        if not partition.is_open:
            return
        try:
            await partition.flush(self._executor)
        except KafkaError as error:
            if partition.is_open:  # it has reported that it still waits
                self._failed.add(partition)
            if not partition.closed and not is_passing(error):  # a passing error was reported
                logger.error("%r: %s", partition, error)
        except Exception as error:  # noqa: BLE001 - of one partition: told
            self._background.failed(f"flush of {partition!r}", error)
