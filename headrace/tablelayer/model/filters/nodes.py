"""The tree of a filter: nodes that compute their value for rows, and their possible values for a batch.

The possible values follow from the statistics of the batch. Null semantics are those of pyarrow, which writes the
expressions. A comparison with null is null; AND, OR and NOT are three-valued. IN is false for null, or true if null
is among its values, and never null. SQL's IN is null there, which a condition in SQL expresses with `column <
column`. FLOAT and DOUBLE compare as in IEEE 754: NaN equals nothing. No node gives more than 16 bytes per row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.arrays.arrays import fixed_values, validity, variable_values
from headrace.tablelayer.model.batches.statistics import Bound, ColumnStatistics, factor_of
from headrace.tablelayer.model.types.column_types import FLOAT_KINDS, DataType, TypeKind

TRUE, FALSE, NULL = 1, 2, 4
ANY: Final = TRUE | FALSE | NULL

Find = Callable[[int], ColumnStatistics | None]
"""The statistics of the column at a position of the filter; None: unknown."""
Arrays = Sequence[pa.Array]


class Node(msgspec.Struct, frozen=True):
    def outcomes(self, find: Find) -> int:
        """Return the possible values of the expression for rows of a batch: a sum of TRUE, FALSE, NULL."""
        return ANY

    def evaluate(self, arrays: Arrays) -> pa.Array | pa.Scalar:
        """Return the value for each row. Raises pa.ArrowException."""
        raise AssertionError("abstract")


class ColumnValue(Node, frozen=True):
    column: int

    def evaluate(self, arrays: Arrays) -> pa.Array:
        return arrays[self.column]


class Value(Node, frozen=True):
    scalar: pa.Scalar

    def evaluate(self, arrays: Arrays) -> pa.Scalar:
        return self.scalar


class Call(Node, frozen=True):
    """A function of the values of its parts."""

    function: Callable[..., pa.Array | pa.Scalar]
    parts: tuple[Node, ...]

    def evaluate(self, arrays: Arrays) -> pa.Array | pa.Scalar:
        return self.function(*[part.evaluate(arrays) for part in self.parts])


class TextCall(Node, frozen=True):
    """starts_with, ends_with or contains, with a pattern that is the same for all rows."""

    function: Callable[..., pa.Array | pa.Scalar]
    part: Node
    pattern: str
    ignore_case: bool

    def evaluate(self, arrays: Arrays) -> pa.Array | pa.Scalar:
        return self.function(self.part.evaluate(arrays), pattern=self.pattern, ignore_case=self.ignore_case)


class LessThanItself(Node, frozen=True):
    """Null where the column is null, else false."""

    column: int

    def outcomes(self, find: Find) -> int:
        statistics = find(self.column)
        if statistics is None:
            return FALSE | NULL
        return (NULL if statistics.null_count else 0) | (FALSE if statistics.value_count else 0)

    def evaluate(self, arrays: Arrays) -> pa.Array:
        array = arrays[self.column]
        return pc.if_else(array.is_valid(), False, pa.scalar(None, pa.bool_()))


class Constant(Node, frozen=True):
    value: bool | None

    def outcomes(self, find: Find) -> int:
        return NULL if self.value is None else TRUE if self.value else FALSE

    def evaluate(self, arrays: Arrays) -> pa.Scalar:
        return pa.scalar(self.value, pa.bool_())


class Flag(Node, frozen=True):
    """A BOOLEAN column as a condition."""

    column: int

    def outcomes(self, find: Find) -> int:
        return _compared("equal", find(self.column), 1)

    def evaluate(self, arrays: Arrays) -> pa.Array:
        return arrays[self.column]


class Comparison(Node, frozen=True):
    word: str
    column: int
    bound: Bound
    scalar: pa.Scalar

    def outcomes(self, find: Find) -> int:
        return _compared(self.word, find(self.column), self.bound)

    def evaluate(self, arrays: Arrays) -> pa.Array:
        return COMPARE[self.word](arrays[self.column], self.scalar)


class OneOf(Node, frozen=True):
    """IN. `of_null` is the result for null.

    `values` are distinct, ascending, of the column's type, and neither null nor NaN; a zero is there with both signs.
    """

    column: int
    type: DataType
    values: pa.Array
    of_null: bool

    def outcomes(self, find: Find) -> int:
        statistics = find(self.column)
        if statistics is None:
            return TRUE | FALSE
        found = 0 if not statistics.null_count else TRUE if self.of_null else FALSE
        if not statistics.value_count:
            return found
        low, high = statistics.lowest, statistics.highest
        if low is None or high is None:
            return found | TRUE | FALSE
        factor = factor_of(self.type)
        at = bisect_left(self.values, low, key=lambda scalar: _common(scalar, factor))
        least = None if at == len(self.values) else _common(self.values[at], factor)
        if least is None or least > high:  # type: ignore[operator]
            return found | FALSE
        only = low == high == least and statistics.lowest_exact and statistics.highest_exact
        return found | TRUE | (0 if only and not statistics.has_nan else FALSE)

    def evaluate(self, arrays: Arrays) -> pa.Array:
        array = arrays[self.column]
        found = self._among(array)
        return found if not array.null_count else pc.if_else(array.is_valid(), found, self.of_null)

    def _among(self, array: pa.Array) -> pa.Array:
        """Search the values. For few rows each is looked up, because Arrow makes a hash table of the values for each
        batch.
        """
        kind = self.type.kind
        if len(array) * _LOOK_UP_BELOW >= len(self.values) or kind in (TypeKind.DECIMAL, TypeKind.BINARY):
            return pc.is_in(array, value_set=self.values)
        if pa.types.is_string(array.type) or pa.types.is_binary(array.type):
            from headrace.tablelayer.model.filters.literals import among_sorted

            valid = validity(array)
            found = np.empty(len(array), np.uint8)
            among_sorted(
                *variable_values(self.values),
                *variable_values(array),
                np.ones(len(array), np.bool_) if valid is None else valid,
                found,
            )
            return pa.array(found.view(np.bool_))
        if kind in FLOAT_KINDS:
            values, rows = (each.to_numpy(zero_copy_only=False) for each in (self.values, array))
        else:
            values, rows = (_integers(each) for each in (self.values, array))
        at = np.minimum(np.searchsorted(values, rows), len(values) - 1)
        return pa.array(values[at] == rows)


_LOOK_UP_BELOW: Final = 16
"""Values per row from which on looking each row up is faster than a hash table of the values."""


def _integers(array: pa.Array) -> np.ndarray:
    values = fixed_values(array)
    return values.view(f"<i{values.dtype.itemsize}")


def _common(scalar: pa.Scalar, factor: int) -> Bound:
    """Return a value in the common form of statistics."""
    if isinstance(scalar, pa.Decimal128Scalar):
        sign, digits, exponent = scalar.as_py().as_tuple()
        size = int("".join(map(str, digits))) * int(10 ** (38 + exponent))
        return -size if sign else size
    if isinstance(scalar, (pa.StringScalar, pa.BinaryScalar)):
        return bytes(scalar.as_buffer())
    if isinstance(scalar, (pa.FloatScalar, pa.DoubleScalar)):
        return float(scalar.as_py())
    stored = scalar.value if hasattr(scalar, "value") else scalar.as_py()
    return int(stored) * factor


class IsNull(Node, frozen=True):
    column: int

    def outcomes(self, find: Find) -> int:
        statistics = find(self.column)
        if statistics is None:
            return TRUE | FALSE
        return (TRUE if statistics.null_count else 0) | (FALSE if statistics.value_count else 0)

    def evaluate(self, arrays: Arrays) -> pa.Array:
        return arrays[self.column].is_null()


class IsNan(Node, frozen=True):
    column: int

    def outcomes(self, find: Find) -> int:
        statistics = find(self.column)
        if statistics is None:
            return ANY
        null = NULL if statistics.null_count else 0
        return null | FALSE | (TRUE if statistics.has_nan else 0)

    def evaluate(self, arrays: Arrays) -> pa.Array:
        return pc.is_nan(arrays[self.column])


class StartsWith(Node, frozen=True):
    column: int
    prefix: bytes

    def outcomes(self, find: Find) -> int:
        statistics = find(self.column)
        if statistics is None:
            return ANY
        found = NULL if statistics.null_count else 0
        if not statistics.value_count:
            return found
        low, high, prefix = statistics.lowest, statistics.highest, self.prefix
        if not isinstance(low, bytes) or not isinstance(high, bytes):
            return found | TRUE | FALSE
        if high >= prefix and low[: len(prefix)] <= prefix:
            found |= TRUE
        if not (low.startswith(prefix) and high.startswith(prefix)):
            found |= FALSE
        return found

    def evaluate(self, arrays: Arrays) -> pa.Array:
        return pc.starts_with(arrays[self.column], pattern=self.prefix.decode())


class Not(Node, frozen=True):
    part: Node

    def outcomes(self, find: Find) -> int:
        found = self.part.outcomes(find)
        return (found & NULL) | (TRUE if found & FALSE else 0) | (FALSE if found & TRUE else 0)

    def evaluate(self, arrays: Arrays) -> pa.Array:
        return pc.invert(self.part.evaluate(arrays))


class Junction(Node, frozen=True):
    """AND (`conjunctive`) or OR of two or more conditions."""

    parts: tuple[Node, ...]
    conjunctive: bool

    def outcomes(self, find: Find) -> int:
        found = [part.outcomes(find) for part in self.parts]
        some, every = reduce(int.__or__, found), reduce(int.__and__, found)
        weak, strong = (TRUE, FALSE) if self.conjunctive else (FALSE, TRUE)
        return (every & weak) | (some & strong) | (some & NULL)

    def evaluate(self, arrays: Arrays) -> pa.Array:
        join = pc.and_kleene if self.conjunctive else pc.or_kleene
        return reduce(join, (part.evaluate(arrays) for part in self.parts))


COMPARE: Final = {
    "equal": pc.equal, "not_equal": pc.not_equal,
    "lt": pc.less, "lte": pc.less_equal, "gt": pc.greater, "gte": pc.greater_equal,
}  # fmt: skip
"""Comparisons, by the names that Substrait gives them."""


def _compared(word: str, statistics: ColumnStatistics | None, value: Bound) -> int:
    """Return the possible values of a comparison with a literal."""
    if statistics is None:
        return ANY
    found = NULL if statistics.null_count else 0
    if not statistics.value_count:
        return found
    low, high = statistics.lowest, statistics.highest
    if low is None or high is None or value != value:
        return found | TRUE | FALSE
    match word:
        case "equal" | "not_equal":
            only = low == high == value and statistics.lowest_exact and statistics.highest_exact
            true, false = low <= value <= high, not only  # type: ignore[operator]
            if word == "not_equal":
                true, false = false, true
        case "lt":
            true, false = low < value, high >= value  # type: ignore[operator]
        case "lte":
            true, false = low <= value, high > value  # type: ignore[operator]
        case "gt":
            true, false = high > value, low <= value  # type: ignore[operator]
        case _:
            true, false = high >= value, low < value  # type: ignore[operator]
    if statistics.has_nan:  # NaN is unequal to every value, and neither less nor greater
        true, false = true or word == "not_equal", false or word != "not_equal"
    return found | (TRUE if true else 0) | (FALSE if false else 0)
