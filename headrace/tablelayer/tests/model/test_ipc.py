from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.errors import DecodeError
from headrace.tablelayer.model.batches.ipc import decode_ipc, encode_ipc
from headrace.tablelayer.model.batches.ipc_metadata import metadata_size
from headrace.tablelayer.model.options.table_options import ArrowCompression
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.tests.model.ipc_mutations import Message, mutated
from headrace.tablelayer.tests.model.random_rows import batches


@given(batches(), st.sampled_from([None, *ArrowCompression]))
def test_batches_come_back(
    drawn: tuple[Schema, pa.RecordBatch], compression: ArrowCompression | None
) -> None:
    schema, batch = drawn
    message = encode_ipc(batch, compression)
    assert len(message) % 8 == 0
    assert decode_ipc(bytes(message), schema.arrow(), untrusted=True).equals(batch)


@given(batches(max_rows=6), st.sampled_from(list(ArrowCompression)), st.data())
def test_damaged_messages_are_decode_errors(
    drawn: tuple[Schema, pa.RecordBatch], compression: ArrowCompression, data: st.DataObject
) -> None:
    schema, batch = drawn
    message = bytearray(encode_ipc(batch, compression))
    cut = data.draw(st.integers(0, len(message)))
    position = data.draw(st.integers(0, len(message) - 1))
    message[position] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(message), bytes(message[:cut])):
        try:
            decoded = decode_ipc(damaged, schema.arrow(), untrusted=True)
        except DecodeError:
            continue
        decoded.validate(full=True)


@given(batches(max_rows=6), st.sampled_from([None, *ArrowCompression]), st.integers(0, 15))
def test_rows_at_an_odd_address_are_aligned(
    drawn: tuple[Schema, pa.RecordBatch], compression: ArrowCompression | None, shift: int
) -> None:
    schema, batch = drawn
    message = bytes(encode_ipc(batch, compression))
    decoded = decode_ipc(memoryview(bytes(shift) + message)[shift:], schema.arrow())
    assert decoded.equals(batch)
    buffers = [buffer for column in decoded.columns for buffer in column.buffers() if buffer is not None]
    assert [buffer.address % 8 for buffer in buffers if buffer.size] == [0] * sum(b.size > 0 for b in buffers)


def test_invalid_utf8_names_its_column() -> None:
    rows = pa.record_batch({"a": pa.array([1]), "name": pa.array([b"\xff"])})
    schema = pa.schema([("a", pa.int64()), ("name", pa.string())])
    with pytest.raises(DecodeError, match="column 'name': Invalid UTF8"):
        decode_ipc(encode_ipc(rows), schema, untrusted=True)


def test_a_message_that_differs_from_a_checked_one_is_checked_again() -> None:
    schema, other = pa.schema([("a", pa.int64())]), pa.schema([("a", pa.int64()), ("b", pa.int64())])
    message = bytes(encode_ipc(pa.record_batch({"a": [1, 2]})))
    for _ in range(2):
        assert decode_ipc(message, schema, untrusted=True, rows_max=9)["a"].to_pylist() == [1, 2]
        for damaged, expected, rows_max in (
            (message[:-8], schema, 9), (message + bytes(8), schema, 9), (message, other, 9), (message, schema, 1)
        ):  # fmt: skip
            with pytest.raises(DecodeError):
                decode_ipc(damaged, expected, untrusted=True, rows_max=rows_max)
        with pytest.raises(DecodeError, match="bytes without compression"):
            decode_ipc(message, schema, bytes_max=8)
    packed = bytearray(encode_ipc(pa.record_batch({"a": [1] * 1_000}), ArrowCompression.ZSTD))
    decode_ipc(bytes(packed), schema, untrusted=True)
    start = packed.index((8_000).to_bytes(8, "little"), metadata_size(packed))
    packed[start : start + 8] = (1 << 40).to_bytes(8, "little")
    with pytest.raises(DecodeError, match="bytes without compression"):
        decode_ipc(bytes(packed), schema, untrusted=True)


def test_another_schema_is_refused() -> None:
    message = encode_ipc(pa.record_batch({"a": pa.array([1, 2])}))
    with pytest.raises(DecodeError):
        decode_ipc(message, pa.schema([("a", pa.int64()), ("b", pa.string())]), untrusted=True)
    with pytest.raises(DecodeError):
        decode_ipc(message, pa.schema([("a", pa.string())]), untrusted=True)


def test_a_schema_message_is_refused() -> None:
    schema = pa.schema([("a", pa.int64())])
    with pytest.raises(DecodeError, match="schema message"):
        decode_ipc(schema.serialize().to_pybytes(), schema)


@pytest.mark.parametrize("offsets", [b"", b"\x07\0\0\0", b"\0\0\0\x01"])
def test_a_list_without_values_has_the_one_offset_zero(offsets: bytes) -> None:
    """Arrow accepts other offsets, and reads outside of its memory when it measures such a list."""
    inner = pa.list_(pa.int32())
    empty = pa.RecordBatch.from_pylist([], schema=pa.schema([("l", inner)]))
    nested = pa.record_batch([pa.array([[], []], pa.list_(inner))], ["l"])
    pairs = pa.record_batch([pa.array([{"m": []}], pa.struct([("m", pa.map_(pa.string(), inner))]))], ["r"])
    for rows, at in ((empty, 1), (nested, 3), (pairs, 8)):
        message = Message(bytes(encode_ipc(rows)))
        assert decode_ipc(bytes(message.encoded()), rows.schema, untrusted=True).nbytes >= 0
        message.buffers[at] = offsets
        with pytest.raises(DecodeError, match="exactly the offset 0"):
            decode_ipc(bytes(message.encoded()), rows.schema, untrusted=True)


def without_offsets(kind: pa.DataType) -> pa.Array:
    """Return an array without values and without the offset 0, as Java's Arrow, and so Spark, passes it."""
    children = [without_offsets(kind.field(at).type) for at in range(kind.num_fields)]
    count = 1 if pa.types.is_struct(kind) else 3 if pa.types.is_string(kind) else 2
    return pa.Array.from_buffers(kind, 0, [None, *[pa.py_buffer(b"")] * (count - 1)], children=children)


@pytest.mark.parametrize("length", [0, 1, 2])
def test_parts_without_values_are_sent_with_their_one_offset(length: int) -> None:
    element = pa.struct([("k", pa.list_(pa.int32())), ("s", pa.string())])
    entries = pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.list_(pa.float64()))])
    nothing = pa.array([0, 0, 0], pa.int32()).buffers()[1]
    kinds = [(pa.list_(element), element), (pa.map_(pa.string(), pa.list_(pa.float64())), entries)]
    columns = [
        pa.Array.from_buffers(kind, 2, [None, nothing], children=[without_offsets(inner)])
        for kind, inner in kinds
    ]
    columns.append(pa.StructArray.from_arrays(columns, ["l", "m"], mask=pa.array([False, True])))
    whole = pa.record_batch(columns, ["l", "m", "s"])
    for batch in (whole.slice(0, length), whole.slice(2 - length, length)):
        assert decode_ipc(encode_ipc(batch), batch.schema, untrusted=True).equals(batch)


def test_mutations_of_a_message_that_says_it_has_trillions_of_rows_stay_small() -> None:
    message = Message(bytes(encode_ipc(pa.record_batch({"a": pa.array([1, 2])}))))
    message.row_count = 1 << 40
    rng = np.random.default_rng(1)
    assert max(len(mutated(message.encoded(), rng)[1]) for _ in range(500)) < 1 << 20
