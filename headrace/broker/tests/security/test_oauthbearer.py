"""OAUTHBEARER (RFC 7628): the issuer's tokens are accepted, and no imitations."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from joserfc import jwk, jwt
from joserfc.errors import SecurityWarning

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.runtime.ports import SystemClock, SystemEntropy
from headrace.broker.security.sasl.exchange import AuthenticationError, Identity
from headrace.broker.security.sasl.jwks import JwksSource, Pauses
from headrace.broker.security.sasl.jwt import Expectations, Keys, SignedValidator, UnsecuredValidator
from headrace.broker.security.sasl.oauthbearer import INVALID_TOKEN, InvalidTokenError, OAuthBearerExchange
from headrace.broker.security.sasl.settings import SaslParts, sasl_of_listener

NOW = 1_700_000_000
RSA = jwk.RSAKey.generate_key(2048, {"kid": "r1", "use": "sig"})
EC = jwk.ECKey.generate_key("P-256", {"kid": "e1", "alg": "ES256"})
ED = jwk.OKPKey.generate_key("Ed25519", {"kid": "d1"})
STRANGER = jwk.RSAKey.generate_key(2048, {"kid": "r1"})
SECRET = jwk.OctKey.generate_key(256, {"kid": "s1"})
CLAIMS = {"sub": "ann", "iss": "https://issuer", "aud": ["kafka", "x"], "iat": NOW - 100, "exp": NOW + 60}
EXPECTED = Expectations("https://issuer", ("kafka",), 30)


def key_set(*keys: Any) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


def validator(expected: Expectations = EXPECTED, **options: Any) -> SignedValidator:
    keys = Keys(key_set(RSA, EC, ED))
    return SignedValidator(lambda: keys, expected, lambda: NOW * 1000, **options)


def signed(key: Any = RSA, algorithm: str = "RS256", **changes: Any) -> str:
    claims = {name: value for name, value in {**CLAIMS, **changes}.items() if value is not None}
    header = {"alg": algorithm, "kid": key.kid}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SecurityWarning)  # EdDSA has another name since RFC 9864
        return jwt.encode(header, claims, key, algorithms=[algorithm])


def unsigned(algorithm: str = "none", signature: str = "", **changes: Any) -> str:
    parts = [{"alg": algorithm}, {**CLAIMS, **changes}]
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts]
    return ".".join([*coded, signature])


def message(token: str, authorization_id: str = "", extensions: str = "") -> bytes:
    gs2 = f"n,a={authorization_id}," if authorization_id else "n,,"
    return f"{gs2}\x01auth=Bearer {token}\x01{extensions}\x01".encode()


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (RSA, "PS512"), (EC, "ES256"), (ED, "EdDSA")])
def test_a_token_of_the_issuer_gets_in_for_as_long_as_it_holds(key: Any, algorithm: str) -> None:
    server = OAuthBearerExchange(validator())
    assert server.answer(message(signed(key, algorithm), extensions="traceId=7\x01")) == b""
    assert server.identity == Identity("ann", (NOW + 60) * 1000)


def test_a_key_is_found_without_its_id() -> None:
    token = jwt.encode({"alg": "RS256"}, CLAIMS, RSA)
    assert validator()(token).name == "ann"


@pytest.mark.parametrize(
    ("token", "words"),
    [
        (lambda: signed(STRANGER), "signature"),
        (lambda: signed()[:-8] + "AAAAAAAA", "signature"),
        (lambda: ".".join([*signed().split(".")[:2], ""]), "signature"),
        (lambda: unsigned(), "algorithm"),
        (lambda: unsigned("None"), "algorithm"),
        (lambda: signed(SECRET, "HS256"), "algorithm"),
        (lambda: signed(exp=NOW - 31), "expired"),
        (lambda: signed(exp=None), "no expiry time"),
        (lambda: signed(exp="tomorrow"), "'exp' is not a time"),
        (lambda: signed(exp=True), "'exp' is not a time"),
        (lambda: signed(exp=10**30), "no expiry time"),
        (lambda: signed(iat=None), "no issue time"),
        (lambda: signed(iat=NOW + 31), "not valid yet"),
        (lambda: signed(nbf=NOW + 31), "not valid yet"),
        (lambda: signed(iat=NOW + 20, exp=NOW + 10), "before it was issued"),
        (lambda: signed(iss="https://other"), "another issuer"),
        (lambda: signed(iss=None), "another issuer"),
        (lambda: signed(aud="spark"), "another audience"),
        (lambda: signed(aud=None), "another audience"),
        (lambda: signed(sub=None), "no principal"),
        (lambda: signed(sub=" "), "no principal"),
        (lambda: signed(sub=7), "no principal"),
        (lambda: "a.b", "not a signed"),
        (lambda: "a.b.c", "JSON"),
        (lambda: base64.urlsafe_b64encode(b"[]").decode().rstrip("=") + ".e30.x", "JSON object"),
    ],
)
def test_a_token_of_another_issuer_is_refused(token: Callable[[], str], words: str) -> None:
    """It is refused first with the JSON of RFC 7628, then, after the client's reply, as a failure."""
    server = OAuthBearerExchange(validator())
    assert server.answer(message(token())) == INVALID_TOKEN.encode()
    with pytest.raises(AuthenticationError, match=words) as refused:
        server.answer(b"\x01")
    assert refused.value.told == INVALID_TOKEN
    assert server.identity is None


