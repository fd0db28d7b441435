"""A partition with several replicas, which this broker leads.

It differs from `Partition` in these points
- The high watermark is the end that all of the ISR have (`progress`); an append is published when they have it. A write
  that is acknowledged with acks=1 is as durable here as the topic requires; with acks=all it is below the high
  watermark.
- With hooks, the end that all of the ISR have (`replicated_offset`, which followers get) is ahead of the high
  watermark, which follows when the hooks publish it.
- A new leader starts with the high watermark that it knew as a follower. Until that reaches the start of its epoch,
  clients do not get the partition's end (KIP-207): the previous leader may have shown more.
- While the broker is fenced, the high watermark does not move, and no request about the log is answered: another leader
  may have taken over.

Followers fetch up to the log's end (`broker.replication.follower_fetches`). A change of the ISR is proposed here and
written by `replication`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headrace.broker.metadata.events import ChangeIsr
from headrace.broker.partitions.partition import Partition
from headrace.broker.replication.progress import UNKNOWN, Progress
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from headrace.broker.log.config import LogConfig
    from headrace.broker.log.partition_log import PartitionLog
    from headrace.broker.metadata.image import PartitionState
    from headrace.broker.partitions.topic import TopicImage
    from headrace.broker.replication.following import Follower


class Leading(Protocol):
    """The interface of the broker that leaders need."""

    @property
    def broker_id(self) -> int: ...

    @property
    def lag_seconds(self) -> float:
        """Time after which a follower that has not caught up leaves the ISR, in seconds."""

    def now(self) -> float:
        """Return monotonic seconds."""

    def epochs(self) -> Mapping[int, int]:
        """Return the broker epochs of the brokers that may be in an ISR."""

    def appended(self, partition: ReplicatedPartition) -> None:
        """Tell followers that there are more records."""

    def published(self, partition: ReplicatedPartition) -> None:
        """Tell followers that the high watermark or the log's start has moved."""

    def unheard(self, partition: ReplicatedPartition, brokers: Sequence[int]) -> None:
        """Forget the reported progress of these brokers, so that they report it again."""

    def doubted(self, partition: ReplicatedPartition) -> None:
        """Tell sessions that the followers that it vouches for may have changed."""

    def propose(self, partition: ReplicatedPartition, change: ChangeIsr) -> None:
        """Write a proposal; the partition gets the result by `follow` or `refused`."""

    def failed(self, replica: ReplicatedPartition | Follower) -> None:
        """Note that a replica's log is not reliable any more. From any thread."""

    def leads(self, partition: ReplicatedPartition) -> None: ...

    def leads_no_longer(self, partition: ReplicatedPartition) -> None: ...


class Replicating(Leading, Protocol):
    """The interface of the broker that leaders and followers need (`replication.Replication`)."""

    def follows(self, follower: Follower) -> None:
        """Begin to copy for a new follower, or follow its change of leader or epoch."""

    def follows_no_longer(self, follower: Follower) -> None: ...


