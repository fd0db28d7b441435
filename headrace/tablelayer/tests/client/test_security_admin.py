"""Users and rights by SQL and by the client, as Kafka's own requests see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from headrace.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from headrace.tablelayer.client import Connection, connect
from headrace.tablelayer.client.admin.security import GrantListing
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.sql.session import Session
from headrace.tablelayer.tests.client.conftest import BrokerThread

SECURED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    broker = BrokerThread(tmp_path_factory.mktemp("secured"), config=SECURED).start()
    with connect(broker.address) as connection:
        connection.execute("CREATE TABLE t (id BIGINT, a STRING, b STRING, PRIMARY KEY (id) NOT ENFORCED)")
        yield connection
    broker.stop()


@pytest.fixture
def sql(admin: Connection) -> Any:
    session = Session(admin)

    def run(text: str) -> Any:
        (answer,) = session.run(text)
        return answer.rows.to_pylist() if answer.rows is not None else answer.text

    yield run
    everything = DeleteAclsFilter(
        resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1, principal_filter=None,
        host_filter=None, operation=1, permission_type=1,
    )  # fmt: skip
    send(admin, DeleteAclsRequest(filters=[everything]), DeleteAclsResponse)
    for each in admin.security.grants():
        run(f"REVOKE SELECT ON t FROM '{each.principal}'")


def send(admin: Connection, request: Any, response: Any) -> Any:
    return admin._loop.run(admin._connection.cluster.call(request, response, doing="change ACLs"))


def rights(sql: Any, statement: str = "SHOW GRANTS") -> list[tuple[str, str, str]]:
    return [(each["principal"], each["privilege"], each["on"]) for each in sql(statement)]


def test_privileges_are_granted_shown_and_revoked(sql: Any) -> None:
    assert sql("GRANT SELECT, INSERT, UPDATE ON t TO ann") == "granted to User:ann"
    sql("GRANT ALTER ON DATABASE default TO 'User:bob'")
    writes = ("User:ann", "INSERT, UPDATE, DELETE", "table default.t")
    reads = ("User:ann", "SELECT", "table default.t")
    alters = ("User:bob", "ALTER", "database default")
    assert rights(sql) == [writes, reads, alters]
    assert rights(sql, "SHOW GRANTS FOR ann") == [writes, reads]
    assert rights(sql, "SHOW GRANTS ON TABLE t") == [writes, reads, alters]
    assert rights(sql, "SHOW GRANTS ON DATABASE default") == [writes, reads, alters]
    assert sql("REVOKE DELETE ON t FROM ann") == "revoked from User:ann"
    assert rights(sql) == [reads, alters]
    assert sql("REVOKE DELETE ON t FROM ann") == "none of these privileges was granted to User:ann"
    sql("REVOKE ALL ON t FROM ann")
    assert rights(sql) == [alters]


def test_columns_come_with_describe_and_go_with_it(sql: Any) -> None:
    sql("GRANT SELECT (id, a) ON t TO ann")
    assert rights(sql) == [
        ("User:ann", "DESCRIBE", "table default.t"),
        ("User:ann", "SELECT (id, a)", "table default.t"),
    ]
    sql("REVOKE SELECT (a) ON t FROM ann")
    assert ("User:ann", "SELECT (id)", "table default.t") in rights(sql)
    sql("REVOKE SELECT ON t FROM ann")
    assert rights(sql) == []


def test_columns_that_do_not_exist_are_not_granted(sql: Any) -> None:
    with pytest.raises(Exception, match="'nope'"):
        sql("GRANT SELECT (nope) ON t TO ann")
    assert rights(sql) == []


def test_an_unknown_privilege_is_refused_before_anything_is_sent(admin: Connection) -> None:
    for privileges in (["READ"], []):
        with pytest.raises(ValueError, match="is not a privilege"):
            admin.security.grant(privileges, TablePath("default", "t"), "User:ann")
    with pytest.raises(ValueError, match="columns are of a table"):
        admin.security.grant(["SELECT"], "default", "User:ann", columns=["a"])


def test_denials_of_kafkas_tools_are_shown_as_such(admin: Connection, sql: Any) -> None:
    denial = AclCreation(
        resource_type=2, resource_name="default.t", resource_pattern_type=3, principal="User:eve", host="10.0.0.1",
        operation=4, permission_type=2,
    )  # fmt: skip
    send(admin, CreateAclsRequest(creations=[denial]), CreateAclsResponse)
    assert GrantListing("User:eve", "INSERT, UPDATE, DELETE", "table default.t", (), True, "10.0.0.1") in (
        admin.security.grants()
    )
    assert sql("SHOW GRANTS FOR eve")[0]["is"] == "denied"


def test_grants_without_an_authorizer_are_refused(tmp_path: Path) -> None:
    broker = BrokerThread(tmp_path).start()
    try:
        with connect(broker.address) as connection:
            connection.execute("CREATE TABLE t (id BIGINT)")
            for statement in ("GRANT SELECT ON t TO ann", "GRANT SELECT (id) ON t TO ann", "SHOW GRANTS"):
                with pytest.raises(KafkaError) as raised:
                    list(Session(connection).run(statement))
                assert raised.value.code == ErrorCode.SECURITY_DISABLED
    finally:
        broker.stop()
