"""The principal of a connection, as in Kafka, and how it was authenticated."""

from __future__ import annotations

from typing import Final

import msgspec


class Principal(msgspec.Struct, frozen=True):
    """The owner of rights. Written `User:ann`, in ACLs and by Kafka's tools."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
"""The principal of every client on a listener without authentication."""


class Session(msgspec.Struct, frozen=True):
    """A connection that is authenticated, or does not have to be. Authenticating again makes another session."""

    principal: Principal
    listener: str
    mechanism: str = ""
    """SSL, or the SASL mechanism (PLAIN, SCRAM-SHA-512, ...); empty without authentication."""
    since: float = 0.0
    """Time of the authentication, in seconds of the event loop's clock."""
    expires: float | None = None
    """Time at which it must be authenticated again (KIP-368), by the same clock; None: never."""
    by_token: bool = False
    """Authenticated by a delegation token, which cannot create tokens (KIP-48)."""
