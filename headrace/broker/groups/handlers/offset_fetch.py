"""OffsetFetch: the committed offsets of groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.broker.groups.handlers.requests import (
    FIRST_VERSION_WITH_IDS,
    name_topics,
)
from headrace.broker.groups.model.records import CommittedOffset
from headrace.broker.groups.offsets.validation import fetch_error
from headrace.broker.requests.answers import AnswerBudget
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.slices import Work
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import Operation, ResourceType
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

if TYPE_CHECKING:
    from headrace.broker.groups.coordinator import GroupCoordinator
    from headrace.broker.metadata.cluster import ClusterMetadata

_NO_COMMIT = CommittedOffset(offset=-1)

Wanted = Iterable[tuple[str, Iterable[int]]] | None


class OffsetFetchHandlers:
    def __init__(self, coordinator: GroupCoordinator, metadata: ClusterMetadata) -> None:
        self._coordinator = coordinator
        self._metadata = metadata

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                OffsetFetchRequest,
                OffsetFetchResponse,
                self.offset_fetch,
                within(group=Operation.DESCRIBE, topic=Operation.DESCRIBE),
            ),
        ]

    def offset_fetch(self, context: RequestContext, request: OffsetFetchRequest) -> Work[OffsetFetchResponse]:
        budget = AnswerBudget()
        if context.api_version >= 8:
            by_id = context.api_version >= FIRST_VERSION_WITH_IDS
            groups = []
            for group in request.groups:
                yield
                if by_id:
                    yield from name_topics(self._metadata, context, group.topics or ())
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
            # These versions have no error for the whole response, so every partition gets it.
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
        """Set the topic ids of an answer. Its topics are in the order of the request."""
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
        """Return a group's offsets. `require_stable` refuses those that an open transaction may change (KIP-447)."""
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
