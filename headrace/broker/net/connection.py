"""One client connection: it takes requests to the answerer, and answers to the peer.

`exchange.py` decides when to read, which request is next, and the order of answers. A transport moves the bytes, as
they are (`transport.py`) or encrypted (`tls_transport.py`). This module has the poller's watches, the turns of busy
peers, and waiting requests.

A connection ends (`close`) when the peer disconnects, breaks the protocol or is idle for too long, or when the broker
stops. A request in progress is then cancelled if it only waits; any other is completed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any, Protocol

from headrace.broker.net.exchange import Exchange
from headrace.broker.net.faults import LEVELS, Fault
from headrace.broker.net.pool import FramePool
from headrace.broker.net.reply import Answerer, CloseConnection, Part, Peer, Pending
from headrace.broker.net.tls import TlsStream
from headrace.broker.net.tls_transport import TlsTransport
from headrace.broker.net.transport import PlainTransport, Transport, TransportOwner
from headrace.broker.runtime.ports import Poller, Stream, Watcher

logger = logging.getLogger("headrace.net")


class Owner(TransportOwner, Protocol):
    """The owner of a connection, as far as connections need it (`headrace/broker/net/listener.py`)."""

    answerer: Answerer
    loop: asyncio.AbstractEventLoop
    poller: Poller
    pool: FramePool
    is_draining: bool
    faults: Counter[Fault]
    requests: dict[asyncio.Future[Any], None]

    def on_idle(self) -> None:
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
        "_is_unauthenticated",
        "_may_cancel",
        "_network",
        "_pending",
        "_reading",
        "_sock",
        "_transport",
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
        self._exchange = exchange = Exchange(network.limits, network.pool, network.scratch)
        self._transport: Transport = PlainTransport(network, sock, exchange.incoming, exchange.unsent)
        self._is_unauthenticated = peer.session is None
        if self._is_unauthenticated:
            exchange.incoming.size_max = network.limits.unauthenticated_request_bytes_max
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
        return self._exchange.is_pending

    def has_disconnected_while_paused(self) -> bool:
        """Return whether the peer has disconnected while reading was paused because its requests wait."""
        if self._reading or self.closed:
            return False
        return self._network.sockets.has_ended(self._sock)

    def encrypt(self, stream: TlsStream) -> TlsTransport:
        """Continue with TLS."""
        exchange = self._exchange
        transport = TlsTransport(self._network, self._sock, exchange.incoming, exchange.unsent, stream)
        self._transport = transport
        return transport

    def watch(self, watcher: Watcher) -> None:
        """Give the socket's events to `watcher`: the connection itself, or the handshake that goes before it."""
        poller = self._network.poller
        poller.remove(self._fd)
        poller.add(self._fd, watcher)
        poller.change(self._fd, reading=self._reading, writing=self._writing)

    # -- reading -------------------------------------------------------------------------------------------

    def on_readable(self) -> None:
        exchange = self._exchange
        if exchange.frames and exchange.is_full:
            self.stop_reading()
            return
        if self._is_unauthenticated:
            self._check_authenticated()
        transport = self._transport
        try:
            if not transport.receive():
                self.close("closed by the peer")
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}")
            return
        except Exception as error:  # noqa: BLE001 - ends this connection
            self._end_by(error)
            return
        self.last_active = self._network.loop.time()
        if exchange.frames:
            self._work_on()
        if transport.has_ended:
            self.close("closed by the peer")

    def _check_authenticated(self) -> None:
        """After authentication, allow requests of the full size."""
        if self.peer.session is not None:
            self._is_unauthenticated = False
            self._exchange.incoming.size_max = self._network.limits.request_bytes_max

    def stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._network.poller.change(self._fd, reading=False, writing=self._writing)

    def resume_reading(self) -> None:
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
                self.send()
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
                exchange.yield_turn()
                network.loop.call_soon(self._resume)
                break
        if unsent.size and not self._writing:
            self.send()
        if not self._reading and not frames and not self.closed:
            self.resume_reading()
        if network.is_draining and not exchange.is_busy:
            network.on_idle()
        if self._writing:
            network.note_unsent(self)

    def _work_on(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - ends this connection
            self._end_by(error)

    def _resume(self) -> None:
        """Work again in the next turn, or after the time for which the peer was muted."""
        if self.closed:
            self._network.on_idle()
            return
        self._exchange.resume()
        self._work_on()

    def _mute(self) -> None:
        """Read and answer nothing while the peer is throttled (KIP-219)."""
        seconds, self.peer.throttle_seconds = self.peer.throttle_seconds, 0.0
        if not self.closed:
            self._exchange.mute()
            self.stop_reading()
            self._network.loop.call_later(seconds, self._unmute)

    def _unmute(self) -> None:
        if not self.closed:
            self.last_active = self._network.loop.time()
            self._resume()

    def _wait_for(self, pending: Pending, frame: bytes | memoryview) -> None:
        pooled = frame if type(frame) is memoryview else None  # the request may still use it
        future = asyncio.ensure_future(pending.outcome, loop=self._network.loop)
        self._exchange.defer()
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
            self._network.on_idle()
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
                self._send_last(error.answer)
            self._end_by(error)

    def _send_last(self, answer: list[Part]) -> None:
        """Answer the frame that was taken, before closing. Bytes that the socket does not take at once are lost."""
        whole = self._exchange.answer(answer)
        if whole is not None:
            self._send_at_once(whole)
        if self._exchange.unsent.size:
            self.send()

    # -- writing -------------------------------------------------------------------------------------------

    def _send_at_once(self, data: bytes) -> None:
        """Send an answer in one piece when nothing else is unsent; the rest is queued."""
        try:
            sent = self._transport.send_at_once(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}")
            return
        if sent < len(data):
            self._exchange.unsent.put(memoryview(data)[sent:])

    def send(self) -> None:
        """Send as much as the socket takes; the rest when it takes more."""
        try:
            is_all_sent = self._transport.send()
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}")
        except CloseConnection as error:
            self._end_by(error)
        else:
            self._watch_writable(not is_all_sent)

    def _watch_writable(self, wanted: bool) -> None:
        if self._writing is not wanted:
            self._writing = wanted
            self._network.poller.change(self._fd, reading=self._reading, writing=wanted)

    def on_writable(self) -> None:
        self.last_active = self._network.loop.time()
        exchange = self._exchange
        self.send()
        if not self.closed and exchange.frames and not exchange.is_pending:
            self._work_on()
        elif not self.closed and not exchange.is_busy:
            self._network.on_idle()
            self.resume_reading()
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
        self._transport.close()
        self._exchange.clear()
        if self._pending is not None and self._may_cancel:
            self._pending.cancel()
        self._network.forget(self)
