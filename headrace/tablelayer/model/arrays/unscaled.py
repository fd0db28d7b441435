"""Decimals as unscaled big-endian two's complement bytes, from and to Arrow's 128-bit words. Compiled.

Java's BigInteger, Debezium and Avro write them so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from headrace.tablelayer.model.arrays.memory import Int64

Array = npt.NDArray[Any]

BYTES_MAX = 16
"""Bytes that 38 digits take. More bytes are read if they only repeat the sign."""

_POWER_WORDS = np.array([[10**each & (1 << 64) - 1, 10**each >> 64] for each in range(39)], np.uint64)


@njit(cache=True, nogil=True)
def from_bytes(
    data: Array, starts: Array, lengths: Array, valid: Array, precision: int, words: Array
) -> Int64:
    """Read n numbers. data: uint8; starts, lengths: int64[n]; valid: bool[n]; words: int64[n, 2], low word first.

    Returns the first row whose number has no byte or more than `precision` digits, or -1.
    """
    for row in range(len(starts)):
        if not valid[row]:
            continue
        start, length = starts[row], lengths[row]
        if length <= 0:
            return row
        sign = np.uint64(0xFFFFFFFFFFFFFFFF) if data[start] & 0x80 else np.uint64(0)
        low, high = sign, sign
        for index in range(start, start + length):
            if high >> np.uint64(56) != sign >> np.uint64(56):
                return row
            high = (high << np.uint64(8)) | (low >> np.uint64(56))
            low = (low << np.uint64(8)) | np.uint64(data[index])
        if (high ^ sign) >> np.uint64(63):
            return row
        magnitude_low, magnitude_high = low, high
        if sign:
            magnitude_low = ~low + np.uint64(1)
            magnitude_high = ~high + (np.uint64(1) if magnitude_low == np.uint64(0) else np.uint64(0))
        bound_low, bound_high = _POWER_WORDS[precision, 0], _POWER_WORDS[precision, 1]
        if magnitude_high > bound_high or (magnitude_high == bound_high and magnitude_low >= bound_low):
            return row
        words[row, 0] = np.int64(low)
        words[row, 1] = np.int64(high)
    return -1
