"""One client connection: it moves bytes between its socket and its exchange, and requests to the answerer.

`exchange.py` decides when to read, which request is next, and the order of answers. This module has the system calls
(`recv_into`, `send`, `sendmsg`, `sendfile`), the poller's watches, the turns of busy peers, and waiting requests.

A connection ends (`close`) when the peer disconnects, breaks the protocol or is idle for too long, or when the broker
stops. A request in progress is then cancelled if it only waits; any other is completed.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from typing import Any, Protocol

from headrace.broker.net.exchange import Exchange
from headrace.broker.net.faults import LEVELS, Fault
from headrace.broker.net.limits import Limits
from headrace.broker.net.pool import FramePool
from headrace.broker.net.reply import Answerer, CloseConnection, Part, Peer, Pending
from headrace.broker.runtime.ports import Poller, Sockets, Stream

logger = logging.getLogger("headrace.net")

_MSG_MORE = getattr(socket, "MSG_MORE", 0)
"""Linux only: do not send the header of a sendfile in a packet of its own."""


class Owner(Protocol):
    """The owner of a connection, as far as connections need it (`headrace/broker/net/listener.py`)."""

    answerer: Answerer
    limits: Limits
    loop: asyncio.AbstractEventLoop
    poller: Poller
    pool: FramePool
    scratch: memoryview
    sockets: Sockets
    is_draining: bool
    faults: Counter[Fault]
    requests: dict[asyncio.Future[Any], None]

    def on_rest(self) -> None:
        """The connection has nothing more to do for now; only needed while `is_draining`."""

    def note_unsent(self, connection: Connection) -> None:
        """Note that its answers wait for a slow peer, or have left. May close this connection, or others."""

    def forget(self, connection: Connection) -> None:
        """Remove a connection that has closed."""


class Connection:
    """One client connection. Its owner (`Network`) makes it."""

    __slots__ = (
        "_exchange",
        "_fd",
        "_is_stranger",
        "_may_cancel",
        "_network",
        "_pending",
        "_reading",
        "_sock",
        "_writing",
        "closed",
        "last_active",
        "peer",
    )

    def __init__(self, network: Owner, sock: Stream, peer: Peer) -> None:
        self.peer = peer
        self.closed = False
        self.last_active = network.loop.time()
        self._network = network
        self._sock = sock
        self._fd = sock.fileno()
        self._exchange = Exchange(network.limits, network.pool, network.scratch)
        self._is_stranger = peer.session is None
        if self._is_stranger:
            self._exchange.incoming.size_max = network.limits.stranger_request_bytes_max
        self._pending: asyncio.Future[Any] | None = None
        self._may_cancel = False
        self._reading = True
        self._writing = False
        network.poller.add(self._fd, self)

    def __repr__(self) -> str:
        return f"<Connection {self.peer.connection_id} of {self.peer.host}:{self.peer.port}>"

    @property
    def is_busy(self) -> bool:
        """Return whether a request is in progress or waits for its turn, or an answer has not left."""
        return self._exchange.is_busy

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers in memory that have not left."""
        return self._exchange.unsent.memory_size

    @property
    def is_waiting_for_handler(self) -> bool:
        return self._exchange.is_under_way

    def has_hung_up_unheard(self) -> bool:
        """Return whether the peer has disconnected while reading was paused because its requests wait."""
        if self._reading or self.closed:
            return False
        return self._network.sockets.has_ended(self._sock)

    # -- reading -------------------------------------------------------------------------------------------

    def on_readable(self) -> None:
        exchange = self._exchange
        if exchange.frames and exchange.is_full:
            self._stop_reading()
            return
        if self._is_stranger:
            self._meet()
        incoming = exchange.incoming
        try:
            count = self._sock.recv_into(incoming.room())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}")
            return
        if count == 0:
            self.close("closed by the peer")
            return
        self.last_active = self._network.loop.time()
        try:
            incoming.received(count)
            if exchange.frames:
                self._work()
        except Exception as error:  # noqa: BLE001 - ends this connection
            self._end_by(error)

    def _meet(self) -> None:
        """After authentication, allow requests of the full size."""
        if self.peer.session is not None:
            self._is_stranger = False
            self._exchange.incoming.size_max = self._network.limits.request_bytes_max

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._network.poller.change(self._fd, reading=False, writing=self._writing)

    def _resume_reading(self) -> None:
        if not self._reading and not self._exchange.is_muted:
            self._reading = True
            self._network.poller.change(self._fd, reading=True, writing=self._writing)

    # -- answering -----------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Answer waiting frames while answers come at once and leave, for at most one turn."""
        exchange = self._exchange
        frames = exchange.frames
        unsent = exchange.unsent
        network = self._network
        limits = network.limits
        turn_ends = network.loop.time() + limits.turn_seconds if len(frames) > 1 else 0.0
        while frames:
            if unsent.size > limits.unsent_bytes_max:
                self._send()
            frame = exchange.take()
            if frame is None:
                break
            answer = network.answerer(self.peer, frame)
            if type(answer) is Pending:
                self._wait_for(answer, frame)
                break
            whole = exchange.answer(answer)  # type: ignore[arg-type]
            if whole is not None:
                self._send_at_once(whole)
            if self.peer.throttle_seconds:
                self._mute()
            if type(frame) is memoryview:
                del answer  # it may have views of the frame
                exchange.incoming.release(frame)
            if len(frames) > 1 and network.loop.time() >= turn_ends and not exchange.is_muted:
                exchange.rest()
                network.loop.call_soon(self._go_on)
                break
        if unsent.size and not self._writing:
            self._send()
        if not self._reading and not frames and not self.closed:
            self._resume_reading()
        if network.is_draining and not exchange.is_busy:
            network.on_rest()
        if self._writing:
            network.note_unsent(self)

    def _go_on(self) -> None:
        """Work again after a rest, or after the time for which the peer was muted."""
        if self.closed:
            self._network.on_rest()
            return
        self._exchange.go_on()
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - ends this connection
            self._end_by(error)

    def _mute(self) -> None:
        """Read and answer nothing while the peer is throttled (KIP-219)."""
        seconds, self.peer.throttle_seconds = self.peer.throttle_seconds, 0.0
        if not self.closed:
            self._exchange.mute()
            self._stop_reading()
            self._network.loop.call_later(seconds, self._unmute)

    def _unmute(self) -> None:
        if not self.closed:
            self.last_active = self._network.loop.time()
            self._go_on()

    def _wait_for(self, pending: Pending, frame: bytes | memoryview) -> None:
        pooled = frame if type(frame) is memoryview else None  # the request may still use it
        future = asyncio.ensure_future(pending.outcome, loop=self._network.loop)
        self._exchange.postpone()
        self._pending = future
        self._may_cancel = pending.may_cancel
        self._network.requests[future] = None
        future.add_done_callback(lambda done: self._finish(pending, pooled, done))

    def _finish(self, pending: Pending, frame: memoryview | None, outcome: asyncio.Future[Any]) -> None:
        exchange = self._exchange
        self._pending = None
        self._network.requests.pop(outcome, None)
        if self.closed:
            exchange.answer(None)
            if not outcome.cancelled() and (error := outcome.exception()) is not None:
                logger.info("a request of a closed connection failed: %s", error)
            self._network.on_rest()
            return
        try:
            whole = exchange.answer(pending.finish(outcome))
            if whole is not None:
                self._send_at_once(whole)
            if self.peer.throttle_seconds:
                self._mute()
            if frame is not None:
                exchange.incoming.release(frame)
            self._work()
        except asyncio.CancelledError:
            self.close("its request was cancelled")
        except Exception as error:  # noqa: BLE001 - ends this connection
            if isinstance(error, CloseConnection) and error.answer is not None:
                self._say_last(error.answer)
            self._end_by(error)

    def _say_last(self, answer: list[Part]) -> None:
        """Answer the frame that was taken, before closing. Bytes that the socket does not take at once are lost."""
        whole = self._exchange.answer(answer)
        if whole is not None:
            self._send_at_once(whole)
        else:
            self._send()

    # -- writing -------------------------------------------------------------------------------------------

    def _send_at_once(self, data: bytes) -> None:
        """Send an answer in one piece when nothing else is unsent; the rest is queued."""
        try:
            sent = self._sock.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}")
            return
        if sent < len(data):
            self._exchange.unsent.put(memoryview(data)[sent:])

    def _send(self) -> None:
        """Send as much as the socket takes; the rest when it takes more."""
        unsent = self._exchange.unsent
        limits = self._network.limits
        enough = unsent.size - limits.sent_bytes_per_turn
        try:
            while unsent.size:
                if unsent.size < enough:
                    raise BlockingIOError  # as if the socket took no more: others have their turn first
                buffers, region = unsent.head(limits.buffers_per_call)
                if region is None:
                    sent = self._sock.send(buffers[0]) if len(buffers) == 1 else self._sock.sendmsg(buffers)
                elif buffers:
                    sent = self._sock.sendmsg(buffers, (), _MSG_MORE)
                else:
                    sent = self._network.sockets.send_region(self._sock, region, limits.file_bytes_per_call)
                unsent.sent(sent)
        except (BlockingIOError, InterruptedError):
            self._watch_writable(True)
            return
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}")
            return
        self._watch_writable(False)

    def _watch_writable(self, wanted: bool) -> None:
        if self._writing is not wanted:
            self._writing = wanted
            self._network.poller.change(self._fd, reading=self._reading, writing=wanted)

    def on_writable(self) -> None:
        self.last_active = self._network.loop.time()
        exchange = self._exchange
        self._send()
        if not self.closed and exchange.frames and not exchange.is_under_way:
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 - ends this connection
                self._end_by(error)
        elif not self.closed and not exchange.is_busy:
            self._network.on_rest()
            self._resume_reading()
        self._network.note_unsent(self)

    # -- the end -------------------------------------------------------------------------------------------

    def _end_by(self, error: Exception) -> None:
        """Close because of an error. Without an answer, later answers would be taken for it."""
        if isinstance(error, CloseConnection):
            self.close(str(error), error.fault)
            return
        logger.error("a request of %r could not be answered", self, exc_info=error)
        self.close("the broker failed at one of its requests; see the broker's log", Fault.SERVER)

    def close(self, reason: str, fault: Fault | None = None) -> None:
        """End the connection at once: unsent answers are lost, a request that only waits is cancelled. Without a fault
        this is only logged for debugging.
        """
        if self.closed:
            return
        self.closed = True
        peer = self.peer
        if fault is not None:
            self._network.faults[fault] += 1
        logger.log(
            logging.DEBUG if fault is None else LEVELS[fault],
            "connection %d of %s:%d: %s",
            peer.connection_id,
            peer.host,
            peer.port,
            reason,
            extra={"kind": fault},
        )
        self._network.poller.remove(self._fd)
        self._sock.close()
        self._exchange.clear()
        if self._pending is not None and self._may_cancel:
            self._pending.cancel()
        self._network.forget(self)
