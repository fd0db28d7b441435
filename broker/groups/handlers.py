"""The consumer group APIs on the wire: requests to events, results to responses.

Versions matter only here: what an old version cannot say is filled in, what it cannot hear is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.extension import ApiDeclaration, RequestContext
from broker.groups.events import (
    Commit,
    DeleteGroup,
    DeleteOffsets,
    Heartbeat,
    Join,
    JoinResult,
    Leave,
    Leaver,
    LeaveResult,
    OffsetsResult,
    Sync,
    SyncResult,
)
from broker.groups.model import CONSUMER_PROTOCOL_TYPE, CommittedOffset, Group, Phase
from broker.groups.modern.positions import fetch_error
from protocol.errors import ErrorCode, KafkaError
from protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse
from protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from broker.groups.coordinator import GroupCoordinator

GROUP_KEY_TYPE = 0
TRANSACTION_KEY_TYPE = 1
_NO_COMMIT = CommittedOffset(offset=-1)
_FIRST_VERSION_WITH_IDS = 10  # of OffsetCommit and OffsetFetch

Wanted = Iterable[tuple[str, Iterable[int]]] | None


class GroupHandlers:
    """The handlers of one coordinator. What has to wait for other members is answered by a coroutine."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator
        self._context = coordinator.context

    def declarations(self) -> list[ApiDeclaration]:
        first_use = self._with_journal
        return [
            ApiDeclaration(
                OffsetCommitRequest,
                OffsetCommitResponse,
                first_use(self.offset_commit),
                on_error=_failed_commit,
            ),
            ApiDeclaration(OffsetFetchRequest, OffsetFetchResponse, self.offset_fetch),
            ApiDeclaration(
                FindCoordinatorRequest,
                FindCoordinatorResponse,
                first_use(self.find_coordinator),
                on_error=_failed_find,
            ),
            ApiDeclaration(
                JoinGroupRequest, JoinGroupResponse, first_use(self.join_group), cancel_on_disconnect=True
            ),
            ApiDeclaration(HeartbeatRequest, HeartbeatResponse, self.heartbeat),
            ApiDeclaration(LeaveGroupRequest, LeaveGroupResponse, self.leave_group),
            ApiDeclaration(SyncGroupRequest, SyncGroupResponse, self.sync_group, cancel_on_disconnect=True),
            ApiDeclaration(DescribeGroupsRequest, DescribeGroupsResponse, self.describe_groups),
            ApiDeclaration(ListGroupsRequest, ListGroupsResponse, self.list_groups),
            ApiDeclaration(DeleteGroupsRequest, DeleteGroupsResponse, self.delete_groups),
            ApiDeclaration(OffsetDeleteRequest, OffsetDeleteResponse, self.offset_delete),
        ]

    def _with_journal(self, handler: Callable[[RequestContext, Any], Any]) -> Callable[..., Any]:
        """The journal's topic is created by the first request that needs it."""

        def handle(context: RequestContext, request: Any) -> Any:
            return handler(context, request) if self._coordinator.has_journal else first(context, request)

        async def first(context: RequestContext, request: Any) -> Any:
            await self._coordinator.journal.ensure()
            answer = handler(context, request)
            return await answer if isinstance(answer, Awaitable) else answer

        return handle

    # -- finding -------------------------------------------------------------------------------------------

    def find_coordinator(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        keys = request.coordinator_keys if context.api_version >= 4 else [request.key]
        found = [self._coordinator_for(key, request.key_type) for key in keys]
        return _find_response(found, context.api_version)

    def _coordinator_for(self, key: str, key_type: int) -> Coordinator:
        if key_type in (GROUP_KEY_TYPE, TRANSACTION_KEY_TYPE):
            host, port = self._context.advertised()
            return Coordinator(key=key, node_id=self._context.broker_id, host=host, port=port)
        message = f"unknown coordinator key type {key_type}; 0 is a consumer group, 1 a transactional id"
        return _no_coordinator(key, ErrorCode.INVALID_REQUEST, message)

    # -- membership ----------------------------------------------------------------------------------------

    def join_group(
        self, context: RequestContext, request: JoinGroupRequest
    ) -> JoinGroupResponse | asyncio.Future[JoinGroupResponse]:
        version = context.api_version
        if (error := self._refusal(request.group_id)) is not ErrorCode.NONE:
            return _join_response(JoinResult(error, request.member_id), version)
        client_id = context.client_id or ""
        prefix = request.group_instance_id if request.group_instance_id is not None else client_id
        member_id = f"{prefix}-{self._context.entropy.uuid()}"

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
        error = self._refusal(request.group_id)
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
        error = self._refusal(request.group_id)
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
    ) -> LeaveGroupResponse | asyncio.Future[LeaveGroupResponse]:
        if (error := self._refusal(request.group_id)) is not ErrorCode.NONE:
            return LeaveGroupResponse(error_code=error)
        if context.api_version >= 3:
            leavers = tuple(Leaver(member.member_id, member.group_instance_id) for member in request.members)
        else:
            leavers = (Leaver(request.member_id, None),)
        return self._coordinator.submit(
            request.group_id,
            lambda token: Leave(token, leavers),
            lambda result: _leave_response(result, context.api_version),
        )

    def _refusal(self, group_id: str) -> ErrorCode:
        """Why no member of this group can be served at all, or NONE."""
        return self._coordinator.unavailable(group_id) if group_id else ErrorCode.INVALID_GROUP_ID

    # -- offsets -------------------------------------------------------------------------------------------

    def offset_commit(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> OffsetCommitResponse | asyncio.Future[OffsetCommitResponse]:
        if context.api_version >= _FIRST_VERSION_WITH_IDS:
            self._name_topics(request.topics)
        error = self._coordinator.unavailable(request.group_id)
        generation = request.generation_id_or_member_epoch
        if error is ErrorCode.NONE and generation >= 0 and request.group_id not in self._coordinator.groups:
            is_new_client = context.api_version >= 9
            error = ErrorCode.GROUP_ID_NOT_FOUND if is_new_client else ErrorCode.ILLEGAL_GENERATION
        if error is not ErrorCode.NONE:
            return _commit_response(request, error, {})
        offsets, errors = self._committed(context, request)
        return self._coordinator.submit(
            request.group_id,
            lambda token: Commit(
                token,
                request.member_id,
                request.group_instance_id,
                generation,
                offsets,
                knows_epochs=context.api_version >= 9,
            ),
            lambda result: _commit_response(request, result.error, {**errors, **result.errors}),
        )

    def _committed(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> tuple[dict[tuple[str, int], CommittedOffset], dict[tuple[str, int], ErrorCode]]:
        """The offsets to store, and the partitions that do not exist."""
        now_ms = self._context.clock.time_ms()
        retention_ms = request.retention_time_ms if context.api_version <= 4 else -1
        expire_ms = now_ms + retention_ms if retention_ms >= 0 else -1
        offsets: dict[tuple[str, int], CommittedOffset] = {}
        errors: dict[tuple[str, int], ErrorCode] = {}
        for topic in request.topics:
            image = self._context.metadata.topic(topic.name)
            partition_count = image.partition_count if image is not None else 0
            for partition in topic.partitions:
                key = (topic.name, partition.partition_index)
                if 0 <= partition.partition_index < partition_count:
                    offsets[key] = CommittedOffset(
                        offset=partition.committed_offset,
                        leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.committed_metadata or "",
                        commit_timestamp_ms=now_ms,
                        expire_timestamp_ms=expire_ms,
                    )
                else:
                    errors[key] = _unknown(topic)
        return offsets, errors

    def _name_topics(self, topics: Iterable[Any]) -> None:
        """Fill in the names of topics that were given by id; the name of an unknown one stays empty."""
        for topic in topics:
            image = self._context.metadata.topic_by_id(topic.topic_id)
            if image is not None:
                topic.name = image.name

    def offset_fetch(self, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
        if context.api_version >= 8:
            by_id = context.api_version >= _FIRST_VERSION_WITH_IDS
            groups = []
            for group in request.groups:
                if by_id:
                    self._name_topics(group.topics or ())
                answer = self._fetch_group(
                    group.group_id,
                    _wanted(group.topics),
                    request.require_stable,
                    group.member_id,
                    group.member_epoch,
                )
                if by_id:
                    self._identify(answer, group.topics)
                groups.append(answer)
            return OffsetFetchResponse(groups=groups)
        fetched = self._fetch_group(request.group_id, _wanted(request.topics), request.require_stable)
        topics = fetched.topics
        if fetched.error_code and context.api_version < 2 and request.topics is not None:
            # There is no error of the whole yet: say it of every partition.
            topics = [
                OffsetFetchResponseTopics(
                    name=topic.name,
                    partitions=[
                        _position(index, _NO_COMMIT, fetched.error_code) for index in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        return OffsetFetchResponse(
            error_code=fetched.error_code,
            topics=[
                OffsetFetchResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetFetchResponsePartition(
                            partition_index=position.partition_index,
                            committed_offset=position.committed_offset,
                            committed_leader_epoch=position.committed_leader_epoch,
                            metadata=position.metadata,
                            error_code=position.error_code,
                        )
                        for position in topic.partitions
                    ],
                )
                for topic in topics
            ],
        )

    def _identify(
        self, answer: OffsetFetchResponseGroup, asked: list[OffsetFetchRequestTopics] | None
    ) -> None:
        """Fill in the ids of an answer's topics, which stand in the order in which they were asked for."""
        if asked is None:
            for topic in answer.topics:
                image = self._context.metadata.topic(topic.name)
                if image is not None:
                    topic.topic_id = image.topic_id
            return
        for topic, wanted in zip(answer.topics, asked, strict=False):  # none when the whole group failed
            topic.topic_id = wanted.topic_id
            if not wanted.name:
                for partition in topic.partitions:
                    partition.error_code = ErrorCode.UNKNOWN_TOPIC_ID

    def _fetch_group(
        self,
        group_id: str,
        wanted: Wanted,
        require_stable: bool,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> OffsetFetchResponseGroup:
        """With `require_stable` a position that an open transaction may change is not given (KIP-447)."""
        error = self._coordinator.unavailable(group_id)
        group = self._coordinator.groups.get(group_id)
        if error is ErrorCode.NONE and group is not None and group.consumer is not None:
            error = fetch_error(group.consumer, member_id, member_epoch)
        elif error is ErrorCode.NONE and group is None and member_id and member_epoch >= 0:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        if error is not ErrorCode.NONE:
            return OffsetFetchResponseGroup(group_id=group_id, error_code=error)
        offsets = group.offsets if group is not None else {}
        if wanted is None:
            known_partitions = {topic: set(partitions) for topic, partitions in offsets.items()}
            if require_stable:
                for topic, index in self._coordinator.transactional.unstable_partitions(group_id):
                    known_partitions.setdefault(topic, set()).add(index)
            wanted = [(topic, sorted(partitions)) for topic, partitions in known_partitions.items()]
        topics = []
        for topic, indexes in wanted:
            known = offsets.get(topic, {})
            positions = [
                _position(index, _NO_COMMIT, ErrorCode.UNSTABLE_OFFSET_COMMIT)
                if require_stable and self._coordinator.transactional.is_unstable(group_id, topic, index)
                else _position(index, known.get(index, _NO_COMMIT))
                for index in indexes
            ]
            topics.append(OffsetFetchResponseTopics(name=topic, partitions=positions))
        return OffsetFetchResponseGroup(group_id=group_id, topics=topics)

    def offset_delete(
        self, context: RequestContext, request: OffsetDeleteRequest
    ) -> OffsetDeleteResponse | asyncio.Future[OffsetDeleteResponse]:
        error = self._refusal(request.group_id)
        if error is ErrorCode.NONE and not self._exists(request.group_id):
            error = ErrorCode.GROUP_ID_NOT_FOUND
        if error is not ErrorCode.NONE:
            return OffsetDeleteResponse(error_code=error)
        partitions = tuple(
            (topic.name, partition.partition_index)
            for topic in request.topics
            for partition in topic.partitions
        )
        return self._coordinator.submit(
            request.group_id,
            lambda token: DeleteOffsets(token, partitions, self._in_transactions(request.group_id)),
            lambda result: self._deletion_response(request, result),
        )

    def _deletion_response(self, request: OffsetDeleteRequest, result: OffsetsResult) -> OffsetDeleteResponse:
        if result.error is not ErrorCode.NONE:
            return OffsetDeleteResponse(error_code=result.error)
        return OffsetDeleteResponse(
            topics=[
                OffsetDeleteResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetDeleteResponsePartition(
                            partition_index=partition.partition_index,
                            error_code=self._deletion_error(topic.name, partition.partition_index, result),
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _deletion_error(self, topic: str, index: int, result: OffsetsResult) -> ErrorCode:
        image = self._context.metadata.topic(topic)
        if image is None or not 0 <= index < image.partition_count:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return result.errors.get((topic, index), ErrorCode.NONE)

    # -- administration ------------------------------------------------------------------------------------

    def describe_groups(
        self, context: RequestContext, request: DescribeGroupsRequest
    ) -> DescribeGroupsResponse:
        return DescribeGroupsResponse(
            groups=[self._describe(group_id, context.api_version) for group_id in request.groups]
        )

    def _describe(self, group_id: str, version: int) -> DescribedGroup:
        error = self._coordinator.unavailable(group_id)
        if error is not ErrorCode.NONE:
            return DescribedGroup(group_id=group_id, error_code=error)
        group = self._coordinator.groups.get(group_id)
        if group is not None and group.consumer is None:
            return _described(group)
        described = DescribedGroup(group_id=group_id, group_state=Phase.DEAD.value)
        if version >= 6:
            what = "not found" if group is None else "is not a classic group"
            described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            described.error_message = f"Group {group_id} {what}."
        return described

    def list_groups(self, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
        states = {state.lower() for state in request.states_filter}
        types = {kind.lower() for kind in request.types_filter}
        groups = [
            ListedGroup(
                group_id=group.group_id,
                protocol_type=CONSUMER_PROTOCOL_TYPE if group.consumer else group.protocol_type or "",
                group_state=group.state_name,
                group_type=_type_of(group),
            )
            for group in self._coordinator.groups.values()
            if (not states or group.state_name.lower() in states) and (not types or _type_of(group) in types)
        ]
        loading = self._coordinator.journal.is_loading
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if loading else ErrorCode.NONE
        return ListGroupsResponse(error_code=error, groups=groups)

    async def delete_groups(
        self, context: RequestContext, request: DeleteGroupsRequest
    ) -> DeleteGroupsResponse:
        outcomes = [(group_id, self._delete(group_id)) for group_id in request.groups_names]
        return DeleteGroupsResponse(
            results=[
                DeletableGroupResult(
                    group_id=group_id,
                    error_code=await outcome if isinstance(outcome, asyncio.Future) else outcome,
                )
                for group_id, outcome in outcomes
            ]
        )

    def _delete(self, group_id: str) -> ErrorCode | asyncio.Future[ErrorCode]:
        error = self._coordinator.unavailable(group_id)
        if error is not ErrorCode.NONE:
            return error
        if not self._exists(group_id):
            return ErrorCode.GROUP_ID_NOT_FOUND
        return self._coordinator.submit(
            group_id,
            lambda token: DeleteGroup(token, self._in_transactions(group_id)),
            lambda result: result.error,
        )

    def _exists(self, group_id: str) -> bool:
        """A group is there as soon as a transaction has committed offsets to it, though it has not ended."""
        return group_id in self._coordinator.groups or bool(self._in_transactions(group_id))

    def _in_transactions(self, group_id: str) -> frozenset[tuple[str, int]]:
        return self._coordinator.transactional.unstable_partitions(group_id)


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


def _commit_response(
    request: OffsetCommitRequest, error: int, errors: Mapping[tuple[str, int], ErrorCode]
) -> OffsetCommitResponse:
    """`error` for every partition that has none of its own in `errors`."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=errors.get((topic.name, partition.partition_index), error),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _failed_commit(request: OffsetCommitRequest, version: int, error: KafkaError) -> OffsetCommitResponse:
    return _commit_response(request, error.code, {})


def _failed_find(request: FindCoordinatorRequest, version: int, error: KafkaError) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if version >= 4 else [request.key]
    return _find_response([_no_coordinator(key, error.code, error.message) for key in keys], version)


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


def _unknown(topic: Any) -> ErrorCode:
    """Why a topic's partition is not there: asked for by name, or by an id that nobody has."""
    by_id = topic.topic_id.int and not topic.name
    return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _wanted(topics: Sequence[Any] | None) -> Wanted:
    return None if topics is None else [(topic.name, topic.partition_indexes) for topic in topics]


def _position(
    index: int, committed: CommittedOffset, error: int = ErrorCode.NONE
) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=error,
    )


def _described(group: Group) -> DescribedGroup:
    """Subscriptions and assignments are shown of a stable group only: before that they are in motion."""
    stable = group.phase is Phase.STABLE
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.phase.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if stable else "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol) if stable else b"",
                member_assignment=member.assignment if stable else b"",
            )
            for member in group.members.values()
        ],
    )
