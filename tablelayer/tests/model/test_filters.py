"""Filters against DuckDB, and statistics against the filters: what is skipped has no wanted row."""

from __future__ import annotations

import contextlib
import datetime
import functools
import operator
from decimal import Decimal
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import DecodeError
from tablelayer.model import statistics, types
from tablelayer.model.errors import TableError, TableErrorCode
from tablelayer.model.filters import Filter, Verdict, encode_filter
from tablelayer.model.schema import Column, Schema
from tablelayer.model.types import DataType, TypeKind
from tablelayer.tests.model.random_rows import EVERY_TYPE, array_of, batches, values_of

COMPARED = [each for each in EVERY_TYPE if each.kind is not TypeKind.TIME and each.precision != 9]
"""Types whose literals pyarrow can send."""
_SIGNS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


def value_of(data_type: DataType) -> st.SearchStrategy[Any]:
    if data_type.kind in types.FLOAT_KINDS:
        width = 32 if data_type.kind is TypeKind.FLOAT else 64
        return st.floats(width=width) | st.sampled_from([0.0, -0.0, float("nan"), float("inf"), 1.5])
    if data_type.kind in types.TEXT_KINDS:
        return st.sampled_from(
            ["", "a", "ab", "abc", "b", "é", "\U0010ffff", "ab" * 20, "ab" * 20 + "z", "\x00"]
        )
    if data_type.kind in types.INTEGER_KINDS:
        bits = types.INTEGER_BITS[data_type.kind] - 1
        return st.integers(-3, 3) | st.sampled_from([-(1 << bits), (1 << bits) - 1])
    return values_of(data_type)


@st.composite
def conditions(draw: st.DrawFn, schema: Schema, depth: int = 2) -> pc.Expression:
    if depth and draw(st.booleans()):
        parts = draw(st.lists(conditions(schema, depth - 1), min_size=2, max_size=3))
        join = draw(st.sampled_from([operator.and_, operator.or_]))
        return functools.reduce(join, parts)
    if depth and draw(st.integers(0, 3)) == 0:
        return ~draw(conditions(schema, depth - 1))
    column = draw(st.sampled_from(schema.columns))
    field = pc.field(column.name)
    kind = draw(st.sampled_from(["sign", "sign", "sign", "in", "null", "prefix", "flag", "nan"]))
    if kind == "null":
        return draw(st.sampled_from([field.is_null(), field.is_valid()]))
    if kind == "prefix" and column.type.kind in types.TEXT_KINDS:
        return pc.starts_with(field, draw(st.sampled_from(["", "a", "ab", "b", "abababab"])))
    if kind == "flag" and column.type.kind is TypeKind.BOOLEAN:
        return field
    if kind == "nan" and column.type.kind in types.FLOAT_KINDS:
        return pc.is_nan(field)
    drawn = draw(st.lists(value_of(column.type), min_size=1, max_size=3))
    values = array_of(column.type, drawn)
    if kind == "in":
        return functools.reduce(operator.or_, [field == each for each in values])
    return draw(st.sampled_from(_SIGNS))(field, values[0])


@st.composite
def cases(draw: st.DrawFn) -> tuple[Schema, pa.RecordBatch, pc.Expression]:
    chosen = draw(st.lists(st.sampled_from(COMPARED), min_size=1, max_size=4))
    schema = Schema.of([Column(7 * i + 3, f"c{i}", each) for i, each in enumerate(chosen)], schema_id=1)
    rows = draw(st.integers(0, 8))
    columns = []
    for each in chosen:
        values = draw(st.lists(st.none() | value_of(each), min_size=rows, max_size=rows))
        columns.append(array_of(each, values))
    batch = pa.RecordBatch.from_arrays(columns, schema=schema.arrow())
    start = draw(st.integers(0, rows))
    return schema, batch.slice(start), draw(conditions(schema))


def wanted_by_pyarrow(batch: pa.RecordBatch, expression: pc.Expression) -> list[int]:
    numbered = batch.append_column("row", pa.array(range(batch.num_rows), pa.int64()))
    return numbered.filter(expression).column("row").to_pylist()  # type: ignore[no-any-return]


def verdict_of(parsed: Filter, schema: Schema, batch: pa.RecordBatch) -> Verdict:
    stored = statistics.compute(batch, schema, schema.names)
    return parsed.verdict(statistics.decode(stored, schema, batch.num_rows).get)


@settings(max_examples=80, deadline=None)
@given(cases())
def test_filters_want_what_pyarrow_wants_and_statistics_never_hide_it(
    case: tuple[Schema, pa.RecordBatch, pc.Expression],
) -> None:
    schema, batch, expression = case
    expected = wanted_by_pyarrow(batch, expression)
    parsed = Filter.parse(encode_filter(expression, schema), schema)
    rows = batch.select([schema.columns[position].name for position in parsed.columns])
    assert np.flatnonzero(parsed.mask(rows)).tolist() == expected
    verdict = verdict_of(parsed, schema, batch)
    if verdict is Verdict.NONE:
        assert expected == []
    if verdict is Verdict.ALL:
        assert len(expected) == batch.num_rows


