"""Unsent answers: a queue of buffers and file regions, each answer behind its length.

It uses no socket and no file: the sender gets the `head`, sends a part of it, and reports its size. Nothing is copied,
and no file is read; a sender that cannot hand a region to the system (TLS) reads it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from headrace.broker.net.reply import Buffer, Part
from headrace.broker.runtime.invariants import invariant
from headrace.broker.runtime.ports import Region


class SendQueue:
    """The unsent answers of one connection. The first part is never empty while there are unsent bytes."""

    __slots__ = ("_file_bytes", "_parts", "size")

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()
        self._file_bytes = 0
        self.size = 0
        """Unsent bytes, including those of regions."""

    @property
    def memory_size(self) -> int:
        """Unsent bytes, without those of regions."""
        return self.size - self._file_bytes

    def append(self, parts: list[Part]) -> None:
        """Append one answer, not empty. The queue keeps the list; parts with `.parts` are replaced by those."""
        first = parts[0]
        if len(parts) == 1 and type(first) is bytes:
            self.put(len(first).to_bytes(4, "big") + first)
            return
        size = file_bytes = 0
        for part in parts:
            if isinstance(part, (bytes, bytearray, memoryview)):
                size += _size(part)
            elif not hasattr(part, "parts"):
                size += part.size
                file_bytes += part.size
            else:
                self.append(list(_flat(parts)))
                return
        head = size.to_bytes(4, "big")
        if type(first) is bytes:
            parts[0] = head + first
        else:
            parts.insert(0, head)
        self._parts.extend(parts)
        self.size += size + 4
        self._file_bytes += file_bytes

    def put(self, data: bytes | memoryview) -> None:
        """Append raw bytes, at least one: a frame, or the rest of one."""
        self._parts.append(data)
        self.size += len(data)

    def head(self, count_max: int) -> tuple[list[Buffer], Region | None]:
        """Return the next bytes to send: up to `count_max` buffers, and the region that follows them if one does.

        At least one of the two while `size` is above 0. The region is sent after the buffers.
        """
        buffers: list[Buffer] = []
        for part in self._parts:
            if not isinstance(part, (bytes, bytearray, memoryview)):
                return buffers, part
            if len(buffers) == count_max:
                break
            buffers.append(part)
        return buffers, None

    def sent(self, count: int) -> None:
        """Remove the first `count` bytes, which have left."""
        parts = self._parts
        self.size -= count
        if not self.size:
            parts.clear()
            self._file_bytes = 0
            return
        while count:
            part = parts[0]
            size = _size(part)
            if not isinstance(part, (bytes, bytearray, memoryview)):
                self._file_bytes -= min(count, size)
            if count < size:
                parts[0] = (
                    memoryview(part)[count:]
                    if isinstance(part, (bytes, bytearray, memoryview))
                    else _RestOfRegion.of(part, count)
                )
                return
            count -= size
            parts.popleft()
        while not _size(parts[0]):
            parts.popleft()

    def clear(self) -> None:
        """Drop all unsent bytes."""
        self._parts.clear()
        self.size = self._file_bytes = 0

    def check_invariants(self) -> None:
        """Raises InvariantError."""
        sizes = [_size(part) for part in self._parts]
        invariant(
            self.size == sum(sizes), f"{self.size} bytes are counted as unsent, but the parts have {sizes}"
        )
        in_memory = sum(_size(p) for p in self._parts if isinstance(p, (bytes, bytearray, memoryview)))
        invariant(
            self.memory_size == in_memory,
            f"{self.memory_size} bytes are counted in memory, but the parts have {in_memory}",
        )
        invariant(not sizes or sizes[0] > 0, "the first part is empty")


class _RestOfRegion:
    """The unsent rest of a region. It keeps the original, and so its file, alive."""

    __slots__ = ("_region", "position", "size")

    def __init__(self, region: Region) -> None:
        self._region = region
        self.position = region.position
        self.size = region.size

    @classmethod
    def of(cls, region: Region, sent: int) -> _RestOfRegion:
        rest = region if isinstance(region, cls) else cls(region)
        rest.position += sent
        rest.size -= sent
        return rest

    def fileno(self) -> int:
        return self._region.fileno()

    def read_at(self, position: int, size: int) -> bytes:
        skipped = self.position - self._region.position
        return self._region.read_at(skipped + position, min(size, self.size - position))


def _flat(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the parts, with `.parts` in the place of those that have them."""
    for part in parts:
        inner = None if isinstance(part, (bytes, bytearray, memoryview)) else getattr(part, "parts", None)
        if inner is None:
            yield part
        else:
            yield from _flat(inner)


def _size(part: Part) -> int:
    if isinstance(part, (bytes, bytearray)):
        return len(part)
    return part.nbytes if isinstance(part, memoryview) else part.size
