"""AddOffsetsToTxn, API key 25: a transaction is going to commit offsets of a consumer group (KIP-98)."""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, int16, int32, int64, string


class AddOffsetsToTxnRequest(ApiMessage, key=25, kind="request", versions="0-4", flexible="3+"):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class AddOffsetsToTxnResponse(ApiMessage, key=25, kind="response", versions="0-4", flexible="3+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
