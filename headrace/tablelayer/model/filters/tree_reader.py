"""The reader of a filter: nodes of a parsed expression over columns of known types.

A function that is not listed here is refused by name, so that the work and memory of a filter follow from its rows.
Bounds, checked while reading: `DEPTH_MAX` (a chain of ANDs or of ORs is one level, however long), `NODES_MAX` (the
values of an IN do not count: they become one sorted set), and `protobuf.FIELDS_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import error
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.tablelayer.model.filters.nodes import (
    COMPARE,
    Call,
    ColumnValue,
    Comparison,
    Constant,
    Flag,
    IsNan,
    IsNull,
    Junction,
    LessThanItself,
    Node,
    Not,
    OneOf,
    StartsWith,
    TextCall,
    Value,
)
from headrace.tablelayer.model.filters.protobuf import message_of
from headrace.tablelayer.model.filters.substrait import (
    ExpressionKind,
    FieldReference,
    FunctionArgument,
    FunctionOption,
    IfClause,
    IfThen,
    Parsed,
    ReferenceSegment,
    ScalarFunction,
    SingularOrListField,
    StructField,
)
from headrace.tablelayer.model.filters.values import Literal, literal_of, scalar_in, scalar_of_literal
from headrace.tablelayer.model.types.column_types import FLOAT_KINDS, TEXT_KINDS, DataType, TypeKind

DEPTH_MAX: Final = 100
"""Maximum depth. A level takes three of the interpreter's thousand frames."""
NODES_MAX: Final = 1_000
"""Maximum number of nodes. Each is a pass over the rows."""
_TESTS: Final = {"is_null": pc.is_null, "is_not_null": pc.is_valid, "is_nan": pc.is_nan}
_ARITHMETIC: Final = {
    "add": (2, pc.add, pc.add_checked), "subtract": (2, pc.subtract, pc.subtract_checked),
    "multiply": (2, pc.multiply, pc.multiply_checked), "divide": (2, pc.divide, pc.divide_checked),
    "negate": (1, pc.negate, pc.negate_checked), "abs": (1, pc.abs, pc.abs_checked),
}  # fmt: skip
"""(Number of arguments, the function that wraps around, the function that fails if the result does not fit.)"""
_TEXT: Final = {"starts_with": pc.starts_with, "ends_with": pc.ends_with, "contains": pc.match_substring}
_MIRRORED: Final = {
    "equal": "equal", "not_equal": "not_equal", "lt": "gt", "lte": "gte", "gt": "lt", "gte": "lte"
}  # fmt: skip
_KINDS: Final = frozenset(ExpressionKind)
_UNBOUNDED: Final = frozenset({pa.string(), pa.binary()})
_UNKNOWN: Final = {
    ExpressionKind.WINDOW_FUNCTION: "a window function",
    ExpressionKind.SWITCH_EXPRESSION: "a switch",
    ExpressionKind.MULTI_OR_LIST: "an IN of several columns",
    ExpressionKind.ENUM: "an enumeration",
    ExpressionKind.CAST: "a cast",
    ExpressionKind.SUBQUERY: "a subquery",
}


class _Function(msgspec.Struct, frozen=True):
    """An encoded call. `options`: the preferred value by name."""

    word: str
    arguments: list[memoryview]
    options: dict[str, str]


