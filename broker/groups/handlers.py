"""The consumer group APIs on the wire: requests to events, results to responses.

Versions matter only here: what an old version cannot say is filled in, what it cannot hear is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from broker.cluster.endpoints import endpoint
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
from broker.groups.group import Group
from broker.groups.journal import encode_batch_in_slices
from broker.groups.model import CONSUMER_PROTOCOL_TYPE, CommittedOffset, Phase, PutOffset
from broker.groups.modern.positions import fetch_error
from broker.groups.offsets import is_too_long
from broker.requests.answers import AnswerBudget
from broker.requests.declaration import ApiDeclaration, RequestContext
from broker.security.requirement import within
from broker.security.rights import CLUSTER_NAME, Operation, ResourceType, denied
from broker.slices import Slices, Work
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
    from broker.cluster.identity import BrokerIdentity
    from broker.cluster.journal_topic import JournalTopic
    from broker.cluster.metadata import TopicManager
    from broker.groups.coordinator import GroupCoordinator
    from broker.ports import Clock, Entropy

GROUP_KEY_TYPE = 0
TRANSACTION_KEY_TYPE = 1
_KEY_TYPES = {GROUP_KEY_TYPE: ResourceType.GROUP, TRANSACTION_KEY_TYPE: ResourceType.TRANSACTIONAL_ID}
PREPARED_FROM = 64
"""Offsets of one commit: below they are encoded in a few milliseconds, where they are stored."""
DELETED_TOGETHER = 50
LEAVE_TOGETHER = 50
MEMBERS_MAX, PROTOCOLS_MAX = 10_000, 1000
"""What one request may name of a group's members and of a member's assignors; many times what clients do."""
_OFFSET_BYTES_MIN = 40  # of its record besides texts
_NO_COMMIT = CommittedOffset(offset=-1)
_FIRST_VERSION_WITH_IDS = 10  # of OffsetCommit and OffsetFetch

Errors = Mapping[tuple[str, int], ErrorCode]
Known = tuple[range, ErrorCode]
"""The indexes of a topic's partitions, and what is wrong with all others."""
Wanted = Iterable[tuple[str, Iterable[int]]] | None


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
        clock: Clock,
        entropy: Entropy,
        slices: Slices,
    ) -> None:
        self._coordinator = coordinator
        self._journals = {GROUP_KEY_TYPE: coordinator.journal, TRANSACTION_KEY_TYPE: transactions.journal}
        self._metadata = metadata
        self._identity = identity
        self._clock = clock
        self._entropy = entropy
        self._slices = slices

    def declarations(self) -> list[ApiDeclaration]:
        first_use = self._with_journal
        reads = partial(_of_group, Operation.READ)
        return [
            ApiDeclaration(
                OffsetCommitRequest,
                OffsetCommitResponse,
                reads(first_use(self.offset_commit)),
                within(group=Operation.READ, topic=Operation.READ),
                on_error=_failed_commit,
            ),
            ApiDeclaration(
                OffsetFetchRequest,
                OffsetFetchResponse,
                self.offset_fetch,
                within(group=Operation.DESCRIBE, topic=Operation.DESCRIBE),
            ),
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
                reads(first_use(self.join_group), again=True),
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
            ApiDeclaration(
                OffsetDeleteRequest,
                OffsetDeleteResponse,
                _of_group(Operation.DELETE, self.offset_delete),
                within(group=Operation.DELETE, topic=Operation.READ),
            ),
        ]

    def _with_journal(self, handler: Callable[[RequestContext, Any], Any]) -> Callable[..., Any]:
        """The journal's topic is created by the first request that needs it."""

        def handle(context: RequestContext, request: Any) -> Any:
            return handler(context, request) if self._coordinator.has_journal else first(context, request)

        async def first(context: RequestContext, request: Any) -> Any:
            await self._coordinator.journal.ensure()
            answer = handler(context, request)
            if isinstance(answer, Generator):
                answer = await self._slices.run(answer)
            return await answer if isinstance(answer, Awaitable) else answer

        return handle

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
        if (error := self._refusal(request.group_id)) is not ErrorCode.NONE:
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
        error = self._refusal(request.group_id)
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
    ) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
        if (error := self._refusal(request.group_id)) is not ErrorCode.NONE:
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
            if (error := self._refusal(request.group_id)) is not ErrorCode.NONE:
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

    def _refusal(self, group_id: str) -> ErrorCode:
        """Why no member of this group can be served at all, or NONE."""
        return self._coordinator.unavailable(group_id) if group_id else ErrorCode.INVALID_GROUP_ID

    # -- offsets -------------------------------------------------------------------------------------------

    def offset_commit(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> Work[OffsetCommitResponse | Awaitable[Any]]:
        if context.api_version >= _FIRST_VERSION_WITH_IDS:
            yield from self._name_topics(context, request.topics)
        error = self._coordinator.unavailable(request.group_id)
        generation = request.generation_id_or_member_epoch
        if error is ErrorCode.NONE and generation >= 0 and request.group_id not in self._coordinator.groups:
            is_new_client = context.api_version >= 9
            error = ErrorCode.GROUP_ID_NOT_FOUND if is_new_client else ErrorCode.ILLEGAL_GENERATION
        if error is not ErrorCode.NONE:
            return (yield from _commit_response(request, error, {}))
        offsets, known = yield from self._committed(context, request)
        errors: dict[tuple[str, int], ErrorCode] = {}
        try:
            batch = yield from prepared(self._coordinator, request.group_id, offsets, errors)
        except KafkaError as refused:
            return (yield from _commit_response(request, refused.code, errors, known))
        error = self._coordinator.unavailable(request.group_id)  # it may have begun to stop
        if error is not ErrorCode.NONE:
            return (yield from _commit_response(request, error, {}))
        outcome = self._coordinator.submit(
            request.group_id,
            lambda token: Commit(
                token,
                request.member_id,
                request.group_instance_id,
                generation,
                offsets,
                knows_epochs=context.api_version >= 9,
                batch=batch,
            ),
            _as_it_is,
        )

        def respond(result: OffsetsResult) -> Work[OffsetCommitResponse]:
            told = {**errors, **result.errors} if result.errors else errors
            return _commit_response(request, result.error, told, known)

        if isinstance(outcome, asyncio.Future):
            return _then(outcome, respond)
        return (yield from respond(outcome))

    def _committed(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> Work[tuple[dict[tuple[str, int], CommittedOffset], list[Known]]]:
        """The offsets to store, and of each topic of the request, in their order, the partitions that may have one:
        those that may not, hundreds of thousands perhaps, are not remembered one by one.
        """
        now_ms = self._clock.time_ms()
        retention_ms = request.retention_time_ms if context.api_version <= 4 else -1
        expire_ms = now_ms + retention_ms if retention_ms >= 0 else -1
        offsets: dict[tuple[str, int], CommittedOffset] = {}
        known: list[Known] = []
        for topic in request.topics:
            image = self._metadata.topic(topic.name)
            indexes = range(image.partition_count if image is not None else 0)
            yield
            if topic.name and not context.may(Operation.READ, ResourceType.TOPIC, topic.name):
                known.append((range(0), ErrorCode.TOPIC_AUTHORIZATION_FAILED))
                continue
            known.append((indexes, _unknown(topic)))
            for partition in topic.partitions:
                yield
                if partition.partition_index in indexes:
                    offsets[topic.name, partition.partition_index] = CommittedOffset(
                        offset=partition.committed_offset,
                        leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.committed_metadata or "",
                        commit_timestamp_ms=now_ms,
                        expire_timestamp_ms=expire_ms,
                    )
        return offsets, known

    def _name_topics(self, context: RequestContext, topics: Iterable[Any]) -> Work[None]:
        """Fill in the names of topics that were given by id; the name of one that is unknown, or must be to who asks,
        stays empty.
        """
        for topic in topics:
            yield
            image = self._metadata.topic_by_id(topic.topic_id)
            if image is not None and context.may(Operation.DESCRIBE, ResourceType.TOPIC, image.name):
                topic.name = image.name

    def offset_fetch(self, context: RequestContext, request: OffsetFetchRequest) -> Work[OffsetFetchResponse]:
        budget = AnswerBudget()
        if context.api_version >= 8:
            by_id = context.api_version >= _FIRST_VERSION_WITH_IDS
            groups = []
            for group in request.groups:
                yield
                if by_id:
                    yield from self._name_topics(context, group.topics or ())
                try:
                    answer = yield from self._fetch_group(
                        context,
                        budget,
                        group.group_id,
                        _wanted(group.topics),
                        request.require_stable,
                        group.member_id,
                        group.member_epoch,
                    )
                except KafkaError as error:
                    answer = OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
                if by_id:
                    yield from self._identify(answer, group.topics)
                groups.append(answer)
            return OffsetFetchResponse(groups=groups)
        fetched = yield from self._fetch_group(
            context, budget, request.group_id, _wanted(request.topics), request.require_stable
        )
        topics = fetched.topics
        if fetched.error_code and context.api_version < 2 and request.topics is not None:
            # There is no error of the whole yet: say it of every partition.
            topics = []
            for asked in request.topics:
                yield
                failed = OffsetFetchResponseTopics(name=asked.name)
                topics.append(failed)
                for index in asked.partition_indexes:
                    yield
                    failed.partitions.append(_position(index, _NO_COMMIT, fetched.error_code))
        response = OffsetFetchResponse(error_code=fetched.error_code, topics=[])
        for topic in topics:
            yield
            told = OffsetFetchResponseTopic(name=topic.name)
            response.topics.append(told)
            for position in topic.partitions:
                yield
                told.partitions.append(
                    OffsetFetchResponsePartition(
                        partition_index=position.partition_index,
                        committed_offset=position.committed_offset,
                        committed_leader_epoch=position.committed_leader_epoch,
                        metadata=position.metadata,
                        error_code=position.error_code,
                    )
                )
        return response

    def _identify(
        self, answer: OffsetFetchResponseGroup, asked: list[OffsetFetchRequestTopics] | None
    ) -> Work[None]:
        """Fill in the ids of an answer's topics, which stand in the order in which they were asked for."""
        if asked is None:
            for topic in answer.topics:
                yield
                image = self._metadata.topic(topic.name)
                if image is not None:
                    topic.topic_id = image.topic_id
            return
        for topic, wanted in zip(answer.topics, asked, strict=False):  # none when the whole group failed
            yield
            topic.topic_id = wanted.topic_id
            if not wanted.name:
                for partition in topic.partitions:
                    partition.error_code = ErrorCode.UNKNOWN_TOPIC_ID

    def _fetch_group(
        self,
        context: RequestContext,
        budget: AnswerBudget,
        group_id: str,
        wanted: Wanted,
        require_stable: bool,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> Work[OffsetFetchResponseGroup]:
        """With `require_stable` a position that an open transaction may change is not given (KIP-447)."""
        if not context.may(Operation.DESCRIBE, ResourceType.GROUP, group_id):
            return OffsetFetchResponseGroup(
                group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED
            )
        error = self._coordinator.unavailable(group_id)
        group = self._coordinator.groups.get(group_id)
        if error is ErrorCode.NONE and group is not None and group.consumer is not None:
            error = fetch_error(group.consumer, member_id, member_epoch)
        elif error is ErrorCode.NONE and group is None and member_id and member_epoch >= 0:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        if error is not ErrorCode.NONE:
            return OffsetFetchResponseGroup(group_id=group_id, error_code=error)
        offsets = group.offsets if group is not None else {}
        is_named = wanted is not None
        if wanted is None:
            known_partitions = {topic: set(partitions) for topic, partitions in offsets.items()}
            if require_stable:
                for topic, index in self._coordinator.transactional.unstable_partitions(group_id):
                    known_partitions.setdefault(topic, set()).add(index)
            wanted = [(topic, sorted(partitions)) for topic, partitions in known_partitions.items()]
        topics = []
        for topic, indexes in wanted:
            known = offsets.get(topic, {})
            yield
            is_seen = not topic or context.may(
                Operation.DESCRIBE, ResourceType.TOPIC, topic, audited=is_named
            )
            if not is_seen and not is_named:
                continue
            positions = []
            for index in indexes:
                yield
                if not is_seen:
                    position = _position(index, _NO_COMMIT, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                elif require_stable and self._coordinator.transactional.is_unstable(group_id, topic, index):
                    position = _position(index, _NO_COMMIT, ErrorCode.UNSTABLE_OFFSET_COMMIT)
                else:
                    position = _position(index, known.get(index, _NO_COMMIT))
                budget.charge(24 + len(position.metadata or ""))
                positions.append(position)
            topics.append(OffsetFetchResponseTopics(name=topic, partitions=positions))
        return OffsetFetchResponseGroup(group_id=group_id, topics=topics)

    async def offset_delete(
        self, context: RequestContext, request: OffsetDeleteRequest
    ) -> OffsetDeleteResponse | Work[OffsetDeleteResponse]:
        """A few at a time: each is deleted or not for itself."""
        error = self._refusal(request.group_id)
        if error is ErrorCode.NONE and not self._exists(request.group_id):
            error = ErrorCode.GROUP_ID_NOT_FOUND
        if error is not ErrorCode.NONE:
            return OffsetDeleteResponse(error_code=error)
        pace = self._slices.pace()
        errors: dict[tuple[str, int], ErrorCode] = {}
        partitions: list[tuple[str, int]] = []
        for topic in request.topics:
            if not context.may(Operation.READ, ResourceType.TOPIC, topic.name):
                for partition in topic.partitions:
                    errors[topic.name, partition.partition_index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    await pace.rest()
                continue
            for partition in topic.partitions:
                partitions.append((topic.name, partition.partition_index))
                await pace.rest()
        for first in range(0, max(len(partitions), 1), DELETED_TOGETHER):
            some = tuple(partitions[first : first + DELETED_TOGETHER])
            result = await self._delete_offsets(request.group_id, some)
            if result.error is not ErrorCode.NONE:
                return OffsetDeleteResponse(error_code=result.error)
            errors.update(result.errors)
            await pace.rest()
        return self._deletion_response(request, errors)

    async def _delete_offsets(self, group_id: str, partitions: tuple[tuple[str, int], ...]) -> OffsetsResult:
        outcome = self._coordinator.submit(
            group_id,
            lambda token: DeleteOffsets(token, partitions, self._in_transactions(group_id)),
            _as_it_is,
        )
        result: OffsetsResult = await outcome if isinstance(outcome, asyncio.Future) else outcome
        return result

    def _deletion_response(self, request: OffsetDeleteRequest, errors: Errors) -> Work[OffsetDeleteResponse]:
        response = OffsetDeleteResponse(topics=[])
        for topic in request.topics:
            yield
            told = OffsetDeleteResponseTopic(name=topic.name)
            response.topics.append(told)
            for partition in topic.partitions:
                yield
                index = partition.partition_index
                told.partitions.append(
                    OffsetDeleteResponsePartition(
                        partition_index=index, error_code=self._deletion_error(topic.name, index, errors)
                    )
                )
        return response

    def _deletion_error(self, topic: str, index: int, errors: Errors) -> ErrorCode:
        if errors.get((topic, index)) is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        image = self._metadata.topic(topic)
        if image is None or not 0 <= index < image.partition_count:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return errors.get((topic, index), ErrorCode.NONE)

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


def _of_group(
    operation: Operation, handler: Callable[[RequestContext, Any], Any], *, again: bool = False
) -> Callable[..., Any]:
    """For those who may do this to the group that the request names, and for nobody else. With `again` they have to be
    allowed to when the answer is there, too: it is waited for and tells of others.
    """

    def handle(context: RequestContext, request: Any) -> Any:
        context.require(operation, ResourceType.GROUP, request.group_id)
        answer = handler(context, request)
        if again and isinstance(answer, Awaitable) and not context.authorizer.is_open:
            return checked(context, request, answer)
        return answer

    async def checked(context: RequestContext, request: Any, answer: Awaitable[Any]) -> Any:
        told = await answer
        context.require(operation, ResourceType.GROUP, request.group_id)
        return told

    return handle


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
    request: OffsetCommitRequest, error: int, errors: Errors, known: Sequence[Known] = ()
) -> Work[OffsetCommitResponse]:
    """`error` for every partition that has none of its own in `errors`, and is one of the `known`.

    The request's partitions are taken out of it on the way: to free hundreds of thousands at once holds up others.
    """
    response = OffsetCommitResponse(topics=[])
    for position, topic in enumerate(request.topics):
        yield
        indexes, otherwise = known[position] if known else (None, ErrorCode.NONE)
        told = OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id)
        response.topics.append(told)
        partitions, topic.partitions = topic.partitions, []
        partitions.reverse()
        while partitions:
            yield
            index = partitions.pop().partition_index
            is_known = indexes is None or index in indexes
            told.partitions.append(
                OffsetCommitResponsePartition(
                    partition_index=index,
                    error_code=errors.get((topic.name, index), error) if is_known else otherwise,
                )
            )
    return response


def prepared(
    coordinator: GroupCoordinator,
    group_id: str,
    offsets: dict[tuple[str, int], CommittedOffset],
    errors: dict[tuple[str, int], ErrorCode],
    producer: tuple[int, int] | None = None,
) -> Work[bytes | None]:
    """What the journal shall have of a commit of many offsets, made beforehand, since storing it is one step; None for
    a few. Those whose metadata is too long go from `offsets` to `errors`.

    Raises KafkaError(INVALID_COMMIT_OFFSET_SIZE), as Kafka does, if it is more than the journal takes at once.
    """
    if len(offsets) <= PREPARED_FROM:
        return None
    limits = coordinator.limits_of_group(group_id)
    size, size_max = 0, coordinator.batch_bytes_max(group_id)
    for key, committed in list(offsets.items()):
        yield
        if is_too_long(committed.metadata, limits):
            del offsets[key]
            errors[key] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            continue
        size += _OFFSET_BYTES_MIN + len(group_id) + len(key[0]) + len(committed.metadata)
        if size > size_max:
            break
    if not offsets:
        return None
    if size <= size_max:
        records = [PutOffset(group_id, *key, committed) for key, committed in offsets.items()]
        now_ms = coordinator.now().time_ms
        batch = yield from encode_batch_in_slices(records, now_ms, producer)
        if len(batch) <= size_max:
            return batch
    raise KafkaError(
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
        f"{len(offsets)} offsets take more than the {size_max} bytes that are stored at once; commit fewer together",
    )


async def _then(outcome: asyncio.Future[Any], respond: Callable[[Any], Work[Any]]) -> Work[Any]:
    return respond(await outcome)


def _as_it_is(result: Any) -> Any:
    return result


def _failed_commit(
    request: OffsetCommitRequest, version: int, error: KafkaError
) -> Work[OffsetCommitResponse]:
    return _commit_response(request, error.code, {})


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


def _unknown(topic: Any) -> ErrorCode:
    """Why a topic's partition is not there: asked for by name, or by an id that nobody has."""
    by_id = topic.topic_id.int and not topic.name
    return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _wanted(topics: Sequence[Any] | None) -> Wanted:
    return None if topics is None else ((topic.name, topic.partition_indexes) for topic in topics)


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
