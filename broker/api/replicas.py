"""ElectLeaders (43), AlterPartitionReassignments (45), ListPartitionReassignments (46): who holds and leads what.

Each partition has one replica, so nothing can move and nothing is to be elected. What is asked for is compared with
that: what is so already succeeds or is ELECTION_NOT_NEEDED, everything else is refused with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable

from broker.cluster.metadata import TopicManager
from broker.cluster.partition import Partition
from broker.requests.declaration import ApiDeclaration, RequestContext
from broker.security.requirement import whole
from broker.security.rights import Operation
from broker.slices import Work
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

_PREFERRED, _UNCLEAN = 0, 1  # ElectionType


class ReplicasApi:
    def __init__(self, metadata: TopicManager) -> None:
        self._metadata = metadata

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                ElectLeadersRequest,
                ElectLeadersResponse,
                self.elect_leaders,
                whole(Operation.ALTER),
                on_error=_election_failed,
            ),
            ApiDeclaration(
                AlterPartitionReassignmentsRequest,
                AlterPartitionReassignmentsResponse,
                self.alter_reassignments,
                whole(Operation.ALTER),
            ),
            ApiDeclaration(
                ListPartitionReassignmentsRequest,
                ListPartitionReassignmentsResponse,
                self.list_reassignments,
                whole(Operation.DESCRIBE),
            ),
        ]

    # -- elections -----------------------------------------------------------------------------------------

    def elect_leaders(
        self, context: RequestContext, request: ElectLeadersRequest
    ) -> Work[ElectLeadersResponse]:
        if request.election_type not in (_PREFERRED, _UNCLEAN):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"election type {request.election_type} is unknown; 0 (preferred) and 1 (unclean) exist",
            )
        if request.topic_partitions is None:
            # For all partitions only those are told that did not have their leader already (as in Kafka).
            wanted: Iterable[tuple[str, Iterable[int]]] = (
                (image.name, range(image.partition_count)) for image in self._metadata.topics()
            )
        else:
            wanted = ((topic.topic, topic.partitions) for topic in request.topic_partitions)
        named = request.topic_partitions is not None
        response = ElectLeadersResponse(replica_election_results=[])
        for name, indexes in wanted:
            yield
            results = []
            for index in indexes:
                yield
                result = self._elect(name, index, request.election_type)
                if named or result.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                    results.append(result)
            if results or named:
                response.replica_election_results.append(
                    ReplicaElectionResult(topic=name, partition_result=results)
                )
        return response

    def _elect(self, name: str, index: int, election_type: int) -> PartitionResult:
        result = PartitionResult(partition_id=index)
        try:
            partition = self._metadata.partition(name, index)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
            return result
        leader = self._metadata.leader(name, index)
        if partition.failure is None and leader is not None:
            result.error_code = ErrorCode.ELECTION_NOT_NEEDED
            result.error_message = f"broker {leader.broker_id} leads {name}-{index} already"
        else:
            preferred = election_type == _PREFERRED
            result.error_code = (
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
                if preferred
                else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
            )
            state = self._metadata.state(name, index)
            holders = [] if state is None else list(state.replicas)
            reason = partition.failure or f"of the brokers {holders}, which hold it, none is alive"
            result.error_message = f"{name}-{index} is offline: {reason}"
        return result

    # -- reassignments -------------------------------------------------------------------------------------

    def alter_reassignments(
        self, context: RequestContext, request: AlterPartitionReassignmentsRequest
    ) -> Work[AlterPartitionReassignmentsResponse]:
        response = AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_message=None,
            responses=[],
        )
        for topic in request.topics:
            yield
            results = []
            for wanted in topic.partitions:
                yield
                result = ReassignablePartitionResponse(
                    partition_index=wanted.partition_index, error_message=None
                )
                results.append(result)
                try:
                    self._reassign(
                        self._metadata.partition(topic.name, wanted.partition_index), wanted.replicas
                    )
                except KafkaError as error:
                    result.error_code, result.error_message = error.code, error.message
            response.responses.append(ReassignableTopicResponse(name=topic.name, partitions=results))
        return response

    def _reassign(self, partition: Partition, replicas: list[int] | None) -> None:
        name = f"{partition.topic.name}-{partition.index}"
        if replicas is None:
            raise KafkaError(
                ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
                f"{name} is not being moved; there is nothing to cancel",
            )
        state = self._metadata.state(partition.topic.name, partition.index)
        if state is None or replicas != list(state.replicas):
            holders = "nobody" if state is None else ", ".join(map(str, state.replicas))
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{name} cannot be held by brokers {replicas}: it is held by {holders}, and partitions cannot be moved"
                " yet",
            )

    def list_reassignments(
        self, context: RequestContext, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        return ListPartitionReassignmentsResponse(error_message=None, topics=[])


def _election_failed(
    request: ElectLeadersRequest, version: int, error: KafkaError
) -> Work[ElectLeadersResponse]:
    """Version 0 has no error of the whole: every partition that was named carries it."""
    if version >= 1:
        return ElectLeadersResponse(error_code=error.code)
    response = ElectLeadersResponse(replica_election_results=[])
    for topic in request.topic_partitions or []:
        yield
        result = ReplicaElectionResult(topic=topic.topic, partition_result=[])
        response.replica_election_results.append(result)
        for index in topic.partitions:
            yield
            result.partition_result.append(
                PartitionResult(partition_id=index, error_code=error.code, error_message=error.message)
            )
    return response
