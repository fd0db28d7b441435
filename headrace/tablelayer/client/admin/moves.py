"""Moves of partitions and elections of leaders, with Kafka's own requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from headrace.tablelayer.client.admin.placement import Placement
from headrace.tablelayer.client.wire.retry import raise_for

if TYPE_CHECKING:
    from headrace.tablelayer.client.wire.cluster import Cluster

MOVES_PER_REQUEST = 500


async def move_partitions(
    cluster: Cluster, wanted: Sequence[Placement | tuple[str, int]]
) -> dict[tuple[str, int], str]:
    """See `AsyncKafkaAdmin.move_partitions`."""
    refused: dict[tuple[str, int], str] = {}
    for first in range(0, len(wanted), MOVES_PER_REQUEST):
        topics: dict[str, list[ReassignablePartition]] = {}
        for each in wanted[first : first + MOVES_PER_REQUEST]:
            if isinstance(each, Placement):
                topic, index, replicas = each.topic, each.partition, list(each.replicas)
            else:
                (topic, index), replicas = each, None
            topics.setdefault(topic, []).append(
                ReassignablePartition(partition_index=index, replicas=replicas)
            )
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=cluster.config.request_timeout_ms,
            topics=[ReassignableTopic(name=name, partitions=parts) for name, parts in topics.items()],
        )
        answer = await cluster.call(
            request, AlterPartitionReassignmentsResponse, doing="move partitions", changes=True
        )
        raise_for(answer.error_code, answer.error_message, doing="move partitions")
        for name, part in ((topic.name, part) for topic in answer.responses for part in topic.partitions):
            if part.error_code:
                why = part.error_message or ErrorCode(part.error_code).name
                refused[name, part.partition_index] = why
    return refused


async def moving_partitions(cluster: Cluster) -> list[Placement]:
    """Return the partitions that are being moved, with all their replicas for now."""
    answer = await cluster.call(
        ListPartitionReassignmentsRequest(timeout_ms=cluster.config.request_timeout_ms, topics=None),
        ListPartitionReassignmentsResponse,
        doing="list moves of partitions",
    )
    raise_for(answer.error_code, answer.error_message, doing="list moves of partitions")
    return [
        Placement(topic.name, part.partition_index, tuple(part.replicas))
        for topic in answer.topics
        for part in topic.partitions
    ]


async def elect_preferred_leaders(cluster: Cluster) -> Mapping[tuple[str, int], str]:
    """See `AsyncKafkaAdmin.elect_preferred_leaders`."""
    request = ElectLeadersRequest(topic_partitions=None, timeout_ms=cluster.config.request_timeout_ms)
    answer = await cluster.call(request, ElectLeadersResponse, doing="elect leaders", changes=True)
    raise_for(answer.error_code, None, doing="elect leaders")
    return {
        (topic.topic, part.partition_id): part.error_message or ErrorCode(part.error_code).name
        for topic in answer.replica_election_results
        for part in topic.partition_result
        if part.error_code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED)
    }
