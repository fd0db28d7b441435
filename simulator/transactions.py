"""Transactions in a test: virtual time, partitions and a journal in memory, crashes, lost answers, zombies.

`TransactionWorld` plays the coordinator's shell and the partitions for any number of transactional ids. The journal
goes through Kafka's record format; partitions decide with the log's own `ProducerState`. A crash may come before or
after any append to the journal or a partition; `restart` keeps these and nothing else.

`SimulatedProducer` is a client of either transaction version. Its answers go into `History`, which `check_atomicity`
compares with the view of a read_committed consumer (checker C6).
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.broker.log.producer_state import ProducerState
from headrace.broker.runtime.invariants import invariant
from headrace.broker.transactions.events import (
    AddPartitions,
    Append,
    Appended,
    Effect,
    EndTransaction,
    Event,
    InitProducer,
    Marked,
    Reply,
    Result,
    Tick,
    WriteMarkers,
)
from headrace.broker.transactions.journal import decode_record, encode_record
from headrace.broker.transactions.model import (
    NEVER,
    Limits,
    Now,
    StoredTransaction,
    TopicPartition,
    Transaction,
)
from headrace.broker.transactions.state import RAISES_EPOCH, needs_producer_id, partition_error, restore, step
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.records.control import EndMarker
from headrace.protocol.records.header import MAGIC_V2, TRANSACTIONAL_BIT, BatchHeader

START_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000


class CrashError(Exception):
    """The broker crashed in the middle of a step."""


@dataclass(frozen=True, slots=True)
class Written:
    """One record of a transaction in a partition."""

    producer_id: int
    offset: int
    transaction: int
    number: int


class SimulatedPartition:
    """A log of single-record batches and markers that survives crashes and keeps the log's own rules."""

    def __init__(self) -> None:
        self.state = ProducerState()
        self.records: list[Written] = []
        self.markers: list[tuple[int, int, bool]] = []
        self.aborted: list[tuple[int, int, int]] = []
        self.end_offset = 0

    def write(self, producer_id: int, epoch: int, sequence: int, transaction: int, number: int) -> None:
        """Write as the log does, and raise KafkaError as it does; a repeated batch is accepted and not written
        again.
        """
        header = BatchHeader(
            0, 49, -1, MAGIC_V2, 0, TRANSACTIONAL_BIT, 0, 0, 0, producer_id, epoch, sequence, 1, 1
        )
        if self.state.check(header) is not None:
            return
        self.state.update(header, self.end_offset, 0, 0.0)
        self.records.append(Written(producer_id, self.end_offset, transaction, number))
        self.end_offset += 1

    def mark(self, producer_id: int, epoch: int, commit: bool, *, raises_epoch: bool) -> None:
        self.state.check_marker(producer_id, epoch, 0)
        producer = self.state.producers.get(producer_id)
        if raises_epoch and producer is not None and producer_id in self.state.open_transactions:
            invariant(epoch > producer.epoch, "a marker of version 2 ends the transaction of its own epoch")
        ended = self.state.marker_appended(producer_id, epoch, EndMarker(commit, 0), self.end_offset, 0, 0.0)
        if ended is not None:
            self.aborted.append((producer_id, ended.first_offset, ended.last_offset))
        self.markers.append((producer_id, epoch, commit))
        self.end_offset += 1

    def committed(self) -> list[Written]:
        """Return the records below the last stable offset that were not aborted, as a read_committed consumer does."""
        stable = self.state.first_unstable_offset
        limit = self.end_offset if stable is None else stable
        return [
            record
            for record in self.records
            if record.offset < limit
            and not any(
                record.producer_id == producer_id and first <= record.offset < last
                for producer_id, first, last in self.aborted
            )
        ]


