"""Minimum and maximum: batch statistics and read rows together give the same as all rows."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.tablelayer.model import messages as m
from headrace.tablelayer.model.batches.batch import encode_arrow_batch
from headrace.tablelayer.model.batches.extremes import extremes
from headrace.tablelayer.model.batches.ipc import decode_ipc
from headrace.tablelayer.model.errors import TableErrorCode
from headrace.tablelayer.model.filters.filters import encode_filter
from headrace.tablelayer.server.merge import writes
from headrace.tablelayer.server.read import extremes as server_extremes
from headrace.tablelayer.tests.server.tables import TIMEOUT_MS, Table, tables

COLUMNS = (
    "id INT, big BIGINT, f FLOAT, d DOUBLE, dec DECIMAL(30, 5), s STRING, b BOOLEAN, day DATE, at TIMESTAMP(6),"
    " tz TIMESTAMP_LTZ(3), t TIME(3), raw BYTES, fixed BINARY(3), c CHAR(4)"
)


def value(rng: random.Random, column: str) -> Any:
    if rng.random() < 0.2:
        return None
    if column in ("f", "d"):
        return rng.choice([math.nan, math.inf, -math.inf, -0.5, 1.25, float(rng.randrange(9))])
    if column == "s":
        return rng.choice(["", "ä", "\U0001f600", "x" * rng.randrange(50), "\uffff" * 20, "a"])
    if column == "raw":
        return rng.choice([b"", b"\xff" * rng.randrange(40), b"a", bytes(rng.randrange(5))])
    integers = {"id": 32, "big": 64, "day": 17, "at": 50, "tz": 40}
    if column in integers:
        return rng.getrandbits(integers[column]) - (1 << integers[column] - 1)
    if column == "t":
        return rng.randrange(86_400_000)
    if column == "b":
        return rng.random() < 0.5
    return b"%03d" % rng.randrange(999) if column == "fixed" else f"{rng.randrange(99)}"


def random_rows(rng: random.Random, schema: pa.Schema, count: int) -> pa.RecordBatch:
    arrays = []
    for field in schema:
        values = [value(rng, field.name) for _ in range(count)]
        if field.name == "dec":
            decimals = [
                None if each is None else Decimal(rng.randrange(-(10**28), 10**28)).scaleb(-5)
                for each in values
            ]
            arrays.append(pa.array(decimals, field.type))
        elif pa.types.is_temporal(field.type):
            width = 32 if field.type.bit_width == 32 else 64
            arrays.append(pa.array(values, f"int{width}").view(field.type))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def oracle(values: list[Any]) -> tuple[Any, Any, int]:
    """(least, greatest, how many) of Python values, NaN greater than all."""
    there = [each for each in values if each is not None]
    if not there:
        return None, None, 0

    def order(each: Any) -> Any:
        return (isinstance(each, float) and math.isnan(each), each)

    numbers = [each for each in there if not order(each)[0]]
    nan = len(numbers) < len(there)
    return (
        min(numbers) if numbers else math.nan,
        math.nan if nan else max(numbers),
        len(there),
    )


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(found, float) and math.isnan(found)
    return bool(found == expected)


async def append(table: Table, rows: pa.RecordBatch) -> None:
    batch = encode_arrow_batch(
        rows, schema_id=table.definition.schema.schema_id, change_types=None, timestamp_ms=1_700_000_000_000
    )
    answer = await table.broker.send(
        m.AppendRowsRequest(
            table_id=table.table_id,
            acks=-1,
            timeout_ms=TIMEOUT_MS,
            buckets=[m.WriteBucket(bucket=0, batch=batch)],
        )
    )
    assert answer.buckets[0].error_code == 0, answer.buckets[0].error_message


async def ask(table: Table, columns: list[str], condition: pc.Expression | None = None) -> m.CountRowsResult:
    schema = table.definition.schema
    answer = await table.broker.send(
        m.CountRowsRequest(
            table_id=table.table_id, buckets=[0], schema_id=schema.schema_id,
            filter=None if condition is None else encode_filter(condition, schema),
            extremes=[schema.column(each).id for each in columns],
        )
    )  # fmt: skip
    assert answer.error_code == 0, answer.error_message
    assert answer.buckets[0].error_code == 0, answer.buckets[0].error_message
    return answer.buckets[0]


def check(table: Table, found: m.CountRowsResult, rows: pa.Table) -> None:
    schema = table.definition.schema
    arrow = pa.schema([field.with_nullable(True) for field in schema.arrow()])
    two = decode_ipc(found.extremes, arrow)
    assert found.count == rows.num_rows
    for index, name in enumerate(arrow.names):
        low, high, count = oracle([_plain(each) for each in rows.column(name)])
        got = [_plain(each) for each in two.column(name)]
        assert found.value_counts[index] == count, name
        assert same(got[0], low), (name, got, low)
        assert same(got[1], high), (name, got, high)


def _plain(scalar: pa.Scalar) -> Any:
    """Exact and comparable; times as integers."""
    if not scalar.is_valid:
        return None
    if pa.types.is_temporal(scalar.type):
        return scalar.value
    found = scalar.as_py()
    return found.encode() if isinstance(found, str) else found


@pytest.mark.parametrize("seed", range(3))
async def test_extremes_of_log_tables_with_and_without_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    read = [0]
    rows_of = server_extremes.BatchColumns.rows

    def counting(*args: Any) -> pa.RecordBatch:
        read[0] += 1
        return rows_of(*args)

    monkeypatch.setattr(server_extremes.BatchColumns, "rows", counting)
    async with tables(tmp_path) as server:
        table = await server.create(COLUMNS, statistics_columns="*" if seed else "id, d, s, b")
        schema = table.definition.schema.arrow()
        parts = [random_rows(rng, schema, rng.randrange(1, 30)) for _ in range(12)]
        for number, part in enumerate(parts):
            monkeypatch.setattr(writes, "STATISTICS_FROM_ROWS", 1 if number % 4 else 1000)
            await append(table, part)
        every = pa.Table.from_batches(parts)
        check(table, await ask(table, schema.names), every)
        read[0] = 0
        await ask(table, ["id", "b"])
        assert read[0] == 3  # the batches without statistics, and no other
        for condition in (
            pc.field("id") > pa.scalar(0, pa.int32()),
            pc.field("b"),
            pc.field("id").is_null(),
        ):
            check(table, await ask(table, schema.names, condition), every.filter(condition))
        cut = rng.randrange(every.num_rows)
        table.broker.context.replicas.partition("default.t", 0).delete_records(cut)
        check(table, await ask(table, schema.names), every.slice(cut))


async def test_texts_with_truncated_statistics_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "STATISTICS_FROM_ROWS", 1)
    async with tables(tmp_path) as all_tables:
        for name, texts in (
            ("high", ["a", "z" * 99]),
            ("low", ["a" * 99, "z"]),
            ("both", ["a" * 99, "z" * 99]),
        ):
            table = await all_tables.create("s STRING", name=name, statistics_columns="*")
            rows = pa.record_batch([pa.array(texts)], schema=table.definition.schema.arrow())
            await append(table, rows)
            check(table, await ask(table, ["s"]), pa.Table.from_batches([rows]))


async def test_extremes_of_a_primary_key_table_are_of_its_rows(tmp_path: Path) -> None:
    async with tables(tmp_path) as server:
        table = await server.create("k INT, d DOUBLE, PRIMARY KEY (k) NOT ENFORCED")
        schema = pa.schema([("k", pa.int32()), ("d", pa.float64())])
        empty = await ask(table, ["k", "d"])
        assert (empty.count, list(empty.value_counts)) == (0, [0, 0])
        assert decode_ipc(empty.extremes, schema).to_pylist() == [{"k": None, "d": None}] * 2
        await table.put(*(("+", {"k": k, "d": float(k)}) for k in range(-5, 6)))
        await table.put(("+", {"k": 5, "d": None}), ("-", {"k": -5, "d": None}))
        found = await ask(table, ["k", "d"])
        assert decode_ipc(found.extremes, schema).to_pylist() == [
            {"k": -4, "d": -4.0},
            {"k": 5, "d": 4.0},
        ]
        assert (found.count, list(found.value_counts)) == (10, [10, 9])
        found = await ask(table, ["d"], pc.field("k") < pa.scalar(0, pa.int32()))
        assert decode_ipc(found.extremes, schema.remove(0)).to_pylist() == [{"d": -4.0}, {"d": -1.0}]


async def test_extremes_of_columns_of_older_schemas_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "STATISTICS_FROM_ROWS", 1)
    async with tables(tmp_path) as server:
        old = await server.create("a INT, b FLOAT")
        rows = {"a": pa.array([3, -7], pa.int32()), "b": pa.array([0.5, None], pa.float32())}
        await append(old, pa.record_batch(rows))
        new = await old.alter("MODIFY a BIGINT, MODIFY b DOUBLE, ADD c INT DEFAULT 9")
        found = await ask(new, ["a", "b", "c"])
        schema = pa.schema([("a", pa.int64()), ("b", pa.float64()), ("c", pa.int32())])
        assert decode_ipc(found.extremes, schema).to_pylist() == [
            {"a": -7, "b": 0.5, "c": 9},
            {"a": 3, "b": 0.5, "c": 9},
        ]
        assert list(found.value_counts) == [2, 1, 2]
        answer = await new.broker.send(m.CountRowsRequest(table_id=new.table_id, buckets=[0], extremes=[99]))
        assert answer.error_code == TableErrorCode.INVALID_PROJECTION


def test_extremes_of_extremes_are_those_of_all_rows() -> None:
    schema = pa.schema([("x", pa.float64())])
    parts = [
        pa.record_batch({"x": pa.array(each, pa.float64())})
        for each in ([1.0, math.nan], [None], [-3.0, 2.0])
    ]
    whole = extremes(parts, schema)
    again = extremes([extremes([part], schema) for part in parts], schema)
    assert str(whole.to_pylist()) == str(again.to_pylist()) == "[{'x': -3.0}, {'x': nan}]"
