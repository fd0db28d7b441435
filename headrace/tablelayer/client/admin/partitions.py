"""List, create and drop a table's partitions."""

from __future__ import annotations

from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.model.messages.partitions import (
    CreatePartitionRequest,
    CreatePartitionResponse,
    DropPartitionRequest,
    DropPartitionResponse,
    ListPartitionsRequest,
    ListPartitionsResponse,
)
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.partitions import Partition


async def list_partitions(cluster: Cluster, definition: StoredTable) -> list[Partition]:
    """Return a table's partitions by name. TableError NOT_PARTITIONED, TABLE_NOT_FOUND."""
    answer = await cluster.call(
        ListPartitionsRequest(table_id=definition.table_id),
        ListPartitionsResponse,
        doing=f"list the partitions of {definition.path}",
    )
    return [Partition(each.name, each.partition_id, each.bucket_count) for each in answer.partitions]


async def create_partition(
    cluster: Cluster, definition: StoredTable, name: str, *, if_not_exists: bool
) -> Partition:
    """Create a partition. TableError PARTITION_EXISTS, INVALID_PARTITION, TOO_MANY_PARTITIONS, TABLE_NOT_FOUND."""
    answer = await cluster.call(
        CreatePartitionRequest(table_id=definition.table_id, name=name, ignore_if_exists=if_not_exists),
        CreatePartitionResponse,
        doing=f"add partition {name} to {definition.path}",
        repeatable=if_not_exists,
        changes=True,
    )
    cluster.forget_routes(definition.path.of_partition(name).topic)
    return Partition(name, answer.partition_id, answer.bucket_count)


async def drop_partition(cluster: Cluster, definition: StoredTable, name: str, *, if_exists: bool) -> None:
    """Drop a partition. TableError PARTITION_NOT_FOUND, TABLE_NOT_FOUND."""
    await cluster.call(
        DropPartitionRequest(table_id=definition.table_id, name=name, ignore_if_not_exists=if_exists),
        DropPartitionResponse,
        doing=f"drop partition {name} of {definition.path}",
        repeatable=if_exists,
        changes=True,
    )
    cluster.forget_routes(definition.path.of_partition(name).topic)
