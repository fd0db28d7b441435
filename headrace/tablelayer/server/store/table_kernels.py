"""Kernels over the blocks of RocksDB's sorted tables: they check, decompress and merge blocks without the interpreter.

A block of a table file has entries, the positions of its restart points, and possibly a hash index. Its trailer has
five bytes: the kind of its compression and a checksum. An entry is varint32 bytes shared with the key before it,
varint32 other bytes of the key, varint32 bytes of the value, key, value. A key ends with a uint64: the sequence number
times 256, plus the kind of the entry. Source: RocksDB's `table/format.cc`, `table/block_based/block.cc` and
`util/compression.h`.

Rows have keys that begin with byte 01. Kernels compare the eight bytes behind it as a number, and the rest only if
these are equal. Callers keep the memory at all addresses, with `SLACK` readable bytes behind it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from headrace.tablelayer.model.arrays.arrays import Bytes, sealed
from headrace.tablelayer.model.arrays.memory import (
    Int64,
    byte_at,
    copy_bytes,
    int32_at,
    put_byte,
    swapped,
    word_at,
)
from headrace.tablelayer.server.store.xxh3 import SHORTEST, xxh3

Indices = npt.NDArray[np.int64]
Table = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

SLACK: Final = 16
TRAILER_BYTES: Final = 5
UNKNOWN: Final = -1
"""The result of a kernel for bytes that are damaged, or of a form that it does not know."""
ENDED, FULL = 0, 1
"""Results of `merge`: it has come to the end of the blocks or to the upper key, or the limits are reached."""
_PLAIN, _LZ4 = 0, 4
_LAST_BYTE_PRIME: Final = 0x6B9083D9  # RocksDB's `ModifyChecksumForLastByte`
LOW: Final = 0xFFFFFFFF
HASH_INDEX_BIT: Final = 1 << 31
_VARINT_BYTES_MAX: Final = 5
TAG_BYTES: Final = 8
DELETION, VALUE, SINGLE_DELETION = 0, 1, 7
BLOCK, LAST_BLOCK, AT, END, KEY, KEY_LENGTH, VALUE_AT, VALUE_LENGTH = 0, 1, 2, 3, 4, 5, 6, 7
CURSOR_FIELDS: Final = 8
ROW_BYTE: Final = 1


@njit(cache=True, nogil=True)
def varint_at(at: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Return (value of up to 35 bits, address behind it); (UNKNOWN, end) if it is cut off or too long."""
    value, shift = np.int64(0), np.int64(0)
    while at < end and shift < 7 * _VARINT_BYTES_MAX:
        byte = np.int64(byte_at(at, 0))
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    return np.int64(UNKNOWN), end


@njit(cache=True, nogil=True)
def _is_sound(at: Int64, size: Int64) -> bool:
    """Return whether the checksum of a block of `size` bytes, without its trailer, is right."""
    if size < SHORTEST:
        return False
    wanted = np.int64(int32_at(at + size + 1, 0)) & LOW
    found = np.int64(xxh3(at, size) & np.uint64(LOW))
    found ^= (np.int64(byte_at(at, size)) * _LAST_BYTE_PRIME) & LOW
    return bool(found == wanted)


@njit(cache=True, nogil=True)
def check(places: Indices, sizes: Indices, kinds: Indices) -> Int64:
    """Check the checksums of blocks at addresses; fill `kinds` with the sizes of the compressed ones, else 0.

    Return the sum of these sizes, or UNKNOWN.
    """
    total = np.int64(0)
    for index in range(len(places)):
        at, size = places[index], sizes[index]
        if not _is_sound(at, size):
            return np.int64(UNKNOWN)
        kind = np.int64(byte_at(at, size))
        kinds[index] = 0
        if kind == _LZ4:
            plain, _ = varint_at(at, at + size)
            # LZ4 makes at most 255 bytes of one.
            if plain <= 0 or plain > 255 * size:
                return np.int64(UNKNOWN)
            kinds[index] = plain
            total += plain + SLACK
        elif kind != _PLAIN:
            return np.int64(UNKNOWN)
    return total