class TransactionWorld:
    def __init__(self, partition_count: int = 3, limits: Limits | None = None) -> None:
        self.limits = limits if limits is not None else Limits()
        self.partitions: dict[TopicPartition, SimulatedPartition] = {
            ("topic", index): SimulatedPartition() for index in range(partition_count)
        }
        self.journal: list[tuple[bytes, bytes | None]] = []
        self.transactions: dict[str, Transaction] = {}
        self.seconds = 1_000.0
        self.wall_offset_ms = 0
        """Milliseconds added to the wall clock: deadlines must not depend on it."""
        self.crash_in: int | None = None
        """Number of the append, from now on, at which the broker crashes."""
        self.append_error = ErrorCode.NONE
        self.marker_error = False
        self._next_producer_id = 0

    @property
    def now(self) -> Now:
        return Now(self.seconds, START_MS + int(self.seconds * 1000) + self.wall_offset_ms)

    def _may_crash(self) -> None:
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in <= 0:
                raise CrashError

    def new_producer_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id

    def run(self, transactional_id: str, event: Event) -> Result:
        """Run an event; return the answer to a request, and nothing useful for other events."""
        transaction = self.transactions.setdefault(transactional_id, Transaction(transactional_id))
        effects: deque[Effect] = deque(step(transaction, event, self.now, self.limits))
        answer = Result(ErrorCode.NONE)
        while effects:
            effect = effects.popleft()
            following: Event | None = None
            if isinstance(effect, Reply):
                answer = effect.result
            elif isinstance(effect, Append):
                following = Appended(effect.pending, self._append(transactional_id, effect.stored))
            else:
                following = Marked(self._mark(effect))
            if following is not None:
                effects.extendleft(reversed(step(transaction, following, self.now, self.limits)))
        return answer

    def _append(self, transactional_id: str, stored: StoredTransaction | None) -> ErrorCode:
        if self.append_error is not ErrorCode.NONE:
            return self.append_error
        self._may_crash()
        self.journal.append(encode_record(transactional_id, stored))
        self._may_crash()
        return ErrorCode.NONE

    def _mark(self, wanted: WriteMarkers) -> frozenset[TopicPartition]:
        done = []
        for key in sorted(wanted.partitions):
            if self.marker_error:
                break
            self._may_crash()
            self.partitions[key].mark(
                wanted.producer_id,
                wanted.producer_epoch,
                wanted.commit,
                raises_epoch=wanted.client_version >= RAISES_EPOCH,
            )
            self._may_crash()
            done.append(key)
        return frozenset(done)

    def restart(self) -> None:
        """Lose everything but the journal and the partitions, and start again."""
        self.crash_in = None
        live: dict[str, StoredTransaction] = {}
        for key, value in self.journal:
            decoded = decode_record(key, value)
            if decoded is None:
                continue
            if decoded[1] is None:
                live.pop(decoded[0], None)
            else:
                live[decoded[0]] = decoded[1]
        self.transactions = {name: restore(name, stored, self.now) for name, stored in live.items()}
        self.tick()

    def tick(self, seconds: float = 0.0) -> None:
        self.seconds += seconds
        for name in list(self.transactions):
            if self.transactions[name].deadline <= self.seconds:
                self.run(name, Tick())

    def settle(self) -> None:
        """Let every deadline pass."""
        self.append_error, self.marker_error, self.crash_in = ErrorCode.NONE, False, None
        for _ in range(3):
            self.tick(self.limits.timeout_ms_max / 1000 + 1)
        for transaction in self.transactions.values():
            at_rest = transaction.stored is None or transaction.stored.state.is_at_rest
            invariant(at_rest and transaction.deadline == NEVER, f"{transaction!r} never ends")

    # -- requests ------------------------------------------------------------------------------------------

    def init(self, transactional_id: str, expected: tuple[int, int] | None = None) -> Result:
        event = InitProducer(0, TIMEOUT_MS, expected)
        known = self.transactions.get(transactional_id) or Transaction(transactional_id)
        if needs_producer_id(known, event):
            event = InitProducer(0, TIMEOUT_MS, expected, self.new_producer_id())
        return self.run(transactional_id, event)

    def add(self, transactional_id: str, producer: tuple[int, int], *partitions: TopicPartition) -> ErrorCode:
        return self.run(transactional_id, AddPartitions(0, *producer, frozenset(partitions))).error

    def end(self, transactional_id: str, producer: tuple[int, int], commit: bool, version: int) -> Result:
        event = EndTransaction(0, *producer, commit, version)
        known = self.transactions.get(transactional_id) or Transaction(transactional_id)
        if needs_producer_id(known, event):
            event = EndTransaction(0, *producer, commit, version, self.new_producer_id())
        return self.run(transactional_id, event)

    def produce(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        key: TopicPartition,
        sequence: int,
        record: tuple[int, int],
        *,
        announces: bool,
    ) -> ErrorCode:
        """Write one record (transaction, number), if `broker.transactions.admission` would admit it."""
        known = self.transactions.get(transactional_id)
        error = partition_error(known, *producer, key)
        if error is ErrorCode.TRANSACTION_ABORTABLE and announces:
            error = self.add(transactional_id, producer, key)
        if error is not ErrorCode.NONE:
            return error
        self._may_crash()
        try:
            self.partitions[key].write(*producer, sequence, *record)
        except KafkaError as refused:
            return refused.code
        self._may_crash()
        return ErrorCode.NONE


