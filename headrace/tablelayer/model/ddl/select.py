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
from sqlglot import TokenType, exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError, TokenError

from headrace.tablelayer.model.ddl.adapt import adapt
from headrace.tablelayer.model.ddl.errors import DdlError
from headrace.tablelayer.model.ddl.flink_functions import translate
from headrace.tablelayer.model.ddl.hints import (
    before_moment,
    hint_text,
    is_hint,
    marked,
    notices_before_moment,
    options_of,
    read_hints,
    sorted_options,
)
from headrace.tablelayer.model.ddl.known import check_known
from headrace.tablelayer.model.ddl.lookup_joins import join_lookups
from headrace.tablelayer.model.ddl.names import Names
from headrace.tablelayer.model.ddl.query import PastTable, Select
from headrace.tablelayer.model.ddl.query_tokens import check_commas, plain_arrows
from headrace.tablelayer.model.ddl.query_types import SCHEMA
from headrace.tablelayer.model.ddl.reads import (
    are_all_conditions,
    bounds_of,
    columns_read_of,
    conditions_by_table,
    qualified_name,
)
from headrace.tablelayer.model.ddl.respelled import Respelled
from headrace.tablelayer.model.ddl.scopes import defining
from headrace.tablelayer.model.ddl.simple_queries import (
    is_plain_column,
    is_plain_count,
    is_plain_star,
    is_plain_table,
    simple_parts,
)
from headrace.tablelayer.model.filters.trees import hints_in, only, understood
from headrace.tablelayer.model.types.quoting import quoted

_AS_WRITTEN = frozenset(
    {
        "APPROX_TOP_K", "DATEDIFF", "DATETRUNC", "DATE_ADD", "DATE_DIFF", "DATE_TRUNC", "DECODE", "EPOCH_MS",
        "JARO_WINKLER_SIMILARITY", "MAKE_TIMESTAMP",
    }
)  # fmt: skip
"""Functions that keep the text of their call. sqlglot would drop arguments, read a column as the name of a unit, or
change letters to upper case.
"""


class _Distance(exp.NullSafeEQ):
    """`<=>`, which is the distance of two lists in DuckDB, and a comparison with NULL in MySQL and Spark."""


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
        FUNCTIONS = {  # noqa: RUF012
            name: build for name, build in DuckDB.Parser.FUNCTIONS.items() if name not in _AS_WRITTEN
        }
        FUNCTION_PARSERS = {  # noqa: RUF012
            **DuckDB.Parser.FUNCTION_PARSERS,
            "EXTRACT": lambda self: _date_part(self),
            "JSON_VALUE": lambda self: _json_value(self),
        }
        EQUALITY = {**DuckDB.Parser.EQUALITY, TokenType.NULLSAFE_EQ: _Distance}  # noqa: RUF012
        PRIMARY_PARSERS = {  # noqa: RUF012
            **DuckDB.Parser.PRIMARY_PARSERS,
            TokenType.HEX_STRING: lambda self, token: _bytes(self, token),
        }

    def to_json_path(self, path: exp.Expr | None) -> exp.Expr | None:
        """Return the path as it is written: in DuckDB 'a.b' is a key, and only '$.a.b' is a path."""
        return path


def _bytes(parser: Any, token: Any) -> exp.Expr:
    """Read X'1f'. DuckDB reads 0x1f as 0 with the name x1f, which is never meant."""
    if parser.sql[token.start] == "0":
        meant = int(token.text, 16)
        parser.raise_error(f"0x{token.text} is not a number: write {meant}, or X'..' for bytes", token)
    read: Any = DuckDB.Parser.PRIMARY_PARSERS[TokenType.HEX_STRING]
    return read(parser, token)  # type: ignore[no-any-return]


def _date_part(parser: Any) -> exp.Expr:
    """Read EXTRACT(part FROM value) as DuckDB does, for values with a zone, too."""
    read = parser._parse_extract()
    if not only(read, exp.Extract, "this", "expression"):
        return read  # type: ignore[no-any-return]
    return exp.Anonymous(this="DATE_PART", expressions=[exp.Literal.string(read.this.name), read.expression])


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
    written = select.sql if text is None else text
    tree = _parse_one(written)
    own = _respelled(written, tree)
    for word in tree.find_all(exp.Identifier):
        if word.name.lower() in DuckDB.Generator.RESERVED_KEYWORDS and not word.args.get("quoted"):
            own.replace(word, word, quoted(word.name))
    if every_row:
        tree.set("where", None)
        own.give_up()
    qualified = set[tuple[str, str]]()
    known = dict[str, pa.Schema]()
    for table in _base_tables(tree):
        name = qualified_name(table, select.database)
        qualified.add(((table.db or select.database).lower(), table.alias_or_name.lower()))
        _rename(table, quoted(names[name]), own)
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
        for before, after in (("db", "table"), ("catalog", "db")):
            if (column.text(before).lower(), column.text(after).lower()) in qualified:
                own.replace(column.args[before], column.args[after], "", up_to=True)
                column.set(before, None)
                break
    if adapt(tree, known):
        own.give_up()
    return own.text() or tree.sql(dialect=DuckDB)


