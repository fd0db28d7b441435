"""The tables and buckets of staged rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.server.staged.place import Place, bucket_of_table

if TYPE_CHECKING:
    from headrace.tablelayer.server.bucket.bucket import TableBucket
    from headrace.tablelayer.server.staged.ledger import Ledger


class StagedTables:
    """Finds tables by id and buckets by place.

    `definition_of` raises TableError(TABLE_NOT_FOUND); `bucket_of` raises if this broker does not lead the bucket.
    """

    def __init__(
        self,
        definition_of: Callable[[UUID], StoredTable],
        bucket_of: Callable[[StoredTable, int], TableBucket],
    ) -> None:
        self.definition = definition_of
        self.bucket = bucket_of

    def checked(self, definition: StoredTable, place: Place) -> StoredTable:
        """Return the table with a place's bucket: `definition`, or its partition. Raises TableError."""
        if not place.is_of_partition:
            if definition.is_partitioned:
                raise TableError(
                    TableErrorCode.PARTITION_NEEDED, f"{definition.path} is partitioned: name the partition"
                )
            return definition
        partition = self.definition(place.partition_id)
        if partition.path.partition is None or partition.path.whole != definition.path:
            raise TableError(
                TableErrorCode.PARTITION_NOT_FOUND,
                f"{partition.path} is not a partition of {definition.path}",
            )
        return partition

    def found(self, definition: StoredTable, place: Place) -> StoredTable | None:
        """Return the table with a place's bucket; None for a dropped partition."""
        return self._partition(place.partition_id) if place.is_of_partition else definition

    def topic(self, definition: StoredTable, place: Place) -> str | None:
        """Return the topic with a place's bucket; None for a dropped partition."""
        found = self.found(definition, place)
        return None if found is None else found.path.topic

    def places(self, definition: StoredTable, ledger: Ledger) -> list[Place]:
        """Return the buckets for which the batch may have rows, without those of dropped partitions."""
        if not definition.is_partitioned:
            return [bucket_of_table(bucket) for bucket in range(definition.bucket_count)]
        partitions = [(each, self._partition(each)) for each in ledger.partitions]
        return [
            Place(partition_id, bucket)
            for partition_id, partition in partitions
            if partition is not None
            for bucket in range(partition.bucket_count)
        ]

    def _partition(self, table_id: UUID) -> StoredTable | None:
        try:
            return self.definition(table_id)
        except TableError as error:
            if error.code is not TableErrorCode.TABLE_NOT_FOUND:
                raise
            return None
