"""Values for the placeholders of a statement: `?` in order, `:name` and `$name` by name.

A value becomes a literal in place of the placeholder, so that a query with parameters has the same plan as one without.
Placeholders inside texts, names and comments are left as they are.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from sqlglot import TokenType

from headrace.tablelayer.model.ddl.tokens import TokenStream
from headrace.tablelayer.model.types.quoting import quote_text
from headrace.tablelayer.model.types.values import in_utc
from headrace.tablelayer.sql.errors import SqlError, near

Parameters = Sequence[Any] | Mapping[str, Any]


def bind(sql: str, parameters: Parameters) -> str:
    """Return the statement with literals for its placeholders.

    Raises SqlError for too many or too few values, or a value without a literal; DdlError for an unclosed quote.
    """
    if isinstance(parameters, (str, bytes, bytearray)):
        raise SqlError(f"the parameters are {parameters!r}: give a list of values, [{parameters!r}]")
    places = _places(sql, parameters)
    if isinstance(parameters, Mapping):
        chosen = [(place, parameters[name]) for place, name in places]
    else:
        if len(places) != len(parameters):
            raise SqlError(
                f"the statement has {len(places)} placeholders (?), but {len(parameters)} values are given"
            )
        chosen = [(place, value) for (place, _), value in zip(places, parameters, strict=True)]
    pieces, done = [], 0
    for (start, end), value in chosen:
        pieces += [sql[done:start], _between(sql[:start], literal(value), sql[end:])]
        done = end
    return "".join([*pieces, sql[done:]])


def _between(before: str, text: str, after: str) -> str:
    """Return a literal that means the same between two texts: `10 -` and `-5` would begin a comment."""
    if text[0] == "-" and after.lstrip().startswith("::"):
        return f"({text})"  # :: binds closer than the sign
    return f"{' ' if _JOINED.match(before[-1:]) else ''}{text}{' ' if _JOINED.match(after[:1]) else ''}"


_JOINED = re.compile(r"[\w'\"-]")
"""Characters that a literal beside them would be joined to."""


def places_count(sql: str) -> int:
    """Return the number of placeholders `?`. Raises DdlError."""
    return len(_places(sql, ()))


def _places(sql: str, parameters: Parameters) -> list[tuple[tuple[int, int], str]]:
    """Return the positions and the names of the placeholders."""
    tokens = TokenStream(sql).tokens
    if not isinstance(parameters, Mapping):
        return [
            ((each.start, each.end + 1), "") for each in tokens if each.token_type is TokenType.PLACEHOLDER
        ]
    found = []
    for index, token in enumerate(tokens):
        before = tokens[index - 1] if index else None
        if token.token_type is not TokenType.VAR or sql[token.start] in '`"':
            continue
        if token.text.startswith("$"):
            name, start = token.text[1:], token.start
            if name not in parameters:
                raise SqlError(f"there is no value for ${name}{near(name, parameters)}")
        elif before is not None and before.token_type is TokenType.COLON and before.end + 1 == token.start:
            name, start = token.text, before.start
            if name not in parameters:
                continue  # a slice, or a field of a struct
        else:
            continue
        found.append(((start, token.end + 1), name))
    unused = set(parameters) - {name for _, name in found}
    if unused:
        raise SqlError(f"the statement has no placeholder :{min(unused)}")
    return found


def literal(value: Any) -> str:
    """Return the exact SQL literal of a value. Raises SqlError."""
    if hasattr(value, "item") and hasattr(value, "dtype"):  # a NumPy scalar
        if value.dtype.kind == "M":  # its item would be a whole number of nanoseconds
            text = str(value)
            return "NULL" if text == "NaT" else f"TIMESTAMP '{text.replace('T', ' ')}'"
        value = value.item()
    if value is None or type(value).__name__ in ("NaTType", "NAType"):
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        text = repr(value)  # with an exponent it is a DOUBLE in DuckDB, not a DECIMAL
        return (
            (text if "e" in text else f"{text}e0") if math.isfinite(value) else f"CAST('{value}' AS DOUBLE)"
        )
    if isinstance(value, Decimal):
        return format(value, "f") if value.is_finite() else f"CAST('{value}' AS DOUBLE)"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"X'{bytes(value).hex()}'"
    if isinstance(value, datetime.datetime):
        if value.tzinfo is not None:
            try:
                moment = in_utc(value).replace(tzinfo=None)
            except ValueError as error:
                raise SqlError(str(error)) from None
            return f"TIMESTAMP_LTZ '{moment.isoformat(' ')}Z'"
        return f"TIMESTAMP '{value.isoformat(' ')}'"
    if isinstance(value, datetime.date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, datetime.time):
        return f"TIME '{value.isoformat()}'"
    if isinstance(value, (list, tuple)):
        return f"ARRAY[{', '.join(map(literal, value))}]"
    if isinstance(value, (str, UUID)):
        return quote_text(str(value))
    raise SqlError(
        f"a {type(value).__name__} has no SQL literal: write such rows with table.upsert or append"
    )
