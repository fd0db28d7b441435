"""The two flatbuffers a projection touches: Arrow's Message and RecordBatch, read and written by hand.

Of Arrow's format (Message.fbs): a Message has version(0), header_type(1), header(2), bodyLength(3); a
RecordBatch has length(0), nodes(1), buffers(2), compression(3); a BodyCompression has codec(0), method(1). Nodes
and buffers are vectors of pairs of int64. Numbers are little endian, offsets relative to where they stand.

Nothing read is trusted: every offset is checked to lie inside of the metadata. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.errors import DecodeError

Pairs = npt.NDArray[np.int64]

CONTINUATION = b"\xff\xff\xff\xff"
_RECORD_BATCH = 3
_METADATA_V5 = 4
_NO_COMPRESSION = -1

_U16, _I16, _I32, _U32, _I64 = Struct("<H"), Struct("<h"), Struct("<i"), Struct("<I"), Struct("<q")

# What is written, with every position fixed: message, record batch and compression tables, then the vectors.
_TABLES = Struct(
    "<I"  # 0 root: where the message table is
    "4H"  # 4 its vtable: size, table size, then where version, header_type,
    "2H"  # ... header and bodyLength are
    "iIqhBx"  # 16 the message: vtable, header, body length, version, header type
    "6H"  # 36 vtable of the record batch: sizes, then length, nodes, buffers, compression
    "iIqII"  # 48 the record batch: vtable, nodes, length, buffers, compression
    "4H"  # 72 vtable of the compression: sizes, then codec, method
    "ibbxx"  # 80 the compression: vtable, codec, method
    "4xI"  # 88 padding, then how many nodes there are
)
_NODES_AT = 96


@dataclass(frozen=True, slots=True)
class RecordBatchMetadata:
    """`nodes` int64[columns, 2] of (rows, nulls), `buffers` int64[n, 2] of (position in the body, size); `codec` 0
    LZ4 frame, 1 ZSTD, -1 none.
    """

    length: int
    nodes: Pairs
    buffers: Pairs
    codec: int
    body_length: int


def read_metadata(metadata: memoryview) -> RecordBatchMetadata:
    """The metadata of an encapsulated record batch message. Raises DecodeError."""
    try:
        return _read(metadata)
    except (IndexError, ValueError, OverflowError) as error:
        raise DecodeError(f"an Arrow message has malformed metadata: {error}") from None


def write_metadata(length: int, nodes: Pairs, buffers: Pairs, codec: int, body_length: int) -> bytes:
    """The message in front of the body: continuation, size and metadata, a multiple of 8 bytes."""
    node_bytes = np.ascontiguousarray(nodes, np.int64).tobytes()
    buffer_bytes = np.ascontiguousarray(buffers, np.int64).tobytes()
    buffers_count_at = _NODES_AT + len(node_bytes) + 4
    compressed = codec != _NO_COMPRESSION
    tables = _TABLES.pack(
        16, 12, 20, 16, 18, 4, 8,
        16 - 4, 48 - 20, body_length, _METADATA_V5, _RECORD_BATCH,
        12, 24, 8, 4, 16, 20 if compressed else 0,
        48 - 36, 92 - 52, length, buffers_count_at - 64, 80 - 68 if compressed else 0,
        8, 8, 4, 5,
        80 - 72, codec if compressed else 0, 0,
        len(nodes),
    )  # fmt: skip
    metadata = b"".join((tables, node_bytes, b"\0\0\0\0", _U32.pack(len(buffers)), buffer_bytes))
    return b"".join((CONTINUATION, _I32.pack(len(metadata)), metadata))


class _Table:
    """A table of a flatbuffer and the positions of its fields."""

    def __init__(self, data: memoryview, position: int) -> None:
        self._data = data
        self.position = position
        self._vtable = position - _unpack(_I32, data, position)
        self._fields = (_unpack(_U16, data, self._vtable) - 4) // 2

    def field(self, index: int) -> int:
        """Where a field is; 0 if it has its default."""
        if index >= self._fields:
            return 0
        offset = _unpack(_U16, self._data, self._vtable + 4 + 2 * index)
        return self.position + offset if offset else 0

    def number(self, index: int, kind: Struct, default: int = 0) -> int:
        at = self.field(index)
        return _unpack(kind, self._data, at) if at else default

    def table(self, index: int) -> _Table | None:
        at = self.field(index)
        return _Table(self._data, at + _unpack(_U32, self._data, at)) if at else None

    def pairs(self, index: int) -> Pairs:
        at = self.field(index)
        if not at:
            return np.zeros((0, 2), np.int64)
        start = at + _unpack(_U32, self._data, at)
        count = _unpack(_U32, self._data, start)
        return np.frombuffer(self._data, "<i8", 2 * count, start + 4).reshape(count, 2)


def _unpack(kind: Struct, data: memoryview, position: int) -> Any:
    if position < 0 or position + kind.size > len(data):
        raise IndexError(f"position {position} is outside of its {len(data)} bytes")
    return kind.unpack_from(data, position)[0]


def _read(metadata: memoryview) -> RecordBatchMetadata:
    message = _Table(metadata, _unpack(_U32, metadata, 0))
    header_type = message.number(1, Struct("<B"))
    header = message.table(2)
    if header_type != _RECORD_BATCH or header is None:
        raise ValueError(f"header type {header_type} is not a record batch")
    compression = header.table(3)
    codec = _NO_COMPRESSION if compression is None else compression.number(0, Struct("<b"))
    return RecordBatchMetadata(
        length=header.number(0, _I64),
        nodes=header.pairs(1),
        buffers=header.pairs(2),
        codec=codec,
        body_length=message.number(3, _I64),
    )
