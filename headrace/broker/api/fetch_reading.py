"""The records of a fetch: the request for each partition, and the records found so far."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from headrace.broker.api.fetch_rights import FetchRights
from headrace.broker.api.fetch_sessions import FetchSession, SessionPartition
from headrace.broker.api.fetch_watch import FetchWatch
from headrace.broker.log.errors import InRemoteStorage
from headrace.broker.partitions.hooks import FetchedRecords, PartitionHooks
from headrace.broker.partitions.partition import Partition, PartitionChanges
from headrace.broker.partitions.remote_log import RemoteLog
from headrace.broker.replication.followed import FollowedPartition
from headrace.broker.replication.nearest import NOBODY
from headrace.broker.requests.declaration import RequestContext
from headrace.broker.runtime.slices import Pace, Work
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionData,
)

logger = logging.getLogger("headrace.api")

_READ_COMMITTED: Final = 1
ISOLATION_LEVELS: Final = (0, _READ_COMMITTED)


class Wanted(SessionPartition):
    """One partition of a fetch and its part of the answer. Kept in a session."""

    __slots__ = (
        "answer",
        "image",
        "missing_code",
        "name",
        "partition",
        "preferred",
        "record_count",
        "size",
    )

    def __init__(self, topic: FetchTopic, request: FetchPartition) -> None:
        super().__init__(topic, request)
        self.name = ""
        self.partition: Partition | None = None
        self.missing_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.image = -1  # the version of the topic image in which it was looked up
        self.answer: PartitionData | None = None
        self.preferred = NOBODY
        """The replica that the consumer should read instead."""
        self.size = 0
        self.record_count = 0

    def told(self) -> PartitionData:
        if self.answer is None:
            raise RuntimeError(f"partition {self.name}-{self.request.partition} was not read")
        return self.answer

    @property
    def seen_high_watermark(self) -> int:
        return self.told_high_watermark if self.answer is None else self.answer.high_watermark

    @property
    def is_quiet(self) -> bool:
        """Return whether the consumer is at the end and has no news to receive."""
        partition, request = self.partition, self.request
        return (
            partition is not None
            and self.preferred == NOBODY
            and partition.is_open
            and partition.high_watermark == self.told_high_watermark == request.fetch_offset
            and partition.log.log_start_offset == self.told_log_start
            and request.current_leader_epoch in (-1, partition.leader_epoch)
            and request.last_fetched_epoch in (-1, partition.leader_epoch)
        )


class Fetch:
    """One fetch: its requests, and the records found so far. `rights` and `watch` have the rest of its state."""

    __slots__ = (
        "__weakref__",
        "_bytes",
        "_failed",
        "_max_bytes",
        "has_hooks",
        "in_remote_storage",
        "request",
        "rights",
        "session",
        "superseded",
        "wanted",
        "watch",
    )

    def __init__(
        self,
        wanted: list[Wanted],
        context: RequestContext,
        request: FetchRequest,
        bytes_max: int,
        session: FetchSession[Wanted] | None,
        changes: PartitionChanges,
    ) -> None:
        self.wanted = wanted
        self.request = request
        self.session = session
        self.rights = FetchRights(context, request, session)
        self.watch = FetchWatch(changes)
        self.superseded = False
        self._max_bytes = min(request.max_bytes, bytes_max)
        self._bytes = 0
        self._failed: set[Wanted] = set()
        self.has_hooks = False
        self.in_remote_storage: list[tuple[Wanted, Partition, RemoteLog]] = []
        """Entries whose records are only in remote storage and are not read yet."""

    def supersede(self) -> None:
        """Stop: another fetch of the session has begun."""
        self.superseded = True
        self.watch.wake()

    def forget(self, entry: Wanted) -> None:
        """Drop the bytes that were read of an entry whose partition was deleted."""
        self._begin(entry)

    def read(self) -> Work[None]:
        for entry in self.watch.take_moved(self.wanted):
            yield
            if self.superseded:
                return
            partition = self._begin(entry)
            if partition is not None:
                self._read_log(entry, partition)

    async def read_with_hooks(self, pace: Pace) -> None:
        for entry in self.watch.take_moved(self.wanted):
            await pace.rest()
            if self.superseded:
                return
            partition = self._begin(entry)
            if partition is None:
                continue
            if partition.hooks is None:
                self._read_log(entry, partition)
            else:
                await self._read_hooks(entry, partition, partition.hooks)

    def _begin(self, entry: Wanted) -> Partition | None:
        """Make the entry's answer, without records. Return the partition to look for records in, or None."""
        request, partition = entry.request, entry.partition
        self._bytes -= entry.size
        entry.size = 0
        self._failed.discard(entry)
        if self.session is not None and entry.is_quiet:
            entry.answer = None
            return None
        answer = entry.answer = PartitionData(
            partition_index=request.partition,
            high_watermark=-1,
            aborted_transactions=[] if self.request.isolation_level == _READ_COMMITTED else None,
            records=b"",
        )
        if partition is None:
            self._fail(entry, entry.missing_code)
            return None
        try:
            partition.check_served()
            log = partition.log
            check_leader_epoch(partition, request.current_leader_epoch)
            answer.high_watermark = partition.high_watermark
            answer.last_stable_offset = partition.last_stable_offset
            answer.log_start_offset = log.log_start_offset
            is_behind = isinstance(partition, FollowedPartition) and request.fetch_offset > log.log_end_offset
            if request.last_fetched_epoch >= 0 and not is_behind:  # its leader may have more
                epoch, end_offset = log.epoch_end_offset(request.last_fetched_epoch)
                if epoch < request.last_fetched_epoch or end_offset < request.fetch_offset:
                    # KIP-320: the consumer has read records that are not in this log, and must go back.
                    answer.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
                    self._failed.add(entry)
                    return None
            if not log.log_start_offset <= request.fetch_offset <= log.log_end_offset:
                self._fail(entry, ErrorCode.OFFSET_OUT_OF_RANGE)
            elif entry.preferred != NOBODY:
                answer.preferred_read_replica = entry.preferred
                self._failed.add(entry)
        except KafkaError as error:
            self._fail(entry, error.code, error.message)
        return None if entry in self._failed else partition

    def _end_of(self, answer: PartitionData) -> int:
        """Return the end offset of the records that the reader may see."""
        committed = self.request.isolation_level == _READ_COMMITTED
        return answer.last_stable_offset if committed else answer.high_watermark

    def _limits(self, entry: Wanted) -> tuple[int, bool]:
        """Return the maximum bytes of the entry, and whether it must have a batch."""
        return min(entry.request.partition_max_bytes, self._max_bytes - self._bytes), self._bytes == 0

    def _read_log(self, entry: Wanted, partition: Partition) -> None:
        answer = entry.told()
        committed = self.request.isolation_level == _READ_COMMITTED
        up_to = self._end_of(answer)
        if entry.request.fetch_offset >= up_to:
            return
        bytes_max, must = self._limits(entry)
        if bytes_max <= 0 and not must:
            return
        try:
            found = partition.read(entry.request.fetch_offset, max(bytes_max, 0), must, up_to)
            if committed and found.size:
                answer.aborted_transactions = [
                    AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                    for aborted in partition.log.aborted_transactions(found.start_offset, found.end_offset)
                ]
        except InRemoteStorage as error:
            if partition.remote is None:
                self._refuse(entry, error)
            else:
                self.in_remote_storage.append((entry, partition, partition.remote))
            return
        except Exception as error:  # noqa: BLE001 - of one partition; the others have their own answers
            self._refuse(entry, error)
            return
        if found.region is not None:
            answer.records = found.region.to_send()
            entry.size, entry.record_count = found.size, found.end_offset - found.start_offset
            self._bytes += found.size

    async def read_remote(self, deadline: float) -> None:
        """Read the records that are only in remote storage, all at the same time. Those that miss the deadline are left
        out; the next fetch finds them under way or read.
        """
        wanted, self.in_remote_storage = self.in_remote_storage, []
        room = self._max_bytes - self._bytes
        reads: dict[asyncio.Future[None], Wanted] = {}
        for entry, partition, remote in wanted:
            bytes_max = min(entry.request.partition_max_bytes, room)
            must = not reads and self._bytes == 0
            if bytes_max > 0 or must:
                room -= bytes_max
                reading = self._read_remote(entry, partition, remote, max(bytes_max, 0), must)
                reads[asyncio.ensure_future(reading)] = entry
        if not reads:
            return
        await asyncio.wait(reads, timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
        for read, entry in reads.items():
            if not read.done():
                read.cancel()
            elif not read.cancelled() and (error := read.exception()) is not None:
                self._refuse(entry, error)

    async def _read_remote(
        self, entry: Wanted, partition: Partition, remote: RemoteLog, bytes_max: int, must: bool
    ) -> None:
        answer = entry.told()
        committed = self.request.isolation_level == _READ_COMMITTED
        up_to = self._end_of(answer)
        found = await partition.read_anywhere(entry.request.fetch_offset, bytes_max, must, up_to)
        if found.region is None:
            return
        records = await remote.run(found.region.read)
        if committed:
            answer.aborted_transactions = [
                AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                for aborted in await partition.aborted_transactions(found.start_offset, found.end_offset)
            ]
        answer.records = records
        entry.size, entry.record_count = found.size, found.end_offset - found.start_offset
        self._bytes += found.size

    async def _read_hooks(self, entry: Wanted, partition: Partition, hooks: PartitionHooks) -> None:
        if entry.request.fetch_offset >= partition.high_watermark:
            return
        bytes_max, must = self._limits(entry)
        if bytes_max <= 0 and not must:
            return
        try:
            found = await hooks.fetch(entry.request.fetch_offset, max(bytes_max, 0), must)
            if self.superseded:
                return
        except Exception as error:  # noqa: BLE001 - of one partition; the others have their own answers
            self._refuse(entry, error)
            return
        if found.size:
            entry.told().records = found.parts[0] if len(found.parts) == 1 else _Parts(found)
            entry.size, entry.record_count = found.size, found.record_count
            self._bytes += found.size

    def _fail(self, entry: Wanted, code: ErrorCode, message: str = "") -> None:
        self._failed.add(entry)
        entry.told().error_code = code
        if code == ErrorCode.KAFKA_STORAGE_ERROR:
            logger.error("fetch of %r failed: %s", entry.partition, message)

    def _refuse(self, entry: Wanted, error: BaseException) -> None:
        if isinstance(error, KafkaError):
            self._fail(entry, error.code, error.message)
        else:
            logger.error("reading %r failed", entry.partition, exc_info=error)
            self._fail(entry, ErrorCode.UNKNOWN_SERVER_ERROR)

    @property
    def is_complete(self) -> bool:
        """Return whether enough was found, or something that the client must be told now."""
        return (
            self.superseded or self._bytes >= self.request.min_bytes or not self.wanted or bool(self._failed)
        )


class _Parts:
    """Records in several parts, in the place of a message's bytes; the connection sends them one after the other."""

    __slots__ = ("parts", "size")

    def __init__(self, records: FetchedRecords) -> None:
        self.parts = records.parts
        self.size = records.size

    def read(self) -> bytes:
        return b"".join(
            part if isinstance(part, (bytes, bytearray, memoryview)) else part.read() for part in self.parts
        )


def check_leader_epoch(partition: Partition, client_epoch: int) -> None:
    """Raises KafkaError if a client knows an older or newer leader epoch (KIP-320; -1: none), or if this leader has
    lost its leadership. The client must then ask Metadata.
    """
    if partition.is_fenced:
        raise KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            f"another broker may lead {partition.topic.name}-{partition.index} by now",
        )
    if client_epoch < 0 or client_epoch == partition.leader_epoch:
        return
    older = client_epoch < partition.leader_epoch
    raise KafkaError(
        ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH,
        f"the leader epoch is {partition.leader_epoch}, not {client_epoch}",
    )
