"""Foreign clients log in by each mechanism, over plain connections and TLS, and are refused in Kafka's words.

One server has a `server.properties` in Kafka's format. `kafka-configs` creates the users of SCRAM.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.abc
import aiokafka.helpers
import confluent_kafka
import kafka
import kafka.errors
import kafka.net.sasl.oauth
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from foreign.programs import PROGRAMS, ToolMissingError, command, needed
from java_tools import NEEDED, JavaTools
from joserfc import jwk, jwt

from headrace.tablelayer import client as headrace
from headrace.tablelayer.tests.serve import Serve

ROOT = Path(__file__).resolve().parents[2]
# They share a server, whose users Kafka's tools create.
pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("sasl"), NEEDED]
SECURITY = "org.apache.kafka.common.security"
PASSWORDS = {"ann": "pass-of-ann-1", "carl": "pass-of-carl-2"}
USERS = {"PLAIN": "ann", "SCRAM-SHA-256": "carl", "SCRAM-SHA-512": "carl"}
PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL")
SESSION_SECONDS = 20
"""A client authenticates again after nine tenths of it; the last tenth is for delays."""
MECHANISMS = (*USERS, "OAUTHBEARER")
MODULES = {
    "PLAIN": f"{SECURITY}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{SECURITY}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{SECURITY}.scram.ScramLoginModule",
}


def certificate(directory: Path) -> None:
    """Write a self-signed certificate: `server.pem` with its key, `ca.pem` to trust."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))]
    )
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = signed.public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "ca.pem").write_bytes(pem)
    (directory / "server.pem").write_bytes(private + pem)


def bearer_token(key: jwk.RSAKey, **changes: object) -> str:
    now = int(time.time())
    claims = {
        "sub": "svc",
        "iss": "https://issuer",
        "aud": "kafka",
        "iat": now,
        "exp": now + 3600,
        "scope": "a",
    }
    return jwt.encode({"alg": "RS256", "kid": "k1"}, {**claims, **changes}, key)


