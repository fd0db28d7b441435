"""The key-value store of a bucket that another broker leads, kept up to date so that this broker can lead at once.

Invariants
- It has the changelog's rows below an offset that is below the leader's high watermark. Every later leader's log has
  them too, so no row has to be removed. If an unclean election cuts the log below that offset, the store is moved away
  first, so that a crash cannot bring the two together again.
- The log keeps everything that is not in the store's files (`floor`): after a crash only the files are left.
- If the log begins after the store's end (this replica is new, or was away for long), fetching waits until the store
  has been copied from another broker (`may_fetch`). So every replica in sync can lead.
- A read returns its staleness: rows acknowledged longer ago are in it (`broker.replication.safe_time`). The offset is
  the one applied before the read began; the time is that of the read's end. A read fails, and the reader must ask the
  leader, if the store is staler than the reader allows or its staleness is unknown. It also fails if the log was cut,
  or while this broker is fenced and may not know the leader.
- Two replicas are at different times: a reader that changes the replica may see older rows than before.

One task applies changes; blocking work goes to the executor. The leader expires rows, takes snapshots and numbers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from headrace.broker.runtime import disk_errors
from headrace.broker.runtime.disk_errors import is_passing
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.rows.versions import SchemaVersions
from headrace.tablelayer.server.store.copies import NoCopyError, copy_store
from headrace.tablelayer.server.store.errors import is_damage, is_halted
from headrace.tablelayer.server.store.kv import KeyValueStore, checkpoint
from headrace.tablelayer.server.store.recovery import StoreRecovery, UnrecoverableBucketError, set_aside
from headrace.tablelayer.server.store.row_ttl import RowTimes
from headrace.tablelayer.server.store.shared_memory import FILES_MERGED as MERGED_BY_LEADER
from headrace.tablelayer.server.store.tablet import Tablet

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.log.partition_log import PartitionLog
    from headrace.broker.replication.following import Follower
    from headrace.tablelayer.model.table.definition import StoredTable
    from headrace.tablelayer.server.services import KeptStore, Services

logger = logging.getLogger("headrace.tables")

Result = TypeVar("Result")

FILES_MERGED: Final = 12
"""Number of flushed files from which a standby merges them: few read it, and a merge writes all rows again."""
TOGETHER_SECONDS: Final = 0.02
"""Time in which high-watermark advances are collected and applied together."""
RETRY_SECONDS: Final = 1.0


class Staleness(NamedTuple):
    """A read's staleness: it includes all rows acknowledged more than `ms` ago, and the changelog below `offset`."""

    ms: int
    offset: int


