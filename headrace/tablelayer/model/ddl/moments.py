"""Comparisons and functions of columns with nanoseconds, rewritten in SQL that DuckDB supports.

DuckDB compares a TIMESTAMP_NS, TIMESTAMPTZ_NS or TIME_NS with a literal by casting the literal. A literal beyond the
type's range is an error, one with nine digits is cut to six, and TIMESTAMPTZ_NS and TIME_NS have no comparisons with
the types of microseconds, and no functions. Here such literals become literals of the column's own type, and a
comparison with a value beyond the range becomes its answer (null for null). If DuckDB has refused the query
(`casts`), the other side of a comparison and the argument of a function are cast. A column is found through the
tables in the FROM of its SELECT; a column that is not found stays unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from headrace.tablelayer.model.ddl.scopes import defining
from headrace.tablelayer.model.filters.conditions import moment_text, nanoseconds
from headrace.tablelayer.model.filters.trees import only, understood
from headrace.tablelayer.model.types.column_types import from_arrow

_NS, _TZ_NS, _TIME_NS = "TIMESTAMP_NS", "TIMESTAMPTZ_NS", "TIME_NS"
_COARSER = {
    _TZ_NS: "COALESCE(CAST(MAKE_TIMESTAMP(EPOCH_NS(x) // 1000 - CAST(EPOCH_NS(x) % 1000 < 0 AS BIGINT))"
    " AS TIMESTAMPTZ), CAST(x AS TIMESTAMPTZ))",
    _TIME_NS: "CAST(MAKE_TIMESTAMP(EPOCH_NS(x) // 1000) AS TIME)",
}
"""Conversions to types that functions accept. They cut, because a cast rounds; infinities have no EPOCH_NS.

Functions accept a TIMESTAMP_NS directly.
"""
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
_MOMENT_TYPES = ("date", "timestamp", "timestampntz", "timestamp_ns", "timestamptz", "timestampltz")


def adapt_moments(tree: exp.Expr, tables: Mapping[int, pa.Schema], *, casts: bool) -> None:
    """Change a query in place. `tables`: the schemas of its table nodes, by `id`."""
    kinds = _Kinds(tables)
    if not kinds.any:
        return
    names = {id(select): list(map(_shown, select.expressions)) for select in tree.find_all(exp.Select)}
    node: Any
    for node in reversed(list(tree.walk())):  # parts before the whole, which copies them
        if only(node, exp.Between, "this", "low", "high") and (kind := kinds.of(node.this)) is not None:
            low = exp.GTE(this=node.this.copy(), expression=node.args["low"].copy())
            high = exp.LTE(this=node.this.copy(), expression=node.args["high"].copy())
            both = exp.And(this=_compared(low, kind, casts), expression=_compared(high, kind, casts))
            node.replace(exp.Paren(this=both))
        elif only(node, exp.In, "this", "expressions") and (kind := kinds.of(node.this)) is not None:
            _among(node, kind, casts)
        elif type(node) in _MIRRORED and understood(node, "this", "expression"):
            kind = kinds.of(node.this)
            other = kinds.of(node.expression)
            if kind is None and other is not None:
                mirrored = _MIRRORED[type(node)](this=node.expression.copy(), expression=node.this.copy())
                node.replace(exp.Paren(this=_compared(mirrored, other, casts)))
            elif kind is not None and kind != other:
                node.replace(exp.Paren(this=_compared(node.copy(), kind, casts)))
        elif type(node) in _NULL_SAFE and understood(node, "this", "expression"):
            _null_safe(node, kinds, casts)
        elif casts and (kind := kinds.of(node)) in _COARSER and _takes_microseconds(node.parent):
            assert kind is not None
            node.replace(_cut(node.copy(), kind))
    for select in tree.find_all(exp.Select):
        for given, name in zip(list(select.expressions), names.get(id(select), ()), strict=False):
            if not isinstance(given, exp.Alias) and _shown(given) != name:
                given.replace(exp.alias_(given.copy(), name, quoted=True))


def _null_safe(node: Any, kinds: _Kinds, casts: bool) -> None:
    """Change IS [NOT] DISTINCT FROM between a column and a literal, which is never NULL."""
    comparison, without_value = _NULL_SAFE[type(node)]
    for column, other in ((node.this, node.expression), (node.expression, node.this)):
        kind = kinds.of(column)
        if kind is not None and _ticks(other, kind) is not None:
            plain = comparison(this=column.copy(), expression=other.copy())
            answer = exp.Boolean(this=without_value)
            node.replace(exp.Coalesce(this=_compared(plain, kind, casts), expressions=[answer]))
            return


def _shown(expression: exp.Expr) -> str:
    """Return approximately the name that DuckDB gives to an unnamed column."""
    return expression.sql(dialect=DuckDB, normalize_functions="lower")


class _Kinds:
    """DuckDB's types of the columns that have nanoseconds."""

    def __init__(self, tables: Mapping[int, pa.Schema]) -> None:
        self._tables = tables
        self.any = any(_kind(each) for schema in tables.values() for each in schema.types)

    def of(self, node: Any) -> str | None:
        while only(node, exp.Paren, "this"):
            node = node.this
        if only(node, exp.Min, "this") or only(node, exp.Max, "this"):
            return self.of(node.this)
        if not only(node, exp.Column, "this", "table") or not isinstance(node.this, exp.Identifier):
            return None
        name, select = node.name.lower(), node.find_ancestor(exp.Select)
        if select is None or (not node.table and any(_is_named(each, name) for each in select.expressions)):
            return None
        found = self._of_sources(select, node.table.lower(), name)
        return found.pop() if found is not None and len(found) == 1 else None

    def _of_sources(self, select: exp.Select, qualifier: str, name: str) -> set[str | None] | None:
        """Return the types of the columns with this name in a FROM; None if they are not known."""
        found = set[str | None]()
        for source in (select.args.get("from_"), *(select.args.get("joins") or ())):
            if source is None:
                continue
            table = source.this
            if qualifier and table.alias_or_name.lower() != qualifier:
                continue
            schema = self._tables.get(id(table))
            given = (
                self._of_query(table, name)
                if schema is None
                else {_kind(each.type) for each in schema if each.name.lower() == name}
            )
            if given is None:
                return None
            found |= given
        return found

    def _of_query(self, source: exp.Expr, name: str) -> set[str | None] | None:
        """Do the same as `_of_sources` for a query in brackets or in WITH."""
        query = defining(source) if isinstance(source, exp.Table) and not source.db else source
        if not isinstance(query, (exp.CTE, exp.Subquery)) or type(query.this) is not exp.Select:
            return None
        for each in (query, source):
            alias = each.args.get("alias")
            if alias is not None and not only(alias, exp.TableAlias, "this"):
                return None
        found = set[str | None]()
        for given in query.this.expressions:
            if only(given, exp.Star):
                inner = self._of_sources(query.this, "", name)
                if inner is None:
                    return None
                found |= inner
            elif isinstance(given, exp.Star) or isinstance(given.this, exp.Star):
                return None
            elif given.alias_or_name.lower() == name:
                found.add(self.of(given.unalias()))
        return found


