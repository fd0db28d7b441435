"""Fetch sessions between brokers (KIP-227), the follower's side: a request does not repeat what the leader knows.

A session is a list of partitions with the last request for each. A request names partitions whose request has changed,
and those to forget; the answer names those with news. So a round costs only what has changed.

    epoch  0    a session begins, whose id is in the answer
    epoch -1    no session: this fetch names all
    epoch  n    goes on, if it is higher than any before; else INVALID_FETCH_SESSION_EPOCH

In addition to the rules for consumers (`broker.api.fetch_sessions`)
- An epoch that is higher by more than one means that the previous answer was lost. Its content is sent again: a broken
  connection does not end a session.
- A partition whose answer has an error or a diverging epoch leaves the session when that answer has arrived.
- One request names at most `NAMED_MAX` partitions, so that none takes long. More partitions take several requests, and
  the leader does not wait before all are named.

A leader of an earlier version keeps no sessions (id 0): everything is named in each request.

Pure. Sessions end with the process.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from headrace.protocol.errors import ErrorCode

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
EPOCH_MAX: Final = 2**31 - 3
NAMED_MAX: Final = 500
"""Maximum number of partitions that a request or answer names: about a millisecond of work on each side."""
OVER: Final = {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH}
"""Errors after which the session has ended at the leader."""

F = TypeVar("F", bound=Hashable)
Told = tuple[int, int, int, int]
"""Leader epoch, fetch offset, epoch of the last record, log start."""


class Asking(Generic[F]):
    """The session with one leader, by follower."""

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._keeps_sessions = True
        self._members: dict[F, None] = {}
        self._unnamed: dict[F, None] = {}
        self._there: dict[F, Told] = {}
        self._forgotten: dict[F, None] = {}
        self._sent: dict[F, Told] = {}
        self._sent_forgotten: list[F] = []

    def __contains__(self, follower: F) -> bool:
        return follower in self._members

    @property
    def is_empty(self) -> bool:
        """True if there are no partitions to request or to forget."""
        return not self._members and not (self._keeps_sessions and self._forgotten)

    @property
    def is_said(self) -> bool:
        """True if the next request completes the list, so that the leader may wait before it answers."""
        return not self._keeps_sessions or len(self._unnamed) <= NAMED_MAX

    # -- followers in the session --------------------------------------------------------------------------

    def include(self, follower: F, told: Told) -> None:
        """Request this for a follower."""
        self._forgotten.pop(follower, None)
        if follower in self._members and self._there.get(follower) == told:
            return
        self._members[follower] = None
        self._unnamed[follower] = None

    def exclude(self, follower: F) -> None:
        """Stop requesting for a follower."""
        if self._members.pop(follower, self) is self:
            return
        self._unnamed.pop(follower, None)
        if follower in self._there or follower in self._sent:
            self._forgotten[follower] = None

    def epoch_of(self, follower: F) -> int:
        """Return the leader epoch of a follower's request; -1 if it is not in the session."""
        told = self._sent.get(follower) or self._there.get(follower)
        return -1 if told is None or follower not in self._members else told[0]

    # -- requests ------------------------------------------------------------------------------------------

    def next_names(self) -> list[F]:
        """Return the followers to name in the next request; `send` takes their requests."""
        if not self._keeps_sessions:
            return list(self._members)
        return [follower for follower, _ in zip(self._unnamed, range(NAMED_MAX), strict=False)]

    def send(self, named: dict[F, Told]) -> list[F]:
        """Note the request with its followers. Return those that it must forget."""
        for follower in named:
            self._unnamed.pop(follower, None)
        self._sent = named
        gone = [follower for follower, _ in zip(self._forgotten, range(NAMED_MAX), strict=False)]
        for follower in gone:
            del self._forgotten[follower]
        self._sent_forgotten = gone
        return gone

    def lost(self) -> None:
        """Note that the request has no answer: it is unknown whether the leader received it."""
        self._unnamed = {each: None for each in self._sent if each in self._members} | self._unnamed
        for follower in (*self._sent, *self._sent_forgotten):
            if follower not in self._members:
                self._forgotten[follower] = None
        self._there.update(self._sent)
        self._sent, self._sent_forgotten = {}, []
        if self.session_id != NO_SESSION:
            self._go_on(2)

    def answered(self, session_id: int) -> None:
        """Note that the answer has arrived."""
        for follower in self._sent_forgotten:
            self._there.pop(follower, None)
        self._keeps_sessions = session_id != NO_SESSION
        if self._keeps_sessions:
            self._there.update(self._sent)
        else:
            self._there, self._forgotten = self._sent, {}
        self._sent, self._sent_forgotten = {}, []
        self.session_id = session_id
        if self._keeps_sessions:
            self._go_on(1)

    def failed(self, follower: F) -> None:
        """Note that the answer removes a follower from the session."""
        self._there.pop(follower, None)
        if follower in self._members:
            self._unnamed[follower] = None

    def over(self) -> None:
        """End the session; another one begins."""
        self.session_id, self.epoch = NO_SESSION, INITIAL_EPOCH
        self._there, self._sent, self._sent_forgotten, self._forgotten = {}, {}, [], {}
        self._unnamed = dict(self._members)

    def _go_on(self, steps: int) -> None:
        if self.epoch + steps > EPOCH_MAX:
            self.over()
        else:
            self.epoch += steps
