"""The key-value store of one bucket: RocksDB, with the bucket's own log as its write-ahead log.

Every write has, in the same atomic batch as the rows and in one column family, the offset up to which the log is
applied, and the number of rows. So after a crash, whatever RocksDB has lost from memory, the store is exactly the state
at some applied offset, and the log from there on has the rest.

The store of a bucket that was never written to has no files: the first write creates them (`unmade`), so that a table
of thousands of buckets costs what its rows cost.

Keys of rows begin with byte 01 (`ROW_PREFIX`, from the key encoding); the one key of metadata is 00.

An idle store is closed, and opened again by its next use (`open_stores`). Its offsets and numbers stay in memory; a
note beside its files (`NOTE`) gives them to the next start, which opens only stores that are used.

Blocking: called in executor threads. One thread at a time writes; any thread may read.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from rocksdict import (
    AccessType,
    Checkpoint,
    DbClosedError,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from headrace.broker.runtime.ports import Disk
from headrace.tablelayer.server.room import Room
from headrace.tablelayer.server.store.errors import (
    DamagedStoreError,
    StalledStoreError,
    StoreInUseError,
    raise_passing,
)
from headrace.tablelayer.server.store.first_rows import Answer, FirstRows
from headrace.tablelayer.server.store.layout import META, META_KEY, META_VERSION, ROW_PREFIX, decode_meta
from headrace.tablelayer.server.store.open_stores import StoreFiles
from headrace.tablelayer.server.store.prefix_tables import rows_by_prefix
from headrace.tablelayer.server.store.room_reads import (
    READ_TOGETHER,
    get_rest,
    values_of_prefixes,
    values_that_fit,
)
from headrace.tablelayer.server.store.shared_memory import FILES_MERGED, SharedMemory, files_merged_from
from headrace.tablelayer.server.store.sorted_tables import SortedTables
from headrace.tablelayer.server.store.store_snapshot import SnapshotTables, StoreSnapshot
from headrace.tablelayer.server.store.stored_rows import StoredRows
from headrace.tablelayer.server.store.table_index import UnknownTableError
from headrace.tablelayer.server.store.table_kernels import Indices

logger = logging.getLogger("headrace.tables")

_COLUMN_FAMILY = "default"
NOTE = "closed.json"
"""Name of the file beside a closed store's own that has its offset and numbers. An open store's may be an old one."""
_STALL_PAUSE_SECONDS = 0.002
_STALL_PAUSE_SECONDS_MAX = 0.1
_STALL_SECONDS_MAX = 60.0  # a replay that stalls for longer has a failing disk
_SIZE_PROPERTIES = ("rocksdb.live-sst-files-size", "rocksdb.size-all-mem-tables")
_SNAPSHOT_ATTEMPTS = 16
_WRITE_OPTIONS = WriteOptions()
_WRITE_OPTIONS.disable_wal = True
_WRITE_OPTIONS.no_slowdown = True  # see `_write`
_WRITE_OPTIONS.memtable_insert_hint_per_batch = True  # batches come sorted
_SMALL_BYTES = 256 << 10
"""Number of bytes that are written to an open store between two flushes before its memtable becomes large."""
_PREFIXES_TOGETHER_MIN = 64
"""Number of prefixes from which a kernel reads them; RocksDB's iterator takes some microseconds for each."""


class Note(msgspec.Struct, frozen=True):
    """The facts about a closed store in its note."""

    applied_offset: int
    row_count: int
    size_bytes: int


def read_note(disk: Disk, path: Path) -> Note | None:
    """Return the note of a closed store; None if there is none that can be read."""
    try:
        return msgspec.json.decode(disk.read(path / NOTE), type=Note)
    except (OSError, msgspec.DecodeError):
        return None


