"""SCRAM: a client with the password gets in, and others learn nothing (RFC 5802, RFC 7677; Kafka's CVEs)."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.broker.security.sasl import scram
from headrace.broker.security.sasl.exchange import MESSAGE_BYTES_MAX, AuthenticationError, Identity
from headrace.broker.security.sasl.scram import (
    BY_NAME,
    Decoy,
    ScramExchange,
    ScramMechanism,
    Subject,
    credential_of,
    salted_password,
)
from headrace.broker.tests.security.sasl_clients import (
    SECRET,
    SERVER_NONCE,
    ScramClient,
    credential,
    exchange,
)

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
USERS = {"ann": credential("correct horse")}


def log_in(server: ScramExchange, client: ScramClient) -> bytes:
    return server.answer(client.final(server.answer(client.first)))


def refusal(server: ScramExchange, *messages: bytes) -> AuthenticationError:
    """Return the refusal of the last message; those before it are answered."""
    for message in messages[:-1]:
        server.answer(message)
    with pytest.raises(AuthenticationError) as refused:
        server.answer(messages[-1])
    assert server.identity is None
    return refused.value


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    stored = credential_of(SHA_256, salted_password(SHA_256, "pencil", salt, 4096), salt, 4096)
    server = ScramExchange(
        SHA_256, lambda *_: Subject(Identity("user"), stored), Decoy(SECRET), lambda: SERVER_NONCE
    )
    assert server.answer(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert (
        server.answer(
            b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
            b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        )
        == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    )
    assert server.identity == Identity("user")


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("name", ["ann", "a,b=c", "jürgen", "=2C", "x" * 255])
def test_client_and_server_authenticate_each_other(mechanism: ScramMechanism, name: str) -> None:
    server = exchange({name: credential("pä55, =word", mechanism)}, mechanism)
    client = ScramClient(name, "pä55, =word", mechanism)
    assert client.is_served_by_the_right_one(log_in(server, client))
    assert server.identity == Identity(name)


def test_mechanisms_have_the_names_of_the_registry() -> None:
    assert {name: (each.digest, each.key_size) for name, each in BY_NAME.items()} == {
        "SCRAM-SHA-256": ("sha256", 32),
        "SCRAM-SHA-512": ("sha512", 64),
    }


def test_a_wrong_password_is_refused_without_words_of_its_own() -> None:
    server, client = exchange(USERS), ScramClient("ann", "incorrect horse")
    error = refusal(server, client.first, client.final(exchange(USERS).answer(client.first)))
    assert error.told is None


def test_an_unknown_user_is_answered_like_a_known_one() -> None:
    """An unknown name is answered like a known one, always with the same salt, and fails at the same place."""
    known, unknown = ScramClient("ann", "x"), ScramClient("bob", "x")
    one, other = exchange(USERS).answer(known.first), exchange(USERS).answer(unknown.first)
    fields = [dict(part.split("=", 1) for part in each.decode().split(",")) for each in (one, other)]
    assert [(sorted(each), each["i"], each["r"]) for each in fields] == [
        (["i", "r", "s"], "4096", known.nonce + SERVER_NONCE)
    ] * 2
    lengths = [len(base64.b64decode(each["s"])) for each in fields]
    assert abs(lengths[0] - lengths[1]) <= 2  # a number of 130 bits in base 36, as Kafka's tools make them
    assert exchange(USERS).answer(unknown.first) == other
    assert exchange(USERS).answer(ScramClient("bo", "x").first) != other
    errors = [
        refusal(exchange(USERS), client.first, client.final(first))
        for client, first in ((known, one), (unknown, other))
    ]
    assert [error.told for error in errors] == [None, None]


def test_the_salt_of_an_unknown_user_depends_on_the_secret() -> None:
    names = ("bob", "carl")
    salts = {Decoy(secret).credential(SHA_256, name).salt for secret in (b"1", b"2") for name in names}
    assert len(salts) == 4


def test_an_unknown_user_costs_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real = scram._mac

    def counted(mechanism: ScramMechanism, key: bytes, data: bytes) -> bytes:
        calls.append(name)
        return real(mechanism, key, data)

    monkeypatch.setattr(scram, "_mac", counted)
    for name in ("ann", "bob"):
        client, server = ScramClient(name, "wrong"), exchange(USERS)
        refusal(server, client.first, client.final(exchange(USERS).answer(client.first)))
    assert calls == ["ann", "ann", "bob", "bob"]


def test_cve_2024_56128_the_nonce_of_the_final_message_is_the_one_of_the_exchange() -> None:
    for wrong in (
        SERVER_NONCE,
        "x" + ScramClient("ann", "").nonce + SERVER_NONCE,
        3 * ScramClient("ann", "").nonce + SERVER_NONCE,
        2 * ScramClient("ann", "").nonce,
        ScramClient("ann", "").nonce,
        ScramClient("ann", "").nonce + SERVER_NONCE + "x",
    ):
        server, client = exchange(USERS), ScramClient("ann", "correct horse")
        first = server.answer(client.first)
        with pytest.raises(AuthenticationError, match="another nonce"):
            server.answer(client.final(first, nonce=wrong))


def test_a_client_that_says_its_half_of_the_nonce_twice_gets_in() -> None:
    """The client librdkafka before 2.6.1 does so, and gets in only with the right password."""
    for password in ("correct horse", "wrong"):
        server, client = exchange(USERS), ScramClient("ann", password)
        final = client.final(server.answer(client.first), nonce=2 * client.nonce + SERVER_NONCE)
        if password == "wrong":
            with pytest.raises(AuthenticationError):
                server.answer(final)
        else:
            server.answer(final)
            assert server.identity == Identity("ann")


def test_cve_2021_38153_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(scram.hmac, "compare_digest", compare)
    log_in(exchange(USERS), ScramClient("ann", "correct horse"))
    assert (USERS["ann"].stored_key, USERS["ann"].stored_key) in compared


def test_a_final_message_is_good_once() -> None:
    server, client = exchange(USERS), ScramClient("ann", "correct horse")
    final = client.final(server.answer(client.first))
    server.answer(final)
    with pytest.raises(AuthenticationError, match="over"):
        server.answer(final)


def test_a_final_message_of_another_exchange_is_refused() -> None:
    client = ScramClient("ann", "correct horse")
    old = client.final(exchange(USERS).answer(client.first))
    nonces = iter(["another-nonce"])
    stored = USERS["ann"]
    server = ScramExchange(
        SHA_256, lambda *_: Subject(Identity("ann"), stored), Decoy(SECRET), lambda: next(nonces)
    )
    assert "another nonce" in str(refusal(server, client.first, old))


def test_a_changed_channel_binding_is_refused() -> None:
    for first, final in (("n,,", "y,,"), ("y,,", "n,,"), ("n,,", "n,a=ann,"), ("n,,", "")):
        server, client = exchange(USERS), ScramClient("ann", "correct horse", gs2=first)
        challenge = server.answer(client.first)
        with pytest.raises(AuthenticationError, match="channel binding"):
            server.answer(client.final(challenge, channel=final))
    assert "invalid first" in str(refusal(exchange(USERS), b"p=tls-unique,,n=ann,r=abc"))
    assert log_in(exchange(USERS), ScramClient("ann", "correct horse", gs2="y,,")).startswith(b"v=")


def test_cve_2017_12610_a_different_authorization_id_is_refused() -> None:
    for name in ("ann", "bob"):
        error = refusal(exchange(USERS), ScramClient(name, "correct horse", gs2="n,a=admin,").first)
        assert error.told == (
            "Authentication failed: Client requested an authorization id that is different from username"
        )
    assert log_in(exchange(USERS), ScramClient("ann", "correct horse", gs2="n,a=ann,")).startswith(b"v=")


def test_credentials_with_few_iterations_are_not_used() -> None:
    weak = {"ann": credential("correct horse", iterations=4095)}
    assert "4095 iterations" in str(refusal(exchange(weak), ScramClient("ann", "correct horse").first))


def test_an_extension_that_must_be_understood_is_refused() -> None:
    assert "must be understood" in str(refusal(exchange(USERS), b"n,,m=x,n=ann,r=abc"))
    client = ScramClient("ann", "correct horse", extensions=",foo=bar")
    assert log_in(exchange(USERS), client).startswith(b"v=")


def test_a_proof_has_the_length_of_a_key() -> None:
    server, client = exchange(USERS), ScramClient("ann", "correct horse")
    final = client.final(server.answer(client.first))
    short = final.partition(b",p=")[0] + b",p=" + base64.b64encode(b"x" * 31)
    assert "31 bytes" in str(refusal(server, short))


def test_a_long_message_is_not_looked_at() -> None:
    assert "bytes" in str(refusal(exchange(USERS), b"n,,n=ann,r=" + b"x" * MESSAGE_BYTES_MAX))


def test_after_a_refusal_nothing_is_answered() -> None:
    server, client = exchange(USERS), ScramClient("ann", "correct horse")
    refusal(server, b"nonsense")
    assert "over" in str(refusal(server, client.first))


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_bytes_are_answered_or_refused(first: bytes, second: bytes) -> None:
    server = exchange(USERS)
    for message in (first, second):
        with contextlib.suppress(AuthenticationError):
            server.answer(message)
    assert server.identity is None


_STRUCTURED = st.lists(
    st.sampled_from(
        [
            "n",
            "y",
            "p=x",
            ",",
            "a=ann",
            "n=ann",
            "n=bob",
            "r=abc",
            "=2C",
            "=3D",
            "m=1",
            "tokenauth=true",
            "c=biws",
            "p=AAAA",
            "r=abc" + SERVER_NONCE,
            "\0",
            "ä",
        ]
    ),
    max_size=12,
).map(lambda parts: "".join(parts).encode())


@given(_STRUCTURED, _STRUCTURED)
def test_no_pieces_of_messages_get_in(first: bytes, second: bytes) -> None:
    server = exchange(USERS)
    for message in (first, b"n,,n=ann,r=abc", second):
        with contextlib.suppress(AuthenticationError):
            server.answer(message)
    assert server.identity is None


def test_the_repr_of_a_credential_has_no_keys() -> None:
    shown = repr(USERS["ann"]) + str(USERS)
    assert "hidden" in shown
    assert repr(USERS["ann"].stored_key) not in shown
