"""ListConfigResources, API key 74: the resources that have a configuration (KIP-1142).

Version 0 was ListClientMetricsResources and asks only for those. An empty list of types means all.
"""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, Struct, array, int8, int16, int32, string


class ListConfigResourcesRequest(ApiMessage, key=74, kind="request", versions="0-1", flexible="0+"):
    resource_types: list[int] = array(int8, versions="1+")


class ConfigResource(Struct):
    resource_name: str = string()
    resource_type: int = int8(versions="1+", default=16, ignorable=True)


class ListConfigResourcesResponse(ApiMessage, key=74, kind="response", versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    config_resources: list[ConfigResource] = array(ConfigResource)
