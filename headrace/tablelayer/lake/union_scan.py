"""Union read without Spark: a table's lake and its log's tail, or the lake alone, as Arrow batches.

    from headrace.tablelayer.lake.union_scan import union_scan

    with connect("127.0.0.1:9092") as connection:
        for batch in union_scan(connection, "db.t", ["a", "b"], "a > 100"):
            ...

Both sides are pinned when `union_scan` is called: the lake's snapshot with the offsets inside it, and the log's end.
Every iteration gives the same rows, regardless of concurrent writes and tiering, until the snapshot expires or the tail
leaves the log. Retention never deletes changes that are not tiered, so the tail leaves the log only after a later round
and the retention time.

For a partitioned table the lake keeps the rows of dropped partitions. They are returned too, unless the partition was
recreated. A partition that is dropped after the call returns nothing (more) of its tail.

For a PK table the tail wins per key: its last changes are held in memory, and lake rows of their keys are left out. A
filter is applied to the lake's rows as they are read, and to the tail only after the last change of each key is known.
`tablelayer.lake.union_read` returns the same as a DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.client.names import several
from headrace.tablelayer.lake.adapter import LakeError, LakeState, new_partitions
from headrace.tablelayer.lake.catalogs import tiered_table
from headrace.tablelayer.lake.change_source import TableChanges
from headrace.tablelayer.lake.names import LAKE_SUFFIX, SNAPSHOTS_SUFFIX
from headrace.tablelayer.lake.reader import LakeReader, filtered
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.filters.conditions import DUCKDB, Predicate, filter_of_sql, push_down
from headrace.tablelayer.model.filters.filters import Filter, FilterLike, encode_filter
from headrace.tablelayer.model.lake.offsets import PartitionBucket
from headrace.tablelayer.model.options.table_options import ChangelogImage
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.table.partition_keys import values_of
from headrace.tablelayer.model.table.partitions import Partition, typed_value
from headrace.tablelayer.spark.key_set import KeySet
from headrace.tablelayer.spark.splits import DELETED_COLUMN, last_changes

T = TypeVar("T")
_OPENED_AT_MOST = 5
"""Maximum number of attempts: a round may end, and the log be truncated, between reading the lake and the log."""


def union_scan(
    connection: Any,
    table: str,
    columns: Sequence[str] | None = None,
    filter: FilterLike = None,  # noqa: A002 - the usual name of this argument
    *,
    predicate: Predicate | None = None,
    warehouse: str | None = None,
    dropped: bool = True,
    snapshot: int | None = None,
    time_ms: int | None = None,
) -> UnionScan:
    """Return the matching rows of `table`, pinned now: "db.t", or "db.t$lake" for the lake alone.

    For "db.t$lake", `snapshot` selects an older snapshot, and `time_ms` the newest one at that time. `connection` is
    the table client's. `predicate` is the filter or a weaker form of it, used to skip files of the lake; for a filter
    in SQL it is derived. `warehouse` overrides the server's. `dropped` False leaves out the lake's rows of dropped
    partitions.

    Raises LakeError when the table is not tiered; when its lake cannot be read here (pyiceberg is missing, or only
    Spark knows the warehouse's file system); or, for `$lake`, when the lake is still empty.
    """
    only_lake = table.endswith(LAKE_SUFFIX)
    name = table.removesuffix(LAKE_SUFFIX)
    for _ in range(_OPENED_AT_MOST):
        tiered = tiered_table(connection, name, warehouse)
        definition = tiered.definition
        lake = tiered.catalog.reader(definition)
        state = lake.state(tiered.known_snapshot)
        if only_lake:
            if state.head is None:
                raise LakeError(f"{definition.path} is not in the lake yet: run `headrace tier --once` first")
            if snapshot is not None or time_ms is not None:
                state = replace(state, head=past_snapshot(lake, definition, snapshot, time_ms))
            return UnionScan(connection, definition, lake, state, None, columns, filter, predicate)
        log = TableChanges(connection, "", definition)
        earliest, end = log.earliest(), log.latest()
        tails = [
            _Tail(partition, ends, _begin(partition, ends, state), _earliest(partition, ends, earliest))
            for partition, ends in log.by_partition(end)
        ]
        if all(tail.reaches_back() for tail in tails):
            scan = UnionScan(connection, definition, lake, state, tails, columns, filter, predicate)
            scan.without(new_partitions(state, end) if dropped else None)
            return scan
    raise LakeError(
        f"the log of {definition.path} begins after the end of the lake's last round: the rows in between are missing"
    )


def past_snapshot(
    lake: LakeReader, definition: TableDefinition, snapshot: int | None, time_ms: int | None
) -> int:
    """Return `snapshot`, or the number of the newest snapshot at `time_ms`. Raises LakeError if it does not exist."""
    known = lake.snapshots()
    if snapshot is None:
        known = known.filter(pc.less_equal(known["committed_at"].cast(pa.int64()), time_ms))
    numbers = known["snapshot_id"].to_pylist()
    if (snapshot is not None and snapshot not in numbers) or not numbers:
        what = "of that time" if snapshot is None else str(snapshot)
        raise LakeError(
            f"the lake of {definition.path} has no snapshot {what}: {definition.path}$lake$snapshots"
            " lists the existing ones"
        )
    return int(numbers[-1] if snapshot is None else snapshot)


def lake_snapshots(connection: Any, table: str, *, warehouse: str | None = None) -> pa.Table:
    """Return a row per snapshot of "db.t" (or "db.t$lake$snapshots"), see `LakeTable.snapshots`. Raises LakeError."""
    tiered = tiered_table(connection, table.removesuffix(SNAPSHOTS_SUFFIX), warehouse)
    return tiered.catalog.reader(tiered.definition).snapshots()


@dataclass(frozen=True, slots=True)
class _Tail:
    """The log's part of the result, for the table or one partition: up to `end` by bucket.

    `begin` is the end of the lake's part. None means that the lake has no rows of it; then the log is read from
    `earliest`, or the state at `end`.
    """

    partition: Partition | None
    end: Mapping[int, int]
    begin: Mapping[int, int] | None
    earliest: Mapping[int, int]

    def places(self) -> dict[Any, int]:
        """Return the end offsets by place."""
        return {_place(self.partition, bucket): offset for bucket, offset in self.end.items()}

    def reaches_back(self) -> bool:
        """Return whether the log still has everything that the lake does not have."""
        begin = self.begin
        return begin is None or all(self.earliest[bucket] <= offset for bucket, offset in begin.items())


def _place(partition: Partition | None, bucket: int) -> Any:
    return bucket if partition is None else PartitionBucket(partition.name, partition.table_id, bucket)


def _begin(partition: Partition | None, ends: Mapping[int, int], state: LakeState) -> dict[int, int] | None:
    if state.committed is None:
        return None
    found = {bucket: state.offsets.get(_place(partition, bucket)) for bucket in ends}
    if partition is not None and all(offset is None for offset in found.values()):
        return None
    return {bucket: min(offset or 0, ends[bucket]) for bucket, offset in found.items()}


def _earliest(
    partition: Partition | None, ends: Mapping[int, int], earliest: Mapping[Any, int]
) -> dict[int, int]:
    return {bucket: min(earliest.get(_place(partition, bucket), 0), end) for bucket, end in ends.items()}


class UnionScan:
    """Union scan, see the module. Each iteration yields record batches in `schema` from the beginning."""

    def __init__(
        self,
        connection: Any,
        definition: TableDefinition,
        lake: LakeReader,
        state: LakeState,
        tails: Sequence[_Tail] | None,
        columns: Sequence[str] | None,
        wanted: FilterLike = None,
        predicate: Predicate | None = None,
    ) -> None:
        """`tails` None: the lake alone."""
        schema = definition.schema
        self._connection, self._definition, self._lake = connection, definition, lake
        self._state, self._tails = state, tails
        self._names = list(schema.names) if columns is None else several("columns", columns)
        schema.select(self._names)
        self._given = wanted
        self._filter, found = _parsed(wanted, definition)
        self._predicate = found if predicate is None else predicate
        self._left_out: KeySet | None = None
        self._kept: KeySet | None = None
        self.schema = pa.schema([schema.column(name).field() for name in self._names])
        self.snapshot = state.head
        self.offsets = dict(state.offsets)
        self.end_offsets: dict[Any, int] | None = None
        if tails is not None:
            self.end_offsets = {place: end for tail in tails for place, end in tail.places().items()}

    def without(self, partitions: Sequence[str] | None) -> None:
        """Leave out the lake's rows of earlier partitions of these names; None: of all that are not tiered now."""
        if not self._definition.is_partitioned:
            return
        if partitions is None:
            tiered = [tail.partition for tail in self._tails or () if tail.begin is not None]
            self._kept = self._partition_set([each.name for each in tiered if each is not None])
        elif partitions:
            self._left_out = self._partition_set(partitions)

    def _partition_set(self, names: Sequence[str]) -> KeySet:
        columns = [self._definition.schema.column(key) for key in self._definition.partition_keys]
        values = [values_of(name) for name in names]
        arrays = [
            pa.array([typed_value(column, value[at]).as_py() for value in values], column.type.arrow())
            for at, column in enumerate(columns)
        ]
        return KeySet(
            pa.table(arrays, names=[column.name for column in columns]), self._definition.partition_keys
        )

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._rows():
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays(
                    [batch.column(name) for name in self._names], schema=self.schema
                )

    def to_arrow(self) -> pa.Table:
        """Return all rows as one table in memory."""
        return pa.Table.from_batches(list(self), schema=self.schema)

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader for consumers of Arrow streams; it can be read once."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def _needed(self, *more: str) -> list[Column]:
        schema = self._definition.schema
        filtered = [] if self._filter is None else [schema.columns[at].name for at in self._filter.columns]
        return list(schema.select(list(dict.fromkeys([*self._names, *more, *filtered]))))

    def _rows(self) -> Iterator[pa.RecordBatch]:
        if self._tails is None or not self._definition.is_primary_key_table:
            yield from self._of_lake(self._needed())
            for tail in self._tails or ():
                yield from self._of(tail, self._log_rows)
            return
        key = self._definition.schema.primary_key
        needed = self._needed(*key)
        changes = self._changes(needed)
        changed = None if changes is None else KeySet(changes, key)
        for batch in self._of_lake(needed):
            yield batch if changed is None else batch.filter(pc.invert(changed.contains(batch)))
        if changes is not None:
            living = changes.filter(pc.invert(changes.column(DELETED_COLUMN))).drop_columns([DELETED_COLUMN])
            for batch in living.to_batches():
                yield filtered(batch, self._filter)
        for tail in self._tails:
            if tail.begin is None:
                yield from self._of(tail, self._present)

    def _of_lake(self, needed: Sequence[Column]) -> Iterator[pa.RecordBatch]:
        if self._state.head is None or (self._tails is not None and self._state.committed is None):
            return
        if self._left_out is not None or self._kept is not None:
            names = [column.name for column in needed]
            more = [key for key in self._definition.partition_keys if key not in names]
            needed = [*needed, *(self._definition.schema.column(key) for key in more)]
        for batch in self._lake.read(self._state.head, needed, self._filter, self._predicate):
            rows = batch
            if self._left_out is not None:
                rows = rows.filter(pc.invert(self._left_out.contains(rows)))
            if self._kept is not None:
                rows = rows.filter(self._kept.contains(rows))
            yield rows

    def _of(self, tail: _Tail, read: Callable[[Any, _Tail], Iterator[T]]) -> Iterator[T]:
        """Yield the tail's rows; for a partition that is dropped meanwhile, nothing (more)."""
        part, definition = tail.partition, self._definition
        if part is not None:
            definition = definition.of_partition(part.name, part.table_id, part.bucket_count)
        try:
            yield from read(self._connection.open_table(definition), tail)
        except TableError as error:
            if part is None or error.code is not TableErrorCode.TABLE_NOT_FOUND:
                raise
        except KafkaError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            raise LakeError(
                f"the tail of {definition.path} was deleted from the log during this read: read again"
            ) from error

    def _log_rows(self, table: Any, tail: _Tail) -> Iterator[pa.RecordBatch]:
        begin = tail.earliest if tail.begin is None else tail.begin
        if begin == tail.end:
            return
        with table.scan(self._names, start=dict(begin), until=dict(tail.end), filter=self._given) as scan:
            for part in scan:
                yield part.batch

    def _present(self, table: Any, tail: _Tail) -> Iterator[pa.RecordBatch]:
        """Yield a PK table's rows at the end.

        Without old images the state cannot be undone back to the end; it is then that of the moment of reading.
        """
        past = self._definition.settings.changelog_image is not ChangelogImage.WAL
        for bucket, end in tail.end.items():
            for piece, _ in table.snapshot(bucket, self._names, self._given, as_of=end if past else None):
                yield piece

    def _changes(self, needed: Sequence[Column]) -> pa.Table | None:
        """Return the last change of each key after the lake's end; None if there is none."""
        names = [column.name for column in needed]

        def of_tail(table: Any, tail: _Tail) -> Iterator[tuple[pa.RecordBatch, Any]]:
            with table.scan(names, start=dict(tail.begin or {}), until=dict(tail.end)) as scan:
                for part in scan:
                    yield part.batch, part.change_types

        moved = [tail for tail in self._tails or () if tail.begin is not None and tail.begin != tail.end]
        changes = (each for tail in moved for each in self._of(tail, of_tail))
        batches = list(last_changes(changes, self._definition.schema.primary_key))
        return pa.Table.from_batches(batches).combine_chunks() if batches else None


def _parsed(wanted: FilterLike, definition: TableDefinition) -> tuple[Filter | None, Predicate | None]:
    """Return the filter, and the part of it that can be inspected. Raises TableError(INVALID_FILTER)."""
    if wanted is None:
        return None, None
    schema = definition.schema
    predicate = push_down([wanted], schema, DUCKDB).predicate if isinstance(wanted, str) else None
    expression = filter_of_sql(wanted, schema) if isinstance(wanted, str) else wanted
    return Filter.parse(encode_filter(expression, schema), schema), predicate
