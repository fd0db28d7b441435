"""One literal of a filter: its value in the common form of statistics, and as an Arrow scalar.

TIME, TIMESTAMP and TIMESTAMP_LTZ compare with their own literals, or with a BIGINT: a number of nanoseconds
(`ticks`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from struct import Struct
from typing import Final

import msgspec
import pyarrow as pa

from headrace.tablelayer.model.batches.statistics import Bound, factor_of, scalar_of
from headrace.tablelayer.model.filters.protobuf import Field, Walk, message_of, signed
from headrace.tablelayer.model.filters.substrait import Decimal, LiteralKind, PrecisionTimestamp
from headrace.tablelayer.model.types.column_types import (
    BINARY_KINDS,
    FLOAT_KINDS,
    INTEGER_BITS,
    TEXT_KINDS,
    DataType,
    TypeKind,
)

_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")
_INTEGERS: Final = {
    LiteralKind.I8: pa.int8(), LiteralKind.I16: pa.int16(), LiteralKind.I32: pa.int32(), LiteralKind.I64: pa.int64()
}  # fmt: skip
TICKS: Final = LiteralKind.I64
"""The literal of a BIGINT, which compared with a time is a number of nanoseconds."""
TIME_UNITS: Final = {0: 1_000_000_000, 3: 1_000_000, 6: 1_000, 9: 1}
"""Nanoseconds of the unit of a time, by its precision."""
LITERALS_OF: Final[dict[TypeKind, tuple[LiteralKind, ...]]] = {
    TypeKind.BOOLEAN: (LiteralKind.BOOLEAN,),
    **dict.fromkeys(INTEGER_BITS, tuple(_INTEGERS)),
    **dict.fromkeys(FLOAT_KINDS, (LiteralKind.FP32, LiteralKind.FP64)),
    **dict.fromkeys(TEXT_KINDS, (LiteralKind.STRING, LiteralKind.FIXED_CHAR)),
    **dict.fromkeys(BINARY_KINDS, (LiteralKind.BINARY, LiteralKind.FIXED_BINARY)),
    TypeKind.DECIMAL: (LiteralKind.DECIMAL,),
    TypeKind.DATE: (LiteralKind.DATE,),
    TypeKind.TIME: (LiteralKind.TIME, TICKS),
    TypeKind.TIMESTAMP: (LiteralKind.TIMESTAMP, LiteralKind.PRECISION_TIMESTAMP, TICKS),
    TypeKind.TIMESTAMP_LTZ: (LiteralKind.TIMESTAMP_TZ, LiteralKind.PRECISION_TIMESTAMP_TZ, TICKS),
}
"""The literals that are compared with columns of a type."""


class Literal(msgspec.Struct, frozen=True):
    """A literal. `value` is in the common form of statistics; None is null."""

    value: Bound | None


def literal_of(walk: Walk, data: memoryview, kind: TypeKind) -> Literal | None:
    """Return an encoded literal; None if it is not for this kind of column. Raises ValueError and struct.error."""
    number, value = _field_of(walk, data)
    if number == LiteralKind.NULL:
        return Literal(None)
    if number not in LITERALS_OF.get(kind, ()):
        return None
    found = _bound(walk, number, value)
    return None if found is None else Literal(found)


def scalar_of_literal(walk: Walk, data: memoryview) -> pa.Scalar:
    """Return an encoded literal as a value of its own type. Raises ValueError and struct.error."""
    number, value = _field_of(walk, data)
    if number == LiteralKind.NULL:
        return pa.scalar(None)
    if number == LiteralKind.DECIMAL:
        return _decimal(walk.read(Decimal, message_of(value)))
    found = _bound(walk, number, value)
    match found, number:
        case None, _:
            raise ValueError(f"a value of an unsupported kind (Substrait's literal {number})")
        case int(), LiteralKind.BOOLEAN:
            return pa.scalar(bool(found))
        case int(), LiteralKind.DATE:
            return pa.scalar(found, pa.int32()).cast(pa.date32())
        case int(), LiteralKind.TIME:
            return _time(found, pa.time64)
        case int(), LiteralKind.TIMESTAMP | LiteralKind.PRECISION_TIMESTAMP:
            return _time(found, pa.timestamp)
        case int(), LiteralKind.TIMESTAMP_TZ | LiteralKind.PRECISION_TIMESTAMP_TZ:
            return _time(found, partial(pa.timestamp, tz="UTC"))
        case int(), _:
            return pa.scalar(found, _INTEGERS[LiteralKind(number)])
        case bytes(), LiteralKind.STRING | LiteralKind.FIXED_CHAR:
            return pa.scalar(found.decode())
        case bytes(), _:
            return pa.scalar(found, pa.binary())
    return pa.scalar(found, pa.float32() if number == LiteralKind.FP32 else pa.float64())


def scalar_in(bound: Bound, data_type: DataType) -> pa.Scalar | None:
    """Return a literal in the column's own type; None if the type cannot hold it."""
    if isinstance(bound, int) and not isinstance(bound, bool) and bound % factor_of(data_type):
        return None
    try:
        return scalar_of(bound, data_type)
    except (pa.ArrowInvalid, OverflowError, UnicodeDecodeError):
        return None


