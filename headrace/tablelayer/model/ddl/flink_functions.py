"""Flink's names and functions in a query, rewritten to those of DuckDB.

- Names with a catalog lose it.
- DATE_FORMAT, TO_TIMESTAMP with a pattern, JSON_VALUE and PROCTIME become DuckDB's functions.

A function that cannot keep its meaning is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sqlglot import exp

from headrace.tablelayer.model.ddl.answer_names import AnswerNames
from headrace.tablelayer.model.ddl.names import Names
from headrace.tablelayer.model.filters.trees import only


def translate(tree: exp.Expr, names: Names) -> bool:
    """Change names and functions in place; return whether something changed. Raises ValueError."""
    changed = _without_catalogs(tree, names)
    node: Any
    for node in list(tree.find_all(exp.UnixToTime)):
        if node.args.get("scale") is not None:  # the parser has Snowflake's meaning of a second argument
            node.replace(exp.Anonymous(this="TO_TIMESTAMP", expressions=[node.this, node.args["scale"]]))
    answer = AnswerNames(tree)
    for node in reversed(list(tree.walk())):
        rewrite = _rewrite_of(node)
        if rewrite is not None:
            node.replace(rewrite(node))
            changed = True
    if changed:
        answer.keep(tree)
    return changed


def _without_catalogs(tree: exp.Expr, names: Names) -> bool:
    found = [table for table in tree.find_all(exp.Table) if table.args.get("catalog") is not None]
    catalogs = {table.catalog for table in found}
    for table in found:
        database = names.database_of(table.catalog, table.db)
        table.set("catalog", None)
        table.set("db", exp.to_identifier(database, quoted=True))
    for column in tree.find_all(exp.Column):
        if column.catalog and column.catalog in catalogs:
            column.set("catalog", None)
            column.set("db", None)
    return bool(found)


def _rewrite_of(node: Any) -> Callable[[Any], exp.Expr] | None:
    if only(node, exp.JSONValue, "this", "path", "returning", "on_condition"):
        return _json_value
    if only(node, exp.Anonymous, "this", "expressions"):
        return _FUNCTIONS.get((str(node.this).upper(), len(node.expressions)))
    return None


def _to_timestamp(node: Any) -> exp.Expr:
    text, pattern = node.expressions
    written = exp.Literal.string(strftime_pattern(_text(pattern, "TO_TIMESTAMP")))
    return exp.Anonymous(this="TRY_STRPTIME", expressions=[text.copy(), written])


def _date_format(node: Any) -> exp.Expr:
    moment, pattern = node.expressions
    written = strftime_pattern(_text(pattern, "DATE_FORMAT"))
    as_time = exp.Cast(this=moment.copy(), to=exp.DataType(this=exp.DataType.Type.TIMESTAMP))
    return exp.Anonymous(this="STRFTIME", expressions=[as_time, exp.Literal.string(written)])


def _json_value(node: Any) -> exp.Expr:
    path = _text(node.args["path"], "JSON_VALUE")
    if path.startswith("strict "):
        raise ValueError("JSON_VALUE: a strict path is not in this release; write the path without 'strict'")
    condition = node.args.get("on_condition")
    if condition is not None and any(
        value not in (None, "NULL ON EMPTY", "NULL ON ERROR") for value in condition.args.values()
    ):
        raise ValueError(
            "JSON_VALUE: ON EMPTY and ON ERROR give NULL only; use coalesce(JSON_VALUE(...), value)"
        )
    document = exp.TryCast(this=node.this.copy(), to=exp.DataType(this=exp.DataType.Type.JSON))
    scalar = exp.Anonymous(
        this="JSON_VALUE", expressions=[document, exp.Literal.string(path.removeprefix("lax "))]
    )
    text = exp.Anonymous(this="JSON_EXTRACT_STRING", expressions=[scalar, exp.Literal.string("$")])
    returning = node.args.get("returning")
    return text if not returning else exp.TryCast(this=text, to=returning.copy())


def _proctime(_: Any) -> exp.Expr:
    return exp.CurrentTimestamp()


_FUNCTIONS: dict[tuple[str, int], Callable[[Any], exp.Expr]] = {
    ("DATE_FORMAT", 2): _date_format,
    ("PROCTIME", 0): _proctime,
    ("TO_TIMESTAMP", 2): _to_timestamp,
}


def _text(node: Any, function: str) -> str:
    if not (only(node, exp.Literal, "this", "is_string") and node.is_string):
        raise ValueError(f"{function}: the pattern or path must be a text in single quotes")
    return str(node.this)


_LETTERS = {
    "yyyy": "%Y", "yy": "%y", "MM": "%m", "M": "%-m", "MMM": "%b", "MMMM": "%B", "dd": "%d", "d": "%-d", "DDD": "%j",
    "HH": "%H", "H": "%-H", "hh": "%I", "h": "%-I", "mm": "%M", "m": "%-M", "ss": "%S", "s": "%-S", "SSS": "%g",
    "SSSSSS": "%f", "a": "%p", "E": "%a", "EEE": "%a", "EEEE": "%A",
}  # fmt: skip
_PATTERN = re.compile(
    r"'(?P<quoted>(?:[^']|'')*)'|(?P<letters>([A-Za-z])\3*)|(?P<other>[^A-Za-z']+)|(?P<wrong>')"
)


def strftime_pattern(pattern: str) -> str:
    """Return DuckDB's pattern of times for Java's. Raises ValueError for letters without an equivalent."""
    if "%" in pattern:
        raise ValueError(
            f"the pattern '{pattern}' has %: write it with Java's letters, as 'yyyy-MM-dd', or use strftime"
        )
    written = ""
    for piece in _PATTERN.finditer(pattern):
        if piece["wrong"]:
            raise ValueError(f"the pattern '{pattern}' has a quote that is not closed")
        if piece["letters"]:
            if piece["letters"] not in _LETTERS:
                raise ValueError(
                    f"the pattern '{pattern}' has '{piece['letters']}'; the letters are {', '.join(_LETTERS)}"
                )
            written += _LETTERS[piece["letters"]]
        elif piece["other"]:
            written += piece["other"]
        else:
            written += piece["quoted"].replace("''", "'") or "'"
    return written


# Hints


# Lookup joins
