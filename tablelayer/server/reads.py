"""Reads of one bucket's state: lookup, prefix lookup, limit scan, count and snapshot scan.

Reads of a primary-key table see the key-value store alone, which never has what is not replicated; the log's end
does not matter to them (R12). Functions with a `store` block and are called in executor threads.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from protocol.errors import DecodeError
from tablelayer.model import messages as m
from tablelayer.model.arrays import validity
from tablelayer.model.batch import ArrowBatch
from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.filters import Filter, Verdict
from tablelayer.model.ipc import decode_ipc, encode_ipc
from tablelayer.model.rows import decode_few_rows
from tablelayer.model.schema import Schema
from tablelayer.model.table import TableDefinition
from tablelayer.model.versions import SchemaVersions, decode_stored
from tablelayer.server.batch_filter import BatchFilter
from tablelayer.server.bucket import headers_of
from tablelayer.server.kv import ROW_PREFIX, KeyRange, KeyValueStore, StoreSnapshot, successor
from tablelayer.server.merge import few_row_keys, row_keys

if TYPE_CHECKING:
    from broker.log.region import FileRegion
    from tablelayer.server.key_bucket import KeyBucket
    from tablelayer.server.log_bucket import LogBucket
    from tablelayer.server.services import Services

Rows = bytes | memoryview
_PIECE_BYTES = 4 << 20
_FEW_KEYS = 8  # up to here values one by one are quicker than columns
_FEW_KEYS_BYTES = 4 << 10
_SORT_KEYS_FROM = 4096  # below, sorting costs more than it saves


class Wanted(msgspec.Struct, frozen=True):
    """What a reader asks for: columns of one of the table's schemas, by position (None for all), and of which rows
    (None for all)."""

    schema: Schema
    columns: list[int] | None
    filter: Filter | None = None

    @classmethod
    def of(
        cls,
        definition: TableDefinition,
        schema_id: int,
        column_ids: Sequence[int] | None,
        condition: bytes | None = None,
    ) -> Wanted:
        """`schema_id` -1: the latest. Raises TableError(INVALID_PROJECTION, UNKNOWN_SCHEMA_ID or INVALID_FILTER). With
        a condition not for the event loop: `asked`."""
        schema = definition.schema if schema_id == -1 else definition.versions.get(schema_id)
        chosen = None if condition is None else Filter.parse(condition, schema)
        return cls(schema, column_positions(schema, column_ids), chosen)

    @classmethod
    async def asked(
        cls,
        services: Services,
        definition: TableDefinition,
        schema_id: int,
        column_ids: Sequence[int] | None,
        condition: bytes | None,
    ) -> Wanted:
        """As `of`; a filter is read in an executor thread."""
        if condition is None:
            return cls.of(definition, schema_id, column_ids)
        return await services.run(cls.of, definition, schema_id, column_ids, condition)

    def rows(self, convert: Callable[[Sequence[int] | None], pa.RecordBatch]) -> pa.RecordBatch:
        """The rows that are wanted, of the columns that are. `convert` gives all rows in columns of the schema, by
        position, ascending; it is asked for those of the filter too."""
        if self.filter is None:
            return convert(self.columns)
        chosen = list(range(len(self.schema.columns))) if self.columns is None else self.columns
        both = sorted({*chosen, *self.filter.columns})
        rows = convert(both)
        mask = self.filter.mask(rows.select([both.index(each) for each in self.filter.columns]))
        kept = rows.select([both.index(each) for each in chosen])
        return kept if mask.all() else kept.filter(pa.array(mask))

    @property
    def is_whole(self) -> bool:
        """Whether every column is asked for."""
        return self.columns is None or len(self.columns) == len(self.schema.columns)

    @property
    def ids(self) -> frozenset[int]:
        chosen = range(len(self.schema.columns)) if self.columns is None else self.columns
        return frozenset(self.schema.columns[index].id for index in chosen)


Versions = Callable[[], SchemaVersions]
"""The table's schemas; asked after rows were read, so that those of the rows are among them."""


