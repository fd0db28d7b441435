"""The transaction coordinator: the thin shell around `broker.transactions.state`.

It owns the transactional ids, feeds them requests and the passing of time, and carries out their effects.

Invariants
- Nothing is acknowledged before its journal record is appended; a failed append changes nothing but the
  answer.
- A transactional id is served only after its journal partition has been read in full
  (COORDINATOR_LOAD_IN_PROGRESS until then). A partition that cannot be read answers
  COORDINATOR_NOT_AVAILABLE: to show its ids as unknown would let zombies go on beside new owners.
- A transaction whose end is decided is ended in every partition, now or after the next start. Markers that
  cannot be written (a full disk) are tried again every second; a partition that is gone needs none.
- The journal is rewritten (live content appended again, what is before it deleted) when it has grown to
  several times its live content, so it does not grow for ever.

Everything runs on the event loop; only reading the journal at start runs in the executor. Usually the end of
a transaction is complete when it is answered, so that the next one need not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from broker.groups.deadlines import Deadlines
from broker.groups.journal import partition_of, warm
from broker.transactions import journal
from broker.transactions.events import (
    Append,
    Appended,
    Effect,
    Event,
    Expire,
    Marked,
    Reply,
    Result,
    Tick,
    WriteMarkers,
)
from broker.transactions.markers import Marker, write_marker
from broker.transactions.model import (
    NEVER,
    Limits,
    Now,
    State,
    StoredTransaction,
    TopicPartition,
    Transaction,
    invariant,
)
from broker.transactions.state import partition_error, restore, step
from protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from broker.cluster.partition import Partition
    from broker.config import BrokerConfig
    from broker.extension import ApiDeclaration, BrokerContext
    from broker.groups.coordinator import GroupCoordinator

logger = logging.getLogger("headrace.transactions")

TOPIC_CONFIG = {"segment.bytes": str(16 << 20), "max.message.bytes": str(64 << 20)}
REWRITE_RECORDS_MIN = 10_000
REWRITE_FACTOR = 4
IDS_PER_TURN = 100
MARKERS_PER_TURN = 32
"""About a millisecond of appends; more of one transaction are written in turns."""

_NEEDS_NO_MARKER = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # deleted
        ErrorCode.POLICY_VIOLATION,  # deleted, and made again as something that has no transactions
        ErrorCode.INVALID_PRODUCER_EPOCH,  # a later marker of this producer is there already
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)


def limits_of(config: BrokerConfig) -> Limits:
    return Limits(
        timeout_ms_max=config["transaction.max.timeout.ms"],
        expiration_ms=config["transactional.id.expiration.ms"],
    )


class TransactionCoordinator:
    def __init__(
        self, context: BrokerContext, groups: GroupCoordinator, limits: Limits | None = None
    ) -> None:
        self.context = context
        self.groups = groups
        self.limits = limits if limits is not None else limits_of(context.config)
        self.transactions: dict[str, Transaction] = {}
        self.ended = {True: 0, False: 0}
        """How many were committed, and how many aborted, since the start."""
        self._partitions: Sequence[Partition] = ()
        self._loading: set[int] = set()
        self._failed: set[int] = set()
        self._rewrite_at: dict[int, int] = {}
        self._rewriting: set[int] = set()
        self._creation: asyncio.Task[None] | None = None
        self._deadlines = Deadlines(context.clock, self._tick)
        self._expiry: asyncio.TimerHandle | None = None
        self._stopped = False

    def apis(self) -> Sequence[ApiDeclaration]:
        """The transaction APIs, to be registered with the broker."""
        from broker.transactions.handlers import TransactionHandlers

        return TransactionHandlers(self).declarations()

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to load the journal in the background; returns before it is loaded."""
        if self.context.metadata.topic(journal.TOPIC) is not None:
            self._partitions = self.context.metadata.partitions(journal.TOPIC)
            self._loading = set(range(len(self._partitions)))
            self.context.start_task(self._load_all(), "load transactions")
        self._arm_expiry()

    async def stop(self) -> None:
        self._stopped = True
        self._deadlines.close()
        if self._expiry is not None:
            self._expiry.cancel()
        if self._creation is not None:
            await asyncio.wait([self._creation])

    async def ensure_topic(self) -> None:
        """Create `__transaction_state` if this is its first use. Raises KafkaError.

        The creation goes on when the client that caused it hangs up, and everybody who needs it shares it.
        """
        if self._partitions:
            return
        if self._creation is None:
            self._creation = asyncio.get_running_loop().create_task(
                self._create_topic(), name="create journal of transactions"
            )
            self._creation.add_done_callback(self._created)
        await asyncio.shield(self._creation)

    async def _create_topic(self) -> None:
        metadata = self.context.metadata
        if metadata.topic(journal.TOPIC) is None:
            count = self.context.config["transaction.state.log.num.partitions"]
            await metadata.create_topic(journal.TOPIC, count, TOPIC_CONFIG)
        await asyncio.get_running_loop().run_in_executor(self.context.executor, warm)
        self._partitions = metadata.partitions(journal.TOPIC)

    def _created(self, creation: asyncio.Task[None]) -> None:
        self._creation = None  # after a failure the next client tries again
        if not creation.cancelled() and (error := creation.exception()) is not None:
            logger.error("%s cannot be created: %s", journal.TOPIC, error)

    # -- requests --------------------------------------------------------------------------------------------

    def now(self) -> Now:
        return Now(self.context.clock.monotonic(), self.context.clock.time_ms())

    def unavailable(self, transactional_id: str) -> ErrorCode:
        """NONE, or why the transactional id cannot be served now."""
        if self._stopped:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if not self._loading and not self._failed:
            return ErrorCode.NONE
        index = partition_of(transactional_id, len(self._partitions))
        if index in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if index in self._failed else ErrorCode.NONE

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    def transaction(self, transactional_id: str) -> Transaction:
        """What is known of it; an empty one that is not kept if nothing is."""
        return self.transactions.get(transactional_id) or Transaction(transactional_id)

    def submit(self, transactional_id: str, event_for: Callable[[int], Event]) -> Result:
        """Let a request happen; `event_for` makes its event from a token."""
        results: dict[int, Result] = {}
        self._run(transactional_id, event_for(0), results)
        invariant(0 in results, f"transactional id {transactional_id!r}: the answer was put off")
        return results[0]

    def partition_error(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partition: TopicPartition
    ) -> ErrorCode:
        """Whether a write is part of the producer's open transaction (rule T2)."""
        error = self.unavailable(transactional_id)
        if error is not ErrorCode.NONE:
            return error
        known = self.transactions.get(transactional_id)
        return partition_error(known, producer_id, producer_epoch, partition)

    # -- steps and effects -----------------------------------------------------------------------------------

    def _run(
        self,
        transactional_id: str,
        event: Event,
        results: dict[int, Result] | None = None,
        now: Now | None = None,
    ) -> None:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            transaction = self.transactions[transactional_id] = Transaction(transactional_id)
        effects: deque[Effect] = deque(step(transaction, event, now or self.now(), self.limits))
        while effects:
            effect = effects.popleft()
            following: Event | None = None
            match effect:
                case Reply(token, result):
                    if results is not None:
                        results[token] = result
                case Append(stored, pending):
                    following = Appended(pending, self._append(transactional_id, stored))
                case WriteMarkers():
                    following = self._begin_marking(transactional_id, effect)
            if following is not None:
                effects.extendleft(reversed(step(transaction, following, self.now(), self.limits)))
        if transaction.stored is None and not transaction.appending:
            self.transactions.pop(transactional_id, None)
            self._deadlines.forget(transactional_id)
        elif transaction.deadline != NEVER:
            self._deadlines.wake(transactional_id, transaction.deadline)

    def _tick(self, transactional_id: str) -> None:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return
        if transaction.deadline > self.context.clock.monotonic():
            # The deadline that was armed belonged to an earlier transaction of this id.
            if transaction.deadline != NEVER:
                self._deadlines.wake(transactional_id, transaction.deadline)
            return
        self._run(transactional_id, Tick())

    def _append(self, transactional_id: str, stored: StoredTransaction | None) -> ErrorCode:
        if not self._partitions:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        index = partition_of(transactional_id, len(self._partitions))
        partition = self._partitions[index]
        try:
            journal.append(partition, transactional_id, stored, self.context.clock.time_ms())
        except KafkaError as error:
            logger.error("transactional id %r: its change cannot be stored: %s", transactional_id, error)
            if error.code is ErrorCode.INVALID_REQUEST:
                return error.code
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        if stored is not None and stored.state.is_ending:
            self.ended[stored.state is State.PREPARE_COMMIT] += 1
        if partition.high_watermark - partition.log.log_start_offset >= self._rewrite_at.get(
            index, REWRITE_RECORDS_MIN
        ):
            self._rewrite_if_worth_it(index)
        return ErrorCode.NONE

    # -- markers ---------------------------------------------------------------------------------------------

    def _begin_marking(self, transactional_id: str, wanted: WriteMarkers) -> Event | None:
        partitions = sorted(wanted.partitions)
        if len(partitions) > MARKERS_PER_TURN:
            self.context.start_task(
                self._mark_in_turns(transactional_id, wanted, partitions), f"end {transactional_id}"
            )
            return None
        return Marked(self._mark(transactional_id, wanted, partitions))

    async def _mark_in_turns(
        self, transactional_id: str, wanted: WriteMarkers, partitions: Sequence[TopicPartition]
    ) -> None:
        for first in range(0, len(partitions), MARKERS_PER_TURN):
            some = partitions[first : first + MARKERS_PER_TURN]
            transaction = self.transactions.get(transactional_id)
            if self._stopped or transaction is None or not transaction.unmarked.issuperset(some):
                return  # another attempt has got there first
            self._run(transactional_id, Marked(self._mark(transactional_id, wanted, some)))
            await asyncio.sleep(0)

    def _mark(
        self, transactional_id: str, wanted: WriteMarkers, partitions: Sequence[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Write markers; gives the partitions that need none any more."""
        index = partition_of(transactional_id, len(self._partitions))
        marker = Marker(
            wanted.producer_id,
            wanted.producer_epoch,
            wanted.commit,
            self._partitions[index].leader_epoch,
            wanted.client_version,
        )
        done = []
        for topic, partition in partitions:
            try:
                write_marker(self.context, self.groups, topic, partition, marker)
            except KafkaError as error:
                level = logging.WARNING if error.code in _NEEDS_NO_MARKER else logging.ERROR
                if error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    level = logging.INFO
                logger.log(
                    level,
                    "transactional id %r: no marker in %s-%d: %s",
                    transactional_id,
                    topic,
                    partition,
                    error,
                )
                if error.code not in _NEEDS_NO_MARKER:
                    continue
            done.append((topic, partition))
        return frozenset(done)

    # -- the journal -----------------------------------------------------------------------------------------

    async def _load_all(self) -> None:
        started = self.context.clock.monotonic()
        await asyncio.get_running_loop().run_in_executor(self.context.executor, warm)
        for index in sorted(self._loading):
            await self._load(index)
        logger.info(
            "loaded %d transactional ids from %d partitions in %.0f ms",
            len(self.transactions),
            len(self._partitions),
            (self.context.clock.monotonic() - started) * 1000,
        )

    async def _load(self, index: int) -> None:
        partition = self._partitions[index]
        try:
            partition.log  # noqa: B018  opened here, on the event loop, which owns it
            stored = await asyncio.get_running_loop().run_in_executor(
                self.context.executor, _read_live, partition
            )
        except Exception as error:  # noqa: BLE001  whatever is wrong with it, the other partitions are served
            logger.error("%s-%d cannot be read; its ids are not served: %s", journal.TOPIC, index, error)
            self._failed.add(index)
            self._loading.discard(index)
            return
        now = self.now()
        for turn, (transactional_id, value) in enumerate(stored.items()):
            transaction = self.transactions[transactional_id] = restore(transactional_id, value, now)
            if transaction.deadline != NEVER:
                self._deadlines.wake(transactional_id, transaction.deadline)
            if turn % IDS_PER_TURN == IDS_PER_TURN - 1:
                await asyncio.sleep(0)
        self._loading.discard(index)
        self._rewrite_if_worth_it(index)

    def _ids_of(self, index: int) -> list[str]:
        count = len(self._partitions)
        return [name for name in self.transactions if partition_of(name, count) == index]

    def _rewrite_if_worth_it(self, index: int) -> None:
        live = len(self._ids_of(index))
        threshold = max(REWRITE_RECORDS_MIN, REWRITE_FACTOR * live)
        partition = self._partitions[index]
        kept = partition.high_watermark - partition.log.log_start_offset
        self._rewrite_at[index] = max(threshold, 2 * kept)
        if kept >= threshold and index not in self._rewriting:
            self._rewriting.add(index)
            self.context.start_task(self._rewrite(index), f"rewrite {journal.TOPIC}-{index}")

    async def _rewrite(self, index: int) -> None:
        """Append the live content again, then delete everything before it; a crash in between leaves some
        records twice, which says the same.
        """
        partition = self._partitions[index]
        start = partition.high_watermark
        try:
            for turn, transactional_id in enumerate(self._ids_of(index)):
                transaction = self.transactions.get(transactional_id)
                if transaction is not None and transaction.stored is not None:
                    now_ms = self.context.clock.time_ms()
                    journal.append(partition, transactional_id, transaction.stored, now_ms)
                if turn % IDS_PER_TURN == IDS_PER_TURN - 1:
                    await asyncio.sleep(0)
            partition.delete_records(start)
        except KafkaError as error:
            logger.warning("%s-%d cannot be rewritten now: %s", journal.TOPIC, index, error)
            return
        finally:
            self._rewriting.discard(index)
        kept = partition.high_watermark - start
        self._rewrite_at[index] = max(REWRITE_RECORDS_MIN, REWRITE_FACTOR * kept)

    # -- expiry ----------------------------------------------------------------------------------------------

    def _arm_expiry(self) -> None:
        interval_ms = self.context.config["transaction.remove.expired.transaction.cleanup.interval.ms"]
        self._expiry = asyncio.get_running_loop().call_later(interval_ms / 1000, self._begin_expiry)

    def _begin_expiry(self) -> None:
        self.context.start_task(self.expire(), "expire transactional ids")

    async def expire(self) -> None:
        """Forget the ids that were not used for long, a few at a time, and come back later."""
        for turn, transactional_id in enumerate(list(self.transactions)):
            if transactional_id in self.transactions:
                ages = Now(self.context.clock.monotonic(), self.context.ages.time_ms())
                self._run(transactional_id, Expire(), now=ages)
            if turn % IDS_PER_TURN == IDS_PER_TURN - 1:
                await asyncio.sleep(0)
        if not self._stopped:
            self._arm_expiry()


def _read_live(partition: Partition) -> dict[str, StoredTransaction]:
    """The last record of each id that has not been buried."""
    live: dict[str, StoredTransaction] = {}
    for transactional_id, stored in journal.read_partition(partition):
        if stored is None:
            live.pop(transactional_id, None)
        else:
            live[transactional_id] = stored
    return live
