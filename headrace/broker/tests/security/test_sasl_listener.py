"""Listeners with SASL, through their sockets: accepted clients, the cost of strangers, and hidden secrets."""

from __future__ import annotations

import asyncio
import logging
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.metrics.endpoint import MetricsEndpoint
from headrace.broker.runtime.ports import Clock
from headrace.broker.security.sasl.scram import ScramMechanism, salted_password
from headrace.broker.server import Broker
from headrace.broker.tests.security.sasl_clients import ScramClient
from headrace.protocol.errors import ErrorCode
from headrace.protocol.headers import RequestHeader, decode_response_header, encode_request_header
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.protocol.messages.describe_delegation_token import DescribeDelegationTokenRequest
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.protocol.schema import ApiMessage
from simulator.direct import response_type

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
JAAS = "listener.name.client.plain.sasl.jaas.config"
SECRETS = {
    "password of PLAIN": "planted-plain-1",
    "password of SCRAM": "planted-scram-2",
    "wrong password": "planted-wrong-3",
    "key of delegation tokens": "planted-token-4",
    "new password": "planted-fresh-5",
    "bearer token": "planted-bearer-6",
    "secret of OAuth": "planted-oauth-7",
}
PLAIN, SCRAM, WRONG, TOKEN_KEY, FRESH, BEARER, OAUTH = SECRETS.values()
CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"
CONFIG = {
    "listeners": "CLIENT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,OAUTHBEARER",
    "connection.failed.authentication.delay.ms": "0",
    "delegation.token.secret.key": TOKEN_KEY,
    "oauthbearer.sasl.server.callback.handler.class": "org.apache.kafka.OAuthBearerUnsecuredValidatorCallbackHandler",
    JAAS: f'{PLAIN_MODULE} required username="admin" password="x" user_ann="{PLAIN}";',
    CLIENT_SECRET: OAUTH,
    f"oauthbearer.{CLIENT_SECRET}": OAUTH,
}


