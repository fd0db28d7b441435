"""FindCoordinator, API key 10: the broker that coordinates a group (key type 0) or transactional id (1).

Version 6 allows key type 2, share groups.

One key up to version 3, several in `coordinator_keys` from version 4 on (KIP-699).
"""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, Struct, array, int8, int16, int32, string


class FindCoordinatorRequest(ApiMessage, key=10, kind="request", versions="0-6", flexible="3+"):
    key: str = string(versions="0-3")
    key_type: int = int8(versions="1+")
    coordinator_keys: list[str] = array(string, versions="4+")


class Coordinator(Struct):
    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class FindCoordinatorResponse(ApiMessage, key=10, kind="response", versions="0-6", flexible="3+"):
    throttle_time_ms: int = int32(versions="1+", ignorable=True)
    error_code: int = int16(versions="0-3")
    error_message: str | None = string(versions="1-3", nullable="1-3", ignorable=True)
    node_id: int = int32(versions="0-3")
    host: str = string(versions="0-3")
    port: int = int32(versions="0-3")
    coordinators: list[Coordinator] = array(Coordinator, versions="4+")
