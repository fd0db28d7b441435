"""Rows in and out: expressions, CREATE TABLE ... AS SELECT, COPY."""

import datetime
import json
import os
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.tablelayer.client import DataError, TableError
from headrace.tablelayer.sql import duck
from headrace.tablelayer.sql.errors import SqlError

ALL = (
    "id INT, t TINYINT, big BIGINT, f FLOAT, d DOUBLE, p DECIMAL(12, 3), ok BOOLEAN, s STRING, c CHAR(3), day DATE,"
    " tm TIME(3), ts TIMESTAMP(3), ns TIMESTAMP(9), z TIMESTAMP_LTZ(6), raw BYTES, tags ARRAY<STRING>,"
    " m MAP<STRING, INT>, who ROW<name STRING, age INT>"
)
ROWS = (
    "(1, -7, 9007199254740993, 1.5, 0.1, 12.340, TRUE, 'a, \"b\"', 'abc', DATE '2024-09-19', TIME '01:02:03.004',"
    " TIMESTAMP '2024-09-19 12:00:00.123', TIMESTAMP '2024-09-19 12:00:00.123456',"
    " TIMESTAMP_LTZ '2024-09-19 12:00:00.5+02:00', X'00FFCA', ARRAY['x', 'y, z', NULL], MAP['k', 1], ROW('Ann', 7)),"
    " (2, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
)


def test_values_may_be_worked_out(sql):
    sql(
        "CREATE TABLE t (id INT, p DECIMAL(8, 2), s VARCHAR, at TIMESTAMP(3), z TIMESTAMP_LTZ(0), tags ARRAY<INT>)"
    )
    before = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
    assert (
        sql("INSERT INTO t VALUES (1 + 1, 1.005 * 2, upper('a,') || ')', now(), now(), [1, 2])")
        == "1 row written"
    )
    (row,) = sql("SELECT * FROM t")
    after = datetime.datetime.now(datetime.UTC)
    assert (row["id"], row["p"], row["s"], row["tags"]) == (2, Decimal("2.01"), "A,)", [1, 2])
    assert before <= row["z"] <= after
    assert before <= row["at"].replace(tzinfo=datetime.UTC) <= after
    sql("INSERT INTO t (id, z) SELECT 3, now(); INSERT INTO t (id, at) SELECT 4, now()")
    assert sql("SELECT count(z) AS z, count(at) AS at FROM t WHERE id > 2") == [{"z": 1, "at": 1}]
    with pytest.raises(SqlError, match="Could not convert string 'x'"):
        sql("INSERT INTO t (id) VALUES (lower('X')::INT)")


def test_a_table_is_made_of_a_query(sql):
    sql("CREATE TABLE a (k INT, v STRING); INSERT INTO a VALUES (1, 'x'), (2, 'y'), (3, NULL)")
    said = sql("CREATE TABLE b AS SELECT k * 2 AS k, v, count(*) OVER () AS n FROM a")
    assert said == f"created table {sql.database}.b, 3 rows written"
    assert [row["type"] for row in sql("SHOW COLUMNS FROM b")] == ["INT", "STRING", "BIGINT"]
    assert sql("SELECT k, n FROM b ORDER BY k") == [{"k": k, "n": 3} for k in (2, 4, 6)]
    sql(
        "CREATE TABLE c (v CHAR(1), k BIGINT, PRIMARY KEY (k) NOT ENFORCED) COMMENT 'of a' WITH ('bucket.num' = '2')"
        " AS SELECT * FROM a"
    )
    definition = sql.connection.admin.describe_table(f"{sql.database}.c")
    assert (definition.schema.primary_key, definition.bucket_count, definition.comment) == (("k",), 2, "of a")
    assert [str(column.type) for column in definition.schema.columns] == ["BIGINT", "CHAR(1)"]
    sql("CREATE TABLE d (PRIMARY KEY (k) NOT ENFORCED) AS FROM a WHERE v IS NOT NULL")
    assert sql("SELECT * FROM d WHERE k = 2") == [{"k": 2, "v": "y"}]
    assert sql("CREATE TABLE IF NOT EXISTS d AS SELECT 1 AS x") == f"table {sql.database}.d exists"
    for text, complaint in (
        ("CREATE TABLE d AS SELECT 1 AS x", "exists already"),
        ("CREATE TABLE e (z INT) AS SELECT 1 AS x", "has no column 'z'"),
        (
            "CREATE TABLE e (PRIMARY KEY (z) NOT ENFORCED) AS SELECT 1 AS x",
            "has no column 'z' for the primary key",
        ),
        ("CREATE TABLE e AS SELECT INTERVAL 1 DAY AS x", "column 'x' of the query"),
    ):
        with pytest.raises(TableError, match=complaint):
            sql(text)
    # A failure halfway leaves no table.
    with pytest.raises(DataError, match="3000000000 does not fit column 'x'"):
        sql("CREATE TABLE e (x INT) AS SELECT 3000000000 AS x")
    assert [row["table"] for row in sql("SHOW TABLES LIKE 'e'")] == []


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz", "rows.tsv", "rows.json", "rows.parquet", "rows"])
def test_copied_files_are_copied_back_into_a_table(sql, tmp_path, name):
    file = tmp_path / name
    options = " (FORMAT csv, DELIMITER '|', NULLSTR 'nil')" if name == "rows" else ""
    sql(f"CREATE TABLE t ({ALL}); INSERT INTO t VALUES {ROWS}; CREATE TABLE u ({ALL})")
    assert sql(f"COPY t TO '{file}'{options}") == f"2 rows written to {file}"
    assert sorted(each.name for each in tmp_path.iterdir()) == [name]
    assert sql(f"COPY u FROM '{file}'{options}") == "2 rows written"
    assert sql("SELECT * FROM u ORDER BY id") == sql("SELECT * FROM t ORDER BY id")


