"""Access to the console: for all clients that can connect, or only with credentials."""

from __future__ import annotations

import base64
import hmac

import msgspec


class Access(msgspec.Struct, frozen=True):
    """The console's credentials. With neither a password nor a token, every client that can connect has access.

    `credentials` is USER:PASSWORD. `hosts` are the host names and addresses, with ports, that requests may name; empty
    allows any.
    """

    credentials: str | None = None
    token: str | None = None
    hosts: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return "Access()"

    @property
    def is_open(self) -> bool:
        return self.credentials is None and self.token is None

    def admits(self, authorization: str) -> bool:
        if self.is_open:
            return True
        scheme, _, text = authorization.partition(" ")
        given, wanted = text.strip().encode(), None
        if scheme.lower() == "basic" and self.credentials is not None:
            wanted = self.credentials.encode()
            try:  # with padding, or without it, as Go's Flight client sends it
                given = base64.b64decode(given + b"=" * (-len(given) % 4), validate=True)
            except ValueError:
                return False
        elif scheme.lower() == "bearer" and self.token is not None:
            wanted = self.token.encode()
        return wanted is not None and hmac.compare_digest(given, wanted)
