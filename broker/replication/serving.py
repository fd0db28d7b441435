"""Fetch (1), as followers ask it (KIP-903): up to the log's end, by which they say how far they have come.

What is in remote storage only is not read for followers: they are told so, and go on behind it (KIP-405).

An answer names the partitions that have something to tell: records, another high watermark, where the logs part
(KIP-320), an error. A fetch that finds nothing waits for an append to any of its partitions, which those tell
(`appended`): they know their followers, so that nothing is registered with partitions and only those are looked at
again that have grown.

How far a follower has come counts for the ISR only where it fetches under the leader's present epoch, from an offset up
to which both logs are the same.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from broker.replication.leading import ReplicatedPartition
from broker.requests.wakeup import Wakeup
from broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)

if TYPE_CHECKING:
    from broker.cluster.metadata import TopicManager
    from broker.log.partition_log import PartitionLog
    from broker.replication.throttle import Throttle
    from broker.requests.declaration import RequestContext
    from broker.slices import Slices

logger = logging.getLogger("headrace.replication")


class FollowerFetches:
    """Of one broker; on its event loop."""

    def __init__(self, metadata: TopicManager, slices: Slices, throttle: Throttle) -> None:
        self._metadata = metadata
        self._slices = slices
        self._throttle = throttle
        self._waiting: dict[int, dict[_FollowerFetch, None]] = {}
        self._stopping = False

    def stop(self) -> None:
        """Answer everyone who waits, and let nobody wait any more."""
        self._stopping = True
        for waiting in self._waiting.values():
            for fetch in waiting:
                fetch.wake()

    def appended(self, partition: ReplicatedPartition) -> None:
        for broker in partition.progress.replicas:
            for fetch in self._waiting.get(broker, ()):
                fetch.appended(partition)

    def published(self, partition: ReplicatedPartition) -> None:
        """Consumers read from followers: those hear of another high watermark at once, not at the end of a wait."""
        for broker in partition.progress.replicas:
            for fetch in self._waiting.get(broker, ()):
                fetch.published(partition)

    def fetch(self, context: RequestContext, request: FetchRequest) -> Awaitable[Any]:
        """Raises KafkaError for who is not one of the cluster's own."""
        if not context.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
            raise KafkaError(
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "only brokers of the cluster are followers"
            )
        return self._fetch(request)

    async def _fetch(self, request: FetchRequest) -> FetchResponse:
        state = request.replica_state
        broker, epoch = (request.replica_id, -1) if state is None else (state.replica_id, state.replica_epoch)
        fetch = _FollowerFetch(request, broker, epoch, self._throttle)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + request.max_wait_ms / 1000
        waiting = self._waiting.setdefault(broker, {})
        waiting[fetch] = None
        pace = self._slices.pace()
        try:
            for topic in request.topics:
                image = self._metadata.topic_by_id(topic.topic_id)
                for asked in topic.partitions:
                    await pace.rest()
                    partition = (
                        None if image is None else self._metadata.find_partition(image.name, asked.partition)
                    )
                    entry = _Entry(topic, asked, partition, is_known=image is not None)
                    fetch.entries.append(entry)
                    if isinstance(partition, ReplicatedPartition):
                        fetch.places[partition] = entry
                    fetch.look(entry)
            while not fetch.is_complete and not self._stopping:
                if not await fetch.woken(min(deadline, loop.time() + fetch.held_up_seconds)):
                    break
                for grown in fetch.take_grown():
                    await pace.rest()
                    fetch.read_again(grown)
            return fetch.response()
        finally:
            waiting.pop(fetch, None)


def where_logs_part(log: PartitionLog, asked: FetchPartition) -> EpochEndOffset | None:
    """The latest epoch that a follower and its leader may both have, and where it ends in the leader's log; None if all
    that the follower has is here, or was. Raises KafkaError(OFFSET_OUT_OF_RANGE) if nothing can be said.
    """
    if asked.last_fetched_epoch < 0:
        return None
    epoch, end_offset = log.epoch_end_offset(asked.last_fetched_epoch)
    if epoch == asked.last_fetched_epoch and end_offset >= asked.fetch_offset:
        return None
    if epoch < 0:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
    if end_offset >= asked.fetch_offset and asked.fetch_offset < log.log_start_offset:
        return None
    return EpochEndOffset(epoch=epoch, end_offset=end_offset)


class _Entry:
    __slots__ = ("answer", "asked", "is_known", "partition", "topic")

    def __init__(self, topic: FetchTopic, asked: FetchPartition, partition: Any, *, is_known: bool) -> None:
        self.topic = topic
        self.asked = asked
        self.partition = partition
        self.is_known = is_known
        self.answer: PartitionData | None = None


