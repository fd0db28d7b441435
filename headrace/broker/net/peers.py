"""Requests of this broker to other brokers of its cluster, over the listener between brokers.

A connection is opened at its first use, authenticated (`Network.introduction`), and kept. Its answers come in the order
of its requests; requests that must not wait for others use a *channel* of their own. When a peer has registered again
(another process, or another session), a new connection replaces the old one.

The outcome of a request is known only from its answer: `PeerLostError.sent` is True if it may have been carried out.
Requests are not repeated here: the caller knows which may be repeated, and to which broker.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from headrace.broker.net.outgoing import OutgoingConnection
from headrace.protocol.errors import DecodeError
from headrace.protocol.headers import RequestHeader, decode_response_header, encode_request_header

if TYPE_CHECKING:
    from headrace.protocol.schema import ApiMessage

ResponseT = TypeVar("ResponseT", bound="ApiMessage")

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 30.0
_CORRELATIONS: Final = 1 << 31


class Address(msgspec.Struct, frozen=True):
    """The address of a broker. `epoch` is that of its registration."""

    host: str
    port: int
    epoch: int


class PeerLostError(Exception):
    """A broker could not be reached, or has not answered. `sent`: it may have carried the request out."""

    def __init__(self, message: str, *, sent: bool, refused: bool = False) -> None:
        """`refused`: no process listens at its address."""
        super().__init__(message)
        self.message = message
        self.sent = sent
        self.refused = refused


class Connector(Protocol):
    """`broker.net.listener.Network`, as far as this module needs it."""

    async def connect(self, host: str, port: int) -> OutgoingConnection: ...


class Conversation:
    """Requests and their answers over one connection."""

    def __init__(self, connection: OutgoingConnection, client_id: str) -> None:
        self.connection = connection
        self._client_id = client_id
        self._number = 0

    @property
    def is_over(self) -> bool:
        return self.connection.closed

    def close(self, reason: str) -> None:
        self.connection.close(reason)

    async def ended(self) -> None:
        """Wait until the connection has ended."""
        ended = asyncio.Event()
        self.connection.when_closed = ended.set
        if not self.connection.closed:
            await ended.wait()

    async def ask(self, request: ApiMessage, response: type[ResponseT], version: int) -> ResponseT:
        """Send a request and return its answer. Raises ConnectionError. An answer that cannot be decoded ends the
        connection.
        """
        self._number = number = (self._number + 1) % _CORRELATIONS
        header = RequestHeader(request.API_KEY, version, number, self._client_id)
        head = encode_request_header(header, request.header_version(version))
        frame = await self.connection.ask([head, *request.encode_parts(version)])
        try:
            answered, position = decode_response_header(frame, response.header_version(version))
            if answered != number:
                raise DecodeError(f"it answers request {answered}, not {number}")
            if isinstance(frame, memoryview):
                data = bytes(frame)  # parts of the answer may be kept
                self.connection.release(frame)
                frame = data
            return response.decode(frame, version, None, position)
        except DecodeError as error:
            self.close(f"its answer cannot be read: {error}")
            raise ConnectionResetError(str(error)) from error


class _Line:
    """The connection of one channel to one broker."""

    __slots__ = ("address", "conversation", "opening")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.conversation: Conversation | None = None
        self.opening = asyncio.Lock()


class Peers:
    """The connections to other brokers; on the event loop."""

    def __init__(
        self,
        network: Connector,
        find: Callable[[int], Address | None],
        *,
        client_id: str,
    ) -> None:
        """`find` returns the address of a live broker."""
        self._network = network
        self._find = find
        self._client_id = client_id
        self._lines: dict[tuple[int, str], _Line] = {}

    async def ask(
        self,
        broker_id: int,
        request: ApiMessage,
        response: type[ResponseT],
        version: int | None = None,
        *,
        channel: str = "",
        seconds: float = ANSWER_SECONDS,
    ) -> ResponseT:
        """Send a request and return its answer. `version` None: the newest. If the answer takes longer than `seconds`,
        the connection is closed.

        Raises PeerLostError.
        """
        conversation = await self._conversation(broker_id, channel)
        try:
            async with asyncio.timeout(seconds):
                return await conversation.ask(
                    request, response, type(request).MAX_VERSION if version is None else version
                )
        except TimeoutError:
            conversation.close(f"it has not answered within {seconds:g} s")
            raise PeerLostError(
                f"broker {broker_id} has not answered within {seconds:g} s", sent=True
            ) from None
        except ConnectionError as error:
            raise PeerLostError(f"broker {broker_id}: {error}", sent=True) from error

    async def _conversation(self, broker_id: int, channel: str) -> Conversation:
        address = self._find(broker_id)
        if address is None:
            raise PeerLostError(f"broker {broker_id} is not alive", sent=False)
        line = self._lines.get((broker_id, channel))
        if line is None or line.address != address:
            if line is not None and line.conversation is not None:
                line.conversation.close("the broker has registered again")
            line = self._lines[broker_id, channel] = _Line(address)
        async with line.opening:
            if line.conversation is None or line.conversation.is_over:
                line.conversation = await self.connect(broker_id)
            return line.conversation

    async def connect(self, broker_id: int) -> Conversation:
        """Return a new conversation, which the caller closes. Raises PeerLostError."""
        address = self._find(broker_id)
        if address is None:
            raise PeerLostError(f"broker {broker_id} is not alive", sent=False)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await self._network.connect(address.host, address.port)
                return Conversation(connection, self._client_id)
        except TimeoutError:
            reason, refused = f"no connection within {CONNECT_SECONDS:g} s", False
        except OSError as error:
            reason, refused = error.strerror or str(error), error.errno == errno.ECONNREFUSED
        raise PeerLostError(
            f"cannot connect to broker {broker_id} at {address.host}:{address.port}: {reason}",
            sent=False,
            refused=refused,
        )

    def hang_up(self, broker_id: int, channel: str) -> None:
        """Close a channel's connection: its requests fail with PeerLostError. The next request opens another
        connection.
        """
        line = self._lines.get((broker_id, channel))
        if line is not None and line.conversation is not None:
            line.conversation.close("its answers are not needed any more")

    def close(self) -> None:
        lines, self._lines = self._lines, {}
        for line in lines.values():
            if line.conversation is not None:
                line.conversation.close("the broker stops")
