"""What the tab key offers at the prompt of `headrace sql`: words of SQL, databases, tables, columns.

Which of them depends on the words before: tables after FROM, databases after USE, otherwise the columns of the tables
that the statement names, and words. Names are asked for when they are needed first, and again after a statement that
may have changed them. A server that does not answer costs the names, not the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tablelayer.cli.errors import explain

if TYPE_CHECKING:
    from tablelayer.client import Connection

_TEXT = """
ADD AFTER ALTER AND AS AUTO_INCREMENT BETWEEN BIGINT BINARY BOOLEAN BY BYTES CASCADE CASE CHAR COLUMN
COMMENT COUNT CREATE CROSS DATABASE DATABASES DATE DECIMAL DEFAULT DELETE DESC DESCRIBE DISTINCT DOUBLE
DROP ELSE END ENFORCED EXISTS FALSE FIRST FLOAT FOR FROM FULL GRANT GRANTS GROUP HAVING IDENTIFIED IF IN
INNER INSERT INT INTERVAL INTO IS JOIN KEY LEFT LIKE LIMIT MAX MIN MODIFY NOT NULL OF OFFSET ON OPTIONS
OR ORDER OUTER PARTITION PARTITIONED PARTITIONS PASSWORD PRIMARY RENAME RESET REVOKE RIGHT SELECT SET
SHOW SMALLINT STRING SUM SYSTEM_TIME TABLE TABLES THEN TIME TIMESTAMP TIMESTAMP_LTZ TINYINT TO TRUE
UNION UPDATE USE USER USERS USING VALUES VERSION WHEN WHERE WITH
"""
WORDS = tuple(_TEXT.split())
_BEFORE_TABLES = {"FROM", "JOIN", "INTO", "UPDATE", "TABLE", "DESCRIBE", "DESC", "EXISTS"}
_BEFORE_DATABASES = {"USE", "DATABASE"}
_SUFFIXES = ("$changelog",)
_TABLE_PLACES = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE|TABLE|DESCRIBE|DESC)\s+([\w.`\"$]+)", re.IGNORECASE)


class Names:
    """Databases, tables and columns as the server has them; what was asked for is kept until `forget`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[str, tuple[str, ...]] = {}

    def forget(self) -> None:
        """Ask again."""
        self._known.clear()

    def databases(self) -> Sequence[str]:
        return self._ask("", lambda: self._connection.admin.list_databases())

    def tables(self, database: str) -> Sequence[str]:
        return self._ask(f"{database}.", lambda: self._connection.admin.list_tables(database))

    def columns(self, table: str) -> Sequence[str]:
        """`table` with its database."""
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


def candidates(before: str, word: str, database: str, names: Names) -> list[str]:
    """What `word` may be completed to, sorted; `before` is the statement up to it. Words as they are typed: small
    letters stay small."""
    last = re.findall(r"\w+", before)
    previous = last[-1].upper() if last and not before.rstrip().endswith((",", "(", ")", "=")) else ""
    if previous in _BEFORE_DATABASES:
        return _matching(names.databases(), word)
    if previous in _BEFORE_TABLES:
        return _tables(word, database, names)
    found: list[str] = []
    for name in _TABLE_PLACES.findall(before):
        table = name.replace("`", "").replace('"', "").split("$")[0]
        found += names.columns(table if "." in table else f"{database}.{table}")
    words = [each.lower() for each in WORDS] if word.islower() else WORDS
    return sorted(dict.fromkeys([*_matching(found, word), *_matching(words, word)]))


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


class Completer:
    """For `readline`: `complete(word, state)` gives one candidate after the other, then None."""

    def __init__(self, names: Names, line_before: Callable[[], str], database: Callable[[], str]) -> None:
        """`line_before` gives the statement up to the word that is completed, earlier lines included."""
        self._names = names
        self._line_before = line_before
        self._database = database
        self._found: list[str] = []

    def __call__(self, word: str, state: int) -> str | None:
        if state == 0:
            self._found = candidates(self._line_before(), word, self._database(), self._names)
        return self._found[state] if state < len(self._found) else None
