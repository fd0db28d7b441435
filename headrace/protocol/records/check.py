"""Check that a batch has the records that its header announces, without decoding them.

`check_batch` reads every length and count: 1.5 us for a record, 11 ns for each further one, and the decompression. A
caller on the event loop gives it an `Effort`. Work that would take longer is not begun, or ends early, with
`TakesTime`; then a thread does it. Costs are upper estimates from bytes and counts; nothing is timed.

Importing this does not import numba. Until the kernel is loaded (`load`: some tenths of a second, 90 MB), batches are
checked in plain Python at 2 us a record: a few records on the event loop, more in a thread. The largest batches wait
for the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headrace.protocol.errors import DecodeError
from headrace.protocol.loading.lazy import lazy_module
from headrace.protocol.records.compression import Bytes, DecompressedTooLarge, decompress, lz4_frame
from headrace.protocol.records.header import COMPRESSION_MASK, HEADER_SIZE, BatchHeader, Buffer
from headrace.protocol.records.small import FEW_RECORDS
from headrace.protocol.varint import read_varint, read_varlong

if TYPE_CHECKING:
    import numpy as np

    from headrace.protocol.records.decode import RecordColumns
else:
    np = lazy_module("numpy")

EFFORT_NS: Final = 1_000_000
"""Time that one request may take on the event loop."""

_STEP_NS: Final = 11
_COLUMNS_NS: Final = 100
"""Cost of one record that is decoded and checked."""
_FEW_HEADERS: Final = 64
_FEW_NS: Final = 3_000
_PLAIN_RECORDS: Final = 10_000
"""Above this number, loading the kernel first is faster."""
_INT64: Final = range(-(1 << 63), 1 << 63)
_CODEC_NS: Final = {1: (60.0, 3.0), 2: (0.5, 1.2), 3: (2.0, 0.5), 4: (4.0, 1.5)}
"""Cost of one byte in each codec, compressed and decompressed, in nanoseconds.