def _respelled(text: str, tree: exp.Expr) -> Respelled:
    """Return the text for changes of names, if it means to DuckDB what its tree says."""
    own = Respelled(text)
    if tree.find(exp.Pivot) is not None:
        own.give_up()  # its tree is not the text's (`_parse_one`)
    if "->" in text and plain_arrows(text, tokens_of(text)) != text:
        own.give_up()
    if any(map(_is_flinks, tree.find_all(exp.DataType))):
        own.give_up()
    return own


def _plain_arrows(text: str) -> str:
    """Return the text with arrows that mean the same everywhere, as far as possible. Raises TokenError."""
    return plain_arrows(text, tokens_of(text)) or text if "->" in text else text


def _is_flinks(node: exp.DataType) -> bool:
    """Whether a type is perhaps written as DuckDB does not write it: TIMESTAMP_LTZ, TIME(3), ARRAY<INT>."""
    if node.this in exp.DataType.TEMPORAL_TYPES and node.expressions:
        return True
    return node.this in _FLINKS_TYPES or bool(node.args.get("nested"))


_FLINKS_TYPES = (exp.DataType.Type.TIMESTAMPLTZ, exp.DataType.Type.TIMESTAMPNTZ)


def _rename(table: exp.Table, new: str, own: Respelled) -> None:
    """Write another table or query in the text, with the table's name as its alias unless it has one."""
    if not understood(table, "this", "db", "alias"):
        own.give_up()  # the alias is not behind the name
    alias = "" if table.alias else f" AS {quoted(table.name)}"
    own.replace(table.parts[0], table.this, f"{new}{alias}")


def _renamed(schema: pa.Schema, alias: exp.TableAlias) -> pa.Schema:
    """Return a table's schema with the column names of its alias."""
    names = [column.name for column in alias.args.get("columns") or ()]
    fields = [field.with_name(name) for field, name in zip(schema, names, strict=False)]
    return pa.schema([*fields, *list(schema)[len(fields) :]])


def tokens_of(text: str) -> list[Any]:
    """Return a query's words. Raises TokenError."""
    return _Queries().tokenize(text)


def parsed(select: Select) -> exp.Expr:
    """Return the query's tree."""
    return _parse_one(select.sql)


def with_databases(select: Select) -> str:
    """Return the query's text with the database of each table, so that it means the same in every session."""
    tree = _parse_one(select.sql)
    own = _respelled(select.sql, tree)
    for table in _base_tables(tree):
        _rename(table, f"{quoted(table.db or select.database)}.{quoted(table.name)}", own)
        if not table.alias:
            table.set("alias", exp.TableAlias(this=exp.to_identifier(table.name, quoted=True)))
        table.set("db", exp.to_identifier(table.db or select.database, quoted=True))
        table.this.set("quoted", True)
    return own.text() or tree.sql(dialect=DuckDB)


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


