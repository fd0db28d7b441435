"""Brokers authenticate to each other by the inter-broker listener."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography import x509
from joserfc import jwt

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.net import introductions as inter_broker
from headrace.broker.net.introductions import InterBroker
from headrace.broker.net.outgoing import OutgoingConnection
from headrace.broker.security.sasl.bearer_tokens import BearerTokens
from headrace.broker.security.sasl.scram import ScramMechanism, credential_of, salted_password
from headrace.broker.security.sasl.settings import TokenLogin
from headrace.broker.security.sasl.users import Change
from headrace.broker.security.tls.client_tls import client_tls
from headrace.broker.tests.security.people import SECURED
from headrace.broker.tests.security.test_jwks import DOCUMENT, KEY, issuer
from headrace.broker.tests.security.test_jwks import MODULE as OAUTHBEARER
from headrace.protocol.errors import ErrorCode
from headrace.protocol.headers import RequestHeader, decode_response_header, encode_request_header
from headrace.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from simulator.certificates import Identity, identity
from simulator.cluster import DirectCluster, direct_cluster

AUTHORITY = identity("authority")
PASSWORD, STORE_PASSWORD = "broker-secret", "store-secret"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
OWN = "listener.name.internal."
TOKENS = "sasl.oauthbearer.token.endpoint.url"
CREDENTIALS = "sasl.oauthbearer.client.credentials.client"
BY_TOKEN: dict[str, str | None] = {
    "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": "http://127.0.0.1:1/keys",
    f"{OWN}plain.sasl.jaas.config": None,
}


def settings(folder: Path, protocol: str, **changes: str | None) -> dict[str, str]:
    """Return settings with certificates of brokers in the folder; `_` stands for `.`."""
    (folder / "ca.pem").write_text(AUTHORITY.certificate_pem)
    write(folder, identity("localhost", AUTHORITY))
    given: Mapping[str, str | None] = {
        **SECURED,
        "super.users": "User:broker;User:CN=localhost",
        "listeners": "INTERNAL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "listener.security.protocol.map": f"INTERNAL:{protocol},PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(folder / "broker.p12"),
        "ssl.keystore.password": STORE_PASSWORD,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        f"{OWN}ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        f"{OWN}plain.sasl.jaas.config": (
            f'{PLAIN} required username="broker" password="{PASSWORD}" user_broker="{PASSWORD}";'
        ),
        f"{OWN}scram-sha-512.sasl.jaas.config": f'{SCRAM} required username="broker" password="{PASSWORD}";',
        **{name.replace("_", "."): value for name, value in changes.items()},
    }
    return {name: value for name, value in given.items() if value is not None}


def write(folder: Path, own: Identity) -> None:
    (folder / "broker.p12").write_bytes(own.pkcs12(STORE_PASSWORD))


async def connected(cluster: DirectCluster) -> OutgoingConnection:
    """Connect from broker 1 to broker 2, as it has registered."""
    await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
    one = cluster.brokers[1]
    endpoints = one.context.metadata.image.brokers[2].endpoints
    host, port = next((host, port) for name, host, port in endpoints if name == "INTERNAL")
    async with asyncio.timeout(60):
        return await one.broker.network.connect(host, port)


async def may_all(connection: OutgoingConnection) -> bool:
    """Return whether the connection is a super user's."""
    request = DescribeAclsRequest(
        resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
    )
    version = DescribeAclsRequest.MAX_VERSION
    header = encode_request_header(
        RequestHeader(DescribeAclsRequest.API_KEY, version, 5, "b"), request.header_version(version)
    )
    async with asyncio.timeout(60):
        frame = await connection.ask([header, request.encode(version)])
    number, position = decode_response_header(frame, DescribeAclsResponse.header_version(version))
    assert number == 5
    return DescribeAclsResponse.decode(frame, version, None, position).error_code == ErrorCode.NONE


@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT", "SASL_SSL", "PLAINTEXT"])
async def test_a_broker_is_known_to_the_others(tmp_path: Path, protocol: str) -> None:
    async with direct_cluster(tmp_path, 2, config=settings(tmp_path, protocol)) as cluster:
        connection = await connected(cluster)
        assert await may_all(connection) is (protocol != "PLAINTEXT")
        connection.close("enough")


