"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): the server has salted keys and never sees the password.

The order of checks and the errors are Kafka's (ScramSaslServer), with these additional rules:

- The nonce of the final message must equal that of the exchange; ending with it is not enough (CVE-2024-56128). One
  other nonce is accepted: librdkafka before 2.6.1 sends its own half twice, and Kafka 3.9 accepts it. That nonce has
  the server's half, and the proof covers it, so a replay is not possible.
- The channel binding in the client's final message must be the one in its first message.
- Clients cannot learn which users exist. A user who is unknown, or has no credentials for the mechanism, gets a salt
  that is always the same (made from a secret of the cluster) and is refused at the end, after the same work.
- Keys are compared in constant time (CVE-2021-38153).

`tokenauth=true` in the first message says that the name is a delegation token's id (KIP-48).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import msgspec

from headrace.broker.security.sasl.exchange import MESSAGE_BYTES_MAX, AuthenticationError, Identity, refused

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
"""Maximum number of iterations of new credentials, as in Kafka's controller: the client does the work, and a large
number would stall it.
"""


class ScramMechanism(IntEnum):
    """The mechanisms, by the numbers in requests (KIP-554)."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return f"SCRAM-SHA-{self.digest[3:]}"

    @property
    def digest(self) -> str:
        """Name of the digest in hashlib."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def key_size(self) -> int:
        """Size of salted passwords, keys and proofs, in bytes."""
        return 32 if self is ScramMechanism.SHA_256 else 64


BY_NAME: Final = {mechanism.sasl_name: mechanism for mechanism in ScramMechanism}


class ScramCredential(msgspec.Struct, frozen=True):
    """The stored form of a password for one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return "ScramCredential(salt=[hidden], stored_key=[hidden], server_key=[hidden], iterations=[hidden])"


class Subject(msgspec.Struct, frozen=True):
    """The principal of the name in a first message, and its credential."""

    identity: Identity
    credential: ScramCredential


Lookup = Callable[[ScramMechanism, str, bool], Subject | None]
"""Finds a subject by mechanism, name, and whether the name is a delegation token's id."""


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """`Hi` of RFC 5802. As in Kafka, the password's UTF-8 is taken as it is. Takes milliseconds; releases the GIL."""
    return hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return the stored form of a salted password."""
    client_key = _mac(mechanism, salted, b"Client Key")
    stored_key = hashlib.new(mechanism.digest, client_key).digest()
    return ScramCredential(salt, stored_key, _mac(mechanism, salted, b"Server Key"), iterations)


def salt_text(number: int) -> bytes:
    """Return a salt in the form that Kafka's tools make: some 130 bits as a number of base 36."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text = ""
    number &= (1 << 130) - 1
    while number:
        number, digit = divmod(number, 36)
        text = digits[digit] + text
    return text.encode()


