"""Rows of a log table that retention deleted from its log before a stream read them, from the lake.

The lake tables that tiering makes have the bucket, the offset and the time of each row. A stream that is behind its log
reads the rows from its position to the tiered offsets there, each once, and goes on in the log. The snapshot is pinned.

There are no such rows for a primary-key table, whose lake has the last change of each key, and for a lake table that
was made without system columns.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.client.blocking.borrowed import BorrowedConnection
from headrace.tablelayer.lake.adapter import LakeError, LakeState, LogCutError
from headrace.tablelayer.lake.catalogs import tiered_table
from headrace.tablelayer.lake.reader import LakeReader, Piece
from headrace.tablelayer.model.filters.conditions import Predicate, expression_of
from headrace.tablelayer.model.filters.filters import Filter, FilterLike, encode_filter
from headrace.tablelayer.model.lake.offsets import Offsets, PartitionBucket
from headrace.tablelayer.model.schema.schema import SYSTEM_COLUMNS, Column
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.partition_keys import values_of
from headrace.tablelayer.model.table.partitions import Partition, typed_value
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
        times = _numbers(self.timestamps) // 1000
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
    after: Mapping[int, int] = field(default_factory=dict)
    """The last times of earlier partitions of the name by bucket, in microseconds; their rows are left out."""

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
                if bucket in self.after:
                    mask &= _numbers(times) > self.after[bucket]
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
        before = None if path.partition is None else _states_of(lake, state.head, places.values())[1]
        return _of_one_partition(rows, before)
    raise LogCutError(f"the log of {path} begins after the end of the lake's last round")


def expired_rows(
    connection: Any,
    path: TablePath,
    partition_id: UUID,
    starts: Mapping[int, int],
    ends: Mapping[int, int] | None = None,
    later: UUID | None = None,
) -> MissedRows:
    """Plan and pin the rows of an expired partition by its table id, from `starts` to `ends` by bucket, or to its end.

    They are read from the newest snapshot with its offsets, which has no rows of a later partition of the name. If the
    lake's history does not reach back there, they are read from the head. `later` is the table id of the present
    partition of the name. There are no rows if a client dropped the partition. Raises LakeError: the lake does not have
    these rows, or rows of several partitions at these offsets.
    """
    assert path.partition is not None
    tiered = tiered_table(connection, str(path.whole), None)
    lake = tiered.catalog.reader(tiered.definition)
    state, shape = lake.state(tiered.known_snapshot), _placed(lake, path)
    none = MissedRows(shape, state.head or 0, {}, dict(starts), path.partition, lake)
    if state.head is None or path.partition in tiered.dropped:
        return none
    places = {bucket: PartitionBucket(path.partition, partition_id, bucket) for bucket in starts}
    last, before, is_whole = _states_of(lake, state.head, places.values())
    if last is None and is_whole:
        return none
    if last is None or last.head is None:
        found = _ends_at_head(none, starts, ends, state, later)
        rows = replace(none, ranges=_ranges(starts, found))
        _check_alone(rows, state, later, has_rows=ends is not None)
    else:
        tiered_to = {bucket: last.offsets.get(place, 0) for bucket, place in places.items()}
        rows = replace(none, head=last.head, ranges=_ranges(starts, tiered_to if ends is None else ends))
        short = [bucket for bucket, (_, end) in rows.ranges.items() if end > tiered_to[bucket]]
        if short:  # a client dropped it, or its topic was deleted by Kafka's tools
            known = replace(rows, ranges=_ranges(dict.fromkeys(starts, 0), tiered_to))
            if not _has_first_of(_of_one_partition(known, before), state.head):
                return none
            raise LakeError(
                f"the lake of {path.whole} has bucket {short[0]} of partition {path.partition} only up to offset"
                f" {tiered_to[short[0]]}"
            )
    rows = _of_one_partition(rows, before)
    return rows if _has_first_of(rows, state.head) else none


def _ranges(starts: Mapping[int, int], ends: Mapping[int, int]) -> Ranges:
    return {bucket: (first, ends[bucket]) for bucket, first in starts.items() if first < ends[bucket]}


def partitions_between(connection: Any, path: TablePath, since: int, until: int) -> list[Partition]:
    """Return the partitions that the lake has got after the snapshot `since`, up to `until`.

    `since` is -1 before the first snapshot. Raises LakeError if a partition may be missing, because the history of
    `until` does not reach back to `since`.
    """
    tiered = tiered_table(connection, str(path), None)
    history, is_whole = _history(tiered.catalog.reader(tiered.definition), until)
    newer = list(itertools.takewhile(lambda each: each.head != since, history))
    before: Offsets = history[len(newer)].offsets if len(newer) < len(history) else {}
    if len(newer) == len(history) and tiered.has_expired and not (since < 0 and is_whole):
        raise LakeError(
            f"the history of the lake of {path} from snapshot {since} to {until} has expired. Rows of partitions that"
            " were made and expired in between may be missing, because nothing else knows of these partitions. Keep the"
            " lake's snapshots for longer than a stream stands still"
        )
    places = {place for state in newer for place in state.offsets.keys() - before.keys()}
    buckets = Counter((place.partition, place.table_id) for place in places)
    return [Partition(name, table_id, count) for (name, table_id), count in sorted(buckets.items())]


def _history(lake: LakeReader, head: int) -> tuple[list[LakeState], bool]:
    """Return the states in the history of `head`, newest first, and whether it is whole, to the first snapshot."""
    states = {each.head: each for each in lake.past_states()}
    known = lake.snapshots()
    parents = dict(zip(known["snapshot_id"].to_pylist(), known["parent_id"].to_pylist(), strict=True))
    found: list[LakeState] = []
    at: int | None = head
    oldest = at
    while at in parents:
        oldest = at
        if at in states:
            found.append(states[at])
        at = parents[at]
    return found, at is None and oldest == lake.first_snapshot()


def _states_of(
    lake: LakeReader, head: int, places: Collection[Any]
) -> tuple[LakeState | None, LakeState | None, bool]:
    """Return the newest state in the history of `head` that has one of these places, and the newest before all such.

    They are None if the history begins later. The last value is whether the history is whole, to the first snapshot.
    """
    history, is_whole = _history(lake, head)
    rest = itertools.dropwhile(lambda each: each.offsets.keys().isdisjoint(places), history)
    last = next(rest, None)
    before = next((each for each in rest if each.offsets.keys().isdisjoint(places)), None)
    return last, before, is_whole


def _has_first_of(rows: MissedRows, head: int) -> bool:
    """Return whether the head has one of these rows. It has none if a client dropped their partition."""
    for each in rows.rows([_BUCKET]):
        offset, time = int(each.offsets[0]), each.timestamps[0]
        there = replace(rows, head=head, ranges={each.bucket: (offset, offset + 1)}).rows([_BUCKET])
        return any(pc.any(pc.equal(found.timestamps, time)).as_py() for found in there)
    return True


def _ends_at_head(
    none: MissedRows,
    starts: Mapping[int, int],
    ends: Mapping[int, int] | None,
    state: LakeState,
    later: UUID | None,
) -> Mapping[int, int]:
    """Return `ends`, or the ends of the rows that the head has. Raises LakeError if some may be of a `later` one."""
    name = str(none.partition)
    for bucket, first in starts.items():
        if later is not None and state.offsets.get(PartitionBucket(name, later, bucket), 0) > first:
            raise LakeError(
                f"the lake of {none.shape.path} has rows of a later partition {name} at the offsets from {first} of"
                f" bucket {bucket} on, and its history does not reach back to the earlier one"
            )
    if ends is not None:
        return ends
    found = dict(starts)
    every = {bucket: (first, sys.maxsize) for bucket, first in starts.items()}
    for each in replace(none, ranges=every).rows([_BUCKET]):
        found[each.bucket] = max(found[each.bucket], int(each.offsets.max()) + 1)
    return found


def _check_alone(rows: MissedRows, state: LakeState, later: UUID | None, *, has_rows: bool) -> None:
    """Raise LakeError if rows at the head may be of yet another partition of the name: each has a row at offset 0.

    `has_rows`: the partition has rows in each bucket of the ranges. Else it has some where a range begins later.
    """
    name, first = str(rows.partition), Counter[int]()
    for each in replace(rows, ranges=dict.fromkeys(rows.ranges, (0, 1))).rows([_BUCKET]):
        first[each.bucket] += len(each.offsets)
    for bucket, (start, _) in rows.ranges.items():
        of_later = later is not None and state.offsets.get(PartitionBucket(name, later, bucket), 0) > 0
        if first[bucket] > 1 + of_later or not (has_rows or start):
            raise LakeError(
                f"the lake of {rows.shape.path} may have rows of several partitions {name} in bucket {bucket}, and its"
                " history does not reach back to tell them apart"
            )


def _placed(lake: LakeReader, path: TablePath) -> StoredTable:
    """Return the table with the columns for a row's place. Raises LakeError if its lake does not have them."""
    shape = lake.shape
    if shape.is_primary_key_table:
        raise LakeError(f"the lake of {path.whole} has its rows, and not their changes")
    if _OFFSET not in shape.schema:
        raise LakeError(f"the lake of {path.whole} has no offsets of rows (table.datalake.system-columns)")
    return shape


