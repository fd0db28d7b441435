"""The aggregation merge engine: the new values of one column after a batch of writes (rules R9).

Kernels (`fold_kernels`) process all rows of a column. The exceptions take Python time per row: sums and products of
decimals beyond 18 digits, products of any decimals (both need integers of more than 64 bits), and the union of bitmaps
(`roaring`, a kernel per row).
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.arrays.arrays import (
    Mask,
    binary_array,
    ends_to_offsets,
    fixed_array,
    fixed_values,
    sealed,
    slot_dtype,
    validity,
    variable_values,
)
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.schema.aggregates import (
    DEFAULT_FUNCTION,
    JOINING,
    Aggregate,
    AggregateFunction,
)
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.column_types import FLOAT_KINDS, INTEGER_BITS, TypeKind
from headrace.tablelayer.server.merge import fold_kernels as kernels
from headrace.tablelayer.server.merge.roaring import MalformedBitmapError, union

Indices = npt.NDArray[np.int64]

DEFAULT_AGGREGATE: Final = Aggregate(DEFAULT_FUNCTION)
_PICKS: Final = {
    AggregateFunction.FIRST_VALUE: kernels.FIRST,
    AggregateFunction.FIRST_VALUE_IGNORE_NULLS: kernels.FIRST_NON_NULL,
    AggregateFunction.LAST_VALUE: kernels.LAST,
    AggregateFunction.LAST_VALUE_IGNORE_NULLS: kernels.LAST_NON_NULL,
}
_HIGHEST: Final = frozenset({AggregateFunction.MAX, AggregateFunction.BOOL_OR})
_LOWEST: Final = frozenset({AggregateFunction.MIN, AggregateFunction.BOOL_AND})
_SHORT_DECIMAL_DIGITS: Final = 18  # the sum of two such numbers fits into 64 bits


class Chain(msgspec.Struct, frozen=True):
    """The operations of a batch by key, for the kernels: see `fold_kernels`."""

    order: Indices
    of_row: Indices
    before: Mask
    deletes: Mask

    def arguments(self) -> tuple[Any, ...]:
        return sealed(self.order), sealed(self.of_row), sealed(self.before), sealed(self.deletes)


def fold(column: Column, given: pa.Array, stored: pa.Array, chain: Chain) -> pa.Array:
    """Return the column after each operation. `given` has the operations' n values, `stored` one value for each group.

    Raises RowError for an overflow (R9.7) or a malformed bitmap.
    """
    aggregate = column.aggregate or DEFAULT_AGGREGATE
    function = aggregate.function
    if function in _PICKS:
        return pick(given, stored, chain, _PICKS[function])
    if function in _HIGHEST or function in _LOWEST:
        return _extreme(given, stored, chain, 1 if function in _HIGHEST else -1)
    if function in JOINING:
        return _joined(column, given, stored, chain, aggregate.delimiter.encode())
    if function in (AggregateFunction.RBM32, AggregateFunction.RBM64):
        return _bitmaps(column, given, stored, chain, function is AggregateFunction.RBM64)
    if column.type.kind in FLOAT_KINDS:
        return _floats(column, given, stored, chain, function)
    if column.type.kind in INTEGER_BITS:
        bits = INTEGER_BITS[column.type.kind]
        limits = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        out, valid = _integers(column, given, stored, chain, function, _as_int64, limits)
        return fixed_array(out.astype(f"<i{bits // 8}"), valid, given.type)
    if function is AggregateFunction.SUM and column.type.precision <= _SHORT_DECIMAL_DIGITS:
        most = 10**column.type.precision - 1
        out, valid = _integers(column, given, stored, chain, function, _low_limbs, (-most, most))
        limbs = np.stack([out, out >> 63], axis=1)
        return fixed_array(limbs.reshape(-1).view(slot_dtype(16)), valid, given.type)
    return _long_decimals(column, given, stored, chain, function)


def pick(given: pa.Array, stored: pa.Array, chain: Chain, mode: int) -> pa.Array:
    """Return the first or last value, or non-null value, by `mode` of `fold_kernels`. Any type."""
    chosen = np.empty(len(given), np.int64)
    kernels.pick(*chain.arguments(), _valid(given), _valid(stored), mode, chosen)
    return taken(given, stored, chosen)


def taken(given: pa.Array, stored: pa.Array, chosen: Indices) -> pa.Array:
    """Return values by number: the n given ones, then the stored ones; -1 is null."""
    if len(given) and bool((chosen >= 0).all()) and int(chosen.max()) < len(given):
        return given.take(pa.array(chosen))
    return pa.concat_arrays([given, stored]).take(pa.array(chosen, mask=chosen < 0))


def _valid(array: pa.Array) -> Mask:
    valid = validity(array)
    return sealed(np.ones(len(array), np.bool_) if valid is None else valid)


def _extreme(given: pa.Array, stored: pa.Array, chain: Chain, sign: int) -> pa.Array:
    chosen = np.empty(len(given), np.int64)
    ranks = ranks_of(pa.concat_arrays([given, stored]))
    kernels.pick_extreme(*chain.arguments(), _valid(given), _valid(stored), ranks, sign, chosen)
    return taken(given, stored, chosen)


def ranks_of(values: pa.Array) -> Indices:
    """Return int64[n] that compare as the values do; entries of nulls are undefined.

    Floats are ordered as in Java: -0.0 below 0.0, NaN above all. Texts are ordered by their UTF-8 bytes.
    """
    arrow_type = values.type
    if pa.types.is_floating(arrow_type):
        bits = _as_float64(values).view(np.int64)
        ordered: Indices = bits ^ ((bits >> 63) & np.int64(2**63 - 1))
        return sealed(ordered)
    if pa.types.is_string(arrow_type) or pa.types.is_decimal(arrow_type):
        return sealed(pc.rank(values, tiebreaker="dense").to_numpy().astype(np.int64))
    return sealed(_as_int64(values))


def _as_int64(array: pa.Array) -> Indices:
    """Return integers, booleans, dates or times as int64."""
    slots = fixed_values(array)
    return slots.astype(np.int64) if slots.itemsize == 1 and pa.types.is_boolean(array.type) else slots.view(
        f"<i{slots.itemsize}"
    ).astype(np.int64)  # fmt: skip


def _as_float64(array: pa.Array) -> npt.NDArray[np.float64]:
    slots = fixed_values(array)
    values = slots.view(f"<f{slots.itemsize}").astype(np.float64)
    values[np.isnan(values)] = np.nan  # all with one sign
    return values


def _low_limbs(array: pa.Array) -> Indices:
    """Return unscaled decimals that fit into 64 bits."""
    if len(array) == 0:
        return np.zeros(0, np.int64)
    limbs: Indices = np.frombuffer(array.buffers()[1], np.int64, 2 * len(array), array.offset * 16)
    return limbs[::2].copy()


def _integers(
    column: Column,
    given: pa.Array,
    stored: pa.Array,
    chain: Chain,
    function: AggregateFunction,
    numbers_of: Callable[[pa.Array], Indices],
    limits: tuple[int, int],
) -> tuple[Indices, Mask]:
    values = sealed(np.concatenate([numbers_of(given), numbers_of(stored)]))
    out, valid = np.zeros(len(given), np.int64), np.zeros(len(given), np.bool_)
    kind = kernels.SUM if function is AggregateFunction.SUM else kernels.PRODUCT
    failed = kernels.fold_integers(
        *chain.arguments(), _valid(given), _valid(stored), values, kind, *limits, out, valid
    )
    if failed >= 0:
        raise _overflow(column, given, int(failed), function)
    return out, valid


def _floats(
    column: Column, given: pa.Array, stored: pa.Array, chain: Chain, function: AggregateFunction
) -> pa.Array:
    values = sealed(np.concatenate([_as_float64(given), _as_float64(stored)]))
    out, valid = np.zeros(len(given)), np.zeros(len(given), np.bool_)
    kind = kernels.SUM if function is AggregateFunction.SUM else kernels.PRODUCT
    single = column.type.kind is TypeKind.FLOAT
    kernels.fold_floats(*chain.arguments(), _valid(given), _valid(stored), values, kind, single, out, valid)
    with np.errstate(over="ignore"):
        return fixed_array(out.astype(np.float32) if single else out, valid, given.type)


def _long_decimals(
    column: Column, given: pa.Array, stored: pa.Array, chain: Chain, function: AggregateFunction
) -> pa.Array:
    """Fold row by row, because only Python's integers are wide enough. Products are rounded half up."""
    scale, highest = column.type.scale, 10**column.type.precision - 1
    with decimal.localcontext(decimal.Context(prec=80)):
        unscaled = [
            None if value is None else int(value.scaleb(scale))
            for value in [*given.to_pylist(), *stored.to_pylist()]
        ]
    count = len(given)
    out: list[int | None] = [None] * count

    def combine(row: int, held: int | None) -> int | None:
        new = unscaled[row]
        if held is None or new is None:
            return held if new is None else new
        result = held + new
        if function is AggregateFunction.PRODUCT:
            quotient, rest = divmod(abs(held * new), 10**scale)
            quotient += 2 * rest >= 10**scale
            result = quotient if (held < 0) == (new < 0) else -quotient
        if abs(result) > highest:
            raise _overflow(column, given, row, function)
        return result

    _each(chain, count, unscaled, combine, out)
    with decimal.localcontext(decimal.Context(prec=80)):
        return pa.array(
            [None if value is None else decimal.Decimal(value).scaleb(-scale) for value in out], given.type
        )


