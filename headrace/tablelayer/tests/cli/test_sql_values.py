"""`headrace sql`: values are stored as the statement says, in every column, and read as they were stored."""

import datetime as dt
import itertools
import json

import pyarrow as pa
import pytest

from headrace.tablelayer.client import connect

_numbers = itertools.count()


@pytest.fixture
def database(headrace):
    name = f"values{next(_numbers)}"
    assert headrace("sql", "-e", f"CREATE DATABASE {name}").exit_code == 0
    return name


@pytest.fixture
def run(headrace, database):
    """`run("SELECT ...")` gives rows as dicts; `run.fails("...")` what is said about a mistake."""

    def rows(text):
        done = headrace("sql", "-o", "json", "-d", database, "-e", text)
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    def fails(text):
        done = headrace("sql", "-d", database, "-e", text)
        assert done.exit_code == 1, done.output
        assert "Traceback" not in done.output
        return done.stderr

    rows.fails = fails
    rows.table = lambda text: headrace("sql", "-d", database, "-e", text).stdout
    return rows


def test_a_map_with_a_null_key_is_a_mistake_like_any_other(run):
    run("CREATE TABLE m (k INT, m MAP<INT, INT>, PRIMARY KEY (k) NOT ENFORCED)")
    assert "a key of a MAP is null" in run.fails("INSERT INTO m VALUES (1, MAP[NULL, 1])")
    assert run("SELECT count(*) AS n FROM m") == [{"n": 0}]


def test_an_update_changes_the_columns_that_it_names_and_no_other(run, server, database):
    run(
        "CREATE TABLE t (k INT, at TIMESTAMP(9), n INT NOT NULL, v INT, big DECIMAL(38, 10), tod TIME(9), "
        "m MAP<INT, TIMESTAMP(9)>, f FLOAT, PRIMARY KEY (k) NOT ENFORCED)"
    )
    with connect(server) as connection:
        table = connection.table(f"{database}.t")
        nanos = 1_726_747_200_691_461_760
        row = pa.table(
            {
                "k": [1],
                "at": pa.array([nanos], pa.timestamp("ns")),
                "n": [7],
                "v": [1],
                "big": pa.array(["1234567890123456789012345678.0123456789"]).cast(pa.decimal128(38, 10)),
                "tod": pa.array([1], pa.time64("ns")),
                "m": pa.array([[(1, nanos)]], pa.map_(pa.int32(), pa.timestamp("ns"))),
                "f": pa.array([0.1], pa.float32()),
            }
        )
        table.upsert(row)
        before = table.to_arrow()
        run("UPDATE t SET v = 2 WHERE k = 1")
        after = table.to_arrow()
        assert after.column("v").to_pylist() == [2]
        assert after.drop_columns("v").equals(before.drop_columns("v"))
        found = table.lookup_one(1)
        table.upsert([found])
        assert table.to_arrow().equals(after)
    assert "NOT NULL" in run.fails("UPDATE t SET n = NULL WHERE k = 1")
    assert run("UPDATE t SET v = 3 WHERE k = 9; SELECT count(*) AS n FROM t") == [{"n": 1}]


def test_years_beyond_those_of_python_are_shown_written_and_changed(run, server, database):
    run(
        "CREATE TABLE far (k INT, d DATE, at TIMESTAMP(3), z TIMESTAMP_LTZ(6), v INT, PRIMARY KEY (k) NOT ENFORCED);"
        "INSERT INTO far VALUES (1, '+10000-01-01', '+10000-01-01 12:00:00', '-0044-03-15T12:00:00Z', 1), "
        "(2, DATE '2024-09-19', NULL, NULL, 1);"
        "UPDATE far SET v = 2 WHERE k = 1"
    )
    shown = {
        "k": 1, "d": "+10000-01-01", "at": "+10000-01-01T12:00:00.000", "z": "-0044-03-15T12:00:00.000+00:00", "v": 2,
    }  # fmt: skip
    assert run("SELECT * FROM far WHERE k = 1") == [shown]
    assert run("SELECT * FROM far ORDER BY k") == [
        shown, {"k": 2, "d": "2024-09-19", "at": None, "z": None, "v": 1},
    ]  # fmt: skip
    assert [each["d"] for each in run("SELECT d FROM far$changelog WHERE k = 1")] == ["+10000-01-01"] * 3
    assert "+10000-01-01" in run.table("SELECT max(d) FROM far")
    with connect(server) as connection:
        table = connection.table(f"{database}.far")
        found = table.lookup_one(1)
        assert found == {**shown, "z": "-0044-03-15T12:00:00.000Z"}
        table.upsert([found])
        assert table.lookup_one(1) == found
        assert table.extremes(["d"]).maximum("d") == "+10000-01-01"
        assert table.extremes(["d"]).minimum("d") == dt.date(2024, 9, 19)


def test_an_insert_of_some_columns_gives_new_rows_the_defaults_of_the_others(run):
    run(
        "CREATE TABLE d (k INT, a INT DEFAULT 7, s STRING NOT NULL DEFAULT 'x', b INT, PRIMARY KEY (k) NOT ENFORCED);"
        "INSERT INTO d (k) VALUES (1); INSERT INTO d (k, b) VALUES (1, 2), (2, 3);"
        "INSERT INTO d (k, a) VALUES (2, NULL); INSERT INTO d (k, b) VALUES (2, 4)"
    )
    assert run("SELECT * FROM d ORDER BY k") == [
        {"k": 1, "a": 7, "s": "x", "b": 2}, {"k": 2, "a": None, "s": "x", "b": 4},
    ]  # fmt: skip


def test_a_text_that_is_too_long_names_its_row(run):
    run("CREATE TABLE c (k INT, c CHAR(2))")
    assert "row 1, column 'c': a text of 3 characters" in run.fails(
        "INSERT INTO c VALUES (1, 'ab'), (2, 'abc')"
    )
