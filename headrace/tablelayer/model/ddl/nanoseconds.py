"""DuckDB's types of nanoseconds, and conversions from and to them in SQL."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pyarrow as pa
import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from headrace.tablelayer.model.filters.conditions import moment_text, nanoseconds
from headrace.tablelayer.model.filters.trees import only
from headrace.tablelayer.model.types.column_types import from_arrow

NS, TZ_NS, TIME_NS = "TIMESTAMP_NS", "TIMESTAMPTZ_NS", "TIME_NS"
_CUT = "MAKE_TIMESTAMP(EPOCH_NS(x) // 1000 - CAST(EPOCH_NS(x) % 1000 < 0 AS BIGINT))"
COARSER = {
    NS: f"COALESCE({_CUT}, CAST(x AS TIMESTAMP))",
    TZ_NS: f"COALESCE(CAST({_CUT} AS TIMESTAMPTZ), CAST(x AS TIMESTAMPTZ))",
    TIME_NS: "CAST(MAKE_TIMESTAMP(EPOCH_NS(x) // 1000) AS TIME)",
}
"""Conversions to microseconds. They cut, because a cast rounds; infinities have no EPOCH_NS."""
_CLAMPED = (
    "CASE WHEN CAST(x AS {0}) > CAST('2262-04-11 23:47:16.854775' AS {0}) THEN CAST('infinity' AS {1})"
    " WHEN CAST(x AS {0}) < CAST('1677-09-21 00:12:43.145225' AS {0}) THEN CAST('-infinity' AS {1})"
    " ELSE CAST(x AS {1}) END"
)
FINER = {
    NS: _CLAMPED.format("TIMESTAMP", NS),
    TZ_NS: _CLAMPED.format("TIMESTAMPTZ", TZ_NS),
    TIME_NS: f"CAST(x AS {TIME_NS})",
}
"""Conversions of any moment to nanoseconds, infinite beyond the range."""
LIMIT = 1 << 63
MIRRORED: dict[type, type] = {
    exp.LT: exp.GT, exp.LTE: exp.GTE, exp.GT: exp.LT, exp.GTE: exp.LTE, exp.EQ: exp.EQ, exp.NEQ: exp.NEQ,
}  # fmt: skip
NULL_SAFE: dict[type, tuple[type, bool]] = {
    exp.NullSafeEQ: (exp.EQ, False),
    exp.NullSafeNEQ: (exp.NEQ, True),
}
"""IS [NOT] DISTINCT FROM: the comparison that it is between values, and its answer where one side is NULL."""
_PARTS_MAX = 8
_Type = exp.DataType.Type
_MOMENT_TYPES = (
    _Type.DATE,
    _Type.TIMESTAMP,
    _Type.TIMESTAMPNTZ,
    _Type.TIMESTAMP_NS,
    _Type.TIMESTAMPTZ,
    _Type.TIMESTAMPLTZ,
)


def cast(node: exp.Expr, kind: str) -> exp.Expr:
    """Return a node, cast to a type of nanoseconds."""
    return exp.Cast(this=node, to=exp.DataType(this=exp.DataType.Type.USERDEFINED, kind=kind))


def converted(node: exp.Expr, formula: str) -> exp.Expr:
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


def converted_rows(query: Any, kind: str) -> exp.Expr:
    """Return a query of one column with its values in nanoseconds."""
    made: Any = sqlglot.parse_one(f"(SELECT {FINER[kind]} FROM (SELECT 1) AS each_(x))", read=DuckDB)
    made.find(exp.From).this.set(
        "this", (query.unnest() if isinstance(query, exp.Subquery) else query).copy()
    )
    return made  # type: ignore[no-any-return]


def ticks_of(node: Any, kind: str) -> int | None:
    """Return the nanoseconds of a literal, of any size; None for anything else."""
    while only(node, exp.Paren, "this"):
        node = node.this
    if only(node, exp.Cast, "this", "to") and only(node.to, exp.DataType, "this"):
        if node.to.this not in _MOMENT_TYPES:
            return None
        node = node.this
    if kind == TIME_NS or not only(node, exp.Literal, "this", "is_string") or not node.is_string:
        return None
    data_type = from_arrow(pa.timestamp("ns", None if kind == NS else "UTC"))
    try:
        text = moment_text(node.this, data_type)
    except ValueError:
        return None
    return None if text is None else nanoseconds(text)
