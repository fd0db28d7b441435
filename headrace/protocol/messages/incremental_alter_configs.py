"""IncrementalAlterConfigs, API key 44 (KIP-339): set, delete, append to or subtract from single configurations."""

from __future__ import annotations

from headrace.protocol.messages.alter_configs import AlterConfigsResourceResponse
from headrace.protocol.schema import ApiMessage, Struct, array, boolean, int8, int32, string


class AlterableConfig(Struct):
    name: str = string()
    config_operation: int = int8()
    value: str | None = string(nullable="0+")


class AlterConfigsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    configs: list[AlterableConfig] = array(AlterableConfig)


class IncrementalAlterConfigsRequest(ApiMessage, key=44, kind="request", versions="0-1", flexible="1+"):
    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean()


class IncrementalAlterConfigsResponse(ApiMessage, key=44, kind="response", versions="0-1", flexible="1+"):
    throttle_time_ms: int = int32()
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)
