"""Spark against a real server process: data source, lookup join, Kafka connector, tiering, union read."""

from __future__ import annotations

import datetime
import decimal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.spark import table as spark_table
from headrace.tablelayer.client import Connection
from headrace.tablelayer.lake.catalogs import tiered_table
from headrace.tablelayer.lake.tiering_job import run_tiering
from headrace.tablelayer.lake.union_read import lake_then_stream, union_read
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.types.column_types import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    SMALLINT,
    STRING,
    TINYINT,
    binary,
    char,
    timestamp,
    timestamp_ltz,
)
from headrace.tablelayer.model.types.column_types import decimal as decimal_type
from headrace.tablelayer.model.types.column_types import time as time_type
from headrace.tablelayer.spark.lookups import lookup_join
from headrace.tablelayer.spark.types import SYSTEM_FIELDS
from headrace.tablelayer.tests.spark.spark_tables import create, load

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def test_current_rows_and_changelog_of_a_pk_table(spark: Any, address: str, client: Connection) -> None:
    path = create(client, [("id", BIGINT), ("name", STRING)], ("id",))
    table = client.table(path)
    table.upsert([{"id": n, "name": f"a{n}"} for n in range(20)])
    table.upsert([{"id": 3, "name": "b3"}])
    table.delete([{"id": 4}])
    rows = {row.id: row.name for row in load(spark, address, path).collect()}
    assert rows == {n: "b3" if n == 3 else f"a{n}" for n in range(20) if n != 4}
    changes = load(spark, address, path, mode="changelog").where("id IN (3, 4)").orderBy("_log_offset")
    found = {3: [], 4: []}
    for row in changes.collect():
        found[row.id].append((row._change_type, row.name))
        assert abs(row._commit_timestamp.timestamp() - time.time()) < 600
    assert found[3] == [("+I", "a3"), ("-U", "a3"), ("+U", "b3")]
    assert found[4] == [("+I", "a4"), ("-D", "a4")]


def test_a_log_table_between_offsets(spark: Any, address: str, client: Connection) -> None:
    path = create(client, [("n", INT), ("text", STRING)])
    table = client.table(path)
    table.append([{"n": n, "text": "x" * n} for n in range(100)])
    frame = load(spark, address, path, columns="n")
    assert frame.columns == ["n"]
    assert sorted(row.n for row in frame.collect()) == list(range(100))
    end = table.offsets("latest")
    table.append([{"n": n, "text": None} for n in range(100, 110)])
    text = "{" + ",".join(f'"{bucket}":{offset}' for bucket, offset in end.items()) + "}"
    assert sorted(row.n for row in load(spark, address, path, starting_offsets=text).collect()) == list(
        range(100, 110)
    )
    assert load(spark, address, path, ending_offsets=text).count() == 100
    # A frame keeps the offsets of its first action; a new one sees the later rows.
    assert frame.count() == 100
    assert load(spark, address, path).count() == 110


def test_every_type_reaches_spark_unchanged(spark: Any, address: str, client: Connection) -> None:
    columns = [
        ("k", BIGINT), ("bo", BOOLEAN), ("ti", TINYINT), ("si", SMALLINT), ("i", INT), ("f", FLOAT),
        ("d", DOUBLE), ("c", char(3)), ("s", STRING), ("de", decimal_type(15, 2)), ("da", DATE),
        ("t", time_type(3)), ("ts", timestamp(3)), ("tz", timestamp_ltz(6)), ("bi", binary(2)), ("by", BYTES),
    ]  # fmt: skip
    path = create(client, columns, ("k",))
    moment = datetime.datetime(2024, 9, 19, 12, 34, 56, 789_000)
    row = {
        "k": 1, "bo": True, "ti": -5, "si": 300, "i": 70_000, "f": 1.5, "d": 2.25, "c": "abc", "s": "ü",
        "de": decimal.Decimal("12.34"), "da": datetime.date(1996, 1, 2), "t": datetime.time(1, 2, 3, 4000),
        "ts": moment, "tz": moment.replace(tzinfo=datetime.UTC), "bi": b"xy", "by": b"\x00z",
    }  # fmt: skip
    empty = {name: 2 if name == "k" else None for name in row}
    client.table(path).upsert([row, empty])
    found = {r["k"]: r for r in load(spark, address, path).toArrow().to_pylist()}
    found[1]["tz"] = found[1]["tz"].astimezone(datetime.UTC)
    assert found == {1: row, 2: empty}


