"""What can be asked: plans, topics, views, names, and what is said of names that there are not."""

import json

import pyarrow as pa
import pytest

from protocol.errors import KafkaError
from tablelayer.client import OutgoingRecord, Table, TableError, connect
from tablelayer.model.ddl import DdlError
from tablelayer.sql.errors import SqlError


@pytest.fixture
def shop(sql):
    sql(
        "CREATE TABLE item (k INT, name STRING, price DOUBLE, PRIMARY KEY (k) NOT ENFORCED) COMMENT 'sold';"
        "CREATE TABLE part (a INT, b INT, v STRING DEFAULT 'none', PRIMARY KEY (a, b) NOT ENFORCED)"
        " WITH ('bucket.key' = 'a');"
        "CREATE TABLE visit (k INT, page STRING);"
        "INSERT INTO item VALUES (1, 'apple', 1.5), (2, 'pear', 2.5), (3, 'fig', 0.5);"
        "INSERT INTO part VALUES (1, 1, 'x'), (1, 2, 'y'); INSERT INTO visit VALUES (1, '/'), (3, '/x')"
    )
    return sql


def test_explain_says_which_way_a_query_goes(shop):
    name = shop.database
    assert shop.ways("SELECT * FROM item WHERE k = 1") == [(f"{name}.item", "lookup", "*", "k = 1")]
    assert shop.ways("SELECT v FROM part WHERE a = 1") == [(f"{name}.part", "prefix lookup", "v", "a = 1")]
    assert shop.ways("SELECT count(*) FROM item") == [(f"{name}.item", "count", "", "")]
    assert shop.ways("SELECT k FROM visit LIMIT 5") == [(f"{name}.visit", "limit 5", "k", "")]
    assert shop.ways("SELECT max(price) FROM item") == [(f"{name}.item", "extremes", "price", "")]
    assert shop.ways("SELECT k FROM visit WHERE page LIKE '/x%' AND k IN (3, 4)") == [
        (f"{name}.visit", "scan", "k", "page LIKE '/x%' AND k IN (3, 4)")
    ]
    assert shop.ways("SELECT name FROM item WHERE k >= 2 AND k < 9 AND price > 1") == [
        (f"{name}.item", "range scan", "k, name, price" if False else "*", "k >= 2 AND k < 9"), ("", "DuckDB", "", ""),
    ]  # fmt: skip
    assert shop.ways("SELECT i.name FROM visit v JOIN item i ON i.k = v.k WHERE v.page = '/'") == [
        (f"{name}.visit", "scan", "*", "page = '/'"), (f"{name}.item", "scan", "k, name", ""), ("", "DuckDB", "", ""),
    ]  # fmt: skip
    assert shop.ways('SELECT count(*) FROM "item$changelog"')[0][1] == "changelog"
    assert shop.ways("SELECT 1") == [("", "DuckDB", "", "")]
    with pytest.raises(DdlError, match="expected a query"):
        shop("EXPLAIN DELETE FROM item")


