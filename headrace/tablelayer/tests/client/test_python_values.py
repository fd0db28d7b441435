"""Python values in: a value's conversion does not depend on its neighbours, and is exact or refused."""

import datetime as dt
import decimal
import enum
import zoneinfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tablelayer.client.errors import DataError
from headrace.tablelayer.client.write import casts
from headrace.tablelayer.client.write.conform import conform
from headrace.tablelayer.model.json.python_values import python_rows, python_values
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.text import parse_type

TYPES = [
    "BOOLEAN", "TINYINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "CHAR(3)", "STRING", "DECIMAL(10,2)", "DECIMAL(38,0)",
    "DATE", "TIME(0)", "TIME(6)", "TIME(9)", "TIMESTAMP(0)", "TIMESTAMP(3)", "TIMESTAMP(6)", "TIMESTAMP(9)",
    "TIMESTAMP_LTZ(3)", "TIMESTAMP_LTZ(9)", "BINARY(2)", "BYTES",
]  # fmt: skip
REFUSED = "refused"
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


class Shade(enum.IntEnum):
    DARK = 3


def array(values, type_text):
    column = Column(0, "c", parse_type(type_text))
    return conform([{"c": value} for value in values], [column], table="t").column("c").combine_chunks()


def alone(value, type_text):
    """Return the conversion of one value, as (valid, the bits), or REFUSED."""
    try:
        return bits(array([value], type_text))[0]
    except DataError:
        return REFUSED


def bits(found):
    kind = found.type
    if pa.types.is_temporal(kind):
        found = found.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    return [repr(value.as_py()) for value in found]


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(-200, 200), st.floats(),
    st.floats(-100, 100, width=16), st.sampled_from([1e300, -1e300, 0.5, -0.0, 16777217.0]),
    st.decimals(allow_nan=True, allow_infinity=True), st.decimals(-999, 999, places=2),
    st.text(max_size=4),
    st.sampled_from(["2024-09-19", "12:30:00.25", "2024-09-19 12:00:00", "2024-09-19T12:00:00Z", "1.50",
                     "2024-09-19 12:00:00+02:00", "+10000-01-01", "-0001-12-31T23:59:59"]),
    st.binary(max_size=3), st.binary(max_size=2).map(bytearray),
    st.dates(), st.datetimes(), st.datetimes(timezones=st.sampled_from([dt.UTC, BERLIN])),
    st.dates().map(lambda day: dt.datetime(day.year, day.month, day.day)), st.times(),
    st.times(timezones=st.just(dt.UTC)),
    st.sampled_from([
        pd.NaT, pd.NA, np.datetime64("NaT"), pd.Timestamp("2024-09-19T12:00:00.123456789"),
        pd.Timestamp("2024-09-19T12:00:00.123456789", tz="Europe/Berlin"), pd.Timestamp("2024-09-19"),
        np.datetime64("2024-09-19"), np.datetime64("2024-09-19T12:00:00.000000001"), np.datetime64("2024-09-19T12"),
        np.int8(-3), np.uint64(2**64 - 1), np.float32(0.1), np.float64(2.5), np.bool_(True), Shade.DARK,
        pa.scalar(7, pa.int8()), pa.scalar(1, pa.timestamp("ns")), pa.scalar(1, pa.timestamp("ns", "UTC")),
        pa.scalar(None, pa.int32()), pa.scalar(10**9, pa.time64("ns")), object(), dt.timedelta(1), [1], {"a": 1},
    ]),
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(TYPES), st.lists(scalars, min_size=1, max_size=6))
def test_a_value_is_the_same_whatever_stands_beside_it(type_text, values):
    expected = [alone(value, type_text) for value in values]
    if REFUSED in expected:
        with pytest.raises(DataError) as caught:
            array(values, type_text)
        assert expected[caught.value.row] is REFUSED  # kinds are looked at before lengths are
        assert caught.value.column == "c"
    else:
        assert bits(array(values, type_text)) == expected
    fitting = [value for value, found in zip(values, expected, strict=True) if found is not REFUSED]
    frame = pd.DataFrame({"c": pd.Series(fitting, dtype=object)})
    taken = conform(frame, [Column(0, "c", parse_type(type_text))], table="t").column("c").combine_chunks()
    nan = [isinstance(value, float) and value != value for value in fitting]  # which pandas calls null
    left = [found for found in expected if found is not REFUSED]
    assert bits(taken) == ["None" if missing else found for found, missing in zip(left, nan, strict=True)]


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(TYPES), st.lists(scalars, min_size=1, max_size=4))
def test_python_values_read_from_a_column_are_written_unchanged(type_text, values):
    fitting = [value for value in values if alone(value, type_text) is not REFUSED]
    stored = array(fitting, type_text)
    again = array(python_values(stored), type_text)
    assert again.equals(stored) or "nan" in str(bits(stored)), (stored, again)


