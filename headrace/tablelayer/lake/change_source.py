"""Log of a table as tiering rounds and union reads see it: earliest and latest offsets, state and changes."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol
from uuid import UUID

import pyarrow as pa

from headrace.tablelayer.client.security.settings import Bootstrap, ConnectionSettings
from headrace.tablelayer.model.lake.offsets import Offsets, PartitionBucket, in_order
from headrace.tablelayer.model.options.table_options import ChangelogImage
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.lake_shape import has_system_columns
from headrace.tablelayer.model.table.partitions import Partition
from headrace.tablelayer.spark.frames import splits_frame
from headrace.tablelayer.spark.splits import (
    DELETED_COLUMN,
    ReadMode,
    Split,
    TableRead,
    plan_splits,
    read_split,
    state_splits,
)
from headrace.tablelayer.spark.types import SYSTEM_FIELDS

LOCAL_ROWS_MAX, LOCAL_BYTES_MAX = 250_000, 16 << 20
"""Limits of the changes that the driver holds, and whose keys it sends to each executor.

They are a third of Spark's own limit for local rows (`spark.sql.execution.arrow.localRelationThreshold`).
"""
_READ_AT_ONCE = 4


class ChangeSource(Protocol):
    """Log of one table, or of all partitions of a partitioned table. Offsets are by place."""

    def earliest(self) -> dict[Any, int]:
        """Return the first offset that each place still has."""

    def latest(self) -> dict[Any, int]:
        """Return the visible log end (exclusive) of each place. The keys are all places that exist."""

    def state(self, spark: Any, end: Offsets) -> Any | None:
        """Return a DataFrame of a PK table's rows at `end`, with a column `_deleted` that is false.

        Return None for a log table, and when the log itself has to be read.
        """

    def changes(self, spark: Any, start: Offsets, end: Offsets) -> Any:
        """Return a DataFrame of the changes in `[start, end)`.

        For a log table these are its rows; for a PK table the last change of each key with a column `_deleted`.
        """


class TableChanges:
    """`ChangeSource` over the table client."""

    def __init__(
        self, connection: Any, bootstrap: Bootstrap, definition: StoredTable, *, system_columns: bool = False
    ) -> None:
        """`system_columns`: give rows the columns that only their lake table has, unless it cannot have them."""
        self._added = tuple(SYSTEM_FIELDS) if system_columns and has_system_columns(definition) else ()
        self._table = connection.table(str(definition.path))
        self._bootstrap = ConnectionSettings.make(bootstrap)
        self._definition = definition
        self._partitions: dict[UUID, Partition] = {}

    def earliest(self) -> dict[Any, int]:
        return self._offsets("earliest")

    def latest(self) -> dict[Any, int]:
        return self._offsets("latest")

    def _offsets(self, at: str) -> dict[Any, int]:
        if not self._definition.is_partitioned:
            return dict(self._table.offsets(at))
        before = {each.name: each for each in self._table.partitions()}
        found = self._table.partition_offsets(at)
        after = {each.name: each.table_id for each in self._table.partitions()}
        # A partition that was dropped or recreated during these calls is left to the next round.
        self._partitions |= {each.table_id: each for each in before.values()}
        return {
            PartitionBucket(name, before[name].table_id, bucket): offset
            for name, by_bucket in found.items()
            if name in before and after.get(name) == before[name].table_id
            for bucket, offset in by_bucket.items()
        }

    def state(self, spark: Any, end: Offsets) -> Any | None:
        """Read the state from the key-value store: a long changelog need not be read, and may have been truncated.

        A changelog without old images (WAL) cannot be undone back to `end`, so the log is read while it is whole. When
        it is not whole, the lake's first state is of a moment after `end`. The rounds from `end` on repeat changes that
        the lake already has, and readers of lake and log together see no difference.
        """
        from pyspark.sql import functions

        definition = self._definition
        if not definition.is_primary_key_table:
            return None
        wal = definition.settings.changelog_image is ChangelogImage.WAL
        if wal and not any(offset for place, offset in self.earliest().items() if place in end):
            return None
        columns = definition.schema.columns
        read = TableRead(self._bootstrap, definition, columns, "current", self._added)
        splits = [
            replace(split, partition=partition)
            for partition, ends in self.by_partition(end)
            for split in state_splits(ends)
        ]
        return splits_frame(spark, read, splits).withColumn(DELETED_COLUMN, functions.lit(False))

    def changes(self, spark: Any, start: Offsets, end: Offsets) -> Any:
        return splits_frame(spark, *self._read(start, end))

    def few(self, start: Offsets, end: Offsets) -> pa.Table | None:
        """Return the rows of `changes`; None above LOCAL_ROWS_MAX or LOCAL_BYTES_MAX.

        Rows that the driver has read spare Spark the jobs that a Python data source costs each time its frame is used.
        """
        if sum(offset - start.get(place, 0) for place, offset in end.items()) > LOCAL_ROWS_MAX:
            return None
        read, splits = self._read(start, end)
        with ThreadPoolExecutor(_READ_AT_ONCE) as pool:
            batches = [
                batch
                for found in pool.map(lambda split: [*read_split(read, split)], splits)
                for batch in found
            ]
        if sum(batch.nbytes for batch in batches) > LOCAL_BYTES_MAX:
            return None
        return pa.Table.from_batches(batches, read.arrow_schema())

    def _read(self, start: Offsets, end: Offsets) -> tuple[TableRead, list[Split]]:
        schema = self._definition.schema
        mode: ReadMode = "last" if self._definition.is_primary_key_table else "current"
        read = TableRead(self._bootstrap, self._definition, schema.columns, mode, self._added)
        starts = dict(self.by_partition(start))
        return read, [
            replace(split, partition=partition)
            for partition, ends in self.by_partition(end)
            for split in plan_splits(starts.get(partition, {}), ends)
        ]

    def by_partition(self, offsets: Offsets) -> list[tuple[Partition | None, dict[int, int]]]:
        """Group offsets by bucket: for the table (None), or for each of its partitions."""
        found: dict[Partition | None, dict[int, int]] = {}
        for place, offset in in_order(offsets):
            if isinstance(place, PartitionBucket):
                partition = self._partitions[place.table_id]
                found.setdefault(partition, {})[place.bucket] = offset
            else:
                found.setdefault(None, {})[place] = offset
        return list(found.items())


def with_state(
    state: Any | None, new: Collection[Any], source: ChangeSource, spark: Any, start: Offsets, end: Offsets
) -> Any:
    """Return the changes from `start` to `end`; for `new` places their `state` at the end, if there is one."""
    if state is None:
        return source.changes(spark, start, end)
    known = {place: offset for place, offset in end.items() if place not in new}
    if all(start[place] == offset for place, offset in known.items()):
        return state
    return state.unionByName(source.changes(spark, {place: start[place] for place in known}, known))
