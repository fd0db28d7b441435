"""The doors through which everything non-deterministic enters the broker.

A component takes the ports it needs as constructor arguments and never reads the wall clock, draws random
bytes, starts threads, opens files or sockets on its own, so that `simulator` can run it under virtual time on a
simulated disk. `headrace/broker/tests/test_ports.py` holds it, and has the list of what is left out. Timeouts use
`Clock.monotonic`; record timestamps use `Clock.time_ms`.
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
    """Time, in the two kinds that must not be mixed."""

    def time_ms(self) -> int:
        """Wall-clock milliseconds since the epoch: for record timestamps and retention, never for deadlines."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back: for deadlines, leases and sessions."""


class Entropy(Protocol):
    """Randomness: ids, secrets and jitter."""

    def uuid(self) -> uuid.UUID: ...

    def bytes(self, count: int) -> bytes:
        """That nobody can guess."""

    def random(self) -> float:
        """Uniform in [0, 1)."""


class SystemClock:
    def time_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class AgeClock:
    """Wall-clock time for deciding that something is old: it never runs ahead of the monotonic clock.

    A wall clock that is set forward, by mistake or because it was wrong before, makes nothing old; what was kept too
    long for that goes after the next start. Set backwards, it makes everything younger.
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
    """Where what blocks is done, beside the event loop."""

    def pool(self, threads: int, name: str) -> Executor:
        """So many threads at most, made when there is work; whoever asked for them shuts them down."""

    def pause(self, seconds: float) -> None:
        """Let the thread that calls rest."""


class SystemThreads:
    def pool(self, threads: int, name: str) -> Executor:
        return ThreadPoolExecutor(threads, thread_name_prefix=name)

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)


class DiskFile(Protocol):
    """An open file with explicit positions. Every call may raise OSError. It is closed when nobody refers to it."""

    def fileno(self) -> int:
        """The descriptor for sendfile; OSError (EBADF) if there is none behind this file."""

    def size(self) -> int: ...

    def read(self, size: int, position: int) -> bytes:
        """Up to `size` bytes, fewer only at the end of the file."""

    def view(self) -> memoryview:
        """The present contents, read-only, without copying where the system can. Not extended by later writes."""

    def write(self, parts: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        """Write all parts one after another, in one system call if it takes them.

        On OSError some bytes may have been written.
        """

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Make data and size durable. After an OSError nothing may be assumed about what was written before."""

    def settle(self) -> None:
        """`sync`, then forget what is cached: from now on reads give what the medium has.

        For what a process before this one has written, whose fsync may have failed: the system counts such pages as
        written, and would go on showing them. Where the system cannot forget, it is a `sync`.
        """

    def close(self) -> None: ...


class DiskUsage(msgspec.Struct, frozen=True):
    """Of the volume that a path is on."""

    total_bytes: int
    free_bytes: int


class DiskLock(Protocol):
    """A file that says who uses a directory. It is let go of when the process ends, however it does."""

    def release(self) -> None: ...


class LockedError(Exception):
    """Somebody else holds it; `holder` is what that one has written into it."""

    def __init__(self, holder: str) -> None:
        super().__init__(f"held by {holder}")
        self.holder = holder


