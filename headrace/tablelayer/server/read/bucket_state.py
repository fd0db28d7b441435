"""Reads of one bucket's state: lookup, prefix lookup, limit scan, count and snapshot scan.

Reads of a primary-key table see the key-value store alone, which has replicated rows only; the log's end does not
matter (R12). Functions with a `store` block, and are called in executor threads.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.protocol.errors import DecodeError
from headrace.protocol.records.header import BatchHeader
from headrace.tablelayer.model.batches.batch import ArrowBatch
from headrace.tablelayer.model.batches.ipc import STORED_BYTES_MAX, decode_ipc, encode_ipc
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.filters.filters import Filter, Verdict
from headrace.tablelayer.model.messages.read import ScanSnapshotRequest
from headrace.tablelayer.model.rows.versions import SchemaVersions, decode_stored
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.server import stored_message
from headrace.tablelayer.server.bucket.log_bucket import Counted, LogBucket
from headrace.tablelayer.server.merge.engines import few_row_keys, row_keys
from headrace.tablelayer.server.read.batch_filter import BatchFilter
from headrace.tablelayer.server.read.stored_groups import FilteredGroups
from headrace.tablelayer.server.regions import headers_of
from headrace.tablelayer.server.room import Room
from headrace.tablelayer.server.store.keys import key_rows
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.server.store.layout import ROW_PREFIX, KeyRange, successor
from headrace.tablelayer.server.store.sorted_tables import StoredRows
from headrace.tablelayer.server.store.store_snapshot import StoreSnapshot

if TYPE_CHECKING:
    from headrace.broker.log.region import FileRegion
    from headrace.broker.partitions.partition import Partition
    from headrace.tablelayer.server.bucket.key_bucket import KeyBucket
    from headrace.tablelayer.server.services import Services

Rows = bytes | memoryview
Indices = npt.NDArray[np.int64]
_PIECE_BYTES = 4 << 20
_FEW_KEYS = 8  # up to this number, single values are faster than columns
_FEW_KEYS_BYTES = 4 << 10
FEW_ROWS_BYTES = 64 << 10  # some ten microseconds of the event loop
_SORT_KEYS_FROM = 4096  # below this number, sorting costs more than it saves
_REACH_MIN = 1024  # number of offsets searched at once for few rows
_REACH_MAX = 1 << 18
_REGION_BYTES = 8 << 20


class Wanted(msgspec.Struct, frozen=True):
    """The columns that a reader requests, by position in one of the table's schemas (None: all), and its filter (None:
    all rows).
    """

    schema: Schema
    columns: list[int] | None
    filter: Filter | None = None

    @classmethod
    def of(
        cls,
        definition: StoredTable,
        schema_id: int,
        column_ids: Sequence[int] | None,
        condition: bytes | None = None,
    ) -> Wanted:
        """Return the requested columns and rows. `schema_id` -1 is the latest schema.

        Raises TableError(INVALID_PROJECTION, UNKNOWN_SCHEMA_ID or INVALID_FILTER). With a condition it may block: use
        `asked` on the event loop.
        """
        schema = definition.schema if schema_id == -1 else definition.versions.get(schema_id)
        chosen = None if condition is None else Filter.parse(condition, schema)
        return cls(schema, column_positions(schema, column_ids), chosen)

    @classmethod
    async def asked(
        cls,
        services: Services,
        definition: StoredTable,
        schema_id: int,
        column_ids: Sequence[int] | None,
        condition: bytes | None,
    ) -> Wanted:
        """Do the same as `of`; a filter is parsed in an executor thread."""
        if condition is None:
            return cls.of(definition, schema_id, column_ids)
        return await services.run(cls.of, definition, schema_id, column_ids, condition)

    def rows(self, convert: Callable[[Sequence[int] | None], pa.RecordBatch]) -> pa.RecordBatch:
        """Return the requested rows and columns.

        `convert` returns all rows with the given columns of the schema (ascending positions); the filter's columns are
        included.
        """
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
        """Whether every column is requested."""
        return self.columns is None or len(self.columns) == len(self.schema.columns)

    @property
    def filter_ids(self) -> frozenset[int]:
        """The ids of the filter's columns."""
        used = () if self.filter is None else self.filter.columns
        return frozenset(self.schema.columns[index].id for index in used)

    @property
    def ids(self) -> frozenset[int]:
        chosen = range(len(self.schema.columns)) if self.columns is None else self.columns
        return frozenset(self.schema.columns[index].id for index in chosen)


