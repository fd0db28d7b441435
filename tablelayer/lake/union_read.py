"""Union read: the lake's snapshot and the log's tail as one DataFrame.

Both sides are pinned when `union_read` is called: the snapshot with the offsets inside it, and the log's
end offsets. Every action on the DataFrame sees the same rows, however much is written or tiered meanwhile.

For a PK table the tail wins per key: lake rows whose key changed after the snapshot are dropped (an anti join
against the tail's keys), then the tail's living rows are added. Predicates reach both sides by Spark's own
rules and are safe: the keys of the anti join are not filtered by other columns.
"""

from __future__ import annotations

from typing import Any

from tablelayer.lake.adapter import LakeError
from tablelayer.lake.coordinator import ServerCoordinator
from tablelayer.lake.iceberg import IcebergTable
from tablelayer.lake.tier import TableChanges, catalog_properties
from tablelayer.model.table import TableDefinition, TablePath
from tablelayer.spark.splits import DELETED_COLUMN
from tablelayer.spark.worker import connection

LAKE_SUFFIX = "$lake"
BROADCAST_KEYS_MAX = 1_000_000
"""Up to so many keys every task gets all of them (some ten megabytes); beyond, both sides are sorted."""


def union_read(spark: Any, bootstrap: str, table: str, *, warehouse: str | None = None) -> Any:
    """A DataFrame of `table` ("db.t"): lake and log together, as of now; of "db.t$lake": the lake alone, as
    of now.

    `warehouse` overrides the server's. Raises LakeError when the table is not tiered (or, for `$lake`, not
    yet), TableError when it does not exist.
    """
    client = connection(bootstrap)
    path = TablePath.parse(table.removesuffix(LAKE_SUFFIX))
    definition = client.admin.describe_table(path)
    if definition.table_id is None:
        raise LakeError(f"{path} has no id")
    status = ServerCoordinator(client, "union read").describe(definition.table_id)
    lake = IcebergTable(spark, definition, catalog_properties(status, warehouse, path))
    state = lake.find_committed(status.snapshot_id)
    if table.endswith(LAKE_SUFFIX):
        return lake.read(state.head)
    source = TableChanges(client, bootstrap, definition)
    end = source.latest()
    tail = source.changes(spark, state.offsets, end)
    if state.head is None:
        return (
            tail.where(f"NOT {DELETED_COLUMN}").drop(DELETED_COLUMN)
            if definition.is_primary_key_table
            else tail
        )
    changes = sum(offset - state.offsets.get(bucket, 0) for bucket, offset in end.items())
    return merge_tail(lake.read(state.head), tail, definition, changes)


def merge_tail(lake: Any, tail: Any, definition: TableDefinition, changes: int) -> Any:
    """The lake's rows with the tail over them; `tail` as `ChangeSource.changes` gives it, of at most `changes`
    rows.
    """
    if not definition.is_primary_key_table:
        return lake.unionByName(tail)
    keys = list(definition.schema.primary_key)
    # Spark cannot guess the size of what Python makes, so it is told how to join.
    changed = tail.select(*keys).hint("broadcast" if changes <= BROADCAST_KEYS_MAX else "merge")
    untouched = lake.join(changed, keys, "left_anti")
    return untouched.unionByName(tail.where(f"NOT {DELETED_COLUMN}").drop(DELETED_COLUMN))
