"""`headrace load`: a file as a table, in one line."""

import itertools
import json

import pytest

from headrace.tablelayer.cli import load, shell
from headrace.tablelayer.cli.connect import COPYING_PATIENCE_MS, open_connection
from headrace.tablelayer.client import connect

_numbers = itertools.count()


@pytest.fixture
def database(server):
    name = f"loaded{next(_numbers)}"
    yield name
    with connect(server) as connection:
        connection.admin.drop_database(name, if_exists=True, cascade=True)


def rows(headrace, table):
    done = headrace("sql", "-o", "json", "-e", f"SELECT * FROM {table} ORDER BY id")
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_file_becomes_a_table_and_the_next_one_is_written_into_it(headrace, database, tmp_path):
    first, second = tmp_path / "it's.csv", tmp_path / "more.jsonl"
    first.write_text("id,name,at\n1,Ann,2024-09-19 12:00:00\n2,,2024-09-20 12:00:00\n")
    second.write_text('{"id": 2, "name": "Bob"}\n{"id": 3, "name": "Eve"}\n')
    table = f"{database}.orders"
    shown = headrace("load", str(first), table, "--key", "id", "--set", "bucket.num=2", "--print")
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.startswith(f'CREATE DATABASE "{database}";\nCREATE TABLE "{database}"."orders"')
    assert headrace("sql", "-e", shown.stdout).exit_code == 0
    headrace("sql", "-e", f"DROP TABLE {table}")
    done = headrace("load", str(first), table, "--key", "id", "--set", "bucket.num=2")
    assert done.exit_code == 0, done.stderr
    assert "2 rows written\n" in done.stdout
    assert "  id BIGINT NOT NULL,\n  name STRING,\n  at TIMESTAMP(6),\n" in done.stdout
    assert "'bucket.num' = '2'" in done.stdout
    assert headrace("load", str(second), table).stdout == "2 rows written\n"
    assert [(row["id"], row["name"]) for row in rows(headrace, table)] == [(1, "Ann"), (2, "Bob"), (3, "Eve")]


def test_each_call_of_a_load_may_wait_for_a_server_that_compiles(headrace, database, tmp_path, monkeypatch):
    seen = []

    def opened(server, patience_ms=0):
        seen.append(patience_ms)
        return open_connection(server, patience_ms)

    monkeypatch.setattr(load, "open_connection", opened)
    monkeypatch.setattr(shell, "open_connection", opened)
    file = tmp_path / "t.csv"
    file.write_text("id\n1\n")
    assert headrace("load", str(file), f"{database}.t", "--key", "id").exit_code == 0
    assert seen == [COPYING_PATIENCE_MS] * 2


def test_an_impossible_load_is_refused_and_changes_nothing(headrace, database, tmp_path):
    file = tmp_path / "t.csv"
    file.write_text("id,name\n1,Ann\n")
    table = f"{database}.t"
    assert headrace("load", str(file), table).exit_code == 0
    for words, complaint in (
        (
            (str(file), table, "--key", "id"),
            "exists already, with no primary key: --key and --set are for a new table",
        ),
        ((str(tmp_path / "no.csv"), table), "no.csv does not exist"),
        ((str(tmp_path / "t.xlsx"), table), "the name has no known format: give it one of .csv, .tsv"),
        (
            (str(file), f"{database}.u", "--key", "ix"),
            "the query has no column 'ix' for the primary key; it has id, name",
        ),
    ):
        done = headrace("load", *words)
        assert done.exit_code == 1
        assert complaint in done.stderr
    assert headrace("tables", "list", "-d", database, "-o", "csv").stdout.count("\n") == 2
    assert [row["id"] for row in rows(headrace, table)] == [1]
