"""A streaming query, as DuckDB's SQL over a batch of changes."""

from __future__ import annotations

from typing import Any

from sqlglot import TokenType, exp
from sqlglot.dialects.duckdb import DuckDB

from headrace.tablelayer.model.ddl.query import Select
from headrace.tablelayer.model.ddl.select import parsed, to_duckdb, tokens_of
from headrace.tablelayer.model.filters.trees import only, understood
from headrace.tablelayer.model.types.quoting import quoted

OP = "\ue000op"
"""The column of a batch with the kind of each change, which no table has."""
_NEEDS_MORE_ROWS = (
    exp.AggFunc,
    exp.Window,
    exp.Query,
    exp.Unnest,
    exp.Pivot,
    exp.Columns,
    exp.PositionalColumn,
)


def stream_query(select: Select) -> tuple[str, str, int | None]:
    """Return the table of a query, its SQL over a batch named `changes`, and its LIMIT.

    The first column is the kind of each change, `op`. A `*` has the column `OP`, too. Raises ValueError for a query
    that needs more than one row at a time.
    """
    tree: Any = parsed(select)
    if type(tree) is not exp.Select or len(select.tables) != 1:
        raise ValueError(f"only a SELECT from one table goes on with its changes; {_OTHERWISE}")
    if not understood(tree, "expressions", "from_", "where", "limit"):
        wrong = next(
            name
            for name in tree.args
            if name not in ("expressions", "from_", "where", "limit") and tree.args[name]
        )
        raise ValueError(f"{wrong.strip('_').upper()} is not part of a streaming query; {_OTHERWISE}")
    found = next(
        (node for node in tree.walk() if node is not tree and isinstance(node, _NEEDS_MORE_ROWS)), None
    )
    if found is not None:
        raise ValueError(
            f"{found.sql(dialect=DuckDB)} needs more than one row, and a streaming query has one at a time;"
            f" {_OTHERWISE}"
        )
    limit = tree.args.get("limit")
    number: int | None = None
    if limit is not None:
        if not only(limit, exp.Limit, "expression") or not limit.expression.is_int:
            raise ValueError("LIMIT of a streaming query must be a number")
        number = int(limit.expression.this)
    (name,) = select.tables
    return name, to_duckdb(select, {name: "changes"}, text=_with_op(select.sql)), number


def _with_op(text: str) -> str:
    """Return the text of a query with `OP` as its first column."""
    op = f"{quoted(OP)} AS op, "
    for token in tokens_of(text):
        if token.token_type is TokenType.SELECT:
            return f"{text[: token.end + 1]} {op}{text[token.end + 1 :]}"
    return f"SELECT {op}* {text}"  # FROM t


_OTHERWISE = "ask without EMIT CHANGES (or in batch mode) for the rows of now, or use a stream of Spark"
