"""One client connection: moves bytes between its socket and its exchange, and requests from there to the answerer.

What is read when, which request has its turn and in which order answers leave is decided in `exchange.py`. Here are
the system calls (`recv_into`, `send`, `sendmsg`, `sendfile`), what the poller watches, the turns that a busy peer
leaves to others, and requests that wait.

A connection ends (`close`) when the peer hangs up, breaks the protocol, is silent for too long, or the broker
stops. A request under way is cancelled then if it only waits; any other is carried to its end.
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
    """What a connection takes of whoever made it, and tells it (`headrace/broker/net/listener.py`)."""

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
        """The connection has nothing more to do for now; needed while `is_draining` only."""

    def note_unsent(self, connection: Connection) -> None:
        """Its answers wait for a slow peer, or have waited. May close this connection, or others."""

    def forget(self, connection: Connection) -> None:
        """The connection has closed."""


class Connection:
    """See the module's contract. Made by its owner (`Network`)."""

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
        """A request is under way or waits for its turn, or an answer has not left."""
        return self._exchange.is_busy

    @property
    def unsent_bytes(self) -> int:
        """Of answers that have not left, in memory."""
        return self._exchange.unsent.memory_size

    @property
    def is_waiting_for_handler(self) -> bool:
        return self._exchange.is_under_way

    def has_hung_up_unheard(self) -> bool:
        """Whether the peer has gone while it was not read from, because requests of it wait already."""
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
        """Once the peer is authenticated it may send what everybody may."""
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
        """Answer the frames that wait, as long as answers come at once and leave, and others need not wait for it."""
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
                del answer  # views of the frame, perhaps
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
        """Read and answer nothing until the peer's time is over (KIP-219)."""
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
        pooled = frame if type(frame) is memoryview else None  # the request may still be looked at
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
                logger.info("a request of a connection that is gone failed: %s", error)
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
        """To the frame that was taken, before closing; what the socket does not take at once is lost."""
        whole = self._exchange.answer(answer)
        if whole is not None:
            self._send_at_once(whole)
        else:
            self._send()

    # -- writing -------------------------------------------------------------------------------------------

    def _send_at_once(self, data: bytes) -> None:
        """The short way of an answer in one piece when nothing else is to be sent; what is left is queued."""
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
        """Send what the socket takes; have the rest sent when it takes more."""
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
        """Close for a reason; or because an answer is missing, and those to later requests would be taken for it."""
        if isinstance(error, CloseConnection):
            self.close(str(error), error.fault)
            return
        logger.error("a request of %r could not be answered", self, exc_info=error)
        self.close("the server failed at a request of it, as its log says", Fault.SERVER)

    def close(self, reason: str, fault: Fault | None = None) -> None:
        """End the connection at once: unsent answers are lost, a request that only waits is cancelled. Without a fault
        it is nothing to tell of.
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
