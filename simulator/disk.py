"""A disk in memory that can lose unsynced data, tear a half-written one, and fail on demand.

It keeps two states: the one that a running process sees (all operations so far), and the one after a power cut (only
synced data). Changing operations are numbered. `crash_at` ends the process in the middle of one; `restart` returns the
disk that the next process finds:

- KEPT: the process ended, the machine did not. All operations are there, the last write maybe in part. Unsynced data
  stays unsynced, and a later power cut may lose it.
- LOST: a power cut left only synced data.
- TORN: a power cut left the unsynced operations up to some point, the last one in part (whole sectors).
- ZEROS: a power cut left the new sizes; unsynced data reads as zeros.
- HOLES: a power cut left some sectors of the unsynced data, in no order.

Contents, names and directories are separate, and the disk keeps only the promises of POSIX:

- fsync of a file makes its contents durable, not its name, although ext4 does both.
- Creating, renaming or removing a file or directory changes an entry of its parent directory, and is durable once that
  very directory is synced. A directory whose entry is lost is lost with its contents, even if they were synced. A file
  is durable only if its whole path up to the root is.
- Until then a power cut (except LOST) leaves a part of each directory's unsynced changes. These are either all changes
  up to some point, as a journal leaves, or any of them, as POSIX allows and ext4's fast commits, XFS and Btrfs nearly
  do. Different directories, and directories and contents, are independent.
- The changes of one name keep their order: the name has the value of one of them, never another one.
- A rename never loses the file: it is under the new name whenever the old name is gone. Both may be there.

A failed sync drops the data that it should have made durable, while the process still sees it (as on Linux), until
`settle` reads the medium itself.

Any thread may use it. Every operation is a single step, so a restart finds no half-done sync.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from headrace.broker.runtime.ports import DiskUsage, LockedError

SECTOR = 512
VOLUME_BYTES = 1 << 40


class Tear(Enum):
    KEPT = "kept"
    LOST = "lost"
    TORN = "torn"
    ZEROS = "zeros"
    HOLES = "holes"


class SimulatedCrash(BaseException):
    """The process has ended. Not an Exception, so that no handler catches it and goes on."""


@dataclass(slots=True, eq=False)
class _Inode:
    """A file. `pending` are the changes since the last sync: (position, data), or (size, None) for a truncation."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    written_ms: float = 0.0
    changed_ms: float = 0.0


@dataclass(slots=True, eq=False)
class _Entry:
    """A change of a name: it stands for `node` from now on (None: removed). `needs` must have happened before (a
    rename).
    """

    name: str
    node: _Inode | _Directory | None
    needs: _Entry | None = None


@dataclass(slots=True, eq=False)
class _Directory:
    """A directory. `pending` are the changes since the last sync, in their order."""

    entries: dict[str, _Inode | _Directory] = field(default_factory=dict)
    durable: dict[str, _Inode | _Directory] = field(default_factory=dict)
    pending: list[_Entry] = field(default_factory=list)
    written_ms: float = 0.0
    changed_ms: float = 0.0

    def change(self, name: str, node: _Inode | _Directory | None, needs: _Entry | None = None) -> _Entry:
        entry = _Entry(name, node, needs)
        _enter(self.entries, entry)
        self.pending.append(entry)
        return entry

    def sync(self) -> None:
        for entry in self.pending:
            _enter(self.durable, entry)
        self.pending.clear()

    def arrived(self, random_: random.Random) -> list[_Entry]:
        """Return the pending changes that a power cut leaves on the medium."""
        if random_.random() < 0.5:
            return self.pending[: random_.randrange(len(self.pending) + 1)]
        share = random_.random()
        missed = {entry.name for entry in self.pending if random_.random() < share}
        arrived: list[_Entry] = []
        stopped = set()
        for entry in self.pending:
            is_last = entry.name in missed and random_.random() < 0.5
            if entry.name in stopped or is_last or not (entry.needs is None or entry.needs in arrived):
                stopped.add(entry.name)
            else:
                arrived.append(entry)
        return arrived


