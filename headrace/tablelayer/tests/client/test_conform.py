"""Data in: fitting values are accepted without loss, others are refused with the column's name."""

import datetime as dt
import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tablelayer.client.errors import DataError
from headrace.tablelayer.client.write.conform import bare_keys, conform
from headrace.tablelayer.model.errors import RowError
from headrace.tablelayer.model.json.rows import json_to_rows
from headrace.tablelayer.model.schema.schema import Column
from headrace.tablelayer.model.types.far_years import time_text
from headrace.tablelayer.model.types.text import parse_type


def column(name: str, type_text: str, nullable: bool = True) -> Column:
    return Column(0, name, parse_type(type_text), nullable)


def one(values, type_text, nullable=True):
    return (
        conform([{"c": v} for v in values], [column("c", type_text, nullable)], table="db.t")
        .column("c")
        .to_pylist()
    )


VALUES = {
    "BOOLEAN": st.booleans(),
    "TINYINT": st.integers(-128, 127),
    "INT": st.integers(-(2**31), 2**31 - 1),
    "BIGINT": st.integers(-(2**63), 2**63 - 1),
    "DOUBLE": st.floats(allow_nan=False),
    "STRING": st.text(max_size=20).filter(lambda t: t.isprintable()),
    "BYTES": st.binary(max_size=20),
    "DECIMAL(15,2)": st.decimals(-(10**12), 10**12, places=2),
    "DATE": st.dates(),
    "TIME(6)": st.times(),
    "TIMESTAMP(6)": st.datetimes(),
    "TIMESTAMP_LTZ(6)": st.datetimes(
        min_value=dt.datetime(1700, 1, 1), max_value=dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)
    ),
}


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_python_values_come_out_as_they_went_in(data):
    kind = data.draw(st.sampled_from(sorted(VALUES)))
    values = data.draw(st.lists(st.none() | VALUES[kind], max_size=8))
    assert one(values, kind) == values


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_bare_keys_are_converted_like_rows(data):
    kind = data.draw(st.sampled_from(sorted(VALUES)))
    key = column("c", kind, nullable=False)
    values = data.draw(st.lists(VALUES[kind], min_size=1, max_size=4))
    expected = conform([{"c": value} for value in values], [key], table="t", fill_missing=False)
    found = bare_keys(values, key)
    assert found.equals(expected)
    assert found.schema.equals(expected.schema)
    assert bare_keys([*values, None], key) is None


@pytest.mark.parametrize(("kind", "value"), [("INT", 1 << 40), ("STRING", 5), ("CHAR(2)", "abc")])
def test_bare_keys_that_may_not_fit_are_left_to_conform(kind, value):
    assert bare_keys([value], column("c", kind, nullable=False)) is None


def test_columns_come_in_the_schemas_order_and_types():
    columns = [column("a", "BIGINT", False), column("b", "STRING"), column("c", "DECIMAL(10,2)")]
    taken = conform(
        pa.table({"c": pa.array(["1.50", None]), "a": pa.array([1, 2], pa.int8())}), columns, table="t"
    )
    assert taken.schema.names == ["a", "b", "c"]
    assert taken.schema.types == [pa.int64(), pa.string(), pa.decimal128(10, 2)]
    assert taken.to_pylist() == [
        {"a": 1, "b": None, "c": decimal.Decimal("1.50")},
        {"a": 2, "b": None, "c": None},
    ]


@pytest.mark.parametrize(
    ("data", "message", "name", "row"),
    [
        ([{"a": 1, "x": 2}], "unknown column 'x'; the columns are a, b", "x", None),
        ([{"b": "x"}], "column 'a' is missing", "a", None),
        (pa.table({"b": ["x"]}), "column 'a' is missing", "a", None),
        ([{"a": 1}, {"a": None}], "column 'a' is NOT NULL, but row 1 has no value", "a", 1),
        ([{"a": 1}, {"b": "x"}], "column 'a' is NOT NULL, but row 1 has no value", "a", 1),
        ([{"a": 1}, {"a": "seven"}], "row 1: 'seven' does not fit column 'a' of type INT", "a", 1),
        ([{"a": 1}, {"a": 2**40}], f"row 1: {2**40} does not fit column 'a' of type INT", "a", 1),
        ([{"a": 1.5}], "row 0: 1.5 does not fit column 'a' of type INT", "a", 0),
        ([{"a": True}], "row 0: True does not fit column 'a' of type INT", "a", 0),
        ([{"a": 1, "b": 5}], "row 0: 5 does not fit column 'b' of type STRING", "b", 0),
        (pa.table({"a": pa.array([1, 2**40])}), f"{2**40} does not fit column 'a' of type INT", "a", 1),
        (pa.table({"a": ["1"]}), "column 'a' is INT, which an Arrow string does not fit", "a", None),
        ([[1, 2]], "row 0 is a list; give dicts", None, 0),
        (7, "cannot take rows from a int", None, None),
    ],
)
def test_values_that_do_not_fit_are_refused_with_column_and_row(data, message, name, row):
    with pytest.raises(DataError) as caught:
        conform(data, [column("a", "INT", False), column("b", "STRING")], table="db.t")
    assert message in str(caught.value)
    assert caught.value.column == name
    assert caught.value.row == row


