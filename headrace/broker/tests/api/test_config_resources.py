"""ListConfigResources: the resources of DescribeConfigs."""

from __future__ import annotations

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.list_config_resources import ListConfigResourcesRequest
from simulator.direct import direct_broker


@pytest.mark.parametrize(
    ("version", "types", "expected"),
    [
        (1, [], {(2, "a"), (2, "b"), (4, "0"), (8, "0")}),
        (1, [2], {(2, "a"), (2, "b")}),
        (1, [4, 8, 32], {(4, "0"), (8, "0")}),
        (1, [16], set()),
        (0, [], set()),
    ],
)
async def test_listed_resources_can_be_described(tmp_path, version, types, expected) -> None:
    async with direct_broker(tmp_path) as broker:
        for name in "ab":
            await broker.create_topic(name)
        response = await broker.send(ListConfigResourcesRequest(resource_types=types), version)
        assert response.error_code == 0
        found = {(each.resource_type, each.resource_name) for each in response.config_resources}
        assert found == expected
        described = await broker.send(
            DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
                    for kind, name in sorted(found)
                ]
            )
        )
        assert len(described.results) == len(found)
        assert all(result.configs for result in described.results)


async def test_an_unknown_type_is_refused(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        response = await broker.send(ListConfigResourcesRequest(resource_types=[2, 3]), 1)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_the_brokers_own_topics_are_shown_as_kafka_shows_them(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        request = InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000)
        await broker.send(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
        assert (await broker.send(request)).error_code == ErrorCode.NONE
        await broker.context.topics.create_topic("plain", 1)
        wanted = {
            "__consumer_offsets": {"cleanup.policy": "compact", "compression.type": "producer"},
            "__transaction_state": {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "unclean.leader.election.enable": "false",
            },
            "plain": {"cleanup.policy": "delete"},
        }
        described = await broker.send(
            DescribeConfigsRequest(
                resources=[
                    DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
                    for name in wanted
                ]
            )
        )
        for result in described.results:
            assert result.error_code == ErrorCode.NONE
            found = {each.name: each.value for each in result.configs}
            own = wanted[result.resource_name]
            assert {name: found[name] for name in own} == own
            sources = {each.config_source for each in result.configs if each.name in own}
            assert sources == ({5} if result.resource_name == "plain" else {1})


async def test_an_own_topic_of_before_is_shown_as_compacted_too(tmp_path) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.context.topics.create_topic("__consumer_offsets", 1)
        resource = DescribeConfigsResource(
            resource_type=2, resource_name="__consumer_offsets", configuration_keys=["cleanup.policy"]
        )
        (result,) = (await broker.send(DescribeConfigsRequest(resources=[resource]))).results
        assert [(each.value, each.config_source) for each in result.configs] == [("compact", 5)]
