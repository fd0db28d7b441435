"""The pages of a schema registry and of Kafka Connect, and client quotas and ACLs, over REST."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.tablelayer.client import Connection
from headrace.tablelayer.client.admin.produce import OutgoingRecord
from headrace.tablelayer.console.access import Access
from headrace.tablelayer.console.app import make_app
from headrace.tablelayer.console.rest import Rest
from headrace.tablelayer.tests.console.outside import KafkaConnect, Program, SchemaRegistry, served
from headrace.tablelayer.tests.console.test_console import SQL, Client, client_of, connection
from headrace.tablelayer.tests.console.test_routes import Untouched

__all__ = ["connection"]


@pytest.fixture(scope="module")
def programs() -> Iterator[tuple[SchemaRegistry, KafkaConnect]]:
    with served(SchemaRegistry()) as registry, served(KafkaConnect()) as connectors:
        for version in (1, 2):
            fields = [{"name": f"f{number}", "type": "long"} for number in range(version)]
            schema = {"type": "record", "name": "Click", "fields": fields}
            registry.schemas[version] = {
                "schema": json.dumps(schema),
                "subject": "a/clicks",
                "version": version,
            }
        yield registry, connectors


def with_programs(server: Any, registry: Program, connectors: Program, *, writes: bool = True) -> Client:
    return Client(
        make_app(
            server, SQL, Access(), allow_writes=writes, version="1", server="here",
            schema_registry=Rest("the schema registry", registry.url, "ann:secret"),
            kafka_connect=Rest("Kafka Connect", connectors.url, "t0ken"),
        )
    )  # fmt: skip


def test_subjects_versions_and_their_texts(programs: tuple[SchemaRegistry, KafkaConnect]) -> None:
    client = with_programs(Untouched(), *programs)
    found = client.get("/api/schemas").json()
    assert (found["subjects"], found["compatibility"]) == (["a/clicks"], "BACKWARD")
    latest = client.get("/api/schemas/a%2Fclicks").json()
    assert (latest["versions"], latest["version"], latest["id"], latest["type"]) == ([1, 2], 2, 2, "AVRO")
    first = client.get("/api/schemas/a%2Fclicks", params={"version": 1}).json()
    assert len(json.loads(first["schema"])["fields"]) == 1
    assert programs[0].asked[-1][2] == "Basic YW5uOnNlY3JldA=="
    missing = client.get("/api/schemas/none")
    assert (missing.status_code, "'none' not found" in missing.text) == (404, True)


def test_connectors_with_their_tasks_are_shown_and_restarted(
    programs: tuple[SchemaRegistry, KafkaConnect],
) -> None:
    client = with_programs(Untouched(), *programs)
    found = client.get("/api/connectors").json()
    assert (found["version"], [each["name"] for each in found["connectors"]]) == (
        "4.3.1",
        ["files/out", "lake"],
    )
    assert [each["state"] for each in found["connectors"]] == ["RUNNING", "PAUSED"]
    one = client.get("/api/connectors/files%2Fout").json()
    assert [each["state"] for each in one["tasks"]] == ["RUNNING", "FAILED"]
    assert (one["tasks"][1]["trace"].splitlines()[0], one["topics"]) == (
        "java.lang.Error: <b>no</b>",
        ["clicks"],
    )
    configs = {each["name"]: (each["value"], each["sensitive"]) for each in one["configs"]}
    assert configs["connection.password"] == (None, True)
    assert configs["key.converter"] == ("x.StringConverter", False)
    assert "secret" not in json.dumps(one)
    restart = "/api/connectors/files%2Fout/restart"
    assert client.post(restart, json={"task": 1}).json() == {"connector": "files/out", "task": 1}
    assert client.get("/api/connectors/files%2Fout").json()["tasks"][1]["state"] == "RUNNING"
    assert client.post(restart, json={"tasks": True, "failed": True}).status_code == 200
    posts = [(path, secret) for method, path, secret in programs[1].asked if method == "POST"]
    assert posts[-2:] == [
        ("/connectors/files%2Fout/tasks/1/restart", "Bearer t0ken"),
        ("/connectors/files%2Fout/restart?includeTasks=true&onlyFailed=true", "Bearer t0ken"),
    ]
    assert client.post("/api/connectors/none/restart", json={}).status_code == 404
    assert client.post(restart, json={"task": 1, "tasks": True}).status_code == 400


def test_the_first_task_is_restarted(programs: tuple[SchemaRegistry, KafkaConnect]) -> None:
    client = with_programs(Untouched(), *programs)
    assert client.post("/api/connectors/files%2Fout/restart", json={"task": 0}).json()["task"] == 0
    assert programs[1].asked[-1][1] == "/connectors/files%2Fout/tasks/0/restart"


def test_a_program_that_is_away_is_said_in_a_sentence(programs: tuple[SchemaRegistry, KafkaConnect]) -> None:
    class Away(Program):
        url = "http://127.0.0.1:1"

        def __init__(self) -> None:
            pass

    client = with_programs(Untouched(), Away(), Away())
    for path, name in (("/api/schemas", "the schema registry"), ("/api/connectors/x", "Kafka Connect")):
        answer = client.get(path)
        assert (answer.status_code, f"{name} at http://127.0.0.1:1 does not answer" in answer.text) == (
            502,
            True,
        )


def test_an_answer_of_another_kind_is_said_in_a_sentence() -> None:
    class Lists(Program):
        def answer(self, method: str, parts: list[str], query: dict[str, str]) -> tuple[int, Any]:
            return 200, [1]

    with served(Lists()) as program:
        client = with_programs(Untouched(), program, program)
        for path in ("/api/schemas/x", "/api/connectors", "/api/connectors/x"):
            answer = client.get(path)
            assert (answer.status_code, "something else than an object" in answer.text) == (502, True)


@pytest.mark.parametrize(
    "url", ["registry:8081", "ftp://x", "http://", "http://u:p@x", "http://x/?a", "file:///x"]
)
def test_an_address_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="the schema registry"):
        Rest("the schema registry", url)


def test_records_of_a_topic_are_decoded_beside_their_bytes(
    connection: Connection, programs: tuple[SchemaRegistry, KafkaConnect]
) -> None:
    connection.kafka.create_topic("decoded", partitions=1)
    value = b"\0\0\0\0\1" + b"\x0e"  # the long 7
    connection.kafka.produce("decoded", [OutgoingRecord(value, value), OutgoingRecord(b"{}", b"\0plain")])
    client = with_programs(connection, *programs)
    framed, plain = client.get("/api/topics/decoded/records").json()["records"]
    assert framed["value"]["decoded"] == {"schema": 1, "format": "Avro", "text": '{"f0": 7}', "size": 9}
    assert framed["key"]["decoded"]["text"] == '{"f0": 7}'
    assert framed["value"]["size"] == len(value)
    assert "decoded" not in plain["value"]
    without = client_of(connection).get("/api/topics/decoded/records").json()["records"]
    assert all("decoded" not in each["value"] for each in without)


def test_records_are_found_by_what_their_keys_and_values_mean(
    connection: Connection, programs: tuple[SchemaRegistry, KafkaConnect], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.tablelayer.console.wanted._PIECE_CHARACTERS", 8)  # more than one piece
    monkeypatch.setitem(programs[0].schemas, 5, {"schema": '"string"', "subject": "ids"})
    connection.kafka.create_topic("meant", partitions=1)
    numbers = [b"\0\0\0\0\1" + bytes([2 * n]) for n in (7, 8, 9)]
    words = [b"\0\0\0\0\5\x04" + text for text in (b"ab", b"77", b"cd")]
    records = [OutgoingRecord(value, key) for value, key in zip(numbers, words, strict=True)]
    records.append(OutgoingRecord(b'{"f0": 8}', b"plain"))
    connection.kafka.produce("meant", records)
    client = with_programs(connection, *programs)

    def found(**query: str) -> list[int]:
        answer = client.get("/api/topics/meant/records", params=query).json()
        assert answer["not_decoded"] is None
        return [each["offset"] for each in answer["records"]]

    assert found(contains='"f0": 8') == [1, 3]
    assert found(where="json->>'$.f0' >= '8'") == [1, 2, 3]
    assert found(key="cd") == found(key='"cd"') == [2]
    assert (found(key="77"), found(key="7"), found(key="plain")) == ([1], [], [3])
    assert found(key="cd", contains="9", where="json->>'$.f0' = '9'") == [2]
    connection.kafka.produce("meant", [OutgoingRecord(b"\0\0\0\0\4\x02", b"of a schema that is not there")])
    answer = client.get("/api/topics/meant/records", params={"contains": "8"}).json()
    assert [each["offset"] for each in answer["records"]] == [1, 3]
    assert "schema 4" in answer["not_decoded"]


def test_quotas_are_listed_set_and_removed(connection: Connection) -> None:
    client = client_of(connection, writes=True)

    def limits() -> list[tuple[dict[str, str | None], dict[str, float]]]:
        return [(each["entity"], each["limits"]) for each in client.get("/api/quotas").json()["quotas"]]

    assert limits() == []
    body = {
        "entity": {"user": "ann", "client-id": None},
        "set": {"producer_byte_rate": 1e6, "request_percentage": 50.5},
    }
    assert client.post("/api/quotas", json=body).json() == {
        "set": ["producer_byte_rate", "request_percentage"],
        "removed": [],
    }
    assert (
        client.post(
            "/api/quotas", json={"entity": {"ip": "10.0.0.1"}, "set": {"connection_creation_rate": 5}}
        ).status_code
        == 200
    )
    assert limits() == [
        ({"user": "ann", "client-id": None}, {"producer_byte_rate": 1e6, "request_percentage": 50.5}),
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 5.0}),
    ]
    client.post(
        "/api/quotas", json={"entity": body["entity"], "remove": ["producer_byte_rate", "request_percentage"]}
    )
    client.post("/api/quotas", json={"entity": {"ip": "10.0.0.1"}, "remove": ["connection_creation_rate"]})
    assert limits() == []
    for wrong, words in (
        ({"entity": {"user": "ann"}}, "or one of both"),
        ({"entity": {}, "set": {"producer_byte_rate": 1}}, "length >= 1"),
        ({"entity": {"planet": "x"}, "set": {"producer_byte_rate": 1}}, "planet"),
        ({"entity": {"user": "ann"}, "set": {"no_such": 1}}, "no_such"),
        ({"entity": {"user": "ann"}, "set": {"producer_byte_rate": "1"}}, "Expected `float`"),
        ({"entity": {"user": "ann"}, "set": {"producer_byte_rate": -1}}, "-1"),
    ):
        answer = client.post("/api/quotas", json=wrong)
        assert (answer.status_code, words in answer.text) == (400, True), answer.text


def test_acls_are_filtered_created_and_deleted(connection: Connection) -> None:
    client = client_of(connection, writes=True)
    acl = {
        "principal": "ann", "permission": "ALLOW", "operation": "READ", "resource_type": "TOPIC", "name": "clicks",
        "pattern": "PREFIXED", "host": "*",
    }  # fmt: skip
    other = {
        **acl,
        "permission": "DENY",
        "operation": "WRITE",
        "resource_type": "GROUP",
        "pattern": "LITERAL",
    }
    for each in (acl, other):
        assert client.post("/api/acls", json=each).json() == {"created": 1}

    def found(**wanted: str) -> list[dict[str, str]]:
        return client.get("/api/acls", params={"principal": "ann", **wanted}).json()["acls"]

    full, denied = ({**each, "principal": "User:ann"} for each in (acl, other))
    assert found() == [full, denied]
    assert found(resource="topic") == [full]
    assert found(operation="WRITE") == [denied]
    assert found(name="none") == []
    assert client.post("/api/acls/delete", json={**acl, "pattern": "LITERAL"}).json() == {"deleted": 0}
    assert client.post("/api/acls/delete", json=acl).json() == {"deleted": 1}
    assert client.post("/api/acls/delete", json=other).json() == {"deleted": 1}
    assert found() == []
    for wrong, words in (
        ({**acl, "operation": "FLY"}, "Invalid enum value 'FLY'"),
        ({key: value for key, value in acl.items() if key != "host"}, "missing required field `host`"),
    ):
        answer = client.post("/api/acls", json=wrong)
        assert (answer.status_code, words in answer.text) == (400, True), answer.text
    assert client.get("/api/acls", params={"operation": "FLY"}).status_code == 400
