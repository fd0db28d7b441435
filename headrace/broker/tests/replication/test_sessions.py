"""Fetch sessions between brokers: known values are not sent again, and nothing is missed."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.broker.log.validation import AppendOrigin
from headrace.broker.replication.follower_fetches import FollowerFetches
from headrace.broker.replication.sessions import NAMED_MAX, NO_SESSION, Asking, Told
from headrace.broker.tests.replication.test_replication import TOPIC, create, described, led, produce, until
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from headrace.protocol.records.encode import Record, build_batch
from simulator.cluster import DirectCluster, direct_cluster
from simulator.direct import DirectBroker, values_of

PARTITIONS = 12


class Leader:
    """The leader's memory by the rules of the protocol alone."""

    def __init__(self) -> None:
        self.entries: dict[int, Told] = {}
        self.epoch = 0
        self.failed: list[int] = []

    def takes(self, epoch: int, named: dict[int, Told], forgotten: list[int]) -> None:
        assert epoch == 0 or epoch > self.epoch
        if epoch == 0:
            self.entries.clear()
        elif epoch == self.epoch + 1:
            for each in self.failed:
                self.entries.pop(each, None)
        self.epoch, self.failed = epoch, []
        for each in forgotten:
            self.entries.pop(each, None)
        self.entries.update(named)


@pytest.mark.parametrize("seed", range(20))
def test_a_leader_knows_the_sessions_partitions_after_lost_messages(seed: int) -> None:
    chance = random.Random(seed)
    asking: Asking[int] = Asking()
    leader, wanted = Leader(), dict[int, Told]()

    def turn(*, calm: bool = False) -> None:
        named = {each: wanted[each] for each in asking.next_names()}
        forgotten = asking.send(named)
        taken = calm or chance.random() < 0.9
        if taken:
            leader.takes(asking.epoch, named, forgotten)
        if not calm and chance.random() < 0.1:  # followers come and go while the answer is on its way
            asking.exclude(gone := chance.randrange(30))
            wanted.pop(gone, None)
        if not taken or (not calm and chance.random() < 0.2):
            asking.lost()
            return
        asking.answered(7)
        if not calm and leader.entries and chance.random() < 0.3:
            leader.failed = [chance.choice(sorted(leader.entries))]
            asking.failed(leader.failed[0])

    for _ in range(300):
        for _ in range(chance.randrange(4)):
            follower = chance.randrange(30)
            if chance.random() < 0.3:
                wanted.pop(follower, None)
                asking.exclude(follower)
            else:
                wanted[follower] = 0, chance.randrange(5), 0, 0
                asking.include(follower, wanted[follower])
        if chance.random() < 0.01:
            asking.over()
        turn()
    for _ in range(3):
        turn(calm=True)
    assert leader.entries == wanted
    for follower, told in wanted.items():
        asking.include(follower, told)
    assert asking.next_names() == [], "and nothing is said again"


def test_many_partitions_are_named_over_several_requests() -> None:
    asking: Asking[int] = Asking()
    told = 0, 0, 0, 0
    for each in range(NAMED_MAX + 20):
        asking.include(each, told)
    assert not asking.is_said
    asking.send(dict.fromkeys(asking.next_names(), told))
    asking.answered(5)
    assert asking.is_said
    assert len(asking.next_names()) == 20
    asking.send(dict.fromkeys(asking.next_names(), told))
    asking.answered(NO_SESSION)
    assert len(asking.next_names()) == NAMED_MAX + 20, "a leader of an earlier version"


def watched(cluster: DirectCluster, monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, list[int]]]:
    """Record each fetch of a follower: whether it begins a session, and the partitions that it names."""
    seen: list[tuple[bool, list[int]]] = []
    fetch = FollowerFetches.fetch

    def watching(self: FollowerFetches, context: Any, request: FetchRequest) -> Any:
        named = [part.partition for topic in request.topics for part in topic.partitions]
        seen.append((request.session_epoch == 0, named))
        return fetch(self, context, request)

    monkeypatch.setattr(FollowerFetches, "fetch", watching)
    return seen


async def test_followers_name_only_changed_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"replica.fetch.wait.max.ms": "20"}
    async with direct_cluster(tmp_path, 3, config=config) as cluster:
        await create(cluster.brokers[1], partitions=PARTITIONS, min_insync_replicas="2")
        leader = await led(cluster, {1, 2, 3})
        partition = leader.context.replicas.partition(TOPIC, 0)
        await produce(leader, [b"1"])
        await until(lambda: all(each.end_offset == 1 for each in partition.progress.replicas.values()))
        seen = watched(cluster, monkeypatch)
        await until(lambda: len(seen) > 12 and not any(named for _, named in seen[-12:]))
        seen.clear()
        assert (await produce(leader, [b"2"])).base_offset == 1
        await until(lambda: all(each.end_offset == 2 for each in partition.progress.replicas.values()))
        assert {index for _, named in seen for index in named} == {0}
        assert not any(begins for begins, _ in seen)
        for other in partition.progress.replicas:
            follower = cluster.brokers[other].context.replicas.follower(TOPIC, 0)
            await until(lambda follower=follower: follower.high_watermark == 2)  # type: ignore[misc]


