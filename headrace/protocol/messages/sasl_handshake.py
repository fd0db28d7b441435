"""SaslHandshake, API key 17: which mechanism a client wants to authenticate with (KIP-43)."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, array, int16, string


class SaslHandshakeRequest(ApiMessage, key=17, kind="request", versions="0-1", flexible="none"):
    mechanism: str = string()


class SaslHandshakeResponse(ApiMessage, key=17, kind="response", versions="0-1", flexible="none"):
    error_code: int = int16()
    mechanisms: list[str] = array(string)