class Standby:
    """`broker.partitions.hooks.ReplicaHooks` of a primary-key table (see the module)."""

    def __init__(self, services: Services, follower: Follower, before: KeptStore | None = None) -> None:
        """Create the standby. `before` holds this bucket's store, still unclaimed; it is closed first."""
        partition = follower.partition
        self._services = services
        self._follower = follower
        self._topic = partition.topic
        self._index = partition.index
        self.directory: Path = services.directory / str(partition.topic.topic_id) / str(partition.index)
        self._recovery = StoreRecovery(
            services, self.name, self.directory, None, partition.topic.partition_count
        )
        self._before = before
        self._log: PartitionLog | None = None
        self._found_end = 0
        self._store: KeyValueStore | None = None
        self._task: asyncio.Task[None] | None = None
        self._checkpointing: asyncio.Task[None] | None = None
        self._moved = asyncio.Event()
        self._cut_to: int | None = None
        self._cuts = 0
        self._flushed_at = services.context.clock.monotonic()
        self._damage: Exception | None = None
        self._ended = False
        self.applied_rows = 0
        """Number of changes applied since the start."""
        self.answered_lookups = 0
        self.keys_looked_up = 0
        """Number of lookups answered since the start; one request's keys or prefixes in the bucket count as one."""

    @property
    def name(self) -> str:
        return f"standby of {self._topic.name} bucket {self._index}"

    @property
    def store(self) -> KeyValueStore | None:
        """The store, while this standby holds it."""
        return self._store

    @property
    def lag_records(self) -> int:
        """Number of records that are replicated, as far as this broker knows, but not in the store."""
        store, log = self._store, self._log
        if log is None:
            return 0
        applied = _start_of(log) if store is None else store.applied_offset
        return max(self._follower.high_watermark - applied, 0)

    # -- calls of the broker -------------------------------------------------------------------------------

    def opened(self, log: PartitionLog) -> None:
        self._log, self._found_end = log, log.log_end_offset
        if self._task is None and not self._ended:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=self.name)

    def advanced(self) -> None:
        self._moved.set()

    def truncated(self, end_offset: int) -> None:
        self._found_end = min(self._found_end, end_offset)
        self._cut_to = end_offset if self._cut_to is None else min(self._cut_to, end_offset)
        store = self._store
        if store is not None and max(store.applied_offset, store.visible_offset) > end_offset:
            disk = self._services.store_disk
            if disk.is_directory(self.directory):  # the files are removed when the next store is opened
                self._cuts += 1
                disk.rename(
                    self.directory, self.directory.with_name(f"{self.directory.name}.cut{self._cuts}")
                )
        self._moved.set()

    @property
    def floor(self) -> int:
        return 0 if self._store is None else self._store.durable_offset

    @property
    def may_fetch(self) -> bool:
        log = self._log
        if log is None or _start_of(log) == 0:
            return True
        return self._store is not None and self._store.applied_offset >= _start_of(log)

    # -- applying ------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while not self._ended:
            self._moved.clear()
            try:
                await self._apply()
            except Exception as error:  # noqa: BLE001 - logged for this replica, and tried again
                await self._failed(error)
                await self._pause(TOGETHER_SECONDS if isinstance(error, TableError) else RETRY_SECONDS)
                continue
            if not self._ended and await self._waited():
                await self._pause(TOGETHER_SECONDS)

    async def _pause(self, seconds: float) -> None:
        if not self._ended:
            await asyncio.sleep(seconds)

    async def _waited(self) -> bool:
        """Wait for new records. Return False if rows must be flushed first."""
        store = self._store
        try:
            async with asyncio.timeout(
                self._services.limits.flush_seconds if store is not None and store.bytes_since_flush else None
            ):
                await self._moved.wait()
        except TimeoutError:
            return False
        return True

    async def _apply(self) -> None:
        log, services = self._log, self._services
        assert log is not None
        await self._check_cut()
        if self._damage is not None:
            damage, self._damage = self._damage, None
            raise damage
        if self._store is None:
            self._store = store = await self._opened_store(log)
            await self._services.run(store.merge_from, FILES_MERGED)
            await self._check_cut()
            self._follower.changed(self._follower)
        while (store := self._store) is not None and not self._ended and self._cut_to is None:
            up_to = min(self._follower.high_watermark, log.log_end_offset)
            if store.applied_offset < _start_of(log):
                await self._let_go(destroy=True)
                raise UnrecoverableBucketError(
                    f"the store ends at offset {store.applied_offset}, but the log begins at {_start_of(log)}"
                )
            if store.applied_offset >= up_to:
                await self._flush_if_due(store)
                return
            region = log.read(store.applied_offset, services.limits.replay_bytes, up_to=up_to).region
            if region is None:
                return
            definition = self.definition
            if definition is None:
                return  # the table is gone, and this standby will go too
            data = region.read
            self.applied_rows += await services.run(
                _replay, Tablet(store), definition.versions, data, RowTimes.of(definition)
            )
            await self._flush_if_due(store)

    # -- reading -------------------------------------------------------------------------------------------

    def versions(self) -> SchemaVersions:
        """Return the schemas, as `KeyBucket.versions`. Raises TableError if the table is gone."""
        return self._services.catalog.definition(self._follower.partition.topic).versions

    async def read(
        self,
        staleness_ms_max: int,
        work: Callable[..., Result],
        *arguments: Any,
        quick: Callable[..., Result | None] | None = None,
    ) -> tuple[Result, Staleness]:
        """Read like `KeyBucket.read`, at most `staleness_ms_max` stale. Raises KafkaError(NOT_LEADER_OR_FOLLOWER)."""
        store = self._readable()
        offset = store.applied_offset
        self._staleness(offset, staleness_ms_max)
        try:
            result = None if quick is None else quick(store, *arguments)
            if result is None:
                result = await self._services.run(work, store, *arguments)
        except Exception as error:
            if self._store is store and not is_damage(error):
                raise
            if self._store is store:
                self._damage = error
                self._moved.set()
            raise self._refusal("its store is being closed or rebuilt") from error
        if self._readable() is not store:
            raise self._refusal("its store was replaced during the read")
        staleness = self._staleness(offset, staleness_ms_max)
        self.answered_lookups += 1
        return result, staleness

    def read_at_once(
        self, staleness_ms_max: int, quick: Callable[..., Result | None], *arguments: Any
    ) -> tuple[Result, Staleness] | None:
        """Return `quick(store, ...)`, which must not block, and its staleness. Raises
        KafkaError(NOT_LEADER_OR_FOLLOWER).
        """
        store = self._readable()
        offset = store.applied_offset
        result = quick(store, *arguments)
        if result is None:
            return None
        staleness = self._staleness(offset, staleness_ms_max)
        self.answered_lookups += 1
        return result, staleness

    def _readable(self) -> KeyValueStore:
        store, follower = self._store, self._follower
        if self._ended or store is None or self._cut_to is not None or follower.ended:
            raise self._refusal("it has no store to read")
        if follower.failure is not None or self._services.context.metadata.is_fenced:
            raise self._refusal("this broker may not know its present state")
        return store

    def _staleness(self, offset: int, ms_max: int) -> Staleness:
        at = self._follower.safe_time.at(offset)
        if at is None:
            raise self._refusal("its staleness is unknown")
        ms = math.ceil((self._services.context.clock.monotonic() - at) * 1000)
        if ms > ms_max:
            raise self._refusal(f"it may be {ms} ms stale, but the reader allows {ms_max} ms")
        return Staleness(ms, offset)

    def _refusal(self, why: str) -> KafkaError:
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name}: {why}; ask the leader")

    @property
    def definition(self) -> StoredTable | None:
        """The table's definition, as this broker knows it now; None if the table is gone."""
        try:
            return self._services.catalog.definition(self._follower.partition.topic)
        except TableError:
            return None

    async def _flush_if_due(self, store: KeyValueStore) -> None:
        limits, now = self._services.limits, self._services.context.clock.monotonic()
        if store.bytes_since_flush >= limits.flush_bytes or (
            store.bytes_since_flush and now - self._flushed_at >= limits.flush_seconds
        ):
            await self._services.run(store.flush)
            self._flushed_at = self._services.context.clock.monotonic()
            self._follower.floor_moved()

    async def _failed(self, error: Exception) -> None:
        if self._ended:
            return
        if is_damage(error):
            logger.error("%s: its key-value store is damaged and will be rebuilt", self.name, exc_info=error)
            store, self._store = self._store, None
            self._follower.changed(self._follower)
            if store is not None:
                await self._services.run(store.abandon)
            await self._services.run(set_aside, self._services.store_disk, self.directory)
        elif is_halted(error):
            disk_errors.tell(
                logger, f"{self.name} cannot write its key-value store, and opens it again", error
            )
            store, self._store = self._store, None
            self._follower.changed(self._follower)
            if store is not None:
                await self._services.run(store.abandon)
        elif is_passing(error):
            disk_errors.tell(logger, f"{self.name} is not up to date", error)
        elif isinstance(error, TableError):
            logger.debug("%s: a batch arrived before the change of its table: %s", self.name, error)
        elif isinstance(error, (OSError, KafkaError, NoCopyError, UnrecoverableBucketError)):
            logger.warning("%s is not up to date: %s", self.name, error)
        else:
            logger.error("%s is not up to date", self.name, exc_info=error)

    # -- stores --------------------------------------------------------------------------------------------

    async def _opened_store(self, log: PartitionLog) -> KeyValueStore:
        before, self._before = self._before, None
        if before is not None:
            await before.close()
        try:
            start = _start_of(log)
            return await self._recovery.open(start, max(self._found_end, start))
        except UnrecoverableBucketError as error:
            logger.info("%s: %s; its store is copied from another broker", self.name, error)
        return await copy_store(
            self._services,
            self._topic,
            self._index,
            self.directory,
            [self._follower.leader],
            least_offset=_start_of(log),
            is_over=lambda: self._ended,
        )

    async def _check_cut(self) -> None:
        """Destroy the store if the log was cut below its end."""
        cut, self._cut_to = self._cut_to, None
        if cut is not None and self._store is not None and self._store.applied_offset > cut:
            logger.warning("%s has rows that an unclean election removed; it is rebuilt", self.name)
            await self._let_go(destroy=True)

    async def _let_go(self, *, destroy: bool) -> None:
        store, self._store = self._store, None
        if store is None:
            return
        self._follower.changed(self._follower)
        if destroy:
            await self._services.run(store.abandon)
            await self._services.run(self._services.store_disk.remove_tree, self.directory)
        else:
            await self._services.run(store.close)

    # -- the end -------------------------------------------------------------------------------------------

    async def release(self) -> KeyValueStore | None:
        """End, and return the store for the bucket that this broker leads from now on; None if there is none."""
        self._ended = True
        self._moved.set()
        under_way = [task for task in (self._task, self._checkpointing) if task is not None]
        if under_way:
            await asyncio.wait(under_way)
        await self._check_cut()
        standbys, key = self._services.standbys, (self._topic.topic_id, self._index)
        if standbys.get(key) is self:
            del standbys[key]
        store, self._store = self._store, None
        before, self._before = self._before, None
        if before is not None:
            await before.close()
        if store is not None:
            with contextlib.suppress(Exception):  # the next use of a store that fails finds the error
                await self._services.run(store.merge_from, MERGED_BY_LEADER)
        return store

    async def checkpoint(self, path: Path) -> None:
        """Copy the store to the new folder `path`; do nothing without an open store."""
        store = self._store
        if store is None or not store.is_made or self._ended or self._checkpointing is not None:
            return
        services = self._services
        self._checkpointing = asyncio.get_running_loop().create_task(
            services.background(checkpoint, services.store_disk, store, services.memory, path),
            name=f"checkpoint of {self.name}",
        )
        try:
            await self._checkpointing
        finally:
            self._checkpointing = None

    async def close(self) -> None:
        store = await self.release()
        if store is not None:
            await self._services.run(store.close)

    async def delete(self) -> None:
        store = await self.release()
        services = self._services
        if store is not None:
            await services.run(store.abandon)
        await remove_store(services, self._topic.topic_id, self._index)


