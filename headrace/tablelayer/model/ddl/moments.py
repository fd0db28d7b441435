"""Comparisons and functions of values with nanoseconds, rewritten in SQL that DuckDB supports.

DuckDB compares a TIMESTAMP_NS, TIMESTAMPTZ_NS or TIME_NS with another value by casting that value. A value beyond the
type's range is an error, a literal with nine digits is cut to six, and there are no comparisons of TIMESTAMPTZ_NS and
TIME_NS with the types of microseconds. Most functions take microseconds only: DuckDB rounds a TIMESTAMP_NS for them, so
that `year` can return the next year, and refuses the other two types.

Here literals become literals of the column's own type. A comparison with a literal beyond the range becomes its answer
(null for null), and another value beyond the range becomes the type's infinity. Functions get microseconds that are cut
downwards. The types are those of `query_types`; an expression of an unknown type stays unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from headrace.tablelayer.model.ddl.nanoseconds import (
    COARSER,
    FINER,
    LIMIT,
    MIRRORED,
    NS,
    NULL_SAFE,
    TIME_NS,
    TZ_NS,
    cast,
    converted,
    converted_rows,
    ticks_of,
)
from headrace.tablelayer.model.ddl.query_types import QueryTypes, has_nanoseconds
from headrace.tablelayer.model.filters.trees import only, understood

OF_MICROSECONDS = frozenset(
    {
        "age", "approx_quantile", "avg", "century", "date_add", "date_diff", "date_part", "date_sub", "date_trunc",
        "datediff", "datepart", "datesub", "datetrunc", "day", "dayname", "dayofmonth", "dayofweek", "dayofyear",
        "decade", "epoch", "epoch_ms", "epoch_us", "equi_width_bins", "era", "extract", "generate_series", "hour",
        "isfinite", "isinf", "isodow", "isoyear", "julian", "last_day", "mad", "mean", "microsecond", "millennium",
        "millisecond", "minute", "month", "monthname", "quarter", "range", "second", "time_bucket", "timezone_hour",
        "timezone_minute", "week", "weekday", "weekofyear", "year", "yearweek",
    }
)  # fmt: skip
"""DuckDB's functions of dates and times that do not take nanoseconds. Some take TIME_NS; they cut it, too."""
_OF_SAME_TYPE = (exp.Coalesce, exp.Greatest, exp.Least)
_Type = exp.DataType.Type
_MICROSECOND_TYPES = (
    _Type.DATE, _Type.TIME, _Type.TIMETZ, _Type.TIMESTAMP, _Type.TIMESTAMPNTZ, _Type.TIMESTAMPTZ, _Type.TIMESTAMPLTZ,
    _Type.TIMESTAMP_S, _Type.TIMESTAMP_MS,
)  # fmt: skip
_LESS, _GREATER = (exp.LT, exp.LTE), (exp.GT, exp.GTE)


def adapt_moments(tree: exp.Expr, tables: Mapping[str, pa.Schema]) -> None:
    """Change a query in place. `tables`: schemas by the keys in the `meta` of the table nodes."""
    kinds = _Kinds(tables)
    node: Any
    for node in reversed(list(tree.walk())):  # parts before the whole, which copies them
        if only(node, exp.Between, "this", "low", "high"):
            _between(node, kinds)
        elif only(node, exp.In, "this", "expressions") and (kind := kinds.of(node.this)) is not None:
            _among(node, kind)
        elif only(node, exp.In, "this", "query"):
            _among_rows(node, node.args["query"], kinds)
        elif type(node) in MIRRORED and understood(node, "this", "expression"):
            if isinstance(node.expression, (exp.Any, exp.All)):
                _among_rows(node, node.expression.this, kinds)
            else:
                _comparison(node, kinds)
        elif type(node) in NULL_SAFE and understood(node, "this", "expression"):
            _null_safe(node, kinds)
        else:
            if isinstance(node, (*_OF_SAME_TYPE, exp.Case)):
                _with_one_type(node, kinds)
            if _takes_microseconds(node.parent, node) and (kind := kinds.of(node)) is not None:
                node.replace(converted(node, COARSER[kind]))


def _between(node: Any, kinds: _Kinds) -> None:
    parts = [
        exp.GTE(this=node.this.copy(), expression=node.args["low"].copy()),
        exp.LTE(this=node.this.copy(), expression=node.args["high"].copy()),
    ]
    if not any(map(kinds.of, (node.this, node.args["low"], node.args["high"]))):
        return
    both = exp.And(this=parts[0], expression=parts[1])
    node.replace(exp.Paren(this=both))
    for part in parts:
        _comparison(part, kinds)


def _comparison(node: Any, kinds: _Kinds) -> None:
    kind, other = kinds.of(node.this), kinds.of(node.expression)
    if kind is None and other is not None:
        mirrored = MIRRORED[type(node)](this=node.expression.copy(), expression=node.this.copy())
        node.replace(exp.Paren(this=_compared(mirrored, other)))
    elif kind is not None and other is None:
        node.replace(exp.Paren(this=_compared(node.copy(), kind)))


def _null_safe(node: Any, kinds: _Kinds) -> None:
    """Change IS [NOT] DISTINCT FROM. A literal is never NULL; the conversion of another value keeps a NULL."""
    comparison, without_value = NULL_SAFE[type(node)]
    for column, other in ((node.this, node.expression), (node.expression, node.this)):
        kind = kinds.of(column)
        if kind is None or kinds.of(other) is not None:
            continue
        if ticks_of(other, kind) is None:
            other.replace(_operand(other.copy(), kind))
        else:
            plain = comparison(this=column.copy(), expression=other.copy())
            answer = exp.Boolean(this=without_value)
            node.replace(exp.Coalesce(this=_compared(plain, kind), expressions=[answer]))
        return


