"""The time up to which a follower is complete: its conclusions from answers, and the leader's vouching."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.broker.configs.broker_config import BrokerConfig
from headrace.broker.log.config import LogConfig
from headrace.broker.log.partition_log import PartitionLog
from headrace.broker.metadata.image import PartitionState
from headrace.broker.replication import sessions
from headrace.broker.replication.fetcher import Fetcher
from headrace.broker.replication.following import Follower
from headrace.broker.replication.leading import ReplicatedPartition
from headrace.broker.replication.safe_time import FACTS_MAX, SafeTime, Vouched
from headrace.broker.runtime.slices import Slices
from headrace.broker.tests.replication.test_replication import TOPIC, create, led, produce, until
from headrace.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    ForgottenTopic,
    PartitionData,
    ReplicaFetchResponse,
)
from simulator.cluster import DirectCluster, direct_cluster
from simulator.log import LogWorld

LEADER, SELF = 1, 2
OFTEN = {"replica.fetch.wait.max.ms": "20"}
STATE = PartitionState((LEADER, SELF), LEADER, 9, (LEADER, SELF))


# -- conclusions from answers ------------------------------------------------------------------------------


def test_a_state_is_as_of_the_latest_time_whose_high_watermark_it_has() -> None:
    vouched, safe = Vouched(), SafeTime()
    assert safe.at(100) is None
    vouched.at = 1.0
    safe.told(5, vouched)
    assert (safe.at(4), safe.at(5)) == (None, 1.0)
    vouched.at = 2.0
    assert (safe.at(4), safe.at(5)) == (None, 2.0)
    safe.untold()
    vouched.at = 3.0
    assert safe.at(5) == 2.0, "no later answer has confirmed it"
    safe.told(9, vouched)
    assert (safe.at(8), safe.at(9)) == (2.0, 3.0)
    safe.forget()
    assert safe.at(9) is None


def test_a_replica_slightly_behind_has_a_safe_time_after_many_answers() -> None:
    vouched, safe = Vouched(), SafeTime()
    for number in range(10_000):
        vouched.at = float(number)
        safe.told(number, vouched)
        safe.untold()
        behind = max(number - FACTS_MAX // 4, 0)
        at = safe.at(behind) if number % 100 == 99 else None
        assert at is None or behind - FACTS_MAX < at <= behind


def test_safe_time_never_passes_an_unapplied_acknowledgement() -> None:
    """The leader is a number; answers and their contents come in any order."""
    for seed in range(300):
        given = random.Random(seed)
        vouched, safe = Vouched(), SafeTime()
        acknowledged: list[tuple[float, int]] = []
        high_watermark = applied = told = 0
        now, sent_at = 0.0, None
        for _ in range(60):
            now += given.random()
            step = given.random()
            if step < 0.4:
                high_watermark += given.randrange(3)
                acknowledged.append((now, high_watermark))
            elif step < 0.6:
                applied = given.randint(applied, max(applied, told))
            elif sent_at is None:
                sent_at = now
            else:
                answered = given.choice(("named", "not named", "not current", "lost"))
                if answered == "named" or (answered == "not named" and told != high_watermark):
                    safe.untold()
                    vouched.at, told = sent_at, high_watermark
                    now += given.random()  # it is on its way, and more is acknowledged
                    high_watermark += given.randrange(2)
                    acknowledged.append((now, high_watermark))
                    safe.told(told, vouched)
                elif answered == "not named" and safe._vouched is not None:
                    vouched.at = sent_at
                elif answered == "not current" and told != high_watermark:
                    safe.untold()
                sent_at = None
            at = safe.at(applied)
            if at is not None:
                missing = [offset for time, offset in acknowledged if time < at and offset > applied]
                assert not missing, f"seed {seed}: as of {at} without {missing}"


# -- a follower's conclusions from answers -----------------------------------------------------------------


class Scripted:
    """A leader with prepared answers, one fetch after the other, each a second later."""

    def __init__(self, *answers: Callable[[FetchRequest], Any]) -> None:
        self.now = 100.0
        self.asked: list[FetchRequest] = []
        self._answers = list(answers)
        self.is_done = asyncio.Event()

    async def ask(self, broker: int, request: FetchRequest, *_: Any, **__: Any) -> ReplicaFetchResponse:
        await asyncio.sleep(0)
        if not self._answers:
            self.is_done.set()
            await asyncio.Event().wait()
        self.asked.append(request)
        response = self._answers.pop(0)(request)
        self.now += 1.0
        assert isinstance(response, ReplicaFetchResponse)
        return response

    def hang_up(self, *_: Any) -> None: ...


def follower_of(world: LogWorld, topic_id: uuid.UUID) -> Follower:
    log = PartitionLog.open(Path("/data/copy-0"), LogConfig(), clock=world.clock, disk=world.disk)
    partition: Any = SimpleNamespace(topic=SimpleNamespace(name="t", topic_id=topic_id), index=0)
    follower = Follower(partition, STATE, lambda _: log)
    follower._take(log)
    return follower


def answer(topic_id: uuid.UUID | None = None, *, current: bool = True, **told: Any) -> ReplicaFetchResponse:
    """Without a topic it names no partition."""
    partitions = [PartitionData(partition_index=0, log_start_offset=0, records=b"", **told)]
    return ReplicaFetchResponse(
        session_id=7,
        responses=[]
        if topic_id is None
        else [FetchableTopicResponse(topic_id=topic_id, partitions=partitions)],
        is_current=current,
    )


async def after(
    *answers: Callable[[uuid.UUID, Follower], ReplicaFetchResponse], end_offset: int = 3
) -> tuple[Follower, Scripted]:
    """Return a follower with three records, after these answers of a leader."""
    topic_id, world = uuid.uuid4(), LogWorld()
    follower = follower_of(world, topic_id)
    leader = world.open()
    for number in range(end_offset):
        world.append(leader, value=b"%d" % number)
    copied = leader.read(0, 1 << 20, up_to=end_offset).read()
    for _ in follower.log.append_copies(copied, gaps_to=0):
        pass
    scripted = Scripted(*(lambda _, each=each: each(topic_id, follower) for each in answers))
    nothing: Any = None
    throttle: Any = SimpleNamespace(holds_for=lambda *_: False, copied=lambda _: None)
    fetcher = Fetcher(
        LEADER,
        broker_id=SELF,
        broker_epoch=lambda: 5,
        peers=scripted,  # type: ignore[arg-type]
        config=BrokerConfig({}),
        executor=nothing,
        slices=Slices(lambda: 0.0),
        throttle=throttle,
        clock=lambda: scripted.now,
    )
    fetcher.add(follower.key, follower)
    running = asyncio.ensure_future(fetcher.run())
    try:
        await asyncio.wait_for(scripted.is_done.wait(), 60)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    return follower, scripted


async def test_safe_time_is_the_send_time_of_the_fetch() -> None:
    follower, _ = await after(lambda topic, _: answer(topic, high_watermark=2))
    assert follower.safe_time.at(2) == 100.0
    assert follower.safe_time.at(1) is None


async def test_safe_time_advances_for_partitions_that_an_answer_omits() -> None:
    quiet = [lambda *_: answer()] * 3
    follower, _ = await after(lambda topic, _: answer(topic, high_watermark=2), *quiet)
    assert follower.safe_time.at(2) == 103.0
    follower, leader = await after(*quiet)
    assert [len(each.topics) for each in leader.asked] == [1, 0, 0]
    assert follower.safe_time.at(0) == 102.0, "it has said its own, and the leader nothing else"


async def test_omitted_partitions_have_no_safe_time_in_an_incomplete_answer() -> None:
    first = [lambda topic, _: answer(topic, high_watermark=2)]
    follower, _ = await after(*first, lambda *_: answer(current=False))
    assert follower.safe_time.at(2) == 100.0
    follower, _ = await after(*first, lambda *_: answer(current=False), lambda *_: answer())
    assert follower.safe_time.at(2) == 102.0
    news = [lambda topic, _: answer(topic, high_watermark=3, current=False)]
    follower, _ = await after(*first, *news)
    assert (follower.safe_time.at(2), follower.safe_time.at(3)) == (100.0, 100.0)
    follower, _ = await after(*first, *news, lambda *_: answer())
    assert (follower.safe_time.at(2), follower.safe_time.at(3)) == (100.0, 102.0)


async def test_safe_time_stands_while_the_leader_doubts_a_partition() -> None:
    def doubted(topic: uuid.UUID, _: Follower) -> ReplicaFetchResponse:
        found = answer()
        found.doubted = [ForgottenTopic(topic_id=topic, partitions=[0])]
        return found

    first = [lambda topic, _: answer(topic, high_watermark=2)]
    follower, _ = await after(*first, doubted, doubted)
    assert follower.safe_time.at(2) == 100.0
    follower, _ = await after(*first, doubted, doubted, lambda *_: answer())
    assert follower.safe_time.at(2) == 103.0
    follower, _ = await after(doubted)
    assert follower.safe_time.at(2) is None


async def test_errors_and_diverged_logs_do_not_advance_safe_time() -> None:
    parted = EpochEndOffset(epoch=8, end_offset=3)
    for wrong in ({"error_code": 6, "high_watermark": -1}, {"high_watermark": 2, "diverging_epoch": parted}):
        follower, _ = await after(lambda topic, _, wrong=wrong: answer(topic, **wrong))
        assert follower.safe_time.at(3) is None


async def test_the_leader_of_another_epoch_is_not_believed() -> None:
    """It was asked before this broker heard of another epoch."""

    def too_late(topic: uuid.UUID, follower: Follower) -> ReplicaFetchResponse:
        follower.follow(replace(STATE, leader_epoch=10))
        return answer(topic, high_watermark=3)

    follower, _ = await after(too_late)
    assert follower.safe_time.at(3) is None


async def test_safe_time_does_not_carry_over_to_the_next_fetch_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The partition is not named there yet; with many partitions that takes several requests."""

    def over(*_: Any) -> ReplicaFetchResponse:
        monkeypatch.setattr(sessions, "NAMED_MAX", 0)
        return ReplicaFetchResponse(session_id=0, error_code=70, responses=[])

    def named(*_: Any) -> ReplicaFetchResponse:
        monkeypatch.undo()
        return answer()

    first = [lambda topic, _: answer(topic, high_watermark=3)]
    follower, leader = await after(*first, over, *[lambda *_: answer()] * 2)
    assert [len(each.topics) for each in leader.asked] == [1, 0, 0, 0]
    assert follower.safe_time.at(3) == 100.0
    monkeypatch.undo()
    follower, leader = await after(*first, over, named, lambda *_: answer())
    assert [len(each.topics) for each in leader.asked] == [1, 0, 0, 1]
    assert follower.safe_time.at(3) == 103.0


