"""A client's authentication: mechanisms, properties, TLS files, and sessions that end.

Mechanisms are compared with their RFCs' examples and with a server that lies; properties have Java's and librdkafka's
names.
"""

import asyncio
import base64
import logging
import pickle
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.protocol.security.jaas import parse_jaas
from headrace.protocol.security.sasl import OAuthBearer, Plain, SaslError, Scram
from headrace.protocol.tests.security import jks_files
from headrace.tablelayer.client import (
    AuthenticationFailed,
    ClientError,
    ConnectionFailed,
    ConnectionSettings,
    SettingsError,
    connect_async,
)
from headrace.tablelayer.client.security.access import access_of
from headrace.tablelayer.client.security.java import for_java
from headrace.tablelayer.client.security.settings import environment, read_properties
from headrace.tablelayer.client.security.tls import Tls
from headrace.tablelayer.client.wire.retry import error_of

SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
SCRAM = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
SECRET = "pencil of wonder"


def scram() -> Scram:
    return Scram("SCRAM-SHA-256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")


def test_scram_is_that_of_rfc_7677() -> None:
    client = scram()
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.answer(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert client.answer(SERVER_FINAL) is None
    with pytest.raises(SaslError, match="after the end"):
        client.answer(SERVER_FINAL)


@pytest.mark.parametrize(
    ("challenge", "complaint"),
    [
        (SERVER_FIRST.replace(b"r=rO", b"r=xO"), "nonce"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (SERVER_FIRST.replace(b"i=4096", b"i=4095"), "4095 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=1000001"), "1000001 iterations"),
        (SERVER_FIRST.replace(b"i=4096", b"i=-1"), "iterations"),
        (SERVER_FIRST.replace(b",i=4096", b""), "iterations"),
        (SERVER_FIRST.replace(b"s=W22", b"s=!22"), "not of SCRAM"),
        (SERVER_FIRST.replace(b"W22ZaJ0SNY7soEsUEjb6gQ==", b""), "no salt"),
        (b"m=ext," + SERVER_FIRST, "demands an extension"),
        (SERVER_FIRST + b",i=8192", "not of SCRAM"),
        (b"\xff\xfe", "not of SCRAM"),
        (b"", "not of SCRAM"),
    ],
)
def test_scram_takes_no_first_answer_that_is_wrong(challenge: bytes, complaint: str) -> None:
    """It refuses one that would keep it at work for hours, too (CVE-2026-10143)."""
    with pytest.raises(SaslError, match=complaint):
        scram().answer(challenge)


@pytest.mark.parametrize(
    "final",
    [
        b"v=" + base64.b64encode(bytes(32)),
        b"v=",
        SERVER_FINAL[:-8],
        b"e=invalid-proof",
        b"x=1",
    ],
)
def test_a_server_without_the_password_is_detected(final: bytes) -> None:
    client = scram()
    client.answer(SERVER_FIRST)
    with pytest.raises(SaslError):
        client.answer(final)


def test_names_with_commas_and_tokens_are_said_as_scram_wants() -> None:
    client = Scram("SCRAM-SHA-512", "a,b=c", "p", "nonce", {"tokenauth": "true"})
    assert client.first() == b"n,,n=a=2Cb=3Dc,r=nonce,tokenauth=true"


def test_plain_and_bearer_are_said_as_their_rfcs_want() -> None:
    assert Plain("ann", "päss").first() == b"\0ann\0p\xc3\xa4ss"
    bearer = OAuthBearer("a.b.c", {"traceId": "7"})
    assert bearer.first() == b"n,,\x01auth=Bearer a.b.c\x01traceId=7\x01\x01"
    assert bearer.answer(b"") is None
    with pytest.raises(SaslError, match="invalid_token"):
        bearer.answer(b'{"status":"invalid_token"}')
    for odd in (b"[]", b"x", b"3"):
        with pytest.raises(SaslError, match="does not take the token"):
            bearer.answer(odd)


@pytest.mark.parametrize(
    "text",
    [
        'X required password="tell-nobody"',
        'X required password="tell-nobody;',
        "tell-nobody;",
    ],
)
def test_jaas_that_is_malformed_is_an_error_that_tells_no_value(text: str) -> None:
    with pytest.raises(SettingsError, match=r"sasl\.jaas\.config") as caught:
        access_of(ConnectionSettings.make("h:1", {**SCRAM, "sasl.jaas.config": text}))
    assert "tell-nobody" not in str(caught.value)


def test_properties_of_java_and_of_librdkafka_say_the_same() -> None:
    jaas = f'x.ScramLoginModule required username="ann" password="{SECRET}";'
    for given in (
        {"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": jaas, "security.protocol": "SASL_PLAINTEXT"},
        {
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": "ann",
            "sasl.password": SECRET,
            "security.protocol": "sasl_plaintext",
            "acks": "all",
            "sasl.kerberos.service.name": "kafka",
        },
    ):
        access = access_of(ConnectionSettings.make("h:1", given))
        assert access.begin is not None
        client = access.begin()
        assert (client.mechanism, client.user) == ("SCRAM-SHA-512", "ann")
        assert isinstance(client, Scram)
        assert client._password == SECRET.encode()


def test_librdkafka_properties_are_renamed_for_java(tmp_path: Path) -> None:
    ca, client = tmp_path / "ca.pem", tmp_path / "client.pem"
    ca.write_text("the CA")
    client.write_text("key and chain")
    given = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": 'a"b',
        "sasl.password": "c\\d",
        "ssl.ca.location": str(ca),
        "ssl.certificate.location": str(client),
    }
    made = for_java(ConnectionSettings.make("h:1", given))
    assert parse_jaas(made.pop("sasl.jaas.config")).options == {"username": 'a"b', "password": "c\\d"}
    assert made == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "the CA",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.key": "key and chain",
        "ssl.keystore.certificate.chain": "key and chain",
    }
    of_java = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": 'X required username="ann" password="p";',
    }
    assert for_java(ConnectionSettings.make("h:1", of_java)) == of_java
    assert for_java(ConnectionSettings.make("h:1", {})) == {}
    with pytest.raises(SettingsError, match="not supported by Java clients"):
        for_java(ConnectionSettings.make("h:1", {"enable.ssl.certificate.verification": "false"}))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"security.protokol": "SSL"}, "security.protokol is not a property"),
        ({"ssl.ca.locaton": "x"}, "ssl.ca.locaton is not a property"),
        ({"security.protocol": "TLS"}, "security.protocol is 'TLS'"),
        ({"security.protocol": "SASL_PLAINTEXT"}, "GSSAPI"),
        ({**SCRAM, "sasl.password": SECRET}, "needs a user and a password"),
        ({**SCRAM, "sasl.jaas.config": f'X required password="{SECRET}"'}, "semi-colon"),
        ({**SCRAM, "sasl.mechanism": "OAUTHBEARER"}, "sasl.oauthbearer.token.endpoint.url"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/nowhere"}, "cannot read /nowhere"),
        ({"security.protocol": "SSL", "ssl.enabled.protocols": "TLSv1.1"}, "ssl.enabled.protocols"),
        ({"security.protocol": "SSL", "ssl.ca.pem": SECRET}, "ssl.ca.pem does not have a certificate"),
        ({"security.protocol": "SSL", "ssl.keystore.key": SECRET}, "a certificate needs its key"),
        ({"security.protocol": "SSL", "enable.ssl.certificate.verification": "no"}, "true or false"),
    ],
)
def test_properties_that_make_no_sense_are_named(given: dict[str, str], complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint) as caught:
        access_of(ConnectionSettings.make("h:1", given))
    assert SECRET not in str(caught.value)