class Secured:
    """A server with one listener of each protocol, and one whose sessions are short."""

    def __init__(self, directory: Path, free_port) -> None:
        self.directory = directory
        self.java = JavaTools()
        self.ports = {protocol: free_port() for protocol in ("PLAINTEXT", *PROTOCOLS, "SHORT")}
        certificate(directory)
        key = jwk.RSAKey.generate_key(2048, {"kid": "k1"})
        (directory / "jwks.json").write_text(json.dumps({"keys": [key.as_dict(private=False)]}))
        self.token = bearer_token(key)
        self.expired_token = bearer_token(key, iat=1_600_000_000, exp=1_600_000_100)
        (directory / "token").write_text(self.token)
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())
        (directory / "server.properties").write_text(
            f"""
listeners={listeners}
inter.broker.listener.name=PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.location={directory}/server.pem
sasl.enabled.mechanisms={",".join(MECHANISMS)}
plain.sasl.jaas.config={MODULES["PLAIN"]} required \\
    username="admin" password="admin-secret" \\
    user_ann="{PASSWORDS["ann"]}";
scram-sha-256.sasl.jaas.config={MODULES["SCRAM-SHA-256"]} required;
oauthbearer.sasl.jaas.config={SECURITY}.oauthbearer.OAuthBearerLoginModule required;
oauthbearer.sasl.server.callback.handler.class={SECURITY}.oauthbearer.OAuthBearerValidatorCallbackHandler
sasl.oauthbearer.jwks.endpoint.url=file://{directory}/jwks.json
sasl.oauthbearer.expected.issuer=https://issuer
sasl.oauthbearer.expected.audience=kafka
delegation.token.secret.key=of-all-brokers
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL,SHORT:SASL_PLAINTEXT
listener.name.short.connections.max.reauth.ms={SESSION_SECONDS * 1000}
group.initial.rebalance.delay.ms=0
"""
        )
        self.log = directory / "server.log"
        with self.log.open("w") as log:
            self.process = Serve(
                ["--data", str(directory / "data"), "--config", str(directory / "server.properties")],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        assert "ready on" in self.process.stdout.readline(), self.log.read_text()

    def address(self, protocol: str) -> str:
        return f"127.0.0.1:{self.ports[protocol]}"

    def java_properties(self, protocol: str, mechanism: str, jaas: str) -> str:
        """Write a file for `--command-config`."""
        path = self.directory / f"{protocol}-{mechanism}-{abs(hash(jaas))}.properties"
        lines = [f"security.protocol={protocol}", f"sasl.mechanism={mechanism}", f"sasl.jaas.config={jaas}"]
        if protocol == "SASL_SSL":
            lines += ["ssl.truststore.type=PEM", f"ssl.truststore.location={self.directory}/ca.pem"]
        if mechanism == "OAUTHBEARER":
            lines += [
                f"sasl.oauthbearer.token.endpoint.url=file://{self.directory}/token",
                f"sasl.login.callback.handler.class={SECURITY}.oauthbearer.OAuthBearerLoginCallbackHandler",
            ]
        path.write_text("\n".join(lines))
        return str(path)


def jaas(mechanism: str, name: str, password: str, more: str = "") -> str:
    return f'{MODULES[mechanism]} required username="{name}" password="{password}"{more};'


@pytest.fixture(scope="module")
def secured(tmp_path_factory, free_port):
    one = Secured(tmp_path_factory.mktemp("secured"), free_port)
    try:
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            one.java.run(
                "kafka.admin.ConfigCommand",
                *("--bootstrap-server", one.address("PLAINTEXT"), "--alter", "--entity-type", "users"),
                *("--entity-name", "carl"),
                *("--add-config", f"{mechanism}=[iterations=8192,password={PASSWORDS['carl']}]"),
            )
        yield one
    finally:
        one.process.terminate()
        code = one.process.wait(60)
        one.process.stdout.close()
    log = one.log.read_text()
    assert code == 0, log
    assert "Traceback" not in log, log
    shown = log + (one.directory / "data" / "headrace.log").read_text()
    for secret in (*PASSWORDS.values(), "admin-secret", "of-all-brokers", *one.token.split(".")):
        assert secret not in shown


def librdkafka(secured: Secured, protocol: str, mechanism: str, name: str, password: str) -> list[str]:
    """Produce one record; return the error."""
    problems: list[str] = []
    config = {
        "bootstrap.servers": secured.address(protocol),
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "ssl.ca.location": str(secured.directory / "ca.pem"),
        "message.timeout.ms": 60_000,
        "error_cb": lambda error: problems.append(error.str()),
    }
    if mechanism == "OAUTHBEARER":
        config["oauth_cb"] = lambda _: (password, time.time() + 3000)
    else:
        config.update({"sasl.username": name, "sasl.password": password})
    producer = confluent_kafka.Producer(config)
    delivered = []
    producer.produce("logged-in", b"x", callback=lambda error, _: delivered.append(error))
    deadline = time.monotonic() + 60
    while not delivered and not problems and time.monotonic() < deadline:
        producer.poll(0.1)
    producer.purge()
    producer.flush(5)
    return problems


class Provider(kafka.net.sasl.oauth.AbstractTokenProvider):
    def __init__(self, token: str) -> None:
        self._token = token

    def token(self) -> str:
        return self._token


def kafka_python(secured: Secured, protocol: str, mechanism: str, name: str, password: str) -> list[str]:
    is_known = password in (*PASSWORDS.values(), secured.token)
    options = {"sasl_plain_username": name, "sasl_plain_password": password}
    if mechanism == "OAUTHBEARER":
        options = {"sasl_oauth_token_provider": Provider(password)}
    try:
        producer = kafka.KafkaProducer(
            bootstrap_servers=secured.address(protocol),
            security_protocol=protocol,
            sasl_mechanism=mechanism,
            ssl_cafile=str(secured.directory / "ca.pem"),
            bootstrap_timeout_ms=60_000 if is_known else 4_000,  # it retries when it is refused
            **options,
        )
    except kafka.errors.KafkaError as error:
        return [str(error)]
    producer.send("logged-in", b"y").get(60)
    producer.close()
    return []


class AsyncProvider(aiokafka.abc.AbstractTokenProvider):
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def aio_kafka(secured: Secured, protocol: str, mechanism: str, name: str, password: str) -> list[str]:
    async def produce() -> list[str]:
        options = {"sasl_plain_username": name, "sasl_plain_password": password}
        if mechanism == "OAUTHBEARER":
            options = {"sasl_oauth_token_provider": AsyncProvider(password)}
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=secured.address(protocol),
            security_protocol=protocol,
            sasl_mechanism=mechanism,
            ssl_context=aiokafka.helpers.create_ssl_context(cafile=str(secured.directory / "ca.pem")),
            **options,
        )
        try:
            await producer.start()
            await producer.send_and_wait("logged-in", b"z")
        except aiokafka.errors.KafkaError as error:
            return [str(error)]
        finally:
            await producer.stop()
        return []

    return asyncio.run(produce())


