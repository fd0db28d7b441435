"""Spark SQL over tables, through the catalog `headrace`."""

from __future__ import annotations

import datetime
import decimal
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, StreamingQueryException
from pyspark.sql import functions

from headrace.tablelayer.client import Connection
from headrace.tablelayer.spark.sessions import activate
from headrace.tablelayer.tests.spark.spark_tables import finish

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
_numbers = itertools.count()


class Sql:
    """A session whose catalog is the server, and a database of its own."""

    def __init__(self, spark: Any, client: Connection) -> None:
        self.spark, self.client = spark, client
        self.database = f"sql{next(_numbers)}"
        self("CREATE NAMESPACE headrace.{db} COMMENT 'of a test'")

    def __call__(self, text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.sql(text.replace("{db}", self.database)).collect()]

    def plan(self, text: str) -> str:
        frame = self.spark.sql(text.replace("{db}", self.database))
        return str(frame._jdf.queryExecution().executedPlan().toString())

    def table(self, name: str) -> Any:
        return self.client.table(f"{self.database}.{name}")

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        """Return the rows as the table client reads them."""
        return sorted(tuple(row.values()) for row in self.table(name).to_arrow().to_pylist())


@pytest.fixture
def sql(spark: Any, address: str, client: Connection) -> Iterator[Sql]:
    session = spark.newSession()
    session.conf.set("spark.headrace.bootstrap.servers", address)
    made = Sql(session, client)
    yield made
    made("DROP NAMESPACE headrace.{db} CASCADE")
    activate(spark)


@pytest.mark.soak
def test_a_table_is_made_filled_changed_and_dropped(sql: Sql) -> None:
    sql(
        "CREATE TABLE headrace.{db}.orders (id BIGINT, customer STRING COMMENT 'who', price DECIMAL(9, 2),"
        " state STRING DEFAULT 'new', PRIMARY KEY (id)) COMMENT 'bought' TBLPROPERTIES ('bucket.num' = '2')"
    )
    sql(
        "CREATE TABLE headrace.{db}.customers (name STRING NOT NULL, country STRING)"
        " TBLPROPERTIES ('primary-key' = 'name')"
    )
    assert (sql.database,) in sql("SHOW NAMESPACES IN headrace")
    assert [row[1] for row in sql("SHOW TABLES IN headrace.{db}")] == ["customers", "orders"]
    described = {row[0]: row[1:] for row in sql("DESCRIBE TABLE EXTENDED headrace.{db}.orders")}
    assert described["customer"] == ("string", "who")
    assert "primary-key=id" in described["Table Properties"][0]
    definition = sql.client.admin.describe_table(f"{sql.database}.orders")
    assert (definition.bucket_count, definition.comment) == (2, "bought")
    sql("INSERT INTO headrace.{db}.customers VALUES ('Ann', 'IS'), ('Bob', 'PT'), ('Cy', NULL)")
    sql(
        "INSERT INTO headrace.{db}.orders (id, customer, price, state)"
        " VALUES (1, 'Ann', 9.99, DEFAULT), (2, 'Bob', 5, DEFAULT), (3, 'Cy', 1, DEFAULT)"
    )
    joined = sql(
        "SELECT o.id, c.country, o.state FROM headrace.{db}.orders o JOIN headrace.{db}.customers c"
        " ON o.customer = c.name WHERE o.price > 1 ORDER BY o.id"
    )
    assert joined == [(1, "IS", "new"), (2, "PT", "new")]
    sql("UPDATE headrace.{db}.orders SET state = 'paid', price = price + 1 WHERE customer LIKE 'A%'")
    sql(
        "DELETE FROM headrace.{db}.orders WHERE id IN (SELECT id FROM headrace.{db}.orders WHERE customer = 'Cy')"
    )
    paid, five = decimal.Decimal("10.99"), decimal.Decimal("5.00")
    assert sql.rows("orders") == [(1, "Ann", paid, "paid"), (2, "Bob", five, "new")]
    sql(
        "MERGE INTO headrace.{db}.orders t USING (SELECT * FROM VALUES (1, 'gone'), (2, 'sent'), (4, 'new')"
        " AS v(id, state)) s ON t.id = s.id WHEN MATCHED AND s.state = 'gone' THEN DELETE"
        " WHEN MATCHED THEN UPDATE SET t.state = s.state"
        " WHEN NOT MATCHED THEN INSERT (id, customer, state) VALUES (s.id, 'Dan', s.state)"
    )
    assert sql.rows("orders") == [(2, "Bob", five, "sent"), (4, "Dan", None, "new")]
    sql("UPDATE headrace.{db}.orders SET id = 5 WHERE id = 4")
    assert [row[0] for row in sql.rows("orders")] == [2, 5]
    sql("CREATE TABLE headrace.{db}.named (id BIGINT, name STRING NOT NULL, note STRING, PRIMARY KEY (id))")
    sql("INSERT INTO headrace.{db}.named VALUES (1, 'a', 'x'), (2, 'b', 'y')")
    sql("UPDATE headrace.{db}.named SET name = 'c' WHERE id = 1")
    assert sql.rows("named") == [(1, "c", "x"), (2, "b", "y")]
    sql("ALTER TABLE headrace.{db}.orders ADD COLUMNS (note STRING COMMENT 'free' AFTER id, n INT DEFAULT 7)")
    sql("ALTER TABLE headrace.{db}.orders RENAME COLUMN customer TO buyer")
    sql("ALTER TABLE headrace.{db}.orders DROP COLUMN price")
    sql("ALTER TABLE headrace.{db}.orders SET TBLPROPERTIES ('table.log.ttl' = '7 d', 'comment' = 'sold')")
    assert sql("SELECT * FROM headrace.{db}.orders WHERE id = 2") == [(2, None, "Bob", "sent", 7)]
    altered = sql.client.admin.describe_table(f"{sql.database}.orders")
    assert (altered.schema.names, altered.comment) == (["id", "note", "buyer", "state", "n"], "sold")
    kinds = [row[0] for row in sql("SELECT _change_type FROM headrace.{db}.`orders$changelog` WHERE id = 4")]
    assert kinds == ["+I", "-D"]
    sql("CREATE TABLE headrace.{db}.kept AS SELECT id, buyer FROM headrace.{db}.orders")
    assert sql.rows("kept") == [(2, "Bob"), (5, "Dan")]
    sql("DROP TABLE headrace.{db}.kept")
    assert not sql.client.admin.table_exists(f"{sql.database}.kept")


