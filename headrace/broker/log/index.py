"""Sparse indexes of a segment, in Kafka's own file formats.

Offset index: int32 offset relative to the segment's base, int32 position. An entry names the *last* offset of a batch
and the position where that batch begins; both columns ascend. Time index: int64 timestamp, int32 relative offset: up to
and including that offset no record is later than the timestamp; both columns ascend.

An index is a buffer of entries: a bytearray while its segment is written, the mapped file afterwards. It is a cache of
the log: never synced, always rebuildable.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.protocol.loading.lazy import lazy_module

if TYPE_CHECKING:
    import numpy as np
else:
    np = lazy_module("numpy")


OFFSET_ENTRY: Final = Struct(">ii")
TIME_ENTRY: Final = Struct(">qi")


class OffsetIndex:
    __slots__ = ("base_offset", "entries")

    def __init__(self, base_offset: int, entries: bytearray | memoryview | None = None) -> None:
        self.base_offset = base_offset
        self.entries: bytearray | memoryview = bytearray() if entries is None else entries

    def __len__(self) -> int:
        return len(self.entries) >> 3

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for relative_offset, position in OFFSET_ENTRY.iter_unpack(self.entries):
            yield self.base_offset + relative_offset, position

    def append(self, last_offset: int, position: int) -> None:
        self.entries += OFFSET_ENTRY.pack(last_offset - self.base_offset, position)  # type: ignore[operator]

    def floor(self, offset: int) -> tuple[int, int] | None:
        """Return (offset, position) of the last entry at or before `offset`."""
        return self._last_not_after(0, offset - self.base_offset)

    def floor_position(self, position: int) -> tuple[int, int] | None:
        """Return (offset, position) of the last entry at or before a byte position."""
        return self._last_not_after(1, position)

    def _last_not_after(self, column: int, target: int) -> tuple[int, int] | None:
        entries, unpack = self.entries, OFFSET_ENTRY.unpack_from
        low, high = 0, len(entries) >> 3
        while low < high:
            middle = (low + high) >> 1
            if unpack(entries, middle << 3)[column] <= target:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return None
        relative_offset, position = unpack(entries, (low - 1) << 3)
        return self.base_offset + relative_offset, position

    def is_plausible(self, end_offset: int, size: int) -> bool:
        """Return whether this could be the index of a segment with these bounds. One vectorised pass."""
        if len(self.entries) % OFFSET_ENTRY.size:
            return False
        columns = np.frombuffer(self.entries, ">i4").reshape(-1, 2)
        if not len(columns):
            return True
        return (
            bool(np.all(columns[1:] > columns[:-1]))
            and bool(np.all(columns[0] >= 0))
            and self.base_offset + int(columns[-1, 0]) < end_offset
            and int(columns[-1, 1]) < size
        )

    def truncate(self, end_offset: int) -> None:
        """Remove the entries at or after `end_offset`."""
        count = len(self)
        while (
            count
            and OFFSET_ENTRY.unpack_from(self.entries, (count - 1) << 3)[0] >= end_offset - self.base_offset
        ):
            count -= 1
        self.entries = bytearray(self.entries[: count * OFFSET_ENTRY.size])


class TimeIndex:
    __slots__ = ("base_offset", "entries")

    def __init__(self, base_offset: int, entries: bytearray | memoryview | None = None) -> None:
        self.base_offset = base_offset
        self.entries: bytearray | memoryview = bytearray() if entries is None else entries

    def __len__(self) -> int:
        return len(self.entries) // TIME_ENTRY.size

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for timestamp, relative_offset in TIME_ENTRY.iter_unpack(self.entries):
            yield timestamp, self.base_offset + relative_offset

    def last(self) -> tuple[int, int] | None:
        """Return (timestamp, offset) of the last entry: the largest timestamp of a segment that is no longer
        written.
        """
        return self._entry(len(self) - 1) if self.entries else None

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry if its timestamp is later than the last one's."""
        last = self.last()
        if timestamp > (-1 if last is None else last[0]):
            self.entries += TIME_ENTRY.pack(timestamp, offset - self.base_offset)  # type: ignore[operator]

    def floor(self, timestamp: int) -> tuple[int, int] | None:
        """Return (timestamp, offset) of the last entry strictly before `timestamp`: all records up to it can be
        skipped.
        """
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) >> 1
            if TIME_ENTRY.unpack_from(self.entries, middle * TIME_ENTRY.size)[0] < timestamp:
                low = middle + 1
            else:
                high = middle
        return self._entry(low - 1) if low else None

    def _entry(self, index: int) -> tuple[int, int]:
        timestamp, relative_offset = TIME_ENTRY.unpack_from(self.entries, index * TIME_ENTRY.size)
        return timestamp, self.base_offset + relative_offset

    def is_plausible(self, end_offset: int) -> bool:
        """Whether it could be the index of a segment with this end. One vectorised pass."""
        if len(self.entries) % TIME_ENTRY.size:
            return False
        columns = np.frombuffer(self.entries, np.dtype([("timestamp", ">i8"), ("offset", ">i4")]))
        if not len(columns):  # only records without timestamps give none; then rebuilding it costs little
            return False
        stamps, offsets = columns["timestamp"], columns["offset"]
        return (
            bool(np.all(stamps[1:] > stamps[:-1]))
            and bool(np.all(offsets[1:] > offsets[:-1]))
            and int(stamps[0]) >= 0
            and int(offsets[0]) >= 0
            and self.base_offset + int(offsets[-1]) < end_offset
        )

    def truncate(self, end_offset: int) -> None:
        """Drop the entries at or after `end_offset`."""
        count = len(self)
        while count and self._entry(count - 1)[1] >= end_offset:
            count -= 1
        self.entries = bytearray(self.entries[: count * TIME_ENTRY.size])
