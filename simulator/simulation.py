"""One run of the simulator: a whole broker, clients that record their answers, faults, and the checks.

A seed decides everything: the broker's durability, the faults and their times, and how the clients' requests
interleave. `simulate` returns the problems, none if every promise was kept. The same seed gives the same trace.

- `kill`: with the default `durability=process`, processes are killed, also in the middle of a write, and stopped.
- `power`: with `durability=power`, the power is cut too, and unsynced data is lost or torn. A topic of
  `durability=process` beside it loses at most the end of its log.

The clients are idempotent producers with several batches under way, transactional producers, a reader of all records, a
read_committed reader, and a group that commits offsets. They retry requests without an answer, as Kafka's clients do.
More work (tables) comes as a `Workload`.

At the end everything is healed. Each client must make progress within 20 seconds of virtual time (R9), and the records
are compared with the acknowledged ones (C1, C2, C6 of `histories.py`).
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from headrace.broker.extension import Extension
from headrace.broker.runtime.open_files import SEGMENT_FILES
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.protocol.records.encode import Record, build_batch
from simulator.direct import values_of
from simulator.disk import Fault, Tear
from simulator.histories import (
    Outcome,
    Place,
    Poll,
    Send,
    Transaction,
    check_delivery,
    check_offsets,
    check_position,
    check_transactions,
)
from simulator.transactional_client import Client, committed_values
from simulator.world import Link, LinkLostError, Member, World

KEPT, LOOSE, MIXED = "kept", "loose", "mixed"
"""Topics: with the broker's durability; always with `process`; the one that transactions write to."""
PARTITIONS = 2
PATIENCE_SECONDS = 20.0
RETRY_SECONDS = 0.05
CONFIG = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.retention.check.interval.ms": "3000",
    "log.flush.scheduler.interval.ms": "500",
    "log.initial.task.delay.ms": "1000",
    "log.message.timestamp.after.max.ms": str(1 << 60),
}
POWER_TEARS = (Tear.LOST, Tear.TORN, Tear.ZEROS)
"""HOLES is left out: a log with holes is refused, which `tests/log/test_crash.py` checks."""
PASSING = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
}


class Workload(Protocol):
    """Additional clients of a run."""

    async def prepare(self, simulation: Simulation) -> None:
        """Prepare before the first fault."""

    def clients(self, simulation: Simulation) -> Sequence[Callable[[], Any]]:
        """Return coroutines that go on until `simulation.is_over`."""

    async def check(self, simulation: Simulation) -> list[str]:
        """Check after the last fault, and return problems."""


@dataclass
class History:
    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)
    """The last acknowledged offset of each group."""
    unanswered: set[int] = field(default_factory=set)
    """Offsets of the group "group" that were not answered and may be committed at any time."""


