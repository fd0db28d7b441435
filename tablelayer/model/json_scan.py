"""Where the wanted values are in a batch of JSON objects: one strict pass over the bytes, compiled.

``scan`` walks every record once (RFC 8259, nothing looser), checks all of it, and notes for each wanted
field where its value begins, how long it is and what it is. Fields that nobody wants are checked and
skipped. When a field comes twice the last one counts, as in Python's and Jackson's parsers. Escapes are
resolved in place, in the caller's scratch copy: the resolved text is never longer than the escaped one, so
positions stay what they were.

UTF-8 is not checked here (Arrow does that faster, for the whole batch at once).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]
Int64 = Any  # what kernels count with: to a type checker neither int nor quite np.int64

MISSING, NULL, TRUE, FALSE, NUMBER, STRING, CONTAINER = range(7)
"""What a value is; MISSING means the record has no such field."""

# Failure codes of a record. The texts are in json_rows.
OK = 0
NOT_AN_OBJECT = 1
UNEXPECTED_END = 2
UNEXPECTED_CHARACTER = 3
CONTROL_CHARACTER = 4
BAD_ESCAPE = 5
LONE_SURROGATE = 6
TOO_DEEP = 7
TRAILING_TEXT = 8
UNKNOWN_FIELD = 9

MAX_DEPTH = 1000  # nesting inside fields; Jackson's own limit

_HASH_SEED = 0x811C9DC5
_HASH_FACTOR = 0x01000193


def field_table(names: list[bytes]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The lookup table of wanted field names, for ``scan``: their bytes, int64 offsets, and an int32 hash
    table.
    """
    data = np.frombuffer(b"".join(names) + b"\0", dtype=np.uint8).copy()
    offsets = np.cumsum([0] + [len(name) for name in names], dtype=np.int64)
    size = 8
    while size < 4 * len(names):
        size *= 2
    slots = np.full(size, -1, dtype=np.int32)
    for index, name in enumerate(names):
        slot = _HASH_SEED
        for byte in name:
            slot = ((slot ^ byte) * _HASH_FACTOR) & 0xFFFFFFFF
        slot &= size - 1
        while slots[slot] >= 0:
            slot = (slot + 1) & (size - 1)
        slots[slot] = index
    return data, offsets, slots


@njit(cache=True, nogil=True, inline="always")
def _skip_blanks(data: Bytes, position: int, end: int) -> int:
    while position < end and (
        data[position] == 32 or data[position] == 10 or data[position] == 13 or data[position] == 9
    ):
        position += 1
    return position


@njit(cache=True, nogil=True)
def _hex_value(data: Bytes, position: int) -> int:
    """The four hex digits at a position as a number, or -1."""
    value = 0
    for index in range(position, position + 4):
        byte = data[index]
        if 48 <= byte <= 57:
            digit = byte - 48
        elif 97 <= byte <= 102:
            digit = byte - 87
        elif 65 <= byte <= 70:
            digit = byte - 55
        else:
            return -1
        value = value * 16 + digit
    return value


