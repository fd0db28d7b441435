"""Rows and keys that the driver has read, as parts of Spark's plans."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from headrace.tablelayer.lake import union_read
from headrace.tablelayer.lake.union_read import overlaid
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.table.definition import StoredTable
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types.column_types import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    INT,
    SMALLINT,
    STRING,
    TINYINT,
    DataType,
    timestamp,
    timestamp_ltz,
)
from headrace.tablelayer.model.types.column_types import decimal as decimal_type
from headrace.tablelayer.spark.local_rows import local_rows
from headrace.tablelayer.spark.splits import DELETED_COLUMN
from headrace.tablelayer.spark.types import spark_arrow_schema, spark_schema

pytestmark = [
    pytest.mark.spark,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

_DAY = datetime.date(1970, 1, 1)
_TIME = datetime.datetime(1970, 1, 1)


def _days(*numbers: int) -> list[Any]:
    return [_DAY + datetime.timedelta(days=number) for number in numbers]


def _times(*numbers: int, zone: datetime.tzinfo | None = None) -> list[Any]:
    return [(_TIME + datetime.timedelta(microseconds=number)).replace(tzinfo=zone) for number in numbers]


def _each(values: Sequence[Any]) -> list[tuple[Any, ...]]:
    return [(value,) for value in values]


KEYS: list[tuple[str, list[DataType], list[tuple[Any, ...]]]] = [
    ("bigint", [BIGINT], _each([5, 0, -1, 2**63 - 1, -(2**63), 1 << 32, 42, 43])),
    ("bigint, zero unchanged", [BIGINT], _each([0, 1, -1, 2**63 - 1, -(2**63), 1 << 32, 42, 43])),
    ("int", [INT], _each([5, 0, -1, 2**31 - 1, -(2**31), 7, 42, 43])),
    ("smallint", [SMALLINT], _each([5, 0, -1, 2**15 - 1, -(2**15), 7, 42, 43])),
    ("tinyint", [TINYINT], _each([5, 0, -1, 127, -128, 7, 42, 43])),
    ("date", [DATE], _each(_days(5, 0, -1, 10_000, -10_000, 7, 42, 43))),
    ("timestamp", [timestamp(6)], _each(_times(5, 0, -1, 10**15, -(10**15), 7, 42, 43))),
    (
        "timestamp_ltz",
        [timestamp_ltz(6)],
        _each(_times(5, 0, -1, 10**15, -(10**15), 7, 42, 43, zone=datetime.UTC)),
    ),
    ("string", [STRING], _each(["", "a", "b", "a\0", "aa", "ä" * 40, "c", "d"])),
    ("bytes", [BYTES], _each([b"", b"a", b"b", b"a\0", b"aa", b"\xff" * 40, b"c", b"d"])),
    (
        "decimal",
        [decimal_type(38, 2)],
        _each([decimal.Decimal(n) for n in (5, 0, -1, 10**30, -7, 7, 42, 43)]),
    ),
    ("double", [DOUBLE], _each([5.0, 0.0, -1.0, 1e300, -1e-300, 0.5, 42.0, 43.0])),
    (
        "two",
        [BIGINT, STRING],
        [(1, "a"), (1, "b"), (2, "a"), (2, "b"), (3, "a"), (0, ""), (1, "c"), (4, "b")],
    ),
    (
        "three",
        [INT, BOOLEAN, DATE],
        [(n, n < 3, day) for n in (1, 2) for day in _days(0, 1, 2, 3)],
    ),
]


def _definition(types: Sequence[DataType]) -> StoredTable:
    columns = [*((f"k.{place}", kind) for place, kind in enumerate(types)), ("v", STRING), ("w", BIGINT)]
    return StoredTable(
        TablePath("shop", "t"),
        Schema.of(columns, tuple(name for name, _ in columns[: len(types)])),
        bucket_count=1,
        table_id=uuid.uuid4(),
    )


def _rows(definition: StoredTable, keys: Sequence[tuple[Any, ...]], value: str) -> pa.Table:
    names = definition.schema.names
    rows = [dict(zip(names, [*key, value, place], strict=True)) for place, key in enumerate(keys)]
    return pa.Table.from_pylist(rows, spark_arrow_schema(definition.schema.columns))


def _changes(
    definition: StoredTable, written: Sequence[tuple[Any, ...]], deleted: Sequence[tuple[Any, ...]]
) -> pa.Table:
    rows = pa.concat_tables([_rows(definition, written, "log"), _rows(definition, deleted, "deleted")])
    gone = [False] * len(written) + [True] * len(deleted)
    return rows.append_column(
        pa.field(DELETED_COLUMN, pa.bool_(), nullable=False), pa.array(gone, pa.bool_())
    )


def _frame(spark: Any, definition: StoredTable, keys: Sequence[tuple[Any, ...]]) -> Any:
    return spark.createDataFrame(_rows(definition, keys, "lake"), spark_schema(definition.schema.columns))


@pytest.mark.parametrize(("types", "keys"), [each[1:] for each in KEYS], ids=[each[0] for each in KEYS])
def test_the_log_wins_for_keys_of_every_type(
    spark: Any, types: list[DataType], keys: list[tuple[Any, ...]]
) -> None:
    definition = _definition(types)
    lake = _frame(spark, definition, keys[:6])
    changes = _changes(definition, [keys[1], keys[6]], [keys[2], keys[7]])
    found = overlaid(spark, lake, changes, definition)
    assert found.columns == list(definition.schema.names)
    zone = (
        datetime.UTC if any(part.tzinfo for part in keys[0] if isinstance(part, datetime.datetime)) else None
    )
    seen = [
        (
            tuple(
                part.replace(tzinfo=zone) if isinstance(part, datetime.datetime) else part
                for part in row[:-2]
            ),
            row[-2],
        )
        for row in found.collect()
    ]
    expected = {
        **dict.fromkeys([keys[0], *keys[3:6]], "lake"),
        **dict.fromkeys([keys[1], keys[6]], "log"),
    }
    assert len(seen) == len(expected), "no key twice"
    assert dict(seen) == expected
    is_join = any(kind is DOUBLE for kind in types)
    assert ("Join" in _plan(found)) == is_join


def test_zeros_of_both_signs_are_one_key(spark: Any) -> None:
    definition = _definition([DOUBLE])
    lake = _frame(spark, definition, [(-0.0,), (1.0,)])
    found = overlaid(spark, lake, _changes(definition, [(0.0,)], []), definition)
    assert sorted((row[0], row[1]) for row in found.collect()) == [(0.0, "log"), (1.0, "lake")]


def test_without_the_jar_the_keys_are_joined(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(union_read, "has_local_rows", lambda _: False)
    definition = _definition([BIGINT])
    lake = _frame(spark, definition, [(0,), (1,), (2,)])
    found = overlaid(spark, lake, _changes(definition, [(1,), (7,)], [(2,)]), definition)
    assert sorted(row[:2] for row in found.collect()) == [(0, "lake"), (1, "log"), (7, "log")]
    assert "Join" in _plan(found)
    only_deletes = overlaid(spark, lake, _changes(definition, [], [(1,), (2,)]), definition)
    assert [row[0] for row in only_deletes.collect()] == [0]
    nothing = pa.Table.from_batches([], _changes(definition, [], []).schema)
    assert overlaid(spark, lake, nothing, definition).count() == 3


def test_columns_filters_and_limits_reach_both_halves(spark: Any, tmp_path: Path) -> None:
    definition = _definition([BIGINT])
    folder = str(tmp_path / "lake")
    _frame(spark, definition, [(n,) for n in range(100)]).write.parquet(folder)
    found = overlaid(
        spark, spark.read.parquet(folder), _changes(definition, [(1,), (200,)], [(2,)]), definition
    )
    asked = found.where("v <> 'x' AND w >= 0").select("v").limit(2)
    plan = _plan(asked)
    assert "EqualTo(v,x)" in plan
    assert "GreaterThanOrEqual(w,0)" in plan
    assert "ReadSchema: struct<k.0:bigint,v:string,w:bigint>" in plan
    assert "log of shop.t [v, w], 2 rows" in plan
    assert plan.count("LocalLimit 2") >= 2
    assert len(asked.collect()) == 2
    # A key that is given is compared when the query is planned.
    assert [tuple(row) for row in found.where("`k.0` = 1").collect()] == [(1, "log", 0)]
    assert found.where("`k.0` = 2").collect() == []
    assert found.count() == 100
    # Each use of a frame in a query reads the same rows.
    assert found.join(found.selectExpr("`k.0` AS other"), how="cross").count() == 100 * 100


def test_rows_in_rows_are_read_from_several_batches(spark: Any) -> None:
    kind = pa.struct(
        [pa.field("a", pa.int32()), pa.field("b", pa.list_(pa.struct([pa.field("c", pa.string())])))]
    )
    rows = pa.table(
        {"id": [0, 1, 2, 3], "r": pa.array([{"a": n, "b": [{"c": str(n)}]} for n in range(4)], kind)}
    )
    batches = pa.concat_tables([rows.slice(0, 1), rows.slice(1, 2), rows.slice(3)])
    frame = local_rows(spark, "batches", batches, from_arrow_schema(rows.schema))
    assert frame.orderBy("id").toArrow().to_pylist() == rows.to_pylist()


def test_a_lake_without_changes_is_the_table(spark: Any) -> None:
    definition = _definition([BIGINT])
    lake = _frame(spark, definition, [(1,), (2,)])
    nothing = _changes(definition, [], [])
    assert overlaid(spark, lake, nothing, definition).count() == 2
    assert overlaid(spark, None, nothing, definition).collect() == []
    only_log = overlaid(spark, None, _changes(definition, [(1,)], [(2,)]), definition)
    assert [tuple(row) for row in only_log.collect()] == [(1, "log", 0)]


def _plan(frame: Any) -> str:
    text: str = frame._jdf.queryExecution().toString()
    return text
