"""Flink's words in a query, rewritten to what DuckDB and the sources understand.

- Names with a catalog lose it.
- DATE_FORMAT, TO_TIMESTAMP with a pattern, JSON_VALUE and PROCTIME become DuckDB's functions.
- `/*+ OPTIONS(...) */` after a table becomes a text in its `FOR VERSION AS OF`, and then the way to read the table.
- A lookup join (`JOIN t FOR SYSTEM_TIME AS OF o.ptime`) becomes a join with the rows that the table has now.

Words that cannot keep their meaning are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB

from headrace.tablelayer.model.ddl.names import Names
from headrace.tablelayer.model.ddl.query import ReadOptions
from headrace.tablelayer.model.ddl.scopes import defining
from headrace.tablelayer.model.ddl.tokens import hint_options
from headrace.tablelayer.model.filters.trees import only, understood

# Functions


def translate(tree: exp.Expr, names: Names) -> bool:
    """Change names and functions in place; return whether something changed. Raises ValueError."""
    changed = _without_catalogs(tree, names)
    node: Any
    for node in list(tree.find_all(exp.UnixToTime)):
        if node.args.get("scale") is not None:  # the parser has Snowflake's meaning of a second argument
            node.replace(exp.Anonymous(this="TO_TIMESTAMP", expressions=[node.this, node.args["scale"]]))
    shown = {id(select): list(map(_shown, select.expressions)) for select in tree.find_all(exp.Select)}
    for node in reversed(list(tree.walk())):
        rewrite = _rewrite_of(node)
        if rewrite is not None:
            node.replace(rewrite(node))
            changed = True
    if not changed:
        return False
    for select in tree.find_all(exp.Select):
        for given, name in zip(list(select.expressions), shown.get(id(select), ()), strict=False):
            if not isinstance(given, exp.Alias) and _shown(given) != name:
                given.replace(exp.alias_(given.copy(), name, quoted=True))
    return True


def _shown(expression: exp.Expr) -> str:
    return expression.sql(dialect=DuckDB, normalize_functions="lower")


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


def marked(sql: str, hints: Sequence[tuple[int, int]]) -> str:
    """Return a query with each hint as the version of the table before it, which the parser reads."""
    pieces, at = list[str](), 0
    for start, end in hints:
        text = hint_text(sql, start, end).replace("'", "''")
        pieces += [sql[at:start], f" FOR VERSION AS OF '{text}' "]
        at = end
    return "".join((*pieces, sql[at:]))


def hint_text(sql: str, start: int, end: int) -> str:
    return sql[start + 3 : end - 2].strip()


def read_hints(tree: exp.Expr) -> tuple[int, list[str]]:
    """Read the options in the versions of tables. Return their number, and notices.

    Options that change nothing are removed. Raises ValueError for a hint that `sorted_options` refuses.
    """
    count, notices = 0, list[str]()
    for table in tree.find_all(exp.Table):
        version = table.args.get("version")
        if version is None or not is_hint(version):
            continue
        count += 1
        options, without_effect = sorted_options(version.expression.this)
        if without_effect:
            notices.append(f"the hint's {', '.join(without_effect)} has no effect here")
        if options == ReadOptions():
            table.set("version", None)
    return count, notices


def is_hint(version: exp.Version) -> bool:
    value = version.expression
    return isinstance(value, exp.Literal) and value.is_string and value.this.upper().startswith("OPTIONS")


def options_of(version: exp.Version) -> ReadOptions:
    """Return the options of a version that `is_hint`."""
    return sorted_options(version.expression.this)[0]


_NO_EFFECT = (
    "lookup.async", "lookup.cache", "lookup.partial-cache.", "lookup.max-retries", "lookup.full-cache.",
    "client.scanner.", "client.lookup.", "client.request-timeout", "client.writer.", "scan.parallelism",
    "scan.partition.discovery.interval", "scan.kv.snapshot.lease.",
)  # fmt: skip
"""Options of Flink and Fluss that change how fast rows are read, and not which."""
_SNAPSHOT = ("scan.snapshot-id", "snapshot-id")
_SNAPSHOT_TIME = ("scan.timestamp-millis", "as-of-timestamp")
_START, _START_TIME = "scan.startup.mode", "scan.startup.timestamp"
_STARTS = ("full", "earliest", "latest", "timestamp")


def sorted_options(text: str) -> tuple[ReadOptions, list[str]]:
    """Return what a hint's text means, and the names of its options without an effect. Raises ValueError."""
    options = hint_options(text)
    start: str | None = None
    time_text = snapshot = snapshot_time = None
    without_effect = []
    for name, value in options.items():
        if name in _SNAPSHOT:
            snapshot = _whole(name, value)
        elif name in _SNAPSHOT_TIME:
            snapshot_time = _whole(name, value)
        elif name == _START:
            if value.lower() not in _STARTS:
                raise ValueError(f"'{name}' = '{value}': the value must be one of {', '.join(_STARTS)}")
            start = value.lower()
        elif name == _START_TIME:
            time_text = value
        elif any(name == each or (each[-1] == "." and name.startswith(each)) for each in _NO_EFFECT):
            without_effect.append(f"'{name}'")
        else:
            known = ", ".join(f"'{each}'" for each in (_START, _START_TIME, *_SNAPSHOT, *_SNAPSHOT_TIME))
            raise ValueError(
                f"the hint's option '{name}' is not known; those of a table are {known}. A table in the past is"
                " FOR SYSTEM_TIME AS OF TIMESTAMP '2026-01-31 12:00:00'"
            )
    if (start == "timestamp") != (time_text is not None):
        raise ValueError(f"'{_START}' = 'timestamp' and '{_START_TIME}' go together: give both or neither")
    if sum(each is not None for each in (start, snapshot, snapshot_time)) > 1:
        raise ValueError("a hint says either where the changes start or which snapshot is read, not both")
    found = ReadOptions(None if start == "full" else start, time_text, snapshot, snapshot_time)
    return found, without_effect


