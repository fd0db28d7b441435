"""A query keeps its own text for DuckDB, but for the names of its tables: so its columns have the names of DuckDB."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from headrace.tablelayer.model.ddl.errors import DdlError
from headrace.tablelayer.model.ddl.names import Names
from headrace.tablelayer.model.ddl.select import analyze, to_duckdb, with_databases
from headrace.tablelayer.model.ddl.streams import OP, stream_query

EXPRESSIONS = [
    "list(k)", "array_agg(k ORDER BY n DESC)", "len(s), length(s), char_length(s)", "substr(s, 1, 2)", "k::VARCHAR",
    "mod(k, n), k % n, k ** 2, +k", "k NOTNULL, b IS NOT FALSE", "if(k = 1, 'a', 'b')", "d + INTERVAL 1 DAY",
    "time_bucket(INTERVAL 1 DAY, moment, 'Europe/Berlin')", "log10(n), log2(n)", "position('b' IN s), instr(s, 'b')",
    "list_has_any(a, [1]), a && [1]", "reduce([1, 2], lambda x, y: x + y, 10)", "string_agg(s, ';' ORDER BY k)",
    "json_extract_string(js, '$.a')", "max_by(k, n)", "percentile_cont(0.5) WITHIN GROUP (ORDER BY k)",
    "1_000, .5, 1e3, X'41', $$x$$, E'a'", "count(*), sum(k) FILTER (WHERE b)", "current_date = today()",
    "len(s), js -> 'a' -> 0, js ->> '$.a', upper(js) ->> 'A' IS NULL, coalesce(s, js ->> 'a')", "(js -> 'a')",
    "sum(k) OVER (ORDER BY n ROWS 1 PRECEDING)", "COLUMNS('k|n')", "* EXCLUDE (a, js)", "k IS NOT DISTINCT FROM n",
]  # fmt: skip
QUERIES = {
    "SELECT t.k, len(shop.t.s) FROM shop.t WHERE shop.t.k IN (SELECT max(k) FROM t)":
        "SELECT t.k, len(t.s) FROM t WHERE t.k IN (SELECT max(k) FROM t)",
    "SELECT `k`, len(`s`) AS `the ``length` FROM `t` WHERE `t`.`k` = 1":
        'SELECT k, len(s) AS "the `length" FROM t WHERE k = 1',
    "WITH t2 AS (FROM shop.t) SELECT len(s) FROM t2 x JOIN `shop`.\"t\" USING (s) -- both":
        "WITH t2 AS (FROM t) SELECT len(s) FROM t2 x JOIN t USING (s)",
    "FROM t SELECT 'FROM t', len(s), \"offset\"": "FROM t SELECT 'FROM t', len(s), \"offset\"",
    "SELECT offset, len(s), k AS end FROM t order": 'SELECT "offset", len(s), k AS "end" FROM t',
    "SELECT count(*) FROM (PIVOT t ON k USING sum(n) GROUP BY s)":
        "SELECT count(*) FROM (PIVOT t ON k USING sum(n) GROUP BY s)",
    "PIVOT t ON k USING  stddev(n)": "PIVOT t ON k USING stddev(n)",
    "SELECT CAST(moment AS TIMESTAMP_LTZ(3)), CAST('12:00:00' AS TIME(0)), CAST(a AS ARRAY<BIGINT>) FROM t":
        "SELECT CAST(moment AS TIMESTAMPTZ), CAST('12:00:00' AS TIME), CAST(a AS BIGINT[]) FROM t",
    "SELECT k FROM t WHERE js ->> '$.a' = 'x'": "SELECT k FROM t WHERE (js ->> '$.a') = 'x'",
    "SELECT list_transform(a, x -> x + 1), len(s) FROM t": "SELECT list_transform(a, lambda x: x + 1), len(s) FROM t",
    "SELECT list_reduce(a, (x, `y`) -> x + y, 0), len(s) FROM t":
        "SELECT list_reduce(a, lambda x, y: x + y, 0), len(s) FROM t",
    "SELECT len(s), NOT js ->> 'a' = 'x', length(t.js -> 'a'), js::JSON ->> 'a' FROM t ORDER BY js ->> 'a' < 'y'":
        "SELECT len(s), NOT ((js ->> 'a') = 'x'), length((t.js -> 'a')), (js::JSON) ->> 'a' FROM t"
        " ORDER BY (js ->> 'a') < 'y'",
    "SELECT js ->> 'a'::VARCHAR, len(s) FROM t": "SELECT js ->> CAST('a' AS TEXT), len(s) AS \"length(s)\" FROM t",
    "SELECT len(s) FROM t TABLESAMPLE 100 PERCENT": "SELECT len(s) AS \"length(s)\" FROM t",
}  # fmt: skip


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'; SET threads = 1")
        database.execute(
            "CREATE TABLE t AS SELECT * FROM (VALUES (1, 2, 'abc', DATE '2024-03-05',"
            """ TIMESTAMPTZ '2024-03-05 10:11:12Z', [3, 1], true, '{"a": "x"}', 5),"""
            """ (1000, 8, 'b', NULL, NULL, [], false, '{}', 6))"""
            ' AS v(k, n, s, d, moment, a, b, js, "offset")'
        )
        yield database


def read(duck: duckdb.DuckDBPyConnection, sql: str, names: Names | None = None) -> str:
    select = analyze(sql, 0, len(sql), names or Names("shop"))
    return answer(duck, to_duckdb(select, {"shop.t": "t"}))


def answer(duck: duckdb.DuckDBPyConnection, sql: str) -> str:
    relation = duck.sql(sql)
    return repr((relation.columns, relation.fetchall()))


@pytest.mark.parametrize("expressions", EXPRESSIONS)
def test_unnamed_columns_have_the_names_and_values_of_duckdb(
    duck: duckdb.DuckDBPyConnection, expressions: str
) -> None:
    sql = f"SELECT {expressions} FROM t"
    assert read(duck, sql) == answer(duck, sql)


@pytest.mark.parametrize(("sql", "plain"), QUERIES.items())
def test_names_of_tables_are_replaced_wherever_they_are(
    duck: duckdb.DuckDBPyConnection, sql: str, plain: str
) -> None:
    assert read(duck, sql) == answer(duck, plain)


def test_columns_of_a_view_keep_the_names_that_duckdb_gives_them(duck: duckdb.DuckDBPyConnection) -> None:
    names = Names("shop")
    view = "SELECT len(`s`), s || '!' FROM t -- its text"
    names.views["shop.v"] = with_databases(analyze(view, 0, len(view), names))
    other = Names("other", names.views)
    for sql in ("SELECT * FROM shop.v", 'SELECT v."len(s)", "(s || \'!\')" FROM shop.v'):
        assert read(duck, sql, other) == answer(duck, "SELECT len(s), s || '!' FROM t")
    assert read(duck, 'SELECT x."len(s)" FROM shop.v AS x', other) == answer(duck, "SELECT len(s) FROM t")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT len(s), k * 2, *, t.* FROM t",
        "FROM t",
        "FROM t SELECT js -> 'a', len(s) WHERE js ->> 'a' = 'x' LIMIT 1",
    ],
)
def test_a_streaming_query_keeps_the_names_of_its_columns(duck: duckdb.DuckDBPyConnection, sql: str) -> None:
    _, query, _ = stream_query(analyze(sql, 0, len(sql), Names("shop")))
    duck.execute(f"CREATE OR REPLACE TEMP TABLE changes AS SELECT '+I' AS \"{OP}\", * FROM t")
    found, wanted = duck.sql(query), duck.sql(sql.replace("js ->> 'a' =", "(js ->> 'a') ="))
    places = [place for place, name in enumerate(found.columns) if name != OP]
    assert [found.columns[place] for place in places] == ["op", *wanted.columns]
    assert [tuple(row[place] for place in places) for row in found.fetchall()] == [
        ("+I", *row) for row in wanted.fetchall()
    ]


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT distinct, k FROM t", 'no value before the comma: write "distinct" in double quotes'),
        ("SELECT k,, n FROM t", "column 10: there is no value before the comma"),
        ("SELECT len(, s) FROM t", "column 12: there is no value before the comma"),
        ("SELECT js -> 'a', k k k FROM t", "column 23"),
        ("SELECT 0x1F FROM t", "0x1F is not a number: write 31"),
        ("SELECT a <=> a FROM t", "<=> has two meanings"),
        ("SELECT * FROM t WHERE k <=> 1", "<=> has two meanings"),
        ("SELECT count(k) WITHIN GROUP (ORDER BY k) FROM t", "COUNT\\(k\\) has no WITHIN GROUP"),
    ],
)
def test_words_with_another_meaning_elsewhere_are_refused(sql: str, reason: str) -> None:
    with pytest.raises(DdlError, match=reason):
        analyze(sql, 0, len(sql), Names("shop"))