@njit(cache=True, nogil=True)
def unpack(places: Indices, sizes: Indices, kinds: Indices, target: Int64) -> Int64:
    """Decompress blocks into `target`, as large as `check` said; change their places and sizes. Return 0 or UNKNOWN."""
    for index in range(len(places)):
        if kinds[index]:
            at, end = places[index], places[index] + sizes[index]
            _, at = varint_at(at, end)
            if not _decompress(at, end, target, target + kinds[index]):
                return np.int64(UNKNOWN)
            places[index], sizes[index] = target, kinds[index]
            target += kinds[index] + SLACK
    return np.int64(0)


@njit(cache=True, nogil=True)
def _length_at(at: Int64, end: Int64, nibble: Int64) -> tuple[Int64, Int64]:
    """Return (length, address behind it) of LZ4's length whose first four bits are `nibble`."""
    length = np.int64(nibble)
    if nibble == 15:
        while at < end:
            byte = np.int64(byte_at(at, 0))
            at += 1
            length += byte
            if byte != 255:
                return length, at
        return np.int64(UNKNOWN), at
    return length, at


@njit(cache=True, nogil=True)
def _decompress(at: Int64, end: Int64, out: Int64, out_end: Int64) -> bool:
    """Decompress one LZ4 block; return whether it is valid and fills the output exactly.

    Source: LZ4's block format.
    """
    begin = out
    while at < end:
        token = np.int64(byte_at(at, 0))
        length, at = _length_at(at + 1, end, token >> 4)
        if length < 0 or length > end - at or length > out_end - out:
            return False
        copy_bytes(at, out, length)
        at += length
        out += length
        if at == end:
            return bool(out == out_end)
        if end - at < 2:
            return False
        back = np.int64(byte_at(at, 0)) | (np.int64(byte_at(at, 1)) << 8)
        length, at = _length_at(at + 2, end, token & 15)
        if length < 0:
            return False
        length += 4
        if back == 0 or back > out - begin or length > out_end - out:
            return False
        if back >= 8:
            copy_bytes(out - back, out, length)
        else:
            for index in range(length):
                put_byte(out + index, byte_at(out - back, index))
        out += length
    return False


@njit(cache=True, nogil=True)
def entries_end(at: Int64, size: Int64) -> Int64:
    """Return the address behind the last entry of a block, or UNKNOWN."""
    if size < 8:
        return np.int64(UNKNOWN)
    end = at + size - 4
    packed = np.int64(int32_at(end, 0)) & LOW
    if packed & HASH_INDEX_BIT:
        if size < 10:
            return np.int64(UNKNOWN)
        buckets = np.int64(byte_at(end, -2)) | (np.int64(byte_at(end, -1)) << 8)
        end -= 2 + buckets
        packed ^= HASH_INDEX_BIT
    end -= 4 * packed
    return end if end >= at else np.int64(UNKNOWN)


@njit(cache=True, nogil=True)
def count(places: Indices, sizes: Indices, ends: Indices) -> tuple[Int64, Int64]:
    """Fill `ends` with the addresses behind the entries of blocks. Return (entries, longest key), or UNKNOWN twice.

    After this, the entries of all blocks are known to stay inside of their blocks.
    """
    unknown = np.int64(UNKNOWN), np.int64(UNKNOWN)
    entries, longest = np.int64(0), np.int64(0)
    for index in range(len(places)):
        at = places[index]
        end = entries_end(at, sizes[index])
        if end < 0:
            return unknown
        ends[index] = end
        length = np.int64(0)
        while at < end:
            shared, at = varint_at(at, end)
            other, at = varint_at(at, end)
            size, at = varint_at(at, end)
            if size < 0 or other < 0 or shared < 0 or shared > length or other + size > end - at:
                return unknown
            length = shared + other
            if length < TAG_BYTES:
                return unknown
            longest = max(longest, length)
            at += other + size
            entries += 1
    return entries, longest


@njit(cache=True, nogil=True)
def _word_of(key: Int64, length: Int64) -> Int64:
    """Return the bytes 1 to 8 of a key as a number that sorts like them; bytes that it does not have count as 0."""
    word = swapped(word_at(key, 1))
    if length < 9:
        missing = np.uint64(8 * (9 - max(length, 1)))
        word = np.uint64(0) if missing >= 64 else (word >> missing) << missing
    return word


