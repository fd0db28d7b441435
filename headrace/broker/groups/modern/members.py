"""Members of a group of the consumer protocol: static members, and taking members out."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.broker.groups.model.assignment import NOTHING, Current, MemberState
from headrace.broker.groups.model.consumer import ConsumerGroup, ConsumerMember, metadata_hash
from headrace.broker.groups.model.records import (
    DropCurrent,
    DropSubscription,
    DropTarget,
    ModernRecord,
    PutCurrent,
    PutEpoch,
    PutSubscription,
    PutTarget,
)
from headrace.broker.groups.modern import assigning
from headrace.broker.groups.modern.draft import Draft, Refused
from headrace.broker.groups.step import Step
from headrace.protocol.errors import ErrorCode


def static_member(consumer: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerMember:
    """Return the member that has the instance id. Raises Refused if it is not `member_id`."""
    holder = consumer.static_members.get(instance_id)
    if holder is None:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if holder != member_id:
        raise Refused(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {holder}.",
        )
    return consumer.members[holder]


def as_it_is(member: ConsumerMember) -> ConsumerMember:
    """Return a copy, to compare with after the draft has changed."""
    return ConsumerMember(member.member_id, member.subscription, member.current)


def replace_static_member(draft: Draft, previous: ConsumerMember, member_id: str) -> ConsumerMember:
    """Give the assignment of `previous` to a new member id of the same instance."""
    group_id, target = draft.group_id, draft.state.target.get(previous.member_id, NOTHING)
    current = Current(0, 0, MemberState.STABLE, previous.current.assigned)
    for record in _removal(group_id, previous.member_id):
        draft.put(record)
    draft.put(PutSubscription(group_id, member_id, previous.subscription))
    draft.put(PutTarget(group_id, member_id, target))
    draft.put(PutCurrent(group_id, member_id, current))
    return ConsumerMember(member_id, previous.subscription, current)


def without(step: Step, consumer: ConsumerGroup, member_ids: Iterable[str]) -> Draft:
    """Return the group without these members. The next heartbeat computes the new target."""
    draft = Draft(step.group.group_id, consumer)
    for member_id in member_ids:
        for record in _removal(draft.group_id, member_id):
            draft.put(record)
    assigning.update_patterns(draft, None)
    state = draft.state
    draft.put(
        PutEpoch(draft.group_id, state.epoch + 1, metadata_hash(step.topics, state.subscribed_topics()))
    )
    draft.state.seen_version = step.topics.version
    return draft


def _removal(group_id: str, member_id: str) -> tuple[ModernRecord, ...]:
    return (
        DropCurrent(group_id, member_id),
        DropTarget(group_id, member_id),
        DropSubscription(group_id, member_id),
    )