def test_settings_travel_and_show_no_secret() -> None:
    settings = ConnectionSettings.make("h:1", {**SCRAM, "sasl.username": "ann", "sasl.password": SECRET})
    access = access_of(settings)
    for shown in (repr(settings), str(settings), f"{settings}", repr(access), repr({settings: 1})):
        assert SECRET not in shown
    assert str(settings) == "h:1"
    again = pickle.loads(pickle.dumps(settings))
    assert again == settings
    assert hash(again) == hash(settings)
    assert again.named()["sasl.password"] == SECRET


def test_the_environment_gives_missing_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.password=of the file\ngroup.id=x\n")
    monkeypatch.setenv("HEADRACE_CONFIG", str(file))
    monkeypatch.setenv("HEADRACE_CLIENT_SASL_PASSWORD", "of the variable")
    assert environment()["sasl.password"] == "of the variable"
    assert ConnectionSettings.make("h:1").named() == {
        "security.protocol": "SASL_SSL",
        "sasl.password": "of the variable",
    }
    assert ConnectionSettings.make("h:1", {}).named() == {}
    file.write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="not UTF-8"):
        ConnectionSettings.make("h:1")
    file.write_text("security.protocol=SSL\ntell-nobody\n")
    with pytest.raises(SettingsError, match="line 2 is not of the form") as caught:
        ConnectionSettings.make("h:1")
    assert "tell-nobody" not in str(caught.value)
    with pytest.raises(SettingsError, match="cannot read"):
        read_properties(tmp_path / "none")