async def test_a_replica_that_may_have_been_reset_counts_after_its_next_fetch(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, config={"replica.fetch.wait.max.ms": "20"}) as cluster:
        await create(cluster.brokers[1])
        leader = await led(cluster, {1, 2, 3})
        partition = leader.context.replicas.partition(TOPIC, 0)
        await produce(leader, [b"1"])
        replicas = partition.progress.replicas
        await until(lambda: all(each.end_offset == 1 for each in replicas.values()))
        other = next(iter(replicas))
        isr = tuple(broker for broker in partition.state.isr if broker != other)
        partition.follow(replace(partition.state, isr=isr))
        assert replicas[other].end_offset == -1
        await until(lambda: replicas[other].end_offset == 1)


async def test_a_caught_up_follower_stays_caught_up_without_changes(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, config={"replica.lag.time.max.ms": "60000"}) as cluster:
        await create(cluster.brokers[1])
        leader = await led(cluster, {1, 2, 3})
        partition = leader.context.replicas.partition(TOPIC, 0)
        await produce(leader, [b"1"])
        replicas = partition.progress.replicas
        await until(lambda: all(each.end_offset == 1 for each in replicas.values()))
        await until(lambda: partition.high_watermark == 1)
        await asyncio.sleep(0)
        for each in replicas.values():
            each.caught_up_at = -1e9  # it was silent for long, for there were no changes
        partition.append(build_batch([Record(None, b"2")]), AppendOrigin.CLIENT)
        partition.check_lag()
        assert partition.progress.proposed is None


class Stranger:
    """Fetch as a broker that is down, one request after the other."""

    def __init__(self, leader: DirectBroker, broker: int, partition: Any) -> None:
        self.leader, self.broker, self.partition = leader, broker, partition
        self.session_id = 0

    async def fetch(
        self, epoch: int, offset: int | None = None, high_watermark: int = -1, session_id: int | None = None
    ) -> Any:
        topics = []
        if offset is not None:
            asked = FetchPartition(
                partition=0,
                current_leader_epoch=self.partition.leader_epoch,
                fetch_offset=offset,
                log_start_offset=0,
                partition_max_bytes=1 << 20,
                high_watermark=high_watermark,
            )
            topics.append(FetchTopic(topic_id=self.partition.topic.topic_id, partitions=[asked]))
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=self.broker, replica_epoch=1 << 40),
            max_bytes=1 << 20,
            session_id=self.session_id if session_id is None else session_id,
            session_epoch=epoch,
            topics=topics,
        )
        answer = await self.leader.send(request, 18)
        if epoch == 0:
            self.session_id = answer.session_id
        return answer


def told_by(answer: Any) -> list[tuple[int, list[bytes], int]]:
    return [
        (part.error_code, [value for _, value in values_of(part.records)], part.high_watermark)
        for topic in answer.responses
        for part in topic.partitions
    ]


async def test_a_lost_answer_is_repeated_in_the_session(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3) as cluster:
        await create(cluster.brokers[1])
        leader = await led(cluster, {1, 2, 3})
        own = (await described(leader))[0].leader_id
        other = next(each for each in (1, 2, 3) if each != own)
        await cluster.stop(other)
        await led(cluster, {1, 2, 3} - {other})
        await produce(leader, [b"1"])
        partition = leader.context.replicas.partition(TOPIC, 0)
        stranger = Stranger(leader, other, partition)
        assert told_by(await stranger.fetch(0, 0)) == [(0, [b"1"], 1)]
        assert told_by(await stranger.fetch(1)) == [(0, [b"1"], 1)], "it does not say that it has it"
        assert told_by(await stranger.fetch(2, 1)) == [(0, [], 1)]
        assert told_by(await stranger.fetch(3)) == [], "it was told"
        assert told_by(await stranger.fetch(4, 1)) == [(0, [], 1)]
        assert told_by(await stranger.fetch(6)) == [(0, [], 1)], "the answer to 4 has not come"
        assert told_by(await stranger.fetch(7)) == []
        assert (await stranger.fetch(7)).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        assert (
            await stranger.fetch(8, session_id=stranger.session_id + 1)
        ).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert told_by(await stranger.fetch(8, 5)) == [(ErrorCode.OFFSET_OUT_OF_RANGE, [], -1)]
        assert told_by(await stranger.fetch(10)) == [(ErrorCode.OFFSET_OUT_OF_RANGE, [], -1)]
        assert told_by(await stranger.fetch(11)) == [], "from here on it is not in the session"
        await produce(leader, [b"2"])
        assert told_by(await stranger.fetch(12)) == []
        assert told_by(await stranger.fetch(13, 1)) == [(0, [b"2"], 2)]
