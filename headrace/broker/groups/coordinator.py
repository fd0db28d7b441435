"""The group coordinator: the thin shell around `broker.groups.state`.

It owns the groups, feeds them requests and the passing of time, and carries out their effects: a reply resolves the
request that waits for it, an append goes to the journal before anything that depends on it happens.

Invariants
- Nothing is acknowledged, or shown, before its journal record is stored as `JournalTopic` promises; a failed append
  changes nothing but the answer.
- A group is served only after its journal partition has been read (`JournalTopic`).
- A waiting request is an entry in `_waiting`; it goes with its answer or with its client.

Everything runs on the event loop; only reading the journal at start runs in the executor.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from headrace.broker.cluster.journal_topic import JournalTopic, Later
from headrace.broker.groups.group_configs import HEARTBEAT_INTERVAL, SESSION_TIMEOUT, GroupConfigs
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

    from headrace.broker.cluster.topics import TopicManager
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.runtime.background import BackgroundTasks
    from headrace.broker.runtime.ports import AgeClock, Clock

logger = logging.getLogger("headrace.groups")

R = TypeVar("R")

_FEW_RECORDS = 64
_RECORD_BYTES_MIN = 16  # of anything in the journal


def limits_of(config: BrokerConfig) -> Limits:
    policy = config["group.consumer.migration.policy"]
    return Limits(
        initial_rebalance_delay_ms=config["group.initial.rebalance.delay.ms"],
        session_timeout_ms_min=config["group.min.session.timeout.ms"],
        session_timeout_ms_max=config["group.max.session.timeout.ms"],
        group_size_max=config["group.max.size"],
        offset_metadata_size_max=config["offset.metadata.max.bytes"],
        offsets_retention_ms=config["offsets.retention.minutes"] * 60_000,
        consumer_session_timeout_ms=config["group.consumer.session.timeout.ms"],
        consumer_heartbeat_interval_ms=config["group.consumer.heartbeat.interval.ms"],
        consumer_group_size_max=config["group.consumer.max.size"],
        allows_upgrade=policy in ("upgrade", "bidirectional"),
        allows_downgrade=policy in ("downgrade", "bidirectional"),
        consumer_assignors=tuple(config["group.consumer.assignors"]),
    )


class _Waiter:
    """A request between its arrival and its answer; `future` once it is known that others must act first."""

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
        metadata: TopicManager,
        executor: Executor,
        ages: AgeClock,
        clock: Clock,
        background: BackgroundTasks,
        limits: Limits | None = None,
    ) -> None:
        """`configs`: what groups set for themselves; loaded with the coordinator's `start`."""
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
            executor=executor,
            clock=clock,
            background=background,
        )
        self.changes: Counter[int] = Counter()
        """By journal partition: goes up with whatever changes what is stored of its groups."""
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
        """Begin to load the journal in the background; returns before it is loaded."""
        await self.configs.load()
        self.journal.start()
        self.expiry.start()

    async def stop(self) -> None:
        """Stop serving. Requests that still wait are told to find another coordinator."""
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
        """NONE, or why the group cannot be served now."""
        if self._stopped:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self.journal.unavailable(group_id)

    def knows(self, group_id: str) -> bool:
        """A group is there as soon as a transaction has committed offsets to it, though it has not ended."""
        return group_id in self.groups or bool(self.transactional.unstable_partitions(group_id))

    def submit(
        self, group_id: str, event_for: Callable[[int], Event], respond: Callable[[Any], R]
    ) -> R | asyncio.Future[R]:
        """Let a request happen. `event_for` makes its event from a token, `respond` answers with the result.

        Gives the answer, or a future of it if others have to act first. Whoever drops that future cancels it.
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
        """Let something happen to a group that exists; nobody waits for an answer."""
        if group_id in self.groups and not self._stopped:
            self._run(group_id, event)

    def limits_of_group(self, group_id: str) -> Limits:
        """The broker's limits with what the group sets for itself."""
        if not self.configs.explicit(group_id):
            return self.limits
        return replace(
            self.limits,
            consumer_session_timeout_ms=self.configs.value(group_id, SESSION_TIMEOUT),
            consumer_heartbeat_interval_ms=self.configs.value(group_id, HEARTBEAT_INTERVAL),
        )

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: drop what was committed for it."""
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
        """Commit as part of the transaction of `producer` (id and epoch)."""

        def event(token: int) -> Event:
            commit = Commit(token, member_id, instance_id, generation, offsets, batch=batch)
            return TransactionalCommit(commit, *producer)

        return self.submit(group_id, event, _as_it_is)

    def end_transaction(
        self, index: int, producer_id: int, marker: bytes, later: Later, *, commit: bool
    ) -> bool:
        """Put the marker of a producer's transaction on journal partition `index`; then its offsets count, or not.

        True if that is done, False if `later` will be told. Raises KafkaError like `JournalTopic.append`.
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
                # The append may have taken a while: sessions begin when their members are answered.
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
        """The outcome, or None if it takes its time: then the group hears of it later."""
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
        """What the journal takes at once; it must be there. It may take more of the coordinator's own than what Kafka
        takes of a client, `message.max.bytes`.
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
            logger.info("group %s: another broker coordinates it now: %s", group_id, error)
        else:
            logger.error("group %s: its change cannot be stored: %s", group_id, error)
        return _answer_for(error.code)

    def read(self, index: int, partition: Partition) -> Replay:
        """For the journal, like what follows (`broker.cluster.journal_topic.Contents`)."""
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
                        KafkaError(ErrorCode.NOT_COORDINATOR, "another broker may coordinate the group now")
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
        """Of the groups of these journal partitions that have any, as they are stored: of each as of one moment. As
        work that rests between groups; what is let go of meanwhile is missing.
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
        """Drop its offsets whose retention is over."""
        if group_id in self.groups:
            unstable = self.transactional.unstable_partitions(group_id)
            self._run(group_id, ExpireOffsets(unstable), self._now_for_ages())


def _as_it_is(result: Any) -> Any:
    return result


def _answer_for(code: ErrorCode) -> ErrorCode:
    """What a client is told when the journal refused a record: something it retries, if that can help."""
    if code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if code is ErrorCode.INVALID_REQUEST:
        return code
    if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return ErrorCode.NOT_COORDINATOR
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
