"""The files of a log up to one offset: how a backup describes them, and how an open of the restored log finds them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from headrace.broker.log.checkpoint import CHECKPOINT_NAME, CLEAN_NAME, Checkpoint, encode_checkpoint
from headrace.broker.log.epochs import FILE_NAME as EPOCHS_NAME
from headrace.broker.log.epochs import LeaderEpochs
from headrace.broker.log.producer_state import SNAPSHOT_SUFFIX
from headrace.broker.log.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    OFFSET_DIGITS,
    TIME_INDEX_SUFFIX,
    file_stem,
)
from headrace.broker.log.transaction_index import FILE_SUFFIX as TRANSACTION_INDEX_SUFFIX
from headrace.broker.partitions.data_dir import PARTITION_METADATA
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.log.partition_log import PartitionLog
    from headrace.broker.log.segment import Segment
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.runtime.ports import Disk

LOGS_PER_TURN: Final = 64
_TEXTS: Final[tuple[str, ...]] = (CHECKPOINT_NAME, CLEAN_NAME, EPOCHS_NAME)
_INDEXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
_UNKNOWN: Final = -1


class PartitionCut(msgspec.Struct, frozen=True):
    """`files` has the number of bytes, from the beginning, of each file in the partition's folder; `texts` has the
    contents of small files, `snapshots` those of the producers' snapshots, which the log replaces often.
    `leader_epoch`: the one under which this broker led it.
    """

    folder: str
    files: list[tuple[str, int]]
    texts: dict[str, str]
    snapshots: dict[str, bytes]
    topic_id: str
    index: int
    leader_epoch: int


class OpenLog(msgspec.Struct, frozen=True):
    """A log at the instant of the cut: its start and end, its segments up to the one that has the end, the size of that
    one, and the leader epoch. The size is `_UNKNOWN` if more was written behind the end.
    """

    partition: Partition
    log: PartitionLog
    leader_epoch: int
    start_offset: int
    end_offset: int
    segments: Sequence[Segment]
    last_size: int


def again(why: str) -> KafkaError:
    """Return the error of a cut that has to be made again."""
    return KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED, why)


def noted(partition: Partition, *, up_to: int | None = None) -> OpenLog:
    """Note an open log at this instant, up to its end or to `up_to`. Reads no file."""
    log = partition.log
    segments, end_offset = tuple(log.segments), log.log_end_offset
    last_size = segments[-1].size
    if up_to is not None and up_to < end_offset:
        end_offset, last_size = up_to, _UNKNOWN
        segments = tuple(segment for segment in segments if segment.base_offset <= up_to)
    return OpenLog(
        partition, log, partition.leader_epoch, log.log_start_offset, end_offset, segments, last_size
    )


def described(at: OpenLog) -> tuple[int, PartitionCut]:
    """Return a log up to its end, and the end. With the facts beside the segments, an open reads the last segment only.
    Raises KafkaError if the cut has to be made again.
    """
    log = at.log
    segments = [(segment, segment.size) for segment in at.segments[:-1]]
    if at.segments:
        segments.append((at.segments[-1], _last_size(at)))
    segments = [(segment, size) for segment, size in segments if size]
    aborted = {
        segment.base_offset: len(segment.aborted) for segment, _ in segments[:-1] if len(segment.aborted)
    }
    checkpoint = Checkpoint(
        min(at.start_offset, at.end_offset),
        segments[-1][0].base_offset if segments else at.end_offset,
        aborted,
        min(log.compacted_to, at.end_offset),
        tiered_to=min(log.tiered_to, at.end_offset),
    )
    epochs = LeaderEpochs([(epoch, start) for epoch, start in log.epochs if start < at.end_offset])
    texts: dict[str, str] = {}
    if at.end_offset:
        texts = {
            CHECKPOINT_NAME: encode_checkpoint(checkpoint).decode(),
            EPOCHS_NAME: epochs.encode().decode(),
        }
    files = [(file_stem(segment.base_offset) + LOG_SUFFIX, size) for segment, size in segments]
    return at.end_offset, _cut_of(at.partition, files, texts, {}, at.leader_epoch)


def _last_size(at: OpenLog) -> int:
    if at.last_size != _UNKNOWN:
        return at.last_size
    last = at.segments[-1]
    if at.partition.closed or last.end_offset < at.end_offset:
        raise again(f"{at.partition.name} has another leader since the cut")
    return last.locate(at.end_offset)[0]


def folder_of(partition: Partition) -> str:
    return f"{partition.topic.name}-{partition.index}"


def _cut_of(
    partition: Partition,
    files: list[tuple[str, int]],
    texts: dict[str, str],
    snapshots: dict[str, bytes],
    leader_epoch: int,
) -> PartitionCut:
    topic_id = str(partition.topic.topic_id)
    return PartitionCut(
        folder_of(partition), files, texts, snapshots, topic_id, partition.index, leader_epoch
    )


def closed_logs(disk: Disk, data_dir: Path, partitions: Sequence[Partition]) -> list[PartitionCut]:
    """Return the cuts of unopened logs, from their files. Blocking."""
    found = []
    for partition in partitions:
        path = data_dir / folder_of(partition)
        names = disk.names(path)
        texts = {name: disk.read(path / name).decode() for name in _TEXTS if name in names}
        snapshots = _snapshots(disk, path, [name for name in names if name.endswith(SNAPSHOT_SUFFIX)])
        files = [
            (name, disk.size(path / name) or 0)
            for name in names
            if name not in texts and not name.endswith((DELETED_SUFFIX, ".tmp", SNAPSHOT_SUFFIX))
        ]
        found.append(_cut_of(partition, files, texts, snapshots, partition.leader_epoch))
    return found


def with_files_beside(
    disk: Disk, data_dir: Path, logs: Sequence[tuple[int, PartitionCut]]
) -> list[PartitionCut]:
    """Add the final files beside the segments of logs: indexes of sealed segments, and snapshots of producers up to the
    end. Blocking.
    """
    found = []
    for end_offset, log in logs:
        path = data_dir / log.folder
        sealed = {name[:OFFSET_DIGITS] for name, _ in log.files[:-1]}
        files, snapshots = list(log.files), []
        for name in disk.names(path):
            stem, suffix = name[:OFFSET_DIGITS], name[OFFSET_DIGITS:]
            if (suffix in _INDEXES and stem in sealed) or name == PARTITION_METADATA:
                files.append((name, disk.size(path / name) or 0))
            elif suffix == SNAPSHOT_SUFFIX and stem.isdigit() and int(stem) <= end_offset:
                snapshots.append(name)
        found.append(replace(log, files=files, snapshots=_snapshots(disk, path, snapshots)))
    return found


def _snapshots(disk: Disk, path: Path, names: Sequence[str]) -> dict[str, bytes]:
    found = {}
    for name in names:
        with suppress(FileNotFoundError):  # replaced by a later one just now
            found[name] = disk.read(path / name)
    return found
