"""UnregisterBroker, API key 64: forget a broker that is gone (KIP-730)."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, int16, int32, string


class UnregisterBrokerRequest(ApiMessage, key=64, kind="request", versions="0", flexible="0+"):
    broker_id: int = int32()


class UnregisterBrokerResponse(ApiMessage, key=64, kind="response", versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
