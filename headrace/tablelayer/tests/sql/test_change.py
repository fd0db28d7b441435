"""UPDATE and DELETE of the rows that any condition is true for, and TRUNCATE."""

import pytest

from headrace.protocol.errors import KafkaError
from headrace.tablelayer.client import DataError, Table, TableError
from headrace.tablelayer.model.ddl import DdlError
from headrace.tablelayer.sql.errors import SqlError
from headrace.tablelayer.tests.lakes import lake_offered


@pytest.fixture
def item(sql):
    sql(
        "CREATE TABLE item (k INT, name STRING, price DECIMAL(8, 2), n INT NOT NULL, at TIMESTAMP(3),"
        " PRIMARY KEY (k) NOT ENFORCED) WITH ('bucket.num' = '2');"
        "INSERT INTO item SELECT range, 'n' || range, range + 0.25, range % 3, NULL FROM range(10)"
    )
    return sql


def test_update_sets_what_is_worked_out_of_each_row_and_nothing_else(item):
    sql = item
    assert (
        sql("UPDATE item SET price = price * 2, name = 'dear' WHERE price > 5 AND n <> 0") == "3 rows updated"
    )
    assert sql("SELECT k, name, CAST(price AS STRING) AS p FROM item WHERE name = 'dear' ORDER BY k") == [
        {"k": k, "name": "dear", "p": f"{2 * k}.50"} for k in (5, 7, 8)
    ]
    assert sql("UPDATE item SET at = now(), n = n + 1 WHERE length(name) = 2") == "7 rows updated"
    assert sql("SELECT count(at) AS c, sum(n) AS s FROM item") == [{"c": 7, "s": 9 + 7}]
    sql("CREATE TABLE other (k INT, x INT); INSERT INTO other VALUES (1, 70), (2, 80)")
    told = sql(
        "UPDATE item SET n = (SELECT max(x) FROM other o WHERE o.k = item.k) WHERE k IN (SELECT k FROM other)"
    )
    assert told == "2 rows updated"
    assert sql("SELECT n FROM item WHERE k IN (1, 2) ORDER BY k") == [{"n": 70}, {"n": 80}]
    assert sql("UPDATE item SET name = NULL") == "10 rows updated"
    assert sql("UPDATE item SET name = 'x' WHERE k > 100") == "0 rows updated"
    changes = sql("SELECT count(*) AS c FROM \"item$changelog\" WHERE _change_type = '+U'")
    assert changes == [{"c": 3 + 7 + 2 + 10}]


def test_an_update_writes_only_the_columns_that_it_sets(item, monkeypatch):
    """Rows that another client writes between the read and the write are kept, and a row that was deleted stays so."""
    sql, handle = item, item.connection.table(f"{item.database}.item")
    write = Table.partial

    def late(self, rows, columns, **options):
        monkeypatch.setattr(Table, "partial", write)
        handle.partial([{"k": 1, "price": "99.00"}], ["k", "price"], only_existing=True)
        handle.delete([2])
        return write(self, rows, columns, **options)

    monkeypatch.setattr(Table, "partial", late)
    sql("UPDATE item SET name = upper(name) || price::VARCHAR WHERE k < 3")
    assert sql("SELECT k, name, CAST(price AS STRING) AS p FROM item WHERE k < 3 ORDER BY k") == [
        {"k": 0, "name": "N00.25", "p": "0.25"}, {"k": 1, "name": "N11.25", "p": "99.00"},
    ]  # fmt: skip


def test_delete_by_any_condition_and_truncate(item):
    sql = item
    assert sql("DELETE FROM item WHERE n = 1 OR price > 8.5") == "4 rows deleted"
    assert [row["k"] for row in sql("SELECT k FROM item ORDER BY k")] == [0, 2, 3, 5, 6, 8]
    assert sql("DELETE FROM item WHERE k = NULL") == "0 rows deleted"
    assert sql("TRUNCATE TABLE item") == "6 rows deleted"
    assert sql("SELECT count(*) AS c FROM item") == [{"c": 0}]
    assert sql("SELECT count(*) AS c FROM \"item$changelog\" WHERE _change_type = '-D'") == [{"c": 10}]
    sql("INSERT INTO item (k, n) VALUES (1, 1), (2, 2)")
    assert sql("DELETE FROM item") == "2 rows deleted"
    sql("CREATE TABLE log (a INT, day STRING) PARTITIONED BY (day) WITH ('bucket.num' = '2')")
    sql("INSERT INTO log SELECT range, 'd' || range % 2 FROM range(9)")
    assert sql("TRUNCATE log") == "9 rows deleted"
    assert sql("SELECT count(*) AS c FROM log; SELECT * FROM log") == []
    sql("INSERT INTO log VALUES (1, 'd1')")
    assert sql("SELECT * FROM log") == [{"a": 1, "day": "d1"}]
    with pytest.raises(
        KafkaError, match="a table that has a primary key or is tiered; delete rows of a table with DELETE"
    ):
        sql.connection.kafka.delete_records(f"{sql.database}.item", {0: 1})
    with lake_offered(sql.connection):
        sql(
            "CREATE TABLE tiered (a INT) WITH ('table.datalake.enabled' = 'true'); INSERT INTO tiered VALUES (1)"
        )
    with pytest.raises(TableError, match="rows in the lake stay"):
        sql("TRUNCATE tiered")


