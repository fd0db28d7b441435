"""`headrace sql`: the effect of statements, the way of a SELECT, and the errors of mistakes."""

import itertools
import json

import pytest

from headrace.tablelayer.client import ClientConfig, connect

_numbers = itertools.count()


@pytest.fixture
def sql(headrace):
    """`sql("SELECT ...")` gives rows as dicts; `sql.raw(...)` the result."""

    def run(text, *words):
        done = headrace("sql", "-o", "json", "-e", text, *words)
        assert done.exit_code == 0, done.output
        return [json.loads(line) for line in done.stdout.splitlines()]

    run.raw = lambda text, *words, **options: headrace("sql", "-e", text, *words, **options)
    return run


@pytest.fixture
def database(sql):
    name = f"db{next(_numbers)}"
    sql(f"CREATE DATABASE {name}")
    yield name
    sql(f"DROP DATABASE {name} CASCADE")


@pytest.fixture
def shop(sql, database):
    sql(
        "CREATE TABLE item (k INT, name STRING, price DECIMAL(8,2), seen DATE, PRIMARY KEY (k) NOT ENFORCED)"
        " WITH ('bucket.num' = '2');"
        "CREATE TABLE part (a INT, b INT, v STRING, PRIMARY KEY (a, b) NOT ENFORCED) WITH ('bucket.key' = 'a');"
        "CREATE TABLE visit (k INT, at TIMESTAMP(3));"
        "INSERT INTO item VALUES (1, 'apple', 1.50, DATE '2024-09-19'), (2, 'it''s', NULL, NULL);"
        "INSERT INTO item VALUES (3, 'fig', -0.01, NULL);"
        "INSERT INTO part VALUES (1, 1, 'x'), (1, 2, 'y'), (2, 1, 'z');"
        "INSERT INTO visit VALUES (1, TIMESTAMP '2024-09-19 12:00:00'), (1, NULL), (3, NULL)",
        "-d",
        database,
    )
    return lambda text: sql(text, "-d", database)


def test_insert_select_update_delete(shop):
    assert shop("SELECT * FROM item WHERE k = 1") == [
        {"k": 1, "name": "apple", "price": 1.5, "seen": "2024-09-19"}
    ]
    shop("UPDATE item SET name = 'pear', price = 2.25 WHERE k = 1; DELETE FROM item WHERE k = 3")
    assert shop("SELECT k, name, price FROM item ORDER BY k") == [
        {"k": 1, "name": "pear", "price": 2.25},
        {"k": 2, "name": "it's", "price": None},
    ]
    changelog = shop('SELECT _change_type AS c, k FROM "item$changelog" WHERE k <> 2 ORDER BY k, _log_offset')
    assert changelog == [{"c": c, "k": k} for c, k in (("+I", 1), ("-U", 1), ("+U", 1), ("+I", 3), ("-D", 3))]


def test_rows_changed_are_counted(sql, shop, database):
    def said(text):
        return sql.raw(text, "-d", database).stdout

    assert said("UPDATE item SET name = 'x' WHERE k = 77") == "0 rows updated\n"
    assert said("UPDATE item SET name = 'x' WHERE k = 1") == "1 row updated\n"
    assert (
        said("DELETE FROM item WHERE k = 77; DELETE FROM item WHERE k = 1")
        == "0 rows deleted\n1 row deleted\n"
    )
    assert said("INSERT INTO item (k, name) VALUES (2, 'new'), (9, 'nine')") == "2 rows written\n"
    assert shop("SELECT k, name, price FROM item WHERE k = 2") == [{"k": 2, "name": "new", "price": None}]


def test_any_other_select_is_duckdbs(shop):
    assert shop(
        "SELECT i.name, count(v.k) AS visits, sum(price) AS total FROM item i LEFT JOIN visit v USING (k) "
        "GROUP BY i.name HAVING count(*) > 0 ORDER BY visits DESC, 1"
    ) == [
        {"name": "apple", "visits": 2, "total": 3.0},
        {"name": "fig", "visits": 1, "total": -0.01},
        {"name": "it's", "visits": 0, "total": None},
    ]
    assert shop("WITH t AS (SELECT max(at) AS at FROM visit) SELECT * FROM t") == [
        {"at": "2024-09-19T12:00:00"}
    ]
    assert shop("SELECT count(*) AS n FROM item WHERE price IS NULL") == [{"n": 1}]
    assert shop("SELECT 1 + 1 AS two") == [{"two": 2}]


