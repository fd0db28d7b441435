"""Decide how much of a compacted log there is to clean, and in which groups. This is cheap: no record is read.

Never cleaned: the active segment, anything at or above `bound` (the lower of high watermark and last stable offset),
records younger than `min.compaction.lag.ms`, and records that are not known to be on disk. A power cut could remove a
record that supersedes another one, which would already have been cleaned away. Source: Kafka's LogCleanerManager and
Cleaner.groupSegmentsBySize.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.broker.log.segment import RELATIVE_OFFSET_MAX, Segment

if TYPE_CHECKING:
    from headrace.broker.log.partition_log import PartitionLog

_NEVER: Final = (1 << 63) - 1


class Step(Enum):
    """The thread that the next slice of a cleaning needs."""

    ANY_THREAD = "any thread"
    OWNER = "the thread that owns the log"


class Cleanable(msgspec.Struct, frozen=True):
    """The part of a log that could be cleaned.

    A cleaning looks for superseding records in first_dirty_offset .. end_offset. `is_due` is set if records have been
    dirty for longer than `max.compaction.lag.ms`.
    """

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_due: bool

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def cleanable(log: PartitionLog, first_dirty_offset: int, bound: int, now_ms: int) -> Cleanable:
    """Return the part of `log` that can be cleaned, given where the last cleaning ended. Raises OSError,
    CorruptLogError.
    """
    config = log.config
    start = max(first_dirty_offset, log.log_start_offset)
    if start > log.log_end_offset:
        start = log.log_start_offset
    youngest_ms = now_ms - config.min_compaction_lag_ms if config.min_compaction_lag_ms > 0 else _NEVER
    clean_bytes = dirty_bytes = 0
    end, oldest_ms = start, _NEVER
    for segment in log.sealed_segments():
        if segment.end_offset <= start:
            clean_bytes += segment.size
            continue
        if segment.end_offset > min(bound, log.recovery_point) or segment.largest_timestamp > youngest_ms:
            break
        if segment.first_timestamp > 0:
            oldest_ms = min(oldest_ms, segment.first_timestamp)
        if segment.base_offset < start:
            clean_bytes += (position := segment.locate(start)[0])
            dirty_bytes += segment.size - position
        else:
            dirty_bytes += segment.size
        end = segment.end_offset
    lag_ms = max(config.max_compaction_lag_ms, config.min_compaction_lag_ms)
    return Cleanable(start, end, clean_bytes, dirty_bytes, dirty_bytes > 0 and oldest_ms < now_ms - lag_ms)


def groups(segments: Sequence[Segment], bytes_max: int) -> Iterator[list[Segment]]:
    """Yield groups of neighbouring segments that fit into one segment together. A group is never much larger than a
    segment.
    """
    group: list[Segment] = []
    size = 0
    for segment in segments:
        fits = size + segment.size <= bytes_max
        if group and not (fits and segment.end_offset - 1 - group[0].base_offset <= RELATIVE_OFFSET_MAX):
            yield group
            group, size = [], 0
        group.append(segment)
        size += segment.size
    if group:
        yield group
