"""Bytes in, whole frames out, however the bytes are cut. No socket: whoever has the bytes writes them into `room()`.

What arrives goes into a scratch buffer shared by all connections, so that an idle one costs no memory. Whole frames
are cut out of it; a frame that continues beyond it gets a buffer of the pool for itself, which grows with what has
come, and the rest is received straight into that.
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
    """See the module's contract. After an illegal length nothing is received any more: where the next frame would begin
    is not known.
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
        """Frames of 1 to `size_max` bytes; `scratch` may be shared by the receivers of one thread."""
        self.frames: deque[bytes | memoryview] = deque()
        """Whole ones, without their lengths; a view is of a buffer of the pool: `release` it after use."""
        self.size_max = size_max
        """May be changed at any time; counts for the frames whose length comes after it."""
        self._pool = pool
        self._scratch = scratch
        self._prefix = b""  # the first bytes of a length that was cut off
        self._assembling: memoryview | None = None  # a frame of which the first `_filled` bytes are here
        self._filled = 0
        self._announced = 0  # the size that frame will have
        self._largest = 0  # of the frames that came whole
        self._refused = False  # a length was not accepted

    def room(self) -> memoryview:
        """Where the next bytes belong, never empty. No other receiver of the same scratch buffer is asked between this
        and `received`, and the view is let go of before: a buffer that is looked at is not used again.
        """
        view = self._assembling
        return self._scratch if view is None else view[self._filled :]

    def received(self, count: int) -> None:
        """The first `count` bytes of `room()` are here. Raises CloseConnection for a length that is not accepted, and
        whatever comes after it; the frames before it are in `frames`.
        """
        if self._refused:
            raise CloseConnection("more came after a frame that is not accepted", fault=Fault.FRAME)
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
        """More of a frame is here that has a buffer of its own."""
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
        """A buffer for the frame that is arriving.

        Its whole size at once only for a peer that has sent as much before: four bytes that announce 100 MiB must
        not cost 100 MiB. Others get room as they fill it.
        """
        size = min(self._announced, max(SMALLEST, 4 * self._filled, self._largest))
        return memoryview(self._pool.acquire(size))[:size]

    def _grow(self, view: memoryview) -> None:
        self._assembling = self._buffer()
        self._assembling[: self._filled] = view
        self.release(view)

    def release(self, frame: memoryview) -> None:
        """Nobody needs the frame any more; its memory is used again unless somebody keeps a view of it."""
        buffer = frame.obj
        try:
            frame.release()
        except BufferError:
            return
        self._pool.release(buffer)  # type: ignore[arg-type]

    def clear(self) -> None:
        """Let go of everything that is here."""
        self.frames.clear()
        self._assembling = None

    def check_invariants(self) -> None:
        """Raises InvariantError."""
        sizes = [len(frame) for frame in self.frames]
        invariant(
            all(0 < size <= self.size_max for size in sizes),
            f"frames of {sizes} bytes, of 1 to {self.size_max}",
        )
        view = self._assembling
        if view is None:
            invariant(len(self._prefix) < 4, f"{len(self._prefix)} bytes of a length are kept")
            return
        invariant(not self._prefix, "a length is kept while its frame arrives")
        invariant(
            self._filled < len(view) <= self._announced <= self.size_max,
            f"{self._filled} bytes in {len(view)} for a frame of {self._announced}, of {self.size_max} at most",
        )


def _refusal(size: int, size_max: int) -> str:
    if size >> 16 == _TLS_HANDSHAKE:
        return "it speaks TLS, and this listener does not"
    return (
        f"a frame of {size} bytes was announced; 1 to {size_max} are accepted "
        "(socket.request.max.bytes; before authentication sasl.server.max.receive.size)"
    )