def _copied(directory: _Directory, nodes: dict[_Inode | _Directory, _Inode | _Directory]) -> _Directory:
    """Return a deep copy; `nodes` maps nodes to their copies."""
    after = nodes[directory] = _Directory(written_ms=directory.written_ms, changed_ms=directory.changed_ms)

    def node_of(node: _Inode | _Directory) -> _Inode | _Directory:
        found = nodes.get(node)
        if found is not None:
            return found
        if isinstance(node, _Directory):
            return _copied(node, nodes)
        found = nodes[node] = _Inode(
            node.data[:], node.durable[:], node.pending[:], node.written_ms, node.changed_ms
        )
        return found

    entries: dict[_Entry, _Entry] = {}
    for entry in directory.pending:
        copied = None if entry.node is None else node_of(entry.node)
        needs = None if entry.needs is None else entries.get(entry.needs, entry.needs)
        entries[entry] = _Entry(entry.name, copied, needs)
    after.pending = list(entries.values())
    after.entries = {name: node_of(node) for name, node in directory.entries.items()}
    after.durable = {name: node_of(node) for name, node in directory.durable.items()}
    return after


def _enter(entries: dict[str, _Inode | _Directory], entry: _Entry) -> None:
    if entry.node is None:
        entries.pop(entry.name, None)
    else:
        entries[entry.name] = entry.node


@dataclass(slots=True)
class Fault:
    """A fault: the next `times` operations of a kind fail, after `skip` of them, on paths that end in `suffix`."""

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
        except OSError as error:
            self._inode.pending.clear()  # the pages count as clean now, in any case
            raise OSError(error.errno, error.strerror) from None  # errors of descriptors have no name
        with self._disk._lock:
            for change in self._inode.pending:
                _apply(self._inode.durable, *change)
            self._inode.pending.clear()

    def settle(self) -> None:
        with self._disk._lock:
            self.sync()
            self._inode.data[:] = self._inode.durable

    def close(self) -> None:
        pass

    def _change(self, position: int, data: bytes | None) -> None:
        with self._disk._lock:
            _apply(self._inode.data, position, data)
            self._inode.written_ms = self._inode.changed_ms = self._disk.now_ms()
            self._inode.pending.append((position, data))

    def _require_writable(self) -> None:
        if not self._writable:
            raise OSError(errno.EBADF, "the file was opened for reading", str(self._path))