def test_selects_go_the_cheapest_way(server, shop, database, monkeypatch):
    from headrace.tablelayer.client import Table
    from headrace.tablelayer.sql import select as module
    from headrace.tablelayer.sql.session import Session

    ways = []
    reads = (
        "lookup",
        "prefix_lookup",
        "count",
        "limit",
        "to_arrow",
        "range_scan",
        "scan",
        "extremes",
        "batches",
    )
    for name in reads:
        original = getattr(Table, name)

        def recorded(self, *arguments, _name=name, _original=original, **options):
            ways.append(
                (
                    _name,
                    options.get("columns") or (arguments[0] if _name == "batches" and arguments else None),
                )
            )
            return _original(self, *arguments, **options)

        monkeypatch.setattr(Table, name, recorded)
    duck = []
    monkeypatch.setattr(module, "of_duckdb", spy(module.of_duckdb, duck))
    with connect(server) as connection:
        session = Session(connection, database)

        def way(text):
            ways.clear()
            duck.clear()
            rows = next(answer.rows for answer in session.run(text))
            return [name for name, _ in ways], bool(duck), rows.num_rows

        assert way("SELECT * FROM item WHERE k = 1") == (["lookup"], False, 1)
        assert way("SELECT name FROM item WHERE k = 99") == (["lookup"], False, 0)
        assert way("SELECT b, v FROM part WHERE a = 1") == (["prefix_lookup"], False, 2)
        assert way("SELECT b FROM part WHERE a = 1 LIMIT 1") == (["prefix_lookup"], False, 1)
        assert way("SELECT * FROM part WHERE b = 1 AND a = 1") == (["lookup"], False, 1)
        assert way("SELECT count(*) FROM item") == (["count"], False, 1)
        assert way("SELECT * FROM visit LIMIT 2") == (["limit"], False, 2)
        assert way("SELECT * FROM part WHERE b = 1") == (["batches"], False, 2)
        assert way("SELECT b, a FROM part AS p WHERE p.v > 'x'") == (["batches"], False, 2)
        assert way("SELECT k FROM visit") == (["batches"], False, 3)
        assert way("SELECT DISTINCT k FROM visit") == (["batches"], True, 2)
        assert way("SELECT K FROM visit") == (["batches"], True, 3)
        assert way("SELECT k FROM visit WHERE 1 = 2 AND k = 1") == (["batches"], True, 0)
        assert way("SELECT * FROM part WHERE length(v) = 1") == (["batches"], True, 3)
        assert way("SELECT * FROM item WHERE k = 1 AND name = 'pear'") == (["range_scan"], True, 0)
        assert way("SELECT * FROM item WHERE k = 1.5") == (["range_scan", "to_arrow"], True, 0)
        assert way('SELECT * FROM "visit$changelog"') == (["scan"], True, 3)
        assert way("SELECT max(price) FROM item") == (["extremes"], False, 1)
        way("SELECT avg(price) FROM item")
        assert ways == [("batches", ["price"])], "only the columns that are named are read"


def spy(function, calls):
    def recorded(*arguments, **options):
        calls.append(arguments)
        return function(*arguments, **options)

    return recorded


def test_definitions_are_shown_and_given_back(sql, shop, database):
    listed = shop("SHOW TABLES")
    assert [row["table"] for row in listed] == ["item", "part", "visit"]
    assert {"database": database} in shop("SHOW DATABASES")
    described = sql.raw("DESCRIBE item", "-d", database).stdout
    assert "DECIMAL(8, 2)" in described
    created = sql.raw("SHOW CREATE TABLE part", "-d", database).stdout
    shop("DROP TABLE part")
    sql(created)
    assert sql.raw("SHOW CREATE TABLE part", "-d", database).stdout == created
    assert shop(f"USE {database}; SELECT count(*) AS n FROM item") == [{"n": 3}]


