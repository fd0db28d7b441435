"""Union read: the lake's snapshot and the log's tail as one DataFrame.

Both sides are pinned when `union_read` is called: the snapshot with the offsets inside it, and the log's end offsets.
Every action on the DataFrame sees the same rows, regardless of concurrent writes and tiering.

For a PK table the tail wins per key. Lake rows whose key changed after the snapshot are dropped (an anti join with the
tail's keys), then the tail's living rows are added. Spark pushes predicates to both sides by its own rules. That is
safe, because the keys of the anti join are not filtered by other columns.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from headrace.tablelayer.client.security.settings import Bootstrap, ConnectionSettings
from headrace.tablelayer.lake.adapter import (
    LakeError,
    LakeState,
    LakeTable,
    hidden_partitions,
    partition_condition,
)
from headrace.tablelayer.lake.catalogs import tiered_table
from headrace.tablelayer.lake.change_source import TableChanges, with_state
from headrace.tablelayer.lake.columns import in_lake
from headrace.tablelayer.lake.names import CHANGELOG_SUFFIX, LAKE_SUFFIX, METADATA_PREFIX
from headrace.tablelayer.model.lake.offsets import Offsets, PartitionBucket, in_order
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.spark.builder import table as open_builder
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
        if opened.state.head is None:
            return spark.createDataFrame([], spark_schema(in_lake(opened.definition, None).schema.columns))
        return opened.lake.read(opened.state.head, system_columns=True)
    definition, state, source = opened.definition, opened.state, opened.source
    end = source.latest()
    start = {place: state.offsets.get(place, 0) for place in end}
    new = {place: offset for place, offset in end.items() if place not in state.offsets}
    if new:
        earliest = source.earliest()
        start |= {place: earliest.get(place, 0) for place in new}
    tail = None if new else source.local(spark, start, end)
    if tail is None:
        tail = with_state(source.state(spark, new) if new else None, new, source, spark, start, end)
    if state.head is None:
        return _living(tail) if definition.is_primary_key_table else tail
    changes = sum(offset - start[place] for place, offset in end.items())
    lake = _without(opened.lake.read(state.head), definition, hidden_partitions(state, end))
    return merge_tail(lake, tail, definition, changes)


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
    hidden = hidden_partitions(state, present)
    lake = _without(opened.lake.read(state.head), opened.definition, hidden)
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


@dataclass(frozen=True, slots=True)
class _Opened:
    definition: StoredTable
    lake: LakeTable
    state: LakeState
    source: TableChanges


def _open(spark: Any, bootstrap: Bootstrap, table: str, warehouse: str | None) -> _Opened:
    client = connection(bootstrap)
    tiered = tiered_table(client, table, warehouse)
    definition = tiered.definition
    lake = tiered.catalog.table(spark, definition)
    state = replace(lake.find_committed(tiered.known_snapshot), dropped=tiered.dropped)
    return _Opened(definition, lake, state, TableChanges(client, bootstrap, definition))


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
