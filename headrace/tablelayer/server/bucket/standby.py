"""The key-value store of a bucket that another broker leads, kept warm: whoever leads next has it at once.

Invariants
- It has the changelog's rows below some offset, which is below the high watermark that the leader has told: what it has
  every later leader's log has, so nothing of it has to be taken back. Should an unclean election cut the log below it,
  the store is put out of the way before the log is cut, so that no crash can bring the two together again.
- Of the log nothing is deleted that is not in the store's files (`floor`): they are what a crash leaves.
- A log that begins behind the store (this replica is new, or was away for long) is not gone on with before the store
  has been copied from another broker (`may_fetch`): so every replica in sync can lead.

- A read says how stale it may be: all that was acknowledged longer ago is in it (`broker.replication.safe_time`). The
  offset that this is known of is the one that was applied before the read began, and the time is that of its end. What
  is older than the reader wants, or of which nothing is known, is not read: the leader is to be asked. Neither is a
  store whose log has been cut, or while this broker's fence is shut: nobody would tell it then what is granted to whom.
- Two replicas are at two times: a reader that goes from one to the other may see less than before.

Applying is one task; what blocks is done in the executor. Expiry of rows, snapshots and numbers are the leader's.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.tablelayer.model.errors import TableError
from headrace.tablelayer.model.rows.versions import SchemaVersions
from headrace.tablelayer.server.store.copies import NoCopyError, copy_store
from headrace.tablelayer.server.store.kv import KeyValueStore, checkpoint, is_damage
from headrace.tablelayer.server.store.recovery import StoreRecovery, UnrecoverableBucketError, set_aside
from headrace.tablelayer.server.store.row_ttl import RowTimes
from headrace.tablelayer.server.store.tablet import Tablet

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.log.partition_log import PartitionLog
    from headrace.broker.replication.following import Follower
    from headrace.tablelayer.model.table.definition import TableDefinition
    from headrace.tablelayer.server.services import KeptStore, Services

logger = logging.getLogger("headrace.tables")

Result = TypeVar("Result")

TOGETHER_SECONDS: Final = 0.02
"""What the leader tells within such a time is applied together."""
RETRY_SECONDS: Final = 1.0


class Staleness(NamedTuple):
    """Of what was read: all that was acknowledged more than `ms` before is in it, and the changelog below `offset`."""

    ms: int
    offset: int


class Standby:
    """`broker.partitions.hooks.ReplicaHooks` of a primary-key table. See the module's contract."""

    def __init__(self, services: Services, follower: Follower, before: KeptStore | None = None) -> None:
        """`before`: of the same bucket, whose store nobody has taken; it is closed first."""
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
        """Changes that were applied since it began."""
        self.answered_lookups = 0
        """Since it began, of keys in one bucket or of prefixes, each asked for by one request."""

    @property
    def name(self) -> str:
        return f"standby of {self._topic.name} bucket {self._index}"

    @property
    def store(self) -> KeyValueStore | None:
        """While it is kept here."""
        return self._store

    @property
    def lag_records(self) -> int:
        """What is replicated, as far as it is known here, and not in the store."""
        store, log = self._store, self._log
        if log is None:
            return 0
        applied = _start_of(log) if store is None else store.applied_offset
        return max(self._follower.high_watermark - applied, 0)

    # -- what the broker tells -----------------------------------------------------------------------------

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
            if disk.is_directory(self.directory):  # its files go when the next store is opened
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
            except Exception as error:  # noqa: BLE001 - of one replica: told, and tried again
                await self._failed(error)
                await self._pause(TOGETHER_SECONDS if isinstance(error, TableError) else RETRY_SECONDS)
                continue
            if not self._ended and await self._waited():
                await self._pause(TOGETHER_SECONDS)

    async def _pause(self, seconds: float) -> None:
        if not self._ended:
            await asyncio.sleep(seconds)

    async def _waited(self) -> bool:
        """Wait for more, or until what was written long ago has to go into files. False for the latter."""
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
            self._store = await self._opened_store(log)
            await self._check_cut()
            self._follower.changed(self._follower)
        while (store := self._store) is not None and not self._ended and self._cut_to is None:
            up_to = min(self._follower.high_watermark, log.log_end_offset)
            if store.applied_offset < _start_of(log):
                await self._let_go(destroy=True)
                raise UnrecoverableBucketError(
                    f"it ends at offset {store.applied_offset}, and the log begins at {_start_of(log)}"
                )
            if store.applied_offset >= up_to:
                await self._flush_if_due(store)
                return
            region = log.read(store.applied_offset, services.limits.replay_bytes, up_to=up_to).region
            if region is None:
                return
            definition = self.definition
            if definition is None:
                return  # the table is gone, and this is about to go
            data = region.read
            self.applied_rows += await services.run(
                _replay, Tablet(store), definition.versions, data, RowTimes.of(definition)
            )
            await self._flush_if_due(store)

    # -- reading -------------------------------------------------------------------------------------------

    def versions(self) -> SchemaVersions:
        """As `KeyBucket.versions`. Raises TableError if the table is gone."""
        return self._services.catalog.definition(self._follower.partition.topic).versions

    async def read(
        self,
        staleness_ms_max: int,
        work: Callable[..., Result],
        *arguments: Any,
        quick: Callable[..., Result | None] | None = None,
    ) -> tuple[Result, Staleness]:
        """As `KeyBucket.read`, of a state that is at most so stale. Raises KafkaError(NOT_LEADER_OR_FOLLOWER)."""
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
            raise self._refusal("its store is being closed or built again") from error
        if self._readable() is not store:
            raise self._refusal("its store is another one by now")
        staleness = self._staleness(offset, staleness_ms_max)
        self.answered_lookups += 1
        return result, staleness

    def read_at_once(
        self, staleness_ms_max: int, quick: Callable[..., Result | None], *arguments: Any
    ) -> tuple[Result, Staleness] | None:
        """What `quick(store, ...)` gives, which must not block. Raises KafkaError(NOT_LEADER_OR_FOLLOWER)."""
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
            raise self._refusal("this broker may not know what has become of it")
        return store

    def _staleness(self, offset: int, ms_max: int) -> Staleness:
        at = self._follower.safe_time.at(offset)
        if at is None:
            raise self._refusal("it is not known how stale it is")
        ms = math.ceil((self._services.context.clock.monotonic() - at) * 1000)
        if ms > ms_max:
            raise self._refusal(f"it may be {ms} ms stale, and at most {ms_max} are asked for")
        return Staleness(ms, offset)

    def _refusal(self, why: str) -> KafkaError:
        return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.name}: {why}; ask the leader")

    @property
    def definition(self) -> TableDefinition | None:
        """As it is known here now; None if the table is gone."""
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
            logger.error("%s: its key-value store is damaged; it is built again", self.name, exc_info=error)
            store, self._store = self._store, None
            self._follower.changed(self._follower)
            if store is not None:
                await self._services.run(store.abandon)
            await self._services.run(set_aside, self._services.store_disk, self.directory)
        elif isinstance(error, TableError):
            logger.debug("%s: a batch is here before the change of its table: %s", self.name, error)
        elif isinstance(error, (OSError, KafkaError, NoCopyError, UnrecoverableBucketError)):
            logger.warning("%s does not keep up: %s", self.name, error)
        else:
            logger.error("%s does not keep up", self.name, exc_info=error)

    # -- stores --------------------------------------------------------------------------------------------

    async def _opened_store(self, log: PartitionLog) -> KeyValueStore:
        before, self._before = self._before, None
        if before is not None:
            await before.close()
        try:
            start = _start_of(log)
            return await self._recovery.open(start, max(self._found_end, start))
        except UnrecoverableBucketError as error:
            logger.info("%s: %s; it is copied from another broker", self.name, error)
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
        """Give the store up if the log was cut below what it has."""
        cut, self._cut_to = self._cut_to, None
        if cut is not None and self._store is not None and self._store.applied_offset > cut:
            logger.warning("%s has rows that an unclean election has taken back: it is built anew", self.name)
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
        """The store, for the bucket that this broker leads from now on; None if there is none to go on with."""
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
        return store

    async def checkpoint(self, path: Path) -> None:
        """Make `path`, which is not there, the store as it is; nothing while there is none, or no more."""
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
    """What is in remote storage alone is not read here: the store is copied."""
    return log.local_start_offset


async def remove_store(services: Services, table_id: UUID, bucket: int, *, with_table: bool = False) -> None:
    """Of a bucket that this broker holds no longer, and whose store is closed: the store, and this broker's snapshots
    of it. `with_table`: also those that whoever leads a bucket of one replica has.
    """
    await services.run(_remove, services.store_disk, services.directory / str(table_id) / str(bucket))
    for replicated in (True, False) if with_table else (True,):
        snapshots = services.snapshots_of(table_id, bucket, replicated=replicated)
        if snapshots is None:
            return
        try:
            await services.background(snapshots.forget)
        except Exception as error:  # noqa: BLE001 - of a store or a network: told
            logger.warning("snapshots in %s are left behind: %s", snapshots, error)


def _replay(tablet: Tablet, versions: SchemaVersions, read: Any, times: RowTimes | None) -> int:
    return tablet.replay(versions, read(), times=times)


def _remove(disk: Any, directory: Path) -> None:
    disk.remove_tree(directory)
    parent = directory.parent
    if disk.is_directory(parent) and all("." in child for child in disk.directories(parent)):
        disk.remove_tree(parent)
