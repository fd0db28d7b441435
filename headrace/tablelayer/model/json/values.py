"""Compiled conversion of JSON values from text to column values, exact.

Each kernel takes the values of one field as `json_scan.scan` found them (`starts, lengths, kinds`: one entry per row)
and fills the value array of one column; rows that are null or missing are skipped. It returns the first row that does
not fit, with the reason's code in `failure[0]`, or -1. Decimals and integers never pass through a float.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from headrace.tablelayer.model.arrays.memory import Int64, copy_bytes
from headrace.tablelayer.model.json.scan import FALSE, NULL, NUMBER, STRING, TRUE, Array, Bytes

# Failure codes of a value. The messages are in json_rows.
WRONG_KIND = 20
NOT_A_NUMBER = 21
INEXACT = 22
OUT_OF_RANGE = 23
NOT_A_DATE = 24
NOT_A_TIME = 25
NOT_A_TIMESTAMP = 26
ZONE_MISSING = 27
ZONE_NOT_ALLOWED = 28
TOO_PRECISE = 29
TOO_LONG = 30
NOT_BASE64 = 31
WRONG_SIZE = 32
NOT_A_BOOLEAN = 33

_POWERS = np.array([10**exponent for exponent in range(20)], dtype=np.uint64)
_DAYS_IN_MONTH = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], dtype=np.int64)
_EXPONENT_MAX = 1 << 40  # beyond the length of any text: larger exponents need no exact count


@njit(cache=True, nogil=True)
def _times_ten(high: Any, low: Any, digit: Any) -> tuple[Any, Any]:
    """Return (high, low) * 10 + digit in 128 bits."""
    mask = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    ten = np.uint64(10)
    first = (low & mask) * ten + digit
    second = (low >> shift) * ten + (first >> shift)
    return high * ten + (second >> shift), (second << shift) | (first & mask)


@njit(cache=True, nogil=True)
def exact(data: Bytes, start: int, end: int, digits_max: int, scale: int) -> tuple[int, bool, Any, Any]:
    """Return the number in data[start:end], times 10**scale, as (failure code or 0, negative, high, low).

    The result must be whole and have at most `digits_max` (<= 38) digits. Digits that would be lost are INEXACT.
    """
    position = start
    negative = False
    high = np.uint64(0)
    low = np.uint64(0)
    if position < end and (data[position] == 45 or data[position] == 43):
        negative = data[position] == 45
        position += 1
    digits = 0  # from the first to the last digit that is not 0
    pending = 0  # zeros after that
    fraction = 0  # digits after the point
    point = False
    seen = False
    while position < end:
        byte = data[position]
        if 48 <= byte <= 57:
            seen = True
            if point:
                fraction += 1
            if byte != 48:
                step = pending + 1 if digits > 0 else 1
                digits += step
                if digits <= 19:
                    low = low * _POWERS[step] + np.uint64(byte - 48)
                elif digits <= 38:
                    for _ in range(step - 1):
                        high, low = _times_ten(high, low, np.uint64(0))
                    high, low = _times_ten(high, low, np.uint64(byte - 48))
                pending = 0
            elif digits > 0:
                pending += 1
        elif byte == 46 and not point:
            point = True
        else:
            break
        position += 1
    if not seen:
        return NOT_A_NUMBER, negative, high, low
    exponent = np.int64(0)
    if position < end:
        if data[position] != 101 and data[position] != 69:
            return NOT_A_NUMBER, negative, high, low
        position += 1
        downward = False
        if position < end and (data[position] == 43 or data[position] == 45):
            downward = data[position] == 45
            position += 1
        if position >= end:
            return NOT_A_NUMBER, negative, high, low
        while position < end:
            byte = data[position]
            if not 48 <= byte <= 57:
                return NOT_A_NUMBER, negative, high, low
            if exponent < _EXPONENT_MAX:
                exponent = exponent * 10 + (byte - 48)
            position += 1
        if downward:
            exponent = -exponent
    if digits == 0:
        return 0, False, high, low
    shift = pending - fraction + exponent + scale
    if shift < 0:
        return INEXACT, negative, high, low
    if digits + shift > digits_max:
        return OUT_OF_RANGE, negative, high, low
    if digits + shift <= 19:
        low = low * _POWERS[shift]
    else:
        for _ in range(shift):
            high, low = _times_ten(high, low, np.uint64(0))
    return 0, negative, high, low


@njit(cache=True, nogil=True)
def _small_integer(data: Bytes, start: int, length: int) -> tuple[bool, Int64]:
    """Return (True, value) for a plain integer of at most 18 digits; after (False, 0) the caller needs `_exact`."""
    position = start
    end = start + length
    negative = data[position] == 45
    if negative:
        position += 1
    if end - position > 18 or end == position:
        return False, np.int64(0)
    value = np.int64(0)
    while position < end:
        byte = data[position]
        if not 48 <= byte <= 57:
            return False, np.int64(0)
        value = value * 10 + (byte - 48)
        position += 1
    return True, -value if negative else value


@njit(cache=True, nogil=True)
def trim(data: Bytes, start: int, length: int) -> tuple[int, int]:
    """Return the range (start, end) without blanks at both ends."""
    end = start + length
    while start < end and data[start] <= 32:
        start += 1
    while end > start and data[end - 1] <= 32:
        end -= 1
    return start, end


@njit(cache=True, nogil=True)
def integers(
    data: Bytes, starts: Array, lengths: Array, kinds: Bytes, bits: int, values: Array, failure: Array
) -> int:
    """Read numbers, or strings that hold one, into values: int64[n]; whole and within `bits` bits, signed."""
    top = np.uint64((np.uint64(1) << np.uint64(bits - 1)) - np.uint64(1))
    for row in range(len(starts)):
        kind = kinds[row]
        if kind <= NULL:
            continue
        start = np.int64(starts[row])
        end = start + lengths[row]
        if kind == NUMBER:
            small, value = _small_integer(data, start, np.int64(lengths[row]))
            if small and (bits == 64 or -(1 << (bits - 1)) <= value < (1 << (bits - 1))):
                values[row] = value
                continue
        elif kind == STRING:
            start, end = trim(data, start, np.int64(lengths[row]))
        else:
            failure[0] = WRONG_KIND
            return row
        code, negative, _, low = exact(data, start, end, 19, 0)
        if code == 0 and low > top + np.uint64(1 if negative else 0):
            code = OUT_OF_RANGE
        if code != 0:
            failure[0] = code
            return row
        values[row] = -np.int64(low) if negative else np.int64(low)
    return -1


@njit(cache=True, nogil=True)
def decimals(
    data: Bytes,
    starts: Array,
    lengths: Array,
    kinds: Bytes,
    precision: int,
    scale: int,
    values: Array,
    failure: Array,
) -> int:
    """Read decimals into values: int64[n, 2], low word first: the unscaled value in 128 bits, two's complement."""
    for row in range(len(starts)):
        kind = kinds[row]
        if kind <= NULL:
            continue
        start = np.int64(starts[row])
        end = start + lengths[row]
        if kind == STRING:
            start, end = trim(data, start, np.int64(lengths[row]))
        elif kind != NUMBER:
            failure[0] = WRONG_KIND
            return row
        code, negative, high, low = exact(data, start, end, precision, scale)
        if code != 0:
            failure[0] = code
            return row
        if negative:
            low = ~low + np.uint64(1)
            high = ~high + np.uint64(1 if low == np.uint64(0) else 0)
        values[row, 0] = np.int64(low)
        values[row, 1] = np.int64(high)
    return -1


