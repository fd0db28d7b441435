"""The real `Disk`: positioned reads and writes on descriptors, without buffers in this process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from struct import Struct, calcsize

from headrace.broker.runtime.open_files import SEGMENT_FILES
from headrace.broker.runtime.ports import DiskUsage, LockedError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)
_TEMPORARY_SUFFIX = ".tmp"
_NO_HARD_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)
_MAPPED_FROM_BYTES = 16 * 1024
"""Smaller files are read: mapping, touching and unmapping them takes longer."""
_INODE_FLAGS = Struct("@I4x")  # the calls are declared with `long`; the kernel takes an int
_GET_INODE_FLAGS = 2 << 30 | calcsize("@l") << 16 | 0x6601  # FS_IOC_GETFLAGS
_SET_INODE_FLAGS = 1 << 30 | calcsize("@l") << 16 | 0x6602  # FS_IOC_SETFLAGS
_TOP_DIRECTORY = 0x00020000
"""FS_TOPDIR_FL, chattr +T: ext4 puts the directories in it (those of /home, for example) into separate block groups."""


def _sync(fd: int) -> None:
    if _FULL_SYNC is not None:  # macOS: fsync alone leaves the data in the drive's cache
        fcntl.fcntl(fd, _FULL_SYNC)
    else:
        os.fsync(fd)


class SystemFile:
    """An open file. It closes its descriptor when the last reference goes, so an answer in flight keeps its file
    open.
    """

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


def _open(path: Path, flags: int) -> int:
    """Return a descriptor. If the process has too many, close files that are not in use and try once more."""
    try:
        return os.open(path, flags | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if not SEGMENT_FILES.make_room(error):
            raise
    return os.open(path, flags | os.O_CLOEXEC, 0o644)


class SystemDisk:
    def open(self, path: Path, *, create: bool = False) -> SystemFile:
        return SystemFile(_open(path, os.O_RDWR | (os.O_CREAT if create else 0)))

    def open_read_only(self, path: Path) -> SystemFile:
        return SystemFile(_open(path, os.O_RDONLY))

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
        with open(_open(path, os.O_RDONLY), "rb") as file:
            return file.read()

    def replace(self, path: Path, data: bytes, *, sync: bool) -> None:
        # Two threads may replace one file at the same time; each needs its own temporary file.
        temporary = path.with_name(f"{path.name}.{threading.get_ident()}{_TEMPORARY_SUFFIX}")
        fd = _open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
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
                os.unlink(temporary)  # it would take the last space of a full disk
            raise
        if sync:
            self.sync_directory(path.parent)

    def directories(self, directory: Path) -> list[str]:
        try:
            with os.scandir(directory) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []

    def is_directory(self, path: Path) -> bool:
        return os.path.isdir(path)

    def written_ms(self, path: Path) -> float | None:
        try:
            return os.stat(path).st_mtime_ns / 1e6
        except FileNotFoundError:
            return None

    def changed_ms(self, path: Path) -> float | None:
        try:
            return os.stat(path).st_ctime_ns / 1e6
        except FileNotFoundError:
            return None

    def touch(self, path: Path) -> None:
        os.utime(path)

    def make_directory(self, path: Path) -> bool:
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
            return False
        except FileNotFoundError:
            os.makedirs(path, exist_ok=True)
        return True

    def spread(self, path: Path) -> None:
        if sys.platform != "linux":
            return
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                (flags,) = _INODE_FLAGS.unpack(fcntl.ioctl(fd, _GET_INODE_FLAGS, bytes(_INODE_FLAGS.size)))
                if not flags & _TOP_DIRECTORY:
                    fcntl.ioctl(fd, _SET_INODE_FLAGS, _INODE_FLAGS.pack(flags | _TOP_DIRECTORY))
            finally:
                os.close(fd)

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def rename_new(self, old: Path, new: Path) -> None:
        try:
            os.link(old, new)
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            if new.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new)) from None
            os.replace(old, new)
        else:
            os.unlink(old)

    def remove(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_directory(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            os.rmdir(path)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)

    def sync_directory(self, path: Path) -> None:
        fd = _open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def sync_above(self, path: Path) -> None:
        path = path.resolve()
        device = path.stat().st_dev
        for above in path.parents:
            if above.stat().st_dev != device:
                return
            try:
                self.sync_directory(above)
            except PermissionError:
                return

    def boot_id(self) -> str:
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:
            return ""

    def usage(self, path: Path) -> DiskUsage:
        volume, system = shutil.disk_usage(path), os.statvfs(path)
        return DiskUsage(volume.total, volume.free, system.f_favail if system.f_files else -1)

    def lock(self, path: Path, holder: str) -> SystemLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise LockedError(_holder(fd)) from None
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{holder}\n".encode(), 0)
        except BaseException:
            os.close(fd)
            raise
        return SystemLock(fd)

    def lock_holder(self, path: Path) -> str | None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return _holder(fd)
        finally:
            os.close(fd)
        return None


class SystemLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        os.close(self._fd)


def _holder(fd: int) -> str:
    return os.pread(fd, 64, 0).decode(errors="replace").strip() or "unknown"