class Disk(Protocol):
    """The file system, as far as a broker needs it. Names and removals are durable after `sync_directory`."""

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        """Open for reading and writing. FileNotFoundError unless it exists or `create`."""

    def open_read_only(self, path: Path) -> DiskFile: ...

    def names(self, directory: Path) -> list[str]:
        """Names of the files in a directory; empty if there is no such directory."""

    def directories(self, directory: Path) -> list[str]:
        """Names of the directories in it; empty if there is no such directory."""

    def is_directory(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int | None:
        """Bytes in the file, None if there is none."""

    def written_ms(self, path: Path) -> float | None:
        """When its contents last changed, in wall-clock milliseconds; of a directory its list of names. None if there
        is nothing.
        """

    def changed_ms(self, path: Path) -> float | None:
        """As `written_ms`, and a file that was renamed has changed."""

    def touch(self, path: Path) -> None:
        """Its contents count as written now."""

    def read(self, path: Path) -> bytes: ...

    def replace(self, path: Path, data: bytes, *, sync: bool) -> None:
        """Make `data` the contents of `path`, all or nothing; with `sync` durably so, name included."""

    def make_directory(self, path: Path) -> bool:
        """With its parents. False, and no error, if it exists."""

    def spread(self, path: Path) -> None:
        """Directories that will be made in this one have nothing to do with each other: where the file system can, it
        lays them out apart. No error where it cannot.
        """

    def rename(self, old: Path, new: Path) -> None:
        """A file or a directory, within its directory. What was there under the new name is gone, but a directory that
        holds something: OSError.
        """

    def rename_new(self, old: Path, new: Path) -> None:
        """A file, within its directory. Raises FileExistsError if there is something under the new name; of several
        processes that do it at a time one does, where the file system has hard links.
        """

    def remove(self, path: Path) -> None:
        """No error if there is no such file."""

    def remove_directory(self, path: Path) -> None:
        """Remove it if it is empty; no error otherwise."""

    def remove_tree(self, path: Path) -> None:
        """Remove a directory and all that is in it, as far as that is possible; no error otherwise."""

    def sync_directory(self, path: Path) -> None: ...

    def sync_above(self, path: Path) -> None:
        """Make the entries durable that lead to a directory, as far up as its file system goes and may be read."""

    def usage(self, path: Path) -> DiskUsage: ...

    def boot_id(self) -> str:
        """Another one after each start of the machine; what was written and not synced is there while it is the same.
        Empty: not known.
        """

    def lock(self, path: Path, holder: str) -> DiskLock:
        """Hold the file, and write into it who does. Raises LockedError."""

    def lock_holder(self, path: Path) -> str | None:
        """What the one who holds it has written; None if nobody does. Changes nothing."""


class Region(Protocol):
    """A range of a file."""

    @property
    def size(self) -> int: ...

    @property
    def position(self) -> int: ...

    def fileno(self) -> int:
        """As of a DiskFile."""

    def read_at(self, position: int, size: int) -> bytes:
        """At most `size` bytes from a position within the region, fewer at its end. Raises OSError."""


class Watcher(Protocol):
    """Whoever owns a watched stream. Neither method may raise."""

    def on_readable(self) -> None: ...

    def on_writable(self) -> None: ...


class Poller(Protocol):
    """Which streams are watched for what. All on the event loop's thread."""

    def add(self, fd: int, watcher: Watcher) -> None:
        """Watch for reading."""

    def change(self, fd: int, *, reading: bool, writing: bool) -> None: ...

    def remove(self, fd: int) -> None:
        """Before the descriptor is closed."""


class Stream(Protocol):
    """One end of a connection: bytes, in order. Nothing of it waits: it raises BlockingIOError where it would have to,
    and another OSError when the connection is broken. A `socket.socket` that does not block is one.
    """

    def fileno(self) -> int: ...

    def recv_into(self, buffer: memoryview, /) -> int:
        """How many bytes there were, at least one; 0 when the other end has sent its last."""

    def send(self, data: bytes | bytearray | memoryview, /) -> int:
        """How many bytes were taken, at least one."""

    def sendmsg(
        self,
        buffers: Iterable[bytes | bytearray | memoryview],
        ancillary: tuple[()] = ...,
        flags: int = ...,
        /,
    ) -> int:
        """The same, of several buffers one after another."""

    def close(self) -> None: ...


class ListeningSocket(Protocol):
    """An address that was taken: of `host` and `port`."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...

    def start(self, backlog: int, on_acceptable: Callable[[], None]) -> None:
        """Listen, and call back, in the event loop, while somebody waits."""

    def pause(self) -> None:
        """No calls until `resume`; others may go on to arrive."""

    def resume(self) -> None: ...

    def accept(self, *, send_buffer_bytes: int) -> tuple[Stream, str, int]:
        """A connection, and whose. -1 leaves its buffer to the system. Raises BlockingIOError when nobody waits, and
        another OSError when it cannot be had now.
        """

    def close(self) -> None:
        """At any time, more than once too. Who was not accepted loses its connection."""


class Sockets(Protocol):
    """The network, as far as a broker needs it."""

    def host_name(self) -> str:
        """This machine's, for those who reach it from elsewhere."""

    def poller(self, loop: asyncio.AbstractEventLoop) -> Poller:
        """What watches the streams of this port on a loop."""

    def bind(self, host: str, port: int, *, receive_buffer_bytes: int) -> ListeningSocket:
        """Take an address (port 0: a free one) without listening yet. The buffer is that of accepted connections, -1
        leaves it to the system. Raises OSError.
        """

    async def addresses(self, host: str) -> list[str]:
        """Of a name, or of an address itself. Raises OSError."""

    async def connect(self, host: str, port: int) -> Stream:
        """A connection to somebody who listens. Raises OSError. Who wants a deadline sets one around it."""

    def send_region(self, stream: Stream, region: Region, size_max: int) -> int:
        """Send the beginning of a region: how many bytes were taken. Raises what `Stream.send` does."""

    def read_region(self, region: Region, room: memoryview) -> int:
        """Read the beginning of a region into `room`: how many bytes it was. Raises OSError."""

    def has_ended(self, stream: Stream) -> bool:
        """Whether the other end is known to send nothing more, without reading what it has sent."""


class Node(msgspec.Struct, frozen=True):
    """A node of the coordination store: its bytes and the version a compare-and-set must name.

    Of an ephemeral node also the session that it lives as long as (0: a node that stays), and a number that grows with
    every ephemeral node made in the store (ZooKeeper's zxid of the creation): who made it again is told from it.
    """

    data: bytes
    version: int
    owner: int = 0
    created: int = 0


class CreateNode(msgspec.Struct, frozen=True):
    """`ephemeral`: it goes with the session that made it, and has no children. `sequence`: ten digits are appended to
    the name, a number that grows among the children of the parent.
    """

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


class SetNode(msgspec.Struct, frozen=True):
    """Replace the data, if the node is at the version that was read. There is no way to set whatever is there."""

    path: str
    data: bytes
    version: int

    def __post_init__(self) -> None:
        _check_version(self)


class DeleteNode(msgspec.Struct, frozen=True):
    """Delete the node, if it is at the version that was read."""

    path: str
    version: int

    def __post_init__(self) -> None:
        _check_version(self)


class CheckNode(msgspec.Struct, frozen=True):
    """Succeeds only if the node exists at this version."""

    path: str
    version: int

    def __post_init__(self) -> None:
        _check_version(self)


StoreOperation = CreateNode | SetNode | DeleteNode | CheckNode


def _check_version(operation: SetNode | DeleteNode | CheckNode) -> None:
    """Negative versions mean "whichever it is" to ZooKeeper."""
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
    """The store cannot be asked now; nothing was done. It may be asked again.

    For a client: NOT_CONTROLLER, as from a controller of Kafka that has lost its quorum. Clients repeat the request.
    """

    def __init__(self, message: str) -> None:
        KafkaError.__init__(self, ErrorCode.NOT_CONTROLLER, message)


class StoreOutcomeUnknownError(KafkaError):
    """The store was lost while it may have carried a transaction out: read before anything is decided. No StoreError,
    so that nobody takes it for a refusal.

    For a client: REQUEST_TIMED_OUT, which says the same.
    """

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


STORE_LOST: Final = (StoreUnavailableError, StoreOutcomeUnknownError)


class CoordinationStore(Protocol):
    """A small, durable, versioned tree of nodes: ZooKeeper's model, embedded or real.

    Paths are absolute and slash separated. A transaction is atomic and is on disk when it returns. One value of this
    port is one session: its ephemeral nodes are there until it is closed or was not heard of for its timeout.
    `simulator.stores` has the conformance suite that every implementation passes.
    """

    @property
    def session(self) -> int:
        """The session's id, not 0. Another one after the store gave a session up."""

    @property
    def changes(self) -> int:
        """Another one once anything in the store has changed, whoever has changed it, and this session has heard of it,
        which takes a part of its timeout at most. It may be another one though nothing has.
        """

    def lease_end(self) -> float:
        """Until when (`Clock.monotonic`) nobody else can have what this session's ephemeral nodes hold, whatever
        happens meanwhile. Who leads by such a node stops before. Infinite where there is nobody else.
        """

    def watch(self, path: str, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back, in the event loop, after the node at `path` was made, set or deleted, after the list of its
        children changed, and after any time in which that may have been missed: the session was lost, say. Several
        changes may be one call; a read that follows the call sees what it is about. Returns what ends the watch.
        """

    async def get(self, path: str) -> Node | None: ...

    async def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Each as `get` gives it, for thousands at a time; not all as they were at one moment."""

    async def children(self, path: str) -> list[str]:
        """Names (not paths) of the direct children, sorted; empty when there is no such node."""

    async def transact(self, operations: Sequence[StoreOperation]) -> list[str]:
        """Apply all or nothing. Parents of a created node need not exist; those of a transaction that is refused may be
        left. Returns the operations' paths, those of sequence nodes with their numbers.

        Raises NoNodeError, NodeExistsError or BadVersionError for the first operation that does not hold, StoreError
        for a node with children that is deleted and for a child of an ephemeral node.
        """

    async def close(self) -> None: ...
