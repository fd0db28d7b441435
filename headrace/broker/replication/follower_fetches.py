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
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from headrace.broker.replication.follower_sessions import FollowerFetch, FollowerSession
from headrace.broker.replication.leading import ReplicatedPartition
from headrace.broker.replication.sessions import INITIAL_EPOCH, NO_SESSION
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.fetch import (
    FetchRequest,
    ReplicaFetchResponse,
)

if TYPE_CHECKING:
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.replication.throttle import Throttle
    from headrace.broker.requests.declaration import RequestContext
    from headrace.broker.runtime.slices import Slices

_SESSION_IDS = 2**31 - 1


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
        self._kept: dict[int, FollowerSession] = {}
        self._sessions: dict[int, dict[FollowerSession, None]] = {}
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
        if not isinstance(session, FollowerSession):
            return _refused(request, session)
        session.fetched_at = self._clock()
        fetch = session.fetch = FollowerFetch(session, request, self._throttle)
        work = fetch.take(self._metadata, self._replicas)
        if session.session_id == NO_SESSION:
            return self._answered(session, fetch, self._slices.run(work))
        # At once: a producer may wait for the progress that the request reports.
        is_taken, rest = self._slices.start(work)
        return self._answered(session, fetch, None if is_taken else cast("Awaitable[None]", rest))

    async def _answered(
        self, session: FollowerSession, fetch: FollowerFetch, taken: Awaitable[None] | None
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

    def _session(self, request: FetchRequest) -> FollowerSession | ErrorCode:
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
        session = FollowerSession(broker, epoch)
        if request.session_epoch == INITIAL_EPOCH:
            session.session_id = 1 + int(self._random() * (_SESSION_IDS - 1))
            before = self._kept.get(broker)
            if before is not None:
                self._end(before)
            self._kept[broker] = session
        self._sessions.setdefault(broker, {})[session] = None
        return session

    def _end(self, session: FollowerSession) -> None:
        if session.fetch is not None:
            session.fetch.end()
        sessions = self._sessions[session.broker]
        sessions.pop(session, None)
        if not sessions:
            del self._sessions[session.broker]


async def _refused(request: FetchRequest, code: ErrorCode) -> ReplicaFetchResponse:
    return ReplicaFetchResponse(error_code=code, session_id=request.session_id, responses=[])
