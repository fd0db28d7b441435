"""Statements and their meaning, and errors that point at the word."""

from __future__ import annotations

import datetime as dt
import pickle
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.tablelayer.model.ddl import (
    CopyFrom,
    CreateDatabase,
    CreateTable,
    DdlError,
    Default,
    Delete,
    DescribeQuery,
    DescribeTable,
    DropDatabase,
    DropTable,
    Expression,
    Insert,
    Select,
    ShowColumns,
    ShowCreateTable,
    ShowDatabases,
    ShowTables,
    Truncate,
    Update,
    UseDatabase,
    parse,
)
from headrace.tablelayer.model.ddl.clauses import parse_columns
from headrace.tablelayer.model.ddl.parser import parse as parse_all
from headrace.tablelayer.model.ddl.plain import plain_statement
from headrace.tablelayer.model.ddl.select import to_duckdb
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types import column_types as t

T = TablePath("default", "t")


def one(sql):
    (statement,) = parse(sql)
    return statement


def test_create_table_in_the_words_of_the_quickstart():
    statement = one("""
        -- the orders, as they come in
        CREATE TABLE IF NOT EXISTS `shop`.enriched_orders (
            `order_key`   BIGINT,
            cust_key      INT NOT NULL COMMENT 'who''s it',
            total_price   DECIMAL(15, 2),
            order_date    DATE, /* no time of day */
            name          STRING,
            PRIMARY KEY (`order_key`) NOT ENFORCED
        ) COMMENT 'all of them' WITH (
            'bucket.num' = '4',
            'table.datalake.enabled' = 'true',
            'table.datalake.freshness' = '30s'
        );
    """)
    assert isinstance(statement, CreateTable)
    assert statement.if_not_exists
    definition = statement.definition
    assert definition.path == TablePath("shop", "enriched_orders")
    assert [(c.name, c.type, c.nullable) for c in definition.schema.columns] == [
        ("order_key", t.BIGINT, False),
        ("cust_key", t.INT, False),
        ("total_price", t.decimal(15, 2), True),
        ("order_date", t.DATE, True),
        ("name", t.STRING, True),
    ]
    assert definition.schema.column("cust_key").comment == "who's it"
    assert definition.schema.primary_key == definition.bucket_key == ("order_key",)
    assert (definition.bucket_count, definition.comment) == (4, "all of them")
    assert definition.options == {
        "table.datalake.enabled": "true",
        "table.datalake.freshness": "30 s",
    }