@njit(cache=True, nogil=True)
def _is_word(data: Bytes, start: int, end: int, word: Bytes) -> bool:
    if end - start != len(word):
        return False
    for index in range(len(word)):  # noqa: SIM110  (a compiled loop)
        if data[start + index] | 32 != word[index]:
            return False
    return True


_TRUE_WORD = np.frombuffer(b"true", dtype=np.uint8)
_FALSE_WORD = np.frombuffer(b"false", dtype=np.uint8)
_NAN_WORD = np.frombuffer(b"nan", dtype=np.uint8)
_INFINITY_WORD = np.frombuffer(b"infinity", dtype=np.uint8)


@njit(cache=True, nogil=True)
def booleans(data: Bytes, starts: Array, lengths: Array, kinds: Bytes, values: Array, failure: Array) -> int:
    """Read true and false, or strings of these words in any case, into values: bool[n]."""
    for row in range(len(starts)):
        kind = kinds[row]
        if kind <= NULL:
            continue
        if kind in (TRUE, FALSE):
            values[row] = kind == TRUE
        elif kind == STRING:
            start, end = trim(data, np.int64(starts[row]), np.int64(lengths[row]))
            if _is_word(data, start, end, _TRUE_WORD):
                values[row] = True
            elif _is_word(data, start, end, _FALSE_WORD):
                values[row] = False
            else:
                failure[0] = NOT_A_BOOLEAN
                return row
        else:
            failure[0] = WRONG_KIND
            return row
    return -1


