"""Users and delegation tokens: the requests of Kafka's admin clients, and the resulting state of the store."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.broker.runtime.ports import CoordinationStore, SystemEntropy
from headrace.broker.security.principal import Principal, Session
from headrace.broker.security.sasl.exchange import AuthenticationError
from headrace.broker.security.sasl.scram import ScramMechanism, salted_password
from headrace.broker.security.sasl.settings import sasl_of_listener
from headrace.broker.security.sasl.tokens import DelegationTokens
from headrace.broker.security.sasl.users import Change, ScramUsers
from headrace.broker.stores.embedded import EmbeddedStore
from headrace.broker.tests.security.sasl_clients import ScramClient, credential
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from headrace.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from headrace.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from headrace.protocol.messages.expire_delegation_token import ExpireDelegationTokenRequest
from headrace.protocol.messages.renew_delegation_token import RenewDelegationTokenRequest
from simulator.direct import DirectBroker, direct_broker
from simulator.stores import eventually

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
SALT = b"1234567890abcdefghijklmno"
DAY_MS = 86_400_000
TOKENS = {"delegation.token.secret.key": "of-all-brokers"}


def upsertion(name: str, password: str = "pass", mechanism: int = 1, iterations: int = 4096) -> Any:
    known = ScramMechanism(mechanism) if mechanism in (1, 2) else SHA_256
    return ScramCredentialUpsertion(
        name=name,
        mechanism=mechanism,
        iterations=iterations,
        salt=SALT,
        salted_password=salted_password(known, password, SALT, max(iterations, 1)),
    )


def deletion(name: str, mechanism: int = 1) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


async def alter(broker: DirectBroker, *alterations: Any) -> list[tuple[str, int, str | None]]:
    request = AlterUserScramCredentialsRequest(
        deletions=[each for each in alterations if isinstance(each, ScramCredentialDeletion)],
        upsertions=[each for each in alterations if isinstance(each, ScramCredentialUpsertion)],
    )
    response = await broker.send(request)
    return [(each.user, each.error_code, each.error_message) for each in response.results]


async def described(broker: DirectBroker, *names: str) -> list[tuple[str, int, list[tuple[int, int]]]]:
    users = [UserName(name=name) for name in names] if names else None
    response = await broker.send(DescribeUserScramCredentialsRequest(users=users))
    assert response.error_code == ErrorCode.NONE
    return [
        (each.user, each.error_code, [(info.mechanism, info.iterations) for info in each.credential_infos])
        for each in response.results
    ]


async def test_users_are_made_changed_shown_and_deleted(tmp_path: Path) -> None:
    async with direct_broker(tmp_path) as broker:
        assert await alter(broker, upsertion("ann"), upsertion("b/ö,=", mechanism=2, iterations=8192)) == [
            ("ann", 0, None),
            ("b/ö,=", 0, None),
        ]
        assert await alter(broker, upsertion("ann", mechanism=2, iterations=16384)) == [("ann", 0, None)]
        everybody = [("ann", 0, [(1, 4096), (2, 16384)]), ("b/ö,=", 0, [(2, 8192)])]
        assert await described(broker) == everybody
    async with direct_broker(tmp_path) as broker:
        assert await described(broker) == everybody, "after a restart"
        assert await alter(broker, deletion("ann"), deletion("b/ö,=", 2)) == [
            ("ann", 0, None),
            ("b/ö,=", 0, None),
        ]
        assert await described(broker) == [("ann", 0, [(2, 16384)])]
        assert await described(broker, "ann", "ann", "b/ö,=") == [
            ("ann", ErrorCode.DUPLICATE_RESOURCE, []),
            ("b/ö,=", ErrorCode.RESOURCE_NOT_FOUND, []),
        ]


@pytest.mark.parametrize(
    ("alterations", "code", "message"),
    [
        ([upsertion("u", iterations=4095)], ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
        ([upsertion("u", iterations=16385)], ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        ([upsertion("")], ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        ([upsertion("u", mechanism=3)], ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        ([deletion("u", 0)], ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        (
            [deletion("u")],
            ErrorCode.RESOURCE_NOT_FOUND,
            "Attempt to delete a user credential that does not exist",
        ),
        (
            [upsertion("u"), upsertion("u", "other"), upsertion("u", mechanism=2)],
            ErrorCode.DUPLICATE_RESOURCE,
            "A user credential cannot be altered twice in the same request",
        ),
        (
            [deletion("u"), upsertion("u")],
            ErrorCode.DUPLICATE_RESOURCE,
            "A user credential cannot be altered twice in the same request",
        ),
        (
            [
                ScramCredentialUpsertion(
                    name="u", mechanism=1, iterations=4096, salt=b"", salted_password=b"x"
                )
            ],
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            "Salt and salted password must not be empty",
        ),
    ],
)
async def test_a_failed_alteration_does_not_affect_other_users(
    tmp_path: Path, alterations: list[Any], code: ErrorCode, message: str
) -> None:
    async with direct_broker(tmp_path) as broker:
        results = await alter(broker, upsertion("good"), *alterations)
        assert results == [("good", 0, None), (alterations[0].name, code, message)]
        assert await described(broker) == [("good", 0, [(1, 4096)])]


async def test_both_mechanisms_of_a_user_are_altered_together_or_not_at_all(tmp_path: Path) -> None:
    async with direct_broker(tmp_path) as broker:
        assert await alter(broker, upsertion("ann"), upsertion("ann", mechanism=2)) == [("ann", 0, None)]
        assert await described(broker) == [("ann", 0, [(1, 4096), (2, 4096)])]
        wrong = await alter(
            broker, upsertion("ann", iterations=5000), upsertion("ann", mechanism=2, iterations=1)
        )
        assert wrong == [("ann", ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")]
        assert await described(broker) == [("ann", 0, [(1, 4096), (2, 4096)])]
        assert await alter(broker, deletion("ann"), deletion("ann", 2)) == [("ann", 0, None)]
        assert await described(broker) == []
        made = await alter(broker, upsertion("ann"), deletion("ann", 2))
        assert made[0][1] == ErrorCode.RESOURCE_NOT_FOUND
        assert await described(broker) == []


async def test_a_request_alters_a_thousand_credentials_at_most(tmp_path: Path) -> None:
    async with direct_broker(tmp_path) as broker:
        results = await alter(broker, *[deletion(f"u{number}") for number in range(1001)])
        assert {code for _, code, _ in results} == {ErrorCode.INVALID_REQUEST}
        assert len(results) == 1001


async def test_no_password_is_in_the_store(tmp_path: Path) -> None:
    async with direct_broker(tmp_path) as broker:
        await alter(broker, upsertion("ann", "hunter2"))
        salted = salted_password(SHA_256, "hunter2", SALT, 4096)
        node = await broker.context.store.get("/security/users/ann")
        assert node is not None
        for secret in (b"hunter2", salted, base64.b64encode(salted)):
            assert secret not in node.data


async def test_two_changes_at_once_are_both_made(tmp_path: Path) -> None:
    """Two brokers share one store: the one that was overtaken reads again, and decides again."""
    async with direct_broker(tmp_path) as broker:
        one, other = [ScramUsers(broker.context.store, SystemEntropy()) for _ in range(2)]
        await one.load()
        await other.load()
        await one.alter(lambda: [Change("ann", SHA_256, credential("a"))])
        asked = 0

        def delete_if_there() -> list[Change]:
            nonlocal asked
            asked += 1
            changes = [Change("bob", SHA_256, credential("b"))]
            if SHA_256 in other.credentials("ann"):
                changes.append(Change("ann", SHA_256, None))
            return changes

        await other.alter(delete_if_there)
        assert asked == 2
        await one.load()
        assert one.names() == other.names() == ["bob"]


async def test_names_are_parts_of_paths_and_nothing_more(tmp_path: Path) -> None:
    names = sorted(["..", ".", "a/b", "../x", "%2E", "ü", "a b"])
    async with direct_broker(tmp_path) as broker:
        await alter(broker, *[upsertion(name) for name in names])
        store: CoordinationStore = broker.context.store
        children = await store.children("/security/users")
        assert len(children) == len(names)
        assert not {".", ".."} & set(children)
        again = ScramUsers(store, SystemEntropy())
        await again.load()
        assert again.names() == names


async def test_the_salt_of_an_unknown_user_survives_a_restart(tmp_path: Path) -> None:
    salts = []
    for _ in range(2):
        async with direct_broker(tmp_path) as broker:
            users = ScramUsers(broker.context.store, SystemEntropy())
            await users.load()
            salts.append(users.decoy.credential(SHA_256, "bob").salt)
    assert salts[0] == salts[1]


# -- delegation tokens -------------------------------------------------------------------------------------


def log_in(
    broker: DirectBroker, name: str, mechanism: str = "SCRAM-SHA-256", *, by_token: bool = False
) -> None:
    session = Session(Principal("User", name), "SASL", mechanism, by_token=by_token)
    broker.peer.session = session
    broker.peer.memory = None


async def create(broker: DirectBroker, **fields: Any) -> Any:
    return await broker.send(CreateDelegationTokenRequest(**fields))


async def tokens_of(broker: DirectBroker, *owners: str) -> list[Any]:
    named = [DescribeDelegationTokenOwner(principal_type="User", principal_name=owner) for owner in owners]
    response = await broker.send(DescribeDelegationTokenRequest(owners=named if owners else None))
    assert response.error_code == ErrorCode.NONE
    return list(response.tokens)


async def test_a_token_stands_for_its_owner_until_it_ends(tmp_path: Path) -> None:
    async with direct_broker(tmp_path, TOKENS) as broker:
        log_in(broker, "ann")
        made = await create(
            broker,
            renewers=[CreatableRenewers(principal_type="User", principal_name="bob")],
            max_lifetime_ms=2 * DAY_MS,
        )
        assert made.error_code == ErrorCode.NONE
        assert made.expiry_timestamp_ms - made.issue_timestamp_ms == DAY_MS
        assert made.max_timestamp_ms - made.issue_timestamp_ms == 2 * DAY_MS
        (shown,) = await tokens_of(broker)
        assert (shown.token_id, shown.hmac, shown.principal_name) == (made.token_id, made.hmac, "ann")
        assert [each.principal_name for each in shown.renewers] == ["bob"]

        password = base64.b64encode(made.hmac).decode()
        for mechanism in ScramMechanism:
            assert attempt(broker, mechanism, made.token_id, password) == (
                "ann",
                True,
                made.expiry_timestamp_ms,
            )
            assert attempt(broker, mechanism, made.token_id, "x") is None
            assert attempt(broker, mechanism, made.token_id, password, extensions="") is None
    async with direct_broker(tmp_path, TOKENS) as broker:
        assert attempt(broker, SHA_256, made.token_id, password) is not None, "after a restart"
        log_in(broker, "bob")
        renewed = await broker.send(RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=1000))
        assert renewed.error_code == ErrorCode.NONE
        assert renewed.expiry_timestamp_ms < made.expiry_timestamp_ms
        ended = await broker.send(ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1))
        assert ended.error_code == ErrorCode.NONE
        assert await tokens_of(broker) == []
        assert attempt(broker, SHA_256, made.token_id, password) is None
    async with direct_broker(tmp_path, TOKENS) as broker:
        log_in(broker, "bob")
        assert await tokens_of(broker) == []


async def test_tokens_of_another_broker_are_followed(tmp_path: Path) -> None:
    """The other one shares the store and the key: another broker, or this one before a restart."""
    ann = Principal("User", "ann")

    async def becomes(wanted: Callable[[], bool]) -> None:
        async def is_so() -> bool:
            return wanted()

        await eventually(is_so, "the other knows it")

    async with direct_broker(tmp_path, TOKENS) as broker:
        store, now_ms = broker.context.store, broker.context.clock.time_ms()
        other = DelegationTokens(store, "of-all-brokers", lambda: 7 * DAY_MS, lambda: DAY_MS)
        await other.load()
        following = asyncio.create_task(other.run())
        salts = dict.fromkeys(ScramMechanism, 7)
        await other.keep(other.new("theirs", salts, ann, ann, (), -1, now_ms))
        secret = other.secret("theirs")
        password = base64.b64encode(secret).decode()

        await becomes(lambda: attempt(broker, SHA_256, "theirs", password) is not None)
        ends_ms = await other.renew(secret, 1000, ann, now_ms)
        await becomes(lambda: attempt(broker, SHA_256, "theirs", password) == ("ann", True, ends_ms))
        log_in(broker, "ann")
        ours = await create(broker)
        await becomes(lambda: other.find(ours.token_id) is not None)
        await other.expire(secret, -1, ann, now_ms)
        await becomes(lambda: attempt(broker, SHA_256, "theirs", password) is None)
        assert [each.token_id for each in await tokens_of(broker)] == [ours.token_id]
        following.cancel()


async def test_concurrent_token_changes_are_all_kept(tmp_path: Path) -> None:
    ann = Principal("User", "ann")
    store = EmbeddedStore(tmp_path / "store")
    each = [DelegationTokens(store, "k", lambda: 7 * DAY_MS, lambda: DAY_MS) for _ in range(2)]
    for tokens in each:
        await tokens.load()
    salts = dict.fromkeys(ScramMechanism, 7)
    await asyncio.gather(
        *(
            tokens.keep(tokens.new(f"t{number}", salts, ann, ann, (), -1, 0))
            for number, tokens in enumerate(each)
        )
    )
    secret = each[0].secret("t0")
    await each[0].expire(secret, -1, ann, 0)
    with pytest.raises(KafkaError) as refused:
        await each[1].renew(secret, 1000, ann, 0)
    assert refused.value.code is ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    for tokens in each:
        await tokens.load()
        assert [token.token_id for token in tokens.all()] == ["t1"]
    await store.close()


def attempt(
    broker: DirectBroker,
    mechanism: ScramMechanism,
    name: str,
    password: str,
    extensions: str = ",tokenauth=true",
) -> tuple[str, bool, int | None] | None:
    """Return (name, by a token, its end) of a login by SCRAM."""
    parts = broker.broker.sasl.parts
    offered = sasl_of_listener("L", {"sasl.enabled.mechanisms": mechanism.sasl_name}.get, parts)
    server = offered[mechanism.sasl_name].start()
    client = ScramClient(name, password, mechanism, extensions=extensions)
    try:
        server.answer(client.final(server.answer(client.first)))
    except AuthenticationError:
        return None
    identity = server.identity
    assert identity is not None
    return identity.name, identity.by_token, identity.expires_ms


async def test_tokens_and_anonymous_clients_cannot_create_tokens(tmp_path: Path) -> None:
    async with direct_broker(tmp_path, TOKENS) as broker:
        log_in(broker, "ann")
        made = await create(broker)
        for name, mechanism, by_token in (
            ("ann", "SCRAM-SHA-256", True),
            ("ANONYMOUS", "", False),
            ("ANONYMOUS", "SSL", False),
        ):
            log_in(broker, name, mechanism, by_token=by_token)
            for request in (
                CreateDelegationTokenRequest(),
                RenewDelegationTokenRequest(hmac=made.hmac),
                ExpireDelegationTokenRequest(hmac=made.hmac),
                DescribeDelegationTokenRequest(owners=None),
            ):
                answer = await broker.send(request)
                assert answer.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


async def test_tokens_are_their_owners_and_renewers(tmp_path: Path) -> None:
    async with direct_broker(tmp_path, TOKENS) as broker:
        log_in(broker, "ann")
        made = await create(broker)
        log_in(broker, "eve")
        for request in (
            RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=1),
            ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=-1),
        ):
            assert (await broker.send(request)).error_code == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
        for hmac in (b"", b"x" * 64):
            unknown = await broker.send(RenewDelegationTokenRequest(hmac=hmac))
            assert unknown.error_code == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        wrong = await create(broker, renewers=[CreatableRenewers(principal_type="Group", principal_name="g")])
        assert wrong.error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
        assert await tokens_of(broker, "eve") == []
        assert len(await tokens_of(broker, "ann")) == 1, "nothing is checked without an authorizer"


async def test_tokens_that_have_ended_are_refused_and_removed(tmp_path: Path) -> None:
    async with direct_broker(tmp_path, TOKENS) as broker:
        log_in(broker, "ann")
        made = await create(broker)
        later = made.expiry_timestamp_ms + 1
        tokens = broker.broker.sasl.tokens
        for call in (
            tokens.renew(made.hmac, 0, Principal("User", "ann"), later),
            tokens.expire(made.hmac, 5, Principal("User", "ann"), later),
        ):
            with pytest.raises(Exception, match="DELEGATION_TOKEN_EXPIRED"):
                await call
        await tokens.sweep(later - 1)
        assert len(tokens.all()) == 1
        await tokens.sweep(later)
        assert tokens.all() == []
        assert await broker.context.store.children("/security/tokens") == []


async def test_an_expired_token_is_refused(tmp_path: Path) -> None:
    """The rule holds also before it is removed."""
    async with direct_broker(tmp_path, TOKENS) as broker:
        log_in(broker, "ann")
        made = await create(broker)
        tokens, password = broker.broker.sasl.tokens, base64.b64encode(made.hmac).decode()
        ended = replace(tokens.all()[0], expires_ms=made.issue_timestamp_ms - 1, token_id="ended")
        await tokens.keep(ended)
        assert attempt(broker, SHA_256, "ended", password) is None
        assert attempt(broker, SHA_256, made.token_id, password) is not None
        await tokens.keep(replace(ended, expires_ms=made.expiry_timestamp_ms, token_id="good"))
        assert attempt(broker, SHA_256, "good", password) is not None


async def test_a_token_does_not_live_beyond_its_longest_life(tmp_path: Path) -> None:
    config = {**TOKENS, "delegation.token.max.lifetime.ms": "5000", "delegation.token.expiry.time.ms": "9000"}
    async with direct_broker(tmp_path, config) as broker:
        log_in(broker, "ann")
        made = await create(broker, max_lifetime_ms=99_000)
        assert made.max_timestamp_ms == made.expiry_timestamp_ms == made.issue_timestamp_ms + 5000
        for request in (
            RenewDelegationTokenRequest(hmac=made.hmac, renew_period_ms=99_000),
            ExpireDelegationTokenRequest(hmac=made.hmac, expiry_time_period_ms=99_000),
        ):
            assert (await broker.send(request)).expiry_timestamp_ms == made.max_timestamp_ms


async def test_without_a_key_there_are_no_tokens_and_another_key_knows_none(tmp_path: Path) -> None:
    async with direct_broker(tmp_path, TOKENS) as broker:
        log_in(broker, "ann")
        made = await create(broker)
        password = base64.b64encode(made.hmac).decode()
    async with direct_broker(tmp_path) as broker:
        log_in(broker, "ann")
        assert (await create(broker)).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
        assert attempt(broker, SHA_256, made.token_id, password) is None
    async with direct_broker(tmp_path, {"delegation.token.secret.key": "another"}) as broker:
        log_in(broker, "ann")
        assert await tokens_of(broker) == []
        assert attempt(broker, SHA_256, made.token_id, password) is None
