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
from itertools import islice
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from headrace.tablelayer.model.ddl.query_types import QueryTypes, has_nanoseconds
from headrace.tablelayer.model.filters.conditions import moment_text, nanoseconds
from headrace.tablelayer.model.filters.trees import only, understood
from headrace.tablelayer.model.types.column_types import from_arrow

_NS, _TZ_NS, _TIME_NS = "TIMESTAMP_NS", "TIMESTAMPTZ_NS", "TIME_NS"
_CUT = "MAKE_TIMESTAMP(EPOCH_NS(x) // 1000 - CAST(EPOCH_NS(x) % 1000 < 0 AS BIGINT))"
_COARSER = {
    _NS: f"COALESCE({_CUT}, CAST(x AS TIMESTAMP))",
    _TZ_NS: f"COALESCE(CAST({_CUT} AS TIMESTAMPTZ), CAST(x AS TIMESTAMPTZ))",
    _TIME_NS: "CAST(MAKE_TIMESTAMP(EPOCH_NS(x) // 1000) AS TIME)",
}
"""Conversions to microseconds. They cut, because a cast rounds; infinities have no EPOCH_NS."""
_CLAMPED = (
    "CASE WHEN CAST(x AS {0}) > CAST('2262-04-11 23:47:16.854775' AS {0}) THEN CAST('infinity' AS {1})"
    " WHEN CAST(x AS {0}) < CAST('1677-09-21 00:12:43.145225' AS {0}) THEN CAST('-infinity' AS {1})"
    " ELSE CAST(x AS {1}) END"
)
_FINER = {
    _NS: _CLAMPED.format("TIMESTAMP", _NS),
    _TZ_NS: _CLAMPED.format("TIMESTAMPTZ", _TZ_NS),
    _TIME_NS: f"CAST(x AS {_TIME_NS})",
}
"""Conversions of any moment to nanoseconds, infinite beyond the range."""
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
_LIMIT = 1 << 63
_LESS, _GREATER = (exp.LT, exp.LTE), (exp.GT, exp.GTE)
_MIRRORED: dict[type, type] = {
    exp.LT: exp.GT, exp.LTE: exp.GTE, exp.GT: exp.LT, exp.GTE: exp.LTE, exp.EQ: exp.EQ, exp.NEQ: exp.NEQ,
}  # fmt: skip
_NULL_SAFE: dict[type, tuple[type, bool]] = {
    exp.NullSafeEQ: (exp.EQ, False),
    exp.NullSafeNEQ: (exp.NEQ, True),
}
"""IS [NOT] DISTINCT FROM: the comparison that it is between values, and its answer where one side is NULL."""
_Type = exp.DataType.Type
_MOMENT_TYPES = (
    _Type.DATE,
    _Type.TIMESTAMP,
    _Type.TIMESTAMPNTZ,
    _Type.TIMESTAMP_NS,
    _Type.TIMESTAMPTZ,
    _Type.TIMESTAMPLTZ,
)
_MICROSECOND_TYPES = (
    _Type.DATE, _Type.TIME, _Type.TIMETZ, _Type.TIMESTAMP, _Type.TIMESTAMPNTZ, _Type.TIMESTAMPTZ, _Type.TIMESTAMPLTZ,
    _Type.TIMESTAMP_S, _Type.TIMESTAMP_MS,
)  # fmt: skip


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
        elif type(node) in _MIRRORED and understood(node, "this", "expression"):
            if isinstance(node.expression, (exp.Any, exp.All)):
                _among_rows(node, node.expression.this, kinds)
            else:
                _comparison(node, kinds)
        elif type(node) in _NULL_SAFE and understood(node, "this", "expression"):
            _null_safe(node, kinds)
        else:
            if isinstance(node, (*_OF_SAME_TYPE, exp.Case)):
                _with_one_type(node, kinds)
            if _takes_microseconds(node.parent, node) and (kind := kinds.of(node)) is not None:
                node.replace(_converted(node, _COARSER[kind]))


def has_fine_literals(tree: exp.Expr) -> bool:
    """Return whether a literal has more than six digits of a second."""
    return any(literal.is_string and _FINE.search(literal.this) for literal in tree.find_all(exp.Literal))