@njit(cache=True, nogil=True)
def float_texts(
    data: Bytes, starts: Array, lengths: Array, kinds: Bytes, infinite: Array, failure: Array
) -> int:
    """Check and trim the texts of numbers for a correctly rounding parser.

    infinite: bool[n], set for an explicit Infinity. Strings may also hold NaN, Infinity and -Infinity, which JSON
    numbers cannot express.
    """
    for row in range(len(starts)):
        kind = kinds[row]
        if kind <= NULL:
            continue
        if kind == NUMBER:
            continue
        if kind != STRING:
            failure[0] = WRONG_KIND
            return row
        start, end = trim(data, np.int64(starts[row]), np.int64(lengths[row]))
        word = start + 1 if start < end and (data[start] == 45 or data[start] == 43) else start
        if _is_word(data, word, end, _INFINITY_WORD):
            infinite[row] = True
        elif not _is_word(data, start, end, _NAN_WORD):
            code, _, _, _ = exact(data, start, end, 38, 0)
            if code == NOT_A_NUMBER:
                failure[0] = code
                return row
        if start < end and data[start] == 43:
            start += 1
        starts[row] = start
        lengths[row] = end - start
    return -1


@njit(cache=True, nogil=True)
def _two_digits(data: Bytes, position: int, end: int) -> Int64:
    """Return the number in two digits, or -1."""
    if position + 2 > end:
        return np.int64(-1)
    tens = np.int64(data[position]) - 48
    ones = np.int64(data[position + 1]) - 48
    if not (0 <= tens <= 9 and 0 <= ones <= 9):
        return np.int64(-1)
    return tens * 10 + ones


@njit(cache=True, nogil=True)
def _date(data: Bytes, start: int, end: int) -> tuple[Int64, Int64]:
    """Return (position after the date YYYY-MM-DD or -1, days since 1970-01-01).

    Years beyond 9999 or before 0 are signed and have up to 9 digits (ISO 8601's expanded form).
    """
    position = start
    negative = False
    signed = position < end and (data[position] == 45 or data[position] == 43)
    if signed:
        negative = data[position] == 45
        position += 1
    first = position
    year = np.int64(0)
    while position < end and 48 <= data[position] <= 57 and position - first < 10:
        year = year * 10 + (data[position] - 48)
        position += 1
    count = position - first
    if count < 4 or count > 9 or (count > 4 and not signed):
        return np.int64(-1), np.int64(0)
    if negative:
        year = -year
    if position + 6 > end or data[position] != 45 or data[position + 3] != 45:
        return np.int64(-1), np.int64(0)
    month = _two_digits(data, position + 1, end)
    day = _two_digits(data, position + 4, end)
    if not 1 <= month <= 12 or day < 1:
        return np.int64(-1), np.int64(0)
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if day > _DAYS_IN_MONTH[month - 1] + (1 if month == 2 and leap else 0):
        return np.int64(-1), np.int64(0)
    # Days from civil: years begin in March, eras have 400 years (Howard Hinnant's date algorithms).
    shifted = year - 1 if month <= 2 else year
    era = shifted // 400
    year_of_era = shifted - era * 400
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days = era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719468
    return position + 6, days


@njit(cache=True, nogil=True)
def _time(data: Bytes, start: int, end: int) -> tuple[Int64, Int64, Int64, bool]:
    """Return (position after the time HH:MM[:SS[.f...]] or -1, seconds, nanoseconds, whether more digits follow)."""
    hour = _two_digits(data, start, end)
    if not 0 <= hour <= 23 or start + 5 > end or data[start + 2] != 58:
        return np.int64(-1), np.int64(0), np.int64(0), False
    minute = _two_digits(data, start + 3, end)
    if not 0 <= minute <= 59:
        return np.int64(-1), np.int64(0), np.int64(0), False
    position = start + 5
    second = np.int64(0)
    nanos = np.int64(0)
    lost = False
    if position < end and data[position] == 58:
        second = _two_digits(data, position + 1, end)
        if not 0 <= second <= 59:
            return np.int64(-1), np.int64(0), np.int64(0), False
        position += 3
        if position < end and data[position] == 46:
            position += 1
            count = 0
            while position < end and 48 <= data[position] <= 57:
                if count < 9:
                    nanos = nanos * 10 + (data[position] - 48)
                elif data[position] != 48:
                    lost = True
                count += 1
                position += 1
            if count == 0:
                return np.int64(-1), np.int64(0), np.int64(0), False
            while count < 9:
                nanos *= 10
                count += 1
    return position, hour * 3600 + minute * 60 + second, nanos, lost


