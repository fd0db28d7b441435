from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import DecodeError
from tablelayer.model.batch import ArrowBatch, ChangeType, encode_arrow_batch
from tablelayer.model.options import ArrowCompression
from tablelayer.model.schema import Schema
from tablelayer.server.projection import Projector
from tablelayer.tests.model.random_rows import batches


class Stored:
    """A source of bytes that knows how many were read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)
        self.bytes_read = 0

    def read_at(self, position: int, size: int) -> bytes:
        piece = self.data[position : position + size]
        self.bytes_read += len(piece)
        return piece


@given(
    st.lists(batches(), min_size=1, max_size=1),
    st.sampled_from(list(ArrowCompression)),
    st.integers(1, 3),
    st.data(),
)
def test_projecting_is_reading_all_and_selecting(
    drawn: list[tuple[Schema, pa.RecordBatch]],
    compression: ArrowCompression,
    copies: int,
    data: st.DataObject,
) -> None:
    schema, batch = drawn[0]
    columns = sorted(data.draw(st.sets(st.integers(0, len(schema.columns) - 1), min_size=1)))
    changes = np.full(batch.num_rows, ChangeType.INSERT, np.uint8) if data.draw(st.booleans()) else None
    stored = bytes(
        encode_arrow_batch(batch, schema_id=3, change_types=changes, compression=compression, timestamp_ms=5)
    )
    projector = Projector(schema.arrow(), columns)
    parts, size = projector.project(Stored(stored * copies), 1 << 30)
    projected = b"".join(parts)
    assert len(projected) == size
    selected = pa.schema([schema.arrow().field(index) for index in columns])
    position = 0
    for _ in range(copies):
        parsed = ArrowBatch.parse(projected[position:])
        position += parsed.header.size
        assert parsed.to_record_batch(selected, untrusted=True).equals(batch.select(columns))
        assert (parsed.schema_id, parsed.header.max_timestamp) == (3, 5)
        if changes is not None:
            assert parsed.change_types is not None
            assert parsed.change_types.tolist() == changes.tolist()
    assert position == size


@given(batches(max_rows=6), st.data())
def test_damaged_batches_are_decode_errors(drawn: tuple[Schema, pa.RecordBatch], data: st.DataObject) -> None:
    schema, batch = drawn
    stored = encode_arrow_batch(batch, schema_id=1, change_types=None, compression=ArrowCompression.NONE)
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= data.draw(st.integers(1, 255))
    projector = Projector(schema.arrow(), [len(schema.columns) - 1])
    try:
        projector.project(Stored(bytes(stored)), 1 << 30)
    except DecodeError:
        return


def test_only_what_is_wanted_is_read() -> None:
    rows = 50_000
    batch = pa.record_batch({f"c{index}": np.arange(rows) for index in range(20)})
    stored = Stored(bytes(encode_arrow_batch(batch, schema_id=1, change_types=None)))
    _, size = Projector(batch.schema, [3, 17]).project(stored, 1 << 30)
    assert size < 2 * 8 * rows + 4096
    assert stored.bytes_read < 2 * 8 * rows + 2 * 4096


def test_another_number_of_columns_is_a_decode_error() -> None:
    batch = pa.record_batch({"a": pa.array([1])})
    stored = Stored(bytes(encode_arrow_batch(batch, schema_id=1, change_types=None)))
    two = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    with pytest.raises(DecodeError, match="1 columns"):
        Projector(two, [0]).project(stored, 100)


def test_at_least_one_batch_and_then_as_many_as_fit() -> None:
    batch = pa.record_batch({"a": np.arange(100), "b": np.arange(100)})
    stored = bytes(encode_arrow_batch(batch, schema_id=1, change_types=None))
    projector = Projector(batch.schema, [0])
    _, one = projector.project(Stored(stored), 0)
    assert one > 0
    assert projector.project(Stored(stored * 5), 3 * one)[1] == 3 * one
    assert projector.project(Stored(stored * 5), 3 * one - 1)[1] == 2 * one
