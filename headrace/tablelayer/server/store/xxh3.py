"""XXH3, the checksum of RocksDB's blocks, for 9 bytes and more, with seed 0.

Source: xxHash's specification (`doc/xxhash_spec.md`). A block has at least one entry and 8 bytes of restart points.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit

from headrace.tablelayer.model.arrays.arrays import sealed
from headrace.tablelayer.model.arrays.memory import Int64, swapped, word_at

SHORTEST: Final = 9
_SECRET: Final = sealed(
    np.frombuffer(
        bytes.fromhex(
            "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
            "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"
            "3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
            "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364"
            "eac5ac8334d3ebc3c581a0fffa1363eb170ddd51b7f0da49d316552629d4689e"
            "2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
        ),
        np.uint8,
    ).copy()
)
_STRIPE: Final = 64
_BLOCK: Final = 1024  # 16 stripes; then the secret is used up
_LAST_STRIPE_AT: Final = 192 - 64 - 7
_SCRAMBLE_AT: Final = 192 - 64
_MERGE_AT: Final = 11
_P32_1, _P32_2, _P32_3 = np.uint64(0x9E3779B1), np.uint64(0x85EBCA77), np.uint64(0xC2B2AE3D)
_P64_1, _P64_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_P64_3, _P64_4 = np.uint64(0x165667B19E3779F9), np.uint64(0x85EBCA77C2B2AE63)
_P64_5 = np.uint64(0x27D4EB2F165667C5)
_MX: Final = np.uint64(0x165667919E3779F9)
_LOW: Final = np.uint64(0xFFFFFFFF)
_32, _37, _47 = np.uint64(32), np.uint64(37), np.uint64(47)


@njit(cache=True, nogil=True)
def _folded(left: Any, right: Any) -> Any:
    """Return the two halves of the product of 128 bits, combined by exclusive or."""
    a, b, c, d = left & _LOW, left >> _32, right & _LOW, right >> _32
    low, cross = a * c, (a * c >> _32) + (b * c & _LOW) + a * d
    return ((cross << _32) | (low & _LOW)) ^ ((b * c >> _32) + (cross >> _32) + b * d)


@njit(cache=True, nogil=True)
def _avalanche(value: Any) -> Any:
    value = (value ^ (value >> _37)) * _MX
    return value ^ (value >> _32)


@njit(cache=True, nogil=True)
def _mixed(at: int, secret: int) -> Any:
    return _folded(word_at(at, 0) ^ word_at(secret, 0), word_at(at, 8) ^ word_at(secret, 8))


@njit(cache=True, nogil=True)
def _lane(value: Any) -> Any:
    return (value & _LOW) * (value >> _32)


@njit(cache=True, nogil=True)
def _scrambled(value: Any, key: Any) -> Any:
    return (value ^ (value >> _47) ^ key) * _P32_1


@njit(cache=True, nogil=True)
def xxh3(at: int, length: int) -> Int64:
    """Return the uint64 hash of `length` bytes, at least `SHORTEST`, at an address."""
    secret = _SECRET.ctypes.data
    if length <= 16:
        low = word_at(at, 0) ^ word_at(secret, 24) ^ word_at(secret, 32)
        high = word_at(at + length - 8, 0) ^ word_at(secret, 40) ^ word_at(secret, 48)
        return _avalanche(np.uint64(length) + swapped(low) + high + _folded(low, high))
    if length <= 128:
        total = np.uint64(length) * _P64_1
        for index in range((length - 1) // 32 + 1):
            total += _mixed(at + 16 * index, secret + 32 * index)
            total += _mixed(at + length - 16 * (index + 1), secret + 32 * index + 16)
        return _avalanche(total)
    if length <= 240:
        total = np.uint64(length) * _P64_1
        for index in range(8):
            total += _mixed(at + 16 * index, secret + 16 * index)
        total = _avalanche(total)
        for index in range(8, length // 16):
            total += _mixed(at + 16 * index, secret + 16 * (index - 8) + 3)
        return _avalanche(total + _mixed(at + length - 16, secret + 119))
    a0, a1, a2, a3, a4, a5, a6, a7 = _P32_3, _P64_1, _P64_2, _P64_3, _P64_4, _P32_2, _P64_5, _P32_1
    stripes = (length - 1) // _STRIPE
    for stripe in range(stripes + 1):
        place, key = at + stripe * _STRIPE, secret + (stripe & 15) * 8
        if stripe == stripes:
            place, key = at + length - _STRIPE, secret + _LAST_STRIPE_AT
        w0, w1, w2, w3 = word_at(place, 0), word_at(place, 8), word_at(place, 16), word_at(place, 24)
        w4, w5, w6, w7 = word_at(place, 32), word_at(place, 40), word_at(place, 48), word_at(place, 56)
        a0 += w1 + _lane(w0 ^ word_at(key, 0))
        a1 += w0 + _lane(w1 ^ word_at(key, 8))
        a2 += w3 + _lane(w2 ^ word_at(key, 16))
        a3 += w2 + _lane(w3 ^ word_at(key, 24))
        a4 += w5 + _lane(w4 ^ word_at(key, 32))
        a5 += w4 + _lane(w5 ^ word_at(key, 40))
        a6 += w7 + _lane(w6 ^ word_at(key, 48))
        a7 += w6 + _lane(w7 ^ word_at(key, 56))
        if stripe & 15 == 15 and stripe < (length - 1) // _BLOCK * 16:
            key = secret + _SCRAMBLE_AT
            a0, a1 = _scrambled(a0, word_at(key, 0)), _scrambled(a1, word_at(key, 8))
            a2, a3 = _scrambled(a2, word_at(key, 16)), _scrambled(a3, word_at(key, 24))
            a4, a5 = _scrambled(a4, word_at(key, 32)), _scrambled(a5, word_at(key, 40))
            a6, a7 = _scrambled(a6, word_at(key, 48)), _scrambled(a7, word_at(key, 56))
    key = secret + _MERGE_AT
    total = np.uint64(length) * _P64_1
    total += _folded(a0 ^ word_at(key, 0), a1 ^ word_at(key, 8))
    total += _folded(a2 ^ word_at(key, 16), a3 ^ word_at(key, 24))
    total += _folded(a4 ^ word_at(key, 32), a5 ^ word_at(key, 40))
    total += _folded(a6 ^ word_at(key, 48), a7 ^ word_at(key, 56))
    return _avalanche(total)
