"""The values of an IN, read in one pass by compiled code and checked against the type of its column."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.arrays.arrays import (
    binary_array,
    ends_to_offsets,
    fixed_array,
    sealed,
    slot_dtype,
)
from headrace.tablelayer.model.batches.statistics import factor_of
from headrace.tablelayer.model.filters.literals import Options, gather_bytes
from headrace.tablelayer.model.filters.substrait import LiteralKind
from headrace.tablelayer.model.filters.values import LITERALS_OF, TICKS, TIME_UNITS
from headrace.tablelayer.model.types.column_types import (
    BINARY_KINDS,
    FLOAT_KINDS,
    INTEGER_BITS,
    TEXT_KINDS,
    DataType,
    TypeKind,
)

WIDE_VALUES_MAX: Final = 50_000
"""Maximum number of values of an IN over DECIMAL or BINARY(n), whose set is made again for each batch."""
_PRECISION_TIMES: Final = (LiteralKind.PRECISION_TIMESTAMP, LiteralKind.PRECISION_TIMESTAMP_TZ)


def read_in_list(data: memoryview, data_type: DataType) -> tuple[pa.Array, bool]:
    """Return (the values of a `SingularOrList` as `nodes.OneOf` has them, whether null is among them).

    Values beyond the range of the column's type are left out. Raises ValueError for values of another type.
    """
    options = Options.of(data)
    null = options.numbers == LiteralKind.NULL
    has_null = bool(null.any())
    numbers, values, starts, sizes = (
        each[~null] if has_null else each
        for each in (options.numbers, options.values, options.starts, options.sizes)
    )
    kind, arrow = data_type.kind, data_type.arrow()
    if not len(numbers):
        return pa.array([], arrow), has_null
    wide = kind in (TypeKind.DECIMAL, TypeKind.BINARY)
    if wide and len(numbers) > WIDE_VALUES_MAX:
        raise ValueError(
            f"an IN over a column of the type {data_type} has {len(numbers)} values; the maximum is {WIDE_VALUES_MAX}"
        )
    if not np.isin(numbers, LITERALS_OF.get(kind, ())).all():
        raise ValueError(f"the values of an IN must be of the column's type, {data_type}")
    if kind in TEXT_KINDS or kind in BINARY_KINDS:
        return _variable_values(data, starts, sizes, data_type), has_null
    if kind is TypeKind.DECIMAL:
        if (values != data_type.scale).any() or (sizes != 16).any():
            raise ValueError(f"the values of an IN must be of the column's type, {data_type}")
        raw = np.frombuffer(data, np.uint8)[starts[:, None] + np.arange(16)]
        found = fixed_array(np.ascontiguousarray(raw).view(slot_dtype(16)).ravel(), None, arrow)
        return _ascending(found), has_null
    if kind in FLOAT_KINDS:
        singles = numbers == LiteralKind.FP32
        floats = values.view(np.float64).copy()
        floats[singles] = values[singles].astype(np.uint32).view(np.float32)
        floats = floats[~np.isnan(floats)]
        if kind is TypeKind.FLOAT:
            with np.errstate(over="ignore"):
                floats = floats[floats.astype(np.float32) == floats]
        if (floats == 0).any():
            floats = np.concatenate([[-0.0], floats[floats != 0], [0.0]])
        return _ascending(pa.array(floats, arrow)), has_null
    if kind is TypeKind.BOOLEAN:
        return _ascending(pa.array(values != 0)), has_null
    bits = INTEGER_BITS.get(kind, 32 if kind is TypeKind.DATE else 64)
    if kind not in INTEGER_BITS and kind is not TypeKind.DATE:
        values = _in_unit(numbers, values, sizes, factor_of(data_type))
        bits = arrow.bit_width
    limit = 1 << (bits - 1)
    values = np.sort(values[(values >= -limit) & (values < limit)])
    values = values[np.append(True, values[1:] != values[:-1])[: len(values)]]
    return pa.array(values, pa.int64()).cast(f"int{arrow.bit_width}").view(arrow), has_null


def _in_unit(numbers: np.ndarray, values: np.ndarray, sizes: np.ndarray, factor: int) -> np.ndarray:
    """Return times in units of `factor` nanoseconds, without those between two units or beyond the range."""
    given = np.where(numbers == TICKS, 1, 1_000)
    precise = np.isin(numbers, _PRECISION_TIMES)
    for precision, size in TIME_UNITS.items():
        given[precise & (sizes == precision)] = size
    if (precise & ~np.isin(sizes, list(TIME_UNITS))).any():
        raise ValueError("a time of an IN has a precision other than 0, 3, 6 and 9")
    coarser = np.maximum(given // factor, 1)
    finer = np.maximum(factor // given, 1)
    fits = (values % finer == 0) & (np.abs(values) <= np.iinfo(np.int64).max // coarser)
    found: np.ndarray = values[fits] * coarser[fits] // finer[fits]
    return found


def _variable_values(
    data: memoryview, starts: np.ndarray, sizes: np.ndarray, data_type: DataType
) -> pa.Array:
    arrow = data_type.arrow()
    if pa.types.is_fixed_size_binary(arrow):
        starts, sizes = (each[sizes == arrow.byte_width] for each in (starts, sizes))
    offsets = ends_to_offsets(sizes)
    out = np.empty(int(offsets[-1]), np.uint8)
    gather_bytes(sealed(np.frombuffer(data, np.uint8)), starts, sealed(offsets), out)
    found = _ascending(binary_array(offsets, out))
    return found.cast(arrow) if pa.types.is_fixed_size_binary(arrow) else found.view(arrow)


def _ascending(array: pa.Array) -> pa.Array:
    unique = array.unique()
    return unique.take(pc.sort_indices(unique))
