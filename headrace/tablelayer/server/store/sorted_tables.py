"""Reads of a snapshot's rows from RocksDB's table files, without RocksDB's iterator and without the interpreter.

RocksDB's Python iterator makes one object a row under the interpreter's lock. Here a piece of a scan is planned from
the indexes of the files, its blocks are read, and kernels (`table_kernels.py`) check and merge them. A snapshot of
RocksDB stays open meanwhile: compactions keep what it sees, so that each present set of files has its rows, and entries
with a higher sequence number do not count. The rows in memory are flushed first.

Anything that these functions do not know or that looks damaged raises UnknownTableError: RocksDB's own iterator then
reads, and decides. Format: RocksDB's `table/format.cc`, block-based tables of format version 5.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.broker.runtime.ports import Disk
from headrace.tablelayer.model.arrays.arrays import binary_array, ends_to_offsets, variable_values
from headrace.tablelayer.server.store import table_kernels as kernels
from headrace.tablelayer.server.store.file_cache import FileCache
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
_BLOCKS_OF_GROUP: Final = 64
"""Number of blocks, of 16 KiB, that have statistics together."""
_STATISTICS_MAX: Final = 4096
"""Maximum number of groups of a file with statistics, those of different columns counted apart."""


LiveFiles = Callable[[], list[dict[str, Any]]]
"""Returns what `Rdict.live_files` does."""


class StoredRows(msgspec.Struct, frozen=True):
    """Encoded rows at addresses, in memory that `owners` keep."""

    addresses: Indices
    lengths: Indices
    owners: Sequence[object] = ()

    def __len__(self) -> int:
        return len(self.lengths)

    @classmethod
    def of(cls, values: Sequence[bytes]) -> StoredRows:
        array = pa.array(values, pa.binary())
        offsets, data = variable_values(array)
        starts = offsets.astype(np.int64)
        return cls(data.ctypes.data + starts[:-1], np.diff(starts), (array, data))

    @classmethod
    def joined(cls, parts: Sequence[StoredRows]) -> StoredRows:
        """Return the rows of all parts, one part after another."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            np.concatenate([part.addresses for part in parts]),
            np.concatenate([part.lengths for part in parts]),
            [part.owners for part in parts],
        )

    def take(self, chosen: npt.NDArray[Any]) -> StoredRows:
        """Return some of the rows; `chosen` has their indexes, or a bool for each row."""
        return StoredRows(self.addresses[chosen], self.lengths[chosen], self.owners)

    def array(self) -> pa.BinaryArray:
        """Return a copy. Raises ValueError beyond 2 GiB."""
        offsets = ends_to_offsets(self.lengths)
        data = np.empty(offsets[-1], np.uint8)
        kernels.gather(self.addresses, self.lengths, offsets, data)
        return binary_array(offsets, data)


class Limits(msgspec.Struct, frozen=True):
    """The limits of a piece: rows, bytes of values, and bytes in Arrow's form with their cost per row and per byte."""

    rows: int
    value_bytes: int
    made_bytes: int
    width: int
    expansion: int

    def after(self, rows: StoredRows) -> Limits:
        """Return what is left of the limits."""
        size = int(rows.lengths.sum())
        made = self.made_bytes - len(rows) * self.width - size * self.expansion
        return Limits(self.rows - len(rows), self.value_bytes - size, made, self.width, self.expansion)


class Groups(Protocol):
    """A filter of a scan that knows from statistics which groups of blocks have no matching row."""

    key: Hashable
    """The form of the statistics: filters with equal keys share them."""
    verdicts: dict[tuple[str, int], bool]
    """The groups that were asked about, by file and number; true: it has no matching row."""

    def statistics(self, rows: StoredRows) -> object:
        """Return the statistics of rows; None if there are none."""

    def excludes(self, statistics: Any) -> bool:
        """Return whether no row with these statistics matches."""