@njit(cache=True, nogil=True)
def compared(left: Int64, left_length: Int64, right: Int64, right_length: Int64, start: Any) -> Int64:
    """Return -1, 0 or 1 for the order of two keys that are equal before byte `start`."""
    shorter = min(left_length, right_length)
    for index in range(start, shorter):
        a, b = np.int64(byte_at(left, index)), np.int64(byte_at(right, index))
        if a != b:
            return np.int64(-1) if a < b else np.int64(1)
    if left_length == right_length:
        return np.int64(0)
    return np.int64(-1) if left_length < right_length else np.int64(1)


@njit(cache=True, nogil=True)
def first_block_from(arena: Bytes, separators: Table, key: Bytes) -> Int64:
    """Return the index of the first block whose separator is not below a key; their number if there is none.

    `separators` has their (position in `arena`, length).
    """
    low, high = np.int64(0), np.int64(len(separators))
    base = arena.ctypes.data
    while low < high:
        middle = (low + high) >> 1
        at, size = base + separators[middle, 0], separators[middle, 1]
        if compared(at, size, key.ctypes.data, len(key), 0) < 0:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def first_block(separators: Table, first: Int64, stop: Int64, key: Int64, length: Int64) -> Int64:
    """Return the first of a file's blocks whose separator is not below a key; `stop` if there is none."""
    low, high = first, stop
    while low < high:
        middle = (low + high) >> 1
        if compared(separators[middle, 0], separators[middle, 1], key, length, 0) < 0:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def advance(cursors: Table, words: Words, run: int, places: Indices, ends: Indices, sequence: int) -> Int64:
    """Move a run's cursor to its next entry with a sequence number up to `sequence`; the block is -1 at the end."""
    key, length = cursors[run, KEY], cursors[run, KEY_LENGTH]
    at, end = cursors[run, AT], cursors[run, END]
    while True:
        while at >= end:
            block = cursors[run, BLOCK] + 1
            if block >= cursors[run, LAST_BLOCK]:
                cursors[run, BLOCK] = -1
                return np.int64(0)
            cursors[run, BLOCK] = block
            at, end = places[block], ends[block]
            cursors[run, END] = end
        shared, at = varint_at(at, end)
        other, at = varint_at(at, end)
        size, at = varint_at(at, end)
        copy_bytes(at, key + shared, other)
        length = shared + other
        value = at + other
        at = value + size
        if np.int64(word_at(key, length - TAG_BYTES) >> np.uint64(8)) <= sequence:
            break
    cursors[run, AT] = at
    cursors[run, KEY_LENGTH] = length
    cursors[run, VALUE_AT], cursors[run, VALUE_LENGTH] = value, size
    words[run] = _word_of(key, length - TAG_BYTES)
    return np.int64(0)


@njit(cache=True, nogil=True)
def smallest(cursors: Table, words: Words) -> Int64:
    """Return the cursor with the smallest key, the newest version of it first; -1 if all are at their ends."""
    best: Int64 = np.int64(-1)
    word, tag = np.uint64(0), np.uint64(0)
    key, length = np.int64(0), np.int64(0)
    for run in range(len(words)):
        if cursors[run, BLOCK] < 0:
            continue
        if best >= 0:
            if words[run] > word:
                continue
            if words[run] == word:
                other, other_length = cursors[run, KEY], cursors[run, KEY_LENGTH] - TAG_BYTES
                order = compared(other, other_length, key, length, min(9, length, other_length))
                if order > 0 or (order == 0 and word_at(other, other_length) < tag):
                    continue
        best, word = np.int64(run), words[run]
        key, length = cursors[run, KEY], cursors[run, KEY_LENGTH] - TAG_BYTES
        tag = word_at(key, length)
    return best


class RunBlocks(NamedTuple):
    """Checked blocks of sorted runs. Those of run i are `run_starts[i]` to `run_starts[i + 1]`, in key order."""

    places: Indices
    ends: Indices
    run_starts: Indices
    key_bytes: int
    """Length of the longest key."""


