"""Statements of one row: the second one of a table is a single request, and its answer is that of the general way."""

from __future__ import annotations

import duckdb
import pytest

from headrace.tablelayer.client import DataError, OutcomeUnknown, TableError, connect
from headrace.tablelayer.client.wire.connection import BrokerConnection
from headrace.tablelayer.client.write.writer import Writer

STATEMENTS = {
    "INSERT INTO {t} VALUES (7, 'a')": "1 row written",
    "INSERT INTO {t} (k) VALUES (8)": "1 row written",
    "UPDATE {t} SET s = 'b' WHERE k = 1": "1 row updated",
    "UPDATE {t} SET s = 'b' WHERE k = 1 ": "1 row updated",
    "UPDATE {t} SET s = 'b' WHERE k = 99": "0 rows updated",
    "DELETE FROM {t} WHERE k = 1": "1 row deleted",
    "DELETE FROM {t} WHERE k = 1 ": "0 rows deleted",
}


@pytest.fixture
def t(sql):
    sql("CREATE TABLE t (k INT, s STRING, PRIMARY KEY (k) NOT ENFORCED); INSERT INTO t VALUES (1, 'x')")
    return sql


def requests(sql):
    return {name: each.count for name, each in sql.connection.metrics().requests.items()}


def elsewhere(sql, statement):
    with connect(sql.connection.bootstrap) as other:
        other.sql(f"USE {sql.database}")
        return other.sql(statement)


@pytest.mark.parametrize(
    "options", ["'bucket.num' = '1'", "'table.changelog.image' = 'WAL'", "'bucket.num' = '3'"]
)
def test_one_row_is_written_by_one_request_and_counted(sql, options):
    sql(f"CREATE TABLE t (k INT, s STRING, PRIMARY KEY (k) NOT ENFORCED) WITH ({options})")
    sql("CREATE TABLE log (k INT, s STRING); INSERT INTO log VALUES (0, 'x'); INSERT INTO t VALUES (1, 'x')")
    before = requests(sql)
    for statement, said in STATEMENTS.items():
        assert sql(statement.format(t="t")) == said
    assert sql("INSERT INTO log VALUES (1, 'y')") == "1 row written"
    after = requests(sql)
    made = {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name)}
    made.pop("Metadata", None)  # routes are asked for again from time to time
    assert made == {"PutRows": len(STATEMENTS), "AppendRows": 1}
    assert sql("SELECT k, s FROM t ORDER BY k") == [{"k": 7, "s": "a"}, {"k": 8, "s": None}]
    assert sql("SELECT count(*) AS n FROM log") == [{"n": 2}]


def test_a_change_that_cannot_be_counted_has_an_unknown_outcome(t, monkeypatch):
    send = Writer._send

    async def send_uncounted(writer, *given):
        return {bucket: (*answer[:3], -1) for bucket, answer in (await send(writer, *given)).items()}

    monkeypatch.setattr(Writer, "_send", send_uncounted)
    for statement in ("UPDATE t SET s = 'b' WHERE k = 1", "DELETE FROM t WHERE k = 1"):
        with pytest.raises(OutcomeUnknown, match="the change was made, if there was such a row"):
            t(statement)
    assert t("SELECT count(*) AS n FROM t") == [{"n": 0}]


def test_rows_for_an_altered_table_are_not_taken_for_the_old_one(t):
    elsewhere(t, "ALTER TABLE t ADD COLUMN n INT")
    with pytest.raises(TableError, match="2 values for 3 columns"):
        t("INSERT INTO t VALUES (2, 'y')")
    assert t("INSERT INTO t VALUES (2, 'y', 3)") == "1 row written"
    elsewhere(t, "ALTER TABLE t ALTER COLUMN n SET DEFAULT 5")
    assert t("INSERT INTO t (k) VALUES (3)") == "1 row written"
    assert t("UPDATE t SET s = 'z' WHERE k = 1") == "1 row updated"
    elsewhere(t, "ALTER TABLE t ADD COLUMN m INT")
    assert t("UPDATE t SET m = 1 WHERE k = 1") == "1 row updated"
    assert t("SELECT k, s, n, m FROM t ORDER BY k") == [
        {"k": 1, "s": "z", "n": None, "m": 1},
        {"k": 2, "s": "y", "n": 3, "m": None},
        {"k": 3, "s": None, "n": 5, "m": None},
    ]


def test_a_table_that_was_made_again_is_another_one(t):
    elsewhere(t, "DROP TABLE t")
    with pytest.raises(TableError, match="does not exist"):
        t("INSERT INTO t VALUES (2, 'y')")
    elsewhere(t, "CREATE TABLE t (k STRING, PRIMARY KEY (k) NOT ENFORCED)")
    assert t("INSERT INTO t VALUES ('2')") == "1 row written"
    assert t("DELETE FROM t WHERE k = '3'") == "0 rows deleted"
    assert t("SELECT * FROM t") == [{"k": "2"}]


def test_a_server_that_cannot_check_is_asked_for_the_definition(t, monkeypatch):
    """An older server cannot check, and another version may write the definition in another text."""
    monkeypatch.setattr(BrokerConnection, "version_for", lambda connection, request: 0)
    before = requests(t)
    for _ in range(3):
        assert t("UPDATE t SET s = 'b' WHERE k = 1") == "1 row updated"
    after = requests(t)
    assert after["DescribeTable"] - before["DescribeTable"] == 3
    assert after["PutRows"] - before["PutRows"] == 3
    assert after["InitProducerId"] - before["InitProducerId"] == 1


def test_a_merge_engine_decides_the_general_way(sql):
    sql(
        "CREATE TABLE v (k INT, n INT, PRIMARY KEY (k) NOT ENFORCED) WITH ('table.merge-engine' = 'first_row')"
    )
    sql("INSERT INTO v VALUES (1, 1); INSERT INTO v VALUES (1, 2)")
    with pytest.raises(TableError, match="first_row"):
        sql("UPDATE v SET n = 3 WHERE k = 1")
    assert sql("SELECT n FROM v") == [{"n": 1}]


def test_a_value_that_does_not_fit_is_told_as_before(t):
    with pytest.raises(DataError, match="column 'k'"):
        t("INSERT INTO t VALUES ('one', 'x')")
    assert t("INSERT INTO t VALUES (2, 'y')") == "1 row written"
    assert t("SELECT count(*) AS n FROM t") == [{"n": 2}]


def test_a_float_key_is_found_by_the_literals_that_duckdb_finds_it_by(sql):
    """DuckDB compares a FLOAT with a DECIMAL literal as FLOAT, and with a DOUBLE literal as DOUBLE."""
    values = ("0.1", "1.5", "16777216", "3.4028235e38", "CAST('NaN' AS FLOAT)")
    sql("CREATE TABLE f (k FLOAT, n INT, PRIMARY KEY (k) NOT ENFORCED)")
    sql(f"INSERT INTO f VALUES {', '.join(f'({value}, 0)' for value in values)}")
    source = f"(VALUES {', '.join(f'({value}::FLOAT)' for value in values)}) AS v(k)"
    for literal in (
        *values,
        "1e-1",
        "0.10",
        "15e-1",
        "16777217",
        "0.1000000000000000055",
        "CAST(0.1 AS FLOAT)",
    ):
        ((count,),) = duckdb.sql(f"SELECT count(*) FROM {source} WHERE k = {literal}").fetchall()
        assert len(sql(f"SELECT n FROM f WHERE k = {literal}")) == count, literal
        assert sql(f"UPDATE f SET n = 1 WHERE k = {literal}").startswith(f"{count} row"), literal
