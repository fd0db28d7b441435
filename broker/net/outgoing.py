"""One connection that this process has opened: requests out, their answers in, in order.

Any number of requests may be under way; the first answer is the first one's. When the connection ends, however it does,
all that are under way fail with ConnectionError: they may have been carried out or not. What an answer means, and which
request it belongs to by its number, is the caller's to check.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Protocol

from broker.net.frame_receiver import FrameReceiver
from broker.net.limits import Limits
from broker.net.pool import FramePool
from broker.net.reply import Buffer, CloseConnection
from broker.net.send_queue import SendQueue
from broker.ports import Poller, Stream

logger = logging.getLogger("headrace.net")

Answer = asyncio.Future[bytes | memoryview]


class Opener(Protocol):
    """What a connection takes of whoever opened it, and tells it (`broker/net/listener.py`)."""

    limits: Limits
    loop: asyncio.AbstractEventLoop
    poller: Poller
    pool: FramePool
    scratch: memoryview

    def forget_outgoing(self, connection: OutgoingConnection) -> None:
        """The connection has closed."""


class OutgoingConnection:
    """See the module's contract. Made by its opener (`Network.connect`)."""

    __slots__ = ("_asked", "_fd", "_incoming", "_opener", "_sock", "_unsent", "_writing", "closed", "name")

    def __init__(self, opener: Opener, sock: Stream, name: str) -> None:
        self.name = name
        self.closed = False
        self._opener = opener
        self._sock = sock
        self._fd = sock.fileno()
        self._incoming = FrameReceiver(opener.limits.answer_bytes_max, opener.pool, opener.scratch)
        self._unsent = SendQueue()
        self._asked: deque[Answer] = deque()
        self._writing = False
        opener.poller.add(self._fd, self)

    def __repr__(self) -> str:
        return f"<OutgoingConnection to {self.name}>"

    def ask(self, request: list[Buffer]) -> Answer:
        """Send a request, given without its length: its header first. The list is the connection's from now on.

        The answer is a frame without its length. A view is of a buffer that is used again: `release` it. Raises
        ConnectionError when the connection has ended.
        """
        if self.closed:
            raise ConnectionResetError(f"the connection to {self.name} has ended")
        answer: Answer = self._opener.loop.create_future()
        self._asked.append(answer)
        self._unsent.append([*request])
        if not self._writing:
            self._send()
        return answer

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
        asked, self._asked = self._asked, deque()
        for answer in asked:
            if not answer.done():
                answer.set_exception(
                    ConnectionResetError(f"the connection to {self.name} has ended: {reason}")
                )
        self._opener.forget_outgoing(self)
