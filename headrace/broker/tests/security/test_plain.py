"""PLAIN (RFC 4616), with Kafka's words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.security.sasl import plain
from headrace.broker.security.sasl.exchange import MESSAGE_BYTES_MAX, AuthenticationError, Identity
from headrace.broker.security.sasl.plain import PlainExchange, PlainUsers

USERS = PlainUsers({"ann": "secret-1", "jürgen": "päss"})


@pytest.mark.parametrize("message", ["\0ann\0secret-1", "ann\0ann\0secret-1", "\0jürgen\0päss"])
def test_the_right_password_is_accepted(message: str) -> None:
    server = PlainExchange(USERS)
    assert server.answer(message.encode()) == b""
    assert server.identity == Identity(message.split("\0")[1])


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"\0ann\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0bob\0secret-1", "Authentication failed: Invalid username or password"),
        (b"\0ann\0secret-1 ", "Authentication failed: Invalid username or password"),
        (b"\0\0secret-1", "Authentication failed: username not specified"),
        (b"\0ann\0", "Authentication failed: password not specified"),
        (b"ann secret-1", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"ann\0secret-1", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0ann\0secret-1\0\0\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (
            b"admin\0ann\0secret-1",
            "Authentication failed: Client requested an authorization id that is different from username",
        ),
        (b"\0ann\0\xff", None),
        (b"\0ann\0" + b"x" * MESSAGE_BYTES_MAX, None),
    ],
)
def test_wrong_credentials_get_kafkas_message(message: bytes, told: str | None) -> None:
    server = PlainExchange(USERS)
    with pytest.raises(AuthenticationError) as refused:
        server.answer(message)
    assert refused.value.told == told
    assert server.identity is None
    assert b"secret-1" not in str(refused.value).encode()


def test_cve_2021_38153_passwords_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digests are compared, so that the length does not show either; for an unknown user too."""
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr(plain.hmac, "compare_digest", compare)
    for name, password in (("ann", "s"), ("bob", "x" * 100), ("ann", "secret-1")):
        USERS.are_right(name, password)
    assert compared == [(32, 32)] * 3


@given(st.binary(max_size=60))
def test_any_bytes_are_refused(message: bytes) -> None:
    server = PlainExchange(USERS)
    with pytest.raises(AuthenticationError):
        server.answer(message)


def test_the_repr_of_users_has_no_password() -> None:
    assert "secret" not in repr(USERS) + repr(vars(USERS))
