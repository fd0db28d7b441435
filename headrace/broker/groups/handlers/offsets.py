"""The APIs of committed offsets on the wire: requests to events, results to responses.

Versions matter only here: what an old version cannot say is filled in, what it cannot hear is left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.broker.groups.handlers.requests import after_journal, of_group, refusal
from headrace.broker.groups.journal.records import encode_batch_in_slices
from headrace.broker.groups.model.events import Commit, DeleteOffsets, OffsetsResult
from headrace.broker.groups.model.records import CommittedOffset, PutOffset
from headrace.broker.groups.offsets.commits import is_too_long
from headrace.broker.groups.offsets.validation import fetch_error
from headrace.broker.requests.answers import AnswerBudget
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.slices import Slices, Work
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import Operation, ResourceType
from headrace.protocol.errors import ErrorCode, KafkaError
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
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
    from headrace.broker.cluster.topics import TopicManager
    from headrace.broker.groups.coordinator import GroupCoordinator
    from headrace.broker.runtime.ports import Clock

PREPARED_FROM = 64
"""Offsets of one commit: below they are encoded in a few milliseconds, where they are stored."""
DELETED_TOGETHER = 50
_OFFSET_BYTES_MIN = 40  # of its record besides texts
_NO_COMMIT = CommittedOffset(offset=-1)
_FIRST_VERSION_WITH_IDS = 10  # of OffsetCommit and OffsetFetch

Errors = Mapping[tuple[str, int], ErrorCode]
Known = tuple[range, ErrorCode]
"""The indexes of a topic's partitions, and what is wrong with all others."""
Wanted = Iterable[tuple[str, Iterable[int]]] | None


class OffsetHandlers:
    """The handlers of one coordinator."""

    def __init__(
        self, coordinator: GroupCoordinator, metadata: TopicManager, clock: Clock, slices: Slices
    ) -> None:
        self._coordinator = coordinator
        self._metadata = metadata
        self._clock = clock
        self._slices = slices

    def declarations(self) -> list[ApiDeclaration]:
        commit = after_journal(self._coordinator, self._slices, self.offset_commit)
        return [
            ApiDeclaration(
                OffsetCommitRequest,
                OffsetCommitResponse,
                of_group(Operation.READ, commit),
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
                OffsetDeleteRequest,
                OffsetDeleteResponse,
                of_group(Operation.DELETE, self.offset_delete),
                within(group=Operation.DELETE, topic=Operation.READ),
            ),
        ]

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
        error = refusal(self._coordinator, request.group_id)
        if error is ErrorCode.NONE and not self._coordinator.knows(request.group_id):
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
        transactional = self._coordinator.transactional
        outcome = self._coordinator.submit(
            group_id,
            lambda token: DeleteOffsets(token, partitions, transactional.unstable_partitions(group_id)),
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
