"""Three users of one server, each with the rights of its ACLs, seen by kafka-python over SASL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import kafka
import pytest
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
USERS = "org.apache.kafka.common.security.plain.PlainLoginModule required {};"
PASSWORDS = {name: f"{name}-secret" for name in ("admin", "ann", "bob")}


@pytest.fixture
def secured(server_process_class, tmp_path):
    process = server_process_class(tmp_path)
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    process.settings |= {
        "listeners": f"SASL_PLAINTEXT://{process.address}",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": USERS.format(users),
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:admin",
        "authorizer.audit.log.file": str(tmp_path / "audit.jsonl"),
    }
    yield process.start()
    process.kill()
    assert "Traceback" not in process.log(), process.log()


def as_user(server, name: str) -> dict[str, object]:
    return {
        "bootstrap_servers": server.address,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": name,
        "sasl_plain_password": PASSWORDS[name],
    }


def allow(admin, who: str, operation, resource_type, name: str, kind=ACLResourcePatternType.LITERAL) -> None:
    pattern = ResourcePattern(resource_type, name, kind)
    acl = ACL(f"User:{who}", "*", operation, ACLPermissionType.ALLOW, pattern)
    assert admin.create_acls([acl])["failed"] == []


@pytest.fixture
def opened() -> Iterator[Callable]:
    """Close `opened(client)` at the end: its threads would go on asking a server that is gone."""
    clients = []

    def keep(client):
        clients.append(client)
        return client

    yield keep
    for client in clients:
        client.close()


def test_each_user_has_what_its_acls_give_and_no_more(secured, opened, wait_until) -> None:
    admin = opened(kafka.KafkaAdminClient(**as_user(secured, "admin")))
    allow(admin, "ann", ACLOperation.WRITE, ResourceType.TOPIC, "orders")
    allow(admin, "ann", ACLOperation.CREATE, ResourceType.TOPIC, "orders")
    allow(admin, "bob", ACLOperation.READ, ResourceType.TOPIC, "ord", ACLResourcePatternType.PREFIXED)
    allow(admin, "bob", ACLOperation.READ, ResourceType.GROUP, "readers")

    producer = opened(kafka.KafkaProducer(**as_user(secured, "ann")))
    producer.send("orders", b"one").get(60)
    for topic in ("others", "orders2"):
        with pytest.raises(TopicAuthorizationFailedError):
            producer.send(topic, b"x").get(60)
    with pytest.raises(TopicAuthorizationFailedError):
        bob = opened(kafka.KafkaProducer(**as_user(secured, "bob"), enable_idempotence=False))
        bob.send("orders", b"x").get(60)

    def read(name: str, group: str) -> list[bytes]:
        consumer = kafka.KafkaConsumer(
            "orders", **as_user(secured, name), group_id=group, auto_offset_reset="earliest",
            consumer_timeout_ms=60_000,
        )  # fmt: skip
        try:
            return [next(consumer).value]
        finally:
            consumer.close(autocommit=False)

    assert read("bob", "readers") == [b"one"]
    with pytest.raises(GroupAuthorizationFailedError):
        read("bob", "strangers")
    with pytest.raises(GroupAuthorizationFailedError):
        read("ann", "readers")
    assert opened(kafka.KafkaAdminClient(**as_user(secured, "bob"))).list_topics() == ["orders"]

    anything = ResourcePatternFilter(ResourceType.TOPIC, "orders", ACLResourcePatternType.LITERAL)
    admin.delete_acls([ACLFilter("User:ann", None, ACLOperation.ANY, ACLPermissionType.ANY, anything)])
    with pytest.raises(TopicAuthorizationFailedError):  # on the connection that wrote before
        producer.send("orders", b"two").get(60)

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in (secured.directory / "audit.jsonl").read_text().splitlines()]

    def refused() -> set[tuple[str, ...]]:
        return {(line["principal"], line["api"], line["operation"], line["resource"]) for line in lines()}

    # The producer may have asked for metadata first, which gives this line. A thread writes it, soon.
    last = {("User:ann", "Produce", "WRITE", "orders"), ("User:ann", "Metadata", "DESCRIBE", "orders")}
    wait_until(lambda: refused() & last, "the last refusal in the audit log")
    assert ("User:ann", "Metadata", "DESCRIBE", "others") in refused()
    assert ("User:bob", "Produce", "WRITE", "orders") in refused()
    assert {line["mechanism"] for line in lines()} == {"PLAIN"}
