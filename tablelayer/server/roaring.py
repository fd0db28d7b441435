"""Unions of serialised Roaring bitmaps, bytes to bytes.

32 bits: the portable format of the Roaring specification (github.com/RoaringBitmap/RoaringFormatSpec), which CRoaring,
Java, Go and Rust share. 64 bits: that specification's extension: the number of 32-bit bitmaps as a uint64, then for
each, in order, its high 32 bits as a uint32 and the bitmap; Java's Roaring64NavigableMap in portable mode, CRoaring's
Roaring64Map and pyroaring's BitMap64 write it. (Java's Roaring64Bitmap has a format of its own, which is refused.)

A union comes out canonical: every container as array, bits or runs, whichever is the smallest. Input is checked as a
whole, whatever it is united with.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import njit

from tablelayer.model.arrays import Bytes, sealed
from tablelayer.model.memory import trailing_zeros

_NO_RUNS: Final = 12346
_WITH_RUNS: Final = 12347
_NO_OFFSETS_BELOW: Final = 4
_ARRAY_MAX: Final = 4096
_BITS_BYTES: Final = 8192
_KEYS: Final = 1 << 16
_ARRAY: Final = 0
_BITS: Final = 1
_RUNS: Final = 2

Int = Any  # what kernels count with: to a type checker neither int nor quite np.int64


class MalformedBitmapError(Exception):
    """The bytes are not a bitmap of the expected format."""


def union(one: bytes, other: bytes | None, *, wide: bool) -> bytes:
    """The union of two bitmaps; `other` None checks `one` alone. Raises MalformedBitmapError."""
    if not wide:
        first = _Directory(one, 0)
        first.must_end_at(len(one))
        if other is None:
            return one
        second = _Directory(other, 0)
        second.must_end_at(len(other))
        return _united(first, second)
    parts = _parts(one)
    if other is None:
        return one
    for high, part in _parts(other).items():
        mine = parts.get(high)
        parts[high] = part if mine is None else _Directory(_united(mine, part), 0)
    return struct.pack("<Q", len(parts)) + b"".join(
        struct.pack("<I", high) + parts[high].raw() for high in sorted(parts)
    )


def _parts(data: bytes) -> dict[int, _Directory]:
    if len(data) < 8:
        raise MalformedBitmapError(f"{len(data)} bytes are too few")
    (count,) = struct.unpack_from("<Q", data)
    if count > (len(data) - 8) // 8:
        raise MalformedBitmapError(f"{count} parts in {len(data)} bytes")
    parts: dict[int, _Directory] = {}
    position, last = 8, -1
    for _ in range(count):
        if position + 4 > len(data):
            raise MalformedBitmapError("it is cut short")
        (high,) = struct.unpack_from("<I", data, position)
        if high <= last:
            raise MalformedBitmapError("its parts are not in ascending order")
        parts[high] = part = _Directory(data, position + 4)
        position, last = part.end, high
    if position != len(data):
        raise MalformedBitmapError(f"{len(data) - position} bytes follow it")
    return parts


class _Directory:
    """Where the containers of one 32-bit bitmap are."""

    def __init__(self, data: bytes, start: int) -> None:
        self.data: Bytes = sealed(np.frombuffer(data, np.uint8))
        self.start = start
        room = min(_KEYS, max(1, (len(data) - start) // 4))
        self.entries = np.zeros((room, 4), np.int64)  # key, kind, size of its payload, where it begins
        self.count, self.end = (int(each) for each in _scan(self.data, start, self.entries))
        if self.count < 0:
            raise MalformedBitmapError(_PROBLEMS[-self.count])

    def must_end_at(self, end: int) -> None:
        if self.end != end:
            raise MalformedBitmapError(f"{end - self.end} bytes follow it")

    def raw(self) -> bytes:
        return self.data[self.start : self.end].tobytes()


_PROBLEMS: Final = {
    1: "it is cut short",
    2: "it does not begin with a cookie of the format",
    3: "its containers are not in ascending order",
    4: "the values of a container are not in ascending order",
    5: "a container does not have as many values as it says",
    6: "it has more containers than there are",
}


def _united(one: _Directory, other: _Directory) -> bytes:
    size = 16 + 2 * (one.end - one.start + other.end - other.start) + 12 * (one.count + other.count)
    payload, out = np.empty(size, np.uint8), np.empty(size, np.uint8)
    heads = np.empty((one.count + other.count + 1, 4), np.int64)
    bits = np.zeros(_BITS_BYTES // 8, np.uint64)
    written = _unite(
        one.data,
        one.entries[: one.count],
        other.data,
        other.entries[: other.count],
        bits,
        heads,
        payload,
        out,
    )
    return out[: int(written)].tobytes()


@njit(cache=True, nogil=True)
def _u16(data: Bytes, at: int) -> Int:
    return np.int64(data[at]) | np.int64(data[at + 1]) << 8


@njit(cache=True, nogil=True)
def _scan(data: Bytes, start: int, entries: npt.NDArray[np.int64]) -> Any:
    """Fill (key, kind, payload size, payload position) per container: (their number, where the bitmap ends), or a
    number of `_PROBLEMS` negated."""
    size = len(data)
    if start + 4 > size:
        return -1, 0
    cookie = _u16(data, start)
    high = _u16(data, start + 2)
    at = start + 4
    flags = -1
    if cookie == _WITH_RUNS:
        count = high + 1
        flags = at
        at += (count + 7) // 8
    elif cookie == _NO_RUNS and high == 0:
        if at + 4 > size:
            return -1, 0
        count = _u16(data, at) | _u16(data, at + 2) << 16
        at += 4
    else:
        return -2, 0
    if count > 65536:
        return -6, 0
    heads = at
    at += 4 * count
    if flags < 0 or count >= _NO_OFFSETS_BELOW:
        at += 4 * count
    if at > size:
        return -1, 0
    last = -1
    for index in range(count):
        key, cardinality = _u16(data, heads + 4 * index), _u16(data, heads + 4 * index + 2) + 1
        if key <= last:
            return -3, 0
        last = key
        entries[index, 0] = key
        entries[index, 3] = at
        if flags >= 0 and data[flags + (index >> 3)] >> (index & 7) & 1:
            if at + 2 > size:
                return -1, 0
            runs = _u16(data, at)
            length = 2 + 4 * runs
            if at + length > size:
                return -1, 0
            total, reached = 0, -1
            for run in range(runs):
                first, more = _u16(data, at + 2 + 4 * run), _u16(data, at + 4 + 4 * run)
                if first <= reached or first + more > 65535:
                    return -4, 0
                reached = first + more
                total += more + 1
            if total != cardinality:
                return -5, 0
            entries[index, 1] = _RUNS
        elif cardinality <= _ARRAY_MAX:
            length = 2 * cardinality
            if at + length > size:
                return -1, 0
            reached = -1
            for position in range(cardinality):
                value = _u16(data, at + 2 * position)
                if value <= reached:
                    return -4, 0
                reached = value
            entries[index, 1] = _ARRAY
        else:
            length = _BITS_BYTES
            if at + length > size:
                return -1, 0
            total = 0
            for position in range(_BITS_BYTES):
                byte = data[at + position]
                while byte:
                    byte &= byte - np.uint8(1)
                    total += 1
            if total != cardinality:
                return -5, 0
            entries[index, 1] = _BITS
        entries[index, 2] = length
        at += length
    return count, at


@njit(cache=True, nogil=True)
def _add(data: Bytes, kind: int, size: int, at: int, bits: npt.NDArray[np.uint64]) -> None:
    """Set the bits of a container."""
    if kind == _ARRAY:
        for position in range(at, at + size, 2):
            value = _u16(data, position)
            bits[value >> 6] |= np.uint64(1) << np.uint64(value & 63)
    elif kind == _BITS:
        for word in range(len(bits)):
            start = at + 8 * word
            value64 = np.uint64(0)
            for byte in range(8):
                value64 |= np.uint64(data[start + byte]) << np.uint64(8 * byte)
            bits[word] |= value64
    else:
        for position in range(at + 2, at + size, 4):
            first = _u16(data, position)
            for value in range(first, first + _u16(data, position + 2) + 1):
                bits[value >> 6] |= np.uint64(1) << np.uint64(value & 63)


@njit(cache=True, nogil=True)
def _put_u16(out: Bytes, at: int, value: int) -> None:
    out[at] = np.uint8(value & 0xFF)
    out[at + 1] = np.uint8(value >> 8 & 0xFF)


@njit(cache=True, nogil=True)
def _write_container(bits: npt.NDArray[np.uint64], out: Bytes, at: int) -> Any:
    """Write the bits in the smallest form: (kind, cardinality, size)."""
    one = np.uint64(1)
    cardinality, runs, carry = 0, 0, np.uint64(0)
    for word in bits:
        starts = word & ~(word << one | carry)
        carry = word >> np.uint64(63)
        while starts:
            starts &= starts - one
            runs += 1
        while word:
            word &= word - one
            cardinality += 1
    plain = 2 * cardinality if cardinality <= _ARRAY_MAX else _BITS_BYTES
    if 2 + 4 * runs < plain:
        _put_u16(out, at, runs)
        _write_runs(bits, out, at + 2)
        return _RUNS, cardinality, 2 + 4 * runs
    if cardinality <= _ARRAY_MAX:
        position = at
        for index in range(len(bits)):
            word = bits[index]
            while word:
                _put_u16(out, position, 64 * index + trailing_zeros(word))
                word &= word - one
                position += 2
        return _ARRAY, cardinality, plain
    for index in range(len(bits)):
        for byte in range(8):
            out[at + 8 * index + byte] = np.uint8(bits[index] >> np.uint64(8 * byte) & np.uint64(0xFF))
    return _BITS, cardinality, plain


@njit(cache=True, nogil=True)
def _write_runs(bits: npt.NDArray[np.uint64], out: Bytes, at: int) -> None:
    """Each run as its first value and how many follow: the firsts on one walk, the lasts on another."""
    one, top = np.uint64(1), np.uint64(63)
    position, carry = at, np.uint64(0)
    for index in range(len(bits)):
        starts = bits[index] & ~(bits[index] << one | carry)
        carry = bits[index] >> top
        while starts:
            _put_u16(out, position, 64 * index + trailing_zeros(starts))
            starts &= starts - one
            position += 4
    position = at
    for index in range(len(bits)):
        following = bits[index + 1] & one if index + 1 < len(bits) else np.uint64(0)
        ends = bits[index] & ~(bits[index] >> one | following << top)
        while ends:
            last = 64 * index + trailing_zeros(ends)
            _put_u16(out, position + 2, last - _u16(out, position))
            ends &= ends - one
            position += 4


@njit(cache=True, nogil=True)
def _unite(
    one: Bytes, ones: npt.NDArray[np.int64], other: Bytes, others: npt.NDArray[np.int64],
    bits: npt.NDArray[np.uint64], heads: npt.NDArray[np.int64], payload: Bytes, out: Bytes,
) -> Any:  # fmt: skip
    """The union in `out`; its length. `heads` and `payload` are room for work."""
    count, size, has_runs = 0, 0, False
    i, j = 0, 0
    while i < len(ones) or j < len(others):
        left = ones[i, 0] if i < len(ones) else 65536
        right = others[j, 0] if j < len(others) else 65536
        bits[:] = 0
        if left <= right:
            _add(one, ones[i, 1], ones[i, 2], ones[i, 3], bits)
            i += 1
        if right <= left:
            _add(other, others[j, 1], others[j, 2], others[j, 3], bits)
            j += 1
        kind, cardinality, length = _write_container(bits, payload, size)
        heads[count, 0], heads[count, 1] = min(left, right), kind
        heads[count, 2], heads[count, 3] = cardinality, length
        has_runs = has_runs or kind == _RUNS
        size += length
        count += 1
    at = 4
    if has_runs:
        _put_u16(out, 0, _WITH_RUNS)
        _put_u16(out, 2, count - 1)
        for byte in range((count + 7) // 8):
            out[at + byte] = 0
        for index in range(count):
            if heads[index, 1] == _RUNS:
                out[at + (index >> 3)] |= np.uint8(1 << (index & 7))
        at += (count + 7) // 8
    else:
        _put_u16(out, 0, _NO_RUNS)
        _put_u16(out, 2, 0)
        _put_u16(out, 4, count & 0xFFFF)
        _put_u16(out, 6, count >> 16)
        at = 8
    for index in range(count):
        _put_u16(out, at, heads[index, 0])
        _put_u16(out, at + 2, heads[index, 2] - 1)
        at += 4
    if not has_runs or count >= _NO_OFFSETS_BELOW:
        position = at + 4 * count
        for index in range(count):
            _put_u16(out, at, position & 0xFFFF)
            _put_u16(out, at + 2, position >> 16)
            position += heads[index, 3]
            at += 4
    out[at : at + size] = payload[:size]
    return at + size


def warm() -> None:
    """Compile the kernels (or load them from the cache)."""
    empty = struct.pack("<II", _NO_RUNS, 0)
    union(empty, empty, wide=False)
