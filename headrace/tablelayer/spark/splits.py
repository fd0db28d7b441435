"""Splits: the part of a table that one Spark task reads, and the reading itself.

The driver pins everything in the splits (bucket, first and last offset), so that a repeated task reads the same. There
are four ways to read a range `[start, end)` of a bucket's log:

- `changelog`: its rows as they are, `-U` rows included;
- `upsert`: the same without `-U` rows, as an upsert sink needs it;
- `current`: a log table's rows (for a PK table only as a state, below);
- `last`: the last change of each key, deletes marked in `_deleted`. All changes of a key are in one bucket, so tasks
  need not exchange rows; the range's last changes are held in memory.

A split with `state` reads the rows that a PK table's bucket had at `end`, exactly. The server's snapshot is of the
present; changes since `end` are undone with the changelog's old images. A table whose changelog has no old images
(`table.changelog.image` = WAL) cannot be read back: its state is that of the moment of reading, which is never before
`end`.

Memory: a few Arrow batches, never a bucket; a state split also holds the changes between `end` and now. Executors
import this module: it depends on the table client, not on Spark.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.client.security.settings import Bootstrap
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.filters.conditions import Predicate, arrow_expression, columns_of
from headrace.tablelayer.model.options.table_options import ChangelogImage
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.partitions import Partition
from headrace.tablelayer.spark.key_set import KeySet, comparable
from headrace.tablelayer.spark.types import (
    BUCKET_COLUMN,
    CHANGE_TYPE_COLUMN,
    COMMIT_TIMESTAMP_COLUMN,
    LOG_OFFSET_COLUMN,
    PLACE_FIELDS,
    SYSTEM_BUCKET,
    SYSTEM_OFFSET,
    SYSTEM_TIMESTAMP,
    conform,
    spark_arrow_schema,
)
from headrace.tablelayer.spark.worker import table as open_table

logger = logging.getLogger("headrace.spark")

ReadMode = Literal["changelog", "upsert", "current", "last"]

DELETED_COLUMN = "_deleted"
CHANGE_NAMES = ("+A", "+I", "-U", "+U", "-D")
"""Short names of the change types, by their number on the wire."""
BATCH_ROWS = 65_536
"""Approximate rows of a batch: small log batches are merged, because Spark's cost is per batch."""
STATE_OFFSET = -1
"""`_log_offset` of the rows of a state."""

_INSERT, _UPDATE_BEFORE, _UPDATE_AFTER, _DELETE = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Split:
    """Offsets `[start_offset, end_offset)` of one bucket's log, or with `state` its rows at `end_offset`.

    For a partitioned table the bucket is one partition's.
    """

    bucket: int
    start_offset: int
    end_offset: int
    state: bool = False
    partition: Partition | None = None


@dataclass(frozen=True, slots=True)
class TableRead:
    """Properties that all splits of one read share; sent to the executors.

    `metadata` are names of `PLACE_FIELDS`. `order` is the order of the output columns of both kinds, if the metadata
    are not last. Rows for which `predicate` does not hold are left out. At most `limit` rows of a split are read (-1:
    no limit).
    """

    bootstrap: Bootstrap
    definition: StoredTable
    columns: tuple[Column, ...]
    mode: ReadMode
    metadata: tuple[str, ...] = ()
    order: tuple[str, ...] | None = None
    predicate: Predicate | None = None
    limit: int = -1

    @property
    def primary_key(self) -> tuple[str, ...]:
        return self.definition.schema.primary_key

    def arrow_schema(self) -> pa.Schema:
        """Return the schema of the batches that `read_split` yields."""
        schema = spark_arrow_schema(self.columns, self.metadata)
        if self.mode == "last":
            schema = schema.append(pa.field(DELETED_COLUMN, pa.bool_(), nullable=False))
        return schema if self.order is None else pa.schema([schema.field(name) for name in self.order])

    def filter(self) -> Any:
        """Return the predicate as the table client takes it; None if there is none."""
        schema = self.definition.schema.arrow()
        return None if self.predicate is None else arrow_expression(self.predicate, schema)

    def needed(self, *more: str) -> list[str]:
        """Return the columns to request from the server: the output's, the predicate's, and `more`.

        A server answers with at least one column, so a read of metadata alone requests the first one.
        """
        predicate = columns_of(self.predicate) if self.predicate is not None else set()
        names = dict.fromkeys([*(column.name for column in self.columns), *more, *sorted(predicate)])
        return list(names) or [self.definition.schema.columns[0].name]


