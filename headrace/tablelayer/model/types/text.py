"""Types as text: the grammar of column types in statements and in stored schemas.

    type   := word [ '(' number [ ',' number ] ')' ] [ zone ]
            | ARRAY '<' part '>' | MAP '<' part ',' part '>' | ROW '<' field [ ',' field ]* '>'
    part   := type [ NOT NULL | NULL ]
    field  := name part [ [ COMMENT ] 'text' ]
    zone   := PRECISION | WITH LOCAL TIME ZONE | WITHOUT TIME ZONE

A ROW may have parentheses instead of angle brackets, as in SQL. Only names are case-sensitive; names that are not
plain words are in backticks or double quotes; comments are allowed between words. The parser does not use sqlglot,
which takes a third of a second to load, because stored schemas are read by clients and servers that parse no
statement. The time is proportional to the text, and reading ends when a limit is exceeded: of depth, or of types in a
column.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.types.column_types import (
    ELEMENT,
    KEY,
    MAX_NESTED_FIELDS,
    MAX_NESTING_DEPTH,
    VALUE,
    DataType,
    Field,
    TypeKind,
    check_name,
)

_TOKEN = re.compile(
    r"(?:\s++|--[^\n]*+(?:\n|$)|/\*.*?\*/)*+"
    r"(?:(?P<word>[^\W\d]\w*)|(?P<name>`[^`]*`|\"[^\"]*\")|(?P<text>'(?:[^']|'')*')|(?P<number>[0-9]+)|(?P<sign>\S))",
    re.DOTALL,
)
_SYNONYMS = {
    "BOOL": "BOOLEAN", "INTEGER": "INT", "LONG": "BIGINT", "DOUBLE PRECISION": "DOUBLE", "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL", "TEXT": "STRING", "TIMESTAMP WITHOUT TIME ZONE": "TIMESTAMP",
    "TIMESTAMP WITH LOCAL TIME ZONE": "TIMESTAMP_LTZ", "TIME WITHOUT TIME ZONE": "TIME",
}  # fmt: skip
_REFUSED = {
    "STRUCT": "use ROW<name type, ...>",
    "MULTISET": "use MAP<type, INT>, from each value to its count",
}
_OF_ANY_LENGTH = {
    "VARCHAR": ("STRING", "use STRING, or CHAR(n) to limit the length"),
    "VARBINARY": ("BYTES", "use BYTES, or BINARY(n) for exactly n bytes"),
}
_LENGTH_MAX = 2**31 - 1
"""Flink's length for a type without a limit."""
_CONTINUATIONS = (("PRECISION",), ("WITH", "LOCAL", "TIME", "ZONE"), ("WITHOUT", "TIME", "ZONE"))
_LENGTH_KINDS = frozenset({TypeKind.CHAR, TypeKind.BINARY})
_FRACTION_KINDS = frozenset({TypeKind.TIME, TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_LTZ})


