"""Find and cut out the batches of a read: O(log n) anywhere, a dictionary lookup at the tail.

Two small caches avoid the search. A reader at the tail asks for a batch that was just appended; a reader that continues
asks for the batch where its last read ended. A few dozen of each are kept by offset.

Shares the lists of segments with its log and never changes them. The body of a batch is never read.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from headrace.broker.log.region import FileRegion
from headrace.broker.log.segment import Segment
from headrace.broker.log.slice import LogSlice
from headrace.protocol.records.header import read_size

_PLACES_KEPT: Final = 64
_SEGMENTS_KEPT_OPEN: Final = 4


class Reader:
    """Reads of one log. `segments` and their `bases` (base offsets) are the log's own lists; the last segment is the
    active one.
    """

    __slots__ = ("_bases", "_opened", "_read_ends", "_recent_appends", "_segments")

    def __init__(self, segments: list[Segment], bases: list[int]) -> None:
        self._segments = segments
        self._bases = bases
        self._recent_appends: dict[int, int] = {}
        self._read_ends: dict[int, tuple[Segment, int]] = {}
        self._opened: dict[Segment, None] = {}

    def appended(self, base_offset: int, position: int) -> None:
        """Note that a batch begins at `position` of the active segment."""
        recent = self._recent_appends
        recent[base_offset] = position
        if len(recent) > _PLACES_KEPT:
            del recent[next(iter(recent))]

    def rolled(self, sealed: Segment) -> None:
        """Note that another segment is active now."""
        self._recent_appends.clear()
        self._remember_open(sealed)

    def forget(self) -> None:
        """Clear the caches, because segments were removed or cut."""
        self._recent_appends.clear()
        self._read_ends.clear()
        for segment in self._opened:
            segment.release()
        self._opened.clear()

    def read(self, offset: int, max_bytes: int, up_to: int, min_one_batch: bool) -> LogSlice:
        """Read as `PartitionLog.read`, for an offset in the log below `up_to`, which is at most its end.

        Raises CorruptLogError, DecodeError, OSError.
        """
        segment, start, start_offset = self._locate(offset)
        if up_to >= segment.end_offset:
            limit, next_offset = segment.size, segment.end_offset
        else:
            last, limit, next_offset = self._locate(up_to)
            if last is not segment:  # compaction left nothing from `up_to` on, or two remote segments have it
                limit, next_offset = segment.locate(up_to)
        if limit - start > max_bytes:
            limit, next_offset = segment.boundary_before(start, start + max_bytes), -1
            if limit == start and min_one_batch:
                limit = start + read_size(segment.file.read(12, start))
        if limit <= start:
            return LogSlice(start_offset)
        if limit == segment.size:
            next_offset = segment.end_offset
        elif next_offset < 0:
            next_offset = int.from_bytes(segment.file.read(8, limit), "big")
        self._remember_end(segment, limit, next_offset)
        return LogSlice(start_offset, FileRegion(segment.file, start, limit - start), next_offset)

    def _locate(self, offset: int) -> tuple[Segment, int, int]:
        """Return (segment, position, base offset) of the batch that holds `offset`, or of the next one if compaction
        has removed it; the log's end if there is none.
        """
        position = self._recent_appends.get(offset)
        if position is not None:
            return self._segments[-1], position, offset
        place = self._read_ends.get(offset)
        if place is not None and place[1] < place[0].size:
            return *place, offset
        index = max(0, bisect_right(self._bases, offset) - 1)
        while True:
            segment = self._segments[index]
            if not segment.is_active:
                self._remember_open(segment)
            position, base_offset = segment.locate(offset)
            index += 1
            if position < segment.size or index == len(self._segments):
                return segment, position, base_offset

    def _remember_end(self, segment: Segment, position: int, next_offset: int) -> None:
        """Cache `position`, where a reader that continues asks next."""
        if position == segment.size and not segment.is_active:
            return
        ends = self._read_ends
        ends[next_offset] = (segment, position)
        if len(ends) > _PLACES_KEPT:
            del ends[next(iter(ends))]

    def _remember_open(self, segment: Segment) -> None:
        """Keep only a few sealed segments open, the most recently used ones."""
        opened = self._opened
        opened.pop(segment, None)
        opened[segment] = None
        if len(opened) > _SEGMENTS_KEPT_OPEN:
            oldest = next(iter(opened))
            del opened[oldest]
            oldest.release()
