"""Two small files per partition that Kafka keeps per directory: what was flushed, and how the log was left.

`recovery-checkpoint`  log start offset and recovery point (everything below it is durable), replaced
atomically and
                       synced. Missing or unreadable: the log starts at its first segment, nothing is known
                       durable.
`clean-shutdown`       there only between a clean close and the next write: the bounds of every segment, so
that an
                       open scans nothing and opens nothing. It is believed only if the segment files are the
                       ones it lists, with the sizes it lists.

Both are JSON.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.log.segment import LOG_SUFFIX, Segment, file_stem
from broker.ports import Disk

CHECKPOINT_NAME: Final = "recovery-checkpoint"
CLEAN_NAME: Final = "clean-shutdown"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    log_start_offset: int = 0
    recovery_point: int = 0


def write_checkpoint(disk: Disk, directory: Path, checkpoint: Checkpoint) -> None:
    """Durable when it returns. Raises OSError."""
    disk.replace(
        directory / CHECKPOINT_NAME,
        json.dumps(
            {
                "version": _VERSION,
                "log_start_offset": checkpoint.log_start_offset,
                "recovery_point": checkpoint.recovery_point,
            }
        ).encode(),
        sync=True,
    )


def read_checkpoint(disk: Disk, directory: Path) -> Checkpoint | None:
    """None if there is none or it cannot be read."""
    try:
        content = json.loads(disk.read(directory / CHECKPOINT_NAME))
        if content["version"] != _VERSION:
            return None
        checkpoint = Checkpoint(int(content["log_start_offset"]), int(content["recovery_point"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return checkpoint if min(checkpoint.log_start_offset, checkpoint.recovery_point) >= 0 else None


@dataclass(frozen=True, slots=True)
class SegmentBounds:
    base_offset: int
    size: int
    end_offset: int
    largest_timestamp: int
    offset_of_largest: int
    first_timestamp: int


def write_clean_marker(disk: Disk, directory: Path, segments: Sequence[Segment]) -> None:
    """Durable when it returns. Raises OSError."""
    rows = [(s.base_offset, s.size, s.end_offset, *s.largest, s.first_timestamp) for s in segments]
    content = json.dumps({"version": _VERSION, "segments": rows}).encode()
    disk.replace(directory / CLEAN_NAME, content, sync=True)


def read_clean_marker(disk: Disk, directory: Path, *, verify: bool) -> list[SegmentBounds] | None:
    """The segments as they were left, or None if that is not known.

    With `verify` the files on disk are compared with it (a listing and a stat each); without, the marker's
    presence is enough.
    """
    try:
        content = json.loads(disk.read(directory / CLEAN_NAME))
        if content["version"] != _VERSION:
            return None
        rows = [SegmentBounds(*map(int, row)) for row in content["segments"]]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    if verify:
        names = {name for name in disk.names(directory) if name.endswith(LOG_SUFFIX)}
        expected = {file_stem(row.base_offset) + LOG_SUFFIX: row.size for row in rows}
        if names != set(expected) or any(
            disk.size(directory / name) != size for name, size in expected.items()
        ):
            return None
    return rows


def remove_clean_marker(disk: Disk, directory: Path) -> None:
    disk.remove(directory / CLEAN_NAME)
