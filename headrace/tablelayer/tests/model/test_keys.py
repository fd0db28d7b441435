from __future__ import annotations

import datetime
import itertools
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.errors import DecodeError
from headrace.tablelayer.model.arrays.order import NUMBERS_FROM, sorted_order
from headrace.tablelayer.model.errors import TableError, TableErrorCode
from headrace.tablelayer.model.rows.keys import decode_keys, encode_few_keys, encode_keys
from headrace.tablelayer.model.types.column_types import DataType, TypeKind
from headrace.tablelayer.tests.model.random_rows import EVERY_TYPE, array_of, values_of


@st.composite
def key_columns(draw: st.DrawFn) -> tuple[list[DataType], list[tuple[Any, ...]]]:
    types = draw(st.lists(st.sampled_from(EVERY_TYPE), min_size=1, max_size=4))
    rows = draw(st.lists(st.tuples(*(values_of(each) for each in types)), min_size=1, max_size=20))
    # Rows that agree in their first columns matter for ordering and prefixes.
    first = rows[0]
    split = draw(st.integers(0, len(types)))
    rows += [first[:split] + row[split:] for row in rows]
    return types, rows


def columns_of(types: list[DataType], rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    return [array_of(each, [row[i] for row in rows]) for i, each in enumerate(types)]


def comparable(types: list[DataType], row: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.encode() if each.kind in (TypeKind.CHAR, TypeKind.STRING) else value
                 for each, value in zip(types, row, strict=True))  # fmt: skip


@given(key_columns())
def test_encoded_keys_sort_like_their_columns(drawn: tuple[list[DataType], list[tuple[Any, ...]]]) -> None:
    types, rows = drawn
    keys = encode_keys(columns_of(types, rows)).to_pylist()
    values = [comparable(types, row) for row in rows]
    for left, left_key in zip(values, keys, strict=True):
        for right, right_key in zip(values, keys, strict=True):
            assert (left < right) == (left_key < right_key)
            assert (left == right) == (left_key == right_key)


@given(key_columns(), st.integers(0, 3))
def test_few_keys_are_encoded_as_many_are(
    drawn: tuple[list[DataType], list[tuple[Any, ...]]], start: int
) -> None:
    columns = [column.slice(start, 8) for column in columns_of(*drawn)]
    assert encode_few_keys(columns) == encode_keys(columns).to_pylist()


@given(key_columns(), st.data())
def test_the_key_of_the_first_columns_is_a_prefix(
    drawn: tuple[list[DataType], list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    types, rows = drawn
    columns = columns_of(types, rows)
    count = data.draw(st.integers(1, len(types)))
    prefixes = encode_keys(columns[:count]).to_pylist()
    keys = encode_keys(columns).to_pylist()
    for prefix, row in zip(prefixes, rows, strict=True):
        for key, other in zip(keys, rows, strict=True):
            assert key.startswith(prefix) == (
                comparable(types, other)[:count] == comparable(types, row)[:count]
            )


@given(key_columns(), st.data())
def test_keys_decode_to_their_columns(
    drawn: tuple[list[DataType], list[tuple[Any, ...]]], data: st.DataObject
) -> None:
    types, rows = drawn
    start = data.draw(st.integers(0, len(rows)))
    columns = [column.slice(start) for column in columns_of(types, rows)]
    decoded = decode_keys(encode_keys(columns), [each.arrow() for each in types])
    for given_column, column in zip(columns, decoded, strict=True):
        column.validate(full=True)
        assert column.equals(given_column)


def test_a_null_in_a_key_is_refused_with_its_row() -> None:
    with pytest.raises(TableError, match="row 1") as caught:
        encode_keys([pa.array([1, None])])
    assert caught.value.code is TableErrorCode.INVALID_KEY


@given(st.text(max_size=3), st.integers(-3, 3), st.data())
def test_malformed_keys_are_decode_errors_or_start_with_a_valid_key(
    text: str, number: int, data: st.DataObject
) -> None:
    types = [pa.string(), pa.int32()]
    (key,) = encode_keys([pa.array([text]), pa.array([number], pa.int32())]).to_pylist()
    at = data.draw(st.integers(0, len(key)))
    junk = key[:at] + data.draw(st.binary(max_size=4)) + key[data.draw(st.integers(at, len(key))) :]
    try:
        decoded = decode_keys(pa.array([junk], pa.binary()), types)
    except DecodeError:
        assert junk != key
    else:
        (again,) = encode_keys(decoded).to_pylist()
        assert junk.startswith(again)


def test_minus_zero_and_zero_are_one_key() -> None:
    keys = encode_keys([pa.array([0.0, -0.0])]).to_pylist()
    assert keys[0] == keys[1]


def test_dates_before_1970_sort_first() -> None:
    days = [datetime.date(1969, 12, 31), datetime.date(1970, 1, 1)]
    assert encode_keys([pa.array(days)]).to_pylist() == [b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00"]


def test_keys_of_any_lengths_are_sorted_and_equal_ones_stay_in_their_order() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    count = NUMBERS_FROM + 50
    for width in range(1, 12):
        for distinct, first in itertools.product((3, 256), (b"", b"\x01")):
            cells = rng.integers(0, distinct, (count, width), np.uint8)
            keys = [first + bytes(each) for each in cells]
            keys[-20:] = keys[:20]
            for length in (count, count - 1, 5):
                array = pa.array([b"in front", *keys[:length]], pa.binary())[1:]
                expected = sorted(range(length), key=keys.__getitem__)
                assert sorted_order(array).tolist() == expected
            keys[7] = keys[7] + b"\x00"  # only longer
            expected = sorted(range(count), key=keys.__getitem__)
            assert sorted_order(pa.array(keys, pa.binary())).tolist() == expected
