"""Kafka's ListOffsets, and the moments that callers give to reads: times or offsets."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.client.wire.retry import Deadline

Moment = int | datetime | Mapping[int, int]
"""A time (milliseconds or datetime), or offsets by bucket."""
AnyMoment = Moment | Mapping[str, Mapping[int, int]]
"""A `Moment`; for a partitioned table offsets are by partition and bucket."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EARLIEST = -2
LATEST = -1


def time_ms(time: int | datetime) -> int:
    """Return milliseconds since 1970; a datetime without a time zone is UTC."""
    if not isinstance(time, datetime):
        return time
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return (zoned - _EPOCH) // timedelta(milliseconds=1)


class OffsetAnswer(NamedTuple):
    """One partition's answer to ListOffsets; `offset` is -1 if there is none at or after the time."""

    error_code: int
    error_message: str | None
    offset: int
    timestamp: int


async def list_offsets(
    cluster: Cluster,
    topic: str,
    timestamp: int,
    leader: int,
    partitions: list[int],
    deadline: Deadline,
    *,
    committed: bool = False,
) -> dict[int, OffsetAnswer]:
    """Send Kafka's ListOffsets to one leader, once; `committed` is for readers of committed records only."""
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1 if committed else 0,
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[ListOffsetsPartition(partition_index=p, timestamp=timestamp) for p in partitions],
            )
        ],
    )
    answer = await cluster.send(request, ListOffsetsResponse, node_id=leader, deadline=deadline)
    return {
        entry.partition_index: OffsetAnswer(entry.error_code, None, entry.offset, entry.timestamp)
        for found in answer.topics
        for entry in found.partitions
    }
