"""The TLS handshakes of one connection, before its first request: of an accepted one, and of an outgoing one.

A `ServerHandshake` watches the socket until its connection does. It requests its turn (`HandshakeQueue`) when its peer
has sent something. Then it runs in steps in a thread, and nothing is read meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from enum import IntEnum
from functools import partial
from typing import Protocol

from headrace.broker.net.connection import Connection
from headrace.broker.net.faults import Fault
from headrace.broker.net.outgoing import OutgoingConnection
from headrace.broker.net.tls import TlsError, TlsStream
from headrace.broker.net.tls_transport import TlsTransport
from headrace.broker.security.principal import Principal, Session

logger = logging.getLogger("headrace.net")

_READ_BYTES = 16 * 1024
"""The size of a TLS record; bytes of an unauthenticated peer are kept until they are a whole message."""


class Encryption(Protocol):
    """The TLS of a listener for new connections; it may change between two connections."""

    @property
    def context(self) -> ssl.SSLContext: ...

    def admit(self, stream: TlsStream) -> Principal:
        """Return the peer's principal from its certificate. Raises TlsError if it is refused."""
        ...


class HandshakeOwner(Protocol):
    """The owner of connections, as far as handshakes need it (`listener.py`)."""

    loop: asyncio.AbstractEventLoop

    def run_handshake(self, stream: TlsStream) -> asyncio.Future[bool]:
        """Run `stream.handshake()`, perhaps in a thread."""
        ...

    def ask_for_handshake(self, handshake: ServerHandshake) -> None:
        """Call the handshake's `begin` when its turn has come; called once."""

    def handshake_is_complete(self, handshake: ServerHandshake) -> None:
        """Note that it is complete; called once. For a handshake that fails, the connection closes instead."""


class HandshakeState(IntEnum):
    SILENT = 0
    """The peer has sent nothing."""
    QUEUED = 1
    """It waits for its turn."""
    READING = 2
    """It waits for the peer's next message."""
    COMPUTING = 3
    """OpenSSL processes a message, in a thread."""
    COMPLETE = 4


class ServerHandshake:
    """The handshake of an accepted connection."""

    __slots__ = ("_encryption", "_owner", "_transport", "_with_sasl", "connection", "state")

    def __init__(
        self, owner: HandshakeOwner, connection: Connection, encryption: Encryption, *, with_sasl: bool
    ) -> None:
        """`with_sasl`: the certificate does not authenticate the peer; SASL does."""
        self.connection = connection
        self.state = HandshakeState.SILENT
        self._owner = owner
        self._encryption = encryption
        self._with_sasl = with_sasl
        self._transport: TlsTransport | None = None

    @property
    def waits_for_peer(self) -> bool:
        """Return whether the handshake waits for its peer, and not for its turn or a thread."""
        return self.state in (HandshakeState.SILENT, HandshakeState.READING)

    def listen(self) -> None:
        """Wait for the peer's first bytes, and then request a turn."""
        self.connection.watch(self)

    def begin(self) -> None:
        """Begin the handshake, in its turn. Raises nothing."""
        connection = self.connection
        if not connection.closed:
            self._transport = connection.encrypt(TlsStream(self._encryption.context))
            self.state = HandshakeState.READING
            connection.resume_reading()

    def on_readable(self) -> None:
        connection, transport = self.connection, self._transport
        if transport is None:
            connection.stop_reading()
            self.state = HandshakeState.QUEUED
            self._owner.ask_for_handshake(self)
        elif _read(connection, transport):
            connection.stop_reading()
            self.state = HandshakeState.COMPUTING
            self._owner.run_handshake(transport.stream).add_done_callback(partial(self._stepped, transport))

    def on_writable(self) -> None:
        self.connection.send()

    def _stepped(self, transport: TlsTransport, step: asyncio.Future[bool]) -> None:
        connection = self.connection
        if step.cancelled():
            return
        if connection.closed:
            step.exception()
            return
        self.state = HandshakeState.READING
        try:
            self._continue(transport, is_complete=step.result())
        except TlsError as error:
            del step  # it has the error, which refers to this frame: avoid a reference cycle
            transport.send_alert()
            connection.close(f"the TLS handshake failed: {error}", Fault.HANDSHAKE)
        except Exception:
            logger.exception("a TLS handshake failed with an internal error")
            connection.close("a TLS handshake failed with an internal error", Fault.SERVER)

    def _continue(self, transport: TlsTransport, *, is_complete: bool) -> None:
        principal = self._encryption.admit(transport.stream) if is_complete else None
        self.connection.send()
        if not self.connection.closed:
            self.connection.resume_reading()
            if principal is not None:
                transport.established()
                self._complete(principal)

    def _complete(self, principal: Principal) -> None:
        self.state = HandshakeState.COMPLETE
        connection = self.connection
        peer = connection.peer
        if not self._with_sasl:
            peer.session = Session(principal, peer.listener, "SSL", since=self._owner.loop.time())
        self._owner.handshake_is_complete(self)
        connection.watch(connection)
        connection.on_readable()  # the first request may be there


class ClientHandshake:
    """The handshake of an outgoing connection."""

    __slots__ = ("_connection", "_over", "_transport")

    def __init__(self, connection: OutgoingConnection, stream: TlsStream) -> None:
        self._connection = connection
        self._transport = connection.encrypt(stream)
        self._over = asyncio.Event()

    async def run(self) -> None:
        """Complete the handshake. Raises ConnectionError, and closes the connection, if one side does not accept the
        other.
        """
        connection = self._connection
        connection.when_closed = self._over.set
        connection.watch(self)
        self._step()
        try:
            await self._over.wait()
        except asyncio.CancelledError:
            connection.close("given up")
            raise
        if connection.closed:
            raise ConnectionResetError(f"no connection to {connection.name}: {connection.close_reason}")

    def on_readable(self) -> None:
        if _read(self._connection, self._transport):
            self._step()

    def on_writable(self) -> None:
        self._connection.send()

    def _step(self) -> None:
        connection, transport = self._connection, self._transport
        try:
            is_complete = transport.stream.handshake()
        except TlsError as error:
            transport.send_alert()
            connection.close(f"the TLS handshake failed: {error}")
            return
        connection.send()
        if is_complete and not connection.closed:
            transport.established()
            self._over.set()
            connection.watch(connection)
            connection.on_readable()


class Closable(Protocol):
    def close(self, reason: str) -> None: ...


def _read(connection: Closable, transport: TlsTransport) -> bool:
    """Return whether bytes came. Close the connection if no more will come."""
    try:
        is_open = transport.take_in(_READ_BYTES)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError as error:
        connection.close(f"the connection broke: {error.strerror}")
        return False
    if not is_open:
        connection.close("closed by the peer during the TLS handshake")
    return is_open
