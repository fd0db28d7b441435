"""The cut of a running broker for a backup: the state that a kill at one instant would have left.

In one turn of the event loop the end of every open log is noted, and a copy of the coordination store is begun, between
earlier and later transactions. Logs that are not open do not change; if one is opened meanwhile, the cut begins again.
The state of extensions beside the logs (key-value stores) is copied before, so that the logs reach further than it, as
after a kill.

Until the backup ends, or was not renewed for `LEASE_SECONDS`, no segment file is removed or replaced (the lock
`removals`): retention and the log cleaner wait. So another process can read the records below the cut from the data
directory while this one goes on. Only the files of a deleted topic are removed at once.

DATA/backup/<id>/cut.json (`Cut`) lists what has to be copied, beside the copy of the store and the extensions' files.
The folder is removed with the backup, and at the next start of the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

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
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.runtime.ports import Clock, Disk, Entropy

logger = logging.getLogger("headrace.backup")

Result = TypeVar("Result")

LEASE_SECONDS: Final = 60.0
FOLDER: Final = "backup"
CUT_NAME: Final = "cut.json"
STORE_NAME: Final = "meta.db"
EXTENSIONS: Final = "extensions"
_ATTEMPTS: Final = 20
_LOGS_PER_TURN: Final = 64
_TEXTS: Final[tuple[str, ...]] = (CHECKPOINT_NAME, CLEAN_NAME, EPOCHS_NAME)
_INDEXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)


class PartitionCut(msgspec.Struct, frozen=True):
    """`files` has the number of bytes, from the beginning, of each file in the partition's folder; `texts` has the
    contents of small files.
    """

    folder: str
    files: list[tuple[str, int]]
    texts: dict[str, str]


class Cut(msgspec.Struct, frozen=True):
    """The cut. `made_ms` is its instant, in wall-clock milliseconds."""

    id: str
    made_ms: int
    partitions: list[PartitionCut]


class Backup(msgspec.Struct, frozen=True):
    """A backup in progress. `folder` has its cut."""

    id: str
    folder: Path


class _OpenLog(msgspec.Struct, frozen=True):
    """A log at the instant of the cut: its end, and base and size of the active segment."""

    partition: Partition
    log: PartitionLog
    end_offset: int
    active_base: int
    active_size: int


class Backups:
    """The backups of a broker, one at a time. On the event loop."""

    def __init__(
        self,
        replicas: LocalReplicas,
        copy_store: Callable[[Path], Awaitable[None]] | None,
        extensions: Callable[[Path], Awaitable[None]],
        removals: asyncio.Lock,
        *,
        data_dir: Path,
        disk: Disk,
        executor: Executor,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        """`copy_store` writes the present store to a file; None if the store is not this broker's. `extensions` copies
        their state beside logs and store into a folder.
        """
        self._replicas = replicas
        self._copy_store = copy_store
        self._extensions = extensions
        self._removals = removals
        self._folder = data_dir / FOLDER
        self.data_dir = data_dir
        self._disk = disk
        self._executor = executor
        self._clock = clock
        self._entropy = entropy
        self._current: Backup | None = None
        self._lease: asyncio.TimerHandle | None = None
        self._expiring: asyncio.Task[None] | None = None

    async def clear(self) -> None:
        """Remove the files of an interrupted backup."""
        await self._run(self._disk.remove_tree, self._folder)

    async def begin(self) -> Backup:
        """Make the cut. Raises KafkaError (INVALID_REQUEST) while another backup is in progress, and in a cluster."""
        if self._copy_store is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "a broker of a cluster has its topics in ZooKeeper: only a single broker can be backed up",
            )
        if self._current is not None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"backup {self._current.id} is in progress: wait until it ends"
            )
        backup_id = self._entropy.uuid().hex
        backup = self._current = Backup(backup_id, self._folder / backup_id)
        began = self._clock.monotonic()
        try:
            await self._removals.acquire()
        except BaseException:
            self._current = None
            raise
        try:
            await self._run(self._make_folder, backup.folder)
            await self._extensions(backup.folder / EXTENSIONS)
            cut = await self._cut(backup, self._copy_store)
            await self._run(
                self._disk.replace, backup.folder / CUT_NAME, msgspec.json.encode(cut), sync=False
            )
        except BaseException:
            await asyncio.shield(self._end(backup))
            raise
        self._extend()
        logger.info(
            "backup %s: %d partitions cut in %.0f ms", backup.id, len(cut.partitions),
            (self._clock.monotonic() - began) * 1000,
        )  # fmt: skip
        return backup

    def renew(self, backup_id: str) -> None:
        """Renew the lease on the files. Raises KafkaError (INVALID_REQUEST) when the backup has ended."""
        self._known(backup_id)
        self._extend()

    async def end(self, backup_id: str) -> None:
        """End the backup: its files are not needed any more. Raises KafkaError (INVALID_REQUEST) when it has ended."""
        await self._end(self._known(backup_id))

    def _known(self, backup_id: str) -> Backup:
        if self._current is None or self._current.id != backup_id or self._lease is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"backup {backup_id} has ended: it was not renewed for {LEASE_SECONDS:.0f} s, or the server "
                "was started again; run it again",
            )
        return self._current

    def _extend(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
        loop = asyncio.get_running_loop()
        self._lease = loop.call_later(LEASE_SECONDS, self._expire)

    def _expire(self) -> None:
        if self._current is not None:
            logger.warning(
                "backup %s was not renewed for %.0f s and has ended", self._current.id, LEASE_SECONDS
            )
            self._expiring = asyncio.get_running_loop().create_task(self._end(self._current))

    async def _end(self, backup: Backup) -> None:
        if self._current is not backup:
            return
        self.stop()
        try:
            await self._run(self._disk.remove_tree, backup.folder)
        finally:
            self._current = None
            self._removals.release()

    def stop(self) -> None:
        """End the backup at once, because the broker stops."""
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None

    def _make_folder(self, folder: Path) -> None:
        self._disk.remove_tree(self._folder)
        self._disk.make_directory(folder)

    async def _run(self, work: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, partial(work, *arguments, **named)
        )

    # -- the cut -------------------------------------------------------------------------------------------

    async def _cut(self, backup: Backup, copy_store: Callable[[Path], Awaitable[None]]) -> Cut:
        for _ in range(_ATTEMPTS):
            await self._run(self._disk.remove, backup.folder / STORE_NAME)
            opened: list[_OpenLog] = []
            closed: list[Partition] = []
            made_ms = self._clock.time_ms()
            for partition in self._replicas.all_partitions():
                if not partition.is_open:
                    closed.append(partition)
                    continue
                log = partition.log
                active = log.segments[-1]
                opened.append(_OpenLog(partition, log, log.log_end_offset, active.base_offset, active.size))
            await copy_store(backup.folder / STORE_NAME)  # begun in this very turn
            found = await self._run(self._closed, [_folder(partition) for partition in closed])
            if not any(partition.is_open for partition in closed):
                break
        else:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                "the cut was repeated too often because logs are being opened; try again later",
            )
        for first in range(0, len(opened), _LOGS_PER_TURN):
            some = [_described(each) for each in opened[first : first + _LOGS_PER_TURN]]
            found += await self._run(self._open, some)
        return Cut(backup.id, made_ms, found)

    def _closed(self, folders: Sequence[str]) -> list[PartitionCut]:
        """Return the cuts of unopened logs, from their files."""
        disk, found = self._disk, []
        for folder in folders:
            path = self.data_dir / folder
            names = disk.names(path)
            texts = {name: disk.read(path / name).decode() for name in _TEXTS if name in names}
            files = [
                (name, disk.size(path / name) or 0)
                for name in names
                if name not in texts and not name.endswith((DELETED_SUFFIX, ".tmp"))
            ]
            if files or texts:
                found.append(PartitionCut(folder, files, texts))
        return found

    def _open(self, logs: Sequence[tuple[int, PartitionCut]]) -> list[PartitionCut]:
        """Add the final files beside the segments of logs: indexes of sealed segments, and snapshots of producers up to
        the end.
        """
        disk, found = self._disk, []
        for end_offset, log in logs:
            path = self.data_dir / log.folder
            sealed = {name[:OFFSET_DIGITS] for name, _ in log.files[:-1]}
            files = list(log.files)
            for name in disk.names(path):
                stem, suffix = name[:OFFSET_DIGITS], name[OFFSET_DIGITS:]
                is_index = suffix in _INDEXES and stem in sealed
                is_snapshot = suffix == SNAPSHOT_SUFFIX and stem.isdigit() and int(stem) <= end_offset
                if is_index or is_snapshot or name == PARTITION_METADATA:
                    files.append((name, disk.size(path / name) or 0))
            if files or log.texts:
                found.append(PartitionCut(log.folder, files, log.texts))
        return found


def _described(at: _OpenLog) -> tuple[int, PartitionCut]:
    """Return a log up to its end, and the end. With the facts beside the segments, an open reads the last segment
    only.
    """
    log = at.log
    segments = [
        (segment, at.active_size if segment.base_offset == at.active_base else segment.size)
        for segment in log.segments
        if segment.base_offset <= at.active_base
    ]
    segments = [(segment, size) for segment, size in segments if size]
    aborted = {
        segment.base_offset: len(segment.aborted) for segment, _ in segments[:-1] if len(segment.aborted)
    }
    checkpoint = Checkpoint(
        min(log.log_start_offset, at.end_offset),
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
    return at.end_offset, PartitionCut(_folder(at.partition), files, texts)


def _folder(partition: Partition) -> str:
    return f"{partition.topic.name}-{partition.index}"
