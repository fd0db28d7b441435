"""Spark writes tables: kinds of writes, refusals, and R3.5, each row exactly once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.tablelayer.client import Connection, DataError, TableError
from headrace.tablelayer.model.types.column_types import BIGINT, INT, STRING
from headrace.tablelayer.spark.options import WriteOptions
from headrace.tablelayer.spark.sink import plan_write
from headrace.tablelayer.tests.spark.spark_tables import Server, create, finish, load, sink, stream

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def save(frame: Any, address: str, path: str, **options: Any) -> None:
    writer = frame.write.format("headrace").option("bootstrap.servers", address).option("table", path)
    for name, value in options.items():
        writer = writer.option(name.replace("_", "."), value)
    writer.mode("append").save()


def rows_of(client: Connection, path: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in client.table(path).to_arrow().to_pylist())


def test_every_kind_of_write(spark: Any, address: str, client: Connection) -> None:
    log = create(client, [("n", INT), ("s", STRING)])
    save(spark.range(100).selectExpr("id AS n"), address, log)
    assert rows_of(client, log) == [(n, None) for n in range(100)]
    path = create(client, [("k", BIGINT), ("a", STRING), ("b", INT)], ("k",))
    save(spark.range(10).selectExpr("id AS k", "'x' AS a", "cast(id AS int) AS b"), address, path)
    save(spark.range(3).selectExpr("id AS k", "'y' AS a"), address, path, columns="k,a")
    save(spark.range(8, 10).selectExpr("id AS k", "'ignored' AS other"), address, path, write_mode="delete")
    kinds = spark.createDataFrame(
        [(0, None, None, "-D"), (5, "z", 50, "+U"), (6, "q", 1, "-U"), (11, "n", 11, "+I")],
        "k bigint, a string, b int, kind string",
    )
    save(kinds, address, path, row_kind_column="kind")
    expected = {k: ("y" if k < 3 else "x", k) for k in range(1, 8)} | {5: ("z", 50), 11: ("n", 11)}
    assert rows_of(client, path) == sorted((k, *v) for k, v in expected.items())
    save(
        spark.range(7, 8).selectExpr("id AS k", "'part' AS a"), address, path
    )  # as an INSERT of these columns
    save(spark.range(4, 5).selectExpr("id AS k", "'part' AS a"), address, path, write_mode="partial")
    save(spark.range(3, 4).selectExpr("id AS k", "'whole' AS a"), address, path, write_mode="upsert")
    expected |= {7: ("part", 7), 4: ("part", 4), 3: ("whole", None)}
    assert rows_of(client, path) == sorted((k, *v) for k, v in expected.items())
    spark.sql(
        f"CREATE TEMPORARY VIEW target USING headrace OPTIONS (`bootstrap.servers` '{address}', table '{log}')"
    )
    spark.sql("INSERT INTO target VALUES (1000, 'sql')")
    assert (1000, "sql") in rows_of(client, log)
    for _ in range(2):  # inside foreachBatch, after a restart
        save(spark.range(1).selectExpr("id AS n"), address, log, txnAppId="app", txnVersion=7)
    assert len(rows_of(client, log)) == 102
    save(spark.range(5).selectExpr("id AS n"), address, log, delivery="at-least-once")
    assert len(rows_of(client, log)) == 107


def test_a_frame_that_does_not_fit_is_refused_before_a_task_starts(
    spark: Any, address: str, client: Connection
) -> None:
    path = create(client, [("k", BIGINT), ("a", STRING)], ("k",))
    log = create(client, [("n", INT)])

    def plan(frame: Any, table: str = path, overwrite: bool = False, **options: str) -> Any:
        given = {"bootstrap.servers": address, "table": table, **options}
        return plan_write(WriteOptions.parse(given), frame.schema, overwrite)

    for frame, options, said in (
        (spark.range(1).selectExpr("'x' AS a"), {}, "column 'k' is missing"),
        (spark.range(1).selectExpr("id AS k", "1 AS zz"), {}, "unknown column 'zz'"),
        (spark.range(1).selectExpr("id AS k", "1.5 AS a"), {}, "column 'a' is STRING"),
        (spark.range(1).selectExpr("'x' AS k", "'y' AS a"), {}, "column 'k' is BIGINT"),
        (spark.range(1).selectExpr("id AS k", "array(1) AS a"), {}, "column 'a' is STRING"),
        (spark.range(1).selectExpr("id AS x"), {"write.mode": "delete"}, "key column 'k' is missing"),
        (spark.range(1).selectExpr("id AS k"), {"row.kind.column": "kind"}, "row kind column 'kind'"),
        (spark.range(1).selectExpr("id AS k"), {"write.mode": "append"}, "has a primary key"),
        (spark.range(1).selectExpr("id AS k"), {"columns": "k,zz"}, "zz"),
        (
            spark.range(1).selectExpr("id AS k", "'+I' AS kind"),
            {"row.kind.column": "kind"},
            "no column 'a': set write.mode to 'upsert'",
        ),
    ):
        with pytest.raises((DataError, TableError, ValueError), match=said):
            plan(frame, **options)
    with pytest.raises(TableError, match="is a log table"):
        plan(spark.range(1), log, **{"write.mode": "upsert"})
    with pytest.raises(ValueError, match="mode 'overwrite'"):
        plan(spark.range(1).selectExpr("id AS k"), overwrite=True)
    with pytest.raises(Exception, match=r"NOT NULL, but row \d+ has no value"):
        save(spark.sql("SELECT cast(NULL AS bigint) AS k"), address, path)
    assert rows_of(client, path) == []


def shuffled(batches: Any) -> Any:
    """Rows in another order and other batches at each run."""
    rows = pa.Table.from_batches(list(batches))
    order = list(range(rows.num_rows))
    random.shuffle(order)
    cut = random.randrange(1, 1 + max(1, rows.num_rows))
    yield from rows.take(pa.array(order)).to_batches(max_chunksize=cut)


def test_r3_5_a_stream_writes_each_row_once_through_repetitions(
    spark: Any, server: Server, address: str, client: Connection, tmp_path: Path
) -> None:
    """Rows are shuffled by every run of a task, the server is killed, and the driver repeats committed batches."""
    source = create(client, [("n", INT)], buckets=1)
    target = create(client, [("n", INT)], buckets=3)

    def run(*, kill: bool = False) -> None:
        frame = stream(spark, address, source, maxOffsetsPerTrigger=200, minPartitions=3)
        query = sink(frame.mapInArrow(shuffled, "n int"), address, target, tmp_path / "c").start()
        try:
            if kill:
                server.kill()
                server.start()
            query.processAllAvailable()
        finally:
            query.stop()

    client.table(source).append([{"n": n} for n in range(300)])
    run()
    # A driver that dies between the commit in the table and the one in its checkpoint repeats the batch.
    commits = sorted((tmp_path / "c" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    client.table(source).append([{"n": n} for n in range(300, 500)])
    run(kill=True)
    assert [row[0] for row in rows_of(client, target)] == list(range(500))


@pytest.mark.soak
def test_a_changelog_is_copied_as_it_is(spark: Any, address: str, client: Connection, tmp_path: Path) -> None:
    """State, upserts and deletes of one table into another."""
    columns: list[Any] = [("k", BIGINT), ("v", STRING)]
    source, target = create(client, columns, ("k",)), create(client, columns, ("k",))
    table = client.table(source)

    def run() -> None:
        frame = stream(spark, address, source, mode="changelog", columns="k,v,_change_type")
        query = sink(frame, address, target, tmp_path / "c", row_kind_column="_change_type")
        finish(query.trigger(availableNow=True).start())

    table.upsert([{"k": n, "v": "a"} for n in range(100)])
    run()
    table.upsert([{"k": n, "v": "b"} for n in range(50, 120)])
    table.delete([{"k": n} for n in range(10)])
    run()
    assert rows_of(client, target) == rows_of(client, source)
    assert load(spark, address, target).count() == 110
