"""A search of small batches for rows whose columns equal given values, without decoding the batches.

A condition such as `key = 5` excludes most batches of a changelog. Small batches have no statistics, and decoding one
takes about 100 µs, so a changelog of 26,000 small batches took seconds. Compiled code finds the columns' buffers in the
metadata of each batch and compares the values where they are, some 100 times as fast. It passes over a batch only if
no row can match. A batch that it cannot judge is given to the caller: one that is compressed, large, malformed, or of a
schema in which a column has another type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from headrace.protocol.errors import DecodeError
from headrace.protocol.records.header import (
    ARROW_HEADER_SIZE,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC_ARROW,
    MAGIC_POSITION,
    RECORD_COUNT_POSITION,
    BatchHeader,
    read_header,
)
from headrace.tablelayer.model.arrays.arrays import sealed
from headrace.tablelayer.model.batches.batch import LENGTHS_POSITION, PREFIX_SIZE
from headrace.tablelayer.model.batches.ipc_metadata import layout_of
from headrace.tablelayer.model.filters.filters import Filter
from headrace.tablelayer.model.rows.versions import SchemaVersions
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.types.column_types import (
    INTEGER_KINDS,
    TEXT_KINDS,
    TIMESTAMP_KINDS,
    TypeKind,
)

if TYPE_CHECKING:
    from headrace.broker.log.region import FileRegion

Int64 = Any

LARGE: Final = 16 << 10
"""Size from which on a batch is given to the caller: most of its bytes need not be read."""
_PIECE_BYTES: Final = 1 << 20
_PLACES: Final = 4096
_TEXT: Final = 0
"""The width of a column of texts."""
_UNKNOWN: Final = -1
_KINDS: Final = (
    INTEGER_KINDS | TEXT_KINDS | TIMESTAMP_KINDS | {TypeKind.DATE, TypeKind.TIME, TypeKind.DECIMAL}
)
"""Kinds whose values are equal if and only if their bytes are equal."""


class KeySearch:
    """The equalities of a filter, for batches of all of a table's schemas. `versions` as for `BatchColumns`."""

    def __init__(self, equal: Sequence[tuple[Column, pa.Scalar]], versions: SchemaVersions) -> None:
        schemas = versions.schemas
        self._ids = sealed(np.array([schema.schema_id for schema in schemas], np.int64))
        self._places = sealed(
            np.array([[_buffer_of(schema, column) for column, _ in equal] for schema in schemas], np.int64)
        )
        values = [_stored(scalar) for _, scalar in equal]
        widths = [_TEXT if column.type.kind in TEXT_KINDS else len(value)
                  for (column, _), value in zip(equal, values, strict=True)]  # fmt: skip
        self._widths = sealed(np.array(widths, np.int64))
        self._ends = sealed(np.cumsum([0, *map(len, values)]).astype(np.int64))
        self._values = sealed(np.frombuffer(b"".join(values) + b"\0", np.uint8))

    @classmethod
    def of(cls, wanted: Filter, versions: SchemaVersions) -> KeySearch | None:
        """Return the search for a filter's rows; None if the filter has no equality that can be searched."""
        equal = [
            (column, scalar)
            for column, scalar in wanted.equalities()
            if column.type.kind in _KINDS and scalar.type == column.type.arrow()
        ]
        return cls(equal, versions) if equal else None

    def batches(self, region: FileRegion) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of each batch of a region that may have such a row. Blocking."""
        position = 0
        places = np.empty(_PLACES, np.int64)
        while position < region.size:
            front = region.read_at(position, ARROW_HEADER_SIZE)
            header = read_header(front)
            if not PREFIX_SIZE <= header.size < LARGE:
                yield position, header
                position += header.size
                continue
            piece = region.read_at(position, _PIECE_BYTES)
            data = sealed(np.frombuffer(piece, np.uint8))
            at, count = 0, _PLACES
            while count == _PLACES:
                count, at = find_batches(
                    data, at, self._ids, self._places, self._widths, self._ends, self._values, places
                )
                for place in places[:count].tolist():
                    yield position + place, read_header(piece[place : place + ARROW_HEADER_SIZE])
            if not at:
                raise DecodeError(f"a batch of {header.size} bytes is cut off after {len(piece)}")
            position += at


def _buffer_of(schema: Schema, wanted: Column) -> int:
    """Return the place of a column's first buffer in batches of a schema; -1 if its values are not stored like this."""
    place = 0
    for column in schema.columns:
        if column.id == wanted.id:
            return place if column.type == wanted.type else _UNKNOWN
        place += layout_of(column.type.arrow())[1]
    return _UNKNOWN


