"""Find offsets by time: the first record at or after a moment, and the latest record of all.

Only batches in the right place are looked at, and a batch is decoded only when its header is not enough. Decoding may
take long. A caller that cannot wait creates `Opened` with an `Effort`, lets a thread decode the batches that
`BatchTakesTime` names, and searches again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.log.segment import Segment
from headrace.protocol.errors import DecodeError
from headrace.protocol.loading.lazy import lazy_module
from headrace.protocol.records.check import Effort, TakesTime, columns_within
from headrace.protocol.records.compression import MAX_DECOMPRESSED_BYTES
from headrace.protocol.records.header import DELETE_HORIZON_BIT, LOG_APPEND_TIME_BIT, MAGIC_V2, BatchHeader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = lazy_module("numpy")

OffsetAtTime = tuple[int, int, int]
"""(offset, timestamp in ms, leader epoch of the batch)."""


class Stamps(NamedTuple):
    """Timestamps and offsets of the records of a batch."""

    offsets: NDArray[np.int64]
    timestamps: NDArray[np.int64]


_READ_NS = 10_000


class BatchTakesTime(TakesTime):
    """A batch has to be decoded in a thread. The caller calls `read` at once, in the thread that owns the log, and its
    result in another thread. That thread's result belongs in `Opened.known`, under `base_offset`.
    """

    def __init__(self, segment: Segment, position: int, header: BatchHeader) -> None:
        super().__init__()
        self.base_offset = header.base_offset
        self._segment = segment
        self._position = position
        self._header = header

    def read(self) -> Callable[[], Stamps | None]:
        batch = self._segment.file.read(self._header.size, self._position)
        return partial(_stamps, self._header, memoryview(batch), None)


class Opened:
    """Batches that a search has decoded. Without `effort` the search may take its time."""

    def __init__(self, effort: Effort | None = None) -> None:
        self.effort = effort
        self.known: dict[int, Stamps | None] = {}
        """Decoded batches by base offset."""

    def stamps(self, segment: Segment, position: int, header: BatchHeader) -> Stamps | None:
        """Return the stamps of a batch. None when the header has to be enough: every record has the same timestamp, or
        the producer's batch cannot be decoded.
        """
        if header.is_log_append_time or header.magic != MAGIC_V2:
            return None
        if header.base_offset in self.known:
            return self.known[header.base_offset]
        try:
            if self.effort is not None:
                self.effort.take(_READ_NS + header.size)
            batch = memoryview(segment.file.read(header.size, position))
            stamps = _stamps(header, batch, self.effort)
        except TakesTime:
            raise BatchTakesTime(segment, position, header) from None
        self.known[header.base_offset] = stamps
        return stamps


def _stamps(header: BatchHeader, batch: memoryview, effort: Effort | None) -> Stamps | None:
    try:
        records = columns_within(header, batch, MAX_DECOMPRESSED_BYTES, effort)
    except DecodeError:
        return None
    return Stamps(records.offsets, records.timestamps)


def first_at_or_after(
    segments: Iterable[Segment], timestamp_ms: int, log_start_offset: int, opened: Opened
) -> OffsetAtTime | None:
    """Return the first record from `log_start_offset` on that is not older than `timestamp_ms`."""
    for segment in segments:
        if segment.largest_timestamp < timestamp_ms or segment.end_offset <= log_start_offset:
            continue
        entry = segment.time_index.floor(timestamp_ms)
        start_offset = max(segment.base_offset if entry is None else entry[1] + 1, log_start_offset)
        for position, header in segment.headers(segment.locate(start_offset)[0]):
            if header.max_timestamp >= timestamp_ms and header.last_offset >= log_start_offset:
                found = _first_in_batch(segment, position, header, timestamp_ms, log_start_offset, opened)
                if found is not None:
                    return found
    return None


def latest(segments: Sequence[Segment], log_start_offset: int, opened: Opened) -> OffsetAtTime | None:
    """Return the first record with the largest timestamp. None if no record has a timestamp."""
    best: tuple[int, Segment, int] | None = None
    for segment in segments:
        if segment.end_offset <= log_start_offset:
            continue
        if segment.base_offset < log_start_offset:
            timestamp, offset = _largest_from(segment, log_start_offset, opened)
        else:
            timestamp, offset = segment.largest
        if timestamp >= 0 and (best is None or timestamp > best[0]):
            best = (timestamp, segment, offset)
    if best is None:
        return None
    timestamp, segment, offset = best
    for position, header in segment.headers(segment.locate(offset)[0]):
        return _first_in_batch(segment, position, header, timestamp, log_start_offset, opened)
    return None


def _largest_from(segment: Segment, start_offset: int, opened: Opened) -> tuple[int, int]:
    """Return (largest timestamp, last offset of its batch) of a segment whose first records are before the log
    start.
    """
    largest = (-1, start_offset)
    for position, header in segment.headers(segment.locate(start_offset)[0]):
        timestamp = header.max_timestamp
        if header.base_offset < start_offset and timestamp > largest[0]:
            timestamp = _largest_in_batch(segment, position, header, start_offset, opened)
        if timestamp > largest[0]:
            largest = (timestamp, header.last_offset)
    return largest


def _largest_in_batch(
    segment: Segment, position: int, header: BatchHeader, start_offset: int, opened: Opened
) -> int:
    records = opened.stamps(segment, position, header)
    if records is None:
        return header.max_timestamp
    stamps = records.timestamps[records.offsets >= start_offset]
    return int(stamps.max()) if len(stamps) else -1


def _first_in_batch(
    segment: Segment, position: int, header: BatchHeader, timestamp_ms: int, offset_min: int, opened: Opened
) -> OffsetAtTime | None:
    """Return the first record of one batch with timestamp and offset not below the given ones."""
    epoch = header.partition_leader_epoch
    if not header.record_count:  # compaction has left the header only
        return None
    is_plain = header.magic == MAGIC_V2 and not header.attributes & (LOG_APPEND_TIME_BIT | DELETE_HORIZON_BIT)
    if is_plain and header.base_timestamp >= timestamp_ms and header.base_offset >= offset_min:
        return header.base_offset, header.base_timestamp, epoch  # the base timestamp is the first record's
    records = opened.stamps(segment, position, header)
    if records is None:
        return max(header.base_offset, offset_min), header.max_timestamp, epoch
    rows = np.flatnonzero((records.timestamps >= timestamp_ms) & (records.offsets >= offset_min))
    if not len(rows):
        return None
    return int(records.offsets[rows[0]]), int(records.timestamps[rows[0]]), epoch