@pytest.mark.parametrize(
    ("sql", "statement"),
    [
        ("create database d", CreateDatabase("d")),
        ("CREATE DATABASE IF NOT EXISTS d;", CreateDatabase("d", True)),
        ("DROP DATABASE d", DropDatabase("d")),
        ("DROP DATABASE IF EXISTS d CASCADE", DropDatabase("d", True, True)),
        ("SHOW DATABASES", ShowDatabases()),
        ("USE d", UseDatabase("d")),
        ("DROP TABLE t", DropTable(T)),
        ("DROP TABLE IF EXISTS d.`t-1`", DropTable(TablePath("d", "t-1"), True)),
        ("SHOW TABLES", ShowTables("default")),
        ("SHOW TABLES FROM d", ShowTables("d")),
        ("DESCRIBE t", DescribeTable(T)),
        ("desc table d.t", DescribeTable(TablePath("d", "t"))),
        ("SHOW CREATE TABLE t", ShowCreateTable(T)),
        ("DELETE FROM t WHERE a = 1 AND (b = 'x')", Delete(T, "a = 1 AND (b = 'x')", {"a": 1, "b": "x"})),
        ("DELETE FROM t", Delete(T)),
        ("DELETE FROM t WHERE a > 1 OR f(b)", Delete(T, "a > 1 OR f(b)")),
        ("DELETE FROM t WHERE a = NULL", Delete(T, "a = NULL")),
        (
            "DELETE FROM t AS a USING u JOIN v USING (k) WHERE a.k = u.k",
            Delete(T, "a.k = u.k", None, "a", "u JOIN v USING (k)"),
        ),
        ("DELETE FROM t a WHERE a.k = 1", Delete(T, "a.k = 1", None, "a")),
        ("INSERT INTO t VALUES (1, DEFAULT)", Insert(T, None, ((1, Default()),))),
        ("UPDATE t SET v = DEFAULT WHERE k = 1", Update(T, {"v": Default()}, "k = 1", {"k": 1})),
        (
            "INSERT INTO t VALUES ('NaN'::DOUBLE, 1::INT)",
            Insert(T, None, ((Expression("'NaN'::DOUBLE"), Expression("1::INT")),)),
        ),
        (
            "INSERT INTO t VALUES (MAP {'a': 1})",
            Insert(T, None, ((Expression("MAP {'a': 1}"),),)),
        ),
        ("INSERT INTO t (from, pivot) VALUES (1, 2)", Insert(T, ("from", "pivot"), ((1, 2),))),
        ("TRUNCATE TABLE t", Truncate(T)),
        ("SHOW COLUMNS FROM t LIKE 'a%'", ShowColumns(T, "a%")),
        ("SHOW SCHEMAS", ShowDatabases()),
        (
            "INSERT INTO t VALUES (now(), upper('a, b'))",
            Insert(T, None, ((Expression("now()"), Expression("upper('a, b')")),)),
        ),
        (
            "INSERT INTO t VALUES (1 + 1, 'x' || 'y', (2))",
            Insert(T, None, ((Expression("1 + 1"), Expression("'x' || 'y'"), Expression("(2)")),)),
        ),
        (
            "UPDATE t SET v = v + 1, w = 'x' WHERE v < 3; ",
            Update(T, {"v": Expression("v + 1"), "w": "x"}, "v < 3"),
        ),
        (
            "UPDATE t AS u SET v = s.v FROM s JOIN r ON s.k = r.k WHERE u.k = s.k",
            Update(T, {"v": Expression("s.v")}, "u.k = s.k", None, "u", "s JOIN r ON s.k = r.k"),
        ),
        (
            "UPDATE t SET v = EXTRACT(day FROM d) FROM (SELECT d FROM s) WHERE k = 1; ",
            Update(T, {"v": Expression("EXTRACT(day FROM d)")}, "k = 1", None, None, "(SELECT d FROM s)"),
        ),
        (
            "UPDATE t SET v = CASE WHEN a IN (1, 2) THEN 'WHERE' ELSE w END",
            Update(T, {"v": Expression("CASE WHEN a IN (1, 2) THEN 'WHERE' ELSE w END")}),
        ),
        (
            "COPY t FROM 'f' (FORMAT csv, HEADER, DELIM ';')",
            CopyFrom(T, None, "f", {"format": "csv", "header": True, "delimiter": ";"}),
        ),
        ("COPY t (a) FROM 'f.csv' WITH (HEADER false)", CopyFrom(T, ("a",), "f.csv", {"header": False})),
        (
            "UPDATE t SET v = NULL, w = -1.50 WHERE a = 1",
            Update(T, {"v": None, "w": Decimal("-1.50")}, "a = 1", {"a": 1}),
        ),
    ],
)
def test_statement(sql, statement):
    assert one(sql) == statement
    first, second = parse(f'{sql.rstrip("; ")}; SELECT * FROM "t$lake"')
    assert (first, type(second)) == (statement, Select)