def test_the_types_of_a_file_are_the_table_s(sql, tmp_path):
    sql("CREATE TABLE t (code STRING, n BIGINT, s STRING DEFAULT 'none')")
    file = tmp_path / "in.csv"
    file.write_text("N,code\n9007199254740993,007\n2,1e5\n")
    sql(f"COPY t FROM '{file}'")
    assert sql("SELECT * FROM t ORDER BY n") == [
        {"code": "1e5", "n": 2, "s": "none"}, {"code": "007", "n": 9007199254740993, "s": "none"},
    ]  # fmt: skip
    file.write_text("010;3\n011;4\n")
    sql(f"COPY t (code, n) FROM '{file}' (DELIMITER ';')")
    assert sql("SELECT code FROM t WHERE n IN (3, 4) ORDER BY n") == [{"code": "010"}, {"code": "011"}]
    file = tmp_path / "in.json"
    file.write_text('{"code": "0100", "n": 5}\n{"code": "0101", "n": 6, "s": null}\n')
    sql(f"COPY t FROM '{file}'")
    assert sql("SELECT code, s FROM t WHERE n > 4 AND n < 7 ORDER BY n") == [
        {"code": "0100", "s": None}, {"code": "0101", "s": None},
    ]  # fmt: skip
    sql(f"COPY (SELECT n, code AS c FROM t WHERE n = 2) TO '{tmp_path}/out.json'")
    assert json.loads((tmp_path / "out.json").read_text()) == {"n": 2, "c": "1e5"}


def test_a_file_that_does_not_fit_is_refused_by_name(sql, tmp_path):
    sql("CREATE TABLE t (id INT, name STRING, PRIMARY KEY (id) NOT ENFORCED)")
    file = tmp_path / "in.csv"

    def refused(text, complaint, words=f"COPY t FROM '{file}'"):
        file.write_text(text)
        with pytest.raises((SqlError, DataError), match=complaint) as caught:
            sql(words)
        return caught.value

    refused("id,nam\n1,x\n", "column 'nam'.*did you mean name")
    refused("1,x,y\n", "has 3 columns")
    refused("id,name\nx,1\n", "cannot read .* into")
    refused("id,name\n3000000000,1\n", "cannot read .* into")
    refused("id,name\n,x\n", "NOT NULL")
    assert sql("SELECT count(*) AS n FROM t") == [{"n": 0}]
    refused("", "the name has no known format", f"COPY t FROM '{tmp_path}/in.dat'")
    refused("", "cannot read .* into", f"COPY t FROM '{tmp_path}/none.csv'")
    refused("", "an option of CSV", f"COPY t FROM '{tmp_path}/none.json' (HEADER)")
    pq.write_table(pa.table({"id": [1], "nane": ["x"]}), tmp_path / "in.parquet")
    refused("", "did you mean name", f"COPY t FROM '{tmp_path}/in.parquet'")
    (tmp_path / "kept.csv").write_text("as it was")
    with pytest.raises(SqlError, match="cannot write"):
        sql(f"COPY t TO '{tmp_path}/no/file.csv'")
    with pytest.raises(SqlError, match="late"):
        sql(
            "COPY (SELECT CASE WHEN range = 150000 THEN error('late')::BIGINT ELSE range END AS k FROM range(300000))"
            f" TO '{tmp_path}/kept.csv'"
        )
    assert (tmp_path / "kept.csv").read_text() == "as it was"
    assert not list(tmp_path.glob("*.part"))


