from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.errors import DecodeError
from headrace.protocol.records.header import verify_crc
from headrace.tablelayer.model.batches.batch import (
    ArrowBatch,
    ChangeType,
    encode_arrow_batch,
    stamp_timestamp,
)
from headrace.tablelayer.model.options.table_options import ArrowCompression
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.tests.model.random_rows import batches


@given(batches(), st.sampled_from([None, *ArrowCompression]), st.booleans(), st.data())
def test_batches_come_back(
    drawn: tuple[Schema, pa.RecordBatch],
    compression: ArrowCompression | None,
    with_changes: bool,
    data: st.DataObject,
) -> None:
    schema, batch = drawn
    rows = batch.num_rows
    drawn_changes = data.draw(st.lists(st.sampled_from(ChangeType), min_size=rows, max_size=rows))
    changes = np.array(drawn_changes, np.uint8) if with_changes else None
    encoded = encode_arrow_batch(
        batch, schema_id=schema.schema_id, change_types=changes, compression=compression, timestamp_ms=17,
        producer_id=5, producer_epoch=2, base_sequence=9,
    )  # fmt: skip
    assert verify_crc(encoded)
    parsed = ArrowBatch.parse(encoded)
    assert parsed.to_record_batch(schema.arrow(), untrusted=True).equals(batch)
    header = parsed.header
    assert (parsed.schema_id, header.record_count, header.last_offset_delta) == (
        schema.schema_id,
        rows,
        max(0, rows - 1),
    )
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 2, 9)
    assert header.last_sequence == 9 + max(0, rows - 1)
    assert header.base_timestamp == header.max_timestamp == 17
    if changes is None:
        assert parsed.change_types is None
    else:
        assert parsed.change_types is not None
        assert parsed.change_types.tolist() == changes.tolist()
    stamp_timestamp(encoded, 99)
    assert verify_crc(encoded)
    assert ArrowBatch.parse(encoded).header.max_timestamp == 99


@given(batches(max_rows=4), st.data())
def test_cut_and_damaged_batches_are_decode_errors(
    drawn: tuple[Schema, pa.RecordBatch], data: st.DataObject
) -> None:
    schema, batch = drawn
    encoded = encode_arrow_batch(
        batch, schema_id=1, change_types=np.full(batch.num_rows, ChangeType.INSERT, np.uint8)
    )
    cut = bytes(encoded[: data.draw(st.integers(0, len(encoded) - 1))])
    with pytest.raises(DecodeError):
        ArrowBatch.parse(cut)
    encoded[data.draw(st.integers(16, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        ArrowBatch.parse(encoded).to_record_batch(schema.arrow(), untrusted=True)
    except DecodeError:
        return


def test_a_batch_contains_no_earlier_bytes_of_its_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, changes = pa.record_batch({"a": pa.array([1, 2])}), np.zeros(2, np.uint8)
    expected = bytes(encode_arrow_batch(batch, schema_id=1, change_types=changes))
    for left in (b"\x00", b"\xff"):
        monkeypatch.setattr(
            pa, "allocate_buffer", lambda size, left=left: pa.py_buffer(bytearray(left * size))
        )
        assert bytes(encode_arrow_batch(batch, schema_id=1, change_types=changes)) == expected


def test_a_change_type_for_each_row() -> None:
    batch = pa.record_batch({"a": pa.array([1, 2])})
    with pytest.raises(ValueError, match="1 change types for 2 rows"):
        encode_arrow_batch(batch, schema_id=1, change_types=np.zeros(1, np.uint8))


def test_the_short_names_of_change_types() -> None:
    assert [change.short for change in ChangeType] == ["+A", "+I", "-U", "+U", "-D"]
