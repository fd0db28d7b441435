"""Filters against DuckDB, and statistics against the filters: a skipped batch has no wanted row."""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.errors import DecodeError
from headrace.tablelayer.model.batches import statistics
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.filters import filters, nodes, protobuf, substrait
from headrace.tablelayer.model.filters import literals as literal_kernels
from headrace.tablelayer.model.filters.conditions import arrow_expression, filter_of_sql, push_down
from headrace.tablelayer.model.filters.filters import Filter, Verdict, encode_filter
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.types import column_types as types
from headrace.tablelayer.model.types.column_types import DataType, TypeKind
from headrace.tablelayer.model.types.text import parse_type
from headrace.tablelayer.model.types.values import typed
from headrace.tablelayer.tests.model.random_rows import EVERY_TYPE, array_of, batches, values_of

COMPARED = EVERY_TYPE
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
    kind = draw(st.sampled_from(["sign", "sign", "sign", "in", "isin", "null", "prefix", "flag", "nan"]))
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
    if kind == "isin" and column.type.kind not in types.FLOAT_KINDS:  # NaN is NaN there, and 0.0 is not -0.0
        return field.isin(array_of(column.type, [*drawn, *draw(st.sampled_from([[], [None]]))]))
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
def test_filters_equal_pyarrow_and_statistics_hide_no_row(
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
    """The assertion of the property above fails when a bound is too narrow or nulls are not counted."""
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


def test_case_expressions_equal_pyarrow() -> None:
    text = "ROW<x TIMESTAMP(9)>"
    schema = Schema.of(
        [Column(0, "n", parse_type(text)), Column(1, "a", types.INT), Column(2, "b", types.BOOLEAN),
         Column(3, "t", types.timestamp(9))],
        schema_id=0,
    )  # fmt: skip
    rows = [
        {"n": None, "a": a, "b": b, "t": t}
        for a in (None, 1, 2)
        for b in (None, True, False)
        for t in (None, 5, 6)
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=schema.arrow())
    a, b, t = (pc.field(name) for name in "abt")
    one, moment = pa.scalar(1, pa.int32()), pa.scalar(5, pa.timestamp("ns"))
    for expression in (
        pc.if_else(b, a == one, t > moment),
        pc.if_else(b, a, pa.scalar(2, pa.int32())) == one,
        pc.case_when(pc.make_struct(b, a == one), t == moment, a != one, b),
        ~pc.if_else(a == one, t.isin(pa.array([5, None], pa.timestamp("ns"))), b),
        t < moment,
    ):
        parsed = Filter.parse(encode_filter(expression, schema), schema)
        found = parsed.mask(batch.select([schema.columns[position].name for position in parsed.columns]))
        assert np.flatnonzero(found).tolist() == wanted_by_pyarrow(batch, expression), expression


def test_a_case_of_very_many_clauses_is_refused() -> None:
    schema = Schema.of([Column(0, "a", types.INT)], schema_id=0)
    conditions = [pc.field("a") == pa.scalar(number, pa.int32()) for number in range(150)]
    flags = [pc.scalar(number % 2 == 0) for number in range(151)]
    for count, taken in ((50, True), (150, False)):
        case = pc.case_when(pc.make_struct(*conditions[:count]), *flags[: count + 1])
        if taken:
            parsed = Filter.parse(encode_filter(case, schema), schema)
            batch = pa.record_batch({"a": pa.array([0, 1, 48, 49, 99], pa.int32())})
            assert parsed.mask(batch).tolist() == [True, False, True, False, True]
        else:
            with pytest.raises(TableError, match="nested deeper than 100"):
                encode_filter(case, schema)


def test_times_of_another_type_than_the_column_are_refused() -> None:
    schema = Schema.of([Column(0, "t", types.timestamp(9)), Column(1, "d", types.time(3))], schema_id=0)
    for expression in (
        pc.field("t") > pa.scalar(1, pa.timestamp("ns", "UTC")),
        pc.field("t") > pa.scalar(1, pa.int64()),
        pc.field("d").isin(pa.array([1], pa.timestamp("ns"))),
    ):
        with pytest.raises(TableError, match="cannot be compared") as caught:
            encode_filter(expression, schema)
        assert caught.value.code is TableErrorCode.INVALID_FILTER


def test_in_treats_nulls_like_pyarrow() -> None:
    schema = Schema.of([Column(0, "a", types.INT)], schema_id=0)
    every = [[None, 1, 2, 3], [None], [1], [3, None], [2, 2]]
    for values, members in itertools.product(every, ([1, 2], [1, None], [None], [9])):
        batch = pa.RecordBatch.from_arrays([pa.array(values, pa.int32())], schema=schema.arrow())
        found = pc.field("a").isin(pa.array(members, pa.int32()))
        for expression in (found, ~found, found | (pc.field("a") == pa.scalar(3, pa.int32()))):
            expected = wanted_by_pyarrow(batch, expression)
            parsed = Filter.parse(encode_filter(expression, schema), schema)
            assert np.flatnonzero(parsed.mask(batch)).tolist() == expected, (values, members)
            verdict = verdict_of(parsed, schema, batch)
            assert verdict is not Verdict.NONE or not expected
            assert verdict is not Verdict.ALL or len(expected) == len(values)
            if len(set(values)) == 1 and members == [9]:
                assert verdict is (Verdict.ALL if len(expected) else Verdict.NONE)


MOMENTS = Schema.of(
    [
        Column(0, "seen", types.timestamp(3)),
        Column(1, "z", types.timestamp_ltz(6)),
        Column(2, "d", types.DATE),
        Column(3, "n", types.timestamp(9)),
    ],
    schema_id=0,
)


@pytest.mark.parametrize(
    ("condition", "dialect", "whole"),
    [
        ("seen = TIMESTAMP '2024-09-19 12:00:00'", "duckdb", True),
        ("n = TIMESTAMP '2024-09-19 12:00:00' OR n > '2024-09-20 12:00:00.000001'", "duckdb", True),
        ("n NOT IN (TIMESTAMP '2024-09-19 12:00:00', TIMESTAMP '2024-09-20')", "duckdb", True),
        ("seen >= '2024-09-19 12:00:00' AND seen < TIMESTAMP '2024-09-20'", "duckdb", True),
        ("seen < TIMESTAMP_NTZ '2024-09-19 12:00:00'", "spark", True),
        ("seen < TIMESTAMP '2024-09-19 12:00:00'", "spark", False),
        ("z > TIMESTAMPTZ '2024-09-19 14:00:00+02:00'", "duckdb", True),
        ("z BETWEEN TIMESTAMP '2024-09-19 12:00:00' AND '2024-09-19 12:00:01Z'", "duckdb", True),
        ("z > TIMESTAMP_NTZ '2024-09-19 12:00:00'", "spark", False),
        ("d > DATE '2024-09-18'", "spark", True),
        ("d > TIMESTAMP '2024-09-18 12:00:00'", "duckdb", False),
        ("seen = TIMESTAMP '2024-09-19 12:00:00.0005'", "duckdb", False),
    ],
)
def test_moments_in_sql_are_pushed(condition: str, dialect: str, whole: bool) -> None:
    pushed = push_down([condition], MOMENTS, dialect)
    assert pushed.complete is whole
    if not whole:
        return
    noon = datetime.datetime(2024, 9, 19, 12)
    moments = [None, *(noon + datetime.timedelta(seconds=each) for each in (-90_000, -1, 0, 1, 90_000))]
    rows = pa.table(
        [
            pa.array(moments, pa.timestamp("ms")),
            pa.array(moments, pa.timestamp("us", "UTC")),
            pa.array([each and each.date() for each in moments], pa.date32()),
            pc.add_checked(pa.array(moments, pa.timestamp("ns")).cast(pa.int64()), 1).cast(
                pa.timestamp("ns")
            ),
        ],
        schema=MOMENTS.arrow(),
    )
    (batch,) = rows.to_batches()
    assert pushed.predicate is not None
    parsed = Filter.parse(
        encode_filter(arrow_expression(pushed.predicate, MOMENTS.arrow()), MOMENTS), MOMENTS
    )
    chosen = batch.select([MOMENTS.columns[position].name for position in parsed.columns])
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("rows", rows)
        text = condition.replace("TIMESTAMP_NTZ", "TIMESTAMP")
        expected = database.sql(f"SELECT * FROM rows WHERE {text}").to_arrow_table()
    assert batch.filter(pa.array(parsed.mask(chosen))).to_pylist() == expected.to_pylist()


CONDITIONS = [
    "s LIKE 'a%'", "s NOT LIKE 'a%'", "NOT s LIKE 'a%'", "NOT (s NOT LIKE 'a%')", "s ~~ 'a%'", "s !~~ 'a%'",
    "s ILIKE 'A%'", "s NOT ILIKE 'A%'", "s LIKE 'a%' ESCAPE '!'", "s NOT LIKE '!%%' ESCAPE '!'", "s LIKE '%a'",
    "s LIKE ANY ('a%', 'b%')", "s GLOB 'a*'", "s SIMILAR TO 'a.*'", "s COLLATE NOCASE = 'APPLE'", "s LIKE ''",
    "a BETWEEN 1 AND 3", "a NOT BETWEEN 1 AND 3", "a BETWEEN SYMMETRIC 3 AND 1", "a NOT BETWEEN SYMMETRIC 3 AND 1",
    "a IN (1, 3)", "a NOT IN (1, 3)", "NOT a NOT IN (1, 3)", "a IN (1, NULL)", "a NOT IN (1, NULL)", "a IN (a)",
    "a IS NULL", "a IS NOT NULL", "NOT a IS NULL", "a ISNULL", "a NOTNULL", "f IS TRUE", "f IS NOT FALSE", "NOT f",
    "a IS DISTINCT FROM 1", "a IS NOT DISTINCT FROM NULL", "a = 1 OR NULL", "a <> 1", "a != 1", "NOT a <> 1",
    "(a = 1) = f", "f = (a = 1)", "f = TRUE", "f <> TRUE", "a = TRY_CAST('1' AS INT)", "d > TRY_CAST('x' AS DATE)",
    "d = DATE '2024-01-02'", "d < '2024-01-02'", "d >= TIMESTAMP '2024-01-01 12:00:00'", "a = -1", "a = - 1",
    "a = +1", "a = 1.0", "a < 1.5", "a = '1'", "s = 'apple' AND NOT (a = 1 OR s LIKE 'b%')", "s > 'apple'",
    "CASE WHEN a = 1 THEN f ELSE s LIKE 'a%' END", "a = 1 AND s NOT LIKE 'b%' AND f IS NOT NULL",
]  # fmt: skip


@pytest.mark.parametrize("condition", CONDITIONS)
def test_pushed_conditions_keep_all_rows_of_duckdb(condition: str) -> None:
    schema = Schema.of(
        [Column(0, "a", types.INT), Column(1, "s", types.STRING), Column(2, "f", types.BOOLEAN),
         Column(3, "d", types.DATE)], schema_id=0,
    )  # fmt: skip
    days = [None, datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)]
    texts = [None, "", "apple", "Avocado", "banana", "!%x"]
    rows = pa.Table.from_pylist(
        [
            {"a": a, "s": s, "f": f, "d": days[index % 3]}
            for index, (a, s, f) in enumerate(
                itertools.product((None, -1, 1, 2, 3), texts, (None, True, False))
            )
        ],
        schema=schema.arrow(),
    )
    numbered = rows.append_column("n", pa.array(range(rows.num_rows)))
    for text in (condition, f"NOT ({condition})", f"({condition}) IS NULL"):
        pushed = push_down([text], schema, "duckdb")
        kept = numbered
        if pushed.predicate is not None:
            kept = numbered.filter(arrow_expression(pushed.predicate, schema.arrow()))
        with duckdb.connect() as database:
            database.register("numbered", numbered)
            try:
                expected = database.sql(f"SELECT n FROM numbered WHERE {text}").to_arrow_table()
            except duckdb.ParserException:
                assert pushed.predicate is None, "DuckDB has to refuse it"
                continue
        wanted, found = set(expected["n"].to_pylist()), set(kept["n"].to_pylist())
        assert wanted <= found, text
        assert not pushed.complete or wanted == found, text