class Bounds(NamedTuple):
    """The rows that a merge looks for: not below `lower` and, if `is_bounded`, below or up to `upper`."""

    lower: Bytes
    upper: Bytes
    """The key, and `SLACK` more bytes."""
    is_bounded: bool
    is_inclusive: bool
    sequence: int
    """Entries with a larger sequence number do not count."""


@njit(cache=True, nogil=True)
def merge(
    blocks: RunBlocks,
    bounds: Bounds,
    limits: Indices,
    out_addresses: Indices,
    out_lengths: Indices,
    last: Bytes,
    keys: Bytes,
) -> tuple[Int64, Int64, Int64]:
    """Merge runs of blocks into the rows that a snapshot has, in key order.

    `limits` are rows, bytes of values, bytes of rows in Arrow's form, and the width and the factor of these
    (`RowCost`); the row that reaches a limit is included. `last` becomes the key of the last row that was looked at.
    `keys` has `runs * (key_bytes + SLACK) + SLACK` bytes: only its address is used, so that memory made here would be
    freed after the last use of its name.

    Return (rows or UNKNOWN, length of `last`, ENDED or FULL).
    """
    places, ends, run_starts, key_bytes = blocks
    lower, upper, is_bounded, is_inclusive, sequence = bounds
    runs = len(run_starts) - 1
    capacity = key_bytes + SLACK
    cursors = np.zeros((runs, CURSOR_FIELDS), np.int64)
    words = np.zeros(runs, np.uint64)
    for run in range(runs):
        cursors[run, KEY] = keys.ctypes.data + run * capacity
        cursors[run, BLOCK], cursors[run, LAST_BLOCK] = run_starts[run] - 1, run_starts[run + 1]
        advance(cursors, words, run, places, ends, sequence)
        while (
            cursors[run, BLOCK] >= 0
            and compared(
                cursors[run, KEY], cursors[run, KEY_LENGTH] - TAG_BYTES, lower.ctypes.data, len(lower), 0
            )
            < 0
        ):
            advance(cursors, words, run, places, ends, sequence)
    upper_at, upper_length = upper.ctypes.data, len(upper) - SLACK
    upper_word = _word_of(upper_at, upper_length)
    found, size, made = np.int64(0), np.int64(0), np.int64(0)
    last_at, last_length = last.ctypes.data, np.int64(-1)
    last_word = np.uint64(0)
    while found < limits[0] and size < limits[1] and made < limits[2]:
        best = smallest(cursors, words)
        if best < 0:
            return found, last_length, np.int64(ENDED)
        word, key, length = words[best], cursors[best, KEY], cursors[best, KEY_LENGTH] - TAG_BYTES
        tag = word_at(key, length)
        if length < 1 or byte_at(key, 0) != ROW_BYTE:
            return np.int64(UNKNOWN), np.int64(0), np.int64(0)
        if is_bounded and word >= upper_word:
            order = np.int64(1)
            if word == upper_word:
                order = compared(key, length, upper_at, upper_length, min(9, length, upper_length))
            if order > 0 or (order == 0 and not is_inclusive):
                return found, last_length, np.int64(ENDED)
        is_older = (
            last_length == length
            and last_word == word
            and compared(key, length, last_at, last_length, min(9, length)) == 0
        )
        if not is_older:
            copy_bytes(key, last_at, length)
            last_length, last_word = length, word
            kind = np.int64(tag & np.uint64(255))
            if kind == VALUE:
                out_addresses[found] = cursors[best, VALUE_AT]
                out_lengths[found] = cursors[best, VALUE_LENGTH]
                found += 1
                size += cursors[best, VALUE_LENGTH]
                made += limits[3] + limits[4] * cursors[best, VALUE_LENGTH]
            elif kind != DELETION and kind != SINGLE_DELETION:
                return np.int64(UNKNOWN), np.int64(0), np.int64(0)
        advance(cursors, words, best, places, ends, sequence)
    return found, last_length, np.int64(FULL)