class _FollowerFetch:
    """One fetch under way."""

    def __init__(self, request: FetchRequest, broker: int, epoch: int, throttle: Throttle) -> None:
        self.entries: list[_Entry] = []
        self.places: dict[ReplicatedPartition, _Entry] = {}
        self.is_complete = False
        self._request = request
        self._broker = broker
        self._epoch = epoch
        self.held_up_seconds = math.inf
        """Until there is something to be had that a throttle held up; the follower asks for it again then."""
        self._throttle = throttle
        self._bytes = 0
        self._grown: dict[ReplicatedPartition, None] = {}
        self._published: set[ReplicatedPartition] = set()
        self._wakeup = Wakeup()

    # -- waiting -------------------------------------------------------------------------------------------

    def appended(self, partition: ReplicatedPartition) -> None:
        if partition in self.places:
            self._grown[partition] = None
            self.wake()

    def published(self, partition: ReplicatedPartition) -> None:
        entry = self.places.get(partition)
        if entry is not None and entry.answer is None:
            self._published.add(partition)
            self.appended(partition)

    def wake(self) -> None:
        self._wakeup.wake()

    async def woken(self, deadline: float) -> bool:
        """False when the time is up, or the broker stops, and nothing has grown."""
        if not self._grown:
            await self._wakeup.wait(deadline)
        return bool(self._grown)

    def take_grown(self) -> list[ReplicatedPartition]:
        grown, self._grown = list(self._grown), {}
        return grown

    # -- reading -------------------------------------------------------------------------------------------

    def look(self, entry: _Entry) -> None:
        """What a follower asks for the first time: it says how far it is."""
        try:
            self._check(entry)
            partition, asked = entry.partition, entry.asked
            if self._diverges(entry):
                return
            log = partition.log
            if not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            partition.fetched(self._broker, self._epoch, asked.fetch_offset)
            self._read(entry)
        except KafkaError as error:
            self._failed(entry, error.code)
        except Exception as error:
            logger.error("a follower's fetch of %r failed", entry.partition, exc_info=error)
            self._failed(entry, ErrorCode.UNKNOWN_SERVER_ERROR)

    def read_again(self, partition: ReplicatedPartition) -> None:
        entry = self.places[partition]
        if entry.answer is not None:
            return
        try:
            self._check(entry)
            self._read(entry)
            if entry.answer is None and partition in self._published and self._has_news(entry):
                self._answer(entry)
                self.is_complete = True
        except KafkaError as error:
            self._failed(entry, error.code)

    def _check(self, entry: _Entry) -> None:
        partition, epoch = entry.partition, entry.asked.current_leader_epoch
        if not entry.is_known:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not isinstance(partition, ReplicatedPartition) or partition.closed or partition.is_fenced:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if epoch != partition.leader_epoch:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH
                if epoch < partition.leader_epoch
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )

    def _diverges(self, entry: _Entry) -> bool:
        """Whether the follower has what this log has not; it is told where they part."""
        parted = where_logs_part(entry.partition.log, entry.asked)
        if parted is None:
            return False
        self._answer(entry).diverging_epoch = parted
        self.is_complete = True
        return True

    def _read(self, entry: _Entry) -> None:
        asked, log = entry.asked, entry.partition.log
        if asked.fetch_offset >= log.log_end_offset:
            return
        bytes_max = min(asked.partition_max_bytes, self._request.max_bytes - self._bytes)
        if bytes_max <= 0 and self._bytes:
            self.is_complete = True
            return
        if asked.fetch_offset < log.local_start_offset:
            raise KafkaError(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)
        is_held = self._is_held_to_throttle(entry)
        if is_held and (wait_seconds := self._throttle.wait_seconds()) > 0.0:
            self.held_up_seconds = min(self.held_up_seconds, wait_seconds)
            return
        found = log.read(
            asked.fetch_offset, max(bytes_max, 0), up_to=log.log_end_offset, min_one_batch=not self._bytes
        )
        if found.size:
            self._answer(entry).records = found.region
            self._bytes += found.size
            self.is_complete = True
            if is_held:
                self._throttle.copied(found.size)

    def _is_held_to_throttle(self, entry: _Entry) -> bool:
        partition = entry.partition
        return self._broker not in partition.state.isr and self._throttle.holds_for(
            partition.topic, partition.index
        )

    def _answer(self, entry: _Entry) -> PartitionData:
        partition = entry.partition
        entry.answer = PartitionData(
            partition_index=entry.asked.partition,
            high_watermark=partition.replicated_offset,
            last_stable_offset=-1,
            log_start_offset=partition.log.log_start_offset,
            aborted_transactions=None,
            records=b"",
        )
        return entry.answer

    def _failed(self, entry: _Entry, code: ErrorCode) -> None:
        partition = entry.partition
        start = -1
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            log = partition.log
            # Where nothing of it can be known here, it begins again.
            start = (
                log.log_end_offset if entry.asked.fetch_offset > log.log_end_offset else log.log_start_offset
            )
        entry.answer = PartitionData(
            partition_index=entry.asked.partition,
            error_code=code,
            high_watermark=-1,
            log_start_offset=start,
            aborted_transactions=None,
            records=b"",
        )
        self.is_complete = True

    # -- answering -----------------------------------------------------------------------------------------

    def response(self) -> FetchResponse:
        response = FetchResponse(responses=[])
        topic = None
        for entry in self.entries:
            answer = entry.answer
            if answer is None and not self._has_news(entry):
                continue
            if answer is None:
                answer = self._answer(entry)
            elif not answer.error_code:
                answer.high_watermark = entry.partition.replicated_offset
            if entry.topic is not topic:
                topic = entry.topic
                answers: list[PartitionData] = []
                response.responses.append(
                    FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=answers)
                )
            answers.append(answer)
        return response

    def _has_news(self, entry: _Entry) -> bool:
        """Nothing was read, and something else is to be told: of a leader that this still is."""
        partition = entry.partition
        return (
            isinstance(partition, ReplicatedPartition)
            and not partition.closed
            and partition.is_open
            and partition.leader_epoch == entry.asked.current_leader_epoch
            and (
                partition.replicated_offset != entry.asked.high_watermark
                or partition.log.log_start_offset != entry.asked.log_start_offset
            )
        )