async def test_a_broker_is_known_by_scram(tmp_path: Path) -> None:
    config = settings(tmp_path, "SASL_SSL", sasl_mechanism_inter_broker_protocol="SCRAM-SHA-512")
    async with direct_cluster(tmp_path, 2, config=config) as cluster:
        with pytest.raises(ConnectionError, match="refused the user broker with SCRAM-SHA-512"):
            await connected(cluster)
        mechanism, salt = ScramMechanism.SHA_512, b"salt"
        salted = salted_password(mechanism, PASSWORD, salt, 4096)
        change = Change("broker", mechanism, credential_of(mechanism, salted, salt, 4096))
        await cluster.brokers[2].broker.sasl.users.alter(lambda: [change])
        connection = await connected(cluster)
        assert await may_all(connection)
        connection.close("enough")


def token_of(name: str, seconds: float = 600) -> str:
    now = int(time.time())
    return jwt.encode({"alg": "ES256", "kid": "e1"}, {"sub": name, "iat": now, "exp": now + seconds}, KEY)


def by_token(folder: Path, **changes: str | None) -> dict[str, str]:
    """Both brokers take the issuer's tokens."""
    (folder / "keys").write_bytes(DOCUMENT)
    keys = {"sasl.oauthbearer.jwks.endpoint.url": f"file://{folder}/keys"}
    return settings(folder, "SASL_SSL", **(BY_TOKEN | keys | changes))


async def test_a_broker_is_known_by_the_token_of_a_file(tmp_path: Path) -> None:
    """A renewed file changes the token of the next connection; a file that is not a token is not sent."""
    place = tmp_path / "token"
    place.write_text(token_of("broker") + "\n")
    async with direct_cluster(
        tmp_path, 2, config=by_token(tmp_path, **{TOKENS: f"file://{place}"})
    ) as cluster:
        connection = await connected(cluster)
        assert await may_all(connection)
        connection.close("enough")
        place.write_text(token_of("ann"))
        connection = await connected(cluster)
        assert not await may_all(connection)
        connection.close("enough")
        place.write_text(token_of("broker", -3600))
        with pytest.raises(ConnectionError, match=r"with OAUTHBEARER: .*invalid_token"):
            await connected(cluster)
        place.write_text("planted: no token")
        with pytest.raises(
            ConnectionError, match="no token could be fetched: no token can be read from file:"
        ) as refused:
            await connected(cluster)
        assert "planted" not in str(refused.value)


@pytest.mark.parametrize("by_jaas", [True, False])
async def test_a_broker_gets_a_token_for_its_id_and_secret(tmp_path: Path, by_jaas: bool) -> None:
    asked: list[tuple[str, str]] = []

    def answer(form: str, authorization: str) -> bytes | None:
        asked.append((form, base64.b64decode(authorization.removeprefix("Basic ")).decode()))
        if asked[-1][1] != f"headrace:{PASSWORD}":
            return None
        return json.dumps({"access_token": token_of("broker"), "expires_in": 600}).encode()

    (tmp_path / "issuer.pem").write_text(AUTHORITY.certificate_pem)
    trusted = f'ssl.truststore.type=PEM ssl.truststore.location="{tmp_path}/issuer.pem"'
    pair = f'clientId=headrace clientSecret="{PASSWORD}" scope=brokers' if by_jaas else ""
    own = {f"{OWN}oauthbearer.sasl.jaas.config": f"{OAUTHBEARER} required {trusted} {pair};"}
    if not by_jaas:
        own |= {
            f"{CREDENTIALS}.id": "headrace",
            f"{CREDENTIALS}.secret": PASSWORD,
            "sasl.oauthbearer.scope": "brokers",
        }
    with issuer(tmp_path, identity("localhost", AUTHORITY), answer=answer) as url:
        async with direct_cluster(tmp_path, 2, config=by_token(tmp_path, **{TOKENS: url}, **own)) as cluster:
            connection = await connected(cluster)
            assert await may_all(connection)
            connection.close("enough")
        assert set(asked) == {("grant_type=client_credentials&scope=brokers", f"headrace:{PASSWORD}")}
        wrong = {name: value.replace(PASSWORD, "another") for name, value in own.items()}
        config = by_token(tmp_path, **{TOKENS: url}, **wrong)
        async with direct_cluster(tmp_path / "wrong", 2, config=config) as cluster:
            with pytest.raises(
                ConnectionError, match="gives client headrace no token: HTTP Error 401"
            ) as refused:
                await connected(cluster)
            assert "another" not in str(refused.value)


def test_a_token_of_a_server_is_used_until_it_is_old(tmp_path: Path) -> None:
    given: list[str] = []

    def answer(form: str, authorization: str) -> bytes:
        given.append(f"token-{len(given)}")
        return json.dumps({"access_token": given[-1], "expires_in": 100}).encode()

    with issuer(tmp_path, None, answer=answer) as url:
        tokens = BearerTokens(TokenLogin(url, "headrace", PASSWORD, None, client_tls({})))
        assert [tokens.token(now) for now in (1000.0, 1079.0, 1081.0)] == ["token-0", "token-0", "token-1"]
    assert PASSWORD not in repr(tokens.login)
    with issuer(tmp_path, None, answer=lambda *_: b'{"error": "planted"}') as url:
        tokens = BearerTokens(TokenLogin(url, "headrace", PASSWORD, None, client_tls({})))
        with pytest.raises(ConnectionError, match=r"no token of OAuth$"):
            tokens.token(0.0)


