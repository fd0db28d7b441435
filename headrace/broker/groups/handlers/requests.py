"""Steps that the handlers of groups share: authorization, the journal, the coordinator, and topic ids."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any

from headrace.broker.requests.declaration import RequestContext
from headrace.broker.runtime.slices import Slices, Work
from headrace.broker.security.rights import Operation, ResourceType
from headrace.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.groups.coordinator import GroupCoordinator
    from headrace.broker.metadata.cluster import ClusterMetadata

FIRST_VERSION_WITH_IDS = 10  # the same for OffsetCommit and OffsetFetch


def after_journal(
    coordinator: GroupCoordinator, slices: Slices, handler: Callable[[RequestContext, Any], Any]
) -> Callable[..., Any]:
    """Create the journal's topic before `handler`, if it does not exist yet."""

    def handle(context: RequestContext, request: Any) -> Any:
        return handler(context, request) if coordinator.has_journal else first(context, request)

    async def first(context: RequestContext, request: Any) -> Any:
        await coordinator.journal.ensure()
        answer = handler(context, request)
        if isinstance(answer, Generator):
            answer = await slices.run(answer)
        return await answer if isinstance(answer, Awaitable) else answer

    return handle


def refusal(coordinator: GroupCoordinator, group_id: str) -> ErrorCode:
    """Return why this broker cannot serve the group, or NONE."""
    return coordinator.unavailable(group_id) if group_id else ErrorCode.INVALID_GROUP_ID


def of_group(
    operation: Operation, handler: Callable[[RequestContext, Any], Any], *, again: bool = False
) -> Callable[..., Any]:
    """Require `operation` on the request's group. Raises KafkaError.

    With `again` it is required once more when the answer is ready: the answer has waited, and shows other members.
    """

    def handle(context: RequestContext, request: Any) -> Any:
        context.require(operation, ResourceType.GROUP, request.group_id)
        answer = handler(context, request)
        if again and isinstance(answer, Awaitable) and not context.authorizer.is_open:
            return checked(context, request, answer)
        return answer

    async def checked(context: RequestContext, request: Any, answer: Awaitable[Any]) -> Any:
        response = await answer
        context.require(operation, ResourceType.GROUP, request.group_id)
        return response

    return handle


def name_topics(metadata: ClusterMetadata, context: RequestContext, topics: Iterable[Any]) -> Work[None]:
    """Set the names of topics that were given by id. The name of an unknown topic stays empty.

    Without DESCRIBE, a topic is answered as an unknown one.
    """
    for topic in topics:
        yield
        image = metadata.topic_by_id(topic.topic_id)
        if image is not None and context.may(Operation.DESCRIBE, ResourceType.TOPIC, image.name):
            topic.name = image.name


def as_it_is(result: Any) -> Any:
    return result