class Socket:
    """A connection that sends requests one by one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, request: ApiMessage, version: int | None = None) -> Any:
        """Return the response; None if the connection is closed instead."""
        api_version = type(request).MAX_VERSION if version is None else version
        header = encode_request_header(
            RequestHeader(request.API_KEY, api_version, 1, "c"), request.header_version(api_version)
        )
        answer = await self.raw(header + request.encode(api_version))
        if answer is None:
            return None
        response = response_type(type(request))
        _, position = decode_response_header(answer, response.header_version(api_version))
        return response.decode(answer, api_version, None, position)

    async def raw(self, frame: bytes) -> bytes | None:
        self._writer.write(len(frame).to_bytes(4, "big") + frame)
        return await self.answer()

    async def answer(self) -> bytes | None:
        async with asyncio.timeout(60):
            try:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                return await self._reader.readexactly(size)
            except (asyncio.IncompleteReadError, ConnectionError):
                return None

    async def plain(self, name: str, password: str) -> Any:
        await self.send(SaslHandshakeRequest(mechanism="PLAIN"))
        return await self.send(SaslAuthenticateRequest(auth_bytes=f"\0{name}\0{password}".encode()))

    async def scram(self, name: str, password: str) -> Any:
        client = ScramClient(name, password)
        await self.send(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"))
        first = await self.send(SaslAuthenticateRequest(auth_bytes=client.first))
        return await self.send(SaslAuthenticateRequest(auth_bytes=client.final(first.auth_bytes)))

    async def is_served(self) -> bool:
        return await self.send(MetadataRequest(topics=[])) is not None

    def close(self) -> None:
        self._writer.close()


@asynccontextmanager
async def broker(tmp_path: Path, clock: Clock | None = None, **changes: str) -> AsyncIterator[Any]:
    """The broker, and a function that connects to a listener. Changes with `_` for `.`."""
    config = {**CONFIG, **{name.replace("_", "."): value for name, value in changes.items()}}
    one = Broker(BrokerConfig(config), data_dir=tmp_path / "data", clock=clock)
    sockets: list[Socket] = []

    async def connect(listener: str = "CLIENT") -> Socket:
        at = one.listeners[listener]
        sockets.append(Socket(*await asyncio.open_connection(at.host, at.port)))
        return sockets[-1]

    await one.start()
    try:
        yield one, connect
    finally:
        for each in sockets:
            each.close()
        await one.stop()


def scram_user(name: str, password: str) -> AlterUserScramCredentialsRequest:
    salt = b"1234567890abcdefghijklmno"
    salted = salted_password(ScramMechanism.SHA_256, password, salt, 4096)
    upsertion = ScramCredentialUpsertion(
        name=name, mechanism=1, iterations=4096, salt=salt, salted_password=salted
    )
    return AlterUserScramCredentialsRequest(upsertions=[upsertion])


async def test_known_users_are_accepted_by_each_listeners_mechanism(tmp_path: Path) -> None:
    async with broker(tmp_path) as (_, connect):
        assert not await (await connect()).is_served()
        open_to_all = await connect("PLAINTEXT")
        assert await open_to_all.is_served()
        assert (await open_to_all.send(scram_user("carl", SCRAM))).results[0].error_code == ErrorCode.NONE
        by_plain, by_scram = await connect(), await connect()
        assert (await by_plain.plain("ann", PLAIN)).error_code == ErrorCode.NONE
        assert (await by_scram.scram("carl", SCRAM)).error_code == ErrorCode.NONE
        assert await by_plain.is_served()
        assert await by_scram.is_served()


async def test_a_refused_user_is_told_after_the_delay_and_disconnected(tmp_path: Path) -> None:
    async with broker(tmp_path, connection_failed_authentication_delay_ms="80") as (_, connect):
        loop = asyncio.get_running_loop()
        for name, password in (("ann", WRONG), ("nobody", PLAIN)):
            client = await connect()
            began = loop.time()
            told = await client.plain(name, password)
            assert loop.time() - began >= 0.08
            assert told.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert told.error_message == "Authentication failed: Invalid username or password"
            assert await client.answer() is None, "it is closed"


async def test_a_large_frame_before_authentication_closes_and_after_it_is_read(tmp_path: Path) -> None:
    async with broker(tmp_path) as (_, connect):
        stranger = await connect()
        assert await stranger.raw(b"\0\x12" + bytes(512 << 10)) is None
        client = await connect()
        await client.plain("ann", PLAIN)
        topics = [MetadataRequestTopic(name=f"{number:0240}") for number in range(2500)]
        large = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        assert len((await client.send(large)).topics) == 2500


@pytest.mark.parametrize("key", [17, 18, 36])
def test_cve_2022_34917_an_unauthenticated_client_costs_a_mebibyte_at_most(tmp_path: Path, key: int) -> None:
    """Frames of half a mebibyte that announce millions of elements and tagged fields, or are text from end to end."""
    size = 512 << 10

    async def provoke() -> list[int]:
        async with broker(tmp_path) as (_, connect):
            request = {17: SaslHandshakeRequest, 18: ApiVersionsRequest, 36: SaslAuthenticateRequest}[key]
            version = request.MAX_VERSION
            header = encode_request_header(
                RequestHeader(key, version, 1, "c"), request.header_version(version)
            )
            peaks = []
            for body in (
                b"\xff\xff\xff\x7f",
                b"\x01\x01" + b"\xff\xff\xff\x09" + b"\x01\x00" * (size // 2),
                b"\x01"
                + b"\xc0\x9a\x0c"
                + b"".join(bytes([0x80 | n & 0x7F, n >> 7, 0]) for n in range(128, 9999)),
                b"\x80\x80\x1f" + b"x" * size,
                b"\x7f\xff" + b"x" * size,
                b"\x00\x07\xff\x00" + b"x" * size,
            ):
                client = await connect()
                if key == 36:
                    await client.send(SaslHandshakeRequest(mechanism="PLAIN"))
                frame = (header + body)[:size]
                tracemalloc.start()
                await client.raw(frame)
                peaks.append(tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
            return peaks

    peaks = asyncio.run(provoke())
    assert max(peaks) < (1 << 20) + size, f"{peaks}, with the client's own copy of the frame"


async def test_users_of_plain_are_changed_while_it_runs(tmp_path: Path) -> None:
    async with broker(tmp_path) as (_, connect):
        admin = await connect("PLAINTEXT")

        async def alter(value: str) -> int:
            config = AlterableConfig(name=JAAS, config_operation=0, value=value)
            resource = AlterConfigsResource(resource_type=4, resource_name="0", configs=[config])
            answer = await admin.send(IncrementalAlterConfigsRequest(resources=[resource]))
            assert WRONG not in str(answer)
            return int(answer.responses[0].error_code)

        assert await alter(f'{PLAIN_MODULE} required user_ann="{FRESH}";') == ErrorCode.NONE
        assert (
            await (await connect()).plain("ann", PLAIN)
        ).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert (await (await connect()).plain("ann", FRESH)).error_code == ErrorCode.NONE
        for wrong in (
            f'{PLAIN_MODULE} required user_ann="{WRONG}"',
            f'x.ScramLoginModule required a="{WRONG}";',
        ):
            assert await alter(wrong) == ErrorCode.INVALID_CONFIG
        assert (await (await connect()).plain("ann", FRESH)).error_code == ErrorCode.NONE


async def test_a_session_ends_in_time(tmp_path: Path) -> None:
    async with broker(tmp_path, connections_max_reauth_ms="600000") as (one, connect):
        client = await connect()
        told = await client.plain("ann", PLAIN)
        assert told.session_lifetime_ms == 600_000
        assert await client.is_served()
        (connection,) = one.network._connections
        session = connection.peer.authentication.session
        assert session.expires - session.since == pytest.approx(600)
        connection.peer.authentication.session = replace(session, expires=session.since)
        assert not await client.is_served()


async def test_a_deleted_scram_user_hears_that_its_authentication_failed(tmp_path: Path) -> None:
    async with broker(tmp_path, connections_max_reauth_ms="600000") as (_, connect):
        admin = await connect("PLAINTEXT")
        await admin.send(scram_user("carl", SCRAM))
        client = await connect()
        assert (await client.scram("carl", SCRAM)).error_code == ErrorCode.NONE
        gone = ScramCredentialDeletion(name="carl", mechanism=1)
        (result,) = (
            await admin.send(AlterUserScramCredentialsRequest(deletions=[gone], upsertions=[]))
        ).results
        assert result.error_code == ErrorCode.NONE
        assert await client.is_served(), "its session goes on until it ends"
        assert (await client.scram("carl", SCRAM)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert not await client.is_served()


async def test_nothing_secret_is_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All planted secrets are used, and then searched for wherever something is shown or kept.

    That is in answers, on disk, and in the log with everything that is ever logged (CVE-2026-33558).
    """
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    async with broker(tmp_path) as (one, connect):
        admin = await connect("PLAINTEXT")
        shown.append(str(await admin.send(scram_user("carl", SCRAM))))
        for name, password in (("ann", PLAIN), ("ann", WRONG), (WRONG, PLAIN)):
            client = await connect()
            shown.append(str(await client.plain(name, password)))
        for password in (SCRAM, WRONG):
            client = await connect()
            shown.append(str(await client.scram("carl", password)))
        bearer = await connect()
        await bearer.send(SaslHandshakeRequest(mechanism="OAUTHBEARER"))
        said = await bearer.send(
            SaslAuthenticateRequest(auth_bytes=f"n,,\x01auth=Bearer {BEARER}\x01\x01".encode())
        )
        shown.append(str(said))
        shown.append(str(await bearer.send(SaslAuthenticateRequest(auth_bytes=b"\x01"))))
        for mechanism in ("PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"):
            for version in (0, 1):
                client = await connect()
                await client.send(SaslHandshakeRequest(mechanism=mechanism), version)
                shown.append(repr(await client.raw(f"\0\x24\0\0{WRONG}".encode())))
        owner = await connect()
        await owner.plain("ann", PLAIN)
        made = await owner.send(CreateDelegationTokenRequest())
        assert made.error_code == ErrorCode.NONE
        assert (await owner.send(DescribeDelegationTokenRequest(owners=None))).tokens[0].hmac == made.hmac

        everything = DescribeConfigsResource(resource_type=4, resource_name="0", configuration_keys=None)
        described = await admin.send(
            DescribeConfigsRequest(resources=[everything], include_synonyms=True, include_documentation=True)
        )
        configs = {config.name: config for config in described.results[0].configs}
        for name in (JAAS, "delegation.token.secret.key", CLIENT_SECRET, f"oauthbearer.{CLIENT_SECRET}"):
            assert configs[name].is_sensitive
            assert configs[name].value is None
            assert {synonym.value for synonym in configs[name].synonyms} == {None}
        shown.append(str(described))

        endpoint = MetricsEndpoint(one.context.metrics, "127.0.0.1", 0)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", endpoint.port)
            writer.write(b"GET /metrics HTTP/1.0\r\n\r\n")
            shown.append((await reader.read()).decode())
            writer.close()
        finally:
            await asyncio.get_running_loop().run_in_executor(None, endpoint.close)
        assert "headrace_" in shown[-1]
        for part in (one.sasl, one.sasl.users, one.sasl.tokens, *one.sasl.mechanisms.values(), one.config):
            shown.append(repr(part))
            shown.append(repr(getattr(part, "__dict__", {}).keys()))
        shown += [repr(token) for token in one.sasl.tokens.all()]
    for broken in (f'{PLAIN_MODULE} required user_a="{WRONG}', f'{PLAIN_MODULE} "{WRONG}" user_a=1;'):
        with pytest.raises(ConfigError) as refused:
            async with broker(tmp_path / "broken", **{JAAS: broken}):
                pass
        shown.append(
            f"{refused.value}{refused.value!r}{refused.value.__context__!r}{refused.value.__cause__!r}"
        )

    kept = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()).decode("latin-1")
    places = {"answers and repr": "\n".join(shown), "log": caplog.text, "disk": kept}
    assert "authentication by PLAIN failed" in places["log"]
    found = {
        (what, place) for what, secret in SECRETS.items() for place, text in places.items() if secret in text
    }
    assert found == set()
    assert made.hmac.hex() not in "".join(places.values())


