"""The loops over records, compiled. Importing this module imports numba (some hundred milliseconds).

Everything here works on flat arrays: a payload of uint8 and int arrays of positions and lengths. Nothing
raises: a kernel that meets malformed input returns a negative code and the index of the record, and its
caller in `decode` or `encode` says it in words. Inputs arrive read-only and C-contiguous (`frozen`), so that
each kernel is compiled for one set of types only.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

RECORD_LENGTH_WRONG: Final = -1
CUT_SHORT: Final = -2
OFFSET_WRONG: Final = -3
VARINT_TOO_LONG: Final = -4
NEGATIVE_HEADERS: Final = -5
TOO_MANY_STEPS: Final = -6

REASONS: Final = {
    RECORD_LENGTH_WRONG: "its length does not match its fields",
    CUT_SHORT: "it runs past its end",
    OFFSET_WRONG: "its offset does not follow the one before it, or is not within the batch",
    VARINT_TOO_LONG: "a varint is too long",
    NEGATIVE_HEADERS: "its number of headers is negative",
}

_BAD_POSITION: Final = -1
_LONG_VARINT: Final = -2


def frozen(array: Any, dtype: Any) -> NDArray[Any]:
    """A contiguous read-only array of one dtype: the only kind of input that kernels see. Copies only if it must."""
    result = np.ascontiguousarray(array, dtype=dtype).view()
    result.flags.writeable = False
    return result


@njit(cache=True, nogil=True, inline="never")
def _read_varint(payload, position, end, max_bytes):  # type: ignore[no-untyped-def]
    """(value, next position); the position is negative when the varint is cut short or too long."""
    shift = 0
    raw = np.uint64(0)
    for _ in range(max_bytes):
        if position >= end:
            return 0, _BAD_POSITION
        byte = payload[position]
        position += 1
        raw |= np.uint64(byte & 0x7F) << np.uint64(shift)
        if byte < 0x80:
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), position
        shift += 7
    return 0, _LONG_VARINT


@njit(cache=True, nogil=True, inline="never")
def _varint_failure(position):  # type: ignore[no-untyped-def]
    return VARINT_TOO_LONG if position == _LONG_VARINT else CUT_SHORT


@njit(cache=True, nogil=True, inline="never")
def _skip_headers(payload, position, end, count):  # type: ignore[no-untyped-def]
    """The position after `count` headers, or a negative code."""
    for _ in range(count):
        key_length, position = _read_varint(payload, position, end, 5)
        if position < 0:
            return _varint_failure(position)
        if key_length < 0 or key_length > end - position:
            return CUT_SHORT
        position += key_length
        value_length, position = _read_varint(payload, position, end, 5)
        if position < 0:
            return _varint_failure(position)
        if value_length < -1 or value_length > end - position:
            return CUT_SHORT
        if value_length > 0:
            position += value_length
    return position


@njit(cache=True, nogil=True)
def parse_records(  # type: ignore[no-untyped-def]
    payload,
    last_offset_delta,
    offset_deltas,
    timestamp_deltas,
    key_start,
    key_length,
    value_start,
    value_length,
    headers_start,
    headers_count,
):
    """Fill the arrays (one element per record) from the records of `payload`.

    Returns (code, number of records read, position): code 0 when every element was filled and all of the records were
    well formed. Lengths are -1 for null. `headers_start` is the position of the first header's key length.
    """
    end = payload.size
    position = 0
    previous_delta = -1
    for i in range(offset_deltas.size):
        length, position = _read_varint(payload, position, end, 5)
        if position < 0:
            return _varint_failure(position), i, 0
        if length < 0 or length > end - position:
            return CUT_SHORT, i, position
        record_end = position + length
        if length < 1:
            return RECORD_LENGTH_WRONG, i, position
        position += 1  # record attributes: none are defined
        delta, position = _read_varint(payload, position, record_end, 10)
        if position < 0:
            return _varint_failure(position), i, 0
        timestamp_deltas[i] = delta
        delta, position = _read_varint(payload, position, record_end, 5)
        if position < 0:
            return _varint_failure(position), i, 0
        if delta <= previous_delta or delta > last_offset_delta:
            return OFFSET_WRONG, i, position
        previous_delta = delta
        offset_deltas[i] = delta
        length, position = _read_varint(payload, position, record_end, 5)
        if position < 0:
            return _varint_failure(position), i, 0
        if length < -1 or length > record_end - position:
            return CUT_SHORT, i, position
        key_start[i] = position
        key_length[i] = length
        if length > 0:
            position += length
        length, position = _read_varint(payload, position, record_end, 5)
        if position < 0:
            return _varint_failure(position), i, 0
        if length < -1 or length > record_end - position:
            return CUT_SHORT, i, position
        value_start[i] = position
        value_length[i] = length
        if length > 0:
            position += length
        length, position = _read_varint(payload, position, record_end, 5)
        if position < 0:
            return _varint_failure(position), i, 0
        if length < 0:
            return NEGATIVE_HEADERS, i, position
        headers_start[i] = position
        headers_count[i] = length
        if length > 0:
            position = _skip_headers(payload, position, record_end, length)
            if position < 0:
                return position, i, 0
        if position != record_end:
            return RECORD_LENGTH_WRONG, i, position
    return 0, offset_deltas.size, position


@njit(cache=True, nogil=True)
def check_records(payload, count, steps_max):  # type: ignore[no-untyped-def]
    """Check that the payload begins with `count` well-formed records whose offset deltas are 0, 1, 2 ...

    Return (code, number of records read, position, largest timestamp delta). A record and each of its headers is a
    step; past `steps_max` the code is TOO_MANY_STEPS.
    """
    end = payload.size
    position = 0
    largest = np.int64(-0x8000000000000000)
    for i in range(count):
        length, position = _read_varint(payload, position, end, 5)
        if position < 0:
            return _varint_failure(position), i, 0, largest
        if length < 1:
            return CUT_SHORT if length < 0 else RECORD_LENGTH_WRONG, i, position, largest
        record_end = position + length
        if record_end > end:
            return CUT_SHORT, i, position, largest
        timestamp_delta, position = _read_varint(payload, position + 1, record_end, 10)
        if position < 0:
            return _varint_failure(position), i, 0, largest
        largest = max(largest, timestamp_delta)
        offset_delta, position = _read_varint(payload, position, record_end, 5)
        if position < 0:
            return _varint_failure(position), i, 0, largest
        if offset_delta != i:
            return OFFSET_WRONG, i, position, largest
        for _ in range(2):  # key and value
            length, position = _read_varint(payload, position, record_end, 5)
            if position < 0:
                return _varint_failure(position), i, 0, largest
            if length < -1 or length > record_end - position:
                return CUT_SHORT, i, position, largest
            if length > 0:
                position += length
        headers, position = _read_varint(payload, position, record_end, 5)
        if position < 0:
            return _varint_failure(position), i, 0, largest
        if headers < 0:
            return NEGATIVE_HEADERS, i, position, largest
        steps_max -= 1 + headers
        if steps_max < 0:
            return TOO_MANY_STEPS, i, position, largest
        if headers > 0:
            position = _skip_headers(payload, position, record_end, headers)
            if position < 0:
                return position, i, 0, largest
        if position != record_end:
            return RECORD_LENGTH_WRONG, i, position, largest
    return 0, count, position, largest


@njit(cache=True, nogil=True)
def gather_offsets(length, offsets):  # type: ignore[no-untyped-def]
    """Arrow offsets of the lengths (null counts as empty); returns the total, or -1 when it passes 2^31-1."""
    total = 0
    offsets[0] = 0
    for i in range(length.size):
        if length[i] > 0:
            total += length[i]
            if total > 0x7FFFFFFF:
                return -1
        offsets[i + 1] = total
    return total


@njit(cache=True, nogil=True)
def gather_bytes(payload, start, length, offsets, data):  # type: ignore[no-untyped-def]
    """Copy each piece of the payload to its place. Pieces are checked: returns the index of a bad one, or
    -1.
    """
    size = payload.size
    for i in range(start.size):
        count = length[i]
        if count <= 0:
            continue
        first = start[i]
        if first < 0 or first > size - count:
            return i
        target = offsets[i]
        if count <= 32:
            for k in range(count):
                data[target + k] = payload[first + k]
        else:
            data[target : target + count] = payload[first : first + count]
    return -1


@njit(cache=True, nogil=True, inline="never")
def _zigzag(value):  # type: ignore[no-untyped-def]
    return (np.uint64(value) << np.uint64(1)) ^ np.uint64(value >> np.int64(63))


@njit(cache=True, nogil=True, inline="never")
def _varint_size(value):  # type: ignore[no-untyped-def]
    raw = _zigzag(np.int64(value))
    size = 1
    while raw >= np.uint64(0x80):
        raw >>= np.uint64(7)
        size += 1
    return size


@njit(cache=True, nogil=True, inline="never")
def _write_varint(output, position, value):  # type: ignore[no-untyped-def]
    raw = _zigzag(np.int64(value))
    while raw >= np.uint64(0x80):
        output[position] = np.uint8(raw & np.uint64(0x7F)) | np.uint8(0x80)
        raw >>= np.uint64(7)
        position += 1
    output[position] = np.uint8(raw)
    return position + 1


@njit(cache=True, nogil=True)
def record_sizes(  # type: ignore[no-untyped-def]
    timestamp_deltas, offset_deltas, key_length, value_length, header_offsets, header_count, sizes
):
    """Fill `sizes` with each record's own length (what its first varint says); returns the total with the varints."""
    total = 0
    for i in range(sizes.size):
        size = 1 + _varint_size(timestamp_deltas[i]) + _varint_size(offset_deltas[i])
        size += _varint_size(key_length[i]) + max(key_length[i], 0)
        size += _varint_size(value_length[i]) + max(value_length[i], 0)
        size += _varint_size(header_count[i]) + header_offsets[i + 1] - header_offsets[i]
        sizes[i] = size
        total += size + _varint_size(size)
    return total


