"""Literals with more than six digits of a second, which DuckDB would cut to six."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.tablelayer.model.ddl.nanoseconds import (
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
from headrace.tablelayer.model.ddl.query_types import QueryTypes
from headrace.tablelayer.model.filters.trees import only


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
        if kind is None or (kind != TIME_NS and not -LIMIT < (ticks_of(value, kind) or LIMIT) < LIMIT):
            continue
        shown = value.parent if isinstance(value.parent, exp.Alias) else value
        if not others and not isinstance(shown.parent, (exp.Select, exp.Tuple)):
            continue
        for other in others:
            if isinstance(other, (exp.Subquery, exp.Select)):
                other.replace(converted_rows(other, kind))
            elif not _is_fine(other):
                other.replace(converted(other.copy(), FINER[kind]))
        value.replace(cast(literal.copy(), kind))


def _other_sides(value: Any) -> list[Any]:
    """Return the expressions that a value is compared with."""
    parent = value.parent
    while only(parent, exp.Paren, "this"):
        value, parent = parent, parent.parent
    if type(parent) in MIRRORED or type(parent) in NULL_SAFE:
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
            return TIME_NS
        if found is not None and pa.types.is_timestamp(found):
            return NS if found.tz is None else TZ_NS
    return None


def _is_fine(node: exp.Expr) -> bool:
    """Return whether a node is a literal of a type of nanoseconds already, or one that will be."""
    while only(node, exp.Paren, "this"):
        node = node.this
    literal = node.this if isinstance(node, exp.Cast) else node
    return isinstance(literal, exp.Literal) and literal.is_string and bool(_FINE.search(literal.this))


_FINE = re.compile(r"\.[0-9]{6}[0-9]*[1-9]")
_FINE_TYPES = {
    exp.DataType.Type.TIMESTAMP: NS,
    exp.DataType.Type.TIMESTAMPNTZ: NS,
    exp.DataType.Type.TIMESTAMPTZ: TZ_NS,
    exp.DataType.Type.TIME: TIME_NS,
}
