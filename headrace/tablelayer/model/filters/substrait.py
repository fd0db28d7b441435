"""Filters on the wire: the supported part of Substrait, and its evaluation.

A filter travels as a Substrait `ExtendedExpression`, which pyarrow writes. Here its protobuf is read into a tree of
`Node`s. Each node computes its value for rows, and its possible values for a batch whose statistics are known. A
function that is not listed here is refused by name, so that the work and memory of a filter follow from its rows. No
node gives more than 16 bytes per row. TIME, TIMESTAMP and TIMESTAMP_LTZ compare with their own literals, or with a
BIGINT: a number of nanoseconds (`ticks`). Bounds, checked while reading: `DEPTH_MAX` (a chain of ANDs or of ORs is
one level, however long), `NODES_MAX` (the values of an IN do not count: they become one sorted set), and `FIELDS_MAX`
of protobuf that the interpreter reads. Null semantics are those of pyarrow, which writes the expressions. A
comparison with null is null; AND, OR and NOT are three-valued. IN is false for null, or true if null is among its
values, and never null. SQL's IN is null there, which a condition in SQL expresses with `column < column`. FLOAT and
DOUBLE compare as in IEEE 754: NaN equals nothing. Messages and field numbers: substrait.io,
proto/substrait/algebra.proto and extended_expression.proto.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from struct import Struct, error
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.arrays.arrays import (
    fixed_array,
    fixed_values,
    slot_dtype,
    validity,
    variable_values,
)
from headrace.tablelayer.model.batches.statistics import Bound, ColumnStatistics, factor_of, scalar_of
from headrace.tablelayer.model.types.column_types import (
    BINARY_KINDS,
    FLOAT_KINDS,
    INTEGER_BITS,
    TEXT_KINDS,
    DataType,
    TypeKind,
)

TRUE, FALSE, NULL = 1, 2, 4
ANY: Final = TRUE | FALSE | NULL
DEPTH_MAX: Final = 100
"""Maximum depth. A level takes three of the interpreter's thousand frames."""
NODES_MAX: Final = 1_000
"""Maximum number of nodes. Each is a pass over the rows."""
FIELDS_MAX: Final = 50_000
"""Maximum number of protobuf fields outside of an IN's values: some 50 ms of the interpreter."""
WIDE_VALUES_MAX: Final = 50_000
"""Maximum number of values of an IN over DECIMAL or BINARY(n), whose set is made anew for each batch."""

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
        return _COMPARE[self.word](arrays[self.column], self.scalar)


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
        batch."""
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


_TESTS: Final = {"is_null": pc.is_null, "is_not_null": pc.is_valid, "is_nan": pc.is_nan}
_ARITHMETIC: Final = {
    "add": (2, pc.add, pc.add_checked), "subtract": (2, pc.subtract, pc.subtract_checked),
    "multiply": (2, pc.multiply, pc.multiply_checked), "divide": (2, pc.divide, pc.divide_checked),
    "negate": (1, pc.negate, pc.negate_checked), "abs": (1, pc.abs, pc.abs_checked),
}  # fmt: skip
"""(Number of arguments, the function that wraps around, the function that fails if the result does not fit.)"""
_TEXT: Final = {"starts_with": pc.starts_with, "ends_with": pc.ends_with, "contains": pc.match_substring}
_COMPARE: Final = {
    "equal": pc.equal, "not_equal": pc.not_equal,
    "lt": pc.less, "lte": pc.less_equal, "gt": pc.greater, "gte": pc.greater_equal,
}  # fmt: skip
_MIRRORED: Final = {
    "equal": "equal", "not_equal": "not_equal", "lt": "gt", "lte": "gte", "gt": "lt", "gte": "lte"
}  # fmt: skip


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


_Field = tuple[int, "int | memoryview"]
_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")


class Walk:
    """A reader of protobuf fields that limits their number in one filter."""

    __slots__ = ("left",)

    def __init__(self, most: int = FIELDS_MAX) -> None:
        self.left = most

    def fields(self, data: memoryview) -> Iterator[_Field]:
        """Yield (number, varint or bytes) of each field of a protobuf message. Raises ValueError."""
        at = 0
        while at < len(data):
            self.left -= 1
            if self.left < 0:
                raise ValueError(f"it has more than {FIELDS_MAX} parts: put many values into one IN")
            key, at = _varint(data, at)
            number, wire = key >> 3, key & 7
            value: int | memoryview
            if wire == 0:
                value, at = _varint(data, at)
            else:
                size = {1: 8, 5: 4}.get(wire, 0)
                if wire == 2:
                    size, at = _varint(data, at)
                elif not size:
                    raise ValueError(f"a field of the wire type {wire}")
                if at + size > len(data):
                    raise ValueError("a field is cut off")
                value, at = data[at : at + size], at + size
            yield number, value


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
        shift += 7


def _signed(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise ValueError("a number was expected")
    return value - (1 << 64) if value >> 63 else value


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a message was expected")
    return value


class Parsed(msgspec.Struct, frozen=True):
    """An extended expression. `names`: those of the schema of the expression."""

    names: tuple[str, ...]
    root: memoryview
    functions: dict[int, str]
    walk: Walk


def parse(data: bytes) -> Parsed:
    """Read an extended expression that holds one expression. Raises ValueError."""
    functions: dict[int, str] = {}
    names: list[str] = []
    roots: list[memoryview] = []
    walk = Walk()
    fields = walk.fields
    for number, value in fields(memoryview(data)):
        if number == 2:
            for inner, declaration in fields(_message(value)):
                if inner == 3:
                    parts = dict(fields(_message(declaration)))
                    name = str(bytes(_message(parts.get(3, memoryview(b"")))), "utf-8")
                    functions[_signed(parts.get(2, 0))] = name.partition(":")[0]
        elif number == 3:
            roots += [_message(each) for inner, each in fields(_message(value)) if inner == 1]
        elif number == 4:
            names += [
                str(bytes(_message(each)), "utf-8") for inner, each in fields(_message(value)) if inner == 1
            ]
    if len(roots) != 1:
        raise ValueError(f"{len(roots)} expressions; one is expected")
    return Parsed(tuple(names), roots[0], functions, walk)


def compact(data: bytes) -> bytes:
    """Return the same extended expression with each of its function lists named once.

    For every call pyarrow names a list again, and once more for every call around it, which makes 120 MB of a
    thousand comparisons.
    """
    fields, first, renumbered = Walk(len(data)).fields, dict[bytes, int](), dict[int, int]()
    view, head, rest = memoryview(data), bytearray(), bytearray()
    at = 0
    while at < len(view):
        start = at
        key, at = _varint(view, at)
        size = 0
        if key & 7 == 2:
            size, at = _varint(view, at)
        else:
            _, at = _varint(view, at)
        part, at = view[at : at + size], at + size
        if key >> 3 == 1:
            known = dict(fields(part))
            anchor, name = _signed(known.get(1, 0)), bytes(_message(known.get(2, memoryview(b""))))
            if name not in first:
                first[name] = anchor
                head += view[start:at]
            renumbered[anchor] = first[name]
        elif key >> 3 == 2:
            rest += _renumbered(part, renumbered, fields)
        else:
            rest += view[start:at]
    return bytes(head + rest)


def _renumbered(declaration: memoryview, lists: dict[int, int], fields: Any) -> bytes:
    """Return a function's declaration with the new number of its list. Types and variations have the same form."""
    ((kind, named),) = fields(declaration)
    parts = dict(fields(_message(named)))
    name = bytes(_message(parts.get(3, memoryview(b""))))
    inner = b"".join(
        b"%c%s" % (number << 3, _number(value))
        for number, value in ((1, lists.get(_signed(parts.get(1, 0)), 0)), (2, _signed(parts.get(2, 0))))
        if value
    )
    inner += b"\x1a" + _number(len(name)) + name
    outer = b"%c%s" % (kind << 3 | 2, _number(len(inner))) + inner
    return b"\x12" + _number(len(outer)) + outer