_NANOS_MAX = 2**63 - 1
_INSTANTS = [
    -_NANOS_MAX - 1, -_NANOS_MAX, -1, 0, 1, 1_704_164_645_123_456_789, _NANOS_MAX - 1, _NANOS_MAX
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "nanos"),
    [
        ("1500-01-01", -(10**19)),
        ("0001-01-01 00:00:00", -(10**20)),
        ("1677-09-21 00:12:43.145224191", -_NANOS_MAX - 2),
        ("1677-09-21 00:12:43.145224192", -_NANOS_MAX - 1),
        ("1677-09-21 00:12:43.145224193", -_NANOS_MAX),
        ("1969-12-31 23:59:59.999999999", -1),
        ("2024-01-02 03:04:05.123456789", 1_704_164_645_123_456_789),
        ("2262-04-11 23:47:16.854775807", _NANOS_MAX),
        ("2262-04-11 23:47:16.854775808", _NANOS_MAX + 1),
        ("9999-12-31", 10**20),
        ("123456-02-29", 10**21),
    ],
)
@pytest.mark.parametrize("data_type", [types.timestamp(9), types.timestamp_ltz(9)])
def test_any_moment_compares_with_nanoseconds(text: str, nanos: int, data_type: DataType) -> None:
    schema = Schema.of([Column(0, "t", data_type)], schema_id=0)
    values = pa.array([None, *_INSTANTS], pa.int64()).cast(data_type.arrow())
    batch = pa.RecordBatch.from_arrays([values], schema=schema.arrow())
    signs = {"=": operator.eq, "<>": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt,
             ">=": operator.ge}  # fmt: skip
    for word, holds in signs.items():
        for condition in (f"t {word} '{text}'", f"t {word} TIMESTAMP '{text}'"):
            parsed = Filter.parse(encode_filter(filter_of_sql(condition, schema), schema), schema)
            expected = [index for index, each in enumerate(_INSTANTS, 1) if holds(each, nanos)]
            assert np.flatnonzero(parsed.mask(batch)).tolist() == expected, condition
    parsed = Filter.parse(encode_filter(filter_of_sql(f"t NOT IN ('{text}')", schema), schema), schema)
    assert parsed.mask(batch).sum() == sum(each != nanos for each in _INSTANTS)