@njit(cache=True, nogil=True)
def _unescape(data: Bytes, start: int, end: int) -> tuple[int, int, int]:
    """Resolve the escapes of data[start:end] in place.

    Returns (length, failure code, position of the failure). A lone surrogate has no UTF-8 form: '?' takes
    its place, and the code LONE_SURROGATE tells, for the caller to judge.
    """
    position = start
    written = start
    code = OK
    where = start
    while position < end:
        byte = data[position]
        if byte != 92:
            data[written] = byte
            written += 1
            position += 1
            continue
        escape = data[position + 1] if position + 1 < end else 0
        if escape == 117:
            value = _hex_value(data, position + 2) if position + 6 <= end else -1
            if value < 0:
                return 0, BAD_ESCAPE, position
            if 0xD800 <= value < 0xDC00:
                low = -1
                if position + 12 <= end and data[position + 6] == 92 and data[position + 7] == 117:
                    low = _hex_value(data, position + 8)
                if 0xDC00 <= low < 0xE000:
                    value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00)
                    position += 6
                else:
                    code = LONE_SURROGATE
                    where = position
                    value = 63
            elif 0xDC00 <= value < 0xE000:
                code = LONE_SURROGATE
                where = position
                value = 63
            position += 6
            if value < 0x80:
                data[written] = value
                written += 1
            elif value < 0x800:
                data[written] = 0xC0 | (value >> 6)
                data[written + 1] = 0x80 | (value & 63)
                written += 2
            elif value < 0x10000:
                data[written] = 0xE0 | (value >> 12)
                data[written + 1] = 0x80 | ((value >> 6) & 63)
                data[written + 2] = 0x80 | (value & 63)
                written += 3
            else:
                data[written] = 0xF0 | (value >> 18)
                data[written + 1] = 0x80 | ((value >> 12) & 63)
                data[written + 2] = 0x80 | ((value >> 6) & 63)
                data[written + 3] = 0x80 | (value & 63)
                written += 4
            continue
        if escape == 34 or escape == 92 or escape == 47:
            data[written] = escape
        elif escape == 110:
            data[written] = 10
        elif escape == 116:
            data[written] = 9
        elif escape == 114:
            data[written] = 13
        elif escape == 98:
            data[written] = 8
        elif escape == 102:
            data[written] = 12
        else:
            return 0, BAD_ESCAPE, position
        written += 1
        position += 2
    return written - start, code, where


@njit(cache=True, nogil=True, inline="always")
def _string_end(data: Bytes, position: int, end: int) -> tuple[int, bool]:
    """From after the opening quote on: (position of the closing quote, has escapes), or (-code, False)."""
    escaped = False
    while position < end:
        byte = data[position]
        if byte == 34:
            return position, escaped
        if byte == 92:
            escaped = True
            position += 2
            continue
        if byte < 32:
            return -CONTROL_CHARACTER, False
        position += 1
    return -UNEXPECTED_END, False


@njit(cache=True, nogil=True)
def _number_end(data: Bytes, position: int, end: int) -> int:
    """The end of the number at a position, or -1 when it is not one by RFC 8259."""
    if position < end and data[position] == 45:
        position += 1
    if position >= end or not 48 <= data[position] <= 57:
        return -1
    if data[position] == 48:
        position += 1
    else:
        while position < end and 48 <= data[position] <= 57:
            position += 1
    if position < end and data[position] == 46:
        position += 1
        if position >= end or not 48 <= data[position] <= 57:
            return -1
        while position < end and 48 <= data[position] <= 57:
            position += 1
    if position < end and (data[position] == 101 or data[position] == 69):
        position += 1
        if position < end and (data[position] == 43 or data[position] == 45):
            position += 1
        if position >= end or not 48 <= data[position] <= 57:
            return -1
        while position < end and 48 <= data[position] <= 57:
            position += 1
    return position


@njit(cache=True, nogil=True)
def _literal(data: Bytes, position: int, end: int) -> int:
    """The kind of the literal at a position, or MISSING when there is none."""
    byte = data[position]
    if byte == 110:
        if (
            position + 4 <= end
            and data[position + 1] == 117
            and data[position + 2] == 108
            and data[position + 3] == 108
        ):
            return NULL
    elif byte == 116:
        if (
            position + 4 <= end
            and data[position + 1] == 114
            and data[position + 2] == 117
            and data[position + 3] == 101
        ):
            return TRUE
    elif (
        byte == 102
        and position + 5 <= end
        and data[position + 1] == 97
        and data[position + 2] == 108
        and data[position + 3] == 115
        and data[position + 4] == 101
    ):
        return FALSE
    return MISSING


@njit(cache=True, nogil=True)
def _escapes_are_sound(data: Bytes, start: int, end: int) -> bool:
    """Whether every backslash in data[start:end] begins a proper escape."""
    position = start
    while position < end:
        if data[position] != 92:
            position += 1
            continue
        escape = data[position + 1] if position + 1 < end else 0
        if escape == 117:
            if position + 6 > end or _hex_value(data, position + 2) < 0:
                return False
            position += 6
            continue
        if not (
            escape == 34 or escape == 92 or escape == 47 or escape == 110
            or escape == 116 or escape == 114 or escape == 98 or escape == 102
        ):  # fmt: skip
            return False
        position += 2
    return True


