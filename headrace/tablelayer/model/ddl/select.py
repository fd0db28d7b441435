"""Queries: the tables that they read, and whether the server can answer them without a scan.

The text is DuckDB's SQL with backticks allowed. A query is *simple* if it reads one table, returns plain columns (or
`*`, or `COUNT(*)` alone), compares columns with literals by `=` and AND only, and limits by a number. Then a lookup,
a prefix lookup, a count or a limit scan may answer it. DuckDB runs any other query: `to_duckdb` writes it with other
table names, `columns_read` tells which columns of each table are enough, and `conditions` which of its rows (DuckDB
still applies the whole WHERE). A query is simple only if each of its parts is named here
(`tablelayer.model.filters.trees`); a query with an unknown part goes to DuckDB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import sqlglot
from msgspec.structs import replace
from sqlglot import TokenType, exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError, TokenError

from headrace.tablelayer.model.ddl.adapt import adapt
from headrace.tablelayer.model.ddl.errors import DdlError
from headrace.tablelayer.model.ddl.flink_functions import translate
from headrace.tablelayer.model.ddl.hints import (
    hint_text,
    is_hint,
    marked,
    options_of,
    read_hints,
    sorted_options,
)
from headrace.tablelayer.model.ddl.known import check_known
from headrace.tablelayer.model.ddl.lookup_joins import join_lookups
from headrace.tablelayer.model.ddl.names import Names
from headrace.tablelayer.model.ddl.query import Bounds, PastTable, Select
from headrace.tablelayer.model.ddl.query_types import SCHEMA
from headrace.tablelayer.model.ddl.scopes import defining
from headrace.tablelayer.model.filters.trees import conjuncts, hints_in, only, understood
from headrace.tablelayer.model.types.column_types import DATE, timestamp
from headrace.tablelayer.model.types.values import Value, negated, number, typed


class _Queries(DuckDB):
    """DuckDB's SQL with names also in backticks, and with `$` in names (`orders$changelog`)."""

    class Tokenizer(DuckDB.Tokenizer):
        IDENTIFIERS = ['"', "`"]  # noqa: RUF012
        VAR_SINGLE_TOKENS = {"$"}  # noqa: RUF012
        HEX_STRINGS = [("x'", "'"), ("X'", "'")]  # noqa: RUF012
        SINGLE_TOKENS = {  # noqa: RUF012
            key: value for key, value in DuckDB.Tokenizer.SINGLE_TOKENS.items() if key not in ("$", "`")
        }

    class Parser(DuckDB.Parser):  # type: ignore[valid-type,misc]
        FUNCTION_PARSERS = {  # noqa: RUF012
            **DuckDB.Parser.FUNCTION_PARSERS,
            "JSON_VALUE": lambda self: _json_value(self),
        }


def _json_value(parser: Any) -> exp.JSONValue:
    """Read the arguments of JSON_VALUE, in the syntax of SQL's standard."""
    this, path = parser._parse_bitwise(), None
    if parser._match(TokenType.COMMA):
        path = parser._parse_bitwise()
    returning = parser._match_text_seq("RETURNING") and parser._parse_types()
    condition = parser._parse_on_condition()
    return exp.JSONValue(this=this, path=path, returning=returning or None, on_condition=condition)


def to_duckdb(
    select: Select,
    names: Mapping[str, str],
    *,
    every_row: bool = False,
    schemas: Mapping[str, pa.Schema] | None = None,
    text: str | None = None,
) -> str:
    """Return the query in DuckDB's SQL, with the tables of `tables` renamed to `names`.

    `every_row`: without its WHERE. `schemas`: those of the known tables. `text`: another query over the same tables.
    """
    tree = _parse_one(select.sql if text is None else text)
    _quote_reserved(tree)
    if every_row:
        tree.set("where", None)
    qualified = set[tuple[str, str]]()
    known = dict[str, pa.Schema]()
    for table in _base_tables(tree):
        name = _qualified(table, select.database)
        qualified.add(((table.db or select.database).lower(), table.alias_or_name.lower()))
        if not table.alias:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
        if schemas is not None and name in schemas:
            table.meta[SCHEMA] = str(len(known))
            known[table.meta[SCHEMA]] = _renamed(schemas[name], table.args["alias"])
        table.set("this", exp.to_identifier(names[name], quoted=True))
        table.set("db", None)
        table.set("version", None)
    for column in tree.find_all(exp.Column):
        # The database's name is dropped; the table's name stays, also before fields of a column.
        if (column.db.lower(), column.table.lower()) in qualified:
            column.set("db", None)
        elif (column.catalog.lower(), column.db.lower()) in qualified:
            column.set("catalog", None)
    adapt(tree, known)
    return tree.sql(dialect=DuckDB)