@njit(cache=True, nogil=True)
def _zone(data: Bytes, start: int, end: int) -> tuple[bool, bool, Int64]:
    """Return (sound, present, offset in seconds) of the zone in data[start:end]: Z, +HH:MM, +HHMM or +HH."""
    if start == end:
        return True, False, np.int64(0)
    if data[start] == 90 and end - start == 1:
        return True, True, np.int64(0)
    if data[start] != 43 and data[start] != 45:
        return False, True, np.int64(0)
    hours = _two_digits(data, start + 1, end)
    minutes = np.int64(0)
    length = end - start
    if length == 6 and data[start + 3] == 58:
        minutes = _two_digits(data, start + 4, end)
    elif length == 5:
        minutes = _two_digits(data, start + 3, end)
    elif length != 3:
        return False, True, np.int64(0)
    if not 0 <= hours <= 18 or not 0 <= minutes <= 59:
        return False, True, np.int64(0)
    offset = hours * 3600 + minutes * 60
    return True, True, -offset if data[start] == 45 else offset


@njit(cache=True, nogil=True)
def dates(data: Bytes, starts: Array, lengths: Array, kinds: Bytes, values: Array, failure: Array) -> int:
    """Read strings YYYY-MM-DD into values: int32[n], days since 1970-01-01."""
    for row in range(len(starts)):
        kind = kinds[row]
        if kind <= NULL:
            continue
        if kind != STRING:
            failure[0] = WRONG_KIND
            return row
        start = np.int64(starts[row])
        end = start + lengths[row]
        after, days = _date(data, start, end)
        if after != end or not -(1 << 31) <= days < (1 << 31):
            failure[0] = NOT_A_DATE
            return row
        values[row] = days
    return -1


@njit(cache=True, nogil=True)
def times(
    data: Bytes,
    starts: Array,
    lengths: Array,
    kinds: Bytes,
    precision: int,
    units_per_second: int,
    values: Array,
    failure: Array,
) -> int:
    """Read strings HH:MM[:SS[.fraction]] into values: int64[n] in the column's unit."""
    nanos_per_unit = 1_000_000_000 // units_per_second
    finest = np.int64(_POWERS[9 - precision])
    for row in range(len(starts)):
        kind = kinds[row]
        if kind <= NULL:
            continue
        if kind != STRING:
            failure[0] = WRONG_KIND
            return row
        start = np.int64(starts[row])
        end = start + lengths[row]
        after, seconds, nanos, lost = _time(data, start, end)
        if after != end:
            failure[0] = NOT_A_TIME
            return row
        if lost or nanos % finest != 0:
            failure[0] = TOO_PRECISE
            return row
        values[row] = seconds * units_per_second + nanos // nanos_per_unit
    return -1


@njit(cache=True, nogil=True)
def timestamps(
    data: Bytes,
    starts: Array,
    lengths: Array,
    kinds: Bytes,
    precision: int,
    units_per_second: int,
    zoned: bool,
    values: Array,
    failure: Array,
) -> int:
    """Read ISO 8601 strings into values: int64[n] in the column's unit since 1970-01-01T00:00:00 (UTC when `zoned`).

    An instant (`zoned`) must have a zone. A timestamp without zone may only have Z or +00:00.
    """
    nanos_per_unit = 1_000_000_000 // units_per_second
    finest = np.int64(_POWERS[9 - precision])
    largest = np.int64((1 << 63) - 1)
    smallest = -largest - 1
    second_max = largest // units_per_second
    second_min = smallest // units_per_second
    for row in range(len(starts)):
        kind = kinds[row]
        if kind <= NULL:
            continue
        if kind != STRING:
            failure[0] = WRONG_KIND
            return row
        start = np.int64(starts[row])
        end = start + lengths[row]
        failure[0] = NOT_A_TIMESTAMP
        after, days = _date(data, start, end)
        if after < 0 or after >= end or (data[after] != 84 and data[after] != 32):
            return row
        after, seconds, nanos, lost = _time(data, after + 1, end)
        if after < 0:
            return row
        sound, present, offset = _zone(data, after, end)
        if not sound:
            return row
        if zoned and not present:
            failure[0] = ZONE_MISSING
            return row
        if not zoned and offset != 0:
            failure[0] = ZONE_NOT_ALLOWED
            return row
        if lost or nanos % finest != 0:
            failure[0] = TOO_PRECISE
            return row
        seconds += days * 86_400 - offset
        part = nanos // nanos_per_unit
        if (
            seconds > second_max
            or seconds < second_min
            or (seconds == second_max and part > largest - second_max * units_per_second)
            or (seconds == second_min and part < smallest - second_min * units_per_second)
        ):
            failure[0] = OUT_OF_RANGE
            return row
        values[row] = seconds * units_per_second + part
    return -1


