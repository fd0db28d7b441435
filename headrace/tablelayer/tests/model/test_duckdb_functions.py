"""DuckDB's functions keep their arguments and their meaning in a query that is written from its tree.

The oracle is DuckDB: each of its functions that sqlglot rewrites is called with values of its own types, as the text
stands and as it is translated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import duckdb
import pytest
from sqlglot.dialects.duckdb import DuckDB

from headrace.tablelayer.model.ddl.names import Names
from headrace.tablelayer.model.ddl.select import analyze, parsed

VALUES = {
    "VARCHAR": ("'Hello, World'", "'a'", "'abc'"), "BOOLEAN": ("true", "false"),
    "BLOB": (r"'\xC3\xBCb'::BLOB", "'b'::BLOB"),
    "BIGINT": ("3", "2", "1", "5"), "INTEGER": ("3", "2", "1", "4"), "HUGEINT": ("3", "2"), "T": ("3", "2", "5"),
    "DOUBLE": ("2.5::DOUBLE", "1.5::DOUBLE", "0.5::DOUBLE"), "FLOAT": ("2.5::FLOAT", "1.5::FLOAT"), "ANY": ("3", "2"),
    "DATE": ("DATE '2024-03-05'", "DATE '2023-01-31'"), "TIME": ("TIME '10:11:12.5'", "TIME '01:02:03'"),
    "TIMESTAMP": ("TIMESTAMP '2024-03-05 10:11:12.345678'", "TIMESTAMP '2023-01-31 01:02:03'"),
    "TIMESTAMP WITH TIME ZONE": ("TIMESTAMPTZ '2024-03-05 10:11:12.345678+02'", "TIMESTAMPTZ '2023-01-31 01:02:03Z'"),
    "INTERVAL": ("INTERVAL '1 day 2 hours'", "INTERVAL 3 MONTH"), "BIT": ("'10101'::BIT", "'00111'::BIT"),
    "JSON": ("""'{"a": [1, 2], "b": "x"}'::JSON""",), "VARCHAR[]": ("['b', 'a']",), "T[]": ("[3, 1, 2]", "[1, 9]"),
    "DOUBLE[]": ("[1.0, 2.0]::DOUBLE[]", "[3.0, 1.0]::DOUBLE[]"), "MAP(K, V)": ("MAP {'a': 1, 'b': 2}",),
}  # fmt: skip
WORDS = ("'year'", "'day'", "'g'", "'replace'")
"""Texts that mean something in the first or the last place: units, modes."""
NOT_COMPARED = ("json_value", "random", "uuid", "now", "today", "get_current", "version", "current")
"""JSON_VALUE is Flink's; the others differ from call to call."""


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'; SET threads = 1")
        yield database


def translated(sql: str) -> str:
    """Return the text of a query in which more than names had to change."""
    return parsed(analyze(sql, 0, len(sql), Names("default"))).sql(dialect=DuckDB)


def calls(duck: duckdb.DuckDBPyConnection) -> Iterator[str]:
    """Yield a call of each overload, with literals, with columns, and with a text that is a word."""
    rewritten = {*DuckDB.Parser.FUNCTIONS, *DuckDB.Parser.FUNCTION_PARSERS}
    for name, kinds, sort in duck.execute(
        "SELECT DISTINCT function_name, parameter_types, function_type FROM duckdb_functions()"
        " WHERE function_type IN ('scalar', 'aggregate') ORDER BY ALL"
    ).fetchall():
        if name.upper() not in rewritten or name.startswith(NOT_COMPARED) or not kinds:
            continue
        seen = Counter[str]()
        given = []
        for kind in kinds:
            values = VALUES.get(kind, VALUES["ANY"])
            given.append(values[seen[kind] % len(values)])
            seen[kind] += 1
        forms = [given]
        forms += [[word, *given[1:]] for word in WORDS[:1] if kinds[0] == "VARCHAR"]
        forms += [[*given[:-1], word] for word in WORDS if kinds[-1] == "VARCHAR" and len(kinds) > 1]
        for form in forms:
            names = ", ".join("abcdefgh"[: len(form)])
            source = f"(VALUES ({', '.join(form)})) AS v({names})"
            if sort == "scalar":
                yield f"SELECT {name}({', '.join(form)}), {name}({names}) FROM {source}"
            else:
                yield f"SELECT {name}({', '.join(['a', *form[1:]])}) FROM {source}"


def test_a_function_has_the_value_that_duckdb_gives_it(duck: duckdb.DuckDBPyConnection) -> None:
    asked, wrong = 0, []
    for sql in calls(duck):
        try:
            wanted = duck.sql(sql).fetchall()
        except duckdb.Error:
            continue  # not a call that DuckDB accepts
        asked += 1
        found = repr(duck.sql(translated(sql)).fetchall())
        if found != repr(wanted):
            wrong.append(f"{sql}: {found}, not {wanted}")
    assert not wrong, "\n".join(wrong)
    assert asked > 300


@pytest.mark.parametrize(
    "expression",
    [
        """'{"a.b": 1, "a": {"b": 2}}'::JSON ->> 'a.b'""",
        """'{"a[0]": 1, "a": [2]}'::JSON -> 'a[0]'""",
        """json_extract_string('{"a.b": 1, "a": {"b": 2}}', 'a.b')""",
        """'{"a": {"b": 2}}'::JSON ->> '$..b'""",
        """'{"a": {"b": 2}}'::JSON ->> '/a/b'""",
        "EXTRACT(HOUR FROM TIMESTAMPTZ '2024-01-01 10:00:00+02')",
        "EXTRACT('epoch' FROM TIMESTAMPTZ '2024-01-01 10:00:00Z')",
        "EXTRACT(isodow FROM DATE '2024-03-03')",
        "date_part(['year', 'month'], DATE '2024-03-03')",
    ],
)
def test_paths_of_json_and_parts_of_times_are_those_of_duckdb(
    duck: duckdb.DuckDBPyConnection, expression: str
) -> None:
    sql = f"SELECT {expression}"
    assert duck.sql(translated(sql)).fetchall() == duck.sql(sql).fetchall()