def _among_rows(node: Any, query: Any, kinds: _Kinds) -> None:
    """Change IN, ANY and ALL of a query's rows."""
    kind, other = kinds.of(node.this), kinds.of(query)
    if kind is not None and other is None:
        query.replace(converted_rows(query, kind))
    elif kind is None and other is not None:
        node.this.replace(_operand(node.this.copy(), other))


def _with_one_type(node: Any, kinds: _Kinds) -> None:
    """Cast the values that a function returns one of: DuckDB does not mix types of nanoseconds with others."""
    values = (
        [*(each.args["true"] for each in node.args["ifs"]), node.args.get("default")]
        if isinstance(node, exp.Case)
        else [node.this, *node.expressions]
    )
    wanted = kinds.common(values)
    if wanted is None:
        return
    for value in values:
        if not isinstance(value, (exp.Null, exp.Literal, type(None))) and kinds.of(value) is None:
            value.replace(cast(value.copy(), wanted))


class _Kinds:
    """DuckDB's types of the expressions that have nanoseconds."""

    def __init__(self, tables: Mapping[str, pa.Schema]) -> None:
        self._types = QueryTypes(tables)

    def of(self, node: Any) -> str | None:
        return _kind(self._types.of(node))

    def common(self, nodes: list[Any]) -> str | None:
        return _kind(self._types.common(nodes))


def _kind(arrow_type: pa.DataType | None) -> str | None:
    if arrow_type is None or not has_nanoseconds(arrow_type):
        return None
    if pa.types.is_timestamp(arrow_type):
        return NS if arrow_type.tz is None else TZ_NS
    return TIME_NS


def _takes_microseconds(parent: exp.Expr | None, node: exp.Expr) -> bool:
    """Return whether a node is calculated with, cast to a type of microseconds, or an argument of such a function."""
    while isinstance(parent, exp.Distinct):
        parent = parent.parent
    if isinstance(parent, (exp.Add, exp.Sub)):
        return True
    if isinstance(parent, exp.Cast):
        return parent.this is node and parent.to.this in _MICROSECOND_TYPES
    if not isinstance(parent, exp.Func):
        return False
    written = _FUNCTION.match(parent.sql(dialect=DuckDB))
    names = [parent.name] if isinstance(parent, exp.Anonymous) else list(type(parent).sql_names())
    return any(name.lower() in OF_MICROSECONDS for name in (*names, *(written.groups() if written else ())))


_FUNCTION = re.compile(r'"?(\w+)"?\(')


def _literal(ticks: int, kind: str) -> exp.Expr:
    """Return a literal within the range, in DuckDB's syntax; the ends of the range are its infinities."""
    if abs(ticks) == LIMIT - 1:
        text = "infinity" if ticks > 0 else "-infinity"
    else:
        shown = pa.scalar(ticks, pa.timestamp("ns")).cast(pa.string()).as_py()
        text = shown if kind == NS else f"{shown}+00"
    return cast(exp.Literal.string(text), kind)


def _compared(comparison: exp.Expr, kind: str) -> exp.Expr:
    """Return a comparison of a column of the kind, on its left side, with any expression."""
    column, other = comparison.this, comparison.expression
    ticks = ticks_of(other, kind)
    if ticks is None:
        comparison.set("expression", _operand(other, kind))
        return comparison
    least = _literal(1 - LIMIT, kind)
    if ticks == -LIMIT and type(comparison) in (exp.EQ, exp.LTE):
        return exp.LT(this=column, expression=least)
    if ticks == -LIMIT and type(comparison) in (exp.NEQ, exp.GT):
        return exp.GTE(this=column, expression=least)
    if -LIMIT < ticks < LIMIT:
        comparison.set("expression", _literal(ticks, kind))
        return comparison
    holds = type(comparison) is exp.NEQ or type(comparison) in (_LESS if ticks > 0 else _GREATER)
    return (exp.EQ if holds else exp.NEQ)(this=column, expression=column.copy())


def _operand(other: Any, kind: str) -> exp.Expr:
    """Return the other side of a comparison if it is not a literal that was understood."""
    of_text = only(other, exp.Cast, "this", "to") and only(other.this, exp.Literal, "this", "is_string")
    if of_text and kind == TIME_NS and other.to.is_type("time"):
        return cast(other.this, kind)
    if isinstance(other, exp.Subquery):
        return converted_rows(other, kind)
    if isinstance(other, (exp.Literal, exp.Null, exp.Tuple)):
        return other
    return converted(other, FINER[kind])


def _among(node: exp.In, kind: str) -> None:
    """Rewrite an IN with those values that the column can have."""
    kept, column = list[exp.Expr](), node.this
    for value in node.expressions:
        ticks = ticks_of(value, kind)
        if ticks is None:
            kept.append(_operand(value.copy(), kind))
        elif -LIMIT < ticks < LIMIT:
            kept.append(_literal(ticks, kind))
        elif ticks == -LIMIT:
            return  # DuckDB reports that it has no such value
    if kept:
        node.set("expressions", kept)
    else:
        node.replace(exp.Paren(this=exp.NEQ(this=column.copy(), expression=column.copy())))