CLIENTS = {"librdkafka": librdkafka, "kafka-python": kafka_python, "aiokafka": aio_kafka}
FOREIGN = "java-3.9.2", "java-4.3.1", "franz-go", "sarama", "kafkajs", "platformatic"


def quickly(rows: Sequence[str], columns: Sequence[str], quick: Collection[str] | None = None) -> list[Any]:
    """Return all pairs; each row (of those named as quick) with one column at once, the rest, which wait for
    minutes, in the soak.
    """
    at_once = rows if quick is None else quick
    return [
        pytest.param(
            row, column, marks=[] if at % len(columns) == index and row in at_once else [pytest.mark.soak]
        )
        for at, row in enumerate(rows)
        for index, column in enumerate(columns)
    ]


def credentials(secured: Secured, mechanism: str) -> tuple[str, str]:
    if mechanism == "OAUTHBEARER":
        return "", secured.token
    return USERS[mechanism], PASSWORDS[USERS[mechanism]]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_clients_with_valid_credentials_are_accepted(secured, client, mechanism, protocol) -> None:
    assert CLIENTS[client](secured, protocol, mechanism, *credentials(secured, mechanism)) == []


@pytest.mark.parametrize(("client", "mechanism"), quickly(tuple(CLIENTS), MECHANISMS))
def test_clients_with_wrong_credentials_are_refused(secured, client, mechanism) -> None:
    wrong = secured.expired_token if mechanism == "OAUTHBEARER" else "a wrong one"
    for name in (USERS.get(mechanism, ""), "nobody"):
        problems = CLIENTS[client](secured, "SASL_PLAINTEXT", mechanism, name, wrong)
        assert problems
        if client == "librdkafka":
            words = {
                "PLAIN": "Authentication failed: Invalid username or password",
                "OAUTHBEARER": '{"status":"invalid_token"}',
            }
            general = f"due to invalid credentials with SASL mechanism {mechanism}"
            assert words.get(mechanism, general) in problems[0]


