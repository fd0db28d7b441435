"""RenewDelegationToken, API key 39: let a token live longer (KIP-48)."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, binary, int16, int32, int64


class RenewDelegationTokenRequest(ApiMessage, key=39, kind="request", versions="1-2", flexible="2+"):
    hmac: bytes = binary()
    renew_period_ms: int = int64()


class RenewDelegationTokenResponse(ApiMessage, key=39, kind="response", versions="1-2", flexible="2+"):
    error_code: int = int16()
    expiry_timestamp_ms: int = int64()
    throttle_time_ms: int = int32()
