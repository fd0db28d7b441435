"""Classic members of a group of the consumer protocol: their JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

To a classic member it is a group that another member leads. JoinGroup is answered at once, with the member epoch as
the generation. SyncGroup gives the assignment that the coordinator made. Heartbeat tells a member of a rebalance if it
is behind the group epoch, has to give up partitions or can get more. Then it joins again, and its subscription reports
the partitions that it owns. A member that does not join or sync within its rebalance timeout is removed.

Changes are stored before they are answered, as for heartbeats of the consumer protocol.

Differences from Kafka: a classic heartbeat also notices new partitions and makes a new target; Kafka leaves that to
members of the consumer protocol. A removed member that joins and reports owned partitions gets UNKNOWN_MEMBER_ID, so it
gives them up first; Kafka lets it read until its SyncGroup is answered.
"""

from __future__ import annotations

from headrace.broker.groups.model.assignment import NOTHING, ClassicSide, Current, MemberState
from headrace.broker.groups.model.classic import CONSUMER_PROTOCOL_TYPE
from headrace.broker.groups.model.consumer import ConsumerGroup, ConsumerMember, tombstones_of
from headrace.broker.groups.model.events import (
    Heartbeat,
    HeartbeatResult,
    Join,
    JoinResult,
    Leave,
    Leaver,
    LeaveResult,
    PendingConsumerChange,
    PendingConversion,
    Sync,
    SyncResult,
)
from headrace.broker.groups.model.records import PutCurrent, PutSubscription
from headrace.broker.groups.modern import assigning, changes, conversion, members, sessions
from headrace.broker.groups.modern.draft import Draft, Refused
from headrace.broker.groups.modern.reconcile import reconcile, without_epochs
from headrace.broker.groups.step import Step
from headrace.protocol.consumer_protocol import read_subscription, write_assignment
from headrace.protocol.errors import DecodeError, ErrorCode

# -- JoinGroup -----------------------------------------------------------------------------------------------


def join(step: Step, consumer: ConsumerGroup, event: Join) -> None:
    error, member_id = _join_error(step, consumer, event), event.member_id
    if error is ErrorCode.NONE and event.must_know_id and member_id == "" and event.instance_id is None:
        error, member_id = ErrorCode.MEMBER_ID_REQUIRED, event.new_member_id
    if error is ErrorCode.NONE:
        try:
            _join(step, consumer, event)
            return
        except Refused as refused:
            error = refused.error
        except DecodeError:
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    step.reply(event.token, JoinResult(error, member_id))


def _join_error(step: Step, consumer: ConsumerGroup, event: Join) -> ErrorCode:
    limits = step.limits
    if not limits.session_timeout_ms_min <= event.session_timeout_ms <= limits.session_timeout_ms_max:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if not (limits.allows_upgrade or limits.allows_downgrade):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    is_known = event.member_id in consumer.members or event.instance_id in consumer.static_members
    if not is_known and len(consumer.members) >= limits.consumer_group_size_max:
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if event.protocol_type != CONSUMER_PROTOCOL_TYPE or not event.protocols:
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    common = {name for name, _ in event.protocols}
    replaced = consumer.static_members.get(event.instance_id) if event.instance_id is not None else None
    for other in consumer.members.values():
        if (side := other.subscription.classic) and other.member_id not in (event.member_id, replaced):
            common &= {name for name, _ in side.protocols}
    return ErrorCode.NONE if common else ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def _join(step: Step, consumer: ConsumerGroup, event: Join) -> None:
    if _replaces_the_last_of_the_other_protocol(step, consumer, event):
        return
    draft = Draft(step.group.group_id, consumer)
    member_id = event.member_id or event.new_member_id
    before = _member_before(draft, event, member_id)
    is_new = member_id not in draft.state.members

    owned = conversion.identified(read_subscription(event.protocols[0][1]).owned, step.topics)
    if is_new and event.member_id != "" and owned:
        # It was removed while it was unreachable, and other members may own these partitions.
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a member and cannot own partitions.")
    subscription = conversion.classic_subscription(
        instance_id=event.instance_id if event.instance_id is not None else before.subscription.instance_id,
        client_id=event.client_id,
        client_host=event.client_host,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        side=ClassicSide(event.session_timeout_ms, event.protocols),
        metadata=event.protocols[0][1],
    )
    bumps = is_new or (subscription.topics, None) != (
        before.subscription.topics,
        before.subscription.pattern,
    )
    if is_new or subscription != before.subscription:
        draft.put(PutSubscription(draft.group_id, member_id, subscription))
        bumps |= assigning.update_patterns(draft, None)
    assigning.refresh(step, draft, bumps=bumps)

    state = draft.state
    member = state.members[member_id]
    current = member.current
    if not member.is_reconciled_to(state.target_epoch):
        wanted = state.target.get(member_id, NOTHING)
        current = reconcile(member.current, state.target_epoch, wanted, owned, state.owner)
        if current is not member.current or is_new:
            draft.put(PutCurrent(draft.group_id, member_id, current))
    result = JoinResult(
        ErrorCode.NONE,
        member_id,
        generation=current.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol=event.protocols[0][0],
    )
    changes.store(step, draft, PendingConsumerChange(event.token, draft.state, result, heard_of=member_id))


def _member_before(draft: Draft, event: Join, member_id: str) -> ConsumerMember:
    """Return the member as it was, or a new one. A returning static member takes its earlier place."""
    consumer = draft.state
    if event.instance_id is not None:
        holder = consumer.static_members.get(event.instance_id)
        if event.member_id != "":
            members.static_member(consumer, event.instance_id, event.member_id)
        elif holder is not None:
            return members.replace_static_member(draft, consumer.members[holder], member_id)
    known = consumer.members.get(member_id)
    return ConsumerMember(member_id) if known is None else members.as_it_is(known)


