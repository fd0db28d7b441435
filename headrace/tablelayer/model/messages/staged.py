"""Staged rows: they become part of the table when their writer commits them."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from headrace.protocol.schema import ApiMessage, Struct, array, boolean, int32, int64, records, string, uuid
from headrace.tablelayer.model.messages.answers import TableResponse


class StagedChunk(Struct):
    """A write batch as in AppendRows or PutRows. `number` counts an attempt's chunks for this bucket from 0.

    `partition_id`: the bucket's partition in a partitioned table.
    """

    partition_id: UUID = uuid(versions="1+")
    bucket: int = int32()
    number: int = int32()
    batch: Any = records()


class StageRowsRequest(ApiMessage, key=10040, kind="request", versions="0-2", flexible="0+"):
    """Stage rows that become part of the table when the writer commits the attempt.

    `writer` keeps its name over restarts, `batch_id` grows, and `attempt` is new for every run of a task. A chunk
    that was staged before is not stored again. `update`: when rows are committed, they replace the target columns of
    existing rows and create no row (`WRITE_MODE_UPDATE`).
    """

    table_id: UUID = uuid()
    writer: str = string()
    batch_id: int = int64()
    attempt: str = string()
    target_columns: list[int] | None = array(int32, nullable="0+", default=None)
    update: bool = boolean(versions="2+")
    chunks: list[StagedChunk] = array(StagedChunk)


class StageRowsResponse(TableResponse, key=10040, kind="response", versions="0-2", flexible="0+"):
    """`decided`: this batch or a later one is committed already; nothing was stored."""

    decided: bool = boolean()


class StagedCount(Struct):
    """See `StagedChunk`."""

    partition_id: UUID = uuid(versions="1+")
    bucket: int = int32()
    count: int = int32()


class StagedAttempt(Struct):
    """An attempt and the number of chunks that it has staged for each bucket."""

    attempt: str = string()
    chunks: list[StagedCount] = array(StagedCount)


class CommitStagedRequest(ApiMessage, key=10041, kind="request", versions="0-1", flexible="0+"):
    """Write the rows that these attempts have staged, once, in this order. The answer comes when all are visible.

    A batch that is decided already stays as it is, whichever attempts are named. `single`: the writer will not send
    another batch, so the server may soon forget it.
    """

    table_id: UUID = uuid()
    writer: str = string()
    batch_id: int = int64()
    attempts: list[StagedAttempt] = array(StagedAttempt)
    single: bool = boolean()


class CommitStagedResponse(TableResponse, key=10041, kind="response", versions="0-1", flexible="0+"):
    pass


class AbortStagedRequest(ApiMessage, key=10042, kind="request", versions="0", flexible="0+"):
    """Drop the rows that these attempts have staged, unless their batch is decided."""

    table_id: UUID = uuid()
    writer: str = string()
    batch_id: int = int64()
    attempts: list[str] = array(string)


class AbortStagedResponse(TableResponse, key=10042, kind="response", versions="0", flexible="0+"):
    pass
