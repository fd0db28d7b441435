"""The scripts in `examples/fluss`, and what users see of words without an effect."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.tablelayer.client import OutgoingRecord
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.sql.errors import SqlError
from headrace.tablelayer.tests.lakes import lake_offered

SCRIPTS = Path(__file__).parents[4] / "examples" / "fluss"


def answers(sql, text):
    found = []
    for answer in sql.session.run(text):
        _ = answer.rows  # before the next statement
        found.append(answer)
    return found


@pytest.mark.slow
def test_the_quickstart_enriches_orders_and_answers(sql):
    found = answers(sql, (SCRIPTS / "quickstart.sql").read_text())
    limited, count, months, named, gone = [each.rows for each in found if each.schema is not None]
    assert limited.num_rows == 2
    orders = sql("SELECT count(*) AS n FROM customer_orders")[0]["n"]
    assert count.to_pylist() == [{"count_star()": orders}]
    assert orders > 450
    assert sum(months.column("orders").to_pylist()) == orders
    assert named.column("name").to_pylist() == ["Anna"]
    assert gone.num_rows == 0
    joined = sql("SELECT count(*) AS n FROM enriched WHERE nation IN ('CANADA', 'JORDAN', 'CHINA')")
    assert joined[0]["n"] > orders * 0.9  # customers are 200 draws of 20 keys
    assert sql("SELECT count(DISTINCT customer) > 5 AS many FROM enriched")[0]["many"]
    told = [notice for each in found for notice in each.notices]
    assert any("'ptime' AS PROCTIME()" in each for each in told)
    assert any("'bootstrap.servers' = 'coordinator-server:9123' has no effect" in each for each in told)


@pytest.mark.slow
def test_definitions_and_reads_of_fluss_are_carried_out(sql):
    text = (SCRIPTS / "tables.sql").read_text().replace("shop;", f"{sql.database}_shop;")
    text = text.replace("DROP DATABASE shop ", f"DROP DATABASE {sql.database}_shop ")
    found = answers(sql, text)
    rows = [each.rows.to_pylist() for each in found if each.schema is not None]
    calendar, one, items, totals, changes, stream = rows
    assert len(calendar) == 2
    assert [each["dt"] for each in one] == ["2030-01-31"]
    assert items == [{"item": "pen", "amount": 2}]
    assert {(each["user_id"], each["orders"], each["amount"]) for each in totals} == {(7, 1, 20), (8, 1, 5)}
    assert [tuple(each.values()) for each in changes] == [("+I", 1, 10), ("-U", 1, 10), ("+U", 1, 20)]
    assert sorted(tuple(each.values()) for each in stream) == [("+A", "ink", 2), ("+A", "pen", 4)]


@pytest.mark.slow
@pytest.mark.parametrize("demos", [("demo", "demo_cluster"), ("cdc",)])
def test_tables_of_the_demos_are_created(sql, demos):
    own = f"{sql.database}_shop"
    scripts = [(SCRIPTS.parent / demo / "tables.sql").read_text() for demo in demos]
    with lake_offered(sql.connection):
        for text in scripts:
            answers(sql, re.sub(r"\bshop\b", own, text))
    made = set(sql.connection.admin.list_tables(own))
    assert made == {name for text in scripts for name in re.findall(r"CREATE TABLE shop\.(\w+)", text)}
    assert made
    answers(sql, f"USE {sql.database}; DROP DATABASE {own} CASCADE")


def test_a_query_that_goes_on_shows_rows_and_then_changes(sql):
    sql("CREATE TABLE t (k INT, v STRING, n INT, PRIMARY KEY (k) NOT ENFORCED)")
    sql("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
    (answer,) = sql.session.run(
        "SELECT k, v || '!', len(v), t.* EXCLUDE (k, v) FROM t WHERE n < 9 EMIT CHANGES"
    )
    assert answer.is_endless
    assert answer.schema.names == ["op", "k", "(v || '!')", "len(v)", "n"]
    arriving = answer.batches()
    seen: list[tuple[str, int, str, int, int]] = []

    def until(count):
        while len(seen) < count:
            seen.extend(tuple(row.values()) for row in next(arriving).to_pylist())

    until(2)
    assert sorted(seen) == [("+I", 1, "a!", 1, 1), ("+I", 2, "b!", 1, 2)]
    seen.clear()
    sql("UPDATE t SET v = 'c', n = 9 WHERE k = 1")
    sql("DELETE FROM t WHERE k = 2")
    until(2)  # the new image of the first does not meet the condition any more
    assert seen == [("-U", 1, "a!", 1, 1), ("-D", 2, "b!", 1, 2)]
    arriving.close()


@pytest.mark.slow
def test_ctrl_c_ends_a_query_that_goes_on(sql, server):
    sql("CREATE TABLE t (a INT)")
    sql("INSERT INTO t VALUES (5)")
    command = [
        "sql",
        "--server",
        server,
        "-e",
        f"SELECT * FROM {sql.database}.t EMIT CHANGES",
        "--output",
        "csv",
    ]
    code = "from headrace.tablelayer.cli.main import main; main()"
    running = subprocess.Popen(
        [sys.executable, "-c", code, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
    )
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == b"op,a\n"
        assert running.stdout.readline() == b"+A,5\n"
        sql("INSERT INTO t VALUES (6)")
        assert running.stdout.readline() == b"+A,6\n"
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        _, error = running.communicate(timeout=60)
    finally:
        running.kill()
    assert running.returncode == 130
    assert error == b"interrupted\n"


def test_records_of_a_topic_are_rows_of_a_temporary_table(sql):
    topic = f"{sql.database}-clicks"
    sql.connection.kafka.create_topic(topic, partitions=1)
    values = [b'{"id": 7, "price": 1.25, "who": {"n": "x"}}', None, b'{"id": 8}', b"no json"]
    sql.connection.kafka.produce(topic, [OutgoingRecord(value=each) for each in values])
    columns = "(id BIGINT, price DECIMAL(10, 2), who ROW<n STRING>, place BIGINT METADATA FROM 'offset')"
    options = f"'connector' = 'kafka', 'topic' = '{topic}', 'format' = 'json', 'scan.startup.mode' = 'earliest-offset'"
    sql(f"CREATE TEMPORARY TABLE clicks {columns} WITH ({options}, 'json.ignore-parse-errors' = 'true')")
    assert [tuple(map(str, row.values())) for row in sql("SELECT * FROM clicks ORDER BY id")] == [
        ("7", "1.25", "{'n': 'x'}", "0"),
        ("8", "None", "None", "2"),
    ]
    sql(f"CREATE TEMPORARY TABLE strict {columns} WITH ({options})")
    with pytest.raises(SqlError, match="JSON"):
        sql("SELECT * FROM strict")


def test_a_view_that_a_table_does_not_have_is_refused_with_those_that_it_has(sql):
    sql("CREATE TABLE seen (id INT)")
    with pytest.raises(SqlError, match=r"seen\$binlog is not a view of a table.* t\$changelog, t\$lake"):
        sql("SELECT * FROM seen$binlog")


def test_partitions_of_a_calendar_are_there_after_create(sql):
    sql("CREATE TABLE t (d STRING, a INT) PARTITIONED BY (d) WITH ('table.auto-partition.enabled' = 'true')")
    assert len(sql("SHOW PARTITIONS t")) == 2


def test_a_name_that_stands_for_the_time_is_not_a_column(sql):
    sql("CREATE TABLE t (a INT, p AS PROCTIME())")
    assert sql("SELECT * FROM t") == []
    with pytest.raises(TableError, match="is a column of table"):
        sql("ALTER TABLE t ADD p INT")