@pytest.mark.parametrize(
    ("type_text", "value", "expected"),
    [
        ("TIMESTAMP(6)", dt.date(2024, 9, 19), dt.datetime(2024, 9, 19)),
        ("TIMESTAMP_LTZ(6)", dt.datetime(2024, 9, 19, 12), dt.datetime(2024, 9, 19, 12, tzinfo=dt.UTC)),
        ("TIMESTAMP_LTZ(6)", dt.datetime(2024, 9, 19, 12, tzinfo=BERLIN),
         dt.datetime(2024, 9, 19, 10, tzinfo=dt.UTC)),
        ("DATE", dt.datetime(2024, 9, 19), dt.date(2024, 9, 19)),
        ("DATE", dt.datetime(2024, 9, 19, tzinfo=BERLIN), dt.date(2024, 9, 19)),
        ("DATE", dt.datetime(2024, 9, 19, 5), REFUSED),
        ("TIMESTAMP(6)", dt.datetime(2024, 9, 19, tzinfo=dt.UTC), REFUSED),
        ("TIME(6)", dt.time(12, tzinfo=dt.UTC), REFUSED),
        ("TIME(3)", dt.time(12, 0, 0, 1), REFUSED),
        ("TIME(6)", "12:00:00Z", REFUSED),
        ("BYTES", "a", REFUSED),
        ("STRING", b"a", REFUSED),
        ("FLOAT", 1e300, REFUSED),
        ("FLOAT", decimal.Decimal("1e300"), REFUSED),
        ("FLOAT", float("inf"), float("inf")),
        ("DOUBLE", decimal.Decimal("1e400"), REFUSED),
        ("DOUBLE", decimal.Decimal("0.83"), 0.83),
        ("DECIMAL(10,2)", decimal.Decimal("NaN"), REFUSED),
        ("DECIMAL(38,0)", 10**30, decimal.Decimal(10**30)),
        ("INT", decimal.Decimal("7.0"), 7),
        ("BIGINT", 2**63, REFUSED),
        ("BIGINT", decimal.Decimal("1e999999"), REFUSED),
        ("INT", True, REFUSED),
        ("BOOLEAN", 1, REFUSED),
        ("INT", Shade.DARK, 3),
        ("CHAR(3)", "abcd", REFUSED),
        ("STRING", "\ud800", REFUSED),
        ("DATE", "+10000-01-01", "+10000-01-01"),
        ("TIMESTAMP(3)", "+10000-01-01", "+10000-01-01T00:00:00.000"),
        ("TIMESTAMP(3)", "+10000-01-01T00:00:00Z", REFUSED),
        ("TIMESTAMP_LTZ(3)", "-0044-03-15 12:00:00+02:00", "-0044-03-15T10:00:00.000Z"),
        ("TIME(9)", "12:00:00.123456789", "12:00:00.123456789"),
        ("INT", pd.NA, None),
        ("TIMESTAMP(6)", pd.NaT, None),
        ("TIMESTAMP(9)", pd.Timestamp("2024-09-19T12:00:00.123456789"),
         pd.Timestamp("2024-09-19T12:00:00.123456789")),
        ("TIMESTAMP(6)", pd.Timestamp("2024-09-19T12:00:00.123456789"), REFUSED),
        ("TIMESTAMP(6)", np.datetime64("2024-09-19"), dt.datetime(2024, 9, 19)),
    ],
)  # fmt: skip
def test_python_values_are_converted_as_documented(type_text, value, expected):
    for values in ([value], [None, value]):
        if expected is REFUSED:
            with pytest.raises(DataError, match=f"row {len(values) - 1}") as caught:
                array(values, type_text)
            assert caught.value.row == len(values) - 1
        else:
            assert python_values(array(values, type_text))[-1] == expected


