"""Delta join: two PK tables joined as they change, without state in Spark.

    delta_join(spark, "db.orders", "db.customers", on={"customer": "id"}, select={"name": "customer_name"})
    delta_join(..., streaming=True)

Both tables are co-bucketed on the join key, so that all rows of a key are in one group of buckets of either; a task
takes the changes of one group of both. For every join key that changed on either side it looks up what both tables
have now, and gives out the pairs in which one row has changed: `+U`, or `-D` if one of them is gone. A deleted
row is known from its own side's changelog, so a pair is retracted even if both of its rows went at once. What is
looked up is never older than the micro-batch; if it is newer, the change comes once more with its own batch. So the
stream, applied by key, gives the join of the two tables, and a pair may be told twice.

`how="left"` keeps left rows without a match, with nulls. Where the right table's primary key is the join key the
result has one row for each left row, whose key is the left primary key, and `-D` says that the left row is gone.
Otherwise a row without a match has null in the right table's part of the key, and is retracted, by a `-D` with those
nulls, whenever there is a match: also where none was told before.

Batch: the join as the tables are now (a scan of the left side, lookups in the right one). A stream begins so.

Needed of the tables (else an error says which is missing): the join columns are the bucket key of both, and, where they
are partitioned, the partition columns of both, in the same order and of the same types, hashed alike; that is, the
primary key or a prefix of it. The result's key are both primary keys; it has all columns of the left table, those of
`select` of the right one, and where they are not there yet, the right one's primary key. `-D` rows have the keys alone.

Partitions come into the stream as in `tablelayer.spark.stream`. One that is dropped ends: what was joined with its
rows is not retracted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.schema import Column
from tablelayer.model.table import TableDefinition
from tablelayer.spark.builder import bootstrap_of
from tablelayer.spark.options import ReadOptions
from tablelayer.spark.splits import BATCH_ROWS, KeySet, Split
from tablelayer.spark.stream import stream_reader
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
How = Literal["inner", "left"]


@dataclass(frozen=True, slots=True)
class DeltaJoin:
    """Two tables and what is given out of them; `right` maps the right table's columns to their names."""

    bootstrap: str
    left: TableDefinition
    right: TableDefinition
    names: Mapping[str, str]
    how: How = "inner"

    @property
    def one_each(self) -> bool:
        """Whether a left row has one match at most."""
        return join_key(self.right) == self.right.schema.primary_key

    def groups(self) -> int:
        """Bucket i of either side, of whichever partition, belongs to group i modulo this number, whichever rows it
        has. Asks the server where there are partitions, which may have been made with other numbers of buckets.
        """
        counts = []
        for side in (self.left, self.right):
            counts.append(side.bucket_count)
            if side.is_partitioned:
                counts += [each.bucket_count for each in open_table(self.bootstrap, side).partitions()]
        return math.gcd(*counts)

    def columns(self) -> list[Column]:
        """The result's columns. Those that a retraction leaves empty are nullable."""
        keys = {*self.left.schema.primary_key}
        ours = [replace(c, nullable=c.name not in keys) for c in self.left.schema.columns]
        theirs = self.right.schema
        return ours + [
            replace(
                theirs.column(name), name=new, nullable=self.how == "left" or name not in theirs.primary_key
            )
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
    how: How = "inner",
    streaming: bool = False,
    bootstrap: str | None = None,
    max_offsets_per_trigger: int | None = None,
) -> Any:
    """The join of PK tables `left` and `right` ("db.t") on `on`, {left column: right column}; see the module.

    `select`: the right table's columns to add, all but the join columns by default; a mapping gives new names.
    A stream has `_change_type` (+U, -D) as well. Raises TableError for tables that cannot be joined so.
    """
    if how not in ("inner", "left"):
        raise ValueError(f"how={how!r}: a delta join is 'inner' or 'left'")
    if max_offsets_per_trigger is not None and max_offsets_per_trigger < 1:
        raise ValueError(
            f"max_offsets_per_trigger={max_offsets_per_trigger}: give at least 1, or None for no limit"
        )
    server = bootstrap_of(spark, bootstrap)
    spec = {
        "how": how,
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
    return check_join(bootstrap, left, right, spec["on"], spec["select"], spec["how"])


def join_key(definition: TableDefinition) -> tuple[str, ...]:
    """By which columns a delta join looks a table up: those that say which bucket a row is in."""
    return definition.prefix_columns if definition.is_partitioned else definition.bucket_key


def check_join(
    bootstrap: str,
    left: TableDefinition,
    right: TableDefinition,
    on: Mapping[str, str],
    select: Mapping[str, str] | None,
    how: How = "inner",
) -> DeltaJoin:
    """As `plan_join`, of tables that are known."""
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
            f"{left.path} and {right.path} spread their rows differently: the join columns must be partition columns of"
            f" both (({', '.join(left.partition_keys)}) and ({', '.join(right.partition_keys)})) or bucket columns of"
            f" both (({', '.join(left.bucket_key)}) and ({', '.join(right.bucket_key)}))",
        )
    for side, key in zip((left, right), keys, strict=True):
        if key != side.schema.primary_key and not side.allows_prefix_lookup:
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
    joined = set(keys[1])
    names = dict(select) if select is not None else {n: n for n in schema.names if n not in joined}
    schema.select(list(names))
    names = {name: name for name in schema.primary_key if name not in joined and name not in names} | names
    taken = [name for name in names.values() if name in left.schema.names]
    if taken or len(set(names.values())) < len(names):
        raise TableError(
            TableErrorCode.INVALID_PROJECTION,
            f"column '{(taken or ['?'])[0]}' would be there twice: give the right table's columns other names (select)",
        )
    return DeltaJoin(bootstrap, left, right, names, how)


