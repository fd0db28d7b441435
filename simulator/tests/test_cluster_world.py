"""Several whole brokers on one ensemble: the elections of the controller, and the limits of a former one."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headrace.broker.metadata import tree
from headrace.broker.runtime.ports import CreateNode, SetNode
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from headrace.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.protocol.records.encode import Record, build_batch
from simulator.controllers import ControllerWatch
from simulator.coordination import SimulatedEnsemble
from simulator.direct import values_of
from simulator.loop import SimulatedClock, SimulatedLoop
from simulator.world import LinkLostError, Member, World

Scenario = Callable[[World, ControllerWatch], Awaitable[None]]
SESSION_SECONDS = 6.0


def run(seed: int, folder: Path, scenario: Scenario) -> str:
    with World(seed, folder, shared=True) as world:
        assert world.ensemble is not None
        world.ensemble.loss = 0.01
        world.ensemble.watch_seconds_max = 0.1
        watch = ControllerWatch(world.ensemble)
        for node_id in range(3):
            world.add(node_id)
        world.run(scenario(world, watch))  # type: ignore[arg-type]
        assert watch.problems == [], f"seed {seed}"
        return world.loop.trace


async def create(world: World, node_id: int, name: str) -> ErrorCode | None:
    """Create a topic through a broker; None if it was not answered."""
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    try:
        answer = await world.link(node_id).send(CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 5)
    except LinkLostError:
        return None
    return ErrorCode(answer.topics[0].error_code)


async def keep_up(world: World, node_id: int) -> None:
    """Supervise a broker: start it again whenever it has given up."""
    member = world.members[node_id]
    while True:
        if not member.is_up and not world.loop.is_suspended(member.owner):
            await member.start()
        await asyncio.sleep(0.1)


async def until_created(world: World, name: str, seconds: float = 60.0) -> int:
    """Return the number of the broker by which the topic was created."""
    async with asyncio.timeout(seconds):
        while True:
            for node_id, member in world.members.items():
                if not member.is_up:
                    continue
                code = await create(world, node_id, name)
                if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    return node_id
            await asyncio.sleep(0.1)


def controller(world: World) -> int:
    assert world.ensemble is not None
    node = world.ensemble.node(tree.CONTROLLER)
    assert node is not None
    broker_id: int = json.loads(node.data)["broker"]
    return broker_id


async def until_claimed(watch: ControllerWatch, epoch: int, seconds: float = 60.0) -> None:
    """Wait until a broker has claimed a later epoch."""
    async with asyncio.timeout(seconds):
        while max(watch.claims) <= epoch:  # noqa: ASYNC110 - of virtual time
            await asyncio.sleep(0.1)


async def registered(world: World) -> set[str]:
    assert world.ensemble is not None
    return set(world.ensemble.children(tree.BROKER_IDS))


async def in_a_cluster(world: World, scenario: Callable[[], Awaitable[None]]) -> None:
    supervisors = [asyncio.ensure_future(keep_up(world, node_id)) for node_id in world.members]
    try:
        await scenario()
    finally:
        for each in supervisors:
            each.cancel()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("silent", [False, True])
def test_when_the_controller_is_killed_another_takes_over_at_once_and_in_silence_after_its_session(
    seed: int, silent: bool, tmp_path: Path
) -> None:
    async def scenario(world: World, watch: ControllerWatch) -> None:
        async def whole() -> None:
            await until_created(world, "one")
            assert world.ensemble is not None
            world.ensemble.loss, loss = 0.0, world.ensemble.loss
            await asyncio.sleep(
                SESSION_SECONDS
            )  # the ensemble has just heard from all, and all are connected
            first, epoch = controller(world), max(watch.claims)
            world.members[first].suspend() if silent else world.members[first].kill()
            world.ensemble.loss = loss
            killed_at = world.loop.time()
            await until_claimed(watch, epoch)
            took = world.loop.time() - killed_at
            assert took > SESSION_SECONDS / 2 if silent else took < 1.0
            await until_created(world, "two")
            if silent:
                world.members[first].resume()
            assert len(set(watch.claims.values())) == len(watch.claims)

        await in_a_cluster(world, whole)

    run(seed, tmp_path, scenario)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("how", ["stopped", "cut off"])
def test_a_controller_that_was_away_for_longer_than_its_session_writes_nothing(
    how: str, seed: int, tmp_path: Path
) -> None:
    async def scenario(world: World, watch: ControllerWatch) -> None:
        async def whole() -> None:
            await until_created(world, "one")
            old = controller(world)
            member = world.members[old]
            assert world.ensemble is not None
            member.suspend() if how == "stopped" else member.lose_store()
            late = asyncio.ensure_future(create(world, old, "late"))
            await asyncio.sleep(SESSION_SECONDS * 1.5)
            assert str(old) not in await registered(world)
            await until_claimed(watch, 1)
            there = world.ensemble.node(tree.topic_path("late"))
            assert there is None
            member.resume() if how == "stopped" else member.find_store()
            await late

        await in_a_cluster(world, whole)

    run(seed, tmp_path, scenario)


def test_the_same_seed_is_the_same_run(tmp_path: Path) -> None:
    async def scenario(world: World, watch: ControllerWatch) -> None:
        async def whole() -> None:
            await until_created(world, "one")
            world.members[0].kill()
            await until_created(world, "two")

        await in_a_cluster(world, whole)

    one, again = (run(3, tmp_path / name, scenario) for name in ("one", "again"))
    assert one == again != run(4, tmp_path / "other", scenario)


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_process_is_missed_at_once_and_its_next_start_waits_for_nothing(
    seed: int, tmp_path: Path
) -> None:
    async def up(member: Member) -> None:
        while not await member.start():  # noqa: ASYNC110 - it gives up when it loses the ensemble
            await asyncio.sleep(0.1)

    async def scenario(world: World, watch: ControllerWatch) -> None:
        await asyncio.gather(*(up(member) for member in world.members.values()))
        await until_created(world, "one")
        await asyncio.sleep(1.0)
        for node_id in range(3):
            member = world.members[node_id]
            member.kill()
            began = world.loop.time()
            async with asyncio.timeout(1.0):
                while str(node_id) in await registered(world):  # noqa: ASYNC110 - of virtual time
                    await asyncio.sleep(0.01)
            await up(member)
            await asyncio.sleep(2.0)
            member.kill()
            await up(member)  # before its session has timed out
            assert world.loop.time() - began < 2.0 + SESSION_SECONDS / 2
            await asyncio.sleep(2.0)

    run(seed, tmp_path, scenario)


def test_a_topic_change_by_another_broker_than_the_controller_is_found() -> None:
    loop = SimulatedLoop(1)

    async def whole() -> list[str]:
        ensemble = SimulatedEnsemble(SimulatedClock(loop))
        watch = ControllerWatch(ensemble)
        one, other = await ensemble.connect(), await ensemble.connect()
        await one.transact(
            [CreateNode(tree.CONTROLLER, ephemeral=True), CreateNode(tree.CONTROLLER_EPOCH, b"1")]
        )
        await other.transact([CreateNode("/topics/t", b"{}")])
        await other.transact([CreateNode("/changes"), CreateNode("/brokers/live", b"[]")])
        await other.transact([SetNode(tree.CONTROLLER_EPOCH, b"3", 0)])
        await other.transact([CreateNode("/brokers/ids/1")])
        await one.close()
        await other.close()
        return watch.problems

    problems = loop.run_until_complete(whole())
    loop.close()
    assert [problem.split(" is ")[0].split(" follows")[0] for problem in problems] == [
        "/topics/t",
        "/brokers/live",
        "/brokers/live",
        "epoch 3",
        "epoch 3",
        "/brokers/ids/1",
    ]


def test_a_broker_with_a_late_watch_does_not_contradict_the_store(tmp_path: Path) -> None:
    """A late watch does not let a broker answer that a topic exists, or does not, against the store."""

    async def scenario(world: World, watch: ControllerWatch) -> None:
        for member in world.members.values():
            await member.start()
        await asyncio.sleep(1.0)
        assert world.ensemble is not None
        world.ensemble.watch_seconds_max = 1_000.0
        for node_id in (0, 1, 2, 0):
            assert await create(world, node_id, "t") is ErrorCode.NONE
            assert await create(world, (node_id + 1) % 3, "t") is ErrorCode.TOPIC_ALREADY_EXISTS
            link = world.link((node_id + 2) % 3)
            grown = CreatePartitionsTopic(name="t", count=2, assignments=None)
            answer = await link.send(CreatePartitionsRequest(topics=[grown], timeout_ms=5_000), 3)
            assert answer.results[0].error_code == 0
            link = world.link((node_id + 1) % 3)
            deleted = await link.send(DeleteTopicsRequest(topic_names=["t"], timeout_ms=5_000), 5)
            assert deleted.responses[0].error_code == 0

    with World(1, tmp_path, shared=True) as world:
        assert world.ensemble is not None
        for node_id in range(3):
            world.add(node_id)
        world.run(scenario(world, ControllerWatch(world.ensemble)))


PARTITIONS = 6
ACKS_ALL = -1


async def keep_producing(world: World, partition: int, acknowledged: dict[tuple[int, int], bytes]) -> None:
    """Produce one record after the other to the broker that says it leads the partition; return the acknowledged
    ones.
    """
    number = 0
    while True:
        number += 1
        value = b"%d-%d" % (partition, number)
        for node_id in world.members:
            batch = build_batch([Record(None, value, (), 1)])
            data = TopicProduceData(
                name="kept", partition_data=[PartitionProduceData(index=partition, records=batch)]
            )
            request = ProduceRequest(acks=ACKS_ALL, timeout_ms=1000, topic_data=[data])
            try:
                answer = await world.link(node_id, f"producer {partition}").send(request, 8)
            except LinkLostError:
                continue
            told = answer.responses[0].partition_responses[0]
            if told.error_code == ErrorCode.NONE:
                assert acknowledged.setdefault((partition, told.base_offset), value) == value, "told twice"
        await asyncio.sleep(0.5)


@pytest.mark.parametrize("seed", range(2))
def test_acknowledged_records_are_there_once_through_broker_faults(seed: int, tmp_path: Path) -> None:
    """Brokers are killed, paused beyond their session, and lose the store; each partition keeps one log.

    `test_cluster_simulation.py` has the same faults, and more of them, for 22 seeds.
    """

    async def scenario(world: World, watch: ControllerWatch) -> None:
        acknowledged: dict[tuple[int, int], bytes] = {}

        async def whole() -> None:
            await until_created(world, "first")
            while len(await registered(world)) < len(world.members):  # noqa: ASYNC110 - of virtual time
                await asyncio.sleep(0.1)
            for_ever = CreatableTopicConfig(name="retention.ms", value="-1")
            topic = CreatableTopic(
                name="kept", num_partitions=PARTITIONS, replication_factor=1, configs=[for_ever]
            )
            request = CreateTopicsRequest(topics=[topic], timeout_ms=5_000)
            while "kept" not in world.ensemble.children(tree.TOPICS):  # type: ignore[union-attr]
                with contextlib.suppress(LinkLostError):
                    await world.link(0).send(request, 5)
                await asyncio.sleep(0.1)
            producers = [
                asyncio.ensure_future(keep_producing(world, each, acknowledged)) for each in range(PARTITIONS)
            ]
            for _ in range(4):
                member = world.members[world.loop.random.randrange(len(world.members))]
                match world.loop.random.choice(["kill", "stop", "cut off"]):
                    case "kill" if member.is_up:
                        member.kill()
                        await asyncio.sleep(SESSION_SECONDS)
                    case "stop" if member.is_up:
                        member.suspend()
                        await asyncio.sleep(SESSION_SECONDS * 1.5)
                        member.resume()
                    case _ if member.is_up:
                        member.lose_store()
                        await asyncio.sleep(SESSION_SECONDS * 1.5)
                        member.find_store()
                await asyncio.sleep(SESSION_SECONDS / 2)
            async with asyncio.timeout(60):
                while await offline(world, "kept"):  # noqa: ASYNC110 - of virtual time
                    await asyncio.sleep(0.1)
            count = len(acknowledged)
            await asyncio.sleep(3)
            assert len(acknowledged) > count, "all tasks make progress"
            for each in producers:
                each.cancel()
            await asyncio.gather(*producers, return_exceptions=True)
            for (partition, offset), value in acknowledged.items():
                leader = await leader_of(world, "kept", partition)
                direct = world.members[leader].direct
                assert direct is not None
                answer = await direct.fetch("kept", offset, partition=partition)
                assert (offset, value) in values_of(answer.records), (partition, offset, leader, answer)

        await in_a_cluster(world, whole)

    run(seed, tmp_path, scenario)


async def leader_of(world: World, topic: str, partition: int) -> int:
    assert world.ensemble is not None
    node = world.ensemble.node(tree.chunk_path(topic, 0))
    assert node is not None
    return tree.decode_states(node.data)[partition].leader


async def offline(world: World, topic: str) -> list[int]:
    leaders = [await leader_of(world, topic, each) for each in range(PARTITIONS)]
    return [leader for leader in leaders if leader < 0 or not world.members[leader].is_up]
