"""One connection that this process has opened: requests out, answers in, in the same order.

Any number of requests may be in progress; answers come in their order. When the connection ends, for any reason, all of
them fail with ConnectionError: they may have been carried out or not. The caller decodes an answer and checks its
correlation id.

An `Introduction` authenticates the connection: with TLS or not, and by its own requests. Other requests wait until it
is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from headrace.broker.net.frame_receiver import FrameReceiver
from headrace.broker.net.limits import Limits
from headrace.broker.net.pool import FramePool
from headrace.broker.net.reply import Buffer, CloseConnection
from headrace.broker.net.send_queue import SendQueue
from headrace.broker.net.tls import TlsError, TlsStream
from headrace.broker.runtime.ports import Poller, Stream

logger = logging.getLogger("headrace.net")

Answer = asyncio.Future[bytes | memoryview]

_AGAIN_SECONDS = 10.0
"""Timeout of authenticating again, while other requests wait, in seconds."""


class Opener(Protocol):
    """The opener of a connection, as far as connections need it (`headrace/broker/net/listener.py`)."""

    limits: Limits
    loop: asyncio.AbstractEventLoop
    poller: Poller
    pool: FramePool
    scratch: memoryview

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
        "_unsent",
        "_writing",
        "closed",
        "name",
        "when_closed",
    )

    def __init__(self, opener: Opener, sock: Stream, name: str) -> None:
        self.name = name
        self.closed = False
        self.when_closed: Callable[[], object] = lambda: None
        self._opener = opener
        self._sock = sock
        self._fd = sock.fileno()
        self._incoming = FrameReceiver(opener.limits.answer_bytes_max, opener.pool, opener.scratch)
        self._unsent = SendQueue()
        self._asked: deque[Answer] = deque()
        self._writing = False
        self._held: list[tuple[list[Buffer], Answer]] | None = None
        self._introduction: Introduction | None = None
        self._renewal: asyncio.TimerHandle | asyncio.Task[None] | None = None
        opener.poller.add(self._fd, self)

    def __repr__(self) -> str:
        return f"<OutgoingConnection to {self.name}>"

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
            self._send()

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
                f"authentication failed: {error}" if isinstance(error, OSError) else "it was cancelled"
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

    def release(self, answer: memoryview) -> None:
        """Return the memory of an answer that is not used any more."""
        self._incoming.release(answer)

    def on_readable(self) -> None:
        try:
            count = self._sock.recv_into(self._incoming.room())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}")
            return
        if count == 0:
            self.close("closed by the other end")
            return
        self._received(count)

    def _received(self, count: int) -> None:
        """Take over bytes that are in `room()`."""
        try:
            self._incoming.received(count)
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

    def on_writable(self) -> None:
        self._send()

    def _send(self) -> None:
        unsent = self._unsent
        try:
            while unsent.size:
                buffers, _ = unsent.head(self._opener.limits.buffers_per_call)
                unsent.sent(
                    self._sock.send(memoryview(buffers[0]).cast("B"))
                    if len(buffers) == 1
                    else self._sock.sendmsg(buffers)
                )
        except (BlockingIOError, InterruptedError):
            self._watch_writable(True)
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}")
        else:
            self._watch_writable(False)

    def _watch_writable(self, wanted: bool) -> None:
        if self._writing is not wanted:
            self._writing = wanted
            self._opener.poller.change(self._fd, reading=True, writing=wanted)

    def close(self, reason: str) -> None:
        """End it at once; its requests fail with the reason."""
        if self.closed:
            return
        self.closed = True
        logger.debug("connection to %s: %s", self.name, reason)
        self._opener.poller.remove(self._fd)
        self._sock.close()
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


class OutgoingTlsConnection(OutgoingConnection):
    """The same over TLS. Call `shake_hands` before the first request."""

    __slots__ = ("_is_open", "_sealed", "_shaken", "_tls")

    def __init__(self, opener: Opener, sock: Stream, name: str, tls: TlsStream) -> None:
        super().__init__(opener, sock, name)
        self._tls = tls
        self._is_open = False
        self._shaken: asyncio.Future[None] = opener.loop.create_future()
        self._sealed = memoryview(b"")  # encrypted, and not sent

    async def shake_hands(self) -> None:
        """Complete the TLS handshake. Raises ConnectionError, and closes the connection, if one side does not accept
        the other.
        """
        self._shake()
        try:
            await self._shaken
        except asyncio.CancelledError:
            self.close("given up")
            raise

    def _shake(self) -> None:
        try:
            self._is_open = self._tls.handshake()
        except TlsError as error:
            self._send()
            self.close(f"the TLS handshake failed: {error}")
            return
        self._send()
        if self._is_open and not self._shaken.done():
            self._shaken.set_result(None)

    def on_readable(self) -> None:
        scratch = self._opener.scratch
        try:
            count = self._sock.recv_into(scratch[: self._opener.limits.decrypted_bytes_per_call])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}")
            return
        if count == 0:
            self.close("closed by the other end")
            return
        self._tls.received(scratch[:count])
        if not self._is_open:
            self._shake()
        if self._is_open:
            self._decrypt()

    def _decrypt(self) -> None:
        try:
            while not self.closed and (count := self._tls.read_into(self._incoming.room())):
                self._received(count)
        except TlsError as error:
            self.close(str(error))
            return
        if self._tls.is_closed:
            self.close("closed by the other end")
        elif self._tls.has_outgoing and not self._writing:
            self._send()

    def _send(self) -> None:
        unsent, limits = self._unsent, self._opener.limits
        try:
            while not self.closed:
                if not self._sealed:
                    if unsent.size and self._is_open:
                        self._seal(limits.encrypted_bytes_per_call)
                    if not self._tls.has_outgoing:
                        break
                    self._sealed = memoryview(self._tls.outgoing())
                self._sealed = self._sealed[self._sock.send(self._sealed) :]
        except (BlockingIOError, InterruptedError):
            self._watch_writable(True)
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}")
        except TlsError as error:
            self.close(str(error))
        else:
            if not self.closed:
                self._watch_writable(False)

    def _seal(self, size_max: int) -> None:
        """Encrypt the next bytes to send."""
        buffers, _ = self._unsent.head(self._opener.limits.buffers_per_call)
        first = memoryview(buffers[0]).cast("B")
        if len(buffers) > 1 and len(first) < size_max:
            first = memoryview(b"".join(buffers))
        part = first[:size_max]
        self._tls.write(part)
        self._unsent.sent(len(part))

    def close(self, reason: str) -> None:
        if self.closed:
            return
        super().close(reason)
        self._sealed = memoryview(b"")
        if not self._shaken.done():
            self._shaken.set_exception(ConnectionResetError(f"no connection to {self.name}: {reason}"))
            self._shaken.exception()  # it may not be awaited any more
