"""A cluster of brokers of two versions, the metadata level that decides their format, and brokers that are gone for
good.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.broker.configs.config_key import ConfigError
from headrace.broker.metadata import tree
from headrace.broker.metadata.features import METADATA_VERSION
from headrace.broker.metadata.membership import Registration
from headrace.broker.runtime.ports import SetNode
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.protocol.messages.unregister_broker import UnregisterBrokerRequest
from headrace.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from simulator.cluster import DirectCluster, direct_cluster
from simulator.direct import DirectBroker, direct_broker

UPGRADE, SAFE_DOWNGRADE = 1, 2


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch):
    """Let brokers that start from here on know one more level, or again only this version's."""
    before = Registration.__struct_defaults__

    def set_newer(is_newer: bool) -> None:
        def made(*args, **named):
            return Registration(*args, **named, levels=(1, 2) if is_newer else (1, 1))

        monkeypatch.setattr("headrace.broker.assembly.cluster.Registration", made)

    yield set_newer
    assert Registration.__struct_defaults__ == before


async def update(broker: DirectBroker, level: int, kind: int = UPGRADE, **more) -> tuple[int, str | None]:
    key = FeatureUpdateKey(feature=METADATA_VERSION, max_version_level=level, upgrade_type=kind)
    answer = await broker.send(UpdateFeaturesRequest(feature_updates=[key], **more), 2)
    return answer.error_code, answer.error_message or None


async def levels(broker: DirectBroker) -> tuple[int, int, int]:
    """Return the supported and finalized levels, and the epoch."""
    request = ApiVersionsRequest(client_software_name="t", client_software_version="1")
    answer = await broker.send(request, 4)
    (most,) = [each.max_version for each in answer.supported_features if each.name == METADATA_VERSION]
    (level,) = [each.max_version_level for each in answer.finalized_features if each.name == METADATA_VERSION]
    return most, level, answer.finalized_features_epoch


async def test_a_raised_level_keeps_brokers_without_it_from_starting(tmp_path, newer) -> None:
    newer(False)
    async with direct_cluster(tmp_path, 2) as cluster:
        one, two = cluster.brokers[1], cluster.brokers[2]
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        assert [await levels(one), await levels(two)] == [(1, 1, 0), (1, 1, 0)]
        newer(True)
        await cluster.stop(1)
        one = await cluster.start(1)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        await one.create_topic("of-both", 4)
        assert await levels(one) == (2, 1, 0), "it writes levels that the other one knows"
        code, message = await update(one, 2)
        assert (code, "broker 2 supports 1 to 1" in message) == (ErrorCode.INVALID_UPDATE_VERSION, True)
        newer(False)
        await cluster.stop(1)
        one = await cluster.start(1)  # and back: it knows everything that was written
        await cluster.agreed(lambda broker: broker.context.metadata.topic("of-both") is not None)
        newer(True)
        for node_id in (1, 2):
            await cluster.stop(node_id)
            await cluster.start(node_id)
        one, two = cluster.brokers[1], cluster.brokers[2]
        assert await update(two, 2, validate_only=True) == (0, None)
        assert (await levels(two))[1] == 1
        assert await update(two, 2) == (0, None)
        await cluster.agreed(lambda broker: broker.context.metadata.image.level == 2)
        assert [await levels(one), await levels(two)] == [(2, 2, 1), (2, 2, 1)]
        assert await update(two, 2) == (0, None), "and it may be said twice"
        newer(False)
        await cluster.stop(2)
        with pytest.raises(
            ConfigError, match=r"at level 2 of .* and this version knows 1 to 1: upgrade it first"
        ):
            await cluster.start(2)
        assert 2 not in {
            broker.broker_id for broker in await one.context.brokers.known_brokers() if broker.epoch > 0
        }
        code, message = await update(one, 1)
        assert (code, "request a downgrade" in message) == (
            ErrorCode.INVALID_UPDATE_VERSION,
            True,
        )
        assert await update(one, 1, SAFE_DOWNGRADE) == (0, None)
        await cluster.start(2)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)


