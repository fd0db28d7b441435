"""Two small files per partition that Kafka does not have: what was flushed, and how the log was closed. Both are
JSON.

- `recovery-checkpoint`: log start offset and recovery point (everything below it is durable). For a log that was
  compacted, or that is a copy of such a log: the offset up to which offsets may be missing. For a tiered log: the
  offset up to which it is in remote storage. Replaced atomically and synced. If it is missing or unreadable, the log
  starts at its first segment, and nothing is known to be durable.
- `clean-shutdown`: exists only between a clean close and the next write. It has everything that an open needs, so that
  the open scans nothing and opens nothing else. It counts only if the segment files are the ones that it lists, with
  the sizes that it lists. It is not synced, because it is written after the data: if a power cut removes it, the log is
  recovered as after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.broker.log.segment import LOG_SUFFIX, SWAP_SUFFIX, Segment, file_stem
from headrace.broker.runtime.ports import Disk

CHECKPOINT_NAME: Final = "recovery-checkpoint"
CLEAN_NAME: Final = "clean-shutdown"
_VERSION: Final = 1


class Checkpoint(msgspec.Struct, frozen=True):
    """Offsets below `compacted_to` may be missing, and the log does not end before it. Offsets below `gaps_to` may be
    missing, too, and the log ends where its batches do (this is how far a follower has copied).

    `aborted` is the number of aborted transactions of each segment that has any, by its base offset. Without it a
    missing index could not be told from an empty one. Records below `tiered_to` are in remote storage, and perhaps
    nowhere else; the log does not end before it.
    """

    log_start_offset: int = 0
    recovery_point: int = 0
    aborted: Mapping[int, int] = msgspec.field(default_factory=dict)
    compacted_to: int = 0
    gaps_to: int = 0
    tiered_to: int = 0


def write_checkpoint(disk: Disk, directory: Path, checkpoint: Checkpoint) -> None:
    """Write the checkpoint; it is durable on return. Raises OSError."""
    disk.replace(directory / CHECKPOINT_NAME, encode_checkpoint(checkpoint), sync=True)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the contents of the file."""
    return json.dumps({"version": _VERSION, **_content(checkpoint)}).encode()


def _content(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "log_start_offset": checkpoint.log_start_offset,
        "recovery_point": checkpoint.recovery_point,
        "aborted": list(checkpoint.aborted.items()),
        "compacted_to": checkpoint.compacted_to,
        "gaps_to": checkpoint.gaps_to,
        "tiered_to": checkpoint.tiered_to,
    }


def read_checkpoint(disk: Disk, directory: Path) -> Checkpoint | None:
    """Return the checkpoint, or None if it is missing or cannot be read."""
    try:
        content = json.loads(disk.read(directory / CHECKPOINT_NAME))
        if content["version"] != _VERSION:
            return None
        checkpoint = _checkpoint(content)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return checkpoint if min(checkpoint.log_start_offset, checkpoint.recovery_point) >= 0 else None


def _checkpoint(content: dict[str, Any]) -> Checkpoint:
    aborted = {int(base): int(count) for base, count in content.get("aborted", ())}
    return Checkpoint(
        int(content["log_start_offset"]),
        int(content["recovery_point"]),
        aborted,
        int(content.get("compacted_to", 0)),
        int(content.get("gaps_to", 0)),
        int(content.get("tiered_to", 0)),
    )


class SegmentBounds(msgspec.Struct, frozen=True):
    base_offset: int
    size: int
    end_offset: int
    largest_timestamp: int
    offset_of_largest: int
    first_timestamp: int


class CleanMarker(msgspec.Struct, frozen=True):
    """The state of a cleanly closed log. `epochs` are (epoch, start offset)."""

    checkpoint: Checkpoint
    epochs: Sequence[tuple[int, int]]
    segments: Sequence[SegmentBounds]


def write_clean_marker(
    disk: Disk,
    directory: Path,
    checkpoint: Checkpoint,
    epochs: Sequence[tuple[int, int]],
    segments: Sequence[Segment],
) -> None:
    """Write how the log was closed, once everything in it is durable. Raises OSError."""
    content = {
        "version": _VERSION,
        **_content(checkpoint),
        "epochs": list(epochs),
        "segments": [
            (segment.base_offset, segment.size, segment.end_offset, *segment.largest, segment.first_timestamp)
            for segment in segments
        ],
    }
    disk.replace(directory / CLEAN_NAME, json.dumps(content).encode(), sync=False)


def read_clean_marker(disk: Disk, directory: Path) -> CleanMarker | None:
    """Return the state of the cleanly closed log, or None if it is not known. It is not known without a marker, or if
    the files on disk show that a power cut has brought back an old marker.
    """
    try:
        content = json.loads(disk.read(directory / CLEAN_NAME))
        if content["version"] != _VERSION:
            return None
        checkpoint = _checkpoint(content)
        epochs = [(int(epoch), int(start)) for epoch, start in content["epochs"]]
        segments = [SegmentBounds(*map(int, row)) for row in content["segments"]]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    names = {name for name in disk.names(directory) if name.endswith((LOG_SUFFIX, SWAP_SUFFIX))}
    expected = {file_stem(row.base_offset) + LOG_SUFFIX: row.size for row in segments}
    if names != set(expected) or any(disk.size(directory / name) != size for name, size in expected.items()):
        return None
    durable = read_checkpoint(disk, directory)
    if durable is not None and durable.log_start_offset > checkpoint.log_start_offset:
        return None
    return CleanMarker(checkpoint, epochs, segments)


def remove_clean_marker(disk: Disk, directory: Path) -> None:
    disk.remove(directory / CLEAN_NAME)
