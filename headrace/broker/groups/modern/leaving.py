"""Members that leave, and members that are removed because a deadline has passed."""

from __future__ import annotations

from msgspec.structs import replace

from headrace.broker.groups.model.assignment import LEAVING_STATIC_EPOCH, MemberState
from headrace.broker.groups.model.events import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    PendingConsumerChange,
)
from headrace.broker.groups.model.records import PutCurrent
from headrace.broker.groups.modern import changes, members
from headrace.broker.groups.modern.draft import Draft, Refused
from headrace.broker.groups.step import Step
from headrace.protocol.errors import ErrorCode


def leave(step: Step, event: ConsumerHeartbeat) -> None:
    """Take the member out. A static member that will come back (epoch -2) keeps its partitions. Raises Refused."""
    consumer = step.group.consumer
    if consumer is None:
        raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {step.group.group_id} is not a consumer group.")
    if event.instance_id is not None:
        member = members.static_member(consumer, event.instance_id, event.member_id)
    elif event.member_id in consumer.members:
        member = consumer.members[event.member_id]
    else:
        raise Refused(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Member {event.member_id} is not a member of group {step.group.group_id}.",
        )
    result = ConsumerHeartbeatResult(ErrorCode.NONE, member_id=event.member_id, epoch=event.epoch)
    if event.epoch == LEAVING_STATIC_EPOCH:
        draft = Draft(step.group.group_id, consumer)
        left = replace(member.current, epoch=LEAVING_STATIC_EPOCH, state=MemberState.STABLE, revoking={})
        draft.put(PutCurrent(draft.group_id, member.member_id, left))
        changes.store(step, draft, PendingConsumerChange(event.token, draft.state, result))
    else:
        draft = members.without(step, consumer, [member.member_id])
        changes.store_removal(step, consumer, draft, PendingConsumerChange(event.token, draft.state, result))


def tick(step: Step) -> None:
    """Remove members whose session has ended, or that did not revoke, join or sync in time."""
    consumer, now = step.group.consumer, step.now.monotonic
    if consumer is None:
        return
    late = [name for name, deadline in consumer.sessions.items() if deadline <= now]
    for name, (deadline, told) in list(consumer.revocations.items()):
        if consumer.members[name].current is not told:
            del consumer.revocations[name]  # a static member that left for a moment
        elif deadline <= now and name not in late:
            late.append(name)
    for deadlines in (consumer.joins, consumer.syncs):
        late.extend(name for name, deadline in deadlines.items() if deadline <= now and name not in late)
    if late:
        draft = members.without(step, consumer, late)
        changes.store_removal(
            step, consumer, draft, PendingConsumerChange(None, draft.state, None, late=tuple(late))
        )
