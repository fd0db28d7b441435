"""ConsumerGroupHeartbeat: a member joins, reports its partitions, gets its next ones, or leaves.

A heartbeat creates or updates its member. A change of members or subscriptions raises the group epoch. A group epoch
above the target epoch makes a new target assignment. Then the member moves one step towards its target. All changes
are made on a draft, whose records are stored first. A heartbeat that changes nothing writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from headrace.broker.groups.model.assignment import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    LEAVING_STATIC_EPOCH,
    NOTHING,
    Current,
    MemberState,
    Subscription,
)
from headrace.broker.groups.model.consumer import ConsumerMember
from headrace.broker.groups.model.events import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    PatternsResolved,
    PendingConsumerChange,
)
from headrace.broker.groups.model.records import PutCurrent, PutPattern, PutSubscription
from headrace.broker.groups.modern import assigning, changes, conversion, leaving, members
from headrace.broker.groups.modern.draft import Draft, Refused
from headrace.broker.groups.modern.reconcile import reconcile, without_epochs
from headrace.broker.groups.step import Step
from headrace.protocol.errors import ErrorCode


def heartbeat(step: Step, event: ConsumerHeartbeat) -> None:
    try:
        check_request(event, step.limits.consumer_assignors)
        if event.epoch in (LEAVING_EPOCH, LEAVING_STATIC_EPOCH):
            leaving.leave(step, event)
        else:
            _stay(step, event)
    except Refused as refused:
        result = ConsumerHeartbeatResult(refused.error, message=refused.message)
        step.reply(event.token, result)


def check_request(event: ConsumerHeartbeat, assignors: Iterable[str]) -> None:
    """Raise Refused for a request that is invalid whatever the group's state is."""

    def refuse_empty(value: str | None, name: str) -> None:
        if value is not None and not value.strip():
            raise Refused(ErrorCode.INVALID_REQUEST, f"{name} can't be empty.")

    if event.chooses_its_id or event.epoch != JOINING_EPOCH:
        refuse_empty(event.member_id, "MemberId")
    refuse_empty(event.instance_id, "InstanceId")
    refuse_empty(event.rack_id, "RackId")
    if event.epoch == JOINING_EPOCH:
        if event.rebalance_timeout_ms == -1:
            problem = "RebalanceTimeoutMs must be provided in first request."
        elif event.owned is None or event.owned:
            problem = "TopicPartitions must be empty when (re-)joining."
        elif event.topics is None and event.pattern is None:
            problem = (
                "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )
        else:
            problem = ""
    elif event.epoch == LEAVING_STATIC_EPOCH and event.instance_id is None:
        problem = "InstanceId can't be null."
    elif event.epoch < LEAVING_STATIC_EPOCH:
        problem = "MemberEpoch is invalid."
    else:
        problem = ""
    if problem:
        raise Refused(ErrorCode.INVALID_REQUEST, problem)
    if event.assignor is not None and event.assignor not in assignors:
        raise Refused(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {event.assignor} is not supported. Supported assignors: {', '.join(assignors)}.",
        )


def _stay(step: Step, event: ConsumerHeartbeat) -> None:
    draft = _group_for(step, event)
    known = draft.state.members
    if event.member_id not in known and len(known) >= step.limits.consumer_group_size_max:
        raise Refused(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of "
            f"{step.limits.consumer_group_size_max} members.",
        )
    before = _take_member(draft, event)
    member_id = event.member_id
    is_new = member_id not in draft.state.members

    subscription = _updated(before.subscription, event)
    # A member that changes its pattern moves partitions, even if other members use both patterns.
    bumps = is_new or (subscription.topics, subscription.pattern) != (
        before.subscription.topics,
        before.subscription.pattern,
    )
    if is_new or subscription != before.subscription:
        assigning.check_pattern(draft.state, subscription.pattern)
        draft.put(PutSubscription(draft.group_id, member_id, subscription))
        bumps |= assigning.update_patterns(draft, event.resolved)
    assigning.refresh(step, draft, bumps=bumps)

    state = draft.state
    current = state.members[member_id].current
    target = state.target.get(member_id, NOTHING)
    if current.state is MemberState.UNKNOWN and (event.owned is None or event.owned):
        raise Refused(ErrorCode.FENCED_MEMBER_EPOCH, "The member's state is unknown; it must join again.")
    if not state.members[member_id].is_reconciled_to(state.target_epoch):
        moved = reconcile(current, state.target_epoch, target, event.owned, state.owner)
        if moved is not current or is_new:
            draft.put(PutCurrent(draft.group_id, member_id, moved))
            current = moved

    is_full = event.epoch == JOINING_EPOCH or (
        event.rebalance_timeout_ms != -1
        and (event.topics is not None or event.pattern is not None)
        and event.owned is not None
    )
    shown = without_epochs(current.assigned)
    result = ConsumerHeartbeatResult(
        ErrorCode.NONE,
        member_id=member_id,
        epoch=current.epoch,
        heartbeat_interval_ms=step.limits.consumer_heartbeat_interval_ms,
        assignment=shown if is_full or shown != without_epochs(before.current.assigned) else None,
    )
    changes.store(step, draft, PendingConsumerChange(event.token, draft.state, result, heard_of=member_id))


def _group_for(step: Step, event: ConsumerHeartbeat) -> Draft:
    group = step.group
    if group.consumer is not None:
        return Draft(group.group_id, group.consumer)
    if event.epoch != JOINING_EPOCH:
        raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group.group_id} not found.")
    return conversion.upgrade(step)


