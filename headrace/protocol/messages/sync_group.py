"""SyncGroup, API key 14: the leader sends the assignment, and each member gets its part."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, Struct, array, binary, int16, int32, string


class SyncGroupRequestAssignment(Struct):
    member_id: str = string()
    assignment: bytes = binary()


class SyncGroupRequest(ApiMessage, key=14, kind="request", versions="0-5", flexible="4+"):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(versions="3+", nullable="3+", default=None)
    protocol_type: str | None = string(versions="5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string(versions="5+", nullable="5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


class SyncGroupResponse(ApiMessage, key=14, kind="response", versions="0-5", flexible="4+"):
    throttle_time_ms: int = int32(versions="1+", ignorable=True)
    error_code: int = int16()
    protocol_type: str | None = string(versions="5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string(versions="5+", nullable="5+", default=None, ignorable=True)
    assignment: bytes = binary()
