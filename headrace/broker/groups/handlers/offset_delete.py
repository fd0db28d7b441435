"""OffsetDelete: committed offsets are deleted, a few partitions at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.broker.groups.handlers.requests import (
    as_it_is,
    of_group,
    refusal,
)
from headrace.broker.groups.model.events import DeleteOffsets, OffsetsResult
from headrace.broker.requests.declaration import ApiDeclaration, RequestContext
from headrace.broker.runtime.slices import Slices, Work
from headrace.broker.security.requirement import within
from headrace.broker.security.rights import Operation, ResourceType
from headrace.protocol.errors import ErrorCode
from headrace.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

if TYPE_CHECKING:
    from headrace.broker.groups.coordinator import GroupCoordinator
    from headrace.broker.metadata.cluster import ClusterMetadata

DELETED_TOGETHER = 50

Errors = Mapping[tuple[str, int], ErrorCode]


class OffsetDeleteHandlers:
    def __init__(self, coordinator: GroupCoordinator, metadata: ClusterMetadata, slices: Slices) -> None:
        self._coordinator = coordinator
        self._metadata = metadata
        self._slices = slices

    def declarations(self) -> list[ApiDeclaration]:
        return [
            ApiDeclaration(
                OffsetDeleteRequest,
                OffsetDeleteResponse,
                of_group(Operation.DELETE, self.offset_delete),
                within(group=Operation.DELETE, topic=Operation.READ),
            ),
        ]

    async def offset_delete(
        self, context: RequestContext, request: OffsetDeleteRequest
    ) -> OffsetDeleteResponse | Work[OffsetDeleteResponse]:
        """Delete a few offsets at a time. Each has its own outcome."""
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
            as_it_is,
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
