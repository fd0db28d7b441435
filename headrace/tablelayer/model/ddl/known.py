"""The clauses that a query may have: those that DuckDB has.

sqlglot's grammar accepts clauses of many engines (`FOR UPDATE`, `WITH (NOLOCK)`, `CLUSTER BY`), and drops or rewrites
those that DuckDB does not have. Here they are refused.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ErrorLevel, UnsupportedError

from headrace.tablelayer.model.filters.trees import understood

_AROUND = ("with_", "order", "limit", "offset")
_KNOWN: dict[type[exp.Expr], tuple[str, ...]] = {
    exp.Select: (
        *_AROUND, "expressions", "distinct", "from_", "joins", "laterals", "where", "group", "having", "qualify",
        "windows", "sample",
    ),
    exp.Subquery: (*_AROUND, "this", "alias", "joins", "laterals", "pivots", "sample"),
    exp.SetOperation: (*_AROUND, "this", "expression", "distinct", "by_name"),
    exp.Table: (
        "this", "alias", "db", "catalog", "joins", "laterals", "pivots", "version", "ordinality", "sample",
    ),
    exp.TableAlias: ("this", "columns"),
    exp.From: ("this",),
    exp.Where: ("this",),
    exp.Join: ("this", "on", "side", "kind", "using", "method", "pivots"),
    exp.With: ("expressions", "recursive"),
    exp.CTE: ("this", "alias", "materialized"),
    exp.Limit: ("expression", "limit_options"),
    exp.Fetch: ("direction", "count", "limit_options"),
    exp.Like: ("this", "expression", "negate"),
    exp.ILike: ("this", "expression", "negate"),
    exp.Between: ("this", "low", "high"),
    exp.In: ("this", "expressions", "query", "unnest", "field"),
    exp.Is: ("this", "expression", "negate"),
}  # fmt: skip


_ORDERED = (exp.Mode, exp.PercentileCont, exp.PercentileDisc)
"""DuckDB's functions with WITHIN GROUP."""


def check_known(tree: exp.Expr) -> None:
    """Raise ValueError for a query with a clause that DuckDB does not have."""
    for node in tree.walk():
        kind: Any = type(node)
        names = _names(kind)
        if names is not None and not understood(node, *names):
            unknown = next(name for name in node.args if not understood(node, *names, *_but(node, name)))
            raise ValueError(f"{unknown.strip('_').upper()} of {_shown(node)} is not in DuckDB's SQL")
        if isinstance(node, exp.LimitOptions):
            wanted = ("rows",) if isinstance(node.parent, exp.Fetch) else ("percent",)
            if not understood(node, *wanted):
                raise ValueError("LIMIT takes a number or PERCENT, FETCH a number of ROWS ONLY")
        if isinstance(node, exp.WithinGroup) and not isinstance(node.this, _ORDERED):
            raise ValueError(
                f"{_shown(node.this)} has no WITHIN GROUP in DuckDB's SQL: write ORDER BY in its brackets"
            )
        if isinstance(node, exp.DataType) and not isinstance(
            node.parent, (exp.Cast, exp.DataType, exp.ColumnDef)
        ):
            # The parser reads `text[1]` as a type, and DuckDB as an element of a column.
            raise ValueError(
                f"{_shown(node)} is a type, but a value is needed; put a column's name that is also a type's in double"
                " quotes"
            )
    try:
        tree.sql(dialect=DuckDB, unsupported_level=ErrorLevel.RAISE)
    except UnsupportedError as error:
        raise ValueError(str(error)) from None


@cache
def _names(kind: type) -> tuple[str, ...] | None:
    return next((names for known, names in _KNOWN.items() if issubclass(kind, known)), None)


def _but(node: exp.Expr, name: str) -> list[str]:
    return [each for each in node.args if each != name]


def _shown(node: exp.Expr) -> str:
    text = node.sql(dialect=DuckDB)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_SHOWN = 60