Versions = Callable[[], SchemaVersions]
"""Returns the table's schemas; called after rows were read, so that it has the schemas of those rows."""


def column_positions(schema: Schema, column_ids: Sequence[int] | None) -> list[int] | None:
    """Return the positions of the requested columns; None for all. Raises TableError(INVALID_PROJECTION)."""
    if column_ids is None:
        return None
    if len(column_ids) > len(schema.columns):
        raise TableError(
            TableErrorCode.INVALID_PROJECTION,
            f"{len(column_ids)} columns are requested, but there are {len(schema.columns)}",
        )
    positions = {column.id: index for index, column in enumerate(schema.columns)}
    chosen = [positions[column.id] for column in schema.columns_by_ids(column_ids)]
    if not chosen or chosen != sorted(set(chosen)):
        raise TableError(
            TableErrorCode.INVALID_PROJECTION,
            f"the columns are {list(column_ids)}; name at least one id, each once and in the table's order",
        )
    return chosen


def _rows(
    values: Sequence[bytes | None], versions: Versions, wanted: Wanted, order: Indices | None = None
) -> Rows:
    """Return stored rows in the reader's columns (R4.2). `order` has the index of each row's value, if they are not in
    order.
    """
    message = stored_message.message_of(values, wanted.schema, wanted.columns, order)
    if message is not None:
        return message
    stored = pa.array(values, pa.binary())
    return encode_ipc(_decoded(stored if order is None else stored.take(pa.array(order)), versions, wanted))


def _decoded(values: pa.BinaryArray, versions: Versions, wanted: Wanted) -> pa.RecordBatch:
    return wanted.rows(lambda columns: decode_stored(values, versions(), wanted.schema, columns))


def _matching(rows: StoredRows, versions: Versions, wanted: Wanted) -> StoredRows:
    """Return the rows that match the filter. Only its columns are decoded."""
    if wanted.filter is None or not len(rows):
        return rows
    mask = wanted.filter.mask(_columns(rows, versions, wanted.schema, wanted.filter.columns))
    return rows if mask.all() else rows.take(mask)


def _groups(wanted: Wanted) -> FilteredGroups | None:
    return None if wanted.filter is None else FilteredGroups(wanted.filter)


def _columns(
    rows: StoredRows, versions: Versions, schema: Schema, columns: Sequence[int] | None
) -> pa.RecordBatch:
    """Return these columns (ascending positions; None: all) of stored rows."""
    message = stored_message.message_at(rows.addresses, rows.lengths, schema, columns)
    if message is None:
        return decode_stored(rows.array(), versions(), schema, columns)
    arrow = schema.arrow()
    return decode_ipc(
        message, arrow if columns is None else pa.schema([arrow.field(each) for each in columns])
    )


def lookup(
    store: KeyValueStore, versions: Versions, keys: memoryview, wanted: Wanted, keys_max: int, room: Room
) -> tuple[bytes, Rows]:
    """Return (found flags, rows in the order of the keys) for as many of the first keys as fit into `room`.

    The flags have a byte for each key: 1 for found, else 0. Raises TableError(INVALID_KEY).
    """
    schema = wanted.schema
    rows = key_rows(schema, schema.primary_key, keys, keys_max)
    if rows.num_rows <= _FEW_KEYS:
        values = store.get_while(few_row_keys(schema, rows), room)
        return _found(values), _rows(values, versions, wanted)
    values, order = _values_of(store, row_keys(schema, rows), room)
    found = _found(values)
    if order is not None:
        found = np.frombuffer(found, np.uint8)[order].tobytes()
    return found, _rows(values, versions, wanted, order)


