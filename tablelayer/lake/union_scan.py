"""Union read without Spark: a table's lake and its log's tail, or the lake alone, as Arrow batches.

    from tablelayer.lake.union_scan import union_scan

    with connect("127.0.0.1:9092") as connection:
        for batch in union_scan(connection, "db.t", ["a", "b"], "a > 100"):
            ...

Both sides are pinned when `union_scan` is called: the lake's snapshot with the offsets inside it, and the log's end.
Every iteration gives the same rows, however much is written or tiered meanwhile, until the snapshot is expired or the
tail leaves the log (retention never passes what is tiered, so that takes a later round and the retention time).

Of a PK table the tail wins per key: its last changes are held in memory, lake rows of their keys are left out. A
filter is applied to the lake's rows as they are read, and to the tail only after the last change of each key is known.
`tablelayer.lake.union_read` gives the same as a DataFrame.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from protocol.errors import ErrorCode, KafkaError
from tablelayer.lake.adapter import LakeError, LakeState
from tablelayer.lake.coordinator import ServerCoordinator
from tablelayer.lake.iceberg_reader import IcebergReader
from tablelayer.lake.names import LAKE_SUFFIX, SNAPSHOTS_SUFFIX
from tablelayer.lake.tier import check_lake
from tablelayer.model.conditions import DUCKDB, Predicate, filter_of_sql, push_down
from tablelayer.model.filters import Filter, FilterLike, encode_filter
from tablelayer.model.options import ChangelogImage
from tablelayer.model.schema import Column
from tablelayer.model.table import TableDefinition, TablePath
from tablelayer.spark.splits import DELETED_COLUMN, KeySet, last_changes

_OPENED_AT_MOST = 5
"""Times the lake is looked at: a round may end, and the log be cut, between the look at it and the one at the log."""


def union_scan(
    connection: Any,
    table: str,
    columns: Sequence[str] | None = None,
    filter: FilterLike = None,  # noqa: A002 - what the argument is called everywhere
    *,
    predicate: Predicate | None = None,
    warehouse: str | None = None,
) -> UnionScan:
    """The rows of `table` ("db.t"; "db.t$lake": the lake alone) that match, pinned now.

    `connection` is the table client's; `predicate` says the same as a filter that is an expression, or less, to spare
    files of the lake (of a filter in SQL it is known); `warehouse` overrides the server's. Raises LakeError: the table
    is not tiered, its lake is none that can be read here (Paimon; pyiceberg is missing), or, for `$lake`, nothing is in
    it yet.
    """
    only_lake = table.endswith(LAKE_SUFFIX)
    definition, lake, known = open_reader(connection, table.removesuffix(LAKE_SUFFIX), warehouse)
    opened = connection.open_table(definition)
    for _ in range(_OPENED_AT_MOST):
        state = lake.state(known)
        if only_lake:
            if state.head is None:
                raise LakeError(f"{definition.path} is not in the lake yet: run `headrace tier --once` first")
            return UnionScan(opened, definition, lake, state, None, columns, filter, predicate)
        earliest, end = opened.offsets("earliest"), opened.offsets("latest")
        if state.committed is None or all(earliest[bucket] <= state.offsets.get(bucket, 0) for bucket in end):
            return UnionScan(opened, definition, lake, state, end, columns, filter, predicate)
        definition, lake, known = open_reader(connection, str(definition.path), warehouse)
    raise LakeError(
        f"the log of {definition.path} begins behind what the lake's last round has: rows are missing in between"
    )


def lake_snapshots(connection: Any, table: str, *, warehouse: str | None = None) -> pa.Table:
    """A row for each snapshot of "db.t" (or "db.t$lake$snapshots"); see `LakeTable.snapshots`. Raises LakeError."""
    return open_reader(connection, table.removesuffix(SNAPSHOTS_SUFFIX), warehouse)[1].snapshots()


def open_reader(
    connection: Any, table: str, warehouse: str | None
) -> tuple[TableDefinition, IcebergReader, int | None]:
    """A table, its lake as of now, and the last snapshot that the server was told of."""
    definition = connection.admin.describe_table(TablePath.parse(table))
    if definition.is_partitioned:
        raise LakeError(
            f"{definition.path} is partitioned: its lake is read in Spark (tablelayer.lake.union_read), its log here"
        )
    if definition.table_id is None:
        raise LakeError(f"{definition.path} has no id")
    status = ServerCoordinator(connection, "union read").describe(definition.table_id)
    if status.enabled and status.format != "iceberg":
        raise LakeError(
            f"the lake of {definition.path} is {status.format}: only Iceberg is read here; Spark reads both"
            " (tablelayer.lake.union_read)"
        )
    reader = IcebergReader(definition, check_lake(status, warehouse, definition.path))
    return definition, reader, status.snapshot_id


class UnionScan:
    """See the module. Iterating gives record batches in `schema`, each time from the beginning."""

    def __init__(
        self,
        table: Any,
        definition: TableDefinition,
        lake: IcebergReader,
        state: LakeState,
        end: Mapping[int, int] | None,
        columns: Sequence[str] | None,
        wanted: FilterLike = None,
        predicate: Predicate | None = None,
    ) -> None:
        """`end` None: the lake alone."""
        schema = definition.schema
        self._table, self._definition, self._lake, self._state, self._end = (
            table,
            definition,
            lake,
            state,
            end,
        )
        self._names = list(schema.names if columns is None else columns)
        schema.select(self._names)
        self._given = wanted
        self._filter, found = _parsed(wanted, definition)
        self._predicate = found if predicate is None else predicate
        self.schema = pa.schema([schema.column(name).field() for name in self._names])
        self.snapshot = state.head
        self.offsets = dict(state.offsets)
        self.end_offsets = None if end is None else dict(end)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._rows():
            if batch.num_rows:
                yield pa.RecordBatch.from_arrays(
                    [batch.column(name) for name in self._names], schema=self.schema
                )

    def to_arrow(self) -> pa.Table:
        """All of it in memory."""
        return pa.Table.from_batches(list(self), schema=self.schema)

    def reader(self) -> pa.RecordBatchReader:
        """For whoever takes Arrow streams; to be read once."""
        return pa.RecordBatchReader.from_batches(self.schema, iter(self))

    def _needed(self, *more: str) -> list[Column]:
        schema = self._definition.schema
        filtered = [] if self._filter is None else [schema.columns[at].name for at in self._filter.columns]
        return list(schema.select(list(dict.fromkeys([*self._names, *more, *filtered]))))

    def _rows(self) -> Iterator[pa.RecordBatch]:
        keyed = self._definition.is_primary_key_table
        if self._end is None:
            yield from self._of_lake(self._needed())
        elif self._state.committed is None:
            if keyed:
                # Without old images there is no way back to the end: the state is then that of the moment of reading.
                past = self._definition.settings.changelog_image is not ChangelogImage.WAL
                for bucket, end in self._end.items():
                    moment = end if past else None
                    for piece, _ in self._table.snapshot(bucket, self._names, self._given, as_of=moment):
                        yield piece
            else:
                yield from self._log_rows(self._table.offsets("earliest"))
        elif keyed:
            key = self._definition.schema.primary_key
            needed = self._needed(*key)
            tail = self._tail(needed)
            changed = None if tail is None else KeySet(tail, key)
            for batch in self._of_lake(needed):
                yield batch if changed is None else batch.filter(pc.invert(changed.contains(batch)))
            if tail is not None:
                living = tail.filter(pc.invert(tail.column(DELETED_COLUMN))).drop_columns([DELETED_COLUMN])
                for batch in living.to_batches():
                    yield self._matching(batch)
        else:
            yield from self._of_lake(self._needed())
            yield from self._log_rows(self._state.offsets)

    def _of_lake(self, needed: Sequence[Column]) -> Iterator[pa.RecordBatch]:
        if self._state.head is not None:
            yield from self._lake.read(self._state.head, needed, self._filter, self._predicate)

    def _log_rows(self, start: Mapping[int, int]) -> Iterator[pa.RecordBatch]:
        end = self._end or {}
        begin = {bucket: min(start.get(bucket, 0), stop) for bucket, stop in end.items()}
        with self._table.scan(self._names, start=begin, until=dict(end), filter=self._given) as scan:
            for part in scan:
                yield part.batch

    def _tail(self, needed: Sequence[Column]) -> pa.Table | None:
        """The last change of each key behind the lake; None if there is none."""
        end = self._end or {}
        start = {bucket: min(self._state.offsets.get(bucket, 0), stop) for bucket, stop in end.items()}
        if start == end:
            return None
        names = [column.name for column in needed]
        try:
            with self._table.scan(names, start=start, until=dict(end)) as scan:
                changes = ((part.batch, part.change_types) for part in scan)
                batches = list(last_changes(changes, self._definition.schema.primary_key))
        except KafkaError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            raise LakeError(
                f"the tail of {self._definition.path} has left the log since this read began: begin again"
            ) from error
        return pa.Table.from_batches(batches).combine_chunks() if batches else None

    def _matching(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._filter is None:
            return batch
        names = [self._definition.schema.columns[at].name for at in self._filter.columns]
        return batch.filter(pa.array(self._filter.mask(batch.select(names))))


def _parsed(wanted: FilterLike, definition: TableDefinition) -> tuple[Filter | None, Predicate | None]:
    """The filter to apply, and as much of it as can be looked at. Raises TableError(INVALID_FILTER)."""
    if wanted is None:
        return None, None
    schema = definition.schema
    predicate = push_down([wanted], schema, DUCKDB).predicate if isinstance(wanted, str) else None
    expression = filter_of_sql(wanted, schema) if isinstance(wanted, str) else wanted
    return Filter.parse(encode_filter(expression, schema), schema), predicate
