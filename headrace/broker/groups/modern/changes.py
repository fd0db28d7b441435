"""A change of the group: it is stored, and then it takes effect. If it cannot be stored, nothing has happened."""

from __future__ import annotations

from headrace.broker.groups.classic import joining, members
from headrace.broker.groups.model.consumer import ConsumerGroup
from headrace.broker.groups.model.events import (
    ConsumerHeartbeatResult,
    HeartbeatResult,
    JoinResult,
    LeaveResult,
    PendingConsumerChange,
    PendingDowngrade,
    Result,
)
from headrace.broker.groups.modern import conversion, sessions
from headrace.broker.groups.modern.draft import Draft
from headrace.broker.groups.step import Step
from headrace.protocol.errors import ErrorCode

RETRY_MS = 1000
"""Wait before a late member is removed again, if the journal could not store its removal."""


def store(step: Step, draft: Draft, pending: PendingConsumerChange) -> None:
    """Store the draft's records, then let `pending` take effect: now, if there are none."""
    if draft.records:
        step.group.appending = True
        if step.group.consumer is None:
            members.dismiss_waiting(step)
        step.append(tuple(draft.records), pending)
    else:
        _take_effect(step, pending)


def store_removal(step: Step, consumer: ConsumerGroup, draft: Draft, pending: PendingConsumerChange) -> None:
    """Store a change that removes members. Without members of the consumer protocol the group is downgraded."""
    if conversion.is_downgrade_due(step, draft.state):
        conversion.begin_downgrade(step, consumer, draft.state, pending)
    else:
        store(step, draft, pending)


def change_stored(step: Step, pending: PendingConsumerChange, error: ErrorCode) -> None:
    step.group.appending = False
    if error is ErrorCode.NONE:
        _take_effect(step, pending)
    else:
        _not_stored(step, pending, error)


def downgrade_stored(step: Step, pending: PendingDowngrade, error: ErrorCode) -> None:
    step.group.appending = False
    change, join = pending.change, pending.join
    if error is not ErrorCode.NONE:
        _not_stored(step, change, error)
        if join is not None:
            step.reply(join.token, JoinResult(error, join.member_id))
        return
    conversion.downgrade(step, pending)
    if change.token is not None and change.result is not None:
        step.reply(change.token, change.result)
    if join is not None:
        joining.join(step, join)


def _take_effect(step: Step, pending: PendingConsumerChange) -> None:
    group, state = step.group, pending.state
    if group.consumer is None:
        group.become_consumer_group()
        group.consumer = state
        sessions.watch_all(step)
    group.consumer = state
    if pending.heard_of is not None and (member := state.members.get(pending.heard_of)) is not None:
        sessions.watch(step, state, member)
        match pending.result:
            case JoinResult():
                state.joins.pop(member.member_id, None)
                state.syncs[member.member_id] = step.deadline(member.subscription.rebalance_timeout_ms)
            case HeartbeatResult(ErrorCode.REBALANCE_IN_PROGRESS):
                sessions.expect_join(step, state, member)
    if pending.token is not None and pending.result is not None:
        step.reply(pending.token, pending.result)


def _not_stored(step: Step, pending: PendingConsumerChange, error: ErrorCode) -> None:
    consumer = step.group.consumer
    if consumer is not None:
        for name in pending.late:
            if name in consumer.members:
                consumer.sessions[name] = step.deadline(RETRY_MS)
                for deadlines in (consumer.revocations, consumer.joins, consumer.syncs):
                    deadlines.pop(name, None)
    if pending.token is not None:
        step.reply(pending.token, _failed(pending.result, error))


def _failed(result: Result | None, error: ErrorCode) -> Result:
    match result:
        case LeaveResult():
            return LeaveResult(error)
        case JoinResult():
            return JoinResult(error, result.member_id)
        case HeartbeatResult():
            return HeartbeatResult(error)
        case _:
            message = "The change of the group could not be stored; try again."
            return ConsumerHeartbeatResult(error, message=message)
