"""SaslAuthenticate, API key 36: a step of a SASL exchange (KIP-152)."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, binary, int16, int64, string


class SaslAuthenticateRequest(ApiMessage, key=36, kind="request", versions="0-2", flexible="2+"):
    auth_bytes: bytes = binary()


class SaslAuthenticateResponse(ApiMessage, key=36, kind="response", versions="0-2", flexible="2+"):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    auth_bytes: bytes = binary()
    session_lifetime_ms: int = int64(versions="1+", ignorable=True)
