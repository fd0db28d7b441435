"""Delta join: two PK tables joined as they change, without state in Spark.

    delta_join(spark, "db.orders", "db.customers", on={"customer": "id"}, select={"name": "customer_name"})
    delta_join(..., streaming=True)

Both tables are co-bucketed on the join key, so that all rows of a key are in one group of buckets of either table. A
task takes the changes of one group of both. For every join key that changed on either side it looks up the present rows
of both tables and emits the pairs in which one row changed: `+U`, or `-D` if a row was deleted. A deleted row is known
from its own side's changelog, so a pair is retracted even if both of its rows were deleted at once. The looked-up rows
are never older than the micro-batch. If they are newer, the change is emitted again with its own batch. So the stream,
applied by key, gives the join of the two tables, and a pair may be emitted twice.

`how="left"` keeps left rows without a match, with nulls. If the right table's primary key is the join key, the result
has one row per left row, whose key is the left primary key, and `-D` means that the left row was deleted. Otherwise a
row without a match has null in the right table's part of the key. It is retracted, by a `-D` with those nulls, whenever
there is a match, even if it was never emitted.

Batch: the join of the present tables (a scan of the left side, lookups in the right one). A stream begins with it.

Requirements (the error names the one that is not met): the join columns are the bucket key of both tables and, if the
tables are partitioned, the partition columns of both. They have the same order and types, and are hashed alike.
Together they are the primary key or a prefix of it. The result's key consists of both primary keys. The result has all
columns of the left table, the right table's `select` columns, and the right primary key if it is not among them. `-D`
rows have only the keys.

New partitions enter the stream as in `tablelayer.spark.stream`. A dropped partition ends: the pairs of its rows are not
retracted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from headrace.tablelayer.client.names import pairs_of_names, several
from headrace.tablelayer.client.security.settings import Bootstrap, ConnectionSettings
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.spark.builder import bootstrap_of
from headrace.tablelayer.spark.joined_pairs import DeltaJoin, How, Side, join_key, joined_changes, joined_now
from headrace.tablelayer.spark.options import ReadOptions, server_of, server_options
from headrace.tablelayer.spark.pythons import register_source
from headrace.tablelayer.spark.splits import Split
from headrace.tablelayer.spark.stream import stream_reader
from headrace.tablelayer.spark.types import (
    CHANGE_TYPE_COLUMN,
    spark_schema,
)
from headrace.tablelayer.spark.worker import connection
from headrace.tablelayer.spark.worker import table as open_table

_FORMAT = "headrace-delta-join"


def delta_join(
    spark: Any,
    left: str,
    right: str,
    *,
    on: Mapping[str, str] | Sequence[str] | str,
    select: Sequence[str] | Mapping[str, str] | None = None,
    how: How = "inner",
    streaming: bool = False,
    bootstrap: Bootstrap | None = None,
    max_offsets_per_trigger: int | None = None,
) -> Any:
    """Return the join of PK tables `left` and `right` ("db.t") on `on`; see the module.

    `on` is {left column: right column}, or the names that both have. `select`: the right table's columns to add, by
    default all except the join columns; a mapping gives new names. A stream also has `_change_type` (+U, -D). Raises
    TableError for tables that cannot be joined in this way.
    """
    if how not in ("inner", "left"):
        raise ValueError(f"how={how!r}: a delta join must be 'inner' or 'left'")
    if max_offsets_per_trigger is not None and max_offsets_per_trigger < 1:
        raise ValueError(
            f"max_offsets_per_trigger={max_offsets_per_trigger}: give at least 1, or None for no limit"
        )
    server = bootstrap_of(spark, bootstrap)
    spec = {
        "how": how,
        "left": left,
        "right": right,
        "on": pairs_of_names("on", on),
        "select": None
        if select is None
        else dict(select)
        if isinstance(select, Mapping)
        else {n: n for n in several("select", select)},
    }
    plan_join(server, spec)
    register_source(spark, DeltaJoinSource)
    reader = (spark.readStream if streaming else spark.read).format(_FORMAT).options(**server_options(server))
    reader = reader.option("spec", json.dumps(spec)).option("changes", str(streaming).lower())
    if max_offsets_per_trigger is not None:
        reader = reader.option("cap", max_offsets_per_trigger)
    return reader.load()


def plan_join(bootstrap: Bootstrap, spec: Mapping[str, Any]) -> DeltaJoin:
    """Check that the tables can be joined and return the join. Raises TableError."""
    admin = connection(bootstrap).admin
    left, right = admin.describe_table(spec["left"]), admin.describe_table(spec["right"])
    return check_join(bootstrap, left, right, spec["on"], spec["select"], spec["how"])


def check_join(
    bootstrap: Bootstrap,
    left: StoredTable,
    right: StoredTable,
    on: Mapping[str, str],
    select: Mapping[str, str] | None,
    how: How = "inner",
) -> DeltaJoin:
    """Check the join of two known tables; see `plan_join`."""
    for side in (left, right):
        if not side.is_primary_key_table:
            raise TableError(
                TableErrorCode.NOT_A_PRIMARY_KEY_TABLE,
                f"{side.path} is a log table: a delta join needs PK tables",
            )
    keys = join_key(left), join_key(right)
    pairs = [(column, on.get(column)) for column in keys[0]]
    if [name for _, name in pairs] != list(keys[1]) or len(on) != len(pairs):
        raise TableError(
            TableErrorCode.INVALID_KEY,
            "a delta join needs the bucket keys (and partition columns) of both tables as join columns, in the same"
            f" order: {left.path} has ({', '.join(keys[0])}), {right.path} ({', '.join(keys[1])}), `on` is {dict(on)}",
        )
    if [on[name] for name in left.partition_keys] != list(right.partition_keys) or [
        on[name] for name in left.bucket_key
    ] != list(right.bucket_key):
        raise TableError(
            TableErrorCode.INVALID_KEY,
            f"{left.path} and {right.path} distribute their rows differently: the join columns must be partition"
            f" columns of both (({', '.join(left.partition_keys)}) and ({', '.join(right.partition_keys)})) or bucket"
            f" columns of both (({', '.join(left.bucket_key)}) and ({', '.join(right.bucket_key)}))",
        )
    for side, key in zip((left, right), keys, strict=True):
        if key != side.schema.primary_key and not side.allows_prefix_lookup:
            raise TableError(
                TableErrorCode.INVALID_KEY,
                f"{side.path} cannot be looked up by its bucket key ({', '.join(side.bucket_key)}): it is not a prefix"
                f" of its primary key ({', '.join(side.schema.primary_key)})",
            )
    for ours, theirs in pairs:
        types = left.schema.column(ours).type, right.schema.column(str(theirs)).type
        if types[0] != types[1]:
            raise TableError(
                TableErrorCode.INVALID_KEY,
                f"join columns '{ours}' ({types[0]}) and '{theirs}' ({types[1]}) differ in type",
            )
    if left.bucket_format != right.bucket_format:
        raise TableError(
            TableErrorCode.INVALID_KEY,
            f"{left.path} and {right.path} assign buckets differently: give both the same lake format",
        )
    schema = right.schema
    joined = set(keys[1])
    names = dict(select) if select is not None else {n: n for n in schema.names if n not in joined}
    schema.select(list(names))
    names = {name: name for name in schema.primary_key if name not in joined and name not in names} | names
    taken = [name for name in names.values() if name in left.schema.names]
    if taken or len(set(names.values())) < len(names):
        raise TableError(
            TableErrorCode.INVALID_PROJECTION,
            f"column '{(taken or ['?'])[0]}' would appear twice: give the right table's columns other names (select)",
        )
    return DeltaJoin(bootstrap, left, right, names, how)


def groups_of(join: DeltaJoin) -> int:
    """Return the number of groups: bucket i of either side, in any partition, belongs to group i modulo this number.

    For partitioned tables this asks the server, because partitions may have different bucket counts.
    """
    counts = []
    for side in (join.left, join.right):
        counts.append(side.bucket_count)
        if side.is_partitioned:
            counts += [each.bucket_count for each in open_table(join.bootstrap, side).partitions()]
    return math.gcd(*counts)


class GroupPartition(InputPartition):
    """Input of one task: splits of both sides' logs (None: all present rows), of one group of `groups`."""

    def __init__(
        self, group: int, groups: int, left: Sequence[Split] | None, right: Sequence[Split] | None
    ) -> None:
        super().__init__(group)
        self.group = group
        self.groups = groups
        self.left = left
        self.right = right