def column_positions(schema: Schema, column_ids: Sequence[int] | None) -> list[int] | None:
    """Positions of the columns asked for; None for all. Raises TableError(INVALID_PROJECTION)."""
    if column_ids is None:
        return None
    if len(column_ids) > len(schema.columns):
        raise TableError(
            TableErrorCode.INVALID_PROJECTION,
            f"{len(column_ids)} columns are asked for, and there are {len(schema.columns)}",
        )
    positions = {column.id: index for index, column in enumerate(schema.columns)}
    chosen = [positions[column.id] for column in schema.columns_by_ids(column_ids)]
    if not chosen or chosen != sorted(set(chosen)):
        raise TableError(
            TableErrorCode.INVALID_PROJECTION,
            f"columns are given by id, at least one, each once and in the table's order, not {list(column_ids)}",
        )
    return chosen


def _rows(values: pa.BinaryArray, versions: Versions, wanted: Wanted) -> Rows:
    """Stored rows as the reader wants them (R4.2)."""
    return encode_ipc(_decoded(values, versions, wanted))


def _decoded(values: pa.BinaryArray, versions: Versions, wanted: Wanted) -> pa.RecordBatch:
    return wanted.rows(lambda columns: decode_stored(values, versions(), wanted.schema, columns))


def lookup(
    store: KeyValueStore, versions: Versions, keys: memoryview, wanted: Wanted, keys_max: int
) -> tuple[bytes, Rows]:
    """(a byte for each key: found or not, rows in the order of the keys). Raises TableError(INVALID_KEY)."""
    schema = wanted.schema
    rows = _key_rows(schema, schema.primary_key, keys, keys_max)
    if rows.num_rows <= _FEW_KEYS:
        return _few_found(store.get(few_row_keys(schema, rows)), versions, wanted)
    values = _values_of(store, row_keys(schema, rows))
    valid = validity(values)
    found = np.ones(len(values), np.uint8) if valid is None else valid.astype(np.uint8)
    return found.tobytes(), _rows(values, versions, wanted)


def lookup_in_memory(
    store: KeyValueStore, versions: Versions, keys: memoryview, wanted: Wanted, keys_max: int
) -> tuple[bytes, Rows] | None:
    """As `lookup`, but None at once for more than a few keys and for rows that are not in memory. Does not block."""
    if len(keys) > _FEW_KEYS_BYTES:
        return None
    try:
        rows = _key_rows(wanted.schema, wanted.schema.primary_key, keys, keys_max, bytes_max=_FEW_KEYS_BYTES)
    except TableError:
        return None  # of keys that are larger than they look, or wrong: `lookup` says it
    if rows.num_rows > _FEW_KEYS:
        return None
    values = store.get_in_memory(few_row_keys(wanted.schema, rows))
    return None if values is None else _few_found(values, versions, wanted)


def _few_found(values: list[bytes | None], versions: Versions, wanted: Wanted) -> tuple[bytes, Rows]:
    found = bytes(value is not None for value in values)
    schema, known = wanted.schema, versions()
    if (
        len(known) > 1
        or schema is not known.latest
        or any(column.type.is_nested for column in schema.columns)
    ):
        return found, _rows(pa.array(values, pa.binary()), versions, wanted)
    return found, encode_ipc(decode_few_rows(values, schema, wanted.columns))


def absent_keys(store: KeyValueStore, schema: Schema, keys: memoryview, keys_max: int) -> pa.RecordBatch:
    """Those of the keys that are not there, in the primary key's columns. Raises TableError(INVALID_KEY)."""
    rows = _key_rows(schema, schema.primary_key, keys, keys_max)
    return rows.filter(_values_of(store, row_keys(schema, rows)).is_null())


def _values_of(store: KeyValueStore, keys: pa.BinaryArray) -> pa.BinaryArray:
    """The stored rows of keys, null where there is none. Many keys are looked up in their order: then
    neighbours share blocks."""
    if len(keys) < _SORT_KEYS_FROM:
        return pa.array(store.get(keys.to_pylist()), pa.binary())
    order = pc.sort_indices(keys)
    values = pa.array(store.get(keys.take(order).to_pylist()), pa.binary())
    back = np.empty(len(keys), np.int64)
    back[order.to_numpy()] = np.arange(len(keys))
    return values.take(pa.array(back))


