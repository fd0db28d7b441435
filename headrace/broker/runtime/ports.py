"""Ports through which everything non-deterministic enters the broker.

A component takes the ports it needs as constructor arguments. It never reads the wall clock, draws random bytes, starts
threads, or opens files or sockets on its own. So `simulator` can run it under virtual time on a simulated disk.
`headrace/broker/tests/test_ports.py` checks this and lists the exceptions. Timeouts use `Clock.monotonic`; record
timestamps use `Clock.time_ms`.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol

import msgspec

from headrace.protocol.errors import ErrorCode, KafkaError


class Clock(Protocol):
    """The two kinds of time, which must not be mixed."""

    def time_ms(self) -> int:
        """Return wall-clock milliseconds since the epoch, for record timestamps and retention, never for deadlines."""

    def monotonic(self) -> float:
        """Return seconds of a clock that never goes back, for deadlines, leases and sessions."""


class Entropy(Protocol):
    """Randomness: ids, secrets and jitter."""

    def uuid(self) -> uuid.UUID: ...

    def bytes(self, count: int) -> bytes:
        """Return `count` bytes that cannot be guessed."""

    def random(self) -> float:
        """Return a number that is uniform in [0, 1)."""


class SystemClock:
    monotonic = staticmethod(time.monotonic)

    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000


class AgeClock:
    """Wall-clock time for deciding that something is old: it never runs ahead of the monotonic clock.

    A wall clock that is set forward, by mistake or as a correction, makes nothing old. Data that is kept too long for
    that reason goes after the next start. A wall clock that is set backwards makes everything younger.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started_ms = clock.time_ms()
        self._started = clock.monotonic()

    def time_ms(self) -> int:
        passed_ms = int((self._clock.monotonic() - self._started) * 1000)
        return min(self._clock.time_ms(), self._started_ms + passed_ms)


class SystemEntropy:
    def uuid(self) -> uuid.UUID:
        return uuid.uuid4()

    def bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def random(self) -> float:
        return int.from_bytes(os.urandom(7), "big") / (1 << 56)


class Threads(Protocol):
    """Threads for blocking work, beside the event loop."""

    def pool(self, threads: int, name: str) -> Executor:
        """Return a pool of at most `threads` threads, started when there is work. The caller shuts it down."""

    def pause(self, seconds: float) -> None:
        """Let the calling thread sleep."""


class SystemThreads:
    def pool(self, threads: int, name: str) -> Executor:
        return ThreadPoolExecutor(threads, thread_name_prefix=name)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


