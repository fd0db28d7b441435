"""A console shows what the principal of its own connection may see: hidden objects look missing in every REST
answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.tablelayer.client import Connection, connect
from headrace.tablelayer.client.admin.produce import OutgoingRecord
from headrace.tablelayer.console.app import Access
from headrace.tablelayer.sql.session import Session
from headrace.tablelayer.tests.client.conftest import BrokerThread
from headrace.tablelayer.tests.console.test_console import Client, client_of

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SECURED = {
    "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.clients.plain.sasl.jaas.config": f'{PLAIN} required user_ann="hers";',
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
HERS = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "ann",
    "sasl.password": "hers",
}
TOKEN = {"authorization": "Bearer t"}
OUTSIDE = ("/api/schemas", "/api/connectors")
"""Routes of other programs, which have rights of their own."""


@pytest.fixture(scope="module")
def consoles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Client]]:
    """The administrator's and Ann's, who reads the table and the topic `seen`, and their group."""
    broker = BrokerThread(tmp_path_factory.mktemp("console"), config=SECURED).start()
    with connect(broker.address) as admin:
        for name in ("seen", "hidden"):
            admin.execute(f"CREATE TABLE {name} (id INT, a STRING, PRIMARY KEY (id) NOT ENFORCED)")
            admin.table(name).upsert([{"id": 1, "a": name}])
            admin.kafka.create_topic(f"topic-{name}", partitions=1)
            admin.kafka.produce(f"topic-{name}", [OutgoingRecord(name.encode(), b"k")])
            admin.kafka.commit_offsets(f"group-{name}", f"topic-{name}", {0: 1})
        run(admin, "GRANT SELECT ON seen TO ann")
        allow(admin, 2, "topic-seen")
        allow(admin, 3, "group-seen")
        at = broker._broker.listeners["CLIENTS"]
        with connect(f"127.0.0.1:{at.port}", properties=HERS) as hers:
            yield client_of(admin, Access(token="t")), client_of(hers, Access(token="t"), writes=True)
    broker.stop()


def run(connection: Connection, statement: str) -> None:
    list(Session(connection).run(statement))


def allow(admin: Connection, resource_type: int, name: str) -> None:
    from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse

    creation = AclCreation(
        resource_type=resource_type, resource_name=name, resource_pattern_type=3, principal="User:ann",
        host="*", operation=3, permission_type=3,
    )  # fmt: skip
    request = CreateAclsRequest(creations=[creation])
    admin._loop.run(admin._connection.cluster.call(request, CreateAclsResponse, doing="allow"))


def readings(client: Client) -> list[tuple[str, list[str]]]:
    """Paths of what is read, and the names in them."""
    paths = client.get("/openapi.json", headers=TOKEN).json()["paths"]
    return [
        (path, [part[1:-1] for part in path.split("/") if part.startswith("{")])
        for path, methods in paths.items()
        if "get" in methods and not path.endswith("/tail") and not path.startswith(OUTSIDE)
    ]


def filled(path: str, name: str) -> str:
    values = {"topic": f"topic-{name}", "table": f"default.{name}", "group": f"group-{name}", "broker": "0"}
    return path.format(**values)


def test_listings_leave_out_hidden_resources(consoles: tuple[Client, Client]) -> None:
    admin, ann = consoles
    checked = 0
    for path, names in readings(ann):
        if names and names != ["broker"]:
            continue
        answer = ann.get(filled(path, ""), headers=TOKEN)
        assert "hidden" not in answer.text, path
        checked += "hidden" in admin.get(filled(path, ""), headers=TOKEN).text
    assert checked >= 3, "topics, tables, groups"
    assert ann.connection is not None
    assert admin.connection is not None
    assert [each.table for each in ann.connection.admin.table_loads()] == ["default.seen"]
    assert {"default.seen", "default.hidden"} <= {each.table for each in admin.connection.admin.table_loads()}
    for path in ("quotas", "acls"):
        assert ann.get(f"/api/{path}", headers=TOKEN).status_code == 403, path
    for path, shown in (("topics", "topic-seen"), ("tables", "seen"), ("groups", "group-seen")):
        assert shown in ann.get(f"/api/{path}", headers=TOKEN).text


def test_hidden_resources_are_answered_like_missing_ones(consoles: tuple[Client, Client]) -> None:
    admin, ann = consoles
    checked = 0
    for path, names in readings(ann):
        if not names or names == ["broker"]:
            continue
        by_key = path.endswith(("/rows", "/changes"))
        options: dict[str, Any] = {"headers": TOKEN, "params": {"key": "1"} if by_key else {}}
        there, missing = (ann.get(filled(path, name), **options) for name in ("hidden", "missing"))
        assert (there.status_code, there.text) == (
            missing.status_code,
            missing.text.replace("missing", "hidden"),
        )
        assert "hidden" not in there.text.replace("-hidden", "").replace("default.hidden", ""), there.text
        assert admin.get(filled(path, "hidden"), **options).status_code == 200, path
        wanted = 403 if path.endswith("/configs") else 200  # that takes DESCRIBE_CONFIGS
        assert ann.get(filled(path, "seen"), **options).status_code == wanted, path
        checked += 1
    assert checked >= 6


@pytest.mark.parametrize("name", ["hidden", '"topic-hidden"'])
def test_sql_reads_and_writes_by_the_users_rights(consoles: tuple[Client, Client], name: str) -> None:
    _, ann = consoles

    def post(path: str, body: dict[str, Any]) -> Any:
        headers = {**TOKEN, "content-type": "application/json"}
        return ann.post(path, content=json.dumps(body), headers=headers)

    for readable in ("seen", '"topic-seen"'):
        assert post("/api/sql", {"query": f"SELECT * FROM {readable}"}).status_code == 200
    there, missing = (
        post("/api/sql", {"query": f"SELECT * FROM {each}"})
        for each in (name, name.replace("hidden", "missing"))
    )
    assert there.status_code == missing.status_code != 200
    assert there.text == missing.text.replace("missing", "hidden")
    for path, body in (
        ("/api/tables/default.seen/rows", {"rows": [{"id": 2, "a": "x"}]}),
        ("/api/tables/default.hidden/rows", {"rows": [{"id": 2, "a": "x"}]}),
        ("/api/topics/topic-seen/records", {"records": [{"value": "x"}]}),
        ("/api/topics/topic-hidden/records", {"records": [{"value": "x"}]}),
        ("/api/groups/group-hidden/reset", {"topic": "topic-seen", "to": "earliest"}),
    ):
        assert post(path, body).status_code >= 400, path