def _renamed(schema: pa.Schema, alias: exp.TableAlias) -> pa.Schema:
    """Return a table's schema with the column names of its alias."""
    names = [column.name for column in alias.args.get("columns") or ()]
    fields = [field.with_name(name) for field, name in zip(schema, names, strict=False)]
    return pa.schema([*fields, *list(schema)[len(fields) :]])


_RESERVED = frozenset({"offset"})
"""Columns of a topic whose names have another meaning in DuckDB unless they are quoted."""


def _quote_reserved(tree: exp.Expr) -> None:
    for name in tree.find_all(exp.Identifier):
        if name.name.lower() in _RESERVED:
            name.set("quoted", True)


def parsed(select: Select) -> exp.Expr:
    """Return the query's tree."""
    return _parse_one(select.sql)


def with_databases(select: Select) -> str:
    """Return the query's text with the database of each table, so that it means the same in every session."""
    tree = _parse_one(select.sql)
    for table in _base_tables(tree):
        if not table.alias:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
        table.set("db", exp.to_identifier(table.db or select.database, quoted=True))
        table.this.set("quoted", True)
    return tree.sql(dialect=DuckDB)


def check_expression(sql: str, start: int, end: int) -> None:
    """Raise DdlError if sql[start:end] is not an expression."""
    tree = _parse_part(sql, start, end, "SELECT (", "\n)", "the expression")
    if len(tree.expressions) != 1 or not understood(tree, "expressions"):
        raise DdlError("expected one value", sql, start, end - start)


def check_sources(sql: str, start: int, end: int) -> None:
    """Raise DdlError if sql[start:end] is not a FROM clause."""
    tree = _parse_part(sql, start, end, "SELECT 1 FROM ", "\n", "the FROM clause")
    if not understood(tree, "expressions", "from_", "joins", "laterals"):
        raise DdlError("expected tables and a WHERE", sql, start, end - start)


def _parse_part(sql: str, start: int, end: int, before: str, after: str, what: str) -> exp.Expr:
    """Parse a query that contains sql[start:end]; an error has its position in `sql`."""
    text = sql[start:end]
    try:
        return _parse_one(f"{before}{text}{after}")
    except TokenError as error:
        raise DdlError(f"{what} cannot be read: {error}", sql, start, len(text)) from None
    except ParseError as error:
        found = _syntax_error(f"{before}{text}", 0, f"{before}{text}", error)
        place = found.start - len(before)
        if not found.word or not 0 <= place < len(text):
            raise DdlError(found.reason, sql, start, len(text)) from None
        raise DdlError(found.reason, sql, start + place, len(found.word)) from None


def computes(text: str, *, casts: bool = False) -> bool:
    """Whether an expression does more than state a value: it calls a function, calculates, has a query, or casts.

    With `casts`, a cast counts as more than a value.
    """
    plain = (exp.Neg,) if casts else (exp.Cast, exp.Neg)
    tree = _parse_one(f"SELECT ({text}\n)")
    return any(
        isinstance(each, (exp.Func, exp.Binary, exp.Unary, exp.Case, exp.Query))
        and not isinstance(each, plain)
        for each in tree.expressions[0].this.walk()
    )


def compared_with(select: Select, texts: Sequence[str]) -> list[str | None]:
    """Return for each of the query's texts the name of the column that it is compared with, or `::` and its cast
    type.

    None if it is neither. Each text occurs once in the query.
    """
    tree = _parse_one(select.sql)
    found: dict[str, str | None] = {}
    for literal in tree.find_all(exp.Literal):
        if literal.is_string and literal.this in texts:
            found[literal.this] = _role(literal)
    return [found.get(text) for text in texts]


def _role(literal: exp.Expr) -> str | None:
    child, parent = literal, literal.parent
    while isinstance(parent, exp.Paren):
        child, parent = parent, parent.parent
    if isinstance(parent, exp.Cast):
        return f"::{parent.to.sql(dialect=DuckDB)}"
    if isinstance(parent, (exp.Limit, exp.Offset)):
        return "::BIGINT"
    other = None
    if isinstance(parent, exp.Binary):
        other = parent.expression if parent.this is child else parent.this
    elif isinstance(parent, (exp.In, exp.Between)) and parent.this is not child:
        other = parent.this
    return other.name if isinstance(other, exp.Column) else None


