"""Writing rows: appends to log tables, upserts and deletes of primary-key tables."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from headrace.protocol.schema import ApiMessage, Struct, array, int8, int16, int32, int64, records, uuid
from headrace.tablelayer.model.messages.answers import BucketAnswer, TableResponse

WRITE_MODE_MERGE = 0
"""PutRows: rows go through the table's merge rules."""
WRITE_MODE_OVERWRITE = 1
"""PutRows: rows replace what is there."""
WRITE_MODE_UPDATE = 2
"""PutRows: the target columns of rows that are there are replaced; no row is made."""


class WriteBucket(Struct):
    """One Arrow log batch for one bucket (of the target columns only, when there are target columns)."""

    bucket: int = int32()
    batch: Any = records()


class WrittenBucket(BucketAnswer):
    """Where a batch went: its rows have the changelog offsets [base_offset, end_offset)."""

    base_offset: int = int64(default=-1)
    end_offset: int = int64(default=-1)


class AppendRowsRequest(ApiMessage, key=10010, kind="request", versions="0", flexible="0+"):
    table_id: UUID = uuid()
    acks: int = int16(default=-1)
    timeout_ms: int = int32()
    buckets: list[WriteBucket] = array(WriteBucket)


class AppendRowsResponse(TableResponse, key=10010, kind="response", versions="0", flexible="0+"):
    buckets: list[WrittenBucket] = array(WrittenBucket)


class PutRowsRequest(ApiMessage, key=10011, kind="request", versions="0", flexible="0+"):
    """Change types of the batches: 3 upserts, 4 deletes; without change types every row is an upsert."""

    table_id: UUID = uuid()
    acks: int = int16(default=-1)
    timeout_ms: int = int32()
    target_columns: list[int] | None = array(int32, nullable="0+", default=None)
    write_mode: int = int8()
    buckets: list[WriteBucket] = array(WriteBucket)


class PutRowsResponse(TableResponse, key=10011, kind="response", versions="0", flexible="0+"):
    buckets: list[WrittenBucket] = array(WrittenBucket)
