"""A network in memory, under virtual time: machines, connections that behave as TCP's, and seeded faults.

A machine is the `Sockets` of a broker or a client. Bytes of a connection arrive in order, each part after its own
delay, so that several connections overtake one another. A suspended process gets no events; its system goes on to
accept connections and bytes until its buffers are full.

- `cut`: messages from one machine to another wait, as in TCP, until `heal`.
- `loss`: the chance that a connection breaks under a message, which has arrived or has not. One end is told, or both.
  An end that is not told has a half-open connection, and learns it by sending.
- `Machine.ended`: the process has ended; its connections are reset and it listens no more.
- `Machine.is_off`: the machine has no power. It sends nothing; messages to it wait until it is on again, and are
  answered by a reset then.

Messages under way have no owner (`loop.OWNER`): they arrive although their sender is dead.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import heapq
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context
from typing import Final

from headrace.broker.net.reply import Buffer
from headrace.broker.runtime.ports import Region, Stream, Watcher
from simulator.loop import SimulatedLoop

ONE_WAY_SECONDS = (0.0001, 0.003)
WINDOW_BYTES: Final = 256 * 1024
"""Maximum number of bytes of one direction that are under way or unread."""
FIRST_DESCRIPTOR: Final = 3
FIRST_FREE_PORT: Final = 40_000
_ROUNDING_SECONDS: Final = 1e-6
_FIN, _RESET = "fin", "reset"


class SimulatedNetwork:
    """The network; see the module. `delays` are the bounds of a message's time, in seconds. `hidden` is left out of
    the trace.
    """

    def __init__(
        self,
        loop: SimulatedLoop,
        *,
        loss: float = 0.0,
        delays: tuple[float, float] = ONE_WAY_SECONDS,
        hidden: bytes = b"",
    ) -> None:
        self.loop = loop
        self.loss = loss
        self.delays = delays
        self.machines: dict[str, Machine] = {}
        self._hidden = hidden
        self._cuts: set[tuple[str, str]] = set()
        self._waiting: list[Callable[[], None]] = []

    def machine(self, name: str) -> Machine:
        """Return the machine of this name."""
        machine = self.machines.get(name)
        if machine is None:
            machine = self.machines[name] = Machine(self, name)
        return machine

    # -- faults --------------------------------------------------------------------------------------------

    def cut(self, sender: str, receiver: str, *, both: bool = True) -> None:
        self.loop.note("cut", sender, receiver, both)
        self._cuts.add((sender, receiver))
        if both:
            self._cuts.add((receiver, sender))

    def heal(self, *cuts: tuple[str, str]) -> None:
        """Heal these cuts in both directions, or all."""
        self.loop.note("heal", *cuts)
        if cuts:
            self._cuts -= {*cuts, *((receiver, sender) for sender, receiver in cuts)}
        else:
            self._cuts.clear()
        self.wake()

    # -- ways ----------------------------------------------------------------------------------------------

    def is_cut(self, sender: str, receiver: str) -> bool:
        machine = self.machines.get(receiver)
        return (sender, receiver) in self._cuts or (machine is not None and machine.is_off)

    def delay(self) -> float:
        return self.loop.random.uniform(*self.delays)

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call back after something was healed and a message's delay."""
        self._waiting.append(go_on)

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for go_on in waiting:
            self.later(self.delay(), go_on)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.loop.call_later(seconds, call, context=Context())

    async def travel(self, sender: str, receiver: str) -> None:
        """Wait for the time that one message takes from one machine to another."""
        await asyncio.sleep(self.delay())
        while self.is_cut(sender, receiver):
            healed = self.loop.create_future()
            self.wait(lambda healed=healed: healed.done() or healed.set_result(None))  # type: ignore[misc]
            await healed

    def note(self, sender: str, receiver: str, what: bytes | str) -> None:
        if isinstance(what, bytes):
            shown = what.replace(self._hidden, b"") if self._hidden else what
            self.loop.note(sender, receiver, len(shown), zlib.crc32(shown))
        else:
            self.loop.note(sender, receiver, what)