# -- the worker's side -------------------------------------------------------------------------------------


class Side:
    """One table of the join: lookups by join key."""

    def __init__(self, table: Any, definition: TableDefinition, columns: Sequence[str]) -> None:
        self.table = table
        self.definition = definition
        self.columns = list(columns)
        self.key = list(definition.schema.primary_key)
        self.join_key = list(join_key(definition))

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
        if join.how == "left":
            alone = np.bincount(found, minlength=distinct.num_rows)[owners] == 0
            if alone.any():
                yield from _pairs(join, part.filter(pa.array(alone)), None, "+U" if changes else None)


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
        if join.how == "left" and join.one_each:
            if our_gone.rows.num_rows:
                yield from _pairs(join, our_gone.rows, None, "-D")
        else:
            for these, those in ((our_gone, their_gone), (our_gone, theirs), (ours, their_gone)):
                i, j = crossed(these.owners, those.owners, count)
                if len(i):
                    yield from _pairs(join, these.rows.take(pa.array(i)), those.rows.take(pa.array(j)), "-D")
        if join.how == "left":
            yield from _without_match(join, ours, our_gone, theirs, their_gone, count)
        i, j = crossed(ours.owners, theirs.owners, count)
        changed = ours.touched[i] | theirs.touched[j]
        i, j = i[changed], j[changed]
        if len(i):
            yield from _pairs(join, ours.rows.take(pa.array(i)), theirs.rows.take(pa.array(j)), "+U")


def _without_match(
    join: DeltaJoin, ours: _Rows, our_gone: _Rows, theirs: _Rows, their_gone: _Rows, count: int
) -> Iterator[pa.RecordBatch]:
    """Of a left join: left rows that have no match now, and, with a key of their own, those that cannot be so (now)."""
    changed_there = np.zeros(count, bool)
    changed_there[their_gone.owners] = True
    changed_there[theirs.owners[theirs.touched]] = True
    alone = np.bincount(theirs.owners, minlength=count)[ours.owners] == 0
    changed = ours.touched | changed_there[ours.owners]
    if not join.one_each:
        if our_gone.rows.num_rows:
            yield from _pairs(join, our_gone.rows, None, "-D")
        matched = ours.rows.filter(pa.array(changed & ~alone))
        if matched.num_rows:
            yield from _pairs(join, matched, None, "-D")
    rows = ours.rows.filter(pa.array(changed & alone))
    if rows.num_rows:
        yield from _pairs(join, rows, None, "+U")


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


def _pairs(
    join: DeltaJoin, ours: pa.Table, theirs: pa.Table | None, change: str | None
) -> Iterator[pa.RecordBatch]:
    """Rows of both sides, one beside the other; `theirs` None: left rows alone."""
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
            theirs.column(name)
            if theirs is not None and keep
            else pa.nulls(count, join.right.schema.column(name).type.arrow())
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
    """What one task reads: splits of both sides' logs (None: everything there is now), of one group of `groups`."""

    def __init__(
        self, group: int, groups: int, left: Sequence[Split] | None, right: Sequence[Split] | None
    ) -> None:
        super().__init__(group)
        self.group = group
        self.groups = groups
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
        return everything(self.join)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_group(self.join, partition, changes=False)


def everything(join: DeltaJoin) -> list[GroupPartition]:
    """Both tables as they are now."""
    groups = join.groups()
    return [GroupPartition(group, groups, None, None) for group in range(groups)]


class DeltaJoinStreamReader(DataSourceStreamReader):
    """Two streams side by side, whose positions go through the checkpoint together: `tablelayer.spark.stream` says of
    each how far a micro-batch goes and what is in it.
    """

    def __init__(self, join: DeltaJoin, cap: int | None) -> None:
        self.join = join
        options = {"bootstrap.servers": join.bootstrap, "mode": "upsert", "startingOffsets": "full"}
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
        groups = self.join.groups()
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
    """The worker's side of a partition."""
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
    """What a bucket has now."""
    with (
        _unless_dropped(split),
        closing(_table_of(join, side, split).snapshot(split.bucket, columns)) as pieces,
    ):
        for piece, _ in pieces:
            if piece.num_rows:
                yield piece


def _table_of(join: DeltaJoin, side: Side, split: Split) -> Any:
    """The table, or the split's partition."""
    part = split.partition
    if part is None:
        return side.table
    return open_table(
        join.bootstrap, side.definition.of_partition(part.name, part.table_id, part.bucket_count)
    )


@contextmanager
def _unless_dropped(split: Split) -> Iterator[None]:
    """Nothing (more) is read of a partition that was dropped, R18.3."""
    try:
        yield
    except TableError as error:
        if split.partition is None or error.code is not TableErrorCode.TABLE_NOT_FOUND:
            raise


def _touched(join: DeltaJoin, side: Side, splits: Sequence[Split]) -> pa.Table:
    """The primary keys that changed in these splits, or are in those that are states, each once."""
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