def test_an_insert_leaves_unnamed_columns_unchanged(sql: Sql) -> None:
    columns = "id BIGINT, a STRING, b STRING, c INT DEFAULT 7"
    sql(f"CREATE TABLE headrace.{{db}}.kept ({columns}, PRIMARY KEY (id))")
    sql(f"CREATE TABLE headrace.{{db}}.log ({columns})")
    sql(
        f"CREATE TABLE headrace.{{db}}.first ({columns}, PRIMARY KEY (id))"
        " TBLPROPERTIES ('table.merge-engine' = 'first_row')"
    )
    row = (1, "x", "y", 3)
    sql("INSERT INTO headrace.{db}.kept VALUES (1, 'x', 'y', 3)")
    name = f"headrace.{sql.database}.kept"

    def some(text: str) -> Any:
        return sql.spark.createDataFrame([(1, text)], "id long, a string")

    for number, write in enumerate(
        (
            lambda text: sql(f"INSERT INTO headrace.{{db}}.kept (id, a) VALUES (1, '{text}')"),
            lambda text: sql(
                f"INSERT INTO headrace.{{db}}.kept (a, id) SELECT '{text}', id FROM headrace.{{db}}.kept"
            ),
            lambda text: sql(f"INSERT INTO headrace.{{db}}.kept BY NAME SELECT 1L AS id, '{text}' AS a"),
            lambda text: sql(
                f"FROM (SELECT 1L AS i, '{text}' AS t) INSERT INTO headrace.{{db}}.kept (id, a) SELECT i, t"
                " INSERT INTO headrace.{db}.log (id) SELECT i WHERE t = ''"
            ),
            lambda text: sql(
                f"INSERT INTO headrace.{{db}}.kept WITH (`write.mode` = 'partial') (id, a) VALUES (1, '{text}')"
            ),
            lambda text: some(text).writeTo(name).append(),
            lambda text: some(text).writeTo(name).option("write.mode", "partial").append(),
            lambda text: some(text).write.mode("append").saveAsTable(name),
        )
    ):
        write(f"a{number}")
        assert sql.rows("kept") == [(1, f"a{number}", "y", 3)]
    sql("INSERT INTO headrace.{db}.kept (id, b) VALUES (8, 'new'), (1, NULL)")
    assert sql.rows("kept") == [(1, "a7", None, 3), (8, None, "new", 7)]
    some("whole").writeTo(name).option("write.mode", "upsert").append()
    assert sql.rows("kept") == [(1, "whole", None, 7), (8, None, "new", 7)]
    with pytest.raises(Exception, match="option 'columns' is for df"):
        some("z").writeTo(name).option("columns", "a").append()
    sql("DELETE FROM headrace.{db}.kept WHERE id = 8")
    sql("INSERT INTO headrace.{db}.kept VALUES (1, 'x', 'y', 3)")
    sql("INSERT INTO headrace.{db}.kept (c, b, id, a) VALUES (DEFAULT, NULL, 2, 'a2'), (1, 'b3', 3, NULL)")
    sql("INSERT INTO headrace.{db}.kept BY NAME SELECT 4L AS id, CAST(NULL AS STRING) AS a, 'b' AS b, 1 AS c")
    whole = some("z").selectExpr(
        "5L AS id", "CAST(NULL AS STRING) AS a", "CAST(NULL AS STRING) AS b", "1 AS c"
    )
    whole.writeTo(name).append()
    sql(
        "MERGE INTO headrace.{db}.kept t USING (SELECT 6L AS id) s ON t.id = s.id"
        " WHEN NOT MATCHED THEN INSERT (id, a) VALUES (s.id, 'm')"
    )
    assert sql.rows("kept") == [
        row, (2, "a2", None, 7), (3, None, "b3", 1), (4, None, "b", 1), (5, None, None, 1), (6, "m", None, 7)
    ]  # fmt: skip
    for other in ("log", "first"):
        sql(f"INSERT INTO headrace.{{db}}.{other} (id, a) VALUES (1, 'z')")
        assert sql.rows(other) == [(1, "z", None, 7)]
    assert not any(
        field.metadata for field in sql.spark.table(name).schema.fields if field.name in ("a", "b")
    )


