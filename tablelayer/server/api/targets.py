"""What a request is about: the table that it names, and the buckets of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar
from uuid import UUID

from protocol.errors import ErrorCode, KafkaError
from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.table.definition import TableDefinition
from tablelayer.server.catalog import Catalog

if TYPE_CHECKING:
    from tablelayer.server.bucket.bucket import TableBucket

Bucket = TypeVar("Bucket", bound="TableBucket")


class Targets:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def with_rows(self, table_id: UUID) -> TableDefinition:
        """A table or a partition; of a partitioned table only the partitions have rows."""
        definition = self._catalog.by_id(table_id)
        if definition.is_partitioned:
            raise TableError(
                TableErrorCode.PARTITION_NEEDED,
                f"table {definition.path} is partitioned: its rows are read and written by partition, "
                f"such as {definition.path}.{'.'.join(definition.partition_keys)}; this client does not know how",
            )
        return definition

    def key_table(self, table_id: UUID) -> TableDefinition:
        """R16."""
        definition = self.with_rows(table_id)
        if not definition.is_primary_key_table:
            raise TableError(
                TableErrorCode.NOT_A_PRIMARY_KEY_TABLE,
                f"table {definition.path} is a log table: it has no keys to write or look up by",
            )
        return definition

    def bucket(self, definition: TableDefinition, index: int, kind: type[Bucket]) -> Bucket:
        """Raises KafkaError for a bucket that is not there, not of that kind or not open."""
        hooks: object = self._catalog.context.partition(definition.path.topic, index).hooks
        if not isinstance(hooks, kind):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"bucket {index} of {definition.path} is not served"
            )
        hooks.check_open()
        return hooks

    def check_replicas(self, definition: TableDefinition, bucket: int) -> None:
        """R11: before the append."""
        partition = self._catalog.context.partition(definition.path.topic, bucket)
        needed = partition.log.config.min_insync_replicas
        if needed > 1:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS, f"min.insync.replicas is {needed}, and 1 replica is in sync"
            )