class _Run(msgspec.Struct):
    """One file of a sorted run, and its blocks `first` to `stop` that can have keys of the range.

    `end_key` is the last key of the file if the run goes on in other files, else None.
    """

    path: Path
    index: TableIndex
    first: int
    stop: int
    end_key: bytes | None
    name: str
    is_oldest: bool
    """Whether no file has older versions of the file's keys."""
    taken: int = 0

    @property
    def bytes_left(self) -> int:
        return self.index.span(self.first, self.stop)[1]

    @property
    def bytes_taken(self) -> int:
        return self.index.span(self.first, self.taken)[1]

    def take_to(self, bound: bytes | None) -> None:
        """Take the blocks that can have keys up to a bound; None: all."""
        self.taken = self.stop
        if bound is not None:
            self.taken = min(self.stop, self.index.first_from(bound + b"\x00") + 1)


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
                runs = self._runs(live_files(), lower, upper)
                end = _planned(runs, min(_TOGETHER_BYTES, max(_TOGETHER_BYTES_MIN, limits.value_bytes)))
                return self._read(runs, lower, upper, end, sequence, limits, groups)
            except FileNotFoundError:
                continue  # a compaction has replaced a file since it was listed
        raise UnknownTableError("the files change too fast")

    def _runs(self, files_now: list[dict[str, Any]], lower: bytes, upper: bytes | None) -> list[_Run]:
        wanted = [
            file
            for file in files_now
            if file["end_key"] >= lower and (upper is None or file["start_key"] < upper)
        ]
        runs = []
        for files in _sorted_runs(wanted):
            here = files[0]
            path = self._path / here["name"].lstrip("/")
            index = self._indexes.get(self, here["name"], partial(read_index, self._disk, path))
            count = len(index.blocks)
            stop = count if upper is None else min(count, index.first_from(upper) + 1)
            end_key = here["end_key"] if len(files) > 1 else None
            is_oldest = all(
                other is here
                or other["level"] < here["level"]
                or other["end_key"] < here["start_key"]
                or other["start_key"] > here["end_key"]
                for other in wanted
            )
            runs.append(_Run(path, index, index.first_from(lower), stop, end_key, here["name"], is_oldest))
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
        for run in runs:
            starts.append(starts[-1])
            for first, stop in self._chosen(run, groups):
                some_places, some_sizes = self._blocks(run, first, stop, owners)
                places.append(some_places)
                sizes.append(some_sizes)
                starts[-1] += stop - first
        if not starts[-1]:
            return Piece(StoredRows.of([]), end, end is not None)
        all_places, all_sizes = np.concatenate(places), np.concatenate(sizes)
        entries, longest, ends = checked(all_places, all_sizes, owners)
        bound, is_inclusive = upper, False
        if end is not None and (upper is None or end < upper):
            bound, is_inclusive = end, True
        count = min(
            entries + 1, limits.rows
        )  # so that the limit of rows alone is never reached by all entries
        addresses, lengths = np.empty(count, np.int64), np.empty(count, np.int64)
        last = np.empty(longest + kernels.SLACK, np.uint8)
        found, last_length, outcome = kernels.merge(
            all_places,
            ends,
            np.array(starts, np.int64),
            longest,
            bytes_array(lower),
            bytes_array((bound or b"") + bytes(kernels.SLACK)),
            bound is not None,
            is_inclusive,
            sequence,
            np.array(
                [count, limits.value_bytes, limits.made_bytes, limits.width, limits.expansion], np.int64
            ),
            addresses,
            lengths,
            last,
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

    def _chosen(self, run: _Run, groups: Groups | None) -> list[tuple[int, int]]:
        """Return the ranges of the run's taken blocks that have to be read.

        Rows that do not match may be left out only if they hide no older version that might match.
        """
        if groups is None or not run.is_oldest or run.index.has_tags:
            return [(run.first, run.taken)] if run.first < run.taken else []
        if len(run.index.filtered) < 2:
            run.index.filtered.add(id(groups))
        chosen: list[tuple[int, int]] = []
        at = run.first
        while at < run.taken:
            group = at // _BLOCKS_OF_GROUP
            stop = min(run.taken, (group + 1) * _BLOCKS_OF_GROUP)
            if not self._is_excluded(run, group, groups):
                if chosen and chosen[-1][1] == at:
                    chosen[-1] = chosen[-1][0], stop
                else:
                    chosen.append((at, stop))
            at = stop
        return chosen

    def _is_excluded(self, run: _Run, group: int, groups: Groups) -> bool:
        verdict = groups.verdicts.get((run.name, group))
        if verdict is None:
            known, key = run.index.statistics, (groups.key, group)
            # Statistics cost about as much as the scan, so that the first scan makes none.
            is_worth_it = len(run.index.filtered) > 1 and len(known) < _STATISTICS_MAX
            if key not in known and is_worth_it:
                known[key] = groups.statistics(self._all_rows(run, group))
            statistics = known.get(key)
            verdict = statistics is not None and groups.excludes(statistics)
            groups.verdicts[run.name, group] = verdict
        return verdict

    def _all_rows(self, run: _Run, group: int) -> StoredRows:
        """Return all versions of rows in a group of blocks."""
        owners: list[Any] = []
        first = group * _BLOCKS_OF_GROUP
        stop = min(len(run.index.blocks), first + _BLOCKS_OF_GROUP)
        places, sizes = self._blocks(run, first, stop, owners)
        entries, _, ends = checked(places, sizes, owners)
        addresses, lengths = np.empty(entries, np.int64), np.empty(entries, np.int64)
        found = kernels.rows_of(places, ends, addresses, lengths)
        return StoredRows(addresses[:found], lengths[:found], owners)


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

    The runs are cut at one key. It comes from the largest run, which gets its share of `piece_bytes`.
    """
    limit = min((run.end_key for run in runs if run.end_key is not None), default=None)
    left = sum(run.bytes_left for run in runs)
    if left <= piece_bytes:
        bound = limit
        for run in runs:
            run.take_to(bound)
        return bound
    largest = max(runs, key=lambda run: run.bytes_left)
    blocks = max(1, (largest.stop - largest.first) * piece_bytes // left)
    while True:
        bound = largest.index.separator(largest.first + blocks - 1)
        if limit is not None:
            bound = min(bound, limit)
        for run in runs:
            run.take_to(bound)
        taken = sum(run.bytes_taken for run in runs)
        if taken <= _SKEW * piece_bytes:
            return bound
        # Keys of another run are dense here. It has one block behind the bound, which does not count.
        largest = max(runs, key=lambda run: run.bytes_taken)
        blocks = (largest.taken - largest.first - 1) // 2
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
