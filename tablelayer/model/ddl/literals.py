"""Literals of statements as Python values: exact, with the place of what is wrong."""

from __future__ import annotations

import datetime
import re
from decimal import Decimal

from sqlglot import Token, TokenType

from tablelayer.model.ddl.tokens import TokenStream
from tablelayer.model.ddl.type_names import read_type
from tablelayer.model.types import (
    DATE,
    FLOAT_KINDS,
    INTEGER_BITS,
    INTEGER_KINDS,
    NUMERIC_KINDS,
    TEXT_KINDS,
    TIMESTAMP_KINDS,
    DataType,
    TypeKind,
    time,
    timestamp,
)

Value = None | bool | int | Decimal | float | str | bytes | datetime.date | datetime.time | datetime.datetime
"""A literal: whole numbers are int, others Decimal (never float, unless cast to one), X'..' is bytes."""

_CLOCK = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
_HEX = re.compile(r"([0-9A-Fa-f]{2})*")


def number(text: str) -> int | Decimal:
    """The number written: int when it has neither point nor exponent. Raises ValueError if it is none."""
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    if not re.fullmatch(r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,4})?", text):
        raise ValueError(f"{text} is not a number")
    return Decimal(text)


def negated(value: int | Decimal) -> int | Decimal:
    """The negative, exactly: Decimal's minus sign would round to the context's 28 digits."""
    return value.copy_negate() if isinstance(value, Decimal) else -value


def typed(text: str, data_type: DataType) -> Value:
    """The value that a text stands for in a type. Raises ValueError with a reason."""
    kind = data_type.kind
    stripped = text.strip()
    if kind in TEXT_KINDS:
        return text
    if kind in INTEGER_KINDS or kind is TypeKind.DECIMAL:
        sign, digits = (-1, stripped[1:]) if stripped[:1] == "-" else (1, stripped.removeprefix("+"))
        value = number(digits)
        if kind is TypeKind.DECIMAL:
            return negated(value) if sign < 0 else Decimal(value)
        if value != int(value):
            raise ValueError(f"{stripped} is not a whole number")
        limit = 1 << (INTEGER_BITS[kind] - 1)
        if not -limit <= sign * int(value) < limit:
            raise ValueError(f"{stripped} is out of the range of {data_type}")
        return sign * int(value)
    if kind in FLOAT_KINDS:
        return float(stripped)
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
        return datetime.time.fromisoformat(text)
    if kind in TIMESTAMP_KINDS:
        return _timestamp(text, data_type)
    raise ValueError(f"a text cannot be cast to {data_type} here; write bytes as X'CAFE'")


def _timestamp(text: str, data_type: DataType) -> datetime.datetime:
    pattern = rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}([T ]{_CLOCK}(Z|[+-][0-9]{{2}}:?[0-9]{{2}})?)?"
    _check_shape(text, pattern, "a timestamp, such as 2024-09-19 12:00:00")
    value = datetime.datetime.fromisoformat(text)
    if data_type.kind is TypeKind.TIMESTAMP_LTZ:
        return value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)
    if value.tzinfo is not None:
        raise ValueError(f"'{text}' has a zone, but {data_type} has none")
    return value


def _check_shape(text: str, pattern: str, what: str) -> None:
    if not re.fullmatch(pattern, text):
        raise ValueError(f"'{text}' is not {what}")


def read_literal(stream: TokenStream) -> Value:
    """The literal that comes next. Raises DdlError if there is none, or if it does not fit its type."""
    token = stream.token
    if token is None:
        raise stream.expected("a value")
    if stream.accept("NULL"):
        return None
    if stream.accept("TRUE"):
        return True
    if stream.accept("FALSE"):
        return False
    if stream.accept("CAST"):
        return _read_cast(stream)
    if stream.accept_kind(TokenType.STRING):
        return token.text
    if token.token_type in (TokenType.DASH, TokenType.PLUS, TokenType.NUMBER, TokenType.DOT):
        return _read_number(stream)
    typed_word = {"DATE": DATE, "TIME": time(9), "TIMESTAMP": timestamp(9)}.get(token.text.upper())
    following = stream.tokens[stream.position + 1] if stream.position + 1 < len(stream.tokens) else token
    if token.token_type is TokenType.VAR and following.token_type is TokenType.STRING:
        if typed_word is not None:
            stream.position += 2
            return _typed_at(stream, following.text, typed_word, following)
        if token.text.upper() == "X" and following.start == token.end + 1:
            stream.position += 2
            if not _HEX.fullmatch(following.text):
                raise stream.error("bytes are written as pairs of hexadecimal digits", following)
            return bytes.fromhex(following.text)
    raise stream.expected("a value: a number, 'text', NULL, TRUE, DATE '...', TIMESTAMP '...', CAST(...)")


def _read_number(stream: TokenStream) -> int | Decimal:
    first = stream.token
    sign = 1
    if stream.accept_kind(TokenType.DASH):
        sign = -1
    else:
        stream.accept_kind(TokenType.PLUS)
    # The tokenizer cuts ".5" and "1e5" in pieces that stand next to each other.
    start = stream.token
    last = start
    while (token := stream.token) is not None and last is not None:
        if token is not start and token.start != last.end + 1:
            break
        signed_exponent = token.token_type in (TokenType.DASH, TokenType.PLUS) and last.text[-1:] in "eE"
        if token.token_type not in (TokenType.NUMBER, TokenType.DOT, TokenType.VAR) and not signed_exponent:
            break
        last = token
        stream.position += 1
    if start is None or last is None:
        raise stream.expected("a number")
    text = stream.sql[start.start : last.end + 1]
    try:
        return number(text) if sign > 0 else negated(number(text))
    except ValueError:
        raise stream.error(f"'{text}' is not a number", first) from None


def _read_cast(stream: TokenStream) -> Value:
    stream.expect_kind(TokenType.L_PAREN, "(")
    token = stream.token
    value = read_literal(stream)
    stream.expect("AS")
    data_type = read_type(stream)
    stream.expect_kind(TokenType.R_PAREN, ")")
    if value is None:
        return None
    if isinstance(value, str):
        return _typed_at(stream, value, data_type, token)
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        if data_type.kind in TEXT_KINDS or data_type.kind in NUMERIC_KINDS:
            return _typed_at(stream, str(value), data_type, token)
    elif isinstance(value, bool) and data_type.kind is TypeKind.BOOLEAN:
        return value
    raise stream.error(f"this value cannot be cast to {data_type}", token)


def _typed_at(stream: TokenStream, text: str, data_type: DataType, token: Token | None) -> Value:
    try:
        return typed(text, data_type)
    except ValueError as error:
        raise stream.error(str(error), token) from None