def _field_of(walk: Walk, data: memoryview) -> Field:
    """Return the field of a literal that holds its value."""
    for number, value in walk.fields(data):
        if number not in (LiteralKind.NULLABLE, LiteralKind.TYPE_VARIATION_REFERENCE):
            return number, value
    raise ValueError("a value is empty")


def _bound(walk: Walk, number: int, value: int | memoryview) -> Bound | None:
    """Return a value in the common form of statistics; None if its kind is not supported."""
    match number:
        case LiteralKind.BOOLEAN | LiteralKind.DATE:
            return signed(value)
        case LiteralKind.I8 | LiteralKind.I16 | LiteralKind.I32 | LiteralKind.I64:
            return signed(value)
        case LiteralKind.FP32:
            return float(_FLOAT.unpack(message_of(value))[0])
        case LiteralKind.FP64:
            return float(_DOUBLE.unpack(message_of(value))[0])
        case LiteralKind.STRING | LiteralKind.FIXED_CHAR | LiteralKind.BINARY | LiteralKind.FIXED_BINARY:
            return bytes(message_of(value))
        case LiteralKind.TIME | LiteralKind.TIMESTAMP | LiteralKind.TIMESTAMP_TZ:
            return signed(value) * 1_000
        case LiteralKind.PRECISION_TIMESTAMP | LiteralKind.PRECISION_TIMESTAMP_TZ:
            time = walk.read(PrecisionTimestamp, message_of(value))
            unit = TIME_UNITS.get(time.precision)
            return None if unit is None else time.value * unit
        case LiteralKind.DECIMAL:
            decimal = walk.read(Decimal, message_of(value))
            if not 0 <= decimal.scale <= 38:
                return None
            return int.from_bytes(decimal.value, "little", signed=True) * int(10 ** (38 - decimal.scale))
    return None


def _decimal(decimal: Decimal) -> pa.Scalar:
    if (
        len(decimal.value) != 16
        or not 1 <= decimal.precision <= 38
        or not 0 <= decimal.scale <= decimal.precision
    ):
        raise ValueError("a DECIMAL is malformed")
    buffers = [None, pa.py_buffer(bytes(decimal.value))]
    return pa.Array.from_buffers(pa.decimal128(decimal.precision, decimal.scale), 1, buffers)[0]


def _time(nanos: int, arrow: Callable[[str], pa.DataType]) -> pa.Scalar:
    """Return a time in microseconds if they are enough, else in nanoseconds."""
    unit, size = ("us", 1_000) if nanos % 1_000 == 0 else ("ns", 1)
    return pa.scalar(nanos // size, pa.int64()).cast(arrow(unit))
