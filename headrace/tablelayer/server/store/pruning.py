"""The blocks that a filtered scan has to read: pruning by statistics, also where table files overlap.

A block is *beneath* another block if it may have an older version of a key of that block. Its file is then in the same
level or a deeper one, and its range of keys overlaps the other's. RocksDB keeps newer versions in higher levels. Files
of one level count as beneath each other, because RocksDB does not tell which of them is newer.

The rule: **a block may be left out if no row of it matches the filter, and no row of any block beneath it does.**

It changes no answer. Take a key, and the block with its newest version that the snapshot sees. If this block is read,
the merge finds this version. If it is left out, this version does not match, and neither does any older one: all of
them are in blocks beneath it. So the key is not in the answer, whatever else is read. Three cases follow:

- A block that cannot match is left out, whatever lies above it.
- A block that may match is read, and so is each block above it that has keys of its range: a newer version or a
  deletion there hides an older version that matches.
- The blocks above are not read for the sake of their own ranges. So nothing spreads from one range of keys to the next.

Reading more than the rule wants is always right. A deletion matches nothing. Statistics count all versions in a block,
seen or not. Ranges of keys come from the separators in the indexes, block by block, so that a small file with keys of
the whole table costs no more than its few blocks within the ranges that may match. In a file with tags, versions of one
key can be in several blocks. Its blocks then share the keys at their ends, and can be beneath their neighbours.

Statistics are those of zones: some blocks of a file that were read together, with all of their rows. A filtered scan
makes them from the blocks that it reads anyway, in half of its own time, so that the next one has them. Files never
change, so that statistics stay right.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from numba import njit

from headrace.tablelayer.model.arrays.arrays import Mask
from headrace.tablelayer.model.arrays.memory import Int64
from headrace.tablelayer.server.store import table_kernels as kernels
from headrace.tablelayer.server.store.stored_rows import StoredRows
from headrace.tablelayer.server.store.table_index import NO_ZONE, TableIndex, Zones, bytes_array
from headrace.tablelayer.server.store.table_kernels import Indices, Table, compared, first_block

_ZONES_OF_FILE: Final = 64
"""Number of zones of a small file. Its keys may be those of the whole table, so that its zones have to be small."""
_ZONE_BLOCKS: Final = 16
"""Maximum number of blocks of 16 KiB in a zone, up to `_ZONES_MAX` zones of a file."""
_ZONES_MAX: Final = 1024
_STATISTICS_MAX: Final = 4096
"""Maximum number of statistics of a file, those of different columns counted apart."""
_FORMS_MAX: Final = 64
_WORTH_READING: Final = 0.9
"""Share of blocks that may match from which on all are read."""
_UNKNOWN, _EXCLUDED, _MAY_MATCH = 0, 1, 2
_NO_VERDICTS: Final = np.array([_MAY_MATCH], np.int8)
"""The last verdict, of index `NO_ZONE`, is that of blocks without a zone."""


class Groups(Protocol):
    """A filter of a scan that knows from statistics which zones have no matching row."""

    key: Hashable
    """The form of the statistics: filters with equal keys share them."""
    verdicts: dict[str, tuple[Zones, npt.NDArray[np.int8]]]
    """The zones of each file, by its name, and the verdicts on them. An index that is read again has new zones."""

    def statistics(self, rows: StoredRows, counts: Sequence[int]) -> Sequence[object]:
        """Return the statistics of parts of rows that follow each other; None for a part that has none."""

    def excludes(self, statistics: Any) -> bool:
        """Return whether no row with these statistics matches."""


class Blocks(msgspec.Struct):
    """The blocks `first` to `stop` of a file, which can have keys of a range. `start_key` is the file's first key."""

    name: str
    level: int
    start_key: bytes
    index: TableIndex
    first: int
    stop: int


def blocks_to_read(files: Sequence[Blocks], lower: bytes, groups: Groups) -> list[Mask] | None:
    """Return, for each file, a bool for each of its blocks: it has to be read. None: all blocks have to be read.

    Keys below `lower` do not count.
    """
    may_match = [_may_match(file, groups) for file in files]
    if sum(map(np.count_nonzero, may_match)) >= _WORTH_READING * sum(map(len, may_match)):
        return None  # choosing costs more than reading the others
    starts = np.cumsum([0, *map(len, may_match)]).astype(np.int64)
    lowest = [max(lower, file.start_key) for file in files]
    arena = bytes_array(b"".join(lowest) + bytes(kernels.SLACK))
    ends = np.cumsum([len(key) for key in lowest])
    begins = np.array([[end - len(key), len(key)] for end, key in zip(ends, lowest, strict=True)], np.int64)
    begins[:, 0] += arena.ctypes.data
    separators = np.concatenate([file.index.separators[file.first : file.stop] for file in files])
    separators[:, 0] += np.repeat([file.index.arena.ctypes.data for file in files], np.diff(starts))
    matching = np.concatenate(may_match)
    chosen = matching.copy()
    choose(
        separators,
        starts,
        begins,
        np.array([file.level for file in files], np.int64),
        np.array([file.index.has_tags for file in files], np.bool_),
        matching,
        chosen,
    )
    return np.split(chosen, starts[1:-1])


