"""The limit of staged rows: uncommitted rows may not fill the disk.

Together they may take half of what the disk would have free without them, those of one client's host half of that, and
never the space that the log needs (`Limits.disk_kept_free`). Beyond the limit, idle batches are removed, the longest
idle one first; the commit of a removed batch tells its writer to run the batch again. If that does not free enough, the
chunk is refused, and may be sent again later. Decided batches are never removed.

The sizes come from the disk. Between two scans of the disk only new chunks are counted, and the disk is scanned again
before a chunk is refused. Admitted chunks count before they are written. Blocking; thread-safe.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from headrace.broker.runtime.ports import Clock, Disk
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.server.limits import Limits
from headrace.tablelayer.server.staged.staging import batch_folders

_LOOK_AGAIN_SECONDS = 2.0
_FILE_BYTES = 64 << 10
"""Minimum size that a file counts as, in bytes: it takes an inode, and time to scan."""


class _Batch(msgspec.Struct):
    """A folder of the staging area."""

    size: int = 0
    used_ms: float = 0.0


class _Admitted(msgspec.Struct, eq=False):
    """A chunk that is being written, with the size of its file afterwards."""

    path: Path
    size: int
    used_ms: float


def _counted(size: int | None) -> int:
    """Return the size in bytes that a file of `size` counts as."""
    return 0 if size is None else max(size, _FILE_BYTES)


class StagedSpace:
    def __init__(
        self, root: Path, limits: Limits, remove: Callable[[Path], None], disk: Disk, clock: Clock
    ) -> None:
        """Create it; `remove` removes the folder of a batch."""
        self._root = root
        self._disk = disk
        self._clock = clock
        self._limits = limits
        self._remove = remove
        self._lock = threading.Lock()
        self._batches: dict[Path, _Batch] = {}
        self._clients: dict[Path, str] = {}
        self._sizes: Counter[str] = Counter()
        """Bytes by client; batches from before a restart have an empty name."""
        self._admitted: list[_Admitted] = []
        self._looked_at: float | None = None

    @contextmanager
    def admitted(
        self, path: Path, client: str, size: int, decided: Callable[[], set[Path]]
    ) -> Iterator[None]:
        """Count a chunk that the host `client` writes to `path` inside the block. Raises TableError(BUFFER_EXHAUSTED).

        `decided` returns the folders of batches that must stay.
        """
        with self._lock:
            admitted = self._admit(path, client, size, decided)
        try:
            yield
        finally:
            with self._lock:
                self._admitted.remove(admitted)

    def _admit(self, path: Path, client: str, size: int, decided: Callable[[], set[Path]]) -> _Admitted:
        folder = path.parent
        if self._looked_at is None:
            self._look()
        complaint = self._complaint(client, size)
        looked_at = self._looked_at or 0.0
        if complaint is not None and self._clock.monotonic() - looked_at > _LOOK_AGAIN_SECONDS:
            self._look()
            complaint = self._complaint(client, size)
        if complaint is not None:
            complaint = self._make_room(client, size, {*decided(), folder})
        if complaint is not None:
            raise TableError(
                TableErrorCode.BUFFER_EXHAUSTED,
                f"{complaint}; commit or abort other batches, or try again later",
            )
        there = self._disk.size(path)
        admitted = _Admitted(path, (there or 0) + size, self._clock.time_ms())
        self._clients.setdefault(folder, client)
        self._count(folder, self._batches, _counted(admitted.size) - _counted(there), admitted.used_ms)
        self._admitted.append(admitted)
        return admitted

    def _count(self, folder: Path, batches: dict[Path, _Batch], size: int, used_ms: float) -> None:
        batch = batches.setdefault(folder, _Batch())
        batch.size += size
        batch.used_ms = max(batch.used_ms, used_ms)
        self._sizes[self._clients.get(folder, "")] += size

    def _complaint(self, client: str, size: int) -> str | None:
        disk = self._disk.usage(self._root if self._disk.is_directory(self._root) else self._root.parent)
        sizes = self._sizes
        total = sizes.total()
        most = (disk.free_bytes + total) // 2
        if disk.free_bytes - size < self._limits.disk_kept_free(disk.total_bytes):
            return f"the disk has {disk.free_bytes} bytes left, which the log needs"
        if total + size > most:
            return f"{total} bytes of rows are staged but not committed; the maximum for this disk is {most}"
        if sizes[client] + size > most // 2:
            return (
                f"{sizes[client]} bytes of rows of this client are staged but not committed; the maximum "
                f"for one client is {most // 2}"
            )
        return None

    def _make_room(self, client: str, size: int, kept: Collection[Path]) -> str | None:
        """Remove idle batches, those of the same client first; return the remaining complaint."""
        oldest = self._clock.time_ms() - 1000 * self._limits.staged_idle_seconds
        idle = [
            (self._clients.get(folder, "") != client, batch.used_ms, folder)
            for folder, batch in self._batches.items()
            if batch.used_ms < oldest and folder not in kept
        ]
        complaint = self._complaint(client, size)
        for _, _, folder in sorted(idle):
            if complaint is None:
                break
            self._remove(folder)
            self._sizes[self._clients.pop(folder, "")] -= self._batches.pop(folder).size
            complaint = self._complaint(client, size)
        return complaint

    def _look(self) -> None:
        found: dict[Path, _Batch] = {}
        self._sizes = Counter()
        for folder in batch_folders(self._disk, self._root):
            for name in self._disk.names(folder):
                size = self._disk.size(folder / name)
                if size is not None:  # otherwise it was committed in the meantime
                    self._count(folder, found, _counted(size), self._disk.written_ms(folder / name) or 0.0)
        for each in self._admitted:
            coming = max(0, _counted(each.size) - _counted(self._disk.size(each.path)))
            self._count(each.path.parent, found, coming, each.used_ms)
        self._batches = found
        self._clients = {folder: self._clients[folder] for folder in found if folder in self._clients}
        self._looked_at = self._clock.monotonic()

    def mark_used(self, folder: Path) -> None:
        """Mark a batch that is about to be committed as used."""
        with self._lock:
            batch = self._batches.get(folder)
            if batch is not None:
                batch.used_ms = self._clock.time_ms()
