"""Writing rows: appends to log tables, upserts and deletes of primary-key tables."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from headrace.protocol.schema import (
    ApiMessage,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    records,
    uuid,
)
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
    """The changelog offsets of a batch's rows: [base_offset, end_offset).

    `logged_count`: their number, if it was asked for, and -1 if it is not known. No row has an offset, too.
    """

    base_offset: int = int64(default=-1)
    end_offset: int = int64(default=-1)
    logged_count: int = int32(versions="1+", default=-1)


class AppendRowsRequest(ApiMessage, key=10010, kind="request", versions="0-1", flexible="0+"):
    """`definition_digest`: rows are refused with SCHEMA_CHANGED unless it is that of the table's definition
    (`model.table.digest`); 0 takes any. A batch that was written before has the same answer in any case.
    """

    table_id: UUID = uuid()
    definition_digest: int = int64(versions="1+", default=0)
    acks: int = int16(default=-1)
    timeout_ms: int = int32()
    buckets: list[WriteBucket] = array(WriteBucket)


class AppendRowsResponse(TableResponse, key=10010, kind="response", versions="0-1", flexible="0+"):
    buckets: list[WrittenBucket] = array(WrittenBucket)


class PutRowsRequest(ApiMessage, key=10011, kind="request", versions="0-1", flexible="0+"):
    """Change types of the batches: 3 is an upsert, 4 a delete. Without change types every row is an upsert.

    `definition_digest` is as in AppendRowsRequest. `counted` asks for `logged_count`, which tells whether rows existed,
    so it needs the right to read keys.
    """

    table_id: UUID = uuid()
    definition_digest: int = int64(versions="1+", default=0)
    counted: bool = boolean(versions="1+")
    acks: int = int16(default=-1)
    timeout_ms: int = int32()
    target_columns: list[int] | None = array(int32, nullable="0+", default=None)
    write_mode: int = int8()
    buckets: list[WriteBucket] = array(WriteBucket)


class PutRowsResponse(TableResponse, key=10011, kind="response", versions="0-1", flexible="0+"):
    buckets: list[WrittenBucket] = array(WrittenBucket)
