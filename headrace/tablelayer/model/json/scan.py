"""A compiled, strict scanner that finds the wanted values in a batch of JSON objects in one pass.

`scan` checks every record completely (RFC 8259, without extensions), and notes for each wanted field the start,
length and kind of its value. Other fields are checked and skipped. If a field occurs twice, the last value counts, as
in Python's and Jackson's parsers. Escapes are resolved in place, in the caller's scratch copy: the resolved text is
never longer than the escaped one, so positions stay valid. UTF-8 is not checked here; Arrow checks a whole batch
faster.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from headrace.tablelayer.model.arrays.memory import Int64, byte_at, trailing_zeros, word_at

Bytes = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]

MISSING, NULL, TRUE, FALSE, NUMBER, STRING, CONTAINER = range(7)
"""The kind of a value; MISSING means the record has no such field."""

# Failure codes of a record. The messages are in json_rows.
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
PADDING = 8  # bytes that can be read after the end of every buffer

_HASH_SEED = 0x811C9DC5
_HASH_FACTOR = 0x01000193


def field_table(names: list[bytes]) -> tuple[Bytes, Array, Array, Array]:
    """Return the lookup table of wanted field names, for `scan`.

    It has the names' bytes, int64 offsets into these, an int32 hash table, and which names need no escapes in JSON.
    """
    data = np.frombuffer(b"".join(names) + bytes(PADDING), dtype=np.uint8).copy()
    offsets = np.cumsum([0] + [len(name) for name in names], dtype=np.int64)
    plain = np.array(
        [not any(byte < 32 or byte in b'"\\' for byte in name) for name in names], dtype=np.bool_
    )
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
    return data, offsets, slots, plain


@njit(cache=True, nogil=True)
def _skip_blanks(base: int, position: int, end: int) -> int:
    while position < end and byte_at(base, position) <= 32:
        byte = byte_at(base, position)
        if byte != 32 and byte != 10 and byte != 13 and byte != 9:
            break
        position += 1
    return position


@njit(cache=True, nogil=True)
def _hex_value(base: int, position: int) -> int:
    """Return the four hex digits at a position as a number, or -1."""
    value = 0
    for index in range(position, position + 4):
        byte = byte_at(base, index)
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

    Returns (length, failure code, position of the failure). A lone surrogate has no UTF-8 form: it becomes '?', with
    the code LONE_SURROGATE, and the caller decides.
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
            value = _hex_value(data.ctypes.data, position + 2) if position + 6 <= end else -1
            if value < 0:
                return 0, BAD_ESCAPE, position
            if 0xD800 <= value < 0xDC00:
                low = -1
                if position + 12 <= end and data[position + 6] == 92 and data[position + 7] == 117:
                    low = _hex_value(data.ctypes.data, position + 8)
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


@njit(cache=True, nogil=True)
def _string_end(base: int, position: int, end: int) -> tuple[int, bool]:
    """Find the end of a string from after its opening quote: (position of the closing quote, has escapes), or (-code,
    False).
    """
    escaped = False
    ones = np.uint64(0x0101010101010101)
    highs = np.uint64(0x8080808080808080)
    quotes = np.uint64(0x2222222222222222)
    backslashes = np.uint64(0x5C5C5C5C5C5C5C5C)
    blanks = np.uint64(0x2020202020202020)
    while position < end:
        # Eight bytes at a time: the lowest marked byte is a quote, a backslash or below 32. Zero bytes are found by
        # borrows, as in Sean Anderson's "Bit Twiddling Hacks"; only bytes above a true mark can be false ones.
        word = word_at(base, position)
        quote = word ^ quotes
        backslash = word ^ backslashes
        marks = ((quote - ones) & ~quote) | ((backslash - ones) & ~backslash) | ((word - blanks) & ~word)
        marks &= highs
        if marks == np.uint64(0):
            position += 8
            continue
        position += trailing_zeros(marks) >> 3
        if position >= end:
            break
        byte = byte_at(base, position)
        if byte == 34:
            return position, escaped
        if byte != 92:
            return -CONTROL_CHARACTER, False
        escaped = True
        position += 2
    return -UNEXPECTED_END, False


@njit(cache=True, nogil=True)
def _number_end(base: int, position: int, end: int) -> int:
    """Return the end of the number at a position, or -1 if it is not a number according to RFC 8259."""
    if position < end and byte_at(base, position) == 45:
        position += 1
    if position >= end or not 48 <= byte_at(base, position) <= 57:
        return -1
    if byte_at(base, position) == 48:
        position += 1
    else:
        while position < end and 48 <= byte_at(base, position) <= 57:
            position += 1
    if position < end and byte_at(base, position) == 46:
        position += 1
        if position >= end or not 48 <= byte_at(base, position) <= 57:
            return -1
        while position < end and 48 <= byte_at(base, position) <= 57:
            position += 1
    if position < end and (byte_at(base, position) == 101 or byte_at(base, position) == 69):
        position += 1
        if position < end and (byte_at(base, position) == 43 or byte_at(base, position) == 45):
            position += 1
        if position >= end or not 48 <= byte_at(base, position) <= 57:
            return -1
        while position < end and 48 <= byte_at(base, position) <= 57:
            position += 1
    return position


@njit(cache=True, nogil=True)
def _literal(base: int, position: int, end: int) -> int:
    """Return the kind of the literal at a position, or MISSING if there is no literal."""
    byte = byte_at(base, position)
    if byte == 110:
        if (
            position + 4 <= end
            and byte_at(base, position + 1) == 117
            and byte_at(base, position + 2) == 108
            and byte_at(base, position + 3) == 108
        ):
            return NULL
    elif byte == 116:
        if (
            position + 4 <= end
            and byte_at(base, position + 1) == 114
            and byte_at(base, position + 2) == 117
            and byte_at(base, position + 3) == 101
        ):
            return TRUE
    elif (
        byte == 102
        and position + 5 <= end
        and byte_at(base, position + 1) == 97
        and byte_at(base, position + 2) == 108
        and byte_at(base, position + 3) == 115
        and byte_at(base, position + 4) == 101
    ):
        return FALSE
    return MISSING


@njit(cache=True, nogil=True)
def _escapes_are_sound(base: int, start: int, end: int) -> bool:
    """Whether every backslash in byte_at(base, start:end) begins a valid escape."""
    position = start
    while position < end:
        if byte_at(base, position) != 92:
            position += 1
            continue
        escape = byte_at(base, position + 1) if position + 1 < end else 0
        if escape == 117:
            if position + 6 > end or _hex_value(base, position + 2) < 0:
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
def _container_end(base: int, position: int, end: int, stack: Bytes) -> tuple[int, int]:
    """Check the object or array at a position completely. Return (end or -code, position of the failure)."""
    depth = 0
    state = 0  # 0: a value must come; 1: a key must come; 2: a value just ended
    may_close = False  # an empty container may end here
    while True:
        position = _skip_blanks(base, position, end)
        if position >= end:
            return -UNEXPECTED_END, position
        byte = byte_at(base, position)
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
            close, escaped = _string_end(base, position + 1, end)
            if close < 0:
                return close, position
            if escaped and not _escapes_are_sound(base, position + 1, close):
                return -BAD_ESCAPE, position
            position = _skip_blanks(base, close + 1, end)
            if position >= end:
                return -UNEXPECTED_END, position
            if byte_at(base, position) != 58:
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
            close, escaped = _string_end(base, position + 1, end)
            if close < 0:
                return close, position
            if escaped and not _escapes_are_sound(base, position + 1, close):
                return -BAD_ESCAPE, position
            position = close + 1
        elif byte == 45 or 48 <= byte <= 57:
            close = _number_end(base, position, end)
            if close < 0:
                return -UNEXPECTED_CHARACTER, position
            position = close
        else:
            kind = _literal(base, position, end)
            if kind == MISSING:
                return -UNEXPECTED_CHARACTER, position
            position += 5 if kind == FALSE else 4
        state = 2


@njit(cache=True, nogil=True)
def _same(left: int, right: int, length: int) -> Int64:
    """Whether the bytes at two addresses are equal; up to PADDING bytes behind both may be read."""
    index = 0
    while index + 8 <= length:
        if word_at(left, index) != word_at(right, index):
            return False
        index += 8
    if index == length:
        return True
    differing = word_at(left, index) ^ word_at(right, index)
    return differing == np.uint64(0) or (trailing_zeros(differing) >> 3) >= length - index


@njit(cache=True, nogil=True)
def _find_field(base: int, start: int, length: int, names: Bytes, name_offsets: Array, slots: Array) -> Int64:
    """Return the index of the wanted field whose name is the `length` bytes at `start`, or -1."""
    slot = np.uint32(_HASH_SEED)
    for index in range(start, start + length):
        slot = np.uint32((slot ^ np.uint32(byte_at(base, index))) * np.uint32(_HASH_FACTOR))
    mask = len(slots) - 1
    position = np.int64(slot) & mask
    while slots[position] >= 0:
        candidate = np.int64(slots[position])
        name = name_offsets[candidate]
        if name_offsets[candidate + 1] - name == length and _same(
            base + start, names.ctypes.data + name, length
        ):
            return candidate
        position = (position + 1) & mask
    return np.int64(-1)


@njit(cache=True, nogil=True)
def scan(
    data: Bytes,
    begins: Array,
    ends: Array,
    names: Bytes,
    name_offsets: Array,
    slots: Array,
    plain: Array,
    fail_unknown: bool,
    starts: Array,
    lengths: Array,
    kinds: Bytes,
    failure: Array,
) -> Int64:
    """Find the wanted values of all records.

    data: uint8, a scratch copy (escapes are resolved in it) with PADDING more bytes at its end; begins, ends:
    int64[n], the range of each record's text. `field_table` gives names, name_offsets, slots and plain. The results,
    zeroed by the caller, are starts, lengths (int32[fields, n]) and kinds (uint8[fields, n]). A string's range is
    the text between the quotes.

    Stops at the first bad record and returns its index, with (code, position, length) in failure[0:3]; returns n if
    all records are sound.
    """
    base = data.ctypes.data
    name_base = names.ctypes.data
    stack = np.empty(MAX_DEPTH, dtype=np.uint8)
    count = len(begins)
    for row in range(count):
        end = ends[row]
        position = _skip_blanks(base, begins[row], end)
        failure[2] = 0
        if position >= end or byte_at(base, position) != 123:
            failure[0] = NOT_AN_OBJECT
            failure[1] = position
            return row
        position = _skip_blanks(base, position + 1, end)
        guess = np.int64(0)
        first = True
        while True:
            if position >= end:
                failure[0] = UNEXPECTED_END
                failure[1] = position
                return row
            if byte_at(base, position) == 125 and first:
                position += 1
                break
            first = False
            if byte_at(base, position) != 34:
                failure[0] = UNEXPECTED_CHARACTER
                failure[1] = position
                return row
            start = position + 1
            field = np.int64(-1)
            if guess < len(plain) and plain[guess]:
                length = name_offsets[guess + 1] - name_offsets[guess]
                close = start + length
                if close < end and byte_at(base, close) == 34:
                    name = name_base + name_offsets[guess]
                    field = guess if _same(base + start, name, length) else field
            if field < 0:
                close, escaped = _string_end(base, start, end)
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
                if known:
                    field = _find_field(base, start, length, names, name_offsets, slots)
            if field < 0 and fail_unknown:
                failure[0] = UNKNOWN_FIELD
                failure[1] = start
                failure[2] = length
                return row
            position = _skip_blanks(base, close + 1, end)
            if position >= end or byte_at(base, position) != 58:
                failure[0] = UNEXPECTED_END if position >= end else UNEXPECTED_CHARACTER
                failure[1] = position
                return row
            position = _skip_blanks(base, position + 1, end)
            if position >= end:
                failure[0] = UNEXPECTED_END
                failure[1] = position
                return row
            byte = byte_at(base, position)
            start = position
            if byte == 34:
                start = position + 1
                close, escaped = _string_end(base, start, end)
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
                close = _number_end(base, position, end)
                if close < 0:
                    failure[0] = UNEXPECTED_CHARACTER
                    failure[1] = position
                    return row
                length = close - position
                position = close
                kind = NUMBER
            elif byte == 123 or byte == 91:
                close, where = _container_end(base, position, end, stack)
                if close < 0:
                    failure[0] = -close
                    failure[1] = where
                    return row
                length = close - position
                position = close
                kind = CONTAINER
            else:
                kind = _literal(base, position, end)
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
            position = _skip_blanks(base, position, end)
            if position < end and byte_at(base, position) == 44:
                position = _skip_blanks(base, position + 1, end)
                continue
            if position < end and byte_at(base, position) == 125:
                position += 1
                break
            failure[0] = UNEXPECTED_END if position >= end else UNEXPECTED_CHARACTER
            failure[1] = position
            return row
        position = _skip_blanks(base, position, end)
        if position < end:
            failure[0] = TRAILING_TEXT
            failure[1] = position
            return row
    return count
