"""Requests of this broker to the others of its cluster, over the listener that brokers use among themselves.

A connection is opened when it is first needed, shows who asks (`Network.introduction`), and is kept. Answers of one
connection come in the order of its requests, each after the one before it: who must not wait for others names a
*channel* of its own. When a peer has registered anew (another process, or another session of the same) a new connection
takes the place of the old one.

What came of a request is known only if it was answered: `PeerLostError.sent` says whether it may have been carried out.
Nothing is repeated here, and nobody is found: who asks knows what may be repeated, and whom to ask then.
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
    """Where a broker is. `epoch` is that of its registration."""

    host: str
    port: int
    epoch: int


class PeerLostError(Exception):
    """It could not be asked, or has not answered. `sent`: it may have carried the request out."""

    def __init__(self, message: str, *, sent: bool, refused: bool = False) -> None:
        """`refused`: nobody listens where it was."""
        super().__init__(message)
        self.message = message
        self.sent = sent
        self.refused = refused


class Connector(Protocol):
    """`broker.net.listener.Network`, as far as it is needed here."""

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
        """Wait until the connection has."""
        ended = asyncio.Event()
        self.connection.when_closed = ended.set
        if not self.connection.closed:
            await ended.wait()

    async def ask(self, request: ApiMessage, response: type[ResponseT], version: int) -> ResponseT:
        """Raises ConnectionError. An answer that cannot be read ends the connection."""
        self._number = number = (self._number + 1) % _CORRELATIONS
        header = RequestHeader(request.API_KEY, version, number, self._client_id)
        head = encode_request_header(header, request.header_version(version))
        frame = await self.connection.ask([head, *request.encode_parts(version)])
        try:
            answered, position = decode_response_header(frame, response.header_version(version))
            if answered != number:
                raise DecodeError(f"it is to request {answered}, not {number}")
            if isinstance(frame, memoryview):
                data = bytes(frame)  # what is in the answer may be kept
                self.connection.release(frame)
                frame = data
            return response.decode(frame, version, None, position)
        except DecodeError as error:
            self.close(f"its answer cannot be read: {error}")
            raise ConnectionResetError(str(error)) from error


class _Line:
    """To one broker, by one channel."""

    __slots__ = ("address", "conversation", "opening")

    def __init__(self, address: Address) -> None:
        self.address = address
        self.conversation: Conversation | None = None
        self.opening = asyncio.Lock()


class Peers:
    """See the module's contract. On the event loop."""

    def __init__(
        self,
        network: Connector,
        find: Callable[[int], Address | None],
        *,
        client_id: str,
    ) -> None:
        """`find`: where a broker that is alive is."""
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
        """`version` None: the newest. A peer that takes longer is not waited for, and its connection is closed.

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
                line.conversation.close("the broker has registered anew")
            line = self._lines[broker_id, channel] = _Line(address)
        async with line.opening:
            if line.conversation is None or line.conversation.is_over:
                line.conversation = await self.connect(broker_id)
            return line.conversation

    async def connect(self, broker_id: int) -> Conversation:
        """A conversation of the caller's own, which is the caller's to close. Raises PeerLostError."""
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
            f"broker {broker_id} at {address.host}:{address.port} cannot be asked: {reason}",
            sent=False,
            refused=refused,
        )

    def hang_up(self, broker_id: int, channel: str) -> None:
        """Whoever waits for an answer of this channel does not any more: PeerLostError. The next request opens another
        connection.
        """
        line = self._lines.get((broker_id, channel))
        if line is not None and line.conversation is not None:
            line.conversation.close("nobody waits for the answer any more")

    def close(self) -> None:
        lines, self._lines = self._lines, {}
        for line in lines.values():
            if line.conversation is not None:
                line.conversation.close("the broker stops")
