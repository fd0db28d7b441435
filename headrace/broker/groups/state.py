"""The state machine of a group: `step(group, event, now, limits) -> effects`.

A step changes `group` and returns its effects. It does not wait, read a clock or write. The same events at the same
times give the same effects, so a schedule can be replayed. Groups of both protocols live here: each event goes to the
protocol that the group has now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.broker.groups.classic import joining, rebalance, sessions, static_members, syncing
from headrace.broker.groups.model.consumer import tombstones_of
from headrace.broker.groups.model.events import (
    Abandoned,
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
    Sync,
    Tick,
    TransactionalCommit,
    TransactionCommitted,
)
from headrace.broker.groups.model.group import Group
from headrace.broker.groups.model.limits import Limits, Now
from headrace.broker.groups.model.topics import NoTopics, Topics
from headrace.broker.groups.modern import changes, classic_members, heartbeat, leaving
from headrace.broker.groups.offsets import commits, deletion, expiry
from headrace.broker.groups.step import Step
from headrace.protocol.errors import ErrorCode

_NO_TOPICS = NoTopics()


def step(group: Group, event: Event, now: Now, limits: Limits, topics: Topics = _NO_TOPICS) -> list[Effect]:
    """Apply `event` to `group`, and return the effects to carry out, in order.

    `topics` is the metadata at this time. Only groups of the consumer protocol look at it.
    """
    if group.appending and type(event) in _WAIT_FOR_JOURNAL:
        group.backlog.append(event)
        return []
    context = Step(group, now, limits, topics)
    _HANDLERS[type(event)](context, event)
    while group.backlog and not group.appending:
        waiting = group.backlog.pop(0)
        _HANDLERS[type(waiting)](context, waiting)
    return context.effects


def _tick(step: Step, event: Tick) -> None:
    if step.group.next_wake > step.now.monotonic:
        return
    leaving.tick(step)
    sessions.tick(step)
    step.group.next_wake = step.group.earliest_deadline()


def _appended(step: Step, event: Appended) -> None:
    pending, error = event.pending, event.error
    match pending:
        case PendingCommit():
            commits.commit_stored(step, pending, error)
        case PendingTransactionalCommit():
            commits.transactional_commit_stored(step, pending, error)
        case PendingAssignment():
            syncing.assignment_stored(step, pending, error)
        case PendingStaticMember():
            static_members.stored(step, pending, error)
        case PendingOffsetDeletion():
            deletion.offsets_deleted(step, pending, error)
        case PendingGroupDeletion():
            deletion.group_deleted(step, pending, error)
        case PendingEmpty():
            rebalance.empty_stored(step, pending, error)
        case PendingConsumerChange():
            changes.change_stored(step, pending, error)
        case PendingConversion(join):
            _converted(step, join, error)
        case PendingDowngrade():
            changes.downgrade_stored(step, pending, error)


def _join(step: Step, event: Join) -> None:
    """Join the group by its protocol. An empty group of the consumer protocol becomes a classic one first."""
    group = step.group
    if group.consumer is None:
        joining.join(step, event)
    elif group.consumer.members:
        classic_members.join(step, group.consumer, event)
    elif group.consumer.stored:
        group.appending = True
        tombstones = tuple(tombstones_of(group.group_id, group.consumer))
        step.append(tombstones, PendingConversion(event))
    else:
        group.consumer = None
        joining.join(step, event)


def _converted(step: Step, join: Join, error: ErrorCode) -> None:
    step.group.appending = False
    if error is ErrorCode.NONE:
        step.group.consumer = None
        joining.join(step, join)
    else:
        step.reply(join.token, JoinResult(error, join.member_id))


def _sync(step: Step, event: Sync) -> None:
    if step.group.consumer is None:
        syncing.sync(step, event)
    else:
        classic_members.sync(step, step.group.consumer, event)


def _heartbeat(step: Step, event: Heartbeat) -> None:
    if step.group.consumer is None:
        sessions.heartbeat(step, event)
    else:
        classic_members.heartbeat(step, step.group.consumer, event)


def _leave(step: Step, event: Leave) -> None:
    if step.group.consumer is None:
        sessions.leave(step, event)
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
"""Events that wait while a change of the group is being stored, because they depend on its outcome."""

_HANDLERS: dict[type, Callable[[Step, Any], None]] = {
    Join: _join,
    Sync: _sync,
    Heartbeat: _heartbeat,
    Leave: _leave,
    ConsumerHeartbeat: heartbeat.heartbeat,
    PatternsResolved: heartbeat.patterns_resolved,
    Commit: commits.commit,
    TransactionalCommit: commits.commit_in_transaction,
    TransactionCommitted: commits.transaction_committed,
    DeleteOffsets: deletion.delete_offsets,
    DeleteGroup: deletion.delete_group,
    Tick: _tick,
    ExpireOffsets: expiry.expire_offsets,
    ForgetTopic: deletion.forget_topic,
    Abandoned: sessions.abandoned,
    Appended: _appended,
}