def test_mistakes_are_shown_where_they_are(sql, shop, database):
    def said(text):
        done = sql.raw(text, "-d", database)
        assert done.exit_code == 1
        assert "Traceback" not in done.stderr
        return done.stderr

    assert said("CREATE TABEL t (a INT)").splitlines()[1:] == ["  CREATE TABEL t (a INT)", "         ^^^^^"]
    assert "nowhere does not exist" in said("SELECT * FROM nowhere")
    assert "pric" in said("SELECT pric FROM item ORDER BY 1")
    assert "cannot change the primary key" in said("UPDATE item SET k = 5 WHERE k = 1")
    assert "log table" in said("DELETE FROM visit WHERE k = 1")
    assert "3 values for 4 columns" in said("INSERT INTO item VALUES (1, 'x', 2.0)")
    assert "does not fit column 'k' of type INT" in said("INSERT INTO item VALUES ('one', 'x', 2.0, NULL)")
    assert "does not fit column 'price'" in said("INSERT INTO item VALUES (1, 'x', 2.005, NULL)")
    assert "there is no column 'colour'" in said("UPDATE item SET colour = 'red' WHERE k = 1")
    assert "there is no database" in said("USE nothing")
    assert shop("SELECT count(*) AS n FROM item") == [{"n": 3}], "none of them did anything"


def test_a_statement_that_cannot_be_read_fails_after_those_before_it(sql, shop, database):
    done = sql.raw("DELETE FROM item WHERE k = 1; DELETE FORM item; DELETE FROM item", "-d", database)
    assert done.exit_code == 1
    assert shop("SELECT count(*) AS n FROM item") == [{"n": 2}]


def test_statements_from_a_file_or_a_pipe(headrace, shop, database, tmp_path):
    file = tmp_path / "statements.sql"
    file.write_text("-- a comment\nSELECT k FROM item WHERE k = 1;\n")
    for words, given in ((("-f", str(file)), None), (("-f", "-"), file.read_text()), ((), file.read_text())):
        done = headrace("sql", "-d", database, "-o", "csv", *words, input=given)
        assert (done.exit_code, done.stdout) == (0, "k\n1\n"), done.output
    missing = headrace("sql", "-f", str(tmp_path / "none.sql"))
    assert missing.exit_code == 1
    assert "cannot be read" in missing.stderr


def test_the_table_format(sql, shop, database):
    shown = sql.raw("SELECT * FROM item WHERE k < 3 ORDER BY k", "-d", database).stdout
    lines = shown.splitlines()
    assert lines[0].split() == ["k", "name", "price", "seen"]
    assert lines[2].split() == ["1", "apple", "1.50", "2024-09-19"]
    assert lines[3].split() == ["2", "it's", "NULL", "NULL"]
    assert lines[-1] == "2 rows"


def test_r9_update_sets_what_an_aggregation_would_add_and_delete_says_that_it_is_ignored(sql, database):
    def run(text):
        return sql(text, "-d", database)

    run(
        "CREATE TABLE hits (k INT, n INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('table.merge-engine' = 'aggregation', "
        "'fields.n.agg' = 'sum'); INSERT INTO hits VALUES (1, 2), (1, 3)"
    )
    assert run("SELECT n FROM hits") == [{"n": 5}]
    run("UPDATE hits SET n = 7 WHERE k = 1")
    assert run("SELECT n FROM hits") == [{"n": 7}]
    refused = sql.raw("DELETE FROM hits WHERE k = 1", "-d", database)
    assert refused.exit_code != 0
    assert "ignores deletes" in refused.output


def test_r7_insert_fills_up_and_update_is_refused_with_first_row(sql, database):
    def run(text):
        return sql(text, "-d", database)

    run(
        "CREATE TABLE f (k INT, n INT, s STRING, PRIMARY KEY (k) NOT ENFORCED) "
        "WITH ('table.merge-engine' = 'first_row')"
    )
    run("INSERT INTO f (k, n) VALUES (1, 2); INSERT INTO f VALUES (1, 9, 'late')")
    assert run("SELECT * FROM f") == [{"k": 1, "n": 2, "s": None}]
    refused = sql.raw("UPDATE f SET n = 1 WHERE k = 1", "-d", database)
    assert refused.exit_code != 0
    assert "first_row" in refused.output


