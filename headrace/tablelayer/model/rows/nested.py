"""Arrays of nested values: taken apart, put together, checked and cast, one level at a time.

A level becomes arrays that kernels and Arrow's functions handle well: for a ROW one array per field; for an ARRAY or
a MAP the number of entries per value, and the entries of all values one after the other. Values under a null are not
given out: a field of a null ROW is null, a null ARRAY has no elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.tablelayer.model.arrays.arrays import Mask, bitmap, ends_to_offsets, validity
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.column_types import (
    FLOAT_KINDS,
    FRACTION_KINDS,
    DataType,
    TypeKind,
    is_list,
)

Indices = npt.NDArray[np.int64]
NULL_KEY = "a key of a MAP is null"


def is_nested(arrow_type: pa.DataType) -> bool:
    """Whether arrays of an Arrow type hold rows, lists or maps."""
    return bool(pa.types.is_struct(arrow_type) or pa.types.is_map(arrow_type) or is_list(arrow_type))


def row_fields(array: pa.StructArray) -> list[pa.Array]:
    """Return the fields of n rows, n values each."""
    fields: list[pa.Array] = array.flatten()
    return fields


def entries(array: pa.Array) -> tuple[Indices, list[pa.Array]]:
    """Return (int64[n] numbers of entries, [elements] of lists or [keys, values] of maps).

    `array` is a map or a list of any kind that Arrow has.
    """
    arrow_type = array.type
    if pa.types.is_map(arrow_type):
        pair = pa.struct([arrow_type.key_field, arrow_type.item_field])
        array = array.cast(pa.list_(pair))
    elif not pa.types.is_list(arrow_type):
        array = array.cast(pa.list_(arrow_type.value_field))
    flat = array.flatten() if len(array) else pa.array([], array.type.value_type)
    import pyarrow.compute as pc  # 30 ms, which a server's start does not wait for

    lengths = pc.list_value_length(array)
    if lengths.null_count:
        lengths = lengths.fill_null(0)
    counts = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return counts, row_fields(flat) if pa.types.is_map(arrow_type) else [flat]


def make_row(arrow_type: pa.DataType, count: int, fields: Sequence[pa.Array], valid: Mask | None) -> pa.Array:
    """Return n rows of a struct type from their fields; null where `valid` (bool[n]) is false."""
    return pa.Array.from_buffers(arrow_type, count, [bitmap(valid)], children=list(fields))


def make_entries(
    arrow_type: pa.DataType, counts: Indices, parts: Sequence[pa.Array], valid: Mask | None
) -> pa.Array:
    """Return n lists or maps of type `arrow_type` from the result of `entries`.

    Raises ValueError beyond 2^31 entries, and its subclass pa.ArrowInvalid for a null key, on which Arrow would end
    the process.
    """
    offsets = ends_to_offsets(counts)
    (child,) = parts if len(parts) == 1 else (make_pairs(arrow_type, parts),)
    return pa.Array.from_buffers(
        arrow_type, len(counts), [bitmap(valid), pa.py_buffer(offsets)], children=[child]
    )


def make_pairs(arrow_type: pa.MapType, parts: Sequence[pa.Array]) -> pa.Array:
    """Return the entries of maps from their keys and values. Raises pa.ArrowInvalid for a null key."""
    if parts[0].null_count:
        raise pa.ArrowInvalid(NULL_KEY)
    pair = pa.struct([arrow_type.key_field, arrow_type.item_field])
    return pa.Array.from_buffers(pair, len(parts[0]), [None], children=list(parts))


def owners(counts: Indices) -> Indices:
    """Return the index of the value to which each entry belongs: int64[entries]."""
    return np.repeat(np.arange(len(counts)), counts)


def check_inside(column: Column, values: pa.Array) -> None:
    """Check the rules of a column that its Arrow type does not have; for columns whose type `has_rules`.

    The rules: NOT NULL inside of the column, CHAR(n), the digits of a second, and map keys that are present and
    distinct. Raises RowError for a broken rule, with the position inside the value as in `tags[2].name`.
    """
    found = _first_fault(column.type, values, column.name)
    if found is not None:
        row, place, reason = found
        raise RowError(row, column.name, reason if place == column.name else f"{place}: {reason}")


_Fault = tuple[int, str, str]
"""The row, the position inside of it, and the reason."""


def _first_fault(data_type: DataType, values: pa.Array, place: str) -> _Fault | None:
    if data_type.kind is TypeKind.CHAR and len(values):
        import pyarrow.compute as pc

        long = pc.greater(pc.utf8_length(values), data_type.length).fill_null(False)
        if pc.any(long).as_py():
            row = int(pc.index(long, True).as_py())
            size = len(values[row].as_py())
            return row, place, f"a text of {size} characters does not fit into {data_type}"
    if not data_type.is_nested and len(values):
        step = ticks_per_digit(data_type)
        if step > 1:
            finer = _ticks(values) % step != 0
            if finer.any():
                return int(finer.argmax()), place, f"it has more digits of a second than {data_type} keeps"
    if not data_type.is_nested or not has_rules(data_type):
        return None
    if data_type.kind is TypeKind.ROW:
        present = validity(values)
        for field, inside in zip(data_type.fields, row_fields(values), strict=True):
            where = f"{place}.{field.name}"
            if not field.nullable and inside.null_count:
                missing = ~_mask(inside) if present is None else ~_mask(inside) & present
                if missing.any():
                    return int(missing.argmax()), where, "null, but the field is NOT NULL"
            found = _first_fault(field.type, inside, where)
            if found is not None:
                return found
        return None
    counts, parts = entries(values)
    of = owners(counts)
    starts = np.cumsum(counts) - counts
    faults = []
    for field, inside in zip(data_type.fields, parts, strict=True):
        if not field.nullable and inside.null_count:
            faults.append((int((~_mask(inside)).argmax()), "", f"null, but the {field.name} is NOT NULL"))
        within = _first_fault(field.type, inside, "")
        if within is not None:
            faults.append(within)
    if data_type.kind is TypeKind.MAP and not faults:
        again = repeated_keys(of, parts[0])
        if len(again):
            at = int(again[0])
            return int(of[at]), place, f"the key {parts[0][at].as_py()!r} occurs twice"
    if not faults:
        return None
    at, inside_place, reason = min(faults)
    return int(of[at]), f"{place}[{at - int(starts[of[at]])}]{inside_place}", reason


@cache
def has_rules(data_type: DataType) -> bool:
    """Whether `check_inside` has anything to check in values of a type."""
    return (
        data_type.kind in (TypeKind.CHAR, TypeKind.MAP)
        or ticks_per_digit(data_type) > 1
        or any(not field.nullable or has_rules(field.type) for field in data_type.fields)
    )


def ticks_per_digit(data_type: DataType) -> int:
    """Return the number of ticks of Arrow's unit in the column's last digit; 1 for a type that is not a time.

    It is 100 in a TIMESTAMP(4), which is in microseconds.
    """
    if data_type.kind not in FRACTION_KINDS:
        return 1
    return int(10 ** (-data_type.precision % 3)) if data_type.precision else 1


def _ticks(array: pa.Array) -> Indices:
    """Return int64[n], 0 for null."""
    whole = pa.int32() if array.type.bit_width == 32 else pa.int64()
    found: Indices = array.view(whole).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _mask(array: pa.Array) -> Mask:
    valid = validity(array)
    return np.ones(len(array), np.bool_) if valid is None else valid


def repeated_keys(of: Indices, keys: pa.Array) -> Indices:
    """Return the entries whose key occurs earlier in the same map, ascending. `of`: the map of each entry."""
    if len(keys) < 2:
        return np.zeros(0, np.int64)
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    combined = of * (int(codes.max()) + 1) + codes
    _, first = np.unique(combined, return_index=True)
    if len(first) == len(combined):
        return np.zeros(0, np.int64)
    again = np.ones(len(combined), np.bool_)
    again[first] = False
    return np.flatnonzero(again)


def last_of_each_key(of: Indices, keys: pa.Array) -> Indices | None:
    """Return the entries that stay when the last of equal keys in a map wins; None if all stay."""
    if len(repeated_keys(of, keys)) == 0:
        return None
    backwards = np.arange(len(keys))[::-1]
    earlier = backwards[repeated_keys(of[backwards], keys.take(pa.array(backwards)))]
    stays = np.ones(len(keys), np.bool_)
    stays[earlier] = False
    return np.flatnonzero(stays)


Leaf = Callable[[pa.Array, pa.DataType], pa.Array]


def _safely(array: pa.Array, target: pa.DataType) -> pa.Array:
    return array.cast(target)


def cast(array: pa.Array, target: pa.DataType, leaf: Leaf = _safely) -> pa.Array:
    """Return the values in another Arrow type of the same shape. Fields of rows match by name; `leaf` casts leaves.

    A field that the target does not have is refused; a field that is not given is null. Raises pa.ArrowInvalid, and
    the errors of `leaf`.
    """
    given = array.type
    if given == target:
        return array
    if pa.types.is_null(given):
        return pa.nulls(len(array), target)
    if not is_nested(target):
        return leaf(array, target)
    valid = validity(array)
    if pa.types.is_struct(target) and pa.types.is_struct(given):
        names = [field.name for field in given]
        unknown = [name for name in names if target.get_field_index(name) < 0]
        if unknown or len(set(names)) != len(names):
            raise pa.ArrowInvalid(f"there is no field '{unknown[0]}'" if unknown else "a field occurs twice")
        found = dict(zip(names, row_fields(array), strict=True))
        fields = [
            cast(found[field.name], field.type, leaf)
            if field.name in found
            else pa.nulls(len(array), field.type)
            for field in target
        ]
        return make_row(target, len(array), fields, valid)
    pairs = is_list(given) and _is_pair(given.value_type) and pa.types.is_map(target)
    if (pa.types.is_map(target) and (pa.types.is_map(given) or pairs)) or (
        is_list(target) and (is_list(given) or pa.types.is_map(given))
    ):
        counts, parts = entries(array)
        if pa.types.is_map(target):
            if pairs:
                parts = row_fields(parts[0])
            wanted = [target.key_type, target.item_type]
        else:
            if pa.types.is_map(given):
                parts = [make_pairs(given, parts)]
            wanted = [target.value_type]
        parts = [cast(part, each, leaf) for part, each in zip(parts, wanted, strict=True)]
        return make_entries(target, counts, parts, valid)
    raise pa.ArrowInvalid(f"an Arrow {given} cannot become {target}")


def _is_pair(arrow_type: pa.DataType) -> bool:
    return bool(pa.types.is_struct(arrow_type)) and arrow_type.num_fields == 2


def has_float_keys(data_type: DataType) -> bool:
    """Whether a type contains a MAP with FLOAT or DOUBLE keys."""
    return (data_type.kind is TypeKind.MAP and data_type.fields[0].type.kind in FLOAT_KINDS) or any(
        has_float_keys(field.type) for field in data_type.fields
    )
