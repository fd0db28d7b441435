"""CreateAcls, API key 30: allow or deny operations to principals (KIP-140)."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, Struct, array, int8, int16, int32, string


class AclCreation(Struct):
    resource_type: int = int8()
    resource_name: str = string()
    resource_pattern_type: int = int8(versions="1+", default=3)
    principal: str = string()
    host: str = string()
    operation: int = int8()
    permission_type: int = int8()


class CreateAclsRequest(ApiMessage, key=30, kind="request", versions="1-3", flexible="2+"):
    creations: list[AclCreation] = array(AclCreation)


class AclCreationResult(Struct):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class CreateAclsResponse(ApiMessage, key=30, kind="response", versions="1-3", flexible="2+"):
    throttle_time_ms: int = int32()
    results: list[AclCreationResult] = array(AclCreationResult)