def test_several_statements_and_the_current_database():
    assert parse(" ;; DROP TABLE t; USE d; DROP TABLE t; DROP TABLE e.t ;", "start") == [
        DropTable(TablePath("start", "t")),
        UseDatabase("d"),
        DropTable(TablePath("d", "t")),
        DropTable(TablePath("e", "t")),
    ]
    assert parse(" -- nothing here\n") == []
    described, dropped = parse('DESCRIBE "a$lake"; DROP TABLE t')
    assert (type(described), dropped) == (DescribeQuery, DropTable(T))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7), ("-7", -7), ("+7", 7), ("1.50", Decimal("1.50")), ("-.5", Decimal("-.5")),
        ("1e3", Decimal("1e3")), ("2.5E-3", Decimal("0.0025")),
        ("-1234567890123456789012345.678901", Decimal("-1234567890123456789012345.678901")),
        ("'it''s'", "it's"), ("'\\n'", "\\n"), ("''", ""), ("NULL", None), ("true", True), ("FALSE", False),
        ("DATE '2024-02-29'", dt.date(2024, 2, 29)), ("TIME '12:30'", dt.time(12, 30)),
        ("TIMESTAMP '2024-02-29 12:00:00.5'", dt.datetime(2024, 2, 29, 12, 0, 0, 500_000)),
        ("X'CAFE'", b"\xca\xfe"), ("CAST('-12.5' AS DECIMAL(5,2))", Decimal("-12.5")),
        ("CAST('7' AS BIGINT)", 7), ("CAST(7 AS STRING)", "7"), ("CAST(1 AS DOUBLE)", 1.0),
        ("CAST('2024-02-29' AS DATE)", dt.date(2024, 2, 29)),
        ("CAST('2024-02-29T12:00+02:00' AS TIMESTAMP_LTZ(3))", dt.datetime(2024, 2, 29, 10, tzinfo=dt.UTC)),
        ("CAST(NULL AS INT)", None),
    ],
)  # fmt: skip
def test_literal(text, value):
    statement = one(f"INSERT INTO t VALUES ({text})")
    assert statement == Insert(T, None, ((value,),))
    assert type(statement.rows[0][0]) is type(value)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(), st.decimals(allow_nan=False, allow_infinity=False), st.text(), st.dates()),
        min_size=1,
        max_size=4,
    )
)
def test_inserted_values_are_exact(rows):
    written = ",".join(
        "({}, {:f}, '{}', DATE '{}')".format(a, b, c.replace("'", "''").replace("\0", ""), d)
        for a, b, c, d in rows
    )
    expected = tuple((a, Decimal(f"{b:f}"), c.replace("\0", ""), d) for a, b, c, d in rows)
    assert one(f"INSERT INTO t (a, b, c, d) VALUES {written}") == Insert(T, ("a", "b", "c", "d"), expected)


def test_nested_values_in_statements():
    sql = "INSERT INTO t VALUES (ARRAY[1, NULL], MAP['a', ROW(1.5, DATE '2024-09-19')], ARRAY[], ARRAY[ARRAY[2]])"
    row = ([1, None], [("a", (Decimal("1.5"), dt.date(2024, 9, 19)))], [], [[2]])
    assert one(sql) == Insert(T, None, (row,))
    assert one("UPDATE t SET a = ROW('x') WHERE k = 1").assignments == {"a": ("x",)}


