"""Heartbeat, API key 12: a member of a group is alive, and learns whether the group rebalances."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, int16, int32, string


class HeartbeatRequest(ApiMessage, key=12, kind="request", versions="0-4", flexible="4+"):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(versions="3+", nullable="3+", default=None)


class HeartbeatResponse(ApiMessage, key=12, kind="response", versions="0-4", flexible="4+"):
    throttle_time_ms: int = int32(versions="1+", ignorable=True)
    error_code: int = int16()