def _expanded(tree: exp.Expr, database: str, views: Mapping[str, str]) -> bool:
    """Replace the names of views by their queries; return whether there were any. Raises ValueError.

    Views consist of tables only, because views inside them were replaced already.
    """
    found = [
        table
        for table in _base_tables(tree)
        if f"{table.db or database}.{table.name}" in views and table.args.get("version") is None
    ]
    for table in found:
        query = _parse_one(views[f"{table.db or database}.{table.name}"])
        alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(table.name, quoted=True))
        kept = {name: table.args.get(name) for name in ("joins", "sample", "pivots")}
        if not understood(table, "this", "db", "alias", *kept):
            raise ValueError(f"a view cannot be read in this way: {table.sql(dialect=DuckDB)}")
        table.replace(exp.Subquery(this=query, alias=alias, **kept))
    return bool(found)


def analyze(sql: str, start: int, end: int, names: Names) -> Select:
    """Return the query sql[start:end]; tables without a database are in the current one of `names`.

    Raises DdlError.
    """
    text, database = sql[start:end], names.database
    hints = hints_in(text)
    for first, last in hints:
        try:
            sorted_options(hint_text(text, first, last))
        except ValueError as error:
            raise DdlError(str(error), sql, start + first, last - first) from None
    written = marked(text, hints) if hints else text
    try:
        tree = _parse_one(written)
    except ParseError as error:
        if hints:
            raise _misplaced_hint(sql, start, text, hints) from None
        raise _syntax_error(sql, start, text, error) from None
    except TokenError as error:
        raise DdlError(f"the query cannot be read: {error}", sql, start, 1) from None
    try:
        changed = translate(tree, names)
        found, notices = read_hints(tree)
        if found < len(hints):
            raise _misplaced_hint(sql, start, text, hints)
        check_known(tree)
        changed |= _expanded(tree, database, names.views)
        joined, times = join_lookups(tree, database)
        changed |= _expanded(tree, database, names.views)  # the right sides of such joins
        if changed or joined or hints:
            text = tree.sql(dialect=DuckDB)
            tree = _parse_one(text)
    except ValueError as error:
        raise DdlError(str(error), sql, start, len(text)) from None
    base_tables = _base_tables(tree)
    tables = tuple(dict.fromkeys(_qualified(table, database) for table in base_tables))
    columns_read = _columns_read(tree, base_tables, database)
    conditions = _conditions(base_tables, database)
    try:
        moments = {
            _qualified(table, database): _past(f"{table.db or database}.{table.name}", version)
            for table in base_tables
            if (version := table.args.get("version")) is not None
        }
    except ValueError as error:
        raise DdlError(str(error), sql, start, len(text)) from None
    source = _only_source(tree, base_tables)
    pivots = tree.find(exp.Pivot) is not None
    reads, columns_given = (False, None) if moments else _reads_rows(tree, source, conditions)
    simple = _simple_parts(tree, source)
    common: dict[str, Any] = {
        "columns_read": columns_read,
        "bounds": _bounds(tree, source),
        "moments": moments,
        "conditions": conditions,
        "counts": tables[0] if not moments and _counts_rows(tree, source, conditions) else None,
        "reads": tables[0] if reads else None,
        "columns_given": columns_given,
        "aggregates": () if moments else _aggregates(tree, source, conditions),
        "database": database,
        "reads_once": len(tables) == len(base_tables)
        and len(list(tree.find_all(exp.Query))) == 1
        and not pivots,
        "pivots": pivots,
        "notices": tuple(notices),
        "times": tuple(times),
    }
    if simple is None:
        return Select(text, tables, **common)
    return Select(text, tables, is_simple=True, **common, **simple)


def _parse_one(text: str) -> exp.Expr:
    """Parse a query. PIVOT, UNPIVOT and VALUES become the source of a SELECT. Raises ParseError, TokenError."""
    try:
        trees = sqlglot.parse(text, read=_Queries)
    except ParseError:
        end = _end_of_pivot(text)
        if end is None:
            raise
        return sqlglot.parse_one(f"SELECT * FROM ({text[:end]}\n) {text[end:]}", read=_Queries)
    tree = trees[0] if len(trees) == 1 else None
    if isinstance(tree, exp.Pivot):  # PIVOT as a statement; as a query it can be anywhere
        tree = sqlglot.parse_one(f"SELECT * FROM ({text}\n)", read=_Queries)
    if isinstance(tree, exp.Values):
        around = {name: tree.args.pop(name) for name in ("order", "limit", "offset") if tree.args.get(name)}
        tree = exp.Select(expressions=[exp.Star()], from_=exp.From(this=tree), **around)
    if not isinstance(tree, exp.Query):
        raise ParseError("this is not a query")
    return tree