def test_sql_of_every_day(sql: Sql) -> None:
    sql("CREATE TABLE headrace.{db}.t (id BIGINT, v STRING DEFAULT 'new', PRIMARY KEY (id))")
    sql("INSERT INTO headrace.{db}.t (v, id) SELECT 'new', id FROM range(6)")
    sql("DELETE FROM headrace.{db}.t WHERE id = 0")
    sql(
        "MERGE INTO headrace.{db}.t t USING (SELECT * FROM VALUES (1, 'gone'), (2, 'sent'), (9, 'new') AS v(id, v)) s"
        " ON t.id = s.id"
        " WHEN MATCHED AND s.v = 'gone' THEN DELETE WHEN MATCHED THEN UPDATE SET t.v = s.v"
        " WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v)"
    )
    assert sql.rows("t") == [(2, "sent"), (3, "new"), (4, "new"), (5, "new"), (9, "new")]
    sql("UPDATE headrace.{db}.t SET id = id + 1 WHERE id < 9")
    assert [row[0] for row in sql.rows("t")] == [3, 4, 5, 6, 9]
    sql("INSERT OVERWRITE headrace.{db}.t SELECT id, 'kept' FROM headrace.{db}.t WHERE id > 4")
    assert sql.rows("t") == [(5, "kept"), (6, "kept"), (9, "kept")]


