"""Users and rights that the console's connection may see and change. All methods block."""

from __future__ import annotations

from typing import Any

from headrace.tablelayer.client import Connection, KafkaError, UnsupportedRequest
from headrace.tablelayer.console.routes import RequestError
from headrace.tablelayer.model.rights import principal_of
from headrace.tablelayer.model.table.path import TablePath


class Rights:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def listed(self) -> dict[str, Any]:
        """Return users and rights. If `protected` is false, the server has no authorizer and no rights."""
        security = self._connection.security
        try:
            grants = security.grants()
            protected = True
        except UnsupportedRequest:
            grants, protected = [], False
        except KafkaError as error:
            if error.code.name != "SECURITY_DISABLED":
                raise
            grants, protected = [], False
        return {
            "protected": protected,
            "users": [
                {"name": each.name, "mechanisms": list(each.mechanisms)} for each in security.list_users()
            ],
            "grants": [
                {
                    "principal": each.principal,
                    "privilege": each.privilege,
                    "columns": list(each.columns),
                    "on": each.resource,
                    "host": each.host,
                    "denied": each.is_denial,
                }
                for each in grants
            ],
        }

    def set_user(self, body: Any) -> dict[str, Any]:
        name, password = _text(body, "name"), _text(body, "password")
        security = self._connection.security
        known = any(each.name == name for each in security.list_users())
        (security.alter_user if known else security.create_user)(name, password)
        return {"name": name, "made": not known}

    def drop_user(self, body: Any) -> dict[str, Any]:
        name = _text(body, "name")
        self._connection.security.drop_user(name)
        return {"name": name}

    def grant(self, body: Any) -> dict[str, Any]:
        principal, privileges, on, columns = _grant(body)
        try:
            self._connection.security.grant(privileges, on, principal, columns=columns)
        except ValueError as error:
            raise RequestError(str(error)) from None
        return {"granted": len(privileges)}

    def revoke(self, body: Any) -> dict[str, Any]:
        principal, privileges, on, columns = _grant(body)
        try:
            taken = self._connection.security.revoke(privileges, on, principal, columns=columns)
        except ValueError as error:
            raise RequestError(str(error)) from None
        return {"revoked": taken}


def _grant(body: Any) -> tuple[str, list[str], TablePath | str, list[str]]:
    """Return (principal, privileges in upper case, table or database, columns) of a request."""
    principal, on = _text(body, "principal"), _text(body, "on")
    privileges, columns = _texts(body, "privileges"), _texts(body, "columns", missing=True)
    where: TablePath | str = TablePath.parse(on) if "." in on else on
    return principal_of(principal), [each.upper() for each in privileges], where, columns


def _text(body: Any, name: str) -> str:
    value = body.get(name) if isinstance(body, dict) else None
    if not isinstance(value, str) or not value:
        raise RequestError(f"{name} must be a text that is not empty")
    return value


def _texts(body: Any, name: str, *, missing: bool = False) -> list[str]:
    value = body.get(name) if isinstance(body, dict) else None
    if value is None and missing:
        return []
    if not isinstance(value, list) or not all(isinstance(each, str) and each for each in value) or not value:
        raise RequestError(f"{name} must be a list of texts that are not empty")
    return value
