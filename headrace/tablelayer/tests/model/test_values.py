"""Literals of dates and times with all nine digits, and of floats."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.tablelayer.model.ddl import Insert, create_table_sql, parse
from headrace.tablelayer.model.types.column_types import DOUBLE, FLOAT, time, timestamp, timestamp_ltz
from headrace.tablelayer.model.types.far_years import time_text, timestamp_text
from headrace.tablelayer.model.types.values import canonical, scalar, typed

DAY = 86_400 * 10**9


def ticks_of(value, unit):
    return pa.array([value], unit).cast(pa.int64()).to_pylist()[0]


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.booleans())
def test_a_timestamp_of_nanoseconds_is_read_kept_and_shown_exactly(nanos, zoned):
    kind = timestamp_ltz(9) if zoned else timestamp(9)
    text = timestamp_text(nanos, zoned=zoned)
    kept = canonical(text, kind)
    assert ticks_of(scalar(kept, kind), kind.arrow()) == nanos
    assert canonical(kept, kind) == kept
    word = "TIMESTAMP_LTZ" if zoned else "TIMESTAMP"
    (insert,) = parse(f"INSERT INTO t VALUES ({word} '{text}')", "d")
    assert isinstance(insert, Insert)
    (value,) = insert.rows[0]
    assert ticks_of(value, kind.arrow()) == nanos
    assert canonical(value, kind) == kept


@given(st.integers(0, DAY - 1))
def test_a_time_of_nanoseconds_is_read_kept_and_shown_exactly(nanos):
    (made,) = parse(f"CREATE TABLE t (a TIME(9) DEFAULT TIME '{time_text(nanos, 9)}')", "d")
    (again,) = parse(create_table_sql(made.definition), "d")
    for statement in (made, again):
        (column,) = statement.definition.schema.columns
        assert ticks_of(column.default_scalar(), pa.time64("ns")) == nanos


@pytest.mark.parametrize(
    ("text", "kind", "complaint"),
    [
        ("12:00:00.123456789", time(8), "more digits than TIME\\(8\\)"),
        ("12:00:00.1234567", time(6), "more digits than TIME\\(6\\)"),
        ("1677-09-21 00:12:43.145224191", timestamp(9), "out of the range"),
        ("2262-04-11 23:47:16.854775808", timestamp(9), "out of the range"),
        ("2024-01-01 00:00:00.123456789+02:00", timestamp(9), "has a zone"),
    ],
)
def test_digits_and_years_that_a_type_does_not_have_are_refused(text, kind, complaint):
    with pytest.raises(ValueError, match=complaint):
        canonical(text, kind)


@given(st.floats(-3e38, 3e38))
def test_a_float_has_the_nearest_value_of_its_type(number):
    assert typed(repr(number), FLOAT) == float(np.float32(number))
    assert typed(repr(number), DOUBLE) == number
    assert scalar(canonical(typed(repr(number), FLOAT), FLOAT), FLOAT).as_py() == float(np.float32(number))


@pytest.mark.parametrize(("text", "kind"), [("1e39", FLOAT), ("-3.5e38", FLOAT), ("1e309", DOUBLE)])
def test_a_number_out_of_the_range_of_a_float_is_not_infinity(text, kind):
    with pytest.raises(ValueError, match="is out of the range"):
        typed(text, kind)
    assert typed("-Infinity", kind) == -np.inf
