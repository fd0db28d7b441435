"""A query's own text, with some of its names replaced.

sqlglot writes a tree in its own words (`LENGTH(s)` for `len(s)`, `LISTAGG` for `string_agg`), and DuckDB names the
columns of an answer after the words. So a query in which only names change keeps the text that the user wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlglot import TokenType, exp


class Respelled:
    """Changes of names in a text. `text` is None once a change is not possible."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._changes: dict[int, tuple[int, str]] = {}
        self._is_possible = True

    def give_up(self) -> None:
        self._is_possible = False

    def replace(self, first: exp.Expr, last: exp.Expr, new: str, *, up_to: bool = False) -> None:
        """Replace the text from one name to another; with `up_to` without the last one."""
        start, stop = self._place(first), self._place(last)
        if start is None or stop is None:
            self._is_possible = False
        else:
            self._changes[start[0]] = stop[0] if up_to else stop[1], new

    def text(self, tokens: Callable[[str], Sequence[Any]]) -> str | None:
        """Return the changed text, in which names in backticks are in double quotes; None if it is not possible."""
        if not self._is_possible:
            return None
        changes = dict(self._changes)
        for token in tokens(self._text) if "`" in self._text else ():
            if token.token_type is TokenType.IDENTIFIER and self._text[token.start] == "`":
                changes.setdefault(token.start, (token.end + 1, quoted(token.text)))
        parts, at = list[str](), 0
        for start in sorted(changes):
            stop, new = changes[start]
            if start < at:
                continue  # a name inside of a replaced part
            parts += self._text[at:start], new
            at = stop
        return "".join([*parts, self._text[at:]])

    def _place(self, name: exp.Expr) -> tuple[int, int] | None:
        """Return the start and the end of a name in the text, if the text has it there."""
        start, end = name.meta.get("start"), name.meta.get("end")
        if start is None or end is None:
            return None
        written = self._text[start : end + 1]
        plain = written[1:-1].replace(written[:1] * 2, written[:1]) if written[:1] in ('"', "`") else written
        return (start, end + 1) if plain == name.name else None


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
