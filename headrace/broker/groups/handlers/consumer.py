"""ConsumerGroupHeartbeat (68) and ConsumerGroupDescribe (69)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.broker.groups.model.assignment import JOINING_EPOCH, NOTHING, Assignment, ResolvedPattern
from headrace.broker.groups.model.consumer import ConsumerGroup, ConsumerMember
from headrace.broker.groups.model.events import ConsumerHeartbeat, ConsumerHeartbeatResult
from headrace.broker.groups.model.group import Group
from headrace.broker.groups.modern.reconcile import without_epochs
from headrace.broker.requests.answers import AnswerBudget
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.invariants import invariant
from headrace.broker.runtime.slices import Work
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import Operation, ResourceType
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages import consumer_group_describe as describe_messages
from headrace.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
)
from headrace.protocol.messages.consumer_group_heartbeat import Assignment as WireAssignment
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

if TYPE_CHECKING:
    from headrace.broker.groups.coordinator import GroupCoordinator
    from headrace.broker.groups.handlers.patterns import PatternResolver
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.runtime.ports import Entropy

SUBSCRIBED_TOPICS_MAX = 10_000
"""Limit of topics that a member subscribes to by name. A pattern can match any number."""
CLASSIC_MEMBER_TYPE = 0
CONSUMER_MEMBER_TYPE = 1


class ConsumerGroupHandlers:
    def __init__(
        self,
        coordinator: GroupCoordinator,
        patterns: PatternResolver,
        metadata: ClusterMetadata,
        entropy: Entropy,
    ) -> None:
        self._coordinator = coordinator
        self._patterns = patterns
        self._metadata = metadata
        self._entropy = entropy

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                ConsumerGroupHeartbeatRequest,
                ConsumerGroupHeartbeatResponse,
                self.heartbeat,
                within(group=Operation.READ, topic=Operation.DESCRIBE),
            ),
            ApiDeclaration(
                ConsumerGroupDescribeRequest,
                ConsumerGroupDescribeResponse,
                self.describe,
                within(group=Operation.DESCRIBE, topic=Operation.DESCRIBE),
            ),
        ]

    # -- heartbeat -----------------------------------------------------------------------------------------

    def heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> Work[ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]]:
        context.require(Operation.READ, ResourceType.GROUP, request.group_id)
        coordinator = self._coordinator
        names = request.subscribed_topic_names
        if names is not None and len(names) > SUBSCRIBED_TOPICS_MAX:
            problem = f"{len(names)} topics are subscribed to by name; the limit is {SUBSCRIBED_TOPICS_MAX}"
            return _heartbeat_response(ConsumerHeartbeatResult(ErrorCode.INVALID_REQUEST, problem))
        for name in names or ():
            yield
            context.require(Operation.DESCRIBE, ResourceType.TOPIC, name)
        owned = None if request.topic_partitions is None else (yield from _owned(request.topic_partitions))
        if not request.group_id.strip():
            return _heartbeat_response(
                ConsumerHeartbeatResult(ErrorCode.INVALID_REQUEST, "GroupId can't be empty.")
            )
        error = coordinator.unavailable(request.group_id)
        if error is not ErrorCode.NONE:
            return _heartbeat_response(ConsumerHeartbeatResult(error))
        pattern = request.subscribed_topic_regex
        if not coordinator.has_journal or (
            pattern and not self._patterns.is_known(request.group_id, pattern)
        ):
            return self._heartbeat_later(context, request, owned)
        return self._heartbeat(context, request, owned, None)

    async def _heartbeat_later(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest, owned: Assignment | None
    ) -> ConsumerGroupHeartbeatResponse:
        """Create the journal, or match a new pattern outside of the event loop, and then apply the heartbeat."""
        if request.member_epoch == JOINING_EPOCH:
            await self._coordinator.journal.ensure()
        pattern, resolved = request.subscribed_topic_regex, None
        if pattern:
            resolved = await self._patterns.resolve(pattern, context)
        answer = self._heartbeat(context, request, owned, resolved)
        return await answer if isinstance(answer, asyncio.Future) else answer

    def _heartbeat(
        self,
        context: RequestContext,
        request: ConsumerGroupHeartbeatRequest,
        owned: Assignment | None,
        resolved: ResolvedPattern | None,
    ) -> ConsumerGroupHeartbeatResponse | asyncio.Future[ConsumerGroupHeartbeatResponse]:
        member_id = request.member_id
        if not member_id and context.api_version == 0 and request.member_epoch == JOINING_EPOCH:
            member_id = str(self._entropy.uuid())
        topics = request.subscribed_topic_names
        answer = self._coordinator.submit(
            request.group_id,
            lambda token: ConsumerHeartbeat(
                token=token,
                member_id=member_id,
                epoch=request.member_epoch,
                instance_id=request.instance_id,
                rack_id=request.rack_id,
                client_id=context.client_id or "",
                client_host=f"/{context.client_host}",
                rebalance_timeout_ms=request.rebalance_timeout_ms,
                topics=None if topics is None else tuple(topics),
                pattern=request.subscribed_topic_regex,
                assignor=request.server_assignor,
                owned=owned,
                chooses_its_id=context.api_version >= 1,
                resolved=resolved,
            ),
            _heartbeat_response,
        )
        self._patterns.refresh(request.group_id, context)
        return answer

    # -- describe ------------------------------------------------------------------------------------------

    def describe(
        self, context: RequestContext, request: ConsumerGroupDescribeRequest
    ) -> Work[ConsumerGroupDescribeResponse]:
        """Describe each group once, even if the request repeats it."""
        response = ConsumerGroupDescribeResponse(groups=[])
        budget = AnswerBudget()
        for group_id in dict.fromkeys(request.group_ids):
            yield
            try:
                context.require(Operation.DESCRIBE, ResourceType.GROUP, group_id)
                described = yield from self._describe(group_id, budget)
                yield from _require_topics(context, described)
                if request.include_authorized_operations and not described.error_code:
                    described.authorized_operations = context.operations(ResourceType.GROUP, group_id)
            except KafkaError as error:
                described = DescribedGroup(
                    group_id=group_id, error_code=error.code, error_message=error.message
                )
            response.groups.append(described)
        return response

    def _describe(self, group_id: str, budget: AnswerBudget) -> Work[DescribedGroup]:
        error = self._coordinator.unavailable(group_id) if group_id else ErrorCode.INVALID_GROUP_ID
        if error is not ErrorCode.NONE:
            return DescribedGroup(group_id=group_id, error_code=error)
        group = self._coordinator.groups.get(group_id)
        if group is None or group.consumer is None:
            what = "not found" if group is None else "is not a consumer group"
            return DescribedGroup(
                group_id=group_id,
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} {what}.",
            )
        return (yield from self._described(group, group.consumer, budget))

    def _described(self, group: Group, consumer: ConsumerGroup, budget: AnswerBudget) -> Work[DescribedGroup]:
        described = DescribedGroup(
            group_id=group.group_id,
            group_state=group.state_name,
            group_epoch=consumer.epoch,
            assignment_epoch=consumer.target_epoch,
            assignor_name=consumer.assignor(self._coordinator.limits.consumer_assignors[0]),
        )
        for member in list(consumer.members.values()):
            yield
            budget.charge(100 + sum(map(len, member.subscription.topics)))
            described.members.append(self._member(consumer, member))
        return described

    def _member(self, consumer: ConsumerGroup, member: ConsumerMember) -> Member:
        subscription = member.subscription
        return Member(
            member_id=member.member_id,
            instance_id=subscription.instance_id,
            rack_id=subscription.rack_id,
            member_epoch=member.current.epoch,
            client_id=subscription.client_id,
            client_host=subscription.client_host,
            subscribed_topic_names=list(subscription.topics),
            subscribed_topic_regex=subscription.pattern,
            assignment=self._named(without_epochs(member.current.assigned)),
            target_assignment=self._named(consumer.target.get(member.member_id, NOTHING)),
            member_type=CLASSIC_MEMBER_TYPE if member.is_classic else CONSUMER_MEMBER_TYPE,
        )

    def _named(self, assignment: Assignment) -> describe_messages.Assignment:
        entries = []
        for topic_id, partitions in assignment.items():
            image = self._metadata.topic_by_id(topic_id)
            if image is not None:
                entries.append(
                    describe_messages.TopicPartitions(
                        topic_id=topic_id, topic_name=image.name, partitions=sorted(partitions)
                    )
                )
        return describe_messages.Assignment(topic_partitions=entries)


def _require_topics(context: RequestContext, described: DescribedGroup) -> Work[None]:
    """Raise KafkaError if the description has a topic without DESCRIBE."""
    if context.authorizer.is_open:
        return
    for member in described.members:
        yield
        names = set(member.subscribed_topic_names or ())
        for assignment in (member.assignment, member.target_assignment):
            names.update(topic.topic_name for topic in assignment.topic_partitions)
        for name in names:
            if not context.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
                raise KafkaError(
                    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    "The group has described topic(s) that the client is not authorized to describe.",
                )


def _owned(topics: list[TopicPartitions]) -> Work[Assignment]:
    owned: dict[UUID, set[int]] = {}
    for topic in topics:
        yield
        if topic.partitions:
            owned.setdefault(topic.topic_id, set()).update(topic.partitions)
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}


def _heartbeat_response(result: Any) -> ConsumerGroupHeartbeatResponse:
    invariant(isinstance(result, ConsumerHeartbeatResult), "a heartbeat got the result of another request")
    assignment = result.assignment
    return ConsumerGroupHeartbeatResponse(
        error_code=result.error,
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=None
        if assignment is None
        else WireAssignment(
            topic_partitions=[
                TopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
                for topic_id, partitions in assignment.items()
            ]
        ),
    )