def _take_member(draft: Draft, event: ConsumerHeartbeat) -> ConsumerMember:
    """Return the member as it was before this heartbeat, or a new one. Raises Refused."""
    consumer = draft.state
    if event.instance_id is None:
        member = consumer.members.get(event.member_id)
        if member is None:
            if event.epoch != JOINING_EPOCH:
                raise Refused(
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    f"Member {event.member_id} is not a member of group {draft.group_id}.",
                )
            return ConsumerMember(event.member_id)
        _check_epoch(member.current, event)
        return members.as_it_is(member)
    holder = consumer.static_members.get(event.instance_id)
    if event.epoch != JOINING_EPOCH:
        member = members.static_member(consumer, event.instance_id, event.member_id)
        _check_epoch(member.current, event)
        return members.as_it_is(member)
    if holder is None:
        known = consumer.members.get(event.member_id)
        return ConsumerMember(event.member_id) if known is None else members.as_it_is(known)
    previous = consumer.members[holder]
    if previous.current.epoch != LEAVING_STATIC_EPOCH and not previous.is_classic:
        raise Refused(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {event.member_id} with instance id {event.instance_id} cannot join the group "
            f"because the instance id is owned by {holder} member.",
        )
    return members.replace_static_member(draft, previous, event.member_id)


def _check_epoch(current: Current, event: ConsumerHeartbeat) -> None:
    if event.epoch in (JOINING_EPOCH, current.epoch):
        return
    is_ahead = event.epoch > current.epoch
    if not is_ahead and event.epoch == current.previous_epoch and _has(current, event.owned):
        return  # the answer with the new epoch was lost
    raise Refused(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {'greater' if is_ahead else 'smaller'} member epoch ({event.epoch}) "
        f"than the one known by the group coordinator ({current.epoch}). The member must abandon all its "
        "partitions and rejoin.",
    )


def _has(current: Current, owned: object) -> bool:
    return isinstance(owned, dict) and all(
        indexes <= current.assigned.get(topic_id, {}).keys() for topic_id, indexes in owned.items()
    )


def _updated(old: Subscription, event: ConsumerHeartbeat) -> Subscription:
    """Return the subscription with the fields that the request has. It leaves out those that have not changed."""
    if (
        event.topics is None
        and event.pattern is None
        and event.rack_id is None
        and event.assignor is None
        and event.rebalance_timeout_ms == -1
        and event.instance_id in (None, old.instance_id)
        and old.client_id == event.client_id
        and old.client_host == event.client_host
        and old.classic is None
    ):
        return old
    return replace(
        old,
        instance_id=old.instance_id if event.instance_id is None else event.instance_id,
        rack_id=old.rack_id if event.rack_id is None else event.rack_id,
        client_id=event.client_id,
        client_host=event.client_host,
        topics=old.topics if event.topics is None else tuple(sorted(set(event.topics))),
        pattern=old.pattern if event.pattern is None else (event.pattern or None),
        rebalance_timeout_ms=old.rebalance_timeout_ms
        if event.rebalance_timeout_ms == -1
        else event.rebalance_timeout_ms,
        assignor=old.assignor if event.assignor is None else event.assignor,
        classic=None,
    )


def patterns_resolved(step: Step, event: PatternsResolved) -> None:
    """Take over the topics that the group's patterns match now, after topics have changed."""
    consumer = step.group.consumer
    if consumer is None:
        return
    draft = Draft(step.group.group_id, consumer)
    users = consumer.pattern_users()
    bumps = False
    for pattern, resolved in event.patterns.items():
        known = consumer.patterns.get(pattern)
        if pattern in users and (known is None or known.topics != resolved.topics):
            draft.put(PutPattern(draft.group_id, pattern, resolved))
            bumps = True
    assigning.refresh(step, draft, bumps=bumps)
    changes.store(step, draft, PendingConsumerChange(None, draft.state, None))
