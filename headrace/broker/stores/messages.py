"""Messages between a coordinator and the broker processes of one server, over a pair of Unix sockets.

A frame is four bytes of length, big-endian, and a message in MessagePack. A process sends requests, numbered from 1.
The coordinator sends an answer to each, and events of watches, which have the number 0. A request names the session
that it belongs to; `Begin` begins one.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from headrace.broker.runtime.ports import (
    BadVersionError,
    Node,
    NodeExistsError,
    NoNodeError,
    StoreError,
    StoreOperation,
    StoreUnavailableError,
)

REQUEST_BYTES_MAX: Final = 64 << 20
_LENGTH_BYTES: Final = 4
SESSION_SECONDS: Final = 9.0
"""Time without a request after which a session ends: Kafka's default of `broker.session.timeout.ms`."""
LEASE_OF_SESSION: Final = 0.8
BEATS_PER_SESSION: Final = 6


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Begin a session of this connection, in the place of the one before. The answer is its id."""


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Extend the session."""


class End(msgspec.Struct, frozen=True, tag=True):
    """End the session: its ephemeral nodes are gone when this is answered."""


class GetMany(msgspec.Struct, frozen=True, tag=True):
    paths: tuple[str, ...]


class Children(msgspec.Struct, frozen=True, tag=True):
    path: str


class Transact(msgspec.Struct, frozen=True, tag=True):
    operations: tuple[StoreOperation, ...]


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Send events for the path from now on; all watches end with the session."""

    path: str


class Unwatch(msgspec.Struct, frozen=True, tag=True):
    path: str


Call = Begin | Beat | End | GetMany | Children | Transact | Watch | Unwatch


class Request(msgspec.Struct, frozen=True, array_like=True):
    number: int
    session: int
    call: Call


class Refusal(msgspec.Struct, frozen=True):
    """The reason why a request was not carried out: `kind` is one of `REFUSALS`, or `SESSION_OVER`, whose message is
    the session's id. An empty kind is a failure whose outcome is unknown.
    """

    kind: str
    message: str


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """`changes` counts the changes of the store up to the answer. The result's type is that of the request; an event's
    is the path.
    """

    number: int
    changes: int
    result: msgspec.Raw
    refusal: Refusal | None = None


SESSION_OVER: Final = "SessionOver"
REFUSALS: Final = {
    kind.__name__: kind
    for kind in (StoreError, NoNodeError, NodeExistsError, BadVersionError, StoreUnavailableError)
}
decode_request: Final = msgspec.msgpack.Decoder(Request).decode
decode_answer: Final = msgspec.msgpack.Decoder(Answer).decode
decode_nodes: Final = msgspec.msgpack.Decoder(list[Node | None]).decode
decode_names: Final = msgspec.msgpack.Decoder(list[str]).decode
decode_number: Final = msgspec.msgpack.Decoder(int).decode
decode_path: Final = msgspec.msgpack.Decoder(str).decode


def frame(message: Request | Answer) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def raw(result: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(result))


async def read_frame(reader: asyncio.StreamReader, bytes_max: int | None = None) -> bytes | None:
    """Return the next message; None at the end of the connection. Raises ValueError for one that is too long."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        if bytes_max is not None and length > bytes_max:
            raise ValueError(f"a message of {length:,} bytes exceeds the limit of {bytes_max:,}")
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