class Simulation:
    """One run; see the module."""

    kept_partitions = PARTITIONS
    """Number of partitions of the topic `KEPT`."""
    patience_seconds = PATIENCE_SECONDS
    """Maximum time in which a client must make progress after all is healed."""

    def __init__(
        self,
        world: World,
        operations: int,
        workloads: Sequence[Workload] = (),
        mode: str | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        self.world = world
        self.random = world.loop.random
        self.history = History()
        self.problems: list[str] = []
        self.faults = 0
        self.mode = mode or self.random.choice(("kill", "power"))
        self._left = operations
        self._config = dict(config or {})
        self._workloads = workloads
        self._progress: dict[str, float] = {}
        self._links: dict[tuple[str, int], Link] = {}
        self._asked: set[tuple[int, int, Place, int]] = set()
        """Batches whose append was requested."""

    @property
    def is_over(self) -> bool:
        return self._left <= 0

    def did(self, who: str) -> None:
        """Note the progress of a client."""
        self._left -= 1
        self._progress[who] = self.world.loop.time()

    async def asked(self, link: Link, request: Any, version: int) -> Any:
        """Send a request that may be repeated, until it is answered."""
        while True:
            try:
                return await link.send(request, version)
            except LinkLostError:
                await asyncio.sleep(RETRY_SECONDS)

    # -- brokers to ask ------------------------------------------------------------------------------------

    def link(self, name: str, node_id: int = 0) -> Link:
        """Return a client's link to a broker, always the same one."""
        key = name, node_id
        if key not in self._links:
            self._links[key] = self.world.link(node_id, name)
        return self._links[key]

    async def anybody(self, name: str) -> Link:
        """Return a link for requests that every broker answers."""
        return self.link(name)

    async def leader(self, name: str, place: Place) -> Link:
        """Return a link to the leader, as far as this client knows."""
        return self.link(name)

    async def coordinator(self, name: str, group: str) -> Link:
        return self.link(name)

    def appended(self, link: Link, asked_at: float) -> None:
        """Note that a batch was appended that was first asked for at that time."""

    async def try_again(self, name: str, about: Place | str) -> None:
        """Wait before a retry; the leader that the client knows may be old."""
        await asyncio.sleep(RETRY_SECONDS)

    async def run(self) -> list[str]:
        world = self.world
        config = CONFIG | {"log.durability": "power" if self.mode == "power" else "process"}
        config["log.segment.bytes"] = str(self.random.choice((1000, 4000, 1 << 30)))
        member = world.add(0, config | self._config)
        await member.start()
        await self._create_topics()
        for workload in self._workloads:
            await workload.prepare(self)
        clients = [
            *(self._producer(name) for name in ("a", "b")),
            self._producer("loose", (LOOSE,)),
            *(self._transactions(name, version) for name, version in (("one", 1), ("two", 2))),
            self._reader(),
            self._group(),
            *(client() for workload in self._workloads for client in workload.clients(self)),
        ]
        tasks = [asyncio.ensure_future(client) for client in clients]
        harm = [
            asyncio.ensure_future(self._harm(self._end, self._end, self._crash, self._pause)),
            asyncio.ensure_future(self._harm(self._part, self._jump, self._starve)),
        ]
        await self._get_on(tasks, harm)
        return self.problems

    async def _get_on(
        self, tasks: Sequence[asyncio.Future[Any]], harm: Sequence[asyncio.Future[Any]]
    ) -> None:
        """Run to the end of the faults, and the rest of the run behind them."""
        world = self.world
        while not self.is_over and not all(task.done() for task in tasks):
            done, _ = await asyncio.wait([*tasks, *harm], timeout=1.0, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        self._healing = True
        async with asyncio.timeout(10 * PATIENCE_SECONDS):
            await asyncio.gather(*harm)
        await self._heal()
        done, waiting = await asyncio.wait(tasks, timeout=self.patience_seconds)
        for task in waiting:
            self.problems.append(f"{task.get_coro().__qualname__} did not get on after all was healed")  # type: ignore[attr-defined]
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for task in done:
            if (error := task.exception()) is not None:
                raise error
        if not waiting:
            async with asyncio.timeout(10 * PATIENCE_SECONDS):
                await self._check()
        world.loop.note("end", len(self.history.sends))

    # -- faults --------------------------------------------------------------------------------------------

    _healing = False

    async def _harm(self, *faults: Callable[[Member], Any]) -> None:
        (member,) = self.world.members.values()
        while not self._healing:
            await asyncio.sleep(self.random.uniform(0.05, 0.8))
            if not self._healing:
                self.faults += 1
                await self.random.choice(faults)(member)

    def _tear(self) -> Tear:
        return (
            self.random.choice(POWER_TEARS)
            if self.mode == "power" and self.random.random() < 0.7
            else Tear.KEPT
        )

    async def _up(self, member: Member) -> None:
        member.disk.heal()
        while not await member.start():
            member.bury()

    async def _end(self, member: Member) -> None:
        tear = self._tear()
        if self.random.random() < 0.1:
            await member.stop()
        member.cut_power(tear) if tear is not Tear.KEPT else member.kill()
        await asyncio.sleep(self.random.uniform(0, 0.5))
        await self._up(member)

    async def _crash(self, member: Member) -> None:
        """Crash the broker in the middle of a write, or of its next start."""
        member.crash_soon(self.random.randrange(1, 60), self._tear())
        try:
            async with asyncio.timeout(2.0):
                await member.died.wait()
        except TimeoutError:
            member.disk.crash_at = None
            return
        member.bury()
        if self.random.random() < 0.5:
            member.crash_soon(self.random.randrange(1, 40), self._tear())
        await self._up(member)
        member.disk.crash_at = None

    async def _pause(self, member: Member) -> None:
        member.suspend()
        await asyncio.sleep(self.random.choice((0.3, 1.0, 8.0)))
        member.resume()

    async def _part(self, member: Member) -> None:
        who = self.random.choice(("a", "b", "one", "two", "reader", "group"))
        if self.random.random() < 0.5:
            self.world.cut(who, member, both=self.random.random() < 0.5)
        else:
            self.world.cut(member, who, both=False)
        await asyncio.sleep(self.random.choice((0.2, 1.0, 3.0, 12.0)))
        self.world.heal()

    async def _starve(self, member: Member) -> None:
        """Let the broker open no more files for a while, for lack of descriptors or memory. Those of its segments are
        closed, as after a long silence.
        """
        if not member.is_up:
            return  # a start without descriptors ends, and is tried again from outside
        error = self.random.choice((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
        for operation in ("open", "create", "sync_directory"):
            member.disk.fail(Fault(operation, error, times=1 << 30))
        for _ in range(2):
            SEGMENT_FILES.close_idle()
        await asyncio.sleep(self.random.choice((0.1, 0.5, 2.0)))
        member.disk.heal()

    async def _jump(self, member: Member) -> None:
        member.skew += self.random.choice((-3_600, -10, 10, 3_600))

    async def _heal(self) -> None:
        """Start all brokers and stop all faults."""
        world = self.world
        world.loss = 0.0
        world.heal()
        for member in world.members.values():
            member.disk.crash_at = None
            for _ in range(200):
                if member.is_up and not member.died.is_set() and not world.loop.is_suspended(member.owner):
                    break
                await asyncio.sleep(0.1)
            else:
                self.problems.append(f"{member} did not come up")

    # -- clients -------------------------------------------------------------------------------------------

    async def _create_topics(self) -> None:
        link = self.world.link(0, "admin")
        for name, configs in (
            (KEPT, {}),
            (LOOSE, {"durability": "process"}),
            (MIXED, {}),
        ):
            topic = CreatableTopic(
                name=name,
                num_partitions=PARTITIONS,
                replication_factor=1,
                configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
            )
            answer = await self.asked(link, CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 5)
            assert answer.topics[0].error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS), answer

    async def _producer(self, name: str, topics: Sequence[str] = (KEPT,)) -> None:
        """Run an idempotent producer with up to three batches of a partition under way."""
        number = 0
        identity = await self._identity(name)
        sequences: dict[Place, int] = {}
        while not self.is_over:
            place = self.random.choice(topics), self.random.randrange(self.kept_partitions)
            batches = []
            for _ in range(self.random.randrange(1, 4)):
                values = [
                    b"%s-%d" % (name.encode(), number + at) for at in range(self.random.randrange(1, 4))
                ]
                number += len(values)
                batches.append((sequences.get(place, 0), values))
                sequences[place] = batches[-1][0] + len(values)
            if not await self._deliver(name, identity, place, batches):
                identity, sequences = await self._identity(name), {}
            self.did(name)
            await asyncio.sleep(self.random.uniform(0, 0.4))

    async def _identity(self, name: str) -> tuple[int, int]:
        while True:
            link = await self.anybody(name)
            request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
            try:
                answer = await link.send(request, 4)
                if not answer.error_code:
                    return answer.producer_id, answer.producer_epoch
            except LinkLostError:
                pass
            await asyncio.sleep(RETRY_SECONDS)

    async def _deliver(
        self,
        name: str,
        identity: tuple[int, int],
        place: Place,
        batches: list[tuple[int, list[bytes]]],
    ) -> bool:
        """Send batches until all are acknowledged. Return False if the broker has forgotten the producer of a loose
        topic.
        """
        waiting = list(batches)
        while waiting:
            link = await self.leader(name, place)
            # A log accepts any first sequence of a producer that it does not know. So it could accept the second batch
            # after it refused the first, because it had no leader yet.
            together = waiting if waiting[0][0] else waiting[:1]
            answers = await asyncio.gather(
                *(self._ask_to_append(link, identity, place, *batch) for batch in together),
                return_exceptions=True,
            )
            left = len(waiting) - len(together)
            for answer in answers:
                _, values = waiting[0]
                if isinstance(answer, LinkLostError):
                    break
                if isinstance(answer, BaseException):
                    raise answer
                code = ErrorCode(answer.error_code)
                if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    first = answer.base_offset if code is ErrorCode.NONE else -1
                    for at, value in enumerate(values):
                        offset = -1 if first < 0 else first + at
                        self.history.sends.append(Send(name, place, value, Outcome.OK, offset))
                    waiting.pop(0)
                    continue
                if code not in PASSING:
                    if place[0] == LOOSE and code in (
                        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                        ErrorCode.UNKNOWN_PRODUCER_ID,
                    ):
                        self._doubt(name, place, waiting)
                        return False
                    self.problems.append(f"{name} was told {code.name} by {place}: {answer.error_message}")
                    self._doubt(name, place, waiting)
                    return False
                break
            if len(waiting) > left:
                await self.try_again(name, place)
        return True

    def _doubt(self, name: str, place: Place, waiting: list[tuple[int, list[bytes]]]) -> None:
        for _, values in waiting:
            self.history.sends += [Send(name, place, value, Outcome.UNKNOWN) for value in values]

    async def _ask_to_append(
        self, link: Link, identity: tuple[int, int], place: Place, sequence: int, values: list[bytes]
    ) -> Any:
        batch = build_batch(
            [Record(None, value, (), 1_750_000_000_000) for value in values],
            producer_id=identity[0],
            producer_epoch=identity[1],
            base_sequence=sequence,
        )
        data = TopicProduceData(
            name=place[0], partition_data=[PartitionProduceData(index=place[1], records=batch)]
        )
        key, asked_at = (*identity, place, sequence), self.world.loop.time()
        is_first = key not in self._asked
        self._asked.add(key)
        answer = await link.send(ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[data]), 9)
        part = answer.responses[0].partition_responses[0]
        if is_first and not part.error_code:
            self.appended(link, asked_at)
        return part

    async def _reader(self) -> None:
        """Read on, and now and then from the start: records that were seen must stay."""
        positions: dict[Place, int] = {}
        turn = 0
        while not self.is_over:
            place = KEPT, self.random.randrange(self.kept_partitions)
            if self.random.random() < 0.05:
                positions.pop(place, None)
                turn += 1
            position = positions.get(place, 0)
            part = await self._fetch("reader", place, position)
            if part is None:
                await self.try_again("reader", place)
            else:
                for offset, value in part:
                    self.history.polls.append(Poll(f"reader {turn}", place, offset, value))
                    positions[place] = offset + 1
                self.did("reader")
            await asyncio.sleep(self.random.uniform(0, 0.4))

    async def _fetch(self, name: str, place: Place, position: int) -> list[tuple[int, bytes]] | None:
        """Fetch; None if it was not answered. An offset beyond the end is a problem."""
        link = await self.leader(name, place)
        wanted = FetchPartition(partition=place[1], fetch_offset=position, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=self.random.choice((0, 100)),
            min_bytes=1,
            max_bytes=1 << 24,
            topics=[FetchTopic(topic=place[0], partitions=[wanted])],
        )
        try:
            answer = await link.send(request, 11)
        except LinkLostError:
            return None
        part = answer.responses[0].partitions[0]
        code = ErrorCode(part.error_code)
        if code in PASSING:
            return None
        if code is not ErrorCode.NONE:
            self.problems.append(f"the reader of {place} at {position} was told {code.name}")
            return None
        return [(at, value or b"") for at, value in values_of(part.records or b"") if at >= position]

    async def _transactions(self, name: str, version: int) -> None:
        """Run transactions one after another, each with records in both partitions and a group's offset."""
        patient: Any = _Patient(self.world.link(0, name))
        client, number = Client(patient, name, version, timeout_ms=1000), 0
        is_ready = False
        while not self.is_over:
            if not is_ready:
                is_ready = not await self._retried(client.init)
                continue
            number += 1
            values = {index: b"%s-%d-%d" % (name.encode(), number, index) for index in range(PARTITIONS)}
            records = tuple(((MIXED, index), value) for index, value in values.items())
            outcome = await self._transact(client, name, number, values)
            self.history.transactions.append(Transaction(f"{name}-{number}", records, outcome))
            is_ready = outcome is not Outcome.UNKNOWN
            self.did(name)
            await asyncio.sleep(self.random.uniform(0, 0.4))

    async def _transact(self, client: Client, name: str, number: int, values: dict[int, bytes]) -> Outcome:
        commit, group = self.random.random() < 0.7, f"of-{name}"
        if client.version == 1:
            for index in values:
                if await self._retried(partial(client.add, (MIXED, index))):
                    return await self._given_up(client)
        for index, value in values.items():
            if await self._retried(partial(client.send, [value], MIXED, index)):
                return await self._given_up(client)
        if self.random.random() < 0.3 and values[0] in await self._committed(client.broker):
            self.problems.append(f"{values[0]!r} is read before its transaction has ended")
        if await self._retried(lambda: client.end(commit)):
            return Outcome.UNKNOWN
        if commit:
            self.history.positions[group] = number
        return Outcome.OK if commit else Outcome.FAILED

    async def _committed(self, broker: Any) -> list[bytes | None]:
        while True:
            try:
                return await committed_values(_Fetching(broker), MIXED, 0)  # type: ignore[arg-type]
            except RuntimeError:  # the broker is starting
                await asyncio.sleep(0.05)

    async def _given_up(self, client: Client) -> Outcome:
        """Abandon a transaction; a new epoch ends it."""
        return Outcome.UNKNOWN if await self._retried(client.init) else Outcome.FAILED

    async def _retried(self, ask: Callable[[], Any]) -> ErrorCode:
        """Return the error that does not pass, or none."""
        while True:
            answer = await ask()
            if isinstance(answer, list):
                answer = answer[0]
            code = ErrorCode(getattr(answer, "error_code", answer))
            if code not in PASSING:
                return code
            await asyncio.sleep(0.05)

    async def _group(self) -> None:
        """Commit growing offsets of a group."""
        position = 0
        while not self.is_over:
            position += 1
            part = OffsetCommitRequestPartition(partition_index=0, committed_offset=position)
            topics = [OffsetCommitRequestTopic(name=KEPT, partitions=[part])]
            link = await self.coordinator("group", "group")
            try:
                answer = await link.send(OffsetCommitRequest(group_id="group", topics=topics), 8)
            except LinkLostError as error:
                if error.sent:
                    self.history.unanswered.add(position)
                await self.try_again("group", "group")
                continue
            code = ErrorCode(answer.topics[0].partitions[0].error_code)
            if code is ErrorCode.NONE:
                self.history.positions["group"] = position
                self.did("group")
            elif code in PASSING:
                await self.try_again("group", "group")
            else:
                self.problems.append(f"a commit of position {position} was told {code.name}")
            await asyncio.sleep(self.random.uniform(0, 0.4))

    # -- checks --------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        history = self.history
        await self._check_kept()
        loose = {(LOOSE, index): await self._whole((LOOSE, index)) for index in range(PARTITIONS)}
        sends = [send for send in history.sends if send.place[0] == LOOSE]
        if self.mode == "kill":
            self.problems += check_delivery(sends, loose) + check_offsets(sends, [], loose)
        else:
            self.problems += check_offsets([], [], loose) + _check_twice(loose)
        patient: Any = _Patient(self.link("checker"))
        committed = {
            (MIXED, index): [
                (at, value or b"")
                for at, value in enumerate(await committed_values(_Fetching(patient), MIXED, index))  # type: ignore[arg-type]
            ]
            for index in range(PARTITIONS)
        }
        self.problems += check_transactions(history.transactions, committed) + _check_twice(committed)
        await self._check_positions()
        for workload in self._workloads:
            self.problems += await workload.check(self)

    async def _check_kept(self) -> None:
        found = {(KEPT, index): await self._whole((KEPT, index)) for index in range(self.kept_partitions)}
        sends = [send for send in self.history.sends if send.place[0] == KEPT]
        self.problems += check_delivery(sends, found) + check_offsets(sends, self.history.polls, found)

    async def _check_positions(self) -> None:
        position = self.history.positions.get("group", 0)
        if position:
            self.problems += check_position(position, self.history.unanswered, await self._position("group"))

    async def _whole(self, place: Place) -> list[tuple[int, bytes]]:
        entries: list[tuple[int, bytes]] = []
        while True:
            position = entries[-1][0] + 1 if entries else 0
            part = await self._fetch("checker", place, position)
            if part is None:
                await self.try_again("checker", place)
                if self.problems:
                    return entries
                continue
            if not part:
                return entries
            entries += part

    async def _position(self, group: str) -> int:
        wanted = [OffsetFetchRequestTopics(name=KEPT, partition_indexes=[0])]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted)])
        while True:
            link = await self.coordinator("checker", group)
            try:
                answer = (await link.send(request, 9)).groups[0]
                if not answer.error_code:
                    offset: int = answer.topics[0].partitions[0].committed_offset
                    return offset
            except LinkLostError:
                pass
            await self.try_again("checker", group)


