"""Users, rights and ACLs that the console's connection may see and change. All methods block."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

import msgspec

from headrace.tablelayer.client import Connection, KafkaError, UnsupportedRequest
from headrace.tablelayer.client.admin.acls import OPERATIONS, PATTERNS, PERMISSIONS, RESOURCE_TYPES, Acl
from headrace.tablelayer.console.routes import Body, RequestError, Text, get, post
from headrace.tablelayer.model.rights import principal_of
from headrace.tablelayer.model.table.path import TablePath

Texts = Annotated[list[Text], msgspec.Meta(min_length=1)]


class UserPassword(Body):
    name: Text
    password: Text


class UserName(Body):
    name: Text


class Grant(Body):
    principal: Text
    privileges: Texts
    on: Text
    columns: list[Text] = msgspec.field(default_factory=list)

    @property
    def place(self) -> TablePath | str:
        """The table, or the database."""
        return TablePath.parse(self.on) if "." in self.on else self.on

    @property
    def words(self) -> list[str]:
        return [each.upper() for each in self.privileges]


class OneAcl(Body):
    """An ACL in Kafka's words. All its parts are needed, so that no request removes more than one."""

    principal: Text
    permission: Literal[tuple(PERMISSIONS)]  # type: ignore[valid-type]
    operation: Literal[tuple(OPERATIONS)]  # type: ignore[valid-type]
    resource_type: Literal[tuple(RESOURCE_TYPES)]  # type: ignore[valid-type]
    name: Text
    pattern: Literal[tuple(PATTERNS)]  # type: ignore[valid-type]
    host: Text

    @property
    def acl(self) -> Acl:
        return Acl(**{**msgspec.structs.asdict(self), "principal": principal_of(self.principal)})


class Rights:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @get("/api/users")
    def listed(self) -> dict[str, Any]:
        """Users with a password, and the rights that are granted and denied. If `protected` is false, the server has no
        authorizer and no rights.
        """
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

    @post("/api/users")
    def set_user(self, body: UserPassword) -> dict[str, Any]:
        """Create a user with a password, or change the password."""
        security = self._connection.security
        known = any(each.name == body.name for each in security.list_users())
        (security.alter_user if known else security.create_user)(body.name, body.password)
        return {"name": body.name, "made": not known}

    @post("/api/users/delete")
    def drop_user(self, body: UserName) -> dict[str, Any]:
        """Delete a user. Its grants stay."""
        self._connection.security.drop_user(body.name)
        return {"name": body.name}

    @post("/api/grants")
    def grant(self, body: Grant) -> dict[str, Any]:
        """Grant privileges on a table or a database to a principal."""
        principal = principal_of(body.principal)
        try:
            self._connection.security.grant(body.words, body.place, principal, columns=body.columns)
        except ValueError as error:
            raise RequestError(str(error)) from None
        return {"granted": len(body.privileges)}

    @post("/api/grants/revoke")
    def revoke(self, body: Grant) -> dict[str, Any]:
        """Revoke privileges on a table or a database."""
        principal = principal_of(body.principal)
        try:
            taken = self._connection.security.revoke(body.words, body.place, principal, columns=body.columns)
        except ValueError as error:
            raise RequestError(str(error)) from None
        return {"revoked": taken}

    @get("/api/acls")
    def acls(
        self,
        principal: Annotated[str | None, "Only of this principal, such as User:ann."] = None,
        resource: Annotated[str | None, "Only of resources of this type, such as TOPIC."] = None,
        name: Annotated[str | None, "Only of resources with exactly this name."] = None,
        operation: Annotated[str | None, "Only of this operation, such as READ."] = None,
    ) -> dict[str, Any]:
        """Kafka's ACLs, with the words of each part. If `protected` is false, the server has no authorizer."""
        wanted = Acl(
            principal=None if principal is None else principal_of(principal),
            resource_type=_known("resource", resource, RESOURCE_TYPES),
            operation=_known("operation", operation, OPERATIONS),
            name=name,
        )
        try:
            found, protected = self._connection.security.list_acls(wanted), True
        except KafkaError as error:
            if error.code.name != "SECURITY_DISABLED":
                raise
            found, protected = [], False
        return {
            "protected": protected,
            "acls": [asdict(each) for each in found],
            "types": list(RESOURCE_TYPES),
            "operations": list(OPERATIONS),
            "patterns": list(PATTERNS),
            "permissions": list(PERMISSIONS)[::-1],
        }

    @post("/api/acls")
    def create_acl(self, body: OneAcl) -> dict[str, Any]:
        """Create an ACL."""
        self._connection.security.create_acls([body.acl])
        return {"created": 1}

    @post("/api/acls/delete")
    def delete_acl(self, body: OneAcl) -> dict[str, Any]:
        """Delete the ACL that is exactly this."""
        return {"deleted": len(self._connection.security.delete_acls([body.acl]))}


def _known(parameter: str, word: str | None, words: dict[str, int]) -> str | None:
    if word is not None and word.upper() not in words:
        raise RequestError(f"{parameter} is {word[:100]!r}: it must be one of {', '.join(words)}")
    return None if word is None else word.upper()
