"""A replica of a partition that another broker leads: a log, and what its leader says of it.

The log has what the leader's has, from where it begins to where it ends: batches are taken over as they are. What this
log has and the leader's has not is cut off by leader epochs (KIP-101, KIP-279): back to where the latest epoch that
both know ends, in the one that ends it first. Never to the high watermark.

Everything here is done on the event loop, but opening and closing the log. Nobody else changes it meanwhile. Batches
are taken over in slices of the loop's time; whoever ends the follower, or has it follow another epoch, ends that too,
and waits for it (`at_rest`).
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
from headrace.broker.runtime.disk_errors import is_disk_full, is_out_of_descriptors
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
"""After the leader's answer has first said that one of both is not up to date."""
FAILED_SECONDS = 1.0


class Follower:
    """`partition` stands for it among the broker's partitions, and is closed. See the module."""

    def __init__(
        self, partition: Partition, state: PartitionState, open_log: Callable[[Partition], PartitionLog]
    ) -> None:
        self.partition = partition
        self.state = state
        self.high_watermark = 0
        """As the leader has said, at most the log's end."""
        self.safe_time = SafeTime()
        """As of when its log is."""
        self.not_before = 0.0
        """When to ask again, after something went wrong."""
        self.retry_seconds = RETRY_SECONDS
        """After one of both was not up to date; the longer it lasts."""
        self.failure: str | None = None
        self.is_damaged = False
        """Its log cannot be opened for what is in it."""
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
        """Tells who fetches for it that something else may have to be asked."""

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
        """What consumers may read of it."""
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
        """False if it has ended meanwhile, or cannot be opened: it has failed, or is tried again later."""
        if self._log is None and not self.ended and self.failure is None:
            if self._opening is None:
                loop = asyncio.get_running_loop()
                self._opening = loop.run_in_executor(executor, self._open_log, self.partition)
            try:
                log = await asyncio.shield(self._opening)
            except Exception as error:  # noqa: BLE001 - of one replica
                self._opening = None
                if is_disk_full(error) or is_out_of_descriptors(error):  # there may be some soon
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
        if self.hooks is not None:
            self.hooks.opened(log)

    @property
    def may_fetch(self) -> bool:
        return self.hooks is None or self.hooks.may_fetch

    def follow(self, state: PartitionState) -> None:
        """Another state of the partition, of which this broker still is a follower."""
        if state.leader_epoch != self.state.leader_epoch:
            self.not_before = 0.0
            self.retry_seconds = RETRY_SECONDS
        self.state = state
        self._tell_readers()

    # -- what the leader answers ---------------------------------------------------------------------------

    async def answered(self, answer: PartitionData, slices: Slices) -> None:
        """Do what an answer of this epoch's leader says. Raises KafkaError for what it says is wrong, or the disk."""
        log = self.log
        code = answer.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            logger.warning(
                "%s has offsets %d to %d, which do not fit its leader's: it goes on from offset %d",
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
            raise KafkaError(ErrorCode(code), f"the leader of {self.name} has said {ErrorCode(code).name}")
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
        """Delete what the leader has deleted, as far as it is not needed here."""
        log = self.log
        start_offset = min(self._leader_start, log.log_end_offset)
        if start_offset > log.log_start_offset and self.hooks is not None:
            start_offset = min(start_offset, self.hooks.floor)
        if start_offset > log.log_start_offset:
            log.delete_records(start_offset)

    def floor_moved(self) -> None:
        """The hooks need less of the log than they did."""
        if self.is_open and not self.is_copying:
            self.let_go()

    async def _copied(self, answer: PartitionData, slices: Slices) -> None:
        """Not all of it, if this follower ends or follows another epoch meanwhile."""
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
        """Records may be deleted up to within a batch, which is copied whole: an empty log begins where that does, and
        deletes what the leader has deleted (Kafka's appendRecordsToFollowerOrFutureReplica).
        """
        log = self.log
        with contextlib.suppress(DecodeError):  # it is told of by who takes the records over
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
        """The leader has only in remote storage what comes next here: begin where that ends, with what was known there
        of leader epochs and producers. Raises KafkaError, as `answered`.
        """
        remote, log, epoch = self.partition.remote, self.log, self.state.leader_epoch
        if remote is None:
            raise KafkaError(
                ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE,
                f"what follows offset {log.log_end_offset} is in remote storage, which this broker does not use: start "
                "it with the same remote.log.storage.directory as the others",
            )
        manifest, producers = await remote.run(remote.newest_with_producers)
        if not self.is_open or self.state.leader_epoch != epoch or manifest.end_offset <= log.log_end_offset:
            return
        logger.info(
            "%s ends at %d and goes on at %d, where remote storage ends",
            self.name,
            log.log_end_offset,
            manifest.end_offset,
        )
        log_start_offset = max(manifest.start_offset, manifest.log_start_offset, log.log_start_offset)
        log.begin_after(manifest.end_offset, log_start_offset, manifest.epochs(), producers)
        log.follow()
        self.high_watermark = log.log_end_offset  # nothing else is copied

    def _truncate(self, epoch: int, end_offset: int) -> None:
        log = self.log
        own_epoch, own_end = log.epoch_end_offset(epoch)
        if own_epoch >= 0:
            end_offset = min(end_offset, own_end)
        if end_offset < self.high_watermark:
            self.safe_time.forget()
            logger.warning(
                "%s is cut to offset %d, below the high watermark %d: an unclean election has taken records back",
                self.name,
                end_offset,
                self.high_watermark,
            )
        logger.info("%s is cut from offset %d to %d", self.name, log.log_end_offset, end_offset)
        if self.hooks is not None:
            self.hooks.truncated(end_offset)
        log.truncate_to(end_offset)
        log.follow()
        self.high_watermark = min(self.high_watermark, log.log_end_offset)
        if self._read is not None:
            self._read.truncated()

    async def commit(self, executor: Executor) -> None:
        """Make durable what the topic wants to be, before the leader is told that it is here. Raises KafkaError."""
        log = self._log
        if log is not None and log.must_commit:
            self._committing = asyncio.get_running_loop().run_in_executor(executor, log.commit)
            try:
                await asyncio.shield(self._committing)
            finally:
                self._committing = None

    def fail(self, reason: str) -> None:
        """It takes no part any more, until a restart or `begin_anew`."""
        if self.failure is None:
            self.failure = reason
            self.is_damaged = self.is_damaged or (self._log is not None and self._log.is_damaged)
            logger.error("the replica %s is offline: %s", self.name, reason)
            self._tell_readers()
            self.changed(self)
            self.when_failed(self)

    async def close_failed_log(self, executor: Executor) -> None:
        """Before its files are moved."""
        await self.at_rest()
        log, self._log = self._log, None
        if log is not None:
            await close_log(self, log, logger, clean=False, executor=executor)

    def begin_anew(self) -> None:
        """Its files are out of the way: copy everything."""
        self.failure, self.is_damaged, self.high_watermark = None, False, 0
        self.safe_time.forget()

    # -- the end -------------------------------------------------------------------------------------------

    async def release(self) -> tuple[PartitionLog | None, int]:
        """Its log, open, for who leads from now on; None if it was not opened or has failed. And the high watermark.
        What its hooks have kept up is theirs to give.
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
        """Flush and close the log; what goes wrong leaves its reason in `failure`."""
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
        """This broker is to have no replica any more: close, and remove what is the hooks'. Files are the caller's."""
        hooks, self.hooks = self.hooks, None
        try:
            await self.close(clean=False)
        finally:
            await delete_with(hooks, self, logger)

    @property
    def is_copying(self) -> bool:
        return self._copying is not None

    async def at_rest(self) -> None:
        """What is under way is over; a log that was being opened is there."""
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
    """It is fetched by nobody."""
