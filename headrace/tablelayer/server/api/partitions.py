"""Handlers of requests about the partitions of partitioned tables."""

from __future__ import annotations

from headrace.broker.requests.declaration import RequestContext
from headrace.broker.security.rights import Operation
from headrace.tablelayer.model.messages import partitions as m
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.server.catalog.catalog import Catalog
from headrace.tablelayer.server.lake.dropped import GonePartitionsStore
from headrace.tablelayer.server.lake.tiering import LakeRounds
from headrace.tablelayer.server.rights.table_rights import TableRights


class PartitionHandlers:
    def __init__(
        self, catalog: Catalog, rights: TableRights, lake: LakeRounds, gone: GonePartitionsStore
    ) -> None:
        self._catalog = catalog
        self._lake = lake
        self._gone = gone
        self._rights = rights

    async def create(
        self, context: RequestContext, request: m.CreatePartitionRequest
    ) -> m.CreatePartitionResponse:
        definition = self._rights.by_id(context, Operation.WRITE, request.table_id)
        context.mutates(definition.bucket_count)
        partition = await self._catalog.create_partition(
            definition, request.name, ignore_if_exists=request.ignore_if_exists
        )
        return m.CreatePartitionResponse(partition_id=partition.table_id, bucket_count=partition.bucket_count)

    async def drop(self, context: RequestContext, request: m.DropPartitionRequest) -> m.DropPartitionResponse:
        definition = self._rights.by_id(context, Operation.WRITE, request.table_id)
        context.mutates(definition.bucket_count)
        if definition.settings.datalake_enabled:
            await self._note_drop(definition, request.name)
        await self._catalog.drop_partition(
            definition, request.name, ignore_if_not_exists=request.ignore_if_not_exists
        )
        return m.DropPartitionResponse()

    async def _note_drop(self, definition: StoredTable, name: str) -> None:
        """Record that the lake's rows of this partition no longer belong to the table."""
        was_tiered = self._lake.state(definition.table_id).committed_at_ms >= 0
        for each in self._catalog.partitions(definition):
            if each.path.partition == name:
                await self._gone.note_drop(definition.table_id, name, each.table_id, was_tiered=was_tiered)

    async def list(
        self, context: RequestContext, request: m.ListPartitionsRequest
    ) -> m.ListPartitionsResponse:
        definition = self._rights.by_id(context, Operation.DESCRIBE, request.table_id)
        found = []
        for each in self._catalog.partitions(definition):
            assert each.path.partition is not None
            found.append(
                m.ListedPartition(
                    name=each.path.partition, partition_id=each.table_id, bucket_count=each.bucket_count
                )
            )
        return m.ListPartitionsResponse(partitions=found)