Many empty members or frames cost twice as much per compressed byte.
"""
_LZ4: Final = 3
_LZ4_BLOCKS_MAX: Final = 64
"""Maximum number of blocks, of 64 KiB each: producers write 4 MiB so."""
_LZ4_NS: Final = (1.0, 0.2)
"""Cost of one byte of a frame with few blocks, compressed and decompressed. The shortest sequences cost most per
compressed byte, one long match per decompressed byte."""
_LZ4_CHECKED_NS: Final = (1.0, 0.5)
"""The same with checksums."""
_STEPS_UNBOUNDED: Final = 1 << 40

_columns_loaded = False
_kernel: Callable[..., tuple[int, int, int, int]] | None = None


class TakesTime(Exception):  # noqa: N818 - nothing is wrong
    """The work is too long to be done at once. Nothing has changed."""


class Effort:
    """The time left for work on the event loop, in nanoseconds of one core."""

    __slots__ = ("left_ns",)

    def __init__(self, left_ns: float = EFFORT_NS) -> None:
        self.left_ns = left_ns

    def take(self, cost_ns: float) -> None:
        """Take an amount; raise TakesTime if less is left."""
        if cost_ns > self.left_ns:
            raise TakesTime
        self.left_ns -= cost_ns


def open_within(header: BatchHeader, batch: Buffer, bytes_max: int, effort: Effort | None) -> Bytes:
    """Return the decompressed records of `batch`, which is whole and has this header.

    Raise DecodeError, DecompressedTooLarge beyond `bytes_max`, TakesTime.
    """
    codec = header.attributes & COMPRESSION_MASK
    if not codec:
        return np.frombuffer(batch, np.uint8, header.size - HEADER_SIZE, HEADER_SIZE)
    body = memoryview(batch)[HEADER_SIZE : header.size]
    if effort is None:
        return decompress(codec, body, max_bytes=bytes_max)
    in_ns, out_ns = _costs_of(codec, body)
    effort.take(in_ns * len(body))
    most = min(int(effort.left_ns / out_ns), bytes_max)
    try:
        records = decompress(codec, body, max_bytes=most)
    except DecompressedTooLarge:
        effort.left_ns -= most * out_ns
        if most == bytes_max:
            raise
        raise TakesTime from None
    effort.take(out_ns * len(records))
    return records


def _costs_of(codec: int, body: memoryview) -> tuple[float, float]:
    """Return the nanoseconds per compressed byte and per decompressed byte."""
    if codec == _LZ4:
        frame = lz4_frame(body, _LZ4_BLOCKS_MAX)
        if frame is not None:
            return _LZ4_CHECKED_NS if frame.has_checksums else _LZ4_NS
    return _CODEC_NS.get(codec, (0.0, 1.0))


def check_batch(header: BatchHeader, batch: Buffer, *, bytes_max: int, effort: Effort | None = None) -> int:
    """Check the number, lengths and offset deltas of the records, and return their largest timestamp (ms).

    Raise DecodeError with the number of the record, DecompressedTooLarge beyond `bytes_max` decompressed bytes,
    TakesTime.
    """
    plain_max = FEW_RECORDS if effort is not None else _PLAIN_RECORDS
    is_plain = _kernel is None and header.record_count <= plain_max
    if is_plain and not header.attributes & COMPRESSION_MASK:
        records = memoryview(batch)[HEADER_SIZE : header.size]  # not as an array: numpy may not be loaded yet
        return _in_time(_check_plainly(header, records, effort) + header.base_timestamp)
    payload = open_within(header, batch, bytes_max, effort)
    if _kernel is not None:
        largest = _check(_kernel, header, payload, effort)
    elif is_plain:
        largest = _check_plainly(header, payload.data, effort)
    elif effort is not None:
        raise TakesTime
    else:
        largest = _check(load(), header, payload, None)
    return _in_time(largest + header.base_timestamp)


def _in_time(timestamp: int) -> int:
    if timestamp not in _INT64:
        raise DecodeError(f"a record is stamped {timestamp}, which is not a time")
    return timestamp


def columns_within(
    header: BatchHeader, batch: Buffer, bytes_max: int, effort: Effort | None = None
) -> RecordColumns:
    """Return the records of `batch` as columns.

    Raise DecodeError, DecompressedTooLarge if they and their columns take more than `bytes_max`, TakesTime.
    """
    global _columns_loaded
    if effort is not None:
        if not _columns_loaded:
            raise TakesTime
        effort.take(_COLUMNS_NS * header.record_count)
    payload = open_within(header, batch, bytes_max, effort)
    from headrace.protocol.records.decode import decode_opened

    records = decode_opened(header, payload, max_bytes=bytes_max)
    _columns_loaded = True
    return records


def is_loaded() -> bool:
    return _kernel is not None


def load() -> Callable[..., tuple[int, int, int, int]]:
    """The kernel, loaded or compiled."""
    global _kernel
    if _kernel is None:
        from headrace.protocol.records import kernels

        nothing = np.zeros(1, np.uint8)
        for payload in (nothing, kernels.frozen(nothing, np.uint8)):  # decompressed records, and frames
            kernels.check_records(payload, 1, 1)
        _kernel = kernels.check_records
    return _kernel


def warm() -> None:
    """Compile the kernel (or load it from the cache)."""
    load()


def _check(
    kernel: Callable[..., tuple[int, int, int, int]],
    header: BatchHeader,
    payload: Bytes,
    effort: Effort | None,
) -> int:
    steps_max = _STEPS_UNBOUNDED if effort is None else int(effort.left_ns / _STEP_NS)
    code, index, position, largest = kernel(payload, header.record_count, steps_max)
    if code:
        from headrace.protocol.records import kernels

        if code == kernels.TOO_MANY_STEPS:
            if effort is not None:
                effort.left_ns = 0
            raise TakesTime
        raise _malformed(index, kernels.REASONS[code])
    if position != payload.size:
        raise _left_over(payload.size - position, header)
    if effort is not None:
        effort.left_ns -= _STEP_NS * header.record_count
    return largest


def _check_plainly(header: BatchHeader, payload: memoryview[Any], effort: Effort | None) -> int:
    """Check the records in plain Python."""
    if effort is not None:
        effort.take(_FEW_NS * header.record_count)
    largest = _INT64.start
    position, size = 0, len(payload)
    headers_left = _FEW_HEADERS if effort is not None else _PLAIN_RECORDS
    for index in range(header.record_count):
        try:
            length, position = read_varint(payload, position)
            end = position + length
            if not 0 < length <= size - position:
                raise DecodeError("it runs past the end of the batch")
            delta, position = read_varlong(payload, position + 1)
            if delta > largest:
                largest = delta
            delta, position = read_varint(payload, position)
            if delta != index:
                raise DecodeError(f"its offset delta is {delta}; records are numbered one after another")
            position = _after_piece(payload, position, size)
            position = _after_piece(payload, position, size)
            headers, position = read_varint(payload, position)
            if headers < 0:
                raise DecodeError("its number of headers is negative")
            headers_left -= headers
            if headers_left < 0:
                if effort is not None:
                    raise TakesTime
                return _check(load(), header, np.frombuffer(payload, np.uint8), None)
            for _ in range(headers):
                position = _after_piece(payload, position, size, length_min=0)
                position = _after_piece(payload, position, size)
            if position != end:
                raise DecodeError("its length does not match its fields")
        except DecodeError as error:
            raise _malformed(index, str(error)) from None
    if position != size:
        raise _left_over(size - position, header)
    return largest


def _after_piece(payload: memoryview[Any], position: int, size: int, length_min: int = -1) -> int:
    length, position = read_varint(payload, position)
    if not length_min <= length <= size - position:
        raise DecodeError("it runs past its end")
    return position + length if length > 0 else position


def _malformed(index: int, reason: str) -> DecodeError:
    return DecodeError(f"record {index} of the batch is malformed: {reason}")


def _left_over(size: int, header: BatchHeader) -> DecodeError:
    return DecodeError(f"the batch has {size} bytes after its {header.record_count} records")
