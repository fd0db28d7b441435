"""ARRAY, MAP and ROW columns through Spark: written, streamed, looked up, tiered into Iceberg, read together with
the log.
"""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import pytest

from headrace.tablelayer.client import Connection
from headrace.tablelayer.lake.tiering_job import run_tiering
from headrace.tablelayer.lake.union_read import union_read
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.types.text import parse_type
from headrace.tablelayer.spark.lookups import lookup_join
from headrace.tablelayer.spark.types import spark_schema
from headrace.tablelayer.tests.spark.spark_tables import create, finish, sink, stream

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

LEAVES = "t TINYINT, b BINARY(3), c CHAR(4), d DECIMAL(38, 18), day DATE, n TIMESTAMP(3), z TIMESTAMP_LTZ, ok BOOLEAN"
COLUMNS = [
    ("id", "BIGINT"),
    ("a", "ARRAY<SMALLINT NOT NULL>"),
    ("m", "MAP<STRING, ARRAY<DOUBLE>>"),
    ("i", "MAP<INT, DATE>"),
    ("r", f"ROW<{LEAVES}, inner ROW<x BIGINT NOT NULL>>"),
    ("rows", "ARRAY<ROW<k STRING, v BYTES>>"),
]
MOMENT = datetime.datetime(2024, 2, 29, 12, 30, 15, 250_000)
LEAF = (
    -128, b"\x00\xff\x01", "äb", decimal.Decimal("-1.5").quantize(decimal.Decimal(10) ** -18),
    datetime.date(1969, 12, 31), MOMENT, MOMENT, True,
)  # fmt: skip
VALUES: list[tuple[Any, ...]] = [
    (1, [1, -32768], {"k": [0.5, None], "": []}, {-7: datetime.date(1, 1, 1), 3: None}, (*LEAF, (7,)),
     [("x", b""), None, (None, None)]),
    (2, [], {}, {}, (None,) * 9, []),
    (3, None, None, None, None, None),
]  # fmt: skip


def plain(value: Any) -> Any:
    """Spark's rows as tuples, bytes as bytes."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    if isinstance(value, list):
        return list(map(plain, value))
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return bytes(value) if isinstance(value, bytearray) else value


def rows_of(frame: Any) -> list[tuple[Any, ...]]:
    names = [name for name, _ in COLUMNS]
    return sorted((plain(tuple(row)) for row in frame.select(*names).collect()), key=lambda row: int(row[0]))


@pytest.mark.soak
def test_nested_columns_are_written_streamed_and_looked_up(
    spark: Any, address: str, client: Connection, tmp_path: Path
) -> None:
    """From Spark into a log table, from its stream into a primary-key table, from there to the rows of a frame."""
    columns = [(name, parse_type(text)) for name, text in COLUMNS]
    log, keyed = create(client, columns, buckets=1), create(client, columns, ("id",), buckets=1)
    frame = spark.createDataFrame(VALUES, spark_schema(Schema.of(columns).columns)).coalesce(1)
    frame.write.format("headrace").options(**{"bootstrap.servers": address, "table": log}).mode(
        "append"
    ).save()
    written = stream(spark, address, log).select(*[name for name, _ in COLUMNS])
    finish(sink(written, address, keyed, tmp_path / "c").trigger(availableNow=True).start())
    found = client.table(keyed).to_arrow().sort_by("id").to_pylist()
    assert found == client.table(log).to_arrow().sort_by("id").to_pylist()
    first = found[0]
    assert (first["a"], first["r"]["inner"]) == ([1, -32768], {"x": 7})
    assert first["i"] == [(-7, datetime.date(1, 1, 1)), (3, None)]
    keys = spark.createDataFrame([(3,), (1,), (4,), (2,)], "id BIGINT").coalesce(1)
    joined = lookup_join(keys, address, keyed, on={"id": "id"})
    assert rows_of(joined) == [*VALUES, (4, None, None, None, None, None)]


@pytest.mark.soak
def test_nested_columns_are_tiered_and_read_with_the_log(
    spark: Any, address: str, client: Connection
) -> None:
    columns = [(name, parse_type(text)) for name, text in COLUMNS]
    path = create(client, columns, ("id",), table_datalake_enabled="true", table_datalake_format="iceberg")
    frame = spark.createDataFrame(VALUES, spark_schema(Schema.of(columns).columns))
    options = {"bootstrap.servers": address, "table": path}
    frame.where("id < 3").write.format("headrace").options(**options).mode("append").save()
    said: list[str] = []
    assert run_tiering(address, tables=[path], once=True, report=said.append) == 0, said
    frame.where("id = 3").write.format("headrace").options(**options).mode("append").save()
    assert rows_of(union_read(spark, address, path)) == VALUES
    assert rows_of(union_read(spark, address, f"{path}$lake")) == VALUES[:2]
    assert union_read(spark, address, path).schema["a"].dataType.simpleString() == "array<smallint>"
    # A nested column that comes later, and one that gets another name.
    client.execute(f"ALTER TABLE {path} ADD late MAP<STRING, ROW<p INT>>, RENAME m TO m2")
    client.table(path).refresh()
    row = {"id": 4, "late": {"k": {"p": 5}}, "m2": {"z": [1.0]}}
    client.table(path).upsert([row])
    assert run_tiering(address, tables=[path], once=True, report=said.append) == 0, said
    lake = union_read(spark, address, f"{path}$lake")
    assert lake.selectExpr("id", "late['k'].p", "m2['z'][0]").where("id = 4").first() == (4, 5, 1.0)
    assert rows_of(lake.withColumnRenamed("m2", "m").where("id < 4")) == VALUES
    assert lake.where("id = 1").select("late").first() == (None,)
