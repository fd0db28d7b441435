"""The APIs of groups and their members on the wire: requests to events, results to responses.

Versions matter only here: what an old version cannot say is filled in, what it cannot hear is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from headrace.broker.cluster.endpoints import endpoint
from headrace.broker.groups.handlers.requests import after_journal, of_group, refusal
from headrace.broker.groups.model.classic import CONSUMER_PROTOCOL_TYPE, Phase
from headrace.broker.groups.model.events import (
    DeleteGroup,
    Heartbeat,
    Join,
    JoinResult,
    Leave,
    Leaver,
    LeaveResult,
    Sync,
    SyncResult,
)
from headrace.broker.groups.model.group import Group
from headrace.broker.requests.answers import AnswerBudget
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.slices import Slices, Work
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType, denied
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from headrace.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from headrace.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from headrace.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from headrace.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from headrace.broker.cluster.journal_topic import JournalTopic
    from headrace.broker.cluster.topics import TopicManager
    from headrace.broker.groups.coordinator import GroupCoordinator
    from headrace.broker.metadata.identity import BrokerIdentity
    from headrace.broker.runtime.ports import Entropy

GROUP_KEY_TYPE = 0
TRANSACTION_KEY_TYPE = 1
_KEY_TYPES = {GROUP_KEY_TYPE: ResourceType.GROUP, TRANSACTION_KEY_TYPE: ResourceType.TRANSACTIONAL_ID}
LEAVE_TOGETHER = 50
MEMBERS_MAX, PROTOCOLS_MAX = 10_000, 1000
"""What one request may name of a group's members and of a member's assignors; many times what clients do."""


class Transactions(Protocol):
    """Where transactional ids are coordinated, as far as one who looks for that has to know."""

    @property
    def journal(self) -> JournalTopic: ...


class GroupHandlers:
    """The handlers of one coordinator. What has to wait for other members is answered by a coroutine."""

    def __init__(
        self,
        coordinator: GroupCoordinator,
        transactions: Transactions,
        metadata: TopicManager,
        identity: BrokerIdentity,
        entropy: Entropy,
        slices: Slices,
    ) -> None:
        self._coordinator = coordinator
        self._journals = {GROUP_KEY_TYPE: coordinator.journal, TRANSACTION_KEY_TYPE: transactions.journal}
        self._metadata = metadata
        self._identity = identity
        self._entropy = entropy
        self._slices = slices

    def declarations(self) -> list[ApiDeclaration]:
        reads = partial(of_group, Operation.READ)
        return [
            ApiDeclaration(
                FindCoordinatorRequest,
                FindCoordinatorResponse,
                self.find_coordinator,
                within(group=Operation.DESCRIBE, transactional_id=Operation.DESCRIBE),
                on_error=_failed_find,
            ),
            ApiDeclaration(
                JoinGroupRequest,
                JoinGroupResponse,
                reads(after_journal(self._coordinator, self._slices, self.join_group), again=True),
                within(group=Operation.READ),
                cancel_on_disconnect=True,
            ),
            ApiDeclaration(
                HeartbeatRequest, HeartbeatResponse, reads(self.heartbeat), within(group=Operation.READ)
            ),
            ApiDeclaration(
                LeaveGroupRequest, LeaveGroupResponse, reads(self.leave_group), within(group=Operation.READ)
            ),
            ApiDeclaration(
                SyncGroupRequest,
                SyncGroupResponse,
                reads(self.sync_group, again=True),
                within(group=Operation.READ),
                cancel_on_disconnect=True,
            ),
            ApiDeclaration(
                DescribeGroupsRequest,
                DescribeGroupsResponse,
                self.describe_groups,
                within(group=Operation.DESCRIBE),
            ),
            ApiDeclaration(
                ListGroupsRequest,
                ListGroupsResponse,
                self.list_groups,
                within(cluster=Operation.DESCRIBE, group=Operation.DESCRIBE),
            ),
            ApiDeclaration(
                DeleteGroupsRequest, DeleteGroupsResponse, self.delete_groups, within(group=Operation.DELETE)
            ),
        ]

    # -- finding -------------------------------------------------------------------------------------------

    def find_coordinator(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> Work[FindCoordinatorResponse | Awaitable[Any]]:
        """The journal's topic is created by the first who may use it: its leaders coordinate the keys."""
        keys = request.coordinator_keys if context.api_version >= 4 else [request.key]
        found, is_used = [], False
        for key in keys:
            yield
            found.append(self._coordinator_for(context, key, request.key_type))
            is_used = is_used or not found[-1].error_code
        journal = self._journals.get(request.key_type)
        if journal is not None and not journal.partitions and is_used:
            return self._with_topic(context, request, journal)
        return _find_response(found, context.api_version)

    async def _with_topic(
        self, context: RequestContext, request: FindCoordinatorRequest, journal: JournalTopic
    ) -> Work[FindCoordinatorResponse | Awaitable[Any]]:
        await journal.ensure()
        return self.find_coordinator(context, request)

    def _coordinator_for(self, context: RequestContext, key: str, key_type: int) -> Coordinator:
        resource_type = _KEY_TYPES.get(key_type)
        if resource_type is not None:
            if not context.may(Operation.DESCRIBE, resource_type, key):
                refusal = denied(resource_type)
                return _no_coordinator(key, refusal.code, refusal.message)
            journal, own = self._journals[key_type], self._identity.broker_id
            leader = (
                self._metadata.leader(journal.name, journal.index_of(key)) if journal.partitions else None
            )
            leader_id = leader.broker_id if leader is not None else -1 if journal.partitions else own
            found = endpoint(self._metadata, self._identity, leader_id, context.listener)
            if found is None:
                return _no_coordinator(
                    key,
                    ErrorCode.COORDINATOR_NOT_AVAILABLE,
                    f"nobody who is alive leads the partition of {journal.name} that has {key}",
                )
            return Coordinator(key=key, node_id=leader_id, host=found["host"], port=found["port"])
        message = f"unknown coordinator key type {key_type}; 0 is a consumer group, 1 a transactional id"
        return _no_coordinator(key, ErrorCode.INVALID_REQUEST, message)

    # -- membership ----------------------------------------------------------------------------------------

    def join_group(
        self, context: RequestContext, request: JoinGroupRequest
    ) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
        version = context.api_version
        if len(request.protocols) > PROTOCOLS_MAX:
            return _join_response(
                JoinResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id), version
            )
        if (error := refusal(self._coordinator, request.group_id)) is not ErrorCode.NONE:
            return _join_response(JoinResult(error, request.member_id), version)
        client_id = context.client_id or ""
        prefix = request.group_instance_id if request.group_instance_id is not None else client_id
        member_id = f"{prefix}-{self._entropy.uuid()}"

        def event(token: int) -> Join:
            return Join(
                token=token,
                member_id=request.member_id,
                new_member_id=member_id,
                instance_id=request.group_instance_id,
                client_id=client_id,
                client_host=f"/{context.client_host}",
                session_timeout_ms=request.session_timeout_ms,
                # Version 0 has one timeout for both; so do clients that send none.
                rebalance_timeout_ms=request.rebalance_timeout_ms
                if version >= 1 and request.rebalance_timeout_ms >= 0
                else request.session_timeout_ms,
                protocol_type=request.protocol_type,
                protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
                must_know_id=version >= 4,
                can_skip_assignment=version >= 9,
            )

        return self._coordinator.submit(
            request.group_id, event, lambda result: _join_response(result, version)
        )

    def sync_group(
        self, context: RequestContext, request: SyncGroupRequest
    ) -> SyncGroupResponse | asyncio.Future[SyncGroupResponse]:
        error = refusal(self._coordinator, request.group_id)
        if len(request.assignments) > MEMBERS_MAX:
            error = ErrorCode.INVALID_REQUEST
        if context.api_version >= 5 and None in (request.protocol_type, request.protocol_name):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL  # KIP-559: from version 5 on both must be there
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The rebalance this belongs to did not survive the restart; this answer makes the client join
            # again.
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error is not ErrorCode.NONE:
            return _sync_response(SyncResult(error))
        return self._coordinator.submit(
            request.group_id,
            lambda token: Sync(
                token=token,
                member_id=request.member_id,
                instance_id=request.group_instance_id,
                generation=request.generation_id,
                protocol_type=request.protocol_type,
                protocol=request.protocol_name,
                assignments={given.member_id: bytes(given.assignment) for given in request.assignments},
            ),
            _sync_response,
        )

    def heartbeat(
        self, context: RequestContext, request: HeartbeatRequest
    ) -> HeartbeatResponse | asyncio.Future[HeartbeatResponse]:
        error = refusal(self._coordinator, request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # Sessions start anew once the group is loaded: nothing is lost by saying that all is well.
            return HeartbeatResponse()
        if error is not ErrorCode.NONE:
            return HeartbeatResponse(error_code=error)
        return self._coordinator.submit(
            request.group_id,
            lambda token: Heartbeat(
                token, request.member_id, request.group_instance_id, request.generation_id
            ),
            lambda result: HeartbeatResponse(error_code=result.error),
        )

    def leave_group(
        self, context: RequestContext, request: LeaveGroupRequest
    ) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
        if (error := refusal(self._coordinator, request.group_id)) is not ErrorCode.NONE:
            return LeaveGroupResponse(error_code=error)
        if context.api_version >= 3:
            if len(request.members) > LEAVE_TOGETHER:
                return self._leave_by_turns(request)
            leavers = tuple(Leaver(member.member_id, member.group_instance_id) for member in request.members)
        else:
            leavers = (Leaver(request.member_id, None),)
        return self._coordinator.submit(
            request.group_id,
            lambda token: Leave(token, leavers),
            lambda result: _leave_response(result, context.api_version),
        )

    async def _leave_by_turns(self, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Each leaves or not for itself."""
        response = LeaveGroupResponse(members=[])
        pace = self._slices.pace()
        for first in range(0, len(request.members), LEAVE_TOGETHER):
            await pace.rest()
            if (error := refusal(self._coordinator, request.group_id)) is not ErrorCode.NONE:
                return LeaveGroupResponse(error_code=error)
            some = request.members[first : first + LEAVE_TOGETHER]
            leavers = tuple(Leaver(member.member_id, member.group_instance_id) for member in some)
            answer = self._coordinator.submit(
                request.group_id, partial(Leave, leavers=leavers), partial(_leave_response, version=3)
            )
            told = await answer if isinstance(answer, asyncio.Future) else answer
            if told.error_code:
                return told
            response.members += told.members
        return response

    # -- administration ------------------------------------------------------------------------------------

    def describe_groups(
        self, context: RequestContext, request: DescribeGroupsRequest
    ) -> Work[DescribeGroupsResponse]:
        """A group that is named again and again is described once."""
        response = DescribeGroupsResponse(groups=[])
        budget = AnswerBudget()
        for group_id in dict.fromkeys(request.groups):
            yield
            try:
                context.require(Operation.DESCRIBE, ResourceType.GROUP, group_id)
                described = yield from self._describe(group_id, context.api_version, budget)
                if request.include_authorized_operations and not described.error_code:
                    described.authorized_operations = context.operations(ResourceType.GROUP, group_id)
            except KafkaError as error:
                described = DescribedGroup(group_id=group_id, error_code=error.code)
            response.groups.append(described)
        return response

    def _describe(self, group_id: str, version: int, budget: AnswerBudget) -> Work[DescribedGroup]:
        error = self._coordinator.unavailable(group_id)
        if error is not ErrorCode.NONE:
            return DescribedGroup(group_id=group_id, error_code=error)
        group = self._coordinator.groups.get(group_id)
        if group is not None and group.consumer is None:
            return (yield from _described(group, budget))
        described = DescribedGroup(group_id=group_id, group_state=Phase.DEAD.value)
        if version >= 6:
            what = "not found" if group is None else "is not a classic group"
            described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            described.error_message = f"Group {group_id} {what}."
        return described

    def list_groups(self, context: RequestContext, request: ListGroupsRequest) -> Work[ListGroupsResponse]:
        states, types = set(), set()
        for state in request.states_filter:
            yield
            states.add(state.lower())
        for kind in request.types_filter:
            yield
            types.add(kind.lower())
        groups = []
        sees_all = context.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME, audited=False)
        for group in list(self._coordinator.groups.values()):
            yield
            if not sees_all and not context.may(
                Operation.DESCRIBE, ResourceType.GROUP, group.group_id, audited=False
            ):
                continue
            if (states and group.state_name.lower() not in states) or (
                types and _type_of(group) not in types
            ):
                continue
            groups.append(
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=CONSUMER_PROTOCOL_TYPE if group.consumer else group.protocol_type or "",
                    group_state=group.state_name,
                    group_type=_type_of(group),
                )
            )
        loading = self._coordinator.journal.is_loading
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else ErrorCode.NONE
        return ListGroupsResponse(error_code=error, groups=groups)

    async def delete_groups(
        self, context: RequestContext, request: DeleteGroupsRequest
    ) -> DeleteGroupsResponse:
        pace = self._slices.pace()
        outcomes: list[tuple[str, ErrorCode | asyncio.Future[ErrorCode]]] = []
        for group_id in request.groups_names:
            await pace.rest()
            if context.may(Operation.DELETE, ResourceType.GROUP, group_id):
                outcomes.append((group_id, self._delete(group_id)))
            else:
                outcomes.append((group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED))
        response = DeleteGroupsResponse(results=[])
        for group_id, outcome in outcomes:
            await pace.rest()
            error = await outcome if isinstance(outcome, asyncio.Future) else outcome
            response.results.append(DeletableGroupResult(group_id=group_id, error_code=error))
        return response

    def _delete(self, group_id: str) -> ErrorCode | asyncio.Future[ErrorCode]:
        error = self._coordinator.unavailable(group_id)
        if error is not ErrorCode.NONE:
            return error
        if not self._coordinator.knows(group_id):
            return ErrorCode.GROUP_ID_NOT_FOUND
        return self._coordinator.submit(
            group_id,
            lambda token: DeleteGroup(token, self._coordinator.transactional.unstable_partitions(group_id)),
            lambda result: result.error,
        )


def _type_of(group: Group) -> str:
    return "classic" if group.consumer is None else "consumer"


def _leave_response(result: LeaveResult, version: int) -> LeaveGroupResponse:
    if version < 3:
        return LeaveGroupResponse(error_code=result.members[0][1] if result.members else result.error)
    return LeaveGroupResponse(
        error_code=result.error,
        members=[
            MemberResponse(member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=error)
            for leaver, error in result.members
        ],
    )


def _failed_find(
    request: FindCoordinatorRequest, version: int, error: KafkaError
) -> Work[FindCoordinatorResponse]:
    keys = request.coordinator_keys if version >= 4 else [request.key]
    found = []
    for key in keys:
        yield
        found.append(_no_coordinator(key, error.code, error.message))
    return _find_response(found, version)


def _find_response(found: list[Coordinator], version: int) -> FindCoordinatorResponse:
    if version >= 4:
        return FindCoordinatorResponse(coordinators=found)
    one = found[0]
    return FindCoordinatorResponse(
        error_code=one.error_code,
        error_message=one.error_message,
        node_id=one.node_id,
        host=one.host,
        port=one.port,
    )


def _no_coordinator(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message=message)


def _join_response(result: JoinResult, version: int) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol if version >= 7 else result.protocol or "",
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(member_id=member_id, group_instance_id=instance_id, metadata=metadata)
            for member_id, instance_id, metadata in result.members
        ],
    )


def _sync_response(result: SyncResult) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )


def _described(group: Group, budget: AnswerBudget) -> Work[DescribedGroup]:
    """Subscriptions and assignments are shown of a stable group only: before that they are in motion."""
    stable = group.phase is Phase.STABLE
    protocol = group.protocol
    described = DescribedGroup(
        group_id=group.group_id,
        group_state=group.phase.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(protocol or "") if stable else "",
    )
    for member in list(group.members.values()):
        yield
        metadata = member.metadata(protocol) if stable else b""
        assignment = member.assignment if stable else b""
        budget.charge(len(metadata) + len(assignment) + 64)
        described.members.append(
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=metadata,
                member_assignment=assignment,
            )
        )
    return described
