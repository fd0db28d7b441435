"""Rows on the wire: one encapsulated Arrow IPC record batch message, without the schema.

Both sides know the schema by its id, so it never travels. A message is metadata (a flatbuffer) and a body of
buffers; its length is a multiple of 8. Decoding copies nothing unless the buffers are compressed: the rows
keep the given buffer alive. Source: Arrow columnar format, "Encapsulated message format".
"""

from __future__ import annotations

import pyarrow as pa

from protocol.errors import DecodeError
from tablelayer.model.options import ArrowCompression

_CODECS = {ArrowCompression.ZSTD: "zstd", ArrowCompression.LZ4_FRAME: "lz4"}
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def encode_ipc(batch: pa.RecordBatch, compression: ArrowCompression | None = None) -> bytes | memoryview:
    """The message of one batch; each buffer compressed on its own when a compression is given."""
    if compression is None or compression is ArrowCompression.NONE:
        return memoryview(batch.serialize()).cast("B")
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=_CODECS[compression], use_threads=False)
    writer = pa.ipc.new_stream(sink, batch.schema, options=options)
    writer.write_batch(batch)
    writer.close()
    stream = memoryview(sink.getvalue()).cast("B")
    return stream[_schema_message_size(stream) : -len(_END_OF_STREAM)]


def decode_ipc(
    buffer: bytes | bytearray | memoryview, arrow_schema: pa.Schema, *, untrusted: bool = False
) -> pa.RecordBatch:
    """The rows of a message written by `encode_ipc` under the same schema (names and types, in order).

    `untrusted` checks every offset and every UTF-8 text, so that later code may rely on them. Raises
    DecodeError for anything that is not such a message.
    """
    try:
        message = pa.ipc.read_message(pa.py_buffer(buffer))
        if message.type != "record batch":
            raise DecodeError(f"an Arrow message of rows was expected, this is a {message.type} message")
        batch = pa.ipc.read_record_batch(message, arrow_schema)
        if untrusted:
            batch.validate(full=True)
    except (pa.ArrowException, EOFError, OSError, TypeError, ValueError) as error:
        raise DecodeError(f"these bytes are not an Arrow batch of the expected columns: {error}") from error
    return batch


def _schema_message_size(stream: memoryview) -> int:
    """Bytes of the schema message a stream begins with: continuation, metadata length, metadata (no body)."""
    return 8 + int.from_bytes(stream[4:8], "little")
