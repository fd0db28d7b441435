"""A fast path for statements of plain words, which do not need the parser.

The parser needs sqlglot, whose import takes longer than most answers. `SHOW DATABASES`, `SHOW TABLES IN shop`, `USE
shop` and `DESCRIBE shop.orders` mean the same here as in the parser. A text with a quote, a comment, a pattern, a
second statement or an error goes to the parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from headrace.tablelayer.model.ddl.names import Names
from headrace.tablelayer.model.ddl.statements import (
    DescribeTable,
    ShowDatabases,
    ShowTables,
    ShowTopics,
    ShowViews,
    Statement,
    UseDatabase,
)
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.table.path import DEFAULT_DATABASE, TablePath, check_name

_LENGTH_MAX = 600
"""Maximum length of such a statement, longer than two names can be."""
_WORDS = re.compile(
    r"[ \t\r\n]*([A-Za-z]+(?:[ \t\r\n]+[A-Za-z_][A-Za-z0-9_]*)*(?:\.[A-Za-z_][A-Za-z0-9_]*)?)[ \t\r\n]*;?[ \t\r\n]*"
)


def parse(
    sql: str, default_database: str = DEFAULT_DATABASE, views: Mapping[str, str] | None = None
) -> list[Statement]:
    """Return the statements of a text, separated by `;`.

    Tables without a database are in `default_database`, or in the database of an earlier USE. `views` are queries by
    `database.name`; the text may add and drop views. Raises DdlError for the first statement that cannot be
    understood; then no statement has been carried out.
    """
    plain = plain_statement(sql, default_database)
    if plain is not None:
        return [plain]
    from headrace.tablelayer.model.ddl.parser import parse as parse_all

    return parse_all(sql, default_database, views)


def parse_each(sql: str, names: Names) -> Iterator[tuple[Statement, tuple[str, ...]]]:
    """Yield each statement of a text with the notices about it: sentences about words that have no effect here.

    A statement is read when it is requested, by the names that the caller has added until then. Raises DdlError for a
    statement that cannot be understood, after those before it.
    """
    plain = plain_statement(sql, names.database)
    if plain is not None:
        yield plain, ()
        return
    from headrace.tablelayer.model.ddl.parser import parse_each as parse_all

    yield from parse_all(sql, names)


def plain_statement(sql: str, database: str) -> Statement | None:
    """Return the statement of a text of plain words; None if the parser must read it."""
    found = _WORDS.fullmatch(sql) if len(sql) <= _LENGTH_MAX else None
    if found is None:
        return None
    *words, last = found.group(1).split()
    read = _READ.get(" ".join(word.upper() for word in words))
    try:
        return None if read is None else read(last, database)
    except TableError:
        return None


def _show(what: str, database: str) -> Statement | None:
    match what.upper():
        case "DATABASES" | "SCHEMAS":
            return ShowDatabases()
        case "TABLES":
            return ShowTables(database)
        case "TOPICS":
            return ShowTopics()
        case "VIEWS":
            return ShowViews()
    return None


def _show_tables(name: str, _: str) -> Statement:
    check_name("database", name)
    return ShowTables(name)


def _use(name: str, _: str) -> Statement | None:
    if name.upper() in _OF_DATABASES:
        return None
    check_name("database", name)
    return UseDatabase(name)


def _describe(name: str, database: str) -> Statement | None:
    first, dot, second = name.partition(".")
    if first.upper() in (*_OF_DATABASES, "TABLE"):
        return None
    path = TablePath(first, second) if dot else TablePath(database, first)
    check_name("table", path.table)
    return DescribeTable(path)


_OF_DATABASES = ("DATABASE", "SCHEMA")
_READ: dict[str, Callable[[str, str], Statement | None]] = {
    "SHOW": _show,
    "SHOW TABLES IN": _show_tables,
    "SHOW TABLES FROM": _show_tables,
    "USE": _use,
    "DESCRIBE": _describe,
    "DESC": _describe,
}
"""Readers by the words before the last one."""
