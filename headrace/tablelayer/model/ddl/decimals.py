"""Comparisons of DECIMAL values with literals that need more than 38 digits together.

DuckDB compares a DECIMAL(38, 10) with 0.000000000001 as DECIMAL(38, 12), and fails for values of 27 digits before the
point. Here such a literal becomes the next lower value of the column's scale, with the comparison that has the same
answer.
"""

from __future__ import annotations

import decimal
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from sqlglot import exp

from headrace.tablelayer.model.ddl.query_types import QueryTypes
from headrace.tablelayer.model.filters.trees import only, understood

_DIGITS_MAX = 38
_EXACT = decimal.Context(prec=4 * _DIGITS_MAX)
_MIRRORED: dict[type, type] = {
    exp.LT: exp.GT, exp.LTE: exp.GTE, exp.GT: exp.LT, exp.GTE: exp.LTE, exp.EQ: exp.EQ, exp.NEQ: exp.NEQ,
}  # fmt: skip
_LOWER: dict[type, type] = {exp.LT: exp.LTE, exp.LTE: exp.LTE, exp.GT: exp.GT, exp.GTE: exp.GT}
"""Comparisons with the next lower value that replace those with a value between two values of the scale."""


def adapt_decimals(tree: exp.Expr, tables: Mapping[str, pa.Schema]) -> None:
    """Change a query in place. `tables`: schemas by the keys in the `meta` of the table nodes."""
    types = QueryTypes(tables)
    node: Any
    for node in reversed(list(tree.walk())):
        if only(node, exp.Between, "this", "low", "high"):
            low = exp.GTE(this=node.this.copy(), expression=node.args["low"].copy())
            high = exp.LTE(this=node.this.copy(), expression=node.args["high"].copy())
            given, both = types.of(node.this), [low, high]
            answers = [_compared(each, given) for each in both]
            if any(answers):
                parts = [answer or each for answer, each in zip(answers, both, strict=True)]
                node.replace(exp.Paren(this=exp.And(this=parts[0], expression=parts[1])))
        elif only(node, exp.In, "this", "expressions"):
            _among(node, types.of(node.this))
        elif type(node) in _MIRRORED and understood(node, "this", "expression"):
            left, right = types.of(node.this), types.of(node.expression)
            mirrored = _MIRRORED[type(node)](this=node.expression.copy(), expression=node.this.copy())
            answer = _compared(node, left) or _compared(mirrored, right)
            if answer is not None:
                node.replace(exp.Paren(this=answer))
        elif isinstance(node, (exp.NullSafeEQ, exp.NullSafeNEQ)) and understood(node, "this", "expression"):
            for value, other in ((node.this, node.expression), (node.expression, node.this)):
                answer = _compared(exp.EQ(this=value.copy(), expression=other.copy()), types.of(value))
                if answer is not None:
                    equal = exp.Coalesce(this=answer, expressions=[exp.Boolean(this=False)])
                    node.replace(equal if isinstance(node, exp.NullSafeEQ) else exp.Not(this=equal))
                    break


def _number(node: Any) -> decimal.Decimal | None:
    """Return a literal that is a DECIMAL in DuckDB."""
    while only(node, exp.Paren, "this"):
        node = node.this
    if only(node, exp.Neg, "this"):
        found = _number(node.this)
        return None if found is None else _EXACT.minus(found)
    if not only(node, exp.Literal, "this", "is_string") or node.is_string:
        return None
    text = node.this
    digits = text.replace(".", "", 1).lstrip("0")
    return decimal.Decimal(text) if digits.isdigit() and len(digits) <= _DIGITS_MAX else None


def _lower(number: decimal.Decimal, kind: pa.DataType) -> decimal.Decimal | None:
    """Return the next lower value of the scale if DuckDB cannot compare the number with all values of a type."""
    _, _, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    before = max(kind.precision - kind.scale, number.adjusted() + 1)
    if before + max(kind.scale, -exponent) <= _DIGITS_MAX:
        return None
    return number.quantize(
        decimal.Decimal(1).scaleb(-kind.scale), rounding=decimal.ROUND_FLOOR, context=_EXACT
    )


def _compared(comparison: Any, kind: pa.DataType | None) -> exp.Expr | None:
    """Return another comparison with the same answer; None if DuckDB can carry it out."""
    number = _number(comparison.expression)
    if kind is None or not pa.types.is_decimal(kind) or number is None:
        return None
    lower = _lower(number, kind)
    if lower is None:
        return None
    word, value = type(comparison), comparison.this
    if abs(lower) >= decimal.Decimal(10) ** (_DIGITS_MAX - kind.scale):
        holds = word is exp.NEQ or word in ((exp.LT, exp.LTE) if number > 0 else (exp.GT, exp.GTE))
    elif lower == number:
        return word(this=value.copy(), expression=_literal(lower))  # type: ignore[no-any-return]
    elif word in _LOWER:
        return _LOWER[word](this=value.copy(), expression=_literal(lower))  # type: ignore[no-any-return]
    else:
        holds = word is exp.NEQ
    return (exp.EQ if holds else exp.NEQ)(this=value.copy(), expression=value.copy())


def _literal(number: decimal.Decimal) -> exp.Expr:
    literal = exp.Literal.number(f"{abs(number):f}")
    return exp.Neg(this=literal) if number < 0 else literal


def _among(node: exp.In, kind: pa.DataType | None) -> None:
    """Rewrite an IN with those values that the column can have."""
    kept = list[exp.Expr]()
    for value in node.expressions:
        answer = _compared(exp.EQ(this=node.this.copy(), expression=value.copy()), kind)
        if answer is None:
            kept.append(value)
        elif isinstance(answer, exp.EQ):
            kept.append(answer.expression)
    if kept:
        node.set("expressions", kept)
    else:
        node.replace(exp.Paren(this=exp.NEQ(this=node.this.copy(), expression=node.this.copy())))
