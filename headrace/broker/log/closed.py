"""Answers about a log that is not open, from its folder alone: its end after a clean close, and when retention has
something to delete. A broker with thousands of idle partitions asks them instead of opening every log.

Blocking, without effect on the folder.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.broker.log.checkpoint import CHECKPOINT_NAME, read_clean_marker
from headrace.broker.log.segment import LOG_SUFFIX, SWAP_SUFFIX

if TYPE_CHECKING:
    from headrace.broker.log.retention import RetentionLimits
    from headrace.broker.runtime.ports import Disk


def clean_end_offset(disk: Disk, directory: Path) -> int | None:
    """Return the end offset of a log that was closed cleanly, 0 for one without records; None if its open has to find
    it. Raises OSError.
    """
    marker = read_clean_marker(disk, directory)
    if marker is None:
        is_unused = not _has_segments(disk, directory) and disk.size(directory / CHECKPOINT_NAME) is None
        return 0 if is_unused else None
    if marker.segments:
        return marker.segments[-1].end_offset
    known = marker.checkpoint
    return max(known.log_start_offset, known.compacted_to, known.tiered_to)


def retention_due_ms(disk: Disk, directory: Path, limits: RetentionLimits) -> float:
    """Return the wall-clock time from which retention may delete a segment while the log stays closed: infinity for a
    log without records, 0 for one whose contents are not known. Raises OSError.
    """
    if not _has_segments(disk, directory):
        return math.inf
    marker = read_clean_marker(disk, directory)
    if marker is None or not marker.segments:
        return 0
    first = marker.segments[0]
    is_first_sealed = len(marker.segments) > 1
    size = sum(segment.size for segment in marker.segments)
    if is_first_sealed and (
        first.end_offset <= marker.checkpoint.log_start_offset
        or 0 <= limits.size_bytes_max <= size - first.size
    ):
        return 0
    if limits.age_ms_max < 0 or first.largest_timestamp < 0:
        return math.inf
    return first.largest_timestamp + limits.age_ms_max + 1


def _has_segments(disk: Disk, directory: Path) -> bool:
    return any(name.endswith((LOG_SUFFIX, SWAP_SUFFIX)) for name in disk.names(directory))
