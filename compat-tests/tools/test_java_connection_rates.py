"""`kafka-configs` limits the number and rate of connections (KIP-612), while clients use them."""

from __future__ import annotations

import socket
import struct
import time

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from java_tools import NEEDED, JavaTools

from conftest import ServerProcess
from simulator.ports import free_port

pytestmark = [pytest.mark.timeout(300), NEEDED]
CONFIGS = "kafka.admin.ConfigCommand"
RATE = "max.connection.creation.rate"
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
BURST = 4
"""The burst of a rate of one: 2.2 seconds' worth, and the two connections that find something left."""


@pytest.fixture
def server(tmp_path):
    inside, outside = free_port(), free_port()
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{inside},OUTSIDE://127.0.0.1:{outside}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTSIDE:PLAINTEXT",
    }
    process = ServerProcess(tmp_path, **settings)
    process.port, process.outside = inside, outside
    process.start()
    yield process
    assert process.stop() == 0
    assert "Traceback" not in process.log()


def ask(port: int) -> None:
    """Connect, send a request and disconnect."""
    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
    assert client.list_topics(timeout=60).brokers


def is_closed(connection: socket.socket) -> bool:
    """Return whether the server closes the connection instead of answering a request."""
    connection.settimeout(60)
    try:
        connection.sendall(API_VERSIONS)
        return connection.recv(1) == b""
    except ConnectionError:
        return True
    finally:
        connection.close()


@pytest.mark.soak
def test_a_listener_is_limited_and_the_others_are_not(server) -> None:
    java, at = JavaTools(), ("--bootstrap-server", server.address)
    own = f"listener.name.outside.{RATE}"
    broker = (*at, "--entity-type", "brokers", "--entity-name", "0")
    java.run(CONFIGS, *broker, "--alter", "--add-config", f"{own}=1,{RATE}=1000")
    described = java.run(CONFIGS, *broker, "--describe")
    assert f"{own}=1 " in described
    assert f"{RATE}=1000 " in described
    for _ in range(BURST):
        ask(server.outside)
    began = time.monotonic()
    for _ in range(4):
        ask(server.outside)
    assert time.monotonic() - began > 2, "one a second, and a client makes one connection at least"
    for _ in range(10):
        ask(server.port)
    refused = java.try_run(CONFIGS, *broker, "--alter", "--add-config", f"{RATE}=-1")
    assert refused.code != 0
    assert "Value must be at least 0" in refused.output
    java.run(CONFIGS, *broker, "--alter", "--delete-config", f"{own},{RATE}")
    for _ in range(3 * BURST):
        ask(server.outside)
    assert RATE not in java.run(CONFIGS, *broker, "--describe")


def test_an_address_that_connects_too_often_is_closed(server) -> None:
    java, at = JavaTools(), ("--bootstrap-server", server.address)
    anybody = (*at, "--entity-type", "ips", "--entity-default")
    java.run(CONFIGS, *anybody, "--alter", "--add-config", "connection_creation_rate=1")
    crowd = [socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(30)]
    closed = sum(map(is_closed, crowd))
    assert 20 <= closed < 30
    time.sleep(3)  # for the tool's own connections
    mine = (*at, "--entity-type", "ips", "--entity-name", "127.0.0.1")
    java.run(CONFIGS, *mine, "--alter", "--add-config", "connection_creation_rate=1000")
    described = java.run(CONFIGS, *at, "--entity-type", "ips", "--describe")
    assert "the default ip are connection_creation_rate=1.0" in described
    assert "ip '127.0.0.1' are connection_creation_rate=1000.0" in described
    crowd = [socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(30)]
    for each in crowd:
        each.close()
    ask(server.port)


@pytest.mark.soak
def test_some_addresses_may_have_another_number_of_connections(server) -> None:
    java, at = JavaTools(), ("--bootstrap-server", server.address)
    broker = (*at, "--entity-type", "brokers", "--entity-name", "0")
    numbers = "max.connections.per.ip=0,max.connections.per.ip.overrides=[localhost:12,10.0.0.7:200]"
    java.run(CONFIGS, *broker, "--alter", "--add-config", numbers)
    crowd = [socket.create_connection(("127.0.0.1", server.port), 20) for _ in range(20)]
    assert 8 <= sum(map(is_closed, crowd)) < 12
    refused = java.try_run(
        CONFIGS, *broker, "--alter", "--add-config", "max.connections.per.ip.overrides=[a:b,c:1]"
    )
    assert refused.code != 0
    assert "'a:b' is not HOST:CONNECTIONS" in refused.output
    described = java.run(CONFIGS, *broker, "--describe")
    assert "max.connections.per.ip.overrides=localhost:12,10.0.0.7:200 " in described


@pytest.mark.soak
def test_connections_beyond_the_maximum_wait_and_brokers_replace_clients(server) -> None:
    java, at = (
        JavaTools(),
        ("--bootstrap-server", server.address, "--entity-type", "brokers", "--entity-name", "0"),
    )
    own = "listener.name.outside.max.connections"
    java.run(CONFIGS, *at, "--alter", "--add-config", f"max.connections=3,{own}=2")
    crowd = [socket.create_connection(("127.0.0.1", server.outside), 20) for _ in range(2)]
    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{server.outside}", "log_level": 0})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=2)
    for each in crowd:
        each.close()
    assert client.list_topics(timeout=60).brokers, "it has waited, and was not refused"
    del client
    java.run(CONFIGS, *at, "--alter", "--delete-config", own)
    crowd = [socket.create_connection(("127.0.0.1", server.outside), 20) for _ in range(4)]
    ask(server.port)
    assert sum(map(is_closed, crowd)) >= 1
