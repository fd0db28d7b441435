"""A projected batch equals the full batch, decoded, without the other columns."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.errors import DecodeError
from headrace.protocol.records.header import read_header
from headrace.tablelayer.model.batches.batch import ArrowBatch, encode_arrow_batch
from headrace.tablelayer.model.batches.ipc import encode_ipc
from headrace.tablelayer.model.options.table_options import ArrowCompression
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.server.read.projection import (
    Projection,
    build_metadata,
    parse_metadata,
    project_batch,
)
from headrace.tablelayer.tests.model.random_rows import batches as nested_batches
from headrace.tablelayer.tests.model.random_rows import nested_types, plain_types

TYPES = [
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.binary(),
    pa.binary(5),
    pa.decimal128(15, 2),
    pa.date32(),
    pa.time32("ms"),
    pa.time64("us"),
    pa.timestamp("us"),
    pa.timestamp("ms", tz="UTC"),
]


def values(kind: pa.DataType, rows: int, generator: np.random.Generator, nulls: bool) -> pa.Array:
    numbers = generator.integers(0, 100, rows)
    if pa.types.is_string(kind):
        array = pa.array(["s" * int(n) for n in numbers], kind)
    elif pa.types.is_fixed_size_binary(kind):
        array = pa.array([bytes([n]) * 5 for n in numbers.tolist()], kind)
    elif pa.types.is_binary(kind):
        array = pa.array([bytes(int(n)) for n in numbers], kind)
    elif pa.types.is_boolean(kind):
        array = pa.array(numbers % 2 == 0)
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind) or pa.types.is_decimal(kind):
        array = pa.array(numbers.astype(np.int32)).cast(kind)
    else:
        array = pa.array(numbers).cast(kind)
    if not nulls:
        return array
    return pa.array([None if generator.random() < 0.3 else value for value in array.to_pylist()], kind)


@st.composite
def batches(draw: st.DrawFn) -> tuple[pa.RecordBatch, list[int], ArrowCompression, np.ndarray | None]:
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=8))
    rows = draw(st.sampled_from([0, 1, 7, 8, 65, 3000]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    columns = [values(kind, rows, generator, draw(st.booleans())) for kind in kinds]
    chosen = sorted(draw(st.sets(st.integers(0, len(kinds) - 1))))
    changes = draw(st.booleans())
    change_types = generator.integers(1, 5, rows).astype(np.uint8) if changes else None
    batch = pa.record_batch(columns, names=[f"c{i}" for i in range(len(kinds))])
    return batch, chosen, draw(st.sampled_from(list(ArrowCompression))), change_types


def project(buffer: bytes, projection: Projection) -> bytes:
    origin = b"before it" + bytes(buffer)
    head, ranges = project_batch(
        lambda at, size: origin[at : at + size], 9, len(buffer), lambda _: projection
    )
    return head + b"".join(origin[at : at + size] for at, size in ranges)


@given(batches())
def test_projected_is_the_full_batch_without_the_other_columns(
    drawn: tuple[pa.RecordBatch, list[int], ArrowCompression, np.ndarray | None],
) -> None:
    batch, chosen, compression, changes = drawn
    full = encode_arrow_batch(
        batch, schema_id=3, change_types=changes, compression=compression, timestamp_ms=77
    )
    projected = project(full, Projection.of(batch.schema, chosen))

    view = ArrowBatch.parse(projected)
    assert read_header(projected).size == len(projected)
    assert view.schema_id == 3
    assert view.header.max_timestamp == 77
    assert (view.change_types is None) == (changes is None)
    assert changes is None or (view.change_types == changes).all()
    schema = pa.schema([batch.schema.field(column) for column in chosen])
    rows = view.to_record_batch(schema, untrusted=True)
    assert rows.equals(batch.select(chosen))
    assert len(projected) <= len(full) + 256


@settings(max_examples=40, deadline=None)
@given(nested_batches(8, 4, st.one_of(nested_types, plain_types)), st.data())
def test_nested_columns_are_cut_out_with_all_of_their_children(
    drawn: tuple[Schema, pa.RecordBatch], data: st.DataObject
) -> None:
    schema, batch = drawn
    compression = data.draw(st.sampled_from(list(ArrowCompression)))
    chosen = sorted(data.draw(st.sets(st.integers(0, len(schema.columns) - 1))))
    full = encode_arrow_batch(batch, schema_id=3, change_types=None, compression=compression)
    projected = project(full, Projection.of(schema.arrow(), chosen))
    wanted = pa.schema([schema.arrow().field(column) for column in chosen])
    rows = ArrowBatch.parse(projected).to_record_batch(wanted, untrusted=True)
    assert rows.equals(batch.select(chosen))


@given(batches())
def test_metadata_is_read_back_as_it_was_written(
    drawn: tuple[pa.RecordBatch, list[int], ArrowCompression, np.ndarray | None],
) -> None:
    batch, _, compression, _ = drawn
    written = parse_metadata(encode_ipc(batch, compression))
    ours = build_metadata(written.row_count, written.nodes, written.buffers, written.codec, written.body_size)
    again = parse_metadata(ours)
    assert len(ours) % 8 == 0
    assert again.body_position == len(ours)
    assert (again.row_count, again.codec, again.body_size) == (
        written.row_count,
        written.codec,
        written.body_size,
    )
    assert (again.nodes == written.nodes).all()
    assert (again.buffers == written.buffers).all()


def example() -> tuple[pa.Schema, bytearray]:
    batch = pa.record_batch([pa.array([1, 2, 3]), pa.array(["a", None, "c"])], names=["n", "s"])
    return batch.schema, encode_arrow_batch(batch, schema_id=1, change_types=None)


def test_every_cut_is_refused() -> None:
    schema, full = example()
    projection = Projection.of(schema, [1])
    for size in range(len(full)):
        with pytest.raises(DecodeError):
            project(bytes(full[:size]), projection)


def test_flipped_bytes_never_raise_anything_but_decode_error() -> None:
    schema, full = example()
    projection = Projection.of(schema, [0])
    for position in range(69, len(full)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            changed = bytearray(full)
            changed[position] = value
            try:
                project(bytes(changed), projection)
            except DecodeError:
                continue


def test_a_message_of_another_schema_is_refused() -> None:
    _, full = example()
    other = pa.schema([("n", pa.int64()), ("s", pa.string()), ("more", pa.int64())])
    with pytest.raises(DecodeError, match="its schema has 3"):
        project(bytes(full), Projection.of(other, [2]))
    fewer = pa.schema([("n", pa.int64())])
    with pytest.raises(DecodeError, match="its schema has 1"):
        project(bytes(full), Projection.of(fewer, [0]))


@pytest.mark.parametrize(
    ("behind", "length"),
    [(0, 8), (-8, 16), (-8, 9), (8, 0), (0, 1 << 40), ((1 << 63) - 8 - 128, 16), ((1 << 62) - 128, (1 << 62) + 256)],
)  # fmt: skip
def test_buffers_outside_of_the_body_are_refused(behind: int, length: int) -> None:
    """A buffer that begins behind the end of the body is refused, and so are sums that wrap around."""
    schema, full = example()
    view = ArrowBatch.parse(full)
    metadata = parse_metadata(view.message)
    buffers = metadata.buffers.copy()
    assert metadata.body_size <= 128
    buffers[1] = metadata.body_size + behind, length
    bad = build_metadata(metadata.row_count, metadata.nodes, buffers, -1, metadata.body_size)
    with pytest.raises(DecodeError, match="outside of its"):
        Projection.of(schema, [0]).apply(parse_metadata(bad))


@pytest.mark.parametrize("columns", [[1, 0], [0, 0], [2], [-1]])
def test_columns_that_are_not_ascending_positions_are_refused(columns: list[int]) -> None:
    schema, _ = example()
    with pytest.raises(ValueError, match="ascending"):
        Projection.of(schema, columns)


def test_metadata_size_needs_the_continuation_marker() -> None:
    with pytest.raises(DecodeError, match="continuation"):
        parse_metadata(struct.pack("<ii", 16, 0) + bytes(16))