def _number(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


class _Function(msgspec.Struct, frozen=True):
    """An encoded call. `options`: the preferred value by name."""

    word: str
    arguments: list[memoryview]
    options: dict[str, str]


class TreeReader:
    """A reader that makes `Node`s of a parsed expression over columns of these types; `used` collects their
    positions."""

    def __init__(self, parsed: Parsed, types: Sequence[DataType]) -> None:
        self._functions = parsed.functions
        self._root = parsed.root
        self._fields = parsed.walk.fields
        self._types = types
        self.used: set[int] = set()
        self.node_count = 0

    def read(self) -> Node:
        """Return the condition. Raises ValueError."""
        try:
            return self._node(self._root, 0)
        except error as cause:
            raise ValueError(str(cause)) from None

    def _count(self, depth: int) -> None:
        self.node_count += 1
        if self.node_count > NODES_MAX:
            raise ValueError(f"it has more than {NODES_MAX} parts: put many values of a column into one IN")
        if depth > DEPTH_MAX:
            raise ValueError(f"it is nested deeper than {DEPTH_MAX}")

    def _node(self, data: memoryview, depth: int) -> Node:
        """Return a condition."""
        self._count(depth)
        for number, value in self._fields(data):
            if number == 1:
                literal = self._literal_of(_message(value), TypeKind.BOOLEAN)
                if literal is None:
                    raise ValueError("a value that is not a BOOLEAN is not a condition")
                return Constant(None if literal.value is None else bool(literal.value))
            if number == 2:
                column = self._reference(_message(value))
                if self._types[column].kind is not TypeKind.BOOLEAN:
                    raise ValueError(f"a column of the type {self._types[column]} is not a condition")
                return Flag(column)
            if number == 3:
                return self._function(self._call(_message(value)), depth)
            if number == 8:
                return self._one_of(_message(value))
            if number == 6:
                return self._choice(_message(value), depth)
            raise ValueError(f"{_UNKNOWN.get(number, 'a kind of expression')} cannot be in a filter")
        raise ValueError("an expression is empty")

    def _operand(self, data: memoryview, depth: int) -> Node:
        """Return an operand: a column, a value, arithmetic, or a condition."""
        for number, value in self._fields(data):
            if number == 1:
                return Value(self._scalar_of(_message(value)))
            if number == 2:
                return ColumnValue(self._reference(_message(value)))
            break
        return self._node(data, depth)

    def _choice(self, data: memoryview, depth: int) -> Node:
        """Return a CASE: clauses of a condition and a value, and the value of ELSE."""
        clauses = list[tuple[Node, Node]]()
        found: Node | None = None
        for number, value in self._fields(data):
            if number == 1:
                self._count(depth + len(clauses))  # each clause is one level deeper than the one before
                parts = dict(self._fields(_message(value)))
                condition, then = (
                    self._operand(_message(parts.get(each, memoryview(b""))), depth + 1) for each in (1, 2)
                )
                clauses.append((condition, then))
            elif number == 2:
                found = self._operand(_message(value), depth + 1)
        if found is None or not clauses:
            raise ValueError("an if-then-else has no else")
        for condition, then in reversed(clauses):
            if any(isinstance(each, Value) and each.scalar.type in _UNBOUNDED for each in (then, found)):
                raise ValueError(
                    "a text as a value of an if-then-else cannot be in a filter: each row would have it"
                )
            found = Call(pc.if_else, (condition, then, found))
        return found

    def _reference(self, data: memoryview) -> int:
        """Return the column of direct_reference.struct_field.field, which must have no child."""
        fields = self._fields
        parts = dict(fields(_only(fields(_only(fields(data), 1)), 2)))
        column = _signed(parts.get(1, 0))
        if 2 in parts or not 0 <= column < len(self._types):
            raise ValueError(f"it refers to the column {column} of {len(self._types)}")
        self.used.add(column)
        return column

    def _call(self, data: memoryview) -> _Function:
        arguments, options = list[memoryview](), dict[str, str]()
        anchor, fields = 0, self._fields
        for number, value in fields(data):
            if number == 1:
                anchor = _signed(value)
            elif number == 4:
                arguments += [_message(each) for inner, each in fields(_message(value)) if inner == 3]
            elif number == 5:
                parts = dict(fields(_message(value)))
                texts = [str(bytes(_message(parts.get(each, memoryview(b"")))), "utf-8") for each in (1, 2)]
                options[texts[0]] = texts[1]
            elif number == 2:
                raise ValueError("it has arguments in a deprecated form")
        word = self._functions.get(anchor)
        if word is None:
            raise ValueError(f"it calls the function {anchor}, which it does not name")
        return _Function(word, arguments, options)

    def _function(self, call: _Function, depth: int) -> Node:
        word, arguments = call.word, call.arguments
        if word in ("and", "or") and arguments:
            return Junction(tuple(self._parts(call, depth)), word == "and")
        if word == "not" and len(arguments) == 1:
            return Not(self._node(arguments[0], depth + 1))
        if word in _COMPARE and len(arguments) == 2:
            return self._comparison(word, arguments[0], arguments[1], depth)
        if word in _TESTS and len(arguments) == 1:
            return self._test(word, arguments[0], depth)
        if word in _TEXT and len(arguments) == 2:
            return self._text(call, depth)
        if word in _ARITHMETIC and len(arguments) == _ARITHMETIC[word][0]:
            _, wrapping, checked = _ARITHMETIC[word]
            overflow = call.options.get("overflow", "SILENT")
            if overflow not in ("SILENT", "ERROR"):
                raise ValueError(f"{word} cannot have the overflow {overflow}")
            function = checked if overflow == "ERROR" else wrapping
            return Call(function, tuple(self._operand(each, depth + 1) for each in arguments))
        known = ", ".join((*_COMPARE, *_TESTS, *_TEXT, *_ARITHMETIC))
        raise ValueError(
            f"the function {word[:100]!r} of {len(arguments)} arguments cannot be in a filter; these can: and, or, "
            f"not, {known}"
        )

    def _parts(self, call: _Function, depth: int) -> Iterator[Node]:
        """Return the parts of an AND or OR, with nested ones of the same word merged: a long chain is not deep."""
        left = call.arguments[::-1]
        while left:
            data = left.pop()
            first = next(self._fields(data), (0, 0))
            if first[0] != 3:
                yield self._node(data, depth + 1)
                continue
            inner = self._call(_message(first[1]))
            self._count(depth)
            if inner.word == call.word:
                left += inner.arguments[::-1]
            else:
                yield self._function(inner, depth + 1)

    def _comparison(self, word: str, left: memoryview, right: memoryview, depth: int) -> Node:
        column, other = self._column(left), right
        if column is None:
            column, other, mirrored = self._column(right), left, _MIRRORED[word]
        else:
            mirrored = word
            if word == "lt" and self._column(right) == column:
                return LessThanItself(column)
        node = None if column is None else self._with_literal(mirrored, column, other)
        if node is not None:
            return node
        return Call(_COMPARE[word], (self._operand(left, depth + 1), self._operand(right, depth + 1)))

    def _with_literal(self, word: str, column: int, other: memoryview) -> Node | None:
        """Return the comparison; None if the other side is not a literal that the column's type can hold."""
        data_type = self._types[column]
        literal = self._literal(other, data_type.kind)
        if literal is None:
            return None
        if literal.value is None:
            return Constant(None)
        scalar = _scalar(literal.value, data_type)
        return None if scalar is None else Comparison(word, column, literal.value, scalar)

    def _test(self, word: str, argument: memoryview, depth: int) -> Node:
        column = self._column(argument)
        if column is None:
            return Call(_TESTS[word], (self._operand(argument, depth + 1),))
        if word == "is_nan":
            if self._types[column].kind in FLOAT_KINDS:
                return IsNan(column)
            return Call(_TESTS[word], (ColumnValue(column),))
        return IsNull(column) if word == "is_null" else Not(IsNull(column))

    def _text(self, call: _Function, depth: int) -> Node:
        case = call.options.get("case_sensitivity", "CASE_SENSITIVE")
        if case not in ("CASE_SENSITIVE", "CASE_INSENSITIVE"):
            raise ValueError(f"{call.word} cannot have the case sensitivity {case}")
        part, pattern = call.arguments
        literal = self._literal(pattern, TypeKind.STRING)
        if literal is None or not isinstance(literal.value, bytes):
            raise ValueError(f"the second argument of {call.word} must be a text")
        column = self._column(part)
        if column is not None and self._types[column].kind in TEXT_KINDS:
            literal.value.decode()
            if call.word == "starts_with" and case == "CASE_SENSITIVE":
                return StartsWith(column, literal.value)
        return TextCall(
            _TEXT[call.word],
            self._operand(part, depth + 1),
            literal.value.decode(),
            case == "CASE_INSENSITIVE",
        )

    def _one_of(self, data: memoryview) -> Node:
        from headrace.tablelayer.model.filters.literals import Options

        number, value = next(self._fields(data), (0, 0))
        column = self._column(_message(value)) if number == 1 else None
        if column is None:
            raise ValueError("an IN must have a column on its left")
        values, has_null = _values(Options.of(data), data, self._types[column])
        return OneOf(column, self._types[column], values, has_null)

    def _column(self, data: memoryview) -> int | None:
        number, value = next(self._fields(data), (0, 0))
        return self._reference(_message(value)) if number == 2 else None

    def _literal(self, data: memoryview, kind: TypeKind) -> Literal | None:
        number, value = next(self._fields(data), (0, 0))
        return self._literal_of(_message(value), kind) if number == 1 else None

    def _literal_of(self, data: memoryview, kind: TypeKind) -> Literal | None:
        """Return the literal; None if it is not of this kind of column."""
        number, value = self._what(data)
        if number == 29:
            return Literal(None)
        found = _value(number, value, kind, self._fields)
        return None if found is None else Literal(found)

    def _what(self, data: memoryview) -> _Field:
        """Return the field of a literal that holds its value."""
        for number, value in self._fields(data):
            if number not in (50, 51):  # nullable, type variation
                return number, value
        raise ValueError("a value is empty")

    def _scalar_of(self, data: memoryview) -> pa.Scalar:
        """Return a literal as a value of its own type."""
        number, value = self._what(data)
        if number == 29:
            return pa.scalar(None)
        if number in _INTEGER_LITERALS:
            return pa.scalar(_signed(value), _INTEGER_LITERALS[number])
        if number == 24:
            parts = dict(self._fields(_message(value)))
            raw, precision, scale = (
                _message(parts.get(1, memoryview(b""))),
                *map(_signed, (parts.get(2, 0), parts.get(3, 0))),
            )
            if len(raw) != 16 or not 1 <= precision <= 38 or not 0 <= scale <= precision:
                raise ValueError("a DECIMAL is malformed")
            buffers = [None, pa.py_buffer(bytes(raw))]
            return pa.Array.from_buffers(pa.decimal128(precision, scale), 1, buffers)[0]
        for kind, arrow in _LITERAL_KINDS.items():
            found = _value(number, value, kind, self._fields)
            if found is None:
                continue
            if kind in (TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_LTZ, TypeKind.TIME):
                assert isinstance(found, int)
                unit, size = ("us", 1_000) if found % 1_000 == 0 else ("ns", 1)
                arrow = (
                    pa.time64(unit)
                    if kind is TypeKind.TIME
                    else pa.timestamp(unit, "UTC" if kind is TypeKind.TIMESTAMP_LTZ else None)
                )
                return pa.scalar(found // size, pa.int64()).cast(arrow)
            if kind is TypeKind.DATE:
                return pa.scalar(found, pa.int32()).cast(arrow)
            if kind is TypeKind.BOOLEAN:
                return pa.scalar(bool(found))
            if isinstance(found, bytes):
                return pa.scalar(found.decode() if kind is TypeKind.STRING else found, arrow)
            return pa.scalar(found, pa.float32() if number == 10 else pa.float64())
        raise ValueError(f"a value of an unsupported kind (Substrait's literal {number})")


_UNKNOWN: Final = {5: "a window function", 7: "a switch", 9: "an IN of several columns", 10: "a map",
                   11: "a cast", 12: "a subquery"}  # fmt: skip
_LITERAL_KINDS: Final = {
    TypeKind.BOOLEAN: pa.bool_(), TypeKind.DOUBLE: pa.float64(), TypeKind.STRING: pa.string(),
    TypeKind.BYTES: pa.binary(), TypeKind.DATE: pa.date32(), TypeKind.TIME: None, TypeKind.TIMESTAMP: None,
    TypeKind.TIMESTAMP_LTZ: None,
}  # fmt: skip


def _values(options: Any, data: memoryview, data_type: DataType) -> tuple[pa.Array, bool]:
    """Return (the values of an IN as `OneOf` has them, whether null is among them).

    Values beyond the range of the column's type are left out. Raises ValueError for values of another type.
    """
    null = options.numbers == 29
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
    if not np.isin(numbers, _LITERALS_OF.get(kind, ())).all():
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
        singles = numbers == 10
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
    given = np.where(numbers == _TICKS, 1, 1_000)
    for precision, size in _TIME_UNIT.items():
        given[(numbers >= 34) & (sizes == precision)] = size
    if ((numbers >= 34) & ~np.isin(sizes, list(_TIME_UNIT))).any():
        raise ValueError("a time of an IN has a precision other than 0, 3, 6 and 9")
    coarser = np.maximum(given // factor, 1)
    finer = np.maximum(factor // given, 1)
    fits = (values % finer == 0) & (np.abs(values) <= np.iinfo(np.int64).max // coarser)
    found: np.ndarray = values[fits] * coarser[fits] // finer[fits]
    return found


def _variable_values(
    data: memoryview, starts: np.ndarray, sizes: np.ndarray, data_type: DataType
) -> pa.Array:
    from headrace.tablelayer.model.arrays.arrays import binary_array, ends_to_offsets, sealed
    from headrace.tablelayer.model.filters.literals import gather_bytes

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


def _only(fields: Iterator[_Field], wanted: int) -> memoryview:
    for number, value in fields:
        if number == wanted:
            return _message(value)
    raise ValueError("it refers to an expression that is not a column")


class Literal(msgspec.Struct, frozen=True):
    """A literal. `value` is in the common form of statistics; None is null."""

    value: Bound | None


_INTEGER_LITERALS: Final = {2: pa.int8(), 3: pa.int16(), 5: pa.int32(), 7: pa.int64()}
_UNBOUNDED: Final = frozenset({pa.string(), pa.binary()})
_TICKS: Final = 7
"""The literal of a BIGINT, which compared with a time is a number of nanoseconds."""
_TIME_UNIT: Final = {0: 1_000_000_000, 3: 1_000_000, 6: 1_000, 9: 1}


_LITERALS_OF: Final = {
    TypeKind.BOOLEAN: (1,), TypeKind.DATE: (16,), TypeKind.TIME: (17, 7), TypeKind.DECIMAL: (24,),
    TypeKind.TIMESTAMP: (14, 34, 7), TypeKind.TIMESTAMP_LTZ: (27, 35, 7),
    **dict.fromkeys(INTEGER_BITS, tuple(_INTEGER_LITERALS)), **dict.fromkeys(FLOAT_KINDS, (10, 11)),
    **dict.fromkeys(TEXT_KINDS, (12, 21)), **dict.fromkeys(BINARY_KINDS, (13, 23)),
}  # fmt: skip


def _value(
    number: int,
    value: int | memoryview,
    kind: TypeKind,
    fields: Callable[[memoryview], Iterator[_Field]],
) -> Bound | None:
    if kind is TypeKind.BOOLEAN:
        return _signed(value) if number == 1 else None
    if kind in INTEGER_BITS:
        return _signed(value) if number in _INTEGER_LITERALS else None
    if kind in FLOAT_KINDS:
        unpack = {10: _FLOAT, 11: _DOUBLE}.get(number)
        return None if unpack is None else float(unpack.unpack(_message(value))[0])
    if kind in TEXT_KINDS:
        return bytes(_message(value)) if number in (12, 21) else None
    if kind in BINARY_KINDS:
        return bytes(_message(value)) if number in (13, 23) else None
    if kind is TypeKind.DATE:
        return _signed(value) if number == 16 else None
    if kind is TypeKind.DECIMAL and number == 24:
        parts = dict(fields(_message(value)))
        unscaled = int.from_bytes(_message(parts.get(1, memoryview(b""))), "little", signed=True)
        scale = _signed(parts.get(3, 0))
        return unscaled * int(10 ** (38 - scale)) if 0 <= scale <= 38 else None
    if number == _TICKS and kind in (TypeKind.TIME, TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_LTZ):
        return _signed(value)
    if kind is TypeKind.TIME:
        return _signed(value) * 1_000 if number == 17 else None
    tags = {TypeKind.TIMESTAMP: (14, 34), TypeKind.TIMESTAMP_LTZ: (27, 35)}.get(kind)
    if tags is None or number not in tags:
        return None
    if number == tags[0]:
        return _signed(value) * 1_000
    parts = dict(fields(_message(value)))
    unit = _TIME_UNIT.get(_signed(parts.get(1, 0)))
    return None if unit is None else _signed(parts.get(2, 0)) * unit


def _scalar(bound: Bound, data_type: DataType) -> pa.Scalar | None:
    """Return the literal in the column's own type; None if the type cannot hold it."""
    if isinstance(bound, int) and not isinstance(bound, bool) and bound % factor_of(data_type):
        return None
    try:
        return scalar_of(bound, data_type)
    except (pa.ArrowInvalid, OverflowError, UnicodeDecodeError):
        return None