def _check_twice(found: dict[Place, list[tuple[int, bytes]]]) -> list[str]:
    return [
        f"{place}: a record is there twice"
        for place, entries in found.items()
        if len({value for _, value in entries}) < len(entries)
    ]


class _Patient:
    """A link for requests that may be repeated."""

    def __init__(self, link: Link) -> None:
        self.link = link

    async def send(self, request: Any, version: int | None = None) -> Any:
        while True:
            try:
                return await self.link.send(request, version)
            except LinkLostError:
                await asyncio.sleep(0.05)


class _Fetching:
    """The part of a broker that `committed_values` uses."""

    def __init__(self, patient: Any) -> None:
        self._patient = patient

    async def fetch(self, topic: str, offset: int, *, partition: int, isolation_level: int) -> Any:
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 26,
            isolation_level=isolation_level,
            topics=[FetchTopic(topic=topic, partitions=[wanted])],
        )
        return (await self._patient.send(request, 11)).responses[0].partitions[0]


@dataclass(frozen=True)
class Report:
    seed: int
    mode: str
    problems: list[str]
    trace: str
    seconds: float
    faults: int
    acknowledged: int


def simulate(
    seed: int,
    folder: Path,
    *,
    operations: int = 200,
    mode: str | None = None,
    make_extensions: Callable[[], Sequence[Extension]] = tuple,
    workloads: Callable[[], Sequence[Workload]] = tuple,
    config: Mapping[str, str] | None = None,
) -> Report:
    """Run one simulation; `seconds` are virtual ones."""
    with World(seed, folder, loss=0.02, make_extensions=make_extensions) as world:
        simulation = Simulation(world, operations, workloads(), mode, config)
        begin = world.loop.time()
        problems = world.run(simulation.run())
        return Report(
            seed,
            simulation.mode,
            problems,
            world.loop.trace,
            world.loop.time() - begin,
            simulation.faults,
            len(simulation.history.sends) + len(simulation.history.transactions),
        )
