"""Reads of one bucket's state: lookup, prefix lookup, limit scan, count and snapshot scan.

Reads of a primary-key table see the key-value store alone, which never has what is not replicated; the log's end
does not matter to them (R12). Functions with a `store` block and are called in executor threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from protocol.errors import DecodeError
from tablelayer.model.arrays import validity
from tablelayer.model.batch import ArrowBatch
from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.ipc import decode_ipc, encode_ipc
from tablelayer.model.rows import decode_rows
from tablelayer.model.schema import Schema
from tablelayer.server.bucket import headers_of
from tablelayer.server.kv import ROW_PREFIX, KeyValueStore, StoreSnapshot
from tablelayer.server.merge import row_keys

if TYPE_CHECKING:
    from broker.log.region import FileRegion
    from tablelayer.server.key_bucket import KeyBucket
    from tablelayer.server.log_bucket import LogBucket

Rows = bytes | memoryview
_SORT_KEYS_FROM = 4096  # below, sorting costs more than it saves


def column_positions(schema: Schema, column_ids: Sequence[int] | None) -> list[int] | None:
    """Positions of the columns asked for; None for all. Raises TableError(INVALID_PROJECTION)."""
    if column_ids is None:
        return None
    columns = schema.columns_by_ids(column_ids)
    if not columns or list(column_ids) != sorted(set(column_ids)):
        raise TableError(
            TableErrorCode.INVALID_PROJECTION,
            f"columns are given by id, at least one, each once and in ascending order, not {list(column_ids)}",
        )
    positions = {column.id: index for index, column in enumerate(schema.columns)}
    return [positions[column.id] for column in columns]


def lookup(
    store: KeyValueStore, schema: Schema, keys: memoryview, columns: list[int] | None, keys_max: int
) -> tuple[bytes, Rows]:
    """(a byte for each key: found or not, rows in the order of the keys). Raises TableError(INVALID_KEY)."""
    wanted = row_keys(schema, _key_rows(schema, schema.primary_key, keys, keys_max))
    values = _values_of(store, wanted)
    valid = validity(values)
    found = np.ones(len(values), np.uint8) if valid is None else valid.astype(np.uint8)
    return found.tobytes(), encode_ipc(decode_rows(values, schema, columns))


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
    schema: Schema,
    bucket_key: tuple[str, ...],
    prefixes: memoryview,
    columns: list[int] | None,
    keys_max: int,
) -> tuple[bytes, Rows]:
    """(rows per prefix as int32, little endian, rows one after the other). Raises TableError(INVALID_KEY)."""
    wanted = row_keys(schema, _key_rows(schema, bucket_key, prefixes, keys_max), bucket_key)
    counts, values = store.values_by_prefix(wanted.to_pylist())
    rows = decode_rows(pa.array(values, pa.binary()), schema, columns)
    return np.array(counts, "<i4").tobytes(), encode_ipc(rows)


def first_rows(store: KeyValueStore, schema: Schema, limit: int, columns: list[int] | None) -> Rows:
    """The first rows in key order."""
    values = pa.array(store.values_from(ROW_PREFIX, limit), pa.binary())
    return encode_ipc(decode_rows(values, schema, columns))


def row_count(store: KeyValueStore) -> tuple[int, int]:
    """(number of rows, at which offset). Read together: a write changes both in one go, count last."""
    while True:
        offset, count = store.applied_offset, store.row_count
        if store.applied_offset == offset:
            return count, offset


def _key_rows(schema: Schema, names: tuple[str, ...], keys: memoryview, keys_max: int) -> pa.RecordBatch:
    expected = pa.schema([column.field() for column in schema.select(names)])
    try:
        rows = decode_ipc(keys, expected, untrusted=True)
    except DecodeError as error:
        raise TableError(
            TableErrorCode.INVALID_KEY, f"keys must be rows of ({', '.join(names)}): {error}"
        ) from None
    if rows.num_rows > keys_max:
        raise TableError(
            TableErrorCode.INVALID_KEY, f"{rows.num_rows} keys in one lookup; {keys_max} is the most"
        )
    return rows


# -- log tables --------------------------------------------------------------------------------------------


async def last_rows(bucket: LogBucket, limit: int, columns: list[int] | None) -> Rows:
    """The last rows below the high watermark, in log order."""
    partition, schema = bucket.partition, bucket.definition.schema
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
            rows, offset = await bucket.services.run(_rows_of, found.region, schema, start, end, columns)
            batches.extend(rows)
        total = sum(batch.num_rows for batch in batches)
        if total >= limit or start <= partition.log.log_start_offset:
            break
        reach *= 4  # batches without rows take offsets too
    table = pa.Table.from_batches(batches, schema=_selected(schema, columns))
    tail = table.slice(max(0, total - limit)).combine_chunks().to_batches()
    return encode_ipc(tail[0] if tail else pa.RecordBatch.from_pylist([], schema=table.schema))


def _selected(schema: Schema, columns: list[int] | None) -> pa.Schema:
    arrow = schema.arrow()
    return arrow if columns is None else pa.schema([arrow.field(index) for index in columns])


def _rows_of(
    region: FileRegion, schema: Schema, start: int, end: int, columns: list[int] | None
) -> tuple[list[pa.RecordBatch], int]:
    """Rows with start <= offset < end of whole log batches, and where the batches end."""
    rows = []
    next_offset = start
    data = memoryview(region.read())
    for position, header in headers_of(region):
        next_offset = header.next_offset
        batch = ArrowBatch.parse(data[position : position + header.size]).to_record_batch(schema.arrow())
        first, last = max(0, start - header.base_offset), min(batch.num_rows, end - header.base_offset)
        if first < last:
            chosen = batch if columns is None else batch.select(columns)
            rows.append(chosen.slice(first, last - first))
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


@dataclass(frozen=True, slots=True)
class Counted:
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

    def __init__(self, bucket: KeyBucket, snapshot: StoreSnapshot, columns: list[int] | None) -> None:
        self.bucket = bucket
        self.columns = columns
        self.log_offset = snapshot.applied_offset
        self.expires_at = 0.0
        self.busy = False
        self._snapshot = snapshot
        self._schema = bucket.definition.schema

    def next_rows(self, max_bytes: int) -> tuple[Rows, bool]:
        """More rows in key order, and whether there may be more. Blocking."""
        values, has_more = self._snapshot.next_values(max_bytes)
        return encode_ipc(decode_rows(pa.array(values, pa.binary()), self._schema, self.columns)), has_more
