"""Queries: plans, topics, views, names, and the errors of unknown names."""

import json

import pyarrow as pa
import pytest

from headrace.protocol.errors import KafkaError
from headrace.tablelayer.client import OutgoingRecord, Table, TableError, TableErrorCode, connect
from headrace.tablelayer.model.ddl import DdlError
from headrace.tablelayer.model.ddl.names import Names
from headrace.tablelayer.model.ddl.select import analyze
from headrace.tablelayer.sql.duck import Engine
from headrace.tablelayer.sql.errors import SqlError
from headrace.tablelayer.sql.sources import Source, Step


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
    old = f"{topic}.old"
    connection.kafka.create_topic(old, configs={"retention.ms": "-1"})
    connection.kafka.produce(old, [OutgoingRecord(b"v", timestamp_ms=each) for each in (-1, 5, -9)])
    try:
        assert len(shop(f"SELECT * FROM \"{old}\" WHERE timestamp > '1960-01-01'")) == 3
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
        # Bounds set where reading begins: no earlier record is fetched.
        with connect(server) as other:
            assert len(other.sql(f'SELECT key FROM "{topic}" WHERE offset >= 100')) == 0
            assert "Fetch" not in other.metrics().requests
            assert len(other.sql(f'SELECT key FROM "{topic}" WHERE offset >= 3')) == 1
            assert "Fetch" in other.metrics().requests
    finally:
        connection.kafka.delete_topic(topic)
        connection.kafka.delete_topic(old)
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
    types = shop("SELECT column_name AS c, data_type AS t FROM information_schema.columns"
                 f" WHERE table_schema = '{name}' AND table_name = 'visit'")  # fmt: skip
    for statement in ("DESCRIBE seen", "SHOW COLUMNS FROM seen"):
        assert [{"c": row["column"], "t": row["type"]} for row in shop(statement)] == types
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
    """After the first rows only as much is read as DuckDB reads ahead."""
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


def test_a_prefix_that_is_not_wanted_leaves_out_what_has_it(sql, connection):
    sql(
        "CREATE TABLE nl (id INT, s STRING, PRIMARY KEY (id) NOT ENFORCED);"
        "INSERT INTO nl VALUES (1, 'apple'), (2, 'avocado'), (3, 'banana'), (4, NULL)"
    )
    for condition, ids in {
        "s NOT LIKE 'a%'": [3], "s !~~ 'a%'": [3], "NOT (s NOT LIKE 'a%')": [1, 2], "NOT s LIKE 'a%'": [3],
        "s NOT ILIKE 'A%'": [3], "s NOT LIKE 'a%' ESCAPE '!'": [3], "s NOT LIKE 'a%' AND id > 0": [3],
    }.items():  # fmt: skip
        assert [row["id"] for row in sql(f"SELECT id FROM nl WHERE {condition} ORDER BY id")] == ids
        assert sql(f"SELECT count(*) AS n FROM nl WHERE {condition}") == [{"n": len(ids)}]
        assert sql(f"SELECT max(id) AS n FROM nl WHERE {condition}") == [{"n": max(ids)}]
    table = connection.table(f"{sql.database}.nl")
    assert table.to_arrow(filter="s NOT LIKE 'a%'")["id"].to_pylist() == [3]
    assert sql("DELETE FROM nl WHERE s NOT LIKE 'a%'") == "1 row deleted"
    assert sql("UPDATE nl SET s = 'x' WHERE s NOT LIKE 'ap%'") == "1 row updated"
    assert sql("SELECT id, s FROM nl ORDER BY id") == [
        {"id": 1, "s": "apple"}, {"id": 2, "s": "x"}, {"id": 4, "s": None}
    ]  # fmt: skip


