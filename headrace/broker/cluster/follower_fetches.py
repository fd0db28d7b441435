"""Fetch (1) by followers (KIP-903): it reads up to the log's end, and its offsets report the follower's progress.

Records that are only in remote storage are not read for followers: they get an error and continue after them (KIP-405).

The fetches of a broker form one session (`broker.replication.sessions`), which remembers its request for each
partition. So only partitions that it names, or that have news, are handled. Leaders notify the sessions of their
followers (`appended`, `published`).

An answer has the partitions with news: records, another high watermark or log start, the end of the common log
(KIP-320), an error. A fetch that finds no records waits for some; other news goes out when it ends.

An answer has `is_current` if it contains all news; followers compute from it up to what time they are complete
(`safe_time`). It is not current if it was cut short, or while the broker is fenced. Partitions are listed as `doubted`
if another broker may lead them, if they have not reached the start of their epoch, or if the follower is not in sync.
For them, missing news means nothing.

A follower's progress counts for the ISR only if it fetches under the leader's present epoch, from an offset up to which
both logs are equal. After a change of the partition's replicas, the progress of a follower that is not in sync is
forgotten (`unheard`), as it may have discarded its log meanwhile. It gets an error, and names the partition again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from headrace.broker.replication.leading import ReplicatedPartition
from headrace.broker.replication.sessions import INITIAL_EPOCH, NAMED_MAX, NO_SESSION
from headrace.broker.requests.wakeup import Wakeup
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
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
    from headrace.broker.requests.declaration import RequestContext
    from headrace.broker.runtime.slices import Slices, Work

logger = logging.getLogger("headrace.replication")

_SESSION_IDS = 2**31 - 1
DOUBTED_MAX = 32
"""Maximum number of doubted partitions in an answer; with more it is not current."""

Topic = str | UUID
"""A topic's name or id, as in the version of the request."""


