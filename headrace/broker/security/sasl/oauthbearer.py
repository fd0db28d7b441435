"""OAUTHBEARER (RFC 7628): a bearer token authenticates the client that has it. A validator checks the tokens.

An invalid token is answered with a JSON object. The client sends one more byte and is refused then, as in RFC 7628
(3.2.3) and Kafka (OAuthBearerSaslServer). Extensions of a client are read and ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from headrace.broker.security.sasl.exchange import AuthenticationError, Identity

MECHANISM: Final = "OAUTHBEARER"
TOKEN_MESSAGE_BYTES_MAX: Final = 64 << 10
"""Web servers accept less; the cost of checking a token grows with its size."""
INVALID_TOKEN: Final = '{"status":"invalid_token"}'
_INITIAL: Final = re.compile(
    r"n,(?:a=(?P<authzid>(?:[^=,\x00]|=2C|=3D)+))?,\x01(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTH: Final = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")


class InvalidTokenError(Exception):
    """A token is invalid. The text names the fault and shows nothing of the token."""


Validator = Callable[[str], Identity]
"""Returns the identity. Raises InvalidTokenError."""


class OAuthBearerExchange:
    """An exchange of OAUTHBEARER; see the module."""

    def __init__(self, validate: Validator) -> None:
        self.identity: Identity | None = None
        self._validate = validate
        self._problem: str | None = None

    def answer(self, message: bytes) -> bytes:
        if self._problem is not None and message == b"\x01":
            raise AuthenticationError(self._problem, told=INVALID_TOKEN)
        if self.identity is not None or self._problem is not None:
            raise AuthenticationError("a message after the exchange was over")
        if len(message) > TOKEN_MESSAGE_BYTES_MAX:
            raise AuthenticationError(f"a message of {len(message)} bytes")
        token, authorization_id = _initial(message)
        try:
            identity = self._validate(token)
        except InvalidTokenError as error:
            self._problem = str(error)
            return INVALID_TOKEN.encode()
        if authorization_id not in ("", identity.name):
            raise AuthenticationError(
                "another authorization id than the token's principal",
                told="Authentication failed: Client requested an authorization id that is different from the "
                "token's principal name",
            )
        self.identity = identity
        return b""


def _initial(message: bytes) -> tuple[str, str]:
    """Return the token and the authorization id (empty: none) of the client's first message."""
    try:
        found = _INITIAL.fullmatch(message.decode())
    except UnicodeDecodeError:
        found = None
    if found is None:
        raise AuthenticationError("an invalid first message")
    pairs = [pair.split("=", 1) for pair in found["pairs"].split("\x01") if pair]
    values = [value for key, value in pairs if key == "auth"]
    if len(values) != 1:
        raise AuthenticationError(f"a first message with {len(values)} values of 'auth'")
    auth = _AUTH.fullmatch(values[0])
    if auth is None or auth["scheme"].lower() != "bearer":
        raise AuthenticationError("a first message without a bearer token")
    authorization_id = found["authzid"] or ""
    return auth["token"], authorization_id.replace("=2C", ",").replace("=3D", "=")