def _replaces_the_last_of_the_other_protocol(step: Step, consumer: ConsumerGroup, event: Join) -> bool:
    """Convert the group if a static member, the last of the consumer protocol, returns as a classic one."""
    holder = consumer.static_members.get(event.instance_id) if event.instance_id is not None else None
    if event.member_id != "" or holder is None or consumer.members[holder].is_classic:
        return False
    draft = members.without(step, consumer, [holder])
    if conversion.is_downgrade_due(step, draft.state):
        change = PendingConsumerChange(None, draft.state, None)
        conversion.begin_downgrade(step, consumer, draft.state, change, event)
    elif not draft.state.members and step.limits.allows_downgrade:
        step.group.appending = True
        tombstones = tuple(tombstones_of(step.group.group_id, consumer))
        step.append(tombstones, PendingConversion(event))
    else:
        return False
    return True


# -- SyncGroup, Heartbeat ------------------------------------------------------------------------------------


def _classic_member(
    consumer: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> ConsumerMember:
    if instance_id is not None:
        member = members.static_member(consumer, instance_id, member_id)
    else:
        found = consumer.members.get(member_id)
        if found is None:
            raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not a member.")
        member = found
    if not member.is_classic:
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} does not speak the classic protocol.")
    if generation != member.current.epoch:
        raise Refused(ErrorCode.ILLEGAL_GENERATION, f"{member_id} is in {member.current.epoch}.")
    return member


def sync(step: Step, consumer: ConsumerGroup, event: Sync) -> None:
    try:
        result = _assignment_for(step, consumer, event)
    except Refused as refused:
        result = SyncResult(refused.error)
    step.reply(event.token, result)


def _assignment_for(step: Step, consumer: ConsumerGroup, event: Sync) -> SyncResult:
    member = _classic_member(consumer, event.member_id, event.instance_id, event.generation)
    side, current = member.subscription.classic, member.current
    if (
        side is None
        or event.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE)
        or event.protocol not in (None, side.protocol)
    ):
        return SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    # A member with partitions to give up has joined already. It gives them up when it gets this answer.
    if current.epoch < consumer.epoch and current.state is not MemberState.UNREVOKED_PARTITIONS:
        sessions.expect_join(step, consumer, member)
        return SyncResult(ErrorCode.REBALANCE_IN_PROGRESS)
    consumer.syncs.pop(member.member_id, None)
    sessions.watch(step, consumer, member)
    assigned = conversion.named(without_epochs(current.assigned), step.topics)
    data = write_assignment(assigned, read_subscription(side.protocols[0][1]).version)
    return SyncResult(ErrorCode.NONE, CONSUMER_PROTOCOL_TYPE, side.protocol, data)


def heartbeat(step: Step, consumer: ConsumerGroup, event: Heartbeat) -> None:
    try:
        member = _classic_member(consumer, event.member_id, event.instance_id, event.generation)
    except Refused as refused:
        step.reply(event.token, HeartbeatResult(refused.error))
        return
    draft = Draft(step.group.group_id, consumer)
    assigning.refresh(step, draft, bumps=False)
    is_behind = _has_to_join(draft.state, member.member_id, member.current)
    result = HeartbeatResult(ErrorCode.REBALANCE_IN_PROGRESS if is_behind else ErrorCode.NONE)
    change = PendingConsumerChange(event.token, draft.state, result, heard_of=member.member_id)
    changes.store(step, draft, change)


def _has_to_join(state: ConsumerGroup, member_id: str, current: Current) -> bool:
    if current.epoch < state.epoch or current.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    if current.state is not MemberState.UNRELEASED_PARTITIONS:
        return False
    # It waits for partitions of other members: joining before all of them are free does not help.
    return not any(
        index not in current.assigned.get(topic_id, {}) and state.owner(topic_id, index) is not None
        for topic_id, indexes in state.target.get(member_id, NOTHING).items()
        for index in indexes
    )


# -- LeaveGroup ----------------------------------------------------------------------------------------------


def leave(step: Step, consumer: ConsumerGroup, event: Leave) -> None:
    """Take out classic members. An administrator removes static members of both protocols by instance id."""
    outcomes: list[tuple[Leaver, ErrorCode]] = []
    removed: list[str] = []
    for leaver in event.leavers:
        try:
            name = _leaving(consumer, leaver, removed)
        except Refused as refused:
            outcomes.append((leaver, refused.error))
        else:
            removed.append(name)
            outcomes.append((leaver, ErrorCode.NONE))
    result = LeaveResult(ErrorCode.NONE, tuple(outcomes))
    if not removed:
        step.reply(event.token, result)
        return
    draft = members.without(step, consumer, removed)
    changes.store_removal(step, consumer, draft, PendingConsumerChange(event.token, draft.state, result))


def _leaving(consumer: ConsumerGroup, leaver: Leaver, removed: list[str]) -> str:
    name, instance_id = leaver.member_id, leaver.instance_id
    if instance_id is not None:
        name = consumer.static_members.get(instance_id, "") if name == "" else name
        member: ConsumerMember | None = members.static_member(consumer, instance_id, name)
    else:
        member = consumer.members.get(name)
    if member is None or name in removed or not (member.is_classic or leaver.member_id == ""):
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{name} is not a member that can leave like this.")
    return name