@pytest.mark.parametrize(
    ("sql", "word", "reason"),
    [
        ("CRAETE TABLE t (a INT)", "CRAETE", "did you mean CREATE"),
        ("ALTER TABLE t RENAME TO u", "TO", "a table keeps its name"),
        ("ALTER TABLE t ADD c INT FIRST x", "x", "expected ';'"),
        ("ALTER TABLE t ADD PRIMARY KEY (a) NOT ENFORCED", "PRIMARY", "the primary key is fixed"),
        ("ALTER TABLE t ADD c INT DEFAULT 'x'", "'x'", "is not a number"),
        ("ALTER TABLE t ALTER COLUMN c", "", "expected what is to be modified"),
        ("ALTER TABLE t SET ('table.log.tll' = '1 d')", "'table.log.tll'", "did you mean 'table.log.ttl'"),
        ("ALTER TABLE t RESET ('table.log.tll')", "'table.log.tll'", "did you mean 'table.log.ttl'"),
        ("ALTER TABLE t CHANGE a b INT", "CHANGE", "expected ADD, DROP"),
        ("DELETE FROM t WHER a = 1", "WHER", "expected WHERE"),
        ("DELETE FROM t x", "x", "expected WHERE"),
        ("ALTER VIEW v", "VIEW", "ALTER VIEW is not in this release"),
        ("CREATE TABLE t (a BIGNT)", "BIGNT", "type BIGNT is not known"),
        ("CREATE TABLE t (a ARRAY<INTT>)", "INTT", "type INTT is not known"),
        ("CREATE TABLE t (a INT, m MAP<STRING, ROW<x INT, x INT>>)", "x", "'x' is given twice"),
        ("CREATE TABLE t (m MAP<ROW<x INT>, INT>)", "ROW", "a key cannot be of the nested type ROW"),
        ("CREATE TABLE t (a ARRAY<INT)", ")", "expected '>'"),
        ("CREATE TABLE t (a INT, b ARRAY<INT>, PRIMARY KEY (a, b) NOT ENFORCED)", "b", "cannot be a key"),
        ("CREATE TABLE t (b ROW<x INT> PRIMARY KEY)", "b", "cannot be a key"),
        ("CREATE TABLE t (a INT, b ARRAY<INT>) PARTITIONED BY (a, b)", "b", "cannot be a key"),
        ("CREATE TABLE t (a INT, b ARRAY<INT>) WITH ('bucket.key' = 'b')", "'b'", "cannot be a key"),
        ("INSERT INTO t VALUES (MAP['a', 1, 'b'])", "MAP", "a value is missing"),
        ("INSERT INTO t VALUES (ARRAY(1))", "(", "expected '[', as in ARRAY[...]"),
        ("INSERT INTO t VALUES (" + "ARRAY[" * 17 + "]" * 17 + ")", "ARRAY", "nested deeper than 16 levels"),
        ("CREATE TABLE t (a ARRAY<INT> DEFAULT ARRAY[1])", "ARRAY", "can only have the default NULL"),
        ("CREATE TABLE t (a ARRAY<INT> DEFAULT 5)", "5", "is not a value of ARRAY<INT>"),
        ("CREATE TABLE t (a INT, a INT)", "a", "given twice"),
        ("CREATE TABLE t (a INT PRIMARY KEY, b INT PRIMARY KEY)", "a", "twice"),
        ("CREATE TABLE t (a INT", "", "expected ',' or ')', but the statement ends here"),
        (
            "CREATE TABLE t (a INT, d DOUBLE) PARTITIONED BY (d)",
            "t",
            "partition column 'd' is DOUBLE",
        ),
        ("CREATE TABLE t (a INT) PARTITIONED BY (b)", "(", "no column 'b'"),
        ("CREATE TABLE t (a INT) PARTITIONED (a)", "PARTITIONED", ""),
        ("ALTER TABLE t ADD PARTITION (a = 1, a = 2)", "a", "given twice"),
        (
            "ALTER TABLE t ADD PARTITION (a = 1), ADD b INT",
            ",",
            "expected ';'",
        ),
        ("CREATE TABLE t (a INT DEFAULT 5.5)", "5.5", "invalid default: 5.5 is not a whole number"),
        ("CREATE TABLE t (a TINYINT DEFAULT 300)", "300", "out of the range of TINYINT"),
        ("CREATE TABLE t (a DECIMAL(3, 1) DEFAULT 1.25)", "1.25", "does not fit into DECIMAL(3, 1)"),
        ("CREATE TABLE t (a STRING DEFAULT 5)", "5", "is not a value of STRING"),
        ("CREATE TABLE t (b INT, a AS b + 1)", "b", "use a view: CREATE VIEW v AS SELECT"),
        (
            "CREATE TABLE t (a INT) WITH ('table.log.tll' = '1 d')",
            "'table.log.tll'",
            "did you mean 'table.log.ttl'",
        ),
        ("CREATE TABLE t (a INT) WITH ('table.log.ttl' = 'x')", "'x'", "a duration is"),
        ("CREATE TABLE t (a INT) WITH ('bucket.num' = 'x')", "'bucket.num'", "whole number"),
        ("CREATE TABLE t (a INT, PRIMARY KEY (b) NOT ENFORCED)", "a", "'b' is not a column"),
        ("CREATE TABLE `a.b` (a INT)", "`a.b`", "table name 'a.b'"),
        ("DROP TABLE a.b.c", "a", "there is no catalog 'a'"),
        ("DROP TABLE default_catalog.b.c.d", ".", "database.table"),
        ("DROP TABLE t u", "u", "expected ';'"),
        ("INSERT INTO t VALUES (1, 2), (3)", "(", "1 values, but 2 are needed"),
        ("INSERT INTO t (a, b) VALUES (1)", "(", "1 values, but 2 are needed"),
        ("INSERT INTO t PARTITION (a = 1) SELECT 1", "PARTITION", "not in this release"),
        ("INSERT INTO t VALUES (12abc)", "12", "'12abc' is not a number"),
        ("INSERT INTO t VALUES (DATE '2023-02-29')", "'2023-02-29'", "day"),
        ("INSERT INTO t VALUES (CAST('300' AS TINYINT))", "'300'", "out of the range"),
        ("INSERT INTO t VALUES ('abc", "'", "is not closed"),
        ("INSERT INTO t VALUES (1) /* abc", "/", "is not closed"),
        ("SELECT a FROM", "FROM", "expected table name"),
        ("SELECT a FROM t WHERE (", "(", "something is missing"),
        ("SHOW COLUMN", "COLUMN", "expected DATABASES"),
        ("INSERT INTO t VALUES (colour)", "colour", "expected a value"),
        ("INSERT INTO t VALUES (1 +)", "1 +", "something is missing"),
        ("UPDATE t SET a = b + WHERE b = 1", "b +", "something is missing"),
        ("UPDATE t SET a = 1 WHERE", "", "expected a condition"),
        ("UPDATE t SET a = u.b FROM WHERE u.a = t.a", "WHERE", "expected a table"),
        ("UPDATE t SET a = u.b FROM u ORDER BY 1 WHERE u.a = t.a", "u ORDER BY 1", "expected tables"),
        ("UPDATE t SET a = u.b FROM (SELECT WHERE 1 = ) u", ")", "something is missing"),
        ("DELETE FROM t WHERE a >", "a >", "something is missing"),
        ("COPY t FROM 'f' (COLOUR red)", "COLOUR", "COPY has no option COLOUR"),
        ("CREATE TABLE t AS TABLES", "TABLES", "expected a query"),
        ("CREATE TABLE t (PRIMARY KEY (a) NOT ENFORCED)", "", "AS and a query"),
        ("EXPLAIN DROP TABLE t", "DROP", "expected a query"),
    ],
)
def test_error_points_at_the_word(sql, word, reason):
    with pytest.raises(DdlError) as caught:
        parse("SHOW DATABASES;\n  " + sql)
    error = caught.value
    assert error.code is TableErrorCode.INVALID_STATEMENT
    assert reason.lower() in error.reason.lower()
    assert error.word == word
    assert error.line == 2
    shown, marks = error.message.split("\n")[1:]
    column = marks.index("^")
    assert shown[column : column + len(word)] == word
    assert error.column == column - 2 + 1
    assert pickle.loads(pickle.dumps(error)).message == error.message


