"""A follower appends, and a leader updates its partitions, in pieces: other tasks of the event loop run in between."""

from __future__ import annotations

import asyncio
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from headrace.broker.cluster.replication import Replication
from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.log.config import LogConfig
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.metadata.image import PartitionState
from headrace.broker.replication.following import Follower
from headrace.broker.runtime.background import BackgroundTasks
from headrace.broker.runtime.ports import SystemClock
from headrace.broker.runtime.slices import Slices
from headrace.broker.tests.replication.test_replication import TOPIC, create, described, led, produce, until
from headrace.protocol.messages.fetch import PartitionData
from simulator.call_clock import CallClock
from simulator.cluster import direct_cluster
from simulator.log import LogWorld

STATE = PartitionState((1, 2), 1, 9, (1, 2))
SMALL, LARGE_BYTES = 300, 1_000_000


def all_of(log: PartitionLog) -> bytes:
    return log.read(log.log_start_offset, 1 << 26, up_to=log.log_end_offset).read()


def leader_with_small_batches_and_a_large_one(world: LogWorld) -> PartitionLog:
    log = world.open()
    for number in range(SMALL):
        world.append(log, value=b"%d" % number)
    world.append(log, value=bytes(LARGE_BYTES))
    return log


def following(world: LogWorld) -> Follower:
    log = PartitionLog.open(Path("/data/copy-0"), LogConfig(), clock=world.clock, disk=world.disk)
    partition: Any = SimpleNamespace(topic=SimpleNamespace(name="t", topic_id=None), index=0)
    follower = Follower(partition, STATE, lambda _: log)
    follower._take(log)
    return follower


def test_a_slice_handles_few_batches_and_bytes() -> None:
    world = LogWorld()
    leader, log = leader_with_small_batches_and_a_large_one(world), following(world).log
    ends = [log.log_end_offset for _ in log.append_copies(all_of(leader), gaps_to=0)]
    steps = [after - before for before, after in pairwise([*ends, log.log_end_offset])]
    assert max(steps) <= 32
    assert steps.count(0) >= SMALL + LARGE_BYTES // (256 << 10), "each CRC, that of the large batch in parts"
    assert all_of(log) == all_of(leader)


async def test_a_follower_of_a_new_epoch_drops_records_of_the_old_one() -> None:
    ticks = count()
    slices = Slices(lambda: float(next(ticks)))  # one step a turn
    for end in (False, True):
        world = LogWorld()
        leader, follower = leader_with_small_batches_and_a_large_one(world), following(world)
        log = follower.log
        answer = PartitionData(high_watermark=SMALL, log_start_offset=SMALL, records=all_of(leader))
        taking = asyncio.ensure_future(follower.answered(answer, slices))
        while not 0 < log.log_end_offset < SMALL:  # noqa: ASYNC110 - one step a turn
            await asyncio.sleep(0)
        there = log.log_end_offset
        if end:
            assert (await follower.release())[0] is log
        else:
            follower.follow(replace(STATE, leader_epoch=10))
            await follower.at_rest()
        await taking
        assert log.log_end_offset == there
        assert (log.log_start_offset, follower.high_watermark) == (0, 0), "nor of what else it said"


async def test_leaders_are_told_of_brokers_that_are_gone_a_few_at_a_time() -> None:
    clock, background = CallClock(), BackgroundTasks()
    listeners: list[Any] = []
    metadata: Any = SimpleNamespace(broker_listeners=listeners, is_controller=False)
    replication = Replication(1, BrokerConfig({}), SystemClock(), background)
    nobody: Any = None
    replication.start(metadata, nobody, nobody, nobody, nobody, Slices(clock.monotonic))
    told: list[int] = []

    class Led:
        closed = False

        def look_again(self) -> None:
            told.append(sum(map(abs, range(10))))

    for _ in range(3000):
        partition: Any = Led()
        replication.leads(partition)
    async with clock:
        for listener in listeners:
            listener()
        while len(told) < 3000:  # noqa: ASYNC110 - what is counted is turns
            await asyncio.sleep(0)
    await background.cancel()
    assert clock.longest_turn < 1500


async def test_a_broker_that_leads_nothing_any_more_is_not_asked_and_is_again_when_it_does(
    tmp_path: Path,
) -> None:
    async with direct_cluster(tmp_path, 3) as cluster:
        await create(cluster.brokers[1])
        first = (await described(await led(cluster, {1, 2, 3})))[0].leader_id
        others = {1, 2, 3} - {first}

        def asks(broker: int) -> bool:
            tasks = cluster.brokers[broker].broker._background._tasks
            return any(task.get_name() == f"fetching from broker {first}" for task in tasks)

        await until(lambda: all(asks(other) for other in others))
        await cluster.stop(first)
        await led(cluster, others)
        await until(lambda: not any(asks(other) for other in others))
        await cluster.start(first)
        leader = await led(cluster, {1, 2, 3})
        await produce(leader, [b"1"])
        await leader.context.replica_changes.elect_leaders([(TOPIC, 0)], unclean=False)
        back = await led(cluster, {1, 2, 3})
        assert (await described(back))[0].leader_id == first
        await until(lambda: all(asks(other) for other in others))
        assert (await produce(back, [b"2"])).base_offset == 1