class SimulatedDisk:
    """The disk. `capacity` is the limit of file contents in bytes (None: no limit).

    `operations` counts changing operations, `calls` every call by kind. `now_ms` is the wall clock for file times.
    `mounted_at` is the root of this file system; it exists, and so do its parents.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        capacity: int | None = None,
        now_ms: Callable[[], float] = lambda: 0.0,
        mounted_at: Path = Path("/"),
    ) -> None:
        self.capacity = capacity
        self.now_ms = now_ms
        self._locks: dict[Path, str] = {}
        self.operations = 0
        self.crash_at: int | None = None
        self.is_dead = False
        self.on_crash: Callable[[], None] | None = None
        """Called in the operation in which the process ends."""
        self.on_change: Callable[[str, Path], None] | None = None
        """Called before each changing operation."""
        self.calls: dict[str, int] = {}
        self.boots = 1
        self._faults: list[Fault] = []
        self._is_partial = False
        self._random = random.Random(seed)
        self._mounted_at = mounted_at
        self._root = above = _Directory()
        for part in mounted_at.parts[1:]:
            above.entries[part] = above.durable[part] = above = _Directory()
        self._lock = threading.RLock()

    # -- control -------------------------------------------------------------------------------------------

    def fail(self, fault: Fault) -> None:
        self._faults.append(fault)

    def heal(self) -> None:
        self._faults.clear()
        self.capacity = None

    def restart(self, tear: Tear) -> SimulatedDisk:
        """Return the disk that the next process finds. This one stays as it is, so that several restarts can be
        tried.
        """
        random_ = random.Random(f"{self._random.random()}{tear}")
        after = SimulatedDisk(
            seed=random_.randrange(1 << 30), now_ms=self.now_ms, mounted_at=self._mounted_at
        )
        after.boots = self.boots + (tear is not Tear.KEPT)
        with self._lock:
            if tear is Tear.KEPT:
                after._root = _copied(self._root, {})
            else:
                after._root = self._survivor(self._root, tear, random_, {})
        return after

    def move(self, old: Path, new: Path) -> None:
        """Move a directory and make its new parents, as if it had always been there: no operation, and durable."""
        node = self._node(old)
        if not isinstance(node, _Directory):
            return
        directory = self._root
        for part in new.parts[1:-1]:
            following = directory.entries.setdefault(part, _Directory())
            assert isinstance(following, _Directory)
            directory.durable[part] = directory = following
        directory.entries[new.name] = directory.durable[new.name] = node
        above = self._directory(old.parent)
        for entries in (above.entries, above.durable):
            entries.pop(old.name, None)

    def contents(self, path: Path) -> bytes:
        return bytes(self._file(path).data)

    def corrupt(self, path: Path, position: int, mask: int) -> None:
        """Flip bits of one byte, as a damaged medium would."""
        inode = self._file(path)
        inode.data[position] ^= mask
        if position < len(inode.durable):
            inode.durable[position] ^= mask

    def _survivor(
        self, directory: _Directory, tear: Tear, random_: random.Random, inodes: dict[_Inode, _Inode]
    ) -> _Directory:
        """Return the state of a directory after a power cut."""
        entries = dict(directory.durable)
        if tear is not Tear.LOST and directory.pending:
            for entry in directory.arrived(random_):
                _enter(entries, entry)
        after = _Directory()
        for name, node in entries.items():
            if isinstance(node, _Directory):
                after.entries[name] = self._survivor(node, tear, random_, inodes)
                continue
            if node not in inodes:
                data = self._surviving_data(node, tear, random_)
                inodes[node] = _Inode(
                    data, bytearray(data), written_ms=node.written_ms, changed_ms=node.changed_ms
                )
            after.entries[name] = inodes[node]
        after.durable = dict(after.entries)
        return after

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
        """Count an operation; let it fail or end the process if that was requested."""
        self._is_partial = False
        if self.is_dead:
            raise SimulatedCrash
        self.calls[operation] = self.calls.get(operation, 0) + 1
        if changes:
            self.operations += 1
            if self.on_change is not None:
                self.on_change(operation, path)
            if self.operations == self.crash_at:
                self.is_dead = True
                if self.on_crash is not None:
                    self.on_crash()
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
        return None if self.capacity is None else max(0, self.capacity - _size(self._root))

    def _node(self, path: Path) -> _Inode | _Directory | None:
        node: _Inode | _Directory | None = self._root
        for part in path.parts[1:]:
            if not isinstance(node, _Directory):
                return None
            node = node.entries.get(part)
        return node

    def _directory(self, path: Path) -> _Directory:
        node = self._node(path)
        if not isinstance(node, _Directory):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return node

    def _file(self, path: Path) -> _Inode:
        node = self._node(path)
        if not isinstance(node, _Inode):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return node

    # -- the port ------------------------------------------------------------------------------------------

    def open(self, path: Path, *, create: bool = False) -> SimulatedFile:
        node = self._node(path)
        if node is None and create:
            directory = self._directory(path.parent)
            self._begin("create", path)
            with self._lock:
                directory.change(path.name, node := _Inode())
        else:
            node = self._file(path)
            self._begin("open", path, changes=False)
        assert isinstance(node, _Inode)
        return SimulatedFile(self, path, node, writable=True)

    def open_read_only(self, path: Path) -> SimulatedFile:
        self._begin("open", path, changes=False)
        return SimulatedFile(self, path, self._file(path), writable=False)

    def names(self, directory: Path) -> list[str]:
        self._begin("names", directory, changes=False)
        node = self._node(directory)
        if not isinstance(node, _Directory):
            return []
        with self._lock:
            return [name for name, entry in node.entries.items() if isinstance(entry, _Inode)]

    def size(self, path: Path) -> int | None:
        self._begin("size", path, changes=False)
        node = self._node(path)
        return len(node.data) if isinstance(node, _Inode) else None

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

    def directories(self, directory: Path) -> list[str]:
        self._begin("names", directory, changes=False)
        node = self._node(directory)
        if not isinstance(node, _Directory):
            return []
        with self._lock:
            return [name for name, entry in node.entries.items() if isinstance(entry, _Directory)]

    def is_directory(self, path: Path) -> bool:
        self._begin("size", path, changes=False)
        return isinstance(self._node(path), _Directory)

    def written_ms(self, path: Path) -> float | None:
        node = self._node(path)
        return None if node is None else node.written_ms

    def changed_ms(self, path: Path) -> float | None:
        node = self._node(path)
        return None if node is None else node.changed_ms

    def touch(self, path: Path) -> None:
        self._file(path).written_ms = self.now_ms()

    def make_directory(self, path: Path) -> bool:
        node, made = self._root, False
        for part in path.parts[1:]:
            following = node.entries.get(part)
            made = following is None
            if following is None:
                self._begin("make_directory", path)
                with self._lock:
                    node.change(part, following := _Directory())
                    node.written_ms = node.changed_ms = self.now_ms()
            if not isinstance(following, _Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            node = following
        return made

    def spread(self, path: Path) -> None:
        pass

    def rename(self, old: Path, new: Path) -> None:
        if old.parent != new.parent:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(new))
        directory, node, there = self._directory(old.parent), self._node(old), self._node(new)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(old))
        if isinstance(there, _Directory) and there.entries:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(new))
        self._begin("rename", new)
        with self._lock:
            directory.change(old.name, None, needs=directory.change(new.name, node))
            node.changed_ms = directory.written_ms = self.now_ms()

    def rename_new(self, old: Path, new: Path) -> None:
        if self._node(new) is not None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new))
        self.rename(old, new)

    def remove(self, path: Path) -> None:
        if isinstance(self._node(path), _Inode):
            self._begin("remove", path)
            with self._lock:
                self._directory(path.parent).change(path.name, None)

    def remove_directory(self, path: Path) -> None:
        node = self._node(path)
        if isinstance(node, _Directory) and not node.entries:
            self._begin("remove_directory", path)
            with self._lock:
                self._directory(path.parent).change(path.name, None)

    def remove_tree(self, path: Path) -> None:
        node = self._node(path)
        if not isinstance(node, _Directory):
            return
        try:
            for name, entry in list(node.entries.items()):
                if isinstance(entry, _Directory):
                    self.remove_tree(path / name)
                else:
                    self.remove(path / name)
        except OSError:
            return
        self.remove_directory(path)

    def sync_directory(self, path: Path) -> None:
        directory = self._directory(path)
        self._begin("sync_directory", path)
        with self._lock:
            directory.sync()

    def sync_above(self, path: Path) -> None:
        for above in path.parents:
            self.sync_directory(above)
            if above == self._mounted_at:
                return

    def boot_id(self) -> str:
        return f"boot {self.boots}"

    def usage(self, path: Path) -> DiskUsage:
        room = self._room()
        return DiskUsage(VOLUME_BYTES, VOLUME_BYTES // 2 if room is None else room)

    def lock(self, path: Path, holder: str) -> SimulatedLock:
        if path in self._locks:
            raise LockedError(self._locks[path])
        file = self.open(path, create=True)
        file.truncate(0)
        file.write([f"{holder}\n".encode()], 0)
        self._locks[path] = holder
        return SimulatedLock(self._locks, path)

    def lock_holder(self, path: Path) -> str | None:
        return self._locks.get(path)


class SimulatedLock:
    """A lock that ends with the process: the disk of `restart` does not have it."""

    def __init__(self, locks: dict[Path, str], path: Path) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        del self._locks[self._path]


def _size(node: _Inode | _Directory) -> int:
    """The bytes of file contents that a process sees."""
    if isinstance(node, _Inode):
        return len(node.data)
    return sum(map(_size, node.entries.values()))
