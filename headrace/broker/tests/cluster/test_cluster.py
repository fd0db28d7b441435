"""Several brokers are one cluster in their metadata: all know every change, and a missing broker is known to be
missing.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from pathlib import Path

import pytest

from headrace.broker.cluster.replica_changes import Reassignment
from headrace.broker.cluster.topic_changes import NewTopic
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.metadata import tree
from headrace.broker.metadata.image import NO_LEADER
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.runtime.background import BackgroundTasks
from headrace.broker.runtime.ports import StoreUnavailableError
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from simulator.cluster import JOURNAL_FACTORS, DirectCluster, direct_cluster
from simulator.direct import DirectBroker, direct_broker, values_of


def leaders(broker: DirectBroker, topic: str) -> list[int]:
    entry = broker.context.metadata.entry(topic)
    return [] if entry is None else [state.leader for state in entry.states()]


def epochs(broker: DirectBroker, topic: str) -> list[int]:
    entry = broker.context.metadata.entry(topic)
    assert entry is not None
    return [state.leader_epoch for state in entry.states()]


async def all_know(cluster: DirectCluster, topic: str) -> TopicImage:
    """Check at once: a topic is there when its creation is answered."""
    assert all(broker.context.metadata.topic(topic) is not None for broker in cluster.brokers.values())
    image = next(iter(cluster.brokers.values())).context.metadata.topic(topic)
    assert image is not None
    return image


async def produced_in_time(broker: DirectBroker, topic: str, partition: int) -> None:
    """Produce; the leader's lease begins with the first answer to the new session."""
    async with asyncio.timeout(60):
        while (await broker.produce(topic, [b"x"], partition=partition)).error_code:  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.01)


async def metadata_of(broker: DirectBroker, *topics: str) -> MetadataRequest:
    wanted = [MetadataRequestTopic(name=name) for name in topics]
    return await broker.send(MetadataRequest(topics=wanted, allow_auto_topic_creation=False))


async def test_brokers_find_each_other_and_one_is_the_controller(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3, config={"broker.rack": "r"}) as cluster:
        await cluster.agreed(lambda broker: set(broker.context.metadata.image.brokers) == {1, 2, 3})
        ports = {number: each.broker.port for number, each in cluster.brokers.items()}
        for broker in cluster.brokers.values():
            answer = await metadata_of(broker)
            assert {each.node_id: each.port for each in answer.brokers} == ports
            assert {each.rack for each in answer.brokers} == {"r"}
            assert answer.controller_id == 1, "the first one, which is there still"
            described = await broker.send(DescribeClusterRequest())
            assert {each.broker_id: each.port for each in described.brokers} == ports
            assert described.controller_id == 1
        assert len({broker.broker.cluster_id for broker in cluster.brokers.values()}) == 1
        assert [each.context.metadata.is_controller for each in cluster.brokers.values()] == [
            True,
            False,
            False,
        ]


async def test_topics_made_through_any_broker_are_spread_and_served_by_their_leaders_alone(tmp_path) -> None:
    async with direct_cluster(tmp_path, 3) as cluster:
        one, two, three = cluster.brokers.values()
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 3)
        await two.create_topic("t", 6)
        await all_know(cluster, "t")
        assert sorted(leaders(one, "t")) == [1, 1, 2, 2, 3, 3]
        assert leaders(one, "t") == leaders(two, "t") == leaders(three, "t")
        for index, leader in enumerate(leaders(one, "t")):
            for number, broker in cluster.brokers.items():
                answer = await broker.produce("t", [b"x"], partition=index)
                listed = (
                    (
                        await broker.send(
                            ListOffsetsRequest(
                                replica_id=-1,
                                topics=[
                                    ListOffsetsTopic(
                                        name="t",
                                        partitions=[
                                            ListOffsetsPartition(partition_index=index, timestamp=-1)
                                        ],
                                    )
                                ],
                            ),
                            7,
                        )
                    )
                    .topics[0]
                    .partitions[0]
                )
                fetched = await broker.fetch("t", partition=index)
                codes = {answer.error_code, listed.error_code, fetched.error_code}
                if number == leader:
                    assert codes == {ErrorCode.NONE}
                    assert values_of(fetched.records) == [(0, b"x")]
                else:
                    assert codes == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
                    assert answer.current_leader.leader_id == leader
        described = (await metadata_of(three, "t")).topics[0].partitions
        assert [each.leader_id for each in described] == leaders(one, "t")
        assert all(each.replica_nodes == each.isr_nodes == [each.leader_id] for each in described)
        await three.context.topics.alter_config("t", {"retention.ms": "77"})
        await one.context.topics.create_partitions("t", 7)
        await cluster.agreed(
            lambda broker: (
                broker.context.metadata.topic("t").config.get("retention.ms") == "77"
                and len(leaders(broker, "t")) == 7
            )
        )
        await two.context.topics.delete_topic("t")
        await cluster.agreed(lambda broker: broker.context.metadata.topic("t") is None)
        await cluster.agreed(lambda _: not any(tmp_path.glob("*/t-*")))
        store = cluster.stores[1]
        async with asyncio.timeout(60):
            while await store.children(tree.DELETED):  # noqa: ASYNC110 - by whoever is the last
                await asyncio.sleep(0.01)


