"""The cut of a running broker for a backup: the state that a kill at one instant would have left.

An independent broker makes it alone. In one turn of the event loop the end of every open log is noted, and a copy of
the coordination store is begun, between earlier and later transactions. Logs that are not open do not change; if one is
opened meanwhile, the cut begins again. The state of extensions beside the logs (key-value stores) is copied before, so
that the logs reach further than it, as after a kill. A member of a cluster makes its part of a cut (`member`).

Until the backup ends, or was not renewed for `LEASE_SECONDS`, no segment file is removed or replaced (the lock
`removals`): retention and the log cleaner wait. So the records below the cut can be read while the broker goes on: by
another process from the data directory, or through `read`. Only the files of a deleted topic are removed at once.

DATA/backup/<id>/cut.json (`Cut`) lists everything that has to be copied. The folder is removed with the backup, and at
the next start of the broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from headrace.broker.backup.logs import (
    LOGS_PER_TURN,
    OpenLog,
    PartitionCut,
    closed_logs,
    described,
    noted,
    with_files_beside,
)
from headrace.broker.backup.member import ClusterParts, MemberCut, Step
from headrace.broker.log.segment import DELETED_SUFFIX, LOG_SUFFIX
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.runtime.ports import Clock, Disk, DiskFile, Entropy

logger = logging.getLogger("headrace.backup")

Result = TypeVar("Result")

LEASE_SECONDS: Final = 60.0
FOLDER: Final = "backup"
CUT_NAME: Final = "cut.json"
STORE_NAME: Final = "meta.db"
PROPERTIES: Final = "meta.properties"
EXTENSIONS: Final = "extensions"
READ_BYTES_MAX: Final = 4 << 20
"""Maximum number of bytes of one `read`."""
_ATTEMPTS: Final = 20


class BesideFile(msgspec.Struct, frozen=True):
    """A file that is not in a partition's folder: its path in a restored data directory, its place in the data
    directory, and its size.
    """

    path: str
    place: str
    size: int


class Cut(msgspec.Struct, frozen=True):
    """The cut. `made_ms` is its instant, in wall-clock milliseconds."""

    id: str
    made_ms: int
    partitions: list[PartitionCut]
    beside: list[BesideFile]


class Backup(msgspec.Struct, frozen=True):
    """A backup in progress. `folder` has its cut; `is_member`: the steps of a member follow."""

    id: str
    folder: Path
    is_member: bool = False


class FileRange(msgspec.Struct, frozen=True):
    """A range of a file. `end`: the number of bytes of the file that belong to the cut; `written_ms`: the file system's
    time of the file.
    """

    data: bytes
    end: int
    written_ms: float


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
        cluster: ClusterParts | None = None,
    ) -> None:
        """`copy_store` writes the present store to a file; None if the store is not this broker's, which then has
        `cluster`. `extensions` copies their state beside logs and store into a folder.
        """
        self._replicas = replicas
        self._copy_store = copy_store
        self._extensions = extensions
        self._removals = removals
        self._folder = data_dir / FOLDER
        self.data_dir = data_dir
        self.cluster = cluster
        self._disk = disk
        self._executor = executor
        self._clock = clock
        self._entropy = entropy
        self._current: Backup | None = None
        self._member: MemberCut | None = None
        self._sizes: dict[str, int] | None = None
        """The readable places of the current backup, once they were needed."""
        self._lease: asyncio.TimerHandle | None = None
        self._expiring: asyncio.Task[None] | None = None

    async def clear(self) -> None:
        """Remove the files of an interrupted backup."""
        await self._run(self._disk.remove_tree, self._folder)

    async def begin(self, *, in_steps: bool = False) -> Backup:
        """Make the cut; a member of a cluster prepares it, and the steps follow (`in_steps`: the caller knows them).

        Raises KafkaError (INVALID_REQUEST) while another backup is in progress.
        """
        cluster = self.cluster
        if cluster is not None and not in_steps:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "this broker is a member of a cluster, and the command can back up independent brokers only: upgrade "
                "the command",
            )
        if self._current is not None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"backup {self._current.id} is in progress: wait until it ends"
            )
        backup_id = self._entropy.uuid().hex
        backup = self._current = Backup(backup_id, self._folder / backup_id, cluster is not None)
        self._sizes = None
        began = self._clock.monotonic()
        try:
            await self._removals.acquire()
        except BaseException:
            self._current = None
            raise
        try:
            await self._run(self._make_folder, backup.folder)
            if cluster is not None:
                self._member = MemberCut(cluster, self._replicas, self._disk, self.data_dir, self._executor)
            await self._extensions(backup.folder / EXTENSIONS)
            if self._copy_store is not None:
                made_ms, partitions = await self._cut(backup, self._copy_store)
                await self._write(backup, made_ms, partitions)
                logger.info(
                    "backup %s: %d partitions cut in %.0f ms", backup.id, len(partitions),
                    (self._clock.monotonic() - began) * 1000,
                )  # fmt: skip
        except BaseException:
            await asyncio.shield(self._end(backup))
            raise
        self._extend()
        return backup

    async def step(self, backup_id: str, step: Step) -> None:
        """Do one step of a member's part. Raises KafkaError; OPERATION_NOT_ATTEMPTED: the cut has to be made again."""
        backup, member = self._known(backup_id), self._member
        if member is None or self.cluster is None:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, "an independent broker makes its cut when the backup begins"
            )
        self._extend()
        match step:
            case Step.NODES:
                await self.cluster.nodes.read()
            case Step.HOLD:
                await member.hold()
            case Step.OFFSETS:
                await member.note_offsets()
            case Step.PARTITIONS:
                await member.note_partitions()
            case Step.RELEASE:
                made_ms = self._clock.time_ms()
                partitions = await member.describe()
                await self._write(backup, made_ms, partitions)
                logger.info("backup %s: cut %d partitions", backup.id, len(partitions))
            case Step.IMAGE:
                for name, data in (await self.cluster.nodes.image()).items():
                    await self._run(self._disk.replace, backup.folder / name, data, sync=False)
                    if self._sizes is not None:
                        self._sizes[self._place(backup, name)] = len(data)

    async def read(self, backup_id: str, place: str, position: int, size: int) -> FileRange:
        """Read a range of a file of the cut; `place` is relative to the data directory.

        Raises KafkaError: INVALID_REQUEST for anything that is not in the cut, RESOURCE_NOT_FOUND for a file that is
        gone because its topic was deleted.
        """
        backup = self._known(backup_id)
        self._extend()
        if self._sizes is None:
            sizes = await self._run(self._find_sizes, backup)
            if self._current is backup and self._sizes is None:
                self._sizes = sizes
        end = None if self._sizes is None else self._sizes.get(place)
        if end is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"{place!r} is not a file of backup {backup_id}")
        if not (0 <= size <= READ_BYTES_MAX and position >= 0 and position + size <= end):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{size} bytes from {position} on are not a range of {place!r}: it has {end} bytes, and a request "
                f"reads at most {READ_BYTES_MAX}",
            )
        try:
            data, written_ms = await self._run(self._read, self.data_dir / place, position, size)
        except FileNotFoundError:
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"{place} is gone") from None
        return FileRange(data, end, written_ms)

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
            self._expiring.add_done_callback(_note_failed_removal)

    async def _end(self, backup: Backup) -> None:
        if self._current is not backup:
            return
        self.stop()
        try:
            await self._run(self._disk.remove_tree, backup.folder)
        finally:
            if self._current is backup:
                self._current = None
                self._removals.release()

    def stop(self) -> None:
        """End the backup at once, because the broker stops."""
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None
        if self._member is not None:
            self._member.release()
            self._member = None

    def _make_folder(self, folder: Path) -> None:
        self._disk.remove_tree(self._folder)
        self._disk.make_directory(folder)

    async def _run(self, work: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(
            self._executor, partial(work, *arguments, **named)
        )

    # -- the files -----------------------------------------------------------------------------------------

    async def _write(self, backup: Backup, made_ms: int, partitions: list[PartitionCut]) -> None:
        beside = await self._run(lambda: list(self._beside(backup)))
        data = msgspec.json.encode(Cut(backup.id, made_ms, partitions, beside))
        await self._run(self._disk.replace, backup.folder / CUT_NAME, data, sync=False)

    def _beside(self, backup: Backup) -> Iterator[BesideFile]:
        """Yield the files of the backup's folder, and those of rows that were handed over and are not committed, or are
        being committed.
        """
        disk, data_dir = self._disk, self.data_dir
        if not backup.is_member:
            yield BesideFile(PROPERTIES, PROPERTIES, disk.size(data_dir / PROPERTIES) or 0)
        for path in _below(disk, backup.folder):
            place = path.relative_to(data_dir).as_posix()
            yield BesideFile(path.relative_to(backup.folder).as_posix(), place, disk.size(path) or 0)
        for extension in disk.directories(data_dir / EXTENSIONS):
            for path in _below(disk, data_dir / EXTENSIONS / extension / "staged"):
                size = disk.size(path)
                if size is not None:
                    place = path.relative_to(data_dir).as_posix()
                    yield BesideFile(place, place, size)

    def _place(self, backup: Backup, name: str) -> str:
        return (backup.folder / name).relative_to(self.data_dir).as_posix()

    def _find_sizes(self, backup: Backup) -> dict[str, int]:
        """Return the number of readable bytes by place. Raises KafkaError before the cut was written."""
        try:
            data = self._disk.read(backup.folder / CUT_NAME)
        except FileNotFoundError:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"backup {backup.id} has not been cut yet") from None
        cut = msgspec.json.decode(data, type=Cut)
        sizes = {f"{each.folder}/{name}": size for each in cut.partitions for name, size in each.files}
        sizes |= {each.place: each.size for each in cut.beside}
        for name in self._disk.names(backup.folder):
            sizes[self._place(backup, name)] = self._disk.size(backup.folder / name) or 0
        return sizes

    def _read(self, path: Path, position: int, size: int) -> tuple[bytes, float]:
        file, written_ms = open_file(self._disk, path)
        try:
            return file.read(size, position), written_ms
        finally:
            file.close()

    # -- the cut of an independent broker ------------------------------------------------------------------

    async def _cut(
        self, backup: Backup, copy_store: Callable[[Path], Awaitable[None]]
    ) -> tuple[int, list[PartitionCut]]:
        for _ in range(_ATTEMPTS):
            await self._run(self._disk.remove, backup.folder / STORE_NAME)
            opened: list[OpenLog] = []
            closed: list[Partition] = []
            made_ms = self._clock.time_ms()
            for partition in self._replicas.all_partitions():
                if partition.is_open:
                    opened.append(noted(partition))
                else:
                    closed.append(partition)
            await copy_store(backup.folder / STORE_NAME)  # begun in this very turn
            found = await self._run(closed_logs, self._disk, self.data_dir, closed)
            if not any(partition.is_open for partition in closed):
                break
        else:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                "the cut was repeated too often because logs are being opened; try again later",
            )
        for first in range(0, len(opened), LOGS_PER_TURN):
            some = [described(each) for each in opened[first : first + LOGS_PER_TURN]]
            found += await self._run(with_files_beside, self._disk, self.data_dir, some)
        return made_ms, found


def open_file(disk: Disk, path: Path) -> tuple[DiskFile, float]:
    """Open a file of a cut, in its place or where retention has moved it; return it and its time. Raises
    FileNotFoundError.
    """
    places = [path]
    if path.name.endswith(LOG_SUFFIX):
        places.append(path.with_name(path.name + DELETED_SUFFIX))
    for each in places:
        try:
            written_ms = disk.written_ms(each)
            if written_ms is not None:
                return disk.open_read_only(each), written_ms
        except FileNotFoundError:
            continue
    raise FileNotFoundError(str(path))


def _below(disk: Disk, folder: Path) -> Iterator[Path]:
    for name in sorted(disk.names(folder)):
        yield folder / name
    for name in sorted(disk.directories(folder)):
        yield from _below(disk, folder / name)


def _note_failed_removal(removal: asyncio.Task[None]) -> None:
    if not removal.cancelled() and (error := removal.exception()) is not None:
        logger.error("files of an ended backup are left for the next one", exc_info=error)
