"""The join phase: it collects JoinGroup requests, ends in a new generation, and begins again with every change.

It ends when every member has joined again, or after the longest rebalance timeout. The first rebalance of an empty
group also waits for group.initial.rebalance.delay.ms, and for longer while new members keep coming (KIP-134).
"""

from __future__ import annotations

from headrace.broker.groups.classic import members
from headrace.broker.groups.classic.consumer_protocol import subscribed_topics
from headrace.broker.groups.model.classic import Member, Phase
from headrace.broker.groups.model.events import JoinResult, PendingEmpty, SyncResult
from headrace.broker.groups.model.limits import NEVER
from headrace.broker.groups.model.records import PutGroup
from headrace.broker.groups.step import Step
from headrace.protocol.errors import ErrorCode


def begin(step: Step) -> None:
    """Begin a rebalance: all members have to join again."""
    group = step.group
    if group.phase is Phase.COMPLETING_REBALANCE:
        for member in group.members.values():
            members.reply_sync(step, member, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
    group.pending_sync.clear()
    group.sync_deadline = NEVER
    initial = group.phase is Phase.EMPTY
    group.transition_to(Phase.PREPARING_REBALANCE, step.now)
    if initial:
        delay_ms = step.limits.initial_rebalance_delay_ms
        # Even without a delay the join phase ends in a tick, so 0 needs no code of its own. The slice counts as at
        # least 1 ms, because 0 means "not in the initial rebalance".
        group.initial_delay_ms = max(delay_ms, 1)
        group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0) if delay_ms else 0
        group.new_member_added = False
        group.join_deadline = step.deadline(delay_ms)
    elif group.all_members_joined:
        _complete_join(step)
    else:
        group.join_deadline = step.deadline(group.rebalance_timeout_ms)


def begin_or_complete(step: Step) -> None:
    """Begin a rebalance after a join, or end the current one if that was the last join."""
    if step.group.phase is Phase.PREPARING_REBALANCE:
        if step.group.initial_delay_ms == 0:
            complete_if_all_joined(step)
    else:
        begin(step)


def complete_if_all_joined(step: Step) -> None:
    group = step.group
    is_preparing = group.phase is Phase.PREPARING_REBALANCE and group.initial_delay_ms == 0
    if is_preparing and group.all_members_joined:
        _complete_join(step)


def membership_shrank(step: Step) -> None:
    """Continue after members were taken out."""
    group = step.group
    if group.phase in (Phase.STABLE, Phase.COMPLETING_REBALANCE):
        begin(step)
    elif group.phase is Phase.PREPARING_REBALANCE and not group.members and not group.pending_members:
        _complete_join(step)
    else:
        complete_if_all_joined(step)


def join_deadline_passed(step: Step) -> None:
    group = step.group
    group.join_deadline = NEVER
    if group.initial_delay_ms and group.new_member_added and group.initial_remaining_ms:
        group.new_member_added = False
        slice_ms = min(step.limits.initial_rebalance_delay_ms, group.initial_remaining_ms)
        group.initial_remaining_ms = max(group.initial_remaining_ms - group.initial_delay_ms, 0)
        group.initial_delay_ms = slice_ms
        group.join_deadline = step.deadline(slice_ms)
    else:
        _complete_join(step)


def _complete_join(step: Step) -> None:
    """Begin the next generation with the members that have joined. Absent static members keep their place."""
    group = step.group
    group.join_deadline = NEVER
    group.initial_delay_ms = group.initial_remaining_ms = 0
    for member in list(group.members.values()):
        if member.awaiting_join is None and member.instance_id is None:
            members.remove(step, member.member_id, ErrorCode.UNKNOWN_MEMBER_ID)
    if group.members and not _elect_joined_leader(step):
        # Only absent static members are left: wait until they join or their sessions end.
        group.join_deadline = step.deadline(max(group.rebalance_timeout_ms, 1_000))
        return
    group.generation += 1
    group.pending_sync.clear()
    if not group.members:
        group.protocol = None
        group.leader = None
        group.subscribed_topics = subscribed_topics(group)
        group.transition_to(Phase.EMPTY, step.now)
        stored = group.stored()
        step.append((PutGroup(stored),), PendingEmpty(stored))
        return
    group.protocol = group.select_protocol()
    group.subscribed_topics = subscribed_topics(group)
    group.transition_to(Phase.COMPLETING_REBALANCE, step.now)
    for member in group.members.values():
        member.assignment = b""
        member.is_new = False
        member.knows_its_id = True
        group.pending_sync.add(member.member_id)
        if member.awaiting_join is not None:
            token, member.awaiting_join = member.awaiting_join, None
            step.reply(token, generation_for(step, member))
            members.begin_session(step, member)
    group.sync_deadline = step.deadline(group.rebalance_timeout_ms)


def _elect_joined_leader(step: Step) -> bool:
    """Keep the leader if it has joined, or elect the first member that has. False if none has joined."""
    group = step.group
    leader = group.members.get(group.leader or "")
    if leader is not None and leader.awaiting_join is not None:
        return True
    for member in group.members.values():
        if member.awaiting_join is not None:
            group.leader = member.member_id
            return True
    return False


def generation_for(step: Step, member: Member) -> JoinResult:
    """Return the JoinGroup answer for `member`. The leader's has all members."""
    group = step.group
    all_members: tuple[tuple[str, str | None, bytes], ...] = ()
    if group.leader == member.member_id:
        all_members = tuple(
            (other.member_id, other.instance_id, other.metadata(group.protocol))
            for other in group.members.values()
        )
    return JoinResult(
        error=ErrorCode.NONE,
        member_id=member.member_id,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=group.leader or "",
        members=all_members,
    )


def empty_stored(step: Step, pending: PendingEmpty, error: ErrorCode) -> None:
    if error is ErrorCode.NONE:
        step.group.journalled = pending.stored
