"""The state of a key-value store at one offset, read in pieces during writes."""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

import msgspec

from headrace.broker.runtime.ports import Threads
from headrace.tablelayer.model.types.sizes import RowCost
from headrace.tablelayer.server.store.layout import META_KEY, KeyRange, decode_meta
from headrace.tablelayer.server.store.open_stores import Use
from headrace.tablelayer.server.store.pruning import Groups
from headrace.tablelayer.server.store.sorted_tables import Limits, SortedTables
from headrace.tablelayer.server.store.stored_rows import StoredRows
from headrace.tablelayer.server.store.table_index import UnknownTableError

# a piece of a scan may take this much in Arrow's form, however little is requested
_MADE_BYTES_MIN = 16 << 20
_ITERATED_ROWS = 2048
"""Number of rows at the beginning of a scan that RocksDB's iterator reads: a small scan needs no flush for them."""
_ITERATED_TOGETHER = 256  # some 0.2 ms with the interpreter's lock
_ITERATED_PAUSE_SECONDS = 0.00005


class TableSource(Protocol):
    """The store whose files a snapshot reads."""

    def flush_for_scan(self) -> None: ...
    def live_files(self) -> list[dict[str, Any]]: ...


class SnapshotTables(msgspec.Struct, frozen=True):
    """The table files that have a snapshot's rows, once the rows in memory are flushed."""

    store: TableSource
    files: SortedTables
    pinned: Any
    """RocksDB's snapshot: compactions keep what it sees."""
    sequence: int


class StoreSnapshot:
    """The state at one applied offset, read in pieces during writes.

    An iterator of RocksDB reads the first rows, and everything that `SortedTables` does not know.
    """

    def __init__(
        self, iterator: Any, threads: Threads, tables: SnapshotTables | None = None, use: Use | None = None
    ) -> None:
        """Create it; without an iterator it is an empty state.

        `tables` has the iterator's state. `use` keeps the store open.
        """
        meta = None
        if iterator is not None:
            iterator.seek(META_KEY)
            meta = iterator.value() if iterator.key() == META_KEY else None
        self.applied_offset, self.row_count = (0, 0) if meta is None else decode_meta(meta)
        self._iterator = iterator
        self._threads = threads
        self._tables = tables
        self._is_flushed = False
        self.seek(KeyRange())
        self._use = use  # last: attributes are dropped in this order

    def seek(self, keys: KeyRange, groups: Groups | None = None) -> None:
        """Read these keys from now on; rows that do not match the filter of `groups` may be left out."""
        self._keys, self._iterated_left, self._is_there = keys, _ITERATED_ROWS, False
        self._groups = groups

    def end(self) -> None:
        """Release the store: it cannot be opened again while this snapshot has it."""
        self._iterator = self._tables = None
        if self._use is not None:
            self._use.end()

    def next_rows(
        self, max_bytes: int, max_rows: int, cost: RowCost
    ) -> tuple[StoredRows, bytes | None, bool]:
        """Return (rows in key order, the last key that was looked at, whether there may be more).

        There are at most `max_rows` rows, at least one if possible, and none after they reach `max_bytes`, or
        `max_bytes` (at least 16 MiB) by their `cost`. The key is not below that of the last row; it is None if the
        range has no keys.
        """
        if self._iterator is None:
            return StoredRows.of([]), None, False
        made_max = max(_MADE_BYTES_MIN, max_bytes)
        limits = Limits(max_rows, max_bytes, made_max, cost.width, cost.expansion)
        if self._tables is not None and not self._iterated_left:
            with contextlib.suppress(UnknownTableError, OSError):
                return self._from_tables(self._tables, limits)
            self._tables = None  # the iterator decides whether the files are damaged
        return self._iterated(limits)

    def _from_tables(self, tables: SnapshotTables, limits: Limits) -> tuple[StoredRows, bytes | None, bool]:
        if not self._is_flushed:
            tables.store.flush_for_scan()
            self._is_flushed = True
        lower, upper = self._keys.lower, self._keys.upper
        piece = tables.files.rows(
            tables.store.live_files, lower, upper, tables.sequence, limits, self._groups
        )
        self._is_there = False
        if piece.last is not None:
            self._keys = self._keys.after(piece.last)
        return piece.rows, piece.last, piece.has_more

    def _iterated(self, limits: Limits) -> tuple[StoredRows, bytes | None, bool]:
        iterator, upper = self._iterator, self._keys.upper
        if not self._is_there:
            iterator.seek(self._keys.lower)
            self._is_there = True
        key_here, value_here, go_on = iterator.key, iterator.value, iterator.next
        rows_max = limits.rows
        if self._tables is not None:
            rows_max = min(rows_max, self._iterated_left)
        values: list[bytes] = []
        last: bytes | None = None
        size, made = 0, 0
        has_more = True
        while size < limits.value_bytes and made < limits.made_bytes and len(values) < rows_max:
            key = key_here()
            if key is None or (upper is not None and key >= upper):
                has_more = False
                break
            last, value = key, value_here()
            values.append(value)
            size += len(value)
            made += limits.width + limits.expansion * len(value)
            go_on()
            if self._tables is None and len(values) % _ITERATED_TOGETHER == 0:
                self._threads.pause(
                    _ITERATED_PAUSE_SECONDS
                )  # so that other threads get the interpreter's lock
        if not has_more and key is None:
            iterator.status()  # raises if the iteration ended because of an error
        if last is not None:
            self._keys = self._keys.after(last)
        self._iterated_left = max(0, self._iterated_left - len(values))
        return StoredRows.of(values), last, has_more
