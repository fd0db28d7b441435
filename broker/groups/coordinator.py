"""The group coordinator: the thin shell around `broker.groups.state`.

It owns the groups, feeds them requests and the passing of time, and carries out their effects: a reply
resolves the request that waits for it, an append goes to the journal before anything that depends on it
happens.

Invariants
- Nothing is acknowledged before its journal record is appended; a failed append changes nothing but the
  answer.
- A group is served only after its journal partition has been read in full (COORDINATOR_LOAD_IN_PROGRESS until
  then). A partition that cannot be read answers COORDINATOR_NOT_AVAILABLE: to show its groups as empty would
  send consumers back to the beginning.
- A waiting request is an entry in `_waiting`; it goes with its answer or with its client.
- The journal is rewritten (live content appended again, what is before it deleted) when it has grown to
  several times its live content, after loading and while running, so it does not grow for ever.

Everything runs on the event loop; only reading the journal at start runs in the executor.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from broker.groups import journal
from broker.groups.deadlines import Deadlines
from broker.groups.events import (
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
from broker.groups.group_configs import HEARTBEAT_INTERVAL, SESSION_TIMEOUT, GroupConfigs
from broker.groups.model import (
    NEVER,
    CommittedOffset,
    DropOffset,
    Group,
    JournalRecord,
    Limits,
    Now,
    Phase,
    invariant,
)
from broker.groups.modern.patterns import PatternResolver
from broker.groups.replay import Replay, live_records
from broker.groups.state import step
from broker.groups.transactional import TransactionalOffsets
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.cluster.partition import Partition
    from broker.config import BrokerConfig
    from broker.extension import ApiDeclaration, BrokerContext

logger = logging.getLogger("headrace.groups")

R = TypeVar("R")

# Kafka's own settings for this topic, as far as they apply: whole groups must fit into one record, and small
# segments let a rewrite give disk space back.
TOPIC_CONFIG = {"segment.bytes": str(16 << 20), "max.message.bytes": str(64 << 20)}
REWRITE_RECORDS_MIN = 10_000
REWRITE_FACTOR = 4
GROUPS_PER_TURN = 100


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
    def __init__(self, context: BrokerContext, limits: Limits | None = None) -> None:
        self.context = context
        self.limits = limits if limits is not None else limits_of(context.config)
        self.configs = GroupConfigs(context.store, context.config)
        self.patterns = PatternResolver(self)
        self.groups: dict[str, Group] = {}
        self.transactional = TransactionalOffsets()
        self._partitions: Sequence[Partition] = ()
        self._loading: set[int] = set()
        self._failed: set[int] = set()
        self._rewrite_at: dict[int, int] = {}
        self._rewriting: set[int] = set()
        self._creation: asyncio.Task[None] | None = None
        self._deadlines = Deadlines(context.clock, self._tick)
        self._expiry: asyncio.TimerHandle | None = None
        self._waiting: dict[int, _Waiter] = {}
        self._last_token = 0
        self._stopped = False

    def apis(self) -> Sequence[ApiDeclaration]:
        """The consumer group APIs, to be registered with the broker."""
        from broker.groups.handlers import GroupHandlers
        from broker.groups.modern.handlers import ConsumerGroupHandlers

        return [*GroupHandlers(self).declarations(), *ConsumerGroupHandlers(self).declarations()]

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to load the journal in the background; returns before it is loaded."""
        await self.configs.load()
        if self.context.metadata.topic(journal.TOPIC) is not None:
            self._partitions = self.context.metadata.partitions(journal.TOPIC)
            self._loading = set(range(len(self._partitions)))
            self.context.start_task(self._load_all(), "load consumer groups")
        self._arm_expiry()

    async def stop(self) -> None:
        """Stop serving. Requests that still wait are told to find another coordinator."""
        self._stopped = True
        self._deadlines.close()
        if self._expiry is not None:
            self._expiry.cancel()
        if self._creation is not None:
            await asyncio.wait([self._creation])
        for waiter in self._waiting.values():
            if waiter.future is not None and not waiter.future.done():
                waiter.future.set_exception(
                    KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the broker is stopping")
                )
        self._waiting.clear()

    async def ensure_topic(self) -> None:
        """Create `__consumer_offsets` if this is its first use. Raises KafkaError.

        The creation goes on when the client that caused it hangs up, and everybody who needs it shares it.
        """
        if self._partitions:
            return
        if self._creation is None:
            self._creation = asyncio.get_running_loop().create_task(
                self._create_topic(), name="create journal"
            )
            self._creation.add_done_callback(self._created)
        await asyncio.shield(self._creation)

    async def _create_topic(self) -> None:
        metadata = self.context.metadata
        if metadata.topic(journal.TOPIC) is None:
            count = self.context.config["offsets.topic.num.partitions"]
            await metadata.create_topic(journal.TOPIC, count, TOPIC_CONFIG)
        await asyncio.get_running_loop().run_in_executor(self.context.executor, journal.warm)
        self._partitions = metadata.partitions(journal.TOPIC)

    def _created(self, creation: asyncio.Task[None]) -> None:
        self._creation = None  # after a failure the next client tries again
        if not creation.cancelled() and (error := creation.exception()) is not None:
            logger.error("%s cannot be created: %s", journal.TOPIC, error)

    @property
    def has_journal(self) -> bool:
        return bool(self._partitions)

    # -- requests --------------------------------------------------------------------------------------------

    def now(self) -> Now:
        return Now(self.context.clock.monotonic(), self.context.clock.time_ms())

    def _now_for_ages(self) -> Now:
        return Now(self.context.clock.monotonic(), self.context.ages.time_ms())

    def unavailable(self, group_id: str) -> ErrorCode:
        """NONE, or why the group cannot be served now."""
        if self._stopped:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not self._loading and not self._failed:
            return ErrorCode.NONE
        index = journal.partition_of(group_id, len(self._partitions))
        if index in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if index in self._failed else ErrorCode.NONE

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

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

    def is_loaded(self, index: int) -> bool:
        """Whether a journal partition has been read, so that what is appended to it is not missed."""
        return index not in self._loading and index not in self._failed and not self._stopped

    def journal_partition(self, group_id: str) -> tuple[str, int]:
        """Where the group's offsets are written; the topic must be there."""
        return journal.TOPIC, journal.partition_of(group_id, len(self._partitions))

    def commit_in_transaction(
        self,
        group_id: str,
        *,
        producer: tuple[int, int],
        member_id: str,
        instance_id: str | None,
        generation: int,
        offsets: Mapping[tuple[str, int], CommittedOffset],
    ) -> OffsetsResult:
        """Commit as part of the transaction of `producer` (id and epoch)."""

        def event(token: int) -> Event:
            commit = Commit(token, member_id, instance_id, generation, offsets)
            return TransactionalCommit(commit, *producer)

        result: Any = self.submit(group_id, event, _as_it_is)
        invariant(isinstance(result, OffsetsResult), f"group {group_id}: the answer was put off")
        committed: OffsetsResult = result
        return committed

    def end_transaction(self, index: int, producer_id: int, *, commit: bool) -> None:
        """The marker of a producer's transaction is on journal partition `index`: its offsets count, or not."""
        for group_id, offsets in self.transactional.end(index, producer_id).items():
            if commit:
                self._run(group_id, TransactionCommitted(offsets))

    # -- steps and effects -----------------------------------------------------------------------------------

    def _run(self, group_id: str, event: Event, now: Now | None = None) -> None:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id)
        limits, topics = self.limits_of_group(group_id), self.context.metadata
        effects: deque[Effect] = deque(step(group, event, now or self.now(), limits, topics))
        while effects:
            effect = effects.popleft()
            if isinstance(effect, Reply):
                self._answer(effect.token, effect.result)
            else:
                # The append may have taken a while: sessions begin when their members are answered.
                appended = Appended(effect.pending, self._append_effect(group_id, effect))
                effects.extendleft(reversed(step(group, appended, self.now(), limits, topics)))
        if group.phase is Phase.DEAD or group.is_disposable:
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

    def _append_effect(self, group_id: str, effect: Append) -> ErrorCode:
        pending = effect.pending
        if not isinstance(pending, PendingTransactionalCommit):
            error = self._append(group_id, effect.records)
            if error is ErrorCode.NONE and isinstance(pending, (PendingGroupDeletion, PendingOffsetDeletion)):
                dropped = [record for record in effect.records if isinstance(record, DropOffset)]
                self.transactional.drop(group_id, [(drop.topic, drop.partition) for drop in dropped])
            return error
        error = self._append(group_id, effect.records, (pending.producer_id, pending.producer_epoch))
        if error is ErrorCode.NONE:
            index = journal.partition_of(group_id, len(self._partitions))
            self.transactional.add(index, pending.producer_id, group_id, pending.commit.offsets)
        return error

    def _append(
        self, group_id: str, records: Sequence[JournalRecord], producer: tuple[int, int] | None = None
    ) -> ErrorCode:
        if not self._partitions:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        index = journal.partition_of(group_id, len(self._partitions))
        partition = self._partitions[index]
        try:
            journal.append(partition, records, self.context.clock.time_ms(), producer)
        except KafkaError as error:
            logger.error("group %s: its change cannot be stored: %s", group_id, error)
            return _answer_for(error.code)
        if partition.high_watermark - partition.log.log_start_offset >= self._rewrite_at.get(
            index, REWRITE_RECORDS_MIN
        ):
            self._rewrite_if_worth_it(index)
        return ErrorCode.NONE

    async def _load_all(self) -> None:
        started = self.context.clock.monotonic()
        await asyncio.get_running_loop().run_in_executor(self.context.executor, journal.warm)
        for index in sorted(self._loading):
            await self._load(index)
        logger.info(
            "loaded %d consumer groups from %d partitions in %.0f ms",
            len(self.groups),
            len(self._partitions),
            (self.context.clock.monotonic() - started) * 1000,
        )

    async def _load(self, index: int) -> None:
        partition = self._partitions[index]
        try:
            partition.log  # noqa: B018  opened here, on the event loop, which owns it
            replay = Replay(index)
            groups = await asyncio.get_running_loop().run_in_executor(
                self.context.executor, _read_groups, replay, partition, self.now(), self.limits
            )
        except Exception as error:  # noqa: BLE001  whatever is wrong with it, the other partitions are served
            logger.error("%s-%d cannot be read; its groups are not served: %s", journal.TOPIC, index, error)
            self._failed.add(index)
        else:
            self.groups.update(groups)
            self.transactional.take_over(replay.transactional)
            for group_id, group in groups.items():
                if group.next_wake != NEVER:
                    self._deadlines.wake(group_id, group.next_wake)
            self._rewrite_if_worth_it(index)
        finally:
            self._loading.discard(index)

    def _groups_of(self, index: int) -> Iterable[Group]:
        count = len(self._partitions)
        return [group for name, group in self.groups.items() if journal.partition_of(name, count) == index]

    def _rewrite_if_worth_it(self, index: int) -> None:
        live = sum(sum(1 for _ in live_records(group)) for group in self._groups_of(index))
        threshold = max(REWRITE_RECORDS_MIN, REWRITE_FACTOR * live)
        partition = self._partitions[index]
        kept = partition.high_watermark - partition.log.log_start_offset
        self._rewrite_at[index] = max(threshold, 2 * kept)
        if kept >= threshold and index not in self._rewriting:
            self._rewriting.add(index)
            self.context.start_task(self._rewrite(index), f"rewrite {journal.TOPIC}-{index}")

    async def _rewrite(self, index: int) -> None:
        """Append the live content again, then delete everything before it.

        A crash in between leaves some records twice, which says the same. Each group is written in one turn
        of the event loop, from its state at that time, so its records are never older than what precedes
        them.
        """
        partition = self._partitions[index]
        start = partition.high_watermark
        try:
            for turn, group in enumerate(self._groups_of(index)):
                if self.groups.get(group.group_id) is group and (records := list(live_records(group))):
                    journal.append(partition, records, self.context.clock.time_ms())
                if turn % GROUPS_PER_TURN == GROUPS_PER_TURN - 1:
                    await asyncio.sleep(0)
            # What open transactions have committed is nowhere else.
            partition.delete_records(min(start, partition.last_stable_offset))
        except KafkaError as error:
            logger.warning("%s-%d cannot be rewritten now: %s", journal.TOPIC, index, error)
            return
        finally:
            self._rewriting.discard(index)
        kept = partition.high_watermark - start
        self._rewrite_at[index] = max(REWRITE_RECORDS_MIN, REWRITE_FACTOR * kept)
        logger.info("rewrote %s-%d: %d records are left of %d", journal.TOPIC, index, kept, start + kept)

    # -- expiry ----------------------------------------------------------------------------------------------

    def _arm_expiry(self) -> None:
        interval_s = self.context.config["offsets.retention.check.interval.ms"] / 1000
        self._expiry = asyncio.get_running_loop().call_later(interval_s, self._begin_expiry)

    def _begin_expiry(self) -> None:
        self.context.start_task(self.expire_offsets(), "expire committed offsets")

    async def expire_offsets(self) -> None:
        """Drop the offsets whose retention is over, a few groups at a time, and come back later."""
        for turn, group_id in enumerate(list(self.groups)):
            if group_id in self.groups:
                unstable = self.transactional.unstable_partitions(group_id)
                self._run(group_id, ExpireOffsets(unstable), self._now_for_ages())
            if turn % GROUPS_PER_TURN == GROUPS_PER_TURN - 1:
                await asyncio.sleep(0)
        if not self._stopped:
            self._arm_expiry()


def _read_groups(replay: Replay, partition: Partition, now: Now, limits: Limits) -> dict[str, Group]:
    replay.apply(journal.read_partition(partition))
    return replay.groups(now, limits)


def _as_it_is(result: Any) -> Any:
    return result


def _answer_for(code: ErrorCode) -> ErrorCode:
    """What a client is told when the journal refused a record: something it retries, if that can help."""
    if code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    if code is ErrorCode.INVALID_REQUEST:
        return code
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