class DiskFile(Protocol):
    """An open file with explicit positions. Every call may raise OSError. It is closed when the last reference goes."""

    def fileno(self) -> int:
        """Return the descriptor for sendfile; OSError (EBADF) if the file has none."""

    def size(self) -> int: ...

    def read(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes, fewer only at the end of the file."""

    def view(self) -> memoryview:
        """Return the present contents, read-only, without a copy if the system can. Later writes do not extend it."""

    def write(self, parts: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        """Write all parts one after another, in one system call if it takes them.

        On OSError some bytes may have been written.
        """

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make data and size durable. After an OSError, assume nothing about earlier writes."""

    def settle(self) -> None:
        """`sync`, then drop what is cached: later reads return what the medium has.

        It is meant for bytes that an earlier process wrote and whose fsync may have failed. The system counts such
        pages as written and would go on showing them. If the system cannot drop its cache, this is a `sync`.
        """

    def close(self) -> None: ...


class DiskUsage(msgspec.Struct, frozen=True):
    """Sizes of the volume that contains a path."""

    total_bytes: int
    free_bytes: int
    free_files: int = -1
    """Number of files that can still be made (inodes); -1 if the file system has no such limit."""


class DiskLock(Protocol):
    """A file that names the process that uses a directory. The lock is released when the process ends, in any way."""

    def release(self) -> None: ...


class LockedError(Exception):
    """Another process holds the lock; `holder` is the text that it has written into the file."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"held by {holder}")
        self.holder = holder


class Disk(Protocol):
    """The file system, as far as a broker needs it. Names and removals are durable after `sync_directory`."""

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        """Open for reading and writing. Raises FileNotFoundError if it does not exist and `create` is false."""

    def open_read_only(self, path: Path) -> DiskFile: ...

    def names(self, directory: Path) -> list[str]:
        """Return the names of the files in a directory; an empty list if the directory does not exist."""

    def directories(self, directory: Path) -> list[str]:
        """Return the names of the directories in a directory; an empty list if the directory does not exist."""

    def is_directory(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int | None:
        """Return the size of the file in bytes, None if it does not exist."""

    def written_ms(self, path: Path) -> float | None:
        """Return when the contents last changed, in wall-clock milliseconds; None if the path does not exist. The
        contents of a directory are its list of names.
        """

    def changed_ms(self, path: Path) -> float | None:
        """Return the same as `written_ms`, but renaming a file also counts as a change."""

    def touch(self, path: Path) -> None:
        """Set the time of the last change to now."""

    def read(self, path: Path) -> bytes: ...

    def replace(self, path: Path, data: bytes, *, sync: bool) -> None:
        """Make `data` the contents of `path`, all or nothing. With `sync`, contents and name are durable."""

    def make_directory(self, path: Path) -> bool:
        """Make a directory and its parents. Return False, without an error, if it exists."""

    def spread(self, path: Path) -> None:
        """Mark a directory as one whose future directories are unrelated to each other. A file system that can do so
        lays them out apart; elsewhere nothing happens.
        """

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file or a directory within its directory. It replaces what has the new name; OSError if that is a
        directory with contents.
        """

    def rename_new(self, old: Path, new: Path) -> None:
        """Rename a file within its directory. Raises FileExistsError if the new name exists. If several processes do it
        at the same time, one succeeds, provided that the file system has hard links.
        """

    def remove(self, path: Path) -> None:
        """Remove a file; no error if it does not exist."""

    def remove_directory(self, path: Path) -> None:
        """Remove it if it is empty; no error otherwise."""

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and its contents as far as possible; no error otherwise."""

    def sync_directory(self, path: Path) -> None: ...

    def sync_above(self, path: Path) -> None:
        """Make the entries that lead to a directory durable, as far up as its file system goes and may be read."""

    def usage(self, path: Path) -> DiskUsage: ...

    def boot_id(self) -> str:
        """Return an id that changes with each start of the machine; empty if it is not known. Unsynced writes survive
        while the id is the same.
        """

    def lock(self, path: Path, holder: str) -> DiskLock:
        """Lock the file and write `holder` into it. Raises LockedError."""

    def lock_holder(self, path: Path) -> str | None:
        """Return the text that the holder of the lock has written; None if it is not locked. Changes nothing."""


class Region(Protocol):
    """A range of a file."""

    @property
    def size(self) -> int: ...

    @property
    def position(self) -> int: ...

    def fileno(self) -> int:
        """Return the descriptor, as DiskFile does."""

    def read_at(self, position: int, size: int) -> bytes:
        """Read at most `size` bytes from a position within the region, fewer at its end. Raises OSError."""


class Watcher(Protocol):
    """The owner of a watched stream. Neither method may raise."""

    def on_readable(self) -> None: ...

    def on_writable(self) -> None: ...


class Poller(Protocol):
    """Watches streams for reading and writing. All calls are on the event loop's thread."""

    def add(self, fd: int, watcher: Watcher) -> None:
        """Watch for reading."""

    def change(self, fd: int, *, reading: bool, writing: bool) -> None: ...

    def remove(self, fd: int) -> None:
        """Stop watching. Call it before the descriptor is closed."""


class Stream(Protocol):
    """One end of a connection: bytes, in order.

    No method waits: it raises BlockingIOError where it would have to, and another OSError when the connection is
    broken. A non-blocking `socket.socket` is a Stream.
    """

    def fileno(self) -> int: ...

    def recv_into(self, buffer: memoryview, /) -> int:
        """Read into the buffer and return the number of bytes, at least one; 0 when the other end has closed its
        side.
        """

    def send(self, data: bytes | bytearray | memoryview, /) -> int:
        """Return the number of bytes that were taken, at least one."""

    def sendmsg(
        self,
        buffers: Iterable[bytes | bytearray | memoryview],
        ancillary: tuple[()] = ...,
        flags: int = ...,
        /,
    ) -> int:
        """Send several buffers one after another; return the number of bytes that were taken."""

    def close(self) -> None: ...


class ListeningSocket(Protocol):
    """An address, `host` and `port`, that is bound."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    def start(self, backlog: int, on_acceptable: Callable[[], None]) -> None:
        """Listen, and call back in the event loop while a connection waits to be accepted."""

    def pause(self) -> None:
        """Stop the calls until `resume`; connections go on to arrive."""

    def resume(self) -> None: ...

    def accept(self, *, send_buffer_bytes: int) -> tuple[Stream, str, int]:
        """Accept a connection; return its stream and the address of the peer. A buffer of -1 is left to the system.
        Raises BlockingIOError when no connection waits, and another OSError when it cannot be accepted now.
        """

    def turn_away(self) -> None:
        """Accept and close connections that wait, even without a free descriptor: their clients try again at once or
        elsewhere, instead of waiting for an answer.
        """

    def close(self) -> None:
        """Close the socket; it may be called at any time and repeatedly. Connections that were not accepted are
        lost.
        """


class Sockets(Protocol):
    """The network, as far as a broker needs it."""

    def host_name(self) -> str:
        """Return this machine's name, as other machines reach it."""

    def poller(self, loop: asyncio.AbstractEventLoop) -> Poller:
        """Return the poller that watches the streams of this port on a loop."""

    def bind(self, host: str, port: int, *, receive_buffer_bytes: int) -> ListeningSocket:
        """Bind an address (port 0: a free one) without listening yet. The buffer is that of accepted connections; -1
        leaves it to the system. Raises OSError.
        """

    async def addresses(self, host: str) -> list[str]:
        """Return the addresses of a host name, or an address itself. Raises OSError."""

    async def connect(self, host: str, port: int) -> Stream:
        """Connect to a listening address. Raises OSError. There is no timeout; callers set their own."""

    def send_region(self, stream: Stream, region: Region, size_max: int) -> int:
        """Send the beginning of a region and return the number of bytes that were taken. Raises the same errors as
        `Stream.send`.
        """

    def read_region(self, region: Region, room: memoryview) -> int:
        """Read the beginning of a region into `room` and return the number of bytes. Raises OSError."""

    def has_ended(self, stream: Stream) -> bool:
        """Return whether the other end is known to send nothing more, without reading what it has sent."""


class Node(msgspec.Struct, frozen=True):
    """A node of the coordination store: its bytes, and the version that a compare-and-set must name.

    An ephemeral node also has the id of the session that it lives as long as (0: a permanent node), and a number that
    grows with every ephemeral node made in the store (ZooKeeper's zxid of the creation). The number shows that a node
    was made again.
    """

    data: bytes
    version: int
    owner: int = 0
    created: int = 0


class CreateNode(msgspec.Struct, frozen=True, tag=True):
    """Create a node. An `ephemeral` node goes with the session that made it, and has no children. `sequence` appends
    ten digits to the name: a number that grows among the children of the parent.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class SetNode(msgspec.Struct, frozen=True, tag=True):
    """Replace the data if the node is at the version that was read. There is no unconditional write."""

    path: str
    data: bytes
    version: int

    def __post_init__(self) -> None:
        _check_version(self)


class DeleteNode(msgspec.Struct, frozen=True, tag=True):
    """Delete the node, if it is at the version that was read."""

    path: str
    version: int

    def __post_init__(self) -> None:
        _check_version(self)


class CheckNode(msgspec.Struct, frozen=True, tag=True):
    """Succeeds only if the node exists at this version."""

    path: str
    version: int

    def __post_init__(self) -> None:
        _check_version(self)


StoreOperation = CreateNode | SetNode | DeleteNode | CheckNode


def _check_version(operation: SetNode | DeleteNode | CheckNode) -> None:
    """Refuse negative versions, which mean "any version" to ZooKeeper."""
    if operation.version < 0:
        raise ValueError(f"{operation!r} names no version: read the node first")


class StoreError(Exception):
    """A transaction was refused and had no effect."""


class NoNodeError(StoreError):
    pass


class NodeExistsError(StoreError):
    pass


class BadVersionError(StoreError):
    pass


class StoreUnavailableError(StoreError, KafkaError):
    """The store is not available now; nothing was done. The operation may be tried again.

    A client gets NOT_CONTROLLER, as from a Kafka controller that has lost its quorum, and repeats the request.
    """

    def __init__(self, message: str) -> None:
        KafkaError.__init__(self, ErrorCode.NOT_CONTROLLER, message)


class StoreOutcomeUnknownError(KafkaError):
    """The connection to the store was lost while the store may have carried out a transaction. Read before deciding
    anything. It is not a StoreError, so that it is not taken for a refusal.

    A client gets REQUEST_TIMED_OUT, which says the same.
    """

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


STORE_LOST: Final = (StoreUnavailableError, StoreOutcomeUnknownError)


class CoordinationStore(Protocol):
    """A small, durable, versioned tree of nodes: ZooKeeper's model, embedded or real.

    Paths are absolute and separated by slashes. A transaction is atomic and is on disk when it returns. One value of
    this port is one session. Its ephemeral nodes exist until it is closed, or until the store has not heard from it for
    its timeout. `simulator.stores` has the conformance suite that every implementation passes.
    """

    @property
    def session(self) -> int:
        """The session's id, not 0. It changes after the store has expired a session."""

    @property
    def changes(self) -> int:
        """A number that changes once any session has changed the store and this session has heard of it, which takes a
        part of its timeout at most. It may also change when the store has not.
        """

    def lease_end(self) -> float:
        """Return the time (`Clock.monotonic`) until which no other session can hold this session's ephemeral nodes,
        under any failure. A leader that relies on such a node stops before that time. Infinite if there is only one
        session.
        """

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back, in the event loop, after the node at `path` was made, set or deleted, and after the list of its
        children changed. Also call back after any time in which a change may have been missed, such as a lost session.
        Several changes may be one call; a read after the call sees them. Return a function that ends the watch.
        """

    async def get(self, path: str) -> Node | None: ...

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Return each node as `get` does, thousands at a time. The nodes need not be from one moment."""

    async def children(self, path: str) -> list[str]:
        """Return the names (not paths) of the direct children, sorted; an empty list if the node does not exist."""

    async def transact(self, operations: Sequence[StoreOperation]) -> list[str]:
        """Apply all operations or none. Parents of a created node need not exist; parents made for a refused
        transaction may remain. Return the paths of the operations, those of sequence nodes with their numbers.

        Raises NoNodeError, NodeExistsError or BadVersionError for the first operation that fails. Raises StoreError if
        a node with children is deleted, or if a child of an ephemeral node is created.
        """

    async def close(self) -> None: ...
