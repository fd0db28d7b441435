"""Stored rows: one row of a table as bytes.

    uint16  schema id the row was written under (little endian, as all of it)
    bitmap  one bit per column, set where the value is null
    fixed   one slot per column in order: the value at its Arrow width (booleans a byte, DECIMAL 16 bytes),
            or, for texts, bytes and nested values, a uint32: where the value ends in the variable section
    variable  the texts, bytes and nested values one after the other

A ROW is a row of its fields in the same form, without the schema id. An ARRAY is its elements one after the other,
each a row of one column; a MAP is its entries, each a row of the key and the value. The length of such a row follows
from its layout and the slot of its last variable column. The slot of a null of fixed width is zero. All functions
work on whole batches, level by level: the fixed parts of all rows are one matrix, filled and read column by column;
kernels only move it and the variable values.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numba import njit

from headrace.protocol.errors import DecodeError
from headrace.tablelayer.model.arrays.arrays import (
    Bytes,
    Mask,
    Offsets,
    binary_array,
    ends_to_offsets,
    fixed_array,
    fixed_values,
    sealed,
    slot_dtype,
    validity,
    variable_values,
)
from headrace.tablelayer.model.arrays.memory import copy_bytes
from headrace.tablelayer.model.arrays.widths import width_of
from headrace.tablelayer.model.rows.nested import entries, make_entries, make_row, row_fields
from headrace.tablelayer.model.schema.schema import Schema

_ID_SIZE = 2
_END_DTYPE = np.dtype("<u4")
_NO_ROW = -1


class Layout(msgspec.Struct, frozen=True):
    """The layout of a row: for each column its type, the dtype and position of its slot, whether it is variable, and
    the index of the variable column before it.
    """

    types: tuple[pa.DataType, ...]
    dtypes: tuple[np.dtype[Any], ...]
    positions: tuple[int, ...]
    variable: tuple[bool, ...]
    previous: tuple[int | None, ...]
    id_size: int
    """Bytes of the schema id, which rows inside nested values do not have."""
    size: int
    """Bytes before the variable section."""

    @property
    def total_position(self) -> int:
        """Position of the slot that has the length of a row's variable section; -1 if it has none."""
        return next(
            (at for at, is_one in zip(self.positions[::-1], self.variable[::-1], strict=True) if is_one), -1
        )


@lru_cache(maxsize=1024)
def layout_of(arrow_schema: pa.Schema, id_size: int = _ID_SIZE) -> Layout:
    widths = [width_of(field.type) for field in arrow_schema]
    dtypes = tuple(slot_dtype(width) if width else _END_DTYPE for width in widths)
    position = id_size + (len(widths) + 7) // 8
    positions = []
    for dtype in dtypes:
        positions.append(position)
        position += dtype.itemsize
    variable = tuple(not width for width in widths)
    types = tuple(field.type for field in arrow_schema)
    return Layout(types, dtypes, tuple(positions), variable, _previous_variable(variable), id_size, position)


def encode_rows(batch: pa.RecordBatch, schema: Schema) -> pa.BinaryArray:
    """Return the rows of a batch that has the schema's columns in order. Raises ValueError beyond 2 GiB."""
    if batch.num_rows == 0:
        return pa.array([], pa.binary())
    layout = layout_of(schema.arrow())
    return binary_array(*_encode(batch.columns, layout, batch.num_rows, schema.schema_id))