def _end_of_pivot(text: str) -> int | None:
    """Return where the ORDER BY, LIMIT or OFFSET after a PIVOT statement begins, which the parser does not read."""
    depth, tokens = 0, _Queries().tokenize(text)
    if tokens and tokens[0].text.upper() in ("PIVOT", "PIVOT_WIDER", "UNPIVOT"):
        for token in tokens:
            depth += (token.token_type is TokenType.L_PAREN) - (token.token_type is TokenType.R_PAREN)
            if not depth and token.token_type in (TokenType.ORDER_BY, TokenType.LIMIT, TokenType.OFFSET):
                return int(token.start)
    return None


# Parts of the parser's messages that describe its own internals.
_OTHER_TALK = re.compile(r"( but got)? <Token .*|\x1b\[[0-9;]*m", re.DOTALL)


def _syntax_error(sql: str, start: int, text: str, error: ParseError) -> DdlError:
    details = error.errors[0] if error.errors else {}
    line, column = details.get("line"), details.get("col")
    highlight = details.get("highlight") or ""
    description = _OTHER_TALK.sub("", details.get("description") or str(error)).rstrip(". ")
    if not description or description.startswith("Required keyword"):
        description = "something is missing here"
    if line is None or column is None:
        return DdlError(description, sql, start, len(text))
    lines = text.split("\n")
    offset = sum(len(each) + 1 for each in lines[: line - 1]) + max(0, column - len(highlight))
    return DdlError(description, sql, start + offset, max(1, len(highlight)))


_FILE = re.compile(r"/|\\|\.(csv|tsv|json|jsonl|ndjson|parquet)(\.(gz|zst))?$", re.IGNORECASE)
"""Patterns that a table's name cannot have."""


def _base_tables(tree: exp.Expr) -> list[exp.Table]:
    """Return the tables that are read, without names that WITH defines and without files, which DuckDB reads."""
    return [
        table
        for table in tree.find_all(exp.Table)
        if isinstance(table.this, exp.Identifier)
        and (table.db or not (_FILE.search(table.name) or defining(table) is not None))
    ]


def _qualified(table: exp.Table, database: str) -> str:
    """Return the name of a table that is read; the same table at two moments has two names."""
    version = table.args.get("version")
    return f"{table.db or database}.{table.name}" + ("" if version is None else f" {version.sql()}")


def _past(table: str, version: exp.Version) -> PastTable:
    if is_hint(version):
        return PastTable(table, None, options_of(version))
    return PastTable(table, _moment(version))


def _misplaced_hint(sql: str, start: int, text: str, hints: Sequence[tuple[int, int]]) -> DdlError:
    """Return the error about a hint with which a query cannot be read; that of the query, if it has one without."""
    plain = text
    for first, last in hints:
        plain = plain[:first] + " " * (last - first) + plain[last:]
    try:
        _parse_one(plain)
    except ParseError as error:
        return _syntax_error(sql, start, plain, error)
    first, last = hints[0]
    return DdlError(
        "a hint is written after the name of a table, as FROM t /*+ OPTIONS('name' = 'value') */",
        sql,
        start + first,
        last - first,
    )


def _moment(version: exp.Version) -> int | datetime | Mapping[int, int]:
    """Return the moment at which a table is read. Raises ValueError."""
    value, of_time = version.expression, version.this == "TIMESTAMP"
    if version.args.get("kind") != "AS OF":
        raise ValueError("a table can only be read AS OF one moment")
    if of_time and only(value, exp.Cast, "this", "to") and only(value.to, exp.DataType, "this"):
        value = value.this
    if isinstance(value, exp.Literal) and value.is_int:
        return int(value.this) if of_time else {0: int(value.this)}
    if isinstance(value, exp.Literal) and value.is_string:
        if of_time:
            try:
                return datetime.fromisoformat(value.this)
            except ValueError:
                raise ValueError(f"{value.this!r} is not a time; write '2026-01-31 12:00:00'") from None
        pairs = [each.split(":") for each in value.this.split(",")]
        if all(len(pair) == 2 and all(part.strip().isdigit() for part in pair) for pair in pairs):
            return {int(bucket): int(offset) for bucket, offset in pairs}
    raise ValueError(
        "a time must be TIMESTAMP '2026-01-31 12:00:00' or a number of milliseconds"
        if of_time
        else "a version must be an offset, or offsets by bucket as in '0:17,1:20'"
    )


