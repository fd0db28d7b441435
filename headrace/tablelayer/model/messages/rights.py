"""Read access to single columns of a table. Access to whole tables is granted with Kafka's ACLs."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, Struct, array, string
from headrace.tablelayer.model.messages.answers import TableResponse


class GrantColumnsRequest(ApiMessage, key=10060, kind="request", versions="0", flexible="0+"):
    """`principal` as in ACLs: `User:ann`, or `User:*` for every user. Adds to earlier grants."""

    database: str = string()
    table: str = string()
    principal: str = string()
    columns: list[str] = array(string)


class GrantColumnsResponse(TableResponse, key=10060, kind="response", versions="0", flexible="0+"):
    pass


class RevokeColumnsRequest(ApiMessage, key=10061, kind="request", versions="0", flexible="0+"):
    """`columns` null: all that were granted."""

    database: str = string()
    table: str = string()
    principal: str = string()
    columns: list[str] | None = array(string, nullable="0+", default=None)


class RevokeColumnsResponse(TableResponse, key=10061, kind="response", versions="0", flexible="0+"):
    """`columns`: the revoked ones; empty when none of them was granted."""

    columns: list[str] = array(string)


class ListColumnGrantsRequest(ApiMessage, key=10062, kind="request", versions="0", flexible="0+"):
    """A null matches all. A table is given with its database."""

    database: str | None = string(nullable="0+", default=None)
    table: str | None = string(nullable="0+", default=None)
    principal: str | None = string(nullable="0+", default=None)


class ColumnGrant(Struct):
    database: str = string()
    table: str = string()
    principal: str = string()
    columns: list[str] = array(string)


class ListColumnGrantsResponse(TableResponse, key=10062, kind="response", versions="0", flexible="0+"):
    grants: list[ColumnGrant] = array(ColumnGrant)