@dataclass
class History:
    """Outcomes by transaction (True: committed, False: aborted, None: unknown) and the acknowledged records."""

    outcomes: dict[int, bool | None] = field(default_factory=dict)
    acknowledged: dict[int, set[int]] = field(default_factory=dict)

    def begin(self) -> int:
        transaction = len(self.outcomes)
        self.outcomes[transaction] = None
        self.acknowledged[transaction] = set()
        return transaction


RETRIED = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)


class SimulatedProducer:
    """A client that retries its requests until they are answered, and knows only its answers.

    `version` is that of transactions. With version 2 it may also send again what was answered long ago.
    """

    def __init__(
        self, world: TransactionWorld, history: History, transactional_id: str, version: int
    ) -> None:
        self.world, self.history = world, history
        self.transactional_id, self.version = transactional_id, version
        self.identity: tuple[int, int] | None = None
        self.failed = False
        self.transaction: int | None = None
        self._sent = 0
        self._added: set[TopicPartition] = set()
        self._sequences: dict[TopicPartition, int] = {}
        self._request: tuple[str, Callable[[], ErrorCode]] | None = None
        self._old: list[Callable[[], object]] = []

    def act(self, rng: random.Random) -> None:
        """Do or repeat one step. May raise CrashError."""
        if self.failed:
            return
        if self._request is None:
            self._request = self._choose(rng)
        error = self._request[1]()
        if rng.random() < 0.15:
            return  # the answer is lost; the request is sent again
        self._answered(error)

    def act_late(self, rng: random.Random) -> None:
        """Deliver a request that was sent long ago, perhaps again."""
        if self._old and self.version >= RAISES_EPOCH:
            rng.choice(self._old)()

    def _choose(self, rng: random.Random) -> tuple[str, Callable[[], ErrorCode]]:
        if self.identity is None:
            return "init", self._init
        if self.transaction is None:
            self.transaction = self.history.begin()
            self._sent, self._added = 0, set()
        wants_to_end = self._sent and rng.random() < 0.4
        if wants_to_end:
            return self._end(rng.random() < 0.7)
        key = rng.choice(sorted(self.world.partitions))
        if self.version < RAISES_EPOCH and key not in self._added:
            return self._add(key)
        return self._produce(key)

    def _init(self) -> ErrorCode:
        result = self.world.init(self.transactional_id)
        self._given = (result.producer_id, result.producer_epoch)
        return result.error

    def _add(self, key: TopicPartition) -> tuple[str, Callable[[], ErrorCode]]:
        identity = self._identity()

        def send() -> ErrorCode:
            error = self.world.add(self.transactional_id, identity, key)
            if error is ErrorCode.NONE:
                self._added.add(key)
            return error

        return "add", send

    def _produce(self, key: TopicPartition) -> tuple[str, Callable[[], ErrorCode]]:
        identity, number, transaction = self._identity(), self._sent, self._transaction()
        sequence = self._sequences.get(key, 0)
        self._sequences[key] = sequence + 1
        self._sent += 1

        def send() -> ErrorCode:
            return self.world.produce(
                self.transactional_id,
                identity,
                key,
                sequence,
                (transaction, number),
                announces=self.version >= RAISES_EPOCH,
            )

        self._old.append(send)
        return f"produce {number}", send

    def _end(self, commit: bool) -> tuple[str, Callable[[], ErrorCode]]:
        identity = self._identity()

        def send() -> ErrorCode:
            result = self.world.end(self.transactional_id, identity, commit, self.version)
            self._given = (result.producer_id, result.producer_epoch)
            return result.error

        self._old.append(send)
        return "commit" if commit else "abort", send

    def _identity(self) -> tuple[int, int]:
        assert self.identity is not None
        return self.identity

    def _transaction(self) -> int:
        assert self.transaction is not None
        return self.transaction

    def _answered(self, error: ErrorCode) -> None:
        assert self._request is not None
        if error in RETRIED:
            return
        name = self._request[0]
        if error is not ErrorCode.NONE:
            self.failed = True
            return
        self._request = None
        if name == "init":
            self._take(self._given)
        elif name.startswith("produce"):
            self.history.acknowledged[self._transaction()].add(int(name.split()[1]))
        elif name in ("commit", "abort"):
            self.history.outcomes[self._transaction()] = name == "commit"
            self.transaction = None
            if self.version >= RAISES_EPOCH:
                self._take(self._given)

    def _take(self, identity: tuple[int, int]) -> None:
        self.identity = identity
        self._sequences.clear()