@pytest.mark.parametrize("lie", ["lowest", "highest", "null_count"])
def test_a_wrong_statistic_would_be_noticed(lie: str) -> None:
    """What the property above asserts fails when a bound is too narrow or nulls are not counted."""
    schema = Schema.of([Column(0, "a", types.INT)], schema_id=0)
    batch = pa.RecordBatch.from_arrays([pa.array([None, 1, 2, 3], pa.int32())], schema=schema.arrow())
    right = statistics.decode(statistics.compute(batch, schema, ["a"]), schema, 4)[0]
    wrong = msgspec.structs.replace(right, **{lie: {"lowest": 2, "highest": 2, "null_count": 0}[lie]})
    a = pc.field("a")
    noticed = 0
    for expression in (a == 1, a == 3, a.is_null(), a < 2, a > 2, ~a.is_null()):
        expected = wanted_by_pyarrow(batch, expression)
        parsed = Filter.parse(encode_filter(expression, schema), schema)
        hidden = {Verdict.NONE: 0, Verdict.ALL: 4}
        for found, statistic in ((0, right), (1, wrong)):
            verdict = parsed.verdict({0: statistic}.get)
            if hidden.get(verdict, len(expected)) != len(expected):
                assert found == 1
                noticed += 1
    assert noticed


def test_null_semantics_are_those_of_sql() -> None:
    schema = Schema.of([Column(0, "a", types.INT), Column(1, "b", types.BOOLEAN)], schema_id=0)
    batch = pa.RecordBatch.from_pylist(
        [{"a": a, "b": b} for a in (None, 1, 2, 3) for b in (None, True, False)], schema=schema.arrow()
    )
    a, b = pc.field("a"), pc.field("b")
    for text, expression in {
        "NOT (a IN (1, 2))": ~a.isin(pa.array([1, 2], pa.int32())),
        "a <> 1": a != pa.scalar(1, pa.int32()),
        "NOT (a = 1 AND b)": ~((a == pa.scalar(1, pa.int32())) & b),
        "a = 1 OR b": (a == pa.scalar(1, pa.int32())) | b,
        "a IS NULL AND NOT b": a.is_null() & ~b,
    }.items():
        parsed = Filter.parse(encode_filter(expression, schema), schema)
        found = batch.filter(pa.array(parsed.mask(batch)))
        rows = pa.Table.from_batches([batch])  # noqa: F841 - read by name
        expected = duckdb.sql(f"SELECT * FROM rows WHERE {text}").to_arrow_table()
        assert found.to_pylist() == expected.to_pylist(), text


@settings(max_examples=80, deadline=None)
@given(batches())
def test_statistics_bound_the_values(drawn: tuple[Schema, pa.RecordBatch]) -> None:
    schema, batch = drawn
    stored = statistics.decode(statistics.compute(batch, schema, schema.names), schema, batch.num_rows)
    for column, array in zip(schema.columns, batch.columns, strict=True):
        found = stored[column.id]
        assert found.null_count == array.null_count
        present = array.drop_null()
        if not len(present):
            assert found.lowest is None
            continue
        if found.lowest is None:
            assert column.type.kind in (*types.TEXT_KINDS, *types.BINARY_KINDS)
            continue
        ends = pc.min_max(present)
        for bound, exact, end in (
            (found.lowest, found.lowest_exact, ends["min"]),
            (found.highest, found.highest_exact, ends["max"]),
        ):
            assert exact
            assert bound is not None
            assert statistics.scalar_of(bound, column.type).equals(end)


def test_long_texts_are_cut_to_bounds() -> None:
    schema = Schema.of([Column(0, "s", types.STRING)], schema_id=0)
    for text in ["x" * 100, "\U0010ffff" * 20, "é" * 31]:
        batch = pa.RecordBatch.from_arrays([pa.array([text])], schema=schema.arrow())
        found = statistics.decode(statistics.compute(batch, schema, ["s"]), schema, 1)[0]
        assert isinstance(found.lowest, bytes)
        assert isinstance(found.highest, bytes)
        assert found.lowest < text.encode() < found.highest
        assert not found.lowest_exact
        assert not found.highest_exact
    schema = Schema.of([Column(0, "b", types.BYTES)], schema_id=0)
    batch = pa.RecordBatch.from_arrays([pa.array([b"\xff" * 40])], schema=schema.arrow())
    assert statistics.decode(statistics.compute(batch, schema, ["b"]), schema, 1)[0].highest is None


