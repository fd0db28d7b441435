"""Columns folded key by key: the kernels of the merge engines.

They walk over the rows of a batch sorted by key and, within a key, in the order of the writes. `order` has the rows in
that order, `of_row` the group (distinct key) of each row. A group begins with its stored value. Rows are numbered 0 to
n-1; the stored value of group g has number n + g; -1 is null. `before` says whether there is a row before an operation;
`deletes` marks deletes, after which the value is null.

The kernels neither allocate nor fail, except that sums and products stop at the first row that overflows.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import njit

from headrace.tablelayer.model.arrays.arrays import Bytes, Mask, Offsets

Indices = npt.NDArray[np.int64]

FIRST: Final = 0
FIRST_NON_NULL: Final = 1
LAST: Final = 2
LAST_NON_NULL: Final = 3
SUM: Final = 0
PRODUCT: Final = 1


@njit(cache=True, nogil=True)
def existence(
    order: Indices, of_row: Indices, stored: Mask, deletes: Mask, removes: Mask, removes_new: bool, before: Mask,
    after: Mask,
) -> None:  # fmt: skip
    """Set whether there is a row before and after each operation.

    `removes[group]`: a delete removes the stored row instead of keeping its other columns. `removes_new`: the same for
    a row that the batch inserted.
    """
    group, present, made = -1, False, False
    for row in order:
        if of_row[row] != group:
            group = of_row[row]
            present, made = stored[group], False
        before[row] = present
        if not deletes[row]:
            made = made or not present
            present = True
        elif removes_new if made else removes[group]:
            present = False
        after[row] = present


@njit(cache=True, nogil=True)
def newest_version(
    order: Indices, of_row: Indices, stored: Mask, versions: Indices, valid: Mask, winner: Indices
) -> None:
    """Set the number of the current row after each write. A version that is not lower replaces; null is the lowest."""
    count = len(order)
    group, held = -1, -1
    for row in order:
        if of_row[row] != group:
            group = of_row[row]
            held = count + group if stored[group] else -1
        if held < 0 or not valid[held] or (valid[row] and versions[row] >= versions[held]):
            held = row
        winner[row] = held


@njit(cache=True, nogil=True)
def pick(
    order: Indices, of_row: Indices, before: Mask, deletes: Mask, valid: Mask, stored_valid: Mask, mode: int,
    out: Indices,
) -> None:  # fmt: skip
    """Set the number of the current value after each operation, by `mode`."""
    count = len(order)
    group, held = -1, -1
    for row in order:
        if of_row[row] != group:
            group = of_row[row]
            held = count + group if stored_valid[group] else -1
        given = row if valid[row] else -1
        if deletes[row]:
            held = -1
        elif (
            not before[row]
            or mode == LAST
            or (mode == LAST_NON_NULL and given >= 0)
            or (mode == FIRST_NON_NULL and held < 0)
        ):
            held = given
        out[row] = held


@njit(cache=True, nogil=True)
def pick_extreme(
    order: Indices, of_row: Indices, before: Mask, deletes: Mask, valid: Mask, stored_valid: Mask,
    ranks: Indices, sign: int, out: Indices,
) -> None:  # fmt: skip
    """Like `pick`, for the highest (sign 1) or lowest (sign -1) of the n + g `ranks`; of equal values the older one
    stays.
    """
    count = len(order)
    group, held = -1, -1
    for row in order:
        if of_row[row] != group:
            group = of_row[row]
            held = count + group if stored_valid[group] else -1
        if deletes[row]:
            held = -1
        elif not before[row]:
            held = row if valid[row] else -1
        elif valid[row] and (
            held < 0 or (ranks[row] > ranks[held] if sign > 0 else ranks[row] < ranks[held])
        ):
            held = row
        out[row] = held


@njit(cache=True, nogil=True)
def _product_fits(one: int, other: int, lowest: int, highest: int) -> bool:
    if other == 0:
        return True
    if other == -1:
        return one > lowest  # lowest is -highest - 1
    # The smallest and the greatest factor without overflow: quotients rounded inwards.
    least, greatest = (lowest, highest) if other > 0 else (highest, lowest)
    return least // other + (1 if least % other != 0 else 0) <= one <= greatest // other


@njit(cache=True, nogil=True)
def fold_integers(
    order: Indices, of_row: Indices, before: Mask, deletes: Mask, valid: Mask, stored_valid: Mask,
    values: Indices, kind: int, lowest: int, highest: int, out: Indices, out_valid: Mask,
) -> Any:  # fmt: skip
    """Set sums or products of the n + g `values`. Return the first row where one leaves [lowest, highest], or -1."""
    count = len(order)
    group, held, known = -1, 0, False
    for row in order:
        if of_row[row] != group:
            group = of_row[row]
            held, known = values[count + group], stored_valid[group]
        if deletes[row]:
            known = False
        elif not before[row] or (valid[row] and not known):
            held, known = values[row], valid[row]
        elif valid[row]:
            given = values[row]
            # Check first: the compiler assumes that arithmetic does not overflow.
            if kind == SUM:
                if held > highest - given if given > 0 else held < lowest - given:
                    return row
                held = held + given
            else:
                if not _product_fits(held, given, lowest, highest):
                    return row
                held = held * given
        out[row], out_valid[row] = held, known
    return -1


@njit(cache=True, nogil=True)
def fold_floats(
    order: Indices, of_row: Indices, before: Mask, deletes: Mask, valid: Mask, stored_valid: Mask,
    values: npt.NDArray[np.float64], kind: int, single: bool, out: npt.NDArray[np.float64], out_valid: Mask,
) -> None:  # fmt: skip
    """Set sums or products of the n + g `values`; `single` rounds each step as FLOAT does."""
    count = len(order)
    group, held, known = -1, 0.0, False
    for row in order:
        if of_row[row] != group:
            group = of_row[row]
            held, known = values[count + group], stored_valid[group]
        if deletes[row]:
            known = False
        elif not before[row] or (valid[row] and not known):
            held, known = values[row], valid[row]
        elif valid[row]:
            held = held + values[row] if kind == SUM else held * values[row]
            if single:
                held = np.float64(np.float32(held))
        out[row], out_valid[row] = held, known


@njit(cache=True, nogil=True)
def joined_lengths(
    order: Indices, of_row: Indices, before: Mask, deletes: Mask, valid: Mask, stored_valid: Mask,
    lengths: Indices, delimiter: int, out: Indices, out_valid: Mask, source: Indices,
) -> None:  # fmt: skip
    """Set the lengths of joined texts, and the text that each one continues.

    `source` is the number of that text (the joined text of that row, or the stored text), -1 for none.
    """
    count = len(order)
    group, held, length, known = -1, -1, 0, False
    for row in order:
        if of_row[row] != group:
            group = of_row[row]
            held, length, known = count + group, lengths[count + group], stored_valid[group]
        if deletes[row]:
            known = False
            source[row] = -1
        elif not before[row] or not known:
            source[row], length, known = -1, lengths[row], valid[row]
        else:
            source[row] = held
            if valid[row]:
                length += delimiter + lengths[row]
        held = row
        out[row], out_valid[row] = (length if known else 0), known


@njit(cache=True, nogil=True)
def join(
    order: Indices, valid: Mask, source: Indices, starts: Indices, lengths: Indices, data: Bytes, delimiter: Bytes,
    out_offsets: Offsets, out: Bytes,
) -> None:  # fmt: skip
    """Write the texts that `joined_lengths` measured; `starts` and `lengths` are those of the n + g texts in `data`."""
    count = len(order)
    for row in order:
        at, end, held = out_offsets[row], out_offsets[row + 1], source[row]
        if at == end:
            continue
        if held >= 0:
            if held < count:
                start, length = out_offsets[held], out_offsets[held + 1] - out_offsets[held]
                for position in range(length):
                    out[at + position] = out[start + position]
            else:
                start, length = starts[held], lengths[held]
                for position in range(length):
                    out[at + position] = data[start + position]
            at += length
            if not valid[row]:
                continue
            for position in range(len(delimiter)):
                out[at + position] = delimiter[position]
            at += len(delimiter)
        for position in range(lengths[row]):
            out[at + position] = data[starts[row] + position]
