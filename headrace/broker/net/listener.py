"""The listening sockets and the set of connections.

Each listener has a name and requires TLS, SASL, both or neither. `Network` accepts connections up to the common limits,
begins TLS handshakes in their turns, and closes connections that are idle or do not authenticate in time. At the end:
`stop_listening`, then `drain`, then `close`.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import Any

import msgspec

from headrace.broker.net.address_slots import AddressSlots
from headrace.broker.net.backlog import Backlog
from headrace.broker.net.connection import Connection
from headrace.broker.net.connection_rates import ConnectionRates
from headrace.broker.net.connection_slots import ConnectionSlots
from headrace.broker.net.faults import LEVELS, Fault
from headrace.broker.net.handshakes import HandshakeQueue
from headrace.broker.net.limits import Limits
from headrace.broker.net.outgoing import Introduction, OutgoingConnection
from headrace.broker.net.pool import FramePool
from headrace.broker.net.reply import Answerer, Peer
from headrace.broker.net.sockets import SystemSockets
from headrace.broker.net.tls import TlsStream
from headrace.broker.net.tls_handshake import ClientHandshake, Encryption, ServerHandshake
from headrace.broker.runtime.open_files import SEGMENT_FILES
from headrace.broker.runtime.ports import ListeningSocket, Sockets, Stream
from headrace.broker.security.principal import ANONYMOUS, Session

logger = logging.getLogger("headrace.net")


_CLOSED_PER_TURN = 64
"""Number of excess connections that are closed before others are served again."""
_TURNED_AWAY_MAX = 1000
"""Maximum number of throttled connections that are held until they are closed; beyond it they are closed at once."""
_TURNS_SECONDS = 0.02
"""Interval at which waiting handshakes are checked, in seconds."""


class Listening(msgspec.Struct, eq=False):
    """One listener. `encryption` and `with_sasl` are its requirements before a peer's first request."""

    name: str
    host: str
    port: int
    sock: ListeningSocket
    encryption: Encryption | None = None
    with_sasl: bool = False
    is_accepting: bool = False
    accepted: int = 0
    """Number of connections since it began to listen."""
    pause: asyncio.TimerHandle | None = None
    """Timer after which it accepts again."""
    is_full: bool = False
    """True while it accepts nothing until a connection closes."""


