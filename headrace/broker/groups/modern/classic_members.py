"""Members of the classic protocol in a group of the consumer protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

To them it looks like a group whose leader is somebody else: JoinGroup is answered at once, with the member epoch
as the generation, and SyncGroup has the assignment that the coordinator made. A member that is behind the group,
that has partitions to give up or that may have more by now is told of a rebalance by its heartbeat, and joins
again; what its subscription says it owns is what a consumer's heartbeat would have reported. A member that does
not join, or does not sync, within its rebalance timeout is removed, so nobody waits for it for ever.

Nothing is answered before it is stored, as in `broker.groups.modern.heartbeat`. Differences from Kafka: a
heartbeat here notices new partitions and makes a new target too, where Kafka waits for a member of the consumer
protocol to do so; a member that was removed and joins as if it still owned something is told that it is unknown,
so it lets go first (Kafka lets it read on until its SyncGroup is answered).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.groups.consumer_protocol import read_subscription, write_assignment
from headrace.broker.groups.events import (
    Append,
    Heartbeat,
    HeartbeatResult,
    Join,
    JoinResult,
    Leave,
    Leaver,
    LeaveResult,
    PendingConsumerChange,
    PendingConversion,
    Reply,
    Sync,
    SyncResult,
)
from headrace.broker.groups.model import CONSUMER_PROTOCOL_TYPE
from headrace.broker.groups.modern import conversion
from headrace.broker.groups.modern import heartbeat as modern
from headrace.broker.groups.modern.draft import Draft, Refused
from headrace.broker.groups.modern.model import (
    NOTHING,
    ClassicSide,
    ConsumerGroup,
    ConsumerMember,
    Current,
    MemberState,
    PutCurrent,
    PutSubscription,
    tombstones_of,
)
from headrace.broker.groups.modern.reconcile import reconcile, without_epochs
from headrace.protocol.errors import DecodeError, ErrorCode

if TYPE_CHECKING:
    from headrace.broker.groups.rebalance import Rebalance


# -- JoinGroup -----------------------------------------------------------------------------------------------


def join(step: Rebalance, consumer: ConsumerGroup, event: Join) -> None:
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
    step.effects.append(Reply(event.token, JoinResult(error, member_id)))


def _join_error(step: Rebalance, consumer: ConsumerGroup, event: Join) -> ErrorCode:
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


def _join(step: Rebalance, consumer: ConsumerGroup, event: Join) -> None:
    if _replaces_the_last_of_the_other_protocol(step, consumer, event):
        return
    draft = Draft(step.group.group_id, consumer)
    member_id = event.member_id or event.new_member_id
    before = _member_before(draft, event, member_id)
    is_new = member_id not in draft.state.members

    owned = conversion.identified(read_subscription(event.protocols[0][1]).owned, step.topics)
    if is_new and event.member_id != "" and owned:
        # It was removed while it could not be heard, and others may have these by now.
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
        bumps |= modern.update_patterns(draft, None)
    modern.refresh(step, draft, bumps=bumps)

    state = draft.state
    member = state.members[member_id]
    current = member.current
    if not member.is_reconciled_to(state.target_epoch):
        target = state.target.get(member_id, NOTHING)
        current = reconcile(member.current, state.target_epoch, target, owned, state.owner)
        if current is not member.current or is_new:
            draft.put(PutCurrent(draft.group_id, member_id, current))
    result = JoinResult(
        ErrorCode.NONE,
        member_id,
        generation=current.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol=event.protocols[0][0],
    )
    modern.store(step, draft, PendingConsumerChange(event.token, draft.state, result, heard_of=member_id))


def _member_before(draft: Draft, event: Join, member_id: str) -> ConsumerMember:
    """The member as it was, or a new one. A static member that comes back takes its predecessor's place."""
    consumer = draft.state
    if event.instance_id is not None:
        holder = consumer.static_members.get(event.instance_id)
        if event.member_id != "":
            modern.static_member(consumer, event.instance_id, event.member_id)
        elif holder is not None:
            return modern.replace_static(draft, consumer.members[holder], member_id)
    known = consumer.members.get(member_id)
    return ConsumerMember(member_id) if known is None else modern.as_it_is(known)


