"""Delta join: two PK tables joined as they change, without state in Spark.

    delta_join(spark, "db.orders", "db.customers", on={"customer": "id"}, select={"name": "customer_name"})
    delta_join(..., streaming=True)

Both tables are co-bucketed on the join key, so that all rows of a key are in one group of buckets of either; a task
takes the changes of one group of both. For every join key that changed on either side it looks up what both tables
have now, and gives out the pairs in which one row has changed: `+U`, or `-D` if one of them is gone. A deleted
row is known from its own side's changelog, so a pair is retracted even if both of its rows went at once. What is
looked up is never older than the micro-batch; if it is newer, the change comes once more with its own batch. So the
stream, applied by key, gives the inner join of the two tables, and a pair may be told twice.

Batch: the inner join as the tables are now (a scan of the left side, lookups in the right one). A stream begins so.

Needed of the tables (else an error says which is missing): the join columns are the bucket key of both, in the same
order and of the same types, hashed alike; that is, the primary key or a prefix of it. The result's key are both
primary keys; it has all columns of the left table, those of `select` of the right one, and where they are not
there yet, the right one's primary key. `-D` rows have the keys alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.schema import Column
from tablelayer.model.table import TableDefinition
from tablelayer.spark.builder import bootstrap_of
from tablelayer.spark.positions import Position, admit
from tablelayer.spark.splits import BATCH_ROWS, KeySet
from tablelayer.spark.types import (
    CHANGE_TYPE_COLUMN,
    conform,
    spark_arrow_schema,
    spark_schema,
)
from tablelayer.spark.worker import connection
from tablelayer.spark.worker import table as open_table

KEYS_AT_ONCE = 4096
_FORMAT = "headrace-delta-join"


@dataclass(frozen=True, slots=True)
class DeltaJoin:
    """Two tables and what is given out of them; `right` maps the right table's columns to their names."""

    bootstrap: str
    left: TableDefinition
    right: TableDefinition
    names: Mapping[str, str]

    @property
    def groups(self) -> int:
        """Bucket i of either side belongs to group i modulo this number, whichever rows it has."""
        return math.gcd(self.left.bucket_count, self.right.bucket_count)

    def columns(self) -> list[Column]:
        """The result's columns. Those that a retraction leaves empty are nullable."""
        keys = {*self.left.schema.primary_key}
        ours = [replace(c, nullable=c.name not in keys) for c in self.left.schema.columns]
        theirs = self.right.schema
        return ours + [
            replace(theirs.column(name), name=new, nullable=name not in theirs.primary_key)
            for name, new in self.names.items()
        ]

    def arrow_schema(self, *, changes: bool) -> pa.Schema:
        return spark_arrow_schema(self.columns(), [CHANGE_TYPE_COLUMN] if changes else [])


def delta_join(
    spark: Any,
    left: str,
    right: str,
    *,
    on: Mapping[str, str],
    select: Sequence[str] | Mapping[str, str] | None = None,
    streaming: bool = False,
    bootstrap: str | None = None,
    max_offsets_per_trigger: int | None = None,
) -> Any:
    """The inner join of PK tables `left` and `right` ("db.t") on `on`, {left column: right column}; see the module.

    `select`: the right table's columns to add, all but the join columns by default; a mapping gives new names.
    A stream has `_change_type` (+U, -D) as well. Raises TableError for tables that cannot be joined so.
    """
    server = bootstrap_of(spark, bootstrap)
    spec = {
        "left": left,
        "right": right,
        "on": dict(on),
        "select": None
        if select is None
        else dict(select)
        if isinstance(select, Mapping)
        else {n: n for n in select},
    }
    plan_join(server, spec)
    spark.dataSource.register(DeltaJoinSource)
    reader = (spark.readStream if streaming else spark.read).format(_FORMAT).option("bootstrap", server)
    reader = reader.option("spec", json.dumps(spec)).option("changes", str(streaming).lower())
    if max_offsets_per_trigger is not None:
        reader = reader.option("cap", max_offsets_per_trigger)
    return reader.load()


def plan_join(bootstrap: str, spec: Mapping[str, Any]) -> DeltaJoin:
    """Check that the tables can be joined so. Raises TableError."""
    admin = connection(bootstrap).admin
    left, right = admin.describe_table(spec["left"]), admin.describe_table(spec["right"])
    for side in (left, right):
        if side.is_partitioned:
            raise TableError(
                TableErrorCode.PARTITION_NEEDED,
                f"{side.path} is partitioned: a delta join is of tables without partitions, or of one partition each",
            )
    return check_join(bootstrap, left, right, spec["on"], spec["select"])


