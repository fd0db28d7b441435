"""A disk in memory that can lose what was not synced, tear what was half written, and fail on demand.

It keeps two worlds: what a running process sees (everything applied so far) and what would be there after a
power cut (only what was synced). Operations that change something are numbered. `crash_at` lets the process
die in the middle of one; `restart` gives the disk that the next process finds:

    KEPT    the process died, the machine did not: everything applied is there, the last write maybe in part; what was
            not synced still is not, and a later power cut may take it
    LOST    power cut: only what was synced
    TORN    power cut: the unsynced operations up to some point, the last of them in part (whole sectors)
    ZEROS   power cut: sizes arrived, unsynced data reads as zeros
    HOLES   power cut: some sectors of the unsynced data arrived, in no order

A file's contents and its name are separate: a new name, a rename or a removal is durable once its directory
was synced. A failed sync drops what it should have made durable while the process goes on seeing it (as Linux
does), until it asks for the medium's own contents (`settle`).
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

SECTOR = 512


class Tear(Enum):
    KEPT = "kept"
    LOST = "lost"
    TORN = "torn"
    ZEROS = "zeros"
    HOLES = "holes"


class SimulatedCrash(BaseException):
    """The process is dead. Not an Exception: nothing may handle it and go on."""


@dataclass(slots=True)
class _Inode:
    """`pending` are the changes since the last sync: (position, data), or (size, None) for a truncation."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)


@dataclass(slots=True)
class Fault:
    """Make the next `times` operations of a kind fail, after `skip` of them, on paths that end in
    `suffix`."""

    operation: str
    error: int
    skip: int = 0
    times: int = 1
    suffix: str = ""
    partial: bool = False


