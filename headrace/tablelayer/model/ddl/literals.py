"""Literals of statements as exact Python values; errors have their position."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from sqlglot import Token, TokenType

from headrace.tablelayer.model.ddl.tokens import TokenStream
from headrace.tablelayer.model.ddl.type_names import read_type
from headrace.tablelayer.model.types.column_types import (
    DATE,
    MAX_NESTING_DEPTH,
    NUMERIC_KINDS,
    TEXT_KINDS,
    DataType,
    TypeKind,
    time,
    timestamp,
    timestamp_ltz,
)
from headrace.tablelayer.model.types.values import Value, hexadecimal, negated, number, typed

__all__ = ["Value", "read_literal"]


def read_literal(stream: TokenStream) -> Value:
    """Read the next literal. Raises DdlError if there is no literal, or if it does not fit its type."""
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
    if stream.at("ARRAY") or stream.at("MAP") or stream.at("ROW"):
        return _read_nested(stream, 1)
    if stream.accept_kind(TokenType.STRING):
        return token.text
    if token.token_type in (TokenType.DASH, TokenType.PLUS, TokenType.NUMBER, TokenType.DOT):
        return _read_number(stream)
    typed_word = {
        "DATE": DATE,
        "TIME": time(9),
        "TIMESTAMP": timestamp(9),
        "TIMESTAMP_LTZ": timestamp_ltz(9),
    }.get(token.text.upper())
    following = stream.tokens[stream.position + 1] if stream.position + 1 < len(stream.tokens) else token
    if token.token_type is TokenType.VAR and following.token_type is TokenType.STRING:
        if typed_word is not None:
            stream.position += 2
            return _typed_at(stream, following.text, typed_word, following)
        if token.text.upper() == "X" and following.start == token.end + 1:
            stream.position += 2
            try:
                return hexadecimal(following.text)
            except ValueError as error:
                raise stream.error(str(error), following) from None
    raise stream.expected("a value: a number, 'text', NULL, TRUE, DATE '...', TIMESTAMP '...', an expression")


def _read_nested(stream: TokenStream, depth: int) -> list[Any] | tuple[Any, ...]:
    """Read ARRAY[a, b], MAP[key, value, ...] or ROW(a, b), in Flink's syntax."""
    first = stream.token
    assert first is not None
    if depth > MAX_NESTING_DEPTH:
        raise stream.error(f"values are nested deeper than {MAX_NESTING_DEPTH} levels", first)
    word = first.text.upper()
    stream.position += 1
    opening, closing, what = TokenType.L_BRACKET, TokenType.R_BRACKET, "]"
    if word == "ROW":
        opening, closing, what = TokenType.L_PAREN, TokenType.R_PAREN, ")"
    stream.expect_kind(opening, "'(' and the fields" if word == "ROW" else f"'[', as in {word}[...]")
    values: list[Any] = []
    while not stream.accept_kind(closing):
        if values:
            stream.expect_kind(TokenType.COMMA, f"',' or '{what}'")
        nested = stream.at("ARRAY") or stream.at("MAP") or stream.at("ROW")
        values.append(_read_nested(stream, depth + 1) if nested else read_literal(stream))
    if word == "ARRAY":
        return values
    if word == "ROW":
        return tuple(values)
    if len(values) % 2:
        raise stream.error("MAP[...] needs keys and values in turn; a value is missing", first)
    return list(zip(values[::2], values[1::2], strict=True))


def _read_number(stream: TokenStream) -> int | Decimal:
    first = stream.token
    sign = 1
    if stream.accept_kind(TokenType.DASH):
        sign = -1
    else:
        stream.accept_kind(TokenType.PLUS)
    # The tokenizer splits ".5" and "1e5" into adjacent tokens.
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
