"""Pairs of a delta join: the present pairs of rows of both sides, and the pairs that the changed keys affect.

The worker's side of `tablelayer.spark.delta_joins`, by Arrow batches, without Spark. It looks up the present rows of
the tables and reads nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.client.security.settings import Bootstrap
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.spark.key_set import KeySet, distinct
from headrace.tablelayer.spark.splits import BATCH_ROWS
from headrace.tablelayer.spark.types import CHANGE_TYPE_COLUMN, conform, spark_arrow_schema

KEYS_AT_ONCE = 4096
How = Literal["inner", "left"]


@dataclass(frozen=True, slots=True)
class DeltaJoin:
    """Two tables and the columns of their join; `names` maps the right table's columns to their names in the result."""

    bootstrap: Bootstrap
    left: StoredTable
    right: StoredTable
    names: Mapping[str, str]
    how: How = "inner"

    @property
    def one_each(self) -> bool:
        """Return whether a left row has at most one match."""
        return join_key(self.right) == self.right.schema.primary_key

    def columns(self) -> list[Column]:
        """Return the result's columns. Columns that a retraction leaves empty are nullable."""
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


def join_key(definition: StoredTable) -> tuple[str, ...]:
    """Return the columns by which a delta join looks a table up: the columns that decide a row's bucket."""
    return definition.prefix_columns if definition.is_partitioned else definition.bucket_key


class Side:
    """One table of the join, with lookups by join key."""

    def __init__(self, table: Any, definition: StoredTable, columns: Sequence[str]) -> None:
        self.table = table
        self.definition = definition
        self.columns = list(columns)
        self.key = list(definition.schema.primary_key)
        self.join_key = list(join_key(definition))

    def now(self, keys: pa.Table) -> tuple[Any, pa.Table]:
        """Return the index of the join key (int64, ascending) of each present row with these keys, and the rows."""
        keys = keys.rename_columns(self.join_key)
        if self.join_key != self.key:
            owners, rows = self.table.prefix_lookup_grouped(keys, columns=self.columns)
            return owners, rows
        found, rows = self.table.lookup(keys, columns=self.columns)
        owners = np.flatnonzero(found)
        return owners, rows.take(pa.array(owners))


def crossed(left: Any, right: Any, count: int) -> tuple[Any, Any]:
    """Return all pairs (i, j) with left[i] == right[j]; both inputs are ascending, with values below `count`."""
    right_counts = np.bincount(right, minlength=count)
    right_starts = np.cumsum(right_counts) - right_counts
    repeats = right_counts[left]
    i = np.repeat(np.arange(len(left)), repeats)
    nth = np.arange(len(i)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    return i, right_starts[left[i]] + nth


def joined_now(
    join: DeltaJoin, left: Side, right: Side, rows: pa.Table, *, changes: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the pairs of these whole rows of the left side."""
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
    """Yield the pairs that change because these primary keys changed on either side, retractions first."""
    both = [
        touched_left.select(left.join_key).rename_columns(left.join_key),
        touched_right.select(right.join_key).rename_columns(left.join_key),
    ]
    all_keys = pa.concat_tables(both)
    if not all_keys.num_rows:
        return
    distinct_all = distinct(all_keys)
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
    """Yield the changes of left rows without a match in a left join.

    With a key of their own, rows that have a match now, or were deleted, are retracted as rows without a match.
    """
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
    """Rows by join key; `touched` marks the ones that changed in this micro-batch."""

    rows: pa.Table
    owners: Any
    touched: Any


def _state_of(side: Side, keys: pa.Table, touched: pa.Table) -> tuple[_Rows, _Rows]:
    """Return the present rows with these join keys, and the touched rows that were deleted (keys only)."""
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
    """Yield rows of both sides side by side; `theirs` None: left rows alone."""
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
    """Return the distinct keys, and for each row the position of its key among them."""
    found = distinct(keys)
    positions = KeySet(found, keys.column_names).positions(keys.combine_chunks())
    return found, positions.to_numpy().astype(np.int64)