@njit(cache=True, nogil=True)
def _container_end(data: Bytes, position: int, end: int, stack: Bytes) -> tuple[int, int]:
    """The end of the object or array at a position, checked whole. Returns (end or -code, where it went
    wrong).
    """
    depth = 0
    state = 0  # 0: a value must come; 1: a key must come; 2: a value just ended
    may_close = False  # an empty container may end here
    while True:
        position = _skip_blanks(data, position, end)
        if position >= end:
            return -UNEXPECTED_END, position
        byte = data[position]
        if state == 2:
            if byte == 44:
                state = 1 if stack[depth - 1] == 123 else 0
                may_close = False
                position += 1
                continue
            if byte != (125 if stack[depth - 1] == 123 else 93):
                return -UNEXPECTED_CHARACTER, position
            depth -= 1
            position += 1
            if depth == 0:
                return position, position
            continue
        if state == 1:
            if byte == 125 and may_close:
                state = 2
                continue
            if byte != 34:
                return -UNEXPECTED_CHARACTER, position
            close, escaped = _string_end(data, position + 1, end)
            if close < 0:
                return close, position
            if escaped and not _escapes_are_sound(data, position + 1, close):
                return -BAD_ESCAPE, position
            position = _skip_blanks(data, close + 1, end)
            if position >= end:
                return -UNEXPECTED_END, position
            if data[position] != 58:
                return -UNEXPECTED_CHARACTER, position
            position += 1
            state = 0
            may_close = False
            continue
        if byte == 123 or byte == 91:
            if depth >= MAX_DEPTH:
                return -TOO_DEEP, position
            stack[depth] = byte
            depth += 1
            position += 1
            state = 1 if byte == 123 else 0
            may_close = True
            continue
        if byte == 93 and may_close:
            state = 2
            continue
        if byte == 34:
            close, escaped = _string_end(data, position + 1, end)
            if close < 0:
                return close, position
            if escaped and not _escapes_are_sound(data, position + 1, close):
                return -BAD_ESCAPE, position
            position = close + 1
        elif byte == 45 or 48 <= byte <= 57:
            close = _number_end(data, position, end)
            if close < 0:
                return -UNEXPECTED_CHARACTER, position
            position = close
        else:
            kind = _literal(data, position, end)
            if kind == MISSING:
                return -UNEXPECTED_CHARACTER, position
            position += 5 if kind == FALSE else 4
        state = 2


@njit(cache=True, nogil=True)
def _find_field(
    data: Bytes, start: int, length: int, guess: int, names: Bytes, name_offsets: Array, slots: Array
) -> Int64:
    """Index of the wanted field whose name is data[start:start+length], or -1; ``guess`` is tried first."""
    count = len(name_offsets) - 1
    if guess < count and name_offsets[guess + 1] - name_offsets[guess] == length:
        base = name_offsets[guess]
        index = 0
        while index < length and data[start + index] == names[base + index]:
            index += 1
        if index == length:
            return guess
    slot = np.uint32(_HASH_SEED)
    for index in range(start, start + length):
        slot = np.uint32((slot ^ np.uint32(data[index])) * np.uint32(_HASH_FACTOR))
    mask = len(slots) - 1
    position = np.int64(slot) & mask
    while slots[position] >= 0:
        candidate = np.int64(slots[position])
        base = name_offsets[candidate]
        if name_offsets[candidate + 1] - base == length:
            index = 0
            while index < length and data[start + index] == names[base + index]:
                index += 1
            if index == length:
                return candidate
        position = (position + 1) & mask
    return np.int64(-1)


