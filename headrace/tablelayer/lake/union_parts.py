"""A table's plain name in Spark's Python source and catalog: the lake's half of a batch, as tasks of their own.

The driver pins the lake's snapshot and the log's offsets (`union_parts`). A task reads some data files of the lake. The
log's half of a log table is ordinary splits from the tiered offsets on. For a primary-key table each task leaves out
the keys that changed after the snapshot, which it reads from the log itself; one more task reads the changed rows.

A stream that is behind the log of a log table reads the rows that it has missed in the same way (`missed_parts`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from headrace.tablelayer.lake.adapter import LakeError, LakeState, hidden_partitions
from headrace.tablelayer.lake.catalogs import tiered_table
from headrace.tablelayer.lake.missed_rows import MissedRows, expired_rows, missed_rows
from headrace.tablelayer.lake.reader import Piece
from headrace.tablelayer.lake.union_scan import Pinned, UnionScan, union_scan
from headrace.tablelayer.model.batches.batch import ChangeType
from headrace.tablelayer.model.lake.offsets import Offsets, PartitionBucket
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.spark.options import ReadOptions
from headrace.tablelayer.spark.splits import STATE_OFFSET, Rows, TableRead, finished
from headrace.tablelayer.spark.types import SYSTEM_FIELDS, SYSTEM_OFFSET
from headrace.tablelayer.spark.worker import connection

_TASK_BYTES = 64 << 20
"""Size of the data files of a task, about."""
_NO_BUCKET = -1


class UnionPart(InputPartition):
    """Some data files of the lake (None: the changed rows of a primary-key table), at a pinned moment.

    `row_count` is the number of rows in these files.
    """

    def __init__(self, pinned: Pinned, pieces: Sequence[str] | None, row_count: int) -> None:
        super().__init__(None)
        self.pinned = pinned
        self.pieces = pieces
        self.row_count = row_count


@dataclass(frozen=True, slots=True)
class UnionParts:
    """The tasks of the lake's half, at a `snapshot`, and the log's half, from `log_starts` to `log_ends` by part and
    bucket.
    """

    parts: list[UnionPart]
    snapshot: int | None
    log_starts: Mapping[str, Mapping[int, int]]
    log_ends: Mapping[str, Mapping[int, int]]


def union_parts(
    options: ReadOptions, read: TableRead, until: Mapping[str, Mapping[int, int]] | None, expired: bool
) -> UnionParts:
    """Plan and pin a read up to the offsets `until`, see `union_scan`. Raises LakeError, TableError."""
    client = connection(options.bootstrap)
    scan = union_scan(
        client,
        str(read.definition.path),
        read.needed(),
        read.predicate,
        until=until,
        expired=expired,
    )
    parts = _parts_of(options, scan)
    if read.definition.is_primary_key_table:
        parts.append(UnionPart(scan.pinned, None, 0))
    return UnionParts(parts, scan.snapshot, scan.log_starts, scan.log_ends)


def _parts_of(options: ReadOptions, scan: UnionScan) -> list[UnionPart]:
    return [
        UnionPart(scan.pinned, [each.key for each in group], sum(each.row_count for each in group))
        for group in _grouped(scan.pieces(), options.min_partitions)
    ]


def snapshot_parts(
    options: ReadOptions, read: TableRead, snapshot: int, existing: Collection[PartitionBucket]
) -> tuple[list[UnionPart], Offsets]:
    """Plan the lake's rows of a partitioned log table at a snapshot of tiering.

    `snapshot` is -1 if there was none, and `existing` are the places that the server had then. Return the tasks, and
    the offsets where the rows end, by place: 0 for a place that the lake has got since. Raises LakeError: the snapshot
    has expired.
    """
    client = connection(options.bootstrap)
    tiered = tiered_table(client, str(read.definition.path), None)
    lake = tiered.catalog.reader(tiered.definition)
    states = {each.head: each for each in lake.past_states()} | {-1: LakeState()}
    if snapshot not in states:
        raise LakeError(
            f"snapshot {snapshot} of the lake of {read.definition.path} has expired. The first batch of this stream was"
            " planned with it and cannot be repeated: start with a new checkpoint location"
        )
    state = replace(states[snapshot], dropped=tiered.dropped)
    scan = UnionScan(client, tiered.definition, lake, state, (), read.needed(), read.predicate)
    scan.without(hidden_partitions(state, existing))
    return _parts_of(options, scan), {**dict.fromkeys(tiered.known_offsets, 0), **state.offsets}


class MissedPart(InputPartition):
    """Some data files of the lake with rows that a stream has missed, see `missed_rows`."""

    def __init__(self, missed: MissedRows, pieces: Sequence[str]) -> None:
        super().__init__(None)
        self.head, self.ranges, self.partition = missed.head, dict(missed.ranges), missed.partition
        self.after = dict(missed.after)
        self.pieces = pieces


def missed_parts(
    options: ReadOptions,
    path: TablePath,
    starts: Mapping[int, int],
    ends: Mapping[int, int] | None,
    *,
    expired: UUID | None = None,
    later: UUID | None = None,
) -> tuple[list[MissedPart], Mapping[int, int]]:
    """Plan the rows from `starts` to `ends` that the log of a table or partition does not have any more.

    `expired` is the table id of the partition if it is gone itself; `later` is that of the present partition of its
    name. Return the tasks, and where the log goes on. Raises LakeError.
    """
    client = connection(options.bootstrap)
    missed = (
        missed_rows(client, path, starts, ends)
        if expired is None
        else expired_rows(client, path, expired, starts, ends, later)
    )
    groups = _grouped(missed.pieces(), options.min_partitions)
    return [MissedPart(missed, [each.key for each in group]) for group in groups], missed.log_starts


def _grouped(pieces: Sequence[Piece], least: int) -> Iterator[list[Piece]]:
    """Group data files to about `_TASK_BYTES`, or to smaller groups if there would be fewer than `least`."""
    target = min(_TASK_BYTES, max(1, sum(each.size_bytes for each in pieces) // max(1, least)))
    group: list[Piece] = []
    done = 0
    for left, piece in zip(reversed(range(len(pieces))), pieces, strict=True):
        group.append(piece)
        if left < least - done or sum(each.size_bytes for each in group) >= target:
            yield group
            group, done = [], done + 1
    if group:
        yield group


def read_part(read: TableRead, part: UnionPart | MissedPart) -> Iterator[pa.RecordBatch]:
    """Yield a task's rows, in `read.arrow_schema()`, on the worker."""
    client = connection(read.bootstrap)
    tiered = tiered_table(client, str(read.definition.path), None)
    lake = tiered.catalog.reader(read.definition)
    if isinstance(part, MissedPart):
        missed = MissedRows(lake.shape, part.head, part.ranges, {}, part.partition, lake, part.after)
        for each in missed.rows(read.needed(), part.pieces):
            appended = np.full(each.batch.num_rows, ChangeType.APPEND, np.uint8)
            rows_of_bucket = Rows(each.batch, appended, each.offsets, None, each.timestamps)
            yield from finished(read, each.bucket, [rows_of_bucket])
        return
    is_keyed = read.definition.is_primary_key_table
    placed = bool(read.metadata) and not is_keyed and SYSTEM_OFFSET in lake.shape.schema
    names = [*read.needed(), *SYSTEM_FIELDS] if placed else read.needed()
    shape = lake.shape if placed else read.definition
    scan = UnionScan.of_pinned(client, shape, lake, part.pinned, names, read.predicate)
    change = ChangeType.INSERT if is_keyed else ChangeType.APPEND
    batches = scan.changed_rows() if part.pieces is None else scan.lake_rows(part.pieces)
    make = _placed if placed else _unplaced
    rows = (make(batch, np.full(batch.num_rows, change, np.uint8)) for batch in batches)
    yield from finished(read, _NO_BUCKET, rows)


def _unplaced(batch: pa.RecordBatch, change_types: np.ndarray[Any, Any]) -> Rows:
    return Rows(batch, change_types, None, None)


def _placed(batch: pa.RecordBatch, change_types: np.ndarray[Any, Any]) -> Rows:
    """Return rows that end with the system columns; another writer of the lake leaves these empty."""
    buckets, offsets, timestamps = (batch.column(name) for name in SYSTEM_FIELDS)
    return Rows(
        batch.drop_columns(list(SYSTEM_FIELDS)),
        change_types,
        pc.fill_null(offsets, STATE_OFFSET).to_numpy(),
        None,
        timestamps,
        pc.fill_null(buckets, _NO_BUCKET),
    )
