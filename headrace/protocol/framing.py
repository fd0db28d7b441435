"""Frames: every request and response is preceded by its size in bytes, an int32.

`FrameSplitter` is the incremental splitter for clients, tools and tests; a server that owns its receive
buffer needs only `frame_size`. Both refuse a size before anything is allocated for it, and after that the
stream cannot be used any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct as Packer
from typing import Any, Final

from headrace.protocol.errors import DecodeError, EncodeError

MAX_FRAME_SIZE: Final = 100 * 1024 * 1024
"""Kafka's default of `socket.request.max.bytes`."""

SIZE_PREFIX: Final = Packer(">i")


class InvalidFrameSize(DecodeError):  # noqa: N818
    """The size of a frame is negative or otherwise impossible. As a rule the peer does not speak this protocol."""


class FrameTooLarge(InvalidFrameSize):
    """The size of a frame is above the limit."""


def frame_size(buffer: bytes | bytearray | memoryview, position: int = 0, limit: int = MAX_FRAME_SIZE) -> int:
    """The size of the frame whose 4-byte prefix stands at `position`, without the prefix."""
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
    """`parts` (buffers, or regions with a `size`) with the size prefix in front, nothing copied."""
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
    """Cuts a stream of bytes into frames, however it arrives."""

    def __init__(self, limit: int = MAX_FRAME_SIZE) -> None:
        self.limit = limit
        self._pending = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes received that do not make a frame yet; when a peer closes, more than none means a truncated frame."""
        return len(self._pending)

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """Take what arrived; returns the frames completed by it, without prefixes.

        Raises InvalidFrameSize, now and ever after, at the first impossible size; frames before it in the
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