def test_streams_by_names(sql: Sql, tmp_path: Path) -> None:
    sql("CREATE TABLE headrace.{db}.clicks (id BIGINT, page STRING) TBLPROPERTIES ('bucket.num' = '2')")
    sql("CREATE TABLE headrace.{db}.pages (page STRING, n BIGINT, PRIMARY KEY (page))")
    sql.table("clicks").append([{"id": n, "page": f"p{n % 3}"} for n in range(90)])

    def copied() -> list[int]:
        clicks = sql.spark.readStream.option("maxOffsetsPerTrigger", 40).table(
            f"headrace.{sql.database}.clicks"
        )
        writer = clicks.writeStream.option("checkpointLocation", str(tmp_path / "copy"))
        query = writer.trigger(availableNow=True).toTable(f"headrace.{sql.database}.copy")
        finish(query)
        return [progress["numInputRows"] for progress in query.recentProgress]

    assert copied() == [40, 40, 10], "a capped run reaches what was there, and makes the table"
    sql.table("clicks").append([{"id": n, "page": "p9"} for n in range(90, 100)])
    copied()
    assert sql.rows("copy") == [(n, "p9" if n >= 90 else f"p{n % 3}") for n in range(100)]
    counts = sql.spark.readStream.table(f"headrace.{sql.database}.copy").groupBy("page").count()
    writer = counts.withColumnRenamed("count", "n").writeStream.outputMode("update")
    writer = writer.option("checkpointLocation", str(tmp_path / "counts")).trigger(availableNow=True)
    finish(writer.toTable(f"headrace.{sql.database}.pages"))
    assert sql.rows("pages") == [("p0", 30), ("p1", 30), ("p2", 30), ("p9", 10)]


@pytest.mark.soak
def test_streams_of_changes_and_whole_answers(sql: Sql, tmp_path: Path) -> None:
    sql("CREATE TABLE headrace.{db}.k (id BIGINT, v STRING, PRIMARY KEY (id))")
    sql("CREATE TABLE headrace.{db}.copy (id BIGINT, v STRING, PRIMARY KEY (id))")
    sql("CREATE TABLE headrace.{db}.counts (v STRING, n BIGINT, PRIMARY KEY (v))")
    sql("INSERT INTO headrace.{db}.k SELECT id, 'a' FROM range(10)")
    names = {name: f"headrace.{sql.database}.{name}" for name in ("k", "`k$changelog`", "copy", "counts")}

    def follow() -> None:
        changes = sql.spark.readStream.option("mode", "upsert").table(names["`k$changelog`"])
        writer = changes.select("id", "v", "_change_type").writeStream.option(
            "row.kind.column", "_change_type"
        )
        writer = writer.option("checkpointLocation", str(tmp_path / "copy")).trigger(availableNow=True)
        finish(writer.toTable(names["copy"]))

    follow()
    sql("UPDATE headrace.{db}.k SET v = 'b' WHERE id > 5")
    sql("DELETE FROM headrace.{db}.k WHERE id = 0")
    follow()
    assert sql.rows("copy") == sql.rows("k") == [(n, "b" if n > 5 else "a") for n in range(1, 10)]
    for wanted in ([("a", 5), ("b", 4)], [("a", 5)]):
        counts = sql.spark.readStream.table(names["`k$changelog`"]).where("_change_type = '+I'")
        counts = counts.groupBy("v").count().withColumnRenamed("count", "n")
        writer = counts.writeStream.outputMode("complete").trigger(availableNow=True)
        finish(writer.option("checkpointLocation", str(tmp_path / wanted[-1][0])).toTable(names["counts"]))
        assert sql.rows("counts") == wanted
        sql("DELETE FROM headrace.{db}.k WHERE v = 'b'")
    for frame, said in (
        (sql.spark.readStream.table(names["k"]), "has to be a stream of changes"),
        (sql.spark.readStream.table(names["`k$changelog`"]), "unknown column '_change_type'"),
    ):
        with pytest.raises(StreamingQueryException, match=said):
            writer = frame.writeStream.option("checkpointLocation", str(tmp_path / said)).trigger(
                availableNow=True
            )
            finish(writer.toTable(names["copy"]))


