"""Exact texts for values of a type: column defaults, and the literals of statements.

A column's default is kept as a canonical text, so that it can be stored, compared and shown. `canonical` and `normal`
make this text, `scalar` returns the Arrow value, `literal_sql` the literal in a statement.

| type | canonical text |
|---|---|
| BOOLEAN | true, false |
| integers | -17 |
| DECIMAL | 1.50, all digits of its scale |
| FLOAT, DOUBLE | shortest text that reads back the same; nan, inf, -inf |
| CHAR, STRING | the text itself |
| DATE, TIME | 2024-09-19, 12:00:00, 12:00:00.250000, with nine digits if six are not enough |
| TIMESTAMP, TIMESTAMP_LTZ | 2024-09-19 12:00:00, the latter with +00:00 |
| BINARY, BYTES | pairs of hexadecimal digits, upper case |
"""

from __future__ import annotations

import datetime
import math
import re
import struct
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING, Any

from headrace.protocol.loading.lazy import lazy_module
from headrace.tablelayer.model.types.column_types import (
    BINARY_KINDS,
    FLOAT_KINDS,
    INTEGER_BITS,
    INTEGER_KINDS,
    NUMERIC_KINDS,
    TEXT_KINDS,
    TIMESTAMP_KINDS,
    DataType,
    TypeKind,
)
from headrace.tablelayer.model.types.far_years import time_text, timestamp_text
from headrace.tablelayer.model.types.quoting import quote_text

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
else:
    np = lazy_module("numpy")
    pa = lazy_module("pyarrow")

Value = (
    None | bool | int | Decimal | float | str | bytes | datetime.date | datetime.time | datetime.datetime
    | list[Any] | tuple[Any, ...] | Any
)  # fmt: skip
"""A literal. Whole numbers are int, others Decimal (never float, unless cast to one), X'..' is bytes.

ARRAY[..] is a list of literals, MAP[..] a list of pairs, ROW(..) a tuple. A time or timestamp with nanoseconds, which
Python's types do not have, is a pa.Scalar.
"""

_CLOCK = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?"
_FINER = re.compile(r"(\.[0-9]{6})([0-9]{1,3})")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_SINGLE = struct.Struct("<f")
_HEX = re.compile(r"([0-9A-Fa-f]{2})*")


def number(text: str) -> int | Decimal:
    """Return the number in a text: int without point and exponent. Raises ValueError for another text."""
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    if not re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?", text):
        raise ValueError(f"{text} is not a number")
    return Decimal(text)


def negated(value: int | Decimal) -> int | Decimal:
    """Return the negative, exactly: Decimal's minus sign would round to the context's 28 digits."""
    return value.copy_negate() if isinstance(value, Decimal) else -value


def typed(text: str, data_type: DataType) -> Value:
    """Return the value of a text in a type. Raises ValueError with a reason."""
    kind = data_type.kind
    stripped = text.strip()
    if kind in TEXT_KINDS:
        return text
    if kind in INTEGER_KINDS or kind is TypeKind.DECIMAL:
        sign, digits = (-1, stripped[1:]) if stripped[:1] == "-" else (1, stripped.removeprefix("+"))
        value = number(digits)
        if kind is TypeKind.DECIMAL:
            return negated(Decimal(value)) if sign < 0 else Decimal(value)
        if value != int(value):
            raise ValueError(f"{stripped} is not a whole number")
        limit = 1 << (INTEGER_BITS[kind] - 1)
        if not -limit <= sign * int(value) < limit:
            raise ValueError(f"{stripped} is out of the range of {data_type}")
        return sign * int(value)
    if kind in FLOAT_KINDS:
        return _float(stripped, data_type)
    if kind is TypeKind.BOOLEAN:
        words = {"true": True, "false": False}
        if stripped.lower() not in words:
            raise ValueError(f"'{text}' is not TRUE or FALSE")
        return words[stripped.lower()]
    if kind is TypeKind.DATE:
        _check_shape(text, r"[0-9]{4}-[0-9]{2}-[0-9]{2}", "a date, such as 2024-09-19")
        return datetime.date.fromisoformat(text)
    if kind is TypeKind.TIME:
        _check_shape(text, _CLOCK, "a time, such as 12:00:00")
        short, nanos = _without_nanos(text, data_type)
        clock = datetime.time.fromisoformat(short)
        if not nanos:
            return clock
        seconds = (clock.hour * 60 + clock.minute) * 60 + clock.second
        return pa.scalar((seconds * 10**6 + clock.microsecond) * 1000 + nanos, pa.time64("ns"))
    if kind in TIMESTAMP_KINDS:
        return _timestamp(text, data_type)
    raise ValueError(f"a text cannot be cast to {data_type} here; write bytes as X'CAFE'")


