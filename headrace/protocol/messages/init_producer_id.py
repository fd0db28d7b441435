"""InitProducerId, API key 22: a producer id and epoch for idempotent and transactional producers (KIP-98)."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, int16, int32, int64, string


class InitProducerIdRequest(ApiMessage, key=22, kind="request", versions="0-5", flexible="2+"):
    transactional_id: str | None = string(nullable="0+")
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(versions="3+", default=-1)
    producer_epoch: int = int16(versions="3+", default=-1)


class InitProducerIdResponse(ApiMessage, key=22, kind="response", versions="0-5", flexible="2+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