def lookup_in_memory(
    store: KeyValueStore, versions: Versions, keys: memoryview, wanted: Wanted, keys_max: int, room: Room
) -> tuple[bytes, Rows] | None:
    """Do the same as `lookup` without blocking. Return None for more than a few keys or bytes, or if rows are not in
    memory.
    """
    if len(keys) > _FEW_KEYS_BYTES or not stored_message.is_loaded():
        return None
    try:
        rows = key_rows(wanted.schema, wanted.schema.primary_key, keys, keys_max, bytes_max=_FEW_KEYS_BYTES)
    except TableError:
        return None  # wrong keys, or keys larger than they look: `lookup` raises the error
    cost = wanted.schema.row_cost
    few_bytes = FEW_ROWS_BYTES // cost.expansion
    if rows.num_rows > _FEW_KEYS or rows.num_rows * cost.width > FEW_ROWS_BYTES:
        return None
    values = store.get_in_memory(few_row_keys(wanted.schema, rows), few_bytes)
    if values is None or len(room.again().those_that_fit(values)) < len(values):
        return None
    room.those_that_fit(values)
    return _found(values), _rows(values, versions, wanted)


def _found(values: Sequence[bytes | None]) -> bytes:
    """Return a byte for each value: 1, or 0 if there is no row."""
    if None not in values:
        return b"\x01" * len(values)
    return bytes([value is not None for value in values])


def _values_of(
    store: KeyValueStore, keys: pa.BinaryArray, room: Room
) -> tuple[list[bytes | None], Indices | None]:
    """Return the stored rows of as many of the first keys as fit into `room` (None: no row), and their index for each
    key.

    An index of None means that the rows are in the order of the keys. Many keys are read in sorted order, because
    neighbours share blocks.
    """
    if len(keys) < _SORT_KEYS_FROM:
        return store.get_while(keys.to_pylist(), room), None
    order = pc.sort_indices(keys)
    sorted_room = room.again()
    values = store.get_while(keys.take(order).to_pylist(), sorted_room)
    if sorted_room.is_full:  # only some fit, which must be the first ones
        return store.get_while(keys.to_pylist(), room), None
    room.used = sorted_room.used
    back = np.empty(len(keys), np.int64)
    back[order.to_numpy()] = np.arange(len(keys))
    return values, back


def prefix_lookup(
    store: KeyValueStore,
    versions: Versions,
    prefix_length: int,
    prefixes: memoryview,
    wanted: Wanted,
    keys_max: int,
    room: Room,
    after: bytes | None = None,
) -> tuple[bytes, Rows, bytes | None]:
    """Return (row counts, rows, cursor) for as many of the first prefixes as fit into `room`.

    Counts are int32, little endian, one for each prefix; the cursor is where the last prefix continues, or None.
    `prefix_length` is the number of primary-key columns in a prefix. `after` is where the first prefix continues.
    Raises TableError(INVALID_KEY).
    """
    # Every schema has the same primary-key columns, perhaps renamed.
    names = wanted.schema.primary_key[:prefix_length]
    sought = row_keys(wanted.schema, key_rows(wanted.schema, names, prefixes, keys_max), names)
    counts, values, cursor = store.values_by_prefix(sought.to_pylist(), room, after)
    rows = _rows(values, versions, wanted)
    return np.array(counts, "<i4").tobytes(), rows, cursor


class LimitedRows(msgspec.Struct, frozen=True):
    """A limit scan's rows from one bucket. `has_more`: not all rows fitted; in a log table the rest is below
    `start_offset`.
    """

    rows: Rows
    has_more: bool = False
    start_offset: int = -1


def first_rows(
    store: KeyValueStore, versions: Versions, limit: int, wanted: Wanted, room: Room
) -> LimitedRows:
    """Return the first rows in key order."""
    values = store.values_while(ROW_PREFIX, limit, room)
    return LimitedRows(_rows(values, versions, wanted), room.is_full)