@pytest.mark.parametrize("text", ["0001-01-01 00:00:00+05:00", "9999-12-31 23:00:00-05:00"])
def test_a_moment_that_is_outside_of_pythons_years_in_utc_is_not_pushed(text: str) -> None:
    schema = Schema.of([Column(0, "t", types.timestamp_ltz(3))], schema_id=0)
    pushed = push_down([f"t > '{text}'", f"t IN (TIMESTAMPTZ '{text}')"], schema, "duckdb")
    assert pushed.predicate is None
    assert len(pushed.left) == 2
    with pytest.raises(ValueError, match="not in the years 1 to 9999"):
        typed(text, types.timestamp_ltz(3))


@pytest.mark.parametrize("year", [1, 1600, 2300, 9999])
def test_any_literal_of_pyarrow_compares_with_nanoseconds(year: int) -> None:
    schema = Schema.of([Column(0, "t", types.timestamp(9))], schema_id=0)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([None, *_INSTANTS], pa.int64()).cast(pa.timestamp("ns"))], schema=schema.arrow()
    )
    field, far = pc.field("t"), pa.scalar(datetime.datetime(year, 1, 1), pa.timestamp("us"))
    nanos = -(10**20) if year < 2000 else 10**20
    for sign in _SIGNS:
        for expression, holds in (
            (sign(field, far), lambda each, sign=sign: sign(each, nanos)),
            (sign(pc.scalar(far), field), lambda each, sign=sign: sign(nanos, each)),
        ):
            parsed = Filter.parse(encode_filter(expression, schema), schema)
            expected = [index for index, each in enumerate(_INSTANTS, 1) if holds(each)]
            assert np.flatnonzero(parsed.mask(batch)).tolist() == expected, str(expression)
    among = field.isin(pa.array([far.as_py(), datetime.datetime(1970, 1, 1)], pa.timestamp("us")))
    parsed = Filter.parse(encode_filter(among, schema), schema)
    assert np.flatnonzero(parsed.mask(batch)).tolist() == [4]


