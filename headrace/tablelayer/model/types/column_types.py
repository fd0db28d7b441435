"""Column types of tables: their DDL names and their Arrow types.

A type is a value: frozen, compared by content, printed as DDL and parsed back (`parse_type(str(t)) == t`). Defaults
of omitted parameters are Flink's and Fluss's: DECIMAL(10, 0), CHAR(1), BINARY(1), TIME(0), TIMESTAMP(6). ARRAY<t>,
MAP<k, v> and ROW<name t 'comment', ...> nest up to MAX_NESTING_DEPTH. Types inside of them may be NOT NULL; the keys
of a MAP are never null and never nested. In Arrow's types all parts are nullable, because a null ROW has fields too;
`nested.py` checks NOT NULL.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from headrace.protocol.loading.lazy import lazy_module
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.types.quoting import quote_text

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = lazy_module("pyarrow")

MAX_DECIMAL_PRECISION = 38  # the largest number of digits that fits in 128 bits
MAX_LENGTH = 2**31 - 1  # Arrow's 32-bit offsets
MAX_NESTING_DEPTH = (
    16  # types inside of each other; Arrow's own reader has a limit of 64, where a MAP counts twice
)
MAX_NESTED_FIELDS = 1000  # in one column: as many as a table may have columns
MAX_NAME_LENGTH = 255


class TypeKind(StrEnum):
    """The name of a type, without its parameters."""

    BOOLEAN = "BOOLEAN"
    TINYINT = "TINYINT"
    SMALLINT = "SMALLINT"
    INT = "INT"
    BIGINT = "BIGINT"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"
    CHAR = "CHAR"
    STRING = "STRING"
    DECIMAL = "DECIMAL"
    DATE = "DATE"
    TIME = "TIME"
    TIMESTAMP = "TIMESTAMP"
    TIMESTAMP_LTZ = "TIMESTAMP_LTZ"
    BINARY = "BINARY"
    BYTES = "BYTES"
    ARRAY = "ARRAY"
    MAP = "MAP"
    ROW = "ROW"


INTEGER_KINDS = frozenset({TypeKind.TINYINT, TypeKind.SMALLINT, TypeKind.INT, TypeKind.BIGINT})
FLOAT_KINDS = frozenset({TypeKind.FLOAT, TypeKind.DOUBLE})
NUMERIC_KINDS = INTEGER_KINDS | FLOAT_KINDS | {TypeKind.DECIMAL}
TEXT_KINDS = frozenset({TypeKind.CHAR, TypeKind.STRING})
BINARY_KINDS = frozenset({TypeKind.BINARY, TypeKind.BYTES})
TIMESTAMP_KINDS = frozenset({TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_LTZ})
FRACTION_KINDS = TIMESTAMP_KINDS | {TypeKind.TIME}
"""Kinds whose precision is the number of digits of a fraction of a second."""
NESTED_KINDS = frozenset({TypeKind.ARRAY, TypeKind.MAP, TypeKind.ROW})

INTEGER_BITS = {TypeKind.TINYINT: 8, TypeKind.SMALLINT: 16, TypeKind.INT: 32, TypeKind.BIGINT: 64}

_LENGTH_KINDS = frozenset({TypeKind.CHAR, TypeKind.BINARY})


@dataclass(frozen=True, slots=True)
class Field:
    """A part of a nested type: a field of a ROW, the element of an ARRAY, the key or the value of a MAP."""

    name: str
    type: DataType
    nullable: bool = True
    comment: str | None = None

    def __str__(self) -> str:
        return str(self.type) if self.nullable else f"{self.type} NOT NULL"


@dataclass(frozen=True, slots=True)
class DataType:
    """One type.

    `length`: CHAR and BINARY (characters, bytes). `precision`: total digits of a DECIMAL, or digits of the fraction
    of a second (0-9) of TIME and TIMESTAMP. `scale`: a DECIMAL's digits after the point. All are 0 for other types.
    `fields`: the parts of a nested type; `array_of`, `map_of` and `row_of` make them. Raises
    TableError(INVALID_TABLE) when a parameter is out of range.
    """

    kind: TypeKind
    length: int = 0
    precision: int = 0
    scale: int = 0
    fields: tuple[Field, ...] = ()

    def __post_init__(self) -> None:
        if self.kind in NESTED_KINDS or self.fields:
            _check_nested(self)
        if self.kind in _LENGTH_KINDS:
            _check(1 <= self.length <= MAX_LENGTH, f"{self}: the length must be between 1 and {MAX_LENGTH}")
        elif self.kind is TypeKind.DECIMAL:
            _check(
                1 <= self.precision <= MAX_DECIMAL_PRECISION,
                f"{self}: the precision must be between 1 and {MAX_DECIMAL_PRECISION}",
            )
            _check(
                0 <= self.scale <= self.precision, f"{self}: the scale must be between 0 and the precision"
            )
        elif self.kind in FRACTION_KINDS:
            _check(0 <= self.precision <= 9, f"{self}: the precision must be between 0 and 9 (nanoseconds)")

    def __str__(self) -> str:
        if self.kind in _LENGTH_KINDS:
            return f"{self.kind.value}({self.length})"
        if self.kind is TypeKind.DECIMAL:
            return f"DECIMAL({self.precision}, {self.scale})"
        if self.kind in FRACTION_KINDS:
            return f"{self.kind.value}({self.precision})"
        if self.kind is TypeKind.ROW:
            return f"ROW<{', '.join(map(_field_text, self.fields))}>"
        if self.kind is TypeKind.MAP:
            key, value = self.fields
            return f"MAP<{key.type}, {value}>"
        if self.kind is TypeKind.ARRAY:
            return f"ARRAY<{self.fields[0]}>"
        return self.kind.value

    @property
    def is_nested(self) -> bool:
        """Whether the type is an ARRAY, a MAP or a ROW."""
        return self.kind in NESTED_KINDS

    @property
    def depth(self) -> int:
        """Depth of nesting: 1 for a type that is not nested."""
        return 1 + max((field.type.depth for field in self.fields), default=0)

    @property
    def field_count(self) -> int:
        """Total number of types inside of the type: 0 if it is not nested."""
        return len(self.fields) + sum(field.type.field_count for field in self.fields)

    def contains(self, kinds: frozenset[TypeKind]) -> bool:
        """Return whether the type, or a type inside of it, is of one of these kinds."""
        return self.kind in kinds or any(field.type.contains(kinds) for field in self.fields)

    @property
    def unit(self) -> str:
        """Arrow's time unit of a TIME, TIMESTAMP or TIMESTAMP_LTZ: s, ms, us or ns."""
        return ("s", "ms", "ms", "ms", "us", "us", "us", "ns", "ns", "ns")[self.precision]

    def arrow(self) -> pa.DataType:
        """Return the Arrow type of a column of this type."""
        return _arrow(self)


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise TableError(TableErrorCode.INVALID_TABLE, message)