WORDS = [
    "CREATE", "TABLE", "t", "(", ")", "a", "INT", ",", "PRIMARY", "KEY", "WITH", "'x'", "=", "INSERT", "INTO",
    "VALUES", "1", "-", ".", "SELECT", "*", "FROM", "WHERE", "AND", ";", "UPDATE", "SET", "DELETE", "`b`", "NULL",
    "DECIMAL", "CAST", "'", "\n", "COUNT", "LIMIT", "JOIN", "[", "$", "::", "é", "\\", "/*", "--",
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=12))
def test_nonsense_is_a_ddl_error_and_nothing_else(words):
    sql = " ".join(words)
    try:
        parse(sql)
    except DdlError as error:
        complaint = error
    else:
        return
    assert complaint.line <= sql.count("\n") + 1
    assert complaint.column <= len(sql) + 1
    assert complaint.reason


_WORDS = st.sampled_from(
    ["SHOW", "show", "USE", "Use", "DESCRIBE", "desc", "DATABASES", "SCHEMAS", "TABLES", "TOPICS", "VIEWS", "COLUMNS",
     "IN", "FROM", "from", "TABLE", "DATABASE", "schema", "shop", "Shop2", "_x", "a.b", "a.", ".b", "a.b.c", "a-b",
     "LIKE", "'%'", "`a`", "select", "null", "--x", ";", "é", "a" * 300]
)  # fmt: skip


