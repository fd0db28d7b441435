"""Who may ask the console: everybody who can connect, or those with its credentials."""

from __future__ import annotations

import base64
import hmac

import msgspec


class Access(msgspec.Struct, frozen=True):
    """With neither everybody who can connect may. `credentials`: USER:PASSWORD. `hosts`: the names and addresses, with
    ports, that the console is asked by; none: any.
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
            try:  # with the signs that fill it up, or as Go's Flight client sends it
                given = base64.b64decode(given + b"=" * (-len(given) % 4), validate=True)
            except ValueError:
                return False
        elif scheme.lower() == "bearer" and self.token is not None:
            wanted = self.token.encode()
        return wanted is not None and hmac.compare_digest(given, wanted)
