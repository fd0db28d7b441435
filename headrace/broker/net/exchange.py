"""The requests and answers of one connection, without its socket: bytes in, frames out; answers in, bytes out.

One request is under way at a time, and answers leave in the order of the requests. `TRANSITIONS` is the table of legal
events in each state. A connection takes the next request only in IDLE. In any other state, and while the peer does not
read its answers, one waiting frame stops further reading: a peer that never stops sending fills its own socket, not the
broker's memory.

This module does not wait, read the clock or call the system. A transport moves the bytes (`transport.py`): it writes
received ones into `incoming.room()`, and sends what `unsent.head` gives. `connection.py` reports the events.

    unless is_full: incoming.room() -> incoming.received(n)
    take() -> answer(parts) at once, or defer() and answer(parts) later -> incoming.release(frame) if it is a view
    unsent.head(n) -> unsent.sent(n)

An event that the table does not have raises an `InvariantError`, in production too: an answer would go to the wrong
request.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from headrace.broker.net.frame_receiver import FrameReceiver
from headrace.broker.net.limits import Limits
from headrace.broker.net.pool import FramePool
from headrace.broker.net.reply import Part
from headrace.broker.net.send_queue import SendQueue
from headrace.broker.runtime.invariants import InvariantError, invariant


class State(IntEnum):
    IDLE = 0
    """The next request may be taken."""
    HANDLING = 1
    """A request was taken, and is neither answered nor deferred."""
    PENDING = 2
    """A request was deferred, and its answer will come."""
    YIELDING = 3
    """Requests wait while other connections are served."""
    MUTED = 4
    """The peer is over its quota, and waits until it may continue (KIP-219)."""


class Event(IntEnum):
    TAKE = 0
    ANSWER = 1
    DEFER = 2
    YIELD = 3
    MUTE = 4
    RESUME = 5


TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = {
    State.IDLE: {Event.TAKE: State.HANDLING, Event.YIELD: State.YIELDING, Event.MUTE: State.MUTED},
    State.HANDLING: {Event.ANSWER: State.IDLE, Event.DEFER: State.PENDING},
    State.PENDING: {Event.ANSWER: State.IDLE},
    State.YIELDING: {Event.RESUME: State.IDLE},
    State.MUTED: {Event.RESUME: State.IDLE},
}
"""Every legal event of each state, and the state after it."""

_ILLEGAL: Final = {
    Event.TAKE: "a frame is taken while another one is neither answered nor deferred",
    Event.ANSWER: "an answer comes, but no frame was taken",
    Event.DEFER: "a frame is deferred that was not taken",
    Event.YIELD: "a connection yields its turn in the middle of a request",
    Event.MUTE: "a connection is muted in the middle of a request",
    Event.RESUME: "a connection resumes that has neither yielded its turn nor is muted",
}
_IDLE, _HANDLING, _PENDING, _YIELDING, _MUTED = State
"""Global names for the states: looking a member up in its class costs several times as much, for each request."""
_ANSWER: Final = Event.ANSWER


class Exchange:
    """The requests and answers of one connection; see the module."""

    __slots__ = ("_unsent_bytes_max", "frames", "incoming", "state", "unsent")

    def __init__(self, limits: Limits, pool: FramePool, scratch: memoryview) -> None:
        """`scratch` is shared by all exchanges of the thread: see `FrameReceiver.room`."""
        self.incoming = FrameReceiver(limits.request_bytes_max, pool, scratch)
        self._unsent_bytes_max = limits.unsent_bytes_max
        self.frames = self.incoming.frames
        """Complete frames that wait for their turn; `take` removes them."""
        self.unsent = SendQueue()
        self.state = _IDLE

    @property
    def is_pending(self) -> bool:
        """Return whether a request was deferred and has no answer yet."""
        return self.state is _PENDING

    @property
    def is_muted(self) -> bool:
        return self.state is _MUTED

    @property
    def is_busy(self) -> bool:
        """Return whether a request is in progress or waits for its turn, or an answer has not left."""
        return self.state is _PENDING or self.state is _YIELDING or self.unsent.size > 0

    @property
    def is_full(self) -> bool:
        """Return whether a frame waits that may not be taken yet, so that no more bytes should be read."""
        return bool(self.frames) and (self.is_busy or self.state is _MUTED)

    def take(self) -> bytes | memoryview | None:
        """Return the next request. It must be answered or deferred before another one is taken: InvariantError.

        None when no frame waits, too much is unsent, or the state is PENDING, YIELDING or MUTED.
        """
        if not self.frames or self.unsent.size > self._unsent_bytes_max:
            return None
        if self.state is not _IDLE:
            invariant(self.state is not _HANDLING, _ILLEGAL[Event.TAKE])
            return None
        self.state = _HANDLING
        return self.frames.popleft()

    def defer(self) -> None:
        """Note that the answer to the frame that was taken comes later."""
        self._move(Event.DEFER)

    def yield_turn(self) -> None:
        """Take no request before `resume`: other connections are served first."""
        self._move(Event.YIELD)

    def mute(self) -> None:
        """Take no request and read no bytes before `resume`: the peer is over its quota."""
        self._move(Event.MUTE)

    def resume(self) -> None:
        """Take requests again: in the next turn, or after the time for which the peer was muted."""
        self._move(Event.RESUME)

    def answer(self, parts: list[Part] | None) -> bytes | None:
        """Answer the frame that was taken; None: there is no answer to it. The exchange keeps the list.

        An answer in one piece is returned, framed, if nothing waits before or behind it. The caller sends it directly,
        and `put`s into `unsent` what is left of it. Any other answer is queued.
        """
        after = TRANSITIONS[self.state].get(_ANSWER)
        if after is None:
            raise InvariantError(_ILLEGAL[_ANSWER])
        self.state = after
        if parts is None:
            return None
        first = parts[0]
        if len(parts) == 1 and type(first) is bytes and not self.frames and not self.unsent.size:
            return len(first).to_bytes(4, "big") + first
        self.unsent.append(parts)
        return None

    def clear(self) -> None:
        """End the exchange: waiting frames are not taken, and nothing more is sent. A request in progress stays in
        progress.
        """
        self.incoming.clear()
        self.unsent.clear()
        if self.state is _YIELDING or self.state is _MUTED:
            self.resume()

    def check_invariants(self) -> None:
        """Raises InvariantError. Takes time in proportion to frames and parts: for tests and simulators."""
        invariant(self.state in TRANSITIONS, f"{self.state} is not a state of a connection")
        self.incoming.check_invariants()
        self.unsent.check_invariants()

    def _move(self, event: Event) -> None:
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            raise InvariantError(_ILLEGAL[event])
        self.state = after
