"""A cluster's metadata and its groups' offsets in remote storage: one writer, fencing, and a restored machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from headrace.broker.metadata import tree
from headrace.broker.metadata.image import PartitionState
from headrace.broker.objects.files import LocalFiles
from headrace.broker.remote import bootstrap, cluster_copy
from headrace.broker.remote.cluster_copy import ClusterImage, ReplacedError, newest_numbers, read_newest
from headrace.broker.remote.shared_copy import CLAIM, made_single
from headrace.broker.runtime.disk import SystemDisk
from headrace.broker.runtime.ports import SetNode
from headrace.broker.stores.embedded import StoreImage
from headrace.broker.tests.remote import test_group_positions as group_tests
from headrace.broker.tests.remote.test_remote_log import tiered as alone
from headrace.broker.tests.replication.test_remote_replicas import CONFIG, numbers, tend, write
from headrace.broker.tests.replication.test_replication import TOPIC, create, led, log_of, until
from simulator.cluster import DirectCluster, direct_cluster
from simulator.direct import DirectBroker

SETTINGS = {
    "remote.log.storage.system.enable": "true",
    "remote.log.manager.task.interval.ms": "3600000",
    "remote.log.group.positions.interval.ms": "3600000",
    "log.initial.task.delay.ms": "3600000",
    "log.retention.check.interval.ms": "3600000",
    "auto.leader.rebalance.enable": "false",
    "offsets.topic.num.partitions": "1",
    "log.retention.ms": "-1",
}


@asynccontextmanager
async def cluster_of(tmp_path: Path, count: int = 3) -> AsyncIterator[DirectCluster]:
    settings = {**SETTINGS, "remote.log.storage.directory": str(tmp_path / "remote")}
    async with direct_cluster(tmp_path / "brokers", count, config=settings) as cluster:
        yield cluster


def manager(broker: DirectBroker) -> Any:
    return broker.broker._cluster.remote


def controller(cluster: DirectCluster) -> DirectBroker:
    (found,) = (each for each in cluster.brokers.values() if each.context.metadata.is_controller)
    return found


def files_of(tmp_path: Path) -> LocalFiles:
    return LocalFiles(tmp_path / "remote")


def id_of(cluster: DirectCluster) -> str:
    return next(iter(cluster.brokers.values())).broker.cluster_id


def there(tmp_path: Path) -> list[str]:
    return files_of(tmp_path).names("cluster")


def restored(tmp_path: Path, data: str) -> bootstrap.Restored:
    location = str(tmp_path / "remote")
    return bootstrap.make_directory(files_of(tmp_path), location, None, SystemDisk(), tmp_path / data)


async def test_a_single_machine_goes_on_with_what_a_cluster_had(tmp_path: Path) -> None:
    async with cluster_of(tmp_path) as cluster:
        assert (await create(cluster.brokers[1], **CONFIG, min_insync_replicas="2")).error_code == 0
        first = await led(cluster, {1, 2, 3})
        await write(cluster, 0, 20)
        await cluster.stop(next(number for number, each in cluster.brokers.items() if each is first))
        await write(cluster, 20, 20)  # in a later leader epoch
        leader = await led(cluster)
        coordinator = next(iter(cluster.brokers.values()))
        await group_tests.settled(coordinator, group_tests.FindCoordinatorRequest(key="g", key_type=0), 3)
        state = coordinator.context.metadata.state("__consumer_offsets", 0)
        assert state is not None
        coordinating = cluster.brokers[state.leader]
        await group_tests.commit(coordinating, {(TOPIC, 0): 17}, "g")
        await group_tests.commit(coordinating, {(TOPIC, 0): 40}, "far")
        await tend(cluster)
        for broker in cluster.brokers.values():
            await manager(broker).turn()
            await manager(broker).copy_positions()
        end = log_of(leader).tiered_to
        epoch = leader.context.metadata.state(TOPIC, 0).leader_epoch
        assert 17 < end < 40
    said = restored(tmp_path, "new")
    assert said.lowered == (TOPIC,)
    assert (said.image.broker_id, said.positions.positions, len(said.positions.beyond)) == (0, 2, 1)
    async with alone(tmp_path, "new") as made:
        state = made.context.metadata.state(TOPIC, 0)
        assert state is not None
        assert (state.replicas, state.isr, state.leader) == ((0,), (0,), 0)
        assert state.leader_epoch > epoch
        assert made.context.metadata.topic(TOPIC).config.get("min.insync.replicas") is None
        assert await numbers(made, end) == list(range(end))
        assert await group_tests.committed(made, "g") == {(TOPIC, 0): 17}
        assert await group_tests.committed(made, "far") == {(TOPIC, 0): end}
        assert (await made.produce(TOPIC, [b"more"])).base_offset == end
        assert made.context.replicas.partition(TOPIC, 0).log.last_epoch > epoch
        await manager(made).turn()
    assert (
        ClusterImage.decode("n", files_of(tmp_path).read(there(tmp_path)[-1])).version == cluster_copy.OF_ONE
    )


async def test_the_controller_copies_only_changes(tmp_path: Path) -> None:
    async with cluster_of(tmp_path) as cluster:
        assert (await create(cluster.brokers[1], **CONFIG)).error_code == 0
        await led(cluster, {1, 2, 3})
        writer = controller(cluster)
        for broker in cluster.brokers.values():
            if broker is not writer:
                await manager(broker).turn()
        assert there(tmp_path) == []
        await manager(writer).turn()
        first = there(tmp_path)
        assert [name.rpartition("/")[2] for name in first] == [
            "claim-00000000000000000001.json",
            "metadata-00000000000000000001.json.gz",
        ]
        image = read_newest(files_of(tmp_path), id_of(cluster))
        assert {path for path, _, _ in image.store.nodes} >= {"/topics", f"/topics/{TOPIC}"}
        assert not [path for path, _, _ in image.store.nodes if path.startswith(("/brokers", "/cluster"))]
        leader = await led(cluster)
        other = next(number for number, each in cluster.brokers.items() if each not in (writer, leader))
        await cluster.stop(other)
        await led(cluster, set(cluster.brokers))
        for broker in cluster.brokers.values():
            await manager(broker).turn()
        assert read_newest(files_of(tmp_path), id_of(cluster)) == image, (
            "written though only an ISR has changed"
        )
        await writer.context.topics.alter_config(
            TOPIC, {**writer.context.metadata.topic(TOPIC).config, "retention.ms": "7"}
        )
        await manager(writer).turn()
        assert len(there(tmp_path)) == 2
        assert there(tmp_path) != first


async def test_the_next_controller_goes_on_and_an_earlier_one_does_not(tmp_path: Path) -> None:
    async with cluster_of(tmp_path) as cluster:
        assert (await create(cluster.brokers[1], **CONFIG)).error_code == 0
        await led(cluster, {1, 2, 3})
        old = controller(cluster)
        await manager(old).turn()
        copy = manager(old)._cluster
        epoch = old.context.metadata.image.controller_epoch
        node = next(number for number, each in cluster.brokers.items() if each is old)
        cluster.ensemble.expire(cluster.stores[node])
        await until(
            lambda: any(
                each.context.metadata.image.controller_epoch > epoch for each in cluster.brokers.values()
            )
        )
        new = max(cluster.brokers.values(), key=lambda each: each.context.metadata.image.controller_epoch)
        metadata = new.context.metadata
        await new.context.topics.alter_config(TOPIC, {**metadata.topic(TOPIC).config, "retention.ms": "7"})
        await manager(new).turn()
        written = read_newest(files_of(tmp_path), id_of(cluster))
        assert written.controller_epoch > epoch
        stale = replace(old.context.metadata.image, controller_epoch=epoch)
        copy._image = lambda: stale  # a broker that has not heard of it
        copy._changes = None
        names = there(tmp_path)
        await copy.keep()
        assert there(tmp_path) == names
        copy._number = 0
        copy._read = lambda: _as_read({"/mine": b"old"})
        await copy.keep()
        assert there(tmp_path) == names
        copy._number = newest_numbers(files_of(tmp_path), id_of(cluster))[0] - 1
        assert not copy._write(StoreImage((), ())), "it took the number of the later one"
        assert read_newest(files_of(tmp_path), id_of(cluster)) == written


async def _as_read(nodes: dict[str, bytes] | None) -> dict[str, bytes] | None:
    return nodes


async def test_a_replaced_cluster_is_read_only(tmp_path: Path) -> None:
    async with cluster_of(tmp_path) as cluster:
        assert (await create(cluster.brokers[1], **CONFIG)).error_code == 0
        await led(cluster, {1, 2, 3})
        await write(cluster, 0, 20)
        await manager(controller(cluster)).turn()
        await tend(cluster)
        restored(tmp_path, "new")
        async with alone(tmp_path, "new") as made:
            await manager(made).turn()
            await write(cluster, 20, 20)
            names = files_of(tmp_path).names("")
            await tend(cluster)
            for broker in cluster.brokers.values():
                await manager(broker).turn()
                assert manager(broker)._is_read_only
            assert files_of(tmp_path).names("") == names
            assert not manager(made)._is_read_only


class Failing(LocalFiles):
    """Puts below `cluster/` raise, or are carried out and raise."""

    def __init__(self, root: Path, modes: list[str]) -> None:
        super().__init__(root)
        self.modes = modes

    def put(self, name: str, data: Any, *, create: bool = False) -> None:
        mode = self.modes.pop(0) if name.startswith("cluster/") and self.modes else ""
        if mode == "fails":
            raise OSError("500")
        super().put(name, data, create=create)
        if mode == "lost":
            raise OSError("no answer")


@pytest.mark.parametrize("modes", [["fails", "fails"], ["lost"], ["", "lost"], ["", "fails", "", "lost"]])
async def test_a_store_that_fails_is_written_to_again(tmp_path: Path, modes: list[str]) -> None:
    async with cluster_of(tmp_path, 1) as cluster:
        broker = cluster.brokers[1]
        files = Failing(tmp_path / "remote", modes)
        manager(broker)._files = files
        group_tests.put_into(manager(broker)._cluster, files)
        for number in range(6):
            await broker.context.topics.create_topic(f"t{number}", 1, {})
            await manager(broker).turn()
        assert not modes
        image = read_newest(files_of(tmp_path), id_of(cluster))
        assert {f"/topics/t{number}" for number in range(6)} <= {path for path, _, _ in image.store.nodes}
        node = await broker.context.store.get(CLAIM)
        assert node is not None
        assert not manager(broker)._is_read_only


async def test_a_claim_keeps_the_previous_copy_until_the_next_one(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as cluster:
        await cluster.brokers[1].context.topics.create_topic("t", 1, {})
        copy = manager(cluster.brokers[1])._cluster
        before = ClusterImage(id_of(cluster), 0, "before", 1, StoreImage((), ()))
        files_of(tmp_path).put(cluster_copy.name_of(id_of(cluster), 4), before.encode())
        read = copy._read
        copy._read = lambda: _as_read(None)
        await copy.keep()
        assert copy.claim == 5
        assert read_newest(files_of(tmp_path), id_of(cluster)) == before
        copy._read = read
        await copy.keep()
        assert len(there(tmp_path)) == 2
        assert "/topics/t" in {
            path for path, _, _ in read_newest(files_of(tmp_path), id_of(cluster)).store.nodes
        }


async def test_two_concurrent_claims_leave_one_owner(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as cluster:
        copy = manager(cluster.brokers[1])._cluster
        await copy.keep()
        store = cluster.brokers[1].context.store
        node = await store.get(CLAIM)
        assert node is not None
        cluster_copy.make_claim(files_of(tmp_path), id_of(cluster), 2, "somebody else")
        with pytest.raises(ReplacedError):
            await copy.keep()
        await store.transact([SetNode(CLAIM, b'{"number":3}', node.version)])
        await copy.keep()


async def test_a_former_controller_copies_nothing(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as cluster:
        broker = cluster.brokers[1]
        await manager(broker).turn()
        names = there(tmp_path)
        metadata, copy = broker.context.metadata, manager(broker)._cluster
        await broker.context.topics.create_topic("t", 1, {})
        other = metadata.image.controller_epoch + 1
        copy._image = lambda: replace(metadata.image, controller_epoch=other)
        await copy.keep()
        assert there(tmp_path) == names


async def test_a_failed_copy_is_repeated_without_a_new_change(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as cluster:
        broker = cluster.brokers[1]
        await manager(broker).turn()
        copy = manager(broker)._cluster
        group_tests.put_into(copy, Failing(tmp_path / "remote", ["fails"]))
        await broker.context.topics.create_topic("t", 1, {})
        for _ in range(3):
            await manager(broker).turn()
        image = read_newest(files_of(tmp_path), id_of(cluster))
        assert "/topics/t" in {path for path, _, _ in image.store.nodes}


def test_new_epochs_exceed_all_known_epochs() -> None:
    states = [PartitionState((1, 2, 3), -1, epoch, ()) for epoch in (3, 9)]
    nodes = (
        ("/broker-configs/default", b'{"min.insync.replicas":"2","log.retention.ms":"7"}', 0),
        ("/broker-configs/1", b"{}", 0),
        ("/topics/t/states/0", tree.encode_states(states), 0),
    )
    image = ClusterImage("c", 2, "w", 1, StoreImage(nodes, ()), version=cluster_copy.OF_SEVERAL)
    single, lowered = made_single(image, 0, lambda _, index: 7)
    by_path = {path: data for path, data, _ in single.store.nodes}
    assert [each.leader_epoch for each in tree.decode_states(by_path["/topics/t/states/0"])] == [8, 10]
    assert by_path["/broker-configs/default"] == b'{"log.retention.ms":"7"}'
    assert lowered == [""]
    assert "/broker-configs/1" not in by_path
    with pytest.raises(cluster_copy.ClusterCopyError, match="newer version"):
        ClusterImage.decode("name", replace(image, version=3).encode())


async def test_a_replaced_server_stops_after_several_changes(tmp_path: Path) -> None:
    async with alone(tmp_path) as old:
        await manager(old).turn()
        restored(tmp_path, "new")
        async with alone(tmp_path, "new") as new:
            for number in range(3):
                await new.create_topic(f"t{number}")
                await manager(new).turn()
            await manager(old).turn()
            assert manager(old)._is_read_only
            assert not manager(new)._is_read_only


async def test_a_topic_that_is_heard_of_late_is_copied(tmp_path: Path) -> None:
    """The store has answered with a change, and the image is not there yet."""
    async with cluster_of(tmp_path, 1) as cluster:
        broker = cluster.brokers[1]
        copy = manager(broker)._cluster
        before = broker.context.metadata.image
        await broker.context.topics.create_topic("t", 1, {})
        image = copy._image
        copy._image = lambda: before
        await copy.keep()
        await copy.keep()
        copy._image = image
        await copy.keep()
        found = read_newest(files_of(tmp_path), id_of(cluster)).store.nodes
        assert "/topics/t" in {path for path, _, _ in found}


@pytest.mark.parametrize("late", ["before", "after"])
async def test_late_writes_of_a_replaced_cluster_do_not_stop_the_new_one(tmp_path: Path, late: str) -> None:
    """It has checked claims already when the new machine makes its own."""
    async with cluster_of(tmp_path, 1) as cluster:
        await manager(cluster.brokers[1]).turn()
        old = manager(cluster.brokers[1])._cluster
        restored(tmp_path, "new")
        async with alone(tmp_path, "new") as made:
            if late == "before":
                await manager(made).turn()
                newest, _ = newest_numbers(files_of(tmp_path), id_of(cluster))
                assert not old._write(StoreImage((), ())), "it went on behind who came later"
                image = ClusterImage(
                    id_of(cluster),
                    1,
                    "w",
                    1,
                    StoreImage((), ()),
                    version=2,
                    controller_epoch=9,
                    claim=old.claim,
                )
                files_of(tmp_path).put(cluster_copy.name_of(id_of(cluster), newest + 1), image.encode())
            else:
                assert old._write(StoreImage((), ()))
            await made.create_topic("t")
            await manager(made).turn()
            assert not manager(made)._is_read_only
            image = read_newest(files_of(tmp_path), id_of(cluster))
            assert "/topics/t" in {path for path, _, _ in image.store.nodes}
            await manager(cluster.brokers[1]).turn()
            assert manager(cluster.brokers[1])._is_read_only
            assert len(there(tmp_path)) == 2


async def test_a_new_cluster_goes_on_whatever_the_epochs_of_the_old_one_are(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, 1) as cluster:
        broker = cluster.brokers[1]
        old = ClusterImage(
            id_of(cluster), 1, "w", 1, StoreImage((), ()), version=2, controller_epoch=99, claim=1
        )
        files_of(tmp_path).put(cluster_copy.name_of(id_of(cluster), 1), old.encode())
        cluster_copy.make_claim(files_of(tmp_path), id_of(cluster), 1, "w")
        await manager(broker).turn()
        assert manager(broker)._cluster.claim == 2
        files_of(tmp_path).put(cluster_copy.name_of(id_of(cluster), 3), old.encode())
        await broker.context.topics.create_topic("t", 1, {})
        await manager(broker).turn()
        image = read_newest(files_of(tmp_path), id_of(cluster))
        assert "/topics/t" in {path for path, _, _ in image.store.nodes}
        assert len(there(tmp_path)) == 2