def test_connections_share_a_database_in_a_process_and_see_no_tables_of_others(monkeypatch):
    def database(connection):
        return connection.sql("SELECT current_setting('temp_directory')").fetchall()

    with duck.connect() as one, duck.connect() as other:
        assert database(one) == database(other)
        one.register("arriving", pa.table({"a": [1]}))
        one.execute("CREATE TEMP TABLE kept AS FROM arriving")
        for name in ("arriving", "kept"):
            with pytest.raises(Exception, match=f"Table with name {name} does not exist"):
                other.sql(f"FROM {name}")
        monkeypatch.setattr(duck, "_DATABASES", dict(duck._DATABASES))
        monkeypatch.setattr(os, "getpid", lambda: 1)  # as in a fork
        with duck.connect() as forked:
            assert database(forked) != database(one)


def test_a_session_without_files_reads_and_writes_none(sql, tmp_path):
    from headrace.tablelayer.sql.session import Session

    file = tmp_path / "secret.csv"
    file.write_text("a\n1\n")
    sql("CREATE TABLE t (a INT)")
    session = Session(sql.connection, sql.database, files=False)
    for text in (
        f"SELECT * FROM '{file}'", f"SELECT * FROM read_csv('{file}')", f"SELECT * FROM read_text('{file}')",
        f"COPY t FROM '{file}'", f"COPY t TO '{file}'", f"INSERT INTO t SELECT * FROM '{file}'",
        f"INSERT INTO t VALUES ((SELECT a FROM '{file}'))", f"SELECT * FROM glob('{tmp_path}/*')",
        f"UPDATE t SET a = (SELECT max(a) FROM '{file}')",
    ):  # fmt: skip
        with pytest.raises((SqlError, TableError)):
            _ = [answer.rows for answer in session.run(text)]
    assert file.read_text() == "a\n1\n"


def test_types_that_arrow_does_not_have_are_texts(sql):
    """Arrow would get the inner bytes of a BIT, and a time without its zone."""
    sql("CREATE TABLE t AS SELECT '101'::BIT AS b, TIMETZ '12:00:00+02' AS t, 42::VARIANT AS v")
    assert sql("SELECT * FROM t") == [{"b": "101", "t": "12:00:00+02", "v": "42"}]
    with pytest.raises(SqlError, match="column 'b' of the query is BIT"):
        sql("CREATE TABLE u AS SELECT ['101'::BIT] AS b")


def test_a_json_file_s_late_and_doubled_names_are_not_lost(sql, tmp_path):
    sql("CREATE TABLE t (a INT, b INT)")
    file = tmp_path / "in.json"
    file.write_text('{"a": 1}\n' * 25_000 + '{"a": 1, "b": 7}\n')
    assert sql(f"COPY t FROM '{file}'") == "25001 rows written"
    assert sql("SELECT count(*) AS n FROM t WHERE b = 7") == [{"n": 1}]
    file.write_text('{"a": 1, "A": 2}\n')
    with pytest.raises(SqlError, match="twice"):
        sql(f"COPY t FROM '{file}'")
    file.write_text("")
    assert sql(f"COPY t FROM '{file}'") == "0 rows written"
    file.write_text('{"a": 1, "c": 7}\n')
    with pytest.raises(SqlError, match="column 'c'"):
        sql(f"COPY t FROM '{file}'")
    file.write_text('{"a": 1, "b": 1}\n' * 25_000 + '{"a": 1, "b": 1, "c": 7}\n')
    with pytest.raises(SqlError, match="'c'"):
        sql(f"COPY t FROM '{file}'")
    assert sql(f"COPY t (a) FROM '{file}'") == "25001 rows written"


def test_bare_words_for_numbers_that_json_does_not_have_are_read(sql, tmp_path):
    sql("CREATE TABLE t (a DOUBLE, r ROW<x FLOAT>, s STRING)")
    file = tmp_path / "in.json"
    file.write_text(
        '{"a": 1, "r": {"x": 2, "y": 3}, "s": "NaN"}\n{"a": -Infinity, "r": {"x": NaN}, "s": "-Infinity"}\n'
    )
    assert sql(f"COPY t FROM '{file}'") == "2 rows written"
    first, second = sql("SELECT * FROM t ORDER BY a DESC")
    assert first == {"a": 1.0, "r": {"x": 2.0}, "s": "NaN"}
    assert (second["a"], second["s"], str(second["r"]["x"])) == (float("-inf"), "-Infinity", "nan")
