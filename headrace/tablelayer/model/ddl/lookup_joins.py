"""Flink's lookup joins, `JOIN t FOR SYSTEM_TIME AS OF o.ptime`: joins with the rows that the table has now."""

from __future__ import annotations

from typing import Any

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from headrace.tablelayer.model.ddl.scopes import defining
from headrace.tablelayer.model.filters.trees import understood


def join_lookups(tree: exp.Expr, database: str) -> tuple[bool, list[tuple[str, str]]]:
    """Change lookup joins into joins with the present rows, in place. Raises ValueError.

    Return whether there were any, and pairs of (table, name): the table must declare the name as the time of
    processing, which is not known here.
    """
    found, changed = list[tuple[str, str]](), False
    for table in list(tree.find_all(exp.Table)):
        version = table.args.get("version")
        if version is None or version.this != "TIMESTAMP" or version.args.get("kind") != "AS OF":
            continue
        moment = version.expression
        if isinstance(moment, exp.Column):
            found += _time_of(moment, table, database)
        elif not isinstance(moment, exp.CurrentTimestamp):
            continue
        join = table.parent
        if not isinstance(join, exp.Join) or join.this is not table:
            raise ValueError(
                f"FOR SYSTEM_TIME AS OF {moment.sql(dialect=DuckDB)} is for the right side of a JOIN: the present rows"
                " are those of the table without it"
            )
        if join.side not in ("", "LEFT") or join.kind not in ("", "INNER", "OUTER") or join.method:
            raise ValueError("a lookup join is a JOIN or a LEFT JOIN with ON: other joins have no lookup")
        table.set("version", None)
        changed = True
    return changed, found


def _time_of(column: exp.Column, table: exp.Table, database: str) -> list[tuple[str, str]]:
    """Check that a column is the time of processing of another source of the same SELECT."""
    select = table.find_ancestor(exp.Select)
    sources: list[Any] = []
    if select is not None and isinstance(select.args.get("from_"), exp.From):
        sources = [select.args["from_"].this, *(join.this for join in select.args.get("joins") or ())]
    named = [
        each
        for each in sources
        if each is not table and each.alias_or_name.lower() == column.table.lower()
    ] if column.table else [each for each in sources[:1] if each is not table]  # fmt: skip
    shown = column.sql(dialect=DuckDB)
    if len(named) != 1 or not understood(column, "this", "table"):
        raise ValueError(f"{shown} in FOR SYSTEM_TIME AS OF is not a column of the left side of the JOIN")
    source = named[0]
    if isinstance(source, exp.Table):
        definition = defining(source) if not source.db else None
        if definition is None:
            return [(f"{source.db or database}.{source.name}", column.name)]
        source = definition
    query = source.this
    if isinstance(query, exp.Select) and any(
        isinstance(each, exp.Alias)
        and each.alias.lower() == column.name.lower()
        and isinstance(each.this, exp.CurrentTimestamp)
        for each in query.expressions
    ):
        return []
    raise ValueError(
        f"{shown} is not the time of processing: a lookup join reads the present rows, FOR SYSTEM_TIME AS OF"
        f" {column.table or 'o'}.ptime with PROCTIME() AS ptime in the left side"
    )
