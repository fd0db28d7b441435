"""Statements that may turn out to write nothing check their right first, and the refusal names it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from headrace.tablelayer.client import Connection, OutgoingRecord, connect
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.tests.client.conftest import BrokerThread

TABLES = ("keyed", "logged", "parted")
_TOPIC, _CLUSTER, _READ, _WRITE, _IDEMPOTENT_WRITE, _LITERAL, _DENY, _ALLOW = 2, 4, 3, 4, 12, 3, 2, 3


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    """A client that may only read, and gets no producer id."""
    open_until_granted = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    broker = BrokerThread(tmp_path_factory.mktemp("rights"), config=open_until_granted).start()
    with connect(broker.address) as connection:
        connection.execute(
            "CREATE TABLE keyed (id INT, v INT, PRIMARY KEY (id) NOT ENFORCED);"
            "CREATE TABLE logged (id INT, v INT);"
            "CREATE TABLE parted (id INT, v INT, day STRING, PRIMARY KEY (id, day) NOT ENFORCED)"
            " PARTITIONED BY (day)"
        )
        connection.sql("INSERT INTO keyed VALUES (1, 1)")
        connection.sql("INSERT INTO parted VALUES (1, 1, 'a')")
    with connect(broker.address) as connection:
        acls = [(_TOPIC, name, _READ, _ALLOW) for name in ("plain", *(f"default.{each}" for each in TABLES))]
        acls += [(_TOPIC, "*", _WRITE, _DENY), (_CLUSTER, "kafka-cluster", _IDEMPOTENT_WRITE, _DENY)]
        connection.kafka.create_topic("plain")
        creations = [
            AclCreation(
                resource_type=kind, resource_name=name, resource_pattern_type=_LITERAL,
                principal="User:ANONYMOUS", host="*", operation=operation, permission_type=permission,
            )
            for kind, name, operation, permission in acls
        ]  # fmt: skip
        connection.call(CreateAclsRequest(creations=creations), CreateAclsResponse, doing="grant")
        yield connection
    broker.stop()


@pytest.mark.parametrize(
    ("text", "privilege"),
    [
        ("DELETE FROM {t} WHERE id = 999", "DELETE"),
        ("DELETE FROM {t} WHERE id > 999", "DELETE"),
        ("DELETE FROM {t} WHERE id = 1", "DELETE"),
        ("UPDATE {t} SET v = 2 WHERE id = 999", "UPDATE"),
        ("UPDATE {t} SET v = v + 1 WHERE id > 999", "UPDATE"),
        ("INSERT INTO {t} SELECT * FROM {t} WHERE id > 999", "INSERT"),
        ("COPY {t} FROM '{empty}'", "INSERT"),
        ("TRUNCATE TABLE {t}", "DELETE"),
    ],
)
@pytest.mark.parametrize("table", ["keyed", "parted"])
def test_a_right_is_asked_for_before_anything_is_read(
    reader: Connection, tmp_path: Path, table: str, text: str, privilege: str
) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text("id,v,day\n" if table == "parted" else "id,v\n")
    with pytest.raises(KafkaError) as refused:
        reader.sql(text.format(t=table, empty=empty))
    assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert f"not authorized: {privilege} on table default.{table} is not granted" in str(refused.value)


def test_a_log_table_is_asked_too(reader: Connection) -> None:
    with pytest.raises(KafkaError, match=r"INSERT on table default\.logged is not granted"):
        reader.sql("INSERT INTO logged SELECT * FROM logged")
    with pytest.raises(KafkaError, match="not authorized"):
        reader.sql("TRUNCATE TABLE logged")


@pytest.mark.parametrize(
    "write",
    [
        lambda reader: reader.sql("INSERT INTO keyed VALUES (7, 7)"),
        lambda reader: reader.table("keyed").upsert([{"id": 7, "v": 7}]),
        lambda reader: reader.table("keyed").delete([1]),
        lambda reader: reader.table("logged").append([{"id": 7, "v": 7}]),
    ],
)
def test_a_write_without_the_right_names_it_and_not_a_producers(reader: Connection, write: Any) -> None:
    with pytest.raises(KafkaError) as refused:
        write(reader)
    assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert "INSERT, UPDATE, DELETE on table default." in str(refused.value)
    assert reader.table("keyed").to_arrow().to_pylist() == [{"id": 1, "v": 1}]


def test_producing_without_the_right_names_it(reader: Connection) -> None:
    with pytest.raises(KafkaError, match="not authorized: WRITE on topic plain"):
        reader.kafka.produce("plain", [OutgoingRecord(b"x")])


def test_a_granted_privilege_is_not_refused(reader: Connection) -> None:
    for table in TABLES:
        reader.security.require("SELECT", TablePath("default", table))
        with pytest.raises(KafkaError, match=f"ALTER on table default.{table} is not granted"):
            reader.security.require("ALTER", TablePath("default", table))
