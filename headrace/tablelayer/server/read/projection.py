"""Projection in the server: a batch with fewer columns, made from byte ranges of the stored batch.

Only the batch's header, its change types and the metadata of the Arrow message (a flatbuffer) are read. New metadata
lists the field nodes and buffers of the chosen columns. The answer is this metadata, followed by the chosen buffers as
slices of memory or as regions of the segment file for `sendfile`. Buffers are neither decompressed nor copied.

A projected batch has the right length for its content, but no valid CRC (`model.batches.batch`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.protocol.errors import DecodeError
from headrace.protocol.records.header import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    LENGTH,
    LENGTH_POSITION,
    LOG_OVERHEAD,
)
from headrace.tablelayer.model.batches.batch import (
    LENGTHS,
    LENGTHS_POSITION,
    PREFIX_SIZE,
    message_position,
    schema_id_of,
)
from headrace.tablelayer.model.batches.ipc_metadata import (
    RecordBatchMetadata,
    build_metadata,
    layout_of,
    metadata_size,
    parse_metadata,
)


class Projection(msgspec.Struct, frozen=True):
    """The ascending nodes and buffers of a schema's messages that belong to the chosen columns."""

    node_count: int
    buffer_count: int
    nodes: npt.NDArray[np.intp]
    buffers: npt.NDArray[np.intp]

    @classmethod
    def of(cls, arrow_schema: pa.Schema, columns: Sequence[int]) -> Projection:
        """Return the projection; `columns` are ascending, distinct positions in the schema."""
        chosen = set(columns)
        if list(columns) != sorted(chosen) or not all(0 <= column < len(arrow_schema) for column in chosen):
            raise ValueError(f"columns {list(columns)} are not ascending positions below {len(arrow_schema)}")
        nodes: list[int] = []
        buffers: list[int] = []
        node_count = buffer_count = 0
        for index, column in enumerate(arrow_schema):
            node_step, buffer_step = layout_of(column.type)
            if index in chosen:
                nodes.extend(range(node_count, node_count + node_step))
                buffers.extend(range(buffer_count, buffer_count + buffer_step))
            node_count += node_step
            buffer_count += buffer_step
        return cls(node_count, buffer_count, np.array(nodes, np.intp), np.array(buffers, np.intp))

    def apply(self, message: RecordBatchMetadata) -> tuple[bytes, list[tuple[int, int]]]:
        """Return new metadata, and the ranges (position, size) of the old message that follow it.

        Raises DecodeError if the message does not have the schema's nodes and buffers, or a buffer lies outside of its
        body.
        """
        if len(message.nodes) != self.node_count or len(message.buffers) != self.buffer_count:
            raise DecodeError(
                f"an Arrow message has {len(message.nodes)} columns in {len(message.buffers)} buffers; "
                f"its schema has {self.node_count} in {self.buffer_count}"
            )
        chosen = message.buffers[self.buffers]
        starts, lengths = chosen[:, 0], chosen[:, 1]
        limit = message.body_size
        # Check each bound first: the sum of two huge numbers would wrap.
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
"""Returns the bytes at (position, size)."""

_SPECULATIVE = 2048
"""Number of bytes read together with the header: most batches' change types and metadata."""


def project_batch(
    read: Read, position: int, size: int, projection_of: Callable[[int], Projection]
) -> tuple[bytes, list[tuple[int, int]]]:
    """Project the Arrow batch of `size` bytes at `position`. Return the bytes to send first, and the ranges to send
    then.

    `projection_of` returns the projection for a schema id. `read` reads the front of the batch only. Ranges count from
    the same origin as `position`.
    """
    front = memoryview(read(position, min(size, _SPECULATIVE)))
    if len(front) < PREFIX_SIZE:
        raise DecodeError(f"an Arrow batch of {len(front)} bytes is cut off")
    changes_length, statistics_length = LENGTHS.unpack_from(front, LENGTHS_POSITION)
    start = message_position(changes_length, statistics_length)
    if changes_length < 0 or statistics_length < 0 or start + 8 > size:
        raise DecodeError(f"an Arrow batch of {size} bytes claims that its message begins at {start}")
    if len(front) < start + 8:
        front = memoryview(read(position, min(size, start + _SPECULATIVE)))
    message_size = metadata_size(front[start : start + 8])
    if start + message_size > size:
        raise DecodeError(f"an Arrow batch of {size} bytes claims to have {message_size} bytes of metadata")
    if len(front) < start + message_size:
        front = memoryview(read(position, start + message_size))
    projection = projection_of(schema_id_of(front))
    metadata, ranges = projection.apply(parse_metadata(front[start : start + message_size]))
    if ranges and ranges[-1][0] + start + ranges[-1][1] > size:
        raise DecodeError(f"an Arrow batch of {size} bytes has buffers past its end")
    body_size = sum(length for _, length in ranges)
    head = bytearray(message_position(changes_length))
    head[: PREFIX_SIZE + changes_length] = front[: PREFIX_SIZE + changes_length]
    LENGTH.pack_into(head, LENGTH_POSITION, len(head) + len(metadata) + body_size - LOG_OVERHEAD)
    head[CRC_POSITION:ATTRIBUTES_POSITION] = bytes(4)
    LENGTHS.pack_into(head, LENGTHS_POSITION, changes_length, 0)
    return bytes(head) + metadata, [(position + start + at, length) for at, length in ranges]