def prefix_lookup(
    store: KeyValueStore,
    versions: Versions,
    prefix_length: int,
    prefixes: memoryview,
    wanted: Wanted,
    keys_max: int,
) -> tuple[bytes, Rows]:
    """(rows per prefix as int32, little endian, rows one after the other). `prefix_length`: columns of the
    primary key that a prefix has. Raises TableError(INVALID_KEY)."""
    # The columns of the primary key are the same in every schema, maybe renamed.
    names = wanted.schema.primary_key[:prefix_length]
    sought = row_keys(wanted.schema, _key_rows(wanted.schema, names, prefixes, keys_max), names)
    counts, values = store.values_by_prefix(sought.to_pylist())
    return np.array(counts, "<i4").tobytes(), _rows(pa.array(values, pa.binary()), versions, wanted)


def first_rows(store: KeyValueStore, versions: Versions, limit: int, wanted: Wanted) -> Rows:
    """The first rows in key order."""
    return _rows(pa.array(store.values_from(ROW_PREFIX, limit), pa.binary()), versions, wanted)


async def first_matching_rows(bucket: KeyBucket, limit: int, wanted: Wanted) -> Rows:
    """The first rows in key order that match the filter; the bucket is read piece by piece until there are enough."""
    found: list[pa.RecordBatch] = []
    total = 0
    async with aclosing(pieces(bucket, wanted)) as state:
        async for rows, _ in state:
            found.append(rows.slice(0, limit - total))
            total += found[-1].num_rows
            if total >= limit:
                break
    return encode_ipc(pa.concat_batches(found))


async def count_matching_rows(bucket: KeyBucket, wanted: Wanted) -> tuple[int, int]:
    """(number of rows that match the filter, at which offset)."""
    counted, offset = 0, 0
    assert wanted.filter is not None
    # The columns of the filter carry the number.
    looked_at = Wanted(wanted.schema, list(wanted.filter.columns), wanted.filter)
    async for rows, taken_at in pieces(bucket, looked_at):
        counted, offset = counted + rows.num_rows, taken_at
    return counted, offset


async def pieces(bucket: KeyBucket, wanted: Wanted) -> AsyncGenerator[tuple[pa.RecordBatch, int], None]:
    """A bucket's state at one offset, which is given with each piece; there is at least one piece."""
    snapshot: StoreSnapshot = await bucket.read(lambda store: store.snapshot())
    snapshot.seek(KeyRange())
    has_more = True
    try:
        while has_more:
            bucket.check_open()
            rows, has_more = await bucket.services.run(_next_rows, snapshot, bucket.versions, wanted)
            yield rows, snapshot.applied_offset
    finally:
        snapshot.end()


def _next_rows(snapshot: StoreSnapshot, versions: Versions, wanted: Wanted) -> tuple[pa.RecordBatch, bool]:
    values, _, has_more = snapshot.next_rows(_PIECE_BYTES, sys.maxsize)
    return _decoded(pa.array(values, pa.binary()), versions, wanted), has_more


def row_count(store: KeyValueStore) -> tuple[int, int]:
    """(number of rows, at which offset), both of one moment, whatever is written meanwhile."""
    offset, count = store.applied
    return count, offset


def _key_rows(
    schema: Schema, names: tuple[str, ...], keys: memoryview, keys_max: int, bytes_max: int | None = None
) -> pa.RecordBatch:
    expected = pa.schema([column.field() for column in schema.select(names)])
    try:
        rows = decode_ipc(keys, expected, untrusted=True, rows_max=keys_max, bytes_max=bytes_max)
    except DecodeError as error:
        raise TableError(
            TableErrorCode.INVALID_KEY, f"keys must be rows of ({', '.join(names)}): {error}"
        ) from None
    return rows


