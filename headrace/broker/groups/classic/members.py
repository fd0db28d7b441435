"""The members of a classic group: who may act as a member, requests that wait, and taking a member out."""

from __future__ import annotations

from headrace.broker.groups.model.classic import Member, Phase
from headrace.broker.groups.model.events import Join, JoinResult, SyncResult
from headrace.broker.groups.step import Step
from headrace.protocol.errors import ErrorCode


def member_error(step: Step, member_id: str, instance_id: str | None) -> ErrorCode:
    """Return why the request does not come from a member, or NONE."""
    group = step.group
    if instance_id is not None:
        current = group.static_members.get(instance_id)
        if current is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if current != member_id:
            return ErrorCode.FENCED_INSTANCE_ID
    return ErrorCode.NONE if member_id in group.members else ErrorCode.UNKNOWN_MEMBER_ID


def update(step: Step, event: Join, member: Member) -> None:
    """Take over the fields of a JoinGroup request, which then waits. An earlier one is answered."""
    if member.awaiting_join is not None and member.awaiting_join != event.token:
        step.reply(member.awaiting_join, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
    member.protocols = event.protocols
    member.rebalance_timeout_ms = event.rebalance_timeout_ms
    member.session_timeout_ms = event.session_timeout_ms
    member.awaiting_join = event.token


def remove(step: Step, member_id: str, error: ErrorCode) -> None:
    """Take out a member, or an id that is not used yet. Its waiting requests are answered with `error`."""
    group = step.group
    group.pending_members.pop(member_id, None)
    group.pending_sync.discard(member_id)
    member = group.members.pop(member_id, None)
    if member is None:
        return
    finish_waiting(step, member, error)
    if member.instance_id is not None:
        group.static_members.pop(member.instance_id, None)
    if group.leader == member_id:
        group.leader = next(iter(group.members), None)


def finish_waiting(step: Step, member: Member, error: ErrorCode) -> None:
    """Answer the member's waiting requests with `error`."""
    if member.awaiting_join is not None:
        token, member.awaiting_join = member.awaiting_join, None
        # An unknown member starts again with an empty id. A fenced one must learn which id is fenced, and a member
        # that has to join again keeps its id.
        answered = "" if error is ErrorCode.UNKNOWN_MEMBER_ID else member.member_id
        step.reply(token, JoinResult(error, answered))
    reply_sync(step, member, SyncResult(error))


def dismiss_waiting(step: Step) -> None:
    """Tell all waiting members to join again: the group is about to change to the consumer protocol."""
    for member in step.group.members.values():
        finish_waiting(step, member, ErrorCode.REBALANCE_IN_PROGRESS)


def reply_sync(step: Step, member: Member, result: SyncResult) -> None:
    if member.awaiting_sync is not None:
        token, member.awaiting_sync = member.awaiting_sync, None
        step.reply(token, result)
        # The session does not end while the member waits, so it may have no deadline any more.
        begin_session(step, member)


def begin_session(step: Step, member: Member) -> None:
    member.deadline = step.deadline(member.session_timeout_ms)


def note_commit(step: Step, member_id: str) -> None:
    """Extend the member's session: a commit counts like a heartbeat."""
    member = step.group.members.get(member_id)
    if member is not None and step.group.phase in (Phase.STABLE, Phase.PREPARING_REBALANCE):
        begin_session(step, member)