@example(["USE", "schema"], " ", ";")
@example(["DESCRIBE", "table"], " ", ";")
@given(
    st.lists(_WORDS, min_size=1, max_size=5),
    st.sampled_from([" ", "  ", "\n", "\t", ""]),
    st.sampled_from("; "),
)
def test_the_fast_parser_agrees_with_the_full_one(words, between, end):
    sql = between.join(words) + end
    plain = plain_statement(sql, "home")
    if plain is not None:
        assert [plain] == parse_all(sql, "home")


@pytest.mark.parametrize(
    "sql",
    ["SHOW DATABASES", "show schemas ;", " SHOW TABLES", "SHOW TABLES IN shop", "show tables\nfrom Shop", "SHOW TOPICS",
     "SHOW VIEWS", "USE shop;", "DESCRIBE orders", "desc shop.orders"],
)  # fmt: skip
def test_plain_words_need_no_parser(sql):
    assert [plain_statement(sql, "home")] == parse_all(sql, "home")


def test_column_lists():
    plain = parse_columns("id BIGINT NOT NULL, v STRING, PRIMARY KEY (id) NOT ENFORCED")
    assert plain == parse_columns("(id BIGINT PRIMARY KEY NOT ENFORCED, v STRING)")
    assert plain.primary_key == ("id",)
    with pytest.raises(DdlError, match="end of the column list"):
        parse_columns("id BIGINT) WITH ('a' = 'b'")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM t", (None, {}, None, False)),
        ("SELECT a, `b` FROM t WHERE k = 1 AND (j = 'x') LIMIT 5", (("a", "b"), {"k": 1, "j": "x"}, 5, False)),
        ("SELECT COUNT(*) FROM t", (None, {}, None, True)),
        ("SELECT * FROM t WHERE 5 = k AND d = 'x'", (None, {"k": 5, "d": "x"}, None, False)),
        ("SELECT * FROM t WHERE d = DATE '2024-01-01'", (None, {"d": dt.date(2024, 1, 1)}, None, False)),
        ("SELECT x.a FROM t AS x WHERE x.k = -2.50", (("a",), {"k": Decimal("-2.50")}, None, False)),
        (
            "SELECT a FROM t WHERE k = -1234567890123456789012345.678901",
            (("a",), {"k": Decimal("-1234567890123456789012345.678901")}, None, False),
        ),
    ],
)  # fmt: skip
def test_simple_query(sql, expected):
    query = one(sql)
    assert isinstance(query, Select)
    assert query.table == "default.t"
    assert (query.columns, query.equals, query.limit, query.is_count) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a + 1 FROM t", "SELECT a AS b FROM t", "SELECT DISTINCT a FROM t",
        "SELECT a FROM t ORDER BY a",
        "SELECT a FROM t WHERE k = 1 OR k = 2", "SELECT a FROM t WHERE k > 1",
        "SELECT a FROM t WHERE k = 1 AND k = 2",
        "SELECT a FROM t, u", "SELECT COUNT(a) FROM t", "SELECT a, COUNT(*) FROM t",
        "SELECT a FROM t OFFSET 3",
        "SELECT a FROM t WHERE k = NULL", "SELECT a FROM t UNION ALL SELECT a FROM t",
        "SELECT a FROM (SELECT * FROM t)",
        "SELECT * EXCLUDE (a) FROM t", "SELECT a FROM t LIMIT 10 PERCENT", "SELECT a FROM t TABLESAMPLE 10%",
        "SELECT a, a FROM t", "WITH t AS (SELECT 1 AS a) SELECT a FROM t", "SELECT a FROM t WHERE NOT k = 1",
        "SELECT a FROM t QUALIFY row_number() OVER () = 1", "SELECT a FROM t GROUP BY a", "SELECT 1",
    ],
)  # fmt: skip
def test_query_that_is_not_simple(sql):
    query = one(sql)
    assert not query.is_simple
    assert query.table is None


