"""ExpireDelegationToken, API key 40: let a token end (KIP-48)."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, binary, int16, int32, int64


class ExpireDelegationTokenRequest(ApiMessage, key=40, kind="request", versions="1-2", flexible="2+"):
    hmac: bytes = binary()
    expiry_time_period_ms: int = int64()


class ExpireDelegationTokenResponse(ApiMessage, key=40, kind="response", versions="1-2", flexible="2+"):
    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()
