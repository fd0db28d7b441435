"""A query's words, where sqlglot reads them in another way than DuckDB, or leaves an error out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from sqlglot import TokenType
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError

_ARROWS = (TokenType.ARROW, TokenType.DARROW)
_NAMES = frozenset({TokenType.VAR, TokenType.IDENTIFIER, *DuckDB.Parser.TYPE_TOKENS})
_CLOSING = {TokenType.R_PAREN: TokenType.L_PAREN, TokenType.R_BRACKET: TokenType.L_BRACKET}
_BEFORE_BRACKETS = frozenset({
    TokenType.AND, TokenType.OR, TokenType.NOT, TokenType.SELECT, TokenType.WHERE, TokenType.ON, TokenType.WHEN,
    TokenType.THEN, TokenType.ELSE, TokenType.HAVING, TokenType.ORDER_BY, TokenType.GROUP_BY, TokenType.IN,
    TokenType.LIKE, TokenType.ILIKE, TokenType.BETWEEN,
})  # fmt: skip
"""Words before a value in brackets, which are not the name of a function."""
_NOT_BEFORE_COMMA = frozenset(
    {TokenType.SELECT, TokenType.DISTINCT, TokenType.COMMA, TokenType.L_PAREN, TokenType.L_BRACKET}
)
_BINDS_CLOSER = (TokenType.DCOLON, TokenType.DOT, TokenType.L_BRACKET, TokenType.HASH_ARROW, *_ARROWS)


def check_commas(tokens: Sequence[Any]) -> None:
    """Raise ParseError for a comma without a value before it, which sqlglot leaves out."""
    for before, token in pairwise(tokens):
        if token.token_type is not TokenType.COMMA or before.token_type not in _NOT_BEFORE_COMMA:
            continue
        reason = "there is no value before the comma"
        if before.token_type is TokenType.DISTINCT:
            reason = f'{reason}: write "{before.text}" in double quotes for the column of this name'
        raise ParseError.new(reason, description=reason, line=token.line, col=token.col, highlight=token.text)


def plain_arrows(text: str, tokens: Sequence[Any]) -> str | None:
    """Return a query in which `->` and `->>` mean the same to sqlglot and to DuckDB; None if that is not possible.

    DuckDB reads `j -> 'a' = 1` as `j -> ('a' = 1)`, and sqlglot `length(j -> 'a')` as a function of a function. So a
    part of JSON gets brackets, which change no name of a column. `x -> x + 1` becomes `lambda x: x + 1`.
    """
    open_at, partners, done = list[int](), dict[int, int](), -1
    changes: list[tuple[int, int, str]] = []
    for at, token in enumerate(tokens):
        if token.token_type in _CLOSING.values():
            open_at.append(at)
        elif token.token_type in _CLOSING:
            if not open_at:
                return None
            partners[at] = open_at.pop()
        elif token.token_type in _ARROWS and at > done:
            last = _after_steps(tokens, at)
            if last is not None:
                first = _first_of_value(tokens, at - 1, partners)
                if first is None or _kind(tokens, last + 1) in _BINDS_CLOSER:
                    return None
                if not (
                    _is_call(tokens, first - 1) is False and _kind(tokens, last + 1) is TokenType.R_PAREN
                ):
                    start, end = tokens[first].start, tokens[last].end + 1
                    changes += [(start, start, "("), (end, end, ")")]
                done = last
            else:
                first = _first_parameter(tokens, at, open_at, partners)
                if first is None:
                    return None
                names = [
                    text[each.start : each.end + 1] for each in tokens[first:at] if each.token_type in _NAMES
                ]
                changes.append((tokens[first].start, token.end + 1, f"lambda {', '.join(names)}:"))
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _kind(tokens: Sequence[Any], at: int) -> TokenType | None:
    return tokens[at].token_type if 0 <= at < len(tokens) else None


def _is_call(tokens: Sequence[Any], at: int) -> bool | None:
    """Whether the bracket there is that of a function; None if there is no bracket."""
    if _kind(tokens, at) is not TokenType.L_PAREN:
        return None
    return _kind(tokens, at - 1) in _NAMES


def _after_steps(tokens: Sequence[Any], at: int) -> int | None:
    """Return the last token of the arrows from there on that have a text or a number behind them."""
    last = None
    while _kind(tokens, at) in _ARROWS:
        step = at + 2 if _kind(tokens, at + 1) is TokenType.DASH else at + 1
        if _kind(tokens, step) is not TokenType.NUMBER and (
            step > at + 1 or _kind(tokens, step) is not TokenType.STRING
        ):
            return None
        last, at = step, step + 1
    return last


def _first_of_value(tokens: Sequence[Any], at: int, partners: Mapping[int, int]) -> int | None:
    """Return the first token of the value that ends there: a name, a text, a call, an element, brackets."""
    while at >= 0:
        if at in partners:
            at = partners[at]
            before = _kind(tokens, at - 1)
            if _kind(tokens, at) is TokenType.L_BRACKET:
                at -= 1
                continue
            if before in _NAMES:
                at -= 1
            elif at and tokens[at - 1].text[:1].isalpha() and before not in _BEFORE_BRACKETS:
                return None
        elif _kind(tokens, at) not in _NAMES and _kind(tokens, at) is not TokenType.STRING:
            return None
        if _kind(tokens, at - 1) not in (TokenType.DOT, TokenType.DCOLON):
            return at
        at -= 2
    return None


def _first_parameter(
    tokens: Sequence[Any], arrow: int, open_at: Sequence[int], partners: Mapping[int, int]
) -> int | None:
    """Return the first token of a function's parameters, `x` or `(x, y)`, which is an argument of a call."""
    first = partners.get(arrow - 1, arrow - 1)
    inner = tokens[first + 1 : arrow - 1] if arrow - 1 in partners else tokens[first:arrow]
    if not open_at or not _is_call(tokens, open_at[-1]) or tokens[arrow].token_type is not TokenType.ARROW:
        return None
    if first - 1 != open_at[-1] and _kind(tokens, first - 1) is not TokenType.COMMA:
        return None
    if not inner or not all(
        each.token_type in _NAMES if place % 2 == 0 else each.token_type is TokenType.COMMA
        for place, each in enumerate(inner)
    ):
        return None
    return first
