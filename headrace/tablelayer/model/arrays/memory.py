"""Raw loads and stores for kernels: bytes and words at an address, without numpy's index arithmetic.

Bounds are not checked. Callers keep the array that an address comes from alive, and stay inside of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

Int64 = Any  # a number in a kernel: to a type checker neither int nor quite np.int64


@intrinsic
def pointer(typing_context: Any, address: Any) -> Any:
    """Return an int64 address as a pointer that numba's carray takes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def trailing_zeros(typing_context: Any, word: Any) -> Any:
    """Return the number of zero bits below the lowest set bit of a uint64, which must not be 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate


@intrinsic
def swapped(typing_context: Any, word: Any) -> Any:
    """Return a uint64 with its bytes in the opposite order."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bswap(arguments[0])

    return types.uint64(types.uint64), generate


@njit(cache=True, nogil=True)
def byte_at(address: int, index: int) -> Int64:
    return carray(pointer(address + index), 1, np.uint8)[0]


@njit(cache=True, nogil=True)
def int32_at(address: int, index: int) -> Int64:
    return carray(pointer(address + index * 4), 1, np.int32)[0]


@njit(cache=True, nogil=True)
def int64_at(address: int, index: int) -> Int64:
    return carray(pointer(address + index * 8), 1, np.int64)[0]


@njit(cache=True, nogil=True)
def word_at(address: int, index: int) -> Int64:
    """Return the eight bytes from byte `index` on as a uint64, the first byte lowest."""
    return carray(pointer(address + index), 1, np.uint64)[0]


@njit(cache=True, nogil=True)
def put_byte(address: int, value: Any) -> None:
    carray(pointer(address), 1, np.uint8)[0] = value


@njit(cache=True, nogil=True)
def put_pair(address: int, value: Any) -> None:
    """Store the two bytes of a uint16, the lower one first."""
    carray(pointer(address), 1, np.uint16)[0] = value


@njit(cache=True, nogil=True)
def put_int32(address: int, value: Any) -> None:
    carray(pointer(address), 1, np.int32)[0] = value


@njit(cache=True, nogil=True)
def put_word(address: int, value: Any) -> None:
    """Store the eight bytes of a uint64, the lowest first."""
    carray(pointer(address), 1, np.uint64)[0] = value


@njit(cache=True, nogil=True)
def copy_bytes(source: int, target: int, length: int) -> Int64:
    """Copy bytes that do not overlap, words first. Return the address behind them."""
    index = np.int64(0)
    while index + 8 <= length:
        put_word(target + index, word_at(source, index))
        index += 8
    while index < length:
        put_byte(target + index, byte_at(source, index))
        index += 1
    return target + length


@njit(cache=True, nogil=True)
def bit_at(address: int, index: int) -> Int64:
    """Return a bit of an Arrow bitmap."""
    return (byte_at(address, index >> 3) >> (index & 7)) & 1
