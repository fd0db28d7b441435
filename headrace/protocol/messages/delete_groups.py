"""DeleteGroups, API key 42: forget empty groups and their offsets."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, Struct, array, int16, int32, string


class DeleteGroupsRequest(ApiMessage, key=42, kind="request", versions="0-2", flexible="2+"):
    groups_names: list[str] = array(string)


class DeletableGroupResult(Struct):
    group_id: str = string()
    error_code: int = int16()


class DeleteGroupsResponse(ApiMessage, key=42, kind="response", versions="0-2", flexible="2+"):
    throttle_time_ms: int = int32()
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