@njit(cache=True, nogil=True)
def read_index(
    at: Int64,
    end: Int64,
    is_delta: bool,
    tag_bytes: int,
    file_size: int,
    blocks: Table,
    arena: Bytes,
    separators: Table,
) -> Int64:
    """Fill `blocks` (position, size), `arena` and `separators` (position, length) from the entries of an index block.

    A separator is not below the keys of its block, and below those of the next block. Its last `tag_bytes` do not
    belong to the key. With `is_delta`, a value has no length, and behind a shared key it is the difference of the
    block's size to the one before. Return the number of blocks, or UNKNOWN.
    """
    unknown = np.int64(UNKNOWN)
    index, length, filled = np.int64(0), np.int64(0), np.int64(0)
    position, size = np.int64(0), np.int64(0)
    base = arena.ctypes.data
    while at < end:
        shared, at = varint_at(at, end)
        other, at = varint_at(at, end)
        value_length = np.int64(0)
        if not is_delta:
            value_length, at = varint_at(at, end)
        if shared < 0 or other < 0 or value_length < 0 or shared > length or other > end - at:
            return unknown
        if index >= len(blocks) or filled + shared + other > len(arena) or shared + other < tag_bytes:
            return unknown
        start = base + filled
        for byte in range(shared):
            put_byte(start + byte, byte_at(start - length, byte))
        copy_bytes(at, start + shared, other)
        length = shared + other
        at += other
        if shared == 0 or not is_delta:
            position, at = varint_at(at, end)
            size, at = varint_at(at, end)
        else:
            position += size + TRAILER_BYTES
            change, at = varint_at(at, end)
            if change < 0:
                return unknown
            size += (change >> 1) ^ -(change & 1)
        if position < 0 or size < 0 or position + size + TRAILER_BYTES > file_size:
            return unknown
        if index and position != blocks[index - 1, 0] + blocks[index - 1, 1] + TRAILER_BYTES:
            return unknown
        blocks[index, 0], blocks[index, 1] = position, size
        separators[index, 0], separators[index, 1] = filled, length - tag_bytes
        filled += length
        index += 1
    return index


@njit(cache=True, nogil=True)
def rows_of(places: Indices, ends: Indices, addresses: Indices, lengths: Indices, counts: Indices) -> Int64:
    """Fill in the places of all versions of rows in blocks that `count` has seen, and the number of rows of each block.

    A row has at least two bytes, and a deletion has none. Return the number of rows.
    """
    found = np.int64(0)
    for index in range(len(places)):
        at, end = places[index], ends[index]
        first: Int64 = np.int64(0)
        before = found
        while at < end:
            shared, at = varint_at(at, end)
            other, at = varint_at(at, end)
            size, at = varint_at(at, end)
            if shared == 0:
                first = np.int64(byte_at(at, 0))
            if first == ROW_BYTE and size:
                addresses[found], lengths[found] = at + other, size
                found += 1
            at += other + size
        counts[index] = found - before
    return found


@njit(cache=True, nogil=True)
def gather(addresses: Indices, lengths: Indices, offsets: npt.NDArray[np.int32], out: Bytes) -> None:
    """Copy values one behind the other; `offsets` has where each begins."""
    base = out.ctypes.data
    for index in range(len(addresses)):
        copy_bytes(addresses[index], base + offsets[index], lengths[index])


def warm() -> None:
    """Compile the kernels, or load them from the cache."""
    nothing, table = np.empty(0, np.int64), np.empty((0, 2), np.int64)
    writable, sealed_bytes = np.empty(SLACK, np.uint8), sealed(np.zeros(SLACK, np.uint8))
    check(nothing, nothing, nothing)
    unpack(nothing, nothing, nothing, 0)
    count(nothing, nothing, nothing)
    entries_end(0, 0)
    read_index(0, 0, True, 0, 0, table, writable, table)
    first_block_from(sealed_bytes, table, sealed_bytes)
    limits = np.zeros(5, np.int64)
    run_starts = np.zeros(1, np.int64)
    merge(
        RunBlocks(nothing, nothing, run_starts, 0),
        Bounds(sealed_bytes, sealed_bytes, False, False, 0),
        limits,
        nothing,
        nothing,
        writable,
        writable,
    )
    rows_of(nothing, nothing, nothing, nothing, nothing)
    gather(nothing, nothing, np.zeros(1, np.int32), writable)
