"""Reads of a snapshot's rows from RocksDB's table files, without RocksDB's iterator and without the interpreter.

RocksDB's Python iterator makes one object a row under the interpreter's lock. Here a piece of a scan is planned from
the indexes of the files, its blocks are read, and kernels (`table_kernels.py`) check and merge them. A snapshot of
RocksDB stays open meanwhile: compactions keep what it sees, so that each present set of files has its rows, and entries
with a higher sequence number do not count. The rows in memory are flushed first. With a filter, `pruning` chooses the
blocks to read.

Anything that these functions do not know or that looks damaged raises UnknownTableError: RocksDB's own iterator then
reads, and decides. Format: RocksDB's `table/format.cc`, block-based tables of format version 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from headrace.broker.runtime.ports import Disk
from headrace.tablelayer.model.arrays.arrays import Mask
from headrace.tablelayer.server.store import table_kernels as kernels
from headrace.tablelayer.server.store.file_cache import FileCache
from headrace.tablelayer.server.store.pruning import Blocks, Groups, blocks_to_read, make_statistics
from headrace.tablelayer.server.store.stored_rows import StoredRows
from headrace.tablelayer.server.store.table_index import (
    TableIndex,
    UnknownTableError,
    bytes_array,
    read_bytes,
    read_index,
)
from headrace.tablelayer.server.store.table_kernels import UNKNOWN, Indices

_TOGETHER_BYTES: Final = 2 << 20
"""Size of the blocks that are read and merged together. Planning them takes 0.1 ms with the interpreter's lock."""
_TOGETHER_BYTES_MIN: Final = 64 << 10
_TOGETHER_BYTES_MAX: Final = 96 << 20
"""Maximum size of these blocks; only rows of many megabytes exceed it."""
_SKEW: Final = 4
_RUNS_MAX: Final = 64
_ATTEMPTS: Final = 8
_GAP_BYTES: Final = 32 << 10
"""Maximum size of blocks between two others that are read with them: another read costs as much."""


LiveFiles = Callable[[], list[dict[str, Any]]]
"""Returns the live files of a store, as `Rdict.live_files` does."""


class Limits(msgspec.Struct, frozen=True):
    """The limits of a piece: rows, bytes of values, and bytes in Arrow's form with their cost per row and per byte."""

    rows: int
    value_bytes: int
    made_bytes: int
    width: int
    expansion: int

    def after(self, rows: StoredRows) -> Limits:
        """Return the limits that are left after these rows."""
        size = int(rows.lengths.sum())
        made = self.made_bytes - len(rows) * self.width - size * self.expansion
        return Limits(self.rows - len(rows), self.value_bytes - size, made, self.width, self.expansion)


