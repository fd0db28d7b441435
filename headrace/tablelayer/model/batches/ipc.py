"""Rows on the wire: one encapsulated Arrow IPC record batch message, without the schema.

Both sides know the schema by its id, so it never travels. A message is metadata (a flatbuffer) and a body of buffers;
its length is a multiple of 8. Decoding keeps the given buffer alive and copies nothing, unless the buffers are
compressed or their address is not a multiple of 8, which can happen with data from the network. Source: Arrow
columnar format, "Encapsulated message format". Messages from clients are checked in two steps. First `ipc_metadata`
checks everything that the metadata tells, so that a message stays within its bounds and a projection of it can be
read too. Then Arrow checks every offset, null count and text of the decompressed message.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from headrace.protocol.errors import DecodeError
from headrace.protocol.records.header import Buffer
from headrace.tablelayer.model.batches.ipc_metadata import check_message
from headrace.tablelayer.model.options.table_options import ArrowCompression

ROWS_PER_MESSAGE_MAX: Final = 1 << 20
"""Maximum number of rows in one message from a client.

Writers send two MiB at a time, and each row counts as at least one byte. This number of rows is about 10 MB of text
for a Kafka consumer, which gets a batch as a whole.
"""

BYTES_PER_MESSAGE_MAX: Final = 100 << 20
"""Maximum decompressed size of one message from a client, in bytes.

It is the size of the largest request without compression (`socket.request.max.bytes`): compression saves network
traffic, but does not allow more data.
"""

STORED_BYTES_MAX: Final = 512 << 20
"""Maximum decompressed size of a logged message that is read, in bytes.

It is larger because a changelog has two rows for one written row, and logs from before the bounds must be readable.
"""

_CODECS = {ArrowCompression.ZSTD: "zstd", ArrowCompression.LZ4_FRAME: "lz4"}
_CODEC_NUMBERS = {ArrowCompression.NONE: -1, ArrowCompression.LZ4_FRAME: 0, ArrowCompression.ZSTD: 1}
_UNBOUNDED = (1 << 63) - 1
_ALIGNMENT = 8
"""Alignment of buffers. With less, Arrow's engine warns and copies."""
_NUMBERED = re.compile(r"\bIn column ([0-9]+): (Invalid: )?")
"""The way in which Arrow names a column that is not valid."""
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


def encode_ipc(batch: pa.RecordBatch, compression: ArrowCompression | None = None) -> bytes | memoryview:
    """Return the message of one batch. With a compression, each buffer is compressed on its own."""
    if any(pa.types.is_nested(kind) for kind in batch.schema.types):
        columns = [_with_offsets_of_nothing(column) for column in batch.columns]
        batch = pa.RecordBatch.from_arrays(columns, schema=batch.schema)
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
    buffer: Buffer,
    arrow_schema: pa.Schema,
    *,
    untrusted: bool = False,
    rows_max: int = ROWS_PER_MESSAGE_MAX,
    bytes_max: int | None = None,
    compression: ArrowCompression | None = None,
) -> pa.RecordBatch:
    """Return the rows of a message that `encode_ipc` wrote under the same schema (names and types, in order).

    `untrusted`: check everything, so that later code may rely on it, even code that reads only some columns.
    `rows_max` and `bytes_max` (None: BYTES_PER_MESSAGE_MAX) bound the rows and the decompressed bytes; they are
    checked before decompression. With `bytes_max` alone the metadata is checked and the rows are not counted.
    `compression`: the compression that the message must have, according to its sender. Raises DecodeError for
    anything that is not such a message.
    """
    if untrusted or bytes_max is not None:
        found = check_message(
            buffer,
            arrow_schema,
            rows_max if untrusted else _UNBOUNDED,
            BYTES_PER_MESSAGE_MAX if bytes_max is None else bytes_max,
        )
        if compression is not None and found != _CODEC_NUMBERS[compression]:
            raise DecodeError(
                f"an Arrow batch declares the compression {compression}, but its message has another one"
            )
    try:
        given = pa.py_buffer(buffer)
        if given.address % _ALIGNMENT:
            given = pa.py_buffer(bytes(buffer))
        message = pa.ipc.read_message(given)
        if message.type != "record batch":
            raise DecodeError(
                f"a record batch message of Arrow was expected; this is a {message.type} message"
            )
        batch = pa.ipc.read_record_batch(message, arrow_schema)
        if untrusted:
            batch.validate(full=True)
            for column in batch.columns:
                if not batch.num_rows or pa.types.is_nested(column.type):
                    _check_offsets_of_nothing(column)
    except (pa.ArrowException, EOFError, OSError, TypeError, ValueError) as error:
        reason = _NUMBERED.sub(lambda found: f"column '{arrow_schema.names[int(found[1])]}': ", str(error))
        raise DecodeError(f"these bytes are not an Arrow batch of the expected columns: {reason}") from error
    return batch


def _parts(array: pa.Array) -> list[pa.Array]:
    """Return the child arrays of a nested array as its buffers have them; for a map, its entries."""
    kind = array.type
    if pa.types.is_struct(kind):
        return [array.field(index) for index in range(kind.num_fields)]
    if pa.types.is_map(kind):
        return [
            pa.StructArray.from_arrays([array.keys, array.items], fields=[kind.key_field, kind.item_field])
        ]
    return [array.values] if pa.types.is_list(kind) else []


def _has_offsets_of_nothing(array: pa.Array) -> bool:
    """Whether an array without values has the one offset 0, if its type has offsets. Texts may have none."""
    kind = array.type
    nested = pa.types.is_list(kind) or pa.types.is_map(kind)
    if len(array) or not (nested or pa.types.is_string(kind) or pa.types.is_binary(kind)):
        return True
    offsets = array.buffers()[1]
    first = b"" if offsets is None else bytes(memoryview(offsets)[:4])
    return not any(first) and (not nested or len(first) == 4)


def _check_offsets_of_nothing(array: pa.Array) -> None:
    """Raise DecodeError unless an array without values, or one inside of it, has the one offset 0.

    Arrow does not check this offset when it validates, but follows it when it measures or copies lists and maps.
    """
    if not _has_offsets_of_nothing(array):
        raise DecodeError(
            "a column without values, or a part of a column, does not have exactly the offset 0"
        )
    for part in _parts(array):
        _check_offsets_of_nothing(part)


def _with_offsets_of_nothing(array: pa.Array) -> pa.Array:
    """Return the same array with the one offset 0 in each part without values; Java's Arrow writes none."""
    if not len(array):
        return pa.array([], array.type)
    parts = _parts(array)
    whole = [_with_offsets_of_nothing(part) for part in parts]
    if all(old is new for old, new in zip(parts, whole, strict=True)):
        return array
    if pa.types.is_struct(array.type):
        return pa.StructArray.from_arrays(whole, fields=list(array.type), mask=array.is_null())
    own = array.buffers()[:2]
    return pa.Array.from_buffers(array.type, len(array), own, array.null_count, array.offset, whole)


def answer_bytes_max(message: Buffer) -> int:
    """Return the `bytes_max` of a server's answer: any size without compression, up to 8 values per byte."""
    return max(STORED_BYTES_MAX, 8 * len(message))


def decode_answer(message: Buffer, arrow_schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of an answer within `answer_bytes_max`. Raises DecodeError."""
    return decode_ipc(message, arrow_schema, bytes_max=answer_bytes_max(message))


def _schema_message_size(stream: memoryview) -> int:
    """Return the bytes of the stream's first message, its schema: continuation, metadata length, metadata (no body)."""
    return 8 + int.from_bytes(stream[4:8], "little")