class KeyValueStore:
    """One open store. `applied_offset` is exclusive: the state is that of the log below it."""

    def __init__(
        self, database: Any, path: Path, memory: SharedMemory, stores: int = 1, *, is_made: bool = True
    ) -> None:
        """Create it. `database` None: it is opened when it is used, or made by the first write if it is not made."""
        self.path = path
        self._memory = memory
        self._together = stores
        self.is_made = is_made
        """Whether it has files. One without files is empty."""
        self._noted: tuple[int, int] | None = None
        self._size_bytes = 0
        self.applied = (0, 0)
        """(applied offset, number of rows) in one value, so that a concurrent reader gets both of the same moment."""
        self.durable_offset = 0
        """The applied offset that is in files, and survives a crash."""
        self.visible_offset = 0
        """The offset that a read may have seen: ahead of the applied offset during a write."""
        self._written_bytes = 0
        self._flushed_bytes = 0
        self._longest = 0
        """Length of the longest row of the last lookup; 0 if there was none."""
        self._first_rows = FirstRows(memory.first_rows, ROW_PREFIX)
        self._tables = SortedTables(path, memory.disk, memory.indexes)
        self._bytes_in_files = 0
        """The written bytes that a completed flush covers."""
        self._flushed_for_reads_at = float("-inf")
        self._is_small = True
        """Whether the memtable is small, or will be when the files are opened."""
        self.files_merged = FILES_MERGED
        """Number of flushed files from which they are merged."""
        self._flushing = threading.Lock()
        """Held by the flush of a scan: RocksDB's Python object cannot be closed during one of its calls."""
        meta = None if database is None else database.get(META_KEY)
        if meta is not None:
            self._begin_at(decode_meta(meta))
        self._files = StoreFiles(memory.stores, database, self)

    def _begin_at(self, applied: tuple[int, int]) -> None:
        self.applied = applied
        self.durable_offset = self.visible_offset = self.applied_offset

    @property
    def applied_offset(self) -> int:
        return self.applied[0]

    @property
    def row_count(self) -> int:
        return self.applied[1]

    @property
    def bytes_since_flush(self) -> int:
        """Bytes that are applied but not flushed; 0 if a running flush covers them."""
        return self._written_bytes - self._flushed_bytes

    @classmethod
    def open(cls, path: Path, memory: SharedMemory, stores: int = 1) -> KeyValueStore:
        """Open or create a store, within the budget of files; see `SharedMemory.options` for `stores`.

        Raises DamagedStoreError if the files are unusable, StoreInUseError, DiskFullError, OSError.
        """
        database = memory.stores.opened(lambda: _open(path, memory, stores))
        try:
            return cls(database, path, memory, stores)
        except Exception as error:
            database.close()
            raise_passing(error)
            if isinstance(error, DamagedStoreError):
                raise
            raise DamagedStoreError(str(error)) from error

    @classmethod
    def unmade(cls, path: Path, memory: SharedMemory, stores: int = 1) -> KeyValueStore:
        """Return an empty store whose files are created by the first write. There must be no files yet."""
        return cls(None, path, memory, stores, is_made=False)

    @classmethod
    def noted(cls, path: Path, memory: SharedMemory, stores: int, end_offset: int) -> KeyValueStore | None:
        """Return the store without opening it, if its note says that it was closed at `end_offset`; else None.

        The note may be older than the files: the first use compares the two.
        """
        note = read_note(memory.disk, path)
        if note is None or note.applied_offset != end_offset:
            return None
        applied = note.applied_offset, note.row_count
        store = cls(None, path, memory, stores)
        store._begin_at(applied)
        store._noted, store._size_bytes = applied, note.size_bytes
        return store

    @property
    def is_open(self) -> bool:
        """Whether its files are open, so that a call does not have to open them first."""
        return self._files.is_open

    def make(self) -> None:
        """Create the files if there are none, or open them. Raises DiskFullError, OSError, DamagedStoreError."""
        with self._files:
            pass

    def close_unused(self) -> bool:
        """Flush and close the files unless they are in use. Return whether they were closed."""
        return self._files.close_unused()

    # -- for `open_stores` ---------------------------------------------------------------------------------

    def open_files(self) -> Any:
        self._is_small = True
        if not self.is_made:
            database = _open(self.path, self._memory, self._together)
            self.is_made = True
            return database
        database = _open(self.path, self._memory, self._together, must_exist=True)
        try:
            meta = database.get(META_KEY)
            found = (0, 0) if meta is None else decode_meta(meta)
            if found != self.applied:
                raise DamagedStoreError(
                    f"it was closed at offset {self.applied[0]} with {self.applied[1]} rows, and has offset {found[0]} "
                    f"with {found[1]} rows"
                )
        except BaseException:
            database.close()
            raise
        return database

    @property
    def is_flushed(self) -> bool:
        return not self.bytes_since_flush

    def files_closed(self) -> None:
        self._memory.kept.forget(self)
        if self._noted == self.applied:
            return
        note = Note(*self.applied, self._size_bytes)
        with contextlib.suppress(OSError):  # the next start opens the store instead
            self._memory.disk.replace(self.path / NOTE, msgspec.json.encode(note), sync=False)
            self._noted = self.applied

    def merge_from(self, files: int) -> None:
        """Merge flushed files when there are that many. More of them make writes cheaper, and reads more expensive."""
        self.files_merged = files
        database = None if self._is_small else self._files.try_use()
        if database is None:
            return  # the option is set when much is written
        try:
            database.set_options(files_merged_from(files))
        finally:
            self._files.__exit__()

    def get(self, keys: list[bytes]) -> list[bytes | None]:
        """Return the value of each key, None if it is absent. Sorted keys are found faster."""
        if not self.is_made:
            return [None] * len(keys)
        if not keys:
            return []
        with self._files as database:
            values: list[bytes | None] = database.get(keys)
        return values

    def get_within(self, keys: Sequence[bytes], bytes_max: int) -> list[bytes | None]:
        """Return the values of the first keys, up to the one that exceeds `bytes_max`. Nearly as fast as `get`."""
        if len(keys) <= READ_TOGETHER:
            return self.get(list(keys))
        values: list[bytes | None] = []
        for start in range(0, len(keys), READ_TOGETHER):
            some = self.get(list(keys[start : start + READ_TOGETHER]))
            values += some
            bytes_max -= sum(len(value) for value in some if value is not None)
            if bytes_max < 0:
                break
        return values

    def get_while(self, keys: Sequence[bytes], room: Room) -> list[bytes | None]:
        """Return the values of the first keys, as many as fit.

        The first rows ever are read one by one, and show how large rows are.
        """
        if not self.is_made:
            return room.those_that_fit([None] * len(keys))
        values: list[bytes | None] = []
        if not self._longest:
            with self._files as database:
                values = room.those_that_fit(map(database.get, keys[:READ_TOGETHER]))
            self._longest = _longest(values)
        if len(values) < len(keys) and not room.is_full:
            largest = room.cost.width + room.cost.expansion * self._longest
            values += get_rest(self.get, keys[len(values) :], largest, room, self._memory.helper)
            self._longest = _longest(values)
        return values

    def absent(self, keys: Sequence[bytes]) -> list[bool]:
        """Return, for each key, whether it is absent."""
        if not self.is_made:
            return [True] * len(keys)
        with self._files as database:
            return [value is None for value in map(database.get, keys)]

    def get_in_memory(self, keys: Sequence[bytes], bytes_max: int = sys.maxsize) -> list[bytes | None] | None:
        """Return values like `get`, without reading from a disk. Some microseconds for each key.

        Returns None if that is not possible, or the values exceed `bytes_max`.
        """
        values: list[bytes | None] = []
        if not self.is_made:
            return [None] * len(keys)
        database = self._files.try_use()
        if database is None:
            return None
        try:
            for key in keys:
                may_exist, value = database.key_may_exist(key, fetch=True)
                if may_exist and value is None:
                    return None
                bytes_max -= len(value or b"")
                if bytes_max < 0:
                    return None
                values.append(value)
        finally:
            self._files.__exit__()
        return values

    def write(
        self,
        groups: Sequence[tuple[Sequence[bytes], Sequence[bytes | None]]],
        applied_offset: int,
        row_count: int,
        patience_seconds: float = _STALL_SECONDS_MAX,
    ) -> None:
        """Apply groups of (keys, values) in order, None deleting, and move to `applied_offset`, atomically.

        Raises DiskFullError, or StalledStoreError if RocksDB stalled for `patience_seconds`; then nothing has changed.
        """
        with self._files as database:
            if self._is_small and self.bytes_since_flush >= _SMALL_BYTES:
                self._is_small = False
                database.set_options(self._memory.grown(self._together, self.files_merged))
            self._apply(database, groups, applied_offset, row_count, patience_seconds)

    def write_at_once(
        self,
        groups: Sequence[tuple[Sequence[bytes], Sequence[bytes | None]]],
        applied_offset: int,
        row_count: int,
    ) -> bool:
        """Write like `write`, into memory alone. Return False if that is not possible now; nothing has changed then.

        Raises RocksDB's errors.
        """
        database = self._files.try_use()
        if database is None:
            return False
        try:
            self._apply(database, groups, applied_offset, row_count, 0.0)
        except StalledStoreError:
            return False
        finally:
            self._files.__exit__()
        return True

    def _apply(
        self,
        database: Any,
        groups: Sequence[tuple[Sequence[bytes], Sequence[bytes | None]]],
        applied_offset: int,
        row_count: int,
        patience_seconds: float,
    ) -> None:
        def fill(batch: WriteBatch) -> None:
            put, delete = batch.put, batch.delete
            for keys, values in groups:
                if None not in values:
                    deque(map(put, keys, values), maxlen=0)  # a loop without the interpreter: twice as fast
                    continue
                for key, value in zip(keys, values, strict=True):
                    if value is None:
                        delete(key)
                    else:
                        put(key, value)
            put(META_KEY, META.pack(META_VERSION, applied_offset, row_count))

        self.visible_offset = applied_offset
        try:
            with self._first_rows.writing(groups):
                size = self._write(database, fill, patience_seconds)
            self.applied = applied_offset, row_count
            self._written_bytes += size  # after the offset: see `flush`
        except Exception:
            self.visible_offset = self.applied_offset  # a failed batch has changed nothing
            raise

    def _write(self, database: Any, fill: Callable[[WriteBatch], object], patience_seconds: float) -> int:
        """Write a batch, again after each stall; return its bytes. Raises the errors of `write`.

        RocksDB would wait inside of its own call, which blocks all other threads of this process.
        """
        clock, pause = self._memory.clock, _STALL_PAUSE_SECONDS
        give_up_at = clock.monotonic() + patience_seconds
        while True:
            batch = WriteBatch(raw_mode=True)  # a write consumes it
            fill(batch)
            size: int = batch.size_in_bytes()
            try:
                database.write(batch, _WRITE_OPTIONS)
            except Exception as error:
                if "Write stall" not in str(error):
                    raise_passing(error)
                    raise
                if clock.monotonic() >= give_up_at:
                    raise StalledStoreError(str(error)) from error
            else:
                return size
            self._memory.threads.pause(pause)
            pause = min(2 * pause, _STALL_PAUSE_SECONDS_MAX)

    def size_bytes(self) -> int:
        """Return the size of the rows in files and in memory, in bytes. Takes microseconds; opens no files."""
        database = self._files.try_use()
        if database is None:
            return self._size_bytes
        try:
            return self._size_of(database)
        finally:
            self._files.__exit__()

    def _size_of(self, database: Any) -> int:
        try:
            return sum(database.property_int_value(name) or 0 for name in _SIZE_PROPERTIES)
        except DbClosedError:
            return 0

    def flush(self) -> None:
        """Write memory to files. Raises DiskFullError, OSError; the rows then stay in memory."""
        if not self._files.is_open:
            return  # it was flushed when it was closed
        with self._files as database:
            before, written = self._flushed_bytes, self._written_bytes
            offset = self.applied_offset  # read last, so that it covers at least all counted bytes
            self._flushed_bytes = written
            try:
                database.flush(True)
            except Exception as error:
                self._flushed_bytes = before
                raise_passing(error)
                raise
            self._bytes_in_files = max(self._bytes_in_files, written)
            self.durable_offset = max(self.durable_offset, offset)
            self._size_bytes = self._size_of(database)
        self._files.count()

    def values_from(self, first: bytes, count: int) -> list[bytes]:
        """Return the values of at most `count` rows from a key on, in key order."""
        if not self.is_made:
            return []
        with self._files as database:
            return list(itertools.islice(database.values(from_key=first), count))

    def values_while(self, first: bytes, count: int, room: Room) -> list[bytes]:
        """Do the same as `values_from`, as many as fit. A few small first rows are kept in memory."""
        if not self.is_made:
            return []
        begun = self._first_rows.begin() if first == ROW_PREFIX else None
        with self._files as database:
            values, last = values_that_fit(database, first, count, room)
        if begun is not None and count and not room.is_full:
            self._first_rows.remember(begun, values, last)
        return values

    def first_in_memory(
        self, count: int, form: tuple[object, ...], encode: Callable[[list[bytes]], Answer | None]
    ) -> Answer | None:
        """Return `encode`'s answer for the values of at most `count` first rows in key order; None if they are not
        kept. See `FirstRows.answer` for `form`.
        """
        return self._first_rows.answer(count, form, encode) if self.is_made else encode([])

    def keys_from(self, first: bytes, last: bytes, count: int) -> list[bytes]:
        """Return at most `count` keys between two keys, in order."""
        found: list[bytes] = []
        if not self.is_made:
            return found
        with self._files as database:
            for key in itertools.islice(database.keys(from_key=first), count):
                if key > last:
                    break
                found.append(key)
        return found

    def remove(self, keys: Sequence[bytes]) -> None:
        """Delete keys that are in no log: if a crash restores them, they may be removed again."""
        with self._files as database:
            self._write(database, lambda batch: deque(map(batch.delete, keys), maxlen=0), _STALL_SECONDS_MAX)

    def values_by_prefix(
        self, prefixes: Sequence[bytes], room: Room, after: bytes | None = None
    ) -> tuple[list[int], list[bytes], bytes | None]:
        """Return (row counts, values, cursor) of the first prefixes, as many rows as fit, each prefix in key order.

        The cursor is the last value's key if its prefix has more rows, else None. `after` is such a cursor in the first
        prefix; only rows behind it count.
        """
        if not self.is_made:
            return [0] * len(prefixes), [], None
        with self._files as database:
            return values_of_prefixes(database, prefixes, room, after)

    def rows_by_prefix(self, prefixes: Sequence[bytes], room: Room) -> tuple[Indices, StoredRows] | None:
        """Return row counts and rows like `values_by_prefix`, by a kernel over the table files.

        Return None, without an effect, if that is not possible: a few prefixes, rows in memory that cannot be flushed
        now, a large store, or rows that do not all fit.
        """
        if len(prefixes) < _PREFIXES_TOGETHER_MIN or not self.is_made:
            return None
        try:
            with self._files:
                if not self._is_in_files():
                    return None
                memory = self._memory
                return rows_by_prefix(
                    memory.kept, self, self.path, memory.disk, self.live_files, prefixes, room
                )
        except (UnknownTableError, OSError):
            return None  # the iterator decides whether the files are damaged

    def _is_in_files(self) -> bool:
        """Return whether all rows are in files, perhaps after a flush. Raises UnknownTableError."""
        if self._bytes_in_files >= self._written_bytes:
            return True
        now = self._memory.clock.monotonic()
        if now < self._flushed_for_reads_at + self._memory.limits.flush_seconds:
            return False
        self._flushed_for_reads_at = now
        self.flush_for_scan()
        return self._bytes_in_files >= self._written_bytes

    def snapshot(self) -> StoreSnapshot:
        """Pin the present state, which stays open until the snapshot ends; writes may go on."""
        threads = self._memory.threads
        if not self.is_made:
            return StoreSnapshot(None, threads)
        use = self._files.hold()
        with self._files as database:
            for _ in range(_SNAPSHOT_ATTEMPTS):
                # RocksDB's Python iterators ignore a snapshot: each is one by itself, of the moment when it is made.
                sequence = database.latest_sequence_number()
                pinned, iterator = database.snapshot(), database.iter(ReadOptions())
                if database.latest_sequence_number() == sequence:
                    tables = SnapshotTables(self, self._tables, pinned, sequence)
                    return StoreSnapshot(iterator, threads, tables, use)
            return StoreSnapshot(iterator, threads, None, use)

    def live_files(self) -> list[dict[str, Any]]:
        """Return RocksDB's list of its table files. Raises UnknownTableError if the store is closed."""
        try:
            with self._files as database:
                files: list[dict[str, Any]] = database.live_files()
        except Exception as error:  # RocksDB's own errors have no type
            raise UnknownTableError(str(error)) from error
        return files

    def flush_for_scan(self) -> None:
        """Write memory to files, without any of the records that `flush` makes. Raises UnknownTableError."""
        try:
            with self._flushing, self._files as database:
                written = self._written_bytes
                database.flush(True)
                self._bytes_in_files = max(self._bytes_in_files, written)
        except Exception as error:
            raise UnknownTableError(str(error)) from error

    def checkpoint(self, path: Path, memory: SharedMemory) -> tuple[int, int]:
        """Copy the present store to the new folder `path`, mostly as hard links.

        Return the one offset and the number of rows of the copy.
        """
        try:
            with self._files as database:
                Checkpoint(database).create_checkpoint(str(path))
            database = Rdict(str(path), memory.options(), access_type=AccessType.read_only())
        except Exception as error:
            raise_passing(error)
            raise
        try:
            meta = database.get(META_KEY)
        finally:
            database.close()
        offset, row_count = (0, 0) if meta is None else decode_meta(meta)
        self.durable_offset = max(self.durable_offset, offset)  # creating a checkpoint flushes
        return offset, row_count

    def close(self) -> None:
        """Flush and close, in any case. After DiskFullError only the log has the rows that were in memory."""
        try:
            self.flush()
        finally:
            is_open = self._files.is_open
            try:
                self._close()
            except Exception:
                is_open = False
                logger.exception("the store in %s is not closed cleanly", self.path)
        if is_open and self.is_flushed:
            self.files_closed()

    def abandon(self) -> None:
        """Close a damaged store; rows in memory need not be in its files."""
        with contextlib.suppress(Exception):
            self._close()

    def _close(self) -> None:
        self._first_rows.forget()
        with self._flushing:
            self._files.end()
        self._tables.forget()
        self._memory.kept.forget(self)

    def destroy(self) -> None:
        """Close, and remove the files, whatever state they are in."""
        self.abandon()
        self._memory.disk.remove_tree(self.path)


def _longest(values: Sequence[bytes | None]) -> int:
    return max(map(len, filter(None, values)), default=0)


def checkpoint(disk: Disk, store: KeyValueStore, memory: SharedMemory, path: Path) -> None:
    """Copy the present store to the new folder `path`, without files that only its process needs.

    Raises OSError and RocksDB's errors.
    """
    disk.make_directory(path.parent)
    store.checkpoint(path, memory)
    for name in disk.names(path):
        if name.startswith(("LOG", "LOCK", "IDENTITY")):
            disk.remove(path / name)


def _open(path: Path, memory: SharedMemory, stores: int, *, must_exist: bool = False) -> Any:
    options = memory.options(stores)
    if must_exist:
        options.create_if_missing(False)
    else:
        memory.disk.make_directory(path)
    try:
        # Without the name, RocksDB uses its own options file, which can contain neither the filter nor the cache.
        return Rdict(str(path), options, {_COLUMN_FAMILY: options})
    except Exception as error:  # RocksDB's own errors have no type
        if "lock hold" in str(error) or "While lock file" in str(error):
            raise StoreInUseError(str(error)) from error
        raise_passing(error)
        raise DamagedStoreError(str(error)) from error
