"""What a read of a log gives: whole batches, by reference to their file."""

from __future__ import annotations

import msgspec

from headrace.broker.log.region import FileRegion


class LogSlice(msgspec.Struct, frozen=True):
    """Consecutive whole batches of one segment.

    start_offset  base offset of the first batch, at or before the offset that was asked for; the offset that was
                  asked for when there is nothing
    region        the bytes; None when there are none
    end_offset    base offset of the batch that follows; -1 when there is nothing
    """

    start_offset: int
    region: FileRegion | None = None
    end_offset: int = -1

    @property
    def size(self) -> int:
        return 0 if self.region is None else self.region.size

    def read(self) -> bytes:
        """The bytes, copied into memory. Raises OSError."""
        return b"" if self.region is None else self.region.read()