def test_the_builder_reads_only_what_it_needs(spark: Any, address: str, client: Connection) -> None:
    path = create(client, [("a", INT), ("b", INT), ("c", INT)])
    client.table(path).append([{"a": n, "b": n * 2, "c": 0} for n in range(10)])
    frame = spark_table(spark, path, address).select("b").where("a >= 7").to_df()
    assert sorted(row.b for row in frame.collect()) == [14, 16, 18]
    assert spark_table(spark, path, address).limit(4).to_df().count() == 4
    with pytest.raises(Exception, match="no column 'zz'"):
        spark_table(spark, path, address).select("zz").to_df().collect()


def test_lookup_join(spark: Any, address: str, client: Connection) -> None:
    path = create(client, [("id", INT), ("name", STRING), ("size", BIGINT)], ("id",))
    client.table(path).upsert([{"id": n, "name": f"n{n}", "size": n * 10} for n in range(0, 1000, 2)])
    left = spark.range(100).withColumnRenamed("id", "ref")
    joined = lookup_join(left, address, path, on={"ref": "id"}, select={"name": "its_name"})
    assert {row.ref: row.its_name for row in joined.collect()} == {
        n: f"n{n}" if n % 2 == 0 else None for n in range(100)
    }
    inner = lookup_join(left, address, path, on={"ref": "id"}, how="inner")
    assert inner.columns == ["ref", "name", "size"]
    assert inner.count() == 50
    with pytest.raises(TableError, match="whole primary key"):
        lookup_join(left, address, path, on={"ref": "name"})
    with pytest.raises(TableError, match="names column nope"):
        lookup_join(left, address, path, on={"nope": "id"})
    with pytest.raises(TableError, match="twice"):
        lookup_join(left.withColumnRenamed("ref", "name"), address, path, on={"name": "id"})


