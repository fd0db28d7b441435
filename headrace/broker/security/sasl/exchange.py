"""What a mechanism of SASL (RFC 4422) is here: messages of a client in, challenges out, until it is known or refused.

An exchange is pure: it knows no connection, waits for nothing, and is told the time. It serves one authentication and
is thrown away then; a refused or finished one answers nothing more.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

MESSAGE_BYTES_MAX: Final = 16 << 10
"""Of a message of PLAIN and SCRAM, whose names and passwords are of some hundred bytes; a longer one is refused before
anything is done with it.
"""


class AuthenticationError(Exception):
    """The client is refused. `told`: what it is told, for Kafka's cases with words of their own; otherwise only that
    its credentials are invalid. The exception's own text is for the log of the broker: it may say that there is no
    such user, but never holds what a client has sent as a secret.
    """

    def __init__(self, reason: str, *, told: str | None = None) -> None:
        super().__init__(reason)
        self.told = told


def refused(told: str) -> AuthenticationError:
    """The error whose reason the client may know."""
    return AuthenticationError(told, told=told)


class Identity(msgspec.Struct, frozen=True):
    """Who was authenticated. `expires_ms`: when the credentials end (wall clock), None if they do not.

    `by_token`: a delegation token stood for the principal.
    """

    name: str
    expires_ms: int | None = None
    by_token: bool = False
    principal_type: str = "User"


class Exchange(Protocol):
    """One authentication by one mechanism."""

    identity: Identity | None
    """Set when the client has proved who it is; the challenge that was answered last still goes to it."""

    def answer(self, message: bytes) -> bytes:
        """The challenge that answers a message of the client. Raises AuthenticationError."""