def _of_one_partition(rows: MissedRows, before: LakeState | None) -> MissedRows:
    """Return the rows without those of earlier partitions of the name, which the state `before` has.

    Earlier partitions have earlier times. Raises LakeError if rows at the same offsets cannot be told apart by them.
    """
    if rows.partition is None:
        return rows
    earlier = {} if before is None or before.head is None else _places(replace(rows, head=before.head))
    after = {bucket: int(times.max()) for bucket, (_, times) in earlier.items()}
    for bucket, (offsets, times) in _places(rows).items():
        own = offsets[times > after[bucket]] if bucket in after else offsets
        known = len(earlier[bucket][0]) if bucket in after else 0
        if len(np.unique(own)) < len(own) or len(offsets) - len(own) not in (0, known):
            raise LakeError(
                f"the lake of {rows.shape.path} has rows of an earlier partition {rows.partition} at the same offsets"
                f" of bucket {bucket}"
            )
    return replace(rows, after=after)


def _places(rows: MissedRows) -> dict[int, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Return the offsets and the times of rows by bucket."""
    found: dict[int, list[PlacedRows]] = {}
    for each in rows.rows([_BUCKET]):
        found.setdefault(each.bucket, []).append(each)
    return {
        bucket: (
            np.concatenate([each.offsets for each in parts]),
            np.concatenate([_numbers(each.timestamps) for each in parts]),
        )
        for bucket, parts in found.items()
    }


def _numbers(times: pa.Array) -> np.ndarray[Any, Any]:
    """Return times in microseconds; -1000 where they are not known."""
    return np.asarray(pc.fill_null(times.cast(pa.int64()), -1000))


def planned(cluster: Any, loop: Any, *arguments: Any) -> MissedRows:
    """Return `missed_rows` for the table client whose `cluster` works in `loop`; not for that loop's thread."""
    return missed_rows(BorrowedConnection(cluster, loop), *arguments)
