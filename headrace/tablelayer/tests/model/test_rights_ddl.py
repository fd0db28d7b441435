"""Parsing of statements about users and rights."""

from __future__ import annotations

import pytest

from headrace.tablelayer.model.ddl import (
    AlterUser,
    CreateUser,
    DdlError,
    DropUser,
    Grant,
    Password,
    Privilege,
    Revoke,
    ShowGrants,
    ShowUsers,
    parse,
)
from headrace.tablelayer.model.rights import resource_text
from headrace.tablelayer.model.table.path import TablePath

T = TablePath("shop", "orders")


@pytest.mark.parametrize(
    ("sql", "statement"),
    [
        ("GRANT SELECT ON shop.orders TO ann", Grant((Privilege("SELECT"),), T, None, "User:ann")),
        (
            "grant select (a, `b c`), insert on table shop.orders to 'User:CN=ann,O=x'",
            Grant((Privilege("SELECT", ("a", "b c")), Privilege("INSERT")), T, None, "User:CN=ann,O=x"),
        ),
        (
            "GRANT ALL PRIVILEGES ON DATABASE shop TO 'ann'",
            Grant((Privilege("ALL"),), None, "shop", "User:ann"),
        ),
        (
            "GRANT ALL ON orders TO 'User:*'",
            Grant((Privilege("ALL"),), TablePath("default", "orders"), None, "User:*"),
        ),
        (
            "REVOKE UPDATE, DELETE ON shop.orders FROM ann",
            Revoke((Privilege("UPDATE"), Privilege("DELETE")), T, None, "User:ann"),
        ),
        ("SHOW GRANTS", ShowGrants()),
        ("SHOW GRANTS ON TABLE shop.orders", ShowGrants(path=T)),
        ("SHOW GRANTS ON shop.orders", ShowGrants(path=T)),
        ("SHOW GRANTS ON DATABASE shop", ShowGrants(database="shop")),
        ("SHOW GRANTS FOR ann", ShowGrants(principal="User:ann")),
        ("SHOW USERS", ShowUsers()),
        ("CREATE USER ann PASSWORD 'it''s'", CreateUser("ann", Password("it's"))),
        ("CREATE USER IF NOT EXISTS 'a b' WITH PASSWORD 'x'", CreateUser("a b", Password("x"), True)),
        ("ALTER USER ann IDENTIFIED BY 'y'", AlterUser("ann", Password("y"))),
        ("DROP USER IF EXISTS ann", DropUser("ann", True)),
    ],
)
def test_statements(sql: str, statement: object) -> None:
    assert parse(sql) == [statement]


@pytest.mark.parametrize(
    ("sql", "complaint", "at"),
    [
        ("GRANT READ ON t TO ann", "READ is not a privilege", "READ"),
        ("GRANT INSERT (a) ON t TO ann", "only SELECT can have columns", "("),
        ("GRANT SELECT (a, a) ON t TO ann", "column 'a' is given twice", "a)"),
        ("GRANT SELECT (a) ON DATABASE d TO ann", "columns can only be granted on a table", "DATABASE"),
        ("GRANT SELECT, SELECT ON t TO ann", "SELECT is named twice", "SELECT ON"),
        ("GRANT SELECT ON t FROM ann", "expected TO, found FROM", "FROM"),
        ("GRANT SELECT ON t TO 'User:'", "a principal is written as 'Type:name'", "'User:'"),
        ("CREATE USER ann", "expected PASSWORD, but the statement ends here", ""),
        ("CREATE USER ann PASSWORD ''", "the password is empty", "''"),
        ("CREATE USER 'User:ann' PASSWORD 'x'", "a user's name has no 'User:' before it", "'User:ann'"),
        ("DROP USER", "expected a user's name", ""),
    ],
)
def test_errors_point_at_the_word(sql: str, complaint: str, at: str) -> None:
    with pytest.raises(DdlError, match=complaint.replace("(", r"\(")) as raised:
        parse(sql)
    assert raised.value.column == (sql.index(at) if at else len(sql)) + 1


def test_a_password_is_in_no_text_of_a_statement() -> None:
    (statement,) = parse("CREATE USER ann PASSWORD 'hunter2'")
    assert "hunter2" not in repr(statement)
    assert isinstance(statement, CreateUser)
    assert statement.password.reveal() == "hunter2"


@pytest.mark.parametrize(
    ("resource", "text"),
    [
        ((2, 3, "shop.orders"), "table shop.orders"),
        ((2, 4, "shop."), "database shop"),
        ((2, 4, "shop.or"), "topic shop.or*"),
        ((2, 3, "plain"), "topic plain"),
        ((2, 3, "*"), "topic *"),
        ((4, 3, "kafka-cluster"), "cluster"),
        ((5, 4, "tx-"), "transactional id tx-*"),
    ],
)
def test_acl_resources_are_shown_in_the_words_of_grant(resource: tuple[int, int, str], text: str) -> None:
    assert resource_text(*resource) == text