def test_sparks_own_kafka_connector_both_ways(
    spark: Any, address: str, client: Connection, tmp_path: Path
) -> None:
    source = create(client, [("id", BIGINT), ("price", decimal_type(15, 2)), ("day", DATE)])
    target = create(client, [("id", BIGINT), ("price", decimal_type(15, 2)), ("day", DATE)], ("id",))
    day = datetime.date(2024, 9, 19)
    rows = [{"id": n, "price": decimal.Decimal(n) / 100, "day": day} for n in range(500)]

    def run() -> None:
        values = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", address)
            .option("subscribe", source)
            .option("startingOffsets", "earliest")
            .load()
            .selectExpr("from_json(cast(value as string), 'id BIGINT, price DECIMAL(15,2), day DATE') r")
            .selectExpr("to_json(r) value")
        )
        query = (
            values.writeStream.format("kafka")
            .option("kafka.bootstrap.servers", address)
            .option("topic", target)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(90)

    client.table(source).append(rows[:300])
    run()
    client.table(source).append(rows[300:])
    run()
    found = client.table(target).to_arrow().sort_by("id").to_pylist()
    assert found == rows


def lake_table(client: Connection, primary_key: tuple[str, ...] = ("id",)) -> str:
    return create(
        client,
        [("id", BIGINT), ("name", STRING), ("tiny", TINYINT)],
        primary_key,
        table_datalake_enabled="true",
        table_datalake_format="iceberg",
    )


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def test_tiering_and_union_read_of_a_pk_table(spark: Any, address: str, client: Connection) -> None:
    path = lake_table(client)
    table = client.table(path)
    table.upsert([{"id": n, "name": f"a{n}", "tiny": n % 100} for n in range(200)])
    assert rows_of(union_read(spark, address, path)) == rows_of(load(spark, address, path))
    said: list[str] = []
    assert run_tiering(address, tables=[path], once=True, report=said.append) == 0
    assert "200 changes into snapshot" in said[-1]
    assert run_tiering(address, tables=[path], once=True, report=said.append) == 0
    assert "nothing new" in said[-1]
    table.upsert([{"id": 1, "name": "tail", "tiny": 1}, {"id": 900, "name": "tail", "tiny": 2}])
    table.delete([{"id": 2}])
    union = union_read(spark, address, path)
    expected = rows_of(load(spark, address, path))
    assert rows_of(union) == expected
    assert union.schema["tiny"].dataType.simpleString() == "tinyint"
    assert union_read(spark, address, f"{path}$lake").count() == 200
    lake = load(spark, address, f"{path}$lake")
    assert rows_of(lake) == rows_of(union_read(spark, address, f"{path}$lake"))
    snapshots = union_read(spark, address, f"{path}$lake$snapshots").collect()
    names = ["snapshot_id", "committed_at", "offsets"]
    told = load(spark, address, f"{path}$lake$snapshots", columns=",".join(names)).collect()
    assert [tuple(row) for row in told] == [tuple(each[name] for name in names) for each in snapshots]
    (tiered,) = [each for each in snapshots if each["offsets"] is not None]
    assert (sum(tiered["offsets"].values()), tiered["operation"], tiered["epoch"]) == (200, "append", 1)
    changes = union_read(spark, address, f"{path}$changelog")
    assert {row["_change_type"] for row in changes.collect()} == {"+I", "-U", "+U", "-D"}
    # From the lake's rows and the changes after it a stream starts without gap or overlap.
    lake, stream = lake_then_stream(spark, address, path)
    seen: list[Any] = []
    query = stream.writeStream.trigger(availableNow=True).foreachBatch(
        lambda frame, _: seen.extend(frame.select("_change_type", "id").collect())
    )
    assert query.start().awaitTermination(90)
    assert sorted(map(tuple, seen)) == [("+I", 900), ("+U", 1), ("-D", 2), ("-U", 1)]
    assert lake.count() == 200
    union.createOrReplaceTempView("pinned")
    assert run_tiering(address, tables=[path], once=True, report=said.append) == 0
    table.delete([{"id": 5}])
    assert spark.sql("SELECT count(*) FROM pinned").first()[0] == len(expected)
    assert rows_of(union_read(spark, address, f"{path}$lake").drop(*SYSTEM_FIELDS)) == expected


def test_tiering_and_union_read_of_a_log_table(
    spark: Any, address: str, client: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lake_table(client, ())
    table = client.table(path)
    table.append([{"id": n, "name": "lake", "tiny": 1} for n in range(50)])
    said: list[str] = []
    assert run_tiering(address, tables=[path], once=True, report=said.append) == 0
    table.append([{"id": n, "name": "tail", "tiny": 2} for n in range(50, 70)])
    union = union_read(spark, address, path)
    assert rows_of(union) == sorted((n, "lake" if n < 50 else "tail", 1 if n < 50 else 2) for n in range(70))
    with monkeypatch.context() as patched:  # the server may not know of the lake's last round yet
        older = replace(tiered_table(client, path, None), known_offsets=dict.fromkeys(range(8), 0))
        patched.setattr(f"{union_read.__module__}.tiered_table", lambda *_: older)
        assert rows_of(union_read(spark, address, path)) == rows_of(union)
    assert run_tiering(address, tables=[path], once=True, report=said.append) == 0
    assert union_read(spark, address, f"{path}$lake").count() == 70
    assert union.count() == 70


def test_a_table_that_cannot_be_tiered_is_reported(address: str, client: Connection) -> None:
    plain = create(client, [("id", BIGINT)], ("id",))
    said: list[str] = []
    assert run_tiering(address, tables=[plain], once=True, report=said.append) == 1
    assert plain in said[-1]
    assert run_tiering(address, tables=["default.missing"], once=True, report=said.append) == 1
    assert "missing" in said[-1]


def test_an_empty_table(spark: Any, address: str, client: Connection) -> None:
    path = create(client, [("id", BIGINT), ("name", STRING)], ("id",))
    assert (
        load(spark, address, path)
        .toArrow()
        .equals(
            pa.table({"id": pa.array([], pa.int64()), "name": pa.array([], pa.string())}).cast(
                pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
            )
        )
    )
