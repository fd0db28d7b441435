"""Transactions over several brokers: a `Workload` of `cluster_simulation.py`.

Producers of both transaction versions write to partitions of all brokers, and commit a group's offset with them. Their
coordinators, and that of the group, are the leaders of the journals. At the end:

- C6: all records of a transaction are read, or none (`histories.py`), including the group's offset.
- R9: no transaction hangs: all records are stable when every producer has come again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from simulator.cluster_simulation import BROKERS
from simulator.histories import Outcome, Transaction, check_transactions
from simulator.simulation import PASSING, PATIENCE_SECONDS, Simulation
from simulator.transactional_client import (
    TV1,
    TV2,
    Client,
    committed_values,
    coordinated_by,
    place_of,
)
from simulator.world import Link, LinkLostError

TOPIC = "spread"
PRODUCERS = (("one", TV1), ("two", TV2))
RETRY_SECONDS = 0.05
MOVED = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
PASSES = PASSING | MOVED | {ErrorCode.NOT_ENOUGH_REPLICAS}
"""Errors to retry. NOT_ENOUGH_REPLICAS: the coordinator of a transaction could not be asked."""


class Routed:
    """A broker for `Client` that sends each request to the broker responsible for it, until it is answered."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self._simulation = simulation
        self._name = name
        self._coordinators: dict[tuple[int, str], int] = {}

    async def send(self, request: Any, version: int | None = None) -> Any:
        while True:
            place, key = place_of(request), coordinated_by(request)
            link = await (self._simulation.leader(self._name, place) if place else self._coordinator(key))
            try:
                answer = await link.send(request, version)
            except LinkLostError:
                answer = None
            if answer is None or MOVED & set(_codes(answer)):
                self._coordinators.pop(key, None)
                await self._simulation.try_again(self._name, place or "")
            if answer is not None:
                return answer

    async def fetch(self, topic: str, offset: int, *, partition: int, isolation_level: int) -> Any:
        wanted = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 26,
            isolation_level=isolation_level,
            topics=[FetchTopic(topic=topic, partitions=[wanted])],
        )
        while True:
            part = (await self.send(request, 11)).responses[0].partitions[0]
            if ErrorCode(part.error_code) not in PASSES:
                return part

    async def _coordinator(self, key: tuple[int, str]) -> Link:
        while (node_id := self._coordinators.get(key)) is None:
            request = FindCoordinatorRequest(key=key[1], key_type=key[0])
            try:
                answer = await (await self._simulation.anybody(self._name)).send(request, 3)
            except LinkLostError:
                answer = None
            if answer is None or answer.error_code:
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self._coordinators[key] = answer.node_id
        return self._simulation.link(self._name, node_id)


def _codes(answer: Any) -> Iterator[ErrorCode]:
    """Return all error codes of an answer."""
    for name in type(answer).FIELDS:
        value = getattr(answer, name)
        if name.endswith("error_code"):
            yield ErrorCode(value)
        elif isinstance(value, list):
            for each in value:
                if hasattr(type(each), "FIELDS"):
                    yield from _codes(each)


