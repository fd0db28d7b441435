"""The metadata of an Arrow record batch message: reading, writing, and checking a message against it.

Flatbuffers: https://flatbuffers.dev/internals. Tables: Message.fbs of the Arrow format, `Message`, `RecordBatch`,
`FieldNode`, `Buffer`, `BodyCompression`. Metadata of any Arrow writer is read; metadata is written in one fixed
layout. `check_message` checks before decompression everything that the metadata and the lengths before compressed
buffers tell. A message that it accepts has exactly the columns of its schema, has each buffer in its own place within
the body, and stays within its bounds. Arrow checks the contents of the buffers.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct, error, unpack_from
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.protocol.errors import DecodeError
from headrace.protocol.records.header import Buffer

_U32: Final = Struct("<I")
_I32: Final = Struct("<i")
_U16: Final = Struct("<H")
_I16: Final = Struct("<h")
_I64: Final = Struct("<q")

_CONTINUATION: Final = 0xFFFFFFFF
_RECORD_BATCH: Final = 3
_METADATA_V4, _METADATA_V5 = 3, 4
_NOT_COMPRESSED: Final = -1
"""The length before a buffer of a compressed message that would have become larger by compression."""

# Message: at 16, its vtable at 4. RecordBatch: at 48, vtable at 36. BodyCompression: at 80, vtable at 72. The
# vector of nodes has its count at 92 and its elements at 96.
_FIXED: Final = Struct("<I HHHHHH iIqhBx HHHHHH iIqII HHHH ibbxx I I")
_NODES_AT: Final = 96
_MESSAGE_AT, _BATCH_AT, _COMPRESSION_AT = 16, 48, 80


class RecordBatchMetadata(msgspec.Struct, frozen=True):
    """The metadata of a record batch message.

    `nodes` is int64[fields, 2] of (length, null count), `buffers` int64[n, 2] of (position in the body, length).
    `codec` is
    -1 without compression, else Arrow's number of it. `body_position` counts from the start of the message.
    """

    row_count: int
    nodes: npt.NDArray[np.int64]
    buffers: npt.NDArray[np.int64]
    codec: int
    body_position: int
    body_size: int


def metadata_size(head: bytes | memoryview) -> int:
    """Return the bytes of a message before its body, given its first eight bytes. Raises DecodeError."""
    if len(head) < 8 or _U32.unpack_from(head, 0)[0] != _CONTINUATION:
        raise DecodeError("an Arrow message does not begin with its continuation marker")
    size: int = _I32.unpack_from(head, 4)[0]
    if size <= 0:
        raise DecodeError(f"an Arrow message has {size} bytes of metadata")
    return 8 + size


def parse_metadata(message: bytes | memoryview) -> RecordBatchMetadata:
    """Read the metadata of a record batch message, with or without its body. Raises DecodeError."""
    end = metadata_size(message)
    if end > len(message):
        raise DecodeError(
            f"an Arrow message of {len(message)} bytes declares {end} bytes up to the end of its metadata"
        )
    try:
        return _parse(memoryview(message)[8:end], end)
    except (error, IndexError, OverflowError, ValueError) as cause:
        raise DecodeError(f"the metadata of an Arrow message is malformed: {cause}") from cause


def _parse(metadata: memoryview, body_position: int) -> RecordBatchMetadata:
    found = _read(metadata)
    return RecordBatchMetadata(
        row_count=found.row_count,
        nodes=np.array(found.nodes, np.int64).reshape(-1, 2),
        buffers=np.array(found.buffers, np.int64).reshape(-1, 2),
        codec=found.codec,
        body_position=body_position,
        body_size=found.body_size,
    )


class _Raw(msgspec.Struct, frozen=True):
    """`RecordBatchMetadata` with flat nodes (length, null count, length, ...) and buffers (position, length, ...).

    `variadic` is the number of variadic buffer counts; no column type has any.
    """

    version: int
    row_count: int
    nodes: tuple[int, ...]
    buffers: tuple[int, ...]
    codec: int
    method: int
    variadic: int
    body_size: int


def _read(metadata: memoryview) -> _Raw:
    message = _follow(metadata, 0)
    kind = _slot(metadata, message, 1)
    if kind is None or metadata[kind] != _RECORD_BATCH:
        raise ValueError("the message is not a record batch")
    version = _slot(metadata, message, 0)
    header = _slot(metadata, message, 2)
    size = _slot(metadata, message, 3)
    if header is None:
        raise ValueError("the message has no header")
    batch = _follow(metadata, header)
    length = _slot(metadata, batch, 0)
    compression = _slot(metadata, batch, 3)
    variadic = _slot(metadata, batch, 4)
    codec, method = -1, 0
    if compression is not None:
        table = _follow(metadata, compression)
        codec_at, method_at = _slot(metadata, table, 0), _slot(metadata, table, 1)
        codec = 0 if codec_at is None else metadata[codec_at]
        method = 0 if method_at is None else metadata[method_at]
    return _Raw(
        version=0 if version is None else _I16.unpack_from(metadata, version)[0],
        row_count=0 if length is None else _I64.unpack_from(metadata, length)[0],
        nodes=_pairs(metadata, _slot(metadata, batch, 1)),
        buffers=_pairs(metadata, _slot(metadata, batch, 2)),
        codec=codec,
        method=method,
        variadic=0 if variadic is None else _U32.unpack_from(metadata, _follow(metadata, variadic))[0],
        body_size=0 if size is None else _I64.unpack_from(metadata, size)[0],
    )


def _follow(metadata: memoryview, position: int) -> int:
    """Return the position to which the offset at `position` points."""
    return position + int(_U32.unpack_from(metadata, position)[0])


def _slot(metadata: memoryview, table: int, index: int) -> int | None:
    """Return the position of field `index` of a table; None if the writer left it out."""
    vtable = table - _I32.unpack_from(metadata, table)[0]
    if vtable < 0:
        raise ValueError("a table points outside of the metadata")
    if 4 + 2 * index >= _U16.unpack_from(metadata, vtable)[0]:
        return None
    offset: int = _U16.unpack_from(metadata, vtable + 4 + 2 * index)[0]
    return table + offset if offset else None


def _pairs(metadata: memoryview, position: int | None) -> tuple[int, ...]:
    """Return a vector of structs of two int64 (FieldNode or Buffer), flat."""
    if position is None:
        return ()
    vector = _follow(metadata, position)
    count: int = _U32.unpack_from(metadata, vector)[0]
    if vector + 4 + 16 * count > len(metadata):
        raise ValueError(f"a list of {count} entries does not fit into {len(metadata)} bytes")
    return unpack_from(f"<{2 * count}q", metadata, vector + 4)


def build_metadata(
    row_count: int, nodes: npt.NDArray[np.int64], buffers: npt.NDArray[np.int64], codec: int, body_size: int
) -> bytes:
    """Return the bytes of a record batch message before its body, including the continuation marker."""
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


def layout_of(field: pa.DataType) -> tuple[int, int]:
    """Return the number of field nodes and buffers of a column of this type, including its children.

    Source: Arrow columnar format, "Buffer listing".
    """
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
        counted = [layout_of(child) for child in inner]
        own_buffers = 1 if pa.types.is_struct(field) else 2
        return 1 + sum(nodes for nodes, _ in counted), own_buffers + sum(buffers for _, buffers in counted)
    raise TypeError(f"columns of the Arrow type {field} cannot be projected")


class _Layout(msgspec.Struct, frozen=True):
    """Numbers of nodes and buffers in messages of a schema. `rows`: the node of each column, which counts the rows."""

    node_count: int
    buffer_count: int
    rows: tuple[int, ...]


_recent: dict[int, tuple[pa.Schema, _Layout]] = {}
"""Layouts by the identity of a schema, which is kept alive here. Hashing a schema takes longer than checking a small
message."""
_RECENT_MAX: Final = 256

_sound: dict[tuple[bytes, int, int, int, int], pa.Schema] = {}
"""Uncompressed messages that passed the check: their metadata, their length, and the schema and bounds of the check.

