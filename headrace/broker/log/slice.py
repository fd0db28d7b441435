"""The result of a read of a log: whole batches, by reference to their file."""

from __future__ import annotations

import msgspec

from headrace.broker.log.region import FileRegion


class LogSlice(msgspec.Struct, frozen=True):
    """Consecutive whole batches of one segment.

    - start_offset: base offset of the first batch, at or before the requested offset; the requested offset when the
      slice is empty
    - region: the bytes; None when there are none
    - end_offset: base offset of the batch that follows; -1 when there is none
    """

    start_offset: int
    region: FileRegion | None = None
    end_offset: int = -1

    @property
    def size(self) -> int:
        return 0 if self.region is None else self.region.size

    def read(self) -> bytes:
        """Return a copy of the bytes. Raises OSError."""
        return b"" if self.region is None else self.region.read()