def _float(text: str, data_type: DataType) -> float:
    """Return the nearest value of the type."""
    value = float(text)
    if data_type.kind is TypeKind.FLOAT and math.isfinite(value):
        try:
            (value,) = _SINGLE.unpack(_SINGLE.pack(value))
        except OverflowError:
            value = math.inf
    if math.isinf(value) and "inf" not in text.lower():
        raise ValueError(f"{text} is out of the range of {data_type}")
    return value


def _without_nanos(text: str, data_type: DataType) -> tuple[str, int]:
    """Return the text with at most six digits of a second, and the other digits as nanoseconds."""
    found = _FINER.search(text)
    if found is None:
        return text, 0
    nanos = int(found[2].ljust(3, "0"))
    if nanos and data_type.precision <= 6:
        raise ValueError(f"'{text}' has more digits than {data_type}")
    return _FINER.sub(r"\1", text), nanos


def _timestamp(text: str, data_type: DataType) -> datetime.datetime | pa.Scalar:
    pattern = rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}([T ]{_CLOCK}(Z|[+-][0-9]{{2}}:?[0-9]{{2}})?)?"
    _check_shape(text, pattern, "a timestamp, such as 2024-09-19 12:00:00")
    short, nanos = _without_nanos(text, data_type)
    value = datetime.datetime.fromisoformat(short)
    zoned = data_type.kind is TypeKind.TIMESTAMP_LTZ
    if value.tzinfo is not None and not zoned:
        raise ValueError(f"'{text}' has a zone, but {data_type} has none")
    instant = in_utc(value)
    if nanos:
        ticks = (instant - _EPOCH) // datetime.timedelta(microseconds=1) * 1000 + nanos
        if not -(1 << 63) <= ticks < 1 << 63:
            raise ValueError(f"'{text}' is out of the range of {data_type}")
        return pa.scalar(ticks, pa.timestamp("ns", "UTC" if zoned else None))
    return instant if zoned else value


def in_utc(value: datetime.datetime) -> datetime.datetime:
    """Return a moment in UTC; one without a zone is in UTC. Raises ValueError beyond the years 1 to 9999."""
    if value.tzinfo is None:
        return value.replace(tzinfo=datetime.UTC)
    try:
        return value.astimezone(datetime.UTC)
    except OverflowError:
        raise ValueError(f"{value.isoformat(' ')} is not in the years 1 to 9999 in UTC") from None


def _check_shape(text: str, pattern: str, what: str) -> None:
    if not re.fullmatch(pattern, text):
        raise ValueError(f"'{text}' is not {what}")


def hexadecimal(text: str) -> bytes:
    """Return the bytes of pairs of digits. Raises ValueError."""
    if not _HEX.fullmatch(text):
        raise ValueError("bytes are written as pairs of hexadecimal digits")
    return bytes.fromhex(text)


def canonical(value: Value, data_type: DataType) -> str:
    """Return the canonical text of a literal (not None) as a value of a type. Raises ValueError with a reason.

    As in the literals of statements, numbers are accepted for numeric types, and texts for all types but bytes.
    Nothing is rounded or cut.
    """
    kind = data_type.kind
    if data_type.is_nested or isinstance(value, list | tuple):
        raise ValueError(
            f"{_shown(value)} is not a value of {data_type}; nested columns can only have the default NULL"
        )
    if _is_finer(value):
        value = _finer_text(value)
    if isinstance(value, str):
        value = typed(value, data_type)
    if isinstance(value, bool):
        fits = kind is TypeKind.BOOLEAN
    elif isinstance(value, int | Decimal):
        fits = kind in NUMERIC_KINDS
        if fits:
            value = typed(str(value), data_type)
    elif isinstance(value, float):
        fits = kind in FLOAT_KINDS
    elif isinstance(value, str):
        fits = kind in TEXT_KINDS
    elif isinstance(value, bytes):
        fits = kind in BINARY_KINDS
    elif isinstance(value, datetime.datetime):
        fits = kind in TIMESTAMP_KINDS
        value = typed(value.isoformat(" "), data_type) if fits else value
    elif isinstance(value, datetime.date):
        fits = kind is TypeKind.DATE
    else:  # a value with nanoseconds is read as one of this type
        fits = kind is TypeKind.TIME or _is_finer(value)
    if not fits:
        raise ValueError(f"{_shown(value)} is not a value of {data_type}")
    text = _text(value, data_type)
    scalar(text, data_type)
    return text


