"""Types in statements: from tokens to `DataType`."""

from __future__ import annotations

from sqlglot import TokenType

from headrace.tablelayer.model.ddl.errors import DdlError
from headrace.tablelayer.model.ddl.tokens import TokenStream
from headrace.tablelayer.model.types.column_types import DataType
from headrace.tablelayer.model.types.text import LostLength, TypeTextError, read_type_at


def read_type(stream: TokenStream) -> DataType:
    """Read the next type. Raises DdlError pointing at the wrong word."""
    return _read(stream, shortens=False)[0]


def read_type_or_longer(stream: TokenStream) -> tuple[DataType, list[LostLength]]:
    """Read the next type; VARCHAR(n) and VARBINARY(n) are read as STRING and BYTES, and returned, too."""
    return _read(stream, shortens=True)


def _read(stream: TokenStream, *, shortens: bool) -> tuple[DataType, list[LostLength]]:
    token = stream.token
    if token is None or token.token_type is not TokenType.VAR:
        raise stream.expected("a type, such as BIGINT or DECIMAL(15, 2)")
    try:
        data_type, end, lost = read_type_at(stream.sql, token.start, any_length=shortens)
    except TypeTextError as error:
        raise DdlError(error.reason, stream.sql, error.start, error.length) from None
    # By position, because '>>' is one token and two brackets.
    while stream.token is not None and stream.token.start < end:
        stream.position += 1
    return data_type, lost