def test_partitions_are_shown_added_and_dropped(sql: Sql) -> None:
    key = "day DATE NOT NULL, n SMALLINT NOT NULL, b BOOLEAN NOT NULL, s STRING NOT NULL"
    sql(
        f"CREATE TABLE headrace.{{db}}.p ({key}, id INT NOT NULL, PRIMARY KEY (day, n, b, s, id))"
        " PARTITIONED BY (day, n, b, s)"
    )
    table, rest = "headrace.{db}.p", "n = -3, b = true, s = 'x-y'"
    sql(f"INSERT INTO {table} VALUES (DATE '2024-01-01', 7, false, '007', 1)")
    sql(f"INSERT INTO {table} VALUES (DATE '2024-01-02', 7, true, 'b', 2)")
    sql(f"ALTER TABLE {table} ADD PARTITION (day = DATE '0987-03-02', {rest})")
    shown = [
        ("day=0987-03-02/n=-3/b=true/s=x-y",),
        ("day=2024-01-01/n=7/b=false/s=007",),
        ("day=2024-01-02/n=7/b=true/s=b",),
    ]
    assert sql(f"SHOW PARTITIONS {table}") == shown
    assert sql(f"SHOW PARTITIONS {table} PARTITION (b = true, N = 7)") == shown[2:]
    assert sql(f"SHOW PARTITIONS {table} PARTITION (s = '7')") == []
    sql(f"ALTER TABLE {table} ADD IF NOT EXISTS PARTITION (day = '0987-03-02', {rest})")
    sql(f"ALTER TABLE {table} DROP PARTITION (day = '2024-01-01', n = 7, b = false, s = '007')")
    sql(f"ALTER TABLE {table} DROP IF EXISTS PARTITION (day = '2024-01-01', n = 7, b = false, s = '007')")
    assert sql(f"SHOW PARTITIONS {table}") == [shown[0], shown[2]]
    assert sql(f"SELECT id FROM {table}") == [(2,)]
    sql("CREATE TABLE headrace.{db}.plain (id INT)")
    for text, said in (
        ("SHOW PARTITIONS headrace.{db}.plain", "is not partitioned"),
        (f"ALTER TABLE {table} ADD PARTITION (day = '0987-03-02', {rest})", "PARTITIONS_ALREADY_EXIST"),
        (f"ALTER TABLE {table} DROP PARTITION (day = '1987-03-02', {rest})", "PARTITIONS_NOT_FOUND"),
        (f"ALTER TABLE {table} ADD PARTITION (day = '2024-01-01')", "must match the partition spec"),
        (f"SHOW PARTITIONS {table} PARTITION (s = 'a.b')", "'a.b' cannot name a partition"),
        (f"ALTER TABLE {table} ADD PARTITION (day = '1987-03-02', {rest}) LOCATION 'x'", "leave LOCATION"),
        (f"TRUNCATE TABLE {table} PARTITION (day = '0987-03-02', {rest})", "truncate is not supported"),
    ):
        with pytest.raises(PySparkException, match=said):
            sql(text)


@pytest.mark.soak
def test_a_table_is_overwritten(sql: Sql) -> None:
    sql(
        "CREATE TABLE headrace.{db}.p (day STRING NOT NULL, id BIGINT NOT NULL, v STRING, PRIMARY KEY (day, id))"
        " PARTITIONED BY (day)"
    )
    sql("INSERT INTO headrace.{db}.p VALUES ('d1', 1, 'a'), ('d1', 2, 'b'), ('d2', 1, 'c'), ('d3', 7, 'z')")
    sql("INSERT OVERWRITE headrace.{db}.p PARTITION (day = 'd1') VALUES (2, 'B'), (5, 'C')")
    rows = [("d1", 2, "B"), ("d1", 5, "C"), ("d2", 1, "c"), ("d3", 7, "z")]
    assert sql.rows("p") == rows
    sql.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    sql("INSERT OVERWRITE headrace.{db}.p VALUES ('d2', 2, 'D'), ('d4', 2, 'E')")
    rows = [*rows[:2], ("d2", 2, "D"), rows[3], ("d4", 2, "E")]
    assert sql.rows("p") == sorted(rows)
    sql.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "static")
    ((text,),) = sql("SHOW CREATE TABLE headrace.{db}.p")
    sql(text.replace(f"{sql.database}.p", f"{sql.database}.again", 1))
    first, second = (sql.client.admin.describe_table(f"{sql.database}.{name}") for name in ("p", "again"))
    assert (first.schema, first.partition_keys) == (second.schema, second.partition_keys)
    sql("INSERT OVERWRITE headrace.{db}.p VALUES ('d9', 1, 'only')")
    assert sql.rows("p") == [("d9", 1, "only")]
    frame = sql.spark.createDataFrame([("d9", 2, "more")], "day string, id bigint, v string")
    frame.writeTo(f"headrace.{sql.database}.p").overwrite(functions.col("id") > 5)
    assert sql.rows("p") == [("d9", 1, "only"), ("d9", 2, "more")]
    frame.write.mode("overwrite").saveAsTable(f"headrace.{sql.database}.again")
    assert sql.rows("again") == [("d9", 2, "more")]
    sql("CREATE VIEW seen AS SELECT day, count(*) AS n FROM headrace.{db}.p GROUP BY day")
    assert sql("SELECT * FROM seen") == [("d9", 2)]
    sql("DROP VIEW seen")
    assert sql("SELECT id FROM headrace.{db}.again VERSION AS OF '{\"0\": 0}'") == []
    sql("TRUNCATE TABLE headrace.{db}.p")
    assert sql.rows("p") == []


