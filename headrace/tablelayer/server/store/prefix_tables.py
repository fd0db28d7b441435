"""Reads of rows by prefixes of their keys from RocksDB's table files, without the interpreter.

RocksDB's Python iterator takes a call for each key, value and step, with the interpreter's lock. Here the blocks of a
small store's files are kept in memory, checked and decompressed, and one kernel finds the rows of all prefixes. All
rows have to be in files. Files never change, so a kept one is right as long as RocksDB lists it.

`UnknownTableError` means that RocksDB's own iterator has to read, as in `sorted_tables`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numba import njit

from headrace.broker.runtime.ports import Disk
from headrace.tablelayer.model.arrays.arrays import Bytes, sealed
from headrace.tablelayer.model.arrays.memory import Int64, copy_bytes, int32_at, word_at
from headrace.tablelayer.server.room import Room
from headrace.tablelayer.server.store.file_cache import FileCache
from headrace.tablelayer.server.store.sorted_tables import LiveFiles, checked
from headrace.tablelayer.server.store.stored_rows import StoredRows
from headrace.tablelayer.server.store.table_index import UnknownTableError, read_bytes, read_index
from headrace.tablelayer.server.store.table_kernels import (
    AT,
    BLOCK,
    CURSOR_FIELDS,
    DELETION,
    END,
    HASH_INDEX_BIT,
    KEY,
    KEY_LENGTH,
    LAST_BLOCK,
    LOW,
    SINGLE_DELETION,
    SLACK,
    TAG_BYTES,
    UNKNOWN,
    VALUE,
    VALUE_AT,
    VALUE_LENGTH,
    Indices,
    Table,
    advance,
    compared,
    first_block,
    smallest,
    varint_at,
)

KEPT_BYTES_MAX: Final = 64 << 20
"""Maximum size of the kept files of all stores of a process; a store with more than half of it is left to RocksDB."""
_FILES_MAX: Final = 16
_ROWS_OF_PREFIX: Final = 16
_NO_LIMIT: Final = (1 << 55) - 1
"""No sequence number is larger."""
_ATTEMPTS: Final = 8
FULL: Final = -2


class KeptTable(msgspec.Struct, frozen=True):
    """A file in memory: its blocks' addresses, the ends of their entries, and the addresses of its separators."""

    places: Indices
    ends: Indices
    stops: Indices
    """The addresses behind the blocks, for their restart points."""
    separators: Table
    longest: int
    size: int
    owners: Sequence[object]


def rows_by_prefix(
    kept: FileCache[KeptTable],
    owner: object,
    path: Path,
    disk: Disk,
    live_files: LiveFiles,
    prefixes: Sequence[bytes],
    room: Room,
) -> tuple[Indices, StoredRows] | None:
    """Return (row counts, rows in key order) of all prefixes from the files of the open store `owner`.

    None, without an effect, if they do not all fit. Raises UnknownTableError, OSError and what `live_files` raises.
    """
    for _ in range(_ATTEMPTS):
        files = live_files()
        if len(files) > _FILES_MAX or sum(file["size"] for file in files) > kept.bytes_max // 2:
            raise UnknownTableError(f"{len(files)} files are too large")
        names = [file["name"] for file in files]
        kept.forget(owner, names)
        try:
            tables = [kept.get(owner, name, partial(_read, disk, path / name.lstrip("/"))) for name in names]
        except FileNotFoundError:
            continue  # a compaction has replaced a file since it was listed
        return _rows_of(tables, prefixes, room)
    raise UnknownTableError("the files change too fast")


def _read(disk: Disk, path: Path) -> KeptTable:
    index = read_index(disk, path)
    owners: list[Any] = [index.arena]
    position, size = index.span(0, len(index.blocks))
    data = np.frombuffer(read_bytes(disk, path, position, size), np.uint8)
    owners.append(data)
    places, sizes = index.blocks[:, 0] + (data.ctypes.data - position), index.blocks[:, 1].copy()
    _, longest, ends = checked(places, sizes, owners)
    separators = index.separators.copy()
    separators[:, 0] += index.arena.ctypes.data
    total = index.size + sum(owner.nbytes for owner in owners[1:])
    return KeptTable(places, ends, places + sizes, separators, longest, total, owners)


def _rows_of(
    tables: Sequence[KeptTable], prefixes: Sequence[bytes], room: Room
) -> tuple[Indices, StoredRows] | None:
    starts = np.cumsum([0, *(len(table.places) for table in tables)]).astype(np.int64)
    arena = sealed(np.frombuffer(b"".join(prefixes) + bytes(SLACK), np.uint8))
    offsets = np.cumsum([0, *map(len, prefixes)]).astype(np.int64)
    counts = np.zeros(len(prefixes), np.int64)
    if not starts[-1]:
        return counts, StoredRows.of([])
    longest = max(table.longest for table in tables)
    left = room.max_bytes - room.used
    # The kernel has addresses in it: memory of its own would be freed after the last use of its name.
    keys = sealed(np.zeros((len(tables) + 1) * (longest + SLACK) + SLACK, np.uint8))
    capacity = _ROWS_OF_PREFIX * len(prefixes)
    while True:
        addresses, lengths = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
        found, made = rows_of_prefixes(
            starts,
            np.concatenate([table.places for table in tables]),
            np.concatenate([table.ends for table in tables]),
            np.concatenate([table.stops for table in tables]),
            np.concatenate([table.separators for table in tables]),
            longest,
            keys,
            arena,
            offsets,
            np.array([left, room.cost.width, room.cost.expansion], np.int64),
            counts,
            addresses,
            lengths,
        )
        if found == UNKNOWN:
            raise UnknownTableError("an entry of an unknown kind")
        if found >= 0:
            room.used += int(made)
            return counts, StoredRows(addresses[:found], lengths[:found], list(tables))
        if made > left:
            return None
        capacity *= 4


