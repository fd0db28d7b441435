"""A range of a segment file that `sendfile` sends without copying it through this process."""

from __future__ import annotations

from typing import Final

from headrace.broker.runtime.ports import DiskFile

SMALL_BYTES: Final = 4096
"""Size up to which bytes are read, to leave in one call with the answer around them. Otherwise there are three calls,
and the receiver may wake up for each.
"""


class FileRegion:
    """`size` bytes from `position` on. Holds its file open as long as it is referenced, also after the log has deleted
    or closed the segment.
    """

    __slots__ = ("_file", "position", "size")

    def __init__(self, file: DiskFile, position: int, size: int) -> None:
        self._file = file
        self.position = position
        self.size = size

    def __repr__(self) -> str:
        return f"<FileRegion {self.size} bytes at {self.position}>"

    def fileno(self) -> int:
        return self._file.fileno()

    def to_send(self) -> FileRegion | bytes:
        """Return the region for an answer, or its bytes if they are few. Raises OSError."""
        return self.read() if self.size <= SMALL_BYTES else self

    def read(self) -> bytes:
        """Return the bytes. Raises OSError, also when the file has become shorter than the region."""
        data = self._file.read(self.size, self.position)
        if len(data) != self.size:
            raise OSError(f"{self!r}: the file ends after {len(data)} of these bytes")
        return data

    def read_at(self, position: int, size: int) -> bytes:
        """Read at most `size` bytes from a position within the region, fewer at its end. Raises OSError."""
        return self._file.read(max(0, min(size, self.size - position)), self.position + position)


class RemoteRegion(FileRegion):
    """A range of a segment in remote storage. Reading it waits for the network, so it belongs in a thread of
    `broker.remote`. It has no descriptor.
    """

    __slots__ = ()

    @classmethod
    def of(cls, region: FileRegion) -> RemoteRegion:
        return cls(region._file, region.position, region.size)
