"""Split a stream into frames, for tests: an int32 before each request and response is its size in bytes.

The broker and the clients split their streams themselves; this is an independent reading to compare them with.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct as Packer
from typing import Any, Final

from headrace.protocol.errors import DecodeError, EncodeError
from headrace.protocol.headers import MAX_FRAME_SIZE

SIZE_PREFIX: Final = Packer(">i")


class InvalidFrameSize(DecodeError):  # noqa: N818
    """The size of a frame is negative or too large: usually the peer does not speak this protocol."""


class FrameTooLarge(InvalidFrameSize):
    """The size of a frame is above the limit."""


def frame_size(buffer: bytes | bytearray | memoryview, position: int = 0, limit: int = MAX_FRAME_SIZE) -> int:
    """Return the size in bytes of the frame whose 4-byte prefix is at `position`, without the prefix."""
    if len(buffer) - position < SIZE_PREFIX.size:
        raise DecodeError(f"the size of a frame takes 4 bytes, but only {len(buffer) - position} are there")
    size: int
    (size,) = SIZE_PREFIX.unpack_from(buffer, position)
    if size < 0:
        raise InvalidFrameSize(f"a frame cannot have {size} bytes")
    if size > limit:
        raise FrameTooLarge(f"a frame of {size} bytes is above the limit of {limit}")
    return size


def encode_frame(parts: Iterable[Any]) -> list[Any]:
    """Put the size prefix in front of `parts` (buffers, or regions with a `size`). Nothing is copied."""
    body = list(parts)
    size = sum(
        getattr(part, "nbytes", None) or (len(part) if hasattr(part, "__len__") else part.size)
        for part in body
    )
    if size > 0x7FFFFFFF:
        raise EncodeError(
            f"a frame of {size} bytes is larger than its size prefix can say; 2147483647 is the most"
        )
    return [SIZE_PREFIX.pack(size), *body]


class FrameSplitter:
    """Cut a stream of bytes into frames, in whatever pieces it arrives."""

    def __init__(self, limit: int = MAX_FRAME_SIZE) -> None:
        self.limit = limit
        self._pending = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes received that are not a whole frame yet. At the end of a stream, more than 0 is a truncated frame."""
        return len(self._pending)

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Add bytes that arrived, and return the frames that they complete, without prefixes.

        Raises InvalidFrameSize at the first impossible size, and again on each later call. Frames before it in the
        same call are lost.
        """
        pending = self._pending
        pending += data
        frames = []
        position = 0
        while len(pending) - position >= SIZE_PREFIX.size:
            end = position + SIZE_PREFIX.size + frame_size(pending, position, self.limit)
            if end > len(pending):
                break
            frames.append(bytes(memoryview(pending)[position + SIZE_PREFIX.size : end]))
            position = end
        del pending[:position]
        return frames
