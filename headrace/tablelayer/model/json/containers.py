"""The contents of JSON arrays and objects with unknown fields: elements of an ARRAY, entries of a MAP. Compiled.

The texts are those that `json_scan.scan` has found, and checked, as a CONTAINER.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numba import njit

from headrace.tablelayer.model.json.scan import (
    CONTAINER,
    FALSE,
    MAX_DEPTH,
    NUMBER,
    OK,
    STRING,
    Array,
    Bytes,
    _container_end,
    _literal,
    _number_end,
    _skip_blanks,
    _string_end,
    _unescape,
)

ELEMENTS, MEMBERS, ENTRIES = range(3)
"""The way to split a text: an array into elements, an object into members, or a map into entries.

A map is an object with its members, or an array of pairs.
"""

_WRONG_SHAPE = 100  # follows the codes of json_scan


class Values(msgspec.Struct, frozen=True):
    """Values of one column: starts, lengths: int32[n], kinds: uint8[n]."""

    starts: Array
    lengths: Array
    kinds: Bytes

    @classmethod
    def room(cls, count: int) -> Values:
        return cls(np.zeros(count, np.int32), np.zeros(count, np.int32), np.zeros(count, np.uint8))


class Parts(msgspec.Struct, frozen=True):
    """The parts of texts. counts: int64[texts]; the keys (of entries only) and values of all texts one after the
    other.

    `bad_text` is the first text that cannot be split in this way, or -1; after a bad text the other fields are
    undefined. `bad_code` is a code of `json_scan`, or `OK` if the text has another shape.
    """

    counts: Array
    keys: Values
    values: Values
    bad_text: int = -1
    bad_code: int = OK


def split(data: Bytes, begins: Array, ends: Array, mode: int) -> Parts:
    """Split each text. Only once, because escapes are resolved in place. begins, ends: int64[n], the ranges of the
    texts.
    """
    counts = np.zeros(len(begins), np.int64)
    nothing = Values.room(0)
    arguments = (data, begins, ends, mode)
    failure = np.zeros(1, np.int64)
    bad = _split(*arguments, False, counts, *_arrays(nothing), *_arrays(nothing), failure)
    values = Values.room(int(counts.sum()) if bad < 0 else 0)
    keys = Values.room(0 if mode == ELEMENTS else len(values.starts))
    if bad < 0:
        bad = _split(*arguments, True, counts, *_arrays(keys), *_arrays(values), failure)
    code = int(failure[0])
    return Parts(counts, keys, values, int(bad), OK if code == _WRONG_SHAPE else code)


def _arrays(values: Values) -> tuple[Array, Array, Bytes]:
    return values.starts, values.lengths, values.kinds


@njit(cache=True, nogil=True)
def _value(
    data: Bytes, position: int, end: int, stack: Bytes, resolve: bool
) -> tuple[int, int, int, int, int]:
    """Return the value at a position: (start, length, kind, position after it, code).

    For a string these are the bytes between the quotes, with escapes resolved if `resolve` is true.
    """
    base = data.ctypes.data
    byte = data[position]
    code = OK
    start = position
    if byte == 34:
        start = position + 1
        close, escaped = _string_end(base, start, end)
        length = close - start
        if escaped and resolve:
            length, code, _ = _unescape(data, start, close)
        return start, length, STRING, close + 1, code
    if byte == 123 or byte == 91:
        close, _ = _container_end(base, position, end, stack)
        return start, close - start, CONTAINER, close, code
    if byte == 45 or 48 <= byte <= 57:
        close = _number_end(base, position, end)
        return start, close - start, NUMBER, close, code
    kind = _literal(base, position, end)
    length = 5 if kind == FALSE else 4
    return start, length, kind, position + length, code


@njit(cache=True, nogil=True)
def _split(
    data: Bytes,
    begins: Array,
    ends: Array,
    mode: int,
    fill: bool,
    counts: Array,
    key_starts: Array,
    key_lengths: Array,
    key_kinds: Bytes,
    starts: Array,
    lengths: Array,
    kinds: Bytes,
    failure: Array,
) -> int:
    """Count the parts of each text and, with `fill`, note their positions. Return the first bad text, or -1."""
    base = data.ctypes.data
    stack = np.empty(MAX_DEPTH, dtype=np.uint8)
    entry = 0
    for text in range(len(begins)):
        end = ends[text]
        position = _skip_blanks(base, begins[text], end)
        opening = data[position]
        if (mode == ELEMENTS and opening != 91) or (mode == MEMBERS and opening != 123):
            failure[0] = _WRONG_SHAPE
            return text
        closing = 93 if opening == 91 else 125
        pairs = mode == ENTRIES and opening == 91
        position = _skip_blanks(base, position + 1, end)
        count = 0
        while data[position] != closing:
            if opening == 123 or pairs:
                if pairs:
                    position = _skip_blanks(base, position + 1, end) if data[position] == 91 else -1
                    if position < 0 or data[position] == 93:
                        failure[0] = _WRONG_SHAPE
                        return text
                start, length, kind, position, code = _value(data, position, end, stack, fill)
                if code != OK:
                    failure[0] = code
                    return text
                if fill:
                    key_starts[entry], key_lengths[entry], key_kinds[entry] = start, length, kind
                position = _skip_blanks(base, position, end)
                if pairs and data[position] != 44:
                    failure[0] = _WRONG_SHAPE
                    return text
                position = _skip_blanks(base, position + 1, end)
            start, length, kind, position, code = _value(data, position, end, stack, fill)
            if code != OK:
                failure[0] = code
                return text
            if fill:
                starts[entry], lengths[entry], kinds[entry] = start, length, kind
            entry += 1
            count += 1
            position = _skip_blanks(base, position, end)
            if pairs:
                if data[position] != 93:
                    failure[0] = _WRONG_SHAPE
                    return text
                position = _skip_blanks(base, position + 1, end)
            if data[position] == 44:
                position = _skip_blanks(base, position + 1, end)
        counts[text] = count
    return -1
