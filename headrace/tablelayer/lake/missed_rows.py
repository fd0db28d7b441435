"""Rows of a log table that retention deleted from its log before a stream read them, from the lake.

The lake tables that tiering makes have the bucket, the offset and the time of each row. A stream that is behind its log
reads the rows from its position to the tiered offsets there, each once, and goes on in the log. The snapshot is pinned.

There are no such rows for a primary-key table, whose lake has the last change of each key, and for a lake table that
was made without system columns.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.client.blocking.borrowed import BorrowedConnection
from headrace.tablelayer.lake.adapter import LakeError, LogCutError
from headrace.tablelayer.lake.catalogs import tiered_table
from headrace.tablelayer.lake.reader import LakeReader, Piece
from headrace.tablelayer.model.filters.conditions import Predicate, expression_of
from headrace.tablelayer.model.filters.filters import Filter, FilterLike, encode_filter
from headrace.tablelayer.model.lake.offsets import PartitionBucket
from headrace.tablelayer.model.schema.schema import SYSTEM_COLUMNS, Column
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.partition_keys import values_of
from headrace.tablelayer.model.table.partitions import typed_value
from headrace.tablelayer.model.table.path import TablePath

Ranges = Mapping[int, tuple[int, int]]
"""Offsets by bucket, the second one exclusive."""
_BUCKET, _OFFSET, _TIMESTAMP = (column.name for column in SYSTEM_COLUMNS)
_OPENED_AT_MOST: Final = 5


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """Rows of one bucket with their offsets, and their times in microseconds."""

    bucket: int
    batch: pa.RecordBatch
    offsets: np.ndarray[Any, Any]
    timestamps: pa.Array

    def of_one_time(self) -> Iterator[tuple[int, pa.RecordBatch, np.ndarray[Any, Any], int]]:
        """Yield (bucket, rows, their offsets, their time in milliseconds) for each run of rows with the same time.

        The time is -1 if it is not known.
        """
        times = pc.fill_null(self.timestamps.cast(pa.int64()), -1000).to_numpy() // 1000
        edges = [0, *(np.flatnonzero(np.diff(times)) + 1).tolist(), len(times)]
        for first, end in itertools.pairwise(edges):
            batch = self.batch.slice(first, end - first)
            yield self.bucket, batch, self.offsets[first:end], int(times[first])


@dataclass(frozen=True, slots=True)
class MissedRows:
    """Rows of one table, or of one of its partitions, in a snapshot of the lake."""

    shape: StoredTable
    """The table with system columns."""
    head: int
    ranges: Ranges
    log_starts: Mapping[int, int]
    """The offsets at which the log goes on, by bucket."""
    partition: str | None
    lake: LakeReader = field(repr=False)

    def pieces(self) -> list[Piece]:
        """Return the pieces of the snapshot that may have such rows."""
        return self.lake.pieces(self.head, self._predicate) if self.ranges else []

    def rows(self, columns: Sequence[str], pieces: Collection[str] | None = None) -> Iterator[PlacedRows]:
        """Yield the rows by bucket; with `pieces` those of these pieces."""
        if not self.ranges:
            return
        names = [*columns, *self._keys, _BUCKET, _OFFSET, _TIMESTAMP]
        needed = list(self.shape.schema.select(list(dict.fromkeys(names))))
        for batch in self.lake.read(self.head, needed, None, self._predicate, pieces):
            here = self._of_partition(batch)
            buckets, offsets = (here.column(name) for name in (_BUCKET, _OFFSET))
            if buckets.null_count or offsets.null_count:
                raise LakeError(
                    f"the lake of {self.shape.path} has rows without an offset: another writer added them"
                )
            place, at, times = buckets.to_numpy(), offsets.to_numpy(), here.column(_TIMESTAMP)
            for bucket, (first, end) in self.ranges.items():
                mask = (place == bucket) & (at >= first) & (at < end)
                if mask.any():
                    kept = pa.array(mask)
                    rows = here.select(list(columns)).filter(kept)
                    yield PlacedRows(bucket, rows, at[mask], times.filter(kept))

    def matching(
        self, columns: Sequence[str] | None, wanted: FilterLike
    ) -> Iterator[tuple[int, pa.RecordBatch, np.ndarray[Any, Any], int]]:
        """Yield the rows, in the table's types, for which a filter holds: see `PlacedRows.of_one_time`.

        Raises TableError(INVALID_FILTER).
        """
        schema = self.shape.without_system_columns().schema
        names = list(schema.names if columns is None else columns)
        parsed = None
        if wanted is not None:
            parsed = Filter.parse(encode_filter(expression_of(wanted, schema), schema), schema)
        needed = [] if parsed is None else [schema.columns[at].name for at in parsed.columns]
        for placed in self.rows(list(dict.fromkeys([*names, *needed]))):
            for bucket, batch, offsets, time_ms in placed.of_one_time():
                rows, at = batch, offsets
                if parsed is not None:
                    mask = np.asarray(parsed.mask(batch.select(needed)))
                    rows, at = batch.filter(pa.array(mask)), offsets[mask]
                if rows.num_rows:
                    yield bucket, rows.select(names), at, time_ms

    @property
    def _keys(self) -> Sequence[str]:
        return () if self.partition is None else self.shape.partition_keys

    def _values(self) -> Iterator[tuple[Column, pa.Scalar]]:
        if self.partition is not None:
            for key, text in zip(self._keys, values_of(self.partition), strict=True):
                column = self.shape.schema.column(key)
                yield column, typed_value(column, text)

    def _of_partition(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for column, value in self._values():
            batch = batch.filter(pc.equal(batch.column(column.name), value))
        return batch

    @property
    def _predicate(self) -> Predicate:
        """The condition by which files are skipped."""
        values = [(column.name, value.as_py()) for column, value in self._values()]
        return [
            "and",
            [">=", _OFFSET, min(first for first, _ in self.ranges.values())],
            ["<", _OFFSET, max(end for _, end in self.ranges.values())],
            *(["=", name, value] for name, value in values if isinstance(value, (str, int))),
        ]


def missed_rows(
    connection: Any, path: TablePath, starts: Mapping[int, int], ends: Mapping[int, int] | None = None
) -> MissedRows:
    """Plan and pin the rows from `starts` to `ends` by bucket, or to where the lake ends (of a table or partition).

    The log has everything from the end of a bucket's range on. Raises LakeError: the lake does not have these rows.
    """
    for _ in range(_OPENED_AT_MOST):
        part = connection.table(path.whole)
        if path.partition is not None:
            part = part.partition(path.partition)
        earliest = part.offsets("earliest")
        tiered = tiered_table(connection, str(path.whole), None)
        lake = tiered.catalog.reader(tiered.definition)
        state, shape = lake.state(tiered.known_snapshot), _placed(lake, path)
        if state.head is None:
            raise LakeError(f"the lake of {path.whole} has no rows")
        places: dict[int, Any] = {
            bucket: bucket
            if path.partition is None
            else PartitionBucket(path.partition, part.definition.table_id, bucket)
            for bucket in starts
        }
        tiered_to = {bucket: state.offsets.get(place, 0) for bucket, place in places.items()}
        if any(tiered_to[bucket] < earliest.get(bucket, 0) for bucket in starts):
            continue  # a round has ended since
        log_starts = {
            bucket: max(first, tiered_to[bucket] if ends is None else min(tiered_to[bucket], ends[bucket]))
            for bucket, first in starts.items()
        }
        ranges = {bucket: (first, log_starts[bucket]) for bucket, first in starts.items()}
        ranges = {bucket: each for bucket, each in ranges.items() if each[0] < each[1]}
        rows = MissedRows(shape, state.head, ranges, log_starts, path.partition, lake)
        _check_one_partition(rows)
        return rows
    raise LogCutError(f"the log of {path} begins after the end of the lake's last round")


def expired_rows(
    connection: Any,
    path: TablePath,
    starts: Mapping[int, int],
    ends: Mapping[int, int] | None = None,
    later: UUID | None = None,
) -> MissedRows:
    """Plan and pin the rows of a partition that has expired, from `starts` to `ends` by bucket, or to its end.

    There are none if a client dropped the partition. `later` is the table id of a partition that has been made again
    under the same name. Raises LakeError: the lake does not have these rows, or rows of both at these offsets.
    """
    assert path.partition is not None
    tiered = tiered_table(connection, str(path.whole), None)
    lake = tiered.catalog.reader(tiered.definition)
    state, shape = lake.state(tiered.known_snapshot), _placed(lake, path)
    if state.head is None or path.partition in tiered.dropped:
        return MissedRows(shape, state.head or 0, {}, dict(starts), path.partition, lake)
    for bucket, first in starts.items():
        if later is not None and state.offsets.get(PartitionBucket(path.partition, later, bucket), 0) > first:
            raise LakeError(
                f"the lake of {path.whole} has rows of a later partition {path.partition} at the offsets from {first}"
                f" of bucket {bucket} on"
            )
    if ends is None:
        ends = dict(starts)
        every = {bucket: (first, sys.maxsize) for bucket, first in starts.items()}
        found = MissedRows(shape, state.head, every, {}, path.partition, lake)
        for each in found.rows([_BUCKET]):
            ends[each.bucket] = max(ends[each.bucket], int(each.offsets.max()) + 1)
    ranges = {bucket: (first, ends[bucket]) for bucket, first in starts.items() if first < ends[bucket]}
    rows = MissedRows(shape, state.head, ranges, ends, path.partition, lake)
    _check_one_partition(rows)
    return rows


def _placed(lake: LakeReader, path: TablePath) -> StoredTable:
    """Return the table with the columns for a row's place. Raises LakeError if its lake does not have them."""
    shape = lake.shape
    if shape.is_primary_key_table:
        raise LakeError(f"the lake of {path.whole} has its rows, and not their changes")
    if _OFFSET not in shape.schema:
        raise LakeError(f"the lake of {path.whole} has no offsets of rows (table.datalake.system-columns)")
    return shape


def _check_one_partition(rows: MissedRows) -> None:
    """Raise LakeError if an earlier partition of the same name, which expired, has rows at the same offsets."""
    if rows.partition is None:
        return
    seen: dict[int, list[np.ndarray[Any, Any]]] = {}
    for each in rows.rows([_BUCKET]):
        seen.setdefault(each.bucket, []).append(each.offsets)
    for bucket, found in seen.items():
        offsets = np.concatenate(found)
        if len(np.unique(offsets)) < len(offsets):
            raise LakeError(
                f"the lake of {rows.shape.path} has rows of an earlier partition {rows.partition} at the same offsets"
                f" of bucket {bucket}"
            )


def planned(cluster: Any, loop: Any, *arguments: Any) -> MissedRows:
    """Return `missed_rows` for the table client whose `cluster` works in `loop`; not for that loop's thread."""
    return missed_rows(BorrowedConnection(cluster, loop), *arguments)