def test_r10_the_dictionary_table_of_the_documentation(sql, database):
    def run(text):
        return sql(text, "-d", database)

    run(
        "CREATE TABLE uid_mapping (user_id STRING, uid BIGINT, PRIMARY KEY (user_id) NOT ENFORCED) "
        "WITH ('auto-increment.fields' = 'uid', 'bucket.num' = '2')"
    )
    run("INSERT INTO uid_mapping (user_id) VALUES ('user1'), ('user2'), ('user3'), ('user4'), ('user5')")
    numbers = sorted(row["uid"] for row in run("SELECT uid FROM uid_mapping"))
    assert len(set(numbers)) == 5
    assert all(1 <= number <= 5 or 100_001 <= number <= 100_005 for number in numbers)


def test_partitions_are_made_shown_pruned_and_dropped(sql, database):
    def run(text):
        return sql(text, "-d", database)

    run(
        "CREATE TABLE visit (day DATE, region STRING, k INT, n INT, PRIMARY KEY (day, region, k) NOT ENFORCED)"
        " PARTITIONED BY (day, region);"
        "ALTER TABLE visit ADD PARTITION (day = DATE '2024-09-18', region = 'eu');"
        "INSERT INTO visit VALUES (DATE '2024-09-19', 'eu', 1, 10), (DATE '2024-09-19', 'us', 1, 20),"
        " (DATE '2024-09-20', 'eu', 2, 30)"
    )
    shown = run("SHOW PARTITIONS visit PARTITION (region = 'eu')")
    assert shown == [
        {"day": f"2024-09-{day}", "region": "eu", "topic": f"{database}.visit.2024-09-{day}.eu", "buckets": 1}
        for day in (18, 19, 20)
    ]
    assert run("SELECT count(*) AS c FROM visit") == [{"c": 3}]
    assert run("SELECT COUNT(*) FROM visit WHERE day = '2024-09-19'") == [{"count_star()": 2}]
    assert run("SELECT n FROM visit WHERE region = 'eu' ORDER BY n") == [{"n": 10}, {"n": 30}]
    assert run("SELECT n FROM visit WHERE region = 'us' AND n = 20") == [{"n": 20}]
    assert run("SELECT n FROM visit WHERE region = 'no such' LIMIT 3") == []
    assert run("SELECT n FROM visit WHERE day = '2024-09-20' AND region = 'eu' AND k = 2") == [{"n": 30}]
    run("UPDATE visit SET n = 11 WHERE day = DATE '2024-09-19' AND region = 'eu' AND k = 1")
    changes = run("SELECT _change_type AS c, n FROM visit$changelog WHERE region = 'eu' AND k = 1")
    assert [(each["c"], each["n"]) for each in changes] == [("+I", 10), ("-U", 10), ("+U", 11)]
    run("ALTER TABLE visit DROP PARTITION (day = DATE '2024-09-19', region = 'eu')")
    assert run("SELECT SUM(n) AS s FROM visit") == [{"s": 50}]
    assert "PARTITIONED BY (day, region)" in sql.raw("SHOW CREATE TABLE visit", "-d", database).stdout
    failed = sql.raw("ALTER TABLE visit ADD PARTITION (day = DATE '2024-09-19')", "-d", database)
    assert failed.exit_code != 0
    assert "region is missing" in failed.output