@njit(cache=True, nogil=True)
def scan(
    data: Bytes,
    offsets: Array,
    names: Bytes,
    name_offsets: Array,
    slots: Array,
    fail_unknown: bool,
    starts: Array,
    lengths: Array,
    kinds: Bytes,
    failure: Array,
) -> Int64:
    """Find the wanted values of all records.

    data: uint8, a scratch copy (escapes are resolved in it); offsets: int64[n + 1]; names, name_offsets,
    slots: from ``field_table``; starts, lengths: int32[fields, n] and kinds: uint8[fields, n] zeroed,
    filled here (of strings: the text between the quotes). Stops at the first bad record and returns its
    index, with (code, position, length) in failure[0:3]; returns n when all are sound.
    """
    stack = np.empty(MAX_DEPTH, dtype=np.uint8)
    count = len(offsets) - 1
    for row in range(count):
        position = _skip_blanks(data, offsets[row], offsets[row + 1])
        end = offsets[row + 1]
        failure[2] = 0
        if position >= end or data[position] != 123:
            failure[0] = NOT_AN_OBJECT
            failure[1] = position
            return row
        position = _skip_blanks(data, position + 1, end)
        guess = np.int64(0)
        first = True
        while True:
            if position >= end:
                failure[0] = UNEXPECTED_END
                failure[1] = position
                return row
            if data[position] == 125 and first:
                position += 1
                break
            first = False
            if data[position] != 34:
                failure[0] = UNEXPECTED_CHARACTER
                failure[1] = position
                return row
            start = position + 1
            close, escaped = _string_end(data, start, end)
            if close < 0:
                failure[0] = -close
                failure[1] = position
                return row
            length = close - start
            known = True
            if escaped:
                length, code, where = _unescape(data, start, close)
                if code == BAD_ESCAPE:
                    failure[0] = code
                    failure[1] = where
                    return row
                known = code == OK
            field = np.int64(-1)
            if known:
                field = _find_field(data, start, length, guess, names, name_offsets, slots)
            if field < 0 and fail_unknown:
                failure[0] = UNKNOWN_FIELD
                failure[1] = start
                failure[2] = length
                return row
            position = _skip_blanks(data, close + 1, end)
            if position >= end or data[position] != 58:
                failure[0] = UNEXPECTED_END if position >= end else UNEXPECTED_CHARACTER
                failure[1] = position
                return row
            position = _skip_blanks(data, position + 1, end)
            if position >= end:
                failure[0] = UNEXPECTED_END
                failure[1] = position
                return row
            byte = data[position]
            start = position
            if byte == 34:
                start = position + 1
                close, escaped = _string_end(data, start, end)
                if close < 0:
                    failure[0] = -close
                    failure[1] = position
                    return row
                length = close - start
                if escaped:
                    length, code, where = _unescape(data, start, close)
                    if code == BAD_ESCAPE or (code == LONE_SURROGATE and field >= 0):
                        failure[0] = code
                        failure[1] = where
                        return row
                position = close + 1
                kind = STRING
            elif byte == 45 or 48 <= byte <= 57:
                close = _number_end(data, position, end)
                if close < 0:
                    failure[0] = UNEXPECTED_CHARACTER
                    failure[1] = position
                    return row
                length = close - position
                position = close
                kind = NUMBER
            elif byte == 123 or byte == 91:
                close, where = _container_end(data, position, end, stack)
                if close < 0:
                    failure[0] = -close
                    failure[1] = where
                    return row
                length = close - position
                position = close
                kind = CONTAINER
            else:
                kind = _literal(data, position, end)
                if kind == MISSING:
                    failure[0] = UNEXPECTED_CHARACTER
                    failure[1] = position
                    return row
                length = np.int64(5 if kind == FALSE else 4)
                position += length
            if field >= 0:
                starts[field, row] = start
                lengths[field, row] = length
                kinds[field, row] = kind
                guess = field + 1
            position = _skip_blanks(data, position, end)
            if position < end and data[position] == 44:
                position = _skip_blanks(data, position + 1, end)
                continue
            if position < end and data[position] == 125:
                position += 1
                break
            failure[0] = UNEXPECTED_END if position >= end else UNEXPECTED_CHARACTER
            failure[1] = position
            return row
        position = _skip_blanks(data, position, end)
        if position < end:
            failure[0] = TRAILING_TEXT
            failure[1] = position
            return row
    return count
