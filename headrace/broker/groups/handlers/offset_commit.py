"""OffsetCommit: offsets to the event `Commit`, its result to a response.

A commit can have hundreds of thousands of offsets, so other work runs between them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.broker.groups.handlers.requests import (
    FIRST_VERSION_WITH_IDS,
    after_journal,
    as_it_is,
    name_topics,
    of_group,
)
from headrace.broker.groups.journal.records import encode_batch_in_slices
from headrace.broker.groups.model.events import Commit, OffsetsResult
from headrace.broker.groups.model.records import CommittedOffset, PutOffset
from headrace.broker.groups.offsets.commits import is_too_long
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

if TYPE_CHECKING:
    from headrace.broker.groups.coordinator import GroupCoordinator
    from headrace.broker.metadata.cluster import ClusterMetadata
    from headrace.broker.runtime.ports import Clock

PREPARED_FROM = 64
"""Offsets of one commit from which its records are encoded beforehand. Fewer take at most a few milliseconds."""
_OFFSET_BYTES_MIN = 40  # bytes of a record, without its texts

Errors = Mapping[tuple[str, int], ErrorCode]
Known = tuple[range, ErrorCode]
"""The indexes of a topic's partitions, and the error of all other indexes."""


class OffsetCommitHandlers:
    def __init__(
        self, coordinator: GroupCoordinator, metadata: ClusterMetadata, clock: Clock, slices: Slices
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
        ]

    def offset_commit(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> Work[OffsetCommitResponse | Awaitable[Any]]:
        if context.api_version >= FIRST_VERSION_WITH_IDS:
            yield from name_topics(self._metadata, context, request.topics)
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
        error = self._coordinator.unavailable(request.group_id)  # the broker may have begun to stop
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
            as_it_is,
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
        """Return the offsets to store, and for each topic of the request, in order, its existing partitions.

        There can be hundreds of thousands of others, so they are not listed one by one.
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


def _commit_response(
    request: OffsetCommitRequest, error: int, errors: Errors, known: Sequence[Known] = ()
) -> Work[OffsetCommitResponse]:
    """Build the response. A known partition without an error in `errors` gets `error`.

    The request's partitions are freed one by one: freeing hundreds of thousands at once blocks the event loop.
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
    """Encode the records of a commit of many offsets, because a step cannot rest; None for few offsets.

    Offsets whose metadata is too long are moved from `offsets` to `errors`. Raises, as Kafka does,
    KafkaError(INVALID_COMMIT_OFFSET_SIZE) if the batch is larger than the journal accepts.
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


def _failed_commit(
    request: OffsetCommitRequest, version: int, error: KafkaError
) -> Work[OffsetCommitResponse]:
    return _commit_response(request, error.code, {})


def _unknown(topic: Any) -> ErrorCode:
    """Return the error of a partition that does not exist, for a topic by name or by id."""
    by_id = topic.topic_id.int and not topic.name
    return ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
