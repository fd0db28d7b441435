"""The column names of a query's answer, which a rewritten query keeps."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB


class AnswerNames:
    """The names that the columns of each SELECT have before a query is rewritten."""

    def __init__(self, tree: exp.Expr) -> None:
        self._names = {id(each): list(map(_shown, each.expressions)) for each in tree.find_all(exp.Select)}

    def keep(self, tree: exp.Expr) -> None:
        """Name the columns that would have another name now, in place."""
        for select in tree.find_all(exp.Select):
            for given, name in zip(list(select.expressions), self._names.get(id(select), ()), strict=False):
                if not isinstance(given, exp.Alias) and _shown(given) != name:
                    given.replace(exp.alias_(given.copy(), name, quoted=True))


def _shown(expression: exp.Expr) -> str:
    """Return approximately the name that DuckDB gives to an unnamed column."""
    return expression.sql(dialect=DuckDB, normalize_functions="lower")
