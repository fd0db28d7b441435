"""The session of a follower at its leader, and one fetch of it under way; see `follower_fetches.py`."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.broker.replication.leading import ReplicatedPartition
from headrace.broker.replication.sessions import INITIAL_EPOCH, NAMED_MAX, NO_SESSION
from headrace.broker.requests.wakeup import Wakeup
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    ForgottenTopic,
    PartitionData,
    ReplicaFetchResponse,
)

if TYPE_CHECKING:
    from headrace.broker.log.partition_log import PartitionLog
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.replication.throttle import Throttle
    from headrace.broker.runtime.slices import Work

logger = logging.getLogger("headrace.replication")

DOUBTED_MAX = 32
"""Maximum number of doubted partitions in an answer; with more it is not current."""

Topic = str | UUID
"""A topic's name or id, as in the version of the request."""


def where_logs_part(log: PartitionLog, asked: FetchPartition) -> EpochEndOffset | None:
    """Return the latest epoch that follower and leader may both have, and its end in the leader's log. None if the
    leader has, or had, all of the follower's records. Raises KafkaError(OFFSET_OUT_OF_RANGE) if that is unknown.
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


class SessionEntry:
    """A partition of a session, with its last request and its last answer."""

    __slots__ = (
        "asked",
        "has_failed",
        "is_at_end",
        "is_new",
        "is_unheard",
        "key",
        "partition",
        "told_high_watermark",
        "told_log_start",
    )

    def __init__(self, key: tuple[Topic, int]) -> None:
        self.key = key
        self.asked: FetchPartition
        self.partition: Any = None
        self.told_high_watermark = -1
        self.told_log_start = -1
        self.has_failed = False
        self.is_at_end = False
        """True if the follower had everything at the last check, and nothing was appended since."""
        self.is_unheard = False
        self.is_new = False
        """True if the first answer after it was named was lost."""

    def has_news(self) -> bool:
        """Return whether there is news other than records, and this broker is still the leader."""
        partition = self.partition
        return (
            isinstance(partition, ReplicatedPartition)
            and not partition.closed
            and partition.is_open
            and partition.leader_epoch == self.asked.current_leader_epoch
            and (
                partition.replicated_offset != self.told_high_watermark
                or partition.log.log_start_offset != self.told_log_start
            )
        )


class FollowerSession:
    """The session of one broker. `session_id` 0: for one fetch only."""

    def __init__(self, broker: int, broker_epoch: int) -> None:
        self.broker = broker
        self.broker_epoch = broker_epoch
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self.fetched_at = 0.0
        """Time of its last fetch, in monotonic seconds."""
        self.fetch: FollowerFetch | None = None
        self.entries: dict[Topic, dict[int, SessionEntry]] = {}
        self.dirty: dict[SessionEntry, None] = {}
        """Entries to check: they may have records."""
        self.news: dict[SessionEntry, None] = {}
        """Entries that may have other news."""
        self.answered: list[SessionEntry] = []
        """Entries of the last answer, which may not have arrived."""
        self.doubted: dict[SessionEntry, None] = {}
        self._places: dict[ReplicatedPartition, SessionEntry] = {}
        self._wakeup = Wakeup()

    def go_on(self, epoch: int) -> None:
        """Begin the next fetch. A waiting one ends."""
        if self.fetch is not None:
            self.fetch.end()
        has_come = epoch == self.epoch + 1
        self.epoch = epoch
        answered, self.answered = self.answered, []
        for entry in answered:
            if not has_come:
                entry.has_failed, entry.is_new = False, True
                entry.told_high_watermark = entry.told_log_start = -1
                self.news[entry] = None
            if entry.has_failed:
                self.forget(*entry.key)
            else:
                self.dirty[entry] = None

    # -- entries -------------------------------------------------------------------------------------------

    def name(self, topic: Topic, asked: FetchPartition, partition: Any) -> SessionEntry:
        entries = self.entries.get(topic)
        if entries is None:
            entries = self.entries[topic] = {}
        entry = entries.get(asked.partition)
        if entry is None:
            entry = entries[asked.partition] = SessionEntry((topic, asked.partition))
        elif entry.partition is not partition:
            self._part_from(entry)
        entry.asked, entry.partition = asked, partition
        entry.told_high_watermark, entry.told_log_start = asked.high_watermark, asked.log_start_offset
        entry.has_failed = entry.is_unheard = entry.is_at_end = entry.is_new = False
        if isinstance(partition, ReplicatedPartition):
            self._places[partition] = entry
        self.doubted[entry] = None
        self.dirty.pop(entry, None)
        return entry

    def forget(self, topic: Topic, index: int) -> None:
        entries = self.entries.get(topic, {})
        entry = entries.pop(index, None)
        if entry is not None:
            self.dirty.pop(entry, None)
            self.news.pop(entry, None)
            self._part_from(entry)
            if not entries:
                del self.entries[topic]

    def weigh(self, entry: SessionEntry) -> None:
        partition = entry.partition
        if partition.leader_epoch == entry.asked.current_leader_epoch and partition.vouches_for(self.broker):
            if entry in self.doubted and entry.has_news():
                self.news[entry] = None
            self.doubted.pop(entry, None)
        else:
            self.doubted[entry] = None

    def _part_from(self, entry: SessionEntry) -> None:
        self.doubted.pop(entry, None)
        self._no_longer_at_end(entry)
        if self._places.get(entry.partition) is entry:
            del self._places[entry.partition]

    def _no_longer_at_end(self, entry: SessionEntry) -> None:
        if entry.is_at_end:
            entry.is_at_end = False
            entry.partition.had_all(self.broker, self.fetched_at)

    # -- changes of partitions -----------------------------------------------------------------------------

    def appended(self, partition: ReplicatedPartition) -> None:
        entry = self._places.get(partition)
        if entry is not None:
            self._no_longer_at_end(entry)
            self.dirty[entry] = None
            self.wake()

    def published(self, partition: ReplicatedPartition, *, at_once: bool) -> None:
        entry = self._places.get(partition)
        if entry is not None:
            self.news[entry] = None
            if entry in self.doubted:
                self.weigh(entry)
            if at_once and self.fetch is not None:
                self.fetch.tell_now(entry)

    def unheard(self, partition: ReplicatedPartition) -> None:
        entry = self._places.get(partition)
        if entry is not None:
            entry.is_unheard, entry.is_at_end = True, False
            self.dirty[entry] = None
            self.wake()

    def look_for_doubt(self, partition: ReplicatedPartition) -> None:
        entry = self._places.get(partition)
        if entry is not None:
            self.weigh(entry)

    def wake(self) -> None:
        self._wakeup.wake()

    async def woken(self, deadline: float) -> bool:
        """Wait for entries to check. False if the deadline comes, or the broker stops, before there are any."""
        if not self.dirty:
            await self._wakeup.wait(deadline)
        return bool(self.dirty)


class FollowerFetch:
    """One fetch under way. Its findings go back to the session if it is not answered."""

    def __init__(self, session: FollowerSession, request: FetchRequest, throttle: Throttle) -> None:
        self.is_complete = False
        self.is_over = False
        """True after another fetch has replaced it, or after its answer."""
        self.held_up_seconds = math.inf
        """Seconds until records that a throttle holds back are available; the follower then asks for them again."""
        self._session = session
        self.request = request
        self._throttle = throttle
        self._answers: dict[SessionEntry, PartitionData] = {}
        self._aside: dict[SessionEntry, None] = {}
        self._bytes = 0

    def tell_now(self, entry: SessionEntry) -> None:
        if entry.has_news():
            self.is_complete = True
            self._session.wake()

    def end(self) -> None:
        """End it. Findings that were not answered go back to the session."""
        if not self.is_over:
            self.is_over = True
            session = self._session
            session.dirty = self._aside | dict.fromkeys(self._answers) | session.dirty
            session.news.update(dict.fromkeys(self._answers))
            if session.fetch is self:
                session.fetch = None
            session.wake()

    # -- reading -------------------------------------------------------------------------------------------

    def take(self, metadata: ClusterMetadata, replicas: LocalReplicas) -> Work[None]:
        """Take over changes of the follower's request, which report its progress."""
        session, request = self._session, self.request
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                session.forget(forgotten.topic or forgotten.topic_id, index)
                yield
                if self.is_over:
                    return
        for topic in request.topics:
            image = metadata.topic_by_id(topic.topic_id)
            for asked in topic.partitions:
                partition = None if image is None else replicas.find_partition(image.name, asked.partition)
                entry = session.name(topic.topic or topic.topic_id, asked, partition)
                self._look(entry, is_known=image is not None)
                yield
                if self.is_over:
                    return

    def look_again(self) -> Iterator[None]:
        """Check entries that may have records by now."""
        dirty = self._session.dirty
        while dirty and not self.is_over and not self._is_full:
            entry = next(iter(dirty))
            del dirty[entry]
            if entry.is_new:
                entry.is_new = False
                self._look(entry, is_known=True)
            elif entry not in self._answers:
                self._read_again(entry)
            yield
        if self._is_full:
            self.is_complete = True

    @property
    def _is_full(self) -> bool:
        return len(self._answers) >= NAMED_MAX or self._bytes >= self.request.max_bytes

    def _look(self, entry: SessionEntry, *, is_known: bool) -> None:
        try:
            if not is_known:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
            self._check(entry)
            partition, asked = entry.partition, entry.asked
            parted = where_logs_part(partition.log, asked)
            if parted is not None:
                self._answer(entry).diverging_epoch = parted
                entry.has_failed = True
                self.is_complete = True
                return
            log = partition.log
            session = self._session
            if (
                not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset
                or partition.begins_too_late(session.broker, asked.log_start_offset)
            ):
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
            partition.fetched(session.broker, session.broker_epoch, asked.fetch_offset)
            if asked.fetch_offset < log.log_end_offset:
                session.dirty[entry] = None  # behind those that wait already
            else:
                entry.is_at_end = True
            if entry.has_news():
                session.news[entry] = None
            session.weigh(entry)
        except KafkaError as error:
            self._failed(entry, error.code)
        except Exception as error:
            logger.error("a follower's fetch of %r failed", entry.partition, exc_info=error)
            self._failed(entry, ErrorCode.UNKNOWN_SERVER_ERROR)

    def _read_again(self, entry: SessionEntry) -> None:
        try:
            self._check(entry)
            self._read(entry)
        except KafkaError as error:
            self._failed(entry, error.code)

    def _check(self, entry: SessionEntry) -> None:
        partition, epoch = entry.partition, entry.asked.current_leader_epoch
        if partition is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if (
            not isinstance(partition, ReplicatedPartition)
            or partition.closed
            or partition.is_fenced
            or entry.is_unheard
        ):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if epoch != partition.leader_epoch:
            raise KafkaError(
                ErrorCode.FENCED_LEADER_EPOCH
                if epoch < partition.leader_epoch
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )

    def _read(self, entry: SessionEntry) -> None:
        asked, log = entry.asked, entry.partition.log
        if asked.fetch_offset >= log.log_end_offset:
            entry.is_at_end = True
            return
        if asked.fetch_offset < log.local_start_offset:
            raise KafkaError(ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE)
        is_held = self._is_held_to_throttle(entry)
        if is_held and (wait_seconds := self._throttle.wait_seconds()) > 0.0:
            self.held_up_seconds = min(self.held_up_seconds, wait_seconds)
            self._aside[entry] = None
            return
        bytes_max = max(min(asked.partition_max_bytes, self.request.max_bytes - self._bytes), 0)
        found = log.read(
            asked.fetch_offset, bytes_max, up_to=log.log_end_offset, min_one_batch=not self._bytes
        )
        if found.region is not None:
            self._answer(entry).records = found.region.to_send()
            self._bytes += found.size
            self.is_complete = True
            if is_held:
                self._throttle.copied(found.size)
        else:
            self.is_complete = True  # the rest of the answer has no room for it
            self._aside[entry] = None

    def _is_held_to_throttle(self, entry: SessionEntry) -> bool:
        partition = entry.partition
        return self._session.broker not in partition.state.isr and self._throttle.holds_for(
            partition.topic, partition.index
        )

    def _answer(self, entry: SessionEntry) -> PartitionData:
        partition = entry.partition
        answer = self._answers[entry] = PartitionData(
            partition_index=entry.asked.partition,
            high_watermark=partition.replicated_offset,
            last_stable_offset=-1,
            log_start_offset=partition.log.log_start_offset,
            aborted_transactions=None,
            records=b"",
        )
        return answer

    def _failed(self, entry: SessionEntry, code: ErrorCode) -> None:
        partition = entry.partition
        start = -1
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            log = partition.log
            # The follower begins again at this offset, as the offset that it asked for is unknown here.
            start = (
                log.log_end_offset if entry.asked.fetch_offset > log.log_end_offset else log.log_start_offset
            )
        self._answers[entry] = PartitionData(
            partition_index=entry.asked.partition,
            error_code=code,
            high_watermark=-1,
            log_start_offset=start,
            aborted_transactions=None,
            records=b"",
        )
        self.is_complete = True

    # -- answering -----------------------------------------------------------------------------------------

    def news(self) -> Iterator[None]:
        news = self._session.news
        while news and not self.is_over and len(self._answers) < NAMED_MAX:
            entry = next(iter(news))
            del news[entry]
            if entry not in self._answers and entry.has_news():
                self._answer(entry)
            yield

    def response(self, *, is_fenced: bool) -> ReplicaFetchResponse:
        session = self._session
        response = ReplicaFetchResponse(session_id=session.session_id, responses=[])
        if self.is_over:
            return response
        topics: dict[Topic, list[PartitionData]] = {}
        for entry, answer in self._answers.items():
            if answer.error_code:
                entry.has_failed = True
            else:
                answer.high_watermark = entry.told_high_watermark = entry.partition.replicated_offset
                entry.told_log_start = answer.log_start_offset
            topics.setdefault(entry.key[0], []).append(answer)
        response.responses = [
            FetchableTopicResponse(topic=topic, partitions=answers)
            if isinstance(topic, str)
            else FetchableTopicResponse(topic_id=topic, partitions=answers)
            for topic, answers in topics.items()
        ]
        if not (is_fenced or session.news or len(session.doubted) > DOUBTED_MAX):
            response.is_current = True
            doubted: dict[Topic, list[int]] = {}
            for entry in session.doubted:
                doubted.setdefault(entry.key[0], []).append(entry.key[1])
            response.doubted = [
                ForgottenTopic(topic=topic, partitions=indices)
                if isinstance(topic, str)
                else ForgottenTopic(topic_id=topic, partitions=indices)
                for topic, indices in doubted.items()
            ]
        session.answered = list(self._answers)
        session.dirty = self._aside | session.dirty
        self._answers, self._aside = {}, {}
        self.end()
        return response