class Machine:
    """The `Sockets` of one machine."""

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self.network = network
        self.name = name
        self.is_off = False
        self.listening: dict[int, SimulatedListeningSocket] = {}
        self.ends: dict[int, SimulatedEnd] = {}
        self._free: list[int] = []
        self._port = FIRST_FREE_PORT

    def __repr__(self) -> str:
        return f"<Machine {self.name}>"

    # -- faults --------------------------------------------------------------------------------------------

    def ended(self, *, silently: bool = False) -> None:
        """Note the end of the process. `silently`: the machine has no power, either, until `on`."""
        self.is_off = silently
        for listening in tuple(self.listening.values()):
            listening.close()
        for end in tuple(self.ends.values()):
            end.abandon(silently=silently)

    def on(self) -> None:
        if self.is_off:
            self.is_off = False
            self.network.wake()

    # -- Sockets -------------------------------------------------------------------------------------------

    def host_name(self) -> str:
        return self.name

    def poller(self, loop: asyncio.AbstractEventLoop) -> SimulatedPoller:
        return SimulatedPoller(self)

    def bind(self, host: str, port: int, *, receive_buffer_bytes: int) -> SimulatedListeningSocket:
        while not port or (port in self.listening and port == self._port):
            port = self._port = self._port + 1
        if port in self.listening:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        self.listening[port] = listening = SimulatedListeningSocket(self, host, port)
        return listening

    async def addresses(self, host: str) -> list[str]:
        return [host]

    async def connect(self, host: str, port: int) -> Stream:
        network = self.network
        await network.travel(self.name, host)
        listening = network.machine(host).listening.get(port)
        if listening is None or not listening.has_room:
            await network.travel(host, self.name)
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        near, far = SimulatedEnd(self), SimulatedEnd(listening.machine)
        near.other, far.other = far, near
        listening.arrived(far)
        try:
            await network.travel(host, self.name)
        except BaseException:
            near.close()
            raise
        return near

    def send_region(self, stream: Stream, region: Region, size_max: int) -> int:
        assert isinstance(stream, SimulatedEnd)
        data = region.read_at(0, min(size_max, max(1, stream.room)))
        if not data:
            raise OSError(errno.EIO, "a log file is shorter than the records that were read from it")
        return stream.send(data)

    def read_region(self, region: Region, room: memoryview) -> int:
        data = region.read_at(0, len(room))
        if not data:
            raise OSError(errno.EIO, "a log file is shorter than the records that were read from it")
        room[: len(data)] = data
        return len(data)

    def has_ended(self, stream: Stream) -> bool:
        assert isinstance(stream, SimulatedEnd)
        return stream.has_ended

    # -- descriptors ---------------------------------------------------------------------------------------

    def descriptor(self, end: SimulatedEnd) -> int:
        """Return the lowest free descriptor."""
        fd = heapq.heappop(self._free) if self._free else FIRST_DESCRIPTOR + len(self.ends)
        self.ends[fd] = end
        return fd

    def let_go(self, fd: int) -> None:
        if self.ends.pop(fd, None) is not None:
            heapq.heappush(self._free, fd)


