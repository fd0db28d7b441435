"""Whole brokers under virtual time: acknowledged records are there once, after every kind of kill and loss."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.protocol.records.encode import Record, build_batch
from simulator.direct import values_of
from simulator.histories import Outcome, Send, check_delivery, check_offsets
from simulator.loop import DeadlockError, SimulatedLoop
from simulator.world import LinkLostError, World

TOPIC = "t"
PARTITIONS = 2
SEEDS = range(int(os.environ.get("HEADRACE_WORLD_SEEDS", "6")))
RETRIABLE = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
}


async def asked(link: Any, request: Any, version: int) -> Any:
    """Send a request that may be repeated, until it is answered."""
    while True:
        try:
            return await link.send(request, version)
        except LinkLostError:
            await asyncio.sleep(0.05)


async def create_topic(world: World) -> None:
    topic = CreatableTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=1)
    await asked(world.link(0), CreateTopicsRequest(topics=[topic], timeout_ms=5_000), 5)


async def produce(world: World, name: str, count: int, sends: list[Send]) -> None:
    """An idempotent producer with one request under way, which repeats a batch until it is answered."""
    link = world.link(0)
    identity = await asked(link, InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), 4)
    for sequence in range(count):
        place, value = (TOPIC, world.loop.random.randrange(PARTITIONS)), f"{name}-{sequence}".encode()
        mine = [send for send in sends if send.producer == name and send.place == place]
        batch = build_batch(
            [Record(None, value, (), 1_750_000_000_000)],
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            base_sequence=len(mine),
        )
        data = TopicProduceData(
            name=TOPIC, partition_data=[PartitionProduceData(index=place[1], records=batch)]
        )
        while True:
            answer = await asked(link, ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[data]), 9)
            part = answer.responses[0].partition_responses[0]
            if part.error_code not in RETRIABLE:
                break
            await asyncio.sleep(0.05)
        assert part.error_code == ErrorCode.NONE, part
        sends.append(Send(name, place, value, Outcome.OK, part.base_offset))
        await asyncio.sleep(world.loop.random.uniform(0, 0.02))


async def killer(world: World, until: asyncio.Event) -> int:
    kills = 0
    while not until.is_set():
        await asyncio.sleep(world.loop.random.uniform(0.05, 0.6))
        await world.members[0].restart()
        kills += 1
    return kills


async def found(world: World) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    log: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    for partition in range(PARTITIONS):
        entries = log[TOPIC, partition] = []
        while True:
            wanted = FetchPartition(
                partition=partition, fetch_offset=len(entries), partition_max_bytes=1 << 20
            )
            request = FetchRequest(
                max_wait_ms=0, min_bytes=0, max_bytes=1 << 24,
                topics=[FetchTopic(topic=TOPIC, partitions=[wanted])],
            )  # fmt: skip
            answer = await asked(world.link(0), request, 11)
            part = answer.responses[0].partitions[0]
            assert part.error_code == ErrorCode.NONE, part
            values = values_of(part.records or b"")
            if not values:
                break
            entries.extend((offset, value or b"") for offset, value in values if offset >= len(entries))
    return log


async def scenario(world: World, count: int = 40) -> tuple[list[Send], Any, int]:
    await world.add(0).start()
    await create_topic(world)
    sends: list[Send] = []
    done = asyncio.Event()
    killing = asyncio.ensure_future(killer(world, done))
    async with asyncio.timeout(600):
        await asyncio.gather(*(produce(world, name, count, sends) for name in ("a", "b", "c")))
    done.set()
    kills = await killing
    world.loss = 0.0
    return sends, await found(world), kills


@pytest.mark.parametrize("seed", SEEDS)
def test_acknowledged_records_are_there_once_through_kills_and_lost_connections(
    seed: int, tmp_path: Path
) -> None:
    with World(seed, tmp_path, loss=0.05) as world:
        sends, log, kills = world.run(scenario(world))
    assert check_delivery(sends, log) + check_offsets(sends, [], log) == [], f"seed {seed}"
    assert len(sends) == 120
    assert kills


def test_the_same_seed_is_the_same_run(tmp_path: Path) -> None:
    def trace(name: str, seed: int) -> tuple[str, float]:
        with World(seed, tmp_path / name, loss=0.1) as world:
            sends, log, kills = world.run(scenario(world, 10))
            return hashlib.sha256(repr((sends, log, kills)).encode()).hexdigest(), world.loop.time()

    assert trace("one", 3) == trace("again", 3)
    assert trace("other", 4) != trace("third", 3)


def test_a_failure_in_a_world_names_its_seed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as caught, World(7, tmp_path, loss=0.25):
        raise AssertionError("as the test wants it")
    (note,) = caught.value.__notes__
    assert "seed 7, loss=0.25" in note


def test_waiting_for_ever_raises_deadlock(tmp_path: Path) -> None:
    loop = SimulatedLoop(0)
    with pytest.raises(DeadlockError):
        loop.run_until_complete(asyncio.wait_for(loop.create_future(), None))
    loop.close()
