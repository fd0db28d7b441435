"""DescribeGroups, ListGroups and DeleteGroups."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.broker.groups.model.classic import CONSUMER_PROTOCOL_TYPE, Phase
from headrace.broker.groups.model.events import (
    DeleteGroup,
)
from headrace.broker.groups.model.group import Group
from headrace.broker.requests.answers import AnswerBudget
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.slices import Slices, Work
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import CLUSTER_NAME, Operation, ResourceType
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
from headrace.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

if TYPE_CHECKING:
    from headrace.broker.groups.coordinator import GroupCoordinator


class GroupAdministrationHandlers:
    def __init__(self, coordinator: GroupCoordinator, slices: Slices) -> None:
        self._coordinator = coordinator
        self._slices = slices

    def declarations(self) -> list[ApiDeclaration]:
        return [
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

    def describe_groups(
        self, context: RequestContext, request: DescribeGroupsRequest
    ) -> Work[DescribeGroupsResponse]:
        """Describe each group once, even if the request repeats it."""
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


def _described(group: Group, budget: AnswerBudget) -> Work[DescribedGroup]:
    """Describe a classic group. Only a stable one shows subscriptions and assignments."""
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