class SimulatedListeningSocket:
    def __init__(self, machine: Machine, host: str, port: int) -> None:
        self.machine = machine
        self.host = host
        self.port = port
        self._backlog = 0
        self._waiting: deque[SimulatedEnd] = deque()
        self._on_acceptable: Callable[[], None] | None = None
        self._context = contextvars.copy_context()
        self._is_told = self._is_paused = False

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < self._backlog

    def arrived(self, end: SimulatedEnd) -> None:
        self._waiting.append(end)
        self._tell()

    def start(self, backlog: int, on_acceptable: Callable[[], None]) -> None:
        self._backlog = backlog
        self._on_acceptable = on_acceptable
        self._tell()

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._tell()

    def accept(self, *, send_buffer_bytes: int) -> tuple[Stream, str, int]:
        if not self._waiting:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        end = self._waiting.popleft()
        assert end.other is not None
        return end, end.other.machine.name, FIRST_FREE_PORT

    def turn_away(self) -> None:
        while self._waiting:
            self._waiting.popleft().close()

    def close(self) -> None:
        if self.machine.listening.get(self.port) is self:
            del self.machine.listening[self.port]
        self._backlog, self._on_acceptable = 0, None
        waiting, self._waiting = self._waiting, deque()
        for end in waiting:
            end.abandon()

    def _tell(self) -> None:
        if self._waiting and not self._is_told and not self._is_paused and self._on_acceptable is not None:
            self._is_told = True
            self.machine.network.loop.call_soon(self._told, context=self._context)

    def _told(self) -> None:
        self._is_told = False
        if self._on_acceptable is not None and not self._is_paused:
            self._on_acceptable()
            self._tell()