class TypeTextError(Exception):
    """A type that cannot be understood. `start` and `length` are the position of the wrong word in the text."""

    def __init__(self, reason: str, start: int, length: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.start = start
        self.length = length


def parse_type(text: str) -> DataType:
    """Return the type written in DDL, e.g. `DECIMAL(15, 2)` or `ARRAY<INT NOT NULL>`.

    Raises TableError(INVALID_TABLE) that names the word that is unknown or not allowed.
    """
    try:
        data_type, end, _ = read_type_at(text, 0)
        rest = _TOKEN.match(text, end)
        if rest is not None:
            raise TypeTextError(f"'{text.strip()}' is not a type", rest.start(), 1)
    except TypeTextError as error:
        raise TableError(TableErrorCode.INVALID_TABLE, error.reason) from None
    return data_type


class LostLength(NamedTuple):
    """A type with a length, as it is written, that was read as a kind without one."""

    written: str
    kind: str

    def __str__(self) -> str:
        return self.written


def read_type_at(
    text: str, position: int, *, any_length: bool = False
) -> tuple[DataType, int, list[LostLength]]:
    """Return the type at a position, and the position of its end. Raises TypeTextError.

    With `any_length`, VARCHAR(n) and VARBINARY(n) lose their lengths, and are returned as they are written.
    """
    reader = _Reader(text, position, any_length=any_length)
    data_type = reader.type(1)
    return data_type, reader.position, reader.lost


class _Reader:
    """A reader that goes over a text once; `position` is behind the last token read."""

    def __init__(self, text: str, position: int, *, any_length: bool = False) -> None:
        self.text = text
        self.any_length = any_length
        self.lost: list[LostLength] = []
        self.position = position
        self.count = 0
        """Number of types inside of the type being read."""
        self._next: re.Match[str] | None = None
        self._next_at = -1

    def peek(self) -> re.Match[str] | None:
        if self._next_at != self.position:
            self._next, self._next_at = _TOKEN.match(self.text, self.position), self.position
        return self._next

    def at(self, *words: str) -> int:
        """Return the position after these words if they come next, else -1."""
        match = self.peek()
        for index, word in enumerate(words):
            if index and match is not None:
                match = _TOKEN.match(self.text, match.end())
            if match is None or (match["word"] or "").upper() != word:
                return -1
        return self.position if match is None else match.end()

    def accept(self, *words: str) -> bool:
        end = self.at(*words)
        self.position = end if end >= 0 else self.position
        return end >= 0

    def accept_sign(self, sign: str) -> bool:
        match = self.peek()
        if match is None or match["sign"] != sign:
            return False
        self.position = match.end()
        return True

    def error(self, reason: str, match: re.Match[str] | None) -> TypeTextError:
        if match is None or match.lastgroup is None:
            return TypeTextError(reason, len(self.text.rstrip()), 0)
        start, end = match.span(match.lastgroup)
        return TypeTextError(reason, start, end - start)

    def expected(self, what: str) -> TypeTextError:
        match = self.peek()
        found = "but the text ends here" if match is None else f"found {match[match.lastgroup or 0]}"
        return self.error(f"expected {what}, {found}", match)

    def type(self, depth: int) -> DataType:
        match = self.peek()
        if match is None or match["word"] is None:
            if depth > 1:
                raise self.expected("a type, such as BIGINT or DECIMAL(15, 2)")
            raise self.error(f"'{self.text[self.position :].strip()}' is not a type", match)
        if depth > MAX_NESTING_DEPTH:
            raise self.error(f"types can be nested at most {MAX_NESTING_DEPTH} levels deep", match)
        self.count += depth > 1
        if self.count > MAX_NESTED_FIELDS:
            raise self.error(f"a column can have at most {MAX_NESTED_FIELDS} types inside", match)
        word = match["word"].upper()
        if word in _REFUSED:
            raise self.error(f"type {word}: {_REFUSED[word]}", match)
        self.position = match.end()
        try:
            if word == "ARRAY":
                return self.array(depth)
            if word == "MAP":
                return self.map(depth)
            if word == "ROW":
                return self.row(depth)
            return self.plain(match, word)
        except TableError as error:
            raise self.error(error.message, match) from None

    def array(self, depth: int) -> DataType:
        self.expect_sign("<", "'<' and the type of the elements, such as ARRAY<INT>")
        element = self.part(ELEMENT, depth)
        self.expect_sign(">", "'>'")
        return DataType(TypeKind.ARRAY, fields=(element,))

    def map(self, depth: int) -> DataType:
        self.expect_sign("<", "'<' and the types of keys and values, such as MAP<STRING, INT>")
        first = self.peek()
        key = self.type(depth + 1)
        if key.is_nested:
            raise self.error(f"type MAP: a key cannot be of the nested type {key.kind.value}", first)
        self.accept("NOT", "NULL")  # keys are never null
        self.expect_sign(",", "',' and the type of the values")
        value = self.part(VALUE, depth)
        self.expect_sign(">", "'>'")
        return DataType(TypeKind.MAP, fields=(Field(KEY, key, nullable=False), value))

    def row(self, depth: int) -> DataType:
        round_brackets = self.accept_sign("(")
        if not round_brackets:
            self.expect_sign("<", "'<' and the fields, such as ROW<name STRING, age INT>")
        closing = ")" if round_brackets else ">"
        fields: list[Field] = []
        names: set[str] = set()
        while True:
            match = self.peek()
            name = self.name()
            if name in names:
                raise self.error(f"field '{name}' is given twice", match)
            names.add(name)
            field = self.part(name, depth)
            has_word = self.accept("COMMENT")
            text = self.peek()
            if text is not None and text["text"] is not None:
                self.position = text.end()
                comment = text["text"][1:-1].replace("''", "'")
                field = Field(name, field.type, field.nullable, comment)
            elif has_word:
                raise self.expected("a comment in single quotes")
            fields.append(field)
            if not self.accept_sign(","):
                self.expect_sign(closing, f"',' or '{closing}'")
                return DataType(TypeKind.ROW, fields=tuple(fields))

    def name(self) -> str:
        match = self.peek()
        if match is None or (match["word"] is None and match["name"] is None):
            raise self.expected("the name of a field")
        name = match["word"] or match["name"][1:-1]
        try:
            check_name(name, "field")
        except TableError as error:
            raise self.error(error.message, match) from None
        self.position = match.end()
        return name

    def part(self, name: str, depth: int) -> Field:
        """Read a type inside of another, and whether it may be null."""
        data_type = self.type(depth + 1)
        if self.accept("NOT", "NULL"):
            return Field(name, data_type, nullable=False)
        self.accept("NULL")
        return Field(name, data_type)

    def expect_sign(self, sign: str, what: str) -> None:
        if not self.accept_sign(sign):
            raise self.expected(what)

    def plain(self, match: re.Match[str], word: str) -> DataType:
        start = match.start("word")
        continued = self.continuation()
        parameters = self.parameters(start)
        name = " ".join((word, *(continued or self.continuation())))
        name = _SYNONYMS.get(name, name)
        written = self.text[start : self.position].strip()
        if name in _OF_ANY_LENGTH:
            name, otherwise = _OF_ANY_LENGTH[name]
            if self.any_length and len(parameters) == 1 and 0 < parameters[0] < _LENGTH_MAX:
                self.lost.append(LostLength(written, name))
            elif parameters not in ([], [_LENGTH_MAX]):
                raise self.error(f"type {written}: {otherwise}", match)
            return DataType(TypeKind(name))
        if name not in TypeKind.__members__:
            known = " ".join(kind.value for kind in TypeKind)
            raise self.error(f"type {written} is not known; the types are {known}", match)
        kind = TypeKind(name)
        allowed = {TypeKind.DECIMAL: 2}.get(kind, int(kind in _LENGTH_KINDS or kind in _FRACTION_KINDS))
        if len(parameters) > allowed:
            what = "no parameters" if allowed == 0 else f"at most {allowed}"
            raise self.error(f"type {written} has {what}", match)
        if kind in _LENGTH_KINDS:
            return DataType(kind, length=parameters[0] if parameters else 1)
        if kind is TypeKind.DECIMAL:
            precision, scale = [*parameters, *(10, 0)[len(parameters) :]]
            return DataType(kind, precision=precision, scale=scale)
        if kind in _FRACTION_KINDS:
            default = 0 if kind is TypeKind.TIME else 6
            return DataType(kind, precision=parameters[0] if parameters else default)
        return DataType(kind)

    def continuation(self) -> tuple[str, ...]:
        return next((words for words in _CONTINUATIONS if self.accept(*words)), ())

    def parameters(self, start: int) -> list[int]:
        """Read whole numbers in parentheses, if any."""
        if not self.accept_sign("("):
            return []
        numbers: list[int] = []
        while True:
            match = self.peek()
            if match is None or match["number"] is None or len(match["number"]) > 10:
                if match is None:
                    raise self.expected("a whole number or ')'")
                end = match.end()
                raise self.error(
                    f"type {self.text[start:end]}...: the parameters must be whole numbers", match
                )
            numbers.append(int(match["number"]))
            self.position = match.end()
            if self.accept_sign(")"):
                return numbers
            if not self.accept_sign(","):
                raise self.expected("',' or ')'")