@njit(cache=True, nogil=True)
def _restart_before(at: Int64, end: Int64, stop: Int64, key: Int64, length: Int64) -> Int64:
    """Return the address of the last restart point of a block whose key is below `key`, else that of its first entry.

    The key of an entry at a restart point is whole.
    """
    packed = np.int64(int32_at(stop - 4, 0)) & LOW
    count = packed & (HASH_INDEX_BIT - 1)
    low, high = np.int64(0), count
    while high - low > 1:
        middle = (low + high) >> 1
        entry = at + (np.int64(int32_at(end + 4 * middle, 0)) & LOW)
        if entry >= end:
            return at
        shared, place = varint_at(entry, end)
        other, place = varint_at(place, end)
        _, place = varint_at(place, end)
        if shared != 0 or other < TAG_BYTES or other > end - place:
            return at
        if compared(place, other - TAG_BYTES, key, length, 0) < 0:
            low = middle
        else:
            high = middle
    first = at + (np.int64(int32_at(end + 4 * low, 0)) & LOW)
    return first if first < end else at


@njit(cache=True, nogil=True)
def rows_of_prefixes(
    starts: Indices,
    places: Indices,
    ends: Indices,
    stops: Indices,
    separators: Table,
    key_bytes: int,
    keys: Bytes,
    arena: Bytes,
    offsets: Indices,
    limits: Indices,
    counts: Indices,
    addresses: Indices,
    lengths: Indices,
) -> tuple[Int64, Int64]:
    """Find the newest rows whose keys begin with each prefix, in key order.

    The blocks of file i are `starts[i]` to `starts[i + 1]`; all were checked. `limits` are the bytes in Arrow's form,
    and the width and the factor of these (`RowCost`). Fill `counts`, `addresses` and `lengths`. Return (rows, their
    bytes in Arrow's form); (FULL, bytes) if the limit or the arrays are exceeded; or UNKNOWN twice.
    """
    files = len(starts) - 1
    capacity = key_bytes + SLACK
    cursors = np.zeros((files, CURSOR_FIELDS), np.int64)
    words = np.zeros(files, np.uint64)
    last_at = keys.ctypes.data + files * capacity
    for file in range(files):
        cursors[file, KEY] = keys.ctypes.data + file * capacity
        cursors[file, LAST_BLOCK] = starts[file + 1]
    found, made = np.int64(0), np.int64(0)
    for index in range(len(counts)):
        prefix, prefix_length = arena.ctypes.data + offsets[index], offsets[index + 1] - offsets[index]
        for file in range(files):
            block = first_block(separators, starts[file], starts[file + 1], prefix, prefix_length)
            cursors[file, BLOCK] = block
            if block == starts[file + 1]:
                cursors[file, BLOCK] = -1
                continue
            cursors[file, END] = ends[block]
            cursors[file, AT] = _restart_before(
                places[block], ends[block], stops[block], prefix, prefix_length
            )
            cursors[file, KEY_LENGTH] = 0
            advance(cursors, words, file, places, ends, _NO_LIMIT)
            while (
                cursors[file, BLOCK] >= 0
                and compared(
                    cursors[file, KEY], cursors[file, KEY_LENGTH] - TAG_BYTES, prefix, prefix_length, 0
                )
                < 0
            ):
                advance(cursors, words, file, places, ends, _NO_LIMIT)
        counts[index] = 0
        last_length = np.int64(-1)
        while True:
            best = smallest(cursors, words)
            if best < 0:
                break
            key, length = cursors[best, KEY], cursors[best, KEY_LENGTH] - TAG_BYTES
            if length < prefix_length or compared(key, prefix_length, prefix, prefix_length, 0) != 0:
                break
            if last_length != length or compared(key, length, last_at, last_length, 0) != 0:
                copy_bytes(key, last_at, length)
                last_length = length
                kind = np.int64(word_at(key, length) & np.uint64(255))
                if kind == VALUE:
                    made += limits[1] + limits[2] * cursors[best, VALUE_LENGTH]
                    if made > limits[0] or found == len(addresses):
                        return np.int64(FULL), made
                    addresses[found] = cursors[best, VALUE_AT]
                    lengths[found] = cursors[best, VALUE_LENGTH]
                    found += 1
                    counts[index] += 1
                elif kind != DELETION and kind != SINGLE_DELETION:
                    return np.int64(UNKNOWN), np.int64(UNKNOWN)
            advance(cursors, words, best, places, ends, _NO_LIMIT)
    return found, made


def warm() -> None:
    """Compile the kernels, or load them from the cache."""
    nothing, table = np.empty(0, np.int64), np.empty((0, 2), np.int64)
    rows_of_prefixes(
        np.zeros(1, np.int64), nothing, nothing, nothing, table, 0,
        sealed(np.zeros(3 * SLACK, np.uint8)), sealed(np.zeros(SLACK, np.uint8)),
        np.zeros(1, np.int64), np.zeros(3, np.int64), nothing, nothing, nothing,
    )  # fmt: skip