async def test_a_feature_update_is_checked_and_applied_as_a_whole(tmp_path: Path, newer) -> None:
    newer(True)
    async with direct_broker(tmp_path) as broker:
        both = [
            FeatureUpdateKey(feature=METADATA_VERSION, max_version_level=2),
            FeatureUpdateKey(feature="metadata.version", max_version_level=7),
        ]
        for version in (0, 1):
            answer = await broker.send(UpdateFeaturesRequest(feature_updates=both), version)
            assert [each.error_code for each in answer.results] == [0, ErrorCode.INVALID_UPDATE_VERSION]
            assert "feature metadata.version is unknown" in answer.results[1].error_message
        assert (await levels(broker))[1] == 1
        for name, level, code in (
            ("group.version", 1, 0),
            ("group.version", 0, ErrorCode.INVALID_UPDATE_VERSION),
        ):
            key = FeatureUpdateKey(feature=name, max_version_level=level)
            assert (await broker.send(UpdateFeaturesRequest(feature_updates=[key]), 2)).error_code == code
        assert (await update(broker, 3))[0] == ErrorCode.INVALID_UPDATE_VERSION
        assert (await update(broker, 2))[0] == 0
    newer(False)
    with pytest.raises(ConfigError, match="at level 2"):
        async with direct_broker(tmp_path):
            pass


async def test_a_broker_that_is_gone_is_told_of_until_it_is_forgotten(tmp_path: Path) -> None:
    async with direct_cluster(tmp_path, 3) as cluster:
        one = cluster.brokers[1]
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 3)
        await one.context.topics.create_topic("t", 3, replication_factor=3)
        await one.context.topics.create_topic("dropped", 3, replication_factor=3)

        async def told() -> dict[int, tuple[bool, bool]]:
            answer = await one.send(DescribeClusterRequest(include_fenced_brokers=True), 2)
            return {each.broker_id: (each.is_fenced, each.port > 0) for each in answer.brokers}

        async def forget(broker_id: int) -> int:
            return (await one.send(UnregisterBrokerRequest(broker_id=broker_id))).error_code

        assert await told() == dict.fromkeys((1, 2, 3), (False, True))
        assert await forget(3) == ErrorCode.INVALID_REQUEST
        assert await forget(9) == ErrorCode.BROKER_ID_NOT_REGISTERED
        await cluster.stop(3)
        await cluster.agreed(lambda broker: len(broker.context.metadata.image.brokers) == 2)
        assert await told() == {1: (False, True), 2: (False, True), 3: (True, True)}
        await one.context.topics.delete_topic("dropped")
        store = cluster.stores[1]
        await _eventually_of(cluster, [3])
        assert await forget(3) == 0
        assert await store.children(tree.DELETED) == [], "no broker waits for it any more"
        assert await told() == dict.fromkeys((1, 2), (False, True))
        assert await forget(3) == ErrorCode.BROKER_ID_NOT_REGISTERED
        state = one.context.metadata.state("t", 0)
        assert state is not None
        assert (sorted(state.replicas), sorted(state.isr)) == ([1, 2, 3], [1, 2]), (
            "it stays a replica, as in Kafka"
        )
        await cluster.start(3)
        await cluster.agreed(lambda broker: set(broker.context.metadata.state("t", 0).isr) == {1, 2, 3}, 1)
        assert await told() == dict.fromkeys((1, 2, 3), (False, True))


async def _eventually_of(cluster: DirectCluster, holders: list[int]) -> None:
    """The only files left of a deleted topic belong to these brokers."""

    def left(_: DirectBroker) -> bool:
        found = [
            tree.decode_deletion(node.data)[1]
            for path, node in cluster.ensemble._nodes.items()
            if path.startswith(f"{tree.DELETED}/")
        ]
        return found == [holders]

    await cluster.agreed(left, 1)


async def test_a_registration_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It has no levels, and not the version that it came from."""
    async with direct_cluster(tmp_path, 1) as cluster:
        one, store = cluster.brokers[1], cluster.stores[1]
        path = f"{tree.KNOWN_BROKERS}/1"
        node = await store.get(path)
        assert node is not None
        await store.transact([SetNode(path, b'{"rack":"r"}', node.version)])
        twin = await cluster.ensemble.connect()
        await twin.transact([])
        assert tree.decode_known(1, await store.get(path)).endpoints == ()
        registered = await store.get(f"{tree.BROKER_IDS}/1")
        earlier = registered.data.replace(b',"features":{"headrace.metadata.version":[1,1]}', b"")
        assert earlier != registered.data
        await store.transact([SetNode(f"{tree.BROKER_IDS}/1", earlier, registered.version)])
        found = tree.decode_broker(1, await store.get(f"{tree.BROKER_IDS}/1"))
        assert found.levels == (1, 1)
        answer = await one.send(DescribeClusterRequest(include_fenced_brokers=True), 2)
        assert [each.broker_id for each in answer.brokers] == [1]