def test_tables_and_columns_of_a_query():
    query = one(
        "WITH big AS (SELECT k, v FROM t WHERE v > 10) "
        "SELECT b.k, sum(x.w) FROM big b JOIN `shop`.u$changelog x USING (id) GROUP BY b.k"
    )
    assert set(query.tables) == {"default.t", "shop.u$changelog"}
    assert query.columns_read["shop.u$changelog"] >= {"id", "w"}
    assert query.columns_read["default.t"] >= {"k", "v"}
    assert one("SELECT *, a FROM t").columns_read == {"default.t": None}
    assert one("SELECT t FROM t").columns_read == {"default.t": None}
    assert one("SELECT a FROM t NATURAL JOIN u").columns_read == {"default.t": None, "default.u": None}
    assert one("SELECT count(*) FROM t WHERE A = 1").columns_read == {"default.t": frozenset({"a"})}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT a FROM t FOR UPDATE", "SELECT a FROM t FOR SHARE", "SELECT a FROM t WITH (NOLOCK)",
        "SELECT a FROM t CLUSTER BY a", "SELECT a INTO x FROM t", "SELECT a FROM t FETCH FIRST 3 ROWS WITH TIES",
        "SELECT a FROM t START WITH a = 1 CONNECT BY PRIOR a = b", "SELECT a FROM t WHERE a BETWEEN SYMMETRIC 2 AND 1",
        "SELECT a FROM t CHANGES (INFORMATION => DEFAULT) AT (TIMESTAMP => 1)", "SELECT a FROM t LIMIT 1 BY b",
        "SELECT * FROM (SELECT a FROM t FOR UPDATE) x",
    ],
)  # fmt: skip
def test_clauses_that_duckdb_does_not_have_are_refused(sql):
    with pytest.raises(DdlError, match=r"DuckDB's SQL|not supported|FETCH a number"):
        one(sql)


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("WITH t AS (SELECT * FROM t) SELECT * FROM t", ["t"]),
        ("WITH t AS (SELECT 1 AS a), u AS (SELECT * FROM t) SELECT * FROM u", []),
        ("WITH u AS (SELECT * FROM t), t AS (SELECT 1 AS a) SELECT * FROM u, t", ["t"]),
        ("WITH RECURSIVE t AS (SELECT 1 AS a UNION ALL SELECT a + 1 FROM t) SELECT * FROM t", []),
        (
            "SELECT * FROM u WHERE a IN (WITH t AS (SELECT 1 AS a) SELECT a FROM t) AND EXISTS (FROM t)",
            ["t", "u"],
        ),
        ("SELECT * FROM (WITH t AS (SELECT 1 AS a) SELECT * FROM t) x, t", ["t"]),
        ("WITH t AS (SELECT 1 AS a) SELECT * FROM (SELECT * FROM t) x, d.t", ["d.t"]),
        ("WITH t AS (SELECT 1 AS a) SELECT a FROM t UNION SELECT a FROM t", []),
        ("WITH x AS (SELECT a, b FROM t) PIVOT x ON a USING sum(b)", ["t"]),
    ],
)
def test_a_with_is_in_force_where_it_stands(sql, tables):
    assert sorted(one(sql).tables) == [each if "." in each else f"default.{each}" for each in tables]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT x.c FROM t AS x(b, c)", "SELECT x.c FROM t AS x(b, c) WHERE x.c = 1", "SELECT count(c) FROM t x(b, c)",
        "SELECT #2 FROM t", "SELECT a, #1 FROM t WHERE b = 1", "SELECT COLUMNS('a.*') FROM t",
        "PIVOT t ON a USING sum(b)", "SELECT a FROM t PIVOT (sum(b) FOR c IN (1))", "SELECT a FROM t NATURAL JOIN u",
    ],
)  # fmt: skip
def test_columns_that_are_not_named_are_read(sql):
    query = one(sql)
    assert query.columns_read["default.t"] is None
    assert not query.is_simple
    assert query.reads is None
    assert query.counts is None
    assert not query.aggregates


