"""`headrace sql` beyond single statements: extremes, files, the tab key, progress."""

import io
import itertools
import json
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.tablelayer.cli import progress
from headrace.tablelayer.cli.completion import Names, candidates
from headrace.tablelayer.client import connect
from headrace.tablelayer.model.ddl import parse
from headrace.tablelayer.sql.select import of_duckdb, run_select

_numbers = itertools.count()


def rows_of(answer):
    return answer.read_all() if isinstance(answer, pa.RecordBatchReader) else answer


@pytest.fixture(scope="module")
def shop(server):
    """A connection, and the name of a database with tables."""
    with connect(server) as connection:
        name = f"shell{next(_numbers)}"
        connection.admin.create_database(name)
        connection.execute(
            f"CREATE TABLE {name}.log (id BIGINT, price DECIMAL(10, 2), Name STRING, d DOUBLE, at TIMESTAMP(3),"
            " day DATE, raw BINARY(2), t TIME(3), s SMALLINT, ok BOOLEAN, tz TIMESTAMP_LTZ(6))"
            " WITH ('bucket.num' = '2');"
            f"CREATE TABLE {name}.item (k INT, name STRING, PRIMARY KEY (k) NOT ENFORCED)"
        )
        rows = [
            {"id": i, "price": f"{i}.25", "Name": None if i % 3 else f"n{i:04}", "d": float("nan") if i == 7 else i / 2,
             "at": f"2024-09-19 00:00:{i % 60:02}", "day": f"2024-09-{1 + i % 30:02}", "raw": b"%02d" % (i % 100),
             "t": f"01:02:{i % 60:02}", "s": i - 500, "ok": i % 2 == 0, "tz": f"2024-01-01T00:00:{i % 60:02}Z"}
            for i in range(1200)
        ]  # fmt: skip
        connection.table(f"{name}.log").append(rows)
        connection.table(f"{name}.item").upsert([{"k": i, "name": f"x{i}"} for i in range(50)])
        yield connection, name
        connection.admin.drop_database(name, cascade=True)


QUERIES = [
    "SELECT min(id), max(id), count(*) FROM log",
    'SELECT MAX(price) AS top, count(NAME), min("Name"), count(*) AS n FROM log AS l'
    " WHERE id BETWEEN 100 AND 900 AND ok",
    "SELECT min(d), max(d) FROM log",
    "SELECT max(at), min(day), max(raw), min(t), max(s), min(ok), max(tz) FROM log",
    "SELECT max(id), count(id), count(*) FROM log WHERE id > 5000",
    "SELECT min(name), max(k) FROM item",
    "SELECT count(name) FROM item WHERE k < 10",
]


@pytest.mark.parametrize("query", QUERIES)
def test_extremes_are_the_server_s_and_look_as_duckdb_s(shop, monkeypatch, query):
    connection, database = shop
    (select,) = parse(query, database)
    assert select.aggregates
    before = connection.metrics().rows_scanned
    answer = rows_of(run_select(connection, select))
    assert connection.metrics().rows_scanned == before
    expected = rows_of(of_duckdb(connection, select).run())
    assert answer.schema == expected.schema
    assert str(answer.to_pylist()) == str(expected.to_pylist())


@pytest.mark.parametrize(
    "query",
    [
        "SELECT max(id) + 1 FROM log",
        "SELECT max(id), s FROM log GROUP BY s",
        "SELECT max(id, 3) FROM log",
        "SELECT count(DISTINCT s) FROM log",
        "SELECT min(id) FILTER (WHERE ok) FROM log",
        "SELECT min(id) FROM log WHERE id % 2 = 1",
        "SELECT min(a.id) FROM log a JOIN item b ON a.id = b.k",
    ],
)
def test_anything_else_is_duckdb_s(shop, query):
    connection, database = shop
    (select,) = parse(query, database)
    found = rows_of(run_select(connection, select)).to_pylist()
    # Groups come in the order in which the rows did, which is another one each time.
    assert sorted(map(str, found)) == sorted(
        map(str, rows_of(of_duckdb(connection, select).run()).to_pylist())
    )


def test_a_query_sends_only_the_columns_and_rows_that_it_needs(shop):
    connection, database = shop

    def received(query):
        before = sum(each.bytes_received for each in connection.metrics().requests.values())
        (select,) = parse(query, database)
        rows_of(run_select(connection, select))
        return sum(each.bytes_received for each in connection.metrics().requests.values()) - before

    whole = received("SELECT * FROM log ORDER BY id")
    assert received("SELECT ok FROM log ORDER BY ok") < whole / 3
    assert received("SELECT * FROM log WHERE id = 3 ORDER BY id") < whole / 3