_MIRRORED = {exp.GT: exp.LT, exp.GTE: exp.LTE, exp.LT: exp.GT, exp.LTE: exp.GTE, exp.EQ: exp.EQ}


def _only_source(tree: exp.Expr, tables: list[exp.Table]) -> exp.Table | None:
    """Return the table that a SELECT reads, if it reads nothing else; its columns keep their names."""
    if type(tree) is not exp.Select or len(tables) != 1:
        return None
    source = tree.args.get("from_")
    table = tables[0]
    if not isinstance(source, exp.From) or not understood(source, "this") or source.this is not table:
        return None
    return table if _is_plain_table(table) else None


def _bounds(tree: exp.Expr, table: exp.Table | None) -> dict[str, Bounds]:
    """Return the bounds that hold for every row of the result; other conditions are left out."""
    if table is None or not understood(tree, *_BESIDE_ONE_TABLE):
        return {}
    found: dict[str, Bounds] = {}
    for condition in _conditions_of(tree):
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


def _conditions_of(tree: exp.Expr) -> list[exp.Expr]:
    """Return the parts of a SELECT's WHERE that must all hold."""
    where = tree.args.get("where")
    if where is None:
        return []
    return conjuncts(where.this) if only(where, exp.Where, "this") else [where]


_BESIDE_ONE_TABLE = (
    "with_", "expressions", "distinct", "from_", "where", "group", "having", "qualify", "windows", "order", "limit",
    "offset",
)  # fmt: skip
_KNOWN_CLAUSES = (*_BESIDE_ONE_TABLE, "joins")
"""Clauses of a SELECT whose result does not depend on rows that the WHERE excludes."""


def _add_bound(found: dict[str, Bounds], condition: exp.Expr, table: exp.Table) -> None:
    kind = type(condition)
    if kind not in _MIRRORED or not understood(condition, "this", "expression"):
        return
    column, literal = condition.this, condition.expression
    if not _is_plain_column(column, table):
        column, literal, kind = literal, column, _MIRRORED[kind]
    if not _is_plain_column(column, table):
        return
    is_literal, value = _literal(literal)
    if not is_literal or value is None:
        return
    name = column.name.lower()
    known = found.get(name, Bounds())
    if kind in (exp.GT, exp.GTE, exp.EQ) and known.lower is None:
        known = replace(known, lower=value, include_lower=kind is not exp.GT)
    if kind in (exp.LT, exp.LTE, exp.EQ) and known.upper is None:
        known = replace(known, upper=value, include_upper=kind is not exp.LT)
    found[name] = known


def _columns_read(tree: exp.Expr, tables: list[exp.Table], database: str) -> dict[str, frozenset[str] | None]:
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
    return {_qualified(table, database): None if unclear else frozenset(names) for table in tables}


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


def _conditions(tables: list[exp.Table], database: str) -> dict[str, tuple[str, ...]]:
    """Return for each table that is read once the conditions of its SELECT's WHERE that concern only this table."""
    names = [_qualified(table, database) for table in tables]
    found = {}
    for table, name in zip(tables, names, strict=True):
        select = table.find_ancestor(exp.Select)
        if names.count(name) > 1 or select is None or not _keeps_rows_of(select, table):
            continue
        alone = not select.args.get("joins") and isinstance(table.parent, exp.From)
        aliases = {each.alias.lower() for each in select.expressions if isinstance(each, exp.Alias)}
        about = []
        for part in _conditions_of(select):
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
    if not understood(select, *_KNOWN_CLAUSES) or not _is_plain_table(table):
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
    if not _is_named_plainly(column):
        return False
    if not column.table:
        return alone and column.name.lower() not in aliases
    return column.table.lower() == table.alias_or_name.lower()


def _all_in(conditions: dict[str, tuple[str, ...]], tree: exp.Expr) -> bool:
    """Return whether the conditions of the only table are all of the WHERE."""
    return sum(map(len, conditions.values())) == len(_conditions_of(tree))


def _counts_rows(tree: exp.Expr, source: exp.Table | None, conditions: dict[str, tuple[str, ...]]) -> bool:
    if source is None or not tree.args.get("where") or not understood(tree, "expressions", "from_", "where"):
        return False
    return _all_in(conditions, tree) and len(tree.expressions) == 1 and _is_plain_count(tree.expressions[0])


