"""Import topics from the data directory of a stopped Apache Kafka into that of a stopped broker.

Segments are copied byte for byte, with their offsets, epochs and transactions, after every batch was read and its CRC
checked. Indexes are built again. A topic keeps its id. Topic configurations (pass them) and the offsets of groups are
not imported, as Kafka keeps them elsewhere.

A topic appears when all of its files are in place and synced; an interrupted import leaves folders that the next start
sets aside.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np

from headrace.broker.cluster.cleaner import decode_checkpoint
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.log.checkpoint import Checkpoint, write_checkpoint
from headrace.broker.log.epochs import FILE_NAME as EPOCHS_NAME
from headrace.broker.log.producer_state import SNAPSHOT_SUFFIX
from headrace.broker.log.scan import WalkEnd, walk
from headrace.broker.log.segment import LOG_SUFFIX, OFFSET_DIGITS
from headrace.broker.metadata.image import PartitionState, TopicEntry, chunks_of
from headrace.broker.metadata.topic_config import TopicConfigs
from headrace.broker.metadata.topic_names import check_topic_name
from headrace.broker.metadata.tree import creation, topic_path
from headrace.broker.partitions.data_dir import PARTITION_METADATA, DataDirectory, read_topic_id
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import Entropy, SystemClock
from headrace.broker.stores.embedded import EmbeddedStore

_FOLDER = re.compile(r"(?P<topic>.+)-(?P<index>\d+)")
_SEGMENT = re.compile(rf"\d{{{OFFSET_DIGITS}}}{re.escape(LOG_SUFFIX)}")
_ANY_OFFSET = (1 << 63) - 1


class ImportedPartition(msgspec.Struct):
    """A partition that was found. `compacted_to`: offsets may be missing below it."""

    folder: Path
    index: int
    topic_id: UUID | None
    segments: list[Path] = msgspec.field(default_factory=list)
    log_start_offset: int = 0
    end_offset: int = 0
    compacted_to: int = 0
    leader_epoch: int = -1
    size_bytes: int = 0


def find_topics(kafka_data: Path) -> dict[str, list[ImportedPartition]]:
    """Return the partitions in a data directory of Kafka, by topic, without internal topics. Raises ConfigError."""
    if not (kafka_data / "meta.properties").exists():
        raise ConfigError(
            f"{kafka_data} is not a data directory of Apache Kafka (no meta.properties): pass one of its log.dirs"
        )
    starts = _start_offsets(kafka_data)
    topics: dict[str, list[ImportedPartition]] = {}
    for folder in sorted(path for path in kafka_data.iterdir() if path.is_dir()):
        match = _FOLDER.fullmatch(folder.name)
        if match is None or match["topic"].startswith("__"):
            continue
        segments = sorted(path for path in folder.iterdir() if _SEGMENT.fullmatch(path.name))
        partition = ImportedPartition(
            folder, int(match["index"]), read_topic_id(SystemDisk(), folder), segments
        )
        partition.log_start_offset = starts.get((match["topic"], partition.index), 0)
        topics.setdefault(match["topic"], []).append(partition)
    for partitions in topics.values():
        partitions.sort(key=lambda partition: partition.index)
    return topics


def _start_offsets(kafka_data: Path) -> dict[tuple[str, int], int]:
    try:
        return decode_checkpoint((kafka_data / "log-start-offset-checkpoint").read_bytes())
    except (FileNotFoundError, ValueError):
        return {}


async def import_topics(
    kafka_data: Path,
    data: Path,
    topics: Sequence[str],
    config: Mapping[str, str],
    *,
    configs: TopicConfigs,
    entropy: Entropy,
    node_id: int = 0,
) -> dict[str, list[ImportedPartition]]:
    """Import `topics` (all if empty), each with `config`. Return the imported topics.

    Raises ConfigError, and KafkaError for a configuration that is not accepted. Topics before the failed one stay
    imported.
    """
    with _locked(kafka_data):
        found = find_topics(kafka_data)
        if missing := [name for name in topics if name not in found]:
            raise ConfigError(
                f"{kafka_data} has no topic {missing[0]!r}; it has {', '.join(found) or 'none'}"
            )
        chosen = {name: found[name] for name in topics or found}
        configs.check(config)
        directory = DataDirectory(data, node_id, entropy.uuid(), SystemDisk(), SystemClock())
        try:
            store = EmbeddedStore(directory.store_path)
            await store.open()
            try:
                for name, partitions in chosen.items():
                    await _import_topic(directory, store, name, partitions, config, entropy)
            finally:
                await store.close()
        finally:
            directory.close(clean=directory.was_clean)
    return chosen


class _locked:  # noqa: N801 - used like a function
    """Holds the lock that a running Kafka holds on its data directory."""

    def __init__(self, kafka_data: Path) -> None:
        self._path = kafka_data / ".lock"
        self._descriptor = -1

    def __enter__(self) -> None:
        if not self._path.exists():
            return
        self._descriptor = os.open(self._path, os.O_RDWR)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise ConfigError(f"{self._path.parent} is in use by a running Kafka; stop it first") from None

    def __exit__(self, *exception: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


async def _import_topic(
    directory: DataDirectory,
    store: EmbeddedStore,
    name: str,
    partitions: list[ImportedPartition],
    config: Mapping[str, str],
    entropy: Entropy,
) -> None:
    check_topic_name(name)
    if await store.get(topic_path(name)) is not None:
        raise ConfigError(f"topic {name!r} already exists: delete it first, or name other topics to import")
    if [partition.index for partition in partitions] != list(range(len(partitions))):
        have = ", ".join(str(partition.index) for partition in partitions)
        raise ConfigError(f"{partitions[0].folder.parent} has only the partitions {have} of topic {name!r}")
    for partition in partitions:
        _examine(partition)
    topic_id = next((p.topic_id for p in partitions if p.topic_id is not None), None) or entropy.uuid()
    image = TopicImage(name, topic_id, len(partitions), dict(config))
    for partition in partitions:
        _copy(partition, directory.prepare_partition_dir(image, partition.index))
    # This broker leads them with at least the epochs of the logs: epochs never decrease.
    mine = directory.broker_id
    states = [PartitionState((mine,), mine, max(each.leader_epoch, 0), (mine,)) for each in partitions]
    await store.transact(creation(TopicEntry(image, 0, chunks_of(states))))


def _examine(partition: ImportedPartition) -> None:
    """Read every batch. A torn tail of the last segment stays; the first open cuts it."""
    disk = SystemDisk()
    next_offset = int(partition.segments[0].name[:OFFSET_DIGITS]) if partition.segments else 0
    partition.log_start_offset = max(partition.log_start_offset, next_offset)
    for path in partition.segments:
        base_offset = int(path.name[:OFFSET_DIGITS])
        if base_offset > next_offset:
            partition.compacted_to = base_offset
        view, end = disk.open_read_only(path).view(), WalkEnd(0, 0)
        next_offset = base_offset
        for batches in walk(view, base_offset, end, check_crc=True, gaps_below=_ANY_OFFSET):
            before = np.concatenate(([next_offset], batches.last_offset[:-1] + 1))
            gaps = np.flatnonzero(batches.base_offset != before)
            if len(gaps):
                partition.compacted_to = int(batches.base_offset[gaps[-1]])
            partition.leader_epoch = max(partition.leader_epoch, int(batches.leader_epoch.max()))
            next_offset = int(batches.last_offset[-1]) + 1
        if end.problem is not None and (path is not partition.segments[-1] or "magic" in end.problem):
            raise ConfigError(
                f"{path} cannot be imported: at byte {end.position} a batch of format 2 should begin, but {end.problem}"
            )
        partition.size_bytes += len(view)
    partition.end_offset = next_offset


def _copy(partition: ImportedPartition, target: Path) -> None:
    disk = SystemDisk()
    wanted = [
        *partition.segments,
        partition.folder / EPOCHS_NAME,
        *partition.folder.glob(f"*{SNAPSHOT_SUFFIX}"),
    ]
    for leftover in target.iterdir():  # from an interrupted import
        if leftover.name != PARTITION_METADATA:
            leftover.unlink()
    disk.open(target / PARTITION_METADATA).sync()
    for path in wanted:
        if path.exists() and path.stat().st_size:
            shutil.copyfile(path, target / path.name)
            disk.open(target / path.name).sync()
    checkpoint = Checkpoint(partition.log_start_offset, 0, compacted_to=partition.compacted_to)
    write_checkpoint(disk, target, checkpoint)
    disk.sync_directory(target)
    disk.sync_directory(target.parent)
