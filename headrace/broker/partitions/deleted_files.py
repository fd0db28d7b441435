"""Deleted segments that wait for their `file.delete.delay.ms`: files named `….log.deleted`.

A log renames the file and hands it over (`remove_later`); a thread removes it when the delay is over. There is no list
on disk. After a start a thread looks once at the folders of the partitions. The files there are removed when their
delay is over, counted from the renaming (the file's ctime), or one delay after the start at the latest. On a full disk
nothing waits (`hurry`). Files of a deleted topic are removed with their folder, without a delay.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import re
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from pathlib import Path
from typing import Final

from headrace.broker.log.segment import DELETED_SUFFIX
from headrace.broker.runtime.ports import Clock, Disk

logger = logging.getLogger("headrace.log")

_NAME: Final = re.compile(r".+-\d+")  # topic and partition


class DeletedFiles:
    """The deleted files of a broker. Runs on the event loop, except `remove_later`, which any thread may call.

    `directory` is the data directory. `delay_ms` returns the delay of a topic's partition, None if the partition does
    not exist. A caller that holds `removals` keeps all files where they are.
    """

    def __init__(
        self,
        executor: Executor,
        clock: Clock,
        disk: Disk,
        directory: Path,
        delay_ms: Callable[[str, int], int | None],
        removals: asyncio.Lock | None = None,
    ) -> None:
        self._removals = removals or asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._executor = executor
        self._clock = clock
        self._disk = disk
        self._directory = directory
        self._delay_ms = delay_ms
        self._due: dict[Path, float] = {}
        self._queue: list[tuple[float, Path]] = []
        self._changed = asyncio.Event()

    def remove_later(self, path: Path, delay_ms: int) -> None:
        """Remove a file when its delay is over. A file that gets this name again before then waits for the later
        time.
        """
        self._loop.call_soon_threadsafe(self._add, path, self._loop.time() + delay_ms / 1000)

    def hurry(self) -> None:
        """Remove all waiting files now, because the disk is full."""
        for path in list(self._due):
            self._add(path, self._loop.time())

    async def run(self) -> None:
        """Remove files whose delay is over, as long as the broker runs."""
        for path, waited_ms in await self._loop.run_in_executor(self._executor, self._find):
            topic, _, index = path.parent.name.rpartition("-")
            delay_ms = self._delay_ms(topic, int(index))
            if delay_ms is not None and path not in self._due:
                left_ms = min(max(delay_ms - waited_ms, 0), delay_ms)
                self._add(path, self._loop.time() + left_ms / 1000)
        while True:
            self._changed.clear()
            if due := self._take_due():
                async with self._removals:
                    await self._loop.run_in_executor(self._executor, self._remove, due)
            else:
                wait = self._queue[0][0] - self._loop.time() if self._queue else None
                try:
                    async with asyncio.timeout(wait):
                        await self._changed.wait()
                except TimeoutError:
                    pass

    def _add(self, path: Path, at: float) -> None:
        self._due[path] = at
        heapq.heappush(self._queue, (at, path))
        self._changed.set()

    def _take_due(self) -> list[Path]:
        due = []
        while self._queue and self._queue[0][0] <= self._loop.time():
            at, path = heapq.heappop(self._queue)
            if self._due.get(path) == at:
                del self._due[path]
                due.append(path)
        return due

    def _find(self) -> list[tuple[Path, float]]:
        """Return the waiting files in the folders of partitions, and for how many milliseconds they have waited."""
        disk, found = self._disk, []
        for folder in disk.directories(self._directory):
            if not _NAME.fullmatch(folder):
                continue
            for name in disk.names(self._directory / folder):
                if name.endswith(DELETED_SUFFIX):
                    path = self._directory / folder / name
                    since_ms = disk.changed_ms(path)
                    if since_ms is not None:  # removed meanwhile
                        found.append((path, self._clock.time_ms() - since_ms))
        return found

    def _remove(self, paths: Iterable[Path]) -> None:
        for path in paths:
            try:
                self._disk.remove(path)
            except OSError as error:
                logger.error("%s cannot be removed; the next start tries again: %s", path, error)