class FollowerFetches:
    """The followers' sessions of one broker; on its event loop."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        replicas: LocalReplicas,
        slices: Slices,
        throttle: Throttle,
        random: Callable[[], float],
        clock: Callable[[], float],
    ) -> None:
        """`random` returns numbers in [0, 1) for ids of sessions; `clock` returns monotonic seconds."""
        self._metadata = metadata
        self._replicas = replicas
        self._slices = slices
        self._throttle = throttle
        self._random = random
        self._clock = clock
        self._kept: dict[int, _Session] = {}
        self._sessions: dict[int, dict[_Session, None]] = {}
        self._stopping = False
        metadata.broker_listeners.append(self._brokers_changed)

    def stop(self) -> None:
        """Answer every waiting fetch, and let no fetch wait any more."""
        self._stopping = True
        for sessions in self._sessions.values():
            for session in sessions:
                session.wake()

    # -- news from leaders ---------------------------------------------------------------------------------

    def appended(self, partition: ReplicatedPartition) -> None:
        for broker in partition.progress.replicas:
            for session in self._sessions.get(broker, ()):
                session.appended(partition)

    def published(self, partition: ReplicatedPartition, *, at_once: bool) -> None:
        """Note that the high watermark for followers, or the log's start, has moved. `at_once`: answer waiting
        followers now, as consumers read from them.
        """
        for broker in partition.progress.replicas:
            for session in self._sessions.get(broker, ()):
                session.published(partition, at_once=at_once)

    def unheard(self, partition: ReplicatedPartition, brokers: Iterable[int]) -> None:
        """Forget the progress that these brokers have reported."""
        for broker in brokers:
            for session in self._sessions.get(broker, ()):
                session.unheard(partition)

    def doubted(self, partition: ReplicatedPartition) -> None:
        """Check again whether the partition can be vouched for (`vouches_for`). This includes brokers that are not
        replicas any more: they may not know it yet, and get no more news of it.
        """
        for sessions in self._sessions.values():
            for session in sessions:
                session.look_for_doubt(partition)

    def _brokers_changed(self) -> None:
        """End the sessions of brokers that are not alive any more."""
        alive = self._metadata.image.brokers
        for broker in [each for each in self._kept if each not in alive]:
            self._end(self._kept.pop(broker))

    # -- requests ------------------------------------------------------------------------------------------

    def fetch(self, context: RequestContext, request: FetchRequest) -> Awaitable[Any] | ReplicaFetchResponse:
        """Answer a fetch. Raises KafkaError if the client is not authorized as a broker of the cluster."""
        if not context.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME):
            raise KafkaError(
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
                "fetching as a follower needs CLUSTER_ACTION on the cluster",
            )
        return self._fetch(request)

    def _fetch(self, request: FetchRequest) -> Awaitable[ReplicaFetchResponse]:
        session = self._session(request)
        if not isinstance(session, _Session):
            return _refused(request, session)
        session.fetched_at = self._clock()
        fetch = session.fetch = _FollowerFetch(session, request, self._throttle)
        work = fetch.take(self._metadata, self._replicas)
        if session.session_id == NO_SESSION:
            return self._answered(session, fetch, self._slices.run(work))
        # At once: a producer may wait for the progress that the request reports.
        is_taken, rest = self._slices.start(work)
        return self._answered(session, fetch, None if is_taken else cast("Awaitable[None]", rest))

    async def _answered(
        self, session: _Session, fetch: _FollowerFetch, taken: Awaitable[None] | None
    ) -> ReplicaFetchResponse:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + fetch.request.max_wait_ms / 1000
        try:
            if taken is not None:
                await taken
            pace = self._slices.pace()
            while not fetch.is_over:
                for _ in fetch.look_again():
                    await pace.rest()
                if fetch.is_complete or fetch.is_over or self._stopping:
                    break
                if not await session.woken(min(deadline, loop.time() + fetch.held_up_seconds)):
                    break
            for _ in fetch.news():
                await pace.rest()
            return fetch.response(is_fenced=self._metadata.is_fenced)
        finally:
            fetch.end()
            if session.session_id == NO_SESSION:
                self._end(session)

    def _session(self, request: FetchRequest) -> _Session | ErrorCode:
        state = request.replica_state
        broker, epoch = (request.replica_id, -1) if state is None else (state.replica_id, state.replica_epoch)
        if request.session_epoch > INITIAL_EPOCH:
            known = self._kept.get(broker)
            if known is None or (known.session_id, known.broker_epoch) != (request.session_id, epoch):
                return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            if request.session_epoch <= known.epoch:
                return ErrorCode.INVALID_FETCH_SESSION_EPOCH
            known.go_on(request.session_epoch)
            return known
        session = _Session(broker, epoch)
        if request.session_epoch == INITIAL_EPOCH:
            session.session_id = 1 + int(self._random() * (_SESSION_IDS - 1))
            before = self._kept.get(broker)
            if before is not None:
                self._end(before)
            self._kept[broker] = session
        self._sessions.setdefault(broker, {})[session] = None
        return session

    def _end(self, session: _Session) -> None:
        if session.fetch is not None:
            session.fetch.end()
        sessions = self._sessions[session.broker]
        sessions.pop(session, None)
        if not sessions:
            del self._sessions[session.broker]


async def _refused(request: FetchRequest, code: ErrorCode) -> ReplicaFetchResponse:
    return ReplicaFetchResponse(error_code=code, session_id=request.session_id, responses=[])


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


class _Entry:
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


class _Session:
    """The session of one broker. `session_id` 0: for one fetch only."""

    def __init__(self, broker: int, broker_epoch: int) -> None:
        self.broker = broker
        self.broker_epoch = broker_epoch
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self.fetched_at = 0.0
        """Time of its last fetch, in monotonic seconds."""
        self.fetch: _FollowerFetch | None = None
        self.entries: dict[Topic, dict[int, _Entry]] = {}
        self.dirty: dict[_Entry, None] = {}
        """Entries to check: they may have records."""
        self.news: dict[_Entry, None] = {}
        """Entries that may have other news."""
        self.answered: list[_Entry] = []
        """Entries of the last answer, which may not have arrived."""
        self.doubted: dict[_Entry, None] = {}
        self._places: dict[ReplicatedPartition, _Entry] = {}
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

    def name(self, topic: Topic, asked: FetchPartition, partition: Any) -> _Entry:
        entries = self.entries.get(topic)
        if entries is None:
            entries = self.entries[topic] = {}
        entry = entries.get(asked.partition)
        if entry is None:
            entry = entries[asked.partition] = _Entry((topic, asked.partition))
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

    def weigh(self, entry: _Entry) -> None:
        partition = entry.partition
        if partition.leader_epoch == entry.asked.current_leader_epoch and partition.vouches_for(self.broker):
            if entry in self.doubted and entry.has_news():
                self.news[entry] = None
            self.doubted.pop(entry, None)
        else:
            self.doubted[entry] = None

    def _part_from(self, entry: _Entry) -> None:
        self.doubted.pop(entry, None)
        self._no_longer_at_end(entry)
        if self._places.get(entry.partition) is entry:
            del self._places[entry.partition]

    def _no_longer_at_end(self, entry: _Entry) -> None:
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


class _FollowerFetch:
    """One fetch under way. Its findings go back to the session if it is not answered."""

    def __init__(self, session: _Session, request: FetchRequest, throttle: Throttle) -> None:
        self.is_complete = False
        self.is_over = False
        """True after another fetch has replaced it, or after its answer."""
        self.held_up_seconds = math.inf
        """Seconds until records that a throttle holds back are available; the follower then asks for them again."""
        self._session = session
        self.request = request
        self._throttle = throttle
        self._answers: dict[_Entry, PartitionData] = {}
        self._aside: dict[_Entry, None] = {}
        self._bytes = 0

    def tell_now(self, entry: _Entry) -> None:
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

    def _look(self, entry: _Entry, *, is_known: bool) -> None:
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

    def _read_again(self, entry: _Entry) -> None:
        try:
            self._check(entry)
            self._read(entry)
        except KafkaError as error:
            self._failed(entry, error.code)

    def _check(self, entry: _Entry) -> None:
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

    def _read(self, entry: _Entry) -> None:
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

    def _is_held_to_throttle(self, entry: _Entry) -> bool:
        partition = entry.partition
        return self._session.broker not in partition.state.isr and self._throttle.holds_for(
            partition.topic, partition.index
        )

    def _answer(self, entry: _Entry) -> PartitionData:
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

    def _failed(self, entry: _Entry, code: ErrorCode) -> None:
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
