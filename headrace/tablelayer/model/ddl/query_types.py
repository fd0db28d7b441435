"""Arrow types of a query's expressions, as far as they follow from the columns of its tables.

A column is looked up in the FROM of its SELECT and then in the SELECTs around it, through subqueries, WITH, set
operations, fields of a ROW and functions that return one of their arguments. An expression whose type does not follow
from a column has the type None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from headrace.tablelayer.model.ddl.scopes import defining
from headrace.tablelayer.model.filters.trees import only
from headrace.tablelayer.model.types.column_types import is_list

SCHEMA = "schema"
"""The entry of a table's `meta` that has the key of its schema. Copies of the node keep it."""

_OF_FIRST = (
    exp.Paren, exp.Max, exp.Min, exp.First, exp.Last, exp.AnyValue, exp.Mode, exp.Median, exp.ArgMax, exp.ArgMin,
    exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.NthValue, exp.Window, exp.Filter, exp.IgnoreNulls,
    exp.RespectNulls, exp.Order, exp.WithinGroup, exp.Nullif, exp.PercentileDisc, exp.Quantile,
)  # fmt: skip
"""Nodes that have the type of their `this`."""
_NAMED_OF_FIRST = frozenset(
    {"arbitrary", "max_by", "min_by", "quantile_disc", "arg_max_null", "arg_min_null"}
)
_CAST_TYPES = {
    "TIMESTAMP_NS": pa.timestamp("ns"),
    "TIMESTAMPTZ_NS": pa.timestamp("ns", "UTC"),
    "TIME_NS": pa.time64("ns"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "TIME": pa.time64("us"),
    "DATE": pa.date32(),
}
Columns = Sequence[tuple[str, "pa.DataType | None"]]
"""Names in lower case, and types. A name can occur twice."""


class QueryTypes:
    """Types of expressions. `tables`: schemas by the keys in the `meta` of the table nodes (`SCHEMA`)."""

    def __init__(self, tables: Mapping[str, pa.Schema]) -> None:
        self._tables = tables
        self._under_way = set[int]()
        self._known: dict[int, tuple[Any, Columns | None]] = {}
        """Columns of queries by `id`, with the node, so that no other node gets its `id`."""

    def of(self, node: Any) -> pa.DataType | None:
        """Return the type of an expression, or None."""
        kind = type(node)
        if kind is exp.Column:
            return self._of_column(node)
        if isinstance(node, exp.Cast):
            return _CAST_TYPES.get(node.to.sql(dialect=DuckDB))
        if kind in (exp.Max, exp.Min, exp.ArgMax, exp.ArgMin) and (
            node.expressions or node.args.get("count")
        ):
            return None  # max(x, 2) is a list
        if kind in _OF_FIRST or (kind is exp.Distinct and len(node.expressions) == 1):
            return self.of(node.expressions[0] if kind is exp.Distinct else node.this)
        if kind in (exp.Coalesce, exp.Greatest, exp.Least):
            return self.common((node.this, *node.expressions))
        if kind is exp.Case:
            return self.common([each.args["true"] for each in node.args["ifs"]] + [node.args.get("default")])
        if kind is exp.If:
            return self.common((node.args.get("true"), node.args.get("false")))
        if kind is exp.Dot:
            return _field(self.of(node.this), node.expression.name)
        if kind is exp.Bracket and len(node.expressions) == 1:
            return self._of_element(node)
        if isinstance(node, exp.Query):
            columns = self.columns(node)
            return columns[0][1] if columns and len(columns) == 1 else None
        if kind is exp.Anonymous and node.name.lower() in _NAMED_OF_FIRST and node.expressions:
            return self.of(node.expressions[0])
        if kind is exp.AtTimeZone:
            given = self.of(node.this)
            if given is None or not has_nanoseconds(given) or not pa.types.is_timestamp(given):
                return None
            return pa.timestamp("ns", "UTC" if given.tz is None else None)
        if kind in (exp.Unnest, exp.Explode):
            given = self.of(node.this if kind is exp.Explode else node.expressions[0])
            return given.value_type if given is not None and is_list(given) else None
        return None

    def common(self, nodes: Iterable[Any]) -> pa.DataType | None:
        """Return the type of nodes that DuckDB gives one type: that with nanoseconds, or the type of all."""
        return _common(
            [self.of(node) for node in nodes if node is not None and not isinstance(node, exp.Null)]
        )

    def _of_element(self, node: exp.Bracket) -> pa.DataType | None:
        given, place = self.of(node.this), node.expressions[0]
        if given is None or isinstance(place, exp.Slice):
            return given
        if is_list(given):
            return given.value_type
        if pa.types.is_map(given):
            return given.item_type
        return _field(given, place.name) if isinstance(place, exp.Literal) and place.is_string else None

    def _of_column(self, column: exp.Column) -> pa.DataType | None:
        parts = [part.name.lower() for part in column.parts]
        select = column.find_ancestor(exp.Select)
        while select is not None:
            found = self._in_scope(select, parts)
            if found is not None:
                return found[0]
            select = select.find_ancestor(exp.Select)
        return None

    def _in_scope(self, select: exp.Select, parts: list[str]) -> tuple[pa.DataType | None] | None:
        """Return the type of a name in a SELECT's FROM, or None if the FROM does not have the name."""
        found, unclear = list[Any](), False
        for source in _sources(select):
            columns = self.columns(source)
            if len(parts) > 1 and source.alias_or_name.lower() == parts[0]:
                if columns is None:
                    return (None,)
                return (_fields(_common([kind for name, kind in columns if name == parts[1]]), parts[2:]),)
            unclear |= columns is None
            found += [kind for name, kind in columns or () if name == parts[0]]
        for each in select.expressions:
            if _is_named(each, parts[0]) and id(each) not in self._under_way:
                self._under_way.add(id(each))  # max(x) AS x
                found.append(self.of(each.this))
                self._under_way.discard(id(each))
        if not found:
            return (None,) if unclear else None
        return (_fields(found[0] if all(each == found[0] for each in found) else None, parts[1:]),)

    def columns(self, source: Any) -> Columns | None:
        """Return the columns of a query or of a part of a FROM, or None if they are not known."""
        if id(source) in self._under_way:
            return None  # a recursive WITH
        if id(source) not in self._known:
            self._under_way.add(id(source))
            self._known[id(source)] = source, self._columns(source)
            self._under_way.discard(id(source))
        return self._known[id(source)][1]

    def _columns(self, source: Any) -> Columns | None:
        if isinstance(source, exp.Table):
            schema = self._tables.get(source.meta.get(SCHEMA, ""))
            if schema is not None:
                return [(field.name.lower(), field.type) for field in schema]
            query = None if source.db else defining(source)
            return None if query is None else _renamed(self.columns(query), source)
        if isinstance(source, (exp.CTE, exp.Subquery)):
            return _renamed(self.columns(source.this), source)
        if isinstance(source, exp.SetOperation):
            left, right = self.columns(source.this), self.columns(source.expression)
            if left is None or right is None or source.args.get("by_name") or len(left) != len(right):
                return None
            return [
                (name, _common([one, other])) for (name, one), (_, other) in zip(left, right, strict=True)
            ]
        return self._of_select(source) if type(source) is exp.Select else None

    def _of_select(self, select: exp.Select) -> Columns | None:
        found: list[tuple[str, pa.DataType | None]] = []
        for each in select.expressions:
            if isinstance(each, exp.Star) or (
                isinstance(each, exp.Column) and isinstance(each.this, exp.Star)
            ):
                if not only(each, exp.Star) and not only(each, exp.Column, "this", "table"):
                    return None
                before = each.table.lower() if isinstance(each, exp.Column) else ""
                for source in _sources(select):
                    if before and source.alias_or_name.lower() != before:
                        continue
                    columns = self.columns(source)
                    if columns is None:
                        return None
                    found += columns
            else:
                found.append((each.alias_or_name.lower(), self.of(each.unalias())))
        return found


def _sources(select: exp.Select) -> list[exp.Expr]:
    parts = (select.args.get("from_"), *(select.args.get("joins") or ()))
    return [*(part.this for part in parts if part is not None), *(select.args.get("laterals") or ())]


def _renamed(columns: Columns | None, source: exp.Expr) -> Columns | None:
    """Return columns with the names that the source's alias gives to the first ones."""
    alias = source.args.get("alias")
    given = [] if alias is None else [each.name.lower() for each in alias.args.get("columns") or ()]
    if columns is None or len(given) > len(columns):
        return None
    names = [*given, *(name for name, _ in columns[len(given) :])]
    return [(name, kind) for name, (_, kind) in zip(names, columns, strict=True)]


def _common(kinds: Sequence[pa.DataType | None]) -> pa.DataType | None:
    finest = next((kind for kind in kinds if has_nanoseconds(kind)), None)
    if finest is not None:
        return finest
    return kinds[0] if kinds and all(kind == kinds[0] for kind in kinds) else None


def has_nanoseconds(kind: pa.DataType | None) -> bool:
    """Return whether a type is TIME, TIMESTAMP or TIMESTAMP_LTZ in nanoseconds."""
    return kind is not None and (
        (pa.types.is_timestamp(kind) and kind.unit == "ns")
        or (pa.types.is_time64(kind) and kind.unit == "ns")
    )


def _field(kind: pa.DataType | None, name: str) -> pa.DataType | None:
    if kind is None or not pa.types.is_struct(kind):
        return None
    return next((field.type for field in kind if field.name.lower() == name.lower()), None)


def _fields(kind: pa.DataType | None, names: Iterable[str]) -> pa.DataType | None:
    for name in names:
        kind = _field(kind, name)
    return kind


def _is_named(expression: exp.Expr, name: str) -> bool:
    """Return whether a SELECT expression has the name of a column but is not that column."""
    return (
        isinstance(expression, exp.Alias)
        and expression.alias.lower() == name
        and not (isinstance(expression.this, exp.Column) and expression.this.name.lower() == name)
    )