async def test_concurrent_changes_of_two_brokers_are_serialized(tmp_path) -> None:
    async with direct_cluster(tmp_path, 3) as cluster:
        names = [f"t{number}" for number in range(12)]

        async def make(broker: DirectBroker) -> list[str]:
            new = [NewTopic(name, 2, {}) for name in names]
            made = await broker.context.topics.create_topics(new)
            return [each.name for each in made if isinstance(each, TopicImage)]

        made = await asyncio.gather(*(make(broker) for broker in cluster.brokers.values()))
        assert sorted(chain.from_iterable(made)) == sorted(names), "each topic by one of them"
        for name in names:
            await all_know(cluster, name)
        await asyncio.gather(
            *(
                broker.context.topics.alter_config("t0", {key: "9000"})
                for broker, key in zip(
                    cluster.brokers.values(), ("retention.ms", "segment.ms", "flush.ms"), strict=True
                )
            )
        )
        await cluster.agreed(lambda broker: len(broker.context.metadata.topic("t0").config) == 3)


async def test_a_replica_assignment_is_accepted_or_refused(tmp_path) -> None:
    async with direct_cluster(tmp_path, 2) as cluster:
        one = cluster.brokers[1]

        async def create(name: str, *assignment: list[int]):
            chosen = [
                CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
                for index, brokers in enumerate(assignment)
            ]
            wanted = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=chosen)
            return (await one.send(CreateTopicsRequest(topics=[wanted], timeout_ms=60_000))).topics[0]

        assert (await create("t", [2], [2], [1])).error_code == 0
        assert leaders(one, "t") == [2, 2, 1]
        assert (await create("v", [2, 1], [1, 2])).replication_factor == 2
        assert leaders(one, "v") == [2, 1]
        for assignment, words in (
            ([[3]], "broker 3, but no such broker"),
            ([[1, 2], [1]], "different numbers of replicas"),
        ):
            refused = await create("u", *assignment)
            assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
            assert words in refused.error_message
        await cluster.stop(2)
        refused = await create("u", [2])
        assert "only brokers that are not alive: [2]" in refused.error_message
        assert (await create("w", [2, 1])).replication_factor == 2
        assert leaders(one, "w") == [1]
        assert (await create("later", [1])).error_code == 0
        await one.context.topics.create_partitions("later", 2, assignment=[[1]])
        assert await one.context.replica_changes.reassign([Reassignment("later", 0, [2, 1])]) == [None]
        await cluster.start(2)
        await cluster.agreed(
            lambda broker: all(
                set(broker.context.metadata.state(name, 0).isr) == {1, 2} for name in ("w", "later")
            )
        )