def _replaces_the_last_of_the_other_protocol(step: Rebalance, consumer: ConsumerGroup, event: Join) -> bool:
    """A static member of the consumer protocol comes back under the classic one; with it goes the protocol."""
    holder = consumer.static_members.get(event.instance_id) if event.instance_id is not None else None
    if event.member_id != "" or holder is None or consumer.members[holder].is_classic:
        return False
    draft = modern.without(step, consumer, [holder])
    if conversion.is_downgrade_due(step, draft.state):
        change = PendingConsumerChange(None, draft.state, None)
        conversion.begin_downgrade(step, consumer, draft.state, change, event)
    elif not draft.state.members and step.limits.allows_downgrade:
        step.group.appending = True
        tombstones = tuple(tombstones_of(step.group.group_id, consumer))
        step.effects.append(Append(tombstones, PendingConversion(event)))
    else:
        return False
    return True


# -- SyncGroup, Heartbeat ------------------------------------------------------------------------------------


def _classic_member(
    consumer: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> ConsumerMember:
    if instance_id is not None:
        member = modern.static_member(consumer, instance_id, member_id)
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


def sync(step: Rebalance, consumer: ConsumerGroup, event: Sync) -> None:
    try:
        result = _assignment_for(step, consumer, event)
    except Refused as refused:
        result = SyncResult(refused.error)
    step.effects.append(Reply(event.token, result))


def _assignment_for(step: Rebalance, consumer: ConsumerGroup, event: Sync) -> SyncResult:
    member = _classic_member(consumer, event.member_id, event.instance_id, event.generation)
    side, current = member.subscription.classic, member.current
    if (
        side is None
        or event.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE)
        or event.protocol not in (None, side.protocol)
    ):
        return SyncResult(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    # One that has partitions to give up has joined already: it gives them up by what it is told now.
    if current.epoch < consumer.epoch and current.state is not MemberState.UNREVOKED_PARTITIONS:
        modern.expect_join(step, consumer, member)
        return SyncResult(ErrorCode.REBALANCE_IN_PROGRESS)
    consumer.syncs.pop(member.member_id, None)
    modern.watch(step, consumer, member)
    assigned = conversion.named(without_epochs(current.assigned), step.topics)
    data = write_assignment(assigned, read_subscription(side.protocols[0][1]).version)
    return SyncResult(ErrorCode.NONE, CONSUMER_PROTOCOL_TYPE, side.protocol, data)


def heartbeat(step: Rebalance, consumer: ConsumerGroup, event: Heartbeat) -> None:
    try:
        member = _classic_member(consumer, event.member_id, event.instance_id, event.generation)
    except Refused as refused:
        step.effects.append(Reply(event.token, HeartbeatResult(refused.error)))
        return
    draft = Draft(step.group.group_id, consumer)
    modern.refresh(step, draft, bumps=False)
    is_behind = _has_to_join(draft.state, member.member_id, member.current)
    result = HeartbeatResult(ErrorCode.REBALANCE_IN_PROGRESS if is_behind else ErrorCode.NONE)
    change = PendingConsumerChange(event.token, draft.state, result, heard_of=member.member_id)
    modern.store(step, draft, change)


def _has_to_join(state: ConsumerGroup, member_id: str, current: Current) -> bool:
    if current.epoch < state.epoch or current.state is MemberState.UNREVOKED_PARTITIONS:
        return True
    if current.state is not MemberState.UNRELEASED_PARTITIONS:
        return False
    # It waits for partitions of others: there is no use in joining before all of them are free.
    return not any(
        index not in current.assigned.get(topic_id, {}) and state.owner(topic_id, index) is not None
        for topic_id, indexes in state.target.get(member_id, NOTHING).items()
        for index in indexes
    )


# -- LeaveGroup ----------------------------------------------------------------------------------------------


def leave(step: Rebalance, consumer: ConsumerGroup, event: Leave) -> None:
    """Members of the classic protocol leave; an administrator removes static members of either by name."""
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
        step.effects.append(Reply(event.token, result))
        return
    draft = modern.without(step, consumer, removed)
    modern.store_removal(step, consumer, draft, PendingConsumerChange(event.token, draft.state, result))


def _leaving(consumer: ConsumerGroup, leaver: Leaver, removed: list[str]) -> str:
    name, instance_id = leaver.member_id, leaver.instance_id
    if instance_id is not None:
        name = consumer.static_members.get(instance_id, "") if name == "" else name
        member: ConsumerMember | None = modern.static_member(consumer, instance_id, name)
    else:
        member = consumer.members.get(name)
    if member is None or name in removed or not (member.is_classic or leaver.member_id == ""):
        raise Refused(ErrorCode.UNKNOWN_MEMBER_ID, f"{name} is not a member that can leave like this.")
    return name
