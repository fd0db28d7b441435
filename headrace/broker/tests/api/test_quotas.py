"""DescribeClientQuotas of a broker without quotas: valid and invalid filters."""

from __future__ import annotations

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from simulator.direct import direct_broker


@pytest.mark.parametrize("version", range(2))
@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([], 0),
        ([("user", 2, None), ("client-id", 0, "me")], 0),
        ([("ip", 1, None)], 0),
        ([("user", 0, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 1, "me")], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 2, None), ("user", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 2, None), ("ip", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("", 2, None)], ErrorCode.INVALID_REQUEST),
        ([("group", 2, None)], ErrorCode.UNSUPPORTED_VERSION),
    ],
)
async def test_without_quotas_the_list_is_empty(tmp_path, version, components, code) -> None:
    async with direct_broker(tmp_path) as broker:
        request = DescribeClientQuotasRequest(
            components=[
                ComponentData(entity_type=kind, match_type=match_type, match=match)
                for kind, match_type, match in components
            ]
        )
        response = await broker.send(request, version)
        assert (response.error_code, response.entries) == (code, None if code else [])
        assert bool(response.error_message) == bool(code)