@needed("java-4.3.1", "kafkajs")
@pytest.mark.parametrize(("name", "mechanism"), quickly(FOREIGN, MECHANISMS, quick=["java-4.3.1", "kafkajs"]))
def test_clients_of_other_languages_get_in_and_are_refused(secured, name, mechanism) -> None:
    program = next(each for each in PROGRAMS if each.name == name)
    try:
        started = command(program)
    except ToolMissingError as missing:
        pytest.skip(f"{name}: {missing}")

    def produces(protocol: str, login: dict[str, str], seconds: int = 60) -> bool:
        """Return whether a client can produce; some retry without end when they are refused."""
        environment = {"FOREIGN_MECHANISM": mechanism, **login}
        if protocol == "SASL_SSL":
            environment["FOREIGN_CA"] = str(secured.directory / "ca.pem")
        arguments = [secured.address(protocol), "c", "produce", "logged-in", "none", "3"]
        try:
            done = subprocess.run(
                [*started, *arguments],
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0 and done.stdout.splitlines()[-1:] == ["done"]

    librdkafka(secured, "SASL_SSL", "PLAIN", "ann", PASSWORDS["ann"])  # creates the topic
    if mechanism == "OAUTHBEARER":
        (secured.directory / "expired").write_text(secured.expired_token)
        good, wrong = ({"FOREIGN_TOKEN": str(secured.directory / file)} for file in ("token", "expired"))
    else:
        user = USERS[mechanism]
        good, wrong = (
            {"FOREIGN_USER": user, "FOREIGN_PASSWORD": password}
            for password in (PASSWORDS[user], "a wrong one")
        )
    assert [produces(protocol, good) for protocol in PROTOCOLS] == [True, True]
    assert not produces("SASL_PLAINTEXT", wrong, 6)


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
@pytest.mark.parametrize(("mechanism", "protocol"), quickly(tuple(USERS), PROTOCOLS, quick=["SCRAM-SHA-256"]))
def test_kcat_gets_in_and_is_refused(secured, mechanism, protocol) -> None:
    def run(password: str, *arguments: str, said: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        settings = {
            "bootstrap.servers": secured.address(protocol),
            "security.protocol": protocol,
            "sasl.mechanism": mechanism,
            "sasl.username": USERS[mechanism],
            "sasl.password": password,
            "ssl.ca.location": f"{secured.directory}/ca.pem",
            "message.timeout.ms": "8000",
        }
        options = [option for name, value in settings.items() for option in ("-X", f"{name}={value}")]
        return subprocess.run(
            ["kcat", *arguments, *options], input=said, capture_output=True, timeout=60, check=False
        )

    topic = f"kcat-{mechanism}-{protocol}".lower()
    password = PASSWORDS[USERS[mechanism]]
    made = run(password, "-P", "-t", topic, said=b"one\ntwo\n")
    assert made.returncode == 0, made.stderr
    read = run(password, "-C", "-e", "-q", "-t", topic, "-o", "beginning")
    assert read.stdout == b"one\ntwo\n", read.stderr
    refused = run("a wrong one", "-L", "-m", "5")
    assert refused.returncode != 0
    assert b"uthentication failed" in refused.stderr


def ours(secured: Secured, protocol: str, mechanism: str, **more: str) -> dict[str, str]:
    """Return the configuration of Headrace's own client, with `_` for dots."""
    properties = {"security.protocol": protocol, "sasl.mechanism": mechanism}
    if protocol == "SASL_SSL":
        properties["ssl.ca.location"] = f"{secured.directory}/ca.pem"
    return {**properties, **{name.replace("_", "."): value for name, value in more.items()}}


def gets_in(secured: Secured, properties: dict[str, str]) -> None:
    """Connect through `connect`, and through a command with a file of the same properties."""
    address = secured.address(properties["security.protocol"])
    with headrace.connect(address, properties=properties) as connection:
        assert "default" in connection.admin.list_databases()
    file = secured.directory / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    assert_command_succeeds(["--config", str(file), "topics", "list", "--server", address])


def run_headrace(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace.tablelayer.cli.main", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def assert_command_succeeds(arguments: list[str]) -> None:
    done = run_headrace(arguments)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_our_own_client_gets_in_with_a_bearer_token(secured, protocol) -> None:
    url = f"file://{secured.directory}/token"
    gets_in(secured, ours(secured, protocol, "OAUTHBEARER", sasl_oauthbearer_token_endpoint_url=url))


@pytest.fixture(scope="module")
def delegated(secured) -> tuple[str, str]:
    """Return the id and the secret of a token of carl's."""
    carl = secured.java_properties(
        "SASL_SSL", "SCRAM-SHA-256", jaas("SCRAM-SHA-256", "carl", PASSWORDS["carl"])
    )
    made = secured.java.run(
        "DelegationTokenCommand",
        *("--bootstrap-server", secured.address("SASL_SSL"), "--command-config", carl),
        *("--create", "--max-life-time-period", "-1"),
    )
    return re.search(r"^([0-9a-f]{32}) +(\S+) +User:carl ", made, re.MULTILINE).groups()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_our_own_client_gets_in_with_a_delegation_token(secured, delegated, protocol) -> None:
    token_id, secret = delegated
    by_token = jaas("SCRAM-SHA-512", token_id, secret, ' tokenauth="true"')
    gets_in(secured, ours(secured, protocol, "SCRAM-SHA-512", sasl_jaas_config=by_token))
    without = ours(secured, protocol, "SCRAM-SHA-512", sasl_username=token_id, sasl_password=secret)
    with pytest.raises(headrace.AuthenticationFailed):
        headrace.connect(secured.address(protocol), properties=without)


def test_our_own_client_is_refused_with_a_token_that_has_expired(secured) -> None:
    file = secured.directory / "expired"
    file.write_text(secured.expired_token)
    properties = ours(
        secured, "SASL_SSL", "OAUTHBEARER", sasl_oauthbearer_token_endpoint_url=f"file://{file}"
    )
    with pytest.raises(headrace.AuthenticationFailed) as refused:
        headrace.connect(secured.address("SASL_SSL"), properties=properties)
    assert secured.expired_token not in str(refused.value)
    config = secured.directory / "expired.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    done = run_headrace(["--config", str(config), "topics", "list", "--server", secured.address("SASL_SSL")])
    assert done.returncode != 0
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stderr


def list_topics(secured: Secured, protocol: str, mechanism: str, login: str):
    path = secured.java_properties(protocol, mechanism, login)
    options = [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{secured.directory}/token"]
    return secured.java.try_run(
        "TopicCommand",
        *("--bootstrap-server", secured.address(protocol), "--command-config", path, "--list"),
        options=options,
    )


@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("SASL_SSL", "SCRAM-SHA-512"),
        *(pytest.param("SASL_PLAINTEXT", mechanism, marks=pytest.mark.soak) for mechanism in MECHANISMS),
    ],
)
def test_kafkas_own_tools_get_in(secured, protocol, mechanism) -> None:
    librdkafka(secured, "SASL_SSL", "PLAIN", "ann", PASSWORDS["ann"])
    login = f"{SECURITY}.oauthbearer.OAuthBearerLoginModule required;"
    if mechanism in USERS:
        login = jaas(mechanism, USERS[mechanism], PASSWORDS[USERS[mechanism]])
    done = list_topics(secured, protocol, mechanism, login)
    assert done.code == 0, done.output
    assert "logged-in" in done.printed


@pytest.mark.soak
def test_kafkas_own_tools_are_refused(secured) -> None:
    done = list_topics(secured, "SASL_PLAINTEXT", "SCRAM-SHA-256", jaas("SCRAM-SHA-256", "carl", "wrong"))
    assert done.code == 1
    assert "due to invalid credentials with SASL mechanism SCRAM-SHA-256" in done.output


@pytest.mark.soak
def test_users_are_described_and_deleted_by_kafka_configs(secured) -> None:
    def configs(*arguments: str) -> str:
        bootstrap = ("--bootstrap-server", secured.address("PLAINTEXT"), "--entity-type", "users")
        return secured.java.run("kafka.admin.ConfigCommand", *bootstrap, *arguments)

    both = "SCRAM-SHA-256=[iterations=4096,password=p],SCRAM-SHA-512=[password=p]"
    configs("--alter", "--entity-name", "dora", "--add-config", both)
    shown = configs("--describe")
    assert "user-principal 'carl' are SCRAM-SHA-256=iterations=8192, SCRAM-SHA-512=iterations=8192" in shown
    assert "user-principal 'dora' are SCRAM-SHA-256=iterations=4096, SCRAM-SHA-512=iterations=4096" in shown
    configs("--alter", "--entity-name", "dora", "--delete-config", "SCRAM-SHA-256,SCRAM-SHA-512")
    assert "dora" not in configs("--describe")


@pytest.mark.soak
def test_delegation_tokens_by_kafkas_tool(secured) -> None:
    login = secured.java_properties(
        "SASL_SSL", "SCRAM-SHA-256", jaas("SCRAM-SHA-256", "carl", PASSWORDS["carl"])
    )

    def tokens(*arguments: str, as_whom: str = login):
        bootstrap = ("--bootstrap-server", secured.address("SASL_SSL"), "--command-config", as_whom)
        return secured.java.try_run("DelegationTokenCommand", *bootstrap, *arguments)

    made = tokens("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:ann")
    token_id, secret = re.search(r"^([0-9a-f]{32}) +(\S+) +User:carl ", made.printed, re.MULTILINE).groups()
    assert token_id in tokens("--describe", "--owner-principal", "User:carl").printed
    assert librdkafka(secured, "SASL_SSL", "SCRAM-SHA-256", token_id, secret), (
        "it does not say that it has a token"
    )
    by_token = jaas("SCRAM-SHA-256", token_id, secret, ' tokenauth="true"')
    done = list_topics(secured, "SASL_SSL", "SCRAM-SHA-256", by_token)
    assert done.code == 0, done.output
    refused = tokens(
        *("--create", "--max-life-time-period", "-1"),
        as_whom=secured.java_properties("SASL_SSL", "SCRAM-SHA-256", by_token),
    )
    assert "Delegation Token requests are not allowed" in refused.output
    assert tokens("--renew", "--renew-time-period", "60000", "--hmac", secret).code == 0
    assert tokens("--expire", "--expiry-time-period", "-1", "--hmac", secret).code == 0
    assert list_topics(secured, "SASL_SSL", "SCRAM-SHA-256", by_token).code == 1


def test_a_producer_outlives_its_sessions(secured) -> None:
    """It authenticates again before its session ends, and is never disconnected (KIP-368)."""
    problems: list[str] = []
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": secured.address("SHORT"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "carl",
            "sasl.password": PASSWORDS["carl"],
            "error_cb": lambda error: problems.append(error.str()),
        }
    )
    delivered = []
    ends = time.monotonic() + SESSION_SECONDS + 2
    while time.monotonic() < ends:
        producer.produce("sessions", b"x", callback=lambda error, _: delivered.append(error))
        assert producer.flush(60) == 0
        time.sleep(0.1)
    assert problems == []
    assert set(delivered) == {None}