def test_a_plain_topic_is_asked_by_its_columns(shop, connection, server):
    topic = f"{shop.database}-clicks.v1"
    connection.kafka.create_topic(topic, partitions=2, configs={"retention.ms": "-1"})
    headers = [("trace", b"t3"), ("trace", b"u"), ("b", b"\xff"), ("none", None)]
    value = [json.dumps({"user": {"id": n}, "page": f"/{n}"}).encode() for n in range(6)]
    connection.kafka.produce(
        topic,
        [
            OutgoingRecord(value=each, key=b"k%d" % n, partition=n % 2, timestamp_ms=1_000 * n,
                           headers=headers if n == 3 else ())
            for n, each in enumerate(value)
        ] + [OutgoingRecord(value=b"\xff\x00", key=None, partition=0, timestamp_ms=9_000)],
    )  # fmt: skip
    try:
        rows = shop(f'SELECT * FROM "{topic}" ORDER BY timestamp')
        assert list(rows[0]) == ["partition", "offset", "timestamp", "key", "value", "headers"]
        assert [(row["partition"], row["offset"], row["key"]) for row in rows] == [
            (n % 2, n // 2, f"k{n}") for n in range(6)
        ] + [(0, 3, None)]
        assert rows[3]["headers"] == [
            {"key": "trace", "value": "t3"}, {"key": "trace", "value": "u"}, {"key": "b", "value": "\\xff"},
            {"key": "none", "value": None},
        ]  # fmt: skip
        assert [row["headers"] for row in rows if row["offset"] != 1] == [[]] * 5
        (exact,) = shop(f'SELECT headers_bytes AS h FROM "{topic}" WHERE len(headers) > 0')
        assert [(each["key"], each["value"]) for each in exact["h"]] == [
            ("trace", b"t3"), ("trace", b"u"), ("b", b"\xff"), ("none", None),
        ]  # fmt: skip
        assert rows[6]["value"] == "\\xff\x00"
        assert rows[1]["timestamp"].timestamp() == 1
        assert shop(f"SELECT json->>'$.page' AS p FROM \"{topic}\" WHERE json->'$.user.id' = 4") == [
            {"p": "/4"}
        ]
        assert shop(f'SELECT value_bytes AS b FROM "{topic}" WHERE offset = 3') == [{"b": b"\xff\x00"}]
        where = "partition = 1 AND offset >= 1 AND timestamp >= TIMESTAMP '1970-01-01 00:00:04'"
        assert shop(f'SELECT key FROM "{topic}" WHERE {where}') == [{"key": "k5"}]
        assert shop.ways(f'SELECT key FROM "{topic}" WHERE partition = 1 AND offset < 9') == [
            (f"{shop.database}.{topic}", "topic", "partition, offset, key", "partition = 1 AND offset < 9"),
            ("", "DuckDB", "", ""),
        ]
        assert shop(f'SELECT count(*) AS n, max(offset) AS o FROM "{topic}"') == [{"n": 7, "o": 3}]
        assert len(shop(f'SELECT * FROM "{topic}" LIMIT 2')) == 2
        assert {"topic": topic} in shop("SHOW TOPICS")
        assert shop(f"SELECT i.name FROM item i JOIN \"{topic}\" t ON t.key = 'k' || i.k WHERE i.k > 2") == [
            {"name": "fig"}
        ]
        with pytest.raises(SqlError, match=r"no column 'valu' in .*; did you mean value"):
            shop(f'SELECT valu FROM "{topic}"')
        # Bounds are where reading begins: nothing before them is fetched.
        with connect(server) as other:
            assert len(other.sql(f'SELECT key FROM "{topic}" WHERE offset >= 100')) == 0
            assert "Fetch" not in other.metrics().requests
            assert len(other.sql(f'SELECT key FROM "{topic}" WHERE offset >= 3')) == 1
            assert "Fetch" in other.metrics().requests
    finally:
        connection.kafka.delete_topic(topic)
    with pytest.raises((TableError, KafkaError), match=r"does not exist|INVALID"):
        shop(f'SELECT * FROM "{topic}"')


def test_views_are_names_for_queries_until_the_session_ends(shop):
    shop("CREATE VIEW dear AS SELECT k, name, price FROM item WHERE price > 1")
    assert shop("SELECT name FROM dear WHERE k = 2") == [{"name": "pear"}]
    shop("USE default")
    text = f"SELECT d.name FROM {shop.database}.dear d JOIN {shop.database}.visit v USING (k)"
    assert shop(text) == [{"name": "apple"}]
    shop(f"USE {shop.database}; CREATE VIEW both AS {text}; CREATE OR REPLACE VIEW dear AS SELECT 1 AS k")
    assert shop("SELECT * FROM both; SELECT * FROM dear") == [{"k": 1}]
    assert shop("SELECT * FROM both") == [{"name": "apple"}], "a view is made of tables, not of names"
    assert shop("SHOW VIEWS") == [{"view": f"{shop.database}.both"}, {"view": f"{shop.database}.dear"}]
    with pytest.raises(TableError, match="exists already"):
        shop("CREATE VIEW dear AS SELECT 2")
    with pytest.raises(TableError, match="is a table"):
        shop("CREATE VIEW item AS SELECT 2")
    assert (
        shop("CREATE VIEW v AS SELECT 2 AS n; SELECT n FROM v; DROP VIEW v; DROP VIEW IF EXISTS v")
        is not None
    )
    with pytest.raises(TableError, match="does not exist"):
        shop("SELECT * FROM v")


def test_names_are_in_information_schema(shop):
    name = shop.database
    assert {"schema": name} in shop("SELECT schema_name AS schema FROM information_schema.schemata")
    shop("CREATE VIEW seen AS SELECT * FROM visit")
    assert shop(
        "SELECT table_name, table_type, comment FROM information_schema.tables"
        f" WHERE table_schema = '{name}' ORDER BY 1"
    ) == [
        {"table_name": "item", "table_type": "BASE TABLE", "comment": "sold"},
        {"table_name": "part", "table_type": "BASE TABLE", "comment": None},
        {"table_name": "seen", "table_type": "VIEW", "comment": None},
        {"table_name": "visit", "table_type": "BASE TABLE", "comment": None},
    ]
    rows = shop(
        "SELECT column_name, data_type, is_nullable, column_default FROM information_schema.columns"
        f" WHERE table_schema = '{name}' AND table_name = 'part' ORDER BY ordinal_position"
    )
    assert [tuple(row.values()) for row in rows] == [
        ("a", "INT", "NO", None), ("b", "INT", "NO", None), ("v", "STRING", "YES", "none"),
    ]  # fmt: skip
    keys = shop(
        f"SELECT column_name AS c FROM information_schema.key_column_usage WHERE table_schema = '{name}'"
        " AND table_name = 'part' ORDER BY ordinal_position"
    )
    assert keys == [{"c": "a"}, {"c": "b"}]
    assert [tuple(row.values()) for row in shop("SHOW COLUMNS FROM part LIKE 'v'")] == [
        ("v", "STRING", "YES", "", "none", None)
    ]
    assert {"database": name} in shop("SHOW SCHEMAS")
    with pytest.raises(SqlError, match="did you mean columns"):
        shop("SELECT * FROM information_schema.column")


def test_duckdb_s_own_forms(shop):
    assert shop("FROM visit SELECT page ORDER BY k") == [{"page": "/"}, {"page": "/x"}]
    assert shop("FROM visit") == shop("SELECT * FROM visit")
    summary = shop("SUMMARIZE item")
    assert [(row["column_name"], row["min"], row["count"]) for row in summary] == [
        ("k", "1", 3), ("name", "apple", 3), ("price", "0.5", 3),
    ]  # fmt: skip
    assert [row["column_name"] for row in shop("SUMMARIZE SELECT k, k + 1 AS l FROM item")] == ["k", "l"]
    assert shop(
        "SELECT TIMESTAMP_LTZ '2024-01-01 00:00:00Z' = TIMESTAMPTZ '2024-01-01 01:00:00+01' AS same"
    ) == [{"same": True}]
    assert shop("SELECT X'CAFE' AS b") == [{"b": b"\xca\xfe"}]
    assert shop("(SELECT 1 AS a) UNION ALL SELECT 2") == [{"a": 1}, {"a": 2}]


def test_a_wrong_name_is_answered_with_those_of_the_table_before_anything_is_read(shop, monkeypatch):
    def read(*_, **__):
        raise AssertionError("nothing is read")

    for way in ("batches", "to_arrow", "range_scan", "scan"):
        monkeypatch.setattr(Table, way, read)
    for query in ("SELECT pric FROM item", "SELECT sum(pric) FROM item", "SELECT name FROM item WHERE abs(pric) > 1",
                  "SELECT i.pric FROM item i JOIN visit v USING (k)"):  # fmt: skip
        with pytest.raises(SqlError, match=r"no column 'pric' in .*item.*; did you mean price\?") as caught:
            shop(query)
        assert f"{shop.database}.item has k, name, price" in str(caught.value)
    with pytest.raises(SqlError, match="no table 'w' in this query"):
        shop("SELECT w.k FROM visit v")


def test_the_rows_of_a_large_query_come_while_it_is_read(shop, monkeypatch):
    """Of what comes after the first rows only as much is read as DuckDB reads ahead."""
    given = 0

    def batches(self, columns=None, filter=None):  # noqa: A002
        nonlocal given
        for _ in range(1_000):
            given += 1
            yield pa.record_batch(
                [pa.array(range(5_000), pa.int32()), pa.array(["x" * 20] * 5_000)], ["k", "page"]
            )

    monkeypatch.setattr(Table, "batches", batches)
    (answer,) = shop.session.run("SELECT k + 1 AS k, upper(page) AS s FROM visit WHERE k % 2 < 2")
    arriving = answer.batches()
    assert next(arriving).num_rows > 0
    assert 0 < given < 500
    arriving.close()