def test_a_float_becomes_a_decimal_only_if_it_is_one():
    assert one([0.1, 12.34, None], "DECIMAL(10,2)") == [
        decimal.Decimal("0.10"),
        decimal.Decimal("12.34"),
        None,
    ]
    with pytest.raises(DataError, match=r"row 1: 0\.125 does not fit column 'c' of type DECIMAL\(10, ?2\)"):
        one([1.0, 0.125], "DECIMAL(10,2)")


def test_mixed_numbers_become_decimals():
    assert one([1, decimal.Decimal("2.5"), 3.25, "4.75"], "DECIMAL(10,2)") == [
        decimal.Decimal(text) for text in ("1.00", "2.50", "3.25", "4.75")
    ]


def test_text_becomes_dates_and_times():
    assert one(["2024-09-19"], "DATE") == [dt.date(2024, 9, 19)]
    assert one(["12:30:00.250"], "TIME(3)") == [dt.time(12, 30, 0, 250_000)]
    assert one(["2024-09-19T12:00:00.5"], "TIMESTAMP(3)") == [dt.datetime(2024, 9, 19, 12, 0, 0, 500_000)]
    for text in ("2024-09-19 12:00:00Z", "2024-09-19 12:00:00", "2024-09-19 14:00:00+02:00"):
        assert one([text], "TIMESTAMP_LTZ(3)") == [dt.datetime(2024, 9, 19, 12, tzinfo=dt.UTC)]
    with pytest.raises(DataError, match="'yesterday' does not fit column 'c' of type DATE"):
        one(["2024-09-19", "yesterday"], "DATE")


