"""The group coordinator: a thin shell around the state machine (`broker.groups.state`).

It owns the groups, gives them requests and ticks, and carries out their effects. A reply resolves a waiting request. An
append is stored on the journal before the group continues with it.

Invariants
- A change is acknowledged and shown only when its journal record is stored as `JournalTopic` promises. A failed append
  changes only the answer.
- A group is served only after its journal partition has been read (`JournalTopic`).
- A waiting request is an entry of `_waiting` until it is answered or its client is gone.

All code runs on the event loop, except the reading of the journal at start, which runs in the executor.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from headrace.broker.cluster.journal_topic import JournalTopic, Later
from headrace.broker.groups.group_configs import HEARTBEAT_INTERVAL, SESSION_TIMEOUT, GroupConfigs, limits_of
from headrace.broker.groups.journal import records as journal
from headrace.broker.groups.journal.replay import Replay, live_records
from headrace.broker.groups.model.classic import Phase
from headrace.broker.groups.model.events import (
    Abandoned,
    Append,
    Appended,
    Commit,
    Effect,
    Event,
    ExpireOffsets,
    ForgetTopic,
    OffsetsResult,
    PendingGroupDeletion,
    PendingOffsetDeletion,
    PendingTransactionalCommit,
    Reply,
    Result,
    Tick,
    TransactionalCommit,
    TransactionCommitted,
)
from headrace.broker.groups.model.group import Group
from headrace.broker.groups.model.limits import NEVER, Limits, Now
from headrace.broker.groups.model.records import CommittedOffset, DropOffset
from headrace.broker.groups.offsets.positions import GroupPositions, positions_of
from headrace.broker.groups.offsets.transactional import TransactionalOffsets
from headrace.broker.groups.state import step
from headrace.broker.runtime.deadlines import Deadlines
from headrace.broker.runtime.slices import Work
from headrace.broker.runtime.sweep import Sweep
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from headrace.broker.cluster.topic_changes import TopicChanges
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.runtime.background import BackgroundTasks
    from headrace.broker.runtime.ports import AgeClock, Clock

logger = logging.getLogger("headrace.groups")

R = TypeVar("R")

_FEW_RECORDS = 64
_RECORD_BYTES_MIN = 16  # bytes of any record on the journal, at least


class _Waiter:
    """A request that is not answered yet. It has a `future` if it must wait for other requests."""

    __slots__ = ("future", "group_id", "respond", "result")

    def __init__(self, group_id: str, respond: Callable[[Any], Any]) -> None:
        self.group_id = group_id
        self.respond = respond
        self.result: Result | None = None
        self.future: asyncio.Future[Any] | None = None


class GroupCoordinator:
    def __init__(
        self,
        config: BrokerConfig,
        configs: GroupConfigs,
        metadata: ClusterMetadata,
        replicas: LocalReplicas,
        topics: TopicChanges,
        executor: Executor,
        ages: AgeClock,
        clock: Clock,
        background: BackgroundTasks,
        limits: Limits | None = None,
    ) -> None:
        """`configs` are the configurations of single groups; `start` loads them."""
        self.limits = limits if limits is not None else limits_of(config)
        self.configs = configs
        self.groups: dict[str, Group] = {}
        self.transactional = TransactionalOffsets()
        self.journal = JournalTopic(
            journal.TOPIC,
            self,
            new_partition_count=config["offsets.topic.num.partitions"],
            config={"compression.type": "producer"},
            metadata=metadata,
            replicas=replicas,
            topics=topics,
            executor=executor,
            clock=clock,
            background=background,
        )
        self.changes: Counter[int] = Counter()
        """A number per journal partition that rises with each stored change of its groups."""
        self._storing: Counter[str] = Counter()
        self._deadlines = Deadlines(clock, self._tick)
        self.expiry = Sweep(
            background,
            "the expiry of the offsets of group",
            config["offsets.retention.check.interval.ms"],
            lambda: self.groups,
            self._expire,
        )
        self._waiting: dict[int, _Waiter] = {}
        self._config = config
        self._metadata = metadata
        self._executor = executor
        self._ages = ages
        self._clock = clock
        self._last_token = 0
        self._stopped = False

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to load the journal in the background. Returns before it is loaded."""
        await self.configs.load()
        self.journal.start()
        self.expiry.start()

    async def stop(self) -> None:
        """Stop serving. Waiting requests get COORDINATOR_NOT_AVAILABLE."""
        self._stopped = True
        self._deadlines.close()
        self.expiry.close()
        await self.journal.stop()
        for waiter in self._waiting.values():
            if waiter.future is not None and not waiter.future.done():
                waiter.future.set_exception(
                    KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the broker is stopping")
                )
        self._waiting.clear()

    @property
    def has_journal(self) -> bool:
        return bool(self.journal.partitions)

    # -- requests --------------------------------------------------------------------------------------------

    def now(self) -> Now:
        return Now(self._clock.monotonic(), self._clock.time_ms())

    def _now_for_ages(self) -> Now:
        return Now(self._clock.monotonic(), self._ages.time_ms())

    def unavailable(self, group_id: str) -> ErrorCode:
        """Return why the group cannot be served now, or NONE."""
        if self._stopped:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self.journal.unavailable(group_id)

    def knows(self, group_id: str) -> bool:
        """Return whether the group exists. It exists as soon as an open transaction has committed offsets to it."""
        return group_id in self.groups or bool(self.transactional.unstable_partitions(group_id))

    def submit(
        self, group_id: str, event_for: Callable[[int], Event], respond: Callable[[Any], R]
    ) -> R | asyncio.Future[R]:
        """Apply a request, and return its answer, or a future if it must wait for other requests.

        `event_for` makes the event from a token, `respond` the answer from the result. A caller that stops waiting
        cancels the future.
        """
        self._last_token += 1
        token = self._last_token
        waiter = self._waiting[token] = _Waiter(group_id, respond)
        try:
            self._run(group_id, event_for(token))
        except BaseException:
            self._waiting.pop(token, None)
            raise
        if waiter.result is not None:
            return respond(waiter.result)
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: self._let_go(token, done))
        waiter.future = future
        return future

    def _let_go(self, token: int, future: asyncio.Future[Any]) -> None:
        waiter = self._waiting.pop(token, None)
        if waiter is not None and future.cancelled() and not self._stopped:
            self._run(waiter.group_id, Abandoned(token))

    def tell(self, group_id: str, event: Event) -> None:
        """Apply an event without an answer, if the group exists."""
        if group_id in self.groups and not self._stopped:
            self._run(group_id, event)

    def limits_of_group(self, group_id: str) -> Limits:
        """Return the broker's limits with the group's own configuration."""
        if not self.configs.explicit(group_id):
            return self.limits
        return replace(
            self.limits,
            consumer_session_timeout_ms=self.configs.value(group_id, SESSION_TIMEOUT),
            consumer_heartbeat_interval_ms=self.configs.value(group_id, HEARTBEAT_INTERVAL),
        )

    def forget_topic(self, topic: str) -> None:
        """Drop the committed offsets of a deleted topic."""
        names = [name for name, group in self.groups.items() if topic in group.offsets]
        for group_id in {*names, *self.transactional.groups_with(topic)}:
            self._run(group_id, ForgetTopic(topic, self.transactional.unstable_partitions(group_id)))

    # -- transactions ----------------------------------------------------------------------------------------

    def commit_in_transaction(
        self,
        group_id: str,
        *,
        producer: tuple[int, int],
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Mapping[tuple[str, int], CommittedOffset],
        batch: bytes | None = None,
    ) -> OffsetsResult | asyncio.Future[OffsetsResult]:
        """Commit offsets as part of the transaction of `producer` (id and epoch)."""

        def event(token: int) -> Event:
            commit = Commit(token, member_id, instance_id, generation, offsets, batch=batch)
            return TransactionalCommit(commit, *producer)

        return self.submit(group_id, event, _as_it_is)

    def end_transaction(
        self, index: int, producer_id: int, marker: bytes, later: Later, *, commit: bool
    ) -> bool:
        """Store the marker of a producer's transaction on journal partition `index`, and apply or drop its offsets.

        Returns True if that is done, False if `later` will be called. Raises KafkaError as `JournalTopic.append` does.
        """

        def ended(error: KafkaError | None) -> None:
            if error is None:
                self._ended(index, producer_id, commit=commit)
            later(error)

        if not self.journal.append(index, marker, ended):
            return False
        self._ended(index, producer_id, commit=commit)
        return True

    def _ended(self, index: int, producer_id: int, *, commit: bool) -> None:
        self.changes[index] += 1
        for group_id, offsets in self.transactional.end(index, producer_id).items():
            if commit:
                self._run(group_id, TransactionCommitted(offsets))

    # -- steps and effects -----------------------------------------------------------------------------------

    def _run(self, group_id: str, event: Event, now: Now | None = None) -> None:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id)
        limits, topics = self.limits_of_group(group_id), self._metadata
        effects: deque[Effect] = deque(step(group, event, now or self.now(), limits, topics))
        while effects:
            effect = effects.popleft()
            if isinstance(effect, Reply):
                self._answer(effect.token, effect.result)
            elif (error := self._append(group_id, effect)) is not None:
                # The append may have taken a while: sessions begin when members are answered.
                appended = Appended(effect.pending, error)
                effects.extendleft(reversed(step(group, appended, self.now(), limits, topics)))
        if (group.phase is Phase.DEAD or group.is_disposable) and not self._storing[group_id]:
            self.groups.pop(group_id, None)
            self._deadlines.forget(group_id)
        elif group.next_wake != NEVER:
            self._deadlines.wake(group_id, group.next_wake)

    def _answer(self, token: int, result: Result) -> None:
        waiter = self._waiting.pop(token, None)
        if waiter is None:
            return  # its client is gone
        if waiter.future is None:
            waiter.result = result
        elif not waiter.future.done():
            waiter.future.set_result(waiter.respond(result))

    def _tick(self, group_id: str) -> None:
        if group_id in self.groups:
            self._run(group_id, Tick())

    # -- the journal -----------------------------------------------------------------------------------------

    def _append(self, group_id: str, effect: Append) -> ErrorCode | None:
        """Store records. Returns the outcome, or None if the event `Appended` will report it later."""
        pending, producer = effect.pending, None
        if isinstance(pending, PendingTransactionalCommit):
            producer = (pending.producer_id, pending.producer_epoch)
        if not self.has_journal:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE

        def later(error: KafkaError | None) -> None:
            self._storing[group_id] -= 1
            if not self._storing[group_id]:
                del self._storing[group_id]
            code = self._appended(group_id, effect) if error is None else self._failed(group_id, error)
            self._run(group_id, Appended(pending, code))

        try:
            batch = effect.batch
            if batch is None:
                self._check_size(group_id, len(effect.records))
                batch = journal.encode_journal_batch(effect.records, self._clock.time_ms(), producer)
            if self.journal.append(self.journal.index_of(group_id), batch, later):
                return self._appended(group_id, effect)
        except KafkaError as error:
            return self._failed(group_id, error)
        self._storing[group_id] += 1
        return None

    def batch_bytes_max(self, group_id: str) -> int:
        """Return the largest batch in bytes that a client may commit. The journal must exist.

        The journal may accept larger batches of the coordinator itself; a client's limit is `message.max.bytes`.
        """
        partition = self.journal.partitions[self.journal.index_of(group_id)]
        client_bytes_max: int = self._config["message.max.bytes"]
        return min(partition.log.config.max_message_bytes, client_bytes_max)

    def _check_size(self, group_id: str, records: int) -> None:
        if records <= _FEW_RECORDS:
            return
        partition = self.journal.partitions[self.journal.index_of(group_id)]
        if records * _RECORD_BYTES_MIN > partition.log.config.max_message_bytes:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{records} records do not fit into one batch")

    def _appended(self, group_id: str, effect: Append) -> ErrorCode:
        self.changes[self.journal.index_of(group_id)] += 1
        match effect.pending:
            case PendingTransactionalCommit(commit, producer_id):
                index = self.journal.index_of(group_id)
                self.transactional.add(index, producer_id, group_id, commit.offsets)
            case PendingGroupDeletion() | PendingOffsetDeletion():
                dropped = [record for record in effect.records if isinstance(record, DropOffset)]
                self.transactional.drop(group_id, [(drop.topic, drop.partition) for drop in dropped])
        return ErrorCode.NONE

    def _failed(self, group_id: str, error: KafkaError) -> ErrorCode:
        if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            logger.info("group %s: another broker is its coordinator now: %s", group_id, error)
        else:
            logger.error("group %s: a change could not be stored: %s", group_id, error)
        return _answer_for(error.code)

    def read(self, index: int, partition: Partition) -> Replay:
        """Read a journal partition. This and the next methods are `broker.cluster.journal_topic.Contents`."""
        replay = Replay(index)
        replay.apply(journal.read_partition(partition))
        return replay

    async def adopt(self, index: int, read: Replay) -> None:
        groups = await asyncio.get_running_loop().run_in_executor(
            self._executor, read.groups, self.now(), self.limits
        )
        self.groups.update(groups)
        self.changes[index] += 1
        self.transactional.take_over(read.transactional)
        for group_id, group in groups.items():
            if group.next_wake != NEVER:
                self._deadlines.wake(group_id, group.next_wake)

    def let_go(self, index: int) -> None:
        self.changes[index] += 1
        gone = {group.group_id for group in self._groups_of(index)}
        for group_id in gone:
            del self.groups[group_id]
            self._deadlines.forget(group_id)
        self.transactional.let_go(index)
        for token, waiter in list(self._waiting.items()):
            if self.journal.index_of(waiter.group_id) == index and waiter.future is not None:
                del self._waiting[token]
                if not waiter.future.done():
                    waiter.future.set_exception(
                        KafkaError(
                            ErrorCode.NOT_COORDINATOR,
                            "the coordinator may have moved to another broker",
                        )
                    )

    def _groups_of(self, index: int) -> list[Group]:
        return [group for name, group in self.groups.items() if self.journal.index_of(name) == index]

    def live_keys(self, index: int) -> list[str]:
        return [group.group_id for group in self._groups_of(index)]

    def live_count(self, index: int) -> int:
        return sum(sum(1 for _ in live_records(group)) for group in self._groups_of(index))

    def live_batch(self, key: str) -> bytes | None:
        group = self.groups.get(key)
        records = [] if group is None else list(live_records(group))
        return journal.encode_journal_batch(records, self._clock.time_ms()) if records else None

    def positions(self, indexes: Collection[int]) -> Work[dict[int, list[GroupPositions]]]:
        """Return the stored positions of the groups of these journal partitions, as work that rests between groups.

        Each group is read at one moment. Groups that are let go of meanwhile are missing.
        """
        found: dict[int, list[GroupPositions]] = {index: [] for index in indexes}
        for group_id, group in list(self.groups.items()):
            yield
            index = self.journal.index_of(group_id)
            if index in found and group.offsets:
                found[index].append(positions_of(group))
        return found

    # -- expiry ----------------------------------------------------------------------------------------------

    def _expire(self, group_id: str) -> None:
        """Drop the group's offsets that have passed their retention."""
        if group_id in self.groups:
            unstable = self.transactional.unstable_partitions(group_id)
            self._run(group_id, ExpireOffsets(unstable), self._now_for_ages())


def _as_it_is(result: Any) -> Any:
    return result


def _answer_for(code: ErrorCode) -> ErrorCode:
    """Return the client's error for an error of the journal: a retriable one if a retry can help."""
    if code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if code is ErrorCode.INVALID_REQUEST:
        return code
    if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
