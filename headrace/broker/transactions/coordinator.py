"""The transaction coordinator: the thin shell around `broker.transactions.state`.

It owns the transactional ids, feeds them requests and the passing of time, and carries out their effects.

Invariants
- Nothing is acknowledged or shown before its journal record is stored as `JournalTopic` promises. A failed append
  changes nothing but the answer.
- A transactional id is served only after its journal partition has been read (`JournalTopic`). If ids looked unknown
  before, zombies could continue beside new owners.
- A decision is stored before the first marker is written. The markers are stored, each as durably as its topic demands,
  before the transaction is complete.
- A transaction with a decided end is ended in every partition, now or after the next start, by this broker or by its
  coordinator at that time. Markers that cannot be written (a full disk, an unavailable leader) are tried again every
  second, at the leader at that time; a deleted partition needs none.

Everything runs on the event loop, except that the executor reads the journal at the start. Usually the end of a
transaction is complete when it is answered, so that the next transaction need not wait for it. An answer is delayed for
at most a second for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.cluster.journal_topic import JournalTopic
from headrace.broker.runtime.deadlines import Deadlines
from headrace.broker.runtime.sweep import Sweep
from headrace.broker.transactions import journal
from headrace.broker.transactions.events import (
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
from headrace.broker.transactions.markers import Marker, write_marker
from headrace.broker.transactions.model import (
    NEVER,
    Limits,
    Now,
    State,
    StoredTransaction,
    TopicPartition,
    Transaction,
)
from headrace.broker.transactions.others import Others
from headrace.broker.transactions.state import partition_error, restore, step
from headrace.broker.transactions.verification import Guards
from headrace.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from headrace.broker.cluster.metadata_follower import MetadataFollower
    from headrace.broker.cluster.topic_changes import TopicChanges
    from headrace.broker.configs.broker_config import BrokerConfig
    from headrace.broker.groups.coordinator import GroupCoordinator
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.net.peers import Peers
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.replication.replicas import LocalReplicas
    from headrace.broker.runtime.background import BackgroundTasks
    from headrace.broker.runtime.ports import AgeClock, Clock

logger = logging.getLogger("headrace.transactions")

R = TypeVar("R")

IDS_PER_TURN = 100
STOP_SECONDS = 2
"""Maximum time that a stop waits for ends that are being stored; decided transactions are completed after the next
start.
"""
MARKERS_PER_TURN = 32
"""Maximum number of markers in a turn, about a millisecond of appends; a transaction with more is written in several
turns.
"""

_NEEDS_NO_MARKER = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # deleted
        ErrorCode.POLICY_VIOLATION,  # deleted, and created again as a topic without transactions
        ErrorCode.INVALID_PRODUCER_EPOCH,  # a later marker of this producer is there already
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    }
)

_PASSES = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


def limits_of(config: BrokerConfig) -> Limits:
    return Limits(
        timeout_ms_max=config["transaction.max.timeout.ms"],
        expiration_ms=config["transactional.id.expiration.ms"],
    )


class TransactionCoordinator:
    def __init__(
        self,
        config: BrokerConfig,
        groups: GroupCoordinator,
        metadata: ClusterMetadata,
        replicas: LocalReplicas,
        topics: TopicChanges,
        following: MetadataFollower,
        executor: Executor,
        ages: AgeClock,
        clock: Clock,
        background: BackgroundTasks,
        peers: Peers,
        broker_id: int,
    ) -> None:
        self.groups = groups
        self.limits = limits_of(config)
        self.transactions: dict[str, Transaction] = {}
        self.ended = {True: 0, False: 0}
        """Number of transactions that were committed, and that were aborted, since the start."""
        self.journal = JournalTopic(
            journal.TOPIC,
            self,
            new_partition_count=config["transaction.state.log.num.partitions"],
            config={"compression.type": "uncompressed", "unclean.leader.election.enable": "false"},
            metadata=metadata,
            replicas=replicas,
            topics=topics,
            executor=executor,
            clock=clock,
            background=background,
        )
        self.guards = Guards()
        self._others = Others(peers, metadata, following, broker_id, background)
        self._replicas = replicas
        self._ages = ages
        self._clock = clock
        self._background = background
        self._last_token = 0
        self._waiting: dict[int, tuple[asyncio.Future[Any], Callable[[Result], Any]]] = {}
        self._storing: dict[str, asyncio.Future[None]] = {}
        self._marking: dict[str, set[TopicPartition]] = {}
        self._kept_replies: dict[str, list[Reply]] = {}
        self._deadlines = Deadlines(clock, self._tick)
        self.expiry = Sweep(
            background,
            "the expiry of transactional id",
            config["transaction.remove.expired.transaction.cleanup.interval.ms"],
            lambda: self.transactions,
            self._expire,
        )
        self._stopped = False

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to load the journal in the background; returns before it is loaded."""
        self.journal.start()
        self.expiry.start()

    async def stop(self) -> None:
        self._stopped = True
        self._deadlines.close()
        self.expiry.close()
        if self._waiting:
            await asyncio.wait([future for future, _ in self._waiting.values()], timeout=STOP_SECONDS)
        await self.journal.stop()
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(
                    KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "the broker is stopping")
                )
        self._waiting.clear()

    # -- requests --------------------------------------------------------------------------------------------

    def now(self) -> Now:
        return Now(self._clock.monotonic(), self._clock.time_ms())

    def unavailable(self, transactional_id: str) -> ErrorCode:
        """Return NONE, or the reason why the transactional id cannot be served now."""
        if self._stopped:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return self.journal.unavailable(transactional_id)

    def refusal(self, transactional_id: str) -> ErrorCode:
        """Return NONE, or the reason why a request that names the id is refused."""
        return self.unavailable(transactional_id) if transactional_id else ErrorCode.INVALID_REQUEST

    async def ask_coordinator(
        self, transactional_id: str, producer: tuple[int, int], partition: TopicPartition, *, announces: bool
    ) -> ErrorCode:
        """Return the answer of `admission.part_of_transaction` at the broker that coordinates the id."""
        coordinated_at = self.journal.name, self.journal.index_of(transactional_id)
        return await self._others.part_of_transaction(
            coordinated_at, transactional_id, producer, partition, announces=announces
        )

    def transaction(self, transactional_id: str) -> Transaction:
        """Return the state of the id; an empty one that is not kept if the id is unknown."""
        return self.transactions.get(transactional_id) or Transaction(transactional_id)

    def submit(
        self, transactional_id: str, event_for: Callable[[int], Event], respond: Callable[[Result], R]
    ) -> R | asyncio.Future[R]:
        """Carry out a request. `event_for` makes its event from a token; `respond` answers with the result.

        Return the answer, or a future of it if the journal takes its time.
        """
        self._last_token += 1
        token = self._last_token
        results: dict[int, Result] = {}
        self._run(transactional_id, event_for(token), results)
        if token in results:
            return respond(results[token])
        future: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting[token] = (future, respond)
        return future

    def storing(self, transactional_id: str) -> asyncio.Future[None] | None:
        """Return a future of the end of the append: until then a record of the id is on its way to the journal, and
        nothing else can be decided.
        """
        transaction = self.transactions.get(transactional_id)
        if transaction is None or not transaction.appending:
            return None
        future = self._storing.get(transactional_id)
        if future is None:
            future = self._storing[transactional_id] = asyncio.get_running_loop().create_future()
        return future

    def partition_error(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partition: TopicPartition
    ) -> ErrorCode:
        """Return whether a write is part of the producer's open transaction (rule T2)."""
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
                case Reply():
                    if self._is_ending(transaction):
                        self._kept_replies.setdefault(transactional_id, []).append(effect)
                    else:
                        self._reply(effect, results)
                case Append():
                    error = self._append(transactional_id, effect)
                    following = None if error is None else Appended(effect.pending, error)
                case WriteMarkers():
                    following = self._begin_marking(transactional_id, effect)
            if following is not None:
                effects.extendleft(reversed(step(transaction, following, self.now(), self.limits)))
        if transactional_id in self._kept_replies and not self._is_ending(transaction):
            for kept in self._kept_replies.pop(transactional_id):
                self._reply(kept, results)
        if transaction.stored is None and not transaction.appending:
            self.transactions.pop(transactional_id, None)
            self._deadlines.forget(transactional_id)
        elif transaction.deadline != NEVER and not transaction.appending:
            # A tick does nothing while a record is being stored; its consequences are handled here.
            self._deadlines.wake(transactional_id, transaction.deadline)

    def _is_ending(self, transaction: Transaction) -> bool:
        """Return whether the end is decided and still being stored: an answer now would come too early."""
        stored, transactional_id = transaction.stored, transaction.transactional_id
        if stored is None or not stored.state.is_ending:
            return False
        return transaction.appending or bool(self._marking.get(transactional_id))

    def _reply(self, reply: Reply, results: dict[int, Result] | None) -> None:
        if reply.token in self._waiting:
            future, respond = self._waiting.pop(reply.token)
            if not future.done():
                future.set_result(respond(reply.result))
        elif results is not None:
            results[reply.token] = reply.result

    def _tick(self, transactional_id: str) -> None:
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            return
        if transaction.deadline > self._clock.monotonic():
            # The deadline that was set belonged to an earlier transaction of this id.
            if transaction.deadline != NEVER:
                self._deadlines.wake(transactional_id, transaction.deadline)
            return
        for kept in self._kept_replies.pop(transactional_id, ()):
            self._reply(kept, None)  # the end is decided, and a marker takes its time
        self._run(transactional_id, Tick())

    def _append(self, transactional_id: str, effect: Append) -> ErrorCode | None:
        """Return the outcome, or None if the append takes its time: then the transaction is told later."""
        if not self.journal.partitions:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE

        def later(error: KafkaError | None) -> None:
            code = self._decided(effect) if error is None else self._failed(transactional_id, error)
            self._run(transactional_id, Appended(effect.pending, code))
            storing = self._storing.pop(transactional_id, None)
            if storing is not None:
                storing.set_result(None)

        try:
            now_ms = self._clock.time_ms()
            batch = journal.encode_journal_batch(transactional_id, effect.stored, now_ms)
            is_stored = self.journal.append(self.journal.index_of(transactional_id), batch, later)
        except KafkaError as error:
            return self._failed(transactional_id, error)
        return self._decided(effect) if is_stored else None

    def _decided(self, stored: Append) -> ErrorCode:
        """Count a stored decision, and return its outcome."""
        if stored.stored is not None and stored.stored.state.is_ending:
            self.ended[stored.stored.state is State.PREPARE_COMMIT] += 1
        return ErrorCode.NONE

    def _failed(self, transactional_id: str, error: KafkaError) -> ErrorCode:
        if error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            logger.info("transactional id %r: another broker coordinates it now: %s", transactional_id, error)
            return ErrorCode.NOT_COORDINATOR
        logger.error("transactional id %r: its change cannot be stored: %s", transactional_id, error)
        return error.code if error.code is ErrorCode.INVALID_REQUEST else ErrorCode.COORDINATOR_NOT_AVAILABLE

    # -- markers ---------------------------------------------------------------------------------------------

    def _begin_marking(self, transactional_id: str, wanted: WriteMarkers) -> Event | None:
        partitions = sorted(wanted.partitions)
        if len(partitions) > MARKERS_PER_TURN:
            self._background.start(
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
                return  # another attempt was faster
            self._run(transactional_id, Marked(self._mark(transactional_id, wanted, some)))
            await asyncio.sleep(0)

    def _mark(
        self, transactional_id: str, wanted: WriteMarkers, partitions: Sequence[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Write markers; return the partitions that need none any more."""
        index = self.journal.index_of(transactional_id)
        marker = Marker(
            wanted.producer_id,
            wanted.producer_epoch,
            wanted.commit,
            self.journal.partitions[index].leader_epoch,
            wanted.client_version,
        )
        now_ms = self._clock.time_ms()
        transaction = self.transactions[transactional_id]
        on_their_way = self._marking.setdefault(transactional_id, set())
        done = []
        for place in partitions:
            if place in on_their_way:
                continue
            try:
                later = partial(self._marked_later, transaction, place)
                if self._others.leads_elsewhere(place):
                    self._others.write_marker(place, marker, later)
                    on_their_way.add(place)
                    continue
                if not write_marker(self._replicas, self.groups, *place, marker, now_ms, later, self.guards):
                    on_their_way.add(place)
                    continue
            except KafkaError as error:
                if not self._needs_no_marker(transactional_id, place, error):
                    continue
            done.append(place)
        if not on_their_way:
            del self._marking[transactional_id]
        return frozenset(done)

    def _marked_later(
        self, transaction: Transaction, place: TopicPartition, error: KafkaError | None
    ) -> None:
        transactional_id = transaction.transactional_id
        if self._stopped or self.transactions.get(transactional_id) is not transaction:
            # the id was released, and perhaps read again: the marker may be that of an earlier transaction
            return
        on_their_way = self._marking[transactional_id]
        on_their_way.discard(place)
        if not on_their_way:
            del self._marking[transactional_id]
        if error is None or self._needs_no_marker(transactional_id, place, error):
            self._run(transactional_id, Marked(frozenset({place})))
        elif transactional_id in self._kept_replies and not on_their_way:
            self._run(transactional_id, Marked(frozenset()))  # it is tried again, and no request waits for it

    def _needs_no_marker(self, transactional_id: str, place: TopicPartition, error: KafkaError) -> bool:
        """Log why a partition has no marker."""
        level = logging.WARNING if error.code in _NEEDS_NO_MARKER else logging.ERROR
        if error.code in _PASSES:
            level = logging.INFO
        logger.log(level, "transactional id %r: no marker in %s-%d: %s", transactional_id, *place, error)
        return error.code in _NEEDS_NO_MARKER

    # -- the journal -----------------------------------------------------------------------------------------

    def read(self, index: int, partition: Partition) -> dict[str, StoredTransaction]:
        """Return the last record of each id without a tombstone. Part of the journal's interface, as the following
        methods (`broker.cluster.journal_topic.Contents`).
        """
        live: dict[str, StoredTransaction] = {}
        for transactional_id, stored in journal.read_partition(partition):
            if stored is None:
                live.pop(transactional_id, None)
            else:
                live[transactional_id] = stored
        return live

    async def adopt(self, index: int, read: dict[str, StoredTransaction]) -> None:
        now = self.now()
        for turn, (transactional_id, value) in enumerate(read.items()):
            transaction = self.transactions[transactional_id] = restore(transactional_id, value, now)
            if transaction.deadline != NEVER:
                self._deadlines.wake(transactional_id, transaction.deadline)
            if turn % IDS_PER_TURN == IDS_PER_TURN - 1:
                await asyncio.sleep(0)

    def let_go(self, index: int) -> None:
        for transactional_id in self.live_keys(index):
            del self.transactions[transactional_id]
            self._deadlines.forget(transactional_id)
            self._marking.pop(transactional_id, None)
            for reply in self._kept_replies.pop(transactional_id, ()):
                future, _ = self._waiting.pop(reply.token, (None, None))
                if future is not None and not future.done():
                    future.set_exception(
                        KafkaError(
                            ErrorCode.NOT_COORDINATOR, "another broker may coordinate the transaction now"
                        )
                    )

    def live_keys(self, index: int) -> list[str]:
        return [name for name in self.transactions if self.journal.index_of(name) == index]

    def live_count(self, index: int) -> int:
        return len(self.live_keys(index))

    def live_batch(self, key: str) -> bytes | None:
        stored = self.transaction(key).stored
        return None if stored is None else journal.encode_journal_batch(key, stored, self._clock.time_ms())

    # -- expiry ----------------------------------------------------------------------------------------------

    def _expire(self, transactional_id: str) -> None:
        """Forget the id if it was not used for long."""
        if transactional_id in self.transactions:
            ages = Now(self._clock.monotonic(), self._ages.time_ms())
            self._run(transactional_id, Expire(), now=ages)
