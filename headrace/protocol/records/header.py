"""The 61 bytes every batch begins with: Kafka's record batch v2 header, shared by Kafka and Arrow batches.

A batch is opaque to everything that only moves it. Offsets, idempotence, leader epochs, indexes, retention
and recovery are decided from this header alone, whatever follows it: Kafka records (magic 2) or one Arrow
batch (magic 100, private to Headrace and never sent to a Kafka client).

    0  int64  base offset              outside the CRC, stamped by the log
    8  int32  length of what follows   outside the CRC
    12 int32  partition leader epoch   outside the CRC, stamped by the log
    16 int8   magic                    outside the CRC
    17 uint32 CRC32C of bytes 21..end
    21 int16  attributes: bits 0-2 compression, 3 log append time, 4 transactional, 5 control,
              6 delete horizon
    23 int32  last offset delta
    27 int64  base timestamp, 35 int64 max timestamp (ms since the epoch)
    43 int64  producer id, 51 int16 producer epoch, 53 int32 base sequence
    57 int32  record count

An Arrow batch continues with an int32: the number of sequence numbers it consumes, which need not be its
number of records. It always takes at least one offset and one sequence number, even with no records.

Pure: no I/O, no clock; imports nothing heavy. Anything malformed is a DecodeError.
Source: KIP-98, and the record batch format in Kafka's protocol documentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, TypeAlias

import crc32c as _crc32c
import msgspec

from headrace.protocol.errors import DecodeError

Buffer: TypeAlias = bytes | bytearray | memoryview

HEADER_SIZE: Final = 61
LOG_OVERHEAD: Final = 12
"""Bytes in front of what `batch_length` counts: base offset and the length itself."""

MAGIC_V2: Final = 2
MAGIC_ARROW: Final = 100
ARROW_HEADER_SIZE: Final = HEADER_SIZE + 4
"""An Arrow batch is never shorter: the sequence count follows the common header."""

COMPRESSION_MASK: Final = 0x07
LOG_APPEND_TIME_BIT: Final = 0x08
TRANSACTIONAL_BIT: Final = 0x10
CONTROL_BIT: Final = 0x20
DELETE_HORIZON_BIT: Final = 0x40

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_SEQUENCE: Final = -1
NO_TIMESTAMP: Final = -1
NO_LEADER_EPOCH: Final = -1
MAX_SEQUENCE: Final = 0x7FFFFFFF

LENGTH_POSITION: Final = 8
EPOCH_POSITION: Final = 12
MAGIC_POSITION: Final = 16
CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21
"""Also the first byte that the CRC covers."""
FLAGS_POSITION: Final = ATTRIBUTES_POSITION + 1
"""The low byte of the attributes, which has all of its bits that mean something."""
LAST_OFFSET_DELTA_POSITION: Final = 23
BASE_TIMESTAMP_POSITION: Final = 27
MAX_TIMESTAMP_POSITION: Final = 35
PRODUCER_ID_POSITION: Final = 43
PRODUCER_EPOCH_POSITION: Final = 51
BASE_SEQUENCE_POSITION: Final = 53
RECORD_COUNT_POSITION: Final = 57
SEQUENCE_COUNT_POSITION: Final = HEADER_SIZE
"""Position of an Arrow batch's count of sequences."""

_FORMAT: Final = ">qiibIhiqqqhii"
HEADER: Final = Struct(_FORMAT)
UP_TO_EPOCH: Final = Struct(_FORMAT[:4])
UP_TO_LAST_OFFSET_DELTA: Final = Struct(_FORMAT[:8])
UP_TO_MAX_TIMESTAMP: Final = Struct(_FORMAT[:10])
LENGTH: Final = Struct(">i")
ATTRIBUTES: Final = Struct(">h")
TIMESTAMP: Final = Struct(">q")
BOTH_TIMESTAMPS: Final = Struct(">qq")
PRODUCER: Final = Struct(">qhi")
"""Producer id, producer epoch and base sequence, from `PRODUCER_ID_POSITION` on."""
RECORD_COUNT: Final = Struct(">i")
SEQUENCE_COUNT: Final = Struct(">i")

_PREFIX: Final = Struct(">qi")
_BASE_OFFSET: Final = Struct(">q")
_EPOCH: Final = Struct(">i")
_CRC: Final = Struct(">I")


def advance_sequence(sequence: int, count: int) -> int:
    """The sequence number `count` after `sequence`; after 2^31-1 comes 0."""
    return (sequence + count) & MAX_SEQUENCE


