"""The client's side of SCRAM, written independently from RFC 5802, and helpers for exchanges in tests."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping

from headrace.broker.security.sasl.exchange import Identity
from headrace.broker.security.sasl.scram import (
    Decoy,
    ScramCredential,
    ScramExchange,
    ScramMechanism,
    Subject,
    credential_of,
    salted_password,
)

SECRET = b"of the cluster"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


def credential(
    password: str,
    mechanism: ScramMechanism = ScramMechanism.SHA_256,
    salt: bytes = b"salt-of-25-letters-000000",
    iterations: int = 4096,
) -> ScramCredential:
    return credential_of(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def exchange(
    users: Mapping[str, ScramCredential], mechanism: ScramMechanism = ScramMechanism.SHA_256
) -> ScramExchange:
    def lookup(wanted: ScramMechanism, name: str, is_token: bool) -> Subject | None:
        assert wanted is mechanism
        return Subject(Identity(name), users[name]) if name in users and not is_token else None

    return ScramExchange(mechanism, lookup, Decoy(SECRET), lambda: SERVER_NONCE)


class ScramClient:
    """A client's messages; every part can be made wrong."""

    def __init__(
        self,
        name: str,
        password: str,
        mechanism: ScramMechanism = ScramMechanism.SHA_256,
        *,
        gs2: str = "n,,",
        nonce: str = "rOprNGfwEbeRWgbNEkqO",
        extensions: str = "",
    ) -> None:
        escaped = name.replace("=", "=3D").replace(",", "=2C")
        self.gs2 = gs2
        self.nonce = nonce
        self.bare = f"n={escaped},r={nonce}{extensions}"
        self.first = f"{gs2}{self.bare}".encode()
        self._digest = mechanism.digest
        self._password = password
        self._server_key = b""
        self._signed = b""

    def final(self, server_first: bytes, *, nonce: str | None = None, channel: str | None = None) -> bytes:
        fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
        salt, iterations = base64.b64decode(fields["s"]), int(fields["i"])
        salted = hashlib.pbkdf2_hmac(self._digest, self._password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self._digest)
        binding = base64.b64encode((self.gs2 if channel is None else channel).encode()).decode()
        unproved = f"c={binding},r={fields['r'] if nonce is None else nonce}"
        self._signed = f"{self.bare},{server_first.decode()},{unproved}".encode()
        stored_key = hashlib.new(self._digest, client_key).digest()
        signature = hmac.digest(stored_key, self._signed, self._digest)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        self._server_key = hmac.digest(salted, b"Server Key", self._digest)
        return f"{unproved},p={base64.b64encode(proof).decode()}".encode()

    def is_served_by_the_right_one(self, server_final: bytes) -> bool:
        expected = hmac.digest(self._server_key, self._signed, self._digest)
        return server_final == b"v=" + base64.b64encode(expected)
