"""The requests and answers of one connection, without its socket: bytes in, frames out; answers in, bytes out.

One request is under way at a time, and answers leave in the order of the requests. `TRANSITIONS` is the table of legal
events in each state. A connection takes the next request only in READY. In any other state, and while the peer does not
read its answers, one waiting frame stops further reading: a peer that never stops sending fills its own socket, not the
broker's memory.

This module does not wait, read the clock or call the system. A shell moves the bytes: `connection.py` for plain
sockets, `tls_connection.py` for TLS, which decrypts into `incoming.room()` and encrypts what `unsent.head` gives.

    unless is_full: incoming.room() -> incoming.received(n)
    take() -> answer(parts) at once, or postpone() and answer(parts) later -> incoming.release(frame) if it is a view
    unsent.head(n) -> unsent.sent(n)

A shell whose event the table does not have gets an `InvariantError`, in production too: an answer would go to the wrong
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
    READY = 0
    """The next request may be taken."""
    TAKEN = 1
    """A request was taken, and is neither answered nor postponed."""
    UNDER_WAY = 2
    """A request was postponed, and its answer will come."""
    RESTING = 3
    """Requests wait while other connections are served."""
    MUTED = 4
    """The peer is over its quota, and waits until it may continue (KIP-219)."""


class Event(IntEnum):
    TAKE = 0
    ANSWER = 1
    POSTPONE = 2
    REST = 3
    MUTE = 4
    GO_ON = 5


TRANSITIONS: Final[Mapping[State, Mapping[Event, State]]] = {
    State.READY: {Event.TAKE: State.TAKEN, Event.REST: State.RESTING, Event.MUTE: State.MUTED},
    State.TAKEN: {Event.ANSWER: State.READY, Event.POSTPONE: State.UNDER_WAY},
    State.UNDER_WAY: {Event.ANSWER: State.READY},
    State.RESTING: {Event.GO_ON: State.READY},
    State.MUTED: {Event.GO_ON: State.READY},
}
"""Every legal event of each state, and the state after it."""

_ILLEGAL: Final = {
    Event.TAKE: "a frame is taken while another one is neither answered nor postponed",
    Event.ANSWER: "an answer comes, but no frame was taken",
    Event.POSTPONE: "a frame is postponed that was not taken",
    Event.REST: "a connection rests in the middle of a request",
    Event.MUTE: "a connection is muted in the middle of a request",
    Event.GO_ON: "a connection goes on that neither rests nor is muted",
}
_READY, _TAKEN, _UNDER_WAY, _RESTING, _MUTED = State
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
        self.state = _READY

    @property
    def is_under_way(self) -> bool:
        """Return whether a request was postponed and has no answer yet."""
        return self.state is _UNDER_WAY

    @property
    def is_muted(self) -> bool:
        return self.state is _MUTED

    @property
    def is_busy(self) -> bool:
        """Return whether a request is in progress or waits for its turn, or an answer has not left."""
        return self.state is _UNDER_WAY or self.state is _RESTING or self.unsent.size > 0

    @property
    def is_full(self) -> bool:
        """Return whether a frame waits that may not be taken yet, so that no more bytes should be read."""
        return bool(self.frames) and (self.is_busy or self.state is _MUTED)

    def take(self) -> bytes | memoryview | None:
        """Return the next request. It must be answered or postponed before another one is taken.

        None when no frame waits, too much is unsent, or the state is neither READY nor TAKEN.
        """
        if not self.frames or self.unsent.size > self._unsent_bytes_max:
            return None
        if self.state is not _READY:
            invariant(self.state is not _TAKEN, _ILLEGAL[Event.TAKE])
            return None
        self.state = _TAKEN
        return self.frames.popleft()

    def postpone(self) -> None:
        """Note that the answer to the frame that was taken comes later."""
        self._move(Event.POSTPONE)

    def rest(self) -> None:
        """Take no request before `go_on`: other connections are served first."""
        self._move(Event.REST)

    def mute(self) -> None:
        """Take no request and read no bytes before `go_on`: the peer is over its quota."""
        self._move(Event.MUTE)

    def go_on(self) -> None:
        """End a rest, or the time for which the peer was muted."""
        self._move(Event.GO_ON)

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
        if self.state is _RESTING or self.state is _MUTED:
            self.state = _READY

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
