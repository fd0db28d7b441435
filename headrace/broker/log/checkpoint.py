"""Two small files per partition that are our own: what was flushed, and how the log was left.

`recovery-checkpoint`  log start offset, recovery point (everything below it is durable), of a log that was
                       compacted or is a copy of such a one, the offset up to which offsets may be missing, and of one
                       that is tiered, up to where it is in remote storage; replaced atomically and synced.
                       Missing or unreadable: the log starts at its first segment, nothing is known durable.
`clean-shutdown`       there only between a clean close and the next write: all that an open needs to know, so that
                       it scans nothing and opens nothing else. It is believed only if the segment files are
                       the ones it lists, with the sizes it lists. It is not synced, because it is written
                       after the data is: if a power cut takes it, the log is recovered as after a crash.

Both are JSON.
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
    """Offsets below `compacted_to` may be missing, and the log does not end before it; below `gaps_to` they may be
    missing too, and the log ends where its batches do (what a follower has copied so far). `aborted` counts the aborted
    transactions of each segment, by its base offset, where there are any: an index of them that is missing could
    not be told from one without entries. What is below `tiered_to` is in remote storage, and perhaps nowhere else; the
    log does not end before it.
    """

    log_start_offset: int = 0
    recovery_point: int = 0
    aborted: Mapping[int, int] = msgspec.field(default_factory=dict)
    compacted_to: int = 0
    gaps_to: int = 0
    tiered_to: int = 0


def write_checkpoint(disk: Disk, directory: Path, checkpoint: Checkpoint) -> None:
    """Durable when it returns. Raises OSError."""
    disk.replace(directory / CHECKPOINT_NAME, encode_checkpoint(checkpoint), sync=True)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The contents of the file."""
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
    """None if there is none or it cannot be read."""
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
    """A log as it was left. `epochs` are (epoch, start offset)."""

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
    """Say how the log is left, once everything in it is durable. Raises OSError."""
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
    """The log as it was left, or None if that is not known: there is no marker, or a power cut has brought an old
    one back, which the files on disk give away.
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
