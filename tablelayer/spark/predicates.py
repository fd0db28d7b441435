"""Predicates that travel to the readers: the part of a Spark SQL condition whose meaning Arrow shares.

Spark keeps the whole condition and applies it again, so what is pushed only has to keep every row for which the
condition holds. Pushed are comparisons of a column with a literal of its own kind, IN, BETWEEN, IS [NOT] NULL,
and AND, OR, NOT of those. Not pushed: FLOAT and DOUBLE (Spark's NaN equals itself and is the largest), functions,
comparisons of two columns, and literals that Spark would cast. Of a conjunction the parts that can be pushed are.

A predicate is a JSON value, because it goes through a string option: `["and", p, ...]`, `["or", p, ...]`,
`["not", p]`, `["null", column]`, `["in", column, [values]]`, or `["=" | "<" | "<=" | ">" | ">=", column, value]`;
dates and decimals are text.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterable
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tablelayer.model.schema import Column, Schema
from tablelayer.model.types import TypeKind

Predicate = list[Any]

_INTEGERS = frozenset({TypeKind.TINYINT, TypeKind.SMALLINT, TypeKind.INT, TypeKind.BIGINT})
_TEXTS = frozenset({TypeKind.STRING, TypeKind.CHAR})
_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class PushedCondition:
    """What became of a condition: `predicate` to push (None: nothing), and whether that is all of it."""

    __slots__ = ("columns", "complete", "predicate")

    def __init__(self, predicate: Predicate | None, complete: bool, columns: tuple[str, ...]) -> None:
        self.predicate = predicate
        self.complete = complete
        self.columns = columns
        """The table's columns that the condition names, pushed or not."""


def push_down(conditions: Iterable[str], schema: Schema) -> PushedCondition:
    """What can be pushed of conditions in Spark SQL, all of which must hold."""
    import sqlglot
    from sqlglot import expressions as sql
    from sqlglot.errors import SqlglotError

    by_name = {column.name.lower(): column for column in schema.columns}
    parts: list[Predicate] = []
    complete, named = True, dict[str, None]()
    for condition in conditions:
        try:
            tree = sqlglot.parse_one(condition, read="spark")
        except SqlglotError:
            # Spark's own parser decides what is wrong with it; all columns, because we cannot tell which.
            complete = False
            named |= dict.fromkeys(schema.names)
            continue
        for column in tree.find_all(sql.Column):
            known = by_name.get(column.name.lower())
            if known is not None:
                named[known.name] = None
        for part in _conjuncts(tree):
            pushed = _translate(part, by_name)
            if pushed is None:
                complete = False
            else:
                parts.append(pushed)
    predicate = None if not parts else parts[0] if len(parts) == 1 else ["and", *parts]
    return PushedCondition(predicate, complete, tuple(named))


def _conjuncts(tree: Any) -> Iterable[Any]:
    from sqlglot import expressions as sql

    if isinstance(tree, sql.Paren):
        yield from _conjuncts(tree.this)
    elif isinstance(tree, sql.And):
        yield from _conjuncts(tree.left)
        yield from _conjuncts(tree.right)
    else:
        yield tree


def _translate(tree: Any, by_name: dict[str, Column]) -> Predicate | None:
    from sqlglot import expressions as sql

    signs = {sql.EQ: "=", sql.LT: "<", sql.LTE: "<=", sql.GT: ">", sql.GTE: ">="}
    if isinstance(tree, sql.Paren):
        return _translate(tree.this, by_name)
    if isinstance(tree, (sql.And, sql.Or)):
        left, right = _translate(tree.left, by_name), _translate(tree.right, by_name)
        word = "and" if isinstance(tree, sql.And) else "or"
        return None if left is None or right is None else [word, left, right]
    if isinstance(tree, sql.Not):
        inner = _translate(tree.this, by_name)
        return None if inner is None else ["not", inner]
    if isinstance(tree, sql.NEQ):
        equal = _comparison("=", tree, by_name)
        return None if equal is None else ["not", equal]
    if isinstance(tree, sql.Is) and isinstance(tree.expression, sql.Null):
        column = _column(tree.this, by_name)
        return None if column is None else ["null", column.name]
    if isinstance(tree, sql.Between):
        column = _column(tree.this, by_name)
        low = None if column is None else _literal(tree.args["low"], column)
        high = None if column is None else _literal(tree.args["high"], column)
        if column is None or low is None or high is None:
            return None
        return ["and", [">=", column.name, low], ["<=", column.name, high]]
    if isinstance(tree, sql.In) and tree.args.get("query") is None and tree.args.get("unnest") is None:
        column = _column(tree.this, by_name)
        values = [] if column is None else [_literal(value, column) for value in tree.expressions]
        return None if column is None or not values or None in values else ["in", column.name, values]
    sign = signs.get(type(tree))
    return None if sign is None else _comparison(sign, tree, by_name)


