"""The state machine of a group: `step(group, event, now, limits) -> effects`.

It changes `group` and returns what has to be done outside: nothing is awaited, no clock is read, nothing is
written. The same events at the same times give the same effects, so a schedule can be replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.broker.groups import offsets
from headrace.broker.groups.consumer_protocol import subscribed_topics
from headrace.broker.groups.events import (
    Abandoned,
    Append,
    Appended,
    Commit,
    ConsumerHeartbeat,
    DeleteGroup,
    DeleteOffsets,
    Effect,
    Event,
    ExpireOffsets,
    ForgetTopic,
    Heartbeat,
    Join,
    JoinResult,
    Leave,
    PatternsResolved,
    PendingAssignment,
    PendingCommit,
    PendingConsumerChange,
    PendingConversion,
    PendingDowngrade,
    PendingEmpty,
    PendingGroupDeletion,
    PendingOffsetDeletion,
    PendingStaticMember,
    PendingTransactionalCommit,
    Reply,
    Sync,
    Tick,
    TransactionalCommit,
    TransactionCommitted,
)
from headrace.broker.groups.group import Group
from headrace.broker.groups.model import Limits, Now, StoredGroup
from headrace.broker.groups.modern import classic_members
from headrace.broker.groups.modern import heartbeat as modern
from headrace.broker.groups.modern.model import ConsumerGroup, NoTopics, Topics, tombstones_of
from headrace.broker.groups.rebalance import Rebalance
from headrace.protocol.errors import ErrorCode

_NO_TOPICS = NoTopics()


def step(group: Group, event: Event, now: Now, limits: Limits, topics: Topics = _NO_TOPICS) -> list[Effect]:
    """Let `event` happen to `group`. The effects are to be carried out in order.

    `topics` is the metadata at this time; only groups of the consumer protocol look at it.
    """
    if group.appending and type(event) in _WAIT_FOR_JOURNAL:
        group.backlog.append(event)
        return []
    rebalance = Rebalance(group, now, limits, topics)
    _HANDLERS[type(event)](rebalance, event)
    while group.backlog and not group.appending:
        waiting = group.backlog.pop(0)
        _HANDLERS[type(waiting)](rebalance, waiting)
    return rebalance.effects


def _tick(step: Rebalance, event: Tick) -> None:
    group, now = step.group, step.now.monotonic
    if group.next_wake > now:
        return
    modern.tick(step)
    if group.join_deadline <= now:
        step.join_deadline_passed()
    if group.sync_deadline <= now:
        step.sync_deadline_passed()
    for member_id in [name for name, deadline in group.pending_members.items() if deadline <= now]:
        if member_id in group.pending_members:
            step.pending_deadline_passed(member_id)
    for member in [member for member in group.members.values() if member.deadline <= now]:
        # What happened to the others may have removed it or begun its session anew.
        if group.members.get(member.member_id) is member and member.deadline <= now:
            step.member_deadline_passed(member)
    group.next_wake = group.earliest_deadline()


def _appended(step: Rebalance, event: Appended) -> None:
    pending, error = event.pending, event.error
    match pending:
        case PendingCommit():
            offsets.commit_stored(step, pending, error)
        case PendingTransactionalCommit():
            offsets.transactional_commit_stored(step, pending, error)
        case PendingAssignment():
            step.assignment_stored(pending, error)
        case PendingStaticMember():
            step.static_member_stored(pending, error)
        case PendingOffsetDeletion():
            offsets.offsets_deleted(step, pending, error)
        case PendingGroupDeletion():
            offsets.group_deleted(step, pending, error)
        case PendingEmpty():
            step.empty_stored(pending, error)
        case PendingConsumerChange():
            modern.change_stored(step, pending, error)
        case PendingConversion(join):
            _converted(step, join, error)
        case PendingDowngrade():
            modern.downgrade_stored(step, pending, error)


def _join(step: Rebalance, event: Join) -> None:
    """An empty group of the consumer protocol becomes a classic one; a live one takes the member in."""
    group = step.group
    if group.consumer is None:
        step.join(event)
    elif group.consumer.members:
        classic_members.join(step, group.consumer, event)
    elif group.consumer.stored:
        group.appending = True
        tombstones = tuple(tombstones_of(group.group_id, group.consumer))
        step.effects.append(Append(tombstones, PendingConversion(event)))
    else:
        group.consumer = None
        step.join(event)


def _converted(step: Rebalance, join: Join, error: ErrorCode) -> None:
    step.group.appending = False
    if error is ErrorCode.NONE:
        step.group.consumer = None
        step.join(join)
    else:
        step.effects.append(Reply(join.token, JoinResult(error, join.member_id)))


def _sync(step: Rebalance, event: Sync) -> None:
    if step.group.consumer is None:
        step.sync(event)
    else:
        classic_members.sync(step, step.group.consumer, event)


def _heartbeat(step: Rebalance, event: Heartbeat) -> None:
    if step.group.consumer is None:
        step.heartbeat(event)
    else:
        classic_members.heartbeat(step, step.group.consumer, event)


def _leave(step: Rebalance, event: Leave) -> None:
    if step.group.consumer is None:
        step.leave(event)
    else:
        classic_members.leave(step, step.group.consumer, event)


_WAIT_FOR_JOURNAL = (
    ConsumerHeartbeat,
    PatternsResolved,
    Join,
    Sync,
    Heartbeat,
    Leave,
    Tick,
    DeleteGroup,
    ExpireOffsets,
)
"""Events that would decide on a state which is about to change."""

_HANDLERS: dict[type, Callable[[Rebalance, Any], None]] = {
    Join: _join,
    Sync: _sync,
    Heartbeat: _heartbeat,
    Leave: _leave,
    ConsumerHeartbeat: modern.heartbeat,
    PatternsResolved: modern.patterns_resolved,
    Commit: offsets.commit,
    TransactionalCommit: offsets.commit_in_transaction,
    TransactionCommitted: offsets.transaction_committed,
    DeleteOffsets: offsets.delete_offsets,
    DeleteGroup: offsets.delete_group,
    Tick: _tick,
    ExpireOffsets: offsets.expire_offsets,
    ForgetTopic: offsets.forget_topic,
    Abandoned: lambda step, event: step.abandoned(event.token),
    Appended: _appended,
}


def restore(group_id: str, stored: StoredGroup | None, now: Now, limits: Limits) -> Group:
    """The group as the journal knows it; `stored` is None for one that has only offsets.

    Members are given one session timeout to be heard of again. If they are more than `group.max.size` allows
    by now, they have to join again, and the last to do so are turned away.
    """
    group = Group(group_id)
    if stored is None:
        return group
    group.journalled = stored
    group.take_members(stored, now)
    group.subscribed_topics = subscribed_topics(group)
    if len(group.members) > limits.group_size_max:
        Rebalance(group, now, limits, _NO_TOPICS).begin()
    return group


def restore_consumer_group(group: Group, consumer: ConsumerGroup, now: Now, limits: Limits) -> None:
    """`group` is one of the consumer protocol, as the journal knows it. Its members have one session timeout
    to be heard of again.
    """
    group.consumer = consumer
    modern.watch_all(Rebalance(group, now, limits, _NO_TOPICS))
