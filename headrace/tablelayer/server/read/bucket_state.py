"""Reads of a primary-key bucket's state: lookup, prefix lookup, limit scan and count.

Reads of a primary-key table see the key-value store alone, which has replicated rows only; the log's end does not
matter (R12). Functions with a `store` block, and are called in executor threads.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.tablelayer.model.arrays.order import sorted_order
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.server import stored_message
from headrace.tablelayer.server.merge.engines import few_row_keys, row_keys
from headrace.tablelayer.server.read.wanted import (
    FEW_KEYS,
    FEW_ROWS_BYTES,
    Indices,
    LimitedRows,
    Rows,
    Versions,
    Wanted,
    answered_at,
    answered_rows,
    columns_of,
    joined_rows,
    matching_rows,
    selected_schema,
    wanted_groups,
)
from headrace.tablelayer.server.room import Room
from headrace.tablelayer.server.store.keys import key_rows
from headrace.tablelayer.server.store.kv import KeyValueStore
from headrace.tablelayer.server.store.layout import ROW_PREFIX, KeyRange
from headrace.tablelayer.server.store.store_snapshot import StoreSnapshot

if TYPE_CHECKING:
    from headrace.tablelayer.server.bucket.key_bucket import KeyBucket

_PIECE_BYTES = 4 << 20
_FEW_KEYS_BYTES = 4 << 10
_SORT_KEYS_FROM = 4096  # below this number, sorting costs more than it saves


def lookup(
    store: KeyValueStore, versions: Versions, keys: memoryview, wanted: Wanted, keys_max: int, room: Room
) -> tuple[bytes, Rows]:
    """Return (found flags, rows in the order of the keys) for as many of the first keys as fit into `room`.

    The flags have a byte for each key: 1 for found, else 0. Raises TableError(INVALID_KEY).
    """
    schema = wanted.schema
    rows = key_rows(schema, schema.primary_key, keys, keys_max)
    if rows.num_rows <= FEW_KEYS:
        values = store.get_while(few_row_keys(schema, rows), room)
        return _found(values), answered_rows(values, versions, wanted)
    values, order = _values_of(store, row_keys(schema, rows), room)
    found = _found(values)
    if order is not None:
        found = np.frombuffer(found, np.uint8)[order].tobytes()
    return found, answered_rows(values, versions, wanted, order)


def lookup_in_memory(
    store: KeyValueStore, versions: Versions, keys: memoryview, wanted: Wanted, keys_max: int, room: Room
) -> tuple[bytes, Rows] | None:
    """Do the same as `lookup` without blocking. Return None for more than a few keys or bytes, or if rows are not in
    memory.
    """
    if len(keys) > _FEW_KEYS_BYTES or not stored_message.is_loaded():
        return None
    schema = wanted.schema
    try:
        rows = key_rows(schema, schema.primary_key, keys, min(keys_max, FEW_KEYS), bytes_max=_FEW_KEYS_BYTES)
    except TableError:
        return None  # wrong keys, many, or larger than they look: `lookup` decodes them, or raises the error
    cost = schema.row_cost
    few_bytes = FEW_ROWS_BYTES // cost.expansion
    if rows.num_rows * cost.width > FEW_ROWS_BYTES:
        return None
    values = store.get_in_memory(few_row_keys(wanted.schema, rows), few_bytes)
    if values is None or len(room.again().those_that_fit(values)) < len(values):
        return None
    room.those_that_fit(values)
    return _found(values), answered_rows(values, versions, wanted)


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
    order = sorted_order(keys)
    sorted_room = room.again()
    values = store.get_while(keys.take(order).to_pylist(), sorted_room)
    if sorted_room.is_full:  # only some fit, which must be the first ones
        return store.get_while(keys.to_pylist(), room), None
    room.used = sorted_room.used
    back = np.empty(len(keys), np.int64)
    back[order] = np.arange(len(keys))
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
    listed = sought.to_pylist()
    found = store.rows_by_prefix(listed, room) if after is None else None
    if found is not None:
        counts, rows = found
        return counts.astype("<i4").tobytes(), answered_at(rows, versions, wanted), None
    row_counts, values, cursor = store.values_by_prefix(listed, room, after)
    return np.array(row_counts, "<i4").tobytes(), answered_rows(values, versions, wanted), cursor


def first_rows(
    store: KeyValueStore, versions: Versions, limit: int, wanted: Wanted, room: Room
) -> LimitedRows:
    """Return the first rows in key order."""
    values = store.values_while(ROW_PREFIX, limit, room)
    return LimitedRows(answered_rows(values, versions, wanted), room.is_full)


def first_rows_in_memory(
    store: KeyValueStore, limit: int, wanted: Wanted, bytes_max: int
) -> LimitedRows | None:
    """Do the same as `first_rows` without blocking.

    Return None if the rows are not in memory, take more than `bytes_max`, or have another schema.
    """
    if not stored_message.is_loaded():
        return None
    schema, columns, cost = wanted.schema, wanted.columns, wanted.schema.row_cost

    def encode(values: list[bytes]) -> LimitedRows | None:
        if len(values) * cost.width + cost.expansion * sum(map(len, values)) > bytes_max:
            return None
        rows = stored_message.message_of(values, schema, columns)
        return None if rows is None else LimitedRows(rows)

    form = schema.schema_id, None if columns is None else tuple(columns), bytes_max
    return store.first_in_memory(limit, form, encode)


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
    return LimitedRows(await bucket.services.run(joined_rows, found, selected_schema(wanted)), room.is_full)


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
    snapshot.seek(KeyRange(), wanted_groups(wanted))
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
    return columns_of(
        matching_rows(rows, versions, wanted), versions, wanted.schema, wanted.columns
    ), has_more


def row_count(store: KeyValueStore) -> tuple[int, int]:
    """Return (number of rows, offset), both at the same moment."""
    offset, count = store.applied
    return count, offset


# -- log tables --------------------------------------------------------------------------------------------


# -- snapshot scans ----------------------------------------------------------------------------------------
