"""Projection in the server: a batch with fewer columns, made from byte ranges of the batch as it was written.

Of each batch only the header, the change types and the metadata of the Arrow message (a flatbuffer) are
read. New metadata is written that lists the chosen columns' field nodes and buffers, and the answer is that,
followed by the chosen buffers where they lie: slices of memory, or regions of the segment file for
`sendfile`. Buffers are neither decompressed nor copied.

A projected batch has the batch length, and no longer the CRC, of what it contains (`model.batch`).

Flatbuffers: https://flatbuffers.dev/internals. Tables: Message.fbs of the Arrow format, `Message`,
`RecordBatch`, `FieldNode`, `Buffer`, `BodyCompression`. Metadata of any Arrow writer is read; what is written
has one fixed layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct, error
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from protocol.errors import DecodeError
from protocol.records.header import LOG_OVERHEAD
from tablelayer.model.batch import PREFIX_SIZE, message_position

_U32: Final = Struct("<I")
_I32: Final = Struct("<i")
_U16: Final = Struct("<H")
_I64: Final = Struct("<q")

_CONTINUATION: Final = 0xFFFFFFFF
_RECORD_BATCH: Final = 3
_METADATA_V5: Final = 4

# Message: at 16, its vtable at 4. RecordBatch: at 48, vtable at 36. BodyCompression: at 80, vtable at 72. The
# vector of nodes has its count at 92 and its elements at 96.
_FIXED: Final = Struct("<I HHHHHH iIqhBx HHHHHH iIqII HHHH ibbxx I I")
_NODES_AT: Final = 96
_MESSAGE_AT, _BATCH_AT, _COMPRESSION_AT = 16, 48, 80


class RecordBatchMetadata(msgspec.Struct, frozen=True):
    """What the metadata of a record batch message says.

    `nodes` is int64[fields, 2] of (length, null count), `buffers` int64[n, 2] of (position in the body,
    length). `codec` is -1 without compression, else Arrow's number of it. `body_position` counts from the
    start of the message.
    """

    row_count: int
    nodes: npt.NDArray[np.int64]
    buffers: npt.NDArray[np.int64]
    codec: int
    body_position: int
    body_size: int


def metadata_size(head: bytes | memoryview) -> int:
    """Bytes of a message in front of its body, from its first eight bytes. Raises DecodeError."""
    if len(head) < 8 or _U32.unpack_from(head, 0)[0] != _CONTINUATION:
        raise DecodeError("an Arrow message does not begin with its continuation marker")
    size: int = _I32.unpack_from(head, 4)[0]
    if size <= 0:
        raise DecodeError(f"an Arrow message has {size} bytes of metadata")
    return 8 + size


def parse_metadata(message: bytes | memoryview) -> RecordBatchMetadata:
    """Read the metadata of a record batch message; the body need not be there. Raises DecodeError."""
    end = metadata_size(message)
    if end > len(message):
        raise DecodeError(f"an Arrow message of {len(message)} bytes says that its metadata has {end}")
    try:
        return _parse(memoryview(message)[8:end], end)
    except (error, IndexError, ValueError) as cause:
        raise DecodeError(f"the metadata of an Arrow message is malformed: {cause}") from cause


def _parse(metadata: memoryview, body_position: int) -> RecordBatchMetadata:
    message = _follow(metadata, 0)
    kind = _slot(metadata, message, 1)
    if kind is None or metadata[kind] != _RECORD_BATCH:
        raise ValueError("it is not a record batch")
    header = _slot(metadata, message, 2)
    size = _slot(metadata, message, 3)
    if header is None:
        raise ValueError("it has no header")
    batch = _follow(metadata, header)
    length = _slot(metadata, batch, 0)
    compression = _slot(metadata, batch, 3)
    codec = -1
    if compression is not None:
        table = _follow(metadata, compression)
        codec_at = _slot(metadata, table, 0)
        codec = 0 if codec_at is None else metadata[codec_at]
    return RecordBatchMetadata(
        row_count=0 if length is None else _I64.unpack_from(metadata, length)[0],
        nodes=_pairs(metadata, _slot(metadata, batch, 1)),
        buffers=_pairs(metadata, _slot(metadata, batch, 2)),
        codec=codec,
        body_position=body_position,
        body_size=0 if size is None else _I64.unpack_from(metadata, size)[0],
    )


def _follow(metadata: memoryview, position: int) -> int:
    """The place that the offset at `position` points to."""
    return position + int(_U32.unpack_from(metadata, position)[0])


def _slot(metadata: memoryview, table: int, index: int) -> int | None:
    """Where field `index` of a table lies; None when the writer left it out."""
    vtable = table - _I32.unpack_from(metadata, table)[0]
    if vtable < 0:
        raise ValueError("a table points outside of the metadata")
    if 4 + 2 * index >= _U16.unpack_from(metadata, vtable)[0]:
        return None
    offset: int = _U16.unpack_from(metadata, vtable + 4 + 2 * index)[0]
    return table + offset if offset else None


def _pairs(metadata: memoryview, position: int | None) -> npt.NDArray[np.int64]:
    """A vector of structs of two int64: FieldNode or Buffer."""
    if position is None:
        return np.empty((0, 2), np.int64)
    vector = _follow(metadata, position)
    count: int = _U32.unpack_from(metadata, vector)[0]
    return np.frombuffer(metadata, "<i8", 2 * count, vector + 4).reshape(count, 2)


def build_metadata(
    row_count: int, nodes: npt.NDArray[np.int64], buffers: npt.NDArray[np.int64], codec: int, body_size: int
) -> bytes:
    """The bytes of a record batch message in front of its body, the continuation marker included."""
    buffers_count_at = _NODES_AT + 16 * len(nodes) + 4
    size = buffers_count_at + 4 + 16 * len(buffers)
    compression = _COMPRESSION_AT - (_BATCH_AT + 20)
    fixed = _FIXED.pack(
        _MESSAGE_AT,
        # Message: vtable of (version, header type, header, body length), then the table.
        12, 20, 16, 18, 4, 8,
        12, _BATCH_AT - (_MESSAGE_AT + 4), body_size, _METADATA_V5, _RECORD_BATCH,
        # RecordBatch: vtable of (length, nodes, buffers, compression), then the table.
        12, 24, 8, 4, 16, 20 if codec >= 0 else 0,
        12, _NODES_AT - 4 - (_BATCH_AT + 4), row_count, buffers_count_at - (_BATCH_AT + 16),
        compression if codec >= 0 else 0,
        # BodyCompression: vtable of (codec, method), then the table; method 0 compresses each buffer alone.
        8, 6, 4, 5,
        8, max(codec, 0), 0, 0,
        len(nodes),
    )  # fmt: skip
    count = _I64.pack(len(buffers) << 32)
    return b"".join(
        (
            _U32.pack(_CONTINUATION),
            _I32.pack(size),
            fixed,
            nodes.astype("<i8", copy=False).tobytes(),
            count,
            buffers.astype("<i8", copy=False).tobytes(),
        )
    )


def _layout(field: pa.DataType) -> tuple[int, int]:
    """Field nodes and buffers of a column of this type, its children included (Arrow columnar format, "Buffer
    listing")."""
    if pa.types.is_null(field):
        return 1, 0
    if pa.types.is_string(field) or pa.types.is_binary(field):
        return 1, 3
    if pa.types.is_primitive(field) or pa.types.is_fixed_size_binary(field) or pa.types.is_decimal(field):
        return 1, 2
    if pa.types.is_list(field) or pa.types.is_map(field) or pa.types.is_struct(field):
        # A map's one child is a struct of keys and values.
        inner = [pa.struct([field.key_field, field.item_field])] if pa.types.is_map(field) else [
            field.field(index).type for index in range(field.num_fields)
        ]  # fmt: skip
        counted = [_layout(child) for child in inner]
        own_buffers = 1 if pa.types.is_struct(field) else 2
        return 1 + sum(nodes for nodes, _ in counted), own_buffers + sum(buffers for _, buffers in counted)
    raise TypeError(f"columns of the Arrow type {field} cannot be projected")


class Projection(msgspec.Struct, frozen=True):
    """Which nodes and buffers of a schema's messages belong to the chosen columns, ascending."""

    node_count: int
    buffer_count: int
    nodes: npt.NDArray[np.intp]
    buffers: npt.NDArray[np.intp]

    @classmethod
    def of(cls, arrow_schema: pa.Schema, columns: Sequence[int]) -> Projection:
        """`columns` are positions in the schema, ascending and without repetition."""
        chosen = set(columns)
        if list(columns) != sorted(chosen) or not all(0 <= column < len(arrow_schema) for column in chosen):
            raise ValueError(f"columns {list(columns)} are not ascending positions below {len(arrow_schema)}")
        nodes: list[int] = []
        buffers: list[int] = []
        node_count = buffer_count = 0
        for index, column in enumerate(arrow_schema):
            node_step, buffer_step = _layout(column.type)
            if index in chosen:
                nodes.extend(range(node_count, node_count + node_step))
                buffers.extend(range(buffer_count, buffer_count + buffer_step))
            node_count += node_step
            buffer_count += buffer_step
        return cls(node_count, buffer_count, np.array(nodes, np.intp), np.array(buffers, np.intp))

    def apply(self, message: RecordBatchMetadata) -> tuple[bytes, list[tuple[int, int]]]:
        """New metadata, and the ranges (position, size) of the old message that follow it.

        Raises DecodeError when the message does not have the nodes and buffers of the schema, or a buffer
        lies outside of its body.
        """
        if len(message.nodes) != self.node_count or len(message.buffers) != self.buffer_count:
            raise DecodeError(
                f"an Arrow message has {len(message.nodes)} columns in {len(message.buffers)} buffers; "
                f"its schema has {self.node_count} in {self.buffer_count}"
            )
        chosen = message.buffers[self.buffers]
        starts, lengths = chosen[:, 0], chosen[:, 1]
        limit = message.body_size
        # Each bound on its own first: a sum of two huge numbers would wrap.
        bounded = not len(chosen) or bool(chosen.min() >= 0 and chosen.max() <= limit)
        padded = (lengths + 7) & ~7
        if not bounded or (len(chosen) and int((starts + padded).max()) > limit):
            raise DecodeError(f"a buffer of an Arrow message lies outside of its {limit} bytes of body")
        buffers = np.empty_like(chosen)
        np.cumsum(padded[:-1], out=buffers[1:, 0])
        buffers[:1, 0] = 0
        buffers[:, 1] = lengths
        metadata = build_metadata(
            message.row_count, message.nodes[self.nodes], buffers, message.codec, int(padded.sum())
        )
        ranges: list[tuple[int, int]] = []
        for start, size in zip((starts + message.body_position).tolist(), padded.tolist(), strict=True):
            if not size:
                continue
            if ranges and ranges[-1][0] + ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + size)
            else:
                ranges.append((start, size))
        return metadata, ranges


