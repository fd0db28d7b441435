"""Handler of ListRefused. It needs READ, because the reasons quote values."""

from __future__ import annotations

from headrace.broker.requests.declaration import RequestContext
from headrace.broker.security.rights import Operation
from headrace.tablelayer.model.messages import refused as m
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.server.catalog.catalog import Catalog
from headrace.tablelayer.server.kafka_view.refusals import Refusals
from headrace.tablelayer.server.rights.table_rights import TableRights


class RefusedHandlers:
    def __init__(self, refusals: Refusals, catalog: Catalog, rights: TableRights) -> None:
        self._refusals = refusals
        self._catalog = catalog
        self._rights = rights

    async def list_refused(
        self, context: RequestContext, request: m.ListRefusedRequest
    ) -> m.ListRefusedResponse:
        tables: list[StoredTable]
        if request.topic is not None:
            path = TablePath.parse(request.topic).whole
            self._rights.require(context, Operation.READ, path)
            tables = [self._catalog.by_path(path)]
        else:
            tables = [
                each
                for each in self._catalog.all_tables()
                if self._rights.may(context, Operation.READ, each.path)
            ]
        return m.ListRefusedResponse(tables=[entry for each in tables for entry in self._entries(each)])

    def _entries(self, definition: StoredTable) -> list[m.RefusedTable]:
        found = self._refusals.of(definition.table_id)
        if found is None:
            return []
        records = [
            m.RefusedRecord(
                time_ms=each.time_ms,
                topic=each.topic,
                partition=each.partition,
                index=each.index,
                code=each.code.name,
                reason=each.reason,
                dead_letter=each.dead_letter,
            )
            for each in reversed(found.last)
        ]
        return [
            m.RefusedTable(
                table_id=definition.table_id, table=str(definition.path), count=found.count, records=records
            )
        ]
