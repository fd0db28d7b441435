"""Who is on a connection: a principal, as Kafka names them, and how it has shown that it is the one."""

from __future__ import annotations

from typing import Final

import msgspec


class Principal(msgspec.Struct, frozen=True):
    """Whom rights are given to. Written `User:ann`, in ACLs and by Kafka's tools."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"


ANONYMOUS: Final = Principal("User", "ANONYMOUS")
"""Everybody on a listener that authenticates nobody."""


class Session(msgspec.Struct, frozen=True):
    """A connection that is authenticated, or need not be. Authenticating again makes another one."""

    principal: Principal
    listener: str
    mechanism: str = ""
    """SSL, or the SASL mechanism (PLAIN, SCRAM-SHA-512, ...); empty where nobody is authenticated."""
    since: float = 0.0
    """When it was authenticated: seconds of the event loop's clock."""
    expires: float | None = None
    """When it has to be authenticated again (KIP-368), by the same clock; None: never."""
    by_token: bool = False
    """By a delegation token, which cannot make tokens (KIP-48)."""
