"""Every kind of listener side by side, from a file in Kafka's format, with the usual clients of each.

librdkafka and the standard library's sockets try what must fail with TLS.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from cryptography import x509
from foreign.programs import PROGRAMS, ToolMissingError, command, needed
from java_tools import NEEDED, JavaTools
from kafka import KafkaConsumer, KafkaProducer

from conftest import ServerProcess
from simulator.certificates import identity, trusted_pkcs12
from simulator.ports import free_port

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("listeners")]  # they share a server

LISTENERS = {
    "PLAINTEXT": "PLAINTEXT",
    "SSL": "SSL",
    "MUTUAL": "SSL",
    "STORED": "SSL",
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "OUTSIDE": "SASL_SSL",
}
EXPIRED, OTHER_HOST = "EXPIRED", "OTHERHOST"
AUTHORITY = identity("authority")
STRANGE_AUTHORITY = identity("strange authority")
PASSWORD = "changeit"
RECORDS = 50


class Secured(ServerProcess):
    """A server whose listeners are in a file; `ports` by their names."""

    def __init__(self, folder) -> None:
        super().__init__(folder)
        self.folder = folder
        self.protocols = {**LISTENERS, EXPIRED: "SSL", OTHER_HOST: "SSL"}
        self.ports = {name: free_port() for name in self.protocols}
        server = identity("localhost", AUTHORITY, rsa_bits=2048)
        server.write(folder, "server")
        identity("localhost", AUTHORITY, days=-1).write(folder, "expired")
        identity("elsewhere", AUTHORITY, names=()).write(folder, "elsewhere")
        identity("ann", AUTHORITY).write(folder, "ann")
        identity("eve", STRANGE_AUTHORITY).write(folder, "eve")
        (folder / "server.p12").write_bytes(server.pkcs12(PASSWORD))
        (folder / "trust.p12").write_bytes(trusted_pkcs12([AUTHORITY.certificate], PASSWORD))
        (folder / "ca.pem").write_text(AUTHORITY.certificate_pem)
        (folder / "strange.pem").write_text(STRANGE_AUTHORITY.certificate_pem)
        chain = server.certificate_pem.replace("\n", "\\n\\\n")
        key = server.key_pem().replace("\n", "\\n\\\n")
        (folder / "server.properties").write_text(
            f"""
