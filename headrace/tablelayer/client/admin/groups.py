"""Consumer groups: their members and positions, with Kafka's own requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headrace.protocol.consumer_protocol import read_assignment
from headrace.protocol.errors import DecodeError, ErrorCode, KafkaError
from headrace.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from headrace.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from headrace.tablelayer.client.admin.kafka_answers import GroupDescription, GroupListing, GroupMember
from headrace.tablelayer.client.errors import UnsupportedRequest
from headrace.tablelayer.client.read.group_offsets import at_coordinator, fetch_offsets
from headrace.tablelayer.client.wire.retry import Deadline, raise_for, retrying

if TYPE_CHECKING:
    from headrace.tablelayer.client.wire.cluster import Cluster


async def list_groups(cluster: Cluster) -> list[GroupListing]:
    """See `AsyncKafkaAdmin.list_groups`."""

    async def attempt(deadline: Deadline) -> list[GroupListing]:
        listed: dict[str, GroupListing] = {}
        for broker in (await cluster.metadata([], deadline)).brokers:
            answer = await cluster.send(
                ListGroupsRequest(), ListGroupsResponse, node_id=broker.node_id, deadline=deadline
            )
            raise_for(answer.error_code, None, doing=f"list the groups of broker {broker.node_id}")
            for group in answer.groups:
                listed[group.group_id] = GroupListing(group.group_id, group.protocol_type, group.group_state)
        return [listed[name] for name in sorted(listed)]

    return await retrying(attempt, config=cluster.config, repeatable=True)


async def describe_group(cluster: Cluster, group: str) -> GroupDescription:
    """See `AsyncKafkaAdmin.describe_group`."""

    async def ask(node_id: int, deadline: Deadline) -> GroupDescription:
        request = DescribeGroupsRequest(groups=[group])
        answer = await cluster.send(request, DescribeGroupsResponse, node_id=node_id, deadline=deadline)
        found = answer.groups[0]
        if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND or found.group_state == "Dead":
            modern = await _consumer_group(cluster, group, node_id, deadline)
            if modern is not None:
                return modern
        raise_for(found.error_code, found.error_message, doing=f"describe group {group}")
        members = [
            GroupMember(
                m.member_id,
                m.client_id,
                m.client_host,
                m.group_instance_id,
                _assigned(m.member_assignment),
            )
            for m in found.members
        ]
        positions = await fetch_offsets(cluster, group)
        if found.group_state == "Dead" and not positions:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group}")
        return GroupDescription(group, found.group_state, found.protocol_data, members, positions)

    return await at_coordinator(cluster, group, ask)


async def _consumer_group(
    cluster: Cluster, group: str, node_id: int, deadline: Deadline
) -> GroupDescription | None:
    """Return a group of the consumer protocol (KIP-848); None if it is not one."""
    try:
        answer = await cluster.send(
            ConsumerGroupDescribeRequest(group_ids=[group]),
            ConsumerGroupDescribeResponse,
            node_id=node_id,
            deadline=deadline,
        )
    except UnsupportedRequest:
        return None
    found = answer.groups[0]
    if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        return None
    raise_for(found.error_code, found.error_message, doing=f"describe group {group}")
    members = [
        GroupMember(
            m.member_id,
            m.client_id,
            m.client_host,
            m.instance_id,
            {each.topic_name: sorted(each.partitions) for each in m.assignment.topic_partitions},
        )
        for m in found.members
    ]
    positions = await fetch_offsets(cluster, group)
    return GroupDescription(group, found.group_state, found.assignor_name, members, positions)


async def delete_group(cluster: Cluster, group: str) -> None:
    """See `AsyncKafkaAdmin.delete_group`."""
    doing = f"delete group {group}"

    async def ask(node_id: int, deadline: Deadline) -> None:
        answer = await cluster.send(
            DeleteGroupsRequest(groups_names=[group]),
            DeleteGroupsResponse,
            node_id=node_id,
            deadline=deadline,
        )
        raise_for(answer.results[0].error_code, None, doing=doing)

    await at_coordinator(cluster, group, ask, repeatable=False, changes=True)


async def delete_offsets(cluster: Cluster, group: str, topic: str, partitions: Sequence[int]) -> None:
    """See `AsyncKafkaAdmin.delete_offsets`."""
    doing = f"delete offsets of group {group} in {topic}"

    async def ask(node_id: int, deadline: Deadline) -> None:
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[OffsetDeleteRequestPartition(partition_index=p) for p in partitions],
                )
            ],
        )
        answer = await cluster.send(request, OffsetDeleteResponse, node_id=node_id, deadline=deadline)
        raise_for(answer.error_code, None, doing=doing)
        for part in (part for found in answer.topics for part in found.partitions):
            raise_for(part.error_code, None, doing=doing)

    await at_coordinator(cluster, group, ask, changes=True)


def _assigned(assignment: bytes) -> dict[str, list[int]]:
    """Return the partitions that a classic consumer has; nothing for members of other kinds of groups."""
    try:
        return {topic: sorted(partitions) for topic, partitions in read_assignment(assignment).partitions}
    except DecodeError:
        return {}