def test_rows_go_into_files(headrace, shop, tmp_path):
    _, database = shop
    file = tmp_path / "rows.parquet"
    query = "SELECT k, name FROM item WHERE k < 3 ORDER BY k"
    done = headrace("sql", "-d", database, "-e", query, "--output", "parquet", "--to", str(file))
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", f"3 rows written to {file}\n")
    assert pq.read_table(file).to_pylist() == [{"k": k, "name": f"x{k}"} for k in range(3)]
    file = tmp_path / "rows.json"
    assert headrace("sql", "-d", database, "-e", query, "-o", "json", "--to", str(file)).exit_code == 0
    assert [json.loads(line) for line in file.read_text().splitlines()][2] == {"k": 2, "name": "x2"}
    # A failure leaves the file as it was, and no other file beside it.
    done = headrace(
        "sql", "-d", database, "-e", f"{query}; SELECT * FROM nowhere", "-o", "csv", "--to", str(file)
    )
    assert done.exit_code == 1
    assert "nowhere" in done.stderr
    assert file.read_text().startswith('{"k": 0')
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rows.json", "rows.parquet"]
    for words, complaint in (
        (("-e", query, "-o", "parquet"), "--to FILE"),
        (("-e", f"{query}; {query}", "-o", "parquet", "--to", str(file)), "there are two"),
        (("-e", "SHOW CREATE TABLE item", "-o", "parquet", "--to", str(file)), "no statement is a query"),
        (("-e", query, "-o", "csv", "--to", str(tmp_path / "no" / "file")), "cannot be written"),
    ):
        done = headrace("sql", "-d", database, *words)
        assert done.exit_code == 1
        assert complaint in done.stderr


def test_the_tab_key_knows_words_databases_tables_and_columns(shop, tmp_path):
    connection, database = shop
    names = Names(connection)

    def offered(text):
        cut = len(text) - len(text.split()[-1]) if text and not text.endswith(" ") else len(text)
        return candidates(text[:cut], text[cut:], database, names)

    assert offered("SEL") == ["SELECT"]
    assert offered("sel") == ["select"]
    assert offered("ALTER TABLE item DROP PART") == ["PARTITION", "PARTITIONED", "PARTITIONS"]
    assert offered("USE sh") == [database]
    assert offered("SELECT * FROM ") == sorted(["item", "log", *(f"{each}." for each in names.databases())])
    assert offered("SELECT * FROM it") == ["item"]
    assert offered(f"SELECT * FROM {database}.l") == [f"{database}.log"]
    assert offered('SELECT * FROM "it') == ['"item$changelog"']
    assert offered(f"SELECT * FROM {database}.log WHERE pri")[0] == "price"
    assert "name" in offered("SELECT k, n FROM item WHERE n")
    assert offered("INSERT INTO item (k, na") == ["name"]
    for before in ("COPY ", "\\copy ", "\\d ", "TRUNCATE ", "SUMMARIZE "):
        assert offered(f"{before}it") == ["item"]
    assert offered("\\co") == ["\\copy"]
    assert "price" in candidates("SELECT ", "pr", database, names, " FROM log")
    assert candidates("SELECT i.k, ", "l.pri", database, names, " FROM item i, log AS l") == ["l.price"]
    assert candidates("SELECT ", "item.na", database, names, f" FROM {database}.item") == ["item.name"]
    assert "regexp_matches(" in offered("SELECT regexp_ma")
    assert "nanosecond(" not in offered("SELECT na FROM item WHERE na")  # a column has precedence
    assert "range(" not in offered("INSERT INTO item (ra")
    for before, word, option in (
        ("CREATE TABLE t (a INT) WITH ('bucket.num' = '1', '", "table.log.tt", "table.log.ttl"),
        ("ALTER TABLE t SET ('", "bucket.k", "bucket.key"),
        ("ALTER TABLE t RESET ('a', '", "table.kv.ttl.", "table.kv.ttl.time-column"),
    ):  # fmt: skip
        assert candidates(before, word, database, names) == [option]
    (tmp_path / "some file.csv").touch()
    (tmp_path / "some").mkdir()
    begun = f"COPY item FROM '{tmp_path}/"
    assert candidates(begun, "so", database, names) == ["some file.csv", "some/"]
    names.forget()
    connection.execute(f"CREATE TABLE {database}.items_new (k INT)")
    assert offered("SELECT * FROM items") == ["items_new"]
    connection.admin.drop_table(f"{database}.items_new")


def test_a_server_that_is_gone_costs_the_names_and_not_the_prompt():
    class Gone:
        class admin:  # noqa: N801
            @staticmethod
            def list_tables(database):
                from headrace.tablelayer.client import ConnectionFailed

                raise ConnectionFailed("gone")

            list_databases = describe_table = staticmethod(lambda *_: Gone.admin.list_tables(""))

    assert candidates("SELECT * FROM ", "x", "default", Names(Gone)) == []
    assert candidates("SELECT * FROM t WHERE ", "AN", "default", Names(Gone)) == ["AND"]


def test_progress_is_shown_on_a_terminal_and_nowhere_else(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    class Connection:
        def metrics(self):
            return type("Metrics", (), {"rows_scanned": int(time.monotonic() * 1e6)})

    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(progress, "STEP_SECONDS", 0.01)

    class Session:
        written_count = 0

    for stream, verb, expected in (
        (Terminal(), "read", True), (Terminal(), "written", True), (io.StringIO(), "written", False),
    ):  # fmt: skip
        monkeypatch.setattr("sys.stderr", stream)
        Session.written_count = 1_000_000 if verb == "written" else 0
        end = time.monotonic() + (60 if expected else 0.1)
        with progress.showing(Connection(), Session()):
            while f"rows {verb}" not in stream.getvalue() and time.monotonic() < end:
                time.sleep(0.01)
        assert (f"rows {verb}" in stream.getvalue()) is expected
        assert stream.getvalue().endswith("\r\x1b[K") is expected
    assert progress.progress_text(1_234_567, 2.0) == "1,234,567 rows read, 617,284/s, 2 s"
    assert progress.progress_text(0, 1.0) == "0 rows read, 1 s"