class DeltaJoinSource(DataSource):
    """Data source created by `delta_join`; its options are internal."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def _join(self) -> DeltaJoin:
        return plan_join(server_of(self.options), json.loads(self.options["spec"]))

    def schema(self) -> Any:
        changes = [CHANGE_TYPE_COLUMN] if self.options["changes"] == "true" else []
        return spark_schema(self._join().columns(), changes)

    def reader(self, schema: Any) -> DeltaJoinReader:
        return DeltaJoinReader(self._join())

    def streamReader(self, schema: Any) -> DeltaJoinStreamReader:  # noqa: N802 - Spark's name
        cap = self.options.get("cap")
        return DeltaJoinStreamReader(self._join(), None if cap is None else int(cap))


class DeltaJoinReader(DataSourceReader):
    def __init__(self, join: DeltaJoin) -> None:
        self.join = join

    def partitions(self) -> list[GroupPartition]:
        return everything(self.join)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_group(self.join, partition, changes=False)


def everything(join: DeltaJoin) -> list[GroupPartition]:
    """Return the partitions that read all present rows of both tables."""
    groups = groups_of(join)
    return [GroupPartition(group, groups, None, None) for group in range(groups)]


class DeltaJoinStreamReader(DataSourceStreamReader):
    """Two streams side by side, whose positions share a checkpoint.

    `tablelayer.spark.stream` decides for each how far a micro-batch goes and what it contains.
    """

    def __init__(self, join: DeltaJoin, cap: int | None) -> None:
        self.join = join
        server = server_options(ConnectionSettings.make(join.bootstrap))
        options = {**server, "mode": "upsert", "startingOffsets": "full"}
        if cap is not None:
            options["maxOffsetsPerTrigger"] = str(cap)
        self._sides = {
            name: stream_reader(
                ReadOptions.parse({**options, "table": str(side.path)}), list(side.schema.primary_key)
            )
            for name, side in (("left", join.left), ("right", join.right))
        }

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {name: side.initialOffset() for name, side in self._sides.items()}

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        return {
            name: side.latestOffset(None if start is None else start[name], limit)
            for name, side in self._sides.items()
        }

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[GroupPartition]:
        splits = {
            name: [
                each.split
                for each in side.partitions(start[name], end[name])
                if each.split.state or each.split.end_offset > each.split.start_offset
            ]
            for name, side in self._sides.items()
        }
        if start["left"].get("initial"):
            return everything(self.join)
        groups = groups_of(self.join)
        return [
            GroupPartition(
                group,
                groups,
                [split for split in splits["left"] if split.bucket % groups == group],
                [split for split in splits["right"] if split.bucket % groups == group],
            )
            for group in range(groups)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_group(self.join, partition, changes=True)


def read_group(join: DeltaJoin, partition: InputPartition, *, changes: bool) -> Iterator[pa.RecordBatch]:
    """Read a partition, on the worker."""
    assert isinstance(partition, GroupPartition)
    right_columns = list(dict.fromkeys([*join.right.schema.primary_key, *join.names]))
    left = Side(open_table(join.bootstrap, join.left), join.left, join.left.schema.names)
    right = Side(open_table(join.bootstrap, join.right), join.right, right_columns)
    if partition.left is None or partition.right is None:
        for part in left.table.partitions() if join.left.is_partitioned else [None]:
            count = join.left.bucket_count if part is None else part.bucket_count
            for bucket in range(partition.group, count, partition.groups):
                for piece in _state(
                    join, left, Split(bucket, 0, 0, state=True, partition=part), left.columns
                ):
                    rows = pa.Table.from_batches([piece])
                    yield from joined_now(join, left, right, rows, changes=changes)
        return
    yield from joined_changes(
        join, left, right, _touched(join, left, partition.left), _touched(join, right, partition.right)
    )


def _state(join: DeltaJoin, side: Side, split: Split, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the present rows of a bucket."""
    with (
        _unless_dropped(split),
        closing(_table_of(join, side, split).snapshot(split.bucket, columns)) as pieces,
    ):
        for piece, _ in pieces:
            if piece.num_rows:
                yield piece


