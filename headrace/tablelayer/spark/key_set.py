"""Sets of keys that are queried batch after batch.

Arrow's own `is_in` and `index_in` hash the whole set again in every call: ten milliseconds for 100,000 keys, regardless
of the batch. A set of integers (or dates and times, which are integers) is therefore kept sorted, behind a table of
bits that filters out most other keys: 10 to 20 ns per row. Keys of other types and of several columns use Arrow.
Executors import this module: it does not depend on Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_FACTOR = np.uint64(0x9E3779B97F4A7C15)
"""2^64 divided by the golden ratio: products of adjacent keys differ in their upper bits."""
_BITS_MIN, _BITS_MAX = 10, 24
"""The table of bits (in fact one byte each) has 8 to 16 places per key, and at most 16 MB."""

Integers = npt.NDArray[np.int64]


class KeySet:
    """Keys of a table's rows, to find which rows of a batch have one of them."""

    def __init__(self, rows: pa.Table, key: Sequence[str]) -> None:
        self._key = list(key)
        self._values = self._encoded(rows.select(self._key).combine_chunks())
        integers = _integers(self._values)
        self._integers = None if integers is None else _IntegerSet(integers)

    def contains(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return bool[rows]: whether each row's key is in the set."""
        asked = self._encoded(batch.select(self._key))
        integers = None if self._integers is None else _integers(asked)
        if self._integers is None or integers is None:
            return pc.is_in(asked, value_set=self._values)
        found = np.zeros(len(integers), bool)
        found[self._integers.find(integers)[0]] = True
        return pa.array(found)

    def positions(self, rows: pa.RecordBatch | pa.Table) -> pa.Array:
        """Return int32[rows]: the first position of each row's key among the keys; null if it is not in the set."""
        asked = self._encoded(rows.select(self._key))
        integers = None if self._integers is None else _integers(asked)
        if self._integers is None or integers is None:
            return pc.index_in(asked, value_set=self._values)
        positions = np.full(len(integers), -1, np.int32)
        rows_found, at = self._integers.find(integers)
        positions[rows_found] = at
        return pa.array(positions, mask=positions < 0)

    @staticmethod
    def _encoded(keys: Any) -> Any:
        columns = [_flat(column) for column in keys.columns]
        if len(columns) == 1:
            return comparable(columns[0])
        from headrace.tablelayer.model.rows.keys import (
            encode_keys,  # imports numba: only keys of several columns wait for it
        )

        return encode_keys(columns)


class _IntegerSet:
    """Sorted integers with their original positions."""

    def __init__(self, values: Integers) -> None:
        self._order = np.argsort(values, kind="stable")
        self._sorted = values[self._order]
        bits = min(_BITS_MAX, max(_BITS_MIN, (8 * len(values)).bit_length()))
        self._shift = np.uint64(64 - bits)
        self._known = np.zeros(1 << bits, bool)
        self._known[self._places(values)] = True

    def _places(self, values: Integers) -> npt.NDArray[np.uint64]:
        return (values.view(np.uint64) * _FACTOR) >> self._shift

    def find(self, asked: Integers) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
        """Return the rows of `asked` whose value is in the set, ascending, and the value's first position there."""
        likely = np.flatnonzero(self._known[self._places(asked)])
        values = asked[likely]
        at = np.searchsorted(self._sorted, values)
        at[at == len(self._sorted)] = 0
        same = self._sorted[at] == values if len(self._sorted) else np.zeros(len(values), bool)
        return likely[same], self._order[at[same]]


def _integers(values: pa.Array) -> Integers | None:
    """Return int64[n] in which exactly the equal keys are equal; None for other types and with nulls."""
    kind = values.type
    if values.null_count:
        return None
    if pa.types.is_integer(kind):
        return np.ascontiguousarray(values.to_numpy(zero_copy_only=False).astype(np.int64, copy=False))
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return np.ascontiguousarray(values.view(pa.int32()).to_numpy().astype(np.int64))
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return np.ascontiguousarray(values.view(pa.int64()).to_numpy())
    return None


def comparable(column: Any) -> Any:
    """Return key values whose bits are equal exactly where the keys are equal.

    Zeros of both signs are one key, and all NaN are one, as in `model.rows.keys.encode_keys`.
    """
    if not pa.types.is_floating(column.type):
        return column
    positive = pc.add(column, pa.scalar(0.0, column.type))
    return pc.if_else(pc.is_nan(positive), pa.scalar(np.nan, column.type), positive)


def distinct(keys: pa.Table) -> pa.Table:
    """Return each of the keys once, in the order in which they come first; no columns beside the key's."""
    names = keys.column_names
    table = pa.table({name: comparable(keys.column(name)) for name in names})
    return table.group_by(names, use_threads=False).aggregate([]).combine_chunks()


def _flat(column: Any) -> Any:
    if isinstance(column, pa.ChunkedArray):
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return column