Part = bytes | bytearray | memoryview
Read = Callable[[int, int], Part]
"""(position, size) -> the bytes there."""

_SPECULATIVE = 2048
"""Read at once with the header: change types and metadata of most batches."""
_BATCH_LENGTH = Struct(">i")
_COUNTS = Struct(">ii")
_SCHEMA_ID = Struct(">h")
_SCHEMA_ID_POSITION = 65
_BATCH_LENGTH_POSITION, _CRC_POSITION, _COUNTS_POSITION = 8, 17, 69


def project_batch(
    read: Read, position: int, size: int, projection_of: Callable[[int], Projection]
) -> tuple[bytes, list[tuple[int, int]]]:
    """Project the Arrow batch of `size` bytes at `position`: bytes to send first, and ranges after them.

    `projection_of` is asked for the projection of the schema the batch was written under, by its id. `read` is
    asked for the front of the batch only. Ranges count from the same origin as `position`.
    """
    front = memoryview(read(position, min(size, _SPECULATIVE)))
    if len(front) < PREFIX_SIZE:
        raise DecodeError(f"an Arrow batch of {len(front)} bytes is cut off")
    changes_length, statistics_length = _COUNTS.unpack_from(front, _COUNTS_POSITION)
    start = message_position(changes_length, statistics_length)
    if changes_length < 0 or statistics_length < 0 or start + 8 > size:
        raise DecodeError(f"an Arrow batch of {size} bytes says that its message begins at {start}")
    if len(front) < start + 8:
        front = memoryview(read(position, min(size, start + _SPECULATIVE)))
    message_size = metadata_size(front[start : start + 8])
    if start + message_size > size:
        raise DecodeError(f"an Arrow batch of {size} bytes says that its metadata has {message_size}")
    if len(front) < start + message_size:
        front = memoryview(read(position, start + message_size))
    projection = projection_of(_SCHEMA_ID.unpack_from(front, _SCHEMA_ID_POSITION)[0])
    metadata, ranges = projection.apply(parse_metadata(front[start : start + message_size]))
    if ranges and ranges[-1][0] + start + ranges[-1][1] > size:
        raise DecodeError(f"an Arrow batch of {size} bytes has buffers past its end")
    body_size = sum(length for _, length in ranges)
    head = bytearray(message_position(changes_length))
    head[: PREFIX_SIZE + changes_length] = front[: PREFIX_SIZE + changes_length]
    _BATCH_LENGTH.pack_into(
        head, _BATCH_LENGTH_POSITION, len(head) + len(metadata) + body_size - LOG_OVERHEAD
    )
    head[_CRC_POSITION : _CRC_POSITION + 4] = bytes(4)
    _COUNTS.pack_into(head, _COUNTS_POSITION, changes_length, 0)
    return bytes(head) + metadata, [(position + start + at, length) for at, length in ranges]
