"""ElectLeaders (43), AlterPartitionReassignments (45), ListPartitionReassignments (46): replicas and their leaders.

Every broker can decide them (`broker.metadata.controller`). A move is answered when it has begun; a move without a
change succeeds.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.cluster.metadata_follower import MetadataFollower
from headrace.broker.cluster.replica_changes import Reassignment, ReplicaChanges
from headrace.broker.metadata.cluster import ClusterMetadata
from headrace.broker.metadata.image import PartitionState
from headrace.broker.metadata.reassignment import is_moving
from headrace.broker.partitions.partition import Partition
from headrace.broker.replication.replicas import LocalReplicas
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.slices import Slices, Work
from headrace.broker.security.requirement import whole
from headrace.broker.security.rights import Operation
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from headrace.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

_PREFERRED, _UNCLEAN = 0, 1  # ElectionType


class ReplicasApi:
    def __init__(
        self,
        metadata: ClusterMetadata,
        replicas: LocalReplicas,
        changes: ReplicaChanges,
        following: MetadataFollower,
        slices: Slices,
    ) -> None:
        self._metadata = metadata
        self._replicas = replicas
        self._changes = changes
        self._following = following
        self._slices = slices

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

    async def elect_leaders(
        self, context: RequestContext, request: ElectLeadersRequest
    ) -> ElectLeadersResponse:
        if request.election_type not in (_PREFERRED, _UNCLEAN):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"election type {request.election_type} is unknown; it must be 0 (preferred) or 1 (unclean)",
            )
        await self._following.refreshed()
        if request.topic_partitions is None:
            # An election for all partitions lists only those that changed their leader (as in Kafka).
            wanted: Iterable[tuple[str, Iterable[int]]] = (
                (image.name, range(image.partition_count)) for image in self._metadata.topics()
            )
        else:
            wanted = ((topic.topic, topic.partitions) for topic in request.topic_partitions)
        named, pace = request.topic_partitions is not None, self._slices.pace()
        response = ElectLeadersResponse(replica_election_results=[])
        elected: list[tuple[str, PartitionResult]] = []
        for name, indexes in wanted:
            results = []
            for index in indexes:
                await pace.rest()
                result = self._look(name, index, request.election_type)
                if result.error_code == ErrorCode.NONE:
                    elected.append((name, result))
                if named or result.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                    results.append(result)
            if results or named:
                response.replica_election_results.append(
                    ReplicaElectionResult(topic=name, partition_result=results)
                )
        if elected:
            await self._elect(elected, request.election_type)
        return response

    async def _elect(self, elected: list[tuple[str, PartitionResult]], election_type: int) -> None:
        """Run the elections and set the result of each."""
        places = [(name, result.partition_id) for name, result in elected]
        failure = None
        try:
            await self._changes.elect_leaders(places, unclean=election_type == _UNCLEAN)
        except KafkaError as error:
            failure = error
        for name, result in elected:
            if failure is not None:
                result.error_code, result.error_message = failure.code, failure.message
                continue
            after = self._look(name, result.partition_id, election_type)
            if after.error_code not in (ErrorCode.NONE, ErrorCode.ELECTION_NOT_NEEDED):
                result.error_code, result.error_message = after.error_code, after.error_message

    def _look(self, name: str, index: int, election_type: int) -> PartitionResult:
        """Return the reason why no election is needed or possible; no error if one is."""
        result = PartitionResult(partition_id=index)
        try:
            partition = self._replicas.partition(name, index)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
            return result
        state, leader = self._metadata.state(name, index), self._metadata.leader(name, index)
        if state is None:
            result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return result
        alive = self._metadata.image.brokers
        preferred = state.replicas[0]
        is_led = partition.failure is None and leader is not None
        if is_led and (election_type == _UNCLEAN or state.leader == preferred):
            result.error_code = ErrorCode.ELECTION_NOT_NEEDED
            result.error_message = f"broker {state.leader} leads {name}-{index} already"
        elif election_type == _PREFERRED and (
            partition.failure is not None or preferred not in alive or preferred not in state.isr
        ):
            result.error_code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
            result.error_message = self._why(name, index, state, partition, preferred)
        elif election_type == _UNCLEAN and (
            partition.failure is not None or not any(broker in alive for broker in state.replicas)
        ):
            result.error_code = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
            result.error_message = self._why(name, index, state, partition)
        return result

    def _why(
        self, name: str, index: int, state: PartitionState, partition: Partition, preferred: int | None = None
    ) -> str:
        if partition.failure is not None:
            return f"{name}-{index} is offline: {partition.failure}"
        alive = self._metadata.image.brokers
        if preferred is not None and state.leader in alive:
            how = "is not in sync" if preferred in alive else "is not alive"
            return f"broker {preferred}, the preferred leader of {name}-{index}, {how}"
        return f"{name}-{index} is offline: none of its brokers {list(state.replicas)} " + (
            "is both in sync and alive" if any(broker in alive for broker in state.replicas) else "is alive"
        )

    # -- reassignments -------------------------------------------------------------------------------------

    async def alter_reassignments(
        self, context: RequestContext, request: AlterPartitionReassignmentsRequest
    ) -> AlterPartitionReassignmentsResponse:
        await self._following.refreshed()
        response = AlterPartitionReassignmentsResponse(
            allow_replication_factor_change=request.allow_replication_factor_change,
            error_message=None,
            responses=[],
        )
        wanted: list[Reassignment] = []
        results: list[ReassignablePartitionResponse] = []
        pace = self._slices.pace()
        for topic in request.topics:
            answered = []
            for each in topic.partitions:
                await pace.rest()
                wanted.append(Reassignment(topic.name, each.partition_index, each.replicas))
                answered.append(
                    ReassignablePartitionResponse(partition_index=each.partition_index, error_message=None)
                )
            results += answered
            response.responses.append(ReassignableTopicResponse(name=topic.name, partitions=answered))
        refused = await self._changes.reassign(
            wanted, factor_may_change=request.allow_replication_factor_change
        )
        for result, error in zip(results, refused, strict=True):
            await pace.rest()
            if error is not None:
                result.error_code, result.error_message = error.code, error.message
        return response

    async def list_reassignments(
        self, context: RequestContext, request: ListPartitionReassignmentsRequest
    ) -> ListPartitionReassignmentsResponse:
        """List reassignments. Partitions that do not exist, or are not being moved, are left out."""
        await self._following.refreshed()
        named: Iterable[tuple[str, Iterable[int]]]
        if request.topics is None:
            named = ((image.name, range(image.partition_count)) for image in self._metadata.topics())
        else:
            named = ((topic.name, topic.partition_indexes) for topic in request.topics)
        pace = self._slices.pace()
        response = ListPartitionReassignmentsResponse(error_message=None, topics=[])
        for name, indexes in named:
            moving = []
            for index in indexes:
                await pace.rest()
                state = self._metadata.state(name, index)
                if state is not None and is_moving(state):
                    moving.append(
                        OngoingPartitionReassignment(
                            partition_index=index,
                            replicas=list(state.replicas),
                            adding_replicas=list(state.adding),
                            removing_replicas=list(state.removing),
                        )
                    )
            if moving:
                response.topics.append(OngoingTopicReassignment(name=name, partitions=moving))
        return response


def _election_failed(
    request: ElectLeadersRequest, version: int, error: KafkaError
) -> Work[ElectLeadersResponse]:
    """Answer every named partition with the error, as version 0 has no top-level error."""
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
