"""Stored rows as one Arrow message, by two kernel calls for any number of columns.

The first call examines every row and computes the positions of the message's buffers; the second fills them. No array
is made for a column, which would dominate the cost of few rows. Nested columns are left to `stored.decode_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from headrace.protocol.errors import DecodeError
from headrace.tablelayer.model.arrays.arrays import Bytes, sealed, validity, variable_values
from headrace.tablelayer.model.arrays.memory import (
    byte_at,
    copy_bytes,
    int32_at,
    put_byte,
    put_int32,
    put_word,
    word_at,
)
from headrace.tablelayer.model.batches.ipc_metadata import build_metadata
from headrace.tablelayer.model.rows.stored import layout_of
from headrace.tablelayer.model.schema.schema import Schema

Table = npt.NDArray[np.int64]
Indices = npt.NDArray[np.int64]

_BIT, _POSITION, _WIDTH, _BEFORE = 0, 1, 2, 3
_VARIABLE: Final = 0
_BOOLEAN: Final = -1
_FIRST: Final = -1
_SOUND, _CUT_SHORT, _OTHER_SCHEMA, _ENDS_BEFORE, _RUNS_PAST = 0, 1, 2, 3, 4
_KINDS: Final = 8
_NO_BYTES: Final = sealed(np.zeros(1, np.uint8))
_DATA_MAX: Final = (1 << 31) - 1
_KNOWN_MAX: Final = 256
_FEW: Final = 64
"""Maximum number of values for which joining is faster than building an array."""


class _Plan(msgspec.Struct, frozen=True):
    """The layout of a message.

    `columns`, int64[n, 4], has for each column the number of its null bit, the position of its slot, its width (0: a
    text or bytes, -1: a boolean), and the slot of the variable column before it (-1: none).
    """

    size: int
    columns: Table
    buffer_count: int


_known: dict[tuple[int, tuple[int, ...] | None], tuple[Schema, _Plan | None]] = {}
"""Plans by the identity of a schema, which is kept with its plan: hashing a schema takes longer than a few rows."""


def message_of(
    values: Sequence[bytes | None],
    schema: Schema,
    columns: Sequence[int] | None = None,
    order: Indices | None = None,
) -> memoryview | None:
    """Return the message (`batches/ipc.py`) of these columns (ascending positions; None: all) of stored rows.

    A None value becomes a row of nulls. `order` has the index of each row's value; None: in order. Returns None if
    kernels cannot do it: a nested column, or a row of another schema. Raises DecodeError for a damaged row, ValueError
    for 2 GiB of texts in a column.
    """
    if len(values) > _FEW:
        return message_of_arrays([pa.array(values, pa.binary())], schema, columns, order)
    there = [value or b"" for value in values]
    data = np.frombuffer(b"".join(there), np.uint8) if any(there) else _NO_BYTES
    sizes = [-1 if value is None else len(value) for value in values]
    starts, lengths = np.array([[0, *accumulate(map(len, there))][: len(values)], sizes], np.int64)
    return message_at(data.ctypes.data + starts, lengths, schema, columns, order)


def message_of_arrays(
    arrays: Sequence[pa.BinaryArray],
    schema: Schema,
    columns: Sequence[int] | None = None,
    order: Indices | None = None,
) -> memoryview | None:
    """Return the message of the values of arrays, one array after another."""
    addresses, sizes = [], []
    for array in arrays:
        offsets, data = variable_values(array)
        lengths = np.diff(offsets).astype(np.int64)
        valid = validity(array)
        if valid is not None:
            lengths[~valid] = -1
        addresses.append(data.ctypes.data + offsets[:-1].astype(np.int64))
        sizes.append(lengths)
    if len(arrays) == 1:
        return message_at(addresses[0], sizes[0], schema, columns, order)
    return message_at(np.concatenate(addresses), np.concatenate(sizes), schema, columns, order)


def message_at(
    addresses: Indices,
    lengths: Indices,
    schema: Schema,
    columns: Sequence[int] | None = None,
    order: Indices | None = None,
) -> memoryview | None:
    """Return the message of rows at these addresses, in memory that the caller keeps; a length of -1 means no row."""
    plan = _plan_of(schema, columns)
    if plan is None:
        return None
    if order is not None:
        addresses, lengths = addresses[order], lengths[order]
    count, width = len(lengths), len(plan.columns)
    nodes = np.empty((width, 2), np.int64)
    buffers = np.zeros((plan.buffer_count, 2), np.int64)
    found = _measure(addresses, lengths, plan.size, schema.schema_id, plan.columns, nodes, buffers)
    if found < 0:
        kind, row = -found % _KINDS, -found // _KINDS
        if kind == _OTHER_SCHEMA:
            return None
        raise DecodeError(_reason(kind, int(lengths[row])))
    if int(buffers[:, 1].max(initial=0)) > _DATA_MAX:
        raise ValueError(f"{buffers[:, 1].max()} bytes do not fit into one batch; the limit is 2 GiB")
    head = build_metadata(count, nodes, buffers, -1, found)
    out = np.zeros(len(head) + found, np.uint8)
    out[: len(head)] = np.frombuffer(head, np.uint8)
    _fill(addresses, lengths, plan.size, plan.columns, nodes, buffers, out[len(head) :])
    return out.data


def _plan_of(schema: Schema, columns: Sequence[int] | None) -> _Plan | None:
    key = id(schema), None if columns is None else tuple(columns)
    known = _known.get(key)
    if known is not None:
        return known[1]
    plan = _plan(schema.arrow(), columns)
    if len(_known) >= _KNOWN_MAX:
        _known.clear()
    _known[key] = schema, plan
    return plan


def _plan(arrow_schema: pa.Schema, columns: Sequence[int] | None) -> _Plan | None:
    layout = layout_of(arrow_schema)
    chosen = range(len(layout.types)) if columns is None else columns
    if any(pa.types.is_nested(layout.types[index]) for index in chosen):
        return None
    rows = []
    for index in chosen:
        width = layout.dtypes[index].itemsize
        if layout.variable[index]:
            width = _VARIABLE
        elif pa.types.is_boolean(layout.types[index]):
            width = _BOOLEAN
        previous = layout.previous[index]
        before = _FIRST if previous is None else layout.positions[previous]
        rows.append((index, layout.positions[index], width, before))
    table = np.array(rows, np.int64).reshape(-1, 4)
    return _Plan(layout.size, table, sum(3 if layout.variable[index] else 2 for index in chosen))


def _reason(kind: int, length: int) -> str:
    if kind == _CUT_SHORT:
        return f"a stored row of {length} bytes is cut short"
    if kind == _ENDS_BEFORE:
        return "a stored row has a value that ends before it begins"
    return "a stored row has a value that runs past its end"


def is_loaded() -> bool:
    """Return whether the kernels are loaded; otherwise the first call loads or compiles them, which takes a second."""
    return bool(_fill.overloads)


def warm() -> None:
    """Compile the kernels, or load them from the cache."""
    from headrace.tablelayer.model.rows.stored import encode_rows
    from headrace.tablelayer.model.types.column_types import BIGINT, STRING

    schema = Schema.of([("a", BIGINT), ("b", STRING)])
    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "b": ["x", None]}, schema=schema.arrow())
    message_of(encode_rows(batch, schema).to_pylist(), schema)


@njit(cache=True, nogil=True)
def _measure(
    addresses: Indices,
    lengths: Indices,
    size: int,
    schema_id: int,
    columns: Table,
    nodes: Table,
    buffers: Table,
) -> int:
    """Check the rows, and compute `nodes` (values, nulls) and `buffers` (position, length) of their columns.

    Return the size of the body, or -(8 * row + kind) for a bad row.
    """
    count = len(addresses)
    for column in range(len(columns)):
        nodes[column, 0] = count
        nodes[column, 1] = 0
    texts = np.zeros(len(columns), np.int64)
    for row in range(count):
        length = lengths[row]
        if length < 0:
            for column in range(len(columns)):
                nodes[column, 1] += 1
            continue
        at = addresses[row]
        if length < 2:
            return -(_KINDS * row + _CUT_SHORT)
        if np.int64(byte_at(at, 0)) | (np.int64(byte_at(at, 1)) << 8) != schema_id:
            return -(_KINDS * row + _OTHER_SCHEMA)
        if length < size:
            return -(_KINDS * row + _CUT_SHORT)
        for column in range(len(columns)):
            bit = columns[column, _BIT]
            nodes[column, 1] += (np.int64(byte_at(at, 2 + (bit >> 3))) >> (bit & 7)) & 1
            if columns[column, _WIDTH] == _VARIABLE:
                end = _end_at(at + columns[column, _POSITION])
                begin = np.int64(0)
                if columns[column, _BEFORE] != _FIRST:
                    begin = _end_at(at + columns[column, _BEFORE])
                if begin > end:
                    return -(_KINDS * row + _ENDS_BEFORE)
                if end > begin and size + end > length:
                    return -(_KINDS * row + _RUNS_PAST)
                texts[column] += end - begin
    position, buffer = np.int64(0), 0
    for column in range(len(columns)):
        width = columns[column, _WIDTH]
        bits = (count + 7) >> 3
        taken = bits if nodes[column, 1] else np.int64(0)
        buffers[buffer, 0], buffers[buffer, 1] = position, taken
        position += (taken + 7) & ~7
        buffer += 1
        if width == _VARIABLE:
            taken = 4 * (count + 1)
        elif width == _BOOLEAN:
            taken = bits
        else:
            taken = width * count
        buffers[buffer, 0], buffers[buffer, 1] = position, taken
        position += (taken + 7) & ~7
        buffer += 1
        if width == _VARIABLE:
            buffers[buffer, 0], buffers[buffer, 1] = position, texts[column]
            position += (texts[column] + 7) & ~7
            buffer += 1
    return int(position)


@njit(cache=True, nogil=True)
def _fill(
    addresses: Indices,
    lengths: Indices,
    size: int,
    columns: Table,
    nodes: Table,
    buffers: Table,
    out: Bytes,
) -> None:
    """Fill the buffers of a body of zeros from rows that `_measure` has checked."""
    count, body = len(addresses), out.ctypes.data
    buffer = 0
    for column in range(len(columns)):
        bit, place = columns[column, _BIT], columns[column, _POSITION]
        width, before = columns[column, _WIDTH], columns[column, _BEFORE]
        if nodes[column, 1]:
            valid = body + buffers[buffer, 0]
            for row in range(count):
                if lengths[row] >= 0:
                    null = (np.int64(byte_at(addresses[row], 2 + (bit >> 3))) >> (bit & 7)) & 1
                    if not null:
                        target = valid + (row >> 3)
                        put_byte(target, byte_at(target, 0) | (1 << (row & 7)))
        values = body + buffers[buffer + 1, 0]
        if width == _VARIABLE:
            texts = body + buffers[buffer + 2, 0]
            end = np.int64(0)
            for row in range(count):
                if lengths[row] >= 0:
                    at = addresses[row]
                    begin = np.int64(0)
                    if before != _FIRST:
                        begin = _end_at(at + before)
                    length = _end_at(at + place) - begin
                    copy_bytes(at + size + begin, texts + end, length)
                    end += length
                put_int32(values + 4 * (row + 1), end)
            buffer += 3
            continue
        for row in range(count):
            if lengths[row] < 0:
                continue
            at = addresses[row] + place
            if width == 8:
                put_word(values + 8 * row, word_at(at, 0))
            elif width == 4:
                put_int32(values + 4 * row, int32_at(at, 0))
            elif width == _BOOLEAN:
                if byte_at(at, 0):
                    target = values + (row >> 3)
                    put_byte(target, byte_at(target, 0) | (1 << (row & 7)))
            else:
                copy_bytes(at, values + width * row, width)
        buffer += 2


@njit(cache=True, nogil=True)
def _end_at(address: int) -> int:
    return int(int32_at(address, 0)) & 0xFFFFFFFF
