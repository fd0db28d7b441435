"""Memory for the frames of large requests, reused when it has no views any more.

Fresh memory of a megabyte costs a page fault per 4 KiB, which is more than receiving it. A buffer is handed out as a
`bytearray` and must be returned (`release`) when its request is done. If it still has a view then (a tablet that keeps
Arrow data, for example), it is not reused.
"""

from __future__ import annotations

SMALLEST = 64 * 1024


class FramePool:
    """Idle buffers, in powers of two, at most `bytes_max` bytes. For one thread."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._free: dict[int, list[bytearray]] = {}
        self.idle_bytes = 0

    def acquire(self, size: int) -> bytearray:
        """Return a buffer of at least `size` bytes, with arbitrary content."""
        capacity = max(SMALLEST, 1 << (size - 1).bit_length())
        free = self._free.get(capacity)
        if free:
            self.idle_bytes -= capacity
            return free.pop()
        # A buffer beyond the largest pooled size has the exact size: rounding 60 MB up to 64 MB has no use.
        return bytearray(capacity if capacity <= self._bytes_max // 4 else size)

    def release(self, buffer: bytearray) -> None:
        """Return a buffer; one that still has a view is not reused."""
        capacity = len(buffer)
        if capacity < SMALLEST or capacity & (capacity - 1) or self.idle_bytes + capacity > self._bytes_max:
            return
        try:
            # A bytearray cannot change its length while it has a view: this is the cheapest check for views.
            buffer.pop()
            buffer.append(0)
        except BufferError:
            return
        self._free.setdefault(capacity, []).append(buffer)
        self.idle_bytes += capacity
