"""A single broker becomes the first member of a cluster, with all its data or not at all, wherever the adoption
stops.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.broker.cluster.adoption import NODE_BYTES_MAX, Adopted, adopt
from headrace.broker.cluster.replica_changes import Reassignment
from headrace.broker.configs.config_key import ConfigError
from headrace.broker.metadata import tree
from headrace.broker.partitions.data_dir import FROM_REMOTE_STORAGE, read_properties
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import (
    CoordinationStore,
    CreateNode,
    StoreOperation,
    SystemClock,
    SystemEntropy,
)
from headrace.broker.stores.embedded import EmbeddedStore
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from simulator.cluster import DirectCluster, direct_cluster
from simulator.coordination import SimulatedEnsemble
from simulator.direct import DirectBroker, direct_broker, values_of

ONE = {"node.id": "1", "offsets.topic.num.partitions": "2"}
PARTITIONS = 120  # more than one chunk of states


class CutOffError(Exception):
    pass


class CutOff:
    """A store whose session is lost at a write: the `at`-th, before or after it took effect."""

    def __init__(self, store: CoordinationStore, at: int, *, after: bool) -> None:
        self._store = store
        self._at = at
        self._after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def transact(self, operations: Sequence[StoreOperation]) -> list[str]:
        self._at -= 1
        if self._at == 0 and not self._after:
            raise CutOffError
        done = await self._store.transact(operations)
        if self._at == 0:
            raise CutOffError
        return done


async def filled(folder: Path) -> dict[str, bytes]:
    """Run a single broker; return the part of its store that a cluster takes over."""
    async with direct_broker(folder, ONE) as broker:
        await broker.create_topic("t", PARTITIONS, retention_ms="12345")
        await broker.produce("t", [b"a", b"b"], partition=101)
        await broker.create_topic("gone")
        commit = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=-1,
            topics=[
                OffsetCommitRequestTopic(
                    name="t",
                    partitions=[OffsetCommitRequestPartition(partition_index=101, committed_offset=1)],
                )
            ],
        )
        assert (await broker.send(commit, 9)).topics[0].partitions[0].error_code == 0
        user = ScramCredentialUpsertion(
            name="ann", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"p" * 32
        )
        await broker.send(AlterUserScramCredentialsRequest(deletions=[], upsertions=[user]))
        await broker.context.topics.delete_topic("gone")
    return await kept(folder)


async def kept(folder: Path) -> dict[str, bytes]:
    store = EmbeddedStore(folder / "meta.db")
    image = await store.image()
    await store.close()
    return {
        path: data
        for path, data, _ in image.nodes
        if path.startswith(("/topics/", "/security/", "/features"))
    }


async def adopted(folder: Path, ensemble: SimulatedEnsemble, *, dry_run: bool = False) -> Adopted:
    store = await ensemble.connect()
    try:
        return await adopt(folder, store, SystemDisk(), SystemEntropy(), node_id=None, dry_run=dry_run)
    finally:
        await store.close()


async def why_not(cluster: DirectCluster, node_id: int) -> str:
    """Return the error of a broker that cannot start."""
    try:
        await cluster.start(node_id)
    except ConfigError as error:
        return str(error)
    await cluster.stop(node_id)
    return ""


async def has_everything(broker: DirectBroker) -> None:
    found = await broker.fetch("t", partition=101)
    assert values_of(found.records) == [(0, b"a"), (1, b"b")]
    topic = broker.context.metadata.topic("t")
    assert topic is not None
    assert (topic.partition_count, topic.config["retention.ms"]) == (PARTITIONS, "12345")
    assert broker.context.metadata.topic("gone") is None
    wanted = [OffsetFetchRequestTopics(name="t", partition_indexes=[101])]
    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=wanted)])
    async with asyncio.timeout(60):
        while (group := (await broker.send(asked, 8)).groups[0]).error_code:  # noqa: ASYNC110 - it loads
            await asyncio.sleep(0.01)
    assert group.topics[0].partitions[0].committed_offset == 1
    users = await broker.send(DescribeUserScramCredentialsRequest(users=None))
    assert [each.user for each in users.results] == ["ann"]


async def test_a_broker_alone_is_the_first_of_a_cluster_with_all_that_it_had(tmp_path: Path) -> None:
    await filled(tmp_path / "1")
    cluster = DirectCluster(tmp_path)
    before = dict(cluster.ensemble._nodes)
    assert (await adopted(tmp_path / "1", cluster.ensemble, dry_run=True)).topics == 2
    assert cluster.ensemble._nodes == before, "nothing is written by looking"
    async with direct_broker(tmp_path / "1", ONE) as broker:
        await has_everything(broker)
        cluster_id = broker.broker.cluster_id
    found = await adopted(tmp_path / "1", cluster.ensemble)
    assert (found.is_new, found.was_clean, found.partitions) == (True, True, PARTITIONS + 2)
    again = await adopted(tmp_path / "1", cluster.ensemble)
    assert (again.is_new, again.cluster_id) == (False, cluster_id)
    with pytest.raises(ConfigError, match="start it with --zookeeper"):
        async with direct_broker(tmp_path / "1", ONE):
            pass
    try:
        one = await cluster.start(1, ONE)
        await has_everything(one)
        assert one.broker.cluster_id == cluster_id
        two = await cluster.start(2, ONE)
        moves = [
            Reassignment("t", 101, (1, 2)),
            Reassignment("__consumer_offsets", 0, (1, 2)),
            Reassignment("__consumer_offsets", 1, (1, 2)),
        ]
        assert await two.context.replica_changes.reassign(moves) == [None] * 3
        await cluster.agreed(lambda broker: all(_isr(broker, *move[:2]) == {1, 2} for move in moves))
        await cluster.stop(1)
        await cluster.agreed(lambda broker: _isr(broker, "t", 101) == {2}, 2)
        await has_everything(two)
    finally:
        for node_id in list(cluster.brokers):
            await cluster.stop(node_id)


def _isr(broker: DirectBroker, topic: str, index: int) -> set[int]:
    state = broker.context.metadata.state(topic, index)
    assert state is not None
    return set(state.isr)


async def test_an_adoption_interrupted_at_any_step_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.broker.cluster.adoption.TRANSACTION_NODES", 3)
    whole = await filled(tmp_path / "1")
    folder, disk = tmp_path / "1", SystemDisk()
    alone = disk.read(folder / "meta.properties")
    outcomes = []
    for at in range(1, 100):
        for after in (False, True):
            cluster = DirectCluster(tmp_path)
            disk.replace(folder / "meta.properties", alone, sync=False)
            store = await cluster.ensemble.connect()
            cut = CutOff(store, at, after=after)
            try:
                await adopt(folder, cut, disk, SystemEntropy(), node_id=None, dry_run=False)
            except CutOffError:
                outcome = "cut off"
            else:
                outcome = "done"
            properties = read_properties(disk, folder)
            assert properties is not None
            there = await cluster.ensemble.connect()
            marked = await there.get(tree.ADOPTION) is not None
            if properties.is_member:
                found = {path: node.data for path, node in cluster.ensemble._nodes.items()}
                assert {path: found.get(path) for path in whole} == whole, "all of it is there by then"
            if marked:
                assert "is being adopted" in await why_not(cluster, 2)
            outcomes.append((outcome, properties.is_member, marked))
            if outcome == "done":
                break
            if properties.is_member and marked:
                await cluster.start(1, ONE)  # which ends it, too
                assert await there.get(tree.ADOPTION) is None
                await cluster.stop(1)
            await there.transact(
                [CreateNode("/topics/left-over")]
            ) if marked and not properties.is_member else None
            await adopted(folder, cluster.ensemble)
            nodes = {path: node.data for path, node in cluster.ensemble._nodes.items()}
            assert {path: nodes.get(path) for path in whole} == whole
            assert "/topics/left-over" not in nodes
            assert tree.ADOPTION not in nodes
        if outcomes[-1][0] == "done":
            break
    assert {("cut off", False, False), ("cut off", False, True), ("cut off", True, True)} <= {*outcomes}
    assert outcomes[-1] == ("done", True, False)
    cluster = DirectCluster(tmp_path)
    disk.replace(folder / "meta.properties", alone, sync=False)
    await adopted(folder, cluster.ensemble)
    await has_everything(await cluster.start(1, ONE))
    await cluster.stop(1)


async def test_a_directory_that_cannot_be_adopted_is_refused_unchanged(tmp_path: Path) -> None:
    folder, disk, ensemble = tmp_path / "1", SystemDisk(), SimulatedEnsemble(SystemClock())

    async def refused(match: str, node_id: int | None = None, path: Path = folder) -> None:
        store = await ensemble.connect()
        before = dict(ensemble._nodes)
        with pytest.raises(ConfigError, match=match):
            await adopt(path, store, disk, SystemEntropy(), node_id=node_id, dry_run=False)
        assert ensemble._nodes == before
        await store.close()

    await refused("does not exist")
    folder.mkdir()
    await refused("is not the data directory of a broker")
    async with direct_broker(folder, ONE) as broker:
        await broker.create_topic("t")
        await refused("in use by another broker")
    await refused("belongs to broker 1, not 3", node_id=3)
    properties = read_properties(disk, folder)
    assert properties is not None
    (folder / FROM_REMOTE_STORAGE).write_text("file:///x")
    await refused("restored from remote storage")
    (folder / FROM_REMOTE_STORAGE).unlink()
    old = replace(properties, version=1).encode().replace(b"version=2", b"version=1")
    disk.replace(folder / "meta.properties", old, sync=False)
    await refused("has an earlier layout")
    disk.replace(folder / "meta.properties", properties.encode(), sync=False)
    store = await ensemble.connect()
    await store.transact([CreateNode("/somebody/else")])
    await refused("is not empty .somebody.")
    ensemble = SimulatedEnsemble(SystemClock())
    await (await ensemble.connect()).transact(
        [CreateNode(tree.CLUSTER_ID, b"theirs"), CreateNode(f"{tree.KNOWN_BROKERS}/7")]
    )
    await refused(r"already has the cluster theirs .its brokers: 7.")
    ensemble = SimulatedEnsemble(SystemClock())
    for name, data, match in (
        ("/configs/large", b"x" * (NODE_BYTES_MAX + 1), "/configs/large of .* has 900,001 bytes"),
        ("/topics/u/states/0", b"[[[1,2],1,0,[1,2]]]", r"names the brokers \[1, 2\]"),
    ):
        with sqlite3.connect(folder / "meta.db") as database:
            parent = name.rpartition("/")[0]
            database.execute("INSERT INTO nodes VALUES (?, ?, ?, 0)", (name, parent, data))
        await refused(match)
        with sqlite3.connect(folder / "meta.db") as database:
            database.execute("DELETE FROM nodes WHERE path = ?", (name,))
        database.close()
    async with direct_broker(folder, ONE) as broker:
        assert (await broker.produce("t", [b"x"])).error_code == ErrorCode.NONE
    async with direct_cluster(tmp_path / "others", 1) as cluster:
        ensemble = cluster.ensemble
        await refused("its brokers: 1")