def test_values_of_many_kinds_stay_in_their_order_and_the_first_that_does_not_fit_is_named():
    mixed = ["1", 2, decimal.Decimal(3), "4", None, 5.0, 6, np.int8(7), decimal.Decimal(8), "9"]
    found = array(mixed, "DECIMAL(10,2)").to_pylist()
    assert found == [None if each is None else decimal.Decimal(each if isinstance(each, str) else int(each))
                     for each in mixed]  # fmt: skip
    with pytest.raises(DataError, match="row 1: 'x' does not fit"):
        array([1, "x", 2**40, 1.5], "INT")


def test_text_with_and_without_a_zone_in_one_arrow_column():
    texts = ["2024-09-19 12:00:00Z", "2024-09-19 12:00:00", None, "2024-09-19 14:00:00+02", "2024-09-19"]
    texts.append("+12024-09-19")
    column = Column(0, "c", parse_type("TIMESTAMP_LTZ(3)"))
    taken = conform(pa.table({"c": texts}), [column], table="t").column("c")
    noon = dt.datetime(2024, 9, 19, 12, tzinfo=dt.UTC)
    midnight = dt.datetime(2024, 9, 19, tzinfo=dt.UTC)
    assert python_values(taken) == [noon, noon, None, noon, midnight, "+12024-09-19T00:00:00.000Z"]


def test_floats_that_are_too_large_are_refused_in_arrow_data_too():
    with pytest.raises(DataError, match=r"1e\+300 does not fit column 'c' of type FLOAT") as caught:
        conform(pa.table({"c": [1.0, 1e300]}), [Column(0, "c", parse_type("FLOAT"))], table="t")
    assert caught.value.row == 1


@pytest.mark.parametrize("value", [{None: 1}, [(1, 2), (None, 3)]])
def test_a_map_with_a_null_key_is_refused_and_ends_nothing(value):
    with pytest.raises(DataError, match=r"row 1: .*a key of a MAP is null"):
        array([{1: 1}, value], "MAP<INT, INT>")
    with pytest.raises(DataError, match=r"row 1: .*a key of a MAP is null"):
        array([None, [{"m": value}]], "ARRAY<ROW<m MAP<INT, INT>>>")


def test_arrow_pairs_with_a_null_key_are_refused():
    pairs = pa.array([[{"a": 1, "b": 2}], [{"a": None, "b": 3}]])
    with pytest.raises(DataError, match="a key of a MAP is null"):
        conform(pa.table({"c": pairs}), [Column(0, "c", parse_type("MAP<INT, INT>"))], table="t")


def test_a_text_that_is_too_long_for_its_char_names_its_row():
    with pytest.raises(
        DataError, match=r"row 1, column 'c': a text of 4 characters does not fit into CHAR\(3\)"
    ):
        array(["abc", "abcd"], "CHAR(3)")
    with pytest.raises(DataError, match="row 1, column 'c'"):
        conform(pa.table({"c": ["abc", "abcd"]}), [Column(0, "c", parse_type("CHAR(3)"))], table="t")


