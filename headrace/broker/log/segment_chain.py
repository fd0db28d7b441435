"""The segments of one log, in order, as they are begun, cut, exchanged and removed. The log notes each change durably.

The last segment is the active one. Reads share the lists of segments and forget what they know of removed ones.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path

from headrace.broker.log.config import LogConfig
from headrace.broker.log.folder import LogFolder
from headrace.broker.log.reader import Reader
from headrace.broker.log.segment import Segment
from headrace.broker.runtime.ports import Disk


class SegmentChain:
    """`segments` and their base offsets (`bases`), ascending; there is at least `active`, the last one."""

    __slots__ = ("_directory", "_disk", "active", "bases", "config", "reader", "segments")

    def __init__(
        self, disk: Disk, directory: Path, segments: list[Segment], config: LogConfig, first_offset: int
    ) -> None:
        """`segments` are those that a recovery has found; without any, the first one begins at `first_offset`."""
        self._disk = disk
        self._directory = directory
        self.config = config
        """The present configuration of the log."""
        self.segments = segments or [self._new(first_offset)]
        self.bases = [segment.base_offset for segment in self.segments]
        self.active = self.segments[-1]
        self.active.activate()
        self.reader = Reader(self.segments, self.bases)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def sealed(self) -> Sequence[Segment]:
        return self.segments[:-1]

    def from_offset(self, offset: int) -> Sequence[Segment]:
        """Return the segments from the one that holds `offset` on."""
        return self.segments[max(bisect_right(self.bases, offset) - 1, 0) :]

    def _new(self, base_offset: int) -> Segment:
        config = self.config
        segment = Segment(
            self._disk, self._directory, base_offset, interval_bytes=config.index_interval_bytes, size=0
        )
        if (most := min(config.segment_jitter_ms, config.roll_ms)) > 0:
            # The jitter keeps the segments of many partitions from being closed at the same time.
            segment.jitter_ms = zlib.crc32(f"{self._directory.name}/{base_offset}".encode()) % (most + 1)
        return segment

    # -- the end of the log --------------------------------------------------------------------------------

    def extend(self) -> None:
        """Begin another segment behind the active one, which is sealed. Its first batch makes its file."""
        sealed = self.active
        self.active = self._new(sealed.end_offset)
        self.active.activate()
        self.segments.append(self.active)
        self.bases.append(self.active.base_offset)
        self.reader.rolled(sealed)

    def begin_at(self, offset: int) -> None:
        """Remove the files of all segments; the first one begins at `offset` now. Raises OSError."""
        self.reader.forget()
        for segment in self.segments:
            segment.remove()
        self.active = self._new(offset)
        self.active.activate()
        self.segments[:], self.bases[:] = [self.active], [offset]

    def cut(self, offset: int, folder: LogFolder) -> None:
        """Remove every batch that reaches `offset` or beyond. Raises OSError."""
        self.reader.forget()
        while len(self.segments) > 1 and self.segments[-1].base_offset >= offset:
            segment = self.segments.pop()
            self.bases.pop()
            self.active = self.segments[-1]
            segment.remove()
            folder.sync()  # removed one after the other: a hole would look like damage
        if not self.active.is_active:
            self.active.activate()
        if offset < self.active.base_offset:
            self.begin_at(offset)
        elif self.active.size:
            self.active.truncate(*self.active.locate(offset))
            self.active.file.sync()
        folder.sync()

    # -- the beginning of the log --------------------------------------------------------------------------

    def drop_first(self, count: int) -> Sequence[Segment]:
        """Take away the first `count` sealed segments and return them; their files stay."""
        dropped = self.segments[:count]
        del self.segments[:count]
        del self.bases[:count]
        self.reader.forget()
        return dropped

    # -- compaction ----------------------------------------------------------------------------------------

    def has(self, group: Sequence[Segment]) -> bool:
        """Return whether the segments of `group` are still here, one after another."""
        first = bisect_left(self.bases, group[0].base_offset)
        return self.segments[first : first + len(group)] == list(group)

    def exchange(self, group: Sequence[Segment], cleaned: Segment | None) -> None:
        """Put `cleaned` in the place of `group`, whose files stay; None if nothing is left of the group."""
        self.reader.forget()
        first = bisect_left(self.bases, group[0].base_offset)
        exchanged = slice(first, first + len(group))
        self.segments[exchanged] = [] if cleaned is None else [cleaned]
        self.bases[exchanged] = [] if cleaned is None else [cleaned.base_offset]
        if cleaned is None and first:
            self.segments[first - 1].end_offset = group[-1].end_offset
