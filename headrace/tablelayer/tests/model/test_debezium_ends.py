"""Debezium's forms of a moment cover the column's whole range: its first and last tick, and nothing beyond."""

import json

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json.debezium_values import Conventions
from headrace.tablelayer.model.json.rows import json_to_rows
from headrace.tablelayer.model.options.kafka_formats import OutOfRange
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.column_types import timestamp, timestamp_ltz
from headrace.tablelayer.model.types.far_years import nanos_of, timestamp_text

NANOS = {0: 10**9, 3: 10**6, 6: 10**3, 9: 1}
FIRST, LAST = -(1 << 63), (1 << 63) - 1
NEAR = st.integers(-3, 2 * 10**9).flatmap(lambda far: st.sampled_from([FIRST + far, LAST - far]))
YEARS = 1 << 31  # of Java's LocalDate, and of the field


def read(value, kind, units):
    conventions = Conventions(out_of_range=OutOfRange.KEEP, units={"v": units})
    text = json.dumps({"v": value}).encode()
    rows = json_to_rows(pa.array([text]), [Column(0, "v", kind)], make_field=conventions.field)
    return rows.column(0).view(pa.int64()).to_pylist()


@given(NEAR, st.sampled_from([3, 6, 9]), st.booleans())
@example(LAST, 9, False)
@example(FIRST, 9, True)
@example(FIRST + 1, 9, False)
def test_texts_numbers_and_objects_reach_the_same_ends(ticks, precision, zoned):
    kind = (timestamp_ltz if zoned else timestamp)(precision)
    nanos = ticks * NANOS[precision]
    text = timestamp_text(nanos, zoned=zoned)
    assert nanos_of(text if text[0] in "+-" else f"+{text}")[0] == nanos
    date, clock = text.rstrip("Z").split("T")
    year, month, day = date.rsplit("-", 2)
    hour, minute, second = clock.split(":")
    moment = {
        "year": int(year), "month": int(month), "day": int(day), "hour": int(hour), "minute": int(minute),
        "second": int(second.split(".")[0]), "nanos": nanos % 10**9, **({"offsetSeconds": 0} if zoned else {}),
    }  # fmt: skip
    forms = [text, moment] + ([ticks] if FIRST <= ticks <= LAST else [])
    for form in forms:
        if FIRST <= ticks <= LAST:
            assert read(form, kind, {3: "ms", 6: "us", 9: "ns"}[precision]) == [ticks]
        else:
            with pytest.raises(RowError, match="out of the range"):
                read(form, kind, "ns")
