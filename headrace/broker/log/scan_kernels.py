"""Compiled walk over the batches of a large segment. Imported only when there is much to scan.

CRC32C is table driven, eight bytes a step, for small batches. Large ones are left to the processor's own instruction
(through the crc32c package), whose call overhead does not matter there.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from headrace.protocol.records.header import (
    ARROW_HEADER_SIZE,
    ATTRIBUTES_POSITION,
    BASE_SEQUENCE_POSITION,
    CRC_POSITION,
    EPOCH_POSITION,
    HEADER_SIZE,
    LAST_OFFSET_DELTA_POSITION,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC_ARROW,
    MAGIC_POSITION,
    MAGIC_V2,
    MAX_TIMESTAMP_POSITION,
    PRODUCER_EPOCH_POSITION,
    PRODUCER_ID_POSITION,
    RECORD_COUNT_POSITION,
    SEQUENCE_COUNT_POSITION,
)

ROWS: Final = 10
"""Columns: position, base offset, last offset, max timestamp, leader epoch, producer id, producer epoch, base sequence,
sequence count, attributes.
"""

SMALL_BATCH: Final = 1024
"""Size below which the CRCs of batches are checked here."""

FULL, END, CUT_SHORT, BAD_LENGTH, BAD_MAGIC, BAD_OFFSET, BAD_COUNT, BAD_CRC = range(8)


def _tables() -> NDArray[np.uint32]:
    """Return the eight slicing tables of CRC32C (reflected polynomial 0x82F63B78)."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, 8):
        previous = tables[k - 1]
        tables[k] = (previous >> 8) ^ tables[0][previous & 0xFF]
    return tables


CRC_TABLES: Final = _tables()


@njit(cache=True, nogil=True)
def crc32c_of(data, start, end, tables):  # type: ignore[no-untyped-def]
    crc = np.uint32(0xFFFFFFFF)
    position = start
    while position + 8 <= end:
        low = crc ^ (
            np.uint32(data[position])
            | np.uint32(data[position + 1]) << np.uint32(8)
            | np.uint32(data[position + 2]) << np.uint32(16)
            | np.uint32(data[position + 3]) << np.uint32(24)
        )
        crc = (
            tables[7, low & np.uint32(0xFF)]
            ^ tables[6, (low >> np.uint32(8)) & np.uint32(0xFF)]
            ^ tables[5, (low >> np.uint32(16)) & np.uint32(0xFF)]
            ^ tables[4, low >> np.uint32(24)]
            ^ tables[3, data[position + 4]]
            ^ tables[2, data[position + 5]]
            ^ tables[1, data[position + 6]]
            ^ tables[0, data[position + 7]]
        )
        position += 8
    while position < end:
        crc = (crc >> np.uint32(8)) ^ tables[0, (crc ^ np.uint32(data[position])) & np.uint32(0xFF)]
        position += 1
    return crc ^ np.uint32(0xFFFFFFFF)


@njit(cache=True, nogil=True)
def _integer(data, position, size):  # type: ignore[no-untyped-def]
    """Return a big-endian two's complement integer of 2, 4 or 8 bytes."""
    value = np.int64(data[position])
    if value >= 128:
        value -= 256
    for k in range(1, size):
        value = (value << 8) | np.int64(data[position + k])
    return value


@njit(cache=True, nogil=True)
def walk_rows(data, position, expected_offset, gaps_below, check_crc, tables, rows):  # type: ignore[no-untyped-def]
    """Fill columns of `rows` with consecutive batches from `position`; see `scan.walk` for the checks.

    Return (how the walk ended, rows filled, position after the last good batch, offset after it).
    """
    end = data.size
    capacity = rows.shape[1]
    count = 0
    while count < capacity:
        left = end - position
        if left == 0:
            return END, count, position, expected_offset
        if left < HEADER_SIZE:
            return CUT_SHORT, count, position, expected_offset
        length = _integer(data, position + LENGTH_POSITION, 4)
        magic = data[position + MAGIC_POSITION]
        if magic != MAGIC_V2 and magic != MAGIC_ARROW:
            return BAD_MAGIC, count, position, expected_offset
        size = length + LOG_OVERHEAD
        if size < HEADER_SIZE or (magic == MAGIC_ARROW and size < ARROW_HEADER_SIZE):
            return BAD_LENGTH, count, position, expected_offset
        if size > left:
            return CUT_SHORT, count, position, expected_offset
        base_offset = _integer(data, position, 8)
        if base_offset != expected_offset and not expected_offset < base_offset <= gaps_below:
            return BAD_OFFSET, count, position, expected_offset
        delta = _integer(data, position + LAST_OFFSET_DELTA_POSITION, 4)
        if delta < 0 or _integer(data, position + RECORD_COUNT_POSITION, 4) < 0:
            return BAD_COUNT, count, position, expected_offset
        if check_crc and size < SMALL_BATCH:
            stored = np.uint32(_integer(data, position + CRC_POSITION, 4) & 0xFFFFFFFF)
            if crc32c_of(data, position + ATTRIBUTES_POSITION, position + size, tables) != stored:
                return BAD_CRC, count, position, expected_offset
        rows[0, count] = position
        rows[1, count] = base_offset
        rows[2, count] = base_offset + delta
        rows[3, count] = _integer(data, position + MAX_TIMESTAMP_POSITION, 8)
        rows[4, count] = _integer(data, position + EPOCH_POSITION, 4)
        rows[5, count] = _integer(data, position + PRODUCER_ID_POSITION, 8)
        rows[6, count] = _integer(data, position + PRODUCER_EPOCH_POSITION, 2)
        rows[7, count] = _integer(data, position + BASE_SEQUENCE_POSITION, 4)
        rows[8, count] = delta + 1
        if magic == MAGIC_ARROW:
            rows[8, count] = max(1, _integer(data, position + SEQUENCE_COUNT_POSITION, 4))
        rows[9, count] = _integer(data, position + ATTRIBUTES_POSITION, 2)
        count += 1
        position += size
        expected_offset = base_offset + delta + 1
    return FULL, count, position, expected_offset


def warm() -> None:
    """Compile the kernels (or load them from the cache)."""
    walk_rows(np.frombuffer(bytes(10), np.uint8), 0, 0, 0, True, CRC_TABLES, np.empty((ROWS, 1), np.int64))