def _check_nested(data_type: DataType) -> None:
    kind, fields = data_type.kind, data_type.fields
    wanted = {TypeKind.ARRAY: 1, TypeKind.MAP: 2}.get(kind, len(fields) if kind is TypeKind.ROW else 0)
    _check(len(fields) == wanted, f"type {kind.value} cannot have {len(fields)} parts")
    if kind is TypeKind.ROW:
        _check(bool(fields), "type ROW needs at least one field: ROW<name STRING, ...>")
        names: set[str] = set()
        for field in fields:
            check_name(field.name, "field")
            _check(field.name not in names, f"type ROW: field '{field.name}' is given twice")
            names.add(field.name)
    if kind is TypeKind.MAP:
        key = fields[0]
        _check(not key.type.is_nested, f"type MAP: a key cannot be {_article(key.type.kind)}")
        _check(not key.nullable, "type MAP: a key is never null")
    depth, count = data_type.depth, data_type.field_count
    _check(depth <= MAX_NESTING_DEPTH, f"type {kind.value}: the types are nested {depth} levels deep; "
           f"the limit is {MAX_NESTING_DEPTH}")  # fmt: skip
    _check(count <= MAX_NESTED_FIELDS, f"type {kind.value}: the column has {count} types inside; "
           f"the limit is {MAX_NESTED_FIELDS}")  # fmt: skip


def _article(kind: TypeKind) -> str:
    return f"an {kind.value}" if kind is TypeKind.ARRAY else f"a {kind.value}"


