"""A partition of this broker: its log, its high watermark, and the waiters for its changes.

Invariants
- `high_watermark` never goes back, is never above the log's end, and is the limit of every reader.
- Without hooks the high watermark follows each append at once: there is one replica, so appended records are
  replicated. With hooks it moves only when they publish it. In both cases an append counts only when it is as durable
  as the topic demands. With `durability=power` that is after an fsync in a thread. There is one fsync at a time, for
  everything that was appended before it began. So records that were acknowledged or read are on disk, also the
  broker's own records and the markers of transactions. A topic that becomes `power` is synced once, so that records
  it had acknowledged before are safe from then on.
- The log is opened on first use: a broker with thousands of idle partitions starts and creates topics quickly. If a log
  cannot be opened, or its disk fails, the partition answers KAFKA_STORAGE_ERROR; other partitions go on.
- Nothing is appended while the broker's fence is shut, because another broker may be about to take its place. Nothing
  is appended while the partition is held, because it is about to be deleted with its present contents.
- A partition with several replicas that is led here is a `ReplicatedPartition` (`broker.replication.leading`). A
  partition that is not led here is a closed one, whether or not this broker has a replica of it
  (`broker.replication.following`).
- Waiters are called whenever a change that a reader may wait for has happened: the high watermark moved, the log start
  moved, the partition failed or was closed. They are called on the event loop, must not block, and find out the change
  themselves.

Everything here runs on the event loop. The log has everything that survives a crash; the high watermark after a restart
is the log's recovered end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, ClassVar, Final

from headrace.broker.log.errors import CorruptLogError, InRemoteStorage
from headrace.broker.log.validation import AppendOrigin
from headrace.broker.partitions.log_closing import close_log, delete_with, note_failed_close
from headrace.broker.partitions.traffic import Traffic
from headrace.broker.runtime import disk_errors
from headrace.broker.runtime.disk_errors import is_passing
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.check import Effort
from headrace.protocol.records.header import RECORD_COUNT, RECORD_COUNT_POSITION

if TYPE_CHECKING:
    from headrace.broker.log.config import LogConfig
    from headrace.broker.log.partition_log import AppendInfo, PartitionLog
    from headrace.broker.log.slice import LogSlice
    from headrace.broker.log.transaction_index import AbortedTransaction
    from headrace.broker.partitions.fence import Fence
    from headrace.broker.partitions.hooks import PartitionHooks
    from headrace.broker.partitions.remote_log import RemoteLog
    from headrace.broker.partitions.topic import TopicImage

logger = logging.getLogger("headrace.partition")


_COMMIT_AGAIN_SECONDS: Final = 0.5
"""Pause after an fsync that could not begin, because no more files can be open."""


class PartitionChanges:
    """Changes in any partition of a broker, for a caller that waits for many: one registration instead of hundreds.

    `count` rises with each change that a waiter would be told; `watchers` are called like waiters, with the partition.
    `unflushed` is called, in any thread, when records of a partition begin to wait for a flush, and when the time that
    they may wait has changed.
    """

    __slots__ = ("count", "unflushed", "watchers")

    def __init__(self) -> None:
        self.count = 0
        self.watchers: dict[Callable[[Partition], None], None] = {}
        self.unflushed: Callable[[Partition], object] = lambda _: None


class Partition:
    """One partition; see the module. `open_log` returns its log on first use."""

    in_sync_count: ClassVar[int] = 1
    """Number of replicas that have everything that is published."""
    replica_count: ClassVar[int] = 1
    is_end_known: ClassVar[bool] = True
    """Whether the high watermark is at least what any earlier leader may have shown."""

    is_replicated: ClassVar[bool] = False
    """Whether appended records wait for other brokers."""

    is_fenced: ClassVar[bool] = False
    """Whether another broker may lead the partition by now, so that even its present contents must not be served."""

    __slots__ = (
        "_committing",
        "_ending",
        "_executor",
        "_fence",
        "_flushing",
        "_held",
        "_is_telling",
        "_is_unflushed",
        "_log",
        "_open_log",
        "_opening",
        "_promises",
        "_waiters",
        "changes",
        "closed",
        "failure",
        "high_watermark",
        "hooks",
        "index",
        "leader_epoch",
        "remote",
        "topic",
        "traffic",
    )

    def __init__(
        self,
        topic: TopicImage,
        index: int,
        open_log: Callable[[Partition], PartitionLog],
        *,
        leader_epoch: int = 0,
        executor: Executor | None = None,
        changes: PartitionChanges | None = None,
        fence: Fence | None = None,
    ) -> None:
        """`changes` are those of the broker. `executor` runs the fsyncs that appends wait for; without one they run in
        `append`. Nothing is appended while `fence` is shut.
        """
        self.topic = topic
        self.index = index
        self.hooks: PartitionHooks | None = None
        self.remote: RemoteLog | None = None
        """The part of the log in remote storage, if anything is or will be there; known once the log is open."""
        self.leader_epoch = leader_epoch
        self.high_watermark = 0
        self.failure: str | None = None
        self.closed = False
        self._log: PartitionLog | None = None
        self._open_log = open_log
        self._opening: asyncio.Future[PartitionLog] | None = None
        self._waiters: dict[Callable[[], None], None] = {}  # in the order of registration
        self._executor = executor
        self._fence = fence
        self.changes = PartitionChanges() if changes is None else changes
        self.traffic = Traffic()
        self._held: asyncio.TimerHandle | None = None
        self._flushing: asyncio.Future[None] | None = None
        self._committing: asyncio.Future[None] | None = None
        # An empty deque takes 760 bytes, and a broker has thousands of partitions.
        self._promises: deque[tuple[int, Callable[[KafkaError | None], None]]] | tuple[()] = ()
        self._is_telling = False
        self._is_unflushed = False
        self._ending: deque[tuple[int, int]] | tuple[()] = ()

    def __repr__(self) -> str:
        return f"<Partition {self.topic.name}-{self.index} high watermark {self.high_watermark}>"

    @property
    def needed_in_sync(self) -> int:
        """The number of replicas that acks=all needs: `min.insync.replicas`, but at most the number of replicas."""
        return min(self.log.config.min_insync_replicas, self.replica_count)

    @property
    def name(self) -> str:
        return f"{self.topic.name}-{self.index}"

    @property
    def place(self) -> tuple[str, int]:
        return self.topic.name, self.index

    @property
    def log(self) -> PartitionLog:
        """The open log. Raises KafkaError: KAFKA_STORAGE_ERROR if it failed, NOT_LEADER_OR_FOLLOWER if it is closed."""
        if self._log is not None and self.failure is None:
            return self._log
        return self._open()

    @property
    def is_open(self) -> bool:
        return self._log is not None and self.failure is None

    def _open(self) -> PartitionLog:
        """Open the log here and now. Raises KafkaError, also while `open` opens it in a thread."""
        if (gone := self._why_gone()) is not None:
            raise gone
        if self._opening is not None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"partition {self.name} is being opened; try again"
            )
        try:
            log = self._open_log(self)
        except Exception as error:
            raise self._not_opened(error) from error
        self._lead_with(log)
        return log

    async def open(self, executor: Executor) -> None:
        """Open the log in a thread, unless it is open. Requests are refused until then. Raises KafkaError."""
        if self.is_open:
            return
        if (gone := self._why_gone()) is not None:
            raise gone
        opening = asyncio.get_running_loop().run_in_executor(executor, self._open_log, self)
        self._opening = opening
        await asyncio.wait([opening])
        self.check_served()  # `_close_log` closes the log of a closed partition
        self._opening = None
        if (error := opening.exception()) is not None:
            raise self._not_opened(error) from error
        self._lead_with(opening.result())

    def _not_opened(self, error: BaseException) -> KafkaError:
        """Return the error of a log that cannot be opened. The partition fails, unless the next attempt may succeed."""
        if is_passing(error):
            disk_errors.tell(logger, f"partition {self.name} cannot be opened", error)
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"partition {self.name} cannot be opened: {disk_errors.why(error)}; try again",
            )
        if not isinstance(error, CorruptLogError):
            logger.error("partition %s cannot be opened", self.name, exc_info=error)
        self.fail(f"its log cannot be opened: {error}")
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"partition {self.name} is offline: {self.failure}")

    def _lead_with(self, log: PartitionLog) -> None:
        """Begin to serve from an open log."""
        log.assign_epoch(self.leader_epoch)
        self._log = log
        self._opened(log)
        if log.recovery_point < log.log_end_offset:
            self._unflushed()

    def _opened(self, log: PartitionLog) -> None:
        """Set the published offsets from a log that was just opened."""
        if self.hooks is None:
            self.high_watermark = log.log_end_offset

    @property
    def replicated_offset(self) -> int:
        """The offset below which the log is on all replicas that must have it: hooks may publish up to it."""
        return self.log.log_end_offset

    def rest_at(self, end_offset: int) -> None:
        """Publish everything below the end of a log that is not open yet, because its hooks rest."""
        self.high_watermark = end_offset

    def _unflushed(self) -> None:
        self._is_unflushed = True
        self.changes.unflushed(self)

    def _why_gone(self) -> KafkaError | None:
        name = f"{self.topic.name}-{self.index}"
        if self.failure is not None:
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"partition {name} is offline: {self.failure}")
        if self.closed:
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"partition {name} is not led by this broker")
        return None

    def check_served(self) -> None:
        """Raise KafkaError(NOT_LEADER_OR_FOLLOWER) once the partition begins to close. It has no hooks any more then,
        and its log, which may be open for a while, looks like that of a partition without hooks.
        """
        if self.closed and (gone := self._why_gone()) is not None:
            raise gone

    def lead(self, leader_epoch: int) -> None:
        """Continue as the leader with a later epoch, which later appends have."""
        self.leader_epoch = leader_epoch
        if self.is_open:
            self.log.assign_epoch(leader_epoch)
        self.wake()

    def append(
        self,
        batch: bytes | bytearray | memoryview,
        origin: AppendOrigin,
        *,
        prepared: bool = False,
        effort: Effort | None = None,
    ) -> AppendInfo:
        """Append one batch; the high watermark follows, by way of the hooks if there are any.

        The batch may be acknowledged when the high watermark is above it; without hooks and with `durability=process`
        that is at once. A duplicate is answered with the original's position and changes nothing. Raises KafkaError,
        and TakesTime (see `PartitionLog.append`).
        """
        log = self.log
        if self._fence is not None and self._fence.is_shut:
            raise self._fence.refusal(f"{self.topic.name}-{self.index}")
        if self._held is not None:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"partition {self.topic.name}-{self.index} accepts no records now: it is about to be deleted",
            )
        try:
            info = log.append(
                batch, leader_epoch=self.leader_epoch, origin=origin, prepared=prepared, effort=effort
            )
            if not info.duplicate:
                self.traffic.bytes_in += len(batch)
                self.traffic.records_in += RECORD_COUNT.unpack_from(batch, RECORD_COUNT_POSITION)[0]
                if not self._is_unflushed:
                    self._unflushed()
            if log.must_commit:
                executor = self._executor
                if executor is not None:
                    if self._committing is None:
                        self._commit(log, executor)
                    return info
                log.commit()
        except KafkaError:
            if log.failure is not None:
                self.fail(log.failure)
            raise
        if not info.duplicate:
            self._replicated(info.last_offset + 1)
        return info

    def hold(self, seconds: float) -> int:
        """Append nothing for `seconds` from now, because the partition is about to be deleted. Return the end of its
        log. Raises KafkaError.
        """
        end = self.log.log_end_offset
        self._release()
        self._held = asyncio.get_running_loop().call_later(seconds, self._release)
        return end

    def _release(self) -> None:
        if self._held is not None:
            self._held.cancel()
            self._held = None

    def append_end(self, marker: bytes, producer_id: int) -> AppendInfo:
        """Append the marker that ends the producer's transaction, which is unstable until the marker is published."""
        first_offset = self.log.open_transactions().get(producer_id)
        info = self.append(marker, AppendOrigin.COORDINATOR)
        if first_offset is not None and self.high_watermark <= info.last_offset:
            if not self._ending:
                self._ending = deque()
            self._ending.append((info.last_offset + 1, first_offset))
        return info

    def _replicated(self, offset: int) -> None:
        if self.hooks is not None:
            self.hooks.high_watermark_candidate(offset)
        elif offset > self.high_watermark:
            self.high_watermark = offset
            self._moved()

    def _commit(self, log: PartitionLog, executor: Executor, pause_seconds: float = 0.0) -> None:
        if pause_seconds:
            self._committing = asyncio.ensure_future(_later(pause_seconds, executor, log.commit))
        else:
            self._committing = asyncio.get_running_loop().run_in_executor(executor, log.commit)
        self._committing.add_done_callback(lambda future: self._committed(log, executor, future))

    def _committed(self, log: PartitionLog, executor: Executor, future: asyncio.Future[None]) -> None:
        """Publish durable records; records that were appended during the fsync share the next one."""
        self._committing = None
        error = None if future.cancelled() else future.exception()
        if self.closed or self._log is not log:
            return
        if error is not None and log.failure is None and is_passing(error):
            self._commit(log, executor, _COMMIT_AGAIN_SECONDS)
            return
        if error is not None:
            self.fail(log.failure or f"its records cannot be made durable: {error}")
            return
        waits = log.must_commit
        self._replicated(log.recovery_point if waits else log.log_end_offset)
        if waits:
            self._commit(log, executor)

    def reconfigure(self, config: LogConfig) -> None:
        """Use another configuration from now on. If the durability is stricter, the necessary fsync begins
        (`settled`).
        """
        if not self.is_open:
            return
        log = self.log
        log.reconfigure(config)
        if self._is_unflushed:
            self._unflushed()
        if self._executor is not None and self._committing is None and log.must_commit:
            self._commit(log, self._executor)

    async def settled(self) -> None:
        """Wait until no fsync is wanted or running. If one failed, the partition is offline then."""
        while self._committing is not None:
            await asyncio.wait([self._committing])

    def publish_high_watermark(self, offset: int) -> None:
        """Let readers see records below `offset`. An offset below the present one is ignored; past the log's end it is
        an error.
        """
        if offset <= self.high_watermark:
            return
        if offset > self.log.log_end_offset:
            raise RuntimeError(
                f"{self!r}: high watermark {offset} is past the log's end {self.log.log_end_offset}"
            )
        self.high_watermark = offset
        self._moved()

    @property
    def last_stable_offset(self) -> int:
        """The offset below which every transaction has ended; at most the high watermark (rule T5). Raises
        KafkaError.
        """
        unstable = self.log.first_unstable_offset
        if self._ending:
            while self._ending and self._ending[0][0] <= self.high_watermark:
                self._ending.popleft()
            if not self._ending:
                self._ending = ()
            firsts = [first_offset for _, first_offset in self._ending]
            unstable = min(firsts if unstable is None else [*firsts, unstable], default=unstable)
        return self.high_watermark if unstable is None else min(unstable, self.high_watermark)

    def read(self, offset: int, max_bytes: int, min_one: bool = True, up_to: int | None = None) -> LogSlice:
        """Return whole batches from the one that contains `offset` on, below `up_to` (by default the high
        watermark).

        Raises KafkaError(OFFSET_OUT_OF_RANGE) outside [log start, log end].
        """
        if up_to is None:
            up_to = self.high_watermark
        return self.log.read(offset, max_bytes, up_to=up_to, min_one_batch=min_one)

    async def read_anywhere(
        self, offset: int, max_bytes: int, min_one: bool = True, up_to: int | None = None
    ) -> LogSlice:
        """Read from remote storage, too. The region is then a `RemoteRegion`, which `remote.run` reads."""
        try:
            return self.read(offset, max_bytes, min_one, up_to)
        except InRemoteStorage:
            if self.remote is None:
                raise
            up_to = self.high_watermark if up_to is None else up_to
            return await self.remote.read(offset, max_bytes, up_to, min_one)

    async def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with records in [start, end), wherever their markers are."""
        log = self.log
        if self.remote is None or start_offset >= log.local_start_offset:
            return log.aborted_transactions(start_offset, end_offset)
        found, is_complete = await self.remote.aborted_transactions(start_offset, end_offset)
        if not is_complete:
            known = {each.last_offset for each in found}
            local = self.log.aborted_transactions(start_offset, end_offset)
            found += [each for each in local if each.last_offset not in known]
        found.sort(key=lambda aborted: aborted.first_offset)
        return found

    def add_waiter(self, callback: Callable[[], None]) -> None:
        """Call `callback` at each change, until it is removed."""
        self._waiters[callback] = None

    def remove_waiter(self, callback: Callable[[], None]) -> None:
        self._waiters.pop(callback, None)
        if not self._waiters:
            self._waiters.clear()  # an emptied dict keeps its 160 bytes

    def is_published(self, offset: int) -> bool:
        """Return whether everything below `offset` is published and all callbacks of `when_published` were called."""
        return self.high_watermark >= offset and not self._promises

    def when_published(self, offset: int, tell: Callable[[KafkaError | None], None]) -> None:
        """Call `tell` when everything below `offset` is published, or with an error if that cannot happen any more
        because the partition failed or was closed. Callbacks are called in the order of their registration, which must
        be that of their offsets; never within this call.
        """
        if not self._promises:
            self._promises = deque()
        self._promises.append((offset, tell))
        if self.high_watermark >= offset or self._why_gone() is not None:
            asyncio.get_running_loop().call_soon(self._keep_promises)

    def _keep_promises(self) -> None:
        if self._is_telling:
            return  # called by one of the callbacks
        self._is_telling = True
        try:
            while self._promises:
                offset, tell = self._promises[0]
                error = None if offset <= self.high_watermark else self._why_gone()
                if error is None and offset > self.high_watermark:
                    return
                self._promises.popleft()
                tell(error)
            self._promises = ()
        finally:
            self._is_telling = False

    def _moved(self) -> None:
        """Do the same as `wake`; fast when there are no waiters, which is usual."""
        changes = self.changes
        if self._waiters or changes.watchers or self._promises:
            self.wake()
        else:
            changes.count += 1

    def wake(self) -> None:
        changes = self.changes
        changes.count += 1
        if self._promises:
            self._keep_promises()
        for callback in tuple(self._waiters):
            callback()
        for watcher in tuple(changes.watchers):
            watcher(self)

    async def wait_for_high_watermark(
        self, offset: int, timeout_ms: int, check: Callable[[], None] | None = None
    ) -> bool:
        """Wait until everything below `offset` is published. Return False when the time is up first.

        Raises KafkaError when the partition fails or is closed meanwhile. Raises the errors of `check`, which is called
        first and at each `wake`.
        """
        if self.high_watermark >= offset:
            return True
        changed = asyncio.Event()
        self.add_waiter(changed.set)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self.high_watermark < offset:
                    self._check_alive()
                    if check is not None:
                        check()
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            return self.high_watermark >= offset
        finally:
            self.remove_waiter(changed.set)
        return True

    async def wait_acknowledged(
        self, offset: int, acks: int, timeout_ms: int, check: Callable[[], None] | None = None
    ) -> bool:
        """Wait until records that were appended below `offset` may be acknowledged for `acks` (1, -1). Otherwise as
        `wait_for_high_watermark`.
        """
        return await self.wait_for_high_watermark(offset, timeout_ms, check)

    def _check_alive(self) -> None:
        if self.failure is not None or self.closed:
            self._open()

    def delete_records(self, before_offset: int) -> int:
        """Move the log start up to `before_offset` (at most the high watermark); return the new log start."""
        if before_offset > self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete up to {before_offset}: the high watermark is {self.high_watermark}",
            )
        self.log.delete_records(before_offset)
        self.wake()
        return self.log.log_start_offset

    def apply_retention(self, now_ms: int, floor: int | None = None) -> int:
        """Delete old segments below the high watermark and the floor (the hooks', if there are any); return their
        number.
        """
        if self.log.config.remote_storage_enable:
            return self.log.delete_local_segments(
                now_ms, None if self.hooks is None else self.hooks.local_floor()
            )
        if self.hooks is not None:
            floor = self.hooks.retention_floor()
        deleted = self.log.delete_old_segments(now_ms, self.high_watermark, floor=floor)
        if deleted:
            self.wake()
        return deleted

    async def flush(self, executor: Executor) -> None:
        """Make the log durable, in a thread. A failed fsync takes the partition offline.

        Raises KafkaError for other failures, after which the log can still be used.
        """
        log = self.log
        self._is_unflushed = False
        flushing = asyncio.get_running_loop().run_in_executor(executor, log.flush)
        self._flushing = flushing
        try:
            await asyncio.shield(flushing)
        except KafkaError:
            # Records that fsync has once reported lost are never known to be on disk afterwards.
            if log.failure is None:
                self._unflushed()
                raise
            self.fail(log.failure)
        finally:
            if flushing.done() and self._flushing is flushing:
                self._flushing = None

    def fail(self, reason: str) -> None:
        """Take the partition offline until a restart, and tell all waiters."""
        if self.failure is None:
            self.failure = reason
            logger.error("partition %s-%d is offline: %s", self.topic.name, self.index, reason)
        self.wake()

    async def close(self, executor: Executor | None = None) -> None:
        """Stop serving; flush and close the log, in a thread if `executor` is given.

        A failure to close is logged, and its reason is in `failure`. Such a log is never marked clean, and other logs
        are still closed.
        """
        if self.closed:
            return
        self.closed = True
        self._release()
        self.wake()
        hooks, self.hooks = self.hooks, None
        try:
            if hooks is not None:
                await hooks.close()
        except Exception as error:  # noqa: BLE001 - of one partition: told
            note_failed_close(self, error, logger)
        await self._close_log(clean=True, executor=executor)

    async def drop(self) -> None:
        """Stop serving, because the topic was deleted, and let the hooks remove their data. The caller removes the
        files.
        """
        if self.closed:
            return
        self.closed = True
        self._release()
        self.wake()
        hooks, self.hooks = self.hooks, None
        await delete_with(hooks, self, logger)
        await self._close_log(clean=False)

    async def _close_log(self, *, clean: bool, executor: Executor | None = None) -> None:
        busy = [each for each in (self._opening, self._flushing, self._committing) if each is not None]
        if busy:
            await asyncio.wait(busy)  # files must not vanish during an open or an fsync
        log, self._log = self._log, None
        opening, self._opening = self._opening, None
        if opening is not None and not opening.cancelled() and opening.exception() is None:
            log = opening.result()
        if log is not None:
            await close_log(self, log, logger, clean=clean, executor=executor)


async def _later(seconds: float, executor: Executor, work: Callable[[], None]) -> None:
    await asyncio.sleep(seconds)
    await asyncio.get_running_loop().run_in_executor(executor, work)