async def test_safe_time_is_forgotten_for_truncated_records() -> None:
    first = [lambda topic, _: answer(topic, high_watermark=3)]
    follower, _ = await after(*first)
    follower._truncate(9, 3)
    assert follower.safe_time.at(3) == 100.0, "nothing that was replicated is cut off"
    follower._truncate(9, 2)
    assert follower.safe_time.at(3) is None


# -- a leader's vouching -----------------------------------------------------------------------------------


def follower_at(cluster: DirectCluster, node_id: int) -> Follower:
    found = cluster.brokers[node_id].context.replicas.follower(TOPIC, 0)
    assert isinstance(found, Follower)
    return found


async def test_a_leader_vouches_for_those_in_sync_with_it_while_it_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with direct_cluster(tmp_path, 3, config=OFTEN) as cluster:
        await create(cluster.brokers[1])
        broker = await led(cluster, {1, 2, 3})
        metadata = broker.context.metadata
        partition: Any = broker.context.replicas.partition(TOPIC, 0)
        assert isinstance(partition, ReplicatedPartition)
        one, other = sorted({1, 2, 3} - {partition.state.leader})
        fetches = partition._leading.fetches
        await produce(broker, [b"a"])

        def as_of(node_id: int) -> float:
            follower = follower_at(cluster, node_id)
            return follower.safe_time.at(follower.log.log_end_offset) or -1.0

        async def moves_on(node_id: int) -> None:
            before = as_of(node_id)
            await until(lambda: as_of(node_id) > max(before, 0.0))

        async def stands(node_id: int) -> None:
            """Check that later answers bring no progress."""
            for wait_for_what_is_on_its_way in (True, False):
                stood, enough = as_of(node_id), fetches._kept[node_id].epoch + 3
                await until(lambda enough=enough: fetches._kept[node_id].epoch >= enough)
                assert wait_for_what_is_on_its_way or as_of(node_id) == stood

        await moves_on(one)
        with monkeypatch.context() as patch:
            patch.setattr(ReplicatedPartition, "vouches_for", lambda _, broker: broker != one)
            partition._leading.doubted(partition)
            await stands(one)
            await moves_on(other)
        partition._leading.doubted(partition)
        await moves_on(one)
        with monkeypatch.context() as patch:
            patch.setattr(metadata, "_fence", SimpleNamespace(is_shut=True))
            await stands(one)
        await moves_on(one)

        state, progress = partition.state, partition.progress
        assert partition.vouches_for(one)
        partition.state = replace(state, isr=(state.leader, other))
        assert not partition.vouches_for(one), "it may miss later acknowledgements"
        partition.state, start = state, progress.start_offset
        progress.start_offset = partition.replicated_offset + 1
        assert not partition.vouches_for(one), "the leader before may have acknowledged more"
        progress.start_offset = start
        progress.proposed = (state.leader, other)
        assert not partition.vouches_for(one), "the next leader may do without it"
        assert partition.vouches_for(other)
        progress.proposed = None
        session = fetches._kept[one]
        await partition.close()
        assert not partition.vouches_for(one)
        assert session.doubted, "another broker is about to lead"


async def test_a_removed_replica_gets_no_safe_time(tmp_path: Path) -> None:
    """It does not know yet that it was removed, and the leader sends it no records."""
    async with direct_cluster(tmp_path, 3, config=OFTEN) as cluster:
        await create(cluster.brokers[1])
        broker = await led(cluster, {1, 2, 3})
        partition: Any = broker.context.replicas.partition(TOPIC, 0)
        state = partition.state
        one, other = sorted({1, 2, 3} - {state.leader})
        sessions_of = partition._leading.fetches._kept
        await produce(broker, [b"a"])
        await until(lambda: one in sessions_of and not sessions_of[one].doubted and not sessions_of[one].news)
        without = (state.leader, other)
        partition.follow(replace(state, replicas=without, isr=without))
        assert sessions_of[one].doubted
        assert not sessions_of[other].doubted
        await produce(broker, [b"b"])
        assert sessions_of[one].doubted
        partition.follow(state)
        assert sessions_of[one].news, "it has not been told of records published meanwhile"
