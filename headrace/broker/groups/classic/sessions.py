"""The sessions of members: heartbeats extend them, LeaveGroup and time end them."""

from __future__ import annotations

from headrace.broker.groups.classic import members, rebalance, syncing
from headrace.broker.groups.model.classic import Member, Phase
from headrace.broker.groups.model.events import (
    Abandoned,
    Heartbeat,
    HeartbeatResult,
    Leave,
    Leaver,
    LeaveResult,
)
from headrace.broker.groups.model.limits import NEVER
from headrace.broker.groups.step import Step
from headrace.protocol.errors import ErrorCode


def heartbeat(step: Step, event: Heartbeat) -> None:
    group = step.group
    error = members.member_error(step, event.member_id, event.instance_id)
    if group.phase is Phase.DEAD:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    elif error is ErrorCode.NONE and event.generation != group.generation:
        error = ErrorCode.ILLEGAL_GENERATION
    elif error is ErrorCode.NONE:
        members.begin_session(step, group.members[event.member_id])
        if group.phase is Phase.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
    step.reply(event.token, HeartbeatResult(error))


def leave(step: Step, event: Leave) -> None:
    group = step.group
    if group.phase is Phase.DEAD:
        step.reply(event.token, LeaveResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    outcomes = tuple((leaver, _leave_one(step, leaver)) for leaver in event.leavers)
    step.reply(event.token, LeaveResult(ErrorCode.NONE, outcomes))
    if any(error is ErrorCode.NONE for _, error in outcomes):
        rebalance.membership_shrank(step)


def _leave_one(step: Step, leaver: Leaver) -> ErrorCode:
    group = step.group
    member_id = leaver.member_id
    if member_id == "" and leaver.instance_id is not None:
        # An administrator removes a static member by its instance id (KIP-345).
        member_id = group.static_members.get(leaver.instance_id, "")
    elif member_id in group.pending_members:
        del group.pending_members[member_id]
        return ErrorCode.NONE
    error = members.member_error(step, member_id, leaver.instance_id)
    if error is ErrorCode.NONE:
        members.remove(step, member_id, ErrorCode.UNKNOWN_MEMBER_ID)
    return error


def abandoned(step: Step, event: Abandoned) -> None:
    """Take out a new member whose client closed its connection before it was told its member id."""
    for member in step.group.members.values():
        if member.awaiting_join == event.token and member.is_new and not member.knows_its_id:
            if member.instance_id is None:
                members.remove(step, member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
                rebalance.membership_shrank(step)
            return


def member_deadline_passed(step: Step, member: Member) -> None:
    member.deadline = NEVER
    waits = member.awaiting_join is not None or member.awaiting_sync is not None
    if waits and not member.is_new:
        return  # its answer begins a new session
    members.remove(step, member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
    rebalance.membership_shrank(step)


def pending_deadline_passed(step: Step, member_id: str) -> None:
    del step.group.pending_members[member_id]
    rebalance.complete_if_all_joined(step)


def tick(step: Step) -> None:
    """Handle all deadlines that have passed."""
    group, now = step.group, step.now.monotonic
    if group.join_deadline <= now:
        rebalance.join_deadline_passed(step)
    if group.sync_deadline <= now:
        syncing.sync_deadline_passed(step)
    for member_id in [name for name, deadline in group.pending_members.items() if deadline <= now]:
        if member_id in group.pending_members:
            pending_deadline_passed(step, member_id)
    for member in [member for member in group.members.values() if member.deadline <= now]:
        # An earlier one may have removed this member or begun its session again.
        if group.members.get(member.member_id) is member and member.deadline <= now:
            member_deadline_passed(step, member)
