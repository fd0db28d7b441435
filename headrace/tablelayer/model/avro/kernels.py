"""Compiled loops over Avro's binary encoding, which find and read the values of a batch of records.

A kernel works on one type for all rows: `positions[row]` is the start of the row's value of this type; rows without
one (`given` false) are skipped. `data` has PADDING more bytes at its end. `walk` goes over every value once and
checks it completely, within the bounds of its record; afterwards values can be read without checks. Node tables are
those of `schema.AvroSchema`: kind, size or first link, number of links, takes no bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]
Int64 = Any

PADDING = 10  # bytes of the longest number
MAX_DEPTH = 100  # nesting of values: the only bound for schemas that contain themselves

CUT_OFF = 1
BAD_NUMBER = 2
BAD_BRANCH = 3
BAD_LENGTH = 4
TOO_DEEP = 5
TRAILING = 6

_NULL, _BOOLEAN, _INT, _LONG, _FLOAT, _DOUBLE, _BYTES, _STRING, _FIXED, _ENUM = range(10)
_UNION, _RECORD, _ARRAY, _MAP = range(10, 14)


@njit(cache=True, nogil=True)
def _long(data: Bytes, position: Int64) -> tuple[Int64, Int64]:
    """Return (value, position after it) of a zigzag number; position -1 if it has more than ten bytes."""
    byte = np.uint64(data[position])
    position += 1
    value = byte & np.uint64(127)
    shift = np.uint64(7)
    while byte > np.uint64(127):
        if shift > np.uint64(63):
            return np.int64(0), np.int64(-1)
        byte = np.uint64(data[position])
        position += 1
        value |= (byte & np.uint64(127)) << shift
        shift += np.uint64(7)
    return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), np.int64(position)


@njit(cache=True, nogil=True)
def _skip(
    data: Bytes, table: Array, links: Array, node: Int64, position: Int64, end: Int64, stack: Array
) -> Int64:
    """Return the position after the value of a node, or -code. stack: int64[MAX_DEPTH, 2], scratch."""
    depth = 0
    current = np.int64(node)
    position = np.int64(position)
    while True:
        kind = table[current, 0]
        descended = False
        if kind in (_INT, _LONG, _ENUM):
            value, position = _long(data, position)
            if position < 0:
                return -BAD_NUMBER
            if kind == _INT and not -(1 << 31) <= value < (1 << 31):
                return -BAD_NUMBER
            if kind == _ENUM and not 0 <= value < table[current, 2]:
                return -BAD_BRANCH
        elif kind in (_BYTES, _STRING):
            value, position = _long(data, position)
            if position < 0:
                return -BAD_NUMBER
            if value < 0 or value > end - position:
                return -BAD_LENGTH
            position += value
        elif kind == _BOOLEAN:
            if data[position] > 1 and position < end:
                return -BAD_NUMBER
            position += 1
        elif kind == _FLOAT:
            position += 4
        elif kind == _DOUBLE:
            position += 8
        elif kind == _FIXED:
            position += table[current, 1]
        elif kind == _UNION:
            value, position = _long(data, position)
            if position < 0 or position > end:
                return -CUT_OFF
            if not 0 <= value < table[current, 2]:
                return -BAD_BRANCH
            current = links[table[current, 1] + value]
            descended = True
        elif kind != _NULL and table[current, 3] == 0:
            if depth >= MAX_DEPTH:
                return -TOO_DEEP
            stack[depth, 0] = current
            stack[depth, 1] = 0  # fields that are done, or items left of the block
            depth += 1
        if position > end:
            return -CUT_OFF
        # A value has ended or a container has begun: continue with the innermost container.
        while not descended:
            if depth == 0:
                return position
            container = stack[depth - 1, 0]
            if table[container, 0] == _RECORD:
                done = stack[depth - 1, 1]
                if done == table[container, 2]:
                    depth -= 1
                    continue
                stack[depth - 1, 1] = done + 1
                current = links[table[container, 1] + done]
                break
            left = stack[depth - 1, 1]
            item = links[table[container, 1]]
            if left == 0:
                left, position = _block(
                    data, position, end, table[container, 0] == _MAP or table[item, 3] == 0
                )
                if position < 0:
                    return position
                if left == 0:
                    depth -= 1
                    continue
                if table[container, 0] == _ARRAY and table[item, 3] == 1:
                    continue  # a block of items without bytes needs no walk
            stack[depth - 1, 1] = left - 1
            if table[container, 0] == _MAP:
                value, position = _long(data, position)
                if position < 0:
                    return -BAD_NUMBER
                if value < 0 or value > end - position:
                    return -BAD_LENGTH
                position += value
            current = item
            break


@njit(cache=True, nogil=True)
def _block(data: Bytes, position: Int64, end: Int64, takes_bytes: bool) -> tuple[Int64, Int64]:
    """Return (items, position after the head) of a block of items; 0 items end the value. On errors the position is
    -code.
    """
    if position >= end:
        return np.int64(0), np.int64(-CUT_OFF)
    count, position = _long(data, position)
    if position < 0:
        return np.int64(0), np.int64(-BAD_NUMBER)
    if count < 0:
        if position >= end:
            return np.int64(0), np.int64(-CUT_OFF)
        size, position = _long(data, position)
        if position < 0 or size < 0 or size > end - position:
            return np.int64(0), np.int64(-BAD_LENGTH)
        count = -count
    if count < 0 or (takes_bytes and count > end - position) or position > end:
        return np.int64(0), np.int64(-BAD_LENGTH)
    return count, position


@njit(cache=True, nogil=True)
def walk(
    data: Bytes, table: Array, links: Array, record: int, positions: Array, given: Array, ends: Array,
    slots: Array, found: Array, after: Array, failure: Array,
) -> Int64:  # fmt: skip
    """Walk over one record of each row.

    slots: int64[fields], the row of `found` for a field's positions, -1 for none; found: int64[slots, n]; after:
    int64[n], the position after the record.
    """
    stack = np.empty((MAX_DEPTH, 2), np.int64)
    first, count = table[record, 1], table[record, 2]
    for row in range(len(positions)):
        if not given[row]:
            continue
        position, end = np.int64(positions[row]), np.int64(ends[row])
        for index in range(count):
            if slots[index] >= 0:
                found[slots[index], row] = position
            node = links[first + index]
            kind = table[node, 0]
            if (
                kind == _UNION
                and position < end
                and data[position] == 0
                and table[links[table[node, 1]], 0] == _NULL
            ):
                position += 1  # the common form of a null
                continue
            position = _skip(data, table, links, node, position, end, stack)
            if position < 0:
                failure[0] = -position
                failure[1] = index
                return row
        after[row] = position
    return -1


@njit(cache=True, nogil=True)
def branches(
    data: Bytes, table: Array, links: Array, union: int, positions: Array, given: Array, nodes: Array
) -> None:
    """Write the type of each value of a union to nodes, int64[n] (-1: no value), and move positions on to the value."""
    for row in range(len(positions)):
        nodes[row] = -1
        if given[row]:
            branch, position = _long(data, positions[row])
            nodes[row] = links[table[union, 1] + branch]
            positions[row] = position


@njit(cache=True, nogil=True)
def longs(data: Bytes, positions: Array, given: Array, values: Array) -> None:
    """Read numbers into values: int64[n]."""
    for row in range(len(positions)):
        if given[row]:
            values[row], _ = _long(data, positions[row])


@njit(cache=True, nogil=True)
def copies(data: Bytes, positions: Array, given: Array, out: Array) -> None:
    """Copy values of a fixed size to out: uint8[n, size]."""
    size = out.shape[1]
    for row in range(len(positions)):
        if given[row]:
            for index in range(size):
                out[row, index] = data[positions[row] + index]


@njit(cache=True, nogil=True)
def spans(data: Bytes, positions: Array, given: Array, lengths: Array) -> None:
    """Write the lengths of texts and bytes to lengths, int64[n] (0: no value), and move positions on to their bytes."""
    for row in range(len(positions)):
        lengths[row] = 0
        if given[row]:
            length, position = _long(data, positions[row])
            lengths[row] = length
            positions[row] = position


@njit(cache=True, nogil=True)
def items(
    data: Bytes, table: Array, links: Array, node: int, positions: Array, given: Array, most: int, fill: bool,
    counts: Array, keys: Array, values: Array,
) -> Int64:  # fmt: skip
    """Count or find the items of arrays or maps, one after the other.

    Without `fill` only counts, int64[n], are filled; with it also keys (positions of a map's texts) and values:
    int64[items]. Returns the first row at which there are more than `most` items, or -1.
    """
    stack = np.empty((MAX_DEPTH, 2), np.int64)
    end = np.int64(len(data) - PADDING)
    is_map, item = table[node, 0] == _MAP, links[table[node, 1]]
    empty = not is_map and table[item, 3] == 1
    entry = np.int64(0)
    for row in range(len(positions)):
        if not fill:
            counts[row] = 0
        if not given[row]:
            continue
        position = np.int64(positions[row])
        while True:
            count, position = _block(data, position, end, not empty)
            if count == 0 or position < 0:
                break
            if not fill:
                if count > most - entry:
                    return row
                counts[row] += count
                if empty:
                    entry += count
                    continue
            for _ in range(count):
                if is_map:
                    if fill:
                        keys[entry] = position
                    length, position = _long(data, position)
                    position += length
                if fill:
                    values[entry] = position
                entry += 1
                position = _skip(data, table, links, item, position, end, stack)
    return -1


@njit(cache=True, nogil=True)
def container_bodies(data: Bytes, positions: Array, ends: Array, starts: Array, sizes: Array) -> Int64:
    """Find the one object of each container file.

    positions: int64[n], behind the file's metadata; ends: the file's end; starts, sizes: int64[n], filled. Returns
    the first row whose file is not exactly one block of one object, or -1.
    """
    for row in range(len(positions)):
        sync, end = np.int64(positions[row]), np.int64(ends[row])
        position = sync + 16
        if position >= end:
            return row
        count, position = _long(data, position)
        if count != 1 or position < 0 or position >= end:
            return row
        size, position = _long(data, position)
        if position < 0 or size < 0 or size != end - position - 16:
            return row
        starts[row], sizes[row] = position, size
        for index in range(16):
            if data[sync + index] != data[position + size + index]:
                return row
    return -1
