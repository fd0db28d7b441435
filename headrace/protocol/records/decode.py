"""Records of a batch as columns: one pass of a compiled kernel, no object per record.

`decode_records` trusts nothing: lengths, counts and offsets are checked against the payload before anything
is allocated or read, and decompression is bounded. It does not check the CRC (the log did, before it accepted
the batch); callers that read a batch from elsewhere use `header.verify_crc` first.

Imports numba (through the kernels).
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.protocol.errors import DecodeError
from headrace.protocol.records import kernels
from headrace.protocol.records.compression import (
    MAX_DECOMPRESSED_BYTES,
    Bytes,
    DecompressedTooLarge,
    open_batch,
)
from headrace.protocol.records.header import BatchHeader, Buffer

Int64s: TypeAlias = "NDArray[np.int64]"

_RECORD_SIZE_MIN: Final = 7
"""Length, attributes, two deltas, two lengths, header count: a byte each."""
_COLUMNS: Final = 8


class RecordColumns(msgspec.Struct, frozen=True):
    """The records of one batch; every array has one int64 element per record.

    payload        uint8, the decompressed records; the starts below are positions in it
    offsets        absolute log offsets, ascending
    timestamps     ms since the epoch (the batch's append time when it has log append time)
    key_length, value_length    bytes, -1 for null
    headers_start, headers_count    the encoded headers of each record (`headers`)
    """

    header: BatchHeader
    payload: NDArray[np.uint8]
    offsets: Int64s
    timestamps: Int64s
    key_start: Int64s
    key_length: Int64s
    value_start: Int64s
    value_length: Int64s
    headers_start: Int64s
    headers_count: Int64s

    def __len__(self) -> int:
        return len(self.offsets)

    def keys(self) -> list[bytes | None]:
        """One object per record: for small batches (journals, tests)."""
        return self._pieces(self.key_start, self.key_length)

    def values(self) -> list[bytes | None]:
        """One object per record: for small batches (journals, tests)."""
        return self._pieces(self.value_start, self.value_length)

    def headers(self, index: int) -> list[tuple[str, bytes | None]]:
        """(key, value) of each header of one record. Raises DecodeError if a key is not UTF-8."""
        data = self.payload.data
        position = int(self.headers_start[index])
        result: list[tuple[str, bytes | None]] = []
        for _ in range(int(self.headers_count[index])):
            length, position = _varint(data, position)
            try:
                key = str(data[position : position + length], "utf-8")
            except UnicodeDecodeError as error:
                raise DecodeError(f"record {index} has a header key that is not UTF-8: {error}") from None
            position += length
            length, position = _varint(data, position)
            result.append((key, None if length < 0 else bytes(data[position : position + length])))
            position += max(length, 0)
        return result

    def _pieces(self, start: Int64s, length: Int64s) -> list[bytes | None]:
        data = self.payload.tobytes()
        return [
            None if count < 0 else data[first : first + count]
            for first, count in zip(start.tolist(), length.tolist(), strict=True)
        ]


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """A zigzag varint that the kernel has already walked over, so it is known to be whole."""
    raw = shift = 0
    while True:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7


def decode_records(batch: Buffer, *, max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES) -> RecordColumns:
    """Decode the one batch (magic 2) that `batch` begins with.

    Raise DecodeError, with the number of the record, for a malformed header, payload or record, and
    DecompressedTooLarge if the decompressed records and these columns would take more than `max_decompressed_bytes`.
    """
    header, body = open_batch(batch, max_bytes=max_decompressed_bytes)
    return decode_opened(header, body, max_bytes=max_decompressed_bytes)


def decode_opened(
    header: BatchHeader, body: Bytes, *, max_bytes: int = MAX_DECOMPRESSED_BYTES
) -> RecordColumns:
    """Decode the records of a batch that has been decompressed."""
    payload = kernels.frozen(body, np.uint8)
    count = header.record_count
    if count * _RECORD_SIZE_MIN > payload.size:
        raise DecodeError(f"a batch claims {count} records in {payload.size} bytes")
    needed = payload.size + count * _COLUMNS * 8
    if needed > max_bytes:
        raise DecompressedTooLarge(
            f"the batch's {count} records take {needed} bytes when they are decoded; {max_bytes} are allowed"
        )
    columns = np.empty((_COLUMNS, count), np.int64)
    code, index, position = kernels.parse_records(payload, header.last_offset_delta, *columns)
    if code:
        raise DecodeError(
            f"record {index} of the batch at offset {header.base_offset} is malformed: {kernels.REASONS[code]}"
        )
    if position != payload.size:
        raise DecodeError(
            f"the batch at offset {header.base_offset} has {payload.size - position} bytes "
            f"after its {count} records"
        )
    offsets, timestamps = columns[0], columns[1]
    offsets += header.base_offset
    if header.is_log_append_time:
        timestamps[:] = header.max_timestamp
    else:
        timestamps += header.base_timestamp
    return RecordColumns(header, payload, offsets, timestamps, *columns[2:])


def warm() -> None:
    """Compile the kernels (or load them from the cache)."""
    from headrace.protocol.records.encode import Record, build_batch

    decode_records(build_batch([Record(b"k", b"v", (("h", None),), 0)]))
