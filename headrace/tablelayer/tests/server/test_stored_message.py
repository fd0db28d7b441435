from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.errors import DecodeError
from headrace.tablelayer.model.arrays.widths import width_of
from headrace.tablelayer.model.batches.ipc import decode_ipc
from headrace.tablelayer.model.rows.stored import decode_rows, encode_rows
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.types.column_types import INT, STRING
from headrace.tablelayer.server import stored_message
from headrace.tablelayer.tests.model.random_rows import batches, nested_types, plain_types


@settings(max_examples=60, deadline=None)
@given(st.one_of(batches(), batches(6, 4, st.one_of(nested_types, plain_types))), st.data())
def test_a_message_of_stored_rows_equals_their_decoded_values(
    drawn: tuple[Schema, pa.RecordBatch], data: st.DataObject
) -> None:
    schema, batch = drawn
    rows = [row if data.draw(st.booleans()) else None for row in encode_rows(batch, schema).to_pylist()]
    columns = sorted(data.draw(st.sets(st.integers(0, len(schema.columns) - 1), min_size=1)))
    order = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9)) if rows else [], np.int64)
    for chosen in (None, columns):
        many = decode_rows(pa.array(rows, pa.binary()), schema, chosen)
        expected = pa.schema([field.with_nullable(True) for field in many.schema])
        for at in (None, order):
            message = stored_message.message_of(rows, schema, chosen, at)
            if any(pa.types.is_nested(kind) for kind in many.schema.types):
                assert message is None
                continue
            assert message is not None
            found = decode_ipc(message, expected, untrusted=True)
            assert found.columns == (many.columns if at is None else many.take(pa.array(at)).columns)
            assert [each.null_count for each in found.columns] == [
                each.is_null().sum().as_py() or 0 for each in found.columns
            ]


@settings(max_examples=60, deadline=None)
@given(batches(max_rows=3), st.data())
def test_a_damaged_row_of_a_message_is_a_decode_error(
    drawn: tuple[Schema, pa.RecordBatch], data: st.DataObject
) -> None:
    schema, batch = drawn
    for row in encode_rows(batch, schema).to_pylist():
        cut = row[: data.draw(st.integers(0, len(row) - 1))]
        for rows in ([cut], [row, cut], [cut, None, row]):
            with pytest.raises(DecodeError):
                stored_message.message_of(rows, schema)
        other = (schema.schema_id ^ 1).to_bytes(2, "little") + row[2:]
        assert stored_message.message_of([row, other], schema) is None


@settings(max_examples=60, deadline=None)
@given(batches(max_rows=2), st.data())
def test_malformed_rows_never_give_an_invalid_message(
    drawn: tuple[Schema, pa.RecordBatch], data: st.DataObject
) -> None:
    schema, batch = drawn
    for row in encode_rows(batch, schema).to_pylist():
        changed = bytearray(row)
        for at in data.draw(st.lists(st.integers(2, len(row) - 1), max_size=4)) if len(row) > 2 else []:
            changed[at] = data.draw(st.integers(0, 255))
        try:
            message = stored_message.message_of([bytes(changed), row], schema)
        except DecodeError:
            continue
        assert message is not None
        decode_ipc(message, pa.schema([raw(field) for field in schema.arrow()])).validate(full=True)


def raw(field: pa.Field) -> pa.Field:
    """The same bytes, of which any are valid."""
    if pa.types.is_boolean(field.type):
        return field
    return pa.field(field.name, pa.binary(width_of(field.type) or -1))


def test_no_value_is_read_beyond_its_row() -> None:
    schema = Schema.of([("a", INT), ("b", STRING), ("c", STRING)])
    rows = pa.RecordBatch.from_pylist([{"a": 1, "b": "xy", "c": "z"}] * 3, schema=schema.arrow())
    row, _, other = encode_rows(rows, schema).to_pylist()
    for size in range(len(row)):
        with pytest.raises(DecodeError):
            stored_message.message_of([row[:size], other], schema)
