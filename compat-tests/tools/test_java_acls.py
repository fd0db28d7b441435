"""`kafka-acls` with all its options, and the effect of its ACLs on clients: across a kill, and on open connections."""

from __future__ import annotations

import re

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from java_tools import NEEDED, JavaTools

pytestmark = [pytest.mark.timeout(300), NEEDED]

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ACL = re.compile(r"\(principal=(\S+), host=(\S+), operation=(\w+), permissionType=(\w+)\)")


@pytest.fixture(scope="module")
def java():
    return JavaTools()


@pytest.fixture
def secured(make_server, tmp_path):
    """A server where every client is User:ANONYMOUS, a super user as long as the settings say so."""
    settings = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}
    process = make_server(tmp_path, **settings).start()
    yield process
    process.kill_all()
    assert "Traceback" not in process.log(), process.log()


def listed(printed: str) -> dict[tuple[str, str, str], set[tuple[str, ...]]]:
    """Return the output of `--list`, by resource type, name and pattern type."""
    found: dict[tuple[str, str, str], set[tuple[str, ...]]] = {}
    current: set[tuple[str, ...]] = set()
    for line in printed.splitlines():
        pattern = re.search(r"resourceType=(\w+), name=(\S+), patternType=(\w+)", line)
        if pattern is not None:
            current = found.setdefault((pattern[1], pattern[2], pattern[3]), set())
        current.update(match.groups() for match in ACL.finditer(line))
    return found


@pytest.mark.soak
@pytest.mark.slow
def test_the_verbs_of_kafka_acls(secured, java) -> None:
    def acls(*arguments: str) -> str:
        return java.run("AclCommand", "--bootstrap-server", secured.address, *arguments)

    acls("--add", "--allow-principal", "User:ann", "--producer", "--topic", "orders", "--transactional-id", "tx",
         "--idempotent")  # fmt: skip
    acls("--add", "--allow-principal", "User:bob", "--allow-host", "10.0.0.7", "--consumer", "--topic", "or",
         "--group", "*", "--resource-pattern-type", "prefixed")  # fmt: skip
    acls("--add", "--deny-principal", "User:eve", "--operation", "All", "--topic", "*")
    acls("--add", "--allow-principal", "User:ann", "--operation", "DescribeConfigs", "--cluster")
    assert listed(acls("--list")) == {
        ("TOPIC", "orders", "LITERAL"): {
            ("User:ann", "*", operation, "ALLOW") for operation in ("WRITE", "DESCRIBE", "CREATE")
        },
        ("TRANSACTIONAL_ID", "tx", "LITERAL"): {
            ("User:ann", "*", operation, "ALLOW") for operation in ("WRITE", "DESCRIBE")
        },
        ("CLUSTER", "kafka-cluster", "LITERAL"): {
            ("User:ann", "*", "IDEMPOTENT_WRITE", "ALLOW"), ("User:ann", "*", "DESCRIBE_CONFIGS", "ALLOW"),
        },
        ("TOPIC", "or", "PREFIXED"): {
            ("User:bob", "10.0.0.7", operation, "ALLOW") for operation in ("READ", "DESCRIBE")
        },
        ("GROUP", "*", "PREFIXED"): {("User:bob", "10.0.0.7", "READ", "ALLOW")},
        ("TOPIC", "*", "LITERAL"): {("User:eve", "*", "ALL", "DENY")},
    }  # fmt: skip
    matching = listed(acls("--list", "--topic", "orders", "--resource-pattern-type", "match"))
    assert set(matching) == {
        ("TOPIC", "orders", "LITERAL"), ("TOPIC", "or", "PREFIXED"), ("TOPIC", "*", "LITERAL"),
    }  # fmt: skip
    assert set(listed(acls("--list", "--principal", "User:eve"))) == {("TOPIC", "*", "LITERAL")}
    acls("--remove", "--force", "--deny-principal", "User:eve", "--operation", "All", "--topic", "*")
    acls("--remove", "--force", "--topic", "or", "--resource-pattern-type", "prefixed")
    acls("--remove", "--force", "--allow-principal", "User:ann", "--producer", "--topic", "orders")
    left = listed(acls("--list"))
    assert not [pattern for pattern in left if pattern[0] == "TOPIC"]
    assert len(left) == 3
    secured.kill()
    secured.start()
    assert listed(acls("--list")) == left


@pytest.mark.slow
def test_acls_of_kafkas_tools_allow_and_deny_clients(secured, java) -> None:
    def acls(*arguments: str) -> None:
        java.run(
            "AclCommand",
            "--bootstrap-server",
            secured.address,
            *arguments,
            "--allow-principal",
            "User:ANONYMOUS",
        )

    acls("--add", "--producer", "--consumer", "--topic", "orders", "--group", "readers")
    cluster = ("Alter", "Describe", "ClusterAction")  # the last for other brokers, which are ANONYMOUS too
    acls("--add", *(word for operation in cluster for word in ("--operation", operation)), "--cluster")
    secured.settings["super.users"] = ""
    secured.kill_all()
    secured.start()
    at = {"bootstrap.servers": secured.address}
    failures: list[KafkaError] = []
    producer = Producer({**at, "message.timeout.ms": 60_000})

    def send(topic: str) -> str | None:
        failures.clear()
        producer.produce(topic, b"v", on_delivery=lambda error, _: failures.append(error))
        producer.flush(90)
        (error,) = failures
        return None if error is None else error.name()

    assert send("orders") is None  # created by Metadata, which the ACL of a producer allows
    assert send("others") == "TOPIC_AUTHORIZATION_FAILED"
    consumer = Consumer({**at, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    message = consumer.poll(60)
    assert message is not None
    assert message.error() is None
    stranger = Consumer({**at, "group.id": "strangers"})
    stranger.subscribe(["orders"])
    with pytest.raises(KafkaException) as refused:
        polled = stranger.poll(60)
        if polled is not None and polled.error() is not None:
            raise KafkaException(polled.error())
    assert refused.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    stranger.close()

    acls("--remove", "--force", "--operation", "Write", "--operation", "Read", "--topic", "orders")
    assert send("orders") == "TOPIC_AUTHORIZATION_FAILED"  # on a connection that was open all the time
    told = consumer.poll(60)
    assert told is not None
    assert told.error().code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    consumer.close()