def check_name(name: str, what: str) -> None:
    """Raise TableError(INVALID_TABLE) unless a column or a field of a ROW (`what`) may have this name."""
    if not name or len(name) > MAX_NAME_LENGTH:
        _check(False, f"a {what} name must have 1 to {MAX_NAME_LENGTH} characters, not {len(name)}")
    if not name.isprintable() or name.strip() != name or any(character in name for character in "`,"):
        _check(False, f"{what} name {name!r}: backticks, commas, control characters and blanks at the ends are "
               "not allowed")  # fmt: skip


_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _field_text(field: Field) -> str:
    name = field.name if _PLAIN_NAME.fullmatch(field.name) else f"`{field.name}`"
    comment = "" if field.comment is None else f" {quote_text(field.comment)}"
    return f"{name} {field}{comment}"


BOOLEAN = DataType(TypeKind.BOOLEAN)
TINYINT = DataType(TypeKind.TINYINT)
SMALLINT = DataType(TypeKind.SMALLINT)
INT = DataType(TypeKind.INT)
BIGINT = DataType(TypeKind.BIGINT)
FLOAT = DataType(TypeKind.FLOAT)
DOUBLE = DataType(TypeKind.DOUBLE)
STRING = DataType(TypeKind.STRING)
DATE = DataType(TypeKind.DATE)
BYTES = DataType(TypeKind.BYTES)


def char(length: int = 1) -> DataType:
    """Return CHAR(length): text of at most `length` characters (code points)."""
    return DataType(TypeKind.CHAR, length=length)


def binary(length: int = 1) -> DataType:
    """Return BINARY(length): exactly `length` bytes."""
    return DataType(TypeKind.BINARY, length=length)


def decimal(precision: int = 10, scale: int = 0) -> DataType:
    """Return DECIMAL(precision, scale), exact."""
    return DataType(TypeKind.DECIMAL, precision=precision, scale=scale)


def time(precision: int = 0) -> DataType:
    """Return TIME(precision): time of day."""
    return DataType(TypeKind.TIME, precision=precision)


def timestamp(precision: int = 6) -> DataType:
    """Return TIMESTAMP(precision): date and time of day, without a zone."""
    return DataType(TypeKind.TIMESTAMP, precision=precision)


def timestamp_ltz(precision: int = 6) -> DataType:
    """Return TIMESTAMP_LTZ(precision): an instant, kept in UTC."""
    return DataType(TypeKind.TIMESTAMP_LTZ, precision=precision)


ELEMENT, KEY, VALUE = "element", "key", "value"
"""Arrow's and Iceberg's names for the parts of an ARRAY and of a MAP."""


def array_of(element: DataType, *, nullable: bool = True) -> DataType:
    """Return ARRAY<element>; `nullable`: whether an element may be null."""
    return DataType(TypeKind.ARRAY, fields=(Field(ELEMENT, element, nullable),))


def map_of(key: DataType, value: DataType, *, nullable: bool = True) -> DataType:
    """Return MAP<key, value>; `nullable`: whether a value may be null."""
    return DataType(TypeKind.MAP, fields=(Field(KEY, key, nullable=False), Field(VALUE, value, nullable)))


def row_of(*fields: Field | tuple[str, DataType]) -> DataType:
    """Return ROW<...> with these fields; a tuple is a nullable field."""
    return DataType(
        TypeKind.ROW, fields=tuple(each if isinstance(each, Field) else Field(*each) for each in fields)
    )