def test_conditions_go_to_the_server_and_change_no_answer(shop, server, database, monkeypatch):
    """Every query gives what DuckDB gives over all rows; those named so read fewer."""
    import duckdb

    from headrace.tablelayer.client import Table
    from headrace.tablelayer.sql.session import Session

    given = []

    def recording(original):
        def recorded(self, *arguments, **options):
            rows = original(self, *arguments, **options)
            given.append((self.path.table, rows.num_rows))
            return rows

        return recorded

    def recording_pieces(original):
        def recorded(self, *arguments, **options):
            pieces = list(original(self, *arguments, **options))
            given.append((self.path.table, sum(piece.num_rows for piece in pieces)))
            return iter(pieces)

        return recorded

    queries = {
        "SELECT k, name FROM item WHERE k > 1 AND price < 1 ORDER BY k": [("item", 1)],
        "SELECT count(*) AS n FROM item WHERE name LIKE 'f%' OR price IS NULL": None,
        "SELECT i.name, v.at FROM item i JOIN visit v ON i.k = v.k WHERE i.k = 1 AND v.at IS NULL": None,
        "SELECT i.name, v.at FROM item i LEFT JOIN visit v ON i.k = v.k WHERE v.k IS NULL": [
            ("item", 3),
            ("visit", 3),
        ],
        "SELECT k + 1 AS k FROM item WHERE k > 2": [("item", 3)],
        "SELECT a, count(*) FROM part WHERE b >= 1 AND length(v) = 1 AND v <> 'x' GROUP BY a ORDER BY a": [
            ("part", 2)
        ],
        "SELECT name FROM item WHERE seen = '2024-09-19'": [("item", 1)],
        "SELECT k FROM visit v WHERE v.at >= TIMESTAMP '2024-09-19 12:00:00' AND v.at < '2024-09-20'": [
            ("visit", 1)
        ],
        "SELECT x.k FROM (SELECT k FROM item WHERE NOT (k IN (1, 2))) x WHERE x.k < 10": [("item", 1)],
        "SELECT * FROM item AS x(name, k, price, seen) WHERE x.k = 'fig'": [("item", 3)],
        "SELECT k FROM item WHERE k > 99999999999 OR price = 1.5": [("item", 1)],
        "SELECT k FROM item WHERE price > 1.505": [("item", 3)],
    }
    with connect(server) as connection, duckdb.connect() as oracle:
        for name in ("item", "part", "visit"):
            oracle.register(name, connection.table(f"{database}.{name}").to_arrow())
        for way in ("to_arrow", "range_scan"):
            monkeypatch.setattr(Table, way, recording(getattr(Table, way)))
        monkeypatch.setattr(Table, "batches", recording_pieces(Table.batches))
        session = Session(connection, database)
        for text, read in queries.items():
            given.clear()
            (answer,) = session.run(text)
            expected = oracle.sql(text).to_arrow_table()
            assert sorted(map(str, answer.rows.to_pylist())) == sorted(map(str, expected.to_pylist())), text
            if read is not None:
                assert sorted(given) == sorted(read), text


def test_counts_with_a_condition_read_no_rows(shop, server, database, monkeypatch):
    from headrace.tablelayer.client import Table
    from headrace.tablelayer.sql.session import Session

    monkeypatch.setattr(Table, "to_arrow", None)
    with connect(server) as connection:
        (answer,) = Session(connection, database).run(
            "SELECT count(*) FROM item WHERE k > 1 AND price IS NULL"
        )
        assert answer.rows.to_pylist() == [{"count_star()": 1}]


def test_changelogs_are_filtered_by_the_columns_of_the_table(shop):
    shop("UPDATE item SET price = 7.00 WHERE k = 1")
    text = (
        'SELECT _change_type AS c, price FROM "item$changelog" '
        "WHERE price > 1.00 AND _change_type <> '-U' ORDER BY 2"
    )
    assert shop(text) == [{"c": "+I", "price": 1.5}, {"c": "+U", "price": 7.0}]


@pytest.mark.parametrize("where", ["", " WHERE price >= 0 AND name IS NOT NULL"])
@pytest.mark.parametrize("key", ["", ", PRIMARY KEY (k) NOT ENFORCED"])
def test_rows_are_given_before_the_last_has_come(server, sql, database, monkeypatch, where, key):
    from headrace.tablelayer.client.read import state
    from headrace.tablelayer.sql.session import Session

    monkeypatch.setattr(state, "_PIECE_BYTES", 10_000)
    count = 3_000
    small = ClientConfig(scan_max_size_bytes=5_000, scan_max_bucket_size_bytes=5_000)
    with connect(server, small) as connection:
        connection.execute(f"CREATE TABLE {database}.many (k INT, name STRING, price DOUBLE{key})")
        table = connection.table(f"{database}.many")
        for start in range(0, count, 500):
            rows = [{"k": k, "name": f"name {k}", "price": k / 7} for k in range(start, start + 500)]
            table.upsert(rows) if key else table.append(rows)
        (answer,) = Session(connection, database).run(f"SELECT name, k FROM many{where}")
        assert answer.schema.names == ["name", "k"]
        before = connection.metrics().rows_scanned
        batches = answer.batches()
        first = next(batches)
        assert 0 < first.num_rows <= connection.metrics().rows_scanned - before < count
        assert first.num_rows + sum(each.num_rows for each in batches) == count