listeners={",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items())}
advertised.listeners={",".join(f"{name}://localhost:{port}" for name, port in self.ports.items())}
listener.security.protocol.map={",".join(f"{name}:{of}" for name, of in self.protocols.items())}
inter.broker.listener.name=PLAINTEXT
ssl.keystore.type=PEM
ssl.keystore.certificate.chain={chain}
ssl.keystore.key={key}
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.pem
listener.name.mutual.ssl.client.auth=required
listener.name.mutual.ssl.principal.mapping.rules=RULE:^CN=([^,]+).*$/$1/
listener.name.stored.ssl.keystore.type=PKCS12
listener.name.stored.ssl.keystore.location={folder}/server.p12
listener.name.stored.ssl.keystore.password={PASSWORD}
listener.name.stored.ssl.truststore.type=PKCS12
listener.name.stored.ssl.truststore.location={folder}/trust.p12
listener.name.stored.ssl.truststore.password={PASSWORD}
sasl.enabled.mechanisms=PLAIN
plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\
    user_ann="ann-secret";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ann;User:ANONYMOUS
group.initial.rebalance.delay.ms=0
"""
        )
        for name, store in ((EXPIRED, "expired"), (OTHER_HOST, "elsewhere")):
            text = (folder / f"{store}.pem").read_text().replace("\n", "\\n\\\n")
            key, _, chain = text.partition("-----BEGIN CERTIFICATE")
            with (folder / "server.properties").open("a") as file:
                file.write(f"listener.name.{name.lower()}.ssl.keystore.key={key}\n\n")
                file.write(
                    f"listener.name.{name.lower()}.ssl.keystore.certificate.chain=-----BEGIN CERTIFICATE{chain}\n\n"
                )

    def arguments(self) -> list[str]:
        return ["--config", str(self.folder / "server.properties")]

    def at(self, listener: str) -> str:
        return f"localhost:{self.ports[listener]}"

    def librdkafka(self, listener: str, **more: str) -> dict[str, str]:
        protocol = self.protocols[listener]
        config = {
            "bootstrap.servers": self.at(listener),
            "security.protocol": protocol,
            "broker.address.family": "v4",
        }
        if protocol.endswith("SSL"):
            config["ssl.ca.location"] = str(self.folder / "ca.pem")
        if protocol.startswith("SASL"):
            config |= {
                "sasl.mechanism": "PLAIN",
                "sasl.username": "ann",
                "sasl.password": "ann-secret",
            }
        if listener == "MUTUAL":
            own = str(self.folder / "ann.pem")
            config |= {"ssl.certificate.location": own, "ssl.key.location": own}
        return {**config, **{name.replace("_", "."): value for name, value in more.items()}}

    def context(self, listener: str) -> ssl.SSLContext | None:
        if not self.protocols[listener].endswith("SSL"):
            return None
        context = ssl.create_default_context(cafile=str(self.folder / "ca.pem"))
        if listener == "MUTUAL":
            context.load_cert_chain(self.folder / "ann.pem")
        return context

    def python(self, listener: str) -> dict[str, object]:
        """Return the settings of kafka-python and aiokafka."""
        protocol = self.protocols[listener]
        config: dict[str, object] = {
            "bootstrap_servers": self.at(listener),
            "security_protocol": protocol,
            "ssl_context": self.context(listener),
        }
        if protocol.startswith("SASL"):
            config |= {
                "sasl_mechanism": "PLAIN",
                "sasl_plain_username": "ann",
                "sasl_plain_password": "ann-secret",
            }
        return config

    def foreign(self, listener: str) -> dict[str, str]:
        """Return the environment of the programs of `compat-tests/foreign`."""
        protocol = self.protocols[listener]
        environment = {}
        if protocol.endswith("SSL"):
            environment["FOREIGN_CA"] = str(self.folder / "ca.pem")
        if protocol.startswith("SASL"):
            login = {"MECHANISM": "PLAIN", "USER": "ann", "PASSWORD": "ann-secret"}
            environment |= {f"FOREIGN_{name}": value for name, value in login.items()}
        if listener == "MUTUAL":
            environment["FOREIGN_CERTIFICATE"] = str(self.folder / "ann.pem")
        return environment

    def java(self, listener: str) -> str:
        """Write a file of properties for Kafka's tools."""
        protocol = self.protocols[listener]
        lines = [f"security.protocol={protocol}"]
        if protocol.endswith("SSL"):
            lines += [
                "ssl.truststore.type=PKCS12",
                f"ssl.truststore.location={self.folder}/trust.p12",
                f"ssl.truststore.password={PASSWORD}",
            ]
        if protocol.startswith("SASL"):
            lines += [
                "sasl.mechanism=PLAIN",
                "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required "
                'username="ann" password="ann-secret";',
            ]
        if listener == "MUTUAL":
            lines += ["ssl.keystore.type=PEM", f"ssl.keystore.location={self.folder}/ann.pem"]
        path = self.folder / f"{listener}.properties"
        path.write_text("\n".join(lines) + "\n")
        return str(path)


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    server = Secured(tmp_path_factory.mktemp("secured"))
    server.start()
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log()


@pytest.fixture(params=LISTENERS)
def listener(request):
    return request.param


BY_TOOLS = [pytest.param(name, marks=[] if name == "OUTSIDE" else [pytest.mark.soak]) for name in LISTENERS]


VALUES = [bytes([number]) * 20_000 for number in range(RECORDS)]


def test_librdkafka(secured, listener, unique) -> None:
    topic = unique("rd")
    config = secured.librdkafka(listener)
    metadata = AdminClient(config).list_topics(timeout=60)
    assert [f"{each.host}:{each.port}" for each in metadata.brokers.values()] == [secured.at(listener)]
    producer = Producer(config)
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(60) == 0
    consumer = Consumer({**config, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found = []
    deadline = time.monotonic() + 60
    while len(found) < RECORDS and time.monotonic() < deadline:
        found += [message.value() for message in consumer.consume(RECORDS, 1.0) if not message.error()]
    consumer.close()
    assert found == VALUES


def test_kafka_python(secured, listener, unique) -> None:
    topic = unique("kp")
    config = secured.python(listener)
    producer = KafkaProducer(**config)
    for value in VALUES:
        producer.send(topic, value)
    producer.flush(30)
    producer.close()
    consumer = KafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=60_000, **config
    )
    found = [record.value for _, record in zip(range(RECORDS), consumer, strict=False)]
    consumer.close()
    assert found == VALUES


def test_aiokafka(secured, listener, unique) -> None:
    topic = unique("aio")

    async def both() -> list[bytes]:
        config = secured.python(listener)
        async with AIOKafkaProducer(**config) as producer:
            for value in VALUES:
                await producer.send_and_wait(topic, value)
        async with AIOKafkaConsumer(
            topic, group_id=topic, auto_offset_reset="earliest", **config
        ) as consumer:
            async with asyncio.timeout(60):
                return [(await consumer.getone()).value for _ in VALUES]

    assert asyncio.run(both()) == VALUES


@pytest.mark.skipif(shutil.which("kcat") is None, reason="kcat is not installed")
def test_kcat(secured, listener, unique) -> None:
    topic = unique("kcat")
    config = secured.librdkafka(listener)
    options = [f"-X{name}={value}" for name, value in config.items()]
    said = b"one\ntwo\nthree\n"
    subprocess.run(["kcat", "-P", "-t", topic, *options], input=said, check=True, timeout=60)
    got = subprocess.run(
        ["kcat", "-C", "-e", "-q", "-t", topic, "-o", "beginning", *options],
        check=True,
        timeout=60,
        capture_output=True,
    )
    assert got.stdout == said


@NEEDED
@pytest.mark.slow
@pytest.mark.parametrize("listener", BY_TOOLS)
def test_kafkas_own_tools(secured, listener, unique) -> None:
    topic = unique("java")
    java = JavaTools()
    at = ("--bootstrap-server", secured.at(listener), "--command-config", secured.java(listener))
    printed = java.run(
        "ProducerPerformance",
        *("--topic", topic, "--num-records", "500", "--record-size", "10000", "--throughput", "-1"),
        *("--bootstrap-server", secured.at(listener), "--command-config", secured.java(listener)),
    )
    assert "500 records sent" in printed
    assert topic in java.run("TopicCommand", *at, "--list")
    printed = java.run(
        "consumer.ConsoleConsumer",
        *("--topic", topic, "--from-beginning", "--max-messages", "500", "--timeout-ms", "30000"),
        *("--bootstrap-server", secured.at(listener), "--command-config", secured.java(listener)),
    )
    assert len(printed.split()) == 500


@pytest.mark.soak
@pytest.mark.parametrize("listener", LISTENERS)
def test_acls_configs_and_quotas_by_kafkas_own_tools(secured, listener, unique) -> None:
    topic = unique("tools")
    java = JavaTools()
    at = ("--bootstrap-server", secured.at(listener), "--command-config", secured.java(listener))
    java.run("TopicCommand", *at, "--create", "--topic", topic)
    acl = ("--allow-principal", "User:carl", "--operation", "Read", "--topic", topic)
    java.run("AclCommand", *at, "--add", *acl)
    assert "principal=User:carl" in java.run("AclCommand", *at, "--list", "--topic", topic)
    java.run("AclCommand", *at, "--remove", "--force", *acl)
    assert "User:carl" not in java.run("AclCommand", *at, "--list", "--topic", topic)
    for entity, change in (
        (("--entity-type", "topics", "--entity-name", topic), "retention.ms=12345"),
        (("--entity-type", "clients", "--entity-name", topic), "producer_byte_rate=12345"),
    ):
        java.run("kafka.admin.ConfigCommand", *at, *entity, "--alter", "--add-config", change)
        assert change in java.run("kafka.admin.ConfigCommand", *at, *entity, "--describe")


FOREIGN = "java-3.9.2", "java-4.3.1", "franz-go", "sarama", "kafkajs", "platformatic"
AT_ONCE = {("kafkajs", "MUTUAL")}
BY_FOREIGN = [
    pytest.param(name, listener, marks=[] if (name, listener) in AT_ONCE else [pytest.mark.soak])
    for name in FOREIGN
    for listener in LISTENERS
]


@needed("kafkajs")
@pytest.mark.parametrize(("name", "listener"), BY_FOREIGN)
def test_clients_of_other_languages(secured, name, listener, unique) -> None:
    """The client librdkafka reads their records.

    A client that does not trust the server, or shows no certificate, writes nothing.
    """
    try:
        started = command(next(each for each in PROGRAMS if each.name == name))
    except ToolMissingError as missing:
        pytest.skip(f"{name}: {missing}")
    topic = unique("foreign")
    config = secured.librdkafka(listener)
    admin = AdminClient(config)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)

    def writes(environment: dict[str, str], seconds: int) -> bool:
        """Return whether a client can write; some retry without end when they are refused."""
        try:
            done = subprocess.run(
                [*started, secured.at(listener), "c", "produce", topic, "none", "3"],
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0 and done.stdout.splitlines()[-1:] == ["done"]

    environment = secured.foreign(listener)
    assert writes(environment, 60)
    for change in ({"FOREIGN_CA": str(secured.folder / "strange.pem")}, {"FOREIGN_CERTIFICATE": ""}):
        if set(change) <= set(environment):
            assert not writes({**environment, **change}, 6)
    consumer = Consumer({**config, "group.id": topic, "auto.offset.reset": "earliest"})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20) == (0, 3)
    consumer.close()


# -- certificates that change --------------------------------------------------------------------------------


def shown(secured, listener: str) -> int:
    """Return the serial number of the certificate that a new connection is shown."""
    context = secured.context(listener)
    with (
        socket.create_connection(("127.0.0.1", secured.ports[listener]), 10) as sock,
        context.wrap_socket(sock, server_hostname="localhost") as secure,
    ):
        return x509.load_der_x509_certificate(secure.getpeercert(binary_form=True)).serial_number


@pytest.mark.soak
@pytest.mark.slow
def test_certificates_are_replaced_by_kafka_configs(secured) -> None:
    java = JavaTools()
    at = ("--bootstrap-server", secured.at("PLAINTEXT"), "--command-config", secured.java("PLAINTEXT"))
    path = secured.folder / "server.p12"
    change = ("--alter", "--entity-type", "brokers", "--entity-name", "0", "--add-config")
    name = "listener.name.stored.ssl.keystore.location"
    before = shown(secured, "STORED")
    path.write_bytes(b"broken")
    refused = java.try_run("kafka.admin.ConfigCommand", *at, *change, f"{name}={path}")
    assert refused.code != 0
    assert "InvalidRequestException" in refused.output
    assert "it is not a PKCS12 or JKS file" in refused.output
    assert shown(secured, "STORED") == before
    second = identity("localhost", AUTHORITY)
    path.write_bytes(second.pkcs12(PASSWORD))
    java.run("kafka.admin.ConfigCommand", *at, *change, f"{name}={path}")
    assert shown(secured, "STORED") == second.certificate.serial_number
    printed = java.run(
        "kafka.admin.ConfigCommand", *at, "--describe", "--entity-type", "brokers", "--entity-name", "0"
    )
    assert f"{name}={path}" in printed
    assert PASSWORD not in printed


def test_certificates_are_replaced_at_sighup(secured) -> None:
    second = identity("localhost", AUTHORITY)
    (secured.folder / "server.p12").write_bytes(second.pkcs12(PASSWORD))
    secured.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 60
    while shown(secured, "STORED") != second.certificate.serial_number:
        assert time.monotonic() < deadline
        time.sleep(0.05)


# -- connections that must fail ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listener", "more", "words"),
    [
        ("SSL", {"ssl_ca_location": "strange.pem"}, "certificate verify failed"),
        (EXPIRED, {}, "certificate verify failed"),
        (OTHER_HOST, {}, "certificate verify failed"),
        ("MUTUAL", {"ssl_certificate_location": "", "ssl_key_location": ""}, "certificate required"),
        ("MUTUAL", {"ssl_certificate_location": "eve.pem", "ssl_key_location": "eve.pem"}, "unknown ca"),
        ("SSL", {"security_protocol": "PLAINTEXT"}, "brokers are down"),
        ("PLAINTEXT", {"security_protocol": "SSL", "ssl_ca_location": "ca.pem"}, "SSL handshake failed"),
    ],
)
def test_librdkafka_is_refused(secured, listener, more, words) -> None:
    located = {
        name: str(secured.folder / value) if value.endswith(".pem") else value for name, value in more.items()
    }
    config = secured.librdkafka(listener, **located)
    problems = []
    client = AdminClient(
        {name: value for name, value in config.items() if value}
        | {"error_cb": lambda error: problems.append(error.str())}
    )
    deadline = time.monotonic() + 60
    while not any(words.lower() in problem.lower() for problem in problems):
        assert time.monotonic() < deadline, problems
        client.poll(0.1)
    with pytest.raises(KafkaException):
        client.list_topics(timeout=1)


