"""Literals of dates and times, with all nine digits."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.tablelayer.model.ddl import Insert, create_table_sql, parse
from headrace.tablelayer.model.types.column_types import time, timestamp, timestamp_ltz
from headrace.tablelayer.model.types.far_years import time_text, timestamp_text
from headrace.tablelayer.model.types.values import canonical, scalar

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
