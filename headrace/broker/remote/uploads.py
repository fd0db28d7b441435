"""Objects of copied segments (KIP-405): the records, then the indexes, aborted transactions and producers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from headrace.broker.log.recovery import snapshot_name
from headrace.broker.remote.manifest import RemoteSegment

if TYPE_CHECKING:
    from headrace.broker.log.partition_log import PartitionLog
    from headrace.broker.log.segment import Segment
    from headrace.broker.objects.files import RemoteFiles
    from headrace.broker.runtime.ports import Disk

_PIECE_BYTES: Final = 4 << 20


def producers_at(disk: Disk, log: PartitionLog, offset: int) -> bytes:
    """Return the snapshot of producers from when the segment that ends there was sealed, if it still exists."""
    try:
        return disk.read(log.directory / snapshot_name(offset))
    except FileNotFoundError:
        return b""


def described(
    log: PartitionLog, segment: Segment, producers: bytes, *, remote_end: int, name: str, now_ms: int
) -> tuple[RemoteSegment, Sequence[bytes]]:
    """Return the description of a sealed segment, and what its object has behind its records. Earlier remote segments
    end at `remote_end`.
    """
    index, time_index = bytes(segment.index.entries), bytes(segment.time_index.entries)
    aborted = bytes(segment.aborted.entries)
    timestamp, offset = segment.largest
    epochs = log.epochs
    first = max((row for row, (_, start) in enumerate(epochs) if start <= segment.base_offset), default=0)
    stored = RemoteSegment(
        name,
        segment.base_offset,
        segment.end_offset,
        segment.size,
        len(index),
        len(time_index),
        len(aborted),
        timestamp,
        offset,
        segment.first_timestamp,
        now_ms,
        tuple(epoch for epoch in epochs[first:] if epoch[1] < segment.end_offset),
        len(producers),
        segment.locate(remote_end)[0] if remote_end > segment.base_offset else 0,
    )
    return stored, (index, time_index, aborted, producers)


def upload(
    files: RemoteFiles,
    disk: Disk,
    folder: str,
    stored: RemoteSegment,
    segment: Segment,
    rest: Sequence[bytes],
) -> None:
    """Write the object of a segment, in pieces. Raises OSError."""

    def parts() -> Iterator[bytes]:
        file = disk.open_read_only(segment.path)
        try:
            for position in range(0, stored.size, _PIECE_BYTES):
                size = min(_PIECE_BYTES, stored.size - position)
                piece = file.read(size, position)
                if len(piece) != size:
                    raise OSError(f"{segment.path} is shorter than it should be")
                yield piece
        finally:
            file.close()
        yield from (each for each in rest if each)

    files.put(f"{folder}/{stored.name}", parts())
