"""The data directory of several broker processes: its numbers, its neighbours, and single brokers that become one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.broker.cluster.processes import ProcessesRoot, folder_of
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.metadata import tree
from headrace.broker.metadata.image import PartitionState
from headrace.broker.metadata.reading import read_image
from headrace.broker.partitions.data_dir import read_properties
from headrace.broker.partitions.topic import TopicImage
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import CoordinationStore, CreateNode, SetNode, SystemEntropy
from simulator.direct import direct_broker


@asynccontextmanager
async def opened(path: Path, count: int, first_id: int = 0) -> AsyncIterator[CoordinationStore]:
    root = await ProcessesRoot.open(path, first_id, count, SystemDisk(), SystemEntropy())
    try:
        yield root.store
    finally:
        await root.close()


async def why_not(path: Path, count: int, first_id: int = 0) -> str:
    before = read_properties(SystemDisk(), path)
    with pytest.raises(ConfigError) as refused:
        async with opened(path, count, first_id):
            pass
    assert read_properties(SystemDisk(), path) == before
    return str(refused.value)


async def alone(path: Path) -> str:
    """Return why a single broker cannot start there."""
    with pytest.raises(ConfigError) as refused:
        async with direct_broker(path):
            pass
    return str(refused.value)


async def test_a_directory_has_its_number_and_ids(tmp_path: Path) -> None:
    async with opened(tmp_path, 2, 5) as store:
        cluster_id = await store.get(tree.CLUSTER_ID)
        assert "is in use by another broker" in await why_not(tmp_path, 2, 5)
    properties = read_properties(SystemDisk(), tmp_path)
    assert properties is not None
    assert cluster_id is not None
    assert (properties.processes, properties.node_id) == (2, 5)
    assert properties.cluster_id == cluster_id.data.decode()
    assert "is broker 5, not 0; set node.id=5" in await why_not(tmp_path, 2)
    assert "belongs to 2 broker processes: start it with --processes 2" in await alone(tmp_path)
    async with opened(tmp_path, 3, 5) as store:
        assert await store.get(tree.CLUSTER_ID) == cluster_id
    assert "--processes 3" in await alone(tmp_path)


async def test_the_folder_of_one_process_does_not_start_alone(tmp_path: Path) -> None:
    async with opened(tmp_path, 2) as store, direct_broker(folder_of(tmp_path, 0), store=Leased(store)):
        pass
    said = await alone(folder_of(tmp_path, 0))
    assert (
        f"belongs to one of 2 broker processes: start all of them with --data {tmp_path} --processes 2"
        in said
    )


class Leased:
    """The store of a member of a cluster: its lease has an end. The owner closes the store."""

    def __init__(self, store: CoordinationStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def lease_end(self) -> float:
        return 1e12

    async def close(self) -> None:
        pass


async def test_fewer_processes_start_when_those_left_out_hold_nothing(tmp_path: Path) -> None:
    states = (PartitionState((0,), 0, 0, (0,)), PartitionState((2,), 2, 0, (2,)))
    path = tree.chunk_path("t", 0)
    async with opened(tmp_path, 3) as store:
        topic = TopicImage("t", SystemEntropy().uuid(), 2, {})
        deleted = TopicImage("d", SystemEntropy().uuid(), 1, {})
        await store.transact(
            [
                CreateNode(tree.topic_path("t"), tree.encode_topic(topic)),
                CreateNode(path, tree.encode_states(states)),
                CreateNode(tree.deleted_path(deleted.topic_id), tree.encode_deletion(deleted, [0, 2])),
                *(CreateNode(f"{tree.KNOWN_BROKERS}/{number}", b"{}") for number in range(3)),
            ]
        )
    said = await why_not(tmp_path, 2)
    assert f"broker 2 in {tmp_path} holds replicas of partitions (1)" in said
    assert "start with --processes 3, move them with `headrace cluster drain 2`" in said
    assert f"broker 2 in {tmp_path} holds replicas of partitions (1)" in await why_not(tmp_path, 1)
    async with opened(tmp_path, 3) as store:
        await store.transact([SetNode(path, tree.encode_states((states[0], states[0])), 0)])
    async with opened(tmp_path, 2) as store:
        assert await store.children(tree.KNOWN_BROKERS) == ["0", "1"]
        node = await store.get(tree.deleted_path(deleted.topic_id))
        assert node is not None
        assert tree.decode_deletion(node.data)[1] == [0], "nothing waits for files of a forgotten process"
    async with opened(tmp_path, 3):
        pass  # it may come back


async def test_a_single_broker_is_refused_and_becomes_the_first_process_when_it_is_moved(
    tmp_path: Path,
) -> None:
    single, root = tmp_path / "single", tmp_path / "root"
    async with direct_broker(single) as broker:
        await broker.create_topic("t", 3, retention_ms="12345")
        await broker.produce("t", [b"a"], partition=2)
        cluster_id = broker.broker.cluster_id
    said = await why_not(single, 2)
    assert "belongs to a single broker: start it without --processes" in said
    assert f"mkdir NEW && mv {single} NEW/broker-0" in said
    root.mkdir()
    single.rename(folder_of(root, 0))
    async with opened(root, 2) as store:
        image = await read_image(store)
        entry = image.topics["t"]
        assert [state.replicas for state in entry.states()] == [(0,)] * 3
        assert dict(entry.topic.config) == {"retention.ms": "12345"}
    properties = read_properties(SystemDisk(), folder_of(root, 0))
    assert properties is not None
    assert properties.is_member
    assert properties.cluster_id == cluster_id
    async with opened(root, 2), opened(tmp_path / "another", 2):
        pass


async def test_an_interrupted_adoption_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with direct_broker(folder_of(tmp_path, 0)) as broker:
        await broker.create_topic("t")
    with monkeypatch.context() as patched:
        patched.setattr(SystemDisk, "sync_above", lambda *_: (_ for _ in ()).throw(RuntimeError("cut off")))
        with pytest.raises(RuntimeError):
            await ProcessesRoot.open(tmp_path, 0, 2, SystemDisk(), SystemEntropy())
    assert read_properties(SystemDisk(), tmp_path) is None
    async with opened(tmp_path, 2) as store:
        assert "t" in (await read_image(store)).topics


async def test_a_member_of_another_cluster_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_text(
        "version=2\ncluster.id=abcdefghijklmnopqrstuw\nnode.id=3\ncluster.member=true\n"
    )
    assert "belongs to broker 3 of the cluster" in await why_not(tmp_path, 2)
