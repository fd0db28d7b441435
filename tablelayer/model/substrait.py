"""Filters on the wire: the little of Substrait that is needed to know what an expression asks.

A filter travels as a Substrait `ExtendedExpression` (pyarrow writes and reads it), which pyarrow can evaluate but
not explain. Here its protobuf is read into a tree of `Node`s, each of which can say what it may be for a batch whose
statistics are known, and most of which can be evaluated. What is not understood becomes `Opaque`: it may be anything,
and pyarrow evaluates the whole expression then.

Null semantics are SQL's: a comparison with null is null, AND, OR and NOT are three-valued. FLOAT and DOUBLE compare
as IEEE 754 says: NaN equals nothing. Messages and field numbers: substrait.io, proto/substrait/algebra.proto and
extended_expression.proto.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from struct import Struct, error
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tablelayer.model.statistics import Bound, ColumnStatistics, factor_of, scalar_of
from tablelayer.model.types import (
    BINARY_KINDS,
    FLOAT_KINDS,
    INTEGER_BITS,
    TEXT_KINDS,
    DataType,
    TypeKind,
)

TRUE, FALSE, NULL = 1, 2, 4
ANY: Final = TRUE | FALSE | NULL
_DEPTH_MAX: Final = 100

Find = Callable[[int], ColumnStatistics | None]
"""The statistics of the column at a position of the filter; None: unknown."""
Arrays = Sequence[pa.Array]


class OpaqueError(Exception):
    """A tree with `Opaque` in it is pyarrow's to evaluate."""


class Node(msgspec.Struct, frozen=True):
    def outcomes(self, find: Find) -> int:
        """What the expression can be for rows of a batch: a sum of TRUE, FALSE, NULL."""
        return ANY

    def evaluate(self, arrays: Arrays) -> pa.Array | pa.Scalar:
        """The value for each row. Raises OpaqueError."""
        raise OpaqueError


class Opaque(Node, frozen=True):
    """Anything else."""


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
    """IN; no null among the values, and no floating point."""

    column: int
    bounds: tuple[Bound, ...]
    values: pa.Array

    def outcomes(self, find: Find) -> int:
        statistics = find(self.column)
        found = [_compared("equal", statistics, bound) for bound in self.bounds]
        false = FALSE if all(each & FALSE for each in found) else 0
        return (reduce(int.__or__, found) & ~FALSE) | false

    def evaluate(self, arrays: Arrays) -> pa.Array:
        array = arrays[self.column]
        found = pc.is_in(array, value_set=self.values)
        return found if not array.null_count else pc.if_else(array.is_valid(), found, None)


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
    """AND (`conjunctive`) or OR of two and more."""

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


_COMPARE: Final = {
    "equal": pc.equal, "not_equal": pc.not_equal,
    "lt": pc.less, "lte": pc.less_equal, "gt": pc.greater, "gte": pc.greater_equal,
}  # fmt: skip
_MIRRORED: Final = {
    "equal": "equal", "not_equal": "not_equal", "lt": "gt", "lte": "gte", "gt": "lt", "gte": "lte"
}  # fmt: skip


def _compared(word: str, statistics: ColumnStatistics | None, value: Bound) -> int:
    """What a comparison with a literal can be."""
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
    if statistics.has_nan:  # which is unequal to everything, and neither less nor greater
        true, false = true or word == "not_equal", false or word != "not_equal"
    return found | (TRUE if true else 0) | (FALSE if false else 0)


# -- reading -----------------------------------------------------------------------------------------------

_Field = tuple[int, "int | memoryview"]
_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")


def _fields(data: memoryview) -> Iterator[_Field]:
    """(number, varint or bytes) of each field of a protobuf message. Raises ValueError."""
    at = 0
    while at < len(data):
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
    """`names` of the schema that the expression is over; `used`: positions in it, None if that is not clear."""

    names: tuple[str, ...]
    root: memoryview
    functions: dict[int, str]


def parse(data: bytes) -> Parsed:
    """The frame of an extended expression that holds one expression. Raises ValueError."""
    functions: dict[int, str] = {}
    names: list[str] = []
    roots: list[memoryview] = []
    for number, value in _fields(memoryview(data)):
        if number == 2:
            for inner, declaration in _fields(_message(value)):
                if inner == 3:
                    parts = dict(_fields(_message(declaration)))
                    name = str(bytes(_message(parts.get(3, memoryview(b"")))), "utf-8")
                    functions[_signed(parts.get(2, 0))] = name.partition(":")[0]
        elif number == 3:
            roots += [_message(each) for inner, each in _fields(_message(value)) if inner == 1]
        elif number == 4:
            names += [
                str(bytes(_message(each)), "utf-8") for inner, each in _fields(_message(value)) if inner == 1
            ]
    if len(roots) != 1:
        raise ValueError(f"{len(roots)} expressions; one is expected")
    return Parsed(tuple(names), roots[0], functions)