def _whole(name: str, value: str) -> int:
    if not value.isdigit():
        raise ValueError(f"'{name}' = '{value}': the value must be a whole number")
    return int(value)


# Lookup joins


def join_lookups(tree: exp.Expr, database: str) -> tuple[bool, list[tuple[str, str]]]:
    """Change lookup joins into joins with the present rows, in place. Raises ValueError.

    Return whether there were any, and pairs of (table, name): the table must declare the name as the time of
    processing, which is not known here.
    """
    found, changed = list[tuple[str, str]](), False
    for table in list(tree.find_all(exp.Table)):
        version = table.args.get("version")
        if version is None or version.this != "TIMESTAMP" or version.args.get("kind") != "AS OF":
            continue
        moment = version.expression
        if isinstance(moment, exp.Column):
            found += _time_of(moment, table, database)
        elif not isinstance(moment, exp.CurrentTimestamp):
            continue
        join = table.parent
        if not isinstance(join, exp.Join) or join.this is not table:
            raise ValueError(
                f"FOR SYSTEM_TIME AS OF {moment.sql(dialect=DuckDB)} is for the right side of a JOIN: the present rows"
                " are those of the table without it"
            )
        if join.side not in ("", "LEFT") or join.kind not in ("", "INNER", "OUTER") or join.method:
            raise ValueError("a lookup join is a JOIN or a LEFT JOIN with ON: other joins have no lookup")
        table.set("version", None)
        changed = True
    return changed, found


def _time_of(column: exp.Column, table: exp.Table, database: str) -> list[tuple[str, str]]:
    """Check that a column is the time of processing of another source of the same SELECT."""
    select = table.find_ancestor(exp.Select)
    sources: list[Any] = []
    if select is not None and isinstance(select.args.get("from_"), exp.From):
        sources = [select.args["from_"].this, *(join.this for join in select.args.get("joins") or ())]
    named = [
        each
        for each in sources
        if each is not table and each.alias_or_name.lower() == column.table.lower()
    ] if column.table else [each for each in sources[:1] if each is not table]  # fmt: skip
    shown = column.sql(dialect=DuckDB)
    if len(named) != 1 or not understood(column, "this", "table"):
        raise ValueError(f"{shown} in FOR SYSTEM_TIME AS OF is not a column of the left side of the JOIN")
    source = named[0]
    if isinstance(source, exp.Table):
        definition = defining(source) if not source.db else None
        if definition is None:
            return [(f"{source.db or database}.{source.name}", column.name)]
        source = definition
    query = source.this
    if isinstance(query, exp.Select) and any(
        isinstance(each, exp.Alias)
        and each.alias.lower() == column.name.lower()
        and isinstance(each.this, exp.CurrentTimestamp)
        for each in query.expressions
    ):
        return []
    raise ValueError(
        f"{shown} is not the time of processing: a lookup join reads the present rows, FOR SYSTEM_TIME AS OF"
        f" {column.table or 'o'}.ptime with PROCTIME() AS ptime in the left side"
    )
