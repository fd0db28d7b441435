"""TLS without a socket: encrypted bytes in, plain bytes out, and the other way round.

The protocol is the standard library's (OpenSSL). Nothing here waits or calls the system: a shell moves the bytes
(`tls_connection.py`), and a simulator moves them as it likes.

    received(data) -> handshake() until it is True -> read_into(room) until 0
    write(data) -> outgoing()

`handshake` takes up to some milliseconds (RSA of 4,096 bits: 6), without the interpreter's lock: it may be called in
a thread, while nothing else is called. Every call may leave something for `outgoing` (handshakes, key updates, alerts),
also one that raises. After an error, and after `is_closed`, nothing more is read.
"""

from __future__ import annotations

import contextlib
import ssl
from typing import Final

from headrace.protocol.one_line import one_line

_NOT_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "HTTPS_PROXY_REQUEST", "UNKNOWN_PROTOCOL"}
)
_MEANT: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it has sent no certificate, and ssl.client.auth=required",
    "UNSUPPORTED_PROTOCOL": "it speaks no version of TLS that ssl.enabled.protocols allows",
    "NO_SHARED_CIPHER": "it offers no cipher suite that is allowed here",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the certificate of this listener (unknown CA)",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept the certificate of this listener",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept the certificate of this listener",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it says that the certificate of this listener has expired",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it refuses the version of TLS",
}


class TlsError(Exception):
    """The peer does not keep to TLS, or is not let in; the text says how, in one line."""


class TlsStream:
    """See the module's contract. One side of one connection."""

    __slots__ = ("_from_peer", "_tls", "_to_peer", "is_closed")

    def __init__(self, context: ssl.SSLContext, server_name: str | None = None) -> None:
        """The client's side where the server's name is given, by which it was found."""
        self._from_peer = ssl.MemoryBIO()
        self._to_peer = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._from_peer, self._to_peer, server_side=server_name is None, server_hostname=server_name
        )
        self.is_closed = False
        """The peer has said that nothing more comes."""

    def received(self, data: memoryview) -> None:
        """Encrypted bytes are here."""
        self._from_peer.write(data)

    def handshake(self) -> bool:
        """Go on with the handshake; whether it is complete. Raises TlsError."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise _told(error) from None
        return True

    def peer_certificate(self) -> bytes | None:
        """The certificate (DER) that the peer has proved to own; None if it has shown none. After the handshake."""
        return self._tls.getpeercert(binary_form=True)

    @property
    def version(self) -> str:
        """`TLSv1.3`, say; after the handshake."""
        return self._tls.version() or ""

    @property
    def cipher(self) -> str:
        """The cipher suite, by OpenSSL's name; after the handshake."""
        cipher = self._tls.cipher()
        return "" if cipher is None else cipher[0]

    def read_into(self, room: memoryview) -> int:
        """Decrypt into `room`, not empty; how many bytes that were. 0: everything that is here has been read.
        Raises TlsError.
        """
        if self.is_closed or (not self._from_peer.pending and not self._tls.pending()):
            return 0
        try:
            count: int = self._tls.read(len(room), room)  # type: ignore[assignment]
        except ssl.SSLWantReadError:
            return 0
        except ssl.SSLZeroReturnError:
            self.is_closed = True
            return 0
        except ssl.SSLError as error:
            raise _told(error) from None
        if not count:
            self.is_closed = True
        return count

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Encrypt: 256 KiB and more in one go cost least. Raises TlsError."""
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise _told(error) from None

    @property
    def has_outgoing(self) -> bool:
        return self._to_peer.pending > 0

    def outgoing(self) -> bytes:
        """Everything that is to be sent, encrypted; given once."""
        return self._to_peer.read()

    def close(self) -> None:
        """Say that nothing more comes (close_notify); an established stream only."""
        with contextlib.suppress(ssl.SSLError):  # it waits for the peer's own, which nobody waits for
            self._tls.unwrap()


def _told(error: ssl.SSLError) -> TlsError:
    reason = error.reason or ""
    if reason in _NOT_TLS:
        return TlsError("it does not speak TLS, and this listener does")
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(one_line(f"its certificate is not accepted: {error.verify_message}", 300))
    return TlsError(_MEANT.get(reason) or one_line(f"TLS failed: {reason or error}", 300))
