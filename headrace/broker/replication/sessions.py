"""Fetch sessions between brokers (KIP-227), the follower's end: what a leader has been told is not told it again.

A session is a list of partitions with what was last asked of each. A request names those of which something else is to
be asked, and those that are no longer; the answer names those that have news. So a round costs what has changed, not
what there is.

    epoch  0    a session begins, whose id is in the answer
    epoch -1    no session: this fetch names all
    epoch  n    goes on, if it is higher than any before; else INVALID_FETCH_SESSION_EPOCH

Beside the rules for consumers (`broker.api.fetch_sessions`)
- An epoch that is higher by more than one says that the answer before has not come. What it told is told again: a
  connection that breaks ends no session.
- A partition that was answered with an error, or with where the logs part, is out of the session when that answer has
  come.
- One request names at most `NAMED_MAX` partitions, so that none takes long. Many partitions are named one request after
  the other, and nobody waits before they all are.

A leader of an earlier version keeps no sessions (id 0): everything is named in each request.

Pure. Nothing of this outlives a process.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from headrace.protocol.errors import ErrorCode

NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
EPOCH_MAX: Final = 2**31 - 3
NAMED_MAX: Final = 500
"""In one request or answer: about a millisecond of what they cost each end."""
OVER: Final = {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH}
"""The session has ended at the other end."""

F = TypeVar("F", bound=Hashable)
Told = tuple[int, int, int, int]
"""Leader epoch, fetch offset, epoch of the last record, log start."""


class Asking(Generic[F]):
    """What is asked of one leader, follower by follower."""

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
        """There is nothing to ask, nor to take back."""
        return not self._members and not (self._keeps_sessions and self._forgotten)

    @property
    def is_said(self) -> bool:
        """The next request is about all that is to be asked: it may be waited for."""
        return not self._keeps_sessions or len(self._unnamed) <= NAMED_MAX

    # -- who is to be asked for ----------------------------------------------------------------------------

    def include(self, follower: F, told: Told) -> None:
        """Ask for it so."""
        self._forgotten.pop(follower, None)
        if follower in self._members and self._there.get(follower) == told:
            return
        self._members[follower] = None
        self._unnamed[follower] = None

    def exclude(self, follower: F) -> None:
        """Do not ask for it any more."""
        if self._members.pop(follower, self) is self:
            return
        self._unnamed.pop(follower, None)
        if follower in self._there or follower in self._sent:
            self._forgotten[follower] = None

    def epoch_of(self, follower: F) -> int:
        """The leader epoch that it is being asked for with; -1 if it is not."""
        told = self._sent.get(follower) or self._there.get(follower)
        return -1 if told is None or follower not in self._members else told[0]

    # -- requests ------------------------------------------------------------------------------------------

    def next_names(self) -> list[F]:
        """Who is to be named in the next request; how is told with `send`."""
        if not self._keeps_sessions:
            return list(self._members)
        return [follower for follower, _ in zip(self._unnamed, range(NAMED_MAX), strict=False)]

    def send(self, named: dict[F, Told]) -> list[F]:
        """A request names them so; gives those that it has to take back."""
        for follower in named:
            self._unnamed.pop(follower, None)
        self._sent = named
        gone = [follower for follower, _ in zip(self._forgotten, range(NAMED_MAX), strict=False)]
        for follower in gone:
            del self._forgotten[follower]
        self._sent_forgotten = gone
        return gone

    def lost(self) -> None:
        """Nobody knows whether the request was taken; its answer will not come."""
        self._unnamed = {each: None for each in self._sent if each in self._members} | self._unnamed
        for follower in (*self._sent, *self._sent_forgotten):
            if follower not in self._members:
                self._forgotten[follower] = None
        self._there.update(self._sent)
        self._sent, self._sent_forgotten = {}, []
        if self.session_id != NO_SESSION:
            self._go_on(2)

    def answered(self, session_id: int) -> None:
        """The answer has come."""
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
        """The answer had for it what takes it out of the session."""
        self._there.pop(follower, None)
        if follower in self._members:
            self._unnamed[follower] = None

    def over(self) -> None:
        """The session is; another one begins."""
        self.session_id, self.epoch = NO_SESSION, INITIAL_EPOCH
        self._there, self._sent, self._sent_forgotten, self._forgotten = {}, {}, [], {}
        self._unnamed = dict(self._members)

    def _go_on(self, steps: int) -> None:
        if self.epoch + steps > EPOCH_MAX:
            self.over()
        else:
            self.epoch += steps
