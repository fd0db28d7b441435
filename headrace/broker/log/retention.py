"""Decide which segments retention deletes, locally and in remote storage. Pure: nothing is read or deleted here.

Source: Kafka's UnifiedLog.deleteOldSegments and RemoteLogManager.cleanupExpiredRemoteLogSegments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class SegmentFacts(Protocol):
    """`size` bytes of records that end at `end_offset`. `newest_ms` is the time of the newest record, -1 if unknown."""

    @property
    def end_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def newest_ms(self) -> int: ...


class RetentionLimits(NamedTuple):
    """Limits of the age and the size of a log; -1: without limit."""

    age_ms_max: int
    size_bytes_max: int

    def are_outlived_by(self, segment: SegmentFacts, now_ms: int) -> bool:
        """Return whether the newest record of `segment` is too old."""
        return self.age_ms_max >= 0 and 0 <= segment.newest_ms < now_ms - self.age_ms_max


def retention_plan(
    sealed: Iterable[SegmentFacts],
    limits: RetentionLimits,
    *,
    active: SegmentFacts | None = None,
    size_bytes: int,
    log_start_offset: int,
    deletable_to: int,
    now_ms: int,
) -> int:
    """Return how many segments to delete, oldest first.

    A sealed segment is deleted if it is below the log's start, if the log keeps its maximum size without it, or if it
    is too old. Segments that reach beyond `deletable_to`, and all segments after one that stays, are never deleted.

    - sealed: the sealed segments in order; only those up to the first that stays are read
    - active: the segment that is being written, which is deleted if it is too old; None: it stays
    - size_bytes: the size of the whole log, with the active segment
    """
    excess = size_bytes - limits.size_bytes_max if limits.size_bytes_max >= 0 else -1
    count = 0
    for segment in sealed:
        if segment.end_offset > deletable_to or not (
            segment.end_offset <= log_start_offset
            or excess >= segment.size
            or limits.are_outlived_by(segment, now_ms)
        ):
            return count
        excess -= segment.size
        count += 1
    if (
        active is not None
        and active.size
        and active.end_offset <= deletable_to
        and limits.are_outlived_by(active, now_ms)
    ):
        count += 1
    return count
