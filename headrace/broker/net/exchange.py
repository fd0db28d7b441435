"""What one connection says and is told, without its socket: bytes in, frames out; answers in, bytes and regions out.

One request is under way at a time, and answers leave in the order of the requests. While one is under way, or the peer
does not take its answers, there is room for no further bytes as soon as one frame waits: a peer that sends without end
fills its own socket, not our memory.

Nothing here waits, asks the time, or calls the system. A shell moves the bytes: `connection.py` for plain sockets. One
for TLS would decrypt into `incoming.room()` and encrypt what `unsent.head` gives; a simulator moves them as it likes.

    unless is_full: incoming.room() -> incoming.received(n)
    take() -> answer(parts) at once, or postpone() and answer(parts) later -> incoming.release(frame) if it is a view
    unsent.head(n) -> unsent.sent(n)

A shell that takes two frames at once, or answers one that it did not take, meets an `InvariantError`, in production
too: an answer would go to the wrong request.
"""

from __future__ import annotations

from headrace.broker.net.frame_receiver import FrameReceiver
from headrace.broker.net.limits import Limits
from headrace.broker.net.pool import FramePool
from headrace.broker.net.reply import Part
from headrace.broker.net.send_queue import SendQueue
from headrace.broker.runtime.invariants import InvariantError, invariant


class Exchange:
    """See the module's contract."""

    __slots__ = (
        "_is_taken",
        "_unsent_bytes_max",
        "frames",
        "incoming",
        "is_muted",
        "is_resting",
        "is_under_way",
        "unsent",
    )

    def __init__(self, limits: Limits, pool: FramePool, scratch: memoryview) -> None:
        """`scratch` is shared by all exchanges of the thread: see `FrameReceiver.room`."""
        self.incoming = FrameReceiver(limits.request_bytes_max, pool, scratch)
        self._unsent_bytes_max = limits.unsent_bytes_max
        self._is_taken = False  # a frame, and is not answered yet
        self.frames = self.incoming.frames
        """Whole ones that wait for their turn; `take` them."""
        self.unsent = SendQueue()
        self.is_under_way = False
        """A request was postponed and has no answer yet."""
        self.is_resting = False
        """Frames wait although nothing hinders: set by the shell while others are served in between."""
        self.is_muted = False
        """The peer has used more than its quota: set by the shell until it may go on."""

    @property
    def is_busy(self) -> bool:
        """A request is under way or waits for its turn, or an answer has not left."""
        return self.is_under_way or self.is_resting or self.unsent.size > 0

    @property
    def is_full(self) -> bool:
        """A frame waits that may not be taken yet: no further bytes are wanted."""
        return bool(self.frames) and (self.is_busy or self.is_muted)

    def take(self) -> bytes | memoryview | None:
        """The request whose turn it is, to be answered or postponed before the next is taken.

        None when no frame waits, one is under way, others are served, the peer is muted, or too much is unsent.
        """
        if (
            not self.frames
            or self.is_under_way
            or self.is_resting
            or self.is_muted
            or self.unsent.size > self._unsent_bytes_max
        ):
            return None
        if self._is_taken:
            raise InvariantError("a frame is taken while another is neither answered nor postponed")
        self._is_taken = True
        return self.frames.popleft()

    def postpone(self) -> None:
        """The answer to the frame that was taken comes later."""
        if not self._is_taken or self.is_under_way:
            raise InvariantError("a frame is postponed that was not taken")
        self.is_under_way = True

    def answer(self, parts: list[Part] | None) -> bytes | None:
        """The answer (None: there is none) to the frame that was taken. The list is the exchange's from now on.

        One in a single piece that nothing else waits for or behind is given back, framed, instead of being queued: it
        goes out directly, and what is left of it is `put` into `unsent`.
        """
        if not self._is_taken:
            raise InvariantError("there is an answer, and no frame was taken")
        self._is_taken = self.is_under_way = False
        if parts is None:
            return None
        first = parts[0]
        if len(parts) == 1 and type(first) is bytes and not self.frames and not self.unsent.size:
            return len(first).to_bytes(4, "big") + first
        self.unsent.append(parts)
        return None

    def clear(self) -> None:
        """The end: what has come is not taken any more, and nothing more will leave. A request that is under way stays
        so.
        """
        self.incoming.clear()
        self.unsent.clear()
        self.is_resting = False

    def check_invariants(self) -> None:
        """Raises InvariantError. Costs as much as there are frames and parts: for tests and simulators."""
        invariant(self._is_taken or not self.is_under_way, "a request is under way that was not taken")
        self.incoming.check_invariants()
        self.unsent.check_invariants()
