"""The real `Disk`: positioned reads and writes on descriptors, nothing buffered in this process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Sequence
from pathlib import Path

_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)
_TEMPORARY_SUFFIX = ".tmp"
_MAPPED_FROM_BYTES = 16 * 1024
"""Mapping a file, touching it and letting go of it takes longer than reading so little."""


def _sync(fd: int) -> None:
    if _FULL_SYNC is not None:  # macOS: fsync alone leaves the data in the drive's cache
        fcntl.fcntl(fd, _FULL_SYNC)
    else:
        os.fsync(fd)


class SystemFile:
    """Closes its descriptor when the last reference goes, so that a reply in flight keeps its file open."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __del__(self) -> None:
        self.close()

    def fileno(self) -> int:
        return self._fd

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def read(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        missing = size - len(data)
        position += len(data)
        while missing and (data := os.pread(self._fd, missing, position)):
            parts.append(data)
            missing -= len(data)
            position += len(data)
        return b"".join(parts)

    def view(self) -> memoryview:
        size = self.size()
        if size <= _MAPPED_FROM_BYTES:
            return memoryview(self.read(size, 0))
        return memoryview(mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ))

    def write(self, parts: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        missing = sum(map(len, parts))
        written = os.pwritev(self._fd, parts, position)
        if written == missing:
            return
        data = memoryview(b"".join(parts))
        while written < missing:
            count = os.pwrite(self._fd, data[written:], position + written)
            if count == 0:
                raise OSError(errno.EIO, "the file system wrote nothing and gave no reason")
            written += count

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        _sync(self._fd)

    def settle(self) -> None:
        _sync(self._fd)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class SystemDisk:
    def open(self, path: Path, *, create: bool = False) -> SystemFile:
        return SystemFile(os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644))

    def open_read_only(self, path: Path) -> SystemFile:
        return SystemFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def names(self, directory: Path) -> list[str]:
        try:
            with os.scandir(directory) as entries:
                return [entry.name for entry in entries if entry.is_file()]
        except FileNotFoundError:
            return []

    def size(self, path: Path) -> int | None:
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def read(self, path: Path) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def replace(self, path: Path, data: bytes, *, sync: bool) -> None:
        # Two threads may replace one file at a time; each needs a file of its own to do it.
        temporary = path.with_name(f"{path.name}.{threading.get_ident()}{_TEMPORARY_SUFFIX}")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                if sync:
                    _sync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)  # on a full disk it would keep the little room that there is
            raise
        if sync:
            self.sync_directory(path.parent)

    def make_directory(self, path: Path) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_directory(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(path)

    def sync_directory(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
