"""Union read: the lake's snapshot and the log's tail as one DataFrame.

Both sides are pinned when `union_read` is called: the snapshot with the offsets inside it, and the log's end offsets.
Every action on the DataFrame sees the same rows, regardless of concurrent writes and tiering.

For a PK table the tail wins per key. Lake rows whose key changed after the snapshot are dropped, then the tail's living
rows are added. The driver reads a short tail, and its keys are a filter on the scan of the lake. Tasks read a long
tail, and its keys are those of an anti join. Spark pushes predicates to both sides by its own rules. That is safe,
because the changed keys are not filtered by other columns.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.client.security.settings import Bootstrap, ConnectionSettings
from headrace.tablelayer.lake.adapter import (
    LakeError,
    LakeState,
    LakeTable,
    hidden_partitions,
    partition_condition,
)
from headrace.tablelayer.lake.catalogs import TieredTable, tiered_table
from headrace.tablelayer.lake.change_source import TableChanges, with_state
from headrace.tablelayer.lake.columns import in_lake
from headrace.tablelayer.lake.coordinator import ServerCoordinator
from headrace.tablelayer.lake.names import CHANGELOG_SUFFIX, LAKE_SUFFIX, METADATA_PREFIX
from headrace.tablelayer.model.lake.offsets import Offsets, PartitionBucket, in_order
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.spark.builder import table as open_builder
from headrace.tablelayer.spark.local_rows import has_local_rows, is_filter_key, local_rows, without_keys
from headrace.tablelayer.spark.options import server_options
from headrace.tablelayer.spark.sessions import is_remote
from headrace.tablelayer.spark.splits import DELETED_COLUMN
from headrace.tablelayer.spark.types import spark_schema
from headrace.tablelayer.spark.worker import connection

BROADCAST_KEYS_MAX = 1_000_000
"""Maximum number of keys that are sent to every task (some ten megabytes); above it, both sides are sorted."""


def union_read(spark: Any, bootstrap: Bootstrap, table: str, *, warehouse: str | None = None) -> Any:
    """Return a DataFrame of `table` ("db.t"): lake and log together, as of now.

    Other views of a table:

    - "db.t$lake": the lake alone, as of now, without rows before the first round;
    - "db.t$lake$snapshots": a row per lake snapshot with its tiered offsets, see `LakeTable.snapshots`;
    - "db.t$lake$files" and others: the lake's own tables, which an error for an unknown one lists;
    - "db.t$changelog": every change that is still in the log, with `_change_type` and the other metadata columns.

    `warehouse` overrides the server's. Raises LakeError when the table is not tiered, and TableError when it does not
    exist.
    """
    if table.endswith(CHANGELOG_SUFFIX):
        return open_builder(spark, table.removesuffix(CHANGELOG_SUFFIX), bootstrap).changelog().to_df()
    if is_remote(spark):
        return _by_data_source(spark, bootstrap, table, warehouse)
    name, is_metadata, metadata = table.partition(METADATA_PREFIX)
    if is_metadata and metadata != "snapshots":
        tiered = tiered_table(connection(bootstrap), name, warehouse)
        return spark.createDataFrame(tiered.catalog.reader(tiered.definition).metadata(metadata))
    opened = _open(spark, bootstrap, name.removesuffix(LAKE_SUFFIX), warehouse)
    if is_metadata:
        return opened.lake.snapshots()
    if table.endswith(LAKE_SUFFIX):
        head = opened.state.head
        if head is None:
            return spark.createDataFrame([], spark_schema(in_lake(opened.definition, None).schema.columns))
        return opened.lake.read(head, system_columns=True)
    return _united(spark, opened)


def _united(spark: Any, opened: _Opened) -> Any:
    """Return lake and log together. A thread reads the log while Spark loads the lake's table."""
    definition, source = opened.definition, opened.source
    end, known = source.latest(), opened.known_offsets
    with ThreadPoolExecutor(1) as ahead:
        early = None
        if end.keys() <= known.keys():
            early = ahead.submit(source.few, {place: known[place] for place in end}, end)
        state = opened.state
        lake = None if state.head is None else opened.lake.read(state.head)
    if early is not None and all(state.offsets.get(place) == known[place] for place in end):
        few = early.result()
    else:  # a round has ended since the server was asked, or is not reported yet
        end, few = source.latest(), None
    new = {place: offset for place, offset in end.items() if place not in state.offsets}
    start = {place: state.offsets.get(place, 0) for place in end}
    if lake is not None:
        lake = _without(lake, definition, opened.hidden(end))
    if few is None and not new:
        few = source.few(start, end)
    if few is not None:
        return overlaid(spark, lake, few, definition)
    if new:
        earliest = source.earliest()
        start |= {place: earliest.get(place, 0) for place in new}
    tail = with_state(source.state(spark, new) if new else None, new, source, spark, start, end)
    if lake is None:
        return _living(tail) if definition.is_primary_key_table else tail
    return merge_tail(lake, tail, definition, sum(offset - start[place] for place, offset in end.items()))


def _by_data_source(spark: Any, bootstrap: Bootstrap, table: str, warehouse: str | None) -> Any:
    """Return the same rows over Spark Connect, whose clients cannot open a lake's catalog in the session."""
    if warehouse is not None:
        raise LakeError("over Spark Connect the server names the warehouse: leave it out")
    if "$" not in table:
        return open_builder(spark, table, bootstrap).to_df()
    server = server_options(ConnectionSettings.make(bootstrap))
    return spark.read.format("headrace").options(**server).load(table)