def _expanded(tree: exp.Expr, database: str, views: Mapping[str, str], own: Respelled) -> bool:
    """Replace the names of views by their queries, also in the text; return whether there were any. Raises ValueError.

    Views consist of tables only, because views inside them were replaced already.
    """
    found = [
        table
        for table in _base_tables(tree)
        if f"{table.db or database}.{table.name}" in views and table.args.get("version") is None
    ]
    for table in found:
        text = views[f"{table.db or database}.{table.name}"]
        query = _parse_one(text)
        _rename(table, f"({text}\n)", own)
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
    of_moments = list[str]()
    for first, last in hints_in(text):
        try:
            if before_moment(text, last):
                of_moments += notices_before_moment(hint_text(text, first, last))
                text = text[:first] + " " * (last - first) + text[last:]
            else:
                sorted_options(hint_text(text, first, last))
        except ValueError as error:
            raise DdlError(str(error), sql, start + first, last - first) from None
    hints = hints_in(text)
    try:
        tree = _parse_one(marked(text, hints) if hints else text)
        if (plain := _plain_arrows(text)) != text:
            text, hints = plain, hints_in(plain)
            tree = _parse_one(marked(text, hints) if hints else text)
    except ParseError as error:
        if hints:
            raise _misplaced_hint(sql, start, text, hints) from None
        raise _syntax_error(sql, start, text, error) from None
    except TokenError as error:
        raise DdlError(f"the query cannot be read: {error}", sql, start, 1) from None
    try:
        changed = translate(tree, names)
        found, notices = read_hints(tree)
        notices = of_moments + notices
        if found < len(hints):
            raise _misplaced_hint(sql, start, text, hints)
        check_known(tree)
        own = _respelled(text, tree)
        expanded = _expanded(tree, database, names.views, own)
        joined, times = join_lookups(tree, database)
        expanded |= _expanded(tree, database, names.views, own)  # the right sides of such joins
        if changed or joined or hints or expanded:
            kept = None if changed or joined or hints else own.text()
            text = kept or _plain_arrows(tree.sql(dialect=DuckDB))
            tree = _parse_one(text)
    except ValueError as error:
        raise DdlError(str(error), sql, start, len(text)) from None
    base_tables = _base_tables(tree)
    tables = tuple(dict.fromkeys(qualified_name(table, database) for table in base_tables))
    columns_read = columns_read_of(tree, base_tables, database)
    conditions = conditions_by_table(base_tables, database)
    try:
        moments = {
            qualified_name(table, database): _past(f"{table.db or database}.{table.name}", version)
            for table in base_tables
            if (version := table.args.get("version")) is not None
        }
    except ValueError as error:
        raise DdlError(str(error), sql, start, len(text)) from None
    source = _only_source(tree, base_tables)
    pivots = tree.find(exp.Pivot) is not None
    reads, columns_given = (False, None) if moments else _reads_rows(tree, source, conditions)
    simple = simple_parts(tree, source)
    common: dict[str, Any] = {
        "columns_read": columns_read,
        "bounds": bounds_of(tree, source),
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
    tokens = tokens_of(text)
    check_commas(tokens)
    try:
        trees = _Queries().parser().parse(tokens, text)
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
    if tree.find(_Distance) is not None:
        raise ParseError(
            "<=> has two meanings: write IS NOT DISTINCT FROM for values that may be NULL, and"
            " list_cosine_distance(a, b) for the distance of two lists"
        )
    return tree


def _end_of_pivot(text: str) -> int | None:
    """Return where the ORDER BY, LIMIT or OFFSET after a PIVOT statement begins, which the parser does not read."""
    depth, tokens = 0, tokens_of(text)
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


def _past(table: str, version: exp.Version) -> PastTable:
    if is_hint(version):
        return PastTable(table, None, options_of(version))
    return PastTable(table, _moment(version))


def _misplaced_hint(sql: str, start: int, text: str, hints: Sequence[tuple[int, int]]) -> DdlError:
    """Return the error of a query that cannot be parsed with its hints: its own error if it also fails without them."""
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


def _only_source(tree: exp.Expr, tables: list[exp.Table]) -> exp.Table | None:
    """Return the table that a SELECT reads, if it reads nothing else; its columns keep their names."""
    if type(tree) is not exp.Select or len(tables) != 1:
        return None
    source = tree.args.get("from_")
    table = tables[0]
    if not isinstance(source, exp.From) or not understood(source, "this") or source.this is not table:
        return None
    return table if is_plain_table(table) else None


def _counts_rows(tree: exp.Expr, source: exp.Table | None, conditions: dict[str, tuple[str, ...]]) -> bool:
    if source is None or not tree.args.get("where") or not understood(tree, "expressions", "from_", "where"):
        return False
    return (
        are_all_conditions(conditions, tree)
        and len(tree.expressions) == 1
        and is_plain_count(tree.expressions[0])
    )


def _reads_rows(
    tree: exp.Expr, source: exp.Table | None, conditions: dict[str, tuple[str, ...]]
) -> tuple[bool, tuple[str, ...] | None]:
    """Return (whether the query only returns plain columns of the rows that meet a condition, the columns or None for
    all).
    """
    if source is None or not understood(tree, "expressions", "from_", "where"):
        return False, None
    if not are_all_conditions(conditions, tree):
        return False, None
    if len(tree.expressions) == 1 and is_plain_star(tree.expressions[0]):
        return True, None
    if not all(is_plain_column(expression, source) for expression in tree.expressions):
        return False, None
    columns = tuple(expression.name for expression in tree.expressions)
    return len(set(columns)) == len(columns), columns


_AGGREGATES = {exp.Min: "MIN", exp.Max: "MAX", exp.Count: "COUNT"}


def _aggregates(
    tree: exp.Expr, source: exp.Table | None, conditions: dict[str, tuple[str, ...]]
) -> tuple[tuple[str, str | None], ...]:
    if source is None or not understood(tree, "expressions", "from_", "where"):
        return ()
    if not are_all_conditions(conditions, tree):
        return ()
    found: list[tuple[str, str | None]] = []
    for expression in tree.expressions:
        call = expression.this if only(expression, exp.Alias, "this", "alias") else expression
        function = _AGGREGATES.get(type(call))
        if function is None or not understood(call, "this", "big_int"):
            return ()  # max(x, 3) returns a list
        if is_plain_column(call.this, source):
            found.append((function, call.this.name))
        elif is_plain_count(call):
            found.append((function, None))
        else:
            return ()
    return tuple(found)
