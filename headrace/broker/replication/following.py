"""A replica of a partition that another broker leads: its log, and its leader's state.

From its start to its end, the log has the same batches as the leader's. Records that the leader does not have are
truncated by leader epochs (KIP-101, KIP-279): to the end of the latest epoch that both know, in the log where it ends
first; never to the high watermark.

Everything runs on the event loop, except opening and closing the log. Nothing else changes the log meanwhile. Batches
are appended in slices of the loop's time; ending the follower, or a change of its epoch, also ends that, and waits for
it (`at_rest`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

from headrace.broker.log.errors import CorruptLogError
from headrace.broker.metadata.image import NO_LEADER
from headrace.broker.partitions.log_closing import close_log, delete_with
from headrace.broker.replication.followed import FollowedPartition
from headrace.broker.replication.safe_time import SafeTime
from headrace.broker.runtime import disk_errors
from headrace.broker.runtime.disk_errors import is_passing
from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.protocol.records.header import Buffer, iter_headers

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.log.partition_log import PartitionLog
    from headrace.broker.metadata.image import PartitionState
    from headrace.broker.partitions.hooks import ReplicaHooks
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.runtime.slices import Slices, Work
    from headrace.protocol.messages.fetch import PartitionData

logger = logging.getLogger("headrace.replication")

RETRY_SECONDS = 0.05
"""First pause after an answer by which follower or leader is outdated, in seconds."""
FAILED_SECONDS = 1.0


class Follower:
    """The follower of one partition. `partition` represents it among the broker's partitions, and is closed. See the
    module.
    """

    def __init__(
        self, partition: Partition, state: PartitionState, open_log: Callable[[Partition], PartitionLog]
    ) -> None:
        self.partition = partition
        self.state = state
        self.high_watermark = 0
        """The leader's high watermark, at most the log's end."""
        self.safe_time = SafeTime()
        """The time up to which the log is complete."""
        self.not_before = 0.0
        """Time before which it is not fetched again after an error."""
        self.retry_seconds = RETRY_SECONDS
        """The pause after the next such answer; it grows with each one."""
        self.failure: str | None = None
        self.is_damaged = False
        """True if the content of its log prevents opening it."""
        self.when_failed: Callable[[Follower], None] = lambda _: None
        self._open_log = open_log
        self._log: PartitionLog | None = None
        self._opening: asyncio.Future[PartitionLog] | None = None
        self._committing: asyncio.Future[None] | None = None
        self._copying: asyncio.Future[None] | None = None
        self._read: FollowedPartition | None = None
        self._leader_start = 0
        self.ended = False
        self.hooks: ReplicaHooks | None = None
        self.changed: Callable[[Follower], None] = _nobody
        """Called when its next request may have changed."""

    def __repr__(self) -> str:
        return f"<Follower {self.name} of broker {self.state.leader}, epoch {self.state.leader_epoch}>"

    @property
    def name(self) -> str:
        return f"{self.partition.topic.name}-{self.partition.index}"

    @property
    def key(self) -> tuple[UUID, int]:
        return self.partition.topic.topic_id, self.partition.index

    @property
    def place(self) -> tuple[str, int]:
        return self.partition.place

    @property
    def leader(self) -> int:
        return NO_LEADER if self.ended or self.failure is not None else self.state.leader

    @property
    def log(self) -> PartitionLog:
        """The open log. Raises RuntimeError before `open`."""
        if self._log is None:
            raise RuntimeError(f"{self!r} is not open")
        return self._log

    @property
    def readable(self) -> FollowedPartition:
        """The readable part, for consumers."""
        if self._read is None:
            self._read = FollowedPartition(self)
        return self._read

    def _tell_readers(self) -> None:
        if self._read is not None:
            self._read.refresh()

    @property
    def is_open(self) -> bool:
        return self._log is not None and not self.ended

    async def open(self, executor: Executor) -> bool:
        """Open the log. False if the follower has ended meanwhile, or the log cannot be opened: it has failed, or is
        tried again later.
        """
        if self._log is None and not self.ended and self.failure is None:
            if self._opening is None:
                loop = asyncio.get_running_loop()
                self._opening = loop.run_in_executor(executor, self._open_log, self.partition)
            try:
                log = await asyncio.shield(self._opening)
            except Exception as error:  # noqa: BLE001 - of one replica
                self._opening = None
                if is_passing(error):  # there may be room soon
                    self.not_before = asyncio.get_running_loop().time() + FAILED_SECONDS
                    disk_errors.tell(logger, f"the replica {self.name} cannot be opened", error)
                    return False
                self.is_damaged = isinstance(error, CorruptLogError)
                self.fail(f"its log cannot be opened: {error}")
                return False
            if self._log is None and not self.ended:
                self._take(log)
        return self.is_open

    def _take(self, log: PartitionLog) -> None:
        log.follow()
        self._log = log
        self.high_watermark = min(max(self.high_watermark, log.log_start_offset), log.log_end_offset)
        if self._read is not None:
            self._read.truncated()
        if self.hooks is not None:
            self.hooks.opened(log)

    @property
    def may_fetch(self) -> bool:
        return self.hooks is None or self.hooks.may_fetch

    def follow(self, state: PartitionState) -> None:
        """Follow another state of the partition, of which this broker still is a follower."""
        if state.leader_epoch != self.state.leader_epoch:
            self.not_before = 0.0
            self.retry_seconds = RETRY_SECONDS
        self.state = state
        self._tell_readers()

    # -- answers of the leader -----------------------------------------------------------------------------

    async def answered(self, answer: PartitionData, slices: Slices) -> None:
        """Apply an answer of this epoch's leader. Raises KafkaError for an error in the answer or of the disk."""
        log = self.log
        code = answer.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            logger.warning(
                "%s has offsets %d to %d, which do not match its leader's log: it continues from offset %d",
                self.name,
                log.log_start_offset,
                log.log_end_offset,
                answer.log_start_offset,
            )
            if self.hooks is not None:
                self.hooks.truncated(max(answer.log_start_offset, 0))
            self.safe_time.forget()
            log.restart_at(max(answer.log_start_offset, 0))
            self.high_watermark = min(self.high_watermark, log.log_end_offset)
            if self._read is not None:
                self._read.truncated()
            return
        if code:
            raise KafkaError(ErrorCode(code), f"the leader of {self.name} answered {ErrorCode(code).name}")
        self.retry_seconds = RETRY_SECONDS
        diverging = answer.diverging_epoch
        if diverging is not None and diverging.end_offset >= 0:
            self._truncate(diverging.epoch, diverging.end_offset)
            return
        if answer.records:
            epoch = self.state.leader_epoch
            await self._copied(answer, slices)
            if self.ended or self.state.leader_epoch != epoch:
                return
        self.high_watermark = max(self.high_watermark, min(answer.high_watermark, log.log_end_offset))
        self._leader_start = answer.log_start_offset
        if self.hooks is not None:
            self.hooks.advanced()
        self.let_go()
        self._tell_readers()

    def let_go(self) -> None:
        """Delete records that the leader has deleted, unless hooks need them."""
        log = self.log
        start_offset = min(self._leader_start, log.log_end_offset)
        if start_offset > log.log_start_offset and self.hooks is not None:
            start_offset = min(start_offset, self.hooks.floor)
        if start_offset > log.log_start_offset:
            log.delete_records(start_offset)

    def floor_moved(self) -> None:
        """Delete more of the log, after the hooks need less of it."""
        if self.is_open and not self.is_copying:
            self.let_go()

    async def _copied(self, answer: PartitionData, slices: Slices) -> None:
        """Append the answer's records; stop early if the follower ends or follows another epoch meanwhile."""
        log, read = self.log, self._read
        if log.log_start_offset == log.log_end_offset:
            self._begin_with(answer.records)
        if read is not None:
            read.copying(log)
        try:
            _, rest = slices.start(self._copies(answer))
            if rest is not None:
                self._copying = rest
                await rest
        finally:
            self._copying = None
            if read is not None:
                read.copied(log)

    def _begin_with(self, records: Buffer) -> None:
        """Begin an empty log at the first batch. The leader's log may start within a batch, which is copied whole;
        records below the leader's start are deleted (Kafka's appendRecordsToFollowerOrFutureReplica).
        """
        log = self.log
        with contextlib.suppress(DecodeError):  # appending the records reports it
            for _, header in iter_headers(memoryview(records)):
                if header.base_offset < log.log_end_offset <= header.last_offset:
                    log.restart_at(header.base_offset)
                    log.follow()
                return

    def _copies(self, answer: PartitionData) -> Work[None]:
        epoch = self.state.leader_epoch
        for _ in (work := self.log.append_copies(answer.records, gaps_to=answer.high_watermark)):
            yield
            if self.ended or self.state.leader_epoch != epoch:
                work.close()
                return

    async def go_on_behind_remote(self) -> None:
        """Begin again at the end of the remote part, with its leader epochs and producers: the leader has the next
        records only in remote storage. Raises KafkaError, as `answered`.
        """
        remote, log, epoch = self.partition.remote, self.log, self.state.leader_epoch
        if remote is None:
            raise KafkaError(
                ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
                f"records from offset {log.log_end_offset} are in remote storage, which is off on this broker: start "
                "it with the same remote.log.storage.directory as the other brokers",
            )
        manifest, producers = await remote.run(remote.newest_with_producers)
        if not self.is_open or self.state.leader_epoch != epoch or manifest.end_offset <= log.log_end_offset:
            return
        logger.info(
            "%s ends at %d and continues at %d, the end of remote storage",
            self.name,
            log.log_end_offset,
            manifest.end_offset,
        )
        log_start_offset = max(manifest.start_offset, manifest.log_start_offset, log.log_start_offset)
        log.begin_after(manifest.end_offset, log_start_offset, manifest.epochs(), producers)
        log.follow()
        self.high_watermark = log.log_end_offset  # nothing else is copied
        if self.hooks is not None:
            self.hooks.advanced()

    def _truncate(self, epoch: int, end_offset: int) -> None:
        log = self.log
        own_epoch, own_end = log.epoch_end_offset(epoch)
        if own_epoch >= 0:
            end_offset = min(end_offset, own_end)
        if end_offset < self.high_watermark:
            self.safe_time.forget()
            logger.warning(
                "truncated %s to offset %d, below the high watermark %d: an unclean election lost acknowledged records",
                self.name,
                end_offset,
                self.high_watermark,
            )
        logger.info("truncated %s from offset %d to %d", self.name, log.log_end_offset, end_offset)
        if self.hooks is not None:
            self.hooks.truncated(end_offset)
        log.truncate_to(end_offset)
        log.follow()
        self.high_watermark = min(self.high_watermark, log.log_end_offset)
        if self._read is not None:
            self._read.truncated()

    async def commit(self, executor: Executor) -> None:
        """Make the log as durable as the topic requires, before the leader gets its end offset. Raises KafkaError."""
        log = self._log
        if log is not None and log.must_commit:
            self._committing = asyncio.get_running_loop().run_in_executor(executor, log.commit)
            try:
                await asyncio.shield(self._committing)
            finally:
                self._committing = None

    def fail(self, reason: str) -> None:
        """Take the replica offline until a restart or `begin_anew`."""
        if self.failure is None:
            self.failure = reason
            self.is_damaged = self.is_damaged or (self._log is not None and self._log.is_damaged)
            logger.error("the replica %s is offline: %s", self.name, reason)
            self._tell_readers()
            self.changed(self)
            self.when_failed(self)

    async def close_failed_log(self, executor: Executor) -> None:
        """Close the failed log, before its files are moved."""
        log = await self._taken_away()
        if log is not None:
            await close_log(self, log, logger, clean=False, executor=executor)

    async def close_interrupted_log(self, executor: Executor) -> None:
        """Close a log that lacked room in the middle of a change. It is opened again later, as after a crash."""
        log = await self._taken_away()
        self._tell_readers()
        if log is not None:
            await asyncio.get_running_loop().run_in_executor(executor, log.close, False)

    async def _taken_away(self) -> PartitionLog | None:
        """Return the log, when nothing uses it any more. The next `open` opens it again."""
        await self.at_rest()
        log, self._log, self._opening = self._log, None, None
        return log

    def begin_anew(self) -> None:
        """Copy everything again: the damaged files were set aside."""
        self.failure, self.is_damaged, self.high_watermark = None, False, 0
        self.safe_time.forget()

    # -- the end -------------------------------------------------------------------------------------------

    async def release(self) -> tuple[PartitionLog | None, int]:
        """End it. Return its open log for the new leader (None if it was not opened or has failed) and the high
        watermark. Hooks hand over their own state.
        """
        self.ended = True
        self._tell_readers()
        await self.at_rest()
        log, self._log = self._log, None
        if log is not None and log.failure is not None:
            log.close(clean=False)
            log = None
        return log, self.high_watermark

    async def close(self, executor: Executor | None = None, *, clean: bool = True) -> None:
        """Flush and close the log. The reason of a failure is in `failure`."""
        self.ended = True
        self._tell_readers()
        hooks, self.hooks = self.hooks, None
        if hooks is not None:
            try:
                await hooks.close()
            except Exception as error:  # noqa: BLE001 - of one replica: told
                self.fail(f"it did not close cleanly: {error}")
        await self.at_rest()
        log, self._log = self._log, None
        if log is not None:
            await close_log(self, log, logger, clean=clean, executor=executor)

    async def drop(self) -> None:
        """Remove the replica: close it, and remove the hooks' state. The caller removes the files."""
        hooks, self.hooks = self.hooks, None
        try:
            await self.close(clean=False)
        finally:
            await delete_with(hooks, self, logger)

    @property
    def is_copying(self) -> bool:
        return self._copying is not None

    async def at_rest(self) -> None:
        """Wait for work in progress, and for a log that is being opened."""
        if self._copying is not None:
            await asyncio.wait([self._copying])
        if self._opening is not None:
            await asyncio.wait([self._opening])
            if self._log is None and not self._opening.cancelled() and self._opening.exception() is None:
                self._log = self._opening.result()
                self._log.follow()
        if self._committing is not None:
            await asyncio.wait([self._committing])


def _nobody(_: Follower) -> None:
    """Do nothing: no fetcher serves the follower."""