def test_only_requested_columns_and_rows_leave_the_server(sql: Sql) -> None:
    sql("CREATE TABLE headrace.{db}.wide (id BIGINT NOT NULL, day DATE, v DOUBLE, text STRING)")
    day = datetime.date(2024, 9, 19)
    rows = [{"id": n, "day": day + datetime.timedelta(n), "v": n / 2, "text": "x" * n} for n in range(40)]
    sql.table("wide").append(rows)
    plan = sql.plan(
        "SELECT v FROM headrace.{db}.wide WHERE id >= 30 AND day < DATE '2024-10-22' AND length(text) > 3"
    )
    scan = next(line for line in plan.splitlines() if "BatchScan" in line)
    assert "[id, day" not in scan.partition("filters")[0]
    assert "id >= 30" in scan
    assert "length" not in scan.partition("filters")[2]
    assert "ColumnarToRow" in plan
    assert sql("SELECT v FROM headrace.{db}.wide WHERE id >= 30 AND day < DATE '2024-10-22' ORDER BY v") == [
        (n / 2,) for n in range(30, 33)
    ]
    frame = sql.spark.table(f"headrace.{sql.database}.wide")
    twice = frame.where("id = 3").select("id").union(frame.where("id = 5").select("id"))
    assert sorted(row.id for row in twice.collect()) == [3, 5], "each use of a frame has its own conditions"
    assert frame.alias("a").join(frame.alias("b"), "id").where("a.v < 2 AND b.v > 1").count() == 1
    assert sql("SELECT count(*) FROM headrace.{db}.wide") == [(40,)]
    assert len(sql("SELECT id FROM headrace.{db}.wide LIMIT 3")) == 3
    assert "limit 3" in sql.plan("SELECT id FROM headrace.{db}.wide LIMIT 3")
    assert sql("SELECT count(*) FROM headrace.{db}.wide WHERE id < 0") == [(0,)]


@pytest.mark.soak
def test_every_type_goes_both_ways(sql: Sql) -> None:
    sql(
        "CREATE TABLE headrace.{db}.types (k INT NOT NULL, a BOOLEAN, b TINYINT, c SMALLINT, d BIGINT, e FLOAT,"
        " f DOUBLE, g DECIMAL(38, 9), h STRING, i BINARY, j DATE, l TIMESTAMP, m TIMESTAMP_NTZ, n ARRAY<INT>,"
        " o MAP<STRING, BIGINT>, p STRUCT<x: INT, y: ARRAY<STRING>>) TBLPROPERTIES ('primary-key' = 'k')"
    )
    values = (
        "(1, true, 1Y, 2S, 3L, 1.5F, 2.5D, 12345678901234567890.123456789, 'ä', X'00FF', DATE '2024-02-29',"
        " TIMESTAMP '2024-02-29 12:00:00.123456Z', TIMESTAMP_NTZ '2024-02-29 12:00:00.123456', array(1, NULL),"
        " map('a', 1L), named_struct('x', 1, 'y', array('b', NULL)))"
    )
    sql(f"INSERT INTO headrace.{{db}}.types VALUES {values}")
    sql(f"INSERT INTO headrace.{{db}}.types VALUES (2{', NULL' * 15})")
    (row,) = sql("SELECT a, b, c, d, e, f, g, h, i, j, m, n, p.y FROM headrace.{db}.types WHERE k = 1")
    assert row == (
        True, 1, 2, 3, 1.5, 2.5, decimal.Decimal("12345678901234567890.123456789"), "ä", bytearray(b"\x00\xff"),
        datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 12, 0, 0, 123456), [1, None], ["b", None],
    )  # fmt: skip
    assert sql(
        "SELECT o['a'], l = TIMESTAMP '2024-02-29 12:00:00.123456Z' FROM headrace.{db}.types WHERE k = 1"
    ) == [(1, True)]
    (missing,) = sql("SELECT * FROM headrace.{db}.types WHERE k = 2")
    assert missing == (2, *[None] * 15)


