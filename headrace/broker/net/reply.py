"""What the network side and those who answer requests say to each other.

An `Answerer` gets one whole frame (without its length) and gives back one of
- a list of parts, the answer's header and body: sent behind a length that the connection puts in front,
- None: there is no answer (a produce with acks=0),
- a `Pending`: the answer comes later; the connection takes no further request until then.
It raises `CloseConnection` when there is no point in talking on. The frame may be used again once the answer
is given and no view of it is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from headrace.broker.net.faults import Fault
from headrace.broker.runtime.ports import Region
from headrace.broker.security.principal import Session
from headrace.protocol.one_line import one_line

_REASON_LENGTH_MAX = 1000


Buffer = bytes | bytearray | memoryview
Part = Buffer | Region


class CloseConnection(Exception):  # noqa: N818 - a decision, not an error of ours
    """The peer broke the protocol, or is not let in; the text says how, in one line.

    The connection is closed: without an answer, or after `answer` has gone out, if the socket takes it at once.
    """

    def __init__(self, reason: str, answer: list[Part] | None = None, fault: Fault = Fault.REQUEST) -> None:
        super().__init__(one_line(reason, _REASON_LENGTH_MAX))
        self.answer = answer
        self.fault = fault


class Peer(msgspec.Struct):
    """Who sends: what an answerer may know of a connection.

    `session` is who it is; None until it is authenticated. `memory` and `authentication` are the answerers' own, gone
    with the connection. `throttle_seconds` is set by an answerer: for so long nothing of the peer is read after the
    answer that it gives.
    """

    connection_id: int
    host: str
    port: int
    listener: str
    session: Session | None
    memory: Any = None
    authentication: Any = None
    throttle_seconds: float = 0.0


class Pending(msgspec.Struct):
    """An answer to come. When `outcome` is done, `finish` makes the parts of it (or raises CloseConnection).

    If the connection ends before, `outcome` is cancelled only when `may_cancel` says so: what changes
    something must not stop half-way because nobody waits for the answer any more.
    """

    outcome: Awaitable[Any]
    finish: Callable[[asyncio.Future[Any]], list[Part] | None]
    may_cancel: bool = False


Answer = list[Part] | Pending | None
Answerer = Callable[[Peer, bytes | memoryview], Answer]