@pytest.mark.parametrize(
    ("text", "error", "complaint"),
    [
        ("UPDATE item SET k = k + 1", TableError, "cannot change the primary key"),
        ("UPDATE item SET nam = 'x' WHERE n = 1", TableError, "there is no column 'nam'"),
        ("UPDATE item SET n = NULL WHERE n = 1", DataError, "NOT NULL"),
        ("UPDATE item SET n = NULLIF(n, 1)", DataError, "NOT NULL"),
        ("UPDATE item SET n = prices + 1", SqlError, "no column 'prices' in .*; did you mean price?"),
        ("UPDATE item SET n = 'x' || name", DataError, "Could not convert string 'xn"),
        ("UPDATE item SET n = 1 WHERE nn = 2", SqlError, "there is no column 'nn'"),
        ("UPDATE item SET n = (1", DdlError, "something is missing|Expecting"),
        ("UPDATE log SET a = a + 1", TableError, "log table"),
        ("DELETE FROM log WHERE a > 1", TableError, "log table"),
    ],
)
def test_a_meaningless_change_is_refused_without_effect(item, text, error, complaint):
    item("CREATE TABLE log (a INT)")
    before = item("SELECT * FROM item ORDER BY k")
    with pytest.raises(error, match=complaint):
        item(text)
    assert item("SELECT * FROM item ORDER BY k") == before


def test_update_from_other_tables_assigns_their_values_by_key(item):
    sql = item
    sql(
        "CREATE TABLE list (k INT, price DECIMAL(8, 2), kind STRING);"
        "INSERT INTO list VALUES (1, 5.00, 'a'), (2, 6.00, 'b'), (77, 7.00, 'a');"
        "CREATE TABLE factor (kind STRING, f INT); INSERT INTO factor VALUES ('a', 10), ('b', 100)"
    )
    told = sql("UPDATE item SET price = list.price, name = 'listed' FROM list WHERE item.k = list.k")
    assert told == "2 rows updated"
    named = "SELECT k, CAST(price AS STRING) AS p, n FROM item WHERE name = 'listed' ORDER BY k"
    assert sql(named) == [{"k": 1, "p": "5.00", "n": 1}, {"k": 2, "p": "6.00", "n": 2}]
    told = sql(
        "UPDATE item AS i SET price = i.price * f.f, n = i.n + f"
        " FROM list l JOIN factor f ON l.kind = f.kind WHERE i.k = l.k AND f.f > 10"
    )
    assert told == "1 row updated"
    assert sql(named) == [{"k": 1, "p": "5.00", "n": 1}, {"k": 2, "p": "600.00", "n": 102}]
    assert sql("UPDATE item SET name = 'q' FROM (SELECT max(k) AS most FROM list) m WHERE k > most") == (
        "0 rows updated"
    )
    assert sql("UPDATE item o SET n = p.n FROM item p WHERE p.k = o.k + 1 AND o.k = 8") == "1 row updated"
    assert sql("SELECT n FROM item WHERE k = 8") == [{"n": 0}]


def test_update_from_contradicting_rows_writes_nothing(item):
    sql = item
    sql("CREATE TABLE two (k INT, n INT); INSERT INTO two VALUES (3, 50), (3, 51), (4, 60), (4, 60)")
    with pytest.raises(TableError, match=r"2 rows of FROM give the row with k = 3 different values"):
        sql("UPDATE item SET n = two.n FROM two WHERE two.k = item.k")
    assert sql("SELECT count(*) AS c FROM item WHERE n >= 50") == [{"c": 0}]
    assert sql("UPDATE item SET n = two.n FROM two WHERE two.k = item.k AND two.n <> 51") == "2 rows updated"
    assert sql("SELECT k, n FROM item WHERE n >= 50 ORDER BY k") == [{"k": 3, "n": 50}, {"k": 4, "n": 60}]


def test_the_number_of_written_rows_is_known_during_an_update(item, monkeypatch):
    from headrace.tablelayer.sql import writes

    monkeypatch.setattr(writes, "_ROWS_AT_ONCE", 4)
    seen, write = [], Table.partial
    monkeypatch.setattr(
        Table,
        "partial",
        lambda *given, **more: (seen.append(item.session.written_count), write(*given, **more))[1],
    )
    assert item("UPDATE item SET name = upper(name)") == "10 rows updated"
    assert (seen[0], seen[-1] >= 4, item.session.written_count) == (0, True, 0)


