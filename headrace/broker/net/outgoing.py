"""One connection that this process has opened: requests out, answers in, in the same order.

Any number of requests may be in progress; answers come in their order. When the connection ends, for any reason, all of
them fail with ConnectionError: they may have been carried out or not. The caller decodes an answer and checks its
correlation id.

An `Introduction` authenticates the connection: with TLS or not, and by its own requests. Other requests wait until it
is done. With TLS a `ClientHandshake` (`tls_handshake.py`) goes before all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from headrace.broker.net.frame_receiver import FrameReceiver
from headrace.broker.net.pool import FramePool
from headrace.broker.net.reply import Buffer, CloseConnection
from headrace.broker.net.send_queue import SendQueue
from headrace.broker.net.tls import TlsStream
from headrace.broker.net.tls_transport import TlsTransport
from headrace.broker.net.transport import PlainTransport, Transport, TransportOwner
from headrace.broker.runtime.ports import Poller, Stream, Watcher

logger = logging.getLogger("headrace.net")

Answer = asyncio.Future[bytes | memoryview]

_AGAIN_SECONDS = 10.0
"""Timeout of authenticating again, while other requests wait, in seconds."""


class Opener(TransportOwner, Protocol):
    """The opener of a connection, as far as connections need it (`headrace/broker/net/listener.py`)."""

    loop: asyncio.AbstractEventLoop
    poller: Poller
    pool: FramePool

    def forget_outgoing(self, connection: OutgoingConnection) -> None:
        """Remove a connection that has closed."""


class Introduction(Protocol):
    """Encryption and authentication before the first request."""

    async def encryption(self, host: str) -> TlsStream | None:
        """Return the client's side of TLS for a new connection to `host`; None: no TLS. Raises ConnectionError."""

    async def introduce(self, connection: OutgoingConnection) -> float | None:
        """Authenticate by `ask_before_others`. Return the seconds after which to repeat it; None: never. Raises
        ConnectionError.
        """


