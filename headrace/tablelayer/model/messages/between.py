"""Requests about tables that the brokers of a cluster send each other."""

from __future__ import annotations

from uuid import UUID

from headrace.protocol.schema import (
    ApiMessage,
    Struct,
    array,
    binary,
    boolean,
    int16,
    int32,
    int64,
    string,
    struct,
    uuid,
)
from headrace.tablelayer.model.messages.answers import TableResponse


class WantedEnd(Struct):
    """A partition, and the `offset` up to which the lake has its records."""

    topic: str = string()
    partition: int = int32()
    offset: int = int64()


class DescribeEndsRequest(ApiMessage, key=10080, kind="request", versions="0", flexible="0+"):
    """Ask where the records of partitions that the broker leads end.

    `hold_ms`: a partition whose records are all in the lake accepts no more for this time, because it is about to be
    deleted.
    """

    partitions: list[WantedEnd] = array(WantedEnd)
    hold_ms: int = int32(default=0, tag=0)


class FoundEnd(Struct):
    """The end of a partition's records. `end` is -1 if the broker does not lead the partition.

    `newest_ms`: timestamp of the batch that has the record at the requested offset, -1 if there is none.
    `held_epoch`: the leader epoch in which the partition accepts nothing now, -1 if it accepts records.
    """

    end: int = int64(default=-1)
    newest_ms: int = int64(default=-1)
    held_epoch: int = int32(default=-1, tag=0)


class DescribeEndsResponse(TableResponse, key=10080, kind="response", versions="0", flexible="0+"):
    """The ends, in the order of the request."""

    partitions: list[FoundEnd] = array(FoundEnd)


class StagedPlace(Struct):
    """A bucket of the table, or a bucket of one partition, by the partition's id. `count` is a number of chunks."""

    partition_id: UUID = uuid()
    bucket: int = int32()
    count: int = int32()


class StagedOfAttempt(Struct):
    attempt: str = string()
    places: list[StagedPlace] = array(StagedPlace)


class CountStagedRequest(ApiMessage, key=10090, kind="request", versions="0", flexible="0+"):
    """Ask how much the attempts have staged with the broker. The batch is about to be committed, so it is not idle."""

    table_id: UUID = uuid()
    writer: str = string()
    batch_id: int = int64()
    attempts: list[str] = array(string)


class CountStagedResponse(TableResponse, key=10090, kind="response", versions="0", flexible="0+"):
    """The attempts that have staged something with the broker."""

    attempts: list[StagedOfAttempt] = array(StagedOfAttempt)


class ApplyStagedRequest(ApiMessage, key=10091, kind="request", versions="0", flexible="0+"):
    """Write a decided batch to a bucket that the broker leads.

    `ledger`: the decision, as the coordination store has it. `place.count`: the number of chunks already known to be
    written.
    """

    table_id: UUID = uuid()
    ledger: bytes = binary()
    place: StagedPlace = struct(StagedPlace)


class ApplyStagedResponse(TableResponse, key=10091, kind="response", versions="0", flexible="0+"):
    """`written`: the number of chunks of the bucket that are written, which is all of them."""

    written: int = int32()


class DropStagedRequest(ApiMessage, key=10092, kind="request", versions="0", flexible="0+"):
    """Drop the rows that the broker has staged for these attempts; without attempts, for all batches up to this one."""

    table_id: UUID = uuid()
    writer: str = string()
    batch_id: int = int64()
    attempts: list[str] = array(string)


class DropStagedResponse(TableResponse, key=10092, kind="response", versions="0", flexible="0+"):
    pass


class KeptCells(Struct):
    """Cells of a column that stay as they are stored: one byte per row."""

    column: int = int32()
    cells: bytes = binary()


class PrepareRowsRequest(ApiMessage, key=10093, kind="request", versions="0", flexible="0+"):
    """Check rows that were produced to another broker for a bucket that this broker leads, and hold the bucket.

    The bucket is held until the same is done in all buckets of the write, some seconds at most. `rows` is an Arrow
    message in the schema `schema_id`; `deletes` has one byte per row, `sent_as` eight, little-endian. The other
    fields describe the writer.
    """

    topic: str = string()
    bucket: int = int32()
    schema_id: int = int32()
    rows: bytes = binary()
    deletes: bytes | None = binary(nullable="0+", default=None)
    sent_as: bytes | None = binary(nullable="0+", default=None)
    kept: list[KeptCells] = array(KeptCells)
    producer_id: int = int64()
    producer_epoch: int = int16()
    base_sequence: int = int32()
    sequence_count: int = int32()