def _bitmaps(column: Column, given: pa.Array, stored: pa.Array, chain: Chain, wide: bool) -> pa.Array:
    """Fold row by row, each union in a kernel."""
    values: list[bytes | None] = [*given.to_pylist(), *stored.to_pylist()]
    out: list[bytes | None] = [None] * len(given)

    def combine(row: int, held: bytes | None) -> bytes | None:
        new = values[row]
        if new is None:
            return held
        try:
            merged = union(new, held, wide=wide)
        except MalformedBitmapError as error:
            bits = 64 if wide else 32
            raise RowError(
                row, column.name, f"it is not a serialised Roaring bitmap of {bits} bits: {error}"
            ) from error
        return new if held is None else merged

    _each(chain, len(given), values, combine, out)
    return pa.array(out, given.type)


def _each(
    chain: Chain,
    count: int,
    values: list[Any],
    combine: Callable[[int, Any], Any],
    out: list[Any],
) -> None:
    """Fold `combine(row, value held so far)` over the operations of each key."""
    group, held = -1, None
    of_row, before, deletes = chain.of_row.tolist(), chain.before.tolist(), chain.deletes.tolist()
    for row in chain.order.tolist():
        if of_row[row] != group:
            group = of_row[row]
            held = values[count + group]
        held = None if deletes[row] else combine(row, held if before[row] else None)
        out[row] = held