class OutgoingConnection:
    """One connection that this process has opened. Its opener makes it (`Network.connect`)."""

    __slots__ = (
        "_asked",
        "_fd",
        "_held",
        "_incoming",
        "_introduction",
        "_opener",
        "_renewal",
        "_sock",
        "_transport",
        "_unsent",
        "_writing",
        "close_reason",
        "closed",
        "name",
        "when_closed",
    )

    def __init__(self, opener: Opener, sock: Stream, name: str) -> None:
        self.name = name
        self.closed = False
        self.close_reason = ""
        self.when_closed: Callable[[], object] = lambda: None
        self._opener = opener
        self._sock = sock
        self._fd = sock.fileno()
        self._incoming = FrameReceiver(opener.limits.answer_bytes_max, opener.pool, opener.scratch)
        self._unsent = SendQueue()
        self._transport: Transport = PlainTransport(opener, sock, self._incoming, self._unsent)
        self._asked: deque[Answer] = deque()
        self._writing = False
        self._held: list[tuple[list[Buffer], Answer]] | None = None
        self._introduction: Introduction | None = None
        self._renewal: asyncio.TimerHandle | asyncio.Task[None] | None = None
        opener.poller.add(self._fd, self)

    def __repr__(self) -> str:
        return f"<OutgoingConnection to {self.name}>"

    def encrypt(self, stream: TlsStream) -> TlsTransport:
        """Continue with TLS."""
        transport = TlsTransport(self._opener, self._sock, self._incoming, self._unsent, stream)
        self._transport = transport
        return transport

    def watch(self, watcher: Watcher) -> None:
        """Give the socket's events to `watcher`: the connection itself, or the handshake that goes before it."""
        poller = self._opener.poller
        poller.remove(self._fd)
        poller.add(self._fd, watcher)
        poller.change(self._fd, reading=True, writing=self._writing)

    def ask(self, request: list[Buffer]) -> Answer:
        """Send a request: its header first, without a length. The connection keeps the list.

        The answer is a frame without its length. A view is of a pooled buffer: `release` it. Raises ConnectionError
        when the connection has ended.
        """
        if self._held is None or self.closed:
            return self.ask_before_others(request)
        answer: Answer = self._opener.loop.create_future()
        self._held.append((request, answer))
        return answer

    def ask_before_others(self, request: list[Buffer]) -> Answer:
        """Send a request of the authentication, which does not wait for it."""
        if self.closed:
            raise ConnectionResetError(f"the connection to {self.name} has ended")
        answer: Answer = self._opener.loop.create_future()
        self._put(request, answer)
        return answer

    def _put(self, request: list[Buffer], answer: Answer) -> None:
        self._asked.append(answer)
        self._unsent.append([*request])
        if not self._writing:
            self.send()

    async def introduce(self, introduction: Introduction) -> None:
        """Authenticate, now and when it must be repeated. After an error the connection is closed. Raises
        ConnectionError.
        """
        self._introduction = introduction
        self._held = []
        try:
            seconds = await introduction.introduce(self)
        except BaseException as error:
            self.close(
                f"authentication failed: {error}" if isinstance(error, Exception) else "it was cancelled"
            )
            raise
        if self.closed:
            raise ConnectionResetError(f"the connection to {self.name} has ended")
        held, self._held = self._held, None
        for request, answer in held:
            if not self.closed and not answer.done():
                self._put(request, answer)
        self._renewal = None if seconds is None else self._opener.loop.call_later(seconds, self._renew)

    def _renew(self) -> None:
        self._renewal = self._opener.loop.create_task(self._introduce_again(), name=f"log in to {self.name}")

    async def _introduce_again(self) -> None:
        assert self._introduction is not None
        try:
            async with asyncio.timeout(_AGAIN_SECONDS):
                await self.introduce(self._introduction)
        except OSError as error:
            logger.warning("lost the connection to %s: %s", self.name, error)
        except Exception:
            logger.exception("lost the connection to %s", self.name)

    def release(self, answer: memoryview) -> None:
        """Return the memory of an answer that is not used any more."""
        self._incoming.release(answer)

    def on_readable(self) -> None:
        try:
            is_open = self._transport.receive()
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}")
            return
        except CloseConnection as error:
            self.close(str(error))
            return
        frames = self._incoming.frames
        while frames and self._asked:
            answer, frame = self._asked.popleft(), frames.popleft()
            if not answer.done():
                answer.set_result(frame)
            elif isinstance(frame, memoryview):
                self.release(frame)  # its request was cancelled
        if frames:
            self.close("it sent an answer without a request")
        elif not is_open or self._transport.has_ended:
            self.close("closed by the other end")

    def on_writable(self) -> None:
        self.send()

    def send(self) -> None:
        """Send as much as the socket takes; the rest when it takes more."""
        try:
            is_all_sent = self._transport.send()
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}")
        except CloseConnection as error:
            self.close(str(error))
        else:
            self._watch_writable(not is_all_sent)

    def _watch_writable(self, wanted: bool) -> None:
        if self._writing is not wanted:
            self._writing = wanted
            self._opener.poller.change(self._fd, reading=True, writing=wanted)

    def close(self, reason: str) -> None:
        """End it at once; its requests fail with the reason."""
        if self.closed:
            return
        self.closed = True
        self.close_reason = reason
        logger.debug("connection to %s: %s", self.name, reason)
        self._opener.poller.remove(self._fd)
        self._transport.close()
        self._incoming.clear()
        self._unsent.clear()
        held, self._held = self._held or (), None
        asked, self._asked = [*self._asked, *(answer for _, answer in held)], deque()
        renewal, self._renewal = self._renewal, None
        if isinstance(renewal, asyncio.TimerHandle):
            renewal.cancel()  # a task that authenticates ends by its answer
        for answer in asked:
            if not answer.done():
                answer.set_exception(
                    ConnectionResetError(f"the connection to {self.name} has ended: {reason}")
                )
                answer.exception()  # it may not be awaited any more
        self._opener.forget_outgoing(self)
        self.when_closed()
