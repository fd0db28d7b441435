"""Dates and times as text: JSON's kernels write and read them in years that Python has and in others."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.tablelayer.model.json.rows import json_to_rows, rows_to_json
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.column_types import from_arrow
from headrace.tablelayer.model.types.far_years import date_text, nanos_of, time_text, timestamp_text

NANOS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def json_of(array: pa.Array) -> str:
    (text,) = rows_to_json(pa.record_batch([array], names=["v"])).to_pylist()
    return text.decode()[len('{"v":"') : -len('"}')]


@given(st.integers(-(2**31), 2**31 - 1))
def test_dates(days: int) -> None:
    text = date_text(days)
    assert text == json_of(pa.array([days], pa.int32()).cast(pa.date32()))
    signed = text if text[0] in "+-" else "+" + text
    assert nanos_of(signed) == (days * 86_400 * 10**9, False)


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from(["ms", "us", "ns"]), st.sampled_from([None, "UTC"]))
def test_timestamps(ticks: int, unit: str, zone: str | None) -> None:
    kind = pa.timestamp(unit, zone)
    text = timestamp_text(ticks * NANOS[unit], zoned=zone is not None)
    assert text == json_of(pa.array([ticks], pa.int64()).cast(kind))
    found = json_to_rows(pa.array([f'{{"v":"{text}"}}'.encode()]), [Column(0, "v", from_arrow(kind))])
    assert found.column(0).cast(pa.int64()).to_pylist() == [ticks]
    signed = text if text[0] in "+-" else "+" + text
    assert nanos_of(signed) == (ticks * NANOS[unit], zone is not None)


@given(st.integers(0, 86_400 * 10**9 - 1).filter(lambda nanos: nanos % 1_000))
def test_times(nanos: int) -> None:
    assert time_text(nanos, 9) == json_of(pa.array([nanos], pa.int64()).cast(pa.time64("ns")))


@pytest.mark.parametrize(
    "text",
    ["+10000-02-30", "-0001-02-29", "+10000-13-01", "+10000-01-01T24:00:00", "+10000-01-01T12:60", "+10000-01-01T1:00",
     "+10000-01-01T12:00:00+19:00", "10000-01-01", "+10000-01-01 ", "+1234567890-01-01"],
)  # fmt: skip
def test_a_malformed_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"it is not a date|there is no such"):
        nanos_of(text)
