"""Types in statements: from tokens to ``DataType``."""

from __future__ import annotations

from sqlglot import TokenType

from tablelayer.model.ddl.tokens import TokenStream
from tablelayer.model.errors import TableError
from tablelayer.model.types import DataType, parse_type

_CONTINUATIONS = (
    ("PRECISION",),
    ("WITH", "LOCAL", "TIME", "ZONE"),
    ("WITHOUT", "TIME", "ZONE"),
)


def read_type(stream: TokenStream) -> DataType:
    """The type that comes next. Raises DdlError pointing at its name."""
    token = stream.token
    if token is None or token.token_type is not TokenType.VAR:
        raise stream.expected("a type, such as BIGINT or DECIMAL(15, 2)")
    start = token.start
    stream.position += 1
    end = token.end
    if stream.is_kind(TokenType.LT):
        raise stream.error(f"type {token.text.upper()}: nested types are not in this release", token)
    if stream.accept_kind(TokenType.L_PAREN):
        while not stream.is_kind(TokenType.R_PAREN):
            if stream.token is None or stream.token.token_type not in (TokenType.NUMBER, TokenType.COMMA):
                raise stream.expected("a whole number or ')'")
            stream.position += 1
        closing = stream.expect_kind(TokenType.R_PAREN, ")")
        end = closing.end
    for words in _CONTINUATIONS:
        if stream.at(*words):
            end = stream.tokens[stream.position + len(words) - 1].end
            stream.accept(*words)
            break
    try:
        return parse_type(stream.sql[start : end + 1])
    except TableError as error:
        raise stream.error(error.message, token) from error