class SimulatedEnd:
    """One end of a connection: a `Stream`."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.other: SimulatedEnd | None = None
        self.poller: SimulatedPoller | None = None
        self._network = machine.network
        self._fd = machine.descriptor(self)
        self._is_gone = False
        self._incoming = bytearray()
        self._has_fin = False
        self._is_reset = False
        self._outstanding = 0  # sent bytes that are under way or unread
        self._on_the_way: deque[tuple[float, bytes | str]] = deque()
        self._latest = 0.0
        self._is_stuck = False

    @property
    def room(self) -> int:
        return WINDOW_BYTES - self._outstanding

    @property
    def has_ended(self) -> bool:
        return self._has_fin or self._is_reset

    @property
    def is_readable(self) -> bool:
        return bool(self._incoming) or self.has_ended

    @property
    def is_writable(self) -> bool:
        return self.room > 0 or self._is_reset

    # -- Stream --------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return -1 if self._is_gone else self._fd

    def recv_into(self, buffer: memoryview, /) -> int:
        self._require()
        if not self._incoming:
            if self._is_reset:
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            if self._has_fin:
                return 0
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        count = min(len(buffer), len(self._incoming))
        buffer[:count] = self._incoming[:count]
        del self._incoming[:count]
        if self.other is not None:
            self.other.was_read(count)
        return count

    def send(self, data: Buffer, /) -> int:
        self._require()
        if self._is_reset:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        taken = bytes(data[: max(0, self.room)])
        if not taken:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        self._outstanding += len(taken)
        self._post(taken)
        return len(taken)

    def sendmsg(self, buffers: Iterable[Buffer], ancillary: tuple[()] = (), flags: int = 0, /) -> int:
        return self.send(b"".join(buffers))

    def close(self) -> None:
        """Close as a process does: bytes under way arrive."""
        if not self._is_gone:
            self._leave()
            if not self._is_reset:
                self._post(_RESET if self._incoming else _FIN)

    def abandon(self, *, silently: bool = False) -> None:
        """Close as a dead process does, or a machine without power."""
        if self._is_gone:
            return
        self._leave()
        if silently:
            kept = self._network.loop.random.randrange(len(self._on_the_way) + 1)
            while len(self._on_the_way) > kept:
                self._on_the_way.pop()
        elif not self._is_reset:
            self._post(_RESET)

    def _leave(self) -> None:
        self._is_gone = True
        self.machine.let_go(self._fd)

    def _require(self) -> None:
        if self._is_gone:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    # -- the way to the other end --------------------------------------------------------------------------

    def _post(self, what: bytes | str) -> None:
        loop = self._network.loop
        self._latest = max(self._latest, loop.time() + self._network.delay())
        self._on_the_way.append((self._latest, what))
        loop.call_at(self._latest, self._flow, context=Context())

    def _flow(self) -> None:
        network, other = self._network, self.other
        now = network.loop.time() + _ROUNDING_SECONDS
        while not self._is_stuck and other is not None and self._on_the_way and self._on_the_way[0][0] <= now:
            if network.is_cut(self.machine.name, other.machine.name):
                self._is_stuck = True
                network.wait(self._go_on)
                return
            _, what = self._on_the_way.popleft()
            self._arrive(other, what)

    def _go_on(self) -> None:
        self._is_stuck = False
        self._flow()

    def _arrive(self, other: SimulatedEnd, what: bytes | str) -> None:
        network = self._network
        network.note(self.machine.name, other.machine.name, what)
        random = network.loop.random
        breaks = bool(network.loss) and isinstance(what, bytes) and random.random() < network.loss
        if not breaks or random.random() < 0.5:
            other.hears(what)
        if breaks:
            told = random.choice(((self,), (other,), (self, other)))
            network.note(self.machine.name, other.machine.name, f"breaks, {len(told)} told")
            self._on_the_way.clear()  # bytes behind a lost part are lost too
            if self._is_gone:
                self._post(_RESET)
            for end in told:
                end.reset()

    def hears(self, what: bytes | str) -> None:
        """Handle a message that has arrived at this end."""
        if what == _RESET:
            self.reset()
        elif self._is_gone or self._is_reset:
            if isinstance(what, bytes):
                self._post(_RESET)  # the connection does not exist
        else:
            if isinstance(what, bytes):
                self._incoming += what
            else:
                self._has_fin = True
            if self.poller is not None:
                self.poller.tell_at_once(self._fd)

    def reset(self) -> None:
        if not self._is_reset and not self._is_gone:
            self._is_reset = True
            self._on_the_way.clear()
            self._tell()

    def was_read(self, count: int) -> None:
        was_full = self.room <= 0
        self._outstanding -= count
        if was_full and self.poller is not None:
            self._network.later(self._network.delay(), self._tell)

    def _tell(self) -> None:
        if self.poller is not None:
            self.poller.tell(self._fd)


class _Watched:
    __slots__ = ("end", "is_told", "reading", "watcher", "writing")

    def __init__(self, end: SimulatedEnd, watcher: Watcher) -> None:
        self.end = end
        self.watcher = watcher
        self.reading, self.writing, self.is_told = True, False, False

    @property
    def is_ready(self) -> bool:
        return (self.reading and self.end.is_readable) or (self.writing and self.end.is_writable)


class SimulatedPoller:
    """A poller that calls its watchers in the context of its creator, in turns of the loop."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._watched: dict[int, _Watched] = {}
        self._context = contextvars.copy_context()

    def add(self, fd: int, watcher: Watcher) -> None:
        end = self._machine.ends[fd]
        end.poller = self
        self._watched[fd] = _Watched(end, watcher)
        self.tell(fd)

    def change(self, fd: int, *, reading: bool, writing: bool) -> None:
        watched = self._watched[fd]
        watched.reading, watched.writing = reading, writing
        self.tell(fd)

    def remove(self, fd: int) -> None:
        watched = self._watched.pop(fd, None)
        if watched is not None:
            watched.end.poller = None

    def tell(self, fd: int) -> None:
        """Call the watcher of this end after a change."""
        watched = self._watched.get(fd)
        if watched is not None and not watched.is_told and watched.is_ready:
            watched.is_told = True
            self._machine.network.loop.call_soon(self._told, fd, watched, context=self._context)

    def tell_at_once(self, fd: int) -> None:
        """Call the watcher at once, in this turn, if no callback is running."""
        watched = self._watched.get(fd)
        if watched is None or watched.is_told or not watched.is_ready:
            return
        watched.is_told = True
        self._machine.network.loop.run_now(self._told, fd, watched, context=self._context)

    def _told(self, fd: int, watched: _Watched) -> None:
        watched.is_told = False
        if self._watched.get(fd) is not watched:
            return
        if watched.reading and watched.end.is_readable:
            watched.watcher.on_readable()
        if self._watched.get(fd) is watched:
            if watched.writing and watched.end.is_writable:
                watched.watcher.on_writable()
            if self._watched.get(fd) is watched:
                self.tell(fd)
