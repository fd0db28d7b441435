"""Load on a server that is killed now and then, and the history of its clients.

Threads with confluent-kafka: idempotent producers, a transactional one that commits and aborts in turn, a reader that
commits its offsets in a group, and members of a group that share the partitions. They go on through restarts;
`problems` then judges everything with the checkers.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from waits import Said, Waits

from simulator.histories import (
    Outcome,
    Poll,
    Send,
    Transaction,
    by_place,
    check_delivery,
    check_offsets,
    check_transactions,
)

PARTITIONS = 2
DEADLINE_SECONDS = 60
CONNECTION = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 50,
    "log_level": 0,
}
"""Settings of clients that reconnect quickly, and log nothing about a broker that is away."""


def create_topic(
    address: str, topic: str, partitions: int = PARTITIONS, replicas: int = 1, **config: str
) -> None:
    admin = AdminClient({**CONNECTION, "bootstrap.servers": address})
    new = NewTopic(topic, partitions, replicas, config=config)
    admin.create_topics([new])[topic].result(DEADLINE_SECONDS)


def outcome_of(error: KafkaError | None) -> Outcome:
    """Return an outcome; a producer that gave up does not know whether the record was appended."""
    return Outcome.OK if error is None else Outcome.UNKNOWN


def read_all(address: str, topic: str, reader: str, *, committed: bool = False) -> list[Poll]:
    """Read everything in the topic up to the present ends, as long as something new comes within a minute."""
    consumer = Consumer(
        {
            **CONNECTION,
            "bootstrap.servers": address,
            "group.id": reader,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
    )
    count = len(consumer.list_topics(topic, DEADLINE_SECONDS).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, index, 0) for index in range(count)])
    polls, at_end, deadline = [], set(), time.monotonic() + DEADLINE_SECONDS
    while len(at_end) < count:
        if time.monotonic() > deadline:
            raise AssertionError(f"the ends of {topic} were not reached; {len(polls)} records were read")
        for message in consumer.consume(1000, 0.5):
            if message.error() is None:
                deadline = time.monotonic() + DEADLINE_SECONDS
                place = (topic, message.partition())
                polls.append(Poll(reader, place, message.offset(), message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            else:
                raise KafkaException(message.error())
    consumer.close()
    return polls


class Load:
    """`plain` and `transactional` are topics that exist. `pause_seconds` is between two records of a producer."""

    def __init__(
        self,
        address: str,
        *,
        plain: str,
        transactional: str = "",
        producers: int = 2,
        members: int = 0,
        acks: str = "all",
        seed: int = 1,
        pause_seconds: float = 0.002,
        waits: Waits | None = None,
    ) -> None:
        """Create the load. `waits` is told of two waits for each record.

        The first ends with its acknowledgement. It begins with the record, or with the acknowledgement before it in its
        partition if that came later. The second ends when the reader has the record.
        """
        self.address = address
        self.plain = plain
        self.transactional = transactional
        self.acks = acks
        self.pause_seconds = pause_seconds
        self.sends: list[Send] = []
        self.polls: list[Poll] = []
        self.transactions: list[Transaction] = []
        self.committed_positions: dict[int, int] = {}
        self.failures: list[BaseException] = []
        self.acknowledged = 0
        self.longest_wait = 0.0
        """Longest time in seconds between two acknowledgements."""
        self._acknowledged_at = time.monotonic()
        self._waits = waits or Waits()
        self._unread: dict[int, deque[tuple[int, float]]] = defaultdict(deque)
        """Acknowledged and unread offsets by partition, with the time of the acknowledgement."""
        self._read_to: dict[int, int] = defaultdict(lambda: -1)
        self._seed = seed
        self._group_faults: list[str] = []
        self._stored: dict[int, int] = {}
        self._stop = threading.Event()
        self._sends_of: dict[str, list[list]] = defaultdict(list)
        work: list[Callable[[], None]] = [self._reader]
        work += [lambda name=f"p{number}": self._producer(name) for number in range(producers)]
        work += [lambda name=f"m{number}": self._member(name) for number in range(members)]
        if transactional:
            work.append(self._transactions)
        self._threads = [threading.Thread(target=self._run, args=(target,)) for target in work]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(3 * DEADLINE_SECONDS)
        if any(thread.is_alive() for thread in self._threads):
            raise AssertionError("a client did not come to its end after the server was back")

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  told in the test's own thread
            self.failures.append(error)

    # -- clients -------------------------------------------------------------------------------------------

    def _producer(self, name: str) -> None:
        rng, said = random.Random(f"{self._seed}{name}"), Said()
        producer = Producer(
            {
                **CONNECTION,
                "bootstrap.servers": self.address,
                "error_cb": said,
                "enable.idempotence": self.acks == "all",
                "acks": self.acks,
                "linger.ms": 2,
                "batch.num.messages": 40,
                # No record is abandoned: librdkafka would start a new epoch then, and send records again that the
                # broker may have appended under the old one, which no broker can recognise.
                "message.timeout.ms": 0,
            }
        )
        entries, last = self._sends_of[name], [0.0] * PARTITIONS
        for number in itertools.count():
            if self._stop.is_set():
                break
            value = f"{name}-{number}".encode() + b"." * rng.choice([0, 10, 400])
            entry = [(self.plain, number % PARTITIONS), value, Outcome.UNKNOWN, -1]
            entries.append(entry)
            produced_at = time.monotonic()

            def delivered(error, message, entry=entry, produced_at=produced_at) -> None:
                entry[2] = outcome_of(error)
                if error is None:
                    # The offset is missing if only a later answer told the client that the record was appended.
                    index, offset = entry[0][1], -1 if message.offset() is None else message.offset()
                    entry[3] = offset
                    self._count_acknowledged()
                    began, last[index] = max(produced_at, last[index]), time.monotonic()
                    self._waits.over("produce", began, self.plain, index, lambda: said.since(began))
                    if offset > self._read_to[index]:
                        self._unread[index].append((offset, time.monotonic()))

            while True:
                try:
                    producer.produce(self.plain, value, partition=number % PARTITIONS, on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)  # the client's queue is full until the broker answers
            producer.poll(0)
            if number % 8 == 0:
                time.sleep(self.pause_seconds * 8)
        if producer.flush(2 * DEADLINE_SECONDS):
            raise AssertionError(f"{name} could not be rid of its records")

    def _count_acknowledged(self) -> None:
        now = time.monotonic()
        self.longest_wait = max(self.longest_wait, now - self._acknowledged_at)
        self._acknowledged_at = now
        self.acknowledged += 1

    def _reader(self) -> None:
        said = Said()
        consumer = Consumer(
            {
                **CONNECTION,
                "error_cb": said,
                "bootstrap.servers": self.address,
                "group.id": f"group-{self.plain}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        consumer.assign([TopicPartition(self.plain, index, 0) for index in range(PARTITIONS)])
        while not self._stop.is_set():
            messages = consumer.consume(500, 0.1)
            for message in messages:
                if message.error() is None:
                    place = (self.plain, message.partition())
                    self.polls.append(Poll("reader", place, message.offset(), message.value()))
                    self._note_read(message.partition(), message.offset(), said)
                elif message.error().code() == KafkaError._AUTO_OFFSET_RESET:
                    raise KafkaException(message.error())  # records that it had read were removed
            if messages:
                self.committed_positions |= self._commit(consumer)
        consumer.close()

    def _note_read(self, index: int, offset: int, said: Said) -> None:
        self._read_to[index] = offset
        unread = self._unread[index]
        while unread and unread[0][0] <= offset:
            _, since = unread.popleft()
            self._waits.over("consume", since, self.plain, index, lambda since=since: said.since(since))

    def _commit(self, consumer: Consumer) -> dict[int, int]:
        """Commit; return the acknowledged offsets."""
        wanted = [part for part in consumer.position(consumer.assignment()) if part.offset >= 0]
        try:
            stored = consumer.commit(offsets=wanted, asynchronous=False) if wanted else []
        except KafkaException:
            return {}
        return {part.partition: part.offset for part in stored or [] if part.error is None}

    def _member(self, name: str) -> None:
        """Run a member of a group that never goes back: it begins at the committed offset, and skips nothing."""
        consumer = Consumer(
            {
                **CONNECTION,
                "bootstrap.servers": self.address,
                "group.id": f"members-{self.plain}",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
            }
        )
        next_offsets, rng = dict[int, int](), random.Random(f"{self._seed}{name}")

        def assigned(consumer: Consumer, parts: list[TopicPartition]) -> None:
            least = dict(self._stored)
            found = self._committed(consumer, parts)
            next_offsets.clear()
            for part in parts:
                part.offset = next_offsets[part.partition] = max(found[part.partition], 0)
                if part.offset < least.get(part.partition, 0):
                    self._group_faults.append(
                        f"{name} is to begin at {part.offset} of {self.plain}-{part.partition}, "
                        f"{least[part.partition]} had been acknowledged"
                    )
            consumer.assign(parts)

        consumer.subscribe([self.plain], on_assign=assigned)
        since_commit = 0
        while not self._stop.is_set():
            message = consumer.poll(0.1)
            if message is None:
                pass
            elif message.error() is None:
                index, offset = message.partition(), message.offset()
                if next_offsets.get(index) != offset:
                    self._group_faults.append(
                        f"{name} got {offset} of {self.plain}-{index}, {next_offsets.get(index)} comes next"
                    )
                next_offsets[index] = offset + 1
                since_commit += 1
            elif message.error().code() == KafkaError._AUTO_OFFSET_RESET:
                raise KafkaException(message.error())
            if since_commit > rng.randrange(20, 400):
                since_commit = 0
                for index, offset in self._commit(consumer).items():
                    self._stored[index] = max(self._stored.get(index, 0), offset)
        consumer.close()

    def _committed(self, consumer: Consumer, parts: list[TopicPartition]) -> dict[int, int]:
        deadline = time.monotonic() + 2 * DEADLINE_SECONDS
        while True:
            try:
                found = consumer.committed(parts, 5)
            except KafkaException:
                if time.monotonic() > deadline or self._stop.is_set():
                    raise
                continue
            if all(part.error is None for part in found):
                return {part.partition: part.offset for part in found}

    def _transactions(self) -> None:
        producer = None
        for number in itertools.count():
            if self._stop.is_set():
                return
            name = f"t{number}"
            records = tuple(
                ((self.transactional, part % PARTITIONS), f"{name}.{part}".encode()) for part in range(4)
            )
            outcome = Outcome.FAILED  # until its end is requested
            try:
                if producer is None:
                    producer = self._transactional_producer()
                producer.begin_transaction()
                for (topic, index), value in records:
                    producer.produce(topic, value, partition=index)
                if number % 3 == 2:
                    self._end(producer.abort_transaction)
                else:
                    outcome = Outcome.UNKNOWN
                    self._end(producer.commit_transaction)
                    outcome = Outcome.OK
            except KafkaException as error:
                if error.args[0].txn_requires_abort():
                    outcome = Outcome.FAILED
                    try:
                        self._end(producer.abort_transaction)
                    except KafkaException:
                        producer = None
                else:
                    producer = None
            self.transactions.append(Transaction(name, records, outcome))
            time.sleep(self.pause_seconds * 10)

    def _transactional_producer(self) -> Producer:
        producer = Producer(
            {
                **CONNECTION,
                "bootstrap.servers": self.address,
                "transactional.id": f"id-{self.transactional}",
                "linger.ms": 0,
            }
        )
        self._end(producer.init_transactions)
        return producer

    def _end(self, call: Callable[[float], None]) -> None:
        """Retry until there is an answer: a retriable error only means that the time was up."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                return call(5)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    # -- judgement -----------------------------------------------------------------------------------------

    def wait_for_more(self, count: int, seconds: float = DEADLINE_SECONDS) -> None:
        """Wait until that many more records are acknowledged: a healed server makes progress."""
        enough, deadline = self.acknowledged + count, time.monotonic() + seconds
        while self.acknowledged < enough:
            if self.failures:
                raise self.failures[0]
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"in {seconds} s only {self.acknowledged - enough + count} were acknowledged"
                )
            time.sleep(0.01)

    def problems(self) -> list[str]:
        """Return the problems, after everything has ended on a healthy server."""
        if self.failures:
            raise self.failures[0]
        self.sends = [
            Send(name, place, value, outcome, offset)
            for name, entries in self._sends_of.items()
            for place, value, outcome, offset in entries
        ]
        final = by_place(read_all(self.address, self.plain, "final"))
        found = check_delivery(self.sends, final, idempotent=self.acks == "all")
        found += check_offsets(self.sends, self.polls, final)
        found += self._group_problems()
        if self.transactional:
            committed = by_place(read_all(self.address, self.transactional, "final", committed=True))
            found += check_transactions(self.transactions, committed)
            everything = by_place(read_all(self.address, self.transactional, "all"))
            found += check_offsets([], [], everything, gaps_allowed=True)
        return found

    def _group_problems(self) -> list[str]:
        return [
            *self._group_faults,
            *self._position_problems(f"group-{self.plain}", self.committed_positions),
            *self._position_problems(f"members-{self.plain}", self._stored),
        ]

    def _position_problems(self, group: str, acknowledged: dict[int, int]) -> list[str]:
        if not acknowledged:
            return []
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": group})
        asked = [TopicPartition(self.plain, index) for index in acknowledged]
        stored = {part.partition: part.offset for part in consumer.committed(asked, DEADLINE_SECONDS)}
        consumer.close()
        return [
            f"{group} is at {stored.get(index)} of {self.plain}-{index}, {offset} was acknowledged"
            for index, offset in acknowledged.items()
            if stored.get(index, -1) < offset
        ]

    def figures(self) -> str:
        ended = sum(transaction.outcome is Outcome.OK for transaction in self.transactions)
        return (
            f"{self.acknowledged} of {sum(map(len, self._sends_of.values()))} records acknowledged, "
            f"{len(self.polls)} read meanwhile, {ended} of {len(self.transactions)} transactions committed"
        )
