"""A server's answers cost a client no more than its limits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headrace.protocol.errors import DecodeError
from headrace.tablelayer.client.read.part_scan import PartScan
from headrace.tablelayer.model.batches.batch import ArrowBatch, encode_arrow_batch
from headrace.tablelayer.model.batches.ipc import answer_bytes_max, decode_answer, encode_ipc
from headrace.tablelayer.model.options.table_options import ArrowCompression
from headrace.tablelayer.model.rows.versions import SchemaVersions
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.types.column_types import BYTES
from headrace.tablelayer.tests.model.ipc_mutations import Message, bomb, framed

SCHEMA = Schema.of([("y", BYTES)])


def small(compression: ArrowCompression | None = ArrowCompression.ZSTD) -> bytes:
    rows = pa.record_batch([pa.array([b"y" * 64])], schema=SCHEMA.arrow())
    return bytes(
        encode_arrow_batch(rows, schema_id=SCHEMA.schema_id, change_types=None, compression=compression)
    )


def inflated() -> bytes:
    """A batch whose one buffer says that it is larger than any honest one."""
    message = Message(ArrowBatch.parse(small()).message)
    message.buffers[-1] = (1 << 30).to_bytes(8, "little") + bomb(message.codec, 1 << 20)[8:]
    return framed(small(), message.encoded())


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_batch_of_a_scan_is_bounded(is_whole: bool) -> None:
    versions = SchemaVersions((SCHEMA,))
    scan: Any = SimpleNamespace(
        _versions=versions, _definition=SimpleNamespace(schema=SCHEMA), _positions=[0], _is_whole=is_whole
    )
    assert PartScan._conformed(scan, ArrowBatch.parse(small())).num_rows == 1
    with pytest.raises(DecodeError, match="without compression"):
        PartScan._conformed(scan, ArrowBatch.parse(inflated()))


def test_the_rows_of_an_answer_are_bounded_and_large_ones_are_not_in_the_way() -> None:
    with pytest.raises(DecodeError, match="without compression"):
        decode_answer(ArrowBatch.parse(inflated()).message, SCHEMA.arrow())
    bits = pa.record_batch([pa.repeat(pa.scalar(True), 1 << 24)], ["b"])
    message = bytes(encode_ipc(bits))
    assert answer_bytes_max(b"x") >= 1 << 28
    assert decode_answer(message, bits.schema).num_rows == 1 << 24
