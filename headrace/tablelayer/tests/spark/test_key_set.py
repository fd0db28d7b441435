"""Sets of keys against a dict."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.tablelayer.spark.key_set import KeySet

_MOMENTS = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1))
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "bigint": (pa.int64(), st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)),
    "int": (pa.int32(), st.integers(-3, 3) | st.integers(-(2**31), 2**31 - 1)),
    "tinyint": (pa.int8(), st.integers(-128, 127)),
    "date": (pa.date32(), st.dates(datetime.date(1900, 1, 1), datetime.date(1900, 2, 1))),
    "time": (pa.time32("ms"), st.integers(0, 20)),
    "timestamp": (pa.timestamp("us"), _MOMENTS),
    "text": (pa.string(), st.text("ab", max_size=3)),
    "double": (pa.float64(), st.sampled_from([0.0, -0.0]) | st.floats(allow_nan=False)),
    "float": (pa.float32(), st.sampled_from([0.0, -0.0]) | st.floats(allow_nan=False, width=32)),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(data=st.data())
def test_keys_are_found_where_they_are(kind: str, data: st.DataObject) -> None:
    """One column, keys that repeat, slices; asked for what is there, for what is not, and for nulls."""
    arrow, values = KINDS[kind]
    pool = data.draw(st.lists(values, min_size=1, max_size=6))
    one = st.sampled_from(pool) | values
    keys = data.draw(st.lists(one, max_size=30))
    asked = data.draw(st.lists(one | st.none(), max_size=30))
    if kind == "time":
        keys_array, asked_array = (pa.array(each, pa.int32()).cast(arrow) for each in (keys, asked))
    else:
        keys_array, asked_array = pa.array(keys, arrow), pa.array(asked, arrow)
    known = KeySet(pa.table({"k": keys_array}), ["k"])
    first: dict[Any, int] = {}
    for position, key in enumerate(keys_array.to_pylist()):
        first.setdefault(key, position)
    for start in (0, len(asked) // 2):
        batch = pa.record_batch({"k": asked_array.slice(start)})
        wanted = batch.column(0).to_pylist()
        assert known.positions(batch).to_pylist() == [first.get(key) for key in wanted]
        assert known.contains(batch).to_pylist() == [key in first for key in wanted]


def test_all_nan_are_one_key() -> None:
    keys = pa.table({"k": np.array([np.nan, 1.0])})
    assert KeySet(keys, ["k"]).positions(pa.record_batch({"k": np.array([-np.nan, 1.0])})).to_pylist() == [
        0,
        1,
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.text("ab", max_size=2)), max_size=20), st.integers(0, 3))
def test_keys_of_several_columns(keys: list[tuple[int, str]], asked: int) -> None:
    rows = pa.table(
        {"a": pa.array([a for a, _ in keys], pa.int64()), "b": pa.array([b for _, b in keys], pa.string())}
    )
    batch = pa.record_batch({"a": pa.array([asked] * 3, pa.int64()), "b": pa.array(["", "a", "ab"])})
    assert KeySet(rows, ["a", "b"]).contains(batch).to_pylist() == [
        (asked, text) in keys for text in ("", "a", "ab")
    ]