async def test_an_absent_broker_leads_nothing_until_it_returns(tmp_path) -> None:
    async with direct_cluster(tmp_path, 3) as cluster:
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 3)
        two = cluster.brokers[2]
        await two.create_topic("t", 3)
        await all_know(cluster, "t")
        lost = leaders(two, "t").index(2)
        await two.produce("t", [b"x"], partition=lost)
        await cluster.stop(2)
        await cluster.agreed(
            lambda broker: (
                set(broker.context.metadata.image.brokers) == {1, 3}
                and leaders(broker, "t")[lost] == NO_LEADER
            )
        )
        described = (await metadata_of(cluster.brokers[3], "t")).topics[0].partitions[lost]
        assert (described.error_code, described.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, NO_LEADER)
        assert described.offline_replicas == described.replica_nodes == [2]
        two = await cluster.start(2)
        await cluster.agreed(lambda broker: leaders(broker, "t")[lost] == 2)
        assert epochs(two, "t")[lost] == 2, "without a leader, and with one again"
        assert values_of((await two.fetch("t", partition=lost)).records) == [(0, b"x")]
        assert (await two.produce("t", [b"y"], partition=lost)).base_offset == 1


async def test_another_broker_becomes_controller_when_the_controller_is_cut_off(tmp_path) -> None:
    async with direct_cluster(tmp_path, 3, session_ms=4000) as cluster:
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 3)
        await cluster.brokers[1].create_topic("t", 3)
        await all_know(cluster, "t")
        cluster.ensemble.cut(cluster.stores[1])
        await cluster.agreed(
            lambda broker: (
                broker.context.metadata.image.controller_id in (2, 3)
                and set(broker.context.metadata.image.brokers) == {2, 3}
                and NO_LEADER in leaders(broker, "t")
            ),
            2,
            3,
        )
        await cluster.brokers[3].create_topic("u", 4)
        assert set(leaders(cluster.brokers[3], "u")) == {2, 3}
        cluster.ensemble.heal(cluster.stores[1])
        await cluster.agreed(
            lambda broker: (
                set(broker.context.metadata.image.brokers) == {1, 2, 3}
                and sorted(leaders(broker, "t")) == [1, 2, 3]
                and broker.context.metadata.topic("u") is not None
            )
        )
        assert not cluster.brokers[1].context.metadata.is_controller
        own = leaders(cluster.brokers[1], "t").index(1)
        await produced_in_time(cluster.brokers[1], "t", own)


async def test_an_ended_broker_is_not_named_as_leader_before_the_election(tmp_path) -> None:
    """It is not a group's coordinator either, and it is named again when it is reached or is another process."""
    async with direct_cluster(tmp_path, 2) as cluster:
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        one = cluster.brokers[1]
        await one.create_topic("t", 2)
        metadata = one.context.metadata
        theirs = leaders(one, "t").index(2)

        async def told() -> list[tuple[int, int]]:
            (topic,) = (await one.send(MetadataRequest(topics=[MetadataRequestTopic(name="t")]))).topics
            return [(part.leader_id, part.error_code) for part in topic.partitions]

        before = await told()
        assert sorted(before) == [(1, 0), (2, 0)]
        epoch = metadata.image.brokers[2].epoch
        metadata.note_ended(2, epoch - 1)
        assert await told() == before, "another process than is registered"
        metadata.note_ended(2, epoch)
        assert (await told())[theirs] == (NO_LEADER, ErrorCode.LEADER_NOT_AVAILABLE)
        assert (await told())[1 - theirs] == (1, 0)
        assert metadata.leader("t", theirs) is None
        metadata.note_there(2)
        assert await told() == before
        metadata.note_ended(2, epoch)
        await cluster.stop(2)
        await cluster.start(2)
        await cluster.agreed(lambda broker: leaders(broker, "t")[theirs] == 2)
        assert await told() == before


async def test_a_broker_without_a_session_stops_appending_by_its_own_clock(tmp_path) -> None:
    async with direct_cluster(tmp_path, 2, session_ms=4000) as cluster:
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        two = cluster.brokers[2]
        await two.create_topic("t", 2)
        own = leaders(two, "t").index(2)
        assert (await two.produce("t", [b"x"], partition=own)).error_code == 0
        cluster.ensemble.cut(cluster.stores[2])
        log = two.context.replicas.partition("t", own).log
        async with asyncio.timeout(60):
            while (await two.produce("t", [b"y"], partition=own)).error_code == 0:  # noqa: ASYNC110 - by its clock
                await asyncio.sleep(0.01)
        end = log.log_end_offset
        # It has had no news: as far as it knows it still leads.
        assert leaders(two, "t")[own] == 2
        refused = await two.produce("t", [b"z"], partition=own)
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert "lost the coordination store" in refused.error_message
        assert log.log_end_offset == end
        cluster.ensemble.heal(cluster.stores[2])
        await cluster.agreed(
            lambda broker: leaders(broker, "t")[own] == 2 and len(broker.context.metadata.image.brokers) == 2
        )
        await produced_in_time(two, "t", own)