def _reads_rows(
    tree: exp.Expr, source: exp.Table | None, conditions: dict[str, tuple[str, ...]]
) -> tuple[bool, tuple[str, ...] | None]:
    """Return (whether the query only returns plain columns of the rows that meet a condition, the columns or None for
    all).
    """
    if source is None or not understood(tree, "expressions", "from_", "where"):
        return False, None
    if not _all_in(conditions, tree):
        return False, None
    if len(tree.expressions) == 1 and _is_plain_star(tree.expressions[0]):
        return True, None
    if not all(_is_plain_column(expression, source) for expression in tree.expressions):
        return False, None
    columns = tuple(expression.name for expression in tree.expressions)
    return len(set(columns)) == len(columns), columns


_AGGREGATES = {exp.Min: "MIN", exp.Max: "MAX", exp.Count: "COUNT"}


def _aggregates(
    tree: exp.Expr, source: exp.Table | None, conditions: dict[str, tuple[str, ...]]
) -> tuple[tuple[str, str | None], ...]:
    if source is None or not understood(tree, "expressions", "from_", "where"):
        return ()
    if not _all_in(conditions, tree):
        return ()
    found: list[tuple[str, str | None]] = []
    for expression in tree.expressions:
        call = expression.this if only(expression, exp.Alias, "this", "alias") else expression
        function = _AGGREGATES.get(type(call))
        if function is None or not understood(call, "this", "big_int"):
            return ()  # max(x, 3) returns a list
        if _is_plain_column(call.this, source):
            found.append((function, call.this.name))
        elif _is_plain_count(call):
            found.append((function, None))
        else:
            return ()
    return tuple(found)


def _simple_parts(tree: exp.Expr, source: exp.Table | None) -> dict[str, Any] | None:
    """Return the parts of a simple query, or None if it is not one."""
    if source is None or source.args.get("version") is not None:
        return None
    if not understood(tree, "expressions", "from_", "where", "limit"):
        return None
    columns: tuple[str, ...] | None = None
    expressions = tree.expressions
    is_count = len(expressions) == 1 and _is_plain_count(expressions[0])
    if not is_count and not (len(expressions) == 1 and _is_plain_star(expressions[0])):
        if not all(_is_plain_column(expression, source) for expression in expressions):
            return None
        columns = tuple(expression.name for expression in expressions)
        if len(set(columns)) != len(columns):
            return None
    equals: dict[str, Value] = {}
    for condition in _conditions_of(tree):
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


def _is_plain_count(expression: exp.Expr) -> bool:
    """Return whether an expression is `COUNT(*)`."""
    return only(expression, exp.Count, "this", "big_int") and _is_plain_star(expression.this)


def _is_plain_table(table: exp.Table) -> bool:
    """Return whether a table has its own columns, all its rows (at a moment) and no other clauses."""
    alias = table.args.get("alias")
    if not only(table, exp.Table, "this", "db", "alias", "version"):
        return False
    if alias is not None and not (only(alias, exp.TableAlias, "this") and _is_name(alias.this)):
        return False
    return _is_name(table.this) and (table.args.get("db") is None or _is_name(table.args["db"]))


def _is_name(node: Any) -> bool:
    return only(node, exp.Identifier, "this", "quoted")


def _is_plain_star(expression: exp.Expr) -> bool:
    """Return whether an expression is `*`, without EXCLUDE or REPLACE."""
    return only(expression, exp.Star)


def _is_plain_column(expression: Any, table: exp.Table) -> bool:
    """Return whether an expression is a column of the table; `who.name` may also be a field of a column."""
    return _is_named_plainly(expression) and expression.table.lower() in ("", table.alias_or_name.lower())


def _is_named_plainly(column: Any) -> bool:
    """Return whether a column stands alone or after a table's name."""
    if not only(column, exp.Column, "this", "table") or not _is_name(column.this):
        return False
    return column.args.get("table") is None or _is_name(column.args["table"])


def _equality(condition: exp.Expr, table: exp.Table) -> tuple[str, Value] | None:
    if not only(condition, exp.EQ, "this", "expression"):
        return None
    for column, literal in ((condition.this, condition.expression), (condition.expression, condition.this)):
        if _is_plain_column(column, table):
            found, value = _literal(literal)
            if found:
                return column.name, value
    return None


def _literal(expression: Any) -> tuple[bool, Value]:
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
