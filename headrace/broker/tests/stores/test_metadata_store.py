"""Topics in the store, also while another process changes it: epochs of partitions, other writers, earlier layouts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.metadata import tree
from headrace.broker.metadata.events import BrokerGone
from headrace.broker.metadata.image import BrokerImage, PartitionState, Registered, TopicEntry, chunks_of
from headrace.broker.metadata.member import Member
from headrace.broker.metadata.membership import (
    Claim,
    Registration,
    become_controller,
    read_registrations,
    register,
)
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.runtime.ports import (
    CoordinationStore,
    CreateNode,
    DeleteNode,
    SetNode,
    StoreOutcomeUnknownError,
    SystemClock,
)
from headrace.broker.stores.embedded import EmbeddedStore
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from simulator.coordination import SimulatedEnsemble
from simulator.direct import direct_broker, values_of


def crash(data: Path) -> None:
    """Leave a data directory as a kill does: without the marker of a clean stop."""
    (data / ".kafka_cleanshutdown").unlink()


async def stored(store: CoordinationStore, name: str) -> list[PartitionState]:
    chunks = await store.children(tree.states_path(name))
    nodes = await store.get_many([tree.chunk_path(name, number) for number in range(len(chunks))])
    return [state for node in nodes if node is not None for state in tree.decode_states(node.data)]


def epochs(broker: Any, name: str) -> list[int]:
    return [partition.leader_epoch for partition in broker.context.replicas.partitions(name)]


async def test_each_partition_has_its_own_epoch_which_is_stored_before_it_is_used(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("old", 2)
    crash(tmp_path)
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("new", 101)
        assert (epochs(broker, "old"), epochs(broker, "new")) == ([1, 1], [0] * 101)
        assert [state.leader_epoch for state in await stored(broker.context.store, "old")] == [1, 1]
        await broker.produce("old", [b"x"])
    for clean in (True, False, False):
        if not clean:
            crash(tmp_path)
        async with direct_broker(tmp_path) as broker:
            for name in ("old", "new"):
                now = [state.leader_epoch for state in await stored(broker.context.store, name)]
                assert epochs(broker, name) == now
    assert now == [2] * 101
    async with direct_broker(tmp_path) as broker:
        assert epochs(broker, "old") == [3, 3]
        assert broker.context.replicas.partition("old", 0).log.epoch_end_offset(1) == (1, 1)


async def test_a_running_broker_is_registered_and_is_the_controller(tmp_path) -> None:
    for start in (1, 2, 3):
        async with direct_broker(tmp_path) as broker:
            store = broker.context.store
            image = broker.context.metadata.image
            node = await store.get(tree.CONTROLLER)
            assert node is not None
            assert json.loads(node.data) == {"broker": 0, "epoch": start}
            assert node.owner == store.session
            assert image.controller_epoch == start
            (alive,) = (each.broker for each in (await read_registrations(store)).values())
            assert {0: alive} == dict(image.brokers)
            assert alive.endpoints == (("PLAINTEXT", "127.0.0.1", broker.broker.port),)
            assert await store.children(tree.KNOWN_BROKERS) == ["0"]
    store = EmbeddedStore(tmp_path / "meta.db")
    assert await store.get(tree.CONTROLLER) is None
    assert await store.children(tree.BROKER_IDS) == []
    await store.close()


async def as_before_states(data: Path, epoch: int) -> None:
    """Change a data directory to the layout of a version without partition states."""
    store = EmbeddedStore(data / "meta.db")
    for name in await store.children(tree.TOPICS):
        for number in await store.children(tree.states_path(name)):
            node = await store.get(tree.chunk_path(name, int(number)))
            assert node is not None
            await store.transact([DeleteNode(tree.chunk_path(name, int(number)), node.version)])
        await store.transact([DeleteNode(tree.states_path(name), 0)])
    await store.transact([CreateNode("/leader_epoch", str(epoch).encode())])
    await store.close()
    properties = data / "meta.properties"
    properties.write_text(properties.read_text().replace("version=2", "version=1"))


@pytest.mark.parametrize("clean", [True, False])
async def test_a_data_directory_of_the_layout_before_opens_and_its_epochs_go_on(tmp_path, clean) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 120)
        await broker.create_topic("u")
        await broker.produce("t", [b"x"], partition=110)
    await as_before_states(tmp_path, 7)
    if not clean:
        crash(tmp_path)
    async with direct_broker(tmp_path) as broker:
        expected = 7 if clean else 8
        assert epochs(broker, "t") == [expected] * 120
        assert epochs(broker, "u") == [expected]
        assert values_of((await broker.fetch("t", partition=110)).records) == [(0, b"x")]
        assert (await broker.produce("t", [b"y"], partition=110)).base_offset == 1
        assert await broker.context.store.get("/leader_epoch") is None
        assert "version=2" in (tmp_path / "meta.properties").read_text()
        await broker.context.topics.create_partitions("t", 121)
        await broker.context.topics.delete_topic("u")
    async with direct_broker(tmp_path) as broker:
        assert epochs(broker, "t") == [expected] * 120 + [0]


async def test_a_move_to_states_that_was_cut_off_is_finished(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        for name in ("a", "b"):
            await broker.create_topic(name, 2)
    await as_before_states(tmp_path, 4)
    store = EmbeddedStore(tmp_path / "meta.db")
    node = await store.get(tree.topic_path("a"))
    assert node is not None
    states = chunks_of([PartitionState((0,), 0, 5, (0,))] * 2)
    await store.transact(tree.states_creation(TopicEntry(tree.decode_topic(node.data), 0, states)))
    await store.close()
    async with direct_broker(tmp_path) as broker:
        assert (epochs(broker, "a"), epochs(broker, "b")) == ([5, 5], [4, 4])


@pytest.mark.parametrize("path", ["/topics/t", "/topics/t/states/0", "/broker-configs/0", "/changes"])
async def test_a_node_that_is_not_json_is_named_when_it_stops_the_start(tmp_path, path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
    for data in (b"not JSON", b"\xff{}", *([b"{}"] if "topics" in path else [])):
        store = EmbeddedStore(tmp_path / "meta.db")
        node = await store.get(path)
        await store.transact([CreateNode(path, data) if node is None else SetNode(path, data, node.version)])
        await store.close()
        with pytest.raises(ConfigError, match=f"{path}.*restore it from a backup"):
            async with direct_broker(tmp_path):
                pass


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has partitions, such as t-0, but"),
        (b"x" * 5000, "meta.db cannot be used .file is not a database"),
    ],
    ids=["empty", "no database"],
)
async def test_a_lost_store_stops_the_start_and_leaves_the_partitions(tmp_path, content, message) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        await broker.produce("t", [b"x"])
    kept = (tmp_path / "meta.db").read_bytes()
    (tmp_path / "meta.db").write_bytes(content)
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"{message}.*restore it from a backup"):
            async with direct_broker(tmp_path):
                pass
    (tmp_path / "meta.db").write_bytes(kept)
    async with direct_broker(tmp_path) as broker:
        assert values_of((await broker.fetch("t")).records) == [(0, b"x")]


async def test_a_start_on_a_full_disk_names_the_folder(tmp_path, monkeypatch) -> None:
    async def full(store: EmbeddedStore) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")

    monkeypatch.setattr(EmbeddedStore, "open", full)
    with pytest.raises(ConfigError, match=f"{tmp_path} cannot be used: the disk is full"):
        async with direct_broker(tmp_path):
            pass


async def test_states_that_are_not_all_there_stop_the_start(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 150)
    store = EmbeddedStore(tmp_path / "meta.db")
    await store.transact([DeleteNode(tree.chunk_path("t", 1), 0)])
    await store.close()
    with pytest.raises(ConfigError, match="states of topic t"):
        async with direct_broker(tmp_path):
            pass


# -- other writers -----------------------------------------------------------------------------------------


async def set_by_another(store: CoordinationStore, name: str, **config: str) -> None:
    node = await store.get(tree.topic_path(name))
    assert node is not None
    topic = tree.decode_topic(node.data)
    changed = TopicImage(topic.name, topic.topic_id, topic.partition_count, {**topic.config, **config})
    await store.transact([SetNode(tree.topic_path(name), tree.encode_topic(changed), node.version)])


async def test_a_change_is_made_on_the_topic_that_another_writer_has_changed(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        store = broker.context.store
        await broker.create_topic("t", 2)
        await broker.produce("t", [b"x"])
        await set_by_another(store, "t", **{"retention.ms": "77"})
        image = await broker.context.topics.alter_config("t", {"retention.bytes": "88"})
        assert image.config == {"retention.ms": "77", "retention.bytes": "88"}
        assert broker.context.replicas.partition("t", 0).log.config.retention_ms == 77
        await set_by_another(store, "t", **{"retention.ms": "99"})
        assert (await broker.context.topics.create_partitions("t", 3)).config["retention.ms"] == "99"
        assert len(broker.context.replicas.partitions("t")) == len(await stored(store, "t")) == 3
        await set_by_another(store, "t", **{"retention.ms": "11"})
        await broker.context.topics.delete_topic("t")
        assert await store.children(tree.TOPICS) == []


async def test_a_topic_that_another_writer_has_made_or_deleted_is_followed(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        metadata, store = broker.context.metadata, broker.context.store
        gone = await broker.create_topic("gone")
        await broker.produce("gone", [b"x"])
        there = TopicImage("there", broker.context.entropy.uuid(), 2)
        states = chunks_of([PartitionState((0,), 0, 3, (0,))] * 2)
        await store.transact(tree.creation(TopicEntry(there, 0, states)))
        with pytest.raises(KafkaError) as refused:
            await broker.create_topic("there")
        assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
        assert metadata.topic("there") == metadata.topic_by_id(there.topic_id) == there
        assert (await broker.produce("there", [b"x"], partition=1)).error_code == 0
        assert epochs(broker, "there") == [3, 3]
        chunk = await store.get(tree.chunk_path("gone", 0))
        assert chunk is not None
        await store.transact(tree.deletion(TopicEntry(gone, 0, (tree.decode_chunk(chunk),))))
        with pytest.raises(KafkaError) as refused:
            await broker.context.topics.alter_config("gone", {"retention.ms": "1"})
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert metadata.topic("gone") is None
        assert broker.context.replicas.find_partition("gone", 0) is None
        assert (await broker.produce("gone", [b"x"])).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_broker_that_is_no_longer_the_controller_decides_nothing_about_brokers(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        store = broker.context.store
        await broker.create_topic("t")
        await store.transact([SetNode(tree.CONTROLLER_EPOCH, b"2", 0)])
        before = await stored(store, "t")

        async def gone() -> BrokerGone:
            return BrokerGone(0)

        with pytest.raises(KafkaError, match="another broker is the controller, epoch 2") as refused:
            await broker.context.following.carry_out(gone)
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        assert await stored(store, "t") == before
        await broker.create_topic("u")
        assert await store.children(tree.TOPICS) == ["t", "u"]
        assert (await broker.produce("t", [b"x"])).error_code == 0


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_change_under_which_the_store_was_lost_is_made_once(tmp_path, carried_out) -> None:
    async with direct_broker(tmp_path) as broker:
        store = broker.context.store
        transact, lost = store.transact, []

        async def loses(operations) -> list[str]:
            if not lost:
                lost.append(True)
                if carried_out:
                    await transact(operations)
                raise StoreOutcomeUnknownError("lost")
            return await transact(operations)

        store.transact = loses
        image = await broker.context.topics.create_topic("t", 2)
        assert await store.children(tree.TOPICS) == ["t"]
        lost.clear()
        assert (await broker.context.topics.create_partitions("t", 4)).partition_count == 4
        lost.clear()
        assert (await broker.context.topics.alter_config("t", {"retention.ms": "5"})).config == {
            "retention.ms": "5"
        }
        lost.clear()
        await broker.context.topics.delete_topic("t")
        assert await store.children(tree.TOPICS) == []
        assert image.partition_count == 2


# -- leaders -----------------------------------------------------------------------------------------------


async def test_partitions_are_led_and_given_up_as_the_image_says(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        metadata = broker.context.metadata
        await broker.create_topic("t", 3)
        for index in range(3):
            await broker.produce("t", [b"x"], partition=index)
        before = metadata.image.topics["t"]
        led, lost, kept = broker.context.replicas.partitions("t")
        waiting = asyncio.ensure_future(lost.wait_for_high_watermark(9, 10_000))
        await asyncio.sleep(0)
        states = [
            PartitionState((0, 1), leader, epoch, (leader,)) for leader, epoch in ((0, 4), (1, 2), (0, 0))
        ]
        after = TopicEntry(before.topic, before.version, chunks_of(states))
        await broker.context.replicas.follow(before, after)
        assert led.log.epoch_end_offset(4) == (4, 1), (
            "a new epoch begins where it is led, not with the next append"
        )
        with pytest.raises(KafkaError) as told:
            await waiting
        assert told.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await broker.produce("t", [b"y"], partition=1)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await broker.produce("t", [b"y"], partition=0)).base_offset == 1
        assert broker.context.replicas.partitions("t")[0] is led
        assert led.log.epoch_end_offset(0) == (0, 1)
        assert led.log.epoch_end_offset(4) == (4, 2)
        assert kept.leader_epoch == 0
        await broker.context.replicas.follow(after, TopicEntry(before.topic, before.version, chunks_of(
            [PartitionState((0, 1), 0, epoch, (0,)) for epoch in (4, 3, 0)]
        )))  # fmt: skip
        assert (await broker.produce("t", [b"y"], partition=1)).base_offset == 1
        assert broker.context.replicas.partition("t", 1).log.epoch_end_offset(3) == (3, 2)


async def test_a_fetch_with_the_previous_leader_epoch_is_fenced(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        broker.context.replicas.partition("t", 0).lead(2)
        wanted = FetchPartition(
            partition=0, current_leader_epoch=1, fetch_offset=0, partition_max_bytes=1 << 20
        )
        request = FetchRequest(
            max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[FetchTopic(topic="t", partitions=[wanted])]
        )
        answer = await broker.send(request, 11)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.FENCED_LEADER_EPOCH


# -- membership --------------------------------------------------------------------------------------------


async def test_one_broker_is_the_controller_and_the_next_has_a_later_epoch() -> None:
    ensemble = SimulatedEnsemble(SystemClock())
    one, other = [await ensemble.connect() for _ in range(2)]
    claims = await asyncio.gather(*(become_controller(store, 1, wait_seconds=0) for store in (one, other)))
    (first,) = [claim for claim in claims if claim is not None]
    assert (first.epoch, first.version) == (1, 0)
    winner, loser = (one, other) if claims[0] is not None else (other, one)
    assert await become_controller(loser, 3, wait_seconds=0.01) is None
    await winner.close()
    second = await become_controller(loser, 3)
    assert second is not None
    assert (second.epoch, second.version) == (2, 1)
    await loser.close()


async def test_an_election_whose_answer_was_lost_is_not_taken_for_one_that_is_over(monkeypatch) -> None:
    ensemble = SimulatedEnsemble(SystemClock())
    store = await ensemble.connect()
    member = Member(store, Registration(1, "it", True))
    assert await member.stand() == 1
    assert member.claim == Claim(1, 0)
    ensemble.expire(store)
    await asyncio.sleep(0.1)
    transact = store.transact

    async def unanswered(operations: Any) -> list[str]:
        await transact(operations)
        raise StoreOutcomeUnknownError("lost")

    monkeypatch.setattr(store, "transact", unanswered)
    with pytest.raises(StoreOutcomeUnknownError):
        await member.stand()
    assert await member.stand() == 1
    assert member.claim == Claim(2, 1)
    await store.close()


async def test_an_id_is_one_brokers_and_its_next_start_has_another_epoch() -> None:
    ensemble = SimulatedEnsemble(SystemClock())
    one, other = [await ensemble.connect() for _ in range(2)]
    registration = Registration(5, "first", True, [("PLAINTEXT", "h", 9)], "r")
    first, _ = await register(one, registration)
    assert first == BrokerImage(5, first.epoch, "first", (("PLAINTEXT", "h", 9),), "r")
    with pytest.raises(KafkaError, match=r"node\.id=5 is alive already") as refused:
        await register(other, registration, wait_seconds=0.01)
    assert refused.value.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert await read_registrations(other) == {5: Registered(first, registration.clean)}
    await one.close()
    assert await read_registrations(other) == {}
    second, _ = await register(other, registration)
    assert second.epoch > first.epoch
    assert await other.children(tree.KNOWN_BROKERS) == ["5"]
    await other.close()


async def test_the_next_start_of_a_killed_broker_waits_until_its_session_is_over() -> None:
    ensemble = SimulatedEnsemble(SystemClock())
    killed = await ensemble.connect(session_timeout_ms=2_000)
    registration = Registration(5, "killed", False)
    await register(killed, registration)
    await become_controller(killed, 5)
    ensemble.cut(killed)
    again = await ensemble.connect()
    broker, _ = await register(again, registration)
    claim = await become_controller(again, 5)
    assert await read_registrations(again) == {5: Registered(broker, registration.clean)}
    assert claim is not None
    assert claim.epoch == 2
    for store in (killed, again):
        await store.close()