# -- log tables --------------------------------------------------------------------------------------------


async def last_rows(bucket: LogBucket, limit: int, wanted: Wanted) -> Rows:
    """The last rows below the high watermark (that match the filter), in log order."""
    partition = bucket.partition
    end = partition.high_watermark
    reach = limit
    while True:
        start = max(partition.log.log_start_offset, end - reach)
        batches: list[pa.RecordBatch] = []
        offset = start
        while offset < end:
            found = partition.read(offset, 8 << 20)
            if found.region is None:
                break
            rows, offset = await bucket.services.run(
                _rows_of, found.region, bucket.versions, start, end, wanted
            )
            batches.extend(rows)
        total = sum(batch.num_rows for batch in batches)
        if total >= limit or start <= partition.log.log_start_offset:
            break
        reach *= 4  # batches without rows take offsets too
    table = pa.Table.from_batches(batches, schema=_selected(wanted))
    tail = table.slice(max(0, total - limit)).combine_chunks().to_batches()
    return encode_ipc(tail[0] if tail else pa.RecordBatch.from_pylist([], schema=table.schema))


def _selected(wanted: Wanted) -> pa.Schema:
    arrow = wanted.schema.arrow()
    return arrow if wanted.columns is None else pa.schema([arrow.field(index) for index in wanted.columns])


def _rows_of(
    region: FileRegion, versions: Versions, start: int, end: int, wanted: Wanted
) -> tuple[list[pa.RecordBatch], int]:
    """Rows with start <= offset < end of whole log batches, and where the batches end."""
    rows = []
    next_offset = start
    data = memoryview(region.read())
    known = versions()
    chosen = None if wanted.filter is None else BatchFilter(wanted.filter, known)
    for position, header in headers_of(region):
        next_offset = header.next_offset
        if chosen is not None and chosen.verdict(region, position, header) is Verdict.NONE:
            continue
        stored = ArrowBatch.parse(data[position : position + header.size])
        batch = stored.to_record_batch(known.get(stored.schema_id).arrow())
        first, last = max(0, start - header.base_offset), min(batch.num_rows, end - header.base_offset)
        if first < last:
            part, source = batch.slice(first, last - first), stored.schema_id
            rows.append(
                wanted.rows(
                    lambda columns, source=source, part=part: (  # type: ignore[misc]
                        known.conversion(source, wanted.schema, columns).of(part)
                    )
                )
            )
    return rows, next_offset


async def count_log_rows(bucket: LogBucket) -> tuple[int, int]:
    """(rows from the log's start, up to which offset). Headers are read once and remembered."""
    partition, counted = bucket.partition, bucket.counted
    start, end = partition.log.log_start_offset, partition.high_watermark
    if counted is None or counted.start != start:
        counted = Counted(start, start, 0)
    while counted.end < end:
        found = partition.read(counted.end, 64 << 20)
        if found.region is None:
            break
        counted = await bucket.services.run(_count, found.region, counted)
    bucket.counted = counted
    return counted.rows, counted.end


async def count_matching_log_rows(bucket: LogBucket, wanted: Filter) -> tuple[int, int]:
    """(rows from the log's start that match, up to which offset). Batches that statistics decide are not read."""
    partition = bucket.partition
    start, end = partition.log.log_start_offset, partition.high_watermark
    offset, counted = start, 0
    while offset < end:
        bucket.check_open()
        found = partition.read(offset, 16 << 20, True, end)
        if found.region is None:
            break
        rows, offset = await bucket.services.run(
            _count_matching, found.region, bucket.versions, wanted, start
        )
        counted += rows
    return counted, offset


def _count_matching(region: FileRegion, versions: Versions, wanted: Filter, start: int) -> tuple[int, int]:
    chosen = BatchFilter(wanted, versions())
    counted = next_offset = 0
    for position, header in headers_of(region):
        next_offset = header.next_offset
        verdict = chosen.verdict(region, position, header)
        gone = max(0, start - header.base_offset)
        if verdict is Verdict.ALL:
            counted += max(0, header.record_count - gone)
        elif verdict is Verdict.SOME:
            counted += int(chosen.mask(region, position, header)[gone:].sum())
    return counted, next_offset