def first_rows_in_memory(
    store: KeyValueStore, limit: int, wanted: Wanted, bytes_max: int
) -> LimitedRows | None:
    """Do the same as `first_rows` without blocking.

    Return None if the rows are not in memory, take more than `bytes_max`, or have another schema.
    """
    if not stored_message.is_loaded():
        return None
    values, cost = store.first_in_memory(limit), wanted.schema.row_cost
    if values is None or len(values) * cost.width + cost.expansion * sum(map(len, values)) > bytes_max:
        return None
    rows = stored_message.message_of(values, wanted.schema, wanted.columns)
    return None if rows is None else LimitedRows(rows)


async def first_matching_rows(bucket: KeyBucket, limit: int, wanted: Wanted, room: Room) -> LimitedRows:
    """Return the first matching rows in key order; the bucket is read in pieces until there are enough."""
    found: list[pa.RecordBatch] = []
    total = 0
    async with aclosing(pieces(bucket, wanted)) as state:
        async for rows, _ in state:
            fitting = fitting_rows(rows.slice(0, limit - total), room)
            found.append(fitting)
            total += fitting.num_rows
            if room.is_full or total >= limit:
                break
    return LimitedRows(await bucket.services.run(_joined, found, _selected(wanted)), room.is_full)


def fitting_rows(rows: pa.RecordBatch, room: Room) -> pa.RecordBatch:
    """Return the first rows, as many as fit; otherwise a half, a quarter ... of them."""
    while rows.num_rows and not room.takes(rows.nbytes, rows.num_rows):
        rows = rows.slice(0, rows.num_rows // 2)
    return rows


async def count_matching_rows(bucket: KeyBucket, wanted: Wanted) -> tuple[int, int]:
    """Return (number of matching rows, offset of the state)."""
    counted, offset = 0, 0
    assert wanted.filter is not None
    # The filter's columns carry the number of rows.
    looked_at = Wanted(wanted.schema, list(wanted.filter.columns), wanted.filter)
    async for rows, taken_at in pieces(bucket, looked_at):
        counted, offset = counted + rows.num_rows, taken_at
    return counted, offset


async def pieces(bucket: KeyBucket, wanted: Wanted) -> AsyncGenerator[tuple[pa.RecordBatch, int], None]:
    """Yield a bucket's state at one offset in pieces, each with that offset; there is at least one piece."""
    snapshot: StoreSnapshot = await bucket.read(lambda store: store.snapshot())
    snapshot.seek(KeyRange(), _groups(wanted))
    has_more = True
    try:
        while has_more:
            bucket.check_open()
            rows, has_more = await bucket.services.run(_next_rows, snapshot, bucket.versions, wanted)
            yield rows, snapshot.applied_offset
    finally:
        snapshot.end()


def _next_rows(snapshot: StoreSnapshot, versions: Versions, wanted: Wanted) -> tuple[pa.RecordBatch, bool]:
    rows, _, has_more = snapshot.next_rows(_PIECE_BYTES, sys.maxsize, wanted.schema.row_cost)
    return _columns(_matching(rows, versions, wanted), versions, wanted.schema, wanted.columns), has_more


def row_count(store: KeyValueStore) -> tuple[int, int]:
    """Return (number of rows, offset), both at the same moment."""
    offset, count = store.applied
    return count, offset


# -- log tables --------------------------------------------------------------------------------------------


async def last_rows(
    bucket: LogBucket, limit: int, wanted: Wanted, room: Room, before: int = -1
) -> LimitedRows:
    """Return the last rows (that match the filter) below the high watermark or `before`, in log order.

    The log is read backwards, a region of batches at a time.
    """
    partition = bucket.partition
    start = partition.high_watermark if before < 0 else min(before, partition.high_watermark)
    found: list[pa.RecordBatch] = []
    total, reach = 0, max(limit, _REACH_MIN)
    while total < limit and start > partition.log.log_start_offset and not room.is_full:
        top, start = start, max(partition.log.log_start_offset, start - reach)
        for place in reversed(await _regions_between(partition, start, top)):
            bucket.check_open()
            place = max(place, partition.log.log_start_offset)
            region = (await partition.read_anywhere(place, _REGION_BYTES, True)).region
            if region is None:
                continue  # the log's start has moved
            rows, at = await bucket.services.run_on(
                region, partition, _last_of, region, bucket, (place, top), wanted, limit - total, room
            )
            found.extend(rows)
            total += sum(each.num_rows for each in rows)
            if room.is_full or total >= limit:
                start = at
                break
            top = place
        reach = min(4 * reach, _REACH_MAX)  # batches without rows take offsets too
    chosen = _selected(wanted)
    if room.used <= FEW_ROWS_BYTES and len(found) <= _FEW_KEYS:
        return LimitedRows(_joined(found[::-1], chosen), room.is_full, start)
    joined = await bucket.services.run(_joined, found[::-1], chosen)
    return LimitedRows(joined, room.is_full, start)


async def _regions_between(partition: Partition, start: int, end: int) -> list[int]:
    """Return the start offsets of regions of batches that together have all offsets from `start` to below `end`."""
    places: list[int] = []
    while start < end:
        found = await partition.read_anywhere(start, _REGION_BYTES, True)
        if found.region is None:
            break
        places.append(start)
        start = found.end_offset
        if len(places) % 16 == 0:
            await asyncio.sleep(0)
    return places


def _joined(found: Sequence[pa.RecordBatch], schema: pa.Schema) -> Rows:
    return encode_ipc(pa.concat_batches(found) if found else pa.RecordBatch.from_pylist([], schema=schema))


def _selected(wanted: Wanted) -> pa.Schema:
    arrow = wanted.schema.arrow()
    return arrow if wanted.columns is None else pa.schema([arrow.field(index) for index in wanted.columns])


def _last_of(
    region: FileRegion, bucket: LogBucket, offsets: tuple[int, int], wanted: Wanted, limit: int, room: Room
) -> tuple[list[pa.RecordBatch], int]:
    """Return the last matching rows of a region with offsets[0] <= offset < offsets[1], and where the search began.

    The last batch is first. There are at most `limit` rows, and as many as fit into `room`.
    """
    found: list[pa.RecordBatch] = []
    at = offsets[1]
    for position, header in reversed(list(headers_of(region))):
        try:
            rows, at = _last_of_batch(
                region, position, header, bucket.versions(), offsets, wanted, limit, room
            )
        except DecodeError as error:
            bucket.unreadable(header, error)
            continue
        found.append(rows)
        limit -= rows.num_rows
        if room.is_full or not limit:
            break
    return found, at


def _last_of_batch(
    region: FileRegion,
    position: int,
    header: BatchHeader,
    versions: SchemaVersions,
    offsets: tuple[int, int],
    wanted: Wanted,
    limit: int,
    room: Room,
) -> tuple[pa.RecordBatch, int]:
    nothing = pa.RecordBatch.from_pylist([], schema=_selected(wanted))
    first = max(0, offsets[0] - header.base_offset)
    last = min(header.record_count, offsets[1] - header.base_offset)
    chosen = None if wanted.filter is None else BatchFilter(wanted.filter, versions)
    if first >= last or (chosen is not None and chosen.verdict(region, position, header) is Verdict.NONE):
        return nothing, header.base_offset + first
    stored = ArrowBatch.parse(region.read_at(position, header.size))
    source = stored.schema_id
    batch = stored.to_record_batch(versions.get(source).arrow(), bytes_max=STORED_BYTES_MAX)
    if wanted.filter is None:
        first = max(first, last - limit)
    while first < last:
        part = batch.slice(first, last - first)
        rows = wanted.rows(lambda columns: versions.conversion(source, wanted.schema, columns).of(part))  # noqa: B023
        rows = rows.slice(max(0, rows.num_rows - limit))
        if room.takes(rows.nbytes, rows.num_rows):
            return rows, header.base_offset + first
        first += max(1, (last - first) // 2)
    return nothing, header.base_offset + last


async def count_log_rows(bucket: LogBucket) -> tuple[int, int]:
    """Return (rows since the log's start, end offset). Counted headers are not read again."""
    partition, counted = bucket.partition, bucket.counted
    start, end = partition.log.log_start_offset, partition.high_watermark
    if counted is None or counted.start != start:
        counted = Counted(start, start, 0)
    while counted.end < end:
        found = await partition.read_anywhere(counted.end, 64 << 20)
        if found.region is None:
            break
        counted = await bucket.services.run_on(found.region, partition, _count, found.region, counted)
    bucket.counted = counted
    return counted.rows, counted.end


async def count_matching_log_rows(bucket: LogBucket, wanted: Filter) -> tuple[int, int]:
    """Return (matching rows since the log's start, end offset). Batches that statistics decide are not read."""
    partition = bucket.partition
    start, end = partition.log.log_start_offset, partition.high_watermark
    offset, counted = start, 0
    while offset < end:
        bucket.check_open()
        found = await partition.read_anywhere(offset, 16 << 20, True, end)
        if found.region is None:
            break
        rows, offset = await bucket.services.run_on(
            found.region, partition, _count_matching, found.region, bucket.versions, wanted, start
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


def _count(region: FileRegion, counted: Counted) -> Counted:
    rows, end = counted.rows, counted.end
    for _, header in headers_of(region):
        if header.next_offset > end:
            # The batch with the log's start has only the rows from there on.
            rows += max(0, header.record_count - max(0, counted.start - header.base_offset))
            end = header.next_offset
    return Counted(counted.start, end, rows)


# -- snapshot scans ----------------------------------------------------------------------------------------


class SnapshotScan:
    """A bucket's state at one offset, read in pieces, one at a time."""

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
        """Begin a scan. `past_offset` is the past state to release at the end; `client` is the host of the reader."""
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
        self._groups = _groups(wanted)
        snapshot.seek(keys, self._groups)

    def rows_of(self, piece: int, max_bytes: int) -> tuple[Rows, bytes | None, bool]:
        """Return (rows in key order, the last row's key, whether there may be more).

        `piece` is the next piece, or the previous one again. Blocking; raises TableError(SCAN_EXPIRED).
        """
        if piece == self.next_piece - 1:
            self._place, self.next_piece = self._before, piece
            self._snapshot.seek(self._place[0], self._groups)
        elif piece != self.next_piece:
            raise TableError(
                TableErrorCode.SCAN_EXPIRED,
                f"the scan is at piece {self.next_piece}, not {piece}; start the scan again",
            )
        keys, left = self._place
        rows, last, has_more = self._snapshot.next_rows(
            max_bytes, sys.maxsize if left is None else left, self.wanted.schema.row_cost
        )
        rows = _matching(rows, self.bucket.versions, self.wanted)
        if left is not None:
            left -= len(rows)
            has_more = has_more and left > 0
        self._before = self._place
        self._place = (keys if last is None else keys.after(last), left)
        self.next_piece += 1
        schema, columns = self.wanted.schema, self.wanted.columns
        message: Rows | None = stored_message.message_at(rows.addresses, rows.lengths, schema, columns)
        if message is None:
            message = encode_ipc(_columns(rows, self.bucket.versions, schema, columns))
        return message, last, has_more

    def end(self) -> None:
        """Release the store's files."""
        self._snapshot.end()


def key_range(schema: Schema, request: ScanSnapshotRequest) -> KeyRange:
    """Return the key range of a scan request. Raises TableError(INVALID_KEY)."""
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
    bounds = row_keys(schema, key_rows(schema, names, rows, 1), names)
    if len(bounds) != 1:
        raise TableError(TableErrorCode.INVALID_KEY, f"a bound is one row, not {len(bounds)}")
    bound: bytes = bounds[0].as_py()
    return bound
