"""ListGroups, API key 16: the groups that this broker coordinates, filtered by state (KIP-518) and type (KIP-848)."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, Struct, array, int16, int32, string


class ListGroupsRequest(ApiMessage, key=16, kind="request", versions="0-5", flexible="3+"):
    states_filter: list[str] = array(string, versions="4+")
    types_filter: list[str] = array(string, versions="5+")


class ListedGroup(Struct):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(versions="4+", ignorable=True)
    group_type: str = string(versions="5+", ignorable=True)


class ListGroupsResponse(ApiMessage, key=16, kind="response", versions="0-5", flexible="3+"):
    throttle_time_ms: int = int32(versions="1+", ignorable=True)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)
