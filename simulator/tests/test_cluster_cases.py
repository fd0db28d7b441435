"""The named accidents of replication, each on three whole brokers: none loses an acknowledged record.

`leader`, `other` and `third` have a replica each, preferred in this order; `third` is the controller.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from headrace.broker.metadata import tree
from headrace.broker.metadata.image import PartitionState
from headrace.broker.runtime.ports import SetNode, StoreOperation
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.protocol.records.encode import Record, build_batch
from simulator.direct import values_of
from simulator.disk import Tear
from simulator.simulation import CONFIG
from simulator.world import LinkLostError, Member, World

TOPIC = "t"
PATIENCE_SECONDS = 30.0
SESSION_SECONDS = 6.0
LAG_SECONDS = 2.0
KEPT = [b"one", b"two", b"three"]

Scenario = Callable[["Case"], Awaitable[None]]


class Case:
    """A topic of one partition on three brokers, in which all have acknowledged the records `KEPT`."""

    def __init__(self, world: World, leader: Member, other: Member, third: Member) -> None:
        self.world = world
        self.leader = leader
        self.other = other
        self.third = third
        self.identity = (-1, -1)
        self.sequence = 0

    @property
    def state(self) -> PartitionState:
        assert self.world.ensemble is not None
        node = self.world.ensemble.node(tree.chunk_path(TOPIC, 0))
        assert node is not None
        return tree.decode_states(node.data)[0]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110 - of virtual time
                await asyncio.sleep(0.01)

    async def until_in_sync(self, *members: Member) -> None:
        await self.until(lambda: set(self.state.isr) == {each.node_id for each in members})

    async def until_led_by(self, *members: Member) -> None:
        """Wait until one of these brokers leads and says so itself."""

        def is_led() -> bool:
            for each in members:
                if self.state.leader == each.node_id and each.direct is not None:
                    found = each.direct.context.replicas.find_partition(TOPIC, 0)
                    return found is not None and found.is_open and not found.closed
            return False

        await self.until(is_led)

    async def send(self, to: Member, value: bytes, *, acks: int = -1, sequence: int | None = None) -> Any:
        """Produce a record and return the partition's answer. Raise LinkLostError."""
        batch = build_batch(
            [Record(None, value, (), 1_750_000_000_000)],
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            base_sequence=self.sequence if sequence is None else sequence,
        )
        data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
        request = ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=[data])
        answer = await self.world.link(to.node_id).send(request, 9)
        if sequence is None:
            self.sequence += 1
        return answer.responses[0].partition_responses[0]

    async def is_acknowledged(self, to: Member, value: bytes, *, acks: int = -1) -> bool:
        """Return whether a record is acknowledged within a second."""
        try:
            async with asyncio.timeout(1.0):
                part = await self.send(to, value, acks=acks)
        except (TimeoutError, LinkLostError):
            return False
        return ErrorCode(part.error_code) is ErrorCode.NONE

    async def read(self, of: Member) -> list[bytes | None]:
        """Return all records of a leader, once it may show them."""
        await self.until(lambda: self._shows_all(of))
        wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            topics=[FetchTopic(topic=TOPIC, partitions=[wanted])],
        )
        part = (await self.world.link(of.node_id).send(request, 11)).responses[0].partitions[0]
        assert part.error_code == 0, ErrorCode(part.error_code).name
        return [value for _, value in values_of(part.records or b"")]

    def _shows_all(self, of: Member) -> bool:
        assert of.direct is not None
        partition = of.direct.context.replicas.partition(TOPIC, 0)
        return partition.high_watermark == partition.log.log_end_offset


def controller(world: World) -> int:
    assert world.ensemble is not None
    node = world.ensemble.node(tree.CONTROLLER)
    assert node is not None
    broker_id: int = json.loads(node.data)["broker"]
    return broker_id


@asynccontextmanager
async def three(world: World, **configs: str) -> AsyncIterator[Case]:
    brokers = [
        world.add(node_id, CONFIG | {"replica.lag.time.max.ms": str(int(LAG_SECONDS * 1000))})
        for node_id in range(3)
    ]
    await asyncio.gather(*(each.start() for each in brokers))
    third = brokers[controller(world)]
    leader, other = (each for each in brokers if each is not third)
    case = Case(world, leader, other, third)
    placed = CreatableReplicaAssignment(
        partition_index=0, broker_ids=[leader.node_id, other.node_id, third.node_id]
    )
    topic = CreatableTopic(
        name=TOPIC,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[placed],
        configs=[
            CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()
        ],
    )
    made = await world.link(leader.node_id).send(CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 5)
    assert made.topics[0].error_code == 0, made.topics[0].error_message
    begun = await world.link(leader.node_id).send(
        InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), 4
    )
    case.identity = begun.producer_id, begun.producer_epoch
    await case.until_led_by(leader)
    for value in KEPT:
        assert (await case.send(leader, value)).error_code == 0
    yield case


def run(folder: Path, scenario: Scenario, **configs: str) -> None:
    async def whole(world: World) -> None:
        async with three(world, **configs) as case:
            await scenario(case)

    with World(0, folder, shared=True) as world:
        world.run(whole(world))


