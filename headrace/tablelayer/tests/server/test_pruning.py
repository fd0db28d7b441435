"""The choice of the blocks that a filtered scan reads (`store/pruning.py`), against the rule and against all blocks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pytest

from headrace.tablelayer.server.store.pruning import choose
from headrace.tablelayer.server.store.table_index import bytes_array

KEYS = [
    bytes([1, *rest]) for first in range(5) for rest in ((first,), (first, 0), (first, 7), (first, 7, 255))
]
MATCHING, OTHER = "a row that matches", "a row that does not match"


class Entry(NamedTuple):
    key: bytes
    sequence: int
    value: str | None
    """None: a deletion."""


class Block(NamedTuple):
    """A block of a file, and its range of keys. `low` belongs to the range if it is closed; `high` always does."""

    file: int
    level: int
    entries: list[Entry]
    low: bytes
    is_closed: bool
    high: bytes
    may_match: bool

    def overlaps(self, other: Block) -> bool:
        low, high = max(self.low, other.low), min(self.high, other.high)
        is_closed = all(each.is_closed for each in (self, other) if each.low == low)
        return low < high or (low == high and is_closed)


class File(NamedTuple):
    level: int
    blocks: list[Block]
    has_tags: bool


def some_files(rng: random.Random) -> list[File]:
    """Return files whose deeper levels have older versions, each with the newest version of a key first."""
    files: list[File] = []
    for number in range(rng.randrange(1, 7)):
        level = rng.choice((0, 0, 1, 2, 6))
        entries = {}
        for _ in range(rng.randrange(1, 16)):
            sequence = 10_000 * (9 - level) + rng.randrange(10_000)
            key = rng.choice(KEYS[: rng.choice((6, len(KEYS)))])
            entries[key, -sequence] = Entry(
                key, sequence, MATCHING if rng.random() < 0.1 else rng.choice((OTHER, None))
            )
        rows = [entries[place] for place in sorted(entries)]
        starts = [0, *sorted({place for place in range(1, len(rows)) if rng.random() < 0.4})]
        parts = [rows[start:stop] for start, stop in zip(starts, [*starts[1:], len(rows)], strict=True)]
        pairs = list(itertools.pairwise(parts))
        has_tags = any(left[-1].key == right[0].key for left, right in pairs)
        blocks: list[Block] = []
        for place, part in enumerate(parts):
            low, is_closed = (part[0].key, True) if not blocks else (blocks[-1].high, has_tags)
            high = part[-1].key
            if place + 1 < len(parts) and high < high + b"\x05" < parts[place + 1][0].key:
                high += rng.choice((b"", b"\x05"))  # RocksDB may choose any key up to the next block
            may_match = any(entry.value == MATCHING for entry in part) or rng.random() < 0.05
            blocks.append(Block(number, level, part, low, is_closed, high, may_match))
        files.append(File(level, blocks, has_tags))
    return files


def chosen_of(files: list[File]) -> list[bool]:
    blocks = [block for file in files for block in file.blocks]
    keys = [block.high for block in blocks] + [file.blocks[0].low for file in files]
    arena = bytes_array(b"".join(keys) + bytes(16))
    ends = np.cumsum([len(key) for key in keys])
    places = np.array([[end - len(key), len(key)] for end, key in zip(ends, keys, strict=True)], np.int64)
    places[:, 0] += arena.ctypes.data
    may_match = np.array([block.may_match for block in blocks])
    chosen = may_match.copy()
    choose(
        places[: len(blocks)].copy(),
        np.cumsum([0, *(len(file.blocks) for file in files)]).astype(np.int64),
        places[len(blocks) :].copy(),
        np.array([file.level for file in files], np.int64),
        np.array([file.has_tags for file in files]),
        may_match,
        chosen,
    )
    found: list[bool] = chosen.tolist()
    return found


def by_the_rule(files: list[File]) -> list[bool]:
    blocks = [block for file in files for block in file.blocks]

    def is_beneath(other: Block, block: Block) -> bool:
        if other.file == block.file and not files[block.file].has_tags:
            return other is block
        return other.level >= block.level and other.overlaps(block)

    return [any(other.may_match for other in blocks if is_beneath(other, block)) for block in blocks]


def matching(blocks: Iterable[Block], sequence: int) -> set[bytes]:
    """Return the keys whose newest version that a snapshot sees matches."""
    newest: dict[bytes, Entry] = {}
    for block in blocks:
        for entry in block.entries:
            if entry.sequence <= sequence and (
                entry.key not in newest or newest[entry.key].sequence < entry.sequence
            ):
                newest[entry.key] = entry
    return {key for key, entry in newest.items() if entry.value == MATCHING}


@pytest.mark.parametrize("seed", range(8))
def test_the_chosen_blocks_give_the_answer_of_all_blocks(seed: int) -> None:
    rng = random.Random(seed)
    left_out = 0
    for _ in range(400):
        files = some_files(rng)
        blocks = [block for file in files for block in file.blocks]
        chosen = chosen_of(files)
        assert chosen == by_the_rule(files), files
        left_out += chosen.count(False)
        more = [is_chosen or rng.random() < 0.2 for is_chosen in chosen]
        for sequence in (100_000, *(rng.randrange(30_000, 100_000) for _ in range(4))):
            wanted = matching(blocks, sequence)
            for read in (chosen, more):
                some = (block for block, is_read in zip(blocks, read, strict=True) if is_read)
                assert matching(some, sequence) == wanted, (files, sequence)
    assert left_out > 1_200, left_out
