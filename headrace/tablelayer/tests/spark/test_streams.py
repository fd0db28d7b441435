"""A table as a Spark stream, against a real server: state and changes, admission, restarts, lost rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.spark import create_view, use
from headrace.spark import table as spark_table
from headrace.tablelayer.client import Connection
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.types.column_types import BIGINT, INT, STRING
from headrace.tablelayer.spark.options import ReadOptions
from headrace.tablelayer.spark.positions import Position
from headrace.tablelayer.spark.splits import Split
from headrace.tablelayer.spark.table_stream import HeadraceStreamReader
from headrace.tablelayer.tests.spark.spark_tables import create, load, read_available, stream

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def upserted(rows: list[Any]) -> dict[int, str]:
    """The table that an upsert stream gives."""
    state: dict[int, str] = {}
    for row in rows:
        if row._change_type == "-D":
            del state[row.k]
        else:
            state[row.k] = row.v
    return state


def test_a_pk_table_streams_its_state_and_then_every_change(
    spark: Any, address: str, client: Connection, tmp_path: Path
) -> None:
    path = create(client, [("k", BIGINT), ("v", STRING)], ("k",))
    table = client.table(path)
    table.upsert([{"k": n, "v": "old"} for n in range(50)])
    table.delete([{"k": 7}])

    def run() -> list[Any]:
        return read_available(stream(spark, address, path, mode="upsert"), tmp_path / "checkpoint")

    first = run()
    assert upserted(first) == {n: "old" for n in range(50) if n != 7}
    assert {(row._change_type, row._log_offset, row._commit_timestamp) for row in first} == {("+I", -1, None)}
    table.upsert([{"k": 1, "v": "new"}, {"k": 60, "v": "new"}])
    table.delete([{"k": 2}])
    second = run()
    assert sorted((row._change_type, row.k) for row in second) == [("+I", 60), ("+U", 1), ("-D", 2)]
    assert all(row._log_offset >= 0 and row._bucket in (0, 1) for row in second)


@pytest.mark.soak
def test_a_capped_stream_takes_the_allowed_rows_and_continues_after_a_restart(
    spark: Any, address: str, client: Connection, tmp_path: Path
) -> None:
    path = create(client, [("n", INT)])
    table = client.table(path)
    table.append([{"n": n} for n in range(250)])
    frame = stream(spark, address, path, maxOffsetsPerTrigger=100, minPartitions=4)
    seen: list[tuple[int, int, int]] = []

    def note(batch: Any, number: int) -> None:
        rows = [row.n for row in batch.collect()]
        seen.append((number, len(rows), batch.rdd.getNumPartitions()))
        found.extend(rows)

    found: list[int] = []

    def run(until: int) -> None:
        query = frame.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / "c")).start()
        try:
            while len(found) < until:
                assert query.exception() is None
                query.processAllAvailable()
        finally:
            query.stop()

    run(250)
    assert [rows for _, rows, _ in seen] == [100, 100, 50]
    assert seen[0][2] >= 4  # one bucket feeds several tasks
    table.append([{"n": n} for n in range(250, 300)])
    run(300)
    assert sorted(found) == list(range(300))
    assert [number for number, _, _ in seen] == [0, 1, 2, 3]


@pytest.mark.soak
def test_a_recreated_table_does_not_continue_a_stream(
    spark: Any, address: str, client: Connection, tmp_path: Path
) -> None:
    columns: list[Any] = [("n", INT)]
    path = create(client, columns)
    client.table(path).append([{"n": 1}])

    def run() -> list[Any]:
        return read_available(stream(spark, address, path), tmp_path / "c")

    assert len(run()) == 1
    definition = client.admin.describe_table(path)
    client.admin.drop_table(path)
    client.admin.create_table(definition.without_id())
    with pytest.raises(Exception, match="dropped and created again since this stream began"):
        run()


def test_rows_that_retention_took_stop_the_stream_or_are_skipped(
    address: str, client: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = create(client, [("n", INT)], buckets=1)
    client.table(path).append([{"n": n} for n in range(5)])
    given = {"bootstrap.servers": address, "table": path}
    table_id = str(client.admin.describe_table(path).table_id)
    begin = Position(table_id, {0: 1}, {0: 1}).to_json()

    def splits(**options: str) -> list[Any]:
        reader = HeadraceStreamReader(ReadOptions.parse({**given, **options}), ["n"])
        reader.initialOffset()
        return [each.split for each in reader.partitions(begin, Position(table_id, {0: 5}, {0: 1}).to_json())]

    assert splits() == [Split(0, 1, 5)]
    monkeypatch.setattr(
        "headrace.tablelayer.spark.table_stream.resolve",
        lambda _, place: {0: 3 if place == "earliest" else 5},
    )
    with pytest.raises(TableError, match="failOnDataLoss=false"):
        splits()
    assert splits(failOnDataLoss="false") == [Split(0, 3, 5)]


def test_an_unsupported_stream_is_refused_at_its_start(
    spark: Any, address: str, client: Connection, tmp_path: Path
) -> None:
    path = create(client, [("k", INT)], ("k",))
    frame = stream(spark, address, path)
    with pytest.raises(Exception, match="needs mode 'upsert'"):
        read_available(frame, tmp_path / "c")


def test_a_frame_of_a_pk_table_stays_at_its_offsets(spark: Any, address: str, client: Connection) -> None:
    """Self-joins, unions, reuse: one state, whatever is written meanwhile."""
    path = create(client, [("k", BIGINT), ("v", BIGINT)], ("k",))
    table = client.table(path)
    table.upsert([{"k": n, "v": n % 3} for n in range(100)])
    frame = spark_table(spark, path, address).where("v < 2").to_df()
    offsets = table.offsets("latest")
    before = sorted(tuple(row) for row in frame.collect())
    assert before == sorted((n, n % 3) for n in range(100) if n % 3 < 2)
    table.upsert([{"k": n, "v": 0} for n in range(50, 120)])
    table.delete([{"k": 0}])
    assert sorted(tuple(row) for row in frame.collect()) == before
    other = frame.where("k < 10").unionByName(frame.where("k >= 90"))
    assert other.count() == sum(1 for k, _ in before if k < 10 or k >= 90)
    joined = frame.alias("a").join(frame.alias("b"), "k")
    assert joined.count() == len(before)
    as_of = spark_table(spark, path, address).select("v", "k").as_of(offsets).limit(1000).to_df()
    assert sorted((row.k, row.v) for row in as_of.collect()) == sorted((n, n % 3) for n in range(100))
    assert spark_table(spark, path, address).to_df().count() == 119


@pytest.mark.soak
def test_views(spark: Any, address: str, client: Connection) -> None:
    client.execute("CREATE DATABASE views; CREATE TABLE views.a (n INT); CREATE TABLE views.b (n INT)")
    client.table("views.a").append([{"n": 1}, {"n": 2}])
    assert use(spark, "views", address) == ["a", "b"]
    assert spark.sql("SELECT sum(n) FROM a").first()[0] == 3
    assert spark.sql("SELECT count(*) FROM b").first()[0] == 0
    create_view(spark, "places", "views.a", bootstrap=address, columns="_log_offset,n,_bucket")
    rows = spark.sql("SELECT * FROM places ORDER BY n").collect()
    assert [row.n for row in rows] == [1, 2]
    assert rows[0].__fields__ == ["_log_offset", "n", "_bucket"]
    assert load(spark, address, "views.a", columns="n", startingTimestamp=1).count() == 2
    for name in ("a", "b", "places"):
        spark.catalog.dropTempView(name)
