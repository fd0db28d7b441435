"""Fetch (1): read batches, waiting for them if asked to.

Sizes follow KIP-74: partitions in the order of the request; the first with records gives at least one whole batch, of
any size; the others share the rest of `max_bytes`. Batches of plain partitions leave as file regions.

A fetch that finds less than `min_bytes` waits. Partitions wake it (append, deletion, failure, log start), and it reads
only those again. It is answered when it has enough bytes, on an error, after `max_wait_ms`, or when the broker stops.

`fetch_sessions` remembers state between the fetches of a consumer (KIP-227); this module joins it with partitions. In a
session, a partition without news for its consumer costs one comparison.

A fetch of many partitions lets others run between them. The next fetch of its session may come meanwhile: the earlier
one is then superseded and stops.

Records that are only in remote storage are read there, in threads, for as long as the fetch may wait and at least
`remote.fetch.max.wait.ms`. Records of other partitions are in the same answer.

A read_committed fetch stops at the last stable offset, and lists the aborted transactions of its batches; the client
leaves out their records (KIP-98).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any
from weakref import WeakValueDictionary

from headrace.broker.api.fetch_reading import ISOLATION_LEVELS, Fetch, Wanted
from headrace.broker.api.fetch_rights import is_follower
from headrace.broker.api.fetch_sessions import (
    FINAL_EPOCH,
    FIRST_VERSION_WITH_IDS,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    FetchSessions,
)
from headrace.broker.cluster.endpoints import current_leader, endpoint
from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.replication import RACK_AWARE
from headrace.broker.metadata.cluster import ClusterMetadata
from headrace.broker.metadata.identity import BrokerIdentity
from headrace.broker.partitions.partition import Partition
from headrace.broker.replication.follower_fetches import FollowerFetches
from headrace.broker.replication.leading import ReplicatedPartition
from headrace.broker.replication.nearest import NOBODY, nearest_replica
from headrace.broker.replication.replicas import LocalReplicas
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.ports import Clock, Entropy
from headrace.broker.runtime.slices import Slices, Work
from headrace.broker.security.quotas.model import Quota
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import Operation
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

logger = logging.getLogger("headrace.api")

_FIRST_VERSION_WITH_SESSIONS = 7
_FIRST_VERSION_WITH_LEADERS = 16
_MOVED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


class FetchApi:
    def __init__(
        self,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        replicas: LocalReplicas,
        identity: BrokerIdentity,
        clock: Clock,
        entropy: Entropy,
        slices: Slices,
        followers: FollowerFetches | None = None,
    ) -> None:
        """`followers` is None without other brokers."""
        self._followers = followers
        self._metadata = metadata
        self._replicas = replicas
        self._identity = identity
        self._clock = clock
        self._slices = slices
        self._max_bytes: int = config["fetch.max.bytes"]
        self._config = config
        self._sessions: FetchSessions[Wanted] = FetchSessions(
            config["max.incremental.fetch.session.cache.slots"], entropy.random
        )
        self._waiting: dict[Fetch, None] = {}  # in the order in which they came
        # The waiting fetch by session id. It goes with its request, which may end before it begins to wait.
        self._in_session: WeakValueDictionary[int, Fetch] = WeakValueDictionary()
        self._stopping = False

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                FetchRequest,
                FetchResponse,
                self.fetch,
                within(topic=Operation.READ, cluster=Operation.CLUSTER_ACTION),
                cancel_on_disconnect=True,
                charged=Quota.CONSUMER,
            )
        ]

    @property
    def _remote_wait_ms(self) -> int:
        wait_ms: int = self._config["remote.fetch.max.wait.ms"]
        return wait_ms

    def stop(self) -> None:
        """Answer every waiting fetch with the records that it has found, and let no fetch wait any more."""
        self._stopping = True
        if self._followers is not None:
            self._followers.stop()
        for fetch in tuple(self._waiting):
            fetch.watch.wake()

    def fetch(self, context: RequestContext, request: FetchRequest) -> Work[FetchResponse | Awaitable[Any]]:
        version = context.api_version
        if self._followers is not None and is_follower(request):
            return self._followers.fetch(context, request)
        session = None
        if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
            session = yield from self._sessions.resume(request, version, self._clock.monotonic(), Wanted)
        elif request.session_id:
            self._sessions.end(request.session_id)
        if session is not None:
            wanted = list(session.partitions.values())
        else:
            wanted = []
            for topic in request.topics:
                yield
                for asked in topic.partitions:
                    yield
                    wanted.append(Wanted(topic, asked))
        fetch = Fetch(wanted, context, request, self._max_bytes, session, self._replicas.changes)
        if session is None:
            return (yield from self._begin(fetch, context))
        before = self._in_session.get(session.session_id)
        if before is not None:
            before.supersede()
        self._in_session[session.session_id] = fetch
        waits: FetchResponse | Awaitable[Any] | None = None
        try:
            waits = yield from self._begin(fetch, context)
            return waits
        finally:
            if not isinstance(waits, Awaitable):
                self._leave_session(fetch)

    def _begin(self, fetch: Fetch, context: RequestContext) -> Work[FetchResponse | Awaitable[Any]]:
        """Read the records that there are; answer at once if they are enough."""
        is_checked = fetch.rights.is_checked
        if not is_checked:
            fetch.rights.check()
        for entry in fetch.wanted:
            yield
            if fetch.superseded:
                break
            entry.size, entry.answer = 0, None
            if not is_checked or entry.image != self._metadata.version:
                self._resolve(entry, fetch)
            if entry.partition is not None and entry.partition.hooks is not None:
                fetch.has_hooks = True
        if fetch.request.rack_id and self._config["replica.selector.class"] == RACK_AWARE:
            yield from self._send_to_nearest(fetch)
        if not fetch.has_hooks:
            yield from fetch.read()
            is_over = fetch.is_complete or fetch.request.max_wait_ms <= 0 or self._stopping
            if is_over and not fetch.in_remote_storage:
                return (yield from self._answer(fetch, context))
        return self._wait(fetch, context)

    def _leave_session(self, fetch: Fetch) -> None:
        session_id = fetch.session.session_id if fetch.session is not None else NO_SESSION
        if self._in_session.get(session_id) is fetch:
            del self._in_session[session_id]

    async def _wait(self, fetch: Fetch, context: RequestContext) -> FetchResponse:
        loop, slices = asyncio.get_running_loop(), self._slices
        deadline = loop.time() + fetch.request.max_wait_ms / 1000
        try:
            await slices.run(fetch.watch.start(fetch.wanted))
            self._waiting[fetch] = None
            if fetch.has_hooks:
                await fetch.read_with_hooks(slices.pace())
            if fetch.in_remote_storage:
                await fetch.read_remote(max(deadline, loop.time() + self._remote_wait_ms / 1000))
            while not fetch.is_complete and not self._stopping and await fetch.watch.changed(deadline):
                if fetch.has_hooks:
                    await fetch.read_with_hooks(slices.pace())
                else:
                    await slices.run(fetch.read())
                if fetch.in_remote_storage:
                    await fetch.read_remote(deadline)
            return await slices.run(self._answer(fetch, context))
        finally:
            self._waiting.pop(fetch, None)
            self._leave_session(fetch)
            fetch.watch.end()

    def _resolve(self, entry: Wanted, fetch: Fetch) -> None:
        """Find the entry's partition in the present image of the topics, if the client may read it."""
        topic = entry.topic
        if fetch.rights.by_id:
            image = self._metadata.topic_by_id(topic.topic_id)
            if image is not None:
                entry.name = image.name
            elif (
                entry.name
                and self._metadata.topic(entry.name) is not None
                and fetch.rights.may_read(entry.name)
            ):
                # The topic was created again during the session: its log is a different one.
                entry.missing_code = ErrorCode.INCONSISTENT_TOPIC_ID
            else:
                entry.missing_code = ErrorCode.UNKNOWN_TOPIC_ID
            found = image is not None
        else:
            entry.name, found = topic.topic, True
        entry.partition = (
            self._replicas.find_partition(entry.name, entry.request.partition) if found else None
        )
        if fetch.rights.reads_replicas and entry.partition is not None and entry.partition.closed:
            entry.partition = self._followed(entry.partition)
        if entry.partition is None and found:
            entry.missing_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if entry.name and not fetch.rights.may_read(entry.name):
            entry.partition = None
            entry.missing_code = fetch.rights.code_of_denied(entry.name)
        elif fetch.request.isolation_level not in ISOLATION_LEVELS:
            entry.partition = None
            entry.missing_code = ErrorCode.INVALID_REQUEST
        entry.image = self._metadata.version

    def _followed(self, partition: Partition) -> Partition:
        """Return this broker's replica of a partition that another broker leads, if consumers may read it as it is."""
        topic, metadata = partition.topic, self._metadata
        follower = self._replicas.follower(topic.name, partition.index)
        if follower is None or metadata.topic_configs.is_extended(topic):
            return partition
        return follower.readable

    def _send_to_nearest(self, fetch: Fetch) -> Work[None]:
        """Point consumers that give their rack to replicas in it, where that is configured (KIP-392)."""
        brokers = self._metadata.image.brokers
        for entry in fetch.wanted:
            yield
            partition = entry.partition
            entry.preferred = NOBODY
            if (
                isinstance(partition, ReplicatedPartition)
                and partition.hooks is None
                and not self._metadata.topic_configs.is_extended(partition.topic)
            ):
                entry.preferred = nearest_replica(
                    partition, fetch.request.rack_id, entry.request.fetch_offset, brokers
                )

    def _check_again(self, fetch: Fetch) -> Work[None]:
        """Check rights again after they changed since the partitions were looked up; leave out the rest."""
        fetch.rights.check()
        for entry in fetch.wanted:
            yield
            if fetch.superseded:
                return
            was_there = entry.partition is not None
            self._resolve(entry, fetch)
            if was_there and entry.partition is None:
                fetch.forget(entry)

    def _answer(self, fetch: Fetch, context: RequestContext) -> Work[FetchResponse]:
        request, session, version = fetch.request, fetch.session, context.api_version
        while not fetch.rights.is_checked:
            yield from self._check_again(fetch)
        response = FetchResponse(responses=[])
        told = fetch.wanted
        if session is not None:
            if fetch.superseded:
                return _superseded(session)
            response.session_id = session.session_id
            told = yield from session.changes(
                (entry, entry.answer, entry.size) for entry in told if entry.answer is not None
            )
        elif request.session_epoch == INITIAL_EPOCH and version >= _FIRST_VERSION_WITH_SESSIONS:
            response.session_id = yield from self._sessions.begin(
                told, by_id=version >= FIRST_VERSION_WITH_IDS, now=self._clock.monotonic()
            )
            if response.session_id:
                for entry in told:
                    yield
                    entry.note(entry.told())
        topic = None
        for entry in told:
            yield
            if session is not None and fetch.superseded:
                return _superseded(session)
            if entry.topic is not topic:
                topic = entry.topic
                answers: list[PartitionData] = []
                response.responses.append(
                    FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=answers)
                )
            answer = entry.told()
            answers.append(answer)
            if entry.size and entry.partition is not None:
                entry.partition.traffic.sent(entry.size, entry.record_count)
            if answer.error_code in _MOVED and version >= _FIRST_VERSION_WITH_LEADERS:
                self._tell_leader(entry, answer, response, context.listener)
        for entry in told:
            entry.answer = None  # a session remembers the answer's state, not its records
        return response

    def _tell_leader(
        self, entry: Wanted, answer: PartitionData, response: FetchResponse, listener: str
    ) -> None:
        """Name the present leader (KIP-951), so that the client need not ask Metadata."""
        leader = current_leader(self._metadata, entry.name, entry.request.partition)
        if leader is None:
            return
        answer.current_leader = LeaderIdAndEpoch(**leader)
        where = endpoint(self._metadata, self._identity, leader["leader_id"], listener)
        if where is not None and all(known.node_id != where["node_id"] for known in response.node_endpoints):
            response.node_endpoints.append(NodeEndpoint(**where))


def _superseded(session: FetchSession[Any]) -> FetchResponse:
    """Answer a fetch whose session has a later one under way, which owns the partitions now."""
    return FetchResponse(
        error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=session.session_id, responses=[]
    )
