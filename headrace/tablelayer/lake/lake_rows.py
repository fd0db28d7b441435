"""`db.t$lake` and its metadata tables in `format("headrace")`: the lake alone, in Spark's Python source.

The snapshot is pinned when the frame is first used: the newest, the one that `snapshot` names, or the newest at
`endingTimestamp`. The rows come through one task, without Spark's own readers of Iceberg and Paimon. To read all of a
large lake table, `tablelayer.lake.union_read.union_read` is faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headrace.tablelayer.lake.adapter import LakeState
from headrace.tablelayer.lake.catalogs import TieredTable, tiered_table
from headrace.tablelayer.lake.reader import LakeReader
from headrace.tablelayer.lake.union_scan import UnionScan, past_snapshot
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.filters.conditions import arrow_expression
from headrace.tablelayer.spark.options import ReadOptions
from headrace.tablelayer.spark.planning import plan_read
from headrace.tablelayer.spark.types import conform, spark_schema
from headrace.tablelayer.spark.worker import connection


def view_schema(options: ReadOptions) -> Any:
    """Return the `StructType` of the selected columns. Raises TableError, LakeError."""
    tiered = _tiered(options)
    if options.metadata:
        schema = _metadata(tiered, options).schema
        return from_arrow_schema(_chosen(schema, options.columns or tuple(schema.names)))
    shape = tiered.catalog.reader(tiered.definition).shape
    read = plan_read(options, shape, list(options.columns or shape.schema.names))
    return spark_schema(read.columns, read.metadata)


class _Pinned(InputPartition):
    """State of the lake as looked up on the driver; None for a metadata table."""

    def __init__(self, state: LakeState | None) -> None:
        super().__init__(0)
        self.state = state


class ViewReader(DataSourceReader):
    """Reader that looks the snapshot up on the driver and reads it in one task."""

    def __init__(self, options: ReadOptions, names: list[str]) -> None:
        self.options = options
        self.names = names

    def partitions(self) -> list[InputPartition]:
        if self.options.metadata:
            return [_Pinned(None)]
        tiered = _tiered(self.options)
        state = tiered.catalog.reader(tiered.definition).state(tiered.known_snapshot)
        wanted, end = self.options.snapshot, self.options.end
        if wanted is not None or isinstance(end, int):
            lake = tiered.catalog.reader(tiered.definition)
            head = past_snapshot(lake, tiered.definition, wanted, end if isinstance(end, int) else None)
            state = replace(state, head=head)
        return [_Pinned(state)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        tiered = _tiered(self.options)
        lake = tiered.catalog.reader(tiered.definition)
        left = self.options.limit
        assert isinstance(partition, _Pinned)
        for batch in self._batches(tiered, lake, partition.state):
            given = batch if left < 0 else batch.slice(0, left)
            left -= given.num_rows if left >= 0 else 0
            yield given
            if left == 0:
                return

    def _batches(
        self, tiered: TieredTable, lake: LakeReader, state: LakeState | None
    ) -> Iterator[pa.RecordBatch]:
        if state is None:
            yield from _metadata(tiered, self.options).select(self.names).combine_chunks().to_batches()
            return
        read = plan_read(self.options, lake.shape, self.names)
        predicate, wanted = self.options.predicate, None
        if predicate is not None:
            wanted = arrow_expression(predicate, lake.shape.schema.arrow())
        client = connection(self.options.bootstrap)
        scan = UnionScan(client, lake.shape, lake, state, None, self.names, wanted, predicate)
        for batch in scan:
            yield conform(batch, read.arrow_schema())


def _tiered(options: ReadOptions) -> TieredTable:
    return tiered_table(connection(options.bootstrap), options.table, None)


def _metadata(tiered: TieredTable, options: ReadOptions) -> pa.Table:
    """Return a metadata table in the Arrow types that Spark can read: its times have microseconds."""
    found = tiered.catalog.reader(tiered.definition).metadata(options.metadata)
    return found.cast(to_arrow_schema(from_arrow_schema(found.schema)))


def _chosen(schema: pa.Schema, names: Any) -> pa.Schema:
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise TableError(
            TableErrorCode.INVALID_PROJECTION,
            f"there is no column '{missing[0]}'; columns: {', '.join(schema.names)}",
        )
    return pa.schema([schema.field(name) for name in names])
