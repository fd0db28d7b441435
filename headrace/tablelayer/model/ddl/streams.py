"""A streaming query, as DuckDB's SQL over a batch of changes."""

from __future__ import annotations

from typing import Any

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from headrace.tablelayer.model.ddl.query import Select
from headrace.tablelayer.model.ddl.select import parsed, to_duckdb
from headrace.tablelayer.model.filters.trees import only, understood

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
    """Return the table of a query, its SQL over a batch named `changes` with `OP` first, and its LIMIT.

    Raises ValueError for a query that needs more than one row at a time.
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
    op = exp.column(OP, quoted=True)
    for star in tree.find_all(exp.Star):
        star.set("except_", [*(star.args.get("except_") or ()), op.copy()])
    tree.set("expressions", [exp.alias_(op, "op"), *tree.expressions])
    tree.set("limit", None)
    changed = tree.sql(dialect=DuckDB)
    (name,) = select.tables
    return name, to_duckdb(select, {name: "changes"}, text=changed), number


_OTHERWISE = "ask without EMIT CHANGES (or in batch mode) for the rows of now, or use a stream of Spark"
