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
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from headrace.broker.api.fetch_sessions import (
    FINAL_EPOCH,
    FIRST_VERSION_WITH_IDS,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    FetchSessions,
    Rights,
    SessionPartition,
)
from headrace.broker.cluster.endpoints import current_leader, endpoint
from headrace.broker.cluster.follower_fetches import FollowerFetches
from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.configs.replication import RACK_AWARE
from headrace.broker.log.errors import InRemoteStorage
from headrace.broker.metadata.cluster import ClusterMetadata
from headrace.broker.metadata.identity import BrokerIdentity
from headrace.broker.partitions.hooks import FetchedRecords
from headrace.broker.partitions.partition import Partition, PartitionChanges
from headrace.broker.replication.followed import FollowedPartition
from headrace.broker.replication.leading import ReplicatedPartition
from headrace.broker.replication.nearest import NOBODY, nearest_replica
from headrace.broker.replication.replicas import LocalReplicas
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.requests.wakeup import Wakeup
from headrace.broker.runtime.ports import Clock, Entropy
from headrace.broker.runtime.slices import Pace, Slices, Work
from headrace.broker.security.quotas.model import Quota
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

logger = logging.getLogger("headrace.api")

_FIRST_VERSION_WITH_SESSIONS = 7
_FIRST_VERSION_WITH_LEADERS = 16
_READ_COMMITTED = 1
_COMPARING = -2
"""The replica id of kafka-replica-verification, which reads from all replicas."""
_WATCHED_ONE_BY_ONE_MAX = 16
"""A fetch of more partitions is told of each change of any partition: one look-up per change costs less than
registering with hundreds of partitions at every poll.
"""
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
        self._sessions: FetchSessions[_Wanted] = FetchSessions(
            config["max.incremental.fetch.session.cache.slots"], entropy.random
        )
        self._waiting: dict[_Fetch, None] = {}  # in the order in which they came
        # The waiting fetch by session id. It goes with its request, which may end before it begins to wait.
        self._in_session: WeakValueDictionary[int, _Fetch] = WeakValueDictionary()
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
        """Answer every waiting fetch with what it has, and let no fetch wait any more."""
        self._stopping = True
        if self._followers is not None:
            self._followers.stop()
        for fetch in tuple(self._waiting):
            fetch.stop()

    def fetch(self, context: RequestContext, request: FetchRequest) -> Work[FetchResponse | Awaitable[Any]]:
        version = context.api_version
        if self._followers is not None and is_follower(request):
            return self._followers.fetch(context, request)
        session = None
        if request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
            session = yield from self._sessions.resume(request, version, self._clock.monotonic(), _Wanted)
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
                    wanted.append(_Wanted(topic, asked))
        fetch = _Fetch(wanted, context, request, self._max_bytes, session, self._replicas.changes)
        if session is None:
            return (yield from self._begin(fetch, version))
        before = self._in_session.get(session.session_id)
        if before is not None:
            before.supersede()
        self._in_session[session.session_id] = fetch
        waits: FetchResponse | Awaitable[Any] | None = None
        try:
            waits = yield from self._begin(fetch, version)
            return waits
        finally:
            if not isinstance(waits, Awaitable):
                self._leave_session(fetch)

    def _begin(self, fetch: _Fetch, version: int) -> Work[FetchResponse | Awaitable[Any]]:
        """Read what there is; answer it if that is enough."""
        is_checked = fetch.is_checked
        if not is_checked:
            fetch.check()
        for entry in fetch.wanted:
            yield
            if fetch.superseded:
                break
            entry.size, entry.answer = 0, None
            if not is_checked or entry.image != self._metadata.version:
                self._resolve(entry, fetch)
            if entry.partition is not None and entry.partition.hooks is not None:
                fetch.has_hooks = True
        if fetch.rack and self._config["replica.selector.class"] == RACK_AWARE:
            yield from self._send_to_nearest(fetch)
        if not fetch.has_hooks:
            yield from fetch.read()
            is_over = fetch.is_complete or fetch.request.max_wait_ms <= 0 or self._stopping
            if is_over and not fetch.in_remote_storage:
                return (yield from self._answer(fetch, version))
        return self._wait(fetch, version)

    def _leave_session(self, fetch: _Fetch) -> None:
        session_id = fetch.session.session_id if fetch.session is not None else NO_SESSION
        if self._in_session.get(session_id) is fetch:
            del self._in_session[session_id]

    async def _wait(self, fetch: _Fetch, version: int) -> FetchResponse:
        loop, slices = asyncio.get_running_loop(), self._slices
        deadline = loop.time() + fetch.request.max_wait_ms / 1000
        try:
            await slices.run(fetch.start_watching())
            self._waiting[fetch] = None
            if fetch.has_hooks:
                await fetch.read_with_hooks(slices.pace())
            if fetch.in_remote_storage:
                await fetch.read_remote(max(deadline, loop.time() + self._remote_wait_ms / 1000))
            while not fetch.is_complete and not self._stopping and await fetch.changed(deadline):
                if fetch.has_hooks:
                    await fetch.read_with_hooks(slices.pace())
                else:
                    await slices.run(fetch.read())
                if fetch.in_remote_storage:
                    await fetch.read_remote(deadline)
            return await slices.run(self._answer(fetch, version))
        finally:
            self._waiting.pop(fetch, None)
            self._leave_session(fetch)
            fetch.stop_watching()

    def _resolve(self, entry: _Wanted, fetch: _Fetch) -> None:
        """Find the entry's partition in the present image of the topics, if the client may read it."""
        topic = entry.topic
        if fetch.by_id:
            image = self._metadata.topic_by_id(topic.topic_id)
            if image is not None:
                entry.name = image.name
            elif entry.name and self._metadata.topic(entry.name) is not None and fetch.may_read(entry.name):
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
        if fetch.reads_replicas and entry.partition is not None and entry.partition.closed:
            entry.partition = self._followed(entry.partition)
        if entry.partition is None and found:
            entry.missing_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if entry.name and not fetch.may_read(entry.name):
            entry.partition = None
            entry.missing_code = fetch.code_of_denied(entry.name)
        entry.image = self._metadata.version

    def _followed(self, partition: Partition) -> Partition:
        """Return this broker's replica of a partition that another broker leads, if consumers may read it as it is."""
        topic, metadata = partition.topic, self._metadata
        follower = self._replicas.follower(topic.name, partition.index)
        if follower is None or metadata.topic_configs.is_extended(topic):
            return partition
        return follower.readable

    def _send_to_nearest(self, fetch: _Fetch) -> Work[None]:
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
                entry.preferred = nearest_replica(partition, fetch.rack, entry.request.fetch_offset, brokers)

    def _check_again(self, fetch: _Fetch) -> Work[None]:
        """Check rights again after they changed since the partitions were looked up; leave out the rest."""
        fetch.check()
        for entry in fetch.wanted:
            yield
            if fetch.superseded:
                return
            was_there = entry.partition is not None
            self._resolve(entry, fetch)
            if was_there and entry.partition is None:
                fetch.forget(entry)

    def _answer(self, fetch: _Fetch, version: int) -> Work[FetchResponse]:
        request, session = fetch.request, fetch.session
        while not fetch.is_checked:
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
                self._tell_leader(entry, answer, response, fetch.listener)
        for entry in told:
            entry.answer = None  # a session remembers the answer's state, not its records
        return response

    def _tell_leader(
        self, entry: _Wanted, answer: PartitionData, response: FetchResponse, listener: str
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


class _Wanted(SessionPartition):
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


class _Fetch:
    """A fetch under way: what is wanted, what was found so far, and which partitions to watch."""

    __slots__ = (
        "__weakref__",
        "_bytes",
        "_callbacks",
        "_changes",
        "_context",
        "_failed",
        "_max_bytes",
        "_moved",
        "_places",
        "_rights",
        "_seen",
        "_wakeup",
        "by_id",
        "has_hooks",
        "in_remote_storage",
        "is_follower",
        "listener",
        "rack",
        "reads_replicas",
        "request",
        "session",
        "superseded",
        "wanted",
    )

    def __init__(
        self,
        wanted: list[_Wanted],
        context: RequestContext,
        request: FetchRequest,
        bytes_max: int,
        session: FetchSession[_Wanted] | None,
        changes: PartitionChanges,
    ) -> None:
        self._changes = changes
        self.listener = context.listener
        self._seen = -1  # how many changes there had been when all was read last
        self._places: dict[Partition, list[int]] = {}  # where to look when a partition moves
        self.wanted = wanted
        self.request = request
        self.session = session
        self.superseded = False
        self._max_bytes = min(request.max_bytes, bytes_max)
        self._bytes = 0
        self._moved: set[Partition] | None = None  # which to read again; None: all
        self._wakeup = Wakeup()
        self._callbacks: list[tuple[Partition, Callable[[], None]]] = []
        self._failed: set[_Wanted] = set()
        self.has_hooks = False
        self.in_remote_storage: list[_Wanted] = []
        """Entries whose records are only in remote storage and are not read yet."""
        self.by_id = context.api_version >= FIRST_VERSION_WITH_IDS
        self.is_follower = is_follower(request)
        self.rack = request.rack_id
        self.reads_replicas = bool(request.rack_id) or _replica_id(request) == _COMPARING
        self._context = context
        self._rights: Rights | None = None if session is None else session.rights

    # -- rights --------------------------------------------------------------------------------------------

    @property
    def is_checked(self) -> bool:
        """Return whether the rights to the partitions are still those that were checked."""
        return self._context.authorizer.is_open or self._rights == self._now()

    def check(self) -> None:
        """Note the present rights as those by which partitions are checked."""
        self._rights = self._now()
        if self.session is not None:
            self.session.rights = self._rights

    def _now(self) -> Rights:
        context = self._context
        return context.authorizer.version, context.principal, context.client_host, self.is_follower

    def may_read(self, topic: str) -> bool:
        """Return whether the topic may be read. A follower that belongs to the cluster may read all."""
        if self.is_follower:
            return self._context.may(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
        return self._context.may(Operation.READ, ResourceType.TOPIC, topic)

    def code_of_denied(self, topic: str) -> ErrorCode:
        """Return the error of a denied topic. Without DESCRIBE, its id is answered as an unknown one."""
        if self.by_id and not self._context.may(Operation.DESCRIBE, ResourceType.TOPIC, topic, audited=False):
            return ErrorCode.UNKNOWN_TOPIC_ID
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED

    def forget(self, entry: _Wanted) -> None:
        """Drop what was read of an entry whose partition is gone."""
        self._begin(entry)

    # -- reading -------------------------------------------------------------------------------------------

    def read(self) -> Work[None]:
        self._seen = self._changes.count
        for entry in self._to_read():
            yield
            if self.superseded:
                return
            if self._begin(entry):
                self._read_log(entry)

    async def read_with_hooks(self, pace: Pace) -> None:
        self._seen = self._changes.count
        for entry in self._to_read():
            await pace.rest()
            if self.superseded:
                return
            if not self._begin(entry):
                continue
            assert entry.partition is not None
            if entry.partition.hooks is None:
                self._read_log(entry)
            else:
                await self._read_hooks(entry)

    def _to_read(self) -> list[_Wanted]:
        moved, self._moved = self._moved, set()
        if moved is None:
            return self.wanted
        indexes = sorted(index for partition in moved for index in self._places[partition])
        return [self.wanted[index] for index in indexes]

    def _begin(self, entry: _Wanted) -> bool:
        """Make the entry's answer, without records. False if records need not be looked for."""
        request, partition = entry.request, entry.partition
        self._bytes -= entry.size
        entry.size = 0
        self._failed.discard(entry)
        if self.session is not None and entry.is_quiet:
            entry.answer = None
            return False
        answer = entry.answer = PartitionData(
            partition_index=request.partition,
            high_watermark=-1,
            aborted_transactions=[] if self.request.isolation_level == _READ_COMMITTED else None,
            records=b"",
        )
        if partition is None:
            self._fail(entry, entry.missing_code)
            return False
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
                    return False
            if not log.log_start_offset <= request.fetch_offset <= log.log_end_offset:
                self._fail(entry, ErrorCode.OFFSET_OUT_OF_RANGE)
            elif entry.preferred != NOBODY:
                answer.preferred_read_replica = entry.preferred
                self._failed.add(entry)
        except KafkaError as error:
            self._fail(entry, error.code, error.message)
        return entry not in self._failed

    def _end_of(self, answer: PartitionData) -> int:
        """Return the end offset of what the reader may see."""
        committed = self.request.isolation_level == _READ_COMMITTED
        return answer.last_stable_offset if committed else answer.high_watermark

    def _limits(self, entry: _Wanted) -> tuple[int, bool]:
        """Return the maximum bytes of the entry, and whether it must have a batch."""
        return min(entry.request.partition_max_bytes, self._max_bytes - self._bytes), self._bytes == 0

    def _read_log(self, entry: _Wanted) -> None:
        partition = entry.partition
        assert partition is not None
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
                self.in_remote_storage.append(entry)
            return
        except Exception as error:  # noqa: BLE001 - of one partition; the others have their own answers
            self._refuse(entry, error)
            return
        if found.size:
            answer.records = found.region
            entry.size, entry.record_count = found.size, found.end_offset - found.start_offset
            self._bytes += found.size

    async def read_remote(self, deadline: float) -> None:
        """Read the records that are only in remote storage, all at the same time. Those that miss the deadline are left
        out; the next fetch finds them under way or read.
        """
        wanted, self.in_remote_storage = self.in_remote_storage, []
        room = self._max_bytes - self._bytes
        reads: dict[asyncio.Future[None], _Wanted] = {}
        for entry in wanted:
            bytes_max = min(entry.request.partition_max_bytes, room)
            must = not reads and self._bytes == 0
            if bytes_max > 0 or must:
                room -= bytes_max
                reads[asyncio.ensure_future(self._read_remote(entry, max(bytes_max, 0), must))] = entry
        if not reads:
            return
        await asyncio.wait(reads, timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
        for read, entry in reads.items():
            if not read.done():
                read.cancel()
            elif not read.cancelled() and (error := read.exception()) is not None:
                self._refuse(entry, error)

    async def _read_remote(self, entry: _Wanted, bytes_max: int, must: bool) -> None:
        partition, answer = entry.partition, entry.told()
        assert partition is not None
        assert partition.remote is not None
        committed = self.request.isolation_level == _READ_COMMITTED
        up_to = self._end_of(answer)
        found = await partition.read_anywhere(entry.request.fetch_offset, bytes_max, must, up_to)
        if found.region is None:
            return
        records = await partition.remote.run(found.region.read)
        if committed:
            answer.aborted_transactions = [
                AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                for aborted in await partition.aborted_transactions(found.start_offset, found.end_offset)
            ]
        answer.records = records
        entry.size, entry.record_count = found.size, found.end_offset - found.start_offset
        self._bytes += found.size

    async def _read_hooks(self, entry: _Wanted) -> None:
        partition = entry.partition
        assert partition is not None
        assert partition.hooks is not None
        if entry.request.fetch_offset >= partition.high_watermark:
            return
        bytes_max, must = self._limits(entry)
        if bytes_max <= 0 and not must:
            return
        try:
            found = await partition.hooks.fetch(entry.request.fetch_offset, max(bytes_max, 0), must)
            if self.superseded:
                return
        except Exception as error:  # noqa: BLE001 - of one partition; the others have their own answers
            self._refuse(entry, error)
            return
        if found.size:
            entry.told().records = found.parts[0] if len(found.parts) == 1 else _Parts(found)
            entry.size, entry.record_count = found.size, found.record_count
            self._bytes += found.size

    def _fail(self, entry: _Wanted, code: ErrorCode, message: str = "") -> None:
        self._failed.add(entry)
        entry.told().error_code = code
        if code == ErrorCode.KAFKA_STORAGE_ERROR:
            logger.error("fetch of %r failed: %s", entry.partition, message)

    def _refuse(self, entry: _Wanted, error: BaseException) -> None:
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

    # -- waiting -------------------------------------------------------------------------------------------

    def start_watching(self) -> Work[None]:
        for index, entry in enumerate(self.wanted):
            yield
            if entry.partition is not None:
                self._places.setdefault(entry.partition, []).append(index)
        if len(self._places) > _WATCHED_ONE_BY_ONE_MAX:
            self._changes.watchers[self._on_any] = None
        else:
            for partition in self._places:
                callback = partial(self._on_moved, partition)
                partition.add_waiter(callback)
                self._callbacks.append((partition, callback))
        if self._moved is None or self._seen == self._changes.count:
            return
        for entry in self.wanted:
            yield
            at = entry.partition
            if at is not None and (at.high_watermark != entry.seen_high_watermark or not at.is_open):
                # It changed after it was read and before it was watched.
                self._moved.add(at)

    def stop_watching(self) -> None:
        self._changes.watchers.pop(self._on_any, None)
        for watched, callback in self._callbacks:
            watched.remove_waiter(callback)
        self._callbacks.clear()

    def _on_any(self, partition: Partition) -> None:
        if partition in self._places:
            self._on_moved(partition)

    def _on_moved(self, partition: Partition) -> None:
        if self._moved is not None:
            self._moved.add(partition)
        self.stop()

    def stop(self) -> None:
        self._wakeup.wake()

    def supersede(self) -> None:
        """Stop: another fetch of the session has begun."""
        self.superseded = True
        self.stop()

    async def changed(self, deadline: float) -> bool:
        """Wait until a partition changes or `stop` is called; False if the deadline comes first."""
        if not self._moved:
            await self._wakeup.wait(deadline)
            return bool(self._moved) and not self.superseded
        return True


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


def is_follower(request: FetchRequest) -> bool:
    """Return whether a broker asks, for its replicas."""
    return _replica_id(request) >= 0


def _replica_id(request: FetchRequest) -> int:
    state = request.replica_state
    return request.replica_id if state is None else state.replica_id


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
