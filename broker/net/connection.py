"""One client connection: bytes in, frames out to the answerer, answers back in the order of their requests.

Reading. What arrives goes into a scratch buffer shared by all connections, so that an idle one costs no
memory. Whole frames are cut out of it; a frame that continues beyond it gets a buffer of its own, which grows
with what has come, and the rest is received straight into that. One request is under way at a time. While it
is, or while the peer does not take its answers, reading stops as soon as one frame waits: a peer that sends
without end fills its own socket, not our memory.

Writing. Answers are queues of buffers and file regions, sent with `sendmsg` and `sendfile` as far as the
socket takes them; the rest waits for the socket to become writable. Nothing is copied on the way.

A connection ends (`close`) when the peer hangs up, breaks the protocol, is silent for too long, or the broker
stops. A request under way is cancelled then if it only waits; any other is carried to its end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from broker.net.pool import SMALLEST
from broker.net.reply import CloseConnection, Part, Peer, Pending, Region

if TYPE_CHECKING:
    from broker.net.listener import Network

logger = logging.getLogger("headrace.net")

_LENGTH = struct.Struct(">i")
_MSG_MORE = getattr(
    socket, "MSG_MORE", 0
)  # Linux only: do not send the header of a sendfile in a packet of its own


class Connection:
    """See the module's contract. Made by `Network`, which owns it."""

    __slots__ = (
        "_announced",
        "_assembling",
        "_current",
        "_fd",
        "_filled",
        "_frames",
        "_largest",
        "_may_cancel",
        "_network",
        "_pending",
        "_prefix",
        "_reading",
        "_rests",
        "_sock",
        "_unsent",
        "_unsent_bytes",
        "_writing",
        "closed",
        "last_active",
        "peer",
    )

    def __init__(self, network: Network, sock: socket.socket, peer: Peer) -> None:
        self.peer = peer
        self.closed = False
        self.last_active = network.loop.time()
        self._network = network
        self._sock = sock
        self._fd = sock.fileno()
        self._frames: deque[bytes | memoryview] = deque()  # whole ones; a view is of a buffer of the pool
        self._current: memoryview | None = None  # the pool's frame that the pending request may still look at
        self._prefix = b""  # the first bytes of a length that was cut off
        self._assembling: memoryview | None = None  # a frame of which the first `_filled` bytes are here
        self._filled = 0
        self._announced = 0  # the size that frame will have
        self._largest = 0  # of the frames that came whole
        self._pending: asyncio.Future[Any] | None = None
        self._may_cancel = False
        self._unsent: deque[Part] = deque()
        self._unsent_bytes = 0
        self._reading = True
        self._rests = False  # frames wait although nothing hinders: others had to be served in between
        self._writing = False
        network.poller.add(self._fd, self)

    def __repr__(self) -> str:
        return f"<Connection {self.peer.connection_id} of {self.peer.host}:{self.peer.port}>"

    @property
    def is_busy(self) -> bool:
        """A request is under way or waits for its turn, or an answer has not left."""
        return self._pending is not None or self._unsent_bytes > 0 or self._rests

    @property
    def is_waiting_for_handler(self) -> bool:
        return self._pending is not None

    def has_hung_up_unheard(self) -> bool:
        """Whether the peer has gone while it was not read from, because requests of it wait already."""
        if self._reading or self.closed:
            return False
        ends = select.poll()
        ends.register(self._fd, getattr(select, "POLLRDHUP", 0))
        return bool(ends.poll(0))

    # -- reading -------------------------------------------------------------------------------------------

    def on_readable(self) -> None:
        if self._frames and (self._pending is not None or self._unsent_bytes or self._rests):
            self._stop_reading()
            return
        view = self._assembling
        try:
            if view is not None:
                count = self._sock.recv_into(view[self._filled :])
            else:
                count = self._sock.recv_into(self._network.scratch)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}", logging.DEBUG)
            return
        if count == 0:
            self.close("closed by the peer", logging.DEBUG)
            return
        self.last_active = self._network.loop.time()
        try:
            if view is not None:
                self._filled += count
                if self._filled < len(view):
                    return
                if self._filled < self._announced:
                    self._grow(view)
                    return
                self._assembling = None
                self._largest = max(self._largest, self._announced)
                self._frames.append(view)
            else:
                self._split(count)
            self._work()
        except CloseConnection as reason:
            self.close(str(reason), logging.WARNING)

    def _split(self, count: int) -> None:
        """Cut what is in the scratch buffer into frames."""
        network = self._network
        scratch = network.scratch
        if self._prefix:
            # A length cut in two is rare; joining costs a copy of this one read.
            joined = memoryview(self._prefix + bytes(scratch[:count]))
            self._prefix = b""
            scratch, count = joined, len(joined)
        position = 0
        while count - position >= 4:
            (size,) = _LENGTH.unpack_from(scratch, position)
            if not 0 < size <= network.limits.request_bytes_max:
                raise CloseConnection(
                    f"a frame of {size} bytes was announced; "
                    f"1 to {network.limits.request_bytes_max} (socket.request.max.bytes) are accepted"
                )
            position += 4
            end = position + size
            if end <= count:
                self._frames.append(bytes(scratch[position:end]))
                position = end
                continue
            self._announced = size
            self._filled = count - position
            self._assembling = self._room()
            self._assembling[: self._filled] = scratch[position:count]
            return
        self._prefix = bytes(scratch[position:count])

    def _room(self) -> memoryview:
        """A buffer for the frame that is arriving.

        Its whole size at once only for a peer that has sent as much before: four bytes that announce 100 MiB must
        not cost 100 MiB. Others get room as they fill it.
        """
        size = min(self._announced, max(SMALLEST, 4 * self._filled, self._largest))
        return memoryview(self._network.pool.acquire(size))[:size]

    def _grow(self, view: memoryview) -> None:
        self._assembling = self._room()
        self._assembling[: self._filled] = view
        self._recycle(view)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._network.poller.change(self._fd, reading=False, writing=self._writing)

    def _resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._network.poller.change(self._fd, reading=True, writing=self._writing)

    # -- answering -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Answer the frames that wait, as long as answers come at once and leave, and others need not wait for it."""
        frames = self._frames
        network = self._network
        answerer = network.answerer
        unsent_bytes_max = network.limits.unsent_bytes_max
        until = 0.0
        while frames and self._pending is None and not self._rests:
            if self._unsent_bytes > unsent_bytes_max:
                self._send()
                if self.closed or self._unsent_bytes > unsent_bytes_max:
                    break
            if len(frames) > 1:
                now = network.loop.time()
                until = until or now + network.limits.turn_seconds
                if now >= until:
                    self._rests = True
                    network.loop.call_soon(self._go_on)
                    break
            frame = frames.popleft()
            answer = answerer(self.peer, frame)
            if type(answer) is Pending:
                self._wait_for(answer, frame)
                break
            if answer is not None:
                parts: list[Part] = answer  # type: ignore[assignment]
                first = parts[0]
                if len(parts) == 1 and type(first) is bytes and not frames and not self._unsent_bytes:
                    self._send_at_once(first)
                else:
                    self._enqueue(parts)
                del parts, first  # views of the frame, perhaps
                answer = None
            if type(frame) is memoryview:
                self._recycle(frame)
        if self._unsent_bytes and not self._writing:
            self._send()
        if not self._reading and not frames and not self.closed:
            self._resume_reading()
        if network.is_draining and not self.is_busy:
            network.on_rest()

    def _go_on(self) -> None:
        self._rests = False
        if self.closed:
            self._network.on_rest()
            return
        try:
            self._work()
        except CloseConnection as reason:
            self.close(str(reason), logging.WARNING)

    def _wait_for(self, pending: Pending, frame: bytes | memoryview) -> None:
        if type(frame) is memoryview:
            self._current = frame
        future = asyncio.ensure_future(pending.outcome, loop=self._network.loop)
        self._pending = future
        self._may_cancel = pending.may_cancel
        self._network.requests.add(future)
        future.add_done_callback(lambda done: self._finish(pending, done))

    def _finish(self, pending: Pending, outcome: asyncio.Future[Any]) -> None:
        self._pending = None
        self._network.requests.discard(outcome)
        frame, self._current = self._current, None
        if self.closed:
            if not outcome.cancelled() and (error := outcome.exception()) is not None:
                logger.info("a request of a connection that is gone failed: %s", error)
            self._network.on_rest()
            return
        try:
            answer = pending.finish(outcome)
            if answer is not None:
                self._enqueue(answer)
            if frame is not None:
                self._recycle(frame)
            self._work()
        except CloseConnection as reason:
            self.close(str(reason), logging.WARNING)

    def _recycle(self, frame: memoryview) -> None:
        buffer = frame.obj
        try:
            frame.release()
        except BufferError:
            return  # somebody keeps a view of the request, and with it the memory
        self._network.pool.release(buffer)  # type: ignore[arg-type]

    # -- writing -------------------------------------------------------------------------------------------

    def _enqueue(self, parts: list[Part]) -> None:
        first = parts[0]
        if len(parts) == 1 and type(first) is bytes:
            size = len(first)
            self._unsent.append(size.to_bytes(4, "big") + first)
            self._unsent_bytes += size + 4
            return
        size = 0
        for part in parts:
            if isinstance(part, bytes):
                size += len(part)
            elif isinstance(part, (bytearray, memoryview)) or not hasattr(part, "parts"):
                size += _size(part)
            else:
                self._enqueue(list(_flat(parts)))
                return
        head = size.to_bytes(4, "big")
        if type(first) is bytes:
            parts[0] = head + first
        else:
            parts.insert(0, head)
        self._unsent.extend(parts)
        self._unsent_bytes += size + 4

    def _send_at_once(self, body: bytes) -> None:
        """The short way of an answer in one piece when nothing else is to be sent; what is left is enqueued."""
        size = len(body)
        data = size.to_bytes(4, "big") + body
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}", logging.DEBUG)
            return
        if sent < size + 4:
            self._unsent.append(memoryview(data)[sent:])
            self._unsent_bytes = size + 4 - sent

    def _send(self) -> None:
        """Send what the socket takes; have the rest sent when it takes more."""
        unsent = self._unsent
        limits = self._network.limits
        enough = self._unsent_bytes - limits.sent_bytes_per_turn
        try:
            while unsent:
                if self._unsent_bytes < enough:
                    raise BlockingIOError  # as if the socket took no more: others have their turn first
                first = unsent[0]
                if isinstance(first, (bytes, bytearray, memoryview)):
                    self._send_buffers(limits.buffers_per_call)
                else:
                    self._send_region(first, limits.file_bytes_per_call)
        except (BlockingIOError, InterruptedError):
            if not self._writing:
                self._writing = True
                self._network.poller.change(self._fd, reading=self._reading, writing=True)
            return
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}", logging.DEBUG)
            return
        if self._writing:
            self._writing = False
            self._network.poller.change(self._fd, reading=self._reading, writing=False)

    def _send_buffers(self, count_max: int) -> None:
        unsent = self._unsent
        if len(unsent) == 1:
            sent = self._sock.send(unsent[0])  # type: ignore[arg-type]
        else:
            buffers: list[Any] = []
            flags = 0
            for part in unsent:
                if not isinstance(part, (bytes, bytearray, memoryview)):
                    flags = _MSG_MORE
                    break
                if len(buffers) == count_max:
                    break
                buffers.append(part)
            sent = self._sock.sendmsg(buffers, (), flags)
        self._unsent_bytes -= sent
        if not self._unsent_bytes:
            unsent.clear()
            return
        while sent:
            part = unsent[0]
            size = _size(part)
            if sent < size:
                unsent[0] = memoryview(part)[sent:]  # type: ignore[arg-type]
                return
            sent -= size
            unsent.popleft()
        while unsent and not _size(unsent[0]):
            unsent.popleft()

    def _send_region(self, region: Region, count_max: int) -> None:
        size = region.size
        if size:
            sent = os.sendfile(self._fd, region.fileno(), region.position, min(size, count_max))
            if sent == 0:
                raise OSError(5, "a log file is shorter than the records that were read from it")
            self._unsent_bytes -= sent
            if sent < size:
                self._unsent[0] = region = _RestOfRegion.of(region)
                region.position += sent
                region.size -= sent
                return
        self._unsent.popleft()

    def on_writable(self) -> None:
        self.last_active = self._network.loop.time()
        self._send()
        if not self.closed and self._frames and self._pending is None:
            try:
                self._work()
            except CloseConnection as reason:
                self.close(str(reason), logging.WARNING)
        elif not self.closed and not self.is_busy:
            self._network.on_rest()
            self._resume_reading()

    # -- the end -------------------------------------------------------------------------------------------

    def close(self, reason: str, level: int = logging.INFO) -> None:
        """End the connection at once: unsent answers are lost, a request that only waits is cancelled."""
        if self.closed:
            return
        self.closed = True
        logger.log(
            level,
            "connection %d of %s:%d: %s",
            self.peer.connection_id,
            self.peer.host,
            self.peer.port,
            reason,
        )
        self._network.poller.remove(self._fd)
        self._sock.close()
        self._frames.clear()
        self._unsent.clear()
        self._unsent_bytes = 0
        self._rests = False
        self._assembling = None
        if self._pending is not None and self._may_cancel:
            self._pending.cancel()
        self._network.forget(self)


class _RestOfRegion:
    """What is still to be sent of a region. Keeps the original, and so its file, alive."""

    __slots__ = ("_region", "position", "size")

    def __init__(self, region: Region) -> None:
        self._region = region
        self.position = region.position
        self.size = region.size

    @classmethod
    def of(cls, region: Region) -> _RestOfRegion:
        return region if isinstance(region, cls) else cls(region)

    def fileno(self) -> int:
        return self._region.fileno()


def _flat(parts: Iterable[Part]) -> Iterator[Part]:
    """Parts that are made of parts (`.parts`) give theirs."""
    for part in parts:
        inner = None if isinstance(part, (bytes, bytearray, memoryview)) else getattr(part, "parts", None)
        if inner is None:
            yield part
        else:
            yield from _flat(inner)


def _size(part: Part) -> int:
    if isinstance(part, (bytes, bytearray)):
        return len(part)
    return part.nbytes if isinstance(part, memoryview) else part.size
