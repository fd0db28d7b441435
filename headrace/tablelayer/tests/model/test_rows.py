from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.errors import DecodeError
from headrace.tablelayer.model.arrays.widths import width_of
from headrace.tablelayer.model.rows.stored import decode_rows, encode_rows
from headrace.tablelayer.model.schema.schema import Column, Schema
from headrace.tablelayer.model.types.column_types import BIGINT, BOOLEAN, INT, STRING
from headrace.tablelayer.tests.model.random_rows import batches, nested_types, plain_types


@settings(max_examples=60, deadline=None)
@given(st.one_of(batches(), batches(6, 4, st.one_of(nested_types, plain_types))))
def test_rows_come_back(drawn: tuple[Schema, pa.RecordBatch]) -> None:
    schema, batch = drawn
    rows = encode_rows(batch, schema)
    decoded = decode_rows(rows, schema)
    decoded.validate(full=True)
    assert decoded.equals(batch)


@settings(max_examples=60, deadline=None)
@given(st.one_of(batches(), batches(6, 4, st.one_of(nested_types, plain_types))), st.data())
def test_absent_rows_are_null_and_chosen_columns_are_enough(
    drawn: tuple[Schema, pa.RecordBatch], data: st.DataObject
) -> None:
    schema, batch = drawn
    rows = encode_rows(batch, schema).to_pylist()
    kept: list[int | None] = [index if data.draw(st.booleans()) else None for index in range(len(rows))]
    columns = sorted(data.draw(st.sets(st.integers(0, len(schema.columns) - 1), min_size=1)))
    found = [None if index is None else rows[index] for index in kept]
    decoded = decode_rows(pa.array([b"xx", *found], pa.binary()).slice(1), schema, columns)
    decoded.validate(full=True)
    expected = batch.select(columns).take(pa.array(kept, pa.int64()))
    assert decoded.columns == expected.columns


def test_the_bytes_of_a_row() -> None:
    schema = Schema.of([("a", INT), ("b", STRING), ("c", BOOLEAN), ("d", STRING)], schema_id=0x0102)
    batch = pa.RecordBatch.from_pylist([{"a": 7, "b": "xy", "c": None, "d": "z"}], schema=schema.arrow())
    expected = b"\x02\x01" + b"\x04" + struct.pack("<iIBI", 7, 2, 0, 3) + b"xyz"
    assert encode_rows(batch, schema).to_pylist() == [expected]


@settings(max_examples=60, deadline=None)
@given(st.one_of(batches(max_rows=3), batches(3, 2, nested_types)), st.data())
def test_cut_rows_are_a_decode_error(drawn: tuple[Schema, pa.RecordBatch], data: st.DataObject) -> None:
    schema, batch = drawn
    for row in encode_rows(batch, schema).to_pylist():
        cut = row[: data.draw(st.integers(0, len(row) - 1))]
        with pytest.raises(DecodeError):
            decode_rows(pa.array([cut], pa.binary()), schema)


def test_a_row_of_another_schema_is_refused() -> None:
    schema = Schema.of([Column(0, "a", BIGINT)], schema_id=1)
    rows = encode_rows(pa.RecordBatch.from_pydict({"a": [1]}, schema=schema.arrow()), schema)
    with pytest.raises(DecodeError, match="under schema 1, not 2"):
        decode_rows(rows, Schema(2, schema.columns))


def test_the_widest_binary_has_its_width() -> None:
    assert width_of(pa.binary(536_870_911)) == 536_870_911