@dataclass(frozen=True, slots=True)
class Rows:
    """Table rows and their places; `offsets` and `timestamp_ms` are None for the rows of a state.

    Rows of the lake have a time each, in microseconds. If they are of several buckets, they have a bucket each.
    """

    batch: pa.RecordBatch
    change_types: np.ndarray[Any, Any]
    offsets: np.ndarray[Any, Any] | None
    timestamp_ms: int | None
    timestamps: pa.Array | None = None
    buckets: pa.Array | None = None


def plan_splits(
    start: Mapping[int, int], end: Mapping[int, int], *, min_count: int = 1, max_rows: int | None = None
) -> list[Split]:
    """Return splits for the range between start and end of each bucket; a bucket absent in `start` begins at 0.

    A bucket has several splits if it has more than `max_rows` offsets, or if there would otherwise be fewer than
    `min_count` splits: ranges are then cut in proportion to their size.
    """
    ranges = [(bucket, start.get(bucket, 0), stop) for bucket, stop in sorted(end.items())]
    ranges = [(bucket, first, stop) for bucket, first, stop in ranges if stop > first]
    total = sum(stop - first for _, first, stop in ranges)
    size = total
    if len(ranges) < min_count:
        size = total // min_count
    if max_rows is not None:
        size = min(size, max_rows)
    splits = []
    for bucket, first, stop in ranges:
        pieces = -(-(stop - first) // max(1, size))
        edges = [first + (stop - first) * piece // pieces for piece in range(pieces + 1)]
        splits += [Split(bucket, low, high) for low, high in itertools.pairwise(edges)]
    return splits


def state_splits(ends: Mapping[int, int]) -> list[Split]:
    """Return one split for each bucket's rows at its end; a bucket with an empty log has none."""
    return [Split(bucket, 0, stop, state=True) for bucket, stop in sorted(ends.items()) if stop]


def read_split(read: TableRead, split: Split, *, rest_in_lake: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the split's rows, in `read.arrow_schema()`. Raises the table client's errors.

    A partition that is dropped meanwhile gives nothing (more), R18.3. With `rest_in_lake` this is an error, because it
    may have expired: a new plan finds its rows in the lake.
    """
    part = split.partition
    if part is None:
        yield from _read_split(read, split)
        return
    of_partition = read.definition.of_partition(part.name, part.table_id, part.bucket_count)
    try:
        yield from _read_split(replace(read, definition=of_partition), split)
    except TableError as error:
        if error.code is not TableErrorCode.TABLE_NOT_FOUND:
            raise
        if rest_in_lake:
            raise TableError(
                TableErrorCode.SCAN_EXPIRED,
                f"partition {part.name} of {read.definition.path} expired or was dropped while it was read: read again",
            ) from error
        logger.warning("partition %s of %s was dropped while it was read", part.name, read.definition.path)


def _read_split(read: TableRead, split: Split) -> Iterator[pa.RecordBatch]:
    table = open_table(read.bootstrap, read.definition)
    if split.state:
        rows = _state_rows(table, read, split)
    elif read.mode == "last":
        schema = read.arrow_schema()
        for batch in _last_rows_of_range(table, read, split):
            yield conform(batch, schema)
        return
    else:
        rows = _log_rows(table, read, split)
    yield from finished(read, split.bucket, rows)


def finished(read: TableRead, bucket: int, rows: Iterable[Rows]) -> Iterator[pa.RecordBatch]:
    """Yield a task's rows, filtered and limited, in `read.arrow_schema()`."""
    left = read.limit
    for batch in _coalesced(_finished(read, bucket, rows, read.arrow_schema()), left):
        if 0 <= left < batch.num_rows:
            batch = batch.slice(0, left)
        left -= batch.num_rows if left >= 0 else 0
        if batch.num_rows:
            yield batch
        if left == 0:
            return


def _log_rows(table: Any, read: TableRead, split: Split) -> Iterator[Rows]:
    with table.scan(
        columns=read.needed(),
        start={split.bucket: split.start_offset},
        until={split.bucket: split.end_offset},
        buckets=[split.bucket],
        filter=read.filter(),
        row_filter=False,  # filter here: there are many executors, but one server
    ) as scan:
        for part in scan:
            yield Rows(part.batch, part.change_types, part.offsets, part.timestamp_ms)


def _last_rows_of_range(table: Any, read: TableRead, split: Split) -> Iterator[pa.RecordBatch]:
    with table.scan(
        columns=read.needed(*read.primary_key),
        start={split.bucket: split.start_offset},
        until={split.bucket: split.end_offset},
        buckets=[split.bucket],
    ) as scan:
        placed = (Rows(part.batch, part.change_types, part.offsets, part.timestamp_ms) for part in scan)
        changes = ((with_metadata(each, split.bucket, read.metadata), each.change_types) for each in placed)
        yield from last_changes(changes, read.primary_key)


def _state_rows(table: Any, read: TableRead, split: Split) -> Iterator[Rows]:
    """Yield the state at the split's end: the present state except for the keys that changed in between."""
    columns = read.needed(*read.primary_key)
    with closing(table.snapshot(split.bucket, columns, read.filter())) as pieces:
        first, taken_at = next(pieces)
        others = _other_images(table, read, split, columns, taken_at)
        touched = KeySet(others, read.primary_key) if others is not None else None
        for piece in _chain(first, pieces):
            kept = piece if touched is None else piece.filter(pc.invert(touched.contains(piece)))
            if kept.num_rows:
                yield _as_state(kept)
    if others is not None:
        present = others.filter(pc.invert(others.column(DELETED_COLUMN))).select(columns)
        for batch in present.to_batches(max_chunksize=BATCH_ROWS):
            yield _as_state(batch)


def _chain(first: pa.RecordBatch, pieces: Iterator[tuple[pa.RecordBatch, int]]) -> Iterator[pa.RecordBatch]:
    yield first
    for piece, _ in pieces:
        yield piece


def _as_state(batch: pa.RecordBatch) -> Rows:
    return Rows(batch, np.full(batch.num_rows, _INSERT, np.uint8), None, None)


def _other_images(
    table: Any, read: TableRead, split: Split, columns: Sequence[str], taken_at: int
) -> pa.Table | None:
    """Return the rows that differ between the snapshot and the split's end, as of the end; None if none can differ.

    Rows that did not exist then are marked in `_deleted`.
    """
    forward = taken_at < split.end_offset
    if taken_at == split.end_offset:
        return None
    if not forward and read.definition.settings.changelog_image is ChangelogImage.WAL:
        return None
    low, high = sorted((taken_at, split.end_offset))
    try:
        with table.scan(
            columns=list(columns),
            start={split.bucket: low},
            until={split.bucket: high},
            buckets=[split.bucket],
        ) as scan:
            changes = ((part.batch, part.change_types) for part in scan)
            images = (
                last_changes(changes, read.primary_key)
                if forward
                else first_images(changes, read.primary_key)
            )
            batches = list(images)
    except KafkaError as error:
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
            raise
        raise TableError(
            TableErrorCode.SCAN_EXPIRED,
            f"bucket {split.bucket} of {read.definition.path} cannot be read as it was at offset"
            f" {split.end_offset}: the log of the changes since then was deleted. Load the table again",
        ) from error
    return pa.Table.from_batches(batches) if batches else None


def _finished(
    read: TableRead, bucket: int, parts: Iterable[Rows], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield filtered rows with their metadata, in Spark's types."""
    expression = None
    without_before = read.mode == "upsert"
    for part in parts:
        batch, keep = part.batch, None
        if without_before and np.any(part.change_types == _UPDATE_BEFORE):
            keep = part.change_types != _UPDATE_BEFORE
        if read.metadata:
            batch = with_metadata(part, bucket, read.metadata)
        if keep is not None:
            batch = batch.filter(pa.array(keep))
        if read.predicate is not None:
            if expression is None:
                expression = arrow_expression(read.predicate, part.batch.schema)
            batch = batch.filter(expression)
        if batch.num_rows:
            yield conform(batch, schema)


def _coalesced(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[pa.RecordBatch]:
    """Merge batches to about BATCH_ROWS rows; enough rows for a limit are yielded at once."""
    held: list[pa.RecordBatch] = []
    rows = 0
    enough = BATCH_ROWS if limit < 0 else min(BATCH_ROWS, limit)
    for batch in batches:
        if rows and rows + batch.num_rows > BATCH_ROWS:
            yield _one(held)
            held, rows = [], 0
        held.append(batch)
        rows += batch.num_rows
        if rows >= enough // 2 or limit >= 0:
            yield _one(held)
            held, rows = [], 0
    if held:
        yield _one(held)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def with_metadata(part: Rows, bucket: int, names: Sequence[str]) -> pa.RecordBatch:
    """Return a batch's rows, followed by these metadata columns."""
    batch, count = part.batch, part.batch.num_rows
    arrays: dict[str, Any] = {}
    for name in names:
        if name == CHANGE_TYPE_COLUMN:
            codes = pa.array(part.change_types, pa.int8())
            arrays[name] = pa.DictionaryArray.from_arrays(codes, pa.array(CHANGE_NAMES)).cast(pa.string())
        elif name == LOG_OFFSET_COLUMN:
            offsets = np.full(count, STATE_OFFSET, np.int64) if part.offsets is None else part.offsets
            arrays[name] = pa.array(offsets, pa.int64())
        elif name == SYSTEM_OFFSET:
            given = part.offsets
            arrays[name] = pa.nulls(count, pa.int64()) if given is None else pa.array(given, pa.int64())
        elif name in (COMMIT_TIMESTAMP_COLUMN, SYSTEM_TIMESTAMP):
            field = PLACE_FIELDS[name]
            if part.timestamps is not None:
                arrays[name] = part.timestamps.cast(field.type)
            elif part.timestamp_ms is None:
                arrays[name] = pa.nulls(count, field.type)
            else:
                stamp = pa.scalar(int(part.timestamp_ms) * 1000, pa.int64())
                arrays[name] = pa.repeat(stamp, count).cast(field.type)
        elif name in (BUCKET_COLUMN, SYSTEM_BUCKET):
            own = part.buckets
            arrays[name] = pa.repeat(pa.scalar(bucket, pa.int32()), count) if own is None else own
    fields = [PLACE_FIELDS[name] for name in arrays]
    return pa.RecordBatch.from_arrays(
        [*batch.columns, *arrays.values()], schema=pa.schema([*batch.schema, *fields])
    )


Changes = Iterable[tuple[pa.RecordBatch, "np.ndarray[Any, Any]"]]
"""Batches in log order with one change type per row."""


def last_changes(changes: Changes, primary_key: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the last change of each key, in the order of those changes, with a boolean column `_deleted`.

    `-U` rows are skipped, because a `+U` or `-D` of the same key follows. Memory: the last rows so far, compacted as
    batches come in.
    """
    return _one_per_key(changes, primary_key, passed_over=_UPDATE_BEFORE, absent=_DELETE, keep="max")


def first_images(changes: Changes, primary_key: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield each changed key as it was before the first of these changes: its old row, or with `_deleted` no row.

    The changelog must have old images. Memory: as for `last_changes`.
    """
    return _one_per_key(changes, primary_key, passed_over=_UPDATE_AFTER, absent=_INSERT, keep="min")


def _one_per_key(
    changes: Changes, primary_key: Sequence[str], *, passed_over: int, absent: int, keep: str
) -> Iterator[pa.RecordBatch]:
    if not primary_key:
        raise TableError(
            TableErrorCode.NOT_A_PRIMARY_KEY_TABLE, "the last change of a key needs a primary key"
        )
    held: pa.Table | None = None
    fresh: list[pa.RecordBatch] = []
    fresh_rows = 0
    for batch, change_types in changes:
        gone = pa.array(change_types == absent, pa.bool_())
        marked = batch.append_column(pa.field(DELETED_COLUMN, pa.bool_(), nullable=False), gone)
        if np.any(change_types == passed_over):
            marked = marked.filter(pa.array(change_types != passed_over, pa.bool_()))
        if marked.num_rows:
            fresh.append(marked)
            fresh_rows += marked.num_rows
        if fresh and fresh_rows >= max(1 << 16, held.num_rows if held is not None else 0):
            held, fresh, fresh_rows = _compacted(held, fresh, primary_key, keep), [], 0
    if fresh:
        held = _compacted(held, fresh, primary_key, keep)
    if held is not None:
        yield from held.to_batches(max_chunksize=BATCH_ROWS)


def _compacted(
    held: pa.Table | None, fresh: list[pa.RecordBatch], primary_key: Sequence[str], keep: str
) -> pa.Table:
    added = pa.Table.from_batches(fresh)
    table = added if held is None else pa.concat_tables([held, added])
    columns = {name: comparable(table.column(name)) for name in primary_key}
    positions = pa.table({**columns, "_position": np.arange(table.num_rows)})
    kept = positions.group_by(list(primary_key), use_threads=False).aggregate([("_position", keep)])
    return table.take(kept.column(f"_position_{keep}").combine_chunks().sort()).combine_chunks()