@cache
def _arrow(data_type: DataType) -> pa.DataType:
    match data_type.kind:
        case TypeKind.BOOLEAN:
            return pa.bool_()
        case TypeKind.TINYINT:
            return pa.int8()
        case TypeKind.SMALLINT:
            return pa.int16()
        case TypeKind.INT:
            return pa.int32()
        case TypeKind.BIGINT:
            return pa.int64()
        case TypeKind.FLOAT:
            return pa.float32()
        case TypeKind.DOUBLE:
            return pa.float64()
        case TypeKind.CHAR | TypeKind.STRING:
            return pa.string()
        case TypeKind.DECIMAL:
            return pa.decimal128(data_type.precision, data_type.scale)
        case TypeKind.DATE:
            return pa.date32()
        case TypeKind.TIME:
            return pa.time32(data_type.unit) if data_type.precision <= 3 else pa.time64(data_type.unit)
        case TypeKind.TIMESTAMP:
            return pa.timestamp(data_type.unit)
        case TypeKind.TIMESTAMP_LTZ:
            return pa.timestamp(data_type.unit, tz="UTC")
        case TypeKind.BINARY:
            return pa.binary(data_type.length)
        case TypeKind.BYTES:
            return pa.binary()
        case TypeKind.ARRAY:
            return pa.list_(pa.field(ELEMENT, data_type.fields[0].type.arrow()))
        case TypeKind.MAP:
            key, value = data_type.fields
            return pa.map_(
                pa.field(KEY, key.type.arrow(), nullable=False), pa.field(VALUE, value.type.arrow())
            )
        case TypeKind.ROW:
            return pa.struct([pa.field(field.name, field.type.arrow()) for field in data_type.fields])


_UNIT_PRECISION = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def from_arrow(arrow_type: pa.DataType) -> DataType:
    """Return the column type for data of an Arrow type. Raises TableError for Arrow types without a column type.

    Several column types share an Arrow type (CHAR and STRING; TIMESTAMP(4) and TIMESTAMP(6)): the widest is returned.
    """
    plain = {
        pa.bool_(): BOOLEAN, pa.int8(): TINYINT, pa.int16(): SMALLINT, pa.int32(): INT, pa.int64(): BIGINT,
        pa.float32(): FLOAT, pa.float64(): DOUBLE, pa.date32(): DATE,
        pa.string(): STRING, pa.large_string(): STRING, pa.string_view(): STRING,
        pa.binary(): BYTES, pa.large_binary(): BYTES, pa.binary_view(): BYTES,
        # Unsigned integers become the next wider signed type, so that every value fits.
        pa.uint8(): SMALLINT, pa.uint16(): INT, pa.uint32(): BIGINT,
    }.get(arrow_type)  # fmt: skip
    if plain is not None:
        return plain
    if (
        pa.types.is_decimal(arrow_type)
        and 0 <= arrow_type.scale <= arrow_type.precision <= MAX_DECIMAL_PRECISION
    ):
        return decimal(arrow_type.precision, arrow_type.scale)
    if pa.types.is_time(arrow_type):
        return time(_UNIT_PRECISION[arrow_type.unit])
    if pa.types.is_timestamp(arrow_type):
        precision = _UNIT_PRECISION[arrow_type.unit]
        return timestamp(precision) if arrow_type.tz is None else timestamp_ltz(precision)
    if pa.types.is_fixed_size_binary(arrow_type):
        return binary(arrow_type.byte_width)
    if pa.types.is_dictionary(arrow_type):
        return from_arrow(arrow_type.value_type)
    if pa.types.is_struct(arrow_type):
        return row_of(*(Field(field.name, from_arrow(field.type), field.nullable) for field in arrow_type))
    if pa.types.is_map(arrow_type):
        value = arrow_type.item_field
        return map_of(from_arrow(arrow_type.key_type), from_arrow(value.type), nullable=value.nullable)
    if is_list(arrow_type):
        return array_of(from_arrow(arrow_type.value_type), nullable=arrow_type.value_field.nullable)
    raise TableError(
        TableErrorCode.INVALID_TABLE, f"no column type can hold Arrow's {arrow_type}; cast it first"
    )


def more_digits(data_type: DataType, value: str) -> str:
    """Return the message for a value with more digits of a second than the type: the fault, and the remedy."""
    fraction = re.match(r"\d*", value.rpartition(".")[2])
    needed = 0 if fraction is None else len(fraction[0].rstrip("0"))
    digits = 6 if data_type.precision < 6 and needed <= 6 else 9
    wider = f"declare the column {data_type.kind.value}({digits}), or " if data_type.precision < 9 else ""
    return f"more digits of a second than {data_type} keeps: {wider}cut the value"


def is_list(arrow_type: pa.DataType) -> bool:
    """Whether the type is one of Arrow's list types; a map is not one of them."""
    types = pa.types
    return bool(
        types.is_list(arrow_type)
        or types.is_large_list(arrow_type)
        or types.is_fixed_size_list(arrow_type)
        or types.is_list_view(arrow_type)
        or types.is_large_list_view(arrow_type)
    )