async def test_a_session_is_renewed_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0.5 < inter_broker.SESSION_USED < 0.95
    monkeypatch.setattr(inter_broker, "SESSION_USED", 0.002)  # 1.2 s: sooner than a second is refused
    config = settings(tmp_path, "SASL_SSL", connections_max_reauth_ms="600000")
    async with direct_cluster(tmp_path, 2, config=config) as cluster:
        connection = await connected(cluster)
        port = connection._sock.getsockname()[1]
        served = next(
            each for each in cluster.brokers[2].broker.network._connections if each.peer.port == port
        )
        ends = set()
        async with asyncio.timeout(60):
            while len(ends) < 2:
                assert await may_all(connection)
                session = served.peer.session
                assert session is not None
                assert session.expires is not None
                ends.add(session.expires)
                await asyncio.sleep(0.01)
        assert session.expires == max(ends)
        assert not connection.closed
        connection.close("enough")


async def test_new_certificates_count_for_the_next_connection_and_broken_ones_do_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with direct_cluster(tmp_path, 2, config=settings(tmp_path, "SSL")) as cluster:
        (await connected(cluster)).close("enough")
        introduction = cluster.brokers[1].broker.network.introduction
        assert isinstance(introduction, InterBroker)
        before = introduction._context
        write(tmp_path, identity("localhost", AUTHORITY))
        (await connected(cluster)).close("enough")
        changed = introduction._context
        assert changed is not before
        (tmp_path / "ca.pem").write_text("nothing")
        with caplog.at_level(logging.ERROR, "headrace.security"):
            (await connected(cluster)).close("enough")
        assert introduction._context is changed
        assert "keep the present certificates" in caplog.text


async def test_a_broker_of_another_name_is_not_asked(tmp_path: Path) -> None:
    config = settings(tmp_path, "SSL")
    write(tmp_path, identity("elsewhere", AUTHORITY, names=(x509.DNSName("elsewhere"),)))
    async with direct_cluster(tmp_path, 2, config=config) as cluster:
        with pytest.raises(ConnectionError, match="certificate is not accepted"):
            await connected(cluster)
    lenient = {**config, f"{OWN}ssl.endpoint.identification.algorithm": ""}
    async with direct_cluster(tmp_path / "lenient", 2, config=lenient) as cluster:
        (await connected(cluster)).close("enough")


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"sasl_mechanism_inter_broker_protocol": None}, r"sasl\.mechanism\.inter\.broker\.protocol \(it is GSSAPI\)"),
        (
            {"sasl_mechanism_inter_broker_protocol": "CRAM-MD5"},
            "to one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER",
        ),
        (BY_TOKEN, r"set sasl\.oauthbearer\.token\.endpoint\.url \(it is ''\)"),
        (BY_TOKEN | {TOKENS: "ftp://issuer/token"}, r"\(it is 'ftp://issuer/token'\) to the URL of their tokens"),
        (
            BY_TOKEN | {TOKENS: "https://issuer/token", f"{CREDENTIALS}.id": "broker"},
            r"set sasl\.oauthbearer\.client\.credentials\.client\.id and .*secret, or clientId and clientSecret in "
            r"listener\.name\.internal\.oauthbearer\.sasl\.jaas\.config",
        ),
        (BY_TOKEN | {TOKENS: "file:///etc/passwd"}, "no token can be read from file:///etc/passwd$"),
        (
            {f"{OWN}plain.sasl.jaas.config": f'{PLAIN} required user_broker="{PASSWORD}";'},
            r"listener\.name\.internal\.plain\.sasl\.jaas\.config must have username and password",
        ),
        ({"ssl_truststore_location": "/nowhere/ca.pem"}, "ssl.truststore.location: /nowhere/ca.pem cannot be read"),
    ],
)  # fmt: skip
async def test_a_cluster_member_without_credentials_does_not_start(
    tmp_path: Path, changes: dict[str, str | None], complaint: str
) -> None:
    config = settings(tmp_path, "SASL_SSL", **changes)
    with pytest.raises(ConfigError, match=complaint) as refused:
        async with direct_cluster(tmp_path, 1, config=config):
            pass
    assert PASSWORD not in str(refused.value)