class PrepareRowsResponse(TableResponse, key=10093, kind="response", versions="0", flexible="0+"):
    """`is_busy`: other writers use the bucket; ask again.

    `row` and `column`: where the error is, -1 for no row. `base_offset` is set for rows that are logged already;
    otherwise `ticket` stands for the prepared rows. `leader_epoch`: the epoch in which they were or would be logged.
    """

    is_busy: bool = boolean()
    row: int = int32(default=-1)
    column: str | None = string(nullable="0+", default=None)
    reason: str = string()
    ticket: UUID = uuid()
    base_offset: int = int64(default=-1)
    last_offset: int = int64(default=-1)
    leader_epoch: int = int32(default=-1, tag=0)


class LogRowsRequest(ApiMessage, key=10094, kind="request", versions="0", flexible="0+"):
    """Log prepared rows, or with `release` abandon them."""

    ticket: UUID = uuid()
    release: bool = boolean()


class LogRowsResponse(TableResponse, key=10094, kind="response", versions="0", flexible="0+"):
    base_offset: int = int64(default=-1)
    last_offset: int = int64(default=-1)


class AwaitRowsRequest(ApiMessage, key=10095, kind="request", versions="0", flexible="0+"):
    """Wait until the bucket's records below `end_offset` satisfy `acks`. -1 is the end of its log now.

    `leader_epoch`: the epoch in which the last of these records was logged. Under another epoch the record was lost
    and another one has its offset.
    """

    topic: str = string()
    bucket: int = int32()
    end_offset: int = int64()
    acks: int = int16()
    timeout_ms: int = int32()
    leader_epoch: int = int32(default=-1, tag=0)


class AwaitRowsResponse(TableResponse, key=10095, kind="response", versions="0", flexible="0+"):
    pass


class CopiedFile(Struct):
    name: str = string()
    size: int = int64()


class CopyStoreRequest(ApiMessage, key=10096, kind="request", versions="0", flexible="0+"):
    """Copy the broker's key-value store of a bucket to another replica.

    Without `copy_id` the broker makes a copy and keeps it while pieces of it are requested. `file` and `position`
    name a piece; `done` releases the copy.
    """

    topic: str = string()
    bucket: int = int32()
    copy_id: UUID = uuid()
    file: str = string()
    position: int = int64()
    done: bool = boolean()


class CopyStoreResponse(TableResponse, key=10096, kind="response", versions="0", flexible="0+"):
    """`files`: the files of a new copy. `data`: the bytes at a position, empty at a file's end."""

    copy_id: UUID = uuid()
    files: list[CopiedFile] = array(CopiedFile)
    data: bytes = binary()


class KeepStagedRequest(ApiMessage, key=10097, kind="request", versions="0-1", flexible="0+"):
    """Keep a chunk that was staged with the leader of a bucket, so that the next leader has it.

    `place.count` is the chunk's number. `durable`: the chunk must survive a power failure. `update`: as in
    `StageRowsRequest`. `writer_key`: the writer as file names have it, given where `writer` is not known any more.
    """

    table_id: UUID = uuid()
    writer: str = string()
    batch_id: int = int64()
    attempt: str = string()
    place: StagedPlace = struct(StagedPlace)
    target_columns: list[int] | None = array(int32, nullable="0+", default=None)
    update: bool = boolean(versions="1+")
    batch: bytes = binary()
    durable: bool = boolean()
    writer_key: str = string(default="", ignorable=True, tag=0)


class KeepStagedResponse(TableResponse, key=10097, kind="response", versions="0-1", flexible="0+"):
    pass


class HandOverStagedRequest(ApiMessage, key=10098, kind="request", versions="0", flexible="0+"):
    """Send this broker's chunks of an attempt, from number `place.count` on, to `broker_id`, which leads the bucket
    now.

    That broker was not an in-sync replica when they were staged.
    """

    table_id: UUID = uuid()
    writer: str = string()
    batch_id: int = int64()
    attempt: str = string()
    place: StagedPlace = struct(StagedPlace)
    broker_id: int = int32()


class HandOverStagedResponse(TableResponse, key=10098, kind="response", versions="0", flexible="0+"):
    pass


class KeepDeadLettersRequest(ApiMessage, key=10099, kind="request", versions="0", flexible="0+"):
    """Append records that a table refused to its dead-letter topic, which this broker leads.

    This broker checks no rights: the client that named the topic in the table's options had the right to write to it.
    The answer comes when the records satisfy acks=all.
    """

    topic: str = string()
    partition: int = int32()
    batch: bytes = binary()
    timeout_ms: int = int32()


class KeepDeadLettersResponse(TableResponse, key=10099, kind="response", versions="0", flexible="0+"):
    pass
