"""The encoded values of an IN, read by compiled code, and the search for rows among them.

`scan_options` reads the options of a Substrait `SingularOrList`, each of which must be a literal; the caller
interprets the literals. `among_sorted` searches texts in a sorted set by bisection. For few rows and many values this
is faster than the hash table that Arrow would build for each batch. Protobuf's encoding:
https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from headrace.tablelayer.model.arrays.arrays import Bytes, Offsets, sealed
from headrace.tablelayer.model.filters.substrait import ExpressionKind, LiteralKind, SingularOrListField

Int64 = Any

NOT_A_LITERAL = -1
CUT_OFF = -2
_OPTION_MIN = 4  # bytes of an option: the tags and sizes of the option and of its literal
_PRECISION_TIMES = (int(LiteralKind.PRECISION_TIMESTAMP), int(LiteralKind.PRECISION_TIMESTAMP_TZ))
_DECIMAL = int(LiteralKind.DECIMAL)
_NULLABLE, _VARIATION = int(LiteralKind.NULLABLE), int(LiteralKind.TYPE_VARIATION_REFERENCE)
_LITERAL = int(ExpressionKind.LITERAL)
_OPTIONS = int(SingularOrListField.OPTIONS)
_DECIMAL_VALUE, _DECIMAL_SCALE = 1, 3
_TIME_PRECISION, _TIME_VALUE = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


class Options:
    """The literals of an IN.

    `numbers`: the field of Substrait's Literal. `values`: its number, the bits of a float, the value of a time with a
    precision, or the scale of a decimal. `starts` and `sizes`: the position of its bytes; for a time with a
    precision, `sizes` has the precision.
    """

    __slots__ = ("numbers", "sizes", "starts", "values")

    def __init__(self, numbers: Any, values: Any, starts: Any, sizes: Any) -> None:
        self.numbers: npt.NDArray[np.int32] = numbers
        self.values: npt.NDArray[np.int64] = values
        self.starts: npt.NDArray[np.int64] = starts
        self.sizes: npt.NDArray[np.int64] = sizes

    @classmethod
    def of(cls, message: memoryview) -> Options:
        """Return the literals of a `SingularOrList` in order. Raises ValueError."""
        data = sealed(np.frombuffer(message, np.uint8))
        most = len(data) // _OPTION_MIN + 1
        numbers = np.empty(most, np.int32)
        values, starts, sizes = (np.empty(most, np.int64) for _ in range(3))
        count = scan_options(data, numbers, values, starts, sizes)
        if count == NOT_A_LITERAL:
            raise ValueError("the values of an IN must be literals")
        if count < 0:
            raise ValueError("a field is cut off")
        return cls(numbers[:count], values[:count], starts[:count], sizes[:count])


@njit(cache=True, nogil=True)
def _varint(data: Bytes, at: Int64, end: Int64) -> tuple[Int64, Int64]:
    """Return (value, position behind it). The position is -1 if the number is cut off or has more than ten bytes."""
    value = np.uint64(0)
    shift = 0
    while at < end and shift <= 63:
        byte = data[at]
        at += 1
        value |= np.uint64(byte & 0x7F) << np.uint64(shift)
        if byte < 0x80:
            return np.int64(value), at
        shift += 7
    return np.int64(0), np.int64(-1)


@njit(cache=True, nogil=True)
def _field(data: Bytes, at: Int64, end: Int64) -> tuple[Int64, Int64, Int64, Int64, Int64]:
    """Return (number, wire type, value, start, position behind it) of a field; the last is -1 if it is cut off.

    The value of a bytes field is its length.
    """
    key, at = _varint(data, at, end)
    if at < 0:
        return 0, 0, 0, 0, -1
    number, wire = key >> 3, key & 7
    if wire == _VARINT:
        value, behind = _varint(data, at, end)
        return number, wire, value, at, behind
    if wire == _BYTES:
        size, start = _varint(data, at, end)
        if start < 0 or size < 0 or size > end - start:
            return 0, 0, 0, 0, -1
        return number, wire, size, start, start + size
    size = 8 if wire == _FIXED64 else 4 if wire == _FIXED32 else 0
    if size == 0 or size > end - at:
        return 0, 0, 0, 0, -1
    bits = np.uint64(0)
    for index in range(size):
        bits |= np.uint64(data[at + index]) << np.uint64(8 * index)
    return number, wire, np.int64(bits), at, at + size


@njit(cache=True, nogil=True)
def scan_options(data: Bytes, numbers: Any, values: Any, starts: Any, sizes: Any) -> Int64:
    """Write the literals of all options to the arrays. Return their number, NOT_A_LITERAL or CUT_OFF."""
    count = 0
    at = 0
    while at < len(data):
        number, wire, size, start, at = _field(data, at, len(data))
        if at < 0:
            return CUT_OFF
        if number != _OPTIONS:
            continue
        if wire != _BYTES:
            return NOT_A_LITERAL
        inner, wire, size, start, behind = _field(data, start, start + size)
        if behind < 0:
            return CUT_OFF
        if inner != _LITERAL or wire != _BYTES or behind != at:
            return NOT_A_LITERAL
        found = False
        position, end = start, start + size
        while position < end:
            kind, wire, value, place, position = _field(data, position, end)
            if position < 0:
                return CUT_OFF
            if found or kind in (_NULLABLE, _VARIATION):
                continue
            found = True
            numbers[count], values[count], starts[count], sizes[count] = kind, value, place, 0
            if wire != _BYTES:
                continue
            sizes[count] = value
            if kind == _DECIMAL or kind in _PRECISION_TIMES:
                values[count] = 0
                if kind != _DECIMAL:
                    sizes[count] = 0
                inside = place
                while inside < place + value:
                    part, part_wire, part_value, part_start, inside = _field(data, inside, place + value)
                    if inside < 0:
                        return CUT_OFF
                    if kind == _DECIMAL:
                        if part == _DECIMAL_VALUE and part_wire == _BYTES:
                            starts[count], sizes[count] = part_start, part_value
                        elif part == _DECIMAL_SCALE and part_wire == _VARINT:
                            values[count] = part_value
                    elif part_wire == _VARINT and part == _TIME_PRECISION:
                        sizes[count] = part_value
                    elif part_wire == _VARINT and part == _TIME_VALUE:
                        values[count] = part_value
        if not found:
            return NOT_A_LITERAL
        count += 1
    return count


@njit(cache=True, nogil=True)
def gather_bytes(data: Bytes, starts: Any, offsets: Offsets, out: Any) -> None:
    """Copy pieces of bytes, which begin at `starts`, to `out` one after the other, as `offsets` says."""
    for index in range(len(starts)):
        start, at = starts[index], offsets[index]
        for step in range(offsets[index + 1] - at):
            out[at + step] = data[start + step]


@njit(cache=True, nogil=True)
def among_sorted(
    set_offsets: Offsets, set_data: Bytes, offsets: Offsets, data: Bytes, valid: Any, found: Any
) -> None:
    """Set `found` to 1 for each valid text that is in the sorted set, else to 0."""
    for row in range(len(offsets) - 1):
        found[row] = 0
        if not valid[row]:
            continue
        start, size = offsets[row], offsets[row + 1] - offsets[row]
        low, high = 0, len(set_offsets) - 1
        while low < high:
            middle = (low + high) // 2
            other, other_size = set_offsets[middle], set_offsets[middle + 1] - set_offsets[middle]
            order = size - other_size
            for index in range(min(size, other_size)):
                a, b = np.int64(data[start + index]), np.int64(set_data[other + index])
                if a != b:
                    order = a - b
                    break
            if order == 0:
                found[row] = 1
                break
            if order < 0:
                high = middle
            else:
                low = middle + 1


def warm() -> None:
    """Compile the kernels, or load them from the cache, for the signatures in use."""
    option = Options.of(memoryview(b"\x12\x05\n\x03b\x01a"))
    data = sealed(np.frombuffer(b"a", np.uint8))
    offsets = sealed(np.array([0, 1], np.int32))
    out = np.empty(1, np.uint8)
    gather_bytes(data, option.starts * 0, offsets, out)
    among_sorted(offsets, data, offsets, data, np.ones(1, np.bool_), out)
