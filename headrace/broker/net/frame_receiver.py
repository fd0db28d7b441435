"""Bytes in, whole frames out, however the bytes are split. No socket: the caller writes the bytes into `room()`.

Bytes arrive in a scratch buffer that all connections share, so that an idle one costs no memory. Whole frames are
copied out of it. A frame that exceeds it gets its own buffer of the pool, which grows with the bytes that have arrived;
the rest is received directly into that buffer.
"""

from __future__ import annotations

import struct
from collections import deque

from headrace.broker.net.faults import Fault
from headrace.broker.net.pool import SMALLEST, FramePool
from headrace.broker.net.reply import CloseConnection
from headrace.broker.runtime.invariants import invariant

_LENGTH = struct.Struct(">i")
_TLS_HANDSHAKE = 0x1603
"""The first two bytes of a ClientHello's record (RFC 8446, 5.1); as a length, 369 MB."""


class FrameReceiver:
    """Receives the frames of one connection. After an illegal length it receives nothing more, as the start of the next
    frame is unknown.
    """

    __slots__ = (
        "_announced",
        "_assembling",
        "_filled",
        "_largest",
        "_pool",
        "_prefix",
        "_refused",
        "_scratch",
        "frames",
        "size_max",
    )

    def __init__(self, size_max: int, pool: FramePool, scratch: memoryview) -> None:
        """Receive frames of 1 to `size_max` bytes. `scratch` may be shared by the receivers of one thread."""
        self.frames: deque[bytes | memoryview] = deque()
        """Whole frames without their lengths. A view is of a pooled buffer: `release` it after use."""
        self.size_max = size_max
        """Maximum size of a frame. It may be changed at any time, and applies to frames whose length arrives later."""
        self._pool = pool
        self._scratch = scratch
        self._prefix = b""  # the first bytes of a length that was split
        self._assembling: memoryview | None = None  # a frame of which the first `_filled` bytes have arrived
        self._filled = 0
        self._announced = 0  # the size that frame will have
        self._largest = 0  # the largest of the frames that are complete
        self._refused = False  # a length was not accepted

    def room(self) -> memoryview:
        """Return the memory for the next bytes, never empty. Before `received`, use no other receiver of the same
        scratch buffer, and release the view: a buffer with a view is not reused.
        """
        view = self._assembling
        return self._scratch if view is None else view[self._filled :]

    def received(self, count: int) -> None:
        """Take over the first `count` bytes of `room()`. Raises CloseConnection for a length that is not accepted, and
        for all bytes after it; the frames before it are in `frames`.
        """
        if self._refused:
            raise CloseConnection("it sent more after a frame that was not accepted", fault=Fault.FRAME)
        if self._assembling is not None:
            self._fill(self._assembling, count)
            return
        scratch = self._scratch
        if self._prefix:
            # A length cut in two is rare; joining costs a copy of this one read.
            joined = memoryview(self._prefix + bytes(scratch[:count]))
            self._prefix = b""
            scratch, count = joined, len(joined)
        position = 0
        while count - position >= 4:
            (size,) = _LENGTH.unpack_from(scratch, position)
            if not 0 < size <= self.size_max:
                self._refused = True
                raise CloseConnection(_refusal(size, self.size_max), fault=Fault.FRAME)
            position += 4
            end = position + size
            if end <= count:
                self.frames.append(bytes(scratch[position:end]))
                position = end
                continue
            self._announced = size
            self._filled = count - position
            self._assembling = self._buffer()
            self._assembling[: self._filled] = scratch[position:count]
            return
        self._prefix = bytes(scratch[position:count])

    def _fill(self, view: memoryview, count: int) -> None:
        """Continue a frame that has its own buffer."""
        self._filled += count
        if self._filled < len(view):
            return
        if self._filled < self._announced:
            self._grow(view)
            return
        self._assembling = None
        self._largest = max(self._largest, self._announced)
        self.frames.append(view)

    def _buffer(self) -> memoryview:
        """Return a buffer for the arriving frame.

        It has the whole size only if the peer has sent as much before: four bytes that announce 100 MiB must not cost
        100 MiB. Otherwise it grows as it is filled.
        """
        size = min(self._announced, max(SMALLEST, 4 * self._filled, self._largest))
        return memoryview(self._pool.acquire(size))[:size]

    def _grow(self, view: memoryview) -> None:
        self._assembling = self._buffer()
        self._assembling[: self._filled] = view
        self.release(view)

    def release(self, frame: memoryview) -> None:
        """Return the frame's memory to the pool. Memory that still has views is not reused."""
        buffer = frame.obj
        try:
            frame.release()
        except BufferError:
            return
        self._pool.release(buffer)  # type: ignore[arg-type]

    def clear(self) -> None:
        """Drop all frames and bytes."""
        self.frames.clear()
        self._assembling = None

    def check_invariants(self) -> None:
        """Raises InvariantError."""
        sizes = [len(frame) for frame in self.frames]
        invariant(
            all(0 < size <= self.size_max for size in sizes),
            f"frames have {sizes} bytes; the limits are 1 to {self.size_max}",
        )
        view = self._assembling
        if view is None:
            invariant(
                len(self._prefix) < 4,
                f"{len(self._prefix)} bytes of a length are kept; at most 3 are possible",
            )
            return
        invariant(not self._prefix, "a length is kept while its frame arrives")
        invariant(
            self._filled < len(view) <= self._announced <= self.size_max,
            f"{self._filled} of {len(view)} bytes for a frame of {self._announced}; the limit is {self.size_max}",
        )


def _refusal(size: int, size_max: int) -> str:
    if size >> 16 == _TLS_HANDSHAKE:
        return "it uses TLS, and this listener does not"
    return (
        f"it announced a frame of {size} bytes; 1 to {size_max} are accepted "
        "(socket.request.max.bytes; before authentication sasl.server.max.receive.size)"
    )
