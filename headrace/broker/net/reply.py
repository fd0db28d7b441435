"""The interface between the network and the code that answers requests.

An `Answerer` gets one whole frame (without its length) and returns one of
- a list of parts, the answer's header and body: the connection sends them behind their length,
- None: there is no answer (a produce with acks=0),
- a `Pending`: the answer comes later; the connection takes no further request until then. It raises `CloseConnection`
  to end the connection. The frame may be reused once the answer is returned and it has no views.
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
    """The peer broke the protocol or was refused; the text gives the reason in one line.

    The connection is closed: without an answer, or after `answer` has gone out, if the socket takes it at once.
    """

    def __init__(self, reason: str, answer: list[Part] | None = None, fault: Fault = Fault.REQUEST) -> None:
        super().__init__(one_line(reason, _REASON_LENGTH_MAX))
        self.answer = answer
        self.fault = fault


class Peer(msgspec.Struct):
    """The sender of a request: the state of a connection that answerers may use.

    `session` is None until it is authenticated. `memory` and `authentication` belong to the answerers, and end with the
    connection. An answerer sets `throttle_seconds`: after its answer, nothing is read from the peer for this time.
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
    """A future answer. When `outcome` is done, `finish` makes its parts (or raises CloseConnection).

    If the connection ends before, `outcome` is cancelled only if `may_cancel` is set: a change must not stop half-way
    because its client has disconnected.
    """

    outcome: Awaitable[Any]
    finish: Callable[[asyncio.Future[Any]], list[Part] | None]
    may_cancel: bool = False


Answer = list[Part] | Pending | None
Answerer = Callable[[Peer, bytes | memoryview], Answer]
