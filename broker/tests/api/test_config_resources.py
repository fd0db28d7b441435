"""ListConfigResources: what DescribeConfigs can be asked about."""

from __future__ import annotations

import pytest

from broker.testing.direct import direct_broker
from protocol.errors import ErrorCode
from protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from protocol.messages.list_config_resources import ListConfigResourcesRequest


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
async def test_what_is_listed_can_be_described(tmp_path, version, types, expected) -> None:
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
