"""Projection: the columns a scan wants, cut out of stored batches as byte ranges.

Of a batch only its head (header, change types, Arrow metadata) and the ranges of the chosen columns are read.
The head is rewritten for fewer columns; buffers go out as they are stored, compressed or not. Nothing is
decompressed, so the cost depends on what is wanted and not on what is there.

A projected batch has CRC 0 and no statistics; everything else of the header stays. Blocking reads: called in
executor threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from protocol.errors import DecodeError
from protocol.records.header import CRC_POSITION, LOG_OVERHEAD, BatchHeader, read_header
from tablelayer.model.arrays import width_of
from tablelayer.model.batch import PREFIX_SIZE, message_position
from tablelayer.server.flatbuffers import CONTINUATION, read_metadata, write_metadata

_HEAD_SIZE = 4096  # header, change types of 2,000 rows and metadata of 20 columns: usually one read
_LENGTHS = Struct(">ii")
_LENGTHS_POSITION = 69
_BATCH_LENGTH = Struct(">i")
_CRC = Struct(">I")
_NO_STATISTICS = Struct(">i").pack(0)


class Source(Protocol):
    """Bytes to read from: a file region of the log, or bytes in tests."""

    @property
    def size(self) -> int: ...

    def read_at(self, position: int, size: int) -> bytes:
        """`size` bytes at a position of the source, fewer at its end."""


class Projector:
    """Cuts chosen columns out of batches of one schema. `columns`: positions in the schema, ascending."""

    def __init__(self, arrow_schema: pa.Schema, columns: Sequence[int]) -> None:
        first = 0
        spans = []
        for field in arrow_schema:
            count = 2 if width_of(field.type) else 3
            spans.append((first, first + count))
            first += count
        self._column_count = len(arrow_schema)
        self._buffer_count = first
        self._columns = list(columns)
        self._spans = [spans[index] for index in columns]
        self._wanted = np.concatenate(
            [np.arange(start, end) for start, end in self._spans] or [np.zeros(0, np.int64)]
        )

    def project(self, source: Source, max_bytes: int) -> tuple[list[bytes], int]:
        """Projected batches of a source of whole batches, at least one, until they have `max_bytes`.

        The parts of the batches in order, and their size. Raises DecodeError for a malformed batch.
        """
        parts: list[bytes] = []
        size = position = 0
        while position < source.size and (size == 0 or size < max_bytes):
            batch_parts, batch_size = self._project_one(source, position)
            produced = sum(map(len, batch_parts))
            if size and size + produced > max_bytes:
                break
            parts.extend(batch_parts)
            size += produced
            position += batch_size
        return parts, size

    def _project_one(self, source: Source, position: int) -> tuple[list[bytes], int]:
        head = source.read_at(position, _HEAD_SIZE)
        header = read_header(head)
        if header.size < PREFIX_SIZE or header.size > source.size - position:
            raise DecodeError(f"a stored batch of {header.size} bytes is cut short")
        changes_length, statistics_length = _LENGTHS.unpack_from(head, _LENGTHS_POSITION)
        message_at = message_position(changes_length, statistics_length)
        head = _at_least(head, message_at + 8, source, position, header)
        metadata_size = _metadata_size(head, message_at)
        body_at = message_at + 8 + metadata_size
        head = _at_least(head, body_at, source, position, header)
        metadata = read_metadata(memoryview(head)[message_at + 8 : body_at])
        if len(metadata.nodes) != self._column_count or len(metadata.buffers) != self._buffer_count:
            raise DecodeError(
                f"a stored batch has {len(metadata.nodes)} columns and {len(metadata.buffers)} buffers, "
                f"not {self._column_count} and {self._buffer_count}"
            )
        ranges, moved, body_length = self._ranges(metadata.buffers, header.size - body_at)
        message = write_metadata(
            metadata.length, metadata.nodes[self._columns], moved, metadata.codec, body_length
        )
        start = message_position(changes_length, 0)
        prefix = bytearray(start)
        prefix[: PREFIX_SIZE + changes_length] = head[: PREFIX_SIZE + changes_length]
        prefix[_LENGTHS_POSITION + 4 : PREFIX_SIZE] = _NO_STATISTICS
        _BATCH_LENGTH.pack_into(prefix, 8, start + len(message) + body_length - LOG_OVERHEAD)
        _CRC.pack_into(prefix, CRC_POSITION, 0)
        parts = [bytes(prefix) + message]
        for range_at, range_size in ranges:
            if body_at + range_at + range_size <= len(head):
                parts.append(head[body_at + range_at : body_at + range_at + range_size])
            else:
                parts.append(source.read_at(position + body_at + range_at, range_size))
        if sum(map(len, parts)) != start + len(message) + body_length:
            raise DecodeError("a stored batch is shorter than its header says")
        return parts, header.size

    def _ranges(self, buffers: Any, body_size: int) -> tuple[list[tuple[int, int]], Any, int]:
        """Byte ranges of the body to copy one after the other, where the buffers are then, and the size."""
        moved = buffers[self._wanted].copy()
        ranges: list[tuple[int, int]] = []
        length = done = 0
        for start, end in self._spans:
            first = int(buffers[start, 0])
            last = int(buffers[end - 1].sum() + 7) & ~7
            if first % 8 or not 0 <= first <= last <= body_size or (buffers[start:end] < 0).any():
                raise DecodeError("a stored batch has buffers outside of its body")
            moved[done : done + end - start, 0] += length - first
            done += end - start
            length += last - first
            if ranges and sum(ranges[-1]) == first:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + last - first)
            elif last > first:
                ranges.append((first, last - first))
        if len(moved) and ((moved[:, 0] < 0).any() or (moved.sum(axis=1) > length).any()):
            raise DecodeError("a stored batch has buffers that are not in order")
        return ranges, moved, length


def _at_least(head: bytes, size: int, source: Source, position: int, header: BatchHeader) -> bytes:
    if size > header.size:
        raise DecodeError(f"a stored batch of {header.size} bytes has {size} bytes of metadata")
    return head if size <= len(head) else source.read_at(position, size)


def _metadata_size(head: bytes, message_at: int) -> int:
    if head[message_at : message_at + 4] != CONTINUATION:
        raise DecodeError("a stored batch has no Arrow message where it should be")
    size = int.from_bytes(head[message_at + 4 : message_at + 8], "little", signed=True)
    if size <= 0 or size % 8:
        raise DecodeError(f"a stored batch has Arrow metadata of {size} bytes")
    return size
