"""Tab completion at the prompt of `headrace sql`: words of SQL, databases, tables, columns, functions, options, files.

The preceding words decide: tables after FROM, databases after USE, in a text the options of tables (`WITH (`, `SET (`)
or else files, otherwise the columns of the statement's tables, functions, and words. Names are fetched on first use,
and again after a statement that may have changed them. If the server does not answer, names are missing, but the prompt
works.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from glob import escape, glob
from os.path import expanduser, isdir
from typing import TYPE_CHECKING

from headrace.tablelayer.cli.errors import explain

if TYPE_CHECKING:
    from headrace.tablelayer.client import Connection

_TEXT = """
" ADD AFTER ALTER AND AS AUTO_INCREMENT BETWEEN BIGINT BINARY BOOLEAN BY BYTES CASCADE CASE CHAR
COLUMN COLUMNS COMMENT COPY COUNT CREATE CROSS DATABASE DATABASES DATE DECIMAL DEFAULT DELETE DESC
DESCRIBE DISTINCT DOUBLE DROP ELSE END ENFORCED EXISTS EXPLAIN FALSE FIRST FLOAT FOR FORMAT FROM
FULL GRANT GRANTS GROUP HAVING IDENTIFIED IF IN INNER INSERT INT INTERVAL INTO IS JOIN KEY LEFT LIKE
LIMIT MAX MIN MODIFY NOT NULL OF OFFSET ON OPTIONS OR ORDER OUTER PARTITION PARTITIONED PARTITIONS
PASSWORD PRIMARY RENAME REPLACE RESET REVOKE RIGHT SCHEMAS SELECT SET SHOW SMALLINT STRING SUM
SUMMARIZE SYSTEM_TIME TABLE TABLES THEN TIME TIMESTAMP TIMESTAMP_LTZ TINYINT TO TOPICS TRUE TRUNCATE
UNION UPDATE USE USER USERS USING VALUES VARCHAR VERSION VIEW VIEWS WHEN WHERE WITH
"""
WORDS = tuple(_TEXT.split())
COMMANDS = ("\\?", "\\copy", "\\d", "\\e", "\\i", "\\l", "\\o", "\\q", "\\timing", "\\watch", "\\x")
_BEFORE_TABLES = {
    "FROM", "JOIN", "INTO", "UPDATE", "TABLE", "DESCRIBE", "DESC", "EXISTS", "COPY", "SUMMARIZE", "TRUNCATE",
    "\\COPY", "\\D",
}  # fmt: skip
_BEFORE_DATABASES = {"USE", "DATABASE"}
_SUFFIXES = ("$changelog",)
_NAME = r"[\w.`\"$]+"
_TABLE_PLACES = re.compile(
    rf"\b(?:FROM|JOIN|INTO|UPDATE|TABLE|DESCRIBE|DESC)\s+({_NAME}(?:\s+(?:AS\s+)?\w+)?(?:\s*,\s*{_NAME}(?:\s+(?:AS\s+)?\w+)?)*)",
    re.IGNORECASE,
)


class Names:
    """Databases, tables and columns of the server, cached until `forget`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[str, tuple[str, ...]] = {}

    def forget(self) -> None:
        """Clear the cache, so that names are fetched again."""
        self._known.clear()

    def databases(self) -> Sequence[str]:
        return self._ask("", lambda: self._connection.admin.list_databases())

    def tables(self, database: str) -> Sequence[str]:
        return self._ask(f"{database}.", lambda: self._connection.admin.list_tables(database))

    def columns(self, table: str) -> Sequence[str]:
        """Return the columns of `table`, which is given with its database."""
        return self._ask(table, lambda: self._connection.admin.describe_table(table).schema.names)

    def _ask(self, key: str, question: Callable[[], Sequence[str]]) -> Sequence[str]:
        if key not in self._known:
            try:
                self._known[key] = tuple(question())
            except Exception as error:
                if explain(error) is None:
                    raise
                self._known[key] = ()
        return self._known[key]