def keep_digits(tree: exp.Expr, tables: Mapping[str, pa.Schema]) -> None:
    """Give literals with more than six digits of a second DuckDB's types of nanoseconds.

    They are values of a SELECT, or sides of a comparison, whose other sides are converted: DuckDB would cut the literal
    to six digits, and equal it to a value that it is not equal to.
    """
    types = QueryTypes(tables)
    for node in list(tree.find_all(exp.Literal)):
        literal: Any = node
        if not literal.is_string or not _FINE.search(literal.this):
            continue
        value = literal.parent if only(literal.parent, exp.Cast, "this", "to") else literal
        others = _other_sides(value)
        kind = _fine_kind(value, others, types)
        if kind is None or (kind != _TIME_NS and not -_LIMIT < (_ticks(value, kind) or _LIMIT) < _LIMIT):
            continue
        shown = value.parent if isinstance(value.parent, exp.Alias) else value
        if not others and not isinstance(shown.parent, (exp.Select, exp.Tuple)):
            continue
        for other in others:
            if isinstance(other, (exp.Subquery, exp.Select)):
                other.replace(_converted_rows(other, kind))
            elif not _is_fine(other):
                other.replace(_converted(other.copy(), _FINER[kind]))
        value.replace(_cast(literal.copy(), kind))


def _other_sides(value: Any) -> list[Any]:
    """Return what a value is compared with."""
    parent = value.parent
    while only(parent, exp.Paren, "this"):
        value, parent = parent, parent.parent
    if type(parent) in _MIRRORED or type(parent) in _NULL_SAFE:
        sides = [parent.this, parent.expression]
    elif only(parent, exp.Between, "this", "low", "high"):
        sides = [parent.this, parent.args["low"], parent.args["high"]]
    elif only(parent, exp.In, "this", "expressions"):
        sides = [parent.this, *parent.expressions]
    elif only(parent, exp.In, "this", "query"):
        sides = [parent.this, parent.args["query"]]
    else:
        return []
    sides = [side.this if isinstance(side, (exp.Any, exp.All)) else side for side in sides]
    return [side for side in sides if side is not value]


def _fine_kind(value: Any, others: list[Any], types: QueryTypes) -> str | None:
    """Return the type of nanoseconds that a literal, with or without a type of its own, has beside the others."""
    if isinstance(value, exp.Cast):
        return _FINE_TYPES.get(value.to.this) if only(value.to, exp.DataType, "this", "nested") else None
    for other in others:
        found = types.of(other)
        if found is not None and pa.types.is_time(found):
            return _TIME_NS
        if found is not None and pa.types.is_timestamp(found):
            return _NS if found.tz is None else _TZ_NS
    return None


def _is_fine(node: exp.Expr) -> bool:
    """Return whether a node is a literal of a type of nanoseconds already, or one that will be."""
    while only(node, exp.Paren, "this"):
        node = node.this
    literal = node.this if isinstance(node, exp.Cast) else node
    return isinstance(literal, exp.Literal) and literal.is_string and bool(_FINE.search(literal.this))


_FINE = re.compile(r"\.[0-9]{6}[0-9]*[1-9]")
_FINE_TYPES = {
    exp.DataType.Type.TIMESTAMP: _NS,
    exp.DataType.Type.TIMESTAMPNTZ: _NS,
    exp.DataType.Type.TIMESTAMPTZ: _TZ_NS,
    exp.DataType.Type.TIME: _TIME_NS,
}


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
        mirrored = _MIRRORED[type(node)](this=node.expression.copy(), expression=node.this.copy())
        node.replace(exp.Paren(this=_compared(mirrored, other)))
    elif kind is not None and other is None:
        node.replace(exp.Paren(this=_compared(node.copy(), kind)))


def _null_safe(node: Any, kinds: _Kinds) -> None:
    """Change IS [NOT] DISTINCT FROM. A literal is never NULL; the conversion of another value keeps a NULL."""
    comparison, without_value = _NULL_SAFE[type(node)]
    for column, other in ((node.this, node.expression), (node.expression, node.this)):
        kind = kinds.of(column)
        if kind is None or kinds.of(other) is not None:
            continue
        if _ticks(other, kind) is None:
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
        query.replace(_converted_rows(query, kind))
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
            value.replace(_cast(value.copy(), wanted))


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
        return _NS if arrow_type.tz is None else _TZ_NS
    return _TIME_NS


def _cast(node: exp.Expr, kind: str) -> exp.Expr:
    return exp.Cast(this=node, to=exp.DataType(this=exp.DataType.Type.USERDEFINED, kind=kind))


