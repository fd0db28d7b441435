"""Handlers of requests about databases and tables."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from uuid import UUID

from headrace.broker.requests.declaration import RequestContext
from headrace.broker.security.rights import Operation
from headrace.protocol.errors import KafkaError
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.messages import catalog as m
from headrace.tablelayer.model.options.table_options import TableOptions
from headrace.tablelayer.model.table.partitions import plan_partitions
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.server.api.definition_texts import DefinitionTexts
from headrace.tablelayer.server.catalog.catalog import Catalog
from headrace.tablelayer.server.rights.table_rights import TableRights
from headrace.tablelayer.server.services import Services

logger = logging.getLogger("headrace.tables")


class CatalogHandlers:
    def __init__(
        self, services: Services, catalog: Catalog, rights: TableRights, texts: DefinitionTexts
    ) -> None:
        self._services = services
        self._catalog = catalog
        self._rights = rights
        self._texts = texts

    async def create_database(
        self, context: RequestContext, request: m.CreateDatabaseRequest
    ) -> m.CreateDatabaseResponse:
        self._rights.require_on_database(context, Operation.CREATE, request.name)
        await self._catalog.databases.create(
            request.name,
            ignore_if_exists=request.ignore_if_exists,
            comment=request.comment,
            properties={each.key: each.value for each in request.properties},
        )
        return m.CreateDatabaseResponse()

    async def drop_database(
        self, context: RequestContext, request: m.DropDatabaseRequest
    ) -> m.DropDatabaseResponse:
        self._rights.require_on_database(context, Operation.DELETE, request.name)
        if request.cascade and request.name in self._catalog.databases.names():
            for name in self._catalog.tables(request.name):
                self._rights.require(context, Operation.DELETE, TablePath(request.name, name))
            paths = [TablePath(request.name, name) for name in self._catalog.tables(request.name)]
            context.mutates(sum(self._catalog.bucket_count(path) for path in paths))
        await self._catalog.databases.drop(
            request.name, ignore_if_not_exists=request.ignore_if_not_exists, cascade=request.cascade
        )
        return m.DropDatabaseResponse()

    async def list_databases(
        self, context: RequestContext, request: m.ListDatabasesRequest
    ) -> m.ListDatabasesResponse:
        return m.ListDatabasesResponse(databases=self._rights.visible_databases(context))

    async def describe_database(
        self, context: RequestContext, request: m.DescribeDatabaseRequest
    ) -> m.DescribeDatabaseResponse:
        self._require_visible(context, request.name)
        database = self._catalog.databases.get(request.name)
        return m.DescribeDatabaseResponse(
            created_at_ms=database.created_at_ms,
            table_count=len(self._rights.visible_tables(context, request.name)),
            comment=database.comment,
            properties=[
                m.Property(key=key, value=value) for key, value in sorted(database.properties.items())
            ],
        )

    async def alter_database(
        self, context: RequestContext, request: m.AlterDatabaseRequest
    ) -> m.AlterDatabaseResponse:
        self._rights.require_on_database(context, Operation.ALTER, request.name)
        await self._catalog.databases.alter(
            request.name,
            comment=request.comment,
            set_properties={each.key: each.value for each in request.set_properties},
            reset_properties=request.reset_properties,
        )
        return m.AlterDatabaseResponse()

    async def create_table(
        self, context: RequestContext, request: m.CreateTableRequest
    ) -> m.CreateTableResponse:
        def check(path: TablePath, buckets: int, config: Mapping[str, str]) -> None:
            self._rights.require_create(context, path)
            self._rights.require_dead_letters(context, config)
            context.mutates(buckets)

        topic = await self._catalog.create_table(
            request.definition, ignore_if_exists=request.ignore_if_exists, check=check
        )
        await self._create_first_partitions(topic.topic_id)
        return m.CreateTableResponse(
            table_id=topic.topic_id,
            lake_format=topic.config.get(TableOptions.datalake_format.name, ""),
            bucket_count=topic.partition_count,
        )

    async def _create_first_partitions(self, table_id: UUID) -> None:
        """Create the partitions of a new table's calendar, so that the next request finds them."""
        catalog = self._catalog
        try:
            definition = catalog.by_id(table_id)
            names = catalog.partition_names(definition.path)
            if names or not definition.settings.auto_partition:
                return
            now_ms = self._services.context.clock.time_ms()
            for name in plan_partitions(definition, names, now_ms, catalog.max_partitions).create:
                await catalog.create_partition(definition, name, ignore_if_exists=True)
        except (TableError, KafkaError) as error:
            logger.warning(
                "the calendar creates the partitions of table %s later: %s", table_id, error.message
            )

    async def drop_table(self, context: RequestContext, request: m.DropTableRequest) -> m.DropTableResponse:
        path = TablePath(request.database, request.table)
        self._rights.require(context, Operation.DELETE, path)
        context.mutates(self._catalog.bucket_count(path))
        await self._catalog.drop_table(path, ignore_if_not_exists=request.ignore_if_not_exists)
        return m.DropTableResponse()

    async def list_tables(
        self, context: RequestContext, request: m.ListTablesRequest
    ) -> m.ListTablesResponse:
        self._require_visible(context, request.database)
        self._catalog.databases.get(request.database)
        return m.ListTablesResponse(tables=self._rights.visible_tables(context, request.database))

    async def describe_table(
        self, context: RequestContext, request: m.DescribeTableRequest
    ) -> m.DescribeTableResponse:
        path = TablePath(request.database, request.table)
        self._rights.require(context, Operation.DESCRIBE, path)
        definition = self._catalog.by_path(path)
        text = await self._texts.text(definition)
        return m.DescribeTableResponse(table_id=definition.table_id, definition=text)

    async def alter_table(
        self, context: RequestContext, request: m.AlterTableRequest
    ) -> m.AlterTableResponse:
        path = TablePath(request.database, request.table)
        self._rights.require(context, Operation.ALTER, path)

        def check(config: Mapping[str, str | None], added: int) -> None:
            self._rights.require_dead_letters(context, config)
            if added:
                context.mutates(added)

        definition = await self._catalog.alter_table(
            path, request.changes, expected_schema_id=request.expected_schema_id, check=check
        )
        return m.AlterTableResponse(definition=await self._services.run(definition.to_json))

    def _require_visible(self, context: RequestContext, database: str) -> None:
        """Raise KafkaError if the caller may see nothing of a database, whether it exists or not."""
        if not self._rights.may_see_database(context, database):
            self._rights.require_on_database(context, Operation.DESCRIBE, database)