@njit(cache=True, nogil=True)
def text_offsets(starts: Array, lengths: Array, kinds: Bytes, offsets: Array) -> None:
    """Set offsets: int64[n + 1] of the concatenated texts; null and missing values have empty texts."""
    total = np.int64(0)
    offsets[0] = 0
    for row in range(len(starts)):
        if kinds[row] > NULL:
            total += lengths[row]
        offsets[row + 1] = total


@njit(cache=True, nogil=True)
def copy_texts(data: Bytes, starts: Array, offsets: Array, out: Bytes) -> None:
    """Concatenate the texts at the offsets of `text_offsets`."""
    source, target = data.ctypes.data, out.ctypes.data
    for row in range(len(starts)):
        length = offsets[row + 1] - offsets[row]
        copy_bytes(source + np.int64(starts[row]), target + offsets[row], length)


@njit(cache=True, nogil=True)
def longer_than(data: Bytes, starts: Array, lengths: Array, kinds: Bytes, limit: int) -> int:
    """Return the first row whose text has more than `limit` characters (code points), or -1."""
    for row in range(len(starts)):
        if kinds[row] <= NULL or lengths[row] <= limit:
            continue
        count = 0
        for index in range(np.int64(starts[row]), np.int64(starts[row]) + lengths[row]):
            count += (data[index] & 0xC0) != 0x80
        if count > limit:
            return row
    return -1


_BASE64 = np.full(256, -1, dtype=np.int64)
for _value, _letter in enumerate(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"):
    _BASE64[_letter] = _value


@njit(cache=True, nogil=True)
def decode_base64(
    data: Bytes,
    starts: Array,
    lengths: Array,
    kinds: Bytes,
    size: int,
    offsets: Array,
    out: Bytes,
    failure: Array,
) -> int:
    """Decode base64 strings (RFC 4648, padded) into out: uint8, offsets: int64[n + 1]; size: exact bytes, or -1.

    With an exact size, null rows take the same number of bytes, which stay unchanged.
    """
    written = np.int64(0)
    offsets[0] = 0
    for row in range(len(starts)):
        kind = kinds[row]
        if kind <= NULL:
            if size >= 0:
                written += size
            offsets[row + 1] = written
            continue
        if kind != STRING:
            failure[0] = WRONG_KIND
            return row
        start = np.int64(starts[row])
        length = np.int64(lengths[row])
        begin = written
        failure[0] = NOT_BASE64
        if length % 4 != 0:
            return row
        padding = 0
        if length > 0 and data[start + length - 1] == 61:
            padding = 2 if data[start + length - 2] == 61 else 1
        decoded = length // 4 * 3 - padding
        if size >= 0 and decoded != size:
            # Checked before anything is written, because the output only has room for rows of the right size.
            for index in range(start, start + length - padding):
                if _BASE64[data[index]] < 0:
                    return row
            failure[0] = WRONG_SIZE
            return row
        for group in range(start, start + length, 4):
            bits = np.int64(0)
            for index in range(4):
                value = _BASE64[data[group + index]]
                if value < 0:
                    if group + index < start + length - padding:
                        return row
                    value = np.int64(0)
                bits = (bits << 6) | value
            for shift in (16, 8, 0):
                if written - begin < decoded:
                    out[written] = (bits >> shift) & 255
                    written += 1
        offsets[row + 1] = written
    return -1
