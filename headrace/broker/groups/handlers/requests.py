"""What handlers of groups do before anything else: who may, whether the group is coordinated here, the journal."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any

from headrace.broker.requests.declaration import RequestContext
from headrace.broker.runtime.slices import Slices
from headrace.broker.security.rights import Operation, ResourceType
from headrace.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.groups.coordinator import GroupCoordinator


def after_journal(
    coordinator: GroupCoordinator, slices: Slices, handler: Callable[[RequestContext, Any], Any]
) -> Callable[..., Any]:
    """The journal's topic is created by the first request that needs it."""

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
    """Why no member of this group can be served at all, or NONE."""
    return coordinator.unavailable(group_id) if group_id else ErrorCode.INVALID_GROUP_ID


def of_group(
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
