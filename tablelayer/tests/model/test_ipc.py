from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import DecodeError
from tablelayer.model.ipc import decode_ipc, encode_ipc
from tablelayer.model.options import ArrowCompression
from tablelayer.model.schema import Schema
from tablelayer.tests.model.random_rows import batches


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