def _may_match(file: Blocks, groups: Groups) -> Mask:
    """Return a bool for each block: statistics do not exclude that a row in it matches."""
    zones = file.index.statistics.get(groups.key)
    if zones is None:
        return np.ones(file.stop - file.first, np.bool_)
    here = zones.of_block[file.first : file.stop].copy()
    judged, verdicts = groups.verdicts.get(file.name, (zones, _NO_VERDICTS))
    if judged is not zones:
        verdicts = _NO_VERDICTS
    if len(verdicts) <= len(zones.known):
        added = np.zeros(len(zones.known) + 1 - len(verdicts), np.int8)
        verdicts = np.concatenate([verdicts[:-1], added, _NO_VERDICTS])
        groups.verdicts[file.name] = zones, verdicts
    for zone in np.unique(here[verdicts[here] == _UNKNOWN]).tolist():
        statistics = zones.known[zone]
        is_excluded = statistics is not None and groups.excludes(statistics)
        verdicts[zone] = _EXCLUDED if is_excluded else _MAY_MATCH
    mask: Mask = verdicts[here] != _EXCLUDED
    return mask


def make_statistics(
    parts: Sequence[tuple[Blocks, int, int]],
    places: Indices,
    ends: Indices,
    entries: int,
    owners: Sequence[object],
    groups: Groups,
) -> None:
    """Make statistics of blocks that have none.

    `parts` are (file, first of some of its blocks, their number); the blocks are at `places`, one part after another.
    They were checked and have at most `entries` entries; `owners` keep their memory.
    """
    begin, chosen, zone_blocks, added = 0, [], [], []
    for file, first, count in parts:
        zones, size, free = _zones_of(file, groups)
        missing = np.flatnonzero(zones.of_block[first : first + count] == NO_ZONE)[: free * size]
        if len(missing):
            chosen.append(begin + missing)
            zone_blocks += [min(size, len(missing) - start) for start in range(0, len(missing), size)]
            added.append((zones, first + missing, size))
        begin += count
    if not chosen:
        return
    blocks = np.concatenate(chosen)
    addresses, lengths = np.empty(entries, np.int64), np.empty(entries, np.int64)
    counts = np.empty(len(blocks), np.int64)
    found = kernels.rows_of(places[blocks], ends[blocks], addresses, lengths, counts)
    rows = StoredRows(addresses[:found], lengths[:found], owners)
    starts = np.cumsum([0, *zone_blocks[:-1]])
    statistics = groups.statistics(rows, np.add.reduceat(counts, starts).tolist())
    for zones, missing, size in added:
        number = -(-len(missing) // size)
        with zones.lock:
            zones.known.extend(statistics[:number])  # before the blocks refer to them
            begin = len(zones.known) - number
            zones.of_block[missing] = begin + np.arange(len(missing)) // size
        statistics = statistics[number:]


def _zones_of(file: Blocks, groups: Groups) -> tuple[Zones, int, int]:
    """Return the zones of a file, the number of blocks of a new one, and how many more the file may have."""
    forms, count = file.index.statistics, len(file.index.blocks)
    made = sum(len(each.known) for each in list(forms.values()))
    zones = forms.get(groups.key)
    if zones is None:
        zones = Zones(np.full(count, NO_ZONE, np.int32), [], threading.Lock())
        if len(forms) < _FORMS_MAX:
            zones = forms.setdefault(groups.key, zones)
        else:
            made = _STATISTICS_MAX
    size = max(1, min(_ZONE_BLOCKS, count // _ZONES_OF_FILE), -(-count // _ZONES_MAX))
    return zones, size, max(0, _STATISTICS_MAX - made)


@njit(cache=True, nogil=True)
def choose(
    separators: Table,
    starts: Indices,
    begins: Table,
    levels: Indices,
    has_tags: Mask,
    may_match: Mask,
    chosen: Mask,
) -> None:
    """Choose the blocks above those that may match, by the rule of this module.

    The blocks of file i are `starts[i]` to `starts[i + 1]`. `separators` has the (address, length) of the key at the
    end of each block, `begins` that of the first key of each file.
    """
    files = len(levels)
    for file in range(files):
        block = starts[file]
        while block < starts[file + 1]:
            if not may_match[block]:
                block += 1
                continue
            begin = block
            while block < starts[file + 1] and may_match[block]:
                block += 1
            low, low_length = begins[file, 0], begins[file, 1]
            is_first = begin == starts[file]
            if not is_first:
                low, low_length = separators[begin - 1, 0], separators[begin - 1, 1]
            high, high_length = separators[block - 1, 0], separators[block - 1, 1]
            for other in range(files):
                if levels[other] > levels[file] or (other == file and not has_tags[file]):
                    continue
                if compared(begins[other, 0], begins[other, 1], high, high_length, 0) > 0:
                    continue
                first = first_block(separators, starts[other], starts[other + 1], low, low_length)
                if not is_first and not has_tags[file]:
                    # The keys are above `low`, so that a block which ends there has none of them.
                    first = _behind(separators, first, starts[other + 1], low, low_length)
                stop = first_block(separators, starts[other], starts[other + 1], high, high_length)
                if has_tags[other]:
                    stop = _behind(separators, stop, starts[other + 1], high, high_length)
                for index in range(first, min(stop + 1, starts[other + 1])):
                    chosen[index] = True


@njit(cache=True, nogil=True)
def _behind(separators: Table, block: Int64, stop: Int64, key: Int64, length: Int64) -> Int64:
    """Return the first block from `block` on whose separator is not the key."""
    while block < stop and compared(separators[block, 0], separators[block, 1], key, length, 0) == 0:
        block += 1
    return block


def warm() -> None:
    """Compile the kernel, or load it from the cache."""
    nothing, table, mask = np.empty(0, np.int64), np.empty((0, 2), np.int64), np.empty(0, np.bool_)
    choose(table, np.zeros(1, np.int64), table, nothing, mask, mask, mask)
