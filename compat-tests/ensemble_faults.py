"""Faults of an ensemble of three real ZooKeepers, and the required answers of the brokers meanwhile."""

from __future__ import annotations

import contextlib
import time
from functools import cache

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from fault_load import CONNECTION, create_topic
from nemesis import SESSION_MS, Nemesis

from headrace.protocol.errors import KafkaError
from headrace.tablelayer.client import ClientConfig, connect
from headrace.tablelayer.client.errors import ClientError
from headrace.tablelayer.model.errors import TableError

TABLE = "default.sums"
LEASE_SECONDS = 0.8 * SESSION_MS / 1000
ASKED_SECONDS = 3.0


def make_asked(addresses: str) -> None:
    with contextlib.suppress(KafkaException):  # it exists already
        create_topic(addresses, "asked", 1, 3)


@cache
def producer_at(addresses: str) -> Producer:
    """Return one producer for all callers."""
    options = {"message.timeout.ms": int(ASKED_SECONDS * 1000), "acks": "all", "bootstrap.servers": addresses}
    return Producer({**CONNECTION, **options})


def is_acknowledged(addresses: str) -> bool:
    """Return whether a record with acks=all is acknowledged in time."""
    failures, producer = [], producer_at(addresses)
    producer.produce("asked", b"x", on_delivery=lambda error, _: failures.append(error))
    producer.flush(4 * ASKED_SECONDS)
    return failures[0] is None


def are_topics_made(addresses: str, name: str) -> bool:
    admin = AdminClient({**CONNECTION, "bootstrap.servers": addresses})
    try:
        admin.create_topics([NewTopic(name, 1, 3)], request_timeout=ASKED_SECONDS)[name].result(
            4 * ASKED_SECONDS
        )
    except KafkaException:
        return False
    return True


def is_answered(addresses: str) -> str:
    """Try a lookup and an upsert of the table; return `answered`, or how they were refused."""
    config = ClientConfig(
        delivery_timeout_ms=int(ASKED_SECONDS * 1000), request_timeout_ms=int(ASKED_SECONDS * 1000)
    )
    found = []
    with connect(addresses, config) as connection:
        for ask in (
            lambda table: table.lookup_one({"k": 0}),
            lambda table: table.upsert([{"k": 1000, "v": 0}]),
        ):
            try:
                ask(connection.table(TABLE))
            except (ClientError, KafkaError, TableError) as error:
                found.append(type(error).__name__)
            else:
                found.append("answered")
    return " ".join(found)


def wait_acknowledged(addresses: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_acknowledged(addresses):
        assert time.monotonic() < deadline, f"after {seconds} s nothing is acknowledged"


def lose_the_quorum(nemesis: Nemesis) -> None:
    """Kill two servers for longer than a session."""
    cluster = nemesis.cluster
    make_asked(cluster.addresses)
    two = nemesis.random.sample(cluster.zookeeper.servers, 2)
    for server in two:
        server.kill()
    time.sleep(LEASE_SECONDS + 2.0)
    try:
        assert not is_acknowledged(cluster.addresses), "no broker may lead"
        assert not are_topics_made(cluster.addresses, f"made-{len(nemesis.done)}")
        told = is_answered(cluster.addresses)
        assert "answered" not in told, told
    finally:
        for server in two:
            server.start()
    wait_acknowledged(cluster.addresses, cluster.patience_seconds)


def freeze_the_quorum(nemesis: Nemesis) -> None:
    """Stop two servers for more or less than a session."""
    two = nemesis.random.sample(nemesis.cluster.zookeeper.servers, 2)
    for server in two:
        server.pause()
    nemesis.rest(0.5, 2.5 * SESSION_MS / 1000)
    for server in two:
        server.go_on()


def lose_one(nemesis: Nemesis) -> None:
    """Kill one server: the others are a quorum, so requests are answered."""
    make_asked(nemesis.cluster.addresses)
    server = nemesis.random.choice(nemesis.cluster.zookeeper.servers)
    server.kill()
    wait_acknowledged(nemesis.cluster.addresses, nemesis.cluster.patience_seconds)
    nemesis.rest(0.5, 3.0)
    server.start()


ENSEMBLE = (lose_the_quorum, freeze_the_quorum, lose_one)