def _table_of(join: DeltaJoin, side: Side, split: Split) -> Any:
    """Return the table, or the split's partition."""
    part = split.partition
    if part is None:
        return side.table
    return open_table(
        join.bootstrap, side.definition.of_partition(part.name, part.table_id, part.bucket_count)
    )


@contextmanager
def _unless_dropped(split: Split) -> Iterator[None]:
    """Stop reading a partition that was dropped, R18.3."""
    try:
        yield
    except TableError as error:
        if split.partition is None or error.code is not TableErrorCode.TABLE_NOT_FOUND:
            raise


def _touched(join: DeltaJoin, side: Side, splits: Sequence[Split]) -> pa.Table:
    """Return the distinct primary keys that changed in these splits, or are in splits that read a state."""
    schema = pa.schema([side.definition.schema.column(name).field() for name in side.key])
    found = [batch for split in splits for batch in _distinct(_keys(join, side, split))]
    return pa.Table.from_batches(_distinct(found), schema=schema)


def _keys(join: DeltaJoin, side: Side, split: Split) -> Iterator[pa.RecordBatch]:
    if split.state:
        yield from _state(join, side, split, side.key)
        return
    with (
        _unless_dropped(split),
        _table_of(join, side, split).scan(
            columns=side.key,
            start={split.bucket: split.start_offset},
            until={split.bucket: split.end_offset},
            buckets=[split.bucket],
        ) as scan,
    ):
        for part in scan:
            yield part.batch


def _distinct(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    listed = list(batches)
    if not sum(batch.num_rows for batch in listed):
        return []
    found = pa.Table.from_batches(listed)
    names = found.column_names
    distinct = found.group_by(names, use_threads=False).aggregate([]).combine_chunks()
    return [
        pa.RecordBatch.from_arrays([_one(c) for c in distinct.columns], schema=found.schema) for _ in (0,)
    ]


def _one(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