def test_rows_are_written_alike_whether_they_come_at_once_or_bit_by_bit(sql, database, monkeypatch, tmp_path):
    import pyarrow.parquet as pq

    from headrace.tablelayer.cli import output
    from headrace.tablelayer.sql import answer

    rows = ", ".join(f"({k}, '{'x' * (k % 37)}', {k}.5)" for k in range(300))
    sql(f"CREATE TABLE t (k INT, s STRING, d DECIMAL(6, 1)); INSERT INTO t VALUES {rows}", "-d", database)

    def written(text, form):
        done = sql.raw(text, "-d", database, "-o", form)
        assert done.exit_code == 0, done.output
        return done.stdout

    queries = ("SELECT * FROM t", "SELECT s, k FROM t WHERE k < 0", "SELECT k FROM t WHERE k >= 290")
    whole = {(text, form): written(text, form) for text in queries for form in ("csv", "json", "table")}
    monkeypatch.setattr(answer, "_ROWS_AT_ONCE", 7)
    monkeypatch.setattr(output, "_ROWS_TO_MEASURE", 20)
    monkeypatch.setattr(output, "_ROW_GROUP_ROWS", 50)
    for (text, form), expected in whole.items():
        found = written(text, form)
        if form == "table":  # columns become wider as they must, and no text is cut
            assert [line.split() for line in found.splitlines() if "─" not in line] == [
                line.split() for line in expected.splitlines() if "─" not in line
            ]
        else:
            assert found == expected
    file = tmp_path / "t.parquet"
    assert sql.raw("SELECT * FROM t", "-d", database, "-o", "parquet", "--to", str(file)).exit_code == 0
    found = pq.ParquetFile(file)
    assert found.num_row_groups > 1
    assert found.read().column("k").to_pylist() == list(range(300))
    empty = tmp_path / "none.parquet"
    assert (
        sql.raw("SELECT k FROM t WHERE k < 0", "-d", database, "-o", "parquet", "--to", str(empty)).exit_code
        == 0
    )
    assert pq.read_table(empty).schema.names == ["k"]


def test_the_rows_of_any_query_are_inserted(shop, sql, database, tmp_path, monkeypatch):
    import duckdb

    from headrace.tablelayer.sql import writes as module

    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 2)
    csv, parquet = tmp_path / "in.csv", tmp_path / "in.parquet"
    csv.write_text("k,name,price,seen\n1,cherry,7.25,2024-09-20\n7,date,0.10,\n8,elder,1,2024-01-01\n")
    duckdb.sql("SELECT 20 + range AS k, 'p' AS name FROM range(5)").write_parquet(str(parquet))
    shop(
        f"INSERT INTO item SELECT * FROM read_csv('{csv}'); INSERT INTO item (k, name) SELECT * FROM '{parquet}'"
    )
    assert shop("SELECT k, name, price FROM item WHERE k <> 2 AND k < 22 ORDER BY k") == [
        {"k": 1, "name": "cherry", "price": 7.25}, {"k": 3, "name": "fig", "price": -0.01},
        {"k": 7, "name": "date", "price": 0.1}, {"k": 8, "name": "elder", "price": 1.0},
        {"k": 20, "name": "p", "price": None}, {"k": 21, "name": "p", "price": None},
    ]  # fmt: skip
    # A read of the table itself does not see rows of the same statement.
    shop(
        "INSERT INTO item (k, name) SELECT k + 1, name FROM item WHERE k >= 20; INSERT INTO visit SELECT * FROM visit"
    )
    assert [row["k"] for row in shop("SELECT k FROM item WHERE k >= 20 ORDER BY k")] == [
        20,
        21,
        22,
        23,
        24,
        25,
    ]
    assert shop("SELECT count(*) AS n FROM visit") == [{"n": 6}]
    shop("INSERT INTO part WITH x AS (SELECT k, name FROM item WHERE k = 1) FROM x SELECT k, 9, name")
    assert shop("SELECT v FROM part WHERE a = 1 AND b = 9") == [{"v": "cherry"}]

    def said(text):
        done = sql.raw(text, "-d", database)
        assert done.exit_code == 1
        return done.stderr

    assert "the query gives 1 columns for 4 (k, name, price, seen)" in said("INSERT INTO item SELECT 1")
    failed = said(
        "INSERT INTO item (k) SELECT CASE WHEN range = 5 THEN 3000000000 ELSE 100 + range END FROM range(9)"
    )
    assert "3000000000 does not fit column 'k' of type INT" in failed
    assert "4 rows written before" in failed
    assert "no_such.csv" in said("INSERT INTO item SELECT * FROM 'no_such.csv'")