def _encode(
    columns: Sequence[pa.Array], layout: Layout, count: int, schema_id: int = 0
) -> tuple[Offsets, Bytes]:
    """Return the rows of these columns as int32[n+1] offsets and data. `schema_id` is written if the layout has one."""
    fixed = np.zeros((count, layout.size), np.uint8)
    if layout.id_size:
        fixed[:, 0] = schema_id & 0xFF
        fixed[:, 1] = schema_id >> 8
    ends = np.zeros(count, np.int64)
    variable = []
    for index, column in enumerate(columns):
        valid = validity(column)
        if valid is not None:
            fixed[:, layout.id_size + (index >> 3)] |= (~valid).view(np.uint8) << np.uint8(index & 7)
        slot = _slots(fixed, layout, index)
        if layout.variable[index]:
            offsets, data = _cells(column) if pa.types.is_nested(column.type) else variable_values(column)
            lengths = np.diff(offsets)
            if valid is not None:
                lengths = np.where(valid, lengths, 0)
            ends += lengths
            slot[:] = ends
            variable.append((offsets[:-1], sealed(lengths), data))
        elif valid is None:
            slot[:] = fixed_values(column)
        else:
            slot[valid] = fixed_values(column)[valid]
    if not variable:
        return ends_to_offsets(np.full(count, layout.size, np.int64)), fixed.reshape(-1)
    row_offsets = ends_to_offsets(ends + layout.size)
    out = np.empty(row_offsets[-1], np.uint8)
    cursor = row_offsets[:-1].astype(np.int64)
    _put_fixed(fixed, out, cursor)
    for starts, lengths, data in variable:
        _put_variable(sealed(starts), lengths, data, out, cursor)
    return row_offsets, out


def _cells(column: pa.Array) -> tuple[Offsets, Bytes]:
    """Return nested values as int32[n+1] offsets and data."""
    if pa.types.is_struct(column.type):
        offsets, data = _encode(row_fields(column), _inner_layout(column.type), len(column))
        return sealed(offsets), sealed(data)
    counts, parts = entries(column)
    offsets, data = _encode(parts, _inner_layout(column.type), len(parts[0]))
    return sealed(offsets[ends_to_offsets(counts)]), sealed(data)


def _inner_layout(arrow_type: pa.DataType) -> Layout:
    return layout_of(_inner_schema(arrow_type), 0)


def _inner_schema(arrow_type: pa.DataType) -> pa.Schema:
    """Return the columns of the rows of which a nested value consists."""
    if pa.types.is_struct(arrow_type):
        return pa.schema(list(arrow_type))
    if pa.types.is_map(arrow_type):
        return pa.schema([arrow_type.key_field, arrow_type.item_field])
    return pa.schema([arrow_type.value_field])


def decode_rows(
    values: pa.BinaryArray, schema: Schema, columns: Sequence[int] | None = None
) -> pa.RecordBatch:
    """Return the batch of encoded rows; a null among `values` gives a row of nulls.

    `columns`: ascending positions of the columns to decode; None for all. Raises DecodeError for a row that is
    damaged or was written under another schema.
    """
    arrow_schema = schema.arrow()
    chosen = range(len(arrow_schema)) if columns is None else columns
    offsets, data = variable_values(values)
    layout = layout_of(arrow_schema)
    arrays = _decode(offsets, data, validity(values), arrow_schema, layout, chosen, schema.schema_id)
    return pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([arrow_schema.field(index) for index in chosen])
    )


def _decode(
    offsets: Offsets,
    data: Bytes,
    present: Mask | None,
    arrow_schema: pa.Schema,
    layout: Layout,
    chosen: Sequence[int],
    schema_id: int = 0,
) -> list[pa.Array]:
    """Return the chosen columns of rows; nulls where `present` (bool[n]) is false."""
    count = len(offsets) - 1
    if present is None and len(data) >= count * layout.size and _is_matrix(offsets, layout.size, count):
        fixed = data[offsets[0] : offsets[0] + count * layout.size].reshape(count, layout.size)
    else:
        fixed = np.zeros((count, layout.size), np.uint8)
        everywhere = np.ones(count, np.bool_) if present is None else present
        bad = _take_fixed(offsets, data, sealed(everywhere), fixed)
        if bad != _NO_ROW:
            raise DecodeError(f"a stored row of {offsets[bad + 1] - offsets[bad]} bytes is cut short")
    if layout.id_size:
        _check_schema_id(fixed, present, schema_id)
    null_bytes = fixed[:, layout.id_size : layout.positions[0]]
    any_null = np.bitwise_or.reduce(null_bytes, axis=0) if count else np.zeros(null_bytes.shape[1], np.uint8)
    arrays = []
    for index in chosen:
        valid = _valid(null_bytes, any_null, index, present)
        slots = _slots(fixed, layout, index)
        arrow_type = arrow_schema.field(index).type
        if not layout.variable[index]:
            arrays.append(fixed_array(np.ascontiguousarray(slots), valid, arrow_type))
            continue
        previous = layout.previous[index]
        ends = slots.astype(np.int64)
        begins = (
            np.zeros(count, np.int64)
            if previous is None
            else _slots(fixed, layout, previous).astype(np.int64)
        )
        if count and bool((begins > ends).any()):
            raise DecodeError("a stored row has a value that ends before it begins")
        value_offsets = ends_to_offsets(ends - begins)
        out = np.empty(value_offsets[-1], np.uint8)
        if not _take_variable(offsets, data, layout.size, begins, value_offsets, out):
            raise DecodeError("a stored row has a value that runs past its end")
        if pa.types.is_nested(arrow_type):
            arrays.append(_from_cells(value_offsets, out, valid, arrow_type))
        else:
            arrays.append(binary_array(value_offsets, out, valid, arrow_type))
    return arrays


