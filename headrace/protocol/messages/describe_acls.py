"""DescribeAcls, API key 29: the ACLs that a filter matches (KIP-140). Patterns and filters are Kafka's numbers."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, Struct, array, int8, int16, int32, string


class DescribeAclsRequest(ApiMessage, key=29, kind="request", versions="1-3", flexible="2+"):
    resource_type_filter: int = int8()
    resource_name_filter: str | None = string(nullable="0+")
    pattern_type_filter: int = int8(versions="1+", default=3)
    principal_filter: str | None = string(nullable="0+")
    host_filter: str | None = string(nullable="0+")
    operation: int = int8()
    permission_type: int = int8()


class AclDescription(Struct):
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class DescribeAclsResource(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    pattern_type: int = int8(versions="1+", default=3)
    acls: list[AclDescription] = array(AclDescription)


class DescribeAclsResponse(ApiMessage, key=29, kind="response", versions="1-3", flexible="2+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    resources: list[DescribeAclsResource] = array(DescribeAclsResource)