class BatchHeader(msgspec.Struct, frozen=True):
    """One decoded header. `sequence_count` is the number of sequence numbers that the batch consumes (at least 1)."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    sequence_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """Codec number: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd."""
        return self.attributes & COMPRESSION_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME_BIT)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_producer(self) -> bool:
        """True for idempotent writers; ids below -1 are forwarded identities of the table layer."""
        return self.producer_id != NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return advance_sequence(self.base_sequence, self.sequence_count - 1)


def read_size(buffer: Buffer, position: int = 0) -> int:
    """Bytes of the batch that begins at `position`, from its first 12 bytes only.

    Raises DecodeError if fewer than 12 bytes remain or the length could not hold a header.
    """
    if len(buffer) - position < LOG_OVERHEAD:
        raise DecodeError(
            f"a batch at byte {position} is cut short: {len(buffer) - position} of 12 bytes are there"
        )
    length: int = _PREFIX.unpack_from(buffer, position)[1]
    if length < HEADER_SIZE - LOG_OVERHEAD:
        raise DecodeError(f"a batch at byte {position} claims a length of {length}, a header alone needs 49")
    return length + LOG_OVERHEAD


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Decode the header at `position`. The body need not be in the buffer (but see `iter_headers`).

    Raises DecodeError when the header is cut short, the magic is unknown, or lengths or counts make no sense.
    """
    available = len(buffer) - position
    if position < 0 or available < HEADER_SIZE:
        raise DecodeError(
            f"a batch header at byte {position} is cut short: {max(available, 0)} of {HEADER_SIZE} bytes"
        )
    (
        base_offset,
        batch_length,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    ) = HEADER.unpack_from(buffer, position)
    sequence_count = last_offset_delta + 1
    if magic == MAGIC_ARROW:
        if batch_length < ARROW_HEADER_SIZE - LOG_OVERHEAD or available < ARROW_HEADER_SIZE:
            raise DecodeError(f"an Arrow batch at byte {position} is cut short before its sequence count")
        sequence_count = max(1, SEQUENCE_COUNT.unpack_from(buffer, position + SEQUENCE_COUNT_POSITION)[0])
    elif magic != MAGIC_V2:
        raise DecodeError(
            f"a batch at byte {position} has magic {magic}; only {MAGIC_V2} (record batch v2) is readable"
        )
    if batch_length < HEADER_SIZE - LOG_OVERHEAD:
        raise DecodeError(
            f"a batch at byte {position} claims a length of {batch_length}, a header alone needs 49"
        )
    if base_offset < 0 or last_offset_delta < 0 or record_count < 0:
        raise DecodeError(
            f"a batch at byte {position} has base offset {base_offset}, "
            f"last offset delta {last_offset_delta} and record count {record_count}; none may be negative"
        )
    return BatchHeader(
        base_offset,
        batch_length,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
        sequence_count,
    )


def iter_headers(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch in a buffer that holds whole batches one after another.

    Raises DecodeError at the first batch that is malformed or runs past the end of the buffer.
    """
    position, end = 0, len(buffer)
    while position < end:
        header = read_header(buffer, position)
        if header.size > end - position:
            raise DecodeError(
                f"a batch of {header.size} bytes at byte {position} runs past the end of {end} bytes"
            )
        yield position, header
        position += header.size


def write_base_offset_and_epoch(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Write the two fields that the log decides. Both are outside the CRC, so nothing else changes."""
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + EPOCH_POSITION, leader_epoch)


def compute_crc(buffer: Buffer, position: int = 0) -> int:
    """CRC32C of the batch at `position`, attributes to end. Raises DecodeError if it is cut short."""
    size = read_size(buffer, position)
    if size > len(buffer) - position:
        raise DecodeError(
            f"a batch of {size} bytes at byte {position} runs past the end of {len(buffer)} bytes"
        )
    crc: int = _crc32c.crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : position + size])
    return crc


def write_crc(buffer: bytearray | memoryview, position: int = 0) -> None:
    _CRC.pack_into(buffer, position + CRC_POSITION, compute_crc(buffer, position))


def verify_crc(buffer: Buffer, position: int = 0) -> bool:
    """True if the stored CRC matches the batch. Raises DecodeError if the batch is cut short."""
    stored: int = _CRC.unpack_from(buffer, position + CRC_POSITION)[0]
    return compute_crc(buffer, position) == stored