class Counted(msgspec.Struct, frozen=True):
    """Rows counted from `start` up to `end`."""

    start: int
    end: int
    rows: int


def _count(region: FileRegion, counted: Counted) -> Counted:
    rows, end = counted.rows, counted.end
    for _, header in headers_of(region):
        if header.next_offset > end:
            # Of the batch that holds the log's start only the rows from there on are left.
            rows += max(0, header.record_count - max(0, counted.start - header.base_offset))
            end = header.next_offset
    return Counted(counted.start, end, rows)


# -- snapshot scans ----------------------------------------------------------------------------------------


class SnapshotScan:
    """A bucket's state at one offset, read piece by piece; one piece at a time."""

    def __init__(
        self,
        bucket: KeyBucket,
        snapshot: StoreSnapshot,
        wanted: Wanted,
        keys: KeyRange,
        limit: int | None = None,
        past_offset: int | None = None,
        client: str = "",
    ) -> None:
        """`past_offset`: the past state that is read, to be given back. `client`: the host that may go on."""
        self.client = client
        self.bucket = bucket
        self.wanted = wanted
        self.log_offset = snapshot.applied_offset
        self.past_offset = past_offset
        self.expires_at = 0.0
        self.turn = asyncio.Lock()
        self.next_piece = 0
        self._snapshot = snapshot
        self._place = self._before = (keys, limit)
        snapshot.seek(keys)

    def rows_of(self, piece: int, max_bytes: int) -> tuple[Rows, bytes | None, bool]:
        """(rows in key order, the last one's key, whether there may be more). The piece is the next one, or the one
        before it, once more. Blocking; raises TableError(SCAN_EXPIRED)."""
        if piece == self.next_piece - 1:
            self._place, self.next_piece = self._before, piece
            self._snapshot.seek(self._place[0])
        elif piece != self.next_piece:
            raise TableError(
                TableErrorCode.SCAN_EXPIRED,
                f"the scan is at piece {self.next_piece}, not at {piece}; begin again",
            )
        keys, left = self._place
        values, last, has_more = self._snapshot.next_rows(max_bytes, sys.maxsize if left is None else left)
        rows = _decoded(pa.array(values, pa.binary()), self.bucket.versions, self.wanted)
        if left is not None:
            left -= rows.num_rows
            has_more = has_more and left > 0
        self._before = self._place
        self._place = (keys if last is None else keys.after(last), left)
        self.next_piece += 1
        return encode_ipc(rows), last, has_more

    def end(self) -> None:
        """Let go of the store's files."""
        self._snapshot.end()


def key_range(schema: Schema, request: m.ScanSnapshotRequest) -> KeyRange:
    """The keys that a scan asks for. Raises TableError(INVALID_KEY)."""
    lower, upper = ROW_PREFIX, None
    if request.lower is not None:
        bound = _bound(schema, request.lower, request.lower_columns)
        lower = bound if request.lower_inclusive else successor(bound)
    if request.upper is not None:
        bound = _bound(schema, request.upper, request.upper_columns)
        upper = successor(bound) if request.upper_inclusive else bound
    if upper is not None and upper < lower:
        upper = lower
    keys = KeyRange(lower, upper)
    return keys if request.after is None else keys.after(request.after)


def _bound(schema: Schema, rows: memoryview, count: int) -> bytes:
    if not 1 <= count <= len(schema.primary_key):
        raise TableError(
            TableErrorCode.INVALID_KEY,
            f"a bound has from 1 to {len(schema.primary_key)} columns of the primary key, not {count}",
        )
    names = schema.primary_key[:count]
    bounds = row_keys(schema, _key_rows(schema, names, rows, 1), names)
    if len(bounds) != 1:
        raise TableError(TableErrorCode.INVALID_KEY, f"a bound is one row, not {len(bounds)}")
    bound: bytes = bounds[0].as_py()
    return bound
