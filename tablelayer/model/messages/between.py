"""What the brokers of a cluster ask each other about tables."""

from __future__ import annotations

from uuid import UUID

from protocol.schema import ApiMessage, Struct, array, binary, int32, int64, string, struct, uuid
from tablelayer.model.messages.answers import TableResponse


class WantedEnd(Struct):
    """``offset`` is how far the lake is."""

    topic: str = string()
    partition: int = int32()
    offset: int = int64()


class DescribeEndsRequest(ApiMessage, key=10080, kind="request", versions="0", flexible="0+"):
    """Where the records of partitions end that the broker leads."""

    partitions: list[WantedEnd] = array(WantedEnd)


class FoundEnd(Struct):
    """``end`` -1: it is not led there. ``newest_ms``: of the batch that has the record at the offset that was named, -1
    if there is none.
    """

    end: int = int64(default=-1)
    newest_ms: int = int64(default=-1)


class DescribeEndsResponse(TableResponse, key=10080, kind="response", versions="0", flexible="0+"):
    """In the order of the request."""

    partitions: list[FoundEnd] = array(FoundEnd)


class StagedPlace(Struct):
    """A bucket of the table; of a partitioned table the bucket of a partition, by its id. ``count`` of chunks."""

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
    """Write what is decided for a bucket that the broker leads. ``ledger``: the decision, as the coordination store has
    it. ``place.count``: so many chunks are known to be written.
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
