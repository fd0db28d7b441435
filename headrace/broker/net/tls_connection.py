"""One client connection with TLS: as `connection.py`, with a `TlsStream` between the socket and the exchange.

A connection requests its turn (`HandshakeQueue`) when its peer has sent something. Then it runs the handshake in steps
in a thread, and is not read meanwhile. Later all bytes of one read are decrypted at once, so that nothing stays inside
TLS while the socket is silent. Answers are encrypted a quarter of a megabyte at a time, and count as unsent until the
encrypted bytes have left. Regions of files must be read into memory first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from typing import Protocol

from headrace.broker.net.connection import Connection, Owner
from headrace.broker.net.faults import Fault
from headrace.broker.net.reply import Peer
from headrace.broker.net.tls import TlsError, TlsStream
from headrace.broker.runtime.ports import Stream
from headrace.broker.security.principal import Principal, Session

logger = logging.getLogger("headrace.net")

_HANDSHAKE_READ_BYTES = 16 * 1024
"""The size of a TLS record; bytes of an unauthenticated peer are kept until they are a whole message."""


class Encryption(Protocol):
    """The TLS of a listener for new connections; it may change between two connections."""

    @property
    def context(self) -> ssl.SSLContext: ...

    def admit(self, stream: TlsStream) -> Principal:
        """Return the peer's principal from its certificate. Raises TlsError if it is refused."""
        ...


class TlsOwner(Owner, Protocol):
    """The owner's additional methods for connections with TLS."""

    def run_handshake(self, stream: TlsStream) -> asyncio.Future[bool]:
        """Run `stream.handshake()`, perhaps in a thread."""
        ...

    def ask_for_handshake(self, connection: TlsConnection) -> None:
        """Call the connection's `begin` when its turn has come; called once."""

    def handshake_is_over(self, connection: TlsConnection) -> None:
        """Note that its handshake is complete, has failed or will not take place; called once."""


