"""SyncGroup: the leader brings the assignment, and each member gets its own part once it is stored."""

from __future__ import annotations

from headrace.broker.groups.classic import members, rebalance
from headrace.broker.groups.model.classic import Member, Phase
from headrace.broker.groups.model.events import PendingAssignment, Sync, SyncResult
from headrace.broker.groups.model.limits import NEVER
from headrace.broker.groups.model.records import PutGroup
from headrace.broker.groups.step import Step
from headrace.protocol.errors import ErrorCode


def sync(step: Step, event: Sync) -> None:
    group = step.group
    error = _sync_error(step, event)
    if error is not ErrorCode.NONE:
        step.reply(event.token, SyncResult(error))
        return
    member = group.members[event.member_id]
    group.pending_sync.discard(member.member_id)
    if group.phase is Phase.STABLE:
        step.reply(event.token, _assignment_of(step, member))
        return
    if member.awaiting_sync is not None:
        step.reply(member.awaiting_sync, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
    member.awaiting_sync = event.token
    if group.leader == member.member_id:
        assignments = {name: bytes(event.assignments.get(name, b"")) for name in group.members}
        stored = group.stored(assignments)
        step.append((PutGroup(stored),), PendingAssignment(stored))


def _sync_error(step: Step, event: Sync) -> ErrorCode:
    group = step.group
    if group.phase is Phase.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = members.member_error(step, event.member_id, event.instance_id)
    if error is not ErrorCode.NONE:
        return error
    if event.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if (event.protocol_type is not None and event.protocol_type != group.protocol_type) or (
        event.protocol is not None and event.protocol != group.protocol
    ):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.phase is Phase.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def assignment_stored(step: Step, pending: PendingAssignment, error: ErrorCode) -> None:
    group = step.group
    if error is ErrorCode.NONE:
        group.journalled = pending.stored
    if group.phase is not Phase.COMPLETING_REBALANCE or group.generation != pending.stored.generation:
        return  # a newer rebalance has answered all members
    if error is not ErrorCode.NONE:
        for member in group.members.values():
            members.reply_sync(step, member, SyncResult(error))
        rebalance.begin(step)
        return
    for kept in pending.stored.members:
        member = group.members[kept.member_id]
        member.assignment = kept.assignment
        members.reply_sync(step, member, _assignment_of(step, member))
    group.transition_to(Phase.STABLE, step.now)


def _assignment_of(step: Step, member: Member) -> SyncResult:
    return SyncResult(ErrorCode.NONE, step.group.protocol_type, step.group.protocol, member.assignment)


def sync_deadline_passed(step: Step) -> None:
    """Take out the members that did not send SyncGroup in time."""
    group = step.group
    group.sync_deadline = NEVER
    if group.phase in (Phase.COMPLETING_REBALANCE, Phase.STABLE) and group.pending_sync:
        for member_id in list(group.pending_sync):
            members.remove(step, member_id, ErrorCode.UNKNOWN_MEMBER_ID)
        rebalance.begin(step)
