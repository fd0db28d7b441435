"""TLS without a socket: encrypted bytes in, plain bytes out, and the other way round.

The protocol is the standard library's (OpenSSL). This module does not wait or call the system: a shell moves the bytes
(`tls_transport.py`), or a simulator.

    received(data) -> handshake() until it is True -> read_into(room) until 0
    write(data) -> outgoing()

`handshake` takes up to some milliseconds (RSA of 4,096 bits: 6), without the interpreter's lock: it may run in a
thread, while no other method is called. Every call may produce bytes for `outgoing` (handshakes, key updates, alerts),
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
    "UNSUPPORTED_PROTOCOL": "it supports no version of TLS that ssl.enabled.protocols allows",
    "NO_SHARED_CIPHER": "it offers no cipher suite that ssl.cipher.suites allows",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the certificate of this listener (unknown CA)",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "it does not accept the certificate of this listener",
    "SSLV3_ALERT_BAD_CERTIFICATE": "it does not accept the certificate of this listener",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "it reports that the certificate of this listener has expired",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it refuses the version of TLS",
}


class TlsError(Exception):
    """The peer broke the TLS protocol, or is refused; the text gives the reason in one line."""


class TlsStream:
    """One side of one TLS connection."""

    __slots__ = ("_from_peer", "_tls", "_to_peer", "is_closed")

    def __init__(self, context: ssl.SSLContext, server_name: str | None = None) -> None:
        """With `server_name`, the name by which the server was found, this is the client's side."""
        self._from_peer = ssl.MemoryBIO()
        self._to_peer = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._from_peer, self._to_peer, server_side=server_name is None, server_hostname=server_name
        )
        self.is_closed = False
        """True after the peer has announced that it sends nothing more."""

    def received(self, data: memoryview) -> None:
        """Take over encrypted bytes."""
        self._from_peer.write(data)

    def handshake(self) -> bool:
        """Continue the handshake; return whether it is complete. Raises TlsError."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise _told(error) from None
        return True

    def peer_certificate(self) -> bytes | None:
        """Return the peer's verified certificate (DER); None if it has sent none. After the handshake."""
        return self._tls.getpeercert(binary_form=True)

    @property
    def version(self) -> str:
        """Return the version, for example `TLSv1.3`; after the handshake."""
        return self._tls.version() or ""

    @property
    def cipher(self) -> str:
        """Return the cipher suite, by OpenSSL's name; after the handshake."""
        cipher = self._tls.cipher()
        return "" if cipher is None else cipher[0]

    def read_into(self, room: memoryview) -> int:
        """Decrypt into `room`, not empty; return the number of bytes. 0: everything received has been read. Raises
        TlsError.
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
        """Encrypt `data`; pieces of 256 KiB and more are cheapest. Raises TlsError."""
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise _told(error) from None

    @property
    def has_outgoing(self) -> bool:
        return self._to_peer.pending > 0

    def outgoing(self) -> bytes:
        """Return all encrypted bytes to send, once."""
        return self._to_peer.read()

    def close(self) -> None:
        """Announce that nothing more will be sent (close_notify); only for an established stream."""
        with contextlib.suppress(ssl.SSLError):  # it waits for the peer's close_notify, which is not needed
            self._tls.unwrap()


def _told(error: ssl.SSLError) -> TlsError:
    reason = error.reason or ""
    if reason in _NOT_TLS:
        return TlsError("it does not use TLS, and this listener requires it")
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsError(one_line(f"its certificate is not accepted: {error.verify_message}", 300))
    return TlsError(_MEANT.get(reason) or one_line(f"TLS failed: {reason or error}", 300))