def _stored(scalar: pa.Scalar) -> bytes:
    """Return the bytes of a value in Arrow's buffers."""
    if pa.types.is_string(scalar.type):
        return bytes(scalar.as_buffer())
    array = pa.array([scalar], scalar.type)
    return array.buffers()[1].to_pybytes()[: array.type.bit_width // 8]  # type: ignore[no-any-return]


@njit(cache=True, nogil=True)
def _big(data, at, size):  # type: ignore[no-untyped-def]
    """Return a big-endian integer of the batch's header."""
    value = np.int64(0)
    for k in range(size):
        value = (value << 8) | np.int64(data[at + k])
    return value if size == 8 or value < np.int64(1) << (8 * size - 1) else value - (np.int64(1) << 8 * size)


@njit(cache=True, nogil=True)
def _little(data, at, size):  # type: ignore[no-untyped-def]
    """Return a little-endian integer of Arrow's metadata: without sign, except for one of 8 bytes."""
    value = np.int64(0)
    for k in range(size):
        value |= np.int64(data[at + k]) << (8 * k)
    return value


@njit(cache=True, nogil=True)
def _slot(data, table, index, start, end):  # type: ignore[no-untyped-def]
    """Return the position of a field of a flatbuffers table; 0 if it is left out, -1 if it is malformed."""
    if table < start or table + 4 > end:
        return -1
    vtable = table - np.int64(np.int32(_little(data, table, 4)))
    if vtable < start or vtable + 4 > end:
        return -1
    entry = 4 + 2 * index
    if entry >= _little(data, vtable, 2):
        return 0
    if vtable + entry + 2 > end:
        return -1
    offset = _little(data, vtable + entry, 2)
    if offset == 0:
        return 0
    return table + offset if table + offset + 4 <= end else -1


@njit(cache=True, nogil=True)
def _buffers(data, at, size):  # type: ignore[no-untyped-def]
    """Return (position of the list of buffers, their number, position and end of the body); a number of -1 if the batch
    cannot be judged.
    """
    end = at + size
    changes, statistics = _big(data, at + LENGTHS_POSITION, 4), _big(data, at + LENGTHS_POSITION + 4, 4)
    if changes < 0 or statistics < 0:
        return 0, -1, 0, 0
    start = at + ((PREFIX_SIZE + changes + statistics + 7) & ~7)
    if start + 12 > end or _little(data, start, 4) != 0xFFFFFFFF:
        return 0, -1, 0, 0
    body = start + 8 + _little(data, start + 4, 4)
    start += 8
    if body > end:
        return 0, -1, 0, 0
    message = start + _little(data, start, 4)
    header = _slot(data, message, 2, start, body)
    if header <= 0:
        return 0, -1, 0, 0
    batch = header + _little(data, header, 4)
    buffers, compression = _slot(data, batch, 2, start, body), _slot(data, batch, 3, start, body)
    if buffers <= 0 or compression != 0:
        return 0, -1, 0, 0
    listed = buffers + _little(data, buffers, 4)
    if listed + 4 > body:
        return 0, -1, 0, 0
    count = _little(data, listed, 4)
    if listed + 4 + 16 * count > body:
        return 0, -1, 0, 0
    return listed + 4, count, body, end


@njit(cache=True, nogil=True)
def _range(data, listed, index, body, end):  # type: ignore[no-untyped-def]
    """Return (position, length) of a buffer; a length of -1 if it lies outside of the body."""
    start, length = _little(data, listed + 16 * index, 8), _little(data, listed + 16 * index + 8, 8)
    if start < 0 or length < 0 or start > end - body or length > end - body - start:
        return 0, -1
    return body + start, length


@njit(cache=True, nogil=True)
def _may_match(data, at, size, rows, places, widths, ends, values):  # type: ignore[no-untyped-def]
    """Return whether a batch may have a row that has all values."""
    listed, count, body, end = _buffers(data, at, size)
    if count < 0:
        return True
    alive = np.ones(rows, np.bool_)
    left = rows
    for index in range(len(widths)):
        place, width = places[index], widths[index]
        needed = 2 if width else 3
        if place < 0 or place + needed > count:
            return True
        start, length = _range(data, listed, place + 1, body, end)
        value, value_size = ends[index], ends[index + 1] - ends[index]
        if length < (rows * width if width else 4 * (rows + 1)):
            return True
        text, text_length = np.int64(0), np.int64(0)
        if not width:
            text, text_length = _range(data, listed, place + 2, body, end)
            if text_length < 0:
                return True
        for row in range(rows):
            if not alive[row]:
                continue
            if width:
                found = start + row * width
            else:
                first, last = _little(data, start + 4 * row, 4), _little(data, start + 4 * row + 4, 4)
                if first > last or last > text_length:
                    return True
                found = text + first
                if last - first != value_size:
                    alive[row] = False
                    left -= 1
                    continue
            for k in range(value_size):
                if data[found + k] != values[value + k]:
                    alive[row] = False
                    left -= 1
                    break
        if left == 0:
            return False
    return True


@njit(cache=True, nogil=True)
def find_batches(data, at, ids, places, widths, ends, values, found):  # type: ignore[no-untyped-def]
    """Fill `found` with the positions of batches from `at` on that may match. Return (their number, the position behind
    the last whole batch that was examined).
    """
    count = 0
    while count < len(found) and at + PREFIX_SIZE <= len(data):
        size = _big(data, at + LENGTH_POSITION, 4) + LOG_OVERHEAD
        if size < PREFIX_SIZE or size > len(data) - at:
            break
        rows = _big(data, at + RECORD_COUNT_POSITION, 4)
        may = True
        if data[at + MAGIC_POSITION] == MAGIC_ARROW and rows == 0:
            may = False
        elif data[at + MAGIC_POSITION] == MAGIC_ARROW and 0 < rows <= size and size < LARGE:
            schema_id = _big(data, at + ARROW_HEADER_SIZE, 2)
            for index in range(len(ids)):
                if ids[index] == schema_id:
                    may = _may_match(data, at, size, rows, places[index], widths, ends, values)
        if may:
            found[count] = at
            count += 1
        at += size
    return count, at


def warm() -> None:
    """Compile the kernels, or load them from the cache."""
    numbers: npt.NDArray[np.int64] = sealed(np.zeros(1, np.int64))
    data = sealed(np.zeros(8, np.uint8))
    find_batches(
        data, 0, numbers, sealed(np.zeros((1, 1), np.int64)), numbers, sealed(np.zeros(2, np.int64)), data,
        np.empty(1, np.int64),
    )  # fmt: skip
