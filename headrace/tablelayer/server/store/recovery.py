"""From the files on the disk to a store that the bucket's log continues.

The bucket's own store is kept if it is intact and its offset is within the log. Otherwise the newest snapshot that the
log continues is downloaded, or, if the log begins at offset 0, a new store is created. A damaged store is set aside
(`<bucket>.damaged`, only the latest), once its successor is ready.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from headrace.broker.runtime.ports import Disk
from headrace.tablelayer.server.store.errors import DamagedStoreError, StoreInUseError
from headrace.tablelayer.server.store.kv import KeyValueStore, read_note
from headrace.tablelayer.server.store.shared_memory import SharedMemory
from headrace.tablelayer.server.store.snapshots import BucketSnapshots, DamagedSnapshotError, Snapshot

Result = TypeVar("Result")

logger = logging.getLogger("headrace.tables")

_CLOSING_ATTEMPTS = 100
_CLOSING_SECONDS = 0.05


class UnrecoverableBucketError(Exception):
    """The state is lost: no snapshot is usable, and the log does not reach back far enough to rebuild it."""


class Workers(Protocol):
    """The threads for a recovery: `run` for short work, `open_store` for opening stores, `background` for minutes of
    work.
    """

    @property
    def memory(self) -> SharedMemory: ...

    def run(self, work: Callable[..., Result], *arguments: Any) -> Awaitable[Result]: ...

    async def open_store(self, work: Callable[..., Result], *arguments: Any) -> Result: ...

    async def background(self, work: Callable[..., Result], *arguments: Any) -> Result: ...


class StoreRecovery(msgspec.Struct):
    """The recovery of one bucket; `name` is for messages."""

    workers: Workers
    name: str
    directory: Path
    snapshots: BucketSnapshots | None
    stores: int = 1
    """Number of the table's stores, all of which may be written to."""
    restored: Snapshot | None = None
    """The snapshot that the present store was restored from, in this process."""
    distrusted: frozenset[int] = frozenset()
    """Ids of snapshots that were damaged when they were restored or read."""

    async def open(self, log_start: int, log_end: int) -> KeyValueStore:
        """Return the store to use. Raises UnrecoverableBucketError."""
        store = await self.workers.run(
            _closed, self.workers.memory, self.directory, self.stores, log_start, log_end
        )
        if store is not None:
            return store
        try:
            store = await self._open()
        except DamagedStoreError as error:
            return await self._replace(None, f"its key-value store is damaged ({error})", log_start, log_end)
        offset = store.applied_offset
        if offset > log_end:
            problem = f"its key-value store has offset {offset}, but the log ends at {log_end}"
        elif offset < log_start:
            problem = f"its key-value store has offset {offset}, but the log begins at {log_start}"
        elif offset == 0 and log_end > 0 and await self._usable(log_start, log_end):
            problem = "its key-value store is empty, but there is a snapshot"
        else:
            return store
        return await self._replace(store, problem, log_start, log_end)

    async def _open(self) -> KeyValueStore:
        for _ in range(_CLOSING_ATTEMPTS):
            try:
                return await self.workers.open_store(
                    KeyValueStore.open, self.directory, self.workers.memory, self.stores
                )
            except StoreInUseError:  # another reader still uses the closed store
                await asyncio.sleep(_CLOSING_SECONDS)
        return await self.workers.open_store(
            KeyValueStore.open, self.directory, self.workers.memory, self.stores
        )

    async def _replace(
        self, store: KeyValueStore | None, problem: str, log_start: int, log_end: int
    ) -> KeyValueStore:
        disk, fetched = self.workers.memory.disk, self.directory.with_name(f"{self.directory.name}.restored")
        self.restored = None
        for snapshot in await self._usable(log_start, log_end):
            assert self.snapshots is not None
            try:
                await self.workers.background(self.snapshots.download, snapshot, fetched)
            except (DamagedSnapshotError, OSError) as error:
                logger.error("%s: snapshot %d cannot be restored: %s", self.name, snapshot.id, error)
                if isinstance(error, DamagedSnapshotError):
                    self.distrusted |= {snapshot.id}
                continue
            self.restored = snapshot
            break
        if self.restored is None and log_start > 0:
            if store is not None:
                await self.workers.run(store.close)
            raise UnrecoverableBucketError(
                f"{problem}, there is no snapshot that the log continues, and the log begins at offset {log_start}: "
                "the rows before it are gone. Restore the data directory from a copy, or drop the table"
            )
        if store is not None:
            await self.workers.run(store.destroy)
            kept = ""
        else:
            kept = f"; set aside as {await self.workers.run(set_aside, disk, self.directory)}"
        source = "the log"
        if self.restored is not None:
            source = (
                f"snapshot {self.restored.id} ({self.restored.row_count} rows, offset {self.restored.offset})"
            )
            await self.workers.run(disk.rename, fetched, self.directory)
        logger.error("%s: %s%s; rebuilding it from %s", self.name, problem, kept, source)
        if self.snapshots is not None:
            self.snapshots.store_changed()
        return await self._open()

    async def _usable(self, log_start: int, log_end: int) -> list[Snapshot]:
        """Return the snapshots that the log continues, newest first."""
        if self.snapshots is None:
            return []
        try:
            known = await self.workers.background(self.snapshots.load)
        except OSError as error:
            logger.error("%s: its snapshots in %s cannot be read: %s", self.name, self.snapshots, error)
            return []
        return [
            each for each in known if log_start <= each.offset <= log_end and each.id not in self.distrusted
        ]

    def distrust_restored(self) -> None:
        """Distrust the last restored snapshot: its store was damaged soon after."""
        if self.restored is not None:
            self.distrusted |= {self.restored.id}


def _closed(
    memory: SharedMemory, directory: Path, stores: int, log_start: int, log_end: int
) -> KeyValueStore | None:
    """Return the store if it need not be opened: there is none yet, or it was closed at the log's end.

    Remove what a killed process left beside it.
    """
    disk, prefix = memory.disk, f"{directory.name}."
    for name in disk.directories(directory.parent):  # a table may have thousands of buckets
        if name.startswith(prefix) and name != f"{prefix}damaged":
            disk.remove_tree(directory.parent / name)
    if log_end == 0 and not disk.is_directory(directory):
        return KeyValueStore.unmade(directory, memory, stores)
    return KeyValueStore.noted(directory, memory, stores, log_end) if log_end >= log_start else None


def is_closed_at(disk: Disk, directory: Path, log_end: int) -> bool:
    """Return whether a store has the whole log and need not be opened: it was closed at the log's end, or there is
    none yet. Any thread may call it.
    """
    if log_end == 0:
        return not disk.is_directory(directory)
    noted = read_note(disk, directory)
    return noted is not None and noted.applied_offset == log_end


def set_aside(disk: Disk, directory: Path) -> Path:
    """Keep the files of a damaged store for the operator: only the latest."""
    aside = directory.with_name(f"{directory.name}.damaged")
    disk.remove_tree(aside)
    disk.rename(directory, aside)
    return aside
