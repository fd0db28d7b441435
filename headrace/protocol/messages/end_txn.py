"""EndTxn, API key 26: commit or abort a transaction (KIP-98).

Version 5 is of transactions version 2 (KIP-890): each end raises the epoch, which the response gives.
"""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, boolean, int16, int32, int64, string


class EndTxnRequest(ApiMessage, key=26, kind="request", versions="0-5", flexible="3+"):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(ApiMessage, key=26, kind="response", versions="0-5", flexible="3+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64(versions="5+", default=-1, ignorable=True)
    producer_epoch: int = int16(versions="5+", default=-1, ignorable=True)