def test_null_semantics_are_those_of_sql() -> None:
    schema = Schema.of([Column(0, "a", types.INT), Column(1, "b", types.BOOLEAN)], schema_id=0)
    batch = pa.RecordBatch.from_pylist(
        [{"a": a, "b": b} for a in (None, 1, 2, 3) for b in (None, True, False)], schema=schema.arrow()
    )
    a, b = pc.field("a"), pc.field("b")
    for text, expression in {
        "NOT (a IN (1, 2))": filter_of_sql("NOT a IN (1, 2)", schema),
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
def test_an_unsupported_expression_is_refused_by_the_client(expression: Any, word: str) -> None:
    with pytest.raises(TableError, match=word) as caught:
        encode_filter(expression, SCHEMA)
    assert caught.value.code is TableErrorCode.INVALID_FILTER


def test_a_filter_for_another_schema_is_refused() -> None:
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


A, S, D = map(pc.field, "asd")


@pytest.mark.parametrize(
    "expression",
    [
        pc.add(A, A) > 4,
        pc.add_checked(A, A) > 4,
        A - pa.scalar(3, pa.int32()) >= 0,
        A * A > A + A,
        A / pa.scalar(2, pa.int32()) == 1,
        pc.negate(A) < -2,
        pc.abs(A) == 3,
        A < A,
        A <= A,
        pc.scalar(3) <= A,
        pc.ends_with(S, "c"),
        pc.match_substring(S, "B", ignore_case=True),
        pc.starts_with(S, "A", ignore_case=True),
        pc.is_nan(pc.add(A, A)),
        ~(A + A).is_null() & (A != 2),
        (A > 1) == (S == "abc"),
        pa.scalar(datetime.date(2020, 1, 1)) < D,
        A.isin([1, 7, 3_000_000_000]),
    ],
    ids=str,
)
def test_functions_computed_per_row_equal_pyarrow(expression: pc.Expression) -> None:
    rows = pa.record_batch(
        {
            "a": pa.array([1, 2, None, -3, 3], pa.int32()),
            "s": pa.array(["abc", None, "ABC", "xbx", ""]),
            "d": pa.array([None, datetime.date(2021, 1, 1), None, datetime.date(2019, 1, 1), None]),
        }
    )
    parsed = Filter.parse(encode_filter(expression, SCHEMA), SCHEMA)
    chosen = rows.select([SCHEMA.columns[position].name for position in parsed.columns])
    assert np.flatnonzero(parsed.mask(chosen)).tolist() == wanted_by_pyarrow(rows, expression)


@pytest.mark.parametrize(
    ("expression", "word"),
    [
        (pc.binary_repeat(S, 1_000_000) == "x", "binary_repeat"),
        (pc.utf8_upper(S) == "X", "utf8_upper"),
        (pc.if_else(A > 1, "x" * 1_000_000, S) == "x", "a text as a value of an if-then-else"),
        (A.cast(pa.int64(), safe=False) > 1, "cast"),
    ],
)
def test_functions_that_are_not_listed_are_refused_by_name(expression: pc.Expression, word: str) -> None:
    data = bytes(expression.to_substrait(SCHEMA.arrow(), allow_arrow_extensions=True))
    with pytest.raises(TableError, match=word) as caught:
        Filter.parse(data, SCHEMA)
    assert caught.value.code is TableErrorCode.INVALID_FILTER


@pytest.mark.parametrize("count", [20_000, 200_000])
def test_an_in_of_very_many_values_is_one_set(count: int) -> None:
    """An IN of 20,000 values overflowed the stack of the reading thread when each became an OR."""
    values = pa.array(range(0, 3 * count, 3), pa.int32())
    rows = pa.record_batch({"a": pa.array([None, 0, 1, 3 * count - 3, 3 * count, 9], pa.int32())})
    for expression, expected in ((A.isin(values), [1, 3, 5]), (~A.isin(values), [0, 2, 4])):
        data = encode_filter(expression, SCHEMA)
        assert len(data) < 12 * count
        parsed = Filter.parse(data, SCHEMA)
        assert np.flatnonzero(parsed.mask(rows)).tolist() == expected
    texts = pa.array([f"text {n}" for n in range(count)])
    parsed = Filter.parse(encode_filter(S.isin(texts), SCHEMA), SCHEMA)
    few = pa.record_batch({"s": pa.array([None, "text 7", "text", f"text {count - 1}", "text 7 ", ""])})
    assert np.flatnonzero(parsed.mask(few)).tolist() == [1, 3]
    many = pa.record_batch({"s": pa.concat_arrays([texts, few.column("s")])})
    assert np.flatnonzero(parsed.mask(many)).tolist() == [*range(count), count + 1, count + 3]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_an_in_list_equals_many_comparisons(data: st.DataObject) -> None:
    """The rule holds for every type; few values are looked up one by one, many are hashed."""
    kind = data.draw(st.sampled_from([each for each in COMPARED if not each.is_nested]))
    schema = Schema.of([Column(0, "c", kind)], schema_id=0)
    drawn = data.draw(st.lists(value_of(kind), min_size=1, max_size=40))
    rows = data.draw(st.lists(st.none() | value_of(kind) | st.sampled_from(drawn), max_size=6))
    batch = pa.RecordBatch.from_arrays([array_of(kind, rows)], schema=schema.arrow())
    values = array_of(kind, drawn)
    field = pc.field("c")
    compared = functools.reduce(operator.or_, [field == each for each in values])
    expected = wanted_by_pyarrow(batch, compared)
    parsed = Filter.parse(encode_filter(field.isin(values), schema), schema)
    assert np.flatnonzero(parsed.mask(batch)).tolist() == expected
    large = pa.concat_batches([batch] * 40)
    assert np.flatnonzero(parsed.mask(large)).tolist() == wanted_by_pyarrow(large, compared)
    verdict = verdict_of(parsed, schema, batch)
    assert verdict is not (Verdict.NONE if expected else Verdict.ALL) or not rows


def test_a_condition_in_sql_travels_as_sets_of_values() -> None:
    expression = filter_of_sql(f"NOT a IN ({', '.join(map(str, range(20_000)))})", SCHEMA)
    parsed = Filter.parse(encode_filter(expression, SCHEMA), SCHEMA)
    rows = pa.record_batch({"a": pa.array([5, None, 20_000, -1], pa.int32())})
    assert parsed.mask(rows).tolist() == [False, False, True, True]
    assert parsed.verdict(lambda _: statistics.ColumnStatistics(4, 0, 7, 7, True, True)) is Verdict.NONE
    equal = filter_of_sql(" OR ".join(f"a = {n}" for n in range(100)) + " OR s = 'x'", SCHEMA)
    assert len(encode_filter(equal, SCHEMA)) < 2_000


def test_a_long_chain_is_not_deep_and_a_deep_filter_is_refused() -> None:
    rows = pa.record_batch({"a": pa.array([None, 0, 1, 60], pa.int32())})
    sql = filter_of_sql(" OR ".join(f"a > {n}" for n in range(59, -1, -1)), SCHEMA)
    assert Filter.parse(encode_filter(sql, SCHEMA), SCHEMA).mask(rows).tolist() == [False, False, True, True]
    inner = bytes(encode_filter(pa.scalar(0, pa.int32()) < A, SCHEMA))
    long = joined(inner, "or", 400)
    assert Filter.parse(long, SCHEMA).mask(rows).tolist() == [False, False, True, True]
    with pytest.raises(TableError, match="more than 1000 parts"):
        Filter.parse(joined(inner, "or", 1_001), SCHEMA)
    unsent = functools.reduce(operator.or_, [pa.scalar(n, pa.int32()) < A for n in range(25)])
    with pytest.raises(TableError, match="nest them evenly"):
        encode_filter(unsent, SCHEMA)
    quoted = (S == "((((((((((((((((((((((((") | (pa.scalar(1, pa.int32()) < A)
    assert encode_filter(quoted, SCHEMA)
    for depth, refused in ((90, False), (200, True), (20_000, True)):
        data = joined(inner, "not", depth)
        with pytest.raises(TableError, match="deeper than 100") if refused else contextlib.nullcontext():
            Filter.parse(data, SCHEMA)


def joined(data: bytes, word: str, depth: int) -> bytes:
    """NOT of NOT of … of the condition of an encoded filter, or the condition OR (the condition OR …)."""
    number = protobuf._number
    fields = list(protobuf.Walk().fields(memoryview(data)))
    (declaration,) = (value for each, value in fields if each == 2)
    (root,) = (value for each, value in fields if each == 3)
    condition = bytes(dict(protobuf.Walk().fields(root))[1])
    # scalar_function{function_reference: 9, arguments: {value}}, from the inside to the outside: heads, then tails.
    heads, size = list[bytes](), len(condition)
    first = (
        b""
        if word == "not"
        else b"\x22"
        + number(len(b"\x1a" + number(len(condition)) + condition))
        + b"\x1a"
        + number(len(condition))
        + condition
    )
    for _ in range(depth):
        argument = b"\x1a" + number(size)
        call = b"\x08\x09" + first + b"\x22" + number(len(argument) + size) + argument
        head = b"\x1a" + number(len(call) + size) + call
        heads.append(head)
        size += len(head)
    expression = b"".join(heads[::-1]) + condition

    def message(tag: int, body: bytes) -> bytes:
        return bytes([tag << 3 | 2]) + number(len(body)) + body

    return b"".join(
        (
            message(2, bytes(declaration)),
            message(2, message(3, b"\x10\x09" + message(3, word.encode()))),
            message(3, message(1, expression)),
            message(4, bytes(dict(fields)[4])),
        )
    )


MESSAGES = [
    each
    for each in vars(substrait).values()
    if isinstance(each, type) and issubclass(each, msgspec.Struct) and each is not substrait.Parsed
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: each.__name__)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_messages_are_read_and_written_as_by_protobuf(
    message: type[msgspec.Struct], data: st.DataObject
) -> None:
    """google.protobuf, which has the numbers of the fields from the declaration, is the oracle."""
    file = descriptor_pb2.FileDescriptorProto(name=message.__name__, syntax="proto3")
    declared = file.message_type.add(name=message.__name__)
    values = {}
    for number, (name, kind, is_repeated) in protobuf._declared(message).items():
        form = {int: declared.field.add().TYPE_INT64, str: 9}.get(kind, 12)
        declared.field[-1].MergeFrom(
            descriptor_pb2.FieldDescriptorProto(
                name=name, number=number, type=form, label=3 if is_repeated else 1
            )
        )
        one = {int: st.integers(-(1 << 63), (1 << 63) - 1), str: st.text()}.get(kind, st.binary(max_size=300))
        values[name] = data.draw(st.lists(one, max_size=3) if is_repeated else one)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    oracle = message_factory.GetMessageClass(pool.FindMessageTypeByName(message.__name__))
    encoded = oracle(**values).SerializeToString()
    read = protobuf.Walk().read(message, memoryview(encoded))
    assert oracle.FromString(bytes(protobuf.written(read))) == oracle.FromString(encoded)
    for name, value in values.items():
        found = getattr(read, name)
        assert (value or None) == (found or None) or list(map(bytes, found)) == value


def test_filters_are_bounded_in_size_and_depth() -> None:
    with pytest.raises(TableError, match="the maximum is 4194304"):
        Filter.parse(bytes((4 << 20) + 1), SCHEMA)
    with pytest.raises(TableError, match="the maximum is 4194304"):
        encode_filter(S.isin(pa.array([f"{n:0100}" for n in range(50_000)])), SCHEMA)
    with pytest.raises(TableError, match="more than 50000 parts"):
        Filter.parse(b"\x32\x00" * 60_000, SCHEMA)
    for data in (
        b"\x12\x02\x0a\x00",
        b"\x12\x05\x0a\x03\x62\x05x",
        b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    ):
        with pytest.raises(ValueError, match=r"literal|cut off"):
            literal_kernels.Options.of(memoryview(data))


def test_few_rows_at_once_are_computed_of_a_filter_of_many_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of all parts of a filter are in memory at the same time."""
    monkeypatch.setattr(filters, "_COMPUTED_BYTES", 1 << 20)
    sizes: list[int] = []
    evaluate = nodes.Call.evaluate
    monkeypatch.setattr(
        nodes.Call,
        "evaluate",
        lambda self, arrays: sizes.append(len(arrays[0])) or evaluate(self, arrays),
    )
    expression = functools.reduce(
        operator.and_, [A + pa.scalar(n, pa.int32()) > pa.scalar(n, pa.int32()) for n in range(6)]
    )
    parsed = Filter.parse(encode_filter(expression, SCHEMA), SCHEMA)
    rows = pa.record_batch({"a": pa.array(np.arange(-9_000, 9_000), pa.int32())})
    assert int(parsed.mask(rows).sum()) == 8_999
    assert max(sizes) <= (1 << 20) // (16 * 12)


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


def combined(atoms: list[pc.Expression]) -> Iterator[pc.Expression]:
    some = [*atoms, *(~each for each in atoms)]
    yield from some
    for left, right in itertools.combinations(some, 2):
        yield left & right
        yield left | right
        yield ~(left | right)


@pytest.mark.parametrize(
    ("kind", "values", "atoms"),
    [
        (types.INT, [None, 1, 2], [A < 2, A <= 1, A == 1, A != 1, A.is_null(), A.isin([0, 2])]),
        (types.DOUBLE, [None, 1.0, math.nan], [A < 2.0, A == 1.0, A != 1.0, A.is_nan(), A.is_valid()]),
        (
            types.STRING,
            [None, "a", "ab"],
            [A == "a", A > "a", pc.starts_with(A, "a"), pc.starts_with(A, "ab"), A.isin(["", "ab"])],
        ),
    ],
)
def test_the_verdict_on_each_small_batch_is_true(
    kind: Any, values: list[Any], atoms: list[pc.Expression]
) -> None:
    """NONE and ALL are right for every batch, and a batch that one comparison excludes is not read."""
    schema = Schema.of([Column(0, "a", kind)], schema_id=0)
    found: list[tuple[pa.RecordBatch, Any]] = []
    for count in (1, 2):
        for rows in itertools.combinations_with_replacement(values, count):
            batch = pa.RecordBatch.from_arrays([pa.array(rows, kind.arrow())], schema=schema.arrow())
            stored = statistics.decode(statistics.compute(batch, schema, ["a"]), schema, count)
            found.append((batch, stored.get))
    said = Counter[Verdict]()
    for expression in combined(atoms):
        parsed = Filter.parse(encode_filter(expression, schema), schema)
        for batch, find in found:
            verdict, wanted = parsed.verdict(find), int(parsed.mask(batch).sum())
            said[verdict] += 1
            if verdict is not Verdict.SOME:
                expected = batch.num_rows if verdict is Verdict.ALL else 0
                assert wanted == expected, (str(expression), batch.to_pylist())
    assert min(said.values()) > 100, said
