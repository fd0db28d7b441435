"""The Arrow log batch, which is logged, sent by writers and answered to scanners.

Behind the 61-byte header that it shares with Kafka's batches (`protocol.records.header`, magic 100), all integers big
endian:

    61 int32  sequence count            how many sequence numbers the batch consumes
    65 int16  schema id
    67 int8   compression of the message's buffers: 0 none, 1 LZ4 frame, 2 ZSTD
    68 int8   flags: bit 0 append-only (no change types follow), bit 1 filtered (only in answers to scans)
    69 int32  length of the change types in bytes (0, or one byte a row)
    73 int32  length of the statistics (`statistics.py`; 0 for none), or of the offset deltas of a filtered batch
    77        change types, statistics or offset deltas, zeros up to a multiple of 8
              one Arrow IPC record batch message without a schema (`ipc.py`)

Record count and offsets count rows; a batch without rows still takes one offset. A filtered batch lacks some of its
rows, but still covers all of its offsets: one little-endian int32 per remaining row gives its offset from the batch's
base. Base and max timestamp are equal: the time of the append, which the server sets. The CRC covers everything from
byte 21. It does not hold for a projected or filtered batch (message rewritten, CRC field 0), which relies on the
connection's checksums.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.protocol.errors import DecodeError
from headrace.protocol.records.header import (
    BASE_TIMESTAMP_POSITION,
    BOTH_TIMESTAMPS,
    HEADER,
    HEADER_SIZE,
    LENGTH,
    LENGTH_POSITION,
    LOG_OVERHEAD,
    MAGIC_ARROW,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    PRODUCER,
    PRODUCER_ID_POSITION,
    SEQUENCE_COUNT,
    SEQUENCE_COUNT_POSITION,
    BatchHeader,
    Buffer,
    read_header,
    write_crc,
)
from headrace.tablelayer.model.batches.ipc import (
    BYTES_PER_MESSAGE_MAX,
    ROWS_PER_MESSAGE_MAX,
    decode_ipc,
    encode_ipc,
)
from headrace.tablelayer.model.batches.ipc_metadata import opened_size
from headrace.tablelayer.model.options.table_options import ArrowCompression

APPEND_ONLY: Final = 0x01
FILTERED: Final = 0x02
PREFIX_SIZE: Final = 77
"""Bytes before the change types."""

EXTENSION: Final = Struct(">ihbbii")
"""The prefix behind the header, from the sequence count to the length of the statistics."""
LENGTHS: Final = Struct(">ii")
"""The lengths of the change types and of the statistics or offset deltas."""
LENGTHS_POSITION: Final = 69
_COMPRESSION_POSITION: Final = 67
_NUMBERS: Final = {ArrowCompression.NONE: 0, ArrowCompression.LZ4_FRAME: 1, ArrowCompression.ZSTD: 2}
_COMPRESSIONS: Final = {number: compression for compression, number in _NUMBERS.items()}


class ChangeType(IntEnum):
    """The kind of change of a row. In a write to a primary-key table 3 means upsert and 4 delete."""

    APPEND = 0
    INSERT = 1
    UPDATE_BEFORE = 2
    UPDATE_AFTER = 3
    DELETE = 4

    @property
    def short(self) -> str:
        """The short form for people: `+A`, `+I`, `-U`, `+U`, `-D`."""
        return ("+A", "+I", "-U", "+U", "-D")[self]


def encode_arrow_batch(
    batch: pa.RecordBatch,
    *,
    schema_id: int,
    change_types: npt.NDArray[np.uint8] | None,
    compression: ArrowCompression | None = None,
    timestamp_ms: int = -1,
    sequence_count: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    last_offset_delta: int | None = None,
    base_offset: int = 0,
    statistics: bytes = b"",
    offset_deltas: npt.NDArray[np.int32] | None = None,
    message: Buffer | None = None,
) -> memoryview:
    """Return one whole batch, ready for a log, a write request or a scanner.

    `change_types` is uint8[rows], or None for a batch of appends. `sequence_count` defaults to the number of rows,
    `last_offset_delta` to the last row's. `offset_deltas` (int32[rows]) makes a filtered batch, which has no
    statistics. `message` is the rows' message without compression, if the caller has it. Raises ValueError if there is
    not one change type or offset delta per row.
    """
    rows = batch.num_rows
    changes = b"" if change_types is None else np.ascontiguousarray(change_types, np.uint8).tobytes()
    if change_types is not None and len(changes) != rows:
        raise ValueError(f"{len(changes)} change types for {rows} rows")
    flags = APPEND_ONLY if change_types is None else 0
    if offset_deltas is not None:
        if len(offset_deltas) != rows or statistics:
            raise ValueError(f"{len(offset_deltas)} offset deltas for {rows} rows")
        flags |= FILTERED
        statistics = offset_deltas.astype("<i4", copy=False).tobytes()
    if message is None or compression not in (None, ArrowCompression.NONE):
        message = encode_ipc(batch, compression)
    return with_header(
        message,
        rows,
        schema_id=schema_id,
        changes=changes,
        flags=flags,
        compression=compression,
        timestamp_ms=timestamp_ms,
        sequence_count=sequence_count,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        last_offset_delta=last_offset_delta,
        base_offset=base_offset,
        statistics=statistics,
    )


def with_header(
    message: Buffer,
    rows: int,
    *,
    schema_id: int,
    changes: bytes,
    flags: int,
    compression: ArrowCompression | None = None,
    timestamp_ms: int = -1,
    sequence_count: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    last_offset_delta: int | None = None,
    base_offset: int = 0,
    statistics: bytes = b"",
) -> memoryview:
    """Return the batch of a message of that many rows, with a change type for each row unless it is append-only."""
    start = message_position(len(changes), len(statistics))
    size = start + len(message)
    buffer = memoryview(pa.allocate_buffer(size)).cast("B")  # from Arrow's pool of pages; not zeroed
    buffer[:start] = bytes(start)
    HEADER.pack_into(
        buffer,
        0,
        base_offset,
        size - LOG_OVERHEAD,
        NO_LEADER_EPOCH,
        MAGIC_ARROW,
        0,
        0,
        max(0, rows - 1) if last_offset_delta is None else last_offset_delta,
        timestamp_ms,
        timestamp_ms,
        producer_id,
        producer_epoch,
        base_sequence,
        rows,
    )
    EXTENSION.pack_into(
        buffer,
        HEADER_SIZE,
        rows if sequence_count is None else sequence_count,
        schema_id,
        _NUMBERS[compression or ArrowCompression.NONE],
        flags,
        len(changes),
        len(statistics),
    )
    buffer[PREFIX_SIZE : PREFIX_SIZE + len(changes)] = changes
    buffer[PREFIX_SIZE + len(changes) : PREFIX_SIZE + len(changes) + len(statistics)] = statistics
    buffer[start:] = message
    write_crc(buffer)
    return buffer


def with_statistics(batch: Buffer, statistics: bytes) -> bytearray:
    """Return a whole, unfiltered batch with other statistics. Its CRC is wrong afterwards."""
    view = memoryview(batch).cast("B")
    changes_length, old_length = LENGTHS.unpack_from(view, LENGTHS_POSITION)
    end = PREFIX_SIZE + changes_length
    start = message_position(changes_length, len(statistics))
    changed = bytearray(start)
    changed[:end] = view[:end]
    changed[end : end + len(statistics)] = statistics
    LENGTHS.pack_into(changed, LENGTHS_POSITION, changes_length, len(statistics))
    changed += view[message_position(changes_length, old_length) :]
    LENGTH.pack_into(changed, LENGTH_POSITION, len(changed) - LOG_OVERHEAD)
    return changed


def stamp_timestamp(buffer: bytearray | memoryview, timestamp_ms: int) -> None:
    """Set the time of the append in a whole batch, and compute its CRC again."""
    BOTH_TIMESTAMPS.pack_into(buffer, BASE_TIMESTAMP_POSITION, timestamp_ms, timestamp_ms)
    write_crc(buffer)


def schema_id_of(buffer: Buffer, position: int = 0) -> int:
    """Return the schema id of the batch at a position. Raises DecodeError if it ends before that."""
    if len(buffer) < position + PREFIX_SIZE:
        raise DecodeError(f"an Arrow batch is cut off at {len(buffer) - position} bytes")
    schema_id: int = EXTENSION.unpack_from(buffer, position + HEADER_SIZE)[1]
    return schema_id


def opened_size_of(batch: Buffer) -> int:
    """Return the decompressed size of a batch according to its metadata.

    It is the batch's own size if the metadata cannot be read or `ArrowBatch.to_record_batch` would refuse the batch.
    """
    view = memoryview(batch).cast("B")
    size = len(view)
    if size < PREFIX_SIZE or not view[_COMPRESSION_POSITION]:
        return size
    changes_length, statistics_length = LENGTHS.unpack_from(view, LENGTHS_POSITION)
    start = message_position(changes_length, statistics_length)
    if not PREFIX_SIZE <= start <= size:
        return size
    try:
        opened = start + opened_size(view[start:])
    except DecodeError:
        return size
    return opened if size <= opened <= start + BYTES_PER_MESSAGE_MAX else size


def stamp_writer(
    buffer: bytearray | memoryview,
    *,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    sequence_count: int,
) -> None:
    """Set the writer of a whole batch and the number of sequence numbers that it takes. The CRC is not updated."""
    PRODUCER.pack_into(buffer, PRODUCER_ID_POSITION, producer_id, producer_epoch, base_sequence)
    SEQUENCE_COUNT.pack_into(buffer, SEQUENCE_COUNT_POSITION, sequence_count)


class ArrowBatch(msgspec.Struct, frozen=True):
    """A view of one batch.

    `message`, `change_types`, `statistics` and `offset_deltas` (of a filtered batch, int32 per row) are views of its
    buffer.
    """

    header: BatchHeader
    schema_id: int
    compression: ArrowCompression
    change_types: npt.NDArray[np.uint8] | None
    message: memoryview
    statistics: memoryview
    offset_deltas: npt.NDArray[np.int32] | None = None

    @classmethod
    def parse(cls, buffer: Buffer) -> ArrowBatch:
        """Return the batch at the start of `buffer`. Raises DecodeError if it is not a whole Arrow batch."""
        view = memoryview(buffer).cast("B")
        header = read_header(view)
        if header.magic != MAGIC_ARROW:
            raise DecodeError(f"a batch of magic {header.magic} is not an Arrow batch (magic {MAGIC_ARROW})")
        size = header.size
        if size > len(view) or size < PREFIX_SIZE:
            raise DecodeError(f"an Arrow batch of {size} bytes in a buffer of {len(view)}")
        _, schema_id, number, flags, changes_length, statistics_length = EXTENSION.unpack_from(
            view, HEADER_SIZE
        )
        compression = _COMPRESSIONS.get(number)
        if compression is None:
            raise DecodeError(f"an Arrow batch has the unknown compression {number}")
        if flags & ~(APPEND_ONLY | FILTERED):
            raise DecodeError(f"an Arrow batch has the unknown flags {flags:#04x}")
        expected = 0 if flags & APPEND_ONLY else header.record_count
        start = message_position(changes_length, statistics_length)
        if changes_length != expected or statistics_length < 0 or start > size:
            raise DecodeError(
                f"an Arrow batch of {header.record_count} rows has {changes_length} change types "
                f"and {statistics_length} bytes of statistics in {size} bytes"
            )
        changes = None
        if not flags & APPEND_ONLY:
            changes = np.frombuffer(view, np.uint8, changes_length, PREFIX_SIZE)
            if changes_length and int(changes.max()) > ChangeType.DELETE:
                raise DecodeError(f"an Arrow batch has the unknown change type {int(changes.max())}")
        end = PREFIX_SIZE + changes_length + statistics_length
        statistics = view[PREFIX_SIZE + changes_length : end]
        deltas = None
        if flags & FILTERED:
            if statistics_length != 4 * header.record_count:
                raise DecodeError(
                    f"an Arrow batch of {header.record_count} rows has {statistics_length} bytes of offset deltas"
                )
            deltas, statistics = np.frombuffer(statistics, "<i4"), view[end:end]
            if len(deltas) and (deltas[0] < 0 or deltas[-1] > header.last_offset_delta):
                raise DecodeError("the offsets of an Arrow batch's rows are not within the batch")
        return cls(header, schema_id, compression, changes, view[start:size], statistics, deltas)

    def to_record_batch(
        self,
        arrow_schema: pa.Schema,
        *,
        untrusted: bool = False,
        rows_max: int = ROWS_PER_MESSAGE_MAX,
        bytes_max: int | None = None,
    ) -> pa.RecordBatch:
        """Return the rows, with the columns that the message holds.

        `untrusted`, `rows_max`, `bytes_max`: as for `decode_ipc`. Raises DecodeError.
        """
        batch = decode_ipc(
            self.message,
            arrow_schema,
            untrusted=untrusted,
            rows_max=rows_max,
            bytes_max=bytes_max,
            compression=self.compression,
        )
        if batch.num_rows != self.header.record_count:
            raise DecodeError(f"an Arrow batch of {self.header.record_count} rows holds {batch.num_rows}")
        return batch


def message_position(change_types_length: int, statistics_length: int = 0) -> int:
    """Return the position of the Arrow message from the start of the batch."""
    return (PREFIX_SIZE + change_types_length + statistics_length + 7) & ~7