def test_default_stands_for_what_the_definition_says(sql):
    sql("CREATE TABLE d (k INT, s STRING DEFAULT 'none', n INT, at TIMESTAMP(9) DEFAULT '2024-01-01 00:00:00.5',"
        " PRIMARY KEY (k) NOT ENFORCED)")  # fmt: skip
    sql("INSERT INTO d VALUES (1, DEFAULT, DEFAULT, DEFAULT), (2, 'x', 5, '2024-01-01 00:00:00')")
    sql("INSERT INTO d (k, s) VALUES (3, default)")
    shown = "SELECT k, s, n, CAST(at AS STRING) AS at FROM d ORDER BY k"
    assert sql(shown) == [
        {"k": 1, "s": "none", "n": None, "at": "2024-01-01 00:00:00.5"},
        {"k": 2, "s": "x", "n": 5, "at": "2024-01-01 00:00:00"},
        {"k": 3, "s": "none", "n": None, "at": "2024-01-01 00:00:00.5"},
    ]
    assert sql("UPDATE d SET s = DEFAULT, n = n + 1 WHERE k = 2") == "1 row updated"
    assert sql("UPDATE d SET at = DEFAULT WHERE n > 5") == "1 row updated"
    assert sql(shown)[1] == {"k": 2, "s": "none", "n": 6, "at": "2024-01-01 00:00:00.5"}
    with pytest.raises(DataError, match="'k' is NOT NULL"):
        sql("INSERT INTO d VALUES (DEFAULT, 'x', 1, NULL)")


def test_a_key_is_compared_with_a_literal_of_another_type_as_in_select(sql):
    sql(
        "CREATE TABLE k (id INT, s STRING, PRIMARY KEY (id) NOT ENFORCED); INSERT INTO k VALUES (1, 'a'), (3, 'c');"
        "CREATE TABLE n (t TIMESTAMP(9), PRIMARY KEY (t) NOT ENFORCED);"
        "INSERT INTO n VALUES ('2024-01-01 00:00:00')"
    )
    for literal, count in {"'3'": 1, "3.0": 1, "2.5": 0, "99999999999": 0, "TRUE": 1}.items():
        assert len(sql(f"SELECT * FROM k WHERE id = {literal}")) == count
        assert sql(f"UPDATE k SET s = 'x' WHERE id = {literal}").startswith(f"{count} row")
    assert sql("DELETE FROM k WHERE id = 2.5") == "0 rows deleted"
    assert sql("DELETE FROM k WHERE id = '3'") == "1 row deleted"
    assert sql("DELETE FROM n WHERE t = TIMESTAMP '9999-12-31'") == "0 rows deleted"
    assert sql("DELETE FROM n WHERE t = DATE '2024-01-01'") == "1 row deleted"


def test_delete_using_other_rows(item):
    sql = item
    sql(
        "CREATE TABLE gone (k INT, why STRING);"
        "INSERT INTO gone VALUES (1, 'old'), (1, 'sold'), (2, 'kept'), (77, 'old')"
    )
    assert sql("DELETE FROM item USING gone WHERE item.k = gone.k AND why <> 'kept'") == "1 row deleted"
    assert (
        sql("DELETE FROM item AS i USING (SELECT max(k) AS k FROM item) m WHERE i.k = m.k") == "1 row deleted"
    )
    assert sql("DELETE FROM item i WHERE i.k = 5") == "1 row deleted"
    assert [row["k"] for row in sql("SELECT k FROM item ORDER BY k")] == [0, 2, 3, 4, 6, 7, 8]
    for text in (
        "DELETE FROM item i",
        "DELETE FROM item WHER k = 2",
        "DELETE FROM item USING gone WHERE why = k +",
    ):
        with pytest.raises(DdlError):
            sql(text)
    assert sql("SELECT count(*) AS n FROM item") == [{"n": 7}]
    assert sql("DELETE FROM item USING gone WHERE why = 'never'") == "0 rows deleted"


def test_hints_are_refused_and_nothing_is_done(item):
    for text in (
        "DELETE FROM item /*+ OPTIONS('a'='b') */ WHERE k = 1", "UPDATE item /*+ x */ SET name = 'x'",
        "INSERT /*+ x */ INTO item (k, n) VALUES (99, 1)", "SELECT * FROM item /*+ OPTIONS('scan.snapshot-id'='1') */",
        "INSERT INTO item SELECT * FROM item /*+ x */", "TRUNCATE TABLE item /*+ x */",
    ):  # fmt: skip
        with pytest.raises((DdlError, SqlError), match=r"hint|snapshot"):
            item(text)
    assert item("SELECT count(*) AS n, max(name) AS m FROM item") == [{"n": 10, "m": "n9"}]
