"""A static member that comes back under a new member id (KIP-345, KIP-814).

In a stable group it keeps its assignment and causes no rebalance. The change of its id is stored first; if that fails,
the old id is put back.
"""

from __future__ import annotations

from msgspec.structs import replace

from headrace.broker.groups.classic import members, rebalance
from headrace.broker.groups.model.classic import Member, Phase
from headrace.broker.groups.model.events import Join, JoinResult, PendingStaticMember
from headrace.broker.groups.model.records import PutGroup
from headrace.broker.groups.step import Step
from headrace.protocol.errors import ErrorCode


def replace_member(step: Step, event: Join, previous: Member) -> None:
    """Give the place of `previous` to a member with a new id. Clients that use the old id are fenced."""
    group = step.group
    members.finish_waiting(step, previous, ErrorCode.FENCED_INSTANCE_ID)
    previous_leader = group.leader
    member = replace(previous, member_id=event.new_member_id, is_new=False, knows_its_id=True)
    # It also takes the old position in the order, so leadership and votes stay.
    group.members = {
        (member.member_id if key == previous.member_id else key): (
            member if key == previous.member_id else kept
        )
        for key, kept in group.members.items()
    }
    group.pending_sync.discard(previous.member_id)
    if event.instance_id is not None:
        group.static_members[event.instance_id] = member.member_id
    if group.leader == previous.member_id:
        group.leader = member.member_id
    members.update(step, event, member)
    members.begin_session(step, member)

    if group.phase is Phase.STABLE and group.select_protocol() == group.protocol:
        stored = group.stored()
        pending = PendingStaticMember(
            stored, member.member_id, previous, previous_leader, event.can_skip_assignment
        )
        step.append((PutGroup(stored),), pending)
    elif group.phase is Phase.COMPLETING_REBALANCE:
        # The leader may have the old id already; its assignment would not have the new one.
        rebalance.begin(step)
    else:
        rebalance.begin_or_complete(step)


def stored(step: Step, pending: PendingStaticMember, error: ErrorCode) -> None:
    group = step.group
    if error is ErrorCode.NONE:
        group.journalled = pending.stored
    member = group.members.get(pending.member_id)
    if member is None or member.awaiting_join is None or group.phase is not Phase.STABLE:
        return
    token, member.awaiting_join = member.awaiting_join, None
    if error is not ErrorCode.NONE:
        previous = pending.previous
        del group.members[member.member_id]
        group.members[previous.member_id] = previous
        if previous.instance_id is not None:
            group.static_members[previous.instance_id] = previous.member_id
        group.leader = pending.previous_leader
        members.begin_session(step, previous)
        step.reply(token, JoinResult(error, ""))
        return
    result = rebalance.generation_for(step, member)
    if pending.can_skip_assignment:
        result = replace(result, skip_assignment=group.leader == member.member_id)
    else:
        # An older client is not told that it leads, so it does not compute an assignment that is not needed.
        result = replace(result, leader=pending.previous_leader or "", members=())
    step.reply(token, result)