def plain_text(value: Value) -> str:
    """Return a literal (not None) as a text that `normal` accepts for any type that the value fits."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex().upper()
    if _is_finer(value):
        return _finer_text(value)
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value)


def _is_finer(value: Any) -> bool:
    """Whether a value is a time or timestamp with nanoseconds."""
    return hasattr(value, "is_valid")  # a class of Arrow, which need not be loaded for other values


def _finer_text(value: pa.Scalar) -> str:
    if pa.types.is_time(value.type):
        return time_text(value.value, 9)
    text = timestamp_text(value.value, zoned=False).replace("T", " ")
    return text if value.type.tz is None else f"{text}+00:00"


def normal(text: str, data_type: DataType) -> str:
    """Return the canonical text of any text for a value of a type. Raises ValueError."""
    return canonical(hexadecimal(text) if data_type.kind in BINARY_KINDS else text, data_type)


def _shown(value: Value) -> str:
    return f"X'{value.hex().upper()}'" if isinstance(value, bytes) else str(value)


def _text(value: Value, data_type: DataType) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        with localcontext() as context:
            context.prec = 200
            scaled = value.quantize(Decimal(1).scaleb(-data_type.scale))
            if scaled != value or len(scaled.as_tuple().digits) > data_type.precision:
                raise ValueError(f"{value} does not fit into {data_type}")
        return f"{scaled:f}"
    if isinstance(value, float):
        return str(np.float32(value)) if data_type.kind is TypeKind.FLOAT else repr(value)
    if isinstance(value, bytes):
        return value.hex().upper()
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return _finer_text(value) if _is_finer(value) else str(value)


def scalar(text: str, data_type: DataType) -> pa.Scalar:
    """Return the Arrow value of a canonical text, in the type's own Arrow type. Raises ValueError."""
    kind = data_type.kind
    value = hexadecimal(text) if kind in BINARY_KINDS else typed(text, data_type)
    if kind is TypeKind.CHAR and len(text) > data_type.length:
        raise ValueError(f"a text of {len(text)} characters does not fit into {data_type}")
    if isinstance(value, bytes) and kind is TypeKind.BINARY and len(value) != data_type.length:
        raise ValueError(f"a value of {len(value)} bytes does not fit into {data_type}")
    if isinstance(value, datetime.time | datetime.datetime):
        kept = min(data_type.precision, 6)
        if value.microsecond % 10 ** (6 - kept):
            raise ValueError(f"'{text}' has more digits than {data_type}")
    if _is_finer(value):
        finer: Any = value
        if finer.value % 10 ** (9 - data_type.precision):
            raise ValueError(f"'{text}' has more digits than {data_type}")
        return finer
    try:
        return pa.scalar(value, data_type.arrow())
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise ValueError(f"'{text}' does not fit into {data_type}: {error}") from None


def widened(text: str, old: DataType, new: DataType) -> str:
    """Return the canonical text of the same value in a wider type (`evolution.widens`)."""
    if old.kind is TypeKind.FLOAT and new.kind is TypeKind.DOUBLE:
        return repr(float(np.float32(float(text))))
    if new.kind is TypeKind.BINARY:
        return text + "00" * (new.length - old.length)
    return text


def literal_sql(text: str, data_type: DataType) -> str:
    """Return a canonical text as a literal in a statement."""
    kind = data_type.kind
    if kind in FLOAT_KINDS and not re.fullmatch(r"-?[0-9.]+(e[+-]?[0-9]+)?", text):
        return f"CAST('{text}' AS {data_type})"
    if kind in NUMERIC_KINDS:
        return text
    if kind is TypeKind.BOOLEAN:
        return text.upper()
    if kind in BINARY_KINDS:
        return f"X'{text}'"
    return quote_text(text)