def test_python_has_dates_and_times_beyond_its_own_as_text():
    days = pa.array([0, 2932897, None, -719529], pa.date32())
    assert python_values(days) == [dt.date(1970, 1, 1), "+10000-01-01", None, "-0001-12-31"]
    nested = pa.array(
        [{"d": 2932897, "l": [1]}, None], pa.struct([("d", pa.int32()), ("l", pa.list_(pa.int64()))])
    )
    kind = pa.struct([("d", pa.date32()), ("l", pa.list_(pa.time64("ns")))])
    rows = pa.table({"c": nested.cast(kind)})
    assert python_rows(rows) == [{"c": {"d": "+10000-01-01", "l": ["00:00:00.000000001"]}}, {"c": None}]
    maps = pa.array([[(2932897, 1)], []], pa.map_(pa.int32(), pa.int32())).cast(
        pa.map_(pa.date32(), pa.int32())
    )
    assert python_values(maps) == [[("+10000-01-01", 1)], []]


@pytest.mark.parametrize(
    ("value", "type_text", "remedy"),
    [
        (dt.datetime(2024, 9, 19, 12, 0, 0, 123456), "TIMESTAMP_LTZ(3)", "TIMESTAMP_LTZ(6)"),
        (dt.datetime(2024, 9, 19, 12, 0, 0, 123456), "TIMESTAMP(3)", "TIMESTAMP(6)"),
        (pd.Timestamp("2024-09-19 12:00:00.123456789"), "TIMESTAMP(3)", "TIMESTAMP(9)"),
        ("2024-09-19T12:00:00.123456Z", "TIMESTAMP_LTZ(3)", "TIMESTAMP_LTZ(6)"),
        ("2024-09-19T12:00:00.123456", "TIMESTAMP_LTZ(3)", "TIMESTAMP_LTZ(6)"),
        ("2024-09-19T12:00:00.1234567+02:00", "TIMESTAMP_LTZ(6)", "TIMESTAMP_LTZ(9)"),
        ("12:00:00.1234", "TIME(3)", "TIME(6)"),
        (dt.time(12, 0, 0, 1), "TIME(3)", "TIME(6)"),
    ],
)
def test_a_time_with_more_digits_than_the_column_is_refused_with_the_remedy(value, type_text, remedy):
    with pytest.raises(DataError) as caught:
        array([value], type_text)
    assert str(caught.value).endswith(
        f"(it has more digits of a second than {type_text} keeps: declare the column {remedy}, or cut the value)"
    )
    assert array([value], remedy)[0].is_valid


@pytest.mark.parametrize(("text", "digits"), [("00:00:00.123456", 6), ("00:00:00.123456789", 9)])
def test_the_remedy_for_a_dataframe_is_the_type_that_its_values_need(text, digits):
    """A DataFrame of pandas has nanoseconds, whatever its values need."""
    frame = pd.DataFrame({"at": [pd.Timestamp(f"2024-09-19 {text}").as_unit("ns"), None]})
    given = pa.RecordBatch.from_pandas(frame).column("at")
    assert given.type == pa.timestamp("ns")
    with pytest.raises(pa.ArrowInvalid, match=rf"declare the column TIMESTAMP\({digits}\)"):
        casts.convert(given, pa.timestamp("ms"))


def test_integers_are_milliseconds_in_columns_of_instants():
    expected = dt.datetime(2024, 11, 27, 10, 7, 55, 123000, dt.UTC)
    for type_text in ("TIMESTAMP_LTZ(3)", "TIMESTAMP_LTZ(6)", "TIMESTAMP_LTZ(9)"):
        assert array([1732702075123], type_text).to_pylist() == [expected]
    rows = pa.table({"c": pa.array([1732702075123, None], pa.int64())})
    column = Column(0, "c", parse_type("TIMESTAMP_LTZ(6)"))
    assert conform(rows, [column], table="t").column("c").to_pylist() == [expected, None]
    with pytest.raises(
        DataError, match="a number is an instant: give a date and time, or declare the column"
    ):
        array([1732702075123], "TIMESTAMP(3)")
    with pytest.raises(DataError, match=r"more digits of a second than TIMESTAMP_LTZ\(0\) keeps"):
        array([1732702075123], "TIMESTAMP_LTZ(0)")