Consecutive small messages often have the same metadata. Schemas are kept alive, as above.
"""
_SOUND_BYTES_MAX: Final = 1 << 10


def _layout_for(arrow_schema: pa.Schema) -> _Layout:
    known = _recent.get(id(arrow_schema))
    if known is not None:
        return known[1]
    layout = _layout_of_schema(arrow_schema)
    if len(_recent) >= _RECENT_MAX:
        _recent.clear()
    _recent[id(arrow_schema)] = arrow_schema, layout
    return layout


@lru_cache(maxsize=1024)
def _layout_of_schema(arrow_schema: pa.Schema) -> _Layout:
    node_count = buffer_count = 0
    rows = []
    for field in arrow_schema:
        rows.append(node_count)
        nodes, buffers = layout_of(field.type)
        node_count += nodes
        buffer_count += buffers
    return _Layout(node_count, buffer_count, tuple(rows))


def check_message(message: Buffer, arrow_schema: pa.Schema, rows_max: int, bytes_max: int) -> int:
    """Raise DecodeError unless this is one whole record batch message of exactly these columns, within the bounds.

    Returns the number of its codec, -1 without compression. `bytes_max` bounds the decompressed size of its buffers,
    and also the number of values, including those inside nested values: each counts as one byte, since some types
    have one bit per value and some readers make a text of each. Buffers do not overlap, so a projection is never
    larger than its source.
    """
    view = memoryview(message)
    position = metadata_size(view)
    if position > len(view) or position % 8:
        raise DecodeError(
            f"an Arrow message of {len(view)} bytes declares {position} bytes up to the end of its metadata"
        )
    known = None
    if position <= _SOUND_BYTES_MAX:
        known = bytes(view[:position]), len(view), id(arrow_schema), rows_max, bytes_max
        if known in _sound:
            return -1
    try:
        found = _read(view[8:position])
    except (error, IndexError, OverflowError, ValueError) as cause:
        raise DecodeError(f"the metadata of an Arrow message is malformed: {cause}") from cause
    if found.version not in (_METADATA_V4, _METADATA_V5):
        raise DecodeError(f"an Arrow message has the metadata version {found.version + 1}; 4 and 5 are read")
    if found.body_size != len(view) - position:
        raise DecodeError(
            f"an Arrow message declares a body of {found.body_size} bytes, but has {len(view) - position}"
        )
    layout = _layout_for(arrow_schema)
    nodes, buffers = found.nodes, found.buffers
    if len(nodes) != 2 * layout.node_count or len(buffers) != 2 * layout.buffer_count or found.variadic:
        raise DecodeError(
            f"an Arrow message has {len(nodes) // 2} columns and parts of columns in {len(buffers) // 2} buffers; "
            f"its schema has {layout.node_count} in {layout.buffer_count}"
        )
    _check_counts(found, layout, rows_max, bytes_max)
    if found.method or not -1 <= found.codec <= 1:
        raise DecodeError(
            f"an Arrow message has the unknown compression {found.codec}, method {found.method}"
        )
    _check_buffers(view[position:], buffers, compressed=found.codec >= 0, bytes_max=bytes_max)
    if known is not None and found.codec < 0:  # the check used the metadata only
        if len(_sound) >= _RECENT_MAX:
            _sound.clear()
        _sound[known] = arrow_schema
    return found.codec


def opened_size(message: Buffer) -> int:
    """Return the decompressed size of a message according to its metadata. Raises DecodeError if it cannot be read."""
    view = memoryview(message)
    position = metadata_size(view)
    try:
        found = _read(view[8:position])
        if found.codec < 0:
            return len(view)
        starts, lengths = found.buffers[::2], found.buffers[1::2]
        pairs = zip(starts, lengths, strict=True)
        said = ((length, _I64.unpack_from(view, position + start)[0]) for start, length in pairs if length)
        return position + sum(length if opened < 0 else opened for length, opened in said)
    except (error, IndexError, OverflowError, ValueError) as cause:
        raise DecodeError(f"the metadata of an Arrow message is malformed: {cause}") from cause


def _check_counts(found: _Raw, layout: _Layout, rows_max: int, bytes_max: int) -> None:
    rows, nodes = found.row_count, found.nodes
    if not 0 <= rows <= rows_max:
        raise DecodeError(
            f"an Arrow message has {rows} rows; at most {rows_max} are taken at once, send fewer"
        )
    for index in layout.rows:
        if nodes[2 * index] != rows:
            raise DecodeError(f"an Arrow message of {rows} rows has a column of {nodes[2 * index]} values")
    values = 0
    for length, nulls in zip(nodes[::2], nodes[1::2], strict=True):
        if not 0 <= nulls <= length:
            raise DecodeError(f"an Arrow message declares {nulls} of {length} values as null")
        values += length
    if values > bytes_max:
        raise DecodeError(
            f"an Arrow message has {values} values; at most {bytes_max} are taken at once, send fewer"
        )


def _check_buffers(body: memoryview, buffers: tuple[int, ...], *, compressed: bool, bytes_max: int) -> None:
    size, end, total = len(body), 0, 0
    for start, length in zip(buffers[::2], buffers[1::2], strict=True):
        if not length:
            if not 0 <= start <= size:
                raise DecodeError(
                    f"an empty buffer of an Arrow message lies outside of its {size} bytes of body"
                )
            continue
        if start < end or start & 7 or length < 0:
            raise DecodeError(
                f"a buffer of an Arrow message is {length} bytes at {start}; buffers stand one behind the other, "
                f"at multiples of 8, and the one before it ends at {end}"
            )
        end = start + (length + 7 & ~7)
        if end > size:
            raise DecodeError(f"a buffer of an Arrow message lies outside of its {size} bytes of body")
        if not compressed:
            total += length
            continue
        if length < 8:
            raise DecodeError(
                f"a compressed buffer of an Arrow message has {length} bytes; the length before it takes 8"
            )
        opened: int = _I64.unpack_from(body, start)[0]
        if opened < _NOT_COMPRESSED:
            raise DecodeError(
                f"a compressed buffer of an Arrow message declares a decompressed size of {opened} bytes"
            )
        total += length - 8 if opened == _NOT_COMPRESSED else opened
    if total > bytes_max:
        raise DecodeError(
            f"the buffers of an Arrow message have {total} bytes without compression; at most {bytes_max} are taken "
            "at once, send fewer rows"
        )