def _apply(target: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        if position < len(target):
            del target[position:]
        else:
            target.extend(bytes(position - len(target)))
        return
    if position > len(target):
        target.extend(bytes(position - len(target)))
    target[position : position + len(data)] = data


class SimulatedFile:
    def __init__(self, disk: SimulatedDisk, path: Path, inode: _Inode, *, writable: bool) -> None:
        self._disk = disk
        self._path = path
        self._inode = inode
        self._writable = writable

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "a simulated file has no descriptor")

    def size(self) -> int:
        return len(self._inode.data)

    def read(self, size: int, position: int) -> bytes:
        self._disk._begin("read", self._path, changes=False)
        return bytes(self._inode.data[position : position + size])

    def view(self) -> memoryview:
        self._disk._begin("view", self._path, changes=False)
        return memoryview(bytes(self._inode.data))

    def write(self, parts: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        self._require_writable()
        data = b"".join(parts)
        room = self._disk._room()
        growth = max(0, position + len(data) - len(self._inode.data))
        if room is not None and growth > room:
            self._change(position, data[: len(data) - (growth - room)])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        try:
            self._disk._begin("write", self._path)
        except (OSError, SimulatedCrash) as error:
            if isinstance(error, SimulatedCrash) or self._disk._is_partial:
                self._change(position, data[: self._disk._random.randrange(len(data) + 1)])
            raise
        self._change(position, data)

    def truncate(self, size: int) -> None:
        self._require_writable()
        self._disk._begin("truncate", self._path)
        self._change(size, None)

    def sync(self) -> None:
        try:
            self._disk._begin("sync", self._path)
        except OSError:
            self._inode.pending.clear()  # the pages count as clean now, whatever happened to them
            raise
        for change in self._inode.pending:
            _apply(self._inode.durable, *change)
        self._inode.pending.clear()

    def settle(self) -> None:
        self.sync()
        self._inode.data[:] = self._inode.durable

    def close(self) -> None:
        pass

    def _change(self, position: int, data: bytes | None) -> None:
        _apply(self._inode.data, position, data)
        self._inode.pending.append((position, data))

    def _require_writable(self) -> None:
        if not self._writable:
            raise OSError(errno.EBADF, "the file was opened for reading", str(self._path))


class SimulatedDisk:
    """`capacity` bytes of file contents (None: no limit). `operations` counts what changes something; `calls`
    counts every call by kind.
    """

    def __init__(self, *, seed: int = 0, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.operations = 0
        self.crash_at: int | None = None
        self.is_dead = False
        self.calls: dict[str, int] = {}
        self._faults: list[Fault] = []
        self._is_partial = False
        self._random = random.Random(seed)
        self._names: dict[Path, _Inode] = {}
        self._durable_names: dict[Path, _Inode] = {}
        self._pending_names: list[tuple[Path, _Inode | None]] = []
        self._directories: set[Path] = set()

    # -- control -------------------------------------------------------------------------------------------

    def fail(self, fault: Fault) -> None:
        self._faults.append(fault)

    def heal(self) -> None:
        self._faults.clear()
        self.capacity = None

    def restart(self, tear: Tear) -> SimulatedDisk:
        """The disk the next process finds. This one stays as it is, so several restarts can be tried."""
        random_ = random.Random(f"{self._random.random()}{tear}")
        after = SimulatedDisk(seed=random_.randrange(1 << 30))
        after._directories = set(self._directories)
        if tear is Tear.KEPT:
            after._take_over(self)
            return after
        names = self._surviving_names(tear, random_)
        contents: dict[int, bytearray] = {}
        for path, inode in names.items():
            data = contents.setdefault(id(inode), self._surviving_data(inode, tear, random_))
            after._names[path] = _Inode(bytearray(data), bytearray(data))
        after._durable_names = dict(after._names)
        return after

    def _take_over(self, before: SimulatedDisk) -> None:
        copies: dict[int, _Inode] = {}

        def copy(inode: _Inode) -> _Inode:
            if id(inode) not in copies:
                copies[id(inode)] = _Inode(
                    bytearray(inode.data), bytearray(inode.durable), list(inode.pending)
                )
            return copies[id(inode)]

        self._names = {path: copy(inode) for path, inode in before._names.items()}
        self._durable_names = {path: copy(inode) for path, inode in before._durable_names.items()}
        self._pending_names = [
            (path, None if inode is None else copy(inode)) for path, inode in before._pending_names
        ]

    def contents(self, path: Path) -> bytes:
        return bytes(self._names[path].data)

    def corrupt(self, path: Path, position: int, mask: int) -> None:
        """Flip bits of one byte, as a decaying medium would."""
        inode = self._names[path]
        inode.data[position] ^= mask
        if position < len(inode.durable):
            inode.durable[position] ^= mask

    def _surviving_names(self, tear: Tear, random_: random.Random) -> dict[Path, _Inode]:
        names = dict(self._durable_names)
        if tear is not Tear.LOST:
            for path, inode in self._pending_names[: random_.randrange(len(self._pending_names) + 1)]:
                if inode is None:
                    names.pop(path, None)
                else:
                    names[path] = inode
        return names

    def _surviving_data(self, inode: _Inode, tear: Tear, random_: random.Random) -> bytearray:
        data = bytearray(inode.durable)
        if tear is Tear.LOST:
            return data
        if tear is Tear.TORN:
            count = random_.randrange(len(inode.pending) + 1)
            for change in inode.pending[:count]:
                _apply(data, *change)
            if count < len(inode.pending):
                position, last = inode.pending[count]
                if last is not None:
                    end = (position + random_.randrange(len(last) + 1)) // SECTOR * SECTOR
                    _apply(data, position, last[: max(0, end - position)])
            return data
        for position, change_data in inode.pending:
            if change_data is None:
                _apply(data, position, None)
                continue
            _apply(data, position, bytes(len(change_data)))
            if tear is Tear.HOLES:
                start = position
                while start < position + len(change_data):
                    end = min((start // SECTOR + 1) * SECTOR, position + len(change_data))
                    if random_.random() < 0.5:
                        _apply(data, start, change_data[start - position : end - position])
                    start = end
        return data

    def _begin(self, operation: str, path: Path, *, changes: bool = True) -> None:
        """Count an operation, and let it fail or the process die if that is what was asked for."""
        self._is_partial = False
        if self.is_dead:
            raise SimulatedCrash
        self.calls[operation] = self.calls.get(operation, 0) + 1
        if changes:
            self.operations += 1
            if self.operations == self.crash_at:
                self.is_dead = True
                raise SimulatedCrash
        for fault in self._faults:
            if fault.operation == operation and path.name.endswith(fault.suffix) and fault.times > 0:
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                self._is_partial = fault.partial
                raise OSError(fault.error, os.strerror(fault.error), str(path))

    def _room(self) -> int | None:
        if self.capacity is None:
            return None
        return max(0, self.capacity - sum(len(inode.data) for inode in self._names.values()))

    # -- the port ------------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> SimulatedFile:
        inode = self._names.get(path)
        if inode is None:
            if not create or path.parent not in self._directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            self._begin("create", path)
            inode = _Inode()
            self._set_name(path, inode)
        else:
            self._begin("open", path, changes=False)
        return SimulatedFile(self, path, inode, writable=True)

    def open_read_only(self, path: Path) -> SimulatedFile:
        self._begin("open", path, changes=False)
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return SimulatedFile(self, path, self._names[path], writable=False)

    def names(self, directory: Path) -> list[str]:
        self._begin("names", directory, changes=False)
        return [path.name for path in self._names if path.parent == directory]

    def size(self, path: Path) -> int | None:
        self._begin("size", path, changes=False)
        inode = self._names.get(path)
        return None if inode is None else len(inode.data)

    def read(self, path: Path) -> bytes:
        return self.open_read_only(path).read(1 << 62, 0)

    def replace(self, path: Path, data: bytes, *, sync: bool) -> None:
        temporary = path.with_name(path.name + ".tmp")
        file = self.open(temporary, create=True)
        file.truncate(0)
        file.write([data], 0)
        if sync:
            file.sync()
        self.rename(temporary, path)
        if sync:
            self.sync_directory(path.parent)

    def make_directory(self, path: Path) -> None:
        if path not in self._directories:
            self._begin("make_directory", path)
            self._directories.update((path, *path.parents))

    def rename(self, old: Path, new: Path) -> None:
        if old not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(old))
        self._begin("rename", new)
        self._set_name(new, self._names[old])
        self._set_name(old, None)

    def remove(self, path: Path) -> None:
        if path in self._names:
            self._begin("remove", path)
            self._set_name(path, None)

    def remove_directory(self, path: Path) -> None:
        if not any(name.parent == path for name in self._names):
            self._begin("remove_directory", path)
            self._directories.discard(path)

    def sync_directory(self, path: Path) -> None:
        self._begin("sync_directory", path)
        rest = []
        for name, inode in self._pending_names:
            if name.parent != path:
                rest.append((name, inode))
            elif inode is None:
                self._durable_names.pop(name, None)
            else:
                self._durable_names[name] = inode
        self._pending_names = rest

    def _set_name(self, path: Path, inode: _Inode | None) -> None:
        if inode is None:
            del self._names[path]
        else:
            self._names[path] = inode
        self._pending_names.append((path, inode))
