"""What the brokers of a cluster ask each other about tables."""

from __future__ import annotations

from protocol.schema import ApiMessage, Struct, array, int32, int64, string
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