def lake_then_stream(
    spark: Any, bootstrap: Bootstrap, table: str, *, warehouse: str | None = None, **options: str
) -> tuple[Any, Any]:
    """Return (the lake's rows at a snapshot, the stream of all later changes), without gap or overlap.

    The first is an ordinary DataFrame; the second is a streaming DataFrame of the `headrace` source with its `options`
    (the default `mode` of a PK table is "changelog"). Load the first, then start the second.
    """
    if is_remote(spark):
        raise LakeError(
            'lake_then_stream does not work over Spark Connect: readStream.format("headrace") reads the rows of a log'
            " table's lake and then its log, and those of a primary-key table's state and then its changes"
        )
    opened = _open(spark, bootstrap, table, warehouse)
    state = opened.state
    if state.head is None or state.committed is None:
        raise LakeError(f"{table} is not in the lake yet: run `headrace tier --once` first")
    if opened.definition.is_primary_key_table:
        options.setdefault("mode", "changelog")
    server = server_options(ConnectionSettings.make(bootstrap))
    reader = spark.readStream.format("headrace").options(**server)
    reader = reader.option("table", table).options(**options)
    present = opened.source.latest() if opened.definition.is_partitioned else state.offsets
    starting = json.dumps(_stream_start(state.offsets, present))
    lake = _without(opened.lake.read(state.head), opened.definition, opened.hidden(present))
    return lake, reader.option("startingOffsets", starting).load()


def _stream_start(tiered: Offsets, present: Offsets) -> dict[str, Any]:
    """Return `startingOffsets` after the tiered offsets, by bucket, or by partition and bucket.

    A partition that was dropped or recreated is left out: its present rows are read from their beginning.
    """
    start: dict[str, Any] = {}
    for place, offset in in_order(tiered):
        if not isinstance(place, PartitionBucket):
            start[str(place)] = offset
        elif place in present:
            start.setdefault(place.partition, {})[str(place.bucket)] = offset
    return start


@dataclass(frozen=True)
class _Opened:
    """`known_offsets` are the tiered offsets as the server knows them, which may be older than the lake's."""

    definition: StoredTable
    lake: LakeTable
    source: TableChanges
    tiered: TieredTable
    connection: Any

    @property
    def known_offsets(self) -> Offsets:
        return self.tiered.known_offsets

    @cached_property
    def state(self) -> LakeState:
        return self.lake.find_committed(self.tiered.known_snapshot)

    def hidden(self, existing: Offsets) -> list[str]:
        """Return `hidden_partitions` of the lake.

        A client's drop is recorded before the partition is deleted. The record is read after the list of partitions,
        so that no successor is read together with the rows of the dropped one.
        """
        if not self.definition.is_partitioned:
            return []
        dropped = ServerCoordinator(self.connection, "union read").describe(self.definition.table_id).dropped
        return hidden_partitions(replace(self.state, dropped=dropped), existing)


def _open(spark: Any, bootstrap: Bootstrap, table: str, warehouse: str | None) -> _Opened:
    client = connection(bootstrap)
    tiered = tiered_table(client, table, warehouse)
    lake = tiered.catalog.table(spark, tiered.definition)
    source = TableChanges(client, bootstrap, tiered.definition)
    return _Opened(tiered.definition, lake, source, tiered, client)


def _without(lake: Any, definition: StoredTable, hidden: list[str]) -> Any:
    """Return the lake's rows without those of the partitions `hidden`."""
    return lake.where(f"NOT {partition_condition(definition, hidden)}") if hidden else lake


def _living(rows: Any) -> Any:
    return rows.where(f"NOT {DELETED_COLUMN}").drop(DELETED_COLUMN)


def merge_tail(lake: Any, tail: Any, definition: StoredTable, changes: int) -> Any:
    """Return the lake's rows overlaid with the tail.

    `tail` is from `ChangeSource.changes` and has at most `changes` rows.
    """
    if not definition.is_primary_key_table:
        return lake.unionByName(tail)
    keys = list(definition.schema.primary_key)
    # Spark cannot estimate the size of Python's rows, so it needs a join hint.
    changed = tail.select(*[f"`{key}`" for key in keys]).hint(
        "broadcast" if changes <= BROADCAST_KEYS_MAX else "merge"
    )
    untouched = lake.join(changed, keys, "left_anti")
    return untouched.unionByName(_living(tail))


def overlaid(spark: Any, lake: Any | None, changes: pa.Table, definition: StoredTable) -> Any:
    """Return the lake's rows overlaid with changes that the driver has read, see `TableChanges.few`.

    `lake` None: it has no rows.
    """
    schema = definition.schema
    is_fast = has_local_rows(spark)

    def frame(rows: pa.Table, columns: Sequence[Column]) -> Any:
        if is_fast:
            return local_rows(spark, f"log of {definition.path}", rows, spark_schema(columns))
        return spark.createDataFrame(rows, spark_schema(columns))

    if not definition.is_primary_key_table:
        tail = frame(changes, schema.columns)
        return tail if lake is None else lake.unionByName(tail)
    living = changes.filter(pc.invert(changes.column(DELETED_COLUMN))).drop_columns([DELETED_COLUMN])
    tail = frame(living, schema.columns)
    if lake is None:
        return tail
    if changes.num_rows:
        keys = schema.select(list(schema.primary_key))
        changed = changes.select(list(schema.primary_key))
        if is_fast and is_filter_key(keys):
            lake = without_keys(lake, changed, spark_schema(keys))
        else:
            lake = lake.join(frame(changed, keys).hint("broadcast"), list(schema.primary_key), "left_anti")
    return lake.unionByName(tail)
