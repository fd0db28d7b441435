"""Simple queries, which a lookup, a prefix lookup, a count or a limit scan can answer."""

from __future__ import annotations

from typing import Any

from sqlglot import exp

from headrace.tablelayer.model.filters.trees import conjuncts, only, understood
from headrace.tablelayer.model.types.column_types import DATE, timestamp
from headrace.tablelayer.model.types.values import Value, negated, number, typed


def simple_parts(tree: exp.Expr, source: exp.Table | None) -> dict[str, Any] | None:
    """Return the parts of a simple query, or None if it is not one."""
    if source is None or source.args.get("version") is not None:
        return None
    if not understood(tree, "expressions", "from_", "where", "limit"):
        return None
    columns: tuple[str, ...] | None = None
    expressions = tree.expressions
    is_count = len(expressions) == 1 and is_plain_count(expressions[0])
    if not is_count and not (len(expressions) == 1 and is_plain_star(expressions[0])):
        if not all(is_plain_column(expression, source) for expression in expressions):
            return None
        columns = tuple(expression.name for expression in expressions)
        if len(set(columns)) != len(columns):
            return None
    equals: dict[str, Value] = {}
    for condition in conditions_of(tree):
        pair = _equality(condition, source)
        if pair is None or pair[0] in equals:
            return None
        equals[pair[0]] = pair[1]
    limit = tree.args.get("limit")
    number: int | None = None
    if limit is not None:
        if not only(limit, exp.Limit, "expression"):
            return None  # such as PERCENT
        rows = limit.expression
        if not (only(rows, exp.Literal, "this", "is_string") and rows.this.isdigit()):
            return None
        number = int(rows.this)
    return {"columns": columns, "equals": equals, "limit": number, "is_count": is_count}


def is_plain_count(expression: exp.Expr) -> bool:
    """Return whether an expression is `COUNT(*)`."""
    return only(expression, exp.Count, "this", "big_int") and is_plain_star(expression.this)


def is_plain_table(table: exp.Table) -> bool:
    """Return whether a table has its own columns, all its rows (at a moment) and no other clauses."""
    alias = table.args.get("alias")
    if not only(table, exp.Table, "this", "db", "alias", "version"):
        return False
    if alias is not None and not (only(alias, exp.TableAlias, "this") and _is_name(alias.this)):
        return False
    return _is_name(table.this) and (table.args.get("db") is None or _is_name(table.args["db"]))


def _is_name(node: Any) -> bool:
    return only(node, exp.Identifier, "this", "quoted")


def is_plain_star(expression: exp.Expr) -> bool:
    """Return whether an expression is `*`, without EXCLUDE or REPLACE."""
    return only(expression, exp.Star)


def is_plain_column(expression: Any, table: exp.Table) -> bool:
    """Return whether an expression is a column of the table; `who.name` may also be a field of a column."""
    return is_named_plainly(expression) and expression.table.lower() in ("", table.alias_or_name.lower())


def is_named_plainly(column: Any) -> bool:
    """Return whether a column stands alone or after a table's name."""
    if not only(column, exp.Column, "this", "table") or not _is_name(column.this):
        return False
    return column.args.get("table") is None or _is_name(column.args["table"])


def _equality(condition: exp.Expr, table: exp.Table) -> tuple[str, Value] | None:
    if not only(condition, exp.EQ, "this", "expression"):
        return None
    for column, literal in ((condition.this, condition.expression), (condition.expression, condition.this)):
        if is_plain_column(column, table):
            found, value = literal_value(literal)
            if found:
                return column.name, value
    return None


def literal_value(expression: Any) -> tuple[bool, Value]:
    """Return (True, value) of a literal that needs no cast for a comparison; (False, None) for anything else."""
    try:
        if only(expression, exp.Literal, "this", "is_string"):
            return True, expression.this if expression.is_string else number(expression.this)
        if only(expression, exp.Boolean, "this"):
            return True, bool(expression.this)
        inner = expression.this
        if not isinstance(inner, exp.Expr) or not only(inner, exp.Literal, "this", "is_string"):
            return False, None
        if only(expression, exp.Neg, "this") and inner.is_number:
            return True, negated(number(inner.this))
        if only(expression, exp.Cast, "this", "to") and inner.is_string:
            to = expression.to
            if not only(to, exp.DataType, "this"):
                return False, None
            if to.this == exp.DataType.Type.DATE:
                return True, typed(inner.this, DATE)
            if to.this in (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPNTZ):
                return True, typed(inner.this, timestamp(6))
    except ValueError:
        return False, None
    return False, None


def conditions_of(tree: exp.Expr) -> list[exp.Expr]:
    """Return the parts of a SELECT's WHERE that must all hold."""
    where = tree.args.get("where")
    if where is None:
        return []
    return conjuncts(where.this) if only(where, exp.Where, "this") else [where]
