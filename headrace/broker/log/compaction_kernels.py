"""The compiled loops of compaction over keys. Imported only when a log is cleaned.

The offset map is an open-addressed table of three arrays: two 64-bit halves of a key's hash, and the latest offset of
that key, -1 where the slot is free. Keys are identified by their hash alone. So the hash is SipHash-2-4-128 with a
secret that is drawn for every cleaning: a client cannot construct keys that collide.
"""

from __future__ import annotations

import numpy as np
from numba import njit

FREE = -1


@njit(cache=True, nogil=True, inline="always")
def _rotated(value, bits):  # type: ignore[no-untyped-def]
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@njit(cache=True, nogil=True, inline="always")
def _rounds(v0, v1, v2, v3, count):  # type: ignore[no-untyped-def]
    for _ in range(count):
        v0 += v1
        v1 = _rotated(v1, 13) ^ v0
        v0 = _rotated(v0, 32)
        v2 += v3
        v3 = _rotated(v3, 16) ^ v2
        v0 += v3
        v3 = _rotated(v3, 21) ^ v0
        v2 += v1
        v1 = _rotated(v1, 17) ^ v2
        v2 = _rotated(v2, 32)
    return v0, v1, v2, v3


@njit(cache=True, nogil=True)
def siphash(data, start, length, secret):  # type: ignore[no-untyped-def]
    """Return both halves of the 128-bit SipHash-2-4 of `length` bytes; `secret` is uint64[2]."""
    v0 = np.uint64(0x736F6D6570736575) ^ secret[0]
    v1 = np.uint64(0x646F72616E646F6D) ^ secret[1] ^ np.uint64(0xEE)
    v2 = np.uint64(0x6C7967656E657261) ^ secret[0]
    v3 = np.uint64(0x7465646279746573) ^ secret[1]
    whole = length & ~7
    for position in range(start, start + whole, 8):
        word = np.uint64(0)
        for k in range(8):
            word |= np.uint64(data[position + k]) << np.uint64(8 * k)
        v3 ^= word
        v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 2)
        v0 ^= word
    word = np.uint64(length & 0xFF) << np.uint64(56)
    for k in range(length - whole):
        word |= np.uint64(data[start + whole + k]) << np.uint64(8 * k)
    v3 ^= word
    v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 2)
    v0 ^= word
    v2 ^= np.uint64(0xEE)
    v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 4)
    low = v0 ^ v1 ^ v2 ^ v3
    v1 ^= np.uint64(0xDD)
    v0, v1, v2, v3 = _rounds(v0, v1, v2, v3, 4)
    return low, v0 ^ v1 ^ v2 ^ v3


@njit(cache=True, nogil=True, inline="never")
def _slot(low, high, lows, highs, offsets):  # type: ignore[no-untyped-def]
    """Return the slot of a key, or the free one where it belongs. The table is never full."""
    mask = np.uint64(offsets.size - 1)
    slot = low & mask
    while offsets[slot] != FREE and (lows[slot] != low or highs[slot] != high):
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(cache=True, nogil=True)
def remember(  # type: ignore[no-untyped-def]
    payload, key_start, key_length, record_offsets, from_offset, secret, lows, highs, offsets
):
    """Store the offset of each keyed record from `from_offset` on. Return the number of new keys."""
    added = 0
    for i in range(key_start.size):
        if key_length[i] < 0 or record_offsets[i] < from_offset:
            continue
        low, high = siphash(payload, key_start[i], key_length[i], secret)
        slot = _slot(low, high, lows, highs, offsets)
        if offsets[slot] == FREE:
            lows[slot] = low
            highs[slot] = high
            added += 1
        if record_offsets[i] > offsets[slot]:
            offsets[slot] = record_offsets[i]
    return added


@njit(cache=True, nogil=True)
def judge(  # type: ignore[no-untyped-def]
    payload,
    key_start,
    key_length,
    value_length,
    record_offsets,
    end_offset,
    drop_tombstones,
    secret,
    lows,
    highs,
    offsets,
    keep,
):
    """Fill `keep`: true for the latest record of its key and for records at or after `end_offset`, unless it is a
    tombstone that may be removed.

    Return (records kept, tombstones among them).
    """
    kept = 0
    tombstones = 0
    for i in range(key_start.size):
        good = True
        if record_offsets[i] < end_offset:
            good = key_length[i] >= 0 and not (value_length[i] < 0 and drop_tombstones)
            if good:
                low, high = siphash(payload, key_start[i], key_length[i], secret)
                good = record_offsets[i] >= offsets[_slot(low, high, lows, highs, offsets)]
        keep[i] = good
        if good:
            kept += 1
            if value_length[i] < 0:
                tombstones += 1
    return kept, tombstones