def test_a_secret_among_the_keys_signs_nothing() -> None:
    """A public key is not a shared secret either: HMAC is not one of the algorithms, whatever the key set has."""
    document = {"keys": [RSA.as_dict(private=False), SECRET.as_dict(private=True)]}
    keys = Keys(json.dumps(document).encode())
    assert len(keys) == 1
    validate = SignedValidator(lambda: keys, EXPECTED, lambda: NOW * 1000)
    for key in (SECRET.raw_value, RSA.as_pem(private=False)):
        unproved = unsigned("HS256").rstrip(".")
        proof = base64.urlsafe_b64encode(hmac.digest(key, unproved.encode(), "sha256")).decode().rstrip("=")
        with pytest.raises(InvalidTokenError, match="algorithm"):
            validate(f"{unproved}.{proof}")


def test_a_key_is_used_for_its_own_algorithm() -> None:
    with pytest.raises(InvalidTokenError, match="does not have its key"):
        validator()(jwt.encode({"alg": "ES256", "kid": "r1"}, CLAIMS, EC))


def test_the_clock_may_be_off_by_the_skew() -> None:
    assert validator()(signed(exp=NOW - 29)).name == "ann"
    assert validator()(signed(nbf=NOW + 29)).name == "ann"


def test_the_principal_is_in_the_claim_that_is_configured() -> None:
    expected = Expectations(subject_claim="client_id")
    assert validator(expected)(signed(client_id="svc")).name == "svc"


def test_a_token_of_an_unknown_key_has_the_keys_read() -> None:
    asked: list[int] = []
    unknown = jwk.RSAKey.generate_key(2048, {"kid": "r2"})
    with pytest.raises(InvalidTokenError, match="does not have its key"):
        validator(unknown_key=lambda: asked.append(1))(signed(unknown))
    assert asked == [1]


def test_a_different_authorization_id_is_refused() -> None:
    with pytest.raises(AuthenticationError) as refused:
        OAuthBearerExchange(validator()).answer(message(signed(), "admin"))
    assert "different from the token's principal" in str(refused.value.told)
    server = OAuthBearerExchange(validator())
    server.answer(message(signed(), "ann"))
    assert server.identity is not None


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"n,,\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer x\x01auth=Bearer y\x01\x01",
        b"p=tls-unique,,\x01auth=Bearer x\x01\x01",
        b"n,,\x01auth=Bearer x\x01",
        b"\xff",
        b"n,,\x01auth=Bearer " + b"x" * (64 << 10) + b"\x01\x01",
    ],
)
def test_a_malformed_first_message_is_refused(wrong: bytes) -> None:
    with pytest.raises(AuthenticationError) as refused:
        OAuthBearerExchange(validator()).answer(wrong)
    assert refused.value.told is None


def test_after_an_invalid_token_no_other_is_looked_at() -> None:
    server = OAuthBearerExchange(validator())
    server.answer(message(signed(STRANGER)))
    with pytest.raises(AuthenticationError, match="over"):
        server.answer(message(signed()))
    assert server.identity is None


@given(st.text(alphabet="ae.-_A=", max_size=30), st.binary(max_size=60))
def test_any_token_is_refused_without_another_error(token: str, payload: bytes) -> None:
    header = base64.urlsafe_b64encode(b'{"alg":"RS256"}').decode().rstrip("=")
    body = base64.urlsafe_b64encode(payload).decode().rstrip("=")
    for made in (token, f"{header}.{body}.{token}", f"{body}.{body}.{token}"):
        with pytest.raises(InvalidTokenError):
            validator()(made)


def test_errors_do_not_quote_the_token() -> None:
    token = signed(STRANGER, sub="somebody-secret")
    with pytest.raises(InvalidTokenError) as refused:
        validator()(token)
    assert not any(part in str(refused.value) for part in (*token.split("."), "somebody-secret"))