def test_names_behind_an_alias_are_the_columns_in_their_order(shop, connection):
    assert shop("SELECT x.c, x.b FROM part AS x(b, c) WHERE x.c = 2") == [{"c": 2, "b": 1}]
    assert shop("SELECT count(c) AS n FROM part x(b, c) WHERE b = 1 AND c > 1") == [{"n": 1}]
    assert shop("SELECT max(c) AS m FROM part x(b, c)") == [{"m": 2}]
    assert shop("SELECT #2 AS second FROM part WHERE v = 'y'") == [{"second": 2}]
    topic = f"{shop.database}-alias"
    connection.kafka.create_topic(topic, partitions=1)
    connection.kafka.produce(topic, [OutgoingRecord(value=b"v%d" % n, key=b"k") for n in range(3)])
    try:
        assert shop(f'SELECT x.q, x.p FROM "{topic}" AS x(p, q) WHERE x.q >= 1 ORDER BY 1') == [
            {"q": 1, "p": 0}, {"q": 2, "p": 0}
        ]  # fmt: skip
        names = f'FROM "{topic}" x(offset, partition) WHERE x.partition = 2'
        assert shop(f"SELECT x.offset AS p, x.partition AS o {names}") == [{"p": 0, "o": 2}]
    finally:
        connection.kafka.delete_topic(topic)


def test_a_with_hides_a_table_where_it_stands_and_nowhere_else(shop):
    assert shop("WITH item AS (SELECT * FROM item WHERE k > 2) SELECT name FROM item") == [{"name": "fig"}]
    found = shop(
        "SELECT k FROM visit WHERE k IN (WITH item AS (SELECT 1 AS k) SELECT k FROM item)"
        " AND EXISTS (SELECT 1 FROM item WHERE name = 'fig')"
    )
    assert found == [{"k": 1}]
    assert shop("WITH x AS (SELECT count(*) AS n FROM item), item AS (SELECT 7 AS k) FROM x, item") == [
        {"n": 3, "k": 7}
    ]


def test_a_pivot_is_a_query_and_describe_takes_one(shop):
    rows = [{"a": 1, "1": "x", "2": "y"}]
    assert shop("PIVOT part ON b USING max(v)") == rows
    assert shop("SELECT * FROM part PIVOT (max(v) FOR b IN (1, 2))") == rows
    assert shop("WITH p AS (SELECT b, v FROM part) PIVOT p ON b USING max(v)") == [{"1": "x", "2": "y"}]
    assert len(shop("UNPIVOT (SELECT a, b FROM part) ON a, b")) == 4
    shop("CREATE VIEW wide AS PIVOT part ON b USING max(v)")
    assert shop("SELECT * FROM wide") == rows
    shop("CREATE VIEW narrow AS SELECT b, v FROM part")
    assert shop("SELECT * FROM narrow PIVOT (max(v) FOR b IN (1))") == [{"1": "x"}]
    assert shop("SELECT * FROM narrow TABLESAMPLE 0%") == []
    described = shop("DESCRIBE SELECT k, price, price > 1 AS dear, now() AS n, [name] AS l FROM item")
    assert [(row["column"], row["type"]) for row in described] == [
        ("k", "INT"), ("price", "DOUBLE"), ("dear", "BOOLEAN"), ("n", "TIMESTAMP_LTZ(6)"), ("l", "ARRAY<STRING>"),
    ]  # fmt: skip
    assert [row["column"] for row in shop("DESCRIBE PIVOT part ON b USING max(v)")] == ["a", "1", "2"]


def test_a_table_that_begins_in_the_lake_is_not_answered_from_its_log_alone(sql, monkeypatch):
    sql(
        "CREATE TABLE hist (id INT, day STRING); INSERT INTO hist VALUES (1, 'a'), (2, 'b');"
        "CREATE TABLE ph (id INT, day STRING) PARTITIONED BY (day); INSERT INTO ph VALUES (1, 'a'), (2, 'b')"
    )
    queries = [
        "SELECT * FROM {} LIMIT 1", "SELECT id FROM {} WHERE day = 'a' LIMIT 1", "SELECT id FROM {} WHERE day = 'a'",
        "SELECT count(*) FROM {}", "SELECT count(*) FROM {} WHERE day = 'a'", "SELECT max(id), count(*) FROM {}",
        "SELECT count(*) FROM {} WHERE id > 1", "SELECT * FROM {}", "SELECT id FROM {} WHERE id = 2",
    ]  # fmt: skip
    short = [text for text in queries if sql.ways(text.format("ph"))[-1][1] != "DuckDB"]
    assert len(short) > 5, "or nothing is seen here"
    monkeypatch.setattr(Table, "reads_lake", lambda table: True)
    monkeypatch.setattr(Step, "shown", lambda step: (step,))  # there is no lake whose half could be described
    for text in queries:
        for table in ("hist", "ph"):
            assert sql.ways(text.format(table))[-1][1] == "DuckDB", text


