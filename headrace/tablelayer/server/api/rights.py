"""Handlers of requests about column grants."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.broker.requests.declaration import RequestContext
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.messages import rights as m
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.server.catalog.catalog import Catalog
from headrace.tablelayer.server.rights.column_grants import ColumnGrants

if TYPE_CHECKING:
    from uuid import UUID

_PRINCIPAL_LENGTH_MAX = 4096


class RightsHandlers:
    def __init__(self, catalog: Catalog, grants: ColumnGrants) -> None:
        self._catalog = catalog
        self._grants = grants

    async def grant(self, context: RequestContext, request: m.GrantColumnsRequest) -> m.GrantColumnsResponse:
        table_id, definition = self._table(context, request.database, request.table)
        _check_principal(request.principal)
        if not request.columns:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "no column is named; to grant all columns, create an ACL for READ"
            )
        columns = [definition.schema.column(name).id for name in request.columns]
        await self._grants.grant(table_id, request.principal, columns)
        return m.GrantColumnsResponse()

    async def revoke(
        self, context: RequestContext, request: m.RevokeColumnsRequest
    ) -> m.RevokeColumnsResponse:
        table_id, definition = self._table(context, request.database, request.table)
        _check_principal(request.principal)
        schema = definition.schema
        named = None if request.columns is None else [schema.column(name).id for name in request.columns]
        taken = await self._grants.revoke(table_id, request.principal, named)
        return m.RevokeColumnsResponse(columns=_names(definition, taken))

    async def list(
        self, context: RequestContext, request: m.ListColumnGrantsRequest
    ) -> m.ListColumnGrantsResponse:
        _check_authorizer(context)
        if request.table is not None:
            table_id, _ = self._table(context, request.database or "", request.table)
            tables = [table_id]
        else:
            tables = self._grants.tables()
        found = []
        for table_id in tables:
            await asyncio.sleep(0)
            if self._catalog.context.metadata.topic_by_id(table_id) is None:
                continue  # dropped, not forgotten yet
            definition = self._catalog.by_id(table_id)
            path = definition.path
            if request.database not in (None, path.database):
                continue
            for principal, columns in self._grants.of_table(table_id).items():
                if request.principal in (None, principal):
                    names = _names(definition, columns)
                    entry = m.ColumnGrant(
                        database=path.database, table=path.table, principal=principal, columns=names
                    )
                    found.append(entry)
        return m.ListColumnGrantsResponse(grants=found)

    def _table(self, context: RequestContext, database: str, table: str) -> tuple[UUID, StoredTable]:
        _check_authorizer(context)
        definition = self._catalog.by_path(TablePath(database, table))
        if definition.path.partition is not None:
            raise TableError(
                TableErrorCode.INVALID_TABLE,
                f"{definition.path} is a partition: grant columns of table {definition.path.whole} instead",
            )
        return definition.table_id, definition


def _names(definition: StoredTable, columns: frozenset[int]) -> list[str]:
    """Return the names of columns by id, in the table's order, without dropped columns."""
    return [column.name for column in definition.schema.columns if column.id in columns]


def _check_authorizer(context: RequestContext) -> None:
    if context.authorizer.is_open:
        raise KafkaError(
            ErrorCode.SECURITY_DISABLED,
            "No Authorizer is configured, so all clients may read all columns; set authorizer.class.name",
        )


def _check_principal(principal: str) -> None:
    kind, colon, name = principal.partition(":")
    if not (kind and colon and name) or len(principal) > _PRINCIPAL_LENGTH_MAX:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"{principal[:100]!r} is not a principal; write type and name, for example User:ann",
        )