def test_an_old_version_of_tls_is_refused(secured) -> None:
    old = subprocess.run(
        [
            *("openssl", "s_client", "-connect", f"127.0.0.1:{secured.ports['SSL']}", "-tls1_1"),
            *("-cipher", "ALL:@SECLEVEL=0"),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert old.returncode != 0
    assert "protocol version" in old.stderr.lower()


@pytest.fixture
def unmet(tmp_path):
    """A server without earlier connections: frequent lines are limited, and would be left out."""
    server = Secured(tmp_path)
    server.start()
    yield server
    assert server.stop() == 0
    assert "Traceback" not in server.log()


def test_the_wrong_protocol_leaves_one_line_in_the_log_each(unmet, wait_until) -> None:
    places = []
    for name, first in (
        ("SSL", b"\x00\x00\x00\x10" + b"x" * 16),
        ("PLAINTEXT", b"\x16\x03\x01\x02\x00" + b"x" * 512),
    ):
        with socket.create_connection(("127.0.0.1", unmet.ports[name]), 10) as sock:
            places.append(f"of 127.0.0.1:{sock.getsockname()[1]}:")
            sock.sendall(first)
            try:
                while sock.recv(1000):
                    pass
            except ConnectionError:
                pass

    def told() -> list[str]:
        lines = unmet.log().splitlines()
        return [line.rpartition(": ")[2] for line in lines if any(place in line for place in places)]

    wait_until(lambda: len(told()) >= len(places), "both to be told of")
    assert told() == [
        "it does not use TLS, and this listener requires it",
        "it uses TLS, and this listener does not",
    ]
