"""Answers on their way out: a queue of buffers and file regions, each answer behind its length.

No socket and no file: whoever sends asks for the `head`, sends as much of it as is taken, and says how much it was.
Nothing is copied on the way, and no file is read; who cannot hand a region to the system (TLS) reads it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from headrace.broker.net.reply import Buffer, Part
from headrace.broker.runtime.invariants import invariant
from headrace.broker.runtime.ports import Region


class SendQueue:
    """See the module's contract. The first part is never empty while there are bytes to be sent."""

    __slots__ = ("_file_bytes", "_parts", "size")

    def __init__(self) -> None:
        self._parts: deque[Part] = deque()
        self._file_bytes = 0
        self.size = 0
        """Bytes, those of regions included, that have not left."""

    @property
    def memory_size(self) -> int:
        """Bytes that have not left, those of regions apart."""
        return self.size - self._file_bytes

    def append(self, parts: list[Part]) -> None:
        """One answer, not empty. The list is the queue's from now on; parts that are made of parts (`.parts`) give
        theirs.
        """
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
        """Bytes as they are, at least one: a frame, or what is left of one."""
        self._parts.append(data)
        self.size += len(data)

    def head(self, count_max: int) -> tuple[list[Buffer], Region | None]:
        """What is to be sent next: up to `count_max` buffers, and the region that follows them if one does.

        At least one of the two while `size` is above 0. The region's turn comes when the buffers have left.
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
        """The first `count` bytes have left."""
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
        """Nothing of it will leave."""
        self._parts.clear()
        self.size = self._file_bytes = 0

    def check_invariants(self) -> None:
        """Raises InvariantError."""
        sizes = [_size(part) for part in self._parts]
        invariant(self.size == sum(sizes), f"{self.size} bytes are unsent, and the parts have {sizes}")
        in_memory = sum(_size(p) for p in self._parts if isinstance(p, (bytes, bytearray, memoryview)))
        invariant(
            self.memory_size == in_memory,
            f"{self.memory_size} bytes are in memory, and parts have {in_memory}",
        )
        invariant(not sizes or sizes[0] > 0, "the first part is empty")


class _RestOfRegion:
    """What is still to be sent of a region. Keeps the original, and so its file, alive."""

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
    """Parts that are made of parts give theirs."""
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
