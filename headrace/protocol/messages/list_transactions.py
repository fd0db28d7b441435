"""ListTransactions, API key 66: the transactional ids a coordinator knows.

Version 1 filters by how long a transaction has been running (KIP-994), version 2 by a pattern (KIP-1152).
"""

from __future__ import annotations

from headrace.protocol.schema import ApiMessage, Struct, array, int16, int32, int64, string


class ListTransactionsRequest(ApiMessage, key=66, kind="request", versions="0-2", flexible="0+"):
    state_filters: list[str] = array(string)
    producer_id_filters: list[int] = array(int64)
    duration_filter: int = int64(versions="1+", default=-1)
    transactional_id_pattern: str | None = string(versions="2+", nullable="2+", default=None)


class TransactionState(Struct):
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


class ListTransactionsResponse(ApiMessage, key=66, kind="response", versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = array(string)
    transaction_states: list[TransactionState] = array(TransactionState)
