"""Splits: what one Spark task reads of a table, and the reading itself.

The driver pins everything in the splits (bucket, first and last offset), so that a task that is run again
reads the same. Three ways to read:

- `changelog`: the rows of `[start, end)` of a bucket's log as they are, with change type, offset and commit
  time;
- `current`: the rows a PK table's bucket has now (a snapshot of the state, then the log up to the pinned end,
  should the snapshot be older), or the rows `[start, end)` of a log table's bucket;
- `last`: of `[start, end)` of a PK table's bucket, the last change of each key, deletes marked in
  `_deleted`. All changes of a key are in one bucket, so this needs no exchange between tasks; it holds the
  range's last changes in memory.

This module is imported by executors: it knows the table client, not Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.schema import Column
from tablelayer.model.table import TableDefinition
from tablelayer.spark.types import CHANGELOG_ARROW_FIELDS, conform, spark_arrow_schema
from tablelayer.spark.worker import table as open_table

ReadMode = Literal["changelog", "current", "last"]

DELETED_COLUMN = "_deleted"
CHANGE_NAMES = ("+A", "+I", "-U", "+U", "-D")
"""Short names of the change types, by their number on the wire."""

_UPDATE_BEFORE, _DELETE = 2, 4


@dataclass(frozen=True, slots=True)
class Split:
    """Offsets `[start_offset, end_offset)` of one bucket."""

    bucket: int
    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class TableRead:
    """What every split of one read has in common; travels to the executors."""

    bootstrap: str
    definition: TableDefinition
    columns: tuple[Column, ...]
    mode: ReadMode

    @property
    def primary_key(self) -> tuple[str, ...]:
        return self.definition.schema.primary_key

    def arrow_schema(self) -> pa.Schema:
        """The schema of the batches that `read_split` yields."""
        schema = spark_arrow_schema(self.columns, changelog=self.mode == "changelog")
        if self.mode == "last":
            schema = schema.append(pa.field(DELETED_COLUMN, pa.bool_(), nullable=False))
        return schema


def plan_splits(start: Mapping[int, int], end: Mapping[int, int]) -> list[Split]:
    """One split per bucket that has something between its start and its end; a bucket absent in `start`
    begins at 0.
    """
    splits = [Split(bucket, start.get(bucket, 0), stop) for bucket, stop in sorted(end.items())]
    return [split for split in splits if split.end_offset > split.start_offset]


def read_split(read: TableRead, split: Split) -> Iterator[pa.RecordBatch]:
    """The split's rows, in `read.arrow_schema()`. Raises the table client's errors."""
    table = open_table(read.bootstrap, read.definition)
    schema = read.arrow_schema()
    names = [column.name for column in read.columns]
    until = {split.bucket: split.end_offset}
    if read.mode == "current" and read.primary_key:
        yield from _current_rows(table, read, split, schema)
        return
    wanted = names if read.mode != "last" else list(dict.fromkeys([*names, *read.primary_key]))
    scan = table.scan(
        columns=wanted, start={split.bucket: split.start_offset}, until=until, buckets=[split.bucket]
    )
    if read.mode == "last":
        for batch in last_changes(((part.batch, part.change_types) for part in scan), read.primary_key):
            yield conform(batch, schema)
        return
    for part in scan:
        if part.batch.num_rows:
            batch = with_changelog_columns(part) if read.mode == "changelog" else part.batch
            yield conform(batch, schema)


def _current_rows(table: Any, read: TableRead, split: Split, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Snapshot rows go out as they come; only if log rows follow must the later ones win over them."""
    names = [column.name for column in read.columns]
    wanted = list(dict.fromkeys([*names, *read.primary_key]))
    parts = table.scan(
        columns=wanted, start="full", until={split.bucket: split.end_offset}, buckets=[split.bucket]
    )
    seen = [(part.batch, part.change_types) for part in parts]
    if all(is_insert_only(change_types) for _, change_types in seen):
        yield from (conform(batch, schema) for batch, _ in seen if batch.num_rows)
        return
    for batch in last_changes(seen, read.primary_key):
        yield conform(batch.filter(pc.invert(batch.column(DELETED_COLUMN))), schema)


def is_insert_only(change_types: np.ndarray[Any, Any]) -> bool:
    """No row of the batch replaces or deletes one: appended or inserted rows only."""
    return bool(np.all(change_types <= 1))


def with_changelog_columns(part: Any) -> pa.RecordBatch:
    """A scan batch's rows with `_change_type`, `_log_offset` and `_commit_timestamp`."""
    rows = part.batch.num_rows
    dictionary = pa.DictionaryArray.from_arrays(
        pa.array(part.change_types, pa.int8()), pa.array(CHANGE_NAMES)
    )
    stamp = pa.scalar(int(part.timestamp_ms) * 1000, pa.int64())
    arrays = [
        *part.batch.columns,
        dictionary.cast(pa.string()),
        pa.array(part.offsets, pa.int64()),
        pa.repeat(stamp, rows).cast(pa.timestamp("us", tz="UTC")),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*part.batch.schema, *CHANGELOG_ARROW_FIELDS]))


def last_changes(
    changes: Iterable[tuple[pa.RecordBatch, np.ndarray[Any, Any]]], primary_key: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The last change of each key, in the order of those changes, with a boolean column `_deleted`.

    `changes` are batches in log order with one change type per row; `-U` rows are passed over, because a `+U`
    or `-D` of the same key follows. Memory: the rows that are last so far, compacted as batches come in.
    """
    if not primary_key:
        raise TableError(
            TableErrorCode.NOT_A_PRIMARY_KEY_TABLE, "the last change of a key needs a primary key"
        )
    held: pa.Table | None = None
    fresh: list[pa.RecordBatch] = []
    fresh_rows = 0
    for batch, change_types in changes:
        deleted = pa.array(change_types == _DELETE, pa.bool_())
        marked = batch.append_column(pa.field(DELETED_COLUMN, pa.bool_(), nullable=False), deleted)
        if np.any(change_types == _UPDATE_BEFORE):
            marked = marked.filter(pa.array(change_types != _UPDATE_BEFORE, pa.bool_()))
        if marked.num_rows:
            fresh.append(marked)
            fresh_rows += marked.num_rows
        if fresh and fresh_rows >= max(1 << 16, held.num_rows if held is not None else 0):
            held, fresh, fresh_rows = _last_rows(held, fresh, primary_key), [], 0
    if fresh:
        held = _last_rows(held, fresh, primary_key)
    if held is not None:
        yield from held.to_batches(max_chunksize=1 << 16)


def _last_rows(held: pa.Table | None, fresh: list[pa.RecordBatch], primary_key: Sequence[str]) -> pa.Table:
    added = pa.Table.from_batches(fresh)
    table = added if held is None else pa.concat_tables([held, added])
    positions = table.select(list(primary_key)).append_column(
        "_position", pa.array(np.arange(table.num_rows))
    )
    last = positions.group_by(list(primary_key), use_threads=False).aggregate([("_position", "max")])
    return table.take(last.column("_position_max").combine_chunks().sort()).combine_chunks()
