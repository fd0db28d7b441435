"""One connection that this process has opened: requests out, their answers in, in order.

Any number of requests may be under way; the first answer is the first one's. When the connection ends, however it does,
all that are under way fail with ConnectionError: they may have been carried out or not. What an answer means, and which
request it belongs to by its number, is the caller's to check.

How this process shows who it is, an `Introduction` says: over TLS or not, and by which requests. While it does so no
other request leaves; those that are made meanwhile leave after it.
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
"""To say who asks again, while others wait."""


class Opener(Protocol):
    """What a connection takes of whoever opened it, and tells it (`headrace/broker/net/listener.py`)."""

    limits: Limits
    loop: asyncio.AbstractEventLoop
    poller: Poller
    pool: FramePool
    scratch: memoryview

    def forget_outgoing(self, connection: OutgoingConnection) -> None:
        """The connection has closed."""


class Introduction(Protocol):
    """What comes before the first request."""

    async def encryption(self, host: str) -> TlsStream | None:
        """The client's side of a new connection to that host; None: in the clear. Raises ConnectionError."""

    async def introduce(self, connection: OutgoingConnection) -> float | None:
        """Say who asks, by `ask_before_others`. Gives the seconds after which it has to be said again; None: never.
        Raises ConnectionError.
        """


class OutgoingConnection:
    """See the module's contract. Made by its opener (`Network.connect`)."""

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
        """Send a request, given without its length: its header first. The list is the connection's from now on.

        The answer is a frame without its length. A view is of a buffer that is used again: `release` it. Raises
        ConnectionError when the connection has ended.
        """
        if self._held is None or self.closed:
            return self.ask_before_others(request)
        answer: Answer = self._opener.loop.create_future()
        self._held.append((request, answer))
        return answer

    def ask_before_others(self, request: list[Buffer]) -> Answer:
        """`ask`, for who says who asks: not held back."""
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
        """Say who asks, now and whenever it has to be said again. Raises ConnectionError, and is closed then."""
        self._introduction = introduction
        self._held = []
        try:
            seconds = await introduction.introduce(self)
        except BaseException as error:
            self.close(f"who asks is not accepted: {error}" if isinstance(error, OSError) else "given up")
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
            logger.warning("the connection to %s is lost: %s", self.name, error)

    def release(self, answer: memoryview) -> None:
        """Nobody looks at the answer any more."""
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
        """They are in the room for what comes in."""
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
                self.release(frame)  # whoever asked does not want it any more
        if frames:
            self.close("it has sent an answer that nobody asked for")

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
        """End it at once; whoever waits for an answer is told why."""
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
            renewal.cancel()  # a task that says who asks is told by its answer
        for answer in asked:
            if not answer.done():
                answer.set_exception(
                    ConnectionResetError(f"the connection to {self.name} has ended: {reason}")
                )
                answer.exception()  # nobody may wait for it any more
        self._opener.forget_outgoing(self)
        self.when_closed()


class OutgoingTlsConnection(OutgoingConnection):
    """The same over TLS. `shake_hands` before anything is asked."""

    __slots__ = ("_is_open", "_sealed", "_shaken", "_tls")

    def __init__(self, opener: Opener, sock: Stream, name: str, tls: TlsStream) -> None:
        super().__init__(opener, sock, name)
        self._tls = tls
        self._is_open = False
        self._shaken: asyncio.Future[None] = opener.loop.create_future()
        self._sealed = memoryview(b"")  # encrypted, and not sent

    async def shake_hands(self) -> None:
        """Raises ConnectionError when one side does not accept the other; it is closed then."""
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
            self.close(f"the handshake of TLS failed: {error}")
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
        """Encrypt what is to be sent next."""
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
            self._shaken.exception()  # nobody may wait for it any more
