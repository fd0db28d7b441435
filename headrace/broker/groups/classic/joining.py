"""JoinGroup: a client becomes a member, or a member joins the next generation.

Sources: KIP-345 (static members), KIP-389 (group size), KIP-394 (member id required).
"""

from __future__ import annotations

from headrace.broker.groups.classic import members, rebalance, static_members
from headrace.broker.groups.model.classic import Member, Phase
from headrace.broker.groups.model.events import Join, JoinResult
from headrace.broker.groups.step import Step
from headrace.broker.runtime.invariants import invariant
from headrace.protocol.errors import ErrorCode


def join(step: Step, event: Join) -> None:
    group = step.group
    if group.phase is Phase.DEAD:
        _refuse_join(step, event, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    elif not _session_timeout_is_legal(step, event.session_timeout_ms):
        _refuse_join(step, event, ErrorCode.INVALID_SESSION_TIMEOUT)
    elif not _has_room_for(step, event.member_id):
        _turn_away(step, event)
    elif not group.supports(event.protocol_type, event.protocols):
        _refuse_join(step, event, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    elif event.member_id == "":
        _join_new_member(step, event)
    elif event.member_id in group.pending_members and event.instance_id is None:
        _add_member(step, event, event.member_id)
    elif (error := members.member_error(step, event.member_id, event.instance_id)) is not ErrorCode.NONE:
        _refuse_join(step, event, error)
    else:
        _rejoin(step, event, group.members[event.member_id])


def _session_timeout_is_legal(step: Step, timeout_ms: int) -> bool:
    return step.limits.session_timeout_ms_min <= timeout_ms <= step.limits.session_timeout_ms_max


def _refuse_join(step: Step, event: Join, error: ErrorCode, member_id: str | None = None) -> None:
    answered = event.member_id if member_id is None else member_id
    step.reply(event.token, JoinResult(error, answered))


def _has_room_for(step: Step, member_id: str) -> bool:
    """Return whether the member fits into the group. In the join phase only members that have joined again count."""
    group = step.group
    member = group.members.get(member_id)
    if group.phase is Phase.EMPTY:
        return True
    if group.phase is Phase.PREPARING_REBALANCE:
        joined_already = member is not None and member.awaiting_join is not None
        return joined_already or group.awaiting_join_count < step.limits.group_size_max
    return member is not None or len(group.members) < step.limits.group_size_max


def _turn_away(step: Step, event: Join) -> None:
    members.remove(step, event.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
    _refuse_join(step, event, ErrorCode.GROUP_MAX_SIZE_REACHED, member_id="")
    rebalance.complete_if_all_joined(step)


def _join_new_member(step: Step, event: Join) -> None:
    group = step.group
    if event.instance_id is not None:
        current = group.static_members.get(event.instance_id)
        if current is None:
            _add_member(step, event, event.new_member_id)
        else:
            static_members.replace_member(step, event, group.members[current])
    elif event.must_know_id:
        if len(group.pending_members) >= step.limits.pending_members_max:
            _refuse_join(step, event, ErrorCode.GROUP_MAX_SIZE_REACHED)
            return
        group.pending_members[event.new_member_id] = step.deadline(event.session_timeout_ms)
        _refuse_join(step, event, ErrorCode.MEMBER_ID_REQUIRED, event.new_member_id)
    else:
        _add_member(step, event, event.new_member_id)


def _add_member(step: Step, event: Join, member_id: str) -> None:
    group = step.group
    invariant(member_id not in group.members, f"member {member_id} joins {group.group_id} twice")
    if group.phase is Phase.PREPARING_REBALANCE and group.previous_phase is Phase.EMPTY:
        group.new_member_added = True
    if not group.members:
        group.protocol_type = event.protocol_type
    member = Member(
        member_id=member_id,
        instance_id=event.instance_id,
        client_id=event.client_id,
        client_host=event.client_host,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        session_timeout_ms=event.session_timeout_ms,
        protocols=event.protocols,
        awaiting_join=event.token,
        is_new=True,
        knows_its_id=group.pending_members.pop(member_id, None) is not None,
    )
    # A new member cannot send heartbeats while it waits: its session timeout does not apply yet.
    member.deadline = step.deadline(step.limits.new_member_join_timeout_ms)
    group.members[member_id] = member
    if event.instance_id is not None:
        group.static_members[event.instance_id] = member_id
    if group.leader is None:
        group.leader = member_id
    rebalance.begin_or_complete(step)


def _rejoin(step: Step, event: Join, member: Member) -> None:
    group = step.group
    unchanged = member.protocols == event.protocols
    # The leader of a stable group may ask for a rebalance with an unchanged subscription: topics may have changed.
    keeps_generation = unchanged and (
        group.phase is Phase.COMPLETING_REBALANCE
        or (group.phase is Phase.STABLE and group.leader != member.member_id)
    )
    if keeps_generation:
        step.reply(event.token, rebalance.generation_for(step, member))
    else:
        members.update(step, event, member)
        rebalance.begin_or_complete(step)
