"""Validation of JSON Web Tokens (RFC 7519): signed by a key of the issuer, meant for this broker, not expired.

Only the signature algorithms in ALGORITHMS are accepted. A token without a signature, or one that is "signed" with a
public key as a shared secret, is refused. A key is used only for the purpose that it states. Only `UnsecuredValidator`
accepts unsigned tokens; Kafka has it for development, and it must be configured by name.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from joserfc import jws
from joserfc.errors import JoseError, UnsupportedAlgorithmError
from joserfc.jwk import JWKRegistry
from joserfc.jws import JWSRegistry

from headrace.broker.security.sasl.exchange import Identity
from headrace.broker.security.sasl.oauthbearer import InvalidTokenError

ALGORITHMS: Final = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    "EdDSA": "OKP",
    "Ed25519": "OKP",
}
"""The accepted algorithms, and the type of their keys."""
_HEADER_BYTES_MAX: Final = 8 << 10
_TIMES: Final = ("exp", "iat", "nbf")


class _Registry(JWSRegistry):
    max_header_length = _HEADER_BYTES_MAX
    max_payload_length = 64 << 10
    max_signature_length = 4 << 10

    def get_alg(self, name: str) -> Any:
        """Return the algorithm, without a warning for EdDSA: RFC 9864 gives it another name, which issuers do not use
        yet.
        """
        if name not in ALGORITHMS:
            raise UnsupportedAlgorithmError(name)
        return self.algorithms[name]


_REGISTRY: Final = _Registry(algorithms=list(ALGORITHMS), strict_check_header=False)
"""RFC 7515, 4: unknown header parameters are ignored, unless `crit` names them."""


class Expectations(msgspec.Struct, frozen=True):
    """Expected claims of a token: `sasl.oauthbearer.expected.issuer` and the related configurations."""

    issuer: str | None = None
    audience: tuple[str, ...] = ()
    """One of these is required; empty: not checked."""
    clock_skew_seconds: float = 30
    subject_claim: str = "sub"
    scope_claim: str = "scope"


class Keys:
    """The keys of an issuer, by their purpose."""

    def __init__(self, document: bytes) -> None:
        """Parse a JWK set (RFC 7517). Raises ValueError for other texts, or without a usable key."""
        try:
            listed = json.loads(document)["keys"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError("not a JWK set: a JSON object with a list 'keys'") from None
        self._keys = []
        for data in listed if isinstance(listed, list) else ():
            try:
                if data.get("kty") in ALGORITHMS.values() and data.get("use", "sig") == "sig":
                    self._keys.append((data, JWKRegistry.import_key(data)))
            except (JoseError, ValueError, TypeError, AttributeError, KeyError):
                continue  # RFC 7517, 5: keys of unknown kinds are ignored
        if not self._keys:
            raise ValueError("a JWK set without a key for signatures of RSA, EC or Ed25519")

    def __len__(self) -> int:
        return len(self._keys)

    def suitable(self, algorithm: str, key_id: object) -> list[Any]:
        return [
            key
            for data, key in self._keys
            if data["kty"] == ALGORITHMS[algorithm]
            and data.get("alg", algorithm) == algorithm
            and (key_id is None or data.get("kid") == key_id)
        ]


class SignedValidator:
    """Accepts tokens that one of the issuer's keys has signed."""

    def __init__(
        self,
        keys: Callable[[], Keys | None],
        expectations: Expectations,
        time_ms: Callable[[], int],
        unknown_key: Callable[[], None] = lambda: None,
    ) -> None:
        """`unknown_key` is called for a token with an unknown key: the issuer may have a new one."""
        self._keys = keys
        self._expectations = expectations
        self._time_ms = time_ms
        self._unknown_key = unknown_key

    def __call__(self, token: str) -> Identity:
        header, _ = _parts(token)
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
            raise InvalidTokenError("its algorithm is not one of the accepted ones")
        keys = self._keys()
        suitable = [] if keys is None else keys.suitable(algorithm, key_id)
        if not suitable:
            self._unknown_key()
            raise InvalidTokenError("the issuer does not have its key")
        return identity_of(_verified(token, suitable, algorithm), self._expectations, self._time_ms())


class UnsecuredValidator:
    """Accepts unsigned tokens (`alg` none), as Kafka's OAuthBearerUnsecuredValidatorCallbackHandler."""

    def __init__(
        self,
        expectations: Expectations,
        time_ms: Callable[[], int],
        required_scope: Iterable[str] = (),
    ) -> None:
        self._expectations = expectations
        self._time_ms = time_ms
        self._required_scope = frozenset(required_scope)

    def __call__(self, token: str) -> Identity:
        header, payload = _parts(token)
        if header.get("alg") != "none" or not token.endswith("."):
            raise InvalidTokenError("it is signed, and only unsigned tokens are accepted")
        claims = _object(payload)
        scope = claims.get(self._expectations.scope_claim, ())
        scopes = scope.split() if isinstance(scope, str) else scope
        if not isinstance(scopes, list | tuple) or not self._required_scope <= {*map(str, scopes)}:
            raise InvalidTokenError("it lacks a required scope")
        return identity_of(claims, self._expectations, self._time_ms(), needs_issue_time=False)


def identity_of(
    claims: dict[str, Any], expected: Expectations, now_ms: int, *, needs_issue_time: bool = True
) -> Identity:
    """Return the identity in the claims, valid now. Raises InvalidTokenError."""
    now, skew = now_ms / 1000, expected.clock_skew_seconds
    for name in _TIMES:
        value = claims.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
            raise InvalidTokenError(f"its claim {name!r} is not a time")
    expires, issued = claims.get("exp"), claims.get("iat")
    if expires is None or expires > 1 << 53:
        raise InvalidTokenError("it has no expiry time")
    if issued is None and needs_issue_time:
        raise InvalidTokenError("it has no issue time")
    if expires + skew <= now:
        raise InvalidTokenError("it has expired")
    if max(claims.get("nbf") or 0, issued or 0) - skew > now:
        raise InvalidTokenError("it is not valid yet")
    if issued is not None and expires <= issued:
        raise InvalidTokenError("it expires before it was issued")
    if expected.issuer is not None and claims.get("iss") != expected.issuer:
        raise InvalidTokenError("it is from another issuer")
    audience = claims.get("aud")
    audiences = audience if isinstance(audience, list) else [audience]
    if expected.audience and not any(one in audiences for one in expected.audience):
        raise InvalidTokenError("it is for another audience")
    principal = claims.get(expected.subject_claim)
    if not isinstance(principal, str) or not principal.strip():
        raise InvalidTokenError("it names no principal")
    return Identity(principal.strip(), int(expires * 1000))


def _verified(token: str, keys: list[Any], algorithm: str) -> dict[str, Any]:
    for key in keys:
        try:
            signed = jws.deserialize_compact(token, key, [algorithm], _REGISTRY)
        except (JoseError, ValueError, TypeError):
            continue
        return _object(signed.payload)
    raise InvalidTokenError("its signature is not that of a key of the issuer")


def _parts(token: str) -> tuple[dict[str, Any], bytes]:
    """Return the header, and the payload as JSON, of a token whose signature is not checked yet."""
    parts = token.split(".")
    if len(parts) != 3 or len(parts[0]) > _HEADER_BYTES_MAX:
        raise InvalidTokenError("it is not a signed JSON Web Token")
    try:
        header, payload = (base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in parts[:2])
    except (ValueError, binascii.Error):
        raise InvalidTokenError("it is not a JSON Web Token") from None
    return _object(header), payload


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidTokenError("it is not a JSON object")
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