class TlsConnection(Connection):
    """One client connection with TLS."""

    __slots__ = (
        "_asks",
        "_encryption",
        "_handshake",
        "_is_open",
        "_is_shaking",
        "_owner",
        "_sealed",
        "_sealed_plain",
        "_tls",
        "_with_sasl",
    )

    def __init__(
        self, network: TlsOwner, sock: Stream, peer: Peer, encryption: Encryption, *, with_sasl: bool
    ) -> None:
        """`with_sasl`: the certificate does not authenticate the peer; SASL does."""
        super().__init__(network, sock, peer)
        self._owner = network
        self._encryption = encryption
        self._with_sasl = with_sasl
        self._tls: TlsStream | None = None
        self._is_open = False
        self._is_shaking = True
        self._asks = False
        self._handshake: asyncio.Future[bool] | None = None
        self._sealed = memoryview(b"")  # encrypted, and not sent
        self._sealed_plain = 0  # the number of unsent bytes that are in it, before encryption
        self._stop_reading()

    # -- the handshake -------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Wait for the peer's first bytes, and then request a turn."""
        self._resume_reading()

    def begin(self) -> None:
        """Begin the handshake, in its turn. Raises nothing."""
        if not self.closed:
            self._tls = TlsStream(self._encryption.context)
            self._resume_reading()

    def _read_handshake(self, tls: TlsStream) -> None:
        if not self._receive(tls, _HANDSHAKE_READ_BYTES, "closed by the peer during the TLS handshake"):
            return
        self._stop_reading()
        self._handshake = self._owner.run_handshake(tls)
        self._handshake.add_done_callback(self._stepped)

    def _stepped(self, step: asyncio.Future[bool]) -> None:
        self._handshake = None
        tls = self._tls
        if step.cancelled() or tls is None:
            return
        if self.closed:
            step.exception()
            return
        try:
            is_complete = step.result()
            principal = self._encryption.admit(tls) if is_complete else None
        except TlsError as error:
            del step  # it has the error, which refers to this frame: avoid a reference cycle
            self._refuse(f"the TLS handshake failed: {error}")
            return
        except Exception:
            logger.exception("a TLS handshake failed with an internal error")
            self.close("a TLS handshake failed with an internal error", Fault.SERVER)
            return
        self._send()
        if principal is not None and not self.closed:
            self._open(principal)
        self._resume_reading()
        if self._is_open:
            self._decrypt()  # the first request may have come with the last message of the handshake

    def _open(self, principal: Principal) -> None:
        self._is_open = True
        if not self._with_sasl:
            self.peer.session = Session(principal, self.peer.listener, "SSL", since=self._network.loop.time())
            self._meet()
        self._end_handshake()

    @property
    def waits_for_peer(self) -> bool:
        """Return whether the handshake waits for its peer, and not for its turn or a thread."""
        return self._is_shaking and self._handshake is None and (self._tls is not None or not self._asks)

    def is_refused(self, reason: str) -> None:
        """Close a connection that gets no turn and is not in the queue."""
        self._is_shaking = False
        self.close(reason, Fault.HANDSHAKE)

    def _end_handshake(self) -> None:
        if self._is_shaking:
            self._is_shaking = False
            self._owner.handshake_is_over(self)

    def _refuse(self, reason: str) -> None:
        """Send the peer an alert, if the socket takes it."""
        if not self.closed and self._tls is not None and not self._sealed:
            with contextlib.suppress(OSError):
                self._sock.send(self._tls.outgoing())
        self.close(reason, Fault.HANDSHAKE)

    # -- reading -------------------------------------------------------------------------------------------

    def on_readable(self) -> None:
        tls = self._tls
        if tls is None:
            if self._is_shaking and not self._asks:
                self._asks = True
                self._stop_reading()
                self._owner.ask_for_handshake(self)
            return
        if not self._is_open:
            self._read_handshake(tls)
            return
        exchange = self._exchange
        if exchange.frames and exchange.is_full:
            self._stop_reading()
            return
        if self._is_stranger:
            self._meet()
        if self._receive(tls, self._network.limits.decrypted_bytes_per_call, "closed by the peer"):
            self.last_active = self._network.loop.time()
            self._decrypt()

    def _receive(self, tls: TlsStream, bytes_max: int, end: str) -> bool:
        """Return whether bytes were received; close the connection with the reason `end` when no more will come."""
        scratch = self._network.scratch
        try:
            count = self._sock.recv_into(scratch[:bytes_max])
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}")
            return False
        if count == 0:
            self.close(end)
            return False
        tls.received(scratch[:count])
        return True

    def _decrypt(self) -> None:
        tls, incoming = self._tls, self._exchange.incoming
        if tls is None:
            return
        try:
            while count := tls.read_into(incoming.room()):
                incoming.received(count)
            if tls.has_outgoing:
                self._send()
            if self._exchange.frames and not self.closed:
                self._work()
        except TlsError as error:
            self._refuse(str(error))
        except Exception as error:  # noqa: BLE001 - ends this connection
            self._end_by(error)
        else:
            if tls.is_closed:
                self.close("closed by the peer")

    # -- writing -------------------------------------------------------------------------------------------

    def _send_at_once(self, data: bytes) -> None:
        self._exchange.unsent.put(data)
        if not self._writing:
            self._send()

    def _send(self) -> None:
        tls = self._tls
        if tls is None:
            return
        unsent = self._exchange.unsent
        limits = self._network.limits
        enough = unsent.size - limits.encrypted_bytes_per_turn
        try:
            while True:
                if not self._sealed:
                    if unsent.size and self._is_open:
                        if unsent.size < enough:
                            # as if the socket took no more: others have their turn first
                            raise BlockingIOError
                        self._sealed_plain = self._seal(tls)
                    if not tls.has_outgoing:
                        break
                    self._sealed = memoryview(tls.outgoing())
                self._sealed = self._sealed[self._sock.send(self._sealed) :]
                if not self._sealed and self._sealed_plain:
                    unsent.sent(self._sealed_plain)
                    self._sealed_plain = 0
        except (BlockingIOError, InterruptedError):
            self._watch_writable(True)
            return
        except OSError as error:
            self.close(f"the connection broke: {error.strerror}")
            return
        except TlsError as error:
            self.close(str(error), Fault.HANDSHAKE)
            return
        self._watch_writable(False)

    def _seal(self, tls: TlsStream) -> int:
        """Encrypt the next bytes to send; return their number before encryption. Raises OSError, TlsError."""
        unsent = self._exchange.unsent
        limits = self._network.limits
        room = self._network.scratch[: limits.encrypted_bytes_per_call]
        buffers, region = unsent.head(limits.buffers_per_call)
        if buffers and memoryview(buffers[0]).nbytes >= len(room):
            tls.write(memoryview(buffers[0]).cast("B")[: len(room)])
            return len(room)
        filled = 0
        for buffer in buffers:
            part = memoryview(buffer).cast("B")[: len(room) - filled]
            room[filled : filled + len(part)] = part
            filled += len(part)
        if region is not None and filled < len(room):
            filled += self._network.sockets.read_region(region, room[filled:])
        tls.write(room[:filled])
        return filled

    def on_writable(self) -> None:
        if self._is_open:
            super().on_writable()
        else:
            self._send()

    # -- the end -------------------------------------------------------------------------------------------

    def close(self, reason: str, fault: Fault | None = None) -> None:
        if self.closed:
            return
        if self._is_open and self._tls is not None and not self._sealed:
            with contextlib.suppress(OSError):
                self._tls.close()
                self._sock.send(self._tls.outgoing())
        super().close(reason, fault)
        self._sealed = memoryview(b"")
        self._end_handshake()