def check_atomicity(world: TransactionWorld, history: History, *, settled: bool = True) -> None:
    """Check C6. Raise InvariantError if it is broken.

    Each record of a committed transaction is seen once, and no record of an aborted one. If the client never learnt the
    outcome, all of its records are seen, or none. Before the world has settled, a committed transaction may be hidden
    in a partition by an earlier open one.
    """
    seen: dict[int, list[int]] = {}
    written: dict[int, set[int]] = {}
    for partition in world.partitions.values():
        for record in partition.records:
            written.setdefault(record.transaction, set()).add(record.number)
        for record in partition.committed():
            seen.setdefault(record.transaction, []).append(record.number)
    for transaction, outcome in history.outcomes.items():
        visible = seen.get(transaction, [])
        invariant(len(visible) == len(set(visible)), f"transaction {transaction} has duplicates: {visible}")
        if outcome is True and settled:
            missing = history.acknowledged[transaction] - set(visible)
            invariant(not missing, f"transaction {transaction} was committed and lacks {missing}")
        if outcome is False:
            invariant(not visible, f"transaction {transaction} was aborted, and {visible} is seen")
        torn = settled and visible and set(visible) != written[transaction]
        invariant(not torn, f"transaction {transaction} is torn: {visible} of {written.get(transaction)}")
    decisions: dict[tuple[int, int], set[bool]] = {}
    for partition in world.partitions.values():
        for producer_id, epoch, commit in partition.markers:
            decisions.setdefault((producer_id, epoch), set()).add(commit)
    # Without raised epochs several transactions share one; with them each decision has its own.
    for (producer_id, epoch), decided in decisions.items():
        if any(
            t.stored is not None and t.stored.client_version >= RAISES_EPOCH
            for t in world.transactions.values()
        ):
            invariant(len(decided) == 1, f"producer {producer_id} epoch {epoch} was ended both ways")
