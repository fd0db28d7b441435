"""Values keep their meaning on their way through queries and files into columns of every type.

Python's integers are the oracle for dates and times, and the written values are the oracle for the read ones.
"""

import datetime
import tempfile
from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.tablelayer.client import DataError
from headrace.tablelayer.model.ddl import CopyFrom, CopyTo
from headrace.tablelayer.model.json.python_values import python_values
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.table.path import TablePath
from headrace.tablelayer.model.types import column_types as types
from headrace.tablelayer.model.types.column_types import TypeKind
from headrace.tablelayer.sql.answer import Answer
from headrace.tablelayer.sql.assign import Assignment
from headrace.tablelayer.sql.duck import connect
from headrace.tablelayer.sql.files import copy_from, copy_to
from headrace.tablelayer.tests.model.random_rows import EVERY_TYPE, array_of, edges_of, nested, values_of

NANOS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
DAY = 86_400 * 10**9
TYPES = [
    *EVERY_TYPE, types.time(1), types.timestamp(1), types.timestamp(4), types.timestamp(8), types.timestamp_ltz(0),
    types.timestamp_ltz(6), types.timestamp_ltz(9),
]  # fmt: skip
SECONDS = [
    int((datetime.datetime(year, 1, 1) - datetime.datetime(1970, 1, 1)).total_seconds())
    for year in (1, 1500, 1677, 1678, 1969, 1970, 2262, 2263, 9999)
]
MOMENTS = (
    st.sampled_from(SECONDS)
    .flatmap(
        lambda second: st.integers(-2 * 86_400, 400 * 86_400).flatmap(
            lambda more: st.integers(0, 10**9 - 1).map(lambda nanos: (second + more) * 10**9 + nanos)
        )
    )
    .filter(lambda nanos: SECONDS[0] <= nanos // 10**9 < SECONDS[-1] + 365 * 86_400)
)
"""Nanoseconds since 1970, near to edges."""


def in_unit(data_type):
    """Moments as integers of a type's unit, without finer digits, where they are in its range."""
    step = 10 ** (9 - data_type.precision)
    unit = NANOS[data_type.unit]
    return MOMENTS.map(lambda nanos: nanos // step * step // unit).filter(
        lambda ticks: -(1 << 63) <= ticks < 1 << 63
    )


def some_of(data_type):
    values = values_of(data_type)
    if not data_type.is_nested:
        edges = edges_of(data_type)
        if data_type.kind in types.TIMESTAMP_KINDS:
            # DuckDB refuses to read values beyond 64 bits of microseconds, or to write them into Parquet.
            edges = [each for each in edges if abs(each) * NANOS[data_type.unit] // 1000 < 1 << 63]
            values = st.one_of(values, in_unit(data_type))
        if data_type.kind in types.FLOAT_KINDS:
            edges = [*edges, float("nan")]
        if data_type.kind is TypeKind.TIME or data_type.kind in types.TIMESTAMP_KINDS:
            step = 10 ** (9 - data_type.precision) // NANOS[data_type.unit]
            values = values.map(lambda ticks: ticks // step * step)
        values = st.one_of(values, st.sampled_from(edges)) if edges else values
        if data_type.kind is TypeKind.CHAR:
            values = values.filter(lambda text: len(text) <= data_type.length)
    return st.lists(st.none() | values, max_size=6)


@st.composite
def columns(draw):
    data_type = draw(st.one_of(st.sampled_from(TYPES), nested(["A", "b", "größe", "two words"])))
    return data_type, array_of(data_type, draw(some_of(data_type)))


def shown(rows):
    """Return a text that tells -0.0 from 0.0, and shows NaN."""
    return [repr(python_values(column)) for column in rows.columns]


def table_of(data_type, names):
    schema = Schema.of(
        [Column(place, name, types.INT if name == "id" else data_type) for place, name in enumerate(names)],
        [],
    )
    return SimpleNamespace(path=TablePath("d", "t"), definition=SimpleNamespace(schema=schema))


def copied(data_type, rows, kind, **options):
    """The rows of a table, by way of a file."""
    found = []

    class Written:
        def answered(self, table, answer, names):
            given = pa.Table.from_batches(list(answer.batches()), answer.schema)
            assert names == table.definition.schema.names
            found.append(given)
            return given.num_rows

    table = table_of(data_type, rows.column_names)
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/f.{kind}"
        assert copy_to(Answer(rows=rows), CopyTo(None, file, options)) == rows.num_rows
        connection = SimpleNamespace(table=lambda path: table)
        assert copy_from(connection, Written(), CopyFrom(table.path, None, file, options)) == rows.num_rows
    return found[0] if found else rows.slice(0, 0)


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
@settings(deadline=None, max_examples=40)
@given(columns())
@example((types.decimal(20, 4), pa.array(["12345678901234.5678"]).cast(pa.decimal128(20, 4))))
@example((types.STRING, pa.array(["", None, "NULL", " ", "a\nb"])))
@example((types.BYTES, pa.array([b"", None, b"\\", b"NULL"])))
@example((types.timestamp(9), pa.array([-(1 << 63), 1 - (1 << 63), (1 << 63) - 1]).view(pa.timestamp("ns"))))
@example((types.INT, pa.array([], pa.int32())))
def test_values_copied_to_a_file_are_read_back_equal(kind, given):
    data_type, values = given
    rows = pa.table({"id": pa.array(range(len(values)), pa.int32()), "v": values})
    assert shown(copied(data_type, rows, kind)) == shown(rows)


@pytest.mark.parametrize(
    "texts",
    [
        ["'q'", "# x", "x"],
        ["a;b\t", "a;b1"],
        ["", None, "''", '"', "\\"],
        ["y" * 3_000_000],
        ["a\rb", "c"],
        ["a\nb", "c\rd"],
    ],
)
@pytest.mark.parametrize("options", [{}, {"delimiter": ";", "quote": "'"}, {"nullstr": "x", "header": False}])
def test_texts_are_read_back_from_csv_whatever_they_look_like(texts, options):
    rows = pa.table({"v": texts})
    assert copied(types.STRING, rows, "csv", **options) == rows


@settings(deadline=None, max_examples=60)
@given(columns())
def test_values_of_a_query_are_assigned_unchanged_to_the_same_type(given):
    data_type, values = given
    rows = pa.table({"v": values})
    with connect() as database, Assignment([Column(0, "v", data_type)], "d.t") as assignment:
        database.register("given", rows)
        answer = database.sql("SELECT v FROM given").to_arrow_table()
        assert shown(assignment.rows(answer)) == shown(rows)


MOMENT_TYPES = [types.DATE, *map(types.timestamp, range(10)), *map(types.timestamp_ltz, range(10))]


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(MOMENT_TYPES), st.sampled_from(MOMENT_TYPES), MOMENTS)
@example(types.timestamp(6), types.timestamp(9), 253_402_214_400 * 10**9)
@example(types.timestamp(3), types.timestamp(0), -500_000_000)
def test_a_moment_is_cut_downwards_or_refused(given, wanted, nanos):
    """The rule holds for each of DuckDB's types of moments, and for text."""

    def step(data_type):
        return DAY if data_type.kind is TypeKind.DATE else 10 ** (9 - data_type.precision)

    def unit(data_type):
        return DAY if data_type.kind is TypeKind.DATE else NANOS[data_type.unit]

    nanos = nanos // step(given) * step(given)
    right = nanos // step(wanted) * step(wanted) // unit(wanted)
    is_date = wanted.kind is TypeKind.DATE
    ticks = nanos // unit(given)
    inputs = []
    if -(1 << 63) <= ticks < 1 << 63:
        inputs.append(array_of(given, [None, ticks if given.kind is not TypeKind.DATE else nanos // DAY]))
    moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=nanos // 10**9)
    text = f"{moment:%Y}".zfill(4) + f"-{moment:%m-%d %H:%M:%S}.{nanos % 10**9:09}"
    if not is_date:
        inputs.append(pa.array([None, text]))
    for values in inputs:
        with Assignment([Column(0, "v", wanted)], "d.t") as assignment:
            if -(1 << 63) <= right < 1 << 63:
                got = assignment.rows(pa.table({"v": values})).column(0).chunk(0)
                assert got.type == wanted.arrow()
                assert got.view(pa.int32() if is_date else pa.int64()).to_pylist() == [None, right]
            else:
                with pytest.raises(DataError, match="out of"):
                    assignment.rows(pa.table({"v": values}))


@settings(deadline=None, max_examples=60)
@given(st.integers(0, DAY - 1), st.integers(0, 9))
def test_a_time_of_day_is_cut_to_the_column(nanos, precision):
    wanted = types.time(precision)
    step = 10 ** (9 - precision)
    text = f"{nanos // 3600 // 10**9:02}:{nanos // 60 // 10**9 % 60:02}:{nanos // 10**9 % 60:02}.{nanos % 10**9:09}"
    with Assignment([Column(0, "v", wanted)] * 2, "d.t") as assignment:
        rows = pa.table([pa.array([text]), pa.array([nanos]).view(pa.time64("ns"))], names=["a", "b"])
        got = assignment.rows(rows)
    whole = pa.int32() if wanted.arrow().bit_width == 32 else pa.int64()
    assert [each.chunk(0).view(whole).to_pylist() for each in got.columns] == [
        [nanos // step * step // NANOS[wanted.unit]]
    ] * 2


@pytest.mark.parametrize(
    ("sql", "wanted", "expected"),
    [
        ("10/3", types.decimal(10, 2), "3.33"),
        ("1.005::DECIMAL(10,3)", types.decimal(10, 2), "1.01"),
        ("2.5::DECIMAL(2,1)", types.INT, "3"),
        ("'12:00:00.5'::TIME + INTERVAL 1 HOUR", types.time(0), "13:00:00"),
        ("TIMESTAMP '2024-09-19 12:00:00.9'", types.time(0), "12:00:00"),
        ("row('Ann', 7)", types.row_of(("name", types.STRING), ("age", types.TINYINT)), "{'name': 'Ann', 'age': 7}"),
        ("'{\"age\": 7, \"name\": \"Ann\"}'::JSON", types.row_of(("age", types.INT), ("name", types.STRING)),
         "{'age': 7, 'name': 'Ann'}"),
        ("[1, NULL]", types.array_of(types.BIGINT), "[1, None]"),
        ("['2024-09-19 12:00:00.987']", types.array_of(types.timestamp(1)),
         "[datetime.datetime(2024, 9, 19, 12, 0, 0, 900000)]"),
        ("'epoch'", types.timestamp(3), "1970-01-01 00:00:00"),
        ("'x'::ENUM('x')", types.STRING, "x"),
        ("17::HUGEINT", types.BIGINT, "17"),
    ],
)  # fmt: skip
def test_computed_values_are_rounded_and_cut_like_sql_assignments(sql, wanted, expected):
    with connect() as database, Assignment([Column(0, "v", wanted)], "d.t") as assignment:
        (value,) = assignment.rows(database.sql(f"SELECT {sql} AS v").to_arrow_table()).column(0).to_pylist()
    assert str(value) == expected


@pytest.mark.parametrize(
    ("sql", "wanted", "complaint"),
    [
        ("3000000000", types.INT, "3000000000 does not fit column 'v' of type INT"),
        ("TIMESTAMP '9999-12-31'", types.timestamp(9), "9999-12-31 00:00:00 does not fit .*out of range"),
        ("TIMESTAMP 'infinity'", types.timestamp(3), "infinity"),
        ("TIME '24:00:00'", types.time(6), "before 24:00"),
        ("DATE '2024-09-19'", types.time(6), "cannot become TIME"),
        ("'abc'", types.DATE, "'abc' does not fit column 'v' of type DATE"),
        ("{'b': 1}", types.row_of(("a", types.INT)), "no field 'b'"),
    ],
)
def test_a_value_that_cannot_be_assigned_is_named(sql, wanted, complaint):
    with (
        connect() as database,
        Assignment([Column(0, "v", wanted)], "d.t") as assignment,
        pytest.raises(DataError, match=complaint),
    ):
        assignment.rows(database.sql(f"SELECT {sql} AS v").to_arrow_table())


def test_duckdb_has_the_same_texts_for_the_years_that_it_has():
    """So files that were written earlier or elsewhere can be read."""
    with (
        duckdb.connect() as database,
        Assignment([Column(0, "v", types.timestamp_ltz(6))] * 2, "d.t") as assignment,
    ):
        database.execute("SET TimeZone = 'UTC'")
        rows = database.sql(
            "SELECT t::TIMESTAMPTZ AS t, CAST(t::TIMESTAMPTZ AS VARCHAR) AS text FROM"
            " (SELECT unnest([TIMESTAMP '0001-01-01', '1500-06-07 08:09:10.1', '4000-01-01 (BC)', '12000-01-01']) t)"
        ).to_arrow_table()
        got = assignment.rows(rows)
    assert got.column(0).combine_chunks().equals(got.column(1).combine_chunks())
