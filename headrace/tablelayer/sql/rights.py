"""Statements about users and rights, over the table client."""

from __future__ import annotations

import pyarrow as pa

from headrace.tablelayer.client.admin.ddl import created, dropped
from headrace.tablelayer.client.blocking.security import SecurityAdmin
from headrace.tablelayer.model.ddl import (
    AlterUser,
    CreateUser,
    DropUser,
    Grant,
    Revoke,
    ShowGrants,
    ShowUsers,
)
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.sql.answer import Answer

RightsStatement = Grant | Revoke | ShowGrants | CreateUser | AlterUser | DropUser | ShowUsers


def run_rights(security: SecurityAdmin, statement: RightsStatement) -> Answer:
    if isinstance(statement, Grant):
        return _grant(security, statement)
    if isinstance(statement, Revoke):
        return _revoke(security, statement)
    if isinstance(statement, ShowGrants):
        return _show_grants(security, statement)
    if isinstance(statement, CreateUser):
        password = statement.password.reveal()
        security.create_user(statement.name, password, if_not_exists=statement.if_not_exists)
        return Answer(text=created(f"user {statement.name}", statement.if_not_exists))
    if isinstance(statement, AlterUser):
        security.alter_user(statement.name, statement.password.reveal())
        return Answer(text=f"changed the password of user {statement.name}")
    if isinstance(statement, DropUser):
        security.drop_user(statement.name, if_exists=statement.if_exists)
        return Answer(text=dropped(f"user {statement.name}", statement.if_exists))
    users = security.list_users()
    return Answer(
        rows=pa.table(
            {
                "user": pa.array([each.name for each in users], pa.string()),
                "mechanisms": pa.array([", ".join(each.mechanisms) for each in users], pa.string()),
            }
        )
    )


def _grant(security: SecurityAdmin, statement: Grant) -> Answer:
    on = _object(statement)
    whole = [each.name for each in statement.privileges if not each.columns]
    for each in statement.privileges:
        if each.columns:
            security.grant([each.name], on, statement.principal, columns=each.columns)
    if whole:
        security.grant(whole, on, statement.principal)
    return Answer(text=f"granted to {statement.principal}")


def _revoke(security: SecurityAdmin, statement: Revoke) -> Answer:
    on, taken = _object(statement), 0
    whole = [each.name for each in statement.privileges if not each.columns]
    for each in statement.privileges:
        if each.columns:
            taken += security.revoke([each.name], on, statement.principal, columns=each.columns)
    if whole:
        taken += security.revoke(whole, on, statement.principal)
    if not taken:
        return Answer(text=f"none of these privileges was granted to {statement.principal}")
    return Answer(text=f"revoked from {statement.principal}")


def _show_grants(security: SecurityAdmin, statement: ShowGrants) -> Answer:
    found = security.grants(on=statement.path or statement.database, principal=statement.principal)
    columns = {
        "principal": [each.principal for each in found],
        "privilege": [_privilege(each.privilege, each.columns) for each in found],
        "on": [each.resource for each in found],
        "host": [each.host for each in found],
        "is": ["denied" if each.is_denial else "allowed" for each in found],
    }
    return Answer(rows=pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()}))


def _privilege(name: str, columns: tuple[str, ...]) -> str:
    return f"{name} ({', '.join(columns)})" if columns else name


def _object(statement: Grant | Revoke) -> TablePath | str:
    on = statement.path or statement.database
    assert on is not None
    return on
