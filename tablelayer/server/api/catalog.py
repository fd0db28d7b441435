"""Databases and tables, from a message to the catalog and back."""

from __future__ import annotations

from broker.requests.declaration import RequestContext
from tablelayer.model.messages import catalog as m
from tablelayer.model.table.definition import TablePath
from tablelayer.server.catalog import Catalog
from tablelayer.server.services import Services


class CatalogHandlers:
    def __init__(self, services: Services, catalog: Catalog) -> None:
        self._services = services
        self._catalog = catalog

    async def create_database(
        self, context: RequestContext, request: m.CreateDatabaseRequest
    ) -> m.CreateDatabaseResponse:
        await self._catalog.create_database(
            request.name,
            ignore_if_exists=request.ignore_if_exists,
            comment=request.comment,
            properties={each.key: each.value for each in request.properties},
        )
        return m.CreateDatabaseResponse()

    async def drop_database(
        self, context: RequestContext, request: m.DropDatabaseRequest
    ) -> m.DropDatabaseResponse:
        await self._catalog.drop_database(
            request.name, ignore_if_not_exists=request.ignore_if_not_exists, cascade=request.cascade
        )
        return m.DropDatabaseResponse()

    async def list_databases(
        self, context: RequestContext, request: m.ListDatabasesRequest
    ) -> m.ListDatabasesResponse:
        return m.ListDatabasesResponse(databases=self._catalog.databases())

    async def describe_database(
        self, context: RequestContext, request: m.DescribeDatabaseRequest
    ) -> m.DescribeDatabaseResponse:
        database = self._catalog.database(request.name)
        return m.DescribeDatabaseResponse(
            created_at_ms=database.created_at_ms,
            table_count=len(self._catalog.tables(request.name)),
            comment=database.comment,
            properties=[
                m.Property(key=key, value=value) for key, value in sorted(database.properties.items())
            ],
        )

    async def alter_database(
        self, context: RequestContext, request: m.AlterDatabaseRequest
    ) -> m.AlterDatabaseResponse:
        await self._catalog.alter_database(
            request.name,
            comment=request.comment,
            set_properties={each.key: each.value for each in request.set_properties},
            reset_properties=request.reset_properties,
        )
        return m.AlterDatabaseResponse()

    async def create_table(
        self, context: RequestContext, request: m.CreateTableRequest
    ) -> m.CreateTableResponse:
        table_id = await self._catalog.create_table(
            request.definition, ignore_if_exists=request.ignore_if_exists
        )
        return m.CreateTableResponse(table_id=table_id)

    async def drop_table(self, context: RequestContext, request: m.DropTableRequest) -> m.DropTableResponse:
        path = TablePath(request.database, request.table)
        await self._catalog.drop_table(path, ignore_if_not_exists=request.ignore_if_not_exists)
        return m.DropTableResponse()

    async def list_tables(
        self, context: RequestContext, request: m.ListTablesRequest
    ) -> m.ListTablesResponse:
        return m.ListTablesResponse(tables=self._catalog.list_tables(request.database))

    async def describe_table(
        self, context: RequestContext, request: m.DescribeTableRequest
    ) -> m.DescribeTableResponse:
        definition = self._catalog.by_path(TablePath(request.database, request.table))
        assert definition.table_id is not None
        text = await self._services.run(definition.to_json)
        return m.DescribeTableResponse(table_id=definition.table_id, definition=text)

    async def alter_table(
        self, context: RequestContext, request: m.AlterTableRequest
    ) -> m.AlterTableResponse:
        definition = await self._catalog.alter_table(
            TablePath(request.database, request.table),
            request.changes,
            expected_schema_id=request.expected_schema_id,
        )
        return m.AlterTableResponse(definition=await self._services.run(definition.to_json))
