"""Committed offsets of a consumer group, by Kafka's own OffsetCommit and OffsetFetch.

They are the same offsets that a Kafka consumer of topic `db.t` with this `group.id` commits: a table scan can continue
where a Kafka consumer stopped, and the reverse. The group must have no live members: the server refuses other clients'
commits while Kafka consumers are members.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from headrace.tablelayer.client.wire.cluster import Cluster
from headrace.tablelayer.client.wire.retry import Deadline, raise_for, retrying

T = TypeVar("T")

_GROUPS_SINCE = 8


async def commit_offsets(cluster: Cluster, group: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Commit the next offset to read of each partition."""

    async def ask(node_id: int, deadline: Deadline) -> None:
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            topics=[
                OffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=""
                        )
                        for partition, offset in offsets.items()
                    ],
                )
            ],
        )
        answer = await cluster.send(request, OffsetCommitResponse, node_id=node_id, deadline=deadline)
        for found in answer.topics:
            for entry in found.partitions:
                raise_for(entry.error_code, None, doing=f"commit offsets of group {group} in {topic}")

    if offsets:
        await at_coordinator(cluster, group, ask, changes=True)


async def fetch_offsets(cluster: Cluster, group: str) -> dict[tuple[str, int], int]:
    """Return all committed offsets of a group, by (topic, partition)."""

    async def ask(node_id: int, deadline: Deadline) -> dict[tuple[str, int], int]:
        doing = f"fetch the offsets of group {group}"
        connection = await cluster.connection(node_id)
        if connection.version_for(OffsetFetchRequest) >= _GROUPS_SINCE:
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
        else:
            request = OffsetFetchRequest(group_id=group, topics=None)
        answer = await cluster.send(request, OffsetFetchResponse, node_id=node_id, deadline=deadline)
        raise_for(answer.error_code, None, doing=doing)
        offsets: dict[tuple[str, int], int] = {}
        for found_group in answer.groups:
            raise_for(found_group.error_code, None, doing=doing)
        topics = [topic for found_group in answer.groups for topic in found_group.topics] or answer.topics
        for topic in topics:
            for entry in topic.partitions:
                raise_for(entry.error_code, None, doing=doing)
                if entry.committed_offset >= 0:
                    offsets[topic.name, entry.partition_index] = entry.committed_offset
        return offsets

    return await at_coordinator(cluster, group, ask)


async def at_coordinator(
    cluster: Cluster,
    group: str,
    ask: Callable[[int, Deadline], Awaitable[T]],
    *,
    repeatable: bool = True,
    changes: bool = False,
) -> T:
    """Find a group's coordinator and run `ask` with its number, again until it succeeds as in `retrying`."""

    async def attempt(deadline: Deadline) -> T:
        return await ask(await _find_coordinator(cluster, group, deadline), deadline)

    return await retrying(attempt, config=cluster.config, repeatable=repeatable, changes=changes)


async def _find_coordinator(cluster: Cluster, group: str, deadline: Deadline) -> int:
    """Return a consumer group's coordinator and remember its address. One attempt."""
    connection = await cluster.connection(None)
    if connection.version_for(FindCoordinatorRequest) >= 4:
        request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
        answer = await cluster.send(request, FindCoordinatorResponse, deadline=deadline)
        found = answer.coordinators[0]
        raise_for(found.error_code, found.error_message, doing=f"find the coordinator of group {group}")
        return cluster.remember(found.node_id, found.host, found.port)
    answer = await cluster.send(
        FindCoordinatorRequest(key=group, key_type=0), FindCoordinatorResponse, deadline=deadline
    )
    raise_for(answer.error_code, answer.error_message, doing=f"find the coordinator of group {group}")
    return cluster.remember(answer.node_id, answer.host, answer.port)
