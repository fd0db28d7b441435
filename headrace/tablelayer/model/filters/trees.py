"""Reading sqlglot's trees so that no part of them is overlooked.

A translator names the class of each node and each argument that it understands. A node of another class, or with
another argument that is set, goes to the general path (DuckDB, Spark) or is refused.
"""

from __future__ import annotations

import re
from typing import Any

_PIECE = re.compile(
    r"'(?:[^']|'')*'|\"[^\"]*\"|`[^`]*`|--[^\n]*|/\*.*?\*/|[^'\"`/-]+|/(?!\*)|-(?!-)", re.DOTALL
)


def understood(node: Any, *names: str) -> bool:
    """Return whether a node has no other arguments set."""
    return all(name in names or _is_unset(value) for name, value in node.args.items())


def only(node: Any, kind: type, *names: str) -> bool:
    """Return whether a node is of exactly this class, and has no argument set but these."""
    return type(node) is kind and understood(node, *names)


def _is_unset(value: Any) -> bool:
    return value is None or value is False or value == []


def conjuncts(condition: Any) -> list[Any]:
    """Return the parts of a condition that must all hold, without brackets; if it is not an AND, itself."""
    from sqlglot import expressions as exp

    found, left = [], [condition]
    while left:
        part = left.pop()
        while only(part, exp.Paren, "this"):
            part = part.this
        if only(part, exp.And, "this", "expression"):
            left += [part.expression, part.this]
        else:
            found.append(part)
    return found


def hints_in(sql: str) -> list[tuple[int, int]]:
    """Return the start and the end of each hint (`/*+ ... */`) in a text. Parsers drop hints as comments."""
    found, position = list[tuple[int, int]](), 0
    while "/*+" in sql and position < len(sql) and (piece := _PIECE.match(sql, position)) is not None:
        position = piece.end()
        if piece.group().startswith("/*+"):
            found.append((piece.start(), position))
    return found