async def auto_created(broker: DirectBroker, name: str) -> MetadataResponseTopic:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=True)
    (topic,) = (await broker.send(request)).topics
    return topic


async def test_topics_are_made_while_a_broker_is_missing_which_has_its_replicas_when_it_is_back(
    tmp_path: Path,
) -> None:
    config = {"default.replication.factor": "3", "min.insync.replicas": "2"}
    async with direct_cluster(tmp_path, 3, config=config) as cluster:
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 3)
        await cluster.stop(3)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        made = await auto_created(cluster.brokers[2], "auto")
        assert made.error_code == 0
        await cluster.brokers[1].create_topic("asked", 4)
        for name in ("auto", "asked"):
            entry = cluster.brokers[1].context.metadata.entry(name)
            assert entry is not None
            for state in entry.states():
                assert state.replicas[2] == 3
                assert set(state.isr) == {1, 2} == set(state.replicas[:2])
                assert state.leader == state.replicas[0]
        (leader,) = leaders(cluster.brokers[1], "auto")
        await produced_in_time(cluster.brokers[leader], "auto", 0)
        await cluster.start(3, config)
        await cluster.agreed(
            lambda broker: all(
                set(state.isr) == {1, 2, 3}
                for name in ("auto", "asked")
                for state in broker.context.metadata.entry(name).states()
            )
        )


async def test_auto_creation_is_retriable_until_enough_brokers_are_registered(
    tmp_path: Path,
) -> None:
    config = {"default.replication.factor": "2"}
    async with direct_cluster(tmp_path, 1, config=config) as cluster:
        assert (await auto_created(cluster.brokers[1], "t")).error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert cluster.brokers[1].context.metadata.topic("t") is None
        await cluster.start(2, config)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        made = await auto_created(cluster.brokers[1], "t")
        assert made.error_code == 0
        assert sorted(made.partitions[0].replica_nodes) == [1, 2]


@pytest.mark.parametrize("of", ["groups", "transactions"])
async def test_journals_are_made_when_as_many_brokers_are_registered_as_are_to_have_them(
    of: str, tmp_path: Path
) -> None:
    """Otherwise the first broker up would be their only replica for ever."""
    config = {
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
    } | dict.fromkeys(JOURNAL_FACTORS, "2")
    name, key_type = ("__consumer_offsets", 0) if of == "groups" else ("__transaction_state", 1)
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["a"])

    async def found(broker: DirectBroker) -> Coordinator:
        (coordinator,) = (await broker.send(request, 4)).coordinators
        return coordinator

    async with direct_cluster(tmp_path, 1, config=config) as cluster:
        one = cluster.brokers[1]
        refused = await found(one)
        assert refused.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert one.context.metadata.topic(name) is None
        await cluster.start(2, config)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        await cluster.stop(2)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 1)
        assert (await found(one)).node_id == 1, "one that is registered and comes back is enough"
        entry = one.context.metadata.entry(name)
        assert entry is not None
        assert entry.state(0).replicas == (1, 2)
        assert entry.state(0).isr == (1,)


async def test_journals_of_a_server_without_others_are_its_own(tmp_path: Path) -> None:
    """The rule holds whatever is configured for clusters: no other broker will ever be registered."""
    async with direct_broker(tmp_path, dict.fromkeys(JOURNAL_FACTORS, "3")) as broker:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=["a"])
        assert (await broker.send(request, 4)).coordinators[0].error_code == 0


async def test_internal_topics_use_the_default_min_insync_replicas(
    tmp_path: Path,
) -> None:
    config = {
        **dict.fromkeys(JOURNAL_FACTORS, "3"),
        "min.insync.replicas": "2",
        "transaction.state.log.min.isr": "3",
    }
    async with direct_cluster(tmp_path, 3, config=config) as cluster:
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 3)
        least = []
        for key_type, journal in ((0, "__consumer_offsets"), (1, "__transaction_state")):
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=["a"])
            (found,) = (await cluster.brokers[1].send(request, 4)).coordinators
            assert found.error_code == 0, found.error_message
            partitions = cluster.brokers[found.node_id].context.replicas.partitions(journal)
            led = next(each for each in partitions if not each.closed)
            least.append(led.log.config.min_insync_replicas)
        assert least == [2, 3]