def test_time_zones_and_times_of_day_are_not_dropped():
    aware = dt.datetime(2024, 9, 19, 12, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    with pytest.raises(DataError, match="does not fit column 'c' of type TIMESTAMP"):
        one([aware], "TIMESTAMP(6)")
    with pytest.raises(DataError, match="has no time zone"):
        conform(pa.table({"c": pa.array([aware])}), [column("c", "TIMESTAMP(6)")], table="t")
    assert one([dt.datetime(2024, 9, 19)], "DATE") == [dt.date(2024, 9, 19)]
    with pytest.raises(DataError, match="time of day"):
        one([dt.datetime(2024, 9, 19, 12)], "DATE")
    with pytest.raises(DataError, match="does not fit column 'c'"):
        one([dt.datetime(2024, 9, 19, 12, 0, 0, 1)], "TIMESTAMP(3)")


def test_data_frames_and_foreign_arrow():
    columns = [column("a", "BIGINT", False), column("b", "STRING"), column("d", "DATE")]
    frame = pd.DataFrame({"a": [1, 2], "b": ["x", None], "d": pd.to_datetime(["2024-09-19", "2024-09-20"])})
    expected = [
        {"a": 1, "b": "x", "d": dt.date(2024, 9, 19)},
        {"a": 2, "b": None, "d": dt.date(2024, 9, 20)},
    ]
    assert conform(frame, columns, table="t").to_pylist() == expected

    class Foreign:
        """An object as of polars and others (the Arrow PyCapsule interface)."""

        def __arrow_c_stream__(self, requested_schema=None):
            return pa.table({"a": [1, 2], "b": ["x", None], "d": expected_dates()}).__arrow_c_stream__(
                requested_schema
            )

    def expected_dates():
        return pa.array([row["d"] for row in expected])

    assert conform(Foreign(), columns, table="t").to_pylist() == expected
    dictionary = pa.table(
        {"a": [1, 2], "b": pa.array(["x", None]).dictionary_encode(), "d": expected_dates()}
    )
    assert conform(dictionary, columns, table="t").to_pylist() == expected


def test_empty_input_is_accepted():
    columns = [column("a", "BIGINT", False)]
    assert conform([], columns, table="t").num_rows == 0
    assert conform(pa.table({"a": pa.array([], pa.int64())}), columns, table="t").num_rows == 0


def test_a_column_that_fits_is_not_copied():
    count = 200_000
    data = pa.table({"a": np.arange(count), "b": pa.array(["x"] * count)})
    taken = conform(data, [column("a", "BIGINT", False), column("b", "STRING")], table="t")
    assert taken.column("a").chunk(0).buffers()[1].address == data.column("a").chunk(0).buffers()[1].address


def test_nested_values_in_every_usual_form_are_accepted():
    kind = "ROW<a INT, b ARRAY<STRING>, m MAP<STRING, DECIMAL(5, 2)>>"
    expected = {"a": 1, "b": ["x", None], "m": [("k", decimal.Decimal("1.50"))]}
    forms = [
        {"a": 1, "b": ["x", None], "m": {"k": decimal.Decimal("1.5")}},
        {"m": [("k", 1.5)], "b": ("x", None), "a": 1.0},
        (1, np.array(["x", None], object), [["k", "1.50"]]),
    ]
    assert one([*forms, None, {}], kind) == [expected] * 3 + [None, {"a": None, "b": None, "m": None}]
    frame = pd.DataFrame({"c": [*forms, None, float("nan")]})
    assert (
        conform(frame, [column("c", kind)], table="t").column("c").to_pylist() == [expected] * 3 + [None] * 2
    )
    arrow = pa.array([{"b": ["x", None], "a": 1, "m": [{"key": "k", "value": 1.5}]}, None])
    assert conform(pa.table({"c": arrow}), [column("c", kind)], table="t").column("c").to_pylist() == [
        expected, None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("type_text", "value", "reason"),
    [
        ("ARRAY<INT>", [1, "x"], "row 1: .*'c' of type ARRAY<INT>"),
        ("ARRAY<INT>", "text", "give a list"),
        ("ARRAY<INT NOT NULL>", [None], r"row 1, column 'c': c\[0\]: null, but the element is NOT NULL"),
        ("ROW<a INT>", {"b": 1}, "it has no field 'b'"),
        ("ROW<a INT>", (1, 2), "a tuple of 1 values"),
        ("ROW<a INT>", {"a": 1.5}, "row 1: .*1.5 does not fit column 'c.a' of type INT"),
        ("MAP<STRING, INT>", [1], "give a mapping, or pairs"),
        ("MAP<STRING, INT>", [("a", 1), ("a", 2)], "the key 'a' occurs twice"),
        ("MAP<STRING, INT>", {1: 1}, "row 1: .*'c:key'"),
        ("MAP<STRING, CHAR(2)>", {"k": "abc"}, r"c\[0\]: a text of 3 characters does not fit into CHAR\(2\)"),
    ],
)
def test_nested_values_that_do_not_fit_are_refused_with_their_row(type_text, value, reason):
    with pytest.raises(DataError, match=reason) as caught:
        one([None, value], type_text)
    assert caught.value.column == "c"
    assert caught.value.row == 1


def test_nested_arrow_values_are_not_converted():
    with pytest.raises(DataError, match=r"column 'c' is ARRAY<STRING>.*int64"):
        conform(pa.table({"c": [[1]]}), [column("c", "ARRAY<STRING>")], table="t")
    with pytest.raises(DataError, match="no field 'z'"):
        conform(pa.table({"c": [{"z": 1}]}), [column("c", "ROW<a INT>")], table="t")


@settings(deadline=None)
@given(
    st.sampled_from(["TIME", "TIMESTAMP", "TIMESTAMP_LTZ"]),
    st.integers(0, 9),
    st.integers(0, 86_400 * 10**9 - 1),
    st.integers(0, 9),
)
def test_digits_of_a_second_are_refused_here_as_they_are_from_kafka(word, precision, nanos, digits):
    """Whether Arrow's unit has them or not: TIMESTAMP(4) is in microseconds, and keeps four digits."""
    nanos = nanos // 10 ** (9 - digits) * 10 ** (9 - digits)
    wanted = column("c", f"{word}({precision})")
    text = time_text(nanos, 9)
    if word != "TIME":
        text = f"1970-01-01T{text}" + ("Z" if word == "TIMESTAMP_LTZ" else "")
    exact = pa.array([nanos]).view(parse_type(f"{word}(9)").arrow())
    inside = column("c", f"ARRAY<{word}({precision})>")
    fits = nanos % 10 ** (9 - precision) == 0
    for rows, of in (
        (pa.table({"c": exact}), wanted),
        ([{"c": exact[0]}], wanted),
        ([{"c": [exact[0]]}], inside),
    ):
        if fits:
            conform(rows, [of], table="db.t")
        else:
            with pytest.raises(DataError, match=r"more digits|would lose data"):
                conform(rows, [of], table="db.t")
    try:
        json_to_rows(pa.array([f'{{"c": "{text}"}}']), [wanted])
    except RowError:
        assert not fits
    else:
        assert fits


def test_a_text_reaches_the_first_and_the_last_nanosecond():
    first, last = "1677-09-21 00:12:43.145224192", "2262-04-11 23:47:16.854775807"
    values = conform([{"c": first}, {"c": last}], [column("c", "TIMESTAMP(9)")], table="db.t").column("c")
    assert values.cast(pa.int64()).to_pylist() == [-(2**63), 2**63 - 1]
    for text in ("1677-09-21 00:12:43.145224191", "2262-04-11 23:47:16.854775808", "1677-01-01"):
        with pytest.raises(DataError, match="out of range"):
            conform([{"c": text}], [column("c", "TIMESTAMP(9)")], table="db.t")