def test_damaged_statistics_are_decode_errors() -> None:
    schema = Schema.of([Column(0, "a", types.INT)], schema_id=0)
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2], pa.int32())], schema=schema.arrow())
    stored = statistics.compute(batch, schema, ["a"])
    for cut in range(1, len(stored)):
        with pytest.raises(DecodeError):
            statistics.decode(stored[:cut], schema, 2)
    assert statistics.decode(b"\x09" + stored[1:], schema, 2) == {}  # a later version says nothing


SCHEMA = Schema.of(
    [Column(0, "a", types.INT), Column(1, "s", types.STRING), Column(2, "d", types.DATE)], schema_id=0
)


@pytest.mark.parametrize(
    ("expression", "word"),
    [
        (pc.field("nope") == 1, "nope"),
        (pc.utf8_length(pc.field("s")) > 3, "utf8_length"),
        ("a > 1", "pyarrow.compute.Expression"),
        (pc.field("a") > 1.5, "own type"),
    ],
)
def test_what_cannot_travel_is_refused_by_the_client(expression: Any, word: str) -> None:
    with pytest.raises(TableError, match=word) as caught:
        encode_filter(expression, SCHEMA)
    assert caught.value.code is TableErrorCode.INVALID_FILTER


def test_what_is_no_condition_over_the_table_is_refused() -> None:
    other = Schema.of([Column(0, "a", types.STRING), Column(1, "z", types.INT)], schema_id=0)
    for expression in (pc.field("a") == "x", pc.field("z") > 1):
        with pytest.raises(TableError):
            Filter.parse(encode_filter(expression, other), SCHEMA)
    with pytest.raises(TableError):
        Filter.parse(encode_filter(pc.field("a"), SCHEMA), SCHEMA)
    good = encode_filter((pc.field("a") > 5) & (pc.field("s") == "x"), SCHEMA)
    for cut in range(0, len(good), 7):
        with contextlib.suppress(TableError):  # nothing else is raised
            Filter.parse(good[:cut], SCHEMA)


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=60))
def test_rubbish_is_refused(data: bytes) -> None:
    with pytest.raises(TableError):
        Filter.parse(data, SCHEMA)


def test_what_the_tree_does_not_know_pyarrow_computes() -> None:
    expression = pc.add(pc.field("a"), pc.field("a")) > 4
    parsed = Filter.parse(encode_filter(expression, SCHEMA), SCHEMA)
    rows = pa.record_batch({"a": pa.array([1, 2, None, 3], pa.int32())})
    assert parsed.columns == (0,)
    assert parsed.mask(rows).tolist() == [False, False, False, True]
    assert parsed.verdict(lambda _: statistics.ColumnStatistics(4, 0, 1, 3)) is Verdict.SOME


@pytest.mark.parametrize(
    ("expression", "verdict"),
    [
        (pc.field("a") == 5, Verdict.NONE),
        (pc.field("a") >= 10, Verdict.ALL),
        (pc.field("a") > 10, Verdict.SOME),
        (pc.field("a").isin([1, 2, 30]), Verdict.NONE),
        ((pc.field("a") > 10) | (pc.field("s") == "x"), Verdict.SOME),
        ((pc.field("a") > 100) & (pc.field("s") == "x"), Verdict.NONE),
        (~(pc.field("a") > 100), Verdict.ALL),
        (pc.field("d").is_null(), Verdict.ALL),
        (pc.field("d") > datetime.date(2020, 1, 1), Verdict.NONE),
        (pc.starts_with(pc.field("s"), "ab"), Verdict.ALL),
        (pc.starts_with(pc.field("s"), "b"), Verdict.NONE),
    ],
)
def test_verdicts(expression: pc.Expression, verdict: Verdict) -> None:
    batch = pa.RecordBatch.from_pylist([{"a": 10, "s": "abc"}, {"a": 20, "s": "abd"}], schema=SCHEMA.arrow())
    assert verdict_of(Filter.parse(encode_filter(expression, SCHEMA), SCHEMA), SCHEMA, batch) is verdict


def test_decimals_of_any_size_have_exact_bounds() -> None:
    kind = types.decimal(38, 10)
    schema = Schema.of([Column(0, "d", kind)], schema_id=0)
    values = [Decimal("1e27"), Decimal("-1e27"), Decimal("0.0000000001"), None, Decimal("99999999999.5")]
    for chosen in (values, values[2:], values[:2], values[:1] * 2, [Decimal(-1), Decimal(2) ** 70]):
        batch = pa.RecordBatch.from_arrays([pa.array(chosen, kind.arrow())], schema=schema.arrow())
        found = statistics.decode(statistics.compute(batch, schema, ["d"]), schema, len(chosen))[0]
        present = [each for each in chosen if each is not None]
        assert found.lowest == int(min(present) * 10**10) * 10**28
        assert found.highest == int(max(present) * 10**10) * 10**28
