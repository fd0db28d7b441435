"""Union read without Spark: a table's lake and its log's tail, or the lake alone, as Arrow batches.

    from headrace.tablelayer.lake.union_scan import union_scan

    with connect("127.0.0.1:9092") as connection:
        for batch in union_scan(connection, "db.t", ["a", "b"], "a > 100"):
            ...

Both sides are pinned when `union_scan` is called: the lake's snapshot with the offsets inside it, and the log's end.
Every iteration gives the same rows, regardless of concurrent writes and tiering, until the snapshot expires or the tail
leaves the log. Retention never deletes changes that are not tiered, so the tail leaves the log only after a later round
and the retention time.

`planned` is the same for the table client, whose reads of a tiered table by its plain name are union scans.

For a partitioned table the lake keeps the rows of partitions that are gone. They are returned too, unless a client
dropped the partition. A partition that is dropped after the call returns nothing (more) of its tail.

For a PK table the tail wins per key: its last changes are held in memory, and lake rows of their keys are left out. A
filter is applied to the lake's rows as they are read, and to the tail only after the last change of each key is known.
`tablelayer.lake.union_read` returns the same as a DataFrame.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.client.blocking.borrowed import BorrowedConnection
from headrace.tablelayer.client.names import several
from headrace.tablelayer.lake.adapter import LakeError, LakeState, LogCutError, hidden_partitions
from headrace.tablelayer.lake.catalogs import tiered_table
from headrace.tablelayer.lake.change_source import TableChanges
from headrace.tablelayer.lake.names import LAKE_SUFFIX, METADATA_PREFIX
from headrace.tablelayer.lake.reader import LakeReader, Piece, filtered
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.filters.conditions import DUCKDB, Predicate, expression_of, push_down
from headrace.tablelayer.model.filters.filters import Filter, FilterLike, encode_filter
from headrace.tablelayer.model.lake.offsets import PartitionBucket
from headrace.tablelayer.model.options.table_options import ChangelogImage
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.partition_keys import values_of
from headrace.tablelayer.model.table.partitions import Partition, matching, typed_value
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
    snapshot: int | None = None,
    time_ms: int | None = None,
    only: Mapping[str, str] | None = None,
    until: Mapping[str, Mapping[int, int]] | None = None,
    expired: bool = False,
) -> UnionScan:
    """Return the matching rows of `table`, pinned now: "db.t", or "db.t$lake" for the lake alone.

    "db.t$lake" also has the columns `__bucket`, `__offset` and `__timestamp`, unless the lake table was made without
    them: the place in the log of a row's last change, NULL offset and time if a round read it from the state.
    `snapshot` selects an older snapshot, and `time_ms` the newest one at that time. `connection` is
    the table client's. `predicate` is the filter or a weaker form of it, used to skip files of the lake; for a filter
    in SQL it is derived. `warehouse` overrides the server's. `only` has texts of partition columns: other partitions
    are not read. `until` reads the table as it was at these offsets by partition ("" without partitions) and bucket,
    and no other partition, except with `expired` those that the server does not have any more.

    Before the first round the lake has no rows.

    Raises LakeError when the table is not tiered, or when its lake cannot be read here (pyiceberg is missing, or only
    Spark knows the warehouse's file system).
    """
    only_lake = table.endswith(LAKE_SUFFIX)
    name = table.removesuffix(LAKE_SUFFIX)
    for _ in range(_OPENED_AT_MOST):
        tiered = tiered_table(connection, name, warehouse)
        definition = tiered.definition
        log = None if only_lake else TableChanges(connection, "", definition)
        if log is not None:
            earliest, end = log.earliest(), log.latest()
            if definition.is_partitioned:
                # A client's drop is recorded before the partition is deleted: after the list, so that no successor
                # is read together with the rows of the dropped one.
                tiered = tiered_table(connection, name, warehouse)
        lake = tiered.catalog.reader(definition)
        state = replace(lake.state(tiered.known_snapshot), dropped=tiered.dropped)
        if log is None:
            if snapshot is not None or time_ms is not None:
                state = replace(state, head=past_snapshot(lake, definition, snapshot, time_ms))
            return UnionScan(connection, lake.shape, lake, state, None, columns, filter, predicate)
        # A round may have ended since then.
        present = end
        end = {place: max(at, state.offsets.get(place, 0)) for place, at in end.items()}
        if until is not None:
            end = _ends_at(end, until)
            state = _state_at(
                lake, definition, state, {**dict.fromkeys(present, 0), **end} if expired else end
            )
        tails = [
            _Tail(partition, ends, _begin(partition, ends, state), _earliest(partition, ends, earliest))
            for partition, ends in log.by_partition(end)
            if partition is None or matching(definition, [partition.name], only)
        ]
        if all(tail.reaches_back() for tail in tails):
            wanted, pruning = _in_partitions(definition, only, filter, predicate)
            scan = UnionScan(connection, definition, lake, state, tails, columns, wanted, pruning)
            scan.without(hidden_partitions(state, present) if until is None or expired else None)
            return scan
    raise LogCutError(
        f"the log of {definition.path} begins after the end of the lake's last round: the rows in between are missing"
    )


def planned(
    cluster: Any, loop: Any, table: str, columns: Sequence[str] | None, wanted: FilterLike, **asked: Any
) -> UnionScan:
    """Plan a union scan for the table client whose `cluster` works in `loop`; not for that loop's thread.

    Errors as `union_scan`.
    """
    return union_scan(BorrowedConnection(cluster, loop), table, columns, wanted, **asked)


def _ends_at(latest: Mapping[Any, int], until: Mapping[str, Mapping[int, int]]) -> dict[Any, int]:
    """Return the ends by place of the parts in `until`."""
    found = {}
    for place in latest:
        name, bucket = (place.partition, place.bucket) if isinstance(place, PartitionBucket) else ("", place)
        if name in until:
            found[place] = min(latest[place], until[name].get(bucket, 0))
    return found


def _state_at(
    lake: LakeReader, definition: StoredTable, state: LakeState, end: Mapping[Any, int]
) -> LakeState:
    """Return the newest state of the lake that has nothing after `end`.

    Raises TableError(OUTSIDE_RETENTION) if every remaining snapshot has.
    """
    if state.committed is None or all(state.offsets.get(place, 0) <= at for place, at in end.items()):
        return state
    for past in lake.past_states():
        if all(past.offsets.get(place, 0) <= at for place, at in end.items()):
            return replace(past, dropped=state.dropped)
    raise TableError(
        TableErrorCode.OUTSIDE_RETENTION,
        f"{definition.path} cannot be read at {dict(end)}: its log begins later, and no snapshot of its lake is as old",
    )


def _in_partitions(
    definition: StoredTable,
    only: Mapping[str, str] | None,
    wanted: FilterLike,
    predicate: Predicate | None,
) -> tuple[FilterLike, Predicate | None]:
    """Return the filter, and the predicate for pruning, for the partitions with these texts in their columns."""
    if not only:
        return wanted, predicate
    schema = definition.schema
    if predicate is None and isinstance(wanted, str):
        predicate = push_down([wanted], schema, DUCKDB).predicate
    elif predicate is None and isinstance(wanted, list):
        predicate = wanted
    expression = None if wanted is None else expression_of(wanted, schema)
    parts = [] if predicate is None else [predicate]
    for key, text in only.items():
        value = typed_value(schema.column(key), text)
        equal = pc.field(key) == value
        expression = equal if expression is None else expression & equal
        if isinstance(value.as_py(), (str, int)):
            parts.append(["=", key, value.as_py()])
    pruning = None if not parts else parts[0] if len(parts) == 1 else ["and", *parts]
    return expression, pruning


def past_snapshot(
    lake: LakeReader, definition: StoredTable, snapshot: int | None, time_ms: int | None
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


def lake_metadata(connection: Any, table: str, *, warehouse: str | None = None) -> pa.Table:
    """Return a metadata table of the lake of "db.t", such as "db.t$lake$snapshots". Raises LakeError."""
    path, _, name = table.partition(METADATA_PREFIX)
    tiered = tiered_table(connection, path, warehouse)
    return tiered.catalog.reader(tiered.definition).metadata(name)


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


@dataclass(frozen=True, slots=True)
class Pinned:
    """The moment of a union scan, for other processes: the lake's state, the log's ranges, names of partitions."""

    state: LakeState
    tails: Sequence[_Tail] | None
    hidden: Sequence[str] = ()
    read: Sequence[str] | None = None


class UnionScan:
    """Union scan, see the module. Each iteration yields record batches in `schema` from the beginning."""

    def __init__(
        self,
        connection: Any,
        definition: StoredTable,
        lake: LakeReader,
        state: LakeState,
        tails: Sequence[_Tail] | None,
        columns: Sequence[str] | None,
        wanted: FilterLike = None,
        predicate: Predicate | None = None,
    ) -> None:
        """`tails` None: the lake alone."""
        schema = definition.schema
        self._connection, self.definition, self._lake = connection, definition, lake
        self._state, self._tails = state, tails
        self._names = list(schema.names) if columns is None else several("columns", columns)
        schema.select(self._names)
        self._given = wanted
        self._filter, found = _parsed(wanted, definition)
        self._predicate = found if predicate is None else predicate
        self._left_out: KeySet | None = None
        self._kept: KeySet | None = None
        self.pinned = Pinned(state, tails)
        self.schema = pa.schema([schema.column(name).field() for name in self._names])
        self.snapshot = state.head
        self.offsets = dict(state.offsets)
        self.end_offsets: dict[Any, int] | None = None
        if tails is not None:
            self.end_offsets = {place: end for tail in tails for place, end in tail.places().items()}

    def without(self, partitions: Sequence[str] | None) -> None:
        """Leave out the lake's rows of these partitions; None: of all that are not read from the log."""
        if not self.definition.is_partitioned:
            return
        if partitions is None:
            read = [tail.partition for tail in self._tails or ()]
            names = [each.name for each in read if each is not None]
            self._kept = self._partition_set(names)
            self.pinned = replace(self.pinned, read=names)
        elif partitions:
            self._left_out = self._partition_set(partitions)
            self.pinned = replace(self.pinned, hidden=list(partitions))

    @classmethod
    def of_pinned(
        cls,
        connection: Any,
        definition: StoredTable,
        lake: LakeReader,
        pinned: Pinned,
        columns: Sequence[str],
        wanted: FilterLike,
    ) -> UnionScan:
        """Return the scan of a moment that another process has pinned."""
        scan = cls(connection, definition, lake, pinned.state, pinned.tails, columns, wanted)
        scan.without(None if pinned.read is not None else pinned.hidden)
        return scan

    def pieces(self) -> list[Piece]:
        """Return the pieces of the lake's half."""
        head = self._state.head
        if head is None or self._state.committed is None:
            return []
        return self._lake.pieces(head, self._predicate)

    def _partition_set(self, names: Sequence[str]) -> KeySet:
        columns = [self.definition.schema.column(key) for key in self.definition.partition_keys]
        values = [values_of(name) for name in names]
        arrays = [
            pa.array([typed_value(column, value[at]).as_py() for value in values], column.type.arrow())
            for at, column in enumerate(columns)
        ]
        return KeySet(
            pa.table(arrays, names=[column.name for column in columns]), self.definition.partition_keys
        )

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._selected(self._rows())

    def lake_rows(self, pieces: Collection[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the lake's half of the rows, of these pieces alone."""
        if self.definition.is_primary_key_table:
            return self._selected(self._keyed_lake_rows(self._keyed_changes(), pieces))
        return self._selected(self._of_lake(self._needed(), pieces))

    def changed_rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the other rows of a primary-key table: those that the log has changed."""
        return self._selected(self._changed_rows(self._keyed_changes()))

    def _selected(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays(
                    [batch.column(name) for name in self._names], schema=self.schema
                )

    def selecting(self, columns: Sequence[str] | None, wanted: FilterLike) -> UnionScan:
        """Return the scan of the same moment with these columns and this filter, for the lake alone."""
        assert self._tails is None
        return UnionScan(self._connection, self.definition, self._lake, self._state, None, columns, wanted)

    @property
    def log_starts(self) -> dict[str, dict[int, int]]:
        """The beginning of the log's half by partition ("" without partitions) and bucket."""
        return {
            "" if tail.partition is None else tail.partition.name: dict(
                tail.earliest if tail.begin is None else tail.begin
            )
            for tail in self._tails or ()
        }

    @property
    def log_ends(self) -> dict[str, dict[int, int]]:
        """The end of the log's half, as `log_starts`."""
        return {
            "" if tail.partition is None else tail.partition.name: dict(tail.end)
            for tail in self._tails or ()
        }

    def to_arrow(self) -> pa.Table:
        """Return all rows as one table in memory."""
        return pa.Table.from_batches(list(self), schema=self.schema)

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader for consumers of Arrow streams; it can be read once."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def _needed(self, *more: str) -> list[Column]:
        schema = self.definition.schema
        filtered = [] if self._filter is None else [schema.columns[at].name for at in self._filter.columns]
        return list(schema.select(list(dict.fromkeys([*self._names, *more, *filtered]))))

    def _rows(self) -> Iterator[pa.RecordBatch]:
        if self._tails is None or not self.definition.is_primary_key_table:
            yield from self._of_lake(self._needed())
            for tail in self._tails or ():
                yield from self._of(tail, self._log_rows)
            return
        changes = self._keyed_changes()
        yield from self._keyed_lake_rows(changes)
        yield from self._changed_rows(changes)

    def _keyed_changes(self) -> pa.Table | None:
        return self._changes(self._needed(*self.definition.schema.primary_key))

    def _keyed_lake_rows(
        self, changes: pa.Table | None, pieces: Collection[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the lake's rows whose keys have not changed since."""
        key = self.definition.schema.primary_key
        changed = None if changes is None else KeySet(changes, key)
        late = _LateKeys(self)
        for batch in self._of_lake(self._needed(*key), pieces):
            rows = batch if changed is None else batch.filter(pc.invert(changed.contains(batch)))
            yield late.without(rows)

    def _changed_rows(self, changes: pa.Table | None) -> Iterator[pa.RecordBatch]:
        if changes is not None:
            living = changes.filter(pc.invert(changes.column(DELETED_COLUMN))).drop_columns([DELETED_COLUMN])
            for batch in living.to_batches():
                yield filtered(batch, self._filter)
        for tail in self._tails or ():
            if tail.begin is None:
                yield from self._of(tail, self._present)

    def late_partitions(self) -> list[_Tail]:
        """Return the partitions that the lake may know from a partition of the same name, which expired."""
        return [tail for tail in self._tails or () if tail.partition is not None and tail.begin is None]

    def keys_of(self, tails: Sequence[_Tail]) -> KeySet | None:
        """Return the keys of the rows that these partitions have on the server; None if there are none."""
        key = list(self.definition.schema.primary_key)
        found = [batch for tail in tails for batch in self._of(tail, partial(self._present, names=key))]
        rows = pa.Table.from_batches(found) if found else None
        return KeySet(rows, key) if rows is not None and rows.num_rows else None

    def partition_set(self, names: Sequence[str]) -> KeySet:
        return self._partition_set(names)

    def _of_lake(
        self, needed: Sequence[Column], pieces: Collection[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        if self._state.head is None or (self._tails is not None and self._state.committed is None):
            return
        if self._left_out is not None or self._kept is not None:
            names = [column.name for column in needed]
            more = [key for key in self.definition.partition_keys if key not in names]
            needed = [*needed, *(self.definition.schema.column(key) for key in more)]
        chosen: Any = () if pieces is None else (pieces,)
        for batch in self._lake.read(self._state.head, needed, self._filter, self._predicate, *chosen):
            rows = batch
            if self._left_out is not None:
                rows = rows.filter(pc.invert(self._left_out.contains(rows)))
            if self._kept is not None:
                rows = rows.filter(self._kept.contains(rows))
            yield rows

    def _of(self, tail: _Tail, read: Callable[[Any, _Tail], Iterator[T]]) -> Iterator[T]:
        """Yield the tail's rows; for a partition that is dropped meanwhile, nothing (more)."""
        part, definition = tail.partition, self.definition
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
            raise LogCutError(
                f"the tail of {definition.path} was deleted from the log during this read: read again"
            ) from error

    def _log_rows(self, table: Any, tail: _Tail) -> Iterator[pa.RecordBatch]:
        begin = tail.earliest if tail.begin is None else tail.begin
        if begin == tail.end:
            return
        with table.scan(self._names, start=dict(begin), until=dict(tail.end), filter=self._given) as scan:
            for part in scan:
                yield part.batch

    def _present(
        self, table: Any, tail: _Tail, names: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield a PK table's rows at the end; with `names` these columns of all rows.

        Without old images the state cannot be undone back to the end; it is then that of the moment of reading.
        """
        past = self.definition.settings.changelog_image is not ChangelogImage.WAL
        for bucket, end in tail.end.items():
            wanted = self._given if names is None else None
            at = end if past else None
            for piece, _ in table.snapshot(bucket, names or self._names, wanted, as_of=at):
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
        batches = list(last_changes(changes, self.definition.schema.primary_key))
        return pa.Table.from_batches(batches).combine_chunks() if batches else None


class _LateKeys:
    """Keys of late partitions: made after a partition of the same name had expired, whose rows the lake has.

    The keys are read when the lake gives the first row of such a partition, which is rare.
    """

    def __init__(self, scan: UnionScan) -> None:
        self._scan = scan
        self._tails = {tail.partition.name: tail for tail in scan.late_partitions() if tail.partition}
        self._names = scan.partition_set(list(self._tails)) if self._tails else None
        self._keys: KeySet | None = None
        self._is_read = False

    def without(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows whose keys the server does not have in a late partition."""
        if self._names is None or not pc.any(self._names.contains(rows)).as_py():
            return rows
        if not self._is_read:
            self._keys, self._is_read = self._scan.keys_of(list(self._tails.values())), True
        return rows if self._keys is None else rows.filter(pc.invert(self._keys.contains(rows)))


def _parsed(wanted: FilterLike, definition: StoredTable) -> tuple[Filter | None, Predicate | None]:
    """Return the filter, and the part of it that can be inspected. Raises TableError(INVALID_FILTER)."""
    if wanted is None:
        return None, None
    schema = definition.schema
    predicate = wanted if isinstance(wanted, list) else None
    if isinstance(wanted, str):
        predicate = push_down([wanted], schema, DUCKDB).predicate
    return Filter.parse(encode_filter(expression_of(wanted, schema), schema), schema), predicate