def test_moments_with_nanoseconds_are_compared_and_computed_with(sql):
    sql(
        "CREATE TABLE ts (id INT, t TIMESTAMP(9), z TIMESTAMP_LTZ(9), u TIMESTAMP_LTZ(6), c TIME(9),"
        " PRIMARY KEY (id) NOT ENFORCED);"
        "INSERT INTO ts VALUES (1, '2024-01-02 03:04:05.123456789', '2024-01-02 03:04:05.123456789Z',"
        " '2024-01-02 03:04:05.123456Z', '12:00:00.123456789'), (2, NULL, NULL, NULL, NULL),"
        "(3, '2262-04-11 23:47:16.854775807', '2262-04-11 23:47:16.854775807Z', '2024-01-02 00:00:00Z', '00:00:00')"
    )
    for condition, ids in {
        "t < TIMESTAMP '9999-12-31'": [1, 3],
        "t > DATE '1500-01-01'": [1, 3],
        "NOT t = '10000-01-01'": [1, 3],
        "NOT '1600-01-01' < t": [],
        "t NOT BETWEEN '1500-01-01' AND TIMESTAMP '2025-01-01'": [3],
        "t IN ('1500-01-01', TIMESTAMP '2024-01-02 03:04:05.123456789')": [1],
        "t NOT IN ('1500-01-01')": [1, 3],
        "t >= '2262-04-11 23:47:16.854775807'": [3],
        "(t < TIMESTAMP '9999-12-31') IS NULL": [2],
        "z < TIMESTAMPTZ '2025-01-01 00:00:00+02:00'": [1],
        "z <= now()": [1],
        "now() >= ts.z": [1],
        "z > u": [1, 3],
        "z BETWEEN TIMESTAMPTZ '1500-01-01 00:00:00Z' AND TIMESTAMPTZ '9999-01-01 00:00:00Z'": [1, 3],
        "z > (SELECT max(u) FROM ts)": [1, 3],
        "year(z) = 2024": [1],
        "date_trunc('day', z) = '2024-01-02 00:00:00Z'": [1],
        "z + INTERVAL 1 DAY > now()": [3],
        "c > TIME '12:00:00.123456788'": [1],
        "c BETWEEN TIME '12:00:00' AND TIME '13:00:00'": [1],
        "hour(c) = 12": [1],
    }.items():
        for text in (condition, f"{condition} AND id + 0 > 0"):
            assert [row["id"] for row in sql(f"SELECT id FROM ts WHERE {text} ORDER BY id")] == ids, text
    assert sql("SELECT year(max(z)) AS y, max(z) < now() AS m FROM ts WHERE id < 3") == [
        {"y": 2024, "m": True}
    ]
    sql("INSERT INTO ts (id, z, c) VALUES (4, '1969-12-31 23:59:59.999999999Z', '23:59:59.999999999')")
    cut = sql("SELECT year(z) AS y, date_trunc('year', z) < z AS d, hour(c) AS h FROM ts WHERE id = 4")
    assert cut == [{"y": 1969, "d": True, "h": 23}]
    assert sql("WITH x AS (SELECT z AS w FROM ts WHERE id = 1) SELECT year(w), w < now() FROM x") == [
        {"year(w)": 2024, "w < now()": True}
    ]
    names = "FROM ts AS a(i, p, q) WHERE q BETWEEN '1500-01-01'::TIMESTAMP AND now() AND q < TIMESTAMPTZ '2100-01-01'"
    assert sql(f"SELECT i, year(a.q) AS y {names} ORDER BY i") == [{"i": 1, "y": 2024}, {"i": 4, "y": 1969}]
    with pytest.raises(SqlError, match="there is no column 'nosuch'"):
        sql("SELECT nosuch FROM ts WHERE z < now()")


