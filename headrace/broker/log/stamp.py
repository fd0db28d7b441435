"""Stamp a batch with the values that the log decides, without copying or changing the batch.

All stamped fields lie at the beginning of the header. So the result is a new prefix and the unchanged rest of the
batch, to be written one after the other.
"""

from __future__ import annotations

import crc32c

from headrace.protocol.records.header import (
    ATTRIBUTES_POSITION,
    CRC_POSITION,
    LOG_APPEND_TIME_BIT,
    UP_TO_EPOCH,
    UP_TO_MAX_TIMESTAMP,
    BatchHeader,
)


def stamp(
    batch: memoryview, header: BatchHeader, base_offset: int, leader_epoch: int
) -> tuple[bytes, memoryview]:
    """Return (prefix, rest) with base offset and leader epoch, which no CRC covers."""
    return UP_TO_EPOCH.pack(base_offset, header.batch_length, leader_epoch), batch[UP_TO_EPOCH.size :]


def stamp_with_time(
    batch: memoryview, header: BatchHeader, base_offset: int, leader_epoch: int, now_ms: int
) -> tuple[bytes, memoryview]:
    """Return the patched beginning of a batch, up to its max timestamp, with a new CRC; and the unchanged rest."""
    rest = batch[UP_TO_MAX_TIMESTAMP.size :]
    prefix = bytearray(
        UP_TO_MAX_TIMESTAMP.pack(
            base_offset,
            header.batch_length,
            leader_epoch,
            header.magic,
            0,
            header.attributes | LOG_APPEND_TIME_BIT,
            header.last_offset_delta,
            header.base_timestamp,
            now_ms,
        )
    )
    crc = crc32c.crc32c(rest, crc32c.crc32c(prefix[ATTRIBUTES_POSITION:]))
    prefix[CRC_POSITION : CRC_POSITION + 4] = crc.to_bytes(4, "big")
    return bytes(prefix), rest