def test_unsecured_tokens_are_taken_by_their_own_validator_alone() -> None:
    validate = UnsecuredValidator(Expectations(clock_skew_seconds=0), lambda: NOW * 1000, ["read"])
    assert validate(unsigned(scope="read write")).name == "ann"
    assert validate(unsigned(scope=["read"])).name == "ann"
    for token, words in (
        (unsigned(), "scope"),
        (unsigned(scope="write"), "scope"),
        (unsigned(scope="read", exp=NOW - 1), "expired"),
        (unsigned(scope="read", signature="AAAA"), "signed"),
        (signed(scope="read"), "signed"),
    ):
        with pytest.raises(InvalidTokenError, match=words):
            validate(token)


@pytest.mark.parametrize(
    "document", [b"", b"[]", b'{"keys": 7}', b'{"keys": []}', b'{"keys": [{"kty": "oct"}, 3]}']
)
def test_a_malformed_key_set_is_refused(document: bytes) -> None:
    with pytest.raises(ValueError, match="JWK set"):
        Keys(document)


NOT_VERIFIED: dict[str, Callable[[int], str]] = {
    "unsigned": lambda now: unsigned(iat=now, exp=now + 600),
    "of a stranger": lambda now: signed(STRANGER, iat=now, exp=now + 600),
    "from another issuer": lambda now: signed(iat=now, exp=now + 600, iss="https://another"),
    "for another audience": lambda now: signed(iat=now, exp=now + 600, aud="another"),
    "expired": lambda now: signed(iat=now - 200, exp=now - 100),
}


@pytest.mark.parametrize("token", NOT_VERIFIED)
def test_cve_2026_33557_a_token_is_verified_where_nothing_says_how(tmp_path: Path, token: str) -> None:
    """Without a callback handler, signature, issuer, audience and times are checked."""
    (tmp_path / "keys.json").write_bytes(key_set(RSA))
    texts = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{tmp_path}/keys.json",
        "sasl.oauthbearer.expected.issuer": "https://issuer",
        "sasl.oauthbearer.expected.audience": "kafka",
    }
    now = int(time.time())
    with ThreadPoolExecutor(1) as executor:
        parts = SaslParts(None, None, SystemClock(), SystemEntropy(), executor)  # type: ignore[arg-type]
        mechanism = sasl_of_listener("L", texts.get, parts)["OAUTHBEARER"]
        assert mechanism.start().answer(message(signed(iat=now, exp=now + 600))) == b""
        refused = mechanism.start()
        assert refused.answer(message(NOT_VERIFIED[token](now))) == INVALID_TOKEN.encode()
        assert refused.identity is None


def test_a_key_for_encryption_signs_nothing() -> None:
    for_encryption = {**RSA.as_dict(private=False), "use": "enc"}
    keys = Keys(json.dumps({"keys": [for_encryption, EC.as_dict(private=False)]}).encode())
    with pytest.raises(InvalidTokenError, match="does not have its key"):
        SignedValidator(lambda: keys, EXPECTED, lambda: NOW * 1000)(signed())


def test_keys_of_a_file_that_cannot_be_used_stop_the_start(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_bytes(b"nonsense")
    with ThreadPoolExecutor(1) as executor:
        for url in (f"file://{tmp_path}/keys.json", f"file://{tmp_path}/missing", "ftp://x/y", "keys.json"):
            with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.jwks\.endpoint\.url"):
                JwksSource(url, Pauses(), executor)
        (tmp_path / "keys.json").write_bytes(key_set(RSA))
        assert JwksSource(f"file://{tmp_path}/keys.json", Pauses(), executor).current() is not None


async def test_keys_are_refreshed_for_an_unknown_key_id_and_kept_on_failure() -> None:
    documents: list[bytes | Exception] = [OSError("down"), key_set(RSA), b"nonsense", key_set(RSA, EC)]
    lengths: list[int] = []
    all_read = asyncio.Event()
    loop = asyncio.get_running_loop()

    def fetch(url: str) -> bytes:
        lengths.append(len(source.current() or ()))
        document = documents.pop(0) if documents else key_set(RSA, EC)
        if len(lengths) == 5:
            loop.call_soon_threadsafe(all_read.set)
        loop.call_soon_threadsafe(source.expedite)  # a token of an unknown key comes meanwhile
        if isinstance(document, Exception):
            raise document
        return document

    with ThreadPoolExecutor(1) as executor:
        source = JwksSource("https://issuer/keys", Pauses(3600, 0.001, 0.002), executor, fetch)
        task = asyncio.create_task(source.run())
        async with asyncio.timeout(60):
            await all_read.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert lengths == [0, 0, 1, 1, 2]
