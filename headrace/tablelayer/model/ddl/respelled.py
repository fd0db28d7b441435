"""A query's own text, with some of its names replaced.

sqlglot writes a tree in its own words (`LENGTH(s)` for `len(s)`, `LISTAGG` for `string_agg`), and DuckDB names the
columns of an answer after the words. So a query in which only names change keeps the text that the user wrote.
"""

from __future__ import annotations

from sqlglot import exp


class Respelled:
    """Changes of names in a text."""

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

    def text(self) -> str | None:
        """Return the changed text; None if it is not possible. DuckDB understands names in backticks."""
        if not self._is_possible:
            return None
        parts, at = list[str](), 0
        for start, (stop, new) in sorted(self._changes.items()):
            if start >= at:  # else a name inside of a replaced part
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