def _joined(column: Column, given: pa.Array, stored: pa.Array, chain: Chain, delimiter: bytes) -> pa.Array:
    texts = pa.concat_arrays([given, stored])
    offsets, data = variable_values(texts)
    starts, lengths = sealed(offsets[:-1].astype(np.int64)), sealed(np.diff(offsets).astype(np.int64))
    count = len(given)
    out_lengths, source = np.empty(count, np.int64), np.empty(count, np.int64)
    out_valid, valid = np.empty(count, np.bool_), _valid(given)
    arguments = chain.arguments()
    kernels.joined_lengths(
        *arguments, valid, _valid(stored), lengths, len(delimiter), out_lengths, out_valid, source
    )
    try:
        out_offsets = ends_to_offsets(out_lengths)
    except ValueError as error:
        raise RowError(int(chain.order[-1]), column.name, f"the joined texts: {error}") from error
    out = np.empty(out_offsets[-1], np.uint8)
    between = sealed(np.frombuffer(delimiter, np.uint8))
    kernels.join(
        arguments[0], valid, sealed(source), starts, lengths, data, between, sealed(out_offsets), out
    )
    joined = binary_array(out_offsets, out, out_valid, given.type)
    if column.type.kind is TypeKind.CHAR and count:
        sizes = pc.utf8_length(joined)
        longest = pc.max(sizes).as_py() or 0
        if longest > column.type.length:
            row = int(pc.index(sizes, longest).as_py())
            raise RowError(
                row, column.name, f"the joined text of {longest} characters does not fit into {column.type}"
            )
    return joined


def _overflow(column: Column, given: pa.Array, row: int, function: AggregateFunction) -> RowError:
    return RowError(
        row,
        column.name,
        f"with {given[row].as_py()} the {function} does not fit into {column.type} any more; "
        "nothing of the batch was written",
    )


def warm() -> None:
    """Compile the kernels, or load them from the cache."""
    from headrace.tablelayer.model.types import column_types as types

    flags, order = np.zeros(2, np.bool_), np.arange(2)
    chain = Chain(order, np.zeros(2, np.int64), flags, flags)
    for data_type, values, functions in (
        (types.BIGINT, [1, 2, 3], ("sum", "max", "last_value")),
        (types.DOUBLE, [1.0, 2.0, 3.0], ("sum",)),
        (types.STRING, ["a", "b", "c"], ("listagg",)),
    ):
        array = pa.array(values, data_type.arrow())
        for function in functions:
            column = Column(0, "c", data_type, aggregate=Aggregate(AggregateFunction(function)))
            fold(column, array.slice(0, 2), array.slice(2), chain)
    versions, valid, winner = (
        sealed(np.zeros(3, np.int64)),
        sealed(np.ones(3, np.bool_)),
        np.empty(2, np.int64),
    )
    order, of_row, *_ = chain.arguments()
    kernels.newest_version(order, of_row, sealed(flags[:1]), versions, valid, winner)
    kernels.existence(
        order, of_row, sealed(flags[:1]), sealed(flags), sealed(flags[:1]), True, flags.copy(), flags.copy()
    )
