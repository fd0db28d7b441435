"""Copy sealed segments to remote storage, and remove those that retention does not cover there any more (KIP-405).

For each partition of a topic with `remote.storage.enable` that is led here, one after the other, every
`remote.log.manager.task.interval.ms` (followers only delete local segments that are also in remote storage):

- **Copy**: a sealed segment below the last stable offset and the recovery point (it must be durable on this disk) is
  copied to one object. Then a manifest that names it is created. Then the log notes durably up to which offset it is in
  remote storage (`tiered_to`). Local retention deletes only up to there.
- **Expire**: segments below the log's start, or beyond `retention.ms` or `retention.bytes`, are removed unless a floor
  protects them. The log's start moves first, durably; then a manifest without them is created; then the objects are
  removed.
- **Leftovers**: objects that no manifest names are removed after a start, and after anything that failed.

So a crash, or a failure of the object store, leaves at most objects without a manifest, until the next turn.
`log_objects` says how a former leader is kept from writing.

A single broker also copies its metadata (`cluster_copy`), always before segments of the topics in it; in a cluster the
controller does (`shared_copy`). A new machine can start from the copy (`bootstrap`). A broker that notices this only
reads from then on.

Committed positions of consumer groups are copied separately (`group_copy`, every
`remote.log.group.positions.interval.ms`), once the broker has claimed remote storage.

`topic_nodes` says how a deleted topic leaves no objects, and `uploads` what a segment's object has.

A data directory that was restored from a backup has a file (`RESTORED_NAME`). While it exists, remote storage is only
read: the server from which the backup was made may still run, and owns it.

On the event loop; separate threads wait for the network.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from msgspec.structs import replace

from headrace.broker.backup.archive import RESTORED_NAME
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.configs.remote_log import is_enabled
from headrace.broker.log.retention import retention_plan
from headrace.broker.partitions.data_dir import FROM_REMOTE_STORAGE
from headrace.broker.remote.bootstrap import NODES, partition_files
from headrace.broker.remote.chunks import Chunks
from headrace.broker.remote.cluster_copy import ClusterCopy, Place, ReplacedError
from headrace.broker.remote.counts import Counts
from headrace.broker.remote.group_copy import GroupCopy
from headrace.broker.remote.log import RemoteLog, newest_manifest, read_producers, remote_log_of
from headrace.broker.remote.log_objects import FencedError, LogObjects
from headrace.broker.remote.manifest import ManifestError, RemoteSegment, partition_folder
from headrace.broker.remote.quotas import RemoteQuota
from headrace.broker.remote.shared_copy import SharedCopy
from headrace.broker.remote.topic_nodes import TopicNodes
from headrace.broker.remote.uploads import described, producers_at, upload
from headrace.broker.runtime import disk_errors
from headrace.broker.runtime.ports import STORE_LOST, StoreError
from headrace.broker.security.quotas.quotas import BURST_PART
from headrace.broker.stores.embedded import EmbeddedStore
from headrace.protocol.errors import KafkaError

if TYPE_CHECKING:
    from headrace.broker.groups.coordinator import GroupCoordinator
    from headrace.broker.log.partition_log import PartitionLog
    from headrace.broker.metadata.image import TopicEntry
    from headrace.broker.objects.files import RemoteFiles
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.partitions.topic import TopicImage
    from headrace.broker.remote.parts import RemoteParts
    from headrace.broker.replication.following import Follower
    from headrace.broker.runtime.ports import Clock
    from headrace.broker.runtime.slices import Slices

logger = logging.getLogger("headrace.remote")

Result = TypeVar("Result")


class RemoteLogManager:
    """The remote log of one broker. `location`: the name of `files` for users."""

    def __init__(self, parts: RemoteParts, files: RemoteFiles, location: str) -> None:
        config, metadata, store = parts.config, parts.metadata, parts.store
        directory, disk, ages, threads = parts.directory, parts.disk, parts.ages, parts.threads
        data_dir = directory.path
        self._is_read_only = disk.size(data_dir / RESTORED_NAME) is not None
        if self._is_read_only:
            logger.warning(
                "%s was restored from a backup: remote storage is only read. When the server from which the backup was "
                "made does not run any more, remove the file %s from it and start again",
                data_dir, RESTORED_NAME,
            )  # fmt: skip
        self._config = config
        self._files = files
        self._location = location
        self._directory = directory
        self._metadata = metadata
        self._replicas = parts.replicas
        self._policies = parts.policies
        self._store = store
        self._disk = disk
        self._ages = ages
        self._executor = parts.executor
        self._background = parts.background
        self._writer = parts.entropy.uuid().hex
        self._entropy = parts.entropy
        count = config["remote.log.reader.threads"]
        self.readers = threads.pool(count, "remote log readers")
        self._ahead = threads.pool(count, "remote log read-ahead")
        self._copier = threads.pool(1, "remote log copier")
        self.chunks = Chunks(files.read_range, self._ahead, config["remote.log.reader.cache.bytes"])
        self._topics = TopicNodes(files, store, metadata, parts.following, self._copier)
        self._unknown: dict[tuple[UUID, int], Exception] = {}
        """Errors of partitions that have no folder, and whose remote part could not be looked up."""
        self._is_alone = isinstance(store, EmbeddedStore)
        self._place = Place(
            files, directory.cluster_id, directory.broker_id, self._writer, ages.time_ms, self._copier
        )
        self._objects = LogObjects(files, self._writer, self._copier)
        self._cluster: ClusterCopy | SharedCopy
        if isinstance(store, EmbeddedStore):
            self._cluster = ClusterCopy(self._place, store)
        else:
            self._cluster = SharedCopy(self._place, store, lambda: metadata.image)
        self._counts: dict[str, Counts] = {}
        """Counters by topic."""
        self._copy_quota = self._quota("copy", parts.clock)
        self._positions: GroupCopy | None = None
        self._position_copier = threads.pool(1, "remote group positions")
        self._fetch_quota = self._quota("fetch", parts.clock)
        self._clock = parts.clock
        self._turn_ends = 0.0
        self._put_off: dict[Partition, None] = {}
        """Partitions that wait for the quota."""
        self._copies_nothing = self._is_read_only
        self._metadata_true_at = self._positions_true_at = parts.clock.monotonic()
        """Latest time at which the copy was equal to the broker's state, in monotonic seconds; initially the start."""

    def _quota(self, work: str, clock: Clock) -> RemoteQuota:
        config, name = self._config, f"remote.log.manager.{work}"
        window = config[f"{name}.quota.window.num"] * config[f"{name}.quota.window.size.seconds"]
        return RemoteQuota(
            lambda: config[f"{name}.max.bytes.per.second"], window / BURST_PART, clock.monotonic
        )

    def counts(self) -> Mapping[str, Counts]:
        """Return the counters of existing topics."""
        for topic in [name for name in self._counts if self._metadata.topic(name) is None]:
            del self._counts[topic]
        return self._counts

    def metadata_age_seconds(self) -> float | None:
        """Maximum age of the metadata in remote storage, in seconds; None if this broker does not copy it."""
        if self._copies_nothing or not self._cluster.is_writer:
            return None
        return self._clock.monotonic() - self._metadata_true_at

    def positions_age_seconds(self) -> float | None:
        """Maximum age of the positions of groups that this broker copies, in seconds; None if it copies none."""
        if self._copies_nothing or self._positions is None:
            return None
        return self._clock.monotonic() - self._positions_true_at

    def partitions(self) -> Sequence[Partition]:
        return self._replicas.all_partitions()

    def of(self, partition: Partition, log: PartitionLog) -> RemoteLog | None:
        """Return the remote part of a log that was just opened; None if it has none and will have none."""
        if not log.config.remote_storage_enable and not log.tiered_to:
            return None
        topic = partition.topic
        is_alone = self._is_alone

        def is_of_log(segment: RemoteSegment) -> bool:
            if segment.end_offset <= log.tiered_to:
                return True
            # Another leader has copied it, and this log has the same records.
            return (
                not is_alone
                and segment.end_offset <= log.log_end_offset
                and log.epoch_at(segment.end_offset - 1) == segment.last_epoch
            )

        return RemoteLog(
            f"{topic.name}-{partition.index}",
            partition_folder(topic.topic_id, partition.index),
            self._files,
            self.chunks,
            self.readers,
            is_of_log,
            self._writer,
            self._fetch_quota,
            self._counts.setdefault(topic.name, Counts()),
        )

    # -- the start -----------------------------------------------------------------------------------------

    async def make_missing(self, topics: Sequence[TopicEntry]) -> None:
        """Give partitions of this broker without a folder but with a remote part a log that continues from there.

        A single broker does this once, after `bootstrap.make_directory`, and raises ConfigError if it fails. In a
        cluster, a failed partition stays offline.
        """
        is_alone = self._is_alone
        note = self._directory.path / FROM_REMOTE_STORAGE
        if is_alone and self._disk.size(note) is None:
            return
        copied = set(await self._store.children(NODES))
        broker_id = self._directory.broker_id
        wanted = [
            (entry.topic, index)
            for entry in topics
            if is_enabled(entry.topic.config) or str(entry.topic.topic_id) in copied
            for index, state in enumerate(entry.states())
            if broker_id in state.replicas and not self._directory.has_partition_dir(entry.topic, index)
        ]
        loop = asyncio.get_running_loop()
        made = await asyncio.gather(
            *(loop.run_in_executor(self.readers, self._make_missing, *each) for each in wanted),
            return_exceptions=True,
        )
        for (topic, index), result in zip(wanted, made, strict=True):
            if isinstance(result, OSError | ManifestError):
                if is_alone:
                    raise ConfigError(
                        f"cannot restore {topic.name}-{index} from remote storage {self._location}: {result}; start "
                        "again when it can be read"
                    )
                self._unknown[topic.topic_id, index] = result
            elif isinstance(result, BaseException):
                raise result
            elif (
                result and str(topic.topic_id) not in copied
            ):  # its metadata was copied before its first segment
                copied.add(str(topic.topic_id))
                await self._topics.make(topic)
        if is_alone:
            logger.info(
                "restored the logs of %d partitions from remote storage", sum(each is True for each in made)
            )
            self._disk.remove(note)
            self._disk.sync_directory(self._directory.path)

    def _make_missing(self, topic: TopicImage, index: int) -> bool:
        folder = partition_folder(topic.topic_id, index)
        manifest = newest_manifest(self._files, folder)
        if not manifest.segments:
            return False
        producers = read_producers(self._files, folder, manifest)
        self._directory.make_filled_partition_dir(topic, index, partition_files(manifest, producers))
        return True

    def check_known(self, partition: Partition) -> None:
        """Check that it is known whether a partition has a remote part, before its log is created. Raises OSError."""
        error = self._unknown.get((partition.topic.topic_id, partition.index))
        if error is not None:
            raise OSError(f"its remote part could not be looked up: {error}")

    def close(self) -> None:
        """Stop the threads. Work in progress ends by itself and is not awaited."""
        for pool in (self.readers, self._ahead, self._copier, self._position_copier):
            pool.shutdown(wait=False, cancel_futures=True)

    # -- consumer groups -----------------------------------------------------------------------------------

    def follow_groups(self, groups: GroupCoordinator, slices: Slices) -> None:
        """Let `run_positions` copy the positions of these groups from now on."""
        place = dataclasses.replace(self._place, executor=self._position_copier)
        self._positions = GroupCopy(place, groups, self._metadata, self._copy_quota, slices)

    async def run_positions(self) -> None:
        """Copy positions of groups periodically, until cancelled."""
        interval = self._config["remote.log.group.positions.interval.ms"] / 1000
        while True:
            await asyncio.sleep(interval)
            await self.copy_positions()

    async def copy_positions(self) -> None:
        """Copy changed positions of groups once. Does nothing before this broker has claimed remote storage."""
        claim = self._cluster.claim
        if self._positions is None or self._is_read_only or claim is None:
            return
        began = self._clock.monotonic()
        try:
            await self._positions.keep(claim)
            self._positions_true_at = began
        except (KafkaError, OSError) as error:
            disk_errors.DISK_LOG.tell(
                logger, logging.ERROR, "group positions in remote storage",
                "cannot copy the positions of consumer groups to remote storage: %s", error,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - groups are served, and positions copied again
            self._background.failed("copying the positions of consumer groups to remote storage", error)

    # -- the task ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do a turn periodically, until cancelled."""
        interval = self._config["remote.log.manager.task.interval.ms"] / 1000
        await asyncio.sleep(min(interval, self._config["log.initial.task.delay.ms"] / 1000))
        while True:
            await self.turn()
            await asyncio.sleep(interval)

    async def turn(self) -> None:
        """Handle every partition once."""
        if self._is_read_only:
            return
        self._turn_ends = self._clock.monotonic() + self._config["remote.log.manager.task.interval.ms"] / 1000
        put_off, self._put_off = self._put_off, {}
        there = self._replicas.all_partitions()
        partitions = [*put_off, *(each for each in there if each not in put_off)]
        if not await self._keep_cluster():
            return
        for partition in partitions:
            is_wanted = partition.remote is not None or is_enabled(partition.topic.config)
            if not is_wanted or partition.closed or partition.failure is not None or partition.is_fenced:
                continue
            try:
                await self.tend(partition)
            except STORE_LOST:
                raise
            except FencedError as error:
                logger.warning("%s", error)
            except (KafkaError, OSError) as error:
                if (remote := remote_log_of(partition)) is not None:
                    remote.has_leftovers = True
                    if not isinstance(error, KafkaError):
                        remote.storage_error("store or remove segments", error)
            except Exception as error:  # noqa: BLE001 - of one partition: told
                self._background.failed(f"the remote log of {partition!r}", error)
        for follower in self._replicas.followers():
            try:
                await self._tend_follower(follower)
            except (KafkaError, OSError) as error:
                logger.info("%s keeps its local segments: %s", follower.name, error)
            except Exception as error:  # noqa: BLE001 - of one replica: told
                self._background.failed(f"the remote log of {follower!r}", error)
        await self._topics.remove_deleted()

    async def _keep_cluster(self) -> bool:
        """Return whether segments may be copied and removed."""
        began = self._clock.monotonic()
        try:
            if await self._cluster.keep() or not self._cluster.is_writer:
                self._metadata_true_at = began
        except ReplacedError as error:
            self._is_read_only = True
            logger.error(
                "%s: another server has taken over this one's remote storage. Nothing is copied to it or removed from "
                "it any more. Stop this server",
                error,
            )
            return False
        except (OSError, sqlite3.Error, StoreError, *STORE_LOST) as error:
            disk_errors.DISK_LOG.tell(
                logger, logging.ERROR, "metadata in remote storage",
                "cannot copy the metadata to remote storage: %s", error,
            )  # fmt: skip
            return False
        return True

    async def tend(self, partition: Partition) -> None:
        """Handle one partition. Raises KafkaError, FencedError, OSError."""
        log = partition.log
        remote = remote_log_of(partition)
        if remote is None:
            remote = partition.remote = self.of(partition, log)
            if remote is None:
                return
        await remote.load()
        stored_to = remote.end_offset or log.local_start_offset  # this log has the same history up to there
        start_offset = min(remote.manifest.log_start_offset, stored_to)
        if start_offset > log.log_start_offset:
            # A former leader removed segments, and was gone before this log knew its new start.
            log.delete_records(start_offset)
            partition.wake()
        if remote.is_cut:  # a manifest must not name objects that are about to be removed
            await self._objects.commit(log, remote, remote.manifest.segments)
        if remote.has_leftovers:
            await self._objects.remove_leftovers(log, remote)
            remote.has_leftovers = False
        config = log.config
        if config.remote_storage_enable:
            await self._expire(partition, log, remote)
            if not config.remote_log_copy_disable:
                await self._copy(partition, log, remote)
        elif log.tiered_to > log.log_start_offset or remote.manifest.segments:
            await self._forget(partition, log, remote)

    async def _tend_follower(self, follower: Follower) -> None:
        """Delete local segments of a follower that local retention does not cover; its leader copies them. Raises
        KafkaError, OSError.
        """
        if not follower.is_open or not follower.log.config.remote_storage_enable:
            return
        log, remote = follower.log, remote_log_of(follower.partition)
        if remote is None:
            remote = follower.partition.remote = self.of(follower.partition, log)
        if remote is None or not log.has_local_excess(self._ages.time_ms()):
            return
        manifest = await remote.run(remote.newest)
        end_offset = min(remote.own_end(manifest), follower.high_watermark)
        if end_offset > log.tiered_to:
            await asyncio.get_running_loop().run_in_executor(self._executor, log.note_tiered, end_offset)
            remote.reload()  # readers here must find the segments that are about to be deleted
        if follower.is_open:
            floor = None if follower.hooks is None else follower.hooks.floor
            log.delete_local_segments(self._ages.time_ms(), floor)

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
                    f"{remote.name}: remote storage ends at {end_offset}, but the next segment begins at "
                    f"{segment.base_offset}: nothing is copied"
                )
            while (seconds := self._copy_quota.wait_seconds()) > 0.0:
                if self._clock.monotonic() + seconds > self._turn_ends:
                    self._put_off[partition] = None
                    return
                await asyncio.sleep(seconds)
            if partition.closed:
                return
            await self._topics.before_copy(partition.topic)
            await self._objects.claim(log, remote)
            producers = await self._run(producers_at, self._disk, log, segment.end_offset)
            name, now_ms = self._entropy.uuid().hex, self._ages.time_ms()
            stored, rest = described(
                log, segment, producers, remote_end=remote.end_offset, name=name, now_ms=now_ms
            )
            remote.has_leftovers = True
            counts = remote.counts
            counts.copies += 1
            self._copy_quota.used(stored.stored_size)
            try:
                await self._run(upload, self._files, self._disk, remote.folder, stored, segment, rest)
            except OSError:
                counts.copy_errors += 1
                raise
            segments = (*remote.manifest.segments, stored)
            await self._objects.commit(log, remote, segments)
            remote.has_leftovers = False
            await asyncio.get_running_loop().run_in_executor(
                self._executor, log.note_tiered, stored.end_offset
            )
            counts.copied_bytes += stored.size
            logger.info(
                "%s: copied offsets %d to %d to remote storage",
                remote.name,
                stored.base_offset,
                stored.end_offset,
            )
        if remote.end_offset > log.tiered_to:  # after a crash between the two
            await asyncio.get_running_loop().run_in_executor(
                self._executor, log.note_tiered, remote.end_offset
            )

    # -- removing ------------------------------------------------------------------------------------------

    async def _expire(self, partition: Partition, log: PartitionLog, remote: RemoteLog) -> None:
        stored, end_offset = remote.manifest.segments, remote.end_offset
        local_bytes = sum(each.size for each in log.segments if each.base_offset >= end_offset)
        floor = self._floor(partition)
        once = [
            replace(each, size=each.size - each.common_size) if each.common_size else each for each in stored
        ]
        count = retention_plan(
            once,
            log.config.retention,
            size_bytes=sum(each.size for each in once) + local_bytes,
            log_start_offset=log.log_start_offset,
            # A floor does not protect records that were deleted.
            deletable_to=end_offset if floor is None else max(floor, log.log_start_offset),
            now_ms=self._ages.time_ms(),
        )
        if not count:
            if stored and log.log_start_offset > remote.manifest.log_start_offset:
                # Deleted records must stay deleted for later owners.
                await self._objects.commit(log, remote, stored)
            return
        if stored[count - 1].end_offset > log.log_start_offset:
            log.delete_records(stored[count - 1].end_offset)
            partition.wake()
        await self._objects.drop(log, remote, stored[:count], stored[count:])
        logger.info("%s: retention removed %d segments from remote storage", remote.name, count)

    def _floor(self, partition: Partition) -> int | None:
        if partition.hooks is not None:
            return partition.hooks.retention_floor()
        floors = [policy.retention_floor(partition) for policy in self._policies]
        return min((floor for floor in floors if floor is not None), default=None)

    async def _forget(self, partition: Partition, log: PartitionLog, remote: RemoteLog) -> None:
        """Remove the remote part after remote storage was disabled: the log begins with its local part."""
        if log.local_start_offset > log.log_start_offset:
            log.delete_records(log.local_start_offset)
            partition.wake()
        if remote.manifest.segments:
            await self._objects.drop(log, remote, remote.manifest.segments, ())

    async def _run(self, work: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._copier, work, *arguments)
