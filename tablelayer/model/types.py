"""Column types of tables: their DDL words, and the Arrow types that hold them.

A type is a value: frozen, compared by content, printed as DDL and parsed back (``parse_type(str(t)) ==
t``). Defaults of omitted parameters are Flink's and Fluss's: DECIMAL(10, 0), CHAR(1), BINARY(1), TIME(0),
TIMESTAMP(6). ARRAY, MAP and ROW are not in this release and are refused by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

import pyarrow as pa

from tablelayer.model.errors import TableError, TableErrorCode

MAX_DECIMAL_PRECISION = 38  # what fits in 128 bits
MAX_LENGTH = 2**31 - 1  # Arrow's 32-bit offsets


class TypeKind(StrEnum):
    """The word of a type, without its parameters."""

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


INTEGER_KINDS = frozenset({TypeKind.TINYINT, TypeKind.SMALLINT, TypeKind.INT, TypeKind.BIGINT})
FLOAT_KINDS = frozenset({TypeKind.FLOAT, TypeKind.DOUBLE})
NUMERIC_KINDS = INTEGER_KINDS | FLOAT_KINDS | {TypeKind.DECIMAL}
TEXT_KINDS = frozenset({TypeKind.CHAR, TypeKind.STRING})
BINARY_KINDS = frozenset({TypeKind.BINARY, TypeKind.BYTES})
TIMESTAMP_KINDS = frozenset({TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_LTZ})

INTEGER_BITS = {TypeKind.TINYINT: 8, TypeKind.SMALLINT: 16, TypeKind.INT: 32, TypeKind.BIGINT: 64}

_LENGTH_KINDS = frozenset({TypeKind.CHAR, TypeKind.BINARY})
_FRACTION_KINDS = frozenset({TypeKind.TIME, TypeKind.TIMESTAMP, TypeKind.TIMESTAMP_LTZ})


@dataclass(frozen=True, slots=True)
class DataType:
    """One type.

    ``length``: CHAR and BINARY (characters, bytes). ``precision``: total digits of a DECIMAL, or digits of
    the fraction of a second (0-9) of TIME and TIMESTAMP. ``scale``: a DECIMAL's digits after the point. 0
    elsewhere. Raises TableError(INVALID_TABLE) when a parameter is out of range.
    """

    kind: TypeKind
    length: int = 0
    precision: int = 0
    scale: int = 0

    def __post_init__(self) -> None:
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
        elif self.kind in _FRACTION_KINDS:
            _check(0 <= self.precision <= 9, f"{self}: the precision must be between 0 and 9 (nanoseconds)")

    def __str__(self) -> str:
        if self.kind in _LENGTH_KINDS:
            return f"{self.kind.value}({self.length})"
        if self.kind is TypeKind.DECIMAL:
            return f"DECIMAL({self.precision}, {self.scale})"
        if self.kind in _FRACTION_KINDS:
            return f"{self.kind.value}({self.precision})"
        return self.kind.value

    @property
    def unit(self) -> str:
        """Arrow's time unit of a TIME, TIMESTAMP or TIMESTAMP_LTZ: s, ms, us or ns."""
        return ("s", "ms", "ms", "ms", "us", "us", "us", "ns", "ns", "ns")[self.precision]

    def arrow(self) -> pa.DataType:
        """The Arrow type of a column of this type."""
        return _arrow(self)


def _check(condition: bool, message: str) -> None:
    if not condition:
        raise TableError(TableErrorCode.INVALID_TABLE, message)


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
    """CHAR(length): text of at most ``length`` characters (code points)."""
    return DataType(TypeKind.CHAR, length=length)


def binary(length: int = 1) -> DataType:
    """BINARY(length): exactly ``length`` bytes."""
    return DataType(TypeKind.BINARY, length=length)


def decimal(precision: int = 10, scale: int = 0) -> DataType:
    """DECIMAL(precision, scale), exact."""
    return DataType(TypeKind.DECIMAL, precision=precision, scale=scale)


def time(precision: int = 0) -> DataType:
    """TIME(precision): time of day."""
    return DataType(TypeKind.TIME, precision=precision)


def timestamp(precision: int = 6) -> DataType:
    """TIMESTAMP(precision): date and time of day, without a zone."""
    return DataType(TypeKind.TIMESTAMP, precision=precision)


def timestamp_ltz(precision: int = 6) -> DataType:
    """TIMESTAMP_LTZ(precision): an instant, kept in UTC."""
    return DataType(TypeKind.TIMESTAMP_LTZ, precision=precision)


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


