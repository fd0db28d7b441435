"""The consumer group protocol: what a ConsumerGroupHeartbeat does to a group, and what time does.

A heartbeat creates or updates its member; a change of members or subscriptions bumps the group epoch; a group epoch
ahead of the target makes a new target assignment; then the member is brought one step towards it. All that changes is
first made on a draft, whose records go to the journal; the draft becomes the group when they are there, and nothing
has happened if they cannot be written. A heartbeat without news writes nothing.

Invariants
- A partition has one owner at a time (`reconcile`).
- Members of one group agree on the target: it is stored with its epoch before anybody is told.
- A static member that left for a moment (epoch -2) keeps its partitions until its session is over; its
  successor takes them over without a new target.

Sources: KIP-848, KIP-1082 (member ids of clients).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from msgspec.structs import replace

from headrace.broker.groups.events import (
    Append,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    HeartbeatResult,
    JoinResult,
    LeaveResult,
    PatternsResolved,
    PendingConsumerChange,
    PendingDowngrade,
    Reply,
    Result,
)
from headrace.broker.groups.modern import conversion
from headrace.broker.groups.modern.assignors import ASSIGNORS, Subscriber
from headrace.broker.groups.modern.draft import Draft, Refused
from headrace.broker.groups.modern.model import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    LEAVING_STATIC_EPOCH,
    NOTHING,
    ConsumerGroup,
    ConsumerMember,
    Current,
    DropCurrent,
    DropPattern,
    DropSubscription,
    DropTarget,
    MemberState,
    ModernRecord,
    PutCurrent,
    PutEpoch,
    PutPattern,
    PutSubscription,
    PutTarget,
    PutTargetEpoch,
    ResolvedPattern,
    Subscription,
    metadata_hash,
)
from headrace.broker.groups.modern.reconcile import reconcile, without_epochs
from headrace.broker.runtime.pattern import PatternError, compile_pattern
from headrace.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.groups.rebalance import Rebalance

RETRY_SECONDS = 1.0
"""When a member whose time is over could not be removed, because the journal refused, it is tried again."""


# -- heartbeats ----------------------------------------------------------------------------------------------


def heartbeat(step: Rebalance, event: ConsumerHeartbeat) -> None:
    try:
        check_request(event, step.limits.consumer_assignors)
        if event.epoch in (LEAVING_EPOCH, LEAVING_STATIC_EPOCH):
            _leave(step, event)
        else:
            _stay(step, event)
    except Refused as refused:
        result = ConsumerHeartbeatResult(refused.error, message=refused.message)
        step.effects.append(Reply(event.token, result))


def check_request(event: ConsumerHeartbeat, assignors: Iterable[str]) -> None:
    """What can be said of the request without looking at the group."""

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


def _stay(step: Rebalance, event: ConsumerHeartbeat) -> None:
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
    # Another pattern moves partitions too when both patterns stay in use by others.
    bumps = is_new or (subscription.topics, subscription.pattern) != (
        before.subscription.topics,
        before.subscription.pattern,
    )
    if is_new or subscription != before.subscription:
        _check_pattern(draft.state, subscription.pattern)
        draft.put(PutSubscription(draft.group_id, member_id, subscription))
        bumps |= update_patterns(draft, event.resolved)
    refresh(step, draft, bumps=bumps)

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
    store(step, draft, PendingConsumerChange(event.token, draft.state, result, heard_of=member_id))


def _group_for(step: Rebalance, event: ConsumerHeartbeat) -> Draft:
    group = step.group
    if group.consumer is not None:
        return Draft(group.group_id, group.consumer)
    if event.epoch != JOINING_EPOCH:
        raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group.group_id} not found.")
    return conversion.upgrade(step)


def _take_member(draft: Draft, event: ConsumerHeartbeat) -> ConsumerMember:
    """The member as it was before this heartbeat; one that is not in the group is a new one."""
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
        return as_it_is(member)
    holder = consumer.static_members.get(event.instance_id)
    if event.epoch != JOINING_EPOCH:
        member = static_member(consumer, event.instance_id, event.member_id)
        _check_epoch(member.current, event)
        return as_it_is(member)
    if holder is None:
        known = consumer.members.get(event.member_id)
        return ConsumerMember(event.member_id) if known is None else as_it_is(known)
    previous = consumer.members[holder]
    if previous.current.epoch != LEAVING_STATIC_EPOCH and not previous.is_classic:
        raise Refused(
            ErrorCode.UNRELEASED_INSTANCE_ID,
            f"Static member {event.member_id} with instance id {event.instance_id} cannot join the group "
            f"because the instance id is owned by {holder} member.",
        )
    return replace_static(draft, previous, event.member_id)


def as_it_is(member: ConsumerMember) -> ConsumerMember:
    return ConsumerMember(member.member_id, member.subscription, member.current)


def static_member(consumer: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerMember:
    holder = consumer.static_members.get(instance_id)
    if holder is None:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if holder != member_id:
        raise Refused(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {holder}.",
        )
    return consumer.members[holder]


def replace_static(draft: Draft, previous: ConsumerMember, member_id: str) -> ConsumerMember:
    """The instance is back under another member id, and takes over what it had."""
    group_id, target = draft.group_id, draft.state.target.get(previous.member_id, NOTHING)
    current = Current(0, 0, MemberState.STABLE, previous.current.assigned)
    for record in _removal(group_id, previous.member_id):
        draft.put(record)
    draft.put(PutSubscription(group_id, member_id, previous.subscription))
    draft.put(PutTarget(group_id, member_id, target))
    draft.put(PutCurrent(group_id, member_id, current))
    return ConsumerMember(member_id, previous.subscription, current)


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
    """What the request leaves out stays as it was."""
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


# -- subscriptions and the target ----------------------------------------------------------------------------


def _check_pattern(consumer: ConsumerGroup, pattern: str | None) -> None:
    if pattern is None or pattern in consumer.patterns:
        return
    try:
        compile_pattern(pattern)
    except PatternError as error:
        raise Refused(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error}.",
        ) from None


def update_patterns(draft: Draft, resolved: ResolvedPattern | None) -> bool:
    """Patterns that nobody uses go; one that is new comes with its topics. Whether any did."""
    users = draft.state.pattern_users()
    stale = [pattern for pattern in draft.state.patterns if pattern not in users]
    for pattern in stale:
        draft.put(DropPattern(draft.group_id, pattern))
    fresh = [pattern for pattern in users if pattern not in draft.state.patterns]
    for pattern in fresh:
        if resolved is not None:
            draft.put(PutPattern(draft.group_id, pattern, resolved))
    return bool(stale or fresh)


def patterns_resolved(step: Rebalance, event: PatternsResolved) -> None:
    """The shell has matched the patterns against topics that have changed."""
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
    refresh(step, draft, bumps=bumps)
    store(step, draft, PendingConsumerChange(None, draft.state, None))


def refresh(step: Rebalance, draft: Draft, *, bumps: bool) -> None:
    """Bump the group epoch if something has changed, and make the target assignment of a new epoch."""
    state, topics = draft.state, step.topics
    if bumps or state.seen_version != topics.version:
        found = metadata_hash(topics, state.subscribed_topics())
        if bumps or found != state.metadata_hash:
            draft.put(PutEpoch(draft.group_id, state.epoch + 1, found))
        state = draft.state
        state.seen_version = topics.version
    if state.epoch > state.target_epoch:
        _assign(step, draft)


def _assign(step: Rebalance, draft: Draft) -> None:
    state = draft.state
    counts: dict[UUID, int] = {}
    ids: dict[str, UUID] = {}
    for name in state.subscribed_topics():
        image = step.topics.topic(name)
        if image is not None:
            ids[name] = image.topic_id
            counts[image.topic_id] = image.partition_count
    subscribers = [
        Subscriber(
            member_id=member.member_id,
            instance_id=member.subscription.instance_id,
            topics=frozenset(ids[name] for name in state.topics_of(member.subscription) if name in ids),
            assigned=state.target.get(member.member_id, NOTHING),
        )
        for member in state.members.values()
    ]
    assignor = state.assignor(step.limits.consumer_assignors[0])
    targets = ASSIGNORS[assignor](subscribers, counts)
    for member_id, target in targets.items():
        if draft.state.target.get(member_id) != target:
            draft.put(PutTarget(draft.group_id, member_id, target))
    draft.put(PutTargetEpoch(draft.group_id, draft.state.epoch, step.now.time_ms))


# -- leaving, fencing, time ----------------------------------------------------------------------------------


def _leave(step: Rebalance, event: ConsumerHeartbeat) -> None:
    consumer = step.group.consumer
    if consumer is None:
        raise Refused(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {step.group.group_id} is not a consumer group.")
    if event.instance_id is not None:
        member = static_member(consumer, event.instance_id, event.member_id)
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
        store(step, draft, PendingConsumerChange(event.token, draft.state, result))
    else:
        draft = without(step, consumer, [member.member_id])
        store_removal(step, consumer, draft, PendingConsumerChange(event.token, draft.state, result))


def _removal(group_id: str, member_id: str) -> tuple[ModernRecord, ...]:
    return (
        DropCurrent(group_id, member_id),
        DropTarget(group_id, member_id),
        DropSubscription(group_id, member_id),
    )


def without(step: Rebalance, consumer: ConsumerGroup, member_ids: Iterable[str]) -> Draft:
    """The group without these members; whoever is heard of next makes the new target."""
    draft = Draft(step.group.group_id, consumer)
    for member_id in member_ids:
        for record in _removal(draft.group_id, member_id):
            draft.put(record)
    update_patterns(draft, None)
    state = draft.state
    draft.put(
        PutEpoch(draft.group_id, state.epoch + 1, metadata_hash(step.topics, state.subscribed_topics()))
    )
    draft.state.seen_version = step.topics.version
    return draft


def tick(step: Rebalance) -> None:
    """Members whose session is over, or who did not do in time what they were told to, are removed."""
    consumer, now = step.group.consumer, step.now.monotonic
    if consumer is None:
        return
    late = [name for name, deadline in consumer.sessions.items() if deadline <= now]
    for name, (deadline, told) in list(consumer.revocations.items()):
        if consumer.members[name].current is not told:
            del consumer.revocations[name]  # it left for a moment
        elif deadline <= now and name not in late:
            late.append(name)
    for deadlines in (consumer.joins, consumer.syncs):
        late.extend(name for name, deadline in deadlines.items() if deadline <= now and name not in late)
    if late:
        draft = without(step, consumer, late)
        store_removal(step, consumer, draft, PendingConsumerChange(None, draft.state, None, late=tuple(late)))


# -- the journal ---------------------------------------------------------------------------------------------


def store(step: Rebalance, draft: Draft, pending: PendingConsumerChange) -> None:
    if draft.records:
        step.group.appending = True
        if step.group.consumer is None:
            step.dismiss_waiting()
        step.effects.append(Append(tuple(draft.records), pending))
    else:
        _take_effect(step, pending)


def store_removal(
    step: Rebalance, consumer: ConsumerGroup, draft: Draft, pending: PendingConsumerChange
) -> None:
    """As `store`, for a change that removes members: with the last one of its protocol that ends."""
    if conversion.is_downgrade_due(step, draft.state):
        conversion.begin_downgrade(step, consumer, draft.state, pending)
    else:
        store(step, draft, pending)


def change_stored(step: Rebalance, pending: PendingConsumerChange, error: ErrorCode) -> None:
    step.group.appending = False
    if error is ErrorCode.NONE:
        _take_effect(step, pending)
    else:
        _not_stored(step, pending, error)


def downgrade_stored(step: Rebalance, pending: PendingDowngrade, error: ErrorCode) -> None:
    step.group.appending = False
    change, join = pending.change, pending.join
    if error is not ErrorCode.NONE:
        _not_stored(step, change, error)
        if join is not None:
            step.effects.append(Reply(join.token, JoinResult(error, join.member_id)))
        return
    conversion.downgrade(step, pending)
    if change.token is not None and change.result is not None:
        step.effects.append(Reply(change.token, change.result))
    if join is not None:
        step.join(join)


def _not_stored(step: Rebalance, pending: PendingConsumerChange, error: ErrorCode) -> None:
    consumer = step.group.consumer
    if consumer is not None:
        for name in pending.late:
            if name in consumer.members:
                retry = step.group.wake_by(step.now.monotonic + RETRY_SECONDS)
                consumer.sessions[name] = retry
                for deadlines in (consumer.revocations, consumer.joins, consumer.syncs):
                    deadlines.pop(name, None)
    if pending.token is not None:
        step.effects.append(Reply(pending.token, _failed(pending.result, error)))


def _failed(result: Result | None, error: ErrorCode) -> Result:
    match result:
        case LeaveResult():
            return LeaveResult(error)
        case JoinResult():
            return JoinResult(error, result.member_id)
        case HeartbeatResult():
            return HeartbeatResult(error)
        case _:
            message = "The change of the group could not be stored; try again."
            return ConsumerHeartbeatResult(error, message=message)


def _take_effect(step: Rebalance, pending: PendingConsumerChange) -> None:
    group, state = step.group, pending.state
    if group.consumer is None:
        group.become_consumer_group()
        group.consumer = state
        watch_all(step)
    group.consumer = state
    if pending.heard_of is not None and (member := state.members.get(pending.heard_of)) is not None:
        watch(step, state, member)
        match pending.result:
            case JoinResult():
                state.joins.pop(member.member_id, None)
                timeout_s = member.subscription.rebalance_timeout_ms / 1000
                state.syncs[member.member_id] = group.wake_by(step.now.monotonic + timeout_s)
            case HeartbeatResult(ErrorCode.REBALANCE_IN_PROGRESS):
                expect_join(step, state, member)
    if pending.token is not None and pending.result is not None:
        step.effects.append(Reply(pending.token, pending.result))


def watch(step: Rebalance, consumer: ConsumerGroup, member: ConsumerMember) -> None:
    """Start the member's session anew, and the time it has for giving partitions up."""
    group, now, name = step.group, step.now.monotonic, member.member_id
    side = member.subscription.classic
    if side is not None:
        consumer.sessions[name] = group.wake_by(now + side.session_timeout_ms / 1000)
        consumer.revocations.pop(name, None)
        return
    consumer.sessions[name] = group.wake_by(now + step.limits.consumer_session_timeout_ms / 1000)
    consumer.joins.pop(name, None)
    consumer.syncs.pop(name, None)
    if member.current.state is not MemberState.UNREVOKED_PARTITIONS:
        consumer.revocations.pop(name, None)
    elif consumer.revocations.get(name, (0.0, None))[1] is not member.current:
        deadline = group.wake_by(now + member.subscription.rebalance_timeout_ms / 1000)
        consumer.revocations[name] = (deadline, member.current)


def expect_join(step: Rebalance, consumer: ConsumerGroup, member: ConsumerMember) -> None:
    """A member of the classic protocol is told of a rebalance: from the first time on it has its timeout."""
    if member.member_id not in consumer.joins:
        timeout_s = member.subscription.rebalance_timeout_ms / 1000
        consumer.joins[member.member_id] = step.group.wake_by(step.now.monotonic + timeout_s)


def watch_all(step: Rebalance) -> None:
    """A group that was loaded: everybody has one session to be heard of again."""
    consumer = step.group.consumer
    if consumer is not None:
        for member in consumer.members.values():
            watch(step, consumer, member)