def _is_named(expression: exp.Expr, name: str) -> bool:
    """Return whether a SELECT expression has the name of a column but is not that column."""
    return (
        isinstance(expression, exp.Alias)
        and expression.alias.lower() == name
        and not (isinstance(expression.this, exp.Column) and expression.this.name.lower() == name)
    )


def _kind(arrow_type: pa.DataType) -> str | None:
    if pa.types.is_timestamp(arrow_type) and arrow_type.unit == "ns":
        return _NS if arrow_type.tz is None else _TZ_NS
    return _TIME_NS if pa.types.is_time64(arrow_type) and arrow_type.unit == "ns" else None


def _cast(node: exp.Expr, kind: str) -> exp.Expr:
    return exp.Cast(this=node, to=exp.DataType(this=exp.DataType.Type.USERDEFINED, kind=kind))


def _cut(node: exp.Expr, kind: str) -> exp.Expr:
    """Return a value in microseconds."""
    made = sqlglot.parse_one(_COARSER[kind], read=DuckDB)
    for place in list(made.find_all(exp.Column)):
        place.replace(node.copy())
    return made


def _takes_microseconds(parent: exp.Expr | None) -> bool:
    """Return whether a node is a function or a sum, which DuckDB only has for microseconds."""
    if isinstance(parent, (exp.Add, exp.Sub)):
        return True
    return isinstance(parent, exp.Func) and not isinstance(
        parent, (exp.AggFunc, exp.Cast, exp.And, exp.Or, exp.Is)
    )


def _ticks(node: Any, kind: str) -> int | None:
    """Return the nanoseconds of a literal, of any size; None for anything else."""
    while only(node, exp.Paren, "this"):
        node = node.this
    if only(node, exp.Cast, "this", "to") and only(node.to, exp.DataType, "this"):
        if not node.to.is_type(*_MOMENT_TYPES):
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


def _compared(comparison: exp.Expr, kind: str, casts: bool) -> exp.Expr:
    """Return a comparison of a column of the kind, on its left side, with any expression."""
    column, other = comparison.this, comparison.expression
    ticks = _ticks(other, kind)
    if ticks is None:
        comparison.set("expression", _operand(other, kind, casts))
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


def _operand(other: Any, kind: str, casts: bool) -> exp.Expr:
    """Return the other side of a comparison if it is not a literal that was understood."""
    of_text = only(other, exp.Cast, "this", "to") and only(other.this, exp.Literal, "this", "is_string")
    if of_text and kind == _TIME_NS and other.to.is_type("time"):
        return _cast(other.this, kind)
    if casts and kind != _NS and not isinstance(other, (exp.Literal, exp.Null, exp.Any, exp.All)):
        return _cast(exp.Paren(this=other), kind)
    same: exp.Expr = other
    return same


def _among(node: exp.In, kind: str, casts: bool) -> None:
    """Rewrite an IN with those values that the column can have."""
    kept, column = list[exp.Expr](), node.this
    for value in node.expressions:
        ticks = _ticks(value, kind)
        if ticks is None:
            kept.append(_operand(value.copy(), kind, casts))
        elif -_LIMIT < ticks < _LIMIT:
            kept.append(_literal(ticks, kind))
        elif ticks == -_LIMIT:
            return  # DuckDB reports that it has no such value
    if kept:
        node.set("expressions", kept)
    else:
        node.replace(exp.Paren(this=exp.NEQ(this=column.copy(), expression=column.copy())))
