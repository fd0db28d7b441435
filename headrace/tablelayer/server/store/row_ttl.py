"""Expiring rows (`table.kv.ttl`): the time of each row, stored beside the rows.

A row's time is that of its last write, or the value of its time column (without a value the row never expires). Each
row has two entries, written in the same atomic batch as the row, so that a crash, a replay or a snapshot never
separates them:

    00 't' <row key>          -> its time
    00 'e' <time> <row key>   -> nothing: the rows in the order of expiry

A row that is written again gets a new time; its old entry in the order is found stale, and removed at its time. So a
check reads little more than the expired rows, however many rows there are. Times are milliseconds, in 8 sortable bytes.
Pure; called in executor threads.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from struct import Struct

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.rows.stored import decode_rows
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import TableDefinition
from headrace.tablelayer.model.types.column_types import TypeKind
from headrace.tablelayer.server.store.kv import KeyValueStore

_TIME = b"\x00t"
_ORDER = b"\x00e"
_PACKED = Struct(">Q")
_SIGN = 1 << 63
_KEY_AT = len(_ORDER) + _PACKED.size

Entries = tuple[list[bytes], list[bytes | None]]


def _packed(time_ms: int) -> bytes:
    return _PACKED.pack(time_ms + _SIGN)


class RowTimes(msgspec.Struct, frozen=True):
    """The rule that gives the rows of a table their times. `column_id` None: the time of the last write."""

    column_id: int | None

    @classmethod
    def of(cls, definition: TableDefinition) -> RowTimes | None:
        """Return the table's rule; None if its rows do not expire."""
        settings = definition.settings
        if settings.kv_ttl_ms is None:
            return None
        name = settings.kv_ttl_time_column
        return cls(None if name is None else definition.schema.column(name).id)

    def entries(
        self, schema: Schema, keys: Sequence[bytes], values: Sequence[bytes | None], written_ms: int
    ) -> Entries:
        """Return the entries to store beside these rows, which are encoded in `schema`; a None value deletes."""
        times = self._times(schema, values, written_ms)
        stored = [_TIME + key for key in keys]
        marks: list[bytes | None] = list(times)
        ends = [_ORDER + time + key for key, time in zip(keys, times, strict=True) if time is not None]
        return stored + ends, marks + [b""] * len(ends)

    def _times(self, schema: Schema, values: Sequence[bytes | None], written_ms: int) -> list[bytes | None]:
        if self.column_id is None:
            packed = _packed(written_ms)
            return [None if value is None else packed for value in values]
        position = next(index for index, each in enumerate(schema.columns) if each.id == self.column_id)
        column = decode_rows(pa.array(values, pa.binary()), schema, [position]).column(0)
        if schema.columns[position].type.kind is not TypeKind.BIGINT:
            zone = column.type.tz
            column = pc.floor_temporal(column, unit="millisecond").cast(pa.timestamp("ms", zone))
            column = column.cast(pa.int64())
        return [None if time is None else _packed(time) for time in column.to_pylist()]


class Ended(msgspec.Struct, frozen=True):
    """The keys of expired rows, the stale entries to remove, and whether there may be more."""

    keys: list[bytes]
    stale: list[bytes]
    has_more: bool


def ended(store: KeyValueStore, until_ms: int, limit: int, under_way: Container[bytes]) -> Ended:
    """Return rows with times up to `until_ms`, at most `limit`, without rows that are being written (`under_way`)."""
    last = max(-_SIGN, min(until_ms, _SIGN - 1))
    entries = store.keys_from(_ORDER, _ORDER + _packed(last) + b"\xff", limit)
    found = [entry for entry in entries if entry[_KEY_AT:] not in under_way]
    keys = [entry[_KEY_AT:] for entry in found]
    times = store.get([_TIME + key for key in keys])
    over: list[bytes] = []
    stale: list[bytes] = []
    for entry, key, time in zip(found, keys, times, strict=True):
        if time == entry[len(_ORDER) : _KEY_AT]:
            over.append(key)
        else:
            stale.append(entry)
    return Ended(over, stale, len(entries) == limit)