def test_a_name_that_is_a_type_has_to_be_quoted_before_a_bracket():
    for sql in ("SELECT text[1] FROM t", "SELECT a FROM t WHERE string[1].x = 1"):
        with pytest.raises(DdlError, match="in double quotes"):
            one(sql)
    sql = 'SELECT "text"[1], x::INT[3], CAST(y AS STRUCT(a INT, b TEXT[])) FROM t'
    assert one(sql).columns_read == {"default.t": frozenset({"text", "x", "y"})}


def test_conditions_on_alias_columns_are_left_to_duckdb():
    query = one("SELECT x.c FROM t AS x(b, c) WHERE x.b = 1 AND c < 5")
    assert not query.conditions
    assert not query.bounds


def test_a_nested_query_over_nanoseconds_does_not_grow_without_a_limit():
    schemas = {"default.t": pa.schema([("z", pa.timestamp("ns", "UTC")), ("n", pa.timestamp("us", "UTC"))])}
    value, inner = "z", "t"
    for _ in range(12):
        value = (
            f"CASE WHEN year({value}) = 1 THEN z WHEN n > {value} THEN z END" if len(value) < 3000 else value
        )
        inner = f"(SELECT z, n, z AS z1, z AS z2 FROM {inner} AS s WHERE year(z) = 1)"
    for text in (f"SELECT year({value}) FROM t", f"SELECT 1 FROM {inner} AS s"):
        written = to_duckdb(one(text), {"default.t": "v0"}, schemas=schemas)
        assert "EPOCH_NS" in written
        assert len(written) < 40 * len(text)


def test_a_path_into_a_struct_is_not_a_column():
    query = one("SELECT c.t.a FROM t WHERE c.t.b = 1")
    assert not query.is_simple
    assert not query.conditions
    assert query.columns_read["default.t"] >= {"c"}
    assert to_duckdb(query, {"default.t": "v0"}) == 'SELECT c.t.a FROM "v0" AS "t" WHERE c.t.b = 1'
    query = one("SELECT t.t.n.n FROM x AS t WHERE t.t.n.n = 2")
    assert query.columns_read["default.x"] >= {"t", "n"}
    assert to_duckdb(query, {"default.x": "v0"}) == 'SELECT t.t.n.n FROM "v0" AS t WHERE t.t.n.n = 2'
    query = one('SELECT "default".t.a, t.c.d FROM t')
    assert to_duckdb(query, {"default.t": "v0"}) == 'SELECT t.a, t.c.d FROM "v0" AS "t"'


def test_query_runs_in_duckdb_under_other_names():
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE v0 AS SELECT range AS k, range % 3 AS g FROM range(9)")
        connection.execute("CREATE TABLE v1 AS SELECT range AS g, 'g' || range AS name FROM range(3)")
        query = one(
            "SELECT `groups`.name, count(*) AS n FROM shop.items JOIN shop.groups USING (g) "
            "WHERE shop.items.k > 1 GROUP BY ALL ORDER BY items.name".replace("items.name", "name")
        )
        text = to_duckdb(query, {"shop.items": "v0", "shop.groups": "v1"})
        assert connection.execute(text).fetchall() == [("g0", 2), ("g1", 2), ("g2", 3)]
