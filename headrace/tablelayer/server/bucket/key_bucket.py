"""A bucket of a primary-key table: one batch at a time through its tablet into the log, and behind the high
watermark into the key-value store.

Order of things (R1, R11, R12): a batch is prepared, appended to the log, put into the pre-write buffer; when the
log says that it is replicated, stored; and only then is its high watermark published. Reads see the store alone,
and an answer made while a batch was being stored waits until that batch is published.

Of a bucket with replicas the store has what is replicated, and nothing else. Who begins to lead one goes on with the
store that it has kept up as a follower (`standby`), waits until the log that it has is replicated, replays the rest,
and only then takes writes and answers reads: what the leader before may have shown is there. That goes on beside
everything else, since others may have to follow first; requests wait for it a little.

After a crash the store has the rows up to some applied offset, and the rest is replayed from the log. Where old
segments are in remote storage, what a store has not in its files stays local; older changes are read from there. A
store that is damaged, or ahead of its log, is built again from a snapshot and the log (`recovery`); damage that shows
only in a read or a write makes it so at once, and whoever asked is told to ask again. Snapshots are taken beside
everything else (`snapshots`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.log.partition_log import AppendInfo, AppendOrigin
from headrace.broker.runtime import disk_errors
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.batches.batch import opened_size_of
from headrace.tablelayer.model.rows.versions import SchemaVersions
from headrace.tablelayer.model.schema.schema import Schema
from headrace.tablelayer.model.types.column_types import INTEGER_BITS
from headrace.tablelayer.server.bucket.bucket import TableBucket
from headrace.tablelayer.server.merge.auto_increment import OutOfNumbersError
from headrace.tablelayer.server.merge.writes import (
    ClientWrite,
    OperationSource,
    Writer,
    check_overwritable,
    decode_put,
    key_insertions,
    write_header,
)
from headrace.tablelayer.server.services import KeptStore, Services, table_of
from headrace.tablelayer.server.store.copies import copy_store
from headrace.tablelayer.server.store.keys import absent_keys
from headrace.tablelayer.server.store.kv import DiskFullError, StalledStoreError, checkpoint, is_damage
from headrace.tablelayer.server.store.recovery import StoreRecovery, UnrecoverableBucketError, set_aside
from headrace.tablelayer.server.store.row_ttl import RowTimes
from headrace.tablelayer.server.store.snapshots import BucketSnapshots, SnapshotSchedule, SnapshotStoppedError
from headrace.tablelayer.server.store.tablet import PreparedWrite, Tablet

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.log.partition_log import PartitionLog
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.runtime.ports import Disk
    from headrace.tablelayer.server.store.kv import KeyValueStore

logger = logging.getLogger("headrace.tables")

Result = TypeVar("Result")

_PUBLISH_TIMEOUT_MS = 30_000
"""Publishing follows storing at once; only a broken process takes longer."""
_DISK_FULL_RETRY_SECONDS = 1.0
_STARTING_SECONDS = 2.0
"""So long a request waits for a bucket that is about to be led from here; then its sender asks again."""
_CLOSING_SECONDS = 0.5
"""So long whoever holds the bucket may go on when it is closed; then they find it closed."""


class KeyBucket(TableBucket):
    """`PartitionHooks` of a primary-key table."""

    def __init__(self, services: Services, partition: Partition, standby: KeptStore | None = None) -> None:
        """`standby` has kept up the store until now, and gives it away."""
        super().__init__(services, partition)
        self._standby = standby
        self._starting: asyncio.Task[None] | None = None
        self._advanced = asyncio.Event()
        self.directory: Path = services.directory / str(partition.topic.topic_id) / str(partition.index)
        self._tablet: Tablet | None = None
        self._rows_written = 0
        self._writing = asyncio.Lock()
        self._candidate = 0
        self._storing: asyncio.Task[None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._last_flush = services.context.clock.monotonic()
        self.snapshots = services.snapshots_of(
            partition.topic.topic_id, partition.index, replicated=partition.is_replicated
        )
        self._snapshotting: asyncio.Task[None] | None = None
        self._checkpointing: asyncio.Task[None] | None = None
        self._schedule: SnapshotSchedule | None = None
        self._recovery = StoreRecovery(
            services, self.name, self.directory, self.snapshots, partition.topic.partition_count
        )
        self._rebuilding: asyncio.Task[None] | None = None
        self._rebuilt_at = float("-inf")
        self._no_space: OSError | None = None
        """Why what is in the log is not stored, while that is so."""
        self._flush_failure: DiskFullError | None = None

    @property
    def rows_written(self) -> int:
        return self._rows_written

    @property
    def store(self) -> KeyValueStore | None:
        """The open store, while there is one."""
        return None if self._tablet is None else self._tablet.kv

    @property
    def tablet(self) -> Tablet:
        self.check_open()
        if self._tablet is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name} is starting")
        return self._tablet

    # -- start ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring the store up to the log. Raises UnrecoverableBucketError."""
        if self.partition.is_replicated:
            self._starting = asyncio.get_running_loop().create_task(
                self._start_beside(), name=f"start {self.name}"
            )
            return
        await self._bring_up()
        self._look_for_snapshots()

    async def _start_beside(self) -> None:
        try:
            async with self._writing:
                await self._bring_up()
            if not self.closed:
                self._look_for_snapshots()
        except Exception as error:
            logger.error("%s cannot start", self.name, exc_info=error)
            self.partition.fail(f"it cannot start: {error}")
        finally:
            self._starting = None

    def _look_for_snapshots(self) -> None:
        if self.snapshots is not None:
            self._snapshotting = asyncio.get_running_loop().create_task(
                self._load_snapshots(self.snapshots), name=f"snapshots of {self.name}"
            )

    async def _started(self) -> Tablet:
        """The tablet; waits for it a little. Raises KafkaError(NOT_LEADER_OR_FOLLOWER)."""
        self.check_open()
        if self._starting is not None:
            await asyncio.wait([self._starting], timeout=_STARTING_SECONDS)
        return self.tablet

    async def _ready(self) -> Tablet:
        """The tablet, when everything is in it that any leader before may have shown. Waits for that a little. Raises
        KafkaError(NOT_LEADER_OR_FOLLOWER, OFFSET_NOT_AVAILABLE).
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
            await self.services.run(
                store.close
            )  # the log was opened anew, and is another one than was found before
            store = None
        if store is None:
            store = await self._opened_store(log)
        definition = self.definition
        tablet, versions, times = Tablet(store), definition.versions, RowTimes.of(definition)
        kept_rows, kept_offset, replayed = store.row_count, store.applied_offset, 0
        end_offset = log.log_end_offset  # nothing is appended before this is over
        while True:
            if self.closed:
                await self.services.run(store.close)
                return
            self._advanced.clear()
            up_to = min(end_offset, partition.replicated_offset)
            if store.applied_offset >= up_to == end_offset:
                break
            if store.applied_offset >= up_to:
                await self._advanced.wait()
                continue
            found = await partition.read_anywhere(
                store.applied_offset, self.services.limits.replay_bytes, up_to=up_to
            )
            if found.region is None:
                raise UnrecoverableBucketError(f"the log gives nothing at offset {store.applied_offset}")
            replayed += await self.services.run_on(
                found.region, partition, _replay, tablet, versions, found.region, times
            )
        self._tablet = tablet
        self._no_space = None
        self._candidate = max(self._candidate, end_offset)
        self.services.restless[self] = None
        self.partition.publish_high_watermark(end_offset)
        if end_offset:
            logger.info(
                "%s: kept %d rows up to offset %d, replayed %d rows up to offset %d in %.0f ms",
                self.name, kept_rows, kept_offset, replayed, end_offset,
                (clock.monotonic() - began) * 1000,
            )  # fmt: skip

    async def _opened_store(self, log: PartitionLog) -> KeyValueStore:
        """Raises UnrecoverableBucketError, where there are other replicas NoCopyError."""
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

    # -- damage --------------------------------------------------------------------------------------------

    def _damaged(self, error: BaseException) -> KafkaError:
        """The store's files are not what was written: build it again. Who asked may ask again later."""
        if self._rebuilding is None and not self.closed:
            logger.error("%s: its key-value store is damaged", self.name, exc_info=error)
            self._rebuilding = asyncio.get_running_loop().create_task(
                self._rebuild(), name=f"rebuild {self.name}"
            )
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
        finally:
            self._rebuilding = None

    async def _quiesce(self) -> Tablet | None:
        """Let what is under way end, and take the tablet away. Called with `_writing` held, or when it is closed."""
        if self.snapshots is not None:
            self.snapshots.stop()
        under_way = (self._storing, self._flushing, self._snapshotting, self._checkpointing)
        tasks = [task for task in under_way if task is not None]
        if tasks:
            await asyncio.wait(tasks)
        tablet, self._tablet = self._tablet, None
        if tablet is not None:
            self.services.budget.release(tablet.pending_bytes)
            await self.services.release_scans(self)
        return tablet

    # -- writing -------------------------------------------------------------------------------------------

    async def put(
        self,
        batch: memoryview,
        targets: tuple[int, ...] | None,
        acks: int,
        timeout_ms: int,
        *,
        overwrite: bool = False,
        update: bool = False,
    ) -> AppendInfo:
        """A batch of a table client; `targets` are column ids of the writer's schema.

        Raises KafkaError or TableError.
        """
        writer = Writer.of(write_header(batch))
        return await self.write_rows(
            lambda now: decode_put(batch, now, targets, overwrite=overwrite, update=update),
            writer,
            opened_size_of(batch),
            acks,
            timeout_ms,
        )

    async def insert_absent(self, keys: memoryview, schema: Schema, keys_max: int, timeout_ms: int) -> None:
        """R15: rows for the keys that are not there, as R6.6 writes them. Returns when they are stored.

        `schema`: the one that the keys are of. Two callers may both miss a key; the second one's write then finds it
        there and changes nothing.
        """
        missing = await self.read(absent_keys, schema, keys, keys_max)
        if missing.num_rows:
            await self.write_rows(
                lambda now: key_insertions(now, missing), Writer(), missing.nbytes, -1, timeout_ms
            )

    def check_write(self, write: ClientWrite) -> None:
        if write.update:
            check_overwritable(self.definition)
        write.operations(self.definition)

    async def write_staged(
        self, write: ClientWrite, writer: Writer, acks: int, timeout_ms: int
    ) -> AppendInfo:
        return await self.write_rows(write.operations, writer, opened_size_of(write.batch), acks, timeout_ms)

    async def write_rows(
        self, source: OperationSource, writer: Writer, size: int, acks: int, timeout_ms: int
    ) -> AppendInfo:
        budget = self.services.budget
        budget.reserve(size)
        charged = True
        try:
            await self._started()
            async with self._writing:
                self.tablet  # noqa: B018 - raises while there is none
                info = self.repeated(writer)
                if info is None:
                    prepared = await self.prepare_rows(source, writer)
                    self.check_open()
                    info = self.log_prepared(prepared, size)
                    charged = False
        finally:
            if charged:
                budget.release(size)
        return await self.wait_published(info, acks, timeout_ms)

    def check_publishing(self) -> None:
        if self._no_space is not None:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{self.name}: logged, and not stored yet: {disk_errors.why(self._no_space)}",
            )

    @property
    def writing(self) -> AbstractAsyncContextManager[object]:
        return self._held()

    @asynccontextmanager
    async def _held(self) -> AsyncIterator[None]:
        await self._started()
        async with self._writing:
            yield

    async def prepare_rows(self, source: OperationSource, writer: Writer) -> PreparedWrite:
        if self._no_space is not None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.name} takes no rows: {disk_errors.why(self._no_space)}",
            )
        return await self._prepare(self.tablet, source, writer)

    def log_prepared(self, prepared: PreparedWrite, size: int) -> AppendInfo:
        tablet = self.tablet
        info = self.partition.append(prepared.batch, AppendOrigin.EXTENSION)
        if info.duplicate:
            self.services.budget.release(size)
        else:
            self._rows_written += len(prepared.keys)
            tablet.logged(prepared, info.last_offset + 1, size)  # the charge is released when it is stored
        return info

    async def expire_rows(self) -> int:
        """Delete the rows that have outlived `table.kv.ttl`, as ordinary changes of the changelog; how many.

        A batch at a time, so that writes come between. Raises KafkaError, or TableError (BUFFER_EXHAUSTED: what is left
        is deleted by the next call).
        """
        deleted, has_more = 0, True
        while has_more and not self.closed and self._tablet is not None:
            info = None
            async with self._writing:
                definition, tablet = self.definition, self.tablet
                ttl_ms, now_ms = definition.settings.kv_ttl_ms, self.services.context.clock.time_ms()
                if ttl_ms is None:
                    break
                limit = self.services.limits.rows_expired_together
                prepared, has_more = await self.services.run(
                    tablet.prepare_expiry, definition, now_ms - ttl_ms, limit, now_ms
                )
                if prepared is not None:
                    self.check_open()
                    size = len(prepared.batch)
                    self.services.budget.reserve(size)
                    try:
                        info = self.partition.append(prepared.batch, AppendOrigin.EXTENSION)
                    except BaseException:
                        self.services.budget.release(size)
                        raise
                    tablet.logged(prepared, info.last_offset + 1, size)
                    deleted -= prepared.row_delta
            if info is not None:
                await self.wait_published(info, -1, _PUBLISH_TIMEOUT_MS)
        return deleted

    async def _prepare(self, tablet: Tablet, source: OperationSource, writer: Writer) -> PreparedWrite:
        while True:
            now_ms = self.services.context.clock.time_ms()
            try:
                return await self.services.run(tablet.prepare, self.definition, source, writer, now_ms)
            except OutOfNumbersError as error:
                await self._take_numbers(tablet, error.missing)
            except Exception as error:
                self.check_open()
                if is_damage(error):
                    raise self._damaged(error) from error
                raise

    async def _take_numbers(self, tablet: Tablet, missing: int) -> None:
        """R10: a range for this bucket, durable before the first number of it is used."""
        definition = self.definition
        settings = definition.settings
        assert settings.auto_increment_column is not None
        column = definition.schema.column(settings.auto_increment_column)
        highest = (1 << (INTEGER_BITS[column.type.kind] - 1)) - 1
        tablet.numbers.add(
            *await self.services.auto_increment.take(
                self._numbered_id, max(missing, settings.auto_increment_cache), highest
            )
        )

    # -- storing and publishing ----------------------------------------------------------------------------

    def high_watermark_candidate(self, offset: int) -> None:
        self._candidate = max(self._candidate, offset)
        self._advanced.set()
        if self._storing is None and self._tablet is not None:
            self._storing = asyncio.get_running_loop().create_task(self._store(), name=f"store {self.name}")

    async def _store(self) -> None:
        """Store what is replicated, then publish it, until there is no more."""
        try:
            while self._tablet is not None and self.partition.high_watermark < self._candidate:
                tablet, target = self._tablet, self._candidate
                count = tablet.covered(target)
                if not count:
                    break
                end_offset = tablet.end_of(count)
                try:
                    if not tablet.kv.is_made:
                        await self.services.open_store(tablet.kv.make)
                    await self.services.run(tablet.store, count)
                except StalledStoreError:
                    if self.closed:
                        break
                    if self._flush_failure is not None:
                        self._has_no_space(self._flush_failure)
                    continue
                except (DiskFullError, OSError) as error:
                    if self.closed:
                        break  # the log has these rows; they are replayed
                    self._has_no_space(error)
                    await asyncio.sleep(_DISK_FULL_RETRY_SECONDS)
                    continue
                if self._no_space is not None:
                    logger.info("%s takes rows again", self.name)
                    self._no_space = None
                self.services.restless[self] = None
                self.services.budget.release(tablet.stored(count))
                self.partition.publish_high_watermark(end_offset)
                if tablet.kv.bytes_since_flush >= self.services.limits.flush_bytes:
                    self._start_flush()
        except Exception as error:
            if is_damage(error):
                self._damaged(error)
                return
            logger.error("%s cannot store rows", self.name, exc_info=error)
            self.partition.fail(f"its rows cannot be stored: {error}")
        finally:
            self._storing = None

    def _has_no_space(self, error: OSError) -> None:
        """Tell those who wait, and refuse what comes, until something is stored again."""
        disk_errors.tell(logger, f"{self.name} takes no rows, they cannot be stored yet", error)
        self._no_space = error
        self.partition.wake()

    def tend(self) -> bool:
        """Called now and then: what was written long ago goes into files, so that replays stay short; and a snapshot
        is taken when its time has come. Whether there is something to look after before the next write.
        """
        tablet, now = self._tablet, self.services.context.clock.monotonic()
        if tablet is None or self.closed:
            return not self.closed
        if tablet.kv.bytes_since_flush and now - self._last_flush >= self.services.limits.flush_seconds:
            self._start_flush()
        is_unflushed = bool(tablet.kv.bytes_since_flush) or self._flushing is not None
        snapshots, schedule = self.snapshots, self._schedule
        if snapshots is None:
            return is_unflushed
        if schedule is None or self._snapshotting is not None:
            return True
        if schedule.due(now, tablet.kv.applied_offset, snapshots.newest_offset):
            self._snapshotting = asyncio.get_running_loop().create_task(
                self._take_snapshot(tablet, snapshots, schedule), name=f"snapshot of {self.name}"
            )
        return is_unflushed or tablet.kv.applied_offset > snapshots.newest_offset

    def _start_flush(self) -> None:
        if self._flushing is None:
            self._last_flush = self.services.context.clock.monotonic()
            self._flushing = asyncio.get_running_loop().create_task(self._flush(), name=f"flush {self.name}")

    async def _flush(self) -> None:
        try:
            if self._tablet is not None:
                await self.services.run(self._tablet.kv.flush)
            self._flush_failure = None
        except DiskFullError as error:
            self._flush_failure = error
            # Reads go on; what is in memory is in the log too, and the next flush takes it along.
            disk_errors.tell(logger, f"{self.name} cannot be flushed", error)
        except Exception as error:
            if is_damage(error):
                self._damaged(error)
            elif not self.closed:
                logger.error("%s cannot be flushed", self.name, exc_info=error)
                self.partition.fail(f"its key-value store cannot be flushed: {error}")
        finally:
            self._flushing = None

    # -- snapshots -----------------------------------------------------------------------------------------

    async def _load_snapshots(self, snapshots: BucketSnapshots) -> None:
        """Learn what snapshots there are; until then nothing of the log is deleted, and none is taken."""
        clock, limits = self.services.context.clock, self.services.limits
        interval = self.services.snapshot_config.interval_seconds
        try:
            while not self.closed:
                try:
                    known = await self.services.background(snapshots.load)
                except Exception as error:  # noqa: BLE001 - of a store or a network: told, and tried again
                    logger.warning("%s: its snapshots in %s cannot be read: %s", self.name, snapshots, error)
                    await asyncio.sleep(min(limits.snapshot_retry_seconds, interval))
                    continue
                age = max(0.0, (clock.time_ms() - known[0].created_at_ms) / 1000) if known else 0.0
                retry = limits.snapshot_retry_seconds
                self._schedule = SnapshotSchedule(interval, retry, clock.monotonic(), age)
                return
        finally:
            self._snapshotting = None

    async def _take_snapshot(
        self, tablet: Tablet, snapshots: BucketSnapshots, schedule: SnapshotSchedule
    ) -> None:
        """Whatever fails here, writes and reads go on, and the log is kept for longer."""
        clock, succeeded = self.services.context.clock, False
        began = clock.monotonic()
        try:
            taken = await self.services.background(
                snapshots.take, tablet.kv, self.services.memory, self.definition, clock.time_ms()
            )
            succeeded = True
            if self.partition.remote is not None and not self.closed:
                self.partition.log.roll()  # remote storage gets what the snapshot goes on from
            await self.services.background(snapshots.clean)
            logger.info(
                "%s: snapshot %d at offset %d: %d rows, %d files of %d bytes, %d of them uploaded in %.0f ms",
                self.name, taken.id, taken.offset, taken.row_count, len(taken.files), taken.size_bytes,
                snapshots.uploaded_bytes, (clock.monotonic() - began) * 1000,
            )  # fmt: skip
        except SnapshotStoppedError:
            pass
        except Exception as error:  # noqa: BLE001 - of a store or a network: told, and tried again
            if is_damage(error):
                self._damaged(error)
            else:
                what = "cleaning up after a snapshot" if succeeded else "a snapshot"
                logger.warning("%s: %s to %s failed: %s", self.name, what, snapshots, error)
        finally:
            schedule.attempted(clock.monotonic(), succeeded=succeeded)
            self._snapshotting = None

    async def checkpoint(self, path: Path) -> None:
        """Make `path`, which is not there, the store as it is at some offset of the log; nothing for one that is empty.

        One that is being closed or built again is left out: it can be built from the log. Raises OSError and RocksDB's
        errors.
        """
        tablet = self._tablet
        if tablet is None or not tablet.kv.is_made or self._checkpointing is not None:
            return
        services = self.services
        self._checkpointing = asyncio.get_running_loop().create_task(
            services.background(checkpoint, services.store_disk, tablet.kv, services.memory, path),
            name=f"checkpoint of {self.name}",
        )
        try:
            await self._checkpointing
        finally:
            self._checkpointing = None

    # -- reading -------------------------------------------------------------------------------------------

    async def read(
        self,
        work: Callable[..., Result],
        *arguments: Any,
        quick: Callable[..., Result | None] | None = None,
    ) -> Result:
        """Call blocking `work(store, ...)`. What it has seen is published when this returns (R12.1).

        `quick` is asked first, in the event loop; it must not block, and gives None for what it cannot answer.
        """
        tablet = await self._ready()
        store = tablet.kv
        try:
            result = None if quick is None else quick(store, *arguments)
            if result is None:
                result = await self.services.run(work, store, *arguments)
        except Exception as error:
            if is_damage(error):
                raise self._damaged(error) from error
            if tablet is not self._tablet:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name} is being closed") from error
            raise
        seen = store.visible_offset
        if seen > self.partition.high_watermark and not await self.partition.wait_for_high_watermark(
            seen, _PUBLISH_TIMEOUT_MS
        ):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{self.name}: what was read is not published yet")
        self.check_open()  # if somebody else leads by now, they may have shown more
        return result

    def read_at_once(self, quick: Callable[..., Result | None], *arguments: Any) -> Result | None:
        """What `quick(store, ...)` gives, which must not block; None too if it may have seen what is not published."""
        if not self.partition.is_end_known:
            return None
        store = self.tablet.kv
        result = quick(store, *arguments)
        return None if store.visible_offset > self.partition.high_watermark else result

    def retention_floor(self) -> int | None:
        """The log is kept from where the store's files end: it is the store's write-ahead log. And from the oldest
        snapshot on, so that each can be continued."""
        if self._tablet is None:
            return 0
        floor = self._tablet.kv.durable_offset
        if self.snapshots is not None:
            floor = min(floor, self.snapshots.floor)
        tiered = super().retention_floor()
        return floor if tiered is None else min(floor, tiered)

    def local_floor(self) -> int | None:
        """A start does not wait for remote storage: what the store would replay is local."""
        return 0 if self._tablet is None else self._tablet.kv.durable_offset

    # -- end -----------------------------------------------------------------------------------------------

    async def truncated(self, end_offset: int) -> None:
        """Only what is replicated gets into the store, so a store that is ahead of its log is a fault."""
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
            except Exception as error:  # noqa: BLE001 - of a store or a network: told
                logger.warning(
                    "%s: its snapshots in %s are left behind: %s", self.name, self.snapshots, error
                )
        await self.services.run(_remove_if_empty, self.services.store_disk, self.directory.parent)
        definition = self.definition
        if definition.settings.auto_increment_column is not None and definition.path.partition is None:
            await self.services.auto_increment.forget(self._numbered_id)

    @property
    def _numbered_id(self) -> UUID:
        """Whose counter an auto-increment column goes by: the whole table's, also in a partition."""
        return table_of(self.partition.topic)

    async def _stop(self) -> Tablet | None:
        """Let what is under way end; nothing begins any more."""
        self.closed = True
        if self._snapshotting is not None and self._schedule is None:
            self._snapshotting.cancel()  # it waits for a place that cannot be reached
        self._advanced.set()
        beginning = [task for task in (self._starting, self._rebuilding) if task is not None]
        if beginning:
            await asyncio.wait(beginning)
        if self._standby is not None:  # nobody has started this
            standby, self._standby = self._standby, None
            await standby.close()
        held = False
        try:
            async with asyncio.timeout(_CLOSING_SECONDS):
                held = await self._writing.acquire()
        except TimeoutError:
            pass  # it is held for another broker, or waits for one
        try:
            return await self._quiesce()
        finally:
            if held:
                self._writing.release()


def _replay(tablet: Tablet, versions: SchemaVersions, region: Any, times: RowTimes | None) -> int:
    return tablet.replay(versions, region.read(), times=times)


def _remove_if_empty(disk: Disk, directory: Path) -> None:
    """The table's folder goes with its last bucket, and what was set aside or made beside it."""
    if disk.is_directory(directory) and all("." in child for child in disk.directories(directory)):
        disk.remove_tree(directory)