class TreeReader:
    """Makes `Node`s of a parsed expression over columns of these types; `used` gathers their positions."""

    def __init__(self, parsed: Parsed, types: Sequence[DataType]) -> None:
        self._functions = parsed.functions
        self._root = parsed.root
        self._types = types
        self.used: set[int] = set()
        self.opaque = False

    def read(self) -> Node:
        """Raises ValueError."""
        try:
            return self._node(self._root, 0)
        except error as cause:
            raise ValueError(str(cause)) from None

    def _unknown(self) -> Opaque:
        self.opaque = True
        return Opaque()

    def _node(self, data: memoryview, depth: int) -> Node:
        if depth > _DEPTH_MAX:
            raise ValueError(f"it is nested deeper than {_DEPTH_MAX}")
        for number, value in _fields(data):
            if number == 1:
                literal = _literal(_message(value), TypeKind.BOOLEAN)
                if literal is not None:
                    return Constant(None if literal.value is None else bool(literal.value))
            elif number == 2:
                column = self._reference(_message(value))
                if self._types[column].kind is TypeKind.BOOLEAN:
                    return Flag(column)
            elif number == 3:
                return self._function(_message(value), depth)
            elif number == 8:
                return self._one_of(_message(value))
            break
        self._touch(data, depth)
        return self._unknown()

    def _touch(self, data: memoryview, depth: int) -> None:
        """Gather the columns of an expression that is not understood; all of them where that is not clear."""
        for number, value in _fields(data):
            if number == 2:
                self._reference(_message(value))
            elif number == 3:
                for inner, argument in _fields(_message(value)):
                    for _, part in _fields(_message(argument)) if inner == 4 else ():
                        if isinstance(part, memoryview) and depth < _DEPTH_MAX:
                            self._touch(part, depth + 1)
            elif number == 11:
                for inner, part in _fields(_message(value)):
                    if inner == 2 and depth < _DEPTH_MAX:
                        self._touch(_message(part), depth + 1)
            elif number != 1:
                self.used.update(range(len(self._types)))

    def _reference(self, data: memoryview) -> int:
        """direct_reference.struct_field.field, without a child."""
        segment = _only(_fields(data), 1)
        field = _only(_fields(segment), 2)
        parts = dict(_fields(field))
        column = _signed(parts.get(1, 0))
        if 2 in parts or not 0 <= column < len(self._types):
            raise ValueError(f"it refers to the column {column} of {len(self._types)}")
        self.used.add(column)
        return column

    def _function(self, data: memoryview, depth: int) -> Node:
        word, arguments, plain = "", list[memoryview](), True
        anchor = 0
        for number, value in _fields(data):
            if number == 1:
                anchor = _signed(value)
            elif number == 4:
                arguments += [_message(each) for inner, each in _fields(_message(value)) if inner == 3]
            elif number == 5:
                options = dict(_fields(_message(value)))
                plain = plain and bytes(_message(options.get(2, memoryview(b"")))) == b"CASE_SENSITIVE"
            elif number == 2:
                plain = False
        word = self._functions.get(anchor, "")
        node: Node | None = None
        if word in ("and", "or") and arguments:
            return Junction(tuple(self._node(each, depth + 1) for each in arguments), word == "and")
        if word == "not" and len(arguments) == 1:
            return Not(self._node(arguments[0], depth + 1))
        if word in _COMPARE and len(arguments) == 2:
            node = self._comparison(word, *arguments)
        elif word in ("is_null", "is_not_null", "is_nan") and len(arguments) == 1:
            column = self._column(arguments[0])
            if column is not None:
                is_float = self._types[column].kind in FLOAT_KINDS
                node = IsNull(column) if word != "is_nan" else IsNan(column) if is_float else None
                node = Not(node) if node is not None and word == "is_not_null" else node
        elif word == "starts_with" and len(arguments) == 2 and plain:
            column, literal = self._column(arguments[0]), self._literal(arguments[1], TypeKind.STRING)
            if column is not None and literal is not None and isinstance(literal.value, bytes):
                node = _prefix(column, literal.value) if self._types[column].kind in TEXT_KINDS else None
        if node is None:
            for each in arguments:
                self._touch(each, depth + 1)
            return self._unknown()
        return node

    def _comparison(self, word: str, left: memoryview, right: memoryview) -> Node | None:
        column, other = self._column(left), right
        if column is None:
            column, other, word = self._column(right), left, _MIRRORED[word]
        if column is None:
            return None
        return self._with_literal(word, column, other)

    def _with_literal(self, word: str, column: int, other: memoryview) -> Node | None:
        data_type = self._types[column]
        literal = self._literal(other, data_type.kind)
        if literal is None:
            return None
        if literal.value is None:
            return Constant(None)
        scalar = _scalar(literal.value, data_type)
        return None if scalar is None else Comparison(word, column, literal.value, scalar)

    def _one_of(self, data: memoryview) -> Node:
        parts = list(_fields(data))
        column = next((self._column(_message(value)) for number, value in parts if number == 1), None)
        options = [_message(value) for number, value in parts if number == 2]
        if column is None or not options:
            self.used.update(range(len(self._types)))
            return self._unknown()
        nodes = [self._with_literal("equal", column, option) for option in options]
        if any(node is None for node in nodes):
            return self._unknown()
        compared = [node for node in nodes if isinstance(node, Comparison)]
        if len(compared) == len(nodes) and self._types[column].kind not in FLOAT_KINDS:
            values = pa.array([node.scalar for node in compared], self._types[column].arrow())
            return OneOf(column, tuple(node.bound for node in compared), values)
        return Junction(tuple(node for node in nodes if node is not None), conjunctive=False)

    def _column(self, data: memoryview) -> int | None:
        for number, value in _fields(data):
            return self._reference(_message(value)) if number == 2 else None
        return None

    def _literal(self, data: memoryview, kind: TypeKind) -> Literal | None:
        for number, value in _fields(data):
            return _literal(_message(value), kind) if number == 1 else None
        return None