def check_join(
    bootstrap: str,
    left: TableDefinition,
    right: TableDefinition,
    on: Mapping[str, str],
    select: Mapping[str, str] | None,
) -> DeltaJoin:
    """As `plan_join`, of tables that are known."""
    for side in (left, right):
        if not side.is_primary_key_table:
            raise TableError(
                TableErrorCode.NOT_A_PRIMARY_KEY_TABLE,
                f"{side.path} is a log table: a delta join needs PK tables",
            )
    pairs = [(column, on.get(column)) for column in left.bucket_key]
    if [name for _, name in pairs] != list(right.bucket_key) or len(on) != len(pairs):
        raise TableError(
            TableErrorCode.INVALID_KEY,
            f"a delta join needs the bucket keys of both tables as join columns, in the same order: {left.path} has"
            f" ({', '.join(left.bucket_key)}), {right.path} ({', '.join(right.bucket_key)}), `on` is {dict(on)}",
        )
    for side in (left, right):
        if side.bucket_key != side.schema.primary_key and not side.allows_prefix_lookup:
            raise TableError(
                TableErrorCode.INVALID_KEY,
                f"{side.path} cannot be looked up by its bucket key ({', '.join(side.bucket_key)}): it is no prefix"
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
            f"{left.path} and {right.path} assign buckets differently: give both one lake format",
        )
    schema = right.schema
    joined = set(right.bucket_key)
    names = dict(select) if select is not None else {n: n for n in schema.names if n not in joined}
    schema.select(list(names))
    names = {name: name for name in schema.primary_key if name not in joined and name not in names} | names
    taken = [name for name in names.values() if name in left.schema.names]
    if taken or len(set(names.values())) < len(names):
        raise TableError(
            TableErrorCode.INVALID_PROJECTION,
            f"column '{(taken or ['?'])[0]}' would be there twice: give the right table's columns other names (select)",
        )
    return DeltaJoin(bootstrap, left, right, names)


# -- the worker's side -------------------------------------------------------------------------------------


class Side:
    """One table of the join: lookups by join key."""

    def __init__(self, table: Any, definition: TableDefinition, columns: Sequence[str]) -> None:
        self.table = table
        self.definition = definition
        self.columns = list(columns)
        self.key = list(definition.schema.primary_key)
        self.join_key = list(definition.bucket_key)

    def now(self, keys: pa.Table) -> tuple[Any, pa.Table]:
        """The rows that have these join keys now, and which key each has (int64, ascending)."""
        keys = keys.rename_columns(self.join_key)
        if self.join_key != self.key:
            owners, rows = self.table.prefix_lookup_grouped(keys, columns=self.columns)
            return owners, rows
        found, rows = self.table.lookup(keys, columns=self.columns)
        owners = np.flatnonzero(found)
        return owners, rows.take(pa.array(owners))