def test_the_last_replica_that_has_lost_its_log_does_not_lead_again_before_one_that_has_it(
    tmp_path: Path,
) -> None:
    """The case of KIP-966."""

    async def scenario(case: Case) -> None:
        case.third.kill()
        await case.until_in_sync(case.leader, case.other)
        case.other.kill()
        await case.until_in_sync(case.leader)
        case.leader.cut_power(Tear.LOST)
        await case.leader.start()
        await asyncio.sleep(2 * SESSION_SECONDS)
        assert case.state.leader < 0, "it has nothing"
        await case.other.start()
        await case.until_led_by(case.other)
        await case.until_in_sync(case.leader, case.other)
        assert await case.read(case.other) == KEPT
        await case.third.start()

    run(tmp_path, scenario, min_insync_replicas="2")


def test_a_new_isr_member_counts_before_its_leader_knows(tmp_path: Path) -> None:
    """A race between a change of the ISR and an election."""

    async def scenario(case: Case) -> None:
        world, leader, other = case.world, case.leader, case.other
        other.kill()
        await case.until_in_sync(leader, case.third)

        def observe(session: int, operations: Sequence[StoreOperation]) -> None:
            for operation in operations:
                if (
                    isinstance(operation, SetNode)
                    and operation.path == tree.chunk_path(TOPIC, 0)
                    and other.node_id in tree.decode_states(operation.data)[0].isr
                    and leader.store is not None
                    and leader.store.connected
                ):
                    leader.lose_store()
                    world.cut(other, leader, both=False)

        assert world.ensemble is not None
        world.ensemble.observers.append(observe)
        await other.start()
        await case.until_in_sync(leader, other, case.third)
        await asyncio.sleep(LAG_SECONDS + 0.5)  # a client waits at most that long
        is_acknowledged = await case.is_acknowledged(leader, b"four")
        world.ensemble.observers.remove(observe)
        leader.kill()
        await case.until_led_by(other)
        world.heal()
        assert await case.read(other) == KEPT
        assert not is_acknowledged, "it is not there"
        await leader.start()

    run(tmp_path, scenario)


def test_a_broker_that_has_lost_its_log_joins_no_isr_by_what_it_was_before(tmp_path: Path) -> None:
    """KIP-903: its leader writes late an ISR from when the earlier process had everything."""

    async def scenario(case: Case) -> None:
        world, leader, other = case.world, case.leader, case.other
        other.kill()
        await case.until_in_sync(leader, case.third)
        world.cut(other, leader, both=False)
        await other.start()
        await asyncio.sleep(1.0)
        leader.lose_store()
        world.heal()
        await asyncio.sleep(1.5)
        assert set(case.state.isr) == {leader.node_id, case.third.node_id}, (
            "no broker learns that it may join"
        )
        world.cut(other, leader, both=False)
        other.cut_power(Tear.LOST)
        await other.start()
        leader.find_store()
        await asyncio.sleep(1.0)
        leader.kill()
        await case.until_led_by(other, case.third)
        world.heal()
        assert await case.read(case.third) == KEPT
        await leader.start()

    run(tmp_path, scenario)


def test_a_leader_that_has_lost_the_store_alone_acknowledges_nothing_when_another_may_lead(
    tmp_path: Path,
) -> None:
    """A broker that is cut off from the store while clients and other brokers reach it."""

    async def scenario(case: Case) -> None:
        case.leader.lose_store()
        await asyncio.sleep(1.0)
        assert await case.is_acknowledged(case.leader, b"four", acks=1), "its lease lasts"
        await case.until_led_by(case.other)
        for acks in (1, -1):
            assert not await case.is_acknowledged(case.leader, b"lost", acks=acks)
        assert (await case.read(case.other))[:3] == KEPT
        case.leader.find_store()

    run(tmp_path, scenario)


def test_a_retry_is_recognised_by_the_next_leader_and_the_one_after_its_restart(tmp_path: Path) -> None:
    async def scenario(case: Case) -> None:
        last = case.sequence - 1
        case.leader.kill()
        await case.until_led_by(case.other)
        again = await case.send(case.other, KEPT[-1], sequence=last)
        assert (again.error_code, again.base_offset) == (0, 2)
        await case.other.restart()
        await case.until_led_by(case.other, case.third)
        led = case.other if case.state.leader == case.other.node_id else case.third
        again = await case.send(led, KEPT[-1], sequence=last)
        assert (again.error_code, again.base_offset) == (0, 2)
        assert await case.read(led) == KEPT
        await case.leader.start()

    run(tmp_path, scenario)


def test_acknowledged_records_survive_leaders_with_an_old_high_watermark(
    tmp_path: Path,
) -> None:
    """KIP-101: replicas know an old high watermark, and are restarted with it."""

    async def scenario(case: Case) -> None:
        leader, other, third = case.leader, case.other, case.third
        assert (await case.send(leader, b"four")).error_code == 0
        leader.kill()
        await case.until_led_by(other)
        await third.restart()
        await case.until_in_sync(other, third)
        other.kill()
        await case.until_led_by(third)
        assert await case.read(third) == [*KEPT, b"four"]
        await asyncio.gather(leader.start(), other.start())
        await case.until_in_sync(leader, other, third)
        third.kill()
        await case.until_led_by(leader, other)
        led = leader if case.state.leader == leader.node_id else other
        assert await case.read(led) == [*KEPT, b"four"]
        await third.start()

    run(tmp_path, scenario)
