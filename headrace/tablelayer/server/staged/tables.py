"""The tables and buckets that staged rows are for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.server.staged.place import Place, bucket_of_table

if TYPE_CHECKING:
    from headrace.tablelayer.server.bucket.bucket import TableBucket
    from headrace.tablelayer.server.staged.ledger import Ledger


class StagedTables:
    """Finds tables by id and buckets by place.

    `definition_of` raises TableError(TABLE_NOT_FOUND); `bucket_of` raises for a bucket that is not led here.
    """

    def __init__(
        self,
        definition_of: Callable[[UUID], TableDefinition],
        bucket_of: Callable[[TableDefinition, int], TableBucket],
    ) -> None:
        self.definition = definition_of
        self.bucket = bucket_of

    def checked(self, definition: TableDefinition, place: Place) -> TableDefinition:
        """Return the table that has a place's bucket: `definition`, or the partition of it. Raises TableError."""
        if not place.is_of_partition:
            if definition.is_partitioned:
                raise TableError(
                    TableErrorCode.PARTITION_NEEDED, f"{definition.path} is partitioned: say which partition"
                )
            return definition
        partition = self.definition(place.partition_id)
        if partition.path.partition is None or partition.path.whole != definition.path:
            raise TableError(
                TableErrorCode.PARTITION_NOT_FOUND,
                f"{partition.path} is not a partition of {definition.path}",
            )
        return partition

    def found(self, definition: TableDefinition, place: Place) -> TableDefinition | None:
        """Return the table that has a place's bucket; None for a partition that was dropped."""
        return self._partition(place.partition_id) if place.is_of_partition else definition

    def topic(self, definition: TableDefinition, place: Place) -> str | None:
        """Return the topic that has a place's bucket; None for a partition that was dropped."""
        found = self.found(definition, place)
        return None if found is None else found.path.topic

    def places(self, definition: TableDefinition, ledger: Ledger) -> list[Place]:
        """Return the buckets that the batch may have rows for, without those of dropped partitions."""
        if not definition.is_partitioned:
            return [bucket_of_table(bucket) for bucket in range(definition.bucket_count)]
        partitions = [(each, self._partition(each)) for each in ledger.partitions]
        return [
            Place(partition_id, bucket)
            for partition_id, partition in partitions
            if partition is not None
            for bucket in range(partition.bucket_count)
        ]

    def _partition(self, table_id: UUID) -> TableDefinition | None:
        try:
            return self.definition(table_id)
        except TableError as error:
            if error.code is not TableErrorCode.TABLE_NOT_FOUND:
                raise
            return None
