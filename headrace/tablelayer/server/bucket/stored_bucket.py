"""A bucket with a key-value store, from its start to its end: the work beside requests.

On a replicated bucket the store has replicated rows only. A broker that begins to lead takes the store that it kept as
a follower (`standby`), waits until its log is replicated, and replays the rest. Only then does it accept writes and
answer reads, because it then has all rows that an earlier leader may have shown. The start is a task, since other
brokers may have to follow first; requests wait for it for a short time.

At the start of the broker a bucket rests if the note of its closed store says that the store has the whole log. It is
started after the broker serves clients, at the latest by the first request that needs the store.

After a crash the store has the rows below some applied offset; the rest is replayed from the log. Where old segments
are in remote storage, changes that are not in the store's files stay local, and older changes are read from there. A
store that is damaged or ahead of its log is rebuilt from a snapshot and the log (`recovery`). A read or write that
finds damage starts this at once, and its client is told to retry. Snapshots are taken beside requests (`snapshots`).
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.broker.requests.wakeup import Wakeup
from headrace.broker.runtime import disk_errors
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.rows.versions import SchemaVersions
from headrace.tablelayer.server.bucket.bucket import TableBucket
from headrace.tablelayer.server.bucket.tasks import USES_STORE, Kind, Tasks
from headrace.tablelayer.server.services import Due, KeptStore, Services, table_of
from headrace.tablelayer.server.store.copies import copy_store
from headrace.tablelayer.server.store.errors import DiskFullError, is_damage, is_halted
from headrace.tablelayer.server.store.kv import checkpoint
from headrace.tablelayer.server.store.recovery import (
    StoreRecovery,
    UnrecoverableBucketError,
    is_closed_at,
    set_aside,
)
from headrace.tablelayer.server.store.row_ttl import RowTimes
from headrace.tablelayer.server.store.snapshots import (
    BucketSnapshots,
    Snapshot,
    SnapshotSchedule,
    SnapshotStoppedError,
)
from headrace.tablelayer.server.store.tablet import Tablet

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.log.partition_log import PartitionLog
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.runtime.ports import Disk
    from headrace.tablelayer.server.store.kv import KeyValueStore

logger = logging.getLogger("headrace.tables")

_STARTING_SECONDS = 2.0
"""Maximum time that a request waits for a bucket that this broker begins to lead; then the client retries."""
_REOPEN_SECONDS = 0.2
_REOPEN_SECONDS_MAX = 5.0
_LOOK_AGAIN_SECONDS = 1.0
_CLOSING_SECONDS = 0.5
"""Maximum time that a lock's holder may go on while the bucket is closed; then it finds the bucket closed."""