class _Run(Blocks):
    """One file of a sorted run, and its blocks that can have keys of the range.

    `end_key` is the last key of the file if the run goes on in other files, else None.
    """

    path: Path
    end_key: bytes | None
    chosen: Mask | None = None
    """Whether each of the blocks has to be read; None: all."""
    sizes: Indices | None = None
    """With `chosen`, the bytes to read before each of the blocks, and in all."""
    taken: int = 0

    @property
    def bytes_taken(self) -> int:
        if self.sizes is None:
            return self.index.span(self.first, self.taken)[1]
        return int(self.sizes[self.taken - self.first])

    def choose(self, chosen: Mask) -> None:
        sizes = self.index.blocks[self.first : self.stop, 1] + kernels.TRAILER_BYTES
        self.chosen, self.sizes = chosen, np.append(0, np.cumsum(np.where(chosen, sizes, 0)))

    def take_to(self, bound: bytes | None) -> None:
        """Take the blocks that can have keys up to a bound; None: all."""
        self.taken = self.stop
        if bound is not None:
            self.taken = min(self.stop, self.index.first_from(bound + b"\x00") + 1)

    def share(self, part: int, whole: int) -> int:
        """Return the number of first blocks, at least one, that have part/whole of the taken bytes."""
        if self.sizes is None:
            return max(1, (self.taken - self.first) * part // whole)
        size = self.bytes_taken * part // whole
        return max(1, int(np.searchsorted(self.sizes, size, "right")) - 1)

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges of taken blocks that are read together; blocks in small gaps are read too."""
        if self.chosen is None:
            return [(self.first, self.taken)] if self.first < self.taken else []
        wanted = np.flatnonzero(self.chosen[: self.taken - self.first]) + self.first
        if not len(wanted):
            return []
        begins, ends = self.index.blocks[wanted, 0], self.index.blocks[wanted].sum(axis=1)
        gaps = np.flatnonzero(begins[1:] - ends[:-1] > _GAP_BYTES)
        firsts, lasts = wanted[np.append(0, gaps + 1)], wanted[np.append(gaps, -1)]
        return list(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))


class Piece(msgspec.Struct, frozen=True):
    """Rows of a scan; all rows up to key `last` are looked at. `is_full`: the limits are reached."""

    rows: StoredRows
    last: bytes | None
    has_more: bool
    is_full: bool = False


class SortedTables:
    """The table files of one open store."""

    def __init__(self, path: Path, disk: Disk, indexes: FileCache[TableIndex]) -> None:
        self._path = path
        self._disk = disk
        self._indexes = indexes

    def forget(self) -> None:
        self._indexes.forget(self)

    def rows(
        self,
        live_files: LiveFiles,
        lower: bytes,
        upper: bytes | None,
        sequence: int,
        limits: Limits,
        groups: Groups | None = None,
    ) -> Piece:
        """Return the first rows of lower <= key < upper that a snapshot of this sequence number sees.

        Rows that do not match the filter of `groups` may be left out. Without rows there are no more. Raises
        UnknownTableError, OSError and what `live_files` raises.
        """
        found: list[StoredRows] = []
        last: bytes | None = None
        while True:
            piece = self._piece(live_files, lower, upper, sequence, limits, groups)
            found.append(piece.rows)
            last = piece.last or last
            if piece.is_full or not piece.has_more:
                return Piece(StoredRows.joined(found), last, piece.has_more, piece.is_full)
            assert last is not None
            lower = last + b"\x00"
            limits = limits.after(piece.rows)

    def _piece(
        self,
        live_files: LiveFiles,
        lower: bytes,
        upper: bytes | None,
        sequence: int,
        limits: Limits,
        groups: Groups | None,
    ) -> Piece:
        """Return the rows of some blocks."""
        for _ in range(_ATTEMPTS):
            try:
                runs = self._runs(live_files(), lower, upper, groups)
                end = _planned(runs, min(_TOGETHER_BYTES, max(_TOGETHER_BYTES_MIN, limits.value_bytes)))
                return self._read(runs, lower, upper, end, sequence, limits, groups)
            except FileNotFoundError:
                continue  # a compaction has replaced a file since it was listed
        raise UnknownTableError("the files change too fast")

    def _runs(
        self, files_now: list[dict[str, Any]], lower: bytes, upper: bytes | None, groups: Groups | None
    ) -> list[_Run]:
        wanted = [
            file
            for file in files_now
            if file["end_key"] >= lower and (upper is None or file["start_key"] < upper)
        ]
        runs = []
        for files in _sorted_runs(wanted):
            name, level, start_key = (files[0][part] for part in ("name", "level", "start_key"))
            path = self._path / name.lstrip("/")
            index = self._indexes.get(self, name, partial(read_index, self._disk, path))
            first, stop = index.first_from(lower), len(index.blocks)
            if upper is not None:
                stop = max(first, min(stop, index.first_from(upper) + 1))
            end_key = files[0]["end_key"] if len(files) > 1 else None
            runs.append(_Run(name, level, start_key, index, first, stop, path, end_key))
        masks = None if groups is None else blocks_to_read(runs, lower, groups)
        if masks is not None:
            for run, chosen in zip(runs, masks, strict=True):
                run.choose(chosen)
        return runs

    def _read(
        self,
        runs: Sequence[_Run],
        lower: bytes,
        upper: bytes | None,
        end: bytes | None,
        sequence: int,
        limits: Limits,
        groups: Groups | None,
    ) -> Piece:
        owners: list[Any] = []
        places, sizes, starts = [], [], [0]
        parts: list[tuple[_Run, int, int]] = []
        for run in runs:
            starts.append(starts[-1])
            for first, stop in run.ranges():
                some_places, some_sizes = self._blocks(run, first, stop, owners)
                places.append(some_places)
                sizes.append(some_sizes)
                parts.append((run, first, stop - first))
                starts[-1] += stop - first
        bound, is_inclusive = upper, False
        if end is not None and (upper is None or end < upper):
            bound, is_inclusive = end, True
        if not starts[-1]:
            return Piece(StoredRows.of([]), end if is_inclusive else None, is_inclusive)
        all_places, all_sizes = np.concatenate(places), np.concatenate(sizes)
        entries, longest, ends = checked(all_places, all_sizes, owners)
        if groups is not None:
            make_statistics(parts, all_places, ends, entries, owners, groups)
        count = min(
            entries + 1, limits.rows
        )  # so that the limit of rows alone is never reached by all entries
        addresses, lengths = np.empty(count, np.int64), np.empty(count, np.int64)
        last = np.empty(longest + kernels.SLACK, np.uint8)
        upper_bytes = bytes_array((bound or b"") + bytes(kernels.SLACK))
        found, last_length, outcome = kernels.merge(
            kernels.RunBlocks(all_places, ends, np.array(starts, np.int64), longest),
            kernels.Bounds(bytes_array(lower), upper_bytes, bound is not None, is_inclusive, sequence),
            np.array(
                [count, limits.value_bytes, limits.made_bytes, limits.width, limits.expansion], np.int64
            ),
            addresses,
            lengths,
            last,
            np.zeros((len(starts) - 1) * (longest + kernels.SLACK) + kernels.SLACK, np.uint8),
        )
        if found == UNKNOWN:
            raise UnknownTableError("an entry of an unknown kind")
        rows = StoredRows(addresses[:found], lengths[:found], owners)
        looked_at = last[:last_length].tobytes() if last_length >= 0 else None
        if outcome == kernels.FULL:
            return Piece(rows, looked_at, True, True)
        return Piece(rows, end if is_inclusive else looked_at, is_inclusive)

    def _blocks(self, run: _Run, first: int, stop: int, owners: list[Any]) -> tuple[Indices, Indices]:
        """Read some blocks of a file; return their addresses and sizes."""
        position, size = run.index.span(first, stop)
        data = np.frombuffer(read_bytes(self._disk, run.path, position, size), np.uint8)
        owners.append(data)
        blocks = run.index.blocks[first:stop]
        return blocks[:, 0] + (data.ctypes.data - position), blocks[:, 1].copy()


def _sorted_runs(files: Sequence[dict[str, Any]]) -> Sequence[list[dict[str, Any]]]:
    """Return files in groups in each of which they follow each other without a common key.

    Each file of level 0 is one group. Two files of another level can have versions of one key.
    """
    runs: list[list[dict[str, Any]]] = []
    open_runs: dict[int, list[list[dict[str, Any]]]] = {}
    for file in sorted(files, key=lambda file: (file["level"], file["start_key"], file["end_key"])):
        for run in open_runs.get(file["level"], ()) if file["level"] else ():
            if run[-1]["end_key"] < file["start_key"]:
                run.append(file)
                break
        else:
            runs.append([file])
            open_runs.setdefault(file["level"], []).append(runs[-1])
    if len(runs) > _RUNS_MAX:
        raise UnknownTableError(f"{len(runs)} sorted runs")
    return runs


def _planned(runs: Sequence[_Run], piece_bytes: int) -> bytes | None:
    """Choose the blocks of a piece; return the last key that they have to have, None for all.

    The runs are cut at one key. It comes from the run with the most bytes to read, which gets its share of
    `piece_bytes`.
    """
    bound = min((run.end_key for run in runs if run.end_key is not None), default=None)
    for run in runs:
        run.take_to(bound)
    taken = sum(run.bytes_taken for run in runs)
    if taken <= piece_bytes:
        return bound
    largest = max(runs, key=lambda run: run.bytes_taken)
    blocks = largest.share(piece_bytes, taken)
    while True:
        cut = largest.index.separator(largest.first + blocks - 1)
        bound = cut if bound is None else min(bound, cut)
        for run in runs:
            run.take_to(bound)
        taken = sum(run.bytes_taken for run in runs)
        if taken <= _SKEW * piece_bytes:
            return bound
        # Keys of another run are dense here. It has one block behind the bound, which does not count.
        largest = max(runs, key=lambda run: run.bytes_taken)
        blocks = min(largest.share(1, 2), largest.taken - largest.first - 1)
        if not blocks or largest.index.separator(largest.first + blocks - 1) >= bound:
            if taken > _TOGETHER_BYTES_MAX:
                raise UnknownTableError(f"blocks of {taken} bytes would be read together")
            return bound


def checked(places: Indices, sizes: Indices, owners: list[Any]) -> tuple[int, int, Indices]:
    """Check and decompress blocks in place. Return (entries, bytes of the longest key, ends of the entries)."""
    kinds, ends = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
    unpacked_bytes = kernels.check(places, sizes, kinds)
    if unpacked_bytes == UNKNOWN:
        raise UnknownTableError("a block is damaged, or compressed in an unknown way")
    if unpacked_bytes:
        unpacked = np.empty(unpacked_bytes, np.uint8)
        owners.append(unpacked)
        if kernels.unpack(places, sizes, kinds, unpacked.ctypes.data) == UNKNOWN:
            raise UnknownTableError("a compressed block is damaged")
    entries, longest = kernels.count(places, sizes, ends)
    if entries == UNKNOWN:
        raise UnknownTableError("a block has no valid entries")
    return int(entries), int(longest), ends


# -- indexes -----------------------------------------------------------------------------------------------
