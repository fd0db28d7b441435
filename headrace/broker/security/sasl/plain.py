"""PLAIN (RFC 4616): a name and a password in the clear, so for encrypted connections. The configuration has the
users.

Passwords are kept as digests and compared in constant time; an unknown user costs the same comparison.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from headrace.broker.security.sasl.exchange import MESSAGE_BYTES_MAX, AuthenticationError, Identity, refused

MECHANISM: Final = "PLAIN"
_NOBODY: Final = b"\0" * 32


class PlainUsers:
    """Names of users and the digests of their passwords."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._digests = {name: _digest(password) for name, password in passwords.items()}

    def __len__(self) -> int:
        return len(self._digests)

    def are_right(self, name: str, password: str) -> bool:
        expected = self._digests.get(name)
        is_equal = hmac.compare_digest(_NOBODY if expected is None else expected, _digest(password))
        return is_equal and expected is not None


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode()).digest()


class PlainExchange:
    """An exchange of PLAIN; see the module. Its errors are Kafka's (PlainSaslServer)."""

    def __init__(self, users: PlainUsers) -> None:
        self.identity: Identity | None = None
        self._users = users

    def answer(self, message: bytes) -> bytes:
        """`[authzid] NUL name NUL password`; the answer is empty."""
        if len(message) > MESSAGE_BYTES_MAX:
            raise AuthenticationError(f"a message of {len(message)} bytes")
        try:
            tokens = message.decode().split("\0", 4)
        except UnicodeDecodeError:
            raise AuthenticationError("a message that is not UTF-8") from None
        if len(tokens) != 3:
            raise refused(f"Invalid SASL/PLAIN response: expected 3 tokens, got {min(len(tokens), 4)}")
        authorization_id, name, password = tokens
        if not name:
            raise refused("Authentication failed: username not specified")
        if not password:
            raise refused("Authentication failed: password not specified")
        if not self._users.are_right(name, password):
            raise refused("Authentication failed: Invalid username or password")
        if authorization_id not in ("", name):
            raise refused(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        self.identity = Identity(name)
        return b""