async def test_cve_2025_27819_no_login_module_but_kafkas_own_is_taken(tmp_path: Path) -> None:
    """Neither is one for LDAP (CVE-2025-27818), nor one set by the right to alter configurations (CVE-2023-25194).

    The broker connects to nothing and loads nothing by such a name.
    """
    visitors: list[object] = []
    lure = await asyncio.start_server(lambda _, writer: visitors.append(writer), "127.0.0.1", 0)
    port = lure.sockets[0].getsockname()[1]
    modules = "com.sun.security.auth.module.JndiLoginModule", "com.sun.security.auth.module.LdapLoginModule"
    async with lure, broker(tmp_path) as (_, connect):
        admin = await connect("PLAINTEXT")
        for module in modules:
            evil = f'{module} required user.provider.url="ldap://127.0.0.1:{port}/x" useFirstPass="true";'
            for mechanism in ("plain", "scram-sha-256", "oauthbearer"):
                name = f"listener.name.client.{mechanism}.sasl.jaas.config"
                with pytest.raises(ConfigError, match="names the login module"):
                    async with broker(tmp_path / "other", **{name: evil}):
                        pass
                config = AlterableConfig(name=name, config_operation=0, value=evil)
                resource = AlterConfigsResource(resource_type=4, resource_name="0", configs=[config])
                answer = await admin.send(IncrementalAlterConfigsRequest(resources=[resource]))
                assert answer.responses[0].error_code == ErrorCode.INVALID_CONFIG
        assert (await (await connect()).plain("ann", PLAIN)).error_code == ErrorCode.NONE
    assert visitors == []


