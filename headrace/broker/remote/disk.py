"""A segment in remote storage as a `Disk`: its files are ranges of its object.

Read-only. A path is a file name of the log's (`00000000000000000042.log`, `.index`, `.timeindex`, `.txnindex`); the
segment's description has its position. An invalid index is built again from the batches, in memory. Reading blocks.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.log.segment import INDEX_SUFFIX, LOG_SUFFIX, OFFSET_DIGITS, TIME_INDEX_SUFFIX
from headrace.broker.log.transaction_index import FILE_SUFFIX as TRANSACTION_INDEX_SUFFIX

if TYPE_CHECKING:
    from headrace.broker.remote.chunks import Chunks
    from headrace.broker.remote.manifest import RemoteSegment
    from headrace.broker.runtime.ports import DiskUsage


class RemoteFile:
    """A range of an object, as a `DiskFile`."""

    __slots__ = ("_chunks", "_name", "_object_size", "_position", "_size")

    def __init__(self, chunks: Chunks, name: str, object_size: int, position: int, size: int) -> None:
        self._chunks = chunks
        self._name = name
        self._object_size = object_size
        self._position = position
        self._size = size

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a remote segment has no file descriptor")

    def size(self) -> int:
        return self._size

    def read(self, size: int, position: int) -> bytes:
        size = min(size, self._size - position)
        if size <= 0:
            return b""
        return self._chunks.read(self._name, self._object_size, self._position + position, size)

    def view(self) -> memoryview:
        return memoryview(self.read(self._size, 0))

    def write(self, parts: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        raise OSError(errno.EROFS, "a remote segment cannot be changed")

    def truncate(self, size: int) -> None:
        raise OSError(errno.EROFS, "a remote segment cannot be changed")

    def sync(self) -> None:
        """Do nothing: the object is durable."""

    def settle(self) -> None:
        """Do nothing: the object has its final content."""

    def close(self) -> None:
        """Do nothing: no file is open."""


class RemoteDisk:
    """A `Disk` of one segment, without the methods that only writers need. Another segment may have the same name."""

    __slots__ = ("_chunks", "_folder", "_segment")

    def __init__(self, chunks: Chunks, folder: str, segment: RemoteSegment) -> None:
        self._chunks = chunks
        self._folder = folder
        self._segment = segment

    def open_read_only(self, path: Path) -> RemoteFile:
        name, segment, position = path.name, self._segment, 0
        for suffix, size in (
            (LOG_SUFFIX, segment.size),
            (INDEX_SUFFIX, segment.index_size),
            (TIME_INDEX_SUFFIX, segment.time_index_size),
            (TRANSACTION_INDEX_SUFFIX, segment.aborted_size),
        ):
            if name[OFFSET_DIGITS:] == suffix:
                return RemoteFile(
                    self._chunks, f"{self._folder}/{segment.name}", segment.stored_size, position, size
                )
            position += size
        raise FileNotFoundError(errno.ENOENT, "it is not in remote storage", name)

    open = open_read_only

    def read(self, path: Path) -> bytes:
        file = self.open_read_only(path)
        return file.read(file.size(), 0)

    def replace(self, path: Path, data: bytes, *, sync: bool) -> None:
        """Ignore an index that was built again: it stays in memory."""

    def remove(self, path: Path) -> None:
        """Do nothing, as `replace`."""

    def usage(self, path: Path) -> DiskUsage:
        raise OSError(errno.ENOSYS, "the free space of remote storage is unknown")