async def test_a_group_is_coordinated_by_the_leader_of_its_partition_alone(tmp_path) -> None:
    config = {"offsets.topic.num.partitions": "9", "offsets.topic.replication.factor": "1"}
    async with direct_cluster(tmp_path, 3, config=config) as cluster:
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 3)
        found: dict[str, set[int]] = {}
        for broker in cluster.brokers.values():
            request = FindCoordinatorRequest(
                key_type=0, coordinator_keys=[f"g{number}" for number in range(9)]
            )
            for each in (await broker.send(request, 4)).coordinators:
                assert each.error_code == 0, each.error_message
                assert each.port == cluster.brokers[each.node_id].broker.port
                found.setdefault(each.key, set()).add(each.node_id)
            await all_know(cluster, "__consumer_offsets")
        assert all(len(who) == 1 for who in found.values()), "all brokers say the same"
        assert set.union(*found.values()) == {1, 2, 3}
        for group, (coordinator,) in found.items():
            for number, broker in cluster.brokers.items():
                joined = await broker.send(
                    JoinGroupRequest(
                        group_id=group, session_timeout_ms=6000, rebalance_timeout_ms=6000, protocol_type="x"
                    ),
                    5,
                )
                expected = (
                    ErrorCode.MEMBER_ID_REQUIRED if number == coordinator else ErrorCode.NOT_COORDINATOR
                )
                if number == coordinator:
                    assert joined.error_code not in (ErrorCode.NOT_COORDINATOR, ErrorCode.NONE)
                else:
                    assert joined.error_code == expected
        gone = next(number for number in (2, 3) for who in found.values() if number in who)
        await cluster.stop(gone)
        await cluster.agreed(lambda broker: gone not in broker.context.metadata.image.brokers)
        lost = [group for group, who in found.items() if gone in who]
        answer = await cluster.brokers[1].send(FindCoordinatorRequest(key_type=0, coordinator_keys=lost), 4)
        assert {each.error_code for each in answer.coordinators} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}


async def test_producer_ids_of_different_brokers_are_distinct(tmp_path) -> None:
    async with direct_cluster(tmp_path, 2) as cluster:
        idempotent = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        ids = [(await broker.send(idempotent)).producer_id for broker in cluster.brokers.values()]
        assert len(set(ids)) == 2


async def test_configurations_set_through_one_broker_count_on_all(tmp_path) -> None:
    async with direct_cluster(tmp_path, 2) as cluster:
        one, two = cluster.brokers.values()
        await one.broker._storage.configs.alter("", lambda _: {"log.retention.ms": "12345"})
        await one.context.following.settled()
        await cluster.agreed(lambda broker: broker.context.config["log.retention.ms"] == 12345)
        await two.broker._storage.configs.alter("2", lambda _: {"log.retention.ms": "777"})
        await cluster.agreed(lambda broker: broker.context.config["log.retention.ms"] == 777, 2)
        assert one.context.config["log.retention.ms"] == 12345
        await two.broker._storage.configs.alter("", lambda _: {"log.retention.ms": "54321"})
        await cluster.agreed(lambda broker: broker.context.config["log.retention.ms"] == 54321, 1)


async def test_a_directory_goes_with_its_cluster(tmp_path) -> None:
    async with direct_broker(tmp_path / "2", {"node.id": "2"}) as broker:
        await broker.create_topic("t")
    async with direct_cluster(tmp_path, 1) as cluster:
        with pytest.raises(ConfigError, match="belongs to a single broker"):
            await cluster.start(2)
        await cluster.start(3)
    with pytest.raises(ConfigError, match="start it with --zookeeper"):
        async with direct_broker(tmp_path / "1", {"node.id": "1"}):
            pass
    other = DirectCluster(tmp_path)
    with pytest.raises(ConfigError, match="check the path behind the address"):
        await other.start(1)
    assert other.ensemble.children("/") == []
    (tmp_path / "elsewhere").mkdir()
    elsewhere = DirectCluster(tmp_path / "elsewhere")
    await elsewhere.start(5)
    (tmp_path / "elsewhere" / "1").symlink_to(tmp_path / "1")
    with pytest.raises(ConfigError, match="belongs to the cluster"):
        await elsewhere.start(1)
    await elsewhere.stop(5)