class TreeReader:
    """A reader that makes `Node`s of a parsed expression over columns of these types; `used` collects their
    positions.
    """

    def __init__(self, parsed: Parsed, types: Sequence[DataType]) -> None:
        self._functions = parsed.functions
        self._root = parsed.root
        self._walk = parsed.walk
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
        number, value = self._walk.first(data)
        match number:
            case 0:
                raise ValueError("an expression is empty")
            case ExpressionKind.LITERAL:
                literal = literal_of(self._walk, message_of(value), TypeKind.BOOLEAN)
                if literal is None:
                    raise ValueError("a value that is not a BOOLEAN is not a condition")
                return Constant(None if literal.value is None else bool(literal.value))
            case ExpressionKind.SELECTION:
                column = self._reference(message_of(value))
                if self._types[column].kind is not TypeKind.BOOLEAN:
                    raise ValueError(f"a column of the type {self._types[column]} is not a condition")
                return Flag(column)
            case ExpressionKind.SCALAR_FUNCTION:
                return self._function(self._call(message_of(value)), depth)
            case ExpressionKind.SINGULAR_OR_LIST:
                return self._one_of(message_of(value))
            case ExpressionKind.IF_THEN:
                return self._choice(message_of(value), depth)
        unknown = _UNKNOWN.get(ExpressionKind(number)) if number in _KINDS else None
        raise ValueError(f"{unknown or 'a kind of expression'} cannot be in a filter")

    def _operand(self, data: memoryview, depth: int) -> Node:
        """Return an operand: a column, a value, arithmetic, or a condition."""
        number, value = self._walk.first(data)
        if number == ExpressionKind.LITERAL:
            return Value(scalar_of_literal(self._walk, message_of(value)))
        if number == ExpressionKind.SELECTION:
            return ColumnValue(self._reference(message_of(value)))
        return self._node(data, depth)

    def _choice(self, data: memoryview, depth: int) -> Node:
        """Return a CASE: clauses of a condition and a value, and the value of ELSE."""
        choice = self._walk.read(IfThen, data)
        if choice.otherwise is None or not choice.ifs:
            raise ValueError("an if-then-else has no else")
        clauses = list[tuple[Node, Node]]()
        for each in choice.ifs:
            self._count(depth + len(clauses))  # each clause is one level deeper than the one before
            clause = self._walk.read(IfClause, each)
            condition = self._operand(clause.condition, depth + 1)
            clauses.append((condition, self._operand(clause.then, depth + 1)))
        found = self._operand(choice.otherwise, depth + 1)
        for condition, then in reversed(clauses):
            if any(isinstance(each, Value) and each.scalar.type in _UNBOUNDED for each in (then, found)):
                raise ValueError(
                    "a text as a value of an if-then-else cannot be in a filter: each row would have it"
                )
            found = Call(pc.if_else, (condition, then, found))
        return found

    def _reference(self, data: memoryview) -> int:
        """Return the column of a reference to a field of the schema, which must have no child."""
        segment = self._walk.read(FieldReference, data).direct_reference
        named = None if segment is None else self._walk.read(ReferenceSegment, segment).struct_field
        if named is None:
            raise ValueError("it refers to an expression that is not a column")
        field = self._walk.read(StructField, named)
        column = field.field
        if field.child is not None or not 0 <= column < len(self._types):
            raise ValueError(f"it refers to the column {column} of {len(self._types)}")
        self.used.add(column)
        return column

    def _call(self, data: memoryview) -> _Function:
        call = self._walk.read(ScalarFunction, data)
        if call.deprecated_args:
            raise ValueError("it has arguments in a deprecated form")
        word = self._functions.get(call.function_reference)
        if word is None:
            raise ValueError(f"it calls the function {call.function_reference}, which it does not name")
        arguments = list[memoryview]()
        for each in call.arguments:
            argument = self._walk.read(FunctionArgument, each).value
            if argument is None:
                raise ValueError(f"an argument of {word[:100]!r} is not an expression")
            arguments.append(argument)
        options = [self._walk.read(FunctionOption, each) for each in call.options]
        return _Function(word, arguments, {each.name: each.preference for each in options})

    def _function(self, call: _Function, depth: int) -> Node:
        word, arguments = call.word, call.arguments
        if word in ("and", "or") and arguments:
            return Junction(tuple(self._parts(call, depth)), word == "and")
        if word == "not" and len(arguments) == 1:
            return Not(self._node(arguments[0], depth + 1))
        if word in COMPARE and len(arguments) == 2:
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
        known = ", ".join((*COMPARE, *_TESTS, *_TEXT, *_ARITHMETIC))
        raise ValueError(
            f"the function {word[:100]!r} of {len(arguments)} arguments cannot be in a filter; these can: and, or, "
            f"not, {known}"
        )

    def _parts(self, call: _Function, depth: int) -> Iterator[Node]:
        """Return the parts of an AND or OR, with nested ones of the same word merged: a long chain is not deep."""
        left = call.arguments[::-1]
        while left:
            data = left.pop()
            number, value = self._walk.first(data)
            if number != ExpressionKind.SCALAR_FUNCTION:
                yield self._node(data, depth + 1)
                continue
            inner = self._call(message_of(value))
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
        return Call(COMPARE[word], (self._operand(left, depth + 1), self._operand(right, depth + 1)))

    def _with_literal(self, word: str, column: int, other: memoryview) -> Node | None:
        """Return the comparison; None if the other side is not a literal that the column's type can hold."""
        data_type = self._types[column]
        literal = self._literal(other, data_type.kind)
        if literal is None:
            return None
        if literal.value is None:
            return Constant(None)
        scalar = scalar_in(literal.value, data_type)
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
        from headrace.tablelayer.model.filters.in_lists import read_in_list

        number, value = self._walk.first(data)
        column = self._column(message_of(value)) if number == SingularOrListField.VALUE else None
        if column is None:
            raise ValueError("an IN must have a column on its left")
        values, has_null = read_in_list(data, self._types[column])
        return OneOf(column, self._types[column], values, has_null)

    def _column(self, data: memoryview) -> int | None:
        number, value = self._walk.first(data)
        return self._reference(message_of(value)) if number == ExpressionKind.SELECTION else None

    def _literal(self, data: memoryview, kind: TypeKind) -> Literal | None:
        number, value = self._walk.first(data)
        return literal_of(self._walk, message_of(value), kind) if number == ExpressionKind.LITERAL else None
