"""The columns and rows of each table that a query reads, so that sources give DuckDB no others."""

from __future__ import annotations

from msgspec.structs import replace
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from headrace.tablelayer.model.ddl.query import Bounds
from headrace.tablelayer.model.ddl.simple_queries import (
    conditions_of,
    is_named_plainly,
    is_plain_column,
    is_plain_table,
    literal_value,
)
from headrace.tablelayer.model.filters.trees import only, understood

_MIRRORED = {exp.GT: exp.LT, exp.GTE: exp.LTE, exp.LT: exp.GT, exp.LTE: exp.GTE, exp.EQ: exp.EQ}
_BESIDE_ONE_TABLE = (
    "with_", "expressions", "distinct", "from_", "where", "group", "having", "qualify", "windows", "order", "limit",
    "offset",
)  # fmt: skip
_KNOWN_CLAUSES = (*_BESIDE_ONE_TABLE, "joins")


def bounds_of(tree: exp.Expr, table: exp.Table | None) -> dict[str, Bounds]:
    """Return the bounds that hold for every row of the result; other conditions are left out."""
    if table is None or not understood(tree, *_BESIDE_ONE_TABLE):
        return {}
    found: dict[str, Bounds] = {}
    for condition in conditions_of(tree):
        if only(condition, exp.Between, "this", "low", "high"):
            parts: list[exp.Expr] = [
                exp.GTE(this=condition.this, expression=condition.args["low"]),
                exp.LTE(this=condition.this, expression=condition.args["high"]),
            ]
        else:
            parts = [condition]
        for part in parts:
            _add_bound(found, part, table)
    renamed = {each.alias.lower() for each in tree.expressions if isinstance(each, exp.Alias)}
    return {name: bounds for name, bounds in found.items() if name not in renamed}


def _add_bound(found: dict[str, Bounds], condition: exp.Expr, table: exp.Table) -> None:
    kind = type(condition)
    if kind not in _MIRRORED or not understood(condition, "this", "expression"):
        return
    column, literal = condition.this, condition.expression
    if not is_plain_column(column, table):
        column, literal, kind = literal, column, _MIRRORED[kind]
    if not is_plain_column(column, table):
        return
    is_literal, value = literal_value(literal)
    if not is_literal or value is None:
        return
    name = column.name.lower()
    known = found.get(name, Bounds())
    if kind in (exp.GT, exp.GTE, exp.EQ) and known.lower is None:
        known = replace(known, lower=value, include_lower=kind is not exp.GT)
    if kind in (exp.LT, exp.LTE, exp.EQ) and known.upper is None:
        known = replace(known, upper=value, include_upper=kind is not exp.LT)
    found[name] = known


def columns_read_of(
    tree: exp.Expr, tables: list[exp.Table], database: str
) -> dict[str, frozenset[str] | None]:
    names, alone = set[str](), set[str]()
    for column in tree.find_all(exp.Column):
        # A part before a dot may also be a column whose field is wanted.
        parts = [part.name.lower() for part in column.parts]
        names.update(parts)
        if len(parts) == 1:
            alone.update(parts)
    for join in tree.find_all(exp.Join):
        names.update(using.name.lower() for using in join.args.get("using") or ())
    # A table's own name (or alias) as a value is the whole row.
    unclear = any(table.alias_or_name.lower() in alone for table in tables)
    unclear = unclear or not all(map(_names_its_columns, tree.walk()))
    return {qualified_name(table, database): None if unclear else frozenset(names) for table in tables}


def _names_its_columns(node: exp.Expr) -> bool:
    """Return whether a node uses no columns but those that it names."""
    if isinstance(node, exp.Star):
        return isinstance(node.parent, exp.Count)
    if isinstance(node, (exp.Pivot, exp.Unnest, exp.Columns, exp.PositionalColumn)):
        return False
    if isinstance(node, exp.TableAlias) and isinstance(node.parent, exp.Table):
        return understood(node, "this")  # an alias with column names counts the columns from the first
    if isinstance(node, exp.Table):
        return understood(node, "this", "db", "alias", "joins", "version", "sample", "ordinality")
    if isinstance(node, exp.Select):
        return understood(node, *_KNOWN_CLAUSES, "laterals", "sample")
    if isinstance(node, exp.Join):
        natural = node.args.get("method") == "NATURAL"
        return not natural and understood(node, "this", "on", "side", "kind", "using", "method")
    return True


def conditions_by_table(tables: list[exp.Table], database: str) -> dict[str, tuple[str, ...]]:
    """Return for each table that is read once the conditions of its SELECT's WHERE that concern only this table."""
    names = [qualified_name(table, database) for table in tables]
    found = {}
    for table, name in zip(tables, names, strict=True):
        select = table.find_ancestor(exp.Select)
        if names.count(name) > 1 or select is None or not _keeps_rows_of(select, table):
            continue
        alone = not select.args.get("joins") and isinstance(table.parent, exp.From)
        aliases = {each.alias.lower() for each in select.expressions if isinstance(each, exp.Alias)}
        about = []
        for part in conditions_of(select):
            copy = part.copy()
            columns = list(copy.find_all(exp.Column))
            if copy.find(exp.Query, exp.Where, exp.PositionalColumn) is not None or not columns:
                continue
            if all(_is_of(column, table, alone, aliases) for column in columns):
                for column in columns:
                    column.set("table", None)
                about.append(copy.sql(dialect=DuckDB))
        if about:
            found[name] = tuple(about)
    return found


def _keeps_rows_of(select: exp.Select, table: exp.Table) -> bool:
    """Return whether every row of the SELECT before WHERE has a row of this table.

    That is not so for the side of an outer join that is filled with nulls.
    """
    if not understood(select, *_KNOWN_CLAUSES) or not is_plain_table(table):
        return False
    if not isinstance(table.parent, (exp.From, exp.Join)) or table.parent.parent is not select:
        return False
    seen = isinstance(table.parent, exp.From)
    for join in select.args.get("joins") or ():
        if not understood(join, "this", "on", "side", "kind", "using"):
            return False
        if join.this is table:
            seen = True
            if join.side or join.kind not in ("", "INNER", "CROSS"):
                return False
        elif seen and join.side in ("RIGHT", "FULL"):
            return False
    return seen


def _is_of(column: exp.Column, table: exp.Table, alone: bool, aliases: set[str]) -> bool:
    if not is_named_plainly(column):
        return False
    if not column.table:
        return alone and column.name.lower() not in aliases
    return column.table.lower() == table.alias_or_name.lower()


def are_all_conditions(conditions: dict[str, tuple[str, ...]], tree: exp.Expr) -> bool:
    """Return whether the conditions of the only table are all of the WHERE."""
    return sum(map(len, conditions.values())) == len(conditions_of(tree))


def qualified_name(table: exp.Table, database: str) -> str:
    """Return the name of a table that is read; the same table at two moments has two names."""
    version = table.args.get("version")
    return f"{table.db or database}.{table.name}" + ("" if version is None else f" {version.sql()}")


"""Clauses of a SELECT whose result does not depend on rows that the WHERE excludes."""