class SaslServer:
    """The server's half of PLAIN, which accepts clients with SECRET, for sessions of `lifetime_ms`."""

    def __init__(self, server: Any, lifetime_ms: int = 0) -> None:
        self.server = server
        self.lifetime_ms = lifetime_ms
        self.mechanisms = ["PLAIN"]
        server.handlers[SaslHandshakeRequest] = self.handshake
        server.handlers[SaslAuthenticateRequest] = self.authenticate

    def handshake(self, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        known = request.mechanism in self.mechanisms
        return SaslHandshakeResponse(error_code=0 if known else 33, mechanisms=self.mechanisms)

    def authenticate(self, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        if request.auth_bytes != b"\0ann\0" + SECRET.encode():
            return SaslAuthenticateResponse(error_code=58, error_message="Invalid username or password")
        return SaslAuthenticateResponse(session_lifetime_ms=self.lifetime_ms)


PLAIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "ann",
    "sasl.password": SECRET,
}


def test_a_client_authenticates_before_it_asks_anything(fake: Any, tools: Any, impatient: Any) -> None:
    async def scenario() -> None:
        async with fake() as server:
            SaslServer(server)
            async with await connect_async(server.address, impatient, PLAIN) as connection:
                await connection.cluster.call(MetadataRequest(topics=[]), _metadata(), doing="ask")
            kinds = [type(request) for request in server.requests]
            assert kinds == [
                ApiVersionsRequest,
                SaslHandshakeRequest,
                SaslAuthenticateRequest,
                MetadataRequest,
            ]

    tools.run(scenario())


def test_a_wrong_password_is_one_sentence_without_it_and_is_not_tried_again(
    fake: Any, tools: Any, impatient: Any
) -> None:
    async def scenario() -> None:
        async with fake() as server:
            SaslServer(server)
            wrong = "not " + SECRET
            with pytest.raises(AuthenticationFailed) as caught:
                await connect_async(server.address, impatient, PLAIN | {"sasl.password": wrong})
            assert str(caught.value) == (
                f"{server.address} refused user ann by PLAIN: Invalid username or password"
            )
            assert server.connections == 1
            with pytest.raises(
                AuthenticationFailed, match="does not support SCRAM-SHA-256: use one that it offers: PLAIN"
            ):
                await connect_async(server.address, impatient, PLAIN | {"sasl.mechanism": "SCRAM-SHA-256"})

    tools.run(scenario())


def test_a_missing_authentication_is_reported_after_few_attempts(
    fake: Any, tools: Any, impatient: Any
) -> None:
    async def scenario() -> None:
        async with fake() as server:

            def refuse(_: object) -> None:
                raise tools.HangUp

            server.handlers[MetadataRequest] = refuse
            async with await connect_async(server.address, impatient, {}) as connection:
                with pytest.raises(
                    AuthenticationFailed,
                    match=r"requires authentication, configure it \(security.protocol is PLAINTEXT",
                ):
                    await connection.cluster.call(MetadataRequest(topics=[]), _metadata(), doing="ask")
            assert server.connections == 3

    tools.run(scenario())


def test_a_session_is_renewed_before_it_ends_and_requests_wait_for_that(
    fake: Any, tools: Any, impatient: Any
) -> None:
    async def scenario() -> None:
        async with fake() as server:
            sasl = SaslServer(server, lifetime_ms=200)
            began = 0.0
            plain, late = sasl.authenticate, server.metadata
            loop = asyncio.get_running_loop()

            def authenticate(request: Any) -> Any:
                nonlocal began
                began = loop.time()
                return plain(request)

            def metadata(request: Any) -> Any:
                between = isinstance(server.requests[-2], SaslHandshakeRequest)
                if between or loop.time() - began > 0.2:
                    raise tools.HangUp  # as Kafka does amid an authentication, and when a session has ended
                return late(request)

            async def handshake(request: Any) -> Any:
                await asyncio.sleep(0.02)  # in which the others have something to ask
                return sasl.handshake(request)

            server.handlers[SaslHandshakeRequest] = handshake
            server.handlers[SaslAuthenticateRequest] = authenticate
            server.handlers[MetadataRequest] = metadata
            async with await connect_async(server.address, impatient, PLAIN) as connection:

                async def ask() -> None:
                    end = loop.time() + 0.9
                    while loop.time() < end:
                        await connection.cluster.call(
                            MetadataRequest(topics=[]), _metadata(), doing="ask", repeatable=False
                        )
                        await asyncio.sleep(0.001)

                await asyncio.gather(*[ask() for _ in range(4)])
            assert server.connections == 1
            renewed = sum(isinstance(request, SaslAuthenticateRequest) for request in server.requests)
            assert 4 <= renewed <= 7

    tools.run(scenario())


def test_a_password_that_is_changed_ends_a_session_that_is_renewed(
    fake: Any, tools: Any, impatient: Any
) -> None:
    async def scenario() -> None:
        async with fake() as server:
            SaslServer(server, lifetime_ms=50)
            async with await connect_async(server.address, impatient, PLAIN) as connection:
                server.handlers[SaslAuthenticateRequest] = lambda _: SaslAuthenticateResponse(
                    error_code=58, error_message="changed"
                )
                await asyncio.sleep(0.06)
                with pytest.raises(AuthenticationFailed, match="changed"):
                    await connection.cluster.call(MetadataRequest(topics=[]), _metadata(), doing="ask")
                assert not any(isinstance(request, MetadataRequest) for request in server.requests)

    tools.run(scenario())


def test_a_client_over_its_quota_waits_before_it_asks_again(fake: Any, tools: Any, impatient: Any) -> None:
    """Otherwise its requests would time out while the server does not read them (KIP-219)."""

    async def scenario() -> None:
        async with fake() as server:
            loop, plain = asyncio.get_running_loop(), server.metadata
            at: list[float] = []

            def metadata(request: Any) -> Any:
                at.append(loop.time())
                answer = plain(request)
                answer.throttle_time_ms = 250 if len(at) == 1 else 0
                return answer

            server.handlers[MetadataRequest] = metadata
            async with await connect_async(server.address, impatient, {}) as connection:
                for _ in range(3):
                    await connection.cluster.call(MetadataRequest(topics=[]), _metadata(), doing="ask")
            assert at[1] - at[0] >= 0.25
            assert server.connections == 1

    tools.run(scenario())


def _metadata() -> Any:
    from headrace.protocol.messages.metadata import MetadataResponse

    return MetadataResponse


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and certificates of `server` (127.0.0.1), `other` (another host) and `client`, by OpenSSL's own tool."""
    place = tmp_path_factory.mktemp("pki")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=place, check=True, capture_output=True)

    new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
    openssl(*new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    for name, host in (("server", "IP:127.0.0.1"), ("other", "DNS:other.example"), ("client", "DNS:client")):
        made = ("-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
        openssl(
            *new, *made, "-CA", "ca.pem", "-CAkey", "ca.key", "-addext", f"subjectAltName={host}",
            "-addext", "basicConstraints=critical,CA:FALSE",
        )  # fmt: skip
    for name in ("client", "server"):
        store = ("-inkey", f"{name}.key", "-in", f"{name}.pem", "-certfile", "ca.pem")
        openssl("pkcs12", "-export", *store, "-passout", "pass:of-the-store", "-out", f"{name}.p12")
    openssl("pkcs8", "-topk8", "-in", "client.key", "-passout", "pass:of-the-key", "-out", "client.enc.key")
    return place


async def _serve_tls(server: Any, pki: Path, name: str, *, client: bool = False) -> None:
    """Makes a fake server one with TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / f"{name}.pem", pki / f"{name}.key")
    if client:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(pki / "ca.pem")
    await server.stop()
    server._server = await asyncio.start_server(server._serve, "127.0.0.1", 0, ssl=context)
    server.port = server._server.sockets[0].getsockname()[1]


def test_the_servers_certificate_and_its_name_are_checked(
    fake: Any, tools: Any, impatient: Any, pki: Path
) -> None:
    tls = {"security.protocol": "SSL"}
    trusting = tls | {"ssl.ca.location": str(pki / "ca.pem")}

    async def scenario() -> None:
        async with fake() as server:
            await _serve_tls(server, pki, "server")
            inline = tls | {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": (pki / "ca.pem").read_text(),
            }
            by_store = tls | {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(pki / "ca.pem")}
            for given in (trusting, inline, by_store, tls | {"enable.ssl.certificate.verification": False}):
                async with await connect_async(server.address, impatient, given) as connection:
                    await connection.cluster.call(MetadataRequest(topics=[]), _metadata(), doing="ask")
            with pytest.raises(AuthenticationFailed, match=r"certificate of .* is not trusted"):
                await connect_async(server.address, impatient, tls)
            await _serve_tls(server, pki, "other")
            with pytest.raises(AuthenticationFailed, match=r"not trusted \(IP address mismatch"):
                await connect_async(server.address, impatient, trusting)
            unnamed = trusting | {"ssl.endpoint.identification.algorithm": ""}
            async with await connect_async(server.address, impatient, unnamed):
                pass

    tools.run(scenario())


def test_a_client_shows_its_certificate(fake: Any, tools: Any, impatient: Any, pki: Path) -> None:
    trusting = {"security.protocol": "SSL", "ssl.ca.location": str(pki / "ca.pem")}
    key, chain = (pki / "client.key").read_text(), (pki / "client.pem").read_text()
    (pki / "both.pem").write_text(key + chain)

    async def scenario() -> None:
        async with fake() as server:
            await _serve_tls(server, pki, "server", client=True)
            for given in (
                {
                    "ssl.certificate.location": str(pki / "client.pem"),
                    "ssl.key.location": str(pki / "client.key"),
                },
                {
                    "ssl.certificate.location": str(pki / "client.pem"),
                    "ssl.key.location": str(pki / "client.enc.key"),
                    "ssl.key.password": "of-the-key",
                },
                {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(pki / "both.pem")},
                {"ssl.keystore.key": key, "ssl.keystore.certificate.chain": chain},
                {
                    "ssl.keystore.type": "PKCS12",
                    "ssl.keystore.location": str(pki / "client.p12"),
                    "ssl.keystore.password": "of-the-store",
                },
                {
                    "ssl.ca.location": "",
                    "ssl.truststore.location": str(pki / "server.p12"),
                    "ssl.truststore.password": "of-the-store",
                    "ssl.keystore.location": str(pki / "client.p12"),
                    "ssl.keystore.password": "of-the-store",
                },
            ):
                async with await connect_async(server.address, impatient, trusting | given) as connection:
                    await connection.cluster.call(MetadataRequest(topics=[]), _metadata(), doing="ask")
            with pytest.raises(ClientError, match=r"requires? a client certificate"):
                await connect_async(server.address, impatient, trusting)

    tools.run(scenario())


def test_a_key_whose_password_is_wrong_is_said_and_asks_no_terminal(pki: Path) -> None:
    for password in ({}, {"ssl.key.password": SECRET}):
        given = {
            "security.protocol": "SSL",
            "ssl.certificate.location": str(pki / "client.pem"),
            "ssl.key.location": str(pki / "client.enc.key"),
            **password,
        }
        with pytest.raises(SettingsError, match=r"ssl\.key\.password must be the key's") as caught:
            access_of(ConnectionSettings.make("h:1", given))
        assert SECRET not in str(caught.value)


def test_stores_that_cannot_be_read_are_named(pki: Path, tmp_path: Path) -> None:
    (tmp_path / "java.jks").write_bytes(bytes.fromhex("feedfeed00000002"))
    for given, complaint in (
        (
            {"ssl.keystore.location": str(pki / "client.p12"), "ssl.keystore.password": SECRET},
            "its password is wrong",
        ),
        ({"ssl.keystore.location": str(tmp_path / "java.jks")}, "java.jks cannot be opened: it is cut off"),
        (
            {
                "ssl.truststore.location": str(tmp_path / "java.jks"),
                "ssl.truststore.type": "JKS",
                "ssl.truststore.password": SECRET,
            },
            "java.jks cannot be opened: its password is wrong",
        ),
        (
            {"ssl.truststore.location": str(pki / "ca.pem"), "ssl.truststore.type": "JKS"},
            "not a PKCS12 or JKS store",
        ),
        ({"ssl.truststore.location": str(tmp_path / "none.p12")}, "cannot read"),
    ):
        with pytest.raises(SettingsError, match=complaint) as caught:
            access_of(ConnectionSettings.make("h:1", {"security.protocol": "SSL", **given}))
        assert SECRET not in str(caught.value)


def test_stores_of_java_are_read(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(jks_files.KEYSTORE)
    (tmp_path / "trust").write_bytes(jks_files.TRUSTSTORE)
    of_key = {
        "ssl.keystore.location": str(tmp_path / "key"),
        "ssl.keystore.password": jks_files.STORE_PASSWORD,
        "ssl.key.password": jks_files.KEY_PASSWORD,
    }
    for kind in ({}, {"ssl.keystore.type": "JKS"}, {"ssl.keystore.type": "PKCS12"}):
        trust = {"ssl.truststore.location": str(tmp_path / "trust")}
        assert Tls(trust | of_key | kind).context().cert_store_stats()["x509"] == 1
    wrong = of_key | {"ssl.key.password": SECRET}
    with pytest.raises(SettingsError, match="its key's password is wrong") as refused:
        Tls(wrong).context()
    assert SECRET not in str(refused.value)


def test_a_renewed_certificate_is_shown_to_the_next_server(pki: Path, tmp_path: Path) -> None:
    place = tmp_path / "both.pem"
    place.write_text((pki / "client.key").read_text() + (pki / "client.pem").read_text())
    tls = Tls({"ssl.ca.location": str(pki / "ca.pem"), "ssl.keystore.location": str(place)})
    first = tls.context()
    assert tls.context() is first
    renewed = tmp_path / "renewed.pem"
    renewed.write_text(place.read_text())
    renewed.rename(place)
    assert tls.context() is not first


def test_a_mismatch_of_tls_and_plaintext_is_named(fake: Any, tools: Any, impatient: Any, pki: Path) -> None:
    async def scenario() -> None:
        async with fake() as server:
            with pytest.raises(ConnectionFailed, match="TLS"):
                await connect_async(server.address, impatient, {"security.protocol": "SSL"})
            await _serve_tls(server, pki, "server")
            with pytest.raises(ConnectionFailed, match=r"or requires TLS: security\.protocol"):
                await connect_async(server.address, impatient, {})

    tools.run(scenario())


def test_a_token_is_read_from_a_file_at_each_connection(tmp_path: Path) -> None:
    file = tmp_path / "token of ann"
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
    }
    access = access_of(ConnectionSettings.make("h:1", given))
    assert access.begin is not None
    with pytest.raises(SettingsError, match="does not have a token that can be read"):
        access.begin()
    for token in ("a.b.c", "d.e.f"):
        file.write_text(token + "\n")
        assert f"auth=Bearer {token}\x01".encode() in access.begin().first()


def test_cve_2025_27817_a_file_is_sent_to_no_broker_unless_it_is_a_token(tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
    }
    begin = access_of(ConnectionSettings.make("h:1", given)).begin
    assert begin is not None
    for content in (
        f"root:{SECRET}:0:0\n",
        f"{SECRET} {SECRET}",
        f"{SECRET}\n{SECRET}\n",
        "",
        "a.b\x01c",
        "ä",
    ):
        file.write_text(content)
        with pytest.raises(SettingsError, match="does not have a token that can be read") as refused:
            begin()
        assert SECRET not in str(refused.value)
        assert refused.value.__cause__ is None


def test_cve_2024_31141_properties_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no configuration providers: a value that names one reads no file and no environment."""
    monkeypatch.setenv("PLANTED", SECRET)
    given = {
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": "${env:PLANTED}",
    }
    begin = access_of(ConnectionSettings.make("h:1", given)).begin
    assert begin is not None
    assert begin().first() == b"\0ann\0${env:PLANTED}"


def test_cve_2026_33558_nothing_secret_is_logged_however_much_is(
    fake: Any, tools: Any, impatient: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": SECRET,
    }

    async def scenario() -> None:
        async with fake() as server:
            server.handlers[SaslHandshakeRequest] = lambda _: SaslHandshakeResponse(mechanisms=["PLAIN"])
            server.handlers[SaslAuthenticateRequest] = lambda _: SaslAuthenticateResponse(
                error_code=58, error_message="no"
            )
            with pytest.raises(AuthenticationFailed):
                await connect_async(server.address, impatient, given)

    tools.run(scenario())
    assert caplog.records, "something is logged"
    assert SECRET not in caplog.text


@pytest.mark.parametrize("trusts", [True, False])
def test_a_server_of_tokens_is_trusted_by_properties_of_its_own(tools: Any, pki: Path, trusts: bool) -> None:
    """`ssl.*` in the JAAS configuration apply, as in Kafka: the broker's authority does not."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(
            int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        await reader.readexactly(size)
        body = b'{"access_token": "a.b.c", "expires_in": 300}'
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)
        )
        await writer.drain()
        writer.close()

    async def scenario() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki / "server.pem", pki / "server.key")
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        of_tls = f' ssl.truststore.type="PEM" ssl.truststore.location="{pki}/ca.pem"' if trusts else ""
        module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
        given = {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(pki / "ca.pem"),
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/token",
            "sasl.jaas.config": f'{module} required clientId="ann" clientSecret="{SECRET}"{of_tls};',
        }
        begin = access_of(ConnectionSettings.make("h:1", given)).begin
        assert begin is not None
        if trusts:
            assert b"auth=Bearer a.b.c\x01" in (await asyncio.to_thread(begin)).first()
        else:
            with pytest.raises(ConnectionFailed, match="certificate verify failed"):
                await asyncio.to_thread(begin)
        server.close()

    tools.run(scenario())


def test_a_token_is_got_for_an_id_and_a_secret(tools: Any) -> None:
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = next(
            int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        asked.append(head + await reader.readexactly(size))
        good = base64.b64encode(b"ann:" + SECRET.encode()) in head
        body = b'{"access_token": "a.b.c", "expires_in": 300}' if good else b"{}"
        status = b"200 OK" if good else b"401 Unauthorized"
        writer.write(
            b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(body), body)
        )
        await writer.drain()
        writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]

        def access(secret: str) -> Any:
            given = {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{port}/token",
                "sasl.oauthbearer.client.id": "ann",
                "sasl.oauthbearer.client.secret": secret,
                "sasl.oauthbearer.scope": "tables",
            }
            return access_of(ConnectionSettings.make("h:1", given)).begin

        begin = access(SECRET)
        for _ in range(2):
            assert b"auth=Bearer a.b.c\x01" in (await asyncio.to_thread(begin)).first()
        assert len(asked) == 1
        assert asked[0].endswith(b"grant_type=client_credentials&scope=tables")
        with pytest.raises(AuthenticationFailed, match="refused a token to client ann: HTTP 401") as caught:
            await asyncio.to_thread(access("another " + SECRET))
        assert SECRET not in str(caught.value)
        server.close()

    tools.run(scenario())


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (None, "not authorized to read t"),
        ("not authorized: topic authorization failed", "not authorized to read t"),
        (
            "not authorized: columns c of t are withheld; a, b may be read, by name",
            "not authorized to read t: columns c of t are withheld; a, b may be read, by name",
        ),
        ("the token is gone", "not authorized to read t: the token is gone"),
    ],
)
def test_a_refusal_names_its_reason_once(told: str | None, said: str) -> None:
    error = error_of(ErrorCode.TOPIC_AUTHORIZATION_FAILED, told, doing="read t")
    assert isinstance(error, KafkaError)
    assert error.message == said