def _prefix(column: int, prefix: bytes) -> Node | None:
    try:
        prefix.decode()
    except UnicodeDecodeError:
        return None
    return StartsWith(column, prefix)


def _only(fields: Iterator[_Field], wanted: int) -> memoryview:
    for number, value in fields:
        if number == wanted:
            return _message(value)
    raise ValueError("it refers to something that is not a column")


class Literal(msgspec.Struct, frozen=True):
    """`value` is in the common form of statistics; None is null."""

    value: Bound | None


def _literal(data: memoryview, kind: TypeKind) -> Literal | None:
    """None if it is not of this kind of column."""
    for number, value in _fields(data):
        if number in (50, 51):  # nullable, type variation
            continue
        if number == 29:
            return Literal(None)
        found = _value(number, value, kind)
        return None if found is None else Literal(found)
    return None


_INTEGER_LITERALS: Final = frozenset({2, 3, 5, 7})
_TIME_UNIT: Final = {0: 1_000_000_000, 3: 1_000_000, 6: 1_000, 9: 1}


def _value(number: int, value: int | memoryview, kind: TypeKind) -> Bound | None:
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
        parts = dict(_fields(_message(value)))
        unscaled = int.from_bytes(_message(parts.get(1, memoryview(b""))), "little", signed=True)
        scale = _signed(parts.get(3, 0))
        return unscaled * int(10 ** (38 - scale)) if 0 <= scale <= 38 else None
    if kind is TypeKind.TIME:
        return _signed(value) * 1_000 if number == 17 else None
    tags = {TypeKind.TIMESTAMP: (14, 34), TypeKind.TIMESTAMP_LTZ: (27, 35)}.get(kind)
    if tags is None or number not in tags:
        return None
    if number == tags[0]:
        return _signed(value) * 1_000
    parts = dict(_fields(_message(value)))
    unit = _TIME_UNIT.get(_signed(parts.get(1, 0)))
    return None if unit is None else _signed(parts.get(2, 0)) * unit


def _scalar(bound: Bound, data_type: DataType) -> pa.Scalar | None:
    """The literal in the column's own type; None if it is not a value of it."""
    if isinstance(bound, int) and not isinstance(bound, bool) and bound % factor_of(data_type):
        return None
    try:
        return scalar_of(bound, data_type)
    except (pa.ArrowInvalid, OverflowError, UnicodeDecodeError):
        return None