class Network:
    """Listeners and their connections; every frame goes to `answerer`. Lives on one event loop."""

    def __init__(
        self,
        answerer: Answerer,
        limits: Limits,
        *,
        loop: asyncio.AbstractEventLoop,
        handshakes_in: Executor | None = None,
        sockets: Sockets | None = None,
    ) -> None:
        """`handshakes_in`: the executor of TLS handshakes; None: on the event loop, for simulations. `sockets`: None
        for the system's.
        """
        self.answerer = answerer
        self.limits = limits
        self.loop = loop
        self.pool = FramePool(limits.pooled_bytes_max)
        self.sockets: Sockets = sockets or SystemSockets()
        self.poller = self.sockets.poller(loop)
        self.scratch = memoryview(bytearray(limits.scratch_bytes))
        self.listeners: list[Listening] = []
        self._handshakes_in = handshakes_in
        self._handshakes: HandshakeQueue[ServerHandshake] = HandshakeQueue()
        self._shaking: dict[Connection, ServerHandshake] = {}
        self._turns: asyncio.TimerHandle | None = None
        self._deadlines: dict[Connection, asyncio.TimerHandle] = {}
        self._connections: dict[Connection, None] = {}  # in the order of their arrival
        self._outgoing: dict[OutgoingConnection, None] = {}
        self._per_address = AddressSlots()
        self._backlog: Backlog[Connection] = Backlog(limits.unsent_bytes_of_all_max)
        self._next_id = 0
        self._draining: asyncio.Event | None = None
        self.is_draining = False
        self.connection_delay: Callable[[str], float] | None = None
        """Called with the address of each connection. It returns 0, or the seconds after which to close it without
        serving it.
        """
        self.rates = ConnectionRates()
        """Rates of accepting; changed by `set_rates`."""
        self._slots = ConnectionSlots()
        self._is_closing_excess = False
        self.introduction: Introduction | None = None
        """Authentication of outgoing connections; None: none, and no encryption."""
        self.faults: Counter[Fault] = Counter()
        """Number of refused and closed connections by reason."""
        self._turned_away: set[Stream] = set()
        self.requests: dict[asyncio.Future[Any], None] = {}
        """Requests in progress, including those of closed connections."""

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def pending_handshakes(self) -> int:
        """Number of TLS handshakes that have not ended, including those that wait for their turn."""
        return self._handshakes.pending_count

    @property
    def host(self) -> str:
        """Host of the first listener, as it is bound."""
        return self.listeners[0].host

    @property
    def port(self) -> int:
        return self.listeners[0].port

    # -- listening -----------------------------------------------------------------------------------------

    def bind(
        self,
        host: str,
        port: int,
        *,
        name: str = "PLAINTEXT",
        encryption: Encryption | None = None,
        with_sasl: bool = False,
    ) -> Listening:
        """Take the address (port 0: a free one) without accepting yet; raises OSError."""
        sock = self.sockets.bind(host, port, receive_buffer_bytes=self.limits.receive_buffer_bytes)
        listening = Listening(name, sock.host, sock.port, sock, encryption, with_sasl)
        self.listeners.append(listening)
        return listening

    def start_listening(self) -> None:
        if not self.listeners:
            raise RuntimeError("bind first")
        for listening in self.listeners:
            listening.is_accepting = True
            listening.sock.start(self.limits.backlog, partial(self._on_acceptable, listening))

    def stop_listening(self) -> None:
        for listening in self.listeners:
            listening.is_accepting = False
            if listening.pause is not None:
                listening.pause.cancel()
                listening.pause = None
            listening.sock.close()

    def _on_acceptable(self, listening: Listening) -> None:
        for _ in range(self.limits.accepts_per_wakeup):
            if not listening.is_accepting:
                return
            if (reached := self._slots.full(listening.name)) is not None:
                self._wait_for_slot(listening, reached)
                return
            wait = self.rates.wait_seconds(listening.name, self.loop.time())
            if wait > 0.0:
                self._pause(listening, wait)
                return
            try:
                sock, host, port = self._accept(listening)
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._complain(Fault.ACCEPT, "cannot accept connections: %s", error.strerror)
                # A client is more urgent than the files of partitions that are idle.
                if SEGMENT_FILES.make_room(error, at_once=True):
                    continue
                # The waiting connections stay readable: without a pause this would be a busy loop.
                listening.sock.turn_away()
                self._pause(listening, self.limits.accept_pause_seconds)
                return
            self._admit(listening, sock, host, port)

    def _accept(self, listening: Listening) -> tuple[Stream, str, int]:
        """Accept a connection as `ListeningSocket.accept`. Raises OSError, also for a descriptor that is for files."""
        sock, host, port = listening.sock.accept(send_buffer_bytes=self.limits.send_buffer_bytes)
        if sock.fileno() >= self.limits.descriptors_max:
            sock.close()
            raise OSError(
                errno.EMFILE,
                f"{len(self._connections)} are open, and the other file descriptors are for files; "
                "raise the limit (ulimit -n)",
            )
        return sock, host, port

    def _pause(self, listening: Listening, seconds: float) -> None:
        if listening.is_accepting:
            listening.sock.pause()
            listening.pause = self.loop.call_later(seconds, self._accept_again, listening)

    def _wait_for_slot(self, listening: Listening, reached: int) -> None:
        listening.is_full = True
        listening.sock.pause()
        self._complain(
            Fault.REFUSED,
            "not accepting connections on %s: max.connections=%d reached",
            listening.name,
            reached,
        )

    def _slots_changed(self) -> None:
        for listening in self.listeners:
            if listening.is_full and self._slots.full(listening.name) is None:
                listening.is_full = False
                self._accept_again(listening)

    def set_connections_max(
        self, of_all: int | None, of_listeners: Mapping[str, int], protected: str | None = None
    ) -> None:
        """Set limits as `ConnectionSlots.set`; close excess connections, and accept waiting ones."""
        self._slots.set(of_all, of_listeners, protected)
        self._close_excess()
        self._slots_changed()

    def set_connections_per_address(self, of_each: int, of_some: Mapping[str, int]) -> None:
        """Set limits as `AddressSlots.set`."""
        self._per_address.set(of_each, of_some)

    def _close_excess(self) -> None:
        """Close the connections that were silent for longest, a few in each turn of the loop."""
        excess = self._slots.excess
        if not excess or self._is_closing_excess:
            return
        others = (each for each in self._connections if self._slots.may_be_closed(each.peer.listener))
        count = min(excess, _CLOSED_PER_TURN)
        for connection in heapq.nsmallest(count, others, key=lambda each: each.last_active):
            connection.close(
                f"it was idle for longest, and more than max.connections={self._slots.max_of_all} are open",
                Fault.REFUSED,
            )
        if excess > count:
            self._is_closing_excess = True
            self.loop.call_soon(self._close_more)

    def _close_more(self) -> None:
        self._is_closing_excess = False
        self._close_excess()

    def set_rates(
        self, of_all: float | None, of_listeners: Mapping[str, float], exempt: str | None = None
    ) -> None:
        """Set rates as `ConnectionRates.set`, and apply them to waiting connections."""
        self.rates.set(of_all, of_listeners, exempt)
        for listening in self.listeners:
            if listening.pause is not None:
                listening.pause.cancel()
                self._accept_again(listening)

    def _accept_again(self, listening: Listening) -> None:
        listening.pause = None
        if listening.is_accepting and not listening.is_full:
            listening.sock.resume()

    def _admit(self, listening: Listening, sock: Stream, host: str, port: int) -> None:
        limits = self.limits
        if self.connection_delay is not None and (delay := self.connection_delay(host)):
            self._complain(
                Fault.THROTTLED, "closing %s:%d: its address exceeds connection_creation_rate", host, port
            )
            self._turn_away(sock, delay)
            return
        self.rates.accepted(listening.name, self.loop.time())
        listening.accepted += 1
        if (reached := self._per_address.full(host)) is not None:
            self._complain(
                Fault.REFUSED, "refused %s:%d: max.connections.per.ip=%d reached", host, port, reached
            )
            sock.close()
            return
        self._next_id += 1
        self._per_address.take(host)
        self._slots.take(listening.name)
        self._close_excess()
        must_authenticate = listening.with_sasl or listening.encryption is not None
        session = None if must_authenticate else Session(ANONYMOUS, listening.name, since=self.loop.time())
        peer = Peer(self._next_id, host, port, listening.name, session)
        connection = Connection(self, sock, peer)
        self._connections[connection] = None
        if listening.encryption is None:
            if must_authenticate:
                self._expect(connection, limits.authentication_seconds_max, "it has not authenticated")
            return
        handshake = ServerHandshake(self, connection, listening.encryption, with_sasl=listening.with_sasl)
        if not (
            self._handshakes.arrive(handshake, host, limits, asks=False)
            or (self._one_gave_way(host) and self._handshakes.arrive(handshake, host, limits, asks=False))
        ):
            connection.close("too many TLS handshakes are in progress", Fault.HANDSHAKE)
            return
        self._shaking[connection] = handshake
        self._expect(connection, limits.handshake_seconds_max, "it has not completed the TLS handshake")
        handshake.listen()

    def _one_gave_way(self, host: str) -> bool:
        """Close a TLS handshake that waits for its peer, to make room for one of this address. Return whether one was
        closed.
        """
        oldest = self._handshakes.oldest(host, self.limits, lambda each: each.waits_for_peer)
        if oldest is not None:
            oldest.connection.close(
                "too many TLS handshakes are half open, and it has the oldest", Fault.HANDSHAKE
            )
        return oldest is not None

    def _complain(self, fault: Fault, text: str, *values: object) -> None:
        self.faults[fault] += 1
        logger.log(LEVELS[fault], text, *values, extra={"kind": fault})

    def _turn_away(self, sock: Stream, delay: float) -> None:
        """Close a throttled connection after a delay, as Kafka does (KIP-612), so that its client does not reconnect at
        once.
        """
        if len(self._turned_away) >= _TURNED_AWAY_MAX:
            sock.close()
            return
        self._turned_away.add(sock)

        def close() -> None:
            self._turned_away.discard(sock)
            sock.close()

        self.loop.call_later(delay, close)

    # -- unauthenticated connections -----------------------------------------------------------------------

    def _expect(self, connection: Connection, seconds: float, fault: str) -> None:
        """Close the connection if it does not get that far in time."""
        self._trust(connection)
        self._deadlines[connection] = self.loop.call_later(seconds, self._is_late, connection, seconds, fault)

    def _is_late(self, connection: Connection, seconds: float, fault: str) -> None:
        del self._deadlines[connection]
        if connection.peer.session is None:
            connection.close(f"{fault} in {seconds:g} s", Fault.LATE)

    def _trust(self, connection: Connection) -> None:
        deadline = self._deadlines.pop(connection, None)
        if deadline is not None:
            deadline.cancel()

    def ask_for_handshake(self, handshake: ServerHandshake) -> None:
        self._handshakes.ask(handshake, handshake.connection.peer.host)
        self._begin_handshakes()

    def _begin_handshakes(self) -> None:
        for handshake in self._handshakes.due(self.loop.time(), self.limits):
            handshake.begin()
        if self._handshakes.is_waited_for and self._turns is None:
            self._turns = self.loop.call_later(_TURNS_SECONDS, self._take_turns)

    def _take_turns(self) -> None:
        self._turns = None
        self._begin_handshakes()

    def run_handshake(self, stream: TlsStream) -> asyncio.Future[bool]:
        if self._handshakes_in is not None:
            return self.loop.run_in_executor(self._handshakes_in, stream.handshake)
        done: asyncio.Future[bool] = self.loop.create_future()
        try:
            done.set_result(stream.handshake())
        except Exception as error:  # noqa: BLE001 - as of a thread's
            done.set_exception(error)
        return done

    def handshake_is_complete(self, handshake: ServerHandshake) -> None:
        connection = handshake.connection
        self._leave_handshakes(connection)
        if connection.peer.session is not None:
            self._trust(connection)
        else:
            limits = self.limits
            rest = max(0.0, limits.authentication_seconds_max - limits.handshake_seconds_max)
            self._expect(connection, rest, "it has not authenticated")

    def _leave_handshakes(self, connection: Connection) -> None:
        handshake = self._shaking.pop(connection, None)
        if handshake is not None:
            self._handshakes.leave(handshake, connection.peer.host)

    def note_unsent(self, connection: Connection) -> None:
        """Note that a connection's answers wait for a slow peer, or have left."""
        backlog = self._backlog
        backlog.note(connection, 0 if connection.closed else connection.unsent_bytes)
        while (slowest := backlog.next_to_go()) is not None:
            slowest.close(
                f"it does not read its answers: {slowest.unsent_bytes} bytes wait for it, {backlog.size} for all; "
                f"the limit for all is {self.limits.unsent_bytes_of_all_max}",
                Fault.SLOW,
            )
            backlog.note(slowest, 0)

    def forget(self, connection: Connection) -> None:
        """Remove a connection that has closed."""
        self._connections.pop(connection, None)
        self._backlog.note(connection, 0)
        self._trust(connection)
        self._leave_handshakes(connection)
        self._per_address.leave(connection.peer.host)
        self._slots.leave(connection.peer.listener)
        self._slots_changed()
        self.on_idle()

    # -- outgoing connections -------------------------------------------------------------------------------

    async def connect(self, host: str, port: int) -> OutgoingConnection:
        """Open a connection to host and port, and authenticate it with `introduction`. Raises OSError. There is no
        timeout; callers set their own.
        """
        introduction = self.introduction
        tls = None if introduction is None else await introduction.encryption(host)
        sock = await self.sockets.connect(host, port)
        name = f"{host}:{port}"
        connection = OutgoingConnection(self, sock, name)
        self._outgoing[connection] = None
        if tls is not None:
            await ClientHandshake(connection, tls).run()
        if introduction is not None:
            await connection.introduce(introduction)
        return connection

    def forget_outgoing(self, connection: OutgoingConnection) -> None:
        """Remove an outgoing connection that has closed."""
        self._outgoing.pop(connection, None)

    # -- idle connections and the end ----------------------------------------------------------------------

    async def reap_idle(self) -> None:
        """Close connections that were idle for too long, until cancelled."""
        while True:
            await asyncio.sleep(min(30.0, max(0.05, self.limits.idle_seconds_max / 4)))
            self.close_idle()

    def close_idle(self) -> None:
        deadline = self.loop.time() - self.limits.idle_seconds_max
        for connection in tuple(self._connections):
            # A peer that waits for the broker (a long poll, a join) is not idle; one that does not read its answers is.
            if connection.is_waiting_for_handler:
                if connection.has_disconnected_while_paused():
                    connection.close("closed by the peer")
            elif connection.last_active < deadline:
                connection.close("idle for too long", Fault.IDLE)

    async def drain(self, seconds: float) -> None:
        """Wait until no request is in progress and every answer has left, at most `seconds`."""
        self._draining = asyncio.Event()
        self.is_draining = True
        self.on_idle()
        try:
            async with asyncio.timeout(seconds):
                await self._draining.wait()
        except TimeoutError:
            busy = sum(connection.is_busy for connection in self._connections)
            logger.warning("%d connections were still busy after %g s", busy, seconds)

    def on_idle(self) -> None:
        """Note that a connection has nothing more to do for now; only needed while `is_draining`."""
        if (
            self._draining is not None
            and not self.requests
            and not any(connection.is_busy for connection in self._connections)
        ):
            self._draining.set()

    async def cancel_requests(self) -> None:
        """Cancel the requests that are still in progress, and wait for their end."""
        requests = list(self.requests)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)

    def close(self) -> None:
        """Close all connections and listeners at once."""
        self.stop_listening()
        for sock in self._turned_away:
            sock.close()
        for connection in tuple(self._connections):
            connection.close("the broker stops")
        for outgoing in tuple(self._outgoing):
            outgoing.close("the broker stops")
        if self._turns is not None:
            self._turns.cancel()
            self._turns = None