class Decoy:
    """Credentials for names of unknown users: always the same for a name, and matched by no password."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def credential(self, mechanism: ScramMechanism, name: str) -> ScramCredential:
        def derived(purpose: str) -> bytes:
            return hmac.digest(self._secret, f"{purpose}\0{mechanism.sasl_name}\0{name}".encode(), "sha512")

        return ScramCredential(
            salt_text(int.from_bytes(derived("salt")[:17], "big")),
            derived("stored")[: mechanism.key_size],
            derived("server")[: mechanism.key_size],
            ITERATIONS_MIN,
        )


_NAME = r"(?:[^=,\x00]|=2C|=3D)+"
_VALUE = r"[^,\x00]+"
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
_BASE64 = r"(?:[a-zA-Z0-9/+]{4})*(?:[a-zA-Z0-9/+]{3}=|[a-zA-Z0-9/+]{2}==)?"
_EXTENSIONS = rf"(?:,[A-Za-z]+={_VALUE})*"
_FIRST = re.compile(
    rf"(?P<gs2>[ny],(?:a=(?P<authzid>{_NAME}))?,)"
    rf"(?P<bare>(?:m=(?P<mandatory>{_VALUE}),)?n=(?P<name>{_NAME}),r=(?P<nonce>{_PRINTABLE})"
    rf"(?P<extensions>{_EXTENSIONS}))"
)
_FINAL = re.compile(
    rf"(?P<unproved>c=(?P<channel>{_BASE64}),r=(?P<nonce>{_PRINTABLE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)


class _Started(msgspec.Struct):
    """The state after the first message."""

    gs2: str
    client_first: str
    server_first: str
    nonces: tuple[str, ...]
    """The nonces that the final message may have."""
    credential: ScramCredential
    identity: Identity | None


class ScramExchange:
    """An exchange of SCRAM; see the module."""

    def __init__(
        self, mechanism: ScramMechanism, lookup: Lookup, decoy: Decoy, new_nonce: Callable[[], str]
    ) -> None:
        """`new_nonce` returns printable text without commas that cannot be guessed."""
        self.identity: Identity | None = None
        self._mechanism = mechanism
        self._lookup = lookup
        self._decoy = decoy
        self._new_nonce = new_nonce
        self._started: _Started | None = None
        self._is_over = False

    def answer(self, message: bytes) -> bytes:
        if self._is_over:
            raise AuthenticationError("a message after the exchange was over")
        if len(message) > MESSAGE_BYTES_MAX:
            self._is_over = True
            raise AuthenticationError(f"a message of {len(message)} bytes")
        try:
            text = message.decode()
        except UnicodeDecodeError:
            self._is_over = True
            raise AuthenticationError("a message that is not UTF-8") from None
        self._is_over = True  # reset when the first message is answered
        if self._started is None:
            self._started = self._first(text)
            self._is_over = False
            return self._started.server_first.encode()
        return self._final(self._started, text)

    def _first(self, text: str) -> _Started:
        found = _FIRST.fullmatch(text)
        if found is None:
            raise AuthenticationError("an invalid first message")
        if found["mandatory"] is not None:
            raise AuthenticationError("an extension that must be understood and is not")  # RFC 5802, 5.1
        sasl_name, authorization_id = found["name"], found["authzid"]
        name = _unescaped(sasl_name)
        extensions = dict(
            extension.split("=", 1) for extension in found["extensions"].split(",") if extension
        )
        is_token = extensions.get("tokenauth", "").lower() == "true"
        subject = self._lookup(self._mechanism, name, is_token)
        credential = self._decoy.credential(self._mechanism, name) if subject is None else subject.credential
        if authorization_id is not None and _unescaped(authorization_id) != name:
            raise refused(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        if credential.iterations < ITERATIONS_MIN:
            raise AuthenticationError(
                f"kept with {credential.iterations} iterations, fewer than {ITERATIONS_MIN}"
            )
        client_nonce = found["nonce"]
        nonce = client_nonce + self._new_nonce()
        salt = base64.b64encode(credential.salt).decode()
        return _Started(
            found["gs2"],
            found["bare"],
            f"r={nonce},s={salt},i={credential.iterations}",
            (nonce, client_nonce + nonce),
            credential,
            None if subject is None else subject.identity,
        )

    def _final(self, started: _Started, text: str) -> bytes:
        found = _FINAL.fullmatch(text)
        if found is None:
            raise AuthenticationError("an invalid final message")
        if found["nonce"] not in started.nonces:
            raise AuthenticationError("another nonce in the final message")
        if base64.b64decode(found["channel"]) != started.gs2.encode():
            raise AuthenticationError("another channel binding in the final message")
        mechanism, credential = self._mechanism, started.credential
        signed = f"{started.client_first},{started.server_first},{found['unproved']}".encode()
        proof = base64.b64decode(found["proof"])
        if len(proof) != mechanism.key_size:
            raise AuthenticationError(f"a proof of {len(proof)} bytes")
        signature = _mac(mechanism, credential.stored_key, signed)
        client_key = bytes(one ^ other for one, other in zip(signature, proof, strict=True))
        stored_key = hashlib.new(mechanism.digest, client_key).digest()
        is_right = hmac.compare_digest(stored_key, credential.stored_key)
        verifier = base64.b64encode(_mac(mechanism, credential.server_key, signed))
        if not is_right or started.identity is None:
            raise AuthenticationError(
                "there is no such user" if started.identity is None else "the password is not the user's"
            )
        self.identity = started.identity
        self._started = None
        return b"v=" + verifier


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _mac(mechanism: ScramMechanism, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, mechanism.digest)
