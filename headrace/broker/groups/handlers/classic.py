"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup: requests to events, results to responses.

Only handlers know versions: they fill in the fields that an old version does not send, and leave out those that it
cannot read. A request that waits for other members is answered by a future.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING

from headrace.broker.groups.handlers.requests import after_journal, of_group, refusal
from headrace.broker.groups.model.events import (
    Heartbeat,
    Join,
    JoinResult,
    Leave,
    Leaver,
    LeaveResult,
    Sync,
    SyncResult,
)
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.slices import Slices
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import Operation
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from headrace.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from headrace.broker.groups.coordinator import GroupCoordinator
    from headrace.broker.runtime.ports import Entropy

LEAVE_TOGETHER = 50
MEMBERS_MAX, PROTOCOLS_MAX = 10_000, 1000
"""Limits of one request: members of an assignment, and protocols of a member. Clients send far fewer."""


class ClassicGroupHandlers:
    def __init__(self, coordinator: GroupCoordinator, entropy: Entropy, slices: Slices) -> None:
        self._coordinator = coordinator
        self._entropy = entropy
        self._slices = slices

    def declarations(self) -> list[ApiDeclaration]:
        reads = partial(of_group, Operation.READ)
        return [
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
        ]

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
                # Version 0 has one timeout for both, and so do clients that send none.
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
            # A restart ends a rebalance. This answer makes the client join again.
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
            # Sessions begin again when the group is loaded, so this heartbeat has no effect.
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
        """Take members out a few at a time. Each has its own outcome."""
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
