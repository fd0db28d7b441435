"""What the brokers of a cluster ask each other about tables."""

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
    """`offset` is how far the lake is."""

    topic: str = string()
    partition: int = int32()
    offset: int = int64()


class DescribeEndsRequest(ApiMessage, key=10080, kind="request", versions="0", flexible="0+"):
    """Where the records of partitions end that the broker leads. `hold_ms`: those that the lake has wholly take no
    more for so long, because they are about to be deleted.
    """

    partitions: list[WantedEnd] = array(WantedEnd)
    hold_ms: int = int32(default=0, tag=0)


class FoundEnd(Struct):
    """`end` -1: it is not led there. `newest_ms`: of the batch that has the record at the offset that was named, -1
    if there is none. `held_epoch`: under which leader epoch it takes nothing now, -1 if it does.
    """

    end: int = int64(default=-1)
    newest_ms: int = int64(default=-1)
    held_epoch: int = int32(default=-1, tag=0)


class DescribeEndsResponse(TableResponse, key=10080, kind="response", versions="0", flexible="0+"):
    """In the order of the request."""

    partitions: list[FoundEnd] = array(FoundEnd)


class StagedPlace(Struct):
    """A bucket of the table; of a partitioned table the bucket of a partition, by its id. `count` of chunks."""

    partition_id: UUID = uuid()
    bucket: int = int32()
    count: int = int32()


class StagedOfAttempt(Struct):
    attempt: str = string()
    places: list[StagedPlace] = array(StagedPlace)


class CountStagedRequest(ApiMessage, key=10090, kind="request", versions="0", flexible="0+"):
    """How much attempts have staged with the broker. The batch is about to be committed: it is not idle."""

    table_id: UUID = uuid()
    writer: str = string()
    batch_id: int = int64()
    attempts: list[str] = array(string)


class CountStagedResponse(TableResponse, key=10090, kind="response", versions="0", flexible="0+"):
    """Without the attempts of which there is nothing."""

    attempts: list[StagedOfAttempt] = array(StagedOfAttempt)


class ApplyStagedRequest(ApiMessage, key=10091, kind="request", versions="0", flexible="0+"):
    """Write what is decided for a bucket that the broker leads. `ledger`: the decision, as the coordination store has
    it. `place.count`: so many chunks are known to be written.
    """

    table_id: UUID = uuid()
    ledger: bytes = binary()
    place: StagedPlace = struct(StagedPlace)


class ApplyStagedResponse(TableResponse, key=10091, kind="response", versions="0", flexible="0+"):
    """So many chunks of the bucket are written, all of them."""

    written: int = int32()


class DropStagedRequest(ApiMessage, key=10092, kind="request", versions="0", flexible="0+"):
    """What the broker has of these attempts is not needed any more; without attempts, of batches up to this one."""

    table_id: UUID = uuid()
    writer: str = string()
    batch_id: int = int64()
    attempts: list[str] = array(string)


class DropStagedResponse(TableResponse, key=10092, kind="response", versions="0", flexible="0+"):
    pass


class KeptCells(Struct):
    """Cells of a column that stay as they are stored: a byte for each row."""

    column: int = int32()
    cells: bytes = binary()


class PrepareRowsRequest(ApiMessage, key=10093, kind="request", versions="0", flexible="0+"):
    """Rows that were produced to another broker, for a bucket that this one leads: check them, and hold the bucket for
    as long as it takes to do the same everywhere, which is some seconds at most. `rows` is an Arrow message in the
    schema of that id; `deletes` a byte for each row, `sent_as` eight, little-endian. The rest is who writes.
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
    """`is_busy`: others write to the bucket, ask again. `row` and `column`: what the error is about, -1 for none.
    `base_offset` is set for what is there already; otherwise `ticket` is for what is prepared. `leader_epoch`: in
    which it was logged, or would be.
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
    """Log what is prepared; `release`: let go of it instead."""

    ticket: UUID = uuid()
    release: bool = boolean()


class LogRowsResponse(TableResponse, key=10094, kind="response", versions="0", flexible="0+"):
    base_offset: int = int64(default=-1)
    last_offset: int = int64(default=-1)


class AwaitRowsRequest(ApiMessage, key=10095, kind="request", versions="0", flexible="0+"):
    """Wait for what `acks` demands of what the bucket has below `end_offset`; -1 is where its log ends now.
    `leader_epoch`: in which the last of it was logged; under another one it was lost, and something else is there.
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
    """The key-value store that the broker has of a bucket, for another replica of it. Without `copy_id` a copy is
    made, which is kept while pieces of it are asked for; `file` and `position` name one; `done` lets go of it.
    """

    topic: str = string()
    bucket: int = int32()
    copy_id: UUID = uuid()
    file: str = string()
    position: int = int64()
    done: bool = boolean()


class CopyStoreResponse(TableResponse, key=10096, kind="response", versions="0", flexible="0+"):
    """`files`: of a copy that was made; `data`: the bytes at a position, none at a file's end."""

    copy_id: UUID = uuid()
    files: list[CopiedFile] = array(CopiedFile)
    data: bytes = binary()


class KeepStagedRequest(ApiMessage, key=10097, kind="request", versions="0-1", flexible="0+"):
    """A chunk that was staged with the leader of a bucket, for another replica of it: whoever leads next has it.
    `place.count` is its number. `durable`: it has to survive a power cut. `update`: as with `StageRowsRequest`.
    `writer_key`: what names of files have of the writer, in the place of `writer` where that is not known any more.
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
    """Have `broker_id`, which leads the place now, keep the chunks that this broker has of an attempt, from number
    `place.count` on: it was no replica in sync when they were staged.
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
    """Append records that a table has refused to its dead-letter topic, which another broker's table names: whoever had
    that written down was allowed to write there. Answered when they count as acknowledged by all.
    """

    topic: str = string()
    partition: int = int32()
    batch: bytes = binary()
    timeout_ms: int = int32()


class KeepDeadLettersResponse(TableResponse, key=10099, kind="response", versions="0", flexible="0+"):
    pass
