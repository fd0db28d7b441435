"""The client's side of SASL mechanisms, without I/O: PLAIN (RFC 4616), SCRAM (RFC 5802, 7677), OAUTHBEARER (RFC 7628).

`first` gives the client's first message and `answer` its answer to a challenge. `answer` gives None when the exchange
is over and the server is authenticated as far as the mechanism allows. Text is UTF-8 as given: Kafka does not apply
SASLprep. No `repr` and no error of this module shows a password or a token.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Final, Protocol

ITERATIONS_MIN: Final = 4096
"""The minimum of RFC 5802 and Kafka. With fewer, passwords can be tried quickly against a stolen exchange."""
ITERATIONS_MAX: Final = 1_000_000
"""About a second of a client's time. Kafka's own limit for stored users is 16,384."""
SCRAM_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_SEPARATOR: Final = b"\x01"


class SaslError(Exception):
    """The server's message is wrong: it does not know the password, or does not follow the mechanism."""


class SaslClient(Protocol):
    """One exchange. `mechanism` is its name on the wire; `user` is the name in messages."""

    mechanism: str
    user: str

    def first(self) -> bytes:
        """Return the first message."""

    def answer(self, challenge: bytes) -> bytes | None:
        """Return the answer to a challenge, None at the end of the exchange. Raises SaslError."""


class Plain:
    """PLAIN: the password itself is sent, so use it only with TLS."""

    mechanism = "PLAIN"

    def __init__(self, user: str, password: str) -> None:
        self.user = user
        self._password = password

    def first(self) -> bytes:
        return b"\0".join((b"", self.user.encode(), self._password.encode()))

    def answer(self, challenge: bytes) -> bytes | None:
        return None


class Scram:
    """SCRAM: client and server prove that they know the password. `nonce`: at least 128 random bits, printable."""

    def __init__(
        self,
        mechanism: str,
        user: str,
        password: str,
        nonce: str,
        extensions: Mapping[str, str] | None = None,
    ) -> None:
        self.mechanism = mechanism
        self.user = user
        self._hash = SCRAM_HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce
        self._extensions = "".join(f",{name}={value}" for name, value in (extensions or {}).items())
        self._server_signature: bytes | None = None
        self._done = False

    def first(self) -> bytes:
        return b"n,," + self._bare()

    def _bare(self) -> bytes:
        name = self.user.replace("=", "=3D").replace(",", "=2C")
        return f"n={name},r={self._nonce}{self._extensions}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        if self._server_signature is None:
            return self._proof(challenge)
        if self._done:
            raise SaslError("it continues after the end of the exchange")
        self._check_signature(challenge)
        self._done = True
        return None

    def _proof(self, challenge: bytes) -> bytes:
        fields = _fields(challenge)
        nonce, salt = fields.get("r", ""), _base64(fields.get("s", ""))
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise SaslError("its nonce does not continue ours")
        number = fields.get("i", "")
        iterations = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else 0
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise SaslError(
                f"it asks for {number[:12]} iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are accepted"
            )
        if not salt:
            raise SaslError("it gives no salt")
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        client_key = self._mac(salted, b"Client Key")
        stored_key = hashlib.new(self._hash, client_key).digest()
        without_proof = f"c=biws,r={nonce}".encode()
        message = b",".join((self._bare(), challenge, without_proof))
        signature = self._mac(stored_key, message)
        proof = bytes(ours ^ theirs for ours, theirs in zip(client_key, signature, strict=True))
        self._server_signature = self._mac(self._mac(salted, b"Server Key"), message)
        return without_proof + b",p=" + base64.b64encode(proof)

    def _check_signature(self, challenge: bytes) -> None:
        fields = _fields(challenge)
        if "e" in fields:
            raise SaslError(f"it refuses: {fields['e'][:100]}")
        assert self._server_signature is not None
        if not hmac.compare_digest(_base64(fields.get("v", "")), self._server_signature):
            raise SaslError("it does not know the password itself: it is not the server it seems to be")

    def _mac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


class OAuthBearer:
    """OAUTHBEARER: a token that an authorization server has issued. `extensions` are those of KIP-342."""

    mechanism = "OAUTHBEARER"

    def __init__(self, token: str, extensions: Mapping[str, str] | None = None) -> None:
        self.user = "of the token"
        self._token = token
        self._extensions = dict(extensions or {})

    def first(self) -> bytes:
        pairs = {"auth": f"Bearer {self._token}"} | self._extensions
        parts = [b"n,,", *(f"{name}={value}".encode() for name, value in pairs.items())]
        return _SEPARATOR.join(parts) + _SEPARATOR * 2

    def answer(self, challenge: bytes) -> bytes | None:
        if not challenge:
            return None
        try:
            status = str(json.loads(challenge)["status"])
        except (ValueError, KeyError, TypeError):
            raise SaslError("it does not take the token") from None
        raise SaslError(f"it does not take the token: {status[:100]}")


def _fields(message: bytes) -> dict[str, str]:
    """Split `a=1,b=2`. Raises SaslError for a message that is not SCRAM or that demands an unknown extension."""
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise SaslError("its answer is not of SCRAM") from None
    fields: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or len(name) != 1 or name in fields:
            raise SaslError("its answer is not of SCRAM")
        fields[name] = value
    if "m" in fields:
        raise SaslError("it demands an extension of SCRAM that is not known")
    return fields


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise SaslError("its answer is not of SCRAM") from None