class StoredBucket(TableBucket):
    """A bucket with a store (see the module). `KeyBucket` adds writes and reads."""

    def __init__(self, services: Services, partition: Partition, standby: KeptStore | None = None) -> None:
        """Create the bucket. `standby` has kept the store up to date until now, and hands it over."""
        super().__init__(services, partition)
        self._standby = standby
        self._tasks = Tasks(self.name)
        self._advanced = Wakeup()
        self.directory: Path = services.directory / str(partition.topic.topic_id) / str(partition.index)
        self._tablet: Tablet | None = None
        self._rests = False
        """Whether the bucket is served, but was not started yet."""
        self._writing = asyncio.Lock()
        self._candidate = 0
        """The offset up to which the log is replicated, so that rows may be stored and published."""
        self._last_flush = services.context.clock.monotonic()
        self.snapshots = services.snapshots_of(
            partition.topic.topic_id, partition.index, replicated=partition.is_replicated
        )
        self._schedule: SnapshotSchedule | None = None
        self._recovery = StoreRecovery(
            services, self.name, self.directory, self.snapshots, partition.topic.partition_count
        )
        self._rebuilt_at = float("-inf")
        self._no_space: OSError | None = None
        """The reason why logged rows cannot be stored, while that is so."""
        self._flush_failure: OSError | None = None

    @property
    def store(self) -> KeyValueStore | None:
        """The open store; None if there is none."""
        return None if self._tablet is None else self._tablet.kv

    @property
    def tablet(self) -> Tablet:
        """The tablet of an open and started bucket. Raises KafkaError."""
        self.check_open()
        if self._tablet is None:
            self._end_rest()
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name} is starting")
        return self._tablet

    # -- start ---------------------------------------------------------------------------------------------

    def can_rest(self, end_offset: int) -> bool:
        self._rests = is_closed_at(self.services.store_disk, self.directory, end_offset)
        return self._rests

    def _end_rest(self) -> asyncio.Task[None] | None:
        """Begin the start of a bucket that rests; return the start that is under way, if any."""
        if self._rests and not self.closed:
            self._rests = False
            self._tasks.start(Kind.START, self._start_beside())
        return self._tasks.under_way(Kind.START)

    async def start(self) -> None:
        """Bring the store up to the log. Raises UnrecoverableBucketError."""
        if (starting := self._end_rest()) is not None:
            await asyncio.wait([starting])
            return
        if self._tablet is not None:
            return
        if self.partition.is_replicated:
            self._tasks.start(Kind.START, self._start_beside())
            return
        try:
            await self._bring_up()
        except OSError as error:
            self._restart(error)

    async def _start_beside(self) -> None:
        try:
            async with self._writing:
                await self._bring_up()
        except Exception as error:
            if isinstance(error, OSError) or disk_errors.is_passing(error):
                self._restart(error)
                return
            logger.error("%s cannot start", self.name, exc_info=error)
            self.partition.fail(f"it cannot start: {error}")

    def _look_for_snapshots(self) -> None:
        """Begin to read the list of snapshots, once. An unused bucket does not read it."""
        if (
            self.snapshots is not None
            and self._schedule is None
            and not self.closed
            and self._tasks.under_way(Kind.SNAPSHOT) is None
        ):
            self._tasks.start(Kind.SNAPSHOT, self._load_snapshots(self.snapshots))

    async def _started(self) -> Tablet:
        """Return the tablet; wait a short time for a running start. Raises KafkaError(NOT_LEADER_OR_FOLLOWER)."""
        starting = None if self._tablet is not None else self._end_rest()
        if starting is not None:
            self.check_open()
            await asyncio.wait([starting], timeout=_STARTING_SECONDS)
        return self.tablet

    async def _ready(self) -> Tablet:
        """Return the tablet once it has all rows that an earlier leader may have shown; wait a short time for that.

        Raises KafkaError(NOT_LEADER_OR_FOLLOWER, OFFSET_NOT_AVAILABLE).
        """
        tablet = await self._started()
        if not self.partition.is_end_known:
            end_offset = self.partition.log.log_end_offset
            await self.partition.wait_for_high_watermark(end_offset, int(_STARTING_SECONDS * 1000))
            self.check_end_known()
        return tablet

    async def _bring_up(self) -> None:
        clock, partition, log = self.services.context.clock, self.partition, self.partition.log
        began = clock.monotonic()
        standby, self._standby = self._standby, None
        store = None if standby is None else await standby.release()
        if store is not None and not log.log_start_offset <= store.applied_offset <= log.log_end_offset:
            # The log was opened again with other contents than the standby found.
            await self.services.run(store.close)
            store = None
        if store is None:
            store = await self._opened_store(log)
        definition = self.definition
        tablet, versions, times = Tablet(store), definition.versions, RowTimes.of(definition)
        kept_rows, kept_offset, replayed = store.row_count, store.applied_offset, 0
        end_offset = log.log_end_offset  # nothing is appended until the start is over
        while True:
            if self.closed:
                await self.services.run(store.close)
                return
            up_to = min(end_offset, partition.replicated_offset)
            if store.applied_offset >= up_to == end_offset:
                break
            if store.applied_offset >= up_to:
                await self._advanced.wait(asyncio.get_running_loop().time() + _LOOK_AGAIN_SECONDS)
                continue
            found = await partition.read_anywhere(
                store.applied_offset, self.services.limits.replay_bytes, up_to=up_to
            )
            if found.region is None:
                raise UnrecoverableBucketError(f"the log has no batch at offset {store.applied_offset}")
            replayed += await self.services.run_on(
                found.region, partition, _replay, tablet, versions, found.region, times
            )
        self._tablet = tablet
        self._no_space = None
        self._candidate = max(self._candidate, end_offset)
        if store.is_open:
            self.services.restless[self] = None
        self.partition.publish_high_watermark(end_offset)
        if end_offset:
            logger.info(
                "%s: kept %d rows up to offset %d, replayed %d rows up to offset %d in %.0f ms",
                self.name, kept_rows, kept_offset, replayed, end_offset,
                (clock.monotonic() - began) * 1000,
            )  # fmt: skip

    async def _opened_store(self, log: PartitionLog) -> KeyValueStore:
        """Raises UnrecoverableBucketError; NoCopyError if there are other replicas."""
        try:
            return await self._recovery.open(log.log_start_offset, log.log_end_offset)
        except UnrecoverableBucketError as error:
            partition, services = self.partition, self.services
            state = services.context.metadata.state(partition.topic.name, partition.index)
            if not partition.is_replicated or state is None:
                raise
            logger.warning("%s: %s; its store is copied from another broker", self.name, error)
            return await copy_store(
                services,
                partition.topic,
                partition.index,
                self.directory,
                [each for each in state.replicas if each != services.context.identity.broker_id],
                least_offset=log.log_start_offset,
                is_over=lambda: self.closed,
            )

    # -- errors --------------------------------------------------------------------------------------------

    def _failed(self, error: BaseException) -> KafkaError | None:
        """Return the retriable error for a request that met an error of the store; None for other errors."""
        if is_damage(error):
            return self._damaged(error)
        if isinstance(error, OSError):
            disk_errors.tell(logger, f"the key-value store of {self.name} cannot be used", error)
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.name}: its key-value store cannot be used now: {disk_errors.why(error)}",
            )
        return None

    def _restart(self, error: BaseException) -> None:
        """Open the store again, and replay the rows that it had in memory: RocksDB has stopped writing its files."""
        if self._tasks.under_way(Kind.REBUILD) is None and not self.closed:
            disk_errors.tell(
                logger, f"{self.name} cannot write its key-value store, and opens it again", error
            )
            self._tasks.start(Kind.REBUILD, self._reopen(error))

    async def _reopen(self, error: BaseException) -> None:
        pause = _REOPEN_SECONDS
        try:
            async with self._writing:
                tablet = await self._quiesce()
                if tablet is not None:
                    await self.services.run(tablet.kv.abandon)
                while not self.closed:
                    try:
                        return await self._bring_up()
                    except (OSError, KafkaError) as again:
                        disk_errors.tell(logger, f"{self.name} cannot be opened again", again)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _REOPEN_SECONDS_MAX)
        except Exception as failure:
            logger.error("%s cannot be opened again", self.name, exc_info=failure)
            self.partition.fail(f"its key-value store cannot be opened again: {failure}")

    # -- damage --------------------------------------------------------------------------------------------

    def _damaged(self, error: BaseException) -> KafkaError:
        """Start to rebuild the store, whose files are damaged. Return the retriable error for the request."""
        if self._tasks.under_way(Kind.REBUILD) is None and not self.closed:
            logger.error(
                "%s: its key-value store is damaged, is set aside and built again", self.name, exc_info=error
            )
            self._tasks.start(Kind.REBUILD, self._rebuild())
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name} is being rebuilt: {error}")

    async def _rebuild(self) -> None:
        try:
            async with self._writing:
                if self.closed or (tablet := await self._quiesce()) is None:
                    return
                clock, limits = self.services.context.clock, self.services.limits
                if clock.monotonic() - self._rebuilt_at < limits.rebuild_pause_seconds:
                    self._recovery.distrust_restored()
                self._rebuilt_at = clock.monotonic()
                await self.services.run(tablet.kv.abandon)
                await self.services.run(set_aside, self.services.store_disk, self.directory)
                if self.snapshots is not None:
                    self.snapshots.store_changed()
                await self._bring_up()
        except Exception as error:
            logger.error("%s cannot be rebuilt", self.name, exc_info=error)
            self.partition.fail(f"its key-value store is damaged and cannot be rebuilt: {error}")

    async def _quiesce(self) -> Tablet | None:
        """Wait for the tasks that use the store, and take the tablet away.

        Call it with `_writing` held, or when the bucket is closed.
        """
        if self.snapshots is not None:
            self.snapshots.stop()
        await self._tasks.wait(*USES_STORE)
        tablet, self._tablet = self._tablet, None
        if tablet is not None:
            self.services.budget.release(tablet.pending_bytes)
            await self.services.release_scans(self)
        return tablet

    # -- upkeep --------------------------------------------------------------------------------------------

    def tend(self) -> Due:
        """Flush rows that were written long ago, so that replays stay short, and take a snapshot that is due.

        Called at intervals. Returns when the bucket needs another call, if it is not written to.
        """
        tablet, now = self._tablet, self.services.context.clock.monotonic()
        if tablet is None or self.closed:
            return Due.NEVER if self.closed else Due.SOON
        if tablet.kv.bytes_since_flush and now - self._last_flush >= self.services.limits.flush_seconds:
            self._start_flush()
        is_unflushed = bool(tablet.kv.bytes_since_flush) or self._tasks.under_way(Kind.FLUSH) is not None
        snapshots, schedule = self.snapshots, self._schedule
        if snapshots is None:
            return Due.SOON if is_unflushed else Due.NEVER
        if schedule is None:
            self._look_for_snapshots()
        if schedule is None or self._tasks.under_way(Kind.SNAPSHOT) is not None:
            return Due.SOON
        if schedule.due(now, tablet.kv.applied_offset, snapshots.newest_offset):
            self._tasks.start(Kind.SNAPSHOT, self._take_snapshot(tablet, snapshots, schedule))
            return Due.SOON
        if is_unflushed:
            return Due.SOON
        return Due.LATER if tablet.kv.applied_offset > snapshots.newest_offset else Due.NEVER

    def _start_flush(self) -> None:
        if self._tasks.under_way(Kind.FLUSH) is None:
            self._last_flush = self.services.context.clock.monotonic()
            self._tasks.start(Kind.FLUSH, self._flush())

    async def _flush(self) -> None:
        try:
            if self._tablet is not None:
                await self.services.run(self._tablet.kv.flush)
            self._flush_failure = None
        except DiskFullError as error:
            self._flush_failure = error
            # Reads go on. The log has the rows in memory too, and the next flush writes them.
            disk_errors.tell(logger, f"{self.name} cannot be flushed", error)
        except Exception as error:
            if is_damage(error):
                self._damaged(error)
            elif is_halted(error):
                self._restart(error)
            elif not self.closed:
                logger.error("%s cannot be flushed", self.name, exc_info=error)
                self.partition.fail(f"its key-value store cannot be flushed: {error}")

    # -- snapshots -----------------------------------------------------------------------------------------

    async def _load_snapshots(self, snapshots: BucketSnapshots) -> None:
        """Read the list of snapshots. Until then the log keeps everything, and no snapshot is taken."""
        clock, limits = self.services.context.clock, self.services.limits
        interval = self.services.snapshot_config.interval_seconds
        while not self.closed:
            try:
                known = await self.services.background(snapshots.load)
            except Exception as error:  # noqa: BLE001 - of a store or a network: logged, and tried again
                logger.warning("%s: its snapshots in %s cannot be read: %s", self.name, snapshots, error)
                await asyncio.sleep(min(limits.snapshot_retry_seconds, interval))
                continue
            age = max(0.0, (clock.time_ms() - known[0].created_at_ms) / 1000) if known else 0.0
            retry = limits.snapshot_retry_seconds
            self._schedule = SnapshotSchedule(interval, retry, clock.monotonic(), age)
            return

    async def known_snapshots(self) -> tuple[Snapshot, ...]:
        """Return the bucket's snapshots, newest first; read their list if that was not done yet.

        Returns none if it cannot be read now.
        """
        if self.snapshots is None:
            return ()
        try:
            return await self.services.background(self.snapshots.load)
        except Exception as error:  # noqa: BLE001 - of a store or a network: logged
            logger.warning("%s: its snapshots in %s cannot be read: %s", self.name, self.snapshots, error)
            return ()

    async def _take_snapshot(
        self, tablet: Tablet, snapshots: BucketSnapshots, schedule: SnapshotSchedule
    ) -> None:
        """Take a snapshot. If that fails, writes and reads go on, and the log keeps more."""
        clock, succeeded = self.services.context.clock, False
        began = clock.monotonic()
        try:
            taken = await self.services.background(
                snapshots.take, tablet.kv, self.services.memory, self.definition, clock.time_ms()
            )
            succeeded = True
            if self.partition.remote is not None and not self.closed:
                self.partition.log.roll()  # remote storage then gets the segment that follows the snapshot
            await self.services.background(snapshots.clean)
            logger.info(
                "%s: snapshot %d at offset %d: %d rows, %d files of %d bytes, %d of them uploaded in %.0f ms",
                self.name, taken.id, taken.offset, taken.row_count, len(taken.files), taken.size_bytes,
                snapshots.uploaded_bytes, (clock.monotonic() - began) * 1000,
            )  # fmt: skip
        except SnapshotStoppedError:
            pass
        except Exception as error:  # noqa: BLE001 - of a store or a network: logged, and tried again
            if is_damage(error):
                self._damaged(error)
            else:
                what = "cleaning up after a snapshot" if succeeded else "a snapshot"
                logger.warning("%s: %s to %s failed: %s", self.name, what, snapshots, error)
        finally:
            schedule.attempted(clock.monotonic(), succeeded=succeeded)

    async def checkpoint(self, path: Path) -> None:
        """Copy the store, as it is at some offset of the log, to the new folder `path`.

        Do nothing if the store is empty, being closed or being rebuilt: it can be built from the log. Raises OSError
        and RocksDB's errors.
        """
        if (starting := self._end_rest()) is not None:
            await asyncio.wait([starting])
        tablet, services = self._tablet, self.services
        if tablet is None or not tablet.kv.is_made or self._tasks.under_way(Kind.CHECKPOINT) is not None:
            return
        copying = services.background(checkpoint, services.store_disk, tablet.kv, services.memory, path)
        await self._tasks.start(Kind.CHECKPOINT, copying)

    def retention_floor(self) -> int | None:
        """Return the offset from which the log is kept: the end of the store's files, and of the oldest snapshot.

        The log is the store's write-ahead log, and each snapshot can be continued from it.
        """
        if self._tablet is None:
            return 0
        floor = self._tablet.kv.durable_offset
        if self.snapshots is not None:
            if floor:
                self._look_for_snapshots()
            floor = min(floor, self.snapshots.floor)
        tiered = super().retention_floor()
        return floor if tiered is None else min(floor, tiered)

    def local_floor(self) -> int | None:
        """Return the offset from which changes stay local: a start replays them without waiting for remote storage."""
        return 0 if self._tablet is None else self._tablet.kv.durable_offset

    # -- end -----------------------------------------------------------------------------------------------

    async def truncated(self, end_offset: int) -> None:
        """Fail if the store is ahead of its log: the store may have replicated rows only."""
        async with self._writing:
            if self._tablet is not None and self._tablet.kv.applied_offset > end_offset:
                self.partition.fail(f"the log was cut back to {end_offset}, behind what is stored")

    async def close(self) -> None:
        tablet = await self._stop()
        if tablet is not None:
            await self.services.run(tablet.kv.close)

    async def delete(self) -> None:
        tablet = await self._stop()
        if tablet is not None:
            await self.services.run(tablet.kv.destroy)
        else:
            await self.services.run(self.services.store_disk.remove_tree, self.directory)
        if self.snapshots is not None:
            try:
                await self.services.background(self.snapshots.forget)
            except Exception as error:  # noqa: BLE001 - of a store or a network: logged
                logger.warning(
                    "%s: its snapshots in %s cannot be removed: %s", self.name, self.snapshots, error
                )
        await self.services.run(_remove_if_empty, self.services.store_disk, self.directory.parent)
        definition = self.definition
        if definition.settings.auto_increment_column is not None and definition.path.partition is None:
            await self.services.auto_increment.forget(self._numbered_id)

    @property
    def _numbered_id(self) -> UUID:
        """The id of the table whose auto-increment numbers this bucket uses: the whole table, also for a partition."""
        return table_of(self.partition.topic)

    async def _stop(self) -> Tablet | None:
        """End the bucket's tasks; no new one begins."""
        self.closed = True
        loading = self._tasks.under_way(Kind.SNAPSHOT)
        if loading is not None and self._schedule is None:
            loading.cancel()  # the storage that it waits for cannot be reached
        self._advanced.wake()
        await self._tasks.wait(Kind.START, Kind.REBUILD)
        if self._standby is not None:  # the bucket was not started
            standby, self._standby = self._standby, None
            await standby.close()
        held = False
        try:
            async with asyncio.timeout(_CLOSING_SECONDS):
                held = await self._writing.acquire()
        except TimeoutError:
            pass  # the lock is held for another broker, or waits for one
        try:
            return await self._quiesce()
        finally:
            if held:
                self._writing.release()


def _replay(tablet: Tablet, versions: SchemaVersions, region: Any, times: RowTimes | None) -> int:
    return tablet.replay(versions, region.read(), times=times)


def _remove_if_empty(disk: Disk, directory: Path) -> None:
    """Remove the table's folder after its last bucket, with the set-aside and temporary files in it."""
    if disk.is_directory(directory) and all("." in child for child in disk.directories(directory)):
        disk.remove_tree(directory)
