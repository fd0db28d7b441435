"""Elections and reassignments: one broker holds and leads everything, and says so."""

from __future__ import annotations

import pytest

from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from simulator.direct import direct_broker


def results_of(response) -> dict[tuple[str, int], int]:
    return {
        (topic.topic, partition.partition_id): partition.error_code
        for topic in response.replica_election_results
        for partition in topic.partition_result
    }


@pytest.mark.parametrize("version", range(3))
async def test_no_election_is_needed_except_where_the_leader_is_offline(tmp_path, version) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t", 3)
        broker.context.replicas.partition("t", 2).fail("the test says so")
        named = [
            TopicPartitions(topic="t", partitions=[0, 2, 7]),
            TopicPartitions(topic="missing", partitions=[0]),
        ]
        response = await broker.send(ElectLeadersRequest(topic_partitions=named), version)
        assert results_of(response) == {
            ("t", 0): ErrorCode.ELECTION_NOT_NEEDED,
            ("t", 2): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            ("t", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("missing", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        # All partitions: only those that need a change.
        response = await broker.send(ElectLeadersRequest(topic_partitions=None), version)
        assert results_of(response) == {("t", 2): ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE}
        if version >= 1:
            unclean = ElectLeadersRequest(election_type=1, topic_partitions=None)
            assert results_of(await broker.send(unclean, version)) == {
                ("t", 2): ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
            }
            unknown = ElectLeadersRequest(election_type=5, topic_partitions=named)
            assert (await broker.send(unknown, version)).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", range(2))
@pytest.mark.parametrize(
    ("partition", "replicas", "code"),
    [
        (0, [0], 0),  # as it is
        (0, [1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, [0, 1], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, [0, 0], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (0, None, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        (1, [0], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_partitions_stay_where_they_are(tmp_path, version, partition, replicas, code) -> None:
    async with direct_broker(tmp_path) as broker:
        await broker.create_topic("t")
        wanted = ReassignablePartition(partition_index=partition, replicas=replicas)
        request = AlterPartitionReassignmentsRequest(
            topics=[ReassignableTopic(name="t", partitions=[wanted])]
        )
        response = await broker.send(request, version)
        (answer,) = response.responses[0].partitions
        assert (response.error_code, answer.error_code) == (0, code)
        assert (answer.error_message is None) == (code == 0)
        for topics in (None, [ListPartitionReassignmentsTopics(name="t", partition_indexes=[0])]):
            moving = await broker.send(ListPartitionReassignmentsRequest(topics=topics))
            assert (moving.error_code, moving.topics) == (0, [])