async def test_cve_2024_31141_configurations_are_taken_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are no configuration providers: a reference to a file or a variable is plain text."""
    monkeypatch.setenv("PLANTED", PLAIN)
    literal = "${env:PLANTED}"
    async with broker(tmp_path, **{JAAS: f'{PLAIN_MODULE} required user_ann="{literal}";'}) as (_, connect):
        assert (await (await connect()).plain("ann", PLAIN)).error_code != ErrorCode.NONE
        assert (await (await connect()).plain("ann", literal)).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sasl.enabled.mechanisms": ""}, "offers no mechanism"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "must be one of"),
        ({JAAS: None}, f"has no users; set {JAAS}"),
        ({JAAS: "org.apache.ScramLoginModule required;"}, "needs org.apache.kafka"),
        ({"plain.sasl.server.callback.handler.class": "com.example.Ldap"}, "cannot be plugged in"),
        ({"oauthbearer.sasl.server.callback.handler.class": "com.example.Own"}, "Own is not offered"),
        (
            {"oauthbearer.sasl.server.callback.handler.class": "a.OAuthBearerValidatorCallbackHandler"},
            "sasl.oauthbearer.jwks.endpoint.url",
        ),
        ({"oauthbearer.sasl.server.callback.handler.class": None}, "sasl.oauthbearer.jwks.endpoint.url"),
        ({"listener.name.client.plain.connections.max.reauth.ms": "soon"}, "connections.max.reauth.ms"),
    ],
)
async def test_an_impossible_sasl_configuration_stops_the_start(
    tmp_path: Path, changes: dict[str, str | None], words: str
) -> None:
    config = {name: text for name, text in {**CONFIG, **changes}.items() if text is not None}
    with pytest.raises(ConfigError, match=words):
        one = Broker(BrokerConfig(config), data_dir=tmp_path / "data")
        await one.start()