def _start_of(log: PartitionLog) -> int:
    """Return the local log's start: records in remote storage only are not read here; the store is copied instead."""
    return log.local_start_offset


async def remove_store(services: Services, table_id: UUID, bucket: int, *, with_table: bool = False) -> None:
    """Remove the closed store of a bucket that this broker no longer has, and this broker's snapshots of it.

    With `with_table` also remove the snapshots of a bucket with one replica, which follow its leader.
    """
    await services.run(_remove, services.store_disk, services.directory / str(table_id) / str(bucket))
    for replicated in (True, False) if with_table else (True,):
        snapshots = services.snapshots_of(table_id, bucket, replicated=replicated)
        if snapshots is None:
            return
        try:
            await services.background(snapshots.forget)
        except Exception as error:  # noqa: BLE001 - of a store or a network: logged
            logger.warning("snapshots in %s cannot be removed: %s", snapshots, error)


def _replay(tablet: Tablet, versions: SchemaVersions, read: Any, times: RowTimes | None) -> int:
    return tablet.replay(versions, read(), times=times)


def _remove(disk: Any, directory: Path) -> None:
    disk.remove_tree(directory)
    parent = directory.parent
    if disk.is_directory(parent) and all("." in child for child in disk.directories(parent)):
        disk.remove_tree(parent)
