"""An exchange of a SASL mechanism (RFC 4422): a client's messages in, challenges out, until the client is authenticated
or refused.

An exchange is pure: it knows no connection, waits for nothing, and gets the time as a parameter. It serves one
authentication and is thrown away then. A refused or finished exchange answers nothing more.
"""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

MESSAGE_BYTES_MAX: Final = 16 << 10
"""Maximum size of a message of PLAIN and SCRAM, whose names and passwords have some hundred bytes; a longer message is
refused before it is processed.
"""


class AuthenticationError(Exception):
    """The client is refused. `told` is the text for the client, in cases where Kafka has one; otherwise the client is
    only told that its credentials are invalid. The exception's own text is for the broker's log: it may say that a user
    does not exist, but never has a secret that a client has sent.
    """

    def __init__(self, reason: str, *, told: str | None = None) -> None:
        super().__init__(reason)
        self.told = told


def refused(told: str) -> AuthenticationError:
    """Return an error whose reason the client may know."""
    return AuthenticationError(told, told=told)


class Identity(msgspec.Struct, frozen=True):
    """The authenticated principal. `expires_ms` is the end of its credentials (wall clock), None if they do not
    expire.

    `by_token`: it was authenticated by a delegation token.
    """

    name: str
    expires_ms: int | None = None
    by_token: bool = False
    principal_type: str = "User"


class Exchange(Protocol):
    """One authentication by one mechanism."""

    identity: Identity | None
    """Set when the client has proved its identity; the latest challenge must still be sent to it."""

    def answer(self, message: bytes) -> bytes:
        """Return the challenge that answers a message of the client. Raises AuthenticationError."""
