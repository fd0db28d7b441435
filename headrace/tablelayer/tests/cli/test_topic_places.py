"""`headrace topics`: creation with replicas, records by place, key and header, deletion of records, and ACLs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from typer.testing import Result

from headrace.tablelayer.client import Connection, connect
from headrace.tablelayer.client.admin.produce import OutgoingRecord

_numbers = itertools.count()
Run = Callable[..., Result]
_NOON = 1_726_747_200_000  # 2024-09-19T12:00:00 UTC


@pytest.fixture(scope="module")
def connection(server: str) -> Iterator[Connection]:
    with connect(server) as made:
        yield made


@pytest.fixture
def topic(connection: Connection) -> str:
    """A topic of two partitions with ten records in each, one a minute from noon on."""
    name = f"places{next(_numbers)}"
    connection.kafka.create_topic(name, partitions=2, configs={"retention.ms": "-1"})
    connection.kafka.produce(
        name,
        [
            OutgoingRecord(
                b"%d" % n,
                b"ann" if n % 3 == 0 else b"bob",
                [("kind", b"odd" if n % 2 else b"even")],
                timestamp_ms=_NOON + n * 60_000,
                partition=p,
            )
            for p in (0, 1)
            for n in range(10)
        ],
    )
    return name


def shown(done: Result) -> list[tuple[int, int]]:
    """Return (partition, offset) of the shown records."""
    assert done.exit_code == 0, done.output
    return [(each["partition"], each["offset"]) for each in map(json.loads, done.stdout.splitlines())]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-n", "2"), [(0, 8), (0, 9), (1, 8), (1, 9)]),
        (("-p", "1", "-n", "1"), [(1, 9)]),
        (("-p", "1", "--offset", "7"), [(1, 7), (1, 8), (1, 9)]),
        (("-p", "1", "--offset", "3", "-n", "2"), [(1, 3), (1, 4)]),
        (("--from", "2024-09-19T12:08:30"), [(0, 9), (1, 9)]),
        (("--from", "1969-12-31T23:59:59.999", "--to", "2024-09-19T12:01:00"), [(0, 0), (1, 0)]),
        (("--from", "earliest", "--to", "2024-09-19T12:02:00"), [(0, 0), (0, 1), (1, 0), (1, 1)]),
        (("--to", "2024-09-19T12:05:00", "-n", "1"), [(0, 4), (1, 4)]),
        (("--key", "ann", "-p", "0"), [(0, 0), (0, 3), (0, 6), (0, 9)]),
        (("--key", "ann", "-p", "0", "-n", "2"), [(0, 6), (0, 9)]),
        (("--key", "ann", "-H", "kind=odd", "-p", "0"), [(0, 3), (0, 9)]),
        (("-H", "kind", "-p", "0", "--offset", "8"), [(0, 8), (0, 9)]),
        (("-H", "other"), []),
        (("--offset", "100"), []),
    ],
)
def test_records_are_shown_by_position_key_and_header(
    headrace: Run, topic: str, words: tuple[str, ...], expected: list[tuple[int, int]]
) -> None:
    assert shown(headrace("topics", "tail", topic, *words, "-o", "json")) == expected


def test_csv_has_one_header_and_contradictions_are_refused(headrace: Run, topic: str) -> None:
    lines = headrace("topics", "tail", topic, "--from", "earliest", "-o", "csv").stdout.splitlines()
    assert (len(lines), sum(line.startswith("partition,") for line in lines)) == (21, 1)
    for words, said in (
        (("--offset", "1", "--from", "earliest"), "not both"),
        (("--to", "2024-09-19", "--follow"), "never ends"),
        (("-p", "7"), "has no partition 7: it has 0 to 1"),
        (("--from", "noon"), "--from 'noon' is not a time"),
    ):
        done = headrace("topics", "tail", topic, *words)
        assert (done.exit_code, said in done.stderr) == (1, True), done.output


def test_records_before_a_position_are_deleted(headrace: Run, connection: Connection, topic: str) -> None:
    for before in (
        "1960-01-01",
        "1969-12-31T23:59:59.999",
    ):  # these are negative, as Kafka's sign of the end is
        tried = headrace("topics", "delete-records", topic, "--before", before, "--dry-run")
        assert tried.stdout.endswith("0 offsets could be deleted\n")
    tried = headrace("topics", "delete-records", topic, "--before", "2024-09-19T12:04:00", "--dry-run")
    assert tried.stdout.endswith("8 offsets could be deleted\n")
    asked = headrace("topics", "delete-records", topic, "--before", "4", input="n\n")
    assert (asked.exit_code, "Delete 8 offsets of" in asked.stderr) == (1, True)
    assert connection.kafka.offsets(topic, -2) == {0: 0, 1: 0}
    done = headrace("topics", "delete-records", topic, "--before", "4", "-p", "1", "--yes", "-o", "json")
    (row,) = map(json.loads, done.stdout.splitlines())
    assert row == {"partition": 1, "first_offset_before": 0, "first_offset": 4, "end_offset": 10}
    assert connection.kafka.offsets(topic, -2) == {0: 0, 1: 4}
    assert headrace("topics", "delete-records", topic, "--before", "latest", "--yes").exit_code == 0
    assert connection.kafka.offsets(topic, -2) == {0: 10, 1: 10}


def test_a_topic_is_created_once_and_with_replicas(headrace: Run, connection: Connection) -> None:
    name = f"places{next(_numbers)}"
    words = (
        "topics",
        "create",
        name,
        "--partitions",
        "3",
        "--replication-factor",
        "1",
        "--set",
        "retention.ms=7",
    )
    assert headrace(*words).stdout == f"topic {name} has 3 partitions\n"
    assert connection.kafka.describe_topic(name).configs == {"retention.ms": "7"}
    again = headrace(*words)
    assert (again.exit_code, "exists" in again.stderr) == (1, True)
    assert headrace(*words, "--if-not-exists").stdout == f"topic {name} exists already\n"
    few = headrace("topics", "create", f"{name}x", "--replication-factor", "2")
    assert (few.exit_code, "2" in few.stderr) == (1, True)
    mistaken = headrace("topics", "create", f"{name}x", "--config", "retention.ms=7")
    assert (mistaken.exit_code, "--set retention.ms=7" in mistaken.stderr) == (2, True)


def test_acls_are_added_listed_and_removed(serve: Any, headrace: Run, tmp_path: Any) -> None:
    served = serve(
        *("--listen", "127.0.0.1:0", "--data", str(tmp_path / "data"), "--set", "super.users=User:ANONYMOUS"),
        *("--set", "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
    )
    at = ("--server", served.address)

    def listed(*words: str) -> list[dict[str, str]]:
        return [
            json.loads(line)
            for line in headrace("acls", "list", "-o", "json", *words, *at).stdout.splitlines()
        ]

    added = headrace("acls", "add", "ann", "READ,DESCRIBE", "--topic", "clicks", "--group", "app", *at)
    assert added.stdout == "added 4 ACLs\n", added.output
    headrace("acls", "add", "User:*", "write", "--topic", "logs.", "--prefixed", "--deny", *at)
    headrace("acls", "add", "bob", "CLUSTER-ACTION", "--cluster", "--host", "10.0.0.1", *at)
    assert listed("--principal", "bob") == [
        {
            "principal": "User:bob", "permission": "ALLOW", "operation": "CLUSTER_ACTION", "resource_type": "CLUSTER",
            "name": "kafka-cluster", "pattern": "LITERAL", "host": "10.0.0.1",
        }
    ]  # fmt: skip
    (denied,) = listed("--topic", "logs.")
    assert (denied["permission"], denied["pattern"], denied["principal"]) == ("DENY", "PREFIXED", "User:*")
    assert len(listed()) == 6
    wrong = headrace("acls", "add", "ann", "EAT", "--topic", "clicks", *at)
    assert (wrong.exit_code, "'EAT' is not an operation" in wrong.stderr) == (1, True)
    nothing = headrace("acls", "add", "ann", "READ", *at)
    assert (nothing.exit_code, "name a resource" in nothing.stderr) == (1, True)
    none = headrace("acls", "remove", "ann", "--topic", "other", "--yes", *at)
    assert (none.exit_code, "there is no such ACL" in none.stderr) == (1, True)
    assert (
        headrace("acls", "remove", "ann", "READ", "--topic", "clicks", "--yes", *at).stdout
        == "removed 1 ACL\n"
    )
    assert headrace("acls", "remove", "ann", "--group", "app", "--yes", *at).stdout == "removed 2 ACLs\n"
    assert [each["operation"] for each in listed("--principal", "ann")] == ["DESCRIBE"]