def _from_cells(offsets: Offsets, data: Bytes, valid: Mask | None, arrow_type: pa.DataType) -> pa.Array:
    """Return the nested values that `_cells` encoded."""
    inner, layout = _inner_schema(arrow_type), _inner_layout(arrow_type)
    every = range(len(inner))
    offsets, data = sealed(offsets), sealed(data)
    if pa.types.is_struct(arrow_type):
        fields = _decode(offsets, data, valid, inner, layout, every)
        return make_row(arrow_type, len(offsets) - 1, fields, valid)
    counts = np.zeros(len(offsets) - 1, np.int64)
    nothing = np.zeros(0, np.int32)
    if not _split_cells(offsets, data, layout.size, layout.total_position, counts, nothing):
        raise DecodeError("a stored list or map has an entry that runs past its end")
    entry_offsets = np.zeros(int(counts.sum()) + 1, np.int32)
    _split_cells(offsets, data, layout.size, layout.total_position, counts, entry_offsets)
    parts = _decode(sealed(entry_offsets), data, None, inner, layout, every)
    return make_entries(arrow_type, counts, parts, valid)


def schema_ids(values: pa.BinaryArray) -> npt.NDArray[np.uint16]:
    """Return the schema id of each encoded row, uint16[n]; undefined where the row is null.

    Raises DecodeError for a row that is too short to have one.
    """
    offsets, data = variable_values(values)
    starts = offsets[:-1].astype(np.int64)
    short = np.diff(offsets) < _ID_SIZE
    if short.any():
        present = validity(values)
        if present is None or bool((short & present).any()):
            raise DecodeError("a stored row is cut short")
        starts = np.where(short, 0, starts)
    if len(data) < _ID_SIZE:
        return np.zeros(len(values), np.uint16)
    ids: npt.NDArray[np.uint16] = data[starts].astype(np.uint16)
    ids |= data[starts + 1].astype(np.uint16) << np.uint16(8)
    return ids


def warm() -> None:
    """Compile the kernels (or load them from the cache)."""
    from headrace.tablelayer.model.types.column_types import BIGINT, STRING, array_of

    schema = Schema.of([("a", BIGINT), ("b", STRING), ("c", array_of(STRING))])
    batch = pa.RecordBatch.from_pydict(
        {"a": [1, 2], "b": ["x", None], "c": [["y"], None]}, schema=schema.arrow()
    )
    decode_rows(encode_rows(batch, schema), schema)


def _slots(fixed: Bytes, layout: Layout, index: int) -> npt.NDArray[Any]:
    """Return the slots of one column as a strided view of the matrix."""
    dtype = layout.dtypes[index]
    if len(fixed) == 0:
        return np.zeros(0, dtype)
    start = layout.positions[index]
    return fixed[:, start : start + dtype.itemsize].view(dtype)[:, 0]


def _previous_variable(variable: Sequence[bool]) -> tuple[int | None, ...]:
    previous: list[int | None] = []
    last: int | None = None
    for index, is_variable in enumerate(variable):
        previous.append(last)
        if is_variable:
            last = index
    return tuple(previous)


