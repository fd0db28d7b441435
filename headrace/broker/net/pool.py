"""Memory for the frames of large requests, used again once nobody looks at it any more.

Fresh memory of a megabyte costs a page fault per 4 KiB, which is more than receiving it. A buffer is given
out as a `bytearray` and must be handed back (`release`) when its request is done; whoever still holds a view
of it then (a tablet that keeps Arrow data, say) keeps it, because only a buffer without views is taken back.
"""

from __future__ import annotations

SMALLEST = 64 * 1024


class FramePool:
    """Buffers in powers of two, `bytes_max` of them at most kept when idle. For one thread."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._free: dict[int, list[bytearray]] = {}
        self.idle_bytes = 0

    def acquire(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes, with whatever was in it before."""
        capacity = max(SMALLEST, 1 << (size - 1).bit_length())
        free = self._free.get(capacity)
        if free:
            self.idle_bytes -= capacity
            return free.pop()
        # Beyond the largest pooled size an exact one: rounding 60 MB up to 64 MB buys nothing.
        return bytearray(capacity if capacity <= self._bytes_max // 4 else size)

    def release(self, buffer: bytearray) -> None:
        """Give a buffer back; one that is still viewed by somebody is left to them."""
        capacity = len(buffer)
        if capacity < SMALLEST or capacity & (capacity - 1) or self.idle_bytes + capacity > self._bytes_max:
            return
        try:
            # A bytearray cannot change its length while a view of it exists: the cheapest question of the
            # kind.
            buffer.pop()
            buffer.append(0)
        except BufferError:
            return
        self._free.setdefault(capacity, []).append(buffer)
        self.idle_bytes += capacity
