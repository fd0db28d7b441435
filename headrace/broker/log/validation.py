"""Checks of a batch that is to be appended (rules B1 to B6), from any source.

A client's batch has to pass all of them. A batch that a coordinator or an extension has made must be whole and intact,
too, but may be larger than a client's, have magic 100, or cover offsets without records.

All checks need the header only. `preparation` has the checks of the records that a topic may demand; it also names the
records of a batch that is refused because of its timestamps.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

import crc32c

from headrace.broker.log.config import LogConfig
from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.protocol.records.header import (
    ATTRIBUTES_POSITION,
    COMPRESSION_MASK,
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_APPEND_TIME_BIT,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    MAGIC_V2,
    NO_PRODUCER_ID,
    TRANSACTIONAL_BIT,
    BatchHeader,
    read_header,
)

if TYPE_CHECKING:
    from headrace.protocol.records.check import Effort


class AppendOrigin(Enum):
    """The source of a batch."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    EXTENSION = "extension"


def validate_batch(
    batch: memoryview, config: LogConfig, origin: AppendOrigin, now_ms: int, effort: Effort | None = None
) -> BatchHeader:
    """Return the header of the one batch that `batch` must be. Raises KafkaError with Kafka's code. With `effort` it
    raises TakesTime if naming the wrong records takes longer.
    """
    header = _whole_batch(batch)
    is_from_client = origin is AppendOrigin.CLIENT
    if is_from_client:
        _check_client_batch(header, config)
    if len(batch) > config.segment_bytes and origin is not AppendOrigin.EXTENSION:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"the batch has {header.size} bytes, more than a segment ({config.segment_bytes}, segment.bytes)",
        )
    if (crc := crc32c.crc32c(batch[ATTRIBUTES_POSITION:])) != header.crc:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the batch's CRC is {header.crc:#010x}, but its bytes give {crc:#010x}; send it again",
        )
    if is_from_client and not config.is_log_append_time:
        _check_timestamps(header, batch, config, now_ms, effort)
    return header


def _whole_batch(batch: memoryview) -> BatchHeader:
    if len(batch) < HEADER_SIZE:
        what = "no batch" if not batch else f"{len(batch)} bytes, less than a batch header"
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"the partition was sent {what}; exactly one batch is expected"
        )
    try:
        header = read_header(batch)
    except DecodeError as error:
        old = batch[MAGIC_POSITION] in (0, 1)
        raise KafkaError(ErrorCode.INVALID_RECORD if old else ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    size = header.batch_length + LOG_OVERHEAD
    if size == len(batch):
        return header
    if size > len(batch):
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"the batch claims {header.size} bytes, {len(batch)} were sent"
        )
    raise KafkaError(
        ErrorCode.INVALID_RECORD,
        f"{len(batch) - header.size} bytes follow the batch; exactly one batch per partition is expected",
    )


def _check_client_batch(header: BatchHeader, config: LogConfig) -> None:
    attributes = header.attributes
    if header.batch_length + LOG_OVERHEAD > config.max_message_bytes:
        raise KafkaError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {header.size} bytes, max.message.bytes is {config.max_message_bytes}",
        )
    problem = None
    if header.magic != MAGIC_V2:
        problem = f"magic {header.magic}; {MAGIC_V2} is expected"
    elif header.base_offset != 0:
        problem = f"base offset {header.base_offset}; a producer sends 0"
    elif header.record_count < 1 or header.last_offset_delta + 1 != header.record_count:
        problem = (
            f"{header.record_count} records and last offset delta {header.last_offset_delta}, which disagree"
        )
    elif attributes & CONTROL_BIT:
        problem = "the control bit, which only a broker may set"
    elif header.producer_id != NO_PRODUCER_ID and (header.producer_id < 0 or header.producer_epoch < 0):
        problem = f"producer id {header.producer_id} with epoch {header.producer_epoch}"
    elif header.producer_id != NO_PRODUCER_ID and header.base_sequence < 0:
        problem = f"producer id {header.producer_id} and no sequence number"
    elif attributes & TRANSACTIONAL_BIT and header.producer_id == NO_PRODUCER_ID:
        problem = "the transactional bit and no producer id"
    elif attributes & COMPRESSION_MASK > 4:
        problem = f"compression codec {header.compression}, which does not exist"
    if problem is not None:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"the batch has {problem}")


def _check_timestamps(
    header: BatchHeader, batch: memoryview, config: LogConfig, now_ms: int, effort: Effort | None
) -> None:
    if header.attributes & LOG_APPEND_TIME_BIT:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP, "the batch claims log append time, which only the broker may stamp"
        )
    if header.max_timestamp > now_ms + config.message_timestamp_after_max_ms:
        from headrace.broker.log.preparation import late_records

        raise late_records(batch, header, config, now_ms, effort)