_UNIT_PRECISION = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def from_arrow(arrow_type: pa.DataType) -> DataType:
    """The column type for data of an Arrow type. Raises TableError for Arrow types no column can hold.

    Several column types share an Arrow type (CHAR and STRING; TIMESTAMP(4) and TIMESTAMP(6)): the widest is
    given.
    """
    plain = {
        pa.bool_(): BOOLEAN, pa.int8(): TINYINT, pa.int16(): SMALLINT, pa.int32(): INT, pa.int64(): BIGINT,
        pa.float32(): FLOAT, pa.float64(): DOUBLE, pa.date32(): DATE,
        pa.string(): STRING, pa.large_string(): STRING, pa.string_view(): STRING,
        pa.binary(): BYTES, pa.large_binary(): BYTES, pa.binary_view(): BYTES,
        # Unsigned integers go to the next wider signed type, so that every value fits.
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
    raise TableError(
        TableErrorCode.INVALID_TABLE, f"no column type can hold Arrow's {arrow_type}; cast it first"
    )


_TYPE_TEXT = re.compile(
    r"\s*([A-Za-z_]\w*(?:\s+[A-Za-z]\w*)*)\s*(?:\(\s*([^)]*?)\s*\))?\s*([A-Za-z][A-Za-z\s]*?)?\s*"
)
_SYNONYMS = {
    "BOOL": "BOOLEAN", "INTEGER": "INT", "LONG": "BIGINT", "DOUBLE PRECISION": "DOUBLE", "DEC": "DECIMAL",
    "NUMERIC": "DECIMAL", "TEXT": "STRING", "TIMESTAMP WITHOUT TIME ZONE": "TIMESTAMP",
    "TIMESTAMP WITH LOCAL TIME ZONE": "TIMESTAMP_LTZ", "TIME WITHOUT TIME ZONE": "TIME",
}  # fmt: skip
_REFUSED = {
    "ARRAY": "nested types are not in this release",
    "MAP": "nested types are not in this release",
    "ROW": "nested types are not in this release",
    "STRUCT": "nested types are not in this release",
    "MULTISET": "nested types are not in this release",
    "VARCHAR": "use STRING, or CHAR(n) to limit the length",
    "VARBINARY": "use BYTES, or BINARY(n) for exactly n bytes",
}


def parse_type(text: str) -> DataType:
    """The type written in DDL words, e.g. ``DECIMAL(15, 2)``; case does not matter.

    Raises TableError(INVALID_TABLE) naming the word that is not known or not allowed.
    """
    word = re.match(r"\s*(\w*)", text)
    first = word.group(1).upper() if word else ""
    if first in _REFUSED:
        raise TableError(TableErrorCode.INVALID_TABLE, f"type {text.strip()}: {_REFUSED[first]}")
    match = _TYPE_TEXT.fullmatch(text)
    if match is None:
        raise TableError(TableErrorCode.INVALID_TABLE, f"'{text.strip()}' is not a type")
    name = " ".join(part for part in (match.group(1), match.group(3)) if part)
    name = " ".join(name.upper().split())
    name = _SYNONYMS.get(name, name)
    if name not in TypeKind.__members__:
        known = " ".join(kind.value for kind in TypeKind)
        raise TableError(
            TableErrorCode.INVALID_TABLE, f"type {text.strip()} is not known; the types are {known}"
        )
    kind = TypeKind(name)
    parameters = _parse_parameters(text, match.group(2))
    if kind in _LENGTH_KINDS:
        _check_parameter_count(text, parameters, 1)
        return DataType(kind, length=parameters[0] if parameters else 1)
    if kind is TypeKind.DECIMAL:
        _check_parameter_count(text, parameters, 2)
        return decimal(*parameters)
    if kind in _FRACTION_KINDS:
        _check_parameter_count(text, parameters, 1)
        default = 0 if kind is TypeKind.TIME else 6
        return DataType(kind, precision=parameters[0] if parameters else default)
    _check_parameter_count(text, parameters, 0)
    return DataType(kind)


def _parse_parameters(text: str, inside: str | None) -> list[int]:
    if inside is None:
        return []
    parts = [part.strip() for part in inside.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,10}", part) for part in parts):
        raise TableError(
            TableErrorCode.INVALID_TABLE, f"type {text.strip()}: the parameters must be whole numbers"
        )
    return [int(part) for part in parts]


def _check_parameter_count(text: str, parameters: list[int], allowed: int) -> None:
    if len(parameters) > allowed:
        what = "no parameters" if allowed == 0 else f"at most {allowed}"
        raise TableError(TableErrorCode.INVALID_TABLE, f"type {text.strip()} takes {what}")