@njit(cache=True, nogil=True, inline="never")
def _copy(output, position, data, start, count):  # type: ignore[no-untyped-def]
    if count <= 32:
        for k in range(count):
            output[position + k] = data[start + k]
    else:
        output[position : position + count] = data[start : start + count]
    return position + count


@njit(cache=True, nogil=True)
def write_records(  # type: ignore[no-untyped-def]
    output,
    position,
    sizes,
    timestamp_deltas,
    offset_deltas,
    key_start,
    key_length,
    key_data,
    value_start,
    value_length,
    value_data,
    header_offsets,
    header_count,
    header_data,
):
    """Write all records into `output` from `position`, which has the room `record_sizes` asked for."""
    for i in range(sizes.size):
        position = _write_varint(output, position, sizes[i])
        output[position] = 0
        position += 1
        position = _write_varint(output, position, timestamp_deltas[i])
        position = _write_varint(output, position, offset_deltas[i])
        position = _write_varint(output, position, key_length[i])
        if key_length[i] > 0:
            position = _copy(output, position, key_data, key_start[i], key_length[i])
        position = _write_varint(output, position, value_length[i])
        if value_length[i] > 0:
            position = _copy(output, position, value_data, value_start[i], value_length[i])
        position = _write_varint(output, position, header_count[i])
        count = header_offsets[i + 1] - header_offsets[i]
        if count > 0:
            position = _copy(output, position, header_data, header_offsets[i], count)
    return position


@njit(cache=True, nogil=True)
def select_records(payload, keep, shift, output):  # type: ignore[no-untyped-def]
    """Write the records of a well-formed payload for which `keep` is true, with timestamps moved by `shift`.

    Only a record's length and timestamp delta are encoded again; the rest is copied. `output` has room for the payload
    and 14 bytes per record. Return the number of bytes written.
    """
    end = payload.size
    position = 0
    written = 0
    for i in range(keep.size):
        length, position = _read_varint(payload, position, end, 5)
        record_end = position + length
        if keep[i]:
            attributes = payload[position]
            delta, rest = _read_varint(payload, position + 1, record_end, 10)
            delta += shift
            written = _write_varint(output, written, 1 + _varint_size(delta) + record_end - rest)
            output[written] = attributes
            written = _write_varint(output, written + 1, delta)
            written = _copy(output, written, payload, rest, record_end - rest)
        position = record_end
    return written
