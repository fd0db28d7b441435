"""Copies sealed segments to remote storage, and lets go of what retention no longer covers there (KIP-405).

For each partition of a topic with `remote.storage.enable` that is led here, one after the other, every
`remote.log.manager.task.interval.ms`:

- **Copy**: a sealed segment below the last stable offset, and below the recovery point (what is on this disk for good
  only), goes to one object; then a manifest that names it is created; then the log notes durably how far it is in
  remote storage (`tiered_to`). Local retention deletes up to there and no further.
- **Expire**: segments that are passed by the log's start, too old, or too much with all that is kept (`retention.ms`,
  `retention.bytes`), and that nobody's floor protects. The log's start moves first, durably; then a manifest without
  them is created; then the objects go.
- **Leftovers**: objects that no manifest names are removed after a start, and after anything that failed.

So a crash, or a store that fails, at any point leaves at most objects that nobody knows of, until the next turn. A
manifest is created under the next number: a broker that is not the leader any more finds the number taken, and stops
writing until it has looked again. When the answer is lost, what is there tells whose it is.

A topic that is deleted leaves nothing: a node of the coordination store, `/remote-log/<topic id>`, is made before its
first object, and goes after its last one; nor does one whose remote storage is switched off with its data. What
is in remote storage without such a node is another cluster's: it is not touched.

A data directory that was restored from a backup says so in a file (`RESTORED_NAME`). As long as it is there remote
storage is only read: the server that the backup was made of may still run, and what is there is its own.

On the event loop; what waits for the network is done in threads of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Final, TypeVar
from uuid import UUID

import msgspec

from broker.backup.archive import RESTORED_NAME
from broker.cluster.nodes import OwnedNodes
from broker.ports import STORE_LOST, CreateNode, NodeExistsError
from broker.remote.chunks import Chunks
from broker.remote.configs import is_enabled
from broker.remote.log import RemoteLog
from broker.remote.manifest import Manifest, RemoteSegment, TopicNote, manifest_number, partition_folder
from protocol.errors import KafkaError

if TYPE_CHECKING:
    from pathlib import Path

    from broker.background import BackgroundTasks
    from broker.cluster.metadata import TopicManager
    from broker.cluster.partition import Partition
    from broker.cluster.topic_policy import TopicPolicy
    from broker.config import BrokerConfig
    from broker.log.partition_log import PartitionLog
    from broker.log.segment import Segment
    from broker.objects.files import RemoteFiles
    from broker.ports import AgeClock, CoordinationStore, Disk, Entropy, Threads

logger = logging.getLogger("headrace.remote")

Result = TypeVar("Result")

NODES: Final = "/remote-log"
_PIECE_BYTES: Final = 4 << 20


class FencedError(Exception):
    """Somebody else writes the manifests of this partition."""


class RemoteLogManager:
    """`files`: where everything is."""

    def __init__(
        self,
        config: BrokerConfig,
        files: RemoteFiles,
        metadata: TopicManager,
        policies: Sequence[TopicPolicy],
        *,
        store: CoordinationStore,
        disk: Disk,
        ages: AgeClock,
        entropy: Entropy,
        threads: Threads,
        executor: Executor,
        background: BackgroundTasks,
        data_dir: Path,
    ) -> None:
        self._is_read_only = disk.size(data_dir / RESTORED_NAME) is not None
        if self._is_read_only:
            logger.warning(
                "%s was restored from a backup: remote storage is only read. When the server that the backup was made "
                "of does not run any more, remove the file %s from it and start again",
                data_dir, RESTORED_NAME,
            )  # fmt: skip
        self._config = config
        self._files = files
        self._metadata = metadata
        self._policies = policies
        self._store = store
        self._disk = disk
        self._ages = ages
        self._executor = executor
        self._background = background
        self._writer = entropy.uuid().hex
        self._entropy = entropy
        count = config["remote.log.reader.threads"]
        self.readers = threads.pool(count, "remote log readers")
        self._ahead = threads.pool(count, "remote log read-ahead")
        self._copier = threads.pool(1, "remote log copier")
        self.chunks = Chunks(files.read_range, self._ahead, config["remote.log.reader.cache.bytes"])
        self._noted: set[UUID] = set()
        """Topics that have a node."""
        self.copied_bytes = 0
        self.copied_segments = 0

    def of(self, partition: Partition, log: PartitionLog) -> RemoteLog | None:
        """The remote part of a log that was just opened; None if it has none and will have none."""
        if not log.config.remote_storage_enable and not log.tiered_to:
            return None
        topic = partition.topic
        return RemoteLog(
            f"{topic.name}-{partition.index}",
            partition_folder(topic.topic_id, partition.index),
            self._files,
            self.chunks,
            self.readers,
            log.tiered_to,
        )

    def close(self) -> None:
        """What is under way ends by itself: nobody waits for the network any more."""
        for pool in (self.readers, self._ahead, self._copier):
            pool.shutdown(wait=False, cancel_futures=True)

    # -- the task ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """For as long as the broker runs."""
        interval = self._config["remote.log.manager.task.interval.ms"] / 1000
        await asyncio.sleep(min(interval, self._config["log.initial.task.delay.ms"] / 1000))
        while True:
            await self.turn()
            await asyncio.sleep(interval)

    async def turn(self) -> None:
        """Look after every partition once."""
        if self._is_read_only:
            return
        for partition in self._metadata.all_partitions():
            is_wanted = partition.remote is not None or is_enabled(partition.topic.config)
            if not is_wanted or partition.closed or partition.failure is not None:
                continue
            try:
                await self.tend(partition)
            except STORE_LOST:
                raise
            except FencedError as error:
                logger.warning("%s", error)
            except (KafkaError, OSError) as error:
                if partition.remote is not None:
                    partition.remote.has_leftovers = True
                    if not isinstance(error, KafkaError):
                        partition.remote.storage_error("take or give up segments", error)
            except Exception as error:  # noqa: BLE001 - of one partition: told
                self._background.failed(f"the remote log of {partition!r}", error)
        await self._remove_deleted()

    async def tend(self, partition: Partition) -> None:
        """One partition. Raises KafkaError, FencedError, OSError."""
        log = partition.log
        remote = partition.remote
        if remote is None:
            remote = partition.remote = self.of(partition, log)
            if remote is None:
                return
        await remote.load()
        if remote.has_leftovers:
            await self._run(self._remove_leftovers, remote)
            remote.has_leftovers = False
        config = log.config
        if config.remote_storage_enable:
            await self._expire(partition, log, remote)
            if not config.remote_log_copy_disable:
                await self._copy(partition, log, remote)
        elif log.tiered_to > log.log_start_offset or remote.manifest.segments:
            await self._forget(partition, log, remote)

    # -- copying -------------------------------------------------------------------------------------------

    async def _copy(self, partition: Partition, log: PartitionLog, remote: RemoteLog) -> None:
        for segment in list(log.sealed_segments()):
            end_offset = remote.end_offset
            if segment.end_offset <= max(end_offset, log.log_start_offset):
                continue
            if segment.end_offset > min(partition.last_stable_offset, log.recovery_point):
                return
            if end_offset and segment.base_offset > end_offset:
                raise FencedError(
                    f"{remote.name}: remote storage ends at {end_offset}, and the first segment after it begins at "
                    f"{segment.base_offset}: nothing is copied"
                )
            if partition.closed:
                return
            await self._note_topic(partition)
            stored, index, time_index = self._described(log, segment)
            remote.has_leftovers = True
            await self._run(
                self._upload, remote, stored, segment, index, time_index, bytes(segment.aborted.entries)
            )
            segments = (*remote.manifest.segments, stored)
            await self._commit(remote, segments)
            remote.has_leftovers = False
            await asyncio.get_running_loop().run_in_executor(
                self._executor, log.note_tiered, stored.end_offset
            )
            self.copied_bytes += stored.size
            self.copied_segments += 1
            logger.info(
                "%s: offsets %d to %d are in remote storage",
                remote.name,
                stored.base_offset,
                stored.end_offset,
            )
        if remote.end_offset > log.tiered_to:  # a crash came between
            await asyncio.get_running_loop().run_in_executor(
                self._executor, log.note_tiered, remote.end_offset
            )

    def _described(self, log: PartitionLog, segment: Segment) -> tuple[RemoteSegment, bytes, bytes]:
        """A sealed segment, and what its index files have."""
        index, time_index = bytes(segment.index.entries), bytes(segment.time_index.entries)
        timestamp, offset = segment.largest
        epochs = log.epochs
        first = max((row for row, (_, start) in enumerate(epochs) if start <= segment.base_offset), default=0)
        stored = RemoteSegment(
            self._entropy.uuid().hex,
            segment.base_offset,
            segment.end_offset,
            segment.size,
            len(index),
            len(time_index),
            len(segment.aborted.entries),
            timestamp,
            offset,
            segment.first_timestamp,
            self._ages.time_ms(),
            tuple(epoch for epoch in epochs[first:] if epoch[1] < segment.end_offset),
        )
        return stored, index, time_index

    def _upload(
        self,
        remote: RemoteLog,
        stored: RemoteSegment,
        segment: Segment,
        index: bytes,
        time_index: bytes,
        aborted: bytes,
    ) -> None:
        def parts() -> Iterator[bytes]:
            file = self._disk.open_read_only(segment.path)
            try:
                for position in range(0, stored.size, _PIECE_BYTES):
                    size = min(_PIECE_BYTES, stored.size - position)
                    piece = file.read(size, position)
                    if len(piece) != size:
                        raise OSError(f"{segment.path} is shorter than it should be")
                    yield piece
            finally:
                file.close()
            yield from (each for each in (index, time_index, aborted) if each)

        self._files.put(f"{remote.folder}/{stored.name}", parts())

    async def _note_topic(self, partition: Partition) -> None:
        topic = partition.topic
        if topic.topic_id in self._noted:
            return
        with contextlib.suppress(NodeExistsError):
            await self._store.transact(
                [CreateNode(f"{NODES}/{topic.topic_id}", json.dumps({"name": topic.name}).encode())]
            )
        note = TopicNote(topic.name, str(topic.topic_id), topic.partition_count, dict(topic.config))
        await self._run(self._put_note, topic.topic_id, note)
        self._noted.add(topic.topic_id)

    def _put_note(self, topic_id: UUID, note: TopicNote) -> None:
        self._files.put(f"{topic_id}/topic.json", msgspec.json.encode(note))

    async def _commit(self, remote: RemoteLog, segments: Sequence[RemoteSegment]) -> None:
        """Make these the partition's segments. Raises FencedError, OSError."""
        manifest = remote.manifest.with_segments(segments, self._writer)
        try:
            await self._run(self._create, remote, manifest)
        except BaseException:
            remote.reload()  # it may be there
            raise
        remote.install(manifest)

    def _create(self, remote: RemoteLog, manifest: Manifest) -> None:
        name = f"{remote.folder}/{manifest.name}"
        data = manifest.encode()
        try:
            self._files.put(name, data, create=True)
        except FileExistsError:
            if self._files.read(name) != data:
                raise FencedError(
                    f"{remote.name}: somebody else writes to its remote storage; nothing is copied before that was "
                    "looked at again"
                ) from None
        if manifest.number > 1:
            with contextlib.suppress(OSError):  # a leftover
                self._files.remove(f"{remote.folder}/{Manifest(manifest.number - 1).name}")

    # -- letting go ----------------------------------------------------------------------------------------

    async def _expire(self, partition: Partition, log: PartitionLog, remote: RemoteLog) -> None:
        config, now_ms = log.config, self._ages.time_ms()
        stored = remote.manifest.segments
        end_offset = remote.end_offset
        local = sum(each.size for each in log.segments if each.base_offset >= end_offset)
        excess = (
            remote.manifest.size_bytes + local - config.retention_bytes if config.retention_bytes >= 0 else -1
        )
        floor = self._floor(partition)
        count = 0
        for segment in stored:
            is_passed = segment.end_offset <= log.log_start_offset
            is_old = (
                config.retention_ms >= 0 and 0 <= segment.largest_timestamp < now_ms - config.retention_ms
            )
            if not is_passed:
                if not (is_old or excess >= segment.size):
                    break
                if floor is not None and segment.end_offset > floor:
                    break
            excess -= segment.size
            count += 1
        if not count:
            return
        if stored[count - 1].end_offset > log.log_start_offset:
            log.delete_records(stored[count - 1].end_offset)
            partition.wake()
        await self._drop(remote, stored[:count], stored[count:])
        logger.info("%s: retention removed %d segments from remote storage", remote.name, count)

    def _floor(self, partition: Partition) -> int | None:
        if partition.hooks is not None:
            return partition.hooks.retention_floor()
        floors = [policy.retention_floor(partition) for policy in self._policies]
        return min((floor for floor in floors if floor is not None), default=None)

    async def _drop(
        self, remote: RemoteLog, gone: Sequence[RemoteSegment], kept: Sequence[RemoteSegment]
    ) -> None:
        remote.has_leftovers = True
        await self._commit(remote, kept)
        for segment in gone:
            await self._run(self._files.remove, f"{remote.folder}/{segment.name}")
        remote.has_leftovers = False

    async def _forget(self, partition: Partition, log: PartitionLog, remote: RemoteLog) -> None:
        """Remote storage was switched off, and what is there is to go: the log begins with what is local."""
        if log.local_start_offset > log.log_start_offset:
            log.delete_records(log.local_start_offset)
            partition.wake()
        if remote.manifest.segments:
            await self._drop(remote, remote.manifest.segments, ())

    def _remove_leftovers(self, remote: RemoteLog) -> None:
        """In a thread: what the manifest does not name, of a partition that only this broker writes."""
        needed = {segment.name for segment in remote.manifest.segments}
        for name in self._files.names(remote.folder):
            short = name.rpartition("/")[2]
            number = manifest_number(name)
            if number >= remote.manifest.number if number else short in needed:
                continue
            self._files.remove(name)

    async def _remove_deleted(self) -> None:
        """Topics that were deleted leave nothing behind."""
        if not self._metadata.is_loaded:
            return
        nodes = OwnedNodes(self._store, NODES)
        for name in await self._store.children(NODES):
            topic_id = UUID(name)
            if self._metadata.topic_by_id(topic_id) is not None:
                continue
            try:
                await self._run(self._files.remove_folder, name)
            except OSError as error:
                logger.warning(
                    "what a deleted topic has in remote storage (%s) stays for now: %s", name, error
                )
                continue
            await nodes.delete(name)
            self._noted.discard(topic_id)

    async def _run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._copier, work, *arguments)