def test_a_lakes_rows_are_compared_and_computed_with_by_the_types_that_are_expected():
    """The schema of a lake's rows is known only after reading, the types of the table before."""
    at = pa.schema([("z", pa.timestamp("ns", "UTC"))])
    rows = pa.table({"z": pa.array([-1, 10**18, None], pa.int64()).cast(at.field(0).type)})
    text = "SELECT year(z) AS y FROM t WHERE z < TIMESTAMPTZ '9999-01-01 00:00:00Z' ORDER BY 1"
    source = Source(Step("db.t", "lake"), None, lambda: rows, expected=at)
    answer = Engine(analyze(text, 0, len(text), Names("db")), {"db.t": source}).reader().read_all()
    assert answer.column("y").to_pylist() == [1969, 2001]


def test_names_that_differ_only_in_case_are_refused_where_duckdb_reads_them(sql, tmp_path):
    sql('CREATE TABLE t (k INT, "A" STRING, "a" STRING, PRIMARY KEY (k) NOT ENFORCED)')
    sql("INSERT INTO t VALUES (1, 'upper', 'lower'), (2, 'x', 'y')")
    row = [{"k": 1, "A": "upper", "a": "lower"}]
    assert sql("SELECT * FROM t WHERE k = 1") == row
    assert sql("SELECT a FROM t WHERE k = 1") == [{"a": "lower"}]
    assert sql("SELECT k FROM t WHERE k > 1 ORDER BY k") == [{"k": 2}]
    for text in (
        "SELECT * FROM t ORDER BY k", "SELECT k FROM t WHERE a = 'lower'", 'SELECT max("A") FROM t',
        "UPDATE t SET a = a || '!' WHERE k > 0", "DELETE FROM t WHERE a = 'lower'",
        "SELECT count(*) FROM t WHERE a < 'z'", "SELECT a FROM t EMIT CHANGES", "SUMMARIZE t",
        f"COPY t TO '{tmp_path}/out.csv'",
    ):  # fmt: skip
        with pytest.raises(SqlError, match="columns 'A' and 'a', which DuckDB does not tell apart"):
            sql(text)
    assert sql("SELECT * FROM t WHERE k = 1") == row
    (tmp_path / "in.csv").write_text("k,a,A\n1,new,other\n")
    sql(f"COPY t FROM '{tmp_path}/in.csv'")
    assert sql("SELECT * FROM t WHERE k = 1") == [{"k": 1, "A": "other", "a": "new"}]


@pytest.mark.parametrize("name", ["schemata", "tables", "columns", "key_column_usage"])
def test_names_that_are_dropped_meanwhile_are_left_out(sql, connection, name, monkeypatch):
    sql("CREATE TABLE t (k INT, PRIMARY KEY (k) NOT ENFORCED)")
    admin = connection.admin
    databases = admin.list_databases()
    monkeypatch.setattr(admin, "list_databases", lambda: [*databases, "gone"])
    monkeypatch.setattr(admin, "list_tables", lambda database, of=admin.list_tables: [*of(database), "gone"])
    key = "schema_name" if name == "schemata" else "table_schema"
    rows = sql(f"SELECT * FROM information_schema.{name} WHERE {key} IN ('{sql.database}', 'gone')")
    assert [each[key] for each in rows] == [sql.database]


def test_a_table_with_an_unreadable_definition_hides_no_other_table(sql, connection, monkeypatch):
    sql("CREATE TABLE t (k INT, PRIMARY KEY (k) NOT ENFORCED); CREATE TABLE u (k INT)")
    admin, bad = connection.admin, f"{sql.database}.t"

    def describe(path, of=admin.describe_table):
        if str(path) == bad:
            raise TableError(TableErrorCode.INVALID_TABLE, "cannot be read")
        return of(path)

    monkeypatch.setattr(admin, "describe_table", describe)
    where = f"WHERE table_schema = '{sql.database}'"
    assert sql(f"SELECT table_name AS n, comment AS c FROM information_schema.tables {where} ORDER BY n") == [
        {"n": "t", "c": "cannot be read"},
        {"n": "u", "c": None},
    ]
    assert sql(f"SELECT table_name AS n FROM information_schema.columns {where}") == [{"n": "u"}]