def candidates(before: str, word: str, database: str, names: Names, after: str = "") -> list[str]:
    """Return the sorted completions of `word`.

    `before` is the statement up to the word, `after` the rest. Words keep the case that is typed. A word that begins
    with a backslash is a command of the prompt.
    """
    if before.count("'") % 2:
        quoted = before.rpartition("'")[2] + word
        start = len(quoted) - len(word)
        return [each[start:] for each in (_options if _IN_OPTIONS.search(before) else files)(quoted)]
    if word.startswith("\\"):
        return _matching(COMMANDS, word)
    last = re.findall(r"\\?\w+", before)
    previous = last[-1].upper() if last and not before.rstrip().endswith((",", "(", ")", "=")) else ""
    if previous in _BEFORE_DATABASES:
        return _matching(names.databases(), word)
    if previous in _BEFORE_TABLES:
        return _tables(word, database, names)
    tables = _named_tables(f"{before} {after}", database)
    if "." in word:
        alias = word.rsplit(".", 1)[0]
        of = tables.get(alias.lower())
        return [] if of is None else _matching([f"{alias}.{name}" for name in names.columns(of)], word)
    found = _matching(
        [column for table in dict.fromkeys(tables.values()) for column in names.columns(table)], word
    )
    words = [each.lower() for each in WORDS] if word.islower() else WORDS
    called: list[str] = []
    if word.islower() and not found and _BEFORE_FUNCTIONS.search(before):
        called = _matching(_functions(), word)
    return sorted(dict.fromkeys([*found, *_matching(words, word), *called]))


_IN_OPTIONS = re.compile(
    r"\b(?:WITH|SET|RESET)\s*\(\s*(?:'[^']*'\s*(?:=\s*'[^']*'\s*)?,\s*)*'[^'=]*$", re.IGNORECASE
)
_BEFORE_FUNCTIONS = re.compile(r"\b(?:BY|HAVING|ON|SELECT|SET|VALUES|WHERE)\b", re.IGNORECASE)


@cache
def _functions() -> tuple[str, ...]:
    """Return the names of DuckDB's functions with an open bracket."""
    import duckdb

    with duckdb.connect() as database:
        found = database.execute(
            "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_name ~ '^[a-z]'"
        )
        return tuple(f"{name}(" for (name,) in found.fetchall())


def _options(begun: str) -> list[str]:
    from headrace.tablelayer.model.options.table_options import BUCKET_COUNT, BUCKET_KEY, DECLARED

    return _matching([*DECLARED, BUCKET_COUNT, BUCKET_KEY], begun)


def files(begun: str) -> list[str]:
    """Return the files and folders that a path may become."""
    home = expanduser("~")
    found = glob(f"{escape(expanduser(begun))}*")
    paths = [f"{path}/" if isdir(path) else path for path in found]
    return sorted(f"~{path.removeprefix(home)}" if begun.startswith("~") else path for path in paths)


def _named_tables(text: str, database: str) -> dict[str, str]:
    """Return the tables of a statement with their databases, by their names and aliases in lower case."""
    found: dict[str, str] = {}
    for listed in _TABLE_PLACES.findall(text):
        for each in listed.split(","):
            name, *alias = each.replace("`", "").replace('"', "").split()
            table = name.split("$")[0]
            path = table if "." in table else f"{database}.{table}"
            found[table.lower()] = found[table.rsplit(".", 1)[-1].lower()] = path
            if alias and alias[-1].upper() not in WORDS:
                found[alias[-1].lower()] = path
    return found


def _tables(word: str, database: str, names: Names) -> list[str]:
    if "." in word:
        other = word.split(".")[0]
        listed = [f"{other}.{table}" for table in names.tables(other)]
    else:
        listed = [*names.tables(database), *(f"{each}." for each in names.databases())]
    quoted = [f'"{table}{suffix}"' for table in listed for suffix in _SUFFIXES if not table.endswith(".")]
    return _matching([*listed, *(quoted if word.startswith('"') else [])], word)


def _matching(names: Sequence[str], word: str) -> list[str]:
    return sorted(name for name in names if name.lower().startswith(word.lower()))