def crossed(left: Any, right: Any, count: int) -> tuple[Any, Any]:
    """All pairs (i, j) with left[i] == right[j]; both ascending, values below `count`."""
    right_counts = np.bincount(right, minlength=count)
    right_starts = np.cumsum(right_counts) - right_counts
    repeats = right_counts[left]
    i = np.repeat(np.arange(len(left)), repeats)
    nth = np.arange(len(i)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    return i, right_starts[left[i]] + nth


def joined_now(
    join: DeltaJoin, left: Side, right: Side, rows: pa.Table, *, changes: bool
) -> Iterator[pa.RecordBatch]:
    """The pairs of these rows of the left side, which have whole left rows."""
    keys = rows.select(left.join_key)
    for start in range(0, rows.num_rows, KEYS_AT_ONCE):
        part = rows.slice(start, KEYS_AT_ONCE)
        distinct, owners = numbered(keys.slice(start, KEYS_AT_ONCE))
        found, theirs = right.now(distinct)
        order = np.argsort(owners, kind="stable")
        i, j = crossed(owners[order], found, distinct.num_rows)
        if len(i):
            yield from _pairs(
                join, part.take(pa.array(order[i])), theirs.take(pa.array(j)), "+U" if changes else None
            )


def joined_changes(
    join: DeltaJoin, left: Side, right: Side, touched_left: pa.Table, touched_right: pa.Table
) -> Iterator[pa.RecordBatch]:
    """The pairs that change because of these primary keys, which were touched on either side: first what is gone."""
    both = [
        touched_left.select(left.join_key).rename_columns(left.join_key),
        touched_right.select(right.join_key).rename_columns(left.join_key),
    ]
    all_keys = pa.concat_tables(both)
    if not all_keys.num_rows:
        return
    distinct_all = all_keys.group_by(left.join_key, use_threads=False).aggregate([])
    for start in range(0, distinct_all.num_rows, KEYS_AT_ONCE):
        keys = distinct_all.slice(start, KEYS_AT_ONCE).combine_chunks()
        ours, our_gone = _state_of(left, keys, touched_left)
        theirs, their_gone = _state_of(right, keys, touched_right)
        count = keys.num_rows
        for these, those in ((our_gone, their_gone), (our_gone, theirs), (ours, their_gone)):
            i, j = crossed(these.owners, those.owners, count)
            if len(i):
                yield from _pairs(join, these.rows.take(pa.array(i)), those.rows.take(pa.array(j)), "-D")
        i, j = crossed(ours.owners, theirs.owners, count)
        changed = ours.touched[i] | theirs.touched[j]
        i, j = i[changed], j[changed]
        if len(i):
            yield from _pairs(join, ours.rows.take(pa.array(i)), theirs.rows.take(pa.array(j)), "+U")


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows by join key; `touched` says which changed in this micro-batch."""

    rows: pa.Table
    owners: Any
    touched: Any


def _state_of(side: Side, keys: pa.Table, touched: pa.Table) -> tuple[_Rows, _Rows]:
    """What is there now of these join keys, and what was touched and is not there any more (keys alone)."""
    owners, rows = side.now(keys)
    known = KeySet(touched, side.key) if touched.num_rows else None
    changed = np.zeros(rows.num_rows, bool)
    if known is not None and rows.num_rows:
        changed = known.contains(rows.select(side.key).combine_chunks()).to_numpy(zero_copy_only=False)
    join_keys = KeySet(keys.rename_columns(side.join_key), side.join_key)
    at = join_keys.positions(touched.combine_chunks()) if touched.num_rows else pa.array([], pa.int32())
    gone = pc.is_valid(at).to_numpy(zero_copy_only=False)
    if rows.num_rows and touched.num_rows:
        there = KeySet(rows.combine_chunks(), side.key).contains(touched.combine_chunks())
        gone &= ~there.to_numpy(zero_copy_only=False)
    positions = np.flatnonzero(gone)
    gone_owners = pc.fill_null(at, 0).to_numpy()[positions].astype(np.int64)
    order = np.argsort(gone_owners, kind="stable")
    gone_rows = touched.take(pa.array(positions[order]))
    return (
        _Rows(rows, np.asarray(owners), changed),
        _Rows(gone_rows, gone_owners[order], np.ones(len(positions), bool)),
    )


def _pairs(join: DeltaJoin, ours: pa.Table, theirs: pa.Table, change: str | None) -> Iterator[pa.RecordBatch]:
    schema = join.arrow_schema(changes=change is not None)
    keys_only = change == "-D"
    left_key, right_key = join.left.schema.primary_key, join.right.schema.primary_key
    count = ours.num_rows
    arrays: list[Any] = []
    for column in join.left.schema.columns:
        keep = column.name in left_key or not keys_only
        arrays.append(ours.column(column.name) if keep else pa.nulls(count, column.type.arrow()))
    for name in join.names:
        keep = name in right_key or not keys_only
        arrays.append(
            theirs.column(name) if keep else pa.nulls(count, join.right.schema.column(name).type.arrow())
        )
    names = [*join.left.schema.names, *join.names.values()]
    if change is not None:
        arrays.append(pa.repeat(pa.scalar(change), count))
        names.append(CHANGE_TYPE_COLUMN)
    for batch in pa.table(arrays, names=names).combine_chunks().to_batches(max_chunksize=BATCH_ROWS):
        yield conform(batch, schema)


def numbered(keys: pa.Table) -> tuple[pa.Table, Any]:
    """The distinct keys, and for each row its key's position among them."""
    names = keys.column_names
    distinct = keys.group_by(names, use_threads=False).aggregate([]).combine_chunks()
    return distinct, KeySet(distinct, names).positions(keys.combine_chunks()).to_numpy().astype(np.int64)


# -- Spark's side ------------------------------------------------------------------------------------------


class GroupPartition(InputPartition):
    """What one task reads: ranges of both sides' buckets (None: everything there is now)."""

    def __init__(
        self, group: int, left: dict[int, tuple[int, int]] | None, right: dict[int, tuple[int, int]] | None
    ) -> None:
        super().__init__(group)
        self.group = group
        self.left = left
        self.right = right


class DeltaJoinSource(DataSource):
    """Made by `delta_join`; its options are not for people."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def _join(self) -> DeltaJoin:
        return plan_join(self.options["bootstrap"], json.loads(self.options["spec"]))

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
        return [GroupPartition(group, None, None) for group in range(self.join.groups)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_group(self.join, partition, changes=False)


class DeltaJoinStreamReader(DataSourceStreamReader):
    """Positions of both sides go through the checkpoint; see `tablelayer.spark.stream` for the order of calls."""

    def __init__(self, join: DeltaJoin, cap: int | None) -> None:
        self.join = join
        self.cap = cap
        self._at: dict[str, Position] | None = None

    def _sides(self) -> dict[str, TableDefinition]:
        return {"left": self.join.left, "right": self.join.right}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {
            side: Position(str(definition.table_id), {}, "full", initial=True).to_json()
            for side, definition in self._sides().items()
        }

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        at = (
            self._positions(start) if start is not None else self._at or self._positions(self.initialOffset())
        )
        ends: dict[str, Position] = {}
        for side, definition in self._sides().items():
            latest = open_table(self.join.bootstrap, definition).offsets("latest")
            position = at[side]
            offsets = latest if position.initial else admit(position.offsets, latest, self.cap)
            ends[side] = Position(position.table, offsets, "full")
        if start is None:
            self._at = ends
        return {side: position.to_json() for side, position in ends.items()}

    def partitions(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[GroupPartition]:
        first, last = self._positions(start), self._positions(end)
        if self._at is None:
            self._at = last
        if first["left"].initial:
            return [GroupPartition(group, None, None) for group in range(self.join.groups)]
        ranges = {
            side: {
                bucket: (first[side].offsets.get(bucket, 0), stop)
                for bucket, stop in last[side].offsets.items()
            }
            for side in first
        }
        groups = self.join.groups
        return [
            GroupPartition(
                group,
                {bucket: each for bucket, each in ranges["left"].items() if bucket % groups == group},
                {bucket: each for bucket, each in ranges["right"].items() if bucket % groups == group},
            )
            for group in range(groups)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_group(self.join, partition, changes=True)

    def _positions(self, value: Mapping[str, Any]) -> dict[str, Position]:
        positions = {side: Position.from_json(value[side]) for side in ("left", "right")}
        for side, definition in self._sides().items():
            if positions[side].table != str(definition.table_id):
                raise TableError(
                    TableErrorCode.TABLE_NOT_FOUND,
                    f"table {definition.path} was dropped and created anew since this stream began: start with a"
                    " new checkpoint location",
                )
        return positions


def read_group(join: DeltaJoin, partition: InputPartition, *, changes: bool) -> Iterator[pa.RecordBatch]:
    """The worker's side of a partition."""
    assert isinstance(partition, GroupPartition)
    right_columns = list(dict.fromkeys([*join.right.schema.primary_key, *join.names]))
    left = Side(open_table(join.bootstrap, join.left), join.left, join.left.schema.names)
    right = Side(open_table(join.bootstrap, join.right), join.right, right_columns)
    if partition.left is None or partition.right is None:
        for bucket in range(partition.group, join.left.bucket_count, join.groups):
            with closing(left.table.snapshot(bucket, left.columns)) as pieces:
                for piece, _ in pieces:
                    if piece.num_rows:
                        yield from joined_now(
                            join, left, right, pa.Table.from_batches([piece]), changes=changes
                        )
        return
    yield from joined_changes(
        join, left, right, _touched(left, partition.left), _touched(right, partition.right)
    )


def _touched(side: Side, ranges: Mapping[int, tuple[int, int]]) -> pa.Table:
    """The primary keys that changed in these ranges, each once."""
    schema = pa.schema([side.definition.schema.column(name).field() for name in side.key])
    ranges = {bucket: each for bucket, each in ranges.items() if each[1] > each[0]}
    if not ranges:
        return schema.empty_table()
    with side.table.scan(
        columns=side.key,
        start={bucket: first for bucket, (first, _) in ranges.items()},
        until={bucket: stop for bucket, (_, stop) in ranges.items()},
        buckets=list(ranges),
    ) as scan:
        batches = _distinct(part.batch for part in scan)
        return pa.Table.from_batches(batches, schema=schema)


def _distinct(batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
    found = pa.Table.from_batches(list(batches))
    if not found.num_rows:
        return []
    names = found.column_names
    distinct = found.group_by(names, use_threads=False).aggregate([]).combine_chunks()
    return [
        pa.RecordBatch.from_arrays([_one(c) for c in distinct.columns], schema=found.schema) for _ in (0,)
    ]


def _one(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
