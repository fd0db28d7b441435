"""Writing rows: appends to log tables, upserts and deletes of primary-key tables."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from headrace.protocol.schema import ApiMessage, Struct, array, int8, int16, int32, int64, records, uuid
from headrace.tablelayer.model.messages.answers import BucketAnswer, TableResponse

WRITE_MODE_MERGE = 0
"""PutRows: rows go through the table's merge rules."""
WRITE_MODE_OVERWRITE = 1
"""PutRows: rows replace existing rows."""
WRITE_MODE_UPDATE = 2
"""PutRows: the target columns of existing rows are replaced; no row is created."""


class WriteBucket(Struct):
    """One Arrow log batch for one bucket. With target columns, it has only these."""

    bucket: int = int32()
    batch: Any = records()


class WrittenBucket(BucketAnswer):
    """The changelog offsets of a batch's rows: [base_offset, end_offset)."""

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
    """Change types of the batches: 3 is an upsert, 4 a delete. Without change types every row is an upsert."""

    table_id: UUID = uuid()
    acks: int = int16(default=-1)
    timeout_ms: int = int32()
    target_columns: list[int] | None = array(int32, nullable="0+", default=None)
    write_mode: int = int8()
    buckets: list[WriteBucket] = array(WriteBucket)


class PutRowsResponse(TableResponse, key=10011, kind="response", versions="0", flexible="0+"):
    buckets: list[WrittenBucket] = array(WrittenBucket)
