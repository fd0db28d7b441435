"""The listening socket and the set of connections.

Accepts up to the limits, reaps the idle, and drains at the end: `stop_listening`, then `drain`, then `close`.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from typing import Any

from broker.net.connection import Connection
from broker.net.limits import Limits
from broker.net.poller import make_poller
from broker.net.pool import FramePool
from broker.net.reply import Answerer, Peer
from broker.security.principal import ANONYMOUS, Session

logger = logging.getLogger("headrace.net")


def host_name() -> str:
    """This machine's, for those who reach it from elsewhere."""
    return socket.gethostname()


class Network:
    """One listener and its connections; every frame goes to `answerer`. Lives on one event loop."""

    def __init__(
        self, answerer: Answerer, limits: Limits, *, name: str = "PLAINTEXT", loop: asyncio.AbstractEventLoop
    ) -> None:
        self.answerer = answerer
        self.limits = limits
        self.loop = loop
        self.pool = FramePool(limits.pooled_bytes_max)
        self.poller = make_poller(loop)
        self.scratch = memoryview(bytearray(limits.scratch_bytes))
        self.host = ""
        self.port = 0
        self._name = name
        self._listening: socket.socket | None = None
        self._connections: set[Connection] = set()
        self._per_address: Counter[str] = Counter()
        self._next_id = 0
        self._draining: asyncio.Event | None = None
        self.is_draining = False
        self.requests: set[asyncio.Future[Any]] = set()
        """Requests under way, also those whose connections are gone."""

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    # -- listening -----------------------------------------------------------------------------------------

    def bind(self, host: str, port: int) -> None:
        """Take the address (port 0: a free one) without accepting yet; raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setblocking(False)
            if self.limits.receive_buffer_bytes >= 0:
                # Before listening: the window of a connection is agreed on in its handshake.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.limits.receive_buffer_bytes)
            sock.bind((host, port))
        except BaseException:
            sock.close()
            raise
        self._listening = sock
        self.host, self.port = sock.getsockname()[:2]

    def start_listening(self) -> None:
        if self._listening is None:
            raise RuntimeError("bind first")
        self._listening.listen(self.limits.backlog)
        self.loop.add_reader(self._listening.fileno(), self._on_acceptable)

    def stop_listening(self) -> None:
        if self._listening is not None:
            self.loop.remove_reader(self._listening.fileno())
            self._listening.close()
            self._listening = None

    def _on_acceptable(self) -> None:
        for _ in range(self.limits.accepts_per_wakeup):
            if self._listening is None:
                return
            try:
                sock, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                # The waiting connection stays readable: without a pause this would be a busy loop.
                logger.error("cannot accept connections: %s", error.strerror)
                self._pause()
                return
            if sock.fileno() >= self.limits.descriptors_max:
                sock.close()
                logger.error(
                    "cannot accept connections: %d are open, and the other file descriptors are for files; "
                    "raise the limit (ulimit -n)",
                    len(self._connections),
                )
                self._pause()
                return
            self._admit(sock, str(address[0]), int(address[1]))

    def _pause(self) -> None:
        if self._listening is not None:
            self.loop.remove_reader(self._listening.fileno())
            self.loop.call_later(self.limits.accept_pause_seconds, self._accept_again)

    def _accept_again(self) -> None:
        if self._listening is not None:
            self.loop.add_reader(self._listening.fileno(), self._on_acceptable)

    def _admit(self, sock: socket.socket, host: str, port: int) -> None:
        limits = self.limits
        if len(self._connections) >= limits.connections_max:
            logger.warning("refused %s:%d: max.connections=%d are open", host, port, limits.connections_max)
            sock.close()
            return
        if self._per_address[host] >= limits.connections_per_address_max:
            logger.warning(
                "refused %s:%d: max.connections.per.ip=%d are open",
                host,
                port,
                limits.connections_per_address_max,
            )
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if limits.send_buffer_bytes >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, limits.send_buffer_bytes)
        self._next_id += 1
        self._per_address[host] += 1
        session = Session(ANONYMOUS, self._name, since=self.loop.time())
        peer = Peer(self._next_id, host, port, self._name, session)
        self._connections.add(Connection(self, sock, peer))

    def forget(self, connection: Connection) -> None:
        """Called by a connection that has closed."""
        self._connections.discard(connection)
        host = connection.peer.host
        self._per_address[host] -= 1
        if not self._per_address[host]:
            del self._per_address[host]
        self.on_rest()

    # -- idle connections and the end ----------------------------------------------------------------------

    async def reap_idle(self) -> None:
        """Close connections that were silent for too long; runs until cancelled."""
        while True:
            await asyncio.sleep(min(30.0, max(0.05, self.limits.idle_seconds_max / 4)))
            self.close_idle()

    def close_idle(self) -> None:
        deadline = self.loop.time() - self.limits.idle_seconds_max
        for connection in tuple(self._connections):
            # Whoever waits for us (a long poll, a join) is not idle; whoever does not read answers is.
            if connection.is_waiting_for_handler:
                if connection.has_hung_up_unheard():
                    connection.close("closed by the peer", logging.DEBUG)
            elif connection.last_active < deadline:
                connection.close("idle for too long")

    async def drain(self, seconds: float) -> None:
        """Wait until nothing is under way and every answer has left, but not longer than `seconds`."""
        self._draining = asyncio.Event()
        self.is_draining = True
        self.on_rest()
        try:
            async with asyncio.timeout(seconds):
                await self._draining.wait()
        except TimeoutError:
            busy = sum(connection.is_busy for connection in self._connections)
            logger.warning("%d connections did not come to rest within %g s", busy, seconds)

    def on_rest(self) -> None:
        """Called by a connection that has nothing more to do for now; needed while `is_draining` only."""
        if (
            self._draining is not None
            and not self.requests
            and not any(connection.is_busy for connection in self._connections)
        ):
            self._draining.set()

    async def cancel_requests(self) -> None:
        """Stop whatever is still under way, and wait until it has stopped."""
        requests = list(self.requests)
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)

    def close(self) -> None:
        """Close everything at once."""
        self.stop_listening()
        for connection in tuple(self._connections):
            connection.close("the broker stops", logging.DEBUG)