async def test_a_broker_with_a_used_id_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("headrace.broker.cluster.joining.WAIT_SECONDS", 0.2)
    monkeypatch.setattr(
        "headrace.broker.metadata.membership.check_free.__kwdefaults__", {"wait_seconds": 0.2}
    )
    async with direct_cluster(tmp_path, 1) as cluster:
        twin = DirectCluster(tmp_path / "twin")
        twin.ensemble = cluster.ensemble
        with pytest.raises(
            ConfigError, match=r"node\.id=1 is alive already, at \S+:\d+; give this broker another"
        ):
            await twin.start(1)
        assert not (tmp_path / "twin" / "1" / "meta.properties").exists(), (
            "it is no directory of a broker 1 now"
        )
        await twin.start(2)
        await twin.stop(2)
        (tmp_path / "twin" / "2" / "meta.properties").rename(tmp_path / "twin" / "kept")
        clone = (tmp_path / "twin" / "kept").read_text().replace("node.id=2", "node.id=1")
        (tmp_path / "twin" / "1").mkdir(exist_ok=True)
        (tmp_path / "twin" / "1" / "meta.properties").write_text(clone)
        with pytest.raises(ConfigError, match=r"node\.id=1 is alive already, at"):
            await twin.start(1)
        await cluster.brokers[1].create_topic("t")


async def test_a_returning_broker_reads_missed_metadata_changes(tmp_path) -> None:
    """It has missed more than the journal of changes keeps."""
    async with direct_cluster(tmp_path, 2, session_ms=4000) as cluster:
        one, two = cluster.brokers.values()
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        await one.create_topic("gone")
        await all_know(cluster, "gone")
        cluster.ensemble.cut(cluster.stores[2])
        for number in range(60):
            await one.create_topic(f"t{number}")
        await one.context.topics.delete_topic("gone")
        with pytest.raises(KafkaError):
            two.context.replicas.partition("t0", 0)
        cluster.ensemble.heal(cluster.stores[2])
        await cluster.agreed(lambda broker: broker.context.metadata.topic_count == 60)
        assert two.context.metadata.topic("gone") is None
        assert {
            name
            for name in (f"t{number}" for number in range(60))
            if leaders(two, name) != leaders(one, name)
        } == set()


async def test_a_lost_store_fails_nothing_and_work_resumes_afterwards(tmp_path) -> None:
    async with direct_cluster(tmp_path, 2, session_ms=4000) as cluster:
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        one, two = cluster.brokers.values()
        await one.create_topic("t", 2)
        for store in cluster.stores.values():
            cluster.ensemble.cut(store)
        with pytest.raises(KafkaError) as told:
            await two.create_topic("u")
        assert told.value.code in (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)
        await asyncio.sleep(4.5)
        for store in cluster.stores.values():
            cluster.ensemble.heal(store)
        for partition, leader in enumerate(leaders(one, "t")):
            await cluster.agreed(
                lambda broker, index=partition, who=leader: leaders(broker, "t")[index] == who
            )
            await produced_in_time(cluster.brokers[leader], "t", partition)
        await two.create_topic("v")
        assert [each.broker._background.failures for each in cluster.brokers.values()] == [0, 0]


async def test_a_change_is_answered_when_all_brokers_know_it(tmp_path) -> None:
    async with direct_cluster(tmp_path, 2) as cluster:
        one, two = cluster.brokers.values()
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        async with two.context.following.change:  # it is busy with something else
            made = asyncio.ensure_future(one.create_topic("t"))
            await cluster.agreed(lambda broker: broker.context.metadata.topic("t") is not None, 1)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not made.done()
        await made
        assert two.context.metadata.topic("t") is not None


async def test_a_background_task_without_the_store_is_not_counted_as_failed() -> None:
    background, attempts = BackgroundTasks(), 0

    async def work() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise StoreUnavailableError("away")

    await background.keep(work, "work")
    assert (attempts, background.failures) == (2, 0)