class ReplicatedPartition(Partition):
    """A partition that this broker leads, with several replicas; see the module."""

    is_replicated = True

    __slots__ = (
        "_is_over",
        "_leading",
        "_local_waiters",
        "_replicated_offset",
        "_told_start",
        "is_damaged",
        "log_failure",
        "progress",
        "state",
    )

    def __init__(
        self,
        topic: TopicImage,
        index: int,
        open_log: Callable[[Partition], PartitionLog],
        *,
        state: PartitionState,
        leading: Leading,
        log: PartitionLog | None = None,
        high_watermark: int = 0,
        **rest: Any,
    ) -> None:
        """`log`: the open log that it has copied as a follower; `high_watermark`: the one that the follower knew."""
        super().__init__(topic, index, open_log, leader_epoch=state.leader_epoch, **rest)
        self.state = state
        self.log_failure: str | None = None
        """The failure of its open log, for the replica that follows after it: a disk that has failed is not tried again
        before a restart.
        """
        self.is_damaged = False
        self.high_watermark = self._replicated_offset = high_watermark
        self._leading = leading
        self._local_waiters: list[asyncio.Future[None]] = []
        self._told_start = -1
        self._is_over = False
        self.progress = Progress(leading.broker_id, state, 0, leading.now())
        if log is not None:
            self._lead_with(log)
        leading.leads(self)

    def _not_opened(self, error: BaseException) -> KafkaError:
        answer = super()._not_opened(error)
        if self.failure is not None:
            self._leading.failed(self)
        return answer

    def fail(self, reason: str) -> None:
        had_failed = self.failure is not None
        super().fail(reason)
        log = self._log
        if log is not None and log.failure is not None and not had_failed:
            if not log.is_interrupted:
                self.log_failure, self.is_damaged = log.failure, log.is_damaged
            self._leading.failed(self)

    def _opened(self, log: PartitionLog) -> None:
        """Begin with an opened log. No request waits yet."""
        self._begin(log)
        self._replicated_offset = min(max(self._replicated_offset, log.log_start_offset), log.log_end_offset)
        self._replicated_offset = self.high_watermark = self._possible_high_watermark(log)

    def _begin(self, log: PartitionLog) -> None:
        leading = self._leading
        self.progress = Progress(leading.broker_id, self.state, log.log_end_offset, leading.now())
        self.progress.own_end = (
            min(log.recovery_point, log.log_end_offset) if log.must_commit else log.log_end_offset
        )

    # -- changes of the state ------------------------------------------------------------------------------

    def renew(self, state: PartitionState) -> None:
        """Lead under a later epoch: the progress of followers belongs to the previous one."""
        self.state = state
        if self.is_open:
            self.leader_epoch = state.leader_epoch
            self.log.assign_epoch(state.leader_epoch)
            self._begin(self.log)
        super().lead(state.leader_epoch)
        self._leading.doubted(self)
        self.advance()

    def follow(self, state: PartitionState) -> None:
        """Follow a change of replicas or ISR in the same epoch."""
        self.state = state
        unheard = self.progress.follow(state)
        if unheard:
            self._leading.unheard(self, unheard)
        self._leading.doubted(self)
        self.advance()

    def refused(self, change: ChangeIsr) -> None:
        """Drop a proposal that was not carried out and never will be."""
        if (change.leader_epoch, change.partition_epoch) == (self.leader_epoch, self.state.partition_epoch):
            self.progress.proposed = None
            self._leading.doubted(self)
            self.look_again()

    def look_again(self) -> None:
        """Check the high watermark and joins again, after live brokers have changed or a proposal was refused."""
        self.advance()
        progress = self.progress
        if self.is_open and not self.closed and len(self.state.isr) <= len(progress.replicas):
            for broker, replica in progress.replicas.items():
                self._join(broker, replica.broker_epoch)

    def reconfigure(self, config: LogConfig) -> None:
        super().reconfigure(config)
        self.look_again()  # `min.insync.replicas` may be smaller

    # -- the high watermark --------------------------------------------------------------------------------

    @property
    def in_sync_count(self) -> int:  # type: ignore[override]
        return self.progress.in_sync_count()

    @property
    def replica_count(self) -> int:  # type: ignore[override]
        return len(self.progress.state.replicas)

    @property
    def is_fenced(self) -> bool:  # type: ignore[override]
        return self._fence is not None and self._fence.is_shut

    @property
    def is_end_known(self) -> bool:  # type: ignore[override]
        return self.high_watermark >= self.progress.start_offset

    @property
    def replicated_offset(self) -> int:
        return self._replicated_offset

    def _possible_high_watermark(self, log: PartitionLog) -> int:
        leading = self._leading
        return min(
            self.progress.high_watermark(
                self._replicated_offset,
                log.config.min_insync_replicas,
                leading.now(),
                leading.lag_seconds,
                leading.epochs(),
            ),
            log.log_end_offset,
        )

    def advance(self) -> None:
        """Publish the end that all of the ISR have, or let the hooks do so."""
        if not self.is_open or self.closed or self.is_fenced:
            return
        if self.state.elr and self.progress.must_end_eligibility(self.log.config.min_insync_replicas):
            self._propose()
        new = self._possible_high_watermark(self.log)
        if new <= self._replicated_offset:
            return
        self._replicated_offset = new
        if self.hooks is not None:
            self.hooks.high_watermark_candidate(new)
        else:
            self.high_watermark = new
            self._moved()
        self._leading.published(self)

    def publish_high_watermark(self, offset: int) -> None:
        if offset > self._replicated_offset:
            raise RuntimeError(
                f"{self!r}: cannot publish {offset}, as only {self._replicated_offset} is replicated"
            )
        super().publish_high_watermark(offset)

    def _replicated(self, offset: int) -> None:
        progress = self.progress
        progress.own_end = max(progress.own_end, offset)
        self._leading.appended(self)
        self.advance()
        if self._local_waiters:
            self._tell_local_waiters()

    def wake(self) -> None:
        super().wake()
        self._tell_local_waiters()
        if self._log is not None and self._log.log_start_offset != self._told_start:
            self._told_start = self._log.log_start_offset
            self._leading.published(self)

    def _tell_local_waiters(self) -> None:
        waiters, self._local_waiters = self._local_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_acknowledged(
        self, offset: int, acks: int, timeout_ms: int, check: Callable[[], None] | None = None
    ) -> bool:
        if acks == 1:
            return await self._wait_durable(offset, timeout_ms)
        if not await self.wait_for_high_watermark(offset, timeout_ms, check):
            return False
        needed = self.needed_in_sync
        if self.in_sync_count < needed:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                f"{self.topic.name}-{self.index} needs min.insync.replicas={needed}; {self.in_sync_count} in sync"
                " after the append",
            )
        return True

    async def _wait_durable(self, offset: int, timeout_ms: int) -> bool:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while self.progress.own_end < offset:
                    self._check_alive()
                    waiter = asyncio.get_running_loop().create_future()
                    self._local_waiters.append(waiter)
                    await waiter
        except TimeoutError:
            return self.progress.own_end >= offset
        return True

    # -- followers -----------------------------------------------------------------------------------------

    def begins_too_late(self, broker: int, start_offset: int) -> bool:
        """Return whether a follower's log lacks the beginning of this one: a power cut may lose its first segments and
        leave later ones. A follower that is in sync or eligible may begin later, if an earlier leader had deleted more.
        """
        begins_at = max(self.log.log_start_offset, self.log.tiered_to)
        return start_offset > begins_at and broker not in {*self.state.isr, *self.state.elr}

    def fetched(self, broker: int, broker_epoch: int, offset: int) -> None:
        """Note that a follower has everything below `offset`. Raises KafkaError if the broker is not a replica."""
        leading, log = self._leading, self.log
        if not self.progress.fetched(broker, broker_epoch, offset, log.log_end_offset, leading.now()):
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"broker {broker} with epoch {broker_epoch} is not a replica of {self.topic.name}-{self.index}",
            )
        self.advance()
        self._join(broker, broker_epoch)

    def lags(self) -> dict[int, int]:
        """Return the number of offsets that each follower lacks."""
        log = self.log
        return self.progress.lags(log.log_start_offset, self._replicated_offset, log.log_end_offset)

    def vouches_for(self, broker: int) -> bool:
        """Return whether a follower may rely on this leader's high watermark: no other leader can have acknowledged
        more without that follower or this broker's fence.
        """
        progress = self.progress
        return (
            self.is_open
            and not self._is_over
            and self.failure is None
            and self._replicated_offset >= progress.start_offset
            and broker in self.state.isr
            and (progress.proposed is None or broker in progress.proposed)
        )

    def had_all(self, broker: int, at: float) -> None:
        """Note that a follower that has not fetched since was complete at that time."""
        self.progress.had_all(broker, at)

    def _join(self, broker: int, broker_epoch: int) -> None:
        if (
            self.progress.joining(broker, self._replicated_offset)
            and self._leading.epochs().get(broker) == broker_epoch
            and (self.hooks is None or self.hooks.may_join(broker, broker_epoch))
        ):
            self._propose(joins=broker)

    def check_lag(self) -> None:
        """Propose an ISR without followers that lag for too long. A log that reads have found damaged fails."""
        if not self.is_open:
            return
        if self.log.failure is not None:
            self.fail(self.log.failure)
            return
        leading = self._leading
        behind = self.progress.lagging(self.progress.own_end, leading.now(), leading.lag_seconds)
        if behind:
            self._propose(leave=behind)
        self.look_again()  # lagging followers are not waited for any more

    def _propose(self, *, joins: int | None = None, leave: list[int] | None = None) -> None:
        leading, state = self._leading, self.state
        epochs = leading.epochs()
        isr = self.progress.propose(
            joins=joins, leave=leave, known=lambda broker: epochs.get(broker, UNKNOWN)
        )
        leading.doubted(self)
        leading.propose(
            self,
            ChangeIsr(
                self.topic.name,
                self.index,
                leading.broker_id,
                state.leader_epoch,
                state.partition_epoch,
                isr,
                self.needed_in_sync,
            ),
        )

    # -- the end -------------------------------------------------------------------------------------------

    async def close(self, executor: Any = None) -> None:
        self._is_over = True
        self._leading.leads_no_longer(self)
        await super().close(executor)

    async def drop(self) -> None:
        self._is_over = True
        self._leading.leads_no_longer(self)
        await super().drop()