def _comparison(sign: str, tree: Any, by_name: dict[str, Column]) -> Predicate | None:
    for this, other, word in ((tree.left, tree.right, sign), (tree.right, tree.left, _MIRRORED[sign])):
        column = _column(this, by_name)
        if column is not None:
            value = _literal(other, column)
            return None if value is None else [word, column.name, value]
    return None


def _column(tree: Any, by_name: dict[str, Column]) -> Column | None:
    from sqlglot import expressions as sql

    if not isinstance(tree, sql.Column) or tree.table:
        return None
    return by_name.get(tree.name.lower())


def _literal(tree: Any, column: Column) -> Any:
    """The literal as JSON, if it is one of the column's own kind; else None."""
    from sqlglot import expressions as sql

    kind = column.type.kind
    negative = isinstance(tree, sql.Neg)
    literal = tree.this if negative else tree
    if kind is TypeKind.BOOLEAN and isinstance(literal, sql.Boolean):
        return bool(literal.this)
    if kind is TypeKind.DATE and isinstance(literal, sql.Cast) and isinstance(literal.this, sql.Literal):
        return _date(str(literal.this.this)) if literal.to.is_type("date") else None
    if not isinstance(literal, sql.Literal):
        return None
    text = str(literal.this)
    if literal.is_string:
        return text if kind in _TEXTS and not negative else None
    text = f"-{text}" if negative else text
    if kind in _INTEGERS and text.lstrip("-").isdigit():
        value = int(text)
        return value if -(2**63) <= value < 2**63 else None
    if kind is TypeKind.DECIMAL:
        try:
            number = decimal.Decimal(text)
            rounded = number.quantize(decimal.Decimal(1).scaleb(-column.type.scale))
        except decimal.InvalidOperation:
            return None
        fits = rounded == number and len(rounded.as_tuple().digits) <= column.type.precision
        return str(rounded) if fits and "e" not in text.lower() else None
    return None


def _date(text: str) -> str | None:
    import datetime

    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        return None


def arrow_expression(predicate: Predicate, schema: pa.Schema) -> pc.Expression:
    """The predicate over batches whose columns have the table's own Arrow types. Raises ValueError."""
    word, *rest = predicate
    if word in ("and", "or"):
        parts = [arrow_expression(part, schema) for part in rest]
        return reduce(lambda a, b: a & b if word == "and" else a | b, parts)
    if word == "not":
        return ~arrow_expression(rest[0], schema)
    name = rest[0]
    field = pc.field(name)
    if word == "null":
        return field.is_null()
    arrow_type = schema.field(name).type
    if word == "in":
        # Spark's IN of null is unknown, Arrow's is false: only under NOT that makes a difference.
        return pc.if_else(field.is_null(), pa.scalar(None, pa.bool_()), _is_in(field, rest[1], arrow_type))
    value = _scalar(rest[1], arrow_type)
    wide = pa.int64() if pa.types.is_integer(arrow_type) else None
    side = field if wide is None or arrow_type == wide else field.cast(wide)
    match word:
        case "=":
            return side == value
        case "<":
            return side < value
        case "<=":
            return side <= value
        case ">":
            return side > value
        case ">=":
            return side >= value
    raise ValueError(f"a predicate begins with {word!r}")


def _is_in(field: pc.Expression, values: list[Any], arrow_type: pa.DataType) -> pc.Expression:
    if pa.types.is_integer(arrow_type):
        return field.cast(pa.int64()).isin(pa.array(values, pa.int64()))
    return field.isin(pa.array([_scalar(value, arrow_type).as_py() for value in values], arrow_type))


def _scalar(value: Any, arrow_type: pa.DataType) -> pa.Scalar:
    if pa.types.is_integer(arrow_type):
        return pa.scalar(value, pa.int64())
    if pa.types.is_decimal(arrow_type):
        return pa.scalar(decimal.Decimal(value), arrow_type)
    if pa.types.is_date(arrow_type):
        return pa.scalar(value).cast(arrow_type)
    return pa.scalar(value, arrow_type)


def columns_of(predicate: Predicate) -> set[str]:
    """The columns that a predicate looks at."""
    word, *rest = predicate
    if word in ("and", "or", "not"):
        return set().union(*(columns_of(part) for part in rest))
    return {str(rest[0])}