def _converted(node: exp.Expr, formula: str) -> exp.Expr:
    """Return a formula over `x` with the node in its place.

    A node of many parts is written once: copies of copies would grow without a limit.
    """
    if len(list(islice(node.walk(), _PARTS_MAX + 1))) <= _PARTS_MAX:
        made, name = sqlglot.parse_one(formula, read=DuckDB), "x"
    else:
        made, name = (
            sqlglot.parse_one(f"LIST_TRANSFORM([given], LAMBDA x : {formula})[1]", read=DuckDB),
            "given",
        )
    for place in list(made.find_all(exp.Column)):
        if place.name == name:
            place.replace(exp.Paren(this=node.copy()))
    return made


_PARTS_MAX = 8


def _converted_rows(query: Any, kind: str) -> exp.Expr:
    """Return a query of one column with its values in nanoseconds."""
    made: Any = sqlglot.parse_one(f"(SELECT {_FINER[kind]} FROM (SELECT 1) AS each_(x))", read=DuckDB)
    made.find(exp.From).this.set(
        "this", (query.unnest() if isinstance(query, exp.Subquery) else query).copy()
    )
    return made  # type: ignore[no-any-return]


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


def _ticks(node: Any, kind: str) -> int | None:
    """Return the nanoseconds of a literal, of any size; None for anything else."""
    while only(node, exp.Paren, "this"):
        node = node.this
    if only(node, exp.Cast, "this", "to") and only(node.to, exp.DataType, "this"):
        if node.to.this not in _MOMENT_TYPES:
            return None
        node = node.this
    if kind == _TIME_NS or not only(node, exp.Literal, "this", "is_string") or not node.is_string:
        return None
    data_type = from_arrow(pa.timestamp("ns", None if kind == _NS else "UTC"))
    try:
        text = moment_text(node.this, data_type)
    except ValueError:
        return None
    return None if text is None else nanoseconds(text)


def _literal(ticks: int, kind: str) -> exp.Expr:
    """Return a literal within the range, in DuckDB's syntax; the ends of the range are its infinities."""
    if abs(ticks) == _LIMIT - 1:
        text = "infinity" if ticks > 0 else "-infinity"
    else:
        shown = pa.scalar(ticks, pa.timestamp("ns")).cast(pa.string()).as_py()
        text = shown if kind == _NS else f"{shown}+00"
    return _cast(exp.Literal.string(text), kind)


def _compared(comparison: exp.Expr, kind: str) -> exp.Expr:
    """Return a comparison of a column of the kind, on its left side, with any expression."""
    column, other = comparison.this, comparison.expression
    ticks = _ticks(other, kind)
    if ticks is None:
        comparison.set("expression", _operand(other, kind))
        return comparison
    least = _literal(1 - _LIMIT, kind)
    if ticks == -_LIMIT and type(comparison) in (exp.EQ, exp.LTE):
        return exp.LT(this=column, expression=least)
    if ticks == -_LIMIT and type(comparison) in (exp.NEQ, exp.GT):
        return exp.GTE(this=column, expression=least)
    if -_LIMIT < ticks < _LIMIT:
        comparison.set("expression", _literal(ticks, kind))
        return comparison
    holds = type(comparison) is exp.NEQ or type(comparison) in (_LESS if ticks > 0 else _GREATER)
    return (exp.EQ if holds else exp.NEQ)(this=column, expression=column.copy())


def _operand(other: Any, kind: str) -> exp.Expr:
    """Return the other side of a comparison if it is not a literal that was understood."""
    of_text = only(other, exp.Cast, "this", "to") and only(other.this, exp.Literal, "this", "is_string")
    if of_text and kind == _TIME_NS and other.to.is_type("time"):
        return _cast(other.this, kind)
    if isinstance(other, exp.Subquery):
        return _converted_rows(other, kind)
    if isinstance(other, (exp.Literal, exp.Null, exp.Tuple)):
        return other
    return _converted(other, _FINER[kind])


def _among(node: exp.In, kind: str) -> None:
    """Rewrite an IN with those values that the column can have."""
    kept, column = list[exp.Expr](), node.this
    for value in node.expressions:
        ticks = _ticks(value, kind)
        if ticks is None:
            kept.append(_operand(value.copy(), kind))
        elif -_LIMIT < ticks < _LIMIT:
            kept.append(_literal(ticks, kind))
        elif ticks == -_LIMIT:
            return  # DuckDB reports that it has no such value
    if kept:
        node.set("expressions", kept)
    else:
        node.replace(exp.Paren(this=exp.NEQ(this=column.copy(), expression=column.copy())))