@pytest.mark.soak
def test_a_write_is_there_as_a_whole_or_not_at_all(sql: Sql) -> None:
    sql("CREATE TABLE headrace.{db}.log (id BIGINT, v STRING)")
    with pytest.raises(Exception, match="the 5th row"):
        sql(
            "INSERT INTO headrace.{db}.log SELECT id, IF(id = 5, raise_error('the 5th row'), 'x')"
            " FROM range(0, 10, 1, 3)"
        )
    assert sql("SELECT count(*) FROM headrace.{db}.log") == [(0,)]
    sql("INSERT INTO headrace.{db}.log SELECT id, 'x' FROM range(0, 50000, 1, 3)")
    assert sql("SELECT count(*), count(DISTINCT id) FROM headrace.{db}.log") == [(50000, 50000)]
    ((moment,),) = sql("SELECT CAST(current_timestamp() AS STRING)")
    sql("INSERT INTO headrace.{db}.log VALUES (-1, 'later')")
    before = sql(f"SELECT count(*) FROM headrace.{{db}}.log TIMESTAMP AS OF '{moment}'")
    assert before == [(50000,)]


@pytest.mark.soak
def test_an_unsupported_statement_names_the_reason(sql: Sql) -> None:
    sql("CREATE TABLE headrace.{db}.log (id BIGINT)")
    sql.table("log").append([{"id": 1}])
    sql(
        "CREATE TABLE headrace.{db}.sums (id BIGINT, n BIGINT, PRIMARY KEY (id))"
        " TBLPROPERTIES ('table.merge-engine' = 'aggregation', 'fields.n.agg' = 'sum')"
    )
    for text, said in (
        ("SELECT * FROM headrace.{db}.nobody", "TABLE_OR_VIEW_NOT_FOUND"),
        ("SHOW TABLES IN headrace.nobody", "SCHEMA_NOT_FOUND"),
        ("CREATE TABLE headrace.{db}.log (id BIGINT)", "already exists"),
        ("DELETE FROM headrace.{db}.log WHERE id = 1", "by primary key, but .*log has none"),
        ("CREATE TABLE headrace.{db}.x (v VARIANT)", "column 'v' is variant"),
        ("CREATE TABLE headrace.{db}.x (id BIGINT) USING csv", "leave USING out"),
        ("CREATE TABLE headrace.{db}.x (id BIGINT) TBLPROPERTIES ('bucket.nums' = '2')", "bucket.nums"),
        ("ALTER TABLE headrace.{db}.log RENAME TO headrace.{db}.x", "cannot be renamed"),
        ("INSERT OVERWRITE headrace.{db}.log VALUES (1)", "is a log table, whose rows cannot be replaced"),
        ("SELECT * FROM headrace.{db}.log VERSION AS OF 3", "a table's version is its offsets by bucket"),
        ("SELECT * FROM headrace.{db}.`log$changelog` VERSION AS OF '{}'", "has no earlier states"),
        ("UPDATE headrace.{db}.sums SET n = 1", "UPDATE: .*has the merge engine 'aggregation'"),
        ("INSERT OVERWRITE headrace.{db}.sums VALUES (1, 1)", "has the merge engine 'aggregation'"),
        ("ANALYZE TABLE headrace.{db}.log COMPUTE STATISTICS", "ANALYZE TABLE is not supported"),
        ("CREATE VIEW headrace.{db}.v AS SELECT 1", "does not support views"),
        ("DROP NAMESPACE headrace.{db}", "SCHEMA_NOT_EMPTY|not empty"),
    ):
        with pytest.raises(Exception, match=rf"(?s).*({said})"):
            sql(text)
    with pytest.raises(AnalysisException):
        sql("INSERT INTO headrace.{db}.`log$changelog` VALUES (1)")
