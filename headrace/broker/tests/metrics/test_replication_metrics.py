"""The metrics of a cluster's health, as three whole brokers report them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.broker.metadata.change_counts import ChangeCounts
from headrace.broker.metadata.image import ClusterImage, PartitionState, TopicEntry, chunks_of
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.replication.progress import Progress
from headrace.broker.tests.replication.test_replication import TOPIC, create, described, led, produce, until
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from simulator.cluster import DirectCluster, direct_cluster
from simulator.direct import DirectBroker


async def collected(broker: DirectBroker) -> dict[str, float]:
    """Values by name; those with labels by the name and the labels."""
    values = await broker.context.metrics.gather()
    return {
        " ".join((name.removeprefix("headrace_"), *labels)): value
        for name, found in values.items()
        for labels, value in found.items()
        if isinstance(value, int | float)
    }


async def all_over(cluster: DirectCluster) -> Callable[[str], list[float]]:
    """Return a function that gives the values of a metric by node id."""
    found = {node_id: await collected(broker) for node_id, broker in sorted(cluster.brokers.items())}
    return lambda name: [each.get(name, 0) for each in found.values()]


async def test_the_survivors_report_what_the_loss_of_a_broker_means(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3) as cluster:
        await create(cluster.brokers[1], partitions=3, min_insync_replicas="2")
        await led(cluster, {1, 2, 3})
        whole = await all_over(cluster)
        assert whole("live_brokers") == [3, 3, 3]
        assert whole("fenced_brokers") == whole("offline_partitions") == [0, 0, 0]
        assert whole("under_replicated_partitions") == whole("at_min_isr_partitions") == [0, 0, 0]
        assert (whole("partitions"), whole("partitions_led")) == ([3, 3, 3], [1, 1, 1])
        assert sum(whole("active_controller")) == 1
        first = (await described(cluster.brokers[1]))[0].leader_id
        survivor, dead = {1, 2, 3} - {first}
        await cluster.stop(dead)
        leader = await led(cluster, {first, survivor})
        before = (await collected(leader))[f"replication_lag_records {TOPIC} {dead}"]
        await produce(leader, [b"1", b"2"])

        def in_sync(broker: DirectBroker) -> int:
            return sum(len(each.isr) for each in broker.context.metadata.image.topics[TOPIC].states())

        await cluster.agreed(lambda broker: in_sync(broker) == 6)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        less = await all_over(cluster)
        assert (less("live_brokers"), less("fenced_brokers")) == ([2, 2], [1, 1])
        assert sum(less("under_replicated_partitions")) == sum(less("at_min_isr_partitions")) == 3
        assert sum(less("under_min_isr_partitions")) == 0
        assert sum(less("active_controller")) == 1
        values = await collected(leader)
        assert values[f"replication_lag_records {TOPIC} {dead}"] == before + 2
        await until(lambda: leader.context.replicas.partition(TOPIC, 0).lags()[survivor] == 0)
        await cluster.stop(first)
        left = await led(cluster, {survivor})
        await cluster.agreed(lambda broker: in_sync(broker) == 3)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 1)
        last = await collected(left)
        assert (last["under_min_isr_partitions"], last["at_min_isr_partitions"]) == (3, 0)
        assert (last["active_controller"], last["fenced_brokers"], last["offline_partitions"]) == (1, 2, 0)


async def test_partitions_without_a_leader_and_unclean_elections_are_counted(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 2) as cluster:
        await create(cluster.brokers[1], replicas=2)
        await led(cluster, {1, 2})
        await cluster.stop(1)
        left = await led(cluster, {2})
        await produce(left, [b"only here"])
        assert (await collected(left))["offline_partitions"] == 0
        await cluster.stop(2)
        again = await cluster.start(1)
        assert (await described(again))[0].leader_id == -1
        found = await collected(again)
        assert (found["offline_partitions"], found["unclean_leader_elections_total"]) == (1, 0)
        assert found["partitions"] == 1
        assert found["partitions_led"] == 0
        named = [TopicPartitions(topic=TOPIC, partitions=[0])]
        answer = await again.send(ElectLeadersRequest(election_type=1, topic_partitions=named), 2)
        assert answer.replica_election_results[0].partition_result[0].error_code == ErrorCode.NONE
        found = await collected(again)
        assert (found["offline_partitions"], found["unclean_leader_elections_total"]) == (0, 1)


def state(isr: tuple[int, ...], leader: int = 1, **rest: tuple[int, ...]) -> PartitionState:
    return PartitionState(
        replicas=rest.pop("replicas", (1, 2, 3)), leader=leader, leader_epoch=0, isr=isr, **rest
    )


@pytest.mark.parametrize(
    ("before", "after", "counts"),
    [
        (state((1, 2, 3)), state((1, 2)), (1, 0, 0)),
        (state((1, 2)), state((1, 2, 3)), (0, 1, 0)),
        (state((1, 2, 3)), state((2, 3), 2), (1, 0, 0)),
        (state((1,), 1), state((2,), 2), (1, 1, 1)),
        (state((1,), 1, elr=(2,)), state((2,), 2), (1, 1, 0)),
        (state((1, 2)), state((1, 2), 2), (0, 0, 0)),
        (state((1,)), state((1,), -1), (0, 0, 0)),
        (state((1, 2, 3)), state((1, 2), replicas=(1, 2)), (0, 0, 0)),
    ],
)
def test_the_writer_counts_what_it_changes(
    before: PartitionState, after: PartitionState, counts: tuple[int, int, int]
) -> None:
    topic = TopicImage("t", uuid.UUID(int=7), 1, {})
    found = ChangeCounts()
    image = ClusterImage().with_topics({"t": TopicEntry(topic, 0, chunks_of([before]))})
    found.note(image, {"t": TopicEntry(topic, 1, chunks_of([after]))})
    assert (found.isr_shrinks, found.isr_expands, found.unclean_elections) == counts
    found.note(image, {"t": None, "new": TopicEntry(topic, 0, chunks_of([after]))})
    assert (found.isr_shrinks, found.isr_expands, found.unclean_elections) == counts


def test_the_lag_of_a_follower_is_that_of_its_last_fetch() -> None:
    progress = Progress(1, state((1, 2)), 100, 0.0)
    assert progress.lags(10, 90, 100) == {2: 10, 3: 90}, "the ISR has all below the high watermark"
    progress.fetched(2, 7, 95, 100, 1.0)
    progress.fetched(3, 7, 40, 100, 1.0)
    progress.follow(state((1,)))
    assert progress.replicas[2].end_offset == -1
    assert progress.lags(10, 90, 120) == {2: 25, 3: 80}