def _is_matrix(offsets: Offsets, size: int, count: int) -> bool:
    return bool(offsets[-1] - offsets[0] == size * count) and bool((np.diff(offsets) == size).all())


def _check_schema_id(fixed: Bytes, present: Mask | None, schema_id: int) -> None:
    ids = fixed[:, 0].astype(np.uint16) | (fixed[:, 1].astype(np.uint16) << 8)
    wrong = ids != schema_id
    if present is not None:
        wrong &= present
    if wrong.any():
        raise DecodeError(f"a stored row was written under schema {ids[wrong.argmax()]}, not {schema_id}")


def _valid(null_bytes: Bytes, any_null: Bytes, index: int, present: Mask | None) -> Mask | None:
    if not any_null[index >> 3] & (1 << (index & 7)):
        return present
    valid: Mask = (null_bytes[:, index >> 3] & np.uint8(1 << (index & 7))) == 0
    return valid if present is None else valid & present


@njit(cache=True, nogil=True)
def _put_fixed(fixed: Bytes, out: Bytes, cursor: npt.NDArray[np.int64]) -> None:
    rows, size = fixed.shape
    source, target = fixed.ctypes.data, out.ctypes.data
    for row in range(rows):
        copy_bytes(source + row * size, target + cursor[row], size)
        cursor[row] += size


@njit(cache=True, nogil=True)
def _put_variable(
    starts: Offsets, lengths: npt.NDArray[Any], data: Bytes, out: Bytes, cursor: npt.NDArray[np.int64]
) -> None:
    source, target = data.ctypes.data, out.ctypes.data
    for row in range(len(cursor)):
        length = np.int64(lengths[row])
        copy_bytes(source + np.int64(starts[row]), target + cursor[row], length)
        cursor[row] += length


@njit(cache=True, nogil=True)
def _take_fixed(offsets: Offsets, data: Bytes, present: Mask, fixed: Bytes) -> int:
    """Fill the matrix from the rows that are present. Return the index of a row that is too short, or -1."""
    rows, size = fixed.shape
    source, target = data.ctypes.data, fixed.ctypes.data
    for row in range(rows):
        if present[row]:
            start = np.int64(offsets[row])
            if offsets[row + 1] - start < size:
                return row
            copy_bytes(source + start, target + row * size, size)
    return -1


@njit(cache=True, nogil=True)
def _take_variable(
    offsets: Offsets,
    data: Bytes,
    size: int,
    begins: npt.NDArray[np.int64],
    value_offsets: Offsets,
    out: Bytes,
) -> bool:
    source, target = data.ctypes.data, out.ctypes.data
    for row in range(len(begins)):
        length = np.int64(value_offsets[row + 1] - value_offsets[row])
        start = offsets[row] + size + begins[row]
        if length > 0 and start + length > offsets[row + 1]:
            return False
        copy_bytes(source + start, target + np.int64(value_offsets[row]), length)
    return True


@njit(cache=True, nogil=True)
def _split_cells(
    offsets: Offsets,
    data: Bytes,
    size: int,
    total_position: int,
    counts: npt.NDArray[np.int64],
    entry_offsets: npt.NDArray[np.int32],
) -> bool:
    """Count the entries of each list or map and, if `entry_offsets` has room, note where they begin and end.

    Returns False if an entry runs past the end of its value.
    """
    entry = 0
    keep = len(entry_offsets) > 0
    for row in range(len(counts)):
        at, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        count = 0
        while at < end:
            if keep:
                entry_offsets[entry] = at
            entry += 1
            count += 1
            if at + size > end:
                return False
            if total_position >= 0:
                place = at + total_position
                total = np.int64(data[place]) | (np.int64(data[place + 1]) << 8)
                total |= (np.int64(data[place + 2]) << 16) | (np.int64(data[place + 3]) << 24)
                at += total
            at += size
        if at > end:
            return False
        counts[row] = count
    if keep:
        entry_offsets[entry] = len(data)
    return True