class SpreadTransactions:
    """The workload; see the module."""

    def __init__(self, replicas: int = 1) -> None:
        self.transactions: list[Transaction] = []
        self._replicas = replicas
        self._numbers: dict[str, dict[int, Outcome]] = {}

    async def prepare(self, simulation: Simulation) -> None:
        topic = CreatableTopic(name=TOPIC, num_partitions=BROKERS, replication_factor=self._replicas)
        request = CreateTopicsRequest(topics=[topic], timeout_ms=5_000)
        while True:
            answer = await simulation.asked(await simulation.anybody("admin"), request, 5)
            if answer.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return
            await asyncio.sleep(RETRY_SECONDS)

    def clients(self, simulation: Simulation) -> Sequence[Callable[[], Any]]:
        return [partial(self._transactions, simulation, name, version) for name, version in PRODUCERS]

    async def _transactions(self, simulation: Simulation, name: str, version: int) -> None:
        client: Any = Client(Routed(simulation, name), name, version, timeout_ms=1000)  # type: ignore[arg-type]
        numbers = self._numbers.setdefault(name, {})
        number, is_ready = 0, False
        while not simulation.is_over:
            if not is_ready:
                is_ready = not await _retried(client.init)
                continue
            number += 1
            places = [index for index in range(BROKERS) if simulation.random.random() < 0.8] or [0]
            values = {index: b"%s-%d-%d" % (name.encode(), number, index) for index in places}
            records = tuple(((TOPIC, index), value) for index, value in values.items())
            outcome = numbers[number] = await self._transact(simulation, client, number, values)
            self.transactions.append(Transaction(f"{name}-{number}", records, outcome))
            is_ready = outcome is not Outcome.UNKNOWN
            simulation.did(name)
            await asyncio.sleep(simulation.random.uniform(0, 0.4))

    async def _transact(
        self, simulation: Simulation, client: Client, number: int, values: dict[int, bytes]
    ) -> Outcome:
        commit, group = simulation.random.random() < 0.7, f"of-{client.name}"
        steps: list[Callable[[], Any]] = []
        for index, value in values.items():
            if client.version == TV1:
                steps.append(partial(client.add, (TOPIC, index)))
            steps.append(partial(client.send, [value], TOPIC, index))
        if client.version == TV1:
            steps.append(partial(_add_offsets, client, group))
        steps.append(partial(client.commit_offsets, group, {(TOPIC, 0): number}))
        for step in steps:
            if await _retried(step):
                return Outcome.UNKNOWN if await _retried(client.init) else Outcome.FAILED
        if await _retried(partial(client.end, commit)):
            return Outcome.UNKNOWN
        return Outcome.OK if commit else Outcome.FAILED

    # -- checks --------------------------------------------------------------------------------------------

    async def check(self, simulation: Simulation) -> list[str]:
        routed: Any = Routed(simulation, "checker")
        for name, version in PRODUCERS:  # this aborts every transaction that is left open
            await _retried(Client(routed, name, version, timeout_ms=1000).init)
        problems = await self._hung(simulation, routed)
        if problems:
            return problems
        committed = {
            (TOPIC, index): [
                (at, value or b"") for at, value in enumerate(await committed_values(routed, TOPIC, index))
            ]
            for index in range(BROKERS)
        }
        for place, log in committed.items():
            if len({value for _, value in log}) < len(log):
                problems.append(f"{place}: a record is there twice")
        problems += check_transactions(self.transactions, committed)
        for name, numbers in self._numbers.items():
            problems += await self._check_position(routed, name, numbers)
        return problems

    async def _hung(self, simulation: Simulation, routed: Routed) -> list[str]:
        ends = simulation.world.loop.time() + PATIENCE_SECONDS
        while True:
            problems = []
            for index in range(BROKERS):
                end, stable = [await _end(routed, index, isolation) for isolation in (0, 1)]
                if stable < end:
                    problems.append(f"{TOPIC}-{index} is stable up to {stable} only, of {end}")
            if not problems or simulation.world.loop.time() > ends:
                return problems
            await asyncio.sleep(RETRY_SECONDS)

    async def _check_position(self, routed: Routed, name: str, numbers: dict[int, Outcome]) -> list[str]:
        wanted = [OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])]
        group = OffsetFetchRequestGroup(group_id=f"of-{name}", topics=wanted)
        while True:
            found = (await routed.send(OffsetFetchRequest(groups=[group], require_stable=True), 9)).groups[0]
            part = None if found.error_code else found.topics[0].partitions[0]
            if part is not None and not part.error_code:
                break
            await asyncio.sleep(RETRY_SECONDS)
        position: int = part.committed_offset
        last = max((number for number, outcome in numbers.items() if outcome is Outcome.OK), default=-1)
        if position < last or (position >= 0 and numbers.get(position) is Outcome.FAILED):
            return [f"the group of {name} is at {position}; {last} was the last that was committed"]
        return []


async def _retried(ask: Callable[[], Any]) -> ErrorCode:
    """Return the error that does not pass, or none."""
    while True:
        answer = await ask()
        if isinstance(answer, list):
            answer = answer[0]
        code = ErrorCode(getattr(answer, "error_code", answer))
        if code not in PASSES:
            return code
        await asyncio.sleep(RETRY_SECONDS)


async def _add_offsets(client: Client, group: str) -> ErrorCode:
    producer_id, epoch = client.identity
    request = AddOffsetsToTxnRequest(
        transactional_id=client.name, producer_id=producer_id, producer_epoch=epoch, group_id=group
    )
    return ErrorCode((await client.broker.send(request, 3)).error_code)


async def _end(routed: Routed, index: int, isolation_level: int) -> int:
    wanted = ListOffsetsTopic(
        name=TOPIC, partitions=[ListOffsetsPartition(partition_index=index, timestamp=-1)]
    )
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=[wanted])
    while True:
        part = (await routed.send(request, 7)).topics[0].partitions[0]
        if not part.error_code:
            offset: int = part.offset
            return offset
        await asyncio.sleep(RETRY_SECONDS)
